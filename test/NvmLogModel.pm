# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmLogModel - what the files of the log say of tables in memory, read for itself

=head1 SYNOPSIS

  my $model = NvmLogModel->new(@directories);    # before the server starts
  push @problems, $model->problems, $model->differences($rig);

=head1 DESCRIPTION

nvm_logdump says which blocks count, and which files a checkpoint has.  The records in them
are read here: of each row the one with the highest generation and number counts, and rows
of the checkpoint where there is none behind its beginning.  What became of an ASK record without
OUTCOME is what the rebuilding has written down.

=over

=item problems

What nvm_logdump finds wrong.

=item differences(RIG)

Between this and the tables of a running server, nobody of whose sessions has written yet
to any in memory: rows by their ctid, and their contents if the types are known here.

=back

=cut

package NvmLogModel;

use strict;
use warnings;

use File::Basename;
use NvmFuzzImage;
use NvmLog;

my $page         = NvmFuzzImage::constant('NVM_LOG_PAGE');
my $block_header = NvmFuzzImage::constant('NVM_LOG_BLOCK_HEADER');
my $piece        = 0x8000;    # NVM_LOG_PIECE
my $old_row      = 0x4000;    # NVM_LOG_OLD
my ($ask, $outcome, $side, $committed, $brief, $packed) =
  map { NvmFuzzImage::constant("NVM_LOG_$_") } qw(ASK OUTCOME SIDE COMMITTED BRIEF PACKED);

sub new
{
	my ($class, @dirs) = @_;
	my $self = bless { problems => [], rows => {}, dirs => \@dirs }, $class;

	$self->{records} = [ $self->_records(@dirs) ];
	return $self;
}

sub problems { return @{ $_[0]->{problems} }; }

sub _slice
{
	my ($file, $at, $length) = @_;
	my $bytes = '';

	open(my $fh, '<:raw', $file) or die "$file: $!";
	seek($fh, $at, 0) or die "$file: $!";
	read($fh, $bytes, $length // -s $file) // die "$file: $!";
	close $fh;
	return $bytes;
}

# All records that count, in the order of the stream
sub _records
{
	my ($self, @dirs) = @_;
	my $said = qx(nvm_logdump @dirs 2>&1);
	my ($begin) = $said =~ /^checkpoint \S+: number \d+, begin (\d+),/m;
	my (@records, $file, $generation);

	push @{ $self->{problems} }, grep { /^nvm_logdump: / } split /\n/, $said if $? != 0;
	foreach my $line (split /\n/, $said)
	{
		push @records, { generation => 0, kind => 0, flags => 0, number => 0, xid => 0, body => _slice((grep { -e } map { "$_/$1" } @dirs)[0], $page, $2) }
		  if $line =~ /^  file (\S+\.rows), (\d+) bytes/;
		if ($line =~ /^file (\S+): generation (\d+), number/)
		{
			($file, $generation) = ($1, $2);
		}
		next unless $line =~ /^block at (\d+): position (\d+), (\d+) bytes/;
		my $position = $2;
		my $bytes = _slice($file, $1 + $block_header, $3);
		for (my $at = 0; $at < length($bytes);)
		{
			my ($length, $kind, $flags, $number, $xid) = unpack('L<S<S<Q<Q<', substr($bytes, $at, 24));
			my $header = $flags & $brief ? 16 : 24;
			my $body = substr($bytes, $at + $header, $length - $header);
			if ($kind != $outcome && $flags & $side)
			{
				# it may have been carried over
				my ($pool) = basename($file) =~ /^([0-9a-f]{8})-/;
				my ($name) = grep { -e } map { my $g = $_; map { sprintf("%s/%s-%08x-%016x.side", $_, $pool, $g, $number) } @dirs } reverse 1 .. $generation;
				$body = defined $name ? _slice($name, $page, unpack('Q<', $body)) : '';
			}
			$at += $length;
			# the checkpoint has what it left, or what is newer
			next if defined $begin && $position + $at <= $begin;
			push @records, { generation => $generation, kind => $kind, flags => $flags, number => $number, xid => $xid, body => $body };
		}
	}
	return @records;
}

# What became of ASK records: by their numbers in the list
sub _verdicts
{
	my (@records) = @_;
	my (%open, %verdict);

	foreach my $i (0 .. $#records)
	{
		my $r = $records[$i];
		push @{ $open{ $r->{xid} } }, $i if $r->{kind} == $ask;
		next unless $r->{kind} == $outcome;
		$verdict{$_} = $r->{flags} & $committed ? 1 : 0 foreach @{ delete $open{ $r->{xid} } // [] };
	}
	return \%verdict;
}

# Storages and rows of a record
sub _take
{
	my ($rows, $r, $moved) = @_;
	my $body = $r->{body};
	my $at   = 0;

	while ($at < length($body))
	{
		my ($dir, $length, $creation, $header) = NvmLog::section_at($body, $at);
		my $end = $at + $header + $length;
		# calls, and lanes of values
		if ($dir == 0) { $at = $end + -$end % 8; next; }
		for ($at += $header; $at < $end;)
		{
			my ($block, $offset, $bytes) = unpack('L<S<S<', substr($body, $at, 8));
			my $is_packed = $bytes & $packed;
			$bytes &= ~$packed;
			if ($offset & $old_row) { $at += 12 + $bytes + (-$bytes % 4); next; }
			my $key = "($block,$offset)";
			$moved->{$dir}{$key} = 1 if $moved;
			# a piece of a large value
			if ($offset & $piece) { $at += 12 + $bytes + (-$bytes % 4); next; }
			my $before = $rows->{$dir}{$creation}{$key};
			my $tuple = substr($body, $at + 12, $bytes);
			$tuple = NvmLog::unpacked($tuple) if $is_packed;
			$rows->{$dir}{$creation}{$key} = { order => [ $r->{generation}, $r->{number} ], tuple => $tuple }
			  unless $before && ($before->{order}[0] <=> $r->{generation} || $before->{order}[1] <=> $r->{number}) > 0;
			$at += 12 + $bytes + (-$bytes % 4);
		}
		$at += -$at % 8;
	}
	return;
}

# A tuple from infomask2 on, as PostgreSQL prints a record; undef: a type is not known
sub _text
{
	my ($bytes, @types) = @_;
	my ($mask2, $mask, $hoff) = unpack('S<S<C', $bytes);
	my $at = $hoff - 18;
	my @values;

	foreach my $i (0 .. $#types)
	{
		my $type = $types[$i];
		if ($i >= ($mask2 & 0x7ff) || ($mask & 1 && !(unpack('C', substr($bytes, 5 + int($i / 8), 1)) >> ($i % 8) & 1)))
		{
			push @values, '';
		}
		elsif ($type eq 'boolean')
		{
			push @values, unpack('C', substr($bytes, $at++, 1)) ? 't' : 'f';
		}
		elsif ($type eq 'integer' || $type eq 'bigint')
		{
			my $size = $type eq 'integer' ? 4 : 8;
			# by the place in the tuple
			$at += -($at + 18) % $size;
			push @values, unpack($size == 4 ? 'l<' : 'q<', substr($bytes, $at, $size));
			$at += $size;
		}
		elsif ($type eq 'text')
		{
			$at += -($at + 18) % 4 if unpack('C', substr($bytes, $at, 1)) == 0;
			my $first = unpack('C', substr($bytes, $at, 1));
			my ($head, $length) = $first & 1 ? (1, $first >> 1) : (4, unpack('L<', substr($bytes, $at, 4)) >> 2);
			return undef if $first == 1 || ($first & 3) == 2;
			my $value = substr($bytes, $at + $head, $length - $head);
			push @values, $value eq '' ? '""' : $value;
			$at += $length;
		}
		else
		{
			return undef;
		}
	}
	return '(' . join(',', @values) . ')';
}

# What the log says now, and what became of our ASK records.  Nobody waits for the OUTCOME of one that
# was prepared.
sub _what_became
{
	my ($self) = @_;
	my $end = time() + 20;

	while (1)
	{
		my $later = NvmLogModel->new(@{ $self->{dirs} });
		my $verdict = _verdicts(@{ $self->{records} }, grep { $_->{kind} == $outcome } @{ $later->{records} });
		my @open = grep { $self->{records}[$_]{kind} == $ask && !defined $verdict->{$_} } 0 .. $#{ $self->{records} };
		return ($later, $verdict) if !@open || time() > $end;
		sleep 1;
	}
}

sub differences
{
	my ($self, $rig) = @_;
	my $last     = $#{ $self->{records} };
	my ($later, $verdict) = $self->_what_became;
	my $known = _verdicts(@{ $self->{records} });
	my (%rows, %moved);
	my @problems = map { "now that the server is there: $_" } $later->problems;

	foreach my $i (0 .. $last)
	{
		my $r = $self->{records}[$i];
		next if $r->{kind} == $outcome;
		if ($r->{kind} == $ask && !defined $verdict->{$i})
		{
			push @problems, "the log does not say what became of transaction $r->{xid}";
			next;
		}
		# a version of one that was prepared when the rows came back lies beside its root
		_take(\%rows, $r, $r->{kind} == $ask && !defined $known->{$i} ? \%moved : undef)
		  if $r->{kind} != $ask || $verdict->{$i};
	}
	my ($tables) = $rig->psql(<<'SQL');
SELECT r.id, r.creation, c.oid::regclass, string_agg(format_type(a.atttypid, NULL), ' ' ORDER BY attnum) FILTER (WHERE NOT attisdropped)
FROM nvm.relations r JOIN pg_class c ON c.oid = r.relation JOIN pg_am m ON m.oid = c.relam JOIN pg_attribute a ON a.attrelid = c.oid AND attnum > 0
WHERE m.amname = 'nvm_dram' AND NOT r.ended GROUP BY 1, 2, 3 ORDER BY 1;
SQL
	foreach my $line (split /\n/, $tables)
	{
		my ($id, $creation, $table, $types) = split /\|/, $line;
		push @problems, _compare($rig, $table, $rows{$id}{$creation} // {}, $moved{$id} // {}, split / /, $types);
		last if @problems > 10;
	}
	return @problems;
}

sub _compare
{
	my ($rig, $table, $model, $moved, @types) = @_;
	my ($said) = $rig->psql("SELECT ctid || ' ' || t::text FROM $table t;\n");
	my (%there, @problems);

	foreach my $line (split /\n/, $said)
	{
		my ($ctid, $text) = split / /, $line, 2;
		$there{$ctid} = $text;
	}
	foreach my $ctid (sort keys %$model)
	{
		my $tuple = $model->{$ctid}{tuple};
		my $text = $tuple eq '' ? undef : _text($tuple, @types);
		# somewhere else, perhaps
		my ($at) = !$moved->{$ctid} || defined $there{$ctid} ? $ctid
		  : grep { !$model->{$_} && defined $text && $there{$_} eq $text } sort keys %there;
		my $has = delete $there{ $at // $ctid };
		next if !defined $has && $tuple eq '';
		push @problems, "$table $ctid is " . ($has // 'not there') . ', by the log ' . ($text // 'gone')
		  if !defined $has || $tuple eq '' || (defined $text && $text ne $has);
		return @problems if @problems > 5;
	}
	push @problems, map { "$table $_ is there, the log does not have it" } sort keys %there;
	return @problems;
}

1;

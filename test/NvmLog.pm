# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmLog - files of the log: made byte by byte, and what a server has written

=head1 SYNOPSIS

  my $log = NvmLog->new(uuid => $uuid, number => 2, first => 4500);
  $log->block([ commit(501, 733, storage(3, 17, row(5, 12, 733, $tuple), row(5, 14, 733))) ]);
  $log->block([ outcome(502, 734, 1) ], synced => 4500);
  my $path = $log->write($dir);

  my $dump = NvmLog::dump_of($node->data_dir . '/pg_nvm_log');
  is($dump->{problem}, '', 'it is whole');
  foreach my $record (@{ $dump->{records} }) { ... }

=head1 DESCRIPTION

Layouts are src/media/media_log.h's.  C<new> and C<block> take any field of the header by its
name; what is not given is what a server would write.  C<bytes> is the file, which a test may
change; C<flip> flips a bit, C<seal> makes the checksum of the block at an offset right again.

=cut

package NvmLog;

use strict;
use warnings;

use Exporter qw(import);
use IPC::Run ();
use NvmFuzzImage;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(commit brief_commit ask outcome in_side storage brief_storage row packed_row piece old_row
  with_calls with_calls_alone calls number value);

my $page  = NvmFuzzImage::constant('NVM_LOG_PAGE');
my $sector = NvmFuzzImage::constant('NVM_LOG_SECTOR');
my $first = NvmFuzzImage::constant('NVM_LOG_FIRST');
my ($COMMIT, $ASK, $OUTCOME) = map { NvmFuzzImage::constant("NVM_LOG_$_") } qw(COMMIT ASK OUTCOME);
my ($SIDE, $COMMITTED, $CALLS, $ALONE) = map { NvmFuzzImage::constant("NVM_LOG_$_") } qw(SIDE COMMITTED CALLS ALONE);

sub padded { my ($bytes, $to) = @_; return $bytes . "\0" x (-length($bytes) % $to); }

## rows, storages, records

# without a tuple: the row is gone
sub row
{
	my ($block, $offset, $xmin, $tuple) = @_;
	$tuple //= '';
	return padded(pack('L<S<S<L<', $block, $offset, length($tuple), $xmin) . $tuple, 4);
}

# a tuple of `length` bytes, packed
sub packed_row
{
	my ($block, $offset, $xmin, $length, $packed) = @_;
	my $bytes = pack('S<', $length) . $packed;
	return padded(pack('L<S<S<L<', $block, $offset, length($bytes) | NvmFuzzImage::constant('NVM_LOG_PACKED'), $xmin) . $bytes, 4);
}

# a piece of a large value of that row
sub piece
{
	my ($block, $offset, $attribute, $number, $bytes) = @_;
	return row($block, $offset | NvmFuzzImage::constant('NVM_LOG_PIECE'), $attribute << 20 | $number, $bytes);
}

# what that row was before: a checksum, and a tuple, if any
sub old_row
{
	my ($block, $offset, $xmin, $checksum, $tuple) = @_;
	return row($block, $offset | NvmFuzzImage::constant('NVM_LOG_OLD'), $xmin, pack('Q<', $checksum) . ($tuple // ''));
}

sub storage
{
	my ($dir, $creation, @rows) = @_;
	my $rows = join('', @rows);
	return padded(pack('L<L<Q<', $dir, length($rows), $creation) . $rows, 8);
}

# the same with the brief header
sub brief_storage
{
	my ($dir, $creation, @rows) = @_;
	my $rows = join('', @rows);
	return padded(pack('L<L<', 0x80000000 | length($rows) / 4 << 18 | $dir, $creation) . $rows, 8);
}

sub record
{
	my ($kind, $flags, $number, $xid, $body) = @_;
	return pack('L<S<S<Q<Q<', 24 + length($body), $kind, $flags, $number, $xid) . $body;
}

sub commit { my ($number, $xid, @storages) = @_; return record($COMMIT, 0, $number, $xid, join('', @storages)); }
# without xid
sub brief_commit
{
	my ($number, @storages) = @_;
	my $body = join('', @storages);
	return pack('L<S<S<Q<', 16 + length($body), $COMMIT, NvmFuzzImage::constant('NVM_LOG_BRIEF'), $number) . $body;
}
sub ask { my ($number, $xid, @storages) = @_; return record($ASK, 0, $number, $xid, join('', @storages)); }
sub outcome { my ($number, $xid, $committed) = @_; return record($OUTCOME, $committed ? $COMMITTED : 0, $number, $xid, ''); }

# a COMMIT record (or ASK) whose side file has the bytes
sub in_side
{
	my ($uuid, $number, $xid, $bytes, $ask) = @_;
	return record($ask ? $ASK : $COMMIT, $SIDE, $number, $xid, pack('Q<L<L<', length($bytes), NvmFuzzImage::crc32c("$uuid$bytes"), 0));
}

## calls

# a number; negative ones are signed, as positive ones are with a true second argument
sub number
{
	my ($n, $signed) = @_;
	my $out = '';

	$n = $n < 0 ? -2 * $n - 1 : 2 * $n if $signed || $n < 0;
	for (; $n > 127; $n >>= 7) { $out .= chr($n & 127 | 128); }
	return $out . chr($n);
}

# undef: NULL
sub value { my ($type, $bytes) = @_; return number($type) . (defined $bytes ? number(length($bytes) + 1) . $bytes : number(0)); }

# the section; parts are those of media_log.h.  Fields: database, checksum, timestamp, rows, length
sub calls
{
	my ($field, @parts) = @_;
	my $parts = join('', @parts);
	my $bytes = padded(pack('Q<q<L<L<', $field->{checksum} // 0, $field->{timestamp} // 0, $field->{rows} // 1, $field->{length} // length($parts)) . $parts, 4);

	return storage(0, $field->{database} // 5, $bytes);
}

# a COMMIT record with that section behind its storages
sub with_calls { my ($number, $xid, @sections) = @_; return record($COMMIT, $CALLS, $number, $xid, join('', @sections)); }

# the same, of calls alone
sub with_calls_alone { my ($number, $xid, @sections) = @_; return record($COMMIT, $CALLS | $ALONE, $number, $xid, join('', @sections)); }

# What nvm_logdump says of a file in a new directory that has one block with the record: status,
# output, errors.  change: is called with the file and the block's offset, which is sealed then.
sub dump_made
{
	my ($dir, $uuid, $record, $change, @options) = @_;
	my $log = NvmLog->new(uuid => $uuid);
	my $at  = $log->block([$record]);
	my ($out, $err) = ('', '');

	mkdir($dir) or die "$dir: $!";
	if ($change) { $change->($log, $at); $log->seal($at); }
	$log->write($dir);
	IPC::Run::run([ 'timeout', '-k', '5', '60', 'nvm_logdump', @options, $dir ], '>', \$out, '2>', \$err);
	return ($?, $out, $err);
}

# The record is dumped 300 times, each time with one to three bytes behind the first $skip ones
# changed by chance.  How often there was which status.
sub change_by_chance
{
	my ($dump, $record, $skip) = @_;
	my %said;

	foreach (1 .. 300)
	{
		my ($status) = $dump->($record, sub {
			my ($log, $at) = @_;
			$log->put($at + 40 + $skip + int(rand(length($record) - $skip)), chr(int(rand(256)))) for 1 .. 1 + int(rand(3));
		});
		$said{$status}++;
	}
	return %said;
}

## files

sub new
{
	my ($class, %field) = @_;
	my $self = bless {
		generation => 1, number => 1, start => $first, chain => 0, reserved => 0, size => 16 * $page,
		magic => NvmFuzzImage::constant('NVM_LOG_MAGIC'), version => NvmFuzzImage::constant('NVM_LOG_VERSION'),
		%field }, $class;

	$self->{first}    //= $self->{start};
	$self->{position} //= $self->{first};
	$self->{bytes} = padded($self->header, $page);
	return $self;
}

sub header
{
	my ($self) = @_;
	my $head = pack('Q<L<L<a16Q<Q<L<L<L<', @{$self}{qw(magic version generation uuid start first reserved number size)});
	return $head . pack('L<', NvmFuzzImage::crc32c($head . "\0" x 4));
}

# the next block; returns its offset
sub block
{
	my ($self, $records, %field) = @_;
	my $body = join('', @$records);
	my $at   = length($self->{bytes});
	my %b    = (
		magic => NvmFuzzImage::constant('NVM_LOG_BLOCK_MAGIC'),
		length => length($body), synced => $self->{position}, reserved => 0, uuid => $self->{uuid},
		map({ $_ => $self->{$_} } qw(generation position chain)), %field);
	my $head = pack('L<L<Q<Q<L<L<L<', @b{qw(magic generation position synced length chain reserved)});

	$self->{chain} = NvmFuzzImage::crc32c($b{uuid} . $head . "\0" x 4 . $body);
	$self->{position} += length($body);
	$self->{bytes} .= padded($head . pack('L<', $self->{chain}) . $body, $sector);
	return $at;
}

# one more, from here on not to be seen by the chain
sub stray_block
{
	my ($self, @args) = @_;
	my @kept = @{$self}{qw(chain position)};
	my $at   = $self->block(@args);
	@{$self}{qw(chain position)} = @kept;
	return $at;
}

sub flip
{
	my ($self, $at, $bit) = @_;
	substr($self->{bytes}, $at, 1) ^= chr(1 << ($bit // 0));
	return;
}

sub put { my ($self, $at, $bytes) = @_; substr($self->{bytes}, $at, length($bytes)) = $bytes; return; }

sub seal
{
	my ($self, $at) = @_;
	my $length = unpack('L<', substr($self->{bytes}, $at + 24, 4));

	$self->put($at + 36, "\0" x 4);
	$self->put($at + 36, pack('L<', NvmFuzzImage::crc32c($self->{uuid} . substr($self->{bytes}, $at, 40 + $length))));
	return;
}

sub name
{
	my ($self) = @_;
	my $pool = unpack('H8', $self->{uuid});
	return sprintf("%s-%08x-%08x.log", $pool, $self->{generation}, $self->{number}) if $self->{number};
	return sprintf("%s-%08x-%016x.side", $pool, $self->{generation}, $self->{transaction});
}

sub write
{
	my ($self, $dir, $name) = @_;
	my $path  = "$dir/" . ($name // $self->name);
	my $bytes = $self->{bytes};

	$bytes .= "\0" x ($self->{size} - length($bytes)) if $self->{number} && length($bytes) < $self->{size};
	open(my $fh, '>:raw', $path) or die "$path: $!";
	print $fh $bytes or die "$path: $!";
	close($fh) or die "$path: $!";
	return $path;
}

## what a server has written

# What nvm_logdump says of a directory, or a file in it: {records}, in their order, {problem} ('' if
# there is none), {end}, the last position, and {blocks}, their number.  A record has kind ('COMMIT',
# 'ASK', 'OUTCOME committed', 'OUTCOME aborted'), generation, number, xid, place, block (from 1 on),
# side, if it has a side file, and rows: { dir, creation, tid, data }, data as in row(), empty if the
# row is gone.  The data is read from the files, and held against what nvm_logdump says of it.  A row
# that has an old one has {old}: { checksum, data }.  With
# calls it has {calls}: { alone, database, timestamp, bytes, checksum, rows, parts }, parts as printed; with
# the lanes of values {values}: { database, timestamp, bytes, lanes }, as printed.
# from => P: only what has a place behind P.
sub dump_of
{
	my ($path, %params) = @_;
	my ($out, $err) = ('', '');
	my %dump = (records => [], blocks => 0, end => 0, problem => '');
	my ($dir, $file, $generation, $at, $kept, $old, @rows);

	IPC::Run::run([ 'nvm_logdump', '--rows', map({ "--from=$_" } grep { defined } $params{from}), $path ],
		'>', \$out, '2>', \$err);
	$dump{problem} = "status $?: $err" if $? != 0 || $err ne '';
	foreach my $line (split /\n/, $out)
	{
		my $record = $dump{records}[-1];

		# a checkpoint, and what a stop has kept of UNLOGGED tables, is no part of the stream
		$kept = $line =~ /^(?:UNLOGGED tables|checkpoint) / if $line =~ /^\S/;
		next if $kept;
		if ($line =~ m,^file ((.*/)[^/]+): generation (\d+)\, number,) { ($file, $dir, $generation) = (slurp_file($1), $2, $3); }
		elsif ($line =~ /^file .*: side file/) { last; }
		elsif ($line =~ /^block at (\d+): position (\d+),/)
		{
			# what is not printed of its beginning has been skipped by its places
			$dump{blocks}++;
			$at = $1 + NvmFuzzImage::constant('NVM_LOG_BLOCK_HEADER') - $2;
		}
		elsif ($line =~ /^end at \d+: position (\d+)/) { $dump{end} = $1; }
		elsif ($line =~ /^  (COMMIT|ASK|OUTCOME \w+) (\d+)(?:, xid (\d+))?, (\d+) bytes, place (\d+)$/)
		{
			push @{ $dump{records} }, { kind => $1, number => $2, xid => $3, place => $5,
				generation => $generation, block => $dump{blocks}, rows => [] };
			my $header = defined $3 ? 24 : 16;
			@rows = rows_of(substr($file, $at + $5 - $4 + $header, $4 - $header)) unless $1 =~ /OUTCOME/ || unpack('S<', substr($file, $at + $5 - $4 + 6, 2)) & $SIDE;
		}
		elsif ($line =~ /^    storage \d+, creation \d+: /) { next; }
		elsif ($line =~ /^    calls( alone)? of database (\S+), (\S+ \S+), (\d+) bytes, checksum (\w{16}) of (\d+) rows$/)
		{
			$record->{calls} = { alone => defined $1 ? 1 : 0, database => $2, timestamp => $3, bytes => $4, checksum => $5, rows => $6, parts => [] };
		}
		elsif ($line =~ /^    values of database (\S+), (\S+ \S+), (\d+) bytes$/)
		{
			$record->{values} = { database => $1, timestamp => $2, bytes => $3, lanes => [] };
		}
		elsif ($line =~ /^      values, (.*)$/) { $record->{values}{lanes} = $1; }
		elsif ($line =~ /^      (\(\d+,\d+\)) old row, xmin \d+, checksum (\w{16})(?:, (\d+) bytes)?$/) { $old = "$1 $2 " . ($3 // 0); }
		elsif ($line =~ /^      ((?:lanes|all lanes|role|call|  tape)\b.*)$/) { push @{ $record->{calls}{parts} }, $1; }
		elsif ($line =~ /^    side file (\S+), (\d+) bytes/)
		{
			$record->{side} = $1;
			@rows = rows_of(substr(slurp_file("$dir$1"), $page, $2)) if -e "$dir$1";
		}
		elsif ($line =~ /^      is missing, as after an abort$/) { next; }
		elsif ($line =~ /^      \(\d+,\d+\) attribute \d+, piece \d+: \d+ bytes$/) { next; }
		elsif ($line =~ /^      (\(\d+,\d+\)) xmin \d+ (?:gone|(\d+) bytes(?:, packed)?)$/)
		{
			my $row = shift @rows // { tid => 'none', data => '' };
			$dump{problem} .= "$line, but the file has $row->{tid}" if $row->{tid} ne $1 || length($row->{data}) != ($2 // 0);
			my $in_file = $row->{old} && sprintf('%s %016x %d', $row->{tid}, $row->{old}{checksum}, length($row->{old}{data}));
			$dump{problem} .= "$line with the old row " . ($old // 'none') . ', but the file has ' . ($in_file // 'none') if ($old // '') ne ($in_file // '');
			$old = undef;
			push @{ $record->{rows} }, $row;
		}
		else { $dump{problem} .= "nvm_logdump says: $line\n"; }
	}
	return \%dump;
}

# the header of a storage's rows, in either form, and how many bytes it has itself
sub section_at
{
	my ($bytes, $at) = @_;
	my ($dir, $length, $creation) = unpack('L<L<Q<', substr($bytes, $at, 16) . "\0" x 8);

	return ($dir, $length, $creation, 16) unless $dir & 0x80000000;
	return ($dir & 0x3ffff, ($dir & 0x7fffffff) >> 18 << 2, $length, 8);
}

# The tuple of a row that is packed: its length, then what pglz has made of it
sub unpacked
{
	my ($bytes) = @_;
	my ($length) = unpack('S<', $bytes);
	my $out = '';

	for (my $at = 2; $at < length($bytes);)
	{
		my $control = unpack('C', substr($bytes, $at++, 1));
		foreach my $bit (0 .. 7)
		{
			last if $at >= length($bytes) || length($out) >= $length;
			if (!($control >> $bit & 1)) { $out .= substr($bytes, $at++, 1); next; }
			my ($high, $low) = unpack('CC', substr($bytes, $at, 2));
			my ($n, $back) = (($high & 0x0f) + 3, ($high & 0xf0) << 4 | $low);
			$at += 2;
			$n += unpack('C', substr($bytes, $at++, 1)) if $n == 18;
			$out .= substr($out, -$back, 1) foreach 1 .. $n;
		}
	}
	die "a packed row has " . length($out) . " bytes instead of $length\n" if length($out) != $length;
	return $out;
}

# the rows of storages, one behind another
sub rows_of
{
	my ($bytes) = @_;
	my ($at, $old, @rows) = (0);

	while ($at < length($bytes))
	{
		my ($dir, $length, $creation, $header) = section_at($bytes, $at);
		my $end = ($at += $header) + $length;
		$at = $end if $dir == 0;    # calls
		while ($at < $end)
		{
			my ($block, $offset, $size) = unpack('L<S<S<', substr($bytes, $at, 12));
			my $packed = $size & NvmFuzzImage::constant('NVM_LOG_PACKED');
			$size ^= $packed;
			my $data = substr($bytes, $at + 12, $size);
			if ($offset & NvmFuzzImage::constant('NVM_LOG_OLD')) { $old = { checksum => unpack('Q<', $data), data => substr($data, 8) }; }
			# what is large of a row is not looked at
			elsif (!($offset & NvmFuzzImage::constant('NVM_LOG_PIECE')))
			{
				push @rows, { dir => $dir, creation => $creation, tid => "($block,$offset)", data => $packed ? unpacked($data) : $data };
				$rows[-1]{old} = $old if $old;
				$old = undef;
			}
			$at += 12 + $size + (-$size % 4);
		}
		$at = $end + (-$end % 8);
	}
	return @rows;
}

# the first N columns of a row, which are of type int and not null
sub ints_of
{
	my ($data, $n) = @_;
	my $data_at = unpack('C', substr($data, 4, 1)) - NvmFuzzImage::constant('NVM_LOG_TUPLE_SKIPS');
	return join('|', unpack("l<$n", substr($data, $data_at)));
}

# The rows that records bring back: storage "dir/creation" => { tid => data }.  Of the images of a row
# the one with the highest (generation, number) counts.  An ASK without outcome did not commit.
sub live_rows
{
	my ($dump) = @_;
	my (%committed, %newest, %live);

	foreach my $record (@{ $dump->{records} })
	{
		$committed{ $record->{xid} } = $1 eq 'committed' if $record->{kind} =~ /^OUTCOME (\w+)/;
	}
	foreach my $record (@{ $dump->{records} })
	{
		next if $record->{kind} =~ /^OUTCOME/ || $record->{kind} eq 'ASK' && !$committed{ $record->{xid} };
		my @age = @{$record}{qw(generation number)};
		foreach my $row (@{ $record->{rows} })
		{
			my $key  = "$row->{dir}/$row->{creation}";
			my $seen = $newest{$key}{ $row->{tid} };
			next if $seen && ($seen->[0] <=> $age[0] || $seen->[1] <=> $age[1]) > 0;
			$newest{$key}{ $row->{tid} } = [ @age, $row->{data} ];
		}
	}
	foreach my $key (keys %newest)
	{
		foreach my $tid (keys %{ $newest{$key} })
		{
			$live{$key}{$tid} = $newest{$key}{$tid}[2] if $newest{$key}{$tid}[2] ne '';
		}
	}
	return \%live;
}

1;

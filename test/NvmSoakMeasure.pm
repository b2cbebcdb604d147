# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmSoakMeasure - what a soak's cluster takes of space, memory and files, and whether
that levels off

=head1 DESCRIPTION

While clients work, a sample every few seconds goes to samples.csv.  When they are at
rest and all that can be given back is, one goes to settled.csv, and what each storage takes
to relations.csv.  The verdict is on the last third of each against the middle third.

VACUUM makes room for rows of the same table and gives no block back.  So what relations take
at a rest says how many versions there were while somebody had a snapshot, since the server
started: it rises and falls with the speed of the machine, and in memory goes at a stop.  What
is left for good is what they take when the server has been stopped and started behind the rest:
blocks up to the last row, in memory.  That has to level off from rest to rest; what was taken
before is in settled.csv as well.  Within one life of the server memory has to level off, too, in
the last calm.

=cut

package NvmSoakMeasure;

use strict;
use warnings;

use File::Find ();
use Time::HiRes qw(time);

use NvmTest;

our $interval = 5;

# of a sample; kb of memory that is the process's own.  The memory of tables in memory
# (memory_kb) has a limit, and keeps what it once had as long as the server runs: what is
# used of it is to level off, and shared_kb is the rest.
my @columns = qw(seconds mode phase age pool_size pool_used relations ended slots gaps prepared pool_kb
  shared_kb postmaster_kb keeper_kb collector_kb checkpointer_kb backends backend_kb backend_max_kb
  postmaster_fds keeper_fds collector_fds backend_max_fds base_files wal_files pool_files shm_files
  log_recovery_kb log_checkpointer_kb log_files log_kb memory_kb memory_used_kb);
my @settled_columns = qw(seconds cycle pool_used relations live dead_rows storages slots pool_kb shared_kb
  base_files relation_files unowned_files unowned_kb wal_files pool_files other_files log_files log_kb
  memory_kb memory_used_kb rest_relations rest_memory_used_kb);
# of each storage, at rest, and behind the start that follows
my @relation_columns = qw(seconds cycle at relation method kind blocks bytes live_rows dead_versions live_bytes);

sub new
{
	my ($class, $soak) = @_;
	return bless { soak => $soak, samples => [], settled => [], episode => 0, last => 0, phase => 'crashes' }, $class;
}

sub begin
{
	my ($self) = @_;
	my $out = $self->{soak}{out};

	$self->{began} = time();
	foreach my $file ([ samples => \@columns ], [ settled => \@settled_columns ], [ relations => \@relation_columns ])
	{
		open(my $fh, '>', "$out/$file->[0].csv") or die "$out/$file->[0].csv: $!";
		$fh->autoflush(1);
		print $fh join(',', @{ $file->[1] }), "\n";
		$self->{"$file->[0]_file"} = $fh;
	}
	return;
}

sub due { return time() - $_[0]->{last} >= $interval; }

sub write_row
{
	my ($self, $name, $columns, %row) = @_;
	push @{ $self->{$name} }, \%row;
	print { $self->{"${name}_file"} } join(',', map { $row{$_} // '' } @$columns), "\n";
	return;
}

# Numbers of files of the data directory and the pool's.
sub files
{
	my ($self) = @_;
	my $node = $self->{soak}->node;
	my $data = $node->data_dir;
	my %n = (base_files => 0, wal_files => 0, pool_files => 0, shm_files => 0, other_files => 0);

	File::Find::find({ no_chdir => 1, wanted => sub {
			return if -d $_;
			my $name = substr($_, length($data) + 1);
			if    ($name =~ m,^(?:base|global|pg_tblspc)/,) { $n{base_files}++; }
			elsif ($name =~ m,^pg_wal/,)     { $n{wal_files}++; }
			elsif ($name =~ m,^pg_dynshmem/,) { $n{shm_files}++; }
			elsif ($name =~ m,^pg_nvm_log/,) { return; }
			# segments of transaction logs come and go with the ids
			elsif ($name !~ m,^pg_(?:xact|subtrans|multixact|serial|stat|stat_tmp|twophase|commit_ts|logical)/,) { $n{other_files}++; }
		} }, $data);
	$n{pool_files} = () = glob($node->pool_dir . '/*');
	%n = (%n, $self->{soak}{log}->files) if $self->{soak}{log};
	$n{pool_kb} = (stat $node->pool_file)[12] / 2;
	return %n;
}

sub sample
{
	my ($self) = @_;
	my $soak = $self->{soak};
	my $node = $soak->node;
	my %row = (seconds => sprintf('%.1f', time() - $self->{began}), mode => $soak->{mode},
		phase => $self->{episode} ? 'no room' : $self->{phase}, age => sprintf('%.1f', time() - $soak->{up_since}));

	$self->{last} = time();
	my $said = $soak->ask(<<'SQL') // return;
SELECT p.size, p.used, r.relations, r.ended, a.slots_used, a.gaps, (SELECT count(*) FROM pg_prepared_xacts),
	(SELECT coalesce(max(size), 0) / 1024 FROM nvm.memory), (SELECT coalesce(max(used), 0) / 1024 FROM nvm.memory)
FROM nvm.pool p, nvm.activity a,
	(SELECT coalesce(sum(bytes) FILTER (WHERE NOT ended), 0) AS relations, coalesce(sum(bytes) FILTER (WHERE ended), 0) AS ended FROM nvm.relations) r;
SELECT pid, backend_type FROM pg_stat_activity WHERE backend_type IN ('nvm keeper', 'nvm gap collector', 'checkpointer', 'nvm log recovery', 'nvm checkpointer')
	OR backend_type = 'client backend' AND application_name LIKE 'soak%';
SQL
	my ($numbers, @pids) = split /\n/, $said;
	@row{qw(pool_size pool_used relations ended slots gaps prepared memory_kb memory_used_kb)} = split /\|/, $numbers;
	# processes come and go
	eval {
		my %name = ('nvm keeper' => 'keeper', 'nvm gap collector' => 'collector', 'checkpointer' => 'checkpointer',
			'nvm log recovery' => 'log_recovery', 'nvm checkpointer' => 'log_checkpointer');
		@row{qw(backends backend_kb backend_max_kb backend_max_fds)} = (0, 0, 0, 0);
		$row{postmaster_kb} = NvmTest::private_kb($node->{_pid});
		$row{postmaster_fds} = NvmTest::open_files($node->{_pid});
		foreach (@pids)
		{
			my ($pid, $type) = split /\|/;
			my $kb = eval { NvmTest::private_kb($pid) } // next;
			my $fds = eval { NvmTest::open_files($pid) } // next;
			if (my $n = $name{$type})
			{
				@row{"${n}_kb", "${n}_fds"} = ($kb, $fds);
				next;
			}
			$row{backends}++;
			$row{backend_kb} += $kb;
			$row{backend_max_kb} = $kb if $kb > $row{backend_max_kb};
			$row{backend_max_fds} = $fds if $fds > $row{backend_max_fds};
		}
		$row{backend_kb} = int($row{backend_kb} / ($row{backends} || 1));
		$row{shared_kb} = $node->shared_kb - $row{memory_kb};
		%row = (%row, $self->files);
		$self->write_row('samples', \@columns, %row);
	};
	return;
}

# Everybody is at rest.  started_over adds what there is of tables then.
sub settled
{
	my ($self) = @_;
	my $soak = $self->{soak};
	my $node = $soak->node;
	my %row = (seconds => sprintf('%.1f', time() - $self->{began}), cycle => scalar @{ $self->{settled} }, $self->files);

	@row{qw(pool_used rest_relations dead_rows storages slots live memory_kb rest_memory_used_kb)} = split /\|/, $node->safe_psql('postgres', <<'SQL');
SELECT p.used, r.relations, r.dead, r.n, a.slots_used, live_bytes(),
	(SELECT coalesce(max(size), 0) / 1024 FROM nvm.memory), (SELECT coalesce(max(used), 0) / 1024 FROM nvm.memory)
FROM nvm.pool p, nvm.activity a, (SELECT sum(bytes) AS relations, sum(dead_versions) AS dead, count(*) AS n FROM nvm.relations) r
SQL
	$row{shared_kb} = $node->shared_kb - $row{memory_kb};
	$self->count_unowned(\%row);
	$self->list_relations(at => 'rest', %row);
	$self->{rest} = \%row;
	return;
}

# And the server was stopped and started.
sub started_over
{
	my ($self) = @_;
	my %row = %{ delete $self->{rest} };

	@row{qw(relations memory_used_kb)} = split /\|/, $self->{soak}->node->safe_psql('postgres',
		'SELECT (SELECT sum(bytes) FROM nvm.relations), (SELECT coalesce(max(used), 0) / 1024 FROM nvm.memory)');
	$self->write_row('settled', \@settled_columns, %row);
	$self->list_relations(at => 'start', %row);
	return;
}

# What each of them takes, for who has to find out why the sum grows.
sub list_relations
{
	my ($self, %row) = @_;

	foreach (split /\n/, $self->{soak}->node->safe_psql('postgres', <<'SQL'))
SELECT coalesce(r.relation::text, r.database || '.' || r.relfilenode), coalesce(a.amname, ''), r.kind, r.blocks, r.bytes, r.live_rows, r.dead_versions,
	CASE WHEN r.kind = 'r' AND c.relpersistence <> 't' THEN live_bytes_of(c.oid) END
FROM nvm.relations r LEFT JOIN pg_class c ON c.oid = r.relation LEFT JOIN pg_am a ON a.oid = c.relam
ORDER BY r.bytes DESC
SQL
	{
		my %of = map { $_ => $row{$_} } qw(seconds cycle at);
		@of{ @relation_columns[ 3 .. $#relation_columns ] } = split /\|/;
		$self->write_row('relations', \@relation_columns, %of);
	}
	return;
}

# Files of relations that no relation has: PostgreSQL leaves those of a table behind whose
# CREATE or rewrite a crash has ended.
sub count_unowned
{
	my ($self, $row) = @_;
	my $node = $self->{soak}->node;
	my $oid = $node->safe_psql('postgres', q{SELECT oid FROM pg_database WHERE datname = 'postgres'});
	my $space = $node->safe_psql('postgres', q{SELECT oid FROM pg_tablespace WHERE spcname = 'soak_space'});
	my %kb;

	@{$row}{qw(relation_files unowned_files unowned_kb)} = (0, 0, 0);
	foreach my $dir ([ 0, "base/$oid" ], [ $space, "pg_tblspc/$space/*/$oid" ])
	{
		foreach my $file (glob $node->data_dir . "/$dir->[1]/*")
		{
			next unless $file =~ m,/(\d+)(?:_init|_fsm|_vm)?(?:\.\d+)?$,;
			$kb{"$dir->[0], $1"} += (-s $file // 0) / 1024;
			$row->{relation_files}++;
		}
	}
	my $list = join ', ', map { "($_)" } sort keys %kb;
	foreach (split /\n/, $node->safe_psql('postgres',
			"SELECT s || ', ' || f FROM (VALUES $list) v(s, f) WHERE pg_filenode_relation(s, f) IS NULL"))
	{
		$row->{unowned_files}++;
		$row->{unowned_kb} += $kb{$_};
	}
	$row->{unowned_kb} = int($row->{unowned_kb});
	return;
}

# ------------------------------------------------------------------ the verdict

sub _max
{
	my ($max) = @_;
	foreach (@_) { $max = $_ if $_ > $max; }
	return $max;
}

# Highest values of the middle and of the last third, or nothing if there are too few.
sub thirds
{
	my ($column, @rows) = @_;
	my @values = map { $_->{$column} } grep { defined $_->{$column} } @rows;
	my $third = int(@values / 3);

	return if $third < 2;
	return (_max(@values[ $third .. 2 * $third - 1 ]), _max(@values[ 2 * $third .. $#values ]));
}

# what, of which rows, by how much the last third may be higher: a share, and so much
my @limits = (
	[ 'pool_used',       'settled', 0.10, 4 << 20 ],
	[ 'relations',       'settled', 0.10, 4 << 20 ],
	[ 'storages',        'settled', 0.10, 10 ],
	[ 'slots',           'settled', 0.10, 10 ],
	[ 'shared_kb',       'settled', 0.10, 1024 ],
	[ 'memory_used_kb',  'settled', 0.10, 8192 ],
	[ 'pool_files',      'settled', 0,    0 ],
	[ 'other_files',     'settled', 0.10, 5 ],
	[ 'wal_files',       'settled', 0.20, 5 ],
	[ 'shared_kb',       'samples', 0.10, 1024 ],
	[ 'ended',           'samples', 0.25, 16 << 20 ],
	[ 'shm_files',       'samples', 0,    5 ],
	[ 'postmaster_kb',   'samples', 0.10, 512 ],
	[ 'keeper_kb',       'samples', 0.10, 512 ],
	[ 'collector_kb',    'samples', 0.10, 512 ],
	[ 'log_recovery_kb', 'samples', 0.10, 4096 ],
	[ 'log_checkpointer_kb', 'samples', 0.10, 2048 ],
	[ 'log_kb',          'settled', 0.10, 64 << 10 ],
	[ 'log_files',       'settled', 0.20, 10 ],
	[ 'postmaster_fds',  'samples', 0,    5 ],
	[ 'keeper_fds',      'samples', 0,    5 ],
	[ 'collector_fds',   'samples', 0,    5 ],
	[ 'memory_used_kb',  'last calm', 0.10, 8192 ],
	[ 'backend_kb',      'calm',    0.15, 1024 ],
	[ 'backend_max_fds', 'calm',    0.15, 10 ]);

# Problems, and lines that say what was measured.
sub verdict
{
	my ($self) = @_;
	my (@problems, @lines);
	my %rows = (
		settled => $self->{settled},
		samples => [ grep { $_->{phase} ne 'no room' } @{ $self->{samples} } ],
		# by then caches are full
		calm => [ grep { $_->{phase} =~ /^calm/ && $_->{age} > 10 } @{ $self->{samples} } ],
		# by then there were many long snapshots
		'last calm' => [ grep { $_->{phase} =~ /^calm at the end/ && $_->{age} > 60 } @{ $self->{samples} } ]);

	foreach my $limit (@limits)
	{
		my ($column, $of, $share, $more) = @$limit;
		my @max = thirds($column, @{ $rows{$of} });
		my $name = "$column ($of)";
		if (!@max)
		{
			push @lines, "$name: too few to tell";
			next;
		}
		my $allowed = $max[0] * (1 + $share) + $more;
		push @lines, "$name: at most $max[0] in the middle third, $max[1] in the last";
		push @problems, "$name does not level off: at most $max[0] in the middle third, $max[1] in the last"
		  if $max[1] > $allowed;
	}
	# of what is alive
	my @last = @{ $self->{settled} } ? $self->{settled}[-1] : ();
	push @lines, map {
		sprintf('in the end %.1f MB used of the pool for %.1f MB of live rows', $_->{pool_used} / 1048576, $_->{live} / 1048576),
		  "$_->{unowned_files} of $_->{relation_files} relation files, $_->{unowned_kb} kB, were left behind by PostgreSQL"
	} @last;
	return (\@problems, \@lines);
}

1;

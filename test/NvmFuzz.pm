# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmFuzz - servers that meet damaged pools

=head1 SYNOPSIS

  my $fuzz = NvmFuzz->new;                  # makes the bases
  my $found = $fuzz->image($seed);          # one image, looked at from all sides
  print "$_\n" foreach @{ $found->{faults} };

=head1 DESCRIPTION

Two bases: one of a server that was stopped cleanly, one of a server that crashed with
transactions open, prepared and half undone. An image is a copy of one of them with
damage by the seed (NvmFuzzDamage). nvm_poolcheck looks at it, a server is started, and
the statements of one of three orders are run: queries first, checks first, or changes first.
What they answer is held against what they answer where nothing is damaged.

A fault is

=over

=item *	a process that dies, an assertion, a PANIC, a report of a sanitizer, a server that
does not stop, a nvm_poolcheck that is ended by a signal;

=item *	a statement, a start or a nvm_poolcheck that does not end by itself;

=item *	an error that is not one of damage, or does not say where;

=item *	an answer other than the right one, if nothing was said of damage before it, by a
statement of the same image, by the log, or by an error of its own. Excused is what nobody
can know, where contents were given a right checksum (C<forged> in NvmFuzzDamage), or a row may
never have been written, or not been decided, by a run that crashed (C<unwritten>), and of
index entries, which have none (C<loose>), what nvm.check() then finds.

=back

=cut

package NvmFuzz;

use strict;
use warnings;

use File::Path qw(rmtree);
use IPC::Run ();
use Time::HiRes qw(time usleep);

use NvmCrash;
use NvmFuzzDamage;
use NvmFuzzImage;
use NvmTest;
use PostgreSQL::Test::Utils;

our $statement_seconds = NvmTest::is_instrumented() ? 150 : 60;

my $schema = <<'SQL';
CREATE EXTENSION pg_nvm;
-- chains of versions, stubs, dead roots, rows under another root; keys that are many times there
CREATE TABLE t (id int PRIMARY KEY, k int, body text) USING nvm;
INSERT INTO t SELECT i, i % 40, md5(i::text) || repeat('x', i % 90) FROM generate_series(1, 1500) i;
CREATE INDEX t_k ON t (k);
CREATE INDEX t_body ON t (body, id);
-- values outside, of several lengths, and compressed ones
CREATE TABLE l (id int PRIMARY KEY, body text, other text) USING nvm;
ALTER TABLE l ALTER body SET STORAGE EXTERNAL;
INSERT INTO l SELECT i, repeat(md5(i::text), 200 + 130 * i), repeat('compressed' || i, 20) FROM generate_series(1, 10) i;
-- a tree of three levels; keys with several columns
CREATE TABLE x (id int PRIMARY KEY, b text) USING nvm;
INSERT INTO x SELECT i, repeat(md5(i::text), 6) FROM generate_series(1, 1600) i;
CREATE INDEX x_b ON x (b DESC, id) WITH (fillfactor = 50);
-- the other two kinds of persistence, a built-in index, nulls, a column that came later
CREATE TABLE p (id int, k int, n numeric, b text) USING nvm;
INSERT INTO p SELECT i, i % 7, CASE WHEN i % 3 = 0 THEN NULL ELSE i / 7.0 END, CASE WHEN i % 5 = 0 THEN NULL ELSE 'b' || i END FROM generate_series(1, 900) i;
CREATE UNIQUE INDEX p_leaves ON p (id) WITH (persistence = leaves);
CREATE INDEX p_none ON p (k, id) WITH (persistence = none);
SET nvm.default_index_method = btree;
CREATE INDEX p_btree ON p USING btree (n, id);
RESET nvm.default_index_method;
ALTER TABLE p ADD COLUMN later int DEFAULT 5;
INSERT INTO p SELECT i, i % 7, i, 'late', 6 FROM generate_series(901, 1000) i;
CREATE TABLE h (id int PRIMARY KEY) USING heap;
INSERT INTO h SELECT generate_series(1, 500);
UPDATE t SET body = body || '!' WHERE id % 3 = 0;
UPDATE t SET k = k + 100 WHERE id % 7 = 0;
DELETE FROM t WHERE id % 10 = 0;
SQL

# each statement a transaction, and VACUUM between
my $age = <<'SQL';
VACUUM t;
UPDATE t SET body = body || '?' WHERE id % 5 = 1;
UPDATE t SET body = body || '?' WHERE id % 25 = 1;
UPDATE t SET body = body || '.' WHERE id % 25 = 1;
DELETE FROM t WHERE id % 11 = 0;
INSERT INTO t SELECT i, i % 40, 'new' || i FROM generate_series(2001, 2100) i;
UPDATE l SET other = 'short' WHERE id = 3;
UPDATE l SET body = repeat('new', 9000) WHERE id = 4;
DELETE FROM l WHERE id = 5;
DELETE FROM x WHERE id BETWEEN 700 AND 800;
VACUUM x;
UPDATE p SET b = 'upd' WHERE id % 9 = 0;
SQL

my $plain = 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SET enable_seqscan = on';
my $index = 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexscan = on; SET enable_indexonlyscan = off';
my $only  = 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexscan = on; SET enable_indexonlyscan = on';
my $bits  = 'SET enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = on';

my @reads = (
	$plain,
	(map { "SELECT count(*) FROM $_" } qw(t l x p)),
	'SELECT count(*), md5(string_agg(t::text, \',\' ORDER BY id)) FROM t',
	'SELECT id, md5(body), md5(other) FROM l ORDER BY id',
	'SELECT count(*), md5(string_agg(x::text, \',\' ORDER BY id)) FROM x',
	'SELECT count(*), md5(string_agg(p::text, \',\' ORDER BY id)) FROM p',
	$index,
	'SELECT count(*), sum(length(body)) FROM t WHERE id > 0',
	'SELECT count(*), sum(length(body)) FROM t WHERE k >= 0',
	'SELECT md5(string_agg(id::text, \',\')) FROM (SELECT id, body FROM t ORDER BY body DESC, id DESC OFFSET 0) s',
	'SELECT count(*), sum(length(body)) FROM l WHERE id > 0',
	'SELECT count(*), sum(length(b)) FROM x WHERE id > 0',
	'SELECT md5(string_agg(id::text, \',\')) FROM (SELECT id, b FROM x ORDER BY b, id DESC OFFSET 0) s',
	'SELECT count(*), sum(length(b)) FROM p WHERE id > 0',
	'SELECT count(*), sum(length(b)) FROM p WHERE n > 0',
	'SELECT count(*) FROM generate_series(1, 2100) g WHERE EXISTS (SELECT body FROM t WHERE t.id = g)',
	$only,
	'SELECT count(*), sum(id) FROM t WHERE id > 0',
	'SELECT k, count(*) FROM t WHERE k BETWEEN 5 AND 110 GROUP BY k ORDER BY k',
	'SELECT count(*), md5(string_agg(b, \',\')) FROM (SELECT b FROM x ORDER BY b DESC, id OFFSET 0) s',
	'SELECT count(*), sum(id) FROM p WHERE k = 3',
	$bits,
	'SELECT count(*), sum(length(body)) FROM t WHERE k IN (3, 17, 103)',
	'SELECT count(*), sum(length(b)) FROM x WHERE b > \'8\'',
	'SELECT count(*) FROM p WHERE k < 3',
	'RESET ALL');
my @checks = (
	'SELECT * FROM nvm.check_pool()',
	(map { "SELECT * FROM nvm.check('$_', true)" } qw(t l x p)));
my @writes = (
	$index,
	'WITH u AS (UPDATE t SET body = \'upd\' WHERE id % 4 = 0 RETURNING 1) SELECT count(*) FROM u',
	'WITH u AS (UPDATE t SET k = k + 1 WHERE id BETWEEN 200 AND 400 RETURNING 1) SELECT count(*) FROM u',
	'WITH u AS (UPDATE l SET body = body || \'x\' WHERE id < 4 RETURNING 1) SELECT count(*) FROM u',
	'WITH d AS (DELETE FROM x WHERE id % 3 = 0 RETURNING 1) SELECT count(*) FROM d',
	'INSERT INTO x SELECT i, repeat(md5(i::text), 6) FROM generate_series(5000, 5300) i',
	'INSERT INTO t SELECT i, i % 40, md5(i::text) FROM generate_series(5000, 5500) i',
	'WITH u AS (UPDATE p SET k = k + 1, n = n + 1 WHERE id % 2 = 0 RETURNING 1) SELECT count(*) FROM u',
	'SELECT count(*) FROM (SELECT id FROM t WHERE id < 60 ORDER BY id FOR UPDATE) s',
	'RESET ALL',
	'SELECT count(*), sum(length(body)) FROM t',
	'SELECT count(*), sum(length(body)) FROM l',
	'SELECT count(*), sum(length(b)) FROM x',
	'SELECT count(*), sum(k) FROM p',
	(map { "VACUUM $_" } qw(t l x p)),
	'ANALYZE t',
	'SELECT count(*), sum(length(body)) FROM t WHERE id > 0');
my @ends = (
	'VACUUM FULL t', 'VACUUM FULL l', 'REINDEX TABLE x',
	'SET nvm.default_index_method = btree', 'CLUSTER p USING p_leaves', 'RESET nvm.default_index_method',
	'SELECT count(*), sum(length(body)) FROM t',
	'SELECT count(*), sum(length(body)) FROM l',
	'SELECT count(*), sum(length(b)) FROM x WHERE id > 0',
	'SELECT count(*), sum(k) FROM p',
	'CREATE TABLE made (id int PRIMARY KEY, b text) USING nvm',
	'INSERT INTO made SELECT i, md5(i::text) FROM generate_series(1, 500) i',
	'SELECT count(*), sum(length(b)) FROM made',
	'TRUNCATE p', 'DROP TABLE t', 'DROP TABLE l', 'DROP TABLE x', 'DROP TABLE p',
	'SELECT count(*) FROM h');

our %order = (
	reads  => [ @reads, @checks, @writes, @ends ],
	checks => [ @checks, @reads, @writes, @ends ],
	writes => [ @writes, @reads, @checks, @ends ]);
our @orders = ('reads', 'checks', 'writes');

=pod

=over

=item NvmFuzz->new

Makes the bases, and learns what they answer.

=cut

sub new
{
	my ($class) = @_;
	my $self = bless {}, $class;
	my $home = NvmCrash::make_base('fuzz', schema => $schema, fill => \&_fill);

	$self->{base}{stopped} = $home;
	$self->{base}{crashed} = _crashed($home);
	foreach my $base (qw(stopped crashed))
	{
		foreach my $order (@orders)
		{
			my $rig = NvmCrash->new($self->{base}{$base});
			$rig->start or die 'the server does not start: ' . $rig->log_since_start;
			my $said = $self->_ask($rig, $order);
			$rig->stop or die 'the server does not stop: ' . $rig->log_since_start;
			foreach my $s (@$said)
			{
				die "undamaged, $base, $order: $s->{sql}: $s->{err}" if $s->{err} =~ /ERROR|FATAL|WARNING/;
				die "undamaged, $base: $s->{sql}: $s->{out}" if $s->{sql} =~ /nvm\.check/ && $s->{out} ne '';
			}
			$self->{usual}{ _message($_) } = 1 foreach split /\n/, $rig->log_since_start;
			$self->{right}{"$base $order"} = [ map { $_->{out} } @$said ];
		}
	}
	return $self;
}

sub _fill
{
	my ($node) = @_;
	$node->safe_psql('postgres', $_) foreach split /;\n/, $age;
	die 'index p_btree is not in files'
	  if $node->safe_psql('postgres', q{SELECT count(*) FROM nvm.relations WHERE relation = 'p_btree'::regclass}) != 0;
	return;
}

# A copy of that base which crashes with work under way: its home.
sub _crashed
{
	my ($home) = @_;
	my $to  = "$home/crashed";
	my $rig = NvmCrash->new($home);

	$rig->start or die 'the server does not start: ' . $rig->log_since_start;
	my @open = map { $rig->session(sql => $_) } (
		"BEGIN; UPDATE t SET body = 'lost', k = 7777 WHERE id % 13 = 0; DELETE FROM t WHERE id BETWEEN 300 AND 320; "
		  . "INSERT INTO t SELECT i, 1, 'lost' FROM generate_series(8000, 8100) i; SELECT pg_sleep(600);\n",
		"BEGIN; UPDATE l SET body = repeat('lost', 7000) WHERE id IN (1, 2); SELECT pg_sleep(600);\n",
		"BEGIN; DELETE FROM x WHERE id BETWEEN 100 AND 200; INSERT INTO x SELECT i, repeat(md5(i::text), 6) FROM generate_series(9000, 9100) i; "
		  . "SAVEPOINT s; UPDATE p SET b = 'lost' WHERE id < 50; SELECT pg_sleep(600);\n");
	my ($out, $status, $err) = $rig->psql("BEGIN; SELECT count(*) FROM (SELECT 1 FROM t WHERE id BETWEEN 1000 AND 1040 AND id % 13 > 0 FOR UPDATE) s;\n"
		. "PREPARE TRANSACTION 'locks';\nBEGIN; UPDATE p SET b = 'prepared' WHERE id = 77; PREPARE TRANSACTION 'change';\n"
		. "UPDATE t SET body = body || '~' WHERE id % 17 = 0 AND id % 13 > 0 AND id > 1100;\n");
	die "preparing: $err" if $status != 0;
	for (my $n = 0, my $end = time() + 60; $n < @open; usleep(10_000))
	{
		($n) = $rig->psql("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep';\n") =~ /(\d+)/;
		die 'the sessions do not come to their ends' if time() > $end;
	}
	$rig->crash;
	mkdir $to or die "$to: $!";
	system_or_bail('cp', '-a', '--sparse=always', "$rig->{data}", "$rig->{pool}", $to);
	system_or_bail($NvmTest::patch_tool, "$to/pool/pool", 'detach');
	return $to;
}

# Run the statements of an order: [ { sql, out, err } ... ]; less of them if the connection ended.
sub _ask
{
	my ($self, $rig, $order) = @_;
	my @sql = @{ $order{$order} };
	my $script = "\\set ON_ERROR_STOP 0\n\\set VERBOSITY verbose\nSET statement_timeout = '${statement_seconds}s';\n";
	my @said;

	my $n = 0;
	# what prepared transactions hold up; there are none where nothing crashed
	$script .= "\\echo \@\@ end\n\\warn \@\@ end\nSELECT format('ROLLBACK PREPARED %L', gid) FROM pg_prepared_xacts ORDER BY gid \\gexec\n";
	foreach my $sql (@sql)
	{
		$n++;
		$script .= "\\echo \@\@ $n\n\\warn \@\@ $n\n$sql;\n";
		$script =~ s/\bRESET ALL;\n$/RESET ALL; SET statement_timeout = '${statement_seconds}s';\n/;
	}
	$script .= "\\echo \@\@ last\n\\warn \@\@ last\n";
	my ($out, undef, $err) = $rig->psql($script);
	my (%out, %err);
	$self->{raw} = $err;
	foreach my $from ([ $out, \%out ], [ $err, \%err ])
	{
		my @parts = split /^@@ (\w+)\n/m, $from->[0];
		shift @parts;
		while (@parts)
		{
			my ($id, $text) = splice(@parts, 0, 2);
			$from->[1]{$id} = $text // '';
		}
	}
	push @said, { sql => 'ROLLBACK PREPARED', out => '', err => $err{end} // '' };
	foreach my $i (1 .. $n)
	{
		last unless exists $err{$i};
		push @said, { sql => $sql[ $i - 1 ], out => $out{$i} // '', err => $err{$i} };
	}
	$self->{lost} = exists $err{last} ? 0 : 1;
	return \@said;
}

=item $fuzz->image(SEED, only => KIND, keep => DIRECTORY)

One image.  Returns { damage, faults, outcome, statements, base, order }.

=cut

sub image
{
	my ($self, $seed, %params) = @_;
	my $base  = $params{base} // ($seed % 3 == 0 ? 'crashed' : 'stopped');
	my $order = $params{order} // $orders[ int($seed / 3) % @orders ];
	my $rig   = NvmCrash->new($self->{base}{$base});
	my $found = { seed => $seed, base => $base, order => $order, faults => [], statements => 0, outcome => 'as before' };
	my @damage = $params{damage} ? $params{damage}->(NvmFuzzImage->new("$rig->{pool}/pool"))
	  : NvmFuzzDamage::damage(NvmFuzzImage->new("$rig->{pool}/pool"), $seed, only => $params{only});

	$found->{damage} = \@damage;
	if ($params{keep})
	{
		system_or_bail('rm', '-rf', "$params{keep}/$seed");
		mkdir "$params{keep}/$seed";
		system_or_bail('cp', '-a', '--sparse=always', $rig->{data}, $rig->{pool}, "$params{keep}/$seed/");
	}
	$self->_poolcheck($rig, $found);
	my $up = eval { $rig->start };
	if (!defined $up)
	{
		_fault($found, "start: $@");
		$rig->crash;
		return $found;
	}
	if (!$up)
	{
		my $log = $rig->log_since_start;
		$found->{outcome} = 'refused';
		_fault($found, "start: the server dies and does not say why: $log") unless $log =~ /FATAL: .*pool/;
		_look_at_log($rig, $found);
		return $found;
	}
	my $said = $self->_ask($rig, $order);
	push @$said, { sql => 'connect', out => '', err => $self->{raw} } if $self->{lost} && @$said == 1 && $said->[0]{err} eq '';
	$self->_judge($rig, $found, $said, $self->{right}{"$base $order"});
	_fault($found, 'the connection was lost after ' . $said->[-1]{sql} . ": $said->[-1]{err}") if $self->{lost};
	if ($rig->wait_dead(0))
	{
		_fault($found, 'the server died');
	}
	elsif (!defined eval { $rig->stop or _fault($found, 'the server did not stop cleanly'); 1 })
	{
		_fault($found, "stop: $@");
		$rig->crash;
	}
	_look_at_log($rig, $found);
	$found->{said} = $said;
	return $found;
}

# the same of several statements is one
sub _fault
{
	my ($found, $text) = @_;
	my ($sql, $problem) = $text =~ /^(.*?): (.*)/s ? ($1, $2) : ('', $text);

	push @{ $found->{faults} }, $text unless $found->{seen}{$problem}++;
	return;
}

sub _poolcheck
{
	my ($self, $rig, $found) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'timeout', '-k', '5', '60', 'nvm_poolcheck', '-P', $rig->{pool} ], '>', \$out, '2>', \$err);
	$found->{poolcheck} = $? & 127 ? 'signal' : $? >> 8;
	_fault($found, 'nvm_poolcheck was ended by signal ' . ($? & 127) . ": $err") if $? & 127;
	_fault($found, "nvm_poolcheck does not end") if $found->{poolcheck} =~ /^(?:124|137)$/;
	_fault($found, "nvm_poolcheck: status $found->{poolcheck}: $err") if $found->{poolcheck} =~ /^(?:13[0-9])$/;
	_fault($found, "nvm_poolcheck says nothing of what is wrong: $err") if $found->{poolcheck} ne 'signal' && $found->{poolcheck} != 0 && "$out$err" !~ /\S/;
	return;
}

sub _look_at_log
{
	my ($rig, $found) = @_;
	my @bad = grep { /terminated by signal|PANIC: |TRAP:|AddressSanitizer|runtime error:|exited with exit code [^01]/ }
	  split /\n/, $rig->log_since_start;

	_fault($found, "log: $_") foreach @bad[ 0 .. ($#bad > 3 ? 3 : $#bad) ];
	return;
}

# what names a place: a block, a TID, an offset, an index, a file, a slot, the pool
my $place = qr/block \d+|\(\d+,\d+\)|offset \d+|unit \d+|slot \d+|entry \d+|storage \d+|file \d+\/\d+|index "|pool/;

# a line of the log without its time and its numbers
sub _message
{
	my ($line) = @_;
	$line =~ s/^.*?\b(?=(?:WARNING|LOG|ERROR): )//;
	$line =~ s/\d+|[0-9A-F]+\/[0-9A-F]+/N/g;
	return $line;
}

# Is the error one of damage, and says where?  Or what is wrong with it.
sub _error_problem
{
	my ($err) = @_;

	# where the pool as a whole is refused, why is the detail
	$err =~ s/\n\S*DETAIL: / /g;
	foreach my $line (split /\n/, $err)
	{
		next unless $line =~ /\b(ERROR|FATAL|PANIC):  (\w{5}): (.*)/;
		my ($level, $state, $text) = ($1, $2, $3);
		return "PANIC: $text" if $level eq 'PANIC';
		return "it did not end: $text" if $state eq '57014';
		next if $state =~ /^XX00[12]$/ && $text =~ $place;
		# the pool, or a storage, is not to be had: says so itself
		next if $state eq '55000' && $text =~ $place;
		return "$state without a place, or not of damage: $text";
	}
	return;
}

sub _judge
{
	my ($self, $rig, $found, $said, $right) = @_;
	my $forged = grep { $_->{forged} } @{ $found->{damage} };
	# after a crash nobody knows whether a block, an area of it, or a row was ever there
	$forged ||= grep { $_->{unwritten} || $_->{kind} eq 'block' && $_->{text} =~ /: (?:starts\d|alloc_inc|whole: (?:zero|line))/ } @{ $found->{damage} }
	  if $found->{base} eq 'crashed';
	my $loose  = grep { $_->{loose} } @{ $found->{damage} };
	my $checked = grep { $_->{sql} =~ /nvm\.check/ && ($_->{out} ne '' || $_->{err} =~ /ERROR: /) } @$said;
	my $known  = '';
	my $log    = $rig->log_since_start;

	# what the log says and does not say where nothing is damaged
	foreach my $line (grep { / (?:WARNING|LOG|ERROR): / } split /\n/, $log)
	{
		last if $line =~ /ready to accept connections/;
		$known = 'log' unless $self->{usual}{ _message($line) };
	}
	foreach my $i (0 .. $#$said)
	{
		my $s = $said->[$i];
		my $wrong = $s->{out} ne ($right->[$i] // '');
		$found->{statements}++;
		if ($s->{err} =~ /\b(?:ERROR|FATAL|PANIC): /)
		{
			my $problem = _error_problem($s->{err});
			_fault($found, "$s->{sql}: $problem") if $problem && !$forged && !($known && $problem =~ /^(?:42P01|23|22|42704)/);
			_fault($found, "$s->{sql}: $problem") if $problem && $forged && $problem =~ /^(?:PANIC|it did not)/;
			$known ||= 'error';
			$found->{outcome} = $s->{err} =~ /nvm tables are not available/ ? 'pool refused' : 'error'
			  unless $found->{outcome} =~ /^(?:error|wrong)/;
			next;
		}
		if ($s->{sql} =~ /nvm\.check/ && $s->{out} ne '')
		{
			$known ||= 'checks';
			$found->{outcome} = 'checks' if $found->{outcome} eq 'as before';
			next;
		}
		if ($s->{err} =~ /WARNING: .*(?:damaged|nvm)/s)
		{
			$known ||= 'warning';
			$found->{outcome} = 'warning' if $found->{outcome} eq 'as before';
		}
		next unless $wrong;
		if (!$known)
		{
			$found->{outcome} = 'forged';
			next if $forged;
			$found->{outcome} = 'wrong, the checks know';
			next if $loose && $checked;
			$found->{outcome} = 'wrong';
			_fault($found, sprintf('wrong without a word: %s: %s instead of %s', $s->{sql}, _short($s->{out}), _short($right->[$i])));
			$known = 'told';
		}
	}
	$found->{known} = $known;
	$found->{outcome} = 'log alone' if $known eq 'log' && $found->{outcome} eq 'as before';
	return;
}

sub _short
{
	my ($text) = @_;
	$text =~ s/\n/ /g;
	return length($text) > 100 ? substr($text, 0, 100) . '...' : $text;
}

=pod

=back

=cut

1;

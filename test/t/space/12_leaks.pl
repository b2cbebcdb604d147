# Copyright (c) 2026, pg_nvm contributors

# Thousands of transactions of each kind, statements of one session, and sessions
# leave nothing behind: no extents or large values in the pool, no shared memory,
# no private memory of the backend that ran them or of the server's own processes,
# no open files, no temporary storages.
#
# Long form: each 10,000 times, here 500 times.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $times = NvmTest::is_long() ? 10_000 : 500;
# of memory, whatever is done 500 or 10,000 times: a few bytes for each
# in the long form are lost in what malloc does, a hundred are not
my $limit_kb = 1000 + NvmTest::sanitizer_kb();

my $node = NvmTest->start_new('leaks', conf => <<CONF, sql => <<SQL);
autovacuum = off
fsync = off
nvm.horizon_naptime = 20ms
max_prepared_transactions = 5
CONF
CREATE TABLE t (id int PRIMARY KEY, v int, t text) USING nvm;
ALTER TABLE t ALTER t SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, 0, 'row ' || i FROM generate_series(1, 100) i;
CREATE TABLE l (id int, t text) USING nvm;
ALTER TABLE l ALTER t SET STORAGE EXTERNAL;
INSERT INTO l SELECT i, repeat('x', 20000) FROM generate_series(1, 10) i;
SQL

# name => statements of one time; an error ends the transaction and no more
my @kinds = (
	[ 'insert and delete' => 'INSERT INTO t VALUES (1000, 1, $$new$$); DELETE FROM t WHERE id = 1000' ],
	[ 'update' => 'UPDATE t SET v = v + 1 WHERE id = i % 100 + 1' ],
	[ 'update of a key' => 'UPDATE t SET id = -id WHERE id = i % 100 + 1; UPDATE t SET id = -id WHERE id = -(i % 100 + 1)' ],
	[ 'lock' => 'PERFORM 1 FROM t WHERE id = i % 100 + 1 FOR UPDATE; PERFORM 1 FROM t WHERE id = 5 FOR KEY SHARE' ],
	[ 'savepoint, aborted' =>
		'BEGIN UPDATE t SET v = v + 1; INSERT INTO t VALUES (2000, 1, $$x$$); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN END' ],
	[ 'savepoint, kept' => 'BEGIN UPDATE t SET v = v + 1 WHERE id < 5; EXCEPTION WHEN division_by_zero THEN END' ],
	[ 'error' => 'BEGIN INSERT INTO t VALUES (i % 100 + 1, 0, repeat($$x$$, 20000)); EXCEPTION WHEN unique_violation THEN END' ],
	[ 'rollback' => 'UPDATE t SET v = v + 1, t = t || i; ROLLBACK' ],
	[ 'large value' => 'UPDATE l SET t = repeat(chr(65 + i % 26), 20000 + i % 1000) WHERE id = i % 10 + 1' ],
	[ 'large value, undone' => 'UPDATE l SET t = repeat($$y$$, 20000) WHERE id = 1; ROLLBACK' ],
	[ 'large value, read' => 'PERFORM sum(length(t)) FROM l WHERE t > $$A$$' ],
	[ 'on conflict' => 'INSERT INTO t VALUES (i % 100 + 1, 1, $$x$$) ON CONFLICT (id) DO UPDATE SET v = t.v + 1' ],
	[ 'cursor' => 'FOR r IN SELECT * FROM t LOOP EXIT WHEN r.id > 5; END LOOP' ],
	[ 'table' => 'CREATE TABLE x (id int, t text) USING nvm; INSERT INTO x VALUES (1, repeat($$z$$, 20000)); DROP TABLE x' ],
	[ 'table, undone' => 'CREATE TABLE x (id int, t text) USING nvm; INSERT INTO x VALUES (1, repeat($$z$$, 20000)); ROLLBACK' ],
	[ 'temporary table' => 'CREATE TEMP TABLE x (id int, t text) USING nvm ON COMMIT DROP; INSERT INTO x VALUES (1, $$z$$); COMMIT' ],
	[ 'temporary table, emptied' => 'CREATE TEMP TABLE IF NOT EXISTS y (id int, t text) USING nvm ON COMMIT DELETE ROWS; INSERT INTO y VALUES (1, $$z$$); COMMIT' ],
	[ 'truncate' => 'TRUNCATE l; INSERT INTO l SELECT j, repeat($$x$$, 20000) FROM generate_series(1, 10) j' ]);

sub make_procedure
{
	my ($name, $statements) = @_;

	$node->safe_psql('postgres', <<SQL);
CREATE PROCEDURE $name(n int) LANGUAGE plpgsql AS
\$p\$DECLARE r record;
BEGIN
	SET LOCAL client_min_messages = error;
	FOR i IN 1 .. n LOOP
		$statements;
		COMMIT;
	END LOOP;
END\$p\$;
SQL
	return;
}

foreach my $i (0 .. $#kinds)
{
	make_procedure("k$i", $kinds[$i][1]);
	# PostgreSQL's own caches grow by each table that there was
	make_procedure("heap$i", $kinds[$i][1] =~ s/USING nvm/USING heap/r) if $kinds[$i][1] =~ /CREATE TABLE/;
}

# What the kind takes with heap tables.
sub heap_kb
{
	my ($i) = @_;
	return 0 unless $kinds[$i][1] =~ /CREATE TABLE/;

	my $session = $node->session("SET client_min_messages = warning");
	$session->sql("CALL heap$i(200)");
	$session->sql("CALL heap$i(100)");
	my $memory = NvmTest::private_kb($session->pid);
	$session->sql("CALL heap$i($times)");
	my $more = NvmTest::private_kb($session->pid) - $memory;
	$session->drop;
	return $more;
}

# Let the space of what has gone become free, and be found.
sub settle
{
	foreach my $try (1 .. 2)
	{
		$node->safe_psql('postgres', 'VACUUM t');
		$node->safe_psql('postgres', 'VACUUM l');
		$node->safe_psql('postgres', 'SELECT pg_current_xact_id()');
	}
	return;
}

sub used { return $node->safe_psql('postgres', 'SELECT used FROM nvm.pool'); }

sub counts
{
	return $node->safe_psql('postgres',
		q{SELECT count(*) || ' storages, ' || sum(large_values) || ' large values' FROM nvm.relations});
}

# The server's own processes: name => pid
sub processes
{
	my %pid = map { split /\|/ } split /\n/, $node->safe_psql('postgres',
		q{SELECT backend_type, pid FROM pg_stat_activity WHERE backend_type NOT IN ('client backend', 'parallel worker')});
	$pid{postmaster} = $node->{_pid};
	return %pid;
}

# What they have: memory of their own and open files
sub server_state
{
	my %pid = processes();
	return map { $_ => [ NvmTest::private_kb($pid{$_}), NvmTest::open_files($pid{$_}), $pid{$_} ] } keys %pid;
}

# $before: what there was when caches had been filled
sub server_has_no_more
{
	my ($name, $shared, %before) = @_;
	my %now = server_state();
	my $more = $node->shared_kb - $shared;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	cmp_ok($more, '<=', 512, "$name: $more kB more of shared memory than $shared kB");
	foreach my $process (sort keys %before)
	{
		my $kb = $now{$process}[0] - $before{$process}[0];
		my $files = $now{$process}[1] - $before{$process}[1];
		is($now{$process}[2], $before{$process}[2], "$name: the $process is the same");
		# which is told of each file that comes and goes, by the ten thousands
		my $limit = $process eq 'checkpointer' ? $limit_kb + $times / 2 : $limit_kb;
		cmp_ok($kb, '<', $limit, "$name: the $process has $kb kB more than $before{$process}[0] kB");
		# those that write PostgreSQL's relations keep some of these open
		cmp_ok($files, '<', $process =~ /^(?:background writer|checkpointer)$/ ? 200 : 20,
			"$name: the $process has $files open files more than $before{$process}[1]");
	}
	return;
}

# before the server's own processes are looked at
my @heap_kb = map { heap_kb($_) } 0 .. $#kinds;

my (%server, $shared);
foreach my $i (0 .. $#kinds)
{
	my $name = $kinds[$i][0];
	my $session = $node->session("SET client_min_messages = warning");

	# the first ones fill caches, and what tables need while their rows change
	$session->sql("CALL k$i(200)");
	$session->sql("CALL k$i(100)");
	settle();
	my ($memory, $files, $pool, $counts, $dram) =
	  (NvmTest::private_kb($session->pid), NvmTest::open_files($session->pid), used(), counts(), $node->shared_kb);
	$session->sql("CALL k$i($times)");
	my $more = NvmTest::private_kb($session->pid) - $memory;
	my $opened = NvmTest::open_files($session->pid) - $files;
	settle();
	$session->sql("CALL k$i(10)");
	settle();
	my $heap = $heap_kb[$i];
	cmp_ok($more, '<', $limit_kb + $heap, "$name, $times times: $more kB more of private memory"
		  . ($heap ? ", on heap $heap kB" : ''));
	# those of indexes and catalogs stay open for a while
	cmp_ok($opened, '<', 20, "$name: $opened more open files");
	cmp_ok(used() - $pool, '<=', 2 * 1024 * 1024, "$name: " . (used() - $pool) . ' bytes more of the pool');
	is(counts(), $counts, "$name: $counts");
	# ids of tables are used again when the horizon has passed their end
	cmp_ok($node->shared_kb - $dram, '<=', 1024, "$name: " . ($node->shared_kb - $dram) . " kB more of shared memory than $dram kB");
	$session->sql('DISCARD ALL');
	$session->drop;
	%server = server_state() if $i == 0;
}
server_has_no_more('transactions', $node->shared_kb, %server);

# Statements of the client's own, each parsed, planned and ended by itself.
{
	my @statements = (
		'INSERT INTO t VALUES (3000, 1, $$new$$)',
		'UPDATE t SET v = v + 1 WHERE id = 3000',
		'UPDATE t SET id = 3001 WHERE id = 3000',
		'SELECT count(*) FROM t WHERE id BETWEEN 5 AND 50',
		'SELECT v FROM t WHERE id = 5 FOR UPDATE',
		'DELETE FROM t WHERE id = 3001',
		'INSERT INTO t VALUES (5, 0, $$there$$)',
		'BEGIN; UPDATE t SET v = 0; SAVEPOINT s; DELETE FROM t WHERE id < 50; ROLLBACK TO s; ROLLBACK',
		"BEGIN; UPDATE t SET v = v + 1 WHERE id = 7; PREPARE TRANSACTION 'leak'",
		"COMMIT PREPARED 'leak'",
		'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT sum(v) FROM t; UPDATE t SET v = v + 1 WHERE id = 9; COMMIT',
		'DECLARE c CURSOR WITH HOLD FOR SELECT * FROM t; FETCH 5 FROM c; CLOSE c',
		'SELECT md5(string_agg(t::text, $$,$$ ORDER BY id)) FROM t',
		'SELECT count(*) FROM nvm.check($$t$$)');
	my $batch = join(";\n", @statements);
	my $session = $node->session;
	my $rounds = int($times / @statements / 10) + 1;
	my $run = sub { $session->sql("$batch;\n" x 10) foreach 1 .. $_[0]; };

	$run->(3);
	settle();
	my ($memory, $files, $pool) = (NvmTest::private_kb($session->pid), NvmTest::open_files($session->pid), used());
	($shared, %server) = ($node->shared_kb, server_state());
	$run->($rounds);
	my $n = $rounds * 10 * @statements;
	my $more = NvmTest::private_kb($session->pid) - $memory;
	my $opened = NvmTest::open_files($session->pid) - $files;
	cmp_ok($more, '<', $limit_kb, "$n statements of a session: $more kB more of private memory");
	cmp_ok($opened, '<', 20, "$n statements of a session: $opened more open files");
	settle();
	$run->(1);
	settle();
	cmp_ok(used() - $pool, '<=', 2 * 1024 * 1024, "$n statements of a session: " . (used() - $pool) . ' bytes more of the pool');
	server_has_no_more("$n statements", $shared, %server);
	$session->drop;
}
$node->poll_query_until('postgres', q{SELECT count(*) = 3 FROM nvm.relations});
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations'), '3', 'the storages of two tables and a primary key in the end');
$node->safe_psql('postgres', 'DELETE FROM l');
settle();
settle();
is($node->safe_psql('postgres', q{SELECT large_values FROM nvm.relations WHERE relation = 'l'::regclass}), '0', 'no large value is left');
$node->check_clean('in the end');

# Sessions, four at a time: commit slots and their memory are used again.
{
	my $file = $node->basedir . '/session.sql';
	append_to_file($file, <<'SQL');
\set id random(1, 100)
BEGIN;
UPDATE t SET v = v + 1 WHERE id = :id;
SAVEPOINT s;
INSERT INTO l VALUES (:id, repeat('s', 20000));
ROLLBACK TO s;
COMMIT;
CREATE TEMP TABLE own (id int, t text) USING nvm;
INSERT INTO own VALUES (1, repeat('o', 20000));
SQL
	my $sessions = sub {
		my $each = $_[0] / 4;
		command_ok([ 'pgbench', '-n', '-C', '-c', 4, '-j', 1, '-t', $each, '-f', $file, $node->connstr('postgres') ],
			"$_[0] sessions");
	};

	$sessions->(200);
	$node->poll_query_until('postgres', q{SELECT count(*) = 3 FROM nvm.relations});
	settle();
	my $slots = $node->safe_psql('postgres', 'SELECT slots_used FROM nvm.activity');
	my $pool = used();
	($shared, %server) = ($node->shared_kb, server_state());
	$sessions->($times);
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 3 FROM nvm.relations}), 'their temporary tables are gone');
	settle();
	# of the four and of some that have not quite ended
	cmp_ok($node->safe_psql('postgres', 'SELECT slots_used FROM nvm.activity'), '<=', $slots + 12,
		"sessions use the commit slots of those before: $slots");
	cmp_ok(used() - $pool, '<=', 2 * 1024 * 1024, "$times sessions: " . (used() - $pool) . ' bytes more of the pool');
	server_has_no_more("$times sessions", $shared, %server);
}
$node->check_clean('after the sessions');
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Index parameter persistence: what a restart leaves of an index of each kind,
# queries and writers while one is absent or being rebuilt, VACUUM meanwhile,
# crashes in the middle, and ALTER INDEX SET.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $rows = NvmTest::is_long() ? 50000 : 4000;

sub schema
{
	return <<SQL;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
CREATE TABLE t (id int, k int, b text, f int) USING nvm WITH (autovacuum_enabled = off);
CREATE UNIQUE INDEX t_id ON t USING nvm_btree (id) WITH (persistence = none);
CREATE INDEX t_k ON t USING nvm_btree (k) WITH (persistence = none);
CREATE INDEX t_b ON t USING nvm_btree (b) WITH (persistence = leaves);
CREATE INDEX t_f ON t USING nvm_btree (f);
CREATE TABLE plain (k int, b text) USING nvm WITH (autovacuum_enabled = off);
CREATE INDEX plain_k ON plain USING nvm_btree (k) WITH (persistence = none);
INSERT INTO t SELECT i, i % 50, md5(i::text), i % 7 FROM generate_series(1, $rows) i;
INSERT INTO plain SELECT i % 100, i FROM generate_series(1, $rows) i;
SQL
}

# indexes answer as the table does, and the checker finds nothing
sub sound
{
	my ($node, $name) = @_;
	my $ways = join ";\n", map { "SET enable_seqscan = $_->[0]; SET enable_indexscan = $_->[1]; SET enable_bitmapscan = $_->[1];\n"
		  . join(";\n", map { "SELECT \$\$$_\$\$, count(*), sum(hashint4(id)) FROM t WHERE $_" }
			  'id BETWEEN 100 AND 900', 'k IN (3, 7)', 'k = 49', "b < '4'", 'f = 3') } ([ 'on', 'off' ], [ 'off', 'on' ]);
	my @lines = split /\n/, $node->safe_psql('postgres', $ways);
	my @seen  = splice(@lines, 0, @lines / 2);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("@lines", "@seen", "$name: indexes answer as the table does");
	is( $node->safe_psql('postgres', "SELECT nvm.check('t', true); SELECT nvm.check('plain', true); SELECT f FROM nvm.check_pool() f"),
		'', "$name: nothing is found by the checker");
	return;
}

sub wait_ready
{
	my ($node) = @_;
	$node->poll_query_until('postgres',
		q(SELECT count(*) FILTER (WHERE persistence = 'none') = 3 AND bool_and(state = 'ready') FROM nvm.index_rebuilds WHERE persistence = 'none'))
	  or die 'indexes are not rebuilt';
	return;
}

sub worker_pids
{
	my ($node) = @_;
	return split /\n/, $node->safe_psql('postgres', q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm index rebuild worker'));
}

# wait until a worker has stopped at a failpoint, after the start
sub stopped_worker
{
	my ($node, $failpoint) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		if ($node->log_since_start =~ /failpoint $failpoint hit, pid (\d+)/)
		{
			NvmTest::wait_stopped($1);
			return $1;
		}
		usleep(5000);
	}
	die "no worker came to $failpoint";
}

sub waits
{
	my ($node, $session) = @_;
	return $node->poll_query_until('postgres',
		"SELECT wait_event_type IN ('Extension', 'Lock') FROM pg_stat_activity WHERE pid = " . $session->pid);
}

# used as it may be, whatever is rebuilt
sub plan_of
{
	my ($node, $where) = @_;
	return $node->safe_psql('postgres', "SET enable_seqscan = off; EXPLAIN (COSTS OFF) SELECT * FROM t WHERE $where");
}

# ---- none: while it is absent

my $node = NvmTest->start_new('main', conf => "nvm.index_rebuild_workers = 1\nmax_prepared_transactions = 5\nautovacuum = off", extension => 0);
$node->safe_psql('postgres', schema());
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.index_rebuilds'), '0', 'indexes that were just made are whole');

# most used: t_k; dead rows for VACUUM; rows of a transaction that the restart does not decide
$node->safe_psql('postgres', "SET enable_seqscan = off; SET plan_cache_mode = force_generic_plan;\n"
	  . "DO \$\$ BEGIN FOR i IN 1..100 LOOP PERFORM count(*) FROM t WHERE k = i; END LOOP; END \$\$");
$node->safe_psql('postgres', 'DELETE FROM t WHERE id % 10 = 5; DELETE FROM plain WHERE k = 5');
$node->safe_psql('postgres', "BEGIN; INSERT INTO t VALUES (-1, 3, 'prepared', 3); UPDATE t SET k = 49 WHERE id = 200; PREPARE TRANSACTION 'p'");
$node->set_conf('nvm.failpoint' => "'index-rebuild-entry:stop:200'");
$node->crash;
$node->start;
my $worker = stopped_worker($node, 'index-rebuild-entry');

is( $node->safe_psql('postgres', q(SELECT index, state, done < total FROM nvm.index_rebuilds WHERE persistence = 'none' AND state <> 'waiting')),
	't_k|rebuilding|t', 'the most-used index comes first, and progress is shown');
unlike(plan_of($node, 'k = 3'), qr/Index/, 'plans avoid an index that is being rebuilt');
unlike(plan_of($node, 'id = 3'), qr/Index/, 'and one that waits for that');
like(plan_of($node, 'f = 3'), qr/Index.*t_f/s, 'not one that is whole');
like(plan_of($node, "b = 'x'"), qr/Index.*t_b/s, 'nor one whose inner pages can be made');
is( $node->safe_psql('postgres', 'SELECT count(*) FROM t WHERE k = 3'), $rows / 50, 'a query is answered from the table');
is( $node->safe_psql('postgres', q(SELECT persistence, state, done = total, ms > 0 FROM nvm.index_rebuilds WHERE index = 't_b'::regclass)),
	'leaves|ready|t|t', 'the time of the walk over the leaves is shown');

my $old = $node->session("SET nvm.failpoint = ''", 'SET enable_seqscan = off', 'SET plan_cache_mode = force_generic_plan',
	'PREPARE q AS SELECT count(*) FROM t WHERE k = 3');
is($old->sql('EXECUTE q'), $rows / 50, 'a prepared statement, too');

# nobody waits who need not
$node->safe_psql('postgres', "SET nvm.failpoint = ''; INSERT INTO plain SELECT 1000, i FROM generate_series(1, 10) i; UPDATE plain SET k = 1001 WHERE b = '7'");
# an insertion does, and then builds the index that it needs, and no other
my $insert = $node->session("SET nvm.failpoint = ''");
is($insert->sql(q(INSERT INTO t VALUES (100000, 3, 'new', 3) RETURNING id)), '100000', 'a writer that needs a unique index rebuilds it');
is( $node->safe_psql('postgres', q(SELECT index, state FROM nvm.index_rebuilds WHERE persistence = 'none' ORDER BY index::text)),
	"plain_k|waiting\nt_id|ready\nt_k|rebuilding", 'that one alone');
$node->fails_with("SET nvm.failpoint = ''; INSERT INTO t VALUES (1, 3, 'again', 3)", qr/duplicate key value violates unique constraint "t_id"/, 'keys are unique');
is($node->safe_psql('postgres', "SET nvm.failpoint = ''; INSERT INTO t VALUES (1, 3, 'again', 3), (100001, 3, 'new', 3) ON CONFLICT (id) DO UPDATE SET f = 100 RETURNING id, f"),
	"1|100\n100001|3", 'also for ON CONFLICT');

# VACUUM waits: what the worker has read must not lead to other rows
my $vacuum = $node->session("SET nvm.failpoint = ''");
$vacuum->send('VACUUM (INDEX_CLEANUP ON) t');
ok(waits($node, $vacuum), 'VACUUM waits for who rebuilds an index');
$node->safe_psql('postgres', "SET nvm.failpoint = ''; VACUUM (INDEX_CLEANUP ON) plain");
$node->safe_psql('postgres', "SET nvm.failpoint = ''; DELETE FROM plain WHERE k = 6; INSERT INTO plain SELECT 2000, i FROM generate_series(1, 100) i");
is( $node->safe_psql('postgres', q(SELECT state FROM nvm.index_rebuilds WHERE index = 'plain_k'::regclass)),
	'waiting', 'it does not rebuild one');
$node->set_conf('nvm.failpoint' => "''");
$node->reload;
NvmTest::continue_process($worker);
wait_ready($node);
is($vacuum->sql('SELECT 1'), '1', 'VACUUM has ended');
like($old->sql('EXPLAIN (COSTS OFF) EXECUTE q'), qr/Index.*t_k/s, 'the prepared statement uses the index that is back');
$node->safe_psql('postgres', 'INSERT INTO t SELECT i, i % 50, md5(i::text), i % 7 FROM generate_series(200000, 200400) i');
sound($node, 'rebuilt');
$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
is( $node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT id, b FROM t WHERE id IN (-1, 200) AND k IN (3, 49) ORDER BY id'),
	"-1|prepared\n200|" . $node->safe_psql('postgres', 'SELECT md5(200::text)'), 'what was prepared before the crash is in the index');
sound($node, 'prepared transaction committed');
$_->drop foreach $old, $insert, $vacuum;

# ---- a worker that ends early; who waits takes its place; a clean stop

$node->set_conf('nvm.failpoint' => "'index-rebuild-entry:stop:300'");
$node->stop;
$node->start;
$worker = stopped_worker($node, 'index-rebuild-entry');
my $building = $node->safe_psql('postgres', q(SELECT index FROM nvm.index_rebuilds WHERE state = 'rebuilding' AND persistence = 'none'));
is($building, 't_k', 'after a clean stop, too');
my $scan = $node->session("SET nvm.failpoint = ''");
$scan->send('CLUSTER t USING t_k');
ok(waits($node, $scan), 'CLUSTER waits for its index');
$node->set_conf('nvm.failpoint' => "''");
$node->reload;
kill('TERM', $worker);
NvmTest::continue_process($worker);
is($scan->sql('SELECT count(*) > 0 FROM t'), 't', 'it has rebuilt it itself when the worker died');
$scan->drop;
$node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM nvm.index_rebuilds WHERE persistence = 'none' AND state <> 'ready')) or die;
sound($node, 'after a clean stop');

# ---- writers between the scan of the table and the insertion of what it found

$node->set_conf('nvm.failpoint' => "'index-rebuild-collected:stop:1'");
$node->safe_psql('postgres', "CREATE TABLE wide (k int, r int) USING nvm WITH (autovacuum_enabled = off); CREATE INDEX wide_r ON wide USING nvm_btree (r) WITH (persistence = none);\n"
	  . "INSERT INTO wide SELECT i, (hashint4(i) & 1048575) * 2 FROM generate_series(1, 20000) i; SET enable_seqscan = off;\n"
	  . "DO \$\$ BEGIN FOR i IN 1..4000 LOOP PERFORM FROM wide WHERE r = i; END LOOP; END \$\$");
$node->crash;
$node->start;
$worker = stopped_worker($node, 'index-rebuild-collected');
is($node->safe_psql('postgres', q(SELECT index FROM nvm.index_rebuilds WHERE state = 'rebuilding' AND persistence = 'none')), 'wide_r', 'a scan has ended');
$node->safe_psql('postgres', "SET nvm.failpoint = ''; INSERT INTO wide SELECT -i, hashint4(i) & 2097151 FROM generate_series(1, 2000) i;\n"
	  . "INSERT INTO wide VALUES (0, 2097152), (0, 2097153); BEGIN; INSERT INTO wide SELECT 0, i FROM generate_series(1, 3000) i; ROLLBACK;\n"
	  . "UPDATE wide SET r = r + 1 WHERE k BETWEEN 1 AND 1000; UPDATE wide SET k = k + 100000 WHERE k BETWEEN 1001 AND 2000; DELETE FROM wide WHERE k BETWEEN 2001 AND 3000");
$node->set_conf('nvm.failpoint' => "''");
$node->reload;
NvmTest::continue_process($worker);
$node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM nvm.index_rebuilds WHERE persistence = 'none' AND state <> 'ready')) or die;
is($node->safe_psql('postgres', q(SELECT f FROM nvm.check('wide', true) f; SET enable_seqscan = off; SELECT count(*), sum(k) FROM wide WHERE r >= 0)),
	$node->safe_psql('postgres', 'SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(k) FROM wide WHERE r >= 0'),
	'the index has what was found and what came meanwhile');
my $size = q(SELECT blocks FROM nvm.relations WHERE relation = 'wide_r'::regclass AND NOT ended);
my $blocks = $node->safe_psql('postgres', $size);
$node->safe_psql('postgres', 'REINDEX INDEX wide_r');
# entries of 5000 dead rows on top of 21000; were pages left half full, it would be twice as many
cmp_ok($blocks, '<=', 1.7 * $node->safe_psql('postgres', $size), 'its pages are full');
sound($node, 'writers between');
$node->safe_psql('postgres', 'DROP TABLE wide');

# ---- crashes in the middle of it, and of the walk over the leaves

foreach my $place ('index-rebuild-claimed:crash', 'index-rebuild-collected:crash', 'index-rebuild-entry:crash:700', 'index-rebuild-done:crash', 'index-rebuild-entry:error:500')
{
	$node->set_conf('nvm.failpoint' => "'$place'");
	$node->crash;
	$node->start(fail_ok => 1);
	my ($name, $how) = split /:/, $place;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	usleep(5000) while $node->log_since_start !~ /failpoint $name hit/ && time() < $end;
	like($node->log_since_start, qr/failpoint $name hit/, "$place: it came to that");
	$node->set_conf('nvm.failpoint' => "''");
	if ($how eq 'crash')
	{
		$node->wait_crashed;
		$node->start;
	}
	else
	{
		$node->reload;
		# at once, if somebody needs it; the worker tries again later
		$node->safe_psql('postgres', 'BEGIN; INSERT INTO t VALUES (-7, 1, 1, 1); ROLLBACK; VACUUM t');
	}
	sound($node, $place);
}

foreach my $place ('index-leaves-known', 'index-leaf-flags', 'index-leaves')
{
	# a split whose second step is missing, at the crash
	$node->safe_psql('postgres', 'DROP TABLE IF EXISTS l; CREATE TABLE l (b text) USING nvm; CREATE INDEX l_b ON l USING nvm_btree (b) WITH (persistence = leaves)');
	my $split = $node->session(q(SET nvm.failpoint = 'btree-split-applied:crash:3'));
	$split->send(q(INSERT INTO l SELECT md5(i::text) || repeat('x', 500) FROM generate_series(1, 300) i));
	$node->wait_crashed;
	$split->drop;
	$node->start;
	my $walk = $node->session("SET nvm.failpoint = '$place:crash'", 'SET enable_seqscan = off');
	$walk->send('SELECT count(*) FROM l WHERE b > repeat(chr(32), 3)');
	$node->wait_crashed;
	$walk->drop;
	$node->start;
	is( $node->safe_psql('postgres', q(SELECT f FROM nvm.check('l', true) f; INSERT INTO l SELECT md5(i::text) || repeat('x', 500) FROM generate_series(1, 300) i; SELECT f FROM nvm.check('l', true) f; SELECT count(*) FROM l)),
		'300', "$place: the leaves of a tree whose splits were interrupted");
}
$node->stop;

# ---- ALTER INDEX SET

$node->start;
foreach my $kind ('leaves', 'none', 'full', 'none', 'leaves', 'full', 'none')
{
	$node->safe_psql('postgres', "BEGIN; ALTER INDEX t_f SET (persistence = $kind); INSERT INTO t VALUES (-100, 1, 'x', 1); ROLLBACK");
	is($node->safe_psql('postgres', q(SELECT count(*) FROM nvm.check('t_f', true))), '0', "to $kind, rolled back");
	$node->safe_psql('postgres', "ALTER INDEX t_f SET (persistence = $kind)");
	$node->crash;
	$node->start;
	my $state = $node->safe_psql('postgres', q(SET enable_seqscan = off; SELECT count(*) FROM t WHERE f = 1; SELECT persistence FROM nvm.index_rebuilds WHERE index = 't_f'::regclass));
	like($state, $kind eq 'full' ? qr/^\d+$/ : qr/^\d+\n$kind$/, "to $kind");
	sound($node, "to $kind");
}
$node->safe_psql('postgres', "ALTER INDEX t_f RESET (persistence)");
$node->crash;
$node->start;
is($node->safe_psql('postgres', q(SELECT count(*) FROM nvm.index_rebuilds WHERE index = 't_f'::regclass)), '0', 'reset: full');
sound($node, 'reset');
$node->stop;

# ---- loss of power, with writers in the middle of rebuilds

my $sim = NvmTest->start_new('power', simulate => 1, conf => "autovacuum = off\nnvm.index_rebuild_workers = 2", extension => 0);
$sim->safe_psql('postgres', schema() . 'CREATE TABLE ack (client int, n int) USING nvm;');
foreach my $round (1 .. (NvmTest::is_long() ? 12 : 3))
{
	my $load = $sim->start_load(
		clients => 3,
		sql     => sub {
			my ($c, $n) = @_;
			my $id = $round * 1000000 + $c * 100000 + $n;
			return "BEGIN; INSERT INTO ack VALUES ($c, $round * 10000 + $n);\n"
			  . "INSERT INTO t VALUES ($id, $n % 50, md5('$id'), $n % 7), ($n, 1, 'y', 1) ON CONFLICT (id) DO UPDATE SET k = excluded.k + 1;\n"
			  . "UPDATE t SET k = k + 1, b = 'z' || b WHERE id = $id - 3;\nDELETE FROM t WHERE id = $id - 20;\nCOMMIT;";
		});
	$load->wait_acknowledged(60);
	$sim->safe_psql('postgres', 'VACUUM t') if $round % 2;
	$sim->power_failure(seed => $round);
	$sim->start;
	my %last = $load->finish;
	is($sim->safe_psql('postgres', "SELECT count(*) FROM ack WHERE n / 10000 = $round") >= $last{1} + $last{2} + $last{3} ? 1 : 0,
		1, "power failure $round: acknowledged work is there");
	sound($sim, "power failure $round");
}
$sim->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# VACUUM of an index that a restart has emptied (persistence none) and that nobody has
# rebuilt yet, so that it holds the index against whoever would. It fails, it is
# cancelled, its backend is terminated: each time the rebuilder must come to its turn.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# the worker is held at the index that is used more, so that nobody comes to the other
my $node = NvmTest->start_new('absent', conf => "nvm.index_rebuild_workers = 1\nautovacuum = off\n", sql => q(
	CREATE TABLE first (id int) USING nvm;
	CREATE INDEX first_id ON first USING nvm_btree (id) WITH (persistence = none);
	INSERT INTO first SELECT g FROM generate_series(1, 500) g;
	CREATE TABLE t (id int, k int) USING nvm;
	CREATE INDEX t_id ON t USING nvm_btree (id) WITH (persistence = none);
	INSERT INTO t SELECT g, g % 10 FROM generate_series(1, 2000) g;
	SET enable_seqscan = off;
	DO $$DECLARE n int; BEGIN FOR i IN 1 .. 500 LOOP SELECT id INTO n FROM first WHERE id = i; END LOOP; END$$));

my $state = q(SELECT state FROM nvm.index_rebuilds WHERE index = 't_id'::regclass);
my $point = 'btree-vacuum-leaf';
my %says = (
	cancel    => qr/canceling statement due to user request/,
	terminate => qr/terminating connection due to administrator command/);
my $answer = '5000|45502500';

foreach my $way ('error', 'cancel', 'terminate')
{
	$node->stop;
	$node->set_conf('nvm.failpoint' => "'index-rebuild-claimed:stop:1'");
	$node->start;
	my $worker = q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm index rebuild worker');
	$node->poll_query_until('postgres', "SELECT EXISTS ($worker)") or die 'no worker';
	$worker = $node->safe_psql('postgres', $worker);
	NvmTest::wait_stopped($worker);
	# entries of rows since the start are in the index; those of a transaction that was
	# rolled back can go, though the worker's snapshot is old
	$node->safe_psql('postgres', q(
		BEGIN;
		INSERT INTO t SELECT g, 0 FROM generate_series(10001, 13000) g;
		ROLLBACK;
		INSERT INTO t SELECT g, 0 FROM generate_series(13001, 16000) g));
	is($node->safe_psql('postgres', $state), 'waiting', "$way: nobody has rebuilt the index");

	if ($way eq 'error')
	{
		$node->fails_with("SET nvm.failpoint = '$point:error:1'; VACUUM (INDEX_CLEANUP ON) t",
			qr/failpoint $point hit/, 'VACUUM fails in the midst of the index');
	}
	else
	{
		my $session = $node->session;
		$session->stop_at($point, 'VACUUM (INDEX_CLEANUP ON) t');
		$node->safe_psql('postgres', "SELECT pg_${way}_backend(" . $session->pid . ')');
		$session->go_on;
		ok($node->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE state = 'active' AND pid = " . $session->pid . ')'),
			"VACUUM ends: $way");
		$session->drop;
		like(slurp_file($node->logfile), $says{$way}, "VACUUM: $way");
	}
	is($node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'), $answer, "$way: the rows");

	NvmTest::continue_process($worker);
	ok($node->poll_query_until('postgres', "SELECT state = 'ready' FROM nvm.index_rebuilds WHERE index = 't_id'::regclass"),
		"$way: the index is rebuilt");
	is($node->safe_psql('postgres', 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(id) FROM t WHERE id > 0'),
		$answer, "$way: the index answers");
	is($node->safe_psql('postgres', q(SELECT * FROM nvm.check('t', true))), '', "$way: the check finds nothing");
	$node->safe_psql('postgres', 'DELETE FROM t WHERE id > 10000');
}

# Whoever rebuilds an index reads also rows that are dead to everybody by now, large
# values among them: VACUUM leaves these as long as an index is absent, and says so.
$node->safe_psql('postgres', q(
	CREATE TABLE v (id int, body text) USING nvm;
	ALTER TABLE v ALTER body SET STORAGE EXTERNAL;
	CREATE INDEX v_id ON v USING nvm_btree (id) WITH (persistence = none);
	INSERT INTO v SELECT g, (SELECT string_agg(md5(g || '.' || k), '') FROM generate_series(1, 3125) k)
		FROM generate_series(1, 200) g;
	DELETE FROM v));
my $used = 'SELECT used FROM nvm.pool';
my $megabyte = 1024 * 1024;
$node->stop;
$node->start;
my $worker = q(SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm index rebuild worker');
$node->poll_query_until('postgres', "SELECT EXISTS ($worker)") or die 'no worker';
$worker = $node->safe_psql('postgres', $worker);
NvmTest::wait_stopped($worker);
my $full = $node->safe_psql('postgres', $used);
$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP ON) v; SELECT pg_stat_force_next_flush()');
cmp_ok($full - $node->safe_psql('postgres', $used), '<', $megabyte,
	'VACUUM leaves the values of dead rows to whoever rebuilds an index');
cmp_ok($node->safe_psql('postgres', q(SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'v')),
	'>=', 200, 'and tells the statistics of them');
NvmTest::continue_process($worker);
ok($node->poll_query_until('postgres', "SELECT state = 'ready' FROM nvm.index_rebuilds WHERE index = 'v_id'::regclass"),
	'the index is rebuilt');
# their cells are free once a later transaction has ended
$node->safe_psql('postgres', 'SELECT txid_current()') foreach 1, 2;
$node->safe_psql('postgres', 'VACUUM v');
cmp_ok($full - $node->safe_psql('postgres', $used), '>', 18 * $megabyte, 'the next VACUUM gives them back');
is($node->safe_psql('postgres', q(SELECT * FROM nvm.check('v', true))), '', 'the check finds nothing');

$node->stop;
done_testing();

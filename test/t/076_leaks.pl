# Copyright (c) 2026, pg_nvm contributors

# Thousands of transactions of each kind leave nothing behind: no extents or
# large values in the pool, no shared memory, no private memory of the backend
# that ran them, no temporary storages.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $times = NvmTest::is_long() ? 10_000 : 500;
my $limit_kb = 3000;

my $node = NvmTest->new('leaks');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
autovacuum = off
fsync = off
nvm.horizon_naptime = 20ms
CONF
$node->start;
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
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

for my $i (0 .. $#kinds)
{
	$node->safe_psql('postgres', <<SQL);
CREATE PROCEDURE k$i(n int) LANGUAGE plpgsql AS
\$p\$DECLARE r record;
BEGIN
	SET LOCAL client_min_messages = error;
	FOR i IN 1 .. n LOOP
		$kinds[$i][1];
		COMMIT;
	END LOOP;
END\$p\$;
SQL
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

foreach my $i (0 .. $#kinds)
{
	my $name = $kinds[$i][0];
	my $session = $node->session("SET client_min_messages = warning");
	my $anon = sub { return slurp_file("/proc/$session->{pid}/status") =~ /^RssAnon:\s+(\d+) kB/m ? $1 : die; };

	# the first ones fill caches, and what tables need while their rows change
	$session->sql("CALL k$i(200)");
	$session->sql("CALL k$i(100)");
	settle();
	my ($memory, $pool, $counts) = ($anon->(), used(), counts());
	$session->sql("CALL k$i($times)");
	my $more = $anon->() - $memory;
	settle();
	$session->sql("CALL k$i(10)");
	settle();
	cmp_ok($more, '<', $limit_kb, "$name, $times times: $more kB more of private memory");
	cmp_ok(used() - $pool, '<=', 2 * 1024 * 1024, "$name: " . (used() - $pool) . ' bytes more of the pool');
	is(counts(), $counts, "$name: $counts");
	$session->sql('DISCARD ALL');
	$session->drop;
}
$node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM nvm.relations});
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations'), '2', 'two storages in the end');
$node->safe_psql('postgres', 'DELETE FROM l');
settle();
settle();
is($node->safe_psql('postgres', q{SELECT large_values FROM nvm.relations WHERE relation = 'l'::regclass}), '0', 'no large value is left');
$node->check_clean('in the end');

# sessions: commit slots and their memory are used again
my $slots = $node->safe_psql('postgres', 'SELECT slots_used FROM nvm.activity');
$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id = 1') foreach 1 .. ($times / 20);
is($node->safe_psql('postgres', 'SELECT slots_used FROM nvm.activity'), $slots, 'sessions use the commit slots of those before');
$node->stop;

done_testing();

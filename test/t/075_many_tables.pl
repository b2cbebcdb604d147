# Copyright (c) 2026, pg_nvm contributors

# Thousands of tables and a thousand partitions in one database: created,
# filled, queried all at once, found again after a crash, dropped; what each
# costs in the pool; nothing of them is left.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $tables     = NvmTest::is_long() ? 5000 : 500;
my $partitions = NvmTest::is_long() ? 1000 : 200;

my $node = NvmTest->new('many');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
autovacuum = off
fsync = off
max_locks_per_transaction = 256
max_wal_size = 4GB
CONF
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');

sub timed
{
	my ($name, $sql) = @_;
	my $start = time;
	my $result = $node->safe_psql('postgres', $sql);

	note(sprintf('%s: %.1f s', $name, time - $start));
	return $result;
}

my $used0 = $node->safe_psql('postgres', 'SELECT used FROM nvm.pool');

# by procedures that commit now and then, as nobody locks that many at once
$node->safe_psql('postgres', <<SQL);
CREATE PROCEDURE make(prefix text, n int, am name) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN 1 .. n LOOP
		EXECUTE format('CREATE TABLE %I (id int, t text) USING %I', prefix || i, am);
		IF i % 100 = 0 THEN COMMIT; END IF;
	END LOOP;
END\$\$;
CREATE PROCEDURE fill(prefix text, n int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN 1 .. n LOOP
		EXECUTE format('INSERT INTO %I SELECT j, \$1 || j FROM generate_series(1, 3) j', prefix || i) USING prefix || i;
		IF i % 100 = 0 THEN COMMIT; END IF;
	END LOOP;
END\$\$;
CREATE PROCEDURE remove(prefix text, n int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN 1 .. n LOOP
		EXECUTE format('DROP TABLE %I', prefix || i);
		IF i % 100 = 0 THEN COMMIT; END IF;
	END LOOP;
END\$\$;
CREATE FUNCTION total(prefix text, n int, OUT rows bigint, OUT digest text) LANGUAGE plpgsql AS
\$\$DECLARE r record;
BEGIN
	rows := 0; digest := '';
	FOR i IN 1 .. n LOOP
		EXECUTE format('SELECT count(*) AS n, md5(string_agg(id || t, \$1 ORDER BY id)) AS d FROM %I', prefix || i) INTO r USING ',';
		rows := rows + r.n; digest := md5(digest || r.d);
	END LOOP;
END\$\$;
SQL

timed("create $tables", "CALL make('n', $tables, 'nvm')");
my $empty = $node->safe_psql('postgres', 'SELECT used FROM nvm.pool');
my $per_empty = ($empty - $used0) / $tables;
cmp_ok($per_empty, '<', 1024, sprintf('an empty table takes %d bytes of the pool', $per_empty));
timed('fill', "CALL fill('n', $tables)");
my $per_table = ($node->safe_psql('postgres', 'SELECT used FROM nvm.pool') - $empty) / $tables;
cmp_ok($per_table, '<=', 65536, sprintf('a table with a row takes %d bytes', $per_table));
my $total = timed('read each', "SELECT * FROM total('n', $tables)");
is((split /\|/, $total)[0], 3 * $tables, 'all rows are there');

# ---- partitions ----

$node->safe_psql('postgres', <<SQL);
CREATE TABLE p (id int, t text) PARTITION BY RANGE (id);
DO \$\$BEGIN
	FOR i IN 0 .. $partitions - 1 LOOP
		EXECUTE format('CREATE TABLE p%s PARTITION OF p FOR VALUES FROM (%s) TO (%s) USING nvm', i, i * 10, i * 10 + 10);
	END LOOP;
END\$\$;
SQL
timed('insert into partitions', "INSERT INTO p SELECT i, 'row ' || i FROM generate_series(0, $partitions * 10 - 1) i");
is(timed('all partitions', 'SELECT count(*), sum(id) FROM p'),
	join('|', $partitions * 10, $partitions * 10 * ($partitions * 10 - 1) / 2), 'a query over all partitions');
is($node->safe_psql('postgres', 'SET max_parallel_workers_per_gather = 4; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SELECT count(*) FROM p'),
	$partitions * 10, 'by parallel workers');
timed('update of all, moving each', "UPDATE p SET id = (id + 10) % ($partitions * 10)");
is($node->safe_psql('postgres', "SELECT count(DISTINCT id), count(DISTINCT tableoid), bool_and(tableoid = ('p' || id / 10)::regclass) FROM p"),
	join('|', $partitions * 10, $partitions, 't'), 'each row is in its partition');
timed('index on all', 'CREATE INDEX ON p (id)');
is($node->safe_psql('postgres', 'SELECT t FROM p WHERE id = 15'), 'row 5', 'by index');

# ---- crash ----

my $all = $node->safe_psql('postgres', 'SELECT count(*), sum(id), md5(string_agg(t, $$,$$ ORDER BY id)) FROM p');
my $session = $node->session('BEGIN', "UPDATE p SET t = 'lost'", "CALL make('lost', 50, 'nvm')", "INSERT INTO lost1 VALUES (1)");
$node->crash;
$session->drop;
$node->start;
my ($us) = split /\|/, $node->safe_psql('postgres', 'SELECT open_us + recovery_us + resolve_us FROM nvm.pool, nvm.recovery');
note("our share of the restart: $us us");
cmp_ok($us, '<', 500_000, 'the restart does not wait for tables');
is($node->safe_psql('postgres', "SELECT * FROM total('n', $tables)"), $total, 'tables after a crash');
is($node->safe_psql('postgres', 'SELECT count(*), sum(id), md5(string_agg(t, $$,$$ ORDER BY id)) FROM p'), $all, 'partitions after a crash');
$node->poll_query_until('postgres', 'SELECT gaps = 0 FROM nvm.recovery');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.check_pool()'), '0', 'nvm.check_pool() finds nothing');

# ---- gone ----

timed('drop all', "CALL remove('n', $tables)");
timed('drop the partitions', 'DROP TABLE p');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations'), '0', 'no storage is left');
my $left = $node->safe_psql('postgres', 'SELECT used FROM nvm.pool') - $used0;
cmp_ok($left, '<=', 128 * ($tables + $partitions + 100) + 65536, "$left bytes of the directory are left");

# ids are used again: the directory does not grow
foreach my $try (1 .. 3)
{
	timed("again $try", "CALL make('n', $tables, 'nvm'); CALL remove('n', $tables)");
}
is($node->safe_psql('postgres', 'SELECT used FROM nvm.pool') - $used0, $left, 'nothing more after three times');
$node->check_clean('in the end');
$node->stop;

done_testing();

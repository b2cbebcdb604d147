# Copyright (c) 2026, pg_nvm contributors

# Index-only scans that do not look at rows (storage/allvisible.c), where somebody
# or something comes in between: restarts, crashes, a loss of power that leaves
# index entries without rows, processes that end, prepared transactions, entries
# that a scan has read long before it follows them, and many writers at once,
# under whom an index-only scan and a sequential one of one snapshot must agree.
#
# Long form: two minutes of writers, here a few seconds.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $only = 'SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = on;';

my $node = NvmTest->start_new('index_only', simulate => 1, conf => <<CONF);
autovacuum = off
max_prepared_transactions = 5
wal_writer_delay = 10s
checkpoint_timeout = 1h
nvm.horizon_naptime = 10ms
CONF

my $looked = q{pg_stat_get_xact_blocks_fetched('t'::regclass)};
$node->safe_psql('postgres', <<SQL);
CREATE TABLE t (id int, k int, pad text) USING nvm;
CREATE INDEX t_id ON t USING nvm_btree (id);
SET nvm.default_index_method = btree;
CREATE INDEX t_k ON t USING btree (k);
RESET nvm.default_index_method;
-- what an index-only scan makes of the table, and at how many rows it looks
CREATE FUNCTION index_only(col text, OUT n bigint, OUT s bigint, OUT looked bigint) LANGUAGE plpgsql AS
\$\$BEGIN
	looked := $looked;
	EXECUTE format('SELECT count(*), sum(%I) FROM t WHERE %1\$I > -1', col) INTO n, s;
	looked := $looked - looked;
END\$\$ SET enable_seqscan = off SET enable_bitmapscan = off SET max_parallel_workers_per_gather = 0;
INSERT INTO t SELECT i, i, repeat('x', 50) FROM generate_series(1, 1000) i;
SQL
$node->safe_psql('postgres', $NvmTest::pass_time);

# by both indexes: rows, sum
sub only
{
	my ($s) = @_;
	my $sql = join '; ', map { "SELECT n, s FROM index_only('$_')" } 'id', 'k';
	return $s ? $s->sql($sql) : $node->safe_psql('postgres', $sql);
}

# until no row is looked at, or that has been tried often
sub looks
{
	my ($tries) = @_;
	my $n = 0;
	foreach (1 .. $tries)
	{
		$n = $node->safe_psql('postgres', q{SELECT sum(looked) FROM (SELECT (index_only(c)).looked FROM unnest('{id,k}'::text[]) c) s});
		last if $n == 0;
		$node->safe_psql('postgres', 'CALL pass_time(2)');
	}
	return $n;
}

sub truth
{
	my ($where) = @_;
	$where = $where ? "WHERE $where" : '';
	return join "\n", map { $node->safe_psql('postgres',
		"SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SELECT count(*), sum($_) FROM t $where") } 'id', 'k';
}

sub agrees
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(only(), truth(), "$name: as the sequential scan has it");
	$node->check_clean($name);
	return;
}

# ---- becoming warm, restarts ----

cmp_ok($node->safe_psql('postgres', q{SELECT looked FROM index_only('id')}), '>', 0, 'new rows are looked at');
is(looks(200), 0, 'after a while they are not, without VACUUM');
agrees('warm');
$node->restart;
cmp_ok($node->safe_psql('postgres', q{SELECT looked FROM index_only('id')}), '>', 0, 'after a restart they are');
is(looks(50), 0, 'and soon not any more');
$node->restart;
$node->safe_psql('postgres', 'CALL pass_time()');
$node->safe_psql('postgres', 'VACUUM t');
is(looks(1), 0, 'VACUUM alone sees to that, too');
$node->safe_psql('postgres', "UPDATE t SET pad = pad || 'y'");
agrees('all rows updated');
$node->crash;
$node->start;
cmp_ok(looks(3), '>', 0, 'after a crash rows are looked at before VACUUM has been there');
agrees('after a crash');
$node->safe_psql('postgres', 'VACUUM t');
is(looks(200), 0, 'and then not any more');

# ---- prepared transactions ----

$node->safe_psql('postgres', "BEGIN; DELETE FROM t WHERE id <= 10; PREPARE TRANSACTION 'del'");
my $before = only();
is($before, "1000|500500\n1000|500500", 'what a prepared transaction has deleted is there');
$node->restart;
is(only(), $before, 'and after a restart');
looks(3);
$node->safe_psql('postgres', "COMMIT PREPARED 'del'");
is(only(), "990|500445\n990|500445", 'until it commits');
$node->safe_psql('postgres', "BEGIN; DELETE FROM t WHERE id <= 20; INSERT INTO t VALUES (5000, 5000); PREPARE TRANSACTION 'back'");
looks(3);
$node->crash;
$node->start;
is(only(), "990|500445\n990|500445", 'after a crash with another one');
$node->safe_psql('postgres', "ROLLBACK PREPARED 'back'");
agrees('rolled back');
# the row that was inserted is in a block with others: the collector takes it back, VACUUM
# removes it, and then time has to pass
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die;
foreach (1 .. 2)
{
	$node->safe_psql('postgres', 'VACUUM t');
	$node->safe_psql('postgres', 'CALL pass_time()');
}
is(looks(200), 0, 'in the end no row is looked at');
agrees('in the end');

# ---- a row that goes on under another root; entries of what was taken back ----

$node->safe_psql('postgres', 'UPDATE t SET id = id + 10000 WHERE id BETWEEN 100 AND 110');
$node->safe_psql('postgres', 'BEGIN; UPDATE t SET k = k + 10000 WHERE id BETWEEN 200 AND 300; INSERT INTO t SELECT i, i FROM generate_series(7000, 7500) i; ROLLBACK');
looks(3);
agrees('updated keys, and insertions that were taken back');
my $killed = $node->session('BEGIN', 'DELETE FROM t WHERE id > 900', 'INSERT INTO t SELECT i, i FROM generate_series(8000, 8100) i');
looks(2);
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $killed->pid . ')');
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $killed->pid);
$killed->drop;
looks(3);
agrees('a process that was terminated');
$killed = $node->session('BEGIN', 'DELETE FROM t WHERE id > 900', 'INSERT INTO t SELECT i, i FROM generate_series(8000, 8100) i');
looks(2);
kill 'KILL', $killed->pid;
$node->wait_crashed;
$node->start;
eval { $killed->drop; };
agrees('a process that was killed');
$node->safe_psql('postgres', 'VACUUM t');
looks(50);
agrees('and vacuumed');

# ---- a row that is being written while others look at its block ----

my $writer = $node->session('BEGIN');
$writer->stop_at('insert-before-begin', 'INSERT INTO t VALUES (6000, 6000)');
$node->safe_psql('postgres', 'VACUUM t');
looks(3);
$writer->go_on;
$writer->sql('SELECT 1');
agrees('a row in progress');
looks(3);
agrees('and again');
$writer->drop;

# ---- entries that were read before VACUUM removed them ----

$node->safe_psql('postgres', 'DELETE FROM t WHERE id BETWEEN 500 AND 520');
# (an entry of a built-in index is not removed while a scan has its page pinned)
my $slow = $node->session($only, 'BEGIN', 'DECLARE a CURSOR FOR SELECT id FROM t WHERE id BETWEEN 400 AND 600 ORDER BY id');
is($slow->sql('FETCH a'), 400, 'a cursor');
foreach (1 .. 3)
{
	$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP ON) t');
	$node->safe_psql('postgres', 'CALL pass_time(5)');
	looks(3);
}
is(join(' ', grep { $_ >= 495 && $_ <= 525 } split /\n/, $slow->sql('FETCH ALL a')), '495 496 497 498 499 521 522 523 524 525',
	'it does not find rows that are gone');
$slow->drop;
agrees('after that');

# ---- a loss of power keeps entries of rows that never were ----

$node->safe_psql('postgres', 'VACUUM t');
$node->safe_psql('postgres', 'CHECKPOINT');
my $lost = $node->session('BEGIN', 'INSERT INTO t SELECT i, i % 400 + 300, NULL FROM generate_series(9001, 9400) i');
# entries of the built-in index reach the disk
$node->safe_psql('postgres', 'CHECKPOINT');
$node->power_failure(seed => 1, mode => 'durable');
eval { $lost->drop; };
$node->start;
agrees('a loss of power');
looks(3);
agrees('and seen');
foreach (1 .. 2)
{
	$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP ON) t');
	agrees('and vacuumed');
	$node->safe_psql('postgres', 'CALL pass_time(5)');
}
is(looks(200), 0, 'in the end rows are not looked at');
agrees('after a loss of power');

# ---- many writers ----

my $seconds = NvmTest::is_long() ? 120 : 8;
my $dir     = $node->basedir;
$node->safe_psql('postgres', <<SQL);
CREATE TABLE w (id int, k int, v int, pad text) USING nvm;
INSERT INTO w SELECT i, i, 0, repeat('x', 40) FROM generate_series(1, 6000) i;
CREATE INDEX w_id ON w USING nvm_btree (id);
SET nvm.default_index_method = btree;
CREATE INDEX w_k ON w USING btree (k);
RESET nvm.default_index_method;
CREATE TABLE figures (looked bigint, seen bigint);
-- reads the table in one snapshot by both indexes and without them
CREATE FUNCTION compare() RETURNS void LANGUAGE plpgsql AS
\$\$DECLARE
	low int := random() * 5000;
	high int := low + random() * 3000;
	looked bigint;
	a record;
	b record;
	c record;
BEGIN
	PERFORM set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true);
	looked := pg_stat_get_xact_blocks_fetched('w'::regclass);
	SELECT count(*), sum(id) INTO a FROM w WHERE id BETWEEN low AND high;
	SELECT count(*), sum(k) INTO b FROM w WHERE k BETWEEN low AND high;
	looked := pg_stat_get_xact_blocks_fetched('w'::regclass) - looked;
	IF random() < 0.3 THEN
		PERFORM pg_sleep(random() * 0.05);
	END IF;
	PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_seqscan', 'on', true);
	SELECT count(*), sum(id) INTO c FROM w WHERE id BETWEEN low AND high;
	IF a IS DISTINCT FROM c THEN
		RAISE EXCEPTION 'index-only scan by id: % instead of %', a, c;
	END IF;
	SELECT count(*), sum(k) INTO c FROM w WHERE k BETWEEN low AND high;
	IF b IS DISTINCT FROM c THEN
		RAISE EXCEPTION 'index-only scan by k: % instead of %', b, c;
	END IF;
	PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true);
	IF (SELECT count(*) FROM w WHERE k BETWEEN low AND high) IS DISTINCT FROM c.count THEN
		RAISE EXCEPTION 'index-only scan again, by k: not %', c;
	END IF;
	PERFORM set_config('nvm_test.looked', looked::text, false), set_config('nvm_test.seen', (a.count + b.count)::text, false);
END\$\$;
SQL
append_to_file("$dir/read.sql", <<'SQL');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT compare();
COMMIT;
INSERT INTO figures VALUES (current_setting('nvm_test.looked')::bigint, current_setting('nvm_test.seen')::bigint);
SQL
# most of it happens in a tenth of the table, which wanders
append_to_file("$dir/write.sql", <<'SQL');
\set at random(1, 600) + random(0, 9) * 600
\set end random(1, 4)
\set what random(1, 6)
\set n random(1, 5)
BEGIN;
SAVEPOINT a;
\if :what = 1
DELETE FROM w WHERE id BETWEEN :at AND :at + :n;
\elif :what = 2
INSERT INTO w SELECT i, i, 0, 'new' FROM generate_series(:at, :at + :n) i WHERE (SELECT count(*) FROM w) < 7000;
\elif :what = 3
UPDATE w SET v = v + 1 WHERE id BETWEEN :at AND :at + :n;
\elif :what = 4
UPDATE w SET k = k + 1 WHERE id BETWEEN :at AND :at + :n;
\elif :what = 5
UPDATE w SET id = k WHERE k BETWEEN :at AND :at + :n;
\else
SELECT id FROM w WHERE id BETWEEN :at AND :at + :n FOR UPDATE;
\endif
\if :end = 1
ROLLBACK TO a;
\endif
\if :end = 2
ROLLBACK;
\else
COMMIT;
\endif
\sleep 5 ms
SQL
append_to_file("$dir/vacuum.sql", <<'SQL');
VACUUM (INDEX_CLEANUP ON) w;
\sleep 100 ms
DO $$BEGIN ASSERT NOT EXISTS (SELECT FROM nvm.check('w')), (SELECT string_agg(c::text, '; ') FROM nvm.check('w') c); END$$;
SQL
my @run = (
	[ 'readers', 2, 'read' ],
	[ 'writers', 2, 'write' ],
	[ 'VACUUM',  1, 'vacuum' ]);
my @started;
foreach my $r (@run)
{
	my ($out, $err) = ('', '');
	my $h = IPC::Run::start([ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', $r->[1], '-T', $seconds,
		'--max-tries=100', '-f', "$dir/$r->[2].sql", 'postgres' ], '>', \$out, '2>', \$err);
	push @started, [ $r->[0], $h, \$out, \$err ];
}
foreach my $s (@started)
{
	my ($name, $h, $out, $err) = @$s;
	$h->finish;
	is($h->result(0), 0, "$name: no error") or diag($$err);
	unlike($$err, qr/ERROR|aborted/, "$name: not a word of one");
}
my ($l, $seen) = split /\|/, $node->safe_psql('postgres', 'SELECT sum(looked), sum(seen) FROM figures');
note("$seen rows, $l of them looked at");
cmp_ok($l, '<', $seen * 0.9, 'some rows need not be looked at under that, too');
$node->check_clean('after the writers');

# ---- a cursor that stands on a row that it has not looked at, whose root is a stub

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE c (id int PRIMARY KEY, v int) USING nvm WITH (fillfactor = 50);
INSERT INTO c SELECT i, 0 FROM generate_series(1, 500) i;
UPDATE c SET v = v + 1; CALL pass_time(); UPDATE c SET v = v + 1; CALL pass_time(); VACUUM c; CALL pass_time(); VACUUM c;
CREATE FUNCTION by_cursor(change text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE n bigint := 0; m bigint; r record; c CURSOR FOR SELECT id FROM c WHERE id BETWEEN 1 AND 500;
BEGIN
	c := 'c';					-- since 16 it is not by itself
	OPEN c;
	LOOP
		FETCH c INTO r;
		EXIT WHEN NOT FOUND;
		EXECUTE change || ' WHERE CURRENT OF c';
		GET DIAGNOSTICS m = ROW_COUNT;
		n := n + m;
	END LOOP;
	RETURN n;
END $$ SET enable_seqscan = off SET enable_bitmapscan = off;
SQL
is($node->safe_psql('postgres', q{SELECT by_cursor('UPDATE c SET v = v + 1'); SELECT count(*), sum(v) FROM c; SELECT by_cursor('DELETE FROM c'); SELECT count(*) FROM c}),
	"500\n500|1500\n500\n0", 'WHERE CURRENT OF reaches the rows of an index-only scan');
$node->safe_psql('postgres', $only . 'SELECT compare()');
$node->stop;

done_testing();

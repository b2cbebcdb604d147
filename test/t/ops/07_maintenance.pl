# Copyright (c) 2026, pg_nvm contributors

# VACUUM and ANALYZE with every option, autovacuum's settings of a table, the
# counters, progress views and EXPLAIN.  Commands are held in their middle by a
# function in an index or a check that waits for an advisory lock.
#
# Long form: with 300,000 rows more that are deleted.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('maintenance', conf => <<CONF, sql => <<SQL);
autovacuum = off
autovacuum_naptime = 1s
max_parallel_maintenance_workers = 2
min_parallel_index_scan_size = 0
maintenance_work_mem = 64MB
CONF
CREATE FUNCTION held(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS
	'BEGIN IF \$1 = 777 THEN PERFORM pg_advisory_xact_lock(1); END IF; RETURN \$1; END';
SQL

sub table
{
	my ($name, $rows) = @_;
	$node->safe_psql('postgres', <<SQL);
DROP TABLE IF EXISTS $name;
CREATE TABLE $name (id int PRIMARY KEY, k int, s text) USING nvm WITH (autovacuum_enabled = off);
CREATE INDEX ON $name (k);
SET nvm.default_index_method = btree;
CREATE INDEX ON $name USING btree (k, id);
RESET nvm.default_index_method;
CREATE INDEX ON $name USING hash (s);
CREATE INDEX ON $name USING gin (to_tsvector('simple', s));
CREATE INDEX ON $name USING gist (int4range(id, id + 1));
CREATE INDEX ON $name USING brin (id);
INSERT INTO $name SELECT i, i % 100, 'word' || i FROM generate_series(1, $rows) i;
SQL
	return;
}

# what the session has counted is there when its client has the answer, and not
# only when the backend has ended
my $flush = 'SELECT pg_stat_force_next_flush()';

sub verbose
{
	my ($sql) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);
	is($ret, 0, $sql);
	return $err;
}

# What every index finds is what the table has.
sub sound
{
	my ($name, $expected, $what) = @_;
	my $count = $node->safe_psql('postgres', <<SQL);
SET enable_seqscan = off;
SELECT count(*) FROM $name WHERE id > 0;
SELECT count(*) FROM $name WHERE k >= 0;
SELECT count(*) FROM $name WHERE int4range(id, id + 1) && '[0,10000000)'::int4range;
SELECT count(*) FROM $name a WHERE EXISTS (SELECT FROM $name b WHERE b.s = a.s AND b.id = a.id);
SET enable_seqscan = on;
SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
SELECT count(*) FROM $name;
SQL
	is($count, join("\n", ($expected) x 5), "$what: every index finds the rows");
	$node->check_clean($what);
	return;
}

# ---- options of VACUUM
table('v', 6000);
$node->safe_psql('postgres', 'DELETE FROM v WHERE id % 2 = 0');
my $out = verbose('VACUUM (VERBOSE, INDEX_CLEANUP off) v');
like($out, qr/index scan bypassed: \d+ pages from table .* have 3000 dead row roots/, 'INDEX_CLEANUP off leaves dead roots');
sound('v', 3000, 'INDEX_CLEANUP off');
$out = verbose('VACUUM (VERBOSE, PARALLEL 2, INDEX_CLEANUP on) v');
like($out, qr/launched \d parallel vacuum workers? for index vacuuming \(planned: 2\)/, 'PARALLEL starts workers');
like($out, qr/index scan needed: \d+ pages from table .* had 3000 dead row roots removed/, 'INDEX_CLEANUP on removes dead roots');
like($out, qr/index "v_k_idx": pages: \d+ in total/, 'and reports the indexes');
like($out, qr/WAL usage: [1-9]\d* records/, 'and the WAL of the indexes');
sound('v', 3000, 'PARALLEL 2');
$node->safe_psql('postgres', 'DELETE FROM v WHERE id % 3 = 0');
$out = verbose('VACUUM (VERBOSE, PARALLEL 0) v');
unlike($out, qr/parallel vacuum worker/, 'PARALLEL 0 starts none');
like($out, qr/1000 dead row roots removed/, 'PARALLEL 0');
sound('v', 2000, 'PARALLEL 0');
$node->safe_psql('postgres', 'DELETE FROM v WHERE id = 1');
like(verbose('VACUUM (VERBOSE, INDEX_CLEANUP auto) v'), qr/index scan (bypassed|needed)/, 'INDEX_CLEANUP auto decides');
like(verbose('VACUUM (VERBOSE, INDEX_CLEANUP on) v'), qr/dead row root/, 'INDEX_CLEANUP on after it');
$node->safe_psql('postgres', 'INSERT INTO v SELECT i, i % 100, \'new\' || i FROM generate_series(10001, 14000) i');
sound('v', 5999, 'rows in the place of the dead');
# several passes over the indexes, each in parallel
$node->safe_psql('postgres', 'DELETE FROM v WHERE id > 10000');
$node->safe_psql('postgres', "INSERT INTO v SELECT i, 1, repeat('x', 30) || i FROM generate_series(100001, 400000) i; DELETE FROM v WHERE id > 100000") if NvmTest::is_long();
$out = verbose("SET maintenance_work_mem = '1MB'; VACUUM (VERBOSE, PARALLEL 2) v");
like($out, qr/launched \d parallel/, 'little memory');
sound('v', 1999, 'little memory');
foreach my $options ('FREEZE', 'FREEZE, DISABLE_PAGE_SKIPPING', 'TRUNCATE on', 'TRUNCATE off', 'SKIP_LOCKED', 'PROCESS_TOAST off',
	'ANALYZE', 'VERBOSE, ANALYZE', 'FULL', 'FULL, ANALYZE, VERBOSE', 'FULL, FREEZE')
{
	verbose("VACUUM ($options) v");
}
sound('v', 1999, 'all options');
like(verbose('VACUUM (FULL, VERBOSE) v'), qr/vacuuming "public\.v".*found 0 removable, 1999 nonremovable row versions/s, 'VACUUM FULL counts rows');
like(verbose('ANALYZE (VERBOSE) v'), qr/scanned \d+ of \d+ pages, containing 1999 live rows and 0 dead rows; 1999 rows in sample/, 'ANALYZE VERBOSE');
verbose('ANALYZE (SKIP_LOCKED) v (id, k)');
verbose('VACUUM (PARALLEL 2, VERBOSE)');
# a locked table
my $locker = $node->session('BEGIN', 'LOCK TABLE v IN SHARE UPDATE EXCLUSIVE MODE');
like(verbose('VACUUM (SKIP_LOCKED) v'), qr/skipping vacuum of "v" --- lock not available/, 'SKIP_LOCKED skips it');
$locker->sql('COMMIT');
# a temporary table is not vacuumed in parallel
like(verbose("CREATE TEMP TABLE tmp (a int PRIMARY KEY, b int UNIQUE) USING nvm; INSERT INTO tmp SELECT i, i FROM generate_series(1, 500) i; DELETE FROM tmp; VACUUM (PARALLEL 2) tmp"),
	qr/disabling parallel option of vacuum on "tmp"/, 'PARALLEL of a temporary table');
# parallel vacuum, then a crash: index entries and rows agree
$node->safe_psql('postgres', 'DELETE FROM v WHERE id % 5 = 0; VACUUM (PARALLEL 2, INDEX_CLEANUP on) v; INSERT INTO v SELECT i, 0, \'again\' FROM generate_series(20001, 20500) i');
my $now = $node->safe_psql('postgres', 'SELECT count(*) FROM v');
$node->crash;
$node->start;
sound('v', $now, 'a crash after a parallel VACUUM');
$locker->drop;

# ---- reloptions: accepted, kept, and what autovacuum goes by
$node->safe_psql('postgres', <<SQL);
CREATE TABLE o (a int, b int) USING nvm WITH (fillfactor = 50, autovacuum_enabled = on, autovacuum_vacuum_threshold = 100, autovacuum_vacuum_scale_factor = 0.5,
	autovacuum_analyze_threshold = 7, autovacuum_vacuum_insert_threshold = 100, autovacuum_vacuum_insert_scale_factor = 0.0, autovacuum_vacuum_cost_delay = 0,
	autovacuum_freeze_max_age = 1000000, autovacuum_freeze_min_age = 0, log_autovacuum_min_duration = 0, vacuum_index_cleanup = off, vacuum_truncate = off, parallel_workers = 2, user_catalog_table = false);
ALTER TABLE o SET (autovacuum_vacuum_threshold = 200), RESET (autovacuum_vacuum_scale_factor);
SQL
like($node->safe_psql('postgres', "SELECT reloptions FROM pg_class WHERE relname = 'o'"), qr/fillfactor=50.*autovacuum_vacuum_threshold=200/, 'reloptions are kept');
$node->fails_with('ALTER TABLE o SET (fillfactor = 1000)', qr/out of bounds/, 'and checked');
$node->fails_with('ALTER TABLE o SET (no_such = 1)', qr/unrecognized parameter/, 'and no others are taken');
$node->safe_psql('postgres', 'CREATE TABLE never (a int) USING nvm WITH (autovacuum_enabled = off); INSERT INTO never SELECT generate_series(1, 3000); DELETE FROM never; INSERT INTO o SELECT i, i FROM generate_series(1, 1000) i; ' . $flush);
$node->safe_psql('postgres', 'ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres', "SELECT autovacuum_count > 0 AND autoanalyze_count > 0 FROM pg_stat_user_tables WHERE relname = 'o'"), 'inserts alone bring autovacuum, as insert_threshold says');
is($node->safe_psql('postgres', "SELECT autovacuum_count, last_autovacuum IS NULL, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'never'"), '0|t|3000', 'autovacuum_enabled = off keeps it away');
# the statistics come before the log
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
usleep(10_000) while slurp_file($node->logfile) !~ /automatic vacuum of table "postgres\.public\.o"/ && time() < $end;
like(slurp_file($node->logfile), qr/automatic vacuum of table "postgres\.public\.o"/, 'log_autovacuum_min_duration');
$node->safe_psql('postgres', 'ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf()');
# which lets a worker go on that is at work
$node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'))
  or die 'autovacuum does not end';

# ---- counters
$node->safe_psql('postgres', <<SQL);
CREATE TABLE c (id int PRIMARY KEY, k int, v int) USING nvm WITH (autovacuum_enabled = off);
CREATE INDEX ON c (k);
INSERT INTO c SELECT i, i, 0 FROM generate_series(1, 200) i;
UPDATE c SET v = 1 WHERE id <= 50;
UPDATE c SET k = -k WHERE id > 190;
DELETE FROM c WHERE id BETWEEN 100 AND 109;
BEGIN; INSERT INTO c VALUES (1000, 1, 1); ROLLBACK;
SET enable_seqscan = off;
SELECT v FROM c WHERE id = 1;
SET enable_seqscan = on; SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
SELECT count(*) FROM c;
$flush;
SQL
is($node->safe_psql('postgres', <<SQL), '201|60|50|10|190|t|t|t|t|t', 'pg_stat_user_tables');
SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, n_live_tup, n_dead_tup >= 70, seq_scan > 0, seq_tup_read >= 190, idx_scan > 0, idx_tup_fetch > 0
FROM pg_stat_user_tables WHERE relname = 'c'
SQL
$node->safe_psql('postgres', 'VACUUM c; ANALYZE c');
is($node->safe_psql('postgres', <<SQL), '190|0|1|1|t|t|0|0', 'and after VACUUM and ANALYZE');
SELECT n_live_tup, n_dead_tup, vacuum_count, analyze_count, last_vacuum IS NOT NULL, last_analyze IS NOT NULL, n_mod_since_analyze, n_ins_since_vacuum
FROM pg_stat_user_tables WHERE relname = 'c'
SQL
is($node->safe_psql('postgres', "SELECT idx_scan > 0, idx_tup_read > 0, idx_tup_fetch > 0 FROM pg_stat_user_indexes WHERE indexrelname = 'c_pkey'"), 't|t|t', 'pg_stat_user_indexes');
is($node->safe_psql('postgres', "SELECT n_tup_ins FROM pg_stat_xact_user_tables WHERE relname = 'c'; BEGIN; INSERT INTO c VALUES (2000, 1, 1); SELECT n_tup_ins FROM pg_stat_xact_user_tables WHERE relname = 'c'; ROLLBACK; "
	  # not when the session ends, which may be after the reset
	  . 'DO $$BEGIN PERFORM pg_stat_force_next_flush(); END$$'), "0\n1", 'pg_stat_xact_user_tables');
is($node->safe_psql('postgres', "SELECT pg_stat_reset_single_table_counters('c'::regclass); SELECT n_tup_ins FROM pg_stat_user_tables WHERE relname = 'c'"), "\n0", 'and can be reset');

# ---- progress, in the middle of a command that waits
my $gate = $node->session('SELECT pg_advisory_lock(1)');

sub progress
{
	my ($command, $query, $expected, $name) = @_;
	my $session = $node->session;
	my $pid = $session->pid;

	$session->send($command);
	$node->poll_query_until('postgres', "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $pid AND locktype = 'advisory' AND NOT granted)")
	  or die "$command did not wait";
	is($node->safe_psql('postgres', $query), $expected, $name);
	$gate->sql('SELECT pg_advisory_unlock(1)');
	$node->poll_query_until('postgres', "SELECT state = 'idle' FROM pg_stat_activity WHERE pid = $pid");
	$session->drop;
	$gate->sql('SELECT pg_advisory_lock(1)');
	return;
}

table('p', 3000);
$node->safe_psql('postgres', 'DELETE FROM p WHERE id < 500');
progress('CREATE INDEX p_held ON p (held(id))',
	"SELECT command, phase, relid::regclass, blocks_total > 10, blocks_done > 0, blocks_done < blocks_total FROM pg_stat_progress_create_index",
	'CREATE INDEX|building index: scanning table|p|t|t|t', 'pg_stat_progress_create_index');
progress('ANALYZE p',
	"SELECT relid::regclass, phase, sample_blks_total > 10, sample_blks_scanned = sample_blks_total FROM pg_stat_progress_analyze",
	'p|computing statistics|t|t', 'pg_stat_progress_analyze');
progress('REINDEX INDEX p_held', "SELECT command, phase FROM pg_stat_progress_create_index", 'REINDEX|building index: scanning table', 'pg_stat_progress_create_index of REINDEX');
progress('VACUUM FULL p', "SELECT command, phase, heap_tuples_scanned, heap_tuples_written, heap_blks_total > 10 FROM pg_stat_progress_cluster",
	'VACUUM FULL|rebuilding index|2501|2501|t', 'pg_stat_progress_cluster');
progress('CLUSTER p USING p_pkey', "SELECT command, phase, heap_tuples_written FROM pg_stat_progress_cluster", 'CLUSTER|rebuilding index|2501', 'pg_stat_progress_cluster of CLUSTER');
$node->safe_psql('postgres', 'DROP INDEX p_held; CREATE TABLE q (a int CHECK (held(a) > 0)) USING nvm');
my $file = PostgreSQL::Test::Utils::tempdir() . '/rows';
open(my $fh, '>', $file) or die $!;
print $fh "$_\n" foreach reverse 1 .. 1800;
close $fh;
chmod 0644, $file;
# rows are counted in batches of 1000
progress("COPY q FROM '$file'", "SELECT relid::regclass, command, type, bytes_total > 0, tuples_processed > 0 FROM pg_stat_progress_copy", 'q|COPY FROM|FILE|t|t', 'pg_stat_progress_copy');
$gate->drop;
sound('p', 2501, 'after all that');

# ---- EXPLAIN
# The first to look at a row of a catalog after the checkpoint may log the page, for a hint bit.
sub explained
{
	my ($sql, $options) = @_;
	$node->safe_psql('postgres', "BEGIN; $sql; ROLLBACK");
	return $node->safe_psql('postgres', "EXPLAIN (ANALYZE, BUFFERS, WAL, COSTS off, TIMING off, SUMMARY off" . ($options // '') . ") $sql");
}
$node->safe_psql('postgres', "CREATE TABLE e (a int, b text) USING nvm; CREATE TABLE ei (a int PRIMARY KEY) USING nvm; CREATE TABLE eb (a int) USING nvm; SET nvm.default_index_method = btree; CREATE UNIQUE INDEX eb_a ON eb USING btree (a); CHECKPOINT");
like(explained("INSERT INTO e SELECT i, 'x' FROM generate_series(1, 5000) i"), qr/Insert on e \(actual rows=0(?:\.00)? loops=1\)/, 'EXPLAIN of an INSERT');
unlike(explained("INSERT INTO e SELECT i, 'x' FROM generate_series(1, 5000) i"), qr/WAL: records/, 'which writes no WAL');
unlike(explained("UPDATE e SET b = 'y' WHERE a < 100"), qr/WAL: records/, 'nor does an UPDATE');
unlike(explained("DELETE FROM e WHERE a > 4000"), qr/WAL: records/, 'nor a DELETE');
unlike(explained("INSERT INTO ei SELECT generate_series(1, 100)"), qr/WAL: records/, 'nor an index in the pool');
like(explained("INSERT INTO eb SELECT generate_series(1, 100)"), qr/WAL: records=\d+/, 'another index does');
like(explained('SELECT count(*) FROM e'), qr/Seq Scan on e \(actual rows=8000(?:\.00)? loops=1\)/, 'EXPLAIN of a scan');
like(explained('SELECT * FROM eb WHERE a = 5'), qr/Buffers: shared hit=\d+/, 'buffers are those of the index');
like(explained('SELECT * FROM ei WHERE a = 5'), qr/Index (?:Only )?Scan using ei_pkey on ei \(actual rows=1(?:\.00)? loops=1\)/, 'an index in the pool has none');
like(explained('SELECT * FROM e', ', SETTINGS, VERBOSE, FORMAT json'), qr/"Actual Rows": 8000/, 'EXPLAIN in JSON');
# ---- VACUUM is held at a place of our own, and the server ends there
my $vacuum = $node->session;
$node->safe_psql('postgres', 'DELETE FROM p WHERE id < 1000');
$vacuum->arm('vacuum-indexes-scanned');
$vacuum->send('VACUUM (PARALLEL 0) p');
$vacuum->wait_held('vacuum-indexes-scanned');
is($node->safe_psql('postgres', "SELECT relid::regclass, phase, heap_blks_total > 10, heap_blks_scanned = heap_blks_total, index_vacuum_count FROM pg_stat_progress_vacuum"),
	'p|vacuuming indexes|t|t|1', 'pg_stat_progress_vacuum');
$node->crash;
$vacuum->drop;
$node->start;
sound('p', 2001, 'a crash in the middle of VACUUM');
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# The tables of doc/ are true: each setting with its default, unit and
# when it takes effect; each view with its columns.  What monitoring may see, and of which
# database; drivers' ways of asking for it.

use strict;
use warnings;

use FindBin;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('settings', conf => 'autovacuum = off');
my $doc     = "$FindBin::RealBin/../../../doc";
my $readme  = slurp_file("$doc/settings.md");
my $of_views = slurp_file("$doc/monitoring.md");

# ---- settings
my %takes_effect = (internal => 'shown only', postmaster => 'restart', sighup => 'reload', superuser => 'at once, superusers', user => 'at once');
my %documented;
while ($readme =~ /^\| `(nvm\.\w+)` \| (?:`([^`|]*)`)? ?\| (\w*) ?\| ([^|]+?) \| [^|]{20,} \|$/mg)
{
	$documented{$1} = { default => $2 // '', unit => $3, effect => $4 };
}
my @settings = split /\n/, $node->safe_psql('postgres', <<SQL);
SELECT name, coalesce(boot_val, ''), coalesce(unit, ''), context FROM pg_settings WHERE name LIKE 'nvm.%' ORDER BY name
SQL
cmp_ok(scalar @settings, '>=', 11, 'there are settings');
my %known;
foreach my $setting (@settings)
{
	my ($name, $default, $unit, $context) = split /\|/, $setting, -1;
	my $entry = $documented{$name};

	$known{$name} = 1;
	ok($entry, "$name is in doc/settings.md") or next;
	my $same =
	    $entry->{default} eq $default ? 'true'
	  : $unit =~ /^(B|kB|MB)$/ ? "pg_size_bytes('$entry->{default}') = $default * pg_size_bytes('1$unit')"
	  : $unit ne ''            ? "'$entry->{default}'::interval = '$default $unit'::interval"
	  :                          "'$entry->{default}' = '$default'";
	is($node->safe_psql('postgres', "SELECT $same"), 't', "$name: default $entry->{default}");
	is($entry->{unit}, $unit, "$name: unit");
	is($entry->{effect}, $takes_effect{$context}, "$name: takes effect");
}
is(join(' ', grep { !$known{$_} } sort keys %documented), '', 'doc/settings.md has no setting that is not there');

# ---- views: those of doc/monitoring.md, with their columns, each readable by pg_monitor and by nobody else
my @views = split /\n/, $node->safe_psql('postgres', "SELECT viewname FROM pg_views WHERE schemaname = 'nvm' ORDER BY 1");
is_deeply([ sort $of_views =~ /^\| `nvm\.(\w+)` \| [^|]+ \|$/mg ], \@views, 'doc/monitoring.md lists the views');
foreach my $view (@views)
{
	my ($section) = $of_views =~ /^### nvm\.$view\n(.*?)^##/ms;
	my @columns = split /\n/, $node->safe_psql('postgres', "SELECT attname FROM pg_attribute WHERE attrelid = 'nvm.$view'::regclass AND attnum > 0 ORDER BY 1");
	my %named = map { $_ => 1 } map { /`(\w+)`/g } map { /^\| ([^|]+) \|/ } split /\n/, $section // '';

	is_deeply([ grep { !$named{$_} } @columns ], [], "each column of nvm.$view is in doc/monitoring.md");
}
$node->safe_psql('postgres', <<SQL);
CREATE ROLE watcher LOGIN IN ROLE pg_monitor;
CREATE ROLE ordinary LOGIN;
GRANT CREATE ON SCHEMA public TO ordinary;
SQL
foreach my $view (@views)
{
	is($node->safe_psql('postgres', "SET ROLE watcher; SELECT count(*) >= 0 FROM nvm.$view"), 't', "pg_monitor reads nvm.$view");
	$node->fails_with("SET ROLE ordinary; SELECT * FROM nvm.$view", qr/permission denied/, "nobody else reads nvm.$view");
}
is($node->safe_psql('postgres', <<SQL), "2", 'who may not look may use nvm tables');
SET ROLE ordinary;
CREATE TABLE own (id int PRIMARY KEY, s text) USING nvm;
INSERT INTO own VALUES (1, 'a'), (2, repeat('b', 100000));
SELECT count(*) FROM own;
SQL

# ---- nvm.default_index_method for an application that looks for btree, by role and by database
sub methods_of
{
	my ($table) = @_;
	return $node->safe_psql('postgres', "SELECT string_agg(amname || CASE WHEN EXISTS (SELECT FROM nvm.relations r WHERE r.relation = c.oid) THEN ' in the pool' ELSE '' END, ' ' ORDER BY c.relname) FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam WHERE indrelid = '$table'::regclass");
}
$node->safe_psql('postgres', 'ALTER ROLE ordinary SET nvm.default_index_method = \'btree\'; ALTER ROLE ordinary SET default_table_access_method = nvm');
$node->safe_psql('postgres', 'CREATE TABLE of_app (id serial PRIMARY KEY, a int UNIQUE); CREATE INDEX ON of_app (a, id); ALTER TABLE own SET ACCESS METHOD heap; ALTER TABLE own SET ACCESS METHOD nvm',
	extra_params => [ '-U', 'ordinary' ]);
is(methods_of('of_app'), 'btree btree btree', 'by role: an application that wants btree has it');
is(methods_of('own'), 'btree', 'also of a table that went to heap and came back');
$node->safe_psql('postgres', 'ALTER TABLE own SET ACCESS METHOD heap; ALTER TABLE own SET ACCESS METHOD nvm');
is(methods_of('own'), 'btree in the pool', 'that of the others is in the pool');
$node->safe_psql('postgres', 'ALTER DATABASE postgres SET nvm.default_index_method = \'btree\'');
$node->safe_psql('postgres', 'CREATE TABLE of_database (id int PRIMARY KEY) USING nvm');
is(methods_of('of_database'), 'btree', 'by database');
$node->safe_psql('postgres', 'ALTER DATABASE postgres RESET ALL; ALTER ROLE ordinary RESET ALL; DROP TABLE of_app, of_database');

# ---- other databases: what pg_class shows there, and nothing of contents
$node->safe_psql('postgres', 'CREATE DATABASE other');
$node->safe_psql('other', "CREATE EXTENSION pg_nvm; CREATE TABLE secret_name (a int) USING nvm; INSERT INTO secret_name SELECT generate_series(1, 500)");
my $oid = $node->safe_psql('other', "SELECT pg_relation_filenode('secret_name')");
is($node->safe_psql('postgres', "SET ROLE watcher; SELECT database, relation IS NULL, live_rows FROM nvm.relations WHERE relfilenode = $oid"),
	'other|t|500', 'a table of another database has its numbers and no name');
is($node->safe_psql('postgres', "SELECT database, relation, persistence, ended, live_rows, dead_versions, large_values, extents >= 1 FROM nvm.relations WHERE relation = 'own'::regclass"),
	'postgres|own|p|f|2|0|0|t', 'one of this database has both');

# a database that is gone: its storages are there until they are reclaimed
like($node->safe_psql('postgres', "SELECT string_agg(DISTINCT coalesce(database, 'gone'), ' ') FROM nvm.relations"), qr/^other postgres$/, 'databases by their names');

# ---- live rows and dead versions, of every fate, without VACUUM
$node->safe_psql('postgres', <<SQL);
CREATE TABLE fates (id int PRIMARY KEY, v int) USING nvm;
CREATE UNLOGGED TABLE fates_unlogged (id int) USING nvm;
CREATE MATERIALIZED VIEW fates_mv USING nvm AS SELECT generate_series(1, 50) AS a;
INSERT INTO fates SELECT i, 0 FROM generate_series(1, 1000) i;
INSERT INTO fates_unlogged SELECT generate_series(1, 70);
DELETE FROM fates WHERE id > 900;
BEGIN; INSERT INTO fates SELECT i, 0 FROM generate_series(2001, 2050) i; ROLLBACK;
SQL
my $counts = "SELECT live_rows, dead_versions > 0 FROM nvm.relations WHERE relation =";
is($node->safe_psql('postgres', "$counts 'fates'::regclass"), '900|t', 'live rows after a DELETE and a rollback');
my $open = $node->session('BEGIN', 'INSERT INTO fates SELECT i, 0 FROM generate_series(3001, 3010) i', 'DELETE FROM fates WHERE id <= 10');
is($node->safe_psql('postgres', "$counts 'fates'::regclass"), '900|t', 'what a transaction has not committed does not count');
is($node->safe_psql('postgres', "SELECT count(*) FROM nvm.transactions WHERE pid = " . $open->pid), '1', 'nvm.transactions shows it');
is($node->safe_psql('postgres', "SELECT xid::text = (SELECT backend_xid::text FROM pg_stat_activity WHERE pid = t.pid) FROM nvm.transactions t WHERE pid = " . $open->pid), 't', 'with its xid');
$open->sql('COMMIT');
is($node->safe_psql('postgres', "$counts 'fates'::regclass"), '900|t', 'and does once it has');
$open->drop;
$node->safe_psql('postgres', 'VACUUM fates');
is($node->safe_psql('postgres', 'SELECT live_rows FROM nvm.relations WHERE relation = \'fates\'::regclass'), '900', 'live rows after VACUUM');
is($node->safe_psql('postgres', "SELECT relation, persistence, live_rows FROM nvm.relations WHERE relation IN ('fates_mv'::regclass, 'fates_unlogged'::regclass) ORDER BY 1"),
	"fates_unlogged|u|70\nfates_mv|p|50", 'unlogged tables and materialized views');
is($node->safe_psql('postgres', "CREATE TEMP TABLE fates_temp (a int) USING nvm; INSERT INTO fates_temp VALUES (1), (2); SELECT persistence, live_rows FROM nvm.relations WHERE relation = 'fates_temp'::regclass"),
	't|2', 'temporary tables');
$node->safe_psql('postgres', "CREATE TABLE big (id int, s text) USING nvm; INSERT INTO big SELECT i, repeat('s', 100) FROM generate_series(1, 40000) i; DELETE FROM big WHERE id % 4 = 0");
my ($live, $dead) = split /\|/, $node->safe_psql('postgres', "SELECT live_rows, dead_versions FROM nvm.relations WHERE relation = 'big'::regclass");
cmp_ok(abs($live - 30000), '<', 1500, "an estimate of a larger table: $live live rows");
cmp_ok(abs($dead - 10000), '<', 1500, "and $dead dead versions");

# ---- sizes as PostgreSQL's functions see them
is($node->safe_psql('postgres', "SELECT pg_relation_size('big'), pg_table_size('big')"), '0|0', 'pg_table_size is 0');
is($node->safe_psql('postgres', "SELECT pg_total_relation_size('fates'), pg_indexes_size('fates')"), '8192|8192', 'that of an index in the pool is one block');
$node->safe_psql('postgres', 'SET nvm.default_index_method = btree; CREATE INDEX fates_v ON fates USING btree (v)');
is($node->safe_psql('postgres', "SELECT pg_total_relation_size('fates') = pg_indexes_size('fates') AND pg_indexes_size('fates') > 0"), 't', 'other indexes have theirs');
$node->safe_psql('postgres', (/CREATE/ ? '' : 'SET nvm.default_index_method = btree; ') . $_ . 'fates'), is($node->safe_psql('postgres', "SELECT relpages > 1, relpages = blocks FROM pg_class JOIN nvm.relations ON relation = oid WHERE relname = 'fates_pkey'"), 't|t', "relpages of an index in the pool after ${_}fates")
  foreach 'ANALYZE ', 'VACUUM ', 'VACUUM ANALYZE ', 'REINDEX TABLE ', 'VACUUM FULL ', 'CREATE INDEX ON fates (id); ANALYZE ';
$node->safe_psql('postgres', 'BEGIN; CREATE TABLE fates_2 (id int PRIMARY KEY) USING nvm; INSERT INTO fates_2 SELECT generate_series(1, 1000); ANALYZE fates_2; SAVEPOINT a; REINDEX TABLE fates_2; ROLLBACK TO a; INSERT INTO fates_2 SELECT generate_series(1001, 3000); COMMIT');
is($node->safe_psql('postgres', "SELECT relpages > 1 FROM pg_class WHERE relname = 'fates_2_pkey'"), 't', 'and of one that was made and analyzed in a transaction');
is($node->safe_psql('postgres', "ANALYZE big; SELECT relpages = blocks FROM pg_class JOIN nvm.relations ON relation = oid WHERE relname = 'big'"), 't', 'relpages is the number of blocks');
is($node->safe_psql('postgres', 'SELECT uuid IS NOT NULL, used + free = size, status, persist_method <> \'auto\' FROM nvm.pool'), 't|t|open|t', 'nvm.pool');


# ---- nvm.size
$node->safe_psql('postgres', <<SQL);
CREATE TABLE sized (id int PRIMARY KEY, s text) USING nvm;
ALTER TABLE sized ALTER s SET STORAGE EXTERNAL;
CREATE TABLE parted (id int, s text) PARTITION BY RANGE (id);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000) USING nvm;
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (1000) TO (9000) USING nvm;
CREATE TABLE parted_3 PARTITION OF parted DEFAULT USING heap;
INSERT INTO parted SELECT i, repeat('p', 100) FROM generate_series(0, 9999) i;
SQL
is($node->safe_psql('postgres', "SELECT nvm.size('sized')"), '0', 'nvm.size: an empty table has none');
$node->safe_psql('postgres', "INSERT INTO sized SELECT i, repeat('s', 1000000) FROM generate_series(1, 20) i");
is($node->safe_psql('postgres', "SELECT nvm.size('sized') BETWEEN 20000000 AND 30000000"), 't', 'large values are in it');
is($node->safe_psql('postgres', "SELECT count(*), bool_and(nvm.size(relation) = bytes) FROM nvm.relations WHERE relation IN ('sized'::regclass, 'big', 'fates', 'fates_pkey', 'fates_mv', 'fates_unlogged') AND NOT ended"),
	'6|t', 'tables, indexes, materialized views: as nvm.relations has it');
is($node->safe_psql('postgres', "CREATE TEMP TABLE sized_temp (a int) USING nvm; INSERT INTO sized_temp VALUES (1); SELECT nvm.size('sized_temp') > 0"), 't', 'a temporary table');
is($node->safe_psql('postgres', "SELECT nvm.size('parted'), nvm.size('parted_3'), nvm.size('fates_v'), nvm.size('pg_class'), nvm.size('nvm.pool'), nvm.size(0) IS NULL"),
	'0|0|0|0|0|t', 'what is not in the pool has 0, what does not exist NULL');
is($node->safe_psql('postgres', "SELECT sum(nvm.size(relid)) = nvm.size('parted_1') + nvm.size('parted_2'), nvm.size('parted_2') > nvm.size('parted_1') FROM pg_partition_tree('parted')"), 't|t', 'partitions by a sum');
is($node->safe_psql('postgres', "BEGIN; TRUNCATE sized; SELECT nvm.size('sized'); ROLLBACK; SELECT nvm.size('sized') > 20000000"), "0\nt", 'TRUNCATE, and back');
is($node->safe_psql('postgres', "SET ROLE watcher; SELECT nvm.size('sized') > 0"), 't', 'pg_monitor may ask');

# ---- counters as doc/monitoring.md has them; heap's rows and those of ours by the same commands
# a session's statistics are there when its client has the answer, not when it has ended
my $flush = 'SELECT pg_stat_force_next_flush()';
$node->safe_psql('postgres', <<SQL);
CREATE TABLE counted_nvm (id int PRIMARY KEY, k int, s text) USING nvm;
CREATE TABLE counted_heap (id int PRIMARY KEY, k int, s text) USING heap;
CREATE INDEX ON counted_nvm (k);
CREATE INDEX ON counted_heap (k);
SET nvm.default_index_method = btree;
CREATE INDEX counted_b ON counted_nvm USING btree (k);
RESET nvm.default_index_method;
INSERT INTO counted_nvm SELECT i, i, repeat('s', 100) FROM generate_series(1, 3000) i;
INSERT INTO counted_heap TABLE counted_nvm;
VACUUM ANALYZE counted_nvm, counted_heap;
$flush;
SQL
$node->safe_psql('postgres', "SELECT pg_stat_reset()");
foreach my $table ('counted_nvm', 'counted_heap')
{
	$node->safe_psql('postgres', <<SQL);
SET enable_bitmapscan = off;
INSERT INTO $table SELECT i, i, 's' FROM generate_series(3001, 3050) i;
UPDATE $table SET k = -id WHERE id <= 20;
DELETE FROM $table WHERE id > 3040;
SELECT sum(length(s)) FROM $table WHERE id BETWEEN 100 AND 199;
SELECT sum(length(s)) FROM $table;
$flush;
SQL
}
my $tuples = 'SELECT seq_scan, seq_tup_read, idx_tup_fetch > 120, n_tup_ins, n_tup_upd, n_tup_del, n_live_tup FROM pg_stat_user_tables WHERE relname =';
is($node->safe_psql('postgres', "$tuples 'counted_nvm'"), $node->safe_psql('postgres', "$tuples 'counted_heap'"), 'pg_stat_user_tables counts as for heap');
is($node->safe_psql('postgres', "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'counted_nvm'"), '0', 'no update but added index entries');
$node->safe_psql('postgres', "UPDATE counted_nvm SET s = 't' WHERE id <= 30; $flush");
is($node->safe_psql('postgres', "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'counted_nvm'"), '30', 'those that add none are counted as HOT');
is($node->safe_psql('postgres', "SELECT idx_tup_read > 100, idx_tup_fetch > 100 FROM pg_stat_user_indexes WHERE indexrelname = 'counted_nvm_pkey'"), 't|t', 'pg_stat_user_indexes');
cmp_ok($node->safe_psql('postgres', "SELECT idx_blks_read + idx_blks_hit FROM pg_statio_user_indexes WHERE indexrelname = 'counted_nvm_pkey'"), '<=', 2, 'pg_statio shows no pages of an index in the pool, but looks of the planner at the one of its file');
is($node->safe_psql('postgres', "SELECT idx_blks_read + idx_blks_hit > 0 FROM pg_statio_user_indexes WHERE indexrelname = 'counted_b'"), 't', 'it does of other indexes');
my $statio = "SELECT heap_blks_read, heap_blks_hit FROM pg_statio_user_tables WHERE relname = 'counted_nvm'";
my $blocks = $node->safe_psql('postgres', "SELECT blocks FROM nvm.relations WHERE relation = 'counted_nvm'::regclass");
$node->safe_psql('postgres', 'SELECT pg_stat_reset()');
$node->safe_psql('postgres', "SELECT count(s) FROM counted_nvm; $flush");
is($node->safe_psql('postgres', $statio), "0|$blocks", 'a scan looks at each block once');
$node->safe_psql('postgres', "SET enable_bitmapscan = off; SELECT sum(length(s)) FROM counted_nvm WHERE id BETWEEN 1001 AND 1100; $flush");
is($node->safe_psql('postgres', $statio), '0|' . ($blocks + 100), 'a scan of an index once for each row');
my $buffers = 'SET enable_bitmapscan = off; SET enable_seqscan = off; EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) SELECT sum(length(s)) FROM counted_nvm';
unlike($node->safe_psql('postgres', "$buffers WHERE id BETWEEN 1001 AND 1100") =~ s/\nPlanning:.*//sr, qr/Buffers/, 'EXPLAIN (BUFFERS) shows none of table and index in the pool');
unlike($node->safe_psql('postgres', "SET enable_indexscan = off; SET enable_bitmapscan = off; EXPLAIN (ANALYZE, BUFFERS, COSTS off, TIMING off, SUMMARY off) TABLE counted_nvm") =~ s/\nPlanning:.*//sr, qr/Buffers/, 'nor of a sequential scan');

is($node->safe_psql('postgres', 'SELECT directory FROM nvm.pool'), $node->pool_dir, 'nvm.pool: where it is');

# ---- a setting that there is not
$node->append_conf('postgresql.conf', "nvm.pol_directroy = '/nowhere'\nnvm.something_else_altogether = 1");
$node->stop;
$node->start;
like($node->log_since_start, qr/WARNING:  pg_nvm has no setting "nvm\.pol_directroy"\n.*HINT:  Perhaps you meant "nvm\.pool_directory"\./, 'an unknown setting, and which one was meant');
like($node->log_since_start, qr/WARNING:  pg_nvm has no setting "nvm\.something_else_altogether"\n(?!.*HINT:  Perhaps)/, 'another one');
is(() = $node->log_since_start =~ /pg_nvm has no setting/g, 2, 'each once');

# ---- psql and information_schema show the table as any other
my ($ret, $out, $err) = $node->psql('postgres', "\\t off\n\\d+ fates");
like($out, qr/^id\|integer\b.*^Indexes:\n    "fates_pkey" PRIMARY KEY, btree \(id\)\n.*^Access method: nvm$/ms, '\d+');
($ret, $out, $err) = $node->psql('postgres', "\\t off\n\\d+ fates_pkey");
like($out, qr/^primary key, btree, for table "public\.fates"$/m, '\d+ of an index');
($ret, $out, $err) = $node->psql('postgres', '\di+ fates_pkey');
like($out, qr/fates_pkey\|index\|\w+\|fates\|permanent\|btree\|8192 bytes/, '\di+ shows the access method');
($ret, $out, $err) = $node->psql('postgres', '\dt+ fates');
like($out, qr/fates\|table\|\w+\|permanent\|nvm\|0 bytes/, '\dt+ shows the access method');
($ret, $out, $err) = $node->psql('postgres', '\dA+ nvm');
like($out, qr/nvm\|Table\|nvm\.nvm_tableam_handler\|tables in the persistent-memory pool/, '\dA+');
is($node->safe_psql('postgres', "SELECT table_type, is_insertable_into FROM information_schema.tables WHERE table_name = 'fates'"), 'BASE TABLE|YES', 'information_schema.tables');
is($node->safe_psql('postgres', "SELECT count(*) FROM information_schema.columns WHERE table_name = 'fates'"), '2', 'information_schema.columns');
is($node->safe_psql('postgres', "SELECT constraint_type FROM information_schema.table_constraints WHERE table_name = 'fates' AND constraint_type <> 'CHECK'"), 'PRIMARY KEY', 'information_schema.table_constraints');

# ---- COPY in every format, and back
my $dir = PostgreSQL::Test::Utils::tempdir();
chmod 0777, $dir;
$node->safe_psql('postgres', "CREATE TABLE types (a int, b text, c timestamptz, d float8, e bytea, f jsonb, g numeric[]) USING nvm; INSERT INTO types SELECT i, CASE WHEN i % 5 = 0 THEN NULL ELSE repeat(chr(64 + i % 26), i * 40) || E'\\t\\n,\"' END, now(), i / 3.0, decode(md5(i::text), 'hex'), '{\"a\": [1, null]}', ARRAY[i, NULL, 'NaN'::numeric] FROM generate_series(1, 300) i; CREATE TABLE types_copy (LIKE types) USING nvm");
foreach my $format ('binary', 'csv', 'text')
{
	foreach my $copy ('COPY', '\copy')
	{
		$node->safe_psql('postgres', "TRUNCATE types_copy");
		$node->safe_psql('postgres', "$copy types TO '$dir/copy' WITH (FORMAT $format)");
		$node->safe_psql('postgres', "$copy types_copy FROM '$dir/copy' WITH (FORMAT $format)");
		is($node->safe_psql('postgres', 'SELECT count(*) FROM (TABLE types EXCEPT ALL TABLE types_copy) x'), '0', "$copy, $format");
	}
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM types_copy'), '300', 'COPY: as many rows');

# ---- LOCK TABLE and LISTEN in a transaction with nvm rows
like($node->safe_psql('postgres', <<SQL), qr/^ACCESS EXCLUSIVE\nAsynchronous notification "channel" with payload "payload"/, 'LOCK TABLE, LISTEN, NOTIFY');
LISTEN channel;
BEGIN;
LOCK TABLE types IN ACCESS EXCLUSIVE MODE;
INSERT INTO types (a) VALUES (-1);
NOTIFY channel, 'payload';
SELECT upper(regexp_replace(replace(mode, 'Lock', ''), '(.)([A-Z])', '\\1 \\2', 'g')) FROM pg_locks WHERE relation = 'types'::regclass AND pid = pg_backend_pid() AND mode = 'AccessExclusiveLock';
COMMIT;
UNLISTEN *;
SQL

# ---- a driver, where one is installed
SKIP:
{
	skip 'python3-psycopg2 is not installed', 1 if system('python3 -c "import psycopg2" 2>/dev/null') != 0;
	open(my $fh, '>', "$dir/driver.py") or die $!;
	print $fh <<'PYTHON';
import io, sys, datetime, decimal
import psycopg2, psycopg2.extras
c = psycopg2.connect(sys.argv[1])
with c, c.cursor() as k:
    k.execute("CREATE TABLE orm (id serial PRIMARY KEY, version int NOT NULL, name text UNIQUE, d date, n numeric, b bytea, j jsonb) USING nvm")
with c, c.cursor() as k:
    psycopg2.extras.execute_values(k, "INSERT INTO orm (version, name, d, n, b, j) VALUES %s RETURNING id",
        [(1, 'n%d' % i, datetime.date(2020, 1, 1), decimal.Decimal('1.5'), b'\0\xff', psycopg2.extras.Json({'i': i})) for i in range(500)], page_size=100)
with c, c.cursor() as k:        # optimistic locking by a version column
    k.execute("UPDATE orm SET version = version + 1 WHERE id = %s AND version = %s", (7, 1)); assert k.rowcount == 1
    k.execute("UPDATE orm SET version = version + 1 WHERE id = %s AND version = %s", (7, 1)); assert k.rowcount == 0
with c, c.cursor() as k:        # an error, and the transaction after it
    k.execute("SAVEPOINT s")
    try:
        k.execute("INSERT INTO orm (version, name) VALUES (1, 'n3')"); assert False
    except psycopg2.errors.UniqueViolation as e:
        assert e.diag.constraint_name == 'orm_name_key'
    k.execute("ROLLBACK TO s")
    k.execute("INSERT INTO orm (version, name) VALUES (1, 'n3') ON CONFLICT (name) DO UPDATE SET version = 9 RETURNING id, version, xmax::text <> '0'")
    assert k.fetchone()[1:] == (9, True)
with c:                         # server-side cursor
    with c.cursor('named', scrollable=True) as k:
        k.itersize = 50
        k.execute("SELECT * FROM orm ORDER BY id")
        assert len(list(k)) == 500
        k.scroll(-2); assert k.fetchone()[2] == 'n499'
with c, c.cursor() as k:        # COPY both ways
    out = io.StringIO(); k.copy_expert("COPY orm TO STDOUT (FORMAT csv)", out)
    k.execute("CREATE TABLE orm2 (LIKE orm) USING nvm"); out.seek(0); k.copy_expert("COPY orm2 FROM STDIN (FORMAT csv)", out)
    k.execute("SELECT count(*) FROM (TABLE orm EXCEPT TABLE orm2) x"); assert k.fetchone()[0] == 0
c.set_session(isolation_level='SERIALIZABLE')
with c, c.cursor() as k:
    k.execute("SELECT sum(version) FROM orm"); k.fetchone()
    k.execute("UPDATE orm SET version = 0 WHERE id = 1")
c.autocommit = True
with c.cursor() as k:
    k.execute("LISTEN x"); k.execute("NOTIFY x, 'p'"); c.poll(); assert c.notifies[0].payload == 'p'
    k.execute("SELECT count(*) FROM orm"); print(k.fetchone()[0])
PYTHON
	close $fh;
	my ($stdout, $stderr) = run_command([ 'python3', "$dir/driver.py", $node->connstr('postgres') ]);
	is($stdout, '500', 'psycopg2') or diag $stderr;
}
$node->check_clean('at the end');
$node->stop;

done_testing();

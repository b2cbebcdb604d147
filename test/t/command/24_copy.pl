# Copyright (c) 2026, pg_nvm contributors

# The copy that a replay works on (src/replay): tables like the originals, made column by column and
# index by index; a process that is redirected finds them where its queries name the originals, and
# changes nothing else, and nothing of what it does is logged; rows of a checkpoint, and of records of
# values behind it, are there as the originals have them, byte by byte.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = abs_path(dirname(abs_path(__FILE__)) . '/../../tools') . '/nvm_copy';
my $node = NvmTest->start_new('copy', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_worker_processes = 8
max_prepared_transactions = 4
nvm.memory_limit = 256MB
CONF
CREATE FUNCTION nvm_copy_make(schema text) RETURNS bytea AS '$library' LANGUAGE C STRICT;
CREATE FUNCTION nvm_copy_drop(schema text) RETURNS bool AS '$library' LANGUAGE C STRICT;
CREATE FUNCTION nvm_copy_tables(map bytea, OUT original regclass, OUT copy regclass, OUT key regclass, OUT indexes int)
	RETURNS SETOF record AS '$library' LANGUAGE C STRICT;
CREATE FUNCTION nvm_copy_redirect(map bytea) RETURNS void AS '$library' LANGUAGE C STRICT;
CREATE FUNCTION nvm_copy_checksums(what regclass, as_table oid) RETURNS SETOF bigint AS '$library' LANGUAGE C STRICT;
CREATE FUNCTION nvm_copy_replay(schema text, OUT error text, OUT loaded bigint, OUT records bigint,
	OUT inserted bigint, OUT updated bigint, OUT deleted bigint, OUT map bytea) AS '$library' LANGUAGE C STRICT;
CREATE FUNCTION nvm_copy_play(map bytea, OUT records bigint, OUT inserted bigint, OUT updated bigint, OUT deleted bigint)
	AS '$library' LANGUAGE C STRICT;

-- tables of a copy whose rows are not those of the originals, with what is too much and too little
CREATE FUNCTION differ(m bytea) RETURNS text LANGUAGE plpgsql AS
\$\$DECLARE result text := ''; t record; more int; less int;
BEGIN
	FOR t IN SELECT * FROM nvm_copy_tables(m) ORDER BY original::text LOOP
		SELECT count(*) INTO more FROM
			(SELECT nvm_copy_checksums(t.copy, t.original) EXCEPT ALL SELECT nvm_copy_checksums(t.original, t.original)) x;
		SELECT count(*) INTO less FROM
			(SELECT nvm_copy_checksums(t.original, t.original) EXCEPT ALL SELECT nvm_copy_checksums(t.copy, t.original)) x;
		IF more + less > 0 THEN result := result || format('%s +%s -%s ', t.original, more, less); END IF;
	END LOOP;
	RETURN result;
END\$\$;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

## what a table of the copy is

sql(<<'SQL');
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN small AS int CHECK (VALUE < 1000);
CREATE TABLE wide (id int PRIMARY KEY, gone text, n numeric(10, 2), m mood, p pair, s small, r int4range, a text[],
	gone_too bigint, c char(4), t text COLLATE "C", b bytea, j jsonb, x xml, ts timestamptz,
	twice int GENERATED ALWAYS AS (id * 2) STORED, i int GENERATED ALWAYS AS IDENTITY, f float8, u uuid,
	z text, e text COMPRESSION pglz DEFAULT 'e') USING nvm_cmdlog WITH (fillfactor = 70);
ALTER TABLE wide DROP COLUMN gone, ALTER z SET STORAGE MAIN;
CREATE TABLE plain (n int, t text) USING nvm_cmdlog;
CREATE SCHEMA other;
CREATE TABLE other.plain (k int, v text, w text) USING nvm_cmdlog;
CREATE UNIQUE INDEX plain_kv ON other.plain (k, v);
ALTER TABLE other.plain ALTER k SET NOT NULL, ALTER v SET NOT NULL, REPLICA IDENTITY USING INDEX plain_kv;
CREATE TABLE late (id int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, u int, UNIQUE NULLS NOT DISTINCT (u) DEFERRABLE) USING nvm_cmdlog;
CREATE TABLE expr (id int, v text) USING nvm_cmdlog;
CREATE UNIQUE INDEX expr_lower ON expr (lower(v) COLLATE "C" DESC NULLS LAST, (id % 10)) INCLUDE (id) WHERE id > 3;
CREATE INDEX expr_pattern ON expr (v text_pattern_ops);
CREATE TABLE parts (id int NOT NULL, v text) PARTITION BY RANGE (id);
CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (50) USING nvm_cmdlog;
CREATE TABLE part_2 PARTITION OF parts FOR VALUES FROM (50) TO (200) USING nvm_cmdlog;
CREATE UNIQUE INDEX part_1_id ON part_1 USING nvm_btree (id);
ALTER TABLE part_1 REPLICA IDENTITY USING INDEX part_1_id;
CREATE TABLE parent (id int PRIMARY KEY, v int) USING nvm_cmdlog;
CREATE TABLE child (id int PRIMARY KEY, p int REFERENCES parent ON UPDATE CASCADE) USING nvm_cmdlog;
CREATE UNLOGGED TABLE unlogged (id int) USING nvm_cmdlog;
CREATE TABLE vlog (id int) USING nvm_vlog;
CREATE TABLE pool (id int) USING nvm;
CREATE MATERIALIZED VIEW seen USING nvm_cmdlog AS SELECT 1 AS one;
SQL

my $made = sql(<<'SQL');
SELECT count(nvm_copy_make('made'));
SELECT c.relname || ' ' || a.amname || ' ' || c.relpersistence::text || coalesce(' ' || c.reloptions::text, '')
FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE relnamespace = 'made'::regnamespace AND relkind = 'r' ORDER BY 1;
SQL
my ($oid, $other_oid) = split / /, sql(q{SELECT 'public.plain'::regclass::oid || ' ' || 'other.plain'::regclass::oid});
is($made, join("\n", 1, sort((map { "$_ nvm_cmdlog u" } 'child', 'expr', 'late', 'parent', 'part_1', 'part_2', "plain_$oid", "plain_$other_oid", 'seen'),
		'wide nvm_cmdlog u {fillfactor=70}')), 'each permanent table has a copy, under its name or with its Oid');

is(sql(<<'SQL'), '', 'the columns are the same one by one, but for what concerns those who write');
SELECT attnum, attname, atttypid, attlen, attbyval, attalign, attstorage, attcompression, attcollation, attisdropped, atttypmod
FROM pg_attribute WHERE attrelid = 'wide'::regclass
EXCEPT
SELECT attnum, attname, atttypid, attlen, attbyval, attalign, attstorage, attcompression, attcollation, attisdropped, atttypmod
FROM pg_attribute WHERE attrelid = 'made.wide'::regclass;
SQL
is(sql(<<'SQL'), '', 'and so are the indexes');
SELECT i.indkey::text, i.indclass::text, i.indcollation::text, i.indoption::text, i.indisunique, i.indnkeyatts, i.indnullsnotdistinct,
	pg_get_expr(i.indexprs, i.indrelid), pg_get_expr(i.indpred, i.indrelid), t.relname
FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid WHERE t.relname IN ('wide', 'late', 'expr', 'part_1', 'parent') AND t.relnamespace = 'public'::regnamespace
EXCEPT
SELECT i.indkey::text, i.indclass::text, i.indcollation::text, i.indoption::text, i.indisunique, i.indnkeyatts, i.indnullsnotdistinct,
	pg_get_expr(i.indexprs, i.indrelid), pg_get_expr(i.indpred, i.indrelid), t.relname
FROM pg_index i JOIN pg_class t ON t.oid = i.indrelid WHERE t.relnamespace = 'made'::regnamespace;
SQL
is(sql(q{SELECT count(*) FROM pg_class WHERE relnamespace = 'made'::regnamespace AND (relacl IS NOT NULL OR relkind NOT IN ('r', 'i'))})
	. sql(q{SELECT nspacl IS NULL FROM pg_namespace WHERE nspname = 'made'}), '0t', 'nobody else may use them, and there is nothing else');

$node->fails_with(q{SELECT nvm_copy_make('made')}, qr/schema "made" already exists/, 'a second copy needs another schema');
is(sql(q{SELECT nvm_copy_drop('made'), nvm_copy_drop('made'), nvm_copy_drop('nowhere'), to_regnamespace('made')}), 't|f|f|', 'dropped');
$node->fails_with(q{SELECT nvm_copy_drop('other')}, qr/schema "other" is not one that a replay has made/, 'a schema of somebody else stays');
sql('CREATE ROLE nobody');
$node->fails_with(q{SET ROLE nobody; SELECT nvm_copy_make('made')}, qr/must be superuser/, 'for superusers');
foreach my $method ('btree', 'hash', 'gin')
{
	my $column = $method eq 'gin' ? 'a' : 'id';
	sql("SET nvm.default_index_method = btree; CREATE INDEX of_file ON wide USING $method ($column)");
	$node->fails_with(q{SELECT nvm_copy_make('made')},
		qr/table "wide" cannot be replayed: index "of_file" is not in memory.*HINT:  Use btree with nvm.default_index_method = nvm_btree, or drop the index/s, "an index of method $method");
	sql('DROP INDEX of_file');
}
is(sql(q{SELECT to_regnamespace('made')}), '', 'what has failed leaves nothing');

## a redirected session

sql(<<'SQL');
INSERT INTO wide (id, e) SELECT g, 'here' FROM generate_series(1, 3) g;
INSERT INTO plain SELECT g, g FROM generate_series(1, 3) g;
INSERT INTO late VALUES (1, 1);
INSERT INTO parent VALUES (1, 1);
INSERT INTO child VALUES (1, 1);
INSERT INTO parts VALUES (1, 'here');
ALTER TABLE parent ADD COLUMN later text DEFAULT 'later';
CREATE TABLE kept_map (m bytea);
INSERT INTO kept_map SELECT nvm_copy_make('made');
SQL
my $before = sql(q{SELECT md5(string_agg(x::text, ',' ORDER BY x::text)) FROM (SELECT w::text FROM wide w UNION ALL SELECT p::text FROM plain p
	UNION ALL SELECT l::text FROM late l UNION ALL SELECT a::text FROM parent a UNION ALL SELECT c::text FROM child c UNION ALL SELECT r::text FROM parts r) y(x)});
my $counted = 'SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables WHERE schemaname = \'public\'';
my $map = sql('SELECT m FROM kept_map');
sql('DROP TABLE kept_map');
sql('CREATE TABLE made_since (id int PRIMARY KEY) USING nvm_cmdlog; INSERT INTO made_since VALUES (1)');
my $position = sql('SELECT inserted FROM nvm.log');
my $stats = sql("SELECT pg_stat_force_next_flush(); $counted");

# a session that was there before, and knows the tables
my $session = $node->session('SELECT count(*) FROM wide, plain', 'PREPARE counts AS SELECT count(*) FROM plain', 'EXECUTE counts', 'EXECUTE counts');
$session->sql("SELECT nvm_copy_redirect('$map')");
is($session->sql('SELECT (SELECT count(*) FROM wide) + (SELECT count(*) FROM plain) + (SELECT count(*) FROM late)'), 0, 'a redirected session finds the copy, which is empty');
is($session->sql('EXECUTE counts'), 0, 'by a plan of before, too');
is($session->sql(q{INSERT INTO wide (id, i, n, m, a, e) OVERRIDING SYSTEM VALUE VALUES (1, 11, 1.5, 'glad', '{a,b}', repeat('x', 50000)), (2, 12, 2, 'sad', NULL, 'e') RETURNING id, twice, i > 3, e = repeat('x', 50000)}),
	"1|2|t|t\n2|4|t|f", 'columns are filled as the original says'); # nextval() would be read from a tape
is($session->sql(q{INSERT INTO wide (id, i, e) OVERRIDING SYSTEM VALUE VALUES (2, 13, 'again') ON CONFLICT (id) DO UPDATE SET e = wide.e || excluded.e RETURNING id, e}), '2|eagain', 'ON CONFLICT');
is($session->sql(q{INSERT INTO wide (id, i) OVERRIDING SYSTEM VALUE VALUES (2, 14) ON CONFLICT DO NOTHING RETURNING id}), '', 'and DO NOTHING');
is($session->sql(<<'SQL'), "1\n3", 'a subtransaction that is rolled back');
BEGIN; INSERT INTO plain VALUES (1, 'a'); SAVEPOINT s; INSERT INTO plain VALUES (2, 'b'); UPDATE plain SET n = 9; ROLLBACK TO s; INSERT INTO plain VALUES (3, 'c'); COMMIT;
SELECT n FROM plain ORDER BY n;
SQL
is($session->sql('BEGIN; DELETE FROM plain; ROLLBACK; SELECT count(*) FROM plain'), 2, 'a transaction that is');
is($session->sql(q{INSERT INTO expr SELECT g, 'V' || g FROM generate_series(1, 400) g; DELETE FROM expr WHERE id % 7 = 0; UPDATE expr SET v = v || 'x' WHERE id % 5 = 0;
	SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT id FROM expr WHERE lower(v) COLLATE "C" = 'v15x' AND id % 10 = 5 AND id > 3}), 15, 'an index of expressions');
like($session->sql(q{EXPLAIN (COSTS off) SELECT id FROM expr WHERE lower(v) COLLATE "C" = 'v15x' AND id > 3}), qr/Index Scan using expr_lower/, 'which is used');
is($session->sql(q{SELECT count(*) FROM expr WHERE v ~>=~ 'V3' AND v ~<~ 'V4'}), 95, 'a range of an index');
is($session->sql('INSERT INTO late VALUES (1, 1), (2, 2); BEGIN; UPDATE late SET id = 3 - id; COMMIT; SELECT count(*) FROM late'), 2, 'a deferred key');
$session->sql('RESET enable_seqscan; RESET enable_bitmapscan');
is($session->sql('BEGIN; UPDATE late SET id = 1; COMMIT; SELECT count(DISTINCT id) FROM late'), 2, 'and one that is violated');
is($session->sql('INSERT INTO parent VALUES (1, 1), (2, 2); INSERT INTO child VALUES (1, 1); INSERT INTO child VALUES (2, 3); UPDATE parent SET id = 5 WHERE id = 1; SELECT string_agg(c::text, \' \') FROM child c'),
	'(1,5)', 'foreign keys look at the copy');
is($session->sql('SELECT later FROM parent LIMIT 1'), 'later', 'a column that came later');
is($session->sql(q{INSERT INTO parts SELECT g, g FROM generate_series(40, 60) g; UPDATE parts SET id = id + 10 WHERE id IN (45, 46); SELECT string_agg(n::text, ' ' ORDER BY n) FROM (SELECT count(*) FROM parts GROUP BY tableoid) x(n)}),
	'8 13', 'rows of partitions, and between them');
is($session->sql('SELECT count(*) FROM (SELECT FROM plain FOR UPDATE) x'), 2, 'rows are locked');
is($session->sql("$NvmTest::force_parallel; SET min_parallel_table_scan_size = 0; SET parallel_setup_cost = 0; EXPLAIN (COSTS off) SELECT count(*) FROM expr") =~ /Gather/ ? 'parallel' : '', '', 'no plan is parallel');

sub refused
{
	my ($query, $re, $name) = @_;
	my $error = '';
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$error = $session->sql("DO \$do\$BEGIN EXECUTE \$q\$$query\$q\$; EXCEPTION WHEN OTHERS THEN PERFORM set_config('my.error', SQLERRM, false); RETURN; END\$do\$; SELECT current_setting('my.error', true)");
	$session->sql(q{SELECT set_config('my.error', '', false)});
	return like($error, $re, $name);
}
my $no_copy = qr/relation "\w+" has no copy in this replay/;
my $no_write = qr/a replay cannot write rows of storage \d+ of the pool/;
refused('SELECT * FROM made_since', $no_copy, 'a table that was made since has none');
refused('SELECT id FROM made_since WHERE id = 1', $no_copy, 'nor by its index');
refused('INSERT INTO made_since VALUES (2)', $no_copy, 'nor to be written');
sql('CREATE INDEX made_since_too ON late (u)');
refused('INSERT INTO late VALUES (9, 9)', $no_copy, 'nor has an index');
sql('DROP INDEX made_since_too');
refused('TRUNCATE plain', $no_copy, 'nor one that is made anew');
refused('INSERT INTO pool VALUES (1)', $no_write, 'a table of the pool is not written');
refused('INSERT INTO vlog VALUES (1)', $no_write, 'nor one of nvm_vlog');
refused('INSERT INTO unlogged VALUES (1)', $no_write, 'nor an UNLOGGED one of somebody else');
is($session->sql('CREATE TEMP TABLE mine (id int) USING nvm; INSERT INTO mine VALUES (1); SELECT count(*) FROM mine'), 1, 'a temporary one may be');
is($session->sql('SELECT count(*) FROM pool'), 0, 'and others be read');
$session->drop;

is(sql('SELECT inserted FROM nvm.log'), $position, 'nothing of all that is in the log');
is(sql("SELECT pg_stat_force_next_flush(); $counted"), $stats, 'nor in the statistics');
is(sql(q{SELECT md5(string_agg(x::text, ',' ORDER BY x::text)) FROM (SELECT w::text FROM wide w UNION ALL SELECT p::text FROM plain p
	UNION ALL SELECT l::text FROM late l UNION ALL SELECT a::text FROM parent a UNION ALL SELECT c::text FROM child c UNION ALL SELECT r::text FROM parts r) y(x)}), $before, 'the originals are as they were');
is(sql(q{SELECT (SELECT count(*) FROM made.wide) || ' ' || (SELECT count(*) FROM made.expr) || ' ' || (SELECT later FROM made.parent WHERE id = 2)}), '2 343 later', 'the copy has it');
is(sql(q{SELECT string_agg(f::text, ' ') FROM unnest('{wide,expr,late,parent,child,part_1,part_2}'::text[]) t, LATERAL nvm.check(('made.' || t)::regclass, heapallindexed => true) f}), '', 'the checker finds nothing in it');
is(sql(q{SELECT string_agg(f::text, ' ') FROM unnest('{wide,expr,late,parent,child,part_1,part_2}'::text[]) t, LATERAL nvm.check(t::regclass, heapallindexed => true) f}), '', 'nor in the originals');

## rows of a checkpoint

sql(<<'SQL');
SELECT nvm_copy_drop('made');
DROP TABLE made_since;
TRUNCATE wide, plain, other.plain, late, expr, parts, child, parent;
INSERT INTO wide (id, n, m, p, s, r, a, gone_too, c, t, b, j, x, ts, f, u, z, e)
SELECT g, g / 7.0, (CASE WHEN g % 2 = 0 THEN 'sad' ELSE 'glad' END)::mood, ROW(g, repeat('p', g))::pair, g, int4range(g, g + 5),
	ARRAY(SELECT md5(i::text) FROM generate_series(1, g) i), g, 'c' || g % 10, NULLIF(repeat('t', g % 50), ''), decode(md5(g::text), 'hex'),
	jsonb_build_object('k', repeat('v', g * 20)), '<x/>', now(), sqrt(g), md5(g::text)::uuid, repeat('z', g * 50), repeat(md5(g::text), g * 3)
FROM generate_series(1, 300) g;
INSERT INTO wide (id, e, a) SELECT 1000 + g, (SELECT string_agg(md5(i::text || g), '') FROM generate_series(1, 40000) i), ARRAY(SELECT md5(i::text) FROM generate_series(1, 9000) i)
FROM generate_series(1, 3) g;
ALTER TABLE wide DROP COLUMN gone_too, ADD COLUMN later text DEFAULT 'later', ADD COLUMN nothing int;
INSERT INTO wide (id) SELECT g FROM generate_series(2001, 2010) g;
-- what is stored today as nobody would store it tomorrow
ALTER TABLE wide ALTER e SET STORAGE EXTERNAL, ALTER z SET STORAGE EXTENDED, SET (toast_tuple_target = 128);
INSERT INTO plain SELECT g % 5, repeat('y', g * 60) FROM generate_series(1, 300) g;
INSERT INTO plain SELECT 100, string_agg(md5(i::text), '') FROM generate_series(1, 2000) i, generate_series(1, 3) n GROUP BY n;
INSERT INTO other.plain SELECT g, 'v' || g, g FROM generate_series(1, 100) g;
INSERT INTO late SELECT g, g FROM generate_series(1, 50) g;
INSERT INTO expr SELECT g, 'V' || g FROM generate_series(1, 200) g;
INSERT INTO parts SELECT g, 'v' || g FROM generate_series(1, 150) g;
INSERT INTO parent SELECT g, g FROM generate_series(1, 20) g;
INSERT INTO child SELECT g, 1 + g % 20 FROM generate_series(1, 60) g;
SELECT nvm.checkpoint();
SQL

# replays, and what came of it
sub replayed
{
	my ($want, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($error, $loaded, $records, $inserted, $updated, $deleted, $m) = split /\|/, sql(q{SELECT * FROM nvm_copy_replay('made')});
	is("$error $loaded, $records: $inserted $updated $deleted", " $want", "$name: what was done");
	is(sql("SELECT differ('$m')"), '', "$name: the rows are the same, byte by byte");
	is(sql(q{SELECT string_agg(c.relname || f::text, ' ') FROM pg_class c, LATERAL nvm.check(c.oid::regclass, heapallindexed => true) f WHERE c.relnamespace = 'made'::regnamespace AND c.relkind = 'r'}),
		'', "$name: the checker finds nothing");
	return $m;
}
my $rows = 300 + 3 + 10 + 303 + 100 + 50 + 200 + 150 + 20 + 60 + 1;
replayed("$rows, 0: 0 0 0", 'a checkpoint');
is(sql(q{SELECT count(*) FROM made.wide WHERE later = 'later' AND nothing IS NULL}), 313, 'columns that came later have their values in the copy, too');

## records of values

sql($_) foreach (
	q{UPDATE wide SET e = 'changed' WHERE id % 3 = 0 AND id <= 300},
	q{UPDATE wide SET id = id + 5000 WHERE id BETWEEN 290 AND 299},
	q{DELETE FROM wide WHERE id IN (7, 8, 1002)},
	q{UPDATE wide SET t = 'small' WHERE id = 1001},
	q{INSERT INTO wide (id, e) SELECT 1100, string_agg(md5(i::text), '') FROM generate_series(1, 60000) i});
replayed("$rows, 5: 11 101 13", 'a table with a key');

sql($_) foreach (
	# rows like these there are several
	q{INSERT INTO plain SELECT 7, 'same' FROM generate_series(1, 10)},
	q{DELETE FROM plain WHERE ctid IN (SELECT ctid FROM plain WHERE t = 'same' LIMIT 3)},
	q{UPDATE plain SET n = 8 WHERE ctid IN (SELECT ctid FROM plain WHERE t = 'same' LIMIT 2)},
	q{UPDATE plain SET t = t || t WHERE n = 100},
	q{DELETE FROM plain WHERE ctid = (SELECT max(ctid) FROM plain WHERE n = 100)},
	q{UPDATE plain SET n = n + 1 WHERE n < 3});
replayed("$rows, 11: 21 286 17", 'one without');

sql($_) foreach (
	q{UPDATE other.plain SET w = 'w' WHERE k < 10},
	q{UPDATE other.plain SET v = 'other' WHERE k BETWEEN 50 AND 54},
	q{DELETE FROM other.plain WHERE k > 95},
	q{BEGIN; UPDATE late SET id = 51 - id, u = 51 - u; COMMIT},
	q{UPDATE expr SET v = upper(v) || 'x' WHERE id % 4 = 0},
	q{UPDATE parts SET id = id + 20 WHERE id BETWEEN 40 AND 45},
	q{DELETE FROM parts WHERE id % 10 = 0},
	q{UPDATE parent SET id = id + 100 WHERE id < 3},
	q{BEGIN; INSERT INTO plain VALUES (1, 'a'); SAVEPOINT s; DELETE FROM plain; ROLLBACK TO s; UPDATE plain SET n = 11 WHERE t = 'a'; COMMIT},
	q{BEGIN; INSERT INTO plain VALUES (1, 'never'); ROLLBACK},
	q{BEGIN; UPDATE plain SET t = 'b' WHERE t = 'a'; UPDATE plain SET t = 'c' WHERE t = 'b'; DELETE FROM late WHERE id = 3; INSERT INTO late VALUES (3, 1000); COMMIT},
	q{BEGIN; INSERT INTO plain VALUES (1, 'prepared'); DELETE FROM expr WHERE id = 1; PREPARE TRANSACTION 'yes'},
	q{BEGIN; INSERT INTO plain VALUES (1, 'never'); DELETE FROM expr WHERE id = 2; PREPARE TRANSACTION 'no'},
	q{COMMIT PREPARED 'yes'}, q{ROLLBACK PREPARED 'no'},
	# more than a slot's buffer has room for
	q{INSERT INTO plain SELECT g, md5(g::text) FROM generate_series(1, 20000) g},
	q{DELETE FROM plain WHERE n % 2 = 0},
	q{UPDATE wide SET e = 'all'},
	q{INSERT INTO pool VALUES (1); INSERT INTO vlog VALUES (1); INSERT INTO parts VALUES (1000 - 850, 'mixed')});
my ($error, $loaded, $records, $inserted, $updated, $deleted, $m) = split /\|/, sql(q{SELECT * FROM nvm_copy_replay('made')});
is("$error $loaded", " $rows", 'of all kinds: played');
is(sql("SELECT differ('$m')"), '', 'of all kinds: the rows are the same, byte by byte');
is(sql(qq{SELECT string_agg(f::text, ' ') FROM nvm.check((SELECT copy FROM nvm_copy_tables('$m') WHERE original = 'public.plain'::regclass)) f}), '', 'of all kinds: the checker finds nothing');

# a key that has come since the checkpoint
sql($_) foreach (
	q{SELECT nvm.checkpoint()},
	q{DELETE FROM plain WHERE n > 50},
	q{DELETE FROM expr WHERE id > 100},
	q{UPDATE expr SET v = 'by checksum' WHERE id = 49},
	q{ALTER TABLE expr ADD PRIMARY KEY (id)},
	q{UPDATE expr SET v = 'by key' WHERE id = 50},
	q{DELETE FROM expr WHERE id = 51},
	q{ALTER TABLE other.plain REPLICA IDENTITY DEFAULT},
	q{UPDATE other.plain SET w = 'by checksum' WHERE k = 20},
	q{DELETE FROM other.plain WHERE k = 21},
	q{ALTER TABLE other.plain REPLICA IDENTITY USING INDEX plain_kv});
($error, $m) = (split /\|/, sql(q{SELECT error, map FROM nvm_copy_replay('made')}));
is($error . sql("SELECT differ('$m')"), '', 'each row is found by what its record says, whatever the key is now');
# and one that has gone: who replays will find that out
sql(q{UPDATE other.plain SET w = 'by key' WHERE k = 22; ALTER TABLE other.plain REPLICA IDENTITY DEFAULT; DROP INDEX other.plain_kv});
($error, $m) = (split /\|/, sql(q{SELECT error, map FROM nvm_copy_replay('made')}));
is($error . sql("SELECT differ('$m')"), 'other.plain +1 -0 ', 'a row whose key was dropped comes twice');
sql(<<'SQL');
CREATE UNIQUE INDEX plain_kv ON other.plain (k, v);
ALTER TABLE other.plain REPLICA IDENTITY USING INDEX plain_kv;
SELECT nvm.checkpoint();
SQL

## what is not there

sql(q{SELECT nvm_copy_drop('made'); UPDATE other.plain SET w = 'z' WHERE k = 30; DELETE FROM other.plain WHERE k = 31});
$node->fails_with(q{SELECT * FROM nvm_copy_play(nvm_copy_make('made'))},
	qr/the copy of table "plain" does not have a row that the log says was deleted.*Key \(k, v\)=\(31, v31\)/s, 'a row that is not there, by its key');
sql('SELECT nvm.checkpoint(); UPDATE plain SET t = t WHERE n = 1');
$node->fails_with(q{SELECT * FROM nvm_copy_play(nvm_copy_make('made'))},
	qr/the copy of table "plain" does not have \d+ of the rows that the log says were deleted or changed/, 'and by its checksum');
sql('SELECT nvm.checkpoint(); INSERT INTO late VALUES (500, 500)');
is(sql(q{SELECT * FROM nvm_copy_play(nvm_copy_make('made'))}), '1|1|0|0', 'an insertion needs none');
sql(q{SELECT nvm_copy_drop('made'); SELECT nvm.checkpoint(); CREATE TABLE kept_map (m bytea); INSERT INTO kept_map SELECT nvm_copy_make('made')});
sql(q{ALTER TABLE late ADD COLUMN since int DEFAULT 1; INSERT INTO late VALUES (501, 501)});
$node->fails_with(q{SELECT nvm_copy_play(m) FROM kept_map}, qr/the log has a row that cannot be read: it has more columns than the table/, 'a column that was added since');
sql('DROP TABLE kept_map');
# creation ids of all tables, but for that of late, mean nothing
$node->fails_with(<<'SQL', qr/table "late" was made or rewritten since the checkpoint.*HINT:  Make a checkpoint/s, 'a storage that is another one');
SELECT nvm_copy_drop('made');
DO $$DECLARE m bytea := nvm_copy_make('made'); n int; BEGIN
	SELECT count(*) INTO n FROM nvm_copy_tables(m);
	FOR i IN 0 .. n - 1 LOOP m := set_byte(m, 32 + i * (SELECT (length(m) - 16 - 40 * sum(indexes)::int) / n FROM nvm_copy_tables(m)), 255); END LOOP;
	PERFORM nvm_copy_play(m);
END$$;
SQL

## a crash

sql(q{SELECT error FROM nvm_copy_replay('made')});
$node->crash;
$node->start;
is(sql(q{SELECT (SELECT count(*) FROM made.late) || ' ' || (SELECT count(*) > 50 FROM late)}), '0 true', 'after a crash the copy is empty, and the originals are not');
is(sql(q{SELECT error FROM nvm_copy_replay('made')}), '', 'and another one is made');
$node->check_clean;
$node->stop;
done_testing();

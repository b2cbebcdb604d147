# Copyright (c) 2026, pg_nvm contributors

# DDL of every form over tables with every kind of index of nvm_btree (in the short
# form one in four, another one each day): afterwards access
# method and storage of each index agree, indexes of ours are still ours, each
# has all entries, and no storage is left over; also after ROLLBACK, after
# ROLLBACK TO, in the transaction that made the table, and after a crash.

use strict;
use warnings;

use NvmTest;
use NvmWalk;
use NvmWalkForms;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmWalk::node();
my $storages = NvmWalk::storages();

NvmTest::is_long() ? walk_forms() : walk_forms(4, int(time / 86400) % 4);

# ---- refused

$node->safe_psql('postgres', 'CALL make(am => \'heap\')');
# a dump of nvm tables may be restored with heap tables
foreach my $how ('INDEX t_heap', 'INDEX CONCURRENTLY t_heap')
{
	my ($ret, $out, $err) = $node->psql('postgres', "CREATE $how ON w.t USING nvm_btree (id) WITH (persistence = none, fillfactor = 70)");
	like($err, qr/WARNING:  index on "t" is made with access method "btree".*Access method "nvm_btree" is for indexes of nvm tables/s, "$how: a warning");
	is($node->safe_psql('postgres', "SELECT amname, reloptions, indisvalid FROM pg_class c JOIN pg_am a ON a.oid = relam JOIN pg_index ON indexrelid = c.oid WHERE relname = 't_heap'; DROP INDEX w.t_heap"),
		'btree|{fillfactor=70}|t', "$how: is btree's");
}
$node->safe_psql('postgres', 'CREATE TABLE w.hp (id int) PARTITION BY RANGE (id); CREATE TABLE w.hp1 PARTITION OF w.hp FOR VALUES FROM (0) TO (9) USING heap');
$node->fails_with('CREATE INDEX ON w.hp USING nvm_btree (id)', qr/access method "nvm_btree" is for indexes of nvm tables.*HINT: .*btree/s, 'an index of ours on a heap partition is refused');
$node->safe_psql('postgres', 'DROP SCHEMA w CASCADE; CALL make(); INSERT INTO w.t (id, n, d) VALUES (900, 1, 900), (901, 1, 901)');
$node->fails_with('CREATE UNIQUE INDEX CONCURRENTLY t_bad ON w.t (n)', qr/could not create unique index/, 'a unique index that cannot be');
is($node->safe_psql('postgres', "SELECT count(*) FROM nvm.relations WHERE relation = 'w.t_bad'::regclass"), '0', 'it has no storage');
$node->safe_psql('postgres', 'ALTER INDEX w.t_bad SET TABLESPACE there; INSERT INTO w.t (id, n) VALUES (902, 1); DELETE FROM w.t WHERE n IS NOT NULL; REINDEX INDEX w.t_bad');
script('an invalid index, rebuilt', 'SELECT problems(); DROP SCHEMA w CASCADE');

# ---- temporary tables

script('temporary tables', <<'SQL');
CREATE TEMP TABLE tt (id int PRIMARY KEY, v varchar(10) UNIQUE) USING nvm ON COMMIT DELETE ROWS;
BEGIN; INSERT INTO tt SELECT i, i FROM generate_series(1, 500) i; SELECT problems(); COMMIT;
SELECT problems(); SELECT 'a row' FROM tt;
BEGIN; INSERT INTO tt SELECT i, i FROM generate_series(1, 500) i; SAVEPOINT a; TRUNCATE tt; INSERT INTO tt VALUES (1, 'x'); ROLLBACK TO a; SELECT problems(); SELECT 'not there' FROM tt HAVING count(*) <> 500; COMMIT;
ALTER TABLE tt ALTER v TYPE varchar(20);
BEGIN; INSERT INTO tt SELECT i, i FROM generate_series(1, 500) i; SELECT problems(); COMMIT;
SELECT problems();
CREATE TEMP TABLE td (id int PRIMARY KEY) USING nvm ON COMMIT DROP;
SELECT problems();
REINDEX TABLE tt; ALTER TABLE tt SET ACCESS METHOD heap; ALTER TABLE tt SET ACCESS METHOD nvm;
SELECT problems();
DROP TABLE tt;
SQL
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations'), $storages, 'no storage is left of them');

# ---- prepared

$node->safe_psql('postgres', "CALL make(); DROP INDEX w.t_none; CALL note(); BEGIN; ALTER TABLE w.t ALTER v TYPE varchar(20); REINDEX TABLE w.child; PREPARE TRANSACTION 'p'");
$node->crash;
$node->start;
$node->safe_psql('postgres', "ROLLBACK PREPARED 'p'");
script('a prepared transaction, rolled back after a crash', 'SELECT problems()');
$node->safe_psql('postgres', "BEGIN; ALTER TABLE w.t ALTER v TYPE varchar(20); DROP INDEX w.t_multi; REINDEX TABLE w.child; PREPARE TRANSACTION 'p'");
$node->crash;
$node->start;
$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
script('a prepared transaction, committed after a crash', 'SELECT problems()');

# of SET ACCESS METHOD, when the indexes have changed theirs and are not built; prepared
foreach my $am (qw(nvm heap))
{
	my $to = $am eq 'nvm' ? 'heap' : 'nvm';
	my $now = $am eq 'nvm' ? "'btree', 'nvm_btree'" : "'nvm_btree', 'btree'";
	my $begin = "DROP SCHEMA w CASCADE; CALL make(am => '$am'); DROP INDEX w.t_none; CALL note();";

	$node->safe_psql('postgres', $begin);
	$node->psql('postgres', "SET nvm.failpoint = 'ddl-swapped-table:crash'; ALTER TABLE w.t SET ACCESS METHOD $to");
	$node->wait_crashed;
	$node->start;
	script("a crash in the midst of SET ACCESS METHOD $to", 'SELECT problems()');
	foreach my $end ('ROLLBACK', 'COMMIT')
	{
		$node->safe_psql('postgres', "$begin BEGIN; ALTER TABLE w.t SET ACCESS METHOD $to; PREPARE TRANSACTION 'p'");
		$node->crash;
		$node->start;
		$node->safe_psql('postgres', "$end PREPARED 'p'");
		script("SET ACCESS METHOD $to prepared, a crash, $end PREPARED", 'SELECT problems(' . ($end eq 'COMMIT' ? $now : '') . ')');
	}
}
$node->safe_psql('postgres', 'DROP SCHEMA w CASCADE; CALL make(); DROP INDEX w.t_none; CALL note()');

# ---- databases

$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE postgres; CREATE DATABASE copy2 TEMPLATE postgres STRATEGY file_copy; ALTER DATABASE copy2 SET TABLESPACE there');
foreach my $db ('copy', 'copy2')
{
	is($node->safe_psql($db, 'CALL note(); SELECT problems(); REINDEX TABLE w.t; UPDATE w.t SET n = n + 1, body = v; ALTER TABLE w.t ALTER v TYPE varchar(30); SELECT problems()'), '', "$db: nothing is wrong");
}
$node->crash;
$node->start;
is($node->safe_psql($_, 'SELECT problems()'), '', "$_: nor after a crash") foreach 'postgres', 'copy', 'copy2';
$node->safe_psql('postgres', 'DROP DATABASE copy; DROP DATABASE copy2');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations WHERE database IS NULL OR database <> current_database()'), '0', 'nothing is left of them');

# ---- UNLOGGED

$node->safe_psql('postgres', "DROP SCHEMA w CASCADE; CALL make('UNLOGGED'); DROP INDEX w.t_none; CALL note(); CHECKPOINT");
$node->crash;
$node->start;
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM w.t WHERE id > 0; SELECT problems()'), '0', 'UNLOGGED indexes are empty after a crash, and valid');
$node->safe_psql('postgres', q(INSERT INTO w.t (id, v, n, body, d) SELECT i, 'v' || i, i, 'b', i FROM generate_series(1, 500) i));
script('and can be used', 'SELECT problems()');
$node->stop;
$node->start;
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM w.t WHERE id > 0; SELECT problems()'), '500', 'after a clean stop they hold what they held');

# ---- orphans, a lost pool

$node->safe_psql('postgres', "DROP SCHEMA w CASCADE; CALL make(); DROP INDEX w.t_none; CALL note(); SELECT * FROM nvm.drop_orphans()");
script('nothing of ours is taken for an orphan', 'SELECT problems()');
$node->safe_psql('postgres', 'CREATE TABLE w.o (id int PRIMARY KEY) USING nvm');
$node->stop;
my $pool = $node->pool_file;
rename($pool, "$pool.away") or die $!;
$node->start;
$node->fails_with('SELECT * FROM w.t WHERE id = 5', qr/nvm tables are not available/, 'without the pool an access says so');
$node->fails_with("ALTER $_", qr/nvm tables are not available/, "and so does ALTER $_")
  foreach 'TABLE w.t ALTER v TYPE varchar(20)', 'INDEX w.t_v SET TABLESPACE there', 'TABLE w.t SET ACCESS METHOD heap';
$node->safe_psql('postgres', 'ALTER TABLE w.t ALTER v SET DEFAULT 5; ALTER INDEX w.t_v RENAME TO t_v2; ALTER INDEX w.t_v2 RENAME TO t_v; DROP TABLE w.o');
$node->stop;
rename("$pool.away", $pool) or die $!;
$node->start;
is($node->safe_psql('postgres', "SELECT string_agg(kind, '' ORDER BY kind) FROM nvm.relations WHERE relation IS NULL"), 'ir', 'a table dropped without the pool leaves its storages');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.drop_orphans()'), '2', 'drop_orphans takes them');
script('and nothing else', 'SELECT problems()');
$node->safe_psql('postgres', 'SELECT nvm.reset_pool(force => true)');
$node->restart;
$node->fails_with('SET enable_seqscan = off; SELECT v FROM w.t WHERE id = 5', qr/lost/, 'a new pool: each access says that it has nothing');
$node->safe_psql('postgres', 'TRUNCATE w.t CASCADE; INSERT INTO w.t (id, v, d) SELECT i, i, i FROM generate_series(1, 100) i');
script('TRUNCATE gets the table and its indexes back', 'SELECT problems()');

# ---- operator classes made on demand

# They are made by the superuser, in the session of a user whose temporary table
# hides the one that an event trigger writes to.
is($node->safe_psql('postgres', <<'SQL'), 'someone CREATE TABLE', 'event triggers do not run as superuser when operator classes are made');
DROP SCHEMA w CASCADE;
CREATE EXTENSION citext;
CREATE TABLE audit (tag text, who text);
GRANT INSERT ON audit TO public;
GRANT CREATE ON SCHEMA public TO someone;
CREATE FUNCTION note_command() RETURNS event_trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO audit VALUES (tg_tag, current_user); END$$;
SET ROLE someone;
CREATE TEMP TABLE audit (tag text, who text);
RESET ROLE;
CREATE EVENT TRIGGER t ON ddl_command_end EXECUTE FUNCTION note_command();
SET ROLE someone;
CREATE TABLE ct (a citext PRIMARY KEY) USING nvm;
RESET ROLE;
DROP EVENT TRIGGER t;
SELECT who || ' ' || tag FROM (TABLE pg_temp.audit UNION ALL TABLE public.audit) a;
INSERT INTO ct VALUES ('Abc');
SELECT 'not found' FROM ct WHERE a = 'aBC' HAVING count(*) = 0;
DROP EXTENSION citext CASCADE;
CREATE SCHEMA apart;
CREATE EXTENSION citext SCHEMA apart;
CREATE TABLE apart.t (a apart.citext) USING nvm;
CREATE INDEX i ON apart.t USING nvm_btree (a apart.citext_pattern_ops);
CREATE TABLE apart.l (LIKE apart.t INCLUDING ALL) USING nvm;
SELECT indexrelid::regclass FROM pg_index WHERE indrelid IN ('apart.t'::regclass, 'apart.l'::regclass)
	AND pg_get_indexdef(indexrelid) NOT LIKE '%USING nvm_btree (a apart.citext_pattern_ops)';
DROP EXTENSION citext CASCADE;
SELECT opcname FROM pg_opclass o WHERE opcname = 'citext_ops' OR (opcname LIKE 'btree\_%' AND NOT EXISTS (SELECT FROM pg_opclass m WHERE m.oid::text = substr(o.opcname, 7)));
SQL

# ---- what PostgreSQL asks of operator classes by their numbers

$node->safe_psql('postgres', "CREATE DATABASE utf8 TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'");
my ($ret, undef, $err) = $node->psql('utf8', "CREATE EXTENSION pg_nvm; CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)");
SKIP:
{
	skip 'the server has no ICU', 3 if $err =~ /ICU is not supported/;
	is($err, '', 'a collation that is not deterministic');
	$node->safe_psql('utf8', "CREATE TABLE w (t text COLLATE ci, b bpchar COLLATE ci) USING nvm; INSERT INTO w VALUES ('a', 'a'), ('A', 'A')");
	foreach my $class ('t text_pattern_ops', 'b bpchar_pattern_ops')
	{
		($ret, undef, $err) = $node->psql('utf8', "CREATE INDEX ON w ($class)");
		like($err, qr/nondeterministic collations are not supported for operator class/, "$class is refused with it");
	}
}

$node->safe_psql('postgres', 'DROP EXTENSION pg_nvm CASCADE; DROP SCHEMA IF EXISTS w CASCADE');
$node->stop;

done_testing();

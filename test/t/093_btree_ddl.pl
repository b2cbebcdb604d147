# Copyright (c) 2026, pg_nvm contributors

# DDL of every form over tables with every kind of index: afterwards access
# method and storage of each index agree, indexes of ours are still ours, each
# has all entries, and no storage is left over; also after ROLLBACK, after
# ROLLBACK TO, in the transaction that made the table, and after a crash.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->new('main');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
nvm.default_index_method = nvm_btree
allow_in_place_tablespaces = on
max_prepared_transactions = 5
autovacuum = off
client_min_messages = warning
CONF
$node->start;
$node->safe_psql('postgres', <<'SQL');
CREATE TABLESPACE there LOCATION '';
CREATE ROLE someone;
CREATE EXTENSION pg_nvm;

-- a table with every kind of index, and one that refers to it, in schema w
CREATE PROCEDURE make(kind text DEFAULT '', am text DEFAULT 'nvm') LANGUAGE plpgsql AS $$
BEGIN
	CREATE SCHEMA w;
	EXECUTE format('CREATE %s TABLE w.t (id int CONSTRAINT t_pkey PRIMARY KEY, v varchar(10) CONSTRAINT t_v UNIQUE, n int,
		body text, d int CONSTRAINT t_d UNIQUE DEFERRABLE, p point DEFAULT point(0,0), gone int) USING %I', kind, am);
	EXECUTE format('CREATE %s TABLE w.child (id int PRIMARY KEY, t int REFERENCES w.t ON DELETE CASCADE) USING %I', kind, am);
	INSERT INTO w.t (id, v, n, body, d) SELECT i, 'v' || i, nullif(i % 7, 3), repeat(chr(97 + i % 26), i % 90), -i FROM generate_series(1, 400) i;
	INSERT INTO w.child SELECT i, i FROM generate_series(1, 100) i;
	CREATE UNIQUE INDEX t_nulls ON w.t (n, id) NULLS NOT DISTINCT;
	CREATE INDEX t_multi ON w.t (n DESC NULLS LAST, v) INCLUDE (d);
	CREATE INDEX t_part ON w.t (body) WHERE id % 2 = 0;
	CREATE INDEX t_expr ON w.t (lower(body), (id + d));
	CREATE INDEX t_pattern ON w.t (body text_pattern_ops) WITH (fillfactor = 70, deduplicate_items = off);
	CREATE INDEX t_coll ON w.t (v COLLATE "C");
	CREATE INDEX t_btree ON w.t USING btree (n);
	CREATE INDEX t_hash ON w.t USING hash (id);
	CREATE INDEX t_brin ON w.t USING brin (id);
	CREATE INDEX t_gist ON w.t USING gist (p);
	ALTER TABLE w.t ADD CONSTRAINT t_excl EXCLUDE USING btree (id WITH =);
	ALTER TABLE w.t ADD COLUMN late int CONSTRAINT t_late UNIQUE;
	UPDATE w.t SET late = id WHERE id % 3 = 0;
	DELETE FROM w.t WHERE id % 11 = 0;
END $$;

-- what was there, to be compared
CREATE TABLE was (name text, am text);
CREATE PROCEDURE note() LANGUAGE sql AS $$
	DELETE FROM was;
	INSERT INTO was SELECT c.oid::regclass::text, amname FROM pg_class c JOIN pg_am a ON a.oid = relam
		WHERE relnamespace IN (to_regnamespace('w'), pg_my_temp_schema()) AND relkind = 'i';
$$;

-- what is wrong with tables and indexes of schema w, and of this session's temporary ones
CREATE FUNCTION problems(becomes text DEFAULT 'nvm_btree') RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	want text;
	a bigint;
	b bigint;
BEGIN
	SET LOCAL search_path = public;
	FOR r IN SELECT c.oid, c.oid::regclass::text AS name, relkind, relpersistence, amname, indisvalid AND indisready AND indislive AS valid,
				(SELECT count(*) FROM nvm.relations s WHERE s.relation = c.oid AND NOT ended) AS storages,
				(SELECT count(*) FROM nvm.relations s WHERE s.relation = c.oid AND NOT ended AND kind = CASE c.relkind WHEN 'i' THEN 'i' ELSE 'r' END
					AND persistence = relpersistence AND (kind = 'r' OR blocks > 0 OR relpersistence = 'u')) AS good
			 FROM pg_class c JOIN pg_am a ON a.oid = relam LEFT JOIN pg_index i ON indexrelid = c.oid
			 WHERE relkind IN ('i', 'r', 'm') AND relnamespace IN (to_regnamespace('w'), pg_my_temp_schema()) ORDER BY 2
	LOOP
		IF r.storages <> (r.amname IN ('nvm', 'nvm_btree'))::int OR r.good <> r.storages THEN
			RETURN NEXT format('%s (%s) has %s storages, %s good', r.name, r.amname, r.storages, r.good);
		END IF;
		CONTINUE WHEN r.amname NOT LIKE 'nvm%' AND r.relkind <> 'i';
		IF r.amname LIKE 'nvm%' THEN
			RETURN QUERY SELECT format('check of %s: %s', r.name, f) FROM nvm.check(r.oid::regclass, true) f;
		END IF;
		IF r.relkind = 'i' THEN
			IF NOT r.valid THEN RETURN NEXT r.name || ' is not valid'; END IF;
			SELECT CASE am WHEN 'nvm_btree' THEN becomes ELSE am END INTO want FROM was WHERE name = r.name;
			IF want <> r.amname THEN
				RETURN NEXT format('%s has access method %s, not %s', r.name, r.amname, want);
			END IF;
		END IF;
	END LOOP;
	RETURN QUERY SELECT format('of nobody: %s', s) FROM nvm.relations s WHERE database = current_database() AND relation IS NULL AND NOT ended
		AND (persistence <> 't');
	RETURN QUERY SELECT format('pool: %s', p) FROM nvm.check_pool() p;
	RETURN QUERY SELECT format('%s: dependency on ours', classid::regclass || ' ' || objid::regclass) FROM pg_depend d JOIN pg_class c ON d.objid = c.oid AND d.classid = 'pg_class'::regclass
		JOIN pg_am a ON a.oid = c.relam JOIN pg_opclass o ON d.refclassid = 'pg_opclass'::regclass AND d.refobjid = o.oid
		JOIN pg_am oa ON oa.oid = opcmethod WHERE oa.amname = 'nvm_btree' AND a.amname <> 'nvm_btree';
	IF to_regclass('w.t') IS NOT NULL THEN
		SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = on;
		EXECUTE 'SELECT sum(hashtext(t::text)) FROM w.t t WHERE id > 0' INTO a;
		SET LOCAL enable_indexscan = on; SET LOCAL enable_seqscan = off;
		EXECUTE 'SELECT sum(hashtext(t::text)) FROM w.t t WHERE id > 0' INTO b;
		IF a IS DISTINCT FROM b THEN RETURN NEXT format('by table %s, by index %s', a, b); END IF;
		RESET enable_indexscan; RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_indexonlyscan;
	END IF;
END $$;
SQL

my $storages = $node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations');
my $turn = 0;

# Run a script whose output is problems.
sub script
{
	my ($name, $sql) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);

	$err =~ s/^.*cannot reindex exclusion constraint index .* concurrently, skipping\n?//mg if defined $err;
	is($err // '', '', "$name: no error");
	is($out, '', "$name: nothing is wrong");
	return;
}

# The form on a fresh table: alone; with new rows after it; in a transaction,
# rolled back and committed; with savepoints; in the transaction that makes the
# table.
sub walk
{
	my ($form, %how) = @_;
	my $becomes = $how{becomes} // 'nvm_btree';
	my $am = $how{am} // 'nvm';
	my $kind = $how{kind} // '';
	my $next = 'FROM generate_series(1, 50) i, (SELECT coalesce(max(id), 0) AS b FROM w.t) m;';
	my $more = $how{more} // "INSERT INTO w.t (id, v, n, body, d) SELECT b + i, 'w' || b + i, i, 'after', -b - i $next";
	my $make = "CALL make('$kind', '$am'); CALL note();";
	my $check = "SELECT problems('$becomes');";
	my $same = 'SELECT problems();';
	my $drop = 'DROP SCHEMA w CASCADE;';
	my $sql = "SET search_path = w, public; DROP SCHEMA IF EXISTS w CASCADE;\n";

	$sql .= "$make $form; $check $more $check $drop\n";
	my @more = (
		"$make BEGIN; $form; ROLLBACK; $same $more $same BEGIN; $form; $more COMMIT; $check $drop\n",
		"$make BEGIN; SAVEPOINT a; $form; $check ROLLBACK TO a; $same $more $same SAVEPOINT b; $form; RELEASE b; $check COMMIT; $check $drop\n",
		"BEGIN; $make $form; $check $more $check COMMIT; $check $drop\n",
		"BEGIN; $make SAVEPOINT a; $form; $check $more ROLLBACK TO a; $same $more $same SAVEPOINT b; SAVEPOINT c; $form; RELEASE c; ROLLBACK TO b; $same COMMIT; $same $drop\n");
	# in turn, if there is not much time; two for the forms that we know to be hard
	if (!NvmTest::is_long())
	{
		my $n = $form =~ / TYPE |ACCESS METHOD|TABLESPACE/ ? 2 : 1;
		@more = map { $more[ $turn++ % @more ] } 1 .. $n;
	}
	$sql .= join('', @more) unless $how{alone};
	$sql .= "SELECT 'a storage is left' FROM nvm.relations HAVING count(*) <> $storages;\n";
	script($how{name} // ($form . ($kind ? " ($kind)" : '') . ($am ne 'nvm' ? " ($am)" : '')), $sql);
	return;
}

# ---- ALTER TABLE

my @alter = (
	'ADD COLUMN x int', 'ADD COLUMN x int DEFAULT 5', 'ADD COLUMN x int DEFAULT (random() * 0)::int', 'ADD COLUMN x int UNIQUE',
	'ADD COLUMN x serial', 'ADD COLUMN x int GENERATED ALWAYS AS (id * 2) STORED',
	'DROP COLUMN n', 'DROP COLUMN gone', 'DROP COLUMN body CASCADE',
	'ALTER v TYPE varchar(20)', 'ALTER v TYPE text', 'ALTER v TYPE varchar(12) COLLATE "C"', 'ALTER v TYPE char(15)',
	'ALTER n TYPE bigint', 'ALTER id TYPE bigint', 'ALTER d TYPE numeric', 'ALTER body TYPE varchar',
	'ALTER v TYPE varchar(20), ALTER n TYPE bigint, ADD COLUMN x int',
	'ALTER v SET DEFAULT 7', 'ALTER v SET NOT NULL', 'ALTER id SET STATISTICS 10', 'ALTER body SET STORAGE external', 'ALTER body SET COMPRESSION pglz',
	'ALTER n SET (n_distinct = 5)', 'ALTER id ADD GENERATED BY DEFAULT AS IDENTITY (START 100000)',
	'ADD CONSTRAINT c CHECK (id > 0)', 'ADD CONSTRAINT c CHECK (id > 0) NOT VALID', 'ADD CONSTRAINT f FOREIGN KEY (late) REFERENCES w.t',
	'ADD CONSTRAINT x UNIQUE (id, v) INCLUDE (n)', 'ADD CONSTRAINT x UNIQUE NULLS NOT DISTINCT (id, n)', 'ADD EXCLUDE USING gist (p WITH ~=) WHERE (id = 1)',
	'DROP CONSTRAINT t_v', 'DROP CONSTRAINT t_pkey CASCADE', 'DROP CONSTRAINT t_pkey CASCADE, ADD CONSTRAINT t_pkey PRIMARY KEY (id) INCLUDE (d)',
	'ALTER CONSTRAINT t_self DEFERRABLE', 'VALIDATE CONSTRAINT t_self',
	'DISABLE TRIGGER ALL', 'ENABLE ROW LEVEL SECURITY', 'REPLICA IDENTITY USING INDEX t_pkey', 'REPLICA IDENTITY FULL',
	'SET (fillfactor = 70)', 'RESET (fillfactor)', 'OWNER TO someone', 'SET TABLESPACE there',
	'RENAME COLUMN v TO v2', 'RENAME CONSTRAINT t_v TO t_v2', 'CLUSTER ON t_pkey', 'SET WITHOUT CLUSTER',
	'SET UNLOGGED');

foreach my $form (@alter)
{
	my $first = $form =~ /t_self/ ? 'ALTER TABLE w.t ADD CONSTRAINT t_self FOREIGN KEY (late) REFERENCES w.t NOT VALID; ' : '';
	my %how;

	$first = 'ALTER TABLE w.child DROP CONSTRAINT child_t_fkey; ' if $form eq 'SET UNLOGGED';
	$how{more} = 'INSERT INTO w.t (id) SELECT b + i FROM generate_series(1, 50) i, (SELECT max(id) AS b FROM w.t) m;'
	  if $form =~ /^(DROP COLUMN|RENAME COLUMN)/;
	walk("${first}ALTER TABLE w.t $form", %how, name => "ALTER TABLE $form");
}
walk('ALTER TABLE w.t RENAME TO t2; ALTER TABLE w.t2 RENAME TO t', name => 'ALTER TABLE RENAME');
walk('ALTER TABLE w.t SET SCHEMA public; ALTER TABLE t SET SCHEMA w', name => 'ALTER TABLE SET SCHEMA');
walk('ALTER TABLE w.t SET ACCESS METHOD heap', becomes => 'btree');
walk('ALTER TABLE w.t SET ACCESS METHOD heap; ALTER TABLE w.t SET ACCESS METHOD nvm', becomes => 'btree');
walk('ALTER TABLE w.t SET ACCESS METHOD nvm');
walk('ALTER TABLE w.t SET ACCESS METHOD nvm', am => 'heap', becomes => 'btree');
walk('ALTER TABLE w.t SET ACCESS METHOD heap, ALTER v TYPE varchar(20), ALTER n TYPE bigint', becomes => 'btree');
walk('ALTER TABLE w.t ALTER v TYPE varchar(20)', kind => 'UNLOGGED');
walk('ALTER TABLE w.t SET LOGGED; ALTER TABLE w.child SET LOGGED', kind => 'UNLOGGED');

# ---- indexes

walk("ALTER INDEX w.$_") foreach
	't_v SET TABLESPACE there', 't_pkey SET TABLESPACE there', 't_expr SET TABLESPACE there', 't_btree SET TABLESPACE there',
	't_multi SET (fillfactor = 50)', 't_pattern RESET (fillfactor)', 't_expr ALTER COLUMN 1 SET STATISTICS 50', 't_part RENAME TO t_part2';
walk('ALTER INDEX ALL IN TABLESPACE pg_default SET TABLESPACE there; ALTER INDEX ALL IN TABLESPACE there SET TABLESPACE pg_default', alone => 1, name => 'ALTER INDEX ALL IN TABLESPACE');
walk('CREATE INDEX x ON w.t (d)');
walk('CREATE UNIQUE INDEX x ON w.t USING nvm_btree (id, v) WHERE n IS NULL');
walk('DROP INDEX w.t_multi, w.t_part, w.t_hash');
walk("REINDEX $_") foreach 'INDEX w.t_v', 'TABLE w.t', '(TABLESPACE there) TABLE w.t';
walk('REINDEX SCHEMA w', alone => 1);
walk("REINDEX $_", alone => 1) foreach 'INDEX CONCURRENTLY w.t_v', 'TABLE CONCURRENTLY w.t', '(TABLESPACE there, CONCURRENTLY) TABLE w.t';
walk($_, alone => 1) foreach 'CREATE INDEX CONCURRENTLY x ON w.t (body, n)', 'CREATE UNIQUE INDEX CONCURRENTLY x ON w.t (d)',
  'DROP INDEX CONCURRENTLY w.t_multi';

walk('CREATE UNIQUE INDEX x ON w.t (id, v); ALTER TABLE w.t ADD CONSTRAINT y UNIQUE USING INDEX x', name => 'ADD CONSTRAINT USING INDEX');
walk("CREATE UNIQUE INDEX x ON w.t (id, v); ALTER TABLE w.t ADD CONSTRAINT y UNIQUE USING INDEX x, $_", name => "ADD CONSTRAINT USING INDEX, $_")
  foreach 'ALTER v TYPE varchar(20)', 'ALTER id TYPE bigint', 'ADD COLUMN x float DEFAULT random()', 'ADD FOREIGN KEY (late) REFERENCES w.t';

# ---- what rebuilds

walk("$_ /* */", name => $_) foreach 'TRUNCATE w.t CASCADE', 'TRUNCATE w.t CASCADE; TRUNCATE w.t CASCADE', 'CLUSTER w.t USING t_v';
walk($_, alone => 1) foreach 'VACUUM FULL w.t', 'VACUUM (ANALYZE) w.t', 'CLUSTER w.t USING t_multi; VACUUM FULL w.t';

# ---- copies

walk('CREATE TABLE w.l (LIKE w.t INCLUDING ALL) USING nvm; INSERT INTO w.l (id, v) SELECT id, v FROM w.t; DROP TABLE w.l', name => 'LIKE INCLUDING ALL');
walk('CREATE TABLE w.l (LIKE w.t INCLUDING ALL) USING heap; INSERT INTO w.l (id, v) SELECT id, v FROM w.t', name => 'LIKE INCLUDING ALL, a heap table');
walk('CREATE TABLE w.c USING nvm AS SELECT * FROM w.t; ALTER TABLE w.c ADD PRIMARY KEY (id); CREATE MATERIALIZED VIEW w.m USING nvm AS SELECT * FROM w.t; '
  . 'CREATE INDEX ON w.m USING nvm_btree (v); REFRESH MATERIALIZED VIEW w.m; DROP TABLE w.c', name => 'CREATE TABLE AS, materialized view');
walk('CREATE TABLE w.kid () INHERITS (w.t) USING nvm; CREATE INDEX ON w.kid (id); INSERT INTO w.kid (id) VALUES (5000); ALTER TABLE w.t ALTER v TYPE varchar(20)', name => 'a child by inheritance');
walk('CREATE TABLE w.p (id int, v varchar(10)) PARTITION BY RANGE (id); CREATE INDEX ON w.p USING nvm_btree (v); '
  . 'CREATE TABLE w.p1 PARTITION OF w.p FOR VALUES FROM (0) TO (100) USING nvm; CREATE TABLE w.p2 (id int, v varchar(10)) USING nvm; '
  . 'ALTER TABLE w.p ATTACH PARTITION w.p2 FOR VALUES FROM (100) TO (1000); INSERT INTO w.p SELECT i, i FROM generate_series(1, 500) i; '
  . 'ALTER TABLE w.p ALTER v TYPE varchar(20); ALTER TABLE w.p DETACH PARTITION w.p1', name => 'partitions');

my $attach = 'CREATE TABLE w.q (id int PRIMARY KEY, v text, n int) PARTITION BY RANGE (id); CREATE INDEX ON w.q (v); CREATE INDEX q_n ON ONLY w.q (n); '
  . 'CREATE TABLE w.q1 (v text UNIQUE, n int, id int PRIMARY KEY) USING nvm; CREATE INDEX ON w.q1 (v); CREATE INDEX q1_n ON w.q1 (n); CREATE INDEX ON w.q1 (lower(v)); '
  . 'INSERT INTO w.q1 SELECT i, i, i FROM generate_series(1, 500) i; ';
my $attached = 'ALTER TABLE w.q ATTACH PARTITION w.q1 FOR VALUES FROM (0) TO (1000); ALTER INDEX w.q_n ATTACH PARTITION w.q1_n; '
  . 'CREATE INDEX ON w.q (lower(v)); INSERT INTO w.q VALUES (501, 501, 501)';
walk("$attach $attached", name => 'ATTACH PARTITION');

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

$node->safe_psql('postgres', "CALL make(); CALL note(); BEGIN; ALTER TABLE w.t ALTER v TYPE varchar(20); REINDEX TABLE w.child; PREPARE TRANSACTION 'p'");
$node->crash;
$node->start;
$node->safe_psql('postgres', "ROLLBACK PREPARED 'p'");
script('a prepared transaction, rolled back after a crash', 'SELECT problems()');
$node->safe_psql('postgres', "BEGIN; ALTER TABLE w.t ALTER v TYPE varchar(20); DROP INDEX w.t_multi; REINDEX TABLE w.child; PREPARE TRANSACTION 'p'");
$node->crash;
$node->start;
$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
script('a prepared transaction, committed after a crash', 'SELECT problems()');

foreach my $end ('ROLLBACK', 'COMMIT')
{
	$node->safe_psql('postgres', "DROP SCHEMA w CASCADE; CALL make(); CALL note(); $attach; BEGIN; $attached; PREPARE TRANSACTION 'p'");
	$node->crash;
	$node->start;
	$node->safe_psql('postgres', "$end PREPARED 'p'");
	script("ATTACH PARTITION prepared, a crash, $end PREPARED", 'SELECT problems()');
	is($node->safe_psql('postgres', q(SELECT string_agg(DISTINCT amname, ' ') FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam WHERE indrelid = 'w.q1'::regclass AND NOT indisunique)),
		$end eq 'COMMIT' ? 'btree' : 'nvm_btree', "$end PREPARED: whose the indexes are");
}
$node->safe_psql('postgres', "DROP SCHEMA w CASCADE; CALL make(); CALL note(); $attach");
$node->psql('postgres', "SET nvm.failpoint = 'ddl-convert-index:crash:3'; $attached");
$node->wait_crashed;
$node->start;
script('a crash in the midst of ATTACH PARTITION', 'SELECT problems()');

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

$node->safe_psql('postgres', "DROP SCHEMA w CASCADE; CALL make('UNLOGGED'); CALL note(); CHECKPOINT");
$node->crash;
$node->start;
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM w.t WHERE id > 0; SELECT problems()'), '0', 'UNLOGGED indexes are empty after a crash, and valid');
$node->safe_psql('postgres', q(INSERT INTO w.t (id, v, n, body, d) SELECT i, 'v' || i, i, 'b', i FROM generate_series(1, 500) i));
script('and can be used', 'SELECT problems()');
$node->stop;
$node->start;
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM w.t WHERE id > 0; SELECT problems()'), '500', 'after a clean stop they hold what they held');

# ---- orphans, a lost pool

$node->safe_psql('postgres', "DROP SCHEMA w CASCADE; CALL make(); CALL note(); SELECT * FROM nvm.drop_orphans()");
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
CREATE SCHEMA far;
CREATE EXTENSION citext SCHEMA far;
CREATE TABLE far.t (a far.citext) USING nvm;
CREATE INDEX i ON far.t USING nvm_btree (a far.citext_pattern_ops);
CREATE TABLE far.l (LIKE far.t INCLUDING ALL) USING nvm;
SELECT indexrelid::regclass FROM pg_index WHERE indrelid IN ('far.t'::regclass, 'far.l'::regclass)
	AND pg_get_indexdef(indexrelid) NOT LIKE '%USING nvm_btree (a far.citext_pattern_ops)';
DROP EXTENSION citext CASCADE;
SELECT opcname FROM pg_opclass WHERE opcname = 'citext_ops';
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

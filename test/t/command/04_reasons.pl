# Copyright (c) 2026, pg_nvm contributors

# What makes a transaction one of values, and its reason in nvm.commands: each thing on the
# list of src/command/README.md is done once in a call, in several ways where there are
# several, and so is what is admitted: that gives none.  The first reason of a transaction
# counts, with its object and the client's statement.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $node = NvmTest->start_new('reasons', conf => <<CONF, sql => <<'SQL');
max_prepared_transactions = 5
max_worker_processes = 8
max_parallel_workers_per_gather = 2
CONF
CREATE TABLE stock (w int, i int, n int NOT NULL, t timestamptz, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('stock', 'w');
INSERT INTO stock SELECT w, i, 100 FROM generate_series(1, 20) w, generate_series(1, 20) i;
CREATE TABLE item (i int PRIMARY KEY, price numeric) USING nvm_cmdlog;
INSERT INTO item SELECT i, i FROM generate_series(1, 20) i;
CREATE TABLE broken (w int NOT NULL, i int UNIQUE) USING nvm_cmdlog;
SECURITY LABEL FOR nvm ON COLUMN broken.w IS 'partition';
CREATE TABLE a_heap (i int PRIMARY KEY, v int DEFAULT 0);
INSERT INTO a_heap SELECT i FROM generate_series(1, 10) i;
CREATE TABLE a_nvm (i int PRIMARY KEY) USING nvm;
CREATE TABLE a_vlog (i int PRIMARY KEY) USING nvm_vlog;
CREATE UNLOGGED TABLE unlogged (i int) USING nvm_cmdlog;
CREATE VIEW on_heap AS SELECT i FROM a_heap;
CREATE VIEW on_item AS SELECT i FROM item;
CREATE SEQUENCE seq;
CREATE FUNCTION dice() RETURNS float LANGUAGE internal AS 'drandom';
CREATE FUNCTION wall_clock() RETURNS timestamptz LANGUAGE internal AS 'clock_timestamp';
CREATE TABLE checked (w int PRIMARY KEY, r float CHECK (r + dice() > 0)) USING nvm_cmdlog;
SELECT nvm.partition_table('checked', 'w');
CREATE FUNCTION stamped() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.t := wall_clock(); RETURN new; END';
CREATE TABLE history (w int PRIMARY KEY, t timestamptz) USING nvm_cmdlog;
SELECT nvm.partition_table('history', 'w');
CREATE TRIGGER t BEFORE INSERT ON history FOR EACH ROW EXECUTE FUNCTION stamped();
CREATE TABLE quiet (w int PRIMARY KEY, t text) USING nvm_cmdlog;
SELECT nvm.partition_table('quiet', 'w');
CREATE TRIGGER t BEFORE UPDATE ON quiet FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
INSERT INTO quiet SELECT i, '' FROM generate_series(1, 20) i;
CREATE TABLE parent (i int PRIMARY KEY) USING nvm_cmdlog;
INSERT INTO parent SELECT i FROM generate_series(1, 20) i;
CREATE TABLE deferred (w int, i int, PRIMARY KEY (w, i), FOREIGN KEY (i) REFERENCES parent DEFERRABLE) USING nvm_cmdlog;
SELECT nvm.partition_table('deferred', 'w');
CREATE TABLE checked_fk (w int, i int REFERENCES item, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('checked_fk', 'w');
CREATE TABLE recheck (w int, i int, UNIQUE (w, i) DEFERRABLE INITIALLY DEFERRED) USING nvm_cmdlog;
ALTER TABLE recheck ALTER w SET NOT NULL;
SELECT nvm.partition_table('recheck', 'w');
CREATE FUNCTION helper(int) RETURNS float LANGUAGE plpgsql AS 'BEGIN RETURN dice() * $1; END';
CREATE FUNCTION teller() RETURNS text LANGUAGE plpgsql AS 'DECLARE y text; BEGIN GET DIAGNOSTICS y = PG_CONTEXT; RETURN y; END';
CREATE FUNCTION in_sql() RETURNS float LANGUAGE sql AS 'SELECT dice()';
CREATE FUNCTION sum_in_sql(int) RETURNS int LANGUAGE sql AS 'SELECT $1 + 1';
CREATE PROCEDURE in_proc(float) LANGUAGE plpgsql AS 'BEGIN NULL; END';
CREATE TABLE checked_sql (w int PRIMARY KEY, r float CHECK (r + in_sql() > 0)) USING nvm_cmdlog;
SELECT nvm.partition_table('checked_sql', 'w');
CREATE FUNCTION pure(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN $1 + 1; END';
CREATE FUNCTION f_chance(float, float) RETURNS float LANGUAGE internal AS 'float8pl';
CREATE TABLE routed (w int NOT NULL, k int) PARTITION BY LIST (k);
CREATE TABLE routed_heap PARTITION OF routed FOR VALUES IN (1);
CREATE TABLE routed_check PARTITION OF routed FOR VALUES IN (2) USING nvm_cmdlog;
ALTER TABLE routed_check ADD CHECK (dice() >= 0);
CREATE TABLE routed_fk PARTITION OF routed FOR VALUES IN (3) USING nvm_cmdlog;
ALTER TABLE routed_fk ADD FOREIGN KEY (k) REFERENCES parent DEFERRABLE;
CREATE TABLE routed_plain PARTITION OF routed FOR VALUES IN (4) USING nvm_cmdlog;
SELECT nvm.partition_table(t, 'w') FROM unnest('{routed_check,routed_fk,routed_plain}'::regclass[]) t;
CREATE TABLE perhaps (w int PRIMARY KEY, t timestamptz) USING nvm_cmdlog;
SELECT nvm.partition_table('perhaps', 'w');
CREATE TRIGGER t BEFORE INSERT ON perhaps FOR EACH ROW WHEN (dice() < 2) EXECUTE FUNCTION stamped();
CREATE VIEW on_stock AS SELECT w, i, n FROM stock;
CREATE FUNCTION as_it_is() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER t INSTEAD OF UPDATE ON on_stock FOR EACH ROW EXECUTE FUNCTION as_it_is();
CREATE TRIGGER s BEFORE UPDATE ON on_stock FOR EACH STATEMENT WHEN (dice() > 2) EXECUTE FUNCTION as_it_is();
CREATE AGGREGATE chance(float) (SFUNC = f_chance, STYPE = float, INITCOND = '0');
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $state = q{SELECT replayable || ' ' || by_values || ' ' || unlogged || ' ' || coalesce(last_reason, 'none') || coalesce(': ' || last_object, '') FROM nvm.commands WHERE function = 'f(int)'::regprocedure};

# A function of one argument with this body, its lane registered, called once by a session
# of its own: what has come of it.  w is 1.
sub verdict
{
	my ($body, %params) = @_;
	my $call = $params{call} // 'SELECT f(1)';
	my $declare = $params{declare} // '';
	my $before = $params{before} // '';

	sql(qq{DROP FUNCTION IF EXISTS f(int);
CREATE FUNCTION f(w int) RETURNS int LANGUAGE plpgsql AS \$f\$
#variable_conflict use_column
DECLARE x int; y text; z float; r record; c refcursor; $declare
BEGIN
	$body
	RETURN 1;
END \$f\$;
SELECT nvm.register_command('f(int)', '{w}')});
	my ($ret, $out, $err) = $node->psql('postgres', "$before; $call");
	return "ERROR $err" if $ret != 0 && !$params{fails};
	return sql($state);
}

my $write = 'UPDATE stock SET n = n - 1 WHERE stock.w = f.w AND i = 1;';

# ---- what is admitted

foreach my $case (
	['', 'nothing', '0 0 1'],
	[$write, 'a row of the lane', '1 0 0'],
	["UPDATE stock SET n = 7 WHERE stock.w = 1 AND i BETWEEN 2 AND 5;", 'rows of the lane, by a constant', '1 0 0'],
	["INSERT INTO stock VALUES (f.w, 1000, 0) ON CONFLICT DO NOTHING; DELETE FROM stock WHERE stock.w = f.w AND i = 1000;", 'INSERT, ON CONFLICT and DELETE', '1 0 0'],
	["SELECT n INTO x FROM stock WHERE stock.w = f.w AND i = 1 FOR UPDATE; $write", 'FOR UPDATE', '1 0 0'],
	["SELECT sum(price) INTO x FROM item; $write", 'a shared table, in any way', '1 0 0'],
	["SELECT count(*) INTO x FROM on_item; $write", 'by a view', '1 0 0'],
	["x := pure(3); y := upper('a') || now() || current_date || to_char(now(), 'YYYY'); $write", 'IMMUTABLE functions, and the time of the transaction', '1 0 0'],
	["x := sum_in_sql(3); $write", 'a function in SQL', '1 0 0'],
	["CALL in_proc(3.5 + f.w); $write", 'CALL', '1 0 0'],
	["FOR r IN SELECT * FROM generate_series(now(), now(), '1 day') LOOP NULL; END LOOP; $write", 'generate_series of times', '1 0 0'],
	["UPDATE stock SET t = now() + interval '1 day' WHERE stock.w = f.w AND i = 2;", 'the time of the transaction in a query', '1 0 0'],
	["FOR r IN SELECT n FROM stock WHERE stock.w = f.w ORDER BY i LOOP x := r.n; END LOOP; $write", 'a loop over a query', '1 0 0'],
	["OPEN c FOR SELECT n FROM stock WHERE stock.w = f.w ORDER BY i; FETCH c INTO x; FETCH c INTO x; CLOSE c; $write", 'a cursor of its own', '1 0 0'],
	["EXECUTE 'UPDATE stock SET n = n + 1 WHERE stock.w = \$1 AND i = 1' USING f.w;", 'EXECUTE', '1 0 0'],
	["INSERT INTO checked_fk VALUES (f.w, 3);", 'a foreign key to a shared table', '1 0 0'],
	["INSERT INTO recheck VALUES (f.w, 3);", 'a deferrable unique key', '1 0 0'],
	["INSERT INTO routed VALUES (f.w, 4);", 'a partition that the row is routed to', '1 0 0'],
	["y := current_user; $write", 'the role', '1 0 0'],
	["IF f.w > 1 THEN z := dice(); END IF; $write", 'a function that is not evaluated', '1 0 0'],
	["BEGIN $write EXCEPTION WHEN division_by_zero THEN NULL; END;", 'an EXCEPTION block that catches nothing', '1 0 0'])
{
	my ($body, $name, $counts) = @$case;
	is(verdict($body), "$counts none", "admitted: $name");
}

# ---- what is not

foreach my $case (
	['SELECT v INTO x FROM a_heap WHERE i = 1;', 'other table read: table a_heap', 'a table of heap'],
	['SELECT i INTO x FROM on_heap WHERE i = 1;', 'other table read: table a_heap', 'by a view'],
	['SELECT i INTO x FROM a_nvm WHERE i = 1;', 'other table read: table a_nvm', 'one of nvm'],
	['SELECT i INTO x FROM a_vlog WHERE i = 1;', 'other table read: table a_vlog', 'one of nvm_vlog'],
	['SELECT i INTO x FROM unlogged;', 'other table read: table unlogged', 'an UNLOGGED one'],
	['SELECT i INTO x FROM item WHERE EXISTS (SELECT FROM a_heap);', 'other table read: table a_heap', 'in a subquery'],
	['SELECT count(*) INTO x FROM pg_class;', 'other table read: table pg_class', 'a catalog'],
	['SELECT last_value INTO x FROM seq;', 'other table read: sequence seq', 'a sequence'],
	['UPDATE a_heap SET v = 1 WHERE i = 1;', 'other table written: table a_heap', 'a table of heap, written'],
	['INSERT INTO unlogged VALUES (1);', 'other table written: table unlogged', 'an UNLOGGED one, written'],
	["y := 'a'; PERFORM set_config('a.b', y, true);", 'function: function set_config(text,text,boolean)', 'set_config'],
	["x := setval('seq', 7);", 'function: function setval(regclass,bigint)', 'setval in an expression'],
	["INSERT INTO stock (w, i, n) VALUES (f.w, setval('seq', 7) + 1000, 0);", 'function: function setval(regclass,bigint)', 'setval in a query'],
	['PERFORM setseed(0.5);', 'function: function setseed(double precision)', 'setseed'],
	['z := nvm.tape(1.5::float, 1598);', 'function: function nvm.tape(anyelement,oid)', 'what plans have for the tape, by hand'],
	['z := nvm.tape(random(), 1574);', 'function: function nvm.tape(anyelement,oid)', 'the same with another function'],
	['PERFORM i FROM stock WHERE stock.w = f.w AND i > nvm.tape(1, 1574);', 'function: function nvm.tape(anyelement,oid)', 'the same in a query'],
	['z := dice();', 'function: function dice()', 'random in an expression'],
	['IF dice() > 2 THEN x := 1; END IF;', 'function: function dice()', 'in a condition'],
	['RETURN (dice() * 10)::int;', 'function: function dice()', 'in RETURN'],
	['FOR x IN 1 .. (dice() * 10)::int LOOP NULL; END LOOP;', 'function: function dice()', 'in the bounds of a loop'],
	['z := helper(2);', 'function: function dice()', 'in a function that it calls'],
	['y := teller();', 'function: function teller()', 'one that asks who has called it'],
	['z := in_sql();', 'function: function dice()', 'in a function in SQL, which is inlined'],
	['z := in_sql() + 1; CALL in_proc(1);', 'function: function dice()', 'the same in a larger expression'],
	['CALL in_proc(dice());', 'function: function dice()', 'in an argument of CALL'],
	['CALL in_proc(in_sql());', 'function: function in_sql()', 'and of a function in SQL'],
	['INSERT INTO checked_sql VALUES (f.w, 1);', 'function: function in_sql()', 'in a CHECK constraint, by a function in SQL'],
	['UPDATE stock SET n = (dice() * 10)::int WHERE stock.w = f.w AND i = 1;', 'function: function dice()', 'in a target list'],
	['UPDATE stock SET n = 1 WHERE stock.w = f.w AND i = 1 AND dice() > 2;', 'function: function dice()', 'in a condition of a query'],
	['SELECT price INTO z FROM item JOIN stock USING (i) WHERE stock.w = f.w AND price + n > dice();', 'function: function dice()', 'in a join'],
	['SELECT sum(n) INTO x FROM stock WHERE stock.w = f.w HAVING sum(n) > dice();', 'function: function dice()', 'in HAVING'],
	['SELECT n INTO x FROM stock WHERE stock.w = f.w ORDER BY i LIMIT 1 + dice()::int;', 'function: function dice()', 'in LIMIT'],
	['SELECT count(*) INTO x FROM generate_series(1, 1 + (dice() * 3)::int);', 'function: function dice()', 'in FROM'],
	['SELECT * INTO x FROM (VALUES (dice()::int), (1)) v;', 'function: function dice()', 'in VALUES'],
	['SELECT chance(n) INTO z FROM stock WHERE stock.w = f.w;', 'function: function chance(double precision)', 'in an aggregate'],
	['SELECT n INTO x FROM stock TABLESAMPLE bernoulli (50) WHERE stock.w = f.w;', undef, 'TABLESAMPLE'],
	["y := current_setting('work_mem');", 'function: function current_setting(text)', 'current_setting'],
	['y := wall_clock();', 'function: function wall_clock()', 'another one'],
	["x := pg_backend_pid();", 'function: function pg_backend_pid()', 'pg_backend_pid'],
	["x := to_regclass('stock')::oid::int;", 'function: function to_regclass(text)', 'to_regclass'],
	["INSERT INTO checked VALUES (f.w, 1);", 'function: function dice()', 'in a CHECK constraint'],
	["INSERT INTO deferred VALUES (f.w, 3);", 'deferrable constraint: constraint deferred_i_fkey on table deferred', 'a deferrable foreign key'],
	["INSERT INTO history VALUES (f.w);", 'function: function wall_clock()', 'in a trigger'],
	["UPDATE quiet SET t = 'x' WHERE quiet.w = f.w;", 'function: function suppress_redundant_updates_trigger()', "in a trigger in C"],
	['z := CASE f.w WHEN 1 THEN dice() END;', 'function: function dice()', 'in CASE'],
	['INSERT INTO routed VALUES (f.w, 1);', 'other table written: table routed_heap', 'a partition of heap that the row is routed to'],
	['INSERT INTO routed VALUES (f.w, 2);', 'function: function dice()', 'the CHECK constraint of such a partition'],
	['INSERT INTO routed VALUES (f.w, 3);', 'deferrable constraint: constraint routed_fk_k_fkey on table routed_fk', 'its foreign key'],
	['UPDATE routed_plain SET k = k; UPDATE routed SET k = 1 WHERE routed.w = f.w;', undef, 'a row that moves to another partition'],
	['INSERT INTO perhaps VALUES (f.w);', 'function: function dice()', "in a trigger's condition"],
	['UPDATE on_stock SET n = 1 WHERE on_stock.w = f.w AND i = 3;', 'function: function dice()', "in the condition of a view's trigger"],
	["x := age('3'::xid);", 'function: function age(xid)', 'age of a transaction'],
	['y := session_user;', 'function: function "session_user"()', 'session_user'],
	['SELECT ctid::text INTO y FROM stock WHERE stock.w = f.w AND i = 1;', 'system column', 'ctid'],
	["UPDATE stock SET n = 3 WHERE stock.w = f.w AND i = 1 AND xmin <> '3';", 'system column', 'xmin in a condition'],
	['SELECT n INTO x FROM stock WHERE stock.w = f.w AND i = 1 FOR UPDATE NOWAIT;', 'NOWAIT or SKIP LOCKED', 'NOWAIT'],
	['SELECT n INTO x FROM stock WHERE stock.w = f.w AND i = 1 FOR UPDATE SKIP LOCKED;', 'NOWAIT or SKIP LOCKED', 'SKIP LOCKED'],
	['CREATE TEMP TABLE tt (i int);', 'utility command', 'CREATE TABLE'],
	["SET LOCAL work_mem = '2MB';", 'utility command', 'SET'],
	['LOCK TABLE item;', 'utility command', 'LOCK'],
	["BEGIN x := 1 / (f.w - 1); EXCEPTION WHEN division_by_zero THEN NULL; END;", 'subtransaction rolled back', 'an EXCEPTION block that has caught'],
	['SELECT i INTO x FROM broken WHERE broken.w = f.w;', 'scan not within held lanes: table broken', 'a table that does not keep its label'])
{
	my ($body, $reason, $name) = @$case;
	my $got = verdict($write . $body);

	if (!defined $reason) { like($got, qr/^0 1 0 (function|scan not within)/, "not admitted: $name"); }
	else { is($got, "0 1 0 $reason", "not admitted: $name"); }
}

# what one session alone has, and what others have
is(verdict("${write}SELECT i INTO x FROM temp_one WHERE i = 1;", before => 'CREATE TEMP TABLE temp_one (i int) USING nvm_cmdlog'), '0 1 0 other table read', 'not admitted: a temporary one');
is(verdict("${write}INSERT INTO temp_one VALUES (1);", before => 'CREATE TEMP TABLE temp_one (i int) USING nvm_cmdlog'), '0 1 0 other table written', 'not admitted: a temporary one, written');
SKIP:
{
	skip 'no file_fdw', 1 if sql(q{SELECT count(*) FROM pg_available_extensions WHERE name = 'file_fdw'}) eq '0';
	sql(q{CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw; CREATE FOREIGN TABLE a_foreign (i int) SERVER files OPTIONS (program 'echo 7')});
	is(verdict("${write}SELECT i INTO x FROM a_foreign;"), '0 1 0 other table read: foreign table a_foreign', 'not admitted: a foreign one');
}

# ---- what the table's methods see: rows and scans outside of the lanes

foreach my $case (
	['UPDATE item SET price = 1 WHERE i = 1;', 'shared table written: table item', 'a shared table, written'],
	['UPDATE stock SET n = 1 WHERE stock.w = f.w + 1 AND i = 1;', 'scan not within held lanes', 'an UPDATE in another lane'],
	['INSERT INTO stock VALUES (f.w + 1, 5000, 1);', 'lane not held: table stock', 'an INSERT into another lane'],
	['SELECT n INTO x FROM stock WHERE i = 1;', 'scan not within held lanes: table stock', 'a scan that names no lane'],
	['SELECT n INTO x FROM stock WHERE stock.w > 0 AND i = 1;', 'scan not within held lanes: table stock', 'a scan of several'],
	['SELECT n INTO x FROM stock WHERE stock.w = 2 AND i = 1;', 'scan not within held lanes: table stock', 'a scan of another'])
{
	my ($body, $reason, $name) = @$case;
	like(verdict($write . $body), qr/^0 1 0 \Q$reason\E/, "not admitted: $name");
}

# ---- by the transaction around it

is(verdict($write, call => 'BEGIN; UPDATE stock SET n = 1 WHERE w = 9 AND i = 1; SELECT f(1); COMMIT'), '0 1 0 rows written outside of calls: table stock', 'rows written before the call');
is(verdict($write, call => 'BEGIN; SELECT f(1); UPDATE stock SET n = 1 WHERE w = 9 AND i = 1; COMMIT'), '0 1 0 rows written outside of calls: table stock', 'rows written after it');
is(verdict($write, call => 'BEGIN; SELECT f(1); SELECT count(*) FROM a_heap; UPDATE a_heap SET v = 1 WHERE i = 1; SELECT random(); SELECT f(1); COMMIT'), '1 0 0 none', 'what is read outside, and other tables, do not matter');
is(verdict($write, call => 'BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT f(1); COMMIT'), '0 1 0 isolation level', 'REPEATABLE READ');
is(verdict($write, call => 'BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT f(1); COMMIT'), '0 1 0 isolation level', 'SERIALIZABLE');
is(verdict($write, call => q{BEGIN; SELECT f(1); PREPARE TRANSACTION 'x'; COMMIT PREPARED 'x'}), '0 1 0 prepared transaction', 'PREPARE TRANSACTION');
is(verdict($write, call => 'BEGIN; SAVEPOINT a; SELECT f(1); ROLLBACK TO a; SELECT f(1); COMMIT'), '0 1 0 subtransaction rolled back', 'a savepoint that is rolled back');
is(verdict($write, call => 'BEGIN; SAVEPOINT a; SELECT count(*) FROM item; ROLLBACK TO a; SELECT f(1); SAVEPOINT b; RELEASE b; COMMIT'), '1 0 0 none', 'one that has no call in it');
is(verdict($write, call => 'SELECT f(NULL)'), '0 0 1 unsuitable function or arguments: function f(integer)', 'no argument names a lane');
is(verdict($write, call => 'ALTER FUNCTION f(int) STABLE; SELECT f(1)', fails => 1), '0 0 0 none', 'a call that fails is not counted');
is(verdict('RETURN 2;', call => 'ALTER FUNCTION f(int) STABLE; SELECT f(1)'), '0 0 1 unsuitable function or arguments: function f(integer)', 'a function that is not VOLATILE any more');

# a cursor that is older than the call
is(verdict("FETCH c INTO x; $write", declare => '', call => q{BEGIN; DECLARE old CURSOR FOR SELECT n FROM stock WHERE w = 1; SELECT f(1); COMMIT},
	) =~ s/ERROR.*/error/sr, 'error', 'a cursor that is not open');
is(verdict("c := 'old'; FETCH c INTO x; $write", call => q{BEGIN; DECLARE old CURSOR FOR SELECT n FROM stock WHERE w = 1; SELECT f(1); COMMIT}), '0 1 0 older cursor', 'a cursor that was opened before the call');
is(verdict("c := 'old'; FETCH c INTO x; $write", call => q{BEGIN; DECLARE old CURSOR WITH HOLD FOR SELECT n FROM stock WHERE w = 1; COMMIT; BEGIN; SELECT f(1); COMMIT}), '0 1 0 older cursor', 'and one WITH HOLD of another transaction');
is(verdict($write, call => q{BEGIN; DECLARE one CURSOR FOR SELECT 1; SELECT f(1); COMMIT}), '1 0 0 none', 'one that is open, and not read');

# one whose rows are not made by the executor when they are fetched
foreach my $query ('UPDATE a_heap SET v = v + 1 RETURNING i', 'EXPLAIN SELECT * FROM a_heap')
{
	my $open = "DO 'DECLARE c refcursor := ''old''; r record; BEGIN OPEN c FOR EXECUTE ''$query''; FETCH c INTO r; END'";

	is(verdict("c := 'old'; FETCH c INTO y; $write", call => "BEGIN; $open; SELECT f(1); COMMIT"), '0 1 0 older cursor', "a cursor of $query");
}

# many calls in one transaction that has a cursor
is(verdict($write, call => "DO 'DECLARE r record; BEGIN FOR r IN SELECT generate_series(1, 300) LOOP PERFORM f(1); END LOOP; END'"), '1 0 0 none', '300 calls in a loop over a query');

# a parallel plan
is(verdict("SELECT count(*) INTO x FROM item a, item b; $write",
	before => 'SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SET '
		. ($node->pg_version < 16 ? 'force_parallel_mode' : 'debug_parallel_query') . ' = on'), '0 1 0 parallel query', 'a parallel plan');

# ---- the first counts; counters

is(verdict("z := dice(); x := setval('seq', 7); SELECT v INTO x FROM a_heap WHERE i = 1; $write", call => 'SELECT f(1), 77'), '0 1 0 function: function dice()', 'the first reason counts');
is(sql(q{SELECT reasons, last_query, last_time > now() - interval '1 hour' FROM nvm.commands WHERE function = 'f(int)'::regprocedure}), q({"function": 1}|SELECT f(1), 77|t), 'with the statement and the time');
sql("SELECT f(1)") foreach 1 .. 2;
is(sql(q{SELECT calls, reasons->'function' FROM nvm.commands WHERE function = 'f(int)'::regprocedure}), '3|3', 'counted');
sql('SELECT nvm.reset_commands()');
is(sql(q{SELECT calls, reasons, last_reason FROM nvm.commands WHERE function = 'f(int)'::regprocedure}), '0|{}|', 'and set back');

# PL/pgSQL evaluates its expressions as ever, in functions that nobody registered, too
is(sql(q{CREATE FUNCTION row_count() RETURNS bigint LANGUAGE plpgsql AS 'DECLARE n bigint; t timestamptz; BEGIN UPDATE a_heap SET v = v; t := wall_clock(); GET DIAGNOSTICS n = ROW_COUNT; RETURN n; END';
SELECT row_count()}), '10', 'an expression leaves ROW_COUNT');

# what was planned outside of calls before is looked at in them
my $s = $node->session('SELECT helper(1) > 2');
sql(qq{CREATE OR REPLACE FUNCTION f(w int) RETURNS int LANGUAGE plpgsql AS 'DECLARE z float; BEGIN z := helper(1); RETURN 1; END'});
is($s->sql('SELECT f(1)'), '1', 'a call of a function that the session knows');
is(sql($state), '0 0 1 function: function dice()', 'its expressions are looked at');
$s->drop;
done_testing();

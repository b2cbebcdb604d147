# Copyright (c) 2026, pg_nvm contributors

# What a verdict sees beside the list of command/04_reasons: system columns in any part of a
# query, DDL and SET CONSTRAINTS around a call, functions in domains and in casts that PL/pgSQL
# applies by itself, what lives in a temporary schema, literals that name the present, queries
# that were parsed under other settings; and where a reason came up: nvm.command_reasons has the function in PL/pgSQL, its
# line, and the query.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $node = NvmTest->start_new('seen', conf => <<CONF, sql => <<'SQL');
max_worker_processes = 8
CONF
CREATE FUNCTION dice() RETURNS float LANGUAGE internal AS 'drandom';
CREATE TABLE t (w int, i int, n int NOT NULL DEFAULT 0, f float, y text, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE u (w int, i int, n int, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table(r, 'w') FROM unnest('{t,u}'::regclass[]) r;
INSERT INTO t SELECT w, i, i FROM generate_series(1, 3) w, generate_series(1, 10) i;
INSERT INTO u SELECT w, i, i FROM t;
CREATE FUNCTION plus(float, float) RETURNS float LANGUAGE internal STRICT AS 'float8pl';
CREATE FUNCTION pure(float, float) RETURNS float IMMUTABLE LANGUAGE internal STRICT AS 'float8pl';
CREATE FUNCTION plus_sql(float) RETURNS float LANGUAGE sql AS 'SELECT $1 + random()';
CREATE DOMAIN by_chance AS float CHECK (VALUE + random() > 0);
CREATE DOMAIN by_c AS float CHECK (plus(VALUE, 1) > 0);
CREATE DOMAIN by_sql AS float CHECK (plus_sql(VALUE) > 0);
CREATE DOMAIN plain AS float CHECK (VALUE + 1 > 0);
CREATE TYPE mood AS ENUM ('good', 'bad');
CREATE FUNCTION to_mood(int) RETURNS mood LANGUAGE sql AS $$SELECT CASE WHEN dice() < 2 THEN 'good'::mood ELSE 'bad' END$$;
CREATE CAST (int AS mood) WITH FUNCTION to_mood(int) AS ASSIGNMENT;
CREATE TYPE sign AS ENUM ('plus', 'minus');
CREATE FUNCTION to_sign(int) RETURNS sign LANGUAGE sql AS $$SELECT CASE WHEN $1 > 0 THEN 'plus'::sign ELSE 'minus' END$$;
CREATE CAST (int AS sign) WITH FUNCTION to_sign(int) AS ASSIGNMENT;
CREATE FUNCTION helper_order(w int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
	FOR r IN SELECT i FROM t WHERE t.w = helper_order.w LOOP
		RETURN r.i;
	END LOOP;
END$$;
CREATE FUNCTION helper(w int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE z float;
BEGIN
	PERFORM FROM t WHERE t.w = helper.w;
	z := dice();
	RETURN 1;
END$$;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub define
{
	my ($body) = @_;
	sql(qq{DROP FUNCTION IF EXISTS f(int);
CREATE FUNCTION f(w int) RETURNS int LANGUAGE plpgsql AS \$f\$
#variable_conflict use_column
DECLARE x int; z text; r record; c refcursor; chance by_chance; c_fun by_c; s_fun by_sql; ok plain; feeling mood; sgn sign; day date;
BEGIN
$body
	UPDATE u SET n = n + 1 WHERE u.w = f.w AND i = 1;
	RETURN 1;
END \$f\$;
SELECT nvm.register_command('f(int)', '{w}')});
}

sub result
{
	return sql(q{SELECT replayable || ' ' || by_values || ' ' || coalesce(last_reason, 'none') || coalesce(': ' || last_object, '') FROM nvm.commands WHERE function = 'f(int)'::regprocedure});
}

sub verdict
{
	my ($body, $call) = @_;
	define($body);
	my ($ret, $out, $err) = $node->psql('postgres', $call // 'SELECT f(1)');
	return $ret != 0 ? "ERROR $err" : result();
}

# ---- system columns

foreach my $case (
	['SELECT ctid::text INTO z FROM t WHERE t.w = f.w AND i = 1 FOR UPDATE;', 'that SELECT FOR UPDATE returns'],
	['SELECT ctid, i INTO r FROM t WHERE t.w = f.w AND i = 1 FOR UPDATE;', 'as it is'],
	['SELECT count(*) INTO x FROM (SELECT i FROM t WHERE t.w = f.w ORDER BY ctid, i LIMIT 3 FOR UPDATE) s;', 'that rows are sorted by'],
	['UPDATE t SET y = t.ctid::text FROM u WHERE u.w = t.w AND u.i = t.i AND t.w = f.w;', 'of the table that an UPDATE with a join changes'],
	['UPDATE t SET y = t.xmin::text WHERE t.w = f.w AND i = 1;', 'of one without'],
	['UPDATE t SET n = 1 WHERE t.w = f.w AND i = 1 RETURNING cmin::text INTO z;', 'in RETURNING'],
	['x := (SELECT count(*) FROM u WHERE u.w = f.w AND EXISTS (SELECT FROM t WHERE t.w = u.w AND t.i = u.i AND t.xmax::text = \'0\'));', 'in a subquery'])
{
	is(verdict($case->[0]), '0 1 system column', "a system column $case->[1]");
}
is(verdict('SELECT tableoid::int INTO x FROM t WHERE t.w = f.w AND i = 1;'), '1 0 none', 'but tableoid');
is(verdict('UPDATE t SET n = u.n FROM u WHERE u.w = t.w AND u.i = t.i AND t.w = f.w; SELECT n INTO x FROM t WHERE t.w = f.w AND i = 1 FOR UPDATE;'), '1 0 none', 'those that the plan itself needs do not matter');

# ---- DDL of the same transaction

my $nothing = '';
foreach my $case (
	['TRUNCATE u', 'TRUNCATE'],
	['ALTER TABLE u ALTER n SET DEFAULT 7', 'ALTER TABLE'],
	['CREATE INDEX ON u (n)', 'CREATE INDEX'],
	["CREATE OR REPLACE FUNCTION pure(float, float) RETURNS float IMMUTABLE LANGUAGE internal STRICT AS 'float8pl'", 'CREATE FUNCTION'],
	['CREATE TEMP TABLE other (i int)', 'CREATE TEMP TABLE'],
	["DO 'BEGIN TRUNCATE u; END'", 'in DO'])
{
	is(verdict($nothing, "BEGIN; $case->[0]; INSERT INTO t VALUES (9, 9) ON CONFLICT DO NOTHING; ROLLBACK; BEGIN; $case->[0]; SELECT f(1); COMMIT") =~ s/^0 [01]/0 n/r, '0 n utility command', "$case->[1] before a call");
	sql('INSERT INTO u SELECT w, i, i FROM t ON CONFLICT DO NOTHING');
	is(verdict($nothing, "BEGIN; SELECT f(1); $case->[0]; COMMIT"), '0 1 utility command', "$case->[1] after one");
	sql('INSERT INTO u SELECT w, i, i FROM t ON CONFLICT DO NOTHING');
}

is(verdict($nothing, "BEGIN; SET LOCAL timezone = 'UTC'; LOCK TABLE t IN ROW SHARE MODE; SAVEPOINT a; DECLARE cur CURSOR FOR SELECT 1; SELECT f(1); CLOSE cur; COMMIT"), '1 0 none', 'other utility commands do not matter');

# ---- SET CONSTRAINTS, which says when a deferrable key is checked

sql(q{CREATE TABLE d (w int, k int, i int, PRIMARY KEY (w, k), UNIQUE (w, i) DEFERRABLE) USING nvm_cmdlog;
SELECT nvm.partition_table('d', 'w');
INSERT INTO d VALUES (1, 1, 1), (1, 2, 2);
CREATE FUNCTION defers() RETURNS void LANGUAGE plpgsql AS 'BEGIN SET CONSTRAINTS ALL DEFERRED; END'});
my $swaps = q{UPDATE d SET i = 3 - i WHERE d.w = f.w AND d.k = 1; UPDATE d SET i = 3 - i WHERE d.w = f.w AND d.k = 2;};
is(verdict($swaps, 'BEGIN; SET CONSTRAINTS ALL DEFERRED; SELECT f(1); COMMIT'), '0 1 utility command', 'SET CONSTRAINTS before a call');
is(verdict($swaps, 'BEGIN; SELECT defers(); SELECT f(1); COMMIT'), '0 1 utility command', 'in a function that is not registered');
is(verdict($swaps, 'BEGIN; SELECT f(2); SET CONSTRAINTS ALL DEFERRED; SELECT f(1); COMMIT'), '0 1 utility command', 'between calls');
like(verdict($swaps), qr/^ERROR .*duplicate key value/, 'a call that needs it fails without');
is(verdict(q{UPDATE d SET i = 5 WHERE d.w = f.w AND d.k = 1;}), '1 0 none', 'a deferrable key by itself does not matter');

# ---- what other sessions do not have

sql(q{CREATE FUNCTION poly(w int, x anyelement) RETURNS void LANGUAGE plpgsql AS $$BEGIN UPDATE u SET n = n + 1 WHERE u.w = poly.w AND i = 1; END$$;
SELECT nvm.register_command('poly(int,anyelement)', '{w}')});
foreach my $case (
	['CREATE TEMP TABLE tmp (a int)', 'ROW(1)::tmp', 'a row of a temporary table'],
	['CREATE TEMP TABLE tmp (a int)', 'ARRAY[ROW(1)::tmp]', 'an array of them'],
	['CREATE TEMP TABLE tmp (a int)', 'NULL::tmp', 'none of them'],
	[q{CREATE TYPE pg_temp.tmp AS ENUM ('a')}, q{'a'::pg_temp.tmp}, 'an enum in a temporary schema'],
	['CREATE DOMAIN pg_temp.tmp AS int', '1::pg_temp.tmp', 'a domain'],
	[q{CREATE TYPE pg_temp.tmp AS RANGE (subtype = int)}, q{'[1,2)'::pg_temp.tmp}, 'a range'],
	[q{CREATE TYPE pg_temp.tmp AS ENUM ('a'); CREATE TYPE of_tmp AS (n int, e pg_temp.tmp)}, q{ROW(1, 'a')::of_tmp}, 'a type that has a column of one'])
{
	my ($create, $value, $name) = @$case;

	sql("SELECT nvm.reset_commands(); $create; SELECT poly(1, $value)");
	is(sql(q{SELECT replayable || ' ' || by_values || ' ' || last_reason FROM nvm.commands WHERE function = 'poly(int,anyelement)'::regprocedure}), '0 1 unsuitable function or arguments', "an argument: $name");
}
sql(q{SELECT nvm.reset_commands(); CREATE TYPE pair AS (a int, b mood[]); SELECT poly(1, ROW(1, '{good}')::pair)});
is(sql(q{SELECT replayable FROM nvm.commands WHERE function = 'poly(int,anyelement)'::regprocedure}), '1', 'a type that others have, too');
is(verdict('x := pg_temp.h();', q{CREATE FUNCTION pg_temp.h() RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN 1; END'; SELECT f(1)}), '0 1 function', 'a function in a temporary schema');

# ---- domains and casts

is(verdict('SELECT count(*) INTO x FROM t WHERE t.w = f.w AND n::by_chance > 0;'), '0 1 function: function random()', 'a domain whose CHECK calls a function, in a query');
is(verdict('UPDATE t SET f = 3::by_chance WHERE t.w = f.w AND i = 1;'), '0 1 function: function random()', 'in what is written');
is(verdict('x := (3::by_chance)::int;'), '0 1 function: function random()', 'in an expression');
is(verdict('UPDATE t SET f = 3::by_sql WHERE t.w = f.w AND i = 1;'), '0 1 function: function random()', 'whose CHECK calls one in SQL');
is(verdict('UPDATE t SET f = 3::plain WHERE t.w = f.w AND i = 1; ok := 4;'), '1 0 none', 'one whose CHECK is all right');
is(verdict('c_fun := 3;'), '0 1 function: function plus(double precision,double precision)', 'a variable of a domain that calls a function in C');
is(verdict('feeling := 1;'), '0 1 function: function dice()', 'a cast of an assignment, by a function in SQL');
is(verdict('sgn := 1;'), '1 0 none', 'one that is all right');

# ---- literals that mean another moment later

sql(q{CREATE TYPE day AS (d date, n int);
CREATE DOMAIN feast AS date;
CREATE TABLE ev (w int, i int, d date, t timestamptz DEFAULT 'now', a date[], PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('ev', 'w');
CREATE FUNCTION when_sql() RETURNS date LANGUAGE sql AS $$SELECT 'today'::date$$;
CREATE FUNCTION when_parsed() RETURNS date LANGUAGE sql BEGIN ATOMIC SELECT 'today'::date; END;
CREATE PROCEDURE put_day(w int, d date) LANGUAGE plpgsql AS $$BEGIN INSERT INTO ev VALUES (put_day.w, 1, put_day.d); END$$;
CREATE PROCEDURE put_time(w int, t timestamptz) LANGUAGE plpgsql AS $$BEGIN INSERT INTO ev VALUES (put_time.w, (SELECT count(*) FROM ev WHERE ev.w = put_time.w), NULL, put_time.t); END$$;
CREATE FUNCTION in_sql(w int) RETURNS void LANGUAGE sql AS $$INSERT INTO ev VALUES ($1, 1, 'today')$$;
SELECT nvm.register_command('in_sql(int)', '{w}');
CREATE FUNCTION now_sql() RETURNS date LANGUAGE sql AS $$SELECT now()::date + '1 day'::interval$$;
CREATE VIEW today AS SELECT 'today'::date AS d});
foreach my $case (
	[q{INSERT INTO ev VALUES (f.w, 1, 'today');}, 'date_in', 'in a list of values'],
	[q{INSERT INTO ev VALUES (f.w, 1, ' ToDay ');}, 'date_in', 'in other letters, with blanks'],
	[q{INSERT INTO ev VALUES (f.w, 1, '2026-01-01', 'today 10:00');}, 'timestamptz_in', 'with a time'],
	[q{UPDATE ev SET d = 'yesterday' WHERE ev.w = f.w AND i = 1;}, 'date_in', 'in an UPDATE'],
	[q{SELECT i INTO x FROM ev WHERE ev.w = f.w AND i = 1 AND t < 'now';}, 'timestamptz_in', 'in a condition'],
	[q{SELECT i INTO x FROM ev WHERE ev.w = f.w AND i = 1 AND EXISTS (SELECT WHERE d < date 'tomorrow');}, 'date_in', 'in a subquery, by the name of the type'],
	[q{INSERT INTO ev (w, i, a) VALUES (f.w, 1, '{2026-01-01, today}');}, 'date_in', 'in an array'],
	[q{INSERT INTO ev VALUES (f.w, 1, ('(tomorrow,1)'::day).d);}, 'date_in', 'in a row'],
	[q{INSERT INTO ev VALUES (f.w, 1, lower('[today,tomorrow]'::daterange));}, 'date_in', 'in a range'],
	[q{INSERT INTO ev VALUES (f.w, 1, 'today'::feast);}, 'date_in', 'of a domain'],
	[q{INSERT INTO ev VALUES (f.w, 1, E'to\\x64ay');}, 'date_in', 'with a backslash'],
	[q{INSERT INTO ev VALUES (f.w, 1, $l$today$l$);}, 'date_in', 'between dollars'],
	["INSERT INTO ev VALUES (f.w, 1, 'to' -- a comment\n 'day');", 'date_in', 'in two parts'],
	[q{z := ('now'::time > '00:00')::text;}, 'time_in', 'in an expression'],
	[q{IF 'now'::timestamp > '2026-01-01' THEN x := 1; END IF;}, 'timestamp_in', 'in a condition of PL/pgSQL'],
	[q{day := 'today';}, 'date_in', 'in an assignment'],
	[q{z := '10:00'::timetz::text;}, 'timetz_in', 'a zone whose offset is a matter of the day'],
	[q{CALL put_day(f.w, 'today');}, 'date_in', 'in CALL'],
	[q{CASE day WHEN 'today' THEN x := 1; ELSE x := 2; END CASE;}, 'date_in', 'in CASE'],
	[q{day := date('today');}, 'date_in', 'as a function'],
	[q{EXECUTE 'INSERT INTO ev VALUES (1, 1, ''today'')';}, 'date_in', 'in EXECUTE'])
{
	my ($body, $input, $name) = @$case;
	my $function = $input eq 'date_in' ? 'date_in(cstring)' : "$input(cstring,oid,integer)";

	is(verdict($body), "0 1 function: function $function", "a literal: $name");
	sql('DELETE FROM ev');
}
sql('SELECT in_sql(1); DELETE FROM ev');
is(sql(q{SELECT replayable || ' ' || last_reason || ': ' || last_object FROM nvm.commands WHERE function = 'in_sql(int)'::regprocedure}), '0 function: function date_in(cstring)', 'a literal: in a function in SQL');
is(verdict(q{INSERT INTO ev VALUES (f.w, 1, when_sql());}), '0 1 function', 'a literal: in one that is inlined');
is(verdict(q{day := when_sql();}), '0 1 function', 'the same, in an expression');
sql('DELETE FROM ev');
foreach my $case (
	[q{INSERT INTO ev VALUES (f.w, 1, '2026-01-01', '2026-01-01 10:00', '{2026-01-01}');}, 'other literals'],
	[q{INSERT INTO ev (w, i) VALUES (f.w, 1);}, 'a default, which was read when it was made'],
	[q{INSERT INTO ev SELECT f.w, 1, d FROM today;}, 'so was a view'],
	[q{INSERT INTO ev VALUES (f.w, 1, when_parsed());}, 'so was a body of SQL'],
	[q{INSERT INTO ev VALUES (f.w, 1, now_sql());}, 'a function'],
	[q{CALL put_day(f.w, '2026-01-01');}, 'in CALL'],
	[q{z := 'today'; z := ' now '::text;}, 'a text'],
	[q{z := '10:00+02'::timetz::text;}, 'a zone that is a number'],
	[q{DECLARE d2 date := 'today'; BEGIN UPDATE ev SET d = d2 WHERE ev.w = f.w AND i = 1; END;}, 'a text that is read when the call runs'],
	[q{day := z::date; day := concat('to', 'day')::date;}, 'another'])
{
	is(verdict($case->[0]), '1 0 none', "a literal: $case->[1]");
	sql('DELETE FROM ev');
}

# ---- settings

sub logged { return sql(q{SELECT string_agg(t AT TIME ZONE 'UTC' || '', ', ' ORDER BY i) FROM ev}); }

sql('CREATE FUNCTION set_inside() RETURNS int LANGUAGE plpgsql SET timezone = \'Asia/Tokyo\' AS \'BEGIN RETURN 1; END\'; CREATE FUNCTION registered_inside(w int) RETURNS int LANGUAGE plpgsql SET timezone = \'Asia/Tokyo\' AS \'BEGIN RETURN 1; END\'; SELECT nvm.register_command(\'registered_inside(int)\', \'{w}\'); CREATE FUNCTION path_inside() RETURNS int LANGUAGE plpgsql SET search_path = public SET work_mem = 999 AS \'BEGIN RETURN 1; END\'');
is(verdict('x := set_inside();'), '0 1 function: function set_inside()', 'a function that sets a time zone in a call');
is(verdict('x := registered_inside(f.w);'), '0 1 function: function registered_inside(integer)', 'one that is registered itself');
is(verdict('x := path_inside();'), '1 0 none', 'a path, or something that does not matter');

my $inserts = q{INSERT INTO ev VALUES (f.w, (SELECT count(*) FROM ev WHERE ev.w = f.w), NULL, '2026-01-01 00:00');};
define($inserts);
sql(q{SET timezone = 'UTC'; SELECT f(1); SET timezone = 'Asia/Tokyo'; SELECT f(1); SELECT f(1); SET timezone = 'UTC'; SELECT f(1)});
is(logged(), '2026-01-01 00:00:00, 2025-12-31 15:00:00, 2025-12-31 15:00:00, 2026-01-01 00:00:00', 'a literal in a cached query is read anew under other settings');
sql(q{DELETE FROM ev; BEGIN; SET LOCAL timezone = 'UTC'; SELECT f(1); SET LOCAL timezone = 'Asia/Tokyo'; SELECT f(1); COMMIT});
is(logged(), '2026-01-01 00:00:00, 2025-12-31 15:00:00', 'also within a transaction');
is(result(), '5 0 none', 'and all is in the log');
sql('DELETE FROM ev');
is(verdict(q{CALL put_time(f.w, '2026-01-01 00:00');}, q{SET timezone = 'UTC'; SELECT f(1); SET timezone = 'Asia/Tokyo'; SELECT f(1)}), '2 0 none', 'calls with CALL');
is(logged(), '2026-01-01 00:00:00, 2025-12-31 15:00:00', 'its arguments are read anew, too');
sql('DELETE FROM ev');
is(verdict(q{day := '1 2 2020'; INSERT INTO ev VALUES (f.w, (SELECT count(*) FROM ev WHERE ev.w = f.w), day);}, q{SET datestyle = 'ISO, MDY'; SELECT f(1); SET datestyle = 'ISO, DMY'; SELECT f(1)}), '2 0 none', 'calls with an expression that is a literal');
is(sql('SELECT string_agg(d::text, \', \' ORDER BY i) FROM ev'), '2020-01-02, 2020-02-01', 'it is read anew, too');
sql('DELETE FROM ev');
is(verdict(q{UPDATE t SET y = 0.1::float4::float8::text WHERE t.w = 1 AND i = 1;}, q{SET extra_float_digits = 1; SELECT f(1); SET extra_float_digits = -9; SELECT f(1)}), '2 0 none', 'calls with what the planner computes');
is(sql('SELECT y FROM t WHERE w = 1 AND i = 1'), '0.1', 'it is computed anew');
is(verdict($nothing, q{SELECT f(1); SET plpgsql.variable_conflict = 'use_column'; SELECT f(1)}), '1 1 unsuitable function or arguments: function f(integer)', 'a setting by which functions were compiled');
is(verdict($nothing, q{SELECT f(1); SET standard_conforming_strings = off; SELECT f(1)}), '1 1 unsuitable function or arguments: function f(integer)', 'by which strings were read');
is(verdict($nothing, q{SET standard_conforming_strings = off; SELECT f(1); SELECT f(1)}), '2 0 none', 'one that has been the same for all');
sql(q{CREATE FUNCTION sets(text) RETURNS int LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('timezone', $1, false); RETURN 1; END$$});
is(verdict($nothing, q{SELECT sets(z), f(1) FROM unnest('{UTC,Asia/Tokyo}'::text[]) z}), '0 1 unsuitable function or arguments: function f(integer)', 'one query that calls the function under two');

# ---- functions that change

define('SELECT sum(pure(n, 1) ORDER BY i)::int INTO x FROM t WHERE t.w = f.w;');
my $s = $node->session('SELECT f(1)');
is($s->sql('SELECT f(1) + f(1)'), '2', 'calls with a cached plan');
is(result(), '2 0 none', 'that can be replayed');
sql('ALTER FUNCTION pure(float, float) VOLATILE');
is($s->sql('SELECT f(1)'), '1', 'another, when a function has become VOLATILE');
is(result(), '2 1 function: function pure(double precision,double precision)', 'is judged anew');
$s->drop;

define('UPDATE t SET f = n::plain WHERE t.w = f.w AND i = 1;');
$s = $node->session('SELECT f(1)');
is($s->sql('SELECT f(1)'), '1', 'a call with a domain');
sql('ALTER DOMAIN plain ADD CHECK (VALUE + random() > 0)');
is($s->sql('SELECT f(1)'), '1', 'another, when it has one more CHECK');
is(result(), '2 1 function: function random()', 'is judged anew');
$s->drop;

# ---- rows that PL/pgSQL does not look at

is(verdict('PERFORM i FROM t WHERE t.w = f.w;'), '1 0 none', 'PERFORM, in any order');
is(verdict('EXECUTE format(\'SELECT %s\', helper_order(f.w));'), '0 1 order of rows: table t', 'a loop in what computes the text for EXECUTE');
is(verdict('EXECUTE \'SELECT i FROM t WHERE w = $1\' INTO x USING f.w;'), '0 1 order of rows: table t', 'EXECUTE INTO');

# ---- where

sub place { return sql(q{SELECT reason, transactions, last_place, last_line, regexp_replace(last_statement, '\s+', ' ', 'g'), last_query FROM nvm.command_reasons WHERE function = 'f(int)'::regprocedure ORDER BY last_time}); }

define("\n\tx := 1;\n\n\tSELECT i INTO x FROM t WHERE t.w = f.w;");
sql('SELECT f(1), 88');
is(place(), 'order of rows|1|f(integer)|8|SELECT i FROM t WHERE t.w = f.w|SELECT f(1), 88', 'the line and the query');
sql('SELECT f(1)') foreach 1 .. 2;
is(place(), 'order of rows|3|f(integer)|8|SELECT i FROM t WHERE t.w = f.w|SELECT f(1)', 'counted');
sql('SELECT nvm.reset_commands()');
is(place(), '', 'and forgotten');
define("\n\tIF dice() > 2 THEN\n\t\tx := 1;\n\tEND IF;");
sql('SELECT f(1)');
is(place(), 'function|1|f(integer)|6||SELECT f(1)', 'an expression');
define("\tx := helper(f.w);");
sql('SELECT f(1)');
is(place(), 'function|1|helper(integer)|5||SELECT f(1)', 'in a function that it calls');
define("\tBEGIN\n\t\tx := 1 / (f.w - 1);\n\tEXCEPTION WHEN division_by_zero THEN\n\t\tx := 0;\n\tEND;");
sql('SELECT f(1)');
is(place(), 'subtransaction rolled back|1|f(integer)|6||SELECT f(1)', 'a block that has caught an error');
define("\tUPDATE t SET n = 1\n\t\tWHERE i = 1;\n\tIF f.w = 2 THEN x := random(); END IF;");
sql('SELECT f(1)');
is(place(), 'scan not within held lanes|1|f(integer)|5|UPDATE t SET n = 1 WHERE i = 1|SELECT f(1)', 'a scan');
sql('BEGIN; SELECT f(1); UPDATE t SET n = 1 WHERE w = 1 AND i = 1; COMMIT');
is(place(), 'scan not within held lanes|2|f(integer)|5|UPDATE t SET n = 1 WHERE i = 1|SELECT f(1);', 'the first one counts');
define('');
sql('BEGIN; SELECT f(1); UPDATE t SET n = 1 WHERE w = 1 AND i = 1; COMMIT; DO $$BEGIN PERFORM f(2); UPDATE t SET n = 2 WHERE w = 1 AND i = 1; END$$');
is(sql(q{SELECT reason, transactions, last_place, last_line, last_statement FROM nvm.command_reasons WHERE function = 'f(int)'::regprocedure}), 'rows written outside of calls|2|||', 'outside of the call there is no place');
sql('DROP FUNCTION f(int)');
is(sql('SELECT count(*) FROM nvm.command_reasons'), 0, 'nothing is left of a function that was dropped');

$node->check_clean('the end');
$node->stop;
done_testing();

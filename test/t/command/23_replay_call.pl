# Copyright (c) 2026, pg_nvm contributors

# Calls of a record, made again: they write what they wrote, by what the record says of
# arguments, role, settings and timestamps, and by its tape.  What comes out differently is
# said, with the call, and nothing of it is there.  The player of the test works on the
# tables themselves, which the test has set back before.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = dirname(abs_path($0)) . '/../../tools/nvm_call';

my $node = NvmTest->start_new('replay_call', conf => <<'CONF', sql => <<"SQL");
autovacuum = off
max_worker_processes = 8
timezone = 'Etc/UTC'
CONF
CREATE FUNCTION nvm_test_note_calls(bigint) RETURNS int AS '$library' LANGUAGE C STRICT;
CREATE FUNCTION nvm_test_play_calls(text) RETURNS void AS '$library' LANGUAGE C STRICT;
CREATE TABLE recorded (n serial, place bigint, section bytea);
CREATE TABLE replayed (n int, failed bool, message text, detail text, call text, function oid,
	checksum_recorded text, checksum text, rows_recorded int, rows int, ncalls int, usec bigint);
CREATE TABLE t (w int, i bigint, s text, c timestamptz, u uuid, x float8, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('t', 'w');
CREATE TABLE other (w int, id serial, n smallint GENERATED ALWAYS AS IDENTITY, u uuid DEFAULT gen_random_uuid(), PRIMARY KEY (w, id)) USING nvm_cmdlog;
SELECT nvm.partition_table('other', 'w');
CREATE TABLE saved_t AS TABLE t;
CREATE TABLE saved_other AS TABLE other;
CREATE TABLE a_heap (i int);
CREATE SEQUENCE seq;
CREATE ROLE caller;
GRANT ALL ON ALL TABLES IN SCHEMA public TO caller;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO caller;
CREATE SCHEMA caller AUTHORIZATION caller;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN small AS int CHECK (value < 100);
SQL
my $dir = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', $_[0]); }

# a function that writes what it is given or finds: registered, its lane the first argument
sub make
{
	my ($name, $arguments, $body, %params) = @_;
	my $kind = $params{kind} // 'FUNCTION';
	my $returns = $kind eq 'PROCEDURE' ? '' : 'RETURNS ' . ($params{returns} // 'void');
	my $language = $params{language} // 'plpgsql';
	my $more = $params{more} // '';
	$body = "#variable_conflict use_variable\nDECLARE x bigint; y text; BEGIN $body END" if $language eq 'plpgsql';
	sql("CREATE OR REPLACE $kind $name($arguments) $returns LANGUAGE $language $more AS \$f\$$body\$f\$");
	register($name);
	return;
}

sub register
{
	sql("SELECT nvm.register_command(oid, '{\$1}') FROM pg_proc WHERE proname = '$_'") foreach @_;
	return;
}

my $content = q{SELECT t FROM t ORDER BY w, i; SELECT other FROM other ORDER BY w, id};
my $restore = q{DELETE FROM t; DELETE FROM other; INSERT INTO t TABLE saved_t; INSERT INTO other OVERRIDING SYSTEM VALUE TABLE saved_other};

# Make the calls, forget what they have done, play them.  between: SQL before they are played.
# What is recorded, what has come of it, and whether the tables have what they had.
sub played
{
	my ($calls, %params) = @_;

	sql(q{DELETE FROM saved_t; DELETE FROM saved_other; INSERT INTO saved_t TABLE t; INSERT INTO saved_other TABLE other;
DELETE FROM replayed; DELETE FROM recorded; SELECT setval('recorded_n_seq', 1, false)});
	my $before = NvmLog::dump_of($dir)->{end};
	$node->safe_psql('postgres', $calls, extra_params => ['--no-psqlrc']);
	my $want = sql($content);
	my $n = sql("SELECT nvm_test_note_calls($before)");
	sql($restore);
	my $from = sql($content);
	sql($params{between}) if $params{between};
	sql(qq{SELECT nvm_test_play_calls('$library')});
	my @results = map { [ split /\|/, $_, -1 ] } split /\n/, sql(q{SELECT n, failed, coalesce(message, ''), coalesce(call, ''), rows, rows_recorded, ncalls, replace(coalesce(detail, ''), E'\n', ' ') FROM replayed ORDER BY n});
	my $is = sql($content);
	return { recorded => $n, results => \@results, same => $is eq $want, is => $is, want => $want, unchanged => $is eq $from };
}

# all of them can be played, and do what they did
sub good
{
	my ($calls, $name, %params) = @_;
	my $n = $params{n} // 1;
	my $p = played($calls, %params);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($p->{recorded}, $n, "$name: recorded") or diag(sql('SELECT function, last_reason, last_object FROM nvm.commands WHERE last_reason IS NOT NULL ORDER BY last_time DESC LIMIT 1'));
	is(join('; ', map { "$_->[1] $_->[2]" . ($_->[4] == $_->[5] ? '' : " rows $_->[4]") } @{ $p->{results} }), join('; ', ('f ') x $n), "$name: played")
	  or diag(explain($p->{results}));
	ok($p->{is} eq $p->{want}, "$name: the same rows");
	return $p;
}

# the only one cannot, for a reason; nothing of it is there
sub bad
{
	my ($calls, $between, $message, $call, $name) = @_;
	my $p = played($calls, between => $between);
	my $r = $p->{results}[0] // [];

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($p->{recorded}, 1, "$name: recorded");
	is($r->[1], 't', "$name: fails");
	like($r->[2], $message, "$name: message");
	like($r->[3], $call, "$name: call");
	ok($p->{unchanged}, "$name: nothing of it is there");
	return $r;
}

# ---- calls

make('put', 'w int, i bigint, s text', 'INSERT INTO t VALUES (w, i, s);');
make('take', 'w int, i bigint, k int', 'UPDATE t SET i = t.i + k WHERE t.w = take.w AND t.i = take.i;');
make('gone', 'w int', 'DELETE FROM t WHERE t.w = gone.w;');
good("SELECT put(1, 1, 'a')", 'an INSERT');
good('SELECT take(1, 1, 5)', 'an UPDATE of the key');
good('SELECT gone(1)', 'a DELETE');
my $p = good("BEGIN; SELECT put(1, 2, 'b'); SELECT take(1, 2, 7); SELECT put(2, 1, NULL); SELECT gone(2); COMMIT", 'several calls');
is($p->{results}[0][6], 4, 'all of them');
good("SELECT put(3, 1, 'a'); SELECT put(3, 2, 'a'); SELECT put(4, 1, 'a')", 'several transactions', n => 3);


# ---- which function, and how it is called

make('of_sql', 'w int, i bigint', q{INSERT INTO t VALUES (w, i, 'sql'); UPDATE t SET i = t.i + 1 WHERE t.w = $1 AND t.i = $2}, language => 'sql');
good('SELECT of_sql(5, 1)', 'a function in SQL');
good('SELECT of_sql(5, 3); BEGIN; SELECT of_sql(5, 5); SELECT of_sql(5, 7); COMMIT; SELECT of_sql(5, 11)', 'which is called several times', n => 3);
make('a_cursor', 'w int, c refcursor', q{INSERT INTO t VALUES (w, 30 + length(c::text), 'x'); OPEN c FOR SELECT i FROM t WHERE t.w = $1 ORDER BY i; RETURN c;}, returns => 'refcursor');
good(q{BEGIN; SELECT a_cursor(5, 'c'); FETCH 1 IN c; CLOSE c; DELETE FROM a_heap; SELECT a_cursor(5, 'cc'); CLOSE cc; COMMIT}, 'a cursor');
good(q{BEGIN; SELECT a_cursor(5, 'ccc'); CLOSE ccc; SELECT taken FROM (SELECT take(5, 33, 10) AS taken) q; SELECT a_cursor(5, 'ccc'); COMMIT}, 'one that is opened again');
good(q{BEGIN; SAVEPOINT a; SELECT put(5, 50, 's'); RELEASE a; SAVEPOINT b; SELECT take(5, 50, 1); COMMIT}, 'in savepoints');
good(q{PREPARE p AS SELECT put($1, $2, $3); EXECUTE p(5, 60, 'p'); BEGIN; SELECT put(5, 61, 'a'), put(5, 62, 'b'); COMMIT}, 'by a prepared statement, two by one', n => 2);
make('a_procedure', 'w int, INOUT i bigint', q{INSERT INTO t VALUES (w, i, 'p') RETURNING t.i + 1 INTO i;}, kind => 'PROCEDURE');
good('CALL a_procedure(5, 10)', 'a procedure');
make('as_definer', 'w int', q{INSERT INTO t VALUES (w, 20, current_user || to_char(1234.5, '9G999D9') || '1 2 2020'::date);}, more => "SECURITY DEFINER SET datestyle = 'SQL, DMY'");
good('SET ROLE caller; SELECT as_definer(5)', 'SECURITY DEFINER with SET');
my $p20 = sql('SELECT s FROM t WHERE w = 5 AND i = 20');
like($p20, qr/^postgres.*01\/02\/2020$/, 'by its owner, and with its setting') or diag($p20);
make('a_set', 'w int, n int', 'FOR k IN 1..n LOOP INSERT INTO t VALUES (w, 100 + k, k::text); RETURN NEXT k; END LOOP;', returns => 'SETOF int');
good('SELECT * FROM a_set(5, 4)', 'a set in FROM');
sql('DELETE FROM t WHERE w = 5 AND i > 100');
good('SELECT a_set(5, 3)', 'a set in a list');
make('a_table', 'w int, n int', 'FOR k IN 1..n LOOP INSERT INTO t VALUES (w, 200 + k, k::text); a := k; b := k; RETURN NEXT; END LOOP;', returns => 'TABLE (a int, b text)');
good('SELECT * FROM a_table(5, 4)', 'a table');
make('a_set_in_sql', 'w int, n int', q{INSERT INTO t SELECT w, 300 + k, 'x' FROM generate_series(1, n) k RETURNING i}, returns => 'SETOF bigint', language => 'sql');
good('SELECT * FROM a_set_in_sql(5, 4) LIMIT 1', 'a set of a function in SQL');
make('a_row', 'w int, OUT a int, OUT b pair', q{INSERT INTO t VALUES (w, 400, 'row'); a := 1; b := (1, 'x');}, returns => 'record');
good('SELECT * FROM a_row(5)', 'a row');
make('with_defaults', q{w int, i bigint DEFAULT 500, s text DEFAULT 'd' || now()}, 'INSERT INTO t VALUES (w, i, s);');
good('SELECT with_defaults(5)', 'defaults');
make('of_list', 'w int, VARIADIC v text[]', q{INSERT INTO t VALUES (w, 600, array_to_string(v, ','));});
good(q{SELECT of_list(5, 'a', 'b', 'c')}, 'VARIADIC');
sql('DELETE FROM t WHERE w = 5 AND i = 600');
good(q{SELECT of_list(5, VARIADIC '{x,y}')}, 'VARIADIC with an array');
make('polymorphic', 'w int, i bigint, a anyelement, b anyarray', q{INSERT INTO t VALUES (w, i, to_json(a)::text || to_json(b)::text); RETURN a;}, returns => 'anyelement');
good(q{SELECT polymorphic(6, 1, 7, '{1,2}'::int[]); SELECT polymorphic(6, 2, 'a'::text, '{b}'::text[]); SELECT polymorphic(6, 3, 'glad'::mood, ARRAY['sad'::mood])}, 'polymorphic, of three types', n => 3);
is(sql('SELECT s FROM t WHERE w = 6 AND i = 3'), q{"glad"["sad"]}, 'each of its own');
make('collated', 'w int, i bigint, a text, b text', q{INSERT INTO t VALUES (w, i, (a < b)::text);});
good(q{SELECT collated(6, 10, 'a', 'B' COLLATE "C"); SELECT collated(6, 11, 'a' COLLATE "en_US.utf8", 'B')}, 'collations', n => 2) if sql(q{SELECT count(*) FROM pg_collation WHERE collname = 'en_US.utf8'});
good(q{SELECT collated(6, 12, 'a', 'B' COLLATE "C")}, 'a collation');
is(sql('SELECT s FROM t WHERE w = 6 AND i = 12'), 'false', 'is that of the call');

# a function that tells its caller what it wants
make('a_record', 'w int', q{INSERT INTO t VALUES (w, 700, 'r'); RETURN NEXT (1, 'x'::text);}, returns => 'SETOF record');
sql('SELECT nvm.reset_commands()');
is(played('SELECT * FROM a_record(7) AS r (a int, b text)')->{recorded}, 0, 'columns that the call says: not recorded');
is(sql(q{SELECT last_reason FROM nvm.commands WHERE function = 'a_record(int)'::regprocedure}), 'unsuitable function or arguments', 'and the reason');

sql(q{CREATE FUNCTION of_any(w text, VARIADIC "any") RETURNS text LANGUAGE internal AS 'text_concat_ws'});
register('of_any');
good(q{BEGIN; SELECT of_any('7', 1, 'a'::text, now()); SELECT put(7, 710, 'a'); COMMIT}, 'VARIADIC "any"');
is(played(q{BEGIN; SELECT of_any('7', VARIADIC ARRAY['a', 'b']); SELECT put(7, 711, 'a'); COMMIT})->{recorded}, 0, 'the same with an array: not recorded');
is(sql(q{SELECT last_reason FROM nvm.commands WHERE function = 'of_any'::regproc}), 'unsuitable function or arguments', 'and the reason');

# ---- arguments

sql(q{CREATE OR REPLACE FUNCTION types(w int, i bigint, a smallint, b numeric, c text, d timestamptz, e uuid, f bytea, g float8, h date, j int[], k text[], l boolean, m mood, n pair, o small, p jsonb, q char(5), r "char", s oid, u name, v interval, x pair[], y int4range, z inet) RETURNS void LANGUAGE sql AS $$INSERT INTO t VALUES (w, i, ROW(a, b, c, d, e, f, g, h, j, k, l, m, n, o, p, q, r, s, u, v, x, y, z)::text, d, e, g)$$});
register('types');
my $values = q{(-3)::smallint, -12345.00670, E'it''s', '0044-03-15 20:17:40.5+00 BC', '0badc0de-0000-4000-8000-000000000001', '\x00ff10', 1.5e-300, '0044-03-15 BC', '{-1,0,128,-129,2147483647}', '{a,"b c","d\"e",""}', true, 'glad', '(1,x)', 99, '{"a": [1, 2]}', 'ab', 'z', 4294967295, 'a_name', '1 mon -2 days', '{"(1,a)","(2,)"}', '[1,5)', '10.0.0.1/8'};
good("SELECT types(8, 9223372036854775807, $values)", 'of many types');
good('SELECT types(8, -1, ' . join(', ', ('NULL') x 23) . ')', 'NULLs');
make('long', 'w int, i bigint, s text, a int[]', q{INSERT INTO t VALUES (w, i, s || array_length(a, 1));});
good(q{SELECT long(8, 20, string_agg(md5(g::text), ''), array_agg(g)) FROM generate_series(1, 32000) g}, 'a megabyte');
is(sql('SELECT length(s) > 1000000 FROM t WHERE w = 8 AND i = 20'), 't', 'it is');
sql(q{CREATE TABLE src AS SELECT string_agg(md5(g::text), '') AS s, repeat('x', 100000) AS z, array_agg(g) AS a FROM generate_series(1, 32000) g});
good(q{SELECT long(8, 21, s, a) FROM src}, 'values out of TOAST');
good(q{SELECT long(8, 22, z, a[1:3]) FROM src}, 'one that was compressed');

# ---- who, when, how

sql(q{CREATE OR REPLACE FUNCTION context(w int, i bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
INSERT INTO public.t VALUES (w, i, concat_ws('|', current_user, now(), statement_timestamp(), current_timestamp, current_date, '1 2 2020'::date, 1.1::float4::float8, '1 day 2 hours'::interval, to_char(now(), 'TZ'), '\x6162'::bytea, of_schema()), transaction_timestamp());
END$$;
CREATE FUNCTION public.of_schema() RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'public'; END$$;
CREATE FUNCTION caller.of_schema() RETURNS text LANGUAGE plpgsql AS $$BEGIN RETURN 'caller'; END$$;
GRANT EXECUTE ON FUNCTION caller.of_schema() TO PUBLIC});
register('context');
good(q{SELECT pg_sleep(0.2); BEGIN; SELECT pg_sleep(0.3); SELECT context(9, 1); SELECT pg_sleep(0.3); SELECT context(9, 2); COMMIT}, 'timestamps');
is(sql(q{SELECT split_part(a.s, '|', 2) = split_part(b.s, '|', 2) AND split_part(a.s, '|', 3) < split_part(b.s, '|', 3) FROM t a, t b WHERE a.w = 9 AND a.i = 1 AND b.w = 9 AND b.i = 2}), 't', "the transaction's, and each statement's");
good(q{SET ROLE caller; SELECT context(9, 3)}, 'role and its schema');
like(sql('SELECT s FROM t WHERE w = 9 AND i = 3'), qr/^caller\|.*\|caller$/, 'as they were');
good(q{SET timezone = 'Europe/Berlin'; SET datestyle = 'SQL, DMY'; SET intervalstyle = 'iso_8601'; SET bytea_output = 'escape'; SET extra_float_digits = -5; SELECT context(9, 4)}, 'settings');
like(sql('SELECT s FROM t WHERE w = 9 AND i = 4'), qr/\|01\/02\/2020\|.*\|P1DT2H\|CES?T\|ab\|public$/, 'as they were');
good(q{SELECT context(9, 5)}, 'and those that are presumed again');
good(q{BEGIN; SELECT context(9, 6); SET LOCAL timezone = 'Asia/Tokyo'; SELECT context(9, 7); SET LOCAL ROLE caller; SELECT context(9, 8); RESET timezone; SELECT context(9, 9); COMMIT; SELECT context(9, 10)}, 'others within a transaction', n => 2);
good(q{ALTER DATABASE postgres SET timezone = 'Asia/Tokyo'; ALTER DATABASE postgres SET default_transaction_isolation = 'repeatable read'; BEGIN ISOLATION LEVEL READ COMMITTED; SET timezone = 'UTC'; SELECT context(9, 11); COMMIT}, 'in a database that has others', between => 'SET default_transaction_isolation = \'read committed\'; UPDATE saved_t SET w = w');
sql('ALTER DATABASE postgres RESET ALL');
good(q{SET plpgsql.variable_conflict = 'use_column'; SELECT context(9, 12)}, q{PL/pgSQL's settings});
sql(q{CREATE OR REPLACE FUNCTION conflict(w int, i bigint) RETURNS void LANGUAGE plpgsql AS $$BEGIN UPDATE t SET s = 'c' || i WHERE t.w = $1 AND t.i = $2; END$$});
register('conflict');
good(q{SET plpgsql.variable_conflict = 'use_column'; SELECT conflict(9, 12)}, 'one that matters');
good(q{SET plpgsql.variable_conflict = 'use_variable'; SELECT conflict(9, 11)}, 'and another');

# an INTO that looks whether there is a second row calls what that takes; one that finds it may be an error
make('first_of', 'w int, i bigint', q{SELECT nextval('seq') INTO x FROM t f WHERE f.w = first_of.w ORDER BY f.i; INSERT INTO t VALUES (w, i, x);});
sql('INSERT INTO t VALUES (30, 11), (30, 12), (30, 13)');
foreach my $case ([ 'none', 1 ], [ 'too_many_rows', 2 ])
{
	my ($warnings, $drawn) = @$case;
	my $seq = sql(q{SELECT nextval('seq')});
	good("SET plpgsql.extra_warnings = '$warnings'; SELECT first_of(30, $drawn)", "the first row, extra_warnings $warnings",
		between => q{ALTER DATABASE postgres SET plpgsql.extra_errors = 'all'});
	is(sql('SELECT last_value FROM seq') - $seq, $drawn, 'which draws as many numbers as that says');
	sql('ALTER DATABASE postgres RESET ALL');
}

# a player that has parsed a query under other settings parses it anew
make('literal', 'w int, i bigint', q{INSERT INTO t VALUES (w, i, 'l', '2026-01-01 00:00');});
make('sql_literal', 'w int, i bigint', q{INSERT INTO t VALUES ($1, $2, 'l', '2026-01-01 00:00')}, language => 'sql');
make('float_literal', 'w int, i bigint', q{INSERT INTO t VALUES (16, (SELECT count(*) + 500 FROM t WHERE t.w = 16), 0.1::float4::float8::text);});
foreach my $f ('literal', 'sql_literal')
{
	good("SET timezone = 'UTC'; SELECT $f(16, 1);\n\\c\nSET timezone = 'Asia/Tokyo'; SELECT $f(16, 2);\n\\c\nSET timezone = 'UTC'; SELECT $f(16, 3)", "$f under other settings", n => 3);
	good("SET timezone = 'UTC'; SELECT $f(16, 4); SET timezone = 'Asia/Tokyo'; SELECT $f(16, 5)", "$f: of one session", n => 2);
	good("BEGIN; SET LOCAL timezone = 'UTC'; SELECT $f(16, 6); SET LOCAL timezone = 'Asia/Tokyo'; SELECT $f(16, 7); COMMIT", "$f: of one transaction");
	is(sql(q{SELECT string_agg(to_char(c AT TIME ZONE 'UTC', 'HH24'), ' ' ORDER BY i) FROM t WHERE w = 16}), '00 15 00 00 15 00 15', 'they are what they were');
	sql('DELETE FROM t WHERE w = 16');
}
good("SELECT float_literal(16, 1);\n\\c\nSET extra_float_digits = 0; SELECT float_literal(16, 1)", 'what the planner computes', n => 2);
is(sql(q{SELECT count(DISTINCT s) FROM t WHERE w = 16}), 2, 'differs');
sql('DELETE FROM t WHERE w = 16');

# ---- the tape

foreach my $case (
	[ q{x := nextval('seq'); INSERT INTO t VALUES (w, i, x::text);}, 'nextval in an expression' ],
	[ q{INSERT INTO t VALUES (w, i, nextval('seq'));}, 'in a query' ],
	[ q{x := nextval('seq'); INSERT INTO t VALUES (w, i, currval('seq') || ' ' || lastval());}, 'currval and lastval' ],
	[ q{INSERT INTO t VALUES (w, i, random(), clock_timestamp(), gen_random_uuid(), random());}, 'random, clock_timestamp, uuid' ],
	[ q{INSERT INTO t VALUES (w, i, timeofday());}, 'timeofday' ],
	[ q{x := txid_current(); INSERT INTO t VALUES (w, i, x::text);}, 'txid_current' ],
	[ q{INSERT INTO other VALUES (w); INSERT INTO other VALUES (w);}, 'serial, identity, a default' ],
	[ q{EXECUTE 'INSERT INTO t VALUES ($1, $2, nextval(''seq''))' USING w, i;}, 'EXECUTE' ],
	[ q{IF random() >= 0 THEN y := random()::text || clock_timestamp(); END IF; FOR k IN 1..3 LOOP y := y || nextval('seq'); END LOOP; INSERT INTO t VALUES (w, i, y);}, 'several' ],
	[ q{y := CASE WHEN w = 0 THEN nextval('seq')::text ELSE 'none' END; INSERT INTO t VALUES (w, i, y);}, 'one that is not evaluated' ],
	[ q{y := nextval(CASE WHEN random() < 0.5 THEN 'seq'::regclass ELSE 'seq2'::regclass END)::text; INSERT INTO t VALUES (w, i, y);}, 'one in an argument of another' ],
	[ q{INSERT INTO t VALUES (w, i, nextval(CASE WHEN random() < 0.5 THEN 'seq'::regclass ELSE 'seq2'::regclass END));}, 'the same in a query' ],
	[ q{INSERT INTO t SELECT w, i, (SELECT nextval('seq') + a FROM (SELECT nextval('seq') AS a OFFSET 0) q)::text;}, 'in a subquery' ])
{
	my ($body, $name) = @$case;

	sql('CREATE SEQUENCE IF NOT EXISTS seq2');
	make('taped', 'w int, i bigint', $body);
	my $q = good('SELECT taped(10, 1)', "tape: $name", between => q{SELECT setval('seq', 1000 + nextval('seq'))});
	sql('DELETE FROM t; DELETE FROM other');
}
sql(q{CREATE FUNCTION writes(w int, i bigint) RETURNS regclass LANGUAGE plpgsql AS $$BEGIN INSERT INTO t VALUES (w, i + 1, 'inner'); RETURN 'seq'; END$$});
make('taped', 'w int, i bigint', q{x := nextval(writes(w, i)); INSERT INTO t VALUES (w, i, x::text);});
good('SELECT taped(10, 1)', 'tape: an argument that writes');
my $last = sql(q{SELECT last_value FROM seq});
good('SELECT taped(10, 3)', 'and again');
is(sql(q{SELECT last_value FROM seq}), $last + 1, 'nothing is drawn from the sequence');
make('taped', 'w int, i bigint', q{x := nextval('seq'); INSERT INTO t VALUES (w, i, x::text);});
good('BEGIN; SELECT taped(11, 1); SELECT put(11, 2, NULL); SELECT taped(11, 3); COMMIT', 'tapes of several calls');
$node->fails_with(q{SELECT nvm.replayed(NULL::int, 1574, NULL::int)}, qr/nvm\.replayed\(\) is called outside of a replay of calls/, 'nvm.replayed() by hand');

# ---- calls in calls, triggers, keys, exceptions

make('outer_call', 'w int, i bigint', q{PERFORM put(w, i, 'inner'); PERFORM count(*) FROM a_set(w, 3); x := nextval('seq'); UPDATE t SET s = s || x WHERE t.w = $1 AND t.i = $2;});
good('SELECT outer_call(12, 1)', 'registered functions in one');
sql('SELECT nvm.unregister_command(oid) FROM pg_proc WHERE proname IN (\'put\', \'a_set\')');
register('put', 'a_set');
sql('DELETE FROM t');
good('SELECT outer_call(12, 1)', 'not registered any more', between => q{SELECT nvm.unregister_command(oid) FROM pg_proc WHERE proname IN ('outer_call', 'put', 'a_set')});
good('SELECT taped(12, 5)', 'nor is any', between => q{CREATE TABLE labels AS SELECT objoid, label FROM pg_seclabel WHERE provider = 'nvm' AND classoid = 'pg_proc'::regclass; SELECT nvm.unregister_command(objoid) FROM labels});
sql(q{SELECT nvm.register_command(objoid, substring(label FROM 'lanes=(.*)')) FROM labels});
register('outer_call', 'put', 'a_set');
sql(q{CREATE TABLE parent (w int, i bigint, n int DEFAULT 0, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('parent', 'w');
CREATE TABLE child (w int, i bigint, k int, c timestamptz, PRIMARY KEY (w, i, k), FOREIGN KEY (w, i) REFERENCES parent ON DELETE CASCADE) USING nvm_cmdlog;
SELECT nvm.partition_table('child', 'w');
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN new.c := clock_timestamp(); RETURN new; END$$;
CREATE TRIGGER stamp BEFORE INSERT ON child FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE FUNCTION audit() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN INSERT INTO t VALUES (coalesce(new.w, old.w), nextval('seq'), tg_op); RETURN NULL; END$$;
CREATE TRIGGER audit AFTER INSERT OR UPDATE OR DELETE ON child FOR EACH ROW EXECUTE FUNCTION audit();});
make('relatives', 'w int', q{INSERT INTO parent VALUES (w, 1); FOR k IN 1..3 LOOP INSERT INTO child VALUES (w, 1, k); END LOOP; UPDATE parent SET n = n + 1 WHERE parent.w = $1 AND i = 1;});
good('SELECT relatives(13)', 'triggers and foreign keys', between => 'ALTER TABLE child DISABLE TRIGGER audit; DELETE FROM parent; ALTER TABLE child ENABLE TRIGGER audit');
is(sql('SELECT count(*) FROM child'), 3, 'children');
make('caught', 'w int', q{BEGIN INSERT INTO t VALUES (w, 1, 'a'); EXCEPTION WHEN division_by_zero THEN NULL; END; INSERT INTO t VALUES (w, 2, 'b');});
good('SELECT caught(14)', 'an EXCEPTION block');
make('several_rows', 'w int, n int', q{INSERT INTO t SELECT w, k, 'x' FROM generate_series(1, n) k; UPDATE t SET s = s || i WHERE t.w = $1; DELETE FROM t WHERE t.w = $1 AND i <= n / 2;});
good('SELECT several_rows(15, 3000)', 'many rows');
sql('DELETE FROM t');

# ---- what fails

make('f', 'w int, i bigint', q{INSERT INTO t VALUES (w, i, 'a');});
sub body { my ($body, %params) = @_; return qq{CREATE OR REPLACE FUNCTION f(w int, i bigint) RETURNS void LANGUAGE plpgsql AS \$f\$#variable_conflict use_variable\nDECLARE x bigint; BEGIN $body END\$f\$}; }
my $call = qr/^public\.f\(20, 1\)$/;
my $r = bad('SELECT f(20, 1)', body(q{INSERT INTO t VALUES (w, i, 'b');}), qr/^replayed calls have not written what the calls in the log have$/, $call, 'another body');
like($r->[7], qr/^The checksum is [0-9a-f]{16} of 1 rows, in the log [0-9a-f]{16} of 1 rows\.$/, 'its detail');
sql(body(q{INSERT INTO t VALUES (w, i, 'a');}));
sql('DELETE FROM t');
bad('SELECT f(20, 1)', body(''), qr/^replayed calls have not written/, $call, 'nothing written');
sql(body(q{INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t');
$r = bad('SELECT f(20, 1)', body('x := 1 / (i - 1);'), qr/^division by zero$/, $call, 'an ERROR');
like($r->[7], qr{^PL/pgSQL function (public\.)?f\(integer,bigint\) line \d+ at assignment}, 'its detail is the context');
sql(body(q{x := nextval('seq'); INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t');
bad('SELECT f(20, 1)', body(q{x := nextval('seq'); x := nextval('seq'); INSERT INTO t VALUES (w, i, 'a');}), qr/^the tape of the call has nothing left, and the call wants a result of nextval\(\)$/, $call, 'a tape too short');
sql(body(q{x := nextval('seq'); INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t');
bad('SELECT f(20, 1)', body(q{INSERT INTO t VALUES (w, i, 'a');}), qr/^the tape of the call has a result of nextval\(\) left, which the call has not asked for$/, $call, 'a tape too long');
sql(body(q{x := nextval('seq'); INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t');
bad('SELECT f(20, 1)', body(q{IF random() > 2 THEN NULL; END IF; INSERT INTO t VALUES (w, i, 'a');}), qr/^the tape of the call has a result of nextval\(\), type bigint, and the call wants one of random\(\), type double precision$/, $call, 'another tape');
sql(body(q{x := nextval('seq'); INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t');
bad('SELECT f(20, 1)', body(q{BEGIN x := nextval('seq'); x := nextval('seq'); EXCEPTION WHEN OTHERS THEN NULL; END; INSERT INTO t VALUES (w, i, 'a');}), qr/^(the tape of the call has a result|a replayed call has rolled back a subtransaction)/, $call, 'an error of the tape that is caught');
sql(body(q{INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t');
bad('SELECT f(20, 1)', body(q{INSERT INTO t VALUES (w, i, 'a'); INSERT INTO a_heap VALUES (1);}), qr/^a replayed call writes table "a_heap", which is not a permanent one of nvm_cmdlog$/, $call, 'another table');
is(sql('SELECT count(*) FROM a_heap'), 0, 'it has nothing');
sql(body(q{INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t');
bad('SELECT f(20, 1)', body(q{INSERT INTO t VALUES (w, i, 'a'); NOTIFY x;}), qr/^a replayed call executes a utility command$/, $call, 'a utility command');
sql(body(q{INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t');
bad('SET ROLE caller; SELECT f(20, 1)', body(q{INSERT INTO t VALUES (w, i, 'a'); PERFORM set_config('role', 'none', true);}), qr/^cannot set parameter "role" within security-definer function$/, $call, 'a function that wants to be somebody else');
sql(body(q{INSERT INTO t VALUES (w, i, 'a');}) . '; DELETE FROM t; CREATE ROLE goes; GRANT ALL ON t TO goes');
bad('SET ROLE goes; SELECT f(20, 1)', 'DROP OWNED BY goes; DROP ROLE goes', qr/^the role with OID \d+, which has made the call, does not exist any more$/, qr/^public\.f\(20, 1\)$/, 'a role that is gone');
my $oid = sql(q{SELECT 'f(int,bigint)'::regprocedure::oid});
sql('DELETE FROM t');
$r = bad('SELECT f(20, 1)', 'DROP FUNCTION f(int,bigint)', qr/^the function with OID $oid does not exist any more$/, qr/^function $oid\(20, 1\)$/, 'a function that is gone');
sql('CREATE TYPE soon_gone AS ENUM (\'a\')');
make('g', 'w int, m soon_gone', q{INSERT INTO t VALUES (w, 1, m::text);});
my $type = sql(q{SELECT 'soon_gone'::regtype::oid});
bad(q{SELECT g(20, 'a')}, 'DROP TYPE soon_gone CASCADE', qr/^the type with OID $type, of a value of the call, does not exist any more$/, qr/^function \d+$/, 'a type that is gone');
sql('DELETE FROM t');

sql(q{CREATE OR REPLACE FUNCTION f(w int, i bigint) RETURNS void LANGUAGE plpgsql AS $$BEGIN INSERT INTO t VALUES (w, i, 'a'); END$$});
register('f');
bad('SELECT f(20, 1)', body(q{RAISE query_canceled USING MESSAGE = 'enough';}), qr/^enough$/, $call, 'an ERROR that looks like a cancel');
sql('DELETE FROM t');
sql(body(q{INSERT INTO t VALUES (w, i, 'a');}));
bad(q{SET timezone = 'Europe/Berlin'; SELECT f(20, 1)}, q{UPDATE recorded SET section = overlay(section PLACING 'Europa' FROM position('Europe'::bytea IN section))}, qr/^invalid value for parameter "TimeZone": "Europa\/Berlin"$/, $call, 'a setting that there is not any more');
sql('DELETE FROM t');

# the second of two calls, and the process goes on with the next
make('f', 'w int, i bigint', q{INSERT INTO t VALUES (w, i, 'a');});
$p = played(q{BEGIN; SELECT put(21, 1, 'x'); SELECT f(21, 2); COMMIT; SELECT put(21, 3, 'y'); BEGIN; SELECT f(21, 4); SELECT put(21, 5, repeat('it''s', 100)); SELECT put(21, 6, 'z'); SELECT put(21, 7, 'z'); COMMIT; SET timezone = 'Asia/Tokyo'; SELECT context(21, 8)},
	between => body(q{INSERT INTO t VALUES (w, i, 'b'); IF i = 2 THEN x := 1 / (i - 2); END IF;}));
is(join(' ', map { "$_->[0]$_->[1]" } @{ $p->{results} }), '1t 2f 3t 4f', 'failures, and what is well');
is($p->{results}[0][3], 'public.f(21, 2)', 'the call that failed');
is($p->{results}[0][6], 2, 'it is the second one');
like($p->{results}[2][3], qr/^public\.f\(21, 4\); public\.put\(21, 5, 'it''s(?:it''s)+.{0,4}\.\.\.'\); public\.put\(21, 6, 'z'\); and 1 more$/, 'calls as SQL, cut');
is(sql('SELECT string_agg(i::text, \',\' ORDER BY i) FROM t WHERE w = 21'), '3,8', 'the others are there');

# a player that is ended in a call leaves nothing
my $killer = $node->session;
foreach my $end ('pg_terminate_backend', 'pg_cancel_backend')
{
	sql('DELETE FROM t');
	make('f', 'w int, i bigint', q{INSERT INTO t VALUES (w, i, 'a');});
	$killer->send(qq{DO \$\$ BEGIN FOR k IN 1..600 LOOP PERFORM pg_sleep(0.05), pg_stat_clear_snapshot();
		IF (SELECT count($end(pid)) FROM pg_stat_activity WHERE backend_type = 'nvm test player' AND wait_event = 'PgSleep') > 0 THEN RETURN; END IF; END LOOP; END \$\$});
	$p = played('SELECT f(22, 1)', between => body(q{INSERT INTO t VALUES (w, i, 'a'); PERFORM pg_sleep(60);}));
	is(scalar(@{ $p->{results} }), 0, "$end: nothing is said");
	ok($p->{unchanged}, 'and nothing is there');
}
$killer->drop;

$node->check_clean('at the end');

done_testing();

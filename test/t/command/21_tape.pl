# Copyright (c) 2026, pg_nvm contributors

# The tape: what nextval(), random() and their like have returned in a call is in its record, in
# the order in which it came, wherever the call stands: expressions of PL/pgSQL, queries,
# defaults, identity columns, triggers.  Such a call could be replayed.  It is as it was outside
# of calls, in databases without registered functions, and where the function is looked at by
# others than the planner: there it is a reason still.

use strict;
use warnings;

use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('tape', conf => "autovacuum = off\nmax_worker_processes = 8\n", sql => <<'SQL');
CREATE SEQUENCE seq;
CREATE TABLE t (w int, i bigint, x float, s text, c timestamptz, u uuid, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('t', 'w');
CREATE TABLE with_serial (w int, id serial, PRIMARY KEY (w, id)) USING nvm_cmdlog;
SELECT nvm.partition_table('with_serial', 'w');
CREATE TABLE with_identity (w int, id smallint GENERATED ALWAYS AS IDENTITY, u uuid DEFAULT gen_random_uuid(), PRIMARY KEY (w, id)) USING nvm_cmdlog;
SELECT nvm.partition_table('with_identity', 'w');
CREATE TABLE with_trigger (w int PRIMARY KEY, c timestamptz, n bigint) USING nvm_cmdlog;
SELECT nvm.partition_table('with_trigger', 'w');
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN new.c := clock_timestamp(); SELECT nextval('seq') INTO new.n; RETURN new; END$$;
CREATE TRIGGER t BEFORE INSERT ON with_trigger FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE TABLE with_check (w int PRIMARY KEY, x float CHECK (x + random() > 0)) USING nvm_cmdlog;
SELECT nvm.partition_table('with_check', 'w');
CREATE FUNCTION in_sql() RETURNS bigint LANGUAGE sql AS $$SELECT nextval('seq')$$;
SQL
my $dir = $node->data_dir . '/pg_nvm_log';
my $f = "'f(int)'::regprocedure";

sub sql { return $node->safe_psql('postgres', $_[0]); }

my %oid = map { $_ => sql("SELECT oid FROM pg_proc WHERE proname = '$_' AND pronamespace = 'pg_catalog'::regnamespace AND pronargs = " . ($_ =~ /val$/ && $_ ne 'lastval' ? 1 : 0)) }
  qw(nextval currval lastval random clock_timestamp timeofday gen_random_uuid txid_current pg_current_xact_id);
my %name = reverse %oid;

# Call a function with this body: what the tape has, as "name: value", and the verdict.
my $write = 'INSERT INTO t VALUES (f.w, 1 + (SELECT coalesce(max(i), 0) FROM t WHERE t.w = f.w));';
sub tape_of
{
	my ($body, %params) = @_;
	my $declare = $params{declare} // '';

	sql(qq{DROP FUNCTION IF EXISTS f(int);
CREATE FUNCTION f(w int) RETURNS text LANGUAGE plpgsql AS \$f\$
#variable_conflict use_column
DECLARE x bigint; y text; z float; r record; $declare
BEGIN
	$body
END \$f\$;
SELECT nvm.register_command('f(int)', '{w}')});
	my $before = NvmLog::dump_of($dir)->{end};
	my $result = $node->safe_psql('postgres', $params{call} // 'SELECT f(1)');
	my $dump = NvmLog::dump_of($dir, from => $before);
	my @tape = map { s/^tape of (\d+): '?(.*?)'?(?:::[a-z ]+)?$/$name{$1}: $2/r } map { s/^ +//r } grep { /^ +tape/ }
	  map { @{ $_->{calls}{parts} // [] } } @{ $dump->{records} };
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($dump->{problem}, '', 'the log is whole') if $dump->{problem} ne '';
	return ($result, sql("SELECT replayable || ' ' || by_values || ' ' || coalesce(last_reason || coalesce(': ' || last_object, ''), 'none') FROM nvm.commands WHERE function = $f"), @tape);
}

# the body sets y to what is to be on the tape
sub taped
{
	my ($body, $name, %params) = @_;
	my ($result, $verdict, @tape) = tape_of("$body $write RETURN y;", %params);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($verdict, '1 0 none', "$name: replayable");
	is(join('|', @tape), $result, "$name: on the tape");
	return $result;
}

# ---- where they stand

taped("y := 'nextval: ' || nextval('seq');", 'an expression of PL/pgSQL');
taped("x := nextval('seq'); y := 'nextval: ' || x;", 'one of another type');
taped("SELECT 'nextval: ' || nextval('seq') INTO y;", 'a query that PL/pgSQL evaluates');
taped("INSERT INTO t VALUES (f.w, nextval('seq') + 100000) RETURNING 'nextval: ' || i - 100000 INTO y;", 'a query that writes');
taped("UPDATE t SET s = 'nextval: ' || nextval('seq') WHERE t.w = f.w AND i = 1 RETURNING s INTO y;", 'an UPDATE');
taped("UPDATE t SET s = 'a' WHERE t.w = f.w AND i = 1 RETURNING 'nextval: ' || nextval('seq') INTO y;", 'RETURNING');
taped("INSERT INTO with_serial VALUES (f.w) RETURNING 'nextval: ' || id INTO y;", 'a serial column');
taped("INSERT INTO with_identity (w, u) VALUES (f.w, NULL) RETURNING 'nextval: ' || id INTO y;", 'an identity column');
taped("INSERT INTO with_identity (w) VALUES (f.w) RETURNING 'nextval: ' || id || '|gen_random_uuid: ' || u INTO y;", 'and a default');
taped("INSERT INTO with_trigger VALUES (f.w) RETURNING n INTO x; SELECT 'clock_timestamp: ' || to_char(c AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00|nextval: ' || n INTO y FROM with_trigger WHERE with_trigger.w = f.w;", 'a trigger');
taped("EXECUTE 'SELECT ''nextval: '' || nextval(''seq'')' INTO y;", 'EXECUTE');
taped("y := CASE WHEN f.w = 2 THEN nextval('seq')::text END; y := '';", 'one that is not evaluated');
taped("y := ''; FOR k IN 1..3 LOOP y := y || CASE WHEN y = '' THEN '' ELSE '|' END || 'nextval: ' || nextval('seq'); END LOOP;", 'several, in their order');
taped("SELECT 'nextval: ' || n INTO y FROM nextval('seq') n;", 'in FROM');
taped("SELECT 'nextval: ' || a || '|nextval: ' || b INTO y FROM (VALUES (nextval('seq'), nextval('seq'))) v (a, b);", 'in VALUES');
taped("WITH c AS MATERIALIZED (SELECT nextval('seq') AS n) SELECT 'nextval: ' || n INTO y FROM c;", 'in WITH');
taped("y := 'nextval: ' || (SELECT nextval('seq'));", 'in a subquery');
taped("y := 'nextval: ' || in_sql();", 'in a function in SQL, in an expression');
is(sql("SELECT count(*) FROM (SELECT nextval('seq')) s"), 1, 'outside of calls nothing changes');

# whoever runs a query has not asked for nvm.tape()
{
	sql('CREATE DATABASE no_rights');
	my $out = $node->safe_psql('no_rights', q{CREATE ROLE no_rights;
ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;
CREATE EXTENSION pg_nvm;
CREATE FUNCTION f(w int) RETURNS bool LANGUAGE plpgsql AS 'BEGIN RETURN pg_backend_pid() > 0; END';
SELECT nvm.register_command('f(int)', '{w}');
GRANT EXECUTE ON FUNCTION f(int) TO no_rights;
SET ROLE no_rights;
SELECT random() < 2, f(1)});
	like($out, qr/^t\|t$/m, 'a role without rights on new functions runs such queries');
}

# ---- which

{
	my ($result, $verdict, @tape) = tape_of("x := nextval('seq'); y := x || ' ' || currval('seq') || ' ' || lastval(); $write RETURN y;");
	my ($a, $b, $c) = split / /, $result;
	is("$verdict|" . join('|', @tape), "1 0 none|nextval: $a|currval: $b|lastval: $c", 'currval and lastval');
	($result, $verdict, @tape) = tape_of("z := random(); $write RETURN z;");
	is("$verdict|@tape", "1 0 none|random: $result", 'random');
	($result, $verdict, @tape) = tape_of("$write RETURN gen_random_uuid();");
	is("$verdict|@tape", "1 0 none|gen_random_uuid: $result", 'gen_random_uuid');
	($result, $verdict, @tape) = tape_of("y := timeofday(); $write RETURN y;");
	is("$verdict|@tape", "1 0 none|timeofday: $result", 'timeofday');
	($result, $verdict, @tape) = tape_of("$write RETURN txid_current();");
	is("$verdict|@tape", "1 0 none|txid_current: $result", 'txid_current');
	($result, $verdict, @tape) = tape_of("$write RETURN pg_current_xact_id();");
	like("$verdict|@tape", qr/^1 0 none\|pg_current_xact_id: /, 'pg_current_xact_id');
	# VOLATILE around it would keep the planner from the index
	like(sql(q{CREATE TABLE by_xid (id bigint PRIMARY KEY) USING heap; SET enable_seqscan = off;
EXPLAIN (VERBOSE, COSTS OFF) SELECT FROM by_xid WHERE id = txid_current()}), qr/Index Cond: \(by_xid\.id = txid_current\(\)\)/, 'a STABLE one in a query is left alone');
	($result, $verdict, @tape) = tape_of("SELECT max(i) INTO x FROM t WHERE t.w = f.w AND t.i < txid_current(); $write RETURN 'x';");
	like("$verdict|@tape", qr/^0 1 /, 'and is a reason in a call');
	($result, $verdict, @tape) = tape_of("INSERT INTO t (w, i, c) VALUES (f.w, 77, clock_timestamp()) RETURNING to_char(c AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') INTO y; RETURN y;");
	is("$verdict|@tape", "1 0 none|clock_timestamp: $result+00", 'clock_timestamp');
	($result, $verdict, @tape) = tape_of("$write RETURN statement_timestamp();");
	is("$verdict|@tape", '1 0 none|', 'statement_timestamp: the call has it');
}

# rows that are there are those on the tape
sql('DELETE FROM with_serial');
{
	my (undef, undef, @tape) = tape_of("INSERT INTO with_serial SELECT f.w FROM generate_series(1, 5); RETURN '';");
	is(join(',', map { s/nextval: //r } @tape), sql('SELECT string_agg(id::text, \',\' ORDER BY id) FROM with_serial'), 'keys of several rows');
}

# several calls: each has its own
{
	sql(q{DROP FUNCTION f(int); CREATE FUNCTION f(w int) RETURNS bigint LANGUAGE plpgsql AS 'DECLARE x bigint := nextval(''seq''); BEGIN INSERT INTO t VALUES (w, x + 1000000); RETURN x; END'; SELECT nvm.register_command('f(int)', '{w}')});
	my $before = NvmLog::dump_of($dir)->{end};
	my $out = sql('BEGIN; SELECT f(1); SELECT nextval(\'seq\'); SELECT f(2); COMMIT');
	my ($record) = grep { $_->{calls} } @{ NvmLog::dump_of($dir, from => $before)->{records} };
	my ($one, undef, $two) = split /\n/, $out;
	is(join('|', map { s/^call \d+\((\d)\).*$/f$1/r =~ s/^ +tape of \d+: '(\d+)'::bigint$/$1/r } grep { /call|tape/ } @{ $record->{calls}{parts} }), "f1|$one|f2|$two", 'each call has its own, and what comes between is on none');
}

# ---- where they are reasons still

foreach my $case (
	["PERFORM setseed(0.5); y := random();", 'function: function setseed(double precision)', 'setseed'],
	["INSERT INTO with_check VALUES (f.w + 0, 1) ON CONFLICT DO NOTHING;", 'function: function random()', 'a CHECK constraint'],
	["SELECT in_sql() + i INTO x FROM t WHERE t.w = f.w AND i = 1;", 'function: function nextval(regclass)', 'a function in SQL that is inlined into a query'],
	["UPDATE t SET x = random() WHERE t.w = f.w AND i < 10000;", 'order of rows: table t', 'results for rows in an unknown order'])
{
	my ($body, $reason, $name) = @$case;
	my (undef, $verdict, @tape) = tape_of("$body $write RETURN '';");
	like($verdict, qr/^0 1 \Q$reason\E/, "$name: a reason");
	is(scalar(@tape), 0, "$name: nothing is recorded");
}

# ---- elsewhere

is(sql("SET ROLE pg_monitor; SELECT random() < 1, clock_timestamp() > '2020-01-01'"), 't|t', 'any role may');
like(sql("EXPLAIN (VERBOSE, COSTS OFF) SELECT nextval('seq')"), qr/Output: nvm\.tape\(nextval\('seq'::regclass\), '1574'::oid\)/, 'a plan shows it');
is(sql("CREATE VIEW v AS SELECT nextval('seq') AS n; SELECT pg_get_viewdef('v')"), " SELECT nextval('seq'::regclass) AS n;", 'a definition does not');
like(sql('SELECT n FROM v'), qr/^\d+$/, 'a view');
is(sql("CREATE TABLE of_query AS SELECT i, random() AS r FROM generate_series(1, 10) i; SELECT count(DISTINCT r) > 1 FROM of_query"), 't', 'CREATE TABLE AS');
is(sql("PREPARE p AS SELECT nextval('seq') - nextval('seq'); EXECUTE p; EXECUTE p"), "-1\n-1", 'prepared');
my $s = $node->session("PREPARE p AS SELECT nextval('seq') IS NOT NULL");
sql("SELECT nvm.unregister_command('f(int)')");
unlike(sql("EXPLAIN (VERBOSE, COSTS OFF) SELECT nextval('seq')"), qr/nvm\.tape/, 'without registered functions plans have none');
like($s->sql('EXECUTE p'), qr/^t$/m, 'nor does a plan from before fail');
sql("SELECT nvm.register_command('f(int)', '{w}')");
$s->drop;

# Both functions that we put into plans are PUBLIC's.  If not, others' queries run without them,
# and calls that would need them are values.
my $body = "INSERT INTO t VALUES (f.w, 2000000 + nextval('seq'));";
sql('CREATE ROLE stranger; GRANT USAGE ON SEQUENCE seq TO stranger; GRANT pg_monitor TO stranger');
foreach my $case (['nvm.tape(anyelement, oid)', $body, 'function: function nextval(regclass)'],
	['nvm.note_function(anyelement, oid)', "z := random(); $write", 'unsuitable function or arguments: function f(integer)'])
{
	my ($function, $body, $reason) = @$case;
	my $open = $node->session("SET ROLE stranger; SELECT nextval('seq')");
	sql("REVOKE EXECUTE ON FUNCTION $function FROM PUBLIC");
	my $stranger = "SELECT nextval('seq') IS NOT NULL; DO \$\$BEGIN ASSERT random() < 2; END\$\$";
	is(sql("SET ROLE stranger; $stranger"), 't', "$function revoked: nextval() runs");
	like($open->sql($stranger), qr/^t$/m, 'in a session from before, too');
	my (undef, $verdict) = tape_of("$body RETURN '';");
	is($verdict, "0 1 $reason", 'a call is one of values');
	sql("GRANT EXECUTE ON FUNCTION $function TO PUBLIC");
	(undef, $verdict) = tape_of("$body RETURN '';");
	is($verdict, '1 0 none', 'granted again: it is not');
	$open->drop;
}

# the record is read over
my $content = 'SELECT count(*), sum(i), sum(x), md5(string_agg(i || coalesce(s, \'\'), \',\' ORDER BY w, i)) FROM t';
my $want = sql($content);
$node->crash;
$node->start;
is(sql($content), $want, 'rows come back');
is(NvmLog::dump_of($dir)->{problem}, '', 'the log is whole');
$node->check_clean('at the end');

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Calls of registered functions are captured however they are made: in a SELECT, by CALL, by
# EXECUTE, over the fast path, through a cursor, in a trigger, by a default; functions that
# return sets, have SECURITY DEFINER or SET, are STRICT, VARIADIC, polymorphic in others'
# arguments, or call each other.  A call sees what the one before it in its lane has
# committed, in PL/pgSQL's simple expressions, too.  A procedure is called atomic.  An error,
# an EXCEPTION block and a savepoint leave nothing behind: lanes and snapshots are gone.
# Counters count committed calls.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('calls', conf => "max_prepared_transactions = 5\n", sql => <<'SQL');
CREATE TABLE stock (w int, i int, n int NOT NULL, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('stock', 'w');
INSERT INTO stock SELECT w, 1, 100 FROM generate_series(1, 20) w;
-- which lanes, that of lane 0 and of the root left out, this session holds now
CREATE FUNCTION held() RETURNS text LANGUAGE sql AS
$$SELECT coalesce(string_agg(mode, ' ' ORDER BY mode), 'none') FROM nvm.lanes
  WHERE target = 'lane' AND pid = pg_backend_pid()$$;
CREATE FUNCTION root() RETURNS text LANGUAGE sql AS
$$SELECT coalesce(string_agg(target || ' ' || mode, ', ' ORDER BY target, mode), 'none') FROM nvm.lanes
  WHERE target <> 'lane' AND pid = pg_backend_pid()$$;
CREATE FUNCTION take(w int, k int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE l int;
BEGIN
	UPDATE stock s SET n = n - k WHERE s.w = take.w AND i = 1 RETURNING n INTO l;
	RETURN l;
END $$;
CREATE FUNCTION seen(w int) RETURNS int STABLE LANGUAGE sql AS 'SELECT n FROM stock s WHERE s.w = seen.w AND i = 1';
-- IMMUTABLE: for other functions PL/pgSQL takes a new snapshot by itself
CREATE FUNCTION seen_pl(w int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT n FROM stock s WHERE s.w = seen_pl.w AND i = 1); END';
CREATE FUNCTION look(w int) RETURNS int LANGUAGE plpgsql AS 'DECLARE x int; BEGIN x := seen_pl(w); RETURN x; END';
CREATE FUNCTION fails(w int) RETURNS int LANGUAGE plpgsql AS $$BEGIN RAISE 'no % of them', w; END$$;
CREATE FUNCTION outer_one(w int, k int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN take(w, k) + take(w, k); END';
CREATE FUNCTION other_one(w int, k int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN take(w + 1, k); END';
CREATE FUNCTION catches(w int) RETURNS int LANGUAGE plpgsql AS
$$BEGIN BEGIN PERFORM fails(w); EXCEPTION WHEN OTHERS THEN NULL; END; RETURN w; END$$;
CREATE FUNCTION several(ws int[], w int) RETURNS text LANGUAGE sql AS 'SELECT held()';
CREATE FUNCTION variadic_one(VARIADIC ws int[]) RETURNS text LANGUAGE sql AS 'SELECT held()';
CREATE FUNCTION strict_one(w int) RETURNS text STRICT LANGUAGE sql AS 'SELECT held()';
CREATE FUNCTION everything(w int) RETURNS text LANGUAGE sql AS $$SELECT root()$$;
CREATE FUNCTION rows_of(w int) RETURNS SETOF int LANGUAGE sql AS 'SELECT n FROM stock s WHERE s.w = rows_of.w UNION ALL SELECT 2';
CREATE FUNCTION pl_rows_of(w int) RETURNS SETOF int LANGUAGE plpgsql AS 'BEGIN RETURN NEXT 1; RETURN NEXT 2; END';
CREATE FUNCTION table_of(w int) RETURNS TABLE (a int, b text) LANGUAGE plpgsql AS $$BEGIN a := w; b := held(); RETURN NEXT; END$$;
CREATE FUNCTION definer(w int) RETURNS text SECURITY DEFINER LANGUAGE sql AS $$SELECT current_user || ' ' || held()$$;
CREATE FUNCTION with_set(w int) RETURNS text SET work_mem = '1MB' LANGUAGE plpgsql AS $$BEGIN RETURN current_setting('work_mem') || ' ' || held(); END$$;
CREATE FUNCTION changes(INOUT w int, OUT y text) LANGUAGE plpgsql AS $$BEGIN y := held(); w := w + 1; END$$;
CREATE FUNCTION series(w int, n int) RETURNS SETOF int LANGUAGE internal AS 'generate_series_int4';
CREATE PROCEDURE proc(w int, INOUT k text) LANGUAGE plpgsql AS $$BEGIN k := held(); END$$;
CREATE PROCEDURE sql_proc(w int) LANGUAGE sql AS 'UPDATE stock s SET n = n + 1 WHERE s.w = sql_proc.w AND i = 1';
CREATE PROCEDURE ends(w int) LANGUAGE plpgsql AS 'BEGIN PERFORM take(w, 1); COMMIT; END';
CREATE PROCEDURE calls_one(w int) LANGUAGE plpgsql AS $$DECLARE h text; BEGIN CALL proc(w, h); IF h <> 'ExclusiveLock' THEN RAISE 'it holds %', h; END IF; END$$;
CREATE PROCEDURE free_one(w int) LANGUAGE plpgsql AS $$BEGIN PERFORM take(w, 1); COMMIT; PERFORM take(w, 1); END$$;
SELECT nvm.register_command(f, '{w}') FROM unnest('{take(int\,int),look(int),fails(int),"outer_one(int\,int)","other_one(int\,int)",catches(int),strict_one(int),rows_of(int),pl_rows_of(int),table_of(int),definer(int),with_set(int),changes(int),"series(int\,int)","proc(int\,text)",sql_proc(int),ends(int),calls_one(int)}'::regprocedure[]) f;
SELECT nvm.register_command('several(int[],int)', '{ws,w}');
SELECT nvm.register_command('variadic_one(int[])', '{ws}');
SELECT nvm.register_command('everything(int)', 'all');
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub calls { return sql("SELECT calls FROM nvm.commands WHERE function::text LIKE '$_[0](%'"); }
sub reset_counts { sql('SELECT nvm.reset_commands()'); return; }

# ---- lanes of a call, by its arguments

is(sql('SELECT held()'), 'none', 'no lane outside of calls');
is(sql('BEGIN; SELECT take(1, 1); SELECT held(), root(); COMMIT; SELECT held(), root()'),
	"99\nExclusiveLock|all lanes RowExclusiveLock, shared tables RowExclusiveLock\nnone|none",
	'a call: its lane, the root and lane 0, to the end of the transaction');
is(sql('SELECT everything(1)'), 'all lanes ExclusiveLock, shared tables RowExclusiveLock', 'all lanes');
is(sql(q{SELECT several('{3,2,3,NULL,4}', 2)}), 'ExclusiveLock ExclusiveLock ExclusiveLock', 'an array, and a value: each once');
is(sql(q{SELECT several('{}', 2), several(NULL, 2)}), 'ExclusiveLock|ExclusiveLock', 'an empty array, and none');
is(sql(q{SELECT several(NULL, NULL), several('{NULL}', NULL)}), 'none|none', 'NULL names no lane');
is(sql('SELECT variadic_one(1, 2, 3)'), 'ExclusiveLock ExclusiveLock ExclusiveLock', 'VARIADIC');
is(sql(q{BEGIN; SELECT length(several(array_agg(i), 1)) FROM generate_series(1, 1000) i; SELECT held(), root()}),
	"4\nnone|all lanes ExclusiveLock, shared tables RowExclusiveLock", 'a thousand lanes are all');
is(sql('SELECT strict_one(NULL), strict_one(1)'), '|ExclusiveLock', 'STRICT: not called for NULL');
is(sql('BEGIN; SELECT take(1, 0); SELECT take(2, 0); SELECT take(1, 0); SELECT held()') =~ s/.*\n//sr, 'ExclusiveLock ExclusiveLock', 'two calls of a transaction');

# ---- however it is called

is(sql(q{SELECT rows_of(1) - 99; SELECT * FROM pl_rows_of(1); SELECT count(*) FROM rows_of(2), pl_rows_of(3)}), "0\n-97\n1\n2\n4", 'functions that return sets');
is(sql('SELECT * FROM table_of(5)'), '5|ExclusiveLock', 'one that returns a table');
is(sql('SELECT n, series(1, 3) FROM generate_series(1, 2) n'), "1|1\n1|2\n1|3\n2|1\n2|2\n2|3", 'one that returns its rows one by one');
is(sql(q{CREATE ROLE caller; SET ROLE caller; SELECT definer(1)}) =~ s/^\w+ //r, 'ExclusiveLock', 'SECURITY DEFINER');
is(sql('SELECT with_set(1)'), '1MB ExclusiveLock', 'SET');
is(sql('SELECT * FROM changes(1)'), '2|ExclusiveLock', 'INOUT and OUT');
is(sql(q{CALL proc(1, NULL)}), 'ExclusiveLock', 'CALL');
is(sql('CALL sql_proc(1); SELECT seen(1)'), '100', 'CALL of a procedure in SQL');
is(sql('PREPARE p(int) AS SELECT strict_one($1); ' . 'EXECUTE p(3); ' x 7) =~ s/\n/ /gr, join(' ', ('ExclusiveLock') x 7), 'a prepared statement, and its generic plan');
is(sql(q{BEGIN; DECLARE c CURSOR FOR SELECT strict_one(w) FROM generate_series(1, 3) w; FETCH 1 FROM c; FETCH 1 FROM c; SELECT held(); COMMIT}),
	"ExclusiveLock\nExclusiveLock\nExclusiveLock", 'through a cursor: held() makes the transaction one of values, so the second call takes no lane');
is(sql(q{SELECT w FROM generate_series(1, 3) w WHERE strict_one(w) = 'x'; SELECT held()}), 'none', 'in a condition');
is(sql(q{CREATE TABLE d (a int, h text DEFAULT strict_one(7)); INSERT INTO d VALUES (1) RETURNING h}), 'ExclusiveLock', 'as a default');
is(sql(q{CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.h := strict_one(new.a); RETURN new; END';
	CREATE TRIGGER t BEFORE INSERT ON d FOR EACH ROW EXECUTE FUNCTION fire(); INSERT INTO d VALUES (2, '') RETURNING h}),
	'ExclusiveLock', 'in a trigger');
is(sql(q{DO $$BEGIN IF strict_one(1) <> 'ExclusiveLock' THEN RAISE 'no'; END IF; END$$; SELECT 1}), '1', 'in DO');
is(sql(q{BEGIN; EXPLAIN (ANALYZE) SELECT take(1, 0); SELECT held()}) =~ s/.*\n//sr, 'ExclusiveLock', 'under EXPLAIN ANALYZE');
my $fastpath = sql(q{SELECT 'take(int,int)'::regprocedure::oid});
SKIP:
{
	skip 'no Python that finds libpq', 1
	  if system(q{python3 -c "import ctypes; ctypes.CDLL('libpq.so.5')" 2>/dev/null}) != 0;
	my $connstr = $node->connstr('postgres');
	my ($out, $err) = run_command([ 'python3', '-c', <<'PYTHON', $connstr, $fastpath ]);
import ctypes, sys
pq = ctypes.CDLL('libpq.so.5')
pq.PQconnectdb.restype = pq.PQfn.restype = pq.PQexec.restype = ctypes.c_void_p
pq.PQgetvalue.restype = ctypes.c_char_p
conn = ctypes.c_void_p(pq.PQconnectdb(sys.argv[1].encode()))
class Arg(ctypes.Structure):
    _fields_ = [('len', ctypes.c_int), ('isint', ctypes.c_int), ('value', ctypes.c_int), ('pad', ctypes.c_int)]
args = (Arg * 2)(Arg(4, 1, 11, 0), Arg(4, 1, 1, 0))
result = ctypes.c_int()
length = ctypes.c_int()
pq.PQexec(conn, b'BEGIN')
pq.PQfn(conn, int(sys.argv[2]), ctypes.byref(result), ctypes.byref(length), 1, args, 2)
held = ctypes.c_void_p(pq.PQexec(conn, b'SELECT held()'))
print(result.value, pq.PQgetvalue(held, 0, 0).decode())
PYTHON
	is($out, '99 ExclusiveLock', "the fast path $err");
}

{
	my $script = PostgreSQL::Test::Utils::tempdir() . '/pipeline.sql';

	reset_counts();
	append_to_file($script, "\\startpipeline\nSELECT take(18, 0);\nSELECT take(19, 0);\nSELECT look(18);\n\\endpipeline\n");
	command_ok([ 'pgbench', '-n', '-M', 'extended', '-t', 3, '-f', $script, $node->connstr('postgres') ], 'a pipeline');
	is(calls('take') . ' ' . calls('look') . ' ' . sql("SELECT replayable || ' ' || by_values FROM nvm.commands WHERE function = 'take(int,int)'::regprocedure"), '6 3 3 0', 'its calls, each three in one transaction');
}

# ---- calls in calls

is(sql('SELECT outer_one(12, 1)'), 99 + 98, 'a call in a call');
is(sql('BEGIN; SELECT other_one(12, 1); SELECT held(); ROLLBACK'), "99\nRowExclusiveLock RowExclusiveLock", 'one in another lane makes the transaction one of values');

# ---- atomic

my ($ret, $out, $err) = $node->psql('postgres', 'CALL ends(13)');
like($err, qr/ERROR:  invalid transaction termination/, 'a registered procedure cannot COMMIT');
is(sql('SELECT seen(13)'), '100', 'and what it did is gone');
sql('CALL calls_one(13); CALL free_one(13)');
is(sql('SELECT seen(13)'), '98', 'one that is not registered can, around registered calls');

# ---- the snapshot

foreach my $how ('SELECT look(14)', 'SELECT * FROM (SELECT look(14)) x', 'SELECT w FROM (SELECT look(14) w) x WHERE w > 0')
{
	my $before = sql('SELECT seen(14)');
	my ($a, $b) = ($node->session('BEGIN'), $node->session);
	is($a->sql('SELECT take(14, 1)'), $before - 1, 'one call runs');
	$b->send($how);
	NvmTest::wait_until('the second waits', sub { sql('SELECT count(*) FROM nvm.lanes WHERE NOT granted AND pid = ' . $b->pid) eq '1' });
	$a->sql('COMMIT');
	is($b->sql('') . '', $before - 1, "$how: what the first has committed is seen")
	  or diag('an older snapshot');
	$_->drop foreach $a, $b;
}
is(sql('SELECT take(15, 1), look(15), take(15, 1), look(15)'), '99|99|98|98', 'calls of one statement see each other');
is(sql(q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT seen(15); SELECT held(); SELECT look(15), held(); COMMIT}), "98\nnone\n98|none", 'REPEATABLE READ: no lane, no new snapshot');

# ---- what fails

my $s = $node->session;
like($s->sql('SELECT fails(1); SELECT held(), root()'), qr/^none\|none$/, 'an error: its lanes are gone');
is($s->sql('SELECT take(1, 0)'), sql('SELECT seen(1)'), 'and the next call is one');
is($s->sql(q{BEGIN; SELECT take(2, 0) IS NULL; SAVEPOINT a; SELECT take(3, 0) IS NULL; SELECT held(); ROLLBACK TO a; SELECT held(); SELECT take(3, 0) IS NULL; SELECT held(); COMMIT; SELECT held()}),
	"f\nf\nExclusiveLock ExclusiveLock\nExclusiveLock\nf\nRowExclusiveLock RowExclusiveLock\nnone", 'a savepoint that is rolled back lets go of its lanes, and the transaction is one of values');
is($s->sql(q{BEGIN; SAVEPOINT a; SELECT take(3, 0) IS NULL; RELEASE a; SELECT held(); SAVEPOINT b; SELECT 1 / 0; ROLLBACK TO b; SELECT held(), root(); COMMIT}),
	"f\nExclusiveLock\nExclusiveLock|all lanes RowExclusiveLock, shared tables RowExclusiveLock", 'one that is released passes them on');
is($s->sql('SELECT catches(1), held(); SELECT held()'), "1|ExclusiveLock\nnone", 'an EXCEPTION block around a call in a call');
is($s->sql(q{DO $$BEGIN FOR w IN 1..3 LOOP BEGIN PERFORM fails(w); EXCEPTION WHEN OTHERS THEN IF held() <> 'none' THEN RAISE 'it holds %', held(); END IF; END; END LOOP; END$$; SELECT held()}),
	'none', 'and around one that fails: its lane is gone with the subtransaction');
is($s->sql(q{SELECT take(4, 1) / 0; BEGIN; SELECT take(4, 1); PREPARE TRANSACTION 'p'; SELECT held(); SELECT count(*) FROM nvm.lanes; COMMIT PREPARED 'p'; SELECT count(*) FROM nvm.lanes}) =~ s/.*\nnone/none/sr,
	"none\n3\n0", 'a prepared transaction keeps its lanes to its end');
$s->drop;

# ---- counters

reset_counts();
sql('SELECT take(1, 1)') foreach 1 .. 3;
sql('BEGIN; SELECT take(1, 1); SELECT take(2, 1); COMMIT');
sql('BEGIN; SELECT take(1, 1); ROLLBACK');
$node->psql('postgres', 'SELECT fails(1)');
sql('SELECT outer_one(1, 1)');
is(calls('take') . ' ' . calls('outer_one') . ' ' . calls('fails'), '5 1 0', 'committed calls are counted, and those inside others are part of them');
is(sql(q{SELECT mean_ms > 0 FROM nvm.commands WHERE function = 'take(int,int)'::regprocedure}), 't', 'mean time');
$node->restart;
is(calls('take'), '0', 'counted since the start of the server');

# ---- as many functions as are counted

$node->append_conf('postgresql.conf', "nvm.max_commands = 2\nrestart_after_crash = on\n");
$node->restart;
sql('SELECT take(1, 1)');
sql('SELECT look(1)');
sql('SELECT strict_one(1)');
is(calls('take') . calls('look') . calls('strict_one'), '110', 'beyond nvm.max_commands none are counted, and calls go on');

# ---- one that is dropped makes room

sql('DROP FUNCTION take(int,int)');
sql('SELECT strict_one(1)');
is(calls('strict_one'), '1', 'a function that was dropped is not counted any more');
sql(q{CREATE DATABASE other; SELECT nvm.unregister_command('look(int)')});
$node->safe_psql('other', q{CREATE EXTENSION pg_nvm; CREATE FUNCTION f(w int) RETURNS int LANGUAGE sql AS 'SELECT w'; SELECT nvm.register_command('f(int)', '{w}'); SELECT f(1)});
is($node->safe_psql('other', 'SELECT calls FROM nvm.commands'), '1', 'nor one that was unregistered');
sql('DROP DATABASE other');
sql('SELECT definer(1)');
is(calls('definer'), '1', "nor those of a database that was dropped");

# ---- a backend dies in a call

my $dies = $node->session('BEGIN; SELECT everything(1)');
my $waits = $node->session;
$waits->send('SELECT everything(1)');
NvmTest::wait_until('a call waits', sub { sql('SELECT count(*) FROM nvm.lanes WHERE NOT granted') eq '1' });
kill('KILL', $dies->pid);
$node->wait_reopened(1);
$_->drop foreach $dies, $waits;
is(sql('SELECT count(*) FROM nvm.lanes'), '0', 'no lane is left');
is(calls('definer'), '0', 'counters begin anew');
sql('SELECT definer(1)');
is(calls('definer'), '1', 'and count');
$node->check_clean('after calls');
done_testing();

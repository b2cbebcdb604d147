# Copyright (c) 2026, pg_nvm contributors

# nvm.rehearse(): the log since the last checkpoint, replayed in a copy, comes to the rows that
# are there: calls of one lane and of several, with tape, time, settings, roles, triggers and
# foreign keys; transactions of values between them, whose rows the calls have put elsewhere; tables
# without a key, with large values, with dropped columns.  While others work, too.  What comes to
# something else is found, and named with the call.  nvm.replay_command_log() keeps a copy as of a
# moment.  Functions of indexes run as the owner of their table.

use strict;
use warnings;

use NvmShop;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('rehearse', conf => <<CONF, sql => "CREATE ROLE clerk;\n" . NvmShop::schema());
autovacuum = off
max_prepared_transactions = 5
max_worker_processes = 16
nvm.checkpoint_interval = 0
deadlock_timeout = 100ms
log_lock_waits = on
restart_after_crash = off
CONF

sub sql { return $node->safe_psql('postgres', join("\n", map { "$_;" } @_)); }

# passed|transactions|calls|value_rows, or what has differed
sub rehearse
{
	my ($arguments) = @_;
	return sql("SELECT CASE WHEN passed THEN format('passed: %s calls, %s transactions, %s rows of values', calls, transactions, value_rows)"
		  . " ELSE concat_ws('; ', problem, detail, call) END FROM nvm.rehearse(" . ($arguments // '') . ')');
}

## what cannot be rehearsed

my ($ret, $out, $err) = $node->psql('postgres', 'SELECT * FROM nvm.rehearse()');
isnt($ret, 0, 'no rehearsal without a checkpoint');
like($err, qr/nvm\.checkpoint\(\)/, 'which says what to do');
sql('SELECT nvm.checkpoint()');
is(rehearse(), 'passed: 0 calls, 0 transactions, 0 rows of values', 'nothing happened since the checkpoint');
($ret, $out, $err) = $node->psql('postgres', 'SET ROLE clerk; SELECT * FROM nvm.rehearse()');
like($err, qr/permission denied/, 'not for everybody');
is(sql("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'nvm_re%'"), '0', 'no copy is left');

## calls alone

sql("SELECT take(1, 3, 2)", "SELECT take(1, 3, 2), take(1, 4, 1)", "SELECT move(1, 2, 5, 7)");
is(rehearse(), 'passed: 4 calls, 3 transactions, 0 rows of values', 'calls');
sql("SET TimeZone = 'Asia/Tokyo'", "SET ROLE clerk", "CALL place(2, 5, 'a')", "CALL place(2, 6, repeat('long', 3000))");
sql('BEGIN', "SELECT take(3, 1, 1)", "SAVEPOINT s", "CALL place(3, 1, NULL)", "SELECT take(3, 2, 2)", 'COMMIT');
sql("SELECT * FROM close_orders(2, 1)");
is(rehearse(), 'passed: 10 calls, 7 transactions, 0 rows of values',
	'time, time zone, role, a trigger, foreign keys, identity, large values, a set, savepoints');
is(rehearse(1), 'passed: 10 calls, 7 transactions, 0 rows of values', 'by one worker');

## values between them: rows that calls have put elsewhere

sql('DELETE FROM orders WHERE w = 3', "UPDATE orders SET note = note || 'x' WHERE w = 2", "UPDATE stock SET n = n + 1 WHERE w = 1 AND i < 5");
sql("UPDATE history SET what = upper(what) WHERE w = 1");
sql("DELETE FROM history WHERE w = 3 AND what LIKE 'cost%'");
sql("UPDATE stock SET i = i + 1000 WHERE w = 4 AND i < 4", "INSERT INTO stock VALUES (4, 1, 5), (4, 2, 6)");
sql("SELECT take(4, 1, 1)", "SELECT take(4, 1003, 1)", "CALL place(4, 2, 'b')");
sql("UPDATE price SET p = p * 2 WHERE i = 3");
sql("SELECT take(1, 3, 1)");
sql('BEGIN', "UPDATE stock SET n = 0 WHERE w = 5", "PREPARE TRANSACTION 'p'");
sql("SELECT take(6, 1, 1)", "COMMIT PREPARED 'p'", "SELECT take(5, 1, 1)");
sql('BEGIN', "UPDATE stock SET n = 0 WHERE w = 6", "PREPARE TRANSACTION 'q'", "ROLLBACK PREPARED 'q'");
sql('BEGIN', 'SAVEPOINT s', "DELETE FROM stock WHERE w = 6", 'ROLLBACK TO s', "UPDATE stock SET n = 1 WHERE w = 6 AND i = 2", 'COMMIT');
sql("INSERT INTO stock VALUES (6, 2, 9) ON CONFLICT (w, i) DO UPDATE SET n = stock.n + EXCLUDED.n");
sql("DELETE FROM stock WHERE w = 2 AND i = 6");
like(rehearse(), qr/^passed: 16 calls, \d+ transactions, [1-9]\d+ rows of values$/, 'values by identity, between calls');
is(sql("SELECT phase, passed, calls, problem IS NULL FROM nvm.replay"), 'ended|t|16|t', 'nvm.replay tells of it');

is(sql("SELECT string_agg(proname, ' ' ORDER BY proname) FROM nvm.commands c JOIN pg_proc p ON p.oid = c.function WHERE rehearsed > now() - interval '1 minute' AND replay_rate > 0"),
	'close_orders move place take', 'and nvm.commands, of each function');

# limits that a session had lifted, and that a player finds low
sql('CREATE VIEW prices AS SELECT p FROM price',
	q{CREATE FUNCTION dig(w int, k int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE stock s SET n = length((repeat('[', k) || repeat(']', k))::jsonb::text) + (SELECT count(*) FROM prices) WHERE s.w = dig.w AND s.i = 1;
END$$},
	q{SELECT nvm.register_command('dig(int,int)', lanes => '{w}')}, 'SELECT nvm.checkpoint()');
# not every minor version has it
my @views = sql("SELECT count(*) FROM pg_settings WHERE name = 'restrict_nonsystem_relation_kind'") ? 'restrict_nonsystem_relation_kind' : ();
sql(map { "ALTER DATABASE postgres SET $_" } "max_stack_depth = '100kB'", 'exit_on_error = on', map { "$_ = 'view'" } @views);
my $views = join('', map { "SET $_ = '';" } @views);
$node->fails_with("$views SELECT dig(5, 3000)", qr/stack depth limit exceeded/, 'a call that is too deep for a session');
$node->fails_with("SET max_stack_depth = '7MB'; SELECT dig(5, 3000)", qr/access to non-system view/, 'and may not read a view') if @views;
sql("$views SET max_stack_depth = '7MB'", 'SELECT dig(5, 3000)');
is(rehearse(), 'passed: 1 calls, 1 transactions, 0 rows of values', 'limits of a database do not hold for a player');
sql('ALTER DATABASE postgres RESET ALL');

# over a checkpoint, and over restarts
sql('SELECT nvm.checkpoint()', 'SELECT take(1, 1, 1)');
is(rehearse(), 'passed: 1 calls, 1 transactions, 0 rows of values', 'behind another checkpoint');
my $before = sql('SELECT * FROM stock ORDER BY w, i');
$node->crash;
$node->start;
is(sql('SELECT * FROM stock ORDER BY w, i'), $before, 'a restart brings back rows by their values');
sql('SELECT take(1, 1, 1)', "UPDATE stock SET n = n + 1 WHERE w = 1 AND i = 1", 'SELECT take(1, 1, 1)');
like(rehearse(), qr/^passed: [23] calls/, 'over a restart');

## while others work

sql('SELECT nvm.checkpoint()');
my @work = map { my $c = $_; $node->background_psql('postgres', on_error_stop => 0) } 1 .. 2;
foreach my $round (1 .. 3)
{
	my @load = map { my $w = 1 + 2 * $_; IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c',
		"DO \$\$BEGIN FOR k IN 1..150 LOOP PERFORM take($w, 1 + k % 20, 1); COMMIT; PERFORM move($w, $w + 1, 1 + k % 20, 1); COMMIT;"
		  . " UPDATE stock SET n = n + 1 WHERE w = $w + 1 AND i = 1 + k % 20; COMMIT; END LOOP; END\$\$" ], '>', '/dev/null', '2>&1') } 0 .. 2;
	like(rehearse(), qr/^passed: /, "round $round: beside others' work");
	$_->finish foreach @load;
}
$_->quit foreach @work;
like(rehearse(), qr/^passed: /, 'when they are done');
is(sql('SELECT many_lanes > 0 FROM nvm.replay'), 't', 'some had two lanes');

## what differs is found

sql('SELECT nvm.checkpoint()', 'SELECT take(2, 1, 5)');
sql(q{CREATE OR REPLACE FUNCTION take(w int, i int, k int) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	UPDATE stock s SET n = n - 2 * k, at = now(), by = current_user WHERE s.w = take.w AND s.i = take.i;
	RETURN 0;
END$$});
my $said = rehearse();
like($said, qr/take\(2, 1, 5\)/, 'a function that has become another one: the call is named') or diag($said);
is(sql('SELECT passed, problem IS NOT NULL FROM nvm.replay'), 'f|t', 'and in nvm.replay');
is(sql("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'nvm_re%'"), '0', 'the copy is gone');

# a function in C that says IMMUTABLE and is not
sql(q{CREATE FUNCTION lie() RETURNS float8 LANGUAGE internal IMMUTABLE AS 'drandom'},
	q{CREATE FUNCTION by_chance(w int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE z float8;
BEGIN
	EXECUTE 'SELECT lie()' INTO z;
	UPDATE stock s SET n = n + (100000 * z)::int WHERE s.w = by_chance.w AND s.i = 1;
END$$}, "SELECT nvm.register_command('by_chance(int)', lanes => '{w}')", 'SELECT nvm.checkpoint()', 'SELECT by_chance(3)');
is(sql("SELECT replayable FROM nvm.commands WHERE function = 'by_chance(int)'::regprocedure"), '1', 'it passes for replayable');
like(rehearse(), qr/by_chance\(3\)/, 'the rehearsal finds it');
$before = sql('SELECT * FROM stock ORDER BY w, i');
$node->crash;
$node->start;
is(sql('SELECT * FROM stock ORDER BY w, i'), $before, 'and nothing was lost by it');

## a copy as of a moment

sql('SELECT nvm.unregister_command(\'by_chance(int)\')', 'SELECT nvm.checkpoint()', 'SELECT move(1, 2, 7, 1)');
my $content = sql('SELECT w, i, n FROM stock ORDER BY w, i');
my $moment = sql('SELECT clock_timestamp()');
sql('SELECT move(1, 2, 7, 30)', "UPDATE stock SET n = -1 WHERE w = 3");
is(sql("SELECT passed, calls, schema FROM nvm.replay_command_log(upto => '$moment', copy_schema => 'then')"), 't|1|then', 'as of a moment');
is(sql('SELECT w, i, n FROM "then".stock ORDER BY w, i'), $content, 'the copy has the rows of then');
($ret, $out, $err) = $node->psql('postgres', q{SELECT nvm.replay_command_log(copy_schema => 'then')});
like($err, qr/schema "then" already exists/, 'a schema that is there stays');
is(sql("SELECT passed, calls FROM nvm.replay_command_log()"), 't|2', 'all of it');
is(sql('SELECT w, i, n FROM nvm_replay.stock ORDER BY w, i'), sql('SELECT w, i, n FROM stock ORDER BY w, i'), 'is as the originals are');
sql('DROP SCHEMA "then" CASCADE', 'DROP SCHEMA nvm_replay CASCADE');

## code of owners: expressions and predicates of indexes

# the constant is evaluated whenever the index is opened; the operator is looked up by search_path
sql('CREATE ROLE builder', 'CREATE SCHEMA trojan AUTHORIZATION clerk', 'GRANT USAGE ON SCHEMA trojan TO PUBLIC', 'GRANT CREATE ON SCHEMA public TO builder', 'SET ROLE builder',
	q{CREATE FUNCTION whose(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF (SELECT rolsuper FROM pg_roles WHERE rolname = current_user) THEN RAISE EXCEPTION 'whose(%) runs as %', n, current_user; END IF;
	RAISE LOG 'whose(%) runs as %', n, current_user;
	RETURN n + 0;
END$$},
	'CREATE TABLE keyed (id int PRIMARY KEY, n int) USING nvm_cmdlog', 'CREATE INDEX ON keyed (whose(n), (id - whose(-1)))',
	'CREATE TABLE bare (n int) USING nvm_cmdlog', 'CREATE INDEX ON bare (n) WHERE whose(n) > whose(-2)',
	'INSERT INTO keyed SELECT g, g FROM generate_series(1, 5) g', 'INSERT INTO bare SELECT generate_series(1, 5)');
sql('SELECT nvm.checkpoint()');
# another's call, whose settings a player keeps until the next call; rows of values come behind it
sql('SET ROLE clerk', q{CREATE FUNCTION trojan.plus(a int, b int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF current_user <> 'clerk' THEN RAISE EXCEPTION 'trojan.plus() runs as %', current_user; END IF;
	RETURN a OPERATOR(pg_catalog.-) (OPERATOR(pg_catalog.-) b);
END$$}, 'CREATE OPERATOR trojan.+ (LEFTARG = int, RIGHTARG = int, FUNCTION = trojan.plus)',
	'SET search_path = trojan, pg_catalog, public', 'SELECT take(1, 1, 1)');
sql('SET ROLE builder', 'INSERT INTO keyed VALUES (6, 6), (7, 7)', 'UPDATE keyed SET n = n * 10 WHERE id < 3', 'DELETE FROM keyed WHERE id = 4',
	'INSERT INTO bare VALUES (6), (7)', 'UPDATE bare SET n = n * 10 WHERE n < 3', 'DELETE FROM bare WHERE n = 4');
my $log = -s $node->logfile;
is(rehearse(1), 'passed: 1 calls, 7 transactions, 14 rows of values', 'functions of indexes do not run as a superuser');
my %as = map { $_ => 1 } slurp_file($node->logfile, $log) =~ /(whose\(-?\d+\) runs as \w+)/g;
is(join(', ', sort keys %as), join(', ', sort map { "whose($_) runs as builder" } -2, -1, 1 .. 3, 4, 5, 6, 7, 10, 20),
	'but as the owner: as the index is made, the base loaded, and values played');
is(sql('SELECT passed FROM nvm.replay_command_log()', "SELECT string_agg(relname || ' ' || relowner::regrole, ', ' ORDER BY relname) FROM pg_class"
	  . " WHERE relnamespace = 'nvm_replay'::regnamespace AND relname IN ('keyed', 'bare', 'stock')"), "t\nbare builder, keyed builder, stock postgres", 'who owns the copies, too');
sql('ANALYZE nvm_replay.keyed, nvm_replay.bare');
($ret, $out, $err) = $node->psql('postgres', 'SET ROLE builder; TABLE nvm_replay.keyed');
like($err, qr/permission denied for schema nvm_replay/, 'but does not reach them');
sql('DROP SCHEMA nvm_replay CASCADE');
sql(q{CREATE OR REPLACE FUNCTION whose(n int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('role', 'none', false); RETURN n; END$$});
($ret, $out, $err) = $node->psql('postgres', 'SELECT * FROM nvm.rehearse()');
like($err, qr/cannot set parameter "role" within security-restricted operation/, 'nor do they become the superuser again');
is(sql("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'nvm_re%'"), '0', 'the copy is gone, which its owner could not drop');
sql('DROP TABLE keyed, bare');

## what cannot be

sql('SELECT nvm.checkpoint()', 'SELECT move(1, 2, 7, 1)', 'ALTER TABLE stock ADD more int DEFAULT random() * 10');
($ret, $out, $err) = $node->psql('postgres', 'SELECT * FROM nvm.rehearse()');
like($err, qr/"stock".*\n?.*checkpoint/s, 'a table was rewritten since the checkpoint');
sql('SELECT nvm.checkpoint()');
like(rehearse(), qr/^passed: 0 calls/, 'behind another checkpoint it can');
sql('CREATE TABLE other (w int, p point, PRIMARY KEY (w)) USING nvm_cmdlog', 'CREATE INDEX ON other USING gist (p)');
($ret, $out, $err) = $node->psql('postgres', 'SELECT * FROM nvm.rehearse()');
like($err, qr/gist|nvm_btree/, 'an index in a file') or diag($err);
sql('DROP TABLE other');

## who ends amid it

sql(q{CREATE FUNCTION busy(w int, n int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE x bigint := 0;
BEGIN
	FOR k IN 1 .. n LOOP x := (x * 31 + k) % 1000003; END LOOP;
	UPDATE stock s SET n = x WHERE s.w = busy.w AND s.i = 1;
END$$}, "SELECT nvm.register_command('busy(int,int)', lanes => '{w}')", 'SELECT nvm.checkpoint()', 'SELECT busy(1, 5000000), busy(2, 10)');

# a rehearsal that takes its time; returns it, and where its errors go
sub start_rehearsal
{
	my ($err) = @_;
	my $run = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', "SET application_name = 'asks'; SELECT passed FROM nvm.rehearse(2)" ], '>', '/dev/null', '2>', $err);
	$node->poll_query_until('postgres', q{SELECT phase = 'replaying' AND EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'nvm replay player') FROM nvm.replay}) or die 'it does not play';
	return $run;
}

my $errors = '';
my $run = start_rehearsal(\$errors);
($ret, $out, $err) = $node->psql('postgres', 'SELECT * FROM nvm.rehearse()');
like($err, qr/another replay of the command log is running/, 'one at a time');
$run->finish;
is($errors, '', 'which comes to its end');
foreach my $case (
	[ 'nvm replay player', 'pg_terminate_backend', qr/a process that replays has been ended/ ],
	[ 'nvm replay leader', 'pg_terminate_backend', qr/the process that leads the replay has been ended/ ],
	[ 'client backend',    'pg_cancel_backend',    qr/canceling statement due to user request/ ],
	[ 'client backend',    'pg_terminate_backend', qr/terminating connection/ ])
{
	my ($type, $how, $says) = @$case;
	$errors = '';
	$run = start_rehearsal(\$errors);
	sql("SELECT $how(pid) FROM pg_stat_activity WHERE backend_type = '$type' AND (backend_type <> 'client backend' OR application_name = 'asks')");
	$run->finish;
	like($errors, $says, "$how of a $type");
	$node->poll_query_until('postgres', q{SELECT phase = 'ended' AND NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type LIKE 'nvm replay%') FROM nvm.replay}) or die 'it goes on';
	is(sql('SELECT passed FROM nvm.replay'), 'f', 'it has not passed');
	like(rehearse(2), qr/^passed: 2 calls, /, 'and another one does');
}
is(sql("SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'nvm_re%'"), '0', 'no copy is left');

# calls without a common lane that lock rows of a shared table, each in its order
sql(q{CREATE FUNCTION lock_two(w int, a int, b int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE x bigint := 0;
BEGIN
	PERFORM FROM price p WHERE p.i = a FOR UPDATE;
	FOR k IN 1 .. 2000000 LOOP x := (x * 31 + k) % 1000003; END LOOP;
	PERFORM FROM price p WHERE p.i = b FOR UPDATE;
	UPDATE stock s SET n = x WHERE s.w = lock_two.w AND s.i = 2;
END$$}, "SELECT nvm.register_command('lock_two(int,int,int)', lanes => '{w}')", 'SELECT nvm.checkpoint()',
	'SELECT lock_two(1, 1, 2)', 'SELECT lock_two(2, 2, 1)');
is(sql("SELECT replayable FROM nvm.commands WHERE function = 'lock_two(int,int,int)'::regprocedure"), '2', 'two calls');
unlike($node->log_since_start, qr/detected deadlock/, 'no deadlock so far');
is(rehearse(2), 'passed: 2 calls, 2 transactions, 0 rows of values', 'a deadlock of players: one begins its record again');
like($node->log_since_start, qr/detected deadlock/, 'there was one');

# an index by an operator class of a user's, in a schema of his
sql('CREATE SCHEMA hidden', 'CREATE COLLATION hidden.plain FROM "C"', q{CREATE OPERATOR CLASS hidden.numbers FOR TYPE int USING btree AS OPERATOR 1 <,
	OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int)},
	'CREATE INDEX ON stock (n hidden.numbers, (n::text) COLLATE hidden.plain)', 'SELECT nvm.checkpoint()', 'SELECT move(1, 2, 7, 1)');
is(rehearse(), 'passed: 1 calls, 1 transactions, 0 rows of values', 'an operator class of a user');

# a session that asks goes away
my $asks = IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', "SET application_name = 'asks'; SELECT nvm.rehearse()" ], '>', '/dev/null', '2>&1');
$node->poll_query_until('postgres', "SELECT count(*) = 0 OR bool_or(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'asks'");
$asks->finish;
$node->poll_query_until('postgres', "SELECT phase = 'ended' FROM nvm.replay") or die 'the replay goes on';
like(rehearse(), qr/^passed: 1 calls/, 'another one can come');
$node->check_clean('in the end');

$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# The holes of the obvious design of a command log, one by one, with the functions promoted: what
# a call does there is logged by values, with its reason, or its replay is put in order; and a start
# that has lost the memory comes to the rows that were there.  Each begins behind a checkpoint, in
# mode alone, so that nothing but the log has what was done.  At the end a function in C that says
# IMMUTABLE and is not, and each way out of the replay that has stopped by it.

use strict;
use warnings;

use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('holes', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_worker_processes = 16
nvm.checkpoint_interval = 0
nvm.replay_workers = 3
deadlock_timeout = 100ms
restart_after_crash = off
CONF
CREATE TABLE stock (w int, i int, n bigint NOT NULL, f float8 NOT NULL DEFAULT 0, note text, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE bag (w int NOT NULL, x int, note text) USING nvm_cmdlog;
CREATE INDEX ON bag (w);
CREATE TABLE price (i int PRIMARY KEY, p int) USING nvm_cmdlog;
CREATE TABLE marked (w int, i int, note text, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE a_heap (i int);
SELECT nvm.partition_table(t, 'w') FROM unnest('{stock,bag,marked}'::regclass[]) t;
INSERT INTO stock SELECT w, i, 100 FROM generate_series(1, 6) w, generate_series(1, 20) i;
INSERT INTO bag SELECT w, x, 'as made' FROM generate_series(1, 6) w, generate_series(1, 20) x;
INSERT INTO price SELECT i, 10 * i FROM generate_series(1, 5) i;
-- each has a way that can be replayed, by which it is promoted, and one that cannot
CREATE FUNCTION put(w int, first int, last int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO stock SELECT put.w, i, 1 FROM generate_series(first, last) i;
	INSERT INTO bag SELECT put.w, i, 'put' FROM generate_series(first, last) i;
END$$;
CREATE FUNCTION add(w int, k int) RETURNS void LANGUAGE plpgsql AS 'BEGIN UPDATE stock s SET n = n + k WHERE s.w = add.w AND i = 1; END';
CREATE FUNCTION priced(w int, rounds int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE x bigint := 0;
BEGIN
	FOR k IN 1 .. rounds LOOP x := (x * 31 + k) % 1000003; END LOOP;
	UPDATE stock s SET n = n + x + (SELECT p FROM price WHERE price.i = 1) WHERE s.w = priced.w AND i = 2;
END$$;
CREATE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION stepped(w int) RETURNS void LANGUAGE plpgsql AS 'BEGIN UPDATE stock s SET n = n + step() WHERE s.w = stepped.w AND i = 3; END';
CREATE FUNCTION seen(w int) RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT n FROM stock s WHERE s.w = seen.w AND i = 4); END';
CREATE FUNCTION by_expression(w int, waits int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE x bigint;
BEGIN
	x := seen(w);
	UPDATE stock s SET n = x * 2 + 1 WHERE s.w = by_expression.w AND i = 4;
	IF waits > 0 THEN PERFORM FROM price WHERE i = 5 FOR UPDATE; END IF;
END$$;
CREATE FUNCTION by_cursor(w int, c refcursor) RETURNS void LANGUAGE plpgsql AS $$
DECLARE x bigint := 7;
BEGIN
	IF c IS NOT NULL THEN FETCH c INTO x; END IF;
	UPDATE stock s SET n = n + 3 * x WHERE s.w = by_cursor.w AND i = 5;
END$$;
CREATE FUNCTION locks_two(w int, a int, b int, rounds int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE x bigint := 0; y text := 'both';
BEGIN
	IF rounds > 0 THEN
		BEGIN
			PERFORM FROM price p WHERE p.i = a FOR UPDATE;
			FOR k IN 1 .. rounds LOOP x := (x * 31 + k) % 1000003; END LOOP;
			PERFORM FROM price p WHERE p.i = b FOR UPDATE;
		EXCEPTION WHEN deadlock_detected THEN
			y := 'deadlock';
		END;
	END IF;
	UPDATE stock s SET note = y, n = n + 1 WHERE s.w = locks_two.w AND i = 6;
END$$;
CREATE FUNCTION by_setting() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.note := current_setting('application_name'); RETURN NEW; END$$;
CREATE TRIGGER by_setting BEFORE INSERT ON marked FOR EACH ROW WHEN (NEW.i > 0) EXECUTE FUNCTION by_setting();
CREATE FUNCTION marks(w int, k int) RETURNS void LANGUAGE plpgsql AS 'BEGIN INSERT INTO marked VALUES (w, k); END';
CREATE FUNCTION by_chance(w int, k int) RETURNS void LANGUAGE plpgsql AS 'BEGIN UPDATE stock s SET f = random(), n = n + (1000000 * random())::int + k WHERE s.w = by_chance.w AND i = 7; END';
CREATE FUNCTION any_of(w int, most int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE r record;
BEGIN
	IF most = 0 THEN UPDATE stock s SET n = n + 1 WHERE s.w = any_of.w AND i = 8; RETURN; END IF;
	FOR r IN SELECT x FROM bag b WHERE b.w = any_of.w LIMIT most LOOP
		DELETE FROM bag b WHERE b.w = any_of.w AND b.x = r.x;
	END LOOP;
END$$;
CREATE FUNCTION sums(w int, bad int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE x float8 := 1.5;
BEGIN
	IF bad > 0 THEN SELECT sum(f) INTO x FROM stock s WHERE s.w = sums.w; END IF;
	UPDATE stock s SET note = x::text WHERE s.w = sums.w AND i = 9;
END$$;
CREATE FUNCTION unique_n(w int, k int) RETURNS void LANGUAGE plpgsql AS 'BEGIN UPDATE marked m SET note = k::text WHERE m.w = unique_n.w AND i = 0; END';
INSERT INTO marked SELECT w, 0, w::text FROM generate_series(1, 6) w;
SELECT nvm.register_command(f, '{w}') FROM unnest('{"put(int,int,int)","add(int,int)","priced(int,int)",stepped(int),"by_expression(int,int)","by_cursor(int,refcursor)","locks_two(int,int,int,int)",
	"marks(int,int)","by_chance(int,int)","any_of(int,int)","sums(int,int)","unique_n(int,int)"}'::regprocedure[]) f;
SQL
my $dir = $node->data_dir . '/pg_nvm_log';
my @tables = qw(stock bag price marked a_heap);

sub sql { return $node->safe_psql('postgres', join("\n", map { "$_;" } @_)); }
sub content { return join("\n", map { "$_ " . sql("SELECT count(*), md5(coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '')) FROM $_ t") } @tables); }
sub replayed { return sql("SELECT coalesce(string_agg(concat_ws(' ', state, call, problem, detail), ', '), '') FROM nvm.replayed_databases"); }

# the first record of calls of this start has rows; behind a checkpoint they are alone
sub alone
{
	sql('SELECT add(6, 1)', 'SELECT nvm.checkpoint()');
	$node->poll_query_until('postgres', q{SELECT mode || ' ' || ddl FROM nvm.command_modes WHERE database = current_database()}, 'alone 0') or die 'the mode is another one';
	sql('SELECT nvm.checkpoint()', 'SELECT nvm.reset_commands()');
	return;
}

# of a function, since alone(): transactions of calls alone, of values, and why
sub counted
{
	my ($function) = @_;
	return sql("SELECT alone || ' ' || by_values || coalesce(' ' || last_reason, '') || coalesce(': ' || last_object, '') FROM nvm.commands WHERE function::text LIKE '$function(%'");
}

# Loses the memory: the rows are those that were there, and a replay has put them there.
sub lose
{
	my ($name) = @_;
	# where all of it is logged by values, too, there is a call to be made again
	sql('SELECT add(6, 1)');
	my $before = content();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->crash;
	$node->start;
	$node->poll_query_until('postgres', q{SELECT count(*) > 0 AND bool_and(state IN ('done', 'stopped')) FROM nvm.replayed_databases});
	is(replayed(), 'done', "$name: a loss, and calls were made again");
	is(content(), $before, "$name: all is as it was");
	alone();
	return;
}

# ---- promotion

sql('SELECT nvm.checkpoint()', 'SELECT put(1, 100, 101)', 'SELECT add(1, 1)', 'SELECT priced(1, 1)', 'SELECT stepped(1)', 'SELECT by_expression(1, 0)', 'SELECT by_cursor(1, NULL)', 'SELECT locks_two(1, 1, 2, 0)',
	'SELECT marks(1, -1)', 'SELECT by_chance(1, 1)', 'SELECT any_of(1, 0)', 'SELECT sums(1, 0)', 'SELECT unique_n(1, 1)');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t/, 'all are rehearsed');
sql(map { "SELECT nvm.promote_command('$_')" } split /\n/, sql('SELECT function FROM nvm.commands'));
is(sql("SELECT count(*) FROM nvm.commands WHERE state = 'promoted'"), 12, 'and promoted');
alone();

# ---- a value record by TID, after a replay has moved rows

sql('BEGIN; SELECT put(2, 1000, 1400); ROLLBACK');
sql('SELECT put(2, 2000, 2300)');
my $places = q{SELECT md5(string_agg(ctid::text, ',' ORDER BY i)) FROM stock WHERE w = 2 AND i >= 2000};
my $then = sql($places);
sql('UPDATE stock SET n = n + i WHERE w = 2 AND i BETWEEN 2050 AND 2150', 'DELETE FROM stock WHERE w = 2 AND i > 2250', 'UPDATE stock SET i = i + 5000 WHERE w = 2 AND i BETWEEN 2000 AND 2010',
	q{UPDATE bag SET note = 'by hand' WHERE w = 2 AND x BETWEEN 2050 AND 2150}, 'DELETE FROM bag WHERE w = 2 AND x > 2250');
$then = sql($places);
is(counted('put'), '1 0', 'values by TID: the rows are those of a call alone');
lose('values by TID');
isnt(sql($places), $then, 'values by TID: rows lie elsewhere now');

# ---- a call that is applied twice over a checkpoint's snapshot

{
	my $pid = sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm checkpointer'");
	my $before = sql('SELECT nvm.checkpoint(); SELECT n FROM stock WHERE w = 3 AND i = 1') =~ s/^\n//r;
	my $open = $node->session('BEGIN', 'SELECT add(4, 1)');
	my $asks = $node->session;

	$node->set_failpoint('ckpt-begin:stop:1');
	usleep(1_200_000);    # until the checkpointer has read the settings
	$asks->send('SELECT nvm.checkpoint()');
	NvmTest::wait_stopped($pid);
	$node->set_failpoint('ckpt-walked:stop:1');
	# behind the position from which the log counts, and shown by the snapshot
	sql("SELECT add(3, $_)") foreach 1 .. 10;
	NvmTest::continue_process($pid);
	usleep(1_200_000);
	NvmTest::wait_stopped($pid);
	$node->set_failpoint('');
	# not shown by it
	sql("SELECT add(3, $_)") foreach 11 .. 20;
	$open->sql('COMMIT');
	NvmTest::continue_process($pid);
	$asks->sql('SELECT 1');
	$_->drop foreach $asks, $open;
	is(sql('SELECT n FROM stock WHERE w = 3 AND i = 1'), $before + 210, 'twice over a checkpoint: calls before the snapshot and behind it');
	lose('twice over a checkpoint');
	is(sql('SELECT n FROM stock WHERE w = 3 AND i = 1'), $before + 210, 'twice over a checkpoint: each counts once');
}

# ---- two calls around an ad-hoc write of a shared table

# the first takes long when it is made again, the write and the second do not
sql('SELECT priced(1, 3000000)', 'UPDATE price SET p = p + 1000', 'SELECT priced(2, 1)', 'UPDATE price SET p = p + 7', 'SELECT priced(3, 1)');
is(counted('priced'), '3 0', 'a shared table: calls of three lanes around writes by hand');
is(sql('SELECT string_agg(n::text, \',\' ORDER BY w) FROM stock WHERE i = 2 AND w BETWEEN 2 AND 3'), '1111,1118', 'a shared table: each has read what was there');
lose('a shared table');

# ---- DDL between a call and a crash

sql('SELECT stepped(1)', 'SELECT stepped(1)');
is(counted('stepped'), '2 0', 'DDL: calls alone');
sql(q{CREATE OR REPLACE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1000'});
sql('SELECT stepped(1)');
is(sql('SELECT n FROM stock WHERE w = 1 AND i = 3'), 1103, 'DDL: calls by the one definition and by the other');
{
	my $before = content();
	$node->crash;
	$node->start;
	is(content(), $before, 'DDL: a loss behind it');
	unlike(replayed(), qr/stopped/, 'DDL: no call has met another definition');
}
alone();

# ---- an expression of PL/pgSQL on a snapshot that is older than its lane

{
	my ($first, $second) = ($node->session('BEGIN'), $node->session);

	$first->sql('SELECT by_expression(1, 0)');
	my $n = $first->sql('SELECT n FROM stock WHERE w = 1 AND i = 4');
	$second->send('SELECT by_expression(1, 0)');
	NvmTest::wait_until('it waits for the lane', sub { sql('SELECT count(*) FROM nvm.lanes WHERE NOT granted') eq '1' });
	$first->sql('COMMIT');
	$second->sql('SELECT 1');
	$_->drop foreach $first, $second;
	is(sql('SELECT n FROM stock WHERE w = 1 AND i = 4'), 2 * $n + 1, 'an older snapshot: the second call has seen the first');
	is(counted('by_expression'), '2 0', 'an older snapshot: both are calls alone');
}
lose('an older snapshot');

# ---- a cursor that was opened before the call

{
	my $s = $node->session('BEGIN', 'DECLARE old CURSOR FOR SELECT n FROM stock WHERE w = 2 AND i = 5');

	sql('UPDATE stock SET n = n + 11 WHERE w = 2 AND i = 5');
	$s->sql(q{SELECT by_cursor(2, 'old')});
	$s->sql('COMMIT');
	$s->drop;
	is(sql('SELECT n FROM stock WHERE w = 2 AND i = 5'), 100 + 11 + 3 * 100, 'an older cursor: it has older rows than the call');
	is(counted('by_cursor'), '0 1 older cursor', 'an older cursor: by values');
}
lose('an older cursor');

# ---- a unique index without the partition column

sql('CREATE UNIQUE INDEX on_note ON marked (note)');
alone();
{
	my $s = $node->session('BEGIN', 'SELECT unique_n(1, 600)');
	my $t = $node->session;

	$t->send('SELECT unique_n(2, 600)');
	NvmTest::wait_until('the other call waits', sub { sql('SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $t->pid) eq '1' });
	$s->sql('ROLLBACK');
	$t->sql('SELECT 1');
	$_->drop foreach $s, $t;
	is(sql('SELECT note FROM marked WHERE w = 2 AND i = 0'), 600, 'a unique index without the column: calls of two lanes meet there');
	is(counted('unique_n'), '0 1 scan not within held lanes: table marked', 'a unique index without the column: by values');
	my $before = content();
	$node->crash;
	$node->start;
	is(content(), $before, 'a unique index without the column: all is as it was');
}
sql('DROP INDEX on_note');
alone();

# ---- an index that was never built

# CREATE INDEX CONCURRENTLY has it in the catalogs, and waits for who writes the table
{
	my ($writes, $makes) = ($node->session('BEGIN', 'UPDATE price SET p = p + 1 WHERE i = 4'), $node->session);

	$makes->send('CREATE INDEX CONCURRENTLY never ON price (p)');
	$node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_class WHERE relname = 'never'}) or die 'no index';
	NvmTest::wait_until('it waits', sub { sql('SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $makes->pid) eq '1' });
	sql('SELECT pg_cancel_backend(' . $makes->pid . ')');
	$writes->sql('COMMIT');
	$makes->sql('SELECT 1');
	$_->drop foreach $writes, $makes;
}
is(sql(q{SELECT indisready, indisvalid FROM pg_index WHERE indexrelid = 'never'::regclass}), 'f|f', 'an index that was never built');
alone();
sql('SELECT priced(4, 1)', 'UPDATE price SET p = p + 1 WHERE i = 1', 'SELECT priced(4, 1)');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t/, 'an index that was never built: a rehearsal');
lose('an index that was never built');
$node->fails_with('SET nvm.default_index_method = btree; REINDEX INDEX never', qr/table "price" does not fit calls that are logged alone.*index "never" is not in memory/s, 'an index that was never built: not in files');
# before it begins, since it commits in between
$node->fails_with('SET nvm.default_index_method = btree; REINDEX INDEX CONCURRENTLY never', qr/table "price" does not fit calls that are logged alone/, 'nor concurrently');
is(sql(q{SELECT count(*) FROM pg_class WHERE relname LIKE 'never%'}), '1', 'and nothing is left of that');
sql('CREATE TABLE unrelated (i int PRIMARY KEY) USING heap');
is($node->safe_psql('postgres', "SET nvm.default_index_method = btree;\nREINDEX TABLE CONCURRENTLY unrelated"), '', 'but of another table');
sql('DROP TABLE unrelated');
sql('REINDEX INDEX never', 'CREATE TABLE other (i int)', 'DROP TABLE other', 'DROP INDEX never');
alone();

# ---- a deadlock that was caught

{
	my @s = map { $node->session } 1, 2;

	$s[0]->send('SELECT locks_two(1, 1, 2, 2000000)');
	$s[1]->send('SELECT locks_two(2, 2, 1, 2000000)');
	$_->sql('SELECT 1') foreach @s;
	$_->drop foreach @s;
	is(sql('SELECT string_agg(note, \',\' ORDER BY note) FROM stock WHERE i = 6 AND w < 3'), 'both,deadlock', 'a caught deadlock: there was one');
	is(counted('locks_two'), '1 1 subtransaction rolled back', 'a caught deadlock: by values');
}
lose('a caught deadlock');

# ---- current_setting() in a trigger

sql(q{SET application_name = 'of this life'}, 'SELECT marks(1, 5)');
is(sql('SELECT note FROM marked WHERE w = 1 AND i = 5'), 'of this life', 'current_setting() in a trigger');
is(counted('marks'), '0 1 function: function current_setting(text)', 'current_setting() in a trigger: by values');
lose('current_setting() in a trigger');

# ---- setseed() by the user

sql('SELECT setseed(0.25)', 'SELECT by_chance(1, 1)', 'SELECT by_chance(1, 2)', 'SELECT setseed(0.25)', 'SELECT by_chance(2, 1)');
is(sql('SELECT count(DISTINCT f) FROM stock WHERE i = 7 AND w < 3'), 2, "a user's seed");
is(counted('by_chance'), '3 0', "a user's seed: what random() has returned is on the tape");
lose("a user's seed");

# ---- LIMIT without ORDER BY, and a sum of floats

# rows lie in an order that a replay of values does not give them
sql('BEGIN; SELECT put(5, 3000, 3100); ROLLBACK', 'DELETE FROM bag WHERE w = 5', 'INSERT INTO bag SELECT 5, x, $$made$$ FROM generate_series(20, 1, -1) x', 'SELECT any_of(5, 7)');
is(sql('SELECT count(*) FROM bag WHERE w = 5'), 13, 'LIMIT without ORDER BY');
is(counted('any_of'), '0 1 order of rows: table bag', 'LIMIT without ORDER BY: by values');
lose('LIMIT without ORDER BY');
sql('UPDATE stock SET f = CASE i % 3 WHEN 0 THEN 1e16 WHEN 1 THEN 1.0 ELSE -1e16 END WHERE w = 4', 'SELECT sums(4, 1)');
is(counted('sums'), '0 1 order of rows: table stock', 'a sum of floats: by values');
lose('a sum of floats');

# ---- a function in C that says IMMUTABLE and is not

my $liar = q{CREATE FUNCTION liar() RETURNS int LANGUAGE internal IMMUTABLE AS 'pg_backend_pid'};
sql($liar, q{CREATE FUNCTION lies(w int, k int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE x int := 0;
BEGIN
	IF k > 0 THEN EXECUTE 'SELECT liar()' INTO x; END IF;
	UPDATE stock s SET n = x + k WHERE s.w = lies.w AND s.i = 10;
END$$}, "SELECT nvm.register_command('lies(int,int)', lanes => '{w}')");
alone();
# shadow: beside promoted functions
sql('SELECT lies(1, 5)');
my $before = content();
like(sql('SELECT passed, call, problem FROM nvm.rehearse()'), qr/^f\|public\.lies\(1, 5\)\|replayed calls have not written what the calls in the log have/, 'a liar: its rehearsal finds it, and names the call');
$node->fails_with("SELECT nvm.promote_command('lies(int,int)')", qr/No rehearsal with calls of the function as it is now has passed/, 'a liar: it is not promoted');
$node->crash;
$node->start;
is(content(), $before, 'a liar, in shadow: nothing is lost');
alone();
# promoted by a way that does not lie
sql('SELECT lies(1, 0)');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t/, 'a liar: it is rehearsed by calls that do not lie');
sql("SELECT nvm.promote_command('lies(int,int)')");
alone();

# one call that lies, and those around it; the replay stops there
sub stops
{
	sql('SELECT add(1, 1)', 'SELECT lies(1, 9)', 'SELECT add(2, 1)');
	my $pid = sql('SELECT n - 9 FROM stock WHERE w = 1 AND i = 10');
	my $was = content();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(counted('lies'), '1 0', 'a liar, promoted: its call is alone');
	$node->crash;
	$node->start;
	$node->poll_query_until('postgres', q{SELECT state FROM nvm.replayed_databases}, 'stopped') or die 'it does not stop';
	is(sql('SELECT call, problem FROM nvm.replayed_databases'), 'public.lies(1, 9)|replayed calls have not written what the calls in the log have', 'the replay stops, and names the call and its arguments');
	$node->fails_with('SELECT FROM stock', qr/DETAIL:  .*public\.lies\(1, 9\).*\nHINT:  .*nvm\.resume_replay\(\).*nvm\.end_replay\(\)/, 'who comes to a table is told, and how to go on');
	return ($pid, $was);
}
{
	my ($pid, $was) = stops();
	$node->fails_with('SELECT nvm.resume_replay()', qr/public\.lies\(1, 9\)/, 'with the same function it stops again');
	sql("CREATE OR REPLACE FUNCTION liar() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $pid'");
	like(sql('SELECT nvm.resume_replay()'), qr/^[1-9]\d*$/, 'mended, it goes on');
	is(content(), $was, 'and all is there');
	alone();
	sql($liar =~ s/CREATE/CREATE OR REPLACE/r, 'SELECT lies(1, 0)');
	alone();
	(undef, $was) = stops();
	like(sql('SELECT given_up FROM nvm.end_replay()'), qr/^[1-9]$/, 'or it is ended: how many transactions are given up is told');
	is(sql('SELECT n FROM stock WHERE w = 1 AND i = 10'), 0, 'without what the call has done');
	$was = content();
	$node->crash;
	$node->start;
	is(content(), $was, 'which stays so');
}
alone();
stops();
$node->safe_psql('template1', 'DROP DATABASE postgres');
$node->poll_query_until('template1', "SELECT count(*) = 0 FROM pg_database WHERE datname = 'postgres'");
$node->safe_psql('template1', 'CREATE DATABASE postgres');
sql('CREATE EXTENSION pg_nvm');
NvmTest::wait_until('all is whole', sub { sql('SELECT state FROM nvm.log_recovery') eq 'whole' });
sql('CREATE TABLE t (i int) USING nvm_cmdlog', 'INSERT INTO t VALUES (1)', 'SELECT nvm.checkpoint()');
is(sql('SELECT * FROM t'), 1, 'or its database is dropped, and others go on');
$node->check_clean('in the end');

$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Calls are logged alone only while nobody changes what they look at.  Before DDL does anything, a
# database leaves that mode, calls end that may have read it, and a checkpoint has what they did; it
# comes back behind DDL's commit.  A call that began before that is logged by values.  Promotions
# wait for others, are taken back, and fail; prepared transactions, two databases, roles;
# errors and deaths amid each step.

use strict;
use warnings;

use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = NvmTest->start_new('modes', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_prepared_transactions = 5
max_worker_processes = 8
nvm.checkpoint_interval = 0
deadlock_timeout = 100ms
synchronous_commit = off
CONF
CREATE TABLE stock (w int, i int, n int NOT NULL, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('stock', 'w');
INSERT INTO stock SELECT w, i, 100 FROM generate_series(1, 9) w, generate_series(1, 20) i;
CREATE TABLE mark (i serial) USING nvm_cmdlog;
CREATE TABLE a_heap (i int, j text);
CREATE INDEX an_index ON a_heap (i);
CREATE TABLE a_vlog (i int) USING nvm_vlog;
CREATE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION take(w int, i int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE left_ int;
BEGIN
	UPDATE stock s SET n = n - step() WHERE s.w = take.w AND s.i = take.i RETURNING n INTO left_;
	RETURN left_;
END$$;
CREATE FUNCTION give(w int, i int) RETURNS void LANGUAGE sql AS 'UPDATE stock s SET n = n + 1 WHERE s.w = give.w AND s.i = give.i';
SELECT nvm.register_command(f, lanes => '{w}') FROM unnest('{"take(int,int)","give(int,int)"}'::regprocedure[]) f;
CREATE ROLE clerk;
CREATE ROLE thief;
CREATE DATABASE other;
SQL
my $dir = $node->data_dir . '/pg_nvm_log';
my $mode = q{SELECT mode FROM nvm.command_modes WHERE database = current_database()};

sub sql { return $node->safe_psql('postgres', join("\n", map { "$_;" } @_)); }
sub mode { return sql($mode); }

sub come_back
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return ok($node->poll_query_until('postgres', q{SELECT mode || ' ' || ddl FROM nvm.command_modes WHERE database = 'postgres'}, 'alone 0'), $name // 'alone again');
}

sub rehearse
{
	sql('SELECT nvm.checkpoint()', 'SELECT take(1, 1)', 'SELECT give(1, 1)');
	my $said = sql('SELECT passed, problem, detail, call FROM nvm.rehearse()');
	die "rehearsal: $said" if $said !~ /^t/;
	return;
}

sub promote
{
	my (@functions) = @_;
	rehearse();
	sql(map { "SELECT nvm.promote_command('$_(int,int)')" } @functions);
	return;
}

sub class
{
	my ($r) = @_;
	return $r->{calls} ? ($r->{calls}{alone} ? 'alone' : 'shadow') : $r->{values} ? 'values' : 'other';
}

# as what statements are logged
sub logged
{
	my ($sql, $session) = @_;
	sql('INSERT INTO a_vlog VALUES (1)');
	my $before = persistent();
	$session ? $session->sql($sql) : sql($sql);
	persistent();
	my $dump = NvmLog::dump_of($dir, from => $before);
	return join(', ', $dump->{problem} || (), map { class($_) } grep { $_->{kind} =~ /COMMIT|ASK/ } @{ $dump->{records} });
}

# all is there; its end
sub persistent
{
	$node->poll_query_until('postgres', 'SELECT inserted = persistent FROM nvm.log', 't');
	return sql('SELECT persistent FROM nvm.log');
}

sub checkpoints { return sql(q{SELECT max(number) FROM nvm.checkpoints WHERE state = 'usable'}); }

promote('take');
come_back('promotion leads to alone');

## what is DDL

sub changes
{
	my ($sql, $expected, $name) = @_;
	come_back() or return;
	my $before = checkpoints();
	sql(ref($sql) ? @$sql : $sql);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	come_back("$name: alone again");
	my $made = checkpoints() - $before;
	ok($expected ? $made >= 2 : $made == 0, "$name: " . ($expected ? 'DDL' : 'no DDL')) or diag("$made checkpoints");
	return;
}

changes($_, 1, $_) foreach 'ALTER TABLE a_heap ADD k int', 'CREATE INDEX ON stock (w, n)', 'CREATE OR REPLACE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS \'SELECT 1 + 0\'',
	'TRUNCATE a_vlog', 'VACUUM FULL a_vlog', 'REINDEX INDEX CONCURRENTLY an_index', 'CREATE INDEX CONCURRENTLY an_index2 ON a_heap (j)', 'CREATE TABLE made AS SELECT 1',
	'GRANT SELECT ON stock TO clerk', 'SECURITY LABEL FOR nvm ON COLUMN stock.w IS \'partition\'', 'DROP ROLE thief', 'GRANT clerk TO postgres', 'ALTER ROLE clerk BYPASSRLS', 'DO $$BEGIN EXECUTE \'DROP TABLE made\'; END$$';
changes('BEGIN; CREATE TABLE x (); DROP TABLE x; ROLLBACK', 1, 'what is rolled back');
changes($_, 0, $_) foreach 'CREATE TEMP TABLE t (i int); CREATE INDEX ON t (i); ALTER TABLE t ADD j int; TRUNCATE t; CREATE TEMP VIEW v AS SELECT 1; DROP VIEW v; DROP TABLE t', 'CREATE TEMP TABLE t AS SELECT 1 AS a; SELECT 1 INTO TEMP u; DROP TABLE t, u',
	'ANALYZE stock', 'COMMENT ON TABLE stock IS NULL', 'REINDEX TABLE a_heap', 'CREATE ROLE thief', q{ALTER ROLE clerk PASSWORD 'x' LOGIN}, q{ALTER ROLE clerk SET work_mem = '1MB'}, 'ALTER DATABASE postgres SET work_mem = \'5MB\'', 'LISTEN x', 'CHECKPOINT';
changes([ 'VACUUM stock' ], 0, 'VACUUM');
sql('ALTER DATABASE postgres RESET work_mem');

## DDL amid load

my $load = $node->start_load(clients => 3, transactions => 20000, sql => sub { my ($c, $n) = @_; return "SELECT take($c, 1 + $n % 20);" });
$load->wait_acknowledged(100);
my ($seen, $between, $wrong) = (0, 0, 0);
foreach my $ddl ('ALTER TABLE stock ADD extra int', 'CREATE OR REPLACE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS \'SELECT 2\'', 'CREATE INDEX ON stock (n)', 'ALTER TABLE stock DROP extra', 'GRANT clerk TO thief')
{
	come_back("alone before: $ddl");
	usleep(50_000);
	my $said = sql('BEGIN', $ddl, 'SELECT begin_position FROM nvm.checkpoints WHERE state = \'usable\'', 'SELECT pg_sleep(0.1)', 'SELECT inserted FROM nvm.log', 'COMMIT');
	my ($checkpoint, $end) = $said =~ /^(\d+)\n+(\d+)$/ or die $said;
	come_back("and after: $ddl");
	usleep(20_000);
	persistent();
	my @records = map { [ $_->{place}, class($_) ] } @{ NvmLog::dump_of($dir)->{records} };
	my ($alone_before) = grep { $_->[1] eq 'alone' && $_->[0] <= $checkpoint } @records;
	$seen++ if $alone_before;
	$between += grep { $_->[1] eq 'values' && $_->[0] > $checkpoint && $_->[0] <= $end } @records;
	$wrong += grep { $_->[1] ne 'values' && $_->[0] > $checkpoint && $_->[0] <= $end } @records;
}
is($seen, 5, 'calls alone before each checkpoint');
cmp_ok($between, '>', 0, "$between transactions between a checkpoint and the end of DDL");
is($wrong, 0, 'all of them by values');
$load->finish;
is(join('', $load->errors), '', 'the load had no errors') if $load->can('errors');

# the call began before DDL has ended, and commits when the mode is alone again
my ($ddl, $call) = map { $node->session } 1 .. 2;
come_back();
$ddl->sql('BEGIN');
$ddl->sql('CREATE OR REPLACE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS \'SELECT 3\'');
$call->sql('BEGIN; SELECT take(5, 5)');
$ddl->sql('COMMIT');
come_back('alone while a call is open that began amid DDL');
is(logged('COMMIT', $call), 'values', 'it is logged by values');
is(logged('SELECT take(5, 5)', $call), 'alone', 'the next one alone');

# DDL waits for a call that may have read "alone"
$call->sql('BEGIN; SELECT take(5, 6)');
$ddl->send('CREATE TABLE made ()');
ok($node->poll_query_until('postgres', "SELECT mode || ' ' || ddl FROM nvm.command_modes WHERE database = 'postgres'", 'switching 1'), 'DDL waits for an open call');
is(sql("SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $ddl->pid), 'Lock', 'for its end');
is(logged('SELECT take(6, 6)'), 'values', 'others do not wait, and are logged by values');
is(logged('COMMIT', $call), 'values', 'the call itself, too');
$ddl->sql('SELECT 1');
come_back();
is(sql("SELECT to_regclass('made')"), 'made', 'and the DDL is done');
sql('DROP TABLE made');

# one that had a lock which the call waits for
come_back();
$ddl->sql('BEGIN; UPDATE stock SET n = 0 WHERE w = 5 AND i = 7');
$call->send('SELECT take(5, 7)');
$node->poll_query_until('postgres', 'SELECT count(*) FROM pg_locks WHERE NOT granted', '1');
is(($node->psql('postgres', 'SET lock_timeout = 100; CREATE TABLE made ()'))[2], '', 'a call that waits has nothing in its hands');
$ddl->sql('ROLLBACK');
$call->sql('SELECT 1');
sql('DROP TABLE IF EXISTS made');

## errors and deaths amid DDL

come_back();
$call->sql('BEGIN; SELECT take(5, 8)');
$node->fails_with('SET lock_timeout = 100; CREATE TABLE made ()', qr/canceling statement due to lock timeout/, 'DDL that waits too long');
come_back('is not counted any more');
is(logged('COMMIT', $call), 'values', 'the call that it has waited for is logged by values');
foreach my $point (qw(mode-ddl-begun mode-ddl-quiet mode-ddl-covered))
{
	$node->fails_with("SET nvm.failpoint = '$point:error'; CREATE TABLE made ()", qr/failpoint/, "an error at $point");
	come_back();
	$ddl->stop_at($point, 'CREATE TABLE made ()');
	is(sql($mode), 'switching', "DDL at $point");
	is(logged('SELECT take(6, 6)'), 'values', 'calls are logged by values');
	sql('SELECT pg_terminate_backend(' . $ddl->pid . ')');
	$ddl->go_on;
	$ddl->drop;
	come_back("the session has ended at $point");
	$ddl = $node->session;
	is(sql("SELECT to_regclass('made')"), '', 'without DDL');
}
foreach my $point (qw(mode-usable mode-flushed))
{
	$node->set_failpoint("$point:error:1");
	usleep(200_000);
	my ($ret, undef, $stderr) = $node->psql('postgres', 'CREATE TABLE made (); DROP TABLE made');
	$node->set_failpoint('');
	come_back("an error of the checkpointer at $point");
}
$node->set_failpoint('ckpt-data-sync:error');
usleep(200_000);
$node->fails_with('CREATE TABLE made ()', qr/the checkpoint of tables in memory has failed/, 'a checkpoint that fails: so does DDL');
is(mode(), 'switching', 'and calls are logged by values');
$node->set_failpoint('');
sql('SELECT nvm.checkpoint()');
come_back();

# a wait that was cancelled within a savepoint, and DDL that is tried again
$call->sql('BEGIN; SELECT take(5, 8)');
$ddl->sql("BEGIN; SET LOCAL lock_timeout = 100; SAVEPOINT a");
$ddl->sql('CREATE TABLE made ()');
$ddl->sql('ROLLBACK TO a');
$ddl->send("SET LOCAL lock_timeout = 0; CREATE TABLE made ()");
usleep(300_000);
is(sql("SELECT wait_event_type FROM pg_stat_activity WHERE pid = " . $ddl->pid), 'Lock', 'DDL behind DDL that was cancelled waits, too');
$call->sql('COMMIT');
$ddl->sql('ROLLBACK');
come_back();

# two transactions that have made calls, and then begin DDL
$_->sql('BEGIN') foreach $ddl, $call;
$ddl->sql('SELECT take(5, 9)');
$call->sql('SELECT take(6, 9)');
$ddl->send('CREATE TABLE made ()');
usleep(200_000);
is($call->sql('CREATE TABLE made2 (); SELECT 1'), '1', 'calls and DDL in two transactions: they pass each other');
$call->sql('COMMIT');
$ddl->sql('ROLLBACK');
sql('DROP TABLE made2');

# two of different tables, at once
come_back();
$ddl->sql('BEGIN; ALTER TABLE a_heap ADD x int');
$call->sql('BEGIN; LOCK TABLE stock');
$ddl->sql('CREATE TABLE made (i int) USING nvm_cmdlog');
$call->sql('ROLLBACK');
is($ddl->sql("SELECT to_regclass('made')"), 'made', 'DDL does not wait for tables that it does not concern');
$ddl->sql('ROLLBACK');

# partition_table begins DDL before it locks the table that calls wait for
come_back();
$call->sql('BEGIN; SELECT take(5, 9)');
$ddl->send("SELECT nvm.partition_table('stock', 'w')");
usleep(200_000);
is($call->sql('SELECT take(5, 10) IS NOT NULL'), 't', 'nvm.partition_table waits for calls with no lock');
$call->sql('COMMIT');
$ddl->sql('SELECT 1');
come_back();

# a permanent object is made that has the name of a temporary one
changes('CREATE TEMP TABLE made (i int); CREATE TABLE public.made (i int); DROP TABLE pg_temp.made, public.made', 1, 'a table behind a temporary one');
changes("CREATE TEMP VIEW seen AS SELECT 1; CREATE VIEW public.seen AS SELECT 2; DROP VIEW public.seen", 1, 'a view');

## PREPARE TRANSACTION

$node->fails_with("BEGIN; SELECT take(1, 1); PREPARE TRANSACTION 'p'", qr/cannot PREPARE a transaction that has written tables of nvm_cmdlog/, 'PREPARE of calls');
$node->fails_with("BEGIN; UPDATE stock SET n = 1 WHERE w = 1 AND i = 1; PREPARE TRANSACTION 'p'", qr/cannot PREPARE a transaction that has written tables of nvm_cmdlog/, 'of values');
$node->fails_with("BEGIN; CREATE TABLE made (); PREPARE TRANSACTION 'p'", qr/cannot PREPARE a transaction that has changed definitions/, 'of DDL');
$node->fails_with("BEGIN; SELECT 1 FROM stock WHERE w = 1 AND i = 1 FOR KEY SHARE; PREPARE TRANSACTION 'p'", qr/cannot PREPARE a transaction that has locked tables or rows/, 'of locks of rows');
$node->fails_with("BEGIN; LOCK TABLE stock IN SHARE MODE; PREPARE TRANSACTION 'p'", qr/cannot PREPARE a transaction that has locked tables or rows/, 'of a table');
my (undef, undef, $refused) = $node->psql('other', "BEGIN; ALTER ROLE clerk NOBYPASSRLS; PREPARE TRANSACTION 'p'");
like($refused, qr/cannot PREPARE a transaction that has changed definitions/, 'of roles, in another database');
sql("BEGIN", 'INSERT INTO a_vlog VALUES (1)', "PREPARE TRANSACTION 'p'", "ROLLBACK PREPARED 'p'");
come_back('of other tables: it may');

## indexes that say where rows are

$node->fails_with('CREATE INDEX ON stock USING hash (i)', qr/does not fit calls that are logged alone.*is not in memory/s, 'an index of another method');
$node->fails_with('CREATE INDEX CONCURRENTLY a_hash ON stock USING hash (i)', qr/an index of table "stock" cannot lie in files/, 'and concurrently');
is(sql("SELECT to_regclass('a_hash')"), '', 'nothing is left of it');
$node->fails_with('CREATE TABLE made (i int); CREATE INDEX ON made USING hash (i); ALTER TABLE made SET ACCESS METHOD nvm_cmdlog', qr/does not fit calls/, 'a table that has one') ;
sql('DROP TABLE IF EXISTS made');
come_back();

## fingerprints, and labels

my $label = q{SELECT label FROM pg_seclabels WHERE objname LIKE 'take(%'};
my $promoted = sql($label);
like($promoted, qr/^command lanes=\{w\} promoted=[0-9a-f]{16}$/, 'the label');
my $states = q{SELECT string_agg(state, ' ' ORDER BY function::text) FROM nvm.commands};
my $body = sql(q{SELECT pg_get_functiondef('take(int,int)'::regprocedure)});
sql($body);
is(sql($states), 'shadow promoted', 'replaced by the same: still promoted');
come_back();
is(logged('SELECT take(1, 1)'), 'alone', 'and logged alone');
sql($body =~ s/n - step/n - 1 - step/r);
is(sql($states), 'shadow changed', 'replaced by something else');
is(mode(), 'shadow', 'no function is promoted');
is(logged('SELECT take(1, 1)'), 'shadow', 'its calls are logged beside rows');
$node->fails_with("SELECT nvm.promote_command('take(int,int)')", qr/No rehearsal with calls of the function as it is now/, 'to be promoted it is to be rehearsed again');
promote('take', 'give');
come_back();
is(logged('BEGIN; SELECT take(1, 1); SELECT give(2, 2); COMMIT'), 'alone', 'two functions');
sql("ALTER FUNCTION give(int,int) SET work_mem = '1MB'");
is(sql($states), 'changed promoted', 'a SET clause');
come_back();
is(logged('SELECT give(2, 2)') . logged('SELECT take(2, 2)'), 'shadowalone', 'calls of the one beside rows, of the other alone');
sql("ALTER FUNCTION give(int,int) RESET work_mem");
is(sql($states), 'promoted promoted', 'as it was promoted');
come_back();
is(logged('SELECT give(2, 2)'), 'alone', 'alone again');
sql("SELECT nvm.demote_command('give(int,int)')");
come_back();
$node->fails_with("SELECT nvm.demote_command('give(int,int)')", qr/is not promoted/, 'demoted twice');
is(logged('SELECT give(2, 2)'), 'shadow', 'demoted: beside rows, while another one is promoted');
sql('SELECT nvm.checkpoint()', 'SELECT give(2, 2)');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t\|/, 'it is rehearsed beside that');
sql("SELECT nvm.promote_command('give(int,int)')");
come_back();
is(logged('SELECT give(2, 2)'), 'alone', 'and promoted');
sql("SELECT nvm.demote_command('give(int,int)')");
come_back();
is(logged('SELECT give(2, 2)'), 'shadow', 'and demoted');
my $now = sql($label);
sql("SELECT nvm.demote_command('take(int,int)')");
is(mode(), 'shadow', 'the last one: shadow');
is(sql($states), 'shadow shadow', 'states');
$node->fails_with("SECURITY LABEL FOR nvm ON FUNCTION take(int,int) IS '$now'", qr/not promoted by its label/, 'no label promotes');
sql("SECURITY LABEL FOR nvm ON FUNCTION take(int,int) IS '" . ($now =~ s/promoted=.*/promoted=0123456789abcdef/r) . "'");
is(sql($states), 'shadow changed', 'a label of another one, as a dump has it');
is(mode(), 'shadow', 'promotes nothing');

## promotion amid others

$call->sql('BEGIN; SELECT 1 FROM a_heap');
$node->fails_with("SET lock_timeout = 100; SELECT nvm.promote_command('take(int,int)')", qr/canceling statement due to lock timeout/, 'a promotion waits for all that run');
is(mode(), 'shadow', 'it is taken back');
$ddl->send("SELECT nvm.promote_command('take(int,int)')");
ok($node->poll_query_until('postgres', $mode, 'switching'), 'switching at once');
is(logged('SELECT take(6, 6)'), 'shadow', 'beside rows');
$node->fails_with("SELECT nvm.promote_command('give(int,int)')", qr/another session promotes a function/, 'one at a time');
sql('SELECT nvm.checkpoint()');
is(mode(), 'switching', 'a checkpoint does not lead to alone before others have ended');
$call->sql('COMMIT');
$ddl->sql('SELECT 1');
come_back();
is(logged('SELECT take(6, 6)'), 'alone', 'then it does');
sql("SELECT nvm.demote_command('take(int,int)')");
sql("BEGIN; INSERT INTO a_heap VALUES (1); PREPARE TRANSACTION 'p'");
$node->fails_with("SELECT nvm.promote_command('take(int,int)')", qr/while the database has prepared transactions/, 'not with a prepared transaction');
is(mode(), 'shadow', 'shadow still');
sql("COMMIT PREPARED 'p'");
$node->safe_psql('other', "BEGIN; ALTER ROLE clerk NOBYPASSRLS; PREPARE TRANSACTION 'p'");
$node->fails_with("SELECT nvm.promote_command('take(int,int)')", qr/or one has changed roles/, 'nor with one that has changed roles, elsewhere');
$node->safe_psql('other', "COMMIT PREPARED 'p'");
sql('CREATE INDEX a_hash ON stock USING hash (i)');
$node->fails_with("SELECT nvm.promote_command('take(int,int)')", qr/does not fit calls that are logged alone.*a_hash/s, 'nor with an index of another method');
is(mode(), 'shadow', 'shadow still');
sql('DROP INDEX a_hash', 'BEGIN', 'SAVEPOINT a', "SELECT nvm.promote_command('take(int,int)')", 'ROLLBACK TO a', 'COMMIT');
is(mode() . ' ' . sql($states), 'shadow shadow shadow', 'rolled back to a savepoint');
sql('BEGIN', "SELECT nvm.promote_command('take(int,int)')", 'ROLLBACK');
is(mode() . ' ' . sql($states), 'shadow shadow shadow', 'rolled back');
foreach my $point (qw(mode-promote-begun mode-promote-waited))
{
	$node->fails_with("SET nvm.failpoint = '$point:error'; SELECT nvm.promote_command('take(int,int)')", qr/failpoint/, "an error at $point");
	is(mode(), 'shadow', 'shadow');
	$ddl->stop_at($point, "SELECT nvm.promote_command('take(int,int)')");
	is(mode(), 'switching', "promotion at $point");
	sql('SELECT pg_terminate_backend(' . $ddl->pid . ')');
	$ddl->go_on;
	$ddl->drop;
	ok($node->poll_query_until('postgres', $mode, 'shadow'), "the session has ended at $point");
	$ddl = $node->session;
}

# a statement of several transactions that has begun in mode shadow
rehearse();
sql('CREATE TABLE b_vlog (i int) USING nvm_vlog', 'INSERT INTO b_vlog VALUES (1)', 'INSERT INTO a_vlog VALUES (1)');
$ddl->sql("SET nvm.failpoint = 'log-capture:sleep=1500'");
$ddl->send('VACUUM FULL a_vlog, b_vlog');
usleep(500_000);
sql("SELECT nvm.promote_command('take(int,int)')", 'SELECT nvm.checkpoint()');
is(sql("SELECT mode, armed, ddl FROM nvm.command_modes WHERE database = 'postgres'"), 'switching|f|1', 'a promotion amid a statement that began before: not armed');
$ddl->sql("SET nvm.failpoint = ''");
come_back('it is when that has ended');
sql("SELECT nvm.demote_command('take(int,int)')", 'DROP TABLE b_vlog');

## another database

$node->safe_psql('other', <<'SQL');
CREATE EXTENSION pg_nvm;
CREATE TABLE stock (w int PRIMARY KEY, n int NOT NULL) USING nvm_cmdlog;
SELECT nvm.partition_table('stock', 'w');
INSERT INTO stock VALUES (1, 1);
CREATE FUNCTION add(w int) RETURNS void LANGUAGE sql AS 'UPDATE stock s SET n = n + 1 WHERE s.w = add.w';
SELECT nvm.register_command('add(int)', lanes => '{w}');
SELECT nvm.checkpoint();
SELECT add(1);
SELECT * FROM nvm.rehearse();
SELECT nvm.promote_command('add(int)');
SQL
ok($node->poll_query_until('postgres', "SELECT string_agg(database || ' ' || mode, ', ' ORDER BY database) FROM nvm.command_modes", 'other alone, postgres shadow'), 'another database has a mode of its own');
my $number = checkpoints();
sql('CREATE TABLE made ()', 'DROP TABLE made');
is(checkpoints(), $number, 'DDL here is nothing there');
my $there = $node->background_psql('other');
$there->query('BEGIN');
$there->query('SELECT add(1)');
$node->fails_with('SET lock_timeout = 100; DROP ROLE thief', qr/canceling statement due to lock timeout/, 'but DROP ROLE waits for calls there');
$there->query('COMMIT');
$there->quit;
sql('REVOKE clerk FROM thief', 'DROP ROLE thief');
ok($node->poll_query_until('postgres', "SELECT mode FROM nvm.command_modes WHERE database = 'other'", 'alone'), 'alone again');
cmp_ok(checkpoints(), '>', $number, 'behind a checkpoint');

# a copy of a database has the labels, and promotes nothing
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE other');
is($node->safe_psql('copy', 'SELECT state FROM nvm.commands') . ' ' . $node->safe_psql('copy', $mode), 'changed shadow', 'a copy of it');
$node->safe_psql('postgres', 'DROP DATABASE copy');
is(sql("SELECT count(*) FROM nvm.command_modes WHERE database = 'copy'"), '0', 'a database that is dropped');

## starts

promote('take');
come_back();
sql('SELECT nvm.checkpoint()');
$node->set_failpoint('ckpt-data-sync:error');
$node->stop_and_start;
is(mode(), 'switching', 'a start: switching');
is(logged('SELECT take(7, 7)'), 'values', 'by values');
$node->set_failpoint('');
sql('SELECT nvm.checkpoint()');
come_back('until a checkpoint');
is(logged('SELECT take(7, 7)'), 'alone', 'then alone');
sql('SELECT nvm.checkpoint()');
$node->stop_and_start;
$number = checkpoints();
sql('CREATE ROLE thief', 'DROP ROLE thief');
cmp_ok(checkpoints(), '>', $number, 'roles, when nothing is known of a database: a checkpoint');
$number = checkpoints();
sql('CREATE ROLE thief', 'DROP ROLE thief');
is($node->safe_psql('other', "SELECT 1"), '1', 'which is enough');
sql("SELECT nvm.demote_command('take(int,int)')");
$node->safe_psql('other', "SELECT nvm.demote_command('add(int)')");
$node->stop_and_start;
is(mode(), 'shadow', 'a start without promoted functions: shadow');

## the server dies amid a step, where no calls alone are behind the checkpoint

sql("SELECT nvm.demote_command('give(int,int)')") if sql($states) =~ /promoted/;
sub rows { return sql('SELECT count(*), sum(n), sum(n * i * w) FROM stock'); }
foreach my $case ([ 'mode-ddl-covered', 'CREATE TABLE made ()', 1 ], [ 'mode-usable', 'SELECT nvm.checkpoint()', 1 ], [ 'mode-flushed', 'SELECT nvm.checkpoint()', 1 ],
	[ 'mode-promote-begun', "SELECT nvm.promote_command('take(int,int)')", 0 ], [ 'mode-promote-waited', "SELECT nvm.promote_command('take(int,int)')", 0 ])
{
	my ($point, $sql, $is_promoted) = @$case;
	if ($is_promoted)
	{
		promote('take') if sql($states) !~ /promoted/;
		come_back();
		# of which a checkpoint that is made at the point has to have the rows
		sql('SELECT take(8, 8)', 'SELECT give(8, 8)');
	}
	else
	{
		sql("SELECT nvm.demote_command('take(int,int)')") if sql($states) =~ /promoted/;
		rehearse();
	}
	sql('SELECT take(8, 9)', 'SELECT give(8, 10)', 'INSERT INTO a_vlog VALUES (1)');
	persistent();
	my $rows = rows();
	$node->set_failpoint("$point:crash:1");
	usleep(200_000);
	$node->psql('postgres', $sql);
	$node->wait_crashed;
	$node->set_failpoint('');
	$node->start;
	is(rows(), $rows, "a death at $point: rows are there");
	is(sql($states) =~ /promoted/ ? 1 : 0, $is_promoted, 'promoted as before');
	$is_promoted ? come_back('alone again') : is(mode(), 'shadow', 'shadow');
}

## what does not fit is found at a start, too

promote('take');
come_back();
sql('CREATE TABLE odd (i int)', 'CREATE INDEX odd_hash ON odd USING hash (i)');
come_back();
{
	# as if another version had made it
	my $change = q{SET allow_system_table_mods = on; UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = '%s') WHERE relname = 'odd'};
	sql(sprintf($change, 'nvm_cmdlog'));
	sql('SELECT nvm.checkpoint()');
	$node->stop_and_start;
	is(logged('SELECT take(7, 7)'), 'values', 'a table that does not fit: by values');
	like($node->log_since_start, qr/calls of promoted functions of database \d+ are logged by values, because table "odd" does not fit.*\n.*index "odd_hash" is not in memory/, 'the server log names it');
	sql('SELECT nvm.checkpoint()');
	usleep(500_000);
	is(mode(), 'switching', 'also behind a checkpoint');
	is(logged('SELECT take(7, 7)'), 'values', 'by values');
	sql(sprintf($change, 'heap'));
	sql('DROP TABLE odd');
	sql('SELECT take(7, 7)');
	come_back('behind DDL somebody looks again, and finds that all fits');
	is(logged('SELECT take(7, 7)'), 'alone', 'alone again');
}

## DDL does not wait for nvm.checkpoint_rate

sql(q{INSERT INTO a_vlog SELECT i FROM generate_series(1, 900000) i});
sql('SELECT nvm.checkpoint()');
my $bytes = sql(q{SELECT bytes FROM nvm.checkpoints WHERE state = 'usable' ORDER BY number DESC LIMIT 1});
cmp_ok($bytes, '>', 15_000_000, 'a checkpoint that takes 15 s at one megabyte a second');
$node->set_conf('nvm.checkpoint_rate' => 1);
$node->reload;
come_back();
{
	my $slow = $node->session;
	$slow->send('SELECT nvm.checkpoint()');
	NvmTest::wait_until('one is under way', sub { sql(q{SELECT count(*) FROM nvm.checkpoints WHERE state = 'running' AND bytes > 0}) eq '1' });
	my $begin = time();
	sql('CREATE TABLE made ()');
	cmp_ok(time() - $begin, '<', 10, 'the one that DDL waits for does not, nor the one before it');
	$node->set_conf('nvm.checkpoint_rate' => 0);
	$node->reload;
	sql('DROP TABLE made');
	$slow->drop;
}
sql('TRUNCATE a_vlog');
come_back();

## without a log

come_back();
my $limit = sql('SHOW nvm.memory_limit');
$node->stop;
$node->set_conf('nvm.memory_limit' => '0');
$node->start;
$node->fails_with('CREATE TABLE made ()', qr/definitions cannot be changed in a database with promoted functions while there is no log/, 'without a log: no DDL where a function is promoted');
$node->fails_with("SELECT nvm.unregister_command('take(int,int)')", qr/definitions cannot be changed/, 'nor is one unregistered');
sql('CREATE TEMP TABLE made ()');
sql("SELECT nvm.demote_command('take(int,int)')", 'CREATE TABLE made ()', 'DROP TABLE made');
$node->stop;
$node->set_conf('nvm.memory_limit' => "'$limit'");
$node->start;
is(sql($states), 'shadow shadow', 'demoted meanwhile');
ok($node->poll_query_until('postgres', $mode, 'shadow'), 'shadow, now or behind a checkpoint');
$node->check_clean('at the end');

done_testing();

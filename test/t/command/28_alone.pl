# Copyright (c) 2026, pg_nvm contributors

# Calls that are logged alone: what is in the log in each mode.

use strict;
use warnings;

use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('alone', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_prepared_transactions = 5
max_worker_processes = 8
nvm.checkpoint_interval = 0
restart_after_crash = off
CONF
CREATE TABLE stock (w int, i int, n int NOT NULL, s text, PRIMARY KEY (w, i)) USING nvm_cmdlog;
ALTER TABLE stock ALTER s SET STORAGE EXTERNAL;
SELECT nvm.partition_table('stock', 'w');
INSERT INTO stock SELECT w, i, 100, repeat('x', 5000) FROM generate_series(1, 6) w, generate_series(1, 20) i;
CREATE TABLE a_vlog (i int PRIMARY KEY) USING nvm_vlog;
CREATE FUNCTION take(w int, i int, k int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE left_ int;
BEGIN
	UPDATE stock s SET n = n - k WHERE s.w = take.w AND s.i = take.i RETURNING n INTO left_;
	RETURN left_;
END$$;
CREATE FUNCTION give(w int, i int, k int) RETURNS void LANGUAGE sql AS 'UPDATE stock s SET n = n + k WHERE s.w = give.w AND s.i = give.i';
CREATE FUNCTION keep(w int, i int, t text) RETURNS void LANGUAGE sql AS 'UPDATE stock s SET s = t WHERE s.w = keep.w AND s.i = keep.i';
CREATE PROCEDURE fill(w int, i int, n int) LANGUAGE plpgsql AS $$BEGIN INSERT INTO stock VALUES (w, i, n, repeat('x', n)); END$$;
CREATE PROCEDURE clear(w int, i int) LANGUAGE plpgsql AS $$BEGIN DELETE FROM stock s WHERE s.w = clear.w AND s.i = clear.i; END$$;
SELECT nvm.register_command(f, lanes => '{w}') FROM unnest('{"keep(int,int,text)","fill(int,int,int)","clear(int,int)"}'::regprocedure[]) f;
CREATE FUNCTION other(i int) RETURNS void LANGUAGE sql AS 'INSERT INTO a_vlog VALUES (i)';
CREATE TABLE a_heap (i int);
CREATE TABLE mark (i serial) USING nvm_cmdlog;
CREATE ROLE clerk;
GRANT USAGE ON SCHEMA nvm TO clerk;
SELECT nvm.register_command('give(int,int,int)', lanes => '{w}');
SELECT nvm.register_command('take(int,int,int)', lanes => '{w}');
SQL

sub sql { return $node->safe_psql('postgres', join("\n", map { "$_;" } @_)); }

my $dir = $node->data_dir . '/pg_nvm_log';

# the records of these statements, each as one word and what it has
sub logged
{
	my ($sql) = @_;
	$node->safe_psql('postgres', 'INSERT INTO mark DEFAULT VALUES');
	my $before = NvmLog::dump_of($dir)->{end};
	$node->safe_psql('postgres', $sql);
	my $dump = NvmLog::dump_of($dir, from => $before);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($dump->{problem}, '', 'the log is whole') if $dump->{problem} ne '';
	return join(', ', map { class($_) } grep { $_->{kind} =~ /COMMIT|ASK/ } @{ $dump->{records} });
}

sub last_records
{
	my ($sql) = @_;
	sql('INSERT INTO mark DEFAULT VALUES');
	my $before = NvmLog::dump_of($dir)->{end};
	sql($sql);
	return grep { $_->{kind} =~ /COMMIT|ASK/ } @{ NvmLog::dump_of($dir, from => $before)->{records} };
}

sub class
{
	my ($r) = @_;
	my $class = $r->{calls} ? ($r->{calls}{alone} ? 'alone' : 'shadow') : $r->{values} ? 'values' : 'other';
	return "$class " . scalar(@{ $r->{rows} }) . ($r->{calls} ? " of $r->{calls}{rows}" : '');
}

my $mode = q{SELECT mode FROM nvm.command_modes WHERE database = current_database()};
my $state = q{SELECT string_agg(function::regproc || ' ' || state, ', ' ORDER BY function::text) FROM nvm.commands WHERE state <> 'shadow'};

# calls of all functions, rehearsed
sub rehearse
{
	sql('SELECT nvm.checkpoint()', 'SELECT take(1, 1, 1)', 'SELECT give(1, 1, 1)', "SELECT keep(1, 1, 'x')", 'CALL fill(1, 99, 5000)', 'CALL clear(1, 99)');
	return sql('SELECT passed, problem, detail, call FROM nvm.rehearse()');
}

## promotion

is(sql($mode), 'shadow', 'no function is promoted');
is(logged('SELECT take(1, 1, 1)'), 'shadow 1 of 1', 'shadow: calls beside rows');
$node->fails_with("SELECT nvm.promote_command('take(int,int,int)')", qr/cannot be promoted.*No rehearsal with calls/s, 'not before it was rehearsed');
like(rehearse(), qr/^t\|/, 'a rehearsal');
$node->fails_with("SELECT nvm.promote_command('other(int)')", qr/function other\(integer\) is not registered/, 'what is not registered');
$node->fails_with("SET ROLE clerk; SELECT nvm.promote_command('take(int,int,int)')", qr/permission denied for function promote_command/, 'not everybody may');
sql("GRANT EXECUTE ON FUNCTION nvm.promote_command, nvm.register_command TO clerk");
$node->fails_with("SET ROLE clerk; SELECT nvm.promote_command('take(int,int,int)')", qr/must be owner of function take/, 'nor for a function of others');

# a session that is open, and knows the function as a shadow
my $open = $node->session;
is($open->sql('SELECT take(1, 2, 1)'), 99, 'a session that is open');
sql("SELECT nvm.promote_command('take(int,int,int)')");
is(sql($state), 'take promoted', 'state');
is($node->poll_query_until('postgres', $mode, 'alone'), 1, 'a checkpoint leads to alone');
is(logged('SELECT take(1, 1, 1)'), 'alone 0 of 1', 'calls alone');
$node->safe_psql('postgres', 'INSERT INTO mark DEFAULT VALUES');
my $before = NvmLog::dump_of($dir)->{end};
$open->sql('SELECT take(1, 2, 1)');
is(join(', ', map { class($_) } @{ NvmLog::dump_of($dir, from => $before)->{records} }), 'alone 0 of 1', 'of the session that was open, too');
is(logged('SELECT give(1, 1, 1)'), 'shadow 1 of 1', 'a function that is not promoted: calls beside rows');
is(logged('BEGIN; SELECT take(1, 1, 1); SELECT give(1, 1, 1); COMMIT'), 'shadow 1 of 1', 'both in one transaction: likewise');
is(logged('UPDATE stock SET n = n + 1 WHERE w = 1 AND i = 1'), 'values 1', 'rows outside of calls');
is(logged("BEGIN; SELECT take(1, 1, 1); INSERT INTO a_vlog VALUES (1); COMMIT"), 'alone 1 of 1', 'rows of other tables are there');
is(logged("BEGIN; INSERT INTO a_heap VALUES (1); SELECT take(1, 1, 1); COMMIT"), 'alone 0 of 1', 'beside heap: pg_xact decides');
is(sql("SELECT alone > 0, call_bytes > 0, value_bytes FROM nvm.commands WHERE function = 'take(int,int,int)'::regprocedure"), 't|t|' . sql("SELECT value_bytes FROM nvm.commands WHERE function = 'take(int,int,int)'::regprocedure"), 'counters');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t\|/, 'a rehearsal of calls alone and of values');
like(sql("SELECT * FROM nvm.replay_command_log(copy_schema => 'kept')"), qr/^t\|/, 'nvm.replay_command_log');
sql('DROP SCHEMA kept CASCADE');
like(($node->psql('postgres', "SELECT nvm.promote_command('take(int,int,int)')"))[2], qr/NOTICE: .*is promoted already/, 'again');

## what a record is made of

sql("SELECT nvm.promote_command('keep(int,int,text)')", "SELECT nvm.promote_command('fill(int,int,int)')", "SELECT nvm.promote_command('clear(int,int)')");
is($node->poll_query_until('postgres', $mode, 'alone'), 1, 'more functions');
is(logged('CALL fill(2, 100, 50000)'), 'alone 0 of 1', 'a large value that the call makes: neither row nor pieces');
is(logged('CALL clear(2, 100)'), 'alone 0 of 1', 'and a row that goes');
is(logged('BEGIN; CALL fill(2, 100, 10); CALL clear(2, 100); COMMIT'), 'alone 0 of 0', 'nothing that stays: the calls all the same');
my ($side) = last_records(q{SELECT keep(3, 1, repeat('0123456789', 20000))});
is(class($side) . ' ' . (defined $side->{side} ? 'in a side file' : ''), 'alone 0 of 1 in a side file', 'a large argument');
like($side->{calls}{parts}[-1], qr/'(0123456789){20000}'::text\)$/, 'all of it');
($side) = last_records(q{BEGIN; INSERT INTO a_vlog SELECT generate_series(10, 9000); SELECT take(3, 1, 1); COMMIT});
is(class($side) . ' ' . (defined $side->{side} ? 'in a side file' : ''), 'alone 8991 of 1 in a side file', 'many rows of another table');
is(logged('BEGIN; SELECT take(1, 1, 1); SAVEPOINT a; SELECT take(1, 2, 1); RELEASE a; COMMIT'), 'alone 0 of 2', 'a savepoint');
is(logged('BEGIN; SELECT take(1, 1, 1); SAVEPOINT a; SELECT take(1, 2, 1); ROLLBACK TO a; COMMIT'), 'values 1', 'one that is rolled back: values');
my ($old) = last_records('BEGIN; SELECT give(1, 1, 1); SELECT take(1, 2, 1); DELETE FROM stock WHERE w = 1 AND i = 3; COMMIT');
is(join(' ', map { $_->{old} ? 'old' : 'new' } @{ $old->{rows} }), 'new new old', 'values have old rows');
like($old->{values}{lanes}, qr/^lanes \d+$/, 'and lanes');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t\|/, 'a rehearsal of all of these');

done_testing();

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

sub class
{
	my ($r) = @_;
	my $class = $r->{calls} ? ($r->{calls}{alone} ? 'alone' : 'shadow') : $r->{values} ? 'values' : 'other';
	return "$class " . scalar(@{ $r->{rows} }) . ($r->{calls} ? " of $r->{calls}{rows}" : '');
}

my $mode = q{SELECT mode FROM nvm.command_modes WHERE database = current_database()};
my $state = q{SELECT string_agg(function::regproc || ' ' || state, ', ' ORDER BY function::text) FROM nvm.commands WHERE state <> 'shadow'};

sub fails
{
	my ($sql, $error, $name) = @_;
	my (undef, undef, $stderr) = $node->psql('postgres', $sql);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($stderr, $error, $name);
	return;
}

# calls of all functions, rehearsed
sub rehearse
{
	sql('SELECT nvm.checkpoint()', 'SELECT take(1, 1, 1)', 'SELECT give(1, 1, 1)');
	return sql('SELECT passed, problem, detail, call FROM nvm.rehearse()');
}

## promotion

is(sql($mode), 'shadow', 'no function is promoted');
is(logged('SELECT take(1, 1, 1)'), 'shadow 1 of 1', 'shadow: calls beside rows');
fails("SELECT nvm.promote_command('take(int,int,int)')", qr/cannot be promoted.*No rehearsal with calls/s, 'not before it was rehearsed');
like(rehearse(), qr/^t\|/, 'a rehearsal');
fails("SELECT nvm.promote_command('other(int)')", qr/function other\(integer\) is not registered/, 'what is not registered');
fails("SET ROLE clerk; SELECT nvm.promote_command('take(int,int,int)')", qr/permission denied for function promote_command/, 'not everybody may');
sql("GRANT EXECUTE ON FUNCTION nvm.promote_command, nvm.register_command TO clerk");
fails("SET ROLE clerk; SELECT nvm.promote_command('take(int,int,int)')", qr/must be owner of function take/, 'nor for a function of others');

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
is(logged('SELECT give(1, 1, 1)'), 'values 1', 'a function that is not promoted: values');
is(logged('BEGIN; SELECT take(1, 1, 1); SELECT give(1, 1, 1); COMMIT'), 'values 1', 'both in one transaction: values');
is(logged('UPDATE stock SET n = n + 1 WHERE w = 1 AND i = 1'), 'values 1', 'rows outside of calls');
is(logged("BEGIN; SELECT take(1, 1, 1); INSERT INTO a_vlog VALUES (1); COMMIT"), 'alone 1 of 1', 'rows of other tables are there');
is(logged("SELECT put(1, 100, 100000); SELECT drop_(1, 100)"), 'alone 0 of 1, alone 0 of 1', 'no pieces of large values') if 0;
is(logged("BEGIN; INSERT INTO a_heap VALUES (1); SELECT take(1, 1, 1); COMMIT"), 'alone 0 of 1', 'beside heap: pg_xact decides');
is(sql("SELECT alone > 0, call_bytes > 0, value_bytes FROM nvm.commands WHERE function = 'take(int,int,int)'::regprocedure"), 't|t|' . sql("SELECT value_bytes FROM nvm.commands WHERE function = 'take(int,int,int)'::regprocedure"), 'counters');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t\|/, 'a rehearsal of calls alone and of values');
like(sql("SELECT * FROM nvm.replay_command_log(copy_schema => 'kept')"), qr/^t\|/, 'nvm.replay_command_log');
sql('DROP SCHEMA kept CASCADE');
fails("SELECT nvm.promote_command('take(int,int,int)')", qr/NOTICE: .*is promoted already/, 'again');

done_testing();

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
CREATE TABLE mark (i serial) USING nvm_cmdlog;
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

sql('SELECT nvm.checkpoint()');
is(logged('SELECT take(1, 1, 1)'), 'shadow 1 of 1', 'before');
sql("SELECT nvm.promote_command('take(int,int,int)')");
is(logged('SELECT take(1, 1, 1)'), 'alone 0 of 1', 'after');
is(logged('BEGIN; SELECT take(1, 1, 1); INSERT INTO a_vlog VALUES (1); COMMIT'), 'alone 1 of 1', 'with a row of another table');
is(logged('UPDATE stock SET n = n + 1 WHERE w = 1 AND i = 1'), 'values 1', 'values');
is(sql('SELECT state FROM nvm.commands'), 'promoted', 'state');
is(sql('SELECT passed, calls FROM nvm.rehearse()'), 't|3', 'a rehearsal: of calls beside rows, and alone');

done_testing();

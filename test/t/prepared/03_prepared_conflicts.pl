# Copyright (c) 2026, pg_nvm contributors

# Whoever comes across a prepared transaction's rows waits for it, and goes on
# when another session has ended it: each conflict on a heap table and on nvm
# tables, which must end alike; also when the server was killed in between.
# (The isolation tester does not see that a session waits for a prepared
# transaction, which has no process.)
#
# Long form: every pair also with a kill in between, here a quarter of them.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('conflicts', conf => "max_prepared_transactions = 5\nautovacuum = off\n");

my %first = (
	upd  => "UPDATE parent SET v = v || ' s1' WHERE id = 1",
	upd3 => "UPDATE parent SET k = k + 10 WHERE id = 1",
	del  => 'DELETE FROM parent WHERE id = 1',
	ins  => "INSERT INTO parent VALUES (3, 3, 'three s1')",
	key  => 'UPDATE parent SET id = 4 WHERE id = 1',
	ref  => 'INSERT INTO child VALUES (1, 1)',
	lock => 'SELECT FROM parent WHERE id = 1 FOR SHARE',
	most => 'SELECT FROM parent WHERE id = 1 FOR UPDATE',
	subs => "SAVEPOINT a; UPDATE parent SET v = 'x' WHERE id = 1; ROLLBACK TO a; "
	  . "SAVEPOINT b; UPDATE parent SET v = v || ' b' WHERE id = 1; RELEASE b",);
my %second = (
	upd     => "UPDATE parent SET v = v || ' s2' WHERE id = 1 RETURNING *",
	upd3    => 'UPDATE parent SET k = k + 100 WHERE id = 1 RETURNING *',
	del     => 'DELETE FROM parent WHERE id = 1 RETURNING *',
	key     => 'UPDATE parent SET id = 5 WHERE id = 1 RETURNING *',
	ins     => "INSERT INTO parent VALUES (3, 3, 'three s2')",
	nothing => "INSERT INTO parent VALUES (3, 3, 'three s2') ON CONFLICT DO NOTHING",
	upsert  => "INSERT INTO parent VALUES (3, 3, 's2') ON CONFLICT (id) DO UPDATE SET v = parent.v || ' s2'",
	ref     => 'INSERT INTO child VALUES (2, 1)',
	share   => 'SELECT * FROM parent WHERE id = 1 FOR SHARE',
	rr      => "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM child;\n"
	  . "SELECT pg_sleep(0) FROM gate;\nUPDATE parent SET v = v || ' s2' WHERE id = 1; COMMIT",
	merge => "MERGE INTO parent p USING (VALUES (1, 'm'), (3, 'n')) s (id, v) ON p.id = s.id "
	  . "WHEN MATCHED THEN UPDATE SET v = p.v || s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id, 0, s.v)",);
my @pairs = map { my $f = $_; map { [ $f, $_ ] } @{ {
			upd  => [qw(upd upd3 del key ref share rr merge)],
			upd3 => [qw(upd del ref)],
			del  => [qw(upd del ref share merge)],
			ins  => [qw(ins nothing upsert merge)],
			key  => [qw(upd key ref)],
			ref  => [qw(upd upd3 del key)],
			lock => [qw(upd share del)],
			most => [qw(share ref)],
			subs => [qw(upd del)] }->{$f} } } sort keys %first;

# What the second session says, and what is left
sub run_pair
{
	my ($am, $f, $s, $how, $killed) = @_;
	my $out = PostgreSQL::Test::Utils::tempdir() . '/out';

	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
SET default_table_access_method = $am;
DROP TABLE IF EXISTS child, parent, gate;
CREATE TABLE parent (id int PRIMARY KEY, k int, v text);
CREATE INDEX ON parent (k);
CREATE TABLE child (id int, parent int REFERENCES parent);
CREATE TABLE gate (a int);
INSERT INTO parent VALUES (1, 1, 'one'), (2, 2, 'two');
BEGIN;
$first{$f};
PREPARE TRANSACTION 'conflict';
SQL
	if ($killed)
	{
		$node->crash;
		$node->start;
	}
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		local %ENV = $node->_get_env(PGAPPNAME => 'second', PGOPTIONS => '-c lock_timeout=60s');
		open(STDIN,  '<',  '/dev/null');
		open(STDOUT, '>', $out);
		open(STDERR, '>&', \*STDOUT);
		exec('psql', '-XAt', '-v', 'VERBOSITY=terse', '-d', $node->connstr('postgres'), '-c', $second{$s})
		  or POSIX::_exit(1);
	}
	# until it waits for the lock, or has ended
	my $waits = 0;
	while (!$waits && waitpid($pid, POSIX::WNOHANG()) == 0)
	{
		$waits = $node->safe_psql('postgres', <<SQL) eq '1';
SELECT count(*) FROM pg_stat_activity WHERE application_name = 'second' AND wait_event_type = 'Lock'
SQL
	}
	$node->safe_psql('postgres', "$how PREPARED 'conflict'");
	waitpid($pid, 0) if $waits;
	my $said = slurp_file($out);
	$said =~ s/\n+$//;
	return ($waits ? 'waits' : 'goes on') . ": $said\n"
	  . $node->safe_psql('postgres',
		'SELECT * FROM parent ORDER BY id; SELECT id, parent FROM child ORDER BY id');
}

foreach my $pair (@pairs)
{
	my ($f, $s) = @$pair;
	foreach my $how ('COMMIT', 'ROLLBACK')
	{
		my $heap = run_pair('heap', $f, $s, $how);
		is(run_pair('nvm', $f, $s, $how), $heap, "$f, then $s, $how PREPARED: as on heap");
		# some after a kill too
		is(run_pair('nvm', $f, $s, $how, 1), $heap, "$f, then $s, $how PREPARED after a kill: as on heap")
		  if NvmTest::is_long() || length("$f$s$how") % 4 == 0;
	}
}
$node->check_clean('after all conflicts');
$node->stop;

done_testing();

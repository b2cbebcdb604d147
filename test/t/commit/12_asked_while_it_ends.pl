# Copyright (c) 2026, pg_nvm contributors

# Two places where a process asks about a transaction that ends meanwhile.
#
# Who locks a row that somebody is deleting asks once whether he still runs.  If
# he rolls back between two looks, the second must not be taken for a commit: a
# foreign key would miss its parent.
#
# Two processes make a third one's commit durable for it, and one is put off
# between the two copies of the commit slot.  The owner goes on when the other has
# finished, and must find both copies as he left them.

use strict;
use warnings;

use NvmTest;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('ends', conf => "autovacuum = off\nrestart_after_crash = off", sql => <<SQL);
SET default_table_access_method = nvm;
CREATE TABLE parent (id int PRIMARY KEY, b int);
CREATE INDEX ON parent (b);
CREATE TABLE child (id int REFERENCES parent);
INSERT INTO parent VALUES (1, 0), (2, 0);
CREATE TABLE t (id int PRIMARY KEY, v int);
INSERT INTO t SELECT i, 0 FROM generate_series(1, 10) i;
SQL

# ---- a row whose deletion is rolled back while it is locked

foreach my $way ('ROLLBACK', 'ROLLBACK TO s')
{
	my $writer = $node->session('BEGIN');
	my $id     = $way eq 'ROLLBACK' ? 1 : 2;

	# the new version is indexed, so it is a root of its own
	$writer->sql("UPDATE parent SET b = 1 WHERE id = $id");
	$writer->sql('SAVEPOINT s') if $way ne 'ROLLBACK';
	$writer->sql("DELETE FROM parent WHERE id = $id");
	my $xid = $writer->sql('SELECT pg_current_xact_id()');

	my $locker = $node->session;
	$locker->stop_at('rowlock-elsewhere', "INSERT INTO child VALUES ($id)");
	$writer->send($way);
	ok($node->poll_query_until('postgres', "SELECT NOT EXISTS (SELECT FROM pg_snapshot_xip(pg_current_snapshot()) x WHERE x = '$xid'::xid8)"),
		'who deletes the row has left, and has not undone it') if $way eq 'ROLLBACK';
	$locker->go_on;
	if ($way ne 'ROLLBACK')
	{
		usleep(200_000);
		$writer->sql('COMMIT');
	}
	is($locker->sql("SELECT count(*) FROM child WHERE id = $id"), '1', "$way: the parent is found");
	$_->drop foreach $writer, $locker;
}
is($node->safe_psql('postgres', 'SELECT id, b FROM parent ORDER BY id'), "1|0\n2|1", 'the parents are as they should be');

# ---- two helpers

my $owner = $node->session;
$owner->stop_at('commit-before-decision', 'UPDATE t SET v = 1 WHERE id = 1');
my $late = $node->session;
$late->stop_at('slot-exchange', "DO 'BEGIN PERFORM v FROM t WHERE id = 1; END'");
my $quick = $node->session;
is($quick->sql('SELECT v FROM t WHERE id = 1'), '1', 'a second one helps, and is done');
$owner->go_on;
is($owner->sql('SELECT v FROM t WHERE id = 1'), '1', 'so the owner goes on');
$owner->sql("SET nvm.failpoint = ''");
$owner->sql("UPDATE t SET v = 1 WHERE id = $_") foreach 2 .. 4;
$late->go_on;
is($late->sql('SELECT sum(v) FROM t'), '4', 'and commits, before the first helper wakes up');
$owner->sql('UPDATE t SET v = 1 WHERE id = 5');
is($node->safe_psql('postgres', 'SELECT sum(v) FROM t'), '5', 'and after it');
unlike($node->log_since_start, qr/PANIC/, 'nobody panicked');
$_->drop foreach $owner, $late, $quick;
$node->crash;
$node->start;
is($node->safe_psql('postgres', 'SELECT sum(v) FROM t'), '5', 'all of it outlives a crash');
$node->check_clean;
$node->stop;

done_testing();

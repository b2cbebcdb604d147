# Copyright (c) 2026, pg_nvm contributors

# A prepared REINDEX is rolled back, and before anybody has persisted that,
# another session has the index's lock and makes it anew.  The storage that the
# prepared transaction had made is not its business: it is freed by whoever
# settles, its number may be another table's by the time that the REINDEX
# commits, and that table must not be freed with it.  Nor may the storage that
# the index had all the time be left behind.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('main', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_prepared_transactions = 5
CONF
CREATE TABLE t (id int, pad text) USING nvm;
INSERT INTO t SELECT i, 'row ' || i FROM generate_series(1, 100) i;
CREATE INDEX i ON t USING nvm_btree (id);
SQL

foreach my $case (
	[ 'REINDEX INDEX i', 'REINDEX INDEX i' ],
	[ 'TRUNCATE t',      'REINDEX INDEX i' ],
	[ 'DROP INDEX i',    'REINDEX INDEX i' ],
	[ 'DROP INDEX i',    'ALTER TABLE t SET ACCESS METHOD heap' ])
{
	my ($how, $then) = @$case;
	my $what = "$then after a rolled back $how";
	my ($ender, $again) = map { $node->session } 1 .. 2;

	# the keeper would do it as soon, and so would whoever commits
	my $keeper = $node->safe_psql('postgres', q[SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'nvm%keeper']);
	$node->safe_psql('postgres', "BEGIN; $how; PREPARE TRANSACTION 'p'");
	NvmTest::stop_process($keeper);
	$ender->stop_at('twophase-over', "ROLLBACK PREPARED 'p'");
	$again->sql('BEGIN');
	$again->sql($then);
	$ender->go_on;
	$ender->sql('SELECT 1');
	NvmTest::continue_process($keeper);

	$node->safe_psql('postgres', 'CREATE TABLE other USING nvm AS SELECT i AS id FROM generate_series(1, 10) i');
	$again->sql('COMMIT');
	$_->drop foreach $ender, $again;
	is($node->safe_psql('postgres', 'SELECT sum(id) FROM other'), '55', "$what: another table is left alone");
	is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT sum(id) FROM t WHERE id > 0'), '5050',
		"$what: the index leads to the rows");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations WHERE relation IS NULL AND NOT ended'), '0',
		"$what: no storage is left behind");
	$node->safe_psql('postgres', 'DROP TABLE other');
	$node->check_clean($what);
}

# While the settling of a rolled back DROP has come no further than the gap list, the
# collector finds the end that is to be taken back, and before it does somebody
# ends the storage in earnest: that stays.
{
	my ($ender, $dropper) = map { $node->session } 1 .. 2;
	my $keeper = $node->safe_psql('postgres', q[SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'nvm%keeper']);

	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE w USING nvm AS SELECT 1 AS id;
BEGIN; SELECT FROM w FOR UPDATE; DROP TABLE w; PREPARE TRANSACTION 'p';
ALTER SYSTEM SET nvm.failpoint = 'gap-end-seen:stop:1';
SELECT pg_reload_conf();
SQL
	NvmTest::stop_process($keeper);
	$ender->stop_at('twophase-free-locks', "ROLLBACK PREPARED 'p'");
	my $pid;
	for (my $i = 0; $i < 3000 && !defined $pid; $i++)
	{
		$pid = $1 if $node->log_since_start =~ /failpoint gap-end-seen hit, pid (\d+)/;
		usleep(10000);
	}
	NvmTest::wait_stopped($pid);
	$dropper->sql('BEGIN');
	$dropper->sql('DROP TABLE w');
	NvmTest::continue_process($pid);
	$node->poll_query_until('postgres', "SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = $pid")
	  or die 'the collector does not go on';
	$dropper->sql('COMMIT');
	$ender->go_on;
	$ender->sql('SELECT 1');
	NvmTest::continue_process($keeper);
	$_->drop foreach $ender, $dropper;
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps are not collected';
	ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.relations WHERE relation IS NULL'),
		'DROP beside the collector: no storage is left behind');
	$node->check_clean('DROP beside the collector');
}

$node->stop;
done_testing();

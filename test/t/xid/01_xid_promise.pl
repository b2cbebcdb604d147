# Copyright (c) 2026, pg_nvm contributors

# An xid that an acknowledged nvm row carries as xmin is not handed out again
# after a crash, although the commit record of its transaction was lost with
# the WAL; what a crash costs in xids is bounded; pg_xact and its kin have the
# pages of all xids that are skipped; and standbys can follow.
#
# Long form: what 300 crashes after a write cost together, and 50 of an idle server;
# here 3 of each.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $step    = 8192;
my ($crashes, $idle) = NvmTest::is_long() ? (300, 50) : (3, 3);

my $node = NvmTest->start_new('promise', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
wal_writer_delay = 10s
checkpoint_timeout = 1h
nvm.redo_limit = 0
nvm.horizon_naptime = 10s
track_commit_timestamp = on
max_prepared_transactions = 10
CONF
CREATE TABLE t (id int PRIMARY KEY, v int) USING nvm;
CREATE TABLE h (id bigint);
INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i;
CHECKPOINT;
SQL

my $now = q{SELECT pg_snapshot_xmax(pg_current_snapshot())::text};

# Acknowledged work on nvm tables alone, no WAL of which is flushed; returns
# the xmin of each row by id, as its client has seen it.
sub work
{
	my ($node, $n) = @_;
	my %xmin;
	my $sql = '';

	$sql .= "UPDATE t SET v = v + 1 WHERE id = $_ RETURNING id, xmin;\n" foreach 1 .. $n;
	# a savepoint's row has an xid of its own, an aborted one's is of no interest
	$sql .= "BEGIN; SAVEPOINT a; UPDATE t SET v = v + 1 WHERE id = 99 RETURNING id, xmin; RELEASE a;\n"
	  . "SAVEPOINT b; UPDATE t SET v = v + 1 WHERE id = 100; ROLLBACK TO b; COMMIT;\n";
	foreach my $line (split /\n/, $node->safe_psql('postgres', $sql))
	{
		$xmin{$1} = $2 if $line =~ /^(\d+)\|(\d+)$/;
	}
	return %xmin;
}

sub all_xmin
{
	return $node->safe_psql('postgres', 'SELECT id, xmin FROM t ORDER BY id');
}

# What each of the rows may not meet again.
my %seen;

sub check_after_crash
{
	my ($name, $before, %acked) = @_;
	my @reused;

	is(all_xmin(), $before, "$name: each row has the xmin that it had");
	cmp_ok($node->safe_psql('postgres', $now), '>', $seen{max}, "$name: the next xid is above all of them");
	# optimistic locking
	foreach my $id (sort { $a <=> $b } keys %acked)
	{
		push @reused, $id
		  if $node->safe_psql('postgres', "SELECT count(*) FROM t WHERE id = $id AND xmin = '$acked{$id}'") ne '1';
		last if $id > 3;
	}
	is("@reused", '', "$name: a row is found by the xmin that was read before");
	# new ones of each kind: nvm, heap, mixed, a subtransaction's, a prepared one's
	my @new = split /\n/, $node->safe_psql('postgres', <<SQL);
UPDATE t SET v = v + 1 WHERE id = 50 RETURNING xmin;
INSERT INTO h VALUES (1) RETURNING xmin;
BEGIN; INSERT INTO h VALUES (2) RETURNING xmin; UPDATE t SET v = v + 1 WHERE id = 51 RETURNING xmin; COMMIT;
BEGIN; SAVEPOINT a; UPDATE t SET v = v + 1 WHERE id = 52 RETURNING xmin; COMMIT;
BEGIN; INSERT INTO h VALUES (3) RETURNING xmin; PREPARE TRANSACTION 'p';
COMMIT PREPARED 'p';
SQL
	is(join(' ', grep { $_ !~ /^\d+$/ || exists $seen{$_} } @new), '', "$name: new xids are new");
	return;
}

sub remember
{
	my (%acked) = @_;
	foreach my $xid (values %acked)
	{
		$seen{$xid} = 1;
		$seen{max} = $xid if $xid > ($seen{max} // 0);
	}
	return;
}

sub crash_and_check
{
	my ($name, %params) = @_;
	my %acked = work($node, $params{work} // 20);
	my $before = all_xmin();

	remember(map { split /\|/ } split /\n/, $before);
	remember(%acked);
	if (exists $params{power}) { $node->power_failure(seed => $params{power}, mode => $params{mode}); }
	else { $node->crash; }
	$node->start;
	check_after_crash($name, $before, %acked);
	like($node->log_since_start, qr/nvm: skipped \d+ transaction IDs/, "$name: the log says so");
	return;
}

# Set the promise to what it is now plus a step, so that a crash has to skip.
crash_and_check('SIGKILL, WAL lost');
crash_and_check('power failure, durable image', power => 1, mode => 'durable');
crash_and_check("power failure, random image $_", power => $_, mode => 'random') foreach 2 .. 3;

# more than a step in one run: the promise is raised on the way, twice
crash_and_check('several steps', work => 50);
{
	my $from = $node->safe_psql('postgres', $now);
	$node->safe_psql('postgres', <<SQL);
CREATE PROCEDURE burn(n int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN 1 .. n LOOP
		UPDATE t SET v = v + 1 WHERE id = 60;
		COMMIT;
	END LOOP;
END\$\$;
CALL burn($step * 2 + 100);
SQL
	crash_and_check('two steps and some');
	cmp_ok($node->safe_psql('postgres', $now), '>', $from + 2 * $step, 'they have been used');

	# the same by subtransactions of one transaction that begins below the promise
	my $sub = $node->safe_psql('postgres', <<SQL);
BEGIN;
DO \$\$BEGIN
	FOR i IN 1 .. $step + 10 LOOP
		BEGIN
			UPDATE t SET v = v + 1 WHERE id = 61;
		EXCEPTION WHEN division_by_zero THEN
		END;
	END LOOP;
END\$\$;
COMMIT;
SELECT xmin FROM t WHERE id = 61;
SQL
	crash_and_check('a step of subtransactions');
	cmp_ok($node->safe_psql('postgres', $now), '>', $sub, 'its last subtransaction is below');
}

# Crashes while the promise is raised and while it is kept.
$node->set_conf('restart_after_crash' => 'off');
$node->reload;
foreach my $place ('xid-promise', 'pool-header-first', 'pool-header-second')
{
	my $before = all_xmin();
	my ($ret, $out, $err) = $node->psql('postgres', <<SQL);
SET nvm.failpoint = '$place:crash';
CALL burn($step + 1);
SQL
	$node->wait_crashed;
	$node->power_failure(seed => length $place, mode => 'random');
	$node->start;
	my $next = $node->safe_psql('postgres', $now);
	is($node->safe_psql('postgres', "SELECT count(*) FROM t WHERE xmin::text::bigint >= $next"), '0',
		"crash at $place: no row is from the future");
	$node->check_clean("crash at $place");
	crash_and_check("after the crash at $place");
}
{
	my %acked = work($node, 20);
	my $before = all_xmin();
	remember(map { split /\|/ } split /\n/, $before);
	$node->crash;
	# while xids are skipped: the one who does it ends the server in the middle
	$node->set_conf('nvm.failpoint' => "'resolve-skip-xids:crash:20'");
	$node->start(fail_ok => 1);
	# it may be gone before psql comes, which then does not take the statement
	eval { $node->psql('postgres', 'SELECT 1') };
	($node->{_pid}) = slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/;
	$node->wait_crashed;
	like($node->log_since_start, qr/failpoint resolve-skip-xids hit/, 'a start that ends while xids are skipped');
	$node->set_conf('nvm.failpoint' => "''");
	$node->start;
	check_after_crash('crash while xids are skipped', $before, %acked);

	# an error there is not the end: the next one goes on
	%acked = work($node, 20);
	$before = all_xmin();
	remember(map { split /\|/ } split /\n/, $before);
	$node->crash;
	$node->set_conf('nvm.failpoint' => "'resolve-skip-xids:error:20'");
	$node->start(fail_ok => 1);
	$node->set_conf('nvm.failpoint' => "''");
	kill('HUP', slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/);
	$node->poll_query_until('postgres', 'SELECT true');
	$node->_update_pid(1);
	# whoever came first has the old setting, and may not have come that far
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	usleep(5000) while $node->log_since_start !~ /ERROR:.*resolve-skip-xids/ && time() < $end;
	like($node->log_since_start, qr/ERROR:.*resolve-skip-xids/, 'one process failed to skip');
	check_after_crash('error while xids are skipped', $before, %acked);
}
$node->set_conf('restart_after_crash' => 'on');
$node->reload;

# Costs: nothing where nobody has written, a step and what was used otherwise.  A
# SIGKILL leaves what was written, so the starts need not sync all files each time.
$node->set_conf('fsync' => 'off');
$node->restart;
{
	my $from = $node->safe_psql('postgres', $now);
	foreach my $i (1 .. $idle)
	{
		$node->crash;
		$node->start;
	}
	my $to = $node->safe_psql('postgres', $now);
	cmp_ok($to - $from, '<=', $step + 10 * $idle, "$idle crashes of an idle server cost " . ($to - $from));

	$from = $to;
	foreach my $i (1 .. $crashes)
	{
		$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id = 1');
		$node->crash;
		$node->start;
	}
	$to = $node->safe_psql('postgres', $now);
	cmp_ok($to - $from, '<=', ($step + 20) * ($crashes + 1), "$crashes crashes after a write cost " . ($to - $from));
	cmp_ok($to - $from, '>=', $step * ($crashes - 1), 'and each its step');
}
$node->set_conf('fsync' => 'on');
$node->restart;

# A clean stop costs nothing.
{
	$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id = 1');
	my $from = $node->safe_psql('postgres', $now);
	$node->stop;
	$node->start;
	cmp_ok($node->safe_psql('postgres', $now) - $from, '<', 20, 'a clean stop skips nothing');
	unlike($node->log_since_start, qr/skipped/, 'and the log says nothing');
}

# Unless nobody has come to skip since the crash before it.
{
	my %acked = work($node, 20);
	my $before = all_xmin();
	remember(map { split /\|/ } split /\n/, $before);
	remember(%acked);
	$node->crash;
	$node->set_conf('nvm.failpoint' => "'resolve-begin:error'");
	$node->start(fail_ok => 1);
	$node->_update_pid(1);
	$node->stop;
	$node->set_conf('nvm.failpoint' => "''");
	$node->start;
	check_after_crash('a clean stop of a server that nobody could use', $before, %acked);
	like($node->log_since_start, qr/nvm: skipped \d+ transaction IDs/, 'it is made up for');
}

# A row that is rewritten keeps its xmin.
{
	my $before = all_xmin();
	$node->safe_psql('postgres', 'VACUUM FULL t');
	is(all_xmin(), $before, 'VACUUM FULL keeps xmin');
}
$node->check_clean('in the end');
$node->stop;

# Edges: skip across the end of a page of pg_xact, across 2^31 and 2^32; then
# another crash at once.
sub move_xid
{
	my ($xid) = @_;
	my $segment = sprintf('%s/pg_xact/%04X', $node->data_dir, $xid >> 20);

	$node->stop if defined $node->{_pid};
	# the whole segment, of which hundreds of crashes may have made a part
	my $missing = (1 << 18) - (-s $segment // 0);
	open(my $fh, '>>', $segment) or die "$segment: $!";
	print $fh "\0" x $missing;
	close $fh;
	# commit timestamps of what comes have no segment yet either
	rmtree_contents($node->data_dir . '/pg_commit_ts');
	system_or_bail('pg_resetwal', '-f', '-x', $xid, '-c', '0,0', '-D', $node->data_dir);
	return;
}

sub rmtree_contents
{
	my ($dir) = @_;
	unlink glob "$dir/*";
	return;
}

$node->set_conf('track_commit_timestamp' => 'off');
foreach my $xid (3 * 32768 * 32 - 100, (1 << 31) - 5000, (3 << 30) - 5000, (1 << 32) - 5000)
{
	# all databases may follow only if they are frozen
	$node->start if !defined $node->{_pid};
	$node->safe_psql('postgres', 'ALTER DATABASE template0 ALLOW_CONNECTIONS true');
	command_ok([ 'vacuumdb', '-q', '--all', '--freeze', '--maintenance-db', $node->connstr('postgres') ], "freeze before $xid");
	move_xid($xid);
	$node->start;
	unlike($node->log_since_start, qr/refused|not available/i, "pg_resetwal to $xid does not part the pool from its server");
	%seen = ();
	foreach my $again (1 .. 2)
	{
		my $before = $node->safe_psql('postgres', $now);
		work($node, 20);
		my $xmin = all_xmin();
		$node->crash;
		$node->start;
		is(all_xmin(), $xmin, "next xid $xid, crash $again: rows are as they were");
		like($node->log_since_start, qr/nvm: skipped \d+ transaction IDs/, "next xid $xid, crash $again: skipped");
		my $after = $node->safe_psql('postgres', $now);
		cmp_ok($after, '>=', $before + $step - 100, "next xid $xid, crash $again: the next xid is ahead");
		$node->safe_psql('postgres', 'UPDATE t SET v = v + 1; INSERT INTO h SELECT 1 FROM generate_series(1, 10)');
		$node->safe_psql('postgres', 'CHECKPOINT');
	}
	$node->check_clean("xid $xid");
}
$node->stop;

# A standby whose array of running xids is much smaller than what is skipped.
{
	my $primary = NvmTest->new('primary');
	$primary->init(allows_streaming => 1);
	$primary->append_conf('postgresql.conf', <<CONF);
autovacuum = off
wal_writer_delay = 10s
max_connections = 8
superuser_reserved_connections = 1
max_worker_processes = 4
max_wal_senders = 2
autovacuum_max_workers = 1
wal_keep_size = '128MB'
CONF
	$primary->start;
	$primary->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int PRIMARY KEY, v int) USING nvm;
CREATE TABLE h (id bigint);
INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i;
SQL
	$primary->backup('b');
	my $standby = PostgreSQL::Test::Cluster->new('standby');
	$standby->init_from_backup($primary, 'b', has_streaming => 1);
	$standby->append_conf('postgresql.conf', "shared_preload_libraries = ''\nhot_standby_feedback = on");
	# settings of a library that is not loaded are placeholders
	$standby->start;
	foreach my $i (1 .. 2)
	{
		work($primary, 20);
		$primary->crash;
		$primary->start;
		$primary->safe_psql('postgres', "INSERT INTO h VALUES ($i)");
		like($primary->log_since_start, qr/nvm: skipped \d{4,} transaction IDs/, "crash $i of a primary: skipped");
		ok($primary->wait_for_catchup($standby) // 1, "crash $i: the standby follows");
		is($standby->safe_psql('postgres', 'SELECT count(*) FROM h'), $i, "crash $i: and sees what comes after");

		# its walsender's xmin is no transaction that stands on anything
		ok($primary->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_stat_replication WHERE backend_xmin IS NOT NULL'),
			"crash $i: the standby's xmin holds");
		ok($primary->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps'), "crash $i: the collector drops the gaps");
	}
	unlike(slurp_file($standby->logfile), qr/KnownAssignedXids/, 'it has room');
	$standby->stop;
	$primary->stop;
}

done_testing();

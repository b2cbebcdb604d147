# Copyright (c) 2026, pg_nvm contributors

# Who waits for the log, for what, and when.  A preloaded library counts syncs of the log,
# makes them slow, and holds one until it is told to go on.
#
#  1. a row that all update costs no sync each; notifiers do not wait for each other
#  2. who waits has no locks, and others see what it has done; readers wait at their end
#  3. who does not wait makes nothing durable elsewhere before that is persistent
#  4. what parallel workers have read counts for their leader
#  5. a cancel or a termination ends the wait, and the commit stands
#  6. what a deletion that is not persistent has deleted is not dead

use strict;
use warnings;

use NvmLog;
use NvmMemory;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $dir  = PostgreSQL::Test::Utils::tempdir();
my $usec = 20_000;

# nobody but those who wait is to write the log
my $node = NvmMemory::start_dram('waiting', sync_dir => $dir, env => { NVM_SYNC_USEC => $usec }, conf => <<CONF, sql => <<SQL);
nvm_dram.log = on
fsync = on
autovacuum = off
max_connections = 60
wal_writer_delay = 10s
nvm.horizon_naptime = 50ms
CONF
CREATE TABLE t (id int PRIMARY KEY, v int) USING nvm_dram;
CREATE TABLE scanned (id int, v int) USING nvm_dram;
CREATE TABLE held (id int, v int) USING nvm_dram;
CREATE TABLE hashed (id int, v int) USING nvm_dram;
CREATE INDEX hashed_v ON hashed USING hash (v);
CREATE TABLE h (id int) USING heap;
CREATE TABLE p (id int) USING nvm;
INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i;
INSERT INTO scanned SELECT i, 0 FROM generate_series(1, 5000) i;
INSERT INTO held VALUES (1, 0);
INSERT INTO hashed SELECT i, i FROM generate_series(1, 100) i;
VACUUM ANALYZE;
SQL

# the postmaster's exit syncs, too
END { unlink("$dir/log-hold") if defined $dir; }

sub touch_file { append_to_file("$dir/$_[0]", ''); return; }

sub pgbench
{
	my ($name, $script, @options) = @_;
	append_to_file("$dir/$name.sql", $script);
	my $ok = IPC::Run::run([ 'pgbench', '-n', @options, '-f', "$dir/$name.sql", $node->connstr('postgres') ], '>', \my $out, '2>', \my $err);
	ok($ok, "$name: pgbench succeeds") or diag("$out$err");
	return $out =~ /actually processed: (\d+)/ ? $1 : 0;
}

# ---------------------------------------------------------------- 1. many at once

touch_file('log-slow');
my $syncs = -s "$dir/log-calls" // 0;
my $commits = pgbench('hot', "UPDATE t SET v = v + 1 WHERE id = 1;\n", '-c', 16, '-j', 2, '-T', NvmTest::is_long() ? 20 : 2);
$syncs = (-s "$dir/log-calls" // 0) - $syncs;
note("$commits commits, $syncs syncs");
cmp_ok($commits, '>', 3 * $syncs, 'a row that all update: more than three commits a sync');
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 1'), $commits, 'and none is lost');
# a deadlock would be found, but not with an LWLock in it
my $notes = pgbench('notify', "BEGIN;\nUPDATE t SET v = v + 1 WHERE id = 2 + :client_id % 2;\nNOTIFY news;\nCOMMIT;\n", '-c', 4, '-j', 2, '-t', 20);
is($notes, 80, 'all notifiers come to their end');
is($node->safe_psql('postgres', 'SELECT sum(v) FROM t WHERE id IN (2, 3)'), 80, 'with what they did');

# Clients of which each has a row of its own.  Nobody waits for others with nvm.log_delay = 0:
# they fall into two groups, and each sync serves one.
my %group;
for my $delay (0, -1)
{
	local $ENV{PGOPTIONS} = "-c nvm.log_delay=$delay";
	my $before  = -s "$dir/log-calls";
	my $commits = pgbench("own_$delay", "UPDATE t SET v = v + 1 WHERE id = 4 + :client_id;\n", '-c', 8, '-j', 2, '-T', NvmTest::is_long() ? 20 : 2);
	$group{$delay} = $commits / ((-s "$dir/log-calls") - $before);
}
note(sprintf('commits a sync: %.1f, gathered %.1f', $group{0}, $group{-1}));
cmp_ok($group{-1}, '>', 1.25 * $group{0}, 'a sync serves those who commit all the time together');
unlink("$dir/log-slow") or die;

# ---------------------------------------------------------------- a sync that is held

my $holder = $node->session;

# From here on nothing becomes persistent, and somebody else writes.
sub hold
{
	touch_file('log-hold');
	$holder->send('UPDATE held SET v = v + 1');
	NvmTest::wait_until('a sync', sub { -e "$dir/log-held" });
	# longer than a round that is waited for without a look at cancels
	usleep(100_000);
	return;
}

sub release
{
	unlink("$dir/log-hold") or die;
	$holder->sql('SELECT 1');
	unlink("$dir/log-held") or die;
	return;
}

sub state_of
{
	return $node->safe_psql('postgres', "SELECT state || ' ' || coalesce(wait_event_type, '') FROM pg_stat_activity WHERE pid = $_[0]");
}

# The session's statement waits for the log: it sleeps, and sleeps on.
sub waits
{
	my ($session, $sql, $name) = @_;
	$session->send($sql);
	NvmTest::wait_until($name, sub { state_of($session->pid) =~ /^active Extension/ });
	usleep(300_000);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return is(state_of($session->pid), 'active Extension', $name);
}

sub goes_on
{
	my ($session, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return like($session->sql("SELECT 'goes on'"), qr/goes on/, $name);
}

# who asks the others how they are reads no rows, and has never done so
$node->safe_psql('postgres', 'SELECT 1');

# ---------------------------------------------------------------- 2. what others see

my ($writer, $reader, $third) = map { $node->session } 1 .. 3;
hold();
waits($writer, 'UPDATE t SET v = 77 WHERE id = 4', 'a commit waits');
is($reader->sql('BEGIN; SELECT v FROM t WHERE id = 4'), '77', 'others see its row');
waits($reader, 'COMMIT', 'and wait when they end');
is($third->sql('BEGIN; UPDATE t SET v = 78 WHERE id = 4 RETURNING v'), '78', 'its row lock is free');
is($third->sql('SELECT count(*) FROM pg_locks WHERE pid = ' . $writer->pid), '0', 'and all other locks');
$third->sql('ROLLBACK');
my $fresh = $node->session('BEGIN', 'SELECT v FROM t WHERE id = 5');
is($fresh->sql("COMMIT; SELECT 'free'"), 'free', 'who has read other rows does not wait');
release();
goes_on($_->[0], "$_->[1] goes on when it is persistent") foreach ([ $writer, 'the writer' ], [ $reader, 'the reader' ]);

# ---------------------------------------------------------------- 3. synchronous_commit = off

my %durable = (
	'a write to heap'      => 'INSERT INTO h VALUES (1)',
	'a write to the pool'  => 'INSERT INTO p VALUES (1)',
	'a notification alone' => 'NOTIFY news',
	'DDL'                  => 'CREATE TABLE made (a int)',
);
foreach my $what (sort keys %durable)
{
	my $lazy = $node->session('SET synchronous_commit = off');
	hold();
	is($lazy->sql('UPDATE t SET v = v + 1 WHERE id = 6; SELECT 1'), '1', "$what: who does not want to wait does not");
	waits($lazy, $durable{$what}, "$what waits for what the session has committed");
	release();
	goes_on($lazy, "$what: until it is persistent");

	hold();
	$third->sql('SET synchronous_commit = off');
	$third->sql('UPDATE t SET v = 100 WHERE id = 7');
	is($lazy->sql('SELECT v FROM t WHERE id = 7'), '100', "$what: a reader does not wait, either");
	is($lazy->sql('UPDATE t SET v = v + 1 WHERE id = 8 RETURNING 8'), '8', "$what: nor does a write to the region");
	waits($lazy, $durable{$what} =~ s/made/more/r, "$what waits for what the session has read");
	is($third->sql('SELECT count(*) FROM h WHERE id > 1'), '0', "$what: nothing of it is there");
	release();
	goes_on($lazy, "$what: until that is persistent");
	$lazy->drop;
}
is($node->safe_psql('postgres', 'SELECT (SELECT count(*) FROM h), (SELECT count(*) FROM p)'), '2|2', 'all is there');

# ---------------------------------------------------------------- 4. parallel workers

my $leader = $node->session('SET synchronous_commit = off', 'SET parallel_setup_cost = 0', 'SET parallel_tuple_cost = 0',
	'SET parallel_leader_participation = off', 'SET min_parallel_table_scan_size = 0');
hold();
$third->sql('UPDATE scanned SET v = 1 WHERE id = 4321');
my $plan = $leader->sql('EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF) SELECT sum(v) FROM scanned');
like($plan, qr/Workers Launched: [1-9]/, 'workers scan the table') or diag($plan);
is($leader->sql('SELECT sum(v) FROM scanned'), '1', 'and see a row that is not persistent');
waits($leader, 'INSERT INTO h VALUES (1)', 'the leader, who has read none, waits before it writes heap');
release();
goes_on($leader, 'until that is persistent');

# ---------------------------------------------------------------- 5. cancel, and termination

my $doomed = $node->session;
hold();
$writer->sql("SET statement_timeout = '200ms'");
waits($writer, 'UPDATE t SET v = 200 WHERE id = 9 RETURNING v', 'a commit waits, whatever statement_timeout says');
waits($doomed, 'UPDATE t SET v = 200 WHERE id = 10', 'so does another');
unlike($node->log_since_start, qr/canceling/, 'nothing is cancelled');
$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $writer->pid . ')');
NvmTest::wait_until('a cancel', sub { state_of($writer->pid) =~ /^idle/ });
like($node->log_since_start, qr/WARNING:  canceling wait for the log due to user request\n.*DETAIL:  The transaction has already committed/, 'a cancel ends the wait with a warning');
$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $doomed->pid . ')');
NvmTest::wait_until('a termination', sub { state_of($doomed->pid) eq '' });
like($node->log_since_start, qr/WARNING:  canceling the wait for the log and terminating connection/, 'a termination ends it, too');
$doomed->drop;
is($third->sql('SELECT id, v FROM t WHERE id IN (9, 10) ORDER BY id'), "9|200\n10|200", 'both rows are there');
release();
like($writer->sql("SELECT 'goes on'"), qr/^200\n.*goes on/s, 'and the client was told');

# ---------------------------------------------------------------- 6. what is dead

sub entries
{
	return $third->sql(q{SELECT sum(live_items + dead_items) FROM generate_series(1, pg_relation_size('hashed_v') / 8192 - 1) b,
		LATERAL hash_page_type(get_raw_page('hashed_v', b::int)) y,
		LATERAL (SELECT * FROM hash_page_stats(get_raw_page('hashed_v', b::int)) WHERE y IN ('bucket', 'overflow')) s});
}

# read through the index, and removed from it if it is dead
my $by_index = 'SELECT count(*) FROM generate_series(1, 50) i, LATERAL (SELECT FROM hashed WHERE v = i) d';
my $inspect = $node->psql('postgres', 'CREATE EXTENSION pageinspect') == 0;
# no catalog page is to be pruned later: that is WAL, and who has written WAL waits
$node->safe_psql('postgres', 'VACUUM');
$third->sql("SET enable_seqscan = off; SET enable_bitmapscan = off; DELETE FROM hashed WHERE id = -1; $by_index");
entries() if $inspect;
my $vacuum = $node->session('SET log_min_messages = info', 'SET synchronous_commit = off');
hold();
is($third->sql('DELETE FROM hashed WHERE id <= 50; SELECT count(*) FROM hashed'), '50', 'rows are deleted, which is not persistent');
is($third->sql("$by_index; $by_index"), "0\n0", 'an index scan finds none');
$vacuum->send('VACUUM (VERBOSE, INDEX_CLEANUP on) hashed');
NvmTest::wait_until('VACUUM', sub { $node->log_since_start =~ /tuples: .* removed/ || state_of($vacuum->pid) =~ /Extension/ });
SKIP:
{
	skip 'pageinspect is not installed', 1 unless $inspect;
	is(entries(), '100', 'no entry is dead or gone');
}
release();
goes_on($vacuum, 'VACUUM ends');
like($node->log_since_start, qr/tuples: 0 removed, 100 remain, 50 are dead but not yet removable/, 'it has removed no row');
my $err = '';
NvmTest::wait_until('VACUUM when it is persistent', sub { ($node->psql('postgres', 'VACUUM (VERBOSE, INDEX_CLEANUP on) hashed', stderr => \$err), $err =~ /tuples: 50 removed/)[-1] });
SKIP:
{
	skip 'pageinspect is not installed', 1 unless $inspect;
	is(entries(), '50', 'then they are removed, and their entries');
}

$node->check_clean('in the end');
is(NvmLog::dump_of($node->data_dir . '/pg_nvm_log')->{problem}, '', 'and the log is whole');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# nvm.persist_method = msync: one sync of the pool file serves all who wait for
# it.  A preloaded library makes syncs slow, counts them, makes one fail, and
# keeps what the medium would have: the file as of the last sync.
#
#  1. many commits make fewer syncs than there are, a lone one its own two
#  2. a power failure keeps what was acknowledged, and nothing by halves
#  3. who waits cannot be talked out of it; the leader is stopped meanwhile
#  4. the leader is killed
#  5. a sync fails once: everybody's PANIC
#  6. parallel workers, CREATE INDEX, VACUUM and checkpoints beside writers
#  7. the fsync of a growing file fails: the error is everybody's, too

use strict;
use warnings;

use FindBin;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $clients = 16;
my $dir     = PostgreSQL::Test::Utils::tempdir();
my $library = "$FindBin::RealBin/../../tools/nvm_sync.so";
die "$library is missing" unless -e $library;

my $node = NvmTest->new('group');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
nvm.persist_method = msync
max_connections = 40
restart_after_crash = on
# on from the second part on: it would be counted in the first one
autovacuum = off
autovacuum_naptime = 1s
max_parallel_maintenance_workers = 2
min_parallel_table_scan_size = 0
CONF

sub start
{
	local $ENV{LD_PRELOAD}    = $library;
	local $ENV{NVM_SYNC_DIR}  = $dir;
	local $ENV{NVM_SYNC_USEC} = 3000;
	$node->start;
	return;
}

sub touch_file { append_to_file("$dir/$_[0]", ''); return; }

# syncs, fences that waited, those that joined, commits; calls of fdatasync
sub counts
{
	my @n = split /\|/, $node->safe_psql('postgres', 'SELECT syncs, sync_waits, syncs_joined, commits FROM nvm.stat_wbl');
	return (@n, -s "$dir/calls" // 0);
}

my $round = 0;

# each transaction: an insertion and an update of the client's own row
sub load
{
	my (%params) = @_;
	my $first = 1000 * ++$round;
	return $node->start_load(clients => $clients, %params, sql => sub {
		my ($client, $n) = @_;
		my $who = $first + $client;
		return "BEGIN; INSERT INTO did VALUES ($who, $n); UPDATE last SET n = $n WHERE client = $who % 1000; COMMIT;";
	});
}

# what was acknowledged is there; the two tables agree
sub check_load
{
	my ($load, $name) = @_;
	my $first = 1000 * $round;
	$load->check('postgres', "SELECT client - $first, n FROM did WHERE client > $first", name => $name);
	is($node->safe_psql('postgres', <<SQL), '', "$name: both halves of each transaction");
SELECT client, n, m FROM last JOIN (SELECT client - $first AS client, max(n) AS m FROM did
	WHERE client > $first GROUP BY 1) d USING (client) WHERE n IS DISTINCT FROM m
SQL
	$node->check_clean($name);
	return;
}

start();
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE TABLE did (client int, n int) USING nvm;
CREATE TABLE last (client int PRIMARY KEY, n int) USING nvm;
INSERT INTO last SELECT g, 0 FROM generate_series(1, $clients) g;
CREATE TABLE lone (n int) USING nvm;
SQL

# ---- 1. fewer syncs than commits
{
	my $each   = 25;
	my @before = counts();
	my $load   = load(transactions => $each);
	my %done   = $load->finish;
	my @after  = counts();
	my ($syncs, $waits, $joined, $commits, $calls) = map { $after[$_] - $before[$_] } 0 .. 4;

	is(scalar(grep { $_ == $each } values %done), $clients, 'all commits were acknowledged') or diag($load->errors);
	is($commits, $each * $clients, 'commits are counted');
	cmp_ok($waits, '>=', 2 * $commits, "each commit waited twice ($waits waits of $commits commits)");
	cmp_ok($syncs, '<', $commits, "with $clients clients there were fewer syncs ($syncs) than commits");
	cmp_ok($syncs * ($clients + 8), '>=', $waits, 'and each served a process once');
	is($waits - $joined, $syncs, 'who did not join a sync made one');
	# the server's own processes may come between the two counts
	cmp_ok(abs($calls - $syncs), '<=', 10, 'syncs are what was asked of the kernel');
	check_load($load, 'many clients');

	my $session = $node->session;
	@before = counts();
	$session->sql("INSERT INTO lone VALUES ($_)") foreach 1 .. 10;
	@after = counts();
	cmp_ok($after[0] - $before[0], '>=', 20, 'a client alone has two syncs a commit');
	$session->drop;
}
$node->set_conf(autovacuum => 'on');
$node->reload;

# ---- 2. the power fails: what is left is the file as of the last sync
foreach my $try (1 .. (NvmTest::is_long() ? 10 : 2))
{
	touch_file('image');
	my $load = load();
	$load->wait_acknowledged(60 + 20 * $try);
	$node->crash;
	system_or_bail('cp', "$dir/durable", $node->pool_file);		# into the file, which keeps its inode
	unlink "$dir/image", "$dir/durable";
	start();
	check_load($load, "power failure $try");
}

# ---- 3. nobody is talked out of waiting
{
	# a worker that syncs block after block would lead in the leader's place
	$node->set_conf(autovacuum => 'off');
	$node->reload;
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'")
	  or die 'autovacuum does not end';

	# they own their commit slots, which is waited for under another lock
	my @insert = map { "INSERT INTO lone VALUES ($_)" } 97 .. 99;
	my $leader = $node->session($insert[0]);
	my $waiter = $node->session($insert[1]);
	# long enough that it waits for the sync by then
	my $other = $node->session($insert[2], "SET statement_timeout = '5s'");

	$leader->stop_at('msync-begin', 'INSERT INTO lone VALUES (100)');
	$waiter->send('INSERT INTO lone VALUES (101)');
	$other->send('INSERT INTO lone VALUES (102)');
	my $pids    = join ',', $waiter->pid, $other->pid;
	my $waiting = "SELECT count(*) = 2 FROM pg_stat_activity WHERE pid IN ($pids) AND wait_event_type = 'LWLock' AND wait_event = 'nvm_pmem'";
	$node->poll_query_until('postgres', $waiting) or die 'nobody waits';
	$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $waiter->pid . ')');
	$node->poll_query_until('postgres', "SELECT clock_timestamp() > query_start + interval '5.3 s' FROM pg_stat_activity WHERE pid = " . $other->pid) or die;
	is($node->safe_psql('postgres', $waiting), 't', 'cancelled and timed out, they wait for the sync');
	$node->safe_psql('postgres', 'SELECT pg_terminate_backend(' . $waiter->pid . ')');
	usleep(300_000);
	is($node->safe_psql('postgres', $waiting), 't', 'terminated, too');
	$leader->go_on;
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $waiter->pid)
	  or die 'the terminated session does not end';
	is($node->safe_psql('postgres', 'SELECT count(*) FROM lone WHERE n = 100'), '1', 'the leader has committed');
	$_->drop foreach $leader, $waiter, $other;
	$node->check_clean('interrupts');
	$node->set_conf(autovacuum => 'on');
	$node->reload;
}

# ---- 4. the leader is killed while others wait for it
{
	my $load   = load();
	my $leader = $node->session;
	$load->wait_acknowledged(30);
	# sooner or later it leads
	$leader->stop_at('msync-begin', <<SQL);
DO \$\$BEGIN FOR i IN 1 .. 100000 LOOP INSERT INTO lone VALUES (200); COMMIT; END LOOP; END\$\$
SQL
	my $opened = $node->times_opened;
	kill('KILL', $leader->pid);
	$load->finish;
	$node->wait_reopened($opened);
	like($node->log_since_start, qr/terminated by signal 9/, 'the leader was killed');
	check_load($load, 'leader killed');
	$leader->drop;
}

# ---- 5. a sync fails; the next ones would not
{
	my $load = load();
	$load->wait_acknowledged(30);
	my $opened = $node->times_opened;
	touch_file('fail');
	$load->finish;
	$node->wait_reopened($opened);
	like($node->log_since_start, qr/PANIC:  could not write back the persistent pool: Input\/output error/, 'a failing sync is a PANIC');
	ok(!-e "$dir/fail", 'it failed once');
	check_load($load, 'failed sync');
}

# ---- 6. everything else at once
{
	my $load = load();
	$load->wait_acknowledged(20);
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE many (a int, b text) USING nvm WITH (parallel_workers = 2);
INSERT INTO many SELECT g, 'text ' || g FROM generate_series(1, 5000) g;
CREATE INDEX many_a ON many (a);
CHECKPOINT;
DELETE FROM many WHERE a % 3 = 0;
SQL
	$node->safe_psql('postgres', 'VACUUM (PARALLEL 2) many');
	$node->safe_psql('postgres', 'VACUUM last; VACUUM did; CHECKPOINT');
	is($node->safe_psql('postgres', "$NvmTest::force_parallel; SELECT count(*) FROM many"), '3334', 'parallel workers count');
	$node->crash;
	start();
	check_load($load, 'maintenance, and a crash');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM many'), '3334', 'rows of the bulk load');
}

# ---- 7. an error that the kernel tells the fsync of a growing file is told no sync
{
	my $grower = $node->session('CREATE TABLE big (b text) USING nvm');
	my $writer = $node->session('INSERT INTO lone VALUES (300)');

	touch_file('hold');
	$grower->send(q{INSERT INTO big SELECT repeat('b', 2000) FROM generate_series(1, 500000) g});
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	usleep(20_000) while !-e "$dir/held" && time() < $end;
	ok(-e "$dir/held", 'the file grows');
	$writer->send('INSERT INTO lone VALUES (301)');
	my $state = 'FROM pg_stat_activity WHERE pid = ' . $writer->pid;
	# idle it is also before it has begun
	$node->poll_query_until('postgres', "SELECT query ~ '301' AND (wait_event IS NOT DISTINCT FROM 'nvm_pmem' OR state = 'idle') $state") or die 'it does nothing';
	is($node->safe_psql('postgres', "SELECT state, wait_event $state"), 'active|nvm_pmem', 'nothing is acknowledged before the outcome is known');
	my $opened = $node->times_opened;
	unlink "$dir/hold";
	$node->wait_reopened($opened);
	like($node->log_since_start, qr/PANIC:  could not write back the persistent pool: Input\/output error/, 'a failing fsync is a PANIC');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM lone WHERE n = 300'), '1', 'what was acknowledged before');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM big'), '0', 'the growing transaction has not committed');
	$node->check_clean('failed fsync');
	$_->drop foreach $grower, $writer;
}

$node->stop;
done_testing();

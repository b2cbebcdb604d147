# Copyright (c) 2026, pg_nvm contributors

# Our share of a restart after a kill depends neither on how many transactions
# there were nor on how large the tables are; and PostgreSQL's own redo is kept
# short by checkpoints that nvm.redo_limit asks for.
# contrib_bench does the same at full size.
#
# Long form: 3 million commits and a table of 5 GB, here 300,000 and 1 GB.

use strict;
use warnings;

use List::Util qw(min);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $commits  = NvmTest::is_long() ? 3_000_000 : 300_000;
my $megabyte = NvmTest::is_long() ? 5000      : 1000;
my $limit_us = NvmTest::is_instrumented() ? 1_000_000 : 5000;

my $node = NvmTest->new('restart');
$node->init(NvmTest::large_pool($node, $megabyte + 1500));
my $pool_limit = 2 * $megabyte;
$node->set_conf('nvm.pool_max_size' => "'${pool_limit}MB'");
$node->append_conf('postgresql.conf', <<CONF);
autovacuum = off
checkpoint_timeout = 1h
max_wal_size = 10GB
nvm.redo_limit = 0
CONF
$node->start;
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int, v int) USING nvm;
INSERT INTO t SELECT i, 0 FROM generate_series(1, 100) i;
CREATE PROCEDURE work(n int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN 1 .. n LOOP
		UPDATE t SET v = v + 1 WHERE id = 1;
		COMMIT;
	END LOOP;
END\$\$;
CREATE TABLE large (t text) USING nvm;
ALTER TABLE large ALTER t SET STORAGE EXTERNAL;
SQL

# Kill and start; a transaction is open at each kill.  The least of a few times,
# of more if need be, for the machine may have other things to do.
sub restart_time
{
	my ($name, $v) = @_;
	my @times;

	foreach my $try (1 .. 8)
	{
		my $session = $node->session('BEGIN', 'UPDATE t SET v = -1');
		$node->crash;
		$session->drop;
		$node->start;
		my ($us, $parts) = split /\|/, $node->safe_psql('postgres', <<SQL);
SELECT recovery_us + resolve_us + open_us, format('open %s, recovery %s, resolve %s us', open_us, recovery_us, resolve_us)
FROM nvm.recovery, nvm.pool
SQL
		like($node->log_since_start, qr/nvm: recovery found [1-9]\d* losers.* in \d+ us/, "$name: the log says so");
		note("$name: $parts");
		push @times, $us;
		is($node->safe_psql('postgres', 'SELECT count(*), max(v) FROM t'), "100|$v", "$name: rows are there");
		# the gap of one does not last until the next
		$node->poll_query_until('postgres', 'SELECT gaps = 0 FROM nvm.recovery');
		last if $us < $limit_us && $try > 1;
	}
	cmp_ok(min(@times), '<', $limit_us, "$name: our share is @times us");
	return min(@times);
}

$node->safe_psql('postgres', 'CALL work(1000)');
restart_time('1000 commits', 1000);

$node->safe_psql('postgres', "CALL work($commits)");
restart_time("$commits commits", 1000 + $commits);

$node->safe_psql('postgres', "INSERT INTO large SELECT repeat('x', 8000) FROM generate_series(1, $megabyte * 128)");
restart_time("a table of $megabyte MB", 1000 + $commits);
is($node->safe_psql('postgres', "SELECT bytes >= $megabyte * 1000000::bigint FROM nvm.relations WHERE relation = 'large'::regclass"),
	't', 'the table is that large');
$node->safe_psql('postgres', 'DROP TABLE large');

# redo
$node->set_conf('nvm.redo_limit' => "'1MB'");
$node->reload;
my $distance = 'pg_wal_lsn_diff(pg_current_wal_insert_lsn(), (SELECT redo_lsn FROM pg_control_checkpoint()))';
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', 'CREATE TABLE h (i int)');
$node->safe_psql('postgres', 'INSERT INTO h SELECT i FROM generate_series(1, 50000) i');
cmp_ok($node->safe_psql('postgres', "SELECT $distance"), '>', 1024 * 1024, 'a heap load writes more than the limit');
$node->safe_psql('postgres', 'SELECT pg_sleep(1)');
is($node->safe_psql('postgres', 'SELECT redo_checkpoints FROM nvm.activity'), '0',
	'and keeps the checkpoints that it has');
$node->safe_psql('postgres', 'CHECKPOINT');

my $requested = $node->pg_version >= 17 ?
  '(SELECT num_requested FROM pg_stat_checkpointer)' : '(SELECT checkpoints_req FROM pg_stat_bgwriter)';
my $before = $node->safe_psql('postgres', "SELECT $requested");
my $session = $node->session;
$session->send("CALL work($commits)");
$node->poll_query_until('postgres',
	"SELECT query LIKE 'CALL work%' FROM pg_stat_activity WHERE pid = $session->{pid}")
  or die 'the load did not begin';
my $largest = 0;
my $end = time + 10 * $PostgreSQL::Test::Utils::timeout_default;
while (time < $end)
{
	my ($running, $now) = split /\|/, $node->safe_psql('postgres',
		"SELECT count(*), $distance FROM pg_stat_activity WHERE pid = $session->{pid} AND state = 'active'");
	$largest = $now if $now > $largest;
	last unless $running;
	select(undef, undef, undef, 0.05);
}
ok($node->poll_query_until('postgres', "SELECT $distance <= 1024 * 1024"),
	'there is no more than the limit to redo after an nvm load');
my $asked = $node->safe_psql('postgres', 'SELECT redo_checkpoints FROM nvm.activity');
cmp_ok($asked, '>=', 2, "checkpoints were asked for: $asked");
# the statistics come a moment after the checkpoint
ok($node->poll_query_until('postgres', "SELECT $requested - $before >= redo_checkpoints FROM nvm.activity"), 'and made');
# a nap of the keeper and a checkpoint may pass on a busy machine
cmp_ok($largest, '<', $commits * 40, sprintf('the most there was to redo is %.1f MB', $largest / 1024 / 1024));
$node->crash;
$session->drop;
$node->start;
is($node->safe_psql('postgres', 'SELECT max(v) FROM t'), 1000 + 2 * $commits, 'all commits are there');
$node->check_clean('in the end');
$node->stop;

done_testing();

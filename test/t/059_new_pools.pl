# Copyright (c) 2026, pg_nvm contributors

# The beginning of a pool, when two servers make one in the same directory, and
# what becomes of it after very many starts.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $dir = NvmTest::pool_base() . '/new_pools';
my @nodes = map { NvmTest->new($_) } qw(first second);
foreach my $node (@nodes)
{
	$node->init(pool => $dir);
	$node->append_conf('postgresql.conf', "autovacuum = off\nnvm.pool_max_size = '512MB'\n");
}
my ($first, $second) = @nodes;
my $pool = $first->pool_file;

# ---- two servers at once

# a crash before anything is there
$first->set_conf('nvm.failpoint' => "'pool-create:crash'");
ok(!$first->start(fail_ok => 1), 'the server died when it was about to make a pool');
$first->_forget_postmaster;
ok(!-e $pool, 'there is none');

# the first one is about to make it when the second one starts
$first->set_conf('nvm.failpoint' => "'pool-create:sleep=1500'");
my $log_start = -s $first->logfile;
{
	local %ENV = $first->_get_env();
	system_or_bail('pg_ctl', '-W', '-D', $first->data_dir, '-l', $first->logfile, 'start');
}
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
usleep(2000) while time() < $end && slurp_file($first->logfile, $log_start) !~ /failpoint pool-create hit/;
$second->start;
$first->poll_query_until('postgres', 'SELECT true') or die 'the first server did not start';
$first->_update_pid(1);
foreach my $node (@nodes)
{
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');
}
is($first->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', 'the first server has a pool');
is($second->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'refused', 'the second one has none');
like($second->log_since_start, qr/in use by another server/, 'and the log says why');
$first->safe_psql('postgres', 'CREATE TABLE t (id int PRIMARY KEY, v int) USING nvm; INSERT INTO t SELECT i, 0 FROM generate_series(1, 500) i');
$first->set_conf('nvm.failpoint' => "''");
$first->restart;
is($first->safe_psql('postgres', 'SELECT count(*) FROM t'), '500', 'the pool is that of the first one');
ok(!-e "$pool.new", 'nothing else is left');
$first->stop;
$second->restart;
like($second->log_since_start, qr/belongs to another database cluster|was used by another copy/, 'not of the second one');
$second->stop;

# ---- the number of a start

my $node = $first;

# The next start is number n + 1.
sub started_before
{
	my ($n) = @_;
	$node->stop if defined $node->{_pid};
	system_or_bail($NvmTest::patch_tool, $pool, 'set', 'both', 'incarnation', $n);
	system_or_bail($NvmTest::patch_tool, $node->data_dir . '/pg_nvm_incarnation', 'incarnation', $n);
	$node->start;
	return;
}

sub number { return $node->safe_psql('postgres', 'SELECT incarnation FROM nvm.pool'); }

# Row locks, which carry the low bits of it, hold; rows are there.
sub works
{
	my ($name) = @_;
	my @sessions = map { $node->session('BEGIN') } 1 .. 2;

	$sessions[0]->sql('SELECT FROM t WHERE id = 1 FOR UPDATE');
	$sessions[1]->sql('SELECT FROM t WHERE id = 2 FOR SHARE');
	$node->fails_with('SELECT FROM t WHERE id = 1 FOR SHARE NOWAIT', qr/could not obtain lock/, "$name: a row is locked");
	$node->fails_with('SET lock_timeout = 100; DELETE FROM t WHERE id = 2', qr/lock timeout/, "$name: and one FOR SHARE");
	$_->drop foreach @sessions;
	$node->safe_psql('postgres', 'UPDATE t SET v = v + 1 WHERE id <= 100; UPDATE t SET v = v - 1 WHERE id <= 100');
	is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM t'), '500|0', "$name: the rows are there");
	$node->check_clean($name);
	return;
}

started_before(65534);
is(number(), '65535', 'the 65535th start');
works('the 65535th start');
$node->crash;
$node->start;
is(number(), '65537', 'after it, the next number whose low 16 bits are not zero');
works('the start after the 65535th');
$node->crash;
$node->start;
is(number(), '65538', 'after a crash');
works('the start after that');

started_before(4294967292);
is(number(), '4294967293', 'the last numbers');
works('the last numbers');
$node->restart;
is(number(), '4294967294', 'the last number');
$node->restart;
$node->fails_with('SELECT * FROM t', qr/was opened too often/, 'after that the pool is refused');
$node->stop;
PostgreSQL::Test::Utils::system_or_bail('rm', '-r', $dir);

done_testing();

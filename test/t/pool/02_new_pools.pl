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

# Start a server until it is stopped at a place; then let it go on.
sub start_until
{
	my ($node, $place) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	my $log_start = -s $node->logfile // 0;
	my $pid;

	$node->set_conf('nvm.failpoint' => "'$place:stop:1'");
	{
		local %ENV = $node->_get_env();
		system_or_bail('pg_ctl', '-W', '-D', $node->data_dir, '-l', $node->logfile, 'start');
	}
	usleep(2000) until ($pid) = (-e $node->logfile ? slurp_file($node->logfile, $log_start) : '') =~ /failpoint $place hit, pid (\d+)/ or time() >= $end;
	NvmTest::wait_stopped($pid // die "no server comes to $place");
	$node->set_conf('nvm.failpoint' => "''");
	return $pid;
}

sub goes_on
{
	my ($node, $pid) = @_;
	NvmTest::continue_process($pid);
	$node->poll_query_until('postgres', 'SELECT true') or die 'the server did not start';
	$node->_update_pid(1);
	return;
}

# the first one is about to make it when the second one starts
my $maker = start_until($first, 'pool-create');
$second->start;
goes_on($first, $maker);
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

# ---- two servers that have different names for the directory, and so for the pool

{
	my $shared = NvmTest::pool_base() . '/new_pools_shared';
	my ($outside, $inside) = map { NvmTest->new($_) } qw(outside inside);

	$outside->init(pool => $shared);
	$inside->init(pool => 'linked');
	mkdir($shared, 0700) or die $!;
	symlink($shared, $inside->data_dir . '/linked') or die $!;
	$_->append_conf('postgresql.conf', "autovacuum = off\nnvm.pool_max_size = '512MB'\n") foreach $outside, $inside;
	foreach my $case ([ $outside, $inside ], [ $inside, $outside ])
	{
		my ($quick, $slow) = @$case;
		my $name = $slow->name . ' is slow';

		# what creations under either name left when they were cut short
		append_to_file("$_.new", 'no pool') foreach map { $_->pool_file } @$case;

		# it has seen none
		my $pid = start_until($slow, 'pool-create-lock');
		$quick->start;
		goes_on($slow, $pid);
		is(join(' ', map { s,.*/,,r } glob("$shared/*")), $quick->pool_file =~ s,.*/,,r, "$name: there is one pool, and nothing else");
		foreach my $node ($quick, $slow)
		{
			$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS pg_nvm');
		}
		is($quick->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', "$name: it is the other's");
		is($slow->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'refused', "$name: and not its own");
		like($slow->log_since_start, qr/in use by another server/, "$name: and the log says why");
		$_->stop foreach $quick, $slow;
		# each is as it was before it had a pool
		unlink(glob("$shared/*"));
		unlink($quick->data_dir . '/pg_nvm_incarnation') or die $!;
	}
	rmdir($shared) or die $!;
}

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

# ---- marks of a start whose number has the same low 16 bits

# Offsets of the blocks of a relation's storage in the pool.
sub blocks_of
{
	my ($dir) = @_;
	my @extents = sort { $a->[5] <=> $b->[5] } grep { $_->[3] == 1 && $_->[4] == $dir }
	  map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $pool, 'extents' ]))[0];
	return map { my $e = $_; map { $e->[1] + $_ * 8192 } 0 .. $e->[2] - 1 } @extents;
}

my $low = 7;
started_before(3 * 65536 + $low - 1);
is(number() & 0xffff, $low, 'a start');
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE m (k int, v int) USING nvm;
CREATE INDEX m_k ON m USING nvm_btree (k);
INSERT INTO m SELECT i * 37 % 101, 0 FROM generate_series(1, 100) i;
UPDATE m SET v = 1 WHERE k = 5;
UPDATE m SET v = 2 WHERE k = 5;
SQL
my %dir = split /[|\n]/, $node->safe_psql('postgres', "SELECT relation, id FROM nvm.relations WHERE relation::text LIKE 'm%' AND NOT ended");
my $root = $node->safe_psql('postgres', "SELECT (ctid::text::point)[1]::int FROM m WHERE v = 0 ORDER BY ctid LIMIT 1");
$node->crash;

# what a loss of power may leave of them: an order that is not that of the
# entries, a page that is locked, a row whose newest version is no version
open(my $fh, '+<:raw', $pool) or die $!;
sub get { my ($at, $n, $format) = @_; seek($fh, $at, 0); read($fh, my $data, $n) == $n or die 'short read'; return unpack($format, $data); }
sub put { my ($at, $data) = @_; seek($fh, $at, 0); print $fh $data; return; }
my ($leaf) = grep { get($_, 4, 'L') == 0x5849564E } blocks_of($dir{m_k});
my ($nbase, $norder, $order_inc) = (get($leaf + 44, 2, 'S'), get($leaf + 48, 2, 'S'), get($leaf + 50, 2, 'S'));
is($order_inc, $low, 'a page with an order of that start');
is($norder, 100, 'of all entries');
my @order = get($leaf + 64 + 2 * $nbase, 2 * $norder, "S$norder");
put($leaf + 64 + 2 * $nbase, pack('S*', reverse @order));
put($leaf + 16, pack('Q', ($low << 48) | 1));
my ($block) = blocks_of($dir{m});
put($block + $root * 32 + 16, pack('Q', ($low << 48) | 252));
close $fh;

foreach my $where ('old-marks', 'old-marks-gone')
{
	system_or_bail($NvmTest::patch_tool, $pool, 'set', 'both', 'incarnation', 4 * 65536 + $low - 1);
	system_or_bail($NvmTest::patch_tool, $node->data_dir . '/pg_nvm_incarnation', 'incarnation', 4 * 65536 + $low - 1);
	$node->set_conf('nvm.failpoint' => "'$where:crash'");
	ok(!$node->start(fail_ok => 1), "the server died at $where");
	$node->_forget_postmaster;
}
$node->set_conf('nvm.failpoint' => "''");
started_before(4 * 65536 + $low - 1);
is(number() & 0xffff, $low, 'a start 65536 starts later');
like($node->log_since_start, qr/removing what the last 65535 starts have left/, 'which has removed them');
is($node->safe_psql('postgres', 'SELECT * FROM nvm.check(\'m\', true)'), '', 'nothing is wrong');
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SET statement_timeout = \'60s\'; SELECT count(*) FROM generate_series(1, 100) k, LATERAL (SELECT FROM m WHERE m.k = k.k OFFSET 0) x; SELECT k, v FROM m WHERE k = 5'),
	"100\n5|2", 'each key is found');
$node->safe_psql('postgres', 'INSERT INTO m VALUES (50, 3); UPDATE m SET v = 9 WHERE k = 7');
works('the start after that');
$node->stop;
$node->start;
unlike($node->log_since_start, qr/removing what the last/, 'once is enough');

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

# Copyright (c) 2026, pg_nvm contributors

# PMEM_NO_FLUSH in the server's environment makes nothing of libpmem's flushes: with
# method pmem the pool is refused, says why, and is not touched.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->new('noflush');
$node->init;
chomp(my $type = `stat -f -c %T '@{[ NvmTest::pool_base() ]}'`);
plan skip_all => 'the pools of tests are not on tmpfs' if $type ne 'tmpfs';

my $status = 'SELECT status, persist_method, reason FROM nvm.pool';
{
	# also for a pool that there has never been
	local $ENV{PMEM_NO_FLUSH} = 1;
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');
	like($node->safe_psql('postgres', $status), qr/^refused\|.*PMEM_NO_FLUSH/, 'a new pool: refused');
	$node->fails_with('CREATE TABLE t (id int) USING nvm', qr/PMEM_NO_FLUSH.*HINT:.*Start the server without PMEM_NO_FLUSH/s,
		'an access says what to do');
	$node->stop;
}

$node->start;
like($node->safe_psql('postgres', $status), qr/^open\|pmem\|$/, 'without it the pool is made');
$node->safe_psql('postgres', q(CREATE TABLE t (id int PRIMARY KEY, v text) USING nvm;
	INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 1000) g));
my $incarnation = $node->safe_psql('postgres', 'SELECT incarnation FROM nvm.pool');

foreach my $value ('1', '2', '')
{
	local $ENV{PMEM_NO_FLUSH} = $value;
	$node->restart;
	like($node->safe_psql('postgres', $status), qr/^refused\|.*PMEM_NO_FLUSH/, "PMEM_NO_FLUSH='$value': refused");
	$node->fails_with('SELECT count(*) FROM t', qr/PMEM_NO_FLUSH/, 'a query says why');
	unlike($node->log_since_start, qr/nvm.reset_pool|\.\.$/m, 'nothing to give up; one period at the end');
}

# nvm.reset_pool() does not give up what a setting hides
{
	local $ENV{PMEM_NO_FLUSH} = 1;
	$node->restart;
	$node->fails_with('SELECT nvm.reset_pool()', qr/not available, but not lost/, 'nothing is lost');
	$node->stop;
	# other methods do not ask libpmem
	$node->set_conf('nvm.persist_method' => 'msync');
	$node->start;
	is($node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'), '1000|500500', 'msync does not mind');
	$node->stop;
	$node->set_conf('nvm.persist_method' => 'auto');
}
{
	local $ENV{PMEM_NO_FLUSH} = 0;
	$node->start;
	like($node->safe_psql('postgres', $status), qr/^open\|pmem\|$/, '0 makes libpmem flush');
	is($node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'), '1000|500500', 'the rows are there');
	is($node->safe_psql('postgres', 'SELECT incarnation FROM nvm.pool'), $incarnation + 2,
		'refused starts were none of the pool');
	$node->check_clean('in the end');
	$node->stop;
}

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# A pool on a disk: what nvm.persist_method = auto makes of it, whatever libpmem is
# told to believe; that pmem is refused there, says why, and harms nothing; growth of
# the pool, which syncs the file by itself; nvm.emulated_flush_delay.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->new('methods');
my $disk = NvmTest::disk_dir($node);
chomp(my $type = `stat -f -c %T '$disk'`);

plan skip_all => "the tests' directory is on tmpfs, not on a disk" if $type eq 'tmpfs';

$node->init(pool => "$disk/pool");
$node->append_conf('postgresql.conf', "nvm.persist_method = auto\nautovacuum = off\n");
$node->start;
$node->safe_psql('postgres', q(CREATE EXTENSION pg_nvm;
	CREATE TABLE t (id int PRIMARY KEY, v text) USING nvm;
	ALTER TABLE t ALTER v SET STORAGE EXTERNAL;
	INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 1000) g));
my $contents = 'SELECT count(*), sum(id), sum(length(v)), md5(string_agg(md5(v), \'\' ORDER BY id)) FROM t';
my $method = 'SELECT status, persist_method, medium_is_volatile FROM nvm.pool';
my $auto = $node->safe_psql('postgres', $method);
like($auto, qr/^open\|(msync|pmem)\|f$/, "auto, on $type");

SKIP:
{
	# where MAP_SYNC is to be had, it is persistent memory indeed
	skip 'this is persistent memory', 11 if $auto =~ /pmem/;
	my $want = $node->safe_psql('postgres', $contents);

	like($node->log_since_start, qr/WARNING:  NVM pool ".*" is not on persistent memory: .*\n.*HINT:  Set nvm\.pool_directory/, 'the start says so, and what to do');
	foreach my $force (0, 1)
	{
		local $ENV{PMEM_IS_PMEM_FORCE} = $force;
		$node->restart;
		is($node->safe_psql('postgres', $method), 'open|msync|f', "libpmem is told $force: msync");
	}

	# pmem is no method for such a file, whatever libpmem says
	{
		local $ENV{PMEM_IS_PMEM_FORCE} = 1;
		$node->stop;
		$node->set_conf('nvm.persist_method' => 'pmem');
		$node->start;
		like($node->safe_psql('postgres', 'SELECT status, reason FROM nvm.pool'), qr/^refused\|.*MAP_SYNC/s,
			'pmem is refused');
		$node->fails_with('SELECT * FROM t', qr/MAP_SYNC/, 'a query says why');
		$node->stop;
		$node->set_conf('nvm.persist_method' => 'msync');
		$node->start;
		is($node->safe_psql('postgres', $contents), $want, 'nothing has happened to the rows');
	}

	# beyond the first chunk of 64 MB, and a crash
	my $size = $node->safe_psql('postgres', 'SELECT size FROM nvm.pool');
	$node->safe_psql('postgres', q(INSERT INTO t VALUES (0, repeat('grown', 14000000))));
	$want = $node->safe_psql('postgres', $contents);
	cmp_ok($node->safe_psql('postgres', 'SELECT size FROM nvm.pool'), '>', $size, 'the pool has grown');
	$node->crash;
	$node->start;
	is($node->safe_psql('postgres', $contents), $want, 'what made it grow is there after a crash');
	$node->check_clean('grown');
}

# each fence of a commit takes that long, at least
my $took = $node->safe_psql('postgres', q(
	SET nvm.emulated_flush_delay = 5000000;
	CREATE TEMP TABLE took (began timestamptz) USING heap;
	INSERT INTO took VALUES (clock_timestamp());
	DO $$BEGIN FOR i IN 1 .. 10 LOOP UPDATE t SET v = 'delayed' WHERE id = i; COMMIT; END LOOP; END$$;
	SELECT extract(epoch FROM clock_timestamp() - began) FROM took));
cmp_ok($took, '>=', 0.05, 'ten commits with a delay of 5 ms');

$node->stop;
done_testing();

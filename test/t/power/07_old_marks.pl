# Copyright (c) 2026, pg_nvm contributors

# The first start of 65535 removes the marks of a run that earlier ones have left.
# It is killed when it has stored all that, and not fenced it; the next one finds
# no mark.  Power fails, and the media has them still.  A start that has the same
# low 16 bits must not believe them.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->new('marks');
$node->init(simulate => 1);
$node->set_conf('nvm.persist_method' => 'auto');
$node->append_conf('postgresql.conf', <<CONF);
autovacuum = off
fsync = off
nvm.simulate_settle = off
CONF

my $low = 3;
foreach my $n (1 .. $low)
{
	$node->start;
	$node->safe_psql('postgres', <<SQL) if $n == 1;
CREATE EXTENSION pg_nvm;
CREATE TABLE m (k int) USING nvm;
CREATE INDEX m_k ON m USING nvm_btree (k);
SQL
	$node->safe_psql('postgres', 'INSERT INTO m SELECT generate_series(1, 100)') if $n == $low;
	is($node->safe_psql('postgres', 'SELECT incarnation FROM nvm.pool'), $n, "start $n");
	last if $n == $low;
	$node->stop;
}
my $dir = $node->safe_psql('postgres', "SELECT id FROM nvm.relations WHERE relation::text = 'm_k' AND NOT ended");
$node->stop;

# a leaf that somebody has locked
my $pool = $node->pool_file;
my ($leaf);
open(my $fh, '+<:raw', $pool) or die $!;
foreach my $line (split /\n/, (run_command([ $NvmTest::patch_tool, $pool, 'extents' ]))[0])
{
	my @e = split ' ', $line;
	next unless $e[3] == 1 && $e[4] == $dir;
	foreach my $at (map { $e[1] + $_ * 8192 } 0 .. $e[2] - 1)
	{
		seek($fh, $at, 0);
		read($fh, my $data, 4) == 4 or die 'short read';
		$leaf = $at if unpack('L', $data) == 0x5849564E;
	}
}
ok(defined $leaf, 'the leaf is found');
seek($fh, $leaf + 16, 0);
print $fh pack('Q', ($low << 48) | 1);
close $fh;

# 65536 is no start's number
system_or_bail($NvmTest::patch_tool, $pool, 'set', 'both', 'incarnation', 65536);
system_or_bail($NvmTest::patch_tool, $node->data_dir . '/pg_nvm_incarnation', 'incarnation', 65536);
$node->set_conf('nvm.persist_method' => 'simulate', 'nvm.failpoint' => "'old-marks-gone:crash'");
ok(!$node->start(fail_ok => 1), 'the start that removes marks is killed');
$node->_forget_postmaster;
$node->set_conf('nvm.failpoint' => "''");
$node->start;
is($node->safe_psql('postgres', 'SELECT incarnation FROM nvm.pool'), '65538', 'the next one');
$node->power_failure(seed => 1, mode => 'durable');

$node->start;
is($node->safe_psql('postgres', 'SELECT incarnation & 65535 FROM nvm.pool'), $low, 'a start with the same low bits');
is( ($node->psql('postgres', "SET statement_timeout = '60s'; SET enable_seqscan = off; SELECT count(*) FROM m WHERE k = 7"))[1],
	'1', 'does not believe a lock of that one');
$node->check_clean('after the loss of power');
$node->stop;
done_testing();

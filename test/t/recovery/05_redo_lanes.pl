# Copyright (c) 2026, pg_nvm contributors

# Redo lanes at the start of the server, written by hand: applied before
# anybody reads, again if the start was interrupted; not at all, and the pool
# refused, if they are damaged or lead where no block is.  How they are written
# is tested with the indexes that write them.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->new('main');
my $unit = 8192;

$node->init;
$node->start;
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int, b text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, 50) i;
CREATE TABLE scratch (a int) USING nvm;
INSERT INTO scratch VALUES (1);
SQL
my $scratch = $node->safe_psql('postgres', q(SELECT id FROM nvm.relations WHERE relation = 'scratch'::regclass));
$node->stop;

sub patch { return (run_command([ $NvmTest::patch_tool, $node->pool_file, @_ ]))[0]; }

# mapoffset unitoffset units kind owner arg
my @extents = map { [ split ' ' ] } split /\n/, patch('extents');
my ($extent) = grep { $_->[3] == 1 && $_->[4] == $scratch } @extents;
my ($directory) = grep { $_->[3] == 3 } @extents;
# two blocks of the table that it has not come to yet
my @place = map { $extent->[1] + ($extent->[2] - $_) * $unit } 1, 2;

# the bytes at an offset of the pool
sub bytes
{
	my ($offset, $n) = @_;
	open(my $fh, '<:raw', $node->pool_file) or die $!;
	seek($fh, $offset, 0);
	read($fh, my $data, $n);
	close $fh;
	return unpack('H*', $data);
}

sub lanes_in_use { return scalar grep { (split ' ')[1] !~ /^0+$/ } split /\n/, patch('lanes'); }

sub works
{
	my ($name) = @_;
	is($node->safe_psql('postgres', 'SELECT count(*) FROM t; SELECT * FROM nvm.check_pool()'), '50', "$name: the tables are there, and the pool is sound");
	return;
}

# ---- applied

patch('lane', 0, $place[0], 0xA1, 16, $place[1] + 3, 0xA2, 5);
patch('lane', 15, $place[0] + 64, 0xA3, 8);
$node->start;
like($node->log_since_start, qr/completed 2 changes of structure/, 'two lanes are applied');
works('applied');
$node->stop;
is(bytes($place[0], 20), 'a1' x 16 . '00' x 4, 'the first piece is in its place');
is(bytes($place[1], 10), '000000' . 'a2' x 5 . '0000', 'and one of odd size');
is(bytes($place[0] + 64, 16), 'a3' x 8 . '00' x 8, 'and that of the other lane');
is(lanes_in_use(), 0, 'the lanes are empty');
$node->start;
unlike($node->log_since_start, qr/changes of structure/, 'once');
works('once');

# ---- interrupted at the start

my $byte = 0xB0;
foreach my $failpoint ('redo-replay-piece:crash:1', 'redo-replay-piece:crash:2', 'pool-redo-replayed:crash', 'pool-redo-forgotten:crash')
{
	my $hex = sprintf('%02x', ++$byte);

	$node->crash;
	patch('lane', 3, $place[0], $byte, 100, $place[1], $byte, 100);
	$node->set_conf('nvm.failpoint' => "'$failpoint'");
	$node->start(fail_ok => 1);
	$node->_forget_postmaster if defined $node->{_pid};
	$node->set_conf('nvm.failpoint' => "''");
	my $first = bytes($place[0], 100);
	is($first, $hex x 100, "$failpoint: the first piece was stored");
	if ($failpoint =~ /piece:crash:1/) { isnt(bytes($place[1], 100), $hex x 100, "$failpoint: the second was not"); }
	is(lanes_in_use(), $failpoint =~ /forgotten/ ? 0 : 1, "$failpoint: the lane");
	# the part that was there may be gone
	$node->start;
	works($failpoint);
	is(bytes($place[0], 100) . bytes($place[1], 100), $hex x 200, "$failpoint: both pieces are in their places");
	is(lanes_in_use(), 0, "$failpoint: the lane is empty");
}

# ---- refused

my @wrong = (
	[ 'the header', 64 * 1024 ],
	[ 'commit slots', 128 * 1024 ],
	[ 'the extent map', 8 ],
	[ 'the directory', $directory->[1] ],
	[ 'behind the storage', $extent->[1] + $extent->[2] * $unit - 8 ],
	[ 'a free unit', 60 * 1024 * 1024 ],
	[ 'beyond the end', 1 << 40 ],
);
foreach my $w (@wrong)
{
	my ($name, $place) = @$w;

	$node->crash;
	my $before = $place < 1 << 40 ? bytes($place, 16) : '';
	# a good one beside it is not applied either
	patch('lane', 1, $place[0], 0xC1, 8);
	my $lane = patch('lane', 2, $place[1], 0xC2, 8, $place, 0xC3, 16);
	$node->start;
	like($node->log_since_start, qr/redo lane 2 of NVM pool .* is damaged: a piece belongs where no table or index has a block/, "$name: the log says why");
	$node->fails_with('SELECT * FROM t', qr/redo lane 2 .*damaged.*HINT: .*[Rr]estore/s, "$name: each access too");
	$node->stop;
	is(bytes($place, 16), $before, "$name: nothing was written there") if $before ne '';
	is(bytes($place[0], 8), sprintf('%02x', $byte) x 8, "$name: nor elsewhere");
	# put right
	patch('lane', 2, $place[1], $byte, 8);
	patch('lane', 1, $place[0], $byte, 8);
	$node->start;
	works("$name, put right");
}

foreach my $where ([ 'checksum', 0 ], [ 'magic number', 7 ], [ 'number of pieces', 8 ], [ 'a place', 16 ], [ 'a length', 24 + 3 ], [ 'data', 272 ])
{
	my ($name, $at) = @$where;

	$node->crash;
	my $lane = patch('lane', 7, $place[0], 0xD1, 64);
	chomp $lane;
	patch('flip', $lane + $at, 3);
	$node->start;
	like($node->log_since_start, qr/redo lane 7 of NVM pool .* is damaged: /, "damaged $name: refused");
	$node->fails_with('SELECT * FROM t', qr/redo lane 7 .*damaged/, "damaged $name: each access says so");
	$node->stop;
	is(bytes($place[0], 8), sprintf('%02x', $byte) x 8, "damaged $name: nothing was written");
	patch('lane', 7, $place[0], $byte, 8);
	$node->start;
	works("damaged $name, put right");
}
$node->stop;

# ---- no lanes to be had

my $fresh = NvmTest->start_new('fresh');
$fresh->safe_psql('postgres', 'CREATE TABLE t (k int) USING nvm; CREATE INDEX i ON t USING nvm_btree (k)');
$fresh->fails_with("SET nvm.failpoint = 'pool-redo-make:error'; INSERT INTO t SELECT 1", qr/failpoint pool-redo-make/, 'the first lanes cannot be made');
is($fresh->safe_psql('postgres', "SELECT * FROM nvm.check('t', true); SELECT * FROM nvm.check('i'); SELECT * FROM nvm.check_pool()"), '', 'no block is lost by that');
$fresh->safe_psql('postgres', 'INSERT INTO t SELECT generate_series(1, 2000)');
is($fresh->safe_psql('postgres', "SELECT * FROM nvm.check('t', true); SELECT * FROM nvm.check_pool()"), '', 'later they are made');
$fresh->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Losses of power around the handing out of cells.
#
# While a row's area is handed out, and nothing is written in it: what its first
# cell says of its length is the row's that was there before.  Meanwhile others
# took the cells behind it, and committed.  nvm.check() knows that the length
# means nothing, and those rows stay whole.
#
# While a larger row is written over the cells of smaller ones that were removed:
# nothing on media may say any more that a version starts in the middle of it.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', simulate => 1, conf => <<CONF);
autovacuum = off
restart_after_crash = off
nvm.horizon_naptime = 10
CONF
$node->safe_psql('postgres', $NvmTest::pass_time);

sub rows
{
	return $node->safe_psql('postgres', "SELECT string_agg(id || ':' || length(pad), ' ' ORDER BY id) FROM t WHERE id > 100");
}

foreach my $collect ('on', 'off')
{
	my $what = "collector $collect";

	# rows of a dozen cells, every second one removed, in one block
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning; DROP TABLE IF EXISTS t;
CREATE TABLE t (id int, pad text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 300) FROM generate_series(1, 21) i;
DELETE FROM t WHERE id % 2 = 0;
SQL
	foreach (1 .. 2)
	{
		$node->safe_psql('postgres', 'VACUUM t');
		$node->safe_psql('postgres', 'CALL pass_time()');
	}

	# an insertion that comes no further than its area, and some behind it
	my $held = $node->session;
	$held->hold('insert-before-begin', "INSERT INTO t VALUES (101, 'y')");
	$node->safe_psql('postgres', "INSERT INTO t SELECT 100 + i, 'z' FROM generate_series(2, 5) i");
	my ($first, $second) = map { $node->safe_psql('postgres', "SELECT min((ctid::text::point)[1]) FROM t WHERE id $_") } '= 102', '= 3';
	cmp_ok($first, '<', $second, "$what: cells behind it were taken");
	is($node->safe_psql('postgres', "SELECT max((ctid::text::point)[0]) FROM t"), '0', "$what: in the same block");

	$node->power_failure(seed => 1, mode => 'durable');
	$held->drop;
	$node->append_conf('postgresql.conf', "nvm.collect_gaps = $collect");
	$node->start;
	$node->check_clean("$what: after the loss of power");
	is(rows(), '102:1 103:1 104:1 105:1', "$what: the rows are there");

	# the block is used again
	$node->safe_psql('postgres', "UPDATE t SET pad = repeat('n', 40) WHERE id < 100");
	$node->check_clean("$what: when the block is used again");
	is(rows(), '102:1 103:1 104:1 105:1', "$what: and still");
	$node->crash;
	$node->start;
	$node->check_clean("$what: after another crash");
	is(rows(), '102:1 103:1 104:1 105:1', "$what: then too");
}

# seeds of each; a larger one that nobody committed is not there
$node->safe_psql('postgres', <<SQL);
ALTER SYSTEM SET nvm.collect_gaps = on;
SELECT pg_reload_conf();
DROP TABLE t;
CREATE TABLE t (id int, pad text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 250) FROM generate_series(1, 22) i;
SQL
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps stay';
# they are retired, and old enough that the writer frees them himself
$node->safe_psql('postgres', 'DELETE FROM t WHERE id <= 8');
$node->safe_psql('postgres', 'VACUUM t');
$node->safe_psql('postgres', 'CALL pass_time()');
my $left = $node->safe_psql('postgres', 'SELECT sum(id) FROM t');
my $writer = $node->session;
$writer->hold('insert-before-begin', "INSERT INTO t VALUES (1000, repeat('b', 1500))");
my $saved = $node->save_crash;
$writer->drop;
foreach my $seed (1 .. (NvmTest::is_long() ? 100 : 8))
{
	$node->restore_crash($saved, seed => $seed);
	$node->start;
	is(join("\n", $node->check_findings), '', "seed $seed: nothing starts in the middle of a row that was being written");
	is($node->safe_psql('postgres', "INSERT INTO t VALUES (1001, repeat('c', 1500)); SELECT sum(id) FROM t"), $left + 1001,
		"seed $seed: the rows are there");
}
$node->forget_crash($saved);

$node->stop;
done_testing();

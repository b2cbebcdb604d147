# Copyright (c) 2026, pg_nvm contributors

# Races in which one process stands still while others go on for long: VACUUM
# between two blocks, or between a root and the versions that it has led to, and a
# walsender that makes the first snapshot of a logical replication slot.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', allows_streaming => 'logical', conf => <<CONF);
autovacuum = off
nvm.horizon_naptime = 10
CONF
$node->safe_psql('postgres', $NvmTest::pass_time);

# VACUUM notes a dead version whose row begins in a later block, and looks at it
# again in the end.  Before that others unlink it, free its cells, and make a
# larger version of them, whose data looks like one of its kind.
{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE s (id int, pad text, b bigint[]) USING nvm;
ALTER TABLE s ALTER b SET STORAGE plain;
INSERT INTO s SELECT i, repeat('x', 60) FROM generate_series(1, 150) i;
SQL
	my $first = $node->safe_psql('postgres', q{SELECT min(id) FROM s WHERE (ctid::text::point)[0] = 1});
	$node->safe_psql('postgres', 'DELETE FROM s WHERE id <= 4');
	# room in the first block
	foreach (1 .. 2)
	{
		$node->safe_psql('postgres', 'VACUUM s');
		$node->safe_psql('postgres', 'CALL pass_time()');
	}
	$node->safe_psql('postgres', 'VACUUM s');
	my @rows = ($first + 4, $first + 3);
	my $at = '';
	foreach my $id (@rows, @rows)
	{
		$at .= $node->safe_psql('postgres', "UPDATE s SET pad = repeat('y', 60) WHERE id = $id RETURNING (ctid::text::point)[0]");
	}
	is($at, '0000', 'versions of rows of the second block lie in the first');
	$node->safe_psql('postgres', 'CALL pass_time()');

	my $vacuum = $node->session;
	$vacuum->stop_at('vacuum-block-scanned', 'VACUUM s');
	$node->safe_psql('postgres', "UPDATE s SET pad = repeat('w', 60) WHERE id IN ($rows[0], $rows[1])");
	$node->safe_psql('postgres', 'CALL pass_time()');
	# each by itself: rows of one transaction follow each other (space/13_order)
	my $in_first = $node->safe_psql('postgres', join "\n", (map { "INSERT INTO s VALUES (1000 + $_, NULL, array_fill(3::bigint, array[26]));" } 1 .. 40),
		q{SELECT count(*) FROM s WHERE id > 1000 AND ctid < '(1,0)'});
	cmp_ok($in_first, '>', 0, 'while VACUUM stands still their cells are used for other rows');
	$vacuum->go_on;
	$vacuum->sql('SELECT 1');
	is($node->safe_psql('postgres', 'SELECT count(*), sum(u) FROM s, unnest(b) u'), 40 * 26 . '|' . 40 * 26 * 3,
		'VACUUM leaves those alone');
	$node->check_clean('after VACUUM');
	$vacuum->drop;
}

# A root is DEAD before the versions that it leads to are retired, wherever they lie:
# whoever came to them through it later would not be in the way of their reuse.
{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE d (id int PRIMARY KEY, pad text) USING nvm;
INSERT INTO d SELECT i, repeat('x', 60) FROM generate_series(1, 150) i;
SQL
	my $first = $node->safe_psql('postgres', q{SELECT min(id) FROM d WHERE (ctid::text::point)[0] = 1});
	$node->safe_psql('postgres', 'DELETE FROM d WHERE id <= 8');
	$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP ON) d');
	$node->safe_psql('postgres', 'CALL pass_time()');
	my %root;
	foreach my $id ($first + 3, $first + 4)
	{
		$root{$id} = $node->safe_psql('postgres', "SELECT (ctid::text::point)[1]::int FROM d WHERE id = $id");
		is($node->safe_psql('postgres', "UPDATE d SET pad = repeat('y', 60) WHERE id = $id RETURNING (ctid::text::point)[0]"),
			'0', 'the version of a row of the second block lies in the first');
	}
	$node->safe_psql('postgres', 'DELETE FROM d WHERE id IN (' . join(', ', keys %root) . ')');
	my $storage = $node->safe_psql('postgres', "SELECT i.id FROM nvm.relations_info() i WHERE NOT ended AND i.relfilenode = pg_relation_filenode('d')");
	my %offset = map { $_->[2] => $_->[0] } grep { $_->[1] == $storage }
	  map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $node->pool_file, 'blocks' ]))[0];

	my $vacuum = $node->session;
	$vacuum->stop_at('retire-stored', 'VACUUM d');
	open(my $fh, '<:raw', $node->pool_file) or die $!;
	foreach my $id (sort { $a <=> $b } keys %root)
	{
		seek($fh, $offset{1} + $root{$id} * 32 + 24, 0) or die $!;
		read($fh, my $begin, 8) == 8 or die $!;
		is(unpack('Q', $begin) >> 48, 0xffff, "row $id: the root is DEAD first");
	}
	close $fh;
	$vacuum->go_on;
	$vacuum->sql('SELECT 1');
	$vacuum->drop;
	is($node->safe_psql('postgres', 'SELECT count(*), max(id) FROM d'), '140|150', 'the others are there');
	$node->check_clean('rows that are wholly dead');
}

# A logical slot's first snapshot is of the place in the WAL where decoding
# became consistent, although the walsender comes there later, and has no xmin
# until it does.
{
	foreach my $am ('nvm', 'heap')
	{
		$node->safe_psql('postgres', <<SQL);
CREATE TABLE t_$am (id int, v int) USING $am;
INSERT INTO t_$am SELECT i, 0 FROM generate_series(1, 5) i;
SQL
	}
	$node->safe_psql('postgres', 'CREATE TABLE h (id int) USING heap');

	# the walsender waits for what runs
	my $running = $node->session('BEGIN', 'INSERT INTO h VALUES (1)');
	my $sender = $node->background_psql('postgres', replication => 'database');
	$sender->{stdin} .= "CREATE_REPLICATION_SLOT s TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT;\n";
	$sender->{run}->pump_nb;
	my $waits = q{FROM pg_stat_activity WHERE backend_type = 'walsender' AND wait_event_type = 'Lock'};
	$node->poll_query_until('postgres', "SELECT count(*) = 1 $waits") or die 'the walsender does not wait';
	my $pid = $node->safe_psql('postgres', "SELECT pid $waits");
	NvmTest::stop_process($pid);

	# the place in the WAL where nobody runs
	$running->sql('COMMIT');
	$node->safe_psql('postgres', 'CHECKPOINT') foreach 1 .. 3;
	foreach my $am ('nvm', 'heap')
	{
		$node->safe_psql('postgres', "UPDATE t_$am SET v = 1 WHERE id <= 2");
		$node->safe_psql('postgres', "INSERT INTO t_$am VALUES (6, 0)");
		$node->safe_psql('postgres', "DELETE FROM t_$am WHERE id = 3");
	}
	$node->safe_psql('postgres', 'CALL pass_time(30)');
	$node->safe_psql('postgres', "VACUUM t_$_") foreach 'nvm', 'heap';
	$node->safe_psql('postgres', 'CALL pass_time()');
	NvmTest::continue_process($pid);

	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	until ($sender->{stdout} =~ /^s\|[^|]*\|([^|]+)\|/m || time() > $end)
	{
		$sender->{run}->pump_nb;
		select(undef, undef, undef, 0.01);
	}
	my ($snapshot) = $sender->{stdout} =~ /^s\|[^|]*\|([^|]+)\|/m;
	ok(defined $snapshot, 'the slot has a snapshot') or die "$sender->{stdout} $sender->{stderr}";
	my %rows;
	foreach my $am ('nvm', 'heap')
	{
		$rows{$am} = $node->safe_psql('postgres', <<SQL);
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET TRANSACTION SNAPSHOT '$snapshot';
SELECT string_agg(id || ':' || v, ' ' ORDER BY id) FROM t_$am;
COMMIT;
SQL
	}
	is($rows{heap}, '1:0 2:0 3:0 4:0 5:0', 'of a heap table it sees what was there at that place');
	is($rows{nvm}, $rows{heap}, 'and of an nvm table the same');
	eval { $sender->{run}->kill_kill(grace => 0); };
	$running->drop;
}

$node->check_clean('in the end');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# What room a table has is known in DRAM alone.  A start, after a clean stop or a crash,
# must find it again, or a table grows at each start by a block for each session that
# inserts.  Blocks in which a server that crashed had handed out cells take no rows before
# VACUUM, so what counts then is that others are found: there are enough of them here.
# VACUUM itself hands out none.
#
# Long form: more starts.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $long     = NvmTest::is_long();
my $sessions = 6;
my $node = NvmTest->start_new('room', conf => "autovacuum = off\nrestart_after_crash = on", sql => <<SQL);
CREATE TABLE t (id int PRIMARY KEY, pad text) USING nvm;
CREATE TABLE full_up (id int PRIMARY KEY, pad text) USING nvm;
INSERT INTO t SELECT i, repeat('p', 100) FROM generate_series(1, 20000) i;
CREATE TABLE vacuumed (id int PRIMARY KEY, pad text) USING nvm;
INSERT INTO vacuumed SELECT i, repeat('p', 100) FROM generate_series(1, 5000) i;
INSERT INTO full_up SELECT i, repeat('p', 100) FROM generate_series(1, 20000) i;
DELETE FROM t WHERE id % 50 <> 0;
VACUUM t;
-- what VACUUM gives back may be used by transactions that begin after the next one
SELECT txid_current();
SQL

sub blocks
{
	my ($table) = @_;
	return $node->safe_psql('postgres', "SELECT blocks FROM nvm.relations WHERE relation = '$table'::regclass");
}

# several sessions at once, so that each has a block of its own
my $next = 1_000_000;
my $rows = 400;

sub insert
{
	my @open = map { $node->session('BEGIN;', "INSERT INTO t VALUES (" . $next++ . ", repeat('n', 100));") } 1 .. $sessions;
	$_->sql('COMMIT;') foreach @open;
	$_->drop foreach @open;
	$rows += $sessions;
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT id) FROM t'), "$rows|$rows", 'the rows are there');
	return;
}

my $before = blocks('t');
my $full   = blocks('full_up');
cmp_ok($before, '>', 300, "blocks: $before");
insert();
is(blocks('t'), $before, 'room that VACUUM has found is used');
foreach my $n (1 .. ($long ? 12 : 4))
{
	# the first one is clean: a crash would leave no block that was not in use
	if ($n % 2)
	{
		$node->restart;
	}
	else
	{
		$node->crash;
		$node->start;
	}
	insert();
	is(blocks('t'), $before, "start $n: no new blocks");
}

# each block was VACUUM's, and nobody else's, in the run that ends with a crash; then VACUUM
# heals what the crash before it has made suspect, and nothing is suspect after the next
$node->restart;
my $had = blocks('vacuumed');
foreach my $n (1 .. 3)
{
	$node->safe_psql('postgres', 'DELETE FROM vacuumed WHERE id % 10 <> 0') if $n == 1;
	$node->safe_psql('postgres', 'VACUUM vacuumed') foreach 1 .. 2;
	$node->crash;
	$node->start;
	$node->safe_psql('postgres', "INSERT INTO vacuumed VALUES (1000000 + $n, repeat('n', 100))");
	is(blocks('vacuumed'), $had, "VACUUM and a crash, $n: no new blocks");
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT id) FROM vacuumed'), (500 + $n) . '|' . (500 + $n),
		'the rows are there');
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM generate_series(1, 1000003) i, vacuumed v WHERE v.id = i'), '503', 'also by index');

# where there is no room, the table grows by what is needed
$node->safe_psql('postgres', "INSERT INTO full_up SELECT i, repeat('p', 100) FROM generate_series(20001, 20100) i");
cmp_ok(blocks('full_up'), '<=', $full + 4, 'a table without room grows by what is needed');
is($node->safe_psql('postgres', "SELECT count(*) FROM full_up"), '20100', 'and has its rows');

# room at the front of a table of which a start looks at the end first
$node->safe_psql('postgres', <<SQL);
CREATE TABLE longer (id int PRIMARY KEY, pad text) USING nvm;
INSERT INTO longer SELECT i, repeat('p', 400) FROM generate_series(1, 24000) i;
DELETE FROM longer WHERE id <= 4000;
VACUUM longer;
SELECT txid_current();
SQL
$had = blocks('longer');
cmp_ok($had, '>', 1_400, "a longer table: $had blocks");
$node->restart;
$node->safe_psql('postgres', "INSERT INTO longer VALUES ($_, repeat('n', 400))") foreach 100_001 .. 100_010;
$node->safe_psql('postgres', "INSERT INTO longer SELECT i, repeat('n', 400) FROM generate_series(100011, 103000) i");
cmp_ok(blocks('longer'), '<=', $had + 12, 'room before the blocks that a start looks at first is found');

# behind blocks where all room is too young, because of an old snapshot, there is some that is free
$node->safe_psql('postgres', <<SQL);
CREATE TABLE young (id int PRIMARY KEY, pad text) USING nvm;
INSERT INTO young SELECT i, repeat('p', 1000) FROM generate_series(1, 7000) i;
DELETE FROM young WHERE id > 3500;
VACUUM young;
SELECT txid_current();
VACUUM young;
UPDATE young SET pad = repeat('u', 1000) WHERE id <= 3000;
SQL
$had = blocks('young');
my $snapshot = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ;', 'SELECT 1;');
$node->safe_psql('postgres', 'SELECT txid_current(); VACUUM young');
$node->safe_psql('postgres', "INSERT INTO young VALUES ($_, repeat('n', 900))") foreach 10_001 .. 10_050;
cmp_ok(blocks('young'), '<=', $had + 4, "free cells behind room that is too young are found ($had blocks)");
$snapshot->sql('COMMIT;');
$snapshot->drop;
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT id) FROM young'), '3550|3550', 'the rows are there');
$node->check_clean;
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# After a loss of memory, rows of a table that has an index in files go to its clean run
# (src/vlog/README.md, "The clean run").
#
#  1. a table whose rows come and go does not grow by losses and deaths
#  2. entries of rows that were never committed, in blocks of the run: no later row is found
#     by them
#  3. a crash at each step of finding a run and of taking a block from it, and then a loss
#  4. TRUNCATE, an index that comes later, copies of the table
#  5. a table that was large once, a VACUUM that is cancelled, rows that come while VACUUM looks

use strict;
use warnings;

use NvmMemory;
use NvmTest;
use Test::More;

my $node = NvmTest->start_new('clean', conf => <<CONF, sql => <<SQL);
nvm.memory_limit = 256MB
max_worker_processes = 12
autovacuum = off
restart_after_crash = on
allow_in_place_tablespaces = on
nvm.default_index_method = btree
CONF
CREATE TABLE c (id int, n int, v text) USING nvm_vlog;
CREATE INDEX c_id ON c USING btree (id);
CREATE TABLE heap_row (id int) USING heap;
INSERT INTO c SELECT i, 0, repeat('o', 50 + i % 100) FROM generate_series(1, 5000) i;
SQL

sub sql { return $node->safe_psql('postgres', join('; ', @_)); }
sub blocks { return sql(q{SELECT blocks FROM nvm.relations WHERE relation = 'c'::regclass}); }

sub lose
{
	$node->crash;
	$node->start;
	return;
}

# a process dies, and the memory stays
sub die_alone
{
	my $writer = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'};
	my $pid = sql($writer);

	kill('KILL', $pid);
	return $node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($writer) w WHERE pid <> $pid");
}

sub rows
{
	my ($first, $n, $what) = @_;
	return "INSERT INTO c SELECT i, $what, repeat('n', 50 + i % 100) FROM generate_series($first, $first + $n - 1) i";
}

# twice, for what one unlinks the other frees
sub vacuum
{
	sql('VACUUM c');
	sql('SELECT txid_current()');
	return sql('VACUUM c');
}

# what the index finds is what the table has
sub agrees
{
	my ($name) = @_;
	my $by_index = sql('SET enable_seqscan = off', 'SET enable_bitmapscan = off', 'SELECT count(*), coalesce(sum(id), 0), coalesce(sum(n), 0) FROM c WHERE id > 0');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($by_index, sql('SET enable_indexscan = off', 'SET enable_bitmapscan = off', 'SELECT count(*), coalesce(sum(id), 0), coalesce(sum(n), 0) FROM c WHERE id > 0'),
		"$name: the index leads to what the table has");
	is(sql('SET enable_seqscan = off', 'SET enable_bitmapscan = off', 'SELECT count(*) FROM c WHERE id >= 1000000'),
		0, "$name: and to nothing that was never committed");
	$node->check_clean($name);
	return;
}

# ---------------------------------------------------------------- 1. rows come and go

my $next = 5001;

# 500 rows come, 50 of them before VACUUM, and the 500 oldest go
sub round
{
	my ($what) = @_;

	sql(rows($next, 50, $what));
	vacuum();
	sql(rows($next + 50, 450, $what));
	sql("DELETE FROM c WHERE id < $next + 500 - 5000");
	vacuum();
	$next += 500;
	return;
}

my @blocks;
foreach my $n (1 .. 24)
{
	lose();
	round($n);
	push @blocks, blocks() if $n % 6 == 0;
}
is(sql('SELECT count(*), min(id), max(id) FROM c'), join('|', 5000, $next - 5000, $next - 1), 'the rows are those that it should have');
cmp_ok($blocks[3], '<=', $blocks[0] + 2, "it does not grow by losses: @blocks blocks");
agrees('losses');

# ---------------------------------------------------------------- 2. entries without rows

# A row of the heap has the WAL of the entries flushed.
sub never_committed
{
	my ($id) = @_;
	sql('BEGIN', rows($id, 60, 7), 'ROLLBACK');
	return sql('INSERT INTO heap_row VALUES (1)');
}

foreach my $n (1 .. 6)
{
	lose();
	never_committed(1000000 * $n);
	my $before = blocks();
	$n > 3 ? die_alone() : lose();
	# where the entries lead
	sql(rows($next, 60, 100 + $n));
	$next += 60;
	agrees("round $n");
	cmp_ok(blocks(), '<=', $before + 12, "round $n: few blocks are new");
	vacuum() if $n % 2 == 0;
}

# ---------------------------------------------------------------- 3. crashes

foreach my $at ('vacuum-clean-offered:crash:1', map { "pool-clean-run:crash:$_" } 1, 2)
{
	# a run, and a longer one
	sql('DELETE FROM c WHERE id IN (SELECT id FROM c ORDER BY ctid OFFSET 300 LIMIT 600)', rows($next, 50, 8));
	$next += 50;
	vacuum();
	sql('DELETE FROM c WHERE id IN (SELECT id FROM c ORDER BY ctid OFFSET 300 LIMIT 1800)');
	sql('VACUUM c');
	sql('SELECT txid_current()');
	my $all = NvmMemory::content($node, 'c');
	$node->psql('postgres', "SET nvm.failpoint = '$at'; VACUUM c");
	$node->wait_crashed;
	$node->start;
	is(NvmMemory::content($node, 'c'), $all, "$at: all is there");
	never_committed(1000000);
	lose();
	sql(rows($next, 60, 9));
	$next += 60;
	agrees($at);
	sql(rows($next, 2500, 10));
	$next += 2500;
	vacuum();
}
lose();
foreach my $at ('pool-clean-run:crash:1', 'pool-clean-run:crash:2')
{
	sql("DELETE FROM c WHERE id IN (SELECT id FROM c ORDER BY ctid OFFSET 300 LIMIT 2500)");
	vacuum();
	lose();
	$node->psql('postgres', "SET nvm.failpoint = '$at'; " . rows(1000000, 300, 11));
	$node->wait_crashed;
	$node->start;
	sql(rows($next, 300, 12));
	$next += 300;
	agrees("a row, $at");
	sql(rows($next, 2500, 10));
	$next += 2500;
	vacuum();
}

# ---------------------------------------------------------------- 4. other statements

sql('BEGIN', 'TRUNCATE c', rows(1, 3000, 1), 'DELETE FROM c WHERE id BETWEEN 500 AND 2500', 'COMMIT');
vacuum();
never_committed(1000000);
lose();
sql(rows(5000, 200, 2));
agrees('TRUNCATE');
sql('CREATE INDEX c_n ON c USING btree (n)', rows(6000, 200, 3));
never_committed(1000000);
lose();
sql(rows(7000, 200, 3));
agrees('another index');
is(sql('SET enable_seqscan = off', 'SELECT count(*) FROM c WHERE n = 3'), 400, 'and it finds its rows');

# Entries lead behind the last block that the copy has, too.
sql('TRUNCATE c', rows(1, 1000, 1), 'BEGIN', rows(1000000, 3000, 7), 'ROLLBACK', 'INSERT INTO heap_row VALUES (1)');
lose();
is(sql('SELECT count(*) FROM c'), 1000, 'the rows are there');
$node->safe_psql('template1', 'CREATE DATABASE copied TEMPLATE postgres');
$node->safe_psql('copied', rows(2000, 2000, 1));
is($node->safe_psql('copied', 'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM c WHERE id >= 1000000'),
	0, 'CREATE DATABASE: no entry leads to a row that came later');
$node->safe_psql('template1', 'DROP DATABASE copied');
$node->safe_psql('postgres', "CREATE TABLESPACE place LOCATION ''");
sql('ALTER TABLE c SET TABLESPACE place');
sql(rows(2000, 500, 1));
agrees('SET TABLESPACE');
lose();
sql(rows(3000, 2000, 1));
agrees('SET TABLESPACE, and a loss');

# ---------------------------------------------------------------- 5. what run VACUUM takes

# The long run lies behind the end of the table after the first loss.
sql('TRUNCATE c', rows(1, 5000, 0), rows(1000000, 20000, 0), 'DELETE FROM c WHERE id >= 1000000');
vacuum();
$next = 5001;
@blocks = ();
foreach my $n (1 .. 9)
{
	lose();
	round($n);
	push @blocks, blocks();
}
cmp_ok($blocks[8], '<=', $blocks[2] + 2, "a table that was large once does not grow: @blocks blocks");
agrees('a table that was large once');

# The run of a VACUUM that has ended too early is in memory alone; the next one sees to it.
sql('TRUNCATE c', rows(1, 5000, 0), 'DELETE FROM c WHERE id BETWEEN 1001 AND 4000', 'VACUUM c');
sql('SELECT txid_current()');
$node->fails_with("SET nvm.failpoint = 'vacuum-clean-offered:error'; VACUUM c", qr/vacuum-clean-offered/, 'a VACUUM that ends before it has proved the run');
vacuum();
my $before = blocks();
lose();
sql(rows(6000, 1500, 0));
cmp_ok(blocks(), '<=', $before + 2, 'the VACUUM behind it has stored the run');
agrees('a VACUUM that ends early');

# Rows come to blocks that VACUUM has just found empty, and it ends: its run is no damage.
my $ended = $node->session;
sql('TRUNCATE c', rows(1, 5000, 0), 'DELETE FROM c WHERE id BETWEEN 1001 AND 4000', 'VACUUM c');
sql('SELECT txid_current()');
$ended->sql(q{SET nvm.failpoint = 'vacuum-clean-found:stop:1,vacuum-clean-offered:error'});
$ended->send('VACUUM c');
$ended->wait_held('vacuum-clean-found');
NvmTest::wait_stopped($ended->pid);
sql(rows(6000, 300, 0));
$ended->go_on;
$ended->sql('SELECT 1');
$ended->drop;
agrees('a VACUUM that ends early, rows meanwhile');

# The same, and it goes on.
sql('TRUNCATE c', rows(1, 5000, 0), 'DELETE FROM c WHERE id BETWEEN 1001 AND 4000', 'VACUUM c');
sql('SELECT txid_current()');
foreach my $at ('vacuum-clean-found', 'vacuum-clean-offered')
{
	my $vacuum = $node->session;
	$vacuum->stop_at($at, 'VACUUM c');
	sql(rows(6000, 300, 0));
	$vacuum->go_on;
	$vacuum->sql('SELECT 1');
	$vacuum->drop;
	agrees("$at, rows meanwhile");
	never_committed(1000000);
	lose();
	sql(rows(7000, 600, 0), 'DELETE FROM c WHERE id > 5000');
	agrees("$at, and a loss");
	vacuum();
	sql('DELETE FROM c WHERE id BETWEEN 601 AND 1000');
	sql('VACUUM c');
	sql('SELECT txid_current()');
}

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# An index that a transaction splits again and again is relaxed (src/btree/README.md,
# "Relaxed"): nothing that is stored there waits for a fence, a crash has it rebuilt, and
# when the transaction is over it is made durable at once.  t/btree/09_index_crash crashes at each step.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 60_000;
my $states = q(SELECT string_agg(index || ' ' || persistence || ' ' || state, ', ' ORDER BY index::text) FROM nvm.index_rebuilds);

sub by_index
{
	my ($node, $table, $expected, $name) = @_;
	is($node->safe_psql('postgres', "SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), count(DISTINCT id), sum(id) FROM $table WHERE id > 0"),
		$expected, "$name: by the primary key");
	is($node->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM $table WHERE b > ''"),
		$expected =~ s/\|.*//r, "$name: by the other index");
	$node->check_clean($name);
	return;
}

sub wait_kept
{
	my ($node, $name) = @_;
	ok($node->poll_query_until('postgres', q(SELECT NOT EXISTS (SELECT FROM nvm.index_rebuilds WHERE state NOT IN ('ready', 'unused')))), $name);
	return;
}

# random keys, so that all pages are split
sub fill
{
	my ($table, $from, $n) = @_;
	return "INSERT INTO $table SELECT i, md5(i::text) FROM generate_series($from, $from + $n - 1) i ORDER BY md5(i::text);\n";
}

my $schema = <<SQL;
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int PRIMARY KEY, b text) USING nvm;
CREATE INDEX t_b ON t (b);
SQL
my $sum = $rows * ($rows + 1) / 2;

# ---- a pool on a disk: how often a load waits for it

my $node = NvmTest->start_new('syncs', conf => "autovacuum = off\nnvm.persist_method = msync\n", extension => 0);
$node->safe_psql('postgres', $schema . 'CREATE TABLE kept (id int PRIMARY KEY, b text) USING nvm; CREATE INDEX kept_b ON kept (b);');
my %fences;
foreach my $table (qw(kept t))
{
	my $before = $node->safe_psql('postgres', 'SELECT fences FROM nvm.stat_wbl');
	$node->safe_psql('postgres', ($table eq 'kept' ? "SET nvm.relax_indexes = off;\n" : '') . fill($table, 1, $rows));
	$fences{$table} = $node->safe_psql('postgres', 'SELECT fences FROM nvm.stat_wbl') - $before;
}
note("$rows rows: $fences{kept} fences where indexes are kept durable, $fences{t} where they are relaxed");
cmp_ok($fences{t}, '<', 400, 'a load does not wait for each page that is split');
cmp_ok($fences{kept}, '>', 5 * $fences{t}, 'as it does with nvm.relax_indexes = off');
is($node->safe_psql('postgres', $states =~ s/FROM nvm.index_rebuilds/$& WHERE index::text ~ '^kept'/r), '', 'off: no index was relaxed');
wait_kept($node, 'the indexes are durable when the load is over');
is($node->safe_psql('postgres', $states), '', 'and the view lists them no longer');

# a few rows are no load
$node->safe_psql('postgres', 'SELECT fences FROM nvm.stat_wbl');
$node->safe_psql('postgres', 'INSERT INTO t SELECT i, i::text FROM generate_series(1000001, 1000200) i; DELETE FROM t WHERE id > 1000000');
is($node->safe_psql('postgres', $states), '', 'a few rows in a large index do not relax it');
by_index($node, 't', "$rows|$rows|$sum", 'after the load');

# ---- a clean stop at once leaves whole indexes

$node->safe_psql('postgres', "SET nvm.relax_indexes = on;\n" . fill('t', $rows + 1, $rows));
$node->restart;
is($node->safe_psql('postgres', $states), '', 'nothing is rebuilt after a clean stop');
my $twice = 2 * $rows;
my $sum2 = $twice * ($twice + 1) / 2;
by_index($node, 't', "$twice|$twice|$sum2", 'after a clean stop');

# ---- a relaxed index is emptied, dropped, built anew, copied

my $open = $node->session;
$open->sql('SET nvm.relax_indexes = on; BEGIN');
$open->sql('CREATE TABLE own (id int PRIMARY KEY, b text) USING nvm');
$open->sql(fill('own', 1, $rows));
like($node->safe_psql('postgres', $states =~ s/index \|\|/'own' ||/r), qr/^own full relaxed/, 'an index is relaxed while the load goes on');
$open->sql('TRUNCATE own');
$open->sql(fill('own', 1, 1000));
$open->sql('COMMIT');
$node->safe_psql('postgres', "CREATE TABLE gone (id int PRIMARY KEY, b text) USING nvm; SET nvm.relax_indexes = on;\n" . fill('gone', 1, $rows) . 'DROP TABLE gone;');
$node->safe_psql('postgres', "SET nvm.relax_indexes = on;\n" . fill('t', $twice + 1, $rows) . 'REINDEX TABLE t;');
$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('source', $schema);
$node->safe_psql('source', "SET nvm.relax_indexes = on;\n" . fill('t', 1, $rows));
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE source');
wait_kept($node, 'what was relaxed is gone or durable');
$node->crash;
$node->start;
is($node->safe_psql('postgres', $states), '', 'nothing is rebuilt after a crash then');
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*), sum(id) FROM own WHERE id > 0'), '1000|500500', 'emptied in its own transaction');
is($node->safe_psql('copy', 'SET enable_seqscan = off; SELECT count(*), sum(id) FROM t WHERE id > 0'), "$rows|$sum", 'copied');
is($node->safe_psql('copy', $states), '', 'the copy is durable');
$node->check_clean('after all that');

# ---- a crash meanwhile has it rebuilt

my $load = $node->session;
$load->sql("SET nvm.relax_indexes = on; BEGIN;\n" . fill('t', 1_000_001, $rows));
$node->safe_psql('postgres', "INSERT INTO t VALUES (0, '')");
$node->safe_psql('postgres', 'DELETE FROM t WHERE id = 1 OR id = 0');
$node->crash;
$_->drop foreach $load, $open;
$node->start;
like($node->safe_psql('postgres', $states), qr/t_b full \w+.*t_pkey full \w+/, 'both indexes are to be rebuilt');
my $thrice = 3 * $rows;
is($node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'), join('|', $thrice - 1, $thrice * ($thrice + 1) / 2 - 1), 'rows are there at once');
$node->fails_with("INSERT INTO t VALUES (2, 'again')", qr/duplicate key/, 'uniqueness holds');
wait_kept($node, 'they are rebuilt');
by_index($node, 't', join('|', $thrice - 1, $thrice - 1, $thrice * ($thrice + 1) / 2 - 1), 'rebuilt');
ok($node->poll_query_until('postgres', q(SELECT bool_and(state = 'ready') FROM nvm.index_rebuilds)), 'ready');
$node->crash;
$node->start;
is($node->safe_psql('postgres', $states), '', 'and durable: the next crash rebuilds nothing');
by_index($node, 't', join('|', $thrice - 1, $thrice - 1, $thrice * ($thrice + 1) / 2 - 1), 'after the next crash');
$node->stop;

# ---- loss of power under loads and single rows, while indexes are relaxed and no longer

my $sim = NvmTest->start_new('power', simulate => 1, conf => "autovacuum = off\nnvm.relax_indexes = on", extension => 0);
$sim->safe_psql('postgres', $schema . 'CREATE TABLE ack (client int, n int) USING nvm;');

# what nobody has flushed is lost: all of it was, before the index counts as durable
my $first = $sim->session;
$first->sql('BEGIN');
$first->sql(fill('t', 1, 20_000));
like($sim->safe_psql('postgres', $states), qr/relaxed/, 'relaxed');
$first->sql('COMMIT');
$first->drop;
wait_kept($sim, 'made durable');
$sim->power_failure(mode => 'durable');
$sim->start;
is($sim->safe_psql('postgres', $states), '', 'nothing is rebuilt after a loss of power');
by_index($sim, 't', '20000|20000|200010000', 'made durable at once');

# who has begun a change while the index was relaxed does not make it afterwards
foreach my $place (qw(btree-split-written btree-split-applied btree-downlink-inserted))
{
	my $loader = $sim->session;
	$loader->sql('BEGIN');
	$loader->sql("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(500001, 505000) i ORDER BY md5(i::text)");
	my $late = $sim->session;
	$late->sql('SET nvm.relax_indexes = off');
	$late->stop_at($place, "INSERT INTO t SELECT i, md5(i::text) FROM generate_series(600001, 602000) i ORDER BY md5(i::text)");
	$loader->sql('ROLLBACK');
	wait_kept($sim, "durable while somebody is at $place");
	$late->go_on;
	$sim->poll_query_until('postgres', 'SELECT count(*) = 22000 FROM t') or die;
	is($sim->safe_psql('postgres', $states), '', 'no index is relaxed');
	$_->drop foreach $loader, $late;
	$sim->power_failure(mode => 'durable');
	$sim->start;
	is($sim->safe_psql('postgres', $states), '', "$place: nothing is rebuilt");
	by_index($sim, 't', '22000|22000|' . (200010000 + 2000 * 600000 + 2001000), "from $place on");
	$sim->safe_psql('postgres', 'DELETE FROM t WHERE id > 20000');
	$sim->safe_psql('postgres', 'VACUUM t');
	wait_kept($sim, 'at rest');
}


# the same, and power is lost as soon as he has made it: each image is whole
my $loader = $sim->session;
$loader->sql('BEGIN');
$loader->sql("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(500001, 505000) i ORDER BY md5(i::text)");
my $late = $sim->session;
$late->sql("SET nvm.relax_indexes = off; SET nvm.failpoint = 'btree-split-written:stop:1,btree-split-applied:crash:1'");
$late->send("INSERT INTO t SELECT i, md5(i::text) FROM generate_series(600001, 602000) i ORDER BY md5(i::text)");
$late->wait_held('btree-split-written');
NvmTest::wait_stopped($late->pid);
$loader->sql('ROLLBACK');
wait_kept($sim, 'durable before the split is made');
$late->go_on;
$sim->wait_crashed;
$_->drop foreach $loader, $late;
my $saved = $sim->save_crash;
foreach my $seed (1 .. (NvmTest::is_long() ? 20 : 6))
{
	$sim->restore_crash($saved, seed => $seed);
	$sim->start;
	is($sim->safe_psql('postgres', $states), '', "image $seed: nothing is rebuilt");
	by_index($sim, 't', '20000|20000|200010000', "image $seed of a split that began before");
	$sim->stop('immediate');
}
$sim->forget_crash($saved);
$sim->start;

foreach my $round (1 .. (NvmTest::is_long() ? 12 : 4))
{
	my $clients = $sim->start_load(
		clients => 3,
		sql     => sub {
			my ($c, $n) = @_;
			my $id = $round * 10_000_000 + $c * 2_000_000 + $n * 2_000;
			# one of them loads, with pauses in which the indexes become durable
			my $pause = $c == 1 && $n % 2 ? 'SELECT pg_sleep(1.3);' : '';
			return "BEGIN; INSERT INTO ack VALUES ($c, $round * 10000 + $n);\n"
			  . fill('t', $id, $c == 1 ? 1500 : 20)
			  . "UPDATE t SET b = 'z' || b WHERE id BETWEEN $id - 2000 AND $id - 1990;\n"
			  . "DELETE FROM t WHERE id BETWEEN $id - 1990 AND $id - 1985;\nCOMMIT;\n$pause";
		});
	$clients->wait_acknowledged(12);
	$sim->safe_psql('postgres', 'VACUUM t') if $round % 2;
	$sim->power_failure(seed => $round);
	$sim->start;
	my %last = $clients->finish;
	is($sim->safe_psql('postgres', "SELECT count(*) FROM ack WHERE n / 10000 = $round") >= $last{1} + $last{2} + $last{3} ? 1 : 0,
		1, "power failure $round: acknowledged work is there");
	wait_kept($sim, "power failure $round: indexes are whole");
	my $seen = $sim->safe_psql('postgres', 'SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SELECT count(*), count(DISTINCT id), sum(id) FROM t');
	by_index($sim, 't', $seen, "power failure $round");
}
$sim->stop;

done_testing();

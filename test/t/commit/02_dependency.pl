# Copyright (c) 2026, pg_nvm contributors

# A transaction is seen by others before its decision is durable.  Whoever has
# read its rows, or missed rows that it deleted, and has been answered, makes it
# durable: after a loss of power the second is never there without the first,
# whatever kind of table it wrote, and whatever way it came upon the rows.
#
# Long form: 20 images by chance of each, here 3.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @images = ([ durable => 1 ], map { [ random => $_ ] } 1 .. (NvmTest::is_long() ? 20 : 3));

# The first transaction of case C: updates, deletes, inserts into a table without an
# index and into one whose indexes are nvm_btree, so that it is nvm-only.
my $first = "BEGIN; UPDATE t_C SET v = 'first' WHERE id = 1; DELETE FROM t_C WHERE id = 2; INSERT INTO p_C VALUES (1); INSERT INTO t_C VALUES (11, 'new')";

# What the second does; n2 and h2 get its row.
my $seq      = 'SET enable_indexscan = off; SET enable_bitmapscan = off; ';
my $index    = 'SET enable_seqscan = off; SET enable_bitmapscan = off; ';
my $bitmap   = 'SET enable_seqscan = off; SET enable_indexscan = off; ';
my $parallel = 'SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; ';
my %second = (
	insert_nvm  => "INSERT INTO n2 SELECT 'C' FROM p_C",
	insert_heap => "INSERT INTO h2 SELECT 'C' FROM p_C",
	both        => "WITH n AS (INSERT INTO n2 SELECT 'C' FROM p_C) INSERT INTO h2 SELECT 'C' FROM p_C",
	seq_scan    => $seq . "INSERT INTO n2 SELECT 'C' FROM t_C WHERE v = 'first'",
	index_scan  => $index . "INSERT INTO n2 SELECT 'C' FROM t_C WHERE id = 1 AND v = 'first'",
	bitmap_scan => $bitmap . "INSERT INTO h2 SELECT 'C' FROM t_C WHERE id = 1 AND v = 'first'",
	tid_scan    => "INSERT INTO h2 SELECT 'C' FROM p_C WHERE ctid = (SELECT min(ctid) FROM p_C)",
	update      => "WITH u AS (UPDATE t_C SET v = 'second' WHERE id = 1 AND v = 'first' RETURNING id) INSERT INTO n2 SELECT 'C' FROM u",
	delete      => "WITH u AS (DELETE FROM t_C WHERE id = 1 AND v = 'first' RETURNING id) INSERT INTO n2 SELECT 'C' FROM u",
	row_lock    => "WITH l AS MATERIALIZED (SELECT FROM t_C WHERE id = 1 AND v = 'first' FOR SHARE) INSERT INTO h2 SELECT 'C' FROM l",
	on_conflict => "WITH c AS (INSERT INTO t_C VALUES (1, 'second') ON CONFLICT (id) DO UPDATE SET v = excluded.v WHERE t_C.v = 'first' RETURNING id) INSERT INTO n2 SELECT 'C' FROM c",
	repeatable  => "BEGIN ISOLATION LEVEL REPEATABLE READ; INSERT INTO n2 SELECT 'C' FROM p_C; COMMIT",
	serializable => "BEGIN ISOLATION LEVEL SERIALIZABLE; INSERT INTO h2 SELECT 'C' FROM p_C; COMMIT",
	savepoint   => "BEGIN; SAVEPOINT a; INSERT INTO n2 SELECT 'C' FROM p_C; RELEASE a; COMMIT",
	missed_nvm  => $index . "INSERT INTO n2 SELECT 'C' WHERE NOT EXISTS (SELECT FROM t_C WHERE id = 2)",
	missed_heap => $seq . "INSERT INTO h2 SELECT 'C' WHERE NOT EXISTS (SELECT FROM t_C WHERE id = 2)",
	key_seen    => $index . "INSERT INTO n2 SELECT 'C' FROM t_C WHERE id = 11",
	key_only    => $index . "INSERT INTO h2 SELECT 'C' WHERE 11 IN (SELECT id FROM t_C WHERE id > 10 ORDER BY id)",
	key_taken   => "WITH i AS (INSERT INTO t_C VALUES (11, 'second') ON CONFLICT DO NOTHING RETURNING id) INSERT INTO n2 SELECT 'C' WHERE NOT EXISTS (SELECT FROM i)",
	key_refused => "DO 'BEGIN INSERT INTO t_C VALUES (11, ''second''); EXCEPTION WHEN unique_violation THEN INSERT INTO h2 VALUES (''C''); END'",
	key_reused  => "INSERT INTO t_C VALUES (2, 'second'); INSERT INTO n2 VALUES ('C')",
	async       => "SET synchronous_commit = off; INSERT INTO n2 SELECT 'C' FROM p_C",
	read_only   => 'SELECT 1 FROM p_C',
	read_missed => $index . 'SELECT 1 WHERE NOT EXISTS (SELECT FROM t_C WHERE id = 2)',
	copy        => 'COPY (SELECT a FROM p_C) TO STDOUT',
	cursor      => 'BEGIN; DECLARE c CURSOR FOR SELECT a FROM p_C; FETCH c; COMMIT',
	parallel    => "$parallel$NvmTest::force_parallel; SELECT a FROM p_C",
	vacuum      => 'SELECT 1 FROM p_C; VACUUM t_C',);
my %is_reader = map { $_ => 1 } qw(read_only read_missed copy cursor parallel vacuum);
my @cases = sort keys %second;
my @unread = map { "unread_$_" } 1 .. 3;

my $node = NvmTest->start_new('dependency', simulate => 1, conf => <<CONF);
autovacuum = off
nvm.horizon_naptime = 60s
wal_writer_delay = 10s
CONF
$node->safe_psql('postgres', <<SQL . join "\n", map { <<CASE } @cases, @unread);
CREATE TABLE n2 (name text) USING nvm;
CREATE TABLE h2 (name text);
SQL
CREATE TABLE t_$_ (id int PRIMARY KEY, v text) USING nvm;
CREATE TABLE p_$_ (a int) USING nvm;
INSERT INTO t_$_ SELECT i, 'base' FROM generate_series(1, 10) i;
CASE

# each first transaction is visible, and waits before its decision
my @firsts;
foreach my $case (@cases, @unread)
{
	my $session = $node->session;
	(my $sql = $first) =~ s/_C/_$case/g;
	$session->sql($sql);
	$session->hold('commit-before-decision', 'COMMIT');
	push @firsts, $session;
}
# whoever had to wait for a lock would wait for ever
foreach my $case (@cases)
{
	(my $sql = $second{$case}) =~ s/\bC\b/$case/g;
	$sql =~ s/_C\b/_$case/g;
	my ($ret, $out, $err) = $node->psql('postgres', "SET lock_timeout = '20s'; SET statement_timeout = '60s'; $sql");
	is($ret, 0, "$case: the second is answered") or diag($err);
	is($out, $is_reader{$case} ? '1' : '', "$case: with what the first did");
}
my $saved = $node->save_crash;
$_->drop foreach @firsts;

foreach my $image (@images)
{
	my ($mode, $seed) = @$image;
	my $name = "$mode image, seed $seed";

	$node->restore_crash($saved, mode => $mode, seed => $seed);
	$node->start;
	my (@lost, @lost_first);
	my %seen = map { $_ => 1 } split /\n/,
	  $node->safe_psql('postgres', 'SELECT name FROM n2 UNION ALL SELECT name FROM h2');
	foreach my $case (@cases)
	{
		my $there = $node->safe_psql('postgres',
			"SELECT (SELECT count(*) FROM p_$case), (SELECT string_agg(v, '+') FROM t_$case WHERE id = 1), (SELECT string_agg(v, '+') FROM t_$case WHERE id = 2), (SELECT string_agg(v, '+') FROM t_$case WHERE id = 11)");
		push @lost, $case if !$is_reader{$case} && !$seen{$case};
		push @lost_first, "$case: $there" unless $there =~ /^1\|(first|second|)\|(second|)\|new$/;
	}
	is("@lost", '', "$name: the second is there");
	is(join("\n", @lost_first), '', "$name: and the first");
	if ($mode eq 'durable')
	{
		my $count = join ' + ', map { "(SELECT count(*) FROM p_$_)" } @unread;
		is($node->safe_psql('postgres', "SELECT $count"), '0',
			"$name: the first is lost where nobody read it");
	}
	$node->check_clean($name);
}
$node->stop;

done_testing();

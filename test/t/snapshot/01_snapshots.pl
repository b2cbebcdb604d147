# Copyright (c) 2026, pg_nvm contributors

# Snapshots that outlive or leave their session: exported ones, SET TRANSACTION
# SNAPSHOT at each level, parallel workers, cursors WITH HOLD, and what happens to
# waiters and to held rows when a session is cancelled, timed out or terminated.
# Everything is done to an nvm table and to a heap table beside it, which must
# answer the same.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('snapshots', conf => <<CONF, sql => <<SQL);
min_parallel_table_scan_size = 0
min_parallel_index_scan_size = 0
parallel_setup_cost = 0
parallel_tuple_cost = 0
max_parallel_workers = 8
autovacuum = off
deadlock_timeout = 100ms
CONF
CREATE TABLE n (id int PRIMARY KEY, k int, v int, pad text) USING nvm;
CREATE INDEX n_k ON n (k);
CREATE TABLE h (id int PRIMARY KEY, k int, v int, pad text) USING heap;
CREATE INDEX h_k ON h (k);
INSERT INTO n SELECT g, g % 10, g, repeat('x', 100) FROM generate_series(1, 2000) g;
INSERT INTO h SELECT g, g % 10, g, repeat('x', 100) FROM generate_series(1, 2000) g;
ANALYZE n; ANALYZE h;
SQL

# both tables change in one transaction
sub change
{
	my ($what, $session) = @_;
	my $sql = 'BEGIN; ' . join('; ', map { (my $s = $what) =~ s/\bT\b/$_/g; $s } 'n', 'h') . '; COMMIT';
	return $session ? $session->sql($sql) : $node->safe_psql('postgres', $sql);
}

# a digest of the table in each way it can be read
my %ways = (
	seq      => 'seqscan',
	index    => 'indexscan',
	bitmap   => 'bitmapscan',
	only     => 'indexonlyscan');
sub digest
{
	my ($s, $table, $workers) = @_;
	my $sql = "SET LOCAL max_parallel_workers_per_gather = $workers";
	foreach my $way (sort keys %ways)
	{
		my $columns = $way eq 'only' ? 'k' : 'concat(id, k, v, pad)';
		$sql .= "; SET LOCAL enable_$_ = " . ($_ eq $ways{$way} ? 'on' : 'off') foreach sort values %ways;
		$sql .= "; SELECT '$way', count(*), sum(hashtext($columns\::text)) FROM $table WHERE k >= 0";
	}
	return $s->sql($sql);
}

# the same in both tables, with workers and without
sub same
{
	my ($s, $name, $expected) = @_;
	my $n = digest($s, 'n', 0);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($n, digest($s, 'h', 0), "$name: nvm is what heap is");
	is(digest($s, 'n', 3), $n, "$name: parallel workers see the same");
	is($n, $expected, "$name: it is what it was") if defined $expected;
	return $n;
}

# ---- exported snapshots ----

foreach my $level ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE')
{
	my $exporter = $node->session("BEGIN ISOLATION LEVEL $level");
	# the exporter's own changes are not in the snapshot it exports
	$exporter->sql("INSERT INTO $_ VALUES (90000, 1, 1, 'unseen')") foreach 'n', 'h';
	my $other = $node->session('BEGIN');
	$other->sql('UPDATE n SET v = v + 1 WHERE id BETWEEN 100 AND 200; UPDATE h SET v = v + 1 WHERE id BETWEEN 100 AND 200');
	my $id     = $exporter->sql('SELECT pg_export_snapshot()');
	my $before = $node->session("BEGIN ISOLATION LEVEL REPEATABLE READ", "SET TRANSACTION SNAPSHOT '$id'");
	my $was    = same($before, "$level, exported");

	$other->sql('COMMIT');
	change('UPDATE T SET k = k + 1, v = v * 2 WHERE id % 3 = 0');
	change('DELETE FROM T WHERE id % 5 = 4');
	change("INSERT INTO T SELECT g, 3, 0, 'new' FROM generate_series(10001, 10500) g ON CONFLICT DO NOTHING");
	$node->safe_psql('postgres', 'VACUUM n; VACUUM h');

	my @importers = map { $node->session("BEGIN ISOLATION LEVEL $_", "SET TRANSACTION SNAPSHOT '$id'") }
	  $level eq 'SERIALIZABLE' ? ('REPEATABLE READ', 'SERIALIZABLE') : ('REPEATABLE READ');
	same($before, "$level, imported before the changes", $was);
	same($_, "$level, imported after them", $was) foreach @importers;

	# an importer holds the horizon when the exporter has gone
	$exporter->sql('ROLLBACK');
	$before->sql('COMMIT');
	change('UPDATE T SET v = v + 1');
	$node->safe_psql('postgres', 'VACUUM n; VACUUM h');
	same($_, "$level, after the exporter's end", $was) foreach @importers;
	$_->sql('COMMIT') foreach @importers;
	$_->drop foreach $exporter, $other, $before, @importers;
	my $s = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ');
	isnt(same($s, "$level, now"), $was, "$level: the changes are there");
	$s->drop;
}

# ---- a level's snapshot stays, also for workers ----

foreach my $level ('REPEATABLE READ', 'SERIALIZABLE')
{
	my $s = $node->session("BEGIN ISOLATION LEVEL $level");
	my $was = same($s, "$level, first");
	change('UPDATE T SET v = v + 7, k = (k + 5) % 10 WHERE id % 2 = 0');
	change('DELETE FROM T WHERE id % 11 = 3');
	same($s, "$level, after changes of others", $was);
	$s->sql('ROLLBACK');

	# own changes are seen by workers of the same transaction
	$s->sql("BEGIN ISOLATION LEVEL $level");
	$s->sql('UPDATE n SET v = 0 WHERE id % 4 = 0; UPDATE h SET v = 0 WHERE id % 4 = 0');
	$s->sql('SAVEPOINT a; DELETE FROM n WHERE id % 4 = 1; DELETE FROM h WHERE id % 4 = 1');
	my $in = same($s, "$level, own changes");
	$s->sql('ROLLBACK TO a');
	isnt(same($s, "$level, own changes rolled back to a savepoint"), $in, "$level: the savepoint's are gone");
	$s->sql('ROLLBACK');
	$s->drop;
}

# ---- cursors ----
{
	my %got;
	foreach my $t ('n', 'h')
	{
		my $s = $node->session('BEGIN',
			"DECLARE held SCROLL CURSOR WITH HOLD FOR SELECT id, v FROM $t ORDER BY id",
			"DECLARE here SCROLL CURSOR FOR SELECT id, v FROM $t WHERE id < 2000 ORDER BY id");
		my $got = $s->sql('FETCH 3 FROM held') . $s->sql('FETCH 2 FROM here');
		$s->sql("UPDATE $t SET v = 77 WHERE id < 20; DELETE FROM $t WHERE id = 22");
		$got .= $s->sql('FETCH 3 FROM here') . $s->sql('FETCH BACKWARD 2 FROM here');
		$s->sql('COMMIT');
		$node->safe_psql('postgres', "DELETE FROM $t WHERE id < 100; VACUUM $t");
		$got .= $s->sql('FETCH 3 FROM held') . $s->sql('FETCH BACKWARD 4 FROM held') . $s->sql('FETCH LAST FROM held') . $s->sql('FETCH ABSOLUTE 7 FROM held');
		$s->sql('CLOSE held');
		# WHERE CURRENT OF, the same row twice and after others changed it
		$s->sql('BEGIN', "DECLARE c CURSOR FOR SELECT id, v FROM $t WHERE id BETWEEN 200 AND 240 ORDER BY id FOR UPDATE");
		$s->sql('BEGIN');
		$s->sql("DECLARE d CURSOR FOR SELECT id, v FROM $t WHERE k >= 0 AND id BETWEEN 200 AND 240 ORDER BY id FOR UPDATE");
		$got .= $s->sql('FETCH 2 FROM d');
		$got .= $s->sql("UPDATE $t SET v = v + 1000 WHERE CURRENT OF d RETURNING id, v");
		$got .= $s->sql("UPDATE $t SET v = v + 1000 WHERE CURRENT OF d RETURNING id, v");
		$got .= $s->sql('FETCH 1 FROM d');
		$got .= $s->sql("DELETE FROM $t WHERE CURRENT OF d RETURNING id, v");
		$got .= $s->sql("UPDATE $t SET k = k + 1 WHERE CURRENT OF d RETURNING id, v");
		$s->sql('COMMIT');
		$s->drop;
		$got{$t} = $got;
	}
	is($got{n}, $got{h}, 'cursors: forth and back, held beyond the transaction, WHERE CURRENT OF');
}

# ---- sessions that are cut off ----

# what they held is free, what they did is undone, who waited goes on
sub cut_off
{
	my ($name, $cut, $ends) = @_;
	my $holder = $node->session('BEGIN', 'UPDATE n SET v = -99 WHERE id = 300', 'INSERT INTO n VALUES (-1, 0, 0, NULL)',
		'SELECT FROM n WHERE id = 301 FOR KEY SHARE', 'SAVEPOINT s', 'DELETE FROM n WHERE id = 302', 'SAVEPOINT t', 'UPDATE n SET id = -303 WHERE id = 303');
	my $pid = $holder->pid;
	$node->safe_psql('postgres', "UPDATE n SET v = 1 WHERE id IN (400)");
	$holder->sql('SELECT set_config(\'idle_in_transaction_session_timeout\', \'20ms\', false)') if $cut eq 'idle';
	# waits for the holder's row, and for its key
	my $waiter = $node->session;
	$waiter->send('UPDATE n SET v = v + 1 WHERE id BETWEEN 300 AND 303');
	if ($cut eq 'waiter')
	{
		my $wpid = $waiter->pid;
		$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = $wpid AND wait_event_type = 'Lock'") or die;
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($wpid, 60000)");
		is($holder->sql('SELECT v FROM n WHERE id = 300'), '-99', "$name: the holder goes on");
		$holder->sql('ROLLBACK');
	}
	elsif ($cut eq 'idle') { }
	else
	{
		$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_locks WHERE pid = " . $waiter->pid . ' AND NOT granted') or die;
		$node->safe_psql('postgres', "SELECT pg_terminate_backend($pid, 60000)");
	}
	# answered when the update is over
	$waiter->sql('SELECT 1') unless $cut eq 'waiter';
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid() AND backend_type = 'client backend'") or die;
	is($node->safe_psql('postgres', 'SELECT count(*), min(id) > 0 FROM n WHERE id IN (-1, -303, 300, 301, 302, 303)'), '4|t', "$name: nothing of it remains");
	is($node->safe_psql('postgres', 'SELECT sum(v - w) FROM n JOIN kept USING (id)'), $ends, "$name: who waited is served");
	is($node->safe_psql('postgres', "SELECT count(*) FROM n WHERE id BETWEEN 300 AND 303"), 4, "$name: all rows are there");
	is($node->safe_psql('postgres', 'UPDATE n SET v = w FROM kept WHERE kept.id = n.id RETURNING 1') =~ tr/1//, 4, "$name: and free");
	$_->drop foreach $holder, $waiter;
	return;
}
$node->safe_psql('postgres', <<SQL);
INSERT INTO n SELECT g, 1, g, 'x' FROM generate_series(300, 303) g ON CONFLICT DO NOTHING;
CREATE TABLE kept AS SELECT id, v AS w FROM n WHERE id BETWEEN 300 AND 303;
SQL
cut_off('pg_terminate_backend', 'terminate', 4);
cut_off('idle_in_transaction_session_timeout', 'idle', 4);
cut_off('a waiter terminated', 'waiter', 0);

# in the middle of a statement, which the session survives
{
	my $holder = $node->session('BEGIN', 'UPDATE n SET v = 0 WHERE id = 1502', 'DELETE FROM n WHERE id = 1501');
	foreach my $case (
		[ 'statement_timeout', 'SET statement_timeout = 50', 'canceling statement due to statement timeout' ],
		[ 'lock_timeout',      'SET lock_timeout = 50',      'canceling statement due to lock timeout' ])
	{
		my ($name, $set, $message) = @$case;
		foreach my $sql (
			'UPDATE n SET v = v + 1 WHERE id <= 1502',
			'DELETE FROM n WHERE id <= 1501',
			'SELECT id FROM n WHERE id <= 1502 ORDER BY id FOR SHARE',
			"INSERT INTO n SELECT g, 0, 0, 'x' FROM generate_series(20000, 20100) g UNION ALL SELECT 1501, 0, 0, 'y' ON CONFLICT (id) DO UPDATE SET v = -5")
		{
			my $sums = $node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM n');
			my ($ret, $out, $err) = $node->psql('postgres', "$set; $sql");
			like($err, qr/$message/, "$name: $sql");
			is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM n'), $sums, "$name: nothing remains");
		}
	}
	$holder->sql('ROLLBACK');
	$holder->drop;
	is($node->safe_psql('postgres', "SET lock_timeout = '10s'; SELECT count(*) FROM (SELECT FROM n FOR UPDATE) x") > 0, 1, 'no lock remains');
}
$node->check_clean('at the end');

done_testing();

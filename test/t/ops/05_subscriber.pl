# Copyright (c) 2026, pg_nvm contributors

# Logical replication into nvm tables: every transaction of the publisher is
# applied exactly once, however the subscriber dies in between.  The publisher's
# tables are heap; the publisher would refuse others.
#
# Long form: twelve losses of power, here 4.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $pub = PostgreSQL::Test::Cluster->new('publisher');
$pub->init(allows_streaming => 'logical');
$pub->append_conf('postgresql.conf', "logical_decoding_work_mem = 64kB\nmax_prepared_transactions = 10\nlog_statement = none\nautovacuum = off");
$pub->start;

my $sub = NvmTest->start_new('subscriber', simulate => 1, conf => <<CONF, extension => 0);
max_logical_replication_workers = 8
max_sync_workers_per_subscription = 2
max_worker_processes = 20
max_replication_slots = 10
wal_retrieve_retry_interval = 100ms
max_prepared_transactions = 10
CONF

my $tables = <<SQL;
CREATE TABLE acc (id int PRIMARY KEY, balance int, note text);
CREATE TABLE hist (n bigint, acc int, delta int, body text);
CREATE TABLE keyless (a int, b text, big text);
ALTER TABLE keyless REPLICA IDENTITY FULL;
CREATE TABLE byindex (a int NOT NULL, b int NOT NULL, v text);
CREATE UNIQUE INDEX byindex_key ON byindex (b, a);
ALTER TABLE byindex REPLICA IDENTITY USING INDEX byindex_key;
CREATE TABLE parted (k int PRIMARY KEY, v int) PARTITION BY RANGE (k);
CREATE TABLE named (k text PRIMARY KEY, n int, note varchar);
SQL
$pub->safe_psql('postgres', $tables . <<SQL);
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (1000);
INSERT INTO acc SELECT i, 0, repeat('n', i % 100) FROM generate_series(1, 200) i;
INSERT INTO keyless SELECT i, 'row ' || i, repeat(md5(i::text), 500) FROM generate_series(1, 20) i;
INSERT INTO keyless VALUES (NULL, NULL, NULL), (1, NULL, 'x');
INSERT INTO byindex SELECT i, i * 2, 'v' || i FROM generate_series(1, 100) i;
INSERT INTO parted SELECT i, 0 FROM generate_series(1, 100) i;
INSERT INTO named SELECT 'key ' || i, 0, 'n' FROM generate_series(1, 50) i;
CREATE PUBLICATION p FOR TABLE acc, hist, keyless, byindex, parted, named WITH (publish_via_partition_root = true);
SQL
$sub->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
SET default_table_access_method = nvm;
$tables
CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (50);
CREATE TABLE parted_2 PARTITION OF parted FOR VALUES FROM (50) TO (1000) USING heap;
-- what is applied fires this, so that each transaction also writes to heap
CREATE TABLE applied (n bigint) USING heap;
CREATE FUNCTION applied() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN IF new.n % 3 = 0 THEN INSERT INTO public.applied VALUES (new.n); END IF; RETURN new; END';
CREATE TRIGGER applied AFTER INSERT ON hist FOR EACH ROW EXECUTE FUNCTION applied();
ALTER TABLE hist ENABLE ALWAYS TRIGGER applied;
SQL

my $publisher = $pub->connstr . ' dbname=postgres';
my @tables = ('acc', 'hist', 'keyless', 'byindex', 'parted', 'named');

sub digest
{
	my ($node) = @_;
	return join ' ', map { $node->safe_psql('postgres',
			"SELECT '$_', count(*), md5(coalesce(string_agg(t::text, ',' ORDER BY t::text), '')) FROM $_ t") } @tables;
}

# Everything that the publisher has is at the subscriber, once.
sub same
{
	my ($name) = @_;
	$pub->wait_for_catchup('s');
	my ($theirs, $ours) = map { digest($_) } ($pub, $sub);
	is($ours, $theirs, "$name: tables are equal");
	is($sub->safe_psql('postgres', 'SELECT count(*), count(DISTINCT n) FROM applied'),
		$sub->safe_psql('postgres', 'SELECT count(*), count(*) FROM hist WHERE n % 3 = 0'), "$name: and so is what a trigger wrote to a heap table");
	is($sub->safe_psql('postgres', 'SELECT sum(balance) = (SELECT sum(delta) FROM hist) FROM acc'),
		$pub->safe_psql('postgres', 'SELECT sum(balance) = (SELECT sum(delta) FROM hist) FROM acc'), "$name: balances and history agree");
	$sub->check_clean($name);
	return;
}

# ---- tablesync, and a subscriber that dies when the first table is copied.  (A
# little later, between the drop of a worker's slot at the publisher and the
# commit that says so, PostgreSQL itself would not recover from it: so no other
# worker is at another table.)
$sub->set_conf('nvm.failpoint' => "'commit-prepared:crash'", max_sync_workers_per_subscription => 1);
$sub->reload;
$sub->psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '$publisher application_name=s' PUBLICATION p");
$sub->wait_crashed;
$sub->set_conf('nvm.failpoint' => "''", max_sync_workers_per_subscription => 2);
$sub->power_failure(seed => 1);
$sub->start;
$sub->wait_for_subscription_sync($pub, 's');
same('tablesync with a power failure');

# ---- all kinds of changes
$pub->safe_psql('postgres', <<SQL);
UPDATE keyless SET b = b || '!' WHERE a % 2 = 0;
UPDATE keyless SET a = 1000 + a WHERE a = 3;
DELETE FROM keyless WHERE a = 4 OR a IS NULL;
UPDATE keyless SET big = repeat('new', 5000) WHERE a = 5;
UPDATE keyless SET b = 'unchanged toast' WHERE a = 6;
UPDATE byindex SET b = b + 1000 WHERE a < 20;
UPDATE byindex SET v = 'changed' WHERE a > 90;
DELETE FROM byindex WHERE a BETWEEN 40 AND 60;
UPDATE parted SET k = k + 100 WHERE k < 20;
DELETE FROM parted WHERE k % 7 = 0;
UPDATE acc SET id = id + 1000 WHERE id > 190;
BEGIN; INSERT INTO acc VALUES (5000, 0, 'a'); SAVEPOINT a; DELETE FROM acc WHERE id = 5000; ROLLBACK TO a; UPDATE acc SET note = 'b' WHERE id = 5000; COMMIT;
BEGIN; DELETE FROM acc WHERE id < 10; ROLLBACK;
INSERT INTO hist VALUES (1, 1, 0, 'to be truncated');
TRUNCATE hist;
SQL
same('updates and deletes by key, index and all columns, TRUNCATE');

# ---- what the worker hands over has long headers: the key is the same, all the same
$pub->safe_psql('postgres', 'UPDATE named SET n = n + 1');
same('updates of another column than the key');
$sub->poll_query_until('postgres', "SELECT n_tup_upd = 50 FROM pg_stat_user_tables WHERE relname = 'named'") or die;
is($sub->safe_psql('postgres', "SELECT n_tup_hot_upd FROM pg_stat_user_tables WHERE relname = 'named'"), '50',
	'and add no index entries');

# ---- a row that is missing, one that is there already
$sub->safe_psql('postgres', 'DELETE FROM acc WHERE id = 7');
$pub->safe_psql('postgres', "UPDATE acc SET note = 'nobody has it' WHERE id = 7; DELETE FROM acc WHERE id = 7");
same('a row that the subscriber lost');
$sub->safe_psql('postgres', "INSERT INTO acc VALUES (7000, 0, 'local')");
$pub->safe_psql('postgres', "INSERT INTO acc VALUES (7000, 0, 'published')");
$sub->poll_query_until('postgres', 'SELECT apply_error_count > 0 FROM pg_stat_subscription_stats') or die;
like(slurp_file($sub->logfile), qr/duplicate key value violates unique constraint "acc_pkey"|conflict=insert_exists/, 'a conflict is reported');
$sub->safe_psql('postgres', 'DELETE FROM acc WHERE id = 7000');
same('a conflict, solved');

# ---- crashes of the subscriber while it applies
my $n = 0;

sub load
{
	my ($client) = @_;
	return sub {
		my ($c, $i) = @_;
		my $a = 1 + ($i * 7 + $c * 31) % 150;
		my $k = ($c * 10000 + $i) * 100 + $n;
		my $sql = "UPDATE acc SET balance = balance + $i WHERE id = $a + 10; INSERT INTO hist SELECT $k, $a + 10, $i, repeat('h', 50) WHERE EXISTS (SELECT FROM acc WHERE id = $a + 10);";
		return "BEGIN; $sql ROLLBACK;" if $i % 11 == 0;
		return "BEGIN; SAVEPOINT a; $sql RELEASE a; UPDATE parted SET v = v + 1 WHERE k = 20 + $i % 60; COMMIT;" if $i % 3 == 0;
		return "BEGIN; $sql UPDATE keyless SET b = '$k' WHERE a = 8; COMMIT;";
	};
}

foreach my $seed (1 .. (NvmTest::is_long() ? 12 : 4))
{
	$n = $seed;
	my $streaming = $seed % 2 == 0 ? 'on' : 'off';
	$sub->safe_psql('postgres', "ALTER SUBSCRIPTION s SET (streaming = $streaming, synchronous_commit = " . ($seed % 3 == 0 ? 'on' : 'off') . ')');
	my $before = $sub->safe_psql('postgres', 'SELECT count(*) FROM hist');
	my @loads = map { NvmTest::Load->new($pub, clients => 2, transactions => 150, sql => load($_)) } 1;
	# one transaction that is larger than what the publisher decodes in memory
	$pub->safe_psql('postgres', "BEGIN; INSERT INTO hist SELECT -i - $seed * 10000, NULL, 0, repeat('L', 100) FROM generate_series(1, 3000) i; COMMIT");
	$sub->poll_query_until('postgres', "SELECT count(*) > $before + 20 FROM hist") or die;
	if ($seed % 4 == 3)
	{
		$sub->crash;
	}
	else
	{
		$sub->power_failure(seed => $seed);
	}
	$_->finish foreach @loads;
	$sub->start;
	same("streaming $streaming, crash $seed");
}

# ---- at points of the commit of an apply worker
foreach my $point ('commit-prepared', 'commit-after-prepare', 'commit-mixed-decided')
{
	$sub->set_conf('nvm.failpoint' => "'$point:crash:3'");
	$sub->reload;
	eval { $pub->safe_psql('postgres', "INSERT INTO hist VALUES (1000000 + $_, NULL, 0, '$point')") foreach 1 .. 6; };
	$sub->wait_crashed;
	$sub->set_conf('nvm.failpoint' => "''");
	$sub->power_failure(seed => 5);
	$sub->start;
	$pub->safe_psql('postgres', "INSERT INTO hist VALUES (1000100, NULL, 0, 'after $point')");
	same("crash at $point");
	$pub->safe_psql('postgres', "DELETE FROM acc WHERE id = -1; TRUNCATE hist; UPDATE acc SET balance = 0");
	$pub->wait_for_catchup('s');
	$sub->safe_psql('postgres', 'TRUNCATE applied');
}

# ---- two-phase commit: prepared at the publisher is prepared here, across a loss
# of power, and decided once
SKIP:
{
	skip 'nvm tables take no part in two-phase commit', 1
	  if ($sub->psql('postgres', "BEGIN; INSERT INTO hist VALUES (1, NULL, 0, 'p'); PREPARE TRANSACTION 'probe'; ROLLBACK PREPARED 'probe'"))[0] != 0;
	$sub->safe_psql('postgres', "DROP SUBSCRIPTION s; TRUNCATE acc, hist, keyless, byindex, parted, named, applied");
	$sub->safe_psql('postgres', "CREATE SUBSCRIPTION s CONNECTION '$publisher application_name=s' PUBLICATION p WITH (two_phase = on)");
	$sub->wait_for_subscription_sync($pub, 's');
	$sub->poll_query_until('postgres', "SELECT subtwophasestate = 'e' FROM pg_subscription") or die;
	foreach my $gid ('commit', 'rollback', 'late')
	{
		my $k = { commit => 2000001, rollback => 2000004, late => 2000007 }->{$gid};
		$pub->safe_psql('postgres', "BEGIN; INSERT INTO hist SELECT $k, id, 1, 'prepared $gid' FROM acc WHERE id = 20; UPDATE acc SET balance = balance + 1 WHERE id = 20; UPDATE keyless SET b = '$gid' WHERE a = 8; PREPARE TRANSACTION '$gid'")
		  if $gid eq 'commit';
		$pub->safe_psql('postgres', "BEGIN; INSERT INTO hist VALUES ($k, NULL, 0, '$gid'); UPDATE byindex SET v = '$gid' WHERE a = " . ($gid eq 'late' ? 95 : 96) . "; PREPARE TRANSACTION '$gid'")
		  if $gid ne 'commit';
	}
	$pub->wait_for_catchup('s');
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), '3', 'three transactions are prepared at the subscriber');
	$sub->power_failure(seed => 11);
	$sub->start;
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), '3', 'and are after a loss of power');
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM hist WHERE n > 2000000'), '0', 'and nothing of them shows');
	$pub->safe_psql('postgres', "COMMIT PREPARED 'commit'; ROLLBACK PREPARED 'rollback'");
	$pub->wait_for_catchup('s');
	$sub->power_failure(seed => 12);
	$sub->start;
	is($sub->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), '1', 'one is left after two are decided and another loss of power');
	$pub->safe_psql('postgres', "COMMIT PREPARED 'late'");
	same('two-phase commit');
	is($sub->safe_psql('postgres', 'SELECT string_agg(n::text, \' \' ORDER BY n) FROM hist WHERE n > 2000000'), '2000001 2000007', 'what was committed is there');
}

# ---- what a subscriber cannot do
$sub->fails_with('CREATE PUBLICATION q FOR TABLE acc', qr/nvm.*HINT: ./s, 'publishing an nvm table is refused with a hint');
$sub->safe_psql('postgres', 'DROP SUBSCRIPTION s');
$sub->stop;
$pub->stop;

done_testing();

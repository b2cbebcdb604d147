# Copyright (c) 2026, pg_nvm contributors

# Three losses of power with the gap collector switched off leave three
# generations of transactions that are not to be believed.  While they are
# there, every kind of scan shows what it should, rows that carry their stamps
# can be changed, and work goes on; then the collector removes them, also if it
# is interrupted, twice, in the middle of that.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $accounts = 300;

my $node = NvmTest->start_new('gaps', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
nvm.collect_gaps = off
CONF
CREATE TABLE ack (client int, n int) USING nvm;
CREATE TABLE account (id int PRIMARY KEY, balance int, owner text) USING nvm;
-- entries that its WAL keeps and takes back on its own, and none of those
SET nvm.default_index_method = btree;
CREATE INDEX account_owner ON account USING btree (owner);
RESET nvm.default_index_method;
CREATE INDEX account_owner_id ON account (owner, id);
INSERT INTO account SELECT i, 100, 'owner ' || i % 50 FROM generate_series(1, $accounts) i;
CREATE TABLE big (id int PRIMARY KEY, t text) USING nvm;
ALTER TABLE big ALTER t SET STORAGE EXTERNAL;
INSERT INTO big SELECT i, repeat('b', 20000) FROM generate_series(1, 10) i;
CREATE TABLE gone (a int) USING nvm;
INSERT INTO gone VALUES (1);
SQL

# The same rows by every kind of scan
my $all = "SELECT count(*), sum(id), sum(balance), md5(string_agg(owner, ',' ORDER BY id)) FROM";
my @kinds = qw(seqscan indexscan indexonlyscan bitmapscan tidscan);
my %shape = (
	'seqscan' => "$all account",
	'tidscan, range' => "$all account WHERE ctid >= '(0,0)'",
	'indexscan' => "$all (SELECT * FROM account WHERE id > -1 ORDER BY id OFFSET 0) a",
	'indexscan, backward' => "$all (SELECT * FROM account WHERE id > -1 ORDER BY id DESC OFFSET 0) a",
	'indexscan, owner' => "$all (SELECT * FROM account WHERE owner > '' ORDER BY owner OFFSET 0) a",
	'indexscan, by key' => "SET enable_hashjoin = off; SET enable_mergejoin = off; $all (SELECT 10000 * r + i AS k FROM generate_series(0, 3) r, generate_series(0, 401) i) k CROSS JOIN LATERAL (SELECT * FROM account WHERE id = k OFFSET 0) a",
	'bitmapscan' => "$all account WHERE id > -1",
	'bitmapscan, both' => "$all account WHERE id > -1 OR owner > ''",
	'seqscan, parallel' => "$NvmTest::force_parallel; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; $all account",
	'seqscan, sample' => "$all account TABLESAMPLE SYSTEM (100)",
	'seqscan, locked' => "$all (SELECT * FROM account FOR UPDATE) a",
	'seqscan, temporary copy' => "CREATE TEMP TABLE c AS TABLE account; $all c",);

sub agree
{
	my ($name) = @_;
	my $expected;
	my @wrong;

	foreach my $shape ('seqscan', sort keys %shape)
	{
		my ($kind) = $shape =~ /^(\w+)/;
		my $only = join ' ', map { "SET enable_$_ = " . ($_ eq $kind ? 'on' : 'off') . ';' } @kinds;
		my $got = $node->safe_psql('postgres', "$only $shape{$shape}");
		$expected //= $got;
		push @wrong, "$shape: $got, not $expected" if $got ne $expected;
	}
	my $ids = $node->safe_psql('postgres',
		'SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM account WHERE id > -1');
	push @wrong, "index only: $ids of $expected" if $expected !~ /^$ids\|/;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join("\n", @wrong), '', "$name: scans agree");
	is($node->safe_psql('postgres', 'SELECT count(*), sum(balance), min(owner) FROM account'),
		"$accounts|" . 100 * $accounts . '|owner 0', "$name: and are right");
	is($node->safe_psql('postgres', "SELECT count(*), count(DISTINCT t), min(length(t)), (SELECT count(*) FROM gone) FROM big"),
		'10|1|20000|1', "$name: large values are right");
	return;
}

# Losers of all kinds, which stay open until the power fails.
sub open_losers
{
	my ($round) = @_;
	my $base = 10000 * $round;
	my @open = map { $node->session('BEGIN') } 1 .. 6;

	$open[0]->sql("INSERT INTO account SELECT $base + i, 1, 'loser' FROM generate_series(1, 400) i");
	$open[1]->sql('DELETE FROM account WHERE id % 10 = 1');
	$open[2]->sql("UPDATE account SET balance = 0 WHERE id % 10 = 2");
	$open[3]->sql("UPDATE account SET owner = 'a loser', balance = -1 WHERE id % 10 = 3");
	$open[4]->sql("INSERT INTO big SELECT $base + i, repeat('l', 30000) FROM generate_series(1, 5) i; DELETE FROM big WHERE id = 1; UPDATE big SET t = 'short' WHERE id = 2");
	$open[5]->sql("CREATE TABLE loser (a int) USING nvm; INSERT INTO loser VALUES (1); TRUNCATE gone; SAVEPOINT a; DROP TABLE gone; INSERT INTO account VALUES ($base, 1, 'loser')");
	# one of them after a rollback to a savepoint, one again and again
	$open[2]->sql('SAVEPOINT a; DELETE FROM account WHERE id % 10 = 4; ROLLBACK TO a; UPDATE account SET balance = -2 WHERE id % 10 = 4');
	$open[2]->sql("UPDATE account SET balance = balance - 1 WHERE id % 10 IN (2, 4)") foreach 1 .. 3;
	return @open;
}

my %load = (
	clients => 3,
	sql     => sub {
		my ($client, $n) = @_;
		# none of those that the losers hold
		my ($from, $to) = map { 10 * ($_ % 30) + 5 + $client } $n * 7, $n * 3 + $client;
		my $end = $n % 4 == 0 ? 'ROLLBACK' : 'COMMIT';
		my $sql = "BEGIN; UPDATE account SET balance = balance - 1 WHERE id = $from; "
		  . "UPDATE account SET balance = balance + 1 WHERE id = $to; ";
		return "$sql ROLLBACK; INSERT INTO ack VALUES ($client, $n);" if $n % 4 == 0;
		return "$sql INSERT INTO ack VALUES ($client, $n); COMMIT;";
	});

my $gaps = 0;
foreach my $round (1 .. 3)
{
	my @losers = open_losers($round);
	my $load   = $node->start_load(%load);
	$load->wait_acknowledged(60);
	# what came after this is durable, their index entries among it
	$node->safe_psql('postgres', 'CREATE TABLE flush (); DROP TABLE flush');
	$node->power_failure(seed => $round, mode => $round == 2 ? 'working' : 'random');
	$_->drop foreach @losers;
	$load->finish;
	$node->start;
	$load->check('postgres', 'SELECT client, n FROM ack', name => "crash $round: acknowledged work");
	$node->safe_psql('postgres', 'TRUNCATE ack');

	my $now = $node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps');
	cmp_ok($now, '>=', $gaps + 6, "crash $round: there are $now gaps");
	$gaps = $now;
	agree("crash $round");

	# rows that losers had ended, updated and made can be changed, kept, and
	# changed back; keys of lost rows are free
	$node->safe_psql('postgres', <<SQL);
UPDATE account SET balance = balance + 7 WHERE id % 10 IN (1, 2, 3, 4);
BEGIN; UPDATE account SET balance = 0; DELETE FROM account WHERE id % 10 < 5; ROLLBACK;
UPDATE account SET balance = balance - 7 WHERE id % 10 IN (1, 2, 3, 4);
DELETE FROM account WHERE id = 11;
INSERT INTO account VALUES (11, 100 + (SELECT 100 * $accounts - sum(balance) - 100 FROM account), 'owner 11');
INSERT INTO account SELECT 10000 * $round + i, 0, 'owner again' FROM generate_series(1, 400) i;
UPDATE account SET owner = 'owner once more' WHERE id > 10000;
DELETE FROM account WHERE id > 10000;
UPDATE big SET t = repeat('b', 20000) WHERE id <= 3;
SQL
	agree("crash $round, changed");
	$node->safe_psql('postgres', 'VACUUM account') if $round == 2;
	agree("crash $round, again");
	$node->check_clean("crash $round");
}

# the collector, interrupted after it has swept and before it drops
my $interrupted = 0;
foreach my $place ('gap-swept', 'gap-before-mended', 'gap-mended', 'gap-before-drop', 'gap-drop')
{
	$node->set_conf('nvm.failpoint' => "'$place:crash'", 'nvm.collect_gaps' => 'on');
	$node->reload;
	$node->wait_crashed;
	$node->set_conf('nvm.failpoint' => "''", 'nvm.collect_gaps' => 'off');
	$node->power_failure(seed => 10 + ++$interrupted);
	$node->start;
	like($node->log_since_start, qr/nvm: recovery found/, "collector at $place: recovered");
	cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps'), '>=', $gaps,
		"collector at $place: no gap was dropped") if $place ne 'gap-drop';
	agree("collector at $place");
	$node->check_clean("collector at $place");
	$node->safe_psql('postgres', "UPDATE account SET balance = balance + 1 WHERE id = 1; UPDATE account SET balance = balance - 1 WHERE id = 1");
}

$node->set_conf('nvm.collect_gaps' => 'on');
$node->reload;
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps'), 'all gaps are gone');
agree('collected');
$node->check_clean('collected');
$node->safe_psql('postgres', 'VACUUM account, big');
agree('collected, vacuumed');
$node->crash;
$node->start;
agree('collected, crashed');

# with nothing to distrust, what losers had taken is free again
my $load = $node->start_load(%load, transactions => 50);
$load->check('postgres', 'SELECT client, n FROM ack', name => 'work after that');
$node->check_clean('in the end');
$node->stop;

done_testing();

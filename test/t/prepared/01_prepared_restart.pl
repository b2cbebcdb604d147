# Copyright (c) 2026, pg_nvm contributors

# Prepared transactions across restarts, kills and loss of power: a hundred at
# once, with their row locks, storages and foreign keys, for as long as nobody
# ends them; VACUUM, freezing and the gap collector work beside them.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $many = 100;
my $node = NvmTest->start_new('prepared', simulate => 1, conf => <<CONF, sql => <<SQL);
max_prepared_transactions = 120
max_connections = 20
autovacuum = off
nvm.horizon_naptime = 20
CONF
CREATE TABLE parent (id int PRIMARY KEY, v int, k int) USING nvm;
CREATE INDEX ON parent (k);
CREATE TABLE child (id int REFERENCES parent, n int) USING nvm;
CREATE TABLE h (n int) USING heap;
CREATE TABLE plain (id int, v int) USING nvm;
CREATE TABLE dropped (a int) USING nvm;
CREATE TABLE cleared (a int) USING nvm;
CREATE UNLOGGED TABLE ul (id int PRIMARY KEY) USING nvm;
INSERT INTO parent SELECT i, 0, i FROM generate_series(1, 400) i;
INSERT INTO plain SELECT i, 0 FROM generate_series(1, 400) i;
INSERT INTO dropped VALUES (1);
INSERT INTO cleared VALUES (1);
INSERT INTO ul SELECT generate_series(1, 10);
SQL

# transaction n: an insert with a foreign key, an update, a delete and a change
# of a key, a heap row, a lock alone, with a savepoint kept and one rolled back
my $sql = '';
foreach my $n (1 .. $many)
{
	$sql .= <<SQL;
BEGIN;
INSERT INTO child VALUES ($n, $n);
UPDATE plain SET v = $n WHERE id = $n;
SAVEPOINT a;
DELETE FROM plain WHERE id = 100 + $n;
UPDATE parent SET id = 1000 + $n WHERE id = 100 + $n;
RELEASE a;
SAVEPOINT b;
DELETE FROM plain WHERE id = 300;
SELECT FROM parent WHERE id = 400 FOR UPDATE;
ROLLBACK TO b;
INSERT INTO h VALUES ($n);
SELECT FROM parent WHERE id = 200 + $n FOR NO KEY UPDATE;
SELECT FROM parent WHERE id = 350 FOR KEY SHARE;
PREPARE TRANSACTION 'g$n';
SQL
}
$sql .= <<SQL;
BEGIN;
CREATE TABLE made (a int PRIMARY KEY) USING nvm;
INSERT INTO made SELECT generate_series(1, 1000);
DROP TABLE dropped;
TRUNCATE cleared;
INSERT INTO cleared VALUES (2);
PREPARE TRANSACTION 'ddl';
BEGIN;
INSERT INTO ul VALUES (11);
SELECT FROM ul WHERE id = 5 FOR UPDATE;
PREPARE TRANSACTION 'unlogged';
SQL
$node->safe_psql('postgres', $sql);
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.transactions WHERE state = \'prepared\''),
	$many + 2, 'they are there');

# who cannot be had: with every strength, each prepared one in the way
sub state_of
{
	return $node->safe_psql('postgres', <<SQL);
SET lock_timeout = '20s';
SELECT 'prepared', count(*) FROM nvm.transactions WHERE state = 'prepared' AND gid IS NOT NULL;
SELECT 'sum', sum(v), count(*) FROM plain;
SELECT 'child', count(*) FROM child;
SELECT 'heap', count(*) FROM h;
SELECT 'parent', count(*), max(id) FROM parent;
SET default_transaction_isolation = 'repeatable read';
SELECT 'free', count(*) FROM (SELECT FROM parent FOR UPDATE SKIP LOCKED) f;
SELECT 'no key', count(*) FROM (SELECT FROM parent FOR NO KEY UPDATE SKIP LOCKED) f;
SELECT 'share', count(*) FROM (SELECT FROM parent FOR SHARE SKIP LOCKED) f;
SELECT 'key share', count(*) FROM (SELECT FROM parent FOR KEY SHARE SKIP LOCKED) f;
SELECT 'plain', count(*) FROM (SELECT FROM plain FOR UPDATE SKIP LOCKED) f;
SELECT 'plain, key share', count(*) FROM (SELECT FROM plain FOR KEY SHARE SKIP LOCKED) f;
SQL
}
my $want = <<TEXT;
prepared|@{[ $many + 2 ]}
sum|0|400
child|0
heap|0
parent|400|400
free|99
no key|200
share|200
key share|300
plain|200
plain, key share|300
TEXT
chomp $want;
is(state_of(), $want, 'what they lock and hide, before a restart');

my @ways = (
	[ 'a clean restart', sub { $node->stop; } ],
	[ 'SIGKILL',         sub { $node->crash; } ],
	[ 'loss of power',   sub { $node->power_failure(seed => 11); } ],
	[ 'loss of power again at once', sub {
			$node->power_failure(seed => 12);
			$node->start;
			$node->power_failure(seed => 13);
		} ],);
foreach my $way (@ways)
{
	my ($name, $end) = @$way;
	$end->();
	$node->start;
	is(state_of(), $want, "$name: nothing has changed");
	# the tables that the prepared DDL has locked cannot be looked at
	is($node->safe_psql('postgres', <<SQL), '', "$name: checks find nothing");
SELECT r, c FROM unnest(ARRAY['parent', 'plain', 'child', 'ul']) r, nvm.check(r::regclass) c;
SELECT c FROM nvm.check_pool() c;
SQL
	$node->fails_with("SET lock_timeout = 100; DELETE FROM parent WHERE id = 7",
		qr/lock timeout/, "$name: a parent that is referred to is not deleted");
	$node->fails_with("SET lock_timeout = 100; INSERT INTO parent VALUES (1050)",
		qr/lock timeout/, "$name: a key that may come is not taken");
	$node->fails_with("SET lock_timeout = 100; TABLE cleared",
		qr/lock timeout/, "$name: nor is a table used that was truncated");
	# life goes on beside them
	$node->safe_psql('postgres', <<SQL);
INSERT INTO plain SELECT 1000, 0 FROM generate_series(1, 300);
UPDATE plain SET v = 1 WHERE id = 1000;
DELETE FROM plain WHERE id = 1000;
UPDATE parent SET k = k + 1 WHERE id BETWEEN 360 AND 390;
-- referred to, and locked FOR KEY SHARE: gets another root
UPDATE parent SET k = k + 1000 WHERE id IN (7, 8, 350);
VACUUM (FREEZE) plain;
VACUUM (FREEZE) parent;
VACUUM (FREEZE) pg_class;
SQL
	is(state_of(), $want, "$name: nothing has changed after VACUUM");
}
my $frozen = $node->safe_psql('postgres', <<SQL);
SELECT bool_and(age(relfrozenxid) >= (SELECT max(age(transaction)) FROM pg_prepared_xacts))
FROM pg_class WHERE relname IN ('plain', 'parent')
SQL
is($frozen, 't', 'relfrozenxid has not passed a prepared transaction');

# each ends them: the session that comes by, after a restart too
foreach my $n (1 .. $many)
{
	if ($n == $many / 2)
	{
		$node->power_failure(seed => 20);
		$node->start;
	}
	$node->safe_psql('postgres', ($n % 2 ? 'COMMIT' : 'ROLLBACK') . " PREPARED 'g$n'") if $n <= 6 || $n > $many - 6;
}
$node->safe_psql('postgres', join '', map { ($_ % 2 ? 'COMMIT' : 'ROLLBACK') . " PREPARED 'g$_';\n" } 7 .. $many - 6);
$node->safe_psql('postgres', "COMMIT PREPARED 'ddl'");
$node->safe_psql('postgres', "ROLLBACK PREPARED 'unlogged'");
my $after = <<SQL;
SELECT count(*), sum(n) FROM child;
SELECT count(*), sum(n) FROM h;
SELECT sum(v), count(*) FROM plain;
SELECT count(*), count(*) FILTER (WHERE id > 1000), sum(id % 2) FILTER (WHERE id > 1000) FROM parent;
SELECT count(*) FROM child WHERE NOT EXISTS (SELECT FROM parent WHERE parent.id = child.id);
SELECT count(*) FROM made;
SELECT to_regclass('dropped') IS NULL, (SELECT a FROM cleared);
SELECT count(*) FROM ul;
SELECT count(*) FROM nvm.relations WHERE ended OR relation IS NULL;
SELECT count(*) FROM nvm.transactions WHERE state = 'prepared';
SELECT count(*) FROM (SELECT FROM parent FOR UPDATE NOWAIT) f;
SELECT count(*) FROM (SELECT FROM plain FOR UPDATE NOWAIT) f;
SQL
my $expected = <<TEXT;
50|2500
50|2500
2500|350
400|50|50
0
1000
t|2
0
0
0
400
350
TEXT
chomp $expected;
is($node->safe_psql('postgres', $after), $expected, 'each has become what was said');
$node->check_clean('all ended');
foreach my $seed (31, 32)
{
	$node->power_failure(seed => $seed);
	$node->start;
	is($node->safe_psql('postgres', $after), $expected, "and after a loss of power, seed $seed");
}
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps'),
	'the collector removes what was rolled back');
$node->safe_psql('postgres', 'VACUUM plain; VACUUM parent; VACUUM child');
is($node->safe_psql('postgres', $after), $expected, 'and nothing else');
$node->check_clean('collected');
$node->stop;

done_testing();

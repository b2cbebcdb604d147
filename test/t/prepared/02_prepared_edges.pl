# Copyright (c) 2026, pg_nvm contributors

# Prepared transactions where it is tight: PREPARE that fails late, undo logs
# and lists of locks beyond their memory, locked rows that go on under other
# roots while VACUUM is at work, an outcome that nobody persists at once.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('edges', conf => <<CONF, sql => <<SQL);
max_prepared_transactions = 20
autovacuum = off
nvm.horizon_naptime = 20
CONF
CREATE TABLE t (id int PRIMARY KEY, k int, v text) USING nvm;
CREATE INDEX ON t (k);
INSERT INTO t SELECT i, i, 'one' FROM generate_series(1, 100) i;
SQL

sub open_ones
{
	return $node->safe_psql('postgres', 'SELECT count(*) FROM nvm.transactions WHERE pid IS NULL');
}

# ---- PREPARE fails after it has asked

foreach my $place ('prepare-begin', 'prepare-locks', 'prepare-after-asking')
{
	my ($ret, $out, $err) = $node->psql('postgres', <<SQL, on_error_stop => 0);
SET nvm.failpoint = '$place:error';
BEGIN;
UPDATE t SET v = 'lost' WHERE id < 10;
SELECT FROM t WHERE id BETWEEN 20 AND 30 FOR UPDATE;
CREATE TABLE lost (a int) USING nvm;
PREPARE TRANSACTION 'fails';
SET nvm.failpoint = '';
SELECT count(*) FROM (SELECT FROM t WHERE v = 'one' FOR UPDATE NOWAIT) f;
BEGIN;
UPDATE t SET v = 'two' WHERE id = 50;
PREPARE TRANSACTION 'fails';
ROLLBACK PREPARED 'fails';
UPDATE t SET v = 'one' WHERE id = 50;
SQL
	like($err, qr/failpoint/, "$place: PREPARE fails");
	is($out, '100', "$place: it is rolled back, and its locks are gone");
	is(open_ones(), 0, "$place: nothing is left open");
	$node->check_clean($place);
}
$node->crash;
$node->start;
is($node->safe_psql('postgres', "SELECT count(*) FROM t WHERE v = 'one'"), '100', 'nor after a crash');
$node->check_clean('a crash after failed ones');

# ---- who ends it does not come to persist the outcome

foreach my $how ('COMMIT', 'ROLLBACK')
{
	my ($ret, $out, $err) = $node->psql('postgres', <<SQL);
BEGIN;
UPDATE t SET v = 'kept' WHERE id = 60;
PREPARE TRANSACTION 'left';
SET nvm.failpoint = 'twophase-before-decision:error';
$how PREPARED 'left';
SQL
	like($err, qr/failpoint/, "$how PREPARED: persisting fails");
	ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.transactions WHERE pid IS NULL'),
		"$how PREPARED: the keeper does it");
	is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 60'), 'kept', "$how PREPARED: counts");
	$node->crash;
	$node->start;
	is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 60'), 'kept', "$how PREPARED: after a crash too");
}

# ---- who comes to persist an outcome is late, and another one has the slot

$node->safe_psql('postgres', <<SQL);
BEGIN;
UPDATE t SET v = 'first' WHERE id = 61;
PREPARE TRANSACTION 'first';
SQL
my $late = $node->session;
# not before the late one has come there
my $keeper = $node->safe_psql('postgres', q[SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'nvm%keeper']);
NvmTest::stop_process($keeper);
$late->stop_at('twophase-over', "COMMIT PREPARED 'first'");
NvmTest::continue_process($keeper);
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.transactions WHERE pid IS NULL'),
	'late: the keeper is faster');
$node->safe_psql('postgres', <<SQL);
BEGIN;
UPDATE t SET v = 'second' WHERE id = 62;
SELECT FROM t WHERE id = 63 FOR UPDATE;
PREPARE TRANSACTION 'second';
SQL
is($node->safe_psql('postgres', 'SELECT slot FROM nvm.transactions WHERE pid IS NULL'),
	'0', 'late: the slot is in use again');
$late->go_on;
$late->sql('SELECT 1');
$late->drop;
is(open_ones(), 1, 'late: the other one is left alone');
$node->safe_psql('postgres', "COMMIT PREPARED 'second'");
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 62'), 'second', 'late: it commits');
$node->crash;
$node->start;
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 62'), 'second', 'late: also after a crash');
$node->check_clean('late');

# ---- a stop between the stores of the locks and of the word, then another
# one while a mixed transaction is in doubt

$node->psql('postgres', <<SQL);
SET nvm.failpoint = 'prepare-locks-named:crash';
BEGIN;
SELECT FROM t WHERE id = 1 FOR UPDATE;
PREPARE TRANSACTION 'half';
SQL
$node->wait_crashed;
$node->start;
$node->safe_psql('postgres', 'CREATE TABLE heap (a int) USING heap');
$node->psql('postgres', <<SQL);
SET nvm.failpoint = 'commit-after-prepare:crash';
BEGIN;
INSERT INTO heap VALUES (1);
UPDATE t SET v = 'mixed' WHERE id = 64;
COMMIT;
SQL
$node->wait_crashed;
$node->start;
is($node->safe_psql('postgres', 'SELECT v FROM t WHERE id = 64'), 'one', 'the pool opens after that');
$node->check_clean('half a list');

# ---- a locked row goes on under another root, by an older transaction

my $old = $node->session('BEGIN', 'INSERT INTO t VALUES (200, 200, NULL)');
$node->safe_psql('postgres', <<SQL);
BEGIN;
SELECT FROM t WHERE id = 1 FOR KEY SHARE;
SELECT FROM t WHERE id = 2 FOR KEY SHARE;
PREPARE TRANSACTION 'locks';
SQL
$old->sql('UPDATE t SET k = k + 1000 WHERE id = 1');
$old->sql('COMMIT');
$old->drop;
foreach my $round (1 .. 3)
{
	$node->safe_psql('postgres', <<SQL);
UPDATE t SET k = k + 1 WHERE id IN (1, 2);
DELETE FROM t WHERE id = 200;
VACUUM t;
VACUUM t;
INSERT INTO t SELECT 1000 * $round + i, i, 'more' FROM generate_series(1, 200) i;
DELETE FROM t WHERE id > 1000;
VACUUM t;
INSERT INTO t SELECT 1000 * $round + i, i, 'more' FROM generate_series(1, 200) i;
SQL
	$node->crash;
	$node->start;
	foreach my $id (1, 2)
	{
		$node->fails_with("SET lock_timeout = 100; DELETE FROM t WHERE id = $id",
			qr/lock timeout/, "round $round: row $id cannot be deleted");
	}
	is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM t FOR UPDATE SKIP LOCKED) f'),
		'298', "round $round: no other row is locked");
	$node->check_clean("round $round");
}
$node->safe_psql('postgres', "COMMIT PREPARED 'locks'; DELETE FROM t WHERE id < 3; VACUUM t; VACUUM t");
is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM t FOR UPDATE NOWAIT) f'),
	'298', 'ended, it locks nothing');
$node->check_clean('ended');

# ---- two lockers of a row, and a third after the restart

$node->safe_psql('postgres', join '', map { <<SQL } 1 .. 3);
BEGIN;
SELECT FROM t WHERE id = 10 FOR KEY SHARE;
SELECT FROM t WHERE id = 11 FOR SHARE;
SAVEPOINT a;
SELECT FROM t WHERE id = 1$_ + 10 FOR UPDATE;
PREPARE TRANSACTION 'share$_';
SQL
$node->crash;
$node->start;
$node->safe_psql('postgres', <<SQL);
BEGIN;
SELECT FROM t WHERE id = 11 FOR SHARE NOWAIT;
SELECT FROM t WHERE id = 10 FOR NO KEY UPDATE NOWAIT;
PREPARE TRANSACTION 'share4';
SQL
foreach my $n (1 .. 4)
{
	$node->fails_with('SELECT FROM t WHERE id = 11 FOR NO KEY UPDATE NOWAIT',
		qr/could not obtain lock/, "with $n sharing, the row is not to be had");
	$node->fails_with('SELECT FROM t WHERE id = 10 FOR UPDATE NOWAIT',
		qr/could not obtain lock/, "nor the other");
	$node->safe_psql('postgres', ($n % 2 ? 'ROLLBACK' : 'COMMIT') . " PREPARED 'share$n'");
	if ($n == 2)
	{
		$node->crash;
		$node->start;
	}
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM t WHERE id IN (10, 11) FOR UPDATE NOWAIT) f'),
	'2', 'and then they are free');

# ---- a row is taken over from one that was rolled back, before the collector comes

$node->set_conf('nvm.collect_gaps' => 'off');
$node->reload;
$node->safe_psql('postgres', <<SQL);
CREATE TABLE taken (id int PRIMARY KEY, k int, v text) USING nvm;
CREATE INDEX ON taken (k);
INSERT INTO taken SELECT i, i, 'one' FROM generate_series(1, 3) i;
BEGIN;
UPDATE taken SET v = 'lost';
PREPARE TRANSACTION 'over';
ROLLBACK PREPARED 'over';
SQL
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps'), '>', 0, 'a gap is listed');
$node->safe_psql('postgres', "DELETE FROM taken WHERE id = 1; UPDATE taken SET k = 9 WHERE id = 2; UPDATE taken SET v = 'two' WHERE id = 3");
$node->check_clean('taken over');
$node->set_conf('nvm.collect_gaps' => 'on');
$node->reload;
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps'), 'taken over: the gap is gone');
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT * FROM taken WHERE id < 10 ORDER BY id'),
	"2|9|one\n3|3|two", 'taken over: nothing is left of what was rolled back');
$node->check_clean('taken over and collected');

# ---- more than fits in memory

$node->safe_psql('postgres', <<SQL);
CREATE TABLE wide (a int, b int) USING nvm;
INSERT INTO wide SELECT i, 0 FROM generate_series(1, 160000) i;
SQL
foreach my $how ('ROLLBACK', 'COMMIT')
{
	$node->safe_psql('postgres', <<SQL);
BEGIN;
SELECT count(*) FROM (SELECT FROM wide WHERE a <= 80000 ORDER BY hashint4(a) FOR UPDATE) f;
DO 'DECLARE t tid; BEGIN
	FOR t IN SELECT ctid FROM wide WHERE a > 90000 ORDER BY hashint4(a)
	LOOP UPDATE wide SET b = b + 1 WHERE ctid = t; END LOOP; END';
PREPARE TRANSACTION 'large';
SQL
	$node->crash;
	$node->start;
	is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM wide FOR UPDATE SKIP LOCKED) f'),
		'10000', "$how of a large one: its locks are there");
	is($node->safe_psql('postgres', 'SELECT count(*), sum(b) FROM wide'), '160000|0',
		"$how of a large one: it is not seen");
	$node->safe_psql('postgres', "$how PREPARED 'large'");
	$node->crash if $how eq 'COMMIT';
	$node->start if $how eq 'COMMIT';
	ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps'), "$how of a large one: no gaps");
	is($node->safe_psql('postgres', 'SELECT count(*), sum(b) FROM wide'),
		$how eq 'COMMIT' ? '160000|70000' : '160000|0', "$how of a large one: as it should be");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM wide FOR UPDATE NOWAIT) f'),
		'160000', "$how of a large one: nothing is locked");
	$node->check_clean("$how of a large one");
}
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Transaction ids and multixacts beyond 2^31 and 2^32: rows, row locks and
# snapshots on both sides of it, in one run of the server and across restarts;
# an nvm table's relfrozenxid and relminmxid follow, by VACUUM and by autovacuum
# against wraparound, and do not pass an open snapshot.
#
# Long form: twice around 2^32, here once.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $module = dirname(abs_path($0)) . '/../../tools/nvm_xids';
my $segment = 1 << 20;

my $node = NvmTest->start_new('wrap', conf => <<CONF, sql => <<SQL);
autovacuum = off
# nor against wraparound
autovacuum_freeze_max_age = 2000000000
nvm.horizon_naptime = 50ms
max_prepared_transactions = 10
CONF
CREATE FUNCTION nvm_test_next_xid(bigint) RETURNS void AS '$module' LANGUAGE C STRICT;
CREATE TABLE n (id int PRIMARY KEY, v int, t text) USING nvm;
CREATE TABLE h (id int PRIMARY KEY, v int, t text);
CREATE TABLE c (id int REFERENCES n) USING nvm;
INSERT INTO n SELECT i, 0, 'row ' || i FROM generate_series(1, 1000) i;
INSERT INTO h SELECT * FROM n;
ALTER DATABASE template0 ALLOW_CONNECTIONS true;
SQL

my $next = q{SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint};

# move on by that many xids, to the beginning of a segment
sub move_on
{
	my ($by) = @_;
	my $to = int(($node->safe_psql('postgres', $next) + $by) / $segment) * $segment;
	$to += $segment if $to % (1 << 32) == 0;
	$node->safe_psql('postgres', "SELECT nvm_test_next_xid($to)");
	return $to;
}

sub freeze_all
{
	my ($name) = @_;
	command_ok([ 'vacuumdb', '-q', '--all', '--freeze', '--maintenance-db', $node->connstr('postgres') ],
		"$name: all databases are frozen");
	# after a crash the limits are those of the last checkpoint
	$node->safe_psql('postgres', 'CHECKPOINT');
	return;
}

# the same to both tables
my $round = 0;
sub work
{
	$round++;
	foreach my $table ('n', 'h')
	{
		$node->safe_psql('postgres', <<SQL);
INSERT INTO $table SELECT 100000 * $round + i, i, 'round $round' FROM generate_series(1, 200) i;
UPDATE $table SET v = v + $round WHERE id % 7 = $round % 7;
UPDATE $table SET id = -id WHERE id % 97 = $round;
DELETE FROM $table WHERE id % 53 = $round % 53;
BEGIN; UPDATE $table SET t = 'gone'; ROLLBACK;
BEGIN; SAVEPOINT a; UPDATE $table SET v = v + 1 WHERE id % 11 = 0; RELEASE a;
	SAVEPOINT b; DELETE FROM $table; ROLLBACK TO b; COMMIT;
-- marks of lockers that are gone, single and multixact
BEGIN; SELECT count(*) FROM (SELECT 1 FROM $table WHERE id % 5 = 1 FOR UPDATE) s;
	SAVEPOINT a; SELECT count(*) FROM (SELECT 1 FROM $table WHERE id % 5 = 2 FOR KEY SHARE) s; COMMIT;
SQL
	}
	my $one = $node->session('BEGIN');
	my $two = $node->session('BEGIN');
	foreach my $table ('n', 'h')
	{
		$_->sql("SELECT count(*) FROM (SELECT 1 FROM $table WHERE id % 5 = 3 FOR SHARE) s") foreach $one, $two;
	}
	$_->sql('COMMIT') foreach $one, $two;
	$_->drop foreach $one, $two;
	return;
}

sub compare
{
	my ($name) = @_;
	is( $node->safe_psql('postgres', <<SQL), '0|0', "$name: both tables have the same rows");
SELECT (SELECT count(*) FROM (SELECT * FROM n EXCEPT ALL SELECT * FROM h) a),
	(SELECT count(*) FROM (SELECT * FROM h EXCEPT ALL SELECT * FROM n) b)
SQL
	is($node->safe_psql('postgres', <<SQL), 't', "$name: no row is locked by anybody");
SET enable_seqscan = off;
BEGIN;
SELECT count(*) = (SELECT count(*) FROM h) FROM (SELECT 1 FROM n FOR UPDATE NOWAIT) s;
ROLLBACK;
SQL
	is($node->safe_psql('postgres', <<SQL), 't', "$name: nor by the index");
SET enable_seqscan = off; SET enable_bitmapscan = off;
SELECT count(*) = (SELECT count(*) FROM h WHERE id > 0) FROM n WHERE id > 0;
SQL
	return;
}

sub age { return $node->safe_psql('postgres', "SELECT age(relfrozenxid) FROM pg_class WHERE relname = '$_[0]'"); }

work();
compare('at first');

# Nearly a quarter of 2^32 at a time, in one run of the server: once around, and
# in the long run twice.  What is frozen on the way is all that VACUUM must have done.
my $start = $node->safe_psql('postgres', $next);
my $reader;
my $moves = NvmTest::is_long() ? 9 : 5;
foreach my $i (1 .. $moves)
{
	my $name = "move $i";

	move_on(1_000_000_000);
	cmp_ok(age('n'), '>', 900_000_000, "$name: the nvm table has aged");
	# old rows and lock marks, before anybody has cleaned up
	compare("$name, before VACUUM");
	work();
	if ($i == 2)
	{
		# VACUUM does not pass a snapshot
		$reader = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM n');
		$node->safe_psql('postgres', 'UPDATE n SET v = v + 1; UPDATE h SET v = v + 1; VACUUM FREEZE n');
		my $xmin = $node->safe_psql('postgres', "SELECT backend_xmin FROM pg_stat_activity WHERE pid = $reader->{pid}");
		is($node->safe_psql('postgres', "SELECT age(relfrozenxid) >= age('$xmin'::xid) FROM pg_class WHERE relname = 'n'"),
			't', "$name: relfrozenxid stays behind an open snapshot");
		my $count = $reader->sql('SELECT count(*), sum(v) FROM n');
		is($reader->sql('SELECT count(*), sum(v) FROM n'), $count, "$name: which reads what it read");
		$reader->sql('COMMIT');
		$reader->drop;
	}
	if ($i == 3)
	{
		# nor a transaction that has written and goes on
		my $writer = $node->session('BEGIN', "INSERT INTO n VALUES (-600000006, 6, 'open')", "INSERT INTO h VALUES (-600000006, 6, 'open')");
		my $xid = $writer->sql('SELECT pg_current_xact_id()::xid');
		$node->safe_psql('postgres', 'VACUUM FREEZE n');
		is($node->safe_psql('postgres', "SELECT age(relfrozenxid) >= age('$xid'::xid) FROM pg_class WHERE relname = 'n'"),
			't', "$name: relfrozenxid stays behind a writer")
		  or diag($node->safe_psql('postgres', "SELECT relfrozenxid, '$xid' FROM pg_class WHERE relname = 'n'"));
		$writer->sql('COMMIT');
		$writer->drop;
	}
	freeze_all($name);
	cmp_ok(age('n'), '<', 1_000_000, "$name: and is young again");
	compare($name);
	if ($i == 4)
	{
		# a crash on the far side
		$node->crash;
		$node->start;
		compare("$name, after a crash");
	}
}
cmp_ok($node->safe_psql('postgres', $next) - $start, '>', int($moves / 4) * (1 << 32), 'around');
$node->check_clean('around');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps'), 'no gap is left');

# Autovacuum against wraparound comes by itself, also where it is switched off.
$node->safe_psql('postgres', 'ALTER TABLE n SET (autovacuum_enabled = off)');
move_on(5_000_000);
cmp_ok(age('n'), '>', 1_000_000, 'due for autovacuum against wraparound');
$node->set_conf(
	'autovacuum' => 'on',
	'autovacuum_naptime' => '1s',
	'autovacuum_freeze_max_age' => '100000',
	'autovacuum_multixact_freeze_max_age' => '10000');
$node->restart;
ok($node->poll_query_until('postgres', "SELECT bool_and(age(relfrozenxid) < 1000000) FROM pg_class WHERE relname IN ('n', 'c')"),
	'autovacuum has been there');
compare('after autovacuum');

# Multixacts: as their counter passes 2^31 and 2^32.
$node->set_conf('autovacuum' => 'off', 'autovacuum_multixact_freeze_max_age' => 2000000000);
# no autovacuum that has begun goes on
$node->restart;
foreach my $mxid (2147483647 - 2000, 3221225472, 4294967295 - 2000)
{
	my $aligned = int($mxid / 2048) * 2048;

	# one table's rows locked by multixacts of before
	work();
	is($node->safe_psql('postgres', 'SELECT mxid_age(relminmxid) > 0 FROM pg_class WHERE relname = \'n\''), 't',
		'there have been multixacts');
	freeze_all("multixact $aligned");
	cmp_ok($node->safe_psql('postgres', q{SELECT mxid_age(relminmxid) FROM pg_class WHERE relname = 'n'}), '<', 100,
		"multixact $aligned: relminmxid follows");
	$node->stop;
	my $file = sprintf('%s/pg_multixact/offsets/%04X', $node->data_dir, int($aligned / 2048 / 32));
	open(my $fh, '>', $file) or die "$file: $!";
	print $fh "\0" x (8192 * 32);
	close $fh;
	system_or_bail('pg_resetwal', '-f', '-m', "$aligned,$aligned", '-D', $node->data_dir);
	$node->start;
	# all databases are so old that no multixact may be made
	freeze_all("at multixact $aligned");
	work();
	# through the edge
	my $one = $node->session;
	my $two = $node->session;
	$node->safe_psql('postgres', 'INSERT INTO n SELECT 5000000 + i, 0 FROM generate_series(1, 3000) i');
	$one->sql('BEGIN');
	$two->sql('BEGIN');
	$one->sql('SELECT count(*) FROM (SELECT 1 FROM n WHERE id BETWEEN 5000001 AND 5003000 FOR KEY SHARE) s');
	$two->sql(<<SQL);
DO \$\$BEGIN
	FOR i IN 5000001 .. 5003000 LOOP
		PERFORM 1 FROM n WHERE id = i FOR SHARE;
		-- each under an xid of its own, hence a multixact of its own
		IF i % 2 = 0 THEN
			BEGIN PERFORM 1 FROM n WHERE id = i FOR SHARE; EXCEPTION WHEN division_by_zero THEN END;
		END IF;
	END LOOP;
END\$\$
SQL
	$node->fails_with("SET lock_timeout = '50ms'; DELETE FROM n WHERE id = 5000002", qr/lock timeout/,
		"multixact $aligned: a row that both lock is locked");
	$one->sql('COMMIT');
	$node->fails_with("SELECT 1 FROM n WHERE id = 5002999 FOR UPDATE NOWAIT", qr/could not obtain lock/,
		"multixact $aligned: or that one of them does");
	$two->sql('COMMIT');
	$_->drop foreach $one, $two;
	$node->safe_psql('postgres', 'DELETE FROM n WHERE id BETWEEN 5000001 AND 5003000');
	compare("multixact $aligned");
}
$node->check_clean('in the end');
$node->stop;

done_testing();

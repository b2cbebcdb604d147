# Copyright (c) 2026, pg_nvm contributors

# States that look like damage and are none.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 5
wal_buffers = 16MB
CONF
CREATE TABLE t (id int PRIMARY KEY, n int) USING nvm;
CREATE TABLE p (id int, n int) USING nvm;
INSERT INTO t SELECT i, 0 FROM generate_series(1, 50) i;
INSERT INTO p SELECT i, 0 FROM generate_series(1, 50) i;
-- draws n transaction ids, and writes no WAL
CREATE PROCEDURE draw(n int) LANGUAGE plpgsql AS
\$\$
BEGIN
	CREATE TEMP TABLE IF NOT EXISTS drawn (i int);
	FOR i IN 1 .. n LOOP
		BEGIN
			INSERT INTO drawn VALUES (i);
			RAISE EXCEPTION 'back';
		EXCEPTION WHEN raise_exception THEN NULL;
		END;
	END LOOP;
END
\$\$;
SQL

# ---- what is retired says by which transaction id, and a crash may lose all ids of others:
# of those who write no rows of ours, and whose WAL was not flushed.  That was an error after a
# rollback; VACUUM takes part as one whose own id is promised, and never was one.

foreach my $who ('a transaction that is rolled back', 'VACUUM')
{
	$node->restart;
	my $writer = $node->session;
	# that it writes to no sequence is known from then on: a rollback flushes no WAL
	$writer->sql('UPDATE t SET n = n + 1 WHERE id = 1');
	$writer->sql("BEGIN; INSERT INTO t SELECT i, 1 FROM generate_series(1001, 1050) i");
	$node->safe_psql('postgres', 'UPDATE t SET n = n + 1') foreach 1 .. 2;
	$node->stop_wal_writers;
	my $other = $node->session;
	# more than are promised at once
	$other->sql('BEGIN; CALL draw(9000)');
	if ($who eq 'VACUUM')
	{
		$writer->sql('COMMIT');
		$node->safe_psql('postgres', 'VACUUM t');
	}
	else
	{
		$writer->sql('ROLLBACK');
	}
	my $flushed = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() < 1000');
	is($flushed, 'f', "$who: the WAL of the others is not flushed") if $who ne 'VACUUM';
	my $drawn = $node->safe_psql('postgres', 'SELECT pg_snapshot_xmax(pg_current_snapshot())');
	$node->crash;
	$node->start;
	my $next = $node->safe_psql('postgres', 'SELECT pg_snapshot_xmax(pg_current_snapshot())');
	note("$who: next id $drawn before the crash, $next after it");
	my $n = $who eq 'VACUUM' ? 100 : 50;
	is($node->safe_psql('postgres', 'SELECT count(*) FROM t; SET enable_seqscan = off; SELECT count(*) FROM t WHERE id > 0'),
		"$n\n$n", "marks by $who, whose id the crash has lost: all rows are there");
	$node->check_clean($who);
	cmp_ok($next, '>=', $drawn, 'no id that a row carries is handed out again');
}

# ---- columns of a prepared transaction that the table never gets

$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps are not collected';
$node->set_conf('wal_writer_delay' => '10s', 'nvm.horizon_naptime' => '60000');
$node->safe_psql('postgres', <<SQL);
BEGIN;
ALTER TABLE p ADD COLUMN more int;
INSERT INTO p VALUES (51, 0, 1);
UPDATE p SET more = 2 WHERE id = 1;
PREPARE TRANSACTION 'columns';
SQL
$node->restart;
my $reader = $node->session;
$reader->send('SELECT count(*), sum(n) FROM p');
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'p'::regclass AND NOT granted") or die;
my $ender = $node->session;
# neither of the two that could settle it is to be there first
my $keeper = $node->safe_psql('postgres', q[SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'nvm%keeper']);
NvmTest::stop_process($_) foreach $keeper, $reader->pid;
# its locks are gone, and nobody knows yet that its rows are
$ender->stop_at('twophase-over', "ROLLBACK PREPARED 'columns'");
NvmTest::continue_process($reader->pid);
like($reader->{psql}->query('SELECT 1'), qr/^50\|0$/m, 'who waited for the table goes on');
is($node->safe_psql('postgres', 'SELECT count(*), sum(n) FROM p'), '50|0', 'rows with columns of a transaction that is rolled back');
$ender->go_on;
NvmTest::continue_process($keeper);
is($node->safe_psql('postgres', 'SELECT count(*), sum(n) FROM p'), '50|0', 'and afterwards');
$node->check_clean('columns of a prepared transaction');
$node->stop;
done_testing();

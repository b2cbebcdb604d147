# Copyright (c) 2026, pg_nvm contributors

# Commands that are several transactions, under synchronous_commit = off: each of
# these that changes catalogs waits for its WAL.  REINDEX CONCURRENTLY puts a new index
# in the place of the old one, and after that rows make entries in the new one alone;
# they wait for no WAL, and a loss of power must not bring back the old one for them.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('reindex', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
nvm.horizon_naptime = 60s
wal_writer_delay = 10s
synchronous_commit = off
CONF
CREATE TABLE t (id int PRIMARY KEY, a int) USING nvm;
CREATE INDEX t_a ON t (a);
INSERT INTO t SELECT i, i FROM generate_series(1, 100) i;
CREATE TABLE h AS SELECT 1 AS a;
CREATE PROCEDURE types() LANGUAGE plpgsql AS \$\$
BEGIN
	COMMIT;
	EXECUTE 'CREATE TYPE e AS ENUM (''one'')';
	COMMIT;
	UPDATE pg_class SET relhasrules = relhasrules WHERE relname = 't';
END\$\$;
CHECKPOINT;
SQL
$node->stop_wal_writers;

my $reindex = $node->session;
my $before  = $node->session('BEGIN', 'SELECT count(*) FROM t');
$reindex->send('REINDEX INDEX CONCURRENTLY t_a');
wait_phase('waiting for readers before marking dead');
my $after = $node->session('BEGIN', 'SELECT count(*) FROM t');
$before->sql('COMMIT');
wait_phase('waiting for readers before dropping');
$node->safe_psql('postgres', 'INSERT INTO t VALUES (101, 101); UPDATE t SET a = 1000 WHERE id = 50');
is(flushed_after(sub { $node->safe_psql('postgres', 'UPDATE h SET a = 2') }), 0,
	'who changes no catalog does not wait');
$node->power_failure(seed => 1, mode => 'durable');
$_->drop foreach $reindex, $before, $after;
$node->start;

is($node->safe_psql('postgres', 'SELECT a FROM h'), '1', 'WAL that nobody waited for is lost');
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT id, a FROM t WHERE a > 100 ORDER BY a'),
	"101|101\n50|1000", 'rows are found through the index');
$node->check_clean('after the loss of power');

# each transaction of a command, whatever changed the catalogs
$node->stop_wal_writers;
is(flushed_after(sub { $node->safe_psql('postgres', 'CALL types()') }), 1, 'the transactions of a procedure wait');
is(flushed_after(sub { $node->safe_psql('postgres', "UPDATE pg_class SET relhasrules = relhasrules WHERE relname = 't'") }),
	1, 'catalogs that are changed by hand');
is(flushed_after(sub { $node->safe_psql('postgres', 'REINDEX INDEX CONCURRENTLY t_pkey') }), 1, 'REINDEX CONCURRENTLY');
is(flushed_after(sub { $node->safe_psql('postgres', 'CREATE INDEX CONCURRENTLY h_a ON h (a)') }), 1,
	'CREATE INDEX CONCURRENTLY');
is(flushed_after(sub { $node->safe_psql('postgres', 'DROP INDEX CONCURRENTLY h_a') }), 1, 'DROP INDEX CONCURRENTLY');
# the first makes the schema, the end of the session drops the tables
my $session = $node->session('CREATE TEMP TABLE first (a int)');
is(flushed_after(sub { $session->sql('CREATE TEMP TABLE second (a int NOT NULL, b text DEFAULT 1 CHECK (b > 0::text))') }),
	0, 'who makes a temporary table does not wait');
is(flushed_after(sub { $session->sql('CREATE TEMP TABLE third (a int); ALTER TABLE h ADD COLUMN b int') }),
	1, 'unless that is not all');
$session->drop;
$node->power_failure(seed => 2, mode => 'durable');
$node->start;
is($node->safe_psql('postgres', 'SELECT enum_range(NULL::e)'), '{one}', 'the type is there');
$node->check_clean('at the end');

$node->stop;
done_testing();

sub wait_phase
{
	my ($phase) = @_;
	$node->poll_query_until('postgres',
		"SELECT phase = '$phase' FROM pg_stat_progress_create_index") or die "no phase $phase";
	return;
}

# Is the last commit record of what is done flushed?  A session asks that has read all
# that it needs of the catalogs: it may prune a page when it reads them, or set hint
# bits, and that is WAL which nobody has flushed.
sub flushed_after
{
	my ($do) = @_;
	my $question = 'SELECT CASE WHEN pg_current_wal_flush_lsn() >= pg_current_wal_insert_lsn() THEN 1 ELSE 0 END';
	my $asks = $node->session($question);
	$do->();
	my $flushed = $asks->sql($question);
	$asks->drop;
	return $flushed;
}

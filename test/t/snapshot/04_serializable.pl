# Copyright (c) 2026, pg_nvm contributors

# SERIALIZABLE under load: rules that only hold if transactions run as if one
# after another, kept by clients that check and then write.  Each reads another
# way: by index, bitmap, index only, sequential and parallel scan.  Isolation
# specs take the steps one by one; here a reader and a writer meet at any point.
#
# NVM_STRESS_AM: another access method; NVM_STRESS_ISOLATION: another level, to
# see that the rules are broken then.
#
# Long form: a minute, here 8 seconds.

use strict;
use warnings;

use IPC::Run ();
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds   = NvmTest::is_long()             ? 60 : 8;
my $am        = $ENV{NVM_STRESS_AM}        // 'nvm';
my $isolation = $ENV{NVM_STRESS_ISOLATION} // 'serializable';

# pair: the two sides of an id never owe together more than they have.  Rows are
# wide, so that versions lie in many blocks.
# slot: taken once at most.  on_duty: never empty.
my $node = NvmTest->start_new('serializable', conf => <<CONF, sql => <<SQL);
default_transaction_isolation = '$isolation'
max_connections = 60
deadlock_timeout = 50ms
autovacuum_naptime = 1s
min_parallel_table_scan_size = 0
parallel_setup_cost = 0
parallel_tuple_cost = 0
CONF
CREATE TABLE pair (id int, side int, v int, pad text, PRIMARY KEY (id, side)) USING $am;
CREATE INDEX pair_id ON pair (id);
INSERT INTO pair SELECT i, s, 5, repeat('x', 1500) FROM generate_series(1, 6) i, generate_series(1, 2) s;
CREATE TABLE slot (n int, who int) USING $am;
CREATE INDEX slot_n ON slot (n);
CREATE TABLE on_duty (who int PRIMARY KEY, duty bool, changes int) USING $am;
CREATE INDEX on_duty_duty ON on_duty (duty);
INSERT INTO on_duty SELECT g, true, 0 FROM generate_series(1, 3) g;
SQL

my $dir    = PostgreSQL::Test::Utils::tempdir();
my %script = (
	withdraw => <<'SQL',
\set id random(1, 6)
\set side random(1, 2)
\set d random(1, 3)
BEGIN;
SELECT sum(v) >= :d AS enough FROM pair WHERE id = :id \gset
\if :enough
UPDATE pair SET v = v - :d WHERE id = :id AND side = :side;
\endif
COMMIT;
SQL
	deposit => <<'SQL',
\set id random(1, 6)
\set side random(1, 2)
UPDATE pair SET v = v + 1 WHERE id = :id AND side = :side;
SQL
	take => <<'SQL',
\set n random(1, 40)
BEGIN;
SELECT count(*) = 0 AS empty FROM slot WHERE n = :n \gset
\if :empty
INSERT INTO slot VALUES (:n, :client_id);
\endif
COMMIT;
SQL
	give => <<'SQL',
\set n random(1, 40)
DELETE FROM slot WHERE n = :n;
SQL
	off => <<'SQL',
\set who random(1, 3)
BEGIN;
SELECT count(*) > 1 AS others FROM on_duty WHERE duty \gset
\if :others
UPDATE on_duty SET duty = false, changes = changes + 1 WHERE who = :who;
\endif
COMMIT;
SQL
	on => <<'SQL',
\set who random(1, 3)
BEGIN;
SAVEPOINT s;
UPDATE on_duty SET duty = NOT duty WHERE who = :who;
ROLLBACK TO s;
UPDATE on_duty SET duty = true, changes = changes + 1 WHERE who = :who;
COMMIT;
SQL
	# whoever looks sees no rule broken
	look => <<'SQL');
BEGIN READ ONLY;
SELECT 1 / (CASE WHEN exists(SELECT FROM pair GROUP BY id HAVING sum(v) < 0) THEN 0 ELSE 1 END);
SELECT 1 / (CASE WHEN exists(SELECT FROM slot GROUP BY n HAVING count(*) > 1) THEN 0 ELSE 1 END);
SELECT 1 / (SELECT count(*) FROM on_duty WHERE duty);
COMMIT;
SQL
my %weight = (withdraw => 6, take => 4, off => 4, on => 3, deposit => 3);
my @files;
foreach my $name (sort keys %script)
{
	PostgreSQL::Test::Utils::append_to_file("$dir/$name.sql", $script{$name});
	push @files, '-f', "$dir/$name.sql@" . ($weight{$name} // 1);
}

my %way = (
	index    => '-c enable_seqscan=off -c enable_bitmapscan=off',
	bitmap   => '-c enable_seqscan=off -c enable_indexscan=off -c enable_indexonlyscan=off',
	scan     => '-c enable_indexscan=off -c enable_bitmapscan=off -c enable_indexonlyscan=off -c max_parallel_workers_per_gather=0',
	parallel => '-c enable_indexscan=off -c enable_bitmapscan=off -c enable_indexonlyscan=off -c max_parallel_workers_per_gather=2');
my %clients = (index => 5, bitmap => 4, scan => 1, parallel => 1);

my %run;
foreach my $way (sort keys %way)
{
	local $ENV{PGOPTIONS} = $way{$way};
	my ($out, $err) = ('', '');
	$run{$way} = {
		out => \$out,
		err => \$err,
		h   => IPC::Run::start(
			[ 'pgbench', '-n', '-T', $seconds, '-c', $clients{$way}, '--max-tries=0', @files,
				$node->connstr('postgres') ],
			'<', \undef, '>', \$out, '2>', \$err)
	};
}
foreach my $way (sort keys %run)
{
	my $ok = IPC::Run::finish($run{$way}->{h});
	my ($out, $err) = (${ $run{$way}->{out} }, ${ $run{$way}->{err} });
	ok($ok && $err !~ /aborted|ERROR/, "$way: nobody saw a rule broken") or diag($out . $err);
	my ($n) = $out =~ /transactions actually processed: (\d+)/;
	cmp_ok($n // 0, '>', 10, "$way: transactions got through");
	note("$way: $n transactions, " . ($out =~ /retried: (\d+)/ ? $1 : 0) . ' retried');
}

is($node->safe_psql('postgres', 'SELECT id, sum(v) FROM pair GROUP BY id HAVING sum(v) < 0'), '', 'nobody owes more than there is');
is($node->safe_psql('postgres', 'SELECT n, count(*) FROM slot GROUP BY n HAVING count(*) > 1'), '', 'no slot is taken twice');
isnt($node->safe_psql('postgres', 'SELECT count(*) FROM on_duty WHERE duty'), '0', 'somebody is on duty');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_locks WHERE mode = 'SIReadLock'"), '0', 'no predicate lock remains');
$node->check_clean('after the load') if $am eq 'nvm';

# The granularities, as pg_locks shows them
if ($am eq 'nvm')
{
	my $locks = <<'SQL';
SELECT locktype, page IS NOT NULL AS page, tuple IS NOT NULL AS tuple, count(*) FROM pg_locks
WHERE mode = 'SIReadLock' AND relation = 'wide'::regclass GROUP BY 1, 2, 3 ORDER BY 1
SQL
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE wide (id int PRIMARY KEY, pad text) USING $am;
INSERT INTO wide SELECT g, repeat('x', 1800) FROM generate_series(1, 400) g;
SQL
	my %reads = (
		'one row by index' => [ 'SELECT FROM wide WHERE id = 7', 'tuple|t|t|1' ],
		'one row by bitmap' =>
		  [ 'SET LOCAL enable_indexscan = off; SELECT FROM wide WHERE id = 7', 'tuple|t|t|1' ],
		'two rows of one block' => [ 'SELECT FROM wide WHERE id IN (1, 2)', 'tuple|t|t|2' ],
		'all rows of one block' => [ 'SELECT FROM wide WHERE id IN (1, 2, 3, 4)', 'page|t|f|1' ],
		'a row by its TID'      => [ "SELECT FROM wide WHERE ctid = '(3,3)'", 'tuple|t|t|1' ],
		'a scan'        => [ 'SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SELECT count(*) FROM wide WHERE id > 5', 'relation|f|f|1' ],
		'a sample'      => [ 'SELECT count(*) FROM wide TABLESAMPLE SYSTEM (100)', 'relation|f|f|1' ],
		'a TID range'   => [ "SELECT count(*) FROM wide WHERE ctid < '(2,0)'", 'relation|f|f|1' ],
		'own row' => [ "INSERT INTO wide VALUES (1000, 'mine'); SELECT FROM wide WHERE id = 1000", '' ],
		'row deleted by us' => [ 'SELECT FROM wide WHERE id = 9; DELETE FROM wide WHERE id = 9', '' ],
		'many blocks' => [ 'SELECT count(*) FROM (SELECT FROM wide WHERE id IN (' . join(',', map { $_ * 5 } 1 .. 70) . ') OFFSET 0) x', 'relation|f|f|1' ]);
	foreach my $name (sort keys %reads)
	{
		my ($sql, $expected) = @{ $reads{$name} };
		my $got = $node->safe_psql('postgres', <<SQL);
SET enable_seqscan = off;
\\o /dev/null
BEGIN ISOLATION LEVEL SERIALIZABLE;
SET LOCAL enable_bitmapscan = on;
SET LOCAL enable_indexonlyscan = off;
$sql;
\\o
$locks;
ROLLBACK;
SQL
		is($got, $expected, "predicate locks: $name");
	}

	# an index-only scan does as in a heap table: once the block is known to be
	# visible to all it is locked, and not the rows
	my $got = '';
	foreach (1 .. 500)
	{
		$got = $node->safe_psql('postgres', <<SQL);
SET enable_seqscan = off; SET enable_bitmapscan = off;
\\o /dev/null
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT FROM wide WHERE id = 7;
\\o
$locks;
ROLLBACK;
SQL
		last if $got ne 'tuple|t|t|1';
		$node->safe_psql('postgres', 'SELECT pg_current_xact_id()');
	}
	is($got, 'page|t|f|1', 'predicate locks: index-only scan');
}

done_testing();

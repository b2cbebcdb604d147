# Copyright (c) 2026, pg_nvm contributors

# nvm_btree indexes of every kind, built in every way there is, hold what a
# btree index on the same columns holds, in the same order, and are not larger
# than it by more than a fifth.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = NvmTest::is_long() ? 1_000_000 : 15_000;

my $node = NvmTest->start_new('build', conf => <<CONF, sql => <<SQL);
autovacuum = off
fsync = off
nvm.default_index_method = btree
max_parallel_maintenance_workers = 2
max_worker_processes = 8
CONF
CREATE TABLE t (id int, u int, few int, big int8, t text, n numeric, nul int, wide text, at timestamptz) USING nvm;
INSERT INTO t SELECT i, (i::int8 * 7919 % 1000003)::int, i % 7, i::int8 * 1000003 % 65536,
	md5((i % 9000)::text) || repeat('x', i % 13), (i % 500) / 4.0, CASE WHEN i % 3 > 0 THEN i % 100 END,
	repeat(md5(i::text), 1 + (i % 50) * (i % 80) / 60), 'epoch'::timestamptz + i % 4000 * interval '1 hour'
	FROM generate_series(1, $rows) i;
DELETE FROM t WHERE id % 11 = 0;
UPDATE t SET few = few + 1, nul = NULL WHERE id % 13 = 0;
UPDATE t SET wide = wide || 'u' WHERE id % 17 = 0;
VACUUM (ANALYZE) t;
CREATE TABLE none (a int, b text) USING nvm;
CREATE TABLE single (a int, b text) USING nvm;
INSERT INTO single VALUES (1, 'one');
SQL

# ------------------------------------------------------ the same as btree

# What an index leads to, in its order, forwards and backwards.  Rows of one key
# come in the order of their TIDs, but not backwards.
sub contents
{
	my ($table, $order, $backward, $where, $columns) = @_;
	my $from = "FROM (SELECT ctid AS c, concat_ws(',', $columns) AS k FROM $table $where ORDER BY";
	my $sql  = "SELECT count(*), md5(string_agg(c::text, ' ')) $from $order) s;\n"
	  . "SELECT count(*), md5(string_agg(k, ' ')), sum(hashtextextended(k || c::text, 0)) $from $backward) s;\n";

	foreach my $by ($order, $backward)
	{
		$sql .= "EXPLAIN (COSTS off) SELECT ctid FROM $table $where ORDER BY $by;\n";
	}
	return $node->safe_psql('postgres',
		"SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;\n$sql");
}

sub blocks
{
	my ($index) = @_;
	return $node->safe_psql('postgres',
		"SELECT blocks FROM nvm.relations WHERE relation = '$index'::regclass AND NOT ended");
}

sub compare
{
	my ($name, %k) = @_;
	my $table = $k{table} // 't';
	my $where = $k{where} ? "WHERE $k{where}" : '';
	my $make  = sub {
		my ($method) = @_;
		return ($k{set} // '') . "CREATE " . ($k{unique} ? 'UNIQUE ' : '')
		  . "INDEX i ON $table USING $method ($k{on}) " . ($k{tail} // '') . " $where";
	};
	my $order    = $k{order} // $k{on};
	my $columns  = $k{columns} // $k{on} =~ s/ (?:DESC|ASC|NULLS FIRST|text_pattern_ops)\b//gr;
	my $backward = $k{backward} // join(', ', map { "$_ DESC" } split / *, */, $order);

	$node->safe_psql('postgres', $make->('btree'));
	my $expected = contents($table, $order, $backward, $where, $columns);
	like($expected, qr/Index (?:Only )?Scan using i .*Index (?:Only )?Scan Backward using i /s, "$name: btree is asked")
	  unless $k{no_plan};
	my $size = $node->safe_psql('postgres', "SELECT pg_relation_size('i') / 8192; DROP INDEX i");

	$node->safe_psql('postgres', $make->('nvm_btree'));
	is(contents($table, $order, $backward, $where, $columns), $expected, "$name: same rows, same order, same plan");
	is($node->safe_psql('postgres', "SELECT * FROM nvm.check('i', true)"), '', "$name: the checker finds nothing");
	my $blocks = blocks('i');
	cmp_ok($blocks, '<=', $size * 1.2 + 1, "$name: $blocks blocks, btree $size");
	$node->safe_psql('postgres', "DROP INDEX i");
	return;
}

compare('unique int', on => 'u', unique => 1);
compare('int', on => 'big');
compare('duplicates', on => 'few');
compare('duplicates, not merged', on => 'few', tail => 'WITH (deduplicate_items = off)');
compare('text', on => 't');
compare('text, C', on => 't COLLATE "C"', order => 't COLLATE "C"');
compare('text_pattern_ops', on => 't text_pattern_ops', order => 't USING ~<~', backward => 't USING ~>~');
compare('numeric', on => 'n');
compare('timestamps', on => 'at');
compare('several columns', on => 'few, t, n');
compare('descending', on => 'few DESC, t ASC', backward => 'few ASC, t DESC');
compare('nulls', on => 'nul, id');
compare('nulls first', on => 'nul NULLS FIRST, id', backward => 'nul DESC NULLS LAST, id DESC');
compare('included', on => 'big', tail => 'INCLUDE (t, few)');
compare('partial', on => 'u', where => 'few = 3');
compare('expression', on => '(few * 10 + nul), lower(t)', order => '(few * 10 + nul), lower(t)');
compare('fillfactor 40', on => 'u', tail => 'WITH (fillfactor = 40)');
compare('fillfactor 100', on => 't', tail => 'WITH (fillfactor = 100)');
compare('wide', on => 'wide');
compare('no rows', table => 'none', on => 'a');
compare('one row', table => 'single', on => 'b');
compare('sorted in files', on => 't, id', set => "SET maintenance_work_mem = '1MB'; SET max_parallel_maintenance_workers = 0;");

# --------------------------------------------------------------- parallel

$node->safe_psql('postgres', 'ALTER TABLE t SET (parallel_workers = 2)');
foreach my $kind ([ 'unique', 'u', 1 ], [ 'duplicates', 'few', 0 ], [ 'text', 't', 0 ])
{
	my $from = -s $node->logfile;
	compare("parallel, $kind->[0]", on => $kind->[1], unique => $kind->[2],
		set => "SET min_parallel_table_scan_size = 0; SET maintenance_work_mem = '96MB'; SET trace_sort = on; ");
	my $log = slurp_file($node->logfile, $from);
	my $workers = () = $log =~ /starting quicksort of run 1.*worker/g;
	my %sorters;
	$sorters{$1}++ while $log =~ /^.*?\[(\d+)\].*begin index sort/mg;
	cmp_ok(scalar(keys %sorters), '>=', 4, "parallel, $kind->[0]: workers sorted, for btree and for ours");
}
$node->safe_psql('postgres', 'ALTER TABLE t RESET (parallel_workers)');

# ----------------------------------------------------------------- errors

foreach my $method ('btree', 'nvm_btree')
{
	my $unique = qr/could not create unique index "i".*Key \(few\)=\(\d\) is duplicated\./s;
	$node->fails_with("CREATE UNIQUE INDEX i ON t USING $method (few)", $unique, "$method: duplicates");
	$node->fails_with("CREATE UNIQUE INDEX i ON t USING $method (nul) NULLS NOT DISTINCT WHERE id % 3 = 0",
		qr/could not create unique index "i".*Key \(nul\)=\(null\) is duplicated\./s, "$method: null is a duplicate of null");
}
$node->safe_psql('postgres', 'CREATE UNIQUE INDEX i ON t USING nvm_btree (nul) WHERE id % 3 = 0; DROP INDEX i');
$node->fails_with("CREATE TABLE huge (a text) USING nvm; ALTER TABLE huge ALTER a SET STORAGE EXTERNAL;\n"
	  . "INSERT INTO huge SELECT string_agg(md5(i::text), '') FROM generate_series(1, 90) i;\n"
	  . "CREATE INDEX i ON huge USING nvm_btree (a)",
	qr/index row size 2896 exceeds btree version 4 maximum \d+ for index "i".*references tuple \(0,\d+\) in relation "huge".*Values larger than 1\/3 of a buffer page cannot be indexed/s,
	'a row that is too large');
is($node->safe_psql('postgres', "SELECT count(*) FROM nvm.relations WHERE kind = 'i' AND NOT ended"), '0',
	'builds that failed leave no storage');

# ------------------------------------------------- rows that are dead to us

# a snapshot still sees old versions: they are in the index, and no duplicates
{
	my $old = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM single');
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE dead (id int, k int) USING nvm;
INSERT INTO dead SELECT i, i FROM generate_series(1, 2000) i;
SQL
	my $sees = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM dead');
	$node->safe_psql('postgres', <<SQL);
DELETE FROM dead WHERE k <= 1000;
INSERT INTO dead SELECT i, i FROM generate_series(1, 1000) i;
CREATE UNIQUE INDEX dead_k ON dead USING nvm_btree (k);
SQL
	is($sees->sql('SET enable_seqscan = off; SELECT count(*), sum(k) FROM dead WHERE k BETWEEN 1 AND 2000'),
		'2000|2001000', 'an old snapshot reads what is dead by an index that is younger');
	is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*), sum(k) FROM dead WHERE k BETWEEN 1 AND 2000'),
		'2000|2001000', 'a new one reads what is alive');
	is($node->safe_psql('postgres', "SELECT * FROM nvm.check('dead', true)"), '', 'dead rows: the checker finds nothing');
	$node->fails_with('INSERT INTO dead VALUES (1, 17)', qr/duplicate key value violates unique constraint "dead_k"/, 'and it is unique');
	$_->drop foreach ($old, $sees);
}

# --------------------------------------------- unlogged, temporary, in place

is($node->safe_psql('postgres', <<SQL), "10|10\n0\n5|5\n7|7", 'temporary tables');
SET enable_seqscan = off;
CREATE TEMP TABLE tmp (a int) USING nvm;
CREATE INDEX tmp_a ON tmp USING nvm_btree (a);
INSERT INTO tmp SELECT generate_series(1, 10);
SELECT count(*), max(a) FROM tmp WHERE a > 0;
CREATE TEMP TABLE gone (a int) USING nvm ON COMMIT DELETE ROWS;
CREATE INDEX gone_a ON gone USING nvm_btree (a);
INSERT INTO gone SELECT generate_series(1, 10);
SELECT count(*) FROM gone WHERE a > 0;
BEGIN;
INSERT INTO gone SELECT generate_series(1, 5);
SELECT count(*), max(a) FROM gone WHERE a > 0;
COMMIT;
BEGIN;
CREATE TABLE inplace (a int) USING nvm;
CREATE INDEX inplace_a ON inplace USING nvm_btree (a);
INSERT INTO inplace SELECT generate_series(1, 1000);
TRUNCATE inplace;
INSERT INTO inplace SELECT generate_series(1, 7);
SELECT count(*), max(a) FROM inplace WHERE a > 0;
COMMIT;
SELECT * FROM nvm.check('tmp', true);
SELECT * FROM nvm.check('gone', true);
SELECT * FROM nvm.check('inplace', true);
SQL

my $before = $node->safe_psql('postgres', "SELECT count(*) FROM nvm.relations WHERE NOT ended");
$node->safe_psql('postgres', <<SQL);
BEGIN;
CREATE INDEX i ON t USING nvm_btree (u);
SAVEPOINT s;
CREATE INDEX j ON t USING nvm_btree (t);
ROLLBACK TO s;
CREATE INDEX j ON t USING nvm_btree (big);
ROLLBACK;
SQL
is($node->safe_psql('postgres', "SELECT count(*) FROM nvm.relations WHERE NOT ended"), $before,
	'a build that is rolled back leaves no storage');

# ------------------------------------------------------------- rebuilt ones

$node->safe_psql('postgres', 'CREATE INDEX t_u ON t USING nvm_btree (u); CREATE INDEX t_few ON t USING nvm_btree (few, t)');
foreach my $sql ('REINDEX INDEX t_u', 'REINDEX TABLE t', 'REINDEX INDEX CONCURRENTLY t_few',
	'REINDEX TABLE CONCURRENTLY t', 'VACUUM FULL t', 'CLUSTER t USING t_u')
{
	$node->safe_psql('postgres', $sql);
	is($node->safe_psql('postgres', "SELECT * FROM nvm.check('t', true)"), '', "$sql: the checker finds nothing");
	is($node->safe_psql('postgres', "SELECT kind, count(*) FROM nvm.relations WHERE NOT ended AND relation IN ('t'::regclass, 't_u'::regclass, 't_few'::regclass) GROUP BY 1 ORDER BY 1"),
		"i|2\nr|1", "$sql: one storage each");
}

# ------------------------------------------------------------- while others write

$node->safe_psql('postgres', <<SQL);
CREATE TABLE w (id int, k int, note text) USING nvm;
INSERT INTO w SELECT i, i, 'start' FROM generate_series(1, 3000) i;
SQL
my $load = $node->start_load(
	clients      => 3,
	transactions => 100000,
	sql          => sub {
		my ($c, $n) = @_;
		my $id = 1 + ($n * 131 + $c * 977) % 3000;
		return "INSERT INTO w VALUES ($c * 1000000 + $n, $c * 1000000 + $n, 'new');\n" if $n % 3 == 0;
		return "UPDATE w SET k = -k, note = 'c$c n$n' WHERE id = $id;\n" if $n % 3 == 1;
		return "DELETE FROM w WHERE id = $c * 1000000 + " . ($n - 8) . ";\n";
	});
$load->wait_acknowledged(50);
foreach my $sql ('CREATE INDEX CONCURRENTLY w_k ON w USING nvm_btree (k)',
	'CREATE UNIQUE INDEX CONCURRENTLY w_id ON w USING nvm_btree (id)',
	'REINDEX INDEX CONCURRENTLY w_k', 'REINDEX TABLE CONCURRENTLY w', 'VACUUM w',
	'REINDEX INDEX w_k')
{
	$node->safe_psql('postgres', $sql);
	is($node->safe_psql('postgres', "SELECT * FROM nvm.check('w', true)"), '', "while others write, $sql: the checker finds nothing");
}
kill('KILL', $_->{pid}) foreach @{ $load->{clients} };
$load->finish;
# a backend whose client is dead ends its last statement, and commits
$node->poll_query_until('postgres',
	q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()))
  or die 'the load does not end';
like($load->errors, qr/^(?:.*deadlock.*|\s*)$/s, 'nobody was refused');
foreach my $by ('id', 'k')
{
	is($node->safe_psql('postgres', "SET enable_seqscan = off; SET enable_sort = off; SELECT md5(string_agg(w::text, ' ')) FROM (SELECT * FROM w ORDER BY $by, ctid) w"),
		$node->safe_psql('postgres', "SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT md5(string_agg(w::text, ' ')) FROM (SELECT * FROM w ORDER BY $by, ctid) w"),
		"the table by its index on $by");
}

# ------------------------------------------------------------ parallel VACUUM

{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE pv (a int, b text) USING nvm;
INSERT INTO pv SELECT i, md5(i::text) FROM generate_series(1, 20000) i;
CREATE INDEX pv_a ON pv USING nvm_btree (a);
CREATE INDEX pv_b ON pv USING nvm_btree (b);
DELETE FROM pv WHERE a % 2 = 0 OR a BETWEEN 3000 AND 9000;
SQL
	my ($status, $out, $said) = $node->psql('postgres',
		"SET min_parallel_index_scan_size = '256kB'; VACUUM (VERBOSE, PARALLEL 2) pv");
	like($said, qr/launched [12] parallel vacuum workers? for index vacuuming/, 'VACUUM in parallel: workers');
	like($said, qr/index "pv_a": pages: \d+ in total, [1-9]\d* newly deleted/, 'VACUUM in parallel: leaves go');
	is($node->safe_psql('postgres', "SELECT * FROM nvm.check('pv', true)"), '', 'VACUUM in parallel: the checker finds nothing');
	is($node->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*), sum(a) FROM pv WHERE a > 0"),
		$node->safe_psql('postgres', "SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(a) FROM pv WHERE a > 0"),
		'VACUUM in parallel: the rows that are left');
}

# ---------------------------------------------------------------- progress

{
	my $builder = $node->session;
	$builder->hold('btree-load-page', 'CREATE INDEX t_progress ON t USING nvm_btree (id)');
	like($node->safe_psql('postgres', 'SELECT phase, tuples_total > 1000, tuples_done > 10 AND tuples_done < tuples_total FROM pg_stat_progress_create_index'),
		qr/^building index: loading tuples in tree\|t\|t$/, 'progress of a build');
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($builder->{pid})");
	$builder->drop;
}

# ------------------------------------------------------------------ restart

$node->safe_psql('postgres', <<SQL);
CREATE UNLOGGED TABLE ul (a int, b text) USING nvm;
INSERT INTO ul SELECT i, md5(i::text) FROM generate_series(1, 1000) i;
CREATE INDEX ul_a ON ul USING nvm_btree (a);
SQL
my $contents = contents('t', 'few, t', 'few DESC, t DESC', '', 'few, t');
$node->crash;
$node->start;
is(contents('t', 'few, t', 'few DESC, t DESC', '', 'few, t'), $contents, 'an index after a crash');
is($node->safe_psql('postgres', "SELECT * FROM nvm.check('t', true)"), '', 'after a crash: the checker finds nothing');
is($node->safe_psql('postgres', <<SQL), "0\n1|1", 'an unlogged index is empty after a crash, and goes on');
SET enable_seqscan = off;
SELECT count(*) FROM ul WHERE a > 0;
INSERT INTO ul VALUES (1, 'again');
SELECT count(*), max(a) FROM ul WHERE a > 0;
SELECT * FROM nvm.check('ul', true);
SQL
$node->check_clean('at the end');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# What a client sees of an index that says btree and is ours, and what it may do with it:
# the catalogs, partitions, ON CONFLICT through a parent, constraints from indexes, row
# comparisons, dumps; and that such an index writes no WAL.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('clients', conf => "nvm.index_identity = btree\nautovacuum = off\n", sql => <<'SQL');
CREATE TABLE t (id int PRIMARY KEY, a int, b text, UNIQUE (a)) USING nvm;
CREATE INDEX t_b ON t (b DESC NULLS LAST) INCLUDE (a);
CREATE INDEX t_expr ON t USING btree (lower(b) text_pattern_ops) WHERE a > 0;
INSERT INTO t SELECT g, g, 'row ' || g FROM generate_series(1, 1000) g;
SQL
my $by = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';

sub ours
{
	return $node->safe_psql('postgres', "SELECT string_agg(c.relname || ' ' || amname || CASE WHEN s.relation IS NULL THEN ' in a file' ELSE '' END, ', ' ORDER BY c.relname)
		FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam LEFT JOIN nvm.relations s ON s.relation = c.oid AND NOT s.ended WHERE indrelid = '$_[0]'::regclass");
}

# ---- the catalogs

is(ours('t'), 't_a_key btree, t_b btree, t_expr btree, t_pkey btree', 'all say btree, and are in the pool');
is($node->safe_psql('postgres', q(SELECT pg_get_indexdef('t_expr'::regclass))), 'CREATE INDEX t_expr ON public.t USING btree (lower(b) text_pattern_ops) WHERE (a > 0)', 'the definition');
is($node->safe_psql('postgres', q(SELECT count(*) FROM pg_opclass o JOIN pg_index i ON o.oid = ANY (indclass) JOIN pg_am a ON a.oid = opcmethod WHERE indrelid = 't'::regclass AND amname <> 'btree')), '0', 'operator classes are those of btree');
is($node->safe_psql('postgres', q(SELECT pg_index_has_property('t_b'::regclass, 'clusterable'), pg_index_column_has_property('t_b'::regclass, 1, 'desc'), pg_indexam_has_property(relam, 'can_order') FROM pg_class WHERE relname = 't_b')), 't|t|t', 'properties');
my ($described) = run_command([ 'psql', '-X', '-d', $node->connstr('postgres'), '-c', '\d t' ]);
like($described, qr/"t_pkey" PRIMARY KEY, btree \(id\)/, 'psql');
$node->fails_with('CREATE INDEX ON t (a) WITH (nothing = 1)', qr/unrecognized parameter "nothing"/, 'parameters are those of btree');
is($node->safe_psql('postgres', q(CREATE INDEX t_leaves ON t (a) WITH (persistence = leaves); SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 't_leaves'; DROP INDEX t_leaves)), 'nvm_btree', 'a parameter that btree does not have makes it nvm_btree');
is($node->safe_psql('postgres', q(CREATE INDEX t_named ON t USING nvm_btree (a); SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 't_named'; DROP INDEX t_named)), 'nvm_btree', 'and so does its name');
is($node->safe_psql('postgres', q(SET nvm.default_index_method = btree; CREATE INDEX t_file ON t (a); SELECT count(*) FROM nvm.relations WHERE relation = 't_file'::regclass; DROP INDEX t_file)), '0', "PostgreSQL's own is to be had as before");

# ---- WAL

$node->safe_psql('postgres', "INSERT INTO t SELECT g, g, 'row ' || g FROM generate_series(1001, 1010) g; CHECKPOINT");
my $before = $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()');
$node->safe_psql('postgres', "INSERT INTO t SELECT g, g, 'row ' || g FROM generate_series(2001, 3000) g");
cmp_ok($node->safe_psql('postgres', "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '$before')"), '<', 2000, '1,000 rows and 4,000 entries write no WAL');

# ---- what planner and executor do for btree alone

$node->safe_psql('postgres', "CREATE TABLE rc (a int, b text) USING nvm; INSERT INTO rc SELECT g / 10, 'row ' || g FROM generate_series(0, 999) g; CREATE INDEX ON rc (a, b)");
like($node->safe_psql('postgres', "$by EXPLAIN (COSTS OFF) SELECT * FROM rc WHERE (a, b) > (97, 'row 975')"), qr/Index Cond: \(ROW\(a, b\) > ROW/, 'a row comparison is an index condition');
is($node->safe_psql('postgres', "$by SELECT count(*) FROM rc WHERE (a, b) > (97, 'row 975')"), '24', 'and finds the rows');
like($node->safe_psql('postgres', "$by EXPLAIN (COSTS OFF) SELECT max(id) FROM t"), qr/Index Only Scan Backward using t_pkey/, 'max');
is($node->safe_psql('postgres', "$by SELECT max(id), min(a) FROM t"), '3000|1', 'and its result');
like($node->safe_psql('postgres', "SET enable_hashjoin = off; SET enable_nestloop = off; SET enable_seqscan = off; SET enable_sort = off; EXPLAIN (COSTS OFF) SELECT * FROM t x JOIN t y ON x.id = y.a"), qr/Merge Join.*Index Scan using/s, 'a merge join');

# ---- partitions

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE p (id int, a int, b text, PRIMARY KEY (id)) PARTITION BY RANGE (id);
CREATE INDEX p_a ON p (a);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100) USING nvm;
CREATE TABLE p2 (b text, id int, a int, CONSTRAINT p2_pk PRIMARY KEY (id)) USING nvm;
CREATE INDEX p2_a ON p2 (a);
INSERT INTO p2 SELECT 'b', g, g FROM generate_series(100, 150) g;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300) USING heap;
INSERT INTO p SELECT g, g, 'p' FROM generate_series(0, 299, 3) g ON CONFLICT (id) DO UPDATE SET b = 'again';
SQL
is(ours('p1'), 'p1_a_idx btree, p1_pkey btree', 'indexes of a partition are in the pool');
is(ours('p2'), 'p2_a btree, p2_pk btree', 'those of one that was attached, too, and they are the same');
is(ours('p3'), 'p3_a_idx btree in a file, p3_pkey btree in a file', 'those of a heap partition are in files');
is($node->safe_psql('postgres', q(SELECT b, count(*) FROM p GROUP BY b ORDER BY b)), "again|17\nb|34\np|83", 'ON CONFLICT through the parent');
is($node->safe_psql('postgres', "SELECT string_agg(inhrelid::regclass::text, ' ' ORDER BY 1) FROM (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'p_pkey'::regclass ORDER BY inhrelid::regclass::text) x"), 'p1_pkey p2_pk p3_pkey', 'all belong to the index of the parent');
is($node->safe_psql('postgres', q(UPDATE p SET id = id + 100 WHERE id = 51; ALTER TABLE p DETACH PARTITION p2; ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200); SELECT count(*) FROM p WHERE id = 151)), '1', 'moved, detached, attached');

# ---- constraints

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE k (id int NOT NULL, v int NOT NULL) USING nvm;
INSERT INTO k SELECT g, g FROM generate_series(1, 100) g;
CREATE UNIQUE INDEX k_id ON k (id);
CREATE UNIQUE INDEX k_v ON k (v);
ALTER TABLE k ADD PRIMARY KEY USING INDEX k_id, ADD UNIQUE USING INDEX k_v, ADD COLUMN x float DEFAULT random();
CREATE TABLE r (k int REFERENCES k, v int REFERENCES k (v) DEFERRABLE INITIALLY DEFERRED) USING nvm;
INSERT INTO r SELECT g, g FROM generate_series(1, 100) g;
ALTER TABLE r REPLICA IDENTITY FULL;
ALTER TABLE k REPLICA IDENTITY USING INDEX k_v;
SQL
is(ours('k'), 'k_id btree, k_v btree', 'an index that becomes a constraint stays in the pool');
$node->fails_with('DELETE FROM k WHERE id = 7', qr/violates foreign key constraint/, 'a foreign key finds what refers');
$node->fails_with('INSERT INTO r VALUES (700, 7)', qr/violates foreign key constraint/, 'and what is referred to');

# ---- materialized views

is($node->safe_psql('postgres', 'CREATE MATERIALIZED VIEW m USING nvm AS SELECT * FROM t; CREATE UNIQUE INDEX m_id ON m (id); UPDATE t SET b = b || 1 WHERE id < 10; REFRESH MATERIALIZED VIEW CONCURRENTLY m; '
  . "SELECT count(*) FROM m WHERE b LIKE 'row _1' AND id < 10"), '9', 'REFRESH CONCURRENTLY');
is(ours('m'), 'm_id btree', 'by an index in the pool');

# ---- dumps

my $dump = $node->basedir . '/dump.sql';
command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-f', $dump ], 'pg_dump');
unlike(slurp_file($dump), qr/nvm_btree/, 'a dump does not say nvm_btree');
foreach my $am (qw(nvm heap))
{
	my $sql = slurp_file($dump);
	my $db = "from_$am";

	$sql =~ s/default_table_access_method = nvm/default_table_access_method = $am/g;
	$sql =~ s/\\(un)?restrict.*//g;
	append_to_file("$dump.$am", $sql);
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($db), '-f', "$dump.$am" ], "restored with $am");
	is($node->safe_psql($db, "$by SELECT count(*) FROM t WHERE id > 0; SELECT count(*) FROM nvm.relations s WHERE relation::text IN ('t_pkey', 't_b', 'k_id', 'p2_pk', 'm_id')"),
		$am eq 'nvm' ? "2010\n5" : "2010\n0", 'its indexes are where its tables are');
	is($node->safe_psql($db, q(SELECT count(*) FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relkind = 'i' AND amname LIKE 'nvm%')), '0', 'and say btree');
}

# ---- without the setting, without the pool

is($node->safe_psql('postgres', "SET nvm.index_identity = nvm_btree; $by INSERT INTO t VALUES (5000, 5000, 'x'); SELECT id FROM t WHERE a = 5000; CREATE INDEX t_new ON t (a); SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 't_new'"),
	"5000\nnvm_btree", 'a session without the setting uses them, and makes nvm_btree indexes');
$node->check_clean('in the end');
$node->stop;
my $pool = $node->pool_file;
rename($pool, "$pool.away") or die $!;
$node->start;
$node->fails_with('SELECT * FROM t WHERE id = 5', qr/nvm tables are not available/, 'without the pool');
$node->safe_psql('postgres', 'SELECT nvm.reset_pool(force => true)');
$node->restart;
$node->fails_with("$by SELECT a FROM t WHERE id = 5", qr/lost/, 'with a new pool an access says that it has nothing');
is($node->safe_psql('postgres', "TRUNCATE t; INSERT INTO t VALUES (1, 1, 'new'); $by SELECT b FROM t WHERE id = 1"), 'new', 'TRUNCATE gets the table and its indexes back');
is(ours('t'), 't_a_key btree, t_b btree, t_expr btree, t_new nvm_btree, t_pkey btree', 'as they were');
$node->stop;

# ---- a server that does not load the library

$node->adjust_conf('postgresql.conf', 'shared_preload_libraries', "''");
$node->start;
my ($status, $out, $err) = $node->psql('postgres', "$by SELECT b FROM t WHERE id = 1");
like($err, qr/shared_preload_libraries/, 'a server without the library says what is missing');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Each place where an index that says btree gets our routine is left out, one at a time
# and all at once, in a new session for each command.  The command does what it should,
# because another place stands in, or it is an ERROR.  It never finds an empty index, or
# a second one.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $node = NvmTest->start_new('misses', conf => <<CONF, sql => <<'SQL');
nvm.index_identity = btree
autovacuum = off
max_prepared_transactions = 2
CONF
CREATE FUNCTION make() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	SET LOCAL client_min_messages = warning;
	DROP TABLE IF EXISTS t, p;
	CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED, v text, x int, EXCLUDE USING btree (x WITH =)) USING nvm;
	INSERT INTO t SELECT g, g, 'v' || g % 100, g FROM generate_series(1, 3000) g;
	CREATE INDEX t_v ON t (v);
	DELETE FROM t WHERE id % 10 = 0;
	CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
	CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (1000) USING nvm;
	CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (1000) TO (2000) USING nvm;
	INSERT INTO p SELECT g, 'p' FROM generate_series(0, 1999) g;
	ANALYZE t; ANALYZE p;
END $$;
SQL
$node->safe_psql('postgres', 'SELECT make()');

my @places = map { "exchange-$_" } qw(planned start slot written created fetched validated vacuumed vacuum-worker clustered);
my $by = 'SET enable_seqscan = off;';
my $error = qr/could not read blocks? .*131070|was opened as a file, but is in the NVM pool|as a file, since it is in the NVM pool|is not in the NVM pool by its catalog, but the pool has its entries|did not get the routine that is to build it/;

# command => what it returns, if it does
my @reads = (
	[ "$by SET enable_bitmapscan = off; SELECT count(v) FROM t WHERE id < 100", '90' ],
	[ "$by SET enable_bitmapscan = off; SELECT count(*) FROM t WHERE v = 'v7'", '30' ],
	[ "$by SET enable_indexscan = off; SET enable_indexonlyscan = off; SELECT count(*) FROM t WHERE v = 'v7'", '30' ],
	[ "$by SELECT count(*) FROM t a JOIN t b USING (id) WHERE a.v = 'v7'", '30' ],
	[ 'SELECT max(id), min(id) FROM t', '2999|1' ],
	[ "$by SELECT id FROM t WHERE id > 2990 ORDER BY id DESC LIMIT 1", '2999' ],
	[ "EXPLAIN (COSTS OFF) SELECT * FROM t WHERE id = 7", qr/Index Scan using t_pkey/ ],
	[ 'SELECT count(*) FROM t WHERE id > 2900', '90' ],
	[ "$by PREPARE q AS SELECT id FROM t WHERE id = \$1; EXECUTE q (7); EXECUTE q (8)", "7\n8" ],
	[ "$by BEGIN; DECLARE c CURSOR FOR SELECT id FROM t WHERE id > 10 ORDER BY id; FETCH 1 FROM c; ANALYZE t; FETCH 1 FROM c; COMMIT", "11\n12" ],
	[ "$by SET enable_bitmapscan = off; SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_index_scan_size = 0; SET min_parallel_table_scan_size = 0; "
	  . 'SELECT count(v) FROM t WHERE id < 2000', '1800' ],
	[ "SELECT count(*) FROM p WHERE id IN (5, 1500)", '2' ],);
my @writes = (
	[ "INSERT INTO t VALUES (5000, 5000, 'new', 5000) RETURNING id", '5000' ],
	[ "INSERT INTO t VALUES (5, 5000, 'new', 5000)", qr/duplicate key value violates unique constraint "t_pkey"/ ],
	[ "INSERT INTO t VALUES (5000, 5, 'new', 5000)", qr/duplicate key value violates unique constraint "t_u_key"/ ],
	[ "INSERT INTO t VALUES (5000, 5000, 'new', 5)", qr/conflicting key value violates exclusion constraint/ ],
	[ 'UPDATE t SET u = u + 1', '' ],
	[ "BEGIN; UPDATE t SET u = u + 1; PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'", '' ],
	[ "INSERT INTO t VALUES (5, 5, 'new', 5) ON CONFLICT (id) DO UPDATE SET v = 'set' RETURNING v", 'set' ],
	[ "INSERT INTO p VALUES (5, 'new'), (1500, 'new'), (1999, 'new') ON CONFLICT (id) DO UPDATE SET v = 'set' RETURNING id", "5\n1500\n1999" ],
	[ "COPY t FROM PROGRAM 'printf \"6000\\t6000\\tnew\\t6000\\n6001\\t6001\\tnew\\t6001\\n\"'; SELECT count(*) FROM t WHERE v = 'new'", '2' ],
	[ "UPDATE t SET v = 'upd' WHERE id = 7; SELECT id FROM t WHERE v = 'upd'", '7' ],
	[ "UPDATE p SET id = id + 1000 WHERE id = 0; SELECT 1", qr/duplicate key/ ],
	[ "MERGE INTO t USING (VALUES (7), (9000)) s (id) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 'm' WHEN NOT MATCHED THEN INSERT VALUES (9000, 9000, 'm', 9000); SELECT count(*) FROM t WHERE v = 'm'", '2' ],
	[ 'VACUUM t', '' ],
	[ 'SET min_parallel_index_scan_size = 0; VACUUM (PARALLEL 2, INDEX_CLEANUP on) t', '' ],
	[ 'VACUUM FULL t', '' ],
	[ 'VACUUM (ANALYZE) t', '' ],
	[ 'CLUSTER t USING t_v', '' ],
	[ 'REINDEX TABLE t', '' ],
	[ 'REINDEX TABLE CONCURRENTLY t', '' ],
	[ 'CREATE INDEX t_x ON t (v, u)', '' ],
	[ 'CREATE INDEX CONCURRENTLY t_x ON t (v, u)', '' ],
	[ "CREATE UNIQUE INDEX CONCURRENTLY t_x ON t (id, u); INSERT INTO t VALUES (5000, 5000, 'new', 5000)", '' ],
	[ "TRUNCATE t; INSERT INTO t VALUES (1, 1, 'one', 1); $by SELECT v FROM t WHERE id = 1", 'one' ],
	[ 'ALTER TABLE t ALTER v TYPE varchar(40), ADD COLUMN n int DEFAULT 1', '' ],
	[ "ALTER TABLE t SET ACCESS METHOD heap; $by SELECT count(*) FROM t WHERE id < 100", '90' ],
	[ "BEGIN; SAVEPOINT a; REINDEX TABLE t; ROLLBACK TO a; INSERT INTO t VALUES (5000, 5000, 'new', 5000); COMMIT", '' ],
	[ "BEGIN; CREATE TEMP TABLE tt (id int PRIMARY KEY) USING nvm ON COMMIT DELETE ROWS; INSERT INTO tt VALUES (1), (2); COMMIT; BEGIN; INSERT INTO tt VALUES (1), (3); $by SELECT count(*) FROM tt WHERE id > 0; COMMIT; SELECT count(*) FROM tt WHERE id > 0",
		"2\n0" ],);

# what is wrong with t and p, seen by a session that misses nothing
my $wrong = q(SET client_min_messages = warning;
	SELECT 'check: ' || f FROM pg_class c, nvm.check(c.oid, heapallindexed => true) f WHERE c.relname IN ('t', 'p1', 'p2') AND EXISTS (SELECT FROM pg_am a WHERE a.oid = c.relam AND amname = 'nvm');
	SET enable_seqscan = off; CREATE TEMP TABLE i AS SELECT (SELECT count(u) FROM t WHERE id > 0) AS a, (SELECT count(id) FROM t WHERE v > '') AS b, (SELECT count(id) FROM t WHERE u > 0) AS c, (SELECT count(v) FROM p WHERE id >= 0) AS d;
	SET enable_seqscan = on; SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
	SELECT 'by index ' || i::text || ', by table ' || s::text FROM i, (SELECT (SELECT count(u) FROM t WHERE id > 0) AS a, (SELECT count(id) FROM t WHERE v > '') AS b, (SELECT count(id) FROM t WHERE u > 0) AS c, (SELECT count(v) FROM p WHERE id >= 0) AS d) s
		WHERE i::text <> s::text;);
# a table that is not known for one with indexes of ours leaves their storages behind
my $left = q(SELECT 'storage of nobody ' || s::text FROM nvm.relations s WHERE relation IS NULL AND NOT ended AND persistence <> 't');

my %errors;
# in the short form one of the places, another one each day
my @some = NvmTest::is_long() ? @places : map { $places[ (int(time / 86400) + $_) % @places ] } 0;
foreach my $place ('none', @some, 'exchange', join(',', @places))
{
	my $list = join(', ', map { "$_:miss" } split(/,/, $place));
	my $name = $place =~ /,/ ? 'all places' : $place;
	my $set = $place eq 'none' ? '' : "SET nvm.failpoint = '$list';";

	foreach my $path (@reads, @writes)
	{
		my ($sql, $want) = @$path;
		my $writes = grep { $_ == $path } @writes;
		my ($status, $out, $err) = $node->psql('postgres', "$set $sql");
		my $failed = $err =~ $error;
		my $good = ref $want ? "$out$err" =~ $want : $status == 0 && $out eq $want && $err !~ /ERROR/;

		$errors{$name}++ if $failed;
		ok($good || ($failed && $place ne 'none'), "$name: $sql") or diag("status $status, output $out, error $err");
		next unless $writes;
		is($node->safe_psql('postgres', $wrong . ($place =~ /^exchange$/ ? '' : $left)), '', "$name: nothing is wrong after it");
		$node->safe_psql('postgres', 'SELECT make()' . ($place eq 'exchange' ? '; SELECT count(*) FROM nvm.drop_orphans()' : ''));
	}
}

# the test would not see a miss if none had come to an ERROR
cmp_ok($errors{exchange} // 0, '>', 10, 'without any exchange most commands are an ERROR');
note(join(', ', map { "$_: $errors{$_}" } sort keys %errors));
$node->check_clean('in the end');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Access method nvm_cmdlog does what nvm_vlog does (src/am/cmdlog.c): rows and indexes come
# back after a restart that throws the region away, after kill -9 and from a checkpoint, by
# SET ACCESS METHOD they come from and go to each other method, and a transaction over heap,
# nvm, nvm_vlog and nvm_cmdlog is there with all four tables or with none, wherever it is
# killed.  UNLOGGED, temporary and partitioned tables; tables that are not available.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @methods = qw(heap nvm nvm_vlog nvm_cmdlog);
my $node = NvmTest->start_new('method', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 10
max_worker_processes = 8
restart_after_crash = off
CONF
CREATE TABLE t (id int PRIMARY KEY, w int NOT NULL, s text, large text) USING nvm_cmdlog;
ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
CREATE INDEX t_w ON t (w);
INSERT INTO t SELECT i, i % 10, 's' || i FROM generate_series(1, 1000) i;
INSERT INTO t VALUES (1001, 1, 'large', repeat('x', 100000));
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub method
{
	my ($relation) = @_;
	return sql("SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE c.oid = '$relation'::regclass");
}

my $sums = q{SELECT count(*), sum(id), sum(w), sum(length(s)), sum(length(large)), md5(string_agg(s, ',' ORDER BY id)) FROM t};
my $by_index = q{SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(id) FROM t WHERE w = 3; SELECT s FROM t WHERE id = 77};

# ---- a table, and what brings it back

is(method('t') . ' ' . method('t_pkey') . ' ' . method('t_w'), 'nvm_cmdlog btree btree', 'a table and its indexes');
is(sql(q{SELECT persistence, live_rows > 0, kind FROM nvm.relations WHERE relation = 't'::regclass}), 'p|t|r', 'nvm.relations has it');
is(sql('SELECT state FROM nvm.log'), 'on', 'the first one begins the log');
my ($want, $index) = (sql($sums), sql($by_index));
like($want, qr/^1001\|/, 'rows are there');

foreach my $end ('a restart', 'kill -9', 'a checkpoint and a restart', 'a checkpoint and kill -9', 'changes behind a checkpoint and kill -9')
{
	sql('SELECT nvm.checkpoint()') if $end =~ /checkpoint/;
	if ($end =~ /changes/)
	{
		sql(q{UPDATE t SET s = s || '!' WHERE id % 7 = 0; DELETE FROM t WHERE id > 990 AND id < 1000; INSERT INTO t VALUES (2000, 3, 'new')});
		$want = sql($sums);
		$index = sql($by_index);
	}
	if ($end =~ /kill/) { $node->crash; $node->start; }
	else { $node->restart; }
	is(sql($sums), $want, "$end: rows come back");
	is(sql($by_index), $index, "$end: so do indexes");
	is(sql('SELECT state, rows > 0 FROM nvm.log_recovery'), 'whole|t', "$end: the region had gone");
}
$node->check_clean('after restarts');

# ---- from each method to each other

my $node_of = q{SELECT relfilenode FROM pg_class WHERE relname = 't'};
foreach my $from (@methods)
{
	foreach my $to (grep { $_ ne $from } @methods)
	{
		sql("ALTER TABLE t SET ACCESS METHOD $from") if method('t') ne $from;
		sql(qq{BEGIN; ALTER TABLE t SET ACCESS METHOD $to; UPDATE t SET s = 'gone'; ROLLBACK});
		is(method('t') . '|' . sql($sums), "$from|$want", "$from to $to, rolled back");
		my $before = sql($node_of);
		sql("ALTER TABLE t SET ACCESS METHOD $to");
		is(method('t'), $to, "$from to $to");
		isnt(sql($node_of), $before, "$from to $to: it is rewritten");
		is(sql($sums), $want, "$from to $to: rows");
		is(sql($by_index), $index, "$from to $to: indexes");
	}
	# what the last one wrote outlives a death
	$node->crash;
	$node->start;
	is(sql($sums), $want, method('t') . ': rows come back');
	is(sql($by_index), $index, method('t') . ': so do indexes');
}
$node->check_clean('after SET ACCESS METHOD');
sql('ALTER TABLE t SET ACCESS METHOD nvm_cmdlog') if method('t') ne 'nvm_cmdlog';

# ---- VACUUM FULL, CLUSTER, ALTER TYPE, TRUNCATE; a prepared transaction

sql('VACUUM FULL t');
is(sql($sums), $want, 'VACUUM FULL');
sql('CLUSTER t USING t_w');
is(sql($sums), $want, 'CLUSTER');
sql('ALTER TABLE t ALTER w TYPE bigint');
is(sql($sums), $want, 'ALTER TYPE');
sql('BEGIN; TRUNCATE t; ROLLBACK');
is(sql($sums), $want, 'TRUNCATE, rolled back');
sql(q{CREATE TABLE p (id int PRIMARY KEY) USING nvm_cmdlog; INSERT INTO p VALUES (1), (2);
	BEGIN; INSERT INTO p VALUES (3); DELETE FROM p WHERE id = 1; PREPARE TRANSACTION 'committed'});
sql(q{BEGIN; INSERT INTO p VALUES (4); DELETE FROM p WHERE id = 2; PREPARE TRANSACTION 'rolled back'});
$node->crash;
$node->start;
is(sql('SELECT array_agg(id ORDER BY id) FROM p'), '{1,2}', 'prepared transactions have not ended');
sql(q{COMMIT PREPARED 'committed'});
sql(q{ROLLBACK PREPARED 'rolled back'});
$node->crash;
$node->start;
is(sql('SELECT array_agg(id ORDER BY id) FROM p'), '{2,3}', 'and end as they are told');
is(sql($sums), $want, 'all else is there');

# ---- one transaction over all methods

sql("CREATE TABLE a_$_ (client int PRIMARY KEY, n int NOT NULL) USING $_; INSERT INTO a_$_ SELECT i, 0 FROM generate_series(0, 4) i") foreach @methods;
my $all = 'SELECT ' . join(', ', map { "(SELECT n FROM a_$_ WHERE client = 0)" } @methods);
my $change = join('; ', map { "UPDATE a_$_ SET n = n + 1 WHERE client = 0" } reverse @methods);
my $n = 0;

foreach my $place (qw(commit-begin log-capture commit-before-decision commit-after-decision commit-end log-write log-sync log-synced))
{
	my ($ret) = $node->psql('postgres', "SET nvm.failpoint = '$place:crash'; BEGIN; $change; COMMIT");
	isnt($ret, 0, "$place: it is reached");
	$node->wait_crashed;
	$node->start;
	my @n = split /\|/, sql($all);
	is(join(' ', @n), join(' ', ($n[0]) x 4), "$place: all tables or none");
	ok($n[0] == $n || $n[0] == $n + 1, "$place: once, if at all");
	$n = $n[0];
}
my $load = $node->start_load(clients => 4, transactions => NvmTest::is_long() ? 4000 : 400,
	sql => sub { my ($c, $i) = @_; return "BEGIN;\n" . join("\n", map { "UPDATE a_$_ SET n = $i WHERE client = $c;" } @methods) . "\nCOMMIT;"; });
$load->wait_acknowledged(300);
$node->crash;
my %acked = $load->finish;
$node->start;
foreach my $c (1 .. 4)
{
	my @n = split /\|/, sql($all =~ s/client = 0/client = $c/gr);
	is(join(' ', @n), join(' ', ($n[0]) x 4), "client $c, killed: all tables or none");
	cmp_ok($n[0], '>=', $acked{$c}, "client $c: what was acknowledged is there");
}
$node->check_clean('after deaths');

# ---- kinds of tables

sql(<<'SQL');
CREATE UNLOGGED TABLE u (id int PRIMARY KEY) USING nvm_cmdlog;
INSERT INTO u SELECT generate_series(1, 100);
CREATE TABLE parts (id int, w int NOT NULL, PRIMARY KEY (w, id)) PARTITION BY LIST (w);
CREATE TABLE parts1 PARTITION OF parts FOR VALUES IN (1) USING nvm_cmdlog;
CREATE TABLE parts2 PARTITION OF parts FOR VALUES IN (2) USING nvm_vlog;
CREATE TABLE parts3 PARTITION OF parts FOR VALUES IN (3) USING nvm_cmdlog;
INSERT INTO parts SELECT i, 1 + i % 3 FROM generate_series(1, 300) i;
UPDATE parts SET w = 3 WHERE w = 1 AND id % 2 = 0;
UPDATE parts SET w = 1 WHERE w = 2 AND id % 2 = 0;
CREATE MATERIALIZED VIEW mv USING nvm_cmdlog AS SELECT w, count(*) AS n FROM parts GROUP BY w;
CREATE UNIQUE INDEX ON mv (w);
DELETE FROM parts WHERE id = 1;
REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
SQL
is(sql('CREATE TEMP TABLE tmp (id int PRIMARY KEY) USING nvm_cmdlog ON COMMIT DELETE ROWS; BEGIN; INSERT INTO tmp VALUES (1), (2); SELECT count(*) FROM tmp; COMMIT; SELECT count(*) FROM tmp'),
	"2\n0", 'a temporary table');
my $parts = 'SELECT tableoid::regclass, count(*), sum(id) FROM parts GROUP BY 1 ORDER BY tableoid::regclass::text; SELECT * FROM mv ORDER BY 1';
my $there = sql($parts);
like($there, qr/^parts1\|100\|15050\nparts2\|49\|7399\nparts3\|150\|22700\n1\|100\n2\|49\n3\|150$/, 'rows move between partitions');
$node->crash;
$node->start;
is(sql($parts), $there, 'partitions come back');
is(sql('SELECT count(*) FROM u'), 0, 'an UNLOGGED table is empty');
sql('INSERT INTO u VALUES (1)');

# ---- without memory

$node->set_conf('nvm.memory_limit' => 0);
$node->restart;
$node->fails_with('SELECT * FROM t', qr/tables in memory are not available/, 'without memory: not available');
my ($ret, $out, $err) = $node->psql('postgres', 'VACUUM ANALYZE');
is($ret, 0, 'VACUUM passes over');
like($err, qr/skipping vacuum of "t" --- tables in memory are not available/, 'and says so');
$node->set_conf('nvm.memory_limit' => '-1');
$node->restart;
is(sql($sums), $want, 'with memory all is there');
is(sql($parts), $there, 'partitions, too');
sql('VACUUM ANALYZE');
is(sql($sums), $want, 'nor does VACUUM take any of it');
$node->check_clean('the end');
$node->stop;

done_testing();

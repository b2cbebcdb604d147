# Copyright (c) 2026, pg_nvm contributors

# Indexes that say btree and are ours, while other sessions build them, and while messages
# take entries out of the relcache at any moment: between the exchange of the routine
# and PostgreSQL's own opening of the index there is no such moment.

use strict;
use warnings;

use NvmTest;
use Test::More;
use Time::HiRes qw(time);

my $node = NvmTest->start_new('races', conf => <<CONF, sql => <<'SQL');
nvm.index_identity = btree
autovacuum = off
max_connections = 40
CONF
CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED, v text) USING nvm;
INSERT INTO t SELECT g, g, 'v' || g % 50 FROM generate_series(1, 2000) g;
CREATE INDEX t_v ON t (v);
SQL

# ---- a session that builds concurrently is stopped where the index is built and its file is not right yet

my $builder = $node->session;
my $writer = $node->session;
foreach my $sql ('CREATE INDEX CONCURRENTLY t_late ON t (v, id)', 'REINDEX INDEX CONCURRENTLY t_v')
{
	$builder->stop_at('btree-taken-over', $sql);
	is($node->safe_psql('postgres', "INSERT INTO t VALUES (9000, 9000, 'new'); UPDATE t SET v = 'upd' WHERE id = 9000; SET enable_seqscan = off; SELECT v FROM t WHERE u = 9000; DELETE FROM t WHERE id = 9000"), 'upd', "$sql: a new session writes meanwhile");
	is($writer->sql("INSERT INTO t VALUES (9001, 9001, 'new'); SELECT v FROM t WHERE id = 9001"), 'new', "$sql: so does an old one");
	$builder->go_on;
	$builder->sql("SET nvm.failpoint = ''");
	is($node->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM t WHERE v = 'new'; DELETE FROM t WHERE id = 9001; SELECT f FROM nvm.check('t', heapallindexed => true) f"), '1', "$sql: the index has all rows");
}
is($node->safe_psql('postgres', q(SELECT count(*) FROM nvm.relations s JOIN pg_index ON indexrelid = s.relation WHERE indrelid = 't'::regclass AND indisvalid)), '4', 'all are ours');
$_->drop foreach $builder, $writer;

# ---- another session builds an index anew; a plan is cached here, and the entry has gone

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE b (id int PRIMARY KEY, v text) USING nvm;
INSERT INTO b SELECT g, 'v' || g % 50 FROM generate_series(1, 2000) g;
CREATE INDEX b_v ON b (v);
CREATE TABLE bp (id int, v text) PARTITION BY RANGE (id);
CREATE TABLE bp_1 PARTITION OF bp FOR VALUES FROM (0) TO (1000) USING nvm;
CREATE TABLE bp_2 PARTITION OF bp FOR VALUES FROM (1000) TO (2000) USING nvm;
CREATE INDEX ON bp (id);
INSERT INTO bp SELECT g, 'v' || g FROM generate_series(0, 1999) g;
SQL
foreach my $case ([ '', 'COMMIT' ], [ '', 'ROLLBACK' ], [ 'in a file, ', 'COMMIT' ], [ 'in a file, ', 'ROLLBACK' ])
{
	my ($where, $end) = @$case;
	my ($reader, $builder) = map { $node->session } 1, 2;

	$node->safe_psql('postgres', 'DROP INDEX b_v, bp_id_idx; SET nvm.default_index_method = btree; CREATE INDEX b_v ON b (v); CREATE INDEX ON bp (id)') if $where;
	$reader->sql('SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; SET statement_timeout = \'20s\'; PREPARE q AS SELECT count(*) FROM b WHERE v = $1; PREPARE p AS SELECT v FROM bp WHERE id = $1');
	is($reader->sql("EXECUTE q('v7'); EXECUTE q('v7'); EXECUTE p(1); EXECUTE p(1)"), "40\n40\nv1\nv1", "${where}REINDEX and $end: before it");
	# a message of the index alone, so that the plan stays
	$node->safe_psql('postgres', 'ALTER INDEX b_v SET (fillfactor = 80)');
	$reader->sql('SELECT count(*) FROM pg_class');
	$builder->sql('BEGIN; REINDEX INDEX b_v');
	$reader->send("EXECUTE q('v7')");
	NvmTest::wait_until('it waits', sub { $node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = ' . $reader->pid) eq '1' });
	$builder->sql($end);
	# the answer of the first comes with that of the second
	is($reader->sql("EXECUTE q('v8')"), "40\n40", "${where}REINDEX and $end: behind it");
	is($reader->sql("EXECUTE q('v9')"), '40', "${where}REINDEX and $end: and again");

	# the first build tells pg_class of the partition's rows, and plans are made anew
	$node->safe_psql('postgres', 'REINDEX INDEX bp_2_id_idx');
	$reader->sql('EXECUTE p(1)');
	$node->safe_psql('postgres', 'ALTER INDEX bp_2_id_idx SET (fillfactor = 80)');
	$reader->sql('SELECT count(*) FROM pg_class');
	$builder->sql('BEGIN; REINDEX INDEX bp_2_id_idx');
	is($reader->sql('SELECT 1; EXECUTE p(2)'), "1\nv2", "${where}REINDEX of a partition's index holds up no search of another partition");
	$builder->sql($end);
	is($reader->sql('EXECUTE p(1500)'), 'v1500', 'and that partition has its rows');
	$_->drop foreach $reader, $builder;
}

# ---- messages at any moment

my $seconds = NvmTest::is_long() ? 120 : 8;
my @jobs = (
	# takes entries out of everybody's relcache, one by one and all at once
	[ messages => 'ANALYZE t; REINDEX INDEX t_late; DO $$BEGIN FOR i IN 1 .. 300 LOOP EXECUTE \'CREATE TEMP TABLE m (a int); DROP TABLE m\'; END LOOP; END$$;' ],
	[ analyze => 'ANALYZE t; VACUUM t;' ],
	[ scans => 'SET enable_seqscan = off; DO $$BEGIN FOR i IN 1 .. 50 LOOP IF (SELECT count(*) FROM t WHERE id BETWEEN 1 AND 100) <> 100 OR (SELECT count(*) FROM t WHERE v = \'v7\') < 30 OR (SELECT max(id) FROM t WHERE id < 2001) <> 2000 '
		  . 'THEN RAISE EXCEPTION \'rows are missing\'; END IF; END LOOP; END$$;' ],
	[ plans => 'DEALLOCATE ALL; SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; PREPARE q AS SELECT u FROM t WHERE id = $1 AND v > $2; '
		  . join(' ', map { "EXECUTE q ($_, 'a');" } 1 .. 100) ],
	[ deferred => 'BEGIN; UPDATE t SET u = -u WHERE id BETWEEN 500 AND 600; UPDATE t SET u = -u WHERE id BETWEEN 500 AND 600; COMMIT;' ],
	[ conflicts => join(' ', map { "INSERT INTO t VALUES ($_, $_, 'v7') ON CONFLICT (id) DO UPDATE SET v = t.v;" } 1 .. 100) ],
	[ churn => 'COPY t FROM PROGRAM \'seq -f "%.0f 0 x" 3000 3100 | sed -E "s/^([0-9]+) 0/\\1 \\1/" | tr " " "\t"\'; DELETE FROM t WHERE id > 2500;' ],
	[ pruned => 'SET enable_seqscan = off; SELECT count(*) FROM t a, LATERAL (SELECT * FROM t b WHERE b.id = a.u AND b.v = a.v LIMIT 1) x WHERE a.id < 200;' ],);
my (@children, %failed);

foreach my $job (@jobs)
{
	my ($name, $sql) = @$job;
	my $pid = fork() // die $!;

	if ($pid == 0)
	{
		my $end = time() + $seconds;
		my $bad = 0;

		while (time() < $end && $bad < 3)
		{
			# a new connection each time, and an old one in turn
			my ($status, $out, $err) = $node->psql('postgres', "$sql\n" x (1 + int(rand(5))));
			next if $err !~ /ERROR|FATAL|PANIC|server closed/;
			# as with heap tables
			next if $err =~ /deadlock detected|could not obtain lock/;
			diag("$name: $err");
			$bad++;
		}
		require POSIX;
		POSIX::_exit($bad ? 1 : 0);
	}
	push @children, [ $pid, $name ];
}
foreach my $child (@children)
{
	waitpid($child->[0], 0);
	is($?, 0, "$child->[1]: no error, no missing row");
}
is($node->safe_psql('postgres', q(DELETE FROM t WHERE id > 2000; SELECT f FROM nvm.check('t', heapallindexed => true) f;
	SET enable_seqscan = off; SELECT count(u), count(v) FROM t WHERE id > 0;)), '2000|2000', 'all rows, all entries');
$node->check_clean('in the end');
$node->stop;
done_testing();

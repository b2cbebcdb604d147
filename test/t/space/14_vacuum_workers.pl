# Copyright (c) 2026, pg_nvm contributors

# The workers of VACUUM (PARALLEL), for indexes of each method, those that say btree
# and are ours among them.  Whatever becomes of a worker, or of the leader, an entry is
# gone before its TID is used again.
#
# Long form: each of these ends with each kind of table.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('workers', conf => <<CONF);
autovacuum = off
max_parallel_maintenance_workers = 2
min_parallel_index_scan_size = 0
max_prepared_transactions = 2
nvm.horizon_naptime = 20ms
CONF

# as a later command sees which indexes there are
my $indexes = q(SELECT string_agg(a.amname || CASE WHEN EXISTS (SELECT FROM nvm.relations s WHERE s.relation = i.indexrelid::regclass) THEN '*' ELSE '' END, ' ' ORDER BY i.indexrelid)
	FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am a ON a.oid = c.relam WHERE i.indrelid = 't'::regclass);

# Rows of which half are dead.  The entries of a hundred keys are of live and dead rows.
sub table
{
	my ($method, $identity, $others) = @_;
	$node->safe_psql('postgres', <<SQL);
DROP TABLE IF EXISTS t;
CREATE TABLE t (id int, k int, s text) USING $method;
SET nvm.index_identity = $identity;
ALTER TABLE t ADD PRIMARY KEY (id);
CREATE INDEX t_k ON t (k);
CREATE INDEX t_s ON t (s);
@{[ $others ? "CREATE INDEX t_hash ON t USING hash (s); CREATE INDEX t_gin ON t USING gin (to_tsvector('simple', s)) WITH (fastupdate = off);
SET nvm.default_index_method = btree; CREATE INDEX t_file ON t USING btree (k, id); CREATE INDEX t_brin ON t USING brin (id);" : '' ]}
INSERT INTO t SELECT i, i % 100, 'word' || i FROM generate_series(1, 4000) i;
DELETE FROM t WHERE id % 2 = 0;
SQL
	return;
}

# What each index finds is what the table has; then new rows have the place of the dead.
sub sound
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	my $others = $node->safe_psql('postgres', q(SELECT to_regclass('t_gin') IS NOT NULL)) eq 't';

	foreach my $rows ('old', 'old and new')
	{
		my $keys = 'generate_series(1, (SELECT max(id) FROM t)) g';
		my $values = $others ? <<SQL : '';
SELECT md5(string_agg(t::text, ' ' ORDER BY id)) FROM (SELECT t.* FROM $keys, LATERAL (SELECT * FROM t WHERE s = 'word' || g OFFSET 0) t) t;
SELECT md5(string_agg(t::text, ' ' ORDER BY id)) FROM (SELECT t.* FROM $keys, LATERAL (SELECT * FROM t WHERE to_tsvector('simple', s) @@ ('word' || g)::tsquery OFFSET 0) t) t;
SQL
		my ($all, @found) = split /\n/, $node->safe_psql('postgres', <<SQL);
SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off;
SELECT md5(string_agg(t::text, ' ' ORDER BY id)) FROM t;
RESET enable_indexscan; RESET enable_bitmapscan; SET enable_seqscan = off;
SELECT md5(string_agg(t::text, ' ' ORDER BY id)) FROM t WHERE id > 0;
SELECT md5(string_agg(t::text, ' ' ORDER BY id)) FROM t WHERE k >= 0;
SELECT md5(string_agg(t::text, ' ' ORDER BY id)) FROM t WHERE s > '';
$values
SQL
		is(join(' ', @found), join(' ', ($all) x @found), "$name: every index finds the $rows rows");
		$node->safe_psql('postgres', "INSERT INTO t SELECT i, i % 100, 'word' || i FROM (SELECT max(id) m FROM t) t, generate_series(m + 1, m + 3000) i") if $rows eq 'old';
	}
	$node->check_clean($name);
	return;
}

sub log_size { return -s $node->logfile; }

# Processes that came to a failpoint
sub came_to
{
	my ($failpoint, $from) = @_;
	my %pids = map { $_ => 1 } slurp_file($node->logfile, $from) =~ /failpoint $failpoint hit, pid (\d+)$/mg;
	my @pids = sort keys %pids;

	return @pids;
}

# the leader waits a while, so that workers take the indexes
my $wait = 'vacuum-workers-launched:sleep=1000';

sub vacuum
{
	my ($arm, $set) = @_;
	my ($status, $out, $err) = $node->psql('postgres', ($set // '') . "SET nvm.failpoint = '$arm'; VACUUM (VERBOSE, PARALLEL 2, INDEX_CLEANUP on) t");
	return $status == 0 && $err !~ /ERROR/ ? $err : "failed: $err";
}

my @kinds = (
	[ 'nvm', 'nvm_btree', 1 ],
	[ 'nvm', 'btree', 1 ],
	[ 'nvm', 'btree', 0 ],
	[ 'nvm_vlog', 'btree', 1 ],
	[ 'nvm_cmdlog', 'btree', 0 ],);
my @some = NvmTest::is_long() ? @kinds : $kinds[1];

# ---- all is well
foreach my $kind (@kinds)
{
	my ($method, $identity, $others) = @$kind;
	my $name = "$method, $identity" . ($others ? ' and others' : '');
	my $from = log_size();

	table(@$kind);
	is($node->safe_psql('postgres', $indexes), join(' ', ("$identity*") x 3, $others ? qw(hash gin btree brin) : ()), "$name: the indexes");
	my $said = vacuum("$wait, vacuum-worker-index:sleep=0");
	like($said, qr/launched 2 parallel vacuum workers for index vacuuming \(planned: 2\)/, "$name: workers");
	like($said, qr/had 2000 dead row roots removed/, "$name: rows go");
	like($said, qr/index "t_s": pages: \d+ in total/, "$name: what a worker did is reported");
	cmp_ok(scalar(came_to('vacuum-worker-index', $from)), '>=', 1, "$name: workers did indexes");
	is($node->safe_psql('postgres', q(SELECT string_agg(DISTINCT reltuples::text, ' ') FROM pg_class WHERE relname IN ('t_pkey', 't_k', 't_s', 't_hash', 't_file'))),
		'2000', "$name: entries that are left");
	sound($name);
}

# ---- other ways to the same
table(@{$kinds[1]});
like(vacuum("$wait, vacuum-map:miss"), qr/launched 2 .*had 2000 dead row roots removed/s, 'a list of dead roots in place of bitmaps');
sound('a list');
table(@{$kinds[1]});
like(vacuum('vacuum-worker-started:sleep=1500'), qr/launched 2 .*had 2000 dead/s, 'workers that come when all is done');
sound('late workers');
table(@{$kinds[1]});
like(vacuum('', 'SET max_parallel_workers = 0;'), qr/launched 0 parallel vacuum workers for index vacuuming \(planned: 2\).*had 2000 dead/s, 'no workers to be had');
sound('no workers');
table(@{$kinds[1]});
like(vacuum('', 'SET max_parallel_maintenance_workers = 1;'), qr/launched 1 parallel vacuum worker for index vacuuming \(planned: 1\).*had 2000 dead/s, 'one worker');
sound('one worker');
table(@{$kinds[1]});
unlike(vacuum('', q(SET min_parallel_index_scan_size = '1GB';)), qr/failed|parallel vacuum worker/, 'indexes that are too small');
sound('small indexes');
# for a VACUUM that was not told PARALLEL indexes must be larger
foreach my $pages (4, 0)
{
	my $set = "SET min_parallel_index_scan_size = $pages;";

	table(@{$kinds[1]});
	my ($status, $out, $err) = $node->psql('postgres', "$set VACUUM (VERBOSE, INDEX_CLEANUP on) t");
	like($err, $pages ? qr/^(?!.*parallel vacuum worker).*had 2000 dead/s : qr/launched 2 .*had 2000 dead/s, "not asked for workers, $pages pages");
	$node->safe_psql('postgres', 'DELETE FROM t WHERE id % 4 = 1');
	like(vacuum('', $set), qr/launched [12] .*had 1000 dead/s, "asked, $pages pages");
	sound("$pages pages");
}
table(@{$kinds[1]});
like(vacuum($wait, 'SET vacuum_cost_delay = 1; SET vacuum_cost_limit = 50;'), qr/launched 2 .*had 2000 dead/s, 'with a delay');
sound('with a delay');
table('nvm', 'btree', 1);
$node->safe_psql('postgres', "INSERT INTO t SELECT i, 1, 'word' FROM generate_series(10001, 10200) i; BEGIN; DELETE FROM t WHERE id > 10000; PREPARE TRANSACTION 'p'");
like(vacuum($wait), qr/launched 2 .*had 2000 dead/s, 'rows of a prepared transaction');
$node->safe_psql('postgres', q(ROLLBACK PREPARED 'p'));
is($node->safe_psql('postgres', q(SET enable_seqscan = off; SELECT count(*) FROM t WHERE s = 'word')), '200', 'they are there');
$node->safe_psql('postgres', 'DELETE FROM t WHERE id > 10000');
sound('prepared');

# ---- the end of one process is that of all
my @ends = (
	[ 'vacuum-workers-shared:error', qr/failpoint vacuum-workers-shared hit/ ],
	[ 'vacuum-workers-launched:error', qr/failpoint vacuum-workers-launched hit/ ],
	[ "$wait, vacuum-worker-started:error", qr/failpoint vacuum-worker-started hit.*parallel worker/s ],
	[ "$wait, vacuum-worker-index:error", qr/failpoint vacuum-worker-index hit.*CONTEXT:  while vacuuming relation "public.t".*parallel worker/s ],
	[ "$wait, btree-vacuum-leaf:error:2", qr/failpoint btree-vacuum-leaf hit\s+CONTEXT:  while vacuuming index "t_\w+" of relation "public.t"\s+parallel worker\s*(?:$|\n(?!while))/ ],
	[ "$wait, vacuum-worker-done:error", qr/failpoint vacuum-worker-done hit/ ],
	[ "$wait, exchange-vacuum-worker:miss", qr/as a file, since it is in the NVM pool/ ],);
foreach my $kind (@some)
{
	my $identity = join(', ', @$kind[ 0, 1 ]);
	foreach my $end (@ends)
	{
		my ($arm, $re) = @$end;
		next if $arm =~ /miss/ && $kind->[1] ne 'btree';
		table(@$kind);
		like(vacuum($arm), $re, "$identity, $arm: VACUUM fails");
		sound("$identity, $arm");
		like(vacuum(''), qr/launched \d parallel.*had 2000 dead/s, "$identity, after $arm: VACUUM");
		sound("$identity, after $arm");
	}
	foreach my $place ('vacuum-workers-shared', 'vacuum-workers-launched', 'vacuum-worker-index', 'vacuum-worker-done')
	{
		table(@$kind);
		$node->psql('postgres', "SET nvm.failpoint = '" . ($place =~ /-worker-/ ? "$wait, " : '') . "$place:crash'; VACUUM (PARALLEL 2, INDEX_CLEANUP on) t");
		$node->wait_crashed;
		$node->start;
		sound("$identity, a crash at $place");
		like(vacuum(''), qr/launched \d parallel|had \d+ dead/s, "$identity, after a crash at $place: VACUUM");
		sound("$identity, after a crash at $place");
	}
}

# ---- a worker is stopped in its midst: who waits for whom
foreach my $way ('go on', 'terminate the worker', 'cancel', 'terminate')
{
	table(@{$kinds[1]});
	my $from = log_size();
	my $vacuum = $node->session;
	$vacuum->sql("SET nvm.failpoint = 'vacuum-workers-launched:stop:1, vacuum-worker-index:stop:1'");
	$vacuum->send('VACUUM (PARALLEL 2, INDEX_CLEANUP on) t');
	$vacuum->wait_held('vacuum-workers-launched');
	NvmTest::wait_stopped($vacuum->{pid});
	NvmTest::wait_until('both workers come to an index', sub { (my @pids = came_to('vacuum-worker-index', $from)) == 2 });
	my @workers = came_to('vacuum-worker-index', $from);
	NvmTest::wait_stopped($_) foreach @workers;
	$vacuum->go_on;

	my @others = map { $node->session } 1 .. 3;
	$others[0]->send('VACUUM (PARALLEL 2) t');
	$others[1]->send('DROP INDEX CONCURRENTLY t_k');
	$others[2]->sql("INSERT INTO t SELECT i, 7, 'word' || i FROM generate_series(8001, 8100) i; DELETE FROM t WHERE id % 4 = 1");
	NvmTest::wait_until('the others wait', sub { $node->safe_psql('postgres', q(SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 't'::regclass)) eq '2' });
	ok(1, "$way: VACUUM and DROP INDEX CONCURRENTLY wait");
	# a server of 17 or later says how far it is; the brin index is done by the leader
	my $columns = 'indexes_total, indexes_processed BETWEEN 0 AND 6';
	is($node->safe_psql('postgres', "SELECT phase, $columns FROM pg_stat_progress_vacuum WHERE pid = $vacuum->{pid}"), 'vacuuming indexes|7|t', "$way: progress")
	  if $node->safe_psql('postgres', 'SHOW server_version_num') >= 170000;

	$node->safe_psql('postgres', "SELECT pg_terminate_backend($_)") foreach $way eq 'terminate the worker' ? $workers[0] : ();
	$node->safe_psql('postgres', "SELECT pg_${way}_backend($vacuum->{pid})") if $way =~ /^\w+$/;
	NvmTest::continue_process($_) foreach @workers;
	NvmTest::wait_until('they end', sub { $node->safe_psql('postgres', q(SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND pid <> pg_backend_pid())) eq '0' });
	my $log = slurp_file($node->logfile, $from);
	like($log, $way eq 'go on' ? qr/^/ : $way eq 'cancel' ? qr/canceling statement due to user request/ : qr/terminating (?:background worker|connection)/, "$way: as told");
	is($node->safe_psql('postgres', q(SELECT to_regclass('t_k') IS NULL)), 't', "$way: the index is dropped");
	$_->drop foreach $vacuum, @others;
	$node->safe_psql('postgres', 'DELETE FROM t WHERE id > 8000; VACUUM t; SET nvm.index_identity = btree; CREATE INDEX t_k ON t (k)');
	sound($way);
}
$node->stop;
done_testing();

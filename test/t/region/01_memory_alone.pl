# Copyright (c) 2026, pg_nvm contributors

# The volatile region (src/pool/README.md, "Regions"), by way of a test's access
# method: its rows and its indexes take no room in the pool and no flush, a
# backend's death keeps them together with those of the pool, they go with the
# postmaster, and all else stays.
#
# The suites of regress and isolation run over it in the tier `region`.
#
# Long form: 40 deaths of a backend, here 8.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use IPC::Run;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $module = dirname(abs_path($0)) . '/../../tools/nvm_dram';
my $rounds = NvmTest::is_long() ? 40 : 8;

my $node = NvmTest->start_new('region', conf => <<CONF, sql => <<SQL);
shared_preload_libraries = 'pg_nvm,$module'
nvm_dram.size = 192MB
restart_after_crash = on
max_prepared_transactions = 10
autovacuum = off
nvm.horizon_naptime = 50ms
CONF
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$module' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
CREATE TABLE d (id int, v int, t text) USING nvm_dram;
CREATE TABLE p (id int, v int, t text) USING nvm;
CREATE TABLE e (a int) USING nvm_dram;
INSERT INTO e VALUES (1);
CREATE UNIQUE INDEX d_id ON d USING nvm_btree (id);
CREATE UNIQUE INDEX p_id ON p USING nvm_btree (id);
CREATE INDEX d_v ON d USING nvm_btree (v);
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

# what is free in the pool
sub room { return sql('SELECT free FROM nvm.pool'); }

# the numbers of all three ways to count
my $sums = 'SELECT count(*), sum(id), sum(v), sum(length(t))';

# 30 MB of rows and large values, and none of it in the pool
my $before = room();
sql(q{INSERT INTO d SELECT i, 0, CASE WHEN i % 1000 = 0 THEN
		(SELECT string_agg(md5(i::text || k), '') FROM generate_series(1, 5000) k)
		ELSE repeat('x', 1000) END FROM generate_series(1, 20000) i});
my $want = sql("$sums FROM d");
is(room(), $before, 'rows, large values and index entries take no room in the pool');
cmp_ok(sql("SELECT nvm.size('d')"), '>', 25_000_000, 'and the table is as large as it is');
my ($flushed) = sql('SELECT bytes FROM nvm.stat_wbl');
sql('UPDATE d SET v = v + 1 WHERE id <= 10000');
my ($now) = sql('SELECT bytes FROM nvm.stat_wbl');
cmp_ok($now - $flushed, '<', 5000, 'an update of 10000 rows flushes the words of its commit slot');
sql('UPDATE d SET v = 0 WHERE id <= 10000; VACUUM d');

# a backend dies, again and again, while others write both tables
sql('INSERT INTO p SELECT i, 0, NULL FROM generate_series(1, 1000) i');
my $script = PostgreSQL::Test::Utils::tempdir() . '/both.sql';
append_to_file($script, <<'SQL');
\set id random(1, 1000)
\set new random(100000, 900000000)
BEGIN;
UPDATE d SET v = v + 1 WHERE id = :id;
UPDATE p SET v = v + 1 WHERE id = :id;
INSERT INTO d VALUES (:new, 0, repeat('y', 100)) ON CONFLICT DO NOTHING;
INSERT INTO p VALUES (:new, 0, NULL) ON CONFLICT DO NOTHING;
COMMIT;
SQL
my $same = 'SELECT (SELECT count(*) FROM d JOIN p USING (id) WHERE d.v = p.v) = (SELECT count(*) FROM p)
	AND (SELECT count(*) FROM d WHERE id >= 100000 OR id <= 1000) = (SELECT count(*) FROM p)';
my ($last, $lost, $apart, $damaged) = (0, 0, 0, 0);
foreach my $round (1 .. $rounds)
{
	my $opened = $node->times_opened;
	my $load = IPC::Run::start(
		[ 'pgbench', '-n', '-c', 4, '-T', 60, '-f', $script, $node->connstr('postgres') ],
		'>', \my $ignored, '2>', \my $said);
	usleep(300_000 + int(rand(500_000)));
	my @pids = split /\n/, sql(q{SELECT pid FROM pg_stat_activity
		WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()});
	my $seen = sql('SELECT sum(v) FROM p');
	@pids > 0 && kill('KILL', $pids[ rand @pids ]) or die "nobody to kill: $said";
	$load->finish;
	$node->wait_reopened($opened);
	$lost++ if sql('SELECT sum(v) FROM d WHERE id <= 1000') < $seen;
	$apart++ if sql($same) ne 't';
	my @findings = $node->check_findings;
	diag(@findings) if @findings;
	$damaged++ if @findings;
	$last = $seen;
}
cmp_ok($last, '>', 0, 'there was work');
is($lost, 0, 'what was seen before a death is there after it');
is($apart, 0, 'of a transaction over both regions there is all or nothing');
is($damaged, 0, 'nothing is damaged');
is(sql('SELECT count(*), sum(length(t)) FROM d WHERE id <= 20000'),
	join('|', (split /\|/, $want)[ 0, 3 ]), 'rows and large values of before are there');

# prepared transactions, over a backend's death and over the postmaster's
sql("BEGIN; UPDATE d SET v = -1 WHERE id = 5000; UPDATE p SET v = -1 WHERE id = 500; SELECT FROM d WHERE id = 5001 FOR UPDATE; PREPARE TRANSACTION 'a'");
my $opened = $node->times_opened;
my $session = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $session->query('SELECT pg_backend_pid()');
kill 'KILL', $pid;
eval { $session->quit };
$node->wait_reopened($opened);
my ($rc, $out, $err) = $node->psql('postgres', 'SELECT FROM d WHERE id = 5001 FOR UPDATE NOWAIT');
like($err, qr/could not obtain lock/, 'a prepared transaction keeps its row locks');
sql("COMMIT PREPARED 'a'");
is(sql('SELECT v FROM d WHERE id = 5000'), '-1', 'and its rows, when it commits');
sql("BEGIN; UPDATE d SET v = -2 WHERE id = 5000; UPDATE p SET v = -2 WHERE id = 500; SELECT FROM d WHERE id = 5001 FOR UPDATE; PREPARE TRANSACTION 'b'");

# the region goes with the postmaster
my $kept = sql("$sums FROM p WHERE id <> 500");
$node->restart;
is(sql('SELECT count(*) FROM d'), 0, 'a restart empties the region');
is(sql('SET enable_seqscan = off; SELECT count(*) FROM d WHERE id = 7'), 0, 'and the indexes in it');
sql("COMMIT PREPARED 'b'");
is(sql('SELECT v FROM p WHERE id = 500'), '-2', 'the prepared transaction commits in the pool');
is(sql("$sums FROM p WHERE id <> 500"), $kept, 'the pool keeps its rows');
$node->check_clean('after a restart');

sql("INSERT INTO d SELECT i, 1, 'again' FROM generate_series(1, 5000) i");
is(sql('SET enable_seqscan = off; SELECT v, t FROM d WHERE id = 7'), '1|again', 'the table goes on');
$node->crash;
$node->start;
is(sql('SELECT count(*) FROM d'), 0, 'so does a crash of the server');
is(sql("$sums FROM p WHERE id <> 500"), $kept, 'and again the pool keeps its rows');
sql("INSERT INTO d SELECT i, 1, 'again' FROM generate_series(1, 5000) i");
$node->check_clean('after a crash');

# the region is full
($rc, $out, $err) = $node->psql('postgres', q{INSERT INTO d SELECT i, 1, repeat('z', 1000) FROM generate_series(10000, 400000) i});
like($err, qr/could not extend the volatile region: it has its maximum size/, 'a full region says so');
is(sql('SELECT count(*) FROM d'), 5000, 'and nothing of the statement is there');
sql('INSERT INTO p SELECT i, 0, NULL FROM generate_series(2000000001, 2000001000) i');
pass('the pool has room');
$node->check_clean('when the region is full');
sql('TRUNCATE d');
sql("INSERT INTO d SELECT i, 1, repeat('z', 1000) FROM generate_series(1, 50000) i");
pass('a TRUNCATE gives its room back');

# a server without the region: nothing can be stored, all else works
sql('CREATE TABLE k (a int) USING nvm; INSERT INTO k VALUES (1)');
$node->append_conf('postgresql.conf', 'nvm_dram.size = 0');
$node->restart;
is(sql('SELECT count(*) FROM e'), 0, 'without the region a table of it is empty');
$node->fails_with('INSERT INTO e VALUES (1)', qr/could not extend the volatile region/, 'and takes no rows');
$node->fails_with('SELECT FROM d', qr/could not extend the volatile region/,
	'nor has an index there room for its first page');
is(sql('SELECT count(*) FROM k'), 1, 'a table in the pool is served');
sql('DROP TABLE d, e');
$node->check_clean('without the region');
$node->stop;
done_testing();

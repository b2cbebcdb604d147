# Copyright (c) 2026, pg_nvm contributors

# A table and a pool beyond 100 GB: block numbers above 2^24, more than 2^32
# cells, byte offsets and units that need more than 32 bits where they do.  The
# file is sparse, and its counters are set by a tool; what is read and written is
# at both ends, so that nobody has to read 100 GB.
#
# Long form: the table is also truncated, all 128 GB of it.

use strict;
use warnings;

use FindBin;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $nblocks = (1 << 24) + 1000;     # 128 GB
my $gb = 152;      # a seventh is lost where extents of 8 MB do not fill chunks

my $node = NvmTest->new('huge');

# the server would have the holes in the pool allocated, or refuse it
my $library = "$FindBin::RealBin/../../tools/nvm_room.so";
die "$library is missing" unless -e $library;

sub start
{
	local $ENV{LD_PRELOAD} = $library;
	$node->start;
	return;
}

# on disk: reading what was never written takes no memory for good there
$node->init(pool => NvmTest::disk_dir($node) . '/pool');
$node->set_conf('nvm.pool_max_size' => "'${gb}GB'");
$node->append_conf('postgresql.conf', "autovacuum = off\nnvm.collect_gaps = on");
$node->start;
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE TABLE big (id bigint PRIMARY KEY, t text) USING nvm;
CREATE TABLE other (id bigint PRIMARY KEY, t text) USING nvm;
INSERT INTO big SELECT i, 'low ' || i FROM generate_series(1, 1000) i;
INSERT INTO other SELECT i, 'other ' || i FROM generate_series(1, 1000) i;
VACUUM ANALYZE big;
SQL
my $dir = $node->safe_psql('postgres', "SELECT id FROM nvm.relations WHERE relation = 'big'::regclass");
my $low = $node->safe_psql('postgres', 'SELECT max((ctid::text::point)[0]::bigint) FROM big');
$node->stop;
system_or_bail($NvmTest::patch_tool, $node->pool_file, 'grow', $dir, $nblocks);
start();
unlike($node->log_since_start, qr/refused|damaged/, 'the pool is taken');

# none may read the table from end to end
sub query
{
	my ($sql) = @_;
	my $plan = $sql =~ /^\s*(?:SELECT|UPDATE|DELETE|INSERT)/i && $sql =~ /big/ ?
	  $node->safe_psql('postgres', "SET enable_seqscan = off; EXPLAIN $sql") : '';
	die "would read it all: $sql\n$plan" if $plan =~ /Seq Scan on big/;
	return $node->safe_psql('postgres', "SET enable_seqscan = off; $sql");
}

# ---- figures ----

is(query("SELECT count(*) FROM big WHERE id = 5"), '1', 'a row');
is(query("SELECT blocks, bytes >= blocks * 8192 FROM nvm.relations WHERE relation = 'big'::regclass"), "$nblocks|t", 'nvm.relations');
is(query('SELECT size > 128::bigint * 1024 * 1024 * 1024, used + free = size, used > 128::bigint * 1024 * 1024 * 1024 FROM nvm.pool'),
	't|t|t', 'nvm.pool');
like(query('EXPLAIN SELECT * FROM big WHERE t = $$x$$'), qr/rows=\d+/, 'the planner has an estimate');
# density times blocks: not wrapped around
my ($rows) = $node->safe_psql('postgres', 'EXPLAIN SELECT * FROM big') =~ /rows=(\d+)/;
cmp_ok($rows, '>', 1_000_000_000, "estimated rows: $rows");

# ---- rows at both ends ----

my $last = $nblocks - 1;
is(query("SELECT count(*) FROM big WHERE ctid >= '($last,0)'"), '0', 'the last block is empty');
is(query("SELECT count(*), sum(id) FROM big WHERE ctid <= '($low,0)'") =~ /^\d+\|\d+$/ ? 1 : 0, 1, 'a TID range at the beginning');
is(query("SELECT count(*) FROM big WHERE id BETWEEN 1 AND 1000 AND t = 'low ' || id"), '1000', 'old rows by index');
# what fills a block makes the table longer
query("INSERT INTO big SELECT 1000000 + i, repeat('x', 3000) || i FROM generate_series(1, 3000) i");
my ($min, $max) = split /\|/, query('SELECT min((ctid::text::point)[0]::bigint), max((ctid::text::point)[0]::bigint) FROM big WHERE id > 1000000');
cmp_ok($max, '>', 1 << 24, "new rows are at the far end: blocks $min to $max");
is(query("SELECT count(*) FROM big WHERE id > 1000000 AND right(t, 4) = right((id)::text, 4)"), '2001', 'and are found')
  or diag(query("SELECT id, right(t, 5), ctid FROM big WHERE id > 1000000 LIMIT 5"));
is(query("SELECT count(*), sum(id) FROM big WHERE ctid >= '($nblocks,0)'"),
	query("SELECT count(*), sum(id) FROM big WHERE id > 1000000 AND (ctid::text::point)[0]::bigint >= $nblocks"), 'TID range scan at the far end');
is(query("SELECT t = repeat('x', 3000) || 3000 FROM big WHERE ctid = (SELECT ctid FROM big WHERE id = 1003000)"), 't', 'by TID');

# versions in chains over 2^24, back to blocks at the beginning
foreach my $n (1 .. 2)
{
	query("UPDATE big SET t = t || ' $n' WHERE id > 1000000 OR id <= 100");
}
is(query("SELECT count(*) FROM big WHERE t LIKE '% 1 2' AND (id > 1000000 OR id <= 100)"), '3100', 'updated at both ends');
query("UPDATE big SET id = -id WHERE id IN (1, 2, 3) OR id > 1002990");
is(query('SELECT count(*) FROM big WHERE id < 0'), '13', 'a key changed at both ends');
query("DELETE FROM big WHERE id BETWEEN 1000001 AND 1000500");
is(query('SELECT count(*) FROM big WHERE id > 1000000'), 3000 - 10 - 500, 'deleted');
is(query('SELECT count(*) FROM (SELECT 1 FROM big WHERE id > 1002000 FOR UPDATE) s'), 990, 'locked');
$node->fails_with("BEGIN; UPDATE big SET t = 'gone' WHERE id > 1002000; SELECT 1/0", qr/division by zero/, 'undone');
is(query("SELECT count(*) FROM big WHERE t = 'gone' AND id > 0"), '0', 'it is undone');
# large values beyond unit 2^24
query("INSERT INTO big SELECT 2000000 + i, string_agg(md5(i::text || j), '') FROM generate_series(1, 3) i, generate_series(1, 20000) j GROUP BY i");
is(query("SELECT count(*) FROM big WHERE id > 2000000 AND md5(t) = md5((SELECT string_agg(md5((id - 2000000)::text || j), '') FROM generate_series(1, 20000) j))"),
	'3', 'large values');
# another table grows behind it
query("INSERT INTO other SELECT 1000 + i, repeat('y', 1000) || i FROM generate_series(1, 2000) i");
is(query("SELECT count(*), sum(id) FROM other WHERE t LIKE '%' || (id - 1000) OR id <= 1000"), '3000|4501500', 'another table');

# bitmaps, exact and of whole blocks
is($node->safe_psql('postgres', <<SQL), '2490', 'bitmap scan');
SET enable_seqscan = off; SET enable_indexscan = off; SET enable_indexonlyscan = off;
SELECT count(*) FROM big WHERE id BETWEEN 1000000 AND 1999999;
SQL
# ---- crash ----

my $before = query('SELECT count(*), sum(id), md5(string_agg(id || t, $$,$$ ORDER BY id)) FROM big WHERE id > -2000000');
my $session = $node->session('SET enable_seqscan = off', 'BEGIN', "UPDATE big SET t = 'lost' WHERE id > 1002000");
$node->crash;
$session->drop;
$node->set_conf('nvm.collect_gaps' => 'off');
start();
is(query('SELECT count(*), sum(id), md5(string_agg(id || t, $$,$$ ORDER BY id)) FROM big WHERE id > -2000000'), $before, 'after a crash');
query("INSERT INTO big SELECT 3000000 + i, 'after' FROM generate_series(1, 100) i");
is(query("SELECT count(*) FROM big WHERE id > 3000000"), '100', 'and goes on');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.check_pool()'), '0', 'nvm.check_pool() finds nothing');

# ---- gone: 16,000 extents, each with an msync ----

if (NvmTest::is_long())
{
	query('TRUNCATE big');
	is(query(q{SELECT blocks FROM nvm.relations WHERE relation = 'big'::regclass}), '0', 'truncated');
	cmp_ok(query('SELECT used FROM nvm.pool'), '<', 1 << 30, 'and its extents are free');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.check_pool()'), '0', 'nvm.check_pool() finds nothing');
	query('INSERT INTO big SELECT i, i::text FROM generate_series(1, 1000) i');
	is(query('SELECT count(*), sum(id) FROM big WHERE t = id::text AND id > 0'), '1000|500500', 'and the table is used again');
}
$node->stop;

done_testing();

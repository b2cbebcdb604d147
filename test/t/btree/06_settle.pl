# Copyright (c) 2026, pg_nvm contributors

# Entries of nvm_btree that are settled when their transaction commits: losses of
# power afterwards, also of who has prepared; neighbours on a leaf that never
# settle theirs; more leaves than are noted; storages that go before the end.
# And the number of fences, which is what it is done for.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $images = NvmTest::is_long() ? 12 : 2;
my $node = NvmTest->start_new('settle', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 5
nvm.default_index_method = 'nvm_btree'
nvm.index_identity = nvm_btree
CONF
CREATE TABLE t (id int PRIMARY KEY, a int, s text) USING nvm;
CREATE INDEX t_a ON t (a);
CREATE INDEX t_s ON t (s) WITH (persistence = leaves);
INSERT INTO t SELECT i * 10, i, md5(i::text) FROM generate_series(1, 8000) i;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Every row of `rows`, (id, a), is found by each index, and the indexes are sound.
sub whole
{
	my ($name, $count, $where) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql("SELECT i, f FROM (VALUES ('t_pkey'), ('t_a'), ('t_s')) v(i), LATERAL nvm.check(i::regclass, true) f"),
		'', "$name: indexes are sound");
	foreach my $col ('id', 'a', 's')
	{
		is(sql("SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; "
				. "SET enable_material = off; SET enable_memoize = off; SET enable_sort = off; "
				. "SELECT count(*) FROM (SELECT * FROM t WHERE $where OFFSET 0) x JOIN LATERAL "
				. "(SELECT id FROM t WHERE t.$col = x.$col OFFSET 0) y ON y.id = x.id"),
			$count, "$name: rows are found by $col");
	}
	return;
}

# Power is lost, several images; `then` is done at each start.
sub lose_power
{
	my ($name, $then, @whole) = @_;
	my $saved = $node->save_crash;
	foreach my $i (1 .. $images)
	{
		$node->restore_crash($saved, seed => $i, $i == 2 ? (mode => 'durable') : ());
		$node->start;
		sql($then) if $then;
		whole("$name, image $i", @whole);
		$node->check_clean("$name, image $i");
		$node->crash if $i < $images;
	}
	$node->forget_crash($saved);
	return;
}

# ---- settling that fails on the way, and is done again when the subtransaction goes

sql('CREATE TABLE r (id int PRIMARY KEY) USING nvm; INSERT INTO r SELECT generate_series(2000001, 2005000)');
foreach my $rows (30_000, 50_000)
{
	my ($ret, $out, $err) = $node->psql('postgres', <<"SQL", on_error_stop => 0);
SET nvm.failpoint = 'btree-settle:error:1';
BEGIN; INSERT INTO r VALUES (-$rows); SAVEPOINT s; INSERT INTO r SELECT generate_series(1, $rows); ROLLBACK TO s;
SET nvm.failpoint = ''; INSERT INTO r SELECT 1000000 + $rows + i FROM generate_series(1, 5000) i; COMMIT;
SQL
	like($err, qr/failpoint btree-settle/, "$rows rows: settling fails");
	is(sql(q{SELECT f FROM nvm.check('r_pkey', true) f}), '', "$rows rows: the index is sound");
}
is(sql('SET enable_seqscan = off; SELECT count(*) FROM r WHERE id > -1000000'),
	sql('SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off; SELECT count(*) FROM r WHERE id > -1000000'),
	'and has what the table has');
sql('DROP TABLE r');

# ---- neighbours that do not settle theirs: one open, one aborted

my $open = $node->session('BEGIN', 'INSERT INTO t SELECT i * 10 + 1, i, md5((-i)::text) FROM generate_series(500, 540) i');
sql('BEGIN; INSERT INTO t SELECT i * 10 + 2, i, md5((-i)::text) FROM generate_series(500, 540) i; ROLLBACK');
sql('INSERT INTO t SELECT i * 10 + 3, i, md5((-i)::text) FROM generate_series(500, 540) i');
$open->sql('INSERT INTO t SELECT i * 10 + 4, i, md5((-i)::text) FROM generate_series(500, 540) i');
lose_power('neighbours', undef, 41, 'id % 10 > 0');
$open->drop;

# ---- neighbours on a leaf with room, so that no split makes their entries durable

sql('CREATE TABLE q (k int, v int) USING nvm; CREATE UNIQUE INDEX q_k ON q (k) WITH (fillfactor = 40); '
	  . 'INSERT INTO q SELECT i * 100, 0 FROM generate_series(1, 1000) i; REINDEX INDEX q_k; '
	  . 'INSERT INTO q VALUES (1, 0)');

# Power is lost while one has not come to wait for his entries, and what another has
# stored behind them is at `held`, or committed.
sub among_unsettled
{
	my ($name, $held, $from, @images) = @_;
	my $neighbour = $node->session('BEGIN', 'INSERT INTO q VALUES (50101, 1)',
		'INSERT INTO q SELECT 50102 + i, 1 FROM generate_series(1, 9) i');
	my $other = $node->session;
	my $insert = "INSERT INTO q SELECT $from + i, 2 FROM generate_series(1, 9) i";

	if   ($held) { $other->hold($held, $insert); }
	else         { $other->sql($insert); }
	my $saved = $node->save_crash;
	$_->drop foreach $neighbour, $other;
	foreach my $image (@images)
	{
		$node->restore_crash($saved, %$image);
		$node->start;
		my $what = "$name, " . join ' ', %$image;
		is(sql("SELECT * FROM nvm.check('q_k', true)"), '', "$what: the index is sound");
		is(sql("SET enable_seqscan = off; SELECT count(*) FROM q WHERE k BETWEEN $from AND $from + 20 AND v = 2"),
			$held ? 0 : 9, "$what: rows of the other");
		is(sql('SET enable_seqscan = off; SELECT count(*) FROM q WHERE k > 0 AND v < 2'), 1001, "$what: all other rows");
	}
	$node->forget_crash($saved);
	return;
}
among_unsettled('committed among unsettled', undef, 50120, { mode => 'durable' }, { seed => 3 });
among_unsettled('settled, and not committed', 'btree-settled', 50140, map { { seed => $_ } } 1 .. 3 * $images);

# ---- prepared; and settled by nobody else

sql("BEGIN; INSERT INTO t SELECT i * 10 + 5, i, md5((-i)::text) FROM generate_series(3000, 3040) i; PREPARE TRANSACTION 'p'");
lose_power('prepared', "COMMIT PREPARED 'p'", 41, 'id % 10 = 5');

# ---- more leaves than are noted, in one transaction; splits among them

sql('INSERT INTO t SELECT i * 40 + 6, i * 4, md5((-i)::text) FROM generate_series(1, 2000) i');
lose_power('many leaves', undef, 2000, 'id % 10 = 6');

# ---- storages whose leaves are noted, and which go before the end

sql(<<SQL);
BEGIN;
CREATE TABLE gone (id int PRIMARY KEY) USING nvm;
INSERT INTO gone SELECT generate_series(1, 2000);
SAVEPOINT a;
CREATE TABLE gone2 (id int PRIMARY KEY, t text UNIQUE) USING nvm;
INSERT INTO gone2 SELECT i, i FROM generate_series(1, 2000) i;
ROLLBACK TO a;
CREATE TABLE kept (id int PRIMARY KEY, t text UNIQUE) USING nvm;
INSERT INTO kept SELECT i, i FROM generate_series(1, 2000) i;
TRUNCATE gone;
INSERT INTO gone VALUES (1), (3);
INSERT INTO t SELECT i * 10 + 7, i, md5((-i)::text) FROM generate_series(1, 40) i;
SAVEPOINT b;
INSERT INTO t SELECT i * 10 + 8, i, md5((-i)::text) FROM generate_series(1, 40) i;
ROLLBACK TO b;
INSERT INTO gone VALUES (2);
COMMIT;
SQL
lose_power('storages that went', undef, 40, 'id % 10 IN (7, 8)');
is(sql("SELECT f FROM (VALUES ('gone_pkey'), ('kept_pkey'), ('kept_t_key')) v(i), LATERAL nvm.check(i::regclass, true) f"),
	'', 'storages that stayed: indexes are sound');
is(sql('SET enable_seqscan = off; SELECT count(*) FROM gone WHERE id > 0'), '3', 'TRUNCATE in the transaction that made the table');
is(sql('SET enable_seqscan = off; SELECT count(*) FROM kept WHERE id > 0'), '2000', 'a table made beside one that was rolled back');

# ---- the number of fences does not depend on that of rows and indexes

sql("CREATE TABLE n (id int PRIMARY KEY, a int, b int) USING nvm; CREATE INDEX ON n (a); CREATE INDEX ON n (b); INSERT INTO n SELECT i * 100, i, i FROM generate_series(1, 10) i");

sub fences
{
	my ($rows, $from) = @_;
	my $before = sql('SELECT fences FROM nvm.stat_wbl');
	sql("INSERT INTO n SELECT $from + i, i, -i FROM generate_series(1, $rows) i");
	return sql('SELECT fences FROM nvm.stat_wbl') - $before;
}
fences(1, 2000);
my $one   = fences(1,  3000);
my $fifty = fences(50, 4000);
cmp_ok($fifty, '<=', $one, "50 rows and three indexes need no more fences than one row ($fifty, $one)");

$node->stop;
done_testing();

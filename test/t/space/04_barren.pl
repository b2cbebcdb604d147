# Copyright (c) 2026, pg_nvm contributors

# Blocks in which VACUUM has found nothing that anybody sees: sequential scans pass
# them over (storage/README.md, "Barren blocks"), until somebody writes there.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('barren', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_parallel_workers_per_gather = 0
max_prepared_transactions = 5
CONF
CREATE TABLE t (id int, k int, v int, pad text) USING nvm;
CREATE INDEX t_k ON t USING nvm_btree (k);
CREATE FUNCTION scan(OUT n bigint, OUT s bigint, OUT looked bigint) LANGUAGE plpgsql AS
$$BEGIN
	looked := pg_stat_get_xact_blocks_fetched('t'::regclass);
	SELECT count(*), sum(v) INTO n, s FROM t;
	looked := pg_stat_get_xact_blocks_fetched('t'::regclass) - looked;
END$$ SET enable_indexscan = off SET enable_indexonlyscan = off SET enable_bitmapscan = off;
INSERT INTO t SELECT i, i, 1, repeat('x', 60) FROM generate_series(1, 3000) i;
SQL
$node->safe_psql('postgres', $NvmTest::pass_time);

sub looked { return $node->safe_psql('postgres', 'SELECT looked FROM scan()'); }
sub rows { return $node->safe_psql('postgres', 'SELECT n, s FROM scan()'); }

sub vacuum
{
	$node->safe_psql('postgres', 'CALL pass_time(3)');
	$node->safe_psql('postgres', 'VACUUM (INDEX_CLEANUP ON) t');
	return;
}

# ---- passed over, and not under a snapshot that sees what is there ----

my $full = looked();
cmp_ok($full, '>', 20, "the table has $full blocks");
my $old = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT n, s FROM scan()');
$node->safe_psql('postgres', 'UPDATE t SET k = k + 10000, v = 2');
vacuum();
is(looked(), 2 * $full, 'nothing is passed over that an old snapshot sees');
is($old->sql('SELECT n, s FROM scan()'), '3000|3000', 'which sees all of it');
$old->drop;
vacuum();
cmp_ok(looked(), '<=', $full + 2, 'once it is gone old versions are not looked at');
is(rows(), '3000|6000', 'and no row is missing');
is($node->safe_psql('postgres', q{SELECT count(*) FROM t WHERE ctid >= '(0,0)'}), 3000, 'nor in a scan by TIDs');
is($node->safe_psql('postgres', 'BEGIN; DECLARE c SCROLL CURSOR FOR SELECT id FROM t; MOVE ALL c; FETCH BACKWARD 1 c; MOVE FIRST c; FETCH c; COMMIT'),
	"3000\n2", 'nor backwards');
is($node->safe_psql('postgres', "$NvmTest::force_parallel; SELECT count(*), sum(v) FROM t"), '3000|6000', 'nor in a parallel scan');
$node->check_clean('barren blocks');

# ---- damage in a barren block is listed ----

{
	my ($storage) = $node->safe_psql('postgres',
		"SELECT i.id FROM nvm.relations_info() i WHERE NOT ended AND i.relfilenode = pg_relation_filenode('t')");
	my ($block) = map { $_->[0] } grep { $_->[1] == $storage && $_->[2] == 0 }
	  map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $node->pool_file, 'blocks' ]))[0];

	# the first area of block 0: its word `begin` is that of a slot that nobody has used
	open(my $fh, '+<:raw', $node->pool_file) or die $!;
	my $get = sub { my ($at, $n) = @_; seek($fh, $at, 0); read($fh, my $data, $n) == $n or die 'short read'; return $data; };
	my $put = sub { my ($at, $data) = @_; seek($fh, $at, 0); print $fh $data; $fh->flush; return; };
	my $starts = unpack('b*', $get->($block + 32, 32));
	my $cell   = index($starts, '1');
	cmp_ok($cell, '>=', 3, 'block 0 has an area');
	my $begin = $get->($block + $cell * 32 + 24, 8);
	$put->($block + $cell * 32 + 24, pack('Q', (1000 << 48) | 5));
	my (undef, $out, $err) = $node->psql('postgres', q{SELECT * FROM nvm.check('t')});
	is($err, '', 'nvm.check() of a damaged barren block: no error');
	like($out, qr/^0\|$cell\|.*\bslot 1000\b/m, 'but a problem');
	$put->($block + $cell * 32 + 24, $begin);
	close $fh;
	$node->check_clean('mended');
}

# ---- somebody writes there ----

# a second VACUUM gives the cells back, and their blocks are barren all the same
vacuum();
cmp_ok(looked(), '<=', $full + 2, 'free cells are not looked at, either');
my $writer = $node->session('BEGIN', q{INSERT INTO t SELECT i, i, 10, repeat('y', 60) FROM generate_series(1, 500) i});
is($writer->sql('SELECT n, s FROM scan()'), '3500|11000', 'its own rows are there for a transaction');
is(rows(), '3000|6000', 'and for nobody else');
vacuum();
is($writer->sql('SELECT n, s FROM scan()'), '3500|11000', 'VACUUM finds them');
$writer->sql('COMMIT');
is(rows(), '3500|11000', 'when they are committed they are there for all');
cmp_ok(looked(), '<', 2 * $full, 'with some blocks passed over');
$writer->sql('BEGIN; DELETE FROM t WHERE v = 10');
vacuum();
$writer->sql('ROLLBACK');
is(rows(), '3500|11000', 'a DELETE that is taken back');
$writer->sql(q{BEGIN; DELETE FROM t WHERE v = 10; PREPARE TRANSACTION 'del'});
vacuum();
is(rows(), '3500|11000', 'and one that is prepared');
$writer->sql(q{ROLLBACK PREPARED 'del'});
is(rows(), '3500|11000', 'and taken back');
$writer->sql(q{BEGIN; INSERT INTO t SELECT i, i, 10, repeat('z', 60) FROM generate_series(1, 500) i; ROLLBACK});
vacuum();
is(rows(), '3500|11000', 'an INSERT that is taken back');
$writer->stop_at('insert-before-begin', q{INSERT INTO t VALUES (0, 0, 5, 'being written')});
vacuum();
$writer->go_on;
is($writer->sql('SELECT n, s FROM scan()'), '3501|11005', 'a row that was being written when VACUUM came');
$writer->drop;
$node->check_clean('written to');

# ---- stubs: rows whose first version was there, for an index that is made now ----

$node->safe_psql('postgres', 'UPDATE t SET v = v + 1');
vacuum();
vacuum();
is(rows(), '3501|14506', 'rows that live elsewhere');
$node->safe_psql('postgres', 'CREATE INDEX t_id ON t USING nvm_btree (id)');
$node->safe_psql('postgres', 'SET nvm.default_index_method = btree; CREATE INDEX CONCURRENTLY t_v ON t USING btree (v)');
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id >= 0; SELECT count(*) FROM t WHERE v >= 0'),
	"3501\n3501", 'an index finds them');
$node->check_clean('new indexes');

# ---- empty, emptied, ends of the server ----

$node->safe_psql('postgres', 'DELETE FROM t');
vacuum();
is(looked(), 0, 'of an empty table nothing is looked at');
$node->safe_psql('postgres', q{INSERT INTO t SELECT i, i, 1, repeat('x', 60) FROM generate_series(1, 1000) i});
is(rows(), '1000|1000', 'it is filled again');
$node->crash;
$node->start;
is(rows(), '1000|1000', 'after a crash');
vacuum();
$node->restart;
is(rows(), '1000|1000', 'after a restart');
is($node->safe_psql('postgres', q{BEGIN; CREATE TABLE e (i int) USING nvm; INSERT INTO e SELECT 1 FROM generate_series(1, 1000);
TRUNCATE e; INSERT INTO e SELECT 2 FROM generate_series(1, 10); SELECT count(*) FROM e; COMMIT}), 10, 'TRUNCATE in place');

# ---- many at once: each transaction leaves as many rows as it found ----

my $seconds = NvmTest::is_long() ? 60 : 5;
my $dir     = $node->basedir;
$node->safe_psql('postgres', 'TRUNCATE t; INSERT INTO t SELECT i, i, 1 FROM generate_series(1, 2000) i; DROP INDEX t_v');
append_to_file("$dir/write.sql", <<'SQL');
\set at random(1, 4) * 500 - 499
\set end random(1, 4)
BEGIN;
SELECT pg_advisory_xact_lock(:at);
WITH gone AS (DELETE FROM t WHERE id BETWEEN :at AND :at + 499 RETURNING *)
INSERT INTO t SELECT id, k + 1, v, repeat('x', :end * 10) FROM gone;
\if :end = 1
ROLLBACK;
\else
COMMIT;
\endif
SQL
append_to_file("$dir/read.sql", <<'SQL');
BEGIN ISOLATION LEVEL REPEATABLE READ;
DO $$BEGIN ASSERT (SELECT n FROM scan()) = 2000, (SELECT 'rows: ' || n FROM scan()); END$$;
DO $$BEGIN ASSERT (SELECT n FROM scan()) = 2000, (SELECT 'rows: ' || n FROM scan()); END$$;
COMMIT;
SQL
append_to_file("$dir/vacuum.sql", <<'SQL');
VACUUM (INDEX_CLEANUP ON) t;
DO $$BEGIN ASSERT NOT EXISTS (SELECT FROM nvm.check('t')), (SELECT string_agg(c::text, '; ') FROM nvm.check('t') c); END$$;
SQL
my @started;
foreach my $what ('read', 'write', 'vacuum')
{
	my ($out, $err) = ('', '');
	my $h = IPC::Run::start([ 'pgbench', '-n', '-h', $node->host, '-p', $node->port, '-c', $what eq 'vacuum' ? 1 : 2,
		'-T', $seconds, '-f', "$dir/$what.sql", 'postgres' ], '>', \$out, '2>', \$err);
	push @started, [ $what, $h, \$err ];
}
foreach my $s (@started)
{
	my ($what, $h, $err) = @$s;
	$h->finish;
	is($h->result(0), 0, "$what: no error") or diag($$err);
	unlike($$err, qr/ERROR|aborted/, "$what: not a word of one");
}
vacuum();
is($node->safe_psql('postgres', 'SELECT n FROM scan()'), 2000, 'in the end all rows are there');
$node->check_clean('in the end');
$node->stop;

done_testing();

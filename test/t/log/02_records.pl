# Copyright (c) 2026, pg_nvm contributors

# What the log has after each kind of transaction, as nvm_logdump prints it: the newest version
# of each row that was changed, once; nothing of what was rolled back, or lies in no table that the
# log brings back; and what a commit, an abort and a clean stop leave of files.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $tools = dirname(abs_path($0)) . '/../../tools';
my $node = NvmTest->start_new('records', conf => <<CONF, sql => <<SQL);
shared_preload_libraries = '$tools/nvm_late,pg_nvm,$tools/nvm_dram'
nvm_dram.size = 192MB
nvm_dram.log = on
max_prepared_transactions = 5
autovacuum = off
# the volume of what is written is counted on below
nvm.log_compression = off
CONF
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$tools/nvm_dram' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
CREATE TABLE t (id int PRIMARY KEY, v int, s text) USING nvm_dram;
CREATE TABLE u (id int PRIMARY KEY, v int) USING nvm_dram;
CREATE UNLOGGED TABLE ul (id int) USING nvm_dram;
CREATE TABLE h (id int) USING heap;
CREATE TABLE p (id int) USING nvm;
INSERT INTO t SELECT i, 0, 's' FROM generate_series(1, 100) i;
INSERT INTO u SELECT i, 0 FROM generate_series(1, 100) i;
SQL
my $dir = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub dump_of { return NvmLog::dump_of($dir, @_); }

sub storage_of
{
	return sql("SELECT id || '/' || creation FROM nvm.relations WHERE relation = '$_[0]'::regclass");
}

# Of each record its kind and how many rows of each table it has: "t:3", "t-:3" if they are gone.
my %names;
sub in_short
{
	my ($dump) = @_;
	my @said;

	foreach my $record (@{ $dump->{records} })
	{
		my %rows;
		# one may come twice
		foreach my $row (@{ $record->{rows} })
		{
			$rows{ ($names{"$row->{dir}/$row->{creation}"} // '?') . ($row->{data} ne '' ? '' : '-') }{ $row->{tid} } = 1;
		}
		push @said, join(' ', lc $record->{kind}, map { "$_:" . keys %{ $rows{$_} } } sort keys %rows);
	}
	return join('; ', @said);
}

# What DDL has left in the catalogs is not pruned by whoever reads them next: that would be WAL, and
# its transaction decided by pg_xact.  A session that ends holds the horizon back.
my $ddl = 1;
sub prune_catalogs
{
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'client backend'") or die;
	sql('VACUUM');
	$ddl = 0;
	return;
}

# what a statement adds
sub adds
{
	my ($sql, $expected, $name) = @_;

	prune_catalogs() if $ddl && $expected =~ /commit /;
	$ddl = 1 if $sql =~ /\b(?:CREATE|ALTER|DROP|TRUNCATE|VACUUM)\b/;
	my $before = dump_of()->{end};
	my ($status, $out, $err) = $node->psql('postgres', $sql);

	$names{ storage_of($_) } = $_ foreach grep { sql("SELECT to_regclass('$_') IS NOT NULL") eq 't' } qw(t u ul p made);
	# what nobody waits for, too
	sql("BEGIN; INSERT INTO u VALUES (0, 0); COMMIT; DELETE FROM u WHERE id = 0") if $expected =~ /outcome/;
	my $dump = dump_of(from => $before);
	my $said = in_short($dump);
	$said =~ s/(?:; )?(?:ask u:1; outcome committed|commit u:1); commit u-:1$// if $expected =~ /outcome/;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($dump->{problem}, '', "$name: the log is whole");
	is($said, $expected, $name) or diag($err);
	return ($dump, $err);
}

# ---------------------------------------------------------------- one transaction each

# what the tables' making has left to write
sql('DELETE FROM u WHERE id = 100');
my ($dump) = adds('INSERT INTO t VALUES (101, 1)', 'commit t:1', 'INSERT');
is($dump->{records}[0]{rows}[0]{tid}, sql('SELECT ctid FROM t WHERE id = 101'), 'by the TID of the row');
my $number = $dump->{records}[0]{number};
($dump) = adds('UPDATE t SET v = 2 WHERE id = 101', 'commit t:1', 'UPDATE');
my $root = $dump->{records}[0]{rows}[0]{tid};
cmp_ok($dump->{records}[0]{number}, '>', $number, 'with a higher number');
($dump) = adds("UPDATE t SET v = 3, s = repeat('x', 100) WHERE id = 101", 'commit t:1', 'UPDATE of a longer row');
is($dump->{records}[0]{rows}[0]{tid}, $root, 'by the TID of the same root');
adds('UPDATE t SET id = 102 WHERE id = 101', 'commit t:1 t-:1', 'UPDATE of an indexed column: another root');
adds('UPDATE t SET v = v + 1 WHERE id <= 50', 'commit t:50', 'UPDATE of many rows');
adds('UPDATE t SET v = 4 WHERE id = 102; UPDATE u SET v = 4 WHERE id <= 2', 'commit t:1; commit u:2', 'two transactions');
adds('BEGIN; UPDATE t SET v = 5 WHERE id = 102; UPDATE u SET v = 5 WHERE id <= 2; UPDATE t SET v = 6 WHERE id = 102; COMMIT',
	'commit t:1 u:2', 'one with two tables');
($dump) = adds('DELETE FROM t WHERE id = 102', 'commit t-:1', 'DELETE');
adds('BEGIN; INSERT INTO t VALUES (103); DELETE FROM t WHERE id = 103; COMMIT', '', 'INSERT and DELETE in one');
adds('BEGIN; INSERT INTO t VALUES (103); UPDATE t SET v = 1 WHERE id = 103; UPDATE t SET v = 2 WHERE id = 103; COMMIT',
	'commit t:1', 'INSERT and UPDATE in one: one image');
adds('BEGIN; INSERT INTO t VALUES (104); UPDATE t SET id = 105 WHERE id = 104; COMMIT', 'commit t:1',
	'INSERT and UPDATE of the key in one');
adds('BEGIN; UPDATE t SET v = 7 WHERE id = 105; DELETE FROM t WHERE id = 105; COMMIT', 'commit t-:1', 'UPDATE and DELETE in one');
adds('BEGIN; UPDATE t SET v = 8 WHERE id = 1; INSERT INTO t VALUES (106); DELETE FROM t WHERE id = 2; ROLLBACK', '', 'ROLLBACK');
adds('INSERT INTO t VALUES (106, 0); INSERT INTO t VALUES (1)', 'commit t:1', 'a statement that fails');
adds('SELECT * FROM t WHERE id = 1 FOR UPDATE', '', 'SELECT FOR UPDATE alone');
adds('BEGIN; SELECT * FROM t WHERE id = 1 FOR UPDATE; UPDATE t SET v = 9 WHERE id = 3; COMMIT', 'commit t:1', 'and with an UPDATE of another row');
adds('SELECT count(*) FROM t', '', 'SELECT');
adds('UPDATE t SET v = 1 WHERE id = -1', '', 'UPDATE of no row');

# subtransactions
adds('BEGIN; SAVEPOINT a; UPDATE t SET v = 10 WHERE id = 1; INSERT INTO t VALUES (107, 0); ROLLBACK TO a; UPDATE t SET v = 11 WHERE id = 4; COMMIT',
	'commit t:1', 'a savepoint that was rolled back');
adds('BEGIN; SAVEPOINT a; UPDATE t SET v = 12 WHERE id = 1; ROLLBACK TO a; COMMIT', '', 'which did everything');
adds('BEGIN; SAVEPOINT a; UPDATE t SET v = 13 WHERE id = 1; SAVEPOINT b; INSERT INTO t VALUES (107, 0); RELEASE b; RELEASE a; UPDATE t SET v = 14 WHERE id = 1; COMMIT',
	'commit t:2', 'savepoints that were released');
adds('BEGIN; UPDATE t SET v = 15 WHERE id = 5; SAVEPOINT a; UPDATE t SET v = 16 WHERE id = 5; DELETE FROM t WHERE id = 6; ROLLBACK TO a; COMMIT',
	'commit t:1', 'a version of before the savepoint is the newest again');
adds('BEGIN; DELETE FROM t WHERE id = 107; SAVEPOINT a; INSERT INTO t VALUES (107, 0); ROLLBACK TO a; COMMIT', 'commit t-:1', 'a deletion before a savepoint');
adds("DO 'BEGIN FOR i IN 1..5 LOOP BEGIN UPDATE t SET v = v + 1 WHERE id = 7; IF i % 2 = 0 THEN RAISE division_by_zero; END IF; EXCEPTION WHEN division_by_zero THEN NULL; END; END LOOP; END'",
	'commit t:1', 'a function with exceptions');

# other statements
adds('INSERT INTO t VALUES (1, 17), (108, 17) ON CONFLICT (id) DO UPDATE SET v = excluded.v', 'commit t:2', 'ON CONFLICT DO UPDATE');
adds('INSERT INTO t VALUES (1, 18) ON CONFLICT DO NOTHING', '', 'ON CONFLICT DO NOTHING');
adds("MERGE INTO t USING (VALUES (1), (2), (109)) AS s (id) ON t.id = s.id WHEN MATCHED AND t.id = 1 THEN DELETE "
	  . "WHEN MATCHED THEN UPDATE SET v = 19 WHEN NOT MATCHED THEN INSERT VALUES (s.id, 19)", 'commit t:2 t-:1', 'MERGE');
adds("COPY t FROM PROGRAM 'seq 200 219 | sed s/\$/,1,x/' (FORMAT csv)", 'commit t:20', 'COPY');

# ---------------------------------------------------------------- what needs no log, and what goes

adds('INSERT INTO ul VALUES (1)', '', 'an UNLOGGED table');
adds('CREATE TEMP TABLE tmp (id int) USING nvm_dram; INSERT INTO tmp VALUES (1); UPDATE tmp SET id = 2', '', 'a temporary one');
adds('BEGIN; INSERT INTO ul VALUES (2); UPDATE t SET v = 20 WHERE id = 8; COMMIT', 'commit t:1', 'UNLOGGED beside a logged one');
adds('INSERT INTO h VALUES (1); INSERT INTO p VALUES (1)', '', 'heap, and the pool');
adds('BEGIN; CREATE TABLE made (id int PRIMARY KEY, v int) USING nvm_dram; INSERT INTO made SELECT i, 0 FROM generate_series(1, 30) i; DELETE FROM made WHERE id > 20; COMMIT',
	'ask made:20; outcome committed', 'CREATE TABLE and rows in one');
adds('CREATE TABLE empty (id int) USING nvm_dram', '', 'CREATE TABLE');
adds('BEGIN; CREATE TABLE never (id int) USING nvm_dram; INSERT INTO never VALUES (1); DROP TABLE never; COMMIT', '', 'a table that was made and dropped');
adds('DELETE FROM made WHERE id > 10', 'commit made-:10', 'rows of that table');
adds('VACUUM FULL made', 'ask made:10; outcome committed', 'VACUUM FULL: all rows, of another storage');
adds('BEGIN; UPDATE made SET v = 1; ALTER TABLE made ADD w int DEFAULT random(); COMMIT', 'ask made:10; outcome committed', 'a rewrite behind an UPDATE');
adds('BEGIN; INSERT INTO made VALUES (50); UPDATE made SET v = 2 WHERE id = 1; TRUNCATE made; COMMIT', '', 'TRUNCATE: nothing of the storage that went');
adds('BEGIN; TRUNCATE made; INSERT INTO made VALUES (51); COMMIT', 'ask made:1; outcome committed', 'rows behind TRUNCATE');
adds('BEGIN; UPDATE made SET v = 3; UPDATE u SET v = 3 WHERE id = 3; DROP TABLE made; COMMIT', 'ask u:1; outcome committed', 'DROP TABLE: nothing of it');
adds('CREATE TABLE made AS SELECT 1 AS id; DROP TABLE made; CREATE TABLE made (id int) USING heap; INSERT INTO made VALUES (1), (2)', '', 'a table of heap');
adds('ALTER TABLE made SET ACCESS METHOD nvm_dram', 'ask made:2; outcome committed', 'which comes into the region');
adds('ALTER TABLE made SET ACCESS METHOD heap', '', 'and leaves it');

# ---------------------------------------------------------------- decided by pg_xact

adds('BEGIN; UPDATE t SET v = 30 WHERE id = 9; INSERT INTO h VALUES (2); COMMIT', 'ask t:1; outcome committed', 'region and heap');
adds('BEGIN; UPDATE t SET v = 31 WHERE id = 9; INSERT INTO p VALUES (2); COMMIT', 'ask t:1; outcome committed', 'region and pool');
adds('BEGIN; UPDATE t SET v = 32 WHERE id = 9; INSERT INTO h VALUES (3); ROLLBACK', '', 'both, rolled back');
adds('BEGIN; INSERT INTO h VALUES (3); SAVEPOINT a; UPDATE t SET v = 33 WHERE id = 9; ROLLBACK TO a; COMMIT', '', 'heap, and a savepoint in the region');
my $err;
(undef, $err) = adds(q{BEGIN; UPDATE t SET v = 34 WHERE id = 9; INSERT INTO h VALUES (4); SET LOCAL nvm_late.sql = 'SELECT 1 / 0'; COMMIT},
	'ask t:1; outcome aborted', 'both, which fail behind PRE_COMMIT');
like($err, qr/division by zero/, 'as they should');
adds(q{BEGIN; UPDATE t SET v = 35 WHERE id = 9; SET LOCAL nvm_late.sql = 'SELECT 1 / 0'; COMMIT}, '', 'the region alone, which fails there');
is(sql('SELECT v FROM t WHERE id = 9'), '31', 'rows of what failed are gone');
adds('BEGIN ISOLATION LEVEL SERIALIZABLE; UPDATE t SET v = 36 WHERE id = 9; COMMIT', 'commit t:1', 'SERIALIZABLE');

# ---------------------------------------------------------------- large transactions

sub side_files { return scalar(() = glob "$dir/*.side"); }

($dump) = adds("INSERT INTO t SELECT i, 0, repeat('l', 100) FROM generate_series(1001, 2000) i", 'commit t:1000', 'more than 64 kB');
ok($dump->{records}[0]{side}, 'lie in a side file');
is(side_files(), 1, 'which is there');
adds("BEGIN; UPDATE t SET v = 1 WHERE id > 1000; SET LOCAL nvm_late.sql = 'SELECT 1 / 0'; COMMIT", '', 'one that fails behind PRE_COMMIT');
is(side_files(), 1, 'leaves no side file');
($dump) = adds("BEGIN; UPDATE t SET v = 1 WHERE id > 1000; INSERT INTO h VALUES (5); COMMIT", 'ask t:1000; outcome committed', 'large, and decided by pg_xact');
is(side_files(), 2, 'has its side file');
($dump) = adds("BEGIN; UPDATE t SET v = 2 WHERE id > 1000; INSERT INTO h VALUES (6); SET LOCAL nvm_late.sql = 'SELECT 1 / 0'; COMMIT",
	'ask t:1000; outcome aborted', 'which aborts');
# its record names the file
is($dump->{problem}, '', 'and leaves a log that is whole');
adds("BEGIN; DELETE FROM t WHERE id > 1000; ROLLBACK", '', 'large, rolled back');
adds("DELETE FROM t WHERE id > 1000", 'commit t-:1000', 'many rows that go');

# ---------------------------------------------------------------- prepared ones

adds("BEGIN; UPDATE t SET v = 40 WHERE id = 10; PREPARE TRANSACTION 'x'; ROLLBACK PREPARED 'x'", 'ask t:1; outcome aborted', 'PREPARE TRANSACTION, rolled back');
adds("BEGIN; UPDATE t SET v = v WHERE id = 10; PREPARE TRANSACTION 'x'; COMMIT PREPARED 'x'", 'ask t:1; outcome committed', 'PREPARE TRANSACTION, committed');
adds("BEGIN; INSERT INTO ul VALUES (3); PREPARE TRANSACTION 'y'; COMMIT PREPARED 'y'", '', 'of an UNLOGGED table it is in order');
adds("BEGIN; SELECT * FROM t WHERE id = 10 FOR UPDATE; PREPARE TRANSACTION 'z'; ROLLBACK PREPARED 'z'", '', 'of row locks, too');

# ---------------------------------------------------------------- who does not wait, and a clean stop

my $before = dump_of()->{end};
sql('SET synchronous_commit = off; UPDATE t SET v = 50 WHERE id = 11');
my $began = time();
usleep(10_000) while dump_of()->{end} == $before && time() < $began + 60;
cmp_ok(time() - $began, '<', 1 + (NvmTest::is_long() ? 5 : 1), 'synchronous_commit = off is in the file soon');
is(in_short(dump_of(from => $before)), 'commit t:1', 'as a commit');
$node->check_clean('before the stop');

$before = dump_of()->{end};
sql("ALTER SYSTEM SET wal_writer_delay = '10s'; SELECT pg_reload_conf()");
sql('SET synchronous_commit = off; UPDATE t SET v = v + 1 WHERE id <= 20');
my %there = map { $_ => sql("SELECT id, v FROM $_ ORDER BY id") } qw(t u);
my %storage = map { $_ => storage_of($_) } qw(t u);
$node->stop;
$dump = dump_of();
is(in_short(dump_of(from => $before)), 'commit t:19', 'a clean stop leaves everything in the log');
is($dump->{problem}, '', 'which is whole');
my $live = NvmLog::live_rows($dump);
foreach my $table (qw(t u))
{
	my @rows = map { NvmLog::ints_of($_, 2) } values %{ $live->{ $storage{$table} } };
	is(join("\n", sort { ($a =~ /(\d+)/)[0] <=> ($b =~ /(\d+)/)[0] } @rows), $there{$table}, "$table: the log has each row, and no others");
}
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Large values of tables in memory: what the log brings back is what was there, in the form in
# which it was stored.  And the rebuilt values are the table's: they are read, copied, freed.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $module = dirname(abs_path($0)) . '/../../tools/nvm_dram';

# plain(n): n bytes of which no two parts are the same.  thin(n) can be compressed.  The
# columns have another order than their values in size.
my $node = NvmTest->start_new('large', conf => <<CONF, sql => <<SQL);
shared_preload_libraries = 'pg_nvm,$module'
nvm_dram.log = on
nvm_dram.size = 1GB
autovacuum = off
CONF
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$module' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
$NvmTest::pass_time
CREATE FUNCTION plain(n int, seed int DEFAULT 0) RETURNS text LANGUAGE sql AS
\$\$SELECT substr(string_agg((i * 7919 + seed)::text, ' '), 1, n) FROM generate_series(1::bigint, n / CASE WHEN n < 1000000 THEN 5 ELSE 8 END + 1) i\$\$;
CREATE FUNCTION thin(n int) RETURNS text LANGUAGE sql AS
\$\$SELECT substr(string_agg(i || repeat('.', 30), ' '), 1, n) FROM generate_series(1, n / 30 + 1) i\$\$;
CREATE TABLE t (id int PRIMARY KEY, v int, a text, b bytea, c text, k int[], j jsonb, s text) USING nvm_dram;
ALTER TABLE t ALTER c SET STORAGE EXTERNAL, ALTER b SET STORAGE EXTERNAL;
CREATE UNLOGGED TABLE ul (id int, c text) USING nvm_dram;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

# everything that a table has, with the size of each value as it is stored
sub contents
{
	my ($table) = @_;
	my $columns = sql("SELECT string_agg(format('md5(%1\$I::text), pg_column_size(%1\$I)', attname), ', ' ORDER BY attnum)
		FROM pg_attribute WHERE attrelid = '$table'::regclass AND attnum > 0 AND NOT attisdropped");
	return sql("SET enable_indexscan = off; SELECT id, $columns FROM $table ORDER BY id");
}

sub size_of { return sql("SELECT large_values, bytes FROM nvm.relations WHERE relation = '$_[0]'::regclass"); }

sub write_file
{
	my ($path, $content) = @_;
	open(my $fh, '>:raw', $path) or die "$path: $!";
	print $fh $content or die "$path: $!";
	close($fh) or die "$path: $!";
	return;
}

# all tables are the same behind a stop, or a crash, and a start
sub same_after
{
	my ($way, $name) = @_;
	my @tables = split /\n/, sql("SELECT relname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE amname = 'nvm_dram' AND relkind = 'r' AND relpersistence = 'p' ORDER BY 1");
	my %before = map { $_ => contents($_) } @tables;

	$way eq 'stop' ? $node->stop : $node->crash;
	$node->start;
	foreach my $table (@tables)
	{
		my $now = contents($table);
		ok($now eq $before{$table}, "$name: table $table") or diag("$now\n--- before:\n$before{$table}");
	}
	$node->check_clean($name);
	return;
}

# ---------------------------------------------------------------- values of all sizes

foreach my $n (3000, 8100, 16375 .. 16385, 32764, 65000, 100_000, 1_000_000, 20_000_000)
{
	sql("INSERT INTO t (id, c) VALUES ($n, plain($n))");
}
# several runs
sql("INSERT INTO t (id, c) VALUES (40000000, plain(40000000))");
sql("INSERT INTO t (id, a) VALUES (1, thin(3000)), (2, thin(100000)), (3, thin(2000000))");
sql("INSERT INTO t VALUES
	(4, 0, plain(20000), plain(9000, 1)::bytea, plain(50000, 2), NULL, NULL, 'end'),
	(5, NULL, NULL, NULL, plain(12000, 3), array(SELECT generate_series(1, 20000)), NULL, NULL),
	(6, 1, thin(300000), NULL, NULL, NULL, (SELECT jsonb_object_agg('k' || i, md5(i::text)) FROM generate_series(1, 5000) i), plain(7000, 4)),
	(7, 1, plain(4000, 5), plain(4000, 6)::bytea, plain(4000, 7), array(SELECT random() * 1e9 FROM generate_series(1, 1000)), '{}', plain(4000, 8)),
	(8, NULL, NULL, NULL, NULL, NULL, NULL, NULL), (9, 2, '', '', '', '{}', '[]', '')");
cmp_ok((split /\|/, size_of('t'))[0], '>', 25, 'there are large values');

# rows that get longer than the room at their place, with others about them
sql("INSERT INTO t (id, v) SELECT i, i FROM generate_series(101, 200) i;
	UPDATE t SET c = plain(9000, id), s = repeat('s', 300) WHERE id BETWEEN 101 AND 200 AND id % 3 = 0");

# one transaction each
sql("INSERT INTO ul VALUES (1, plain(30000))");
sql("BEGIN; INSERT INTO t (id, c) VALUES (301, plain(200000)); SAVEPOINT a; INSERT INTO t (id, c) VALUES (302, plain(200000));
	UPDATE t SET c = plain(9000) WHERE id = 301; ROLLBACK TO a; SAVEPOINT b; INSERT INTO t (id, c) VALUES (303, plain(30000)); RELEASE b; COMMIT");
sql("BEGIN; INSERT INTO t (id, c) VALUES (304, plain(2000000)); UPDATE t SET c = 'x' WHERE id = 4; ROLLBACK");
sql("BEGIN; CREATE TABLE made (id int PRIMARY KEY, c text, d text) USING nvm_dram; ALTER TABLE made ALTER c SET STORAGE EXTERNAL;
	INSERT INTO made SELECT i, plain(i * 1000), 'd' || i FROM generate_series(1, 60) i; DELETE FROM made WHERE id % 7 = 0; UPDATE made SET d = 'e' WHERE id % 5 = 0; COMMIT");
$node->fails_with("INSERT INTO t (id, c) VALUES (305, plain(500000)), (1, plain(500000))", qr/duplicate key/, 'a statement that fails');

same_after('stop', 'values of all sizes');
is(sql('SELECT count(*), min(c) = plain(30000) FROM ul'), '1|t', 'UNLOGGED: kept by the stop');
is((split /\|/, size_of('made'))[0], sql('SELECT count(*) FROM made WHERE id > 8'), 'each value is there once');

# ---------------------------------------------------------------- changes of rebuilt rows

sql("UPDATE t SET v = -1 WHERE id IN (4, 5, 20000000, 40000000)");
sql("UPDATE t SET c = plain(70000, 9) WHERE id IN (6, 8, 16384)");
sql("UPDATE t SET a = NULL WHERE id = 4; UPDATE t SET c = 'short' WHERE id = 5; UPDATE t SET c = c || 'x' WHERE id = 65000");
sql("DELETE FROM t WHERE id IN (7, 100000)");
sql("BEGIN; DELETE FROM t WHERE id IN (1, 2); UPDATE t SET v = 9 WHERE id = 1000000; ROLLBACK");
sql("BEGIN; UPDATE t SET c = plain(30000, 10) WHERE id = 9; SAVEPOINT a; UPDATE t SET c = plain(40000, 11) WHERE id = 9; DELETE FROM t WHERE id = 3; ROLLBACK TO a; COMMIT");
sql("UPDATE t SET id = 1001 WHERE id = 102");
sql("UPDATE made SET d = 'f' WHERE id = 1; DELETE FROM made WHERE id = 60");
same_after('crash', 'changes of rebuilt rows');
same_after('crash', 'nothing since');

sql('VACUUM FULL t');
sql("CREATE TABLE other USING nvm_dram AS SELECT id, c FROM t WHERE id BETWEEN 16375 AND 16380");
sql("ALTER TABLE made ALTER d TYPE varchar(100), ADD w int DEFAULT random()");
same_after('stop', 'copies of whole tables');
sql('CREATE INDEX ON t (v); TRUNCATE other; DROP TABLE made');
sql("UPDATE t SET v = id % 1000");
same_after('crash', 'without what was truncated and dropped');

# ---------------------------------------------------------------- space

sub vacuumed
{
	my ($expected, $name) = @_;
	my $found;

	foreach (1 .. 60)
	{
		sql('CALL pass_time()');
		sql('VACUUM t');
		($found) = split /\|/, size_of('t');
		last if $found == $expected;
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($found, $expected, $name);
	return (split /\|/, size_of('t'))[1];
}

my ($all) = split /\|/, size_of('t');
my $full = vacuumed($all, 'VACUUM keeps values of rows');
sql('DELETE FROM t WHERE id > 5000000');
my $less = vacuumed($all - 3, 'values of rows that were deleted are freed');
cmp_ok($full - $less, '>', 59_000_000, 'with their space');
sql('UPDATE t SET c = plain(20000, id) WHERE c IS NOT NULL AND id BETWEEN 101 AND 200');
vacuumed($all - 3, 'of those that were updated, too');
sql("INSERT INTO t (id, c) VALUES (20000000, plain(20000000)), (40000000, plain(40000000))");
cmp_ok((split /\|/, size_of('t'))[1], '<=', $full + 10_000_000, 'which others get');
same_after('stop', 'space that was freed');
sql('DELETE FROM t');
vacuumed(0, 'all values are freed');
$node->check_clean('an empty table');
same_after('crash', 'an empty table');
is((split /\|/, size_of('t'))[0], '0', 'no value comes back');

# ---------------------------------------------------------------- a value that is none

# a length that the value has in itself, with right checksums, in the last block but one
sql('INSERT INTO t (id, c) VALUES (1, plain(9000))');
sql('INSERT INTO t (id) VALUES (2)');
my $expected = contents('t');
$node->stop;
my ($file) = reverse sort glob($node->data_dir . '/pg_nvm_log/*.log');
my $bytes = slurp_file($file);
my $log = bless { bytes => $bytes, uuid => substr($bytes, 16, 16) }, 'NvmLog';
my ($blocks) = run_command([ 'nvm_logdump', $file ]);
my ($block, $last) = ($blocks =~ /^block at (\d+)/mg)[ -2, -1 ];
my $place = $block + 40 + 16 + 16 + 12;
is(unpack('L<', substr($bytes, $place, 4)), 9004 << 2, 'a piece begins with its value');
$log->put($place, pack('L<', 9008 << 2));
$log->seal($block);
$log->put($last + 28, substr($log->{bytes}, $block + 36, 4));
$log->seal($last);
write_file($file, $log->{bytes});
$node->start;
$node->fails_with('SELECT count(*) FROM t', qr/\Q@{[ basename($file) ]}\E" of the log: a large value is not as long as it says/, 'a value that is shorter than it says');
$node->stop;
write_file($file, $bytes);
$node->start;
is(contents('t'), $expected, 'the file was put back');

# ---------------------------------------------------------------- files

my ($out, $err) = run_command([ 'nvm_logdump', $node->data_dir . '/pg_nvm_log' ]);
is($err, '', 'nvm_logdump finds nothing damaged');
ok($out =~ / pieces of large values$/m, 'and pieces');
is(join(' ', $out =~ /^file (.*that no record names)$/mg), '', 'an abort leaves no side file');
$node->stop;

done_testing;

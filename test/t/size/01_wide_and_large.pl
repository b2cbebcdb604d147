# Copyright (c) 2026, pg_nvm contributors

# Rows from no column to 1,600 columns, values from 0 bytes to hundreds of MB,
# compressible or not, several in a row, in arrays: inserted, read, updated,
# dumped and restored, deleted, with their space given back; the limits of 1 GB
# are PostgreSQL's own; what reading and writing needs of a backend's memory.  A
# heap table beside each nvm table says what is right.
#
# Long form: values of 300 MB, here of 40; texts beyond 1 GB put together.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# the largest value, in MB
my $mb = NvmTest::is_long() ? 300 : 40;
my $pool_mb = 4096;

my $node = NvmTest->new('large');
$node->init(NvmTest::is_long() ? NvmTest::large_pool($node, 3000) : ());
$node->set_conf('nvm.pool_max_size' => "'${pool_mb}MB'");
$node->append_conf('postgresql.conf', <<CONF);
autovacuum = off
fsync = off
max_wal_size = 4GB
CONF
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');

sub query { return $node->safe_psql('postgres', $_[0]); }

# the same query of a table and its twin
sub same
{
	my ($table, $sql, $name) = @_;
	my $nvm = query($sql =~ s/TABLE/$table/gr);
	my $heap = query($sql =~ s/TABLE/h_$table/gr);

	ok($nvm eq $heap, $name) or diag('nvm: ' . substr($nvm, 0, 200) . "\nheap: " . substr($heap, 0, 200));
	return;
}

# ---- columns ----

foreach my $n (0, 1, 8, 9, 250, 1600)
{
	my @types = ('int', 'text', 'bool', 'numeric', 'timestamptz', '"char"', 'bigint[]');
	my @values = ('i', "'text ' || i", 'i % 2 = 0', 'i * 1.5', "'2026-01-01'::timestamptz + i * interval '1 day'",
		"chr(65 + i % 26)::\"char\"", 'ARRAY[i, NULL, i]::bigint[]');
	# 1600 columns of these types would be more than a heap row can have
	my $wide = $n == 1600 ? 3 : @types;
	my @pick = map { ($_ * 31) % $wide } 0 .. $n - 1;
	@pick = map { $_ % 11 == 0 ? 1 : 2 * ($_ % 2) } 0 .. $n - 1 if $n == 1600;
	my $cols = join ', ', map { "c$_ $types[$pick[$_]]" } 0 .. $n - 1;
	my $row = join ', ', map { "CASE WHEN i % 5 = 0 AND $_ % 3 = 0 THEN NULL ELSE $values[$pick[$_]] END" } 0 .. $n - 1;

	foreach my $t ([ "w$n", 'nvm' ], [ "h_w$n", 'heap' ])
	{
		query("CREATE TABLE $t->[0] ($cols) USING $t->[1]");
		query("INSERT INTO $t->[0] SELECT $row FROM generate_series(1, 20) i");
	}
	same("w$n", 'SELECT t.* FROM TABLE t ORDER BY t::text', "$n columns");
	same("w$n", 'SELECT count(*) FROM TABLE', "$n columns: rows");
	next if $n == 0;
	foreach my $t ("w$n", "h_w$n")
	{
		my $last = $n - 1;
		query("UPDATE $t SET c0 = NULL, c$last = DEFAULT WHERE c0 % 2 = 0") if $types[ $pick[0] ] eq 'int' && $n > 1;
		query("UPDATE $t SET c0 = c0");
		query("ALTER TABLE $t DROP COLUMN c$_") foreach map { $_ * 7 } 0 .. ($n > 14 ? 10 : 0);
		query("ALTER TABLE $t ADD COLUMN later text DEFAULT 'later', ADD COLUMN random int") if $n < 1600;
		query("DELETE FROM $t WHERE ctid IN (SELECT ctid FROM $t t ORDER BY t::text LIMIT 3)");
	}
	same("w$n", 'SELECT t.* FROM TABLE t ORDER BY t::text', "$n columns, some dropped and added");
	foreach my $t ("w$n", "h_w$n")
	{
		query("VACUUM FULL $t");
	}
	same("w$n", 'SELECT t.* FROM TABLE t ORDER BY t::text', "$n columns, rewritten");
}
$node->fails_with('ALTER TABLE w1600 ADD COLUMN more int', qr/tables can have at most 1600 columns/, 'no more than 1,600');
# heap's row limit is not ours: as many texts as columns
query('CREATE TABLE texts (' . join(', ', map { "c$_ text" } 1 .. 1600) . ') USING nvm');
$node->fails_with('INSERT INTO texts SELECT ' . join(', ', map { "repeat('x', 200)" } 1 .. 1600),
	qr/row is too big: size \d+, maximum size \d+/, 'a row of which too much has to stay inside');
query('INSERT INTO texts (c1, c800, c1600) SELECT repeat(md5(i::text), 1000), md5(i::text), repeat(md5(i::text), 2000) FROM generate_series(1, 5) i');
is(query('SELECT count(*), count(c2), sum(length(c1)), sum(length(c800)), sum(length(c1600)) FROM texts'),
	'5|0|160000|160|320000', 'few large ones among many empty columns');
$node->check_clean('columns');

# ---- rows of nothing ----

foreach my $t ([ 'none', 'nvm' ], [ 'h_none', 'heap' ])
{
	query(<<SQL);
CREATE TABLE $t->[0] () USING $t->[1];
INSERT INTO $t->[0] DEFAULT VALUES;
INSERT INTO $t->[0] SELECT FROM generate_series(1, 3000);
BEGIN; DELETE FROM $t->[0]; INSERT INTO $t->[0] SELECT FROM generate_series(1, 500); ROLLBACK;
BEGIN; SAVEPOINT a; INSERT INTO $t->[0] SELECT FROM generate_series(1, 500); ROLLBACK TO a;
	INSERT INTO $t->[0] SELECT FROM generate_series(1, 70); COMMIT;
DELETE FROM $t->[0] WHERE ctid IN (SELECT ctid FROM $t->[0] LIMIT 1000);
VACUUM $t->[0];
INSERT INTO $t->[0] SELECT FROM $t->[0];
SQL
}
same('none', 'SELECT count(*), count(DISTINCT ctid), count(t) FROM TABLE t', 'rows without a column');
same('none', 'SELECT count(*) FROM (SELECT FROM TABLE FOR UPDATE) s', 'they can be locked');
same('none', 'COPY TABLE TO STDOUT', 'and copied');
foreach my $t ('none', 'h_none')
{
	query(<<SQL);
ALTER TABLE $t ADD COLUMN a int;
INSERT INTO $t SELECT i FROM generate_series(1, 10) i;
UPDATE $t SET a = 5 WHERE ctid IN (SELECT ctid FROM $t WHERE a IS NULL LIMIT 100);
UPDATE $t SET a = NULL WHERE a > 7;
SQL
}
same('none', 'SELECT a, count(*) FROM TABLE GROUP BY a ORDER BY a', 'they get a column');
foreach my $t ('none', 'h_none')
{
	query("ALTER TABLE $t DROP COLUMN a");
	query("DELETE FROM $t WHERE ctid IN (SELECT ctid FROM $t LIMIT 200)");
}
same('none', 'SELECT count(*) FROM TABLE', 'and lose it');
query("VACUUM FULL $_; INSERT INTO $_ DEFAULT VALUES") foreach 'none', 'h_none';
same('none', 'SELECT count(*) FROM TABLE', 'and are rewritten');

foreach my $t ([ 'nulls', 'nvm' ], [ 'h_nulls', 'heap' ])
{
	query(<<SQL);
CREATE TABLE $t->[0] (a int, b text, c numeric, d int[], e bytea) USING $t->[1];
CREATE INDEX ON $t->[0] (a);
CREATE INDEX ON $t->[0] (b, c);
INSERT INTO $t->[0] SELECT FROM generate_series(1, 2000);
INSERT INTO $t->[0] SELECT NULL, '', NULL, '{}', '' FROM generate_series(1, 2000);
UPDATE $t->[0] SET b = CASE WHEN b IS NULL THEN '' END;
UPDATE $t->[0] SET d = NULL, e = NULL;
UPDATE $t->[0] SET b = NULL WHERE ctid IN (SELECT ctid FROM $t->[0] WHERE b = '' LIMIT 500);
DELETE FROM $t->[0] WHERE ctid IN (SELECT ctid FROM $t->[0] WHERE b IS NULL LIMIT 700);
VACUUM $t->[0];
INSERT INTO $t->[0] SELECT FROM generate_series(1, 100);
SQL
}
foreach my $scan ('seqscan', 'indexscan', 'bitmapscan')
{
	my $set = join '', map { "SET enable_$_ = " . ($_ eq $scan ? 'on' : 'off') . '; ' } 'seqscan', 'indexscan', 'bitmapscan';
	same('nulls', "$set SELECT count(*) FROM TABLE WHERE a IS NULL", "all-null rows by $scan");
	same('nulls', "$set SELECT count(*), count(e) FROM TABLE WHERE b = '' AND c IS NULL", "rows of nothing but an empty text by $scan");
}
same('nulls', 'SELECT t.*, count(*) FROM TABLE t GROUP BY a, b, c, d, e ORDER BY b', 'rows of nulls and of empty values');
query("VACUUM FULL $_") foreach 'nulls', 'h_nulls';
same('nulls', 'SELECT t.*, count(*) FROM TABLE t GROUP BY a, b, c, d, e ORDER BY b', 'rewritten');
$node->check_clean('rows of nothing');

# ---- values ----

foreach my $t ([ 'v', 'nvm' ], [ 'h_v', 'heap' ])
{
	query(<<SQL);
CREATE TABLE $t->[0] (id int PRIMARY KEY, what text, t text, b bytea, a text[], e text, m text) USING $t->[1];
ALTER TABLE $t->[0] ALTER e SET STORAGE EXTERNAL, ALTER m SET STORAGE MAIN;
-- around each limit: a short header, inline, the target of compression, a block, a run
INSERT INTO $t->[0] SELECT n, 'plain', repeat('x', n), repeat('y', n)::bytea, ARRAY[repeat('z', n), ''], '', NULL
	FROM unnest(ARRAY[0, 1, 2, 125, 126, 127, 128, 1990, 2032, 2040, 7000, 7900, 8000, 8100, 8150, 8192, 16384]) n;
INSERT INTO $t->[0] SELECT 100000 + n, 'random', (SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, n) i), NULL,
	NULL, (SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, n) i), NULL
	FROM unnest(ARRAY[1, 3, 4, 60, 63, 64, 200, 240, 247, 250, 252, 253, 254, 255, 256, 257, 1000]) n;
SQL
}
my $digest = q{SELECT id, what, md5(t), length(t), md5(b), length(b), md5(a::text), md5(e), md5(m) FROM TABLE ORDER BY id};
same('v', $digest, 'values up to 32 kB');

# the largest: two runs and more, bytes that do not compress, and those that do
my $bytes = $mb * 1024 * 1024;
my $chunks = $bytes / 32;
my @large = (
	[ 1_000_001, "t = (SELECT string_agg(md5(i::text), '') FROM generate_series(1, $chunks) i)", "$mb MB of text that hardly compress" ],
	[ 1_000_002, "t = repeat('0123456789', $bytes / 10)", "$mb MB of text that compress well" ],
	[ 1_000_003, "b = decode((SELECT string_agg(md5(i::text), '') FROM generate_series(1, $chunks / 4) i), 'hex')", 'an eighth of it as bytea' ],
	[ 1_000_004, "a = (SELECT array_agg(repeat(md5(i::text), 10000)) FROM generate_series(1, $mb) i)", 'an array of many values' ],
	[ 1_000_005, "e = repeat('e', $bytes), m = repeat('m', $bytes / 2), t = repeat('t', $bytes / 4)", 'several values in a row, one of them never compressed' ]);
# what there is before them, and must be again after them
query('SELECT pg_current_xact_id(); VACUUM v');
my $used = query('SELECT used FROM nvm.pool');
my $most = $used;

# The table as pg_dump gives it, in another database.
sub dump_and_restore
{
	my ($name, $q) = @_;
	my $file = $node->basedir . '/dump.sql';

	command_ok([ 'pg_dump', '-t', 'v', '-f', $file, $node->connstr('postgres') ], "$name: dumped");
	cmp_ok(-s $file, '>', $bytes / 8, "$name: what was dumped has " . (-s $file) . ' bytes');
	$node->safe_psql('postgres', 'CREATE DATABASE restored');
	$node->safe_psql('restored', 'CREATE EXTENSION pg_nvm');
	command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $file, $node->connstr('restored') ], "$name: restored");
	unlink $file;
	is($node->safe_psql('restored', "SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname = 'v'"), 'nvm',
		"$name: as an nvm table");
	is($node->safe_psql('restored', $q =~ s/TABLE/v/r), query($q =~ s/TABLE/v/r), "$name: with the same contents");
	is($node->safe_psql('restored', $digest =~ s/TABLE/v/r), query($digest =~ s/TABLE/v/r), "$name: and all other rows");
	$node->safe_psql('postgres', 'DROP DATABASE restored');
	return;
}

foreach my $l (@large)
{
	my ($id, $set, $name) = @$l;
	foreach my $t ('v', 'h_v')
	{
		# as it is inserted, or later
		if ($id % 2)
		{
			my @set = split /, (?=[bem] =|t = rep)/, $set;
			query("INSERT INTO $t (id, what, " . join(', ', map { /^(\w)/ } @set) . ") SELECT $id, 'large', "
				  . join(', ', map { s/^\w = //r } @set));
		}
		else
		{
			query("INSERT INTO $t (id, what) VALUES ($id, 'large')");
			query("UPDATE $t SET $set WHERE id = $id");
		}
	}
	my $q = $digest =~ s/ORDER BY id/WHERE id = $id/r;
	same('v', $q, $name);
	my $now = query('SELECT used FROM nvm.pool');
	$most = $now if $now > $most;
	same('v', "SELECT substr(t, $bytes / 3, 50), substr(e, $bytes - 5), substr(b, 1000, 5), a[$mb]::char(50) FROM TABLE WHERE id = $id",
		"$name: parts of it");

	# an update of another column, one of the value, rolled back and committed
	foreach my $t ('v', 'h_v')
	{
		query("BEGIN; UPDATE $t SET t = 'x', b = NULL, a = NULL, e = NULL, m = NULL WHERE id = $id; ROLLBACK");
		query("UPDATE $t SET what = what || ' updated', t = t || 'more' WHERE id = $id");
	}
	same('v', $q, "$name: updated");
	dump_and_restore($name, $q) if $id == 1_000_001 || $id == 1_000_003;
	foreach my $t ('v', 'h_v')
	{
		query("DELETE FROM $t WHERE id = $id; VACUUM $t; VACUUM $t");
	}
}
$node->check_clean('values');
query('SELECT pg_current_xact_id()');
query('VACUUM v');
cmp_ok($most - $used, '>', $bytes, 'the pool has held them: ' . ($most - $used) . ' bytes more');
my $back = query('SELECT used FROM nvm.pool') - $used;
cmp_ok($back, '<=', 1024 * 1024, "their space is given back but for $back bytes");
cmp_ok(query(q{SELECT large_values FROM nvm.relations WHERE relation = 'v'::regclass}), '<', 100,
	'large values of rows that are gone are given back');

# also where they are so few that VACUUM would let them wait for more
query(<<SQL);
CREATE TABLE few (id int PRIMARY KEY, t text) USING nvm;
ALTER TABLE few ALTER t SET STORAGE EXTERNAL;
INSERT INTO few SELECT i, repeat('x', 500) FROM generate_series(1, 10000) i;
INSERT INTO few VALUES (0, repeat('y', 1000000));
DELETE FROM few WHERE id = 0;
SQL
query("SELECT pg_current_xact_id(); VACUUM few") foreach 1 .. 3;
is(query(q{SELECT large_values FROM nvm.relations WHERE relation = 'few'::regclass}), '0',
	'one large value among thousands of rows');

# ---- limits ----

my $half = 600 * 1024 * 1024;
foreach my $t ('v', 'h_v')
{
	$node->fails_with("INSERT INTO $t (id, t) VALUES (2000001, repeat('x', 1073741824))",
		qr/ERROR:  requested length too large/, "$t: a text of 1 GB");
	# takes 3 GB to find out
	next unless NvmTest::is_long();
	$node->fails_with("INSERT INTO $t (id, t) SELECT 2000001, repeat('x', $half) || repeat('y', $half)",
		qr/ERROR:  invalid memory alloc request size \d+/, "$t: a text of 1.2 GB");
}
is(query('SELECT count(*) FROM v WHERE id > 2000000'), '0', 'nothing of it is there');

# ---- memory ----

# Private memory of the session's backend in MB: peak, and what remains.
sub private_mb
{
	my ($session) = @_;
	my $status = slurp_file("/proc/$session->{pid}/status");
	my ($anon) = $status =~ /^RssAnon:\s+(\d+) kB/m;
	return int($anon / 1024);
}

{
	my $session = $node->session("SET work_mem = '4MB'");
	my $in = 40;      # MB, in two runs, hence put together to be read

	query('CREATE TABLE mem (id int, t text) USING nvm; ALTER TABLE mem ALTER t SET STORAGE EXTERNAL');
	$session->sql("INSERT INTO mem SELECT i, repeat('x', $in * 1024 * 1024) FROM generate_series(1, 6) i");
	my $written = private_mb($session);
	cmp_ok($written, '<', 100, "after writing six values of $in MB the backend has $written MB of its own");
	foreach my $try (1 .. 2)
	{
		$session->sql('SELECT sum(length(t)) FROM mem');
		$session->sql('UPDATE mem SET id = id + 1');
		$session->sql('VACUUM mem');
	}
	my $read = private_mb($session);
	cmp_ok($read, '<', 100, "after reading and updating them $read MB");
	$session->drop;
	# values in one run are read in place
	my $small = $node->session;
	query("TRUNCATE mem; INSERT INTO mem SELECT i, repeat('x', 30 * 1024 * 1024) FROM generate_series(1, 6) i");
	$small->sql('SELECT sum(octet_length(t)) FROM mem');
	# what a session has before: with a sanitizer, more than the values are long
	my $before = NvmTest::private_kb($small->{pid});
	is($small->sql("SELECT sum(octet_length(t)) FROM mem WHERE t > 'a'"), 6 * 30 * 1024 * 1024, 'six values of 30 MB');
	my $more = (NvmTest::private_kb($small->{pid}) - $before) / 1024;
	cmp_ok($more, '<', 25, sprintf('reading values of 30 MB copies none: %.1f MB more', $more));
	$small->drop;
}
$node->check_clean('in the end');
$node->stop;

done_testing();

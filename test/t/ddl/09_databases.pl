# Copyright (c) 2026, pg_nvm contributors

# Databases that hold nvm tables: copied by CREATE DATABASE with both
# strategies, moved by ALTER DATABASE, dropped; tablespaces dropped; failures in
# between; and what gaps and a full pool make of a copy.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# with wal_level = minimal PostgreSQL 15 loses the init forks of a new database's
# UNLOGGED indexes in a crash, whatever the tables' access method
my $node = NvmTest->start_new('main', conf => "allow_in_place_tablespaces = on\nautovacuum = off\nwal_level = replica\nmax_prepared_transactions = 5\nnvm.pool_max_size = 1GB\n", extension => 0);

my $fill = <<SQL;
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int PRIMARY KEY, a text, b text, c text) USING nvm;
ALTER TABLE t ALTER b SET STORAGE EXTERNAL;
CREATE INDEX t_a ON t (a);
SET nvm.default_index_method = btree;
CREATE INDEX t_id_a ON t USING btree (id, a);
RESET nvm.default_index_method;
INSERT INTO t SELECT i, 'row ' || i, CASE i % 100 WHEN 0 THEN repeat(md5(i::text), 1000) END, NULL FROM generate_series(1, 3000) i;
INSERT INTO t VALUES (9000, NULL, repeat('long', 9000000), 'two runs');
UPDATE t SET a = a || '!' WHERE id % 3 = 0;
UPDATE t SET b = b || '+' WHERE id % 200 = 0;
DELETE FROM t WHERE id % 7 = 0;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, b text) USING nvm;
INSERT INTO u SELECT i, repeat('u', i * 100) FROM generate_series(1, 200) i;
CREATE TABLE elsewhere (id int PRIMARY KEY) USING nvm TABLESPACE space_a;
INSERT INTO elsewhere SELECT generate_series(1, 100);
CREATE MATERIALIZED VIEW m USING nvm AS SELECT id FROM t WHERE id < 100;
CREATE TABLE gone (id int) USING nvm;
INSERT INTO gone VALUES (1);
DROP TABLE gone;
CREATE FUNCTION holds() RETURNS TABLE (rel regclass, rows bigint, hash numeric, by_index bigint) LANGUAGE plpgsql AS
\$\$
BEGIN
	FOR rel IN SELECT oid FROM pg_class WHERE relkind IN ('r', 'm') AND relnamespace = 'public'::regnamespace ORDER BY relname
	LOOP
		SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = on;
		EXECUTE format('SELECT count(*), sum(hashtextextended(t::text, 0)) FROM %s t', rel) INTO rows, hash;
		SET LOCAL enable_indexscan = on; SET LOCAL enable_seqscan = off;
		EXECUTE format('SELECT count(*) FROM %s t WHERE id > 0', rel) INTO by_index;
		RETURN NEXT;
	END LOOP;
END \$\$;
SQL
$node->safe_psql('postgres', <<SQL);
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE space_a LOCATION '';
CREATE TABLESPACE space_b LOCATION '';
CREATE EXTENSION pg_nvm;
CREATE DATABASE tpl;
SQL
$node->safe_psql('tpl', $fill);
my $holds = 'SELECT * FROM holds()';
my $expected = $node->safe_psql('tpl', $holds);
# without the maps of the chunks, a 1024th, which stay when the pool has grown
my $used = 'SELECT used - size / 1024 FROM nvm.pool';
my $used_one = $node->safe_psql('postgres', $used);
like($expected, qr/^t\|2573\|.*\|2573$/m, 'the template');

# storages of databases that are there, and no others
my $accounts = "SELECT count(*) FILTER (WHERE database IS NULL), count(*) FILTER (WHERE ended) FROM nvm.relations";

sub same
{
	my ($db, $name) = @_;
	is($node->safe_psql($db, $holds), $expected, "$name: the same rows by table and by index");
	return;
}

# a crash empties it
sub fill_unlogged
{
	my ($db) = @_;
	$node->safe_psql($db, "INSERT INTO u SELECT i, repeat('u', i * 100) FROM generate_series(1, 200) i");
	return;
}

# ---- CREATE DATABASE

foreach my $strategy (qw(wal_log file_copy))
{
	$node->safe_psql('postgres', "CREATE DATABASE copy TEMPLATE tpl STRATEGY $strategy");
	same('copy', $strategy);
	is($node->safe_psql('copy', "SELECT persistence, kind, count(*) FROM nvm.relations WHERE relation IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2"),
		"p|i|3\np|r|3\nu|i|1\nu|r|1", "$strategy: a storage for each table and nvm_btree index");
	# it is its own: neither sees what becomes of the other
	$node->safe_psql('copy', "DELETE FROM t WHERE id < 2000; UPDATE t SET a = 'copied', b = repeat('x', 30000) WHERE id = 2100; "
		  . 'DELETE FROM u; TRUNCATE elsewhere; REFRESH MATERIALIZED VIEW m;');
	$node->safe_psql('copy', 'VACUUM');
	$node->safe_psql('copy', "INSERT INTO t SELECT i, 'new' FROM generate_series(1, 1000) i");
	is($node->safe_psql('copy', "SELECT count(*) FROM t WHERE a = 'new'"), '1000', "$strategy: the copy can be changed");
	same('tpl', "$strategy, the template afterwards");
	$node->check_clean($strategy);
	$node->crash;
	$node->start;
	is($node->safe_psql('copy', "SELECT count(*) FROM t WHERE a = 'new'"), '1000', "$strategy: after a crash");
	is($node->safe_psql('copy', 'SELECT count(*) FROM u') . $node->safe_psql('tpl', 'SELECT count(*) FROM u'),
		'00', "$strategy: UNLOGGED tables are empty after a crash");
	fill_unlogged('tpl');
	same('tpl', "$strategy, the template after a crash");
	$node->safe_psql('postgres', 'DROP DATABASE copy');
	is($node->safe_psql('postgres', $used), $used_one, "$strategy: dropped, all space is free");
}

# with its default tablespace elsewhere; and of a copy, of what is there
$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE tpl TABLESPACE space_b');
same('copy', 'in another tablespace');
$node->safe_psql('postgres', 'CREATE DATABASE copy2 TEMPLATE copy STRATEGY file_copy');
same('copy2', 'a copy of a copy');
$node->fails_with('CREATE DATABASE copy3 TEMPLATE tpl TABLESPACE space_a', qr/cannot assign new default tablespace/,
	'a tablespace that has tables of the template is refused by PostgreSQL');
$node->safe_psql('postgres', 'CREATE DATABASE plain');
is($node->safe_psql('postgres', $accounts), '0|0', 'no storage is left over');

# ---- ALTER DATABASE SET TABLESPACE, there and back, and a crash after it

foreach my $where ('space_a', 'pg_default', 'space_b')
{
	my ($ret, $out, $err) = $node->psql('postgres', "ALTER DATABASE copy2 SET TABLESPACE $where");
	if ($where eq 'space_a')
	{
		like($err, qr/some relations .* are already in tablespace/, 'a tablespace that has tables of its own is refused by PostgreSQL');
		next;
	}
	is($ret, 0, "moved to $where: $err");
	same('copy2', "moved to $where");
	$node->crash;
	$node->start;
	is($node->safe_psql('copy2', 'SELECT count(*) FROM t'), '2573', "moved to $where: after a crash");
	fill_unlogged('copy2');
	$node->safe_psql('copy2', "CREATE TABLE fresh (a int) USING nvm; INSERT INTO fresh VALUES (1); DROP TABLE fresh; "
		  . "SET client_min_messages = warning; ALTER TABLE elsewhere SET TABLESPACE pg_default; ALTER TABLE elsewhere SET TABLESPACE space_a");
	same('copy2', "moved to $where, and used");
}
$node->check_clean('moved databases');
$node->fails_with('DROP TABLESPACE space_a', qr/is not empty/, 'a tablespace with an nvm table is not empty');
$node->safe_psql('postgres', 'DROP DATABASE copy');
$node->safe_psql('postgres', 'DROP DATABASE copy2');
fill_unlogged('tpl');
is($node->safe_psql('postgres', $used), $used_one, 'dropped: all space is free');

# ---- failures

my $busy = $node->background_psql('tpl');
$busy->query("SELECT 1");
$node->fails_with('CREATE DATABASE copy TEMPLATE tpl', qr/is being accessed by other users/, 'a template in use');
$busy->quit;
$node->fails_with('CREATE DATABASE tpl TEMPLATE tpl', qr/already exists/, 'a name in use');
is($node->safe_psql('postgres', $used), $used_one, 'nothing was copied for these');

# prepared transactions: PostgreSQL refuses a template that has one; one that has
# just been finished may not have been settled
foreach my $end ('ROLLBACK', 'COMMIT')
{
	$node->safe_psql('tpl', "BEGIN; CREATE TABLE p_made (id int PRIMARY KEY) USING nvm; INSERT INTO p_made VALUES (1); "
		  . "DELETE FROM t WHERE id % 2 = 0; DROP TABLE elsewhere; PREPARE TRANSACTION 'p'");
	$node->fails_with('CREATE DATABASE copy TEMPLATE tpl', qr/prepared transaction/, "$end: a template with a prepared transaction");
	$node->safe_psql('tpl', "$end PREPARED 'p'");
	my $now = $node->safe_psql('tpl', $holds);
	is($now eq $expected, $end eq 'ROLLBACK', "$end PREPARED");
	$node->safe_psql('tpl', "BEGIN; DROP TABLE p_made; CREATE TABLE elsewhere (id int PRIMARY KEY) USING nvm TABLESPACE space_a; "
		  . "PREPARE TRANSACTION 'p'") if $end eq 'COMMIT';
	$node->safe_psql('tpl', "ROLLBACK PREPARED 'p'") if $end eq 'COMMIT';
	$node->safe_psql('postgres', 'CREATE DATABASE copy TEMPLATE tpl');
	is($node->safe_psql('copy', $holds), $now, "$end PREPARED, and a copy at once");
	$node->check_clean("$end PREPARED");
	$node->crash;
	$node->start;
	fill_unlogged($_) foreach qw(tpl copy);
	is($node->safe_psql('copy', $holds), $now, "$end PREPARED, a copy, and a crash");
	$node->safe_psql('postgres', 'DROP DATABASE copy');
}
$node->safe_psql('tpl', "DROP TABLE p_made; CREATE TABLE elsewhere (id int PRIMARY KEY) USING nvm TABLESPACE space_a; "
	  . 'INSERT INTO elsewhere SELECT generate_series(1, 100)');
$expected = $node->safe_psql('tpl', $holds);
$used_one = $node->safe_psql('postgres', $used);
my ($rows) = $expected =~ /^t\|(\d+)/m;

# an error or a cancel in the middle of the copy
$node->fails_with("SET nvm.failpoint = 'ddl-copied-storage:error:2'; CREATE DATABASE copy TEMPLATE tpl",
	qr/failpoint/, 'an error in the middle of the copy');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_database WHERE datname = 'copy'; $used"), "0\n$used_one",
	'leaves nothing behind');
$node->safe_psql('postgres', "SET statement_timeout = '60s'; CREATE DATABASE copy TEMPLATE tpl; DROP DATABASE copy");
my $slow = $node->session;
$slow->stop_at('copy-block', 'CREATE DATABASE copy TEMPLATE tpl');
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations WHERE database IS NULL'), '>', 0, 'a copy has begun');
$node->safe_psql('postgres', 'SELECT pg_cancel_backend(' . $slow->pid . ')');
$slow->go_on;
$slow->sql('SELECT 1');
$slow->drop;
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_database WHERE datname = 'copy'; $used"), "0\n$used_one",
	'so does a cancel in the middle of it');
same('tpl', 'the template after all that');

# a pool that is full
my $free = $node->safe_psql('postgres', 'SELECT (max_size - used) / 1024 / 1024 FROM nvm.pool');
$node->safe_psql('postgres', 'CREATE TABLE pad (a int, b text) USING nvm; ALTER TABLE pad ALTER b SET STORAGE EXTERNAL');
my $pads = int($free / 25);
$node->psql('postgres', "INSERT INTO pad SELECT i, repeat('x', 25000000) FROM generate_series(1, $pads) i");
$node->psql('postgres', "INSERT INTO pad SELECT i, repeat('x', 25000000) FROM generate_series(1, 1) i") for 1 .. 3;
my $used_full = $node->safe_psql('postgres', $used);
$node->fails_with('CREATE DATABASE copy TEMPLATE tpl', qr/could not extend NVM pool: it has its maximum size\nDETAIL.*HINT/s, 'no room for a copy');
is($node->safe_psql('postgres', "SELECT count(*) FROM pg_database WHERE datname = 'copy'; $used"), "0\n$used_full",
	'and nothing is left of it');
my ($ret, $out, $err) = $node->psql('tpl', 'ALTER TABLE t SET TABLESPACE space_b', on_error_stop => 1);
like($err, qr/could not extend NVM pool/, 'nor for a table that moves');
$node->safe_psql('postgres', 'DROP TABLE pad');
same('tpl', 'when there is room again');
$node->check_clean('a full pool');

# ---- gaps: what a crash left in the template is not in the copy

my $open = $node->session;
$open->{psql}->query("\\c tpl\nSELECT 1");
$open->sql("BEGIN; INSERT INTO t SELECT 20000 + i, 'lost', repeat('x', 20000) FROM generate_series(1, 50) i; "
	  . "DELETE FROM t WHERE id < 500; UPDATE t SET a = 'lost' WHERE id > 2500; CREATE TABLE lost (a int) USING nvm");
# so that it is durable, more or less
$node->safe_psql('tpl', 'CREATE TABLE kept (id int PRIMARY KEY) USING nvm; INSERT INTO kept VALUES (1)');
$expected = $node->safe_psql('tpl', $holds);
$node->safe_psql('postgres', 'CHECKPOINT');
$node->crash;
$open->drop;
$node->set_conf('nvm.collect_gaps' => 'off');
$node->start;
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps'), '>', 0, 'there are gaps');
fill_unlogged('tpl');
same('tpl', 'with gaps');
$node->safe_psql('postgres', "CREATE DATABASE copy TEMPLATE tpl");
same('copy', 'a copy made with gaps');
$node->safe_psql('tpl', 'SET client_min_messages = warning; ALTER TABLE t SET TABLESPACE space_b');
same('tpl', 'moved with gaps');
$node->check_clean('copies made with gaps');
$node->set_conf('nvm.collect_gaps' => 'on');
$node->reload;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or fail('the collector does not finish');
same('copy', 'collected');
same('tpl', 'collected, the template');
$node->safe_psql('copy', 'VACUUM');
$node->safe_psql('copy', "INSERT INTO t SELECT 30000 + i, 'more' FROM generate_series(1, 2000) i");
is($node->safe_psql('copy', 'SELECT count(*), count(*) FILTER (WHERE a = $$lost$$) FROM t'), $rows + 2000 . '|0', 'and used');
$node->check_clean('collected');
$node->crash;
$node->start;
is($node->safe_psql('copy', 'SELECT count(*) FROM t'), $rows + 2000, 'after another crash');
$node->check_clean('after another crash');
is($node->safe_psql('postgres', $accounts), '0|0', 'no storage is left over');

# ---- without its pool a database can be copied, and says so

fill_unlogged('tpl');
$node->stop;
rename($node->pool_dir, $node->pool_dir . '.away') or die $!;
$node->start;
($ret, $out, $err) = $node->psql('postgres', 'CREATE DATABASE empty_copy TEMPLATE tpl');
is($ret, 0, 'without the pool a database can be copied');
like($err, qr/WARNING:  rows of nvm tables of database "tpl", if it has any, are not copied/, 'with a warning');
$node->stop;
rename($node->pool_dir . '.away', $node->pool_dir) or die $!;
$node->start;
($ret, $out, $err) = $node->psql('empty_copy', 'SELECT * FROM t', on_error_stop => 1);
like($err, qr/rows of nvm table "t" are lost.*TRUNCATE/s, 'there its tables say what they lack');
$node->safe_psql('empty_copy', 'TRUNCATE t, u; DROP MATERIALIZED VIEW m; DROP TABLE elsewhere, kept');
$node->safe_psql('empty_copy', "INSERT INTO t VALUES (1, 'again')");
is($node->safe_psql('tpl', 'SELECT count(*) FROM t'), $rows, 'the template has all');
# the server ran without the pool, but no recovery has emptied the indexes
is($node->safe_psql('tpl', 'SELECT count(*) FROM u; SET enable_seqscan = off; SELECT count(*) FROM u WHERE id > 0'),
	"200\n200", 'an UNLOGGED table, too');
foreach my $db (qw(tpl copy))
{
	$node->safe_psql($db, 'TRUNCATE u');
	fill_unlogged($db);
}
$node->check_clean('the end');
$node->stop;
done_testing();

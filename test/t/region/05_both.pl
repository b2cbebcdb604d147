# Copyright (c) 2026, pg_nvm contributors

# Transactions that write the pool and the volatile region, at the edges: DDL of the
# pool's indexes behind a write to memory, counts of prepared transactions, ON COMMIT
# actions, deferred triggers, writes of another library while the transaction is being
# committed; and a server without the region.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $module = dirname(abs_path($0)) . '/../../tools/nvm_dram';
my $late = dirname(abs_path($0)) . '/../../tools/nvm_late';
my $node = NvmTest->start_new('both', conf => <<CONF, sql => <<SQL);
shared_preload_libraries = '$late,pg_nvm,$module'
nvm_dram.size = 192MB
restart_after_crash = on
max_prepared_transactions = 10
autovacuum = off
nvm.horizon_naptime = 50ms
CONF
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$module' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
CREATE TABLE d (id int, v int, t text) USING nvm_dram;
CREATE TABLE e (a int) USING nvm_dram;
CREATE TABLE h (a int);
CREATE TABLE p (id int, v int, t text) USING nvm;
CREATE UNIQUE INDEX d_id ON d USING nvm_btree (id);
CREATE UNIQUE INDEX p_id ON p USING nvm_btree (id);
CREATE UNIQUE INDEX p_id2 ON p (id);
ALTER TABLE p ALTER id SET NOT NULL;
INSERT INTO d SELECT i, 0, 'd' FROM generate_series(1, 100) i;
INSERT INTO p SELECT i, 0, 'p' FROM generate_series(1, 100) i;
SQL
sub sql { return $node->safe_psql('postgres', $_[0]); }

# an index is made anew only if this transaction has ended its storage
foreach my $cmd ('ALTER INDEX p_id SET (fillfactor = 80)', 'ALTER TABLE p ADD CONSTRAINT x UNIQUE USING INDEX p_id2')
{
	foreach my $table ('p', 'd')
	{
		my $files = q{SELECT sum(relfilenode::bigint) FROM pg_class WHERE relname IN ('p_id', 'p_id2', 'x')};
		my ($before, $after) = split /\n/,
		  sql("BEGIN; UPDATE $table SET v = 1 WHERE id = 1; $files; $cmd; $files; ROLLBACK");
		is($after, $before, "$cmd behind a write of $table: the index keeps its file");
	}
}

# a prepared transaction counts once
my @before = split /\|/, sql('SELECT mixed_commits, aborts FROM nvm.activity');
foreach my $end ('COMMIT', 'ROLLBACK')
{
	sql("BEGIN; UPDATE d SET v = 3 WHERE id = 3; UPDATE p SET v = 3 WHERE id = 3; PREPARE TRANSACTION 'c'");
	sql("$end PREPARED 'c'");
}
my @after = split /\|/, sql('SELECT mixed_commits, aborts FROM nvm.activity');
is($after[0] - $before[0], 1, 'COMMIT PREPARED of both regions is one commit');
is($after[1] - $before[1], 1, 'ROLLBACK PREPARED one abort');

# ON COMMIT actions
is(sql(<<'SQL'), "0\n0\n3", 'ON COMMIT actions of temporary tables in memory');
CREATE TEMP TABLE t1 (id int PRIMARY KEY, t text) USING nvm_dram ON COMMIT DELETE ROWS;
BEGIN; INSERT INTO t1 VALUES (1, repeat('x', 100000)); UPDATE d SET v = 5 WHERE id = 5; COMMIT;
SELECT count(*) FROM t1;
BEGIN; CREATE TEMP TABLE t2 (id int PRIMARY KEY) USING nvm_dram ON COMMIT DROP; INSERT INTO t2 VALUES (1); COMMIT;
BEGIN; INSERT INTO t1 VALUES (1, repeat('x', 100000)); UPDATE p SET v = 5 WHERE id = 5; COMMIT;
SELECT count(*) FROM t1;
BEGIN; INSERT INTO t1 VALUES (1, repeat('x', 100000)); SAVEPOINT a; INSERT INTO t1 VALUES (2); ROLLBACK TO a; INSERT INTO t1 VALUES(3); INSERT INTO t1 VALUES(4);
SELECT count(*) FROM t1; COMMIT;
SQL

# deferred
is(sql(<<'SQL'), "7", "deferred triggers write the region");
CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN UPDATE d SET v = 7 WHERE id = 7; RETURN NULL; END$$;
CREATE CONSTRAINT TRIGGER tr AFTER UPDATE ON p DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION f();
BEGIN; UPDATE p SET v = 8 WHERE id = 8; COMMIT;
SELECT v FROM d WHERE id = 7;
DROP TRIGGER tr ON p;
SQL

# another library writes when our part of the commit is done
my $ending = qr/while the transaction is being committed/;
my $all = 'SELECT (SELECT sum(v) FROM d WHERE id >= 80), (SELECT sum(v) FROM p WHERE id >= 80), (SELECT count(*) FROM h)';
sub late
{
	my ($first, $late, $name) = @_;
	$node->fails_with("BEGIN; $first; SET LOCAL nvm_late.sql = '$late'; COMMIT", $ending, $name);
	is(sql($all), '0|0|0', 'which takes everything back');
}
late('UPDATE d SET v = 80 WHERE id = 80', 'UPDATE p SET v = 80 WHERE id = 80', 'the pool behind memory');
late('UPDATE d SET v = 80 WHERE id = 80; INSERT INTO h VALUES (1)', 'UPDATE p SET v = 80 WHERE id = 80',
	'the pool behind memory and WAL, which asks pg_xact for memory alone');
late('UPDATE p SET v = 80 WHERE id = 80', 'UPDATE d SET v = 80 WHERE id = 80', 'memory behind the pool');
late('UPDATE p SET v = 80 WHERE id = 80; UPDATE d SET v = 80 WHERE id = 80', 'UPDATE d SET v = 81 WHERE id = 80',
	'memory behind both');
$node->check_clean('with the region');

# without the region: what is empty needs no memory
sql('CREATE DATABASE tmpl');
$node->safe_psql('tmpl', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$module' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
CREATE TABLE e (a int) USING nvm_dram;
SQL
$node->append_conf('postgresql.conf', 'nvm_dram.size = 0');
$node->restart;
foreach my $sql ('VACUUM (FREEZE) e', 'VACUUM FULL e', 'TRUNCATE e', 'DELETE FROM e', 'ANALYZE e',
	'CREATE DATABASE copied TEMPLATE tmpl')
{
	my ($rc, $out, $err) = $node->psql('postgres', $sql);
	is($err, '', "$sql, without the region");
}
$node->stop;
done_testing();

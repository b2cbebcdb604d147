# Copyright (c) 2026, pg_nvm contributors

# Uninstalling, and running without the library in between: what is said, what
# works all the same, and that storages whose table or database was dropped
# meanwhile are found and dropped, and no others.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => "allow_in_place_tablespaces = on\nautovacuum = off\nmax_prepared_transactions = 5\n", extension => 0);

my $used = 'SELECT used - size / 1024 FROM nvm.pool';
my $orphans = 'SELECT count(*) FROM nvm.relations WHERE NOT ended AND relation IS NULL '
  . 'AND coalesce(database, current_database()) = current_database()';
my $table = <<SQL;
	(id int PRIMARY KEY, b text) USING nvm;
INSERT INTO %1 SELECT i, repeat('x', 300) FROM generate_series(1, 1000) i;
INSERT INTO %1 SELECT 2000 + i, (SELECT string_agg(md5(j::text), '') FROM generate_series(1, 2000) j) FROM generate_series(1, 3) i;
SQL

sub make_table
{
	my ($db, $name) = @_;
	(my $sql = "CREATE TABLE %1 $table") =~ s/%1/$name/g;
	return $node->safe_psql($db, $sql);
}

sub without_library
{
	$node->stop;
	$node->set_conf(shared_preload_libraries => "''");
	$node->start;
	return;
}

sub with_library
{
	$node->stop;
	$node->set_conf(shared_preload_libraries => "'pg_nvm'");
	$node->start;
	return;
}

sub intact
{
	my ($name) = @_;
	is($node->safe_psql('postgres', 'SELECT count(*), sum(length(b)) FROM keep'),
		'1003|492000', "$name: the other table is there");
	return;
}

$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');
make_table('postgres', 'keep');
$node->safe_psql('postgres', "SET allow_in_place_tablespaces = on; CREATE TABLESPACE elsewhere LOCATION ''");
$node->safe_psql('postgres', 'CREATE TABLE keep2 (a int) USING nvm TABLESPACE elsewhere; INSERT INTO keep2 VALUES (1)');
my $used_before = $node->safe_psql('postgres', $used);
foreach my $db (qw(db2 db3))
{
	$node->safe_psql('postgres', "CREATE DATABASE $db");
	$node->safe_psql($db, 'CREATE EXTENSION pg_nvm');
	make_table($db, 't');
}
make_table('postgres', 'gone');
$node->safe_psql('postgres', 'CREATE TABLE gone2 (a int) USING nvm TABLESPACE elsewhere; INSERT INTO gone2 VALUES (1)');

# ---- the library is not there

without_library();
$node->fails_with($_, qr/(?:need shared_preload_libraries|not loaded when the server started).*HINT: .*restart/s, "without the library: $_")
  foreach (
	'SELECT * FROM keep',
	"INSERT INTO keep VALUES (0, '')",
	'DELETE FROM keep',
	'TRUNCATE keep',
	'CREATE TABLE fresh (a int) USING nvm',
	'ALTER TABLE keep SET TABLESPACE elsewhere',
	'ALTER TABLE keep SET ACCESS METHOD heap',
	'SELECT * FROM nvm.drop_orphans()');
is($node->safe_psql('postgres', 'CREATE TABLE h (a int); INSERT INTO h VALUES (1); SELECT * FROM h'),
	'1', 'without the library: other tables work');
is($node->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'not loaded', 'the view says so');
$node->safe_psql('postgres', 'DROP TABLE gone, gone2');
$node->safe_psql('db2', 'SET client_min_messages = error; DROP EXTENSION pg_nvm CASCADE');
is($node->safe_psql('db2', "SELECT count(*) FROM pg_am WHERE amname = 'nvm'"), '0', 'DROP EXTENSION CASCADE');
$node->safe_psql('postgres', 'DROP DATABASE db3');
ok(!-e $node->data_dir . '/pg_nvm_reset', 'nothing else happened');

# ---- and is back: one database's orphans, those of a database that is gone

with_library();
like($node->log_since_start, qr/used without NVM pool/, 'the log says that the pool was not used meanwhile');
intact('the library is back');
# a table and its nvm_btree index have one each
is($node->safe_psql('postgres', $orphans), '5', 'nvm.relations shows storages that belong to nobody');
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT database), sum(bytes) > 0 FROM nvm.drop_orphans()'),
	'5|2|t', 'nvm.drop_orphans() drops them');
is($node->safe_psql('postgres', $orphans), '0', 'there are none any more');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.drop_orphans()'), '0', 'a second call finds nothing');
is($node->safe_psql('db2', "CREATE EXTENSION pg_nvm; SELECT count(*) FROM nvm.drop_orphans(); DROP EXTENSION pg_nvm"),
	'2', 'in a database where the extension was dropped');
is($node->safe_psql('postgres', $used), $used_before, 'all their space is free');
intact('orphans dropped');
is($node->safe_psql('postgres', 'SELECT count(*) FROM keep2'), '1', 'a table in another tablespace is there');
$node->check_clean('orphans dropped');
$node->safe_psql('postgres', 'CREATE ROLE mortal LOGIN; GRANT USAGE ON SCHEMA nvm TO mortal; '
	  . 'GRANT EXECUTE ON FUNCTION nvm.drop_orphans() TO mortal');
$node->fails_with('SET ROLE mortal; SELECT * FROM nvm.drop_orphans()', qr/must be superuser/, 'superusers only');

# ---- at the same time as DDL that is not decided, or is decided meanwhile

my @s = map { $node->session } 1 .. 3;
sub finds { return $s[0]->sql('SELECT count(*) FROM nvm.drop_orphans()'); }

$s[1]->sql("BEGIN; CREATE TABLE c1 (id int PRIMARY KEY, b text) USING nvm; INSERT INTO c1 VALUES (1, repeat('c', 20000));");
is(finds(), '0', 'a table whose creation is not decided');
$s[1]->sql('COMMIT');
is(finds(), '0', 'and after it is');
is($s[1]->sql('SELECT length(b) FROM c1'), '20000', 'its row is there');
$s[1]->sql('BEGIN; DROP TABLE c1; TRUNCATE keep2; ALTER TABLE keep ADD COLUMN c float8 DEFAULT random()');
is(finds(), '0', 'DROP, TRUNCATE and a rewrite that are not decided');
$s[1]->sql('ROLLBACK');
is($s[1]->sql('SELECT length(b) FROM c1'), '20000', 'the row is still there');
intact('DDL rolled back');

foreach my $ddl (
	'TRUNCATE c1',
	'ALTER TABLE c1 SET TABLESPACE elsewhere',
	'VACUUM FULL c1',
	'ALTER TABLE c1 ADD COLUMN r float8 DEFAULT random()',
	'DROP TABLE c1; CREATE TABLE c1 (id int PRIMARY KEY, b text) USING nvm; INSERT INTO c1 VALUES (1, repeat($$c$$, 20000))',
	'ALTER TABLE c1 SET ACCESS METHOD heap',
	'ALTER TABLE c1 SET ACCESS METHOD nvm')
{
	# between its look at the directory and that at the catalogs
	$s[0]->sql("SET nvm.failpoint = 'orphan-candidates:sleep=1500'");
	my $before = () = slurp_file($node->logfile) =~ /orphan-candidates hit/g;
	$s[0]->send('SELECT count(*) FROM nvm.drop_orphans()');
	$node->poll_query_until('postgres',
		"SELECT pg_stat_activity.state = 'active' FROM pg_stat_activity WHERE pid = " . $s[0]->pid);
	my $end = time() + 60;
	while ((() = slurp_file($node->logfile) =~ /orphan-candidates hit/g) <= $before && time() < $end)
	{
		select(undef, undef, undef, 0.01);
	}
	$s[1]->sql('SET client_min_messages = warning');
	$s[1]->sql($ddl);
	is($s[0]->sql("SET nvm.failpoint = ''"), '0', "meanwhile: $ddl");
}
is($node->safe_psql('postgres', 'SELECT count(*) FROM c1'), '1', 'the table is there');
is($node->safe_psql('postgres', $orphans), '0', 'and nothing is left over');
$_->drop foreach @s;
$node->check_clean('concurrent DDL');

# ---- prepared transactions, also across restarts

$node->safe_psql('postgres', "BEGIN; CREATE TABLE p_made (id int PRIMARY KEY, b text) USING nvm; "
	  . "INSERT INTO p_made VALUES (1, repeat('p', 20000)); DROP TABLE c1; PREPARE TRANSACTION 'p'");
foreach my $how ('at once', 'after a restart', 'after a crash')
{
	$node->restart if $how eq 'after a restart';
	if ($how eq 'after a crash') { $node->crash; $node->start; }
	is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.drop_orphans()'), '0', "a prepared transaction's storages, $how");
}
$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.drop_orphans()'), '0', 'when it is committed');
is($node->safe_psql('postgres', 'SELECT length(b) FROM p_made'), '20000', 'its table is there');
$node->safe_psql('postgres', "DROP TABLE p_made");
is($node->safe_psql('postgres', $orphans), '0', 'and nothing is left over');
$node->check_clean('prepared transactions');

# ---- rolled back, two at once, and crashes

sub make_orphans
{
	make_table('postgres', "gone$_") foreach 3 .. 4;
	without_library();
	$node->safe_psql('postgres', 'DROP TABLE gone3, gone4');
	with_library();
	return;
}

make_orphans();
$used_before = $node->safe_psql('postgres', $used);
is($node->safe_psql('postgres', 'BEGIN; SELECT count(*) FROM nvm.drop_orphans(); ROLLBACK'), '4', 'found');
is($node->safe_psql('postgres', "$orphans; $used"), "4\n$used_before", 'a ROLLBACK keeps them');
@s = map { $node->session } 1 .. 2;
is($s[0]->sql("BEGIN;\nSELECT count(*) FROM nvm.drop_orphans()"), '4', 'the first of two finds them');
$s[1]->send('SELECT count(*) FROM nvm.drop_orphans()');
$node->poll_query_until('postgres',
	"SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = " . $s[1]->pid)
  or fail('the second one does not wait');
$s[0]->sql('COMMIT');
is($s[1]->sql('SELECT 1'), "0\n1", 'the second one waits, and finds none');
$_->drop foreach @s;
is($node->safe_psql('postgres', $orphans), '0', 'none is left');
my $used_after = $node->safe_psql('postgres', $used);

foreach my $place (qw(orphan-candidates:crash orphan-ended:crash:1 orphan-ended:crash:3))
{
	make_orphans();
	$node->psql('postgres', "SET nvm.failpoint = '$place'; SELECT * FROM nvm.drop_orphans()");
	$node->wait_crashed;
	$node->start;
	is($node->safe_psql('postgres', $orphans), '4', "a crash at $place: nothing was decided");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.drop_orphans()'), '4', 'they are found again');
	is($node->safe_psql('postgres', $used), $used_after, 'and their space is free');
	$node->check_clean("a crash at $place");
}
intact('the end');
$node->stop;
done_testing();

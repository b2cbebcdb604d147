# Copyright (c) 2026, pg_nvm contributors

# UNLOGGED tables when the server has run without the library or the pool: it
# may have emptied their indexes, or not.  Where that cannot be known the rows
# are lost, and each access says so; where it can be known they are there, or
# the table is empty.  Never do table and index disagree.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->new('main');
$node->init;
$node->append_conf('postgresql.conf', "autovacuum = off\n");
$node->start;
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, b text) USING nvm;
CREATE TABLE l (id int PRIMARY KEY, b text) USING nvm;
CREATE UNLOGGED TABLE h (id int PRIMARY KEY, b text) USING heap;
INSERT INTO l SELECT i, repeat('l', i) FROM generate_series(1, 500) i;
SQL
my $pool = $node->pool_file;

sub fill
{
	$node->safe_psql('postgres', <<SQL);
TRUNCATE u, h;
INSERT INTO u SELECT i, repeat('u', i) FROM generate_series(1, 500) i;
INSERT INTO h TABLE u;
SQL
	return;
}

# How the server runs without the library, from start to end.
sub without_library
{
	my ($end) = @_;
	$node->set_conf(shared_preload_libraries => "''");
	$node->start;
	$node->safe_psql('postgres', "INSERT INTO h VALUES (0, '')");
	$node->$end;
	$node->set_conf(shared_preload_libraries => "'pg_nvm'");
	return;
}

# count by table and by index
my $rows = 'SELECT count(*) FROM %1$s; SET enable_seqscan = off; SELECT count(*) FROM %1$s WHERE id > 0';

sub is_lost
{
	my ($name) = @_;
	$node->fails_with('SELECT count(*) FROM u', qr/rows of nvm table "u" are lost.*HINT: .*TRUNCATE the table/s, "$name: they are lost");
	$node->fails_with("INSERT INTO u VALUES (1, '')", qr/rows of nvm table "u" are lost/, "$name: INSERT says so too");
	is($node->safe_psql('postgres', sprintf($rows, 'l')), "500\n500", "$name: other tables are intact");
	$node->safe_psql('postgres', "TRUNCATE u; INSERT INTO u VALUES (1, 'new')");
	is($node->safe_psql('postgres', sprintf($rows, 'u')), "1\n1", "$name: after TRUNCATE the table works");
	$node->check_clean($name);
	return;
}

sub has
{
	my ($n, $name) = @_;
	is($node->safe_psql('postgres', sprintf($rows, 'u')), "$n\n$n", "$name: $n rows");
	is($node->safe_psql('postgres', sprintf($rows, 'h')), "$n\n$n", "$name: as on heap");
	is($node->safe_psql('postgres', sprintf($rows, 'l')), "500\n500", "$name: other tables are intact");
	$node->check_clean($name);
	return;
}

fill();
$node->stop;
without_library('stop');
$node->start;
is_lost('a clean stop, a run without the library');

fill();
$node->crash;
without_library('stop');
$node->start;
is_lost('a crash, a run without the library');

fill();
$node->stop;
without_library('crash');
without_library('stop');
$node->start;
is_lost('a clean stop, a run without the library that crashes, another one');

# here recovery empties tables and indexes now
fill();
$node->crash;
without_library('crash');
$node->start;
has(0, 'a crash, a run without the library that crashes');
fill();
$node->stop;
without_library('crash');
$node->start;
has(0, 'a clean stop, a run without the library that crashes');

# the pool is not available meanwhile
fill();
$node->stop;
chmod(0644, $pool);
$node->start;
is($node->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'refused', 'the pool is refused');
$node->stop;
chmod(0600, $pool);
$node->start;
is_lost('a run without the pool');

# a start without the pool that ends before anything has happened
fill();
$node->stop;
chmod(0644, $pool);
$node->set_conf('nvm.failpoint' => "'bypass-noted:crash'");
ok(!$node->start(fail_ok => 1), 'a start without the pool that dies');
$node->_forget_postmaster;
$node->set_conf('nvm.failpoint' => "''");
chmod(0600, $pool);
$node->start;
has(500, 'a start without the pool that died');
$node->restart;
has(500, 'a clean restart');
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# UNLOGGED tables when the server has run without the library or the pool, or was
# killed at the very end of a clean shutdown: a recovery may have emptied their
# indexes, or not.  Where that cannot be known the rows are lost, and each access
# says so; where it can be known they are there, or the table is empty.  Never do
# table and index disagree.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => "autovacuum = off\n", sql => <<SQL);
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, b text) USING nvm;
CREATE INDEX u_ours ON u USING nvm_btree (b, id);
CREATE INDEX u_rebuilt ON u USING nvm_btree (id, b) WITH (persistence = none);
CREATE UNLOGGED TABLE e (id int PRIMARY KEY, b text) USING nvm;
CREATE INDEX e_ours ON e USING nvm_btree (b, id);
CREATE TABLE l (id int PRIMARY KEY, b text) USING nvm;
CREATE UNLOGGED TABLE h (id int PRIMARY KEY, b text) USING heap;
INSERT INTO l SELECT i, repeat('l', i) FROM generate_series(1, 500) i;
SQL
my $pool = $node->pool_file;

# The keeper makes it after each recovery.
sub wait_witness
{
	$node->poll_query_until('postgres', "SELECT size > 0 FROM pg_stat_file('base/1/9999', true)")
	  or die 'no witness';
	return;
}

sub fill
{
	wait_witness();
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
	$node->safe_psql('postgres', "INSERT INTO h VALUES (0, ''); DELETE FROM h WHERE id = 0");
	$node->$end;
	$node->set_conf(shared_preload_libraries => "'pg_nvm'");
	return;
}

# count by table and by index
my $rows = 'SELECT count(*) FROM %1$s; SET enable_seqscan = off; SELECT count(*) FROM %1$s WHERE id > 0';
# by the other indexes, too
my $ours = "SET enable_seqscan = off; SELECT count(*) FROM u WHERE b >= ''; SELECT * FROM nvm.check('u', true)";

sub is_lost
{
	my ($name, %params) = @_;
	$node->fails_with('SELECT count(*) FROM u', qr/rows of nvm table "u" are lost.*HINT: .*TRUNCATE the table/s, "$name: they are lost");
	$node->fails_with("INSERT INTO u VALUES (1, '')", qr/rows of nvm table "u" are lost/, "$name: INSERT says so too");
	is($node->safe_psql('postgres', sprintf($rows, 'l')), "500\n500", "$name: other tables are intact");
	$node->fails_with('SELECT count(*) FROM e', qr/rows of nvm table "e" are lost/, "$name: one that was empty, too") if $params{all};
	is($node->safe_psql('postgres', "SELECT count(*) FROM e; INSERT INTO e VALUES (1, 'e'); SET enable_seqscan = off; SELECT id FROM e WHERE b = 'e'; SELECT b FROM e WHERE id = 1; TRUNCATE e"),
		"0\n1\ne", "$name: a table that was empty is usable") unless $params{all};
	$node->safe_psql('postgres', "TRUNCATE u, e; INSERT INTO u VALUES (1, 'new')");
	is($node->safe_psql('postgres', sprintf($rows, 'u')), "1\n1", "$name: after TRUNCATE the table works");
	$node->check_clean($name);
	return;
}

sub has
{
	my ($n, $name) = @_;
	is($node->safe_psql('postgres', sprintf($rows, 'u')), "$n\n$n", "$name: $n rows");
	is($node->safe_psql('postgres', $ours), $n, "$name: by nvm_btree, and nothing is found");
	is($node->safe_psql('postgres', sprintf($rows, 'h')), "$n\n$n", "$name: as on heap");
	is($node->safe_psql('postgres', sprintf($rows, 'l')), "500\n500", "$name: other tables are intact");
	$node->check_clean($name);
	return;
}

# who tells the next start whether there was a recovery
my $witness = $node->data_dir . '/base/1/9999';
wait_witness();
ok(-z "${witness}_init", 'there is a witness');

fill();
$node->stop;
without_library('stop');
$node->start;
has(500, 'a clean stop, a run without the library');

fill();
$node->crash;
without_library('stop');
is(-s $witness, 0, 'a recovery without the library empties the witness');
$node->start;
is_lost('a crash, a run without the library');
wait_witness();
pass('there is one again');

# killed after the shutdown checkpoint, before the mark of the clean close
sub killed_at_close
{
	fill();
	$node->set_conf('nvm.failpoint' => "'pool-close:crash'");
	$node->restart;
	kill('INT', $node->{_pid});
	$node->wait_crashed;
	like($node->log_since_start, qr/checkpoint complete.*failpoint pool-close hit/s, 'killed at the end of a shutdown');
	$node->set_conf('nvm.failpoint' => "''");
	return;
}

killed_at_close();
$node->start;
has(500, 'killed at the end of a shutdown');

# the same without a witness, and with half of one
foreach my $file ('', '_init')
{
	killed_at_close();
	unlink $witness . $file or die "$witness$file: $!";
	$node->start;
	is_lost("killed at the end of a shutdown, no 9999$file");
	wait_witness();
	ok(-z "${witness}_init", 'there is one again');
}

# a relation of somebody else is left alone
$node->stop;
unlink "${witness}_init" or die;
append_to_file($witness, 'theirs');
$node->start;
# the keeper sleeps when it has looked
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'nvm keeper' AND wait_event = 'Extension'")
  or die 'no keeper';
ok(!-e "${witness}_init" && slurp_file($witness) =~ /theirs$/, 'a file of that name which is not ours is left alone');
$node->stop;
unlink $witness or die;
$node->start;

killed_at_close();
without_library('stop');
$node->start;
has(500, 'killed at the end of a shutdown, a run without the library');

killed_at_close();
without_library('crash');
without_library('stop');
$node->start;
is_lost('killed at the end of a shutdown, a run without the library that crashes, another one');

fill();
$node->stop;
without_library('crash');
without_library('stop');
$node->start;
is_lost('a clean stop, a run without the library that crashes, another one');

# pg_resetwal makes a clean shutdown of a crash
fill();
$node->safe_psql('postgres', 'CHECKPOINT');
$node->safe_psql('postgres', "INSERT INTO u SELECT i, repeat('u', 200) FROM generate_series(501, 3000) i");
$node->crash;
command_ok(['pg_resetwal', '-f', $node->data_dir], 'pg_resetwal after a crash');
$node->start;
is_lost('pg_resetwal after a crash', all => 1);
$node->safe_psql('postgres', 'REINDEX DATABASE postgres');

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
has(500, 'a run without the pool');

# a start without the pool that ends before anything has happened
fill();
$node->stop;
chmod(0644, $pool);
$node->dies_at_start('bypass-noted', 'a start without the pool that dies');
chmod(0600, $pool);
$node->start;
has(500, 'a start without the pool that died');
$node->restart;
has(500, 'a clean restart');
$node->stop;

done_testing();

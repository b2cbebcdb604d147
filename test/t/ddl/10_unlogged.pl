# Copyright (c) 2026, pg_nvm contributors

# UNLOGGED and temporary tables: empty after a crash, full after a clean stop;
# what changes its persistence in between keeps its rows, or not, as on heap.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('main', conf => "autovacuum = off\n");
# the same with both access methods: what heap does is what is expected
foreach my $am (qw(nvm heap))
{
	$node->safe_psql('postgres', <<SQL);
CREATE UNLOGGED TABLE ${am}_u (id int PRIMARY KEY, b text) USING $am;
CREATE UNLOGGED TABLE ${am}_to_logged (id int PRIMARY KEY, b text) USING $am;
CREATE TABLE ${am}_to_unlogged (id int PRIMARY KEY, b text) USING $am;
CREATE TABLE ${am}_l (id int PRIMARY KEY, b text) USING $am;
CREATE TABLE ${am}_p (id int, b text) PARTITION BY RANGE (id);
CREATE UNLOGGED TABLE ${am}_p1 PARTITION OF ${am}_p FOR VALUES FROM (0) TO (1000) USING $am;
CREATE TABLE ${am}_p2 PARTITION OF ${am}_p FOR VALUES FROM (1000) TO (9999) USING $am;
SQL
}

my @tables = qw(u to_logged to_unlogged l p);

sub load
{
	foreach my $table (map { ("nvm_$_", "heap_$_") } @tables)
	{
		$node->safe_psql('postgres', <<SQL);
TRUNCATE $table;
INSERT INTO $table SELECT i, repeat('u', i % 300) FROM generate_series(1, 2000) i;
INSERT INTO $table SELECT 3000 + i, (SELECT string_agg(md5(j::text), '') FROM generate_series(1, 1000) j) FROM generate_series(1, 5) i;
SQL
	}
	return;
}

# rows by table and by index, of both; what nvm has is what heap has
sub compare
{
	my ($name, %rows) = @_;
	foreach my $table (@tables)
	{
		my ($nvm, $heap) = map {
			$node->safe_psql('postgres', "SELECT count(*), sum(length(b)) FROM ${_}_$table; "
				  . "SET enable_seqscan = off; SELECT count(*) FROM ${_}_$table WHERE id > 0") } qw(nvm heap);
		is($nvm, $heap, "$name: $table as on heap");
		like($nvm, qr/^$rows{$table}\|/, "$name: $table has $rows{$table} rows") if exists $rows{$table};
	}
	return;
}

load();
my $used = $node->safe_psql('postgres', 'SELECT used - size / 1024 FROM nvm.pool');
my $all = 2005;
compare('loaded', map { $_ => $all } @tables);
$node->restart;
compare('a clean stop', map { $_ => $all } @tables);
$node->stop('immediate');
$node->start;
compare('an immediate stop', u => 0, to_logged => 0, to_unlogged => $all, l => $all);
$node->check_clean('an immediate stop');
load();
is($node->safe_psql('postgres', 'SELECT used - size / 1024 FROM nvm.pool'), $used, 'what a crash empties is free');
$node->crash;
$node->start;
compare('a crash', u => 0, to_logged => 0, to_unlogged => $all, l => $all);
$node->restart;
compare('a crash and a clean stop', u => 0, l => $all);

# converted, and then a crash
load();
foreach my $am (qw(nvm heap))
{
	$node->safe_psql('postgres', "ALTER TABLE ${am}_to_logged SET LOGGED; ALTER TABLE ${am}_to_unlogged SET UNLOGGED");
}
compare('converted', map { $_ => $all } @tables);
$node->crash;
$node->start;
compare('converted, a crash', u => 0, to_logged => $all, to_unlogged => 0, l => $all);
load();
foreach my $am (qw(nvm heap))
{
	$node->safe_psql('postgres', "ALTER TABLE ${am}_to_logged SET UNLOGGED; ALTER TABLE ${am}_to_unlogged SET LOGGED");
}
$node->restart;
compare('converted back, a clean stop', map { $_ => $all } @tables);
# a conversion that is not decided when the server dies
my @open = map { $node->session } 1 .. 2;
$open[0]->sql('BEGIN; ALTER TABLE nvm_to_logged SET LOGGED; ALTER TABLE heap_to_logged SET LOGGED');
$open[1]->sql('BEGIN; ALTER TABLE nvm_to_unlogged SET UNLOGGED; ALTER TABLE heap_to_unlogged SET UNLOGGED; INSERT INTO nvm_u VALUES (10000, NULL)');
$node->crash;
$_->drop foreach @open;
$node->start;
compare('a crash in the middle of a conversion', u => 0, to_logged => 0, to_unlogged => $all, l => $all);
$node->check_clean('a crash in the middle of a conversion');

# one backend dies
load();
$node->set_conf(restart_after_crash => 'on');
$node->reload;
my $victim = $node->session('BEGIN; DELETE FROM nvm_l; DELETE FROM nvm_u');
kill('KILL', $victim->pid);
$victim->drop;
# a session that gets in before the postmaster has noticed is about to fall, too
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
usleep(5000) while $node->log_since_start !~ /all server processes terminated; reinitializing/ && time() < $end;
$node->poll_query_until('postgres', 'SELECT true') or die 'the server did not come back';
compare('the death of a backend', u => 0, to_logged => 0, to_unlogged => $all, l => $all);
load();
is($node->safe_psql('postgres', 'SELECT used - size / 1024 FROM nvm.pool'), $used, 'nothing has leaked');

# temporary tables go with their session, and with a crash
my $temp = $node->session("CREATE TEMP TABLE tmp (id int PRIMARY KEY, b text) USING nvm",
	"INSERT INTO tmp SELECT i, repeat('t', 10000) FROM generate_series(1, 100) i",
	"CREATE TEMP TABLE tmp2 (id int PRIMARY KEY) USING nvm ON COMMIT DELETE ROWS");
my $temps = "SELECT count(*) FROM nvm.relations WHERE persistence = 't'";
is($node->safe_psql('postgres', $temps), '4', 'temporary tables and their indexes');
$node->crash;
$temp->drop;
$node->start;
is($node->safe_psql('postgres', $temps), '0', 'are gone after a crash');
# PostgreSQL's catalog entries of them are removed by whoever needs the schema
is($node->safe_psql('postgres', 'CREATE TEMP TABLE tmp (id int) USING nvm; INSERT INTO tmp VALUES (1); SELECT count(*) FROM tmp'),
	'1', 'their names can be used again');
load();
$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM nvm.relations WHERE persistence = 't'")
  or fail('temporary tables remain');
is($node->safe_psql('postgres', 'SELECT used - size / 1024 FROM nvm.pool'), $used, 'nothing has leaked');
$node->check_clean('the end');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# A thousand rows that are updated all the time, with one snapshot that is held
# over the middle part of it: the table grows to a few versions a row and no
# further, also while the snapshot is there, and the snapshot goes on seeing what
# it saw.  With is_long 20 million updates, a million of a heap table as well, with what
# reading costs at the beginning and at the end.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $long    = NvmTest::is_long();
my $updates = $ENV{NVM_CHURN_UPDATES} || ($long ? 20_000_000 : 200_000);
my $clients = 4;
my $part    = int($updates / 6 / $clients);	# of six parts, by one client
# a heap table with an old snapshot becomes too slow for that many
my $heap_part = int($part / 20);

my $node = NvmTest->new('churn');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
autovacuum_naptime = 1s
max_wal_size = 4GB
CONF
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');

sub pgbench
{
	my ($sql, @options) = @_;
	my $file = "$PostgreSQL::Test::Utils::tmp_check/churn.sql";
	my ($out, $err) = ('', '');

	unlink $file;
	append_to_file($file, $sql);
	IPC::Run::run([ 'pgbench', '-n', '-M', 'prepared', '-f', $file, @options, $node->connstr('postgres') ],
		'<', \undef, '>', \$out, '2>', \$err)
	  or die "pgbench: $out$err";
	return $out;
}

# each update is a transaction
sub update
{
	my ($am) = @_;
	my $n = $am eq 'heap' ? $heap_part : $part;

	pgbench("DO 'DECLARE r int; BEGIN FOR i IN 1..$n LOOP r := 1 + random() * 999; "
		  . "UPDATE churn_$am SET v = v + 1, note = ''update '' || i WHERE id = r; COMMIT; END LOOP; END';\n",
		'-c', $clients, '-j', 2, '-t', 1);
	return;
}

# microseconds to read a row by its key, and all of them by a scan: the best of
# many rounds in the server, so that little else is in it
sub read_cost
{
	my ($am) = @_;
	return $node->safe_psql('postgres', <<SQL);
SET enable_hashjoin = off;
SET enable_mergejoin = off;
CREATE FUNCTION pg_temp.best(q text) RETURNS float LANGUAGE plpgsql AS \$\$
DECLARE
	began timestamptz; took float := 1e9; n bigint;
BEGIN
	FOR i IN 1..50 LOOP
		began := clock_timestamp();
		EXECUTE q INTO n;
		took := least(took, extract(epoch FROM clock_timestamp() - began) * 1e6);
	END LOOP;
	RETURN took;
END \$\$;
SELECT format('%s/%s', round(pg_temp.best('SELECT count(*) FROM generate_series(1, 1000) g CROSS JOIN LATERAL
	(SELECT v FROM churn_$am WHERE id = g OFFSET 0) s')::numeric / 1000, 2),
	round(pg_temp.best('SELECT sum(v) FROM churn_$am')::numeric));
SQL
}

# kB of the table without indexes
sub size
{
	my ($am) = @_;
	return $node->safe_psql('postgres', $am eq 'nvm'
		? "SELECT blocks * 8 FROM nvm.relations WHERE relation = 'churn_nvm'::regclass"
		: "SELECT pg_relation_size('churn_heap') / 1024");
}

my %figures;

sub churn
{
	my ($am) = @_;
	my @size;
	my @cost;

	$node->safe_psql('postgres',
		"CREATE TABLE churn_$am (id int PRIMARY KEY, v int, note text, pad text) USING $am;\n"
		  . "INSERT INTO churn_$am SELECT i, 0, '', repeat('x', 70) FROM generate_series(1, 1000) i");
	push @size, size($am);
	push @cost, read_cost($am);
	update($am) foreach 1 .. 2;
	push @size, size($am);

	my $reader = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ');
	my $look   = "SELECT count(*), sum(v), md5(string_agg(id || note, ',' ORDER BY id)) FROM churn_$am";
	my $seen   = $reader->sql($look);

	# it counts as old after some hundred ids, and when the keeper has come by
	$node->safe_psql('postgres',
		'DO $$ BEGIN FOR i IN 1..300 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$');
	sleep 2;
	foreach (1 .. 2)
	{
		update($am);
		push @size, size($am);
	}
	push @cost, read_cost($am);
	is($reader->sql($look), $seen, "$am: the old snapshot sees what it saw");
	$reader->sql('SET LOCAL enable_seqscan = off');
	is($reader->sql("$look WHERE id > 0"), $seen, "$am: also by the index");
	$reader->sql('COMMIT');
	foreach (1 .. 2)
	{
		update($am);
		push @size, size($am);
	}
	push @cost, read_cost($am);
	is($node->safe_psql('postgres', "SELECT count(*), sum(v) FROM churn_$am"),
		'1000|' . 6 * $clients * ($am eq 'heap' ? $heap_part : $part), "$am: no update is lost");
	note("$am: kB at the start, before the snapshot, twice with it, twice after it: @size");
	note("$am: us to read a row by key/to scan, at the start, with the snapshot, at the end: @cost");
	return @size;
}

my ($start, $before, $held1, $held2, $after1, $after2) = churn('nvm');

# What one part leaves if nothing is removed: more than 100 bytes a version
my $unbounded = $clients * $part * 100 / 1024;
cmp_ok($held1 - $before, '<', $unbounded / 2, 'the size is bounded while the snapshot is held');
cmp_ok($held2 - $held1, '<', $unbounded / 8, 'and does not go on growing');
cmp_ok($after2 - $held2, '<', $unbounded / 8, 'it levels off after it');
cmp_ok($after2, '<', $start * 64, 'at some versions a row');
is($node->safe_psql('postgres', "SELECT * FROM nvm.check('churn_nvm')"), '', 'no fault found');
churn('heap') if $long;

$node->stop;
done_testing();

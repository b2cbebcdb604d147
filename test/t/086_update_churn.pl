# Copyright (c) 2026, pg_nvm contributors

# A thousand rows that are updated all the time, with one snapshot that is held
# over the middle part of it: the table grows to a few versions a row and no
# further, also while the snapshot is there, and the snapshot goes on seeing what
# it saw.  With is_long 20 million updates, of a heap table as well, with what
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
	pgbench("DO 'DECLARE r int; BEGIN FOR i IN 1..$part LOOP r := 1 + random() * 999; "
		  . "UPDATE churn_$am SET v = v + 1, note = ''update '' || i WHERE id = r; COMMIT; END LOOP; END';\n",
		'-c', $clients, '-j', 2, '-t', 1);
	return;
}

# microseconds to read a row by its key
sub read_cost
{
	my ($am) = @_;
	return 'not measured' unless $long;
	my $out = pgbench("\\set id random(1, 1000)\nSELECT v FROM churn_$am WHERE id = :id;\n", '-c', 1, '-T', 5);
	return $out =~ /latency average = ([\d.]+) ms/ ? sprintf('%.0f us', 1000 * $1) : $out;
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
		'1000|' . 6 * $clients * $part, "$am: no update is lost");
	note("$am: kB at the start, before the snapshot, twice with it, twice after it: @size");
	note("$am: a read at the start, with the snapshot, at the end: @cost");
	return @size;
}

my ($start, $before, $held1, $held2, $after1, $after2) = churn('nvm');

# What one part leaves if nothing is removed: more than 100 bytes a version
my $unbounded = $clients * $part * 100 / 1024;
cmp_ok($held1 - $before, '<', $unbounded / 2, 'the size is bounded while the snapshot is held');
cmp_ok($held2 - $held1, '<', $unbounded / 8, 'and does not go on growing');
cmp_ok($after2 - $held2, '<', $unbounded / 8, 'it levels off after it');
cmp_ok($after2, '<', $start * 20, 'at a few versions a row');
is($node->safe_psql('postgres', "SELECT * FROM nvm.check('churn_nvm')"), '', 'no fault found');
churn('heap') if $long;

$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# A thousand rows that are updated all the time, with one snapshot that is held
# over the middle part of it: the table grows to a bounded number of versions and no
# further, also while the snapshot is there, the snapshot goes on seeing what it saw,
# and reading costs at the end what it did at the beginning.
#
# Long form: 20 million updates, and 300,000 of a heap table for comparison; here
# 200,000.
#
# What the bound is.  A row needs, whatever happens, its current version, the one
# before it, which the next update unlinks, and the stub of its root, whose tail is a
# little too short for another version; while an old snapshot is held also the version
# that it sees.  That is less than four times the table as it was loaded.
#
# The rest is delay.  A version that was unlinked is free when nobody can stand on it
# any more: when no statement is left that began before.  With statements of 20 us that
# is soon, but what counts is the longest one of anybody in the server: a process that
# waits for a processor in the midst of its update, an ANALYZE by autovacuum, the query
# by which this test reads all rows.  What is updated meanwhile needs new space, whether
# an old snapshot is held or not: 80,000 updates in a second times 0.1 s times 192 bytes
# (48 of our header, 24 of the tuple's, the columns, in cells of 32) are 1.5 MB, ten
# times what 1,000 rows take after they were loaded.  That is a property of the rate of
# updates, not of their number; a heap table needs the same.  At 66,000 updates in a
# second a table of 1.6 MB became one of 4.9 MB when one statement lasted for 0.3
# seconds, and of 16.5 MB when one lasted for a second.
#
# Space is not taken from a table but by VACUUM at its end, so the size is that of the
# longest delay there has been, and the longer a run, the longer its longest delay: on
# a machine whose processors were shared by five times as many processes 2 million
# updates came to 2.7 MB, and 20 million to 5.6 MB.  So the bound is four times the loaded
# table and what is updated in half a second, at the greatest rate there was.  Without
# reuse 20 million updates would leave 3.8 GB.

use strict;
use warnings;

use List::Util qw(max min);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $long    = NvmTest::is_long();
my $updates = $ENV{NVM_CHURN_UPDATES} || ($long ? 20_000_000 : 200_000);
my $clients = 4;
my $part    = int($updates / 6 / $clients);	# of six parts, by one client
# a heap table with an old snapshot becomes too slow for that many
my $heap_part = int($part / 66);
# bytes of a version, and seconds until it is free
my ($version, $delay) = (192, 0.5);
# updates in a second of each part
my @rate;
# kB that one part leaves if nothing is removed; a short one lasts hardly longer than
# the delay
my $unbounded = $clients * $part * $version / 1024;
my $few = $unbounded / ($long ? 16 : 4);

my $node = NvmTest->start_new('churn', conf => <<CONF);
autovacuum_naptime = 1s
max_wal_size = 4GB
CONF

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
	my $start = time;

	pgbench("DO 'DECLARE r int; BEGIN FOR i IN 1..$n LOOP r := 1 + random() * 999; "
		  . "UPDATE churn_$am SET v = v + 1, note = ''update '' || i WHERE id = r; COMMIT; END LOOP; END';\n",
		'-c', $clients, '-j', 2, '-t', 1);
	push @rate, int($n * $clients / (time - $start)) if $am eq 'nvm';
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

# kB by which the table grows while a part of the updates is done.  Somebody may have
# stood still in the midst of his statement, or autovacuum have looked at all rows: the
# least of several parts, as each would grow by as much if the versions stayed.
my $parts = 0;

sub growth
{
	my ($am) = @_;
	my ($least, $size) = (undef, size($am));

	foreach (1 .. 4)
	{
		update($am);
		$parts++;
		my $more = size($am) - $size;
		$size += $more;
		$least = $more if !defined $least || $more < $least;
		last if $am ne 'nvm' || $least < $few;
	}
	return $least;
}

sub churn
{
	my ($am) = @_;
	my (@size, @more, @cost);

	$parts = 0;

	$node->safe_psql('postgres',
		"CREATE TABLE churn_$am (id int PRIMARY KEY, v int, note text, pad text) USING $am;\n"
		  . "INSERT INTO churn_$am SELECT i, 0, '', repeat('x', 70) FROM generate_series(1, 1000) i");
	push @size, size($am);
	push @cost, read_cost($am);
	growth($am) foreach 1 .. 2;
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
		push @more, growth($am);
		push @size, size($am);
	}
	push @cost, read_cost($am);
	is($reader->sql($look), $seen, "$am: the old snapshot sees what it saw");
	$reader->sql('SET LOCAL enable_seqscan = off');
	is($reader->sql("$look WHERE id > 0"), $seen, "$am: also by the index");
	$reader->sql('COMMIT');
	foreach (1 .. 2)
	{
		push @more, growth($am);
		push @size, size($am);
	}
	push @cost, read_cost($am);
	if ($am eq 'nvm')
	{
		# the machine may be slower than it was at the start: a table as it was then,
		# read by turns with this one, and the best of each
		$node->safe_psql('postgres', 'CREATE TABLE churn_fresh (LIKE churn_nvm INCLUDING ALL) USING nvm; '
			  . "INSERT INTO churn_fresh SELECT i, 0, '', repeat('x', 70) FROM generate_series(1, 1000) i");
		my @fresh = split m,/,, read_cost('fresh');
		my @last  = split m,/,, $cost[-1];
		foreach (1 .. 8)
		{
			last if $last[0] < 1.5 * $fresh[0] && $last[1] < 2 * $fresh[1];
			foreach my $best ([ 'fresh', \@fresh ], [ $am, \@last ])
			{
				my @now = split m,/,, read_cost($best->[0]);
				$best->[1][$_] = min($best->[1][$_], $now[$_]) foreach 0, 1;
			}
		}
		cmp_ok($last[0], '<', 1.5 * $fresh[0], "reading a row by its key takes $last[0] us at the end, of a fresh table $fresh[0] us");
		cmp_ok($last[1], '<', 2 * $fresh[1], "reading all of them takes $last[1] us, of a fresh table $fresh[1] us");
	}
	is($node->safe_psql('postgres', "SELECT count(*), sum(v) FROM churn_$am"),
		'1000|' . $parts * $clients * ($am eq 'heap' ? $heap_part : $part), "$am: no update is lost");
	note("$am: kB at the start, before the snapshot, twice with it, twice after it: @size");
	note("$am: us to read a row by key/to scan, at the start, with the snapshot, at the end: @cost");
	return (@size, @more);
}

my ($start, $before, undef, $held, undef, $after, @more) = churn('nvm');

# a slow machine makes longer delays of the same work
my $bound = int(max(16 * $start, 4 * $start + max(@rate) * $delay * $version / 1024));
note("updates in a second: @rate; bound: $bound kB");
cmp_ok($before, '<', $bound, 'the size is bounded before the snapshot');
cmp_ok($held,  '<', $bound, 'while it is held');
cmp_ok($after, '<', $bound, 'and after it');

cmp_ok($more[0], '<', $few, 'the snapshot keeps few versions');
cmp_ok($more[1], '<', $few, 'and no more of them in the long run');
cmp_ok($more[3], '<', $few, 'the size levels off after it');
is($node->safe_psql('postgres', "SELECT * FROM nvm.check('churn_nvm')"), '', 'no fault found');
churn('heap') if $long;

$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Thousands of tables and a thousand partitions in one database: created,
# filled, queried all at once, found again after a crash, dropped; what each
# costs in the pool and in memory, and what it takes beside as many heap tables;
# nothing of them is left.
#
# Long form: 5,000 tables and 1,000 partitions, here 500 and 200.

use strict;
use warnings;

use List::Util qw(min);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $tables     = NvmTest::is_long() ? 5000 : 500;
my $partitions = NvmTest::is_long() ? 1000 : 200;
# in so many pieces, of which the best counts: the machine has other things to do
my $pieces     = 10;
# Nanoseconds for which the backend has been on a processor: others' work beside it is not
# in that, as it is in the time that has passed.  Where the pool lies on a disk, each first
# touch of a page is work of its file system, so that counts which has passed.
my $clock      = q{SELECT split_part(pg_read_file('/proc/self/schedstat'), ' ', 1)};
# times what a heap table takes
my $ratio      = 2;

my $node = NvmTest->start_new('many', conf => <<CONF);
autovacuum = off
fsync = off
max_locks_per_transaction = 256
max_wal_size = 4GB
CONF

$clock = q{SELECT (extract(epoch FROM clock_timestamp()) * 1e9)::bigint}
  if (split ' ', (qx(df -PT '$node->{nvm_pool}'))[-1])[1] ne 'tmpfs';

sub timed
{
	my ($name, $sql) = @_;
	my $start = time;
	my $result = $node->safe_psql('postgres', $sql);

	note(sprintf('%s: %.1f s', $name, time - $start));
	return $result;
}

# Bytes of the pool that are used, but for the map at the beginning of each chunk of
# 64 MB, since chunks are never given back.
sub used
{
	return $node->safe_psql('postgres', 'SELECT used - size / (64 * 1024 * 1024) * 65536 FROM nvm.pool');
}

# What the pool is going to use has been used before: where the machine itself has to find
# memory first, the first touch of a page takes it longer than all else.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE earlier USING nvm AS SELECT repeat('x', 1000) AS t FROM generate_series(1, 80 * $tables);
DROP TABLE earlier;
SQL
my $used0 = used();

# by procedures that commit now and then, as nobody locks that many at once
$node->safe_psql('postgres', <<SQL);
CREATE PROCEDURE make(prefix text, am name, first int, last int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN first .. last LOOP
		EXECUTE format('CREATE TABLE %I (id int, t text) USING %I', prefix || i, am);
		IF i % 100 = 0 THEN COMMIT; END IF;
	END LOOP;
END\$\$;
CREATE PROCEDURE fill(prefix text, first int, last int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN first .. last LOOP
		EXECUTE format('INSERT INTO %I SELECT j, \$1 || j FROM generate_series(1, 3) j', prefix || i) USING 'row ' || i;
		IF i % 100 = 0 THEN COMMIT; END IF;
	END LOOP;
END\$\$;
CREATE PROCEDURE change(prefix text, first int, last int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN first .. last LOOP
		EXECUTE format('UPDATE %I SET t = t || id', prefix || i);
		IF i % 100 = 0 THEN COMMIT; END IF;
	END LOOP;
END\$\$;
CREATE PROCEDURE remove(prefix text, first int, last int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN first .. last LOOP
		EXECUTE format('DROP TABLE %I', prefix || i);
		IF i % 100 = 0 THEN COMMIT; END IF;
	END LOOP;
END\$\$;
CREATE FUNCTION total(prefix text, first int, last int, OUT rows bigint, OUT digest text) LANGUAGE plpgsql AS
\$\$DECLARE r record;
BEGIN
	rows := 0; digest := '';
	FOR i IN first .. last LOOP
		EXECUTE format('SELECT count(*) AS n, md5(string_agg(id || t, \$1 ORDER BY id)) AS d FROM %I', prefix || i) INTO r USING ',';
		rows := rows + r.n; digest := md5(digest || r.d);
	END LOOP;
END\$\$;
SQL

# The same to nvm and heap tables, by turns, a piece at a time; %s are the prefix
# and the first and last table, or the prefix, the access method and these.
# What is compared is the best piece of each.

sub both
{
	my ($name, $format) = @_;
	my (%best, %sum);

	foreach my $piece (0 .. $pieces - 1)
	{
		foreach my $am ($piece % 2 ? ('nvm', 'heap') : ('heap', 'nvm'))
		{
			my @range = ($tables / $pieces * $piece + 1, $tables / $pieces * ($piece + 1));
			my $sql = sprintf($format, $am . '_', $format =~ /%s.*%s/ ? $am : (), @range);
			my $start = time;

			my @ns = $node->safe_psql('postgres', "$clock; $sql; $clock") =~ /\A(\d+)\n(?:.*\n)*(\d+)\z/
				or die 'no time';
			my $took = ($ns[1] - $ns[0]) / 1e9;
			$best{$am} = min($best{$am} // $took, $took);
			$sum{$am} += time - $start;
		}
	}
	my $n = $tables / $pieces;
	cmp_ok($best{nvm}, '<', $ratio * $best{heap},
		sprintf('%s: nvm %.2f ms a table, heap %.2f ms, ratio %.2f (all %d: %.1f s, %.1f s)',
			$name, 1000 * $best{nvm} / $n, 1000 * $best{heap} / $n, $best{nvm} / $best{heap},
			$tables, $sum{nvm}, $sum{heap}));
	return;
}

both('create', q{CALL make('%s', '%s', %d, %d)});
my $empty = used();
my $per_empty = ($empty - $used0) / $tables;
cmp_ok($per_empty, '<', 1024, sprintf('an empty table takes %d bytes of the pool', $per_empty));
both('fill', q{CALL fill('%s', %d, %d)});
my $per_table = (used() - $empty) / $tables;
cmp_ok($per_table, '<=', 65536, sprintf('a table with a row takes %d bytes', $per_table));
both('read', q{SELECT total('%s', %d, %d)});
both('update', q{CALL change('%s', %d, %d)});
my $total = timed('read each', "SELECT * FROM total('nvm_', 1, $tables)");
is((split /\|/, $total)[0], 3 * $tables, 'all rows are there');
is($node->safe_psql('postgres', "SELECT * FROM total('heap_', 1, $tables)"), $total, 'the same as in heap tables');

# A backend that has seen all of them: its relation cache is the most of it.
{
	my %kb;
	foreach my $am ('heap', 'nvm')
	{
		my $session = $node->session;
		my $before = NvmTest::private_kb($session->pid);
		$session->sql("SELECT total('${am}_', 1, $tables)");
		$kb{$am} = NvmTest::private_kb($session->pid) - $before;
		$session->drop;
	}
	cmp_ok($kb{nvm}, '<', 1.5 * $kb{heap} + 1000 + NvmTest::sanitizer_kb(),
		sprintf('a backend that has read all tables has %d kB more, with heap tables %d kB', $kb{nvm}, $kb{heap}));
}

# ---- partitions ----

$node->safe_psql('postgres', <<SQL);
CREATE TABLE p (id int, t text) PARTITION BY RANGE (id);
DO \$\$BEGIN
	FOR i IN 0 .. $partitions - 1 LOOP
		EXECUTE format('CREATE TABLE p%s PARTITION OF p FOR VALUES FROM (%s) TO (%s) USING nvm', i, i * 10, i * 10 + 10);
	END LOOP;
END\$\$;
SQL
timed('insert into partitions', "INSERT INTO p SELECT i, 'row ' || i FROM generate_series(0, $partitions * 10 - 1) i");
is(timed('all partitions', 'SELECT count(*), sum(id) FROM p'),
	join('|', $partitions * 10, $partitions * 10 * ($partitions * 10 - 1) / 2), 'a query over all partitions');
is($node->safe_psql('postgres', 'SET max_parallel_workers_per_gather = 4; SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SELECT count(*) FROM p'),
	$partitions * 10, 'by parallel workers');
timed('update of all, moving each', "UPDATE p SET id = (id + 10) % ($partitions * 10)");
is($node->safe_psql('postgres', "SELECT count(DISTINCT id), count(DISTINCT tableoid), bool_and(tableoid = ('p' || id / 10)::regclass) FROM p"),
	join('|', $partitions * 10, $partitions, 't'), 'each row is in its partition');
timed('index on all', 'CREATE INDEX ON p (id)');
is($node->safe_psql('postgres', 'SELECT t FROM p WHERE id = 15'), 'row 5', 'by index');

# ---- crash ----

my $all = $node->safe_psql('postgres', 'SELECT count(*), sum(id), md5(string_agg(t, $$,$$ ORDER BY id)) FROM p');
my $session = $node->session('BEGIN', "UPDATE p SET t = 'lost'", "CALL make('lost', 'nvm', 1, 50)", "INSERT INTO lost1 VALUES (1)");
my @restart;
foreach my $try (1 .. 5)
{
	$node->crash;
	$session->drop if $session;
	$session = undef;
	$node->start;
	push @restart, $node->safe_psql('postgres', 'SELECT open_us + recovery_us + resolve_us FROM nvm.pool, nvm.recovery');
	last if $restart[-1] < 500_000;
}
cmp_ok(min(@restart), '<', 500_000, "the restart does not wait for tables: our share is @restart us");
is($node->safe_psql('postgres', "SELECT * FROM total('nvm_', 1, $tables)"), $total, 'tables after a crash');
is($node->safe_psql('postgres', 'SELECT count(*), sum(id), md5(string_agg(t, $$,$$ ORDER BY id)) FROM p'), $all, 'partitions after a crash');
$node->poll_query_until('postgres', 'SELECT gaps = 0 FROM nvm.recovery');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.check_pool()'), '0', 'nvm.check_pool() finds nothing');

# ---- gone ----

both('drop', q{CALL remove('%s', %d, %d)});
timed('drop the partitions', 'DROP TABLE p');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations'), '0', 'no storage is left');
my $left = used() - $used0;
cmp_ok($left, '<=', 128 * ($tables + $partitions + 100) + 65536, "$left bytes of the directory are left");

# Ids are used again: the directory does not grow, nor what the server keeps of
# tables in memory, nor what a backend does.
$session = $node->session;
my $again = sub {
	$session->sql("CALL make('nvm_', 'nvm', 1, $tables)");
	$session->sql("CALL fill('nvm_', 1, $tables)");
	$session->sql("SELECT total('nvm_', 1, $tables)");
	$session->sql("CALL remove('nvm_', 1, $tables)");
};
$again->();
my ($shared, $private) = ($node->shared_kb, NvmTest::private_kb($session->pid));
foreach my $try (1 .. 2)
{
	$again->();
}
is(used() - $used0, $left, 'nothing more of the pool after three times');
my $more = $node->shared_kb - $shared;
cmp_ok($more, '<=', 1024, "$more kB more of shared memory than after the first time ($shared kB)");
$more = NvmTest::private_kb($session->pid) - $private;
# caches of what has gone are given back when it is known, but not in order
cmp_ok($more, '<=', 2 * $tables + 4000 + NvmTest::sanitizer_kb(), "$more kB more of the backend's own than after the first time ($private kB)");
$session->drop;
$node->check_clean('in the end');
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Rows of one transaction are scanned in the order in which it has inserted them, although
# the space of transactions that were rolled back is there to be used again.  Suites that
# roll back after each test rely on it.  And tables do not grow for it.
#
# Long form: more rounds.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $times = NvmTest::is_long() ? 100 : 12;
my $node  = NvmTest->start_new('order', conf => "autovacuum = off\nfsync = off");
my $file  = $node->data_dir . '/rows';

# put() inserts 2 to `most` rows of random lengths, and says whether a scan has them in
# order.  rounds() rolls that back n times, and counts those out of order.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE lost (n int);
CREATE FUNCTION put(tab regclass, kind text, first int, most int, longest int) RETURNS bool
LANGUAGE plpgsql AS \$\$
DECLARE
	n int := 2 + random() * (most - 2);
	half int := n / 2;
	len int[] := ARRAY(SELECT (random() * longest)::int FROM generate_series(1, n));
	got int[];
BEGIN
	IF kind = 'values' OR kind = 'savepoint' THEN
		EXECUTE (SELECT format('INSERT INTO %s VALUES ', tab) ||
			string_agg(format('(%s, repeat(''x'', %s))', first + i, len[i]), ',' ORDER BY i)
			FROM generate_series(1, CASE kind WHEN 'values' THEN n ELSE half END) i);
	END IF;
	IF kind = 'savepoint' THEN
		BEGIN
			EXECUTE format('INSERT INTO %s SELECT -i, repeat(''y'', i * 7) FROM generate_series(1, 5) i', tab);
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
		END;
	END IF;
	IF kind = 'savepoint' OR kind = 'select' THEN
		EXECUTE format('INSERT INTO %s SELECT \$1 + i, repeat(''x'', \$2[i]) FROM generate_series(\$3, \$4) i', tab)
			USING first, len, CASE kind WHEN 'select' THEN 1 ELSE half + 1 END, n;
	ELSIF kind = 'single' THEN
		FOR i IN 1 .. n LOOP
			EXECUTE format('INSERT INTO %s VALUES (\$1, repeat(''x'', \$2))', tab) USING first + i, len[i];
		END LOOP;
	ELSIF kind = 'copy' THEN
		EXECUTE format('COPY %s FROM ''$file''', tab);
		n := 12;
	END IF;
	EXECUTE format('SELECT array_agg(id) FROM %s WHERE id + 0 > \$1', tab) INTO got USING first;
	IF array_length(got, 1) <> n THEN
		RAISE '% rows of %', array_length(got, 1), n;
	END IF;
	RETURN got = ARRAY(SELECT i FROM unnest(got) i ORDER BY i);
END \$\$;
CREATE PROCEDURE rounds(tab regclass, kind text, most int, longest int, n int, INOUT bad int DEFAULT 0)
LANGUAGE plpgsql AS \$\$
BEGIN
	FOR i IN 1 .. n LOOP
		IF NOT put(tab, kind, 1000000, most, longest) THEN
			bad := bad + 1;
		END IF;
		ROLLBACK;
	END LOOP;
END \$\$;
COPY (SELECT 1000000 + i, repeat('x', i * 37 % 100) FROM generate_series(1, 12) i) TO '$file';
SQL

sub blocks
{
	my ($table) = @_;
	return $node->safe_psql('postgres', "SELECT blocks FROM nvm.relations WHERE relation = '$table'::regclass");
}

sub make
{
	my ($table, $key, $rows) = @_;
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = warning;
DROP TABLE IF EXISTS $table;
CREATE TABLE $table (id int $key, t text) USING nvm;
INSERT INTO $table SELECT i, 'base' FROM generate_series(1, $rows) i;
SQL
	return;
}

# name, as of a table; key; rows that stay; rows of a round and their length; allowed blocks
foreach (
	[ 'keyless',  '',            20,   12, 120,  8 ],
	[ 'key',      'PRIMARY KEY', 20,   12, 120,  8 ],
	[ 'fixtures', 'PRIMARY KEY', 1000, 12, 120,  18 ],
	[ 'wide',     'PRIMARY KEY', 20,   12, 1000, 16 ])
{
	my ($table, $key, $rows, $most, $longest, $allowed) = @$_;
	foreach my $kind (qw(values select single copy savepoint))
	{
		my $bad = 0;
		make($table, $key, $rows);
		foreach my $vacuum (1 .. $times)
		{
			my ($n) = $node->safe_psql('postgres',
				"SELECT setseed(0.0001 * $vacuum); CALL rounds('$table', '$kind', $most, $longest, 7); VACUUM $table") =~ /^(\d+)$/m;
			$bad += $n;
		}
		is($bad, 0, "$table, $kind: rows are in order in " . 7 * $times . ' rounds');
		cmp_ok(blocks($table), '<=', $allowed, "$table, $kind: blocks");
	}
}
$node->check_clean('rolled back');

# one session for all of it, without VACUUM
make('keyless', '', 20);
like($node->safe_psql('postgres', "SELECT setseed(0.7); CALL rounds('keyless', 'values', 12, 120, 50 * $times)"),
	qr/^0$/m, 'one session: rows are in order');
cmp_ok(blocks('keyless'), '<=', 8, 'one session: blocks');

# several sessions at once; a backend may find what it wants ahead taken by others
make('many', 'PRIMARY KEY', 20);
my $script = $node->data_dir . '/many.sql';
append_to_file($script, <<'SQL');
DO $$ DECLARE bad int := 0; BEGIN
	FOR i IN 1 .. 20 LOOP
		IF NOT put('many', (ARRAY['values', 'select', 'single', 'savepoint'])[1 + i % 4], 1000000 + pg_backend_pid() * 100, 12, 120) THEN
			bad := bad + 1;
		END IF;
		ROLLBACK;
	END LOOP;
	INSERT INTO lost VALUES (bad);
END $$;
SQL
ok(run_log([ 'pgbench', '-n', '-c', 6, '-j', 2, '-t', $times, '-f', $script, $node->connstr('postgres') ]), 'six sessions');
my ($calls, $bad) = split /\|/, $node->safe_psql('postgres', 'SELECT count(*), sum(n) FROM lost');
is($calls, 6 * $times, 'six sessions: all calls');
cmp_ok($bad, '<=', 20 * $calls / 100, "six sessions: rounds out of order: $bad of " . 20 * $calls);

# rows that stay and go: free space is used, not passed over
make('queue', 'PRIMARY KEY', 1000);
my $first = 10_000;
my $base  = blocks('queue');
foreach my $vacuum (1 .. 5 * $times)
{
	$node->safe_psql('postgres', join ';', (map { $first += 100; "SELECT put('queue', 'values', $first, 60, 120)" } 1 .. 5),
		'DELETE FROM queue WHERE id % 3 > 0 AND id <= ' . ($first - 1000) . ' OR id <= ' . ($first - 3000), 'VACUUM queue');
}
cmp_ok(blocks('queue'), '<=', 3 * $base, "rows that stay and go: blocks, at first $base");
$node->check_clean('at the end');
$node->stop;
done_testing();

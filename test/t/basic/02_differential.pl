# Copyright (c) 2026, pg_nvm contributors

# A heap table and an nvm table go through the same random statements, with
# transactions, savepoints, rollbacks, maintenance, old snapshots in other
# sessions and crashes.  Whatever a statement answers, and whatever the tables
# hold afterwards by every way of scanning them, must be the same.
#
# The seed is printed.  NVM_SEED repeats a run, NVM_STEPS sets its length.
#
# Long form: 12,000 statements in 30 rounds, here 1,500 in 10.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seed   = $ENV{NVM_SEED}  // int(rand(1_000_000));
my $steps  = $ENV{NVM_STEPS} // (NvmTest::is_long() ? 12_000 : 1500);
my $rounds = NvmTest::is_long() ? 30 : 10;
diag("seed $seed, $steps steps");
srand($seed);

# twice(statement): run it on heap (%t is h) and on nvm (%t is n), compare.
# compare(): the tables must agree by every kind of scan.
my $node = NvmTest->start_new('differential', conf => <<CONF, sql => <<'SQL');
jit = off
client_min_messages = warning
max_parallel_workers_per_gather = 0
autovacuum_naptime = 1s
nvm.default_index_method = btree
CONF
-- one index in files, which stays there whatever builds it anew
SET nvm.default_index_method = nvm_btree;
CREATE TABLE done (n int) USING heap;
INSERT INTO done VALUES (0);
CREATE TABLE h (id int PRIMARY KEY, k int, u int UNIQUE, a int[], s text) USING heap;
CREATE TABLE hc (id int PRIMARY KEY, p int REFERENCES h ON DELETE CASCADE ON UPDATE CASCADE, v int) USING heap;
CREATE TABLE n (id int PRIMARY KEY, k int, u int UNIQUE, a int[], s text) USING nvm;
CREATE TABLE nc (id int PRIMARY KEY, p int REFERENCES n ON DELETE CASCADE ON UPDATE CASCADE, v int) USING nvm;
CREATE INDEX h_k ON h (k);
SET nvm.default_index_method = btree;
CREATE INDEX n_k ON n USING btree (k);
SET nvm.default_index_method = nvm_btree;
CREATE INDEX h_a ON h USING gin (a);
CREATE INDEX n_a ON n USING gin (a);
CREATE INDEX h_s ON h USING hash (s);
CREATE INDEX n_s ON n USING hash (s);
CREATE INDEX h_part ON h (k, id) WHERE u IS NULL;
CREATE INDEX n_part ON n (k, id) WHERE u IS NULL;
CREATE INDEX hc_p ON hc (p);
CREATE INDEX nc_p ON nc (p);
INSERT INTO h SELECT g, g % 20, g, ARRAY[g % 7, g % 11], 's' || g FROM generate_series(1, 200) g;
INSERT INTO n SELECT * FROM h;

CREATE FUNCTION big(len int, seed int) RETURNS text LANGUAGE sql IMMUTABLE AS
$$SELECT left(string_agg(md5(seed || '/' || g), '' ORDER BY g), len) FROM generate_series(1, len / 32 + 1) g$$;

-- the parents are t, their children %c
CREATE FUNCTION one(statement text, t text, OUT state text, OUT n bigint, OUT rows text)
LANGUAGE plpgsql AS $$
DECLARE
  q text := replace(replace(statement, '%t', t), '%c', t || 'c');
BEGIN
  IF q ~ 'RETURNING|^SELECT' THEN
    EXECUTE 'WITH x AS (' || q || ') SELECT count(*), string_agg(x::text, '';'' ORDER BY x::text) FROM x'
      INTO n, rows;
  ELSE
    EXECUTE q;
    GET DIAGNOSTICS n = ROW_COUNT;
  END IF;
  state := 'ok';
EXCEPTION WHEN OTHERS THEN
  IF sqlstate !~ '^(23|22|21|42)' THEN
    RAISE;
  END IF;
  state := sqlstate;
END$$;
CREATE FUNCTION twice(step int, statement text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  h record := one(statement, 'h');
  n record := one(statement, 'n');
BEGIN
  IF h IS DISTINCT FROM n THEN
    RAISE EXCEPTION 'step %: % answers % on heap, % on nvm', step, statement,
      left(h::text, 2000), left(n::text, 2000);
  END IF;
END$$;
CREATE FUNCTION digest(t text, shape text, condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
  r text;
BEGIN
  PERFORM set_config('enable_' || x, (x = shape)::text, true)
  FROM unnest(ARRAY['seqscan', 'indexscan', 'indexonlyscan', 'bitmapscan']) x;
  EXECUTE format('SELECT count(*) || '' '' || coalesce(md5(string_agg(md5(%I::text), '''' ORDER BY id)), '''') FROM %I WHERE %s', t, t, condition)
    INTO r;
  PERFORM set_config('enable_' || x, 'on', true)
  FROM unnest(ARRAY['seqscan', 'indexscan', 'indexonlyscan', 'bitmapscan']) x;
  RETURN r;
END$$;
CREATE FUNCTION compare(step int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  w record;
  h text;
  n text;
BEGIN
  FOR w IN SELECT * FROM (VALUES
      ('seqscan', 'true'), ('indexscan', 'id > -2147483648'), ('indexscan', 'k >= -100000'),
      ('indexscan', 'u > 0'), ('bitmapscan', 'k BETWEEN 3 AND 9'), ('bitmapscan', 'a && ''{1,4,6}'''),
      ('bitmapscan', 'k < 5 OR id < 50'), ('indexscan', 'u IS NULL AND k > 2'), ('indexscan', 's = ''same''')) x(shape, condition)
  LOOP
    h := digest('h', w.shape, w.condition);
    n := digest('n', w.shape, w.condition);
    IF h <> n THEN
      RAISE EXCEPTION 'step %: % where % finds % on heap, % on nvm', step, w.shape, w.condition, h, n;
    END IF;
  END LOOP;
  IF digest('hc', 'seqscan', 'true') <> digest('nc', 'seqscan', 'true')
     OR digest('hc', 'bitmapscan', 'p > 0') <> digest('nc', 'bitmapscan', 'p > 0') THEN
    RAISE EXCEPTION 'step %: the children differ', step;
  END IF;
  SET LOCAL enable_seqscan = off;
  IF (SELECT string_agg(id::text, ',') FROM (SELECT id FROM h WHERE id > 0 ORDER BY id DESC) x)
     IS DISTINCT FROM (SELECT string_agg(id::text, ',') FROM (SELECT id FROM n WHERE id > 0 ORDER BY id DESC) x) THEN
    RAISE EXCEPTION 'step %: index-only scans differ', step;
  END IF;
  SET LOCAL enable_seqscan = on;
END$$;
SQL

sub r { return int(rand($_[0])); }
sub id { return 1 + r(260); }
sub key { return r(20); }
sub uniq { my $u = r(400); return $u > 300 ? 'NULL' : $u; }
sub arr { return sprintf("'{%d,%d}'", r(7), r(11)); }

sub str
{
	my $x = r(100);
	return 'NULL'                    if $x < 5;
	return "'same'"                  if $x < 25;
	return "'s" . r(1000) . "'"      if $x < 80;
	return sprintf("repeat('ab', %d)", r(6000)) if $x < 88;
	return sprintf('big(%d, %d)', r(3000), r(9)) if $x < 95;
	return sprintf('big(%d, %d)', r(40000), r(9));
}

sub range { my $a = id(); return ($a, $a + r(15)); }

# May statements be made that lock the tables exclusively?
my $exclusive = 1;

# a random statement on %t or %c
sub statement
{
	my $x = r(100);
	my ($from, $to) = range();

	return sprintf('INSERT INTO %%t VALUES (%d, %d, %s, %s, %s)', id(), key(), uniq(), arr(), str())
	  if $x < 10;
	return sprintf('INSERT INTO %%t SELECT g, g %% 20, NULL, %s, %s FROM generate_series(%d, %d) g', arr(), str(), $from, $to)
	  if $x < 14;
	return sprintf('INSERT INTO %%t VALUES (%d, %d, %s, %s, %s) ON CONFLICT DO NOTHING RETURNING *', id(), key(), uniq(), arr(), str())
	  if $x < 20;
	return sprintf('INSERT INTO %%t AS o SELECT g, %d, NULL, %s, %s FROM generate_series(%d, %d) g ON CONFLICT (id) DO UPDATE SET k = o.k + excluded.k, s = excluded.s RETURNING *',
		key(), arr(), str(), $from, $to)
	  if $x < 25;
	return sprintf('UPDATE %%t SET s = %s WHERE id = %d RETURNING *', str(), id()) if $x < 35;
	return sprintf('UPDATE %%t SET k = %d WHERE id BETWEEN %d AND %d', key(), $from, $to) if $x < 41;
	return sprintf('UPDATE %%t SET a = %s, k = k + 1 WHERE k = %d RETURNING id, k', arr(), key()) if $x < 45;
	return sprintf('UPDATE %%t SET u = %s WHERE id = %d', uniq(), id()) if $x < 50;
	return sprintf('UPDATE %%t SET id = %d WHERE id = %d', id(), id()) if $x < 56;
	return sprintf('UPDATE %%t SET id = id + 1000 WHERE id = %d', id()) if $x < 58;
	return sprintf('UPDATE %%t x SET s = y.s FROM %%t y WHERE y.id = x.id + 1 AND x.k = %d', key()) if $x < 61;
	return 'UPDATE %t SET k = (k + 1) % 20' if $x < 62;
	return sprintf('DELETE FROM %%t WHERE id = %d RETURNING *', id()) if $x < 68;
	return sprintf('DELETE FROM %%t WHERE id BETWEEN %d AND %d', $from, $to) if $x < 71;
	return sprintf('DELETE FROM %%t WHERE k = %d AND id > 1000', key()) if $x < 73;
	return sprintf('SELECT id, k, length(s) FROM %%t WHERE k = %d FOR UPDATE', key()) if $x < 75;
	return sprintf('SELECT id FROM %%t WHERE id BETWEEN %d AND %d FOR KEY SHARE', $from, $to) if $x < 77;
	return sprintf('SELECT substr(s, 2000, 10), md5(s) FROM %%t WHERE id BETWEEN %d AND %d', $from, $to) if $x < 79;
	return sprintf('MERGE INTO %%t t USING (SELECT g AS id, %d AS k FROM generate_series(%d, %d) g) q ON q.id = t.id WHEN MATCHED AND t.k > 10 THEN DELETE WHEN MATCHED THEN UPDATE SET k = q.k WHEN NOT MATCHED THEN INSERT (id, k) VALUES (q.id, q.k)',
		key(), $from, $to)
	  if $x < 83;
	return sprintf('INSERT INTO %%c VALUES (%d, %d, %d)', r(300), id(), r(9)) if $x < 88;
	return sprintf('INSERT INTO %%c SELECT g, %d, g FROM generate_series(%d, %d) g ON CONFLICT (id) DO UPDATE SET p = excluded.p', id(), $from, $to)
	  if $x < 91;
	return sprintf('UPDATE %%c SET v = v + 1 WHERE id BETWEEN %d AND %d RETURNING *', $from, $to) if $x < 95;
	return sprintf('DELETE FROM %%c WHERE id = %d', r(300)) if $x < 98;
	return sprintf('SELECT count(*), sum(k) FROM %%t WHERE id > %d', id()) unless $exclusive;
	return 'TRUNCATE %c' if $x < 99 && r(4) == 0;
	return sprintf("ALTER TABLE %%t ADD COLUMN IF NOT EXISTS x%d int DEFAULT %d", r(3), r(9)) if r(8) == 0;
	return sprintf('ALTER TABLE %%t DROP COLUMN IF EXISTS x%d', r(3)) if r(6) == 0;
	return 'REINDEX TABLE %t' if r(6) == 0;
	return 'TRUNCATE %t CASCADE' if r(12) == 0;
	return sprintf('SELECT count(*), sum(k) FROM %%t WHERE id > %d', id());
}

# Maintenance, outside of a transaction.
sub maintenance
{
	my @what = ('VACUUM %', 'VACUUM %', 'VACUUM %', 'VACUUM ANALYZE %', 'VACUUM (FREEZE) %',
		'VACUUM (INDEX_CLEANUP off) %', 'ANALYZE %');
	push @what, 'VACUUM FULL %', 'VACUUM FULL %', 'REINDEX TABLE CONCURRENTLY %' if $exclusive;
	my $what = $what[ r(scalar @what) ];
	return join '', map { my $s = $what; $s =~ s/%/$_/; "$s;\n" } qw(h n hc nc);
}

# Statements from step $first on, a script for psql.  Each transaction notes
# the step it has reached, so that one knows what a crash may have taken.
my $step = 0;

sub script
{
	my ($n) = @_;
	my $sql = '';
	my $end = $step + $n;

	while ($step < $end)
	{
		my @savepoints;
		my $isolation = r(5) == 0 ? ' ISOLATION LEVEL REPEATABLE READ' : '';

		$sql .= maintenance() if r(10) == 0;
		$sql .= "BEGIN$isolation;\n";
		foreach (0 .. r(12))
		{
			my $x = r(20);
			$step++;
			if ($x < 3)
			{
				push @savepoints, "s$step";
				$sql .= "SAVEPOINT s$step;\n";
			}
			elsif ($x < 5 && @savepoints)
			{
				my $keep = r(scalar @savepoints);
				$sql .= "ROLLBACK TO $savepoints[$keep];\n";
				splice @savepoints, $keep + 1;
			}
			elsif ($x < 6 && @savepoints)
			{
				my $keep = r(scalar @savepoints);
				$sql .= "RELEASE $savepoints[$keep];\n";
				splice @savepoints, $keep;
			}
			my $statement = statement();
			$sql .= "SELECT twice($step, \$q\$$statement\$q\$);\n";
			$sql .= "SELECT compare($step);\n" if r(4) == 0;
		}
		$sql .= "UPDATE done SET n = $step;\nSELECT compare($step);\n";
		$sql .= r(4) == 0 ? "ROLLBACK;\n" : "COMMIT;\n";
		$sql .= "SELECT compare($step);\n";
	}
	return $sql;
}

# An old snapshot: what it saw at first, it must see at last.
sub watcher
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT compare(0)');
	my $saw = $session->query_safe("SELECT digest('n', 'seqscan', 'true')");
	return [ $session, $saw ];
}

# Wait until the client has committed step $until, or has ended: the transactions
# from that step on may all be rolled back.
sub wait_step
{
	my ($until, $load) = @_;

	while ($node->safe_psql('postgres', "SELECT n < $until FROM done") eq 't')
	{
		my %last = $load->acknowledged;
		last if $last{1} > 0 || $load->errors ne '';
		usleep(10_000);
	}
	return;
}

my $failed = 0;
foreach my $round (1 .. $rounds)
{
	my $crash   = $round % 3 == 0;
	my $watcher;
	my $first   = $step;

	# who holds an old snapshot holds locks, too
	$exclusive = $round % 3 != 1;
	$watcher = watcher() unless $exclusive;
	my $sql = script(int($steps / $rounds));

	if ($crash)
	{
		# in the middle of the script
		my $load = $node->start_load(clients => 1, transactions => 1, sql => sub { return $sql; });
		my $until = $first + 1 + r($step - $first);
		wait_step($until, $load) if r(4) > 0;
		my $errors = $load->errors;
		$node->crash;
		$load->finish;
		is($errors, '', "round $round: no difference before the crash");
		$failed = 1 if $errors ne '';
		$node->start;
	}
	else
	{
		my ($ret, $out, $err) = $node->psql('postgres', $sql, on_error_stop => 1);
		is($ret, 0, "round $round: the same on heap and nvm") or diag("seed $seed: $err");
		$failed = 1 if $ret != 0;
	}
	if ($watcher)
	{
		foreach my $scan (qw(seqscan indexscan bitmapscan))
		{
			is($watcher->[0]->query("SELECT digest('n', '$scan', 'id > -2147483648')"),
				$watcher->[1], "round $round: an old snapshot, $scan");
		}
		$watcher->[0]->query('SELECT compare(0); COMMIT');
		$watcher->[0]->quit;
	}
	my ($ret, $out, $err) = $node->psql('postgres', "SELECT compare($step)", on_error_stop => 1);
	is($ret, 0, "round $round: the tables agree" . ($crash ? ' after the crash' : ''))
	  or diag("seed $seed: $err");
	$failed = 1 if $ret != 0;
	$node->check_clean("round $round");
	last if $failed;
}
diag("failed with seed $seed: NVM_SEED=$seed NVM_STEPS=$steps") if $failed;

$node->stop;
done_testing();

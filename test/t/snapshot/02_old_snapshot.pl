# Copyright (c) 2026, pg_nvm contributors

# What old snapshots see while the versions between them and now are unlinked
# and their cells are used again: readers of every kind, isolation level and
# access path look at the same rows again and again, while others update,
# delete and insert them.
#
# Long form: for 90 seconds, here 6, and ten times the updates afterwards.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows    = 300;
my $long    = NvmTest::is_long();
my $seconds = $long ? 90 : 6;

my $node = NvmTest->start_new('old_snapshot', conf => <<CONF, sql => <<SQL);
autovacuum_naptime = 1s
max_connections = 60
max_prepared_transactions = 10
CONF
CREATE TABLE acc (id int PRIMARY KEY, v int, k int, pad text) USING nvm
	WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 50);
CREATE INDEX acc_k ON acc (k);
INSERT INTO acc SELECT i, 0, i, repeat('x', abs(i) % 200) FROM generate_series(-12, $rows) i WHERE i <> 0;
CREATE TABLE ref (id int PRIMARY KEY, acc int REFERENCES acc) USING nvm;
CREATE TABLE hist (at int, id int) USING nvm;

-- all rows, by one access path
CREATE FUNCTION look(path text) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE r text; q text := 'SELECT md5(string_agg(id || '':'' || v || '':'' || k || '':'' || xmin || '':'' || md5(pad), '','' ORDER BY id)) || sum(v) FROM ';
BEGIN
	PERFORM set_config('enable_' || p, CASE WHEN p = path THEN 'on' ELSE 'off' END, true)
	FROM unnest('{seqscan,indexscan,bitmapscan,tidscan}'::text[]) p;
	PERFORM set_config('enable_sort', 'on', true);
	EXECUTE q || CASE path
		WHEN 'seqscan' THEN 'acc'
		WHEN 'indexscan' THEN 'acc WHERE id > -1000'
		WHEN 'bitmapscan' THEN 'acc WHERE k > -1000'
		WHEN 'tidscan' THEN 'acc WHERE ctid >= ''(0,0)'''
		WHEN 'sample' THEN 'acc TABLESAMPLE BERNOULLI (100)'
		WHEN 'nest' THEN 'generate_series(-12, $rows) g CROSS JOIN LATERAL (SELECT *, xmin FROM acc WHERE id = g OFFSET 0) a'
	END INTO r;
	RETURN r;
END \$\$;

CREATE FUNCTION stays(n int, pause float) RETURNS int LANGUAGE plpgsql AS \$\$
DECLARE
	paths text[] := '{seqscan,indexscan,bitmapscan,tidscan,sample,nest}';
	first text := look('seqscan');
	again text;
BEGIN
	FOR i IN 1..n LOOP
		again := look(paths[1 + i % 6]);
		IF again <> first THEN
			RAISE EXCEPTION 'by % at %: % became %', paths[1 + i % 6], i, first, again;
		END IF;
		PERFORM pg_sleep(pause);
	END LOOP;
	IF first !~ '0\$' OR length(first) <> 33 THEN
		RAISE EXCEPTION 'sum is %', first;
	END IF;
	RETURN n;
END \$\$;
SQL

my %script = (
	# what one row gains another loses
	'move' => [ 40, <<SQL ],
\\set a random(1, $rows - 1)
\\set b random(:a + 1, $rows)
BEGIN;
UPDATE acc SET v = v + 1, pad = repeat('y', :a) WHERE id = :a;
UPDATE acc SET v = v - 1 WHERE id = :b;
COMMIT;
SQL
	'twice' => [ 10, <<SQL ],
\\set a random(1, $rows)
BEGIN;
UPDATE acc SET v = v + 5 WHERE id = :a;
SAVEPOINT s;
UPDATE acc SET v = v + 100 WHERE id = :a;
ROLLBACK TO s;
UPDATE acc SET v = v - 5 WHERE id = :a;
COMMIT;
SQL
	'key' => [ 5, <<SQL ],
\\set a random(1, $rows)
UPDATE acc SET k = k + 1 WHERE id = :a;
SQL
	# rows of its own: who waits for one that is deleted does not change the new one
	'replace' => [ 5, <<SQL ],
BEGIN;
SELECT id AS a, v AS v, k AS k FROM acc WHERE id = -1 - :client_id FOR UPDATE \\gset
DELETE FROM acc WHERE id = :a;
INSERT INTO acc VALUES (:a, :v, :k, 'new');
COMMIT;
SQL
	'abort' => [ 5, <<SQL ],
\\set a random(1, $rows)
BEGIN;
UPDATE acc SET v = v + 1000 WHERE id = :a;
ROLLBACK;
SQL
	# REPEATABLE READ, published
	'old' => [ 2, <<SQL ],
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT stays(12, 0.03);
COMMIT;
SQL
	'old cursor' => [ 2, <<SQL ],
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET LOCAL enable_seqscan = off;
SET LOCAL cursor_tuple_fraction = 1;
SELECT sum(v) AS s0 FROM acc \\gset
DECLARE c CURSOR FOR SELECT v FROM acc ORDER BY id;
DECLARE d SCROLL CURSOR FOR SELECT sum(v) OVER (ORDER BY id) AS s, id FROM acc;
FETCH 100 FROM c;
SELECT pg_sleep(0.1);
FETCH 100 FROM d;
SELECT stays(3, 0.02);
FETCH ALL FROM c;
FETCH LAST FROM d;
SELECT 1 / CASE WHEN :s0 = 0 THEN 1 ELSE 0 END;
COMMIT;
SQL
	# not published: serializable, and READ COMMITTED with a cursor
	'serial' => [ 1, <<SQL ],
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT stays(4, 0.02);
COMMIT;
SQL
	'cursor' => [ 1, <<SQL ],
BEGIN;
DECLARE c CURSOR FOR SELECT sum(v) FROM (SELECT v, pg_sleep(0.001) FROM acc) s;
UPDATE hist SET id = id;
SELECT pg_sleep(0.05);
FETCH ALL FROM c;
COMMIT;
SQL
	# published, then a reader of another kind, or a writer
	'other' => [ 2, <<SQL ],
\\set a random(1, $rows)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT stays(3, 0.05);
SELECT 1 / (count(*) = 0)::int FROM nvm.check('acc');
SELECT stays(3, 0.02);
INSERT INTO hist VALUES (1, :a);
SELECT stays(3, 0.02);
ANALYZE acc;
SELECT stays(2, 0.02);
COMMIT;
SQL
	'refer' => [ 2, <<SQL ],
\\set a random(1, $rows)
\\set r random(1, 1000000000)
BEGIN;
INSERT INTO ref VALUES (:r, :a) ON CONFLICT DO NOTHING;
DELETE FROM ref WHERE id = :r;
COMMIT;
SQL
);

my @files;
foreach my $name (sort keys %script)
{
	my ($weight, $sql) = @{ $script{$name} };
	my $file = "$PostgreSQL::Test::Utils::tmp_check/old_$name.sql";
	$file =~ s/ (?=[^\/]*$)/_/g;
	append_to_file($file, $sql);
	push @files, '-f', "$file\@$weight";
}

# One snapshot is held all the time.
my $old = $node->session;
$old->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
my $before = $old->sql("SELECT look('seqscan')");

my ($out, $err) = ('', '');
my $ok = IPC::Run::run(
	[ 'pgbench', '-n', '-c', 12, '-j', 2, '-T', $seconds, '--max-tries=100', @files, $node->connstr('postgres') ],
	'<', \undef, '>', \$out, '2>', \$err);
ok($ok, 'pgbench with old snapshots') or diag($err);
unlike($err, qr/aborted|ERROR/, 'no snapshot saw anything change') or diag($err);
note($out);

is($old->sql("SELECT look('$_')"), $before, "the oldest snapshot, by $_")
  foreach qw(seqscan indexscan bitmapscan tidscan sample nest);
is($node->safe_psql('postgres', "SELECT sum(v), count(*) FROM acc"), '0|' . ($rows + 12), 'the newest');
is($node->safe_psql('postgres', "SELECT * FROM nvm.check('acc')"), '', 'no fault found');

# An old snapshot that somebody else imports sees the same.
my $id  = $old->sql('SELECT pg_export_snapshot()');
my $new = $node->session;
$new->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
$new->sql("SET TRANSACTION SNAPSHOT '$id'");
is($new->sql("SELECT look('nest')"), $before, 'imported');
$old->sql('COMMIT');
my $work = 'DO $$ BEGIN FOR i IN 1..600 LOOP UPDATE acc SET v = v + 1 WHERE id % 5 = 0; UPDATE acc SET v = v - 1 WHERE id % 5 = 0; COMMIT; END LOOP; END $$';
$node->safe_psql('postgres', $work) foreach 1 .. ($long ? 10 : 1);
is($new->sql("SELECT look('indexscan')"), $before, 'imported, after the one it came from has ended');
is($new->sql("SELECT look('seqscan')"), $before, 'and by a sequential scan');
$new->sql('COMMIT');

# The same with a parallel plan, whose workers import it
my $leader = $node->session($NvmTest::force_parallel, 'SET parallel_setup_cost = 0', 'SET parallel_tuple_cost = 0',
	'SET min_parallel_table_scan_size = 0', 'BEGIN ISOLATION LEVEL REPEATABLE READ');
my $sum = $leader->sql('SELECT sum(hashint4(v) / 1000), count(*) FROM acc');
$node->safe_psql('postgres', $work);
is($leader->sql('SELECT sum(hashint4(v) / 1000), count(*) FROM acc'), $sum, 'parallel workers');
$leader->sql('COMMIT');

is($node->safe_psql('postgres', "SELECT * FROM nvm.check('acc')"), '', 'no fault found at the end');
$node->stop;
done_testing();

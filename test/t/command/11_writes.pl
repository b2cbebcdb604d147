# Copyright (c) 2026, pg_nvm contributors

# Who writes rows of nvm_cmdlog tables takes their lanes first (src/am/cmdlog.c), in the
# modes of src/command/README.md: by INSERT, UPDATE within a lane and from one to another,
# DELETE, COPY, ON CONFLICT, MERGE, FOR UPDATE, a trigger, a cascade of a foreign key.  Shared tables
# take lane 0.  The lane comes before the row: what has changed while it was waited for
# is seen.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('writes', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_worker_processes = 8
deadlock_timeout = 100ms
max_prepared_transactions = 5
CONF
CREATE TABLE stock (w int, i int, n int NOT NULL, s text, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE lines (w int, i int, no int, PRIMARY KEY (w, i, no),
	FOREIGN KEY (w, i) REFERENCES stock ON DELETE CASCADE ON UPDATE CASCADE) USING nvm_cmdlog;
CREATE TABLE named (name text NOT NULL, v int, PRIMARY KEY (name)) USING nvm_cmdlog;
CREATE TABLE long (name text NOT NULL, v int) USING nvm_cmdlog;
CREATE TABLE item (id int PRIMARY KEY, v int) USING nvm_cmdlog;
CREATE TABLE plain (w int PRIMARY KEY, v int) USING nvm_vlog;
CREATE UNLOGGED TABLE unlogged (w int NOT NULL, v int) USING nvm_cmdlog;
ALTER TABLE long ALTER name SET STORAGE EXTERNAL;
SELECT nvm.partition_table(t, c) FROM (VALUES ('stock', 'w'), ('lines', 'w'), ('named', 'name'), ('long', 'name'), ('unlogged', 'w')) x(t, c);
INSERT INTO stock SELECT w, i, 10, 's' FROM generate_series(1, 50) w, generate_series(1, 5) i;
INSERT INTO lines SELECT w, 1, no FROM generate_series(1, 9) w, generate_series(1, 3) no;
INSERT INTO named VALUES ('one', 1), ('two', 2);
INSERT INTO item SELECT i, 0 FROM generate_series(1, 10) i;
INSERT INTO plain VALUES (1, 1);

-- the lane of a value, as nvm_lane_of has it
CREATE FUNCTION lane(hash int) RETURNS bigint LANGUAGE sql IMMUTABLE AS
\$\$SELECT 1 + (hash::bigint & 4294967295) % 65535\$\$;
-- locks of this session: warehouses by their number, and what stands for all
CREATE VIEW mine AS
	SELECT coalesce(string_agg(what || CASE WHEN mode = usual THEN '' ELSE ' ' || mode END, ', ' ORDER BY place, what COLLATE "C", mode COLLATE "C"), '') AS locks FROM (
		SELECT CASE relation::regclass::text WHEN 'nvm.lanes' THEN 'shared' ELSE 'root' END AS what, mode, 0 AS place,
			CASE relation::regclass::text WHEN 'nvm.lanes' THEN 'ShareLock' ELSE 'RowShareLock' END AS usual
		FROM pg_locks WHERE pid = pg_backend_pid() AND relation IN ('nvm.lanes'::regclass, 'nvm.commands'::regclass)
	UNION ALL
		SELECT coalesce((SELECT to_char(w, 'FM00') FROM generate_series(1, 99) w WHERE lane(hashint4(w)) = objid),
			(SELECT left(v, 5) FROM unnest(ARRAY['one', 'two', 'three', repeat('long', 1000), repeat('wide', 50000), repeat('vast', 1000000)]) v WHERE lane(hashtext(v)) = objid), '?'), mode, 1, 'RowExclusiveLock'
		FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory' AND objsubid = 19798) x;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

# What a transaction of these statements holds at its end
sub takes
{
	my ($sql, $want, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my @out = split /\n/, sql("BEGIN;\n$sql;\nSELECT 'locks: ' || locks FROM mine;\nROLLBACK");
	my ($locks) = map { /^locks: (.*)/ ? $1 : () } @out;
	is($locks, $want, $name);
	return;
}

is(sql('SELECT lane(hashint4(7)) BETWEEN 1 AND 65535'), 't', 'lanes are numbers');
is(sql('SELECT count(DISTINCT lane(hashint4(w))) FROM generate_series(1, 99) w'), 99, 'each warehouse has one of its own');

# ---- each way to write a row

takes('SELECT * FROM stock', '', 'SELECT takes nothing');
takes('SELECT * FROM stock WHERE w = 3 FOR KEY SHARE', '', 'nor does FOR KEY SHARE');
takes('SELECT * FROM stock WHERE w = 3 FOR NO KEY UPDATE', 'root, 03', 'FOR NO KEY UPDATE does');
takes('SELECT * FROM stock WHERE w = 3 FOR UPDATE', 'root, 03', 'FOR UPDATE does');
takes('SELECT * FROM stock WHERE w = 3 FOR UPDATE SKIP LOCKED', '', 'not with SKIP LOCKED');
takes('SELECT * FROM item FOR UPDATE', '', 'nor of a shared table');
takes('INSERT INTO stock VALUES (3, 6, 1)', 'root, 03', 'INSERT');
takes('INSERT INTO stock VALUES (3, 6, 1), (5, 6, 1), (3, 7, 1)', 'root, 03, 05', 'INSERT of several');
takes('INSERT INTO stock SELECT w + 50, 1, 1 FROM generate_series(1, 4) w', 'root, 51, 52, 53, 54', 'INSERT ... SELECT');
takes('UPDATE stock SET n = 0 WHERE w = 3', 'root, 03', 'UPDATE in a lane');
takes('UPDATE stock SET w = 60 WHERE w = 13 AND i = 1', 'root, 13, 60', 'UPDATE to another lane');
takes('UPDATE stock SET n = 0 WHERE i = 1 AND w BETWEEN 3 AND 6', 'root, 03, 04, 05, 06', 'UPDATE of several');
takes('UPDATE stock SET n = 0 WHERE w = 99', '', 'UPDATE of none');
takes('DELETE FROM stock WHERE w = 13', 'root, 13', 'DELETE');
takes("COPY stock FROM PROGRAM 'printf \"3\\\\t8\\\\t1\\\\t\\\\n4\\\\t8\\\\t1\\\\t\\\\n\"'", 'root, 03, 04', 'COPY');
takes('INSERT INTO stock VALUES (13, 1, 1) ON CONFLICT DO NOTHING', '', 'ON CONFLICT DO NOTHING, a conflict');
takes('INSERT INTO stock VALUES (3, 6, 1) ON CONFLICT DO NOTHING', 'root, 03', 'ON CONFLICT DO NOTHING, none');
takes('INSERT INTO stock VALUES (13, 1, 1) ON CONFLICT (w, i) DO UPDATE SET n = excluded.n', 'root, 13', 'ON CONFLICT DO UPDATE');
takes('INSERT INTO stock VALUES (13, 1, 1) ON CONFLICT (w, i) DO UPDATE SET w = 60', 'root, 13, 60', 'ON CONFLICT DO UPDATE to another lane');
takes('MERGE INTO stock s USING (VALUES (13, 1), (60, 1), (14, 1)) v(w, i) ON s.w = v.w AND s.i = v.i WHEN MATCHED AND s.w = 14 THEN DELETE WHEN MATCHED THEN UPDATE SET n = 0 WHEN NOT MATCHED THEN INSERT VALUES (v.w, v.i, 0)',
	'root, 13, 14, 60', 'MERGE');
takes('DELETE FROM stock WHERE w = 3 AND i = 1', 'root, 03', 'DELETE with a cascade in the lane');
takes('UPDATE stock SET w = 60 WHERE w = 3 AND i = 1; DELETE FROM lines WHERE w = 4', 'root, 03, 04, 60', 'UPDATE with a cascade to another lane');
takes('DELETE FROM lines WHERE w = 4', 'root, 04', 'of a child alone');
takes('SAVEPOINT s; UPDATE stock SET n = 0 WHERE w = 3; ROLLBACK TO s; UPDATE stock SET n = 0 WHERE w = 4', 'root, 04', 'a savepoint that is rolled back gives its lanes back');
takes('SAVEPOINT s; UPDATE stock SET n = 0 WHERE w = 3; RELEASE s', 'root, 03', 'one that is released does not');
takes(q{INSERT INTO named VALUES ('three', 3)}, 'root, three', 'a lane of text');
takes(q{UPDATE named SET name = 'three' WHERE name = 'two'}, 'root, three, two', 'from one to another');
takes(q{UPDATE item SET v = 1 WHERE id = 1}, 'shared', 'a shared table');
takes(q{UPDATE item SET v = 1 WHERE id = 1; UPDATE stock SET n = 0 WHERE w = 3}, 'root, shared, 03', 'both');
takes(q{UPDATE plain SET v = 1}, '', 'a table of nvm_vlog');
takes(q{INSERT INTO unlogged VALUES (1, 1)}, '', 'an UNLOGGED one');
takes(q{CREATE TEMP TABLE tmp (w int) USING nvm_cmdlog; INSERT INTO tmp VALUES (1)}, '', 'a temporary one');
takes(q{CREATE TABLE made (w int) USING nvm_cmdlog; INSERT INTO made VALUES (1)}, '', 'one that is new');
takes(q{ALTER TABLE stock ALTER n TYPE bigint}, '', 'a rewrite');
takes(q{TRUNCATE stock CASCADE; INSERT INTO stock VALUES (3, 1, 1)}, 'root, 03', 'one that was emptied');

# values within the row, outside of it, and in several pieces
foreach my $kind ([ 'long', 1000 ], [ 'wide', 50000 ], [ 'vast', 1000000 ])
{
	my ($text, $n) = @$kind;
	my $lane = 'root, ' . $text . substr($text, 0, 1);
	takes("INSERT INTO long VALUES (repeat('$text', $n), 4)", $lane, "INSERT of a $text text");
	sql("INSERT INTO long SELECT repeat('$text', $n), 4");
	takes('UPDATE long SET v = 5 WHERE v = 4', $lane, "UPDATE of a $text text");
	takes('DELETE FROM long WHERE v = 4', $lane, "DELETE of a $text text");
	takes(q{UPDATE long SET name = 'one' WHERE v = 4}, join(', ', 'root', sort('one', $text . substr($text, 0, 1))), "UPDATE of a $text text to a short one");
	sql('DELETE FROM long');
}

# a column that came later, with a default that no row has
sql('CREATE TABLE late (id int) USING nvm_cmdlog; INSERT INTO late VALUES (1); ALTER TABLE late ADD w int NOT NULL DEFAULT 13');
sql(q{SELECT nvm.partition_table('late', 'w')});
takes('UPDATE late SET id = 2', 'root, 13', 'a column that the row does not have');

# triggers that change the row before it is written
sql(<<'SQL');
CREATE FUNCTION move() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN NEW.w := NEW.w + 10; RETURN NEW; END$$;
CREATE TABLE moved (w int PRIMARY KEY, v int) USING nvm_cmdlog;
SELECT nvm.partition_table('moved', 'w');
INSERT INTO moved VALUES (1, 0);
CREATE TRIGGER move BEFORE INSERT OR UPDATE ON moved FOR EACH ROW EXECUTE FUNCTION move();
SQL
takes('INSERT INTO moved VALUES (5, 0)', 'root, 15', 'a BEFORE trigger has the last word');
takes('UPDATE moved SET v = 1', 'root, 01, 11', 'of an UPDATE, too');

# of a table that is partitioned by PostgreSQL
sql(<<'SQL');
CREATE TABLE parts (w int, v int, PRIMARY KEY (w)) PARTITION BY RANGE (w);
CREATE TABLE parts1 PARTITION OF parts FOR VALUES FROM (0) TO (10) USING nvm_cmdlog;
CREATE TABLE parts2 PARTITION OF parts FOR VALUES FROM (10) TO (99) USING nvm_cmdlog;
SELECT nvm.partition_table('parts1', 'w');
SELECT nvm.partition_table('parts2', 'w');
INSERT INTO parts SELECT w, 0 FROM generate_series(1, 20) w;
SQL
takes('UPDATE parts SET w = 25 WHERE w = 5', 'root, 05, 25', 'a row that moves to another partition');
takes('INSERT INTO parts VALUES (30, 1), (0, 1) ON CONFLICT DO NOTHING', 'root, 30, ?', 'rows that are routed');

# many lanes: the root stands for all
takes('UPDATE stock SET n = 0 WHERE i = 2 AND w <= 32', 'root, ' . join(', ', map { sprintf '%02d', $_ } 1 .. 32), '32 lanes');
like(sql('BEGIN; UPDATE stock SET n = 0 WHERE i = 2; SELECT locks FROM mine; ROLLBACK'), qr/^root, root ShareLock, (?:\d\d, ){31}\d\d$/, 'from the 33rd on all of them');

# logged, and there after a restart, as of any method
my $sum = 'SELECT count(*), sum(w), sum(n) FROM stock';
sql('UPDATE stock SET n = n + w; UPDATE stock SET w = w + 100 WHERE w > 40 AND i = 3; DELETE FROM stock WHERE w = 20');
my $want = sql($sum);
$node->crash;
$node->start;
is(sql($sum), $want, 'all of it comes back');

# ---- two sessions

my ($one, $two) = ($node->session, $node->session);
sub waits
{
	my ($pid) = @_;
	return $node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_locks WHERE pid = $pid AND NOT granted");
}
# writers do not wait for each other's lanes
$one->sql('BEGIN');
$one->sql('UPDATE stock SET n = 1 WHERE w = 3 AND i = 1');
is($two->sql('UPDATE stock SET n = 2 WHERE w = 3 AND i = 2 RETURNING n'), 2, 'another row of the lane is free');
$one->sql('COMMIT');

# a lane that is held as a call holds it
my $hold = 'SELECT pg_advisory_xact_lock(1)';
sql(<<'SQL');
CREATE FUNCTION hold(w int) RETURNS void LANGUAGE plpgsql AS
$$BEGIN PERFORM 1 FROM stock s WHERE s.w = hold.w; END$$;
CREATE FUNCTION change(w int, i int, k int) RETURNS void LANGUAGE plpgsql AS
$$BEGIN UPDATE stock s SET n = k WHERE s.w = change.w AND s.i = change.i; END$$;
SELECT nvm.register_command('hold(int)', lanes => '{w}');
SELECT nvm.register_command('change(int,int,int)', lanes => '{w}');
SQL
foreach my $case (
	[ 'UPDATE', 'UPDATE stock SET n = n + 1 WHERE w = 3 AND i = 1 RETURNING n', '101', 'advisory' ],
	[ 'FOR UPDATE', 'SELECT n FROM stock WHERE w = 3 AND i = 1 FOR UPDATE', '100', 'advisory' ],
	[ 'DELETE', 'DELETE FROM stock WHERE w = 3 AND i = 1 RETURNING n', '100', 'advisory' ],
	# its look at the index waits for the transaction, before there is a row to write
	[ 'ON CONFLICT', 'INSERT INTO stock VALUES (3, 1, 0) ON CONFLICT (w, i) DO UPDATE SET n = stock.n + 1 RETURNING n', '101', 'transactionid' ])
{
	my ($name, $sql, $answer, $lock) = @$case;
	sql('INSERT INTO stock VALUES (3, 1, 0) ON CONFLICT (w, i) DO UPDATE SET n = 0');
	$one->sql('BEGIN');
	$one->sql('SELECT change(3, 1, 100)');
	$two->send($sql);
	ok(waits($two->pid), "$name waits");
	is(sql('SELECT locktype FROM pg_locks WHERE NOT granted'), $lock, "$name: for the lane") if $lock eq 'advisory';
	$one->sql('COMMIT');
	is($two->sql('SELECT 1'), "$answer\n1", "$name sees what has changed meanwhile");
}
# a row that is locked to be written: no deadlock with a call that wants it
$one->sql('BEGIN');
$one->sql('SELECT 1 FROM stock WHERE w = 3 AND i = 1 FOR UPDATE');
$two->send('SELECT change(3, 1, 7)');
ok(waits($two->pid), 'a call waits for who has locked a row');
is($one->sql('UPDATE stock SET n = 8 WHERE w = 3 AND i = 1 RETURNING n'), 8, 'who goes on, and writes it');
$one->sql('COMMIT');
$two->sql('SELECT 1');
is(sql('SELECT n FROM stock WHERE w = 3 AND i = 1'), 7, 'the call came after it');
$one->sql('BEGIN');
$one->sql('SELECT hold(3)');
is($two->sql('UPDATE stock SET n = 5 WHERE w = 4 AND i = 1 RETURNING n'), 5, 'another lane is free');
$two->send('INSERT INTO item VALUES (11, 0)');
ok(waits($two->pid), 'a shared table waits for each call');
$one->sql('COMMIT');
$two->sql('SELECT 1');
$_->drop foreach $one, $two;
$node->check_clean('the end');
$node->stop;

done_testing();

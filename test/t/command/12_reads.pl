# Copyright (c) 2026, pg_nvm contributors

# What a call reads and writes of partitioned tables is judged where it happens
# (src/am/cmdlog.c, src/btree/btree_pin.c): scans of nvm_btree indexes by the values that
# their conditions have at that moment, all others never within lanes; rows by the lanes
# that they are of.  Queries that are planned in a call get scans within lanes where there
# are any, however small the table is (src/am/plan_pin.c).

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('reads', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_worker_processes = 8
CONF
CREATE TABLE district (w int, d int, n int NOT NULL, PRIMARY KEY (w, d)) USING nvm_cmdlog;
CREATE TABLE orders (w int, d int, o bigint, v int, PRIMARY KEY (w, d, o), FOREIGN KEY (w, d) REFERENCES district ON DELETE CASCADE) USING nvm_cmdlog;
CREATE INDEX orders_v ON orders (v);
CREATE TABLE remote (w int, id int, from_w int NOT NULL, from_d int NOT NULL, PRIMARY KEY (w, id), FOREIGN KEY (from_w, from_d) REFERENCES district) USING nvm_cmdlog;
CREATE TABLE hashed (w int NOT NULL, v int) USING nvm_cmdlog;
CREATE INDEX hashed_w ON hashed USING hash (w);
CREATE TABLE dated (day date PRIMARY KEY, v int) USING nvm_cmdlog;
CREATE TABLE named (name varchar(20), v int, PRIMARY KEY (name)) USING nvm_cmdlog;
CREATE INDEX named_pattern ON named (name varchar_pattern_ops, v);
CREATE TABLE item (id int PRIMARY KEY, v int) USING nvm_cmdlog;
CREATE TABLE plain (w int PRIMARY KEY, v int) USING nvm_vlog;
CREATE UNLOGGED TABLE unlogged (w int PRIMARY KEY, v int) USING nvm_cmdlog;
SELECT nvm.partition_table(t, c) FROM (VALUES ('district', 'w'), ('orders', 'w'), ('remote', 'w'), ('hashed', 'w'), ('dated', 'day'), ('named', 'name')) x(t, c);
INSERT INTO district SELECT 1 + i / 10, 1 + i % 10, 0 FROM generate_series(0, 39) i;
INSERT INTO orders SELECT w, d, o, o FROM district, generate_series(1, 5) o;
INSERT INTO hashed SELECT i % 5, i FROM generate_series(1, 100) i;
INSERT INTO dated SELECT date '2026-01-01' + i, i FROM generate_series(0, 9) i;
INSERT INTO named VALUES ('one', 1), ('two', 2);
INSERT INTO item SELECT i, 0 FROM generate_series(1, 10) i;
INSERT INTO plain VALUES (3, 1);
INSERT INTO unlogged VALUES (3, 1);
VACUUM ANALYZE;

-- a call that executes a statement, and writes a row of its lane
CREATE FUNCTION try(w int, q text) RETURNS void LANGUAGE plpgsql AS
\$\$BEGIN EXECUTE q; UPDATE district x SET n = n + 1 WHERE x.w = try.w AND x.d = 1; END\$\$;
CREATE FUNCTION try_all(q text) RETURNS void LANGUAGE plpgsql AS
\$\$BEGIN EXECUTE q; UPDATE district x SET n = n + 1 WHERE x.w = 3 AND x.d = 1; END\$\$;
CREATE FUNCTION try_day(day date, q text) RETURNS void LANGUAGE plpgsql AS
\$\$BEGIN EXECUTE q; UPDATE dated x SET v = v + 1 WHERE x.day = try_day.day; END\$\$;
CREATE FUNCTION try_name(name text, q text) RETURNS void LANGUAGE plpgsql AS
\$\$BEGIN EXECUTE q; UPDATE named x SET v = v + 1 WHERE x.name = try_name.name; END\$\$;
CREATE FUNCTION plan(w int, q text) RETURNS SETOF text LANGUAGE plpgsql AS
\$\$BEGIN RETURN QUERY EXECUTE 'EXPLAIN (COSTS off) ' || q USING w; END\$\$;
CREATE FUNCTION plan_outside(w int, q text) RETURNS SETOF text LANGUAGE plpgsql AS
\$\$BEGIN RETURN QUERY EXECUTE 'EXPLAIN (COSTS off) ' || q USING w; END\$\$;
SELECT nvm.register_command('try(int,text)', lanes => '{w}');
SELECT nvm.register_command('try_all(text)', lanes => 'all');
SELECT nvm.register_command('try_day(date,text)', lanes => '{day}');
SELECT nvm.register_command('try_name(text,text)', lanes => '{name}');
SELECT nvm.register_command('plan(int,text)', lanes => '{w}');
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

my ($unpinned, $lane, $shared, $read, $written) =
  ('scan not within held lanes', 'lane not held', 'shared table written', 'other table read', 'other table written');

# What is said of a call that executes this
sub judged
{
	my ($call, $q, $want, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$call =~ s/\?/\$q\$$q\$q\$/;
	my $got = sql("SELECT nvm.reset_commands(); SELECT $call; SELECT replayable || ' ' || by_values || ' ' || reasons FROM nvm.commands WHERE calls > 0");
	$got =~ s/^\n+//;
	is($got, $want eq '' ? '1 0 {}' : qq(0 1 {"$want": 1}), $name // $q);
	return;
}
sub try { my ($q, $want, $name) = @_; local $Test::Builder::Level = $Test::Builder::Level + 1; return judged('try(3, ?)', $q, $want, $name); }

# ---- one value, several, none

try('SELECT FROM district WHERE w = 3', '');
try('SELECT FROM district WHERE w = 3 AND d = 2', '');
try('SELECT FROM district WHERE (w, d) = (3, 2)', '');
try('SELECT FROM district WHERE w = 3 AND (w, d) > (3, 2)', '');
try('SELECT FROM district WHERE w = 4', $unpinned);
try('SELECT FROM district WHERE w = 4 AND d = 2', $unpinned);
try('SELECT FROM district WHERE w = 99', $unpinned, 'where no row is');
try('SELECT FROM district', $unpinned);
try('SELECT FROM district WHERE d = 2', $unpinned);
try('SELECT FROM district WHERE w BETWEEN 3 AND 3', $unpinned);
try('SELECT FROM district WHERE (w, d) >= (3, 1) AND (w, d) <= (3, 9)', $unpinned);
try('SELECT FROM district WHERE w <> 4', $unpinned);
try('SELECT FROM district WHERE w + 0 = 3', $unpinned, 'a condition that no index has');
try('SELECT FROM district WHERE w IN (3)', '');
try(q{SELECT FROM district WHERE w = ANY ('{3}')}, '');
try(q{SELECT FROM district WHERE w = ANY ('{3,3,NULL}')}, '');
try(q{SELECT FROM district WHERE w = ANY ('{3,4}')}, $unpinned);
try(q{SELECT FROM district WHERE w = ANY ('{}')}, '');
try(q{SELECT FROM district WHERE w > ANY ('{3}')}, $unpinned);
try('SELECT FROM district WHERE w = 3 OR w = 4', $unpinned);
try('SELECT FROM district WHERE w = 3 AND d = 1 OR w = 3 AND d = 2', '', 'OR within the lane');
try('SELECT FROM orders WHERE v = 2', $unpinned, 'by an index that does not have the column');
try('SELECT FROM orders WHERE w = 3 AND v = 2', '', 'where another index would do, too');

# ---- types

try('SELECT FROM district WHERE w = 3::bigint', '');
try('SELECT FROM district WHERE w = 4::bigint', $unpinned);
try('SELECT FROM district WHERE w = 3::smallint', '');
try('SELECT FROM district WHERE w = 3::numeric', $unpinned);
judged(q{try_day('2026-01-03', ?)}, q{SELECT FROM dated WHERE day = date '2026-01-03'}, '');
judged(q{try_day('2026-01-03', ?)}, q{SELECT FROM dated WHERE day = date '2026-01-04'}, $unpinned);
# equal, and of another hash
judged(q{try_day('2026-01-03', ?)}, q{SELECT FROM dated WHERE day = timestamp '2026-01-03'}, $unpinned);
judged(q{try_name('one', ?)}, q{SELECT FROM named WHERE name = 'one'}, '');
judged(q{try_name('one', ?)}, q{SELECT FROM named WHERE name = 'one' AND v = 1}, '');
judged(q{try_name('one', ?)}, q{SELECT FROM named WHERE name = 'two'}, $unpinned);
judged(q{try_name('one', ?)}, q{SELECT FROM named WHERE name = 'one'::name}, $unpinned);
judged(q{try_name('one', ?)}, q{SELECT FROM named WHERE name LIKE 'one%'}, $unpinned);

# another collation that tells texts apart by their bytes, too
sql('CREATE INDEX named_c ON named (name COLLATE "C")');
judged(q{try_name('one', ?)}, q{SELECT FROM named WHERE name COLLATE "C" = 'one'}, '');
judged(q{try_name('one', ?)}, q{SELECT FROM named WHERE name COLLATE "C" = 'two'}, $unpinned);
sql('DROP INDEX named_c');

# an index for which values of several lanes are equal; the planner would inline SQL functions
sql(<<'SQL');
CREATE TABLE mod (w int NOT NULL, v int) USING nvm_cmdlog;
SELECT nvm.partition_table('mod', 'w');
INSERT INTO mod SELECT i, 0 FROM generate_series(1, 40) i;
CREATE FUNCTION mod_cmp(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN $1 % 10 - $2 % 10; END';
CREATE FUNCTION mod_lt(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN $1 % 10 < $2 % 10; END';
CREATE FUNCTION mod_eq(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN $1 % 10 = $2 % 10; END';
CREATE FUNCTION mod_gt(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN $1 % 10 > $2 % 10; END';
CREATE FUNCTION mod_le(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN $1 % 10 <= $2 % 10; END';
CREATE FUNCTION mod_ge(int, int) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN $1 % 10 >= $2 % 10; END';
CREATE OPERATOR %< (LEFTARG = int, RIGHTARG = int, FUNCTION = mod_lt);
CREATE OPERATOR %= (LEFTARG = int, RIGHTARG = int, FUNCTION = mod_eq);
CREATE OPERATOR %> (LEFTARG = int, RIGHTARG = int, FUNCTION = mod_gt);
CREATE OPERATOR %<= (LEFTARG = int, RIGHTARG = int, FUNCTION = mod_le);
CREATE OPERATOR %>= (LEFTARG = int, RIGHTARG = int, FUNCTION = mod_ge);
CREATE OPERATOR CLASS mod_ops FOR TYPE int USING btree AS
	OPERATOR 1 %<, OPERATOR 2 %<=, OPERATOR 3 %=, OPERATOR 4 %>=, OPERATOR 5 %>, FUNCTION 1 mod_cmp(int, int);
SELECT nvm.mirror_operator_classes();
CREATE INDEX mod_w ON mod (w mod_ops);
ANALYZE mod;
SQL
like(sql(q{SET enable_seqscan = off; SELECT plan(3, 'SELECT FROM mod WHERE w %= 3')}), qr/Index Cond: \(w %= 3\)/, 'a scan of it');
is(sql('SET enable_seqscan = off; SELECT count(*) FROM mod WHERE w %= 3'), 4, 'finds what is equal for it');
{
	my @out = split /\n/, sql(q{SELECT nvm.reset_commands(); BEGIN; SET LOCAL enable_seqscan = off; SELECT try(3, 'SELECT FROM mod WHERE w %= 3'); COMMIT; SELECT reasons FROM nvm.commands WHERE calls > 0});
	is($out[-1], qq({"$unpinned": 1}), 'are not all within the lane');
}

# ---- values that come when the query runs

try('SELECT FROM orders JOIN district USING (w, d) WHERE district.w = 3', '');
try('SELECT FROM orders JOIN district USING (d) WHERE district.w = 3', $unpinned);
try(q{SELECT FROM unnest('{3,3}'::int[]) u JOIN district s ON s.w = u}, '', 'a join, all of it within the lane');
try(q{SELECT FROM unnest('{3,4}'::int[]) u JOIN district s ON s.w = u}, $unpinned, 'a join that leaves it');
try(q{SELECT (SELECT max(n) FROM district s WHERE s.w = u) FROM unnest('{3,3}'::int[]) u}, '', 'a subquery');
try(q{SELECT (SELECT max(n) FROM district s WHERE s.w = u) FROM unnest('{3,4}'::int[]) u}, $unpinned, 'a subquery that leaves it');
try(q{SELECT (SELECT max(n) FROM district s WHERE s.w = u) FROM unnest('{3,NULL}'::int[]) u}, '', 'NULL finds nothing');
try(q{DO $$BEGIN PERFORM 1; END$$}, 'utility command');

# ---- other ways to read

try('SELECT FROM hashed WHERE w = 3', $unpinned, 'an index of another method');
foreach my $kind (qw(indexscan bitmapscan indexonlyscan))
{
	my $off = join ' ', map { "SET LOCAL enable_$_ = off;" } grep { $_ ne $kind } qw(seqscan indexscan bitmapscan indexonlyscan);
	foreach my $case ([ 'count(w + d) FROM district WHERE w = 3', '' ], [ 'count(w + d) FROM district WHERE w = 4', $unpinned ], [ 'count(w) FROM hashed WHERE w = 3', $unpinned ])
	{
		my ($q, $want) = @$case;
		my @out = split /\n/, sql("SELECT nvm.reset_commands(); BEGIN; $off SELECT try(3, 'SELECT $q'); COMMIT; SELECT reasons FROM nvm.commands WHERE calls > 0");
		is($out[-1], $want eq '' ? '{}' : qq({"$want": 1}), "$kind alone: $q");
	}
}
try('SELECT FROM item', '', 'a shared table');
try('SELECT FROM item WHERE v = 0', '');
try('SELECT FROM plain WHERE w = 3', $read, 'a table of nvm_vlog');
try('SELECT FROM unlogged WHERE w = 3', $read, 'an UNLOGGED one');
judged('try_all(?)', 'SELECT FROM district', '', 'with all lanes any scan will do');
judged('try_all(?)', 'SELECT FROM district WHERE w = 4', '', 'with all lanes any lane is held');
judged('try_all(?)', 'SELECT FROM hashed WHERE w = 4', '', 'with all lanes any index will do');

# ---- writes

try('INSERT INTO orders VALUES (3, 1, 6, 0)', '');
try('INSERT INTO orders VALUES (3, 1, 6, 0) ON CONFLICT DO NOTHING', '');
try('INSERT INTO orders VALUES (3, 1, 6, 0) ON CONFLICT (w, d, o) DO UPDATE SET v = 1', '');
try('INSERT INTO orders VALUES (3, 1, 6, 0) ON CONFLICT (w, d, o) DO UPDATE SET v = 2', '');
# a row of another lane that is in the way, or is not
try('INSERT INTO orders VALUES (4, 1, 1, 0) ON CONFLICT DO NOTHING', $unpinned);
try('INSERT INTO orders VALUES (4, 1, 1, 0) ON CONFLICT (w, d, o) DO NOTHING', $unpinned);
try('INSERT INTO orders VALUES (4, 1, 1, 0) ON CONFLICT (w, d, o) DO UPDATE SET v = 1', $unpinned);
judged('try_all(?)', 'INSERT INTO orders VALUES (4, 1, 1, 0) ON CONFLICT DO NOTHING', '', 'with all lanes, in any');
sql(q{CREATE TABLE foreign_index (w int, v int); ALTER TABLE foreign_index SET ACCESS METHOD nvm_cmdlog, ALTER w SET NOT NULL; SET nvm.default_index_method = btree; CREATE UNIQUE INDEX ON foreign_index USING btree (w); SELECT nvm.partition_table('foreign_index', 'w'); INSERT INTO foreign_index VALUES (4, 4)});
is(sql(q{SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE relname = 'foreign_index_w_idx'}), 'btree', 'a unique index of btree');
try('INSERT INTO foreign_index VALUES (4, 1) ON CONFLICT DO NOTHING', $unpinned);
try('WITH x AS (INSERT INTO foreign_index VALUES (4, 1) ON CONFLICT DO NOTHING RETURNING w) SELECT FROM x', $unpinned, 'in a query WITH');
try('INSERT INTO foreign_index VALUES (3, 1)', '', 'without ON CONFLICT it does not matter');
try('UPDATE orders SET v = 9 WHERE w = 3 AND d = 1', '');
try('DELETE FROM orders WHERE w = 3 AND d = 1 AND o = 6', '');
try('DELETE FROM orders WHERE w = 3 AND d = 9; UPDATE district SET w = 4, d = 99 WHERE w = 3 AND d = 9', $lane, 'a row goes to another lane');
try('INSERT INTO hashed VALUES (4, 0)', $lane);
try('INSERT INTO hashed VALUES (3, 0), (4, 0)', $lane);
try('INSERT INTO hashed VALUES (3, 0), (3, 1)', '');
try('UPDATE item SET v = 1', $shared);
try('INSERT INTO plain VALUES (4, 1)', $written);
try('INSERT INTO unlogged VALUES (4, 1)', $written);
judged('try_all(?)', 'INSERT INTO hashed VALUES (1, 0), (2, 0)', '', 'with all lanes rows of any');

# ---- foreign keys: the queries of their triggers are queries

try('INSERT INTO remote VALUES (3, 1, 3, 2)', '', 'a reference within the lane');
try('INSERT INTO remote VALUES (3, 2, 4, 2)', $unpinned, 'one to another lane');
try('DELETE FROM orders WHERE w = 3 AND d = 8; DELETE FROM district WHERE w = 3 AND d = 8', $unpinned, 'who refers to it may be anywhere');
sql('DROP TABLE remote');
try('DELETE FROM district WHERE w = 3 AND d = 7', '', 'a cascade within the lane');
is(sql('SELECT count(*) FROM orders WHERE w = 3 AND d = 7'), 0, 'which took place');

# ---- outside of calls

sql(q{SELECT nvm.reset_commands(); BEGIN; UPDATE hashed SET v = 0 WHERE w = 4; SELECT try(3, 'SELECT'); COMMIT});
is(sql('SELECT replayable, by_values, reasons FROM nvm.commands WHERE calls > 0'), '0|1|{"rows written outside of calls": 1}', 'a row written before the call');
sql(q{SELECT nvm.reset_commands(); BEGIN; SELECT try(3, 'SELECT'); UPDATE hashed SET v = 0 WHERE w = 3; COMMIT});
is(sql('SELECT replayable, by_values, reasons FROM nvm.commands WHERE calls > 0'), '0|1|{"rows written outside of calls": 1}', 'behind it, of its lane');

# ---- plans

sub plan_of { my ($f, $q) = @_; return sql("SELECT $f(1, \$q\$$q\$q\$)"); }

# ten rows, all of one lane
sql('DELETE FROM district WHERE w > 1');
sql('VACUUM ANALYZE district');
is(sql('SELECT count(*), count(DISTINCT w) FROM district'), '10|1', 'ten rows');
foreach my $q ('SELECT * FROM district WHERE w = 1', 'SELECT * FROM district WHERE w = $1', 'SELECT sum(n) FROM district WHERE w = $1 AND n >= 0',
	'UPDATE district SET n = 1 WHERE w = $1', q{SELECT * FROM district WHERE w = ANY ('{1}')})
{
	like(plan_of('plan_outside', $q), qr/Seq Scan on district/, "outside of calls a scan: $q");
	my $plan = plan_of('plan', $q);
	like($plan, qr/Index Cond: \(w = /, "in a call the index: $q");
	unlike($plan, qr/Seq Scan/, "and no scan: $q");
}
like(plan_of('plan', 'SELECT * FROM district WHERE w = $1 AND d = 2'), qr/Index Scan using district_pkey on district\n\s+Index Cond: \(\(w = 1\) AND \(d = 2\)\)/, 'one row');
like(plan_of('plan', 'SELECT * FROM district'), qr/Seq Scan on district/, 'a scan where there is no condition');
like(plan_of('plan', 'SELECT * FROM district WHERE d = 1'), qr/Seq Scan on district/, 'or none of the column');
my $join = q{SELECT * FROM unnest('{1,1}'::int[]) u JOIN district s ON s.w = u};
like(plan_of('plan_outside', $join), qr/Seq Scan on district/, 'a join outside of calls');
like(plan_of('plan', $join), qr/Nested Loop.*Index Cond: \(w = u\.u\)/s, 'a join in one');
like(plan_of('plan', 'SELECT * FROM orders WHERE w = $1 AND v = 2'), qr/Index Cond: \(w = 1\)/, 'not by an index without the column');
# a table that was never analyzed, and one without rows
sql(q{CREATE TABLE fresh (LIKE district INCLUDING ALL) USING nvm_cmdlog; SELECT nvm.partition_table('fresh', 'w')});
like(plan_of('plan', 'SELECT * FROM fresh WHERE w = $1'), qr/Index Cond: \(w = 1\)/, 'an empty table');
sql('INSERT INTO fresh VALUES (1, 1, 0)');
like(plan_of('plan', 'SELECT * FROM fresh WHERE w = $1'), qr/Index Cond: \(w = 1\)/, 'one row, not analyzed');
sql('VACUUM ANALYZE fresh');
like(plan_of('plan', 'SELECT * FROM fresh WHERE w = $1'), qr/Index Cond: \(w = 1\)/, 'one row');
# nothing is parallel
sql(q{CREATE TABLE big (w int, id int, v int, PRIMARY KEY (w, id)) USING nvm_cmdlog; SELECT nvm.partition_table('big', 'w')});
sql('INSERT INTO big SELECT 1, i, i FROM generate_series(1, 20000) i; ALTER TABLE big SET (parallel_workers = 2); VACUUM ANALYZE big');
my $cheap = 'SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0; SET min_parallel_index_scan_size = 0;';
my $q = 'SELECT count(*) FROM big WHERE w = 1';
like(sql("$cheap SELECT plan_outside(1, '$q')"), qr/Parallel/, 'a parallel plan outside of calls');
unlike(sql("$cheap SELECT plan(1, '$q')"), qr/Parallel|Gather/, 'none in one');
# page costs are the user's afterwards
is(sql(q{SELECT count(*) FROM plan(1, 'SELECT * FROM district WHERE w = 1'); SELECT current_setting('random_page_cost') || ' ' || current_setting('seq_page_cost')}), "2\n4 1", 'settings are as they were');

# plans of a function's own statements
sql(<<'SQL');
CREATE FUNCTION work(w int) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE s bigint;
BEGIN
	SELECT sum(n) INTO s FROM district d WHERE d.w = work.w;
	UPDATE district d SET n = n + 1 WHERE d.w = work.w;
	RETURN s;
END$$;
SELECT nvm.register_command('work(int)', lanes => '{w}');
SELECT nvm.reset_commands();
SQL
sql('SELECT work(1); ' x 12);
is(sql('SELECT calls, replayable, reasons FROM nvm.commands WHERE calls > 0'), '12|12|{}', 'also when the plan is cached');
$node->check_clean('the end');
$node->stop;

done_testing();

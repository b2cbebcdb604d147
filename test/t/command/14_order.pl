# Copyright (c) 2026, pg_nvm contributors

# The order of rows is no part of a command (src/command/command_order.c, command_unique.c):
# a replay puts rows elsewhere, and another plan may read them.  What a query returns or
# writes must not depend on it.  Here are queries that do, each of which makes its
# transaction one of values, and for most the one beside it that does not.  Both are tried:
# those that do not depend on it give the same in a second database, which has the same rows
# in another order and reads them by other plans.  Then the procedures of TPC-C and of
# Voter, of which each call can be replayed.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $order = 'order of rows';
my $setup = <<'SQL';
CREATE TABLE t (w int, i int, n int NOT NULL DEFAULT 0, f float NOT NULL DEFAULT 0.1, s text NOT NULL DEFAULT '', d numeric, m numeric(8,2), PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE u (w int, j int, i int, k int, PRIMARY KEY (w, j), UNIQUE (w, k)) USING nvm_cmdlog;
CREATE TABLE o (w int, id int, n int, PRIMARY KEY (w, id)) USING nvm_cmdlog;
CREATE TABLE late (w int NOT NULL, i int NOT NULL, n int, UNIQUE (w, i) DEFERRABLE) USING nvm_cmdlog;
CREATE TABLE part (w int NOT NULL, i int NOT NULL, n int) USING nvm_cmdlog;
CREATE UNIQUE INDEX ON part (w, i) WHERE n > 0;
CREATE TABLE audited (w int, i int, n int, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE audit (w int NOT NULL, i int, n int) USING nvm_cmdlog;
CREATE TABLE stamped (w int, i int, n int, at timestamptz, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE peeked (w int, i int, n int, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE child (w int, c int, i int NOT NULL, PRIMARY KEY (w, c), FOREIGN KEY (w, i) REFERENCES t ON DELETE CASCADE) USING nvm_cmdlog;
CREATE TABLE grandchild (w int, g int, c int, n int CHECK (n >= 0), PRIMARY KEY (w, g), FOREIGN KEY (w, c) REFERENCES child ON DELETE CASCADE) USING nvm_cmdlog;
CREATE INDEX ON grandchild (w, c);
CREATE TABLE parts (w int, i int, n int, PRIMARY KEY (w, i)) PARTITION BY LIST (i);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES IN (1, 2, 3) USING nvm_cmdlog;
CREATE TABLE parts_2 PARTITION OF parts DEFAULT USING nvm_cmdlog;
CREATE INDEX ON child (w, i);
CREATE VIEW v AS SELECT w, i, n, n + 1 AS more FROM t;
CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE TABLE named (w int, name text COLLATE any_case, n int, PRIMARY KEY (w, name)) USING nvm_cmdlog;
SELECT nvm.partition_table(r, 'w') FROM unnest('{t,u,o,late,part,audited,audit,stamped,peeked,child,grandchild,parts_1,parts_2,named}'::regclass[]) r;
CREATE FUNCTION to_audit() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO audit VALUES (new.w, new.i, new.n); RETURN new; END';
CREATE TRIGGER a AFTER UPDATE ON audited FOR EACH ROW EXECUTE FUNCTION to_audit();
CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.at := now(); RETURN new; END';
CREATE TRIGGER s BEFORE UPDATE ON stamped FOR EACH ROW EXECUTE FUNCTION stamp();
CREATE FUNCTION peek() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN new.n := (SELECT sum(p.n) FROM peeked p WHERE p.w = new.w); RETURN new; END';
CREATE TRIGGER p BEFORE UPDATE ON peeked FOR EACH ROW EXECUTE FUNCTION peek();
CREATE FUNCTION look(w int, i int) RETURNS int LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT n FROM t WHERE t.w = look.w AND t.i = look.i); END';
CREATE FUNCTION bump(w int, i int) RETURNS int LANGUAGE plpgsql AS 'DECLARE r int; BEGIN UPDATE o SET n = (3 * n + i) % 10007 WHERE o.w = bump.w AND o.id = 1 RETURNING n INTO r; RETURN r; END';
CREATE FUNCTION rows_of(w int) RETURNS SETOF t LANGUAGE plpgsql AS 'BEGIN RETURN QUERY SELECT * FROM t WHERE t.w = rows_of.w; END';
CREATE FUNCTION changed(w int) RETURNS SETOF int LANGUAGE plpgsql AS 'BEGIN RETURN QUERY UPDATE t SET n = n + 1 WHERE t.w = changed.w RETURNING i; END';
CREATE FUNCTION first_of(w int) RETURNS int LANGUAGE sql AS 'SELECT n FROM t WHERE t.w = first_of.w';
CREATE FUNCTION inlined(w int) RETURNS SETOF int STABLE LANGUAGE sql AS 'SELECT n FROM t WHERE t.w = inlined.w LIMIT 1';
CREATE FUNCTION step(state int, w int, i int) RETURNS int LANGUAGE plpgsql AS 'BEGIN PERFORM bump(w, i); RETURN state + i; END';
CREATE AGGREGATE stepped(int, int) (sfunc = step, stype = int, initcond = 0);
INSERT INTO t SELECT w, i, i, i, i, i, i FROM generate_series(1, 3) w, generate_series(1, 20) i;
INSERT INTO u SELECT w, j, j % 20 + 1, j FROM generate_series(1, 3) w, generate_series(1, 20) j;
INSERT INTO o SELECT w, 1, 1 FROM generate_series(1, 3) w;
INSERT INTO late SELECT w, i, i FROM t;
INSERT INTO part SELECT w, i, i FROM t;
INSERT INTO audited SELECT w, i, i FROM t;
INSERT INTO stamped SELECT w, i, i FROM t;
INSERT INTO peeked SELECT w, i, i FROM t;
INSERT INTO child SELECT w, i, i FROM t WHERE i > 10;
INSERT INTO grandchild SELECT w, i, i, i FROM t WHERE i > 10;
CREATE FUNCTION gone() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO audit VALUES (old.w, old.g, old.n); RETURN old; END';
CREATE TRIGGER g AFTER DELETE ON grandchild FOR EACH ROW WHEN (old.g <= 15) EXECUTE FUNCTION gone();
INSERT INTO parts SELECT w, i, i FROM t;
INSERT INTO named VALUES (1, 'a', 1), (1, 'b', 2);
CREATE TABLE found (w int NOT NULL, what text) USING nvm_cmdlog;
SELECT nvm.partition_table('found', 'w');
VACUUM ANALYZE;
SQL
my $node = NvmTest->start_new('order', conf => <<CONF, sql => $setup);
autovacuum = off
max_worker_processes = 8
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

my @cases;

# A function with this body; what it has found goes into a table.
sub define
{
	my ($body, $lanes) = @_;

	return qq{DROP FUNCTION IF EXISTS f(int);
CREATE FUNCTION f(w int) RETURNS int LANGUAGE plpgsql AS \$f\$
#variable_conflict use_column
DECLARE x int; y text; z float; r record; a int[]; c refcursor; k CONSTANT int[] := '{1,2,2}';
BEGIN
	r := row(0);
	$body
	INSERT INTO found VALUES (f.w, format('%s %s %s %s %s', x, y, z, r, a));
	RETURN 1;
END \$f\$;
SELECT nvm.register_command('f(int)', '$lanes')};
}

# One call of it, in lane 1: its reason, or none.  What it wrote is rolled back by nobody:
# later cases meet it.
sub verdict
{
	my ($body, $lanes) = @_;

	sql(define($body, $lanes // '{w}'));
	my ($ret, $out, $err) = $node->psql('postgres', "SELECT f(1)");
	return "ERROR $err" if $ret != 0;
	return sql(q{SELECT CASE replayable WHEN 1 THEN '' ELSE coalesce(last_reason, '') END FROM nvm.commands WHERE function = 'f(int)'::regprocedure});
}

sub judged
{
	my ($body, $name, $depends) = @_;

	$name //= $body;
	push @cases, { body => $body, name => $name, depends => $depends };
	return is(verdict($body), $depends ? $order : '', ($depends ? 'depends: ' : 'does not: ') . $name);
}

sub depends { my ($body, $name) = @_; return judged($body, $name, 1); }
sub free { my ($body, $name) = @_; return judged($body, $name, 0); }

# ---- which rows there can be but one of

free('SELECT n INTO x FROM t WHERE t.w = f.w AND i = 3;');
depends('SELECT n INTO x FROM t WHERE t.w = f.w AND i < 3;');
depends('SELECT n INTO x FROM t WHERE t.w = f.w;');
free('SELECT n INTO x FROM t WHERE (t.w, i) = (f.w, 3) AND n > 0;');
free('SELECT n INTO x FROM v WHERE v.w = f.w AND i = 3;', 'by a view');
depends('SELECT n INTO x FROM v WHERE v.w = f.w AND more = 3;', 'by a column of a view that is none of the table');
free('SELECT n INTO x FROM (SELECT * FROM t ORDER BY n) s WHERE s.w = f.w AND i = 3;', 'by a subquery');
free('SELECT t.n INTO x FROM u JOIN t USING (w, i) WHERE u.w = f.w AND u.j = 3;', 'by a join that follows a key');
free('SELECT t.n INTO x FROM u JOIN t ON t.w = u.w AND t.i = u.i WHERE u.w = f.w AND u.k = 3;', 'by another unique key');
free('SELECT t.n INTO x FROM u LEFT JOIN t ON t.w = u.w AND t.i = u.i WHERE u.w = f.w AND u.j = 3;', 'by an outer join');
depends('SELECT u.j INTO x FROM u LEFT JOIN t ON t.w = u.w AND t.i = u.i AND u.j = 3 WHERE u.w = f.w;', 'an outer join whose condition names one row of the other side');
depends('SELECT u.j INTO x FROM t JOIN u ON u.w = t.w AND u.i = t.i WHERE t.w = f.w AND t.i = 3;', 'a join against the key');
free('SELECT n INTO x FROM t WHERE t.w = f.w AND i = (SELECT max(j) FROM u WHERE u.w = f.w);', 'by a value of a subquery');
depends('SELECT t.i INTO x FROM t, LATERAL (SELECT t.n AS v OFFSET 0) s WHERE t.w = f.w AND t.i = s.v;', 'by a subquery that has a row for each of the table');
depends('SELECT t.i INTO x FROM t, LATERAL (SELECT s.n AS v FROM t s WHERE s.w = t.w AND s.i = t.n) s WHERE t.w = f.w AND t.i = s.v;', 'by a row that follows from it');
depends('SELECT t.i INTO x FROM t, LATERAL (VALUES (t.n)) s(v) WHERE t.w = f.w AND t.i = s.v;', 'by VALUES of it');
depends('SELECT t.i INTO x FROM t, LATERAL abs(t.n) s(v) WHERE t.w = f.w AND t.i = s.v;', 'by a function of it');
depends('SELECT t.i INTO x FROM t, generate_series(t.n, t.n) WITH ORDINALITY s(v, q) WHERE t.w = f.w AND t.i = s.v ORDER BY q LIMIT 1;', 'by the number of its row');
free('SELECT t.i INTO x FROM u, LATERAL (SELECT u.i AS v OFFSET 0) s, t WHERE u.w = f.w AND u.j = 3 AND t.w = f.w AND t.i = s.v;', 'by a subquery of one row, for a row');
depends('SELECT coalesce(p.n, 0) INTO x FROM (SELECT n FROM t WHERE t.w = f.w AND t.i = 4) p FULL JOIN (SELECT n FROM t WHERE t.w = f.w AND t.i = 3) q ON p.n = q.n;', 'a full join of two rows');
is(verdict('SELECT n INTO x FROM parts WHERE parts.w = f.w AND i = 3;', 'all'), '', 'does not: by the key of a partitioned table');
is(verdict('SELECT n INTO x FROM parts WHERE i = 3;', 'all'), $order, 'depends: by a part of it');
depends('SELECT n INTO x FROM late WHERE late.w = f.w AND i = 3;', 'a deferrable key');
depends('SELECT n INTO x FROM part WHERE part.w = f.w AND i = 3;', 'a partial index');
free("SELECT n INTO x FROM named WHERE named.w = f.w AND name = 'A';", 'a key that has its own equality');
depends(q{SELECT n INTO x FROM t WHERE t.w = f.w AND i = 3.0 * n;}, 'an equality of another type');
free('SELECT n INTO x FROM t WHERE t.w = f.w AND i = 3::bigint;', 'one of the same family');
free('x := (SELECT n FROM t WHERE t.w = f.w AND i = 3);', 'in an expression');
free('SELECT 1 INTO x FROM t WHERE t.w = f.w;', 'rows that are all the same');
free('PERFORM 1 FROM t WHERE t.w = f.w; PERFORM FROM t WHERE t.w = f.w;', 'PERFORM of such');
free('IF EXISTS (SELECT n FROM t WHERE t.w = f.w LIMIT 1) THEN x := 1; END IF;', 'whether there is one');

# ---- ORDER BY, LIMIT, DISTINCT

free('FOR r IN SELECT n FROM t WHERE t.w = f.w ORDER BY i LOOP x := r.n; END LOOP;', 'a loop in order');
free('FOR r IN SELECT n FROM t WHERE t.w = f.w ORDER BY n LOOP x := r.n; END LOOP;', 'rows that tie are the same');
depends('FOR r IN SELECT i FROM t WHERE t.w = f.w ORDER BY n LOOP EXIT; END LOOP;', 'rows that tie are not');
depends('FOR r IN SELECT i FROM t WHERE t.w = f.w LOOP EXIT; END LOOP;', 'a loop in no order');
free('FOR r IN SELECT n, i FROM t WHERE t.w = f.w ORDER BY n DESC, i LOOP x := r.n; END LOOP;', 'the key is added');
depends("FOR r IN EXECUTE 'SELECT i FROM t WHERE w = 1' LOOP EXIT; END LOOP;", 'a loop by EXECUTE');
depends('FOR r IN SELECT i, d FROM t WHERE t.w = f.w ORDER BY d LOOP EXIT; END LOOP;', 'numeric, of many values that are equal');
free('FOR r IN SELECT u.j, t.n FROM u JOIN t USING (w, i) WHERE u.w = f.w ORDER BY u.j LOOP x := r.n; END LOOP;', 'a join, by the key of one that fixes the other');
depends('FOR r IN SELECT t.i, u.j FROM u JOIN t USING (w, i) WHERE u.w = f.w ORDER BY t.i LOOP x := r.j; END LOOP;', 'by the other');
free('FOR r IN SELECT t.n, s.n AS m FROM t JOIN t s ON s.w = t.w WHERE t.w = f.w ORDER BY t.i, s.i LOOP x := r.n; END LOOP;', 'by the keys of both');
free('FOR r IN SELECT u.j, t.n FROM t RIGHT JOIN u ON t.w = u.w AND t.i = u.i WHERE u.w = f.w ORDER BY u.j LOOP x := r.n; END LOOP;', 'of an outer join');
free('FOR r IN SELECT i, more FROM v WHERE v.w = f.w ORDER BY more, i LOOP x := r.more; END LOOP;', 'by a view');
free('SELECT i INTO x FROM t WHERE t.w = f.w ORDER BY n, i LIMIT 1;');
depends('SELECT i INTO x FROM t WHERE t.w = f.w ORDER BY n LIMIT 1;');
depends('SELECT count(*) INTO x FROM (SELECT n FROM t WHERE t.w = f.w LIMIT 3) s WHERE s.n = 1;', 'LIMIT in a subquery');
depends('SELECT sum(n) INTO x FROM (SELECT n, i FROM t WHERE t.w = f.w ORDER BY n OFFSET 3) s;', 'OFFSET');
free('SELECT n INTO x FROM t WHERE t.w = f.w AND i = 3 LIMIT 1;', 'LIMIT of one row');
free('SELECT count(*) INTO x FROM (SELECT 1 FROM t WHERE t.w = f.w LIMIT 3) s;', 'LIMIT of rows that are all the same');
depends('DELETE FROM late WHERE late.w = f.w AND i IN (SELECT i FROM late l WHERE l.w = f.w ORDER BY n LIMIT 1);', 'a DELETE by it');
depends('WITH s AS (SELECT i, n FROM t WHERE t.w = f.w LIMIT 2) SELECT sum(n) INTO x FROM s;', 'in WITH');
depends('SELECT count(*) INTO x FROM (SELECT DISTINCT ON (n) n, i FROM t WHERE t.w = f.w ORDER BY n) s WHERE s.i = 1;', 'DISTINCT ON');
free('SELECT count(*) INTO x FROM (SELECT DISTINCT ON (n) n, i FROM t WHERE t.w = f.w ORDER BY n, i) s WHERE s.i = 1;', 'DISTINCT ON by the key');
free('SELECT count(*) INTO x FROM (SELECT DISTINCT n FROM t WHERE t.w = f.w) s;', 'DISTINCT');
depends('SELECT count(*) INTO x FROM (SELECT DISTINCT d FROM t WHERE t.w = f.w) s;', 'DISTINCT of values that are equal and not the same');
free('SELECT count(*) INTO x FROM (SELECT DISTINCT m FROM t WHERE t.w = f.w) s;', 'numeric with a scale');
depends('SELECT count(*) INTO x FROM (SELECT name FROM named WHERE named.w = f.w GROUP BY name) s;', 'GROUP BY of texts that differ in case');
free('FOR r IN SELECT n, count(*) AS c FROM t WHERE t.w = f.w GROUP BY n ORDER BY n LOOP x := r.c; END LOOP;', 'groups in order');
depends('FOR r IN SELECT n, count(*) AS c FROM t WHERE t.w = f.w GROUP BY n LOOP x := r.c; END LOOP;', 'groups in none');
depends('FOR r IN SELECT n, count(*) AS c FROM t WHERE t.w = f.w GROUP BY n ORDER BY count(*) LOOP x := r.n; END LOOP;', 'groups by another value');
free('FOR r IN SELECT n FROM t WHERE t.w = f.w UNION SELECT k FROM u WHERE u.w = f.w ORDER BY 1 LOOP x := r.n; END LOOP;', 'UNION in order');
depends('FOR r IN SELECT n FROM t WHERE t.w = f.w UNION ALL SELECT k FROM u WHERE u.w = f.w LOOP x := r.n; END LOOP;', 'UNION in none');
depends('SELECT count(*) INTO x FROM (SELECT f FROM t WHERE t.w = f.w UNION SELECT 0.0) s;', 'UNION of floats');

# ---- aggregates and windows

free('SELECT count(*), sum(n), avg(n), min(s), max(n), bool_and(n > 0) INTO r FROM t WHERE t.w = f.w;', 'exact aggregates');
free('SELECT sum(d), avg(d), max(m), stddev(d) INTO r FROM t WHERE t.w = f.w;', 'of numeric');
depends('SELECT max(d) INTO y FROM t WHERE t.w = f.w;', 'max of numeric without scale');
depends('SELECT sum(f) INTO z FROM t WHERE t.w = f.w;', 'a sum of floats');
depends('SELECT avg(f) INTO z FROM t WHERE t.w = f.w;', 'their mean');
free('SELECT max(i), count(f) INTO r FROM t WHERE t.w = f.w;', 'their number');
free('SELECT sum(f ORDER BY i) INTO z FROM t WHERE t.w = f.w;', 'their sum in order');
free('SELECT sum(f) INTO z FROM t WHERE t.w = f.w AND i = 3;', 'the sum of one');
depends('SELECT array_agg(i) INTO a FROM t WHERE t.w = f.w;');
free('SELECT array_agg(i ORDER BY i) INTO a FROM t WHERE t.w = f.w;');
depends("SELECT string_agg(s, ',' ORDER BY n % 3) INTO y FROM t WHERE t.w = f.w;");
free("SELECT string_agg(s, ',' ORDER BY s) INTO y FROM t WHERE t.w = f.w;");
depends("SELECT json_agg(t) INTO y FROM t WHERE t.w = f.w;");
free("SELECT json_agg(t ORDER BY i) INTO y FROM t WHERE t.w = f.w;");
depends('SELECT count(*) INTO x FROM t WHERE t.w = f.w GROUP BY n HAVING sum(f) > 100;', 'in HAVING');
depends('SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY f) INTO z FROM t WHERE t.w = f.w;', 'an ordered-set aggregate');
depends('a := ARRAY(SELECT i FROM t WHERE t.w = f.w);');
free('a := ARRAY(SELECT i FROM t WHERE t.w = f.w ORDER BY i);');
free('SELECT count(*) INTO x FROM t WHERE t.w = f.w AND i = ANY (ARRAY(SELECT k FROM u WHERE u.w = f.w ORDER BY 1));', 'an array in order');
depends('SELECT sum(q) INTO x FROM (SELECT row_number() OVER (ORDER BY n) * i AS q FROM t WHERE t.w = f.w) s;', 'row_number');
free('SELECT sum(q) INTO x FROM (SELECT row_number() OVER (ORDER BY n, i) * i AS q FROM t WHERE t.w = f.w) s;', 'row_number by the key');
free('SELECT sum(q) INTO x FROM (SELECT rank() OVER (ORDER BY n) * i AS q FROM t WHERE t.w = f.w) s;', 'rank');
depends('SELECT sum(q) INTO x FROM (SELECT first_value(i) OVER (PARTITION BY n) AS q FROM t WHERE t.w = f.w) s;', 'first_value');
free('SELECT sum(q) INTO x FROM (SELECT sum(i) OVER (PARTITION BY n) AS q FROM t WHERE t.w = f.w) s;', 'a sum over all of them');
depends('SELECT sum(q) INTO x FROM (SELECT sum(i) OVER (PARTITION BY n ROWS 1 PRECEDING) AS q FROM t WHERE t.w = f.w) s;', 'over some');

# ---- cursors, functions

depends('OPEN c FOR SELECT i FROM t WHERE t.w = f.w; FETCH c INTO x; CLOSE c;', 'a cursor');
depends("OPEN c SCROLL FOR SELECT i FROM t WHERE t.w = f.w; MOVE 3 IN c; FETCH PRIOR FROM c INTO x; CLOSE c;", 'a cursor that is moved');
free("OPEN c SCROLL FOR SELECT i FROM t WHERE t.w = f.w ORDER BY i; MOVE 3 IN c; FETCH PRIOR FROM c INTO x; CLOSE c;", 'one in order');
free('OPEN c FOR SELECT i FROM t WHERE t.w = f.w; MOVE ALL IN c; CLOSE c;', 'one whose rows are counted');
depends('FOR r IN UPDATE t SET n = n + 1 WHERE t.w = f.w RETURNING i LOOP EXIT; END LOOP;', 'a loop over what UPDATE returns');
free('UPDATE t SET n = n + 1 WHERE t.w = f.w AND i = 3 RETURNING n INTO x;', 'one row that UPDATE returns');
free('SELECT count(*) INTO x FROM rows_of(f.w);', 'a function that returns rows');
depends('SELECT i INTO x FROM rows_of(f.w);', 'of which one is read');
free('SELECT count(*) INTO x FROM changed(f.w);', 'a function that returns what it has updated');
depends('x := first_of(f.w);', 'a function in SQL that returns the first row');
depends('SELECT count(*) INTO x FROM inlined(f.w);', 'a function in SQL that is inlined');
depends('SELECT sum(i * q) INTO x FROM rows_of(f.w) WITH ORDINALITY AS e(w, i, n, f, s, d, m, q);', 'whose rows are numbered');
depends('SELECT sum(i * q) INTO x FROM ROWS FROM (rows_of(f.w), generate_series(1, 20)) AS e(w, i, n, f, s, d, m, q);', 'put beside others');
depends('SELECT sum((e).i * q) INTO x FROM (SELECT rows_of(f.w) AS e, generate_series(1, 20) AS q) s;', 'or in what is selected');
free('FOR r IN SELECT q, t.n FROM unnest(k) WITH ORDINALITY e(q, place) JOIN t ON t.w = f.w AND t.i = q ORDER BY place LOOP a := a || r.n; END LOOP;', 'elements of an array, numbered');
free('SELECT n INTO x FROM unnest(k) AS q(n); FOR x IN SELECT q FROM unnest(k) q LOOP a := a || x; END LOOP;', 'what unnest() returns');

# ---- what is written

free('UPDATE t SET n = n + 1 WHERE t.w = f.w; UPDATE t SET n = n - 1 WHERE t.w = f.w;', 'UPDATE of many rows');
free('INSERT INTO late SELECT w, i + 100, n FROM t WHERE t.w = f.w; DELETE FROM late WHERE late.w = f.w AND i > 100;', 'INSERT and DELETE of many');
free('INSERT INTO late VALUES (f.w, 201, 1), (f.w, 202, 2);', 'INSERT of several');
free('INSERT INTO late VALUES (f.w, 203, 1) RETURNING i INTO x;', 'INSERT RETURNING');
depends('UPDATE u SET k = k + 1000 WHERE u.w = f.w;', 'UPDATE of a unique column');
free('UPDATE u SET k = 5000 WHERE u.w = f.w AND j = 3;', 'in one row');
depends('UPDATE t SET n = u.j FROM u WHERE u.w = t.w AND u.i = t.i AND t.w = f.w;', 'UPDATE from a join that may have several');
free('UPDATE u SET i = t.i FROM t WHERE u.w = t.w AND u.i = t.i AND u.w = f.w;', 'from one that has not');
free('UPDATE t SET n = n + 1 FROM unnest(k) q WHERE t.w = f.w AND i = q;', 'UPDATE by a list');
depends('UPDATE t SET n = n + q FROM unnest(k) q WHERE t.w = f.w AND i = q;', 'with its values');
free('DELETE FROM late USING t WHERE late.w = f.w AND t.w = f.w AND late.i = 200 + t.i;', 'DELETE USING');
depends('INSERT INTO o SELECT f.w, 300 + n % 3, i FROM t WHERE t.w = f.w ON CONFLICT DO NOTHING;', 'ON CONFLICT DO NOTHING, of many');
free('INSERT INTO o SELECT f.w, 300 + n % 3, i FROM t WHERE t.w = f.w ORDER BY i ON CONFLICT DO NOTHING;', 'in order');
free('INSERT INTO o VALUES (f.w, 300, 1), (f.w, 300, 2) ON CONFLICT DO NOTHING;', 'as they are written');
free('INSERT INTO o SELECT f.w, 400 + i, i FROM t WHERE t.w = f.w ON CONFLICT (w, id) DO UPDATE SET n = excluded.n;', 'ON CONFLICT DO UPDATE');
depends('INSERT INTO o SELECT f.w, 1, i FROM t WHERE t.w = f.w AND i <= 2 ON CONFLICT (w, id) DO UPDATE SET id = 999, n = excluded.n;', 'DO UPDATE of its key');
depends('INSERT INTO u SELECT f.w, CASE i WHEN 1 THEN 5 ELSE 500 END, i, CASE i WHEN 1 THEN 6000 ELSE 5 END FROM t WHERE t.w = f.w AND i <= 2 ON CONFLICT (w, j) DO UPDATE SET k = excluded.k;', 'of another one');
free('INSERT INTO o VALUES (f.w, 1, 2) ON CONFLICT (w, id) DO UPDATE SET id = 998; UPDATE o SET id = 1 WHERE o.w = f.w AND id = 998;', 'of one row');
depends('MERGE INTO o USING (SELECT i FROM t WHERE t.w = f.w) s ON o.w = f.w AND o.id = s.i WHEN MATCHED THEN UPDATE SET n = s.i WHEN NOT MATCHED THEN INSERT VALUES (f.w, s.i, 0);', 'MERGE of many');
free('MERGE INTO o USING (VALUES (500)) s(i) ON o.w = f.w AND o.id = s.i WHEN MATCHED THEN UPDATE SET n = s.i WHEN NOT MATCHED THEN INSERT VALUES (f.w, s.i, 0);', 'of one row');
depends('WITH a AS (UPDATE t SET n = 1 WHERE t.w = f.w AND i < 5) UPDATE t SET n = 2 WHERE t.w = f.w AND i > 3;', 'two parts of a query that write a table');
free('WITH a AS (INSERT INTO o VALUES (f.w, 600, 1) RETURNING id) UPDATE t SET n = a.id FROM a WHERE t.w = f.w AND i = 3;', 'two that write two');
free('WITH a AS (DELETE FROM o WHERE o.w = f.w AND id >= 600 RETURNING id, n) INSERT INTO late SELECT f.w, id, n FROM a;', 'rows that move');

# ---- what is done on the way

depends('UPDATE audited SET n = n + 1 WHERE audited.w = f.w;', 'a trigger that writes, for many rows');
free('UPDATE audited SET n = n + 1 WHERE audited.w = f.w AND i = 3;', 'for one');
free('UPDATE stamped SET n = n + 1 WHERE stamped.w = f.w;', 'one that does not');
depends('UPDATE peeked SET n = 1 WHERE peeked.w = f.w;', 'one that reads what is written');
free('UPDATE peeked SET n = 1 WHERE peeked.w = f.w AND i = 3;', 'for one row');
free('UPDATE t SET n = look(f.w, 3) WHERE t.w = f.w AND i = 4;', 'a function that reads');
depends('UPDATE t SET n = look(f.w, 3) WHERE t.w = f.w;', 'what is written');
free('SELECT sum(look(f.w, i)) INTO x FROM t WHERE t.w = f.w;', 'and is not');
depends('SELECT sum(bump(f.w, i)) INTO x FROM t WHERE t.w = f.w;', 'a function that writes');
depends('SELECT count(*) INTO x FROM t WHERE t.w = f.w AND bump(f.w, i) > 0;', 'in a condition');
free('SELECT sum(bump(f.w, q)) INTO x FROM unnest(k) q;', 'for the elements of an array');
free('FOR r IN SELECT i, n FROM t WHERE t.w = f.w ORDER BY i LOOP PERFORM bump(f.w, r.i % 2); END LOOP;', 'in a loop in order');
free('INSERT INTO late SELECT w, 700 + i, bump(w, i % 2) FROM t WHERE t.w = f.w ORDER BY i;', 'in INSERT, in order');
depends('INSERT INTO late SELECT w, 800 + i, bump(w, i % 2) FROM t WHERE t.w = f.w;', 'in none');
depends('SELECT sum(q) INTO x FROM (SELECT stepped(f.w, i ORDER BY i) AS q FROM t WHERE t.w = f.w GROUP BY i % 3) s;', 'an aggregate that does');
depends('SELECT n INTO x FROM t WHERE bump(t.w, t.n) > -1 AND t.w = f.w AND t.i = 3;', 'in a condition beside a key');
depends('SELECT q INTO x FROM t, bump(f.w, 7) q WHERE t.w = f.w AND t.i = -1 AND t.n = q;', 'joined with a row');
depends('SELECT q INTO x FROM t, (SELECT bump(f.w, 7)) s(q) WHERE t.w = f.w AND t.i = -1 AND t.n = q;', 'in a subquery, the same');
depends('WITH s AS (SELECT bump(f.w, 7) AS q) SELECT q INTO x FROM t, s WHERE t.w = f.w AND t.i = -1 AND t.n = q;', 'in WITH');
free('WITH s AS (SELECT bump(f.w, 7) AS q) SELECT q INTO x FROM s;', 'that alone');
free('SELECT count(*) INTO x FROM unnest(k) q WHERE bump(f.w, q) > 0;', 'in a condition for the elements of an array');
free('DELETE FROM child WHERE child.w = f.w AND i > 18;', 'DELETE of a table that refers to another');
free('DELETE FROM t WHERE t.w = f.w AND i > 15;', 'DELETE that cascades');
depends('DELETE FROM t WHERE t.w = f.w AND i > 12;', 'to a table whose trigger writes');
is(sql('SELECT count(*) FROM child WHERE w = 1 AND i > 15'), 0, 'which took place');

# ---- each of them by the same rows in another order

my $state = join ', ', map { "(SELECT md5(string_agg(x::text, ',' ORDER BY x::text)) FROM $_ x)" }
	qw(t u o late part audited audit peeked child parts named found), q{(SELECT md5(string_agg(format('%s %s %s', w, i, n), ',' ORDER BY w, i)) FROM stamped)};
(my $backwards = $setup) =~ s/generate_series\(1, 20\)/generate_series(20, 1, -1)/g;
isnt($backwards, $setup, 'rows in another order');
$node->safe_psql('postgres', 'CREATE DATABASE forward; CREATE DATABASE backward; ALTER DATABASE backward SET enable_indexscan = off; ALTER DATABASE backward SET enable_indexonlyscan = off');
$node->safe_psql($_->[0], "CREATE EXTENSION pg_nvm; $_->[1]") foreach [ 'forward', $setup ], [ 'backward', $backwards ];

my $seen_to_depend = 0;
foreach my $case (@cases)
{
	my @got;

	foreach my $database (qw(forward backward))
	{
		$node->safe_psql($database, define($case->{body}, '{w}'));
		my ($ret, $out, $err) = $node->psql($database, "BEGIN; SELECT f(1); SELECT $state; SELECT what FROM found; ROLLBACK", on_error_stop => 1);
		# one that depends on the order may fail by it
		push @got, $ret == 0 || !$case->{depends} ? "$ret $out" : $err;
		is($ret, 0, "a call: $case->{name}") || diag($err) if !$case->{depends};
	}
	if ($case->{depends}) { $seen_to_depend++ if $got[0] ne $got[1]; }
	else { is($got[1], $got[0], "the same in another order: $case->{name}"); }
}
note("$seen_to_depend of " . scalar(grep { $_->{depends} } @cases) . ' that depend on it were other');
cmp_ok($seen_to_depend, '>=', 15, 'many that depend on it are not');

# ---- TPC-C: what its procedures do, as users write them

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE warehouse (w_id int PRIMARY KEY, w_tax numeric(4,4), w_ytd numeric(12,2)) USING nvm_cmdlog;
CREATE TABLE district (d_w_id int, d_id int, d_tax numeric(4,4), d_ytd numeric(12,2), d_next_o_id int, PRIMARY KEY (d_w_id, d_id)) USING nvm_cmdlog;
CREATE TABLE customer (c_w_id int, c_d_id int, c_id int, c_first text, c_last text, c_credit text, c_discount numeric(4,4), c_balance numeric(12,2), c_payment_cnt int, c_data text, PRIMARY KEY (c_w_id, c_d_id, c_id)) USING nvm_cmdlog;
CREATE INDEX ON customer (c_w_id, c_d_id, c_last, c_first);
CREATE TABLE item (i_id int PRIMARY KEY, i_price numeric(5,2), i_name text) USING nvm_cmdlog;
CREATE TABLE stock (s_w_id int, s_i_id int, s_quantity int, s_ytd int, s_order_cnt int, s_remote_cnt int, PRIMARY KEY (s_w_id, s_i_id)) USING nvm_cmdlog;
CREATE TABLE orders (o_w_id int, o_d_id int, o_id int, o_c_id int, o_entry_d timestamptz, o_carrier_id int, o_ol_cnt int, PRIMARY KEY (o_w_id, o_d_id, o_id)) USING nvm_cmdlog;
CREATE INDEX ON orders (o_w_id, o_d_id, o_c_id, o_id);
CREATE TABLE new_order (no_w_id int, no_d_id int, no_o_id int, PRIMARY KEY (no_w_id, no_d_id, no_o_id)) USING nvm_cmdlog;
CREATE TABLE order_line (ol_w_id int, ol_d_id int, ol_o_id int, ol_number int, ol_i_id int, ol_supply_w_id int, ol_delivery_d timestamptz, ol_quantity int, ol_amount numeric(6,2), PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number)) USING nvm_cmdlog;
CREATE TABLE history (h_w_id int NOT NULL, h_d_id int, h_c_id int, h_date timestamptz, h_amount numeric(6,2)) USING nvm_cmdlog;
SELECT nvm.partition_table(t, c) FROM (VALUES ('warehouse'::regclass, 'w_id'::name), ('district', 'd_w_id'), ('customer', 'c_w_id'), ('stock', 's_w_id'), ('orders', 'o_w_id'), ('new_order', 'no_w_id'), ('order_line', 'ol_w_id'), ('history', 'h_w_id')) x(t, c);
INSERT INTO warehouse SELECT w, 0.1, 0 FROM generate_series(1, 2) w;
INSERT INTO district SELECT w, d, 0.1, 0, 1 FROM generate_series(1, 2) w, generate_series(1, 10) d;
INSERT INTO customer SELECT w, d, c, 'first' || c % 3, 'last' || c % 5, CASE c % 10 WHEN 0 THEN 'BC' ELSE 'GC' END, 0.1, 0, 0, '' FROM generate_series(1, 2) w, generate_series(1, 10) d, generate_series(1, 30) c;
INSERT INTO item SELECT i, i, 'item' || i FROM generate_series(1, 100) i;
INSERT INTO stock SELECT w, i, 50, 0, 0, 0 FROM generate_series(1, 2) w, generate_series(1, 100) i;
CREATE FUNCTION neword(w int, d int, c int, items int[], supply int[], quantities int[]) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	tax_w numeric; tax_d numeric; o int; discount numeric; total numeric := 0; price numeric; amount numeric; all_local boolean;
BEGIN
	SELECT w_tax, c_discount INTO tax_w, discount FROM customer, warehouse WHERE w_id = w AND c_w_id = w_id AND c_d_id = d AND c_id = c;
	UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = w AND d_id = d RETURNING d_next_o_id - 1, d_tax INTO o, tax_d;
	all_local := NOT EXISTS (SELECT FROM unnest(supply) s WHERE s <> w);
	INSERT INTO orders VALUES (w, d, o, c, now(), NULL, cardinality(items));
	INSERT INTO new_order VALUES (w, d, o);
	FOR n IN 1 .. cardinality(items) LOOP
		SELECT i_price INTO price FROM item WHERE i_id = items[n];
		IF NOT FOUND THEN
			RAISE EXCEPTION 'item % is not there', items[n];
		END IF;
		UPDATE stock SET s_quantity = CASE WHEN s_quantity >= quantities[n] + 10 THEN s_quantity - quantities[n] ELSE s_quantity - quantities[n] + 91 END,
			s_ytd = s_ytd + quantities[n], s_order_cnt = s_order_cnt + 1, s_remote_cnt = s_remote_cnt + (supply[n] <> w)::int
			WHERE s_w_id = supply[n] AND s_i_id = items[n];
		amount := quantities[n] * price;
		total := total + amount;
		INSERT INTO order_line VALUES (w, d, o, n, items[n], supply[n], NULL, quantities[n], amount);
	END LOOP;
	RETURN total * (1 - discount) * (1 + tax_w + tax_d);
END $$;
CREATE FUNCTION payment(w int, d int, c_w int, c_d int, c int, last text, amount numeric) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	names CURSOR FOR SELECT c_id FROM customer WHERE c_w_id = c_w AND c_d_id = c_d AND c_last = last ORDER BY c_first, c_id;
	n int; balance numeric; credit text;
BEGIN
	UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = w;
	UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = w AND d_id = d;
	IF last IS NOT NULL THEN
		SELECT count(*) INTO n FROM customer WHERE c_w_id = c_w AND c_d_id = c_d AND c_last = last;
		OPEN names;
		FOR i IN 1 .. (n + 1) / 2 LOOP
			FETCH names INTO c;
		END LOOP;
		CLOSE names;
	END IF;
	UPDATE customer SET c_balance = c_balance - amount, c_payment_cnt = c_payment_cnt + 1 WHERE c_w_id = c_w AND c_d_id = c_d AND c_id = c
		RETURNING c_balance, c_credit INTO balance, credit;
	IF credit = 'BC' THEN
		UPDATE customer SET c_data = left(format('%s %s %s|', c, d, amount) || c_data, 500) WHERE c_w_id = c_w AND c_d_id = c_d AND c_id = c;
	END IF;
	INSERT INTO history VALUES (w, d, c, now(), amount);
	RETURN balance;
END $$;
CREATE FUNCTION delivery(w int, carrier int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	o int; c int; amount numeric; n int := 0;
BEGIN
	FOR d IN 1 .. 10 LOOP
		SELECT min(no_o_id) INTO o FROM new_order WHERE no_w_id = w AND no_d_id = d;
		CONTINUE WHEN o IS NULL;
		DELETE FROM new_order WHERE no_w_id = w AND no_d_id = d AND no_o_id = o;
		UPDATE orders SET o_carrier_id = carrier WHERE o_w_id = w AND o_d_id = d AND o_id = o RETURNING o_c_id INTO c;
		UPDATE order_line SET ol_delivery_d = now() WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
		SELECT sum(ol_amount) INTO amount FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
		UPDATE customer SET c_balance = c_balance + amount WHERE c_w_id = w AND c_d_id = d AND c_id = c;
		n := n + 1;
	END LOOP;
	RETURN n;
END $$;
CREATE FUNCTION ostat(w int, d int, c int, last text) RETURNS SETOF order_line LANGUAGE plpgsql AS $$
DECLARE
	o int; n int;
BEGIN
	IF last IS NOT NULL THEN
		SELECT count(*) INTO n FROM customer WHERE c_w_id = w AND c_d_id = d AND c_last = last;
		SELECT c_id INTO c FROM customer WHERE c_w_id = w AND c_d_id = d AND c_last = last ORDER BY c_first, c_id OFFSET n / 2 LIMIT 1;
	END IF;
	SELECT o_id INTO o FROM orders WHERE o_w_id = w AND o_d_id = d AND o_c_id = c ORDER BY o_id DESC LIMIT 1;
	RETURN QUERY SELECT * FROM order_line WHERE ol_w_id = w AND ol_d_id = d AND ol_o_id = o;
END $$;
CREATE FUNCTION slev(w int, d int, threshold int) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
	RETURN (SELECT count(DISTINCT s_i_id) FROM district JOIN order_line ON ol_w_id = d_w_id AND ol_d_id = d_id AND ol_o_id >= d_next_o_id - 20 AND ol_o_id < d_next_o_id
		JOIN stock ON s_w_id = ol_w_id AND s_i_id = ol_i_id WHERE d_w_id = w AND d_id = d AND s_quantity < threshold);
END $$;
SELECT nvm.register_command('neword(int,int,int,int[],int[],int[])', lanes => '{w,supply}');
SELECT nvm.register_command('payment(int,int,int,int,int,text,numeric)', lanes => '{w,c_w}');
SELECT nvm.register_command('delivery(int,int)', lanes => '{w}');
SELECT nvm.register_command('ostat(int,int,int,text)', lanes => '{w}');
SELECT nvm.register_command('slev(int,int,int)', lanes => '{w}');
VACUUM ANALYZE;
SELECT nvm.reset_commands();
SELECT neword(1, n % 10 + 1, n % 30 + 1, '{1,2,3}', '{1,1,2}', '{1,2,3}') FROM generate_series(1, 40) n;
SELECT payment(1, n % 10 + 1, n % 2 + 1, 3, n % 30 + 1, NULL, n) FROM generate_series(1, 20) n;
SELECT payment(2, n % 10 + 1, n % 2 + 1, 3, NULL, 'last' || n % 5, n) FROM generate_series(1, 20) n;
SELECT delivery(1, 5), delivery(2, 5), delivery(1, 7);
SELECT count(*) FROM generate_series(1, 10) n, ostat(1, n % 10 + 1, n % 30 + 1, NULL);
SELECT count(*) FROM generate_series(1, 10) n, ostat(1, n % 10 + 1, NULL, 'last' || n % 5);
SELECT slev(1, n, 60) FROM generate_series(1, 10) n;
SQL
is(sql(q{SELECT string_agg(proname || ' ' || (replayable > 0) || ' ' || by_values || ' ' || unlogged || ' ' || reasons, ', ' ORDER BY proname) FROM nvm.commands c JOIN pg_proc p ON p.oid = c.function WHERE calls > 0}),
	'delivery true 0 0 {}, neword true 0 0 {}, ostat false 0 2 {}, payment true 0 0 {}, slev false 0 1 {}', 'TPC-C: no reason in any procedure');
is(sql('SELECT sum(w_ytd) = (SELECT sum(d_ytd) FROM district) AND sum(w_ytd) = (SELECT sum(h_amount) FROM history) FROM warehouse'), 't', 'and they did their work');

# ---- Voter: one vote, checked against contestants and votes of the same phone number

$node->safe_psql('postgres', <<'SQL');
CREATE TABLE contestants (number int PRIMARY KEY, name text) USING nvm_cmdlog;
CREATE TABLE area_codes (code int PRIMARY KEY, state text) USING nvm_cmdlog;
CREATE TABLE votes (phone bigint NOT NULL, state text, contestant int, created timestamptz) USING nvm_cmdlog;
CREATE INDEX ON votes (phone);
SELECT nvm.partition_table('votes', 'phone');
INSERT INTO contestants SELECT i, 'c' || i FROM generate_series(1, 6) i;
INSERT INTO area_codes SELECT i, 'S' || i FROM generate_series(200, 300) i;
CREATE FUNCTION vote(phone bigint, contestant int, max_votes int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	home text;
BEGIN
	IF NOT EXISTS (SELECT FROM contestants WHERE number = contestant) THEN
		RETURN 1;
	END IF;
	IF (SELECT count(*) FROM votes v WHERE v.phone = vote.phone) >= max_votes THEN
		RETURN 2;
	END IF;
	SELECT state INTO home FROM area_codes WHERE code = (vote.phone / 10000000)::int;
	INSERT INTO votes VALUES (vote.phone, coalesce(home, 'XX'), contestant, now());
	RETURN 0;
END $$;
SELECT nvm.register_command('vote(bigint,int,int)', lanes => '{phone}');
SQL
sql("SELECT vote(2015550000 + $_ % 7, $_ % 8, 2)") foreach 1 .. 20;
is(sql(q{SELECT calls, replayable > 5, by_values, reasons FROM nvm.commands WHERE function = 'vote(bigint,int,int)'::regprocedure}), '20|t|0|{}', 'Voter: no reason');

$node->check_clean('the end');
$node->stop;
done_testing();

--
-- Operator classes and types made after pg_nvm: extensions, and one's own
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA operator_classes;
SET search_path = operator_classes, public;

SET jit = off;
CREATE EXTENSION citext SCHEMA operator_classes;
CREATE EXTENSION hstore SCHEMA operator_classes;
CREATE EXTENSION ltree SCHEMA operator_classes;
CREATE EXTENSION bloom SCHEMA operator_classes;
CREATE EXTENSION pg_trgm SCHEMA operator_classes;
CREATE EXTENSION btree_gist SCHEMA operator_classes;
CREATE EXTENSION btree_gin SCHEMA operator_classes;
CREATE EXTENSION intarray SCHEMA operator_classes;
CREATE TABLE t (id int PRIMARY KEY, c citext UNIQUE, h hstore, l ltree, b1 int, b2 int, b3 text, s text, ia int[], r int) WITH (autovacuum_enabled = off);
-- those of btree in files
SET nvm.default_index_method = btree;
CREATE INDEX t_h ON t USING gin (h);
CREATE INDEX t_h2 ON t USING gist (h gist_hstore_ops (siglen = 32));
CREATE INDEX t_h3 ON t USING hash (h);
CREATE INDEX t_l ON t USING gist (l);
CREATE INDEX t_l2 ON t USING btree (l);
CREATE INDEX t_b ON t USING bloom (b1, b2, b3) WITH (length = 80, col1 = 2);
CREATE INDEX t_s ON t USING gin (s gin_trgm_ops);
CREATE INDEX t_s2 ON t USING gist (s gist_trgm_ops);
CREATE INDEX t_ia ON t USING gist (ia gist__intbig_ops);
CREATE INDEX t_ia2 ON t USING gin (ia gin__int_ops);
CREATE INDEX t_gg ON t USING gist (b1, s, l);
CREATE INDEX t_bg ON t USING gin (b1, b3, ia gin__int_ops);
-- an operator class in SQL: integers ordered by their distance from 100, then by value
CREATE FUNCTION far_lt(int, int) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS 'SELECT (abs($1 - 100), $1) < (abs($2 - 100), $2)';
CREATE FUNCTION far_le(int, int) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS 'SELECT (abs($1 - 100), $1) <= (abs($2 - 100), $2)';
CREATE FUNCTION far_gt(int, int) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS 'SELECT (abs($1 - 100), $1) > (abs($2 - 100), $2)';
CREATE FUNCTION far_ge(int, int) RETURNS bool LANGUAGE sql IMMUTABLE STRICT AS 'SELECT (abs($1 - 100), $1) >= (abs($2 - 100), $2)';
CREATE FUNCTION far_cmp(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE STRICT AS
$$BEGIN RETURN CASE WHEN $1 = $2 THEN 0 WHEN (abs($1 - 100), $1) < (abs($2 - 100), $2) THEN -1 ELSE 1 END; END$$;
CREATE OPERATOR <# (FUNCTION = far_lt, LEFTARG = int, RIGHTARG = int, COMMUTATOR = >#, NEGATOR = >=#);
CREATE OPERATOR <=# (FUNCTION = far_le, LEFTARG = int, RIGHTARG = int, COMMUTATOR = >=#, NEGATOR = >#);
CREATE OPERATOR ># (FUNCTION = far_gt, LEFTARG = int, RIGHTARG = int, COMMUTATOR = <#, NEGATOR = <=#);
CREATE OPERATOR >=# (FUNCTION = far_ge, LEFTARG = int, RIGHTARG = int, COMMUTATOR = <=#, NEGATOR = <#);
CREATE OPERATOR CLASS far_ops FOR TYPE int USING btree AS
  OPERATOR 1 <#, OPERATOR 2 <=#, OPERATOR 3 =, OPERATOR 4 >=#, OPERATOR 5 >#, FUNCTION 1 far_cmp(int, int);
CREATE INDEX t_r ON t USING btree (r far_ops);
-- a type of one's own with a btree class: a composite ordered backwards
CREATE TYPE ver AS (major int, minor int);
CREATE FUNCTION ver_cmp(ver, ver) RETURNS int LANGUAGE sql IMMUTABLE STRICT AS 'SELECT -btrecordcmp($1, $2)';
CREATE FUNCTION ver_lt(ver, ver) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN ver_cmp($1, $2) < 0; END';
CREATE FUNCTION ver_eq(ver, ver) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN ver_cmp($1, $2) = 0; END';
CREATE FUNCTION ver_gt(ver, ver) RETURNS bool LANGUAGE plpgsql IMMUTABLE STRICT AS 'BEGIN RETURN ver_cmp($1, $2) > 0; END';
CREATE OPERATOR <! (FUNCTION = ver_lt, LEFTARG = ver, RIGHTARG = ver, COMMUTATOR = >!);
CREATE OPERATOR =! (FUNCTION = ver_eq, LEFTARG = ver, RIGHTARG = ver, COMMUTATOR = =!);
CREATE OPERATOR >! (FUNCTION = ver_gt, LEFTARG = ver, RIGHTARG = ver, COMMUTATOR = <!);
CREATE OPERATOR CLASS ver_ops FOR TYPE ver USING btree AS OPERATOR 1 <!, OPERATOR 3 =!, OPERATOR 5 >!, FUNCTION 1 ver_cmp(ver, ver);
ALTER TABLE t ADD COLUMN v ver;
CREATE INDEX t_v ON t USING btree (v ver_ops);

CREATE FUNCTION add_rows(first int, last int) RETURNS void LANGUAGE sql AS $$
INSERT INTO t SELECT g, ('Key' || g)::citext, hstore(ARRAY['a', 'b' || g % 7], ARRAY[(g % 9)::text, NULL]), ('Top.N' || g % 10 || '.M' || g % 13 || '.L' || g)::ltree,
  g % 40, g % 30, 'b' || g % 20, 'the quick ' || md5((g % 50)::text) || ' fox', ARRAY[g % 11, g % 23, 200 + g % 3], g, (g / 100, g % 100)::ver FROM generate_series(first, last) g$$;
SELECT add_rows(1, 1500);
CREATE TABLE q (n serial, idx text, cond text);
INSERT INTO q (idx, cond) VALUES ('t_c_key', 'c = ''kEY77'''), ('t_h', 'h @> ''a=>3'''), ('t_h', 'h ?& ''{a,b3}'''), ('t_h2', 'h ? ''b4'''), ('t_h3', 'h = hstore(''{a,b4}''::text[], ''{4,NULL}''::text[])'),
  ('t_l', 'l <@ ''Top.N3'''), ('t_l', 'l ~ ''*.M5.*'''), ('t_l2', 'l = ''Top.N7.M12.L77'''), ('t_b', 'b1 = 5 AND b2 = 15 AND b3 = ''b5'''), ('t_s', 's LIKE ''%c4ca%'''), ('t_s2', 's ~ ''c4ca42'''),
  ('t_ia', 'ia @> ''{3,5}'''), ('t_ia2', 'ia @@ ''3&201'''), ('t_gg', 'b1 = 7 AND l <@ ''Top.N7'''), ('t_bg', 'b1 < 2 AND b3 = ''b1'''), ('t_r', 'r <# 110'), ('t_v', 'v >! (2, 95)::ver AND v <! (2, 80)::ver');
CREATE FUNCTION wrong(first bool DEFAULT false) RETURNS TABLE (idx text, cond text, used bool, got bigint, expected bigint) LANGUAGE plpgsql AS $$
DECLARE x record; line text; e text; f text;
BEGIN
  SET LOCAL max_parallel_workers_per_gather = 0;
  FOR x IN SELECT * FROM q ORDER BY n LOOP
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_indexscan = off;
    SET LOCAL enable_bitmapscan = off;
    EXECUTE format('SELECT count(*), md5(string_agg(id::text, '','' ORDER BY id)) FROM t WHERE %s', x.cond) INTO expected, e;
    SET LOCAL enable_seqscan = off;
    SET LOCAL enable_indexscan = on;
    SET LOCAL enable_bitmapscan = on;
    UPDATE pg_index SET indisvalid = (indexrelid = x.idx::regclass) WHERE indrelid = 't'::regclass;
    used := false;
    FOR line IN EXECUTE format('EXPLAIN (COSTS OFF) SELECT * FROM t WHERE %s', x.cond) LOOP
      used := used OR line ~ ('\m' || x.idx || '\M');
    END LOOP;
    EXECUTE format('SELECT count(*), md5(string_agg(id::text, '','' ORDER BY id)) FROM t WHERE %s', x.cond) INTO got, f;
    UPDATE pg_index SET indisvalid = true WHERE indrelid = 't'::regclass;
    idx := x.idx; cond := x.cond;
    IF e IS DISTINCT FROM f OR NOT used OR (first AND expected = 0) THEN RETURN NEXT; END IF;
  END LOOP;
END$$;
SELECT * FROM wrong(true);
INSERT INTO t (id, c) VALUES (5000, 'KEY5');
INSERT INTO t (id, c) VALUES (5000, 'KEY5') ON CONFLICT (c) DO UPDATE SET c = 'KEY5' RETURNING id, c;
UPDATE t SET c = 'key6' WHERE id = 7;
UPDATE t SET h = h || 'a=>3', l = l || 'Z', ia = ia + 3 WHERE id % 6 = 0;
UPDATE t SET b1 = 5, b2 = 15, b3 = 'b5', r = -r, v.minor = 90 WHERE id % 17 = 0;
UPDATE t SET s = upper(s) WHERE id % 5 = 0;
DELETE FROM t WHERE id % 4 = 1 AND id <> 77;
SELECT * FROM wrong();
BEGIN; SELECT add_rows(2000, 2200); DELETE FROM t WHERE id < 400; SELECT * FROM wrong() WHERE expected > 0; ROLLBACK;
VACUUM t;
SELECT * FROM wrong();
REINDEX TABLE CONCURRENTLY t;
SELECT * FROM wrong();
SELECT add_rows(3000, 3500);
CLUSTER t USING t_r;
RESET nvm.default_index_method;
SELECT * FROM wrong();
SET enable_seqscan = off;
SELECT string_agg(r::text, ' ') FROM (SELECT r FROM t WHERE r <# 105 ORDER BY r USING <#) x;
SELECT v FROM t WHERE v <! (35, 0)::ver ORDER BY v USING <! LIMIT 3;
SELECT count(*) FROM (SELECT s <-> 'quick fox' AS d, lag(s <-> 'quick fox') OVER () AS before FROM (SELECT s FROM t ORDER BY s <-> 'quick fox' LIMIT 50) x) y WHERE d < before;
SELECT id FROM t ORDER BY b1 <-> 20, id LIMIT 3;
RESET enable_seqscan;
-- a data type that goes away takes its column; one that is left is found as before
\set VERBOSITY terse
SET client_min_messages = warning;
DROP EXTENSION hstore CASCADE;
DROP TYPE ver CASCADE;
RESET client_min_messages;
DELETE FROM q WHERE idx LIKE 't_h%' OR idx = 't_v';
SELECT * FROM wrong();
UPDATE t SET r = r + 1 WHERE id % 2 = 0;
SELECT * FROM wrong();

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA operator_classes CASCADE;

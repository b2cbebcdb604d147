--
-- Every kind of index and scan gives the rows that a sequential scan gives
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
SET jit = off;
CREATE SCHEMA plan_shapes;
SET search_path = plan_shapes, public;

--
-- shapes(query): run the query under each way to scan and say which plan node
-- served it and whether its rows are those of the sequential scan.
--
CREATE FUNCTION node_of(q text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE line text; found text;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || q LOOP
    found := coalesce(found, substring(line FROM '(Bitmap Heap Scan|Index Only Scan|Index Scan|Seq Scan|Tid Range Scan|Tid Scan|Sample Scan)'));
  END LOOP;
  RETURN found;
END$$;
CREATE FUNCTION shapes(q text) RETURNS TABLE (shape text, node text, nrows bigint, same bool)
LANGUAGE plpgsql AS $$
DECLARE digest text; ref text;
BEGIN
  FOREACH shape IN ARRAY ARRAY['seqscan', 'indexscan', 'indexonlyscan', 'bitmapscan'] LOOP
    PERFORM set_config('enable_' || x, (x = shape OR x || shape = 'indexscanindexonlyscan')::text, true)
    FROM unnest(ARRAY['seqscan', 'indexscan', 'indexonlyscan', 'bitmapscan']) x;
    node := node_of(q);
    EXECUTE 'SELECT count(*), md5(coalesce(string_agg(x::text, e''\n'' ORDER BY x::text), '''')) FROM ('
      || q || ') x' INTO nrows, digest;
    ref := coalesce(ref, digest);
    same := digest = ref;
    RETURN NEXT;
  END LOOP;
END$$;
SET max_parallel_workers_per_gather = 0;

CREATE TABLE t (id int PRIMARY KEY, h int, a int[], p point, txt text, br int, pad text);
INSERT INTO t SELECT g, g % 500, ARRAY[g % 50, 1000 + g % 7], point(g % 50, g / 100),
  'text' || lpad((g % 2000)::text, 4, '0'), g / 10, repeat('p', 20 + g % 60)
FROM generate_series(1, 4000) g;
CREATE INDEX t_hash ON t USING hash (h);
CREATE INDEX t_gin ON t USING gin (a);
CREATE INDEX t_gist ON t USING gist (p);
CREATE INDEX t_spgist ON t USING spgist (txt);
CREATE INDEX t_brin ON t USING brin (br) WITH (pages_per_range = 4);
CREATE INDEX t_expr ON t ((id % 77), txt) INCLUDE (br) WHERE id % 2 = 0;
CREATE INDEX t_desc ON t (h DESC NULLS FIRST, id);
ANALYZE t;

CREATE TABLE q (n int, name text, query text);
INSERT INTO q VALUES
  (1, 'btree equal', 'SELECT id, pad FROM t WHERE id = 3711'),
  (2, 'btree range', 'SELECT id, br FROM t WHERE id BETWEEN 500 AND 2500'),
  (3, 'btree any', 'SELECT id, h FROM t WHERE id = ANY (ARRAY[1, 99, 3000, 20000])'),
  (4, 'btree only', 'SELECT id FROM t WHERE id > 3000'),
  (5, 'hash', 'SELECT id, h, pad FROM t WHERE h = 42'),
  (6, 'gin', 'SELECT id, a FROM t WHERE a @> ''{7,1003}'''),
  (7, 'gist', 'SELECT id, p FROM t WHERE p <@ box ''(10,10),(30,40)'''),
  (8, 'gist only', 'SELECT p::text FROM t WHERE p <@ box ''(0,0),(5,50)'''),
  (9, 'spgist', 'SELECT id, txt FROM t WHERE txt = ''text0077'''),
  (10, 'brin', 'SELECT id, br FROM t WHERE br BETWEEN 100 AND 120'),
  (11, 'partial', 'SELECT id, br FROM t WHERE id % 77 = 5 AND id % 2 = 0 AND txt > ''text1'''),
  (12, 'two', 'SELECT id FROM t WHERE (id < 300 OR h = 17) AND a && ''{1,2,3,4,5,6,7,8,9}''');
SELECT q.name, s.* FROM q, LATERAL shapes(query) s ORDER BY n, shape;
SELECT name, bool_and(same) FROM q, LATERAL shapes(query) GROUP BY n, name ORDER BY n;

-- and after changes of all sorts; only what differs is shown
CREATE VIEW differs AS SELECT q.name, s.* FROM q, LATERAL shapes(query) s WHERE NOT same;
UPDATE t SET pad = 'updated' WHERE id % 3 = 0;
SELECT * FROM differs;
UPDATE t SET h = h + 1 WHERE id % 4 = 0;
SELECT * FROM differs;
UPDATE t SET br = br - 1, a = a || 5 WHERE id % 5 = 0;
UPDATE t SET p = p + point(1, 1), txt = txt || 'x' WHERE id % 7 = 0;
SELECT * FROM differs;
DELETE FROM t WHERE id % 11 = 0;
SELECT * FROM differs;
UPDATE t SET id = id + 20000 WHERE id % 13 = 0;
UPDATE t SET id = id - 20000 WHERE id > 20000 AND id % 2 = 0;
SELECT * FROM differs;
SELECT q.name, s.node, s.nrows, s.same FROM q, LATERAL shapes(query) s WHERE shape = 'bitmapscan' ORDER BY n;
-- in the transaction that makes them, and taken back
BEGIN;
UPDATE t SET h = h + 1, br = br + 1 WHERE id % 2 = 0;
INSERT INTO t SELECT g, 42, '{7,1003}', '(11,11)', 'text0077', 110, 'new' FROM generate_series(30001, 30100) g;
SELECT * FROM differs;
SAVEPOINT a;
DELETE FROM t WHERE id % 3 = 0;
UPDATE t SET h = 42 WHERE id % 17 = 0;
SELECT * FROM differs;
ROLLBACK TO a;
SELECT * FROM differs;
ROLLBACK;
SELECT * FROM differs;
SELECT q.name, s.node, s.nrows, s.same FROM q, LATERAL shapes(query) s WHERE shape = 'indexscan' AND name NOT IN ('gin', 'brin', 'two') ORDER BY n;
VACUUM t;
SELECT * FROM differs;
INSERT INTO t SELECT g, g % 500, ARRAY[g % 50, 1000 + g % 7], point(g % 50, g / 100),
  'text' || lpad((g % 2000)::text, 4, '0'), g / 10, repeat('q', 20 + g % 60)
FROM generate_series(40001, 43000) g;
SELECT * FROM differs;
REINDEX TABLE t;
SELECT * FROM differs;
SELECT brin_summarize_new_values('t_brin') >= 0 AS summarized;
SELECT * FROM differs;
SELECT q.name, s.node, s.nrows, s.same FROM q, LATERAL shapes(query) s WHERE shape = 'bitmapscan' ORDER BY n;

-- lossy bitmaps: more pages than work_mem can tell apart
SET work_mem = '64kB';
SET enable_seqscan = off;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
CREATE TABLE big (id int PRIMARY KEY, r int, pad text);
INSERT INTO big SELECT g, (g::bigint * 7919) % 30011, repeat('x', 600) FROM generate_series(1, 30000) g;
CREATE INDEX ON big (r);
CREATE FUNCTION lossy(q text) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE line text; l bool := false;
BEGIN
  FOR line IN EXECUTE 'EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF) ' || q LOOP
    l := l OR line LIKE '%lossy=%';
  END LOOP;
  RETURN l;
END$$;
SELECT lossy('SELECT count(*) FROM big WHERE r < 15000');
SELECT count(*), sum(id), sum(r) FROM big WHERE r < 15000;
UPDATE big SET pad = 'y' WHERE id % 3 = 0;
UPDATE big SET r = -r WHERE id % 5 = 0;
DELETE FROM big WHERE id % 7 = 0;
SELECT count(*), sum(id), sum(r) FROM big WHERE r < 15000;
SELECT count(*), sum(id), sum(r) FROM big WHERE r < 15000 AND id > 100 AND id < 29000;
SELECT count(*), sum(id) FROM big WHERE r < 10 OR r > 29000 OR r BETWEEN 500 AND 20000;
RESET work_mem;
RESET enable_seqscan;
SET enable_bitmapscan = off;
SELECT count(*), sum(id), sum(r) FROM big WHERE r + 0 < 15000;
SELECT count(*), sum(id), sum(r) FROM big WHERE r + 0 < 15000 AND id > 100 AND id < 29000;
SELECT count(*), sum(id) FROM big WHERE r + 0 < 10 OR r + 0 > 29000 OR r + 0 BETWEEN 500 AND 20000;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA plan_shapes CASCADE;

--
-- TID, TID range, sample, bitmap, index-only and parallel scans; system columns
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA scan_kinds;
SET search_path = scan_kinds, public;

SET jit = off;
CREATE EXTENSION tsm_system_rows SCHEMA scan_kinds;
CREATE EXTENSION tsm_system_time SCHEMA scan_kinds;
CREATE TABLE t (id int PRIMARY KEY, k int, v int, s text) WITH (autovacuum_enabled = off);
INSERT INTO t SELECT g, g % 100, g, md5(g::text) FROM generate_series(1, 10000) g;
CREATE INDEX t_k ON t (k);
UPDATE t SET s = s || 'u' WHERE id % 3 = 0;
UPDATE t SET k = k + 1 WHERE id % 7 = 0;
DELETE FROM t WHERE id % 5 = 0;
VACUUM ANALYZE t;
CREATE TEMP TABLE tids USING heap AS SELECT id, ctid AS tid FROM t;

-- TID scans: each row by its own, lists, joins, parameters, none, nonsense
EXPLAIN (COSTS OFF) SELECT id FROM t WHERE ctid = '(0,1)' OR ctid = ANY ('{"(1,1)","(2,2)"}');
SET enable_hashjoin = off;
SET enable_mergejoin = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM tids JOIN t ON t.ctid = tids.tid;
SELECT count(*), count(*) FILTER (WHERE t.id = tids.id) FROM tids JOIN t ON t.ctid = tids.tid;
RESET enable_hashjoin;
RESET enable_mergejoin;
SELECT count(*) FROM t WHERE ctid = ANY (ARRAY(SELECT tid FROM tids WHERE id < 100));
SELECT count(*) FROM t WHERE ctid = ANY (ARRAY(SELECT tid FROM tids WHERE id < 100 UNION ALL SELECT tid FROM tids WHERE id < 50));
SELECT count(*) FROM t WHERE ctid = ANY ('{"(0,0)","(4294967295,65535)",NULL}');
SELECT id FROM t WHERE ctid = NULL;
PREPARE by_tid (tid) AS SELECT id FROM t WHERE ctid = $1;
SELECT tid FROM tids WHERE id = 6 \gset
EXECUTE by_tid(:'tid');
BEGIN;
UPDATE t SET v = -1 WHERE ctid = :'tid';
EXECUTE by_tid(:'tid');
SELECT v, ctid = :'tid' AS old FROM t WHERE id = 6;
DELETE FROM t WHERE ctid = (SELECT ctid FROM t WHERE id = 6);
ROLLBACK;
EXECUTE by_tid(:'tid');
SELECT id, v FROM t WHERE ctid = :'tid' FOR UPDATE;
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT id FROM t WHERE ctid = ANY (ARRAY(SELECT tid FROM tids WHERE id IN (1, 2, 4, 8)));
FETCH ALL FROM c;
FETCH BACKWARD 2 FROM c;
FETCH FIRST FROM c;
COMMIT;

-- TID ranges cut the table anywhere without loss, forward and backward
EXPLAIN (COSTS OFF) SELECT count(*) FROM t WHERE ctid > '(1,1)' AND ctid <= '(3,7)';
CREATE FUNCTION cut(at tid) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE below bigint; above bigint; here bigint;
BEGIN
  SELECT count(*) INTO below FROM t WHERE ctid < at;
  SELECT count(*) INTO above FROM t WHERE ctid > at;
  SELECT count(*) INTO here FROM t WHERE ctid >= at AND ctid <= at;
  RETURN here = 1 AND below + here + above = 8000;
END$$;
SELECT count(*), bool_and(cut(tid)) FROM tids WHERE id % 97 = 3;
SELECT count(*) = 8000 AS whole FROM t WHERE ctid >= '(0,0)';
SELECT count(*) FROM t WHERE ctid < '(0,0)';
SELECT count(*) FROM t WHERE ctid > '(4294967294,65535)';
SELECT count(*) FROM t WHERE ctid > '(2,0)' AND ctid < '(1,65535)';
SELECT string_agg(tid::text, ' ' ORDER BY tid) = (SELECT string_agg(ctid::text, ' ') FROM (SELECT ctid FROM t WHERE ctid >= '(1,0)' AND ctid < '(4,0)') x) AS in_order
FROM tids WHERE tid >= '(1,0)' AND tid < '(4,0)';
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT ctid FROM t WHERE ctid BETWEEN '(1,0)' AND '(3,65535)';
MOVE FORWARD ALL IN c;
CREATE TEMP TABLE seen (n serial, tid tid) USING heap ON COMMIT DROP;
DO $$DECLARE c refcursor := 'c'; x tid; BEGIN
  LOOP FETCH BACKWARD FROM c INTO x; EXIT WHEN NOT FOUND; INSERT INTO seen (tid) VALUES (x); END LOOP;
END$$;
SELECT count(*) = (SELECT count(*) FROM tids WHERE tid BETWEEN '(1,0)' AND '(3,65535)') AS all_, bool_and(tid < prev OR prev IS NULL) AS backward
FROM (SELECT tid, lag(tid) OVER (ORDER BY n) AS prev FROM seen) x;
COMMIT;
-- a range scan within a nested loop is begun again and again
SELECT count(*), sum(n) FROM generate_series(0, 3) b, LATERAL (SELECT count(*) > 0 AS any_, 1 AS n FROM t WHERE ctid >= format('(%s,0)', b)::tid AND ctid < format('(%s,0)', b + 1)::tid) x WHERE any_;
UPDATE t SET v = 0 WHERE ctid < '(2,0)' AND id % 2 = 0;
SELECT count(*) > 10 FROM t WHERE v = 0;
DELETE FROM t WHERE ctid >= '(1,0)' AND ctid < '(2,0)';
SELECT count(*) FROM t WHERE ctid >= '(1,0)' AND ctid < '(2,0)';

-- samples: all, none, repeatable, different seeds, no row twice, what is not visible never
CREATE TABLE sm (id int PRIMARY KEY, s text) WITH (autovacuum_enabled = off);
INSERT INTO sm SELECT g, repeat('s', 100) FROM generate_series(1, 20000) g;
DELETE FROM sm WHERE id % 2 = 1;
BEGIN; INSERT INTO sm SELECT g, 'never' FROM generate_series(30001, 31000) g; ROLLBACK;
CREATE VIEW samples AS
SELECT 'system 100' AS what, count(*) = 10000 AS ok FROM sm TABLESAMPLE system (100)
UNION ALL SELECT 'bernoulli 100', count(*) = 10000 AND min(id) = 2 FROM sm TABLESAMPLE bernoulli (100)
UNION ALL SELECT 'system 0', count(*) = 0 FROM sm TABLESAMPLE system (0)
UNION ALL SELECT 'bernoulli 0', count(*) = 0 FROM sm TABLESAMPLE bernoulli (0)
UNION ALL SELECT 'bernoulli 20', count(*) BETWEEN 1600 AND 2400 AND count(*) = count(DISTINCT id) AND count(*) FILTER (WHERE id % 2 = 1 OR id > 20000) = 0 FROM sm TABLESAMPLE bernoulli (20)
UNION ALL SELECT 'bernoulli of a seed', (SELECT array_agg(id) FROM sm TABLESAMPLE bernoulli (10) REPEATABLE (7)) = (SELECT array_agg(id) FROM sm TABLESAMPLE bernoulli (10) REPEATABLE (7))
UNION ALL SELECT 'system of a seed', (SELECT array_agg(id) FROM sm TABLESAMPLE system (30) REPEATABLE (7)) = (SELECT array_agg(id) FROM sm TABLESAMPLE system (30) REPEATABLE (7))
UNION ALL SELECT 'another seed', (SELECT array_agg(id) FROM sm TABLESAMPLE bernoulli (10) REPEATABLE (7)) <> (SELECT array_agg(id) FROM sm TABLESAMPLE bernoulli (10) REPEATABLE (8))
UNION ALL SELECT 'system 30', count(*) BETWEEN 1000 AND 6500 AND count(*) = count(DISTINCT id) FROM sm TABLESAMPLE system (30) REPEATABLE (1)
UNION ALL SELECT 'rows 500', count(*) = 500 AND count(DISTINCT id) = 500 FROM sm TABLESAMPLE system_rows (500)
UNION ALL SELECT 'rows 0', count(*) = 0 FROM sm TABLESAMPLE system_rows (0)
UNION ALL SELECT 'more rows than there are', count(*) = 10000 FROM sm TABLESAMPLE system_rows (100000)
UNION ALL SELECT 'time', count(*) = 10000 FROM sm TABLESAMPLE system_time (100000)
UNION ALL SELECT 'with a join', count(*) = 10000 FROM sm a TABLESAMPLE bernoulli (100) JOIN sm b TABLESAMPLE system (100) USING (id)
UNION ALL SELECT 'empty', count(*) = 0 FROM (SELECT * FROM sm LIMIT 0) x, sm TABLESAMPLE system (50);
TABLE samples;
VACUUM sm;
SELECT * FROM samples WHERE NOT ok;
SELECT g, (SELECT count(*) = 100 FROM (SELECT id FROM sm TABLESAMPLE system_rows (100 + 0 * g)) x) FROM generate_series(1, 3) g;
SELECT count(*) FROM sm TABLESAMPLE system (101);
SELECT count(*) FROM sm TABLESAMPLE bernoulli (NULL);
CREATE TABLE none (id int);
SELECT count(*) FROM none TABLESAMPLE system (50);
SELECT count(*) FROM none TABLESAMPLE system_rows (50);

-- one answer by every access path: exact, lossy, AND, OR, parallel, index-only, backward
CREATE TABLE b (id int PRIMARY KEY, x int, y int, pad text) WITH (autovacuum_enabled = off);
INSERT INTO b SELECT g, g % 1000, (g * 7) % 997, repeat('b', 200) FROM generate_series(1, 20000) g;
CREATE INDEX b_x ON b (x);
CREATE INDEX b_y ON b (y) INCLUDE (x);
UPDATE b SET pad = pad || 'more' WHERE id % 4 = 1;
UPDATE b SET y = y + 1 WHERE id % 6 = 1;
DELETE FROM b WHERE id % 9 = 1;
ANALYZE b;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET min_parallel_table_scan_size = 0;
SET min_parallel_index_scan_size = 0;
CREATE FUNCTION paths(q text) RETURNS TABLE (answer text, paths bigint, which text) LANGUAGE plpgsql AS $$
DECLARE s text; w text; p int; r text; line text; nodes text;
BEGIN
  CREATE TEMP TABLE answers (r text, nodes text) ON COMMIT DROP;
  FOREACH s IN ARRAY '{seqscan,indexscan,indexonlyscan,bitmapscan}'::text[] LOOP
    PERFORM set_config('enable_' || o, (o = s)::text, true) FROM unnest('{seqscan,indexscan,indexonlyscan,bitmapscan}'::text[]) o;
    FOREACH w IN ARRAY '{64kB,4MB}'::text[] LOOP
      FOREACH p IN ARRAY '{0,2}'::int[] LOOP
        PERFORM set_config('work_mem', w, true), set_config('max_parallel_workers_per_gather', p::text, true);
        EXECUTE q INTO r;
        nodes := '';
        FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || q LOOP
          nodes := nodes || coalesce(substring(line FROM '(Parallel Seq Scan|Parallel Bitmap Heap Scan|Parallel Index Only Scan|Parallel Index Scan|Seq Scan|Bitmap Heap Scan|BitmapAnd|BitmapOr|Index Only Scan|Index Scan)') || ' ', '');
        END LOOP;
        INSERT INTO answers VALUES (r, nodes);
      END LOOP;
    END LOOP;
  END LOOP;
  RETURN QUERY SELECT a.r, count(*), string_agg(DISTINCT trim(a.nodes), ', ' ORDER BY trim(a.nodes)) FROM answers a GROUP BY a.r ORDER BY a.r;
  DROP TABLE answers;
END$$;
SELECT * FROM paths('SELECT count(*) || '' '' || sum(id) || '' '' || sum(length(pad)) FROM b WHERE x < 300');
SELECT * FROM paths('SELECT count(*) || '' '' || sum(x) FROM b WHERE y BETWEEN 100 AND 200');
SELECT * FROM paths('SELECT count(*) || '' '' || sum(id) FROM b WHERE x BETWEEN 10 AND 400 AND y BETWEEN 5 AND 300');
SELECT * FROM paths('SELECT count(*) || '' '' || sum(id) FROM b WHERE x = 7 OR y = 8 OR id = 9');
SELECT answer, paths FROM paths('SELECT string_agg(id::text, '','') FROM (SELECT id FROM b WHERE id BETWEEN 500 AND 530 ORDER BY id DESC) z');
BEGIN;
UPDATE b SET x = x + 1 WHERE x < 100;
DELETE FROM b WHERE y < 50;
SELECT * FROM paths('SELECT count(*) || '' '' || sum(id) FROM b WHERE x BETWEEN 10 AND 400 AND y BETWEEN 5 AND 300');
ROLLBACK;
SELECT answer, paths FROM paths('SELECT count(*) || '' '' || sum(id) FROM b WHERE x BETWEEN 10 AND 400 AND y BETWEEN 5 AND 300');
VACUUM b;
SELECT answer, paths FROM paths('SELECT count(*) || '' '' || sum(x) FROM b WHERE y BETWEEN 100 AND 200');

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA scan_kinds CASCADE;

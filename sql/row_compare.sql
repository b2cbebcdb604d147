--
-- Row comparisons as conditions of nvm_btree indexes: the plans that btree gets,
-- and the rows that a sequential scan gives
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
SET jit = off;
SET max_parallel_workers_per_gather = 0;
SET enable_bitmapscan = off;
CREATE SCHEMA row_compare;
SET search_path = row_compare, public;

CREATE TABLE r (id int, a int, b int, c text, d int8);
SELECT setseed(0.42);
INSERT INTO r SELECT i, CASE WHEN random() > 0.05 THEN (random() * 20)::int END,
  CASE WHEN random() > 0.1 THEN (random() * 20)::int END,
  CASE WHEN random() > 0.1 THEN chr(97 + (random() * 8)::int) || repeat('z', (random() * 3)::int) END,
  CASE WHEN random() > 0.1 THEN (random() * 20)::int8 END
FROM generate_series(1, 6000) i;
CREATE INDEX r_ab ON r (a, b, id);
CREATE INDEX r_db ON r (d DESC, b DESC NULLS LAST, id);
CREATE INDEX r_ca ON r (c, a DESC, b);
CREATE INDEX r_xa ON r ((a + 1), lower(c), b);
ANALYZE r;

-- keyset pagination: an index condition, no sort, no filter
EXPLAIN (COSTS OFF) SELECT a, b FROM r WHERE (a, b) > (5, 1) ORDER BY a, b LIMIT 3;
SELECT a, b FROM r WHERE (a, b) > (5, 1) ORDER BY a, b LIMIT 3;
EXPLAIN (COSTS OFF) SELECT a, b, c FROM r WHERE (a, b) > (5, 1) ORDER BY a, b LIMIT 3;
EXPLAIN (COSTS OFF) SELECT a, b FROM r WHERE (a, b) < (5, 1) ORDER BY a DESC, b DESC LIMIT 3;
SELECT a, b FROM r WHERE (a, b) < (5, 1) ORDER BY a DESC, b DESC LIMIT 3;
EXPLAIN (COSTS OFF) SELECT a, b, id FROM r WHERE (a, b, id) >= (5, 1, 1000) AND (a, b, id) < (5, 3, 0) ORDER BY a, b, id;
SELECT a, b, id FROM r WHERE (a, b, id) >= (5, 1, 1000) AND (a, b, id) < (5, 3, 0) ORDER BY a, b, id LIMIT 4;
-- the row on the other side
EXPLAIN (COSTS OFF) SELECT a, b FROM r WHERE (5, 1) < (a, b) ORDER BY a, b LIMIT 3;
-- a column that no index has there: lossy, what remains is a filter
EXPLAIN (COSTS OFF) SELECT a, b, c FROM r WHERE (a, b, c) > (5, 1, 'c') ORDER BY a, b LIMIT 3;
-- parameters that come late
EXPLAIN (COSTS OFF) SELECT a, b FROM r WHERE (a, b) > ((SELECT 5), (SELECT 1)) ORDER BY a, b LIMIT 3;
SELECT a, b FROM r WHERE (a, b) > ((SELECT 5), (SELECT 1)) ORDER BY a, b LIMIT 3;
-- a page by the index reads a page of the index, not all of it
CREATE FUNCTION looked_at(q text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE j json;
BEGIN
  EXECUTE 'EXPLAIN (ANALYZE, FORMAT json, TIMING off) ' || q INTO j;
  RETURN format('%s: %s rows, %s removed', j #>> '{0,Plan,Plans,0,Node Type}', j #>> '{0,Plan,Plans,0,Actual Rows}',
    coalesce(j #>> '{0,Plan,Plans,0,Rows Removed by Filter}', '0'));
END$$;
SELECT replace(looked_at('SELECT a, b FROM r WHERE (a, b) > (10, 10) ORDER BY a, b LIMIT 5'), '.00', '');
SELECT replace(looked_at('SELECT a, b FROM r WHERE (a, b) <= (10, 10) ORDER BY a DESC, b DESC LIMIT 5'), '.00', '');

--
-- differences(columns): all operators, constants, NULLs and scans in both
-- directions against the sequential scan.  How many queries there were, how many
-- had the comparison in an index condition, and which differ.
--
CREATE FUNCTION answer(q text, shape text, OUT result text, OUT cond bool) LANGUAGE plpgsql AS $$
DECLARE line text;
BEGIN
  PERFORM set_config('enable_' || x, (x = shape OR (shape = 'indexonlyscan' AND x = 'indexscan'))::text, true)
  FROM unnest(ARRAY['seqscan', 'indexscan', 'indexonlyscan', 'bitmapscan']) x;
  cond := false;
  FOR line IN EXECUTE 'EXPLAIN (COSTS OFF) ' || q LOOP
    cond := cond OR line ~ 'Index Cond:.*ROW\(';
  END LOOP;
  EXECUTE 'SELECT md5(string_agg(s::text, '' '')) || count(*) FROM (' || q || ') s' INTO result;
END$$;
CREATE FUNCTION differences(cols text, consts text[], more text, orders text[], OUT queries int, OUT by_index text, OUT differ text[])
LANGUAGE plpgsql AS $$
DECLARE op text; v text; o text; q text; shape text; want text; got record; n int := 0;
BEGIN
  queries := 0;
  FOREACH op IN ARRAY ARRAY['<', '<=', '>=', '>'] LOOP
    FOREACH v IN ARRAY consts LOOP
      FOREACH o IN ARRAY orders LOOP
        q := format('SELECT %s, id FROM r WHERE (%s) %s (%s) %s ORDER BY %s', cols, cols, op, v, more, o);
        SELECT result INTO want FROM answer(q, 'seqscan');
        FOREACH shape IN ARRAY ARRAY['indexscan', 'indexonlyscan', 'bitmapscan'] LOOP
          SELECT * INTO got FROM answer(q, shape);
          queries := queries + 1;
          n := n + got.cond::int;
          IF got.result IS DISTINCT FROM want THEN
            differ := differ || (shape || ': ' || q);
          END IF;
        END LOOP;
      END LOOP;
    END LOOP;
  END LOOP;
  by_index := CASE n WHEN 0 THEN 'none' WHEN queries THEN 'all' ELSE CASE WHEN n > 0.9 * queries THEN 'most' ELSE n::text END END;
END$$;
SELECT * FROM differences('a, b', '{"5, 1", "0, 0", "20, 20", "-1, 3", "21, 0", "10, 5", "10, NULL", "3::int8, 4::int2"}', '',
  '{"a, b, id", "a DESC, b DESC, id DESC"}');
SELECT * FROM differences('a, b', '{"NULL, 3"}', '', '{"a, b, id"}');
SELECT * FROM differences('a, b, id', '{"5, 1, 3000", "7, NULL, 1", "7, 7, NULL", "9, 9, 1"}', 'AND a < 11', '{"a, b, id", "a DESC, b DESC, id DESC"}');
SELECT * FROM differences('a, b', '{"5, 1", "6, 9", "4, 3"}', 'AND a > 5 AND b >= 4', '{"a, b, id", "a DESC, b DESC, id DESC"}');
SELECT * FROM differences('a, b', '{"5, 1"}', 'AND a IS NULL', '{"a, b, id"}');
SELECT * FROM differences('b, id', '{"5, 1000", "0, 0", "20, 9000", "10, NULL"}', 'AND a = 7', '{"a, b, id", "a DESC, b DESC, id DESC"}');
SELECT * FROM differences('b, id', '{"5, 1000", "0, 0", "20, 9000", "10, NULL"}', 'AND a = ANY (''{3, 7, 11}'')', '{"a, b, id", "a DESC, b DESC, id DESC"}');
SELECT * FROM differences('d, b', '{"5, 1", "0, 0", "20, 20", "10, NULL", "12::int2, 3::int8"}', '', '{"d DESC, b DESC NULLS LAST, id", "d, b NULLS FIRST, id DESC"}');
SELECT * FROM differences('c, a', '{"''c'', 5", "''fzz'', 20", "''a'', 0", "''d'', NULL"}', '', '{"c, a DESC, b, id", "c DESC, a, b DESC, id"}');
SELECT * FROM differences('c, b', '{"''c'', 5", "''fzz'', 20", "''a'', 0"}', '', '{"c, a, b, id"}');
DROP INDEX r_ab;
CREATE INDEX r_nf ON r (a NULLS FIRST, d NULLS FIRST, c);
SELECT * FROM differences('a, d', '{"5, 1", "0, 0", "20, 20", "10, NULL"}', '', '{"a NULLS FIRST, d NULLS FIRST, c, id", "a DESC, d DESC, c DESC, id"}');
SELECT * FROM differences('a, d, c', '{"5, 1, ''c''", "10, 10, NULL", "8, 9, ''d''"}', '', '{"a NULLS FIRST, d NULLS FIRST, c, id", "a DESC, d DESC, c DESC, id"}');
SELECT * FROM differences('a + 1, lower(c), b', '{"5, ''c'', 1", "10, ''f'', 3"}', '', '{"a + 1, lower(c), b, id"}');
DROP INDEX r_nf;
CREATE INDEX r_ab ON r (a, b, id);

-- as the inner side of a join, and in a sub-select
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = off;
EXPLAIN (COSTS OFF) SELECT v.*, n.* FROM (VALUES (3, 4), (19, 20), (NULL, 3), (4, NULL)) v (x, y),
  LATERAL (SELECT a, b FROM r WHERE (a, b) > (v.x, v.y) ORDER BY a, b LIMIT 2) n;
SELECT v.*, n.* FROM (VALUES (3, 4), (19, 20), (NULL, 3), (4, NULL)) v (x, y),
  LATERAL (SELECT a, b FROM r WHERE (a, b) > (v.x, v.y) ORDER BY a, b LIMIT 2) n;
SELECT x, EXISTS (SELECT FROM r WHERE (a, b) > (x, 20)) FROM generate_series(18, 21) x;
RESET enable_seqscan;
RESET enable_hashjoin;
RESET enable_mergejoin;
RESET enable_material;

-- a cursor that turns round
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT a, b FROM r WHERE (a, b) > (20, 19) ORDER BY a, b;
FETCH 2 FROM c;
FETCH BACKWARD ALL FROM c;
FETCH 3 FROM c;
MOVE FORWARD ALL FROM c;
FETCH BACKWARD 1 FROM c;
COMMIT;

-- a generic plan, and one whose indexes change under it
PREPARE page(int, int) AS SELECT a, b FROM r WHERE (a, b) > ($1, $2) ORDER BY a, b LIMIT 2;
SET plan_cache_mode = force_generic_plan;
EXECUTE page(5, 1);
EXECUTE page(NULL, 1);
EXECUTE page(5, NULL);
REINDEX INDEX r_ab;
EXECUTE page(5, 1);
ALTER INDEX r_ab RENAME TO r_ba;
EXECUTE page(5, 1);
EXPLAIN (COSTS OFF) EXECUTE page(5, 1);
RESET plan_cache_mode;

-- rows that are changed, locked and inserted by what they find
BEGIN;
WITH u AS (UPDATE r SET b = b + 100 WHERE (a, b) BETWEEN (5, 1) AND (5, 3) RETURNING a, b) SELECT min(b), max(b), count(*) > 0 FROM u;
SELECT count(*) > 0 FROM (SELECT FROM r WHERE (a, b) > (5, 100) AND (a, b) < (6, 0) FOR UPDATE) x;
DELETE FROM r WHERE (a, b) > (5, 100) AND (a, b) < (6, 0);
SELECT count(*) FROM r WHERE (a, b) > (5, 100) AND (a, b) < (6, 0);
MERGE INTO r USING (VALUES (1)) v ON (a, b) > (19, 100) WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, a, b) VALUES (0, 20, 200);
SELECT id, a, b FROM r WHERE (a, b) > (20, 100);
ROLLBACK;

-- the recheck is prepared when the statement begins, with what it depends on
BEGIN;
SET LOCAL enable_seqscan = off;
EXPLAIN (COSTS OFF) UPDATE r SET b = 0 WHERE (a, b) > ((SELECT 20), 19) AND id < (SELECT max(id) FROM r);
UPDATE r SET c = 'q' WHERE (a, b) > ((SELECT 20), 19) AND id < (SELECT max(id) FROM r) AND b = (SELECT 20) RETURNING a, b, c;
ROLLBACK;

-- but with no value before its time: not before the triggers that come first, and
-- none that nobody asks for
CREATE FUNCTION batch() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('app.batch', 'of the trigger', true); RETURN NULL; END$$;
CREATE TRIGGER batch BEFORE UPDATE ON r FOR EACH STATEMENT EXECUTE FUNCTION batch();
CREATE SEQUENCE s;
BEGIN;
SET LOCAL enable_seqscan = off;
UPDATE r SET c = (SELECT current_setting('app.batch', true)) WHERE (a, b) > (20, 19) AND b = 20 RETURNING a, b, c;
UPDATE r SET c = (SELECT nextval('s'))::text WHERE (a, b) > (999, 0);
UPDATE r SET c = (SELECT x FROM (VALUES ('p'), ('q')) v (x)) WHERE (a, b) > (999, 0);
WITH i AS (INSERT INTO r (id, a) VALUES (-1, 0) RETURNING c) UPDATE r SET c = (SELECT c FROM i) WHERE (a, b) > (999, 0);
SELECT (SELECT is_called FROM s), count(*) FROM r WHERE id = -1;
ROLLBACK;
DROP TRIGGER batch ON r;

-- partitions, of which a function chooses some when the executor starts; that
-- it plans a row comparison of the same index itself does no harm
CREATE TABLE p (a int, b int) PARTITION BY LIST (a);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1) USING nvm;
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) USING nvm;
INSERT INTO p SELECT 1 + i % 2, i FROM generate_series(1, 2000) i;
CREATE INDEX p1_ab ON p1 (a, b);
CREATE INDEX p2_ab ON p2 (a, b);
ANALYZE p;
CREATE FUNCTION chosen() RETURNS int STABLE LANGUAGE plpgsql AS $$
DECLARE n int;
BEGIN
  EXECUTE 'SELECT count(*) FROM (SELECT FROM p1 WHERE (a, b) > (1, 1990) UNION ALL SELECT FROM p2 WHERE (a, b) > (2, 1990)) x' INTO n;
  RETURN CASE WHEN n = 10 THEN 2 END;
END$$;
SET enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT * FROM p WHERE a = chosen() AND (a, b) > (2, 1996) ORDER BY b;
SELECT * FROM p WHERE a = chosen() AND (a, b) > (2, 1996) ORDER BY b;
RESET enable_seqscan;

SELECT count(*) FROM nvm.check('r');
SET client_min_messages = warning;
DROP SCHEMA row_compare CASCADE;

--
-- Row comparisons beside another condition on their first column.  A file of its own,
-- since an assertion of PostgreSQL 17's own btree fails there (scripts/check_like_heap.sh)
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
SET jit = off;
SET max_parallel_workers_per_gather = 0;
CREATE SCHEMA row_compare_first;
SET search_path = row_compare_first, public;

CREATE TABLE r (id int, a int, b int);
SELECT setseed(0.42);
INSERT INTO r SELECT i, CASE WHEN random() > 0.05 THEN (random() * 20)::int END,
  CASE WHEN random() > 0.1 THEN (random() * 20)::int END
FROM generate_series(1, 6000) i;
CREATE INDEX r_ab ON r (a, b, id);
ANALYZE r;

-- as in row_compare.sql
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
SELECT * FROM differences('a, b', '{"5, 1", "6, 9", "4, 3"}', 'AND a = 5', '{"a, b, id", "a DESC, b DESC, id DESC"}');
SELECT * FROM differences('a, b', '{"5, 1", "6, 9", "4, 3"}', 'AND a IN (4, 5, 6, 9)', '{"a, b, id", "a DESC, b DESC, id DESC"}');
SELECT * FROM differences('a, b', '{"5, 1", "6, 9", "4, 3"}', 'AND (a, b) <= (6, 10) AND a >= 5', '{"a, b, id", "a DESC, b DESC, id DESC"}');

SELECT count(*) FROM nvm.check('r');
SET client_min_messages = warning;
DROP SCHEMA row_compare_first CASCADE;

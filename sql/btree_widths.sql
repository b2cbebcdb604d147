--
-- nvm_btree: integers of all widths against each other, conditions of one column
-- that contradict or repeat each other, arrays of which an inner join side goes back
-- to a mark. What the index answers is held against what the table answers.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET jit = off;
CREATE SCHEMA btree_widths;
SET search_path = btree_widths, public;
CREATE TABLE w (s int2, i int4, b int8, t text) USING nvm;
CREATE INDEX w_s ON w USING nvm_btree (s, i);
CREATE INDEX w_sd ON w USING nvm_btree (s DESC NULLS LAST) WHERE b > 0;
CREATE INDEX w_i ON w USING nvm_btree (i, s);
CREATE INDEX w_b ON w USING nvm_btree (b DESC, s);
CREATE INDEX w_t ON w USING nvm_btree (t, s);
INSERT INTO w SELECT CASE WHEN g % 50 = 0 THEN NULL ELSE (g * 7 % 401 - 200)::int2 END, g % 97 - 40,
	CASE g % 40 WHEN 0 THEN NULL WHEN 1 THEN 5000000000 + g ELSE g % 211 - 100 END, 't' || g % 30
FROM generate_series(1, 4000) g;
INSERT INTO w VALUES (32767, 2147483647, 9223372036854775807, 'top'), (-32768, -2147483648, -9223372036854775808, 'bottom');
DELETE FROM w WHERE s % 20 = 3;
UPDATE w SET s = -s, t = t || 'u' WHERE i = 5;
ANALYZE w;

-- Number of rows and their sum by the index and without one, for each condition.
CREATE FUNCTION ask(cond text, OUT answer text) LANGUAGE plpgsql AS $$
DECLARE q text := 'SELECT count(*) || '' '' || coalesce(sum(hashtext(w::text)), 0) FROM w WHERE ' || cond;
	n text; other text; ways text[] := '{indexscan,bitmapscan}'; way text;
BEGIN
	PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_indexonlyscan', 'off', true),
		set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'on', true);
	EXECUTE q INTO n;
	PERFORM set_config('enable_seqscan', 'off', true);
	FOREACH way IN ARRAY ways LOOP
		PERFORM set_config('enable_' || way, 'on', true);
		EXECUTE q INTO other;
		PERFORM set_config('enable_' || way, 'off', true);
		IF other IS DISTINCT FROM n THEN
			answer := concat_ws(' ', answer, way, other, 'not', n);
		END IF;
	END LOOP;
	answer := coalesce('DIFFERS ' || answer, split_part(n, ' ', 1));
END$$;

-- each width against each, numbers that fit and that do not
SELECT c || ' ' || op || ' ' || v || '::' || ty AS cond, ask(c || ' ' || op || ' ' || '''' || v || '''::' || ty)
FROM (VALUES ('s'), ('i'), ('b')) c (c), (VALUES ('='), ('<'), ('>=')) o (op),
	(VALUES ('3', 'int2'), ('-7', 'int4'), ('5', 'int8'), ('70000', 'int4'), ('-70000', 'int8'), ('5000000001', 'int8')) v (v, ty)
ORDER BY 1;
SELECT c || ' ' || op || ' ' || v || '::' || ty AS cond, ask(c || ' ' || op || ' (' || quote_literal(v) || '::' || ty || ')')
FROM (VALUES ('s'), ('i'), ('b')) c (c), (VALUES ('= ANY'), ('< ANY'), ('>= ANY')) o (op),
	(VALUES ('{1,-7,3,3,NULL}', 'int2[]'), ('{1,70000,-7}', 'int4[]'), ('{5000000001,2,-40}', 'int8[]'), ('{8}', 'int8[]')) v (v, ty)
ORDER BY 1;
-- the ends
SELECT ask('s = 32767'), ask('s > 32766'), ask('s <= -32768'), ask('s = 32767::int8'), ask('i = 2147483647::int8'), ask('b >= 9223372036854775807'), ask('b = -9223372036854775808');

-- several conditions of one column, of different types, hidden from the planner
SELECT c, ask(c) FROM unnest(ARRAY[
	's = (SELECT 3::int2) AND s = (SELECT 3::int8)',
	's = (SELECT 3::int2) AND s = (SELECT 4::int4)',
	's = (SELECT 3) AND s <= (SELECT 3::int8)',
	's = (SELECT 3) AND s <= (SELECT 2::int8)',
	's = (SELECT 3) AND s >= (SELECT 3)',
	's = (SELECT 3) AND s >= (SELECT 4)',
	's = (SELECT 3) AND s < (SELECT 3)',
	's = (SELECT 3) AND s IS NOT NULL',
	's = (SELECT 3) AND s IS NULL',
	's IS NULL AND s > (SELECT 1)',
	's IS NULL AND i = (SELECT 10)',
	's > (SELECT 3) AND s >= (SELECT 3::int8) AND s > (SELECT 1::int2)',
	's >= (SELECT 3) AND s >= (SELECT 3::int8)',
	's < (SELECT 9) AND s <= (SELECT 9::int8) AND s < (SELECT 100000)',
	's > (SELECT 9) AND s < (SELECT 9::int8)',
	's >= (SELECT 9) AND s <= (SELECT 9::int8)',
	's > (SELECT 9) AND s <= (SELECT 9)',
	's > (SELECT 100000) AND s < (SELECT 200000::int8)',
	's = ANY (''{1,2,4,9}'') AND s = ANY (''{4,9,70000}''::int8[])',
	's = ANY (''{1,2,4,9}'') AND s = ANY (''{5,70000}''::int8[])',
	's = ANY (''{1,2,4,9}''::int8[]) AND s <= (SELECT 4)',
	's = ANY (''{1,2,4,9}''::int8[]) AND s >= (SELECT 4::int2) AND s = (SELECT 9)',
	's = ANY (''{1,70000}''::int4[]) AND i = ANY (''{5,7,5000000000}''::int8[])',
	's = ANY (''{1,2}'') AND i = ANY (''{5,7}''::int8[]) AND i <> 7',
	's > (SELECT 100) AND i = ANY (''{5,7}''::int2[])',
	's = (SELECT 3) AND i > (SELECT 0::int8) AND i < (SELECT 20::int2)',
	's < ANY (''{5,3,NULL}''::int4[]) AND s > ANY (''{-3,2}''::int8[])',
	's = ANY (''{NULL}''::int2[]) OR s = 4',
	'b = (SELECT 5::int2) AND s = ANY (''{1,2,3,4,5,6,7}'')',
	't = (SELECT ''t5'') AND s BETWEEN (SELECT -10) AND (SELECT 10::int8)',
	't >= (SELECT ''t5''::name) AND t < (SELECT ''t7'') AND t = ANY (''{t5,t6,t61}''::name[])',
	's = ANY (''{-3,5}''::int8[]) AND b > 0 AND b < 50']) c;

-- in order, from both ends
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT string_agg(s::text, ' ') FROM (SELECT s FROM w WHERE s > 190::int8 AND s < 40000 ORDER BY s, i LIMIT 8) q;
SELECT string_agg(s::text, ' ') FROM (SELECT DISTINCT s FROM w WHERE s IN (7, 2, -199) ORDER BY s DESC) q;
SELECT min(s), max(s), min(i), max(i) FROM w WHERE s < 32767 AND s > -32768;
SELECT string_agg(b::text, ' ') FROM (SELECT b FROM w ORDER BY b DESC NULLS FIRST OFFSET 100 LIMIT 3) q;

-- a merge join that goes back to a mark, in a scan with an array
SET enable_hashjoin = off;
SET enable_nestloop = off;
SET enable_material = off;
SET enable_sort = off;
EXPLAIN (COSTS OFF) SELECT count(*), sum(x.i + y.i) FROM w x JOIN w y ON x.s = y.s WHERE x.s IN (-8, 5, 6) AND y.s IN (-8, 5, 6);
SELECT count(*), sum(x.i + y.i) FROM w x JOIN w y ON x.s = y.s WHERE x.s IN (-8, 5, 6) AND y.s IN (-8, 5, 6);
SELECT count(*), sum(x.i + y.i) FROM w x JOIN w y ON x.s = y.s WHERE x.s = ANY ('{-8,5,70000}'::int8[]) AND y.s IN (-8, 5, 6);
RESET enable_hashjoin;
RESET enable_nestloop;
RESET enable_material;
RESET enable_sort;
SELECT count(*), sum(x.i + y.i) FROM w x, w y WHERE x.s = y.s AND x.s IN (-8, 5, 6) AND y.s IN (-8, 5, 6);

-- a parallel scan that begins anew
SET enable_material = off;
SET min_parallel_index_scan_size = 0;
SET min_parallel_table_scan_size = 0;
SET parallel_setup_cost = 0;
SET parallel_tuple_cost = 0;
SET max_parallel_workers_per_gather = 2;
EXPLAIN (COSTS OFF) SELECT * FROM (SELECT count(b), sum(b % 1000) FROM w WHERE s > 10) ss RIGHT JOIN (VALUES (1), (2), (3)) v (x) ON true;
SELECT * FROM (SELECT count(b), sum(b % 1000) FROM w WHERE s > 10) ss RIGHT JOIN (VALUES (1), (2), (3)) v (x) ON true;
SELECT * FROM (SELECT count(b), sum(b % 1000) FROM w WHERE s = ANY ('{11,12,30}')) ss RIGHT JOIN (VALUES (1), (2)) v (x) ON true;
RESET enable_material;
RESET min_parallel_index_scan_size;
RESET min_parallel_table_scan_size;
RESET parallel_setup_cost;
RESET parallel_tuple_cost;
RESET max_parallel_workers_per_gather;

-- a unique key of small integers
CREATE TABLE u (s int2 PRIMARY KEY, n int) USING nvm;
CREATE UNIQUE INDEX u_s ON u USING nvm_btree (s);
INSERT INTO u SELECT g, g FROM generate_series(-700, 700) g ORDER BY (g * 37) % 1401;
INSERT INTO u VALUES (7, 0);
INSERT INTO u VALUES (7, 0), (701, 1) ON CONFLICT (s) DO UPDATE SET n = 1000;
UPDATE u SET s = s + 1 WHERE s = 5;
UPDATE u SET s = s + 10000;
SELECT count(*), min(s), max(s), sum(n) FROM u WHERE s > 0::int8;
DELETE FROM u WHERE s % 3 = 0;
SELECT string_agg(s::text, ' ') FROM (SELECT s FROM u WHERE s >= 10000::int8 ORDER BY s LIMIT 6) q;
SELECT relname, c.* FROM pg_class, LATERAL nvm.check(oid, true) c
WHERE relnamespace = 'btree_widths'::regnamespace AND relkind = 'r';
SELECT count(*) FROM nvm.relations WHERE relation::text ~ '^(btree_widths\.)?(w|u)_' AND kind = 'i';
SET client_min_messages = warning;
DROP SCHEMA btree_widths CASCADE;

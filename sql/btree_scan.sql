--
-- Scans of nvm_btree: what conditions become, and what they find
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET jit = off;
CREATE SCHEMA btree_scan;
SET search_path = btree_scan, public;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
CREATE TABLE bs (a int, b text, c numeric, d int8) USING nvm;
CREATE INDEX bs_ab ON bs USING nvm_btree (a, b);
CREATE INDEX bs_bc ON bs USING nvm_btree (b DESC, c NULLS FIRST);
CREATE INDEX bs_d ON bs USING nvm_btree (d) INCLUDE (c);
INSERT INTO bs SELECT g % 10, chr(97 + g % 7), g % 13, g FROM generate_series(1, 2000) g;
INSERT INTO bs VALUES (NULL, 'n', 1, 3001), (NULL, NULL, NULL, 3002), (5, NULL, NULL, NULL);
ANALYZE bs;

-- one condition, and what the planner calls it
EXPLAIN (COSTS OFF) SELECT count(*) FROM bs WHERE a = 3;
SELECT count(*) FROM bs WHERE a = 3;
SELECT count(*) FROM bs WHERE a > 3;
SELECT count(*) FROM bs WHERE a >= 3;
SELECT count(*) FROM bs WHERE a < 3;
SELECT count(*) FROM bs WHERE a <= 3;
SELECT count(*) FROM bs WHERE a IS NULL;
SELECT count(*) FROM bs WHERE a IS NOT NULL;

-- several, also of one column, also contradictory, hidden from the planner
SELECT count(*) FROM bs WHERE a = 3 AND b = 'b';
SELECT count(*) FROM bs WHERE a = 3 AND b > 'b' AND b <= 'd';
SELECT count(*) FROM bs WHERE a >= 3 AND a > 3 AND a < 6 AND a <= 9;
SELECT count(*) FROM bs WHERE a > (SELECT 3) AND a < (SELECT 4);
SELECT count(*) FROM bs WHERE a = (SELECT 3) AND a = (SELECT 4);
SELECT count(*) FROM bs WHERE a = (SELECT 3) AND a IS NULL;
SELECT count(*) FROM bs WHERE a = (SELECT NULL::int);
SELECT count(*) FROM bs WHERE a = 3 AND b IS NULL;
SELECT count(*) FROM bs WHERE a = 5 AND b IS NULL;
SELECT count(*) FROM bs WHERE a >= 4 AND b = 'c';
SELECT count(*) FROM bs WHERE a <= 4 AND b IS NOT NULL;
SELECT count(*) FROM bs WHERE a IS NULL AND b >= 'a';

-- constants of other types
SELECT count(*) FROM bs WHERE a = 3::int8;
SELECT count(*) FROM bs WHERE a < 3000000000::int8;
SELECT count(*) FROM bs WHERE a = 3000000000::int8;
SELECT count(*) FROM bs WHERE d = 77::int2;
SELECT count(*) FROM bs WHERE d BETWEEN 77::int2 AND 80::int4;
SELECT count(*) FROM bs WHERE a > 3::int2 AND a < 5::int8;

-- arrays
EXPLAIN (COSTS OFF) SELECT count(*) FROM bs WHERE a = ANY ('{7,3,3,NULL,12}') AND b = ANY ('{a,c}');
SELECT count(*) FROM bs WHERE a = ANY ('{7,3,3,NULL,12}') AND b = ANY ('{a,c}');
SELECT DISTINCT a, b FROM bs WHERE a IN (7, 3) AND b IN ('c', 'a', 'b') ORDER BY a, b;
SELECT DISTINCT a, b FROM bs WHERE a IN (7, 3) AND b IN ('c', 'a', 'b') ORDER BY a DESC, b DESC;
SELECT count(*) FROM bs WHERE a = ANY ('{}'::int[]);
SELECT count(*) FROM bs WHERE a = ANY ((SELECT NULL::int[])::int[]);
SELECT count(*) FROM bs WHERE a = ANY ('{NULL}'::int[]);
SELECT count(*) FROM bs WHERE a < ANY ('{2,5,1}');
SELECT count(*) FROM bs WHERE a > ANY ('{2,5,NULL,1}');
SELECT count(*) FROM bs WHERE a = ANY ('{1,2,3}') AND a > 1;
SELECT count(*) FROM bs WHERE a = ANY ('{1,2,3}') AND a = ANY ('{3,4}'::int8[]);
SELECT count(*) FROM bs WHERE a > 6 AND b = ANY ('{a,c}');
-- an array behind a range: still in the order of the index
EXPLAIN (COSTS OFF) SELECT a, b FROM bs WHERE a > 7 AND b = ANY ('{c,a}') ORDER BY a, b LIMIT 3;

-- DESC and NULLS FIRST
SELECT b, c FROM bs WHERE b >= 'f' ORDER BY b DESC, c NULLS FIRST LIMIT 3;
SELECT b, c FROM bs ORDER BY b, c DESC NULLS LAST LIMIT 2;
SELECT b, c FROM bs ORDER BY b DESC, c NULLS FIRST LIMIT 2;
SELECT count(*) FROM bs WHERE b = 'g' AND c < 3;
SELECT count(*) FROM bs WHERE b > 'e' AND c IS NULL;
SELECT max(b), min(b), max(d), min(d) FROM bs;

-- included columns come from the index
EXPLAIN (COSTS OFF) SELECT d, c FROM bs WHERE d > 1995;
SELECT d, c FROM bs WHERE d > 1995;

-- bitmaps
SET enable_bitmapscan = on;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM bs WHERE a = 3 AND d < 100;
SELECT count(*) FROM bs WHERE a = 3 AND d < 100;
SELECT count(*) FROM bs WHERE a = 3 OR d < 100;
RESET enable_indexscan;
RESET enable_indexonlyscan;
SET enable_bitmapscan = off;

-- cursors, in both directions and past both ends
BEGIN;
DECLARE c SCROLL CURSOR FOR SELECT a, b FROM bs WHERE a IN (2, 4) AND b > 'e' ORDER BY a, b;
FETCH 2 FROM c;
FETCH BACKWARD 3 FROM c;
FETCH 1 FROM c;
MOVE ALL FROM c;
FETCH BACKWARD 2 FROM c;
FETCH 3 FROM c;
MOVE BACKWARD ALL FROM c;
FETCH 1 FROM c;
COMMIT;

-- a cursor on the index alone over rows whose first versions are gone: it names their roots
-- (on heap WHERE CURRENT OF does not find the row of a root that VACUUM has redirected)
CREATE TABLE bs_lone (id int PRIMARY KEY, v int, w text) USING nvm;
INSERT INTO bs_lone SELECT g, 0, 'w' FROM generate_series(1, 200) g;
UPDATE bs_lone SET v = v + 1;
UPDATE bs_lone SET v = v + 1 WHERE id % 2 = 0;
VACUUM ANALYZE bs_lone;
BEGIN;
EXPLAIN (COSTS OFF) DECLARE c CURSOR FOR SELECT id FROM bs_lone WHERE id BETWEEN 10 AND 14;
DECLARE c CURSOR FOR SELECT id FROM bs_lone WHERE id BETWEEN 10 AND 14;
FETCH 1 FROM c;
UPDATE bs_lone SET w = 'current' WHERE CURRENT OF c RETURNING *;
FETCH 1 FROM c;
DELETE FROM bs_lone WHERE CURRENT OF c RETURNING *;
FETCH 1 FROM c;
UPDATE bs_lone SET id = 1012 WHERE CURRENT OF c RETURNING *;
UPDATE bs_lone SET w = 'again' WHERE CURRENT OF c RETURNING *;
FETCH ALL FROM c;
COMMIT;
SELECT * FROM bs_lone WHERE id BETWEEN 9 AND 15 OR id > 1000 ORDER BY id;
SELECT * FROM nvm.check('bs_lone');

-- nested loops give new constants, merge joins go back to a mark
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SELECT count(*) FROM (VALUES (1), (NULL), (4)) v (x) JOIN bs ON bs.a = v.x;
SET enable_mergejoin = on;
SET enable_nestloop = off;
SET enable_sort = off;
SET enable_material = off;
EXPLAIN (COSTS OFF) SELECT count(*) FROM bs x JOIN bs y ON x.a = y.a AND x.b = y.b;
SELECT count(*) FROM bs x JOIN bs y ON x.a = y.a AND x.b = y.b;
RESET enable_hashjoin;
RESET enable_nestloop;
RESET enable_sort;
RESET enable_material;

-- other types: name (stored as a C string), enum, arrays, rows, ranges, uuid
CREATE TYPE bs_enum AS ENUM ('low', 'mid', 'high');
ALTER TYPE bs_enum ADD VALUE 'lowest' BEFORE 'low';
CREATE TYPE bs_row AS (o int, e bs_enum);
CREATE TABLE bt (n name, e bs_enum, r int[], w bs_row, i int4range, o oid, u uuid) USING nvm;
CREATE INDEX bt_n ON bt USING nvm_btree (n);
CREATE INDEX bt_e ON bt USING nvm_btree (e DESC, r);
CREATE INDEX bt_i ON bt USING nvm_btree (i, o);
CREATE INDEX bt_w ON bt USING nvm_btree (w);
CREATE INDEX bt_u ON bt USING nvm_btree (u);
INSERT INTO bt SELECT 'n' || g % 50, (enum_range(NULL::bs_enum))[1 + g % 4], ARRAY[g % 3, g],
	ROW (g % 80, (enum_range(NULL::bs_enum))[1 + g % 4])::bs_row, int4range(g % 20, 30), g, md5((g % 100)::text)::uuid
FROM generate_series(1, 600) g;
ANALYZE bt;
SELECT n, count(*) FROM bt WHERE n >= 'n48' GROUP BY n ORDER BY n;
EXPLAIN (COSTS OFF) SELECT n FROM bt WHERE n = 'n7';
SELECT n, length(n), octet_length(n::text) FROM bt WHERE n = 'n7' LIMIT 1;
SELECT e, r FROM bt WHERE e = 'high' AND r >= '{2}' ORDER BY e DESC, r LIMIT 2;
SELECT count(*) FROM bt WHERE e > 'lowest' AND e <> 'mid';
SELECT count(*) FROM bt WHERE e = ANY ('{low,high}') AND r >= ANY (SELECT '{2,5}'::int[]);
SELECT count(*) FROM bt WHERE i = '[5,30)' AND o < 300;
SELECT count(*) FROM bt WHERE w = ROW (7, 'high'::bs_enum)::bs_row;
SELECT count(*) FROM bt WHERE w > ROW (77, 'low'::bs_enum)::bs_row;
SELECT count(*) FROM bt WHERE w = ANY (ARRAY[ROW (7, 'high'), ROW (9, 'lowest'), ROW (10, 'low')]::bs_row[]);
SELECT count(*) FROM bt WHERE u = md5('9')::uuid;

-- what the access method says it can do
SELECT p, pg_indexam_has_property(oid, p) FROM pg_am,
	unnest(ARRAY['can_order', 'can_unique', 'can_multi_col', 'can_exclude', 'can_include']) p
WHERE amname = 'nvm_btree';
SELECT p, pg_index_has_property('bs_bc', p)
FROM unnest(ARRAY['clusterable', 'index_scan', 'bitmap_scan', 'backward_scan']) p;
SELECT p, pg_index_column_has_property('bs_bc', 1, p), pg_index_column_has_property('bs_bc', 2, p)
FROM unnest(ARRAY['asc', 'desc', 'nulls_first', 'nulls_last', 'orderable', 'distance_orderable',
	'returnable', 'search_array', 'search_nulls']) p;

-- parameters
CREATE INDEX bs_opt ON bs USING nvm_btree (a) WITH (fillfactor = 70, deduplicate_items = off, persistence = full);
SELECT reloptions FROM pg_class WHERE relname = 'bs_opt';
ALTER INDEX bs_opt SET (fillfactor = 80);
ALTER INDEX bs_opt RESET (deduplicate_items);
SELECT reloptions FROM pg_class WHERE relname = 'bs_opt';
CREATE INDEX bs_bad ON bs USING nvm_btree (a) WITH (fillfactor = 5);
CREATE INDEX bs_bad ON bs USING nvm_btree (a) WITH (persistence = some);
CREATE INDEX bs_bad ON bs USING nvm_btree (a) WITH (no_such_parameter = 1);

-- operator classes: those of btree, member by member
SELECT count(*) > 40 AS many, count(*) FILTER (WHERE NOT amvalidate(c.oid)) AS invalid
FROM pg_opclass c JOIN pg_am a ON a.oid = c.opcmethod WHERE amname = 'nvm_btree';
WITH m AS (SELECT oid, amname FROM pg_am WHERE amname IN ('btree', 'nvm_btree')),
	l AS (
	SELECT amname, 'class ' || opcname || ' ' || opcintype::regtype || ' ' || opckeytype::regtype || ' ' || opcdefault || ' ' || opfname AS what
	FROM m JOIN pg_opclass ON opcmethod = m.oid JOIN pg_opfamily f ON f.oid = opcfamily
	UNION ALL
	SELECT amname, opfname || ' ' || amopstrategy || ' ' || amopopr::regoperator
	FROM m JOIN pg_opfamily f ON opfmethod = m.oid JOIN pg_amop ON amopfamily = f.oid
	UNION ALL
	SELECT amname, opfname || ' ' || amprocnum || ' ' || amproclefttype::regtype || ' ' || amprocrighttype::regtype || ' ' || amproc::regprocedure
	FROM m JOIN pg_opfamily f ON opfmethod = m.oid JOIN pg_amproc ON amprocfamily = f.oid)
SELECT what, count(*), min(amname) FROM l GROUP BY what HAVING count(*) <> 2;
SELECT nvm.mirror_operator_classes();
-- one that comes later is there when an index wants it, and goes again
CREATE OPERATOR CLASS bs_int_ops FOR TYPE int USING btree AS
	OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);
CREATE INDEX bs_own ON bs USING nvm_btree (a bs_int_ops);
SELECT nspname, opcname ~ '^btree_[0-9]+$' AS opcname, opcintype::regtype, opcdefault, amvalidate(c.oid)
FROM pg_opclass c JOIN pg_am a ON a.oid = opcmethod JOIN pg_namespace n ON n.oid = opcnamespace
WHERE amname = 'nvm_btree' AND c.oid IN (SELECT objid FROM pg_depend WHERE refobjid = (SELECT oid FROM pg_opclass WHERE opcname = 'bs_int_ops'));
SET client_min_messages = warning;
DROP OPERATOR FAMILY bs_int_ops USING btree CASCADE;
RESET client_min_messages;
SELECT to_regclass('bs_own');
SELECT count(*) FROM pg_opclass WHERE opcname ~ '^(bs_int_ops|btree_[0-9]+)$';
SELECT count(*) FROM pg_opfamily WHERE opfname ~ '^(bs_int_ops|btree_[0-9]+)$';

SELECT * FROM nvm.check('bs');
SET client_min_messages = warning;
DROP SCHEMA btree_scan CASCADE;

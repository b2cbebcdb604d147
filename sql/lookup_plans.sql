--
-- Plans as shipped: rows of nvm tables are in memory, so a lookup by an index costs
-- no page of a disk; scans of much of a table, and other tables, are what they were
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
SET jit = off;
SET max_parallel_workers_per_gather = 0;
CREATE SCHEMA lookup_plans;
SET search_path = lookup_plans, public;

-- pgbench's tellers: few rows, by key, many old versions or none
CREATE TABLE tellers (tid int PRIMARY KEY, bid int, tbalance int, filler char(84)) WITH (autovacuum_enabled = off);
INSERT INTO tellers SELECT i, 1 + i / 10, 0, '' FROM generate_series(1, 100) i;
VACUUM ANALYZE tellers;
EXPLAIN (COSTS OFF) UPDATE tellers SET tbalance = tbalance + 1 WHERE tid = 7;
DO $$BEGIN FOR i IN 1 .. 3000 LOOP UPDATE tellers SET tbalance = tbalance + 1 WHERE tid = 1 + i % 100; END LOOP; END$$;
EXPLAIN (COSTS OFF) UPDATE tellers SET tbalance = tbalance + 1 WHERE tid = 7;
VACUUM ANALYZE tellers;
EXPLAIN (COSTS OFF) UPDATE tellers SET tbalance = tbalance + 1 WHERE tid = 7;
EXPLAIN (COSTS OFF) SELECT tbalance FROM tellers WHERE tid = ANY ('{3, 5}');
DO $$BEGIN FOR i IN 1 .. 9000 LOOP UPDATE tellers SET tbalance = tbalance + 1 WHERE tid = 1 + i % 100; END LOOP; END$$;
VACUUM ANALYZE tellers;
EXPLAIN (COSTS OFF) SELECT tbalance FROM tellers WHERE tid = 7;
-- whole tables, and sums over them, are scanned
EXPLAIN (COSTS OFF) SELECT sum(tbalance) FROM tellers;

-- built-in indexes of an nvm table
SET nvm.default_index_method = btree;
CREATE TABLE builtin (id int PRIMARY KEY, h int, f int, pad text) WITH (autovacuum_enabled = off);
RESET nvm.default_index_method;
CREATE INDEX ON builtin USING hash (h);
INSERT INTO builtin SELECT i, i, i % 10, repeat('x', 50) FROM generate_series(1, 2000) i;
VACUUM ANALYZE builtin;
EXPLAIN (COSTS OFF) SELECT * FROM builtin WHERE id = 7;
EXPLAIN (COSTS OFF) SELECT * FROM builtin WHERE h = 7;
SELECT relname, amname FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname LIKE 'builtin%' ORDER BY 1;

-- few rows of a large table: by the index; a third of them: not
CREATE TABLE orders (o int, l int, item int, qty int, PRIMARY KEY (o, l)) WITH (autovacuum_enabled = off);
INSERT INTO orders SELECT i / 10, i % 10, (i * 7919) % 20000, i % 7 FROM generate_series(0, 99999) i;
CREATE INDEX orders_item ON orders (item);
CREATE TABLE items (item int PRIMARY KEY, price int, kind int) WITH (autovacuum_enabled = off);
INSERT INTO items SELECT i, i % 100, i % 50 FROM generate_series(0, 19999) i;
CREATE INDEX items_kind ON items (kind);
VACUUM ANALYZE orders, items;
EXPLAIN (COSTS OFF) SELECT sum(qty) FROM orders WHERE o = 77;
EXPLAIN (COSTS OFF) SELECT sum(qty) FROM orders WHERE o BETWEEN 70 AND 90;
EXPLAIN (COSTS OFF) SELECT sum(qty) FROM orders WHERE item < 10000;
EXPLAIN (COSTS OFF) SELECT sum(price) FROM items WHERE kind = 3;
EXPLAIN (COSTS OFF) SELECT sum(price) FROM items WHERE kind > 20;
-- joins: lookups for few rows, a hash table for many
EXPLAIN (COSTS OFF) SELECT sum(qty * price) FROM orders JOIN items USING (item) WHERE o = 77;
EXPLAIN (COSTS OFF) SELECT sum(qty * price) FROM orders JOIN items USING (item) WHERE o BETWEEN 70 AND 90;
EXPLAIN (COSTS OFF) SELECT sum(qty * price) FROM orders JOIN items USING (item);
EXPLAIN (COSTS OFF) SELECT sum(qty) FROM orders JOIN items USING (item) WHERE kind = 3 AND price < 10;

-- what a table of heap costs does not depend on who is in the query with it
CREATE TABLE hp (id int PRIMARY KEY, k int) USING heap;
INSERT INTO hp SELECT i, i % 1000 FROM generate_series(1, 20000) i;
CREATE INDEX hp_k ON hp (k);
ANALYZE hp;
CREATE FUNCTION costs_of(rel text, q text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE j jsonb;
BEGIN
  EXECUTE 'EXPLAIN (FORMAT json) ' || q INTO j;
  RETURN (SELECT string_agg(format('%s %s', n ->> 'Node Type', n ->> 'Total Cost'), ', ')
          FROM jsonb_path_query(j, 'strict $.**?(@."Relation Name" == $r)', jsonb_build_object('r', rel)) n);
END$$;
SELECT costs_of('hp', 'SELECT * FROM hp WHERE id = 5') = costs_of('hp', 'SELECT * FROM hp, items WHERE id = 5 AND item = 5') AS same;
SELECT costs_of('hp', 'SELECT * FROM hp WHERE k = 5') = costs_of('hp', 'SELECT * FROM items, hp WHERE k = 5 AND item = 5') AS same;
SELECT costs_of('hp', 'SELECT * FROM hp WHERE k = 5') = costs_of('hp', 'SELECT * FROM (SELECT item AS k FROM items WHERE kind = 5 UNION ALL SELECT k FROM hp WHERE k = 5) x') AS same;
-- nor do the settings change: not by a query that fails while it is planned, nor
-- by one that plans another
SELECT name, setting FROM pg_settings WHERE name IN ('random_page_cost', 'seq_page_cost') ORDER BY 1;
CREATE FUNCTION fails() RETURNS int STABLE LANGUAGE plpgsql AS $$BEGIN PERFORM FROM items WHERE item = 5; RAISE 'settings % %', current_setting('random_page_cost'), current_setting('seq_page_cost'); END$$;
EXPLAIN SELECT * FROM items, orders WHERE items.item = 5 AND orders.o < fails();
CREATE FUNCTION plans() RETURNS int STABLE LANGUAGE plpgsql AS $$BEGIN RETURN (SELECT item FROM items WHERE item = 5) + (current_setting('random_page_cost') <> '4')::int * 100; END$$;
EXPLAIN (COSTS OFF) SELECT * FROM items, orders WHERE items.item = 5 AND orders.o = plans();
SELECT count(*) FROM items, orders WHERE items.item = 5 AND orders.o = plans();
SELECT name, setting FROM pg_settings WHERE name IN ('random_page_cost', 'seq_page_cost') ORDER BY 1;
-- nor by a function that sets them itself, returns, fails, or whose work is undone
CREATE FUNCTION sets() RETURNS int STABLE SET random_page_cost = 2 LANGUAGE plpgsql AS $$BEGIN RETURN (SELECT price FROM items WHERE item = 5); END$$;
CREATE FUNCTION sets_fails() RETURNS int STABLE SET random_page_cost = 2 LANGUAGE plpgsql AS $$BEGIN PERFORM FROM items WHERE item = 5; RAISE 'failed'; END$$;
CREATE FUNCTION sets_more() RETURNS int STABLE LANGUAGE plpgsql AS $$BEGIN PERFORM set_config('random_page_cost', '2', false); RETURN 1; END$$;
CREATE FUNCTION planned(f text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('EXPLAIN SELECT * FROM orders JOIN items ON items.item = orders.item AND price < qty + %s() WHERE kind = 3', f);
  RETURN 'planned';
EXCEPTION WHEN raise_exception THEN RETURN SQLERRM;
END$$;
SELECT planned('sets');
SELECT name, setting FROM pg_settings WHERE name IN ('random_page_cost', 'seq_page_cost') ORDER BY 1;
SELECT planned('sets_fails');
SELECT name, setting FROM pg_settings WHERE name IN ('random_page_cost', 'seq_page_cost') ORDER BY 1;
EXPLAIN SELECT * FROM orders JOIN items ON items.item = orders.item AND price < qty + sets_fails() WHERE kind = 3;
SHOW random_page_cost;
BEGIN;
SELECT planned('sets_more');
SHOW random_page_cost;
ROLLBACK;
SHOW random_page_cost;
SHOW seq_page_cost;

-- what BRIN costs does not depend on which other indexes there are
CREATE TABLE ranges (id int, k int, pad text) WITH (autovacuum_enabled = off);
INSERT INTO ranges SELECT i, i % 10, repeat('x', 50) FROM generate_series(1, 50000) i;
CREATE INDEX ranges_id ON ranges USING brin (id) WITH (pages_per_range = 16);
VACUUM ANALYZE ranges;
SET enable_seqscan = off;
CREATE TABLE brin_cost AS SELECT costs_of('ranges', 'SELECT * FROM ranges WHERE id BETWEEN 100 AND 9000 AND k >= 0') AS alone;
CREATE INDEX ranges_k ON ranges (k);
EXPLAIN (COSTS OFF) SELECT * FROM ranges WHERE id BETWEEN 100 AND 9000 AND k >= 0;
SELECT alone = costs_of('ranges', 'SELECT * FROM ranges WHERE id BETWEEN 100 AND 9000 AND k >= 0') AS same FROM brin_cost;
RESET enable_seqscan;

-- a user who says that pages cost nothing says so of these, too
SET random_page_cost = 0;
SET seq_page_cost = 0;
EXPLAIN (COSTS OFF) SELECT sum(price) FROM items WHERE kind = 3;
RESET random_page_cost;
RESET seq_page_cost;

-- partitions, and a join of them
CREATE TABLE part (id int, v int) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (1000) USING nvm;
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (1000) TO (2000) USING nvm;
ALTER TABLE part ADD PRIMARY KEY (id);
INSERT INTO part SELECT i, i FROM generate_series(0, 1999) i;
VACUUM ANALYZE part;
EXPLAIN (COSTS OFF) SELECT * FROM part WHERE id = 5;
EXPLAIN (COSTS OFF) SELECT sum(v) FROM items JOIN part ON id = item WHERE kind = 3 AND price = 3;

SET client_min_messages = warning;
DROP SCHEMA lookup_plans CASCADE;

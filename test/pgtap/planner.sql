-- What the planner is told of tables, where it is not what heap's would be.
\set ON_ERROR_STOP 1
BEGIN;
SELECT no_plan();

CREATE FUNCTION chosen(query text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE j json;
BEGIN
	EXECUTE 'EXPLAIN (FORMAT json) ' || query INTO j;
	RETURN j->0->'Plan'->>'Node Type';
END $$;

-- a few rows that are updated all the time: old versions are in the way of a scan
CREATE TABLE hot (id int PRIMARY KEY, n int) USING nvm WITH (autovacuum_enabled = off);
INSERT INTO hot SELECT g, 0 FROM generate_series(1, 20) g;
ANALYZE hot;
SELECT is(chosen('SELECT * FROM hot WHERE id IN (7, 9, 11, 13)'), 'Seq Scan', 'a fresh small table is scanned');
SELECT is(chosen('SELECT * FROM hot WHERE id = 7'), 'Index Scan', 'but not for a row by its key, which costs no page');
DO $$ BEGIN FOR i IN 1 .. 40 LOOP UPDATE hot SET n = n + 1; END LOOP; END $$;
SELECT is(chosen('SELECT * FROM hot WHERE id IN (7, 9, 11, 13)'), 'Index Scan', 'not with old versions many times its rows');
SELECT is(chosen('SELECT * FROM hot WHERE id = 7'), 'Index Scan', 'nor for a row by its key');

-- rows that came since count as rows
CREATE TABLE grown (id int PRIMARY KEY, n int) USING nvm WITH (autovacuum_enabled = off);
INSERT INTO grown SELECT g, 0 FROM generate_series(1, 80) g;
ANALYZE grown;
INSERT INTO grown SELECT g, 0 FROM generate_series(81, 400) g;
CREATE TABLE grown_heap (LIKE grown INCLUDING INDEXES) USING heap;
INSERT INTO grown_heap SELECT g, 0 FROM generate_series(1, 80) g;
ANALYZE grown_heap;
INSERT INTO grown_heap SELECT g, 0 FROM generate_series(81, 400) g;
SELECT is(chosen('SELECT * FROM grown WHERE id < 200'), chosen('SELECT * FROM grown_heap WHERE id < 200'),
	'a table that has grown gets the plan of heap');

SELECT * FROM finish();
ROLLBACK;

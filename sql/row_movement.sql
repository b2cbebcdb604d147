--
-- UPDATE FROM, DELETE USING, ON CONFLICT and RETURNING with rows that move between nvm and heap
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA row_movement;
SET search_path = row_movement, public;

-- big(n, seed): n bytes that do not compress
CREATE FUNCTION big(n int, seed int) RETURNS text LANGUAGE sql IMMUTABLE AS
$$SELECT left(string_agg(md5(seed || '/' || g), '' ORDER BY g), n) FROM generate_series(1, n / 32 + 1) g$$;
-- partitions with columns in other orders, dropped and added ones, in both access methods
CREATE TABLE p (id int, k int, s text, a int[], j jsonb DEFAULT '{"d": 1}') PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 (j jsonb, x1 int, s text, k int, x2 text, a int[], id int) USING heap;
ALTER TABLE p2 DROP COLUMN x1, DROP COLUMN x2;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (10) TO (20);
CREATE TABLE p3 (a int[], k int, id int, late text, s text, j jsonb);
ALTER TABLE p3 DROP COLUMN late;
ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (20) TO (30);
CREATE UNIQUE INDEX ON p (id, k);
INSERT INTO p SELECT g, g, CASE g % 4 WHEN 0 THEN big(9000 * g, g) ELSE 's' || g END, ARRAY[g, g + 1] FROM generate_series(0, 29) g;
CREATE VIEW shown AS SELECT tableoid::regclass AS part, id, k, length(s), md5(s) = md5(CASE id % 4 WHEN 0 THEN big(9000 * id, id) ELSE 's' || id END) AS same, a, j FROM p;
SELECT part, count(*), sum(id), bool_and(same) FROM shown GROUP BY 1 ORDER BY 1;
UPDATE p SET k = (k + 10) % 30 WHERE id % 2 = 0;
SELECT part, count(*), sum(id), bool_and(same) FROM shown GROUP BY 1 ORDER BY 1;
UPDATE p SET k = (k + 10) % 30, a = a || id, j = j || jsonb_build_object('k', k);
SELECT part, count(*), sum(id), bool_and(same), sum(a[3]), count(j->'k') FROM shown GROUP BY 1 ORDER BY 1;
SELECT * FROM shown WHERE id IN (4, 5, 14, 24) ORDER BY id;

-- from and using other tables, whole rows and system columns returned
CREATE TABLE d (id int, dk int);
INSERT INTO d SELECT g, 10 FROM generate_series(0, 29, 3) g;
WITH u AS (UPDATE p SET k = (p.k + dk) % 30 FROM d WHERE d.id = p.id
  RETURNING p.tableoid::regclass AS part, p.id, p.k, d, (p).a, p.ctid IS NOT NULL AS tid, length(p.s))
SELECT * FROM u ORDER BY id;
WITH x AS (DELETE FROM p USING d WHERE d.id = p.id AND d.id > 20 RETURNING p.tableoid::regclass AS part, p.*, d.*)
SELECT part, x.id, k, length(s), a FROM x(part, id, k, s, a, j, did, dk) ORDER BY x.id;
BEGIN;
WITH u AS (UPDATE p SET k = 29 - k WHERE id < 6 RETURNING *), x AS (DELETE FROM p WHERE id BETWEEN 6 AND 8 RETURNING *)
INSERT INTO p SELECT id + 100, k, s, a FROM u UNION ALL SELECT id + 200, k, s, a FROM x;
SELECT part, count(*), sum(id) FROM shown GROUP BY 1 ORDER BY 1;
SAVEPOINT a;
UPDATE p SET k = (k + 10) % 30;
UPDATE p SET k = (k + 10) % 30;
DELETE FROM p WHERE k < 10;
SELECT part, count(*), sum(id) FROM shown GROUP BY 1 ORDER BY 1;
ROLLBACK TO a;
SELECT part, count(*), sum(id) FROM shown GROUP BY 1 ORDER BY 1;
ROLLBACK;
SELECT part, count(*), sum(id) FROM shown GROUP BY 1 ORDER BY 1;
-- a join whose source holds the same target row twice; the row is moved once
UPDATE p SET k = x.nk FROM (VALUES (1, 25), (1, 26)) x(id, nk) WHERE p.id = x.id;
SELECT k IN (25, 26) AS moved, count(*) FROM p WHERE id = 1 GROUP BY 1;
-- a row that was moved is not found again by the same command, nor by its old TID
SELECT ctid AS old, tableoid AS oldrel FROM p WHERE id = 2 \gset
UPDATE p SET k = (k + 10) % 30 WHERE id = 2;
SELECT count(*) FROM p WHERE ctid = :'old' AND tableoid = :oldrel AND id = 2;
UPDATE p SET k = k WHERE id = 2;
-- no partition, a check, a not null: nothing is left
UPDATE p SET k = 100 WHERE id = 3;
ALTER TABLE p2 ADD CHECK (id <> 4);
UPDATE p SET k = 15 WHERE id = 4;
ALTER TABLE p2 ALTER s SET NOT NULL;
UPDATE p SET k = 15, s = NULL WHERE id = 5;
UPDATE p1 SET k = 15 WHERE k < 10;
SELECT part, count(*), sum(id) FROM shown GROUP BY 1 ORDER BY 1;
INSERT INTO p SELECT * FROM p WHERE id = 10;

-- ON CONFLICT of both kinds on partitions of both access methods
INSERT INTO p (id, k, s) SELECT id, k, 'again' FROM p ON CONFLICT DO NOTHING;
INSERT INTO p (id, k, s) SELECT id, k, 'again' FROM p WHERE id % 5 = 0 ON CONFLICT (id, k) DO UPDATE SET s = p.s || ' and ' || excluded.s, a = NULL
RETURNING tableoid::regclass, id, right(s, 10), a;
INSERT INTO p (id, k, s) VALUES (0, 0, 'new 0'), (0, 10, 'new 10'), (0, 20, 'new 20') ON CONFLICT (id, k) DO UPDATE SET j = p.j || '{"seen": true}' WHERE p.a IS NULL
RETURNING tableoid::regclass, id, k, j;
INSERT INTO p (id, k) VALUES (0, 0) ON CONFLICT (id, k) DO UPDATE SET k = 15;
INSERT INTO p (id, k) VALUES (300, 1), (300, 1) ON CONFLICT (id, k) DO UPDATE SET s = 'twice';
SELECT count(*) FROM p WHERE id = 300;
-- the proposed row and the row found, both large
INSERT INTO p (id, k, s) SELECT id, k, big(50000, id) FROM p WHERE id BETWEEN 8 AND 12
ON CONFLICT (id, k) DO UPDATE SET s = CASE WHEN length(p.s) > 1000 THEN p.s || excluded.s ELSE excluded.s END, j = to_jsonb(left(excluded.s, 4));
SELECT id, length(s), right(s, 1000) = right(big(50000, id), 1000) AS tail, j = to_jsonb(left(big(50000, id), 4)) AS head FROM p WHERE id BETWEEN 8 AND 12 ORDER BY id;
-- a conflict on an expression and on a partial index with INCLUDE, NULLS NOT DISTINCT, an exclusion constraint
CREATE TABLE oc (id int, k text, live bool DEFAULT true, r int4range, n int, EXCLUDE USING gist (r WITH &&) WHERE (live));
CREATE UNIQUE INDEX oc_k ON oc (lower(k)) INCLUDE (n) WHERE live;
CREATE UNIQUE INDEX oc_n ON oc (n) NULLS NOT DISTINCT;
INSERT INTO oc VALUES (1, 'One', true, '[1,5)', NULL), (2, 'TWO', true, '[5,9)', 2);
INSERT INTO oc VALUES (3, 'one', true, NULL, 3) ON CONFLICT (lower(k)) WHERE live DO UPDATE SET n = excluded.n, k = excluded.k RETURNING *;
INSERT INTO oc VALUES (4, 'four', true, NULL, NULL) ON CONFLICT (n) DO UPDATE SET n = 40 RETURNING *;
INSERT INTO oc VALUES (5, 'five', true, NULL, NULL) ON CONFLICT (n) DO UPDATE SET n = 50 RETURNING *;
INSERT INTO oc VALUES (6, 'six', true, '[3,7)', 6) ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO oc VALUES (7, 'seven', false, '[3,7)', 7) ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO oc VALUES (8, 'eight', true, '[3,7)', 8) ON CONFLICT ON CONSTRAINT oc_r_excl DO UPDATE SET n = 1;
UPDATE oc SET live = true WHERE id = 7;
UPDATE oc SET n = NULL WHERE id IN (1, 2);
SELECT * FROM oc ORDER BY id;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA row_movement CASCADE;

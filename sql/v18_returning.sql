--
-- RETURNING with OLD and NEW, since PostgreSQL 18; and what else came with it:
-- virtual generated columns, NOT NULL constraints that are not yet valid,
-- temporal keys, foreign keys that are not enforced
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA v18_returning;
SET search_path = v18_returning, public;

CREATE TABLE t (id int PRIMARY KEY, v int, s text DEFAULT 'new');
CREATE INDEX ON t (v);

-- each statement: old is null for INSERT, new for DELETE
INSERT INTO t SELECT g, g * 10 FROM generate_series(1, 6) g RETURNING old.id, new.id, old.*, new.*, id;
UPDATE t SET v = v + 1 WHERE id <= 3 RETURNING old.v, new.v, v, old.id = new.id AS same, old, new;
UPDATE t SET id = id + 100, v = 0 WHERE id = 1 RETURNING old.id, new.id, old.v, new.v;
DELETE FROM t WHERE id IN (2, 101) RETURNING old.id, new.id, old.v, old IS NULL AS o, new IS NULL AS n;
UPDATE t SET s = 'x' WHERE id = 3 RETURNING WITH (OLD AS before, NEW AS after) before.s, after.s, s;
SELECT * FROM t ORDER BY id;

-- system columns: two versions of one row
UPDATE t SET v = v + 1 WHERE id = 3
RETURNING old.ctid <> new.ctid AS moved, old.xmin = new.xmin AS same_xmin,
  new.xmin::text = pg_current_xact_id()::xid::text AS mine, old.tableoid::regclass, new.tableoid::regclass;
UPDATE t SET v = v + 1 WHERE id = 3 RETURNING old.xmax::text = pg_current_xact_id()::xid::text AS ended, new.xmax;
DELETE FROM t WHERE id = 4
RETURNING old.xmax::text = pg_current_xact_id()::xid::text AS ended, old.ctid IS NOT NULL AS o, new.ctid IS NULL AS n, new.tableoid;
INSERT INTO t VALUES (4, 40) RETURNING old.ctid, old.xmin, old.tableoid, new.ctid IS NOT NULL AS n;
-- old is the version that the statement replaced, also one of this transaction
BEGIN;
UPDATE t SET v = 1 WHERE id = 5;
UPDATE t SET v = 2 WHERE id = 5 RETURNING old.v, new.v, old.xmin = new.xmin AS same_xmin;
SAVEPOINT a;
UPDATE t SET v = 3 WHERE id = 5 RETURNING old.v, new.v, old.xmin = new.xmin AS same_xmin;
ROLLBACK TO a;
UPDATE t SET v = 4 WHERE id = 5 RETURNING old.v, new.v;
DELETE FROM t WHERE id = 5 RETURNING old.v, new.v;
ROLLBACK;
SELECT * FROM t ORDER BY id;

-- ON CONFLICT tells an insertion from an update
INSERT INTO t VALUES (3, 33), (50, 55) ON CONFLICT (id) DO UPDATE SET v = excluded.v + t.v
RETURNING old.v, new.v, old.id IS NULL AS inserted, id;
INSERT INTO t VALUES (3, 34), (51, 56) ON CONFLICT (id) DO UPDATE SET v = excluded.v WHERE t.v < 0
RETURNING old.v, new.v, id;
INSERT INTO t VALUES (3, 34), (52, 57) ON CONFLICT DO NOTHING RETURNING old.v, new.v, id;
INSERT INTO t VALUES (3, 0) ON CONFLICT (id) DO UPDATE SET id = 300 RETURNING old, new;
SELECT * FROM t ORDER BY id;

-- large values, of both versions: changed, kept, shrunk, removed
CREATE TABLE wide (id int PRIMARY KEY, a text, b text);
ALTER TABLE wide ALTER a SET STORAGE external, ALTER b SET STORAGE external;
INSERT INTO wide SELECT g, repeat(chr(64 + g), 60000), repeat(chr(96 + g), 90000) FROM generate_series(1, 3) g
RETURNING old.id, new.id, length(old.a), length(new.a), md5(new.b);
UPDATE wide SET a = a || 'z' RETURNING id, length(old.a), length(new.a), md5(old.a) = md5(new.a) AS a, md5(old.b) = md5(new.b) AS b;
UPDATE wide SET a = 'short', b = NULL WHERE id = 2 RETURNING md5(old.a), new.a, md5(old.b), new.b;
WITH u AS (UPDATE wide SET b = reverse(b) RETURNING old, new)
SELECT (old).id, md5((old).a), md5((old).b), md5((new).a), md5((new).b) FROM u ORDER BY 1;
WITH d AS (DELETE FROM wide RETURNING old, new)
SELECT (old).id, md5((old).a), md5((old).b), new IS NULL AS gone FROM d ORDER BY 1;

-- of joins, subqueries, functions of whole rows, other statements
CREATE FUNCTION diff(o t, n t) RETURNS text LANGUAGE sql AS
$$SELECT coalesce(o.v::text, '-') || ' to ' || coalesce(n.v::text, '-')$$;
UPDATE t SET v = q.v FROM (VALUES (3, 300), (4, 400)) q (id, v) WHERE t.id = q.id RETURNING diff(old, new), q.v, (SELECT max(x.v) FROM t x) AS m;
DELETE FROM t USING (VALUES (50), (51)) q (id) WHERE t.id = q.id RETURNING diff(old, new), q.id;
CREATE TABLE audit (what text, ov int, nv int);
WITH u AS (UPDATE t SET v = v * 2 WHERE id < 10 RETURNING old.v AS ov, new.v AS nv)
INSERT INTO audit SELECT 'doubled', ov, nv FROM u;
SELECT * FROM audit ORDER BY ov;
DO $$
DECLARE
  o t; n t; r record;
BEGIN
  UPDATE t SET v = v + 1 WHERE id = 3 RETURNING old.v, new.v INTO r;
  RAISE NOTICE '% %', r, diff(o, n);
END$$;

-- triggers: what BEFORE makes of the row is new
CREATE FUNCTION br() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN NEW.s := OLD.s || '+'; NEW.v := NEW.v * 1000; RETURN NEW; END$$;
CREATE TRIGGER br BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION br();
UPDATE t SET v = 7 WHERE id IN (3, 4) RETURNING old.v, new.v, old.s, new.s;
INSERT INTO t VALUES (3, 1) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING old.v, new.v, old.s, new.s;
DROP TRIGGER br ON t;

-- MERGE
WITH m AS (
  MERGE INTO t USING (VALUES (3, 1), (4, 2), (400, 3)) q (id, v) ON t.id = q.id
  WHEN MATCHED AND q.id = 4 THEN DELETE
  WHEN MATCHED THEN UPDATE SET v = q.v, id = t.id + 1000
  WHEN NOT MATCHED THEN INSERT VALUES (q.id, q.v)
  WHEN NOT MATCHED BY SOURCE AND t.id = 5 THEN DELETE
  WHEN NOT MATCHED BY SOURCE THEN UPDATE SET s = 'alone'
  RETURNING merge_action() AS what, old.id AS oid, new.id AS nid, old.v AS ov, new.v AS nv, old.s AS os, new.s AS ns, t.id)
SELECT * FROM m ORDER BY id;
SELECT * FROM t ORDER BY id;

-- views
CREATE VIEW v AS SELECT id AS i, v + 1 AS plus, v FROM t;
UPDATE v SET v = 99 WHERE i = 6 RETURNING old.plus, new.plus, old, new;
CREATE RULE r AS ON DELETE TO v DO INSTEAD UPDATE t SET v = -1 WHERE t.id = old.i RETURNING t.id, t.v, t.v;
DELETE FROM v WHERE i = 6 RETURNING *;

-- rows that move between partitions of both access methods
CREATE TABLE p (id int, k int, s text) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
CREATE TABLE p2 (s text, dropped int, k int, id int) USING heap;
ALTER TABLE p2 DROP COLUMN dropped;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300);
INSERT INTO p SELECT g, g * 30, repeat('p', 3000 * g) FROM generate_series(0, 9) g RETURNING old.id, new.tableoid::regclass, new.k;
WITH u AS (UPDATE p SET k = 299 - k, s = s || 'q' RETURNING old.tableoid::regclass AS o, new.tableoid::regclass AS n, id,
  old.k AS ok, new.k AS nk, length(old.s) AS ol, length(new.s) AS nl)
SELECT * FROM u ORDER BY id;
WITH d AS (DELETE FROM p WHERE id % 2 = 0 RETURNING old.tableoid::regclass AS o, old.id, old.k, new.k AS nk)
SELECT * FROM d ORDER BY id;
CREATE TABLE kid (extra int) INHERITS (t);
INSERT INTO kid VALUES (777, 1, 'kid', 5);
UPDATE t SET v = 12 WHERE id IN (777, 6) RETURNING old.tableoid::regclass, old.v, new.v;
DROP TABLE kid;

-- WHERE CURRENT OF, TIDs, prepared statements
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM t ORDER BY id FOR UPDATE;
FETCH c;
UPDATE t SET v = v + 5 WHERE CURRENT OF c RETURNING old.v, new.v, diff(old, new);
FETCH c;
DELETE FROM t WHERE CURRENT OF c RETURNING old.v, new.v;
COMMIT;
UPDATE t SET v = 1 WHERE ctid = (SELECT ctid FROM t WHERE id = 400) RETURNING old.v, new.v;
PREPARE up (int, int) AS UPDATE t SET v = $2 WHERE id = $1 RETURNING old.v, new.v;
EXECUTE up (400, 2);
EXECUTE up (400, 3);
DEALLOCATE up;

-- virtual generated columns
CREATE TABLE g (id int PRIMARY KEY, a int, d int GENERATED ALWAYS AS (a * 2) VIRTUAL, st int GENERATED ALWAYS AS (a * 3) STORED,
  CHECK (d < 1000));
INSERT INTO g (id, a) SELECT x, x * 10 FROM generate_series(1, 5) x;
UPDATE g SET a = a + 1 WHERE id = 2 RETURNING old.d, new.d, old.st, new.st;
SELECT * FROM g WHERE d > 40 ORDER BY id;
INSERT INTO g (id, a) VALUES (9, 500);
DELETE FROM g WHERE d = 20 RETURNING old, new;
ALTER TABLE g ADD e int GENERATED ALWAYS AS (a + id) VIRTUAL, ADD f int DEFAULT 7;
ALTER TABLE g ALTER d SET EXPRESSION AS (a * 5);
ALTER TABLE g DROP CONSTRAINT g_d_check;
ALTER TABLE g ALTER d SET EXPRESSION AS (a * 5);
SELECT * FROM g ORDER BY id;
ALTER TABLE g ALTER a TYPE bigint;
ALTER TABLE g ALTER f TYPE bigint;
INSERT INTO g (id, a) VALUES (10, 2) ON CONFLICT DO NOTHING RETURNING *;
ALTER TABLE g DROP COLUMN e;
ALTER TABLE g SET ACCESS METHOD heap;
SELECT * FROM g ORDER BY id;
ALTER TABLE g SET ACCESS METHOD nvm;
SELECT * FROM g ORDER BY id;

-- constraints: NOT NULL that is not valid yet, not enforced ones
CREATE TABLE n (a int, b int);
INSERT INTO n VALUES (1, NULL), (2, 2);
ALTER TABLE n ADD CONSTRAINT nn NOT NULL b NOT VALID;
INSERT INTO n VALUES (3, NULL);
ALTER TABLE n VALIDATE CONSTRAINT nn;
SELECT count(*) FROM n WHERE b IS NULL;
UPDATE n SET b = 0 WHERE b IS NULL RETURNING old.b, new.b;
ALTER TABLE n VALIDATE CONSTRAINT nn;
ALTER TABLE n ADD CHECK (a > 100) NOT ENFORCED;
INSERT INTO n VALUES (4, 4);
CREATE TABLE refs (id int REFERENCES t (id) NOT ENFORCED);
INSERT INTO refs VALUES (123456);
ALTER TABLE refs ALTER CONSTRAINT refs_id_fkey ENFORCED;
UPDATE refs SET id = 400;
ALTER TABLE refs ALTER CONSTRAINT refs_id_fkey ENFORCED;
DELETE FROM t WHERE id = 400;
DROP TABLE refs;

-- temporal keys
CREATE TABLE room (id int4range, during daterange, what text, PRIMARY KEY (id, during WITHOUT OVERLAPS));
INSERT INTO room VALUES ('[1,2)', '[2024-01-01,2024-06-01)', 'a'), ('[1,2)', '[2024-06-01,2025-01-01)', 'b');
INSERT INTO room VALUES ('[1,2)', '[2024-05-01,2024-07-01)', 'overlaps');
CREATE TABLE stay (id int, room int4range, during daterange,
  FOREIGN KEY (room, PERIOD during) REFERENCES room (id, PERIOD during));
INSERT INTO stay VALUES (1, '[1,2)', '[2024-05-01,2024-07-01)');
INSERT INTO stay VALUES (2, '[1,2)', '[2024-12-01,2025-02-01)');
DELETE FROM room WHERE what = 'b';
UPDATE room SET during = '[2024-06-01,2024-12-01)' WHERE what = 'b' RETURNING old.during, new.during;
DELETE FROM room WHERE what = 'b';

-- COPY with a limit of rejected rows, and indexes built by several workers
CREATE TABLE c (a int, b text);
COPY c FROM stdin WITH (ON_ERROR ignore, REJECT_LIMIT 2);
1	one
x	no
3	three
\.
SELECT * FROM c ORDER BY a;
INSERT INTO c SELECT x, md5(x::text) FROM generate_series(1, 30000) x;
SET max_parallel_maintenance_workers = 2;
SET min_parallel_table_scan_size = 0;
CREATE INDEX ON c USING brin (a);
CREATE INDEX ON c USING gin (string_to_array(substr(b, 1, 3), NULL));
SET enable_seqscan = off;
SELECT count(*), min(a), max(a) FROM c WHERE a BETWEEN 20000 AND 20010;
SELECT count(*), sum(a) FROM c WHERE string_to_array(substr(b, 1, 3), NULL) @> '{a,b,c}';
SET enable_seqscan = on;
SET enable_bitmapscan = off;
SELECT count(*), sum(a) FROM c WHERE string_to_array(substr(b, 1, 3), NULL) @> '{a,b,c}';
RESET enable_seqscan;
RESET enable_bitmapscan;
-- skip scan: an index whose first column is not asked for
CREATE TABLE sk AS SELECT x % 3 AS a, x AS b FROM generate_series(1, 3000) x;
CREATE INDEX ON sk (a, b);
ANALYZE sk;
UPDATE sk SET b = -b WHERE b % 100 = 0;
SET enable_seqscan = off;
SELECT * FROM sk WHERE b IN (7, -300, 2999, 300) ORDER BY a, b;
RESET enable_seqscan;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA v18_returning CASCADE;

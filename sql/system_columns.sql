--
-- xmin, xmax, cmin, cmax, ctid and tableoid while rows are inserted, changed and locked
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA system_columns;
SET search_path = system_columns, public;

CREATE TABLE t (id int PRIMARY KEY, v int, s text);
CREATE FUNCTION me() RETURNS xid LANGUAGE sql AS $$SELECT pg_current_xact_id()::xid$$;
-- what the transaction made is its own, what others committed is not
BEGIN;
INSERT INTO t VALUES (1, 1), (2, 2);
INSERT INTO t VALUES (3, 3);
SELECT id, xmin = me() AS mine, xmax, cmin, cmax, tableoid::regclass FROM t ORDER BY id;
UPDATE t SET v = 20 WHERE id = 2 RETURNING id, xmin = me() AS mine, xmax, cmin, cmax, ctid IS NOT NULL AS tid;
SELECT id, xmin = me() AS mine, xmax, cmin, cmax FROM t ORDER BY id;
SAVEPOINT a;
INSERT INTO t VALUES (4, 4);
SELECT id, xmin = me() AS top, xmin::text::bigint > me()::text::bigint AS later, cmin FROM t WHERE id = 4;
RELEASE a;
COMMIT;
SELECT id, xmin::text::bigint < me()::text::bigint AS before, xmax, tableoid = 't'::regclass AS here FROM t ORDER BY id;

-- rows seen by a cursor opened before they were changed: their cmax and xmax are set meanwhile
BEGIN;
DECLARE c CURSOR FOR SELECT id, v, xmin = me() AS mine, xmax = me() AS ended, cmax FROM t ORDER BY ctid;
UPDATE t SET v = v + 1 WHERE id = 1;
DELETE FROM t WHERE id = 3;
SELECT id, v, xmin = me() AS mine, xmax FROM t ORDER BY id;
COMMIT;
BEGIN;
INSERT INTO t VALUES (5, 5);
DECLARE c SCROLL CURSOR FOR SELECT id, v, cmin, cmax FROM t WHERE id = 5;
UPDATE t SET v = 50 WHERE id = 5;
SELECT id, v, xmax, cmin, cmax FROM t WHERE id = 5;
DELETE FROM t WHERE id = 5;
FETCH ALL FROM c;
COMMIT;

-- optimistic locking by xmin: a change by the version that was read, and none by an older one
SELECT xmin AS x, ctid AS c FROM t WHERE id = 1 \gset
UPDATE t SET v = 100 WHERE id = 1 AND xmin = :'x';
UPDATE t SET v = 200 WHERE id = 1 AND xmin = :'x';
SELECT v, xmin = :'x' AS same, ctid = :'c' AS place FROM t WHERE id = 1;
SELECT xmin AS x FROM t WHERE id = 1 \gset
BEGIN;
UPDATE t SET v = 300 WHERE id = 1;
ROLLBACK;
SELECT v, xmin = :'x' AS same FROM t WHERE id = 1;
DELETE FROM t WHERE id = 1 AND xmin = :'x' RETURNING id, v;
-- every version has an xmin of its own, each change by another transaction
INSERT INTO t VALUES (10, 0);
CREATE TABLE seen (x xid, c tid) USING heap;
DO $$BEGIN FOR i IN 1..20 LOOP
  UPDATE t SET v = v + 1 WHERE id = 10; INSERT INTO seen SELECT xmin, ctid FROM t WHERE id = 10; COMMIT;
END LOOP; END$$;
SELECT count(DISTINCT x::text) FROM seen;
VACUUM (FREEZE) t;
SELECT (SELECT x FROM seen ORDER BY x::text::bigint DESC LIMIT 1) = xmin AS kept_by_freeze FROM t WHERE id = 10;
SELECT age(xmin) > 0 AS aged, xmin::text::bigint > 2 AS real FROM t WHERE id = 10;

-- xmax of locked rows: the locker, or a multixact; not of rows whose locker is gone or rolled back
BEGIN;
SELECT id, xmax FROM t WHERE id = 2 FOR UPDATE;
SELECT id, xmax = me() AS mine FROM t WHERE id = 2;
ROLLBACK;
UPDATE t SET v = v WHERE id = 2;
SELECT id, xmax FROM t WHERE id = 2;
BEGIN;
SELECT id FROM t WHERE id = 2 FOR KEY SHARE;
SELECT id, xmax = me() AS mine FROM t WHERE id = 2;
SELECT id FROM t WHERE id = 2 FOR SHARE;
SELECT id, xmax = me() AS mine FROM t WHERE id = 2;
SAVEPOINT a;
SELECT id FROM t WHERE id = 2 FOR UPDATE;
ROLLBACK TO a;
UPDATE t SET v = v + 1 WHERE id = 2;
SELECT id, xmin = me() AS mine, xmax = me() AS locked FROM t WHERE id = 2;
COMMIT;
-- the upsert's way to tell an insert from an update
INSERT INTO t VALUES (20, 1) ON CONFLICT (id) DO UPDATE SET v = t.v + 1 RETURNING id, v, xmax = 0 AS inserted;
INSERT INTO t VALUES (20, 1) ON CONFLICT (id) DO UPDATE SET v = t.v + 1 RETURNING id, v, xmax = 0 AS inserted;
INSERT INTO t SELECT g, 1 FROM generate_series(19, 22) g ON CONFLICT (id) DO UPDATE SET v = t.v + 1 RETURNING id, v, xmax = 0 AS inserted;

-- in views, rows, triggers, joins, sorts, aggregates, copies
CREATE VIEW tv AS SELECT ctid AS tid, xmin AS x, tableoid AS rel, id FROM t;
SELECT count(*) FROM tv JOIN t ON t.ctid = tv.tid AND t.xmin = tv.x AND t.tableoid = tv.rel AND t.id = tv.id;
SELECT count(DISTINCT ctid) = count(*) AS tids, min(ctid) < max(ctid) AS ordered FROM t;
SELECT count(*) FROM (SELECT t1.id FROM t t1 JOIN t t2 ON t1.ctid = t2.ctid ORDER BY t1.ctid) s;
CREATE FUNCTION sys() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN RAISE NOTICE '% % tableoid %', TG_WHEN, TG_OP, coalesce(NEW.tableoid, OLD.tableoid)::regclass; RETURN NEW; END$$;
CREATE TABLE p (id int, k int) PARTITION BY LIST (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) USING heap;
CREATE TRIGGER a AFTER INSERT OR UPDATE ON p FOR EACH ROW EXECUTE FUNCTION sys();
INSERT INTO p VALUES (1, 1), (2, 2) RETURNING tableoid::regclass, *;
UPDATE p SET k = 3 - k RETURNING tableoid::regclass, *;
UPDATE p SET id = id + 10 WHERE tableoid = 'p1'::regclass RETURNING tableoid::regclass, xmin = me() AS mine, *;
SELECT tableoid::regclass, * FROM p WHERE tableoid = 'p2'::regclass;
SELECT cmin FROM p LIMIT 0;
CREATE TABLE copied AS SELECT xmin AS x, ctid AS c, cmin AS m, tableoid AS o, * FROM t;
SELECT count(*) = (SELECT count(*) FROM t) AS all_, count(x), count(c) FROM copied;
-- not in constraints, indexes, targets
UPDATE t SET ctid = '(0,1)';
INSERT INTO t (id, xmin) VALUES (99, '1');
CREATE INDEX ON t USING btree (xmin);
CREATE INDEX ON t (id) WHERE ctid > '(0,0)';
CREATE TABLE bad (a int, b tid GENERATED ALWAYS AS (ctid) STORED);
CREATE TABLE ok (a int, CHECK (tableoid <> 1));
INSERT INTO ok VALUES (1);
-- combo command ids: changed again and again in one transaction
BEGIN;
INSERT INTO t VALUES (50, 0);
DO $$BEGIN FOR i IN 1..300 LOOP UPDATE t SET v = v + 1 WHERE id = 50; END LOOP; END$$;
SELECT v FROM t WHERE id = 50;
DECLARE c CURSOR FOR SELECT v FROM t WHERE id = 50;
SAVEPOINT a;
DO $$BEGIN FOR i IN 1..300 LOOP UPDATE t SET v = v + 1 WHERE id = 50; END LOOP; END$$;
FETCH ALL FROM c;
SELECT v FROM t WHERE id = 50;
ROLLBACK TO a;
SELECT v FROM t WHERE id = 50;
COMMIT;
SELECT v FROM t WHERE id = 50;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA system_columns CASCADE;

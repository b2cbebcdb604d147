--
-- MERGE since PostgreSQL 17: WHEN NOT MATCHED BY SOURCE, RETURNING with
-- merge_action(), and views as targets
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA v17_merge;
SET search_path = v17_merge, public;

CREATE TABLE t (id int PRIMARY KEY, v int, s text, u int UNIQUE);
CREATE TABLE src (id int, v int, s text);
INSERT INTO t SELECT g, g * 10, 'row ' || g, g FROM generate_series(1, 8) g;
INSERT INTO src SELECT g, g * 100, 'src ' || g FROM generate_series(5, 12) g;
CREATE FUNCTION show_t() RETURNS TABLE (id int, v int, s text, u int) LANGUAGE sql AS
$$SELECT id, v, s, u FROM t ORDER BY id$$;

-- rows that no source row matches: updated, deleted, left alone
BEGIN;
MERGE INTO t USING src ON t.id = src.id
WHEN NOT MATCHED BY SOURCE THEN DELETE;
SELECT * FROM show_t();
ROLLBACK;
BEGIN;
MERGE INTO t USING src ON t.id = src.id
WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN DELETE
WHEN NOT MATCHED BY SOURCE AND t.v > 30 THEN DO NOTHING
WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = -t.v, s = t.s || ' alone';
SELECT * FROM show_t();
ROLLBACK;
-- all three kinds of match at once
BEGIN;
MERGE INTO t USING src ON t.id = src.id
WHEN MATCHED AND src.id = 6 THEN DELETE
WHEN MATCHED THEN UPDATE SET v = t.v + src.v
WHEN NOT MATCHED BY TARGET AND src.id > 11 THEN DO NOTHING
WHEN NOT MATCHED BY TARGET THEN INSERT (id, v, s) VALUES (src.id, src.v, src.s)
WHEN NOT MATCHED BY SOURCE AND t.id < 3 THEN DELETE
WHEN NOT MATCHED BY SOURCE THEN UPDATE SET id = t.id + 1000, u = NULL;
SELECT * FROM show_t();
ROLLBACK;
SELECT * FROM show_t();
-- an empty source, and an empty target
BEGIN;
MERGE INTO t USING (SELECT * FROM src WHERE false) q ON t.id = q.id
WHEN NOT MATCHED BY SOURCE THEN UPDATE SET s = NULL
WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id);
SELECT count(*), count(s) FROM t;
DELETE FROM t;
MERGE INTO t USING src q ON t.id = q.id
WHEN NOT MATCHED BY SOURCE THEN UPDATE SET s = NULL
WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.id, q.v);
SELECT * FROM show_t();
ROLLBACK;
-- by each kind of join that can do it, and by index scans of the target
CREATE FUNCTION by_join(setting text, OUT n bigint, OUT total bigint) LANGUAGE plpgsql AS $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['enable_hashjoin', 'enable_mergejoin', 'enable_nestloop'] LOOP
    PERFORM set_config(name, (name = setting)::text, true);
  END LOOP;
  MERGE INTO t USING src ON t.id = src.id
  WHEN MATCHED THEN UPDATE SET v = 1
  WHEN NOT MATCHED THEN INSERT (id, v) VALUES (src.id, 2)
  WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 4;
  SELECT count(*), sum(t.v) INTO n, total FROM t;
  PERFORM set_config(x, 'on', true) FROM unnest(ARRAY['enable_hashjoin', 'enable_mergejoin', 'enable_nestloop']) x;
  RAISE EXCEPTION USING ERRCODE = 'P0042', MESSAGE = format('%s: %s rows, sum %s', setting, n, total);
EXCEPTION WHEN SQLSTATE 'P0042' THEN RAISE NOTICE '%', SQLERRM;
END$$;
SELECT by_join('enable_hashjoin');
SELECT by_join('enable_mergejoin');

-- RETURNING: what was done, the source's and the target's columns
BEGIN;
WITH r AS (
  MERGE INTO t USING src ON t.id = src.id
  WHEN MATCHED AND src.id = 6 THEN DELETE
  WHEN MATCHED AND src.id = 7 THEN DO NOTHING
  WHEN MATCHED THEN UPDATE SET v = t.v + src.v, s = src.s
  WHEN NOT MATCHED BY TARGET THEN INSERT (id, v, s) VALUES (src.id, src.v, upper(src.s))
  WHEN NOT MATCHED BY SOURCE AND t.id < 3 THEN DELETE
  WHEN NOT MATCHED BY SOURCE THEN UPDATE SET s = 'gone'
  RETURNING merge_action() AS what, src.id AS src_id, t.*, t.xmin::text = pg_current_xact_id()::xid::text AS mine,
    t.tableoid::regclass AS rel)
SELECT * FROM r ORDER BY coalesce(id, src_id), what COLLATE "C";
SELECT * FROM show_t();
ROLLBACK;
-- into other statements, COPY, functions and cursors
BEGIN;
CREATE TABLE audit (what text, id int, v int);
WITH r AS (
  MERGE INTO t USING src ON t.id = src.id
  WHEN MATCHED THEN UPDATE SET v = src.v
  WHEN NOT MATCHED THEN INSERT (id, v) VALUES (src.id, src.v)
  WHEN NOT MATCHED BY SOURCE THEN DELETE
  RETURNING merge_action(), t.id, t.v)
INSERT INTO audit SELECT * FROM r;
SELECT what, count(*), sum(id), sum(v) FROM audit GROUP BY what ORDER BY what COLLATE "C";
COPY (MERGE INTO t USING (VALUES (5)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET v = 3 RETURNING merge_action(), t.id, t.v) TO stdout;
ROLLBACK;
BEGIN;
DO $$
DECLARE
  r record;
BEGIN
  FOR r IN
    MERGE INTO t USING (SELECT * FROM src ORDER BY id LIMIT 5) q ON t.id = q.id
    WHEN MATCHED THEN DELETE
    WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.id, q.v)
    RETURNING merge_action() AS what, t.id AS tid
  LOOP
    RAISE NOTICE '% %', r.what, r.tid;
  END LOOP;
END$$;
ROLLBACK;

-- large values: those of a deleted row and of an updated one are returned whole
CREATE TABLE wide (id int PRIMARY KEY, big text);
ALTER TABLE wide ALTER big SET STORAGE external;
INSERT INTO wide SELECT g, repeat(chr(64 + g), 50000) FROM generate_series(1, 4) g;
WITH r AS (
  MERGE INTO wide USING (VALUES (1, 'x'), (2, 'y'), (9, 'z')) q (id, c) ON wide.id = q.id
  WHEN MATCHED AND q.id = 1 THEN DELETE
  WHEN MATCHED THEN UPDATE SET big = wide.big || repeat(q.c, 30000)
  WHEN NOT MATCHED THEN INSERT VALUES (q.id, repeat(q.c, 70000))
  WHEN NOT MATCHED BY SOURCE AND wide.id = 3 THEN UPDATE SET big = left(wide.big, 10)
  WHEN NOT MATCHED BY SOURCE THEN DELETE
  RETURNING merge_action() AS what, wide.id, length(big), md5(big))
SELECT * FROM r ORDER BY id;
SELECT id, length(big), md5(big) FROM wide ORDER BY id;

-- triggers, and a BEFORE trigger that changes what is returned
CREATE TABLE log (n serial, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) VALUES (format('%s %s %s -> %s', TG_WHEN, TG_OP,
    CASE WHEN TG_OP <> 'INSERT' THEN OLD::text END, CASE WHEN TG_OP <> 'DELETE' THEN NEW::text END));
  IF TG_OP = 'DELETE' THEN RETURN OLD; END IF;
  IF TG_WHEN = 'BEFORE' AND TG_OP = 'UPDATE' THEN NEW.s := 'by trigger'; END IF;
  IF TG_WHEN = 'BEFORE' AND NEW.id = 12 THEN RETURN NULL; END IF;
  RETURN NEW;
END$$;
CREATE TRIGGER br BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER ar AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
WITH r AS (
  MERGE INTO t USING (SELECT * FROM src WHERE id IN (5, 6, 9, 12)) q ON t.id = q.id
  WHEN MATCHED AND q.id = 6 THEN DELETE
  WHEN MATCHED THEN UPDATE SET v = q.v
  WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.id, q.v)
  WHEN NOT MATCHED BY SOURCE AND t.id = 1 THEN UPDATE SET v = 0
  WHEN NOT MATCHED BY SOURCE AND t.id = 2 THEN DELETE
  RETURNING merge_action() AS what, t.id, t.v, t.s)
SELECT * FROM r ORDER BY id;
SELECT what FROM log ORDER BY what COLLATE "C";
SELECT * FROM show_t();
DROP TRIGGER br ON t;
DROP TRIGGER ar ON t;

-- views as targets, automatically updatable and with triggers
CREATE VIEW low AS SELECT id, v, s FROM t WHERE id < 100 WITH CHECK OPTION;
WITH r AS (
  MERGE INTO low USING (VALUES (3, 33), (50, 55)) q (id, v) ON low.id = q.id
  WHEN MATCHED THEN UPDATE SET v = q.v
  WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.id, q.v)
  WHEN NOT MATCHED BY SOURCE AND low.id = 4 THEN DELETE
  RETURNING merge_action() AS what, low.*)
SELECT * FROM r ORDER BY id;
MERGE INTO low USING (VALUES (3)) q (id) ON low.id = q.id WHEN MATCHED THEN UPDATE SET id = 500;
SELECT * FROM show_t();
CREATE VIEW upside AS SELECT id AS i, s AS txt FROM t;
CREATE FUNCTION upside() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN INSERT INTO t (id, s) VALUES (NEW.i, NEW.txt); RETURN NEW; END IF;
  IF TG_OP = 'UPDATE' THEN UPDATE t SET s = NEW.txt WHERE id = OLD.i; RETURN NEW; END IF;
  DELETE FROM t WHERE id = OLD.i;
  RETURN OLD;
END$$;
CREATE TRIGGER io INSTEAD OF INSERT OR UPDATE OR DELETE ON upside FOR EACH ROW EXECUTE FUNCTION upside();
WITH r AS (
  MERGE INTO upside USING (VALUES (3, 'drei'), (60, 'sechzig')) q (id, s) ON upside.i = q.id
  WHEN MATCHED THEN UPDATE SET txt = q.s
  WHEN NOT MATCHED THEN INSERT VALUES (q.id, q.s)
  WHEN NOT MATCHED BY SOURCE AND i = 5 THEN DELETE
  RETURNING merge_action() AS what, upside.*)
SELECT * FROM r ORDER BY i;
SELECT * FROM show_t();

-- partitions of both access methods; rows move
CREATE TABLE p (id int, k int, s text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
CREATE TABLE p2 (s text, dropped int, k int NOT NULL, id int NOT NULL) USING heap;
ALTER TABLE p2 DROP COLUMN dropped;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300);
INSERT INTO p SELECT g, g * 30, 'p' || g FROM generate_series(0, 9) g;
WITH r AS (
  MERGE INTO p USING (VALUES (0, 120), (4, 250), (8, 50), (20, 199)) q (id, k) ON p.id = q.id
  WHEN MATCHED THEN UPDATE SET k = q.k, s = p.s || '->' || q.k
  WHEN NOT MATCHED THEN INSERT VALUES (q.id, q.k, 'new')
  WHEN NOT MATCHED BY SOURCE AND p.id % 2 = 1 THEN UPDATE SET k = 290 - p.k, s = 'mirror'
  WHEN NOT MATCHED BY SOURCE THEN DELETE
  RETURNING merge_action() AS what, p.tableoid::regclass AS rel, p.*)
SELECT * FROM r ORDER BY id;
SELECT tableoid::regclass, * FROM p ORDER BY id;

-- errors that leave nothing behind
MERGE INTO t USING (VALUES (7, 1), (7, 2)) q (id, v) ON t.id = q.id
WHEN MATCHED THEN UPDATE SET v = q.v WHEN NOT MATCHED BY SOURCE THEN DELETE;
MERGE INTO t USING src ON t.id = src.id WHEN NOT MATCHED BY SOURCE THEN UPDATE SET u = 77;
MERGE INTO t USING src ON t.id = src.id WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = src.v;
MERGE INTO t USING src ON t.id = src.id WHEN NOT MATCHED BY SOURCE THEN UPDATE SET v = 1 / (t.id - 7) RETURNING t.id;
SELECT * FROM show_t();

-- row security
CREATE ROLE nvm_regress_v17;
GRANT USAGE ON SCHEMA v17_merge TO nvm_regress_v17;
GRANT ALL ON t, src TO nvm_regress_v17;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY sel ON t FOR SELECT TO nvm_regress_v17 USING (id < 60);
CREATE POLICY upd ON t FOR UPDATE TO nvm_regress_v17 USING (id <> 7) WITH CHECK (v < 1000);
CREATE POLICY ins ON t FOR INSERT TO nvm_regress_v17 WITH CHECK (id > 10);
CREATE POLICY del ON t FOR DELETE TO nvm_regress_v17 USING (id = 8);
SET ROLE nvm_regress_v17;
MERGE INTO t USING (VALUES (7)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET v = 1;
MERGE INTO t USING (VALUES (8)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET v = 1000;
MERGE INTO t USING (VALUES (8)) q (id) ON t.id = q.id WHEN NOT MATCHED BY SOURCE THEN DELETE;
MERGE INTO t USING (SELECT id FROM t t2 WHERE id <> 8) q ON t.id = q.id
WHEN NOT MATCHED BY SOURCE THEN DELETE RETURNING merge_action(), t.id;
MERGE INTO t USING (VALUES (9)) q (id) ON false WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id) RETURNING t.id;
MERGE INTO t USING (VALUES (61)) q (id) ON false WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id) RETURNING t.id;
RESET ROLE;
SELECT * FROM show_t();
DROP OWNED BY nvm_regress_v17;
DROP ROLE nvm_regress_v17;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA v17_merge CASCADE;

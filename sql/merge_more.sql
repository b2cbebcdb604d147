--
-- MERGE: every action, triggers, partitions, views of its targets, errors
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA merge_more;
SET search_path = merge_more, public;

CREATE TABLE t (id int PRIMARY KEY, v int, s text, u int UNIQUE);
CREATE TABLE src (id int, v int, s text);
INSERT INTO t SELECT g, g * 10, 'row ' || g, g FROM generate_series(1, 8) g;
INSERT INTO src SELECT g, g * 100, 'src ' || g FROM generate_series(5, 12) g;

CREATE TABLE log (n serial, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) VALUES (format('%s %s %s %s -> %s', TG_WHEN, TG_OP, TG_LEVEL,
    CASE WHEN TG_OP <> 'INSERT' AND TG_LEVEL = 'ROW' THEN OLD::text END,
    CASE WHEN TG_OP <> 'DELETE' AND TG_LEVEL = 'ROW' THEN NEW::text END));
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END$$;
CREATE FUNCTION show_log() RETURNS SETOF text LANGUAGE sql AS
$$WITH d AS (DELETE FROM log RETURNING *) SELECT what FROM d ORDER BY n$$;
CREATE FUNCTION trans() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN
    INSERT INTO log (what) SELECT 'new table ' || coalesce(string_agg(n.id::text, ' ' ORDER BY n.id), 'empty') FROM n;
  ELSIF TG_OP = 'DELETE' THEN
    INSERT INTO log (what) SELECT 'old table ' || coalesce(string_agg(o.id::text, ' ' ORDER BY o.id), 'empty') FROM o;
  ELSE
    INSERT INTO log (what) SELECT 'both ' || (SELECT string_agg(o.id || ':' || o.v, ' ' ORDER BY o.id) FROM o)
      || ' => ' || (SELECT string_agg(n.id || ':' || n.v, ' ' ORDER BY n.id) FROM n);
  END IF;
  RETURN NULL;
END$$;

-- the kinds of actions, alone and together; the source in a fixed order
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED THEN UPDATE SET v = src.v, s = src.s;
SELECT * FROM t ORDER BY id;
MERGE INTO t USING src ON t.id = src.id WHEN NOT MATCHED THEN INSERT (id, v) VALUES (src.id, src.v);
SELECT * FROM t ORDER BY id;
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED AND src.id > 9 THEN DELETE WHEN MATCHED THEN DO NOTHING;
SELECT * FROM t ORDER BY id;
MERGE INTO t USING src ON t.id = src.id WHEN NOT MATCHED THEN INSERT DEFAULT VALUES;
MERGE INTO t USING src ON t.id = src.id AND src.id < 7
WHEN MATCHED AND t.v % 200 = 0 THEN UPDATE SET v = DEFAULT
WHEN MATCHED THEN UPDATE SET (v, s) = (SELECT 7, 'sub')
WHEN NOT MATCHED AND src.id > 10 THEN INSERT (id, s, v) VALUES (src.id, DEFAULT, src.v + 1);
SELECT * FROM t ORDER BY id;
BEGIN;
MERGE INTO t USING (SELECT * FROM t) q ON t.id = q.id + 1
WHEN MATCHED THEN UPDATE SET v = q.v
WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.id + 100, q.v);
SELECT * FROM t ORDER BY id;
SAVEPOINT a;
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id) VALUES (src.id);
SELECT count(*), sum(id), sum(v) FROM t;
ROLLBACK TO a;
SELECT count(*), sum(id), sum(v) FROM t;
ROLLBACK;
SELECT count(*), sum(id), sum(v) FROM t;
-- by a join that scans the target by its index
SET enable_seqscan = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
MERGE INTO t USING (VALUES (1, 11), (2, 22), (77, 777)) q (id, v) ON t.id = q.id
WHEN MATCHED THEN UPDATE SET v = q.v, id = t.id + 200
WHEN NOT MATCHED THEN INSERT (id, v) VALUES (q.id, q.v);
SELECT id, v FROM t WHERE id > 70 ORDER BY id;
RESET enable_seqscan;
RESET enable_hashjoin;
RESET enable_mergejoin;

-- triggers of every kind
CREATE TRIGGER br BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER ar AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER bs BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
CREATE TRIGGER as_ AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
CREATE TRIGGER ti AFTER INSERT ON t REFERENCING NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION trans();
CREATE TRIGGER td AFTER DELETE ON t REFERENCING OLD TABLE AS o FOR EACH STATEMENT EXECUTE FUNCTION trans();
CREATE TRIGGER tu AFTER UPDATE ON t REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION trans();
MERGE INTO t USING (SELECT * FROM (VALUES (3, 'u'), (4, 'd'), (5, 'n'), (900, 'i'), (901, 'x')) x (id, what)) q ON t.id = q.id
WHEN MATCHED AND what = 'u' THEN UPDATE SET v = -1
WHEN MATCHED AND what = 'd' THEN DELETE
WHEN MATCHED THEN DO NOTHING
WHEN NOT MATCHED AND what = 'i' THEN INSERT (id, v) VALUES (q.id, 9)
WHEN NOT MATCHED THEN DO NOTHING;
SELECT show_log();
SELECT id, v FROM t ORDER BY id;
DROP TRIGGER br ON t; DROP TRIGGER ar ON t; DROP TRIGGER bs ON t; DROP TRIGGER as_ ON t;
DROP TRIGGER ti ON t; DROP TRIGGER td ON t; DROP TRIGGER tu ON t;
-- a BEFORE trigger that skips, and one that changes another row of the target
CREATE FUNCTION skip_odd() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN IF OLD.id % 2 = 1 THEN RETURN NULL; END IF; RETURN NEW; END$$;
CREATE TRIGGER sk BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION skip_odd();
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED THEN UPDATE SET v = 12345;
SELECT id, v FROM t WHERE v = 12345 ORDER BY id;
DROP TRIGGER sk ON t;
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS
$$BEGIN UPDATE t SET v = 0 WHERE id = NEW.id; RETURN NEW; END$$;
CREATE TRIGGER me BEFORE UPDATE ON t FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION meddle();
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED THEN UPDATE SET v = 5;
DROP TRIGGER me ON t;

-- errors that leave nothing behind
INSERT INTO src VALUES (5, 1, 'twice');
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED THEN UPDATE SET v = src.v;
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED THEN DELETE;
MERGE INTO t USING src ON t.id = src.id WHEN MATCHED AND src.v = 1 THEN DO NOTHING WHEN MATCHED THEN UPDATE SET v = src.v;
MERGE INTO t USING (VALUES (1000), (1000)) q (id) ON t.id = q.id WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id);
MERGE INTO t USING (VALUES (5)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET u = 7;
ALTER TABLE t ADD CHECK (v < 100000);
MERGE INTO t USING (VALUES (5), (6)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET v = q.id * 20000;
SELECT id, v, u FROM t ORDER BY id;

-- partitions, of both access methods; rows move
CREATE TABLE p (id int, k int, s text, PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100);
CREATE TABLE p2 (s text, dropped int, k int NOT NULL, id int NOT NULL) USING heap;
ALTER TABLE p2 DROP COLUMN dropped;
ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (100) TO (200);
CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (200) TO (300);
INSERT INTO p SELECT g, g * 30, 'p' || g FROM generate_series(0, 9) g;
CREATE TRIGGER br BEFORE INSERT OR UPDATE OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER ar AFTER INSERT OR UPDATE OR DELETE ON p FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER tu AFTER UPDATE ON p REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION note();
MERGE INTO p USING (SELECT * FROM (VALUES (0, 120), (4, 250), (8, 50), (9, NULL), (20, 199)) x (id, k) ORDER BY id) q ON p.id = q.id
WHEN MATCHED AND q.k IS NULL THEN DELETE
WHEN MATCHED THEN UPDATE SET k = q.k, s = p.s || '->' || q.k
WHEN NOT MATCHED THEN INSERT VALUES (q.id, q.k, 'new');
SELECT tableoid::regclass, * FROM p ORDER BY id;
SELECT what FROM log WHERE what LIKE '% STATEMENT %' OR what LIKE 'AFTER%' ORDER BY what COLLATE "C";
MERGE INTO p USING (VALUES (1)) q (id) ON p.id = q.id WHEN MATCHED THEN UPDATE SET k = 1000;
MERGE INTO p USING (VALUES (1), (1)) q (id) ON p.id = q.id WHEN MATCHED THEN UPDATE SET k = 150;
SELECT tableoid::regclass, * FROM p WHERE id = 1;
MERGE INTO p1 USING (VALUES (1)) q (id) ON p1.id = q.id WHEN MATCHED THEN UPDATE SET k = 150;

-- row security and privileges of each action
CREATE ROLE nvm_regress_merge;
GRANT USAGE ON SCHEMA merge_more TO nvm_regress_merge;
GRANT SELECT, UPDATE (v) ON t TO nvm_regress_merge;
GRANT SELECT ON src TO nvm_regress_merge;
SET ROLE nvm_regress_merge;
MERGE INTO t USING (VALUES (6)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET v = 66;
MERGE INTO t USING (VALUES (6)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET s = 'no';
MERGE INTO t USING (VALUES (6)) q (id) ON t.id = q.id WHEN MATCHED THEN DELETE;
MERGE INTO t USING (VALUES (6)) q (id) ON t.id = q.id WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id);
RESET ROLE;
GRANT ALL ON t TO nvm_regress_merge;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY see ON t FOR SELECT USING (true);
CREATE POLICY upd ON t FOR UPDATE USING (id < 7) WITH CHECK (v < 70);
CREATE POLICY ins ON t FOR INSERT WITH CHECK (id > 2000);
SET ROLE nvm_regress_merge;
MERGE INTO t USING (VALUES (6)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET v = 67;
MERGE INTO t USING (VALUES (6)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET v = 77;
MERGE INTO t USING (VALUES (7)) q (id) ON t.id = q.id WHEN MATCHED THEN UPDATE SET v = 1;
MERGE INTO t USING (VALUES (6)) q (id) ON t.id = q.id WHEN MATCHED THEN DELETE;
MERGE INTO t USING (VALUES (2001)) q (id) ON t.id = q.id WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id);
MERGE INTO t USING (VALUES (1999)) q (id) ON t.id = q.id WHEN NOT MATCHED THEN INSERT (id) VALUES (q.id);
RESET ROLE;
SELECT id, v FROM t ORDER BY id;
DROP OWNED BY nvm_regress_merge;
DROP ROLE nvm_regress_merge;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA merge_more CASCADE;

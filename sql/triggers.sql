--
-- Triggers: before and after, row and statement, transition tables, deferred
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA triggers;
SET search_path = triggers, public;

CREATE TABLE t (id int PRIMARY KEY, v int, s text);
CREATE TABLE log (n serial, what text);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) VALUES (format('%s %s %s %s -> %s', TG_WHEN, TG_OP, TG_LEVEL,
    CASE WHEN TG_OP <> 'INSERT' AND TG_LEVEL = 'ROW' THEN left(OLD::text, 40) END,
    CASE WHEN TG_OP <> 'DELETE' AND TG_LEVEL = 'ROW' THEN NEW::text END));
  RETURN CASE WHEN TG_OP = 'DELETE' THEN OLD ELSE NEW END;
END$$;
CREATE FUNCTION show_log() RETURNS SETOF text LANGUAGE sql AS
$$WITH d AS (DELETE FROM log RETURNING *) SELECT what FROM d ORDER BY n$$;
CREATE TRIGGER br BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER ar AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
CREATE TRIGGER bs BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
CREATE TRIGGER as_ AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON t FOR EACH STATEMENT EXECUTE FUNCTION note();
INSERT INTO t VALUES (1, 1, 'one'), (2, 2, 'two');
SELECT show_log();
UPDATE t SET v = v + 10;
SELECT show_log();
UPDATE t SET id = 3 WHERE id = 2;
SELECT show_log();
DELETE FROM t WHERE id = 1;
SELECT show_log();
UPDATE t SET v = 0 WHERE false;
SELECT show_log();
COPY t FROM stdin;
7	7	seven
8	8	eight
\.
SELECT show_log();
MERGE INTO t USING (VALUES (7, 70), (9, 90)) s(id, v) ON t.id = s.id
WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.v);
SELECT show_log();
TRUNCATE t;
SELECT show_log();
DROP TRIGGER br ON t; DROP TRIGGER ar ON t; DROP TRIGGER bs ON t; DROP TRIGGER as_ ON t;

-- a trigger that changes, skips, or touches the same row
INSERT INTO t VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three');
CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.id = 2 THEN RETURN NULL; END IF;
  NEW.v := NEW.v * 100; NEW.s := repeat(NEW.s, 500);
  RETURN NEW;
END$$;
CREATE TRIGGER m BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION meddle();
UPDATE t SET v = v + 1;
SELECT id, v, length(s) FROM t ORDER BY id;
DROP TRIGGER m ON t;
CREATE FUNCTION self() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN UPDATE t SET v = v + 1 WHERE id = NEW.id; RETURN NEW; END$$;
CREATE TRIGGER m BEFORE UPDATE ON t FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION self();
UPDATE t SET s = 'x' WHERE id = 2;
DROP TRIGGER m ON t;
CREATE TRIGGER m AFTER UPDATE ON t FOR EACH ROW WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION self();
UPDATE t SET s = 'x' WHERE id = 2;
SELECT * FROM t WHERE id = 2;
DROP TRIGGER m ON t;
-- after triggers see old and new row although the row has changed again since
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE OR DELETE ON t DEFERRABLE INITIALLY DEFERRED
  FOR EACH ROW EXECUTE FUNCTION note();
UPDATE t SET s = NULL WHERE id = 1;
SELECT show_log();
BEGIN;
INSERT INTO t VALUES (10, 10, 'ten');
UPDATE t SET v = 11 WHERE id = 10;
SAVEPOINT a;
UPDATE t SET v = 12 WHERE id = 10;
ROLLBACK TO a;
UPDATE t SET id = 11 WHERE id = 10;
SELECT show_log();
SET CONSTRAINTS late IMMEDIATE;
SELECT show_log();
SET CONSTRAINTS late DEFERRED;
DELETE FROM t WHERE id = 11;
INSERT INTO t VALUES (11, 0, 'new');
COMMIT;
SELECT show_log();
DROP TRIGGER late ON t;
-- a deferred check that fails at commit
CREATE FUNCTION few() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT count(*) FROM t) > 5 THEN RAISE EXCEPTION 'too many rows'; END IF;
  RETURN NULL;
END$$;
CREATE CONSTRAINT TRIGGER few AFTER INSERT ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION few();
BEGIN;
INSERT INTO t SELECT g, g FROM generate_series(100, 105) g;
SELECT count(*) FROM t;
COMMIT;
SELECT count(*) FROM t;
BEGIN;
INSERT INTO t SELECT g, g FROM generate_series(100, 105) g;
DELETE FROM t WHERE id >= 100;
COMMIT;
SELECT count(*) FROM t;
DROP TRIGGER few ON t;

-- transition tables
CREATE FUNCTION trans() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) SELECT TG_OP || ': ' || (SELECT string_agg(o.id || ':' || o.v, ' ' ORDER BY o.id) FROM o)
    || ' => ' || (SELECT string_agg(n.id || ':' || n.v, ' ' ORDER BY n.id) FROM n);
  RETURN NULL;
END$$;
CREATE TRIGGER tr AFTER UPDATE ON t REFERENCING OLD TABLE AS o NEW TABLE AS n FOR EACH STATEMENT EXECUTE FUNCTION trans();
UPDATE t SET v = -v WHERE id IN (1, 3);
UPDATE t SET id = id + 100 WHERE id < 3;
SELECT show_log();
CREATE FUNCTION trans_del() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) SELECT TG_OP || ' ' || count(*) || ' ' || sum(id) FROM o;
  RETURN NULL;
END$$;
CREATE TRIGGER td AFTER DELETE ON t REFERENCING OLD TABLE AS o FOR EACH ROW EXECUTE FUNCTION trans_del();
DELETE FROM t WHERE id > 100;
SELECT show_log();

-- INSTEAD OF, column lists and conditions, disabled, on large values
CREATE VIEW tv AS SELECT id, v FROM t;
CREATE FUNCTION instead() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN UPDATE t SET v = NEW.v * 2 WHERE id = OLD.id; RETURN NEW; END$$;
CREATE TRIGGER i INSTEAD OF UPDATE ON tv FOR EACH ROW EXECUTE FUNCTION instead();
UPDATE tv SET v = 21 WHERE id = 3 RETURNING *;
SELECT * FROM t WHERE id = 3;
CREATE TRIGGER col AFTER UPDATE OF s ON t FOR EACH ROW WHEN (OLD.s IS DISTINCT FROM NEW.s) EXECUTE FUNCTION note();
UPDATE t SET v = 5 WHERE id = 3;
UPDATE t SET s = NULL WHERE id = 3;
UPDATE t SET s = 'ess' WHERE id = 3;
ALTER TABLE t DISABLE TRIGGER col;
UPDATE t SET s = 'tee' WHERE id = 3;
ALTER TABLE t ENABLE TRIGGER col;
DELETE FROM log WHERE what LIKE 'UPDATE%';
SELECT show_log();
CREATE TABLE big (id int PRIMARY KEY, s text, v int);
CREATE FUNCTION big_note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log (what) VALUES (TG_OP || ' ' || coalesce(md5(OLD.s), '-') || ' ' || coalesce(md5(NEW.s), '-'));
  RETURN NULL;
END$$;
CREATE CONSTRAINT TRIGGER bn AFTER INSERT OR UPDATE OR DELETE ON big DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION big_note();
BEGIN;
INSERT INTO big SELECT 1, string_agg(md5(g::text), ''), 1 FROM generate_series(1, 1000) g;
UPDATE big SET v = 2;
UPDATE big SET s = s || s;
DELETE FROM big;
COMMIT;
SELECT show_log();

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA triggers CASCADE;

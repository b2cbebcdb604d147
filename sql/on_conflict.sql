--
-- INSERT ... ON CONFLICT
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA on_conflict;
SET search_path = on_conflict, public;

CREATE TABLE t (id int PRIMARY KEY, u text UNIQUE, v int DEFAULT 0, note text);
INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3);

-- DO NOTHING, with and without a target
INSERT INTO t VALUES (1, 'x') ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO t VALUES (4, 'a') ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO t VALUES (4, 'a') ON CONFLICT (id) DO NOTHING;
INSERT INTO t VALUES (4, 'd', 4), (4, 'e', 5), (5, 'd', 6), (5, 'f', 7) ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO t VALUES (1, 'z') ON CONFLICT ON CONSTRAINT t_pkey DO NOTHING;
SELECT * FROM t ORDER BY id;

-- DO UPDATE
INSERT INTO t VALUES (1, 'x', 10) ON CONFLICT (id) DO UPDATE SET v = t.v + excluded.v, note = excluded.u RETURNING *;
INSERT INTO t VALUES (6, 'g', 10) ON CONFLICT (id) DO UPDATE SET v = -1 RETURNING *;
INSERT INTO t VALUES (7, 'b', 20) ON CONFLICT (u) DO UPDATE SET id = excluded.id RETURNING *;
INSERT INTO t VALUES (2, 'new b', 20) ON CONFLICT (id) DO UPDATE SET v = -1 RETURNING *;
INSERT INTO t VALUES (3, 'b') ON CONFLICT (id) DO UPDATE SET u = excluded.u;
INSERT INTO t VALUES (3, 'q', 5) ON CONFLICT (id) DO UPDATE SET v = excluded.v WHERE t.v > 100 RETURNING *;
INSERT INTO t VALUES (3, 'q', 5) ON CONFLICT (id) DO UPDATE SET v = excluded.v WHERE t.v < 100 RETURNING *;
-- a row proposed twice by one command
INSERT INTO t VALUES (30, 'r'), (30, 's') ON CONFLICT (id) DO UPDATE SET v = 1;
INSERT INTO t VALUES (3, 'r'), (3, 's') ON CONFLICT (id) DO UPDATE SET v = 1;
SELECT * FROM t ORDER BY id;
-- the subselect form, with many rows, half of them new
INSERT INTO t (id, u, v) SELECT g, 'u' || g, 1 FROM generate_series(1, 2000) g
  ON CONFLICT (id) DO UPDATE SET v = t.v + 1, note = 'seen';
INSERT INTO t (id, u, v) SELECT g, 'u' || g, 1 FROM generate_series(1001, 3000) g
  ON CONFLICT (id) DO UPDATE SET v = t.v + 1, note = 'seen';
SELECT count(*), sum(v), count(note) FROM t;

-- in one transaction, deleted and updated rows of its own
BEGIN;
DELETE FROM t WHERE id = 1;
INSERT INTO t VALUES (1, 'again', 1) ON CONFLICT (id) DO UPDATE SET note = 'conflict' RETURNING *;
INSERT INTO t VALUES (1, 'again', 1) ON CONFLICT (id) DO UPDATE SET note = 'conflict' RETURNING *;
UPDATE t SET id = 10001 WHERE id = 2;
INSERT INTO t VALUES (2, 'second') ON CONFLICT (id) DO UPDATE SET note = 'conflict' RETURNING *;
SAVEPOINT a;
INSERT INTO t VALUES (9999, '9999', 1) ON CONFLICT (id) DO UPDATE SET v = 5 RETURNING *;
INSERT INTO t VALUES (9999, '9999', 1) ON CONFLICT (id) DO UPDATE SET v = 5 RETURNING *;
ROLLBACK TO a;
INSERT INTO t VALUES (9999, '9999', 1) ON CONFLICT (id) DO UPDATE SET v = 5 RETURNING *;
ROLLBACK;
SELECT count(*), sum(v) FROM t;

-- partial and expression indexes, exclusion constraints, deferrable ones
CREATE TABLE p (id int, k text, live bool, r int4range, EXCLUDE USING gist (r WITH &&));
CREATE UNIQUE INDEX ON p (lower(k)) WHERE live;
INSERT INTO p VALUES (1, 'Key', true, '[1,5)'), (2, 'key', false, '[5,9)');
INSERT INTO p VALUES (3, 'KEY', true, '[20,30)') ON CONFLICT (lower(k)) WHERE live DO UPDATE SET id = excluded.id;
INSERT INTO p VALUES (4, 'KEY', false, '[30,40)') ON CONFLICT (lower(k)) WHERE live DO UPDATE SET id = excluded.id;
INSERT INTO p VALUES (5, 'other', true, '[3,4)') ON CONFLICT DO NOTHING;
INSERT INTO p VALUES (6, 'other', true, '[3,4)') ON CONFLICT ON CONSTRAINT p_r_excl DO NOTHING;
INSERT INTO p VALUES (7, 'other', true, '[3,4)');
SELECT * FROM p ORDER BY id;
CREATE TABLE d (id int UNIQUE DEFERRABLE);
INSERT INTO d VALUES (1) ON CONFLICT (id) DO NOTHING;

-- with triggers, and through a view
CREATE FUNCTION trg() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'INSERT' THEN RAISE NOTICE '% % new %', TG_WHEN, TG_OP, NEW;
  ELSE RAISE NOTICE '% % old % new %', TG_WHEN, TG_OP, OLD, NEW; END IF;
  NEW.note := coalesce(NEW.note, '') || left(TG_OP, 1);
  RETURN NEW;
END$$;
CREATE TRIGGER b BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION trg();
CREATE TRIGGER a AFTER INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION trg();
INSERT INTO t VALUES (5, 'q5', 5) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO t VALUES (50000, 'q5000', 5) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING *;
INSERT INTO t VALUES (50000, 'q5000', 5) ON CONFLICT (id) DO NOTHING RETURNING *;
CREATE VIEW tv AS SELECT id, u, v FROM t;
INSERT INTO tv VALUES (50000, 'w', 8) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING *;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA on_conflict CASCADE;

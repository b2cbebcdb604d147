--
-- Updatable views, check options, rules, security barriers, row security, column privileges, generated and identity columns
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA views_rules;
SET search_path = views_rules, public;

\set VERBOSITY terse
-- updatable views upon views, local and cascaded checks, defaults, RETURNING
CREATE TABLE base (id int PRIMARY KEY, v int DEFAULT 1, s text DEFAULT 'base', g int GENERATED ALWAYS AS (v * 2) STORED);
INSERT INTO base (id, v) SELECT g, g * 10 FROM generate_series(1, 10) g;
CREATE VIEW v1 AS SELECT id, v, s, g FROM base WHERE v < 100;
CREATE VIEW v2 AS SELECT id, v AS val, s, g FROM v1 WHERE v > 10 WITH LOCAL CHECK OPTION;
CREATE VIEW v3 AS SELECT id, val, s FROM v2 WHERE id < 50 WITH CASCADED CHECK OPTION;
ALTER VIEW v2 ALTER s SET DEFAULT 'v2';
INSERT INTO v2 (id, val) VALUES (20, 20) RETURNING *;
INSERT INTO v2 (id, val) VALUES (21, 5);
INSERT INTO v2 (id, val) VALUES (22, 500) RETURNING *;
INSERT INTO v3 (id, val) VALUES (23, 500);
INSERT INTO v3 (id, val) VALUES (60, 50);
UPDATE v3 SET val = val + 1, id = id + 1 WHERE id = 20 RETURNING *;
UPDATE v3 SET val = 1000 WHERE id = 21;
UPDATE v2 SET g = 1;
DELETE FROM v3 WHERE val = 21 RETURNING *;
INSERT INTO v2 (id, val) VALUES (2, 99) ON CONFLICT (id) DO UPDATE SET val = excluded.val RETURNING *;
INSERT INTO v2 (id, val) VALUES (2, 9) ON CONFLICT (id) DO UPDATE SET val = excluded.val;
WITH u AS (UPDATE v1 SET v = o.v + 1 FROM base o WHERE o.id = v1.id + 1 AND v1.id < 4 RETURNING v1.id, v1.v, o.id)
SELECT * FROM u ORDER BY 1;
SELECT * FROM base ORDER BY id;
SELECT * FROM v3 ORDER BY id FOR UPDATE;
-- INSTEAD OF triggers on a join
CREATE TABLE other (id int PRIMARY KEY, t text);
INSERT INTO other SELECT g, 't' || g FROM generate_series(1, 5) g;
CREATE VIEW j AS SELECT b.id, b.v, o.t FROM base b JOIN other o USING (id);
UPDATE j SET v = 0;
CREATE FUNCTION j_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' THEN
    DELETE FROM other WHERE id = OLD.id;
    RETURN OLD;
  ELSIF TG_OP = 'UPDATE' THEN
    UPDATE base SET v = NEW.v WHERE id = OLD.id;
    UPDATE other SET t = NEW.t WHERE id = OLD.id;
  ELSE
    INSERT INTO base (id, v) VALUES (NEW.id, NEW.v);
    INSERT INTO other VALUES (NEW.id, NEW.t);
    NEW.t := NEW.t || ' (new)';
  END IF;
  RETURN NEW;
END$$;
CREATE TRIGGER j_change INSTEAD OF INSERT OR UPDATE OR DELETE ON j FOR EACH ROW EXECUTE FUNCTION j_change();
INSERT INTO j VALUES (30, 300, 'thirty') RETURNING *;
UPDATE j SET v = v + 1, t = t || '!' WHERE id IN (1, 30) RETURNING *;
DELETE FROM j WHERE id = 5 RETURNING *;
SELECT * FROM j ORDER BY id;

-- rules of every kind
CREATE TABLE log (n serial, what text);
CREATE TABLE r (id int PRIMARY KEY, v int);
CREATE RULE r_ins AS ON INSERT TO r DO ALSO INSERT INTO log (what) VALUES ('ins ' || NEW.id);
CREATE RULE r_upd AS ON UPDATE TO r WHERE OLD.v IS DISTINCT FROM NEW.v DO ALSO INSERT INTO log (what) VALUES ('upd ' || OLD.v || ' to ' || NEW.v);
CREATE RULE r_del AS ON DELETE TO r WHERE OLD.id > 100 DO INSTEAD NOTHING;
CREATE RULE r_del2 AS ON DELETE TO r DO ALSO (INSERT INTO log (what) VALUES ('del ' || OLD.id); INSERT INTO log (what) VALUES ('del again'));
INSERT INTO r SELECT g, g FROM generate_series(1, 3) g;
INSERT INTO r VALUES (101, 101);
UPDATE r SET v = v + 1 WHERE id < 3;
UPDATE r SET id = id;
DELETE FROM r WHERE id IN (1, 101);
SELECT * FROM r ORDER BY id;
SELECT what FROM log ORDER BY what COLLATE "C";
CREATE VIEW rv AS SELECT id, v FROM r;
CREATE RULE rv_ins AS ON INSERT TO rv DO INSTEAD INSERT INTO r VALUES (NEW.id, NEW.v * 100) RETURNING *;
CREATE RULE rv_upd AS ON UPDATE TO rv DO INSTEAD UPDATE r SET v = NEW.v WHERE id = OLD.id RETURNING r.*;
CREATE RULE rv_del AS ON DELETE TO rv DO INSTEAD UPDATE r SET v = NULL WHERE id = OLD.id RETURNING OLD.*;
INSERT INTO rv VALUES (7, 7) RETURNING *;
UPDATE rv SET v = v + 5 WHERE id = 7 RETURNING *;
DELETE FROM rv WHERE id = 7 RETURNING *;
SELECT * FROM r ORDER BY id;
ALTER TABLE r DISABLE RULE r_ins, DISABLE RULE r_upd;
INSERT INTO r VALUES (8, 8);
SELECT count(*) FROM log WHERE what = 'ins 8';

-- security barriers, row security of every command, column privileges
CREATE ROLE nvm_regress_one;
CREATE ROLE nvm_regress_two;
GRANT USAGE ON SCHEMA views_rules TO nvm_regress_one, nvm_regress_two;
CREATE TABLE doc (id int PRIMARY KEY, who name, level int, body text);
INSERT INTO doc SELECT g, CASE g % 2 WHEN 0 THEN 'nvm_regress_one' ELSE 'nvm_regress_two' END, g % 5, repeat('body ' || g || ' ', g * 1000) FROM generate_series(1, 12) g;
CREATE FUNCTION leak(text) RETURNS bool LANGUAGE plpgsql COST 0.0000001 AS $$BEGIN RAISE NOTICE 'leaked %', left($1, 7); RETURN true; END$$;
CREATE VIEW mine WITH (security_barrier) AS SELECT * FROM doc WHERE who = current_user;
GRANT ALL ON mine, doc TO nvm_regress_one, nvm_regress_two;
SET ROLE nvm_regress_one;
SELECT id, length(body) FROM mine WHERE leak(body) AND id < 6 ORDER BY id;
UPDATE mine SET level = level + 10 WHERE leak(body) AND id < 4 RETURNING id, level;
DELETE FROM mine WHERE leak(body) AND id = 12 RETURNING id;
RESET ROLE;
ALTER TABLE doc ENABLE ROW LEVEL SECURITY;
CREATE POLICY p_sel ON doc FOR SELECT USING (who = current_user OR level = 0);
CREATE POLICY p_upd ON doc FOR UPDATE USING (who = current_user) WITH CHECK (level < 50);
CREATE POLICY p_ins ON doc FOR INSERT WITH CHECK (who = current_user);
CREATE POLICY p_del ON doc FOR DELETE USING (level > 10);
CREATE POLICY p_all ON doc AS RESTRICTIVE USING (id <> 6);
SET ROLE nvm_regress_one;
SELECT id, who, level FROM doc ORDER BY id;
UPDATE doc SET level = level + 1 RETURNING id, level;
UPDATE doc SET level = 50 WHERE id = 4;
INSERT INTO doc VALUES (40, 'nvm_regress_two', 1, 'x');
INSERT INTO doc VALUES (40, 'nvm_regress_one', 1, 'x') RETURNING id;
INSERT INTO doc VALUES (40, 'nvm_regress_one', 2, 'x') ON CONFLICT (id) DO UPDATE SET level = 40 RETURNING id, level;
INSERT INTO doc VALUES (1, 'nvm_regress_one', 2, 'x') ON CONFLICT (id) DO UPDATE SET level = 40 RETURNING id, level;
DELETE FROM doc RETURNING id, level;
SELECT count(*) FROM doc WHERE leak(body) AND id > 7;
SELECT id FROM doc WHERE level > 3 ORDER BY id FOR SHARE;
COPY (SELECT id, who FROM doc ORDER BY id) TO stdout;
SET ROLE nvm_regress_two;
SELECT id, level FROM doc ORDER BY id;
RESET ROLE;
SELECT id, who, level FROM doc ORDER BY id;
ALTER TABLE doc DISABLE ROW LEVEL SECURITY;
REVOKE ALL ON doc FROM nvm_regress_one;
GRANT SELECT (id, level), INSERT (id, who), UPDATE (level) ON doc TO nvm_regress_one;
SET ROLE nvm_regress_one;
INSERT INTO doc (id, who) VALUES (50, 'a') RETURNING id;
INSERT INTO doc (id, who) VALUES (51, 'a') RETURNING who;
INSERT INTO doc (id, level) VALUES (52, 1);
UPDATE doc SET level = 7 WHERE id = 50 RETURNING level;
UPDATE doc SET level = 7 WHERE who = 'a';
UPDATE doc SET who = 'b' WHERE id = 50;
INSERT INTO doc (id, who) VALUES (50, 'a') ON CONFLICT (id) DO UPDATE SET level = 8 RETURNING id, level;
SELECT ctid IS NOT NULL FROM doc WHERE id = 50;
SELECT d FROM doc d;
DELETE FROM doc WHERE id = 50;
RESET ROLE;
DROP OWNED BY nvm_regress_one, nvm_regress_two;
DROP ROLE nvm_regress_one, nvm_regress_two;

-- identity, serial and generated columns along INSERT, UPDATE, COPY, MERGE and partitions
CREATE TABLE ident (id int GENERATED ALWAYS AS IDENTITY (START 10 INCREMENT 10 MAXVALUE 100 CYCLE), d int GENERATED BY DEFAULT AS IDENTITY,
  a text, b text GENERATED ALWAYS AS (upper(a) || length(a)) STORED, CHECK (b <> 'BAD3'));
INSERT INTO ident (a) SELECT 'a' || g FROM generate_series(1, 4) g;
INSERT INTO ident (id, a) VALUES (1, 'no');
INSERT INTO ident (id, d, a) OVERRIDING USER VALUE VALUES (1, 1, 'user') RETURNING *;
INSERT INTO ident (id, d, a) OVERRIDING SYSTEM VALUE VALUES (1, 1, 'system') RETURNING *;
UPDATE ident SET id = 5;
UPDATE ident SET id = DEFAULT, a = a || a WHERE id = 1 RETURNING *;
INSERT INTO ident (a) VALUES ('bad');
UPDATE ident SET a = 'bad' WHERE id = 20;
COPY ident (d, a) FROM stdin;
77	copied
\.
COPY ident (a, b) FROM '/dev/null';
ALTER TABLE ident ALTER id SET GENERATED BY DEFAULT SET START 500 RESTART;
MERGE INTO ident USING (VALUES ('a1'), ('merged')) q (a) ON ident.a = q.a
WHEN MATCHED THEN UPDATE SET a = 'upd', b = DEFAULT WHEN NOT MATCHED THEN INSERT (a) VALUES (q.a);
SELECT * FROM ident ORDER BY id, a;
CREATE FUNCTION big_gen(t text) RETURNS text LANGUAGE sql IMMUTABLE AS $$SELECT string_agg(md5(t || g), '') FROM generate_series(1, 1000) g$$;
CREATE TABLE gen (id int, s text, big text GENERATED ALWAYS AS (big_gen(s)) STORED) PARTITION BY RANGE (id);
CREATE TABLE gen1 PARTITION OF gen FOR VALUES FROM (0) TO (10);
CREATE TABLE gen2 PARTITION OF gen FOR VALUES FROM (10) TO (20) USING heap;
INSERT INTO gen VALUES (1, 'one'), (11, 'eleven');
UPDATE gen SET id = id + 10 WHERE id = 1;
UPDATE gen SET id = id - 10, s = 'moved' WHERE id = 11 AND s = 'eleven';
UPDATE gen SET s = s || 'x' WHERE id = 11;
SELECT tableoid::regclass, id, s, length(big), big = big_gen(s) AS right FROM gen ORDER BY id;
ALTER TABLE gen ALTER big DROP EXPRESSION;
UPDATE gen SET s = 'other';
SELECT id, s, big = big_gen(s) AS right FROM gen ORDER BY id;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA views_rules CASCADE;

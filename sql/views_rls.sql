--
-- Views, rules, row security, prepared plans, functions over nvm tables
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA views_rls;
SET search_path = views_rls, public;

CREATE TABLE t (id int PRIMARY KEY, owner name DEFAULT current_user, v int, s text);
INSERT INTO t SELECT g, CASE g % 2 WHEN 0 THEN current_user ELSE 'somebody' END, g, 's' || g FROM generate_series(1, 10) g;

\set VERBOSITY terse
-- updatable views, with check option, joins with INSTEAD rules
CREATE VIEW low AS SELECT id, v, s FROM t WHERE v < 5 WITH CHECK OPTION;
INSERT INTO low VALUES (20, 1, 'low');
INSERT INTO low VALUES (21, 100, 'high');
UPDATE low SET v = v + 1 WHERE id = 20;
UPDATE low SET v = 50 WHERE id = 20;
DELETE FROM low WHERE id = 1;
SELECT * FROM low ORDER BY id;
CREATE TABLE log (what text, id int);
CREATE RULE upd AS ON UPDATE TO t DO ALSO INSERT INTO log VALUES ('upd', OLD.id);
CREATE RULE del AS ON DELETE TO t DO INSTEAD UPDATE t SET s = 'deleted' WHERE id = OLD.id;
UPDATE t SET v = v * 2 WHERE id IN (2, 3);
DELETE FROM t WHERE id = 4;
SELECT id, v, s FROM t WHERE id BETWEEN 2 AND 4 ORDER BY id;
SELECT * FROM log ORDER BY id;
DROP RULE upd ON t;
DROP RULE del ON t;

-- row security
CREATE ROLE nvm_regress_user;
GRANT USAGE ON SCHEMA views_rls TO nvm_regress_user;
GRANT ALL ON t TO nvm_regress_user;
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
CREATE POLICY own ON t USING (owner = current_user) WITH CHECK (v < 1000);
UPDATE t SET owner = 'nvm_regress_user' WHERE id > 7;
SET ROLE nvm_regress_user;
SELECT id, v FROM t ORDER BY id;
UPDATE t SET v = v + 1 RETURNING id, v;
UPDATE t SET v = 2000 WHERE id = 9;
DELETE FROM t WHERE id < 9;
INSERT INTO t VALUES (30, 'nvm_regress_user', 30);
INSERT INTO t VALUES (30, 'nvm_regress_user', 31) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING id, v;
INSERT INTO t VALUES (2, 'nvm_regress_user', 31) ON CONFLICT (id) DO UPDATE SET v = excluded.v;
SELECT id FROM t ORDER BY id FOR UPDATE;
RESET ROLE;
SELECT id, owner = current_user AS mine, v FROM t ORDER BY id;
REVOKE ALL ON t FROM nvm_regress_user;
GRANT SELECT (id), UPDATE (v) ON t TO nvm_regress_user;
SET ROLE nvm_regress_user;
SELECT id FROM t ORDER BY id;
SELECT * FROM t;
UPDATE t SET s = '';
UPDATE t SET v = 0 WHERE id = 30;
DELETE FROM t;
RESET ROLE;
ALTER TABLE t DISABLE ROW LEVEL SECURITY;
DROP OWNED BY nvm_regress_user;
DROP ROLE nvm_regress_user;

\set VERBOSITY default
-- prepared statements with generic plans, across changes
SET plan_cache_mode = force_generic_plan;
PREPARE ins (int, int) AS INSERT INTO t (id, v) VALUES ($1, $2) RETURNING id;
PREPARE upd (int, int) AS UPDATE t SET v = $2 WHERE id = $1 RETURNING v;
PREPARE sel (int) AS SELECT id, v, s FROM t WHERE id = $1;
EXECUTE ins (100, 1);
EXECUTE upd (100, 2);
EXECUTE sel (100);
CREATE INDEX ON t (v);
EXECUTE upd (100, 3);
ALTER TABLE t ALTER s SET DEFAULT 'dflt';
EXECUTE ins (101, 1);
EXECUTE sel (101);
VACUUM FULL t;
EXECUTE upd (100, 4);
EXECUTE sel (100);
TRUNCATE t;
EXECUTE sel (100);
EXECUTE ins (100, 5);
EXECUTE sel (100);
RESET plan_cache_mode;
DEALLOCATE ALL;

-- functions that return rows of the table, and change it
CREATE FUNCTION rows_of(int) RETURNS SETOF t LANGUAGE sql STABLE AS 'SELECT * FROM t WHERE id >= $1';
CREATE FUNCTION add_row(int) RETURNS t LANGUAGE sql AS 'INSERT INTO t (id, v) VALUES ($1, $1) RETURNING *';
SELECT (add_row(g)).id FROM generate_series(1, 3) g;
SELECT count(*) FROM rows_of(1);
SELECT r.id, r.v FROM generate_series(1, 2) g, LATERAL rows_of(g * 2) r ORDER BY 1, 2;
CREATE PROCEDURE steps(n int) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN 1..n LOOP
    UPDATE t SET v = v + 1 WHERE id = 100;
    IF i % 10 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
  END LOOP;
END$$;
CALL steps(100);
SELECT v FROM t WHERE id = 100;

-- window functions, grouping sets, recursion, lateral, EXCEPT, large sorts and hashes with little memory
INSERT INTO t (id, v, s) SELECT g, g % 17, md5((g % 1000)::text) FROM generate_series(1000, 21000) g;
SET work_mem = '64kB';
SELECT v, count(*), sum(id) FROM t WHERE id >= 1000 GROUP BY GROUPING SETS ((v), ()) HAVING v IS NULL OR v < 3 ORDER BY v;
SELECT id, rank FROM (SELECT id, rank() OVER (PARTITION BY v ORDER BY id DESC) FROM t WHERE id >= 1000) x WHERE rank = 1 ORDER BY id LIMIT 3;
SELECT count(*), count(DISTINCT s), max(length(s)) FROM t WHERE id >= 1000;
SELECT count(*) FROM t a JOIN t b ON a.s = b.s AND a.id < b.id WHERE a.id BETWEEN 1000 AND 3000;
SELECT count(*) FROM (SELECT s FROM t EXCEPT SELECT s FROM t WHERE id > 1100) x;
SELECT id, s FROM t WHERE id >= 1000 ORDER BY s, id LIMIT 2;
RESET work_mem;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA views_rls CASCADE;

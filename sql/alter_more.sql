--
-- ALTER TABLE: storage, compression, inheritance, types, identity of replicas, triggers, owners, names, schemas, options
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA alter_more;
SET search_path = alter_more, public;

\set VERBOSITY terse
CREATE FUNCTION big(n int, seed int) RETURNS text LANGUAGE sql IMMUTABLE AS
$$SELECT left(string_agg(md5(seed || '/' || g), '' ORDER BY g), n) FROM generate_series(1, n / 32 + 1) g$$;
-- storage and compression are honoured for what is written from then on
CREATE TABLE t (id int PRIMARY KEY, s text COMPRESSION pglz, x text);
INSERT INTO t SELECT g, repeat('squeeze ' || g, 4000), big(3000, g) FROM generate_series(1, 3) g;
ALTER TABLE t ALTER s SET COMPRESSION lz4;
INSERT INTO t SELECT g, repeat('squeeze ' || g, 4000), NULL FROM generate_series(4, 5) g;
SELECT id, pg_column_compression(s), pg_column_compression(x), length(s), pg_column_size(s) < 2000 AS small FROM t ORDER BY id;
UPDATE t SET x = 'x' WHERE id = 1;
SELECT id, pg_column_compression(s) FROM t WHERE id = 1;
UPDATE t SET s = s || '!' WHERE id = 2;
SELECT id, pg_column_compression(s), right(s, 12) FROM t ORDER BY id;
CREATE TABLE taken AS SELECT * FROM t;
SELECT id, pg_column_compression(s) FROM taken ORDER BY id;
CREATE TABLE like_ (LIKE t INCLUDING ALL);
INSERT INTO like_ SELECT id, s || '', x FROM t;
SELECT id, pg_column_compression(s) FROM like_ ORDER BY id;
VACUUM FULL t;
SELECT id, pg_column_compression(s) FROM t ORDER BY id;
ALTER TABLE t ALTER s SET STORAGE EXTERNAL;
INSERT INTO t SELECT 6, repeat('squeeze 6', 4000);
ALTER TABLE t ALTER s SET STORAGE MAIN;
INSERT INTO t SELECT 7, repeat('squeeze 7', 4000);
ALTER TABLE t ALTER s SET STORAGE PLAIN;
INSERT INTO t SELECT 8, repeat('squeeze 8', 400);
ALTER TABLE t ALTER s SET STORAGE EXTENDED, ALTER s SET COMPRESSION default;
INSERT INTO t SELECT 9, repeat('squeeze 9', 4000);
SELECT id, pg_column_compression(s), length(s), pg_column_size(s) < 3000 AS small FROM t WHERE id > 5 ORDER BY id;
SET default_toast_compression = lz4;
INSERT INTO t SELECT 10, repeat('squeeze 10', 4000);
UPDATE t SET s = s || '' WHERE id = 9;
RESET default_toast_compression;
SELECT id, pg_column_compression(s), substr(s, 30001, 9) FROM t WHERE id > 8 ORDER BY id;
ALTER TABLE t ALTER id SET STORAGE EXTERNAL;
ALTER TABLE t ALTER id SET COMPRESSION pglz;
ALTER TABLE t ALTER s SET COMPRESSION zip;
SELECT attname, attstorage, attcompression FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 1 ORDER BY attnum;
SELECT count(*), md5(string_agg(md5(s), '' ORDER BY id)) FROM t;

-- options of the table and of its columns
ALTER TABLE t SET (fillfactor = 40, autovacuum_enabled = off, autovacuum_vacuum_scale_factor = 0.5, toast.autovacuum_enabled = off, parallel_workers = 3, toast_tuple_target = 4000, user_catalog_table = false, vacuum_truncate = off);
ALTER TABLE t RESET (parallel_workers, user_catalog_table, vacuum_truncate), ALTER x SET (n_distinct = -0.5, n_distinct_inherited = 3);
SELECT reloptions FROM pg_class WHERE oid = 't'::regclass;
SELECT o FROM pg_attribute, unnest(attoptions) o WHERE attrelid = 't'::regclass AND attname = 'x' AND o LIKE 'n_distinct%';
INSERT INTO t SELECT g, 'n', repeat('squeeze ' || g, 400) FROM generate_series(11, 12) g;
SELECT id, pg_column_compression(x) FROM t WHERE id > 10 ORDER BY id;
ALTER TABLE t SET (toast_tuple_target = 100000);
ALTER TABLE t SET (fillfactor = 5);
ALTER TABLE t RESET (fillfactor, toast_tuple_target);
-- clustering marks
CREATE INDEX t_x ON t (x);
ALTER TABLE t CLUSTER ON t_x;
SELECT indexrelid::regclass FROM pg_index WHERE indrelid = 't'::regclass AND indisclustered;
CLUSTER t;
SELECT id FROM t WHERE x IS NOT NULL AND x < 'f' ORDER BY x, id;
ALTER TABLE t SET WITHOUT CLUSTER;
CLUSTER t;
-- the replica identity
ALTER TABLE t REPLICA IDENTITY FULL;
UPDATE t SET x = 'full' WHERE id = 1;
ALTER TABLE t REPLICA IDENTITY USING INDEX t_pkey;
ALTER TABLE t REPLICA IDENTITY USING INDEX t_x;
SELECT relreplident FROM pg_class WHERE oid = 't'::regclass;
ALTER TABLE t REPLICA IDENTITY NOTHING;
DELETE FROM t WHERE id = 1;
ALTER TABLE t REPLICA IDENTITY DEFAULT;

-- triggers, rules and row security switched on and off
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE NOTICE 'trigger % %', TG_NAME, TG_OP; RETURN NEW; END$$;
CREATE TRIGGER one BEFORE UPDATE ON t FOR EACH ROW EXECUTE FUNCTION tell();
CREATE TRIGGER two AFTER UPDATE ON t FOR EACH ROW EXECUTE FUNCTION tell();
CREATE RULE r AS ON UPDATE TO t DO ALSO SELECT 'rule' AS what;
UPDATE t SET x = 'a' WHERE id = 2;
ALTER TABLE t DISABLE TRIGGER one, DISABLE RULE r;
UPDATE t SET x = 'a' WHERE id = 2;
ALTER TABLE t ENABLE REPLICA TRIGGER one, ENABLE ALWAYS TRIGGER two, ENABLE ALWAYS RULE r;
UPDATE t SET x = 'a' WHERE id = 2;
SET session_replication_role = replica;
UPDATE t SET x = 'a' WHERE id = 2;
RESET session_replication_role;
ALTER TABLE t DISABLE TRIGGER USER, DISABLE RULE r;
UPDATE t SET x = 'a' WHERE id = 2;
ALTER TABLE t ENABLE TRIGGER ALL, DISABLE TRIGGER two;
ALTER TRIGGER one ON t RENAME TO uno;
UPDATE t SET x = 'a' WHERE id = 2;
DROP TRIGGER uno ON t;
-- owners, row security forced upon them, names and schemas
CREATE ROLE nvm_regress_owner;
CREATE SCHEMA alter_other;
GRANT ALL ON SCHEMA alter_other, alter_more TO nvm_regress_owner;
ALTER TABLE t OWNER TO nvm_regress_owner;
CREATE POLICY few ON t USING (id < 4);
ALTER TABLE t ENABLE ROW LEVEL SECURITY;
SET ROLE nvm_regress_owner;
SELECT count(*) FROM t;
ALTER TABLE t FORCE ROW LEVEL SECURITY;
SELECT count(*) FROM t;
UPDATE t SET id = 5 WHERE id = 2;
UPDATE t SET id = 1 WHERE id = 2;
DELETE FROM t WHERE id > 2;
ALTER TABLE t NO FORCE ROW LEVEL SECURITY, DISABLE ROW LEVEL SECURITY;
SELECT count(*) FROM t;
ALTER TABLE t RENAME TO u;
ALTER TABLE u RENAME x TO y;
ALTER TABLE u RENAME CONSTRAINT t_pkey TO u_pkey;
ALTER INDEX t_x RENAME TO u_y;
ALTER TABLE u SET SCHEMA alter_other;
SELECT count(*), count(y) FROM alter_other.u;
INSERT INTO alter_other.u (id) VALUES (1);
BEGIN;
ALTER TABLE alter_other.u RENAME TO v;
ALTER TABLE alter_other.v SET SCHEMA alter_more;
UPDATE v SET y = 'rolled back';
ROLLBACK;
SELECT count(*) FROM alter_other.u WHERE y = 'rolled back';
RESET ROLE;
ALTER TABLE alter_other.u SET SCHEMA alter_more;
REASSIGN OWNED BY nvm_regress_owner TO CURRENT_USER;
DROP OWNED BY nvm_regress_owner;
DROP ROLE nvm_regress_owner;
DROP SCHEMA alter_other;
SELECT count(*) FROM u;

-- inheritance: taken up, given up, columns and constraints that go down, by parents of both access methods
CREATE TABLE par (a int NOT NULL, b text DEFAULT 'b', CHECK (a > 0));
CREATE TABLE hpar (a int, h int) USING heap;
CREATE TABLE kid (c int, b text, a int NOT NULL, CONSTRAINT par_a_check CHECK (a > 0));
INSERT INTO kid SELECT g, 'kid', g FROM generate_series(1, 5) g;
INSERT INTO par VALUES (100, 'par');
ALTER TABLE kid INHERIT par;
ALTER TABLE kid INHERIT hpar;
ALTER TABLE kid ADD COLUMN h int DEFAULT 3;
ALTER TABLE kid INHERIT hpar;
SELECT tableoid::regclass, * FROM par ORDER BY a;
SELECT tableoid::regclass, * FROM hpar ORDER BY a;
ALTER TABLE par ADD COLUMN d int DEFAULT 9, ALTER b TYPE varchar(20), ADD CHECK (d < 10);
UPDATE par SET d = d - 1 WHERE a % 2 = 0;
SELECT tableoid::regclass, * FROM par ORDER BY a;
ALTER TABLE par ALTER a TYPE bigint;
ALTER TABLE kid NO INHERIT hpar;
ALTER TABLE par ALTER a TYPE bigint USING a * 10;
UPDATE par SET a = -1;
SELECT * FROM kid ORDER BY a;
ALTER TABLE par DROP COLUMN d, ALTER b DROP DEFAULT;
ALTER TABLE kid NO INHERIT par;
SELECT count(*) FROM par;
DROP TABLE par, hpar;
SELECT * FROM kid ORDER BY a;
-- tables of a composite type
CREATE TYPE shape AS (a int, b text);
CREATE TABLE typed (a int, b text);
INSERT INTO typed VALUES (1, 'one');
ALTER TABLE typed OF shape;
ALTER TYPE shape ADD ATTRIBUTE c int CASCADE, ALTER ATTRIBUTE a TYPE bigint CASCADE;
INSERT INTO typed VALUES (5000000000, 'two', 3);
SELECT typed, typed.a FROM typed ORDER BY a;
ALTER TABLE typed ADD COLUMN d int;
ALTER TABLE typed NOT OF;
ALTER TABLE typed ADD COLUMN d int DEFAULT 4;
SELECT * FROM typed ORDER BY a;
-- a type that a column uses is altered: allowed or not, with rows written before
CREATE TABLE holder (id int, s shape, arr shape[]);
INSERT INTO holder VALUES (1, (1, 'x', 2), ARRAY[(1, 'y', 3)::shape]);
ALTER TYPE shape ADD ATTRIBUTE d text;
SELECT s, (s).d, (arr[1]).d, (arr[1]).b FROM holder;
UPDATE holder SET s.d = 'new', arr[2] = (2, 'z', 4, 'd');
SELECT * FROM holder;
ALTER TYPE shape DROP ATTRIBUTE b;
SELECT * FROM holder;
ALTER TYPE shape ALTER ATTRIBUTE a TYPE text;
CREATE TYPE mood AS ENUM ('low', 'high');
CREATE TABLE m (id int, m mood, PRIMARY KEY (id, m));
INSERT INTO m VALUES (1, 'low'), (2, 'high');
ALTER TYPE mood ADD VALUE 'mid' BEFORE 'high';
INSERT INTO m VALUES (3, 'mid');
ALTER TYPE mood RENAME VALUE 'low' TO 'deep';
SELECT * FROM m ORDER BY m;
-- columns made identities, and generated ones plain
CREATE TABLE idt (a int NOT NULL, b int GENERATED ALWAYS AS (a + 1) STORED);
INSERT INTO idt SELECT generate_series(1, 3);
ALTER TABLE idt ALTER a ADD GENERATED ALWAYS AS IDENTITY (START 10);
INSERT INTO idt DEFAULT VALUES RETURNING *;
ALTER TABLE idt ALTER a SET GENERATED BY DEFAULT, ALTER a SET INCREMENT BY 5, ALTER a RESTART;
INSERT INTO idt DEFAULT VALUES RETURNING *;
INSERT INTO idt DEFAULT VALUES RETURNING *;
ALTER TABLE idt ALTER a DROP IDENTITY, ALTER b DROP EXPRESSION;
INSERT INTO idt VALUES (50, 0);
SELECT * FROM idt ORDER BY a;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA alter_more CASCADE;

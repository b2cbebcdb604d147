--
-- Values larger than a block: stored whole, sliced, kept by updates, undone
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA large_values;
SET search_path = large_values, public;

-- big(n, seed): n bytes that do not compress; the same seed gives the same bytes
CREATE FUNCTION big(n int, seed int) RETURNS text LANGUAGE sql AS
$$SELECT left(string_agg(md5(seed || '/' || g), '' ORDER BY g), n) FROM generate_series(1, n / 32 + 1) g$$;
CREATE TABLE t (id int PRIMARY KEY, s text, v int DEFAULT 0, e text, x text, p bytea);
ALTER TABLE t ALTER e SET STORAGE EXTERNAL, ALTER x SET STORAGE MAIN;

INSERT INTO t (id, s) SELECT g, big(g, g) FROM unnest('{10,1000,2000,4000,7900,8000,8100,8192,8200,10000,16384,65536,1000000,5000000}'::int[]) g;
INSERT INTO t (id, s) SELECT -g, repeat('compressible ', g / 13) FROM unnest('{2000,8000,10000,100000,1000000,5000000}'::int[]) g;
SELECT id, length(s), octet_length(s), md5(s) = md5(CASE WHEN id > 0 THEN big(id, id) ELSE repeat('compressible ', -id / 13) END) AS same
FROM t ORDER BY id;
-- slices, from the front, the middle and the end
SELECT id, substr(s, 1, 10) = substr(big(id, id), 1, 10) AS head,
  substr(s, id / 2, 20) = substr(big(id, id), id / 2, 20) AS middle, right(s, 7) = right(big(id, id), 7) AS tail
FROM t WHERE id >= 8000 ORDER BY id;
SELECT id, substr(s, 1, 20), substr(s, 5001, 13) FROM t WHERE id < -9000 ORDER BY id;
SELECT id, position('/' IN s), s LIKE '%compressible %' FROM t WHERE id IN (-5000000, 5000000) ORDER BY id;

-- update of another column keeps the value; of the value itself replaces it
UPDATE t SET v = v + 1;
UPDATE t SET v = v + 1;
SELECT count(*), sum(v), sum(length(s)), md5(string_agg(md5(s), '' ORDER BY id)) FROM t;
UPDATE t SET s = 'short' WHERE id IN (10000, -10000);
UPDATE t SET s = big(50000, 5) WHERE id IN (10, 65536, -2000);
UPDATE t SET s = NULL WHERE id = 8192;
UPDATE t SET id = id + 1 WHERE id IN (10, 65536);
UPDATE t SET s = s || s WHERE id = 1000000;
UPDATE t SET e = s, x = s, p = s::bytea WHERE id IN (16384, 1000, 8200);
SELECT id, length(s), md5(s) = md5(e) AS e, md5(s) = md5(x) AS x, s::bytea = p AS p FROM t ORDER BY id;
UPDATE t SET v = 100, x = 'x' WHERE id = 16384;
SELECT id, v, length(s), md5(s) = md5(e) AS e, x, s::bytea = p AS p FROM t WHERE id = 16384;
SELECT substr(e, 9000, 10) = substr(s, 9000, 10) AS same FROM t WHERE id = 16384;

-- undone
SELECT md5(string_agg(id || coalesce(md5(s), ''), ',' ORDER BY id)) AS before FROM t \gset
BEGIN;
UPDATE t SET s = big(20000, 1);
DELETE FROM t WHERE id < 0;
INSERT INTO t (id, s) SELECT 90000 + g, big(30000, g) FROM generate_series(1, 10) g;
SELECT count(*), sum(length(s)) FROM t;
SAVEPOINT a;
UPDATE t SET s = NULL;
INSERT INTO t (id, s) SELECT 91000 + g, big(30000, g) FROM generate_series(1, 10) g;
ROLLBACK TO a;
SELECT count(*), sum(length(s)) FROM t;
ROLLBACK;
SELECT md5(string_agg(id || coalesce(md5(s), ''), ',' ORDER BY id)) = :'before' AS same FROM t;
INSERT INTO t (id, s) VALUES (1, big(100000, 1)), (8000, big(100000, 2));
SELECT count(*) FROM t WHERE id = 1;

-- into other tables, arrays, rows, variables, cursors; kept when the source is deleted
CREATE TABLE copy_heap (id int, s text) USING heap;
INSERT INTO copy_heap SELECT id, s FROM t;
CREATE TABLE copy_nvm AS SELECT id, s FROM t;
CREATE TABLE arr (a text[], r t);
INSERT INTO arr SELECT (SELECT array_agg(s ORDER BY id) FROM t WHERE id BETWEEN 1000 AND 70000), t FROM t WHERE id = 16384;
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT id, md5(s), length(s) FROM t WHERE id > 60000 ORDER BY id;
COMMIT;
CREATE FUNCTION keep() RETURNS text LANGUAGE plpgsql AS $$
DECLARE s1 text; r record; a text[];
BEGIN
  SELECT s INTO s1 FROM t WHERE id = 5000000;
  SELECT * INTO r FROM t WHERE id = 65537;
  a := ARRAY(SELECT s FROM t WHERE id BETWEEN 4000 AND 9000 ORDER BY id);
  DELETE FROM t;
  INSERT INTO t (id, s) SELECT g, big(200000, g) FROM generate_series(1, 30) g;
  RETURN length(s1) || ' ' || (md5(s1) = md5(big(5000000, 5000000))) || ' ' || length(r.s) || ' '
    || (md5(r.s) = md5(big(50000, 5))) || ' ' || array_length(a, 1) || ' ' || length(a[1]);
END$$;
SELECT keep();
FETCH ALL FROM c;
SELECT md5(string_agg(id || coalesce(md5(s), ''), ',' ORDER BY id)) = :'before' AS heap FROM copy_heap;
SELECT md5(string_agg(id || coalesce(md5(s), ''), ',' ORDER BY id)) = :'before' AS nvm FROM copy_nvm;
SELECT array_length(a, 1), length(a[2]), length((r).s), md5((r).s) = md5(big(16384, 16384)) AS same FROM arr;
DROP TABLE t CASCADE;
INSERT INTO copy_nvm SELECT 7, s FROM copy_heap WHERE id = 5000000;
SELECT length(s), md5(s) = md5(big(5000000, 5000000)) AS same FROM copy_nvm WHERE id = 7;

-- many columns that together do not fit, each of which would
CREATE TABLE many (id int PRIMARY KEY);
DO $$BEGIN FOR i IN 1..60 LOOP EXECUTE 'ALTER TABLE many ADD COLUMN c' || i || ' text'; END LOOP; END$$;
DO $$BEGIN
  EXECUTE 'INSERT INTO many SELECT n, ' || (SELECT string_agg('big(' || i * 20 || ', ' || i || ' + n)', ',') FROM generate_series(1, 60) i)
    || ' FROM generate_series(1, 20) n';
END$$;
SELECT count(*), sum(length(many::text)), md5(string_agg(md5(many::text), '' ORDER BY id)) FROM many;
UPDATE many SET c60 = 'x', c1 = big(3000, id) WHERE id % 2 = 0;
SELECT count(*), sum(length(many::text)), md5(string_agg(md5(many::text), '' ORDER BY id)) FROM many;
SELECT c30 = big(600, 30 + id) AS same, count(*) FROM many GROUP BY 1;

-- COPY, indexes over large values, GROUP BY, sort, join
CREATE TABLE ci (id int PRIMARY KEY, s text, j jsonb);
CREATE INDEX ON ci USING hash (s);
CREATE INDEX ON ci (md5(s));
CREATE INDEX ON ci USING gin (j);
INSERT INTO ci SELECT g, big(20000, g % 5), jsonb_build_object('k', g % 5, 'arr', (SELECT jsonb_agg(md5((x * g)::text)) FROM generate_series(1, 500) x))
FROM generate_series(1, 20) g;
SET enable_seqscan = off;
SELECT count(*) FROM ci WHERE s = big(20000, 3);
SELECT id FROM ci WHERE md5(s) = md5(big(20000, 2)) ORDER BY id;
SELECT count(*) FROM ci WHERE j @> '{"k": 4}';
RESET enable_seqscan;
SELECT count(*), min(id) FROM ci GROUP BY s ORDER BY 2;
SELECT count(*) FROM ci a JOIN ci b USING (s);
SELECT id, j->'arr'->>499 = md5((500 * id)::text) AS same FROM ci WHERE id < 4 ORDER BY id;
UPDATE ci SET j = jsonb_set(j, '{k}', '"upd"') WHERE id <= 10;
SELECT count(*) FROM ci WHERE j @> '{"k": "upd"}';
DELETE FROM ci WHERE id > 15;
VACUUM ci;
SELECT count(*), sum(length(s)), md5(string_agg(md5(s || j), '' ORDER BY id)) FROM ci;
VACUUM FULL ci;
SELECT count(*), sum(length(s)), md5(string_agg(md5(s || j), '' ORDER BY id)) FROM ci;
-- compression methods of columns
CREATE TABLE comp (id int, a text COMPRESSION pglz, b text COMPRESSION lz4);
INSERT INTO comp SELECT g, repeat('pglz' || g, 50000), repeat('lz4' || g, 50000) FROM generate_series(1, 3) g;
SELECT id, length(a), length(b), pg_column_compression(a), pg_column_compression(b), pg_column_size(a) < 20000 AS small FROM comp ORDER BY id;
SELECT id, substr(a, 100000, 8), substr(b, 100000, 8) FROM comp ORDER BY id;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA large_values CASCADE;

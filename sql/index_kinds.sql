--
-- Index methods: btree, hash, GIN, GiST, SP-GiST; expressions, partial, INCLUDE, exclusion; built and rebuilt in every way
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA index_kinds;
SET search_path = index_kinds, public;

SET jit = off;
CREATE TABLE t (id int, a int[], d date, f float8, h text, i inet, j jsonb, n numeric, p point, poly polygon, r int4range, mr int4multirange,
  s text, ts tsvector, u uuid, q tsquery, c char(3), bo box, b bit(4), m macaddr) WITH (autovacuum_enabled = off);
CREATE FUNCTION add_rows(first int, last int) RETURNS void LANGUAGE sql AS $$
INSERT INTO t SELECT g, ARRAY[g % 13, 100 + g % 7], date '2000-01-01' + g, g / 7.0, 'h' || g % 50, ('10.' || g % 200 || '.0.0/' || 8 + g % 20)::inet,
  jsonb_build_object('k', g % 11, 'tag', ARRAY['t' || g % 5]), g * 1.5, point(g % 100, g / 100), polygon(box(point(g % 50, g % 30), point(g % 50 + 2, g % 30 + 2))),
  int4range(g, g + 10), int4multirange(int4range(g, g + 2), int4range(g + 5, g + 8)), 's' || lpad((g % 300)::text, 4, '0') || repeat('z', g % 40),
  to_tsvector('simple', 'word' || g % 17 || ' text' || g % 23), md5(g::text)::uuid, ('word' || g % 17)::tsquery, chr(65 + g % 26), box(point(g, g), point(g + 1, g + 1)),
  (g % 16)::bit(4), ('08:00:2b:01:02:' || lpad(to_hex(g % 256), 2, '0'))::macaddr
FROM generate_series(first, last) g$$;
SELECT add_rows(1, 2000);
CREATE TABLE q (n serial, name text, def text, cond text);
INSERT INTO q (name, def, cond) VALUES
  ('t_id', 'USING btree (id)', 'id BETWEEN 300 AND 340'),
  ('t_d', 'USING btree (d DESC NULLS LAST, id) WITH (fillfactor = 60)', 'd > date ''2005-06-01'' AND d < date ''2005-06-20'''),
  ('t_n', 'USING btree (n) INCLUDE (s, f)', 'n = ANY (ARRAY[15, 30, 1500.0])'),
  ('t_c', 'USING btree (c bpchar_pattern_ops DESC, id)', 'c ~<~ ''C'''),
  ('t_like', 'USING btree (s text_pattern_ops)', 's LIKE ''s007%'''),
  ('t_expr', 'USING btree ((id % 50), lower(h), (j->>''k''))', 'id % 50 = 7'),
  ('t_part', 'USING btree (f) WHERE id % 2 = 0 AND h <> ''h3''', 'f > 100 AND f < 120 AND id % 2 = 0 AND h <> ''h3'''),
  ('t_hash', 'USING hash (h)', 'h = ''h17'''),
  ('t_hashu', 'USING hash (u)', 'u = md5(''77'')::uuid'),
  ('t_gina', 'USING gin (a)', 'a @> ''{5,103}'''),
  ('t_ginj', 'USING gin (j)', 'j @> ''{"k": 3}'' OR j ? ''nothing'''),
  ('t_ginjp', 'USING gin (j jsonb_path_ops)', 'j @> ''{"tag": ["t2"]}'''),
  ('t_gints', 'USING gin (ts) WITH (fastupdate = off)', 'ts @@ ''word3 & text4'''),
  ('t_ginmulti', 'USING gin (a, ts)', 'a && ''{2,3}'' AND ts @@ ''word5'''),
  ('t_gistp', 'USING gist (p)', 'p <@ box ''(10,2),(30,5)'''),
  ('t_gistpoly', 'USING gist (poly)', 'poly && polygon(box ''(10,10),(14,14)'')'),
  ('t_gistr', 'USING gist (r)', 'r && int4range(500, 510)'),
  ('t_gistmr', 'USING gist (mr)', 'mr @> 777'),
  ('t_gistts', 'USING gist (ts)', 'ts @@ ''text7'''),
  ('t_gistq', 'USING gist (q)', 'q @> ''word3'''),
  ('t_gisti', 'USING gist (i inet_ops)', 'i << ''10.5.0.0/12'''),
  ('t_gistbox', 'USING gist (bo) INCLUDE (id)', 'bo && box ''(100,100),(110,110)'''),
  ('t_spp', 'USING spgist (p)', 'p <@ box ''(20,3),(25,9)'''),
  ('t_spk', 'USING spgist (p kd_point_ops)', 'p <@ box ''(20,3),(25,9)'''),
  ('t_sps', 'USING spgist (s)', 's ^@ ''s0123'''),
  ('t_spr', 'USING spgist (r)', 'r @> 900'),
  ('t_spi', 'USING spgist (i)', 'i <<= ''10.77.0.0/16'''),
  ('t_spbox', 'USING spgist (bo)', 'bo <@ box ''(50,50),(70,70)'''),
  ('t_sppoly', 'USING spgist (poly)', 'poly && polygon(box ''(30,5),(32,9)'')'),
  ('t_brin', 'USING brin (id) WITH (pages_per_range = 2)', 'id BETWEEN 300 AND 340'),
  ('t_bit', 'USING btree (b, m)', 'b = B''0101'' AND m > ''08:00:2b:01:02:80''');
-- each alone: what it finds is what a sequential scan finds
CREATE FUNCTION wrong(first bool DEFAULT false) RETURNS TABLE (name text, used bool, got bigint, expected bigint) LANGUAGE plpgsql AS $$
DECLARE x record; line text; e text; f text;
BEGIN
  SET LOCAL max_parallel_workers_per_gather = 0;
  FOR x IN SELECT * FROM q ORDER BY n LOOP
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_indexscan = off;
    SET LOCAL enable_bitmapscan = off;
    EXECUTE format('SELECT count(*), md5(string_agg(id::text, '','' ORDER BY id)) FROM t WHERE %s', x.cond) INTO expected, e;
    SET LOCAL enable_seqscan = off;
    SET LOCAL enable_indexscan = on;
    SET LOCAL enable_bitmapscan = on;
    UPDATE pg_index SET indisvalid = (indexrelid = x.name::regclass) WHERE indrelid = 't'::regclass;
    used := false;
    FOR line IN EXECUTE format('EXPLAIN (COSTS OFF) SELECT * FROM t WHERE %s', x.cond) LOOP
      used := used OR line ~ ('\m' || x.name || '\M');
    END LOOP;
    EXECUTE format('SELECT count(*), md5(string_agg(id::text, '','' ORDER BY id)) FROM t WHERE %s', x.cond) INTO got, f;
    UPDATE pg_index SET indisvalid = true WHERE indrelid = 't'::regclass;
    name := x.name;
    IF e IS DISTINCT FROM f OR NOT used OR (first AND expected = 0) THEN RETURN NEXT; END IF;
  END LOOP;
END$$;
-- those of btree in files
SET nvm.default_index_method = btree;
DO $$DECLARE x record; BEGIN
  FOR x IN SELECT * FROM q LOOP EXECUTE format('CREATE INDEX %I ON t %s', x.name, x.def); END LOOP;
END$$;
ANALYZE t;
SELECT * FROM wrong(true);
-- rows added, changed so that entries are added or not, deleted, rolled back
SELECT add_rows(2001, 3000);
SELECT * FROM wrong();
UPDATE t SET f = f WHERE id % 3 = 0;
UPDATE t SET a = a || 5, ts = ts || 'word3 text4', j = j || '{"k": 3}', p = p + point(1, 1), r = int4range(lower(r) + 1, upper(r) + 5), s = 's0123' || s WHERE id % 7 = 0;
UPDATE t SET id = id + 10000, h = 'h17', d = d + 1 WHERE id % 11 = 0;
DELETE FROM t WHERE id % 5 = 0;
BEGIN; SELECT add_rows(5000, 5500); UPDATE t SET a = '{5,103}', h = 'h17', i = '10.5.1.1' WHERE id < 500; SELECT * FROM wrong(); ROLLBACK;
SELECT * FROM wrong();
VACUUM t;
SELECT * FROM wrong();
SELECT add_rows(5000, 5800);
SELECT gin_clean_pending_list('t_gina') >= 0 AS cleaned;
SELECT * FROM wrong();
-- rebuilt: plain, concurrently, by table and by schema; and after VACUUM FULL, CLUSTER, TRUNCATE
REINDEX TABLE t;
SELECT * FROM wrong();
REINDEX TABLE CONCURRENTLY t;
SELECT * FROM wrong();
REINDEX INDEX CONCURRENTLY t_gina;
REINDEX INDEX t_spp;
REINDEX SCHEMA CONCURRENTLY index_kinds;
SELECT * FROM wrong();
VACUUM FULL t;
SELECT * FROM wrong();
CLUSTER t USING t_d;
SELECT * FROM wrong();
CLUSTER t USING t_gistp;
SELECT * FROM wrong();
SELECT count(*), bool_and(indisvalid AND indisready AND indislive) FROM pg_index WHERE indrelid = 't'::regclass;
RESET nvm.default_index_method;
-- concurrently created beside what is there, in a table that was changed before
UPDATE t SET h = h || 'x' WHERE id % 3 = 0;
DROP INDEX CONCURRENTLY t_expr;
CREATE INDEX CONCURRENTLY t_expr ON t ((id % 50), lower(h), (j->>'k'));
CREATE INDEX CONCURRENTLY t_new ON t USING gist (r, i inet_ops);
CREATE UNIQUE INDEX CONCURRENTLY t_bad ON t (h);
SELECT indisvalid FROM pg_index WHERE indexrelid = 't_bad'::regclass;
REINDEX INDEX CONCURRENTLY t_bad;
DROP INDEX t_bad, t_bad_ccnew;
SELECT * FROM wrong();
-- nearest neighbours, ordered by the index, by lines of one plan
SET enable_seqscan = off;
SELECT count(*) FROM (SELECT p <-> point '(50,10)' AS d, lag(p <-> point '(50,10)') OVER () AS before FROM (SELECT p FROM t ORDER BY p <-> point '(50,10)' LIMIT 100) x) y WHERE d < before;
SELECT id, bo <-> point '(500,500)' < 40 AS near FROM t ORDER BY bo <-> point '(500,500)', id LIMIT 3;
RESET enable_seqscan;

-- uniqueness: NULLS NOT DISTINCT, partial, on expressions, over large values, deferred; exclusion
SET nvm.default_index_method = btree;
CREATE TABLE un (a int, b text, c int, EXCLUDE USING btree (c WITH =) WHERE (a > 0));
RESET nvm.default_index_method;
CREATE UNIQUE INDEX un_ab ON un (a, lower(b)) NULLS NOT DISTINCT;
CREATE UNIQUE INDEX un_md ON un (md5(b)) WHERE a < 100;
INSERT INTO un VALUES (NULL, NULL, 1);
INSERT INTO un VALUES (NULL, NULL, 2);
INSERT INTO un VALUES (1, 'x', 3), (1, 'X', 4);
INSERT INTO un VALUES (1, 'x', 3), (101, 'x', 4);
INSERT INTO un VALUES (5, 'y', 4);
INSERT INTO un VALUES (-5, 'y', 4);
UPDATE un SET a = 5 WHERE a = -5;
UPDATE un SET a = 50 WHERE a = 101;
UPDATE un SET b = repeat(md5('b'), 1000) WHERE a = 101;
UPDATE un SET b = repeat(md5('b'), 1000) WHERE a = 1;
INSERT INTO un VALUES (2, repeat(md5('b'), 1000), 9);
SELECT a, length(b), c FROM un ORDER BY a, c;
CREATE TABLE room (n int, during tsrange, EXCLUDE USING gist (during WITH &&, int4range(n, n, '[]') WITH =) DEFERRABLE INITIALLY DEFERRED);
INSERT INTO room VALUES (1, '[2020-01-01 10:00,2020-01-01 11:00)'), (2, '[2020-01-01 10:00,2020-01-01 11:00)');
INSERT INTO room VALUES (1, '[2020-01-01 10:30,2020-01-01 12:00)');
BEGIN;
INSERT INTO room VALUES (1, '[2020-01-01 10:30,2020-01-01 12:00)');
UPDATE room SET during = during - '[2020-01-01 10:30,2020-01-01 23:00)' WHERE during @> timestamp '2020-01-01 10:00' AND n = 1;
COMMIT;
SELECT * FROM room ORDER BY n, during;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA index_kinds CASCADE;

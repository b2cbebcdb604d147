--
-- Values that outlive the row, the snapshot, the transaction or the table they were read from
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA value_lifetime;
SET search_path = value_lifetime, public;

SET jit = off;
CREATE FUNCTION big(n int, seed int) RETURNS text LANGUAGE sql IMMUTABLE AS
$$SELECT left(string_agg(md5(seed || '/' || g), '' ORDER BY g), n) FROM generate_series(1, n / 32 + 1) g$$;
-- rows whose values are inline, compressed inline, and outside the row, of all sorts of types
CREATE TYPE rec AS (i int, t text, a text[]);
CREATE TABLE src (id int PRIMARY KEY, s text, c text, a text[], j jsonb, r rec, n numeric, mr nummultirange);
CREATE FUNCTION refill() RETURNS void LANGUAGE sql AS $$
TRUNCATE src;
INSERT INTO src SELECT g, big(g * g * 150, g), repeat('compress ' || g, g * 2000), ARRAY[big(g * 900, g), 'x' || g], jsonb_build_object('k', big(g * 1000, g), 'g', g),
  (g, big(g * 1100, g), ARRAY[repeat('r', g * 3000), big(5000, g)])::rec, (g || repeat('123456789', g * 400))::numeric, ('{[' || g || ',' || g || repeat('0', g * 300) || ']}')::nummultirange
FROM generate_series(1, 12) g$$;
-- what the row with this id must look like, from its columns
CREATE FUNCTION right_(id int, s text, c text, a text[], j jsonb, r rec, n numeric, mr nummultirange) RETURNS bool LANGUAGE sql IMMUTABLE AS $$
SELECT s = big(id * id * 150, id) AND c = repeat('compress ' || id, id * 2000) AND a = ARRAY[big(id * 900, id), 'x' || id]
  AND j = jsonb_build_object('k', big(id * 1000, id), 'g', id) AND r = (id, big(id * 1100, id), ARRAY[repeat('r', id * 3000), big(5000, id)])::rec
  AND n = (id || repeat('123456789', id * 400))::numeric AND mr = ('{[' || id || ',' || id || repeat('0', id * 300) || ']}')::nummultirange$$;
-- overwrite whatever the rows occupied
CREATE PROCEDURE wipe() LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM src;
  INSERT INTO src (id, s, c) SELECT g, repeat('#', g * g * 150), repeat('wiped', g * 4000) FROM generate_series(1, 12) g;
  UPDATE src SET a = ARRAY[repeat('!', id * 900)], j = '{"k": "wiped"}';
END$$;
SELECT refill();
SELECT id, right_(id, s, c, a, j, r, n, mr) FROM src ORDER BY id;

-- holdable and scrollable cursors, read after the rows were vacuumed, truncated, dropped
BEGIN;
DECLARE h SCROLL CURSOR WITH HOLD FOR SELECT * FROM src ORDER BY id;
DECLARE h2 CURSOR WITH HOLD FOR SELECT id, s, r FROM src;
MOVE 3 IN h2;
COMMIT;
CALL wipe();
VACUUM src;
-- what the rows occupied is free for others once the horizon has passed
SELECT pg_sleep(0.5);
CALL wipe();
CREATE FUNCTION from_cursor(cur refcursor) RETURNS TABLE (fid int, ok bool) LANGUAGE plpgsql AS $$
DECLARE x src;
BEGIN
  LOOP
    FETCH cur INTO x;
    EXIT WHEN NOT FOUND;
    fid := x.id; ok := right_(x.id, x.s, x.c, x.a, x.j, x.r, x.n, x.mr);
    RETURN NEXT;
  END LOOP;
END$$;
SELECT count(*), bool_and(ok) FROM from_cursor('h');
FETCH ABSOLUTE 0 FROM h;
DROP TABLE src CASCADE;
SELECT count(*) FROM pg_class WHERE relname = 'src' AND relnamespace = 'value_lifetime'::regnamespace;
\pset format unaligned
FETCH 1 FROM h \gset h_
\pset format aligned
SELECT :h_id, length(:'h_s') = 150, :'h_s' = big(150, 1) AS s, :'h_c' = repeat('compress 1', 2000) AS c;
FETCH ALL FROM h2 \gset
CLOSE h;
CLOSE h2;

-- variables of procedures that commit, while others overwrite what they read
CREATE TABLE src (id int PRIMARY KEY, s text, c text, a text[], j jsonb, r rec, n numeric, mr nummultirange);
SELECT refill();
CREATE TABLE result (what text, ok bool) USING heap;
CREATE PROCEDURE variables() LANGUAGE plpgsql AS $$
DECLARE
  row_ src; rec_ record; s_ text; a_ text[]; j_ jsonb; r_ rec; all_ src[]; n_ numeric; agg text[]; b_ text;
BEGIN
  SELECT * INTO row_ FROM src WHERE id = 10;
  SELECT * INTO rec_ FROM src WHERE id = 11;
  SELECT s, a, j, n INTO s_, a_, j_, n_ FROM src WHERE id = 12;
  SELECT (r).i, (r).t, (r).a INTO r_ FROM src WHERE id = 12;
  all_ := ARRAY(SELECT src FROM src ORDER BY id);
  agg := (SELECT array_agg(s ORDER BY id) FROM src);
  SELECT max(s) INTO b_ FROM src;
  UPDATE src SET s = 'x' WHERE id = 9 RETURNING c INTO s_;
  COMMIT;
  CALL wipe();
  COMMIT;
  PERFORM pg_sleep(0.5);
  CALL wipe();
  COMMIT;
  PERFORM pg_sleep(0.5);
  CALL wipe();
  COMMIT;
  INSERT INTO result VALUES ('row', right_(row_.id, row_.s, row_.c, row_.a, row_.j, row_.r, row_.n, row_.mr)),
    ('record', right_(rec_.id, rec_.s, rec_.c, rec_.a, rec_.j, rec_.r, rec_.n, rec_.mr)),
    ('returning', s_ = repeat('compress 9', 18000)), ('array', a_ = ARRAY[big(12 * 900, 12), 'x12']),
    ('jsonb', j_ = jsonb_build_object('k', big(12000, 12), 'g', 12)), ('composite', (r_).t = big(13200, 12) AND (r_).a[2] = big(5000, 12)),
    ('numeric', n_ = (12 || repeat('123456789', 4800))::numeric), ('aggregate', (SELECT bool_and(agg[g] = big(g * g * 150, g)) FROM generate_series(1, 12) g)),
    ('max', b_ IN (SELECT big(g * g * 150, g) FROM generate_series(1, 12) g));
  INSERT INTO result SELECT 'array of rows', bool_and(right_(x.id, x.s, x.c, x.a, x.j, x.r, x.n, x.mr)) AND count(*) = 12 FROM unnest(all_) x;
  row_.s := row_.s || 'more'; all_[3].s := 'changed'; a_[1] := a_[1] || 'y';
  COMMIT;
  INSERT INTO result VALUES ('changed', row_.s = big(15000, 10) || 'more' AND all_[3].c = repeat('compress 3', 6000) AND a_[1] = big(12 * 900, 12) || 'y');
END$$;
CALL variables();
-- loops over queries that commit, with what they have read used afterwards
SELECT refill();
CREATE PROCEDURE loops() LANGUAGE plpgsql AS $$
DECLARE x src; y record; last text; cur CURSOR FOR SELECT * FROM src ORDER BY id; ok bool := true; kept src[];
BEGIN
  FOR x IN SELECT * FROM src ORDER BY id LOOP
    UPDATE src SET s = repeat('-', length(s)), c = 'overwritten' WHERE id >= x.id;
    IF x.id % 3 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
    IF x.id % 6 = 1 THEN PERFORM pg_sleep(0.3); COMMIT; END IF;
    UPDATE src SET j = to_jsonb(repeat('+', id * 1000)) WHERE id >= x.id;
    ok := ok AND right_(x.id, x.s, x.c, x.a, x.j, x.r, x.n, x.mr);
    kept := kept || x;
    DELETE FROM src WHERE id = x.id;
    COMMIT;
  END LOOP;
  INSERT INTO result VALUES ('loop', ok), ('kept by a loop', (SELECT bool_and(right_(k.id, k.s, k.c, k.a, k.j, k.r, k.n, k.mr)) AND count(*) = 12 FROM unnest(kept) k));
  PERFORM refill();
  COMMIT;
  ok := true;
  FOR y IN cur LOOP
    last := y.s;
    COMMIT;
    UPDATE src SET s = repeat('=', length(s)), r = NULL;
    COMMIT;
    ok := ok AND last = big(y.id * y.id * 150, y.id) AND right_(y.id, y.s, y.c, y.a, y.j, y.r, y.n, y.mr);
  END LOOP;
  INSERT INTO result VALUES ('cursor loop', ok);
END$$;
CALL loops();

-- what is held in memory while the same command overwrites it: sorts, hashes, aggregates, windows, CTEs
SELECT refill();
CREATE FUNCTION overwrite(i int) RETURNS int LANGUAGE plpgsql AS
$$BEGIN UPDATE src SET s = repeat('o', length(s)), c = repeat('o', 100) WHERE id = i; RETURN i; END$$;
INSERT INTO result SELECT 'sort', bool_and(ok) FROM (SELECT overwrite(id) > 0 AND right_(id, s, c, a, j, r, n, mr) AS ok FROM (SELECT * FROM src ORDER BY s DESC OFFSET 0) x) y;
SELECT refill();
INSERT INTO result SELECT 'window', bool_and(ok AND prev IS NOT DISTINCT FROM CASE WHEN id > 1 THEN big((id - 1) * (id - 1) * 150, id - 1) END)
FROM (SELECT id, overwrite(id) > 0 AND s = big(id * id * 150, id) AS ok, lag(s) OVER (ORDER BY id) AS prev FROM src) x;
SELECT refill();
WITH d AS (DELETE FROM src RETURNING *), u AS (SELECT * FROM d)
INSERT INTO result SELECT 'deleted rows', bool_and(right_(u.id, u.s, u.c, u.a, u.j, u.r, u.n, u.mr)) AND count(*) = 12 FROM u;
SELECT refill();
SET work_mem = '64kB';
INSERT INTO result SELECT 'hash join in batches', bool_and(right_(x.id, x.s, x.c, x.a, x.j, x.r, x.n, x.mr) AND x.s = y.s) AND count(*) = 12 FROM src x JOIN src y ON x.c = y.c AND x.s = y.s;
INSERT INTO result SELECT 'hash aggregate', count(*) = 12 AND bool_and(s = big(id * id * 150, id)) FROM (SELECT s, min(id) AS id FROM (SELECT * FROM src UNION ALL SELECT * FROM src) x GROUP BY s) y;
INSERT INTO result SELECT 'external sort', array_agg(id ORDER BY s, id) = (SELECT array_agg(g ORDER BY big(g * g * 150, g)) FROM generate_series(1, 12) g) FROM src;
INSERT INTO result SELECT 'distinct', count(DISTINCT s) = 12 AND count(DISTINCT r) = 12 FROM src;
RESET work_mem;
INSERT INTO result SELECT 'min and max', min(s) = (SELECT min(big(g * g * 150, g)) FROM generate_series(1, 12) g) AND max(s) = (SELECT max(big(g * g * 150, g)) FROM generate_series(1, 12) g) FROM src;
INSERT INTO result SELECT 'ordered set', percentile_disc(0.5) WITHIN GROUP (ORDER BY s) = (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY big(g * g * 150, g)) FROM generate_series(1, 12) g) FROM src;
INSERT INTO result SELECT 'string_agg', md5(string_agg(s, ',' ORDER BY id)) = (SELECT md5(string_agg(big(g * g * 150, g), ',' ORDER BY g)) FROM generate_series(1, 12) g) FROM src;
INSERT INTO result SELECT 'jsonb_agg', (jsonb_agg(src ORDER BY id)->11->>'s') = big(144 * 150, 12) FROM src;
WITH RECURSIVE w AS (SELECT id, s FROM src WHERE id = 1 UNION ALL SELECT src.id, src.s FROM w JOIN src ON src.id = w.id + 1)
INSERT INTO result SELECT 'recursion', bool_and(s = big(id * id * 150, id)) AND count(*) = 12 FROM w;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET enable_material = on;
INSERT INTO result SELECT 'nested loop over a materialized side', count(*) = 144 AND bool_and(x.s = big(x.id * x.id * 150, x.id) AND y.s = big(y.id * y.id * 150, y.id)) FROM src x, src y WHERE length(x.s) + length(y.s) > 0;
INSERT INTO result SELECT 'memoize', count(*) = 36 AND bool_and(y.s = big(y.id * y.id * 150, y.id)) FROM generate_series(1, 36) g, LATERAL (SELECT * FROM src WHERE id = g % 12 + 1) y;
RESET enable_hashjoin;
RESET enable_mergejoin;

-- functions that return rows of the table, lazily and at once, read after the rows changed
CREATE FUNCTION lazy() RETURNS SETOF src LANGUAGE sql AS 'SELECT * FROM src ORDER BY id';
CREATE FUNCTION one_value(i int) RETURNS text LANGUAGE sql AS 'SELECT s FROM src WHERE id = i';
CREATE FUNCTION changed(i int) RETURNS text LANGUAGE sql AS $$UPDATE src SET s = 'c' || s WHERE id = i RETURNING c$$;
CREATE FUNCTION collected() RETURNS SETOF src LANGUAGE plpgsql AS
$$BEGIN RETURN QUERY SELECT * FROM src ORDER BY id; UPDATE src SET s = 'later'; RETURN; END$$;
INSERT INTO result SELECT 'lazy function', bool_and(overwrite((l).id) > 0 AND right_((l).id, (l).s, (l).c, (l).a, (l).j, (l).r, (l).n, (l).mr)) FROM (SELECT lazy() AS l OFFSET 0) x;
SELECT refill();
INSERT INTO result SELECT 'one value', bool_and(one_value(g) = big(g * g * 150, g)) FROM generate_series(1, 12) g;
INSERT INTO result SELECT 'value of a change', bool_and(changed(g) = repeat('compress ' || g, g * 2000)) FROM generate_series(1, 12) g;
SELECT refill();
INSERT INTO result SELECT 'collected', bool_and(right_(x.id, x.s, x.c, x.a, x.j, x.r, x.n, x.mr)) AND count(*) = 12 FROM collected() x;

-- prepared statements and cached plans that hold values of the table as constants
SELECT refill();
CREATE FUNCTION immutable_value(i int) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT s FROM src WHERE id = i';
PREPARE pc AS SELECT s = immutable_value(12) AS same, length(immutable_value(11)) AS l FROM src WHERE id = 12;
SET plan_cache_mode = force_generic_plan;
EXECUTE pc;
CREATE FUNCTION cached() RETURNS text LANGUAGE plpgsql AS $$DECLARE k CONSTANT text := immutable_value(12); BEGIN RETURN md5(k || immutable_value(10)); END$$;
INSERT INTO result VALUES ('constants', cached() = md5(big(144 * 150, 12) || big(15000, 10)));
CREATE TEMP TABLE before USING heap AS SELECT cached() AS m;
PREPARE param (text, rec) AS SELECT count(*) FROM src WHERE s = $1 OR r = $2;
SELECT format('EXECUTE param(%L, %L::rec)', s, r) AS q FROM src WHERE id = 7 \gset
CALL wipe();
SELECT pg_sleep(0.5);
CALL wipe();
EXECUTE pc;
SELECT refill();
:q;
RESET plan_cache_mode;
DEALLOCATE ALL;
-- a cursor kept open over changes of its own transaction, with index, bitmap, TID and sample scans
BEGIN;
SET LOCAL enable_seqscan = off;
DECLARE c1 SCROLL CURSOR FOR SELECT * FROM src WHERE id > 0 ORDER BY id;
DECLARE c2 SCROLL CURSOR FOR SELECT * FROM src WHERE ctid >= '(0,0)';
DECLARE c3 SCROLL CURSOR FOR SELECT * FROM src TABLESAMPLE bernoulli (100);
FETCH 1 FROM c1 \gset
FETCH 1 FROM c2 \gset
UPDATE src SET s = 'changed', c = 'changed', r = NULL;
UPDATE src SET s = 'again', a = NULL;
DELETE FROM src WHERE id > 4;
INSERT INTO result SELECT 'open index scan', count(*) = 11 AND bool_and(ok) FROM from_cursor('c1');
INSERT INTO result SELECT 'open TID range scan', count(*) = 11 AND bool_and(ok) FROM from_cursor('c2');
INSERT INTO result SELECT 'open sample scan', count(*) = 12 AND bool_and(ok) FROM from_cursor('c3');
MOVE ABSOLUTE 0 IN c1;
INSERT INTO result SELECT 'index scan again', count(*) = 12 AND bool_and(ok) FROM from_cursor('c1');
COMMIT;
-- into a session's own functions: exceptions that roll back what they read from
SELECT refill();
DO $$
DECLARE s_ text; r_ rec; x src;
BEGIN
  BEGIN
    UPDATE src SET s = big(length(s) + 10, id + 100);
    SELECT * INTO x FROM src WHERE id = 12;
    s_ := x.s; r_ := x.r;
    RAISE division_by_zero;
  EXCEPTION WHEN division_by_zero THEN NULL;
  END;
  INSERT INTO src (id, s, c) SELECT g, big(144 * 150 + 10, g), repeat('z', 30000) FROM generate_series(13, 40) g;
  INSERT INTO result VALUES ('rolled back', s_ = big(144 * 150 + 10, 112) AND x.s = s_ AND (r_).t = big(13200, 12));
END$$;
SELECT count(*), count(*) FILTER (WHERE ok) AS ok FROM result;
SELECT * FROM result WHERE ok IS NOT TRUE;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA value_lifetime CASCADE;

-- Objects of basic/03_differential_kinds.pl.
CREATE EXTENSION pg_nvm;
CREATE EXTENSION bloom;
CREATE EXTENSION btree_gist;
CREATE TABLE done (n int) USING heap;
INSERT INTO done VALUES (0);
CREATE TABLE tried (kind text PRIMARY KEY, good int, bad int) USING heap;
CREATE TYPE pair AS (i int, t text);
CREATE DOMAIN small AS int CHECK (VALUE < 100000);

-- n bytes that do not compress
CREATE FUNCTION big(n int, seed int) RETURNS text LANGUAGE sql IMMUTABLE AS
$$SELECT left(string_agg(md5(seed || '/' || g), '' ORDER BY g), n) FROM generate_series(1, n / 32 + 1) g$$;
-- volatile for the planner only
CREATE FUNCTION vol() RETURNS text LANGUAGE sql VOLATILE AS $$SELECT '7'$$;

-- Go to a schema; new tables are of its access method.
CREATE FUNCTION use(s text) RETURNS void LANGUAGE sql AS
$$SELECT set_config('search_path', s || ', public', false), set_config('default_table_access_method', CASE s WHEN 'n' THEN 'nvm' ELSE 'heap' END, false)$$;

CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('INSERT INTO %I.log VALUES ($1)', TG_TABLE_SCHEMA) USING format('%s %s %s', TG_OP, TG_TABLE_NAME, md5(coalesce(NEW::text, '') || coalesce(OLD::text, '')));
  RETURN NULL;
END$$;
CREATE FUNCTION note_all() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO log SELECT format('p %s %s', (SELECT coalesce(sum(id), 0) FROM o), (SELECT coalesce(sum(k), 0) FROM w));
  RETURN NULL;
END$$;
CREATE FUNCTION adapt() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.k = 13 THEN RETURN NULL; END IF;
  IF NEW.k > 40 THEN NEW.k := NEW.k % 40; END IF;
  RETURN NEW;
END$$;

DO $$
DECLARE sch text;
BEGIN
  FOREACH sch IN ARRAY '{h,n}'::text[] LOOP
    EXECUTE 'CREATE SCHEMA ' || sch;
    PERFORM use(sch);
    CREATE TABLE t (id int PRIMARY KEY, k int, u int UNIQUE, s text, a int[], j jsonb, r int4range, c pair);
    CREATE TABLE ch (id int PRIMARY KEY, p int REFERENCES t ON DELETE CASCADE ON UPDATE CASCADE, up int REFERENCES ch ON DELETE SET NULL DEFERRABLE INITIALLY DEFERRED, v text);
    CREATE TABLE p (id int, k int, s text, j jsonb DEFAULT '{"d": 0}', PRIMARY KEY (id, k)) PARTITION BY RANGE (k);
    CREATE TABLE p0 PARTITION OF p FOR VALUES FROM (0) TO (10);
    CREATE TABLE p1 (j jsonb, gone int, s text, id int NOT NULL, k int NOT NULL) USING heap;
    ALTER TABLE p1 DROP COLUMN gone;
    ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (10) TO (20);
    CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (20) TO (30);
    CREATE TABLE log (what text);
    CREATE INDEX ON t (k);
    CREATE INDEX ON t USING gin (a);
    CREATE INDEX ON t USING hash (s);
    CREATE INDEX ON ch (p);
    CREATE INDEX ON p (k, id);
    INSERT INTO t SELECT g, g % 30, g, 's' || g, ARRAY[g % 7, g % 11], jsonb_build_object('k', g % 5), int4range(g, g + 5), (g, 'c' || g)::pair FROM generate_series(1, 120) g;
    INSERT INTO ch SELECT g, g % 100 + 1, nullif(g / 3, 0), 'v' || g FROM generate_series(1, 80) g;
    INSERT INTO p SELECT g, g % 30, 's' || g FROM generate_series(1, 100) g;
    CREATE MATERIALIZED VIEW mv AS SELECT k, count(*) AS n, max(s) AS s FROM p GROUP BY k;
    CREATE UNIQUE INDEX ON mv (k);
    CREATE VIEW v AS SELECT id, k, s FROM t WHERE k < 20 WITH CHECK OPTION;
    CREATE TRIGGER adapt BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION adapt();
    CREATE TRIGGER note AFTER UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION note();
    CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON ch DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note();
    CREATE TRIGGER note_all AFTER UPDATE ON p REFERENCING OLD TABLE AS o NEW TABLE AS w FOR EACH STATEMENT EXECUTE FUNCTION note_all();
  END LOOP;
  PERFORM use('public');
END$$;

-- ---- making up statements ----

CREATE FUNCTION ri(n int) RETURNS int LANGUAGE sql VOLATILE AS 'SELECT floor(random() * n)::int';
CREATE FUNCTION pick(VARIADIC x text[]) RETURNS text LANGUAGE sql VOLATILE AS 'SELECT x[1 + ri(array_length(x, 1))]';
CREATE FUNCTION rid() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1 + ri(160)';
CREATE FUNCTION str() RETURNS text LANGUAGE sql VOLATILE AS $$
SELECT CASE ri(16)
  WHEN 0 THEN 'NULL' WHEN 1 THEN '''same''' WHEN 2 THEN '''same''' WHEN 3 THEN '''same'''
  WHEN 4 THEN format('repeat(''ab'', %s)', ri(6000)) WHEN 5 THEN format('big(%s, %s)', ri(3000), ri(9)) WHEN 6 THEN format('big(%s, %s)', ri(16000), ri(9))
  ELSE '''s' || ri(500) || '''' END$$;

-- A value of a type, as an expression.
CREATE FUNCTION lit(typ text) RETURNS text LANGUAGE sql VOLATILE AS $$
SELECT CASE WHEN ri(12) = 0 THEN 'NULL' ELSE CASE typ
  WHEN 'integer' THEN ri(300)::text
  WHEN 'small' THEN ri(300)::text
  WHEN 'bigint' THEN (ri(300) * 1000000000::bigint)::text
  WHEN 'text' THEN str()
  WHEN 'numeric' THEN (ri(10000) / 8.0)::text
  WHEN 'double precision' THEN (ri(10000) / 8.0)::text
  WHEN 'boolean' THEN pick('true', 'false')
  WHEN 'date' THEN format('date ''2000-01-01'' + %s', ri(5000))
  WHEN 'interval' THEN format('interval ''%s minutes''', ri(100000))
  WHEN 'jsonb' THEN pick(format('jsonb_build_object(''k'', %s)', ri(5)), format('jsonb_build_object(''k'', %s, ''s'', %s)', ri(5), str()), '''[1, 2]''::jsonb')
  WHEN 'integer[]' THEN pick(format('ARRAY[%s, %s]', ri(7), ri(11)), '''{}''::int[]', format('(SELECT array_agg(g) FROM generate_series(1, %s) g)', 1 + ri(pick('10', '3000')::int)))
  WHEN 'text[]' THEN format('ARRAY[%s, ''x'', %s]::text[]', str(), str())
  WHEN 'int4range' THEN format('int4range(%s, %s)', ri(100), 100 + ri(50))
  WHEN 'bytea' THEN format('convert_to(%s, ''UTF8'')', str())
  WHEN 'uuid' THEN format('md5(''%s'')::uuid', ri(50))
  WHEN 'pair' THEN format('(%s, %s)::pair', ri(50), str())
  WHEN 'pair[]' THEN format('ARRAY[(%s, %s)::pair, NULL]', ri(50), str())
  WHEN 'point' THEN format('point(%s, %s)', ri(50), ri(50))
  WHEN 'bit varying' THEN format('%s::bit(20)::varbit', ri(100000))
  ELSE 'NULL' END END$$;
CREATE FUNCTION rtype() RETURNS text LANGUAGE sql VOLATILE AS $$
SELECT pick('integer', 'small', 'bigint', 'text', 'text', 'numeric', 'double precision', 'boolean', 'date', 'interval', 'jsonb', 'integer[]', 'text[]', 'int4range', 'bytea', 'uuid', 'pair', 'pair[]', 'bit varying')$$;

-- A column of t that may be assigned, not id and u; and its type.
CREATE FUNCTION rcol(OUT name text, OUT typ text) LANGUAGE sql VOLATILE AS $$
SELECT attname, format_type(atttypid, NULL) FROM pg_attribute
WHERE attrelid = 'h.t'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = '' AND attname NOT IN ('id', 'u') ORDER BY random(), attname LIMIT 1$$;
CREATE FUNCTION xcol() RETURNS text LANGUAGE sql VOLATILE AS $$
SELECT coalesce((SELECT attname::text FROM pg_attribute WHERE attrelid = 'h.t'::regclass AND attnum > 0 AND NOT attisdropped AND attname LIKE 'x%' ORDER BY random(), attname LIMIT 1), 'x0')$$;
CREATE FUNCTION cond(a text) RETURNS text LANGUAGE sql VOLATILE AS $$
SELECT pick(format('%s.id = %s', a, rid()), format('%s.id = %s', a, rid()), format('%s.id BETWEEN %s AND %s + %s', a, rid(), rid(), ri(20)), format('%s.k = %s', a, ri(30)), format('%s.k BETWEEN %s AND %s', a, ri(30), ri(30)),
  format('%s.s = ''same''', a), format('%s.j @> ''{"k": %s}''', a, ri(5)), format('%s.id %% 10 = %s AND %s.s IS NOT NULL', a, ri(10), a), format('%s.ctid = ANY (ARRAY(SELECT ctid FROM %s z WHERE z.k = %s))', a, a, ri(30)))$$;
CREATE FUNCTION assign(n int) RETURNS text LANGUAGE plpgsql VOLATILE AS $$
DECLARE r text; c record; done text[] := '{}';
BEGIN
  FOR i IN 1..n LOOP
    c := rcol();
    CONTINUE WHEN c.name = ANY (done);
    done := done || c.name;
    r := concat_ws(', ', r, format('%I = %s', c.name, CASE WHEN ri(6) = 0 THEN 'DEFAULT' WHEN c.typ = 'text' AND ri(4) = 0 THEN format('left(coalesce(t.%I, '''') || ''+'', 20000)', c.name) ELSE lit(c.typ) END));
  END LOOP;
  RETURN coalesce(r, 'k = 1');
END$$;

CREATE FUNCTION gen_dml(OUT kind text, OUT q text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE c record := rcol(); d record := rcol(); x int := ri(100); ret text := pick('', ' RETURNING *', ' RETURNING t.id, t.*', ' RETURNING (t).k, t');
BEGIN
  IF c.name = d.name THEN d.name := 'id'; END IF;
  IF x < 8 THEN
    kind := 'insert';
    q := format('INSERT INTO t (id, u, %I) VALUES (%s, %s, %s)', c.name, rid(), lit('integer'), lit(c.typ)) || ret;
  ELSIF x < 12 THEN
    kind := 'insert select';
    q := format('INSERT INTO t (id, k, %s) SELECT g, g %% 30, %s FROM generate_series(%s, %s) g', CASE c.name WHEN 'k' THEN 's' ELSE quote_ident(c.name) END, CASE c.name WHEN 'k' THEN str() ELSE lit(c.typ) END, 130 + ri(100), 130 + ri(110));
  ELSIF x < 17 THEN
    kind := 'on conflict nothing';
    q := format('INSERT INTO t (id, k, s, u) SELECT g, g %% 30, %s, CASE WHEN g %% 4 = 0 THEN g + 200 END FROM generate_series(%s, %s) g ON CONFLICT DO NOTHING', str(), rid(), rid()) || ret;
  ELSIF x < 24 THEN
    kind := 'on conflict update';
    q := format('INSERT INTO t (id, k, s) SELECT g, %s, %s FROM generate_series(%s, %s) g ON CONFLICT (id) DO UPDATE SET %s', ri(30), str(), rid(), rid(), assign(2)) || pick('', ' WHERE t.k < excluded.k') || ret;
  ELSIF x < 42 THEN
    kind := 'update';
    q := format('UPDATE t SET %s WHERE %s', assign(1 + ri(3)), cond('t')) || ret;
  ELSIF x < 46 THEN
    kind := 'update key';
    q := format('UPDATE t SET %s = %s WHERE id = %s', pick('id', 'u'), rid(), rid()) || ret;
  ELSIF x < 49 THEN
    kind := 'update from';
    q := format('UPDATE t SET s = y.s, a = y.a FROM t y WHERE y.id = t.id + %s AND t.k = %s', 1 + ri(3), ri(30)) || pick('', ' RETURNING t.*, y');
  ELSIF x < 51 THEN
    kind := 'update all';
    q := format('UPDATE t SET %s', assign(1));
  ELSIF x < 57 THEN
    kind := 'delete';
    q := format('DELETE FROM t WHERE %s', CASE WHEN ri(4) = 0 THEN 't.id > 200 AND t.k < 25' ELSE cond('t') END) || ret;
  ELSIF x < 59 THEN
    kind := 'delete using';
    q := format('DELETE FROM t USING ch WHERE ch.p = t.id AND ch.id BETWEEN %s AND %s', rid(), rid()) ||
      -- several rows of ch may join one of t: the plan decides which of them RETURNING sees
      replace(ret, ' *', ' t.*, ch.p');
  ELSIF x < 64 THEN
    kind := 'merge';
    q := format('MERGE INTO t USING (SELECT g AS id, %s AS k FROM generate_series(%s, %s) g) y ON y.id = t.id WHEN MATCHED AND t.k > %s THEN DELETE WHEN MATCHED AND t.k = 5 THEN DO NOTHING WHEN MATCHED THEN UPDATE SET %s WHEN NOT MATCHED AND y.id %% 3 = 0 THEN DO NOTHING WHEN NOT MATCHED THEN INSERT (id, k) VALUES (y.id, y.k)',
      ri(30), rid(), rid(), ri(40), assign(2));
  ELSIF x < 67 THEN
    kind := 'view';
    q := pick(format('UPDATE v SET k = %s WHERE id = %s', ri(30), rid()), format('INSERT INTO v VALUES (%s, %s, %s)', rid(), ri(30), str()), format('DELETE FROM v WHERE id = %s', rid()), format('UPDATE v SET s = %s WHERE k = %s', str(), ri(30)));
  ELSIF x < 72 THEN
    kind := 'child';
    q := pick(format('INSERT INTO ch VALUES (%s, %s, (SELECT min(id) FROM ch WHERE id > %s), %s)', rid(), rid(), rid(), str()), format('UPDATE ch SET p = %s WHERE id = %s', rid(), rid()), format('DELETE FROM ch WHERE id BETWEEN %s AND %s', rid(), rid()),
      format('UPDATE ch SET v = %s WHERE p < %s', str(), rid()), format('INSERT INTO ch SELECT g, g, NULL, ''c'' FROM generate_series(%s, %s) g WHERE g IN (SELECT id FROM t) ON CONFLICT (id) DO UPDATE SET v = excluded.v || ch.v', rid(), rid()));
  ELSIF x < 84 THEN
    kind := 'partitions';
    q := pick(format('INSERT INTO p SELECT g, g %% 30, %s FROM generate_series(%s, %s) g ON CONFLICT DO NOTHING RETURNING *', str(), rid(), rid()), format('UPDATE p SET k = %s WHERE id BETWEEN %s AND %s', ri(31), rid(), rid()),
      format('UPDATE p SET k = (k + 10) %% 30 WHERE id %% 9 = %s RETURNING *', ri(9)), format('UPDATE p SET s = %s, j = j || ''{"u": %s}'' WHERE k = %s RETURNING p', str(), ri(99), ri(30)), format('DELETE FROM p WHERE id BETWEEN %s AND %s RETURNING *', rid(), rid()),
      format('INSERT INTO p (id, k, s) SELECT g, %s, ''c'' FROM generate_series(%s, %s) g ON CONFLICT (id, k) DO UPDATE SET s = p.s || excluded.s RETURNING p.*', ri(30), rid(), rid()),
      format('MERGE INTO p USING (SELECT g AS id FROM generate_series(%s, %s) g) y ON y.id = p.id AND p.k = %s WHEN MATCHED AND p.id %% 2 = 0 THEN UPDATE SET k = (p.k + 10) %% 30 WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, k) VALUES (y.id + 500, %s)', rid(), rid(), ri(30), ri(30)),
      format('UPDATE p SET s = t.s FROM t WHERE t.id = p.id AND p.k < %s', ri(30)));
  ELSIF x < 87 THEN
    kind := 'writable with';
    q := format('WITH d AS (DELETE FROM p WHERE k = %s RETURNING *), i AS (INSERT INTO t (id, k, s) SELECT id + 400, k, s FROM d ON CONFLICT DO NOTHING RETURNING *) /* main */ SELECT d.*, i.k AS ik FROM d LEFT JOIN i ON i.id = d.id + 400', ri(30));
  ELSIF x < 90 THEN
    kind := 'lock';
    q := format('SELECT * FROM t WHERE %s FOR %s', cond('t'), pick('UPDATE', 'NO KEY UPDATE', 'SHARE', 'KEY SHARE'));
  ELSIF x < 92 THEN
    kind := 'self copy';
    q := format('INSERT INTO t (id, k, s, a, j, r, c) SELECT id + 300, k, s, a, j, r, c FROM t WHERE id BETWEEN %s AND %s + %s', rid(), rid(), ri(9));
  ELSE
    kind := 'query';
    q := pick(format('SELECT %I, count(*), min(id), max(s) FROM t GROUP BY %I', c.name, c.name), format('SELECT t.id, x.%I FROM t JOIN t x ON t.%I = x.%I AND t.id < x.id AND x.id BETWEEN %s AND %s', d.name, c.name, c.name, rid(), rid()),
      format('SELECT id, lag(%I) OVER (ORDER BY id), count(*) OVER (PARTITION BY k) FROM t', c.name), format('SELECT %I FROM t EXCEPT SELECT %I FROM t WHERE %s', c.name, c.name, cond('t')),
      format('SELECT id, %I FROM t WHERE %I = %s', c.name, c.name, lit(c.typ)), format('SELECT t.id, ch.id AS cid FROM t LEFT JOIN ch ON ch.p = t.id WHERE %s', cond('t')),
      'SELECT * FROM mv', format('SELECT substr(s, %s, 20), length(s) FROM t WHERE length(s) > 2000', ri(9000)), 'SELECT t FROM t WHERE t IS NOT NULL', 'SELECT count(*) AS n FROM t TABLESAMPLE bernoulli (100)',
      'SELECT id, count(*) OVER () AS n FROM p WHERE ctid >= ''(0,0)''', 'SELECT jsonb_agg(t ORDER BY id) AS all_ FROM t');
  END IF;
END$$;

CREATE FUNCTION gen_ddl(OUT kind text, OUT q text) LANGUAGE plpgsql VOLATILE AS $$
DECLARE x int := ri(100); c record := rcol(); ty text := rtype(); xc text := xcol(); add text;
BEGIN
  add := pick(format('ADD COLUMN x%s %s DEFAULT %s', ri(9), ty, lit(ty)), format('ADD COLUMN x%s %s', ri(9), ty), format('ADD COLUMN x%s text DEFAULT vol()', ri(9)), format('ADD COLUMN x%s int GENERATED ALWAYS AS (k * 2) STORED', ri(9)),
    format('ADD COLUMN x%s int NOT NULL DEFAULT %s', ri(9), ri(50)));
  IF x < 16 THEN
    kind := 'add column'; q := 'ALTER TABLE t ' || add;
  ELSIF x < 26 THEN
    kind := 'drop column'; q := format('ALTER TABLE t DROP COLUMN %I', xc);
  ELSIF x < 34 THEN
    kind := 'alter type'; q := format('ALTER TABLE t ALTER %I DROP DEFAULT, ALTER %I TYPE %s USING %s', xc, xc, ty, CASE WHEN ty = 'text' THEN quote_ident(xc) || '::text' ELSE lit(ty) END);
  ELSIF x < 38 THEN
    kind := 'storage'; q := format('ALTER TABLE t ALTER %s SET %s', pick('s', 'j', 'a', 'c'), pick('STORAGE EXTERNAL', 'STORAGE MAIN', 'STORAGE EXTENDED', 'STORAGE PLAIN', 'COMPRESSION lz4', 'COMPRESSION pglz', 'STATISTICS 3'));
  ELSIF x < 42 THEN
    kind := 'not null'; q := format('ALTER TABLE t ALTER %I %s', xc, pick('SET NOT NULL', 'DROP NOT NULL'));
  ELSIF x < 45 THEN
    kind := 'default'; q := format('ALTER TABLE t ALTER %I SET DEFAULT %s', c.name, lit(c.typ));
  ELSIF x < 55 THEN
    kind := 'create index';
    q := format('DROP INDEX IF EXISTS ix%s; CREATE INDEX ix%s ON t ', (x % 5), (x % 5)) || CASE
      WHEN c.typ IN ('integer[]', 'text[]', 'jsonb') THEN format('USING gin (%I)', c.name)
      WHEN c.typ = 'int4range' THEN format('USING %s (%I)', pick('gist', 'spgist', 'btree', 'brin'), c.name) || CASE WHEN ri(2) = 0 THEN ' WHERE k < 20' ELSE '' END
      WHEN c.typ IN ('integer', 'bigint', 'date', 'numeric', 'double precision', 'interval') THEN pick(format('(%I DESC, k)', c.name), format('USING brin (%I) WITH (pages_per_range = 1)', c.name), format('USING hash (%I)', c.name), format('USING gist (%I)', c.name), format('((%I::text || k)) WHERE u IS NULL', c.name), format('(%I) INCLUDE (k, u)', c.name))
      WHEN c.typ = 'text' THEN pick(format('USING bloom (%I)', c.name), format('USING hash (%I)', c.name), format('(md5(%I), id)', c.name), format('(left(%I, 20) text_pattern_ops)', c.name), format('USING spgist (left(%I, 50))', c.name), 'USING gin (to_tsvector(''simple'', left(s, 100)))')
      ELSE format('((%I IS NULL), k)', c.name) END;
    -- in files
    IF q ~ 'USING btree' THEN q := 'SET nvm.default_index_method = btree; ' || q || '; RESET nvm.default_index_method'; END IF;
  ELSIF x < 58 THEN
    kind := 'drop index'; q := format('DROP INDEX IF EXISTS ix%s', x % 5);
  ELSIF x < 63 THEN
    kind := 'rewrite'; q := pick('CLUSTER t USING t_pkey', 'ALTER TABLE t ALTER k TYPE bigint, ALTER k TYPE int', 'ALTER TABLE t ALTER id TYPE int USING id + 0', 'REINDEX TABLE t', 'REINDEX TABLE ch', 'ALTER TABLE ch ALTER v TYPE varchar(100000)', 'ALTER TABLE p ALTER s TYPE text COLLATE "C" USING s || ''''');
  ELSIF x < 70 THEN
    kind := 'access method'; q := format('ALTER TABLE %s SET ACCESS METHOD %s', pick('t', 't', 'ch', 'p0', 'p1', 'p2', 'log'), pick('@own@', '@own@', 'heap'));
  ELSIF x < 76 THEN
    kind := 'several'; q := format('ALTER TABLE t %s, DROP COLUMN IF EXISTS %I, ALTER s SET DEFAULT %s, SET (fillfactor = %s)', add, xc, str(), 10 + ri(90));
  ELSIF x < 80 THEN
    kind := 'check'; q := pick(format('ALTER TABLE t DROP CONSTRAINT IF EXISTS ck, ADD CONSTRAINT ck CHECK (k IS NULL OR k < %s) NOT VALID', 20 + ri(30)), 'ALTER TABLE t VALIDATE CONSTRAINT ck', 'ALTER TABLE t DROP CONSTRAINT IF EXISTS ck');
  ELSIF x < 83 THEN
    kind := 'rename'; q := format('ALTER TABLE t RENAME %I TO x%s', xc, ri(9));
  ELSIF x < 87 THEN
    kind := 'partition'; q := pick('ALTER TABLE p DETACH PARTITION p2', 'ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (20) TO (30)', 'ALTER TABLE p ATTACH PARTITION p2 FOR VALUES FROM (20) TO (30)', format('ALTER TABLE p ADD COLUMN y%s int DEFAULT %s', ri(4), ri(9)), format('ALTER TABLE p DROP COLUMN y%s', ri(4)), 'CREATE TABLE pd PARTITION OF p DEFAULT', 'DROP TABLE pd');
  ELSIF x < 90 THEN
    kind := 'trigger'; q := format('ALTER TABLE t %s TRIGGER %s', pick('ENABLE', 'ENABLE', 'DISABLE'), pick('adapt', 'note'));
  ELSIF x < 93 THEN
    kind := 'create table as'; q := format('DROP TABLE IF EXISTS cta; CREATE %s TABLE cta AS SELECT * FROM t WHERE %s', pick('', '', 'UNLOGGED'), cond('t'));
  ELSIF x < 95 THEN
    kind := 'refresh'; q := 'REFRESH MATERIALIZED VIEW mv';
  ELSIF x < 97 THEN
    kind := 'truncate'; q := pick('TRUNCATE ch', 'TRUNCATE log', 'TRUNCATE p1', 'TRUNCATE p0, log', 'TRUNCATE t CASCADE');
  ELSIF x < 98 THEN
    kind := 'unlogged'; q := pick('ALTER TABLE p0 SET LOGGED', 'ALTER TABLE log SET LOGGED');
  ELSE
    kind := 'statistics'; q := pick('DROP STATISTICS IF EXISTS st; CREATE STATISTICS st ON k, s FROM t', 'ANALYZE t', 'ANALYZE p');
  END IF;
END$$;

-- ---- running and comparing them ----

-- Run a statement in a schema.  dry: only find out whether it can be done.
CREATE FUNCTION one(sch text, statement text, dry bool, protect bool, OUT state text, OUT n bigint, OUT rows text) LANGUAGE plpgsql AS $$
DECLARE
  q text := replace(statement, '@own@', CASE sch WHEN 'n' THEN 'nvm' ELSE 'heap' END);
BEGIN
  PERFORM use(sch);
  IF NOT protect THEN
    EXECUTE q;
    GET DIAGNOSTICS n = ROW_COUNT;
    state := 'ok';
    RETURN;
  END IF;
  BEGIN
    IF q ~ '^WITH' THEN
      CREATE TEMP TABLE answer ON COMMIT DROP AS SELECT ''::text AS a LIMIT 0;
      EXECUTE replace(q, '/* main */ SELECT ', 'INSERT INTO answer SELECT x::text FROM (SELECT ') || ') x';
      SELECT count(*), md5(string_agg(a, ';' ORDER BY a COLLATE "C")) INTO n, rows FROM answer;
      DROP TABLE answer;
    ELSIF q ~ ' RETURNING |^SELECT' THEN
      EXECUTE 'WITH x AS (' || q || ') SELECT count(*), md5(string_agg(x::text, '';'' ORDER BY x::text COLLATE "C")) FROM x' INTO n, rows;
    ELSE
      EXECUTE q;
      GET DIAGNOSTICS n = ROW_COUNT;
    END IF;
    state := 'ok';
    IF dry THEN RAISE SQLSTATE 'NVM01'; END IF;
  EXCEPTION WHEN OTHERS THEN
    -- 40 to 58 are no answers to a statement, XX never
    IF sqlstate = 'NVM01' THEN
      n := NULL;
    ELSIF sqlstate !~ '^(23|22|21|42|27|2B|0A|55|54|44)' THEN
      RAISE;
    ELSE
      state := sqlstate; n := NULL; rows := NULL;
      IF sqlstate ~ '^(23|22|21|27|44)' THEN state := 'refused'; END IF;	-- which row comes first is not the same
    END IF;
  END;
END$$;
CREATE FUNCTION run(no int, kind text, statement text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE h record; n record; protect bool := ri(4) > 0;
BEGIN
  IF NOT protect THEN
    h := one('h', statement, true, true);
    IF h.state <> 'ok' THEN PERFORM use('public'); RETURN; END IF;
  END IF;
  h := one('h', statement, false, protect);
  IF h.state = '54000' THEN
    -- a row too big for heap's page
    PERFORM use('public');
    RETURN;
  END IF;
  n := one('n', statement, false, protect);
  PERFORM use('public');
  IF h IS DISTINCT FROM n THEN
    RAISE EXCEPTION 'step %: % answers % on heap, % on nvm', no, left(statement, 1000), h, n;
  END IF;
  INSERT INTO tried VALUES (kind, (h.state = 'ok')::int, (h.state <> 'ok')::int)
    ON CONFLICT ON CONSTRAINT tried_pkey DO UPDATE SET good = tried.good + excluded.good, bad = tried.bad + excluded.bad;
END$$;
CREATE FUNCTION step(no int, seed int, ddl bool) RETURNS void LANGUAGE plpgsql AS $$
DECLARE g record;
BEGIN
  PERFORM setseed(('x' || left(md5(seed || '/' || no), 7))::bit(28)::int / 268435456.0);
  IF ddl AND ri(5) = 0 THEN g := gen_ddl(); ELSE g := gen_dml(); END IF;
  PERFORM run(no, g.kind, g.q);
END$$;

-- All that a schema holds, by sequential scans.
CREATE FUNCTION whole(sch text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE r text := ''; one text; t text;
BEGIN
  PERFORM use(sch);
  FOREACH t IN ARRAY '{t,ch,p,log,mv,cta,p2}'::text[] LOOP
    CONTINUE WHEN to_regclass(t) IS NULL;
    EXECUTE format('SELECT count(*) || '' '' || md5(string_agg(m, '''' ORDER BY m)) FROM (SELECT md5(x::text) COLLATE "C" AS m FROM %I x OFFSET 0) y', t) INTO one;
    r := r || t || ' ' || coalesce(one, '0') || '; ';
  END LOOP;
  PERFORM use('public');
  RETURN r;
END$$;
CREATE FUNCTION found(sch text, rel text, shape text, condition text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE r text;
BEGIN
  PERFORM use(sch);
  PERFORM set_config('enable_' || x, (x = shape)::text, true) FROM unnest('{seqscan,indexscan,indexonlyscan,bitmapscan}'::text[]) x;
  EXECUTE format('SELECT count(*) || '' '' || coalesce(md5(string_agg(concat_ws('','', id, k, md5(s)), '';'' ORDER BY id, k)), '''') FROM %I x WHERE %s', rel, condition) INTO r;
  PERFORM set_config('enable_' || x, 'on', true) FROM unnest('{seqscan,indexscan,indexonlyscan,bitmapscan}'::text[]) x;
  PERFORM use('public');
  RETURN r;
END$$;
CREATE FUNCTION compare(no int, thorough bool) RETURNS void LANGUAGE plpgsql AS $$
DECLARE w record; h text := whole('h'); n text := whole('n'); x record; conditions text[];
BEGIN
  IF h <> n THEN
    RAISE EXCEPTION 'step %: heap holds %, nvm %', no, h, n;
  END IF;
  IF NOT thorough THEN RETURN; END IF;
  FOR w IN
    SELECT 't' AS rel, shape, c FROM unnest('{indexscan,bitmapscan}'::text[]) shape, unnest(ARRAY['id > 0', 'k BETWEEN 3 AND 15', 'u > 0', 'a && ''{1,4,6}''', 's = ''same''', 'u IS NULL AND k > 2', 'k < 5 OR id < 50', 'r && int4range(5, 120)', 'j @> ''{"k": 3}''']) c
    UNION ALL SELECT 'p', shape, c FROM unnest('{indexscan,bitmapscan}'::text[]) shape, unnest(ARRAY['id > 0', 'k BETWEEN 5 AND 25']) c
    UNION ALL SELECT 't', shape, format('%I IS NOT NULL', attname) FROM unnest('{indexscan,bitmapscan}'::text[]) shape, pg_attribute
      WHERE attrelid = 'h.t'::regclass AND attnum > 0 AND NOT attisdropped AND attname LIKE 'x%'
  LOOP
    h := found('h', w.rel, w.shape, w.c);
    n := found('n', w.rel, w.shape, w.c);
    IF h <> n THEN
      RAISE EXCEPTION 'step %: % of % where % finds % on heap, % on nvm', no, w.shape, w.rel, w.c, h, n;
    END IF;
  END LOOP;
END$$;

--
-- Composite types with large fields, domains, arrays, ranges, XML, rows wider than a page, rows as values
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA type_kinds;
SET search_path = type_kinds, public;

CREATE FUNCTION big(n int, seed int) RETURNS text LANGUAGE sql IMMUTABLE AS
$$SELECT left(string_agg(md5(seed || '/' || g), '' ORDER BY g), n) FROM generate_series(1, n / 32 + 1) g$$;
-- composites within composites, arrays of them, with fields compressed and stored outside the row they come from
CREATE TYPE inner_ AS (n int, t text);
CREATE TYPE outer_ AS (i inner_, many inner_[], b bytea, r int4range);
CREATE DOMAIN checked AS outer_ CHECK ((VALUE).r IS NULL OR NOT isempty((VALUE).r));
CREATE DOMAIN words AS text[] CHECK (array_length(VALUE, 1) < 6);
CREATE TABLE src (id int PRIMARY KEY, t text, b bytea);
INSERT INTO src SELECT g, CASE g % 3 WHEN 0 THEN big(g * 4000, g) WHEN 1 THEN repeat('rep' || g, g * 3000) ELSE 'short' || g END, convert_to(big(g * 2500, -g), 'UTF8') FROM generate_series(1, 9) g;
CREATE TABLE comp (id int PRIMARY KEY, o outer_, c checked, os outer_[], w words, whole src, wholes src[]);
INSERT INTO comp SELECT id, ((id, t)::inner_, ARRAY[(1, t)::inner_, NULL, (2, reverse(t))::inner_], b, int4range(id, id + 2))::outer_,
  ((id, t)::inner_, NULL, NULL, int4range(0, id))::outer_, ARRAY[((1, t)::inner_, NULL, b, NULL)::outer_], ARRAY[t, 'w'], src, ARRAY[src, src] FROM src;
CREATE FUNCTION wrong() RETURNS TABLE (what text, id int) LANGUAGE sql AS $$
SELECT x.what, c.id FROM comp c, LATERAL (SELECT CASE c.id % 3 WHEN 0 THEN big(c.id * 4000, c.id) WHEN 1 THEN repeat('rep' || c.id, c.id * 3000) ELSE 'short' || c.id END, convert_to(big(c.id * 2500, -c.id), 'UTF8')) s(t, b),
LATERAL (VALUES ('field of a field', ((o).i).t = s.t), ('array of composites', ((o).many[3]).t = reverse(s.t) AND (o).many[2] IS NULL), ('bytea', (o).b = s.b), ('range', (o).r = int4range(c.id, c.id + 2)),
  ('domain', ((c.c).i).t = s.t), ('array', ((os[1]).i).t = s.t AND (os[1]).b = s.b), ('words', w = ARRAY[s.t, 'w']), ('whole row', (whole).t = s.t AND (whole).b = s.b), ('whole rows', (wholes[2]).t = s.t AND (wholes[1]).b = s.b)) x(what, ok)
WHERE ok IS NOT TRUE$$;
SELECT * FROM wrong();
-- the rows that they were made of are gone, changed, of another shape
DELETE FROM src WHERE id < 4;
UPDATE src SET t = 'x', b = NULL;
VACUUM FULL src;
SELECT * FROM wrong();
CREATE TABLE other AS SELECT id, o, whole FROM comp;
INSERT INTO other SELECT id + 100, o, whole FROM comp;
SELECT count(*), count(DISTINCT o), count(DISTINCT whole) FROM other;
SELECT count(*) FROM other a JOIN other b ON a.o = b.o AND a.id < b.id;
TRUNCATE src;
SELECT * FROM wrong();
-- fields and elements assigned one by one
UPDATE comp SET o.i.t = ((o).i).t || '!', o.many[2] = (7, big(9000, id))::inner_, w[3] = big(5000, id), whole.t = 'new', wholes[1].b = NULL WHERE id > 6;
SELECT id, right(((o).i).t, 1), ((o).many[2]).n, md5(((o).many[2]).t) = md5(big(9000, id)) AS same, length(w[3]), (whole).t, (wholes[1]).b, length((wholes[2]).b) FROM comp WHERE id > 5 ORDER BY id;
UPDATE comp SET w = w || ARRAY['4', '5', '6'] WHERE id = 7;
UPDATE comp SET c.r = 'empty' WHERE id = 7;
UPDATE comp SET c = NULL, os = os || os, wholes[5] = whole WHERE id = 8 RETURNING id, c, array_length(os, 1), wholes[4] IS NULL AS gap, (wholes[5]).t;
ALTER TABLE src ADD COLUMN extra int;
ALTER TYPE inner_ ADD ATTRIBUTE more text;
ALTER TABLE other ALTER o TYPE text USING ((o).i).t;
SELECT count(*), sum(length(o)) FROM other;
-- compared, sorted, grouped, indexed
CREATE INDEX comp_o ON comp ((((o).i).n), md5(((o).i).t));
CREATE INDEX comp_h ON comp USING hash ((((o).i).t));
SET enable_seqscan = off;
SELECT id FROM comp WHERE ((o).i).t = repeat('rep4', 12000);
SELECT id FROM comp WHERE ((o).i).n = 3 AND md5(((o).i).t) = md5(big(12000, 3));
RESET enable_seqscan;
SELECT array_agg(id ORDER BY whole DESC) FROM comp;
SELECT (o).r, count(*) FROM comp GROUP BY 1 ORDER BY 1 LIMIT 2;

-- XML, JSON and arrays of many elements
CREATE TABLE docs (id int PRIMARY KEY, x xml, j json, jb jsonb, a int[], m text[][], ts tsvector, q jsonpath);
INSERT INTO docs SELECT g, xmlelement(name doc, xmlattributes(g AS id), (SELECT xmlagg(xmlelement(name item, x * g)) FROM generate_series(1, g * 500) x)),
  (SELECT json_agg(x * g) FROM generate_series(1, g * 1000) x), (SELECT jsonb_object_agg('k' || x, md5((x * g)::text)) FROM generate_series(1, g * 300) x), (SELECT array_agg(x * g) FROM generate_series(1, g * 3000) x),
  ARRAY[ARRAY[big(3000, g), 'b'], ARRAY['c', big(4000, g)]], (SELECT to_tsvector('simple', string_agg('w' || x * g, ' ')) FROM generate_series(1, g * 200) x), '$.k1 ? (@ == "x")' FROM generate_series(1, 5) g;
SELECT id, (xpath('/doc/item[500]/text()', x))[1]::text::int = 500 * id AS xml, j->>999 = (1000 * id)::text AS json, jb->>'k300' = md5((300 * id)::text) AS jsonb, a[3000] = 3000 * id AS arr,
  length(m[2][2]) AS m, ts @@ ('w' || 200 * id)::tsquery AS ts, jb @? q AS path FROM docs ORDER BY id;
UPDATE docs SET a[3000] = -1, jb = jb - 'k5' || '{"new": [1, 2, 3]}', m[1][2] = repeat('m', 10000), x = xmlconcat(x, '<end/>') WHERE id < 3;
SELECT id, a[3000], a[2999], jb ? 'k5' AS k5, jb#>>'{new,1}' AS new, length(m[1][2]), length(m[2][2]), right(x::text, 6) FROM docs ORDER BY id;
SELECT id, x IS DOCUMENT AS document, cardinality(a), array_dims(m) FROM docs ORDER BY id;
SELECT count(*), sum(v) FROM docs, unnest(a) v WHERE id = 5;

-- rows of many columns, wide ones, with nulls here and there; more columns than fit while all are long
DO $$BEGIN
  EXECUTE 'CREATE TABLE wide (id int PRIMARY KEY, ' || (SELECT string_agg('c' || g || CASE g % 4 WHEN 0 THEN ' text' WHEN 1 THEN ' int' WHEN 2 THEN ' numeric' ELSE ' inner_' END, ', ') FROM generate_series(1, 300) g) || ')';
  EXECUTE 'INSERT INTO wide SELECT n, ' || (SELECT string_agg(CASE WHEN g % 7 = 0 THEN 'NULL' WHEN g % 4 = 0 THEN 'big(n * ' || g || ', n)' WHEN g % 4 = 1 THEN 'n + ' || g WHEN g % 4 = 2 THEN 'n * ' || g || '.5' ELSE '(n, ''c' || g || ''', NULL)::inner_' END, ', ') FROM generate_series(1, 300) g) || ' FROM generate_series(1, 6) n';
END$$;
SELECT id, c5, c10, c3, length(c4), length(c300), c296 = big(id * 296, id) AS same, c7, c14, c28 FROM wide ORDER BY id;
UPDATE wide SET c300 = NULL, c4 = big(20000, 4), c7 = (1, 'seven', NULL) WHERE id % 2 = 0;
SELECT id, c5, length(c4), length(c300), c296 = big(id * 296, id) AS same, c7 FROM wide ORDER BY id;
SELECT count(*), sum(length(wide::text)) FROM wide;
ALTER TABLE wide DROP COLUMN c100, DROP COLUMN c1;
SELECT count(*), sum(length(wide::text)) FROM wide;
CREATE TABLE wide_copy AS SELECT w FROM wide w;
SELECT count(*), sum((w).c5), sum(length((w).c296)) FROM wide_copy;
-- rows as values: whole-row variables in functions, joins, sub-selects, returned and passed on
CREATE FUNCTION longest(wide) RETURNS int LANGUAGE sql AS 'SELECT greatest(length($1.c4), length($1.c296), length($1.c300))';
SELECT id, longest(w), w.longest FROM wide w ORDER BY id LIMIT 2;
CREATE FUNCTION changed(r wide) RETURNS wide LANGUAGE plpgsql AS $$BEGIN r.c4 := r.c4 || r.c296; r.c5 := NULL; RETURN r; END$$;
SELECT id, length((changed(w)).c4), (changed(w)).c5 FROM wide w WHERE id < 4 ORDER BY id;
INSERT INTO wide SELECT (x.r).* FROM (SELECT changed(w) AS r FROM wide w WHERE id = 5) x ON CONFLICT (id) DO UPDATE SET c4 = excluded.c4 RETURNING id, length(c4);
SELECT count(*) FROM wide a, LATERAL (SELECT a AS r) x WHERE (x.r).c296 = a.c296 AND x.r = a;
SELECT (SELECT w FROM wide w WHERE w.id = g) IS NOT NULL AS found, (SELECT (w).c5 FROM wide w WHERE w.id = g) FROM generate_series(5, 7) g;
SELECT w.id, w = (SELECT x FROM wide x WHERE x.id = w.id) AS same FROM wide w ORDER BY id LIMIT 2;
-- values that are equal but not the same bytes, and back; toasted against inline ones
CREATE TABLE eq (id int PRIMARY KEY, n numeric, t text, u text UNIQUE);
INSERT INTO eq VALUES (1, 1.0, repeat('e', 10000), 'u'), (2, 1.000, repeat('e', 10000), 'v');
ALTER TABLE eq ALTER t SET STORAGE EXTERNAL;
INSERT INTO eq VALUES (3, 1, repeat('e', 10000), 'w');
SELECT count(*), count(DISTINCT n), count(DISTINCT t) FROM eq;
UPDATE eq SET n = 1.00000, t = t;
SELECT id, n, length(t) FROM eq WHERE t = repeat('e', 10000) ORDER BY id;
UPDATE eq SET u = u || '' RETURNING id, u;

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA type_kinds CASCADE;

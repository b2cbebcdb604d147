--
-- BRIN: every operator class, summarized and not, desummarized, over rows that change
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
CREATE SCHEMA brin_kinds;
SET search_path = brin_kinds, public;

SET jit = off;
CREATE TABLE t (id int, i2 int2, i8 int8, f4 float4, f8 float8, n numeric, d date, ti time, ts timestamp, tz timestamptz, iv interval, tt timetz,
  tx text, by bytea, ch "char", na name, bp char(10), u uuid, m macaddr, m8 macaddr8, ip inet, ci cidr, bi bit(10), vb varbit, o oid, td tid, ls pg_lsn,
  r int4range, bo box) WITH (autovacuum_enabled = off);
CREATE FUNCTION add_rows(first int, last int) RETURNS void LANGUAGE sql AS $$
INSERT INTO t SELECT g, g % 1000, g * 1000000000::int8, g / 3.0, g / 7.0, g * 1.1, date '1990-01-01' + g, time '00:00' + g * interval '1 second', timestamp '2000-01-01' + g * interval '1 hour',
  timestamptz '2000-01-01 00:00+00' + g * interval '1 hour', g * interval '1 minute', timetz '00:00+00' + g * interval '1 second', 'text' || lpad(g::text, 6, '0'), decode(lpad(to_hex(g), 8, '0'), 'hex'),
  chr(33 + g % 90)::"char", 'name' || g, 'bp' || g, md5((g / 100)::text)::uuid, ('08:00:2b:01:' || lpad(to_hex(g / 256 % 256), 2, '0') || ':' || lpad(to_hex(g % 256), 2, '0'))::macaddr,
  ('08:00:2b:01:02:03:' || lpad(to_hex(g / 256 % 256), 2, '0') || ':' || lpad(to_hex(g % 256), 2, '0'))::macaddr8, ('10.' || g / 256 % 256 || '.' || g % 256 || '.1/24')::inet, ('10.' || g / 256 % 256 || '.' || g % 256 || '.0/24')::cidr,
  (g % 1024)::bit(10), (g % 1024)::bit(10)::varbit, g::oid, format('(%s,%s)', g, g % 100 + 1)::tid, format('%s/%s', to_hex(g), to_hex(g))::pg_lsn,
  CASE WHEN g % 100 = 0 THEN 'empty' ELSE int4range(g, g + 20) END, box(point(g, g), point(g + 5, g + 5))
FROM generate_series(first, last) g$$;
SELECT add_rows(1, 5000);
CREATE TABLE q (name text, cls text, col text, conds text[]);
-- one index with every column by minmax, one by bloom, one by minmax-multi; inclusion apart
INSERT INTO q VALUES
  ('mm', 'minmax', NULL, ARRAY['id = 4321', 'i2 BETWEEN 500 AND 502', 'i8 > 4990000000000', 'f4 < 1.2', 'f8 = 700', 'n >= 5490', 'd = ''2000-01-01''', 'ti < ''00:00:05''', 'ts > ''2000-07-20''', 'tz = ''2000-02-01 00:00+00''',
    'iv > ''83 hours''', 'tt < ''00:00:09+00''', 'tx = ''text003333''', 'by = ''\x00000777''', 'ch = ''A''', 'na = ''name77''', 'bp = ''bp4999''', 'u = md5(''7'')::uuid', 'm = ''08:00:2b:01:05:06''', 'm8 > ''08:00:2b:01:02:03:13:80''',
    'ip = ''10.3.4.1/24''', 'bi = 513::bit(10)', 'vb > B''1111111110''', 'o < 10', 'td > ''(4995,0)''', 'ls = ''64/64''']),
  ('bl', 'bloom', NULL, ARRAY['id = 4321', 'i2 = 501::int2', 'i8 = 777000000000', 'f8 = 700', 'n = 1100', 'd = ''2000-01-01''', 'ts = ''2000-01-02''', 'tx = ''text003333''', 'by = ''\x00000777''', 'na = ''name77''', 'u = md5(''7'')::uuid', 'm = ''08:00:2b:01:05:06''', 'ip = ''10.3.4.1/24''', 'ls = ''64/64''']),
  ('mu', 'minmax_multi', NULL, ARRAY['id IN (10, 4321)', 'i2 BETWEEN 500 AND 502', 'i8 > 4990000000000', 'f4 < 1.2', 'n >= 5490', 'd = ''2000-01-01''', 'ts > ''2000-07-20''', 'iv > ''83 hours''', 'u = md5(''7'')::uuid', 'm8 > ''08:00:2b:01:02:03:13:80''', 'ip = ''10.3.4.1/24''', 'td > ''(4995,0)''', 'ls = ''64/64''']),
  ('inc', 'inclusion', NULL, ARRAY['r && int4range(100, 105)', 'r @> 4000', 'bo && box ''(50,50),(55,55)''', 'bo @> point ''(3000,3001)''', 'ip <<= ''10.2.0.0/16''']);
CREATE INDEX mm ON t USING brin (id, i2, i8, f4, f8, n, d, ti, ts, tz, iv, tt, tx, by, ch, na, bp, u, m, m8, ip, ci, bi, vb, o, td, ls) WITH (pages_per_range = 4);
CREATE INDEX bl ON t USING brin (id int4_bloom_ops, i2 int2_bloom_ops, i8 int8_bloom_ops (n_distinct_per_range = 500, false_positive_rate = 0.05), f8 float8_bloom_ops, n numeric_bloom_ops, d date_bloom_ops, ts timestamp_bloom_ops, tx text_bloom_ops,
  by bytea_bloom_ops, na name_bloom_ops, u uuid_bloom_ops, m macaddr_bloom_ops, ip inet_bloom_ops, ls pg_lsn_bloom_ops) WITH (pages_per_range = 4);
CREATE INDEX mu ON t USING brin (id int4_minmax_multi_ops, i2 int2_minmax_multi_ops (values_per_range = 16), i8 int8_minmax_multi_ops, f4 float4_minmax_multi_ops, n numeric_minmax_multi_ops, d date_minmax_multi_ops, ts timestamp_minmax_multi_ops,
  iv interval_minmax_multi_ops, u uuid_minmax_multi_ops, m8 macaddr8_minmax_multi_ops, ip inet_minmax_multi_ops, td tid_minmax_multi_ops, ls pg_lsn_minmax_multi_ops) WITH (pages_per_range = 4);
CREATE INDEX inc ON t USING brin (r range_inclusion_ops, bo box_inclusion_ops, ip inet_inclusion_ops) WITH (pages_per_range = 2);
CREATE FUNCTION wrong(first bool DEFAULT false) RETURNS TABLE (name text, cond text, used bool, got bigint, expected bigint) LANGUAGE plpgsql AS $$
DECLARE x record; line text; e text; f text;
BEGIN
  SET LOCAL max_parallel_workers_per_gather = 0;
  FOR x IN SELECT q.name, c FROM q, unnest(conds) c LOOP
    SET LOCAL enable_seqscan = on;
    SET LOCAL enable_bitmapscan = off;
    EXECUTE format('SELECT count(*), md5(string_agg(id::text, '','' ORDER BY id)) FROM t WHERE %s', x.c) INTO expected, e;
    SET LOCAL enable_seqscan = off;
    SET LOCAL enable_bitmapscan = on;
    UPDATE pg_index SET indisvalid = (indexrelid = x.name::regclass) WHERE indrelid = 't'::regclass;
    used := false;
    FOR line IN EXECUTE format('EXPLAIN (COSTS OFF) SELECT * FROM t WHERE %s', x.c) LOOP
      used := used OR line ~ ('\m' || x.name || '\M');
    END LOOP;
    EXECUTE format('SELECT count(*), md5(string_agg(id::text, '','' ORDER BY id)) FROM t WHERE %s', x.c) INTO got, f;
    UPDATE pg_index SET indisvalid = true WHERE indrelid = 't'::regclass;
    name := x.name; cond := x.c;
    IF e IS DISTINCT FROM f OR NOT used OR (first AND expected = 0) THEN RETURN NEXT; END IF;
  END LOOP;
END$$;
SELECT * FROM wrong(true);
-- rows beyond what is summarized, summarized by hand, one range, all of them; taken back
SELECT add_rows(5001, 7000);
SELECT * FROM wrong();
SELECT brin_summarize_new_values('mm') > 0 AS mm, brin_summarize_new_values('bl') > 0 AS bl, brin_summarize_new_values('mu') > 0 AS mu, brin_summarize_new_values('inc') > 0 AS inc;
SELECT brin_summarize_new_values('mm'), brin_summarize_range('mu', 0), brin_summarize_range('inc', 4294967295);
SELECT * FROM wrong();
SELECT brin_desummarize_range('mm', 0), brin_desummarize_range('bl', 8), brin_desummarize_range('mu', 8), brin_desummarize_range('inc', 4);
SELECT * FROM wrong();
SELECT brin_summarize_range('mm', 0), brin_summarize_range('bl', 9), brin_summarize_range('mu', 10), brin_summarize_range('inc', 5);
SELECT * FROM wrong();
-- values that leave their range, in rows that stay and rows that move
UPDATE t SET id = id + 100000, tx = tx || 'x', r = int4range(lower(r) + 5000, upper(r) + 5000), d = d - 5000 WHERE id % 50 = 0;
UPDATE t SET f8 = NULL, ip = NULL, n = -n WHERE id % 31 = 0;
SELECT * FROM wrong();
DELETE FROM t WHERE id % 3 = 0 AND id NOT IN (4998, 4995, 3333, 777, 21, 10, 501, 9, 6, 3);
SELECT * FROM wrong();
VACUUM t;
SELECT * FROM wrong();
BEGIN; SELECT add_rows(20000, 21000); UPDATE t SET i2 = -1, tx = 'back' WHERE id < 300; SELECT * FROM wrong(); ROLLBACK;
SELECT * FROM wrong();
SELECT add_rows(8000, 9000);
VACUUM t;
SELECT * FROM wrong();
REINDEX TABLE CONCURRENTLY t;
SELECT * FROM wrong();
CLUSTER t USING mm;
CREATE INDEX t_id ON t (id);
CLUSTER t USING t_id;
DROP INDEX t_id;
SELECT * FROM wrong();
TRUNCATE t;
SELECT brin_summarize_new_values('mm');
SELECT add_rows(1, 7000);
SELECT * FROM wrong();

-- nothing may be wrong with any table, nor with the pool
SELECT t.rel, c::text AS finding
FROM (SELECT c.oid::regclass AS rel
      FROM pg_class c JOIN pg_am a ON a.oid = c.relam
      WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm')) t,
     LATERAL nvm.check(t.rel) c
ORDER BY 1, 2;
SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA brin_kinds CASCADE;

-- Which indexes of an nvm table lie in the pool, what the catalogs say of them, and
-- what works with them

SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SHOW nvm.default_index_method;
SHOW nvm.index_identity;

CREATE VIEW methods AS
	SELECT c.relname AS index, a.amname AS method, EXISTS (SELECT FROM nvm.relations r WHERE r.relation = c.oid) AS pool,
		(SELECT string_agg(DISTINCT ca.amname, ', ') FROM unnest(x.indclass::oid[]) oc
			JOIN pg_opclass o ON o.oid = oc JOIN pg_am ca ON ca.oid = o.opcmethod) AS classes
	FROM pg_class c JOIN pg_am a ON a.oid = c.relam
		JOIN pg_index x ON x.indexrelid = c.oid
		JOIN pg_class t ON t.oid = x.indrelid
	WHERE t.relname LIKE 'dx\_%';

-- every way to make one
CREATE TABLE dx_t (id int PRIMARY KEY, u text UNIQUE, a int, b text,
	UNIQUE (a, b), EXCLUDE (a WITH =, b WITH =)) USING nvm;
CREATE INDEX dx_plain ON dx_t (b);
CREATE INDEX dx_named ON dx_t USING btree (b);
CREATE INDEX dx_ours ON dx_t USING nvm_btree (b);
CREATE INDEX dx_params ON dx_t (b) WITH (fillfactor = 80, persistence = leaves);
CREATE INDEX dx_hash ON dx_t USING hash (b);
CREATE UNIQUE INDEX CONCURRENTLY dx_conc ON dx_t (b DESC NULLS LAST, a) INCLUDE (u) WHERE a > 0;
CREATE INDEX ON public.dx_t (lower(b));
CREATE INDEX IF NOT EXISTS dx_pattern ON dx_t (b text_pattern_ops);
CREATE INDEX dx_strange ON dx_t ((CASE WHEN b = ' using ' THEN 1 END)); -- using
CREATE INDEX /* on dx_t using btree */ dx_comment ON dx_t (a);
ALTER TABLE dx_t ADD COLUMN c int UNIQUE, ADD CONSTRAINT dx_added UNIQUE (c, a);
CREATE TABLE dx_late (id int, r int) USING nvm;
ALTER TABLE dx_late ADD PRIMARY KEY (id) DEFERRABLE;
CREATE TABLE dx_like (LIKE dx_t INCLUDING ALL) USING nvm;
CREATE TABLE dx_heap (LIKE dx_late INCLUDING INDEXES) USING heap;
CREATE TABLE dx_heap2 (id int PRIMARY KEY, x int) USING heap;
CREATE INDEX dx_heap2_x ON dx_heap2 (x);
CREATE TEMP TABLE dx_temp (id int PRIMARY KEY) USING nvm;
CREATE TABLE dx_part (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE dx_part1 PARTITION OF dx_part FOR VALUES FROM (0) TO (100) USING nvm;
CREATE INDEX dx_part1_v ON dx_part1 (v);
DO $$ BEGIN EXECUTE 'CREATE INDEX dx_do ON dx_late (r)'; EXECUTE 'CREATE INDEX dx_do_b ON dx_late USING btree (r)'; END $$;
SELECT * FROM methods ORDER BY 1;
\d dx_t
SELECT pg_get_indexdef('dx_conc'::regclass);

-- no operator class: the method that is missing one is named
CREATE INDEX ON dx_late (xmin);

-- and PostgreSQL's own, if asked
SET nvm.default_index_method = 'btree';
CREATE TABLE dx_old (id int PRIMARY KEY) USING nvm;
SELECT method, pool FROM methods WHERE index = 'dx_old_pkey';
RESET nvm.default_index_method;
REINDEX TABLE dx_old;
SELECT method, pool FROM methods WHERE index = 'dx_old_pkey';

-- or access method nvm_btree: then USING btree means PostgreSQL's own
SET nvm.index_identity = 'nvm_btree';
CREATE TABLE dx_old2 (id int PRIMARY KEY, u text UNIQUE, a int, EXCLUDE (a WITH =)) USING nvm;
CREATE INDEX ON dx_old2 (u);
CREATE INDEX dx_old2_named ON dx_old2 USING btree (u);
CREATE INDEX /* on dx_old2 using btree */ dx_comment2 ON dx_old2 (a);
CREATE INDEX dx_strange2 ON dx_old2 ((CASE WHEN u = ' using ' THEN 1 END)); -- using
DO $$ BEGIN EXECUTE 'CREATE INDEX dx_do2 ON dx_old2 (u)'; EXECUTE 'CREATE INDEX dx_do2_b ON dx_old2 USING btree (u)'; END $$;
ALTER TABLE dx_old2 ADD COLUMN c int UNIQUE, ADD CONSTRAINT dx_added2 UNIQUE (c, a);
CREATE TABLE dx_like2 (LIKE dx_old2 INCLUDING ALL) USING nvm;
INSERT INTO dx_old2 VALUES (1, 'a', 1);
INSERT INTO dx_old2 VALUES (1, 'b', 2) ON CONFLICT (id) DO UPDATE SET u = excluded.u || '!' RETURNING *;
RESET nvm.index_identity;
SELECT * FROM methods WHERE index ~ '(old|like|comment|strange|do|added)2' ORDER BY 1;

-- foreign keys, both ways
CREATE TABLE dx_fk (id int PRIMARY KEY REFERENCES dx_t, u text REFERENCES dx_t (u) ON UPDATE CASCADE) USING nvm;
INSERT INTO dx_t (id, u, a, b) SELECT i, 'u' || i, i, 'b' || i % 10 FROM generate_series(1, 1000) i;
INSERT INTO dx_fk SELECT id, u FROM dx_t WHERE id <= 100;
INSERT INTO dx_fk VALUES (5000);
UPDATE dx_t SET u = 'new' WHERE id = 7;
SELECT * FROM dx_fk WHERE id = 7;
DELETE FROM dx_t WHERE id = 8;

-- ON CONFLICT
INSERT INTO dx_t (id, u) VALUES (1, 'x') ON CONFLICT DO NOTHING;
INSERT INTO dx_t (id, u) VALUES (1, 'x') ON CONFLICT (id) DO UPDATE SET u = 'conflict' RETURNING id, u;
INSERT INTO dx_t (id, u) VALUES (2, 'y') ON CONFLICT ON CONSTRAINT dx_t_pkey DO UPDATE SET u = excluded.u || '!' RETURNING u;
INSERT INTO dx_t (id, u) VALUES (2001, 'conflict') ON CONFLICT (id) DO NOTHING;
WITH i AS (INSERT INTO dx_t (id, u) VALUES (3, 'z') ON CONFLICT (id) DO UPDATE SET u = 'cte' RETURNING u) SELECT * FROM i;
PREPARE upsert(int) AS INSERT INTO dx_t (id, u) VALUES ($1, 'p' || $1) ON CONFLICT (id) DO UPDATE SET a = dx_t.a + 10000 RETURNING id, a;
EXECUTE upsert(4);
EXECUTE upsert(4);
INSERT INTO dx_part VALUES (1, 1), (1, 2) ON CONFLICT (id) DO NOTHING;
INSERT INTO dx_part VALUES (1, 5) ON CONFLICT (id) DO UPDATE SET v = excluded.v RETURNING *;

-- plans
VACUUM ANALYZE dx_t, dx_fk;
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_nestloop = off;
EXPLAIN (COSTS OFF) SELECT * FROM dx_t JOIN dx_fk USING (id) ORDER BY id;
SELECT min(id), max(id) FROM dx_t;
EXPLAIN (COSTS OFF) SELECT * FROM dx_t WHERE id = 5::bigint;
EXPLAIN (COSTS OFF) SELECT id FROM dx_t WHERE id IN (1, 5, 7) ORDER BY id DESC;
EXPLAIN (COSTS OFF) SELECT * FROM dx_t WHERE (id, a) > (10, 10) AND id < 20;
RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_hashjoin; RESET enable_nestloop;

ALTER TABLE dx_t REPLICA IDENTITY USING INDEX dx_t_u_key;
ALTER TABLE dx_late ALTER r SET NOT NULL;
CREATE UNIQUE INDEX dx_late_r ON dx_late (r);
ALTER TABLE dx_late REPLICA IDENTITY USING INDEX dx_late_r;
CLUSTER dx_t USING dx_t_pkey;
REINDEX TABLE dx_t;
REINDEX INDEX CONCURRENTLY dx_conc;
SELECT index, method, pool FROM methods WHERE index LIKE 'dx_t_%' OR index = 'dx_conc' ORDER BY 1;
SELECT * FROM nvm.check('dx_t');

-- the last constraint is tested when it is to be
BEGIN;
INSERT INTO dx_late VALUES (1, 1);
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO dx_late VALUES (1, 2);
COMMIT;

-- an operator class that came later
CREATE TYPE dx_pair AS (a int, b int);
CREATE FUNCTION dx_pair_sum(dx_pair) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT $1.a + $1.b';
CREATE FUNCTION dx_pair_cmp(dx_pair, dx_pair) RETURNS int IMMUTABLE LANGUAGE sql AS
	'SELECT btint4cmp(dx_pair_sum($1), dx_pair_sum($2))';
CREATE FUNCTION dx_pair_lt(dx_pair, dx_pair) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT dx_pair_cmp($1, $2) < 0';
CREATE FUNCTION dx_pair_eq(dx_pair, dx_pair) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT dx_pair_cmp($1, $2) = 0';
CREATE FUNCTION dx_pair_gt(dx_pair, dx_pair) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT dx_pair_cmp($1, $2) > 0';
CREATE OPERATOR <## (LEFTARG = dx_pair, RIGHTARG = dx_pair, FUNCTION = dx_pair_lt);
CREATE OPERATOR =## (LEFTARG = dx_pair, RIGHTARG = dx_pair, FUNCTION = dx_pair_eq);
CREATE OPERATOR >## (LEFTARG = dx_pair, RIGHTARG = dx_pair, FUNCTION = dx_pair_gt);
CREATE OPERATOR CLASS dx_pair_ops DEFAULT FOR TYPE dx_pair USING btree AS
	OPERATOR 1 <##, OPERATOR 3 =##, OPERATOR 5 >##, FUNCTION 1 dx_pair_cmp(dx_pair, dx_pair);
CREATE TABLE dx_pairs (p dx_pair UNIQUE) USING nvm;
INSERT INTO dx_pairs VALUES ((1, 2)), ((2, 2));
INSERT INTO dx_pairs VALUES ((3, 0));
SELECT method, pool, classes FROM methods WHERE index = 'dx_pairs_p_key';
DROP OPERATOR CLASS dx_pair_ops USING btree;

-- an index becomes a constraint
CREATE TABLE dx_using (id int NOT NULL, u int) USING nvm;
CREATE UNIQUE INDEX dx_using_id ON dx_using (id);
CREATE UNIQUE INDEX dx_using_u ON dx_using (u);
ALTER TABLE dx_using ADD PRIMARY KEY USING INDEX dx_using_id, ADD CONSTRAINT dx_u UNIQUE USING INDEX dx_using_u;
INSERT INTO dx_using VALUES (1, 1);
INSERT INTO dx_using VALUES (1, 2);
INSERT INTO dx_using VALUES (2, 1);
\d dx_using
SELECT * FROM nvm.check('dx_using');

DROP VIEW methods;
DROP TABLE dx_pairs, dx_using;
DROP TYPE dx_pair CASCADE;
DROP TABLE dx_fk, dx_t, dx_late, dx_like, dx_heap, dx_heap2, dx_temp, dx_part, dx_old, dx_old2, dx_like2;

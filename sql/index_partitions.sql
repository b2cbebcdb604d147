-- Indexes of partitions say btree and lie in the pool, so they belong to indexes of
-- partitioned tables as those of heap do; one of nvm_btree does not

SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = 'nvm';

CREATE VIEW methods AS
	SELECT c.relname AS index, a.amname AS method, EXISTS (SELECT FROM nvm.relations r WHERE r.relation = c.oid) AS pool,
		h.inhparent::regclass AS parent, x.indisvalid AS valid
	FROM pg_class c JOIN pg_am a ON a.oid = c.relam JOIN pg_index x ON x.indexrelid = c.oid
		JOIN pg_class t ON t.oid = x.indrelid LEFT JOIN pg_inherits h ON h.inhrelid = c.oid
	WHERE t.relname LIKE 'ixp%';
CREATE FUNCTION sound() RETURNS SETOF text LANGUAGE sql SET client_min_messages = warning AS $$
	SELECT c.relname || ': ' || f::text FROM pg_class c JOIN pg_am a ON a.oid = c.relam AND a.amname = 'nvm',
		nvm.check(c.oid, heapallindexed => true) f WHERE c.relname LIKE 'ixp%' AND c.relkind = 'r'
	UNION ALL SELECT problem FROM nvm.check_pool() $$;

-- ATTACH of a table with a primary key, a unique index that the parent has not,
-- and others; it has dropped columns, and the order of columns is another
CREATE TABLE ixp (id int PRIMARY KEY, a int, b text) PARTITION BY RANGE (id);
CREATE INDEX ixp_a ON ixp (a);
CREATE INDEX ixp_low ON ixp (lower(b)) WHERE a > 0;
CREATE TABLE ixp_1 (gone int, b text, a int, id int PRIMARY KEY);
ALTER TABLE ixp_1 DROP COLUMN gone;
CREATE UNIQUE INDEX ixp_1_u ON ixp_1 (b);
CREATE INDEX ixp_1_a ON ixp_1 (a);
CREATE INDEX ixp_1_low ON ixp_1 (lower(b)) WHERE a > 0;
CREATE INDEX ixp_1_low2 ON ixp_1 (lower(b)) WHERE a > 1;
CREATE INDEX ixp_1_own ON ixp_1 (a, b);
INSERT INTO ixp_1 (id, a, b) SELECT i, i % 7, 'B' || i FROM generate_series(1, 300) i;
DELETE FROM ixp_1 WHERE id % 10 = 3;
-- of two alike one is taken; and what is in files belongs as well
CREATE INDEX ixp_1_a2 ON ixp_1 USING btree (a);
SET nvm.default_index_method = btree;
CREATE INDEX ixp_1_low3 ON ixp_1 (lower(b)) WHERE a > 2;
RESET nvm.default_index_method;
CREATE INDEX ixp_low3 ON ONLY ixp (lower(b)) WHERE a > 2;
ALTER TABLE ixp ATTACH PARTITION ixp_1 FOR VALUES FROM (0) TO (1000);
SELECT * FROM methods WHERE index LIKE 'ixp\_1%' ORDER BY 1;
SELECT * FROM sound();
SET enable_seqscan = off;
EXPLAIN (COSTS OFF) SELECT id FROM ixp WHERE id = 5;
SELECT count(*), sum(id) FROM ixp WHERE id BETWEEN 20 AND 40;
SELECT id FROM ixp WHERE lower(b) = 'b5' AND a > 0;
RESET enable_seqscan;
INSERT INTO ixp VALUES (5, 1, 'x') ON CONFLICT (id) DO UPDATE SET b = excluded.b || '!' RETURNING *;
INSERT INTO ixp VALUES (5, 1, 'x') ON CONFLICT DO NOTHING RETURNING *;
INSERT INTO ixp VALUES (5, 1, 'x');

-- not if nothing comes of it
CREATE TABLE ixp_2 (id int PRIMARY KEY, a int, b text);
INSERT INTO ixp_2 VALUES (5000, 1, 'a');
ALTER TABLE ixp ATTACH PARTITION ixp_2 FOR VALUES FROM (1000) TO (2000);
CREATE TABLE ixp_3 (id int PRIMARY KEY, a bigint);
ALTER TABLE ixp ATTACH PARTITION ixp_3 FOR VALUES FROM (1000) TO (2000);
BEGIN;
ALTER TABLE ixp ATTACH PARTITION ixp_2 FOR VALUES FROM (5000) TO (6000);
SELECT * FROM methods WHERE index LIKE 'ixp\_2%' ORDER BY 1;
INSERT INTO ixp VALUES (5001, 1, 'b');
SAVEPOINT s;
ALTER TABLE ixp DETACH PARTITION ixp_2;
SELECT * FROM methods WHERE index LIKE 'ixp\_2%' ORDER BY 1;
ROLLBACK TO s;
INSERT INTO ixp VALUES (5001, 1, 'b') ON CONFLICT (id) DO NOTHING;
ROLLBACK;
SELECT * FROM methods WHERE index LIKE 'ixp\_2%' OR index LIKE 'ixp\_3%' ORDER BY 1;
INSERT INTO ixp_2 VALUES (5000, 1, 'b');
SELECT * FROM sound();
-- in the transaction that made it, and in a subtransaction that is rolled back
BEGIN;
CREATE TABLE ixp_4 (id int PRIMARY KEY, a int, b text);
INSERT INTO ixp_4 SELECT i, i, 'c' || i FROM generate_series(7000, 7100) i;
SAVEPOINT s;
ALTER TABLE ixp ATTACH PARTITION ixp_4 FOR VALUES FROM (7000) TO (8000);
INSERT INTO ixp VALUES (7500, 1, 'd');
ROLLBACK TO s;
INSERT INTO ixp_4 VALUES (7500, 2, 'e');
SELECT method, pool FROM methods WHERE index = 'ixp_4_pkey';
ALTER TABLE ixp ATTACH PARTITION ixp_4 FOR VALUES FROM (7000) TO (8000);
INSERT INTO ixp VALUES (7501, 1, 'd');
COMMIT;
SELECT method, pool FROM methods WHERE index = 'ixp_4_pkey';
SELECT * FROM ixp WHERE id > 7499 ORDER BY id;
INSERT INTO ixp VALUES (7500, 1, 'd');
SELECT * FROM sound();

-- an index of the partitioned table comes later
CREATE INDEX ixp_4_ab ON ixp_4 (a, b);
CREATE INDEX ixp_4_b ON ixp_4 (b);
CREATE INDEX ixp_ab ON ixp (a, b);
CREATE INDEX ixp_b ON ONLY ixp (b);
SELECT * FROM methods WHERE index IN ('ixp_1_own', 'ixp_4_ab', 'ixp_4_b', 'ixp_b') ORDER BY 1;
CREATE INDEX ixp_1_b ON ixp_1 (b);
ALTER INDEX ixp_b ATTACH PARTITION ixp_1_b;
ALTER INDEX ixp_b ATTACH PARTITION ixp_1_a;
ALTER INDEX ixp_b ATTACH PARTITION ixp_4_b;
ALTER INDEX ixp_b ATTACH PARTITION ixp_4_b;
SELECT * FROM methods WHERE index IN ('ixp_1_b', 'ixp_4_b', 'ixp_b') ORDER BY 1;
ALTER TABLE ixp_1 ADD CONSTRAINT ixp_1_ida UNIQUE (id, a);
ALTER TABLE ixp ADD CONSTRAINT ixp_ida UNIQUE (id, a);
SELECT * FROM methods WHERE index LIKE '%\_ida' ORDER BY 1;
SELECT * FROM sound();

-- a partition that is partitioned itself, and one that is heap's
CREATE TABLE ixp_sub (id int NOT NULL, a int, b text) PARTITION BY LIST (a);
CREATE TABLE ixp_sub_1 (id int NOT NULL, a int, b text);
CREATE INDEX ixp_sub_1_a ON ixp_sub_1 (a);
INSERT INTO ixp_sub_1 SELECT i, 1, 's' || i FROM generate_series(8000, 8050) i;
ALTER TABLE ixp_sub ATTACH PARTITION ixp_sub_1 FOR VALUES IN (1);
CREATE TABLE ixp_sub_2 PARTITION OF ixp_sub FOR VALUES IN (2) USING heap;
ALTER TABLE ixp ATTACH PARTITION ixp_sub FOR VALUES FROM (8000) TO (9000);
ALTER TABLE ixp DROP CONSTRAINT ixp_pkey, DROP CONSTRAINT ixp_ida;
ALTER TABLE ixp ATTACH PARTITION ixp_sub FOR VALUES FROM (8000) TO (9000);
SELECT * FROM methods WHERE index LIKE 'ixp\_sub\__\_a%' ORDER BY 1;
SELECT * FROM sound();

-- what CREATE INDEX CONCURRENTLY has left behind is made no valid one
CREATE TABLE ixq (id int, a int) PARTITION BY RANGE (id);
CREATE TABLE ixpq_1 PARTITION OF ixq FOR VALUES FROM (0) TO (10);
INSERT INTO ixq VALUES (1, 0);
CREATE INDEX CONCURRENTLY ixpq_1_div ON ixpq_1 ((id / a));
CREATE INDEX ixq_div ON ixq ((id / a));
SELECT * FROM methods WHERE index = 'ixpq_1_div';
TRUNCATE ixq;
REINDEX INDEX ixpq_1_div;
INSERT INTO ixq VALUES (1, 1);
SELECT * FROM methods WHERE index = 'ixpq_1_div';
SELECT * FROM sound();

-- a table that is to be rewritten
CREATE TABLE ixr (id int, a int, b text) PARTITION BY RANGE (id);
CREATE TABLE ixpr_1 PARTITION OF ixr FOR VALUES FROM (0) TO (1000);
CREATE INDEX ixpr_1_b ON ixpr_1 (b);
CREATE UNIQUE INDEX ixpr_1_u ON ixpr_1 (id, b);
ALTER TABLE ixpr_1 ADD CONSTRAINT ixpr_1_u UNIQUE USING INDEX ixpr_1_u;
INSERT INTO ixr SELECT i, i, 'b' || i FROM generate_series(1, 200) i;
ALTER TABLE ixr ALTER a TYPE bigint, ADD CONSTRAINT ixr_u UNIQUE (id, b);
ALTER TABLE ixr ALTER b TYPE varchar(10), ALTER a TYPE text;
SELECT * FROM methods WHERE index LIKE 'ixpr\_1%' ORDER BY 1;
SELECT * FROM sound();

-- not under a scan
CREATE TABLE ixp_5 (id int NOT NULL, a int, b text);
CREATE INDEX ixp_5_a ON ixp_5 (a);
INSERT INTO ixp_5 SELECT i, i, 'f' || i FROM generate_series(9000, 9020) i;
SET enable_seqscan = off; SET enable_bitmapscan = off;
BEGIN;
DECLARE c CURSOR FOR SELECT id FROM ixp_5 WHERE a > 9005;
FETCH 2 FROM c;
SAVEPOINT s;
ALTER TABLE ixp ATTACH PARTITION ixp_5 FOR VALUES FROM (9000) TO (9999);
ROLLBACK TO s;
FETCH 2 FROM c;
ALTER TABLE ixp_5 SET ACCESS METHOD heap;
ROLLBACK TO s;
FETCH 2 FROM c;
COMMIT;
RESET enable_seqscan; RESET enable_bitmapscan;
SELECT * FROM methods WHERE index LIKE 'ixp\_5%';
SELECT * FROM sound();

-- USING INDEX along with commands that build the index, drop it or read it
CREATE TABLE ixp_using (id int, p int, t varchar(10));
INSERT INTO ixp_using SELECT i, nullif(i - 1, 0), 't' || i FROM generate_series(1, 50) i;
CREATE UNIQUE INDEX ixp_u ON ixp_using (id);
CREATE UNIQUE INDEX ixp_t ON ixp_using (t);
BEGIN;
ALTER TABLE ixp_using ADD PRIMARY KEY USING INDEX ixp_u, ALTER id TYPE bigint;
SELECT index, method, pool FROM methods WHERE index LIKE 'ixp\_u%' OR index = 'ixp_t' ORDER BY 1;
SELECT * FROM sound();
ROLLBACK;
SELECT index, method, pool FROM methods WHERE index LIKE 'ixp\_u%' OR index = 'ixp_t' ORDER BY 1;
ALTER TABLE ixp_using ADD CONSTRAINT ixp_using_pk PRIMARY KEY USING INDEX ixp_u, ADD COLUMN r float DEFAULT random(),
	ADD FOREIGN KEY (p) REFERENCES ixp_using;
ALTER TABLE ixp_using ADD UNIQUE USING INDEX ixp_t, ALTER t TYPE varchar(20);
SELECT index, method, pool FROM methods WHERE index LIKE 'ixp\_u%' OR index = 'ixp_t' ORDER BY 1;
INSERT INTO ixp_using VALUES (1, 1, 'x');
INSERT INTO ixp_using VALUES (51, 52, 'x');
INSERT INTO ixp_using VALUES (51, 50, 't1');
SELECT id FROM ixp_using WHERE id = 7;
SELECT * FROM sound();

-- an index of nvm_btree keeps out of this
CREATE TABLE ixp_named (id int NOT NULL, a int, b text);
CREATE INDEX ixp_named_a ON ixp_named USING nvm_btree (a) WITH (persistence = none);
CREATE UNIQUE INDEX ixp_named_b ON ixp_named USING nvm_btree (b);
ALTER TABLE ixp_named ADD UNIQUE USING INDEX ixp_named_b;
INSERT INTO ixp_named VALUES (9500, 1, 'n');
ALTER TABLE ixp ATTACH PARTITION ixp_named FOR VALUES FROM (9500) TO (9600);
ALTER INDEX ixp_b ATTACH PARTITION ixp_named_b;
SELECT * FROM methods WHERE index LIKE 'ixp\_named%' ORDER BY 1;
INSERT INTO ixp VALUES (9501, 1, 'n');
SELECT * FROM sound();

DROP VIEW methods;
DROP FUNCTION sound;
DROP TABLE ixp, ixp_2, ixp_3, ixp_5, ixq, ixr, ixp_using;

--
-- Insertion into b-tree indexes, whichever they are by default: uniqueness, splits, cleaning, sizes of keys.
-- Each table is checked with all its indexes at its end.
--
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
SET default_table_access_method = nvm;
-- a server without it takes the setting for one that it does not know
SELECT set_config('nvm.' || 'default_index_method', 'nvm_btree', false);
CREATE SCHEMA btree_insert;
SET search_path = btree_insert, public;

-- how an index and the table agree
CREATE FUNCTION findings(t regclass) RETURNS SETOF text LANGUAGE sql AS
	'SELECT f::text FROM nvm.check(t, true) f';

--
-- uniqueness
--
CREATE TABLE u (a int, b text, c int);
CREATE UNIQUE INDEX u_a ON u (a);
CREATE UNIQUE INDEX u_bc ON u (b, c) NULLS NOT DISTINCT;
INSERT INTO u VALUES (1, 'x', 1), (2, 'x', 2), (NULL, 'y', 1), (NULL, 'z', NULL);
INSERT INTO u VALUES (2, 'w', 1);
INSERT INTO u VALUES (3, 'x', 2);
INSERT INTO u VALUES (3, 'z', NULL);
INSERT INTO u VALUES (3, NULL, NULL);
INSERT INTO u VALUES (4, NULL, NULL);
INSERT INTO u VALUES (2, 'v', 1) ON CONFLICT DO NOTHING;
INSERT INTO u VALUES (2, 'v', 1) ON CONFLICT (a) DO UPDATE SET c = u.c + 100;
INSERT INTO u VALUES (5, 'z', NULL) ON CONFLICT (b, c) DO UPDATE SET a = 50;
BEGIN;
INSERT INTO u VALUES (6, 'q', 1);
SAVEPOINT s;
INSERT INTO u VALUES (7, 'q', 2);
ROLLBACK TO s;
INSERT INTO u VALUES (7, 'q', 2);
DELETE FROM u WHERE a = 7;
INSERT INTO u VALUES (7, 'q', 2);
COMMIT;
-- in one statement, with itself
UPDATE u SET a = a + 1 WHERE a IN (1, 2, 6, 7);
UPDATE u SET a = a + 100 WHERE a IN (1, 2, 6, 7);
INSERT INTO u SELECT 9, 'double', g FROM generate_series(1, 2) g;
SELECT * FROM u ORDER BY a, b, c;
SELECT * FROM findings('u');

-- checked at the end of the statement, and of the transaction
CREATE TABLE d (a int UNIQUE DEFERRABLE INITIALLY IMMEDIATE, b int);
INSERT INTO d SELECT g, g FROM generate_series(1, 1000) g;
UPDATE d SET a = a + 1;
UPDATE d SET a = 5 WHERE a = 6;
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
UPDATE d SET a = 5 WHERE a = 6;
UPDATE d SET a = 6 WHERE b = 4;
COMMIT;
BEGIN;
SET CONSTRAINTS ALL DEFERRED;
INSERT INTO d VALUES (5, 0);
COMMIT;
SELECT count(*), count(DISTINCT a), min(a), max(a) FROM d;
SELECT * FROM findings('d');

--
-- nulls in a unique index: distinct, and merged like equal keys of any other index
--
CREATE TABLE nu (a int, b int);
CREATE UNIQUE INDEX nu_a ON nu (a);
CREATE UNIQUE INDEX nu_ba ON nu (b, a);
INSERT INTO nu SELECT CASE WHEN g % 10 = 0 THEN g END, g % 20 FROM generate_series(1, 20000) g;
INSERT INTO nu VALUES (20, 0);
INSERT INTO nu VALUES (20, 0) ON CONFLICT (a) DO UPDATE SET b = -1;
SELECT b FROM nu WHERE a = 20;
DELETE FROM nu WHERE a IS NULL AND b % 3 = 0;
VACUUM nu;
INSERT INTO nu SELECT NULL, g % 20 FROM generate_series(1, 3000) g;
UPDATE nu SET b = b WHERE a IS NULL AND b = 7;
SELECT * FROM findings('nu');
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SELECT count(*), count(DISTINCT ctid) FROM nu WHERE a IS NULL;
SELECT count(*) FROM nu WHERE b = 7 AND a IS NULL;
RESET enable_seqscan;
RESET enable_bitmapscan;
INSERT INTO nu VALUES (100, 1);
-- not distinct: there can be but one
CREATE UNIQUE INDEX nu_one ON nu (a) NULLS NOT DISTINCT;
DELETE FROM nu WHERE a IS NULL;
CREATE UNIQUE INDEX nu_one ON nu (a) NULLS NOT DISTINCT;
INSERT INTO nu VALUES (NULL, 1);
INSERT INTO nu VALUES (NULL, 2);
INSERT INTO nu VALUES (NULL, 2) ON CONFLICT (a) DO NOTHING;
SELECT * FROM nu WHERE a IS NULL;
SELECT * FROM findings('nu');
DROP TABLE nu;

--
-- sizes of keys
--
CREATE TABLE big (n int, a text COLLATE "C");
ALTER TABLE big ALTER a SET STORAGE EXTERNAL;
CREATE INDEX big_a ON big (a);
CREATE FUNCTION long(n int) RETURNS text LANGUAGE sql IMMUTABLE AS
	$$ SELECT substr(string_agg(md5(g::text), ''), 1, n) FROM generate_series(1, 90) g $$;
INSERT INTO big VALUES (1, long(2692));
\set VERBOSITY terse
INSERT INTO big VALUES (2, long(2693));
\set VERBOSITY default
DELETE FROM big;
VACUUM big;
-- equal ones, also between others
INSERT INTO big SELECT g, long(2690) FROM generate_series(1, 60) g;
DELETE FROM big WHERE n % 2 = 0 OR n % 5 = 0;
VACUUM big;
INSERT INTO big SELECT 1000 + g, long(2690) FROM generate_series(1, 100) g;
SELECT * FROM findings('big');
-- ascending, descending, mixed with short ones
INSERT INTO big SELECT g, long(2670) || to_char(g, 'FM000000') FROM generate_series(1, 100) g;
INSERT INTO big SELECT g, long(2660) || to_char(g, 'FM000000') FROM generate_series(100, 1, -1) g;
INSERT INTO big SELECT g, substr(long(2500), 1, g * 37 % 2501) FROM generate_series(1, 1000) g;
SELECT * FROM findings('big');
SET enable_seqscan = off;
SELECT count(*), count(DISTINCT a), sum(length(a)) FROM (SELECT a FROM big WHERE a >= '' ORDER BY a OFFSET 0) x;
SET enable_seqscan = on;
SET enable_indexscan = off;
SET enable_indexonlyscan = off;
SELECT count(*), count(DISTINCT a), sum(length(a)) FROM (SELECT a FROM big WHERE a >= '' OFFSET 0) x;
RESET enable_seqscan;
RESET enable_indexscan;
RESET enable_indexonlyscan;

--
-- splits where keys come in any order, of one and several columns
--
CREATE TABLE m (a int, b text, c numeric, d int8);
CREATE INDEX m_ab ON m (a DESC NULLS FIRST, b);
CREATE INDEX m_c ON m (c) INCLUDE (a);
CREATE INDEX m_d ON m (d NULLS FIRST);
CREATE INDEX m_expr ON m ((a % 7), (length(b))) WHERE d IS NOT NULL;
INSERT INTO m SELECT nullif(g * 7919 % 1009, 0), repeat('b', g % 40), g % 13, nullif(g % 500, 7)
	FROM generate_series(1, 4000) g;
INSERT INTO m SELECT g % 50, 'series', g / 50, g FROM generate_series(1, 2000) g;
INSERT INTO m SELECT 5000 - g, NULL, NULL, -g FROM generate_series(1, 2000) g;
SELECT * FROM findings('m');
DELETE FROM m WHERE d % 3 = 0;
VACUUM m;
INSERT INTO m SELECT g, 'again', g, g FROM generate_series(1, 1000) g;
SELECT * FROM findings('m');
VACUUM m;
SELECT * FROM findings('m');

-- without merging of equal keys, and with a fillfactor
CREATE INDEX m_nodup ON m (c) WITH (deduplicate_items = off, fillfactor = 50);
INSERT INTO m SELECT g, 'more', g % 3, g FROM generate_series(1, 1500) g;
ALTER INDEX m_nodup SET (deduplicate_items = on);
INSERT INTO m SELECT g, 'more', g % 3, g FROM generate_series(1, 1500) g;
ALTER INDEX m_nodup SET (deduplicate_items = off);
INSERT INTO m SELECT g, 'more', g % 3, g FROM generate_series(1, 1500) g;
SELECT * FROM findings('m');

--
-- a failing operator class leaves nothing locked
--
CREATE FUNCTION cmp_or_fail(int, int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
	IF $1 = 666 OR $2 = 666 THEN RAISE 'cannot compare'; END IF;
	RETURN btint4cmp($1, $2);
END $$;
CREATE OPERATOR CLASS fail_ops FOR TYPE int USING btree AS
	OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
	FUNCTION 1 cmp_or_fail(int, int);
CREATE TABLE f (a int);
CREATE INDEX f_a ON f (a fail_ops);
INSERT INTO f SELECT g * 7919 % 1009 FROM generate_series(1, 500) g WHERE g * 7919 % 1009 <> 666;
INSERT INTO f VALUES (666);
INSERT INTO f SELECT g * 7919 % 1009 FROM generate_series(501, 1000) g WHERE g * 7919 % 1009 <> 666;
SELECT count(*) FROM f;
SELECT * FROM findings('f');

SELECT c::text AS finding FROM nvm.check_pool() c ORDER BY 1;
SET client_min_messages = warning;
DROP SCHEMA btree_insert CASCADE;

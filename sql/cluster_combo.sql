-- CLUSTER copies rows of its own transaction, whose deletion was rolled back:
-- they have combo command ids, more than there have been commands.
SET client_min_messages = warning;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
RESET client_min_messages;
CREATE TABLE cluster_combo (id int PRIMARY KEY, v int DEFAULT 0) USING nvm;
BEGIN;
DO $$BEGIN FOR i IN 1..100 LOOP INSERT INTO cluster_combo VALUES (i); END LOOP; END$$;
SAVEPOINT s;
DELETE FROM cluster_combo;
ROLLBACK TO s;
DELETE FROM cluster_combo;
ROLLBACK TO s;
DELETE FROM cluster_combo;
ROLLBACK TO s;
DELETE FROM cluster_combo;
ROLLBACK TO s;
CLUSTER cluster_combo USING cluster_combo_pkey;
SELECT count(*), sum(id) FROM cluster_combo;
UPDATE cluster_combo SET v = 1;
INSERT INTO cluster_combo VALUES (1) ON CONFLICT (id) DO UPDATE SET v = 2;
SELECT count(*), sum(v) FROM cluster_combo;
COMMIT;
SELECT count(*), sum(v) FROM cluster_combo;
-- the same with an end that stays
BEGIN;
DO $$BEGIN FOR i IN 101..150 LOOP INSERT INTO cluster_combo VALUES (i); END LOOP; END$$;
DECLARE c CURSOR FOR SELECT count(*) FROM cluster_combo;
DELETE FROM cluster_combo WHERE id > 140;
FETCH c;
CLOSE c;
SAVEPOINT s;
UPDATE cluster_combo SET v = v + 1 WHERE id > 120;
ROLLBACK TO s;
CLUSTER cluster_combo;
SELECT count(*), sum(v) FROM cluster_combo;
COMMIT;
SELECT count(*), sum(v) FROM cluster_combo;
DROP TABLE cluster_combo;

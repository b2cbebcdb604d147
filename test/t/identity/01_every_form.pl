# Copyright (c) 2026, pg_nvm contributors

# DDL of every form over tables with every kind of index: indexes that say btree stay
# ours, with all entries, and become PostgreSQL's own with a table that leaves us.

use strict;
use warnings;

use NvmTest;
use NvmWalk;
use NvmWalkForms;
use Test::More;

my $node = NvmWalk::node(identity => 'btree');

walk_forms();

# a session that has the setting off: what is ours stays so, whatever is built
my $off = 'SET nvm.index_identity = nvm_btree;';
my $same = "SET nvm.index_identity = btree; SELECT problems(); $off";

script($_, "CALL make(); CALL note(); $off $_; $same INSERT INTO w.t (id, v, n, body, d) SELECT b + i, 'w' || b + i, i, 'after', -b - i FROM generate_series(1, 50) i, (SELECT max(id) AS b FROM w.t) m; $same DROP SCHEMA w CASCADE")
  foreach 'REINDEX TABLE w.t', 'REINDEX TABLE CONCURRENTLY w.t', 'TRUNCATE w.t CASCADE; INSERT INTO w.t (id) VALUES (1)', 'VACUUM FULL w.t', 'CLUSTER w.t USING t_v',
  'ALTER TABLE w.t ALTER v TYPE varchar(20), ALTER n TYPE bigint', 'ALTER TABLE w.child DROP CONSTRAINT child_t_fkey; ALTER TABLE w.t SET UNLOGGED', 'ALTER INDEX w.t_v SET TABLESPACE there';

# tables that are large enough for workers of a build, which must be ours
my $large = 'SET min_parallel_table_scan_size = 0; SET max_parallel_maintenance_workers = 2;';
script("with workers, $_", "CALL make(); CALL note(); INSERT INTO w.t (id, v, n, body, d) SELECT i, 'w' || i, i, 'large', -i FROM generate_series(1000, 20000) i; SET nvm.index_identity = nvm_btree; $large $_; $same DROP SCHEMA w CASCADE")
  foreach 'REINDEX INDEX w.t_v', 'VACUUM FULL w.t', 'REINDEX INDEX CONCURRENTLY w.t_v';

# an index of PostgreSQL's own is left alone by what scans a table as a build does
script('amcheck of a btree index that is not ours', "CREATE EXTENSION amcheck; CALL make(); SET nvm.default_index_method = btree; CREATE INDEX genuine ON w.t (d, n); CREATE INDEX twin ON w.t (d, n); RESET nvm.default_index_method;
	CALL note(); SELECT 'check ' || bt_index_check('w.genuine', true)::text WHERE false; DO \$\$BEGIN PERFORM bt_index_check('w.genuine', true); PERFORM bt_index_parent_check('w.twin', true); END\$\$; SELECT problems(); DROP SCHEMA w CASCADE");

# a trigger reads what TRUNCATE has just built
script('a trigger of TRUNCATE', "CALL make(); CREATE FUNCTION w.refill() RETURNS trigger LANGUAGE plpgsql AS \$\$BEGIN INSERT INTO w.t (id, v) SELECT i, i FROM generate_series(1, 3000) i; SET LOCAL enable_seqscan = off;
	SET LOCAL max_parallel_workers_per_gather = 2; SET LOCAL parallel_setup_cost = 0; SET LOCAL parallel_tuple_cost = 0; SET LOCAL min_parallel_table_scan_size = 0; SET LOCAL min_parallel_index_scan_size = 0;
	IF (SELECT count(a.v) FROM w.t a JOIN w.t b ON a.id = b.id WHERE a.id > 0) <> 3000 THEN RAISE 'rows are missing'; END IF; RETURN NULL; END\$\$;
	CREATE TRIGGER r AFTER TRUNCATE ON w.t EXECUTE FUNCTION w.refill(); \\connect
	TRUNCATE w.t CASCADE; SELECT 'not there' FROM w.t HAVING count(*) <> 3000; \\connect
	BEGIN; SAVEPOINT a; REINDEX TABLE w.t; ROLLBACK TO a; SAVEPOINT b; SELECT problems(); COMMIT; SELECT problems(); DROP SCHEMA w CASCADE");

# ON COMMIT: a table that is emptied, and belongs to one that is dropped
script('ON COMMIT DELETE ROWS and ON COMMIT DROP', 'BEGIN; CREATE TEMP TABLE p (a int) USING nvm ON COMMIT DROP; CREATE TEMP TABLE c (PRIMARY KEY (a)) INHERITS (p) USING nvm ON COMMIT DELETE ROWS; INSERT INTO c VALUES (1); COMMIT;
	CREATE TEMP TABLE tt (id int PRIMARY KEY) USING nvm ON COMMIT DELETE ROWS; BEGIN; INSERT INTO tt VALUES (1); COMMIT; BEGIN; INSERT INTO tt VALUES (1), (2); SET LOCAL enable_seqscan = off; SELECT id FROM tt WHERE id = 3; COMMIT; SELECT problems()');

$node->safe_psql('postgres', 'DROP SCHEMA IF EXISTS w CASCADE; CALL make(); CALL note(); VACUUM FREEZE; SELECT count(*) FROM nvm.drop_orphans()');
script('nothing of ours is taken for an orphan', 'SELECT problems()');

$node->stop;
done_testing();

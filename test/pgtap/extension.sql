-- What the extension installs, and who may use it.
\set ON_ERROR_STOP 1
BEGIN;
SELECT no_plan();

SELECT has_extension('pg_nvm');
SELECT has_schema('nvm');
SELECT is(amtype, 't', 'nvm is a table access method')
  FROM pg_am WHERE amname = 'nvm';
SELECT is(amtype, 'i', 'nvm_btree is an index access method')
  FROM pg_am WHERE amname = 'nvm_btree';
SELECT function_returns('nvm', 'check', ARRAY['regclass', 'boolean'], 'setof record');
SELECT function_returns('nvm', 'check_pool', ARRAY[]::text[], 'setof record');
SELECT has_view('nvm', v, 'view nvm.' || v) FROM unnest(ARRAY['pool', 'recovery', 'gaps', 'relations', 'activity']) v;

-- every object of the extension is described
SELECT is_empty($$
	SELECT pg_describe_object(d.classid, d.objid, 0)
	  FROM pg_depend d
	 WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
	   AND d.refobjid = (SELECT oid FROM pg_extension WHERE extname = 'pg_nvm')
	   AND d.classid IN ('pg_proc'::regclass, 'pg_class'::regclass, 'pg_am'::regclass)
	   AND obj_description(d.objid, (SELECT relname FROM pg_class WHERE oid = d.classid)::name) IS NULL $$,
	'every function, view and access method has a comment');

-- every setting is described, has a context, and can be shown
SELECT set_has($$ SELECT name FROM pg_settings WHERE name LIKE 'nvm.%' $$,
	$$ VALUES ('nvm.pool_directory'), ('nvm.pool_max_size'), ('nvm.persist_method'),
			  ('nvm.emulated_flush_delay'), ('nvm.redo_limit'), ('nvm.failpoint') $$,
	'the settings are there');
SELECT is_empty($$ SELECT name FROM pg_settings WHERE name LIKE 'nvm.%' AND coalesce(short_desc, '') = '' $$,
	'every setting is described');
SELECT is_empty($$ SELECT name FROM pg_settings
	WHERE name IN ('nvm.pool_directory', 'nvm.pool_max_size', 'nvm.persist_method') AND context <> 'postmaster' $$,
	'what the pool is mapped with is fixed at start');
SELECT throws_ok('SET nvm.pool_max_size = ''1GB''', '55P02');
SELECT throws_ok('SET nvm.no_such_setting = 1', '42602');

-- privileges
CREATE ROLE nvm_nobody;
CREATE ROLE nvm_monitor IN ROLE pg_monitor;
CREATE TABLE nvm_t (a int) USING nvm;
SET LOCAL ROLE nvm_nobody;
SELECT throws_ok('SELECT * FROM nvm.check_pool()', '42501');
SELECT throws_ok('SELECT * FROM nvm.check(''public.nvm_t'')', '42501');
SELECT throws_ok('SELECT * FROM nvm.pool', '42501');
SELECT throws_ok('SET nvm.failpoint = ''commit-data:crash''', '42501');
SET LOCAL ROLE nvm_monitor;
SELECT lives_ok('SELECT * FROM nvm.check_pool()');
SELECT lives_ok('SELECT * FROM ' || v) FROM unnest(ARRAY['nvm.pool', 'nvm.recovery', 'nvm.gaps', 'nvm.relations', 'nvm.activity', 'nvm.transactions', 'nvm.stat_wbl', 'nvm.index_rebuilds']) v;
RESET ROLE;

-- the views tell of the pool
SELECT is(status, 'open', 'the pool is open') FROM nvm.pool;
SELECT ok(used + free <= size AND size <= max_size AND free >= 0, 'sizes of the pool agree') FROM nvm.pool;
INSERT INTO nvm_t SELECT generate_series(1, 1000);
SELECT ok(blocks > 0 AND bytes >= blocks * 8192, 'the table is listed with its size')
  FROM nvm.relations WHERE relation = 'nvm_t'::regclass;
SELECT is_empty('SELECT * FROM nvm.check(''nvm_t'')', 'the table is in order');
SELECT is_empty('SELECT * FROM nvm.check_pool()', 'the pool is in order');

-- what the checker refuses
SELECT throws_ok('SELECT * FROM nvm.check(''pg_class'')', '42809');
SELECT is_empty('SELECT * FROM nvm.check(NULL)', 'check(NULL) is empty');

SELECT * FROM finish();
ROLLBACK;

-- What CREATE EXTENSION makes: objects, comments, privileges, columns, settings.

BEGIN;
SELECT no_plan();

SELECT has_extension('pg_nvm');
SELECT has_schema('nvm');
SELECT results_eq(
	$$SELECT amtype::text, amhandler::regproc::text FROM pg_am WHERE amname = 'nvm'$$,
	$$VALUES ('t', 'nvm.nvm_tableam_handler')$$, 'access method nvm is of type table');
SELECT results_eq(
	$$SELECT amtype::text, amhandler::regproc::text FROM pg_am WHERE amname = 'nvm_vlog'$$,
	$$VALUES ('t', 'nvm.nvm_vlog_handler')$$, 'access method nvm_vlog is of type table');
SELECT results_eq(
	$$SELECT amtype::text, amhandler::regproc::text FROM pg_am WHERE amname = 'nvm_cmdlog'$$,
	$$VALUES ('t', 'nvm.nvm_cmdlog_handler')$$, 'access method nvm_cmdlog is of type table');
SELECT results_eq(
	$$SELECT amtype::text, amhandler::regproc::text FROM pg_am WHERE amname = 'nvm_btree'$$,
	$$VALUES ('i', 'nvm.nvm_btree_handler')$$, 'access method nvm_btree is of type index');

-- functions
SELECT has_function('nvm', f, ARRAY['internal']) FROM unnest(ARRAY['nvm_tableam_handler', 'nvm_vlog_handler', 'nvm_cmdlog_handler', 'nvm_btree_handler']) f;
SELECT has_function('nvm', 'mirror_operator_classes', ARRAY[]::text[]);
SELECT has_function('nvm', f, ARRAY[]::text[])
FROM unnest(ARRAY['check_pool', 'pool_info', 'recovery_info', 'gaps_info', 'relations_info', 'activity_info', 'transactions_info', 'stat_wbl_info', 'index_rebuilds_info', 'memory_info', 'log_info', 'log_directories_info', 'log_recovery_info', 'checkpoints_info', 'checkpoint', 'commands_info', 'command_reasons_info', 'reset_commands', 'replay_info', 'replayed_databases_info', 'resume_replay', 'end_replay']) f;
SELECT has_function('nvm', 'check', ARRAY['regclass', 'boolean']);
SELECT has_function('nvm', 'size', ARRAY['regclass']);
SELECT has_function('nvm', 'partition_table', ARRAY['regclass', 'name']);
SELECT has_function('nvm', f, ARRAY['regclass']) FROM unnest(ARRAY['unpartition_table', 'partition_info']) f;
SELECT has_function('nvm', 'register_command', ARRAY['regprocedure', 'text']);
SELECT has_function('nvm', f, ARRAY['regprocedure']) FROM unnest(ARRAY['unregister_command', 'promote_command', 'demote_command', 'inspect_command']) f;
SELECT has_function('nvm', 'command_mode_info', ARRAY['oid']);
SELECT has_function('nvm', 'rehearse', ARRAY['integer', 'boolean']);
SELECT has_function('nvm', 'replay_command_log', ARRAY['timestamp with time zone', 'name', 'integer']);
SELECT function_lang_is('nvm'::name, p.proname::name, 'c'::name, p.proname || ' is in C')
FROM pg_proc p WHERE pronamespace = 'nvm'::regnamespace ORDER BY proname;
SELECT is_empty(
	$$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'nvm'::regnamespace
	  AND obj_description(oid, 'pg_proc') IS NULL$$, 'every function has a comment');
SELECT is_empty(
	$$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'nvm'::regnamespace
	  AND prorettype NOT IN ('table_am_handler'::regtype, 'index_am_handler'::regtype) AND has_function_privilege('public', oid, 'EXECUTE')
	  AND proname NOT IN ('unregister_command', 'partition_table', 'unpartition_table', 'note_function', 'tape', 'replayed')$$,
	'no function is for everybody, except those that ask who owns the object, and what plans have');
SELECT is_empty(
	$$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'nvm'::regnamespace AND prosecdef$$,
	'no function runs as its owner');
SELECT is_empty(
	$$SELECT oid::regprocedure FROM pg_proc WHERE pronamespace = 'nvm'::regnamespace AND proparallel = 's'
	  AND prorettype NOT IN ('table_am_handler'::regtype, 'index_am_handler'::regtype)
	  AND proname NOT IN ('note_function', 'tape')$$, 'no function looks at the pool in parallel; what plans have must not keep them from it');

-- views
SELECT views_are('nvm', ARRAY['pool', 'recovery', 'gaps', 'relations', 'activity', 'transactions', 'stat_wbl',
	'index_rebuilds', 'memory', 'log', 'log_directories', 'log_recovery', 'checkpoints',
	'commands', 'command_reasons', 'command_modes', 'partitioned_tables', 'lanes', 'replay', 'replayed_databases']);
SELECT columns_are('nvm', 'command_modes', ARRAY['database', 'mode', 'armed', 'ddl', 'covered']);
SELECT columns_are('nvm', 'replayed_databases', ARRAY['database', 'state', 'transactions', 'not_replayed', 'log_position', 'call', 'problem', 'detail']);
SELECT columns_are('nvm', 'replay', ARRAY['phase', 'database', 'passed', 'started', 'ended', 'workers', 'base_rows',
	'log_bytes', 'log_bytes_total', 'transactions', 'calls', 'value_rows', 'many_lanes', 'alone', 'replay_seconds', 'problem']);
SELECT is_empty(
	$$SELECT oid::regclass FROM pg_class WHERE relnamespace = 'nvm'::regnamespace AND relkind = 'v'
	  AND obj_description(oid, 'pg_class') IS NULL$$, 'every view has a comment');
SELECT columns_are('nvm', 'pool', ARRAY['status', 'reason', 'hint', 'directory', 'persist_method',
	'medium_is_volatile', 'size', 'used', 'free', 'max_size', 'incarnation', 'uuid', 'was_clean', 'open_us',
	'ignored_standbys', 'last_directory']);
SELECT columns_are('nvm', 'recovery', ARRAY['losers', 'in_doubt', 'resolved', 'gaps', 'recovery_us', 'resolve_us']);
SELECT columns_are('nvm', 'gaps', ARRAY['slot', 'counter']);
SELECT columns_are('nvm', 'relations', ARRAY['id', 'database', 'relation', 'relfilenode', 'persistence', 'ended',
	'blocks', 'extents', 'bytes', 'large_values', 'live_rows', 'dead_versions', 'kind', 'creation']);
SELECT columns_are('nvm', 'activity', ARRAY['commits', 'mixed_commits', 'aborts', 'helped', 'slots_used', 'gaps',
	'collector_sweeps', 'collector_blocks', 'collector_total', 'gaps_collected', 'commit_record_bytes', 'redo_checkpoints']);
SELECT columns_are('nvm', 'transactions', ARRAY['slot', 'counter', 'pid', 'xid', 'state', 'gid', 'since']);
SELECT columns_are('nvm', 'stat_wbl', ARRAY['commits', 'mixed_commits', 'aborts', 'prepared', 'helped', 'flushes',
	'fences', 'bytes', 'syncs', 'sync_waits', 'syncs_joined']);
SELECT columns_are('nvm', 'log', ARRAY['state', 'reason', 'directory', 'generation', 'inserted', 'persistent', 'files',
	'file_bytes', 'records', 'bytes', 'syncs', 'waits', 'wait_us']);
SELECT columns_are('nvm', 'memory', ARRAY['size', 'used', 'max_size', 'reserve', 'claimed']);
SELECT columns_are('nvm', 'log_directories', ARRAY['directory', 'state', 'reason', 'is_current', 'position', 'files', 'file_bytes',
	'bytes', 'syncs', 'waits', 'wait_us']);
SELECT columns_are('nvm', 'log_recovery', ARRAY['state', 'reason', 'files', 'bytes', 'bytes_total', 'rows', 'tables', 'tables_total', 'workers', 'started', 'finished', 'mb_per_s']);
SELECT columns_are('nvm', 'checkpoints', ARRAY['number', 'state', 'started', 'finished', 'begin_position', 'rows', 'bytes',
	'files', 'blocks_done', 'blocks_total']);
SELECT columns_are('nvm', 'commands', ARRAY['function', 'lanes', 'state', 'problem', 'calls', 'replayable', 'by_values',
	'unlogged', 'reasons', 'last_reason', 'last_object', 'last_query', 'last_time', 'mean_ms',
	'call_bytes', 'value_bytes', 'rehearsed', 'replay_rate', 'alone']);
SELECT columns_are('nvm', 'command_reasons', ARRAY['function', 'reason', 'transactions', 'last_object', 'last_place',
	'last_line', 'last_statement', 'last_query', 'last_time']);
SELECT columns_are('nvm', 'partitioned_tables', ARRAY['relation', 'column', 'state', 'why']);
SELECT columns_are('nvm', 'lanes', ARRAY['lane', 'target', 'mode', 'granted', 'pid', 'waitstart']);
SELECT isnt(obj_description('nvm'::regnamespace, 'pg_namespace'), NULL, 'the schema has a comment');
SELECT isnt(obj_description(oid, 'pg_am'), NULL, amname || ' has a comment') FROM pg_am WHERE amname IN ('nvm', 'nvm_vlog', 'nvm_cmdlog', 'nvm_btree');

-- who may look
SELECT is(has_table_privilege('public', v, 'SELECT'), false, v || ' is not for everybody')
FROM unnest(ARRAY['nvm.pool', 'nvm.recovery', 'nvm.gaps', 'nvm.relations', 'nvm.activity', 'nvm.transactions', 'nvm.stat_wbl', 'nvm.index_rebuilds', 'nvm.memory', 'nvm.log', 'nvm.log_directories', 'nvm.log_recovery', 'nvm.checkpoints', 'nvm.commands', 'nvm.command_reasons', 'nvm.partitioned_tables', 'nvm.lanes', 'nvm.replay', 'nvm.replayed_databases']) v;
SELECT is(has_table_privilege('pg_monitor', v, 'SELECT'), true, v || ' is for pg_monitor')
FROM unnest(ARRAY['nvm.pool', 'nvm.recovery', 'nvm.gaps', 'nvm.relations', 'nvm.activity', 'nvm.transactions', 'nvm.stat_wbl', 'nvm.index_rebuilds', 'nvm.memory', 'nvm.log', 'nvm.log_directories', 'nvm.log_recovery', 'nvm.checkpoints', 'nvm.commands', 'nvm.command_reasons', 'nvm.partitioned_tables', 'nvm.lanes', 'nvm.replay', 'nvm.replayed_databases']) v;
SELECT is(has_schema_privilege('public', 'nvm', 'CREATE'), false, 'nobody else creates in the schema');
CREATE ROLE nvm_nobody;
CREATE ROLE nvm_watcher IN ROLE pg_monitor;
SET ROLE nvm_nobody;
SELECT throws_ok('SELECT * FROM nvm.pool', '42501');
SELECT throws_ok('SELECT * FROM nvm.check_pool()', '42501');
RESET ROLE;
SET ROLE nvm_watcher;
SELECT lives_ok('SELECT * FROM nvm.' || v)
FROM unnest(ARRAY['pool', 'recovery', 'gaps', 'relations', 'activity', 'log', 'log_directories', 'log_recovery', 'check_pool()', 'commands', 'partitioned_tables', 'lanes']) v;
SELECT throws_ok('SELECT * FROM nvm.check(''pg_class'')', '42501');
RESET ROLE;

-- what the views say of a server at work
SELECT results_eq('SELECT status, reason, hint FROM nvm.pool', $$VALUES ('open', NULL::text, NULL::text)$$, 'the pool is open');
SELECT ok(used > 0 AND used + free = size AND size <= max_size, 'its sizes add up') FROM nvm.pool;
SELECT ok(incarnation > 0, 'it has an incarnation') FROM nvm.pool;
SELECT isnt(uuid, NULL, 'and a uuid') FROM nvm.pool;
SELECT results_eq('SELECT losers, in_doubt, gaps FROM nvm.recovery', 'VALUES (0::bigint, 0::bigint, 0::bigint)', 'nothing was lost');
SELECT is_empty('SELECT * FROM nvm.gaps', 'there are no gaps');
CREATE TABLE public.seen (a int) USING nvm;
INSERT INTO public.seen SELECT generate_series(1, 1000);
SELECT results_eq(
	$$SELECT database, relation::text, persistence, ended, blocks > 0, bytes >= blocks * 8192 FROM nvm.relations
	  WHERE relation = 'public.seen'::regclass$$,
	$$SELECT current_database(), 'seen', 'p'::"char", false, true, true$$, 'a table shows in nvm.relations');
SELECT is_empty($$SELECT * FROM nvm.check('public.seen')$$);
SELECT is_empty('SELECT * FROM nvm.check_pool()');

-- a log that begins with the first table
SELECT results_eq('SELECT state, reason, generation, files FROM nvm.log',
	$$VALUES ('not begun', NULL::text, NULL::bigint, NULL::bigint)$$, 'no table in memory: the log has not begun');
SELECT is_empty($$SELECT * FROM pg_ls_dir('.') f WHERE f = 'pg_nvm_log'$$, 'and has no directory');
CREATE TEMP TABLE in_memory_temp (a int) USING nvm_vlog;
SELECT results_eq('SELECT state FROM nvm.log', $$VALUES ('not begun')$$, 'a temporary one does not begin it');
CREATE UNLOGGED TABLE public.in_memory_unlogged (a int) USING nvm_vlog;
CREATE TABLE public.in_memory (a int) USING nvm_vlog;
SELECT results_eq('SELECT state, reason, generation, inserted = persistent, files, file_bytes FROM nvm.log',
	$$VALUES ('on', NULL::text, 1::bigint, true, 1::bigint, 16777216::bigint)$$, 'the first other one does');
SELECT results_eq('SELECT state, reason, is_current, position > 0, files, file_bytes, syncs > 0 FROM nvm.log_directories',
	$$VALUES ('on', NULL::text, true, NULL::boolean, 1::bigint, 16777216::bigint, false)$$, 'in one directory');
SELECT results_eq('SELECT state, reason, rows, started FROM nvm.log_recovery',
	$$VALUES ('whole', NULL::text, 0::bigint, NULL::timestamptz)$$, 'nothing had to be rebuilt');

-- settings: name, context, unit, range, boot value
SELECT results_eq(
	$$SELECT name::text, context::text, unit::text, min_val::text, max_val::text, boot_val::text
	  FROM pg_settings WHERE name LIKE 'nvm.%' ORDER BY name$$,
	$$VALUES ('nvm.checkpoint_file_size', 'sighup', 'MB', '1', '65536', '256'),
	  ('nvm.checkpoint_interval', 'sighup', 's', '0', '86400', '300'),
	  ('nvm.checkpoint_log_size', 'sighup', 'MB', '1', '1073741824', '1024'),
	  ('nvm.checkpoint_rate', 'sighup', NULL, '0', '1048576', '0'),
	  ('nvm.collect_gaps', 'sighup', NULL, NULL, NULL, 'on'),
	  ('nvm.collector_delay', 'sighup', 'ms', '0', '10000', '1'),
	  ('nvm.default_index_method', 'user', NULL, NULL, NULL, 'nvm_btree'),
	  ('nvm.emulated_flush_delay', 'superuser', NULL, '0', '1000000000', '0'),
	  ('nvm.failpoint', 'superuser', NULL, NULL, NULL, ''),
	  ('nvm.failpoint_seed', 'superuser', NULL, '0', '2147483647', '0'),
	  ('nvm.horizon_naptime', 'sighup', 'ms', '10', '60000', '200'),
	  ('nvm.huge_pages', 'postmaster', NULL, NULL, NULL, 'try'),
	  ('nvm.huge_pages_status', 'internal', NULL, NULL, NULL, 'off'),
	  ('nvm.ignore_damage', 'superuser', NULL, NULL, NULL, 'off'),
	  ('nvm.index_identity', 'user', NULL, NULL, NULL, 'btree'),
	  ('nvm.index_rebuild_workers', 'sighup', NULL, '1', '64', '2'),
	  ('nvm.log_compression', 'superuser', NULL, NULL, NULL, 'on'),
	  ('nvm.log_delay', 'superuser', NULL, '-1', '100000', '-1'),
	  ('nvm.log_directories', 'postmaster', NULL, NULL, NULL, 'pg_nvm_log'),
	  ('nvm.log_retry_interval', 'sighup', 's', '1', '3600', '10'),
	  ('nvm.max_commands', 'postmaster', NULL, '1', '1000000', '1000'),
	  ('nvm.memory_directory', 'postmaster', NULL, NULL, NULL, ''),
	  ('nvm.memory_limit', 'postmaster', 'MB', '-1', '16777216', '-1'),
	  ('nvm.persist_method', 'postmaster', NULL, NULL, NULL, 'auto'),
	  ('nvm.pool_directory', 'postmaster', NULL, NULL, NULL, 'pg_nvm'),
	  ('nvm.pool_max_size', 'postmaster', 'MB', '64', '16777216', '65536'),
	  ('nvm.recovery_workers', 'sighup', NULL, '0', '64', '0'),
	  ('nvm.redo_limit', 'sighup', 'kB', '0', '2147483647', '16384'),
	  ('nvm.relax_indexes', 'superuser', NULL, NULL, NULL, 'auto'),
	  ('nvm.replay_workers', 'user', NULL, '0', '64', '0'),
	('nvm.simulate_settle', 'postmaster', NULL, NULL, NULL, 'on'),
	  ('nvm.wait_for_recovery', 'user', NULL, NULL, NULL, 'on')$$,
	'the settings');
SELECT is_empty($$SELECT name FROM pg_settings WHERE name LIKE 'nvm.%' AND short_desc IS NULL$$, 'every setting is described');
SELECT throws_ok('SET nvm.pool_directory = ''elsewhere''', '55P02');
SELECT throws_ok('SET nvm.failpoint = ''no such thing''', '22023');
SELECT throws_ok('SET nvm.emulated_flush_delay = -1', '22023');
SELECT throws_ok('SET nvm.no_such_setting = 1', '42602');
SET ROLE nvm_nobody;
SELECT throws_ok('SET nvm.failpoint = ''''', '42501');
RESET ROLE;

SELECT * FROM finish();
ROLLBACK;

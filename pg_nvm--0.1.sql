/* pg_nvm--0.1.sql */

-- complain if the script is sourced in psql instead of CREATE EXTENSION
\echo Use "CREATE EXTENSION pg_nvm" to load this file. \quit

CREATE SCHEMA nvm;

COMMENT ON SCHEMA nvm IS
'tables in persistent memory, and in memory with a log: checks and views of the pool and the log';

-- ---------------------------------------------------------------------------
-- The access methods
-- ---------------------------------------------------------------------------

CREATE FUNCTION nvm.nvm_tableam_handler(internal)
RETURNS table_am_handler
AS 'MODULE_PATHNAME', 'nvm_tableam_handler'
LANGUAGE C STRICT;

COMMENT ON FUNCTION nvm.nvm_tableam_handler(internal) IS
'handler of table access method nvm';

CREATE ACCESS METHOD nvm TYPE TABLE HANDLER nvm.nvm_tableam_handler;

COMMENT ON ACCESS METHOD nvm IS
'tables in the persistent-memory pool, committed by write-behind logging';

CREATE FUNCTION nvm.nvm_vlog_handler(internal)
RETURNS table_am_handler
AS 'MODULE_PATHNAME', 'nvm_vlog_handler'
LANGUAGE C STRICT;

COMMENT ON FUNCTION nvm.nvm_vlog_handler(internal) IS
'handler of table access method nvm_vlog';

CREATE ACCESS METHOD nvm_vlog TYPE TABLE HANDLER nvm.nvm_vlog_handler;

COMMENT ON ACCESS METHOD nvm_vlog IS
'tables in ordinary memory, brought back after a restart by a log of what was committed';

CREATE FUNCTION nvm.nvm_cmdlog_handler(internal)
RETURNS table_am_handler
AS 'MODULE_PATHNAME', 'nvm_cmdlog_handler'
LANGUAGE C STRICT;

COMMENT ON FUNCTION nvm.nvm_cmdlog_handler(internal) IS
'handler of table access method nvm_cmdlog';

CREATE ACCESS METHOD nvm_cmdlog TYPE TABLE HANDLER nvm.nvm_cmdlog_handler;

COMMENT ON ACCESS METHOD nvm_cmdlog IS
'tables like those of nvm_vlog; calls of registered functions that write them are put in order, by lanes';

CREATE FUNCTION nvm.nvm_btree_handler(internal)
RETURNS index_am_handler
AS 'MODULE_PATHNAME', 'nvm_btree_handler'
LANGUAGE C STRICT;

COMMENT ON FUNCTION nvm.nvm_btree_handler(internal) IS
'handler of access method nvm_btree';

CREATE ACCESS METHOD nvm_btree TYPE INDEX HANDLER nvm.nvm_btree_handler;

COMMENT ON ACCESS METHOD nvm_btree IS
'B+tree in the persistent-memory pool or in memory, for tables of nvm, nvm_vlog and nvm_cmdlog';

CREATE FUNCTION nvm.mirror_operator_classes()
RETURNS int
AS 'MODULE_PATHNAME', 'nvm_mirror_operator_classes'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.mirror_operator_classes() IS
'give nvm_btree the operator classes that btree has and it lacks; returns their number';

REVOKE ALL ON FUNCTION nvm.mirror_operator_classes() FROM PUBLIC;

-- in pg_catalog, and part of this extension where PostgreSQL itself has them
SELECT nvm.mirror_operator_classes();

-- ---------------------------------------------------------------------------
-- Checks
-- ---------------------------------------------------------------------------

CREATE FUNCTION nvm.check(relation regclass, heapallindexed bool DEFAULT false,
                          OUT blkno bigint, OUT off int, OUT problem text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_check'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.check(regclass, bool) IS
'verify blocks, row versions, chains and large values of an nvm table and the trees of its indexes in the pool, or one of these, on request also against the rows (then also one of brin); one row per problem';

CREATE FUNCTION nvm.check_pool(OUT place text, OUT problem text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_check_pool'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.check_pool() IS
'verify header, extent maps, directory and commit slots of the pool; one row per problem';

-- Both read tables whole, whatever the privileges on them.
REVOKE ALL ON FUNCTION nvm.check(regclass, bool) FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.check_pool() FROM PUBLIC;

-- ---------------------------------------------------------------------------
-- When tables or the pool are gone
-- ---------------------------------------------------------------------------

CREATE FUNCTION nvm.drop_orphans(OUT database oid, OUT tablespace oid,
                                 OUT relfilenode oid, OUT bytes bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_drop_orphans'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.drop_orphans() IS
'drop storages of the pool whose table or database was dropped while the pool was not available; one row each';

CREATE FUNCTION nvm.reset_pool(force bool DEFAULT false)
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_reset_pool'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.reset_pool(bool) IS
'give up a pool that is lost, and the rows of all nvm tables: the next start of the server makes a new one';

CREATE FUNCTION nvm.reset_log(force bool DEFAULT false)
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_reset_log'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.reset_log(bool) IS
'give up a log that is lost, and the rows of all tables in memory: the next start of the server begins a new one; other tables keep their rows';

REVOKE ALL ON FUNCTION nvm.drop_orphans() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.reset_log(bool) FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.reset_pool(bool) FROM PUBLIC;

-- ---------------------------------------------------------------------------
-- Views
-- ---------------------------------------------------------------------------

CREATE FUNCTION nvm.pool_info(
    OUT status text, OUT reason text, OUT hint text, OUT directory text,
    OUT persist_method text, OUT medium_is_volatile bool,
    OUT size bigint, OUT used bigint, OUT free bigint, OUT max_size bigint,
    OUT incarnation bigint, OUT uuid uuid, OUT was_clean bool, OUT open_us bigint,
    OUT ignored_standbys text, OUT last_directory text)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_pool_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.pool_info() IS 'the row of view nvm.pool';

CREATE VIEW nvm.pool AS SELECT * FROM nvm.pool_info();

COMMENT ON VIEW nvm.pool IS
'the pool: is it open, if not why, where it is and was, sizes in bytes, incarnation, uuid';
COMMENT ON COLUMN nvm.pool.last_directory IS
'the directory in which the pool was when the server opened it the last time before this start; NULL: it never did, or an earlier version of pg_nvm did';

CREATE FUNCTION nvm.recovery_info(
    OUT losers bigint, OUT in_doubt bigint, OUT resolved bool,
    OUT gaps bigint, OUT recovery_us bigint, OUT resolve_us bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_recovery_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.recovery_info() IS 'the row of view nvm.recovery';

CREATE VIEW nvm.recovery AS SELECT * FROM nvm.recovery_info();

COMMENT ON VIEW nvm.recovery IS
'what the last start found: transactions lost, in doubt, gaps left now, microseconds taken';

CREATE FUNCTION nvm.index_rebuilds_info(
    OUT index regclass, OUT persistence text, OUT state text,
    OUT done bigint, OUT total bigint, OUT ms float8)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_index_rebuilds'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.index_rebuilds_info() IS 'the rows of view nvm.index_rebuilds';

CREATE VIEW nvm.index_rebuilds AS SELECT * FROM nvm.index_rebuilds_info();

COMMENT ON VIEW nvm.index_rebuilds IS
'indexes of this database that the last start did not find whole: what of them is persistent, state, progress as blocks of the table (none, full) or leaves (leaves) looked at, of how many, milliseconds it took; and those that a bulk load has relaxed, which a crash now would have rebuilt (full)';

CREATE FUNCTION nvm.gaps_info(OUT slot int, OUT counter bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_gaps_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.gaps_info() IS 'the rows of view nvm.gaps';

CREATE VIEW nvm.gaps AS SELECT * FROM nvm.gaps_info();

COMMENT ON VIEW nvm.gaps IS
'stamps of transactions lost in a crash whose traces the collector has not removed yet';

CREATE FUNCTION nvm.relations_info(
    OUT id int, OUT database oid, OUT tablespace oid, OUT relfilenode oid,
    OUT persistence "char", OUT ended bool, OUT blocks bigint,
    OUT extents bigint, OUT bytes bigint, OUT large_values bigint,
    OUT live_rows bigint, OUT dead_versions bigint, OUT kind "char",
    OUT creation bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_relations_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.relations_info() IS
'storages in the pool, of all databases';

CREATE VIEW nvm.relations AS
SELECT i.id, d.datname AS database,
       CASE WHEN d.datname = current_database() THEN c.oid::regclass END AS relation,
       i.relfilenode, i.persistence, i.ended, i.blocks, i.extents, i.bytes,
       i.large_values, i.live_rows, i.dead_versions, i.kind, i.creation
  FROM nvm.relations_info() i
       LEFT JOIN pg_catalog.pg_database d ON d.oid = i.database
       LEFT JOIN pg_catalog.pg_class c
              ON c.relfilenode = i.relfilenode
             AND CASE i.kind WHEN 'i' THEN c.relkind = 'i' ELSE c.relkind IN ('r', 'm') END
             AND c.relpersistence = i.persistence
             AND c.reltablespace = i.tablespace;

COMMENT ON VIEW nvm.relations IS
'storages in the pool: what they belong to and what they take; rows and versions are estimates';
COMMENT ON COLUMN nvm.relations.database IS
'name of the database; NULL if it is gone (nvm.drop_orphans() drops the storage)';
COMMENT ON COLUMN nvm.relations.relation IS
'the table or index; NULL in another database than this, or if it is gone';
COMMENT ON COLUMN nvm.relations.creation IS
'number of this storage among all that the pool has had, never used twice; id is used again';

CREATE FUNCTION nvm.size(relation regclass)
RETURNS bigint
AS 'MODULE_PATHNAME', 'nvm_size'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.size(regclass) IS
'bytes in the pool of one nvm table with its large values, or of one index there; 0 for a relation without storage there (a partitioned one too: sum over pg_partition_tree), NULL for one that does not exist';

CREATE FUNCTION nvm.activity_info(
    OUT commits bigint, OUT mixed_commits bigint, OUT aborts bigint,
    OUT helped bigint, OUT slots_used bigint, OUT gaps bigint,
    OUT collector_sweeps bigint, OUT collector_blocks bigint,
    OUT collector_total bigint, OUT gaps_collected bigint,
    OUT commit_record_bytes bigint, OUT redo_checkpoints bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_activity_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.activity_info() IS 'the row of view nvm.activity';

CREATE VIEW nvm.activity AS SELECT * FROM nvm.activity_info();

COMMENT ON VIEW nvm.activity IS
'counters since the server started: commits, decisions made durable by other backends, progress of the gap collector';

CREATE FUNCTION nvm.transactions_info(
    OUT slot int, OUT counter bigint, OUT pid int, OUT xid xid8, OUT state text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_transactions_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.transactions_info() IS
'transactions with nvm data that are not decided, without what PostgreSQL knows of them';

CREATE VIEW nvm.transactions AS
SELECT i.slot, i.counter, i.pid, i.xid, i.state, p.gid,
       coalesce(p.prepared, a.xact_start) AS since
  FROM nvm.transactions_info() i
       LEFT JOIN pg_catalog.pg_prepared_xacts p
              ON i.state = 'prepared' AND p.transaction = pg_catalog.xid(i.xid)
       LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = i.pid;

COMMENT ON VIEW nvm.transactions IS
'open stamps: transactions that have written nvm data and are running, ending or prepared';

CREATE FUNCTION nvm.stat_wbl_info(
    OUT commits bigint, OUT mixed_commits bigint, OUT aborts bigint,
    OUT prepared bigint, OUT helped bigint,
    OUT flushes bigint, OUT fences bigint, OUT bytes bigint,
    OUT syncs bigint, OUT sync_waits bigint, OUT syncs_joined bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_stat_wbl_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.stat_wbl_info() IS 'the row of view nvm.stat_wbl';

CREATE VIEW nvm.stat_wbl AS SELECT * FROM nvm.stat_wbl_info();

COMMENT ON VIEW nvm.stat_wbl IS
'write-behind logging since the server started: transactions by their end, and what writing ones have flushed';
COMMENT ON COLUMN nvm.stat_wbl.syncs IS
'with nvm.persist_method msync: how often the pool file was synced, for all processes that waited then';
COMMENT ON COLUMN nvm.stat_wbl.sync_waits IS
'fences of all processes that had to wait for a sync';
COMMENT ON COLUMN nvm.stat_wbl.syncs_joined IS
'those of them that were served by the sync of another process';

CREATE FUNCTION nvm.checkpoints_info(
    OUT number bigint, OUT state text, OUT started timestamptz, OUT finished timestamptz,
    OUT begin_position bigint, OUT rows bigint, OUT bytes bigint, OUT files bigint,
    OUT blocks_done bigint, OUT blocks_total bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_checkpoints_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.checkpoints_info() IS 'the rows of view nvm.checkpoints';

CREATE VIEW nvm.checkpoints AS SELECT * FROM nvm.checkpoints_info();

COMMENT ON VIEW nvm.checkpoints IS
'checkpoints of tables in memory: the usable one, and one that is running or has failed since';
COMMENT ON COLUMN nvm.checkpoints.begin_position IS
'position of the log from which on it is needed with this checkpoint';
COMMENT ON COLUMN nvm.checkpoints.blocks_done IS
'of the running one: blocks looked at; blocks_total: of about so many';

CREATE FUNCTION nvm.checkpoint()
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_checkpoint'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.checkpoint() IS
'make a checkpoint of tables in memory, and wait until it is usable; the log before it goes';

REVOKE ALL ON FUNCTION nvm.checkpoint() FROM PUBLIC;
GRANT USAGE ON SCHEMA nvm TO pg_checkpoint;
GRANT EXECUTE ON FUNCTION nvm.checkpoint() TO pg_checkpoint;

CREATE FUNCTION nvm.log_info(
    OUT state text, OUT reason text, OUT directory text, OUT generation bigint,
    OUT inserted bigint, OUT persistent bigint, OUT files bigint, OUT file_bytes bigint,
    OUT records bigint, OUT bytes bigint, OUT syncs bigint, OUT waits bigint, OUT wait_us bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_log_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.log_info() IS 'the row of view nvm.log';

CREATE VIEW nvm.log AS SELECT * FROM nvm.log_info();

COMMENT ON VIEW nvm.log IS
'the log of nvm_vlog tables: state (off, not begun, on, failed), where it is, how far it is written; counters since the server started';
COMMENT ON COLUMN nvm.log.inserted IS
'position in the log, in bytes, up to which transactions are decided';
COMMENT ON COLUMN nvm.log.persistent IS
'position up to which everything is synced';

CREATE FUNCTION nvm.memory_info(
    OUT size bigint, OUT used bigint, OUT max_size bigint, OUT reserve bigint, OUT claimed bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_memory_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.memory_info() IS 'the row of view nvm.memory';

CREATE VIEW nvm.memory AS SELECT * FROM nvm.memory_info();

COMMENT ON VIEW nvm.memory IS
'memory of nvm_vlog tables and their indexes, of all databases, in bytes';
COMMENT ON COLUMN nvm.memory.size IS
'that it has taken since the server started; none is given back before it stops';
COMMENT ON COLUMN nvm.memory.used IS
'of size; after a rebuild it may be above max_size';
COMMENT ON COLUMN nvm.memory.max_size IS
'that nvm.memory_limit allows';
COMMENT ON COLUMN nvm.memory.reserve IS
'that a rebuild after a reboot may take besides';
COMMENT ON COLUMN nvm.memory.claimed IS
'kept for tables and indexes that are not rebuilt yet';

CREATE FUNCTION nvm.log_directories_info(
    OUT directory text, OUT state text, OUT reason text, OUT is_current boolean,
    OUT "position" bigint, OUT files bigint, OUT file_bytes bigint,
    OUT bytes bigint, OUT syncs bigint, OUT waits bigint, OUT wait_us bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_log_directories_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.log_directories_info() IS 'the rows of view nvm.log_directories';

CREATE VIEW nvm.log_directories AS SELECT * FROM nvm.log_directories_info();

COMMENT ON VIEW nvm.log_directories IS
'the directories of the log, in the order in which files are dealt to them: state (on, failed), what has failed the last time; counters since the server started';
COMMENT ON COLUMN nvm.log_directories.is_current IS
'is the file in it to which the log is written';
COMMENT ON COLUMN nvm.log_directories."position" IS
'position in the log up to which a part was synced here';
COMMENT ON COLUMN nvm.log_directories.waits IS
'commits that have waited for a sync in this directory';

CREATE FUNCTION nvm.log_recovery_info(
    OUT state text, OUT reason text, OUT files bigint, OUT bytes bigint, OUT bytes_total bigint,
    OUT "rows" bigint, OUT tables bigint, OUT tables_total bigint, OUT workers bigint,
    OUT started timestamptz, OUT finished timestamptz, OUT mb_per_s double precision)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_log_recovery_info'
LANGUAGE C STRICT VOLATILE PARALLEL RESTRICTED;

COMMENT ON FUNCTION nvm.log_recovery_info() IS 'the row of view nvm.log_recovery';

CREATE VIEW nvm.log_recovery AS SELECT * FROM nvm.log_recovery_info();

COMMENT ON VIEW nvm.log_recovery IS
'are nvm_vlog tables there (whole), or being rebuilt from the log, and how far; if that has failed, why';

-- ---------------------------------------------------------------------------
-- Commands: calls of registered functions
-- ---------------------------------------------------------------------------

CREATE FUNCTION nvm.partition_table(relation regclass, "column" name)
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_partition_table'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.partition_table(regclass, name) IS
'divide the rows of an nvm_cmdlog table into lanes by a column, which must be NOT NULL and a key of each unique index';

CREATE FUNCTION nvm.unpartition_table(relation regclass)
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_unpartition_table'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.unpartition_table(regclass) IS
'take back nvm.partition_table(): the table is shared by all lanes';

CREATE FUNCTION nvm.register_command(function regprocedure, lanes text)
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_register_command'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.register_command(regprocedure, text) IS
'register a function or procedure as a command; lanes: the arguments whose values name its lanes, as in ''{w_id,$3}'', or ''all''';

CREATE FUNCTION nvm.inspect_command(
    function regprocedure,
    OUT place regprocedure, OUT line int, OUT reason text, OUT object text, OUT statement text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_inspect_command'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.inspect_command(regprocedure) IS
'what calls of a function in SQL or PL/pgSQL may do that a replay could not do again, by its text, before it runs';

CREATE FUNCTION nvm.unregister_command(function regprocedure)
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_unregister_command'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.unregister_command(regprocedure) IS
'take back nvm.register_command()';

CREATE FUNCTION nvm.promote_command(function regprocedure)
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_promote_command'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.promote_command(regprocedure) IS
'have calls of a registered function logged alone, without the rows that they write; a restart calls again';

CREATE FUNCTION nvm.demote_command(function regprocedure)
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_demote_command'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.demote_command(regprocedure) IS
'take back nvm.promote_command()';

REVOKE ALL ON FUNCTION nvm.promote_command(regprocedure), nvm.demote_command(regprocedure) FROM PUBLIC;

-- In plans of expressions that PL/pgSQL evaluates by itself (src/command/README.md).
CREATE FUNCTION nvm.note_function(anyelement, oid)
RETURNS anyelement
AS 'MODULE_PATHNAME', 'nvm_note_function'
LANGUAGE C VOLATILE PARALLEL SAFE;

COMMENT ON FUNCTION nvm.note_function(anyelement, oid) IS
'the first argument; in a call of a registered function, notes that it is the result of a function that a replay cannot call again';

-- In all plans, in a database that has registered functions.
CREATE FUNCTION nvm.tape(anyelement, oid)
RETURNS anyelement
AS 'MODULE_PATHNAME', 'nvm_tape'
LANGUAGE C VOLATILE PARALLEL SAFE;

COMMENT ON FUNCTION nvm.tape(anyelement, oid) IS
'the first argument; in a call of a registered function, records it as the result of the function that has this OID';

-- In plans of a replay, in the place of what nvm.tape() is given there.
CREATE FUNCTION nvm.replayed(anyelement, oid, "any")
RETURNS anyelement
AS 'MODULE_PATHNAME', 'nvm_replayed'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.replayed(anyelement, oid, "any") IS
'in a replay of calls, the next result that the record has of the function with this OID; an error elsewhere';

-- Any query may have these, also where ALTER DEFAULT PRIVILEGES gives PUBLIC no function.
GRANT EXECUTE ON FUNCTION nvm.note_function(anyelement, oid), nvm.tape(anyelement, oid), nvm.replayed(anyelement, oid, "any") TO PUBLIC;

CREATE FUNCTION nvm.reset_commands()
RETURNS void
AS 'MODULE_PATHNAME', 'nvm_reset_commands'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.reset_commands() IS
'set the counters of view nvm.commands back, of the current database';

REVOKE ALL ON FUNCTION nvm.reset_commands() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.register_command(regprocedure, text), nvm.inspect_command(regprocedure) FROM PUBLIC;

CREATE FUNCTION nvm.commands_info(
    OUT function regprocedure, OUT lanes text, OUT state text, OUT problem text,
    OUT calls bigint, OUT replayable bigint, OUT by_values bigint, OUT unlogged bigint,
    OUT reasons jsonb, OUT last_reason text, OUT last_object text, OUT last_query text,
    OUT last_time timestamptz, OUT mean_ms double precision, OUT call_bytes bigint,
    OUT value_bytes bigint, OUT rehearsed timestamptz, OUT replay_rate double precision,
    OUT alone bigint)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_commands_info'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.commands_info() IS 'the rows of view nvm.commands';

-- Its relation lock stands for all lanes (src/command/README.md).
CREATE VIEW nvm.commands AS SELECT * FROM nvm.commands_info();

COMMENT ON VIEW nvm.commands IS
'registered functions of the current database, and what their calls would be to a log of commands; counters since the server started';
COMMENT ON COLUMN nvm.commands.state IS
'shadow: calls are counted, and transactions logged by their values all the same; promoted: calls are logged alone; changed: it is not as it was promoted, and its calls are logged by values; unsuitable: no call could be replayed';
COMMENT ON COLUMN nvm.commands.problem IS
'why it is unsuitable';
COMMENT ON COLUMN nvm.commands.replayable IS
'committed transactions that called it, wrote rows of nvm_cmdlog tables, and could be replayed by their calls';
COMMENT ON COLUMN nvm.commands.alone IS
'of replayable, those whose calls were logged alone';
COMMENT ON COLUMN nvm.commands.by_values IS
'those that could not';
COMMENT ON COLUMN nvm.commands.unlogged IS
'those that wrote no row of nvm_cmdlog tables';
COMMENT ON COLUMN nvm.commands.call_bytes IS
'bytes in the log of the calls of transactions counted as replayable, each as a whole';
COMMENT ON COLUMN nvm.commands.value_bytes IS
'bytes of the rows beside them: what a log of commands would not have';
COMMENT ON COLUMN nvm.commands.reasons IS
'why transactions of by_values and unlogged could not be replayed, and how many: the first reason of each';

CREATE FUNCTION nvm.command_mode_info(
    database oid, OUT mode text, OUT armed boolean, OUT ddl int, OUT covered boolean)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_command_mode_info_of'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.command_mode_info(oid) IS
'how calls of a database are logged; NULL: nothing is known of it since the server started';

-- Its relation lock keeps promotions apart.
CREATE VIEW nvm.command_modes AS
    SELECT d.datname AS database, m.mode, m.armed, m.ddl, m.covered
    FROM pg_catalog.pg_database d, nvm.command_mode_info(d.oid) m
    WHERE m.mode IS NOT NULL;

COMMENT ON VIEW nvm.command_modes IS
'how calls are logged in databases with registered functions, as far as is known since the server started';
COMMENT ON COLUMN nvm.command_modes.mode IS
'shadow: no function is promoted; switching: by values, until a checkpoint; alone: calls of promoted functions alone; unknown: as switching';
COMMENT ON COLUMN nvm.command_modes.armed IS
'the next checkpoint leads to alone, if no DDL begins';
COMMENT ON COLUMN nvm.command_modes.ddl IS
'transactions with DDL or a promotion under way';
COMMENT ON COLUMN nvm.command_modes.covered IS
'the last checkpoint has all that was logged by calls alone';

CREATE FUNCTION nvm.command_reasons_info(
    OUT function regprocedure, OUT reason text, OUT transactions bigint, OUT last_object text,
    OUT last_place regprocedure, OUT last_line int, OUT last_statement text, OUT last_query text,
    OUT last_time timestamptz)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_command_reasons_info'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.command_reasons_info() IS 'the rows of view nvm.command_reasons';

CREATE VIEW nvm.command_reasons AS SELECT * FROM nvm.command_reasons_info();

COMMENT ON VIEW nvm.command_reasons IS
'why transactions that called registered functions could not be replayed by their calls: for each function and first reason how many, and where the last one came up';
COMMENT ON COLUMN nvm.command_reasons.last_place IS
'the function in PL/pgSQL in which it came up';
COMMENT ON COLUMN nvm.command_reasons.last_line IS
'the line of its body';
COMMENT ON COLUMN nvm.command_reasons.last_statement IS
'the query in the call that ran then; NULL: none did';
COMMENT ON COLUMN nvm.command_reasons.last_query IS
'the client''s statement';

CREATE FUNCTION nvm.rehearse(
    workers int DEFAULT NULL, keep boolean DEFAULT false,
    OUT passed boolean, OUT tables bigint, OUT base_rows bigint, OUT transactions bigint,
    OUT calls bigint, OUT value_rows bigint, OUT seconds float8, OUT schema text,
    OUT problem text, OUT detail text, OUT call text, OUT "position" bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_rehearse'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.rehearse(int, boolean) IS
'replays the command log since the last checkpoint in a copy of the database''s nvm_cmdlog tables, and compares: passed, or the first call or table that came to something else';

CREATE FUNCTION nvm.replay_command_log(
    upto timestamptz DEFAULT NULL, copy_schema name DEFAULT 'nvm_replay', workers int DEFAULT NULL,
    OUT passed boolean, OUT tables bigint, OUT base_rows bigint, OUT transactions bigint,
    OUT calls bigint, OUT value_rows bigint, OUT seconds float8, OUT schema text,
    OUT problem text, OUT detail text, OUT call text, OUT "position" bigint)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_replay_command_log'
LANGUAGE C VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.replay_command_log(timestamptz, name, int) IS
'replays the command log since the last checkpoint in a copy of the database''s nvm_cmdlog tables, up to the first transaction that began later than a moment, and keeps the copy in a schema';

CREATE FUNCTION nvm.replay_info(
    OUT phase text, OUT database oid, OUT passed boolean, OUT started timestamptz,
    OUT ended timestamptz, OUT workers bigint, OUT base_rows bigint, OUT log_bytes bigint,
    OUT log_bytes_total bigint, OUT transactions bigint, OUT calls bigint, OUT value_rows bigint,
    OUT many_lanes bigint, OUT alone bigint, OUT replay_seconds float8, OUT problem text)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_replay_info_sql'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.replay_info() IS 'the row of view nvm.replay';

CREATE FUNCTION nvm.replayed_databases_info(
    OUT database oid, OUT state text, OUT transactions bigint, OUT not_replayed bigint,
    OUT log_position bigint, OUT call text, OUT problem text, OUT detail text)
RETURNS SETOF record
AS 'MODULE_PATHNAME', 'nvm_replayed_databases'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.replayed_databases_info() IS 'the rows of view nvm.replayed_databases';

CREATE VIEW nvm.replayed_databases AS SELECT * FROM nvm.replayed_databases_info();

COMMENT ON VIEW nvm.replayed_databases IS
'databases whose calls the last start replays, since the log has them alone: how far each is, and why a replay has stopped';
COMMENT ON COLUMN nvm.replayed_databases.state IS
'waiting; replaying; stopped: a call came to something else, and the tables stay closed until somebody calls nvm.resume_replay() or nvm.end_replay() there; resumed, given up: somebody has; done: the tables are open';
COMMENT ON COLUMN nvm.replayed_databases.not_replayed IS
'transactions that were not replayed when it stopped, NULL: nobody could count them; behind nvm.end_replay() they are given up';

CREATE FUNCTION nvm.resume_replay()
RETURNS bigint
AS 'MODULE_PATHNAME', 'nvm_resume_replay'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.resume_replay() IS
'has the calls of this database replayed once more from the last checkpoint, after a start whose replay has stopped, and waits: how many transactions were replayed';

CREATE FUNCTION nvm.end_replay(OUT replayed bigint, OUT given_up bigint)
AS 'MODULE_PATHNAME', 'nvm_end_replay'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.end_replay() IS
'ends a replay of this database that has stopped after a start: what was replayed stays, what was not is given up; waits for the checkpoint that makes that last, and returns how many transactions are which';

CREATE VIEW nvm.replay AS SELECT * FROM nvm.replay_info();

COMMENT ON VIEW nvm.replay IS
'the replay of the command log that runs, or has run last: how far it is, and what came of it';
COMMENT ON COLUMN nvm.replay.log_bytes IS 'bytes of the log up to the record that was played last';
COMMENT ON COLUMN nvm.replay.many_lanes IS 'transactions with more than one lane';
COMMENT ON COLUMN nvm.replay.alone IS 'transactions that no other was replayed beside';

CREATE FUNCTION nvm.partition_info(relation regclass, OUT "column" text, OUT why text)
RETURNS record
AS 'MODULE_PATHNAME', 'nvm_partition_info'
LANGUAGE C STRICT VOLATILE PARALLEL UNSAFE;

COMMENT ON FUNCTION nvm.partition_info(regclass) IS
'of view nvm.partitioned_tables: the column by which a table is partitioned, and why it is shared all the same';

CREATE VIEW nvm.partitioned_tables AS
SELECT c.oid::regclass AS relation, p."column",
       CASE WHEN p."column" IS NOT NULL AND p.why IS NULL THEN 'partitioned' ELSE 'shared' END AS state,
       p.why
FROM pg_catalog.pg_class c
LEFT JOIN pg_catalog.pg_am a ON a.oid = c.relam
CROSS JOIN LATERAL nvm.partition_info(c.oid) p
WHERE c.relkind = 'r'
  AND (a.amname = 'nvm_cmdlog' OR
       EXISTS (SELECT FROM pg_catalog.pg_seclabel s
               WHERE s.objoid = c.oid AND s.classoid = 'pg_catalog.pg_class'::regclass
                 AND s.provider = 'nvm'));

COMMENT ON VIEW nvm.partitioned_tables IS
'tables of nvm_cmdlog, and those with the label of one: partitioned by a column, or shared by all lanes, and why';

-- Its relation lock is lane 0 (src/command/README.md).
CREATE VIEW nvm.lanes AS
SELECT CASE WHEN l.locktype = 'advisory' THEN l.objid::bigint
            WHEN l.relation = pg_catalog.to_regclass('nvm.lanes') THEN 0 END AS lane,
       CASE WHEN l.locktype = 'advisory' THEN 'lane'
            WHEN l.relation = pg_catalog.to_regclass('nvm.lanes') THEN 'shared tables'
            ELSE 'all lanes' END AS target,
       l.mode, l.granted, l.pid, l.waitstart
FROM pg_catalog.pg_locks l
WHERE l.database = (SELECT d.oid FROM pg_catalog.pg_database d
                    WHERE d.datname = pg_catalog.current_database())
  AND l.mode IN ('RowShareLock', 'RowExclusiveLock', 'ShareLock', 'ExclusiveLock')
  AND (l.locktype = 'advisory' AND l.classid = 0 AND l.objsubid = 19798
       OR l.locktype = 'relation' AND l.relation IN (pg_catalog.to_regclass('nvm.lanes'),
                                                     pg_catalog.to_regclass('nvm.commands')));

COMMENT ON VIEW nvm.lanes IS
'locks of lanes in the current database: who has them, and who waits for them since when';
COMMENT ON COLUMN nvm.lanes.lane IS
'1 to 65535: a hash of the partition column''s value; 0: shared tables; NULL: all lanes of rows';

-- Names of directories and of other databases' tables are for monitoring.
REVOKE ALL ON FUNCTION nvm.pool_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.recovery_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.gaps_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.index_rebuilds_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.relations_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.size(regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.activity_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.transactions_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.stat_wbl_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.memory_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.log_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.log_directories_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.log_recovery_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.checkpoints_info() FROM PUBLIC;
REVOKE ALL ON nvm.pool, nvm.recovery, nvm.gaps, nvm.relations, nvm.activity FROM PUBLIC;
REVOKE ALL ON nvm.transactions, nvm.stat_wbl, nvm.index_rebuilds FROM PUBLIC;
REVOKE ALL ON nvm.memory, nvm.log, nvm.log_directories, nvm.log_recovery, nvm.checkpoints FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.commands_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.command_reasons_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.command_mode_info(oid) FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.partition_info(regclass) FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.rehearse(int, boolean) FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.replay_command_log(timestamptz, name, int) FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.replay_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.replayed_databases_info() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.resume_replay() FROM PUBLIC;
REVOKE ALL ON FUNCTION nvm.end_replay() FROM PUBLIC;
REVOKE ALL ON nvm.commands, nvm.command_reasons, nvm.partitioned_tables, nvm.lanes FROM PUBLIC;
REVOKE ALL ON nvm.replay, nvm.replayed_databases, nvm.command_modes FROM PUBLIC;

GRANT USAGE ON SCHEMA nvm TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.check_pool() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.pool_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.recovery_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.gaps_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.index_rebuilds_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.relations_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.size(regclass) TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.activity_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.transactions_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.stat_wbl_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.memory_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.log_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.log_directories_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.log_recovery_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.checkpoints_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.commands_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.command_reasons_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.command_mode_info(oid) TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.partition_info(regclass) TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.replay_info() TO pg_monitor;
GRANT EXECUTE ON FUNCTION nvm.replayed_databases_info() TO pg_monitor;
GRANT SELECT ON nvm.pool, nvm.recovery, nvm.gaps, nvm.relations, nvm.activity TO pg_monitor;
GRANT SELECT ON nvm.transactions, nvm.stat_wbl, nvm.index_rebuilds TO pg_monitor;
GRANT SELECT ON nvm.memory, nvm.log, nvm.log_directories, nvm.log_recovery, nvm.checkpoints TO pg_monitor;
GRANT SELECT ON nvm.commands, nvm.command_reasons, nvm.partitioned_tables, nvm.lanes TO pg_monitor;
GRANT SELECT ON nvm.replay, nvm.replayed_databases, nvm.command_modes TO pg_monitor;

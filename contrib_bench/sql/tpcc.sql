-- TPC-C: nine tables, their rows, five transactions in PL/pgSQL, consistency conditions.
--
--     psql -v warehouses=4 -f tpcc.sql
--     pgbench -n -c 4 -T 10 -M prepared -D warehouses=4 -D items=100000 -D customers=3000 \
--         -D multi=-1 -f tpcc/new_order.pgbench@45 -f tpcc/payment.pgbench@43 \
--         -f tpcc/order_status.pgbench@4 -f tpcc/delivery.pgbench@4 -f tpcc/stock_level.pgbench@4
--     psql -c 'TABLE tpcc_violations'         -- must be empty
--
-- Variables, all optional:
--   method        table access method: nvm_cmdlog (default), nvm_vlog, nvm, heap
--   unlogged      on: UNLOGGED tables, which have no log (default off)
--   commands      on: the functions are registered commands, the tables partitioned by
--                 warehouse; default: of nvm_cmdlog on, of others off
--   foreign_keys  default on
--   warehouses    default 1
--   items, customers   of all, and of a district; fewer than 100000 and 3000 make a load that
--                 does not comply, but is quick
--
-- As in the specification (revision 5.11): tables, columns and their types, keys, rows of each
-- warehouse, NURand, the mix, remote warehouses, customers by last name, 1 % of the new orders
-- rolled back, the consistency conditions.  Not so: there are no waiting and thinking times,
-- deliveries are not deferred, and functions return less than a terminal shows.

\set ON_ERROR_STOP on
SET client_min_messages = warning;

\ir tpcc/variables.sql
\ir tpcc/tables.sql
\ir tpcc/rows.sql
SELECT format('CALL load_warehouse(%s, %s, %s)', w, :items, :customers)
    FROM generate_series(1, :warehouses) w
\gexec
\ir tpcc/keys.sql
\ir tpcc/functions.sql
\ir tpcc/conditions.sql
\ir tpcc/commands.sql
VACUUM ANALYZE;

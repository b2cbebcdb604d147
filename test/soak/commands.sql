-- TPC-C of contrib_bench/sql by registered functions, for the soak of nvm_cmdlog tables: psql -f,
-- behind schema.sql.
--
-- Each transaction of a caller has rows in called, of its home warehouse, that say what it has
-- done: by them it is known whether it is there.  Old ones are retired, delivered orders are
-- purged, and payments are put together, so that live data stays bounded and the consistency
-- conditions hold all the time.

\set ON_ERROR_STOP on
SET client_min_messages = warning;
\set method nvm_cmdlog
\set items 200
\set customers 30
\set warehouses 3
\ir ../../contrib_bench/sql/tpcc/variables.sql
\ir ../../contrib_bench/sql/tpcc/tables.sql
-- sums of payments are kept there, too
ALTER TABLE history ALTER h_amount TYPE numeric(14,2);
\ir ../../contrib_bench/sql/tpcc/rows.sql
SELECT format('CALL load_warehouse(%s, %s, %s)', w, :items, :customers)
	FROM generate_series(1, :warehouses) w
\gexec
\ir ../../contrib_bench/sql/tpcc/keys.sql
\ir ../../contrib_bench/sql/tpcc/functions.sql
\ir ../../contrib_bench/sql/tpcc/conditions.sql
\ir ../../contrib_bench/sql/tpcc/commands.sql

-- part of parts: of a transaction with several calls
CREATE TABLE called (w int, client int, n bigint, part int, parts int NOT NULL, kind text NOT NULL,
	amount numeric(14,2), beside int NOT NULL DEFAULT 0, PRIMARY KEY (w, client, n, part)) USING nvm_cmdlog;
CREATE TABLE caller (w int, client int, retired bigint NOT NULL DEFAULT 0, retired_count bigint NOT NULL DEFAULT 0,
	orders bigint NOT NULL DEFAULT 0, paid numeric(14,2) NOT NULL DEFAULT 0, PRIMARY KEY (w, client)) USING nvm_cmdlog;
CREATE TABLE purged (w int, d int, orders bigint NOT NULL DEFAULT 0, PRIMARY KEY (w, d)) USING nvm_cmdlog;
SELECT count(nvm.partition_table(t, 'w')) FROM unnest('{called,caller,purged}'::regclass[]) t;
INSERT INTO purged SELECT w_id, d_id, 0 FROM warehouse, generate_series(1, 10) d_id;
-- what a transaction of calls writes beside them, outside of calls
CREATE TABLE beside_log (client int, n bigint, PRIMARY KEY (client, n)) USING nvm_vlog;
CREATE TABLE beside_pool (client int, n bigint, PRIMARY KEY (client, n)) USING nvm;
CREATE TABLE beside_heap (client int, n bigint, PRIMARY KEY (client, n)) USING heap;
-- of the other clients, with lanes of their own; kv is shared.  The others are nvm_vlog's, so that
-- transactions can be prepared; DDL makes hist one of these at times.
ALTER TABLE hist SET ACCESS METHOD nvm_cmdlog, ALTER client SET NOT NULL;
ALTER TABLE large SET ACCESS METHOD nvm_cmdlog, ALTER client SET NOT NULL;
ALTER TABLE churn SET ACCESS METHOD nvm_cmdlog, ALTER client SET NOT NULL;
ALTER TABLE kv SET ACCESS METHOD nvm_cmdlog;
SELECT count(nvm.partition_table(t, 'client')) FROM unnest('{hist,large,churn}'::regclass[]) t;
ALTER TABLE hist SET ACCESS METHOD nvm_vlog;
CREATE ROLE soak_role;

CREATE VIEW acks AS
SELECT client, n FROM ack
UNION ALL SELECT client, n FROM called WHERE part = 1;
CREATE VIEW clients AS
SELECT id, retired, retired_count FROM client WHERE id NOT IN (SELECT client FROM caller)
UNION ALL SELECT client, retired, retired_count FROM caller;

-- The calls.  An item that does not exist: the transaction fails, and is rolled back.
CREATE FUNCTION soak_order(home int, in_w int, in_d int, in_c int, items int[], supplies int[],
	quantities int[], client int, n bigint, part int, parts int) RETURNS numeric LANGUAGE plpgsql AS $$
DECLARE
	total numeric := new_order(in_w, in_d, in_c, items, supplies, quantities);
BEGIN
	IF total IS NULL THEN
		RAISE no_data_found USING MESSAGE = 'Item number is not valid';
	END IF;
	INSERT INTO called VALUES (home, client, n, part, parts, 'order', total);
	RETURN total;
END $$;

CREATE FUNCTION soak_payment(home int, in_w int, in_d int, in_c_w int, in_c_d int, in_c int,
	in_last text, amount numeric, client int, n bigint, part int, parts int, beside int DEFAULT 0) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
	balance numeric := payment(in_w, in_d, in_c_w, in_c_d, in_c, in_last, amount);
BEGIN
	INSERT INTO called VALUES (home, client, n, part, parts, 'payment', amount, beside);
	RETURN balance;
END $$;

CREATE PROCEDURE soak_deliver(in_w int, carrier int, client int, n bigint, part int, parts int)
LANGUAGE plpgsql AS $$
BEGIN
	PERFORM delivery(in_w, carrier);
	INSERT INTO called VALUES (in_w, client, n, part, parts, 'delivery');
END $$;

-- Delivered orders go, and what their customers owe for them.
CREATE FUNCTION soak_purge(in_w int, keep int, client int, n bigint) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	bound int; o record; amount numeric; gone int; total int := 0;
BEGIN
	FOR in_d IN 1 .. 10 LOOP
		SELECT d_next_o_id - keep INTO STRICT bound FROM district WHERE d_w_id = in_w AND d_id = in_d;
		gone := 0;
		FOR o IN SELECT o_id, o_c_id FROM orders WHERE o_w_id = in_w AND o_d_id = in_d AND o_id < bound
			AND o_carrier_id IS NOT NULL ORDER BY o_id LIMIT 30
		LOOP
			SELECT sum(ol_amount) INTO amount FROM order_line
				WHERE ol_w_id = in_w AND ol_d_id = in_d AND ol_o_id = o.o_id;
			UPDATE customer SET c_balance = c_balance - amount
				WHERE c_w_id = in_w AND c_d_id = in_d AND c_id = o.o_c_id;
			DELETE FROM order_line WHERE ol_w_id = in_w AND ol_d_id = in_d AND ol_o_id = o.o_id;
			DELETE FROM orders WHERE o_w_id = in_w AND o_d_id = in_d AND o_id = o.o_id;
			gone := gone + 1;
		END LOOP;
		UPDATE purged p SET orders = p.orders + gone WHERE p.w = in_w AND p.d = in_d;
		total := total + gone;
	END LOOP;
	INSERT INTO called VALUES (in_w, client, n, 1, 1, 'purge');
	RETURN total;
END $$;

-- Payments of a district are put together, by customer: of any warehouse, so it has their lanes.
CREATE FUNCTION soak_fold(in_w int, others int[], in_d int, client int, n bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	g record;
BEGIN
	FOR g IN SELECT h_c_w_id, h_c_d_id, h_c_id, sum(h_amount) AS amount, max(h_date) AS last FROM history
		WHERE h_w_id = in_w AND h_d_id = in_d GROUP BY h_c_w_id, h_c_d_id, h_c_id HAVING count(*) > 1
		ORDER BY h_c_w_id, h_c_d_id, h_c_id
	LOOP
		DELETE FROM history WHERE h_w_id = in_w AND h_d_id = in_d AND h_c_w_id = g.h_c_w_id
			AND h_c_d_id = g.h_c_d_id AND h_c_id = g.h_c_id;
		INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data)
			VALUES (g.h_c_id, g.h_c_d_id, g.h_c_w_id, in_d, in_w, g.last, g.amount, 'put together');
	END LOOP;
	INSERT INTO called VALUES (in_w, client, n, 1, 1, 'fold');
END $$;

CREATE FUNCTION soak_retire(home int, in_client int, before bigint, n bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
	gone bigint; gone_orders bigint; gone_paid numeric;
BEGIN
	SELECT count(*) FILTER (WHERE c.part = 1), count(*) FILTER (WHERE c.kind = 'order'),
			coalesce(sum(c.amount) FILTER (WHERE c.kind = 'payment'), 0)
		INTO gone, gone_orders, gone_paid
		FROM called c WHERE c.w = home AND c.client = in_client AND c.n <= before;
	UPDATE caller r SET retired = before, retired_count = r.retired_count + gone,
		orders = r.orders + gone_orders, paid = r.paid + gone_paid
		WHERE r.w = home AND r.client = in_client;
	DELETE FROM called c WHERE c.w = home AND c.client = in_client AND c.n <= before;
	INSERT INTO called VALUES (home, in_client, n, 1, 1, 'retire');
END $$;

-- These are registered, too, and each of their transactions is one of values: a subtransaction that
-- is rolled back, and a process id.
CREATE FUNCTION soak_caught(home int, in_c int, client int, n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		UPDATE customer SET c_data = 'never' WHERE c_w_id = home AND c_d_id = 1 AND c_id = in_c;
		INSERT INTO warehouse (w_id) VALUES (home);
	EXCEPTION WHEN unique_violation THEN
		UPDATE customer SET c_data = 'caught ' || n WHERE c_w_id = home AND c_d_id = 2 AND c_id = in_c;
	END;
	INSERT INTO called VALUES (home, client, n, 1, 1, 'caught');
END $$;

CREATE FUNCTION soak_pid(home int, in_c int, client int, n bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE customer SET c_data = 'of process ' || pg_backend_pid() WHERE c_w_id = home AND c_d_id = 3 AND c_id = in_c;
	INSERT INTO called VALUES (home, client, n, 1, 1, 'pid');
END $$;

SELECT count(nvm.register_command(f::regprocedure, l)) AS registered FROM (VALUES
	('soak_order(int,int,int,int,int[],int[],int[],int,bigint,int,int)', '{home,in_w,supplies}'),
	('soak_payment(int,int,int,int,int,int,text,numeric,int,bigint,int,int,int)', '{home,in_w,in_c_w}'),
	('soak_deliver(int,int,int,bigint,int,int)', '{in_w}'),
	('soak_purge(int,int,int,bigint)', '{in_w}'),
	('soak_fold(int,int[],int,int,bigint)', '{in_w,others}'),
	('soak_retire(int,int,bigint,bigint)', '{home}'),
	('soak_caught(int,int,int,bigint)', '{home}'),
	('soak_pid(int,int,int,bigint)', '{home}')) f (f, l);

-- is each transaction of callers whole or absent, and do the conditions hold?
CREATE FUNCTION verify_calls() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT format('condition %s: %s, not so for %s', condition, what, key) FROM tpcc_violations
	UNION ALL
	SELECT format('transaction %s/%s: %s of %s calls', client, n, count(*), max(parts)) FROM called
		GROUP BY client, n HAVING count(*) <> max(parts) OR max(parts) <> min(parts)
	UNION ALL
	SELECT format('%s orders were numbered, %s called for', drawn, known)
		FROM (SELECT sum(d_next_o_id - 31) AS drawn FROM district) d,
			(SELECT (SELECT count(*) FROM called WHERE kind = 'order') + (SELECT coalesce(sum(orders), 0) FROM caller) AS known) k
		WHERE drawn <> known
	UNION ALL
	SELECT format('%s was paid, %s called for', paid, known)
		FROM (SELECT sum(w_ytd - 3000) AS paid FROM warehouse) d,
			(SELECT (SELECT coalesce(sum(amount), 0) FROM called WHERE kind = 'payment')
				+ (SELECT coalesce(sum(paid), 0) FROM caller) AS known) k
		WHERE paid <> known
	UNION ALL
	SELECT format('district %s/%s: %s orders, %s purged, next %s', d_w_id, d_id, n, p.orders, d_next_o_id)
		FROM district JOIN purged p ON p.w = d_w_id AND p.d = d_id,
			LATERAL (SELECT count(*) AS n FROM orders WHERE o_w_id = d_w_id AND o_d_id = d_id) o
		WHERE n + p.orders <> d_next_o_id - 1
	UNION ALL
	SELECT format('transaction %s/%s: %s rows beside, not %s', client, n, coalesce(b, 0), coalesce(c.beside, 0))
		FROM (SELECT client, n, beside FROM called WHERE beside > 0) c
		FULL JOIN (SELECT client, n, count(*) AS b FROM (SELECT * FROM beside_log UNION ALL SELECT * FROM beside_pool
			UNION ALL SELECT * FROM beside_heap) x GROUP BY client, n) x USING (client, n)
		WHERE coalesce(b, 0) <> coalesce(c.beside, 0)
	UNION ALL
	SELECT format('customer %s/%s/%s was never to be', c_w_id, c_d_id, c_id) FROM customer WHERE c_data = 'never'
$$;

-- The tables of the soak, and what must hold between them at any moment.
--
-- Each transaction of client c has a number n and leaves a row in ack that says how
-- many rows of what kind it has left elsewhere.  Clients retire their old transactions:
-- sums of what goes are kept in fold and client, so that live data stays bounded.

CREATE EXTENSION pg_nvm;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE soak_space LOCATION '';
SET default_table_access_method = nvm;

CREATE TABLE client (id int PRIMARY KEY, retired bigint DEFAULT 0, retired_count bigint DEFAULT 0,
	kv bigint DEFAULT 0);
CREATE TABLE ack (client int, n bigint, nhist int DEFAULT 0, nlarge int DEFAULT 0, nchild int DEFAULT 0,
	npart int DEFAULT 0, kv int DEFAULT 0, drawn bigint, PRIMARY KEY (client, n));
CREATE TABLE acct (id int PRIMARY KEY, balance bigint DEFAULT 0, pad text) WITH (fillfactor = 70);
CREATE TABLE hist (client int, n bigint, aid int, delta int);
-- some are nvm_btree's in their own right, which have persistence
CREATE INDEX hist_aid ON hist USING nvm_btree (aid);
CREATE INDEX hist_client ON hist (client, n);
CREATE TABLE fold (client int, aid int, delta bigint, PRIMARY KEY (client, aid));
CREATE TABLE large (client int, n bigint, part int, body text, sum text, PRIMARY KEY (client, n, part));
CREATE TABLE holder (id int PRIMARY KEY, name text);
CREATE TABLE parent (client int, n bigint, holder int REFERENCES holder, PRIMARY KEY (client, n));
CREATE TABLE child (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client int, n bigint, note text,
	FOREIGN KEY (client, n) REFERENCES parent ON DELETE CASCADE);
-- one in files
SET nvm.default_index_method = btree;
CREATE INDEX child_parent ON child USING btree (client, n);
RESET nvm.default_index_method;
CREATE INDEX child_holder ON parent (holder);
CREATE TABLE kv (k int PRIMARY KEY, hits bigint, note text);
CREATE TABLE part (client int, n bigint, k int, v text) PARTITION BY RANGE (k);
CREATE TABLE part_0 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (10) TO (20);
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (20) TO (30);
CREATE TABLE part_3 PARTITION OF part FOR VALUES FROM (30) TO (40);
CREATE INDEX part_client ON part (client, n);
CREATE TABLE churn (client int, slot int, n bigint, body text, sum text, PRIMARY KEY (client, slot));
CREATE INDEX churn_n ON churn USING nvm_btree (n) WHERE slot > 2;
CREATE TABLE bulk (id int PRIMARY KEY, v int DEFAULT 0, body text, sum text);
CREATE INDEX bulk_v ON bulk USING nvm_btree (v);
CREATE TABLE heap_ack (client int, n bigint, drawn bigint, PRIMARY KEY (client, n)) USING heap;
-- what each table of the DDL clients should hold: -1 if it should not be there
CREATE TABLE ddl_state (rel text PRIMARY KEY, rows bigint, unlogged bool DEFAULT false);
CREATE UNLOGGED TABLE scratch (client int, n bigint, body text);
CREATE INDEX scratch_n ON scratch (client, n);
CREATE SEQUENCE seq;

INSERT INTO acct SELECT i, 0, repeat('p', 100) FROM generate_series(1, 300) i;
INSERT INTO bulk SELECT i, 0, b, md5(b) FROM generate_series(1, 20000) i, LATERAL (SELECT repeat(md5(i::text), 5) AS b) s;
INSERT INTO holder SELECT i, 'holder ' || i FROM generate_series(1, 20) i;

CREATE FUNCTION noise(n int) RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(md5(i::text || n || random()), '') FROM generate_series(1, n / 32 + 1) i $$;

-- is each transaction whole or absent?
CREATE FUNCTION verify_traces() RETURNS SETOF text LANGUAGE plpgsql AS
$$
DECLARE
	r record;
	c bigint;
BEGIN
	RETURN QUERY SELECT format('transaction %s/%s is there %s times', client, n, count(*))
		FROM ack GROUP BY client, n HAVING count(*) > 1;
	RETURN QUERY SELECT format('rolled back work of %s/%s in %s', client, n, t)
		FROM (SELECT client, n, 'ack' AS t FROM ack UNION ALL SELECT client, n, 'hist' FROM hist
			  UNION ALL SELECT client, n, 'large' FROM large UNION ALL SELECT client, n, 'child' FROM child
			  UNION ALL SELECT client, n, 'part' FROM part UNION ALL SELECT client, n, 'churn' FROM churn
			  UNION ALL SELECT client, n, 'heap_ack' FROM heap_ack) g WHERE client < 0;
	RETURN QUERY SELECT format('transaction %s/%s: %s of %s, not %s', client, n, t.c, t.kind, a.c)
		FROM (SELECT 'history' AS kind, client, n, count(*) AS c FROM hist GROUP BY client, n
			  UNION ALL SELECT 'large', client, n, count(*) FROM large GROUP BY client, n
			  UNION ALL SELECT 'children', client, n, count(*) FROM child GROUP BY client, n
			  UNION ALL SELECT 'parts', client, n, count(*) FROM part GROUP BY client, n
			  UNION ALL SELECT 'numbers drawn', client, n, drawn FROM heap_ack) t
		FULL JOIN (SELECT 'history' AS kind, client, n, nhist AS c FROM ack WHERE nhist > 0
			  UNION ALL SELECT 'large', client, n, nlarge FROM ack WHERE nlarge > 0
			  UNION ALL SELECT 'children', client, n, nchild FROM ack WHERE nchild > 0
			  UNION ALL SELECT 'parts', client, n, npart FROM ack WHERE npart > 0
			  UNION ALL SELECT 'numbers drawn', client, n, drawn FROM ack WHERE drawn IS NOT NULL) a
		USING (kind, client, n) WHERE t.c IS DISTINCT FROM a.c;
	RETURN QUERY SELECT format('account %s: %s, by its history %s', id, balance, coalesce(d, 0))
		FROM acct LEFT JOIN (SELECT aid AS id, sum(delta) AS d
			FROM (SELECT aid, delta FROM hist UNION ALL SELECT aid, delta FROM fold) h GROUP BY aid) s USING (id)
		WHERE balance <> coalesce(d, 0);
	SELECT count(*) INTO c FROM acct;
	IF c <> 300 THEN RETURN NEXT format('%s accounts', c); END IF;
	SELECT sum(balance) INTO c FROM acct;
	IF c <> 0 THEN RETURN NEXT format('balances add up to %s', c); END IF;
	SELECT coalesce(sum(hits), 0) - (SELECT coalesce(sum(a.kv), 0) FROM ack a)
		- (SELECT coalesce(sum(cl.kv), 0) FROM client cl) INTO c FROM kv;
	IF c <> 0 THEN RETURN NEXT format('%s hits too many', c); END IF;
	RETURN QUERY SELECT format('child %s without parent %s/%s', h.id, h.client, h.n) FROM child h
		WHERE NOT EXISTS (SELECT FROM parent p WHERE p.client = h.client AND p.n = h.n);
	RETURN QUERY SELECT format('parent %s/%s without holder', p.client, p.n) FROM parent p
		WHERE NOT EXISTS (SELECT FROM holder h WHERE h.id = p.holder);
	RETURN QUERY SELECT format('large value %s/%s/%s is damaged', client, n, part)
		FROM large WHERE md5(body) <> sum;
	RETURN QUERY SELECT format('churn %s/%s is damaged', client, slot) FROM churn WHERE md5(body) <> sum;
	RETURN QUERY SELECT format('bulk %s is damaged', id) FROM bulk WHERE md5(body) <> sum;
	SELECT count(*) INTO c FROM bulk;
	IF c <> 20000 THEN RETURN NEXT format('bulk has %s rows', c); END IF;
	SELECT max(drawn) INTO c FROM ack;
	IF nextval('seq') <= c THEN RETURN NEXT format('the sequence goes back behind %s', c); END IF;

	FOR r IN SELECT * FROM ddl_state
	LOOP
		IF (to_regclass(r.rel) IS NULL) <> (r.rows < 0) THEN
			RETURN NEXT format('relation %s should have %s rows, to_regclass is %s', r.rel, r.rows, to_regclass(r.rel));
		ELSIF r.rows >= 0 THEN
			EXECUTE format('SELECT count(*) FROM %I', r.rel) INTO c;
			-- a crash empties it
			IF c <> r.rows AND NOT (r.unlogged AND c = 0) THEN
				RETURN NEXT format('relation %s has %s rows, not %s', r.rel, c, r.rows);
			END IF;
		END IF;
	END LOOP;
	RETURN QUERY SELECT format('relation %s was never committed', relname) FROM pg_class
		WHERE relname ~ '^d[0-9]+_[0-9]+$' AND relkind IN ('r', 'p', 'm')
			AND relname NOT IN (SELECT rel FROM ddl_state WHERE rows >= 0);
END $$;

-- Storages of the pool that no relation has, of this database or of none, or that should
-- be a file.  Nobody may be in the midst of DDL.
CREATE FUNCTION verify_owners() RETURNS SETOF text LANGUAGE sql AS
$$
	SELECT format('storage %s (relation file %s, persistence %s, %s blocks) belongs to nobody', id, relfilenode, persistence, blocks)
	FROM nvm.relations WHERE relation IS NULL AND NOT ended AND coalesce(database, current_database()) = current_database()
	UNION ALL SELECT 'test: index child_parent is in the pool, not in files'
	FROM nvm.relations WHERE NOT ended AND relation = to_regclass('child_parent')
$$;

-- By an index and without, the same rows?  verify_index is NvmCrash's; of indexes whose first
-- column is a number.  Where another one gives the same order, the planner may take that.
CREATE FUNCTION look_by_index(tab regclass) RETURNS SETOF text LANGUAGE sql AS
$$
	SELECT v FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
		JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0],
		verify_index(tab, i.indexrelid) v
	WHERE i.indrelid = tab AND i.indisvalid AND c.relkind = 'i' AND a.atttypid IN ('int4'::regtype, 'int8'::regtype)
		AND v NOT LIKE 'test: the plan%'
$$;

-- bytes of what is alive: of one table, and of all
CREATE FUNCTION live_bytes_of(rel regclass) RETURNS bigint LANGUAGE plpgsql AS
$$
DECLARE
	bytes bigint;
BEGIN
	EXECUTE format('SELECT coalesce(sum(pg_column_size(t.*)), 0) FROM %s t', rel) INTO bytes;
	RETURN bytes;
END $$;

CREATE FUNCTION live_bytes() RETURNS bigint LANGUAGE sql AS
$$
	SELECT coalesce(sum(live_bytes_of(c.oid)), 0)::bigint FROM pg_class c JOIN pg_am a ON a.oid = c.relam
	WHERE c.relkind IN ('r', 'm') AND a.amname IN ('nvm', 'nvm_vlog', 'nvm_cmdlog') AND c.relpersistence <> 't'
$$;

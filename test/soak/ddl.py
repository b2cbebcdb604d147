"""The soak's DDL.

Private tables (of client w: dW_0 to dW_3) come and go; ddl_state says in the same
transaction how many rows each should have.  The tables of the other clients are
rewritten and reindexed under them.

A step is (name, statements, transaction?): with a transaction, statements are run
between BEGIN and COMMIT, else each for itself.

Copyright (c) 2026, pg_nvm contributors
"""

PERSISTENCE = ["full", "leaves", "none"]
# what tables may be, the default first, and which of these are ours
METHODS = ["nvm", "heap"]
OURS = ["nvm", "nvm_vlog", "nvm_cmdlog"]


def with_log(commands):
    """The soak is about nvm_vlog, with nvm beside it, or about nvm_cmdlog, with both beside it."""
    METHODS[:] = ["nvm_vlog"] + (["nvm_cmdlog"] if commands else []) + ["nvm", "heap"]


def another(rng, method):
    others = [m for m in METHODS if m != method]
    return others[0] if len(others) == 1 else rng.choice(others)


def state(rel, rows, unlogged=False):
    return ("INSERT INTO ddl_state VALUES ('%s', %d, %s) ON CONFLICT (rel) DO UPDATE "
            "SET rows = excluded.rows, unlogged = excluded.unlogged" % (rel, rows, str(unlogged).lower()))


def fill(rel, rows):
    return ["INSERT INTO %s (a, b) SELECT i, repeat('r', i %% 200) FROM generate_series(1, %d) i" % (rel, rows - 2),
            "INSERT INTO %s (a, b) SELECT %d + i, noise(20000) FROM generate_series(1, 2) i" % (rel, rows - 2)]


def create(rng, rel):
    rows = rng.randint(50, 600)
    index = "CREATE INDEX %s_b ON %s (left(b, 30)) WITH (persistence = %s)" % (rel, rel, rng.choice(PERSISTENCE))
    if rng.random() < 0.2:
        return [state(rel, rows), "CREATE TABLE %s (a int, b text) PARTITION BY RANGE (a)" % rel,
                "CREATE TABLE %s_low PARTITION OF %s FOR VALUES FROM (0) TO (100)" % (rel, rel),
                "CREATE TABLE %s_high PARTITION OF %s DEFAULT" % (rel, rel),
                "CREATE INDEX ON %s (a)" % rel] + fill(rel, rows)
    if rng.random() < 0.15:
        return [state(rel, 100), "CREATE MATERIALIZED VIEW %s AS SELECT i AS a, repeat('m', i) AS b "
                "FROM generate_series(1, 100) i" % rel, "CREATE UNIQUE INDEX ON %s (a)" % rel]
    if rng.random() < 0.2:
        return [state(rel, rows), "CREATE TABLE %s AS SELECT i AS a, repeat('c', i) AS b "
                "FROM generate_series(1, %d) i" % (rel, rows)]
    unlogged = rng.random() < 0.2
    return [state(rel, rows, unlogged),
            "CREATE %sTABLE %s (a int PRIMARY KEY, b text)" % ("UNLOGGED " if unlogged else "", rel),
            index] + fill(rel, rows)


def private(rng, w, kinds):
    """A step for one of the tables of client w; kinds: rel => (relkind, access method)."""
    rel = "d%d_%d" % (w, rng.randrange(4))
    if rel not in kinds:
        return "create", create(rng, rel), True
    kind, method, unlogged = kinds[rel]
    if kind == "p":
        return rng.choice([
            ("drop", [state(rel, -1), "DROP TABLE " + rel], True),
            ("truncate", [state(rel, 0), "TRUNCATE " + rel], True),
            ("detach", ["ALTER TABLE %s DETACH PARTITION %s_low" % (rel, rel),
                        "ALTER TABLE %s ATTACH PARTITION %s_low FOR VALUES FROM (0) TO (100)" % (rel, rel)], True),
            ("vacuum", ["VACUUM " + rel], False)])
    if kind == "m":
        return rng.choice([
            ("drop", [state(rel, -1), "DROP MATERIALIZED VIEW " + rel], True),
            ("refresh", ["REFRESH MATERIALIZED VIEW " + rel], True),
            ("refresh concurrently", ["REFRESH MATERIALIZED VIEW CONCURRENTLY " + rel], False)])
    return rng.choice([
        ("drop", [state(rel, -1), "DROP TABLE " + rel], True),
        ("drop", [state(rel, -1), "DROP TABLE " + rel], True),
        ("truncate", [state(rel, 20, unlogged), "TRUNCATE " + rel,
                      "INSERT INTO %s (a, b) SELECT i, 't' FROM generate_series(1, 20) i" % rel], True),
        ("rewrite", ["ALTER TABLE %s ALTER a TYPE %s, ADD x%d timestamptz DEFAULT clock_timestamp()" % (
            rel, rng.choice(["int", "bigint"]), rng.randrange(1 << 30)),
            "UPDATE %s SET b = b || 'r' WHERE a %% 5 = 0" % rel], True),
        ("access method", ["ALTER TABLE %s SET ACCESS METHOD %s" % (rel, another(rng, method))], True),
        ("tablespace", ["ALTER TABLE %s SET TABLESPACE %s" % (rel, rng.choice(["soak_space", "pg_default"]))], True),
        ("rolled back", ["TRUNCATE " + rel, "CREATE TABLE never_%d AS TABLE %s" % (w, rel), "DROP TABLE " + rel,
                         "ROLLBACK"], True),
        ("index", ["DROP INDEX IF EXISTS %s_x" % rel, "CREATE INDEX %s_x ON %s (a, left(b, 9))" % (rel, rel)], True),
        ("index concurrently", ["DROP INDEX CONCURRENTLY IF EXISTS %s_x" % rel,
                                "CREATE INDEX CONCURRENTLY %s_x ON %s (a DESC)" % (rel, rel)], False),
        ("reindex", ["REINDEX TABLE " + rel], True),
        ("reindex concurrently", ["REINDEX TABLE CONCURRENTLY " + rel], False),
        ("vacuum full", ["VACUUM FULL " + rel], False)])


# table: its indexes, of which the first is unique
SHARED = {"hist": ["hist_aid", "hist_client"], "acct": ["acct_pkey"], "large": ["large_pkey"],
          "churn": ["churn_pkey", "churn_n"], "child": ["child_parent", "child_pkey"], "ack": ["ack_pkey"],
          "kv": ["kv_pkey"], "bulk": ["bulk_pkey", "bulk_v"], "fold": ["fold_pkey"]}
# whose type changes
COLUMN = {"hist": "delta", "ack": "kv", "churn": "n", "kv": "hits", "bulk": "v", "fold": "delta"}


def in_files(step):
    """That step, after which an index in files is still there; others stay what they are."""
    name, statements, transaction = step
    end = [] if statements[-1] == "ROLLBACK" else ["RESET nvm.default_index_method"]
    return name, ["SET nvm.default_index_method = btree"] + statements + end, transaction


def shared(rng, kinds):
    """A step for a table that everybody uses."""
    table = rng.choice(sorted(SHARED))
    index = rng.choice(SHARED[table])
    method = kinds.get(table, ("r", METHODS[0], False))[1]
    steps = [
        ("reindex", ["REINDEX INDEX " + index], True),
        ("reindex concurrently", ["REINDEX INDEX CONCURRENTLY " + index], False),
        ("reindex concurrently", ["REINDEX TABLE CONCURRENTLY " + table], False),
        ("vacuum full", ["VACUUM FULL " + table], False),
        ("vacuum freeze", ["VACUUM (FREEZE) " + table], False),
        ("index concurrently", ["DROP INDEX CONCURRENTLY IF EXISTS extra_%s" % table,
                                "CREATE INDEX CONCURRENTLY extra_%s ON %s (%s)" % (
                                    table, table, "k" if table == "kv" else "id" if table in ("acct", "bulk") else "client")], False),
        ("drop index", ["DROP INDEX CONCURRENTLY IF EXISTS extra_%s" % table], False),
        ("rolled back", ["TRUNCATE %s CASCADE" % table, "ROLLBACK"], True),
        ("detach", ["ALTER TABLE part DETACH PARTITION part_1",
                    "ALTER TABLE part ATTACH PARTITION part_1 FOR VALUES FROM (10) TO (20)"], True),
        ("tablespace", ["ALTER TABLE %s SET TABLESPACE %s" % (table, rng.choice(["soak_space", "pg_default"]))], True)]
    if table in COLUMN:
        steps.append(("rewrite", ["ALTER TABLE %s ALTER %s TYPE %s" % (
            table, COLUMN[table], rng.choice(["bigint", "numeric"]))], True))
    if table != "churn" or index != "churn_n":
        # not by a partial index
        steps.append(("cluster", ["CLUSTER %s USING %s" % (table, index)], False))
    if method in OURS and index != "child_parent":
        # a parameter of nvm_btree alone
        steps.append(("persistence", ["DO $$ BEGIN IF (SELECT amname = 'nvm_btree' FROM pg_class c JOIN pg_am a ON a.oid = relam "
                                      "WHERE c.oid = '%s'::regclass) THEN ALTER INDEX %s SET (persistence = %s); END IF; END $$" % (
                                          index, index, rng.choice(PERSISTENCE))]
                      + (["REINDEX INDEX " + index] if rng.random() < 0.5 else []), True))
    if table in ("hist", "churn", "large"):
        steps.append(("access method", ["ALTER TABLE %s SET ACCESS METHOD %s" % (
            table, another(rng, method))], True))
    elif method == "heap":
        steps = [("access method", ["ALTER TABLE %s SET ACCESS METHOD %s" % (table, METHODS[0])], True)]
    if method == "heap" and rng.random() < 0.5:
        # not for long
        steps = [("access method", ["ALTER TABLE %s SET ACCESS METHOD %s" % (table, METHODS[0])], True)]
    step = rng.choice(steps)
    return in_files(step) if table == "child" and step[0] != "index concurrently" else step


# table of commands.sql: its indexes
OF_CALLS = {"warehouse": ["warehouse_pkey"], "district": ["district_pkey"], "customer": ["customer_by_name", "customer_pkey"],
            "history": ["history_pkey"], "new_order": ["new_order_pkey"], "orders": ["orders_by_customer", "orders_pkey"],
            "order_line": ["order_line_pkey"], "item": ["item_pkey"], "stock": ["stock_pkey"], "called": ["called_pkey"]}


def of_calls(rng):
    """A step for what calls use."""
    table = rng.choice(sorted(OF_CALLS))
    index = rng.choice(OF_CALLS[table])
    column = {"item": "i_id", "called": "client"}.get(table, index.split("_")[0])
    column = {"warehouse": "w_id", "district": "d_id", "customer": "c_id", "history": "h_date", "new": "no_o_id", "orders": "o_entry_d",
              "order": "ol_i_id", "stock": "s_i_id"}.get(column, column)
    return rng.choice([
        ("reindex", ["REINDEX INDEX " + index], True),
        ("reindex concurrently", ["REINDEX INDEX CONCURRENTLY " + index], False),
        ("vacuum full", ["VACUUM FULL " + table], False),
        ("rewrite", ["ALTER TABLE %s ADD extra timestamptz DEFAULT clock_timestamp()" % table,
                     "ALTER TABLE %s DROP extra" % table], True),
        ("column", ["ALTER TABLE %s ADD extra int DEFAULT 7" % table, "ALTER TABLE %s DROP extra" % table], True),
        ("index concurrently", ["DROP INDEX CONCURRENTLY IF EXISTS extra_%s" % table,
                                "CREATE INDEX CONCURRENTLY extra_%s ON %s (%s)" % (table, table, column)], False),
        ("index", ["DROP INDEX IF EXISTS extra_%s" % table, "CREATE INDEX extra_%s ON %s (%s)" % (table, table, column)], True),
        ("drop index", ["DROP INDEX IF EXISTS extra_%s" % table], True),
        ("not partitioned", ["SECURITY LABEL FOR nvm ON COLUMN purged.w IS NULL",
                             "SECURITY LABEL FOR nvm ON COLUMN purged.w IS 'partition'"], True),
        ("role", ["GRANT pg_monitor TO soak_role", "REVOKE pg_monitor FROM soak_role"], rng.random() < 0.5),
        # it is not what was promoted, until it is again
        ("function", ["ALTER FUNCTION soak_fold(int, int[], int, int, bigint) SET geqo_threshold = %d" % rng.randint(12, 99)], True),
        ("rolled back", ["DELETE FROM called WHERE client > 9", "TRUNCATE called, purged", "ROLLBACK"], True),
        ("analyze", ["VACUUM ANALYZE " + table], False)])


def database(rng, there):
    """A database that is a copy of a small one."""
    if there:
        return "drop database", ["DROP DATABASE IF EXISTS soak_copy"], False
    return "create database", ["CREATE DATABASE soak_copy TEMPLATE soak_template STRATEGY %s" % (
        rng.choice(["wal_log", "file_copy"]))], False

"""Tables and procedures of the workloads about indexes.

ledger_1: a primary key of random 64-bit integers, nothing else.
ledger_3: the same, an index on integers that repeat, one on random text.
item: integers from 1 on, in random order, as primary key; text; integers of
      which there are a thousand.

Indexes are there before the rows are, unless said otherwise, so that they have
the shape that insertion in random order gives them.
"""
from .server import OURS

KINDS = 1000

#: a table and a row's values, random; the same expressions for whoever inserts
LEDGERS = [("ledger_1", "(random() * 9e18)::bigint, i"),
           ("ledger_3", "(random() * 9e18)::bigint, (random() * 10000)::int,"
            " to_hex((random() * 9e18)::bigint)")]


def create_ledgers(server, rows, indexes_first=True):
    """Both ledgers, with that many rows, and procedures that insert and commit.

    indexes_first: have the rows inserted into the indexes one by one, rather than
    the indexes built, which is quicker where each entry waits for a disk.
    """
    indexes = ["ALTER TABLE ledger_1 ADD PRIMARY KEY (id)",
               "ALTER TABLE ledger_3 ADD PRIMARY KEY (id)",
               "CREATE INDEX ledger_3_customer ON ledger_3 (customer)",
               "CREATE INDEX ledger_3_name ON ledger_3 (name)"]
    loads = ["INSERT INTO %s SELECT %s FROM generate_series(1, %d) i" % (table, values, rows)
             for table, values in LEDGERS]
    server.query("CREATE TABLE ledger_1 (id bigint, n int)")
    server.query("CREATE TABLE ledger_3 (id bigint, customer int, name text)")
    for statement in indexes + loads if indexes_first else loads + indexes:
        server.query(statement)
    for table, values in LEDGERS:
        server.query("""
            CREATE PROCEDURE insert_%s(transactions int) LANGUAGE plpgsql AS $$
            BEGIN
                FOR i IN 1 .. transactions LOOP
                    INSERT INTO %s VALUES (%s);
                    COMMIT;
                END LOOP;
            END $$""" % (table, table, values))


def create_item(server, rows):
    """Table item, and procedures that read it by its key."""
    server.query("CREATE TABLE item (number int PRIMARY KEY, name text, kind int)")
    server.query("""
        INSERT INTO item
        SELECT i, to_hex((random() * 9e18)::bigint), random() * %d
        FROM generate_series(1, %d) i ORDER BY random()""" % (KINDS, rows))
    # one reads a row by its key, one twenty rows from a key on, one a hundred entries
    for name, query in (
            ("lookup", "SELECT kind FROM item WHERE number = v"),
            ("range", "SELECT sum(kind) FROM (SELECT kind FROM item WHERE number >= v"
             " ORDER BY number LIMIT 20) s"),
            ("index_only", "SELECT sum(number) FROM (SELECT number FROM item"
             " WHERE number >= v ORDER BY number LIMIT 100) s")):
        server.query("""
            CREATE PROCEDURE read_%s(queries int) LANGUAGE plpgsql AS $$
            DECLARE
                v int;
                found bigint;
            BEGIN
                FOR i IN 1 .. queries LOOP
                    v := 1 + floor(random() * %d);
                    %s;
                END LOOP;
            END $$""" % (name, rows, query.replace(" FROM", " INTO found FROM", 1)))


def index_bytes(server, name):
    """What an index takes, of whatever method."""
    if server.kind in OURS:
        found = server.query("SELECT bytes FROM nvm.relations WHERE relation = '%s'::regclass"
                             " AND NOT ended" % name)
        if found:
            return int(found[0][0])
    return int(server.value("SELECT pg_relation_size('%s')" % name))


def public_indexes(server):
    return [name for name, in server.query(
        "SELECT c.oid::regclass FROM pg_class c WHERE relkind = 'i'"
        " AND relnamespace = 'public'::regnamespace ORDER BY 1")]

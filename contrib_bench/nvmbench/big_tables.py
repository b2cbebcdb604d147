"""Tables of many sizes, and transactions that can be repeated on another server.

Table t1 has one share of the rows, t2 two, and so on; t0 has 1,000 rows.  A chunk of
transactions updates each table as often as it has shares, a row each, all of it new but for its
key.  The same chunk draws the same keys on each server.  Every row counts its updates.
"""
from concurrent.futures import ThreadPoolExecutor

from .sandbox import Trouble

TABLES = 15
SHARES = TABLES * (TABLES + 1) // 2
SMALL_ROWS = 1000
FILLER = 192
#: of that length, and nothing in it repeats: a log cannot make it shorter
TEXT = " || ".join("md5('%d' || seen)" % number for number in range(FILLER // 32))
ROW_BYTES = 240             # of a row as it is stored, about
SESSIONS = 2

NAMES = ["t%d" % number for number in range(TABLES + 1)]


class BigTables:
    def __init__(self, server, size_mb):
        self.server = server
        self.share = max(100, size_mb * 1000000 // ROW_BYTES // SHARES)
        self.rows = dict.fromkeys(NAMES, 0)
        self.updates = dict.fromkeys(NAMES, 0)

    def create(self):
        for name in NAMES:
            self.server.query(self.server.sql(
                "CREATE TABLE %s (id int PRIMARY KEY, n int, filler text)" % name))
            self.server.query("""
                CREATE PROCEDURE update_%s(transactions int, first_id int, ids int, seed float8)
                LANGUAGE plpgsql AS $$
                DECLARE
                    key int; seen text;
                BEGIN
                    PERFORM setseed(seed);
                    FOR i IN 1 .. transactions LOOP
                        key := first_id + floor(random() * ids);
                        seen := random()::text;
                        UPDATE %s SET n = n + 1, filler = %s WHERE id = key;
                        COMMIT;
                    END LOOP;
                END $$""" % (name, name, TEXT))

    def load(self, part):
        """Insert up to that part of all rows; in what order, each table in one transaction."""
        for number, name in enumerate(NAMES):
            until = int(number * self.share * part) if number else SMALL_ROWS
            self.server.query("INSERT INTO %s SELECT i, 0, repeat('x', %d)"
                              " FROM generate_series(%d, %d) i" % (
                                  name, FILLER, self.rows[name] + 1, until))
            self.rows[name] = max(until, self.rows[name])

    @property
    def row_mb(self):
        return sum(self.rows.values()) * ROW_BYTES / 1e6

    def run_chunk(self, chunk, share_transactions):
        """Commit that many transactions for each share of rows; how many in all."""
        def session(mine):
            with self.server.connect() as connection:
                connection.query("SET synchronous_commit = off")
                for number, name in enumerate(NAMES):
                    ids = self.rows[name] // SESSIONS
                    connection.query("CALL update_%s(%d, %d, %d, %g)" % (
                        name, max(1, number) * share_transactions // SESSIONS, 1 + mine * ids, ids,
                        (chunk * SESSIONS + mine) % 1000 / 1000))

        with ThreadPoolExecutor(SESSIONS) as sessions:
            list(sessions.map(session, range(SESSIONS)))
        count = 0
        for number, name in enumerate(NAMES):
            done = max(1, number) * share_transactions // SESSIONS * SESSIONS
            self.updates[name] += done
            count += done
        return count

    def verify(self):
        """All rows and all updates are there; Trouble if not."""
        for name in NAMES:
            found = tuple(int(value) for value in
                          self.server.query("SELECT count(*), sum(n) FROM " + name)[0])
            if found != (self.rows[name], self.updates[name]):
                raise Trouble("server %s, table %s: %d rows with %d updates, not %d with %d" % (
                    (self.server.name, name) + found + (self.rows[name], self.updates[name])))

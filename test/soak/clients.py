#!/usr/bin/env python3
"""The soak's clients, and their record of what the server has acknowledged.

    clients.py --conninfo STR --logs DIR --seed S [--clients N] [--method METHOD]

Commands come on standard input, one a line; each is answered by lines "problem ..."
and a last line "ok ...":

    begin        of nvm_cmdlog: make the rows that callers need; before the first go
    go           clients work (they begin as soon as they can connect)
    pause        they begin nothing more
    wait         until none of them is at work
    verify       compare the database with the record; clients must be at rest
    settle       end all prepared transactions; clients must be at rest
    ddl on|off   may they do DDL?
    episode K    one client fills the pool until there is no room, then frees it by K:
                 drop, truncate, delete, full
    over         is the episode over?
    stats        counters
    quit

A client's record, DIR/N.log, has a line for each thing it knows of transaction n:

    B n      COMMIT is about to be sent         C n     it was acknowledged
    A n      rolled back, or refused
    I n      PREPARE TRANSACTION is about to be sent    P n    it is prepared
    E n C|R  COMMIT or ROLLBACK PREPARED is about to be sent

so that after a crash every C must be there, no A may be, and a B may be either.  What
became of B, I and E, `verify` finds out and writes down; their client waits for it.

Copyright (c) 2026, pg_nvm contributors
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import time
import traceback

import psycopg2
import psycopg2.extensions

import commands
import ddl
import transactions

# what a client may be told in the midst of all this
EXPECTED = {
    "40001": "serialization failure", "40P01": "deadlock", "55P03": "lock timeout",
    "57014": "statement timeout or cancelled", "53100": "no room in the pool",
    "53200": "no room in memory", "53300": "too many connections", "57P01": "terminated", "57P02": "crash shutdown", "57P03": "not yet up",
}
# of nvm_vlog tables, besides, when the device of the log fails
EXPECTED_LOG = {"58030": "the log cannot be written"}
# of calls: the item of a new order is not there
EXPECTED_CALL = {"P0002": "no data found"}
# of DDL, besides: PostgreSQL's own races between DDL of two sessions
EXPECTED_DDL = {
    "55006": "object in use", "42704": "index is gone", "42P01": "table is gone", "42P07": "index is there",
    "55000": "not in the right state",
}
# what PostgreSQL says with an internal error in such races
DDL_RACES = ("tuple concurrently", "could not open relation with OID", "cache lookup failed for")
COUNTERS = ["committed", "rolled_back", "refused", "lost", "prepared", "ddl", "ddl_refused", "snapshots",
            "disk_full", "episodes", "retired", "log_refused"]
KEEP = 400                  # transactions that are not retired yet, at least


class Record:
    """What is known of one client's transactions."""

    def __init__(self, directory, client):
        self.client = client
        self.path = os.path.join(directory, "%d.log" % client)
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        self.offset = 0
        self.open = {}      # n: state line, undecided or prepared
        self.committed = set()
        self.aborted = set()
        self.retired = 0
        self.retired_count = 0
        self.last = 0

    def write(self, *words):
        line = " ".join(str(w) for w in words)
        os.write(self.fd, (line + "\n").encode())

    def read(self):
        """Take in what was written since, by whom ever."""
        data = b""
        while True:
            more = os.pread(self.fd, 1 << 20, self.offset + len(data))
            if not more:
                break
            data += more
        self.offset += len(data)
        for line in data.decode().splitlines():
            words = line.split()
            n = int(words[1])
            self.last = max(self.last, n)
            if words[0] == "C":
                self.open.pop(n, None)
                self.committed.add(n)
            elif words[0] == "A":
                self.open.pop(n, None)
                self.aborted.add(n)
            else:
                self.open[n] = words
        return self

    def forget(self, retired):
        """Of what is retired only the number of commits matters."""
        gone = {n for n in self.committed if n <= retired}
        self.retired_count += len(gone)
        self.committed -= gone
        self.aborted = {n for n in self.aborted if n > retired}
        self.retired = retired

    def resolve(self, present, prepared):
        """What became of transactions whose end is unknown; returns problems."""
        problems = []
        for n, words in sorted(self.open.items()):
            state = words[0]
            if n in present:
                fate = "C"
                if state in "IP" or (state == "E" and words[2] == "R"):
                    problems.append("prepared transaction %d/%d (%s) was committed by nobody" % (
                        self.client, n, " ".join(words)))
            elif n in prepared:
                fate = "P"
                if state == "B":
                    problems.append("transaction %d/%d was prepared by nobody" % (self.client, n))
            else:
                fate = "A"
                if state == "P" or (state == "E" and words[2] == "C"):
                    problems.append("prepared transaction %d/%d (%s) is lost" % (self.client, n, " ".join(words)))
            if fate != state:
                self.write(fate, n)
        self.read()
        return problems

    def problems(self, present, prepared, retired, retired_count):
        self.read()
        found = []
        if retired < self.retired:
            found.append("client %d: transactions up to %d were retired, now up to %d" % (
                self.client, self.retired, retired))
        self.forget(retired)
        for n in sorted(self.committed - present):
            found.append("acknowledged transaction %d/%d is lost" % (self.client, n))
        for n in sorted(present & self.aborted):
            found.append("transaction %d/%d, which was rolled back, is there" % (self.client, n))
        for n in sorted(present - self.committed - self.aborted - set(self.open)):
            found.append("transaction %d/%d was never ended" % (self.client, n))
        for n in sorted(prepared - set(self.open)):
            found.append("transaction %d/%d should not be prepared" % (self.client, n))
        if retired_count != self.retired_count:
            found.append("client %d: %d transactions up to %d were acknowledged, the database retired %d" % (
                self.client, self.retired_count, retired, retired_count))
        return found + self.resolve(present, prepared)


class Lost(Exception):
    """The connection is gone."""


class Worker:
    """One client process; step() does one thing."""

    role = "client"

    def __init__(self, shared, number, options):
        self.shared = shared
        self.number = number
        self.options = options
        self.rng = random.Random("%d/%s/%d" % (options.seed, self.role, number))
        self.record = Record(options.logs, number)
        self.conn = None
        self.n = 0

    def count(self, what, n=1):
        self.shared.counters[self.number * len(COUNTERS) + COUNTERS.index(what)] += n

    def problem(self, text):
        with open(os.path.join(self.options.logs, "problems"), "a") as f:
            f.write("%s %d: %s\n" % (self.role, self.number, text.replace("\n", " | ")))

    def note(self, state, message, sql):
        with open(os.path.join(self.options.logs, "errors"), "a") as f:
            f.write("%s %s: %s -- %s\n" % (self.role, state, message.replace("\n", " | "), sql[:160]))

    def going(self):
        return self.shared.go.value == 1 and not self.shared.quit.value

    def pause(self, seconds):
        end = time.monotonic() + seconds
        while self.going() and time.monotonic() < end:
            time.sleep(0.05)

    def run(self):
        # an interrupt is the driver's business
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            parent = os.getppid()
            while not self.shared.quit.value and os.getppid() == parent:
                if not self.going():
                    self.shared.idle[self.number] = 1
                    time.sleep(0.01)
                    continue
                self.shared.idle[self.number] = 0
                if not self.going():
                    continue
                self.record.read()
                if any(words[0] != "P" for words in self.record.open.values()):
                    # of a lost connection; what became of it, `verify` finds out.  Not
                    # we: its backend is perhaps dead, and nobody knows it yet.
                    self.shared.idle[self.number] = 1
                    time.sleep(0.02)
                    continue
                try:
                    if self.conn is None:
                        self.connect()
                    self.step()
                except Lost:
                    if self.conn is not None:
                        self.count("lost")
                        self.conn.close()
                    self.conn = None
                    time.sleep(0.02)
        except Exception:                                   # whatever it is must be told
            self.problem("test: " + traceback.format_exc())
        self.shared.idle[self.number] = 1

    def connect(self):
        try:
            self.conn = psycopg2.connect(self.options.conninfo, application_name="soak " + self.role)
            self.conn.autocommit = True
            self.cur = self.conn.cursor()
            self.cur.execute("SET lock_timeout = '1500ms'; SET statement_timeout = '20s'; "
                             "SET client_min_messages = error; SET default_table_access_method = " + ddl.METHODS[0])
            self.session()
        except psycopg2.Error:
            if self.conn is not None:
                self.conn.close()
                self.conn = None
            raise Lost

    def session(self):
        """Settings of the role."""

    def expected(self, e, sql):
        """May the server say this?"""
        state = e.pgcode or "?"
        if state in ("53100", "53200"):
            self.count("disk_full")
        if state in EXPECTED:
            return True
        if state in EXPECTED_CALL and "SELECT soak_order" in sql:
            return True
        if state == "0A000" and sql.startswith("PREPARE TRANSACTION") and self.options.method == "nvm_cmdlog":
            # where calls are logged alone
            return True
        if state in EXPECTED_LOG and ddl.METHODS[0] == "nvm_vlog":
            self.count("log_refused")
            return True
        if self.role.startswith("ddl"):
            if state in EXPECTED_DDL or (state == "XX000" and any(r in str(e) for r in DDL_RACES)):
                self.note(state, str(e), sql)
                return True
        self.problem("%s %s -- %s" % (state, e, sql[:300]))
        return False

    def execute(self, sql):
        """Run a statement: true, or false if the server refused it."""
        try:
            self.cur.execute(sql)
            return True
        except psycopg2.Error as e:
            if self.conn.closed or e.pgcode in ("57P01", "57P02", "57P03") or e.pgcode is None:
                if e.pgcode is None and not self.conn.closed and "server closed" not in str(e):
                    self.problem("test: %s -- %s" % (e, sql[:300]))
                raise Lost
            self.expected(e, sql)
            return False

    def query(self, sql):
        if not self.execute(sql):
            return None
        return self.cur.fetchall()

    def transaction(self, statements, end="commit", begin="BEGIN", whole=False):
        """Transaction self.n + 1; true if it was committed, or prepared."""
        self.n += 1
        n = self.n
        sent = False
        try:
            if whole and end == "commit":
                self.record.write("B", n)
                sent = True
                good = self.execute("; ".join([begin] + statements + ["COMMIT"])) and self.cur.statusmessage == "COMMIT"
            else:
                good = self.execute(begin)
                for sql in statements:
                    good = good and self.execute(sql)
                if good and end == "commit":
                    self.record.write("B", n)
                    sent = True
                    good = self.execute("COMMIT") and self.cur.statusmessage == "COMMIT"
                elif good and end == "prepare":
                    self.record.write("I", n)
                    sent = True
                    good = (self.execute("PREPARE TRANSACTION 's_%d_%d'" % (self.number, n))
                            and self.cur.statusmessage == "PREPARE TRANSACTION")
                    if good:
                        self.record.write("P", n)
                        self.count("prepared")
                        return True
            if good and end == "commit":
                self.record.write("C", n)
                self.count("committed")
                return True
            if self.conn.get_transaction_status() != psycopg2.extensions.TRANSACTION_STATUS_IDLE:
                self.execute("ROLLBACK")
            self.record.write("A", n)
            sent = True
            self.count("rolled_back" if good else "refused")
            return False
        except Lost:
            if not sent:
                # nobody asked for a commit
                self.record.write("A", n)
            raise

    def end_prepared(self, n):
        how = self.rng.choice("CCR")
        self.record.write("E", n, how)
        if self.execute("%s PREPARED 's_%d_%d'" % ("COMMIT" if how == "C" else "ROLLBACK", self.number, n)):
            self.record.write("C" if how == "C" else "A", n)
            self.count("committed" if how == "C" else "rolled_back")
        else:
            self.record.write("P", n)

    def retirement(self, before):
        return transactions.retire(self.number, self.n + 1, before)

    def retire(self):
        self.record.read()
        before = min([self.n - KEEP] + [n - 50 for n in self.record.open])
        if before > self.record.retired and self.transaction(self.retirement(before)):
            self.record.retired = before
            self.count("retired")
        # not again at once
        self.next_retire = self.n + KEEP


class Client(Worker):
    next_retire = KEEP * 2

    def step(self):
        rng = self.rng
        prepared = [n for n, words in self.record.open.items() if words[0] == "P"]
        if prepared and (len(prepared) > 2 or rng.random() < 0.05):
            return self.end_prepared(rng.choice(prepared))
        if self.n >= self.next_retire:
            return self.retire()
        if rng.random() < 0.002:
            raise Lost
        kind = transactions.draw(rng)
        begin = "BEGIN" + rng.choices(["", " ISOLATION LEVEL REPEATABLE READ", " ISOLATION LEVEL SERIALIZABLE"],
                                      [8, 1, 1])[0]
        if kind in (transactions.unlarge, transactions.orphan):
            # what they delete has to be noted in ack, and no row is in a table for a snapshot that is older than
            # a rewrite of it: that is so with heap, too
            begin = "BEGIN"
        end = rng.choices(["commit", "rollback", "prepare"], [88, 8, 4])[0]
        left = end == "prepare" and rng.random() < 0.3
        if left:
            # holds no lock that another client wants
            kind = rng.choice([transactions.family, transactions.partitions])
        elif kind is transactions.temporary:
            end = "commit"
        done = self.transaction(kind(rng, self.number, self.n + 1), end, begin, rng.random() < 0.3)
        if done and end == "prepare" and not left:
            self.end_prepared(self.n)


class Ddl(Worker):
    """DDL of private tables, and now and then of a database."""
    role = "ddl"
    next_retire = KEEP

    def kinds(self, pattern):
        rows = self.query("SELECT relname, relkind, amname, relpersistence = 'u' FROM pg_class LEFT JOIN pg_am a ON a.oid = relam "
                          "WHERE relkind IN ('r', 'p', 'm') AND relname ~ '%s'" % pattern)
        return None if rows is None else {r[0]: (r[1], r[2], r[3]) for r in rows}

    def drop_broken(self, pattern):
        """Indexes that a crash or an error has left half built."""
        broken = self.query("SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class t ON t.oid = indrelid "
                            "WHERE NOT indisvalid AND t.relkind = 'r' AND t.relname ~ '%s'" % pattern)
        for row in broken or []:
            self.perform("drop index", ["DROP INDEX CONCURRENTLY IF EXISTS " + row[0]], False)

    def perform(self, name, statements, transaction):
        if statements[-1] == "ROLLBACK":
            good = self.transaction([transactions.ack(self.number, self.n + 1)] + statements[:-1], "rollback") or True
        elif transaction:
            good = self.transaction([transactions.ack(self.number, self.n + 1)] + statements)
        else:
            good = all([self.execute(sql) for sql in statements])
        self.count("ddl" if good else "ddl_refused", len(statements) if good else 1)

    def step(self):
        if not self.shared.ddl.value:
            return self.pause(0.2)
        if self.n >= self.next_retire:
            return self.retire()
        # one of them, or both make the same one
        if self.number == self.options.first + self.options.clients and self.rng.random() < 0.04:
            there = self.query("SELECT FROM pg_database WHERE datname = 'soak_copy'")
            return self.perform(*ddl.database(self.rng, there))
        pattern = "^d%d_[0-9]$" % self.number
        self.drop_broken(pattern)
        kinds = self.kinds(pattern)
        if kinds is not None:
            self.perform(*ddl.private(self.rng, self.number, kinds))
        self.pause(0.05)


class SharedDdl(Ddl):
    """DDL of the tables that all use."""
    role = "ddl of all"

    def step(self):
        if not self.shared.ddl.value:
            return self.pause(0.2)
        if self.n >= self.next_retire:
            return self.retire()
        pattern = "^(%s)$" % "|".join(ddl.SHARED)
        self.drop_broken(pattern)
        kinds = self.kinds(pattern)
        if kinds is not None:
            self.perform(*ddl.shared(self.rng, kinds))
        self.pause(self.rng.uniform(0.2, 1))


class CommandDdl(Ddl):
    """DDL of what calls use."""
    role = "ddl of calls"

    def step(self):
        if not self.shared.ddl.value:
            return self.pause(0.2)
        if self.n >= self.next_retire:
            return self.retire()
        self.drop_broken("^(%s)$" % "|".join(ddl.OF_CALLS))
        self.perform(*ddl.of_calls(self.rng))
        self.pause(self.rng.uniform(0.2, 1))


class Caller(Worker):
    """TPC-C by registered functions."""
    role = "caller"
    next_retire = KEEP
    kinds = commands.CALLS

    def retirement(self, before):
        return commands.retire(self.number, self.n + 1, before)

    def one_statement(self, sql):
        """A transaction of its own."""
        self.n += 1
        self.record.write("B", self.n)
        if self.execute(sql):
            self.record.write("C", self.n)
            self.count("committed")
        else:
            self.record.write("A", self.n)
            self.count("refused")

    def step(self):
        rng = self.rng
        if self.n >= self.next_retire:
            return self.retire()
        if rng.random() < 0.002:
            raise Lost
        if rng.random() < 0.05:
            return self.execute(commands.reads(rng, self.number))
        kind = commands.draw(rng, self.kinds)
        statements = kind(rng, self.number, self.n + 1)
        if len(statements) == 1 and rng.random() < 0.9:
            return self.one_statement(statements[0])
        return self.transaction(statements, rng.choices(["commit", "rollback"], [95, 5])[0], whole=rng.random() < 0.3)


class Hand(Caller):
    """Who writes the same tables by hand."""
    role = "by hand"
    kinds = commands.BY_HAND

    def look(self):
        """The conditions, by one snapshot amid the work."""
        if self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ"):
            found = self.query("SELECT * FROM tpcc_violations LIMIT 5")
            if found:
                self.problem("amid the work: %s" % found)
            self.execute("ROLLBACK")
            self.count("snapshots")

    def step(self):
        rng = self.rng
        if self.n >= self.next_retire:
            return self.retire()
        if rng.random() < 0.02:
            return self.look()
        kind = commands.draw(rng, self.kinds)
        end = rng.choices(["commit", "rollback", "prepare"], [85, 7, 8])[0]
        begin = "BEGIN" if rng.random() < 0.9 else "BEGIN ISOLATION LEVEL REPEATABLE READ"
        done = self.transaction(kind(rng, self.number, self.n + 1), end, begin, rng.random() < 0.3)
        if done and end == "prepare":
            self.end_prepared(self.n)
        for n in [n for n, words in self.record.open.items() if words[0] == "P"]:
            self.end_prepared(n)
        self.pause(rng.uniform(0, 0.05))


class Reader(Worker):
    """Long snapshots, in which nothing may move."""
    role = "reader"

    def step(self):
        seconds = self.rng.choice([0.2, 0.5, 1, 2, 5])
        sums = ("SELECT (SELECT sum(balance) FROM acct), (SELECT count(*) FROM hist), (SELECT sum(delta) FROM hist), "
                "(SELECT sum(delta) FROM fold), (SELECT count(*) FROM churn)")
        if not self.execute("BEGIN ISOLATION LEVEL %s" % self.rng.choice(["REPEATABLE READ", "SERIALIZABLE"])):
            return
        first = self.query(sums)
        good = first is not None and self.execute("DECLARE c CURSOR FOR SELECT client, n FROM hist ORDER BY client, n")
        rows = self.query("FETCH 10 FROM c") if good else None
        if rows is not None:
            self.pause(seconds)
            rest = self.query("FETCH ALL FROM c")
            second = self.query("SET LOCAL enable_seqscan = off; " + sums) if rest is not None else None
            if second is not None:
                self.count("snapshots")
                if first != second:
                    self.problem("a snapshot had %s, then %s" % (first, second))
                if len(rows) + len(rest) != first[0][1]:
                    self.problem("a cursor has %d rows, its snapshot %d" % (len(rows) + len(rest), first[0][1]))
                if first[0][0] != 0:
                    self.problem("balances add up to %s" % first[0][0])
                if (first[0][2] or 0) + (first[0][3] or 0) != 0:
                    self.problem("history adds up to %s" % (first[0],))
        self.execute("ROLLBACK")


class Filler(Worker):
    """Fills the pool when it is told to, and gives back what it took."""
    role = "filler"

    def free(self, how):
        if how == "drop":
            return self.execute("DROP TABLE filler")
        if how == "truncate":
            return self.execute("TRUNCATE filler") and self.execute("DROP TABLE filler")
        # what is deleted can be filled again
        good = self.execute("DELETE FROM filler WHERE id % 2 = 0") and self.execute("VACUUM filler")
        if good and how == "delete":
            before = self.query("SELECT used FROM nvm.pool")
            good = self.refill(before)
        if good and how == "full":
            good = self.execute("DELETE FROM filler WHERE id % 50 <> 1") and self.execute("VACUUM FULL filler")
        return good and self.execute("DROP TABLE filler")

    def refill(self, before):
        """As many as were deleted, small ones: VACUUM has made their room usable."""
        rows = self.query("SELECT count(*) FROM filler")
        if rows is None or before is None:
            return False
        return self.execute("INSERT INTO filler SELECT -i, repeat('r', 500) FROM generate_series(1, %d) i" % (rows[0][0] // 2))

    def step(self):
        # of an episode that a crash has ended
        if self.query("SELECT 1 FROM pg_class WHERE relname = 'filler'"):
            self.execute("DROP TABLE filler")
        if self.shared.episode.value == 0:
            return self.pause(0.2)
        how = ["drop", "truncate", "delete", "full"][self.shared.episode.value - 1]
        if not self.execute("CREATE TABLE filler (id int PRIMARY KEY, body text) USING " + ddl.another(self.rng, "heap")):
            return self.pause(0.2)
        self.execute("ALTER TABLE filler ALTER body SET STORAGE EXTERNAL")
        i, full = 0, 0
        while full < 6 and self.going():
            body = self.rng.choice([("repeat('f', 1500)", 2000), ("repeat('F', 200000)", 40)])
            if self.execute("INSERT INTO filler SELECT %d + i, %s FROM generate_series(1, %d) i" % (i, body[0], body[1])):
                i += body[1]
            else:
                full += 1
                self.pause(0.3)
        if not self.going():
            return
        for attempt in range(200):
            if self.free(how) or not self.query("SELECT 1 FROM pg_class WHERE relname = 'filler'"):
                break
            how = "drop"
            self.pause(0.1)
            if not self.going():
                return
        self.count("episodes")
        self.shared.episode.value = 0


class Shared:
    def __init__(self, workers):
        self.go = multiprocessing.Value("i", 0, lock=False)
        self.quit = multiprocessing.Value("i", 0, lock=False)
        self.episode = multiprocessing.Value("i", 0, lock=False)
        self.ddl = multiprocessing.Value("i", 1, lock=False)
        self.idle = multiprocessing.Array("i", [1] * (workers + 1), lock=False)
        self.counters = multiprocessing.Array("q", [0] * ((workers + 1) * len(COUNTERS)), lock=False)


class Driver:
    def __init__(self, options):
        self.options = options
        roles = [Client] * options.clients + [Ddl] * options.ddl + [SharedDdl, Reader, Filler]
        # who makes acknowledged transactions, and how many of them were retired
        self.views = ("ack", "client")
        if options.method == "nvm_cmdlog":
            self.views = ("acks", "clients")
            roles += [CommandDdl] + [Caller] * options.callers + [Hand]
            # a client's lane is not a warehouse's
            options.first = commands.WAREHOUSES + 1
            self.callers = [options.first + i for i, role in enumerate(roles) if issubclass(role, Caller)]
        self.shared = Shared(options.first + len(roles))
        self.workers = [role(self.shared, options.first + i, options) for i, role in enumerate(roles)]
        self.records = {w.number: Record(options.logs, w.number) for w in self.workers}
        self.told = 0
        self.processes = []
        for w in self.workers:
            p = multiprocessing.Process(target=w.run, daemon=True)
            p.start()
            self.processes.append(p)

    def connect(self):
        conn = psycopg2.connect(self.options.conninfo, application_name="soak verify")
        conn.autocommit = True
        return conn

    def worker_problems(self):
        path = os.path.join(self.options.logs, "problems")
        if not os.path.exists(path):
            return []
        with open(path) as f:
            f.seek(self.told)
            text = f.read()
            self.told = f.tell()
        return text.splitlines()

    def do_begin(self):
        """Callers have their rows of retired transactions."""
        conn = self.connect()
        for c in self.callers:
            conn.cursor().execute("INSERT INTO caller (w, client) VALUES (%d, %d)" % (commands.home(c), c))
        conn.close()

    def do_go(self):
        self.shared.go.value = 1

    def do_pause(self):
        self.shared.go.value = 0

    def do_wait(self, seconds=60):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            busy = [w for w in self.workers if not self.shared.idle[w.number]]
            if not busy:
                return []
            time.sleep(0.005)
        return ["clients do not come to rest: %s" % ", ".join("%s %d" % (w.role, w.number) for w in busy)]

    def do_verify(self):
        conn = self.connect()
        cur = conn.cursor()
        cur.execute("SELECT client, n FROM %s" % self.views[0])
        present, prepared, retired = {}, {}, {}
        for client, n in cur:
            present.setdefault(client, set()).add(n)
        cur.execute("SELECT id, retired, retired_count FROM %s" % self.views[1])
        for client, n, count in cur:
            retired[client] = (n, count)
        cur.execute("SELECT gid FROM pg_prepared_xacts")
        for (gid,) in cur:
            prepared.setdefault(int(gid.split("_")[1]), set()).add(int(gid.split("_")[2]))
        conn.close()
        problems = ["client %s does not exist" % c for c in list(present) + list(prepared) if c not in self.records]
        for c, record in self.records.items():
            if c not in retired:
                problems.append("client %d has no row" % c)
                continue
            problems += record.problems(present.get(c, set()), prepared.get(c, set()), *retired[c])
        return problems

    def do_settle(self):
        conn = self.connect()
        cur = conn.cursor()
        for c, record in self.records.items():
            for n, words in sorted(record.read().open.items()):
                if words[0] != "P":
                    return ["transaction %d/%d is %s" % (c, n, " ".join(words))]
                record.write("E", n, "C")
                cur.execute("COMMIT PREPARED 's_%d_%d'" % (c, n))
                record.write("C", n)
        conn.close()
        return []

    def do_ddl(self, how):
        self.shared.ddl.value = int(how == "on")

    def do_episode(self, how):
        self.shared.episode.value = 1 + ["drop", "truncate", "delete", "full"].index(how)

    def do_over(self):
        return "running" if self.shared.episode.value else "over"

    def do_stats(self):
        width = len(COUNTERS)
        return " ".join("%s=%d" % (name, sum(self.shared.counters[w.number * width + i] for w in self.workers))
                        for i, name in enumerate(COUNTERS))

    def main(self):
        for line in sys.stdin:
            words = line.split()
            if words[0] == "quit":
                break
            answer = None
            try:
                answer = getattr(self, "do_" + words[0])(*words[1:])
            except Exception as e:                          # the driver must hear of it
                answer = ["test: %s: %s" % (line.strip(), "%s" % e if isinstance(e, psycopg2.Error) else traceback.format_exc())]
            problems = (answer if isinstance(answer, list) else []) + self.worker_problems()
            for p in problems:
                print("problem", p.replace("\n", " | "))
            print("ok", answer if isinstance(answer, str) else "", flush=True)
        self.shared.quit.value = 1
        for p in self.processes:
            p.join(3)
            if p.is_alive():
                p.kill()


def main():
    parser = argparse.ArgumentParser(description="Clients of the soak; see the head of this file.")
    parser.add_argument("--conninfo", required=True)
    parser.add_argument("--logs", required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=5)
    parser.add_argument("--ddl", type=int, default=1, help="clients that do DDL of their own tables")
    parser.add_argument("--callers", type=int, default=4, help="with method nvm_cmdlog: clients that call functions")
    parser.add_argument("--method", default="nvm", choices=["nvm", "nvm_vlog", "nvm_cmdlog"], help="of most tables")
    options = parser.parse_args()
    options.first = 1
    if options.method != "nvm":
        ddl.with_log(options.method == "nvm_cmdlog")
    Driver(options).main()


if __name__ == "__main__":
    main()

"""Indexes of nvm tables, in the pool, against btree on heap tables.

Insertion is a procedure that commits each row.  Reads are procedures, too, of
one transaction.  Builds are CREATE INDEX on a table of random order, with all
memory they could want.  Sizes are those of the indexes after all that: what was
inserted at random, and what CREATE INDEX has just written.

With the WAL on disk only insertion is run, as the rest waits for no WAL.
"""
import os

from . import alternate, load, plots, report, tables
from .server import Server

#: none in a run, on either side: runs are too short for a fair share of it
SETTINGS = {"autovacuum": "off", "maintenance_work_mem": "512MB", "random_page_cost": "1.1"}

READS = [("point lookup", "read_lookup", 1), ("range of 20 rows", "read_range", 5),
         ("range of 100,\nindex only", "read_index_only", 10)]
BUILDS = [("int", "number"), ("text", "name"), ("duplicates", "kind")]


def _insert(server, table, transactions):
    """Transactions a second, WAL bytes of each."""
    before = load.wal_bytes(server)
    rate = alternate.timed_rate(server, "CALL insert_%s(%d)" % (table, transactions), transactions)
    return rate, (load.wal_bytes(server) - before) / transactions


def _enough(server, table, most):
    """Transactions for some three seconds; where each waits for a disk that is not many."""
    rate, wal_bytes = _insert(server, table, 200)
    return max(200, min(most, int(rate * 3)))


def _build(server, column, workers, rows):
    """Entries a second of a CREATE INDEX that leaves index item_COLUMN."""
    server.query("DROP INDEX IF EXISTS item_%s" % column)
    return alternate.timed_rate(
        server, "CREATE INDEX item_%s ON item (%s)" % (column, column), rows,
        ["max_parallel_maintenance_workers = %d" % workers])


class _Measurement:
    """Both servers and what was found; cases are kept in the order in which they ran."""

    def __init__(self, servers, options):
        self.servers = servers
        self.options = options
        self.labels = ["heap", "nvm"]
        self.panels = {}        # unit: [(case, rounds)]
        self.wal = {}           # case: bytes of each arm

    def add(self, unit, name, measure, warm=None):
        if not alternate.wanted(self.options, name.replace("\n", " ")):
            return
        for server in self.servers:
            (warm or measure)(server)
        found = alternate.run_case(
            name.replace("\n", " "), self.options.pairs, self.labels,
            [lambda server=server: measure(server) for server in self.servers])
        self.panels.setdefault(unit, []).append((name, found))

    def inserts(self, transactions):
        """transactions: how many a run on a server takes, of a table's procedure."""
        for table, indexes in (("ledger_1", "primary key"), ("ledger_3", "three\nindexes")):
            name = "insert,\n" + indexes
            wal = [[], []]
            counts = {server: transactions(server, table) for server in self.servers}

            def measure(server, table=table, wal=wal, counts=counts):
                rate, wal_bytes = _insert(server, table, counts[server])
                wal[self.servers.index(server)].append(wal_bytes)
                return rate

            self.add("committed rows a second", name, measure,
                     lambda server, table=table, counts=counts:
                     _insert(server, table, max(1, counts[server] // 5)))
            self.wal[name] = [report.median(values) for values in wal]

    def reads(self, queries):
        for name, procedure, share in READS:
            count = max(1, queries // share)
            self.add("queries a second", name, lambda server, procedure=procedure, count=count:
                     alternate.timed_rate(server, "CALL %s(%d)" % (procedure, count), count,
                                          ["plan_cache_mode = force_generic_plan"]))

    def builds(self, rows):
        for mode, workers in (("serial", 0), ("parallel", 2)):
            for label, column in BUILDS:
                self.add("CREATE INDEX, entries a second", "%s,\n%s" % (label, mode),
                         lambda server, column=column, workers=workers:
                         _build(server, column, workers, rows))

    def sizes(self):
        """Bytes of each index by each server: one pair, since they hardly differ by chance."""
        found = []
        for label, name in (("int,\nrandom", "item_pkey"), ("bigint,\nrandom", "ledger_1_pkey"),
                            ("text,\nrandom", "ledger_3_name"),
                            ("duplicates,\nrandom", "ledger_3_customer"),
                            ("int,\nbuilt", "item_number"), ("text,\nbuilt", "item_name"),
                            ("duplicates,\nbuilt", "item_kind")):
            if all(server.value("SELECT to_regclass('%s')" % name) for server in self.servers):
                found.append((label, [tuple(tables.index_bytes(server, name) / 1e6
                                            for server in self.servers)]))
        if found:
            self.panels["size in MB"] = found


def _rows(panels):
    """Panels with few cases side by side."""
    return [row for row in (panels[:2], panels[2:3], panels[3:]) if row]


def _report(sandbox, options, name, measurement):
    info = report.machine(sandbox)
    title = "Indexes of nvm in the pool against btree on heap"
    rows = []
    for unit, cases in measurement.panels.items():
        for case, found in cases:
            wal = measurement.wal.get(case, [None, None])
            rows.append(alternate.pairs_row(case.replace("\n", " "), found, unit)
                        + (alternate.cpu_ratio(found) if "parallel" not in case else ["-", "-"])
                        + [report.number(value) for value in wal])
    text = "%s; WAL on %s\nmedians of %d pairs; %s\n\n%s" % (
        title, options.wal, options.pairs, report.machine_line(info),
        report.table(["case", "unit", "heap", "nvm", "ratio", "pairs", "by CPU time",
                      "pairs", "WAL B/row heap", "nvm"], rows))
    print(text)
    data = {"title": title, "machine": info, "wal": options.wal, "pairs": options.pairs,
            "panels": measurement.panels, "by_cpu": {
                case: alternate.cpu_rounds(found) for cases in measurement.panels.values()
                for case, found in cases}, "wal_bytes": measurement.wal,
            "settings": measurement.servers[0].settings}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    plots.bar_panels(directory, file_name, "%s, WAL on %s" % (title, options.wal),
                     measurement.labels, _rows(list(measurement.panels.items())))
    return data


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    rows = alternate.own(options, "rows", 1000000, 20000)
    transactions = alternate.own(options, "transactions", 100000, 2000)
    settings = dict(options.server_settings, **SETTINGS)
    servers = [Server(sandbox, "a_heap", "heap", where, settings),
               Server(sandbox, "b_nvm", "nvm", where, settings)]
    on_disk = options.wal == "disk"
    with servers[0].running(), servers[1].running():
        for server in servers:
            load.preallocate_wal(server, 4 if options.quick else 64)
            tables.create_ledgers(server, rows // 2)
            if not on_disk:
                tables.create_item(server, rows)
            server.query("VACUUM (FREEZE, ANALYZE)")
        measurement = _Measurement(servers, options)
        if on_disk:
            measurement.inserts(lambda server, table: _enough(server, table, transactions))
        else:
            measurement.inserts(lambda server, table: transactions)
            measurement.reads(transactions * 2)
            measurement.builds(rows)
            measurement.sizes()
        return _report(sandbox, options, name, measurement)

"""What it costs that an index need not be rebuilt after a restart.

The same load on nvm tables whose nvm_btree indexes have persistence full,
leaves and none: rows inserted by a procedure that commits each, and TPC-B.
"""
import os

from . import alternate, load, plots, report, tables
from .server import Server
from .workloads import Tpcb

MODES = ["none", "leaves", "full"]
SETTINGS = {"autovacuum": "off", "nvm.index_identity": "nvm_btree"}


def _set_persistence(server, mode):
    for index in tables.public_indexes(server):
        server.query("ALTER INDEX %s SET (persistence = %s)" % (index, mode))


def _cases(servers, options):
    """(name, function of a server that returns transactions a second)."""
    transactions = alternate.own(options, "transactions", 100000, 2000)
    seconds = alternate.own(options, "seconds", 4, 1)
    tpcb = Tpcb()

    def called(sql):
        return lambda server: alternate.timed_rate(server, sql, transactions)

    return [("insert,\nprimary key", called("CALL insert_ledger_1(%d)" % transactions)),
            ("insert,\nthree indexes", called("CALL insert_ledger_3(%d)" % transactions)),
            ("TPC-B,\nin the server", called("CALL bench(%d, %d)" % (transactions, options.scale))),
            ("TPC-B,\n4 clients", lambda server: load.pgbench(
                server, tpcb.arguments(server, options), 4, seconds)["tps"])]


def _report(sandbox, options, name, found):
    info = report.machine(sandbox)
    title = "Throughput with nvm_btree indexes of persistence full, leaves and none"
    rows = []
    for case, rounds in found:
        none, leaves, full = (report.median([values[arm] for values in rounds])
                              for arm in range(3))
        against = {mode: report.summarize_pairs([(values[0], values[arm]) for values in rounds])
                   for arm, mode in enumerate(MODES)}
        rows.append([case.replace("\n", " "), report.number(none), report.number(leaves),
                     report.number(full), "%.2fx" % against["leaves"]["ratio"],
                     "%.2fx" % against["full"]["ratio"],
                     "%.2f .. %.2f" % (against["full"]["ratio_min"],
                                       against["full"]["ratio_max"])]
                    + alternate.cpu_ratio(rounds, (0, 2)))
    text = "%s\ntransactions per second; medians of %d rounds; %s\n\n%s" % (
        title, len(found[0][1]), report.machine_line(info),
        report.table(["case"] + MODES + ["leaves : none", "full : none", "rounds",
                                                  "by CPU time", "rounds"], rows))
    print(text)
    data = {"title": title, "machine": info, "modes": MODES, "cases": found,
            "by_cpu": {case: alternate.cpu_rounds(rounds) for case, rounds in found}}
    directory = os.path.join(sandbox.out, name)
    file_name = report.result_name(name, options)
    report.save(directory, file_name, text, data)
    plots.bar_panels(directory, file_name, title, MODES, [[("transactions per second", found)]])
    return data


def run(sandbox, where, options, name):
    """Measure and report; returns the data of the JSON file."""
    settings = dict(options.server_settings, **SETTINGS)
    servers = [Server(sandbox, mode, "nvm", where, settings) for mode in MODES]
    with servers[0].running(), servers[1].running(), servers[2].running():
        for server, mode in zip(servers, MODES):
            load.preallocate_wal(server, 4)
            Tpcb().setup(server, options)
            tables.create_ledgers(server, alternate.own(options, "rows", 500000, 10000))
            _set_persistence(server, mode)
            server.query("VACUUM ANALYZE")
        found = []
        for case, measure in _cases(servers, options):
            plain = case.replace("\n", " ")
            if not alternate.wanted(options, plain):
                continue
            for server in servers:
                measure(server)
            found.append((case, alternate.run_case(
                plain, options.pairs, MODES,
                [lambda server=server: measure(server) for server in servers])))
        return _report(sandbox, options, name, found)

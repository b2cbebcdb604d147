"""TPC-C and Voter: the psql scripts of contrib_bench/sql, and pgbench with their mix.

    tpcc = Tpcc(warehouses=10)
    tpcc.create(server)                         # tables, rows, keys, functions
    run = load.PgbenchRun(server, tpcc.arguments(server), clients, seconds)
    run.finish()
    problems = tpcc.problems(server)            # must be none

sql/tpcc.sql says what is as in the specification, and what is not.
"""
import os
import subprocess

from .sandbox import Trouble

#: of each warehouse, and of items altogether
FULL = {"items": 100000, "customers": 3000}
QUICK = {"items": 1000, "customers": 300}

AS_SPECIFIED = -1           # of multi


def _directory(server):
    return os.path.join(server.sandbox.work, "src", "contrib_bench", "sql")


class _Benchmark:
    """name: of the psql script, and of the directory of those of pgbench."""
    name = None
    mix = {}                # per cent of all
    violations = None       # a query for what breaks the conditions

    def variables(self):
        """Of psql."""
        raise NotImplementedError

    def defines(self):
        """Variables of pgbench."""
        raise NotImplementedError

    def create(self, server):
        """Tables of the server's kind; where they are nvm_cmdlog's, functions are registered."""
        variables = dict(self.variables(), method="heap" if server.kind == "unlogged" else server.kind,
                         unlogged="on" if server.unlogged else "off")
        command = [server.sandbox.program("psql"), "-X", "-q"]
        for name, value in variables.items():
            command += ["-v", "%s=%s" % (name, value)]
        done = subprocess.run(command + ["-f", os.path.join(_directory(server), self.name + ".sql")],
                              env=server.environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble("%s.sql failed on %s:\n%s" % (self.name, server.name, done.stderr[-3000:]))

    def arguments(self, server, **defines):
        """Of pgbench: the scripts with their weights; defines: in place of those of defines()."""
        found = []
        for name, value in dict(self.defines(), **defines).items():
            found += ["-D", "%s=%d" % (name, value)]
        for name, percent in self.mix.items():
            found += ["-f", "%s@%d" % (os.path.join(_directory(server), self.name,
                                                    name + ".pgbench"), percent)]
        return found

    def problems(self, server):
        """What violates the conditions: texts, none if they hold."""
        return ["%s: %s" % (server.name, ", ".join(map(str, row)))
                for row in server.query(self.violations + " LIMIT 20")]


class Tpcc(_Benchmark):
    """So many warehouses."""
    name = "tpcc"
    title = "TPC-C"
    mix = {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4}
    violations = "SELECT * FROM tpcc_violations"

    def __init__(self, warehouses, items=FULL["items"], customers=FULL["customers"],
                 foreign_keys=True):
        """items, and customers of a district: fewer make a load that does not comply, but is quick."""
        self.warehouses = warehouses
        self.items = items
        self.customers = customers
        self.foreign_keys = foreign_keys

    def variables(self):
        return {"warehouses": self.warehouses, "items": self.items, "customers": self.customers,
                "foreign_keys": "on" if self.foreign_keys else "off"}

    def defines(self):
        return {"warehouses": self.warehouses, "items": self.items, "customers": self.customers,
                "multi": AS_SPECIFIED}


class Voter(_Benchmark):
    """Votes from all numbers there are, so that hardly one votes twice."""
    name = "voter"
    title = "Voter"
    mix = {"vote": 100}
    violations = "SELECT * FROM voter_violations(2)"

    def variables(self):
        return {}

    def defines(self):
        return {"phones": 10000000, "max_votes": 2}

"""TPC-C: nine tables, five transactions in PL/pgSQL, a driver of pgbench scripts.

    tpcc = Tpcc(warehouses=10)
    tpcc.create(server)                         # tables, rows, keys, functions
    run = load.PgbenchRun(server, tpcc.arguments(server), clients, seconds)
    run.finish()
    problems = check.problems(server)           # must be none

What is as in the specification (revision 5.11): tables, columns and their types, rows for each
warehouse, NURand, the mix, remote warehouses, customers by last name, 1 % of the new orders rolled
back, consistency conditions.  What is not: there are no waiting and thinking times and no
foreign keys, deliveries are not deferred, and functions return less than a terminal shows.
"""
from . import check, driver, functions, rows, schema

__all__ = ["Tpcc", "check"]

#: of each warehouse, and of items altogether
FULL = {"items": 100000, "customers": 3000}
QUICK = {"items": 1000, "customers": 300}


class Tpcc:
    """So many warehouses, in tables of one access method (None: the server's default)."""

    def __init__(self, warehouses, method=None, items=FULL["items"], customers=FULL["customers"]):
        """items, and customers of a district: fewer make a load that does not comply, but is quick."""
        self.warehouses = warehouses
        self.method = method
        self.items = items
        self.customers = customers

    def create(self, server):
        schema.create_tables(server, self.method)
        functions.create(server)
        rows.load(server, self.warehouses, self.items, self.customers)
        schema.create_keys(server)
        server.query("VACUUM ANALYZE")

    def arguments(self, server):
        """Of pgbench: the five scripts with their weights."""
        return driver.arguments(server, self.warehouses, self.items, self.customers)

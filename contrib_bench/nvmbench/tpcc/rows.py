"""The rows before the first transaction (clause 4.3), made inside the server."""
import os
from concurrent.futures import ThreadPoolExecutor

from . import random_sql as r

DISTRICTS = 10

#: of an order that is delivered there is no row in new_order: seven of ten
DELIVERED = 0.7


def _address():
    return "%s, %s, %s, %s, %s" % (r.text(10, 20), r.text(10, 20), r.text(10, 20), r.letters(2),
                                   "lpad((random() * 9999)::int::text, 4, '0') || '11111'")


def _original(least, most):
    """A text, of which one in ten has the word in it."""
    return "CASE WHEN random() < 0.1 THEN overlay(%s PLACING 'ORIGINAL' FROM %s) ELSE %s END" % (
        r.text(least, most), r.integer(1, least - 8), r.text(least, most))


def _items(items):
    return "INSERT INTO item SELECT i, %s, %s, %s / 100.0, %s FROM generate_series(1, %d) i" % (
        r.integer(1, 10000), r.text(14, 24), r.integer(100, 10000), _original(26, 50), items)


def _warehouse(w, items, customers):
    """Statements that load a warehouse."""
    names = min(1000, customers)
    first_open = int(customers * DELIVERED) + 1
    yield "INSERT INTO warehouse SELECT %d, %s, %s, %s / 10000.0, %d" % (
        w, r.text(6, 10), _address(), r.integer(0, 2000), 10 * DISTRICTS * customers)
    yield "INSERT INTO stock SELECT i, %d, %s, %s, 0, 0, 0, %s FROM generate_series(1, %d) i" % (
        w, r.integer(10, 100), ", ".join(r.text(24, 24) for d in range(10)), _original(26, 50),
        items)
    yield "INSERT INTO district SELECT d, %d, %s, %s, %s / 10000.0, %d, %d" \
          " FROM generate_series(1, %d) d" % (
              w, r.text(6, 10), _address(), r.integer(0, 2000), 10 * customers, customers + 1,
              DISTRICTS)
    yield """
        INSERT INTO customer
        SELECT c, d, {w}, {first}, 'OE',
            last_name(CASE WHEN c <= {names} THEN c - 1 ELSE {nurand} END), {address},
            lpad((random() * 1e15)::bigint::text, 16, '0'), now(),
            CASE WHEN random() < 0.1 THEN 'BC' ELSE 'GC' END, 50000, {discount} / 10000.0,
            -10, 10, 1, 0, {data}
        FROM generate_series(1, {districts}) d, generate_series(1, {customers}) c""".format(
            w=w, first=r.text(8, 16), names=names, nurand=r.nurand(255, 0, names - 1, r.C_LOAD),
            address=_address(), discount=r.integer(0, 5000), data=r.text(300, 500),
            districts=DISTRICTS, customers=customers)
    yield "INSERT INTO history SELECT c_id, c_d_id, c_w_id, c_d_id, c_w_id, now(), 10, %s" \
          " FROM customer WHERE c_w_id = %d" % (r.text(12, 24), w)
    # each customer has one order, in random order
    yield """
        INSERT INTO orders
        SELECT o, d, {w}, row_number() OVER (PARTITION BY d ORDER BY random()), now(),
            CASE WHEN o < {first_open} THEN {carrier} END, {lines}, 1
        FROM generate_series(1, {districts}) d, generate_series(1, {customers}) o
        ORDER BY d, o""".format(
            w=w, first_open=first_open, carrier=r.integer(1, 10), lines=r.integer(5, 15),
            districts=DISTRICTS, customers=customers)
    yield """
        INSERT INTO order_line
        SELECT o_id, o_d_id, o_w_id, n, {item}, o_w_id,
            CASE WHEN o_id < {first_open} THEN o_entry_d END, 5,
            CASE WHEN o_id < {first_open} THEN 0 ELSE {amount} / 100.0 END, {info}
        FROM orders, generate_series(1, o_ol_cnt) n WHERE o_w_id = {w}""".format(
            w=w, item=r.integer(1, items), first_open=first_open, amount=r.integer(1, 999999),
            info=r.text(24, 24))
    yield "INSERT INTO new_order SELECT o_id, o_d_id, o_w_id FROM orders" \
          " WHERE o_w_id = %d AND o_id >= %d" % (w, first_open)


def load(server, warehouses, items, customers):
    """All rows; several warehouses at a time, each in a transaction of its own."""
    server.query(_items(items))

    def one(w):
        with server.connect() as connection:
            connection.query("SET synchronous_commit = off")
            connection.query("BEGIN")
            for statement in _warehouse(w, items, customers):
                connection.query(statement)
            connection.query("COMMIT")

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as sessions:
        list(sessions.map(one, range(1, warehouses + 1)))

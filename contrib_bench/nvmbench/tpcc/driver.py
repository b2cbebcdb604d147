"""Terminals: a pgbench script for each transaction, with the specification's mix and input.

A client is a terminal of one warehouse.  Input is made by pgbench, so that the server does
nothing but transactions.
"""
from ..workloads import script
from .random_sql import C_CUSTOMER, C_ITEM, C_RUN, a_of

MOST_LINES = 15

#: per cent of all (clause 5.2.3)
MIX = {"new_order": 45, "payment": 43, "order_status": 4, "delivery": 4, "stock_level": 4}

WAREHOUSE = "\\set w 1 + mod(:client_id, :warehouses)\n"
DISTRICT = "\\set d random(1, 10)\n"
CUSTOMER = "\\set c 1 + mod((random(0, :customer_a) | random(1, :customers)) + %d, :customers)\n" \
    % C_CUSTOMER
NAME = "\\set name mod((random(0, 255) | random(0, :names - 1)) + %d, :names)\n" % C_RUN
#: any warehouse but this one
OTHER = "1 + mod(:w + random(0, :warehouses - 2), :warehouses)"
BY_NAME = "\\if random(1, 100) <= 60\n"


def _remote(name, percent):
    return "\\set %s case when :warehouses > 1 and random(1, 100) <= %d then %s else :w end\n" % (
        name, percent, OTHER)


def _array(letter):
    return "(ARRAY[%s]::int[])[1 : :lines::int]" % ", ".join(
        ":%s%d" % (letter, n) for n in range(1, MOST_LINES + 1))


def _new_order():
    call = "SELECT new_order(:w, :d, :c, %s, %s, %s);\n" % (_array("i"), _array("s"), _array("q"))
    text = WAREHOUSE + DISTRICT + CUSTOMER + "\\set lines random(5, %d)\n" % MOST_LINES
    for n in range(1, MOST_LINES + 1):
        text += "\\set i%d 1 + mod((random(0, :item_a) | random(1, :items)) + %d, :items)\n" % (
            n, C_ITEM)
        text += _remote("s%d" % n, 1) + "\\set q%d random(1, 10)\n" % n
    # one of a hundred asks for an item that there is not
    return text + "\\if random(1, 100) = 1\n\\set i5 :items + 1\nBEGIN;\n" + call + \
        "ROLLBACK;\n\\else\n" + call + "\\endif\n"


def _payment():
    return WAREHOUSE + DISTRICT + _remote("cw", 15) + \
        "\\set cd case when :cw = :w then :d else random(1, 10) end\n" \
        "\\set amount random(100, 500000) / 100.0\n" + BY_NAME + NAME + \
        "SELECT payment_by_name(:w, :d, :cw, :cd, last_name(:name), :amount);\n\\else\n" + \
        CUSTOMER + "SELECT payment(:w, :d, :cw, :cd, :c, :amount);\n\\endif\n"


def _order_status():
    return WAREHOUSE + DISTRICT + BY_NAME + NAME + \
        "SELECT order_status_by_name(:w, :d, last_name(:name));\n\\else\n" + CUSTOMER + \
        "SELECT order_status(:w, :d, :c);\n\\endif\n"


def _delivery():
    return WAREHOUSE + "\\set carrier random(1, 10)\nSELECT delivery(:w, :carrier);\n"


def _stock_level():
    return WAREHOUSE + "\\set d 1 + mod(:client_id / :warehouses, 10)\n" \
        "\\set threshold random(10, 20)\nSELECT stock_level(:w, :d, :threshold);\n"


SCRIPTS = {"new_order": _new_order, "payment": _payment, "order_status": _order_status,
           "delivery": _delivery, "stock_level": _stock_level}


def arguments(server, warehouses, items, customers):
    """Of pgbench."""
    values = {"warehouses": warehouses, "items": items, "customers": customers,
              "names": min(1000, customers), "customer_a": a_of(customers, 1023, 3000),
              "item_a": a_of(items, 8191, 100000)}
    found = []
    for name, value in values.items():
        found += ["-D", "%s=%d" % (name, value)]
    for name, percent in MIX.items():
        found += ["-f", "%s@%d" % (script(server, "tpcc_" + name, SCRIPTS[name]()), percent)]
    return found

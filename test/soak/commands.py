"""The soak's calls of TPC-C's functions, and what is done to their tables by hand.

Each function takes (rng, c, n), client and number, and returns the statements of a
transaction; they leave rows in called that say so (see commands.sql).  Callers have a home
warehouse, whose lane their rows in called lie in.

Copyright (c) 2026, pg_nvm contributors
"""

WAREHOUSES = 3
DISTRICTS = 10
CUSTOMERS = 30
ITEMS = 200
NAMES = ["BAR", "OUGHT", "ABLE", "PRI", "PRES", "ESE", "ANTI", "CALLY", "ATION", "EING"]


def home(c):
    return 1 + c % WAREHOUSES


def warehouse(rng, c):
    """Mostly the client's own."""
    return home(c) if rng.random() < 0.8 else rng.randint(1, WAREHOUSES)


def array(values):
    return "'{%s}'" % ",".join(map(str, values))


def amount(rng):
    return "%.2f" % rng.uniform(1, 5000)


def order(rng, c, n, part=1, parts=1):
    w = warehouse(rng, c)
    lines = rng.randint(5, 15)
    items = [rng.randint(1, ITEMS) for _ in range(lines)]
    if rng.random() < 0.01:
        # is not there: the transaction fails
        items[-1] = ITEMS + 100000
    supplies = [rng.randint(1, WAREHOUSES) if rng.random() < 0.03 else w for _ in range(lines)]
    return "SELECT soak_order(%d, %d, %d, %d, %s, %s, %s, %d, %d, %d, %d)" % (
        home(c), w, rng.randint(1, DISTRICTS), rng.randint(1, CUSTOMERS), array(items), array(supplies),
        array(rng.randint(1, 10) for _ in range(lines)), c, n, part, parts)


def payment(rng, c, n, part=1, parts=1, beside=0):
    w, d = warehouse(rng, c), rng.randint(1, DISTRICTS)
    cw, cd = (w, d) if rng.random() < 0.85 else (rng.randint(1, WAREHOUSES), rng.randint(1, DISTRICTS))
    if rng.random() < 0.6:
        number = rng.randint(0, CUSTOMERS - 1)
        who = "NULL, '%s'" % (NAMES[0] + NAMES[number // 10] + NAMES[number % 10])
    else:
        who = "%d, NULL" % rng.randint(1, CUSTOMERS)
    return "SELECT soak_payment(%d, %d, %d, %d, %d, %s, %s, %d, %d, %d, %d, %d)" % (
        home(c), w, d, cw, cd, who, amount(rng), c, n, part, parts, beside)


def delivery(rng, c, n, part=1, parts=1):
    return "CALL soak_deliver(%d, %d, %d, %d, %d, %d)" % (home(c), rng.randint(1, 10), c, n, part, parts)


def some(rng, c, n, part, parts):
    return rng.choices([order, payment, delivery], [45, 43, 6])[0](rng, c, n, part, parts)


# -- transactions of calls, as lists of statements

def one(rng, c, n):
    return [some(rng, c, n, 1, 1)]


def several(rng, c, n):
    parts = rng.randint(2, 3)
    return [some(rng, c, n, part, parts) for part in range(1, parts + 1)]


def purge(rng, c, n):
    return ["SELECT soak_purge(%d, %d, %d, %d)" % (home(c), rng.choice([25, 40]), c, n)]


def fold(rng, c, n):
    return ["SELECT soak_fold(%d, %s, %d, %d, %d)" % (home(c), array(range(1, WAREHOUSES + 1)), rng.randint(1, DISTRICTS), c, n)]


def beside(rng, c, n):
    """Rows of other methods in the same transaction, which goes to the WAL as well."""
    tables = rng.sample(["beside_log", "beside_pool", "beside_heap"], rng.randint(1, 3))
    rows = ["INSERT INTO %s VALUES (%d, %d)" % (t, c, n) for t in tables]
    rows.insert(rng.randint(0, len(rows)), payment(rng, c, n, beside=len(tables)))
    return rows


def savepoint(rng, c, n):
    """A call in a subtransaction that is rolled back: one of values."""
    return ["SAVEPOINT a", some(rng, c, -n, 1, 1), "ROLLBACK TO a", some(rng, c, n, 1, 1)]


def by_rules_broken(rng, c, n):
    return ["SELECT %s(%d, %d, %d, %d)" % (rng.choice(["soak_caught", "soak_pid"]), home(c), rng.randint(1, CUSTOMERS), c, n)]


def retire(c, n, before):
    where = "WHERE client = %d AND n <= %d" % (c, before)
    return ["SELECT soak_retire(%d, %d, %d, %d)" % (home(c), c, before, n),
            "DELETE FROM beside_log " + where, "DELETE FROM beside_pool " + where, "DELETE FROM beside_heap " + where]


def reads(rng, c):
    """Two functions that only read, and leave nothing."""
    return rng.choice(["SELECT order_status(%d, %d, %d, NULL)" % (home(c), rng.randint(1, DISTRICTS), rng.randint(1, CUSTOMERS)),
                       "SELECT stock_level(%d, %d, %d)" % (home(c), rng.randint(1, DISTRICTS), rng.randint(10, 20))])


# -- by hand: the conditions hold after each of them

def called(c, n, kind, amount="NULL", part=1, parts=1):
    return "INSERT INTO called VALUES (%d, %d, %d, %d, %d, '%s', %s)" % (home(c), c, n, part, parts, kind, amount)


def hand_payment(rng, c, n):
    w, d, who, paid = warehouse(rng, c), rng.randint(1, DISTRICTS), rng.randint(1, CUSTOMERS), amount(rng)
    return ["UPDATE warehouse SET w_ytd = w_ytd + %s WHERE w_id = %d" % (paid, w),
            "UPDATE district SET d_ytd = d_ytd + %s WHERE d_w_id = %d AND d_id = %d" % (paid, w, d),
            "UPDATE customer SET c_balance = c_balance - %s, c_ytd_payment = c_ytd_payment + %s "
            "WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d" % (paid, paid, w, d, who),
            "INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data) "
            "VALUES (%d, %d, %d, %d, %d, now(), %s, 'by hand')" % (who, d, w, d, w, paid), called(c, n, "payment", paid)]


def hand_stock(rng, c, n):
    where = "s_i_id %% 17 = %d" % rng.randrange(17)
    if rng.random() < 0.7:
        where += " AND s_w_id = %d" % warehouse(rng, c)
    return ["UPDATE stock SET s_quantity = s_quantity + 10 WHERE " + where, called(c, n, "stock")]


def hand_items(rng, c, n):
    """A shared table: waits for all calls."""
    return [rng.choice(["UPDATE item SET i_price = %.2f WHERE i_id = %d" % (rng.uniform(1, 100), rng.randint(1, ITEMS)),
                        "INSERT INTO item VALUES (%d, 1, 'by hand', 5, 'x') ON CONFLICT (i_id) DO UPDATE SET i_data = item.i_data || 'y'" % (
                            ITEMS + rng.randint(1, 30)),
                        "DELETE FROM item WHERE i_id = %d" % (ITEMS + rng.randint(1, 30))]), called(c, n, "item")]


def hand_locks(rng, c, n):
    w, d = warehouse(rng, c), rng.randint(1, DISTRICTS)
    return ["SELECT FROM customer WHERE c_w_id = %d AND c_d_id = %d ORDER BY c_id FOR %s" % (
                w, d, rng.choice(["UPDATE", "NO KEY UPDATE", "SHARE"])),
            "UPDATE customer SET c_data = 'by hand %d' WHERE c_w_id = %d AND c_d_id = %d AND c_id = %d" % (
                n, w, d, rng.randint(1, CUSTOMERS)), called(c, n, "customer")]


def hand_moves(rng, c, n):
    """Rows go and come again, elsewhere."""
    w, d = warehouse(rng, c), rng.randint(1, DISTRICTS)
    table, where = rng.choice([
        ("order_line", "ol_w_id = %d AND ol_d_id = %d AND ol_o_id %% 10 = %d" % (w, d, rng.randrange(10))),
        ("history", "h_w_id = %d AND h_d_id = %d AND h_c_id = %d" % (w, d, rng.randint(1, CUSTOMERS))),
        ("new_order", "no_w_id = %d AND no_d_id = %d" % (w, d))])
    return ["WITH gone AS (DELETE FROM %s WHERE %s RETURNING *) INSERT INTO %s SELECT * FROM gone" % (table, where, table),
            called(c, n, "moved")]


def hand_amid(rng, c, n):
    """Calls and rows by hand, one after the other."""
    return [some(rng, c, n, 1, 2), hand_stock(rng, c, n)[0], some(rng, c, n, 2, 2)]


# kind, weight
CALLS = [(one, 80), (several, 6), (purge, 3), (fold, 4), (beside, 6), (savepoint, 1), (by_rules_broken, 1)]
BY_HAND = [(hand_payment, 30), (hand_stock, 15), (hand_items, 5), (hand_locks, 15), (hand_moves, 15), (hand_amid, 20)]


def draw(rng, kinds):
    return rng.choices([k for k, _ in kinds], [w for _, w in kinds])[0]

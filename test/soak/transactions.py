"""The soak's transactions, as lists of SQL statements.

Each function takes (rng, c, n), client and number, and returns the statements between
BEGIN and COMMIT; they leave a row in ack that says what else they have left (see
schema.sql).  Rows that several clients change are locked in the order of their keys,
kv last, so that no deadlock is to be expected but with DDL.

Copyright (c) 2026, pg_nvm contributors
"""

ACCOUNTS = 300
NOISE = "noise(%d)"


def ack(c, n, **counts):
    names = ["client", "n"] + list(counts)
    return "INSERT INTO ack (%s) VALUES (%s)" % (
        ", ".join(names), ", ".join(str(v) for v in [c, n] + list(counts.values())))


def moves(rng, c, n, accounts=3):
    ids = sorted(rng.sample(range(1, ACCOUNTS + 1), accounts))
    deltas = [rng.randint(-100, 100) for _ in ids[1:]]
    deltas.append(-sum(deltas))
    out = []
    for aid, delta in zip(ids, deltas):
        out.append("UPDATE acct SET balance = balance + %d WHERE id = %d" % (delta, aid))
        out.append("INSERT INTO hist (client, n, aid, delta) VALUES (%d, %d, %d, %d)" % (c, n, aid, delta))
    return out


def transfer(rng, c, n):
    return [ack(c, n, nhist=3)] + moves(rng, c, n)


def locked_transfer(rng, c, n):
    ids = sorted(rng.sample(range(1, ACCOUNTS + 1), 4))
    return [ack(c, n, nhist=2),
            "SELECT id FROM acct WHERE id IN (%d, %d) ORDER BY id FOR %s" % (
                ids[0], ids[1], rng.choice(["SHARE", "KEY SHARE", "UPDATE", "NO KEY UPDATE"])),
            "UPDATE acct SET balance = balance + 5, pad = repeat(chr(%d), %d) WHERE id = %d" % (
                65 + n % 26, rng.randint(1, 400), ids[2]),
            "UPDATE acct SET balance = balance - 5 WHERE id = %d" % ids[3],
            "INSERT INTO hist (client, n, aid, delta) VALUES (%d, %d, %d, 5), (%d, %d, %d, -5)" % (
                c, n, ids[2], c, n, ids[3])]


def large(rng, c, n):
    parts = rng.randint(1, 3)
    out = [ack(c, n, nlarge=parts),
           "INSERT INTO large SELECT %d, %d, i, b, md5(b) FROM generate_series(1, %d) i, "
           "LATERAL (SELECT CASE WHEN i %% 2 = 1 THEN noise(%d + i) ELSE repeat('large', %d) END AS b) s" % (
               c, n, parts, rng.choice([3000, 15000, 60000, 120000]), rng.randint(100, 40000))]
    # one of before is changed
    out.append("UPDATE large SET body = body || 'x', sum = md5(body || 'x') WHERE client = %d AND n > %d AND part = 1"
               % (c, n - rng.randint(2, 15)))
    return out


def unlarge(rng, c, n):
    return [ack(c, n),
            "WITH gone AS (DELETE FROM large WHERE client = %d AND n < %d - 40 RETURNING n) "
            "UPDATE ack SET nlarge = nlarge - g.c FROM (SELECT n, count(*) AS c FROM gone GROUP BY n) g "
            "WHERE ack.client = %d AND ack.n = g.n" % (c, n, c)]


def savepoints(rng, c, n):
    never = moves(rng, -c, n)
    return (["SAVEPOINT a", ack(-c, n, nhist=3)] + never
            + ["INSERT INTO large VALUES (%d, %d, 1, noise(20000), 'x')" % (-c, n),
               "INSERT INTO heap_ack VALUES (%d, %d, nextval('seq'))" % (-c, n),
               "ROLLBACK TO a", ack(c, n, nhist=5)] + moves(rng, c, n)
            + ["SAVEPOINT b"] + moves(rng, c, n, 2) + ["RELEASE b", "SAVEPOINT c"]
            + moves(rng, -c, n) + ["DELETE FROM hist WHERE client = %d" % c, "DELETE FROM acct WHERE id < 20",
                                   "ROLLBACK TO c"])


def mixed(rng, c, n):
    return ([ack(c, n, nhist=3, drawn="nextval('seq')"),
             "INSERT INTO heap_ack VALUES (%d, %d, currval('seq'))" % (c, n)] + moves(rng, c, n))


def family(rng, c, n):
    children = rng.randint(1, 4)
    return [ack(c, n, nchild=children),
            "INSERT INTO parent (client, n, holder) VALUES (%d, %d, %d)" % (c, n, rng.randint(1, 20)),
            "INSERT INTO child (client, n, note) SELECT %d, %d, 'child ' || i FROM generate_series(1, %d) i" % (
                c, n, children)]


def orphan(rng, c, n):
    """Parents go, and take their children with them."""
    return [ack(c, n),
            "WITH gone AS (DELETE FROM parent WHERE client = %d AND n < %d - 30 RETURNING n) "
            "UPDATE ack SET nchild = 0 FROM gone WHERE ack.client = %d AND ack.n = gone.n" % (c, n, c),
            "UPDATE holder SET name = 'renamed %d' WHERE id = %d" % (n, rng.randint(1, 20))]


def conflict(rng, c, n):
    return [ack(c, n, kv=1),
            "INSERT INTO kv AS k VALUES (%d, 1, 'new') ON CONFLICT (k) DO UPDATE SET hits = k.hits + 1, note = 'hit %d'" % (
                rng.randint(1, 60), n)]


def forget_key(rng, c, n):
    return [ack(c, n),
            "WITH d AS (DELETE FROM kv WHERE k = %d RETURNING hits) UPDATE client "
            "SET kv = kv - coalesce((SELECT sum(hits) FROM d), 0) WHERE id = %d" % (rng.randint(1, 60), c)]


def partitions(rng, c, n):
    rows = rng.randint(1, 5)
    return [ack(c, n, npart=rows),
            "INSERT INTO part (client, n, k, v) SELECT %d, %d, (%d + i * 7) %% 40, repeat('v', %d) FROM generate_series(1, %d) i" % (
                c, n, rng.randint(0, 39), rng.randint(1, 500), rows),
            "UPDATE part SET k = (k + 10) %% 40 WHERE client = %d AND n > %d AND k %% 3 = 0" % (c, n - 10)]


def churn(rng, c, n):
    slots = sorted(rng.sample(range(1, 31), 4))
    size = rng.choice([10, 300, 2500, 9000])
    return [ack(c, n),
            "DELETE FROM churn WHERE client = %d AND slot = %d" % (c, slots[0]),
            "INSERT INTO churn SELECT %d, s, %d, b, md5(b) FROM unnest(ARRAY%s) s, LATERAL (SELECT noise(%d + s) AS b) x "
            "ON CONFLICT (client, slot) DO UPDATE SET n = excluded.n, body = excluded.body, sum = excluded.sum" % (
                c, n, slots[1:], size),
            "INSERT INTO scratch VALUES (%d, %d, repeat('s', 200))" % (c, n)]


def temporary(rng, c, n):
    return [ack(c, n, nhist=2),
            "CREATE TEMP TABLE own (id int PRIMARY KEY, t text) ON COMMIT DROP",
            "INSERT INTO own SELECT i, noise(%d) FROM generate_series(1, 20) i" % rng.choice([50, 3000])] + moves(rng, c, n, 2)


def bulk(rng, c, n):
    first = rng.randint(1, 19900)
    return [ack(c, n),
            "UPDATE bulk SET v = v + 1, body = b, sum = md5(b) FROM (SELECT noise(%d) AS b) s WHERE id BETWEEN %d AND %d" % (
                rng.randint(10, 600), first, first + rng.randint(1, 100))]


def retire(c, n, before):
    """Transactions up to number `before` go."""
    where = "WHERE client = %d AND n <= %d" % (c, before)
    return [ack(c, n),
            "INSERT INTO fold SELECT %d, aid, sum(delta) FROM hist %s GROUP BY aid ORDER BY aid "
            "ON CONFLICT (client, aid) DO UPDATE SET delta = fold.delta + excluded.delta" % (c, where),
            "DELETE FROM hist " + where, "DELETE FROM large " + where, "DELETE FROM parent " + where,
            "DELETE FROM part " + where, "DELETE FROM heap_ack " + where, "DELETE FROM scratch " + where,
            "WITH gone AS (DELETE FROM ack %s RETURNING kv) UPDATE client SET retired = %d, "
            "retired_count = retired_count + (SELECT count(*) FROM gone), "
            "kv = kv + (SELECT coalesce(sum(g.kv), 0) FROM gone g) WHERE id = %d" % (where, before, c)]


# kind, weight
KINDS = [(transfer, 30), (locked_transfer, 10), (large, 8), (unlarge, 2), (savepoints, 8), (mixed, 10),
         (family, 8), (orphan, 2), (conflict, 8), (forget_key, 1), (partitions, 5), (churn, 8), (bulk, 6), (temporary, 2)]


def draw(rng):
    return rng.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]

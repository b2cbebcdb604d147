"""Consistency conditions (clause 3.3.2): each as a query for what violates it."""

CONDITIONS = {
    "1: w_ytd is the sum of d_ytd": """
        SELECT w_id FROM warehouse
        WHERE w_ytd IS DISTINCT FROM (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)""",
    "2: d_next_o_id is behind the last order, of orders and of new_order": """
        SELECT d_w_id, d_id FROM district
        WHERE d_next_o_id - 1 <> (SELECT max(o_id) FROM orders
            WHERE o_w_id = d_w_id AND o_d_id = d_id)
        OR d_next_o_id - 1 <> (SELECT max(no_o_id) FROM new_order
            WHERE no_w_id = d_w_id AND no_d_id = d_id)""",
    "3: new_order has no hole": """
        SELECT no_w_id, no_d_id FROM new_order GROUP BY 1, 2
        HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)""",
    "4: a district has as many lines as its orders say": """
        SELECT w, d FROM (SELECT o_w_id w, o_d_id d, sum(o_ol_cnt) n FROM orders GROUP BY 1, 2) o
        FULL JOIN (SELECT ol_w_id w, ol_d_id d, count(*) n FROM order_line GROUP BY 1, 2) l
            USING (w, d) WHERE o.n IS DISTINCT FROM l.n""",
    "5: an order without carrier is in new_order, no other is": """
        SELECT o_w_id, o_d_id, o_id FROM orders
        FULL JOIN new_order ON o_w_id = no_w_id AND o_d_id = no_d_id AND o_id = no_o_id
        WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL) OR o_id IS NULL""",
    "6: an order has as many lines as it says": """
        SELECT w, d, o FROM (SELECT o_w_id w, o_d_id d, o_id o, o_ol_cnt n FROM orders) o
        FULL JOIN (SELECT ol_w_id w, ol_d_id d, ol_o_id o, count(*) n FROM order_line
            GROUP BY 1, 2, 3) l USING (w, d, o) WHERE o.n IS DISTINCT FROM l.n""",
    "7: a line is delivered as its order is": """
        SELECT ol_w_id, ol_d_id, ol_o_id, ol_number FROM order_line
        JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id
        WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)""",
    "8: w_ytd is the sum of the history": """
        SELECT w_id FROM warehouse
        WHERE w_ytd IS DISTINCT FROM (SELECT sum(h_amount) FROM history WHERE h_w_id = w_id)""",
    "9: d_ytd is the sum of the history": """
        SELECT w, d FROM (SELECT d_w_id w, d_id d, d_ytd y FROM district) d
        FULL JOIN (SELECT h_w_id w, h_d_id d, sum(h_amount) y FROM history GROUP BY 1, 2) h
            USING (w, d) WHERE d.y IS DISTINCT FROM h.y""",
    "10, 12: a customer's balance, and what was paid, are those of lines and history": """
        SELECT w, d, c FROM (SELECT c_w_id w, c_d_id d, c_id c, c_balance, c_ytd_payment
            FROM customer) c
        LEFT JOIN (SELECT o_w_id w, o_d_id d, o_c_id c, sum(ol_amount) due FROM orders
            JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
            WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3) l USING (w, d, c)
        LEFT JOIN (SELECT h_c_w_id w, h_c_d_id d, h_c_id c, sum(h_amount) paid FROM history
            GROUP BY 1, 2, 3) h USING (w, d, c)
        WHERE c_balance <> coalesce(due, 0) - coalesce(paid, 0)
        OR c_balance + c_ytd_payment <> coalesce(due, 0)""",
}


def problems(server):
    """Which conditions do not hold, and for how many keys."""
    found = []
    for name, query in CONDITIONS.items():
        broken = int(server.value("SELECT count(*) FROM (%s) broken" % query))
        if broken:
            found.append("condition %s: not for %d keys" % (name, broken))
    return found

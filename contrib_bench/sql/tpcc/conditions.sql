-- The consistency conditions (clause 3.3.2): a row of tpcc_violations for each key that one of
-- them does not hold for.  Condition 11 is about the first population alone.

CREATE VIEW tpcc_violations AS
SELECT 1 AS condition, 'w_ytd is the sum of d_ytd' AS what, ARRAY[w_id] AS key FROM warehouse
    WHERE w_ytd IS DISTINCT FROM (SELECT sum(d_ytd) FROM district WHERE d_w_id = w_id)
UNION ALL
SELECT 2, 'd_next_o_id is behind the last order, of orders and of new_order', ARRAY[d_w_id, d_id]
    FROM district
    WHERE d_next_o_id - 1 <> (SELECT max(o_id) FROM orders
        WHERE o_w_id = d_w_id AND o_d_id = d_id)
    OR d_next_o_id - 1 <> (SELECT max(no_o_id) FROM new_order
        WHERE no_w_id = d_w_id AND no_d_id = d_id)
UNION ALL
SELECT 3, 'new_order has no hole', ARRAY[no_w_id, no_d_id] FROM new_order
    GROUP BY no_w_id, no_d_id HAVING max(no_o_id) - min(no_o_id) + 1 <> count(*)
UNION ALL
SELECT 4, 'a district has as many lines as its orders say', ARRAY[w, d]
    FROM (SELECT o_w_id w, o_d_id d, sum(o_ol_cnt) n FROM orders GROUP BY 1, 2) o
    FULL JOIN (SELECT ol_w_id w, ol_d_id d, count(*) n FROM order_line GROUP BY 1, 2) l
        USING (w, d)
    WHERE o.n IS DISTINCT FROM l.n
UNION ALL
SELECT 5, 'an order without carrier is in new_order, no other is',
    ARRAY[coalesce(o_w_id, no_w_id), coalesce(o_d_id, no_d_id), coalesce(o_id, no_o_id)]
    FROM orders
    FULL JOIN new_order ON o_w_id = no_w_id AND o_d_id = no_d_id AND o_id = no_o_id
    WHERE (o_carrier_id IS NULL) <> (no_o_id IS NOT NULL) OR o_id IS NULL
UNION ALL
SELECT 6, 'an order has as many lines as it says', ARRAY[w, d, o]
    FROM (SELECT o_w_id w, o_d_id d, o_id o, o_ol_cnt n FROM orders) o
    FULL JOIN (SELECT ol_w_id w, ol_d_id d, ol_o_id o, count(*) n FROM order_line
        GROUP BY 1, 2, 3) l USING (w, d, o)
    WHERE o.n IS DISTINCT FROM l.n
UNION ALL
SELECT 7, 'a line is delivered as its order is', ARRAY[ol_w_id, ol_d_id, ol_o_id, ol_number]
    FROM order_line JOIN orders ON o_w_id = ol_w_id AND o_d_id = ol_d_id AND o_id = ol_o_id
    WHERE (ol_delivery_d IS NULL) <> (o_carrier_id IS NULL)
UNION ALL
SELECT 8, 'w_ytd is the sum of the history', ARRAY[w_id] FROM warehouse
    WHERE w_ytd IS DISTINCT FROM (SELECT sum(h_amount) FROM history WHERE h_w_id = w_id)
UNION ALL
SELECT 9, 'd_ytd is the sum of the history', ARRAY[w, d]
    FROM (SELECT d_w_id w, d_id d, d_ytd y FROM district) d
    FULL JOIN (SELECT h_w_id w, h_d_id d, sum(h_amount) y FROM history GROUP BY 1, 2) h
        USING (w, d)
    WHERE d.y IS DISTINCT FROM h.y
UNION ALL
SELECT CASE WHEN c_balance <> due - paid THEN 10 ELSE 12 END,
    'a customer''s balance, and what was paid, are those of lines and history', ARRAY[w, d, c]
    FROM (SELECT c_w_id w, c_d_id d, c_id c, c_balance, c_ytd_payment,
            coalesce(l.due, 0) due, coalesce(h.paid, 0) paid
        FROM customer
        LEFT JOIN (SELECT o_w_id w, o_d_id d, o_c_id c, sum(ol_amount) due FROM orders
            JOIN order_line ON ol_w_id = o_w_id AND ol_d_id = o_d_id AND ol_o_id = o_id
            WHERE ol_delivery_d IS NOT NULL GROUP BY 1, 2, 3) l
            ON (l.w, l.d, l.c) = (c_w_id, c_d_id, c_id)
        LEFT JOIN (SELECT h_c_w_id w, h_c_d_id d, h_c_id c, sum(h_amount) paid FROM history
            GROUP BY 1, 2, 3) h ON (h.w, h.d, h.c) = (c_w_id, c_d_id, c_id)) x
    WHERE c_balance <> due - paid OR c_balance + c_ytd_payment <> due;

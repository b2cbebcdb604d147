-- The five transactions (clauses 2.4 to 2.8), a function each.
--
-- They take rows in the order warehouse, district, customer or stock by (warehouse, item): so
-- two of them never wait for each other in a circle, with or without lanes.

-- The middle one of those with that name, by first name (clause 2.5.2.2).  Of those with one
-- first name, too, the key says which comes first.
CREATE FUNCTION customer_by_name(in_w int, in_d int, in_last text) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE
    ids int[];
BEGIN
    SELECT array_agg(c_id ORDER BY c_first, c_id) INTO ids FROM customer
        WHERE c_w_id = in_w AND c_d_id = in_d AND c_last = in_last;
    IF ids IS NULL THEN
        RAISE EXCEPTION 'no customer named %', in_last;
    END IF;
    RETURN ids[(cardinality(ids) + 1) / 2];
END $$;

-- Returns what the order costs.  NULL: an item does not exist, and the client rolls back, as
-- the terminal does that shows "Item number is not valid" (clause 2.4.2.3).
CREATE FUNCTION new_order(in_w int, in_d int, in_c int, items int[], supplies int[],
    quantities int[]) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
    warehouse_tax numeric; district_tax numeric; price numeric;
    amount numeric; total numeric := 0; order_id int; line record; buyer record; info text;
BEGIN
    SELECT w_tax INTO STRICT warehouse_tax FROM warehouse WHERE w_id = in_w;
    UPDATE district SET d_next_o_id = d_next_o_id + 1 WHERE d_w_id = in_w AND d_id = in_d
        RETURNING d_next_o_id - 1, d_tax INTO STRICT order_id, district_tax;
    SELECT c_discount, c_last, c_credit INTO STRICT buyer FROM customer
        WHERE c_w_id = in_w AND c_d_id = in_d AND c_id = in_c;
    INSERT INTO orders VALUES (order_id, in_d, in_w, in_c, now(), NULL, cardinality(items),
        (in_w = ALL (supplies))::int);
    INSERT INTO new_order VALUES (order_id, in_d, in_w);
    FOR line IN SELECT item, supply, quantity, number
        FROM unnest(items, supplies, quantities) WITH ORDINALITY
            AS l (item, supply, quantity, number)
        ORDER BY supply, item, number
    LOOP
        SELECT i_price INTO price FROM item WHERE i_id = line.item;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
        UPDATE stock SET
            s_quantity = CASE WHEN s_quantity >= line.quantity + 10
                THEN s_quantity - line.quantity ELSE s_quantity - line.quantity + 91 END,
            s_ytd = s_ytd + line.quantity, s_order_cnt = s_order_cnt + 1,
            s_remote_cnt = s_remote_cnt + (line.supply <> in_w)::int
        WHERE s_w_id = line.supply AND s_i_id = line.item
        RETURNING CASE in_d WHEN 1 THEN s_dist_01 WHEN 2 THEN s_dist_02 WHEN 3 THEN s_dist_03
            WHEN 4 THEN s_dist_04 WHEN 5 THEN s_dist_05 WHEN 6 THEN s_dist_06
            WHEN 7 THEN s_dist_07 WHEN 8 THEN s_dist_08 WHEN 9 THEN s_dist_09 ELSE s_dist_10 END
            INTO STRICT info;
        amount := line.quantity * price;
        total := total + amount;
        INSERT INTO order_line VALUES (order_id, in_d, in_w, line.number, line.item, line.supply,
            NULL, line.quantity, amount, info);
    END LOOP;
    RETURN total * (1 - buyer.c_discount) * (1 + warehouse_tax + district_tax);
END $$;

-- The customer by number, or, if that is NULL, by last name.  Returns the balance.
CREATE FUNCTION payment(in_w int, in_d int, in_c_w int, in_c_d int, in_c int, in_last text,
    amount numeric) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
    warehouse_name text; district_name text; balance numeric;
    buyer int := coalesce(in_c, customer_by_name(in_c_w, in_c_d, in_last));
BEGIN
    UPDATE warehouse SET w_ytd = w_ytd + amount WHERE w_id = in_w
        RETURNING w_name INTO STRICT warehouse_name;
    UPDATE district SET d_ytd = d_ytd + amount WHERE d_w_id = in_w AND d_id = in_d
        RETURNING d_name INTO STRICT district_name;
    UPDATE customer SET c_balance = c_balance - amount, c_ytd_payment = c_ytd_payment + amount,
        c_payment_cnt = c_payment_cnt + 1,
        c_data = CASE WHEN c_credit = 'BC' THEN
            left(concat_ws(' ', c_id, c_d_id, c_w_id, in_d, in_w, amount, c_data), 500)
            ELSE c_data END
        WHERE c_w_id = in_c_w AND c_d_id = in_c_d AND c_id = buyer
        RETURNING c_balance INTO STRICT balance;
    INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data)
        VALUES (buyer, in_c_d, in_c_w, in_d, in_w, now(), amount,
            warehouse_name || '    ' || district_name);
    RETURN balance;
END $$;

-- The last order's lines, as the sum that the terminal would show line by line.
CREATE FUNCTION order_status(in_w int, in_d int, in_c int, in_last text) RETURNS numeric
LANGUAGE plpgsql AS $$
DECLARE
    buyer_id int := coalesce(in_c, customer_by_name(in_w, in_d, in_last));
    buyer record; last_order record; line record; total numeric := 0;
BEGIN
    SELECT c_balance, c_first, c_middle, c_last INTO STRICT buyer FROM customer
        WHERE c_w_id = in_w AND c_d_id = in_d AND c_id = buyer_id;
    SELECT o_id, o_entry_d, o_carrier_id INTO last_order FROM orders
        WHERE o_w_id = in_w AND o_d_id = in_d AND o_c_id = buyer_id ORDER BY o_id DESC LIMIT 1;
    FOR line IN SELECT ol_i_id, ol_supply_w_id, ol_quantity, ol_amount, ol_delivery_d
        FROM order_line
        WHERE ol_w_id = in_w AND ol_d_id = in_d AND ol_o_id = last_order.o_id
        ORDER BY ol_number
    LOOP
        total := total + line.ol_amount;
    END LOOP;
    RETURN total;
END $$;

-- Returns the orders delivered.  Without lanes another delivery may take the oldest order
-- first: look again.
CREATE FUNCTION delivery(in_w int, in_carrier int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE
    order_id int; buyer int; amount numeric; delivered int := 0;
BEGIN
    FOR d IN 1 .. 10 LOOP
        LOOP
            SELECT no_o_id INTO order_id FROM new_order
                WHERE no_w_id = in_w AND no_d_id = d ORDER BY no_o_id LIMIT 1;
            EXIT WHEN NOT FOUND;
            DELETE FROM new_order WHERE no_w_id = in_w AND no_d_id = d AND no_o_id = order_id;
            EXIT WHEN FOUND;
        END LOOP;
        CONTINUE WHEN order_id IS NULL;
        UPDATE orders SET o_carrier_id = in_carrier
            WHERE o_w_id = in_w AND o_d_id = d AND o_id = order_id
            RETURNING o_c_id INTO STRICT buyer;
        UPDATE order_line SET ol_delivery_d = now()
            WHERE ol_w_id = in_w AND ol_d_id = d AND ol_o_id = order_id;
        SELECT sum(ol_amount) INTO STRICT amount FROM order_line
            WHERE ol_w_id = in_w AND ol_d_id = d AND ol_o_id = order_id;
        UPDATE customer SET c_balance = c_balance + amount, c_delivery_cnt = c_delivery_cnt + 1
            WHERE c_w_id = in_w AND c_d_id = d AND c_id = buyer;
        delivered := delivered + 1;
    END LOOP;
    RETURN delivered;
END $$;

CREATE FUNCTION stock_level(in_w int, in_d int, threshold int) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    next_order int; low bigint;
BEGIN
    SELECT d_next_o_id INTO STRICT next_order FROM district WHERE d_w_id = in_w AND d_id = in_d;
    SELECT count(DISTINCT s_i_id) INTO low FROM order_line JOIN stock ON s_i_id = ol_i_id
        WHERE ol_w_id = in_w AND ol_d_id = in_d AND ol_o_id >= next_order - 20
        AND ol_o_id < next_order AND s_w_id = in_w AND s_quantity < threshold;
    RETURN low;
END $$;

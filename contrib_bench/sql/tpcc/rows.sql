-- The rows before the first transaction (clause 4.3), made inside the server: items here,
-- each warehouse by load_warehouse(), in a transaction of its own.

-- The clause's last names (4.3.2.3).
CREATE FUNCTION last_name(number int) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT s[number / 100 + 1] || s[number / 10 % 10 + 1] || s[number % 10 + 1]
    FROM (SELECT '{BAR,OUGHT,ABLE,PRI,PRES,ESE,ANTI,CALLY,ATION,EING}'::text[] AS s) s
$$;

-- Those below are inlined, so each row gets a value of its own.
CREATE FUNCTION load_int(low int, high int) RETURNS int LANGUAGE sql AS $$
    SELECT (low + floor(random() * (high - low + 1)))::int
$$;

CREATE FUNCTION load_text(length int) RETURNS text LANGUAGE sql AS $$
    SELECT left(md5(random()::text) || md5(random()::text), length)
$$;

CREATE FUNCTION load_letters(length int) RETURNS text LANGUAGE sql AS $$
    SELECT translate(left(md5(random()::text), length), '0123456789', 'ghijklmnop')
$$;

CREATE FUNCTION load_zip() RETURNS text LANGUAGE sql AS $$
    SELECT lpad(floor(random() * 10000)::text, 4, '0') || '11111'
$$;

-- One in ten has the word in it.
CREATE FUNCTION load_data() RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN random() < 0.1
        THEN overlay(load_text(load_int(26, 50)) PLACING 'ORIGINAL' FROM load_int(1, 18))
        ELSE load_text(load_int(26, 50)) END
$$;

-- 300 to 500 characters.
CREATE FUNCTION load_customer_data() RETURNS text LANGUAGE sql AS $$
    SELECT left(load_text(64) || load_text(64) || load_text(64) || load_text(64) || load_text(64)
        || load_text(64) || load_text(64) || load_text(64), load_int(300, 500))
$$;

-- NURand's C of last names is 157 here and 223 in the runs (clause 2.1.6.1).
CREATE FUNCTION load_name(names int) RETURNS text LANGUAGE sql AS $$
    SELECT last_name(((load_int(0, 255) | load_int(0, names - 1)) + 157) % names)
$$;

CREATE PROCEDURE load_warehouse(w int, items int, customers int) LANGUAGE plpgsql AS $$
DECLARE
    names int := least(1000, customers);
    first_open int := customers * 7 / 10 + 1;       -- order that is not delivered
BEGIN
    INSERT INTO warehouse SELECT w, load_text(load_int(6, 10)), load_text(load_int(10, 20)),
        load_text(load_int(10, 20)), load_text(load_int(10, 20)), load_letters(2), load_zip(),
        load_int(0, 2000) / 10000.0, 100 * customers;
    INSERT INTO stock SELECT i, w, load_int(10, 100), load_text(24), load_text(24),
        load_text(24), load_text(24), load_text(24), load_text(24), load_text(24),
        load_text(24), load_text(24), load_text(24), 0, 0, 0, load_data()
        FROM generate_series(1, items) i;
    INSERT INTO district SELECT d, w, load_text(load_int(6, 10)), load_text(load_int(10, 20)),
        load_text(load_int(10, 20)), load_text(load_int(10, 20)), load_letters(2), load_zip(),
        load_int(0, 2000) / 10000.0, 10 * customers, customers + 1
        FROM generate_series(1, 10) d;
    INSERT INTO customer SELECT c, d, w, load_text(load_int(8, 16)), 'OE',
        CASE WHEN c <= names THEN last_name(c - 1) ELSE load_name(names) END,
        load_text(load_int(10, 20)), load_text(load_int(10, 20)), load_text(load_int(10, 20)),
        load_letters(2), load_zip(), lpad(floor(random() * 1e15)::text, 16, '0'), now(),
        CASE WHEN random() < 0.1 THEN 'BC' ELSE 'GC' END, 50000, load_int(0, 5000) / 10000.0,
        -10, 10, 1, 0, load_customer_data()
        FROM generate_series(1, 10) d, generate_series(1, customers) c;
    INSERT INTO history (h_c_id, h_c_d_id, h_c_w_id, h_d_id, h_w_id, h_date, h_amount, h_data)
        SELECT c, d, w, d, w, now(), 10, load_text(load_int(12, 24))
        FROM generate_series(1, 10) d, generate_series(1, customers) c;
    -- each customer has one order, in random order
    INSERT INTO orders SELECT o, d, w, row_number() OVER (PARTITION BY d ORDER BY random()),
        now(), CASE WHEN o < first_open THEN load_int(1, 10) END, load_int(5, 15), 1
        FROM generate_series(1, 10) d, generate_series(1, customers) o ORDER BY d, o;
    INSERT INTO order_line SELECT o_id, o_d_id, o_w_id, n, load_int(1, items), o_w_id,
        CASE WHEN o_id < first_open THEN o_entry_d END, 5,
        CASE WHEN o_id < first_open THEN 0 ELSE load_int(1, 999999) / 100.0 END, load_text(24)
        FROM orders, generate_series(1, o_ol_cnt) n WHERE o_w_id = w;
    INSERT INTO new_order SELECT o_id, o_d_id, o_w_id FROM orders
        WHERE o_w_id = w AND o_id >= first_open;
END $$;

INSERT INTO item SELECT i, load_int(1, 10000), load_text(load_int(14, 24)),
    load_int(100, 10000) / 100.0, load_data() FROM generate_series(1, :items) i;

"""The nine tables, and their keys."""

ADDRESS = "{0}_street_1 varchar(20), {0}_street_2 varchar(20), {0}_city varchar(20)," \
          " {0}_state char(2), {0}_zip char(9)"

TABLES = {
    "warehouse":
        "w_id int NOT NULL, w_name varchar(10), " + ADDRESS.format("w") + ","
        " w_tax numeric(4,4), w_ytd numeric(12,2)",
    "district":
        "d_id int NOT NULL, d_w_id int NOT NULL, d_name varchar(10), " + ADDRESS.format("d") + ","
        " d_tax numeric(4,4), d_ytd numeric(12,2), d_next_o_id int",
    "customer":
        "c_id int NOT NULL, c_d_id int NOT NULL, c_w_id int NOT NULL, c_first varchar(16),"
        " c_middle char(2), c_last varchar(16), " + ADDRESS.format("c") + ", c_phone char(16),"
        " c_since timestamptz, c_credit char(2), c_credit_lim numeric(12,2),"
        " c_discount numeric(4,4), c_balance numeric(12,2), c_ytd_payment numeric(12,2),"
        " c_payment_cnt int, c_delivery_cnt int, c_data varchar(500)",
    "history":
        "h_c_id int, h_c_d_id int, h_c_w_id int, h_d_id int, h_w_id int, h_date timestamptz,"
        " h_amount numeric(6,2), h_data varchar(24)",
    "new_order":
        "no_o_id int NOT NULL, no_d_id int NOT NULL, no_w_id int NOT NULL",
    "orders":
        "o_id int NOT NULL, o_d_id int NOT NULL, o_w_id int NOT NULL, o_c_id int,"
        " o_entry_d timestamptz, o_carrier_id int, o_ol_cnt int, o_all_local int",
    "order_line":
        "ol_o_id int NOT NULL, ol_d_id int NOT NULL, ol_w_id int NOT NULL, ol_number int NOT NULL,"
        " ol_i_id int, ol_supply_w_id int, ol_delivery_d timestamptz, ol_quantity int,"
        " ol_amount numeric(6,2), ol_dist_info char(24)",
    "item":
        "i_id int NOT NULL, i_im_id int, i_name varchar(24), i_price numeric(5,2),"
        " i_data varchar(50)",
    "stock":
        "s_i_id int NOT NULL, s_w_id int NOT NULL, s_quantity int, "
        + ", ".join("s_dist_%02d char(24)" % d for d in range(1, 11)) +
        ", s_ytd int, s_order_cnt int, s_remote_cnt int, s_data varchar(50)",
}

PRIMARY_KEYS = {
    "warehouse": "w_id",
    "district": "d_w_id, d_id",
    "customer": "c_w_id, c_d_id, c_id",
    "new_order": "no_w_id, no_d_id, no_o_id",
    "orders": "o_w_id, o_d_id, o_id",
    "order_line": "ol_w_id, ol_d_id, ol_o_id, ol_number",
    "item": "i_id",
    "stock": "s_w_id, s_i_id",
}

#: customers by last name, and a customer's last order
INDEXES = {
    "customer_by_name": "customer (c_w_id, c_d_id, c_last, c_first)",
    "orders_by_customer": "orders (o_w_id, o_d_id, o_c_id, o_id)",
}


def create_tables(server, method):
    using = " USING " + method if method else ""
    for name, columns in TABLES.items():
        server.query(server.sql("CREATE TABLE %s (%s)%s" % (name, columns, using)))


def create_keys(server):
    for table, columns in PRIMARY_KEYS.items():
        server.query("ALTER TABLE %s ADD PRIMARY KEY (%s)" % (table, columns))
    for name, on in INDEXES.items():
        server.query("CREATE INDEX %s ON %s" % (name, on))

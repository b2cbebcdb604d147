-- Where the functions are commands: a warehouse is a lane.  Items are shared, and only read.

\if :commands
SELECT count(nvm.partition_table(t, c)) AS partitioned FROM (VALUES
    ('warehouse'::regclass, 'w_id'::name), ('district', 'd_w_id'), ('customer', 'c_w_id'),
    ('history', 'h_w_id'), ('new_order', 'no_w_id'), ('orders', 'o_w_id'),
    ('order_line', 'ol_w_id'), ('stock', 's_w_id')) t (t, c);

SELECT count(nvm.register_command(f::regprocedure, l)) AS registered FROM (VALUES
    ('new_order(int,int,int,int[],int[],int[])', '{in_w,supplies}'),
    ('payment(int,int,int,int,int,text,numeric)', '{in_w,in_c_w}'),
    ('order_status(int,int,int,text)', '{in_w}'),
    ('delivery(int,int)', '{in_w}'),
    ('stock_level(int,int,int)', '{in_w}')) f (f, l);
\endif

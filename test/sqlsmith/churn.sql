-- What goes on while sqlsmith asks (which rolls back whatever it does): pgbench
-- runs this, as prepared statements.
\set id random(1, 3000)
\set r random(1, 300)
\set what random(1, 100)
SET search_path = s, public;
BEGIN;
UPDATE keyed SET g = g + 1, t = 'key ' || :r, filler = repeat('x', :r) WHERE k = :id;
UPDATE kinds SET i4 = :r, ts = ts + interval '1 s', ia = ARRAY[:r, :id]::int[] WHERE id = :r;
UPDATE child SET note = 'n' || :id, up = NULL WHERE id = :r;
UPDATE pt SET k = (k + 50) % 350 WHERE id = :r;
\if :what > 80
INSERT INTO keyed (k, g, t) VALUES (:id + 10000 * :r, :what, 'more') ON CONFLICT (k) DO UPDATE SET g = excluded.g;
UPDATE large SET a = big(:id * 4, :r), c = c || '{"u": 1}' WHERE id = :r % 60 + 1;
UPDATE on_heap SET b = b || '.' WHERE a = :r % 100 + 1;
\endif
\if :what > 95
DELETE FROM keyed WHERE k > 10000 AND g = :what;
DELETE FROM log;
\endif
\if :what > 90
ROLLBACK;
\else
COMMIT;
\endif

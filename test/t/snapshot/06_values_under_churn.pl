# Copyright (c) 2026, pg_nvm contributors

# Slots and values point into the pool without a copy.  Here each row carries
# the checksum of its value; some clients replace, move and delete rows without
# pause and VACUUM gives their space back, with a horizon that advances at once,
# while others hold values in every way there is: in variables beyond COMMIT,
# cursors, loops, sorts, locks that wait, triggers, RETURNING.  A value that was
# reused under its holder's eyes does not have its checksum any more.
#
# Long form: a minute, here 8 seconds.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seconds = NvmTest::is_long() ? 60 : 8;

my $node = NvmTest->start_new('churn', conf => <<CONF, sql => <<'SQL');
jit = off
client_min_messages = warning
autovacuum = off
nvm.horizon_naptime = 10ms
CONF
SET default_table_access_method = nvm;
CREATE TABLE t (id int PRIMARY KEY, k int, s text, sum text, c text DEFAULT 'c');
CREATE INDEX ON t (k);
CREATE INDEX ON t (md5(s));
CREATE TABLE p (id int, k int, s text, sum text, PRIMARY KEY (id, k)) PARTITION BY LIST (k);
CREATE TABLE p0 PARTITION OF p FOR VALUES IN (0);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1) USING heap;
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);

-- a value that stays inline, is compressed, or lies outside the row
CREATE FUNCTION val() RETURNS text LANGUAGE sql VOLATILE AS $$
SELECT CASE floor(random() * 6)::int
  WHEN 0 THEN 'v' || random()
  WHEN 1 THEN repeat('c' || random(), 300)
  WHEN 2 THEN (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 90))
  WHEN 3 THEN (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 400))
  WHEN 4 THEN repeat(md5(random()::text), 40000)
  ELSE (SELECT string_agg(md5(random()::text), '') FROM generate_series(1, 200 + (random() * 100)::int)) END$$;
INSERT INTO t SELECT id, id % 7, s, md5(s) FROM (SELECT g AS id, val() AS s FROM generate_series(1, 60) g) x;
INSERT INTO p SELECT id, id % 3, s, md5(s) FROM (SELECT g AS id, val() AS s FROM generate_series(1, 40) g) x;

CREATE FUNCTION must(s text, sum text, place text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF md5(s) IS DISTINCT FROM sum THEN
    RAISE EXCEPTION 'a value of % bytes that is not its own: %', length(s), place;
  END IF;
END$$;
CREATE FUNCTION check_row() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'INSERT' THEN PERFORM must(OLD.s, OLD.sum, TG_NAME || ' old'); END IF;
  IF TG_OP <> 'DELETE' THEN PERFORM must(NEW.s, NEW.sum, TG_NAME || ' new'); RETURN NEW; END IF;
  RETURN OLD;
END$$;
CREATE TRIGGER before_ BEFORE INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION check_row();
CREATE TRIGGER after_ AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION check_row();
CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE OR DELETE ON t DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_row();
CREATE TRIGGER after_p AFTER UPDATE ON p FOR EACH ROW EXECUTE FUNCTION check_row();

-- Rows are locked one at a time: nobody waits in a circle.  Who moves a row to
-- another partition takes a lock of its own first, for who waits for a row that
-- is moved meanwhile gets an error, as with heap.
CREATE PROCEDURE churn(seconds int) LANGUAGE plpgsql AS $$
DECLARE until timestamptz := clock_timestamp() + seconds * interval '1 second'; v text; i int; x int; n int := 0;
BEGIN
  WHILE clock_timestamp() < until LOOP
    i := 1 + floor(random() * 60); x := floor(random() * 12); v := val(); n := n + 1;
    IF x < 5 THEN
      UPDATE t SET s = v, sum = md5(v) WHERE id = i;
    ELSIF x < 7 THEN
      UPDATE t SET k = floor(random() * 7) WHERE id = i;
    ELSIF x < 8 THEN
      DELETE FROM t WHERE id = i;
      INSERT INTO t VALUES (i, 1, v, md5(v)) ON CONFLICT (id) DO UPDATE SET s = excluded.s, sum = excluded.sum;
    ELSIF x < 9 THEN
      INSERT INTO t VALUES (i, 1, v, md5(v)) ON CONFLICT (id) DO UPDATE SET s = excluded.s || t.s, sum = md5(excluded.s || t.s) WHERE length(t.s) < 100000;
    ELSIF x < 10 THEN
      UPDATE t SET c = 'c' || random() WHERE id = i;
    ELSE
      PERFORM pg_advisory_xact_lock(i);
      UPDATE p SET k = (k + 1) % 3, s = CASE WHEN x = 11 THEN v ELSE s END, sum = CASE WHEN x = 11 THEN md5(v) ELSE sum END WHERE id = i;
    END IF;
    IF n % 9 = 0 THEN ROLLBACK; ELSE COMMIT; END IF;
  END LOOP;
END$$;

-- Hold values, and look at them later.
CREATE PROCEDURE hold(seconds int) LANGUAGE plpgsql AS $$
DECLARE
  until timestamptz := clock_timestamp() + seconds * interval '1 second';
  r t; q record; rows_ t[]; s1 text; m1 text; i int; x int; cur refcursor; bad bigint;
BEGIN
  WHILE clock_timestamp() < until LOOP
    i := 1 + floor(random() * 60); x := floor(random() * 12);
    IF x = 0 THEN			-- variables beyond the transaction
      SELECT * INTO r FROM t WHERE id = i;
      SELECT s, sum INTO s1, m1 FROM t WHERE id > i ORDER BY id LIMIT 1;
      rows_ := ARRAY(SELECT t FROM t WHERE k = i % 7);
      COMMIT;
      PERFORM pg_sleep(0.15);
      COMMIT;
      PERFORM must(r.s, r.sum, 'row variable'), must(s1, m1, 'scalar variable');
      FOREACH r IN ARRAY rows_ LOOP PERFORM must(r.s, r.sum, 'array of rows'); END LOOP;
    ELSIF x = 1 THEN		-- a loop that commits
      FOR q IN SELECT * FROM t WHERE id BETWEEN i AND i + 15 LOOP
        COMMIT;
        PERFORM pg_sleep(0.01);
        PERFORM must(q.s, q.sum, 'loop');
      END LOOP;
    ELSIF x = 2 THEN		-- a cursor that is read slowly
      OPEN cur FOR SELECT * FROM t ORDER BY k;
      FETCH cur INTO r;
      PERFORM pg_sleep(0.1);
      LOOP
        PERFORM must(r.s, r.sum, 'cursor');
        FETCH cur INTO r;
        EXIT WHEN NOT FOUND;
      END LOOP;
      CLOSE cur;
    ELSIF x = 3 THEN		-- locks that wait
      FOR q IN SELECT * FROM t WHERE id = i FOR UPDATE LOOP PERFORM must(q.s, q.sum, 'for update'); END LOOP;
      COMMIT;
      FOR q IN SELECT a.*, pg_sleep(0.05), b.s AS s2, b.sum AS sum2 FROM t a JOIN t b ON b.id = a.id % 60 + 1 WHERE a.id = i FOR KEY SHARE OF a LOOP
        PERFORM must(q.s, q.sum, 'for key share'), must(q.s2, q.sum2, 'joined');
      END LOOP;
    ELSIF x = 4 THEN		-- what a change returns
      UPDATE t SET k = k + 1 WHERE id = i RETURNING s, sum INTO s1, m1;
      COMMIT;
      PERFORM pg_sleep(0.1);
      PERFORM must(s1, m1, 'update returning') WHERE m1 IS NOT NULL;
      DELETE FROM t WHERE id = i RETURNING * INTO r;
      ROLLBACK;
      PERFORM must(r.s, r.sum, 'delete returning') WHERE r.id IS NOT NULL;
    ELSIF x = 5 THEN		-- sorts, with a slow reader above
      FOR q IN SELECT * FROM (SELECT *, pg_sleep(0.002) FROM t ORDER BY s DESC, id) y LOOP PERFORM must(q.s, q.sum, 'sort'); END LOOP;
    ELSIF x = 6 THEN		-- scans in the middle of which space is given back
      SELECT count(*) INTO bad FROM t, LATERAL (SELECT pg_sleep(0.003)) z WHERE md5(s) <> sum;
      IF bad > 0 THEN RAISE EXCEPTION 'seq scan: % rows', bad; END IF;
    ELSIF x = 7 THEN
      FOR q IN SELECT a.s, a.sum, b.s AS s2, b.sum AS sum2, pg_sleep(0.002) FROM t a JOIN t b ON a.k = b.k AND a.id <> b.id LIMIT 60 LOOP
        PERFORM must(q.s, q.sum, 'join'), must(q.s2, q.sum2, 'other side of a join');
      END LOOP;
    ELSIF x = 8 THEN		-- by index, bitmap and TID
      PERFORM set_config('enable_seqscan', 'off', true);
      FOR q IN SELECT *, pg_sleep(0.002) FROM t WHERE k = i % 7 LOOP PERFORM must(q.s, q.sum, 'index'); END LOOP;
      FOR q IN SELECT *, pg_sleep(0.002) FROM t WHERE ctid = ANY (ARRAY(SELECT ctid FROM t WHERE id < i)) LOOP PERFORM must(q.s, q.sum, 'TID'); END LOOP;
    ELSIF x = 9 THEN		-- the same snapshot again
      ROLLBACK;
      SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
      SELECT md5(string_agg(sum, ',' ORDER BY id)) INTO s1 FROM t;
      PERFORM pg_sleep(0.2);
      SELECT md5(string_agg(md5(s), ',' ORDER BY id)) INTO m1 FROM t;
      IF s1 <> m1 THEN RAISE EXCEPTION 'a snapshot does not see what it saw'; END IF;
    ELSIF x = 10 THEN		-- a whole-row aggregate, a window, a merge
      SELECT array_agg(t ORDER BY id) INTO rows_ FROM t;
      COMMIT;
      PERFORM pg_sleep(0.1);
      FOREACH r IN ARRAY rows_ LOOP PERFORM must(r.s, r.sum, 'aggregate of rows'); END LOOP;
      MERGE INTO t USING (SELECT id, s, sum FROM t WHERE id = i) y ON t.id = y.id WHEN MATCHED THEN UPDATE SET s = y.s || 'm', sum = md5(y.s || 'm');
    ELSE					-- rows that change their partition, nvm to heap and back
      SELECT count(*) INTO bad FROM p, LATERAL (SELECT pg_sleep(0.002)) z WHERE md5(s) <> sum;
      IF bad > 0 THEN RAISE EXCEPTION 'partitions: % rows', bad; END IF;
      COMMIT;
      PERFORM pg_advisory_xact_lock(i);
      FOR q IN UPDATE p SET k = (k + 2) % 3 WHERE id = i RETURNING * LOOP PERFORM must(q.s, q.sum, 'moved row'); END LOOP;
    END IF;
    COMMIT;
  END LOOP;
END$$;

-- One snapshot for all the time, with scans of several kinds open in it: each
-- row that comes is what it was at first.
CREATE PROCEDURE keep(seconds int) LANGUAGE plpgsql AS $$
DECLARE
  until timestamptz := clock_timestamp() + seconds * interval '1 second';
  c1 refcursor; c2 refcursor; c3 refcursor; r t; x t; first text; now_ text;
BEGIN
  ROLLBACK;
  SET TRANSACTION ISOLATION LEVEL REPEATABLE READ;
  SELECT md5(string_agg(id || sum, ',' ORDER BY id)) INTO first FROM t;
  WHILE clock_timestamp() < until LOOP
    OPEN c1 FOR SELECT * FROM t WHERE ctid >= '(0,0)';
    OPEN c2 FOR SELECT * FROM t WHERE id > 0 ORDER BY id;
    OPEN c3 FOR SELECT * FROM t ORDER BY s;
    LOOP
      FETCH c1 INTO r;
      EXIT WHEN NOT FOUND;
      FETCH c2 INTO x;
      PERFORM pg_sleep(0.003);
      PERFORM must(r.s, r.sum, 'old snapshot, by TID'), must(x.s, x.sum, 'old snapshot, by index');
      FETCH c3 INTO x;
      PERFORM pg_sleep(0.003);
      PERFORM must(r.s, r.sum, 'old snapshot, by TID'), must(x.s, x.sum, 'old snapshot, sorted');
    END LOOP;
    CLOSE c1;
    CLOSE c2;
    CLOSE c3;
    SELECT md5(string_agg(id || md5(s), ',' ORDER BY id)) INTO now_ FROM t;
    IF now_ <> first THEN RAISE EXCEPTION 'the old snapshot does not see what it saw'; END IF;
  END LOOP;
  COMMIT;
END$$;
SQL

my %script = (
	1 => "CALL churn($seconds);",
	2 => "CALL churn($seconds);",
	3 => "CALL hold($seconds);",
	4 => "CALL hold($seconds);",
	5 => "CALL hold($seconds);",
	6 => "SET enable_seqscan = off; CALL keep($seconds);",
	7 => join("\n", ('VACUUM t; VACUUM p; SELECT pg_sleep(0.05);') x ($seconds * 10)),
);
my $load = $node->start_load(clients => 7, transactions => 1, sql => sub { return $script{ $_[0] }; });
$load->finish;
is($load->errors, '', 'every value is its own');
is($node->safe_psql('postgres', 'SELECT count(*) FROM t WHERE md5(s) <> sum'), '0', 'at the end, too');
is($node->safe_psql('postgres', 'SELECT count(*) = count(DISTINCT id) FROM t'), 't', 'no row is there twice');
is($node->safe_psql('postgres', 'SELECT count(*) FROM p'), '40', 'no row was lost on the way');
my $bytes = $node->safe_psql('postgres', "SELECT bytes FROM nvm.relations WHERE relation = 't'::regclass");
cmp_ok($bytes, '<', 60_000_000, "space was given back: $bytes bytes");
$node->check_clean('at the end');
$node->stop;
done_testing();

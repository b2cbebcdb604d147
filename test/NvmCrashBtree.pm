# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmCrashBtree - work on nvm_btree indexes in the midst of which a server may die

=head1 DESCRIPTION

Tables with indexes whose trees grow high with few rows, since their keys are
wide, and one of few different keys; transactions that insert into them, change
indexed columns and delete; VACUUM, builds and reindexing.  Each transaction
notes in btack how many rows of it there are, and verify() of NvmCrash is
extended by that, by the checker with heapallindexed, and by lookups of each
row.

Names of fences and failpoints of the index, and of the redo lanes that it uses,
are a matter of this; see is_ours.

=cut

package NvmCrashBtree;

use strict;
use warnings;

use NvmCrash;

=pod

=over

=item NvmCrashBtree::is_ours(NAME)

Is the fence or failpoint one that scenarios of this module are to reach?

=cut

sub is_ours { return $_[0] =~ /^(?:btree|index|pool-redo|redo)-/; }

=pod

=item NvmCrashBtree::base(NAME, SQL)

NvmCrash::make_base with the tables, and what SQL makes besides.

=cut

sub base
{
	my ($name, $sql) = @_;
	return NvmCrash::make_base($name,
		fill => sub { $_[0]->safe_psql('postgres', schema() . ($sql // '')); });
}

sub schema
{
	return <<'SQL';
CREATE TABLE btack (client int, n int, rows int) USING nvm;
CREATE TABLE bt (client int, n int, part int, k int, few int, pad text) USING nvm;
-- the separators have the pad, too: a dozen entries on a page, on all levels
CREATE UNIQUE INDEX bt_high ON bt USING nvm_btree (few, pad, client, n, part);
CREATE INDEX bt_k ON bt USING nvm_btree (k);
CREATE INDEX bt_few ON bt USING nvm_btree (few) INCLUDE (part);
CREATE INDEX bt_some ON bt USING nvm_btree (few DESC, k) WHERE part % 2 = 0;
CREATE TABLE counter (id int, v int, w int) USING nvm;
CREATE UNIQUE INDEX counter_id ON counter USING nvm_btree (id);
CREATE INDEX counter_v ON counter USING nvm_btree (v);
INSERT INTO counter SELECT i, i, i FROM generate_series(1, 300) i;
-- not in the digest of what is to outlive a crash
CREATE SCHEMA fleeting;
CREATE UNLOGGED TABLE fleeting.bt_unlogged (a int, pad text) USING nvm;
CREATE INDEX bt_unlogged_a ON fleeting.bt_unlogged USING nvm_btree (a, pad);

CREATE FUNCTION pad(i int) RETURNS text IMMUTABLE LANGUAGE sql AS
$$ SELECT (SELECT string_agg(md5(i::text || ':' || j), '') FROM generate_series(1, 20) j) $$;
INSERT INTO bt SELECT 70, 1, i, i, i % 3, pad(i) FROM generate_series(1, 60) i;
INSERT INTO btack VALUES (70, 1, 60);
INSERT INTO ack (client, n) VALUES (70, 1);
INSERT INTO fleeting.bt_unlogged SELECT i, pad(i) FROM generate_series(1, 60) i;

ALTER FUNCTION verify() RENAME TO verify_tables;

CREATE FUNCTION verify_bt() RETURNS SETOF text LANGUAGE plpgsql AS
$$
DECLARE
	r record;
	c bigint;
BEGIN
	RETURN QUERY SELECT format('transaction %s/%s: %s rows in bt, not %s', client, n, b.c, a.rows)
		FROM (SELECT client, n, count(*) AS c FROM bt GROUP BY client, n) b
			 FULL JOIN (SELECT client, n, sum(rows) AS rows FROM btack GROUP BY client, n) a USING (client, n)
		WHERE coalesce(b.c, 0) <> coalesce(a.rows, 0);
	SELECT sum(v - w) INTO c FROM counter;
	IF c <> 0 OR (SELECT count(*) FROM counter) <> 300 THEN
		RETURN NEXT format('counters are %s off', c);
	END IF;
	FOR r IN SELECT c.oid::regclass AS rel FROM pg_class c JOIN pg_am a ON a.oid = c.relam
			 JOIN pg_index i ON i.indexrelid = c.oid WHERE a.amname = 'nvm_btree' AND i.indisvalid ORDER BY 1
	LOOP
		RETURN QUERY SELECT format('nvm.check %s: %s', r.rel, f) FROM nvm.check(r.rel, true) f;
	END LOOP;

	-- each row by each of its indexes
	PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
		set_config('enable_mergejoin', 'off', true), set_config('enable_material', 'off', true),
		set_config('enable_memoize', 'off', true);
	FOR r IN SELECT * FROM (VALUES ('bt', 'k'), ('bt', 'few, pad'), ('counter', 'id'), ('counter', 'v')) v(tab, cols)
	LOOP
		EXECUTE format('SELECT count(*) FROM (SELECT ctid AS t, %2$s FROM %1$s OFFSET 0) a WHERE NOT EXISTS '
			|| '(SELECT FROM %1$s b WHERE (%3$s) AND b.ctid = a.t OFFSET 0)', r.tab, r.cols,
			(SELECT string_agg(format('b.%1$s = a.%1$s', trim(x)), ' AND ') FROM regexp_split_to_table(r.cols, ',') x)) INTO c;
		IF c <> 0 THEN
			RETURN NEXT format('%s rows of %s are not found by %s', c, r.tab, r.cols);
		END IF;
	END LOOP;
	PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true),
		set_config('enable_mergejoin', 'on', true), set_config('enable_material', 'on', true),
		set_config('enable_memoize', 'on', true);
END $$;

-- queries do not use an index before it is back
CREATE FUNCTION wait_rebuilt() RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
	FOR i IN 1 .. 3000
	LOOP
		IF NOT EXISTS (SELECT FROM nvm.index_rebuilds WHERE persistence <> 'leaves' AND state <> 'ready') THEN
			RETURN;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RAISE EXCEPTION 'not rebuilt: %', (SELECT string_agg(r::text, ' ') FROM nvm.index_rebuilds r WHERE state <> 'ready');
END $$;

CREATE FUNCTION verify() RETURNS SETOF text LANGUAGE sql AS
$$ SELECT wait_rebuilt(); SELECT verify_tables() UNION ALL SELECT verify_bt() $$;
SQL
}

# Rows of a transaction: `rows` of them, with few different keys or many.
sub rows
{
	my ($c, $n, $rows, $few) = @_;
	my $from = NvmCrash::random("bt/$c/$n", 10000);
	return "INSERT INTO bt SELECT $c, $n, i, (i * 7919 + $from) % 5000, i % $few, pad($from + i) FROM generate_series(1, $rows) i;\n";
}

sub change { return "UPDATE counter SET v = v + $_[0], w = w + $_[0] WHERE id % 7 = $_[0] % 7;\n"; }

=pod

=item NvmCrashBtree::txn(client, n, ROWS, FEW, SQL)

A transaction that leaves ROWS rows, with FEW different values of few.  txn_abort: one
that leaves none.

=cut

sub txn
{
	my ($c, $n, $rows, $few, $sql) = @_;
	return "BEGIN;\nINSERT INTO ack (client, n) VALUES ($c, $n);\n"
	  . "INSERT INTO btack VALUES ($c, $n, $rows);\n"
	  . rows($c, $n, $rows, $few // 3) . ($sql // '') . "COMMIT;\n\\echo ack $c $n\n";
}

sub txn_abort
{
	my ($c, $n, $rows, $few) = @_;
	return "BEGIN;\nINSERT INTO btack VALUES (-$c, $n, 0);\n"
	  . rows(-$c, $n, $rows, $few // 3) . change(3) . "DELETE FROM bt WHERE part % 5 = 0;\nROLLBACK;\n";
}

# a transaction that deletes the rows of earlier ones
sub txn_delete
{
	my ($c, $n, $where) = @_;
	return "BEGIN;\nINSERT INTO ack (client, n) VALUES ($c, $n);\n"
	  . "WITH gone AS (DELETE FROM bt WHERE $where RETURNING client, n)\n"
	  . "INSERT INTO btack SELECT client, n, -count(*) FROM gone GROUP BY client, n;\nCOMMIT;\n\\echo ack $c $n\n";
}

=pod

=item NvmCrashBtree::write_on(RIG, CLIENT)

Work of all kinds, by a client that has not been used.

=back

=cut

sub write_on
{
	my ($rig, $c) = @_;
	my @problems = $rig->run_sessions(
		{   sql => txn($c, 1, 40, 3, change(1))
			  . txn_abort($c, 2, 40)
			  . txn_delete($c, 2, 'part % 4 = 1')
			  . "VACUUM bt; VACUUM counter;\n"
			  . txn($c, 3, 60, 2, change(2))
			  . "INSERT INTO fleeting.bt_unlogged SELECT i, pad(i) FROM generate_series(1, 40) i;\n"
			  . "REINDEX INDEX bt_some;\n" });
	return (@problems, $rig->unacknowledged($c, 1 .. 3));
}

sub left_open
{
	my ($c, $sql) = @_;
	return {
		sql => "BEGIN;\n$sql"
		  . "DO 'BEGIN RAISE LOG ''left open $c''; END';\nSELECT pg_sleep(600);\n" };
}

=pod

Scenarios, as those of NvmCrashScenarios.

=cut

sub all
{
	return (
		{   # entries appended, then leaves and inner pages split, up to a new root
			name     => 'bt-insert',
			sessions => sub {
				return ({ sql => $_[0] . txn(1, 1, 5) . txn(1, 2, 80) . txn(1, 3, 80) . txn(1, 4, 3) });
			},
		},
		{   # the first entries of empty trees
			name     => 'bt-first',
			sessions => sub {
				return ({ sql => "CREATE TABLE bt_new (a int, pad text) USING nvm;\n"
						  . "CREATE INDEX bt_new_a ON bt_new USING nvm_btree (a, pad);\n"
						  . $_[0]
						  . "INSERT INTO bt_new VALUES (1, 'x');\n"
						  . "INSERT INTO bt_new SELECT i, pad(i) FROM generate_series(2, 60) i;\n"
						  . txn(1, 1, 5) });
			},
		},
		{   # many rows of one key
			name     => 'bt-same',
			sessions => sub {
				return ({ sql => $_[0]
						  . "INSERT INTO btack VALUES (70, 1, 1500);\n" =~ s/^/BEGIN;\n/r
						  . "INSERT INTO bt SELECT 70, 1, 100 + i, 7, 2, i::text FROM generate_series(1, 1500) i;\nCOMMIT;\n"
						  . txn(1, 1, 5) });
			},
		},
		{   name     => 'bt-concurrent',
			sessions => sub {
				return (
					{ sql => $_[0] . join('', map { txn(1, $_, 30) } 1 .. 4) },
					{ sql => join('', map { txn(2, $_, 30) } 1 .. 4) },
					{ sql => join('', map { change($_ % 7) } 1 .. 20) },);
			},
		},
		{   # keys that come and go: pages are cleaned instead of being split
			name     => 'bt-update',
			sessions => sub {
				return ({ sql => $_[0]
						  . join('', map { change($_ % 7) } 1 .. 60)
						  . txn(1, 1, 5)
						  . "SET enable_seqscan = off;\n"
						  . "SELECT count(*) FROM counter WHERE v > 0 \\g /dev/null\n" x 3
						  . "SET enable_sort = off;\nSELECT count(*) FROM (SELECT FROM bt ORDER BY few DESC, pad DESC) s \\g /dev/null\n"
						  . join('', map { change($_ % 7) } 1 .. 60)
						  . txn(1, 2, 5) });
			},
		},
		{   name     => 'bt-abort',
			sessions => sub {
				return ({ sql => $_[0] . txn_abort(1, 1, 80) . txn(1, 1, 40) . txn_abort(1, 2, 80) . txn(1, 2, 40) });
			},
		},
		{   # entries removed, leaves and then inner pages unlinked, blocks used again
			name     => 'bt-vacuum',
			before   => txn(1, 1, 300) . txn_delete(1, 2, 'client = 1 AND part % 2 = 0'),
			sessions => sub {
				return ({ sql => $_[0]
						  . "VACUUM bt;\n"
						  . txn_delete(1, 3, 'few < 2')
						  . "VACUUM bt;\nVACUUM counter;\n"
						  . txn(1, 4, 60)
						  . "VACUUM bt;\n"
						  . txn_delete(1, 5, 'client = 1')
						  . "VACUUM bt;\nVACUUM bt;\n"
						  . txn(1, 6, 120) });
			},
		},
		{   name     => 'bt-build',
			before   => txn(1, 1, 100),
			sessions => sub {
				return ({ sql => $_[0]
						  . "CREATE INDEX bt_pad ON bt USING nvm_btree (n, pad, k);\n"
						  . "CREATE INDEX CONCURRENTLY bt_more ON bt USING nvm_btree (part, pad);\n"
						  . txn(1, 2, 20)
						  . "REINDEX INDEX bt_high;\nREINDEX INDEX CONCURRENTLY bt_k;\n"
						  . "VACUUM FULL counter;\nDROP INDEX bt_pad;\n"
						  . "BEGIN; CREATE INDEX bt_never ON bt USING nvm_btree (pad); ROLLBACK;\n"
						  . txn(1, 3, 20) });
			},
		},
		{   # rows that come while an index is being built are inserted in its last phase
			name     => 'bt-concurrent-build',
			before   => txn(1, 1, 30),
			sessions => sub {
				my ($arm) = @_;
				# the first of a name counts
				my $place = $arm =~ /btree-load-page/ ? 'btree-load-root' : 'btree-load-page';
				$arm =~ s/'/'$place:sleep=1500:1, /;
				return (
					{ sql => $arm . "CREATE INDEX CONCURRENTLY bt_more ON bt USING nvm_btree (part, pad);\n" },
					{ sql => txn(2, 1, 30), after => $arm =~ /btree-meta/ ? qr/failpoint btree-meta/ : qr/failpoint btree-load-(?:page|root) hit/ },);
			},
		},
		{   # entries of somebody who never waits for them lie between those that are settled
			name     => 'bt-neighbours',
			sessions => sub {
				return (
					{ sql => "BEGIN;\n" . change(1) . "DO 'BEGIN RAISE LOG ''entries left 54''; END';\n"
						  . "SELECT pg_sleep(1.5);\nROLLBACK;\n" },
					{ sql => $_[0] . join('', map { txn(2, $_, 2, 2, change(1 + $_)) } 1 .. 5), after => qr/entries left 54/ },);
			},
		},
		{   # what a first crash leaves: entries of losers, order[] to be rebuilt
			name     => 'bt-after-crash',
			before   => txn(1, 1, 100) . txn_delete(1, 2, 'client = 1 AND part % 3 = 0'),
			prelude  => {
				sessions => [
					left_open(51, rows(-51, 1, 60, 3)),
					left_open(52, "UPDATE counter SET v = v + 1000 WHERE id > 100;\nDELETE FROM bt WHERE client = 70;\n"),
				]
			},
			sessions => sub {
				return ({ sql => $_[0] . txn(1, 3, 60, 3, change(1))
						  . "VACUUM bt;\nVACUUM counter;\n" . txn(1, 4, 60)
						  . "INSERT INTO fleeting.bt_unlogged SELECT i, pad(i) FROM generate_series(1, 40) i;\n" });
			},
		},
		{   # the next start finds a split half done
			name     => 'bt-half-split',
			prelude  => { sessions => [ left_open(53, ''), {
						sql => "SET nvm.failpoint = 'btree-split-applied:crash:2';\n" . txn(1, 1, 100), } ] },
			sessions => sub {
				return ({ sql => $_[0] . txn(2, 1, 100) . txn_delete(2, 2, 'few = 1') . "VACUUM bt;\n" . txn(2, 3, 50) });
			},
		},
		{   # and leaves that are empty
			name     => 'bt-empty-leaves',
			before   => txn(1, 1, 200) . txn_delete(1, 2, 'few < 2'),
			prelude  => { sessions => [ left_open(53, ''), {
						sql => "SET nvm.failpoint = 'btree-delete-planned:crash:2';\nVACUUM bt;\n", } ] },
			sessions => sub {
				return ({ sql => $_[0] . txn(2, 1, 50, 2) . "VACUUM bt;\n" . txn(2, 2, 50) });
			},
		},
		{   # inner pages made from leaves, whose splits were interrupted
			name    => 'bt-leaves',
			before  => "ALTER INDEX bt_high SET (persistence = leaves);\nALTER INDEX counter_v SET (persistence = leaves);\n" . txn(1, 1, 60),
			prelude => { sessions => [ left_open(53, ''), {
						sql => "SET nvm.failpoint = 'btree-split-applied:crash:2';\n" . txn(1, 2, 100), } ] },
			sessions => sub {
				return ({ sql => $_[0] . txn(2, 1, 60, 3, change(1)) . txn_delete(2, 2, 'few = 1') . "VACUUM bt;\n" . txn(2, 3, 50) });
			},
		},
		{   # indexes are rebuilt from their tables by a worker
			name    => 'bt-none',
			before  => "ALTER INDEX bt_high SET (persistence = none);\nALTER INDEX bt_few SET (persistence = none);\n"
			  . "ALTER INDEX counter_id SET (persistence = none);\n" . txn(1, 1, 100) . txn_delete(1, 2, 'client = 1 AND part % 3 = 0'),
			prelude => { sessions => [ left_open(51, rows(-51, 1, 30, 3)), left_open(52, change(5)) ] },
			wait    => "SELECT wait_rebuilt();\n",
		},
		{   # nothing that a bulk load stores is durable, until it is over
			name     => 'bt-relax',
			before   => txn(1, 1, 60),
			sessions => sub {
				return (
					{   sql => "SET nvm.relax_indexes = on;\n"
						  . $_[0]
						  . txn(1, 2, 100)
						  . txn_abort(1, 3, 60)
						  . txn(1, 3, 80, 2, change(2))
						  . "VACUUM bt;\nSELECT pg_sleep(1.5);\n"
						  . txn(1, 4, 60) },
					{ sql => join('', map { txn(2, $_, 10, 3, change($_)) . "SELECT pg_sleep(0.2);\n" } 1 .. 10) },);
			},
		},
		{   # indexes that were relaxed are rebuilt, and durable again
			name    => 'bt-relaxed',
			before  => txn(1, 1, 40),
			prelude => { sessions => [ left_open(53, "SET nvm.relax_indexes = on;\n" . rows(-51, 1, 60, 3)), {
						sql => "SET nvm.relax_indexes = on;\n"
						  . txn(1, 2, 100)
						  . "SET nvm.failpoint = 'btree-split-applied:crash:2';\n" . txn(1, 3, 100), } ] },
			wait => "SELECT wait_rebuilt();\n",
		},
		{   # a lane is applied by the start itself
			name    => 'bt-recovery',
			before  => txn(1, 1, 40),
			prelude => { sessions => [ left_open(53, ''), {
						sql => "SET nvm.failpoint = 'redo-piece:crash:2';\n" . txn(1, 2, 100), } ] },
		},);
}

1;

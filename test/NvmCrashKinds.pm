# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmCrashKinds - work on indexes of PostgreSQL's own, concurrent DDL and NOTIFY in the
midst of which power may fail

=head1 DESCRIPTION

What these have in common: a transaction of nvm tables alone rests on WAL that somebody
else has inserted, and that nobody has flushed.

=over

=item built-in

BRIN, GIN with its pending list, GiST, SP-GiST and hash indexes on nvm tables.  A row in
a range that a BRIN index has summarized writes no WAL, whoever summarized the range

=item online-ddl

CREATE INDEX, REINDEX and DROP INDEX CONCURRENTLY and ALTER TABLE under
synchronous_commit = off, and transactions of other sessions that use the new indexes

=item notify

transactions whose notifications a listener hears.  It is a witness: what it has heard of
counts as acknowledged

=back

Each transaction notes in kack how many rows of it there are in each table.  verify() of
NvmCrash is extended by that, by lookups of each row by each index, and by amcheck.

=cut

package NvmCrashKinds;

use strict;
use warnings;

use NvmCrash;

=pod

=over

=item NvmCrashKinds::base(NAME)

NvmCrash::make_base with the tables.  NvmCrashKinds::schema() adds them to another base.

=cut

sub base
{
	my ($name) = @_;
	return NvmCrash::make_base($name,
		fill => sub { $_[0]->safe_psql('postgres', schema()); });
}

sub schema
{
	return <<'SQL';
CREATE EXTENSION amcheck;
CREATE TABLE kack (client int, n int, b int DEFAULT 0, x int DEFAULT 0, d int DEFAULT 0) USING nvm;
-- nothing but BRIN, or no insertion would be without WAL
CREATE TABLE kb (client int, n int, part int, a int) USING nvm;
INSERT INTO kb SELECT 71, 1, i, i FROM generate_series(1, 100) i;
CREATE INDEX kb_brin ON kb USING brin (a);
CREATE TABLE kx (client int, n int, part int, h int, r int4range, t text, p point, tags int[]) USING nvm;
CREATE INDEX kx_hash ON kx USING hash (h);
CREATE INDEX kx_gist ON kx USING gist (r);
CREATE INDEX kx_spgist ON kx USING spgist (t);
CREATE INDEX kx_quad ON kx USING spgist (p);
CREATE INDEX kx_gin ON kx USING gin (tags) WITH (fastupdate = on, gin_pending_list_limit = 64);
CREATE INDEX kx_brin ON kx USING brin (part int4_bloom_ops) WITH (pages_per_range = 1);
INSERT INTO kx SELECT 71, 1, i, i % 40, int4range(i, i + 3), 't' || i % 40, point(i % 7, i), ARRAY[i % 10, 50 + i % 6]
	FROM generate_series(1, 100) i;
CREATE TABLE kd (client int, n int, part int, k int, u int) USING nvm;
CREATE INDEX kd_k ON kd USING nvm_btree (k);
CREATE INDEX kd_u ON kd USING nvm_btree (u, part);
INSERT INTO kd SELECT 71, 1, i, i, i % 10 FROM generate_series(1, 100) i;
INSERT INTO kack VALUES (71, 1, 100, 100, 100);
INSERT INTO ack (client, n) VALUES (71, 1);

ALTER FUNCTION verify() RENAME TO verify_others;

CREATE FUNCTION verify_kinds() RETURNS SETOF text LANGUAGE plpgsql AS
$$
DECLARE
	r record;
	c bigint;
	line text;
	plan text;
	query text;
	by_table text;
	by_index text;
BEGIN
	FOR r IN SELECT * FROM (VALUES ('kb', 'b'), ('kx', 'x'), ('kd', 'd')) v(tab, col)
	LOOP
		RETURN QUERY EXECUTE format('SELECT format(''transaction %%s/%%s: %%s rows in %1$s, not %%s'', client, n, t.c, a.rows) '
			|| 'FROM (SELECT client, n, count(*) AS c FROM %1$s GROUP BY client, n) t '
			|| 'FULL JOIN (SELECT client, n, sum(%2$s) AS rows FROM kack GROUP BY client, n) a USING (client, n) '
			|| 'WHERE coalesce(t.c, 0) <> coalesce(a.rows, 0)', r.tab, r.col);
	END LOOP;
	RETURN QUERY SELECT format('transaction %s/%s has rows and is not there', client, n) FROM kack k
		WHERE NOT EXISTS (SELECT FROM ack a WHERE a.client = k.client AND a.n = k.n);

	-- each row by each index that is valid
	FOR r IN SELECT * FROM (VALUES ('kb', 'kb_brin', 'b.a = a.a'), ('kx', 'kx_hash', 'b.h = a.h'), ('kx', 'kx_gist', 'b.r @> a.r'),
				('kx', 'kx_spgist', 'b.t = a.t'), ('kx', 'kx_quad', 'b.p ~= a.p'), ('kx', 'kx_gin', 'b.tags @> a.tags'),
				('kx', 'kx_brin', 'b.part = a.part'), ('kd', 'kd_brin', 'b.n = a.n')) v(tab, idx, cond)
			 JOIN pg_index i ON i.indexrelid = to_regclass(v.idx) AND i.indisvalid
	LOOP
		query := format('SELECT count(*) FROM (SELECT t.ctid AS tid, t.* FROM %1$s t OFFSET 0) a WHERE NOT EXISTS '
			|| '(SELECT FROM %1$s b WHERE %2$s AND b.ctid = a.tid OFFSET 0)', r.tab, r.cond);
		PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_hashjoin', 'off', true),
			set_config('enable_mergejoin', 'off', true), set_config('enable_material', 'off', true),
			set_config('enable_memoize', 'off', true), set_config('enable_tidscan', 'off', true);
		plan := '';
		FOR line IN EXECUTE 'EXPLAIN ' || query
		LOOP
			plan := plan || line || E'\n';
		END LOOP;
		EXECUTE query INTO c;
		PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_hashjoin', 'on', true),
			set_config('enable_mergejoin', 'on', true), set_config('enable_material', 'on', true),
			set_config('enable_memoize', 'on', true), set_config('enable_tidscan', 'on', true);
		IF plan !~ ('Scan (using|on) ' || r.idx) THEN
			RETURN NEXT format('test: the plan for %s is %s', r.idx, replace(plan, E'\n', ' '));
		END IF;
		IF c <> 0 THEN
			RETURN NEXT format('%s rows of %s are not found by %s', c, r.tab, r.idx);
		END IF;
	END LOOP;

	-- and what the indexes say without their table
	query := 'SELECT count(*) || ''/'' || sum(hashtext(r::text)) FROM kx WHERE r && int4range(NULL, NULL)';
	PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
		set_config('enable_indexonlyscan', 'off', true);
	EXECUTE query INTO by_table;
	PERFORM set_config('enable_indexonlyscan', 'on', true), set_config('enable_seqscan', 'off', true);
	EXECUTE query INTO by_index;
	PERFORM set_config('enable_seqscan', 'on', true), set_config('enable_indexscan', 'on', true), set_config('enable_bitmapscan', 'on', true);
	IF by_table <> by_index THEN
		RETURN NEXT format('index kx_gist: count and sum %s, by the table %s', by_index, by_table);
	END IF;

	FOR r IN SELECT i.indexrelid::regclass AS idx, a.amname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
			 JOIN pg_am a ON a.oid = c.relam JOIN pg_class t ON t.oid = i.indrelid JOIN pg_am ta ON ta.oid = t.relam
			 WHERE ta.amname = 'nvm' AND i.indisvalid AND (a.amname = 'btree' OR a.amname = 'gin')
	LOOP
		IF r.amname = 'btree' THEN
			PERFORM bt_index_check(r.idx, true);
		ELSIF to_regproc('gin_index_check') IS NOT NULL THEN
			EXECUTE format('SELECT gin_index_check(%L)', r.idx);
		END IF;
	END LOOP;
END $$;

CREATE FUNCTION verify() RETURNS SETOF text LANGUAGE sql AS
$$ SELECT verify_others() UNION ALL SELECT verify_kinds() $$;

-- until it is the only session of a test
CREATE PROCEDURE wait_alone() LANGUAGE plpgsql AS
$$
BEGIN
	PERFORM pg_sleep(1);
	FOR i IN 1 .. 1500
	LOOP
		COMMIT;
		EXIT WHEN NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'crash_test' AND pid <> pg_backend_pid());
		PERFORM pg_stat_clear_snapshot(), pg_sleep(0.01);
	END LOOP;
END $$;

-- until a query has an answer; no snapshot is held meanwhile
CREATE PROCEDURE wait_until(query text, more float8 DEFAULT 0) LANGUAGE plpgsql AS
$$
DECLARE
	done bool;
BEGIN
	FOR i IN 1 .. 800
	LOOP
		COMMIT;
		EXECUTE 'SELECT EXISTS (' || query || ')' INTO done;
		EXIT WHEN done;
		PERFORM pg_sleep(0.01);
	END LOOP;
	PERFORM pg_sleep(more);
END $$;
SQL
}

sub _txn
{
	my ($c, $n, $rows, $sql) = @_;
	my @rows = map { $rows->{$_} // 0 } qw(b x d);
	return "BEGIN;\nINSERT INTO ack (client, n) VALUES ($c, $n);\n"
	  . "INSERT INTO kack VALUES ($c, $n, " . join(', ', @rows) . ");\n$sql";
}

sub _end { return "COMMIT;\n\\echo ack $_[0] $_[1]\n"; }

=pod

=item NvmCrashKinds::txn_brin(client, n, FROM, TO)

A transaction that leaves three rows with values from FROM to TO, by BRIN.

=item NvmCrashKinds::txn_kinds(client, n, ROWS), txn_ddl(client, n, ROWS)

One that leaves rows by each other built-in index, and one by nvm_btree indexes.  txn_abort
leaves none.

=item NvmCrashKinds::txn_heard(client, n)

One whose notification tells of it.

=cut

sub txn_brin
{
	my ($c, $n, $from, $to) = @_;
	my @a = map { $from + NvmCrash::random("kb/$c/$n/$_", $to - $from + 1) } 1 .. 3;
	return _txn($c, $n, { b => 3 },
		'INSERT INTO kb VALUES ' . join(', ', map { "($c, $n, $_, $a[$_ - 1])" } 1 .. 3) . ";\n") . _end($c, $n);
}

sub _kinds
{
	my ($c, $n, $rows) = @_;
	my $from = NvmCrash::random("kx/$c/$n", 1000);
	return "INSERT INTO kx SELECT $c, $n, i, $from + i % 5, int4range($from + i, $from + 2 * i), 't' || $from + i, "
	  . "point(i, $from), ARRAY[i % 10, $from, $from + i] FROM generate_series(1, $rows) i;\n";
}

sub txn_kinds
{
	my ($c, $n, $rows) = @_;
	return _txn($c, $n, { x => $rows, b => 1 }, _kinds($c, $n, $rows) . "INSERT INTO kb VALUES ($c, $n, 1, 50 + $n);\n") . _end($c, $n);
}

sub txn_abort
{
	my ($c, $n, $rows) = @_;
	return _txn(-$c, $n, { x => $rows },
		_kinds(-$c, $n, $rows) . "DELETE FROM kx WHERE part % 3 = 0;\nUPDATE kb SET a = a + 5000;\nUPDATE kd SET k = k + 5000;\n")
	  . "ROLLBACK;\n";
}

sub txn_ddl
{
	my ($c, $n, $rows) = @_;
	my $from = NvmCrash::random("kd/$c/$n", 1000);
	return _txn($c, $n, { d => $rows },
		"INSERT INTO kd (client, n, part, k, u) SELECT $c, $n, i, $from + i, i % 10 FROM generate_series(1, $rows) i;\n"
		  . "UPDATE kd SET k = k + 1, u = u + 1 WHERE client = 71 AND part % 10 = $n % 10;\n") . _end($c, $n);
}

# who reads a row makes it durable: nothing but insertions without an index
sub txn_plain { return _txn(@_[ 0, 1 ], {}, '') . _end(@_); }

sub txn_heard
{
	my ($c, $n) = @_;
	return _txn($c, $n, {}, "NOTIFY heard, '$c $n';\n") . _end($c, $n);
}

# rolled back: nobody may hear of it
sub txn_unheard
{
	my ($c, $n) = @_;
	return _txn(-$c, $n, {}, "NOTIFY heard, '-$c $n';\n") . "ROLLBACK;\n";
}

=pod

=item NvmCrashKinds::write_on(RIG, CLIENT)

Work of all kinds, by a client that has not been used.

=back

=cut

sub write_on
{
	my ($rig, $c) = @_;
	my @problems = $rig->run_sessions(
		{   sql => txn_kinds($c, 1, 20)
			  . txn_abort($c, 2, 10)
			  . txn_brin($c, 2, 1, 2000)
			  . "VACUUM kx; VACUUM kb; VACUUM kd;\n"
			  . txn_ddl($c, 3, 20)
			  . "REINDEX TABLE kx;\nREINDEX INDEX CONCURRENTLY kd_k;\n"
			  . txn_kinds($c, 4, 20) });
	return (@problems, $rig->unacknowledged($c, 1 .. 4));
}

# Another session is asked to wait until this has been logged.
sub say { return "DO 'BEGIN RAISE LOG ''$_[0]''; END';\n"; }

sub asleep
{
	my ($arm, $place, $hit) = @_;
	my $ms = $arm =~ /:(?:crash|power|panic)/ ? 5000 : 2500;
	return "SET nvm.failpoint = '$place:sleep=$ms:$hit';\n";
}

# A phase of CREATE INDEX or REINDEX CONCURRENTLY.
sub wait_for_phase
{
	return "CALL wait_until('SELECT FROM pg_stat_progress_create_index WHERE phase = ''$_[0]''');\n";
}

sub wait_for_lock
{
	my ($id, $more) = @_;
	return "CALL wait_until('SELECT FROM pg_locks WHERE locktype = ''advisory'' AND objid = $id', " . ($more // 0) . ");\n";
}

sub take_lock { return "SELECT pg_advisory_lock($_[0]) \\g /dev/null\n"; }

# psql prints what it has heard after each statement
my $hear = join('', map { "SELECT pg_sleep(0.02) \\g /dev/null\nSELECT count(*) < 2 AS alone FROM pg_stat_activity "
	  . "WHERE application_name = 'crash_test' \\gset\n\\if :alone\n\\q\n\\endif\n" } 1 .. 500);

# A transaction that has the table's lock, and mostly no snapshot, until somebody has taken an
# advisory lock.
sub lock_table_until
{
	my ($id) = @_;
	return "BEGIN;\nLOCK TABLE kd IN ACCESS SHARE MODE;\n" . say('table locked')
	  . join('', map { "\\! sleep 0.2\nSELECT count(*) > 0 AS taken FROM pg_locks WHERE locktype = 'advisory' AND objid = $id \\gset\n"
		  . "\\if :taken\nCOMMIT;\n\\q\n\\endif\n" } 1 .. 20);
}

=pod

=head1 SCENARIOS

As those of NvmCrashScenarios; write_on is what goes on working after one.

=over

=item NvmCrashKinds::all(), NvmCrashKinds::of(WORKLOAD)

=back

=cut

my @scenarios = (
	{   # rows in a range that somebody who is not at his end has widened
		workload => 'built-in',
		name     => 'brin-covered',
		before   => txn_brin(1, 1, 1, 100) . txn_brin(1, 2, 1, 100),
		sessions => sub {
			return (
				{ sql => "BEGIN;\nINSERT INTO kb VALUES (-3, 1, 1, 1000);\n" . say('summary widened')
					  . "SELECT pg_sleep(2.5) \\g /dev/null\nROLLBACK;\n" },
				{ sql => $_[0] . join('', map { txn_brin(2, $_, 400, 600) } 1 .. 6), after => qr/summary widened/ },);
		},
	},
	{   # or a range whose summary somebody has removed, without waiting for his WAL
		workload => 'built-in',
		name     => 'brin-desummarized',
		before   => txn_brin(1, 1, 1, 100) . txn_brin(1, 2, 1, 100),
		sessions => sub {
			return (
				{ sql => "SET synchronous_commit = off;\nSELECT brin_desummarize_range('kb_brin', 0) \\g /dev/null\n"
					  . say('summary removed') . "CALL wait_alone();\n" },
				{ sql => $_[0] . join('', map { txn_brin(2, $_, 400, 600) } 1 .. 6), after => qr/summary removed/ },);
		},
	},
	{   # all methods; the pending list grows, and is emptied by VACUUM and by hand
		workload => 'built-in',
		name     => 'kinds',
		costly   => 1,
		before   => txn_kinds(1, 1, 50),
		sessions => sub {
			return ({ sql => $_[0] . txn_kinds(1, 2, 40) . txn_abort(1, 3, 20)
					  . "SELECT gin_clean_pending_list('kx_gin') \\g /dev/null\n"
					  . txn_kinds(1, 3, 20)
					  . txn_brin(1, 4, 1, 2000)
					  . "DELETE FROM kx WHERE client = 0;\nVACUUM kx;\nVACUUM kb;\n"
					  . "SET synchronous_commit = off;\n"
					  . "SELECT brin_summarize_new_values('kx_brin') \\g /dev/null\n"
					  . txn_kinds(1, 5, 200)
					  . txn_brin(1, 6, 1, 2000)
					  . "REINDEX TABLE kx;\n"
					  . txn_kinds(1, 7, 20) });
		},
	},
	{   # each of them in the midst of what the next transactions use
		workload => 'online-ddl',
		name     => 'online-ddl',
		costly   => 1,
		before   => txn_ddl(1, 1, 30),
		sessions => sub {
			my @ddl = ('CREATE INDEX CONCURRENTLY kd_new ON kd USING nvm_btree (u)',
				'REINDEX INDEX CONCURRENTLY kd_k', 'ALTER TABLE kd ADD COLUMN extra int DEFAULT 7',
				'CREATE INDEX CONCURRENTLY kd_brin ON kd USING brin (n)', 'DROP INDEX CONCURRENTLY kd_new',
				'ALTER TABLE kd ALTER part TYPE bigint', 'REINDEX TABLE CONCURRENTLY kd', 'REINDEX INDEX CONCURRENTLY kx_gin',);
			my $n = 1;
			return ({ sql => "SET synchronous_commit = off;\n" . $_[0] . join('', map { $n++; "$_;\n" . txn_ddl(1, $n, 10) } @ddl) });
		},
	},
	{   # REINDEX waits before it drops the old index, in which nobody inserts any more: what
		# it has committed so far, it has not flushed
		workload => 'online-ddl',
		name     => 'reindex-waits',
		costly   => 1,
		before   => txn_ddl(1, 1, 30),
		sessions => sub {
			return (
				{ sql => lock_table_until(80) },
				{ sql => "SET synchronous_commit = off;\nREINDEX INDEX CONCURRENTLY kd_k;\n", after => qr/table locked/ },
				{ sql => wait_for_phase('waiting for readers before marking dead') . "BEGIN;\nLOCK TABLE kd IN ACCESS SHARE MODE;\n"
					  . take_lock(80) . "\\! sleep 2.5\nCOMMIT;\n" },
				{ sql => join('', map { txn_ddl(2, $_, 5) } 1 .. 3) . wait_for_phase('waiting for readers before dropping')
					  . $_[0] . join('', map { txn_ddl(2, $_, 5) } 4 .. 9) },);
		},
	},
	{   # Somebody has notified a listener who is busy.  When he looks, there is one more
		# notification, of a transaction that all can see, and that is not decided.
		workload => 'notify',
		name     => 'notify',
		asleep   => 'commit-before-decision',
		costly   => 1,
		before   => txn_ddl(1, 1, 5) . txn_heard(1, 2),
		sessions => sub {
			return (
				{ sql => "LISTEN heard;\n" . say('somebody listens') . wait_for_lock(79, 0.5) . $hear },
				{   sql => txn_heard(2, 1) . txn_unheard(2, 2) . take_lock(79) . asleep($_[0], 'commit-before-decision', 1)
					  . txn_heard(2, 2) . txn_unheard(2, 3),
					after => qr/somebody listens/,
				},
				{   sql => "SELECT pg_sleep(1) \\g /dev/null\n" . $_[0] . txn_plain(3, 1) . txn_plain(3, 2) . txn_heard(3, 3),
					after => qr/failpoint commit-before-decision hit/,
				},);
		},
	},);

sub all { return map { { %$_, write_on => \&write_on } } @scenarios; }

sub of { my ($w) = @_; return map { $_->{name} } grep { $_->{workload} eq $w } @scenarios; }

1;

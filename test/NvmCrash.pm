# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmCrash - many small servers that die at a named place

=head1 SYNOPSIS

  use NvmCrash;

  my $base = NvmCrash::make_base('base');          # made once, then copied
  my $rig  = NvmCrash->new($base, simulate => 1);
  $rig->start('nvm.failpoint' => 'recovery-gaps:crash') or ...it died
  $rig->run_sessions({ client => 1, sql => NvmCrash::txn_mixed(1, 1) });
  $rig->crash;
  push @problems, $rig->verify;

=head1 DESCRIPTION

A rig is a data directory and a pool, copied from a base in a fraction of a
second, and a postmaster that is started and watched without pg_ctl.  The base
has one schema of tables in which every transaction leaves traces that must
agree with each other, so that one function, verify(), says of any mixture of
transactions whether each is whole or absent.  Sessions are psql scripts whose
output is the record, outside the server, of what was acknowledged.

run_jobs runs functions in parallel, each with a rig of its own.

=cut

package NvmCrash;

use strict;
use warnings;

use Cwd qw(abs_path);
use Fcntl qw(SEEK_SET);
use File::Basename;
use File::Path qw(rmtree);
use POSIX ();
use Time::HiRes qw(usleep time);

use NvmLogDisk;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $top = dirname(dirname(abs_path(__FILE__)));

# Everything random derives from this.
our $seed = $ENV{NVM_CRASH_SEED} // 1;

# How many servers at once.
our $jobs = $ENV{NVM_CRASH_JOBS} || _cpus();

# A library that simulated servers load first: it may add failpoints, outside of src.
our $preload;

my $main_pid = $$;
my @homes;

sub _cpus
{
	my $n = qx(nproc 2>/dev/null) || 1;
	chomp $n;
	return $n;
}

=pod

=head1 FUNCTIONS

=over

=item NvmCrash::failpoint_names()

The names of all fences and failpoints of the source, each with its place.

=cut

sub failpoint_names
{
	my %names;

	foreach my $file (glob "$top/src/*.c $top/src/*/*.c")
	{
		next if $file =~ m,/src/pmem/,;
		my $text = slurp_file($file);
		$text =~ s{/\*.*?\*/}{}gs;
		while ($text =~
			/\b(?:nvm_drain|nvm_persist|NVM_FAILPOINT)\s*\((?:[^;"]*,)?\s*"([a-z0-9-]+)"\s*\)\s*;/g)
		{
			$names{$1} = basename($file);
		}
	}
	die "no fences in $top/src" unless %names;
	return %names;
}

=pod

=item NvmCrash::random(KEY, N)

A number from 0 to N - 1 that depends on the seed and the key alone.

=cut

sub random
{
	my ($key, $n) = @_;
	my $h = 2166136261;

	foreach my $c (unpack('C*', "$seed/$key"))
	{
		$h = (($h ^ $c) * 16777619) & 0xffffffff;
	}
	$h ^= $h >> 15;
	$h = ($h * 2246822519) & 0xffffffff;
	$h ^= $h >> 13;
	return $h % $n;
}

# ---------------------------------------------------------------- the base

my $schema = slurp_schema();

sub slurp_schema
{
	return <<'SQL';
CREATE EXTENSION pg_nvm;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE crash_space LOCATION '';
-- one row for each transaction, with what it must have left elsewhere; no index
-- but nvm_btree here, on hist and on acct, or none would be of nvm data alone
CREATE TABLE ack (client int, n int, nhist int DEFAULT 0, mixed bool DEFAULT false,
	drawn bigint, nlarge int DEFAULT 0, nddl int DEFAULT 0,
	after_client int, after_n int) USING nvm;
CREATE TABLE hist (client int, n int, aid int, delta int) USING nvm;
CREATE INDEX hist_aid ON hist (aid);
CREATE TABLE acct (id int PRIMARY KEY, balance int, touched int DEFAULT 0, pad text) USING nvm;
CREATE TABLE ix (client int, n int, part int, k int, PRIMARY KEY (client, n, part)) USING nvm;
-- both methods: what an index of PostgreSQL's own loses with the WAL is another story
SET nvm.default_index_method = btree;
CREATE INDEX ix_k ON ix USING btree (k);
RESET nvm.default_index_method;
CREATE TABLE kv (id int PRIMARY KEY, k int) USING nvm;
SET nvm.default_index_method = btree;
CREATE INDEX kv_k ON kv USING btree (k);
RESET nvm.default_index_method;
CREATE INDEX kv_ours ON kv ((- k));
CREATE TABLE large (client int, n int, part int, body text, sum text) USING nvm;
ALTER TABLE large ALTER body SET STORAGE EXTERNAL;
CREATE TABLE filler (id int, pad text) USING nvm;
CREATE TABLE ddl (client int, n int, rel text, rows int) USING nvm;
CREATE TABLE heap_ack (client int, n int, drawn bigint, PRIMARY KEY (client, n)) USING heap;
-- rows that prepared transactions lock: the first one all, and one of their own
CREATE TABLE lockrow (id int PRIMARY KEY) USING nvm;
CREATE TABLE heap_saw (client int, n int) USING heap;
CREATE SEQUENCE seq;

INSERT INTO acct SELECT i, 1000, 0, repeat('p', 250) FROM generate_series(1, 200) i;
INSERT INTO kv SELECT i, i FROM generate_series(1, 100) i;
INSERT INTO lockrow SELECT generate_series(1, 30);
INSERT INTO filler SELECT i, repeat('f', 300) FROM generate_series(1, 4000) i;

CREATE FUNCTION noise(n int) RETURNS text LANGUAGE sql AS
$$ SELECT string_agg(md5(i::text || n), '') FROM generate_series(1, n / 32 + 1) i $$;

-- by an index and without: the same rows?
CREATE FUNCTION verify_index(tab regclass, idx regclass) RETURNS SETOF text LANGUAGE plpgsql AS
$$
DECLARE
	cols text := (SELECT string_agg(pg_get_indexdef(idx, i, true)
				  || CASE indoption[i - 1] & 1 WHEN 1 THEN ' DESC' ELSE '' END, ', ')
				  FROM pg_index, generate_series(1, indnkeyatts) i WHERE indexrelid = idx);
	-- of a partial index
	part text := coalesce((SELECT 'WHERE ' || pg_get_expr(indpred, indrelid) FROM pg_index WHERE indexrelid = idx), '');
	by_table text;
	by_index text;
	by_bitmap text;
	plan text;
BEGIN
	PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_indexonlyscan', 'off', true),
		set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'on', true);
	EXECUTE format('SELECT count(*) || ''/'' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %s t %s', tab, part) INTO by_table;
	PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_seqscan', 'off', true),
		set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true);
	EXECUTE format('EXPLAIN SELECT * FROM %s t %s ORDER BY %s', tab, part, cols) INTO plan;
	IF plan NOT LIKE '%Index Scan using ' || (SELECT relname FROM pg_class WHERE oid = idx) || ' on%' THEN
		RETURN NEXT format('test: the plan for %s is %s', idx, plan);
	END IF;
	EXECUTE format('SELECT count(*) || ''/'' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM (SELECT * FROM %s %s ORDER BY %s) t', tab, part, cols) INTO by_index;
	PERFORM set_config('enable_indexscan', 'off', true), set_config('enable_bitmapscan', 'on', true);
	EXECUTE format('SELECT count(*) || ''/'' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %s t %s %s > -2000000000', tab,
		CASE part WHEN '' THEN 'WHERE' ELSE part || ' AND' END,
		(SELECT pg_get_indexdef(idx, 1, true))) INTO by_bitmap;
	PERFORM set_config('enable_indexscan', 'on', true), set_config('enable_indexonlyscan', 'on', true),
		set_config('enable_seqscan', 'on', true), set_config('enable_sort', 'on', true),
		set_config('enable_incremental_sort', 'on', true);
	IF by_table <> by_index THEN
		RETURN NEXT format('index %s: count and sum %s, by the table %s', idx, by_index, by_table);
	END IF;
	IF by_table <> by_bitmap THEN
		RETURN NEXT format('bitmap of %s: count and sum %s, by the table %s', idx, by_bitmap, by_table);
	END IF;
END $$;

-- is each transaction whole or absent, and do the checks find nothing?
CREATE FUNCTION verify() RETURNS SETOF text LANGUAGE plpgsql AS
$$
DECLARE
	r record;
	c bigint;
BEGIN
	RETURN QUERY SELECT format('transaction %s/%s is there %s times', client, n, count(*))
		FROM ack GROUP BY client, n HAVING count(*) > 1;
	RETURN QUERY SELECT format('rolled back work of %s/%s in %s', client, n, t)
		FROM (SELECT client, n, 'ack' AS t FROM ack UNION ALL SELECT client, n, 'hist' FROM hist
			  UNION ALL SELECT client, n, 'ix' FROM ix UNION ALL SELECT client, n, 'large' FROM large
			  UNION ALL SELECT client, n, 'ddl' FROM ddl
			  UNION ALL SELECT client, n, 'heap_ack' FROM heap_ack) g WHERE client < 0;
	RETURN QUERY SELECT format('transaction %s/%s: %s rows of history, not %s', client, n, h.c, a.nhist)
		FROM (SELECT client, n, count(*) AS c FROM hist GROUP BY client, n) h FULL JOIN ack a USING (client, n)
		WHERE coalesce(h.c, 0) <> coalesce(a.nhist, -1);
	RETURN QUERY SELECT format('account %s: %s, by its history %s', id, balance, 1000 + coalesce(d, 0))
		FROM acct LEFT JOIN (SELECT aid AS id, sum(delta) AS d FROM hist GROUP BY aid) s USING (id)
		WHERE balance <> 1000 + coalesce(d, 0);
	SELECT count(*) INTO c FROM acct;
	IF c <> 200 THEN RETURN NEXT format('%s accounts', c); END IF;
	SELECT sum(balance) INTO c FROM acct;
	IF c <> 200000 THEN RETURN NEXT format('balances add up to %s', c); END IF;
	RETURN QUERY SELECT format('mixed transaction %s/%s: nvm %s, heap %s', client, n, a.drawn, h.drawn)
		FROM (SELECT client, n, drawn FROM ack WHERE mixed) a FULL JOIN heap_ack h USING (client, n)
		WHERE a.drawn IS DISTINCT FROM h.drawn;
	RETURN QUERY SELECT format('mixed transaction %s/%s: %s indexed rows', client, n, i.c)
		FROM (SELECT client, n, true AS there FROM ack WHERE mixed) a FULL JOIN
			 (SELECT client, n, count(*) AS c FROM ix GROUP BY client, n) i USING (client, n)
		WHERE coalesce(i.c, 0) <> 3 OR a.there IS NULL;
	SELECT max(drawn) INTO c FROM ack;
	IF nextval('seq') <= c THEN RETURN NEXT format('the sequence goes back behind %s', c); END IF;
	SELECT sum(k) INTO c FROM kv;
	IF c <> 5050 THEN RETURN NEXT format('keys add up to %s', c); END IF;
	RETURN QUERY SELECT format('transaction %s/%s: %s large values, not %s', client, n, l.c, a.nlarge)
		FROM (SELECT client, n, count(*) AS c FROM large GROUP BY client, n) l FULL JOIN ack a USING (client, n)
		WHERE coalesce(l.c, 0) <> coalesce(a.nlarge, -1);
	RETURN QUERY SELECT format('large value %s/%s/%s is damaged', client, n, part)
		FROM large WHERE md5(body) <> sum;
	RETURN QUERY SELECT format('transaction %s/%s is there, %s/%s, which it saw, is not', b.client, b.n, b.after_client, b.after_n)
		FROM ack b WHERE after_n IS NOT NULL AND NOT EXISTS
			(SELECT FROM ack a WHERE a.client = b.after_client AND a.n = b.after_n);
	RETURN QUERY SELECT format('the heap knows of %s/%s, which is lost', s.client, s.n)
		FROM heap_saw s WHERE NOT EXISTS (SELECT FROM ack a WHERE a.client = s.client AND a.n = s.n);
	RETURN QUERY SELECT format('transaction %s/%s: %s relations, not %s', client, n, d.c, a.nddl)
		FROM (SELECT client, n, count(*) AS c FROM ddl GROUP BY client, n) d FULL JOIN ack a USING (client, n)
		WHERE coalesce(d.c, 0) <> coalesce(a.nddl, -1);
	RETURN QUERY SELECT format('test: index %s is in the pool, not in files', relation::regclass) FROM nvm.relations
		WHERE NOT ended AND relation IN (to_regclass('ix_k'), to_regclass('kv_k'));
	SELECT count(*) INTO c FROM filler;
	IF c <> 4000 THEN RETURN NEXT format('filler has %s rows', c); END IF;

	-- relations: what the last transaction about each says
	FOR r IN SELECT DISTINCT ON (rel) rel, rows FROM ddl ORDER BY rel, n DESC
	LOOP
		IF (to_regclass(r.rel) IS NULL) <> (r.rows < 0) THEN
			RETURN NEXT format('relation %s should have %s rows, to_regclass is %s', r.rel, r.rows, to_regclass(r.rel));
		ELSIF r.rows >= 0 THEN
			EXECUTE format('SELECT count(*) FROM %I', r.rel) INTO c;
			IF c <> r.rows THEN
				RETURN NEXT format('relation %s has %s rows, not %s', r.rel, c, r.rows);
			END IF;
		END IF;
	END LOOP;
	RETURN QUERY SELECT format('relation %s was never committed', relname) FROM pg_class
		WHERE relname LIKE 'ddl\_%' AND relkind = 'r' AND relname NOT IN (SELECT rel FROM ddl);

	FOR r IN SELECT i.indrelid, i.indexrelid FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
			 JOIN pg_am a ON a.oid = c.relam JOIN pg_class ic ON ic.oid = i.indexrelid JOIN pg_am ia ON ia.oid = ic.relam
			 -- the others have no order; NvmCrashKinds looks at them
			 WHERE a.amname = 'nvm' AND i.indisvalid AND ia.amname IN ('btree', 'nvm_btree') ORDER BY 1, 2
	LOOP
		RETURN QUERY SELECT verify_index(r.indrelid, r.indexrelid);
	END LOOP;
	FOR r IN SELECT c.oid FROM pg_class c JOIN pg_am a ON a.oid = c.relam
			 WHERE a.amname = 'nvm' AND c.relkind IN ('r', 'm') ORDER BY 1
	LOOP
		RETURN QUERY SELECT 'nvm.check ' || r.oid::regclass || ': ' || f::text FROM nvm.check(r.oid::regclass, true) f;
	END LOOP;
	RETURN QUERY SELECT 'nvm.check_pool: ' || f::text FROM nvm.check_pool() f;
	RETURN QUERY SELECT format('storage %s (relation file %s, %s blocks) belongs to nobody', id, relfilenode, blocks)
		FROM nvm.relations WHERE relation IS NULL AND NOT ended AND coalesce(database, current_database()) = current_database();
END $$;

-- the contents of everything
CREATE FUNCTION digest() RETURNS text LANGUAGE plpgsql AS
$$
DECLARE
	r record;
	one text;
	total text := '';
BEGIN
	FOR r IN SELECT c.oid::regclass AS rel FROM pg_class c
			 WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace ORDER BY relname
	LOOP
		EXECUTE format('SELECT count(*) || ''/'' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %s t', r.rel) INTO one;
		total := total || r.rel || ' ' || one || '; ';
	END LOOP;
	RETURN total;
END $$;

CREATE PROCEDURE wait_for_collector() LANGUAGE plpgsql AS
$$
DECLARE
	till timestamptz := clock_timestamp() + interval '60 s';
BEGIN
	WHILE (SELECT count(*) FROM nvm.gaps) > 0
	LOOP
		COMMIT;
		PERFORM pg_sleep(0.005);
		IF clock_timestamp() > till THEN
			RAISE EXCEPTION 'the collector does not finish: %', (SELECT string_agg(g::text, ' ') FROM nvm.gaps g);
		END IF;
	END LOOP;
END $$;
SQL
}

=pod

=item NvmCrash::make_base(NAME)

A stopped server with the tables above, as a directory with `data` and `pool`.
fill => sub (NODE) adds something of its own, schema => SQL replaces the tables, conf =>
TEXT is appended to postgresql.conf.  NVM_CRASH_BASE is the directory of
one that was kept from an earlier run, and is used instead.
Small, because it is copied often: one database, WAL segments of a megabyte.

=cut

sub make_base
{
	my ($name, %params) = @_;

	# that of an earlier run which was kept
	return $ENV{NVM_CRASH_BASE} if $ENV{NVM_CRASH_BASE};

	my $home = NvmTest::pool_base() . "/$name";
	my $node = NvmTest->new($name);

	mkdir $home or die "$home: $!";
	push @homes, $home;
	$node->init(pool => "$home/pool", extra => [ '--wal-segsize=1', '--no-sync', '--no-instructions' ]);
	$node->append_conf('postgresql.conf', <<CONF);
max_connections = 20
max_worker_processes = 8
max_prepared_transactions = 10
shared_buffers = 8MB
min_wal_size = 2MB
max_wal_size = 64MB
autovacuum = off
wal_writer_delay = 10s
nvm.horizon_naptime = 10
jit = off
max_parallel_workers_per_gather = 0
restart_after_crash = off
dynamic_shared_memory_type = mmap
CONF
	$node->append_conf('postgresql.conf', $params{conf}) if defined $params{conf};
	# a server that has never seen a pool
	system_or_bail('cp', '-a', $node->data_dir, "$home/newborn");
	$node->start;
	$node->safe_psql('postgres', <<SQL);
UPDATE pg_database SET datistemplate = false;
DROP DATABASE template0;
DROP DATABASE template1;
SQL
	$node->safe_psql('postgres', $params{schema} // $schema);
	$params{fill}->($node) if $params{fill};
	$node->safe_psql('postgres', 'VACUUM (ANALYZE)');
	$node->stop;
	system_or_bail('cp', '-a', $node->data_dir, "$home/data");
	return $home;
}

# ------------------------------------------------------- transactions, as SQL

# Three accounts and their history; c < 0 is work that must not stay.
sub _transfer
{
	my ($c, $n, $shift) = @_;
	my @aid = map { 1 + random("aid/$c/$n/$_/" . ($shift // ''), 200) } 1 .. 3;
	my @delta = (random("d1/$c/$n", 100) + 1, random("d2/$c/$n", 100) + 1);

	push @delta, -$delta[0] - $delta[1];
	return join '', map {
		"UPDATE acct SET balance = balance + $delta[$_] WHERE id = $aid[$_];\n"
		  . "INSERT INTO hist VALUES ($c, $n, $aid[$_], $delta[$_]);\n"
	} 0 .. 2;
}

sub _indexed
{
	my ($c, $n) = @_;
	my $id = 1 + random("kv/$c/$n", 49);
	return "INSERT INTO heap_ack VALUES ($c, $n, currval('seq'));\n"
	  . "INSERT INTO ix SELECT $c, $n, i, $n + i FROM generate_series(1, 3) i;\n"
	  . "UPDATE kv SET k = k + $n WHERE id = $id;\n"
	  . "UPDATE kv SET k = k - $n WHERE id = $id + 50;\n";
}

=pod

=item NvmCrash::txn_nvm(client, n), txn_drawn, txn_mixed, txn_abort, txn_savepoint,
txn_large, txn_ddl(client, n, KIND)

SQL of a transaction.  It leaves row (client, n) in ack and what that row says
elsewhere, and psql prints "ack client n" when it was acknowledged.  A client
numbers its transactions 1, 2, 3.

=cut

sub txn_nvm
{
	my ($c, $n) = @_;
	return "BEGIN;\nINSERT INTO ack (client, n, nhist) VALUES ($c, $n, 3);\n"
	  . _transfer($c, $n) . "COMMIT;\n\\echo ack $c $n\n";
}

sub txn_drawn
{
	my ($c, $n) = @_;
	return "BEGIN;\nINSERT INTO ack (client, n, nhist, drawn) VALUES ($c, $n, 3, nextval('seq'));\n"
	  . _transfer($c, $n) . "COMMIT;\n\\echo ack $c $n\n";
}

sub txn_mixed
{
	my ($c, $n) = @_;
	# ack has no index, whose fences would be those of the rows, too: of this row's lines
	# any may be lost while the slot says PREPARED
	return "BEGIN;\nSELECT nextval('seq') \\g /dev/null\n"
	  . _transfer($c, $n) . _indexed($c, $n)
	  . "INSERT INTO ack (client, n, nhist, mixed, drawn) VALUES ($c, $n, 3, true, currval('seq'));\n"
	  . "COMMIT;\n\\echo ack $c $n\n";
}

sub txn_abort
{
	my ($c, $n, $mixed) = @_;
	return "BEGIN;\nINSERT INTO ack (client, n, nhist, drawn) VALUES (-$c, $n, 3, "
	  . ($mixed ? "nextval('seq'));\n" : "NULL);\n")
	  . _transfer(-$c, $n) . ($mixed ? _indexed(-$c, $n) : '')
	  . "DELETE FROM hist WHERE aid % 3 = 0;\nROLLBACK;\n";
}

sub txn_savepoint
{
	my ($c, $n, $mixed) = @_;
	return "BEGIN;\nSAVEPOINT a;\n"
	  . "INSERT INTO ack (client, n, nhist, nlarge) VALUES (-$c, $n, 6, 1);\n"
	  . _transfer(-$c, $n)
	  . "INSERT INTO large VALUES (-$c, $n, 1, noise(20000), 'x');\n"
	  . ($mixed ? "SELECT nextval('seq') \\g /dev/null\n" . _indexed(-$c, $n) : '')
	  . "ROLLBACK TO a;\n"
	  . "INSERT INTO ack (client, n, nhist, mixed, drawn) VALUES ($c, $n, 6, "
	  . ($mixed ? "true, nextval('seq')" : 'false, NULL') . ");\n"
	  . _transfer($c, $n)
	  . "SAVEPOINT b;\n" . _transfer($c, $n, 'b')
	  . ($mixed ? _indexed($c, $n) : '') . "RELEASE b;\n"
	  . "SAVEPOINT c;\n" . _transfer(-$c, $n) . "DELETE FROM acct WHERE id < 50;\nROLLBACK TO c;\n"
	  . "COMMIT;\n\\echo ack $c $n\n";
}

sub txn_large
{
	my ($c, $n) = @_;
	my $size = 15000 + random("size/$c/$n", 200000);
	return "BEGIN;\nINSERT INTO ack (client, n, nlarge) VALUES ($c, $n, 2);\n"
	  . "INSERT INTO large SELECT $c, $n, i, b, md5(b) FROM generate_series(1, 2) i, noise($size / i) b;\n"
	  . "UPDATE large SET body = body || 'x', sum = md5(body || 'x') WHERE client = $c AND n = $n - 1;\n"
	  . "COMMIT;\n\\echo ack $c $n\n";
}

sub txn_ddl
{
	my ($c, $n, $kind) = @_;
	my $rel = "ddl_$c";
	my ($sql, $rows);

	if ($kind eq 'create')
	{
		$sql = "CREATE TABLE $rel (a int PRIMARY KEY, b text) USING nvm;\n"
		  . "INSERT INTO $rel SELECT i, repeat('r', i % 200) FROM generate_series(1, 500) i;\n"
		  . "INSERT INTO $rel SELECT 500 + i, noise(20000) FROM generate_series(1, 2) i;\n";
		$rows = 502;
	}
	elsif ($kind eq 'truncate')
	{
		$sql = "TRUNCATE $rel;\nINSERT INTO $rel SELECT i FROM generate_series(1, 20) i;\n";
		$rows = 20;
	}
	elsif ($kind eq 'move')
	{
		# what was created before, with its large values
		$sql = "SET LOCAL client_min_messages = warning;\nALTER TABLE $rel SET TABLESPACE crash_space;\n"
		  . "UPDATE $rel SET b = b || 'm' WHERE a % 5 = 0;\n";
		$rows = 502;
	}
	elsif ($kind eq 'rewrite')
	{
		$sql = "ALTER TABLE $rel ALTER a TYPE bigint, ADD d timestamptz DEFAULT clock_timestamp();\n";
		$rows = 20;
	}
	elsif ($kind eq 'drop')
	{
		$sql = "DROP TABLE $rel;\n";
		$rows = -1;
	}
	else
	{
		die "txn_ddl $kind";
	}
	return "BEGIN;\nINSERT INTO ack (client, n, nddl) VALUES ($c, $n, 1);\n"
	  . "INSERT INTO ddl VALUES ($c, $n, '$rel', $rows);\n"
	  . $sql . "COMMIT;\n\\echo ack $c $n\n";
}

sub txn_ddl_abort
{
	my ($c, $n, @rels) = @_;
	return "BEGIN;\nINSERT INTO ddl VALUES (-$c, $n, 'x', 0);\n"
	  . "CREATE TABLE ddl_never_$c (a int PRIMARY KEY, b text) USING nvm;\n"
	  . "INSERT INTO ddl_never_$c SELECT i, repeat('n', 500) FROM generate_series(1, 300) i;\n"
	  . "INSERT INTO ddl_never_$c VALUES (0, noise(30000));\n"
	  . "TRUNCATE hist;\nINSERT INTO hist VALUES (-$c, $n, 1, 1);\n"
	  . "DROP TABLE ix;\nALTER TABLE kv ALTER k TYPE bigint;\nROLLBACK;\n";
}

=pod

=item NvmCrash::txn_prepared(client, n, HOW, SQL)

Likewise a transaction under PREPARE TRANSACTION, which then is ended: HOW is
'commit' or 'rollback', or is left to verify() to end: 'left-commit',
'left-rollback'.  It holds row locks, and runs SQL besides.  n is at most 20,
and no two that are left have the same one.

=cut

sub txn_prepared
{
	my ($c, $n, $how, $sql, %traces) = @_;
	my $who  = $how =~ /rollback/ ? -$c : $c;
	my $gid  = "${who}_$n";
	my $own  = 10 + $n;
	my $nddl = $traces{nddl} // 0;
	my $end  = uc($how =~ s/^left-//r) . ' PREPARED';
	my $left = $how =~ /^left/;
	my $out  = join '', map { my $id = 3 * $n + $_; my $d = $_ == 2 ? -3 : $_ + 1;
		"UPDATE acct SET balance = balance + $d WHERE id = $id;\n"
		  . "INSERT INTO hist VALUES ($who, $n, $id, $d);\n" } 0 .. 2;

	return "BEGIN;\nINSERT INTO ack (client, n, nhist, mixed, drawn, nddl) "
	  . "VALUES ($who, $n, 3, true, nextval('seq'), $nddl);\n$out"
	  . "SELECT id FROM lockrow WHERE id = 1 FOR KEY SHARE \\g /dev/null\n"
	  . "SAVEPOINT a;\nSELECT id FROM lockrow WHERE id = $own FOR UPDATE \\g /dev/null\nRELEASE a;\n"
	  . "INSERT INTO heap_ack VALUES ($who, $n, currval('seq'));\n"
	  . "INSERT INTO ix SELECT $who, $n, i, $n + i FROM generate_series(1, 3) i;\n"
	  . "UPDATE kv SET k = k + $n WHERE id = $n;\nUPDATE kv SET k = k - $n WHERE id = $n + 50;\n"
	  . ($sql // '')
	  . "PREPARE TRANSACTION '$gid';\n\\echo prepared $who $n" . ($left ? ' left' : '') . "\n"
	  . ($left ? '' : "$end '$gid';\n"
		. ($who > 0 ? "\\echo ack $c $n\n" : "\\echo rolled back $who $n\n"));
}

# ------------------------------------------------------------- rigs

=pod

=back

=head1 METHODS

=over

=item NvmCrash->new(BASE, simulate => 0|1, newborn => 0|1, log => 0|1, memory => 0|1, conf => {})

A copy of the base; newborn: a server that has not been started yet, which
$rig->grow_up gives the tables.  log: with simulate, the disk of its log is NvmLogDisk's,
and images have a log.  memory: tables in memory lie in a file, which outlives the server.  conf:
settings of each start.  The copy is removed when the object goes.

=cut

my $rigs_made = 0;

sub new
{
	my ($class, $base, %params) = @_;
	my $home = NvmTest::pool_base() . "/rig_$$" . '_' . ++$rigs_made;
	my $self = bless {
		home     => $home,
		base     => $base,
		simulate => $params{simulate},
		log_disk => $params{log},
		memory   => $params{memory},
		conf     => $params{conf},
		owner    => $$,
		images   => 0,
		acked    => {},
	}, $class;

	mkdir $home or die "$home: $!";
	$self->{log}  = "$home/log";
	$self->{data} = "$home/data";
	$self->{pool} = "$home/pool";
	_copy($params{newborn} ? "$base/newborn" : "$base/data", $self->{data});
	# holes stay holes: most of a pool is empty
	_copy("$base/pool", $self->{pool}) unless $params{newborn};
	_touch($self->{log});
	return $self;
}

sub grow_up
{
	my ($self) = @_;
	my ($out, $status, $err) = $self->psql($schema);
	return $status == 0 ? () : "the tables cannot be made: $err";
}

sub _copy
{
	my ($from, $to) = @_;
	system('cp', '-a', '--sparse=always', $from, $to) == 0 or die "cp $from $to failed";
	return;
}

sub _touch
{
	open(my $fh, '>>', $_[0]) or die "$_[0]: $!";
	close $fh;
	return;
}

sub DESTROY
{
	my ($self) = @_;
	return unless $self->{owner} == $$;
	local $?;
	$self->crash if $self->{pid};
	_keep_alarms($self->{log});
	rmtree($self->{home}) unless $self->{keep};
	return;
}

# Assertions that failed in a rig, with their stacks, into a log that outlives it: check.sh counts
# them there, whatever the test made of the server's death.
my %alarms_kept;

sub _keep_alarms
{
	my ($log) = @_;
	return if $alarms_kept{$log}++ || !-s $log;
	my @said = slurp_file($log) =~ /^(TRAP: .*\n(?:postgres: .*\n|\/.*\n)*)/mg or return;
	my ($test) = basename($0) =~ /^(.*?)(?:\.pl)?$/;
	open(my $fh, '>>', "$PostgreSQL::Test::Utils::log_path/rigs_$test.log") or return;
	print $fh @said;
	close $fh;
	return;
}

=pod

=item $rig->start(SETTING => VALUE, ...)

Start the server.  True when it accepts connections, false if it died.

=cut

sub start
{
	my ($self, %conf) = @_;
	my $pidfile = "$self->{data}/postmaster.pid";
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	die 'the server is running' if $self->{pid};
	unlink glob "$self->{home}/.s.PGSQL.*";
	my %all = (
		'nvm.pool_directory'      => $self->{pool},
		'unix_socket_directories' => $self->{home},
		'listen_addresses'        => '',
		'port'                    => 5432,
		'log_line_prefix'         => '%m [%p] %q%a ',
		$self->{simulate}
		? ( 'nvm.persist_method' => 'simulate',
			'fsync'              => 'on',
			'wal_sync_method'    => 'open_datasync',
			'wal_level'          => 'replica')
		: ('fsync' => 'off'),
		$self->{memory} ? ('nvm.memory_directory' => "$self->{home}/memory") : (),
		%{ $self->{conf} // {} },
		%conf);
	$self->{log_start} = -s $self->{log};
	my $disk = $self->{log_disk} && $self->{simulate} ? $self->_disk : undef;
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		POSIX::setsid();
		open(STDIN,  '<',  '/dev/null');
		open(STDOUT, '>>', $self->{log});
		open(STDERR, '>>', $self->{log});
		$ENV{LD_PRELOAD} = $preload if defined $preload && $self->{simulate};
		if ($disk)
		{
			my %env = NvmLogDisk::environment([ $self->log_directories ], $disk);
			$env{LD_PRELOAD} .= ":$preload" if defined $preload;
			$ENV{$_} = $env{$_} foreach keys %env;
		}
		exec('postgres', '-D', $self->{data}, map { ('-c', "$_=$all{$_}") } sort keys %all)
		  or POSIX::_exit(127);
	}
	$self->{pid} = $pid;
	if (open(my $fh, '>', "$self->{home}/pid"))
	{
		print $fh $pid;
		close $fh;
	}
	while (time() < $end)
	{
		if (waitpid($pid, POSIX::WNOHANG()) == $pid)
		{
			$self->{status} = $?;
			$self->_gone;
			return 0;
		}
		if (open(my $fh, '<', $pidfile))
		{
			my @lines = <$fh>;
			close $fh;
			return 1
			  if @lines >= 8 && $lines[0] == $pid && $lines[7] =~ /^ready/;
		}
		usleep(3000);
	}
	die "the server does not start:\n" . $self->log_since_start;
}

# Directory of the log; the disk that it lies on.  What it has had while no server with
# the disk's library wrote there is on the medium.
# Which there are the base says (NvmCrashLog::base).
sub log_directory { return "$_[0]->{data}/pg_nvm_log"; }

sub log_directories
{
	my ($self) = @_;
	my ($list) = PostgreSQL::Test::Utils::slurp_file("$self->{data}/postgresql.conf") =~ /^nvm\.log_directories = '(.*)'$/m;
	return map { "$self->{data}/$_" } split /, */, $list // 'pg_nvm_log';
}

sub _disk
{
	my ($self) = @_;
	my $disk = "$self->{home}/disk";

	NvmLogDisk::attach([ $self->log_directories ], $disk) unless -d $disk;
	return $disk;
}

sub log_since_start
{
	my ($self) = @_;
	open(my $fh, '<', $self->{log}) or return '';
	seek($fh, $self->{log_start} // 0, SEEK_SET);
	local $/;
	return <$fh> // '';
}

# How often the server has opened for sessions since its start.  One that gets in proves
# nothing after the death of a process: the postmaster may not have noticed.
sub times_opened
{
	my ($self) = @_;
	my @opened = $self->log_since_start =~ /database system is ready to accept connections/g;
	return scalar @opened;
}

# The postmaster is dead and reaped: wait for the others, who are dying.
sub _gone
{
	my ($self) = @_;
	my $end = time() + 30;

	while (time() < $end)
	{
		my @rest = $self->_alive;
		last unless @rest;
		kill('KILL', @rest);
		usleep(2000);
	}
	$self->{pid} = undef;
	# the segment that tells that somebody is attached: 0 is IPC_RMID
	if (open(my $fh, '<', "$self->{data}/postmaster.pid"))
	{
		my @lines = <$fh>;
		close $fh;
		shmctl($1, 0, 0) if ($lines[6] // '') =~ /^\s*\d+\s+(\d+)/;
	}
	unlink "$self->{home}/pid", "$self->{data}/postmaster.pid";
	return;
}

# Processes of this server, whose working directory nobody else has.
sub _alive
{
	my ($self) = @_;
	return grep { (readlink("/proc/$_/cwd") // '') eq $self->{data} }
	  map { m,/proc/(\d+)$, } glob '/proc/[0-9]*';
}

# A process of the server has died by a PANIC: wait until the postmaster has started
# anew.  It may not have noticed yet, and let one more session in.
sub wait_restarted
{
	my ($self) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		if ($self->log_since_start =~ /PANIC: .*database system is ready to accept connections/s)
		{
			my ($out, $status) = $self->psql("SELECT 'up';\n");
			return 1 if $status == 0;
		}
		return 0 if $self->wait_dead(0);
		usleep(5000);
	}
	return 0;
}

=pod

=item $rig->crash

SIGKILL everybody at once.  $rig->stop: a fast shutdown; true if it was clean.
$rig->wait_dead(SECONDS): true when the server has died by itself.

=cut

sub crash
{
	my ($self) = @_;
	return unless $self->{pid};
	kill('STOP', $self->{pid});
	my @pids = $self->_alive;
	kill('STOP', @pids);
	kill('KILL', $self->{pid}, @pids);
	waitpid($self->{pid}, 0);
	$self->_gone;
	return;
}

sub wait_dead
{
	my ($self, $seconds) = @_;
	my $end = time() + $seconds;

	return 1 unless $self->{pid};
	while (1)
	{
		if (waitpid($self->{pid}, POSIX::WNOHANG()) == $self->{pid})
		{
			$self->{status} = $?;
			$self->_gone;
			return 1;
		}
		return 0 if time() > $end;
		usleep(2000);
	}
}

sub stop
{
	my ($self) = @_;
	return 0 unless $self->{pid};
	kill('INT', $self->{pid});
	$self->wait_dead($PostgreSQL::Test::Utils::timeout_default) or die 'the server does not stop';
	return $self->{status} == 0;
}

=pod

=item $rig->psql(SQL)

Output of a script, and whether it came to its end.

=cut

sub psql
{
	my ($self, $sql) = @_;
	my $s = $self->session(sql => $sql);

	waitpid($s->{pid}, 0);
	$s->{pid} = undef;
	my $status = $? >> 8;
	my ($out, $err) = (slurp_file($s->{out}), slurp_file($s->{err}));
	unlink $s->{out}, $s->{err}, $s->{script};
	return wantarray ? ($out, $status, $err) : $out;
}

=pod

=item $rig->session(sql => SQL)

Start psql with a script.  $rig->run_sessions(SESSION, ...) runs several, each
{ sql => SQL, after => REGEXP of the server's log that it waits for }, until
all have ended.  What they had acknowledged is remembered.  Returns problems:
errors that the server reported, not a lost connection.

=cut

sub session
{
	my ($self, %params) = @_;
	my $base = "$self->{home}/session" . ++$self->{sessions};
	my $s    = { out => "$base.out", err => "$base.err", script => "$base.sql", %params };

	open(my $fh, '>', $s->{script}) or die "$s->{script}: $!";
	print $fh $params{sql};
	close $fh;
	_touch($_) foreach $s->{out}, $s->{err};
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		open(STDIN,  '<',  '/dev/null');
		open(STDOUT, '>>', $s->{out});
		open(STDERR, '>>', $s->{err});
		local $ENV{PGAPPNAME} = 'crash_test';
		exec('psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-f', $s->{script}, '-d',
			"host=$self->{home} port=5432 dbname=postgres")
		  or POSIX::_exit(127);
	}
	$s->{pid} = $pid;
	return $s;
}

sub wait_for_log
{
	my ($self, $re, $seconds) = @_;
	my $end = time() + ($seconds // $PostgreSQL::Test::Utils::timeout_default);

	while (time() < $end)
	{
		my $dead = $self->wait_dead(0);
		return 1 if $self->log_since_start =~ $re;
		last if $dead;
		usleep(3000);
	}
	return 0;
}

sub end_session
{
	my ($self, $s) = @_;
	my @problems;

	waitpid($s->{pid}, 0);
	my $status = $? >> 8;
	foreach my $line (split /\n/, slurp_file($s->{out}))
	{
		$self->{acked}{$1}{$2} = 1 if $line =~ /^ack (\d+) (\d+)$/;
		$self->{prepared}{"$1_$2"} = $3 if $line =~ /^prepared (-?\d+) (\d+)( left)?$/;
		delete $self->{prepared}{"$1_$2"}
		  if $line =~ /^(?:ack|rolled back) (-?\d+) (\d+)$/;
		# a listener is told of what has committed
		next unless $line =~ /^Asynchronous notification "heard" with payload "(-?)(\d+) (\d+)" received/;
		$self->{acked}{$2}{$3} = 1 if $1 eq '';
		push @problems, "a listener has heard of $2/$3, which was rolled back" if $1 ne '';
	}
	my $err = slurp_file($s->{err});
	# 2: the connection was lost; 3 is an error in the script, and what psql says as
	# well if the server is back before it looks at the connection
	if ($status == 0 || $status == 2
		|| ($status == 3 && $err =~ /^psql:\S+ (?:FATAL:  terminating connection|server closed the connection unexpectedly)/m))
	{
		push @problems, "a session says: $err" if $err =~ /^psql:\S+ ERROR/m;
	}
	else
	{
		push @problems, "a session failed: $err";
	}
	$s->{ended} = $status;
	unlink $s->{out}, $s->{err}, $s->{script};
	return @problems;
}

sub run_sessions
{
	my ($self, @sessions) = @_;
	my (@running, @problems);

	foreach my $s (@sessions)
	{
		if ($s->{after} && !$self->wait_for_log($s->{after}))
		{
			push @problems, "test: the log never had $s->{after}";
		}
		push @running, $self->session(%$s);
	}
	push @problems, $self->end_session($_) foreach @running;
	return @problems;
}

=pod

=item $rig->make_image(SEED, FROM => rig, ...)

Replace the pool of this server, which is dead, by an image that a power failure could
have left of the pool of FROM, or of itself; and its log, if FROM has a disk for it.

=cut

sub make_image
{
	my ($self, $image_seed, %options) = @_;
	my $rig  = delete $options{from} // $self;
	my $from = $rig->{pool};
	my $to   = "$self->{home}/image" . ++$self->{images};
	my $args = join ' ', map { "--$_ $options{$_}" } sort keys %options;
	my $said = qx($NvmTest::crashimage_tool $from $to --seed $image_seed $args 2>&1);

	die "nvm_crashimage $from --seed $image_seed $args: $said" if $? != 0;
	$said = qx($NvmTest::patch_tool $to/pool detach 2>&1);
	die "nvm_patch: $said" if $? != 0;
	rmtree($self->{pool});
	rename($to, $self->{pool}) or die "rename $to: $!";
	if ($rig->{log_disk})
	{
		NvmLogDisk::image($rig->_disk, [ $self->log_directories ], seed => $image_seed, mode => $options{mode});
		rmtree("$self->{home}/disk");
	}

	# what the next start repairs is not damage
	$said = qx(nvm_poolcheck -P $self->{pool} 2>&1);
	die "nvm_poolcheck: image --seed $image_seed $args: $said" if $? != 0;
	return;
}

=pod

=item $rig->after_crash

A rig of its own with a copy of this one's data directory, whose server is
dead, and of what was acknowledged; without a pool, for make_image.

=cut

sub after_crash
{
	my ($self) = @_;
	my $copy = NvmCrash->new_empty(%$self);
	_copy($self->{data}, $copy->{data});
	$copy->{acked} = { map { $_ => { %{ $self->{acked}{$_} } } } keys %{ $self->{acked} } };
	return $copy;
}

=pod

=item $rig->note_power_failure

Remember how far the WAL had been flushed when the server died at a failpoint with
action power: $rig->{wal_flushed}.

=cut

sub note_power_failure
{
	my ($self) = @_;
	delete $self->{wal_flushed};
	$self->{wal_flushed} = hex($1) * 2**32 + hex($2)
	  if $self->log_since_start =~ m,hit\, pid \d+\, WAL flushed to ([0-9A-F]+)/([0-9A-F]+),;
	return;
}

sub new_empty
{
	my ($class, %like) = @_;
	my $home = NvmTest::pool_base() . "/rig_$$" . '_' . ++$rigs_made;

	mkdir $home or die "$home: $!";
	_touch("$home/log");
	return bless {
		home     => $home,
		base     => $like{base},
		simulate => $like{simulate},
		log_disk => $like{log_disk},
		conf     => $like{conf},
		owner    => $$,
		images   => 0,
		log      => "$home/log",
		data     => "$home/data",
		pool     => "$home/pool",
	}, $class;
}

# Prepared transactions: those that must be there are, with their row locks.
# Ends them.
sub _end_prepared
{
	my ($self) = @_;
	my (@problems, %there, %free);
	my ($out, $status, $err) = $self->psql("SELECT 'gid ' || gid FROM pg_prepared_xacts;\n"
		  . "SELECT 'free ' || id FROM lockrow WHERE EXISTS (SELECT FROM pg_prepared_xacts) "
		  . "FOR UPDATE SKIP LOCKED;\n"
		  . "SELECT 'view ' || gid FROM nvm.transactions WHERE state = 'prepared';\n"
		  . "SELECT 'finding ' || c FROM nvm.check_pool() c;\n");
	push @problems, "prepared transactions: $err" if $status != 0;
	my %view;
	foreach my $line (split /\n/, $out)
	{
		if    ($line =~ /^gid (\S+)$/)    { $there{$1} = 1; }
		elsif ($line =~ /^free (\d+)$/)   { $free{$1}  = 1; }
		elsif ($line =~ /^view (\S+)$/)   { $view{$1}  = 1; }
		elsif ($line =~ /^finding (.*)$/) { push @problems, "nvm.check_pool, with prepared ones: $1"; }
	}
	push @problems, 'prepared: ' . join(' ', sort keys %there) . '; nvm.transactions has ' . join(' ', sort keys %view)
	  if join(' ', sort keys %there) ne join(' ', sort keys %view);
	foreach my $gid (sort keys %{ $self->{prepared} })
	{
		my ($c, $n) = split /_/, $gid;
		next if $there{$gid};
		push @problems, "prepared transaction $gid is lost" if $self->{prepared}{$gid};
		# its COMMIT PREPARED was under way
		$self->{acked}{$c}{$n} = 1 if $c > 0;
	}
	foreach my $gid (sort keys %there)
	{
		my ($c, $n) = split /_/, $gid;
		push @problems, "row lock $_ of prepared transaction $gid is lost"
		  foreach grep { $free{$_} } 1, 10 + $n;
		($out, $status, $err) = $self->psql(($c > 0 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid';\n");
		push @problems, "prepared transaction $gid cannot be ended: $err" if $status != 0;
		$self->{acked}{$c}{$n} = 1 if $c > 0;
	}
	delete $self->{prepared};
	return @problems;
}

=pod

=item $rig->verify(collect => 0|1)

Problems of a running server: acknowledged transactions that are not there,
transactions that nobody began or that are there by halves, what the checks
find.  collect: wait for the gap collector first.  expected: lines of the
server's log that are in order.  Afterwards $rig->{digest}
tells the contents.

=cut

sub verify
{
	my ($self, %params) = @_;
	my %there;
	my @problems = $self->_end_prepared;
	my ($out, $status, $err) = $self->psql(($params{collect} ? "CALL wait_for_collector();\n" : '')
		  . "SELECT 'problem ' || v FROM verify() v;\n"
		  . "SELECT 'there ' || client || ' ' || n FROM ack;\n"
		  . "SELECT 'digest ' || digest();\n");

	push @problems, "verification failed: $err" if $status != 0;
	delete $self->{digest};
	foreach my $line (split /\n/, $out)
	{
		if ($line =~ /^there (\S+) (\S+)$/) { $there{$1}{$2} = 1; }
		elsif ($line =~ /^digest (.*)/) { $self->{digest} = $1; }
		elsif ($line =~ /^problem (.*)/) { push @problems, $1; }
		else { push @problems, "verify said: $line"; }
	}
	my $acked = $self->{acked};
	foreach my $c (sort keys %$acked)
	{
		foreach my $n (sort { $a <=> $b } keys %{ $acked->{$c} })
		{
			push @problems, "acknowledged transaction $c/$n is lost" unless $there{$c}{$n};
		}
	}
	foreach my $c (sort keys %there)
	{
		foreach my $n (sort { $a <=> $b } keys %{ $there{$c} })
		{
			push @problems, "transaction $c/$n was never begun"
			  if !$acked->{$c}{$n} && $n > 1 && !$acked->{$c}{ $n - 1 };
		}
	}
	my $log = $self->log_since_start;
	while ($log =~ /^(.*(?:PANIC|TRAP|terminated by signal|ERROR:  |WARNING:  ).*)$/mg)
	{
		my $line = $1;
		# on tmpfs; the header was being written when the power failed
		next if $line =~ /does not outlive a reboot|one copy of the header of NVM pool .* is rewritten/;
		# DROP DATABASE is redone
		next if $line =~ /(?:could not open directory|some useless files may be left behind in old database directory) "(?:base|pg_tblspc)/;
		next if $params{expected} && $line =~ $params{expected};
		push @problems, "the server's log has: $line";
	}
	return @problems;
}

=pod

=item $rig->write_on(CLIENT)

Transactions of all kinds, by a client that has not been used.

=cut

sub write_on
{
	my ($self, $c) = @_;
	my @problems = $self->run_sessions(
		{   sql => txn_nvm($c, 1)
			  . txn_mixed($c, 2)
			  . txn_abort($c, 3)
			  . txn_savepoint($c, 3, 1)
			  . txn_large($c, 4)
			  . txn_ddl($c, 5, 'create')
			  . txn_ddl($c, 6, 'drop')
			  . "VACUUM acct; VACUUM ix; VACUUM kv; VACUUM hist;\n" });
	return (@problems, $self->unacknowledged($c, 1 .. 6));
}

# Of a client that writes on
sub unacknowledged
{
	my ($self, $c, @n) = @_;
	return map { "writing on: transaction $_ was not acknowledged" } grep { !$self->{acked}{$c}{$_} } @n;
}

# ------------------------------------------------------------- parallel jobs

=pod

=back

=over

=item NvmCrash::run_jobs(JOB, ...)

Run jobs { name => ..., code => sub { ... } } in processes, NVM_CRASH_JOBS at a
time.  code returns problems; the name with its problems becomes a test, or what
$NvmCrash::report, a sub (JOB, PROBLEM...), makes of it.  When $NvmCrash::enough, a
sub, says so, no more jobs are begun.  Returns what was done.

=cut

our $enough = sub { return 0; };
our $report = sub {
	my ($job, @problems) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 2;
	return is(join("\n", @problems), '', $job->{name});
};

sub run_jobs
{
	my (@todo) = @_;
	my (%running, @done);

	while (@todo || %running)
	{
		@todo = () if $enough->();
		while (@todo && keys %running < $jobs)
		{
			my $job  = shift @todo;
			my $file = NvmTest::pool_base() . "/job_$$" . '_' . ++$rigs_made;
			# what is in the buffers is the parent's
			$| = 1;
			STDOUT->flush;
			my $pid = fork();
			die "fork: $!" unless defined $pid;
			if ($pid == 0)
			{
				_run_job($job, $file);
				POSIX::_exit(0);
			}
			$running{$pid} = { job => $job, file => $file, began => time() };
		}
		last unless %running;
		my $pid = waitpid(-1, 0);
		my $r   = delete $running{$pid} or next;
		my $said = -e $r->{file} ? slurp_file($r->{file}) : "the job died: status $?\n";
		unlink $r->{file};
		my @problems = split /\n/, $said;
		# of one that hangs, all that is known
		my $most = $said =~ /took too long/ ? 200 : 12;
		my $cut = @problems - $most;
		if ($cut > 0)
		{
			splice(@problems, $most);
			push @problems, "and $cut lines more";
		}
		push @done, { job => $r->{job}, problems => \@problems };
		$report->($r->{job}, @problems);
		note(sprintf('%.1f s', time() - $r->{began})) if $ENV{NVM_CRASH_TIMES};
	}
	return @done;
}

# Processes of this job, what they wait for, and the end of the server's log.
sub _what_runs
{
	my $mine = NvmTest::pool_base() . "/rig_$$" . '_';
	my @said;

	foreach my $proc (sort glob '/proc/[0-9]*')
	{
		my $pid = basename($proc);
		my $cmd = eval { slurp_file("$proc/cmdline") } // next;
		next unless index($cmd, $mine) >= 0 || index(readlink("$proc/cwd") // '', $mine) == 0;
		my ($state) = (eval { slurp_file("$proc/status") } // '') =~ /^State:\s+(\S)/m;
		$cmd =~ tr/\0/ /;
		push @said, substr("$pid " . ($state // '?') . " $cmd", 0, 160);
		my @stack = grep { /^#/ } split /\n/, qx(gdb -p $pid -batch -ex bt 2>/dev/null);
		push @said, map { substr($_, 0, 160) } @stack[ 0 .. ($#stack < 11 ? $#stack : 11) ];
	}
	foreach my $log (sort glob "$mine*/log")
	{
		my @lines = split /\n/, slurp_file($log);
		push @said, $log, @lines[ (@lines > 8 ? -8 : 0) .. -1 ] if @lines;
	}
	return join("\n", @said) . "\n";
}

sub _run_job
{
	my ($job, $file) = @_;
	my @problems;

	my $ok = eval {
		local $SIG{ALRM} = sub { die "took too long\n" . _what_runs() };
		alarm($ENV{NVM_CRASH_SECONDS} || 300);
		@problems = $job->{code}->();
		alarm(0);
		1;
	};
	# that may be a loop of the server's
	push @problems, $@ =~ /^took too long/ ? $@ : "test: $@" unless $ok;
	open(my $fh, '>', $file) or return;
	print $fh map { my $p = $_; chomp $p; "$p\n" } @problems;
	close $fh;
	return;
}

END
{
	if ($$ == $main_pid)
	{
		my $status = $?;
		# servers of jobs that did not come to their end
		foreach my $file (defined $homes[0] ? glob(NvmTest::pool_base() . '/rig_*/pid') : ())
		{
			my $pid  = slurp_file($file);
			my $data = dirname($file) . '/data';
			my @pids = grep { (readlink("/proc/$_/cwd") // '') eq $data }
			  map { m,/proc/(\d+)$, } glob '/proc/[0-9]*';
			kill('KILL', @pids);
		}
		_keep_alarms($_) foreach defined $homes[0] ? glob(NvmTest::pool_base() . '/rig_*/log') : ();
		rmtree($_) foreach @homes;
		$? = $status;
	}
}

1;

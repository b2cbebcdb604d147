# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmCrashLog - work on tables in memory in the midst of which power may fail

=head1 DESCRIPTION

Scenarios as in NvmCrashScenarios, on tables that the log brings back (tools/nvm_dram.c):
ack, hist and acct of NvmCrash, and some of their own.  Transactions write them alone, and
together with heap, with nvm tables and with a sequence; some are larger than a buffer of
the log.  verify() of NvmCrash is extended: each transaction says in `want` what it has
left elsewhere, and what a reader of others' work has noted must be there.

A client's transactions that are not waited for are not acknowledged.  What depends on
them is.

=over

=item NvmCrashLog::base(NAME, directories => 1|2), NvmCrashLog::all()

The base, and the scenarios.  The log lies in so many directories.

=item NvmCrashLog::dirs()

Scenarios for a base with two: copies of some, under names of their own.

=item NvmCrashLog::of(WORKLOAD)

Names of scenarios: of those who read what is not durable yet (log-readers), of starts
(log-start), of a log in two directories (log-dirs), of others (log).

=item NvmCrashLog::is_log(NAME)

Is this fence or failpoint one of the log, of its checkpoints, or of the rebuilding from it?

=item NvmCrashLog::new_rig(BASE)

A rig whose log lies on a disk of NvmLogDisk's.

=item NvmCrashLog::write_on(RIG, CLIENT)

Transactions of all kinds.

=back

=cut

package NvmCrashLog;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmCrash;
use NvmCrashScenarios;

my $module = dirname(abs_path(__FILE__)) . '/tools/nvm_dram';

# but for what only the very first table comes to
sub is_log { return $_[0] =~ /^(?:log|vlog|rebuild|ckpt)-/ && $_[0] ne 'log-directory-made'; }

sub new_rig { return NvmCrash->new($_[0], simulate => 1, log => 1); }

sub conf
{
	return <<CONF;
shared_preload_libraries = 'pg_nvm,$module'
nvm_dram.size = 192MB
nvm_dram.log = on
# so that records are as long as the scenarios want them, to fill buffers and files
nvm.log_compression = off
max_worker_processes = 8
# a start after a crash syncs the data directory; the log's may lie elsewhere, and
# nvm_disk knows of no syncfs()
recovery_init_sync_method = syncfs
CONF
}

sub base
{
	my ($name, %how) = @_;
	my $more = ($how{directories} // 1) > 1 ? "nvm.log_directories = 'pg_nvm_log, pg_nvm_log_b'\n" : '';

	return NvmCrash::make_base($name, conf => conf() . $more, schema => schema());
}

sub schema
{
	my $schema = NvmCrash::slurp_schema();

	$schema =~ s/(CREATE EXTENSION pg_nvm;\n)/$1CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$module' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
/ or die 'no extension';
	$schema =~ s/(CREATE TABLE (?:ack|hist|acct) \([^;]*\)) USING nvm;/$1 USING nvm_dram;/g;
	die 'no tables in memory' unless 3 == (() = $schema =~ /USING nvm_dram;/g);
	$schema =~ s/a\.amname = 'nvm'/a.amname IN ('nvm', 'nvm_dram', 'nvm_cmdlog')/g;
	return $schema . <<'SQL';
-- what each transaction leaves elsewhere: rows in heap, in the pool, in bulk
CREATE TABLE want (client int, n int, h int, p int, b int) USING nvm_dram;
CREATE INDEX want_client ON want (client, n);
CREATE TABLE in_heap (client int, n int, i int) USING heap;
CREATE TABLE in_pool (client int, n int, i int) USING nvm;
CREATE TABLE bulk (client int, n int, i int, pad text) USING nvm_dram;
CREATE INDEX bulk_i ON bulk (client, i);
-- all rows are changed together; a checkpoint walks it by a snapshot
CREATE TABLE step (id int PRIMARY KEY, v int, pad text) USING nvm_cmdlog;
INSERT INTO step SELECT i, 0, repeat('s', 150) FROM generate_series(1, 100) i;
-- rows come and go, and an index in files leads to them
CREATE TABLE run (k int, pad text) USING nvm_dram;
SET nvm.default_index_method = btree;
CREATE INDEX run_k ON run USING btree (k);
RESET nvm.default_index_method;
INSERT INTO run SELECT i, repeat('r', 150) FROM generate_series(1, 900) i;
-- what others have read
CREATE TABLE pool_saw (client int, n int) USING nvm;
CREATE SEQUENCE saw_most;

-- indexes in memory, when their tables are there
CREATE FUNCTION wait_rebuilt() RETURNS void LANGUAGE plpgsql AS
$$
BEGIN
	PERFORM FROM ack;
	FOR i IN 1 .. 3000
	LOOP
		IF NOT EXISTS (SELECT FROM nvm.index_rebuilds WHERE state <> 'ready') THEN
			RETURN;
		END IF;
		PERFORM pg_sleep(0.01);
	END LOOP;
	RAISE EXCEPTION 'not rebuilt: %', (SELECT string_agg(r::text, ' ') FROM nvm.index_rebuilds r WHERE state <> 'ready');
END $$;

ALTER FUNCTION verify() RENAME TO verify_others;

CREATE FUNCTION verify() RETURNS SETOF text LANGUAGE plpgsql AS
$$
DECLARE
	r record;
	c bigint;
BEGIN
	PERFORM wait_rebuilt();
	RETURN QUERY SELECT * FROM verify_others();
	RETURN QUERY SELECT format('transaction %s/%s is wanted %s times', client, n, count(*)) FROM want GROUP BY client, n HAVING count(*) > 1;
	FOR r IN SELECT * FROM (VALUES ('in_heap', 'h'), ('in_pool', 'p'), ('bulk', 'b')) v(tab, col)
	LOOP
		RETURN QUERY EXECUTE format('SELECT format(''transaction %%s/%%s: %%s rows of %1$s, not %%s'', client, n, t.c, w.%2$s) '
			|| 'FROM (SELECT client, n, count(*) AS c FROM %1$s GROUP BY client, n) t '
			|| 'FULL JOIN want w USING (client, n) WHERE coalesce(t.c, 0) <> coalesce(w.%2$s, 0)', r.tab, r.col);
	END LOOP;
	RETURN QUERY SELECT format('transaction %s/%s left rows and is not there', client, n) FROM want w
		WHERE NOT EXISTS (SELECT FROM ack a WHERE a.client = w.client AND a.n = w.n);
	SELECT count(*) INTO c FROM step;
	IF c <> 100 THEN RETURN NEXT format('%s steps', c); END IF;
	SELECT count(DISTINCT v) INTO c FROM step;
	IF c <> 1 THEN RETURN NEXT format('steps of %s transactions', c); END IF;
	RETURN QUERY SELECT format('row %s of run was never committed', k) FROM run WHERE k >= 1000000;
	RETURN QUERY SELECT 'test: index run_k is in memory, not in files' FROM nvm.relations WHERE NOT ended AND relation = 'run_k'::regclass;
	RETURN QUERY SELECT format('the pool knows of %s/%s, which is lost', s.client, s.n)
		FROM pool_saw s WHERE NOT EXISTS (SELECT FROM ack a WHERE a.client = s.client AND a.n = s.n);
	RETURN QUERY SELECT format('the sequence has come to %s, but transaction %s/1 is lost', last_value, last_value)
		FROM saw_most WHERE is_called AND NOT EXISTS (SELECT FROM ack WHERE client = last_value);
END $$;
SQL
}

# ------------------------------------------------------- transactions, as SQL

# One that leaves so many rows elsewhere
sub txn
{
	my ($c, $n, %rows) = @_;
	my ($h, $p, $b) = map { $rows{$_} // 0 } qw(heap pool bulk);

	return "BEGIN;\nINSERT INTO ack (client, n, nhist) VALUES ($c, $n, 3);\n"
	  . NvmCrash::_transfer($c, $n)
	  . "INSERT INTO want VALUES ($c, $n, $h, $p, $b);\n"
	  . ($h ? "INSERT INTO in_heap SELECT $c, $n, i FROM generate_series(1, $h) i;\n" : '')
	  . ($p ? "INSERT INTO in_pool SELECT $c, $n, i FROM generate_series(1, $p) i;\n" : '')
	  . ($b ? "INSERT INTO bulk SELECT $c, $n, i, repeat('b', i % 90) FROM generate_series(1, $b) i;\n" : '')
	  . ($rows{sql} // '')
	  . ($rows{rollback} ? "ROLLBACK;\n" : "COMMIT;\n\\echo ack $c $n\n");
}

# One whose client does not wait, and is told nothing
sub async
{
	my ($sql) = @_;
	$sql =~ s/^\\echo ack.*\n//mg;
	return "SET synchronous_commit = off;\n${sql}RESET synchronous_commit;\n";
}

sub step { return "UPDATE step SET v = v + 1;\n"; }

# DDL of a table in memory
sub ddl
{
	my $sql = NvmCrash::txn_ddl(@_);
	$sql =~ s/USING nvm;/USING nvm_dram;/;
	# a large value
	$sql =~ s/noise\(20000\)/noise(1000)/;
	return $sql;
}

sub ddl_abort
{
	my $sql = NvmCrash::txn_ddl_abort(@_);
	$sql =~ s/USING nvm;/USING nvm_dram;/;
	$sql =~ s/noise\(30000\)/noise(1000)/;
	return $sql;
}

# Rows of others that a session has read: it writes them where the log is not.
sub saw
{
	my ($where, @clients) = @_;
	my $list = join(', ', @clients);
	return "INSERT INTO heap_saw SELECT client, n FROM ack WHERE client IN ($list);\n" if $where eq 'heap';
	return "INSERT INTO pool_saw SELECT client, n FROM ack WHERE client IN ($list);\n" if $where eq 'pool';
	# Two transactions: setval() writes WAL that others may flush before this one ends and
	# waits for what it has read (doc/guarantees.md).
	return "SELECT coalesce(max(client), 0) AS most FROM ack WHERE client IN ($list) \\gset\n"
	  . "SELECT setval('saw_most', m) FROM (SELECT :most AS m) x WHERE m > 0 \\g /dev/null\n";
}

# The first transactions of clients, all of one session
sub unwaited { return join '', map { txn($_, 1, bulk => 2) } @_; }

sub told { return "DO 'BEGIN RAISE LOG ''has committed $_[0]''; END';\n"; }

# so that nobody syncs what nobody waits for
my %asleep = ('nvm.horizon_naptime' => '60s');

# What a start that is to come to its end waits for: tables, and then indexes.  Nobody is at
# them any more then who would come upon a transaction before it is decided, or not.
my $ready = "SELECT wait_rebuilt() \\g /dev/null\n";

# a clean stop before that, and nothing else
my $stopped = sub { };

# Two sessions: one that never waits, not even for what it has read, and one that reads
# what it has written
sub pair
{
	my ($first, $reader) = @_;

	$first =~ s/^\\echo ack.*\n//mg;
	return ({ sql => "SET synchronous_commit = off;\n$first" . told(1) . "SELECT pg_sleep(0.3) \\g /dev/null\n" },
		{ sql => $reader, after => qr/has committed 1/ });
}


# so many records of about 50 kB; a file of the log has room for about 310
sub fill
{
	my ($times) = @_;
	return "INSERT INTO bulk SELECT 90, 0, i, repeat('f', 100) FROM generate_series(1, 400) i WHERE NOT EXISTS (SELECT FROM want WHERE client = 90);\n"
	  . "INSERT INTO ack (client, n) SELECT 90, 0 WHERE NOT EXISTS (SELECT FROM want WHERE client = 90);\n"
	  . "INSERT INTO want SELECT 90, 0, 0, 0, 400 WHERE NOT EXISTS (SELECT FROM want WHERE client = 90);\n"
	  . "SET synchronous_commit = off;\n"
	  . "DO 'BEGIN FOR i IN 1..$times LOOP UPDATE bulk SET pad = pad WHERE client = 90; COMMIT; END LOOP; END';\n"
	  . "RESET synchronous_commit;\n";
}

# Rows of a table with an index in files, which stay, or are never there
sub run_rows
{
	my ($first, $n) = @_;
	my $insert = "INSERT INTO run SELECT i, repeat('r', 150) FROM generate_series($first, $first + $n - 1) i;\n";
	return $first < 1_000_000 ? $insert : "BEGIN;\n${insert}ROLLBACK;\n";
}

sub checkpoint { return "SELECT nvm.checkpoint() \\g /dev/null\n"; }

sub more
{
	return txn(1, 1) . txn(1, 2, heap => 2) . txn(1, 3, pool => 2) . txn(1, 4, bulk => 5) . step();
}

sub all
{
	# those of the protocol that are as good here
	my %wanted = map { $_ => 1 } qw(mixed abort savepoint helper helper-heap sequence large);
	my @others = map { { %$_, name => "log-$_->{name}" } } grep { $wanted{ $_->{name} } } NvmCrashScenarios::all();

	return (
		{   name     => 'log-region',
			sessions => sub {
				return one($_[0], txn(1, 1), step(), txn(1, 2, bulk => 20), "DELETE FROM hist WHERE false;\n",
					NvmCrash::txn_nvm(1, 3), step(), txn(1, 4));
			},
		},
		{   name     => 'log-heap',
			sessions => sub {
				return one($_[0], txn(1, 1, heap => 2), txn(1, 2), txn(1, 3, heap => 1, bulk => 3), txn(1, 4, heap => 1, rollback => 1),
					txn(1, 4, heap => 2));
			},
		},
		{   name     => 'log-pool',
			sessions => sub {
				return one($_[0], txn(1, 1, pool => 2), txn(1, 2), txn(1, 3, pool => 1, bulk => 3), txn(1, 4, pool => 1, rollback => 1),
					txn(1, 4, pool => 2, heap => 1));
			},
		},
		{   name     => 'log-async',
			sessions => sub {
				return one("SET synchronous_commit = off;\n", $_[0], NvmCrash::txn_mixed(1, 1), NvmCrash::txn_mixed(1, 2),
					txn(36, 1) =~ s/^\\echo.*\n//mr, NvmCrash::txn_mixed(1, 3), "RESET synchronous_commit;\n", txn(1, 4));
			},
		},
		{   # rows that come and go under the same place
			name   => 'log-gone',
			before => txn(1, 1, bulk => 50) . txn(1, 2, bulk => 50),
			sessions => sub {
				return one($_[0],
					"BEGIN;\nDELETE FROM bulk WHERE client = 1 AND n = 1 AND i % 2 = 0;\n"
					  . "UPDATE want SET b = 25 WHERE client = 1 AND n = 1;\nCOMMIT;\n",
					"BEGIN;\nDELETE FROM bulk WHERE client = 1 AND n = 2;\nUPDATE want SET b = 0 WHERE client = 1 AND n = 2;\n",
					body(txn(1, 3)), "COMMIT;\n\\echo ack 1 3\n",
					txn(1, 4, sql => "UPDATE bulk SET pad = pad || repeat('g', 40) WHERE n = 1;\nDELETE FROM bulk WHERE client = 1 AND n = 1 AND i = 1;\n"
						  . "UPDATE want SET b = b - 1 WHERE client = 1 AND n = 1;\n"),
					step());
			},
		},
		{   name     => 'log-larger',
			sessions => sub {
				return one($_[0], txn(1, 1, bulk => 1500), txn(1, 2), txn(1, 3, bulk => 1200, heap => 1),
					txn(1, 4, bulk => 1200, rollback => 1), txn(1, 4, bulk => 1200, pool => 1), txn(1, 5));
			},
		},
		{   # VACUUM finds a clean run, rows go there, and it finds a longer one
			name   => 'log-clean',
			before => $NvmTest::pass_time . "DELETE FROM run WHERE k BETWEEN 100 AND 300;\nVACUUM run;\nCALL pass_time();\n",
			sessions => sub {
				return one($_[0], "VACUUM run;\n", run_rows(1_000_000, 60), txn(1, 1, heap => 1), run_rows(2000, 60),
					"DELETE FROM run WHERE k BETWEEN 400 AND 800;\nVACUUM run;\nCALL pass_time();\nVACUUM run;\n",
					run_rows(1_000_000, 200), txn(1, 2, heap => 1), run_rows(3000, 100), txn(1, 3),
					# and where it grows
					run_rows(10_000, 3000), txn(1, 4));
			},
		},
		{   # the file is full
			name   => 'log-full-file',
			costly => 1,
			before => fill(268),
			sessions => sub {
				return one($_[0],
					"DO 'BEGIN FOR i IN 1..60 LOOP UPDATE bulk SET pad = pad WHERE client = 90; COMMIT; END LOOP; END';\n",
					txn(1, 1), txn(1, 2, heap => 1));
			},
		},
		{   name   => 'log-ddl',
			before => $NvmTest::pass_time,
			sessions => sub {
				return one($_[0], ddl(1, 1, 'create'), ddl(1, 2, 'truncate'), ddl(1, 3, 'rewrite'), ddl_abort(1, 4),
					"VACUUM FULL step;\n", ddl(1, 4, 'drop'), txn(1, 5));
			},
		},
		{   name     => 'log-truncate',
			before   => ddl(1, 1, 'create') . ddl(2, 1, 'create'),
			sessions => sub {
				return one($_[0], ddl(1, 2, 'truncate'), txn(1, 3), ddl(2, 2, 'truncate'), ddl(1, 4, 'drop'));
			},
		},
		{   # what nobody has waited for, and a reader who writes elsewhere
			name     => 'log-reader',
			setting  => { %asleep },
			sessions => sub {
				return pair(unwaited(31 .. 33),
					$_[0] . saw('heap', 31 .. 33) . txn(1, 1) . saw('pool', 31 .. 33) . txn(1, 2, heap => 1) . saw('sequence', 31 .. 33));
			},
		},
		{   name     => 'log-reader-pool',
			setting  => { %asleep },
			sessions => sub { return pair(unwaited(31 .. 33), $_[0] . saw('pool', 31 .. 33) . txn(1, 1) . saw('sequence', 31 .. 33)); },
		},
		{   name     => 'log-reader-sequence',
			setting  => { %asleep },
			sessions => sub { return pair(unwaited(31 .. 33), $_[0] . saw('sequence', 31 .. 33) . txn(1, 1)); },
		},
		{   # the reader does not wait, either: his WAL may be there, and beyond what was flushed
			name     => 'log-reader-async',
			setting  => { %asleep },
			sessions => sub {
				return pair(unwaited(31 .. 33),
					$_[0] . async(saw('heap', 31 .. 33) . saw('pool', 31 .. 33)) . async(txn(34, 1)) . saw('heap', 34) . txn(1, 1));
			},
		},
		{   # somebody stands still before he syncs.  What others commit meanwhile must not be
			# frozen, or its reader would wait for nothing
			name     => 'log-reader-frozen',
			asleep   => 'log-sync',
			before   => $NvmTest::pass_time . txn(37, 1),
			sessions => sub {
				my ($first, $second) = pair(unwaited(31 .. 33) . "CALL pass_time(12);\n",
					$_[0] . saw('heap', 31 .. 33) . txn(1, 1) . saw('pool', 31 .. 33));
				return ({ sql => NvmCrashScenarios::asleep($_[0], 'log-sync', 1) . txn(36, 1) },
					{ %$first, after => qr/failpoint log-sync hit/ }, $second);
			},
		},
		{   # somebody stands still in the midst of the round that has it all
			name     => 'log-round',
			asleep   => 'log-sync',
			setting  => { %asleep },
			before   => txn(37, 1),
			sessions => sub {
				my ($first, $second) = pair(unwaited(31 .. 33), $_[0] . saw('heap', 31 .. 33) . txn(1, 1) . saw('pool', 31 .. 33));
				return ($first, { sql => NvmCrashScenarios::asleep($_[0], 'log-sync', 1) . txn(36, 1), after => qr/has committed 1/ },
					{ %$second, after => qr/failpoint log-sync hit/ });
			},
		},
		{   # or in the midst of a decision
			name     => 'log-decision',
			asleep   => 'log-placing',
			setting  => { %asleep },
			before   => txn(37, 1),
			sessions => sub {
				return ({ sql => NvmCrashScenarios::asleep($_[0], 'log-placing', 1) . txn(31, 1) },
					{ sql => $_[0] . saw('heap', 31) . txn(1, 1) . saw('pool', 31), after => qr/failpoint log-placing hit/ });
			},
		},
		{   name     => 'log-clients',
			sessions => sub {
				my ($arm) = @_;
				return map { my $c = $_;
					{ sql => ($c == 1 ? $arm : '') . join('', map { txn($c, $_, heap => $_ % 3 ? 0 : 1, pool => $_ % 4 ? 0 : 2, bulk => $_ == 5 ? 1200 : $_) } 1 .. 8) }
				} 1 .. 4;
			},
		},
		{   # what a start does
			name    => 'log-start',
			wait    => $ready,
			before  => more() . async(txn(35, 1)),
			prelude => {
				sessions => [
					NvmCrashScenarios::left_open(51, body(txn(-51, 1, bulk => 30))),
					NvmCrashScenarios::left_open(52, body(txn(-52, 1, heap => 1))),
				]
			},
		},
		{   # the last block that was synced, which none behind it says of
			name    => 'log-start-acked',
			wait    => $ready,
			setting => { %asleep },
			before  => txn(1, 1) . txn(1, 2) . txn(1, 3),
			prelude => { sessions => [ NvmCrashScenarios::left_open(51, body(txn(-51, 1))) ] },
		},
		{   # the server was killed: what it had written was not synced, and is there
			name    => 'log-start-killed',
			setting => { %asleep },
			before  => more(),
			prelude => {
				killed   => 1,
				sessions => [ { sql => "SET synchronous_commit = off;\n" . unwaited(31 .. 33) =~ s/^\\echo.*\n//mgr
						  . "RESET synchronous_commit;\nSET nvm.failpoint = 'log-sync:crash';\n" . txn(36, 1) } ]
			},
			sessions => sub { return one($_[0], saw('heap', 31 .. 33, 36), txn(1, 5), saw('pool', 31 .. 33, 36)); },
		},
		{   name    => 'log-start-larger',
			wait    => $ready,
			before  => txn(1, 1, bulk => 1500),
			prelude => { sessions => [ NvmCrashScenarios::left_open(51, body(txn(-51, 1, bulk => 1500))) ] },
		},
		{   # a side file that no record names
			name    => 'log-start-side',
			wait    => $ready,
			before  => more(),
			prelude => {
				killed   => 1,
				sessions => [ { sql => "SET nvm.failpoint = 'log-side-sync:crash';\nBEGIN;\n" . body(txn(-52, 1, bulk => 1500)) . "COMMIT;\n" } ]
			},
		},
		{   # what is prepared comes back so, and ends as it is told
			name    => 'log-start-prepared',
			wait    => $ready,
			before  => more(),
			prelude => {
				sessions => [
					{   sql => NvmCrash::txn_prepared(61, 1, 'left-commit') . NvmCrash::txn_prepared(61, 2, 'left-rollback')
						  . NvmCrashScenarios::left_open(53, '')->{sql}
					}
				]
			},
		},
		{   # an index that is being built meets a transaction that others see and that is not decided
			name    => 'log-start-helper',
			asleep  => 'commit-before-decision',
			before  => more(),
			between => $stopped,
			setting => { 'nvm.index_rebuild_workers' => 1 },
			held    => [ 'index-rebuild-claimed', qr/failpoint commit-before-decision hit/ ],
			started => sub {
				my ($arm) = @_;
				# rows of each table that has an index in memory
				return one(NvmCrashScenarios::asleep($arm, 'commit-before-decision', 1), txn(7, 1, bulk => 2, sql => step()), $ready);
			},
		},
		{   name    => 'log-checkpoint',
			between => $stopped,
			before  => more() . checkpoint() . txn(1, 5, bulk => 1500) . step() . txn(1, 6, heap => 1),
			wait    => $ready . txn(7, 1) . checkpoint() . txn(8, 1, pool => 1) . step() . checkpoint(),
		},
		{   # old files of the log, of which there are two, and a checkpoint before it
			name    => 'log-checkpoint-files',
			costly  => 1,
			between => $stopped,
			before  => fill(330) . checkpoint() . fill(330) . txn(1, 1) . step(),
			wait    => $ready . txn(7, 1) . checkpoint() . txn(8, 1, heap => 1),
		},
		{   # questions that are open, and a row that goes, while it is made
			name    => 'log-checkpoint-open',
			setting => { %asleep },
			before  => more(),
			sessions => sub {
				return (
					{ sql => "SET nvm.failpoint = 'log-asked:sleep=300';\n" . txn(31, 1, heap => 1) },
					{ sql => checkpoint() . $_[0] . txn(1, 5, heap => 1, sql => "DELETE FROM bulk WHERE client = 1 AND n = 4;\nUPDATE want SET b = 0 WHERE client = 1 AND n = 4;\n")
						  . checkpoint() . txn(1, 6), after => qr/failpoint log-asked hit/ });
			},
		},
		{   name    => 'log-start-in-doubt',
			wait    => $ready,
			before  => more(),
			prelude => {
				sessions => [
					NvmCrashScenarios::left_open(51, body(txn(-51, 1))),
					{   sql   => "SET nvm.failpoint = 'commit-after-prepare:crash';\n" . txn(1, 5, heap => 1, pool => 1),
						after => qr/left open 51/,
					},
				]
			},
		},
		@others,);
}

# Those in which files are made, in a log of two directories
sub dirs
{
	my %wanted = map { ("log-$_" => 1) } qw(full-file larger checkpoint checkpoint-files start start-side start-killed clients);
	return map { { %$_, name => $_->{name} =~ s/^log/dirs/r } } grep { $wanted{ $_->{name} } } all();
}

sub of
{
	my ($workload) = @_;
	return map { $_->{name} } dirs() if $workload eq 'log-dirs';
	return grep {
		my $of = /^log-(?:reader|round|decision|helper)/ ? 'log-readers' : /^log-start/ ? 'log-start' : 'log';
		$of eq $workload;
	} map { $_->{name} } all();
}

sub one { return NvmCrashScenarios::one(@_); }
sub body { return NvmCrashScenarios::body(@_); }

sub write_on
{
	my ($rig, $c) = @_;
	my @problems = $rig->run_sessions(
		{   sql => txn($c, 1)
			  . txn($c, 2, heap => 1)
			  . txn($c, 3, pool => 1)
			  . txn($c, 4, bulk => 1200)
			  . NvmCrash::txn_abort($c, 5)
			  . NvmCrash::txn_savepoint($c, 5, 1)
			  . ddl($c, 6, 'create')
			  . ddl($c, 7, 'truncate')
			  . step()
			  . run_rows(5000, 120)
			  . "VACUUM acct; VACUUM hist; VACUUM bulk; VACUUM step;\n" });
	return (@problems, $rig->unacknowledged($c, 1 .. 7));
}

1;

# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmCrashScenarios - work in the midst of which a server may die

=head1 DESCRIPTION

Each scenario leads to some of the fences and failpoints; which ones is found
out by running it once with all of them set to sleep=0, which only logs.

A scenario is a hash with

=over

=item name

=item newborn

true if the server has never been started before

=item setting

of the server, a hash reference

=item before

SQL that runs, and is acknowledged, before anything can fail

=item prelude

{ sessions => [...] } that lead to a first crash: by a failpoint that they set,
or else, when each has logged a sleep, by SIGKILL; killed => 1: whatever comes later,
that is no loss of power

=item asleep

the place where a session sleeps by itself: it does not fail there

=item costly

true if it takes seconds, and is for names that nothing else reaches

=item between

sub (RIG), called when the server has been stopped cleanly after `before`

=item held

[ PLACE, REGEXP ]: of a scenario without sessions; processes stop at the place until the
server's log says so

=item started

sub (ARM) in place of `wait`, with `held`: the sessions that begin when a process has stopped

=item sessions

sub (ARM) that returns the sessions; ARM is the statement that sets the
failpoint.  Without sessions the failpoint is set for the whole server, from
its start over the work of the gap collector, and SQL `wait`, to its stop.

=back

=cut

package NvmCrashScenarios;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmCrash;
use NvmCrashBtree;
use NvmCrashLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

*nvm       = \&NvmCrash::txn_nvm;
*mixed     = \&NvmCrash::txn_mixed;
*aborted   = \&NvmCrash::txn_abort;
*savepoint = \&NvmCrash::txn_savepoint;
*large     = \&NvmCrash::txn_large;
*ddl       = \&NvmCrash::txn_ddl;
*ddl_abort = \&NvmCrash::txn_ddl_abort;
*prepared  = \&NvmCrash::txn_prepared;
*drawn     = \&NvmCrash::txn_drawn;

# Names that no scenario reaches, and why.
our %unreachable = ();

# Names that another test crashes at.
our %elsewhere = (
	'orphan-candidates' => 'ddl/12_orphans',
	'orphan-ended'      => 'ddl/12_orphans',
	'log-directory-made' => 'log/09_access_method',
	# a directory fails, or is full
	(map { $_ => 'log/14_directories' } qw(log-file-left log-first-elsewhere ckpt-remove-other)),
	(map { $_ => 'region/07_memory_file_edges' } qw(memory-made memory-emptied memory-ready memory-announced memory-bound
		memory-grown memory-reserve log-decision-found log-decision-stored)),
	(map { $_ => 'log/17_reserve' } qw(memory-grown-reserve vacuum-count-lowered pool-count-blocks)),
	(map { $_ => 'space/14_vacuum_workers' } qw(vacuum-workers-shared vacuum-workers-launched vacuum-worker-started
		vacuum-worker-index vacuum-worker-done)),
	(map { $_ => 'log/19_clean_run' } qw(vacuum-clean-found vacuum-clean-offered pool-clean-run)),
	(map { $_ => 'command/29_recover_calls' } qw(rebuild-replay rebuild-played rebuild-played-open rebuild-given-up
		rebuild-given-up-kept recover-watch recover-indexes recover-record recover-settle recover-played)),
	'resolve-log'       => 'log/05_prepared',
	'ckpt-remove-orphan' => 'log/07_checkpoint',
	(map { ("keep-$_" => 'log/18_unlogged') } qw(data-write data-sync walked sync rename renamed pass-on passed-on remove)),
	'pool-count-volatile' => 'log/10_foreign_entries',
	(map { $_ => 'log/16_reset_log' } qw(log-reset-move log-reset-moved log-reset-reclaim log-reset-reclaimed
		log-reset-forgotten)),
	'reset-request'     => 'pool/04_reset_pool',
	'reset-requested'   => 'pool/04_reset_pool',
	'reset-moved'       => 'pool/04_reset_pool',
	'reset-unbound'     => 'pool/04_reset_pool',
	'reset-forgotten'   => 'pool/04_reset_pool',
	'bypass-note'       => 'recovery/07_bypassed',
	'bypass-noted'      => 'recovery/07_bypassed',
	'place-note'        => 'pool/03_pool_name',
	'place-noted'       => 'pool/03_pool_name',
	'witness-note'      => 'recovery/07_bypassed',
	'witness-noted'     => 'recovery/07_bypassed',
	'pool-create'       => 'pool/02_new_pools',
	'pool-create-lock'  => 'pool/02_new_pools',
	'pool-hide'         => 'pool/03_pool_name',
	'pool-hidden'       => 'pool/03_pool_name',
	'old-marks'         => 'pool/02_new_pools',
	'old-marks-gone'    => 'pool/02_new_pools',
	'pool-redo-make'    => 'recovery/05_redo_lanes',
	'ddl-swapped-table' => 'ddl/01_index_ddl',
	'ddl-settle-index'  => 'ddl/04_index_ddl_crash',
	'copy-index-block'  => 'ddl/04_index_ddl_crash',
	'gap-undecided'     => 'gap/04_aborted_takeover',
	'rowlock-elsewhere' => 'commit/12_asked_while_it_ends',
	'gap-end-seen'      => 'prepared/05_rolled_back_reindex',
	(map { $_ => 'command/28_modes' } qw(mode-ddl-begun mode-ddl-quiet mode-ddl-covered mode-promote-begun mode-promote-waited
		mode-usable mode-flushed)),
	'mode-ddl-decided'  => 'command/31_modes_lost',
	'resolve-locks-written'    => 'prepared/07_emptied_table',
	'resolve-locks-first-copy' => 'prepared/07_emptied_table',
	'resolve-locks-replaced'   => 'prepared/07_emptied_table',);

sub one
{
	my (@parts) = @_;
	return ({ sql => join('', @parts) });
}

# A transaction that stays open until the server dies; $n says which.
sub left_open
{
	my ($c, $sql) = @_;
	return {
		sql => "BEGIN;\n$sql"
		  . "SET LOCAL nvm.failpoint = 'commit-begin:sleep=1';\n"
		  . "DO 'BEGIN RAISE LOG ''left open $c''; END';\nSELECT pg_sleep(600);\n"
	};
}

# A session stops at a place until others have done what they want there; on a
# busy machine that takes a while, but they end it when they crash.
sub asleep
{
	my ($arm, $place, $hit) = @_;
	my $ms = $arm =~ /:(?:crash|power|panic)/ ? 5000 : 1500;
	return "SET nvm.failpoint = '$place:sleep=$ms:$hit';\n";
}

# what a transaction does, without its end
sub body
{
	my ($sql) = @_;
	$sql =~ s/^(?:BEGIN|COMMIT|ROLLBACK);\n//mg;
	$sql =~ s/^\\echo.*\n//mg;
	return $sql;
}

# a prepared transaction that makes, empties and drops tables
sub prepared_ddl
{
	my ($c, $n, $how) = @_;
	my $who = $how =~ /rollback/ ? -$c : $c;

	return prepared($c, $n, $how,
		"INSERT INTO ddl VALUES ($who, $n, 'ddl_$c', 20), ($who, $n, 'ddl_b$c', -1), ($who, $n, 'ddl_n$c', 1);\n"
		  . "TRUNCATE ddl_$c;\nINSERT INTO ddl_$c SELECT i FROM generate_series(1, 20) i;\nDROP TABLE ddl_b$c;\n"
		  . "CREATE TABLE ddl_n$c (a int PRIMARY KEY, b text) USING nvm;\nINSERT INTO ddl_n$c VALUES (1, noise(20000));\n",
		nddl => 3);
}

# what that one is about
sub tables_for_ddl
{
	my ($c) = @_;
	return ddl($c, 1, 'create')
	  . "BEGIN;\nINSERT INTO ack (client, n, nddl) VALUES ($c, 2, 1);\n"
	  . "INSERT INTO ddl VALUES ($c, 2, 'ddl_b$c', 1);\nCREATE TABLE ddl_b$c (a int) USING nvm;\n"
	  . "INSERT INTO ddl_b$c VALUES (1);\nCOMMIT;\n\\echo ack $c 2\n";
}

# a transaction that writes when all others have been told that it commits
sub late
{
	my ($c, $n) = @_;
	return "BEGIN;\nSET LOCAL nvm_late.sql = 'INSERT INTO ack (client, n) VALUES ($c, $n)';\n"
	  . "COMMIT;\n\\echo ack $c $n\n";
}

# The next start is the 65537th, the first of its era.
sub begin_era
{
	my ($rig) = @_;
	foreach my $image ("$rig->{pool}/pool", glob "$rig->{pool}/pool.durable")
	{
		system_or_bail($NvmTest::patch_tool, $image, 'set', 'both', 'incarnation', 65536);
	}
	system_or_bail($NvmTest::patch_tool, "$rig->{data}/pg_nvm_incarnation", 'incarnation', 65536);
	return;
}

sub open_sessions
{
	my $ddl = body(ddl_abort(52, 1));

	# the others write there
	$ddl =~ s/^(?:TRUNCATE|INSERT INTO) hist.*\n//mg;
	return (
		left_open(51, body(aborted(51, 1))),
		left_open(52, $ddl),
		left_open(53, body(NvmCrash::txn_large(-53, 1))
			  . "INSERT INTO filler SELECT -i, repeat('g', 300) FROM generate_series(1, 200) i;\n"
			  . "DELETE FROM filler WHERE id BETWEEN 1 AND 500;\n"));
}

# Scenarios of test/powerfail/run alone: what they are about has tests of its own.
sub more
{
	return (
		{   # the marks of start 2, which start 65538 must not believe
			name    => 'old-marks',
			before  => join('', map { nvm(1, $_) } 1 .. 3)
			  . "BEGIN;\nSELECT FROM acct WHERE id < 50 FOR UPDATE \\g /dev/null\nCOMMIT;\n"
			  . ddl(2, 1, 'create') . "UPDATE acct SET touched = 2;\n",
			between => \&begin_era,
		},);
}

sub all
{
	return (
		{   name     => 'nvm',
			sessions => sub {
				return one($_[0], nvm(1, 1), nvm(1, 2), "UPDATE acct SET touched = touched + 1;\n", nvm(1, 3));
			},
		},
		{   name     => 'mixed',
			sessions => sub { return one($_[0], mixed(1, 1), nvm(1, 2), mixed(1, 3)); },
		},
		{   # numbers of a sequence in nvm data alone, of a record that somebody else has
			# inserted, and nobody flushed
			name     => 'sequence',
			# the first ones may write WAL: catalog pages are pruned.  A rollback would
			# flush it
			before   => nvm(1, 1),
			sessions => sub {
				return one(nvm(1, 2), "SET synchronous_commit = off;\nSELECT nextval('seq') \\g /dev/null\n"
					  . "RESET synchronous_commit;\n", $_[0], drawn(1, 3), nvm(1, 4), drawn(1, 5));
			},
		},
		{   # rows that are written over the cells of several smaller ones, which the
			# writer frees himself
			name   => 'larger',
			before => $NvmTest::pass_time
			  . "CREATE TABLE grown (id int, pad text) USING nvm;\n"
			  . "INSERT INTO grown SELECT i, repeat('s', 250) FROM generate_series(1, 200) i;\n"
			  . "DELETE FROM grown WHERE id % 20 > 2;\nVACUUM grown;\nCALL pass_time();\n",
			sessions => sub {
				return one($_[0], "BEGIN;\nINSERT INTO ack (client, n) VALUES (1, 1);\n",
					"INSERT INTO grown SELECT 1000 + i, repeat('l', 1500) FROM generate_series(1, 20) i;\n",
					"COMMIT;\n\\echo ack 1 1\n",
					nvm(1, 2));
			},
		},
		{   # what another library writes in its pre-commit callback, after ours
			name     => 'late',
			setting  => { shared_preload_libraries => dirname(abs_path(__FILE__)) . '/tools/nvm_late,pg_nvm' },
			sessions => sub { return one($_[0], late(1, 1), nvm(1, 2), late(1, 3), mixed(1, 4)); },
		},
		{   # the commit record must be durable all the same
			name     => 'mixed-async',
			sessions => sub {
				return one("SET synchronous_commit = off;\n", $_[0], mixed(1, 1), mixed(1, 2), nvm(1, 3));
			},
		},
		{   name     => 'abort',
			sessions => sub {
				return one($_[0], aborted(1, 1), nvm(1, 1), aborted(1, 2, 1), mixed(1, 2), aborted(1, 3));
			},
		},
		{   name     => 'savepoint',
			sessions => sub { return one($_[0], savepoint(1, 1), savepoint(1, 2, 1), savepoint(1, 3)); },
		},
		{   name     => 'large',
			before   => large(1, 1),
			sessions => sub {
				return one($_[0], large(1, 2),
					"BEGIN; INSERT INTO large VALUES (-1, 1, 1, noise(100000), 'x'); UPDATE large SET part = 5; ROLLBACK;\n",
					"VACUUM large;\n", large(1, 3), large(1, 4), "VACUUM large;\n");
			},
		},
		{   name     => 'ddl',
			sessions => sub {
				return one($_[0], ddl(1, 1, 'create'), ddl(1, 2, 'truncate'), ddl(1, 3, 'rewrite'),
					"VACUUM FULL acct;\n", ddl(1, 4, 'drop'));
			},
		},
		{   name     => 'move',
			before   => ddl(1, 1, 'create'),
			sessions => sub { return one($_[0], ddl(1, 2, 'move'), ddl(1, 3, 'truncate'), ddl(1, 4, 'drop')); },
		},
		{   name     => 'copy-database',
			costly   => 1,
			before   => large(1, 1),
			sessions => sub {
				return one($_[0], "CREATE DATABASE copied TEMPLATE postgres;\n", nvm(1, 2),
					"DROP DATABASE copied;\n");
			},
		},
		{   name     => 'ddl-abort',
			before   => nvm(1, 1) . mixed(1, 2),
			sessions => sub { return one($_[0], ddl_abort(1, 3), nvm(1, 3)); },
		},
		{   name   => 'reuse',
			before => ddl(1, 1, 'create') . ddl(1, 2, 'drop'),
			sessions =>
			  sub { return one($_[0], ddl(1, 3, 'create'), ddl(1, 4, 'truncate'), large(1, 5)); },
		},
		{   name   => 'grow',
			costly => 1,
			before =>
			  "CREATE TABLE pad (a int, b text) USING nvm; ALTER TABLE pad ALTER b SET STORAGE EXTERNAL;\n"
			  . "INSERT INTO pad SELECT i, repeat('x', 8500000) FROM generate_series(1, 7) i;\n",
			sessions => sub {
				return one($_[0],
					"BEGIN; INSERT INTO pad SELECT i, repeat('x', 1000000) FROM generate_series(8, 15) i;\n",
					"INSERT INTO ack (client, n, nhist) VALUES (1, 1, 0); COMMIT;\n\\echo ack 1 1\n",
					large(1, 2), ddl(1, 3, 'create'));
			},
		},
		{   name   => 'long-undo',
			costly => 1,
			before => "CREATE TABLE wide (a int, b text) USING nvm;\n"
			  . "INSERT INTO wide SELECT i, 'wide' FROM generate_series(1, 80000) i;\n",
			sessions => sub {
				my $updates =
				  "DO 'DECLARE t tid; BEGIN FOR t IN SELECT ctid FROM wide ORDER BY hashint4(a) "
				  . "LOOP DELETE FROM wide WHERE ctid = t; END LOOP; END';\n";
				return one($_[0], "BEGIN;\n", body(aborted(1, 1)), $updates, body(aborted(1, 2)),
					"ROLLBACK;\n", nvm(1, 1));
			},
		},
		{   name     => 'abandoned-undo',
			sessions => sub {
				my ($arm) = @_;
				$arm =~ s/'/'abort-mid-undo:error:2, /;
				return one($arm, aborted(1, 1, 1), nvm(1, 1), aborted(1, 2), mixed(1, 2));
			},
		},
		{   name     => 'helper',
			asleep   => 'commit-before-decision',
			sessions => sub {
				my $saw = "INSERT INTO ack (client, n, nhist, after_client, after_n) "
				  . "SELECT 2, 1, 3, client, n FROM ack WHERE client = 1 AND n = 3";
				my $rows = NvmCrash::txn_nvm(2, 1);
				$rows =~ s/INSERT INTO ack.*VALUES[^;]*;/$saw;/;
				return (
					# the first ones may write WAL: catalog pages are pruned
					{ sql => asleep($_[0], 'commit-before-decision', 3) . nvm(1, 1) . nvm(1, 2) . nvm(1, 3) },
					{   sql => $_[0] . $rows . "INSERT INTO heap_saw SELECT client, n FROM ack WHERE client = 1;\n",
						after => qr/failpoint commit-before-decision hit/,
					},);
			},
		},
		{   name     => 'helper-heap',
			asleep   => 'commit-before-decision',
			sessions => sub {
				return (
					{ sql => asleep($_[0], 'commit-before-decision', 2) . mixed(1, 1) . nvm(1, 2) },
					{   sql => $_[0] . "INSERT INTO heap_saw SELECT client, n FROM ack WHERE client = 1;\n"
						  . "INSERT INTO heap_saw SELECT client, n FROM ack WHERE client = 1;\n",
						after => qr/failpoint commit-before-decision hit/,
					},);
			},
		},
		{   name   => 'prune',
			before => nvm(1, 1),
			sessions => sub {
				return one($_[0],
					(map { "UPDATE acct SET touched = touched + 1 WHERE id = $_;\n" } (7) x 150, 1 .. 20),
					nvm(1, 2));
			},
		},
		{   # rows grow and shrink, and get each other's cells
			name     => 'churn',
			sessions => sub {
				return one($_[0], nvm(1, 1),
					"DO 'BEGIN FOR i IN 1..600 LOOP UPDATE acct SET pad = repeat(''c'', (i * 7919) % 400) "
					  . "WHERE id = 1 + (i * 7919) % 200; COMMIT; END LOOP; END';\n",
					nvm(1, 2), "UPDATE acct SET touched = touched + 1;\n", nvm(1, 3));
			},
		},
		{   # an old snapshot is held, and what lies between it and now unlinked
			name     => 'middle',
			sessions => sub {
				my $held = "SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted";
				return (
					{   sql => "SELECT pg_advisory_lock(77);\nDO 'BEGIN RAISE LOG ''waiting for a reader''; "
						  . "WHILE NOT EXISTS ($held) LOOP PERFORM pg_sleep(0.01); END LOOP; END';\n"
						  =~ s/'advisory'/''advisory''/r
						  . "DO 'BEGIN FOR i IN 1..300 LOOP UPDATE acct SET touched = touched + 1 WHERE id <= 5; "
						  . "COMMIT; END LOOP; PERFORM pg_sleep(0.5); END';\n"
						  . $_[0]
						  . nvm(1, 1)
						  . "DO 'BEGIN FOR i IN 1..40 LOOP UPDATE acct SET touched = touched + 1 WHERE id <= 10; "
						  . "COMMIT; END LOOP; END';\n"
						  . nvm(1, 2)
						  . "VACUUM acct;\n"
						  . nvm(1, 3)
						  . "SELECT pg_advisory_unlock(77);\n",
					},
					{   sql => "BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT count(*) FROM acct;\n"
						  . "SELECT pg_advisory_lock(77);\nCOMMIT;\n",
						after => qr/waiting for a reader/,
					},);
			},
		},
		{   name   => 'vacuum',
			before => join('', map { mixed(1, $_) } 1 .. 3)
			  . "INSERT INTO kv SELECT i, 0 FROM generate_series(1001, 3000) i;\n"
			  . "DELETE FROM kv WHERE id > 1000;\nUPDATE acct SET touched = 1;\nUPDATE acct SET touched = 2;\n",
			sessions => sub {
				my $fill = "INSERT INTO kv SELECT i, 0 FROM generate_series(1001, 3000) i;\n"
				  . "DELETE FROM kv WHERE id > 1000;\n";
				return one($_[0], "VACUUM kv;\nVACUUM acct;\nVACUUM ix;\n", mixed(1, 4),
					"VACUUM kv;\n$fill", "VACUUM kv;\nVACUUM kv;\nVACUUM acct;\n", mixed(1, 5));
			},
		},
		{   name    => 'after-crash',
			before  => mixed(1, 1) . nvm(1, 2),
			prelude => { sessions => [ open_sessions() ] },
			sessions => sub {
				return one($_[0], nvm(1, 3), mixed(1, 4), "VACUUM acct;\nVACUUM kv;\nVACUUM ix;\n", mixed(1, 5));
			},
		},
		{   # the keeper must not be there first
			name     => 'prepare',
			setting  => { 'nvm.horizon_naptime' => 60000 },
			sessions => sub {
				return one($_[0], prepared(1, 1, 'commit'), prepared(1, 2, 'rollback'), nvm(1, 2),
					prepared(1, 3, 'commit'), prepared(1, 4, 'rollback'));
			},
		},
		{   name     => 'prepare-ddl',
			setting  => { 'nvm.horizon_naptime' => 60000 },
			before   => tables_for_ddl(1),
			sessions => sub {
				return one($_[0], prepared_ddl(1, 3, 'rollback'), prepared_ddl(1, 3, 'commit'));
			},
		},
		{   name    => 'prepared-restart',
			before  => mixed(2, 1) . tables_for_ddl(3),
			prelude => {
				sessions => [
					{   sql => prepared(61, 1, 'left-commit')
						  . prepared(61, 2, 'left-rollback')
						  . prepared_ddl(3, 3, 'left-commit')
						  . left_open(53, '')->{sql}
					}
				]
			},
		},
		{   name    => 'prepared-ended',
			setting => { 'nvm.horizon_naptime' => 60000 },
			before  => tables_for_ddl(3),
			prelude => {
				sessions => [
					{   sql => prepared(61, 1, 'left-commit')
						  . prepared(62, 2, 'left-rollback')
						  . prepared_ddl(3, 3, 'left-commit')
						  . left_open(53, '')->{sql}
					}
				]
			},
			sessions => sub {
				# from here on they may have been ended
				return one("\\echo prepared 61 1\n\\echo prepared -62 2\n\\echo prepared 3 3\n", $_[0],
					"COMMIT PREPARED '61_1';\n\\echo ack 61 1\n",
					"ROLLBACK PREPARED '-62_2';\n\\echo rolled back -62 2\n",
					"COMMIT PREPARED '3_3';\n\\echo ack 3 3\n",
					prepared(4, 1, 'commit'));
			},
		},
		{   name     => 'slots',
			sessions => sub {
				return (
					{ sql => "BEGIN;\n" . body(aborted(1, 1)) . "DO 'BEGIN RAISE LOG ''slot taken''; END';\n"
						  . "SELECT pg_sleep(1) \\g /dev/null\nROLLBACK;\n" },
					{ sql => $_[0] . nvm(2, 1) . mixed(2, 2), after => qr/slot taken/ },);
			},
		},
		{   name    => 'recovery',
			before  => mixed(1, 1) . nvm(1, 2) . large(1, 3),
			prelude => { sessions => [ open_sessions() ] },
		},
		{   # the start counts the extents of which their maker has not said that they are there
			name    => 'uncounted',
			before  => nvm(1, 1),
			prelude => {
				sessions => [
					{ sql => "SET nvm.failpoint = 'pool-extent-count:crash';\nBEGIN;\n" . body(ddl(1, 2, 'create')) . "COMMIT;\n" }
				]
			},
		},
		{   name    => 'newborn',
			newborn => 1,
		},
		{   name    => 'in-doubt-lost',
			before  => mixed(1, 1) . ddl(2, 1, 'create'),
			prelude => {
				sessions => [
					left_open(51, body(aborted(51, 1))),
					{   sql => "SET nvm.failpoint = 'commit-after-prepare:crash';\n"
						  . "BEGIN;\n" . body(mixed(1, 2)) . body(ddl(2, 2, 'truncate')) . "COMMIT;\n",
						after => qr/left open 51/,
					},
				]
			},
		},
		{   name    => 'in-doubt-committed',
			before  => mixed(1, 1) . ddl(2, 1, 'create'),
			prelude => {
				sessions => [
					left_open(51, body(aborted(51, 1))),
					{   sql => "SET nvm.failpoint = 'commit-before-decision:crash';\n"
						  . "BEGIN;\n" . body(mixed(1, 2)) . body(ddl(2, 2, 'truncate')) . "COMMIT;\n",
						after => qr/left open 51/,
					},
				]
			},
		},);
}

=pod

=over

=item NvmCrashScenarios::run(RIG, SCENARIO, FAILPOINT, power => SEED)

Run a scenario with the failpoint set.  Returns (DIED, problems).  power: the
crash of the prelude is a loss of power.  A failpoint that panics kills one
process; the postmaster starts anew.

=back

=cut

# What the log says, or will in a moment.
sub _log_says
{
	my ($rig, $re) = @_;
	my $end = time() + 15;

	while (1)
	{
		return $1 if $rig->log_since_start =~ $re;
		return if time() > $end;
		select(undef, undef, undef, 0.01);
	}
}

# The failpoint is the whole server's.  Processes are held at a place until sessions are
# where they are to be met.
sub _run_held
{
	my ($rig, $s, $failpoint, %setting) = @_;
	my ($place, $until) = @{ $s->{held} };
	my $stops = qr/failpoint $place hit, pid (\d+)/;
	my (%seen, @problems);

	$rig->start(%setting, 'nvm.failpoint' => "$place:stop:1, $failpoint") or return;
	# it may die before anybody comes there
	$rig->wait_for_log($stops) or return $rig->{pid} ? "test: nobody comes to $place" : ();
	my @open = map { $rig->session(%$_) } $s->{started}->("SET nvm.failpoint = '$failpoint';\n");
	$rig->wait_for_log($until) or !$rig->{pid} or push @problems, "test: the log never had $until";
	while (!$rig->wait_dead(0) && grep { NvmTest::_state($_->{pid}) !~ /[ZX]/ } @open)
	{
		# who loses power has stopped all of them
		last if NvmTest::_state($rig->{pid}) eq 'T';
		kill('CONT', grep { NvmTest::_state($_) eq 'T' && !$seen{$_}++ } $rig->log_since_start =~ /$stops/g);
		select(undef, undef, undef, 0.01);
	}
	push @problems, $rig->end_session($_) foreach @open;
	return @problems, _end_start($rig);
}

# The end of a scenario without sessions
sub _end_start
{
	my ($rig) = @_;

	return unless $rig->{pid};
	kill('INT', $rig->{pid});
	return $rig->wait_dead(60) ? () : 'test: the server does not stop';
}

sub run
{
	my ($rig, $s, $failpoint, %params) = @_;
	my %setting = (%{ $s->{setting} // {} },
		'restart_after_crash' => $failpoint =~ /:panic/ ? 'on' : 'off');
	my @problems;

	if ($s->{before} || $s->{prelude})
	{
		$rig->start(%setting) or return (0, 'test: no start: ' . $rig->log_since_start);
		push @problems, $rig->run_sessions({ sql => $s->{before} }) if $s->{before};
	}
	if ($s->{between})
	{
		$rig->stop or push @problems, 'test: no clean stop';
		$s->{between}->($rig);
	}
	if ($s->{prelude})
	{
		my @open;
		foreach my $session (@{ $s->{prelude}{sessions} })
		{
			push @problems, "test: nothing logs $session->{after}"
			  if $session->{after} && !$rig->wait_for_log($session->{after});
			push @open, $rig->session(%$session);
			$rig->wait_for_log(qr/left open $1\b/) or push @problems, 'test: a session is not left open'
			  if $session->{sql} =~ /left open (\d+)/;
		}
		# the last one brings the server down, or we do
		$rig->wait_dead($open[-1]{sql} =~ /:crash/ ? 20 : 0) or $rig->crash;
		push @problems, $rig->end_session($_) foreach @open;
		$rig->make_image($params{power}) if defined $params{power} && !$s->{prelude}{killed};
	}

	if ($s->{held})
	{
		push @problems, _run_held($rig, $s, $failpoint, %setting);
	}
	elsif (!$s->{sessions})
	{
		my $up = $rig->start(%setting, 'nvm.failpoint' => $failpoint);
		if ($up)
		{
			$rig->psql("CALL wait_for_collector();\n" . ($s->{wait} // '')) unless $s->{newborn};
			push @problems, _end_start($rig);
		}
	}
	else
	{
		if (!$rig->{pid})
		{
			$rig->start(%setting) or return (0, @problems, 'test: no start: ' . $rig->log_since_start);
		}
		push @problems, $rig->run_sessions($s->{sessions}->("SET nvm.failpoint = '$failpoint';\n"));
	}
	my $died = 0;
	if ($failpoint =~ /:panic/ && _log_says($rig, qr/PANIC:  failpoint (\S+) hit/))
	{
		$died = 1;
		$rig->wait_restarted or push @problems, 'test: the server did not start anew';
	}
	# a place that is reached when a session ends is reached after its client has gone
	my ($name) = $failpoint =~ /([a-z0-9-]+):(?:crash|power)/;
	if (defined $name && $rig->wait_dead(15))
	{
		my $log = $rig->log_since_start;

		$died = $log =~ /failpoint $name hit, pid \d+(?:, WAL .*)?$/m;
		push @problems, "the server's log has: $1" while $log =~ /^(.*(?:PANIC:|TRAP:|terminated by signal).*)$/mg;
		$rig->note_power_failure;
	}
	return ($died, @problems);
}

=pod

=over

=item NvmCrashScenarios::discover(BASE, RIG OPTION => VALUE...)

Runs each scenario without a crash.  Returns a hash reference: scenario => {
name => number of hits in the process that had most of them }, and the problems
that came up as tests.  scenarios: others than those of this module; ran: a sub that
is called with each rig, whose server is dead, and its scenario.  needed: names, as
a hash reference, that are to be reached; all run again if one is not, twice at most.

=back

=cut

sub discover
{
	my ($base, %options) = @_;
	my $only = delete $options{only};
	my $scenarios = delete $options{scenarios};
	my $ran = delete $options{ran};
	my $needed = delete $options{needed} // {};
	my %reached;
	my @work;

	foreach my $s ($scenarios ? @$scenarios : all())
	{
		next if $only && $s->{name} ne $only;
		# there is no pool yet to make an image of
		next if $s->{newborn} && $options{simulate};
		my $file = NvmTest::pool_base() . "/reached_$$" . "_$s->{name}";
		push @work, {
			name => "$s->{name}: runs, and leaves everything whole",
			file => $file,
			s    => $s,
			code => sub {
				my $rig = NvmCrash->new($base, %options, newborn => $s->{newborn});
				my ($died, @problems) = run($rig, $s, '*:sleep=0');
				my $log = $rig->log_since_start;
				my %count;
				$count{$2}{$1}++ while $log =~ /failpoint (\S+) hit, pid (\d+)/g;
				open(my $fh, '>', $file) or die "$file: $!";
				foreach my $pid (keys %count)
				{
					# where all are held, each hit is logged twice
					delete $count{$pid}{ $s->{held}[0] } if $s->{held};
					# who only slept was not told to fail
					next if $s->{asleep} && join(' ', %{ $count{$pid} }) eq "$s->{asleep} 1";
					print $fh "$_ $count{$pid}{$_}\n" foreach keys %{ $count{$pid} };
				}
				close $fh;
				$rig->crash if $rig->{pid};
				$ran->($rig, $s) if $ran;
				$rig->start or return (@problems, 'test: no start: ' . $rig->log_since_start);
				push @problems, $rig->grow_up if $s->{newborn};
				push @problems, $rig->verify(collect => 1);
				return @problems;
			},
		};
	}
	# what several processes do at once does not come about each time on a busy machine
	foreach my $try (1 .. 3)
	{
		NvmCrash::run_jobs(@work);
		foreach my $w (@work)
		{
			open(my $fh, '<', $w->{file}) or next;
			while (my $line = <$fh>)
			{
				my ($name, $hits) = split ' ', $line;
				my $known = $reached{ $w->{s}{name} }{$name} // 0;
				$reached{ $w->{s}{name} }{$name} = $hits if $hits > $known;
			}
			close $fh;
			unlink $w->{file};
		}
		my %all = map { (%$_) } values %reached;
		my @missed = grep { !$all{$_} } sort keys %$needed;
		last unless @missed;
		note("not reached: @missed");
	}
	return \%reached;
}

# Of the names those that choose() wants to be reached, as a hash reference.
sub needed
{
	my ($names) = @_;
	return { map { $_ => 1 }
		  grep { !NvmCrashBtree::is_ours($_) && !NvmCrashLog::is_log($_) && !$elsewhere{$_} && !$unreachable{$_} } keys %$names };
}

=pod

=over

=item NvmCrashScenarios::run_until_crash(NEW_RIG, SCENARIO, NAME, ACTION, HIT, PARAMETERS)

Run a scenario so that the server fails at that hit of failpoint NAME.  How often a
place is reached may depend on what background workers did meanwhile, so that a
later hit may not come about: then on a new rig with half the number, down to the
first, which must in one of four runs.  Returns the rig and the problems.

=back

=cut

sub run_until_crash
{
	my ($new_rig, $s, $name, $action, $hit, %params) = @_;
	my $last = 4;
	my $runs = 0;

	while (1)
	{
		my $rig = $new_rig->();
		my ($died, @problems) = run($rig, $s, "$name:$action:$hit", %params);

		return ($rig, @problems) if $died;
		$runs++;
		return ($rig, @problems, 'test: it did not crash') if @problems;
		return ($rig, "test: it did not crash: in $runs runs nobody came to $name.  If somebody did in the run "
			  . 'without a crash, it was by chance: who comes there is to be kept away, or to be held for it (held)')
		  if $hit <= 1 && --$last == 0;
		$rig->crash if $rig->{pid};
		$hit = int($hit / 2) || 1;
	}
}

=pod

=over

=item NvmCrashScenarios::choose(REACHED, NAMES, sub (NAME) { HOW MANY })

Tests that each name is reached, and chooses ways to crash at it: a list of
[SCENARIO, NAME, HIT].

=back

=cut

sub choose
{
	my ($reached, $names, $how_many) = @_;
	my %here;

	foreach my $name (sort keys %$names)
	{
		my $test = NvmCrashBtree::is_ours($name) ? 'btree/09_index_crash'
		  : NvmCrashLog::is_log($name) ? 'log/06_power_failure' : $elsewhere{$name};

		$here{$name} = $names->{$name};
		next unless $test;
		my $file = dirname(abs_path($INC{'NvmCrashScenarios.pm'})) . "/t/$test.pl";
		like(PostgreSQL::Test::Utils::slurp_file($file),
			NvmCrashBtree::is_ours($name) ? qr/NvmCrashBtree::is_ours/
			: NvmCrashLog::is_log($name) ? qr/NvmCrashLog::is_log/ : qr/$name/, "$name is a matter of $test");
		delete $here{$name};
	}
	is(join(' ', grep { !$names->{$_} } sort keys %unreachable, sort keys %elsewhere),
		'', 'names that are said to be out of reach exist');
	return ways($reached, \%here, \%unreachable, $how_many, map { $_->{name} } grep { $_->{costly} } all());
}

=pod

=over

=item NvmCrashScenarios::ways(REACHED, NAMES, UNREACHABLE, sub (NAME) { HOW MANY }, COSTLY...)

The same for names that are all to be reached, but for those of UNREACHABLE.

=back

=cut

sub ways
{
	my ($reached, $names, $unreachable, $how_many, @costly) = @_;
	my %costly = map { $_ => 1 } @costly;
	my (%ways, @chosen);

	foreach my $s (sort keys %$reached)
	{
		push @{ $ways{$_} }, $s foreach grep { $names->{$_} } sort keys %{ $reached->{$s} };
	}
	foreach my $name (sort keys %$names)
	{
		my $why = $unreachable->{$name};
		ok(defined $why ? !$ways{$name} : $ways{$name},
			defined $why
			? "$name is not reached: $why"
			: "$name ($names->{$name}) is reached by " . join(' ', @{ $ways{$name} // ['no scenario'] }));
	}

	foreach my $name (sort keys %ways)
	{
		my @ways  = grep { !$costly{$_} } @{ $ways{$name} };
		@ways = @{ $ways{$name} } unless @ways;
		my $first = NvmCrash::random("way/$name", scalar @ways);
		my $n     = $how_many->($name);

		foreach my $i (0 .. $n - 1)
		{
			my $s = $ways[ ($first + $i) % @ways ];
			# the first hit is often the least interesting one
			my $hit = 1 + NvmCrash::random("hit/$s/$name/$i", $reached->{$s}{$name});
			push @chosen, [ $s, $name, $hit ]
			  unless grep { "@$_" eq "$s $name $hit" } @chosen;
		}
	}
	return @chosen;
}

1;

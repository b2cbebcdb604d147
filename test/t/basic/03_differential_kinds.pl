# Copyright (c) 2026, pg_nvm contributors

# As 02_differential, with every kind of statement: schemas h and n hold the same tables of
# many column types, with foreign keys, triggers, partitions, a materialized
# view; h's tables are heap, n's are nvm but for one partition.  The server
# itself makes up each statement from what the catalog says there is at that
# moment, DDL included, and runs it in both schemas.  Whatever a statement
# answers, and whatever the tables hold afterwards, must be the same; also after
# crashes, restarts, and for an old snapshot in another session.
#
# The seed is printed.  NVM_SEED repeats a run, NVM_STEPS sets its length.
#
# Long form: 6,000 statements, here 350.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seed   = $ENV{NVM_SEED}  // int(rand(1_000_000));
my $steps  = $ENV{NVM_STEPS} // (NvmTest::is_long() ? 6_000 : 350);
my $rounds = $steps > 2000 ? int($steps / 500) : 6;
diag("seed $seed, $steps steps");
srand($seed);

my $node = NvmTest->start_new('kinds', conf => <<CONF, extension => 0);
jit = off
client_min_messages = warning
max_parallel_workers_per_gather = 0
autovacuum_naptime = 1s
CONF
$node->safe_psql('postgres', slurp_file($0 =~ s/\.pl$/.sql/r));

# Outside of a transaction, in each schema.
sub maintenance
{
	my ($exclusive) = @_;
	my @what = ('VACUUM t', 'VACUUM p', 'VACUUM ANALYZE ch', 'VACUUM (FREEZE) t', 'ANALYZE t',
		'VACUUM (INDEX_CLEANUP off) t', 'VACUUM mv', 'VACUUM log', 'REFRESH MATERIALIZED VIEW CONCURRENTLY mv');
	push @what, 'VACUUM FULL t', 'VACUUM FULL p', 'REINDEX TABLE CONCURRENTLY t', 'REINDEX TABLE CONCURRENTLY p',
	  'DROP INDEX IF EXISTS cc; CREATE INDEX CONCURRENTLY cc ON t (k, (left(s, 20)))', 'DROP INDEX CONCURRENTLY IF EXISTS cc',
	  'CLUSTER t USING t_pkey', 'VACUUM FULL mv'
	  if $exclusive;
	my $what = $what[ int(rand(scalar @what)) ];
	# heap may find that a row which it had out of line, or compressed, does not fit
	# in a page any more (54000), as it is to be stored now; n may have heap tables, too
	return <<SQL;
SELECT use('h') \\g /dev/null
\\set ON_ERROR_STOP off
$what;
SELECT :'SQLSTATE' AS in_h \\gset
SELECT use('n') \\g /dev/null
$what;
SELECT :'SQLSTATE' NOT IN ('00000', :'in_h') OR :'in_h' NOT IN ('00000', '54000') AS differs \\gset
\\set ON_ERROR_STOP on
\\if :differs
SELECT 1 / 0 AS "$what";
\\endif
SELECT use('public') \\g /dev/null
SQL
}

sub without_too_big
{
	my ($errors) = @_;
	return $errors =~ s/^psql:.* ERROR:  row is too big: .*\n?//mgr;
}

# Statements from step $first on, a script for psql.  Each transaction notes the
# step it has reached, so that one knows what a crash may have taken.
my $step = 0;

sub script
{
	my ($n, $exclusive) = @_;
	my $sql = '';
	my $end = $step + $n;
	my $ddl = $exclusive ? 'true' : 'false';

	while ($step < $end)
	{
		my @savepoints;
		my $isolation = rand(5) < 1 ? ' ISOLATION LEVEL REPEATABLE READ' : '';

		$sql .= maintenance($exclusive) if rand(8) < 1;
		$sql .= "BEGIN$isolation;\n";
		foreach (0 .. int(rand(10)))
		{
			my $x = int(rand(20));
			$step++;
			if ($x < 3)
			{
				push @savepoints, "s$step";
				$sql .= "SAVEPOINT s$step;\n";
			}
			elsif ($x < 5 && @savepoints)
			{
				my $keep = int(rand(scalar @savepoints));
				$sql .= "ROLLBACK TO $savepoints[$keep];\n";
				splice @savepoints, $keep + 1;
			}
			elsif ($x < 6 && @savepoints)
			{
				my $keep = int(rand(scalar @savepoints));
				$sql .= "RELEASE $savepoints[$keep];\n";
				splice @savepoints, $keep;
			}
			$sql .= "SELECT step($step, $seed, $ddl);\n";
			$sql .= "SELECT compare($step, false);\n" if rand(5) < 1;
		}
		$sql .= "UPDATE done SET n = $step;\nSELECT compare($step, true);\n";
		$sql .= rand(4) < 1 ? "ROLLBACK;\n" : "COMMIT;\n";
		$sql .= "SELECT compare($step, false);\n";
	}
	return $sql;
}

# An old snapshot: what it saw at first, it must see at last.
sub watcher
{
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	$session->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT compare(0, true)');
	my $saw = $session->query_safe("SELECT whole('n')");
	return [ $session, $saw ];
}

# Wait until the client has committed step $until, or has ended.
sub wait_step
{
	my ($until, $load) = @_;

	while ($node->safe_psql('postgres', "SELECT n < $until FROM done") eq 't')
	{
		my %last = $load->acknowledged;
		last if $last{1} > 0 || without_too_big($load->errors) ne '';
		usleep(10_000);
	}
	return;
}

my $failed = 0;
foreach my $round (1 .. $rounds)
{
	my $crash     = $round % 3 == 0;
	my $exclusive = $round % 3 != 1;
	my $watcher   = $exclusive ? undef : watcher();
	my $first     = $step;
	my $sql       = script(int($steps / $rounds), $exclusive);

	if ($crash)
	{
		# in the middle of the script
		my $load = $node->start_load(clients => 1, transactions => 1, sql => sub { return $sql; });
		my $until = $first + 1 + int(rand($step - $first));
		wait_step($until, $load) if rand(4) >= 1;
		my $errors = without_too_big($load->errors);
		$node->crash;
		$load->finish;
		is($errors, '', "round $round: no difference before the crash");
		$failed = 1 if $errors ne '';
		$node->start;
	}
	else
	{
		my ($ret, $out, $err) = $node->psql('postgres', $sql, on_error_stop => 1);
		is($ret, 0, "round $round: the same on heap and nvm") or diag("seed $seed: $err");
		$failed = 1 if $ret != 0;
	}
	if ($watcher)
	{
		is($watcher->[0]->query("SELECT whole('n')"), $watcher->[1], "round $round: an old snapshot");
		$watcher->[0]->query('SELECT compare(0, true); COMMIT');
		$watcher->[0]->quit;
	}
	elsif (!$crash && $round % 2 == 0)
	{
		$node->restart;
	}
	my ($ret, $out, $err) = $node->psql('postgres', "SELECT compare($step, true)", on_error_stop => 1);
	is($ret, 0, "round $round: the tables agree" . ($crash ? ' after the crash' : ''))
	  or diag("seed $seed: $err");
	$failed = 1 if $ret != 0;
	$node->check_clean("round $round");
	last if $failed;
}
diag("failed with seed $seed: NVM_SEED=$seed NVM_STEPS=$steps") if $failed;

# what was tried, so that a statement that always fails does not go unnoticed
my $tried = $node->safe_psql('postgres', 'SELECT kind, sum(good), sum(bad) FROM tried GROUP BY kind ORDER BY 1');
note("kinds of statements, run and refused by both:\n$tried");
is($node->safe_psql('postgres', 'SELECT sum(good) > sum(bad) FROM tried'), 't', 'most statements do something');

$node->stop;
done_testing();

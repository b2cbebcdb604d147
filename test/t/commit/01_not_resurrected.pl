# Copyright (c) 2026, pg_nvm contributors

# Transactions that fail after our pre-commit callback, where their rows are
# durable already and only the decision is missing: a NOTIFY queue that cannot
# be written, an ON COMMIT action, a serialization failure at commit, a cancel, a
# timeout and the end of the session.  The client has been told that they
# failed; a crash at once does not bring them back.
#
# Long form: 20 images by chance of each, here 2.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my @images = (
	[ working => 1 ],    # what SIGKILL leaves
	[ durable => 1 ],
	map { [ random => $_ ] } 1 .. (NvmTest::is_long() ? 20 : 2));

my @cases   = qw(queue cancel lock_timeout terminate on_commit doomed callback);
my @classes = qw(nvm-only mixed);

# What a victim does before its COMMIT: a row in an nvm table, and one in a heap
# table and a number of a sequence if it is to be mixed.
sub work
{
	my ($case, $class) = @_;
	my $name = "$case, $class";
	my $sql  = "INSERT INTO t VALUES ('$name'); UPDATE t SET tag = 'overwritten' WHERE tag = 'base $name'";
	$sql .= "; INSERT INTO h VALUES ('$name', nextval('s'))" if $class eq 'mixed';
	return $sql;
}

sub waits_for_lock
{
	my ($node, $session) = @_;
	return $node->poll_query_until('postgres',
		"SELECT count(*) > 0 FROM pg_locks WHERE pid = $session->{pid} AND NOT granted");
}

# A session whose transaction has done its work and is about to commit.
sub victim
{
	my ($node, $case, $class, $held) = @_;
	my $session = $node->session;

	# in a transaction of its own, or creating it would decide the class
	$session->sql('CREATE TEMP TABLE tmp (a int) ON COMMIT DELETE ROWS') if $case eq 'on_commit';
	$session->arm('abort-begin') if $held;
	$session->sql('BEGIN' . ($case eq 'doomed' ? ' ISOLATION LEVEL SERIALIZABLE' : ''));
	$session->sql(work($case, $class));
	return $session;
}

# Let a victim fail: held in the abort before any undo, or until it is over.
sub let_fail
{
	my ($session, $held, $fail) = @_;
	my $pid  = $session->pid;
	my $node = $session->{node};
	my $from = -s $node->logfile;
	my $end  = time() + $PostgreSQL::Test::Utils::timeout_default;

	$session->send('COMMIT');
	$fail->() if $fail;
	return $session->wait_held('abort-begin') if $held;
	# it is not active either before it has got the COMMIT
	usleep(5000)
	  while slurp_file($node->logfile, $from) !~ /^\[$pid\] (?:ERROR|FATAL): /m && time() < $end;
	$node->poll_query_until('postgres', <<SQL) or die "session $pid did not fail";
SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $pid AND state = 'active')
SQL
	return;
}

# NOTIFY with a queue whose pages cannot be written.  If the session is held in
# its abort it keeps the lock of the queue.
sub fail_queue
{
	my ($node, $session, $held) = @_;
	my $dir = $node->data_dir . '/pg_notify';

	$session->sql("SELECT count(pg_notify('q', repeat('x', 7900) || i)) FROM generate_series(1, 40) i");
	rename($dir, "$dir.away") or die "$dir: $!";
	let_fail($session, $held);
	rename("$dir.away", $dir) or die "$dir: $!";
	return;
}

# NOTIFY takes the lock of the queue after the pre-commit callback, and somebody
# has it (statement_timeout cannot strike here: PostgreSQL ends it before).
sub fail_waiting
{
	my ($node, $case, $session, $held) = @_;

	$session->sql("NOTIFY q, '$case'");
	$session->sql('SET lock_timeout = 200') if $case eq 'lock_timeout';
	let_fail($session, $held,
		sub {
			return if $case eq 'lock_timeout';
			waits_for_lock($node, $session);
			$node->safe_psql('postgres', "SELECT pg_${case}_backend($session->{pid})");
		});
	return;
}

# An ON COMMIT action: the temporary table is locked by somebody else; or, as
# making it makes a transaction mixed, it does not agree with a foreign key.
sub fail_on_commit
{
	my ($node, $class, $session, $held) = @_;
	my @others;

	if ($class eq 'mixed')
	{
		$session->sql('CREATE TEMP TABLE p (a int PRIMARY KEY) ON COMMIT DELETE ROWS');
		$session->sql('CREATE TEMP TABLE c (a int REFERENCES p) ON COMMIT PRESERVE ROWS');
	}
	else
	{
		my $schema = $session->sql('SELECT pg_my_temp_schema()::regnamespace');
		$session->sql('TABLE tmp');
		$session->sql('SET lock_timeout = 200');
		push @others, $node->session('BEGIN', "LOCK $schema.tmp IN ACCESS SHARE MODE");
	}
	let_fail($session, $held);
	return @others;
}

# Two transactions that each read what the other writes; the other commits.
sub fail_doomed
{
	my ($node, $class, $session, $held) = @_;
	my $other = $node->session('BEGIN ISOLATION LEVEL SERIALIZABLE',
		"SELECT count(*) FROM \"ssi_1 $class\"");

	$session->sql("SELECT count(*) FROM \"ssi_2 $class\"");
	$other->sql("INSERT INTO \"ssi_2 $class\" VALUES (1)");
	$session->sql("INSERT INTO \"ssi_1 $class\" VALUES (1)");
	$other->sql('COMMIT');
	let_fail($session, $held);
	return $other;
}

# All kinds of failure, then a crash.
sub run_cases
{
	my ($node, $held) = @_;
	my $what = $held ? 'before the undo' : 'undone';
	my (%victim, @others);

	foreach my $class ($held ? 'nvm-only' : @classes)
	{
		my $session = $victim{"queue, $class"} = victim($node, 'queue', $class, $held);
		fail_queue($node, $session, $held);
	}
	if (!$held)
	{
		my $holder = $node->session('BEGIN', "INSERT INTO other VALUES ('holder')", 'NOTIFY q');
		$holder->hold('commit-before-decision', 'COMMIT');
		push @others, $holder;
	}
	foreach my $class (@classes)
	{
		foreach my $case (qw(cancel lock_timeout terminate))
		{
			my $session = $victim{"$case, $class"} = victim($node, $case, $class, $held);
			fail_waiting($node, $case, $session, $held);
		}
		my $session = $victim{"on_commit, $class"} = victim($node, 'on_commit', $class, $held);
		push @others, fail_on_commit($node, $class, $session, $held);

		$session = $victim{"doomed, $class"} = victim($node, 'doomed', $class, $held);
		push @others, fail_doomed($node, $class, $session, $held);

		# the last thing in our own callback
		$session = $victim{"callback, $class"} = victim($node, 'callback', $class, $held);
		$session->sql("SET nvm.failpoint = 'commit-after-prepare:error"
			  . ($held ? ",abort-begin:sleep=3600000'" : "'"));
		let_fail($session, $held);
	}

	my $saved = $node->save_crash;
	my $log   = $node->log_since_start;
	foreach my $name (sort keys %victim)
	{
		my ($message) =
		  $log =~ /^[^\n]*\[$victim{$name}{pid}\][^\n]*(?:ERROR|FATAL):  ([^\n]*)/m;
		ok(defined $message, "$what: $name: " . ($message // 'did not fail'));
	}
	$_->drop foreach values %victim, @others;

	foreach my $image (@images)
	{
		my ($mode, $seed) = @$image;
		my $name = "$what, $mode image, seed $seed";

		$node->restore_crash($saved, mode => $mode, seed => $seed);
		$node->start;
		is($node->safe_psql('postgres', "SELECT tag FROM t WHERE tag NOT LIKE 'base%' ORDER BY 1"),
			'', "$name: no row came back");
		is($node->safe_psql('postgres', "SELECT count(*) FROM t WHERE tag LIKE 'base%'"),
			@cases * @classes, "$name: no row that was overwritten is gone");
		is($node->safe_psql('postgres', 'SELECT tag FROM h'), '', "$name: nor in the heap table");
		$node->check_clean($name);
	}
	$node->forget_crash($saved);
	return;
}

my $node = NvmTest->start_new('resurrect', simulate => 1, conf => <<CONF);
autovacuum = off
log_line_prefix = '[%p] '
deadlock_timeout = 60s
CONF
my $base = join ', ', map { my $case = $_; map { "('base $case, $_')" } @classes } @cases;
my $ssi = join '; ', map { "CREATE TABLE \"ssi_1 $_\" (a int) USING nvm; CREATE TABLE \"ssi_2 $_\" (a int) USING nvm" } @classes;
$node->safe_psql('postgres', <<SQL);
CREATE TABLE t (tag text) USING nvm;
CREATE TABLE other (tag text) USING nvm;
$ssi;
CREATE TABLE h (tag text, n int);
CREATE SEQUENCE s;
INSERT INTO t VALUES $base;
SQL
run_cases($node, $_) foreach 1, 0;
$node->stop;

done_testing();

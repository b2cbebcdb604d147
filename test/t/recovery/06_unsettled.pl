# Copyright (c) 2026, pg_nvm contributors

# What the last stop left in doubt cannot be settled: no memory, no multixact.  Once it
# is known, durably, which transactions have committed, others go on without nvm tables,
# with ids that no row of nvm tables has; nvm tables say why they are not there, and are
# as soon as it can be settled.  After many attempts the pool is refused, with the
# reason, and what was left in doubt is right at the next start, or is refused then.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# what has not been flushed stays in memory until the crash
my $node = NvmTest->start_new('unsettled', conf => <<CONF, sql => <<SQL);
autovacuum = off
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
nvm.redo_limit = 0
max_prepared_transactions = 10
CONF
CREATE TABLE n (what text PRIMARY KEY, id xid8) USING nvm;
CREATE TABLE other (a int) USING nvm;
CREATE TABLE h (what text, id xid8 DEFAULT pg_current_xact_id());
SQL

# Ends the server with one transaction prepared, one in doubt that has committed, and
# one in doubt of which nothing is durable, whose id is returned.
sub crash_in_doubt
{
	$node->safe_psql('postgres', <<SQL);
TRUNCATE n, h;
INSERT INTO n VALUES ('base', pg_current_xact_id()), ('locked', pg_current_xact_id());
BEGIN;
INSERT INTO n VALUES ('prepared', pg_current_xact_id());
SELECT FROM n WHERE what = 'locked' FOR UPDATE;
INSERT INTO h VALUES ('prepared');
PREPARE TRANSACTION 'g';
CHECKPOINT;
SQL
	$node->stop_wal_writers;
	my $committed = $node->session('BEGIN', "INSERT INTO n VALUES ('committed', pg_current_xact_id())", "INSERT INTO h VALUES ('committed')");
	$committed->hold('commit-before-decision', 'COMMIT');
	my $lost = $node->session('BEGIN', "INSERT INTO n VALUES ('lost', pg_current_xact_id())", "INSERT INTO h VALUES ('lost')");
	my $xid = $lost->sql('SELECT pg_current_xact_id()');
	$lost->hold('commit-after-prepare', 'COMMIT');
	$node->crash;
	$_->drop foreach $committed, $lost;
	return $xid;
}

sub start_with
{
	my ($failpoint) = @_;
	$node->set_conf('nvm.failpoint' => "'$failpoint'");
	$node->start(fail_ok => 1);
	$node->_update_pid(1);
	return;
}

sub settings_are
{
	my ($failpoint) = @_;
	$node->set_conf('nvm.failpoint' => "'$failpoint'");
	kill('HUP', slurp_file($node->data_dir . '/postmaster.pid') =~ /^(\d+)/);
	return;
}

# Transactions on heap tables: their ids.
sub heap_goes_on
{
	my ($name) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', <<SQL);
INSERT INTO h VALUES ('later') RETURNING id;
BEGIN;
SAVEPOINT s;
INSERT INTO h VALUES ('later') RETURNING id;
RELEASE s;
COMMIT;
BEGIN;
INSERT INTO h VALUES ('later') RETURNING id;
PREPARE TRANSACTION 'later';
COMMIT PREPARED 'later';
CREATE TABLE made (a int);
DROP TABLE made;
SQL
	is($err, '', "$name: others go on");
	return split /\n/, $out;
}

# All is as if nothing had happened.
sub is_settled
{
	my ($name, $later) = @_;
	ok($node->poll_query_until('postgres', 'SELECT count(*) >= 0 FROM n'), "$name: nvm tables are there");
	is($node->safe_psql('postgres', 'SELECT what FROM n ORDER BY what'), "base\ncommitted\nlocked", "$name: rows of n");
	is($node->safe_psql('postgres', "SELECT what FROM h WHERE what <> 'later'"), 'committed', "$name: rows of h");
	is($node->safe_psql('postgres', "SELECT count(*) FROM h WHERE what = 'later'"), $later, "$name: and others'");
	$node->fails_with("SELECT FROM n WHERE what = 'locked' FOR UPDATE NOWAIT", qr/could not obtain lock/,
		"$name: the row lock is there");
	$node->safe_psql('postgres', "COMMIT PREPARED 'g'");
	is($node->safe_psql('postgres', "SELECT (SELECT count(*) FROM n WHERE what = 'prepared'), (SELECT count(*) FROM h WHERE what = 'prepared')"),
		'1|1', "$name: the prepared transaction can be ended");
	$node->safe_psql('postgres', "UPDATE n SET id = '0'; INSERT INTO n VALUES ('new', '1')");
	$node->check_clean($name);
	return;
}

my $refused = qr/nvm tables are not available: what the last stop left in doubt could not be settled in 20 attempts: failpoint/;

# It fails behind the judgement, for a while; and the server crashes meanwhile.
foreach my $place ('resolve-judged', 'resolve-locks')
{
	foreach my $end ('goes on', 'crashes', 'stops')
	{
		my $name = "$place, the server $end";
		my $lost = crash_in_doubt();
		start_with("$place:error");
		my @ids = heap_goes_on($name);
		is(scalar(@ids), 3, "$name: three transactions") or diag("@ids");
		cmp_ok((sort { $a <=> $b } @ids)[0], '>', $lost, "$name: no id comes again");
		$node->fails_with('SELECT count(*) FROM n', qr/failpoint $place hit/, "$name: nvm tables say why they are not there");
		# who comes at once does not try again
		my ($ret, $out, $err) = $node->psql('postgres', "SELECT FROM n;\nSELECT FROM n;\nDROP TABLE other;\nSELECT 'goes on'", on_error_stop => 0);
		like($err, qr/nvm tables are not available\nDETAIL:.*: failpoint $place hit\.\nHINT:.*tried again/, "$name: all of them");
		is($out, 'goes on', "$name: only them");
		if ($end eq 'crashes')
		{
			$node->crash;
			start_with('');
		}
		elsif ($end eq 'stops')
		{
			$node->stop;
			start_with('');
		}
		else
		{
			settings_are('');
		}
		is_settled($name, 3);
	}
}

# It fails before that: nobody can commit, until it succeeds.
foreach my $place ('resolve-begin', 'resolve-skip-xids')
{
	my $lost = crash_in_doubt();
	start_with("$place:error");
	my ($ret, $out, $err) = $node->psql('postgres', "INSERT INTO h VALUES ('later')");
	isnt($ret, 0, "$place: nobody can commit");
	like($err, qr/failpoint $place hit/, "$place: and is told why");
	settings_are('');
	$node->poll_query_until('postgres', 'SELECT true');
	my @ids = heap_goes_on($place);
	cmp_ok((sort { $a <=> $b } @ids)[0], '>', $lost, "$place: no id comes again");
	is_settled($place, 3);
}

sub wait_refused
{
	my ($name) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while ($node->log_since_start !~ $refused && time() < $end)
	{
		$node->psql('postgres', 'SELECT FROM n');
		usleep(200_000);
	}
	like($node->log_since_start, $refused, "$name: after many attempts the pool is refused");
	return;
}

# It never succeeds, but it is known what has committed.
{
	my $name = 'always, behind the judgement';
	my $lost = crash_in_doubt();
	start_with('resolve-judged:error');
	wait_refused($name);
	my @ids = heap_goes_on($name);
	cmp_ok((sort { $a <=> $b } @ids)[0], '>', $lost, "$name: no id comes again");
	$node->fails_with('SELECT count(*) FROM n', qr/could not be settled in 20 attempts: failpoint resolve-judged hit/,
		"$name: nvm tables say why");
	$node->crash;
	start_with('');
	is_settled($name, 3);
}

# It is not known, and an id comes again: who asks pg_xact would get the wrong answer.
{
	my $name = 'always, before the judgement';
	my $lost = crash_in_doubt();
	start_with('resolve-begin:error');
	wait_refused($name);
	$node->poll_query_until('postgres', 'SELECT true');
	my $id = 0;
	$id = $node->safe_psql('postgres', "INSERT INTO h VALUES ('later') RETURNING id") while $id < $lost;
	cmp_ok($id, '==', $lost, "$name: its id comes again");
	$node->crash;
	start_with('');
	$node->fails_with('SELECT count(*) FROM n', qr/in doubt when the server was run without the NVM pool/,
		"$name: the pool is refused");
	is($node->safe_psql('postgres', "SELECT count(*) > 0 FROM h WHERE what = 'later'"), 't', "$name: others go on");
}

$node->stop;
done_testing();

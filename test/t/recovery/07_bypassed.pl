# Copyright (c) 2026, pg_nvm contributors

# A commit that a crash left in doubt, and then a server that runs without the
# library or without the pool, which hands the transaction's id out again: the
# pool is refused, at that start and at each later one, whatever ends the server
# in between.  If nothing was in doubt, or nobody ran in between, it is not.
# The same for a commit that the log of tables in memory has in doubt: these do not
# come back, and the pool is open.

use strict;
use warnings;

use File::Path qw(rmtree);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# what has not been flushed stays in memory until the crash
my $node = NvmTest->start_new('bypassed', conf => <<CONF);
autovacuum = off
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
nvm.redo_limit = 0
restart_after_crash = on
CONF
$node->safe_psql('postgres', 'CREATE TABLE n (what text) USING nvm; CREATE TABLE h (what text, id xid8)');
my $pool = $node->pool_dir;

# A server in which all is well, and one row in n.
sub fresh
{
	$node->safe_psql('postgres', "TRUNCATE n, h; INSERT INTO n VALUES ('base')");
	return;
}

# Ends the server while a transaction has asked pg_xact and its commit record is
# not durable, nor anything else of it.  Returns its id.
sub crash_in_doubt
{
	fresh();
	$node->safe_psql('postgres', 'CHECKPOINT');
	$node->stop_wal_writers;
	my $session = $node->session('BEGIN', "INSERT INTO n VALUES ('lost')", "INSERT INTO h VALUES ('lost', pg_current_xact_id())");
	my $xid = $session->sql('SELECT pg_current_xact_id()');
	$session->hold('commit-after-prepare', 'COMMIT');
	$node->crash;
	$session->drop;
	return $xid;
}

sub library
{
	my ($loaded) = @_;
	$node->set_conf(shared_preload_libraries => $loaded ? "'pg_nvm'" : "''");
	return;
}

# Others commit until one has had the id.
sub reuse
{
	my ($xid, $name) = @_;
	my $id = 0;

	for (my $i = 0; $i < 100 && $id < $xid; $i++)
	{
		$id = $node->safe_psql('postgres', "INSERT INTO h VALUES ('later', pg_current_xact_id()) RETURNING id");
	}
	is($id, $xid, "$name: the id is used again");
	return;
}

# Others commit until it is the next one.
sub use_up_to
{
	my ($xid, $name) = @_;
	my $next = 'SELECT pg_snapshot_xmax(pg_current_snapshot())';

	for (my $i = 0; $i < 100 && $node->safe_psql('postgres', $next) < $xid; $i++)
	{
		$node->safe_psql('postgres', "INSERT INTO h VALUES ('later', pg_current_xact_id())");
	}
	is($node->safe_psql('postgres', $next), $xid, "$name: the id is the next one");
	return;
}

sub refused
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->fails_with('SELECT what FROM n', qr/in doubt when the server was run without.*HINT: .*reset_pool/s,
		"$name: the pool is refused");
	is($node->safe_psql('postgres', "SELECT count(*) > 0 FROM h WHERE what = 'later'"), 't', "$name: heap tables are served");
	return;
}

sub accepted
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql('postgres', 'SELECT what FROM n'), 'base', "$name: what was lost is lost");
	is($node->safe_psql('postgres', "SELECT count(*) FROM h WHERE what = 'lost'"), '0', "$name: in the heap too");
	$node->check_clean($name);
	return;
}

# One backend is killed, and all start anew.
sub backend_dies
{
	my $session = $node->session;
	my $opened  = $node->times_opened;

	kill('KILL', $session->pid);
	$session->drop;
	$node->wait_reopened($opened);
	return;
}

# The server dies at its start.
sub start_dies
{
	my ($place, $name) = @_;
	return $node->dies_at_start($place, "$name: the server died at $place");
}

# the pool's device is away, and is there again
sub unmount { rename($pool, "$pool.away") or die $!; return; }
sub mount   { rename("$pool.away", $pool) or die $!; return; }

# ---- nobody in between

crash_in_doubt();
$node->start;
accepted('nobody in between');

# ---- without the library

my $xid = crash_in_doubt();
library(0);
$node->start;
reuse($xid, 'without the library');
$node->stop;
library(1);
start_dies('bypass-note',  'without the library');
start_dies('bypass-noted', 'without the library');
$node->start;
refused('without the library');
backend_dies();
refused('after the death of a backend');
$node->crash;
$node->start;
refused('after a crash');
$node->restart;
refused('after a clean restart');
$node->psql('postgres', 'SELECT nvm.reset_pool(force => true)');
$node->restart;
is($node->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', 'nvm.reset_pool(force) starts a new pool');

# ---- without the library, and that run ends in a crash, too

foreach my $runs (1, 2)
{
	my $name = "without the library, crashes: $runs";

	$xid = crash_in_doubt();
	library(0);
	$node->start;
	reuse($xid, $name);
	$node->crash;
	if ($runs == 2)
	{
		$node->start;
		$node->crash;
	}
	library(1);
	$node->start;
	like($node->log_since_start, qr/recovered from a crash without NVM pool|was in doubt when the server was run without/, "$name: the log says so");
	refused($name);
	$node->crash;
	$node->start;
	refused("$name, and one with it");
	$node->psql('postgres', 'SELECT nvm.reset_pool()');
	$node->restart;
	is($node->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', "$name: nvm.reset_pool() starts a new pool");
}

# nothing was in doubt: accepted, and the next crash is like any
fresh();
$node->crash;
library(0);
$node->start;
$node->safe_psql('postgres', "INSERT INTO h VALUES ('later', NULL)");
$node->crash;
library(1);
$node->start;
like($node->log_since_start, qr/recovered from a crash without NVM pool/, 'nothing in doubt: the log says so');
accepted('crashed without the library, nothing in doubt');
crash_in_doubt();
$node->start;
accepted('in doubt after a crash without the library');

# a recovery without the library that did not come to its end has handed out nothing;
# neither has one of our own
crash_in_doubt();
unlink($node->data_dir . '/base/1/9999') or die $!;
$node->start;
accepted('the witness is gone, not emptied');
crash_in_doubt();
$node->start;
backend_dies();
crash_in_doubt();
$node->start;
accepted('after a recovery of our own');

# the server dies as it arms the witness
foreach my $place ('witness-note', 'witness-noted')
{
	crash_in_doubt();
	$node->set_conf('nvm.failpoint' => "'$place:crash'");
	$node->start(fail_ok => 1) ? $node->wait_crashed : $node->_forget_postmaster;
	$node->set_conf('nvm.failpoint' => "''");
	$node->start;
	unlike($node->log_since_start, qr/recovered from a crash without NVM pool/, "$place: no false alarm");
	accepted($place);
}

# ---- with the library, without the pool

foreach my $end ('crash', 'stop')
{
	my $name = "without the pool, $end";
	$xid = crash_in_doubt();
	unmount();
	$node->start;
	$node->fails_with('SELECT what FROM n', qr/NVM pool is missing/, "$name: it is missing");
	reuse($xid, $name);
	$node->$end;
	mount();
	$node->start;
	refused($name);
	$node->crash;
	$node->start;
	refused("$name, and a crash");
	$node->psql('postgres', 'SELECT nvm.reset_pool()');
	$node->restart;
	is($node->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', "$name: nvm.reset_pool() starts a new pool");
}

# ---- nothing was in doubt: the pool is accepted, and the next crash is like any

fresh();
$node->crash;
unmount();
$node->start;
$node->safe_psql('postgres', "INSERT INTO h VALUES ('later', NULL)");
$node->crash;
mount();
start_dies('bypass-note', 'nothing in doubt');
$node->start;
accepted('nothing in doubt');
crash_in_doubt();
$node->start;
accepted('in doubt afterwards');
$node->stop;

# ---- the log of tables in memory

$node = NvmTest->start_new('log', conf => <<CONF);
nvm.memory_limit = 128MB
autovacuum = off
bgwriter_lru_maxpages = 0
checkpoint_timeout = 1h
max_prepared_transactions = 5
max_worker_processes = 8
restart_after_crash = on
wal_writer_delay = 10s
CONF
$node->safe_psql('postgres', 'CREATE TABLE n (what text) USING nvm_vlog; CREATE TABLE h (what text, id xid8)');
$pool = $node->pool_dir;
my $saved = PostgreSQL::Test::Utils::tempdir();

# a cold copy, since nothing brings this server back once it is in doubt
sub copy
{
	my ($from, $to) = @_;
	rmtree($to);
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $from, $to);
	return;
}

sub save { $node->stop; copy($node->data_dir, "$saved/data"); copy($pool, "$saved/pool"); $node->start; return; }

sub put_back
{
	$node->crash if defined $node->{_pid};
	copy("$saved/data", $node->data_dir);
	copy("$saved/pool", $pool);
	$node->start;
	return;
}

sub not_rebuilt
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->fails_with('SELECT what FROM n', qr/not available.*transaction $xid of the log was in doubt when the server was run without/s,
		"$name: tables in memory do not come back");
	is($node->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', "$name: the pool is open");
	return;
}

# how the server runs without us, and ends
foreach my $how ('library stop', 'library crash', 'pool stop', 'pool crash')
{
	my ($without, $end) = split / /, $how;
	my $name = "the log, without the $without, $end";

	$how eq 'library stop' ? save() : put_back();
	$xid = crash_in_doubt();
	$without eq 'library' ? library(0) : unmount();
	$node->start;
	reuse($xid, $name);
	$node->$end;
	$without eq 'library' ? library(1) : mount();
	$node->start;
	not_rebuilt($name);
	$node->safe_psql('postgres', "CREATE TABLE p USING nvm AS SELECT 'p' AS what");
	backend_dies();
	not_rebuilt("$name, death of a backend");
	$node->crash;
	$node->start;
	not_rebuilt("$name, and a crash");
	is($node->safe_psql('postgres', 'SELECT what FROM p'), 'p', "$name: the pool's tables are there");
	$node->restart;
	not_rebuilt("$name, and a clean restart");
}

my $memory = NvmTest::pool_base() . '/memory';

# prepared ones: somebody else with the same id, and the transaction itself
put_back();
$xid = crash_in_doubt();
library(0);
$node->start;
use_up_to($xid, 'the log, another one is prepared');
$node->safe_psql('postgres', "BEGIN; INSERT INTO h VALUES ('later', NULL); PREPARE TRANSACTION 'later'");
is($node->safe_psql('postgres', 'SELECT transaction FROM pg_prepared_xacts'), $xid, 'the log, another one is prepared: with the id');
$node->stop;
library(1);
$node->start;
not_rebuilt('the log, another one is prepared');

put_back();
fresh();
$node->safe_psql('postgres', "BEGIN; INSERT INTO n VALUES ('prepared'); INSERT INTO h VALUES ('prepared'); PREPARE TRANSACTION 'p'");
$node->crash;
library(0);
$node->start;
$node->safe_psql('postgres', "INSERT INTO h VALUES ('later', NULL)");
$node->stop;
library(1);
$node->start;
accepted('the log, a prepared one');
$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
$node->restart;
is($node->safe_psql('postgres', 'SELECT string_agg(what, $$ $$ ORDER BY what) FROM n'), 'base prepared', 'the log, a prepared one: it commits');

# nobody has had the id, or nothing was in doubt; and what is in doubt later can be decided
foreach my $what ('the id is not used', 'nothing in doubt', 'the memory is kept')
{
	my $name = "the log, $what";

	put_back();
	if ($what eq 'the memory is kept')
	{
		mkdir $memory, 0700 or die $!;
		$node->set_conf('nvm.memory_directory' => "'$memory'");
		$node->restart;
	}
	if ($what ne 'the id is not used')
	{
		fresh();
		# who waits for the log has waited for the OUTCOME before, too
		$node->safe_psql('postgres', "UPDATE n SET what = 'base'");
		$node->crash;
	}
	else { $xid = crash_in_doubt(); }
	library(0);
	$node->start;
	$node->safe_psql('postgres', "INSERT INTO h VALUES ('later', NULL)") if $what ne 'the id is not used';
	$node->stop;
	library(1);
	if ($what eq 'nothing in doubt')
	{
		$node->set_conf('nvm.failpoint' => "'bypass-note:crash'");
		$node->start(fail_ok => 1) ? $node->wait_crashed : $node->_forget_postmaster;
		$node->set_conf('nvm.failpoint' => "''");
	}
	$node->start;
	accepted($name);
	if ($what eq 'the memory is kept')
	{
		like($node->log_since_start, qr/tables in memory are there/, "$name: it is");
		# the one that starts it has taken the note back before
		$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'nvm checkpointer'") or die;
	}
	# this one commits, and its OUTCOME is lost
	fresh();
	$node->stop_wal_writers;
	my $session = $node->session("BEGIN; INSERT INTO n VALUES ('kept'); INSERT INTO h VALUES ('kept')");
	$session->hold('commit-before-decision', 'COMMIT');
	$node->crash;
	$session->drop;
	unlink("$memory/pg_nvm_memory");
	$node->start;
	is($node->safe_psql('postgres', 'SELECT string_agg(what, $$ $$ ORDER BY what) FROM n'), 'base kept', "$name: pg_xact is believed afterwards");
}
$node->stop;

done_testing();

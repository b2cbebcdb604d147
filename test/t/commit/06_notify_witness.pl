# Copyright (c) 2026, pg_nvm contributors

# A listener hears of a transaction as soon as that has left the proc array, if another
# notifier has woken it up: the notifications of both are in one queue.  It reads no row
# of the transaction, and so makes nothing durable.  A loss of power between that and the
# decision must not take back what the listener was told of.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('notify', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
nvm.horizon_naptime = 60s
wal_writer_delay = 10s
CONF
CREATE TABLE t (how text PRIMARY KEY) USING nvm;
CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN PERFORM pg_notify(''news'', NEW.how); RETURN NULL; END';
CREATE TABLE told (how text) USING nvm;
CREATE TRIGGER tell AFTER INSERT ON told FOR EACH ROW EXECUTE FUNCTION tell();
CREATE TABLE h (a int);
CHECKPOINT;
SQL

my %how = (
	command  => "BEGIN; INSERT INTO t VALUES ('command'); NOTIFY news, 'command'",
	savepoint => "BEGIN; SAVEPOINT s; INSERT INTO t VALUES ('savepoint'); SELECT pg_notify('news', 'savepoint'); RELEASE s",
	trigger  => "BEGIN; INSERT INTO told VALUES ('trigger')",
	async    => "SET synchronous_commit = off; BEGIN; INSERT INTO t VALUES ('async'); NOTIFY news, 'async'",
);

foreach my $how (sort keys %how)
{
	$node->stop_wal_writers;
	my $listener = $node->session('LISTEN news', 'BEGIN');
	$node->safe_psql('postgres', "NOTIFY news, 'another'");
	my $session = $node->session($how{$how});
	$session->hold('commit-before-decision', 'COMMIT');
	my $heard = $listener->sql('COMMIT');
	like($heard, qr/with payload "another"/, "$how: the other notifier has woken the listener");
	like($heard, qr/with payload "$how"/, "$how: it hears of the transaction");
	$node->power_failure(seed => 1, mode => 'durable');
	$_->drop foreach $session, $listener;
	$node->start;
	is($node->safe_psql('postgres', "SELECT how FROM t WHERE how = '$how' UNION ALL SELECT how FROM told WHERE how = '$how'"),
		$how, "$how: what it heard of is there");
	$node->check_clean($how);
}

# only who notifies waits
$node->safe_psql('postgres', 'CHECKPOINT');
my $mixed = $node->safe_psql('postgres', 'SELECT mixed_commits FROM nvm.activity');
$node->safe_psql('postgres', "INSERT INTO t VALUES ('nobody')");
is($node->safe_psql('postgres', "SELECT mixed_commits - $mixed FROM nvm.activity"), '0', 'who tells nobody is nvm-only');
# nor is anybody told of it
my ($ret, $out, $err) = $node->psql('postgres', <<SQL);
SET exit_on_error = on;
BEGIN;
INSERT INTO t VALUES ('quiet');
NOTIFY news, 'quiet';
COMMIT;
SELECT 'goes on';
SQL
is($out, 'goes on', 'the session goes on');
is($err, '', 'without a word');
unlike($node->log_since_start, qr/cannot PREPARE/, 'nor one in the log');

$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# A table in the pool: it is there after a restart, after a crash of the
# server, of one backend, and of the power; what was not committed is not.
#
# Long form: twenty losses of power, here 3.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('basics', sql => <<SQL);
CREATE TABLE account (id int PRIMARY KEY, balance int) USING nvm;
INSERT INTO account SELECT i, 100 FROM generate_series(1, 1000) i;
CREATE TABLE note (id int, body text) USING nvm;
SQL

is($node->safe_psql('postgres',
		"SELECT amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE relname = 'account'"),
	'nvm', 'the table is of access method nvm');
my $totals = 'SELECT count(*), sum(balance) FROM account';
is($node->safe_psql('postgres', $totals), '1000|100000', 'rows are there');

# a clean stop
$node->restart;
is($node->safe_psql('postgres', $totals), '1000|100000', 'rows outlive a restart');
$node->safe_psql('postgres', 'UPDATE account SET balance = balance + 1 WHERE id <= 10');
$node->check_clean('after a restart');

# SIGKILL, with one transaction committed last and others open
my @open = map { $node->background_psql('postgres', on_error_stop => 0) } 1 .. 3;
$open[0]->query('BEGIN; INSERT INTO account SELECT i, 0 FROM generate_series(2001, 2100) i');
$open[1]->query('BEGIN; DELETE FROM account WHERE id BETWEEN 501 AND 600');
$open[2]->query('BEGIN; SAVEPOINT s; UPDATE account SET balance = 0 WHERE id BETWEEN 701 AND 800');
$node->safe_psql('postgres', "INSERT INTO note VALUES (1, 'the last to commit')");
$node->crash;
eval { $_->quit } foreach @open;
$node->start;
like($node->log_since_start, qr/nvm.*recover.* (\d+) (us|microseconds)/i,
	'the log tells what recovery found and how long it took');
is($node->safe_psql('postgres', $totals), '1000|100010',
	'committed rows outlive a crash, and open transactions do not');
is($node->safe_psql('postgres', 'SELECT body FROM note'), 'the last to commit',
	'the last commit before the crash is there');
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT balance FROM account WHERE id = 750'),
	'100', 'a row is found through its index');
$node->safe_psql('postgres', 'UPDATE account SET balance = balance - 1 WHERE id <= 10');
$node->check_clean('after a crash');

# a second crash before anything is cleaned
$node->crash;
$node->start;
$node->crash;
$node->start;
is($node->safe_psql('postgres', $totals), '1000|100000', 'two more crashes lose nothing');

# DDL, rolled back and lost
$node->safe_psql('postgres', <<SQL);
BEGIN; CREATE TABLE gone (a int) USING nvm; INSERT INTO gone VALUES (1); ROLLBACK;
BEGIN; TRUNCATE account; ROLLBACK;
BEGIN; DROP TABLE account; ROLLBACK;
SQL
is($node->safe_psql('postgres', $totals), '1000|100000', 'a rolled back TRUNCATE and DROP');
my $ddl = $node->background_psql('postgres', on_error_stop => 0);
$ddl->query('BEGIN; TRUNCATE account; DROP TABLE note; CREATE TABLE fresh (a int) USING nvm; INSERT INTO fresh VALUES (1)');
$node->crash;
eval { $ddl->quit };
$node->start;
is($node->safe_psql('postgres', $totals), '1000|100000', 'a TRUNCATE that a crash took back');
is($node->safe_psql('postgres', 'SELECT count(*) FROM note'), '1', 'a DROP that a crash took back');
$node->safe_psql('postgres', 'TRUNCATE note');
$node->crash;
$node->start;
is($node->safe_psql('postgres', 'SELECT count(*) FROM note'), '0', 'a committed TRUNCATE outlives a crash');
$node->check_clean('after DDL and crashes');

# one backend dies: the postmaster reinitialises and serves on
$node->set_conf(restart_after_crash => 'on');
$node->reload;
my $victim = $node->background_psql('postgres', on_error_stop => 0);
my $pid = $victim->query('SELECT pg_backend_pid()');
$victim->query('BEGIN; UPDATE account SET balance = -1');
$node->safe_psql('postgres', "INSERT INTO note VALUES (2, 'before the backend died')");
my $opened = $node->times_opened;
kill('KILL', $pid);
eval { $victim->quit };
$node->wait_reopened($opened);
is($node->safe_psql('postgres', 'SELECT count(*) FROM note'), '1', 'what was committed before is there');
is($node->safe_psql('postgres', $totals), '1000|100000', 'a backend that died left nothing behind');
$node->check_clean('after the death of a backend');
$node->stop;

# the same with the loss of power
my $sim = NvmTest->start_new('power', simulate => 1, sql => <<SQL);
CREATE TABLE ack (client int, n int) USING nvm;
CREATE TABLE account (id int PRIMARY KEY, balance int) USING nvm;
INSERT INTO account SELECT i, 100 FROM generate_series(1, 100) i;
SQL
my %load = (
	clients => 3,
	sql     => sub {
		my ($client, $n) = @_;
		my ($from, $to) = (1 + ($n * 7 + $client) % 100, 1 + ($n * 3 + $client * 5) % 100);
		($from, $to) = ($to, $from) if $from > $to;
		return "BEGIN; INSERT INTO ack VALUES ($client, $n); "
		  . "UPDATE account SET balance = balance - 1 WHERE id = $from; "
		  . "UPDATE account SET balance = balance + 1 WHERE id = $to; COMMIT;";
	});
foreach my $seed (1 .. (NvmTest::is_long() ? 20 : 3))
{
	my $load = $sim->start_load(%load);
	$load->wait_acknowledged(100);
	$sim->power_failure(seed => $seed);
	$load->finish;
	$sim->start;
	$load->check('postgres', 'SELECT client, n FROM ack', name => "seed $seed: acknowledged work");
	is($sim->safe_psql('postgres', 'SELECT sum(balance) FROM account'), '10000',
		"seed $seed: no transfer is half done");
	$sim->check_clean("seed $seed");
	$sim->safe_psql('postgres', 'TRUNCATE ack');
}
$sim->stop;

done_testing();

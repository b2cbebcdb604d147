# Copyright (c) 2026, pg_nvm contributors

# A prepared transaction holds locks on rows of an UNLOGGED table, which a crash
# empties.  Rows that are put into their places are not locked by it after the
# next start.  Its other locks stay, whatever stops the server while the list of
# locks is written anew: crashes and losses of power at each step.  Nor does a
# pool without room keep the server from starting.
#
# Long form: 20 images of each loss of power, here 2.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $images = NvmTest::is_long() ? 20 : 2;
my $node = NvmTest->start_new('emptied', simulate => 1, conf => <<CONF, sql => <<SQL);
max_prepared_transactions = 10
autovacuum = off
restart_after_crash = off
CONF
CREATE UNLOGGED TABLE u (id int) USING nvm;
CREATE TABLE p (id int) USING nvm;
INSERT INTO u SELECT generate_series(1, 1000);
INSERT INTO p SELECT generate_series(1, 3000);
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub free_rows { return sql("SELECT count(*) FROM (SELECT FROM $_[0] FOR UPDATE SKIP LOCKED) f"); }

# a start that a failpoint crashes
sub start_and_crash
{
	my ($place) = @_;
	$node->set_conf('nvm.failpoint' => "'$place:crash'");
	$node->start(fail_ok => 1);
	$node->_update_pid(-1) if !defined $node->{_pid};
	$node->wait_crashed if defined $node->{_pid};
	like($node->log_since_start, qr/failpoint $place hit/, "$place: it crashes there");
	$node->set_conf('nvm.failpoint' => "''");
	return;
}

# other rows have taken the places, and the server has been stopped and started
sub is_right
{
	my ($name) = @_;
	is(sql('SELECT count(*) FROM u'), 0, "$name: the crash has emptied the table");
	sql('INSERT INTO u SELECT generate_series(1, 2000)');
	$node->check_clean($name);
	$node->restart;
	is(free_rows('u'), 2000, "$name: no row is locked that has come since");
	is(free_rows('p'), 1000, "$name: the other locks are there");
	is(sql('SELECT count(*) FROM nvm.transactions WHERE pid IS NULL'), 2, "$name: both are prepared");
	sql("ROLLBACK PREPARED 'both'; ROLLBACK PREPARED 'one'; TRUNCATE u");
	is(free_rows('p'), 3000, "$name: ended, they lock nothing");
	$node->check_clean("$name, ended");
	return;
}

my $before = sql('TRUNCATE u; SELECT free FROM nvm.pool');
sql(<<SQL);
INSERT INTO u SELECT generate_series(1, 1000);
BEGIN;
SELECT FROM p WHERE id <= 1000 FOR UPDATE;
SELECT FROM u WHERE id <= 500 FOR UPDATE;
SELECT FROM p WHERE id BETWEEN 1001 AND 2000 FOR UPDATE;
PREPARE TRANSACTION 'both';
BEGIN;
SELECT FROM u WHERE id > 500 FOR UPDATE;
PREPARE TRANSACTION 'one';
SQL
my $saved = $node->save_crash;

# once as it is, then with a crash at each step, then with a loss of power there
$node->restore_crash($saved, seed => 1, mode => 'durable');
$node->start;
is_right('no crash');
is(sql('SELECT free FROM nvm.pool'), $before, 'and nothing is left of the lists');

foreach my $place ('resolve-locks-written', 'resolve-locks-first-copy', 'resolve-locks-replaced', 'twophase-free-locks')
{
	$node->restore_crash($saved, seed => 1, mode => 'durable');
	start_and_crash($place);
	$node->start;
	is_right($place);
	is(sql('SELECT free FROM nvm.pool'), $before, "$place: nothing is left of the lists");

	$node->restore_crash($saved, seed => 1, mode => 'durable');
	start_and_crash($place);
	my $again = $node->save_crash;
	foreach my $seed (1 .. $images)
	{
		$node->restore_crash($again, seed => $seed, $seed == 1 ? (mode => 'durable') : ());
		$node->start;
		is_right("$place, power $seed");
		is(sql('SELECT free FROM nvm.pool'), $before, "$place, power $seed: nothing is left of the lists");
	}
	$node->forget_crash($again);
}

# an ERROR there: the process that comes next does it all
$node->restore_crash($saved, seed => 1, mode => 'durable');
$node->set_conf('nvm.failpoint' => "'resolve-locks-written:error'");
$node->start;
$node->fails_with('SELECT FROM u', qr/nvm tables are not available|failpoint/, 'an error: nvm tables wait');
$node->set_conf('nvm.failpoint' => "''");
$node->reload;
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM u'), 'an error: the next one does it');
is_right('an error');
is(sql('SELECT free FROM nvm.pool'), $before, 'an error: nothing is left of the lists');
$node->forget_crash($saved);
$node->stop;
done_testing();

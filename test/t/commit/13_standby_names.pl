# Copyright (c) 2026, pg_nvm contributors

# synchronous_standby_names: a transaction that wrote nvm tables alone waits for no
# standby, and the server says so, at the start and when the setting changes; one
# that wrote a heap table, too, waits.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $node = NvmTest->start_new('standbys', allows_streaming => 1, conf => "autovacuum = off\nnvm.horizon_naptime = 20\n", sql => q(
	CREATE TABLE n (id int) USING nvm; CREATE TABLE h (id int) USING heap));
my $shown = 'SELECT ignored_standbys FROM nvm.pool';
my $warning = qr/WARNING:  synchronous_standby_names \("([^\n]*)"\) is ignored by transactions that write nvm tables alone/;

# times it was warned of since the start, when it has been of the value
sub warned_of
{
	my ($value) = @_;
	my @seen;
	foreach (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		@seen = $node->log_since_start =~ /$warning/g;
		last if @seen && $seen[-1] eq $value;
		Time::HiRes::usleep(100_000);
	}
	return join ' ', @seen;
}

sub set_names
{
	my ($value) = @_;
	$node->set_conf(synchronous_standby_names => "'$value'");
	$node->reload;
	$node->poll_query_until('postgres', "SELECT setting = '$value' FROM pg_settings WHERE name = 'synchronous_standby_names'")
	  or die 'the setting has not changed';
	return;
}

# Transactions that write nvm tables and no WAL: the session has read the catalogs before,
# since an image of a page that gets hint bits or is pruned makes a transaction mixed.
sub nvm_alone
{
	my ($sql) = @_;
	$node->safe_psql('postgres', "BEGIN; $sql; ROLLBACK; $sql",
		timeout => $PostgreSQL::Test::Utils::timeout_default);
	return;
}

is($node->safe_psql('postgres', $shown), '', 'nvm.pool: none is set');
unlike($node->log_since_start, $warning, 'no warning where none is set');

set_names('nobody');
is($node->safe_psql('postgres', $shown), 'nobody', 'nvm.pool shows the setting');
is(warned_of('nobody'), 'nobody', 'a WARNING when it is set');
nvm_alone('INSERT INTO n VALUES (1); UPDATE n SET id = 2');
is($node->safe_psql('postgres', 'SELECT id FROM n'), '2', 'an nvm commit waits for nobody');

# what has a heap table in it waits, as ever
my $session = $node->session;
my $pid = $session->pid;
$session->send('BEGIN; INSERT INTO n VALUES (3); INSERT INTO h VALUES (3); COMMIT');
ok($node->poll_query_until('postgres', "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = $pid"), 'a mixed one waits');
set_names('');
$session->sql('SELECT 1');
$session->drop;
is($node->safe_psql('postgres', 'SELECT count(*) FROM n JOIN h USING (id)'), '1', 'and ends when there is nothing to wait for');
is($node->safe_psql('postgres', $shown), '', 'nvm.pool: none any more');

set_names('FIRST 1 (a, b)');
is(warned_of('FIRST 1 (a, b)'), 'nobody FIRST 1 (a, b)', 'once for each value');
$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
$node->stop;
$node->start;
is(warned_of('FIRST 1 (a, b)'), 'FIRST 1 (a, b)', 'and at the start');
is($node->safe_psql('postgres', $shown), 'FIRST 1 (a, b)', 'nvm.pool after the restart');
nvm_alone('INSERT INTO n VALUES (4)');

$node->stop;
done_testing();

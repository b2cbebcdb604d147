# Copyright (c) 2026, pg_nvm contributors

# A commit slot that has room for one more gap gets a transaction whose abort
# cannot be played: that one takes the room.  No further transaction begins in
# the slot, so a crash then leaves none undecided there, and the pool opens.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('main', simulate => 1, conf => <<CONF, sql => <<'SQL');
autovacuum = off
restart_after_crash = off
nvm.collect_gaps = off
nvm.horizon_naptime = 10
nvm.failpoint = ''
CONF
CREATE TABLE t (id int, pad text) USING nvm;
INSERT INTO t SELECT i, 'x' FROM generate_series(1, 5) i;
SQL

my $state = q[SELECT (SELECT count(*) FROM nvm.gaps WHERE slot = 0), (SELECT string_agg(id::text, ' ' ORDER BY id) FROM t)];

# the session that made the table has given back its slot, the first one
$node->poll_query_until('postgres',
	q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()))
  or die 'the session does not end';

# Fill the list but for one entry, and the last one by the session returned.
sub fill_list
{
	my $session;

	foreach my $crash (1 .. 4)
	{
		# two slots are in use, of which the second is free
		$session = $node->session('BEGIN', 'INSERT INTO t VALUES (100)');
		$node->safe_psql('postgres', 'INSERT INTO t VALUES (101); DELETE FROM t WHERE id = 101');
		last if $crash == 4;
		$node->crash;
		$session->drop;
		$node->start;
	}
	is($node->safe_psql('postgres', $state), '3|1 2 3 4 5', 'three gaps in the first slot');
	$session->sql("SET nvm.failpoint = 'abort-mid-undo:error'");
	$session->sql('ROLLBACK');
	$session->sql("SET nvm.failpoint = ''");
	is($node->safe_psql('postgres', $state), '4|1 2 3 4 5', 'and a fourth one');
	return $session;
}

my $session = fill_list();
$node->power_failure(seed => 1, mode => 'durable');
$session->drop;
$node->start;
is($node->safe_psql('postgres', $state), '4|1 2 3 4 5', 'the pool opens after a loss of power');
$node->check_clean('after a loss of power');

# get rid of them
$node->set_conf('nvm.collect_gaps' => 'on');
$node->reload;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps are not collected';
$node->set_conf('nvm.collect_gaps' => 'off');
$node->restart;

# The collector empties the list, but not durably yet, when the session wants
# to begin another one; its rows, but not its slot, are durable then.
$session = fill_list();
$node->set_conf('nvm.collect_gaps' => 'on', 'nvm.failpoint' => "'gap-drop:sleep=3600000'");
$node->reload;
for (my $i = 0; $i < 3000 && $node->log_since_start !~ /failpoint gap-drop hit/; $i++)
{
	usleep(10000);
}
$session->sql("SET nvm.failpoint = ''");
$session->sql('BEGIN');
$session->sql("INSERT INTO t SELECT i, repeat('y', 1000) FROM generate_series(200, 220) i");
$node->set_conf('nvm.failpoint' => "''");
$node->power_failure(seed => 1, mode => 'durable');
$session->drop;
$node->start;
is($node->safe_psql('postgres', q[SELECT string_agg(id::text, ' ' ORDER BY id) FROM t]),
	'1 2 3 4 5', 'rows of one who began while the list was being emptied do not count');
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps are not collected';
is($node->safe_psql('postgres', $state), '0|1 2 3 4 5', 'nor when the gaps have been collected');

# nor when his number in the slot is given to somebody else
$node->safe_psql('postgres', 'INSERT INTO t VALUES (6)') foreach 1 .. 3;
$node->safe_psql('postgres', 'DELETE FROM t WHERE id = 6');
foreach (1 .. 10)
{
	$node->safe_psql('postgres', 'SELECT pg_current_xact_id()');
	usleep(20000);
}
is($node->safe_psql('postgres', $state), '0|1 2 3 4 5', 'nor when others have written in the slot');
$node->check_clean('at the end');

$node->stop;
done_testing();

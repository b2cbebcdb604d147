# Copyright (c) 2026, pg_nvm contributors

# Indexes with persistence none after a restart: that somebody goes on rebuilding
# them, whatever happens to a process, a statement, a row or a lock.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('rebuilder', conf => <<CONF);
nvm.index_rebuild_workers = 1
autovacuum = off
restart_after_crash = on
nvm.default_index_method = 'nvm_btree'
nvm.index_identity = nvm_btree
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub states
{
	return sql(q(SELECT string_agg(index || ' ' || state, ', ' ORDER BY index::text) FROM nvm.index_rebuilds WHERE persistence = 'none'));
}

sub wait_states
{
	my ($what, $name) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	my $is  = '';

	while (time() < $end)
	{
		$is = states();
		last if $is eq $what;
		usleep(20_000);
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($is, $what, $name);
	return;
}

sub restart
{
	my ($failpoint) = @_;
	$node->set_conf('nvm.failpoint' => "'$failpoint'");
	$node->crash;
	$node->start;
	return;
}

# the process that has come to the failpoint, stopped
sub stopped_worker
{
	my ($failpoint) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	usleep(10_000) while $node->log_since_start !~ /failpoint $failpoint hit/ && time() < $end;
	my ($pid) = $node->log_since_start =~ /failpoint $failpoint hit, pid (\d+)/ or die 'no worker';
	NvmTest::wait_stopped($pid);
	return $pid;
}

sub no_failpoint
{
	$node->set_conf('nvm.failpoint' => "''");
	$node->reload;
	return;
}

sub waits
{
	my ($session) = @_;
	return $node->poll_query_until('postgres',
		"SELECT wait_event_type = 'Extension' FROM pg_stat_activity WHERE pid = " . $session->pid);
}

sub log_of
{
	my ($session) = @_;
	my $pid = $session->pid;
	return join "\n", grep { /\[$pid\]|pid $pid$/ } split /\n/, slurp_file($node->logfile);
}

# ---- the postmaster starts the server anew when there was nothing to rebuild any more

sql(<<'SQL');
CREATE TABLE a (id int) USING nvm;
CREATE INDEX a_id ON a (id) WITH (persistence = none);
INSERT INTO a SELECT generate_series(1, 300);
SQL
restart('');
wait_states('a_id ready', 'an index is rebuilt after a crash');
# until the worker is gone and the rebuilder has seen that
$node->poll_query_until('postgres', q(SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'nvm index rebuild worker'))) or die;
usleep(1_500_000);
my $victim = $node->session;
kill('KILL', $victim->pid);
$victim->drop;
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
usleep(20_000) while $node->log_since_start !~ /all server processes terminated; reinitializing/ && time() < $end;
$node->poll_query_until('postgres', 'SELECT true') or die 'the server does not come back';
wait_states('a_id ready', 'and when the postmaster has started the server anew');

# ---- workers that somebody ends

my $workers = q(SELECT %s FROM pg_stat_activity WHERE backend_type IN ('nvm keeper', 'nvm gap collector', 'nvm index rebuilder'));
ok($node->poll_query_until('postgres', sprintf($workers, 'count(*) = 3')), 'the workers of the server');
my $pids = sql(sprintf($workers, q(string_agg(pid::text, ','))));
sql(sprintf($workers, 'pg_terminate_backend(pid, 30000)'));
ok($node->poll_query_until('postgres', sprintf($workers, 'count(*) = 3') . " AND pid NOT IN ($pids)"), 'are started again');

# ---- who builds is cancelled again and again: a worker gets to it

sql(<<'SQL');
CREATE TABLE b (id int) USING nvm;
CREATE UNIQUE INDEX b_id ON b (id) WITH (persistence = none);
INSERT INTO b SELECT generate_series(1, 300);
ALTER TABLE a ADD UNIQUE (id);
DROP INDEX a_id;
ALTER INDEX a_id_key SET (persistence = none);
SQL
restart('index-rebuild-entry:stop:20');
my $worker = stopped_worker('index-rebuild-entry');
my ($free) = states() =~ /(\w)_id\w* waiting/ or die states();
my $builder = $node->session;
my $waiter  = $node->session("SET nvm.failpoint = 'index-rebuild-claimed:sleep=3600000'");
no_failpoint();
$builder->stop_at('index-rebuild-entry', "INSERT INTO $free VALUES (3000)");
$waiter->send("INSERT INTO $free VALUES (3001)");
ok(waits($waiter), 'an insertion waits for the session that builds');
sql('SELECT pg_cancel_backend(' . $builder->pid . ')');
$builder->go_on;
$builder->sql('SELECT 1');
like(log_of($builder), qr/canceling statement due to user request/, 'who builds is cancelled');
usleep(200_000);
NvmTest::continue_process($worker);
wait_states('a_id_key ready, b_id ready', 'a worker has built it');
$waiter->sql('SELECT 1');
unlike(log_of($waiter), qr/index-rebuild-claimed hit/, 'and not the one that waited');
is(sql("SET enable_seqscan = off; SELECT id FROM $free WHERE id IN (3000, 3001)"), 3001, 'whose row is found');
$_->drop foreach $builder, $waiter;
sql('DROP TABLE a, b');

# ---- a function needs a lock of somebody who waits for the index

sql(<<'SQL');
CREATE TABLE lookup AS SELECT 5 AS v;
CREATE FUNCTION plus(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN i + (SELECT v FROM public.lookup); END $$;
CREATE TABLE c (id int) USING nvm;
INSERT INTO c SELECT generate_series(1, 300);
CREATE UNIQUE INDEX c_plus ON c (plus(id)) WITH (persistence = none);
SQL
restart('index-rebuild-claimed:stop:1');
$worker = stopped_worker('index-rebuild-claimed');
no_failpoint();
my $holder = $node->session("SET nvm.failpoint = ''", "SET statement_timeout = '20s'", 'BEGIN', 'LOCK TABLE lookup');
$holder->send('INSERT INTO c VALUES (1000) RETURNING id');
ok(waits($holder), 'who has the lock waits for the index');
NvmTest::continue_process($worker);
like($holder->sql('SELECT count(*) FROM c'), qr/301$/, 'and does not wait for ever');
$holder->sql('COMMIT');
is(sql('SET enable_seqscan = off; SELECT id FROM c WHERE plus(id) IN (1005, 305)'), "300\n1000", 'the index is whole');
$holder->drop;
sql('DROP TABLE c');

# ---- settings that end long transactions

sql(<<'SQL');
CREATE TABLE d (id int) USING nvm;
CREATE INDEX d_id ON d (id) WITH (persistence = none);
INSERT INTO d SELECT generate_series(1, 300);
SQL
$node->append_conf('postgresql.conf', "transaction_timeout = '300ms'") if $node->pg_version >= 17;
$node->append_conf('postgresql.conf', "statement_timeout = '300ms'");
{
	# but the sessions of this test: the machine may be slow
	local $ENV{PGOPTIONS} = '-c statement_timeout=0' . ($node->pg_version >= 17 ? ' -c transaction_timeout=0' : '');
	restart('index-rebuild-claimed:sleep=1000:1');
	wait_states('d_id ready', 'a worker heeds no timeouts');
}
unlike($node->log_since_start, qr/FATAL/, 'it was not ended');
$node->set_conf('transaction_timeout' => 0) if $node->pg_version >= 17;
$node->set_conf('statement_timeout' => 0);
no_failpoint();
$node->poll_query_until('postgres', "SELECT current_setting('statement_timeout') = '0'") or die;
sql('DROP TABLE d');

# ---- a damaged row: the server does not crash at each start

sql(<<'SQL');
CREATE TABLE e (id int, body text) USING nvm;
INSERT INTO e SELECT i, repeat('x', 200) || i FROM generate_series(1, 10) i;
CREATE INDEX e_body ON e (md5(body)) WITH (persistence = none);
SQL
my $storage = sql("SELECT i.id FROM nvm.relations_info() i WHERE NOT ended AND i.relfilenode = pg_relation_filenode('e')");
my ($block) = map { $_->[0] } grep { $_->[1] == $storage && $_->[2] == 0 } map { [ split ' ' ] }
  split /\n/, (run_command([ $NvmTest::patch_tool, $node->pool_file, 'blocks' ]))[0];
my $cell = sql("SELECT (ctid::text::point)[1]::int FROM e WHERE id = 4");
$node->stop;
# the length of body becomes 256 MB more
PostgreSQL::Test::Utils::system_or_bail($NvmTest::patch_tool, $node->pool_file, 'flip', $block + $cell * 32 + 48 + 24 + 4 + 3, 6);
$node->start;
wait_states('e_body failed', 'an index whose table has a damaged row fails');
like($node->log_since_start, qr/ERROR:  row version \(0,$cell\) of nvm table "e" is damaged/, 'the log says why');
unlike($node->log_since_start, qr/terminated by signal/, 'nothing crashes');
$node->fails_with('SELECT count(*) FROM e', qr/ERROR:  row version \(0,$cell\) of nvm table "e" is damaged.*nvm\.ignore_damage/s,
	'who reads the block is told, and what to do');
is(sql('SET nvm.ignore_damage = on; DELETE FROM e WHERE id = 5; SELECT count(*) FROM e WHERE id > 0'), 9,
	'the other rows can be used');
$node->stop;

done_testing();

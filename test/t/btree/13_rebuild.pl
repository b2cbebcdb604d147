# Copyright (c) 2026, pg_nvm contributors

# What comes in the way of rebuilding an index after a restart (persistence none and
# leaves): locked tables, several databases, DDL, functions that fail, who builds
# being cancelled or killed, indexes that CREATE INDEX CONCURRENTLY or DROP INDEX
# CONCURRENTLY had not ended.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('main', conf => <<CONF, extension => 0);
nvm.index_rebuild_workers = 2
max_prepared_transactions = 5
autovacuum = off
restart_after_crash = on
nvm.default_index_method = 'nvm_btree'
nvm.index_identity = nvm_btree
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $schema = <<'SQL';
CREATE EXTENSION pg_nvm;
CREATE TABLE NAME (id int, k int, b text) USING nvm;
CREATE UNIQUE INDEX NAME_id ON NAME (id) WITH (persistence = none);
CREATE INDEX NAME_b ON NAME (b) WITH (persistence = leaves);
INSERT INTO NAME SELECT i, i % 50, md5(i::text) || repeat('b', 200) FROM generate_series(1, 500) i;
DELETE FROM NAME WHERE id % 10 = 5;
SQL

sub make_table
{
	my ($db, $name) = @_;
	my $make = $schema =~ s/NAME/$name/gr;
	$make =~ s/CREATE EXTENSION/CREATE EXTENSION IF NOT EXISTS/;
	$node->safe_psql($db, "SET client_min_messages = warning; $make");
	return;
}

sub set_uses
{
	my ($db, $name) = @_;
	$node->safe_psql($db, "SET enable_seqscan = off; DO \$\$ DECLARE n int; BEGIN FOR i IN 1..200 LOOP SELECT k INTO n FROM $name WHERE id = i; END LOOP; END \$\$");
	return;
}

# indexes answer as the table does, and the checker finds nothing
sub sound
{
	my ($name, @tables) = @_;
	my $found = join q(), map { sql(<<SQL) } @tables;
SET enable_seqscan = off; SET enable_bitmapscan = off;
CREATE TEMP TABLE seen AS SELECT 'id' AS way, count(*) AS n, sum(id) AS ids FROM $_ WHERE id > -1000;
INSERT INTO seen SELECT 'b', count(*), sum(id) FROM $_ WHERE b >= '';
SET enable_seqscan = on; SET enable_indexscan = off; SET enable_indexonlyscan = off;
INSERT INTO seen SELECT 'table', count(*), sum(id) FROM $_;
SELECT '$_', s FROM seen s WHERE (SELECT count(DISTINCT (n, ids)) FROM seen) > 1;
SELECT * FROM nvm.check('$_', true);
SQL
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($found, '', "$name: indexes answer as the table does, and are sound");
	return;
}

sub states
{
	my ($db) = @_;
	return $node->safe_psql($db // 'postgres',
		q(SELECT string_agg(index || ' ' || state, ', ' ORDER BY index::text) FROM nvm.index_rebuilds WHERE persistence = 'none'));
}

sub wait_states
{
	my ($what, $db) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	my $is  = '';

	while (time() < $end)
	{
		$is = states($db);
		last if $is eq $what;
		usleep(20_000);
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($is, $what, "indexes: $what");
	return;
}

sub waits
{
	my ($session) = @_;
	return $node->poll_query_until('postgres',
		"SELECT wait_event_type IN ('Extension', 'Lock') FROM pg_stat_activity WHERE pid = " . $session->pid);
}

sub log_of
{
	my ($session) = @_;
	my $pid = $session->pid;
	return join "\n", grep { /\[$pid\]/ } split /\n/, slurp_file($node->logfile);
}

# The session that builds, stopped, is cancelled; the one that waits for it goes on.
sub cancel_builder
{
	my ($builder, $waiter) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	sql('SELECT pg_cancel_backend(' . $builder->pid . ')');
	$builder->go_on;
	$waiter->sql('SELECT 1');
	$builder->sql('SELECT 1');
	like(log_of($builder), qr/canceling statement due to user request/, 'who builds is cancelled');
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

# ---- locked tables hold up nobody else, here or in another database

make_table('postgres', $_) foreach qw(a b c);
$node->safe_psql('postgres', 'CREATE DATABASE two');
make_table('two', 'd');
set_uses('postgres', $_) foreach qw(a b);
sql("BEGIN; LOCK TABLE a IN ACCESS EXCLUSIVE MODE; INSERT INTO a VALUES (1000, 0, 'prepared'); PREPARE TRANSACTION 'a'");
sql("BEGIN; LOCK TABLE b IN ACCESS EXCLUSIVE MODE; DELETE FROM b WHERE id = 7; PREPARE TRANSACTION 'b'");
restart('');
wait_states('a_id waiting, b_id waiting, c_id ready');
wait_states('d_id ready', 'two');
sql("COMMIT PREPARED 'a'; ROLLBACK PREPARED 'b'");
wait_states('a_id ready, b_id ready, c_id ready');
sound('prepared transactions', qw(a b c));
is(sql('SET enable_seqscan = off; SELECT b FROM a WHERE id = 1000'), 'prepared', 'a row of the transaction that had the lock');

# ---- two workers, each at an index of its own, and DDL on both tables

restart('index-rebuild-entry:stop:20');
my @stopped;
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
while (@stopped < 2 && time() < $end)
{
	my %pid = map { $_ => 1 } $node->log_since_start =~ /failpoint index-rebuild-entry hit, pid (\d+)/g;
	@stopped = sort keys %pid;
	usleep(10_000);
}
NvmTest::wait_stopped($_) foreach @stopped;
is(scalar(@stopped), 2, 'two workers are at work');
is($node->safe_psql('postgres', q(SELECT count(*) FROM nvm.index_rebuilds WHERE state = 'rebuilding' AND persistence = 'none'))
	  + $node->safe_psql('two', q(SELECT count(*) FROM nvm.index_rebuilds WHERE state = 'rebuilding' AND persistence = 'none')),
	2, 'each at another index');
# the most-used ones come first, one in each database
like(states(), qr/(?:a_id rebuilding, b_id waiting|a_id waiting, b_id rebuilding), c_id waiting/, 'the most-used one of this database comes first');
is(states('two'), 'd_id rebuilding', 'and one of another database');
my ($used, $other) = states() =~ /a_id rebuilding/ ? qw(a b) : qw(b a);
my @session = map { $node->session("SET nvm.failpoint = ''") } 1 .. 3;
$session[0]->send("ALTER TABLE $used ADD COLUMN late int DEFAULT 5; REINDEX INDEX ${used}_id");
ok(waits($session[0]), 'ALTER TABLE waits for who rebuilds an index of it');
# this one is nobody's: the transaction does it itself, under its lock
is($session[1]->sql("BEGIN; LOCK TABLE $other IN ACCESS EXCLUSIVE MODE; INSERT INTO $other VALUES (2000, 1, 'by myself') RETURNING id; COMMIT"),
	'2000', 'a session that has locked the table rebuilds the index itself');
is($session[1]->sql('TRUNCATE c; INSERT INTO c VALUES (1, 1, 1), (2, 2, 2) RETURNING id'), "1\n2", 'TRUNCATE of a table whose index is absent');
is($session[1]->sql("BEGIN; TRUNCATE $other; INSERT INTO $other VALUES (1, 1, 'x'); ROLLBACK"), '', 'and one that is rolled back');
$session[2]->sql('BEGIN; ALTER INDEX c_id SET (persistence = full); ROLLBACK');
$node->set_conf('nvm.failpoint' => "''");
$node->reload;
NvmTest::continue_process($_) foreach @stopped;
$session[0]->sql('SELECT 1');
is(sql("SELECT count(*) FROM $used WHERE late = 5 AND id > 0"), $used eq 'a' ? 451 : 450, 'ALTER TABLE has been done');
wait_states('d_id ready', 'two');
sound('DDL', qw(a b c));
$_->drop foreach @session;

# ---- the server goes on with one worker dead

restart('index-rebuild-entry:stop:20');
$end = time() + $PostgreSQL::Test::Utils::timeout_default;
usleep(10_000) while $node->log_since_start !~ /failpoint index-rebuild-entry hit/ && time() < $end;
my ($victim) = $node->log_since_start =~ /failpoint index-rebuild-entry hit, pid (\d+)/;
$node->set_conf('nvm.failpoint' => "''");
$node->reload;
NvmTest::stop_process($victim);
kill('KILL', $victim);
$end = time() + $PostgreSQL::Test::Utils::timeout_default;
foreach my $pid ($node->log_since_start =~ /failpoint index-rebuild-entry hit, pid (\d+)/g)
{
	NvmTest::continue_process($pid);
}
usleep(20_000) while $node->log_since_start !~ /all server processes terminated; reinitializing/ && time() < $end;
$node->poll_query_until('postgres', 'SELECT true') or die 'the server does not come back';
wait_states('a_id ready, b_id ready, c_id ready');
wait_states('d_id ready', 'two');
sound('a worker was killed', qw(a b c));

# ---- nobody builds; who does is cancelled; who waited takes his place

restart('index-rebuild-claimed:error');
wait_states('a_id failed, b_id failed, c_id failed');
is(sql('SELECT count(*) FROM a WHERE id BETWEEN 1 AND 100'), 90, 'queries are answered from the table');
sql("SET nvm.failpoint = ''; VACUUM (INDEX_CLEANUP ON) a");
unlike(states(), qr/a_id ready/, 'VACUUM needs no index');
my $builder = $node->session;
my $waiter  = $node->session("SET nvm.failpoint = ''");
$builder->stop_at('index-rebuild-entry', "INSERT INTO a VALUES (3000, 1, 'cancelled')");
$waiter->send("INSERT INTO a VALUES (3001, 1, 'waited')");
ok(waits($waiter), 'an insertion waits for the session that builds');
cancel_builder($builder, $waiter);
is(sql('SET enable_seqscan = off; SELECT id FROM a WHERE id IN (3000, 3001)'), 3001, 'the other one has built it');
# an error under a savepoint, and then again
is($waiter->sql("BEGIN; SAVEPOINT s; SET LOCAL nvm.failpoint = 'index-rebuild-entry:error:100'; INSERT INTO b VALUES (3000, 1, 'x')"), '', 'an error in the middle');
is($waiter->sql("ROLLBACK TO s; SET LOCAL nvm.failpoint = ''; INSERT INTO b VALUES (3000, 1, 'y') RETURNING b; COMMIT"), 'y', 'and once more without');
sound('cancelled', qw(a b));
$_->drop foreach $builder, $waiter;

# ---- leaves: the same

restart('');
$builder = $node->session('SET enable_seqscan = off');
$waiter  = $node->session('SET enable_seqscan = off');
$builder->stop_at('index-leaves-known', "SELECT count(*) FROM a WHERE b < '2'");
$waiter->send("SELECT count(*) FROM a WHERE b < '2'");
ok(waits($waiter), 'who walks over the leaves is waited for');
cancel_builder($builder, $waiter);
wait_states('a_id ready, b_id ready, c_id ready');
sound('leaves', qw(a b c));
$_->drop foreach $builder, $waiter;

# ---- a function that fails

sql(<<'SQL');
CREATE FUNCTION f(i int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS $$
BEGIN
	IF current_setting('nvm_test.fail', true) = 'on' THEN RAISE EXCEPTION 'f does not work'; END IF;
	RETURN i * 2;
END $$;
CREATE UNIQUE INDEX c_f ON c (f(id)) WITH (persistence = none);
INSERT INTO c SELECT i, i, i FROM generate_series(100, 400) i;
SQL
$node->append_conf('postgresql.conf', "nvm_test.fail = 'on'");
restart('');
wait_states('a_id ready, b_id ready, c_f failed, c_id ready');
is(sql('SELECT count(*) FROM c WHERE id > 99'), 301, 'queries go on');
$node->fails_with("INSERT INTO c VALUES (900, 1, 'x')", qr/f does not work/, 'a writer is told why');
sql("UPDATE c SET k = k + 1 WHERE id = 100; DELETE FROM c WHERE id = 101; VACUUM c");
$node->set_conf('nvm_test.fail' => "'off'");
$node->reload;
$node->poll_query_until('postgres', "SELECT current_setting('nvm_test.fail') = 'off'") or die;
is(sql("INSERT INTO c VALUES (900, 1, 'x'); SET enable_seqscan = off; SELECT id FROM c WHERE f(id) = 1800"), 900, 'it is rebuilt by who needs it, when that is mended');
$node->fails_with("INSERT INTO c VALUES (102, 1, 'x')", qr/duplicate key value violates unique constraint "c_id"/, 'keys are unique');
sound('a function that failed', 'c');

# ---- CREATE INDEX CONCURRENTLY that had not ended

my $old = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM a');
my $cic = $node->session;
$cic->send('CREATE UNIQUE INDEX CONCURRENTLY c_k ON c (k, id) WITH (persistence = none)');
ok(waits($cic), 'CREATE INDEX CONCURRENTLY waits for a snapshot');
$node->poll_query_until('postgres', q(SELECT indisready AND NOT indisvalid FROM pg_index WHERE indexrelid = 'c_k'::regclass)) or die;
restart('');
$_->drop foreach $old, $cic;
wait_states('a_id ready, b_id ready, c_f ready, c_id ready, c_k ready');
sql('INSERT INTO c SELECT i, i, i FROM generate_series(1000, 1100) i; DELETE FROM c WHERE id % 7 = 0; VACUUM c');
$node->fails_with("INSERT INTO c VALUES (1002, 1002, 'x')", qr/duplicate key value/, 'rows beside what it has left');
sql('REINDEX INDEX CONCURRENTLY c_k');
is(sql(q(SELECT indisvalid FROM pg_index WHERE indexrelid = 'c_k'::regclass)), 't', 'what it has left can be completed');
sound('CREATE INDEX CONCURRENTLY', 'c');

# ---- commands that were cut short: an index that nobody keeps up to date any more is not rebuilt

# DROP INDEX CONCURRENTLY, which waits after its first transaction, or its second one
sub begin_drop
{
	my ($table, $index, $dead) = @_;
	my $is    = sub { $node->poll_query_until('four', "SELECT $_[0] FROM pg_index WHERE indexrelid = '$index'::regclass") or die $index };
	my @begin = ('BEGIN', "SELECT count(*) FROM $table");
	my @sessions = map { $node->session('\c four') } 1 .. 3;
	my ($drop, $first, $second) = @sessions;

	$first->sql($_) foreach @begin;
	$drop->send("DROP INDEX CONCURRENTLY $index");
	$is->('NOT indisvalid AND indisready AND indislive');
	return @sessions unless $dead;
	$second->sql($_) foreach @begin;
	$first->sql('COMMIT');
	$is->('NOT indisvalid AND NOT indisready AND NOT indislive');
	return @sessions;
}

sub flags
{
	my ($db) = @_;
	return $node->safe_psql($db, <<'SQL');
SELECT string_agg(concat_ws(' ', indexrelid::regclass, CASE WHEN indisvalid THEN 'valid' END, CASE WHEN indisready THEN 'ready' END,
	CASE WHEN indislive THEN 'live' END), ', ' ORDER BY indexrelid::regclass::text)
  FROM pg_index WHERE indrelid::regclass::text ~ '^.$'
SQL
}

$node->safe_psql('postgres', 'CREATE DATABASE four');
make_table('four', $_) foreach qw(x y z);
$node->safe_psql('four', "DROP INDEX ${_}_b; CREATE UNIQUE INDEX ${_}_cut ON $_ (id, k) WITH (persistence = none)") foreach qw(x y z);
$node->safe_psql('four', 'DROP INDEX z_cut');
my (undef, undef, $failed) = $node->psql('four', 'CREATE UNIQUE INDEX CONCURRENTLY z_cut ON z (k) WITH (persistence = none)');
like($failed, qr/could not create unique index "z_cut"/, 'CREATE INDEX CONCURRENTLY that fails before its index is ready');
my @cut = (begin_drop('x', 'x_cut', 1), begin_drop('y', 'y_cut', 0));
my $flags = 'x_cut, x_id valid ready live, y_cut ready live, y_id valid ready live, z_cut live, z_id valid ready live';
is(flags('four'), $flags, 'what three commands have left');
restart('');
$_->drop foreach @cut;
is(flags('four'), $flags, 'and after a restart');
# z_cut has no storage: its build was rolled back
wait_states('x_cut unused, x_id ready, y_cut ready, y_id ready, z_id ready', 'four');
$node->poll_query_until('postgres', q(SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'nvm index rebuild worker'))) or die;
sql('CREATE DATABASE five TEMPLATE four');
restart('');
foreach my $db (qw(four five))
{
	wait_states('x_cut unused, x_id ready, y_cut ready, y_id ready, z_id ready', $db);
	is($node->safe_psql($db, <<'SQL'), '', "$db: tables can be used, beside what is left of their indexes");
INSERT INTO x SELECT i, i FROM generate_series(1001, 1100) i;
INSERT INTO y SELECT i, i FROM generate_series(1001, 1100) i;
INSERT INTO z SELECT i, i FROM generate_series(1001, 1100) i;
UPDATE x SET k = k + 1 WHERE id % 3 = 0;
DELETE FROM x WHERE id % 7 = 0;
VACUUM x, y, z;
SELECT * FROM nvm.check('x', true);
SELECT * FROM nvm.check('y', true);
SELECT * FROM nvm.check('z', true);
SQL
	# which one of two finds the key first is the order of their OIDs
	(undef, undef, $failed) = $node->psql($db, 'DROP INDEX y_id; INSERT INTO y SELECT id, k FROM y WHERE id = 11');
	like($failed, qr/duplicate key value violates unique constraint "y_cut"/, "$db: an index that is ready holds back doubles");
}
$node->safe_psql('four', 'DROP INDEX x_cut; DROP INDEX CONCURRENTLY y_cut; DROP INDEX z_cut');
wait_states('x_id ready, z_id ready', 'four');
$node->safe_psql('five', 'DELETE FROM z; REINDEX INDEX x_cut; REINDEX INDEX CONCURRENTLY y_cut; REINDEX INDEX z_cut');
is(flags('five'), 'x_cut valid ready live, x_id valid ready live, y_cut valid ready live, z_cut valid ready live, z_id valid ready live',
	'what is left can be completed');
wait_states('x_id ready, z_id ready', 'five');
restart('');
wait_states('x_cut ready, x_id ready, y_cut ready, z_cut ready, z_id ready', 'five');
is($node->safe_psql('five', "SELECT * FROM nvm.check('x', true); SELECT * FROM nvm.check('y', true)"), '', 'and is sound');
$node->poll_query_until('postgres', q(SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'nvm index rebuild worker'))) or die;
sql('DROP DATABASE four');
sql('DROP DATABASE five');

# ---- a database that was dropped when nobody saw it

make_table('postgres', 'e');
$node->safe_psql('postgres', 'CREATE DATABASE three');
make_table('three', $_) foreach qw(x y);
$node->stop;
$node->set_conf('shared_preload_libraries' => "''");
$node->start;
sql('DROP DATABASE three');
$node->stop;
$node->set_conf('shared_preload_libraries' => "'pg_nvm'");
$node->start;
wait_states('a_id ready, b_id ready, c_f ready, c_id ready, c_k ready, e_id ready');
wait_states('d_id ready', 'two');
my $began = time();
usleep(100_000) while $node->log_since_start !~ /FATAL:  database \d+ does not exist/ && time() < $began + 60;
my $missed = sub { return scalar(() = $node->log_since_start =~ /FATAL:  database \d+ does not exist/g); };
cmp_ok($missed->(), '>', 0, 'workers have not found their database');
# from here on, however long it took to come here
my $fatal = $missed->();
$began = time();
usleep(4_000_000);
$fatal = $missed->() - $fatal;
cmp_ok($fatal, '<=', 8 + 2 * (time() - $began), "$fatal more have not: they are not started all the time");
sql('SELECT nvm.drop_orphans()');

$node->check_clean('in the end');
$node->stop;
done_testing();

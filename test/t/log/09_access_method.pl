# Copyright (c) 2026, pg_nvm contributors

# Access method nvm_vlog as a user has it (src/log/README.md, "Beginning").  A server that
# does not use it has no log.  The first table begins it, without any setting, whatever dies
# meanwhile.  nvm.memory_limit is an error, and 0 means no such tables.  A log that is lost or
# damaged is named, other tables are served or the pool says why not, and all is there when it
# is put back.  Without a process for the worker the log is synced all the same.

use strict;
use warnings;

use File::Copy;
use File::Path qw(rmtree);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('method', conf => <<CONF, sql => <<SQL);
autovacuum = off
restart_after_crash = on
CONF
CREATE TABLE h (id int) USING heap;
CREATE TABLE n (id int) USING nvm;
INSERT INTO h VALUES (1);
INSERT INTO n VALUES (1);
SQL
my $log = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub state { return sql('SELECT state FROM nvm.log'); }
sub worker { return sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'nvm log recovery'}); }
sub files { return sort map { s,.*/,,r } grep { /\.log$/ } glob "$log/*"; }

sub death
{
	my ($pid) = @_;
	my $opened = $node->times_opened;
	my $session;

	if (!defined $pid)
	{
		$session = $node->session;
		$pid = $session->pid;
	}
	kill 'KILL', $pid;
	$session->drop if $session;
	$node->wait_reopened($opened);
	return;
}

# ---- a server that does not use it

foreach my $end ('first start', 'restart', 'crash', 'death')
{
	$node->restart if $end eq 'restart';
	$node->crash, $node->start if $end eq 'crash';
	death() if $end eq 'death';
	sql('UPDATE n SET id = id + 1');
	is(state() . ' ' . worker(), 'not begun 0', "$end: the log has not begun, and there is no worker");
	ok(!-e $log, "$end: nor a directory");
}
my $taken = 0;
foreach my $fd (glob "/proc/$node->{_pid}/fd/*")
{
	$taken += (stat $fd)[12] / 2 if (readlink($fd) // '') =~ m,memfd:pg_nvm (?:volatile|companion),;
}
cmp_ok($taken, '<', 200, "nor any memory but $taken kB");
sql('CREATE TEMP TABLE t (a int) USING nvm_vlog; INSERT INTO t VALUES (1)');
is(state(), 'not begun', 'a temporary table does not begin it');
ok(!-e $log, 'nor has it a directory');

# ---- the first table, and what may go wrong with it

my $first = 'CREATE TABLE v (id int PRIMARY KEY, s text) USING nvm_vlog';

sub check_first
{
	my ($name) = @_;
	sql($first);
	sql(q{INSERT INTO v SELECT i, 's' || i FROM generate_series(1, 100) i});
	is(state(), 'on', "$name: the first table begins the log");
	is(sprintf('%o', (stat $log)[2] & 07777), '700', "$name: its directory is for the server alone");
	$node->restart;
	is(sql('SELECT count(*), sum(id) FROM v'), '100|5050', "$name: a restart brings its rows back");
	is(sql(q{SET enable_seqscan = off; SELECT s FROM v WHERE id = 77}), 's77', "$name: and its index");
	$node->crash;
	$node->start;
	is(sql('SELECT count(*), sum(id) FROM v'), '100|5050', "$name: so does a crash");
	return;
}

# a pool that has never had a log
sub give_up
{
	sql('DROP TABLE IF EXISTS v, n, u; SELECT nvm.reset_pool(force => true)');
	$node->restart;
	rmtree($log);
	sql('CREATE TABLE n (id int) USING nvm; INSERT INTO n VALUES (1)');
	return;
}

mkdir $log, 0700;
chmod 0500, $log;
$node->fails_with($first, qr/the log of tables in memory cannot begin\nDETAIL:  could not begin the log in directory "pg_nvm_log": Permission denied/, 'a directory that is read-only');
rmdir $log;
append_to_file($log, 'a file');
$node->fails_with($first, qr/the log of tables in memory cannot begin\nDETAIL: .*"pg_nvm_log": Not a directory/, 'a directory that is a file');
unlink $log;
is(sql('SELECT count(*) FROM n'), 1, 'the server is up');
is(state(), 'not begun', 'and the log has not begun');
check_first('after errors');

my @places = qw(log-directory-made log-file-make log-file-rename log-file-made log-generation-begun log-generation-noted);
foreach my $place (@places)
{
	give_up();
	$node->fails_with("SET nvm.failpoint = '$place:error'; $first", qr/failpoint/, "$place: an error");
	is(sql('SELECT count(*) FROM n'), 1, "$place: the server is up");
	check_first("an error at $place");

	# with the memory that it has left
	give_up();
	my $session = $node->session;
	$session->stop_at($place, $first);
	death($session->pid);
	$session->drop;
	check_first("a process has died at $place");

	give_up();
	$node->psql('postgres', "SET nvm.failpoint = '$place:crash'; $first");
	$node->wait_crashed;
	$node->start;
	check_first("a crash at $place");
}
is(worker(), 1, 'there is one worker now');
sql(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'nvm log recovery'});
ok($node->poll_query_until('postgres', q{SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'nvm log recovery'}),
	'and again when that has been terminated');
$node->check_clean('the first table');

# two sessions make the first table at once
give_up();
my @sessions = map { $node->session } 1 .. 2;
$sessions[0]->stop_at('log-generation-begun', $first);
$sessions[1]->send('CREATE TABLE w (id int) USING nvm_vlog');
$sessions[0]->go_on;
ok($node->poll_query_until('postgres', q{SELECT count(*) = 2 FROM pg_class WHERE relname IN ('v', 'w')}), 'two at once');
is(sql('SELECT state, generation, files FROM nvm.log'), 'on|1|1', 'begin one log');
$_->drop foreach @sessions;
sql('DROP TABLE w');

# ---- nvm.memory_limit

give_up();
$node->append_conf('postgresql.conf', 'nvm.memory_limit = 64MB');
$node->restart;
sql(q{CREATE TABLE v (id int, s text) USING nvm_vlog;
	INSERT INTO v SELECT i, repeat('x', 100) FROM generate_series(1, 150000) i;
	CREATE TABLE more (LIKE v) USING nvm_vlog});
my $file = PostgreSQL::Test::Utils::tempdir() . '/rows';
append_to_file($file, join('', map { "$_\t" . ('y' x 1000) . "\n" } 1 .. 60000));
my $full = qr/could not extend the volatile region: it has its maximum size\nDETAIL:  Tables in memory and their indexes have 64 MB, nvm\.memory_limit allows 64 MB\.\nHINT:  Increase nvm\.memory_limit/;
$node->fails_with($_->[1], $full, "$_->[0] reaches the limit") foreach (
	[ 'INSERT', q{INSERT INTO more SELECT i, repeat('x', 1000) FROM generate_series(1, 60000) i} ],
	[ 'COPY', "COPY more FROM '$file'" ],
	[ 'UPDATE', q{UPDATE v SET s = repeat('z', 500)} ],
	[ 'CREATE INDEX', 'CREATE INDEX ON v (s, id)' ],
	[ 'CREATE TABLE AS', 'CREATE TABLE copied USING nvm_vlog AS SELECT a.* FROM v a, v b' ],
	[ 'VACUUM FULL', 'VACUUM FULL v' ]);
is(sql('SELECT count(*), sum(id), sum(length(s)) FROM v'), '150000|11250075000|15000000', 'nothing is lost');
is(sql('SELECT count(*) FROM more'), 0, 'nor added');
is(sql('SELECT count(*) FROM n'), 1, 'the server is up');
sql('TRUNCATE more; VACUUM more, v');
sql(q{INSERT INTO more SELECT i, 'y' FROM generate_series(1, 1000) i});
$node->check_clean('a full region');
$node->restart;
is(sql('SELECT (SELECT sum(id) FROM v), (SELECT count(*) FROM more)'), '11250075000|1000', 'nor by a restart');

$node->set_conf('nvm.memory_limit' => 0);
$node->restart;
my $off = qr/tables in memory are not available\nDETAIL:  nvm\.memory_limit is 0\.\nHINT:  Set nvm\.memory_limit and restart/;
$node->fails_with($_, $off, "without memory: $_") foreach ('SELECT FROM v', 'INSERT INTO v VALUES (1)', 'TRUNCATE v',
	'CREATE TABLE no (a int) USING nvm_vlog', 'CREATE TEMP TABLE no (a int) USING nvm_vlog',
	'CREATE UNLOGGED TABLE no (a int) USING nvm_vlog', 'ALTER TABLE n SET ACCESS METHOD nvm_vlog');
is(sql('SELECT (SELECT state FROM nvm.log), (SELECT state FROM nvm.log_recovery)'), 'off|off', 'the views say so');
is(sql('SELECT count(*) FROM n'), 1, 'other tables are served');
is(worker(), 0, 'and there is no worker');
sql('DROP TABLE more');
$node->set_conf('nvm.memory_limit' => '-1');
$node->restart;
is(sql('SELECT count(*), sum(id), sum(length(s)) FROM v'), '150000|11250075000|15000000', 'with memory the rows are there again');
is(sql(q{SELECT setting::int BETWEEN 64 AND 16777216 FROM pg_settings WHERE name = 'nvm.memory_limit'}), 't', '-1 stands for something');

# ---- damage: more than one file, in more than one generation

give_up();
sql($first);
sql(q{SET nvm.log_compression = off; DO 'BEGIN FOR n IN 1 .. 600 LOOP INSERT INTO v SELECT n * 100 + i, repeat(''x'', 1000) FROM generate_series(1, 40) i; COMMIT; END LOOP; END'});
$node->restart;
sql(q{UPDATE v SET s = 'second' WHERE id % 10 = 1});
my $sums = 'SELECT count(*), sum(id), sum(length(s)) FROM v';
my $want = sql($sums);
my @first = grep { /-00000001-/ } files();
cmp_ok(scalar @first, '>', 1, 'there are ' . @first . ' files of the first generation');

sub bytes_at
{
	my ($name, $at, $bytes) = @_;
	open(my $fh, '+<:raw', "$log/$name") or die "$name: $!";
	seek($fh, $at, 0);
	read($fh, my $old, length $bytes);
	seek($fh, $at, 0);
	print $fh $bytes;
	close $fh;
	return $old;
}

# do something to the log, see what a user sees, put it back
sub damaged
{
	my ($what, $harm, $mend, $refused, $re) = @_;

	$node->stop;
	my $kept = $harm->();
	$node->start;
	if ($refused)
	{
		is(sql('SELECT status FROM nvm.pool'), 'refused', "$what: the pool is refused");
		like(sql('SELECT reason FROM nvm.pool'), $re, "$what: it says why");
		like(sql('SELECT hint FROM nvm.pool'), qr/nvm\.log_directories|Restore the file|Free space|Restore the pool/, "$what: and what to do");
		$node->fails_with('SELECT FROM v', $re, "$what: so does an access");
	}
	else
	{
		$node->fails_with($sums, $re, "$what: an access names the file");
		like(sql('SELECT reason FROM nvm.log_recovery'), $re, "$what: so does the view");
		is(sql('SELECT count(*) FROM n'), 1, "$what: tables of nvm are served");
		$node->fails_with('CREATE TABLE no (a int) USING nvm_vlog', qr/tables in memory are not available/, "$what: no new tables");
	}
	is(sql('SELECT count(*) FROM h'), 1, "$what: tables of heap are served");
	$node->stop;
	$mend->($kept);
	$node->start;
	is(sql($sums), $want, "$what: put back, all rows are there");
	return;
}

my $aside = "$log.aside";
my $last;			# file of the last generation
sub last_file { return $last = (files())[-1]; }

damaged('the directory is missing', sub { rename $log, $aside or die $! }, sub { rename $aside, $log or die $! }, 1,
	qr/could not open log directory "pg_nvm_log": No such file or directory/);
damaged('the directory is empty', sub { rename $log, $aside or die $!; mkdir $log, 0700 },
	sub { rmdir $log or die $!; rename $aside, $log or die $! }, 1, qr/the log of generation \d+ is missing in directory "pg_nvm_log"/);
damaged('the directory is read-only', sub { chmod 0500, $log }, sub { chmod 0700, $log }, 1,
	qr/could not begin the log in directory "pg_nvm_log": Permission denied/);
damaged('an early file is missing', sub { rename "$log/$first[0]", $aside or die $! }, sub { rename $aside, "$log/$first[0]" or die $! },
	0, qr/file "$first[0]" of the log is missing/);
damaged('a later file of it is missing', sub { rename "$log/$first[1]", $aside or die $! }, sub { rename $aside, "$log/$first[1]" or die $! },
	0, qr/file "\Q$first[@first > 2 ? 1 : 0]\E"|file "$first[1]"/);
damaged('the last file is missing', sub { last_file(); rename "$log/$last", $aside or die $! },
	sub { rename $aside, "$log/$last" or die $! }, 1, qr/the log of generation \d+ is missing/);
sql(q{SET nvm.log_compression = off; DO 'BEGIN FOR n IN 1001 .. 1600 LOOP INSERT INTO v SELECT n * 100 + i, repeat(''x'', 1000) FROM generate_series(1, 40) i; COMMIT; END LOOP; END'});
$want = sql($sums);
like((files())[-1], qr/-0000000[2-9]\.log$/, 'the last generation has several files');
damaged('the last of several is missing', sub { last_file(); rename "$log/$last", $aside or die $! },
	sub { rename $aside, "$log/$last" or die $! }, 1, qr/file \d+ of the log of generation \d+ is missing in directory "pg_nvm_log"/);
damaged('an early file is truncated', sub { copy("$log/$first[0]", $aside); truncate "$log/$first[0]", 1_000_000 },
	sub { rename $aside, "$log/$first[0]" or die $! }, 0, qr/$first[0]/);
damaged('the last file is truncated', sub { last_file(); copy("$log/$last", $aside); truncate "$log/$last", 100 },
	sub { rename $aside, "$log/$last" or die $! }, 1, qr/log file "pg_nvm_log\/\S+" is damaged: it is too short/);
damaged('a bit has flipped', sub { return bytes_at($first[0], 5_000_000, 'damage') }, sub { bytes_at($first[0], 5_000_000, $_[0]) },
	0, qr/$first[0]/);

my $other = NvmTest->start_new('other', conf => "autovacuum = off\n", sql => "$first; INSERT INTO v VALUES (1, 'other')");
$other->stop;
my ($foreign) = glob $other->data_dir . '/pg_nvm_log/*-00000001-00000001.log';
damaged('an early file is of another pool', sub { rename "$log/$first[0]", $aside or die $!; copy($foreign, "$log/$first[0]") },
	sub { rename $aside, "$log/$first[0]" or die $! }, 0, qr/$first[0].*(?:pool|uuid)/);
damaged('the last file is of another pool', sub { last_file(); rename "$log/$last", $aside or die $!; copy($foreign, "$log/$last") },
	sub { rename $aside, "$log/$last" or die $! }, 1, qr/log file "pg_nvm_log\/\S+" is damaged: .*(?:pool|uuid)/);

# a log that is lost for good: the others can be saved
$node->stop;
rename $log, $aside or die $!;
$node->set_conf('nvm.memory_limit' => 0);
$node->start;
is(sql('SELECT count(*) FROM n'), 1, 'a lost log: without memory for it the pool is served');
sql('DROP TABLE v');
$node->stop;
rename $aside, $log or die $!;
$node->set_conf('nvm.memory_limit' => '-1');
$node->start;
is(sql('SELECT state FROM nvm.log_recovery WHERE state = \'whole\' OR pg_sleep(1) IS NULL'), 'whole', 'rows of a table that is gone are passed over')
  if $node->poll_query_until('postgres', q{SELECT state = 'whole' FROM nvm.log_recovery});
$node->check_clean('the end');
$node->stop;

# ---- no process is free for the worker

# three of our own, and PostgreSQL's logical replication launcher
$node = NvmTest->start_new('no_worker', conf => "autovacuum = off\nmax_worker_processes = 4\n",
	sql => "$first; INSERT INTO v VALUES (1, 'waits')");
sql("SET synchronous_commit = off; INSERT INTO v VALUES (2, 'does not wait')");
ok($node->poll_query_until('postgres', 'SELECT inserted = persistent FROM nvm.log'), 'no worker: what nobody waits for is synced');
is(worker(), 0, 'no worker: there is none');
my @told = $node->log_since_start =~ /LOG:  (nvm: worker "nvm log recovery" cannot be started)/g;
is(scalar(@told), 1, 'no worker: the server log says so, once');
$node->crash;
$node->set_conf(max_worker_processes => 8);
$node->start;
is(sql('SELECT count(*) FROM v'), 2, 'no worker: all is there once there is one');
$node->stop;
done_testing();

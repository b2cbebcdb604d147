# Copyright (c) 2026, pg_nvm contributors

# UNLOGGED tables in memory survive a clean stop, and are emptied by a crash
# (src/vlog/README.md, "UNLOGGED tables over a clean stop").
#
#  1. a server without any other table in memory; starts that fail; no worker
#  2. stops of all kinds: rows, large values, indexes, partitions, sequences; what was open or
#     asynchronous; DDL before the stop; two starts; nothing is left over
#  3. memory in a file: found, or thrown away
#  4. pg_terminate_backend of the worker is no stop
#  5. prepared transactions: their tables are left out, others are not
#  6. stops during a rebuild, before and after tables open, and of servers that open none
#  7. a crash at each step
#  8. errors: a full disk, a directory that cannot be synced, files that are damaged or missing;
#     a walsender
#  9. several directories, nvm_logdump, and lists that are damaged in one of them
# 10. runs of the server without the pool, or the library

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use File::Copy;
use File::Spec;
use File::Temp;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node;

sub sql { return $node->safe_psql('postgres', join(";\n", @_)); }

sub content
{
	return sql(map { "SELECT '$_', count(*), md5(coalesce(string_agg(x::text, ',' ORDER BY x::text), '')) FROM $_ x" } @_);
}

sub wait_until
{
	my ($what, $is_so) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (!$is_so->())
	{
		die "$what: this does not come about\n" . $node->log_since_start if time() > $end;
		usleep(10_000);
	}
	return;
}

sub failpoint
{
	my $from = -s $node->logfile // 0;

	$node->set_conf('nvm.failpoint' => "'$_[0]'");
	return unless defined $node->{_pid};
	$node->reload;
	# since 16 a postmaster that a stop reaches before it has done so reads no settings any more
	wait_until('the settings are read', sub { slurp_file($node->logfile, $from) =~ /received SIGHUP/ });
	return;
}

# files that a stop has left, lists and rows
sub left { return map { my $d = $_; glob $node->data_dir . "/$d/*.kept*" } qw(pg_nvm_log pg_nvm_log_b); }
sub lists { return grep { m,/[0-9a-f]{8}\.kept$, } left(); }
sub files { return grep { m,/[0-9a-f]{8}-[0-9a-f]{8}-[0-9a-f]{16}\.kept$, } left(); }

sub is_whole
{
	my ($name) = @_;
	wait_until("$name: the region is whole", sub { sql('SELECT state FROM nvm.log_recovery') eq 'whole' });
	wait_until("$name: nothing is left", sub { !left() });
	return pass("$name: no file is left over");
}

# as two steps, so that log_since_start has the last one alone
sub restart { $node->stop(@_); $node->start; return; }

# the postmaster opens the pool, and ends
sub start_fails
{
	my ($name) = @_;
	my $hba = $node->data_dir . '/pg_hba.conf';
	my $bytes = slurp_file($hba);

	append_to_file($hba, "no such line\n");
	ok(!$node->start(fail_ok => 1), "$name: a start fails");
	like($node->log_since_start, qr/pool opened in .*could not load .*pg_hba.conf/s, "$name: when the pool is open");
	$node->_forget_postmaster;
	unlink $hba;
	append_to_file($hba, $bytes);
	return;
}

# ---------------------------------------------------------------- 1. alone

$node = NvmTest->start_new('alone', conf => <<CONF, sql => <<SQL);
autovacuum = off
CONF
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, s text) USING nvm_vlog;
SQL
is(sql('SELECT state FROM nvm.log'), 'on', 'an UNLOGGED table begins the log');
restart();
unlike($node->log_since_start, qr/UNLOGGED tables in memory are empty/, 'a table without rows has lost none');
sql(q{INSERT INTO u SELECT i, 's' || i FROM generate_series(1, 5000) i});
my $alone = content('u');
foreach my $i (1 .. 2)
{
	$node->stop;
	like($node->log_since_start, qr/nvm: kept 5000 rows of UNLOGGED tables in memory, \d+ bytes in 1 files/, 'the stop says so');
	is(scalar(lists()) . ' ' . scalar(files()), '1 1', 'and has left a list, and a file');
	is((stat((lists())[0]))[2] & 07777, 0600, 'for nobody else');
	$node->start;
	is(content('u'), $alone, "all is there after stop $i");
	is_whole("stop $i");
}
is(sql("SET enable_seqscan = off", "SELECT s FROM u WHERE id = 4711"), 's4711', 'by the index, too');
$node->check_clean('alone');
restart('immediate');
is(sql('SELECT count(*) FROM u'), 0, 'an immediate stop empties it');
sql('INSERT INTO u VALUES (1)');
$node->crash;
$node->start;
is(sql('SELECT count(*) FROM u'), 0, 'so does a crash');
restart();
is(sql('SELECT count(*) FROM u'), 0, 'and the stop before that brings nothing back');

# starts that fail lose nothing
sql(q{INSERT INTO u SELECT i, 's' || i FROM generate_series(1, 5000) i});
$node->stop;
start_fails("failure $_") foreach 1 .. 2;
$node->start;
is(content('u'), $alone, 'after starts that have failed all is there');
is_whole('starts that have failed');
$node->check_clean('starts that have failed');
# nor does a server of a single user that ends by a FATAL error
$node->stop;
IPC::Run::run([ 'postgres', '--single', '-D', $node->data_dir, 'no_such_database' ], '<', File::Spec->devnull, '>&', \my $said);
like($said, qr/FATAL: .*no_such_database.*checkpoint complete/s, 'a server of a single user ends by a FATAL error');
$node->start;
is(content('u'), $alone, 'after that all is there');
is_whole('a single user');
$node->check_clean('a single user');
# but a crash is one
$node->crash;
start_fails('after a crash');
$node->start;
is(sql('SELECT count(*) FROM u'), 0, 'a start that fails behind a crash brings nothing back');
is_whole('after a crash');
$node->stop;

# the worker is not there: the keeper does what it does at a stop
$node = NvmTest->start_new('keeper', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_worker_processes = 4
CONF
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, s text) USING nvm_vlog;
INSERT INTO u SELECT i, 's' || i FROM generate_series(1, 5000) i;
SQL
wait_until('no worker', sub { $node->log_since_start =~ /worker "nvm log recovery" cannot be started/ });
is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'nvm log recovery'}), 0, 'there is no worker');
$node->stop;
like($node->log_since_start, qr/nvm: kept 5000 rows/, 'the stop keeps rows without it');
$node->set_conf('max_worker_processes' => 8);
$node->start;
is(content('u'), $alone, 'which are there');
is_whole('without the worker');
$node->stop;

# ---------------------------------------------------------------- 2. stops

# since 18 a partitioned table cannot be UNLOGGED, only its partitions
my $unlogged = $node->pg_version < 18 ? 'UNLOGGED' : '';

$node = NvmTest->start_new('stops', conf => <<CONF, sql => <<SQL);
nvm.memory_limit = 512MB
nvm.recovery_workers = 3
nvm.checkpoint_interval = 0
autovacuum = off
restart_after_crash = on
max_worker_processes = 12
max_prepared_transactions = 5
CONF
CREATE TABLE logged (id int PRIMARY KEY, v int) USING nvm_vlog;
INSERT INTO logged SELECT i, 0 FROM generate_series(1, 1000) i;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, k int, s text) USING nvm_vlog;
CREATE INDEX u_k ON u USING hash (k);
SET nvm.default_index_method = btree;
CREATE INDEX u_b ON u USING btree (k);
RESET nvm.default_index_method;
INSERT INTO u SELECT i, i, repeat('u', i % 200) FROM generate_series(1, 20000) i;
CREATE UNLOGGED TABLE wide (id int, s text, a int[]) USING nvm_vlog;
ALTER TABLE wide ALTER s SET STORAGE EXTERNAL;
CREATE INDEX wide_a ON wide USING gin (a);
INSERT INTO wide SELECT i, repeat(chr(97 + i % 26), 9000 + i), ARRAY[i, i + 1] FROM generate_series(1, 300) i;
INSERT INTO wide VALUES (1000, repeat('w', 3000000), '{1000}');
CREATE UNLOGGED TABLE counted (id serial PRIMARY KEY, s text) USING nvm_vlog;
INSERT INTO counted (s) SELECT 'c' || i FROM generate_series(1, 100) i;
CREATE $unlogged TABLE parts (id int, s text) PARTITION BY RANGE (id);
CREATE UNLOGGED TABLE part_v PARTITION OF parts FOR VALUES FROM (0) TO (1000) USING nvm_vlog;
CREATE UNLOGGED TABLE part_h PARTITION OF parts FOR VALUES FROM (1000) TO (2000) USING heap;
CREATE UNLOGGED TABLE part_n PARTITION OF parts FOR VALUES FROM (2000) TO (3000) USING nvm;
INSERT INTO parts SELECT i, 'p' || i FROM generate_series(0, 2999) i;
CREATE UNLOGGED TABLE bare (id int) USING nvm_vlog;
CREATE UNLOGGED TABLE was_unlogged (id int PRIMARY KEY) USING nvm_vlog;
CREATE TABLE was_logged (id int PRIMARY KEY) USING nvm_vlog;
CREATE UNLOGGED TABLE emptied (id int PRIMARY KEY) USING nvm_vlog;
CREATE UNLOGGED TABLE dropped (id int PRIMARY KEY) USING nvm_vlog;
INSERT INTO was_unlogged SELECT generate_series(1, 100);
INSERT INTO was_logged SELECT generate_series(1, 100);
INSERT INTO emptied SELECT generate_series(1, 100);
INSERT INTO dropped SELECT generate_series(1, 100);
SQL
my @tables = qw(logged u wide counted parts bare was_unlogged was_logged emptied);
my @unlogged = qw(u wide counted part_v was_logged);

sub change
{
	my ($n) = @_;
	sql("UPDATE u SET k = k + 100000, s = s || repeat('x', $n * 50) WHERE id % 7 = $n",
		"DELETE FROM u WHERE id % 11 = $n", "UPDATE u SET s = 'short' WHERE id % 5 = $n",
		"INSERT INTO u SELECT 30000 + $n * 1000 + i, i, 'new' FROM generate_series(1, 500) i",
		"UPDATE wide SET s = repeat('$n', 12000 + id) WHERE id % 3 = $n % 3",
		"UPDATE logged SET v = v + 1", "INSERT INTO counted (s) VALUES ('more')",
		"DELETE FROM parts WHERE id % 13 = $n");
	return;
}

# without what scans see
sub by_index
{
	return sql('SET enable_seqscan = off', 'SET enable_bitmapscan = off',
		'SELECT count(*), sum(k) FROM u WHERE id BETWEEN 100 AND 400', 'SELECT count(*), sum(id) FROM u WHERE k BETWEEN 100100 AND 100400',
		'SELECT count(*), sum(id) FROM generate_series(1, 1000) i, u WHERE u.k = i', 'RESET enable_bitmapscan',
		'SELECT count(*), sum(id) FROM wide WHERE a @> ARRAY[77]');
}

sub same_after
{
	my ($name, $stop) = @_;
	my $before = content(@tables) . by_index();

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$stop->();
	$node->start;
	is(content(@tables) . by_index(), $before, "$name: all is there");
	is_whole($name);
	return;
}

change(1);
same_after('a fast stop', sub { $node->stop('fast') });
$node->check_clean('after a fast stop');
change(2);
same_after('a smart stop', sub { $node->stop('smart') });
is(sql("INSERT INTO counted (s) VALUES ('next') RETURNING id"), 103, 'a sequence goes on');
sql('VACUUM u', 'VACUUM wide', 'VACUUM logged');
change(3);
same_after('after VACUUM', sub { $node->stop });
same_after('once more, without a change', sub { $node->stop });
sql('SELECT nvm.checkpoint()');
change(4);
same_after('with a checkpoint', sub { $node->stop });

# DDL
sql('ALTER TABLE was_unlogged SET LOGGED', 'ALTER TABLE was_logged SET UNLOGGED', 'TRUNCATE emptied',
	'INSERT INTO emptied VALUES (7)', 'DROP TABLE dropped', 'ALTER TABLE counted ADD COLUMN x int DEFAULT 5', 'VACUUM FULL wide');
same_after('DDL', sub { $node->stop });
$node->crash;
$node->start;
is(sql('SELECT count(*) FROM was_unlogged'), 100, 'a table that is logged now outlives a crash');
is(sql('SELECT ' . join(', ', map { "(SELECT count(*) FROM $_)" } @unlogged)), '0|0|0|0|0', 'those that are not are empty');
sql('INSERT INTO u SELECT i, i, repeat(\'u\', i % 200) FROM generate_series(1, 20000) i');
sql("INSERT INTO wide SELECT i, repeat(chr(97 + i % 26), 9000 + i), ARRAY[i, i + 1] FROM generate_series(1, 300) i");
$node->check_clean('filled anew');
same_after('filled anew', sub { $node->stop });

# what nobody has waited for is there, what is open is not
my $before = content('u', 'wide');
my $open = $node->session('BEGIN', 'INSERT INTO u SELECT i, 0, NULL FROM generate_series(100001, 101000) i', 'DELETE FROM u WHERE id < 1000');
sql('SET synchronous_commit = off', 'INSERT INTO bare SELECT generate_series(1, 77)', 'UPDATE logged SET v = 4242 WHERE id = 42');
$node->stop('fast');
$open->drop;
$node->start;
is(content('u', 'wide'), $before, 'an open transaction leaves nothing');
is(sql('SELECT (SELECT count(*) FROM bare), (SELECT v FROM logged WHERE id = 42)'), '77|4242', 'a commit that nobody has waited for is there');
$node->check_clean('an open transaction');

# ---------------------------------------------------------------- 3. memory in a file

my $shm = File::Temp->newdir('nvm_unlogged_XXXXXX', DIR => '/dev/shm');
chmod 0700, $shm;
$node->stop;
$node->set_conf('nvm.memory_directory' => "'$shm'");
$node->start;
is(content('u', 'wide'), $before, 'into memory in a file');
change(5);
same_after('memory that is found', sub { $node->stop });
unlike($node->log_since_start, qr/rebuilding tables in memory/, 'which nothing was read for');
change(6);
same_after('memory that is gone', sub { $node->stop; unlink glob "$shm/*" });
like($node->log_since_start, qr/rebuilding tables in memory/, 'which is rebuilt');
change(7);
same_after('a start that fails', sub { $node->stop; start_fails('memory in a file') });
unlike($node->log_since_start, qr/rebuilding tables in memory/, 'memory is found after that');
change(8);
same_after('a start that fails, and memory that is gone', sub { $node->stop; start_fails('memory in a file'); unlink glob "$shm/*" });
$node->check_clean('memory that is gone');
$node->stop;
$node->set_conf('nvm.memory_directory' => "''");
$node->start;
is_whole('no such directory');

# ---------------------------------------------------------------- 4. the worker alone

sub worker { return sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm log recovery'}); }

my $worker = worker();
is(sql("SELECT pg_terminate_backend($worker, 60000)"), 't', 'the worker is terminated, and ends at once');
ok(!left(), 'and has kept nothing');
unlike($node->log_since_start, qr/kept \d+ rows/, 'nor says so');
wait_until('another worker', sub { worker() !~ /^(?:$worker)?$/ });
sql("INSERT INTO u VALUES (777777, 7, 'newest')");
same_after('after that', sub { $node->stop });
is(sql('SELECT s FROM u WHERE id = 777777'), 'newest', 'with the newest row');

# ---------------------------------------------------------------- 5. prepared transactions

my $file = sql("SELECT relfilenode FROM pg_class WHERE oid = 'counted'::regclass");
my $database = sql('SELECT oid FROM pg_database WHERE datname = current_database()');
$before = content(qw(u wide logged));
sql('BEGIN', "INSERT INTO counted (s) VALUES ('prepared')", 'UPDATE logged SET v = -1 WHERE id = 5', 'SELECT FROM u WHERE id = 3 FOR UPDATE',
	"PREPARE TRANSACTION 'x'");
sql('BEGIN', 'DELETE FROM bare WHERE id = 5', "PREPARE TRANSACTION 'y'");
$node->stop;
like($node->log_since_start, qr/nvm: UNLOGGED table in memory with file number $file of database $database will be empty after the next start.*\n.*A prepared transaction has changed it/, 'the stop names a table that a prepared transaction has changed');
$node->start;
is(content(qw(u wide logged)), $before, 'prepared: others are there');
is(sql('SELECT (SELECT count(*) FROM counted), (SELECT count(*) FROM bare)'), '0|0', 'prepared: those are empty');
$node->fails_with("SET lock_timeout = '100ms'; UPDATE u SET k = 0 WHERE id = 3", qr/lock timeout/, 'prepared: a row that is locked is so still');
is_whole('prepared');
sql("COMMIT PREPARED 'x'", "ROLLBACK PREPARED 'y'");
is(sql('SELECT v FROM logged WHERE id = 5'), -1, 'COMMIT PREPARED has its logged row');
is(sql('SELECT (SELECT count(*) FROM counted), (SELECT count(*) FROM bare)'), '0|0', 'and the tables are empty still');
sql("INSERT INTO counted (s) VALUES ('again')", 'UPDATE u SET k = 0 WHERE id = 3');
same_after('after prepared ones', sub { $node->stop });
$node->check_clean('after prepared ones');

# ---------------------------------------------------------------- 6. stops during a rebuild

# a table that opens late
sql('CREATE UNLOGGED TABLE large (id int PRIMARY KEY, s text) USING nvm_vlog',
	"INSERT INTO large SELECT i, repeat('l', 300) FROM generate_series(1, 40000) i",
	'CREATE UNLOGGED TABLE small (id int PRIMARY KEY, s text) USING nvm_vlog', "INSERT INTO small SELECT i, 's' FROM generate_series(1, 50) i");
push @tables, 'large', 'small';

# stop the server while the processes stand at a failpoint
sub stop_amid
{
	my ($place) = @_;
	my $postmaster = $node->{_pid};
	my @pids = $node->log_since_start =~ /failpoint $place hit, pid (\d+)/g;

	kill 'INT', $postmaster;
	wait_until('the stop', sub { $node->log_since_start =~ /received fast shutdown request/ });
	wait_until('it ends', sub {
		NvmTest::continue_process($_) foreach $node->log_since_start =~ /failpoint $place hit, pid (\d+)/g;
		!-e $node->data_dir . '/postmaster.pid' });
	$node->_update_pid(0);
	return;
}

sub start_amid
{
	my ($place) = @_;
	failpoint("$place:stop:1");
	$node->start;
	wait_until("$place is reached", sub { $node->log_since_start =~ /failpoint $place hit/ });
	failpoint('');
	return;
}

my $all = content(@tables) . by_index();
foreach my $place (qw(rebuild-read rebuild-collect rebuild-decided))
{
	$node->stop if defined $node->{_pid};
	start_amid($place);
	stop_amid($place);
	ok(lists() == 1 && files() > 4, "$place: what was kept is there still");
	$node->start;
	is(content(@tables) . by_index(), $all, "a stop at $place: all is there");
	is_whole($place);
}
foreach my $stop (1 .. 2)
{
	$node->stop;
	start_amid('rebuild-blocks');
	wait_until('small tables open', sub { sql('SELECT tables >= 2 FROM nvm.log_recovery') eq 't' });
	is(sql("SELECT count(*) FROM small"), 49 + $stop, 'a table is open');
	sql("INSERT INTO small VALUES (100 + $stop, 'amid')", "UPDATE small SET s = 'changed' WHERE id = $stop",
		"CREATE UNLOGGED TABLE made$stop (id int) USING nvm_vlog", "INSERT INTO made$stop VALUES ($stop)");
	push @tables, "made$stop";
	$all = content('small', "made$stop");
	stop_amid('rebuild-blocks');
	like($node->log_since_start, qr/nvm: kept \d+ rows.*\n.*Those of [1-9]\d* tables that were not rebuilt yet stay/, 'some tables are kept as they were');
}
$node->start;
is(content('small', 'made2'), $all, 'a table that was open has its changes');
is(sql("SELECT (SELECT count(*) FROM large), (SELECT min(s) FROM large WHERE id = 777) = repeat('l', 300), (SELECT id FROM made1)"), '40000|t|1', 'and one that was not has its rows');
is_whole('two stops amid');
same_after('after that', sub { $node->stop });
$node->check_clean('stops during a rebuild');

# another worker goes on with what the first one has not opened
$before = content(@tables);
$node->stop;
start_amid('rebuild-blocks');
wait_until('small tables open', sub { sql('SELECT tables >= 2 FROM nvm.log_recovery') eq 't' });
$worker = worker();
sql("SELECT pg_terminate_backend($worker)", "INSERT INTO small VALUES (500, 'meanwhile')", 'DELETE FROM small WHERE id = 500');
wait_until('another worker', sub {
	NvmTest::continue_process($_) foreach $node->log_since_start =~ /failpoint rebuild-blocks hit, pid (\d+)/g;
	worker() !~ /^(?:$worker)?$/ });
is(content(@tables), $before, 'a worker that is terminated amid a rebuild: the next one has all the same');
is_whole('the next worker');

# a death while tables open: those that are closed open, and are empty
$node->stop;
start_amid('rebuild-blocks');
wait_until('small tables open', sub { sql('SELECT tables >= 2 FROM nvm.log_recovery') eq 't' });
my $opened = $node->times_opened;
my $victim = $node->session;
kill 'KILL', $victim->pid;
wait_until('it dies', sub {
	NvmTest::continue_process($_) foreach $node->log_since_start =~ /failpoint rebuild-blocks hit, pid (\d+)/g;
	$node->times_opened > $opened });
$victim->drop;
$node->wait_reopened($opened);
is(sql('SELECT (SELECT count(*) FROM large), (SELECT count(*) FROM small), (SELECT count(*) FROM logged)'), '0|0|1000', 'a death amid a rebuild: UNLOGGED tables are empty, and open');
is_whole('a death amid a rebuild');
sql("INSERT INTO large SELECT i, 'l' FROM generate_series(1, 5000) i", "INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");
same_after('filled after a death', sub { $node->stop });

# a server that has no memory for them, for a while
$all = content(@tables) . by_index();
$node->stop;
$node->set_conf('nvm.memory_limit' => 0);
$node->start;
$node->fails_with('SELECT count(*) FROM u', qr/./, 'without memory');
restart();
$node->stop;
$node->set_conf('nvm.memory_limit' => '512MB');
$node->start;
is(content(@tables) . by_index(), $all, 'starts without memory lose nothing');
is_whole('without memory');

# ---------------------------------------------------------------- 7. a crash at each step

foreach my $place (qw(keep-data-write keep-data-sync keep-walked keep-sync keep-rename keep-renamed keep-remove))
{
	# so that there is something to be removed
	if ($place eq 'keep-remove')
	{
		$node->stop;
		failpoint("$place:crash:1");
		$node->start;
	}
	else
	{
		failpoint("$place:crash:1");
		kill 'INT', $node->{_pid};
	}
	$node->wait_crashed;
	like($node->log_since_start, qr/failpoint $place hit/, "$place: a crash");
	failpoint('');
	$node->start;
	is(sql('SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM large), (SELECT count(*) FROM logged)'), '0|0|1000', "$place: UNLOGGED tables are empty, others are not");
	is_whole($place);
	$node->check_clean($place);
	sql("INSERT INTO large SELECT i, 'l' FROM generate_series(1, 5000) i", "INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");
}
foreach my $place (qw(keep-pass-on keep-passed-on))
{
	$node->stop;
	start_amid('rebuild-read');
	failpoint("$place:crash:1");
	kill 'INT', $node->{_pid};
	wait_until('the stop', sub { $node->log_since_start =~ /received fast shutdown request/ });
	NvmTest::continue_process($_) foreach $node->log_since_start =~ /failpoint rebuild-read hit, pid (\d+)/g;
	$node->wait_crashed;
	like($node->log_since_start, qr/failpoint $place hit/, "$place: a crash");
	failpoint('');
	$node->start;
	is(sql('SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM large), (SELECT count(*) FROM logged)'), '0|0|1000', "$place: UNLOGGED tables are empty, others are not");
	is_whole($place);
	$node->check_clean($place);
	sql("INSERT INTO large SELECT i, 'l' FROM generate_series(1, 5000) i", "INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");
}

# ---------------------------------------------------------------- 8. errors

foreach my $place (qw(keep-data-write keep-data-sync keep-sync keep-rename))
{
	failpoint("$place:error:1");
	$node->stop;
	like($node->log_since_start, qr/nvm: UNLOGGED tables in memory will be empty after the next start: .*failpoint/, "$place: the stop tells of an error");
	failpoint('');
	$node->start;
	is(sql('SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM large), (SELECT count(*) FROM logged)'), '0|0|1000', "$place: UNLOGGED tables are empty, others are not");
	like($node->log_since_start, qr/nvm: UNLOGGED tables in memory are empty/, "$place: the start says so");
	is_whole($place);
	sql("INSERT INTO large SELECT i, 'l' FROM generate_series(1, 5000) i", "INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");
}

# amid a rebuild: tables that are closed have what they had
$node->stop;
start_amid('rebuild-blocks');
wait_until('small tables open', sub { sql('SELECT tables >= 2 FROM nvm.log_recovery') eq 't' });
sql("INSERT INTO small VALUES (600, 'amid')");
failpoint('keep-walked:error:1');
stop_amid('rebuild-blocks');
like($node->log_since_start, qr/nvm: UNLOGGED tables in memory will be empty after the next start: .*failpoint/, 'amid a rebuild the stop tells of an error');
failpoint('');
$node->start;
is(sql('SELECT (SELECT count(*) FROM small), (SELECT count(*) FROM large), (SELECT count(*) FROM logged)'), '0|5000|1000', 'an error amid a rebuild: a table that was open is empty, one that was not has its rows');
is_whole('an error amid a rebuild');
$node->check_clean('an error amid a rebuild');

# the device: the stop writes to files of the log
$node->stop;
my $faults = PostgreSQL::Test::Utils::tempdir();
$ENV{LD_PRELOAD} = dirname(abs_path($0)) . '/../../tools/nvm_sync.so';
$ENV{NVM_SYNC_DIR} = $faults;
$node->start;
foreach my $fault (['log-full', qr/No space left on device/], ['log-broken', qr/Input\/output error/])
{
	sql('SELECT nvm.checkpoint()', 'TRUNCATE u', "INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");
	append_to_file("$faults/$fault->[0]", '');
	$node->stop;
	like($node->log_since_start, qr/nvm: UNLOGGED tables in memory will be empty after the next start: .*$fault->[1]/, "$fault->[0]: the stop says so");
	unlink "$faults/$fault->[0]";
	$node->start;
	is(sql('SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM logged)'), '0|1000', "$fault->[0]: UNLOGGED tables are empty, others are not");
	is_whole($fault->[0]);
}

# the directory alone, whose names are to be durable: no PANIC, which would empty all UNLOGGED tables
$node->stop;
$node->set_conf('fsync' => 'on');
$node->start;
sql('TRUNCATE u', "INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i", 'TRUNCATE part_h', 'INSERT INTO part_h SELECT generate_series(1000, 1099)');
append_to_file("$faults/log-broken", '*/pg_nvm_log');
my $opened_before = $node->times_opened;
$node->fails_with('SELECT nvm.checkpoint()', qr/checkpoint of tables in memory has failed: could not fsync file "pg_nvm_log": Input\/output error/, 'a directory that cannot be synced: no checkpoint');
is(sql('SELECT count(*) FROM u') . ', ' . ($node->times_opened - $opened_before), '3000, 0', 'and the server goes on');
unlink "$faults/log-broken";
sql('SELECT nvm.checkpoint()');
append_to_file("$faults/log-broken", '*/pg_nvm_log');
$node->stop;
like($node->log_since_start, qr/nvm: UNLOGGED tables in memory will be empty after the next start: could not fsync file "pg_nvm_log": Input\/output error.*database system is shut down/s, 'nor are rows kept, and the stop is a clean one');
unlink "$faults/log-broken";
$node->start;
is(sql('SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM logged), (SELECT count(*) FROM part_h)'), '0|1000|100', 'UNLOGGED tables in memory are empty, others are not');
is_whole('a directory that cannot be synced');
$node->check_clean('a directory that cannot be synced');
$node->stop;
$node->set_conf('fsync' => 'off');
delete $ENV{LD_PRELOAD};
$node->start;
sql("INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");

# damage: all tables wait for it, and come back when the file does
$all = content(@tables) . by_index();
my $what = qr/If (?:it|file "[0-9a-f]{8}\.kept") is removed, UNLOGGED tables in memory are empty after the next start/;
foreach my $case (
	[ 'a list with a flipped bit', sub { (lists())[0] }, sub { substr($_[0], 60, 1) ^= "\1"; $_[0] }, qr/wrong checksum/ ],
	[ 'a short list', sub { (lists())[0] }, sub { substr($_[0], 0, 70) }, qr/impossible length/ ],
	[ 'rows with a flipped bit', sub { (files())[0] }, sub { substr($_[0], 4200, 1) ^= "\1"; $_[0] }, qr/checksum/ ],
	[ 'a short file', sub { (files())[0] }, sub { substr($_[0], 0, 4200) }, qr/./ ],
	[ 'a file that is missing', sub { (files())[0] }, undef, qr/No such file/ ])
{
	my ($name, $which, $damage, $re) = @$case;
	$node->stop;
	my $path = $which->();
	my $bytes = slurp_file($path);
	unlink $path;
	if ($damage)
	{
		open(my $fh, '>:raw', $path) or die $!;
		print $fh $damage->(my $copy = $bytes);
		close $fh;
		chmod 0600, $path;
	}
	$node->start;
	my ($base) = $path =~ m,([^/]+)$,;
	$node->fails_with('SELECT count(*) FROM logged', qr/tables in memory are not available.*\n.*could not be rebuilt.*\Q$base\E.*$re.*$what/s, "$name: the error names it");
	$node->stop;
	open(my $fh, '>:raw', $path) or die $!;
	print $fh $bytes;
	close $fh;
	chmod 0600, $path;
	$node->start;
	# a list that was damaged could not be passed on to this run
	if ($name =~ /list/)
	{
		is(sql('SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM logged)'), '0|1000', "$name: of another run, when it is back");
		like($node->log_since_start, qr/UNLOGGED tables in memory are empty/, "$name: which the start says");
		sql("INSERT INTO large SELECT i, 'l' FROM generate_series(1, 5000) i", "INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");
		$all = content(@tables) . by_index();
	}
	else
	{
		is(content(@tables) . by_index(), $all, "$name: with the file all is there");
	}
	is_whole($name);
}
$node->stop;
unlink((files())[0]);
$node->start;
$node->fails_with('SELECT count(*) FROM logged', $what, 'a file is lost for good');
$node->stop;
unlink lists();
$node->start;
is(sql('SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM large), (SELECT count(*) FROM logged)'), '0|0|1000', 'without the list UNLOGGED tables are empty, and others are there');
is_whole('a file that is lost');

# a walsender that goes on, and one that writes when it is too late
sub walsender
{
	return IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres') . ' replication=database', map { ('-c', $_) } @_ ],
		'<', File::Spec->devnull, '>', File::Spec->devnull, '2>', File::Spec->devnull);
}

$node->stop;
$node->set_conf('wal_level' => 'replica', 'max_wal_senders' => 3);
$node->start;
sql("INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");
my $walsender = walsender('BEGIN', "INSERT INTO u VALUES (900000, 0, 'w')", "DO 'BEGIN RAISE LOG ''walsender has written''; END'", 'SELECT pg_sleep(600)');
wait_until('the walsender', sub { $node->log_since_start =~ /walsender has written/ });
$node->stop;
$walsender->finish;
like($node->log_since_start, qr/UNLOGGED tables in memory will be empty after the next start.*\n.*A walsender goes on/, 'a walsender that goes on is told');
$node->start;
is(sql('SELECT count(*) FROM u'), 0, 'and the tables are empty');
is_whole('a walsender');
sql("INSERT INTO u SELECT i, i, 'u' FROM generate_series(1, 3000) i");
failpoint('keep-walked:stop:1');
$walsender = walsender("DO 'BEGIN RAISE LOG ''walsender waits''; PERFORM pg_sleep(3); RAISE LOG ''walsender writes''; END'", "INSERT INTO u VALUES (900000, 0, 'w')");
wait_until('the walsender waits', sub { $node->log_since_start =~ /walsender waits/ });
kill 'INT', $node->{_pid};
wait_until('it has come too late', sub { $node->log_since_start =~ /keep-walked hit.*walsender writes.*(?:ERROR:.*being stopped|FATAL)/s });
like($node->log_since_start, qr/ERROR:  cannot change nvm tables in memory while the server is being stopped/, 'a walsender writes nothing when rows are being kept');
NvmTest::continue_process($_) foreach $node->log_since_start =~ /failpoint keep-walked hit, pid (\d+)/g;
wait_until('the stop', sub { !-e $node->data_dir . '/postmaster.pid' });
$node->_update_pid(0);
$walsender->finish;
failpoint('');
$node->start;
is(sql('SELECT count(*), max(id) FROM u'), '3000|3000', 'and the others are there');
is_whole('another walsender');

# ---------------------------------------------------------------- 9. directories, nvm_logdump

mkdir $node->data_dir . '/pg_nvm_log_b', 0700;
$node->stop;
$node->set_conf('nvm.log_directories' => "'pg_nvm_log, pg_nvm_log_b'");
$node->start;
sql("INSERT INTO large SELECT i, 'l' FROM generate_series(1, 5000) i", "INSERT INTO wide SELECT i, repeat('w', 9000), '{}' FROM generate_series(1, 10) i",
	"INSERT INTO counted (s) SELECT 'c' FROM generate_series(1, 10)");
same_after('two directories', sub {
	$node->stop;
	my %in = map { m,/(pg_nvm_log\w*)/,; ($1 => 1) } files();
	is(join(' ', sort keys %in), 'pg_nvm_log pg_nvm_log_b', 'files are in both directories');
	my ($stdout, $stderr) = run_command([ 'nvm_logdump', '--rows', map { $node->data_dir . "/$_" } qw(pg_nvm_log pg_nvm_log_b) ]);
	like($stdout, qr/^UNLOGGED tables .*: incarnation \d+, \d+ files\n  file [0-9a-f]{8}-[0-9a-f]{8}-[0-9a-f]{16}\.kept, \d+ bytes\n.*storage \d+, creation \d+: \d+ rows/m, 'nvm_logdump prints what was kept');
	is($stderr, '', 'and finds nothing wrong');
	my $damaged = (files())[0];
	copy($damaged, "$damaged.aside") or die;
	open(my $fh, '+<:raw', $damaged) or die;
	seek($fh, 4200, 0);
	print $fh 'x';
	close $fh;
	($stdout, $stderr) = run_command([ 'nvm_logdump', map { $node->data_dir . "/$_" } qw(pg_nvm_log pg_nvm_log_b) ]);
	like($stderr, qr/checksum/, 'nor does it miss damage');
	move("$damaged.aside", $damaged) or die;
});
$node->check_clean('two directories');

# a list that is damaged, in a directory that is looked at first: the one that is whole counts,
# if it is of the last run
sub store
{
	my ($path, $bytes) = @_;
	open(my $fh, '>:raw', $path) or die "$path: $!";
	print $fh $bytes;
	close $fh;
	chmod 0600, $path;
	return;
}

my $older;
my $damage = sub {
	my ($whole) = @_;
	my ($list) = lists();
	my $other = $list =~ s,/pg_nvm_log/,/pg_nvm_log_b/,r;
	my $bytes = slurp_file($list);
	die "$list is not in the first directory" if $other eq $list;
	store($other, $whole // $bytes);
	store($list, substr($bytes, 0, 60) . (substr($bytes, 60, 1) ^ "\1") . substr($bytes, 61));
	return $bytes;
};
same_after('a damaged list in another directory', sub { $node->stop; $older = $damage->(); });
same_after('the same, and a start that fails', sub { $node->stop; $damage->(); start_fails('a damaged list in another directory'); });
# the list of an earlier run does not count, so the damaged one may
$node->stop;
$damage->($older);
$node->start;
$node->fails_with('SELECT count(*) FROM logged', qr,could not be rebuilt.*pg_nvm_log/[0-9a-f]{8}\.kept.*wrong checksum,s, 'a damaged list, and one of an earlier run: the error names the damaged one');
$node->stop;
unlink lists();
$node->start;
is(sql('SELECT (SELECT count(*) FROM large), (SELECT count(*) FROM logged)'), '0|1000', 'without both UNLOGGED tables are empty, and others are there');
is_whole('a damaged list, and one of an earlier run');
$node->check_clean('damaged lists');
$node->stop;

# ---------------------------------------------------------------- 10. runs without the tables

# The server runs without the pool, or the library, behind a clean stop.  As those of heap, the rows
# stay unless PostgreSQL's recovery has emptied UNLOGGED relations: the witness tells.
$node = NvmTest->start_new('without', conf => <<CONF, sql => <<SQL);
autovacuum = off
CONF
CREATE TABLE logged (id int PRIMARY KEY, v int) USING nvm_vlog;
INSERT INTO logged SELECT i, 0 FROM generate_series(1, 1000) i;
CREATE TABLE durable (id int PRIMARY KEY) USING nvm;
INSERT INTO durable SELECT generate_series(1, 200);
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, k int, s text) USING nvm_vlog;
CREATE INDEX u_hash ON u USING hash (k);
CREATE INDEX u_ours ON u USING nvm_btree (k);
CREATE UNLOGGED TABLE h (id int PRIMARY KEY) USING heap;
SQL
my $logs = $node->data_dir . '/pg_nvm_log';

sub refill
{
	$node->poll_query_until('postgres', "SELECT size > 0 FROM pg_stat_file('base/1/9999', true)") or die 'no witness';
	sql('TRUNCATE u, h', q{INSERT INTO u SELECT i, i % 50, 's' || i FROM generate_series(1, 2000) i}, 'INSERT INTO h SELECT generate_series(1, 300)');
	return;
}

sub by_all
{
	return sql('SELECT count(*), sum(k) FROM u', 'SET enable_seqscan = off', 'SET enable_bitmapscan = off',
		'SELECT count(*) FROM u WHERE id > 0', 'SELECT count(*) FROM u WHERE k = 7', 'DROP INDEX u_hash', 'SELECT count(*) FROM u WHERE k = 7',
		'CREATE INDEX u_hash ON u USING hash (k)', 'SELECT count(*) FROM h WHERE id > 0',
		'SELECT (SELECT count(*) FROM logged), (SELECT count(*) FROM durable)');
}
my $there = join "\n", '2000|49000', 2000, 40, 40, 300, '1000|200';
my $empty = join "\n", '0|', 0, 0, 0, 0, '1000|200';

# a start that refuses the pool, and what heap does meanwhile; end: how that run ends
sub refused
{
	my ($name, $re, $end) = @_;
	$node->start;
	like($node->log_since_start, $re, "$name: the pool is refused");
	is(sql('SELECT status FROM nvm.pool', 'INSERT INTO h VALUES (0)', 'DELETE FROM h WHERE id = 0 RETURNING id'), "refused\n0", "$name: heap goes on");
	$node->${ \($end // 'stop') };
	return;
}

sub with_library
{
	my ($is_with) = @_;
	$node->set_conf(shared_preload_libraries => $is_with ? "'pg_nvm'" : "''");
	return;
}

sub without_library
{
	my ($end) = @_;
	with_library(0);
	$node->start;
	sql('INSERT INTO h VALUES (0)', 'DELETE FROM h WHERE id = 0');
	$node->$end;
	with_library(1);
	return;
}

sub comes_back
{
	my ($name, $what) = @_;
	$node->start if !defined $node->{_pid};
	is(by_all(), $what // $there, $name . ($what ? ': empty, as UNLOGGED tables of heap are' : ': all is there'));
	is_whole($name);
	$node->check_clean($name);
	return;
}

my $missing = qr/could not open log directory "pg_nvm_log": No such file or directory/;
my %without = (
	'a directory that is missing' => sub { rename($logs, "$logs.away") or die; refused($_[0], $missing, $_[1]); rename("$logs.away", $logs) or die; },
	'a directory that is read-only' => sub { chmod(0500, $logs) or die; refused($_[0], qr/could not begin the log in directory "pg_nvm_log": Permission denied/, $_[1]); chmod(0700, $logs) or die; },
	'a disk that is full' => sub {
		local @ENV{qw(LD_PRELOAD NVM_SYNC_DIR)} = (dirname(abs_path($0)) . '/../../tools/nvm_sync.so', $faults);
		append_to_file("$faults/log-full", '');
		refused($_[0], qr/could not begin the log in directory "pg_nvm_log": No space left on device/, $_[1]);
		unlink "$faults/log-full" or die;
	},
	'a pool that is not there' => sub { chmod(0644, $node->pool_file) or die; refused($_[0], qr/NVM pool/, $_[1]); chmod(0600, $node->pool_file) or die; },
	'no library' => sub { without_library($_[1] // 'stop'); });
foreach my $name (sort keys %without)
{
	my $run = $without{$name};

	refill();
	$node->stop;
	$run->($name);
	$run->("$name, twice");
	comes_back($name);
	refill();
	$node->stop;
	$run->($name);
	start_fails("$name, then");
	comes_back("$name, then a start that fails");
	# a recovery without us empties indexes and heap, and the server is shut down cleanly then
	refill();
	$node->stop;
	$run->("$name, a crash", 'crash');
	$run->("$name, a recovery");
	comes_back("$name, with a recovery", $empty);
	refill();
	$node->stop;
	$run->("$name, a crash of which we know", 'crash');
	comes_back("$name, with a crash", $empty);
}

# a start that dies before anything has happened
refill();
$node->stop;
rename($logs, "$logs.away") or die;
$node->dies_at_start('bypass-noted', 'a start without the directory that dies');
rename("$logs.away", $logs) or die;
comes_back('a start without the directory that dies');

# pg_resetwal makes a clean shutdown of a crash
refill();
$node->stop;
without_library('crash');
command_ok(['pg_resetwal', '-f', $node->data_dir], 'pg_resetwal after a crash without the library');
$node->start;
$node->fails_with('SELECT count(*) FROM u', qr/rows of nvm table "u" are lost/, 'the rows are lost, and an access says so');
is(sql('SELECT (SELECT count(*) FROM logged), (SELECT count(*) FROM durable)'), '1000|200', 'and no others');
sql('TRUNCATE u, h');
sql('REINDEX DATABASE postgres');
is_whole('pg_resetwal');
$node->check_clean('pg_resetwal');

# of several directories
mkdir "${logs}_b", 0700;
$node->stop;
$node->set_conf('nvm.log_directories' => "'pg_nvm_log, pg_nvm_log_b'");
$node->start;
refill();
$node->stop;
rename("${logs}_b", "${logs}_b.away") or die;
refused('one of two directories', qr/could not open log directory "pg_nvm_log_b": No such file or directory/);
rename("${logs}_b.away", "${logs}_b") or die;
comes_back('one of two directories');

# who asks meanwhile that the log be given up has that done
refill();
$node->stop;
rename("${logs}_b", "${logs}_b.away") or die;
$node->start;
sql('SELECT nvm.reset_log()');
$node->stop;
$node->start;
like($node->log_since_start, qr/the log of tables in memory was given up/, 'nvm.reset_log(), with a directory that is missing');
$node->fails_with('SELECT count(*) FROM logged', qr/rows of nvm table "logged" are lost/, 'rows of the log are lost');
is(sql('SELECT (SELECT count(*) FROM u), (SELECT count(*) FROM durable), (SELECT count(*) FROM h)'), '2000|200|300', 'and no others');
$node->stop;
done_testing();

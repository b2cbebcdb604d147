# Copyright (c) 2026, pg_nvm contributors

# The log cannot be written.  Once: a new file goes on, and nobody notices.  For a while: who
# wants to commit gets an error that names the log, who has committed waits, everything else
# goes on; and when the device is back everything that was acknowledged is in the log.

use strict;
use warnings;

use NvmLog;
use NvmMemory;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = PostgreSQL::Test::Utils::tempdir();

my $node = NvmMemory::start_dram('failures', sync_dir => $dir, conf => <<CONF, sql => <<SQL);
nvm_dram.log = on
fsync = on
autovacuum = off
CONF
CREATE TABLE t (id int PRIMARY KEY, v int) USING nvm_dram;
CREATE TABLE h (id int) USING heap;
CREATE TABLE p (id int) USING nvm;
INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i;
SQL
my $log = $node->data_dir . '/pg_nvm_log';
my $storage = sql("SELECT id || '/' || creation FROM nvm.relations WHERE relation = 't'::regclass");

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub touch_file { append_to_file("$dir/$_[0]", ''); return; }
sub files { return scalar(() = glob "$log/*.log"); }

# The log is whole, and has the rows of the table and no others.
sub agrees
{
	my ($name) = @_;
	# what nobody has waited for, too
	sql('INSERT INTO t VALUES (0, 0)');
	sql('DELETE FROM t WHERE id = 0');
	my $dump = NvmLog::dump_of($log);
	my @rows = map { NvmLog::ints_of($_, 2) } values %{ NvmLog::live_rows($dump)->{$storage} };

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($dump->{problem}, '', "$name: the log is whole");
	return is(join(' ', sort @rows), join(' ', sort split(/\n/, sql('SELECT id, v FROM t'))), "$name: it has what the table has");
}

# ---------------------------------------------------------------- once

foreach my $how ('log-sync', 'log-write')
{
	my $before = files();
	sql('UPDATE t SET v = v + 1');
	touch_file($how);
	sql('UPDATE t SET v = v + 1 WHERE id <= 10; INSERT INTO h VALUES (1)');
	ok(!-e "$dir/$how", "$how: it has failed");
	is(files(), $before + 1, "$how: a new file goes on");
	agrees($how);
}

# with others at the same time, who wait for the same round
my $load = $node->start_load(clients => 4, transactions => 200, sql => sub {
	my ($client, $n) = @_;
	return 'INSERT INTO t VALUES (' . (1000 * ($client + 1) + $n) . ", $n);";
});
foreach my $how (('log-sync', 'log-write') x 3)
{
	touch_file($how);
	NvmTest::wait_until("$how under load", sub { !-e "$dir/$how" });
}
$load->finish;
unlink("$dir/log-sync", "$dir/log-write");
$load->check('postgres', 'SELECT id / 1000 - 1, v FROM t WHERE id >= 1000', name => 'failures under load');
agrees('failures under load');

# ---------------------------------------------------------------- for a while

my $rows = sql('SELECT count(*) FROM t');
my $committed = $node->session;
my $reader = $node->session('SELECT count(*) FROM t');
my $before = files();
touch_file('log-dead');
$committed->send('UPDATE t SET v = 500 WHERE id = 1 RETURNING v');
NvmTest::wait_until('an error of the device', sub { $node->log_since_start =~ /LOG:  nvm: could not write the log of tables in memory/ });
like($node->log_since_start, qr/could not write the log of tables in memory: .*\n.*DETAIL:  Step "\w+" on file ".*pg_nvm_log.*\.log" failed/, 'the log says what failed');
$node->fails_with("UPDATE t SET v = 501 WHERE id = 2", qr/could not write the log of tables in memory: .*HINT:  .*nvm\.log_directories/s, 'a commit is an error');
$node->fails_with("BEGIN; UPDATE t SET v = 501 WHERE id = 2; INSERT INTO p VALUES (1); COMMIT", qr/could not write the log/, 'so is one with the pool');
$node->fails_with("BEGIN; INSERT INTO h VALUES (99); UPDATE t SET v = 501 WHERE id = 2; COMMIT", qr/could not write the log/, 'and one with heap');
$node->fails_with("SET synchronous_commit = off; UPDATE t SET v = 501 WHERE id = 2", qr/could not write the log/, 'and one that would not wait');
is($reader->sql('BEGIN; SELECT v FROM t WHERE id = 1'), '500', 'who was there first has committed');
is($reader->sql("COMMIT; SELECT count(*) FROM t"), $rows, 'reading goes on');
like($node->log_since_start, qr/WARNING:  what the transaction has read may be lost by a crash of the machine/, 'with a warning');
$node->fails_with("SELECT v FROM t WHERE id = 1; INSERT INTO h VALUES (99)", qr/could not write the log/, 'what rests on it is not written to heap');
sql('INSERT INTO h VALUES (2)');
sql('INSERT INTO p VALUES (2)');
is(sql('SELECT (SELECT count(*) FROM h WHERE id = 2), (SELECT count(*) FROM p)'), '1|1', 'heap and pool go on');
is($node->psql('postgres', 'BEGIN; UPDATE t SET v = 502; ROLLBACK'), 0, 'so does a rollback');
is(sql('SELECT state FROM pg_stat_activity WHERE pid = ' . $committed->pid), 'active', 'who has committed waits');
cmp_ok(files(), '<=', $before + 1, 'no files pile up');

unlink("$dir/log-dead") or die;
is($committed->sql("SELECT 'acknowledged'"), "500\nacknowledged", 'the device is back: the commit is acknowledged');
sql('UPDATE t SET v = 503 WHERE id = 2');
is(sql('SELECT id, v FROM t WHERE id <= 3 ORDER BY id'), "1|500\n2|503\n3|4", 'commits go on, and what failed has left nothing');
is(sql('SELECT count(*) FROM h WHERE id = 99'), '0', 'nor in heap');
agrees('the device is back');

# ---------------------------------------------------------------- the directory is gone

{
	my $bad = "$log.away";
	my $wait = $node->session;
	touch_file('log-sync');
	rename($log, $bad) or die;
	$wait->send('UPDATE t SET v = 600 WHERE id = 3 RETURNING v');
	NvmTest::wait_until('an error', sub { $node->log_since_start =~ /Step "make" on file/ });
	$node->fails_with('UPDATE t SET v = 601 WHERE id = 4', qr/could not write the log of tables in memory: No such file or directory/, 'without the directory a commit is an error');
	rename($bad, $log) or die;
	is($wait->sql("SELECT 'acknowledged'"), "600\nacknowledged", 'until it is back');
	agrees('the directory is back');
}

# files that have nothing are replaced; all is there at the end
sql('SET synchronous_commit = off; UPDATE t SET v = v + 1');
$node->check_clean('in the end');
my $there = sql('SELECT count(*), sum(v) FROM t');
$node->stop;
my $dump = NvmLog::dump_of($log);
my @v = map { (split /\|/, NvmLog::ints_of($_, 2))[1] } values %{ NvmLog::live_rows($dump)->{$storage} };
my $sum = 0;
$sum += $_ foreach @v;
is(@v . "|$sum", $there, 'a clean stop leaves everything in the log');
done_testing();

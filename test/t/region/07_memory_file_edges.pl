# Copyright (c) 2026, pg_nvm contributors

# nvm.memory_directory where it is tight: a directory on a disk, that does not exist, of two
# servers, with somebody else's file; a file system that is too small, or becomes full, for rows
# and for the log's buffers; a log whose files are missing or damaged while the memory is there; a
# death at each step of making, opening and growing the file; huge pages.

use strict;
use warnings;

use File::Basename;
use NvmMemory;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my ($node, $file) = NvmMemory::start_kept('edges', conf => "max_connections = 60\n", sql => <<SQL);
CREATE TABLE v (id int PRIMARY KEY, t text) USING nvm_vlog;
CREATE TABLE p (id int) USING nvm;
INSERT INTO v SELECT i, 'v' FROM generate_series(1, 1000) i;
INSERT INTO p VALUES (1);
SQL
my $memory = dirname($file);
my $data = $node->data_dir;

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub restart { return $node->stop_and_start; }

sub set { $node->append_conf('postgresql.conf', $_[0]); return; }

sub is_kept
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return NvmMemory::is_kept($node, $_[0]);
}

# The pool is refused, with this reason; the next start, with the setting as it was, has all.
sub is_refused
{
	my ($why, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->fails_with('SELECT FROM p', $why, "$name is refused");
	is($node->safe_psql('postgres', 'SELECT 1'), 1, "$name: PostgreSQL is there");
	return;
}

# ---- directories

my $disk = NvmTest::disk_dir($node);
my $refused = 0;
SKIP:
{
	skip 'no directory on a disk', 4 if NvmTest::is_tmpfs($disk);
	mkdir "$disk/memory";
	foreach my $dir ("$disk/memory", "$disk/memory_new")
	{
		set("nvm.memory_directory = '$dir'");
		restart();
		is_refused(qr/is not on tmpfs or hugetlbfs.*loss of power would leave a torn copy/s, 'a directory on a disk');
		ok(!-e "$dir/pg_nvm_memory", 'and nothing is made there');
	}
}
set("nvm.memory_directory = '$memory/not/there'");
restart();
is_refused(qr/could not access nvm.memory_directory/, 'a directory that cannot be made');
set("nvm.memory_directory = '$memory'");
restart();
is_kept('the directory as it was');
is(sql('SELECT count(*) FROM v'), 1000, 'with all rows');

# another server with the same directory
my $other = NvmTest->start_new('other', extension => 0,
	conf => "nvm.memory_directory = '$memory'\nnvm.memory_limit = 128MB\n");
my (undef, undef, $err) = $other->psql('postgres', 'CREATE EXTENSION pg_nvm; CREATE TABLE v (id int) USING nvm_vlog');
like($err, qr/file "\Q$file\E" is in use by another server.*another directory for each server/s, 'two servers: the second is refused');
sql("INSERT INTO v VALUES (1001, 'v')");
restart();
is_kept('the first one');
$other->append_conf('postgresql.conf', "nvm.memory_directory = '${memory}_other'");
$other->restart;
$other->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS pg_nvm; CREATE TABLE v (id int) USING nvm_vlog; INSERT INTO v VALUES (5)');
is($other->safe_psql('postgres', 'SELECT * FROM v'), 5, 'a directory of its own');
$other->stop;

# a directory that others may write, and a file with two names
chmod 0777, $memory;
restart();
is_refused(qr/has owner \d+ and permissions 0777: others could replace what is in it/, 'a directory for all');
chmod 0700, $memory;
link $file, "$memory/second";
restart();
is_refused(qr/has more than one name/, 'a file with two names');
unlink "$memory/second";
restart();
is_kept('the directory for us, and one name');

# a file that is not ours
$node->stop;
chmod 0640, $file;
$node->start;
is_refused(qr/has owner \d+ and permissions 0640 instead of \d+ and 0600/, 'a file for others');
chmod 0600, $file;
rename $file, "$file.moved";
symlink "$file.moved", $file;
restart();
is_refused(qr/could not open file/, 'a symbolic link');
unlink $file;
mkdir $file;
restart();
is_refused(qr/could not open file/, 'a directory in its place');
rmdir $file;
rename "$file.moved", $file;
restart();
is_kept('the file as it was');

# ---- the log beside it

$node->stop;
rename "$data/pg_nvm_log", "$data/pg_nvm_log.moved";
$node->start;
is_refused(qr/could not read log file.*are kept for the next start/s, 'a log that is not there');
rename "$data/pg_nvm_log.moved", "$data/pg_nvm_log";
restart();
is_kept('the log is there again');
is(sql('SELECT count(*) FROM v'), 1001, 'and so are all rows');

# flips a bit of the first block of the last file
sub flip
{
	my ($last) = sort { $b cmp $a } glob "$data/pg_nvm_log/*.log";
	open(my $fh, '+<:raw', $last) or die;
	seek($fh, 4096 + 50, 0);
	read($fh, my $byte, 1);
	seek($fh, 4096 + 50, 0);
	print $fh chr(ord($byte) ^ 1);
	close($fh) or die;
	return;
}

# one block: is it the end, of an earlier time?
sql("INSERT INTO v SELECT i, 'w' FROM generate_series(2001, 2099) i");
$node->stop;
flip();
$node->start;
is_refused(qr/ends at position \d+, but was synced up to \d+.*Put the file back/s, 'a log that is too short');
$node->stop;
flip();
$node->start;
is_kept('the log as it was');
# there are others behind it, which say that it was there
sql("INSERT INTO v VALUES (2100, 'w'); UPDATE v SET t = 'x' WHERE id = 2100; UPDATE v SET t = 'y' WHERE id = 2100; UPDATE v SET t = 'z' WHERE id = 2100");
$node->stop;
flip();
$node->start;
is_kept('a damaged log');
like($node->log_since_start, qr/WARNING:  log file "[^"]*" is damaged.*Call nvm.checkpoint/s, 'a warning names the file, and says what to do');
is(sql('SELECT count(*) FROM v'), 1101, 'all rows are there');
sql('SELECT nvm.checkpoint()');
restart();
is_kept('after a checkpoint');
unlike($node->log_since_start, qr/is damaged/, 'the file is not needed any more');
$node->stop;
unlink $file;
$node->start;
is(sql('SELECT count(*) FROM v'), 1101, 'and the log brings all rows back');
$node->check_clean('the log beside it');

# ---- a death at each step

my %rows = (count => 1101);
foreach my $case (
	[ 'memory-made', 'new' ], [ 'memory-emptied', 'new' ], [ 'memory-ready', 'new' ],
	[ 'memory-announced', 'new' ], [ 'memory-bound', 'new' ],
	[ 'memory-emptied', 'damaged' ], [ 'memory-ready', 'damaged' ],
	[ 'memory-announced', 'kept' ], [ 'pool-header-first', 'kept' ], [ 'pool-header-second', 'kept' ],
	[ 'memory-bound', 'kept' ])
{
	my ($failpoint, $what) = @$case;
	sql("INSERT INTO v VALUES (3000 + $rows{count}, '$failpoint')");
	$rows{count}++;
	$what eq 'kept' && $rows{count} % 2 ? $node->crash : $node->stop;
	unlink $file if $what eq 'new';
	truncate($file, 1 << 20) if $what eq 'damaged';
	set("nvm.failpoint = '$failpoint:crash:1'");
	is($node->start(fail_ok => 1), 0, "$failpoint, $what: the server dies");
	like($node->log_since_start, qr/failpoint $failpoint hit/, "$failpoint, $what: there");
	$node->wait_crashed if defined $node->{_pid};
	set("nvm.failpoint = ''");
	$node->start;
	is(sql('SELECT count(*) FROM v'), $rows{count}, "$failpoint, $what: all rows are there");
	is_kept("$failpoint, $what") if $what eq 'kept';
	$node->check_clean("$failpoint, $what");
}

# while the region grows
foreach my $how (qw(crash panic))
{
	my $fill = "INSERT INTO v SELECT i, repeat('x', 1500) FROM generate_series(1000001, 1050000) i";
	my $opened = $node->times_opened;
	my $session = $node->session("SET nvm.failpoint = 'memory-grown:$how:1'");
	$session->send($fill);
	$how eq 'crash' ? $node->wait_crashed : $node->wait_reopened($opened);
	$session->drop;
	like($node->log_since_start, qr/failpoint memory-grown hit/, "memory-grown, $how: there");
	$node->start if $how eq 'crash';
	is(sql('SELECT count(*) FROM v'), $rows{count}, "memory-grown, $how: nothing is lost, and nothing left");
	is_kept("memory-grown, $how") if $how eq 'crash';
	# what has grown stays: the next one begins with a new file
	sql("$fill; DELETE FROM v WHERE id > 1000000; VACUUM v");
	$node->check_clean("memory-grown, $how");
	$node->stop;
	unlink $file;
	$node->start;
	is(sql('SELECT count(*) FROM v'), $rows{count}, "memory-grown, $how: the log has the same rows");
}

# A decision that a death has cut short, between place and word, and a death of the start that
# ends it: what the log calls committed stays so in memory.
foreach my $failpoint (qw(log-decision-found log-decision-stored))
{
	my $session = $node->session("SET nvm.failpoint = 'log-placed:crash:1'");
	$session->send("INSERT INTO v VALUES (3000 + $rows{count}, '$failpoint')");
	$node->wait_crashed;
	$session->drop;
	$rows{count}++;
	set("nvm.failpoint = '$failpoint:crash:1'");
	is($node->start(fail_ok => 1), 0, "$failpoint: the start dies, too");
	like($node->log_since_start, qr/failpoint $failpoint hit/, "$failpoint: there");
	$node->wait_crashed if defined $node->{_pid};
	set("nvm.failpoint = ''");
	$node->start;
	is(sql('SELECT count(*) FROM v'), $rows{count}, "$failpoint: the row is there");
	is_kept($failpoint);
	$node->check_clean($failpoint);
	$node->stop;
	unlink $file;
	$node->start;
	is(sql('SELECT count(*) FROM v'), $rows{count}, "$failpoint: as the log has it");
}

# while a slot is used for the first time, which the worker that rebuilds the tables does
$node->stop;
unlink $file;
set("nvm.failpoint = 'memory-reserve:crash:1'");
$node->start(fail_ok => 1);
$node->wait_crashed if defined $node->{_pid};
like($node->log_since_start, qr/failpoint memory-reserve hit/, 'memory-reserve: there');
set("nvm.failpoint = ''");
$node->start;
like($node->log_since_start, qr/tables in memory are there/, 'memory-reserve: the file is believed');
is(sql('SELECT count(*) FROM v'), $rows{count}, 'memory-reserve: and the rebuild that was cut short is done again');
$node->check_clean('memory-reserve');
$node->stop;

# ---- a file system that is too small

SKIP:
{
	my $small = $ENV{NVM_CHECK_SMALL_DIR};
	skip 'no small file system (only root can mount one)', 12 unless $small;
	$node = NvmTest->start_new('small', conf => <<CONF, sql => <<SQL);
nvm.memory_directory = '$small/memory'
nvm.memory_limit = 1GB
max_worker_processes = 8
max_connections = 60
autovacuum = off
CONF
CREATE TABLE v (id int PRIMARY KEY, t text) USING nvm_vlog;
INSERT INTO v SELECT i, 'v' FROM generate_series(1, 1000) i;
SQL
	like($node->log_since_start, qr/WARNING:  nvm.memory_limit is 1024 MB, and a rebuild may take 128 MB more, but the file system of nvm.memory_directory "[^"]*" has 200 MB/,
		'a limit that will not be reached is worth a warning');
	$node->fails_with("INSERT INTO v SELECT i, repeat('x', 1500) FROM generate_series(10001, 130000) i",
		qr/could not extend the volatile region: No space left on device.*file system of nvm.memory_directory larger/s, 'a full file system is an ERROR');
	is(sql('SELECT count(*) FROM v'), 1000, 'the server stays up');
	# as its hint says
	sql("TRUNCATE v; INSERT INTO v SELECT i, 'v' FROM generate_series(1, 1000) i; INSERT INTO v SELECT i, repeat('x', 1000) FROM generate_series(10001, 12000) i");

	# no room for another slot's buffer: 32 have been given theirs at once
	my $room = (qx(df -P --block-size=1 $small))[-1] =~ /^\S+ +\d+ +\d+ +(\d+)/ ? $1 : 0;
	system_or_bail('fallocate', '-l', $room, "$small/filler");
	my @sessions = map { $node->session('BEGIN', "INSERT INTO v VALUES (20000 + $_, 's')") } 1 .. 33;
	like($node->log_since_start, qr/ERROR:  could not get memory for the log of tables in memory: No space left on device/,
		'a full file system when a slot is used for the first time: an ERROR');
	$_->sql('COMMIT') foreach @sessions;
	$_->drop foreach @sessions;
	is(sql('SELECT count(*) FROM v WHERE id > 20000'), 32, 'of that session alone');
	restart();
	is_kept('full');
	is(sql('SELECT count(*) FROM v'), 3032, 'full: all is there after a restart');
	sql("UPDATE v SET t = 'u' WHERE id < 100");
	$node->crash;
	$node->start;
	is(sql("SELECT count(*) FROM v WHERE t = 'u'"), 99, 'and after a crash');
	$node->check_clean('full');

	# no room for the file at all
	$node->stop;
	unlink "$small/memory/pg_nvm_memory";
	# a process of the server that is about to end may still have it mapped
	NvmTest::wait_until(
		'the room of the file that is gone',
		sub {
			$room = (qx(df -P --block-size=1 $small))[-1] =~ /^\S+ +\d+ +\d+ +(\d+)/ ? $1 : 0;
			return $room > 8 << 20;
		});
	system_or_bail('fallocate', '-l', $room - (8 << 20), "$small/filler2");
	$node->start;
	$node->fails_with('SELECT FROM v', qr/could not get \d+ MB for file "[^"]*pg_nvm_memory": No space left on device/, 'no room at all: the pool is refused');
	unlink "$small/filler", "$small/filler2";
	restart();
	is(sql('SELECT count(*) FROM v'), 3032, 'until there is some: the log brings all rows back');
	$node->stop;
	system_or_bail('rm', '-rf', "$small/memory");
}

# ---- huge pages

$node = NvmTest->start_new('huge', conf => "nvm.memory_limit = 16TB\nnvm.huge_pages = on\nrestart_after_crash = on\n", extension => 0);
$node->fails_with('CREATE EXTENSION pg_nvm; CREATE TABLE v (id int) USING nvm_vlog',
	qr/nvm.huge_pages = on needs \d+ huge pages of 2 MB for nvm.memory_limit and a rebuild, and \d+ are free/, 'too few huge pages: the pool is refused');
$node->append_conf('postgresql.conf', 'nvm.memory_limit = 16TB');
foreach my $huge (qw(try off))
{
	set_huge($huge);
	$node->safe_psql('postgres', 'CREATE EXTENSION IF NOT EXISTS pg_nvm; CREATE TABLE IF NOT EXISTS v (id int) USING nvm_vlog; INSERT INTO v VALUES (1)');
	like($node->safe_psql('postgres', 'SHOW nvm.huge_pages_status'), $huge eq 'off' ? qr/^off$/ : qr/^(?:off|transparent)$/, "huge_pages = $huge: does without");
}
SKIP:
{
	$node->append_conf('postgresql.conf', 'nvm.memory_limit = 64MB');
	set_huge('try');
	skip 'not enough huge pages are free (vm.nr_hugepages)', 3 if $node->safe_psql('postgres', 'SHOW nvm.huge_pages_status') ne 'on';
	set_huge('on');
	is($node->safe_psql('postgres', 'SHOW nvm.huge_pages_status'), 'on', 'huge pages: there are enough');
	$node->safe_psql('postgres', 'INSERT INTO v SELECT generate_series(1, 10000)');
	cmp_ok(huge_kb(), '>=', 64 * 1024, 'and the region has them');
	my $opened = $node->times_opened;
	my $session = $node->session;
	kill 'KILL', $session->pid;
	$session->drop;
	$node->wait_reopened($opened);
	cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM v'), '>=', 10000, 'a death of a backend keeps what is there');
}
$node->stop;

sub set_huge
{
	$node->append_conf('postgresql.conf', "nvm.huge_pages = $_[0]");
	restart();
	return;
}

# memory in huge pages of the kernel's pool, of the postmaster's memfd
sub huge_kb
{
	my $kb = 0;
	foreach my $fd (glob "/proc/$node->{_pid}/fd/*")
	{
		my @stat = stat $fd;
		$kb += $stat[12] / 2 if $stat[11] == 2 << 20;
	}
	return $kb;
}
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# A log in several directories (src/log/README.md, "Several directories").  Files are dealt out,
# and found wherever they are, by the server and by nvm_logdump.  A directory that fails, is full,
# read-only or gone is left out, and commits go on; when all fail they stop, and nothing is
# lost.  What is missing, copied or moved between two runs is named, or found.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use File::Copy qw(copy move);
use File::Path qw(rmtree);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $tools  = dirname(abs_path($0)) . '/../../tools';
my $faults = PostgreSQL::Test::Utils::tempdir();
my $node   = NvmTest->new('directories');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
nvm.log_directories = 'pg_nvm_log_a, pg_nvm_log_b'
nvm.checkpoint_interval = 0
nvm.checkpoint_file_size = 1
nvm.recovery_workers = 2
nvm.log_retry_interval = 1
nvm.log_compression = off
fsync = on
recovery_init_sync_method = syncfs
autovacuum = off
max_worker_processes = 8
restart_after_crash = on
CONF
$ENV{LD_PRELOAD} = "$tools/nvm_sync.so";
$ENV{NVM_SYNC_DIR} = $faults;
$node->start;

my $data = $node->data_dir;
my ($a, $b, $c) = map { "$data/pg_nvm_log_$_" } qw(a b c);

sub sql { return $node->safe_psql('postgres', join('; ', @_)); }
sub files { my ($dir, $like) = @_; my @names = sort map { basename($_) } glob "$dir/$like"; return @names; }
sub both { my ($like) = @_; return scalar(files($a, $like)) . '|' . scalar(files($b, $like)); }
sub current { return sql('SELECT substring(directory FROM \'[^/]+$\') FROM nvm.log_directories WHERE is_current'); }
sub states { return sql('SELECT string_agg(state, \' \') FROM nvm.log_directories'); }
sub lose { $node->crash; $node->start; return; }

# what fails from now on: a file of nvm_sync, and the paths that it is about
sub fault { my ($name, $pattern) = @_; append_to_file("$faults/$name", $pattern); return; }
sub mend { unlink glob "$faults/*"; return; }

# so many records of about 40 kB, of which the last one waits for all; enough for so many files
sub fill
{
	my ($n) = @_;
	sql('SET synchronous_commit = off', "CALL fill($n)", 'SET synchronous_commit = on', 'CALL fill(1)');
	return;
}
sub fill_files { my ($n) = @_; fill(520 * $n); return; }

sub content { return sql('SELECT count(*), sum(v), md5(string_agg(t::text, \',\' ORDER BY id)) FROM t'); }

sub same_after_loss
{
	my ($name) = @_;
	my $before = content();

	lose();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(content(), $before, "$name: the same after a loss");
	return;
}

# The files are whole, for nvm_logdump too
sub dumps
{
	my ($name, @dirs) = @_;
	my ($said, $complaints) = ('', '');

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	IPC::Run::run([ 'nvm_logdump', @dirs ], '>', \$said, '2>', \$complaints);
	is($complaints, '', "$name: nvm_logdump finds nothing wrong");
	return $said;
}

my $commit = 'UPDATE t SET v = v + 1 WHERE id = 1';

# ---------------------------------------------------------------- the list

$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');
symlink($a, "$data/pg_nvm_link") or die;
mkdir $a, 0700;
$node->fails_with("ALTER SYSTEM SET nvm.log_directories = $_->[0]", qr/invalid value for parameter "nvm.log_directories": .*\nDETAIL:  $_->[1]/, "a list: $_->[1]")
  foreach ([ "''", 'No directory is named\.' ],
	[ "'x,,y'", 'The list is not a list of paths with commas between them\.' ],
	[ "'x, ./x'", 'Directory "x" is named twice\.' ],
	[ "'pg_nvm_log_a,pg_nvm_link'", '"pg_nvm_log_a" and "pg_nvm_link" are the same directory\.' ],
	[ "'" . join(',', 1 .. 33) . "'", 'There are 33 directories, and 32 are allowed\.' ],
	[ "'x," . 'y' x 960 . "'", 'The path "y+" is too long\.' ]);
$node->stop;
$node->set_conf('nvm.log_directories' => "'pg_nvm_log_a, pg_nvm_link'");
ok(!$node->start(fail_ok => 1), 'a server does not start with a wrong list');
like($node->log_since_start, qr/FATAL:  invalid value for parameter "nvm.log_directories": "pg_nvm_log_a, pg_nvm_link"\n.*DETAIL:  "pg_nvm_log_a" and "pg_nvm_link" are the same directory\./, 'and says so');
$node->set_conf('nvm.log_directories' => "'pg_nvm_log_a, pg_nvm_log_b'");
$node->start;

# ---------------------------------------------------------------- files are dealt out

sql(<<'SQL');
CREATE TABLE t (id int PRIMARY KEY, v int, s text) USING nvm_vlog;
CREATE TABLE h (id int) USING heap;
CREATE TABLE p (id int) USING nvm;
INSERT INTO h VALUES (1);
INSERT INTO t SELECT i, 0, repeat('x', 200) FROM generate_series(1, 2000) i;
CREATE PROCEDURE fill(n int) LANGUAGE plpgsql AS
$$BEGIN
	FOR i IN 1 .. n LOOP
		UPDATE t SET v = v + 1 WHERE id <= 150;
		COMMIT;
	END LOOP;
END$$;
SQL
ok(-d $b, 'the first table makes both directories');
is(sprintf('%o', (stat $b)[2] & 07777), '700', 'for the server alone');
like($node->log_since_start, qr/LOG:  nvm: the log of tables in memory begins in directories "pg_nvm_log_a", "pg_nvm_log_b"/, 'and says where the log is');
is(current(), 'pg_nvm_log_a', 'the first file is in the first one');
fill_files(3);
is(both('*.log'), '2|2', 'files are dealt out');
is(join(' ', sort map { /-(\d+)\.log/ } files($a, '*.log')), '00000001 00000003', 'in turn');
is(current(), 'pg_nvm_log_b', 'the last one is in the second directory');
sql('UPDATE t SET v = v + 1', 'UPDATE t SET v = v + 1');
like(both('*.side'), qr/^[12]\|[12]$/, 'so are side files');
is(sql('SELECT count(*), bool_and(bytes > 10000000 AND syncs > 0 AND position > 16000000 AND files >= 3 AND file_bytes >= 2 * 16777216 AND reason IS NULL) FROM nvm.log_directories'), '2|t', 'the view shows each');
is(sql('SELECT l.bytes = sum(d.bytes), l.syncs = sum(d.syncs), l.waits = sum(d.waits), l.wait_us = sum(d.wait_us), l.files = sum(d.files), max(d.waits) > 0, max(d.position) = l.persistent, l.directory = string_agg(d.directory, \', \') FROM nvm.log l, nvm.log_directories d GROUP BY l.*, l.bytes, l.syncs, l.waits, l.wait_us, l.files, l.persistent, l.directory'), 't|t|t|t|t|t|t|t', 'whose sums nvm.log has');
is(join(' ', map { hex } dumps('dealt out', $a, $b) =~ /^file \S+-00000001-(\w+)\.log: /mg), '1 2 3 4', 'and prints them in their order');
same_after_loss('files in two directories');
like($node->log_since_start, qr/DETAIL:  \d+ files with \d+ bytes in directories "pg_nvm_log_a", "pg_nvm_log_b", generations 1 to 2\./, 'the server log says where from');
is(sql('SELECT workers FROM nvm.log_recovery'), 2, 'by two workers');
is(current(), 'pg_nvm_log_a', 'the next generation begins in the next directory');

# ---------------------------------------------------------------- checkpoints, and what goes

sql(q{INSERT INTO t SELECT i, 0, repeat('y', 500) FROM generate_series(3001, 8000) i}, 'SELECT nvm.checkpoint()');
is(both('*.log'), '1|0', 'the log before a checkpoint goes, in both');
is(both('*.side'), '0|0', 'and side files');
like(both('*.rows'), qr/^[12]\|[12]$/, 'data files are dealt out');
is(both('*.checkpoint'), '1|0', 'one file says so');
is(both('*.spare'), '1|1', 'a spare file is kept in each');
same_after_loss('a checkpoint');
fill(20);
sql('UPDATE t SET v = v + 1');
same_after_loss('a checkpoint and the log since then');
dumps('a checkpoint', $a, $b);
sql('SELECT nvm.checkpoint()');
like(both('*.rows'), qr/^[12]\|[12]$/, 'the next checkpoint replaces it');

# ---------------------------------------------------------------- between two runs

sub between
{
	my ($name, $list, $do) = @_;
	my $before;

	fill(5);
	$before = content();
	$node->stop;
	$do->() if $do;
	$node->set_conf('nvm.log_directories' => "'$list'");
	$node->start;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(content(), $before, "$name: all is there");
	return;
}

between('another order', 'pg_nvm_log_b, pg_nvm_log_a');
between('one more', 'pg_nvm_log_c, pg_nvm_log_b, pg_nvm_log_a', sub { mkdir $c, 0700 or die });
lose() for 1 .. 2;
cmp_ok(scalar(files($c, '*.log')), '>', 0, 'it gets files, too');
sql('SELECT nvm.checkpoint()');
is(both('*.checkpoint'), '1|0', 'the file of the checkpoint stays where it is');
between('files were moved', 'pg_nvm_log_a, pg_nvm_log_b', sub { move($_, $a) or die foreach glob "$c/*"; rmdir $c });
between('one less, which has nothing', 'pg_nvm_log_a',
	sub { move($_, $a) or die foreach glob "$b/*.log $b/*.rows $b/*.side $b/*.checkpoint" });
between('and back', 'pg_nvm_log_a, pg_nvm_log_b');
between('once more', 'pg_nvm_log_a, pg_nvm_log_b');

# What is refused, or an error that names it; and what comes of it when it is put right
sub wrong
{
	my ($name, $list, $refused, $re, $harm, $mend) = @_;
	my $before = content();

	$node->stop;
	$harm->() if $harm;
	$node->set_conf('nvm.log_directories' => "'$list'");
	$node->start;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	if ($refused)
	{
		is(sql('SELECT status FROM nvm.pool'), 'refused', "$name: the pool is refused");
		like(sql('SELECT reason FROM nvm.pool'), $re, "$name: it says why");
		like(sql('SELECT hint FROM nvm.pool'), qr/nvm\.log_directories/, "$name: and what to do");
	}
	else
	{
		$node->fails_with('SELECT count(*) FROM t', $re, "$name: an access says why");
		is(sql('SELECT count(*) FROM p'), 0, "$name: tables of nvm are served");
	}
	is(sql('SELECT count(*) FROM h'), 1, "$name: tables of heap are served");
	$node->stop;
	$mend->() if $mend;
	$node->set_conf('nvm.log_directories' => "'pg_nvm_log_a, pg_nvm_log_b'");
	$node->start;
	is(content(), $before, "$name: put right, all is there");
	return;
}

# generations begin in each in turn
sub write_in { my ($dir) = @_; lose() if current() ne "pg_nvm_log_$dir"; die if current() ne "pg_nvm_log_$dir"; return; }

my ($early) = files($b, '*.log');
my $away = "$data/away";
wrong('a directory is missing', 'pg_nvm_log_a, pg_nvm_log_b', 1, qr/could not open log directory "pg_nvm_log_b": No such file or directory/,
	sub { rename $b, $away or die }, sub { rename $away, $b or die });
wrong('a directory is read-only', 'pg_nvm_log_a, pg_nvm_log_b', 1, qr/could not write to log directory "pg_nvm_log_b": Permission denied/,
	sub { chmod 0500, $b }, sub { chmod 0700, $b });
write_in('a');
wrong('a directory that is needed is not listed', 'pg_nvm_log_a', 0, qr/file "\Q$early\E" of the log is missing/);
write_in('a');
wrong('an empty one is listed in its place', 'pg_nvm_log_a, pg_nvm_log_c', 0,
	qr/file "\Q$early\E" of the log is missing.*It was looked for in directories "pg_nvm_log_a", "pg_nvm_log_c"/s,
	sub { mkdir $c, 0700 or die }, sub { move($_, $b) or die foreach glob "$c/*.log"; rmtree($c) });
wrong('a file is missing', 'pg_nvm_log_a, pg_nvm_log_b', 0, qr/file "\Q$early\E" of the log is missing/,
	sub { rename "$b/$early", $away or die }, sub { rename $away, "$b/$early" or die });
wrong('a file was copied', 'pg_nvm_log_a, pg_nvm_log_b', 0, qr/file "\Q$early\E" of the log is in directory "pg_nvm_log_a" and in directory "pg_nvm_log_b"/,
	sub { copy("$b/$early", "$a/$early") or die }, sub { unlink "$a/$early" or die });
my ($last_in, $last);
wrong('the last file was copied', 'pg_nvm_log_a, pg_nvm_log_b', 1, qr/log file "\S+" is in directory "pg_nvm_log_a" and in directory "pg_nvm_log_b"/,
	sub {
		($last) = reverse sort(files($a, '*.log'), files($b, '*.log'));
		$last_in = -e "$a/$last" ? $a : $b;
		copy("$last_in/$last", ($last_in eq $a ? $b : $a) . "/$last") or die;
	},
	sub { unlink(($last_in eq $a ? $b : $a) . "/$last") or die });
wrong('the last file is missing', 'pg_nvm_log_a, pg_nvm_log_b', 1, qr/the log of generation \d+ is missing in directories "pg_nvm_log_a", "pg_nvm_log_b"/,
	sub {
		($last) = reverse sort(files($a, '*.log'), files($b, '*.log'));
		$last_in = -e "$a/$last" ? $a : $b;
		rename "$last_in/$last", $away or die;
	},
	sub { rename $away, "$last_in/$last" or die });
# of a file with a checksum elsewhere the copy that is right counts
sql('SELECT nvm.checkpoint()');
my ($rows) = files($b, '*.rows');
between('a wrong copy of a data file comes first', 'pg_nvm_log_a, pg_nvm_log_b', sub { append_to_file("$a/$rows", 'nonsense' x 1000) });
unlink "$a/$rows";
between('an older checkpoint comes back', 'pg_nvm_log_a, pg_nvm_log_b', sub {
	my ($pool) = (files($a, '*.checkpoint'))[0] =~ /^(\w+)/;
	copy("$a/$pool.checkpoint", "$data/old") or die;
});
sql('SELECT nvm.checkpoint()');
between('which has a lower number', 'pg_nvm_log_a, pg_nvm_log_b', sub { copy("$data/old", "$b/" . (files($a, '*.checkpoint'))[0]) or die });
sql('SELECT nvm.checkpoint()');
is(both('*.checkpoint'), '1|0', 'and goes with the next one');

# ... and when the directory of the old one fails, whatever crashes meanwhile
sql($commit);
write_in('b');
fault('log-broken', "*/pg_nvm_log_a*");
$node->psql('postgres', 'SELECT nvm.checkpoint()');    # which tells that a fails
$node->set_conf('nvm.failpoint' => "'ckpt-remove-other:crash'");
$node->reload;
$node->psql('postgres', 'SELECT nvm.checkpoint()');
$node->wait_crashed;
is(both('*.checkpoint'), '1|1', 'a crash leaves two checkpoints');
mend();
$node->set_conf('nvm.failpoint' => "''");
$node->start;
between('of two checkpoints the newer one counts', 'pg_nvm_log_a, pg_nvm_log_b');

# ---------------------------------------------------------------- a directory fails

sub until_on { return NvmTest::wait_until('both are in again', sub { states() eq 'on on' }); }

sub left_out
{
	my ($name, $pattern) = @_;
	my $index = $pattern eq 'a' ? 0 : 1;
	my $other = $pattern eq 'a' ? 'b' : 'a';
	my $want = $index ? 'on failed' : 'failed on';

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	sql($commit);
	is(states(), $want, "$name: it is left out");
	is(current(), "pg_nvm_log_$other", "$name: the other one is written");
	like($node->log_since_start, qr/LOG:  nvm: could not write the log of tables in memory: .*\n.*DETAIL:  Step "\w+" on file "pg_nvm_log_$pattern\/.*" failed\. Directory "pg_nvm_log_$pattern" is left out until it can be written again\./, "$name: the server log says so");
	like(sql("SELECT reason FROM nvm.log_directories WHERE state = 'failed'"), qr/^Step "\w+" on file "pg_nvm_log_$pattern\/.*" failed\. \(.+\)$/, "$name: and the view");
	is(sql('SELECT state FROM nvm.log'), 'on', "$name: the log goes on");
	sql('UPDATE t SET v = v + 1', 'SELECT nvm.checkpoint()');
	is(sql('SELECT state FROM nvm.log'), 'on', "$name: so do large transactions and checkpoints");
	return;
}

foreach my $which (qw(a b))
{
	write_in($which);
	fault('log-broken', "*/pg_nvm_log_$which/*");
	left_out("an I/O error in $which", $which);
	mend();
	until_on();
	like($node->log_since_start, qr/LOG:  nvm: the log of tables in memory can be written again in directory "pg_nvm_log_$which"/, "an I/O error in $which: it comes back");
	same_after_loss("an I/O error in $which");
}
is(both('*.checkpoint') =~ tr/1//, 1, 'the file of the checkpoint has gone to the other one');
write_in('b');
fault('log-full', '*pg_nvm_log_b*');
left_out('b is full', 'b');
same_after_loss('b is full, and stays so');
is(states() . ' ' . current(), 'on failed pg_nvm_log_a', 'b is full at a start: the other one is written');
mend();
until_on();
write_in('b');
chmod 0500, $a;
fill_files(1);
is(states() . ' ' . current(), 'failed on pg_nvm_log_b', 'a is read-only: b is written');
chmod 0700, $a;
until_on();
dumps('failures', $a, $b);

# a large transaction whose directory fails gets an error; the next one goes elsewhere
sql($commit);
fault('log-broken', '*/pg_nvm_log_a/*.side');
my @failed = grep { $node->psql('postgres', 'UPDATE t SET v = v + 1', on_error_stop => 1) } 1 .. 2;
is(scalar @failed, 1, 'a side file cannot be written: one transaction fails');
like($node->log_since_start, qr/ERROR:  could not write file "pg_nvm_log_a\/\S+\.side": Input\/output error/, 'with an error that names it');
mend();
until_on();
sql('UPDATE t SET v = v + 1') for 1 .. 2;

# both: commits stop, and go on when one is back
my $committed = $node->session;
$committed->sql('SELECT 1');
fault('log-broken', '*/pg_nvm_log_*');
$committed->send("UPDATE t SET v = 500 WHERE id = 2 RETURNING 'acknowledged'");
NvmTest::wait_until('both are out', sub { states() eq 'failed failed' });
$node->fails_with($commit, qr/could not write the log of tables in memory: Input\/output error\nHINT:  .*nvm\.log_directories/, 'both fail: a commit is an error');
is(sql('SELECT state FROM nvm.log'), 'failed', 'the log has failed');
is(sql('SELECT v FROM t WHERE id = 2'), 500, 'reading goes on');
mend();
fault('log-broken', '*/pg_nvm_log_a/*');
is($committed->sql("SELECT 'then'"), "acknowledged\nthen", 'one is back: who has committed is told');
sql($commit);
is(states(), 'failed on', 'and the log goes on there');
mend();
until_on();
same_after_loss('both have failed');

# ---------------------------------------------------------------- files that have nothing

# a file can be made, but not written: another number in the other directory, and the file goes
sub empty_file
{
	fill(5);
	sql($commit);
	my $on = current();
	my $other = $on =~ /a$/ ? 'pg_nvm_log_b' : 'pg_nvm_log_a';
	append_to_file("$faults/log-sync", '');
	fault('log-broken', "*/$other/*.log");
	return ($on, $other);
}

# generation and number of the last file in a directory
sub last_name { my ($dir) = @_; return map { hex } (files("$data/$dir", '*.log'))[-1] =~ /-(\w+)-(\w+)\.log/; }

my ($on, $other) = empty_file();
my ($generation, $number) = last_name($on);
sql($commit);
is(current(), $on, 'a new file that cannot be written: the log goes on in the other directory');
is(join(' ', last_name($on)), join(' ', $generation, $number + 2), 'with another number');
isnt(join(' ', last_name($other)), join(' ', $generation, $number + 1), 'and the one that has nothing is gone');
mend();
until_on();
dumps('numbers have a hole', $a, $b);
same_after_loss('numbers have a hole');

($on, $other) = empty_file();
my $before = content();
$node->psql('postgres', "SET nvm.failpoint = 'log-file-left:crash'; $commit");
$node->wait_crashed;
mend();
$node->start;
my $after = content();
ok($after eq $before || sql('SELECT sum(v) FROM t') == (split /\|/, $before)[1] + 1, 'a crash before it goes') or diag("$before, $after");
fill(5);
same_after_loss('a crash before it goes');

# a process dies, memory stays: the number is not used again elsewhere
($on, $other) = empty_file();
my $session = $node->session;
my $opened = $node->times_opened;
$session->stop_at('log-file-noted', $commit);
kill 'KILL', $session->pid;
$session->drop;
$node->wait_reopened($opened);
mend();
sql($commit);
same_after_loss('a death between the number and the file');
dumps('deaths', $a, $b);

# ---------------------------------------------------------------- the first file of a generation

foreach my $place ('log-first-elsewhere', '')
{
	$before = content();
	$node->stop('immediate');
	$node->dies_at_start('log-generation-begun', 'a start is cut off behind its first file');
	my ($first) = grep { /-00000001\.log$/ } reverse sort(files($a, '*.log'), files($b, '*.log'));
	my $in = -e "$a/$first" ? 'pg_nvm_log_a' : 'pg_nvm_log_b';
	fault('log-full', "*$in*");
	if ($place)
	{
		$node->dies_at_start($place, 'the next one is cut off when it has one elsewhere');
		is(scalar(grep { -e "$_/$first" } $a, $b), 2, 'the file is there twice');
	}
	$node->start;
	is(content(), $before, 'the one after that has all');
	is(scalar(grep { -e "$_/$first" } $a, $b), 1, 'and the file is there once');
	isnt(current(), $in, 'where there is room');
	mend();
	until_on();
	same_after_loss('starts that were cut off');
}

# ---------------------------------------------------------------- a disk is lost

write_in('b');
fill(5);
rename $b, $away or die;
fill_files(1);
is(sql('SELECT state FROM nvm.log'), 'on', 'a directory is gone: the log goes on');
sql('SELECT nvm.checkpoint()');
$before = content();
$node->stop;
$node->set_conf('nvm.log_directories' => "'pg_nvm_log_a'");
$node->start;
is(content(), $before, 'with a checkpoint since then the log needs nothing of it');
fill(10);
same_after_loss('without it');
is(sql('SELECT count(*) FROM nvm.log_directories'), 1, 'there is one directory now');
$node->check_clean('in the end');
$node->stop;
done_testing();

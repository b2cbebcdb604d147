# Copyright (c) 2026, pg_nvm contributors

# A pool that is lost: its tables can be dropped, nvm.reset_pool() starts a new
# one, and a TRUNCATE makes an empty table of one whose rows are lost.  And a
# pool that is not lost stays.

use strict;
use warnings;

use Fcntl qw(:flock);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => "autovacuum = off\n", extension => 0);
like($node->log_since_start, qr/a new NVM pool "\Q@{[ $node->pool_file ]}\E" was made\n.*DETAIL:  .*made durable by: /, 'the first start says where the pool is');
my $dir  = $node->pool_dir;
my $pool = $node->pool_file;
my $request = $node->data_dir . '/pg_nvm_reset';
my $lost = qr/rows of nvm table "\w+" are lost.*HINT: .*TRUNCATE the table/s;

sub fill
{
	$node->safe_psql('postgres', <<SQL);
SET client_min_messages = error;
CREATE EXTENSION IF NOT EXISTS pg_nvm;
DROP TABLE IF EXISTS t, t2, h;
CREATE TABLE t (id int PRIMARY KEY, b text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 1000) FROM generate_series(1, 500) i;
CREATE TABLE t2 (id int) USING nvm;
INSERT INTO t2 VALUES (1);
CREATE TABLE h (id int);
INSERT INTO h VALUES (1);
SQL
	return;
}

sub status { return $node->safe_psql('postgres', 'SELECT status FROM nvm.pool'); }
sub rows   { return $node->safe_psql('postgres', 'SELECT count(*) FROM t'); }
sub old_files { return scalar(glob_files("$pool.old.*")); }
sub glob_files { my @f = glob $_[0]; return @f; }

# The pool is a new one, and the tables of the old one can be used again.
sub is_new_pool
{
	my ($name) = @_;
	is(status(), 'open', "$name: a pool is open");
	like(slurp_file($node->logfile), qr/a new NVM pool "\Q$pool\E" was made, as nvm\.reset_pool\(\) asked\n.*DETAIL:  .*made durable by: /,
		"$name: the log says that it was made as asked");
	ok(!-e $request, "$name: the request is done");
	$node->fails_with('SELECT * FROM t', $lost, "$name: a lost table says so");
	$node->fails_with("INSERT INTO t VALUES (1, '')", $lost, "$name: INSERT too");
	$node->fails_with('ALTER TABLE t SET ACCESS METHOD heap', $lost, "$name: and a rewrite");
	$node->safe_psql('postgres', 'DROP TABLE t2');
	$node->safe_psql('postgres', 'TRUNCATE t');
	is(rows(), '0', "$name: after TRUNCATE it is empty");
	$node->safe_psql('postgres', "INSERT INTO t SELECT i, 'new' FROM generate_series(1, 50) i");
	is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM t WHERE id > 0'),
		'50', "$name: and works");
	$node->check_clean($name);
	$node->restart;
	is(rows(), '50', "$name: also after a restart");
	return;
}

# ---- what is refused

fill();
$node->fails_with('SELECT nvm.reset_pool()', qr/open and in use.*force => true/s, 'an open pool is not given up');
$node->safe_psql('postgres', 'CREATE ROLE mortal; GRANT USAGE ON SCHEMA nvm TO mortal');
$node->fails_with('SET ROLE mortal; SELECT nvm.reset_pool(true)', qr/permission denied/, 'not for everybody');
$node->safe_psql('postgres', 'GRANT EXECUTE ON FUNCTION nvm.reset_pool(bool) TO mortal');
$node->fails_with('SET ROLE mortal; SELECT nvm.reset_pool(true)', qr/must be superuser/, 'superusers only');
ok(!-e $request, 'nothing was requested');

# ---- lost

$node->stop;
rename($pool, "$pool.away") or die $!;
$node->start;
is(status(), 'refused', 'a missing pool is refused');
$node->fails_with('SELECT * FROM t', qr/NVM pool is missing.*reset_pool/s, 'the hint names nvm.reset_pool()');
my ($ret, $out, $err) = $node->psql('postgres', 'BEGIN; DROP TABLE t; ROLLBACK; DROP TABLE t2; CREATE TABLE t2 (id int)');
is($ret, 0, 'tables of a lost pool can be dropped');
like($err, qr/WARNING:  storage of nvm table "t2" is not released/, 'with a warning');
$node->safe_psql('postgres', 'DROP TABLE t2');
$node->safe_psql('postgres', 'SET client_min_messages = error; CREATE DATABASE other; DROP DATABASE other');
($ret, $out, $err) = $node->psql('postgres', 'SELECT nvm.reset_pool()');
like($err, qr/next start of the server gives up the NVM pool.*HINT: .*pg_nvm_reset/s, 'nvm.reset_pool() says what will happen');
ok(-e $request, 'and leaves a request');
is(status(), 'refused', 'nothing happens at once');

# the device is back before the restart
$node->stop;
rename("$pool.away", $pool) or die $!;
$node->start;
is(rows(), '500', 'a pool that can be opened is kept');
like($node->log_since_start, qr/request to give up NVM pool .* was dropped/, 'the log says so');
ok(!-e $request, 'and the request is gone');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.drop_orphans()'), '1',
	'what was dropped meanwhile is an orphan');
$node->restart;
is(rows(), '500', 'also at the next start');

fill();
$node->stop;
unlink($pool) or die $!;
$node->start;
$node->psql('postgres', 'SELECT nvm.reset_pool()');
$node->restart;
is_new_pool('a pool that was deleted');
is(old_files(), 0, 'there was nothing to keep');

# with its directory
fill();
$node->stop;
rename($dir, "$dir.away") or die $!;
$node->start;
$node->psql('postgres', 'SELECT nvm.reset_pool()');
$node->restart;
is_new_pool('a directory that was lost');
File::Path::rmtree("$dir.away");

# ---- damaged: found when it is opened, and by the layer above

fill();
my @slots = map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $pool, 'slots' ]))[0];
foreach my $damage ([ 'extent map', 2200 ], [ 'commit slot', $slots[0][1] + 3, $slots[0][2] + 3 ])
{
	my ($what, @places) = @$damage;
	fill();
	$node->stop;
	if ($what eq 'extent map')
	{
		my @extents = map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $pool, 'extents' ]))[0];
		@places = ($extents[-1][0] + 1);
	}
	my $before = old_files();
	system_or_bail($NvmTest::patch_tool, $pool, 'flip', $_, 5) foreach @places;
	$node->start;
	is(status(), 'refused', "$what: the damage is found");
	$node->psql('postgres', 'SELECT nvm.reset_pool()');
	$node->restart;
	like($node->log_since_start, qr/renamed to ".*pool\.old\.\d+"/, "$what: the log tells the old file's new name");
	is(old_files(), $before + 1, "$what: the old file is kept");
	is_new_pool("$what damaged");
}

# ---- not lost, but to be had by a setting; and by force

fill();
$node->stop;
chmod(0644, $pool);
$node->start;
$node->fails_with('SELECT nvm.reset_pool()', qr/not available, but not lost.*wrong permissions.*chmod.*force/s,
	'permissions can be corrected');
ok(!-e $request, 'nothing was requested');
$node->stop;
chmod(0600, $pool);
$node->start;
is(rows(), '500', 'corrected');
my $before = old_files();
$node->psql('postgres', 'SELECT nvm.reset_pool(force => true)');
is(rows(), '500', 'force, too, waits for the restart');
$node->restart;
is(old_files(), $before + 1, 'force: the old file is kept');
is_new_pool('force');

# what is no request is ignored
$node->stop;
append_to_file($request, "give up\n");
$node->start;
is(rows(), '50', 'a file that is no request does nothing');
like($node->log_since_start, qr/not a request to give up the NVM pool or the log/, 'the log says so');
unlink($request);

# ---- another server has it

fill();
$node->psql('postgres', 'SELECT nvm.reset_pool(force => true)');
$node->stop;
open(my $fh, '+<', $pool) or die $!;
flock($fh, LOCK_EX) or die $!;
$before = old_files();
$node->start;
is(status(), 'refused', 'a pool that another server uses is not taken away');
like($node->log_since_start, qr/in use by another server/, 'the log says so');
is(old_files(), $before, 'the file has its name');
close($fh);
$node->restart;
is_new_pool('when the other server has gone');

# ---- crashes

foreach my $place (qw(reset-request reset-requested))
{
	fill();
	$before = old_files();
	$node->psql('postgres', "SET nvm.failpoint = '$place:crash'; SELECT nvm.reset_pool(force => true)");
	$node->wait_crashed;
	$node->start;
	if ($place eq 'reset-request')
	{
		is(rows(), '500', "$place: nothing was requested");
		is(old_files(), $before, "$place: nothing was moved");
	}
	else
	{
		is(old_files(), $before + 1, "$place: the old file is kept");
		is_new_pool("a crash at $place");
	}
}
foreach my $force ('true', 'false')
{
	foreach my $place (qw(reset-moved reset-unbound reset-forgotten))
	{
		fill();
		my $name = "a crash at $place, force $force";
		if ($force eq 'false')
		{
			# an older incarnation file: not the pool's
			$node->stop;
			my $file = $node->data_dir . '/pg_nvm_incarnation';
			my $old = slurp_file($file);
			$node->start;
			$node->stop;
			# in place: another file would be another data directory
			open(my $f, '+<', $file) or die $!;
			print $f $old;
			close $f;
			$node->start;
			is(status(), 'refused', "$name: refused before");
		}
		$before = old_files();
		$node->psql('postgres', "SELECT nvm.reset_pool(force => $force)");
		$node->stop;
		$node->dies_at_start($place, "$name: the server died");
		$node->start;
		is(old_files(), $before + 1, "$name: moved once");
		is_new_pool($name);
	}
}
$node->stop;
done_testing();

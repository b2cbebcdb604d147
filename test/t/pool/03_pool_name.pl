# Copyright (c) 2026, pg_nvm contributors

# The name of a pool inside of the data directory: base backups leave it out, and
# nothing of PostgreSQL's removes it; a pool that has the other name is opened and
# renamed, whatever ends the server meanwhile; of two pools none is touched.  And
# where the pool was when it was last opened; who is not told of these places.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('name', pool => 'pg_nvm', allows_streaming => 1, conf => "nvm.pool_max_size = '512MB'\nautovacuum = off\nrestart_after_crash = on\n", sql => q(
	CREATE TABLE t (id int PRIMARY KEY, v text) USING nvm;
	INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 1000) g;
	CREATE ROLE plain;
	CREATE ROLE watcher IN ROLE pg_monitor;
	CREATE ROLE admin SUPERUSER;
	GRANT SELECT ON t TO plain, watcher));
my $dir    = $node->data_dir . '/pg_nvm';
my $hidden = 'pgsql_tmp.nvm_pool.do_not_delete';
my $rows   = 'SELECT count(*), sum(id) FROM t';

is($node->safe_psql('postgres', 'SELECT last_directory IS NULL FROM nvm.pool'), 't', 'a new pool was nowhere before');

sub files { my @f = sort map { s,.*/,,r } glob("$dir/*"); return "@f"; }

sub whole
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql('postgres', $rows), '1000|500500', "$name: the rows are there");
	is(files(), $hidden, "$name: the name");
	return;
}

sub move { my ($from, $to) = @_; rename($from, $to) or die "$from to $to: $!"; return; }

sub poolcheck
{
	my ($name, $status, $re) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $result = IPC::Run::run([ 'nvm_poolcheck', '-D', $node->data_dir ], '>', \my $out, '2>', \my $err);
	is($? >> 8, $status, "nvm_poolcheck, $name") or diag "$out$err";
	like("$out$err", $re, "nvm_poolcheck, $name, says so") if $re;
	return;
}

is($node->pool_file, "$dir/$hidden", 'where the pool is');
whole('a new pool');

# ---- nothing removes it: temporary files beside it, crashes of all kinds

my $session = $node->session("SET work_mem = '64kB'", 'BEGIN', 'CREATE TEMP TABLE big USING heap AS SELECT g FROM generate_series(1, 100000) g',
	'DECLARE c CURSOR FOR SELECT * FROM big ORDER BY g DESC', 'FETCH 10 FROM c');
isnt($node->safe_psql('postgres', 'SELECT count(*) FROM pg_ls_tmpdir()'), '0', 'there are temporary files');
my $opened = $node->times_opened;
kill('KILL', $session->pid);
$session->drop;
$node->wait_reopened($opened);
whole('after a backend has died');
$node->crash;
$node->start;
whole('after a crash');
$node->stop;
poolcheck('the pool', 0);
$node->start;
whole('after a stop');

# ---- a base backup

$node->backup('b');
my $backup = $node->backup_dir . '/b';
ok(-d "$backup/pg_nvm", 'the directory is in the backup');
is(join(' ', glob("$backup/pg_nvm/*")), '', 'the pool is not');
foreach my $label (1, 0)
{
	my $restored = NvmTest->new("restored$label");
	$restored->init_from_backup($node, 'b');
	$restored->{nvm_pool} = 'pg_nvm';
	$restored->{nvm_name} = "restored$label";
	chmod(0700, $restored->data_dir . '/pg_nvm') or die $!;
	if (!$label)
	{
		# somebody removes what tells of a backup, and what has to be replayed
		unlink($restored->data_dir . '/backup_label') or die $!;
	}
	$restored->start;
	$restored->fails_with('SELECT * FROM t', $label ? qr/starts from a base backup/ : qr/NVM pool is missing: file ".*do_not_delete" does not exist/,
		$label ? 'from the backup: refused' : 'without its label: missing');
	$restored->safe_psql('postgres', 'CREATE TABLE h AS SELECT 1 AS a; DROP TABLE h');
	is(join(' ', glob($restored->data_dir . '/pg_nvm/*')), '', 'no pool is made');
	$restored->stop;
	$restored->start;
	$restored->fails_with('SELECT * FROM t', $label ? qr/restored from a base backup/ : qr/NVM pool is missing/, 'the second start');
	$restored->stop;
	$restored->clean_node;
}

# ---- the name that pools had before

foreach my $unclean (0, 1)
{
	my $what = $unclean ? 'after a crash' : 'after a stop';

	$unclean ? $node->crash : $node->stop;
	move("$dir/$hidden", "$dir/pool");
	poolcheck("the other name $what", 0);
	$node->start;
	like($node->log_since_start, qr{NVM pool "\Q$dir\E/pool" was renamed to "\Q$dir\E/$hidden"}, "$what: the log says so");
	whole("the other name $what");
	$node->check_clean("the other name $what");
}
foreach my $place ('pool-hide', 'pool-hidden')
{
	$node->stop;
	move("$dir/$hidden", "$dir/pool");
	$node->dies_at_start($place, "the server died at $place");
	is(files(), $place eq 'pool-hide' ? 'pool' : $hidden, "$place: one file");
	$node->start;
	whole($place);
}

# ---- two pools: neither is touched

$node->stop;
system_or_bail('cp', "$dir/$hidden", "$dir/pool");
poolcheck('two pools', 1, qr/has two NVM pools: "pool" and "$hidden"/);
$node->start;
$node->fails_with($rows, qr/directory "\Q$dir\E" has two NVM pools, "$hidden" and "pool".*HINT: .*Move away the one that is not this server's/s, 'two pools: refused');
$node->fails_with('SELECT nvm.reset_pool()', qr/not available, but not lost/, 'and not lost');
is(files(), "$hidden pool", 'both are there');
$node->stop;
unlink("$dir/pool") or die $!;
$node->start;
whole('after the other one was moved away');

# ---- another server's pool is not renamed

$node->stop;
my $thief = NvmTest->start_new('thief', pool => $dir);
$thief->fails_with('CREATE TABLE t (a int) USING nvm', qr/another database cluster|system identifier/, 'of another cluster');
is(files(), $hidden, 'and keeps its name');
$thief->stop;

# ---- outside of the data directory, and back

my $outside = NvmTest::pool_base() . '/name_outside';
my $record  = $node->data_dir . '/pg_nvm_incarnation';
sub last_was { return $node->safe_psql('postgres', 'SELECT last_directory FROM nvm.pool'); }

$node->set_conf('nvm.pool_directory' => "'$outside'");
$node->start;
$node->fails_with($rows, qr/NVM pool is missing: directory "\Q$outside\E" does not exist\.\nHINT:  It was in directory "\Q$dir\E" when it was last opened\. .*nvm\.reset_pool/s,
	'a wrong directory: the hint says where the pool was');
is(last_was(), $dir, 'nvm.pool, too');

# these places are for those who may read that view, and for the log
foreach my $case ([ 'plain', '' ], [ 'plain', 'SET LOCAL client_min_messages = debug1;' ], [ 'watcher', '' ], [ 'admin', '' ])
{
	my ($role, $set) = @$case;
	my $knows = $role ne 'plain';
	my ($ret, undef, $err) = $node->psql('postgres', "BEGIN; SET LOCAL ROLE $role; $set $rows");

	isnt($ret, 0, "$role $set: no rows");
	if ($knows) { like($err, qr/DETAIL:  At server start: .*"\Q$outside\E".*HINT:.*"\Q$dir\E"/s, "$role sees where the pool is and was"); }
	else
	{
		like($err, qr/ERROR:  nvm tables are not available\nHINT:  Ask an administrator: the server log says why/,
			"$role $set: an administrator is to be asked");
		unlike($err, qr/\Q$outside\E|\Q$dir\E|reset_pool/, "$role $set: and no place named");
		like($node->log_since_start, qr/ERROR:  nvm tables are not available\n.*DETAIL:  At server start: NVM pool is missing: directory "\Q$outside\E" does not exist\.\n.*HINT:  Ask an administrator/,
			"$role $set: the log has the reason");
	}
	($ret, my $shown, $err) = $node->psql('postgres',
		"SET ROLE $role; SELECT count(*) FROM pg_settings WHERE name = 'nvm.pool_directory'; SHOW nvm.pool_directory");
	is($shown, $knows ? "1\n$outside" : '0', "$role $set: the setting");
}
$node->stop;
system_or_bail('mv', $dir, $outside);
$node->start;
is($node->safe_psql('postgres', $rows), '1000|500500', 'the directory was moved out');
is(join(' ', glob("$outside/*")), "$outside/pool", 'the pool has the other name');
is(last_was(), $dir, 'where it was before');
{
	my $session = $node->session;
	my $opened  = $node->times_opened;
	kill('KILL', $session->pid);
	$node->wait_reopened($opened);
	$session->drop;
	is(last_was(), $dir, 'a process dies: that is the same run');
}
$node->restart;
is(last_was(), $outside, 'where it was in the last run');
$node->stop;
system_or_bail('mv', $outside, $dir);
$node->set_conf('nvm.pool_directory' => "'$dir'");
$node->start;
whole('back, by its absolute name');
is(last_was(), $outside, 'and where it was meanwhile');

# the server dies when it notes the place; a record that is torn, or that an earlier
# version did not write, is none
foreach my $place ('place-note', 'place-noted')
{
	$node->stop;
	system_or_bail('mv', $dir, $outside);
	$node->set_conf('nvm.pool_directory' => "'$outside'");
	$node->dies_at_start($place, "the server died at $place");
	$node->start;
	is(last_was(), $place eq 'place-note' ? $dir : $outside, "$place: where it was");
	is($node->safe_psql('postgres', $rows), '1000|500500', "$place: the rows are there");
	$node->stop;
	system_or_bail('mv', $outside, $dir);
	$node->set_conf('nvm.pool_directory' => "'$dir'");
	$node->start;
	is(last_was(), $outside, "$place: and the next time");
}
foreach my $what ('torn', 'absent')
{
	$node->stop;
	is(-s $record, 2 * 512 + 1040, 'there is a record');
	if ($what eq 'torn')
	{
		open(my $fh, '+<:raw', $record) or die $!;
		seek($fh, 1024 + 600, 0);
		print $fh 'x';
		close $fh;
	}
	else { truncate($record, 1024) or die $!; }
	$node->start;
	is(last_was(), '', "$what: nobody knows");
	whole($what);
	$node->restart;
	is(last_was(), $dir, "$what: it is written anew");
}

# ---- where a start removes temporary files no pool is made

$node->stop;
$node->set_conf('nvm.pool_directory' => q('base/pgsql_tmp'));
$node->start;
$node->fails_with($rows, qr/name of a directory of temporary files/, 'base/pgsql_tmp');
$node->stop;
$node->set_conf('nvm.pool_directory' => "'$dir'");
$node->start;
whole('not there');

# ---- what nvm.reset_pool() keeps is left out of backups, too; also of the old name

foreach my $old ($hidden, 'pool')
{
	$node->safe_psql('postgres', 'SELECT nvm.reset_pool(force => true)');
	$node->stop;
	move("$dir/$hidden", "$dir/$old") if $old ne $hidden;
	$node->start;
	is(files(), join(' ', $hidden, map { "$hidden.old.$_" } 1 .. ($old eq 'pool' ? 2 : 1)), "given up: $old");
	$node->fails_with($rows, qr/rows of nvm table "t" are lost/, "given up: $old: the rows are gone");
}
$node->safe_psql('postgres', 'TRUNCATE t; INSERT INTO t VALUES (1)');
$node->check_clean('a new pool');
$node->stop;

done_testing();

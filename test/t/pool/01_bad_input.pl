# Copyright (c) 2026, pg_nvm contributors

# Pools and settings that are wrong.  In every case PostgreSQL starts and its
# other tables work; access to an nvm table raises an error that says what is
# wrong and what to do; and once it is put right the rows are there again.

use strict;
use warnings;

use File::Copy;
use File::Path qw(rmtree);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 2000;

sub patch { PostgreSQL::Test::Utils::system_or_bail($NvmTest::patch_tool, @_); }

sub patch_output
{
	my @lines = split /\n/, (run_command([ $NvmTest::patch_tool, @_ ]))[0];
	return map { [ split ' ' ] } @lines;
}

sub make_node
{
	my ($name, %params) = @_;
	# on a slow machine autovacuum would come in the midst of what fills the pool
	my $node = NvmTest->start_new($name, %params, conf => 'autovacuum = off', sql => <<SQL);
CREATE TABLE t (id int PRIMARY KEY, body text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, $rows) i;
CREATE TABLE h (id int PRIMARY KEY);
INSERT INTO h SELECT generate_series(1, $rows);
SQL
	return $node;
}

sub intact
{
	my ($node, $name) = @_;
	is($node->safe_psql('postgres', 'SELECT count(*), sum(length(body)) FROM t'),
		"$rows|" . $rows * 100, "$name: the rows are there");
}

sub allocated { return (stat($_[0]))[12] * 512; }

# The server runs, with a pool that it refused because of $re.
sub is_refused
{
	my ($node, $re, $name) = @_;

	is($node->safe_psql('postgres', 'SELECT count(*) FROM h'), $rows, "$name: other tables can be read");
	$node->safe_psql('postgres', 'CREATE TABLE h2 (a int); INSERT INTO h2 VALUES (1); DROP TABLE h2');
	$node->fails_with('SELECT * FROM t', $re, "$name: SELECT says why");
	$node->fails_with('SELECT * FROM t', qr/HINT: .../, "$name: and what to do");
	$node->fails_with("INSERT INTO t VALUES (0, '')", $re, "$name: INSERT says why");
	$node->fails_with('UPDATE t SET id = 0', $re, "$name: UPDATE says why");
	$node->fails_with('CREATE TABLE t2 (a int) USING nvm', $re, "$name: CREATE TABLE says why");
	$node->fails_with('TRUNCATE t', $re, "$name: TRUNCATE says why");
	my ($ret, $out, $err) = $node->psql('postgres', 'VACUUM t');
	unlike($err // '', qr/server closed|PANIC/, "$name: VACUUM does no harm");
	like($node->log_since_start, $re, "$name: the log says it at start");
	like($node->log_since_start, qr/WARNING:  nvm tables are not available: /, "$name: as a warning");
	unlike("$err" . $node->log_since_start, qr/\.\.$/m, "$name: one period");
}

# Stop, break, start, look; stop, repair, start, look.
sub refused_while
{
	my ($node, $name, $break, $repair, $re) = @_;

	$node->stop;
	$break->();
	$node->start;
	is_refused($node, $re, $name);
	$node->stop;
	$repair->();
	$node->start;
	intact($node, "$name, put right");
}

my $node = make_node('main');
my $dir  = $node->pool_dir;
my $pool = $node->pool_file;

# ---- the directory and the file

refused_while($node, 'directory missing',
	sub { rename($dir, "$dir.away") or die $! },
	sub { rename("$dir.away", $dir) or die $! },
	qr/NVM pool is missing: directory ".*" does not exist/);

refused_while($node, 'file missing',
	sub { rename($pool, "$pool.away") or die $! },
	sub { rename("$pool.away", $pool) or die $! },
	qr/NVM pool is missing: file ".*" does not exist/);

refused_while($node, 'mode of the directory',
	sub { chmod(0755, $dir) }, sub { chmod(0700, $dir) },
	qr/directory ".*" has wrong permissions: 0755 instead of 0700/);

refused_while($node, 'mode of the file',
	sub { chmod(0644, $pool) }, sub { chmod(0600, $pool) },
	qr/file ".*" has wrong permissions: 0644 instead of 0600/);

refused_while($node, 'a link in place of the file',
	sub { rename($pool, "$pool.away") or die $!; symlink("$pool.away", $pool) },
	sub { unlink($pool); rename("$pool.away", $pool) or die $! },
	qr/is not a regular file/);

SKIP:
{
	my $foreign = $ENV{NVM_CHECK_FOREIGN_DIR};
	skip 'no directory of another owner: only root can make one', 1 unless $foreign && -d $foreign;
	my @st = stat($foreign);
	skip 'the other directory is our own', 1 if $st[4] == $>;
	refused_while($node, 'owner of the directory',
		sub { $node->set_conf('nvm.pool_directory' => "'$foreign'") },
		sub { $node->set_conf('nvm.pool_directory' => "'$dir'") },
		qr/directory ".*" has wrong owner: user id $st[4] instead of $>/);
}

# a new cluster whose pool cannot be made
{
	my $locked = NvmTest::pool_base() . '/locked';
	my $fresh  = NvmTest->new('unwritable');

	mkdir $locked;
	chmod 0500, $locked;
	$fresh->init(pool => "$locked/pool");
	$fresh->start;
	$fresh->safe_psql('postgres', "CREATE TABLE h AS SELECT generate_series(1, $rows) AS id; CREATE EXTENSION pg_nvm");
	$fresh->fails_with('CREATE TABLE t (id int) USING nvm',
		qr/could not create NVM pool directory ".*": Permission denied.*HINT: .../s,
		'unwritable parent: CREATE TABLE says why and what to do');
	$fresh->stop;
	$fresh->set_conf('nvm.pool_directory' => "'$locked/no/such/pool'");
	$fresh->start;
	$fresh->fails_with('CREATE TABLE t (id int) USING nvm',
		qr/could not create NVM pool directory ".*": .*HINT: .../s,
		'no parent: CREATE TABLE says why and what to do');
	$fresh->stop;
	chmod 0700, $locked;
	$fresh->set_conf('nvm.pool_directory' => "'$locked/pool'");
	$fresh->start;
	$fresh->safe_psql('postgres', 'CREATE TABLE t (id int) USING nvm; INSERT INTO t VALUES (1)');
	is($fresh->safe_psql('postgres', 'SELECT id FROM t'), '1', 'unwritable parent, put right');
	$fresh->stop;
}

# ---- pools that belong elsewhere

{
	my $other = make_node('other');
	my $theirs = $other->pool_dir;

	$node->stop;
	$node->set_conf('nvm.pool_directory' => "'$theirs'");
	$node->start;
	is_refused($node, qr/NVM pool ".*" is in use by another server/, 'second server on a live pool');
	$node->stop;
	$other->safe_psql('postgres', "INSERT INTO t VALUES (0, 'still served')");
	$other->stop;
	$node->start;
	is_refused($node, qr/NVM pool ".*" belongs to another database cluster/, 'pool of another cluster');
	$node->stop;
	$other->start;
	is($other->safe_psql('postgres', 'SELECT body FROM t WHERE id = 0'), 'still served',
		'the other cluster lost nothing');
	$other->stop;
	$node->set_conf('nvm.pool_directory' => "'$dir'");
	$node->start;
	intact($node, 'pool of another cluster, put right');
}

# an older copy of the pool beside a newer data directory
{
	$node->stop;
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $pool, "$dir/old");
	$node->start;
	$node->safe_psql('postgres', 'CREATE TABLE later (a int) USING nvm');
	$node->stop;
	rename($pool, "$dir/new") or die $!;
	rename("$dir/old", $pool) or die $!;
	$node->start;
	is_refused($node, qr/NVM pool ".*" (is older than the data directory|and the data directory have different histories|is a copy)/,
		'older copy of the pool');
	$node->stop;
	rename("$dir/new", $pool) or die $!;
	$node->start;
	$node->safe_psql('postgres', 'DROP TABLE later');
	intact($node, 'older copy of the pool, put right');
}

# ---- the header

{
	my ($version) = map { $_->[1] } grep { $_->[0] eq 'min_version' } patch_output($pool, 'header', 0);
	refused_while($node, 'newer version',
		sub { patch($pool, 'set', 'both', $_, $version + 1) foreach ('version', 'min_version') },
		sub { patch($pool, 'set', 'both', $_, $version) foreach ('version', 'min_version') },
		qr/has format version \d+, this pg_nvm knows versions up to \d+/);
}

refused_while($node, 'unknown feature',
	sub { patch($pool, 'set', 'both', 'features_incompat', 1 << 40) },
	sub { patch($pool, 'set', 'both', 'features_incompat', 0) },
	qr/uses features that this pg_nvm does not know/);

foreach my $copy (0, 1)
{
	$node->stop;
	patch($pool, 'flip', 65536 + 4096 * $copy + 100, 3);
	$node->start;
	intact($node, "copy $copy of the header damaged");
	like($node->log_since_start, qr/(WARNING|LOG):.*header/, "copy $copy of the header damaged: the log says so");
}

refused_while($node, 'both copies of the header damaged',
	sub { patch($pool, 'flip', 65536 + 4096 * $_ + 100, 3) foreach (0, 1) },
	sub { patch($pool, 'flip', 65536 + 4096 * $_ + 100, 3) foreach (0, 1) },
	qr/header of NVM pool ".*" is damaged \(copy 0: wrong checksum, copy 1: wrong checksum\)/);

{
	my $size = -s $pool;

	$node->stop;
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $pool, "$dir/whole");
	truncate($pool, $size - 4096) or die $!;
	$node->start;
	is_refused($node, qr/NVM pool ".*" is (truncated|shorter|too short)/, 'truncated');
	$node->stop;
	truncate($pool, 1000) or die $!;
	$node->start;
	is_refused($node, qr/(damaged|truncated|short)/, 'truncated to less than a header');
	$node->stop;
	truncate($pool, 0) or die $!;
	$node->start;
	is_refused($node, qr/(damaged|truncated|short)/, 'empty file');
	$node->stop;
	PostgreSQL::Test::Utils::system_or_bail('cp', "$dir/whole", $pool);
	unlink("$dir/whole");
	$node->start;
	intact($node, 'truncated, put right');
}

# ---- one bit

sub flipped
{
	my ($offset, $bit) = @_;
	$node->stop;
	patch($pool, 'flip', $offset, $bit);
	$node->start;
}

my $dirid;
{
	$node->stop;
	# the blocks of t: the storage with the most blocks
	my %count;
	my @blocks = patch_output($pool, 'blocks');
	$count{ $_->[1] }++ foreach @blocks;
	($dirid) = sort { $count{$b} <=> $count{$a} } keys %count;
	my ($block) = grep { $_->[1] == $dirid && $_->[2] == 5 } @blocks;
	$node->start;

	foreach my $case (
		[ 'header of a block',    8,    2 ],	# its number
		[ 'magic of a block',     0,    0 ],
		[ 'bytes of a row',       2000, 4 ])
	{
		my ($what, $at, $bit) = @$case;
		flipped($block->[0] + $at, $bit);
		my $found = join "\n", $node->check_findings;
		like($found, qr/\b5\b/, "one bit in the $what: the check names the block");
		is($node->safe_psql('postgres', 'SELECT count(*) FROM h'), $rows,
			"one bit in the $what: the server lives");
		my ($ret, $out, $err) = $node->psql('postgres', 'SELECT count(*) FROM t WHERE body IS NOT NULL');
		unlike($err, qr/server closed|PANIC|terminated/, "one bit in the $what: a scan does not crash");
		flipped($block->[0] + $at, $bit);
		intact($node, "one bit in the $what, put right");
		$node->check_clean("one bit in the $what, put right");
	}
}

{
	# extent map: the word of the extent that holds the first blocks of t
	my ($extent) = grep { $_->[3] == 1 && $_->[4] == $dirid && $_->[5] == 0 } patch_output($pool, 'extents');
	foreach my $bit (3, 13, 20, 40)
	{
		flipped($extent->[0] + int($bit / 8), $bit % 8);
		my ($ret, $out, $err) = $node->psql('postgres', 'SELECT count(*) FROM t');
		if ($ret == 0)
		{
			isnt(join("\n", $node->check_findings), '', "bit $bit of the extent map: the check finds it");
		}
		else
		{
			like($err, qr/extent map.*HINT: .../s, "bit $bit of the extent map: access says why and what to do");
		}
		is($node->safe_psql('postgres', 'SELECT count(*) FROM h'), $rows,
			"bit $bit of the extent map: other tables can be read");
		flipped($extent->[0] + int($bit / 8), $bit % 8);
		intact($node, "bit $bit of the extent map, put right");
	}
}

{
	# commit slots: the other copy serves, both damaged is refused
	my @slots = patch_output($pool, 'slots');
	ok(@slots > 0, 'commit slots are in use');
	my $slot = $slots[0];
	foreach my $copy (0, 1)
	{
		flipped($slot->[ 1 + $copy ] + 3, 5);
		intact($node, "one bit in copy $copy of a commit slot");
		$node->safe_psql('postgres', "INSERT INTO t VALUES (-1, ''); DELETE FROM t WHERE id = -1");
		$node->crash;
		$node->start;
		intact($node, "one bit in copy $copy of a commit slot, and a crash");
		like($node->log_since_start, qr/commit slot|recover/, "copy $copy of a commit slot: the log has a line");
	}
	refused_while($node, 'both copies of a commit slot damaged',
		sub { patch($pool, 'flip', $slot->[$_] + 3, 5) foreach (1, 2) },
		sub { patch($pool, 'flip', $slot->[$_] + 3, 5) foreach (1, 2) },
		qr/commit slot.*damaged/i);
	$node->check_clean('commit slots, put right');
}

# ---- settings

$node->stop;
$node->set_conf('shared_preload_libraries' => "''");
$node->start;
is($node->safe_psql('postgres', 'SELECT count(*) FROM h'), $rows, 'not preloaded: other tables can be read');
$node->fails_with('SELECT * FROM t', qr/shared_preload_libraries/, 'not preloaded: SELECT says why');
$node->fails_with('SELECT * FROM t', qr/HINT: .../, 'not preloaded: and what to do');
$node->fails_with('CREATE TABLE t2 (a int) USING nvm', qr/shared_preload_libraries/, 'not preloaded: CREATE TABLE says why');
$node->fails_with('SELECT * FROM nvm.check_pool()', qr/shared_preload_libraries/, 'not preloaded: the checker says why');
$node->fails_with("SELECT nvm.size('t')", qr/shared_preload_libraries/, 'not preloaded: so does nvm.size');
is($node->safe_psql('postgres', "SELECT nvm.size('h'), nvm.size(0) IS NULL"), '0|t', 'not preloaded: what has nothing in the pool has its size');
$node->safe_psql('postgres', 'CREATE DATABASE unprepared');
foreach my $before ('', "LOAD 'pg_nvm'; ")
{
	my ($ret, $out, $err) = $node->psql('unprepared', "${before}CREATE EXTENSION pg_nvm; DROP EXTENSION pg_nvm");
	is($ret, 0, "not preloaded: ${before}CREATE EXTENSION");
	like($err, qr/\A\S* WARNING: .*is not preloaded.*\nHINT: .*shared_preload_libraries = 'pg_nvm'.*\n?\z/, 'and a warning, once');
}
$node->safe_psql('unprepared', 'CREATE EXTENSION pg_nvm');
is(($node->psql('unprepared', 'SELECT nvm.mirror_operator_classes()'))[2], '', 'not preloaded: of the function alone nothing is said');
$node->stop;
$node->set_conf('shared_preload_libraries' => "'pg_nvm'");
$node->start;
intact($node, 'preloaded again');
is(($node->psql('unprepared', 'DROP EXTENSION pg_nvm; CREATE EXTENSION pg_nvm'))[2], '', 'preloaded: CREATE EXTENSION says nothing');
$node->safe_psql('postgres', 'DROP DATABASE unprepared');

{
	# make the pool larger than one chunk, then allow only one
	$node->safe_psql('postgres', "CREATE TABLE big (a int, b text) USING nvm; INSERT INTO big SELECT i, repeat('y', 900) FROM generate_series(1, 120000) i");
	cmp_ok(-s $pool, '>', 64 * 1024 * 1024, 'the pool has grown');
	refused_while($node, 'nvm.pool_max_size smaller than the pool',
		sub { $node->set_conf('nvm.pool_max_size' => "'64MB'") },
		sub { $node->set_conf('nvm.pool_max_size' => "'1GB'") },
		qr/nvm\.pool_max_size/);
	foreach my $change (
		[ 'nvm.pool_max_size'  => "'4GB'" ],
		[ 'nvm.persist_method' => 'msync' ],
		[ 'max_connections'    => 250 ],
		[ 'nvm.persist_method' => 'auto' ],
		[ 'max_connections'    => 20 ])
	{
		$node->stop;
		$node->set_conf(@$change);
		$node->start;
		intact($node, "@$change");
		$node->safe_psql('postgres', "UPDATE t SET body = body WHERE id <= 10; INSERT INTO t VALUES (-1, ''); DELETE FROM t WHERE id = -1");
		$node->crash;
		$node->start;
		intact($node, "@$change, and a crash");
	}
	$node->fails_with("SET nvm.pool_directory = '/tmp'", qr/cannot be changed/, 'nvm.pool_directory in a session');
	is($node->safe_psql('postgres', 'SELECT count(*), sum(length(b)) FROM big'), '120000|108000000', 'the large table is intact');
	$node->check_clean('settings changed');
	$node->stop;
}

# ---- no room: a pool that may not grow, then a device that is full

sub runs_out_of_room
{
	my ($full, $name, $re, $fits) = @_;	# $fits rows fit once, not twice
	my $fill = "INSERT INTO filler SELECT i, repeat('z', 1000) FROM generate_series(1, 400000) i";

	$full->safe_psql('postgres', 'CREATE TABLE filler (a int, b text) USING nvm');
	$full->fails_with($fill, $re, "$name: INSERT says why");
	$full->fails_with($fill, qr/DETAIL: .*HINT: .../s, "$name: with detail and hint");
	is($full->safe_psql('postgres', 'SELECT count(*) FROM filler'), '0', "$name: the statement left nothing");
	intact($full, $name);

	# in a transaction only the savepoint is lost
	is($full->safe_psql('postgres', <<SQL), "1\n1", "$name: a transaction goes on after its savepoint");
\\set ON_ERROR_STOP off
\\set VERBOSITY terse
BEGIN;
INSERT INTO t VALUES (-1, 'kept');
SAVEPOINT s;
$fill;
ROLLBACK TO s;
SELECT count(*) FROM t WHERE id = -1;
COMMIT;
SELECT count(*) FROM t WHERE id = -1;
DELETE FROM t WHERE id = -1;
SQL

	my $data = PostgreSQL::Test::Utils::tempdir() . '/data';
	open(my $fh, '>', $data) or die $!;
	print $fh "$_\t", 'z' x 1000, "\n" foreach (1 .. 250000);
	close $fh;
	$full->fails_with("\\copy filler FROM '$data'", $re, "$name: COPY says why");
	unlink($data);

	# what failed is given back by VACUUM, so that as much as fits can be put in,
	# again and again; then a rewrite does not fit
	$full->safe_psql('postgres', 'VACUUM filler');
	my $most = "INSERT INTO filler SELECT i, repeat('z', 1000) FROM generate_series(1, $fits) i";
	foreach my $round (1 .. 3)
	{
		$full->safe_psql('postgres', $most);
		$full->safe_psql('postgres', 'TRUNCATE filler') if $round < 3;
	}
	$full->fails_with('VACUUM FULL filler', $re, "$name: VACUUM FULL says why");
	$full->fails_with('ALTER TABLE filler ALTER a TYPE bigint', $re, "$name: a rewrite says why");
	is($full->safe_psql('postgres', 'SELECT count(*), sum(length(b)) FROM filler'), "$fits|${fits}000",
		"$name: the table is as it was");
	$full->crash;
	$full->start;
	is($full->safe_psql('postgres', 'SELECT count(*), sum(length(b)) FROM filler'), "$fits|${fits}000",
		"$name: and after a crash");
	$full->safe_psql('postgres', 'DROP TABLE filler');
	$full->safe_psql('postgres', "CREATE TABLE filler (a int, b text) USING nvm; $most");
	intact($full, "$name: space came back");
	$full->check_clean($name);
	$full->stop;
}

{
	my $full = make_node('limited');
	$full->stop;
	$full->set_conf('nvm.pool_max_size' => "'128MB'");
	$full->start;
	runs_out_of_room($full, 'nvm.pool_max_size reached', qr/nvm\.pool_max_size/, 60000);
}

SKIP:
{
	my $small = $ENV{NVM_CHECK_SMALL_DIR};
	skip 'no small device: only root can mount one', 1 unless $small && -w $small;
	my $full = make_node('smalldevice', pool => "$small/pool_full");
	runs_out_of_room($full, 'device full', qr/No space left on device/, 100000);

	rmtree("$small/pool_full");

	# a copy has holes, which are allocated when there is room for them
	my $sparse = make_node('holes', pool => "$small/pool_holes");
	my $pool   = $sparse->pool_file;
	$sparse->stop;
	PostgreSQL::Test::Utils::system_or_bail('cp', '--sparse=always', $pool, "$small/copy");
	chmod(0600, "$small/copy");
	rename("$small/copy", $pool) or die $!;
	cmp_ok(allocated($pool), '<', -s $pool, 'the copy has holes');
	system("head -c 300M /dev/zero > $small/ballast 2>/dev/null");
	$sparse->start;
	is_refused($sparse, qr/could not allocate the holes in NVM pool.*No space left.*HINT: +\d+ MB of the file are holes/s,
		'holes on a full device');
	$sparse->stop;
	unlink("$small/ballast");
	$sparse->start;
	cmp_ok(allocated($pool), '>=', -s $pool, 'with room on the device all of it is allocated');
	intact($sparse, 'a pool that had holes');
	$sparse->stop;
	rmtree("$small/pool_holes");
}

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# nvm_poolcheck, the checks of a pool whose server is down: nothing is wrong
# after a shutdown, a crash, a loss of power; every kind of damage is named, in
# the words and at the place of nvm.check_pool() and nvm.check(); no damage makes
# it crash or hang; it changes nothing, and refuses what a server holds.  The
# images of t/power/01_power_failure and t/btree/09_index_crash are checked by it, too.
#
# Long form: 3000 pools damaged by chance, here 60.

use strict;
use warnings;

use File::Path qw(rmtree);
use IPC::Run ();
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $unit = 8192;
my $tool = 'nvm_poolcheck';

program_help_ok($tool);
program_version_ok($tool);
program_options_handling_ok($tool);

# exit status, or the signal as text; what it says
sub poolcheck
{
	my (@args) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'timeout', '-k', '5', '60', $tool, @args ], '>', \$out, '2>', \$err);
	return ($? & 127 ? 'signal ' . ($? & 127) : $? >> 8, $out, $err);
}

# a test: exit status, expected output
sub says
{
	my ($args, $status, $like, $name) = @_;
	my ($got, $out, $err) = poolcheck(@$args);
	my $good = $got eq $status && ($status == 0 ? $out eq '' && $err !~ /error/ : "$out$err" =~ $like);

	ok($good, $name) or diag("status $got, not $status:\n$out$err" . ($like ? "expected $like\n" : ''));
	return $out;
}

my $node = NvmTest->start_new('main', conf => 'autovacuum = off', sql => <<SQL);
CREATE TABLE t (k int, b text) USING nvm;
INSERT INTO t SELECT i * 10, 'row' || i FROM generate_series(1, 3000) i;
CREATE INDEX i ON t USING nvm_btree (k);
INSERT INTO t SELECT i * 30 + 5, 'new' FROM generate_series(1, 20) i;
UPDATE t SET b = b || '!' WHERE k % 70 = 0;
DELETE FROM t WHERE k % 110 = 0;
CREATE INDEX few ON t USING nvm_btree (k) WITH (persistence = leaves);
CREATE TABLE x (k int) USING nvm;
INSERT INTO x SELECT generate_series(1, 100);
CREATE INDEX none ON x USING nvm_btree (k) WITH (persistence = none);
CREATE TABLE l (id int, body bytea) USING nvm;
ALTER TABLE l ALTER body SET STORAGE EXTERNAL;
INSERT INTO l SELECT i, decode(repeat(md5(i::text), 2000), 'hex') FROM generate_series(1, 5) i;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY) USING nvm;
INSERT INTO u SELECT generate_series(1, 300);
SQL
my %id = split /[|\n]/, $node->safe_psql('postgres', 'SELECT relation, id FROM nvm.relations WHERE NOT ended');
my ($uuid, $incarnation) = split /\|/, $node->safe_psql('postgres', 'SELECT uuid, incarnation FROM nvm.pool');
my ($dir, $pool) = ($node->pool_dir, $node->pool_file);

sub fingerprint
{
	my @st = stat $pool;
	return join ' ', (run_command([ 'sha256sum', $pool ]))[0], @st[ 2, 4, 5, 7, 9, 10 ];
}

# ---------------------------------------------------------------- sound pools

says([ '-P', $dir ], 1, qr/NVM pool "\Q$pool\E" is in use by a server/, 'a running server is refused');
$node->stop;
my $before = fingerprint();
says([ '-P', $dir ], 0, undef, 'after a shutdown nothing is wrong: --pool');
says([ '-D', $node->data_dir ], 0, undef, '--pgdata');
says([ $node->data_dir, '--verbose', '--progress' ], 0, undef, 'the data directory as an argument');
{
	local $ENV{PGDATA} = $node->data_dir;
	says([], 0, undef, 'PGDATA');
}
my ($status, $out, $err) = poolcheck('--describe', '-P', $dir);
is($status, 0, '--describe');
my %said = map { /^([^:]+): +(.*)$/ ? ($1 => $2) : () } split /\n/, $out;
is($said{'Pool identifier'} =~ tr/-//dr, $uuid =~ tr/-//dr, 'the identifier');
is($said{Incarnation}, $incarnation, 'the incarnation');
is($said{'Pool state'}, 'closed', 'the state');
is($said{'Size of the pool'}, -s $pool, 'the size');
cmp_ok($said{'Size used'}, '>', 1_000_000, 'the size used');
cmp_ok($said{'Size used'}, '<', $said{'Size of the pool'}, 'is less');
is(fingerprint(), $before, 'the file is as it was');

# where the pool is
my $conf = $node->data_dir . '/postgresql.conf';
my $conf_text = slurp_file($conf);
$node->adjust_conf('postgresql.conf', 'nvm.pool_directory', "'elsewhere'");
says([ '-D', $node->data_dir ], 1, qr{could not access NVM pool "\Q${\$node->data_dir}\E/elsewhere/pgsql_tmp.nvm_pool.do_not_delete": No such file}, 'a relative directory is one in the data directory');
$node->adjust_conf('postgresql.conf', 'nvm.pool_directory', undef);
says([ '-D', $node->data_dir ], 1, qr{could not access NVM pool "\Q${\$node->data_dir}\E/pg_nvm/pgsql_tmp.nvm_pool.do_not_delete": No such file}, 'the default');
append_to_file($node->data_dir . '/postgresql.auto.conf', "nvm.pool_directory = '$dir'\n");
says([ '-D', $node->data_dir ], 0, undef, 'ALTER SYSTEM');
$node->adjust_conf('postgresql.auto.conf', 'nvm.pool_directory', undef);
open(my $fh, '>', $conf) or die $!;
print $fh $conf_text;
close $fh;
says([ '-D', $node->basedir ], 1, qr/could not find out the settings/, 'what is no data directory');
says([ '-D', 'x', '-P', 'y' ], 1, qr/cannot be used together/, 'two places');

# what cannot be read
SKIP:
{
	skip 'root may read everything', 2 if $> == 0;
	chmod 0000, $pool;
	says([ '-P', $dir ], 1, qr/could not open NVM pool .*Permission denied/, 'a file that may not be read');
	chmod 0600, $pool;
	chmod 0000, $dir;
	says([ '-P', $dir ], 1, qr/could not access NVM pool .*Permission denied/, 'a directory that may not be searched');
	chmod 0700, $dir;
}
my $odd = $node->basedir . '/odd';
mkdir $odd, 0700;
mkdir "$odd/pool", 0700;
says([ '-P', $odd ], 1, qr/is not a regular file/, 'a directory named pool');
rmdir "$odd/pool";

# crashes
$node->start;
$node->safe_psql('postgres', 'CREATE TABLE p (id int PRIMARY KEY) USING nvm');
my $session = $node->session;
$session->sql("BEGIN; INSERT INTO t SELECT i, 'open' FROM generate_series(1, 2000) i; CREATE TABLE n (a int) USING nvm; INSERT INTO n VALUES (1); UPDATE l SET id = id + 1; SELECT 1");
$node->safe_psql('postgres', 'INSERT INTO p SELECT generate_series(1, 1000); DELETE FROM p WHERE id < 900');
$node->crash;
$before = fingerprint();
says([ '-P', $dir ], 0, undef, 'after a crash nothing is wrong');
is(fingerprint(), $before, 'the file is as the crash left it');
like((poolcheck('-d', '-P', $dir))[1], qr/^Pool state: +in use, or left by a crash\n.*^Transactions undecided: +[1-9]/ms, '--describe says what it was');
$node->start;
$node->check_clean('the server agrees');
$node->crash;
says([ '-P', $dir ], 0, undef, 'nor after another one, before the collector was done');
$node->start;
$node->safe_psql('postgres', 'VACUUM t; DROP TABLE p');
$node->stop;
says([ '-P', $dir ], 0, undef, 'nor after a shutdown');

# loss of power
my $sim = NvmTest->start_new('sim', simulate => 1, sql => <<SQL);
CREATE TABLE t (k int PRIMARY KEY, b text) USING nvm;
INSERT INTO t SELECT i * 7 % 1009, repeat('x', i % 100) FROM generate_series(1, 1000) i;
SQL
my $load = $sim->session;
$load->sql("BEGIN; INSERT INTO t SELECT i * 11 % 10007 + 2000, repeat('y', i % 50) FROM generate_series(1, 800) i; UPDATE t SET b = b || 'z' WHERE k < 300; SELECT 1");
my $old = $sim->power_failure(seed => 1, mode => 'durable', keep => 1);
says([ '-P', $sim->pool_dir ], 0, undef, 'after a loss of power nothing is wrong: what is known to be durable');
foreach my $seed (2 .. 4)
{
	$sim->make_image($old, $seed);
	says([ '-P', $sim->pool_dir ], 0, undef, "image $seed");
}
rmtree($_) foreach $old, $sim->pool_dir;

# ---------------------------------------------------------------- damage

my $whole = $node->basedir . '/whole';
my $data  = $node->basedir . '/whole_data';
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', '--sparse=always', $pool, $whole);
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $node->data_dir, $data);

sub patch_lines { return map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $pool, @_ ]))[0]; }
my @extents = patch_lines('extents');
my @blocks  = grep { $_->[1] == $id{t} } patch_lines('blocks');
my ($slot)  = patch_lines('slots');
my ($entries) = map { $_->[1] } grep { $_->[3] == 3 } @extents;

sub block_offsets
{
	my ($id) = @_;
	return map { my $e = $_; map { $e->[1] + $_ * $unit } 0 .. $e->[2] - 1 }
	  sort { $a->[5] <=> $b->[5] } grep { $_->[3] == 1 && $_->[4] == $id } @extents;
}

# What is overwritten is put back by mend()
my @undo;
open($fh, '+<:raw', $pool) or die $!;
sub get { my ($at, $format, $n) = @_; seek($fh, $at, 0) or die $!; read($fh, my $bytes, $n) == $n or die 'short read'; return unpack($format, $bytes); }
sub put_bytes
{
	my ($at, $bytes) = @_;
	push @undo, [ $at, get($at, 'a*', length $bytes) ];
	seek($fh, $at, 0) or die $!;
	print $fh $bytes or die $!;
	$fh->flush;
	return;
}
sub put { my ($at, $format, @values) = @_; return put_bytes($at, pack($format, @values)); }
sub mend
{
	while (my $u = pop @undo)
	{
		seek($fh, $u->[0], 0) or die $!;
		print $fh $u->[1] or die $!;
	}
	$fh->flush;
	return;
}

# pages of the index by block number, leaves in the order of their links; not those that
# are ready and not used (NVM_INDEX_LIVE)
my @index = block_offsets($id{i});
my %page  = map { get($_ + 8, 'L', 4) => $_ } grep { get($_, 'L', 4) == 0x5849564E && (get($_ + 42, 'S', 2) & 0x0010) } @index;
my ($root) = grep { get($_ + 40, 'S', 2) == 1 } values %page;
my @leaf = grep { get($_ + 40, 'S', 2) == 0 && get($_ + 32, 'L', 4) == 0 } values %page;
push @leaf, $page{ get($leaf[-1] + 36, 'L', 4) } while get($leaf[-1] + 36, 'L', 4) != 0;
cmp_ok(scalar @leaf, '>', 5, 'the index has two levels');
my @n = map { get($_ + 8, 'L', 4) } @leaf;

# a row version of t that is its own root and whose begin is a stamp, and a large value
my ($block) = grep { get($_->[0], 'L', 4) == 0x4B42564E } @blocks;
my $version = $block->[0] + 3 * 32;
my ($large) = map { $_->[1] } grep { $_->[3] == 2 } @extents;
my ($table_word) = map { $_->[0] } grep { $_->[3] == 1 && $_->[4] == $id{t} } @extents;
my $map_unit = $table_word / 8;
my ($last_extent) = sort { $b->[5] <=> $a->[5] } grep { $_->[3] == 1 && $_->[4] == $id{t} } @extents;
my $t = "storage $id{t} \\(database \\d+, relation file \\d+\\)";
my $i = "storage $id{i} \\(database \\d+, relation file \\d+, index of relation \\d+\\)";
my $free_unit = 8191;

# name, what is said, what is done
my @damage = (
	[ 'both headers', qr/^header, copy 0: wrong checksum\nheader, copy 1: wrong magic number$/m, sub { put(65536 + 100, 'C', 99); put(69632, 'L', 0); } ],
	[ 'one header', qr/^header, copy 1: wrong checksum$/m, sub { put(69632 + 72, 'L', 12345); } ],
	[ 'after the header', qr/^chunk 0: reserved bytes after the header are set$/m, sub { put(80000, 'C', 1); } ],
	[ 'map word', qr/^extent map, chunk 0, unit $map_unit: wrong checksum$/m, sub { put($table_word, 'C', get($table_word, 'C', 1) ^ 1); } ],
	[ 'map word that is lost', qr/^extent map: extent 0 of storage $id{t} \(.*is missing$/m, sub { put($table_word, 'Q', 0); } ],
	[ 'last map word that is lost', qr/^extent map: extent $last_extent->[5] of storage $id{t} \(.*is missing$/m, sub { put($last_extent->[0], 'Q', 0); } ],
	[ 'number of extents', qr/^directory entry $id{t}: wrong checksum of the number of extents$/m, sub { put($entries + 128 * $id{t} + 72, 'L', 1); } ],
	[ 'map word of the map', qr/^extent map, chunk 0, unit 7: word of a unit that cannot be allocated is set$/m, sub { put(56, 'Q', 1); } ],
	[ 'map word inside of an extent', qr/^extent map, chunk 0, unit $map_unit: map word inside an extent is not zero$/m, sub { put($table_word + 24, 'Q', 1 << 13); } ],
	[ 'map word where nothing is', qr/^extent map, chunk 0, unit $free_unit: wrong checksum$/m, sub { put(8 * $free_unit, 'Q', 1 << 13); } ],
	[ 'directory entry', qr/^directory entry $id{t}: wrong checksum$/m, sub { put($entries + 128 * $id{t} + 8, 'L', 77); } ],
	[ 'directory entry that is lost', qr/^extent map, chunk 0, unit $map_unit: owner of the extent does not exist\nunit \d+: extent belongs to storage $id{t}, which does not exist$/m, sub { put($entries + 128 * $id{t} + 56, 'Q', 0); } ],
	[ 'stamp of a directory entry', qr/^directory entry $id{t}: begin stamp names commit slot 5000, which was never used$/m, sub { put($entries + 128 * $id{t} + 56, 'Q', (5000 << 48) | 3); } ],
	[ 'one copy of a commit slot', qr/^commit slot $slot->[0]: copy 0: its commit word fails its check$/m, sub { put($slot->[1] + 56, 'C', get($slot->[1] + 56, 'C', 1) ^ 1); } ],
	[ 'both copies of a commit slot', qr/^commit slot $slot->[0]: both copies are damaged: its commit word fails its check; it is zero|its commit word fails its check; its transaction id fails its check$/m, sub { put($slot->[1] + 56, 'C', get($slot->[1] + 56, 'C', 1) ^ 1); put($slot->[2], 'Q', 0x77777); } ],
	[ 'commit slot behind the used ones', qr/^commit slot \d+: it is blank, but slot 300 is in use$/m, sub { put(131072 + 300 * 128 + 56, 'Q', 1); } ],
	[ 'commit slot far behind', qr/^commit slot 9000: it is not blank, but no lower slot leads to it$/m, sub { put(131072 + 9000 * 128, 'Q', 1); } ],
	[ 'header of a block', qr/^$t, block $block->[2]: block says that it is block 99 of storage $id{t}$/m, sub { put($block->[0] + 8, 'L', 99); } ],
	[ 'checksum of a block', qr/^$t, block $block->[2]: wrong checksum in the block's header$/m, sub { put($block->[0] + 20, 'L', 99); } ],
	[ 'magic number of a block', qr/^$t, block $block->[2]: wrong magic number 00000011$/m, sub { put($block->[0], 'L', 17); } ],
	[ 'row', qr/^$t, block $block->[2], offset 3: wrong checksum$/m, sub { put($version + 48 + 24, 'C', get($version + 48 + 24, 'C', 1) ^ 1); } ],
	[ 'length of a row', qr/^$t, block $block->[2], offset 3: length 60000 does not fit/m, sub { put($version + 40, 'S', 60000); } ],
	[ 'stamp of a row', qr/^$t, block $block->[2], offset 3: begin stamp \d+ of commit slot $slot->[0] was never handed out$/m, sub { put($version + 24, 'Q', ($slot->[0] << 48) | 1_000_000_000); } ],
	[ 'starts bit', qr/^$t, block $block->[2], offset 3: cells 3 to \d+ are in use, but belong to no version$/m, sub { put($block->[0] + 32, 'C', get($block->[0] + 32, 'C', 1) & ~8); } ],
	[ 'large value', qr/^storage $id{l} .*, block \d+, offset \d+: large value at pool offset \d+ has a wrong checksum$/m, sub { put($large + 1000, 'C', get($large + 1000, 'C', 1) ^ 1); } ],
	[ 'large value of another row', qr/large value at pool offset $large belongs to another version$/m, sub { put($large + 24, 'L', 12345); } ],
	[ 'magic number of a page', qr/^$i, block $n[3]: page says that it is block $n[3] of storage $id{i}, magic number 00000011$/m, sub { put($leaf[3], 'L', 17); } ],
	[ 'checksum of a page', qr/^$i, block $n[3]: wrong checksum in the page's header$/m, sub { put($leaf[3] + 12, 'L', 1); } ],
	[ 'left link', qr/^$i, block $n[3]: left link leads to block $n[1], the page before is $n[2]$/m, sub { put($leaf[3] + 32, 'L', $n[1]); } ],
	[ 'right link back', qr/^$i, block $n[1]: page is reached twice$/m, sub { put($leaf[3] + 36, 'L', $n[1]); } ],
	[ 'right link out of the index', qr/^$i, block 99999: a link leads to block 99999 of \d+$/m, sub { put($leaf[3] + 36, 'L', 99999); } ],
	[ 'right link over a page', qr/^$i, block $n[3]: page is live, but nothing leads to it$/m, sub { put($leaf[2] + 36, 'L', $n[4]); } ],
	[ 'level', qr/^$i, block $n[3]: page is of level 2, reached on level 0$/m, sub { put($leaf[3] + 40, 'S', 2); } ],
	[ 'not live', qr/^$i, block $n[3]: page of the tree is not marked as live$/m, sub { put($leaf[3] + 42, 'S', get($leaf[3] + 42, 'S', 2) & ~0x10); } ],
	[ 'number of entries', qr/^$i, block $n[3]: bounds do not fit/m, sub { put($leaf[3] + 44, 'S', 4000); } ],
	[ 'an entry twice', qr/^$i, block $n[3], entry \d+: entry of the base is at byte \d+ instead of \d+$/m, sub { put($leaf[3] + 64 + 10, 'S', get($leaf[3] + 64 + 12, 'S', 2)); } ],
	[ 'downlink', qr/^$i, block \d+, entry \d+: another downlink leads to block $n[1], too$/m, sub { my $word = get($root + 64 + 2 * 3, 'S', 2); put($root + ($word & 0x3ff) * 8, 'S2', 0, $n[1]); } ],
	[ 'root', qr/^$i, block 77777: a link leads to block 77777 of \d+$/m, sub { put($index[0] + 24, 'L2', 77777, 1); } ],
	[ 'no root', qr/^$i, block \d+: page is live, but nothing leads to it$/m, sub { put($index[0] + 24, 'L2', 0, 0); } ],
	[ 'reserved bytes', qr/^$i, block 0: reserved bytes of the meta page are not zero$/m, sub { put($index[0] + 40, 'L', 1); } ],
	[ 'leaf of an index with persistence = leaves', qr/^storage $id{few} .*left link leads to block/m, sub { my ($p) = grep { get($_, 'L', 4) == 0x5849564E && get($_ + 40, 'S', 2) == 0 && get($_ + 32, 'L', 4) != 0 } block_offsets($id{few}); put($p + 32, 'L', 3333); } ],);

my $only = $ENV{NVM_DAMAGE_ONLY};
foreach my $d (grep { !$only || $_->[0] eq $only } @damage)
{
	$d->[2]->();
	my $said = says([ '-P', $dir ], 2, $d->[1], "$d->[0]: is found");
	like($said, $d->[1], "$d->[0]: on standard output") unless $said =~ $d->[1];
	mend();
}

# redo lanes: what counts is applied, to the program's copy of the page alone
my ($start) = (run_command([ $NvmTest::patch_tool, $pool, 'lane', 2, $leaf[3], 0, 64 ]))[0];
$before = fingerprint();
says([ '-P', $dir ], 2, qr/^$i, block $n[3]: page says that it is block 0 of storage 0, magic number 00000000$/m, 'a redo lane that counts is taken into account');
is(fingerprint(), $before, 'not in the file');
put($start + 8, 'L', 9);
says([ '-P', $dir ], 2, qr/^redo lane 2: wrong checksum$/m, 'a damaged redo lane');
mend();
put($start, 'Q', 0);
undef @undo;
says([ '-P', $dir ], 0, undef, 'all damage is mended');

# a loss of power in the clean close tears the copy that is written second: it has words
# of the header before, in some fields
foreach my $at (65536, 69632)
{
	put($at + 76, 'L', 0);
	says([ '-P', $dir ], 0, undef, 'a copy of the header that the close was writing');
	says([ '-P', $dir, '--verbose' ], 0, qr/header, copy \d: wrong checksum/, 'which is said');
	put($at + 64, 'Q', 99);
	says([ '-P', $dir ], 2, qr/^header, copy \d: wrong checksum$/m, 'but not one that has something else');
	mend();
}
undef @undo;

# ---------------------------------------------------------------- the server agrees

# what it opens all the same: each finding of nvm.check_pool(), and of nvm.check()
# as far as it is not about keys
my %agree = map { $_ => 1 } ('after the header', 'map word inside of an extent', 'row', 'large value', 'left link', 'reserved bytes');
$_->[2]->() foreach grep { $agree{ $_->[0] } && $_->[0] ne 'reserved bytes' } @damage;
(undef, $out) = poolcheck('-P', $dir);
my @mine = sort split /\n/, $out;
undef @undo;
$node->start;
my %storage_of = (t => $id{t}, i => $id{i}, l => $id{l});
my @theirs = split /\n/, $node->safe_psql('postgres', "SELECT c.place || ': ' || c.problem FROM nvm.check_pool() c(place, problem)");
foreach my $rel (sort keys %storage_of)
{
	my $fmt = $node->safe_psql('postgres', "SELECT format('storage $id{$rel}, block %s%s: %s', blkno, ', offset ' || nullif(off, 0), problem) FROM nvm.check('$rel') WHERE blkno IS NOT NULL");
	push @theirs, split /\n/, $fmt;
}
s/^(storage \d+) \([^)]*\)/$1/, s/large value of attribute \d+/large value/ foreach @mine, @theirs;
is_deeply(\@mine, [ sort @theirs ], 'nvm_poolcheck finds what nvm.check_pool() and nvm.check() find')
  or diag(join "\n", 'offline:', @mine, 'server:', sort @theirs);
cmp_ok(scalar @mine, '>=', 5, 'each damage was found');
$node->stop('immediate');
close $fh;

sub put_back
{
	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $node->data_dir);
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $data, $node->data_dir);
	PostgreSQL::Test::Utils::system_or_bail('cp', '--sparse=always', $whole, $pool);
	open($fh, '+<:raw', $pool) or die $!;
	return;
}

# what it refuses: in the same words
foreach my $name ('map word that is lost', 'both copies of a commit slot')
{
	put_back();
	my ($d) = grep { $_->[0] eq $name } @damage;
	$d->[2]->();
	undef @undo;
	close $fh;
	(undef, $out) = poolcheck('-P', $dir);
	$out =~ /^(?:extent map|commit slot \d+): (.*)/m or die $out;
	my $problem = $1 =~ s/^both copies are damaged: //r;
	$node->start;
	like($node->log_since_start, qr/nvm tables are not available: .*\Q$problem\E/, "$name: the server refuses the pool for what was found");
	$node->stop;
}
put_back();

# ---------------------------------------------------------------- a file that is cut off, or none

close $fh;
truncate($pool, 1 << 25);
says([ '-P', $dir ], 2, qr/^pool file: is truncated: 33554432 bytes instead of \d+$/m, 'half of the file');
truncate($pool, 66000);
says([ '-P', $dir ], 2, qr/^header, copy 1: file too short$|^pool file: is truncated/m, 'one header');
truncate($pool, 100);
says([ '-P', $dir ], 2, qr/^header, copy 0: file too short\nheader, copy 1: file too short$/m, 'less than the headers');
truncate($pool, 0);
says([ '-P', $dir ], 2, qr/file too short/, 'an empty file');
put_back();
run_command([ $NvmTest::patch_tool, $pool, 'set', 'both', 'min_version', 9 ]);
says([ '-P', $dir ], 1, qr/has format version \d+, this nvm_poolcheck knows versions up to/, 'a later format');
run_command([ $NvmTest::patch_tool, $pool, 'set', 'both', 'min_version', 1 ]);
run_command([ $NvmTest::patch_tool, $pool, 'set', 'both', 'nchunks', 500000 ]);
says([ '-P', $dir ], 2, qr/^pool file: is truncated|another layout/m, 'more chunks than there are');
run_command([ $NvmTest::patch_tool, $pool, 'set', 'both', 'nchunks', 1 ]);
says([ '-P', $dir ], 0, undef, 'as it was');

# ---------------------------------------------------------------- any damage

my @places = ([ 0, 65536 ], [ 65536, 66048 ], [ 69632, 70144 ], [ 131072, 131072 + 1024 ], [ $entries, $entries + 2048 ],
	(map { [ $_->[0], $_->[0] + 16 ] } @extents), (map { [ $_, $_ + 128 ] } $large),
	(map { [ $_, $_ + $unit ] } (map { $_->[0] } @blocks), values %page, $index[0]));
my $runs  = $ENV{NVM_FUZZ_SEEDS} // (NvmTest::is_long() ? 3000 : 60);
my $first = $ENV{NVM_FUZZ_SEED} // 1;
my $until = time() + (NvmTest::is_long() ? 600 : 8);
my ($done, $hits, @bad) = (0, 0);
open($fh, '+<:raw', $pool) or die $!;
foreach my $seed ($first .. $first + $runs - 1)
{
	srand($seed);
	foreach (1 .. 1 + int(rand(8)))
	{
		my $place = $places[ int(rand(@places)) ];
		my $at = $place->[0] + int(rand($place->[1] - $place->[0]));
		my $how = rand();
		if ($how < 0.4) { put($at, 'C', get($at, 'C', 1) ^ (1 << int(rand(8)))); }
		elsif ($how < 0.7) { $at -= $at % 8; put($at, 'Q', rand() < 0.3 ? ~0 : int(rand(1 << 30)) << int(rand(34))); }
		elsif ($how < 0.8)
		{
			# from somewhere else
			my $other = $places[ int(rand(@places)) ];
			$at -= $at % 64;
			put_bytes($at, get($other->[0] - $other->[0] % 64, 'a64', 64));
		}
		else { $at -= $at % 64; put_bytes($at, rand() < 0.5 ? "\0" x 64 : join '', map { chr(int(rand(256))) } 1 .. 64); }
	}
	my ($got, undef, $stderr) = poolcheck('-P', $dir);
	push @bad, "seed $seed: $got $stderr" unless $got =~ /^[012]$/ && $stderr !~ /signal|offset \d+$/m;
	$hits++ if $got eq '2';
	mend();
	$done++;
	last if time() > $until;
}
close $fh;
is(join("\n", @bad), '', "$done pools damaged by chance: no crash, no end without");
cmp_ok($hits, '>', $done / 3, "damage was found in $hits of them");
says([ '-P', $dir ], 0, undef, 'and the pool is mended');

done_testing();

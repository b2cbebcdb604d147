# Copyright (c) 2026, pg_nvm contributors

# Bits that flip in the blocks of a table: what depends on them says so, names
# the place, and the server and the other rows live on.  Mostly with nvm.ignore_damage, which
# keeps the first look at a block from finding them (t/damage/02_first_look is about that): what is left
# is saved in this way.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('damaged', conf => "autovacuum = off\nnvm.ignore_damage = on\n", sql => <<SQL);
CREATE TABLE t (id int PRIMARY KEY, body text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 50) FROM generate_series(1, 10) i;
CREATE TABLE u (id int PRIMARY KEY, body text) USING nvm;
INSERT INTO u SELECT i, repeat('x', 50) FROM generate_series(1, 10) i;
CREATE TABLE l (id int PRIMARY KEY, body text) USING nvm;
ALTER TABLE l ALTER body SET STORAGE EXTERNAL;
INSERT INTO l SELECT i, repeat('y', 100000) FROM generate_series(1, 3) i;
CREATE TABLE h AS SELECT generate_series(1, 10) AS id;
SQL

sub patch { PostgreSQL::Test::Utils::system_or_bail($NvmTest::patch_tool, $node->pool_file, @_); }

# offset in the pool of block 0 of a table
sub block_of
{
	my ($table) = @_;
	my $storage = $node->safe_psql('postgres',
		"SELECT i.id FROM nvm.relations_info() i WHERE NOT ended AND i.relfilenode = pg_relation_filenode('$table')");
	my @blocks = map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $node->pool_file, 'blocks' ]))[0];
	my ($block) = grep { $_->[1] == $storage && $_->[2] == 0 } @blocks;
	return $block->[0];
}

sub offset_number
{
	my ($table, $id) = @_;
	return $node->safe_psql('postgres', "SELECT (ctid::text::point)[1]::int FROM $table WHERE id = $id");
}

sub flip
{
	my ($at, $bit) = @_;
	$node->stop;
	patch('flip', $at, $bit);
	$node->start;
}

my $check = "SELECT block, \"offset\", problem FROM nvm.check('%s') c(block, \"offset\", problem)";
my $cell = offset_number('t', 4);
my ($block_t, $block_u, $block_l) = map { block_of($_) } qw(t u l);

# a bit of starts is lost: the row is not in scans, but not without a word
flip($block_t + 32 + int($cell / 8), $cell % 8);
$node->fails_with('SET nvm.ignore_damage = off; SELECT count(*) FROM t',
	qr/ERROR:  row version \(0,$cell\) of nvm table "t" is damaged: cells $cell to \d+ are in use.*HINT/s,
	'lost starts bit: the first look at the block finds it');
is($node->safe_psql('postgres', 'SET enable_indexscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM t'),
	9, 'lost starts bit: a scan does not find the row');
like($node->safe_psql('postgres', sprintf($check, 't')), qr/^0\|$cell\|cells $cell to \d+ are in use, but belong to no version$/,
	'nvm.check() finds it');
my ($ret, $out, $err) = $node->psql('postgres', "INSERT INTO t VALUES (11, repeat('z', 50))");
like($err, qr/WARNING:.*block 0 of .* is damaged and takes no rows: cells $cell to .*HINT/s, 'whoever looks for space there is warned');
($ret, $out, $err) = $node->psql('postgres', "UPDATE t SET body = 'new' WHERE id = 3");
ok($ret == 0, 'another row of the block can be changed');
$node->safe_psql('postgres', 'VACUUM t');
($ret, $out, $err) = $node->psql('postgres', "INSERT INTO t SELECT i, repeat('z', 50) FROM generate_series(12, 100) i");
ok($ret == 0, 'rows can be added');
like($node->safe_psql('postgres', sprintf($check, 't')), qr/^0\|$cell\|cells $cell to \d+ are in use, but belong to no version$/,
	'nvm.check() still finds it');
$node->stop;
patch('flip', $block_t + 32 + int($cell / 8), $cell % 8);
$node->start;
is($node->safe_psql('postgres', 'SELECT body FROM t WHERE id = 4'), 'x' x 50, 'the row was kept');
is($node->safe_psql('postgres', sprintf($check, 't')), '', 'and all is well with the bit back');

# a byte of a row: whoever copies it or follows its lengths verifies it first
$cell = offset_number('u', 5);
flip($block_u + $cell * 32 + 48 + 24 + 6, 7);
like($node->safe_psql('postgres', sprintf($check, 'u')), qr/^0\|$cell\|wrong checksum$/, 'damaged row: nvm.check() finds it');
foreach my $sql ('VACUUM FULL u', 'CLUSTER u USING u_pkey', "UPDATE u SET body = body WHERE ctid = '(0,$cell)'",
	"DELETE FROM u WHERE ctid = '(0,$cell)'")
{
	$node->fails_with($sql, qr/ERROR:  row version \(0,$cell\) of nvm table "u" is damaged: wrong length or checksum.*HINT/s,
		"$sql: refused, and says where");
}
is($node->safe_psql('postgres', "UPDATE u SET body = 'new' WHERE id < 5; SELECT count(*) FROM u WHERE body = 'new'"),
	4, 'other rows can be changed');

# where a row goes on, in the high bits of the block number: an index leads there
$cell = offset_number('u', 9);
$node->safe_psql('postgres', "UPDATE u SET body = 'newer' WHERE id = 9");
flip($block_u + $cell * 32 + 5, 6);
foreach my $sql ("SELECT body FROM u WHERE id = 9", "UPDATE u SET body = 'newest' WHERE id = 9", 'CREATE INDEX ON u (body)')
{
	$node->fails_with("SET enable_seqscan = off; $sql",
		qr/ERROR:  nvm relation file \S+ is damaged: a row version leads to \(\d{8,},\d+\), which does not exist.*HINT/s,
		"link that leads nowhere: $sql");
}
isnt($node->safe_psql('postgres', sprintf($check, 'u')), '', 'nvm.check() finds it');
is($node->safe_psql('postgres', 'SELECT count(*) FROM u WHERE id < 9'), 8, 'the other rows can be read');

# the place of a large value
$cell = offset_number('l', 2);
foreach my $bit (3, 6)
{
	# the stand-in of the value is behind the id: tag byte, kind, pool offset
	my $at = $block_l + $cell * 32 + 48 + 24 + 4 + 2 + ($bit == 3 ? 1 : 6);
	flip($at, $bit);
	$node->fails_with('SELECT sum(length(body)) FROM l', qr/ERROR:  no large value at pool offset \d+.*HINT/s,
		"pool offset with bit $bit flipped: refused");
	isnt($node->safe_psql('postgres', sprintf($check, 'l')), '', 'nvm.check() finds it');
	$node->stop;
	patch('flip', $at, $bit);
	$node->start;
}
is($node->safe_psql('postgres', 'SELECT sum(length(body)) FROM l'), 300000, 'the values are back');
is($node->safe_psql('postgres', 'SELECT count(*) FROM h'), 10, 'other tables can be read');

# what a crash leaves is no damage
$node->psql('postgres', <<SQL);
BEGIN;
UPDATE t SET body = 'rolled back';
DELETE FROM t WHERE id < 20;
SQL
$node->stop('immediate');
$node->start;
is($node->safe_psql('postgres', sprintf($check, 't')), '', 'no alarm after a crash');
is($node->safe_psql('postgres', 'SELECT count(*) FROM t'), 100, 'all rows are there');
$node->safe_psql('postgres', "UPDATE t SET body = 'after'; VACUUM t");
is($node->safe_psql('postgres', sprintf($check, 't')), '', 'nor when the blocks are used again');
$node->stop;
unlike($node->log_since_start, qr/PANIC|terminated by signal|TRAP:/, 'nothing crashed');

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# The first who comes to a block of a table, a page of an index or a large value after a start
# verifies it: one kind of damage at a time, most of which t/damage/07_fuzz has found in the form of a crash
# of the server, a statement without end, or an answer that was wrong without a word.
# Each statement that meets it is an error that names the place, others are served, and
# nvm.check() finds it.

use strict;
use warnings;

use NvmCrash;
use NvmFuzzImage;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my %dir;
my $base = NvmCrash::make_base('look', schema => <<'SQL', fill => \&fill);
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int PRIMARY KEY, body text) USING nvm;
INSERT INTO t SELECT i, md5(i::text) || repeat('x', 80) FROM generate_series(1, 600) i;
CREATE TABLE l (id int PRIMARY KEY, body text) USING nvm;
ALTER TABLE l ALTER body SET STORAGE EXTERNAL;
INSERT INTO l SELECT i, repeat(md5(i::text), 1000) FROM generate_series(1, 3) i;
CREATE TABLE x (id int, b text) USING nvm;
INSERT INTO x SELECT i, repeat(md5(i::text), 6) FROM generate_series(1, 1500) i;
CREATE INDEX x_b ON x (b);
CREATE INDEX x_id ON x (id);
SQL

sub fill
{
	my ($node) = @_;
	%dir = split /[|\n]/, $node->safe_psql('postgres', 'SELECT relation, id FROM nvm.relations WHERE NOT ended');
	return;
}

# the versions of the row with this id, oldest first
sub versions
{
	my ($image, $table, $id) = @_;
	my @found;

	foreach my $v ($image->things('version'))
	{
		next unless $v->{dir} == $dir{$table};
		my $hoff = $image->number($v->{at} + 48 + 22, 1);
		push @found, $v if $image->number($v->{at} + 48 + $hoff, 4) == $id;
	}
	return sort { $image->field($a, 'begin') <=> $image->field($b, 'begin') } @found;
}

sub pages { my ($image, $index) = @_; return grep { $_->{dir} == $dir{$index} } $image->things('page'); }

# those with areas: behind them are some that are ready and not used
sub blocks
{
	my ($image, $table) = @_;
	return sort { $a->{blk} <=> $b->{blk} } grep { $_->{dir} == $dir{$table} && $image->get($_->{at} + 32, 32) ne "\0" x 32 } $image->things('block');
}

my $by_table = 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; ';
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off; ';

# what is done before, and whether that run crashes
our ($before, $crash);

# One case: damage (IMAGE) returns what else it wants to say; then statements and what they say.
sub look
{
	my ($name, $damage, @statements) = @_;
	my $rig = NvmCrash->new($base);
	if ($before)
	{
		$rig->start or die 'the server does not start: ' . $rig->log_since_start;
		$rig->psql("$before;\n");
		$crash ? $rig->crash : $rig->stop;
	}
	my $image = NvmFuzzImage->new("$rig->{pool}/pool");
	my ($place) = $damage->($image);
	$place //= '';
	$rig->start or die 'the server does not start: ' . $rig->log_since_start;
	while (my ($sql, $expected) = splice(@statements, 0, 2))
	{
		my ($out, $status, $err) = $rig->psql("SET statement_timeout = '120s'; $sql;\n");
		$expected =~ s/PLACE/$place/g;
		like("$out$err", qr/$expected/s, "$name: $sql");
	}
	$rig->stop;
	unlike($rig->log_since_start, qr{PANIC|terminated by signal|TRAP:}, "$name: nothing crashed or hung");
	return;
}

my $hint = 'HINT:  Run nvm.check';
my $refused = sub { my ($text) = @_; return "ERROR:  $text.*$hint"; };
my $all_rows = "SELECT 'sum', count(*), sum(length(body)) FROM t";

look('nothing', sub { },
	"$by_table $all_rows", '^(?!.*ERROR)sum\|600\|', "$by_index $all_rows WHERE id > 0", '^(?!.*ERROR)sum\|600\|',
	"SELECT count(*) FROM nvm.check('t', true)", '^0$', "SELECT count(*) FROM nvm.check('x', true)", '^0$');

# ---- versions

sub of_row
{
	my ($name, $id, $text, $damage) = @_;
	my $where = 'row version \(PLACE\) of nvm table "t" is damaged: ' . $text;

	look($name,
		sub {
			my ($image) = @_;
			my ($v) = versions($image, 't', $id);
			$damage->($image, $v);
			return "$v->{blk},$v->{cell}";
		},
		"$by_table $all_rows", $refused->($where),
		"$by_index SELECT length(body) FROM t WHERE id = $id", $refused->($where),
		"$by_index SELECT length(body) FROM t WHERE id = " . ($id + 1), '^112$',
		"$by_index UPDATE t SET body = 'new' WHERE id = $id", $refused->($where),
		'VACUUM t', $refused->($where),
		"SELECT problem FROM nvm.check('t', true)", $text . '.*the rows are not held against the indexes',
		"$by_index SET nvm.ignore_damage = on; SELECT count(body) FROM t WHERE id = " . ($id + 1), '^1$');
	return;
}

of_row('where the data begins', 100, 'wrong checksum', sub { $_[0]->put($_[1], 'tuple_hoff', 0x58) });
of_row('length', 100, 'length \d+ does not fit', sub { $_[0]->put($_[1], 'len', 7000) });
of_row('a byte of a column', 100, 'wrong checksum', sub { $_[0]->store($_[1]{at} + 90, 1, 1) });
of_row('begin stamp of nobody', 100, 'begin stamp names commit slot', sub { $_[0]->put($_[1], 'begin', (9999 << 48) + 5) });
of_row('no begin stamp', 100, 'version has no begin stamp', sub { $_[0]->put($_[1], 'begin', 0) });
of_row('dead since a transaction that is to come', 100, 'marked as dead by transaction id 281474976710655, which is in the future',
	sub { $_[0]->put($_[1], 'begin', ~0) });
of_row('a starts bit that was lost', 100, 'cells \d+ to \d+ are in use, but belong to no version', sub {
	my ($image, $v) = @_;
	my ($block) = grep { $_->{blk} == $v->{blk} } blocks($image, 't');
	my $field = 'starts' . int($v->{cell} / 64);
	$image->put($block, $field, $image->field($block, $field) & ~(1 << ($v->{cell} % 64)));
});

# ---- chains

$before = "UPDATE t SET body = repeat('y', 3000) WHERE id = 5";
look('a version of the row in another block',
	sub {
		my ($image) = @_;
		my @v = versions($image, 't', 5);
		isnt($v[0]{blk}, $v[1]{blk}, 'it is in another one');
		$image->put($v[1], 'tuple_hoff', 0x58);
		return "$v[0]{blk},$v[0]{cell}";
	},
	"$by_index SELECT length(body) FROM t WHERE id = 5",
	$refused->('row version \(PLACE\) of nvm table "t" is damaged: version \(\d+,\d+\) of the row has a wrong checksum'),
	"$by_table $all_rows", 'ERROR:.*damaged', "$by_index SELECT length(body) FROM t WHERE id = 6", '^112$');
look('the link to the newest version is lost',
	sub {
		my ($image) = @_;
		my @v = versions($image, 't', 5);
		$image->put($v[0], 'next', $image->field($v[0], 'next') & (0xFFFF << 48));
		return "$v[1]{blk},$v[1]{cell}";
	},
	"$by_table $all_rows", $refused->('row version \(PLACE\) of nvm table "t" is damaged: its root \(0,\d+\) does not lead to it'),
	"SELECT problem FROM nvm.check('t')", 'does not lead to it');
$crash = 1;
look('the newest version was never written, says a run that crashed',
	sub {
		my ($image) = @_;
		my @v = versions($image, 't', 5);
		$image->set($v[1]{at}, "\0" x (48 + $image->field($v[1], 'len')));
		return "$v[0]{blk},$v[0]{cell}";
	},
	"$by_table $all_rows", $refused->('row version \(PLACE\) of nvm table "t" is damaged: version \(\d+,\d+\), where the row goes on, has no begin stamp'),
	"$by_index SELECT length(body) FROM t WHERE id = 5", 'ERROR:.*where the row goes on',
	"SELECT problem FROM nvm.check('t')", 'where the row goes on, has no begin stamp');
$crash = 0;
look('an old version that has not ended',
	sub {
		my ($image) = @_;
		my @v = versions($image, 't', 5);
		$image->put($v[0], 'end', 0);
		return "$v[0]{blk},$v[0]{cell}";
	},
	"$by_table $all_rows", $refused->('row version \(PLACE\) of nvm table "t" is damaged: version \(\d+,\d+\) follows one that has not ended'),
	"SELECT problem FROM nvm.check('t')", 'follows one that has not ended');
look('a root that is marked as unlinked',
	sub {
		my ($image) = @_;
		my @v = versions($image, 't', 5);
		$image->put($v[0], 'begin', (0xFFFE << 48) + 700);
		return "$v[0]{blk},$v[0]{cell}";
	},
	"$by_index SELECT length(body) FROM t WHERE id = 5",
	$refused->('row version \(PLACE\) of nvm table "t" is damaged: marked as dead, but the row goes on at \(\d+,\d+\)'),
	"$by_table $all_rows", 'ERROR:.*damaged', "SELECT problem FROM nvm.check('t')", 'marked as dead, but the row goes on');
$before = "UPDATE t SET body = repeat('z', 3000) WHERE id = 5; BEGIN; SELECT 1 FROM t WHERE id = 5 FOR UPDATE; PREPARE TRANSACTION 'p'";
look('a row that a prepared transaction has locked',
	sub {
		my ($image) = @_;
		my @v = versions($image, 't', 5);
		$image->put($_, 'end', (9999 << 48) + 7) foreach @v;
		$image->put($_, 'tuple_xend', 3498370471) foreach @v;
		return '';
	},
	'SELECT count(*) FROM x', '^1500$', "$by_index SELECT body FROM t WHERE id = 5", 'ERROR:  row version', "ROLLBACK PREPARED 'p'", '^$');
$before = undef;

# ---- blocks

foreach my $which (3, -1)
{
	look("magic number of block $which",
		sub {
			my ($image) = @_;
			my $block = (blocks($image, 't'))[$which];
			$image->put($block, 'magic', 0x4B42564F);
			return $block->{blk};
		},
		"$by_table $all_rows", $refused->('block PLACE of nvm table "t" is damaged: wrong magic number'),
		"SELECT block, problem FROM nvm.check('t', true) c(block, off, problem)", 'PLACE\|wrong magic number', "$by_index SELECT 'x' FROM t WHERE id = 6", 'x');
}
look('the last block has no magic number',
	sub {
		my ($image) = @_;
		my $block = (blocks($image, 't'))[-1];
		$image->put($block, 'magic', 0);
		return $block->{blk};
	},
	"$by_table $all_rows", $refused->('block PLACE of nvm table "t" is damaged: block has no magic number, but is not empty'),
	"SELECT block, problem FROM nvm.check('t') c(block, off, problem)", 'PLACE\|block has no magic number');
look('an empty block',
	sub {
		my ($image) = @_;
		my $block = (blocks($image, 't'))[2];
		$image->set($block->{at}, "\0" x 8192);
		return $block->{blk};
	},
	"$by_table $all_rows", $refused->('block PLACE of nvm table "t" is damaged: block is empty, although no run of the server has crashed'),
	"SELECT block, problem FROM nvm.check('t') c(block, off, problem)", 'PLACE\|block is empty');
look('a byte of a large value',
	sub {
		my ($image) = @_;
		my ($bytes) = grep { $_->{dir} == $dir{l} } $image->things('largebytes');
		$image->store($bytes->{at} + 5000, 1, 1);
		return $bytes->{head}{at};
	},
	'SELECT sum(length(body)) FROM l', $refused->('large value at pool offset PLACE is damaged: wrong checksum'),
	'SELECT id FROM l', '^1\n2\n3$', "SELECT problem FROM nvm.check('l')", 'large value .* has a wrong checksum');

# ---- indexes

sub of_page
{
	my ($name, $index, $text, $damage) = @_;
	my $column = $index eq 'x_id' ? 'id' : 'b';

	look($name,
		sub { my ($image) = @_; return $damage->($image, pages($image, $index)); },
		"$by_index SELECT count($column) FROM (SELECT $column FROM x ORDER BY $column OFFSET 0) s",
		'ERROR:  block PLACE of index "' . $index . '" is damaged: ' . $text . '.*HINT:  REINDEX the index',
		"$by_table SELECT count(*) FROM x", '^1500$',
		"SELECT problem FROM nvm.check('x')", $index,
		"REINDEX INDEX $index; $by_index SELECT count($column) FROM (SELECT $column FROM x ORDER BY $column OFFSET 0) s", '^1500$');
	return;
}

# the leaves as they follow each other
sub leaves
{
	my ($image, @pages) = @_;
	my %page = map { $_->{blk} => $_ } grep { $image->field($_, 'level') == 0 } @pages;
	my ($page) = grep { $image->field($_, 'left') == 0 } values %page;
	my @leaves;

	while ($page)
	{
		push @leaves, $page;
		$page = $page{ $image->field($page, 'right') };
	}
	return @leaves;
}

of_page('right links in a circle', 'x_b', '(?:right link|entry \d+: downlink) leads to block \d+, which does not (?:lead back|follow the one before)', sub {
	my ($image, @pages) = @_;
	my @leaves = leaves($image, @pages);
	$image->put($leaves[5], 'right', $leaves[2]{blk});
	# their parent may be looked at first
	return '\d+';
});
of_page('a left link to itself', 'x_b', 'left link leads to block \d+, which does not lead back', sub {
	my ($image, @pages) = @_;
	my @leaves = leaves($image, @pages);
	$image->put($leaves[0], 'left', $leaves[0]{blk});
	return $leaves[0]{blk};
});
of_page('a downlink to another leaf', 'x_id', 'entry \d+: downlink leads to block \d+, which does not follow the one before', sub {
	my ($image, @pages) = @_;
	my ($root) = grep { $image->field($_, 'level') == 1 } @pages;
	my @leaves = leaves($image, @pages);
	my @down = grep { $_->{dir} == $root->{dir} && $_->{blk} == $root->{blk} } $image->things('entry');
	$image->put($down[2], 'block_lo', $leaves[3]{blk});
	return $root->{blk};
});
of_page('a circle of downlinks', 'x_id', 'entry \d+: downlink leads to block \d+, which is of another level', sub {
	my ($image, @pages) = @_;
	my ($root) = grep { $image->field($_, 'level') == 1 } @pages;
	my @down = grep { $_->{dir} == $root->{dir} && $_->{blk} == $root->{blk} } $image->things('entry');
	$image->put($down[1], 'block_lo', $root->{blk});
	return $root->{blk};
});
of_page('entries out of order', 'x_id', 'entry \d+: entry is less than the one before it', sub {
	my ($image, @pages) = @_;
	my ($leaf) = leaves($image, @pages);
	my @two = map { $leaf->{at} + 8 * ($image->number($leaf->{at} + 64 + 2 * $_, 2) & 0x3ff) } 10, 40;
	my @entry = map { [ $image->number($_, 8), $image->number($_ + 8, 8) ] } @two;
	$image->store($two[$_], 8, $entry[ 1 - $_ ][0]), $image->store($two[$_] + 8, 8, $entry[ 1 - $_ ][1]) for 0, 1;
	return $leaf->{blk};
});
of_page('length of a column in an entry', 'x_b', 'entry \d+: columns do not fit the entry', sub {
	my ($image, @pages) = @_;
	my ($leaf) = leaves($image, @pages);
	my @keys = grep { $_->{dir} == $leaf->{dir} && $_->{blk} == $leaf->{blk} } $image->things('key');
	# a header of four bytes, of a length beyond all
	$image->store($keys[3]{at}, 4, 0xFFFFFFF0);
	return $leaf->{blk};
});
of_page('a place that no row has', 'x_b', 'entry \d+: entry leads to \(\d+,24861\), which is no place of a row', sub {
	my ($image, @pages) = @_;
	my ($leaf) = leaves($image, @pages);
	my ($entry) = grep { $_->{dir} == $leaf->{dir} && $image->field($_, 'block_lo') == 4 } $image->things('entry');
	$image->put($entry, 'offset', 0x611d);
	return $entry->{blk};
});
of_page('two words of a leaf out of order', 'x_b', 'entry 2: entry of the base is at byte \d+ instead of \d+', sub {
	my ($image, @pages) = @_;
	my $leaf = (leaves($image, @pages))[3];
	my ($one, $two) = map { $image->number($leaf->{at} + 64 + 2 * $_, 2) } 1, 2;
	$image->store($leaf->{at} + 66, 2, $two);
	$image->store($leaf->{at} + 68, 2, $one);
	return $leaf->{blk};
});
of_page('the last entry of a leaf is not counted', 'x_b', '\d+ entries of the base end at byte \d+ of 8192', sub {
	my ($image, @pages) = @_;
	my $leaf = (leaves($image, @pages))[3];
	$image->put($leaf, 'nbase', $image->field($leaf, 'nbase') - 1);
	return $leaf->{blk};
});
look('marks of entries as dead, of an earlier run',
	sub {
		my ($image) = @_;
		foreach my $leaf (leaves($image, pages($image, 'x_id')))
		{
			my $at = $leaf->{at} + 64 + 2 * 20;
			$image->store($at, 2, $image->number($at, 2) | 0x8000);
		}
	},
	"$by_index SELECT count(id) FROM (SELECT id FROM x ORDER BY id OFFSET 0) s", '^1500$',
	"SELECT count(*) FROM nvm.check('x', true)", '^0$');
$before = 'DELETE FROM t WHERE id = 300';
look('an entry of a dead row that leads to no row',
	sub {
		my ($image) = @_;
		my ($v) = versions($image, 't', 300);
		my ($live) = versions($image, 't', 301);
		my ($entry) = grep { $_->{dir} == $dir{t_pkey} && $image->field($_, 'offset') == $v->{cell} &&
			  $image->field($_, 'block_lo') == $v->{blk} } $image->things('entry');
		is($live->{blk}, $v->{blk}, 'the next row is in that block');
		$image->put($entry, 'offset', $live->{cell} + 1);
		return "$v->{blk}," . ($live->{cell} + 1);
	},
	# VACUUM takes the entry for another one's, and the block is visible to all without the row, once
	# nobody's snapshot is as old as that
	'VACUUM t', '^$', 'SELECT pg_current_xact_id() IS NULL', '^f$',
	$by_index . 'DO $$ BEGIN FOR i IN 1..100 LOOP ' .
	  'EXIT WHEN (SELECT count(*) FROM (SELECT id FROM t WHERE id > 0 OFFSET 0) s) = 600; PERFORM pg_sleep(0.1); END LOOP; END $$', '^$',
	"$by_table SELECT count(*) FROM t", '^599$',
	"$by_index SELECT count(*) FROM (SELECT id FROM t WHERE id > 0 OFFSET 0) s", '^600$',
	"SELECT problem FROM nvm.check('t', true)", 'entry leads to \(PLACE\), where there is no row, in a block that is noted as visible to all transactions',
	"REINDEX INDEX t_pkey; $by_index SELECT count(*) FROM (SELECT id FROM t WHERE id > 0 OFFSET 0) s", '^599$',
	"SELECT problem FROM nvm.check('t', true)", '^$');
$before = undef;
look('a lock of this run that nobody holds',
	sub {
		my ($image) = @_;
		my $leaf = (leaves($image, pages($image, 'x_id')))[1];
		# both copies may be of different starts: the next run is the later one's
		my ($inc) = sort { $b <=> $a } map { $image->field($_, 'incarnation') } $image->things('header');
		$image->put($leaf, 'lock', (($inc + 1 & 0xFFFF) << 48) | 5);
		return $leaf->{blk};
	},
	"$by_index SELECT count(id) FROM (SELECT id FROM x ORDER BY id OFFSET 0) s",
	'ERROR:  block PLACE of the index in storage \d+ of the NVM pool is damaged: it is locked by nobody',
	"$by_index SET statement_timeout = '1s'; SELECT count(id) FROM (SELECT id FROM x ORDER BY id OFFSET 0) s",
	'canceling statement',
	"REINDEX INDEX x_id; $by_index SELECT count(id) FROM (SELECT id FROM x ORDER BY id OFFSET 0) s", '^1500$');

done_testing();

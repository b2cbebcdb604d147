# Copyright (c) 2026, pg_nvm contributors

# The last extents of a storage, or its only one, whose word in the extent map is lost: zero, as
# one that was never written.  The storage was shorter then, and nobody knew: rows were
# missing, an index found nothing, and insertions made extents of the same number.  A
# directory entry counts the extents.

use strict;
use warnings;

use IPC::Run ();
use NvmFuzzImage;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 3000;
my $node = NvmTest->start_new('main', conf => 'autovacuum = off', sql => <<SQL);
CREATE TABLE t (k int, b text) USING nvm;
CREATE INDEX t_k ON t USING nvm_btree (k);
INSERT INTO t SELECT i, repeat('x', 300) FROM generate_series(1, $rows) i;
CREATE TABLE few (k int, b text) USING nvm;
INSERT INTO few SELECT i, 'few' FROM generate_series(1, 100) i;
CREATE INDEX few_k ON few USING nvm_btree (k);
CREATE TABLE later (k int) USING nvm;
CREATE TABLE large (k int, b text) USING nvm;
ALTER TABLE large ALTER b SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, repeat(md5(i::text), 2000) FROM generate_series(1, 5) i;
SQL
my $pool = $node->pool_file;

sub id
{
	my ($rel) = @_;
	return $node->safe_psql('postgres',
		"SELECT i.id FROM nvm.relations_info() i WHERE NOT ended AND i.relfilenode = pg_relation_filenode('$rel')");
}
my %id = map { $_ => id($_) } qw(t t_k few few_k later large);

# offset of the map word, and number, of each extent of blocks, or of large values
sub extents
{
	my ($rel, $kind) = @_;
	my @all = map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $pool, 'extents' ]))[0];
	return map { [ $_->[0], $_->[5] ] } sort { $a->[5] <=> $b->[5] } grep { $_->[3] == ($kind // 1) && $_->[4] == $id{$rel} } @all;
}

sub counted
{
	my ($rel) = @_;
	my $image = NvmFuzzImage->new($pool);
	my ($entry) = grep { $_->{id} == $id{$rel} } $image->things('direntry');
	return ($image, $entry, $image->field($entry, 'counted') & 0xFFFFFFFF);
}

sub intact
{
	my ($name) = @_;
	my @right = ("$rows|" . 300 * $rows, "$rows|" . 300 * $rows, '100|300', '100|300');
	my $got = '';
	foreach my $how ([ 'off', 'on' ], [ 'on', 'off' ])
	{
		$got .= $node->safe_psql('postgres', "SET enable_seqscan = $how->[1]; SET enable_indexscan = $how->[0]; SET enable_bitmapscan = off; "
			  . "SELECT count(*), sum(length(b)) FROM $_ WHERE k > 0") . "\n" foreach qw(t few);
	}
	is($got, join("\n", @right[ 0, 2, 1, 3 ], ''), "$name: all rows are there, by table and by index");
	return;
}

sub poolcheck_says
{
	my ($re, $name) = @_;
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'nvm_poolcheck', '-P', $node->pool_dir ], '>', \$out, '2>', \$err);
	is($? >> 8, 2, "$name: nvm_poolcheck finds damage") or diag("$out$err");
	like($out, $re, "$name: nvm_poolcheck names it");
	return;
}

# The words of the last $n extents are lost; the server is down, and is down again in the end.
sub loses
{
	my ($rel, $n, $name) = @_;
	my @extents = extents($rel);
	my ($image) = counted($rel);
	my @lost = splice(@extents, -$n);
	my %word = map { $_->[0] => $image->number($_->[0], 8) } @lost;
	my $missing = qr/extent $lost[0][1] of storage $id{$rel} \(database \d+, relation file \d+\) is missing/;

	$image->store($_->[0], 8, 0) foreach @lost;
	poolcheck_says(qr/^extent map: $missing$/m, $name);
	$node->start;
	$node->fails_with("SELECT count(*) FROM $rel" =~ s/_k$//r, $missing, "$name: an access says why it is refused");
	$node->fails_with('INSERT INTO few VALUES (0)', $missing, "$name: an insertion, too");
	like($node->log_since_start, $missing, "$name: so does the log");
	$node->stop;
	$image->store($_, 8, $word{$_}) foreach keys %word;
	return;
}

cmp_ok(scalar extents('t'), '>', 2, 'a table of several extents');
cmp_ok(scalar extents('t_k'), '>', 1, 'an index of several extents');
is(scalar extents($_), 1, "$_ has one") foreach qw(few few_k);
is(scalar extents('later'), 0, 'one that is empty has none');
foreach my $how ('stop', 'crash')
{
	$node->$how;
	loses($_, 1, "$how, the last extent of $_") foreach qw(t t_k few few_k);
	loses('t', 2, "$how, the last two of t");
	$node->start;
	intact("$how, put back");
}

# ---- the count

# goes along
my $before = scalar extents('t');
is((counted('t'))[2], $before, 'as many are counted as there are');
$node->safe_psql('postgres', "INSERT INTO later SELECT 1; INSERT INTO t SELECT -i, repeat('x', 300) FROM generate_series(1, 3000) i");
cmp_ok(scalar extents('t'), '>', $before, 'more extents');
is((counted($_))[2], scalar extents($_), "$_: they are counted") foreach qw(t later);
$node->safe_psql('postgres', 'DELETE FROM t WHERE k < 0; VACUUM t');
$node->check_clean('count');

# a death between an extent and its count
$node->psql('postgres', "SET nvm.failpoint = 'pool-extent-count:crash'; INSERT INTO later SELECT i FROM generate_series(1, 100000) i");
$node->wait_crashed;
is(scalar extents('later') - (counted('later'))[2], 1, 'one that is not counted yet');
$node->start;
is((counted('later'))[2], scalar extents('later'), 'the next start counts it');
is($node->safe_psql('postgres', 'SELECT count(*) FROM later'), 1, 'and the rows are those of before');

# deaths when there are fewer from now on
foreach my $place (qw(pool-empty-uncounted pool-empty-extent pool-dir-free))
{
	$node->safe_psql('postgres', "CREATE TABLE gone USING nvm AS SELECT * FROM t; CREATE INDEX ON gone USING nvm_btree (k)");
	$node->psql('postgres', "SET nvm.failpoint = '$place:crash'; DROP TABLE gone");
	$node->wait_crashed;
	$node->start;
	intact("dead at $place");
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps are not collected';
	$node->safe_psql('postgres', 'CREATE TABLE again (k int) USING nvm; INSERT INTO again VALUES (1); TRUNCATE again; INSERT INTO again VALUES (2)');
	is($node->safe_psql('postgres', 'SELECT * FROM again'), 2, 'TRUNCATE');
	$node->restart;
	is($node->safe_psql('postgres', 'SELECT * FROM again; DROP TABLE again'), 2, 'and after a start');
	$node->check_clean("dead at $place");
}

# a pool of before there were counts
$node->stop;
foreach my $rel (keys %id)
{
	my ($image, $entry) = counted($rel);
	$image->put($entry, 'counted', 0);
}
PostgreSQL::Test::Utils::system_or_bail($NvmTest::patch_tool, $pool, 'set', 'both', 'features_incompat', 0);
$node->start;
intact('a pool without counts');
is((counted($_))[2], scalar extents($_), "$_: is counted by the start") foreach sort keys %id;
like((run_command([ $NvmTest::patch_tool, $pool, 'header', 0 ]))[0], qr/^features_incompat 1$/m, 'and says that older code does not know it');
$node->stop;
loses('few', 1, 'what the start has counted');

# a count that is damaged, and one that is too high: also when the server is up
my ($image, $entry, $n) = counted('few');
my $word = $image->field($entry, 'counted');
$image->put($entry, 'counted', $word ^ (1 << 3));
poolcheck_says(qr/^directory entry $id{few}: wrong checksum of the number of extents$/m, 'a damaged count');
$node->start;
$node->fails_with('SELECT count(*) FROM t', qr/directory entry $id{few} of NVM pool .* is damaged: wrong checksum of the number of extents/, 'a damaged count');
$node->stop;
$image->put($entry, 'counted', $word);
$node->start;
intact('the right count');
$image->put($entry, 'counted', $n + 1);
$image->seal($entry);
like($node->safe_psql('postgres', 'SELECT place, problem FROM nvm.check_pool()'),
	qr/^extent map\|extent $n of storage $id{few} \(.*\) is missing$/m, 'nvm.check_pool() says that there are fewer than are counted');
$image->put($entry, 'counted', $word);

# ---- large values: nobody counts them, but whoever comes first to a row looks whether they are there

$node->safe_psql('postgres', "CREATE TABLE other (LIKE large) USING nvm; ALTER TABLE other ALTER b SET STORAGE EXTERNAL");
my ($lost) = extents('large', 2);
$node->stop;
$image->store($lost->[0], 8, 0);
my ($saved, $saved_data) = ($node->basedir . '/lost', $node->basedir . '/lost_data');
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', '--sparse=always', $pool, $saved);
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $node->data_dir, $saved_data);
my $gone = qr/row version \(0,\d+\) of nvm table "large" is damaged: large value of attribute 2 at pool offset \d+ is not where the version says/;
my $taken = qr/row version \(0,\d+\) of nvm table "large" is damaged: large value of attribute 2 at pool offset \d+ (?:belongs to another version|is not where)/;

# their units go to a value of the same place in another table, or of this one
foreach my $to ('other', 'large')
{
	my $query = 'SELECT count(*) FROM large WHERE b <> repeat(md5(k::text), 2000)';
	$node->start;
	$node->fails_with($query, $gone, "$to: a large value whose extent is lost") if $to eq 'large';
	$node->safe_psql('postgres', "INSERT INTO $to SELECT i, repeat(md5(i::text), 2000) FROM generate_series(6, 9) i");
	$node->fails_with($query, $taken, "$to: the same when others have its units");
	$node->fails_with('ALTER TABLE large ALTER k TYPE bigint', qr/row version \(0,\d+\) of nvm table "large" is damaged: large value at pool offset \d+ /,
		"$to: who looks at no columns");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM other WHERE b = repeat(md5(k::text), 2000)'), 4, "$to: those others are right") if $to eq 'other';
	$node->stop;
	next if $to eq 'large';
	PostgreSQL::Test::Utils::system_or_bail('cp', '--sparse=always', $saved, $pool);
	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $node->data_dir);
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $saved_data, $node->data_dir);
}

# of a version in another block than its root, which who comes by an index asks about first
$node->start;
$node->safe_psql('postgres', <<SQL);
CREATE TABLE moved (k int, pad text, b text) USING nvm;
ALTER TABLE moved ALTER b SET STORAGE EXTERNAL;
INSERT INTO moved SELECT i, repeat('p', 250), NULL FROM generate_series(1, 100) i;
CREATE INDEX moved_k ON moved USING nvm_btree (k);
UPDATE moved SET b = repeat(md5(k::text), 2000) WHERE k = 3;
SQL
my ($block) = $node->safe_psql('postgres', 'SELECT ctid FROM moved WHERE k = 3') =~ /^\((\d+),/;
cmp_ok($block, '>', 0, "the row goes on in block $block");
$id{moved} = id('moved');
my ($lost_moved) = extents('moved', 2);
$node->stop;
$image->store($lost_moved->[0], 8, 0);
$node->start;
$node->safe_psql('postgres', 'INSERT INTO other SELECT i, repeat(md5(i::text), 2000) FROM generate_series(16, 19) i');
foreach my $way (qw(indexscan bitmapscan))
{
	$node->fails_with("SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_indexscan = off; SET enable_$way = on; SELECT md5(b) FROM moved WHERE k = 3",
		qr/row version \($block,\d+\) of nvm table "moved" is damaged: large value of attribute 3 at pool offset \d+ (?:belongs to another version|is not where)/,
		"$way: a version that is not in its root's block");
}
is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*) FROM moved WHERE k < 3 OR k BETWEEN 4 AND 10'), 9, 'other rows of both blocks');
$node->stop;
done_testing();

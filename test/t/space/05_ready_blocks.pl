# Copyright (c) 2026, pg_nvm contributors

# New blocks of tables, and new pages of indexes, are made ready many at a time: a
# COPY does not wait once for each block.  What is ready and not used when the server
# stops, or dies in the middle of making it, is harmless, and is used later.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $rows = 300_000;

sub fences
{
	my ($node) = @_;
	return $node->safe_psql('postgres', 'SELECT fences FROM nvm.stat_wbl');
}

# of one server: how many fences a statement takes in a session of its own
sub fences_of
{
	my ($node, $sql) = @_;
	my $before = fences($node);
	$node->safe_psql('postgres', $sql);
	return fences($node) - $before;
}

sub blocks
{
	my ($node, $rel) = @_;
	return $node->safe_psql('postgres', "SELECT blocks FROM nvm.relations WHERE relation = '$rel'::regclass");
}

# ---- fences ----

my $node = NvmTest->start_new('fences', conf => 'autovacuum = off');
my $file = $node->basedir . '/rows';
$node->safe_psql('postgres', <<SQL);
CREATE TABLE t (id int, b text) USING nvm;
CREATE TABLE x (id int) USING nvm;
CREATE INDEX x_id ON x USING nvm_btree (id);
CREATE TABLE small (id int) USING nvm;
COPY (SELECT i, repeat('x', 80) FROM generate_series(1, $rows) i) TO '$file';
SQL
my $n = fences_of($node, "COPY t FROM '$file'");
my $grown = blocks($node, 't');
cmp_ok($grown, '>', 3000, "the table has $grown blocks");
cmp_ok($n, '<', $grown / 10, "COPY of $rows rows takes $n fences");

# each split has a lane's fences and a downlink's
$n = fences_of($node, 'INSERT INTO x SELECT i FROM generate_series(1, 200000) i');
$grown = blocks($node, 'x_id');
note("an index of $grown pages: $n fences");
cmp_ok($n, '<', 7 * $grown, 'a page of an index is not one fence more');

# a small table does not get blocks in advance that it has no use for
$node->safe_psql('postgres', 'INSERT INTO small VALUES (1)');
$node->restart;
is(blocks($node, 'small'), 1, 'one row, one block after a restart');
is(blocks($node, 't'), $node->safe_psql('postgres', 'SELECT max((ctid::text::point)[0]::int) + 1 FROM t'),
	'after a clean stop no block is left that is not used');
is(blocks($node, 'x_id'), $grown, 'nor in an index');
$node->safe_psql('postgres', "INSERT INTO t SELECT i, repeat('y', 80) FROM generate_series(1, 2000) i");
$node->safe_psql('postgres', 'INSERT INTO x SELECT i FROM generate_series(1, 20000) i');
$node->check_clean('after a clean stop');
$node->stop;

# ---- zeroed ahead ----

# A session that finds no room waits for those that were zeroing when it came, and
# not for those that begin later.
$node = NvmTest->start_new('zeroing', conf => <<CONF, sql => <<SQL);
autovacuum = off
nvm.persist_method = msync
nvm.pool_max_size = '512MB'
CONF
CREATE TABLE large (id int, b text) USING nvm;
ALTER TABLE large ALTER b SET STORAGE EXTERNAL;
INSERT INTO large SELECT i, repeat('x', 24000000) FROM generate_series(1, 2) i;
SQL
# what is free then is not known to be zero
$node->restart;
$node->safe_psql('postgres', 'CREATE TABLE first (id int) USING nvm; CREATE TABLE second (id int) USING nvm');

sub size { return $node->safe_psql('postgres', 'SELECT size / 1024 / 1024 FROM nvm.pool'); }

# Sleeps that it has begun; who waits for room sleeps a millisecond at a time.
sub sleeps
{
	my ($pid) = @_;
	slurp_file("/proc/$pid/status") =~ /^voluntary_ctxt_switches:\s+(\d+)/m or die "no switches of $pid";
	return $1;
}

is(size(), 64, 'the pool has its first size');
{
	my ($first, $waits, $second) = map { $node->session } 1 .. 3;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	my ($before, $steady) = (0, 0);

	$first->stop_at('pool-extent-zero', 'INSERT INTO first VALUES (1)');
	$waits->send(q{INSERT INTO large SELECT 3, repeat('x', 24000000)});
	while ($steady < 3 && time() < $end)
	{
		my $now = sleeps($waits->pid);

		$steady = $now > $before + 30 && $before > 0 ? $steady + 1 : 0;
		$before = $now;
		usleep(200_000);
	}
	is($steady, 3, 'a session waits for room');
	is(size(), 64, 'instead of growing the pool');
	$second->stop_at('pool-extent-zero', 'INSERT INTO second VALUES (1)');
	$first->go_on;
	my $state = 'SELECT state FROM pg_stat_activity WHERE pid = ' . $waits->pid;
	$end = time() + 30;
	usleep(100_000) while $node->safe_psql('postgres', $state) eq 'active' && time() < $end;
	is($node->safe_psql('postgres', $state), 'idle', 'it does not wait for one that began to zero after it');
	is(size(), 128, 'it has grown the pool');
	$second->go_on;
	$_->sql('SELECT 1') foreach $first, $waits, $second;
	$_->drop foreach $first, $waits, $second;
}
is($node->safe_psql('postgres', 'SELECT count(*), sum(length(b)) FROM large; SELECT count(*) FROM first, second'),
	"3|72000000\n1", 'all of them have their rows');

# what was zeroed ahead is not zeroed again when something before it becomes free
sub flushed
{
	my ($sql) = @_;
	my $bytes = 'SELECT bytes FROM nvm.stat_wbl';
	my $before = $node->safe_psql('postgres', $bytes);
	$node->safe_psql('postgres', $sql);
	return $node->safe_psql('postgres', $bytes) - $before;
}
my $cycle = 'CREATE TABLE z (id int) USING nvm; INSERT INTO z VALUES (1); DROP TABLE z';
my @flushed = map { flushed($cycle) } 1 .. 5;
note("CREATE and DROP flush @flushed bytes");
cmp_ok($flushed[-1], '<', 2 * 65536, 'of an extent of 64 kB that is used again nothing else is zeroed');

# many at once, one of whom finds no room again and again
my @sessions = map { $node->session("CREATE TABLE z$_ (id int, b text) USING nvm") } 1 .. 6;
$_->sql('SET client_min_messages = warning') foreach @sessions;
foreach my $i (1 .. 6)
{
	$sessions[ $i - 1 ]->send($i == 6 ? q{DO $$BEGIN FOR i IN 1 .. 3 LOOP INSERT INTO large VALUES (i, repeat('y', 20000000)); COMMIT; END LOOP; END$$}
		: "DO \$\$BEGIN FOR i IN 1 .. 40 LOOP INSERT INTO z$i SELECT g, repeat('z', 100) FROM generate_series(1, 300) g; COMMIT; TRUNCATE z$i; COMMIT; END LOOP; INSERT INTO z$i VALUES (0); END\$\$");
}
is(join(' ', map { $_->sql('SELECT 1') } @sessions), '1 1 1 1 1 1', 'nobody waits for ever');
$_->drop foreach @sessions;
is($node->safe_psql('postgres', 'SELECT count(*), sum(length(b)) FROM large; SELECT ' . join(' + ', map { "(SELECT count(*) FROM z$_)" } 1 .. 5)),
	"6|132000000\n5", 'and nobody misses a row');
$node->check_clean('many that zero');
$node->stop;

# ---- crashes ----

sub lives_on
{
	my ($at, $node, $name) = @_;
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT id), max(id) FROM t'), '20000|20000|20000', "$name: rows");
	is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*), sum(id) FROM t WHERE id > 0'),
		'20000|' . 20000 * 20001 / 2, "$name: by index");
	$node->check_clean($name);
	# others of the same length now, in blocks that may be suspect until VACUUM has come by
	$node->safe_psql('postgres', "INSERT INTO t SELECT i, 'later' FROM generate_series(20001, 40000) i");
	$node->safe_psql('postgres', 'VACUUM t');
	$node->safe_psql('postgres', "INSERT INTO t SELECT i, 'last' FROM generate_series(40001, 60000) i");
	is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT id), sum(id) FROM t'), '60000|60000|' . 60000 * 60001 / 2,
		"$name: goes on");
	$node->check_clean("$name, after more rows");
	return;
}

sub crash_at
{
	my ($simulate, $place, @images) = @_;
	my $name = $place =~ s/:.*//r . ($simulate ? ', power' : '');
	my $node = NvmTest->start_new($name =~ s/\W+/_/gr, simulate => $simulate, conf => 'autovacuum = off', sql => <<SQL);
CREATE TABLE t (id int, b text) USING nvm;
CREATE INDEX t_id ON t USING nvm_btree (id);
INSERT INTO t SELECT i, 'first' FROM generate_series(1, 20000) i;
SQL
	my $session = $node->session;
	$session->send("SET nvm.failpoint = '$place';\nINSERT INTO t SELECT i, 'lost' FROM generate_series(20001, 60000) i;\n");
	$node->wait_crashed;
	$session->drop;
	if (!$simulate)
	{
		$node->start;
		lives_on($place, $node, $name);
		$node->stop;
		return;
	}
	my $saved = $node->save_crash;
	foreach my $image (@images)
	{
		$node->restore_crash($saved, %$image);
		$node->start;
		lives_on($place, $node, "$name, image " . join(' ', map { "$_ $image->{$_}" } sort keys %$image));
		$node->stop('immediate');
	}
	$node->forget_crash($saved);
	return;
}

my @images = ({ seed => 1, mode => 'durable' }, map { { seed => $_ } } 2 .. (NvmTest::is_long() ? 12 : 3));
crash_at(0, "$_:3") foreach map { "$_:crash" } qw(space-block-ready space-init-block btree-alloc);
crash_at(1, 'space-block-ready:crash:40', @images);
crash_at(1, 'space-init-block:crash:3', @images);
crash_at(1, 'btree-alloc:crash:3', @images);

done_testing();

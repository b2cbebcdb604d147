# Copyright (c) 2026, pg_nvm contributors

# Two sessions at one place of an nvm_btree: one sleeps between two steps of
# its insertion, split or page deletion, another one does what the protocol must
# allow for.  Whoever is first, the answers are the same; should the second one
# be slower than the sleep, a case merely shows less.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $sleep = 300;

my $node = NvmTest->start_new('btree_races', conf => <<CONF);
autovacuum = off
enable_seqscan = off
enable_bitmapscan = off
max_parallel_workers_per_gather = 0
CONF

sub clean
{
	my ($name, @tables) = @_;
	my $found = join "\n", map {
		$node->safe_psql('postgres', "SELECT * FROM nvm.check('$_', heapallindexed => true)") } @tables;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($found, '', "$name: the checker finds nothing");
	return;
}

# Let a session sleep when it first comes to a place with this statement.
sub asleep
{
	my ($session, $place, $sql) = @_;
	$session->sql("SET nvm.failpoint = '$place:sleep=$sleep:1'");
	$session->send($sql);
	$session->wait_held($place);
	return;
}

sub count
{
	return $node->safe_psql('postgres', "SELECT count(*) FROM $_[0]");
}

my $a = $node->session;
my $b = $node->session;

# ---- one key, inserted twice

$node->safe_psql('postgres', 'CREATE TABLE u (id int, v int, n int) USING nvm;
	CREATE UNIQUE INDEX u_id ON u USING nvm_btree (id);
	CREATE INDEX u_n ON u USING nvm_btree (n);
	INSERT INTO u SELECT g, 0, 0 FROM generate_series(1, 5) g');

$a->stop_at('btree-checked', "INSERT INTO u VALUES (10, 1, 0)");
$b->sql("INSERT INTO u VALUES (10, 2, 0)");
$a->go_on;
$a->sql('SELECT 1');
is(count('u WHERE id = 10'), 1, 'inserted by another one after the check: once');
is(count('u WHERE id = 10 AND v = 2'), 1, '... by the one who was first');

asleep($a, 'btree-checked', "INSERT INTO u VALUES (11, 1, 0)");
$b->sql("BEGIN; INSERT INTO u VALUES (11, 2, 0)");
$b->sql("ROLLBACK");
$a->sql('SELECT 1');
is(count('u WHERE id = 11 AND v = 1'), 1, 'the other one takes his back');

# so many versions with one key that they fill leaves; none can go yet
my $old = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM u');
$node->safe_psql('postgres', "DO \$\$ BEGIN FOR i IN 1..1500 LOOP UPDATE u SET n = i WHERE id = 3; END LOOP; END \$\$");
$a->sql("INSERT INTO u VALUES (3, 8, 0)");
is(count('u WHERE id = 3'), 1, 'a row behind leaves of its dead versions is found');
$node->safe_psql('postgres', 'DELETE FROM u WHERE id = 3');
asleep($a, 'btree-checked', "INSERT INTO u VALUES (3, 1, 0)");
$b->sql("INSERT INTO u VALUES (3, 2, 0)");
$a->sql('SELECT 1');
is(count('u WHERE id = 3'), 1, 'entries of one key on different leaves: once');
$old->sql('COMMIT');
clean('unique', 'u');

# ---- splits

foreach my $place (qw(btree-split-written btree-split-applied btree-split-locks btree-downlink-inserted
	btree-newroot-written btree-newroot-made btree-rewritten btree-alloc btree-downlink))
{
	$node->safe_psql('postgres', 'DROP TABLE IF EXISTS s;
		CREATE TABLE s (id int, who text) USING nvm;
		CREATE INDEX s_id ON s USING nvm_btree (id);
		CREATE INDEX s_who ON s USING nvm_btree (who)');
	asleep($a, $place, "INSERT INTO s SELECT g * 3, 'a' FROM generate_series(1, 3000) g");
	foreach my $from (1, 300, 700, 1100, 2000)
	{
		$b->sql("INSERT INTO s SELECT g * 3 + 1, repeat('b', $from % 90) FROM generate_series($from, $from + 99) g");
	}
	is($b->sql("SELECT count(*) FROM (SELECT id FROM s WHERE id % 3 = 1 ORDER BY id OFFSET 0) x"),
		500, "one is at $place, the other one finds all of his");
	$a->sql('SELECT 1');
	is(count("(SELECT id FROM s WHERE id > 0 ORDER BY id DESC OFFSET 0) x"), 3500, '... and so do all');
	clean($place, 's');
}

# ---- predicate locks

# Each reads what the other one writes: one of them must fail.
sub skew
{
	my ($name, $prepare, $read, $place, $change, $write, $late) = @_;
	$node->safe_psql('postgres', "DROP TABLE IF EXISTS s, w; CREATE TABLE w (x int) USING nvm;
		CREATE TABLE s (id int) USING nvm; CREATE INDEX s_id ON s USING nvm_btree (id); $prepare");
	my $other  = $node->session;

	asleep($other, $place, $change) if $place && $late;
	my $reader = $node->session('BEGIN ISOLATION LEVEL SERIALIZABLE', $read);
	asleep($other, $place, $change) if $place && !$late;
	$b->sql('BEGIN ISOLATION LEVEL SERIALIZABLE; SELECT count(*) FROM w');
	$b->sql($write);
	$b->sql('COMMIT');
	$other->sql('SELECT 1') if $place;
	$reader->sql('INSERT INTO w VALUES (1)');
	$reader->sql('COMMIT');
	my $wrote = $node->safe_psql('postgres', 'SELECT count(*) FROM s WHERE id = 2995');
	is(count('w') + $wrote, 1, "serializable: $name");
	clean($name, 's');
	$_->drop foreach ($reader, $other);
	return;
}

skew('an empty index', '', 'SELECT * FROM s WHERE id = 2995', undef, undef, 'INSERT INTO s VALUES (2995)');
skew('a key that is not there', 'INSERT INTO s SELECT g * 10 FROM generate_series(1, 300) g',
	'SELECT * FROM s WHERE id = 2995', undef, undef, 'INSERT INTO s VALUES (2995)');
# what is inserted at the lower end pushes 2995 to the right page
foreach my $place (qw(btree-split-written btree-split-applied btree-split-locks btree-newroot-written btree-newroot-made))
{
	skew("a root that is split, $place",
		'INSERT INTO s SELECT g * 10 FROM generate_series(1, 300) g',
		'SELECT * FROM s WHERE id = 2995', $place,
		'INSERT INTO s SELECT g FROM generate_series(1, 400) g WHERE g % 10 <> 0',
		'INSERT INTO s VALUES (2995)');
}
# 1000 rows: 2995 is on the last of several leaves
foreach my $place (qw(btree-split-applied btree-split-locks btree-downlink-inserted btree-split-complete))
{
	skew("a leaf that is split, $place",
		'INSERT INTO s SELECT g FROM generate_series(1, 2000) g; INSERT INTO s SELECT g * 10 FROM generate_series(270, 300) g',
		'SELECT * FROM s WHERE id = 2995', $place,
		'INSERT INTO s SELECT 2400 + g % 250 FROM generate_series(1, 600) g',
		'INSERT INTO s VALUES (2995)');
}
# the range is that of a leaf that goes; the reader is there before or after
# the locks are copied
foreach my $place (qw(btree-delete-planned btree-delete-unlinked))
{
	foreach my $late (0, 1)
	{
		skew("a leaf that is unlinked, $place, " . ($late ? 'late' : 'early'),
			'INSERT INTO s SELECT g FROM generate_series(2000, 6000) g; DELETE FROM s WHERE id BETWEEN 2200 AND 5000',
			'SELECT * FROM s WHERE id = 2995', $place, 'VACUUM s',
			'INSERT INTO s VALUES (2995)', $late);
	}
}

$node->check_clean('the end');
$node->stop;
done_testing();

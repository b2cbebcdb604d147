# Copyright (c) 2026, pg_nvm contributors

# The table of locks of src/command/README.md, cell by cell: of two sessions of which one has
# done a thing, and the other does one, the second waits or does not; what waits goes on when
# the first ends, or rolls its savepoint back.  Two calls that turn into value writers do not
# wait for each other.  Sessions that wait for each other get an ERROR, and nobody hangs.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $node = NvmTest->start_new('lanes', conf => <<CONF, sql => <<'SQL');
deadlock_timeout = 100ms
CONF
CREATE TABLE stock (w int, i int, n int NOT NULL, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('stock', 'w');
INSERT INTO stock SELECT w, i, 100 FROM generate_series(1, 100) w, generate_series(1, 2) i;
CREATE TABLE item (i int PRIMARY KEY, n int) USING nvm_cmdlog;
INSERT INTO item SELECT i, i FROM generate_series(1, 100) i;
CREATE TABLE other (w int PRIMARY KEY, n int) USING nvm_vlog;
INSERT INTO other VALUES (1, 1);
CREATE FUNCTION take(w int, i int) RETURNS int LANGUAGE sql AS
'UPDATE stock s SET n = n - 1 WHERE s.w = take.w AND s.i = take.i RETURNING n';
CREATE FUNCTION move(a int, b int) RETURNS int LANGUAGE plpgsql AS
'BEGIN UPDATE stock SET n = n - 1 WHERE w = a AND i = 1; UPDATE stock SET n = n + 1 WHERE w = b AND i = 1; RETURN 1; END';
CREATE FUNCTION strays(a int, b int) RETURNS int LANGUAGE plpgsql AS
'BEGIN UPDATE stock SET n = n - 1 WHERE w = a AND i = 1; UPDATE stock SET n = n + 1 WHERE w = b AND i = 2; RETURN 1; END';
CREATE FUNCTION notes(a int, k int) RETURNS int LANGUAGE plpgsql AS
'BEGIN UPDATE stock SET n = n - 1 WHERE w = a AND i = 1; UPDATE item SET n = n + 1 WHERE i = k; RETURN 1; END';
CREATE FUNCTION all_of(k int) RETURNS bigint LANGUAGE sql AS 'SELECT sum(n) FROM item';
SELECT nvm.register_command('take(int,int)', '{w}'), nvm.register_command('move(int,int)', '{a,b}'),
	nvm.register_command('strays(int,int)', '{a}'), nvm.register_command('notes(int,int)', '{a}'),
	nvm.register_command('all_of(int)', 'all');
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub waits { my ($pid) = @_; return sql("SELECT count(*) FROM nvm.lanes WHERE NOT granted AND pid = $pid") ne '0'; }
sub wait_for_wait { my ($s) = @_; NvmTest::wait_until('a session waits for a lane', sub { waits($s->pid) }); return; }

my ($a, $b) = ($node->session, $node->session);

# ---- the table: what each does, in rows of lanes of warehouses 1 and 2

my %does = (
	'call 1' => 'SELECT take(1, %d)',
	'call 2' => 'SELECT take(2, %d)',
	'call 1,2' => 'SELECT move(1, 2)',
	'all lanes' => 'SELECT all_of(1)',
	'value 1' => 'UPDATE stock SET n = 5 WHERE w = 1 AND i = %d',
	'value 1 to 3' => 'UPDATE stock SET w = 3, i = 10 + %d WHERE w = 1 AND i = %d',
	'values everywhere' => 'UPDATE stock SET n = 5 WHERE w > 2 AND i = %d',
	'shared' => 'UPDATE item SET n = 5 WHERE i = %d');
my %conflict = map { $_ => 1 } (
	'call 1 / call 1', 'call 1 / call 1,2', 'call 1 / value 1', 'call 1 / value 1 to 3', 'call 2 / call 2', 'call 2 / call 1,2',
	'call 1,2 / call 1,2', 'call 1,2 / value 1', 'call 1,2 / value 1 to 3',
	# all lanes, and whoever has or wants one
	(map { "$_ / all lanes" } 'call 1', 'call 2', 'call 1,2', 'value 1', 'value 1 to 3', 'values everywhere', 'all lanes', 'shared'),
	# values everywhere, and calls
	(map { "$_ / values everywhere" } 'call 1', 'call 2', 'call 1,2'),
	(map { "$_ / shared" } 'call 1', 'call 2', 'call 1,2'));

foreach my $first (sort keys %does)
{
	foreach my $second (sort keys %does)
	{
		# other rows, or row locks would decide
		my ($x, $y) = map { my $s = $does{ $_->[0] }; $s =~ s/%d/$_->[1]/gr } [ $first, 1 ], [ $second, 2 ];
		my $expected = $conflict{"$first / $second"} || $conflict{"$second / $first"};

		$y = 'SELECT move(2, 1)' if $second eq 'call 1,2';
		$a->sql("BEGIN; $x");
		$b->send("BEGIN; SET LOCAL lock_timeout = " . ($expected ? 0 : '"60s"') . "; $y; ROLLBACK; SELECT 'done'");
		if ($expected)
		{
			wait_for_wait($b);
			pass("$first, then $second: waits");
			$a->sql('ROLLBACK');
			like($b->sql(''), qr/done$/, 'and goes on');
		}
		else
		{
			like($b->sql(''), qr/done$/, "$first, then $second: does not wait");
			$a->sql('ROLLBACK');
		}
	}
}
is(sql('SELECT count(*) FROM nvm.lanes'), '0', 'no lane is left');

# ---- tables of other methods take none

is($a->sql('BEGIN; UPDATE other SET n = 2; SELECT count(*) FROM nvm.lanes; ROLLBACK'), '0', 'a table of nvm_vlog takes no lane');

# ---- subtransactions

$a->sql('BEGIN; SAVEPOINT s; UPDATE stock SET n = 6 WHERE w = 1 AND i = 1');
$b->send('SELECT take(1, 2) IS NULL');
wait_for_wait($b);
$a->sql('ROLLBACK TO s');
is($b->sql(''), 'f', 'a value writer that is rolled back to a savepoint lets go');
$a->sql('UPDATE stock SET n = 6 WHERE w = 1 AND i = 1');
$b->send('SELECT take(1, 2) IS NULL');
wait_for_wait($b);
$a->sql('COMMIT');
is($b->sql(''), 'f', 'and takes it again');
$a->sql('BEGIN; SAVEPOINT s; UPDATE stock SET n = 6 WHERE w = 1 AND i = 1; RELEASE s; SAVEPOINT t; ROLLBACK TO t');
$b->send('SELECT take(1, 2) IS NULL');
wait_for_wait($b);
$a->sql('COMMIT');
is($b->sql(''), 'f', 'one that is released keeps it');

# a call whose transaction turns into one of values in a subtransaction that is rolled back
$a->sql('BEGIN; SELECT take(1, 1); SAVEPOINT s; UPDATE stock SET n = 6 WHERE w = 2 AND i = 1; ROLLBACK TO s');
is($a->sql("SELECT mode FROM nvm.lanes WHERE target = 'lane'"), 'RowExclusiveLock', 'what the call has written stays covered');
$b->send('SELECT take(1, 2) IS NULL');
wait_for_wait($b);
$a->sql('COMMIT');
is($b->sql(''), 'f', 'to the end');

# ---- two calls that turn into value writers pass each other

foreach my $case ([ 'strays(11, 12)', 'strays(12, 11)', 'in each other\'s lane' ], [ 'notes(21, 1)', 'notes(22, 2)', 'of a shared table' ])
{
	my ($x, $y, $name) = @$case;
	my ($u, $v) = ($node->session, $node->session);
	my $row = $name =~ /shared/ ? 'w IN (21, 22) AND i = 1' : 'w IN (11, 12) AND i = 1';

	# a third holds rows, without a lane, so that both calls have their lanes before
	# either goes on
	my $third = $node->session("BEGIN; SELECT count(*) FROM (SELECT FROM stock WHERE $row FOR SHARE) x");
	$_->[0]->send("SELECT $_->[1]") foreach [ $u, $x ], [ $v, $y ];
	NvmTest::wait_until('both wait', sub { sql('SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted AND pid IN (' . $u->pid . ', ' . $v->pid . ')') eq '2' });
	$third->sql('ROLLBACK');
	is($u->sql('') . $v->sql(''), '11', "two calls that write $name: no deadlock");
	$_->drop foreach $u, $v, $third;
}

# ---- deadlocks are ERRORs

sub or_victim { my ($who, $statement) = @_; return "DO \$\$BEGIN $statement; EXCEPTION WHEN deadlock_detected THEN PERFORM set_config('my.victim', '$who', false); END\$\$"; }
my $victim = q{SELECT coalesce(current_setting('my.victim', true), '')};

foreach my $case (
	# a call waits for a lane with nothing in its hands
	[ 'UPDATE stock SET n = 5 WHERE w = 30 AND i = 1', 'PERFORM move(30, 31)', 'UPDATE stock SET n = 5 WHERE w = 31 AND i = 1', undef ],
	[ 'UPDATE stock SET n = 5 WHERE w = 31 AND i = 1', 'PERFORM move(30, 31)', 'UPDATE stock SET n = 5 WHERE w = 30 AND i = 1', undef ],
	[ 'UPDATE stock SET n = 5 WHERE w = 30 AND i = 1', 'PERFORM take(30, 1)', 'UPDATE item SET n = 5 WHERE i = 1', undef ],
	[ 'SELECT take(30, 1)', 'PERFORM move(30, 31)', 'PERFORM take(31, 1)', undef ],
	[ 'UPDATE item SET n = 5 WHERE i = 1; UPDATE stock SET n = 5 WHERE w = 30 AND i = 1', 'PERFORM take(30, 1)', 'UPDATE stock SET n = 5 WHERE w = 31 AND i = 1', undef ],
	[ 'SELECT take(33, 1)', 'PERFORM take(34, 1); PERFORM take(33, 1)', 'PERFORM take(34, 1)', 'two transactions with two calls each' ],
	[ 'SELECT n FROM stock WHERE w = 35 AND i = 1 FOR KEY SHARE; UPDATE item SET n = 5 WHERE i = 2', 'PERFORM move(35, 36)', 'UPDATE stock SET n = 5 WHERE w = 36 AND i = 1', undef ])
{
	my ($first, $second, $third, $deadlock) = @$case;

	$_->sql("SET my.victim = ''") foreach $a, $b;
	$a->sql("BEGIN; $first");
	$b->send(or_victim('b', $second) . q{; SELECT 'b ends'});
	wait_for_wait($b);
	$a->sql(or_victim('a', $third));
	$a->sql('COMMIT');
	like($b->sql(''), qr/b ends/, 'nobody hangs');
	if (defined $deadlock) { like($a->sql($victim) . $b->sql($victim), qr/^[ab]$/, "$deadlock: one of them gets an ERROR"); }
	else { is($a->sql($victim) . $b->sql($victim), '', "no deadlock: $first, $second, $third"); }
}

# ---- calls with several lanes, in any order, do not deadlock

my $load = $node->start_load(clients => 4, transactions => 150, sql => sub {
		my ($client, $n) = @_;
		my @w = map { 41 + ($client * 7 + $n * 13 + $_ * 5) % 6 } 0 .. 1;
		return $n % 5 == 0 ? "BEGIN; SELECT move($w[1], $w[0]); COMMIT;" : "BEGIN; SELECT move($w[0], $w[1]); COMMIT;"; });
$load->finish;
is(join('', $load->errors), '', 'calls with two lanes in any order: no deadlock');
is(sql('SELECT sum(n) FROM stock WHERE w BETWEEN 41 AND 46 AND i = 1'), '600', 'and nothing is lost');
$_->drop foreach $a, $b;
$node->check_clean('after all that');
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# The number of a storage among all that the pool has had is never given again: not
# after the newest one is dropped, or rolled back, and the server restarted, crashed, or
# lost its power in the middle of making or freeing an entry.  A log names storages by it.
#
# Long form: twelve losses of power at each place, here three.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $losses = NvmTest::is_long() ? 12 : 3;
my $node = NvmTest->start_new('creation', simulate => 1, conf => "autovacuum = off\n",
	sql => 'CREATE TABLE stays (id int) USING nvm; INSERT INTO stays VALUES (1)');
my $newest = 0;
my $n = 0;

sub sql { return $node->safe_psql('postgres', $_[0]); }

# makes a table; its number must be above all that were ever seen
sub make
{
	my ($name, $end) = @_;
	my $table = 't' . ++$n;
	my $creation = sql("BEGIN; CREATE TABLE $table (id int) USING nvm;
		SELECT creation FROM nvm.relations WHERE relation = '$table'::regclass; " . ($end // 'COMMIT'));
	cmp_ok($creation, '>', $newest, $name);
	$newest = $creation;
	return $table;
}

make('a first table');
sql('DROP TABLE ' . make('the newest one'));
$node->restart;
sql('DROP TABLE ' . make('after it was dropped, and a restart'));
$node->crash;
$node->start;
make('after it was dropped, and a crash', 'ROLLBACK');
make('after it was rolled back');
make('another', 'ROLLBACK');
$node->restart;
make('after that was rolled back, and a restart');
# an entry in the middle of the directory is used again
sql('DROP TABLE t1');
make('in the place of an old one');
$node->restart;
make('after that');

foreach my $place (qw(pool-dir-fields pool-dir-begin pool-dir-free))
{
	foreach my $loss (1 .. $losses)
	{
		my $table = make("$place, $loss: before");
		my $sql = $place eq 'pool-dir-free' ? "DROP TABLE $table" : 'CREATE TABLE lost (id int) USING nvm';
		my ($rc) = $node->psql('postgres', "SET nvm.failpoint = '$place:crash'; $sql");
		isnt($rc, 0, "$place is reached");
		$node->wait_crashed;
		$node->power_failure(seed => $loss + ord(substr($place, -1)));
		$node->start;
		make("$place, $loss: after a loss of power there");
		is(sql('SELECT id FROM stays'), '1', 'the table is there');
	}
}
$node->check_clean('at the end');
$node->stop;
done_testing();

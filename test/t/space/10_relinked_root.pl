# Copyright (c) 2026, pg_nvm contributors

# A server that dies while it prunes a row, when the root leads past the versions
# that nobody sees any more, and is not yet a stub: the root is a version then, and
# the one that it leads to does not begin where it ends.  That is no damage.  It takes
# more than one version that dies at once, so a snapshot is held meanwhile.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('relinked', simulate => 1, conf => "autovacuum = off\n", sql => <<SQL);
CREATE TABLE t (id int PRIMARY KEY, n int) USING nvm;
INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i;
SQL

# Each row has three versions that nobody sees.
sub three_dead
{
	my $reader = $node->session;
	$reader->sql('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t');
	$node->safe_psql('postgres', 'UPDATE t SET n = n + 1') foreach 1 .. 3;
	$reader->sql('COMMIT');
	$reader->drop;
	return;
}

sub is_whole
{
	my ($n, $name) = @_;
	is($node->safe_psql('postgres', "SELECT count(*), min(n), max(n) FROM t; SET enable_seqscan = off; SELECT count(n) FROM t WHERE id > 0"),
		"20|$n|$n\n20", "$name: all rows are there");
	is($node->safe_psql('postgres', "SELECT * FROM nvm.check('t', true); SELECT f FROM nvm.check_pool() f"), '', "$name: nothing is found");
	return;
}

three_dead();
is_whole(3, 'before');
my $done = 3;
foreach my $how ('what SIGKILL leaves', map { "image $_" } 1 .. 6)
{
	# it takes rows one after the other; the transaction is lost
	my $hit = 1 + ($how =~ /(\d+)/ ? $1 : 0);
	$node->psql('postgres', "SET nvm.failpoint = 'prune-relinked:crash:$hit'; UPDATE t SET n = n + 1");
	$node->wait_crashed;
	like($node->log_since_start, qr/failpoint prune-relinked hit/, "$how: died between the link and the stub");
	$node->power_failure(seed => $hit) if $how =~ /image/;
	$node->start;
	is_whole($done, $how);

	# new rows, whose roots are versions, for the next time
	$node->safe_psql('postgres', 'UPDATE t SET n = n + 1; VACUUM t; SELECT count(*) FROM t');
	is_whole($done + 1, "$how, and another update");
	$node->safe_psql('postgres', 'TRUNCATE t; INSERT INTO t SELECT i, 0 FROM generate_series(1, 20) i');
	three_dead();
}
$node->stop;
done_testing();

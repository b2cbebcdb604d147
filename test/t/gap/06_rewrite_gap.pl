# Copyright (c) 2026, pg_nvm contributors

# The gap collector comes by while VACUUM FULL copies a row: the large value is there and
# names its owner, the version is not there yet.  The value is not a leak.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('main', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 2
nvm.horizon_naptime = 20ms
nvm.failpoint = 'gap-swept:sleep=1'
CONF
CREATE TABLE t (id int, large text) USING nvm;
ALTER TABLE t ALTER large SET STORAGE EXTERNAL;
INSERT INTO t SELECT i, (SELECT string_agg(md5(i || ' ' || j), '') FROM generate_series(1, 1000) j) FROM generate_series(1, 4) i;
CREATE TABLE u (id int) USING nvm;
SQL
# so that everybody takes the rows for committed
$node->safe_psql('postgres', $NvmTest::pass_time);
$node->safe_psql('postgres', 'CALL pass_time()');
my $rows = 'SELECT count(*), md5(string_agg(large, \'\' ORDER BY id)) FROM t';
my $before = $node->safe_psql('postgres', $rows);

my $session = $node->session;
$session->stop_at('insert-before-begin', 'VACUUM FULL t');

# a gap that a sweep removes; the new storage is swept, too
my $log_start = -s $node->logfile;
$node->safe_psql('postgres', q{BEGIN; INSERT INTO u VALUES (1); PREPARE TRANSACTION 'x'});
$node->safe_psql('postgres', q{ROLLBACK PREPARED 'x'});
my $swept = 0;
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
while (!$swept && time() < $end)
{
	$swept = slurp_file($node->logfile, $log_start) =~ /failpoint gap-swept hit/;
	usleep(20_000);
}
ok($swept, 'a sweep has come by while a row is being copied');
$session->go_on;
$session->drop;

is($node->safe_psql('postgres', $rows), $before, 'all values are there');
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps');
$node->check_clean('afterwards');

# its run was not handed out anew either
$node->safe_psql('postgres', q{INSERT INTO t SELECT i, repeat(md5(i::text), 1000) FROM generate_series(5, 8) i});
is($node->safe_psql('postgres', 'SELECT count(*), md5(string_agg(large, \'\' ORDER BY id)) FROM t WHERE id < 5'), $before,
	'still, when others have been written');
$node->check_clean('at the end');
$node->stop;
done_testing();

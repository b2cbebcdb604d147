# Copyright (c) 2026, pg_nvm contributors

# A row that a lost transaction has deleted is deleted again, by one that
# aborts.  Its end replaces the lost one's, in the processor's caches; the
# collector finds nothing to remove, and must not forget the lost transaction
# before that is durable.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('main', simulate => 1, conf => <<CONF, sql => <<'SQL');
autovacuum = off
restart_after_crash = off
nvm.horizon_naptime = 10
CONF
CREATE TABLE t (id int, a int) USING nvm;
INSERT INTO t SELECT i, i FROM generate_series(1, 6) i;
SQL

sub rows
{
	return $node->safe_psql('postgres', "SELECT string_agg(id || ':' || a, ' ' ORDER BY id) FROM t");
}

# lost: two rows changed in a transaction that a crash ends
my $lost = $node->session;
$lost->sql('BEGIN');
$lost->sql('DELETE FROM t WHERE id = 1');
$lost->sql('UPDATE t SET a = 20 WHERE id = 2');
$node->crash;
$lost->drop;
$node->append_conf('postgresql.conf', "nvm.collect_gaps = off");
$node->start;
is(rows(), '1:1 2:2 3:3 4:4 5:5 6:6', 'nothing of what was lost shows');
isnt($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps'), '0', 'the collector has not been there');

# aborted: the same rows, by one who is stopped before he takes it back
my $aborted = $node->session;
$aborted->sql('BEGIN');
$aborted->sql('UPDATE t SET a = 10 WHERE id = 1');
$aborted->sql('DELETE FROM t WHERE id = 2');
$aborted->hold('abort-begin', 'ROLLBACK');

# the collector comes by, until it waits for him, or is done
$node->set_conf('nvm.collect_gaps' => 'on', 'nvm.failpoint' => "'gap-undecided:sleep=1:1'");
$node->reload;
my $waits = 0;
for (my $i = 0; $i < 3000 && !$waits; $i++)
{
	$waits = $node->log_since_start =~ /failpoint gap-undecided hit/;
	last if $node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps') eq '0';
	usleep(10000);
}
ok($waits, 'the collector waits for the one who aborts');

$node->set_conf('nvm.failpoint' => "''");
$node->power_failure(seed => 1, mode => 'durable');
$aborted->drop;
$node->start;
is(rows(), '1:1 2:2 3:3 4:4 5:5 6:6', 'all rows are there after a loss of power');
$node->check_clean('after the loss of power');

# the same, but he goes on
$aborted = $node->session;
$aborted->sql('BEGIN');
$aborted->sql('DELETE FROM t WHERE id <= 3');
$aborted->sql('ROLLBACK');
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps')
  or die 'gaps are not collected';
is(rows(), '1:1 2:2 3:3 4:4 5:5 6:6', 'gaps are collected, and all rows are there');
$node->power_failure(seed => 1, mode => 'durable');
$aborted->drop;
$node->start;
is(rows(), '1:1 2:2 3:3 4:4 5:5 6:6', 'and after another loss of power');
$node->check_clean('after another loss of power');

$node->stop;
done_testing();

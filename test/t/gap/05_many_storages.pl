# Copyright (c) 2026, pg_nvm contributors

# While the gap collector lists the storages that it is going to sweep, many
# are made, with lower numbers than that of a table which a lost transaction
# has changed.  That one must not fall out of the list.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('main', simulate => 1, conf => <<CONF);
autovacuum = off
restart_after_crash = off
nvm.horizon_naptime = 10
max_locks_per_transaction = 256
CONF
my $make = q[DO $$BEGIN FOR i IN 1 .. 100 LOOP EXECUTE format('CREATE TABLE f%s (i int) USING nvm', i); END LOOP; END$$];
$node->safe_psql('postgres', $make);
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (id int) USING nvm;
INSERT INTO t SELECT generate_series(1, 5);
DO $$BEGIN FOR i IN 1 .. 100 LOOP EXECUTE format('DROP TABLE f%s', i); END LOOP; END$$;
SQL

my $lost = $node->session('BEGIN', 'DELETE FROM t WHERE id = 1');
$node->crash;
$lost->drop;
$node->set_conf('nvm.failpoint' => "'gap-storages-counted:stop:1'");
$node->start;
my $pid;
for (my $i = 0; $i < 3000 && !defined $pid; $i++)
{
	$pid = $1 if $node->log_since_start =~ /failpoint gap-storages-counted hit, pid (\d+)/;
	usleep(10000);
}
ok(defined $pid, 'the collector has counted the storages');
NvmTest::wait_stopped($pid);
$node->safe_psql('postgres', $make);
NvmTest::continue_process($pid);
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps are not collected';
is($node->safe_psql('postgres', q[SELECT string_agg(id::text, ' ' ORDER BY id) FROM t]), '1 2 3 4 5',
	'what was deleted by a lost transaction is there when its gap is gone');
$node->check_clean('then');

$node->stop;
done_testing();

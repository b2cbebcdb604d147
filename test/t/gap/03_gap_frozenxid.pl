# Copyright (c) 2026, pg_nvm contributors

# A transaction that was prepared is rolled back, which the gap list says before
# all snapshots agree.  As long as that is so, its xid is looked up, and
# VACUUM must not take it for one that nobody asks about.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_prepared_transactions = 5
nvm.collect_gaps = off
nvm.horizon_naptime = 10
CONF
CREATE TABLE t (id int) USING nvm;
CREATE TABLE x (a int) USING nvm;
INSERT INTO t SELECT generate_series(1, 5);
BEGIN;
INSERT INTO t VALUES (6);
DELETE FROM t WHERE id = 1;
PREPARE TRANSACTION 'x';
SQL
# until the snapshot is taken that does not hold the xid back, but the freezing
my $older = $node->session;
$older->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
$older->sql('SELECT 1 FROM x');
my $xid = $node->safe_psql('postgres', q[SELECT transaction::text FROM pg_prepared_xacts]);
$node->safe_psql('postgres', q[ROLLBACK PREPARED 'x']);
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps'), '1', 'it is in the gap list');

my $old = $node->session;
$old->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
is($old->sql('SELECT count(*) FROM t'), '5', 'a snapshot sees nothing of it');
$older->sql('COMMIT');
$node->safe_psql('postgres', 'VACUUM (FREEZE) t') foreach 1 .. 2;
my $frozen = $node->safe_psql('postgres', q[SELECT relfrozenxid FROM pg_class WHERE relname = 't']);
cmp_ok($frozen, '<=', $xid, 'its xid may still be asked about');
is($node->safe_psql('postgres', 'SELECT count(*) FROM t'), '5', 'nor do others');

$old->sql('COMMIT');
$node->set_conf('nvm.collect_gaps' => 'on');
$node->reload;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps are not collected';
# when the keeper has seen that nobody is there any more who might
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
do
{
	$node->safe_psql('postgres', 'VACUUM (FREEZE) t') foreach 1 .. 2;
	$frozen = $node->safe_psql('postgres', q[SELECT relfrozenxid FROM pg_class WHERE relname = 't']);
} while ($frozen <= $xid && time() < $end);
cmp_ok($frozen, '>', $xid, 'when its traces are gone nobody asks');
is($node->safe_psql('postgres', 'SELECT count(*) FROM t'), '5', 'nothing has changed');
$node->check_clean('at the end');
$node->stop;
done_testing();

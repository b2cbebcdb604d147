# Copyright (c) 2026, pg_nvm contributors

# What VACUUM (VERBOSE) and autovacuum say and do about an nvm table.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# an ANALYZE of a catalog by autovacuum would keep rows that are dead
my $node = NvmTest->start_new('vacuum_report', conf => <<CONF, sql => <<SQL);
autovacuum = off
autovacuum_naptime = 1s
autovacuum_vacuum_threshold = 50
autovacuum_vacuum_scale_factor = 0
autovacuum_analyze_threshold = 50
autovacuum_analyze_scale_factor = 0
log_autovacuum_min_duration = 0
CONF
CREATE TABLE t (id int PRIMARY KEY, v int) USING nvm WITH (autovacuum_enabled = off);
INSERT INTO t SELECT g, 0 FROM generate_series(1, 5000) g;
DELETE FROM t WHERE id > 4000;
SQL

my ($ret, $out, $err) = $node->psql('postgres', 'VACUUM (VERBOSE) t');
is($ret, 0, 'VACUUM (VERBOSE) succeeds');
like($err, qr/vacuuming "postgres\.public\.t"/, 'it names the table');
like($err, qr/tuples: 1000 removed, 4000 remain/, 'it counts rows removed and left');
like($err, qr/index scan needed|index "t_pkey"/, 'it speaks of the index');
($ret, $out, $err) = $node->psql('postgres', 'ANALYZE (VERBOSE) t');
like($err, qr/containing 4000 live rows and 0 dead rows/, 'ANALYZE (VERBOSE) counts rows');
is($node->safe_psql('postgres', "SELECT reltuples FROM pg_class WHERE relname = 't'"), '4000', 'reltuples');
$node->check_clean('after VACUUM');

# an open snapshot keeps dead rows, and VACUUM says so
my $old = $node->background_psql('postgres');
$old->query_safe('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM t');
$node->safe_psql('postgres', 'DELETE FROM t WHERE id > 3000');
($ret, $out, $err) = $node->psql('postgres', 'VACUUM (VERBOSE) t');
like($err, qr/1000 are dead but not yet removable/, 'rows that an old snapshot sees are kept');
is($old->query_safe('SELECT count(*) FROM t'), '4000', 'and seen');
$old->query_safe('COMMIT');
$old->quit;
($ret, $out, $err) = $node->psql('postgres', 'VACUUM (VERBOSE) t');
like($err, qr/tuples: 1000 removed, 3000 remain/, 'then they are removed');

# autovacuum finds the table by itself
$node->set_conf(autovacuum => 'on');
$node->reload;
$node->safe_psql('postgres', <<SQL);
ALTER TABLE t RESET (autovacuum_enabled);
UPDATE t SET id = id + 10000;
SQL
ok( $node->poll_query_until('postgres', <<SQL), 'autovacuum and autoanalyze come');
SELECT autovacuum_count > 0 AND autoanalyze_count > 0 AND n_dead_tup = 0
FROM pg_stat_user_tables WHERE relname = 't'
SQL
# the statistics come before the log
ok($node->wait_for_log(qr/automatic vacuum of table "postgres\.public\.t"/, 0), 'and are logged');
is($node->safe_psql('postgres', 'SELECT count(*), min(id) FROM t'), '3000|10001', 'rows are there');

$node->set_conf(autovacuum => 'off');
$node->reload;
# a worker that is at work holds the horizon back
$node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'))
  or die 'autovacuum does not end';

# relfrozenxid follows without a scan of every row
$node->safe_psql('postgres', 'SELECT pg_current_xact_id()') for 1 .. 50;
$node->safe_psql('postgres', 'VACUUM (FREEZE) t');
cmp_ok($node->safe_psql('postgres', "SELECT age(relfrozenxid) FROM pg_class WHERE relname = 't'"),
	'<', 50, 'VACUUM (FREEZE) advances relfrozenxid');
$node->check_clean('at the end');
$node->stop;
done_testing();

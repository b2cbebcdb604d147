# Copyright (c) 2026, pg_nvm contributors

# BRIN with autosummarize: ranges that fill up are summarized by autovacuum, not
# before, and without any VACUUM of the table; by INSERT, COPY and UPDATE.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => "autovacuum_naptime = 1s\n", sql => <<'SQL');
CREATE EXTENSION pageinspect;
CREATE TABLE t (a int, pad text DEFAULT repeat('x', 300)) USING nvm;
ALTER TABLE t SET (autovacuum_vacuum_threshold = 2000000000, autovacuum_vacuum_insert_threshold = -1, autovacuum_analyze_threshold = 2000000000);
CREATE INDEX auto ON t USING brin (a) WITH (pages_per_range = 2, autosummarize = on);
CREATE INDEX by_hand ON t USING brin (a) WITH (pages_per_range = 2);
CREATE FUNCTION ranges(idx text) RETURNS bigint LANGUAGE sql AS
$$SELECT count(*) FROM brin_page_items(get_raw_page(idx, 2), idx::regclass) WHERE NOT placeholder AND attnum = 1$$;
SQL
is($node->safe_psql('postgres', "SELECT ranges('auto')"), '1', 'an empty table has one range');

$node->safe_psql('postgres', 'INSERT INTO t SELECT g FROM generate_series(1, 200) g');
ok($node->poll_query_until('postgres', "SELECT ranges('auto') > 2"), 'INSERT: full ranges are summarized');
my $n = $node->safe_psql('postgres', "SELECT ranges('auto')");
$node->safe_psql('postgres', "COPY t (a) FROM PROGRAM 'seq 201 500'");
ok($node->poll_query_until('postgres', "SELECT ranges('auto') > $n + 2"), 'COPY: likewise');
$n = $node->safe_psql('postgres', "SELECT ranges('auto')");
$node->safe_psql('postgres', 'UPDATE t SET a = a + 10000');
ok($node->poll_query_until('postgres', "SELECT ranges('auto') > $n + 2"), 'UPDATE: likewise');

is($node->safe_psql('postgres', "SELECT ranges('by_hand')"), '1', 'an index without the option is left alone');
is( $node->safe_psql('postgres', <<'SQL'), '500|100', 'and the rows are found');
SET enable_seqscan = off;
DROP INDEX by_hand;
SELECT count(*), count(*) FILTER (WHERE a <= 10100) FROM t WHERE a > 10000;
SQL

# Nobody is asked for what is summarized: new rows at the places of old ones.
# Requests are lost, and the log says so, when there are 256 of them; while
# autovacuum is off nobody works them off.
$node->set_conf(autovacuum => 'off');
$node->restart;
$node->safe_psql('postgres', <<'SQL');
CREATE TABLE b (a int, pad text) USING nvm;
ALTER TABLE b ALTER pad SET STORAGE external;
INSERT INTO b SELECT g, repeat('x', 5000) FROM generate_series(1, 400) g;
CREATE INDEX b_a ON b USING brin (a) WITH (pages_per_range = 1, autosummarize = on);
DELETE FROM b;
VACUUM b;
SELECT pg_current_xact_id();
VACUUM b;
INSERT INTO b SELECT g, repeat('y', 5000) FROM generate_series(1, 400) g;
SQL
is($node->safe_psql('postgres', "SELECT max((ctid::text::point)[0]) FROM b"), '399', 'rows are in the places of old ones, one in each range');
unlike($node->log_since_start, qr/was not recorded/, 'and nothing is asked for');
$node->safe_psql('postgres', "INSERT INTO b SELECT g, repeat('z', 5000) FROM generate_series(1, 400) g");
like($node->log_since_start, qr/request for BRIN range summarization for index "b_a" page \d+ was not recorded/,
	'as it is for new ranges, until nobody listens');
$node->check_clean('at the end');
$node->stop;
done_testing();

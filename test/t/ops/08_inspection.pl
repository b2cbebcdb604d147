# Copyright (c) 2026, pg_nvm contributors

# Extensions that look into tables and indexes, on nvm tables: their normal
# result, or an error that says what is the matter.  And what the statistics
# and autovacuum know of a table after a crash.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('inspection', conf => "autovacuum = off\nautovacuum_naptime = 1s\nlog_autovacuum_min_duration = 0", sql => <<SQL);
-- the indexes that these extensions know
SET nvm.default_index_method = btree;
CREATE TABLE t (id int PRIMARY KEY, v int, s text) USING nvm;
INSERT INTO t SELECT i, i % 10, 'row ' || i FROM generate_series(1, 5000) i;
CREATE INDEX t_v ON t (v);
CREATE INDEX t_low ON t (lower(s)) WHERE id > 100;
CREATE INDEX t_hash ON t USING hash (s);
CREATE INDEX t_gin ON t USING gin (to_tsvector('simple', s));
CREATE INDEX t_brin ON t USING brin (id);
CREATE TABLE h (id int PRIMARY KEY) USING heap;
INSERT INTO h SELECT generate_series(1, 1000);
-- and one that they do not
CREATE UNIQUE INDEX t_ours ON t USING nvm_btree (id);
-- and one of ours that says btree
SET nvm.default_index_method = nvm_btree;
SET nvm.index_identity = btree;
CREATE UNIQUE INDEX t_says ON t USING btree (id, v);
UPDATE t SET v = v + 1 WHERE id % 3 = 0;
UPDATE t SET s = s WHERE id % 5 = 0;
DELETE FROM t WHERE id % 7 = 0;
SQL

sub available
{
	my ($extension) = @_;
	my $there = $node->safe_psql('postgres', "SELECT count(*) FROM pg_available_extensions WHERE name = '$extension'");
	$node->safe_psql('postgres', "CREATE EXTENSION $extension") if $there;
	note("$extension is not installed") unless $there;
	return $there;
}

# an error of ours, or theirs about access methods
my $ours   = qr/function \w+ cannot read nvm table "t".*DETAIL: .*HINT: .*nvm\.check/s;
my $theirs = qr/only heap AM is supported/;
my $index  = qr/function \w+ cannot read index "t_says" of an nvm table.*DETAIL: .*HINT: .*nvm\.check/s;

if (available('amcheck'))
{
	# every index entry leads to a row, and every row has its entries
	foreach my $round ('rows changed', 'vacuumed', 'after a crash')
	{
		$node->safe_psql('postgres', 'VACUUM t') if $round eq 'vacuumed';
		if ($round eq 'after a crash')
		{
			my $load = $node->start_load(clients => 2, sql => sub {
				my $k = 10000 + $_[0] * 1000 + $_[1];
				return "BEGIN; INSERT INTO t VALUES ($k, 1, 'new'); UPDATE t SET v = -v WHERE id = $_[1]; COMMIT;" });
			$load->wait_acknowledged(40);
			$node->crash;
			$load->finish;
			$node->start;
		}
		foreach my $index ('t_pkey', 't_v', 't_low', 't_says')
		{
			is($node->safe_psql('postgres', "SELECT bt_index_check('$index', true), bt_index_parent_check('$index', true, true)"),
				'|', "amcheck of $index, $round: heapallindexed finds every row");
		}
	}
	$node->fails_with(q(SELECT * FROM verify_heapam('t')), $theirs, 'verify_heapam refuses');
	is($node->safe_psql('postgres', q(SELECT count(*) FROM verify_heapam('h'))), '0', 'and works on heap');
	command_ok([ 'pg_amcheck', '-h', $node->host, '-p', $node->port, '-d', 'postgres', '--heapallindexed' ], 'pg_amcheck passes over what is not heap');

	# it does bite: an index that lacks rows of an nvm table
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE lie (id int) USING nvm;
INSERT INTO lie SELECT generate_series(1, 100);
CREATE FUNCTION even(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT \$1 % 2 = 0';
SET nvm.default_index_method = btree;
CREATE INDEX lie_even ON lie USING btree (id) WHERE even(id);
RESET nvm.default_index_method;
CREATE OR REPLACE FUNCTION even(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true';
SQL
	$node->fails_with(q(SELECT bt_index_check('lie_even', true)), qr/heap tuple .* lacks matching index tuple/, 'amcheck finds what an index lacks');
	$node->safe_psql('postgres', 'DROP TABLE lie');

	# so does the check of ours that answers for it: a row without entry, a key that is there twice
	$node->safe_psql('postgres', <<SQL);
SET nvm.index_identity = btree;
CREATE TABLE lie (id int) USING nvm;
INSERT INTO lie SELECT generate_series(1, 100);
CREATE FUNCTION odd(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT \$1 % 2 = 1';
CREATE INDEX lie_odd ON lie (id) WHERE odd(id);
CREATE OR REPLACE FUNCTION odd(int) RETURNS bool IMMUTABLE LANGUAGE sql AS 'SELECT true';
CREATE INDEX lie_once ON lie (id);
INSERT INTO lie VALUES (50), (NULL), (NULL);
SQL
	my $once = q(DO $$ BEGIN UPDATE pg_index SET indisunique = true WHERE indexrelid = 'lie_once'::regclass; END $$;);
	my $lacks = qr/index "lie_odd" of an nvm table is damaged.*DETAIL: .*has no entry.*HINT: .*REINDEX/s;
	my $twice = qr/index "lie_once" of an nvm table is damaged.*rows \(\d+,\d+\) and \(\d+,\d+\) have the same key in a unique index/s;
	is($node->safe_psql('postgres', $_), '', $_) foreach (q(SELECT bt_index_check('lie_odd')), q(SELECT bt_index_parent_check('lie_once', true, true)));
	$node->fails_with(q(SELECT bt_index_check('lie_odd', true)), $lacks, 'of an index in the pool that lacks what its table has');
	$node->fails_with(q(SELECT bt_index_parent_check('lie_odd', true)), $lacks, 'the same by bt_index_parent_check');
	$node->safe_psql('postgres', $once);
	$node->fails_with(q(SELECT bt_index_check('lie_once', true)), $twice, 'of a unique index with one key twice');
	like($node->safe_psql('postgres', q(SELECT problem FROM nvm.check('lie_once', true))), qr/^rows .* have the same key in a unique index$/, 'nvm.check shows it');
	is($node->safe_psql('postgres', q(SELECT * FROM nvm.check('lie_once'))), '', 'but not without a look at the rows');
	if ($node->pg_version >= 17)
	{
		is($node->safe_psql('postgres', q(SELECT bt_index_check('lie_once', false, false), bt_index_parent_check('lie_once', false, false, false))), '|', 'nor if amcheck is not asked about it');
		$node->fails_with($_, $twice, $_) foreach (q(SELECT bt_index_check('lie_once', false, true)), q(SELECT bt_index_parent_check('lie_once', false, false, true)));
	}
	command_checks_all([ 'pg_amcheck', '-h', $node->host, '-p', $node->port, '-d', 'postgres', '--heapallindexed', '-i', 'lie_*' ],
		2, [ $lacks, $twice ], [qr/^$/], 'pg_amcheck shows what is wrong');
	$node->safe_psql('postgres', "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'lie_odd'::regclass");
	$node->fails_with(q(SELECT bt_index_check('lie_odd')), qr/cannot check index "lie_odd"/, 'one that is not valid is amcheck\'s');
	$node->safe_psql('postgres', 'DROP TABLE lie');
}

if (available('pageinspect'))
{
	$node->fails_with($_, $ours, $_)
	  foreach (q(SELECT get_raw_page('t', 0)), q(SELECT get_raw_page('t', 'main', 0)),
		q(SELECT * FROM heap_page_items(get_raw_page('t', 1))));
	is($node->safe_psql('postgres', q(SELECT count(*) FROM heap_page_items(get_raw_page('h', 0)))), '226', 'heap_page_items of heap');
	is($node->safe_psql('postgres', q(SELECT count(*) > 50 FROM bt_page_items('t_pkey', 1))), 't', 'bt_page_items of an index');
	is($node->safe_psql('postgres', q(SELECT magic FROM bt_metap('t_pkey'))), '340322', 'bt_metap');
	$node->fails_with($_, $index, $_)
	  foreach (q(SELECT get_raw_page('t_says', 0)), q(SELECT get_raw_page('public.t_says', 'main', 0)), q(SELECT magic FROM bt_metap('t_says')),
		q(SELECT * FROM bt_page_stats('t_says', 1)), q(SELECT * FROM bt_page_items('t_says', 1)),
		$node->pg_version >= 17 ? q(SELECT * FROM bt_multi_page_stats('t_says', 1, 2)) : ());
	$node->fails_with(q(SELECT * FROM bt_metap('nowhere')), qr/relation "nowhere" does not exist/, 'a name of nothing');
	is($node->safe_psql('postgres', q(SELECT type FROM (SELECT hash_page_type(get_raw_page('t_hash', 0)) AS type) x)), 'metapage', 'hash_page_type');
	is($node->safe_psql('postgres', q(SELECT count(*) > 0 FROM brin_page_items(get_raw_page('t_brin', 2), 't_brin'))), 't', 'brin_page_items');
	# every entry of an index leads to a row or to what VACUUM will remove
	is($node->safe_psql('postgres', q(SET enable_seqscan = off; SELECT count(*) FROM t x WHERE NOT EXISTS (SELECT FROM t y WHERE y.id = x.id))), '0', 'and the index works');
}

if (available('pgstattuple'))
{
	$node->fails_with(q(SELECT * FROM pgstattuple('t')), $theirs, 'pgstattuple refuses');
	$node->fails_with(q(SELECT * FROM pgstattuple_approx('t')), $theirs, 'pgstattuple_approx refuses');
	is($node->safe_psql('postgres', q(SELECT tuple_count FROM pgstattuple('h'))), '1000', 'pgstattuple of heap');
	is($node->safe_psql('postgres', q(SELECT tuple_count > 4000 FROM pgstattuple('t_pkey'))), 't', 'pgstattuple of an index');
	is($node->safe_psql('postgres', q(SELECT leaf_pages > 5, tree_level FROM pgstatindex('t_pkey'))), 't|1', 'pgstatindex');
	$node->fails_with($_, $index, $_)
	  foreach (q(SELECT * FROM pgstatindex('t_says')), q(SELECT * FROM pgstatindex('t_says'::regclass)),
		q(SELECT * FROM pgstattuple('t_says')), q(SELECT * FROM pgstattuple('t_says'::regclass)));
	is($node->safe_psql('postgres', q(SELECT pending_pages >= 0 FROM pgstatginindex('t_gin'))), 't', 'pgstatginindex');
	is($node->safe_psql('postgres', q(SELECT bucket_pages > 0 FROM pgstathashindex('t_hash'))), 't', 'pgstathashindex');
	is($node->safe_psql('postgres', q(SELECT pg_relpages('t') = blocks FROM nvm.relations WHERE relation = 't'::regclass)), 't', 'pg_relpages is the number of blocks');
}

if (available('pg_prewarm'))
{
	$node->fails_with($_, $ours, $_)
	  foreach (q(SELECT pg_prewarm('t')), q(SELECT pg_prewarm('t', 'read')), q(SELECT pg_prewarm('t', 'prefetch')),
		q(SELECT relname, pg_prewarm(oid) FROM pg_class WHERE relname = 't'));
	is($node->safe_psql('postgres', q(SELECT pg_prewarm('t_pkey') > 5, pg_prewarm('h') > 3)), 't|t', 'pg_prewarm of an index and of heap');
	# and nothing is left of the error
	is($node->safe_psql('postgres', <<'SQL'), "4286\nt", 'tables work after the error, in the same session and transaction');
\set ON_ERROR_STOP off
\set VERBOSITY sqlstate
BEGIN;
SAVEPOINT a;
SELECT pg_prewarm('t');
ROLLBACK TO a;
SELECT count(*) FROM t WHERE id <= 5000;
ANALYZE t;
SELECT pg_prewarm('t_v') > 0;
COMMIT;
SQL
}

if (available('pg_visibility'))
{
	$node->fails_with($_, $ours, $_) foreach (q(SELECT * FROM pg_visibility('t')), q(SELECT * FROM pg_visibility('t', 0)));
	is($node->safe_psql('postgres', $_), '0', $_)
	  foreach (q(SELECT count(*) FROM pg_visibility_map('t') WHERE all_visible OR all_frozen),
		q(SELECT all_visible + all_frozen FROM pg_visibility_map_summary('t')),
		q(SELECT count(*) FROM pg_check_frozen('t')), q(SELECT count(*) FROM pg_check_visible('t')));
	$node->safe_psql('postgres', q(SELECT pg_truncate_visibility_map('t')));
}

if (available('pg_freespacemap'))
{
	is($node->safe_psql('postgres', q(SELECT coalesce(sum(avail), 0) FROM pg_freespace('t'))), '0', 'pg_freespace knows of none');
	is($node->safe_psql('postgres', q(SELECT pg_freespace('t', 0))), '0', 'nor of a block');
}
$node->fails_with(q(SELECT * FROM pgrowlocks('t')), $theirs, 'pgrowlocks refuses') if available('pgrowlocks');
$node->fails_with(q(SELECT heap_force_kill('t', ARRAY['(0,3)']::tid[])), $theirs, 'pg_surgery refuses') if available('pg_surgery');
if (available('pg_buffercache'))
{
	is($node->safe_psql('postgres', q(SELECT count(*) FROM pg_buffercache WHERE relfilenode = pg_relation_filenode('t'))), '0', 'no buffer holds the table');
}
if (available('pg_stat_statements'))
{
	is($node->safe_psql('postgres', q(SELECT pg_table_size('t'), pg_relation_size('t'), pg_indexes_size('t') > 0, pg_total_relation_size('t') = pg_indexes_size('t'))),
		'0|0|t|t', 'files are those of the indexes');
}

# ---- pg_statio
is($node->safe_psql('postgres', <<SQL), '0|t|t|t', 'pg_statio_user_tables: nothing is read, each block looked at is a hit');
SELECT heap_blks_read, heap_blks_hit > 0, idx_blks_hit > 0, toast_blks_hit IS NULL FROM pg_statio_user_tables WHERE relname = 't'
SQL
$node->check_clean('inspected');

# ---- after a crash the statistics know the table, and autovacuum comes for the
# space that only VACUUM can give back
$node->safe_psql('postgres', <<SQL);
CREATE TABLE c (id int PRIMARY KEY, v int, s text) USING nvm WITH (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0);
INSERT INTO c SELECT i, 0, repeat('x', 50) FROM generate_series(1, 6000) i;
DELETE FROM c WHERE id % 2 = 0;
VACUUM c;
SELECT txid_current();
VACUUM c;
UPDATE c SET v = 1 WHERE id < 100;
CREATE TABLE quiet (id int PRIMARY KEY) USING nvm;
INSERT INTO quiet SELECT generate_series(1, 3000);
SQL
$node->crash;
$node->start;
is($node->safe_psql('postgres', "SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'c'"), '0|0',
	'PostgreSQL has discarded its statistics');
is($node->safe_psql('postgres', 'SELECT count(*) FROM c'), '3000', 'the table is used');
my ($live, $dead) = split /\|/, $node->safe_psql('postgres', "SELECT n_live_tup, n_dead_tup FROM pg_stat_user_tables WHERE relname = 'c'");
cmp_ok($live, '>', 2500, 'then they know its rows');
cmp_ok($live, '<', 3500, 'about');
cmp_ok($dead, '>', 500, 'and that there is something for VACUUM');
is($node->safe_psql('postgres', 'SELECT count(*) FROM quiet; SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = \'quiet\''), "3000\n3000",
	'of a small table exactly');
is($node->safe_psql('postgres', 'SELECT count(*) FROM quiet; SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = \'quiet\''), "3000\n3000",
	'and told once');
is($node->safe_psql('postgres', "SELECT live_rows, dead_versions FROM nvm.relations WHERE relation = 'quiet'::regclass"), '3000|0', 'nvm.relations knows it too');
$node->safe_psql('postgres', 'ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()');
ok($node->poll_query_until('postgres', "SELECT autovacuum_count > 0 AND n_dead_tup < 10 FROM pg_stat_user_tables WHERE relname = 'c'"), 'autovacuum comes by itself');
cmp_ok($node->safe_psql('postgres', "SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = 'c'"), '==', 3000, 'and counts the rows');
# it tells the statistics before it commits
$node->safe_psql('postgres', 'ALTER SYSTEM SET autovacuum = off; SELECT pg_reload_conf()');
$node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'))
  or die 'autovacuum does not end';
my $blocks = $node->safe_psql('postgres', "SELECT blocks FROM nvm.relations WHERE relation = 'c'::regclass");
$node->safe_psql('postgres', "INSERT INTO c SELECT i, 0, repeat('y', 50) FROM generate_series(10001, 11500) i");
is($node->safe_psql('postgres', "SELECT blocks FROM nvm.relations WHERE relation = 'c'::regclass"), $blocks, 'then rows use the space, and the table does not grow');

# a VACUUM or ANALYZE that is the first to open it counts once
foreach my $command ('VACUUM', 'ANALYZE', 'VACUUM FULL', 'SELECT count(*) FROM')
{
	$node->safe_psql('postgres', "ALTER SYSTEM SET autovacuum = off");
	$node->crash;
	$node->start;
	$node->safe_psql('postgres', "$command quiet");
	is($node->safe_psql('postgres', "SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = 'quiet'"), 3000,
		"$command first: rows count once");
}
# after a clean stop PostgreSQL has kept its own
$node->stop;
$node->start;
$node->safe_psql('postgres', 'SELECT count(*) FROM quiet');
is($node->safe_psql('postgres', "SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = 'quiet'"), '3000', 'clean stop: nothing is told');
$node->check_clean('at the end');
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# A catalog that says of an nvm_btree index that it is btree's, whose file holds what it
# held before: an ERROR at the first use, of whatever kind, until the index is built
# anew; not an answer without the rows that only the pool's entries lead to.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $node = NvmTest->start_new('identity', conf => "autovacuum = off\n", sql => q(
	CREATE TABLE t (id int, v text) USING nvm;
	INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1, 1000) g;
	SET nvm.default_index_method = btree;
	CREATE INDEX in_file ON t USING btree (id);
	RESET nvm.default_index_method;
	CREATE INDEX in_pool ON t USING nvm_btree (id);
	CREATE INDEX second ON t USING nvm_btree (id);
	CREATE TABLE other (id int PRIMARY KEY) USING nvm;
	INSERT INTO other VALUES (7)));
my ($file, $pool, $second) = map { $node->safe_psql('postgres', "SELECT pg_relation_filepath('$_')") } qw(in_file in_pool second);

# what the indexes were, when they were btree's
$node->safe_psql('postgres', 'CHECKPOINT');
$node->stop;
foreach my $index ($pool, $second)
{
	is(system('cp', $node->data_dir . "/$file", $node->data_dir . "/$index"), 0, 'an older file is there');
}
$node->start;
$node->safe_psql('postgres', q(INSERT INTO t SELECT g, 'row ' || g FROM generate_series(1001, 1010) g;
	DROP INDEX in_file;
	ALTER TABLE t SET (autovacuum_enabled = off)));
$node->safe_psql('postgres', q(UPDATE pg_class SET relam = (SELECT oid FROM pg_am WHERE amname = 'btree')
	WHERE relname IN ('in_pool', 'second')));

my $says = qr/index "(in_pool|second)" is not in the NVM pool by its catalog, but the pool has its entries.*HINT:  REINDEX the index/s;
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';

foreach my $crash (0, 1)
{
	$node->fails_with("$by_index SELECT * FROM t WHERE id = 1005", $says, 'an index scan');
	$node->fails_with('SET enable_seqscan = off; SET enable_indexscan = off; SELECT * FROM t WHERE id = 1005', $says, 'a bitmap scan');
	$node->fails_with("$by_index SELECT id FROM t ORDER BY id DESC LIMIT 1", $says, 'the greatest key');
	$node->fails_with(q(INSERT INTO t VALUES (2000, 'new')), $says, 'INSERT');
	$node->fails_with(q(INSERT INTO t VALUES (2000, 'new') ON CONFLICT DO NOTHING), $says, 'INSERT ON CONFLICT');
	$node->fails_with(q(COPY t FROM PROGRAM 'printf "2000\tnew\n"'), $says, 'COPY');
	$node->fails_with(q(UPDATE t SET id = 2000 WHERE id = 1), $says, 'UPDATE');
	$node->fails_with(q(MERGE INTO t USING other o ON t.id = o.id WHEN MATCHED THEN UPDATE SET id = 2000), $says, 'MERGE');
	is($node->safe_psql('postgres', 'SELECT id FROM other WHERE id = 7'), 7, 'other tables are served');
	next if $crash;
	$node->crash;
	$node->start;
}

# the one way out, for one index after the other; and the other one
$node->safe_psql('postgres', 'SET nvm.default_index_method = btree; REINDEX INDEX in_pool');
$node->fails_with('SELECT * FROM t WHERE id = 1005', qr/index "second" is not in the NVM pool by its catalog/, 'there is another one');
$node->safe_psql('postgres', 'DROP INDEX second');
is($node->safe_psql('postgres', "$by_index SELECT id, v FROM t WHERE id = 1005"), '1005|row 1005', 'the row is found');
like($node->safe_psql('postgres', "$by_index EXPLAIN SELECT id, v FROM t WHERE id = 1005"), qr/using in_pool/, 'through the index');
$node->safe_psql('postgres', q(INSERT INTO t VALUES (2000, 'new'); UPDATE t SET id = 2001 WHERE id = 1));
is($node->safe_psql('postgres', "$by_index SELECT count(*), sum(id) FROM t WHERE id > 0"), '1011|' . (1010 * 1011 / 2 - 1 + 2000 + 2001),
	'it takes new rows');
$node->check_clean('in the end');

$node->stop;
done_testing();

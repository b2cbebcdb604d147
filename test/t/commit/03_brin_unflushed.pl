# Copyright (c) 2026, pg_nvm contributors

# Rows in a BRIN index whose summary says nothing new about them: brininsert writes no
# WAL then, and the summary that it found may be another session's, whose WAL nobody
# has flushed.  After a loss of power each acknowledged row must be found through the
# index, and nvm.check() must see one that is not.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('brin', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
nvm.horizon_naptime = 60s
wal_writer_delay = 10s
CONF
CREATE TABLE covered (a int) USING nvm;
CREATE TABLE none (a int, b int) USING nvm;
CREATE TABLE updated (a int, b int DEFAULT 0) USING nvm;
CREATE TABLE copied (a int) USING nvm;
CREATE TABLE h (a int);
INSERT INTO covered SELECT generate_series(1, 10);
INSERT INTO none SELECT generate_series(1, 10);
INSERT INTO updated SELECT generate_series(1, 10);
INSERT INTO copied SELECT generate_series(1, 10);
CREATE INDEX covered_a ON covered USING brin (a);
CREATE INDEX none_a ON none USING brin (a);
CREATE INDEX updated_a ON updated USING brin (a);
CREATE INDEX copied_a ON copied USING brin (a);
CHECKPOINT;
SQL
$node->stop_wal_writers;

my $others = $node->session;
my $mine   = $node->session;
# another's records, in a transaction that stays open; then mine, which are acknowledged
$others->sql('BEGIN');
$others->sql("INSERT INTO $_ VALUES (1000)") foreach 'covered', 'updated', 'copied';
$node->safe_psql('postgres', "SELECT brin_desummarize_range('none_a', 0)");
$mine->sql('INSERT INTO covered VALUES (500)');
$mine->sql('UPDATE updated SET a = 500 WHERE a = 5');
$mine->sql("COPY copied FROM PROGRAM 'seq 500 501'");
$mine->sql('INSERT INTO none VALUES (500)');
# WAL that nobody has waited for
$node->safe_psql('postgres', 'SET synchronous_commit = off; INSERT INTO h VALUES (1)');
$node->power_failure(seed => 1, mode => 'durable');
$others->drop;
$mine->drop;
$node->start;

is($node->safe_psql('postgres', 'SELECT count(*) FROM h'), '0', 'WAL that nobody waited for is lost');
foreach my $table ('covered', 'none', 'updated', 'copied')
{
	is($node->safe_psql('postgres', "SET enable_seqscan = off; SELECT a FROM $table WHERE a = 500"),
		'500', "$table: the row is found through the index");
}
$node->check_clean('after the loss of power');

# nvm.check() holds the rows against the summaries: take one away by an operator class
# whose order is another than before
$node->safe_psql('postgres', <<SQL);
CREATE FUNCTION shift() RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 0';
CREATE FUNCTION shifted(int) RETURNS int IMMUTABLE LANGUAGE plpgsql AS 'BEGIN RETURN \$1 + public.shift(); END';
CREATE TABLE lie (a int, n int) USING nvm;
INSERT INTO lie SELECT i FROM generate_series(1, 100) i;
CREATE INDEX lie_brin ON lie USING brin (shifted(a)) WHERE a % 2 = 0;
CREATE INDEX lie_multi ON lie USING brin (shifted(a) int4_minmax_multi_ops);
CREATE INDEX lie_bloom ON lie USING brin (shifted(a) int4_bloom_ops);
CREATE INDEX lie_null ON lie USING brin (n);
CREATE INDEX lie_box ON lie USING brin (box(point(0, 0), point(shifted(a), 1)) box_inclusion_ops);
CREATE INDEX lie_hash ON lie USING hash (a);
SQL
my $check = "SELECT problem FROM nvm.check('lie', heapallindexed => true) ORDER BY problem COLLATE \"C\"";
my ($ret, $out, $err) = $node->psql('postgres', $check);
is($out, '', 'no finding before that');
like($err, qr/NOTICE:  rows are not held against index "lie_hash" of access method "hash"/,
	'the index that is not looked into is named');
unlike($err, qr/lie_(brin|multi|bloom|null|box)/, 'and no other');
is($node->safe_psql('postgres', "SELECT * FROM nvm.check('lie_$_', true)"), '', "lie_$_: no finding") foreach qw(brin null);
$node->fails_with("SELECT * FROM nvm.check('lie_brin')",
	qr/"lie_brin" is not an index in the NVM pool.*HINT:  Hold the rows of table "lie" against it: heapallindexed => true/s, 'lie_brin: without rows there is nothing to check');
$node->fails_with("SELECT * FROM nvm.check('lie_hash', $_)",
	qr/"lie_hash" is not an index in the NVM pool.*HINT:  Check its table "lie"/s, 'lie_hash: its table is named') foreach qw(false true);
$node->safe_psql('postgres', <<SQL);
CREATE OR REPLACE FUNCTION shift() RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 1';
SQL
($ret, $out, $err) = $node->psql('postgres', $check);
like($out, qr/^index "lie_brin", range of block 0: row \(\d+,\d+\) is not within its summary$/m, 'minmax');
like($out, qr/^index "lie_multi", range of block 0: row/m, 'minmax-multi');
like($out, qr/^index "lie_bloom", range of block 0: row/m, 'bloom');
like($out, qr/^index "lie_box", range of block 0: row/m, 'inclusion');
unlike($out, qr/lie_null|lie_hash/, 'nothing of what is as it was');
is(scalar(my @lines = split /\n/, $out), 4, 'once for each range');
like($node->safe_psql('postgres', "SELECT * FROM nvm.check('lie_brin', true)"), qr/^0\|0?\|row \(\d+,\d+\) is not within its summary$/, 'an index that is asked about');
is($node->safe_psql('postgres', "SELECT * FROM nvm.check('lie_null', true)"), '', 'and another');

$node->stop;
done_testing();

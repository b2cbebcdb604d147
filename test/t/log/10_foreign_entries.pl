# Copyright (c) 2026, pg_nvm contributors

# Entries of indexes that have WAL, on tables in memory. They are in files, and outlive the memory.
# What comes back from the log must fit them: no row without its entry, and no entry that leads to
# another row: neither in blocks that have rows again, nor behind the last of them.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $node = NvmTest->start_new('entries', conf => <<CONF, sql => <<SQL);
autovacuum = off
CONF
CREATE TABLE d (id int, p point, k int) USING nvm_vlog;
CREATE INDEX d_p ON d USING gist (p);
CREATE INDEX d_k ON d USING hash (k);
INSERT INTO d SELECT i, point(i, i), i FROM generate_series(1, 500) i;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub blocks { return sql("SELECT blocks FROM nvm.relations WHERE relation = '$_[0]'::regclass AND NOT ended"); }

# the machine stops, and the server starts without what was in memory
sub reboot
{
	$node->crash;
	$node->start;
	return;
}

# by an index scan that looks at nothing but the entry
sub by_index
{
	my ($where) = @_;
	return sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), min(id), max(id) FROM d WHERE $where");
}

is(by_index("p <@ box '(100,100),(199,199)'"), '100|100|199', 'entries lead to rows');

# rows that do not come back, with entries that are on the medium: in the blocks of others, and far
# behind them
my $lost = $node->background_psql('postgres', on_error_stop => 0);
$lost->query('BEGIN');
$lost->query('INSERT INTO d SELECT i, point(i, i), i FROM generate_series(100001, 120000) i');
sql('CHECKPOINT');
my $size = blocks('d');
reboot();
is(sql('SELECT count(*), max(id) FROM d'), '500|500', 'rows that were not committed are not there');
cmp_ok(blocks('d'), '<', $size / 10, "the table has the blocks of its rows, and not the $size that it had");
is(by_index("p <@ box '(100,100),(199,199)'"), '100|100|199', 'rows that were are found by their entries');
is(by_index("p <@ box '(100001,100001),(120000,120000)'"), '0||', 'entries of the others lead to nothing');

# as many new rows as there were lost ones: none may come where an entry leads
sql("INSERT INTO d SELECT i, point(-i, -i), -i FROM generate_series(200001, 240000) i");
cmp_ok(sql('SELECT min((ctid::text::point)[0]) FROM d WHERE id > 200000'), '>=', $size, 'new rows lie behind all blocks that it had');
is(by_index("p <@ box '(100001,100001),(120000,120000)'"), '0||', 'nor to new rows');
is(sql("SET enable_seqscan = off; SELECT count(*) FROM generate_series(100001, 120000, 97) i, d WHERE d.k = i"), '0',
	'by the hash index likewise');
is(by_index("p <@ box '(-240000,-240000),(-200001,-200001)'"), '40000|200001|240000', 'which are all found');

# VACUUM makes their place free again
my $blocks = blocks('d');
sql('DELETE FROM d WHERE id > 500');
sql('VACUUM d');
sql('VACUUM d');
sql("INSERT INTO d SELECT i, point(-i, -i), -i FROM generate_series(300001, 340000) i");
cmp_ok(blocks('d'), '<=', $blocks + 100, 'VACUUM makes their place free again');
is(by_index("p <@ box '(100001,100001),(120000,120000)'"), '0||', 'and has removed their entries');

# a deletion that the log does not have: the row is back, and so must its entries be
sql('UPDATE d SET k = k + 0 WHERE id = 7');
sql("SET synchronous_commit = off; DELETE FROM d WHERE id BETWEEN 101 AND 200; SET synchronous_commit = on; VACUUM d");
reboot();
my $left = sql('SELECT count(*) FROM d WHERE id BETWEEN 101 AND 200');
like($left, qr/^(?:0|100)$/, 'a deletion is whole or absent');
is(by_index("p <@ box '(101,101),(200,200)'"), $left == 0 ? '0||' : '100|101|200', 'and the entries agree');

# it stops before the count of a table's extents is durable: nothing is in the new one
sql('CREATE TABLE e (id int, p point) USING nvm_vlog; CREATE INDEX ON e USING gist (p)');
my $grows = $node->session("SET nvm.failpoint = 'pool-count-volatile:crash'");
$grows->send('INSERT INTO e SELECT i, point(i, i) FROM generate_series(1, 10000) i');
$node->wait_crashed;
$grows->drop;
$node->start;
is(sql('SELECT count(*) FROM e'), '0', 'a crash before another extent is counted leaves nothing');
sql('INSERT INTO e SELECT i, point(i, i) FROM generate_series(1, 100) i');
reboot();
is(sql("SELECT count(*) FROM e WHERE p <@ box '(1,1),(100,100)'"), '100', 'and the table works');

# without such an index a table has no more blocks than its rows need, whatever is lost how often
sql('CREATE TABLE own (id int PRIMARY KEY) USING nvm_vlog');
foreach my $i (1 .. 4)
{
	sql("INSERT INTO own VALUES ($i)");
	reboot();
}
is(sql('SELECT count(*) FROM own') . ' in ' . blocks('own'), '4 in 1', 'a table does not grow by starts');
sql('DROP TABLE own');

# UNLOGGED: a clean stop leaves the entries of all rows, and none of the rows if what it has kept
# is lost (else 18_unlogged)
sub lose_unlogged
{
	$node->stop;
	my @kept = glob $node->data_dir . '/pg_nvm_log/*.kept';
	cmp_ok(scalar(@kept), '>=', 2, 'a stop has kept rows');
	unlink @kept;
	$node->start;
	return;
}

sql(<<'SQL');
CREATE UNLOGGED TABLE u (id int, k int) USING nvm_vlog;
SET nvm.default_index_method = btree;
CREATE UNIQUE INDEX u_id ON u USING btree (id);
RESET nvm.default_index_method;
CREATE INDEX u_k ON u USING hash (k);
CREATE INDEX u_b ON u USING brin (id);
INSERT INTO u SELECT i, i FROM generate_series(1, 20000) i;
CREATE UNLOGGED TABLE own (id int PRIMARY KEY) USING nvm_vlog;
INSERT INTO own SELECT generate_series(1, 20000);
SQL

sub unlogged_by_index
{
	my ($from, $to) = @_;
	return join ' ', map { sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), min(id), max(id) FROM u WHERE $_") }
	  ("id BETWEEN $from AND $to", "k = $from");
}

is(unlogged_by_index(100, 199), '100|100|199 1|100|100', 'UNLOGGED: entries lead to rows');
cmp_ok(blocks('own'), '>', 50, 'a table with indexes of ours alone');
lose_unlogged();
is(blocks('own'), 0, 'comes back without blocks');
is(sql('SELECT count(*) FROM u'), '0', 'a restart has emptied the table');
is(unlogged_by_index(100, 199), '0|| 0||', 'and its entries lead to nothing');
sql('INSERT INTO u SELECT i, -i FROM generate_series(100001, 130000) i');
is(unlogged_by_index(100, 199), '0|| 0||', 'nor to new rows');
is(unlogged_by_index(100100, 100199), '100|100100|100199 0||', 'which are found');
sql('INSERT INTO u SELECT i, i FROM generate_series(1, 1000) i');
is(unlogged_by_index(100, 199), '100|100|199 1|100|100', 'rows with the keys of lost ones are found, and are not refused as their doubles');
$node->fails_with('INSERT INTO u VALUES (100, 0)', qr/duplicate key/, 'but doubles of rows that are there are');
$node->check_clean('an UNLOGGED table after a restart');
sql('VACUUM u');
is(unlogged_by_index(100, 199), '100|100|199 1|100|100', 'and by entries alone, which VACUUM has cleaned');
$node->check_clean('and after VACUUM');
reboot();
is(sql('SELECT count(*) FROM u') . unlogged_by_index(100, 199), '00|| 0||', 'after a crash PostgreSQL has emptied its indexes, too');
sql('INSERT INTO u SELECT i, i FROM generate_series(1, 1000) i');
is(unlogged_by_index(100, 199), '100|100|199 1|100|100', 'and the table works');
$node->check_clean('tables in memory with indexes that have WAL');
$node->stop;

# without any table that is logged
$node = NvmTest->start_new('alone', conf => <<CONF, sql => <<SQL);
autovacuum = off
CONF
CREATE UNLOGGED TABLE u (id int, k int) USING nvm_vlog;
INSERT INTO u SELECT i, i FROM generate_series(1, 20000) i;
SQL
is(sql('SELECT state FROM nvm.log'), 'on', 'an UNLOGGED table begins the log');
sql('CREATE INDEX u_k ON u USING hash (k); SET nvm.default_index_method = btree; CREATE INDEX u_id ON u USING btree (id)');
lose_unlogged();
sql('INSERT INTO u SELECT i, -i FROM generate_series(100001, 130000) i');
is(unlogged_by_index(100, 199), '0|| 0||', 'entries of lost rows lead to nothing');
is(unlogged_by_index(100100, 100199), '100|100100|100199 0||', 'and others to their rows');
$node->check_clean('an UNLOGGED table alone');
$node->stop;
done_testing();

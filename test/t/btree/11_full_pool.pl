# Copyright (c) 2026, pg_nvm contributors

# A full pool, and nvm_btree splits whose second step an error has prevented: VACUUM,
# which is to make room, does not need any for that.  Nor does a restart.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('full', conf => "autovacuum = off\nnvm.pool_max_size = '64MB'\n");

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub fails_with
{
	my ($sql, $error, $name) = @_;
	my ($ret, undef, $err) = $node->psql('postgres', $sql);
	like($err, $error, $name);
	return;
}

# Keys of which a leaf takes two and an inner page has three children.
sql(<<'SQL');
CREATE FUNCTION wide(k int) RETURNS text IMMUTABLE LANGUAGE sql AS
	$$ SELECT lpad(k::text, 9, '0') || string_agg(md5((k + g)::text), '') FROM generate_series(1, 80) g $$;
CREATE TABLE w (k int) USING nvm;
CREATE INDEX w_k ON w USING nvm_btree (wide(k));
INSERT INTO w SELECT i * 1000 FROM generate_series(1, 100) i;
CREATE TABLE filler (t text) USING nvm;
SQL
fails_with("SET nvm.failpoint = 'btree-split-locks:error:1'; INSERT INTO w VALUES ($_ * 1000 + 1)",
	qr/failpoint btree-split-locks/, "key $_: the split is left incomplete")
  foreach 40 .. 50;
fails_with("DO \$\$ BEGIN LOOP INSERT INTO filler SELECT repeat('x', 900) FROM generate_series(1, $_); COMMIT; END LOOP; END \$\$",
	qr/maximum size.*CONTEXT:  extending nvm relation "filler"/s, "the pool is filled by $_ rows at a time")
  foreach 1000, 50;
fails_with("INSERT INTO filler SELECT string_agg(md5(i::text), '') FROM generate_series(1, 200000) i",
	qr/maximum size.*CONTEXT:  extending nvm relation "filler"/s, 'a large value');
fails_with('DO $$ BEGIN LOOP INSERT INTO w SELECT max(k) + 1 FROM w; COMMIT; END LOOP; END $$',
	qr/maximum size.*CONTEXT:  extending nvm relation "w_/s, 'so is the index');

sql('DELETE FROM w WHERE k > 60000');
foreach my $i (1, 2)
{
	my ($ret, undef, $err) = $node->psql('postgres', 'VACUUM (INDEX_CLEANUP ON) w');
	is($err, '', "VACUUM $i does not fail");
}
is(sql("SELECT * FROM nvm.check('w_k', true)"), '', 'the index is sound');

# with room, everything is completed
sql('DROP TABLE filler');
sql('INSERT INTO w SELECT i * 1000 + 2 FROM generate_series(30, 55) i');
sql('VACUUM (INDEX_CLEANUP ON) w');
is(sql("SELECT * FROM nvm.check('w_k', true)"), '', 'the index is sound, with room');
is(sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM w WHERE wide(k) > '0'"),
	86, 'and has all rows');

# ---- persistence = leaves: inner pages made anew take the blocks of the former ones

sql(<<'SQL');
DROP TABLE w;
CREATE TABLE l (id int) USING nvm;
INSERT INTO l SELECT generate_series(1, 160000);
CREATE INDEX l_id ON l USING nvm_btree (id) WITH (persistence = leaves);
SQL

sub blocks_after_use
{
	is(sql('SET enable_seqscan = off; SELECT count(*) FROM l WHERE id = 159000'), '1', "leaves: $_[0]");
	return sql("SELECT blocks FROM nvm.relations WHERE relation = 'l_id'::regclass");
}
my $blocks = blocks_after_use('built');
foreach my $i (1 .. 3)
{
	$node->restart;
	is(blocks_after_use("restart $i"), $blocks, "leaves: restart $i takes no blocks");
}
is(sql("SELECT * FROM nvm.check('l_id', true)"), '', 'leaves: the index is sound');
$node->stop;
done_testing();

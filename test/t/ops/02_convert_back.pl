# Copyright (c) 2026, pg_nvm contributors

# The way in and out, by the queries of doc/operations.md: a schema of many kinds of
# tables goes to nvm and back, and is what it was; then pg_nvm is uninstalled,
# and a server without the library has every row.

use strict;
use warnings;

use File::Path qw(rmtree);
use FindBin;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('convert', conf => 'autovacuum = off', extension => 0);
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;
my $file   = PostgreSQL::Test::Utils::tempdir() . '/dump';
my $readme = slurp_file("$FindBin::RealBin/../../../doc/operations.md");
my $major  = $node->safe_psql('postgres', "SELECT current_setting('server_version_num')::int / 10000");

# ---- the queries
my ($section) = $readme =~ /^## Convert and uninstall\n(.*?)^## /ms;
my ($to_nvm, $to_heap) = ($section // '') =~ /^```sql\n(.*?)^```$/msg;
ok($to_nvm && $to_heap, 'doc/operations.md has queries that convert');
like($to_nvm, qr/SET ACCESS METHOD nvm.*'public'::regnamespace/s, 'one to nvm');
like($to_heap, qr/SET ACCESS METHOD heap.*'public'::regnamespace/s, 'one to heap');
s/'public'::regnamespace/'s'::regnamespace/ foreach ($to_nvm, $to_heap);

$node->safe_psql('postgres', <<'SQL');
CREATE EXTENSION pg_nvm;
CREATE SCHEMA s;
CREATE SCHEMA "Other";
SET search_path = s;
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE pair AS (a int, b text);

CREATE TABLE plain (id int PRIMARY KEY, m mood, p pair, a text[], j jsonb, b bytea, n numeric(20, 5), ts timestamptz DEFAULT '2020-01-01 00:00Z', r int4range);
INSERT INTO plain SELECT i, (enum_range(NULL::mood))[1 + i % 3], ROW(i, 'x' || i)::pair, ARRAY['a', NULL, 'c' || i],
	jsonb_build_object('k', i), decode(md5(i::text), 'hex'), i / 7.0, now(), int4range(i, i + 5) FROM generate_series(1, 3000) i;
INSERT INTO plain (id) VALUES (0);
UPDATE plain SET n = n * 2 WHERE id % 3 = 0;
DELETE FROM plain WHERE id % 10 = 1;
ALTER TABLE plain ADD COLUMN gone int DEFAULT 5, ADD COLUMN later int DEFAULT 42;
ALTER TABLE plain DROP COLUMN gone;
CREATE INDEX plain_lower ON plain (lower((p).b) text_pattern_ops DESC NULLS LAST) INCLUDE (n) WITH (fillfactor = 77) WHERE id > 5;
CREATE UNIQUE INDEX plain_two ON plain (m, id) NULLS NOT DISTINCT;
CREATE INDEX plain_gin ON plain USING gin (j);
CREATE INDEX plain_brin ON plain USING brin (id);
CREATE INDEX plain_hash ON plain USING hash (n);
CREATE INDEX plain_gist ON plain USING gist (r);
CREATE INDEX plain_spgist ON plain USING spgist (r);
ALTER TABLE plain CLUSTER ON plain_pkey;
ALTER TABLE plain REPLICA IDENTITY USING INDEX plain_pkey;
ALTER INDEX plain_lower ALTER COLUMN 1 SET STATISTICS 300;
COMMENT ON TABLE plain IS 'a table';
COMMENT ON COLUMN plain.n IS 'a column';
COMMENT ON INDEX plain_lower IS 'an index';
COMMENT ON CONSTRAINT plain_pkey ON plain IS 'a constraint';
CREATE STATISTICS plain_stat (dependencies) ON m, n FROM plain;

CREATE TABLE large (id int PRIMARY KEY, t text, e bytea, x text COMPRESSION pglz) WITH (fillfactor = 80, autovacuum_enabled = off);
ALTER TABLE large ALTER e SET STORAGE EXTERNAL, ALTER t SET STORAGE MAIN;
INSERT INTO large SELECT i, repeat('long ' || i || ' ', 20000 * i), decode(repeat(md5(i::text), 3000 * i), 'hex'), repeat('p', 100000) FROM generate_series(1, 8) i;
INSERT INTO large VALUES (0, '', '', NULL);

CREATE TABLE child (id int REFERENCES plain ON DELETE CASCADE, l int REFERENCES large DEFERRABLE INITIALLY DEFERRED, extra int CHECK (extra >= 0),
	CONSTRAINT child_u UNIQUE (id, l) INCLUDE (extra) DEFERRABLE, self int, v varchar(5) COLLATE "C" NOT NULL DEFAULT 'v');
ALTER TABLE child ADD CONSTRAINT late CHECK (extra < 1000000) NOT VALID;
INSERT INTO child SELECT i * 10, i % 9, i FROM generate_series(1, 250) i;

CREATE TABLE ident (id int GENERATED ALWAYS AS IDENTITY (START 100 INCREMENT 5) PRIMARY KEY, s bigserial, g int GENERATED ALWAYS AS (v * 2) STORED, v int);
INSERT INTO ident (v) SELECT generate_series(1, 200);
CREATE TABLE refers (id int REFERENCES ident, during int4range, EXCLUDE USING gist (during WITH &&));
INSERT INTO refers SELECT 100 + i * 5, int4range(i * 10, i * 10 + 9) FROM generate_series(0, 99) i;

CREATE TABLE part (k int NOT NULL, v text DEFAULT 'd', PRIMARY KEY (k)) PARTITION BY RANGE (k);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100);
CREATE TABLE "Other"."Part 2" PARTITION OF part FOR VALUES FROM (100) TO (200);
CREATE TABLE part_3 PARTITION OF part FOR VALUES FROM (200) TO (300) PARTITION BY HASH (k);
CREATE TABLE part_3a PARTITION OF part_3 FOR VALUES WITH (MODULUS 2, REMAINDER 0);
CREATE TABLE part_3b PARTITION OF part_3 FOR VALUES WITH (MODULUS 2, REMAINDER 1);
CREATE TABLE part_d PARTITION OF part DEFAULT;
CREATE INDEX ON part (v);
CREATE UNIQUE INDEX part_1_own ON part_1 (v);
INSERT INTO part SELECT i, 'p' || i FROM generate_series(0, 399) i;
CREATE TABLE to_part (k int REFERENCES part);
INSERT INTO to_part SELECT generate_series(0, 399, 7);

CREATE TABLE parent (a int, b text);
CREATE TABLE inherits (c int) INHERITS (parent);
INSERT INTO inherits VALUES (2, 'child', 3);
INSERT INTO parent VALUES (1, 'parent');
CREATE UNLOGGED TABLE unlogged (a int PRIMARY KEY);
INSERT INTO unlogged SELECT generate_series(1, 100);
CREATE MATERIALIZED VIEW mv AS SELECT m, count(*) FROM plain GROUP BY m;
CREATE UNIQUE INDEX ON mv (m);
CREATE MATERIALIZED VIEW mv_empty AS SELECT 1 AS one WITH NO DATA;
CREATE VIEW v AS SELECT id, n FROM plain WHERE id < 100 WITH CHECK OPTION;
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER tr BEFORE INSERT OR UPDATE OF n ON plain FOR EACH ROW WHEN (new.n > 5) EXECUTE FUNCTION note();
CREATE RULE ru AS ON DELETE TO parent DO INSTEAD NOTHING;
ALTER TABLE plain ENABLE ROW LEVEL SECURITY;
CREATE POLICY pol ON plain USING (id > 0 OR id = 0);
GRANT SELECT (id, m) ON plain TO PUBLIC;
CREATE TABLE empty ();
CREATE TABLE typed OF pair (PRIMARY KEY (a));
INSERT INTO typed VALUES (1, 'one');
CREATE TABLE "odd ""name" ("a b" int, "C" text);
INSERT INTO "odd ""name" VALUES (1, E'tab\tnewline\nback\\slash');
SQL

# ---- what there is: each row, each definition, each index's method
sub contents
{
	my @out;
	foreach my $rel (split /\n/, $node->safe_psql('postgres', <<'SQL'))
SELECT c.oid::regclass FROM pg_class c WHERE relnamespace IN ('s'::regnamespace, '"Other"'::regnamespace)
	AND relkind IN ('r', 'm', 'p') AND relispopulated ORDER BY c.oid::regclass::text
SQL
	{
		push @out, "$rel " . $node->safe_psql('postgres', "SELECT count(*), md5(coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '')) FROM $rel t");
	}
	push @out, $node->safe_psql('postgres', "SELECT last_value, is_called FROM s.$_") foreach ('ident_id_seq', 'ident_s_seq');
	return join "\n", @out;
}

sub definitions
{
	PostgreSQL::Test::Utils::system_or_bail('pg_dump', '--schema-only', '--schema=s', '--schema="Other"', '-f', $file, 'postgres');
	# without the random word that newer releases guard the script with
	return slurp_file($file) =~ s/^\\(un)?restrict .*$//mgr;
}

# what a dump does not say of them
sub catalogs
{
	return $node->safe_psql('postgres', <<'SQL');
SELECT c.oid::regclass, c.oid, a.amname, c.relkind, c.relpersistence, c.reloptions, c.reltoastrelid <> 0, i.indisvalid, i.indisclustered, i.indisreplident, i.indclass, i.indoption
FROM pg_class c LEFT JOIN pg_am a ON a.oid = c.relam LEFT JOIN pg_index i ON i.indexrelid = c.oid
WHERE relnamespace IN ('s'::regnamespace, '"Other"'::regnamespace) ORDER BY c.oid
SQL
}

sub of_method
{
	my ($method, $kinds) = @_;
	return $node->safe_psql('postgres', "SELECT count(*) FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE amname = '$method' AND relkind IN ($kinds) AND c.oid >= 16384");
}

sub in_pool
{
	return $node->safe_psql('postgres', "SELECT count(*) FROM nvm.relations WHERE database = 'postgres' AND kind = 'i' AND NOT ended");
}

# the lines that are on one side alone, for a short complaint
sub same
{
	my ($now, $before, $name) = @_;
	my (%now, %before);
	my @now = split /\n/, $now;
	my @before = split /\n/, $before;

	@now{@now} = ();
	@before{@before} = ();
	return ok($now eq $before, $name) || diag join "\n", (map { "- $_" } grep { !exists $now{$_} } @before),
	  (map { "+ $_" } grep { !exists $before{$_} } @now);
}

sub convert
{
	my ($query, $schema, $name) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $query =~ s/'s'::regnamespace/'$schema'::regnamespace/r, on_error_stop => 1);
	is($ret, 0, $name) or diag $err;
	return $err;
}

my $contents    = contents();
my $definitions = definitions();
my $catalogs    = catalogs();

foreach my $round (1, 2)
{
	is(convert($to_nvm, $_, "round $round: schema $_ to nvm"), '', 'without a word') foreach ('s', '"Other"');
	is(of_method('heap', "'r', 'm'"), '0', 'no table is left');
	cmp_ok(of_method('nvm', "'r', 'm'"), '>=', 19, 'all are nvm tables');
	cmp_ok(in_pool(), '>=', 20, 'their indexes came along');
	same(contents(), $contents, 'every row is there');
	$node->check_clean("round $round");

	# a partitioned index of ours is in the way, and the query takes it out
	if ($round == 2)
	{
		$node->safe_psql('postgres', 'DROP INDEX s.part_v_idx; CREATE INDEX part_v_idx ON s.part USING nvm_btree (v)');
	}
	convert($to_heap, $_, "round $round: schema $_ to heap") foreach ('s', '"Other"');
	is(of_method('nvm', "'r', 'm', 'p'"), '0', 'no table is left');
	is(of_method('nvm_btree', "'i', 'I'"), '0', 'nor an index of nvm_btree');
	is(in_pool(), '0', 'nor one in the pool');
	same(contents(), $contents, 'every row is there');
	same(definitions(), $definitions, 'pg_dump writes what it did');
	same(catalogs(), $catalogs, 'the catalogs are as they were') if $round == 1;
}

# constraints and indexes work
$node->fails_with("INSERT INTO s.child (id, l, extra) VALUES (-5, 0, 1)", qr/violates foreign key constraint/, 'a foreign key');
$node->fails_with("INSERT INTO s.part VALUES (5)", qr/duplicate key/, 'a primary key of a partition');
$node->fails_with("INSERT INTO s.refers VALUES (100, int4range(1, 2))", qr/exclusion constraint/, 'an exclusion constraint');
is($node->safe_psql('postgres', "SET enable_seqscan = off; SELECT count(*) FROM s.plain WHERE n = 0 OR id IN (2, 3, 4)"), '3', 'an index finds rows');
is($node->safe_psql('postgres', "SELECT count(*) FROM nvm.relations WHERE NOT ended"), '0', 'nothing lies in the pool');

# ---- what is left in another schema keeps DROP EXTENSION from dropping its rows
$node->safe_psql('postgres', 'CREATE TABLE public.forgotten (a int PRIMARY KEY) USING nvm; INSERT INTO forgotten VALUES (1)');
$node->fails_with('DROP EXTENSION pg_nvm', qr/cannot drop extension pg_nvm because other objects depend on it.*table forgotten depends on access method nvm/s, 'a table that was forgotten is named');
convert($to_heap, 'public', 'it too');

# ---- uninstalled as doc/operations.md says
is(($node->psql('postgres', 'DROP EXTENSION pg_nvm'))[2], '', 'DROP EXTENSION needs no CASCADE');
$node->set_conf('shared_preload_libraries' => "''");
$node->stop;
rmtree($node->pool_dir);
my $data = $node->data_dir;
foreach ('pg_nvm_incarnation', 'base/1/9999', 'base/1/9999_init')
{
	ok(-e "$data/$_", "there is $_");
	unlink("$data/$_") or die "unlink $_: $!";
}
is(join(' ', glob("$data/*nvm* $data/base/*/9999*")), '', 'no other file is of ours');
$node->start;
unlike($node->safe_psql('postgres', 'SHOW shared_preload_libraries'), qr/nvm/, 'a server without the library');
same(contents(), $contents, 'every row is there');
same(definitions(), $definitions, 'every definition');
SKIP:
{
	skip 'amcheck is not installed', 1
	  if $node->safe_psql('postgres', "SELECT count(*) FROM pg_available_extensions WHERE name = 'amcheck'") eq '0';
	like($node->safe_psql('postgres', <<'SQL'), qr/^t\|\d\d\|0$/, 'amcheck finds nothing');
CREATE EXTENSION amcheck;
WITH c AS (SELECT * FROM pg_class WHERE relnamespace IN ('s'::regnamespace, '"Other"'::regnamespace))
SELECT (SELECT bool_and(bt_index_check(c.oid, true) IS NOT NULL) FROM c WHERE relam = 403 AND relkind = 'i'),
	(SELECT count(*) FROM c WHERE relam = 403 AND relkind = 'i'),
	(SELECT count(*) FROM c, verify_heapam(c.oid) WHERE relam = 2 AND relkind IN ('r', 'm'));
SQL
}
$node->safe_psql('postgres', 'DROP TABLE s.to_part; INSERT INTO s.plain (id) VALUES (-1); UPDATE s.part SET k = k + 1000');
$node->safe_psql('postgres', 'VACUUM');
$node->stop;
$node->start;
is($node->safe_psql('postgres', 'SELECT count(*) FROM s.part_d'), '400', 'and goes on');
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# pg_dump and pg_restore in all their formats: what comes back is what was
# there, in tables of the same access method, or of the other one if so asked.
#
# Long form: all combinations, here four.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('dump', conf => 'autovacuum = off', extension => 0);
my $dir = PostgreSQL::Test::Utils::tempdir();
local $ENV{PGHOST} = $node->host;
local $ENV{PGPORT} = $node->port;

$node->safe_psql('postgres', 'CREATE DATABASE source');
$node->safe_psql('source', <<'SQL');
CREATE EXTENSION pg_nvm;
CREATE SCHEMA s;
CREATE TYPE s.mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE s.pair AS (a int, b text);
CREATE DOMAIN s.positive AS int CHECK (VALUE > 0);
CREATE TYPE s.span AS RANGE (subtype = float8);
CREATE SEQUENCE s.free START 7;
SET search_path = s;

CREATE TABLE plain (id int PRIMARY KEY, m mood, p pair, d positive, r span, a text[], j jsonb, b bytea, n numeric, ts timestamptz DEFAULT '2020-01-01 00:00Z') USING nvm;
INSERT INTO plain SELECT i, (enum_range(NULL::mood))[1 + i % 3], ROW(i, 'x' || i)::pair, i, span(i, i + 0.5), ARRAY['a', NULL, 'c' || i],
	jsonb_build_object('k', i, 'l', repeat('v', i % 50)), decode(md5(i::text), 'hex'), i / 7.0 FROM generate_series(1, 3000) i;
INSERT INTO plain (id) VALUES (0);
UPDATE plain SET n = n * 2 WHERE id % 3 = 0;
DELETE FROM plain WHERE id % 10 = 0;

CREATE TABLE large (id int PRIMARY KEY, t text, e bytea, x text COMPRESSION pglz) USING nvm;
ALTER TABLE large ALTER e SET STORAGE EXTERNAL, ALTER t SET STORAGE MAIN;
INSERT INTO large SELECT i, repeat('long ' || i || ' ', 20000 * i), decode(repeat(md5(i::text), 3000 * i), 'hex'), repeat('p', 100000) FROM generate_series(1, 8) i;
INSERT INTO large VALUES (0, '', '', NULL);

CREATE TABLE heap (id int PRIMARY KEY, ref int REFERENCES plain, v text) USING heap;
INSERT INTO heap SELECT i, 1 + i % 9, 'h' || i FROM generate_series(1, 500) i;
CREATE TABLE child (id int REFERENCES heap ON DELETE CASCADE, ref int REFERENCES plain DEFERRABLE INITIALLY DEFERRED, UNIQUE (id, ref) INCLUDE (extra), extra int) USING nvm;
INSERT INTO child SELECT i, 1 + i % 9, i FROM generate_series(1, 400) i;

CREATE TABLE part (k int NOT NULL, v text, PRIMARY KEY (k)) PARTITION BY RANGE (k);
CREATE TABLE part_1 PARTITION OF part FOR VALUES FROM (0) TO (100) USING nvm;
CREATE TABLE part_2 PARTITION OF part FOR VALUES FROM (100) TO (200) USING heap;
CREATE TABLE part_3 PARTITION OF part FOR VALUES FROM (200) TO (300) PARTITION BY HASH (k);
CREATE TABLE part_3a PARTITION OF part_3 FOR VALUES WITH (MODULUS 2, REMAINDER 0) USING nvm;
CREATE TABLE part_3b PARTITION OF part_3 FOR VALUES WITH (MODULUS 2, REMAINDER 1) USING nvm;
CREATE TABLE part_d PARTITION OF part DEFAULT USING nvm;
CREATE INDEX ON part (v);
INSERT INTO part SELECT i, 'p' || i FROM generate_series(0, 399) i;

CREATE TABLE parent (a int, b text) USING nvm;
CREATE TABLE inherits (c int) INHERITS (parent) USING nvm;
INSERT INTO parent VALUES (1, 'parent');
INSERT INTO inherits VALUES (2, 'child', 3);

CREATE UNLOGGED TABLE unlogged (a int PRIMARY KEY) USING nvm WITH (fillfactor = 70, autovacuum_enabled = off, autovacuum_vacuum_threshold = 77);
INSERT INTO unlogged SELECT generate_series(1, 100);

CREATE TABLE ident (id int GENERATED ALWAYS AS IDENTITY (START 100 INCREMENT 5), s bigserial, g int GENERATED ALWAYS AS (v * 2) STORED, v int, dropped int, c text COLLATE "C") USING nvm;
INSERT INTO ident (v, c) SELECT i, chr(65 + i % 26) FROM generate_series(1, 100) i;
ALTER TABLE ident DROP COLUMN dropped;
ALTER TABLE ident ADD COLUMN added int DEFAULT 42;
ALTER TABLE ident ADD CONSTRAINT positive CHECK (v > 0) NOT VALID;
COMMENT ON TABLE ident IS 'a comment';
COMMENT ON COLUMN ident.v IS 'another';
CREATE STATISTICS ident_stat (dependencies) ON v, c FROM ident;
ALTER TABLE ident ALTER v SET STATISTICS 500;
ALTER TABLE ident REPLICA IDENTITY FULL;

CREATE TABLE excl (during int4range, EXCLUDE USING gist (during WITH &&)) USING nvm;
INSERT INTO excl SELECT int4range(i * 10, i * 10 + 9) FROM generate_series(1, 50) i;
CREATE INDEX ON plain USING gin (j);
CREATE INDEX ON plain USING brin (n);
CREATE INDEX ON plain USING hash (m);
CREATE INDEX plain_lower ON plain (lower((p).b)) WHERE id > 5;
CREATE INDEX ON plain USING spgist (r);
ALTER TABLE plain CLUSTER ON plain_pkey;

CREATE MATERIALIZED VIEW mv USING nvm AS SELECT m, count(*) FROM plain GROUP BY m;
CREATE UNIQUE INDEX ON mv (m);
CREATE MATERIALIZED VIEW mv_empty USING nvm AS SELECT 1 AS one WITH NO DATA;
CREATE VIEW v AS SELECT id, n FROM plain WHERE id < 100 WITH CHECK OPTION;

CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE TRIGGER tr BEFORE INSERT OR UPDATE OF n ON plain FOR EACH ROW WHEN (new.n > 5) EXECUTE FUNCTION note();
CREATE RULE ru AS ON DELETE TO parent DO INSTEAD NOTHING;
ALTER TABLE plain ENABLE ROW LEVEL SECURITY;
CREATE POLICY pol ON plain USING (id > 0 OR id = 0);
GRANT SELECT (id, m) ON plain TO PUBLIC;
CREATE TABLE empty () USING nvm;
CREATE TABLE nothing (a int) USING nvm;
CREATE TYPE typed AS (x int, y text);
CREATE TABLE typed_table OF typed (PRIMARY KEY (x)) USING nvm;
INSERT INTO typed_table VALUES (1, 'one');
CREATE TABLE "odd ""name" ("a b" int, "C" text) USING nvm;
INSERT INTO "odd ""name" VALUES (1, E'tab\tnewline\nback\\slash');
SELECT nextval('free');
ANALYZE;
SQL

# What is in a database: each table with its rows in order, as text, and whose
# access method it has.
sub contents
{
	my ($db) = @_;
	my @out;
	foreach my $rel (split /\n/, $node->safe_psql($db, <<'SQL'))
SELECT c.oid::regclass FROM pg_class c WHERE relnamespace = 's'::regnamespace AND relkind IN ('r', 'm', 'p') AND relispopulated ORDER BY c.oid::regclass::text
SQL
	{
		push @out, "$rel " . $node->safe_psql($db, "SELECT count(*), md5(coalesce(string_agg(t::text, E'\\n' ORDER BY t::text), '')) FROM $rel t");
	}
	push @out, $node->safe_psql($db, "SELECT last_value, is_called FROM s.$_") foreach ('free', 'ident_id_seq', 'ident_s_seq');
	return join "\n", @out;
}

sub methods
{
	my ($db) = @_;
	return $node->safe_psql($db, <<'SQL');
SELECT amname, count(*) FROM pg_class c JOIN pg_am a ON a.oid = relam
WHERE relnamespace = 's'::regnamespace AND relkind IN ('r', 'm') GROUP BY 1 ORDER BY 1
SQL
}

# of constraints too, which a dump does not say
sub index_methods
{
	my ($db) = @_;
	return $node->safe_psql($db, <<'SQL');
SELECT relname, amname FROM pg_class c JOIN pg_am a ON a.oid = relam
WHERE relnamespace = 's'::regnamespace AND relkind IN ('i', 'I') ORDER BY 1
SQL
}

sub definitions
{
	my ($db, @options) = @_;
	my $file = "$dir/definitions";
	PostgreSQL::Test::Utils::system_or_bail('pg_dump', '--schema-only', @options, '-f', $file, $db);
	my $text = slurp_file($file);
	# the random word that newer releases guard the script with
	$text =~ s/^\\(un)?restrict .*$//mg;
	return $text;
}

my $contents    = contents('source');
my $definitions = definitions('source');
my $methods     = methods('source');
my $indexes     = index_methods('source');
like($methods, qr/^heap\|2\nnvm\|\d\d$/, 'most tables are nvm tables');
like($indexes, qr/^plain_pkey\|btree$/m, 'indexes say btree');
like($definitions, qr/SET default_table_access_method = nvm/, 'the dump names the access method');
like($definitions, qr/CREATE EXTENSION IF NOT EXISTS pg_nvm/, 'and the extension');

sub restored
{
	my ($db, $name) = @_;
	is(contents($db), $contents, "$name: the data are identical");
	is(methods($db), $methods, "$name: the access methods are");
	is(index_methods($db), $indexes, "$name: those of indexes are");
	is(definitions($db), $definitions, "$name: the definitions are");
	is($node->safe_psql($db, q(SELECT c.oid::regclass, f FROM pg_class c JOIN pg_am a ON a.oid = relam, LATERAL nvm.check(c.oid) f WHERE amname = 'nvm')),
		'', "$name: nothing is wrong with the tables");
	$node->safe_psql('postgres', "DROP DATABASE $db");
	return;
}

# format, options of pg_dump, options of pg_restore (none: psql)
my @rounds = (
	[ 'plain',              ['-Fp'],                   undef ],
	[ 'directory parallel', [ '-Fd', '-j', '3' ],      [ '-j', '3' ] ],
	[ 'inserts',            [ '-Fp', '--rows-per-insert=100', '--column-inserts' ], undef ],
	[ 'custom',             ['-Fc'],                   [] ],
	[ 'custom parallel',    [ '-Fc', '-Z0' ],          [ '-j', '3' ] ],
	[ 'tar',                ['-Ft'],                   ['--disable-triggers'] ],
	[ 'one transaction',    ['-Fc'],                   ['--single-transaction'] ],
	[ 'sections',           ['-Fc'],                   'sections' ]);
# the others exercise pg_dump rather than us
splice(@rounds, 4) unless NvmTest::is_long();
foreach my $round (@rounds)
{
	my ($name, $dump, $restore) = @$round;
	(my $file = "$dir/$name") =~ s/ /_/g;

	command_ok([ 'pg_dump', @$dump, '-f', $file, 'source' ], "pg_dump, $name");
	$node->safe_psql('postgres', 'CREATE DATABASE target');
	if (!defined $restore)
	{
		command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-o', '/dev/null', 'target' ], "psql, $name");
	}
	elsif ($restore eq 'sections')
	{
		command_ok([ 'pg_restore', "--section=$_", '-d', 'target', $file ], "pg_restore, $_")
		  foreach ('pre-data', 'data', 'post-data');
	}
	else
	{
		command_ok([ 'pg_restore', '--exit-on-error', @$restore, '-d', 'target', $file ], "pg_restore, $name");
	}
	restored('target', $name);
}

# A dump that names no access method makes tables of the default one: heap to
# nvm and back.  What is left of SET default_table_access_method is dropped from
# the script, as pg_dump --no-table-access-method (15) does.
sub without_methods
{
	my ($from, $default, $name) = @_;
	my $file = "$dir/without";
	command_ok([ 'pg_dump', '-Fp', '--no-table-access-method', '-f', $file, $from ], "$name: pg_dump --no-table-access-method");
	unlike(slurp_file($file), qr/default_table_access_method/, "$name: the dump names no access method");
	$node->safe_psql('postgres', "CREATE DATABASE target; ALTER DATABASE target SET default_table_access_method = $default");
	# or the default is not known yet
	$node->safe_psql('target', 'CREATE EXTENSION pg_nvm') if $default eq 'nvm';
	command_ok([ 'psql', '-Xq', '-v', 'ON_ERROR_STOP=1', '-f', $file, '-o', '/dev/null', 'target' ], "$name: psql");
	is(contents('target'), $contents, "$name: the data are identical");
	like(methods('target'), qr/^$default\|\d+$/, "$name: all tables are of $default");
	is(definitions('target', '--no-table-access-method'), definitions($from, '--no-table-access-method'),
		"$name: otherwise the definitions are");
	return;
}

SKIP:
{
	my $help = (run_command([ 'pg_dump', '--help' ]))[0];
	skip 'this pg_dump has no --no-table-access-method', 1 unless $help =~ /--no-table-access-method/;
	without_methods('source', 'heap', 'all to heap');
	$node->safe_psql('postgres', 'ALTER DATABASE target RENAME TO all_heap');
	without_methods('all_heap', 'nvm', 'all to nvm');
	is($node->safe_psql('target', q(SELECT count(*) FROM pg_class c JOIN pg_am a ON a.oid = relam, LATERAL nvm.check(c.oid) f WHERE amname = 'nvm')),
		'0', 'all to nvm: nothing is wrong with the tables');
	$node->safe_psql('postgres', 'DROP DATABASE target; DROP DATABASE all_heap');
}

# part of it, and data alone
{
	my $file = "$dir/data";
	command_ok([ 'pg_dump', '-Fc', '-n', 's', '-f', $file, 'source' ], 'pg_dump of a schema');
	$node->safe_psql('postgres', 'CREATE DATABASE target');
	$node->safe_psql('target', 'CREATE EXTENSION pg_nvm');
	command_ok([ 'pg_restore', '--exit-on-error', '--schema-only', '-d', 'target', $file ], 'pg_restore of the schema');
	command_ok([ 'pg_restore', '--exit-on-error', '--data-only', '--disable-triggers', '-d', 'target', $file ], 'pg_restore of data alone');
	$node->safe_psql('target', 'REFRESH MATERIALIZED VIEW s.mv');
	is(contents('target'), $contents, 'schema, then data: the data are identical');
	$node->safe_psql('postgres', 'DROP DATABASE target');
}

# pg_dumpall, restored on a server of its own that is then killed
{
	my $other = NvmTest->new('restored');
	my $file  = "$dir/all";

	command_ok([ 'pg_dumpall', '--no-role-passwords', '-f', $file ], 'pg_dumpall');
	$other->init;
	$other->start;
	local $ENV{PGHOST} = $other->host;
	local $ENV{PGPORT} = $other->port;
	system('psql', '-Xq', '-f', $file, '-o', '/dev/null', 'postgres');
	$other->crash;
	$other->start;
	my $here = $node;
	$node = $other;
	my $found = contents('source');
	$node = $here;
	# what is unlogged is lost in the crash, as it is with heap
	my $expected = $contents;
	s/^s\.//mg foreach ($found, $expected);
	$expected =~ s/^unlogged .*$/unlogged 0|d41d8cd98f00b204e9800998ecf8427e/m;
	is($found, $expected, 'pg_dumpall, restored elsewhere and killed: the data are identical');
	$other->check_clean('pg_dumpall');
	$other->stop;
}

# a dump sees one state while rows change, in parallel too
{
	$node->safe_psql('source', 'CREATE TABLE s.x (a int) USING nvm; CREATE TABLE s.y (a int) USING nvm; CREATE TABLE s.z (a int) USING heap');
	my $load = $node->start_load(clients => 2, database => 'source',
		sql => sub { return 'BEGIN; INSERT INTO s.x VALUES (1); INSERT INTO s.y VALUES (1); INSERT INTO s.z VALUES (1); COMMIT;' });
	$load->wait_acknowledged(20);
	command_ok([ 'pg_dump', '-Fd', '-j', '3', '-t', 's.x', '-t', 's.y', '-t', 's.z', '-f', "$dir/live", 'source' ], 'pg_dump of tables that change');
	$load->wait_acknowledged(40);
	kill('TERM', map { $_->{pid} } @{ $load->{clients} });
	$load->finish;
	$node->safe_psql('postgres', 'CREATE DATABASE target');
	$node->safe_psql('target', 'CREATE EXTENSION pg_nvm; CREATE SCHEMA s');
	command_ok([ 'pg_restore', '--exit-on-error', '-d', 'target', "$dir/live" ], 'pg_restore of it');
	is($node->safe_psql('target', 'SELECT (SELECT count(*) FROM s.x) = (SELECT count(*) FROM s.y) AND (SELECT count(*) FROM s.x) = (SELECT count(*) FROM s.z) AND EXISTS (SELECT FROM s.x)'),
		't', 'all tables are of one snapshot');
}
$node->check_clean('at the end');
$node->stop;

done_testing();

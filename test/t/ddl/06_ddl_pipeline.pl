# Copyright (c) 2026, pg_nvm contributors

# SET TABLESPACE in a pipeline of the extended protocol: what follows in the same
# transaction leaves no entries, if that fails, that lead to others' rows later.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('pipeline', conf => "autovacuum = off\nallow_in_place_tablespaces = on\nnvm.default_index_method = btree\n", sql => <<'SQL');
CREATE TABLESPACE there LOCATION '';
SQL

my $files = "SELECT string_agg(relfilenode::text, ' ' ORDER BY relname) FROM pg_class WHERE relname IN ('t_id', 't_v')";
my $script = PostgreSQL::Test::Utils::tempdir() . '/pipeline.sql';

# a pipeline of these statements, of which the last one fails
sub pipeline
{
	my ($name, @statements) = @_;
	my ($out, $err) = ('', '');

	open(my $fh, '>', $script) or die "$script: $!";
	print $fh "\\startpipeline\n", map({ "$_;\n" } @statements, 'SELECT 1 / 0'), "\\endpipeline\n";
	close $fh;
	IPC::Run::run([ 'pgbench', '-n', '-t', 1, '-M', 'extended', '-f', $script, $node->connstr('postgres') ],
		'<', \undef, '>', \$out, '2>', \$err);
	like($node->log_since_start, qr/division by zero/, "$name: it fails");
	return;
}

my $insert = 'INSERT INTO t SELECT i, i FROM generate_series(1001, 1200) i';
my @pipelines = (
	[ 'first', 'ALTER TABLE t SET TABLESPACE there', $insert ],
	[ 'in the middle', 'INSERT INTO t VALUES (999, 999)', 'ALTER TABLE t SET TABLESPACE there', $insert, 'UPDATE t SET v = id + 2000 WHERE id = 7' ],
	[ 'of all tables', 'ALTER TABLE ALL IN TABLESPACE pg_default SET TABLESPACE there', $insert ]);
foreach my $pipeline (@pipelines)
{
	my ($name, @statements) = @$pipeline;

	$node->safe_psql('postgres', <<'SQL');
CREATE TABLE t (id int, v int) USING nvm;
CREATE INDEX t_id ON t USING btree (id);
CREATE INDEX t_v ON t USING nvm_btree (v);
INSERT INTO t SELECT i, i FROM generate_series(1, 100) i;
SQL
	my $before = $node->safe_psql('postgres', $files);
	pipeline($name, @statements);
	is($node->safe_psql('postgres', $files), $before, "$name: the indexes are what they were");
	$node->safe_psql('postgres', 'INSERT INTO t SELECT 101 + i % 700, 101 + i % 700 FROM generate_series(1, 3000) i');
	is($node->safe_psql('postgres', <<'SQL'), '', "$name: no entry leads to another row");
SET enable_seqscan = off;
SELECT 'by id' FROM t WHERE id > 900 HAVING count(*) > 0;
SELECT 'by v' FROM t WHERE v > 900 HAVING count(*) > 0;
SELECT f FROM nvm.check('t', true) f LIMIT 1;
SQL
	$node->safe_psql('postgres', 'DROP TABLE t');
}

# a command on its own has nothing to come after it
$node->safe_psql('postgres', 'CREATE TABLE t (id int, v int) USING nvm; CREATE INDEX t_id ON t USING btree (id); CREATE INDEX t_v ON t USING nvm_btree (v)');
my $before = $node->safe_psql('postgres', $files);
$node->safe_psql('postgres', 'ALTER TABLE t SET TABLESPACE there');
is($node->safe_psql('postgres', $files), $before, 'alone it keeps the indexes');

done_testing();

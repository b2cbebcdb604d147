# Copyright (c) 2026, pg_nvm contributors

# VACUUM and ANALYZE in a server that has no memory for nvm_vlog tables, or could not bring
# them back: the command passes over them with a WARNING, and does all others
# (src/ddl/ddl_vacuum.c).

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('novacuum', conf => "autovacuum = off\n", sql => <<SQL);
CREATE TABLE h (a int) USING heap;
CREATE TABLE n (a int) USING nvm;
CREATE TABLE v (a int) USING nvm_vlog;
CREATE UNLOGGED TABLE u (a int) USING nvm_vlog;
CREATE TABLE p (a int) PARTITION BY LIST (a);
CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1) USING heap;
CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) USING nvm_vlog;
CREATE TABLE parent (a int) USING heap;
CREATE TABLE child () INHERITS (parent) USING nvm_vlog;
INSERT INTO v SELECT generate_series(1, 100);
ANALYZE v;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

# The command ends well, skips these tables, and gives those their statistics
sub passes
{
	my ($sql, $skipped, $done, $re) = @_;
	my $verb = $sql =~ /^VACUUM/ ? 'vacuum' : 'analyze';

	# another number of rows than any before, and so others than pg_class has
	sql("INSERT INTO $_ VALUES (1)") foreach qw(h n p1 parent);
	my ($ret, $out, $err) = $node->psql('postgres', $sql, on_error_stop => 1);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($ret, 0, "$sql: succeeds") or diag($err);
	is(join(' ', sort $err =~ /^.*WARNING:  skipping $verb of "(\w+)" --- tables in memory are not available$/mg), $skipped, "$sql: skips what is not there");
	like($err, $re, "$sql: says why") if $skipped ne '';
	is(sql(<<SQL), $done, "$sql: does all others");
SELECT coalesce(string_agg(relname, ' ' ORDER BY relname), '') FROM pg_class
WHERE relname IN ('h', 'n', 'p1', 'parent') AND
	reltuples = (xpath('/row/c/text()', query_to_xml('SELECT count(*) AS c FROM ONLY ' || relname, false, true, '')))[1]::text::int
SQL
	return;
}

my $all = 'h n p1 parent';
my $tables = 'child p2 u v';
foreach my $state ('no memory', 'not brought back')
{
	my $re;
	my ($file) = glob $node->data_dir . '/pg_nvm_log/*-00000001-00000001.log';

	$node->stop;
	if ($state eq 'no memory')
	{
		$node->set_conf('nvm.memory_limit' => 0);
		$re = qr/^DETAIL:  nvm\.memory_limit is 0\.$/m;
	}
	else
	{
		rename $file, "$file.aside" or die $!;
		$re = qr/^DETAIL:  They could not be rebuilt from the log\. nvm\.log_recovery says why\.$/m;
	}
	$node->start;
	$node->poll_query_until('postgres', "SELECT state = 'failed' FROM nvm.log_recovery") or die if $state ne 'no memory';
	$node->fails_with('SELECT FROM v', qr/tables in memory are not available/, "$state: the tables are not there");
	passes('VACUUM', $tables, $all, $re);
	# a partitioned table, and one with children, is sampled with all of them
	passes('VACUUM (ANALYZE)', 'child p p2 parent u v', 'h n p1', $re);
	passes('ANALYZE', 'child p p2 parent u v', 'h n p1', $re);
	passes('VACUUM (FULL)', $tables, $all, $re);
	passes('VACUUM v, h', 'v', 'h', $re);
	passes('VACUUM v', 'v', '', $re);
	passes('ANALYZE v (a), n (a)', 'v', 'n', $re);
	passes('VACUUM p', 'p2', 'p1', $re);
	passes('ANALYZE p', 'p p2', 'p1', $re);
	passes('VACUUM h', '', 'h', $re);
	passes('BEGIN; ANALYZE v, h; COMMIT', 'v', 'h', $re);
	$node->fails_with('BEGIN; VACUUM v', qr/VACUUM cannot run inside a transaction block/, "$state: VACUUM is no part of a transaction");
	$node->fails_with('VACUUM v, nowhere', qr/relation "nowhere" does not exist/, "$state: a table that does not exist is an error");
	command_ok([ 'vacuumdb', '-z', '-d', $node->connstr('postgres') ], "$state: vacuumdb succeeds");
	is(sql(q{SELECT reltuples FROM pg_class WHERE relname = 'v'}), 100, "$state: statistics of what is not there stay");

	$node->stop;
	if ($state eq 'no memory') { $node->set_conf('nvm.memory_limit' => '-1'); }
	else { rename "$file.aside", $file or die $!; }
	$node->start;
	passes($_, '', $all, undef) foreach 'VACUUM', 'VACUUM (ANALYZE)';
	is(sql('SELECT count(*) FROM v'), 100, "$state: and with memory they are there");
}
$node->check_clean('the end');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Damage to a directory entry leaves extents whose storage does not exist.  The
# pool opens all the same, and tables are made in it: none of them under a number
# under which there are extents already, or the next start would find the first
# extent of that storage twice, and refuse the pool with all that is in it.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => 'autovacuum = off', sql => <<'SQL');
CREATE TABLE t (id int, big text) USING nvm;
CREATE TABLE damaged (id int, big text) USING nvm;
ALTER TABLE damaged ALTER big SET STORAGE EXTERNAL;
INSERT INTO t SELECT generate_series(1, 100), 'x';
INSERT INTO damaged VALUES (1, repeat('y', 20000));
CREATE TABLE last (id int) USING nvm;
SQL
my ($damaged, $last) = map { $node->safe_psql('postgres', "SELECT id FROM nvm.relations WHERE relation = '$_'::regclass") } qw(damaged last);
cmp_ok($damaged, '<', $last, 'the number in question is not the last one');

# the begin stamps of two entries, the last one's storage with extents too
$node->safe_psql('postgres', 'INSERT INTO last VALUES (1)');
$node->stop;
my ($extent) = grep { $_->[3] == 3 } map { [ split ' ' ] } split /\n/,
  (run_command([ $NvmTest::patch_tool, $node->pool_file, 'extents' ]))[0];
open(my $fh, '+<', $node->pool_file) or die $!;
foreach my $id ($damaged, $last)
{
	seek($fh, $extent->[1] + 128 * $id + 56, 0) or die $!;
	print $fh "\0" x 8 or die $!;
}
close $fh;
$node->start;
like($node->log_since_start, qr/belongs to storage \d+, which does not exist/, 'their extents are nobody\'s');
is($node->safe_psql('postgres', 'SELECT sum(id) FROM t'), '5050', 'the other table is there');

$node->safe_psql('postgres', "CREATE TABLE n$_ USING nvm AS SELECT $_ AS id") foreach 1 .. 3;
my $ids = $node->safe_psql('postgres', "SELECT string_agg(id::text, ' ' ORDER BY id) FROM nvm.relations WHERE relation::text ~ '^n[123]\$'");
unlike($ids, qr/\b(?:$damaged|$last)\b/, 'new tables have other numbers');
foreach my $how ('stop', 'crash')
{
	$node->$how;
	$node->start;
	is($node->safe_psql('postgres', 'SELECT (SELECT sum(id) FROM t), n1.id, n2.id, n3.id FROM n1, n2, n3'), '5050|1|2|3',
		"after a $how the pool is there, and all in it");
}
my $found = $node->safe_psql('postgres', 'SELECT problem FROM nvm.check_pool()');
like($found, qr/storage $_, which does not exist/, "nvm.check_pool() names extents of storage $_") foreach $damaged, $last;

$node->stop;
done_testing();

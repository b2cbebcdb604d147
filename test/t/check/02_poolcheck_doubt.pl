# Copyright (c) 2026, pg_nvm contributors

# A loss of power while a mixed transaction asks pg_xact: the question and the data have one
# fence, so any lines of both may be there.  nvm_poolcheck takes nothing of that for damage, and
# the server, which knows that the transaction did not commit, takes it all back.

use strict;
use warnings;

use File::Path qw(rmtree);
use NvmFuzzImage;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 2
CONF
CREATE TABLE h (k int) USING heap;
CREATE TABLE t (k int, b text) USING nvm;
CREATE TABLE large (k int, b text) USING nvm;
ALTER TABLE large ALTER b SET STORAGE EXTERNAL;
CREATE TABLE i (k int PRIMARY KEY, b text) USING nvm;
INSERT INTO t SELECT i, repeat('x', i % 100) FROM generate_series(1, 300) i;
UPDATE t SET b = repeat('u', 400) WHERE k % 3 = 0;
INSERT INTO large SELECT i, repeat('x', 20000) FROM generate_series(1, 5) i;
INSERT INTO i SELECT k, b FROM t;
SQL
my $sums = "SELECT 't', count(*), sum(hashtextextended(t::text, 0)) FROM t UNION ALL "
  . "SELECT 'large', count(*), sum(hashtextextended(l::text, 0)) FROM large l UNION ALL "
  . "SELECT 'i', count(*), sum(hashtextextended(i::text, 0)) FROM i ORDER BY 1";
my $before = $node->safe_psql('postgres', $sums);

# the number of rows of the image's undecided transaction of which a part is missing
sub torn
{
	my ($image) = @_;
	my ($newest) = sort { $b <=> $a } map { $image->field($_, 'begin') } $image->things('version');
	return scalar grep { $image->field($_, 'begin') == $newest && $image->field($_, 'len') == 0 } $image->things('version');
}

my $torn = 0;
my @cases = (
	[ 'INSERT',              'commit-prepared', "INSERT INTO t SELECT i, repeat('y', 200) FROM generate_series(1, 40) i; COMMIT" ],
	[ 'UPDATE',              'commit-prepared', "UPDATE t SET b = repeat('z', 300) WHERE k % 10 = 0; COMMIT" ],
	[ 'DELETE',              'commit-prepared', 'DELETE FROM t WHERE k % 7 = 0; COMMIT' ],
	[ 'large values',        'commit-prepared', "INSERT INTO large SELECT i, repeat('w', 20000) FROM generate_series(1, 5) i; COMMIT" ],
	[ 'a table with an index', 'commit-prepared', "INSERT INTO i SELECT i + 1000, repeat('v', 100) FROM generate_series(1, 40) i; UPDATE i SET b = b || 'w' WHERE k < 20; COMMIT" ],
	[ 'a new table',         'commit-prepared', 'CREATE TABLE n USING nvm AS SELECT * FROM t; COMMIT' ],
	[ 'VACUUM FULL', 'commit-prepared', undef, 'VACUUM FULL t' ],
	[ 'PREPARE TRANSACTION', 'prepare-asked', "UPDATE t SET b = repeat('p', 300) WHERE k % 10 = 1; SELECT 1 FROM i WHERE k < 50 FOR UPDATE; PREPARE TRANSACTION 'p'" ]);
foreach my $case (@cases)
{
	my ($what, $where, $sql, $alone) = @$case;
	my ($ret, $out, $err) = $node->psql('postgres', "SET nvm.failpoint = '$where:power:1';\n"
		  . ($alone // "BEGIN; INSERT INTO h VALUES (1); $sql") . ";\n");
	my ($in_doubt, @said);

	isnt($ret, 0, "$what: the power fails");
	my $old = $node->power_failure(seed => 1, mode => 'durable', keep => 1);
	foreach my $seed (2 .. 13)
	{
		$node->make_image($old, $seed);
		my ($stdout, $stderr) = run_command([ 'nvm_poolcheck', '-P', $node->pool_dir ]);
		push @said, "image $seed: $stdout$stderr" if "$stdout$stderr" ne '';
		($stdout) = run_command([ 'nvm_poolcheck', '-d', '-P', $node->pool_dir ]);
		next unless $stdout =~ /in doubt, or prepared: +1$/m;
		$in_doubt = $seed;
		$torn += torn(NvmFuzzImage->new($node->pool_dir . '/pool'));
	}
	is(join('', @said), '', "$what: nvm_poolcheck finds nothing in any image");
	ok($in_doubt, "$what: in some of them it is in doubt") and $node->make_image($old, $in_doubt);
	rmtree($old);
	$node->start;
	is($node->safe_psql('postgres', $sums), $before, "$what: nothing of it is there");
	$node->check_clean($what);
}
cmp_ok($torn, '>', 0, 'of some rows a part was missing');

$node->stop;
done_testing;

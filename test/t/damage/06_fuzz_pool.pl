# Copyright (c) 2026, pg_nvm contributors

# Random damage to a pool whose server is down: a few bits, or whole cache
# lines, of headers, extent maps, directory, commit slots and headers of large
# values.  The server starts, serves its
# other tables, and neither crashes nor hangs, whatever it makes of the pool.
# It may not lose rows silently: if a scan gives other rows than before, the
# checks must have found something, or access must be refused.
#
# Long form: 60 pools damaged by chance, here 12.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 1500;
my $node = NvmTest->start_new('fuzz', conf => "statement_timeout = '30s'", sql => <<SQL);
CREATE TABLE t (id int PRIMARY KEY, body text) USING nvm;
INSERT INTO t SELECT i, md5(i::text) || repeat('x', i % 300) FROM generate_series(1, $rows) i;
UPDATE t SET body = body || '!' WHERE id % 3 = 0;
DELETE FROM t WHERE id % 10 = 0;
CREATE TABLE l (id int, body bytea) USING nvm;
INSERT INTO l SELECT i, decode(repeat(md5(i::text), 2000), 'hex') FROM generate_series(1, 10) i;
CREATE TABLE h AS SELECT generate_series(1, $rows) AS id;
CREATE TABLE expected_t AS SELECT * FROM t;
SQL
my $pool = $node->pool_file;
$node->stop;
my $whole = $node->basedir . '/whole';
my $data  = $node->basedir . '/whole_data';
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', '--sparse=always', $pool, $whole);
PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $node->data_dir, $data);

# places that carry structure: [from, to) in bytes
my @places = ([ 65536, 65536 + 512 ], [ 69632, 69632 + 512 ]);
sub add_places
{
	my ($first, $length, @list) = @_;
	foreach my $line (@list)
	{
		my @f = split ' ', $line;
		push @places, [ $f[$first], $f[$first] + $length ];
	}
}
sub patch_lines { return split /\n/, (run_command([ $NvmTest::patch_tool, @_ ]))[0]; }
add_places(0, 16, patch_lines($pool, 'extents'));
add_places(1, 2048, grep { (split)[3] == 3 } patch_lines($pool, 'extents'));
add_places(1, 128, grep { (split)[3] == 2 } patch_lines($pool, 'extents'));
add_places(1, 128, patch_lines($pool, 'slots'));
# NVM_FUZZ_BLOCKS: bitmaps and rows too.  Scans do not verify the checksum of
# every row, so this can crash a backend, as a damaged heap page can
add_places(0, 8192, patch_lines($pool, 'blocks')) if $ENV{NVM_FUZZ_BLOCKS};

my $seeds = $ENV{NVM_FUZZ_SEEDS} // (NvmTest::is_long() ? 60 : 12);
my $first = $ENV{NVM_FUZZ_SEED} // 1;
foreach my $seed ($first .. $first + $seeds - 1)
{
	srand($seed);
	my @damage;

	# the pair as it was
	PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $node->data_dir);
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $data, $node->data_dir);
	PostgreSQL::Test::Utils::system_or_bail('cp', '--sparse=always', $whole, $pool);

	foreach (1 .. 1 + int(rand(6)))
	{
		my $place = $places[ int(rand(@places)) ];
		my $at = $place->[0] + int(rand($place->[1] - $place->[0]));
		if (rand() < 0.7)
		{
			my $bit = int(rand(8));
			push @damage, "bit $bit of byte $at";
			PostgreSQL::Test::Utils::system_or_bail($NvmTest::patch_tool, $pool, 'flip', $at, $bit);
		}
		else
		{
			$at -= $at % 64;
			push @damage, "line at $at";
			open(my $fh, '+<:raw', $pool) or die $!;
			seek($fh, $at, 0);
			print $fh (rand() < 0.5 ? "\0" x 64 : join '', map { chr(int(rand(256))) } 1 .. 64);
			close $fh;
		}
	}
	note("seed $seed: " . join(', ', @damage));

	$node->start;
	my $found = '';
	my ($ret, $out, $err) = $node->psql('postgres', <<SQL);
SELECT 'finding', f::text FROM nvm.check_pool() f;
SELECT 'finding', f::text FROM nvm.check('t') f;
SELECT 'finding', f::text FROM nvm.check('l') f;
SQL
	$found = ($out // '') . ($err // '');
	($ret, $out, $err) = $node->psql('postgres', <<SQL);
SET enable_indexscan = off; SET enable_bitmapscan = off;
SELECT 'differs', count(*) FROM (SELECT * FROM t EXCEPT ALL SELECT * FROM expected_t) x HAVING count(*) > 0;
SELECT 'differs', count(*) FROM (SELECT * FROM expected_t EXCEPT ALL SELECT * FROM t) x HAVING count(*) > 0;
SELECT 'differs', id FROM l WHERE body <> decode(repeat(md5(id::text), 2000), 'hex');
SQL
	if ("$out$err" =~ /\S/)
	{
		isnt($found, '', "seed $seed: other rows than before, and the checks know why")
		  or diag("@damage\n$out$err");
	}
	# whatever there is can be used
	$node->psql('postgres', $_)
	  foreach ("SET enable_seqscan = off; SELECT sum(length(body)) FROM t WHERE id BETWEEN 1 AND 100000",
		"UPDATE t SET body = body || '?'", "INSERT INTO t SELECT i, 'new' FROM generate_series(10000, 10500) i",
		"DELETE FROM t WHERE id % 7 = 0", "SELECT sum(length(body)) FROM l", "DELETE FROM l",
		"VACUUM t", "VACUUM FULL t", "TRUNCATE l", "DROP TABLE l", "CREATE TABLE n (a int) USING nvm");
	my $log = $node->log_since_start;
	if ($log =~ /terminated by signal|PANIC/)
	{
		fail("seed $seed: the server lives") or diag("@damage\n" . join "\n", $log =~ /^.*(?:by signal|Failed process|PANIC).*$/mg);
		$node->wait_crashed;
		next;
	}
	is($node->safe_psql('postgres', 'SELECT count(*) FROM h'), $rows, "seed $seed: other tables can be read");
	$node->stop('fast');
	$log = $node->log_since_start;
	unlike($log, qr/PANIC|terminated by signal|TRAP:|statement timeout/, "seed $seed: nothing crashed or hung")
	  or diag("@damage");
}

done_testing();

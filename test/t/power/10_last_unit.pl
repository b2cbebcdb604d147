# Copyright (c) 2026, pg_nvm contributors

# A row that a lost transaction has written in the very last block of a full pool:
# of its header only the first line has come to the medium, and what is said of its
# length and of large values is what was there before.  Nobody must read as far as
# that says, beyond the end of the file: the gap collector would die of it, and
# again after each restart.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->new('main');
my $size = 64 * 1024 * 1024;
$node->init;
$node->set_conf('nvm.pool_max_size' => "'64MB'");
$node->append_conf('postgresql.conf', <<CONF);
autovacuum = off
nvm.horizon_naptime = 10
CONF
$node->start;

# as many tables as there are, each with seven blocks of a row and one with room
$node->safe_psql('postgres', "CREATE EXTENSION pg_nvm; $NvmTest::pass_time");
$node->safe_psql('postgres', <<'SQL');
-- a value in runs of 4092 and 3500 units, together a multiple of what tables take
CREATE TABLE filler (pad text) USING nvm;
ALTER TABLE filler ALTER pad SET STORAGE EXTERNAL;
INSERT INTO filler VALUES (repeat('x', 7592 * 8192 - 1000));
DO $$BEGIN
	FOR i IN 1 .. 1000 LOOP
		BEGIN
			EXECUTE format('CREATE TABLE s%s (id int, pad bytea) USING nvm', i);
			EXECUTE format('ALTER TABLE s%s ALTER pad SET STORAGE PLAIN', i);
			EXECUTE format('INSERT INTO s%s SELECT i, decode(repeat(''00'', CASE WHEN i < 8 THEN 7000 ELSE 3000 END), ''hex'') FROM generate_series(1, 8) i', i);
		EXCEPTION WHEN disk_full THEN
			EXIT;
		END;
	END LOOP;
END$$;
SQL
my ($extent) = grep { $_->[1] + $_->[2] * 8192 == $size } map { [ split ' ' ] } split /\n/,
  (run_command([ $NvmTest::patch_tool, $node->pool_file, 'extents' ]))[0];
ok(defined $extent, 'the last unit of the pool is in use');
my $table = $node->safe_psql('postgres', "SELECT relation FROM nvm.relations WHERE id = $extent->[4]");
like($table, qr/^s\d+$/, 'by one of these tables');

# so that any session finds the room that is there
$node->safe_psql('postgres', "VACUUM $table");
my $lost = $node->session('BEGIN', "INSERT INTO $table VALUES (9, decode(repeat('00', 2000), 'hex'))");
my ($blk, $off) = $lost->sql("SELECT ctid FROM $table WHERE id = 9") =~ /(\d+),(\d+)/;
is($blk, 7, 'a row in the last block');
$node->crash;
$lost->drop;

# len and flags, which are in the second cell
open(my $fh, '+<', $node->pool_file) or die $!;
seek($fh, $size - 8192 + $off * 32 + 40, 0) or die $!;
print $fh pack('v2', 8048, 0x0005) or die $!;
close $fh;
$node->start;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps stay';
$node->check_clean('when the collector was there');

# VACUUM lets its cells go, and somebody else takes them
foreach (1 .. 2)
{
	$node->safe_psql('postgres', "VACUUM $table");
	$node->safe_psql('postgres', 'CALL pass_time()');
}
$node->safe_psql('postgres', "INSERT INTO $table VALUES (10, decode(repeat('00', 2500), 'hex'))");
like($node->safe_psql('postgres', "SELECT ctid FROM $table WHERE id = 10"), qr/^\(7,/, 'its cells are used again');
is($node->safe_psql('postgres', "SELECT count(*), sum(id) FROM $table"), '9|46', 'the rows are there');
$node->check_clean('then');

$node->stop;
done_testing();

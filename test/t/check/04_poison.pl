# Copyright (c) 2026, pg_nvm contributors

# With assertions free cells are filled with a pattern (src/pool/nvm_poison.h): whoever
# writes to one is found when the cell is handed out, and who reads from one at once.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# the library's, which has them also without the server's (test/README.md)
my $config = $ENV{PG_CONFIG} // 'pg_config';
chomp(my $lib = qx($config --pkglibdir));
plan skip_all => 'the library has no assertions' if slurp_file("$lib/pg_nvm.so") !~ /ExceptionalCondition/;

my $node = NvmTest->start_new('poison', conf => "autovacuum = off\nrestart_after_crash = on\n", sql => <<SQL);
$NvmTest::pass_time
CREATE TABLE t (id int, pad text) USING nvm;
INSERT INTO t SELECT i, repeat('p', 200) FROM generate_series(1, 20) i;
SQL
my $pool = $node->pool_file;

# the table's only block
sub block
{
	my ($out) = run_command([ $NvmTest::patch_tool, $pool, 'blocks' ]);
	my @blocks = map { [ split ' ' ] } split /\n/, $out;
	is(scalar @blocks, 1, 'the table has one block');
	return $blocks[0][0];
}

# free all cells, and make room that is known
sub free_all
{
	$node->safe_psql('postgres', 'DELETE FROM t');
	foreach (1 .. 2)
	{
		$node->safe_psql('postgres', 'CALL pass_time()');
		$node->safe_psql('postgres', 'VACUUM t');
	}
	return;
}

# one bit of a word of a cell that nobody has
sub write_to_cell
{
	my ($word) = @_;
	system_or_bail($NvmTest::patch_tool, $pool, 'flip', block() + 20 * 32 + 8 * $word + 2, 5);
	return;
}

free_all();
$node->safe_psql('postgres', "INSERT INTO t SELECT i, repeat('q', 200) FROM generate_series(1, 20) i");
is($node->safe_psql('postgres', 'SELECT count(*) FROM t'), '20', 'free cells to which nobody wrote are handed out');

foreach my $case ([ 0, 'next' ], [ 1, 'end' ], [ 2, 'link' ])
{
	my ($word, $name) = @$case;

	free_all();
	write_to_cell($word);
	my $from = -s $node->logfile;
	my $opened = $node->times_opened;
	my ($ret, $out, $err) = $node->psql('postgres', "INSERT INTO t SELECT i, repeat('r', 200) FROM generate_series(1, 20) i");
	isnt($ret, 0, "a write to word $name of a free cell is found");
	$node->wait_reopened($opened);
	like(slurp_file($node->logfile, $from), qr{TRAP: .*c->end == .*nvm_poison\.h}, 'by the check of the pattern');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM t'), '0', 'and nothing was inserted');
}

# A loss of power may leave of a row that a lost transaction wrote the first cell alone,
# and in the second one, in the next cache line, the pattern.  Readers look no further
# than the begin word, which is in a gap; so must the assertion.
free_all();
$node->safe_psql('postgres', "INSERT INTO t SELECT i, repeat('s', 200) FROM generate_series(1, 5) i");
$node->append_conf('postgresql.conf', 'nvm.collect_gaps = off');
my $lost = $node->session('BEGIN', "INSERT INTO t VALUES (100, repeat('l', 200)), (101, repeat('l', 200))");
my ($off) = $lost->sql('SELECT ctid FROM t WHERE id = 100') =~ /0,(\d+)/;
my $at = block() + $off * 32 + 32;
$node->crash;
$lost->drop;
open(my $torn, '+<', $pool) or die $!;
seek($torn, $at, 0) or die $!;
print $torn pack('V8', (0xCE105A5A, 0xDEADF1EE) x 4) or die $!;
close $torn;
$node->start;
is($node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'), '5|15', 'a torn row of a lost transaction is passed over');
isnt($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps'), '0', 'while its stamp is in a gap');
is($node->safe_psql('postgres', "SELECT count(*) FROM t WHERE ctid = '(0,$off)'"), '0', 'nor does its TID find it');
$node->append_conf('postgresql.conf', 'nvm.collect_gaps = on');
$node->restart;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps stay';
$node->check_clean('when the collector was there');
$node->stop;

# it was asked for
my $log = slurp_file($node->logfile);
$log =~ s/^TRAP: (\w*ailed ?Assert.*nvm_poison)/expected: $1/mg;
$log =~ s/terminated by signal 6/ended/g;
open(my $fh, '>', $node->logfile) or die $!;
print $fh $log;
close $fh;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Damage that could be followed, read again, or waited for without end: stamps that no transaction
# has, with no transaction id beside them or one that is to come, and versions of a row
# that lead in a circle.  Each statement ends with an error that names the place; the
# server and the other rows live on.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# The first look at a block finds these (t/damage/02_first_look).  With nvm.ignore_damage
# this test is about what guards a process that has come beyond it.
my $node = NvmTest->start_new('no_end', conf => "autovacuum = off\nnvm.ignore_damage = on\n");

my @stamps = qw(end_slot end_counter end_future begin_slot);
my @chains = qw(forth back);
my %tids;
# so that nothing is unlinked
my $reader = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1');
foreach my $t (@stamps, @chains)
{
	$node->safe_psql('postgres', <<SQL);
CREATE TABLE $t (id int PRIMARY KEY, v int) USING nvm;
INSERT INTO $t SELECT i, 0 FROM generate_series(1, 10) i;
SQL
	# five versions of one row
	foreach my $v (0 .. 4)
	{
		$node->safe_psql('postgres', "UPDATE $t SET v = $v WHERE id = 4") if $v && $t !~ /_/;
		push @{ $tids{$t} }, $node->safe_psql('postgres', "SELECT (ctid::text::point)[1]::int FROM $t WHERE id = 4");
	}
}
is(scalar(keys %{ { map { $_ => 1 } @{ $tids{forth} } } }), 5, 'versions of their own');
my $number = $node->safe_psql('postgres', 'SELECT incarnation + 1 FROM nvm.pool');

# ---- the damage

my $pool = $node->pool_file;
my @blocks = map { [ split ' ' ] } split /\n/, (run_command([ $NvmTest::patch_tool, $pool, 'blocks' ]))[0];
my %at;
foreach my $t (keys %tids)
{
	my $storage = $node->safe_psql('postgres',
		"SELECT i.id FROM nvm.relations_info() i WHERE NOT ended AND i.relfilenode = pg_relation_filenode('$t')");
	my ($block) = grep { $_->[1] == $storage && $_->[2] == 0 } @blocks;
	$at{$t} = [ map { $block->[0] + 32 * $_ } @{ $tids{$t} } ];
}
$reader->drop;
$node->stop;

my %offset = (next => 0, end => 8, link => 16, begin => 24, xmin => 48, xend => 52);
open(my $fh, '+<:raw', $pool) or die $!;
sub get { my ($at, $field) = @_; seek($fh, $at + $offset{$field}, 0); read($fh, my $data, 8) == 8 or die 'short read'; return unpack('Q', $data); }
sub put { my ($at, $field, $value) = @_; seek($fh, $at + $offset{$field}, 0); print $fh pack($field =~ /^x/ ? 'L' : 'Q', $value); return; }

# letters, as of a row's contents
my $no_slot = unpack('Q', 'l' x 8);
my $too_high = 1 << 40;
put($at{end_slot}[0],    'end',  $no_slot);
put($at{end_counter}[0], 'end',  $too_high);
put($at{end_future}[0],  'end',  $too_high);
put($at{end_future}[0],  'xend', 1_000_000_000);
put($at{begin_slot}[0],  'begin', $no_slot);
put($at{begin_slot}[0],  'xmin', 2);
# the fifth leads to the second
my @v = @{ $at{forth} };
cmp_ok(get($_, 'begin') >> 48, '<', 16384, 'a version') foreach @v, @{ $at{back} };
put($v[4], 'end',  get($v[1], 'begin'));
put($v[4], 'next', get($v[0], 'next') & 0xffffffff | get($v[4], 'next') & 0x01ff << 48);
# of the first the newest is said to be the third, and that is older than the second
@v = @{ $at{back} };
my $ref = sub { return $tids{back}[ $_[0] ]; };
put($v[0], 'link', ($number & 0xffff) << 48 | $ref->(2));
put($v[2], 'link', ($number & 0xffff) << 48 | $ref->(1));
put($v[1], 'link', ($number & 0xffff) << 48 | $ref->(2));
put($v[2], 'next', get($v[2], 'next') & 0xffff << 48 | $ref->(1));
close $fh;
$node->start;
is($node->safe_psql('postgres', 'SELECT incarnation FROM nvm.pool'), $number, 'the start that was meant');

# ---- what becomes of it

# Each within a time in which an endless one would not.
sub ends
{
	my ($sql, $re, $name) = @_;
	my ($out, $err, $timed_out) = ('', '', 0);

	my $ret = $node->psql('postgres', $sql,
		timeout => 30, timed_out => \$timed_out, stdout => \$out, stderr => \$err,
		extra_params => [ '-v', 'VERBOSITY=verbose' ]);
	if ($timed_out)
	{
		fail("$name: it does not end");
		# it cannot be cancelled
		$node->crash;
		$node->start;
		return;
	}
	like("$out$err", $re, $name);
	return;
}

my $by_table = 'SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_seqscan = on;';
my $by_index = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';
foreach my $t (@stamps)
{
	my ($which) = $t =~ /^([a-z]+)_/;
	my $stamp = $t =~ /_slot/ ? "27756/119212931312748" : "0/$too_high";
	my $refused = qr/ERROR:  XX001: nvm relation file \S+ is damaged: the $which stamp of row version \(0,$tids{$t}[0]\), $stamp, is no transaction's/;
	my @reads = ("$by_table SELECT count(*) FROM $t", "$by_index SELECT v FROM $t WHERE id = 4", "VACUUM $t");

	# a snapshot does not see what is to come; who changes the row would wait for it
	@reads = () if $t eq 'end_future';
	ends($_, $refused, "$t: $_") foreach @reads, $which eq 'end' ? "UPDATE $t SET v = 1 WHERE id = 4" : ();
	isnt($node->safe_psql('postgres', "SELECT * FROM nvm.check('$t')"), '', "$t: nvm.check() finds it");
	is($node->safe_psql('postgres', "$by_index SELECT count(*) FROM $t WHERE id < 4"), 3, "$t: other rows can be read");
}
foreach my $t (@chains)
{
	my $refused = qr/ERROR:  XX001: nvm relation file \S+ is damaged: the versions of a row lead in a circle through \(0,\d+\)/;

	ends($_, $refused, "$t: $_")
	  foreach "$by_index SELECT v FROM $t WHERE id = 4", "$by_index UPDATE $t SET v = 9 WHERE id = 4",
	  "$by_index INSERT INTO $t VALUES (4, 4)", "CREATE INDEX ON $t (v)", "SET seq_page_cost = 1000000; CLUSTER $t USING ${t}_pkey", "VACUUM $t",
	  $t eq 'forth' ? "SELECT currtid2('$t', '(0,$tids{$t}[0])')" : ();
	like($node->safe_psql('postgres', "SELECT * FROM nvm.check('$t')"), qr/chain has a cycle/, "$t: nvm.check() finds it");
	is($node->safe_psql('postgres', "$by_index SELECT count(*) FROM $t WHERE id < 4"), 3, "$t: other rows can be read");
}
$node->stop;
unlike($node->log_since_start, qr/PANIC|terminated by signal|TRAP:/, 'nothing crashed');

done_testing();

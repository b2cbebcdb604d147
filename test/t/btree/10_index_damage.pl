# Copyright (c) 2026, pg_nvm contributors

# nvm.check() of an index finds what is wrong with it: every kind of damage to
# its pages, one at a time.  A damaged index makes queries fail at worst; the
# server goes on, and REINDEX mends it.

use strict;
use warnings;

use NvmCrash;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $unit = 8192;
my %storage;
my $base = NvmCrash::make_base('damage', fill => sub {
		my ($node) = @_;
		$node->safe_psql('postgres', <<SQL);
CREATE TABLE t (k int, b text) USING nvm;
INSERT INTO t SELECT i * 10, 'row' FROM generate_series(1, 3000) i;
CREATE INDEX i ON t USING nvm_btree (k);
-- some in tails
INSERT INTO t SELECT i * 30 + 5, 'new' FROM generate_series(1, 20) i;
CREATE TABLE d (k int) USING nvm;
INSERT INTO d SELECT x % 3 FROM generate_series(1, 2000) x;
CREATE INDEX j ON d USING nvm_btree (k);
SQL
		is($node->safe_psql('postgres', "SELECT * FROM nvm.check('t', true); SELECT * FROM nvm.check('d', true)"),
			'', 'nothing is wrong at first');
		%storage = split /[|\n]/,
		  $node->safe_psql('postgres', "SELECT relation, id FROM nvm.relations WHERE kind = 'i' AND NOT ended");
	});

# Where the blocks of an index are in the file.
sub block_offsets
{
	my ($dir) = @_;
	my ($out) = run_command([ $NvmTest::patch_tool, "$base/pool/pool", 'extents' ]);
	my @extents = sort { $a->[5] <=> $b->[5] } grep { $_->[3] == 1 && $_->[4] == $dir }
	  map { [ split ' ' ] } split /\n/, $out;
	return map { my $e = $_; map { $e->[1] + $_ * $unit } 0 .. $e->[2] - 1 } @extents;
}

# the pool file at hand
my $fh;

sub get
{
	my ($at, $format, $n) = @_;
	seek($fh, $at, 0) or die $!;
	read($fh, my $data, $n) == $n or die 'short read';
	return unpack($format, $data);
}

sub put
{
	my ($at, $format, @values) = @_;
	seek($fh, $at, 0) or die $!;
	print $fh pack($format, @values) or die $!;
	return;
}

# the header of a page, and where the entries of its base are in the file
sub page
{
	my ($at) = @_;
	my %p = (at => $at);
	@p{qw(magic dir blkno check lock safexid left right level flags nbase base_upper)} =
	  get($at, 'L4 Q2 L2 S4', 48);
	@p{qw(upper ntail)} = get($at + 56, 'S2', 4);
	$p{word} = [ $p{nbase} ? get($at + 64, "S$p{nbase}", 2 * $p{nbase}) : () ];
	$p{item} = [ map { $at + ($_ & 0x3ff) * 8 } @{ $p{word} } ];
	return \%p;
}

sub word { my ($p, $n) = @_; return $p->{at} + 64 + 2 * $n; }
sub key { return get($_[0] + 8, 'l', 4); }

open($fh, '<:raw', "$base/pool/pool") or die $!;
my @block = block_offsets($storage{i});
my %page  = map { $_->{blkno} => $_ } map { page($_) } grep { get($_, 'L', 4) == 0x5849564E } @block;
my ($root) = grep { $_->{level} == 1 } values %page;
# leaves in the order of their keys: as the root has them
my @leaf = map { $page{ (get($_, 'S', 2) << 16) | get($_ + 2, 'S', 2) } } @{ $root->{item} };
cmp_ok(scalar @leaf, '>', 5, 'a tree of two levels');
my ($tail) = grep { $_->{ntail} > 3 } @leaf;
ok($tail, 'a page with a tail');
my ($many) = map { page($_) } grep { get($_, 'L', 4) == 0x5849564E && get($_ + 40, 'S', 2) == 0 } block_offsets($storage{j});
my $meta = $block[0];
my $mid  = $leaf[3];

# name, what is found, what is done, in which index
my $only = $ENV{NVM_DAMAGE_ONLY};
my @damage = grep { !$only || $_->[0] eq $only } (
	[ 'magic number', qr/page says that it is block/, sub { put($mid->{at}, 'L', 17); } ],
	[ 'block number', qr/page says that it is block 999 of/, sub { put($mid->{at} + 8, 'L', 999); } ],
	[ 'checksum', qr/wrong checksum in the page's header/, sub { put($mid->{at} + 12, 'L', $mid->{check} ^ 1); } ],
	[ 'left link', qr/left link leads to block $leaf[1]{blkno}, the page before is $leaf[2]{blkno}/, sub { put($mid->{at} + 32, 'L', $leaf[1]{blkno}); } ],
	[ 'right link over a page', qr/downlink leads to block $mid->{blkno}, the next page of level 0 is $leaf[4]{blkno}/, sub { put($leaf[2]{at} + 36, 'L', $leaf[4]{blkno}); } ],
	[ 'right link back', qr/page is reached twice/, sub { put($mid->{at} + 36, 'L', $leaf[1]{blkno}); } ],
	[ 'right link out of the index', qr/a link leads to block/, sub { put($mid->{at} + 36, 'L', 99999); } ],
	[ 'right link lost', qr/page cannot be read: kind of an entry/, sub { put($mid->{at} + 36, 'L', 0); } ],
	[ 'level', qr/level 2 does not agree.*page cannot be read/s, sub { put($mid->{at} + 40, 'S', 2); } ],
	[ 'flags', qr/not marked as live/, sub { put($mid->{at} + 42, 'S', $mid->{flags} & ~0x10); } ],
	[ 'unknown flags', qr/unknown flags/, sub { put($mid->{at} + 42, 'S', $mid->{flags} | 0x4000); } ],
	[ 'deleted', qr/deleted page is still linked/, sub { put($mid->{at} + 42, 'S', $mid->{flags} | 0x08); } ],
	[ 'an incomplete split that is none', qr/no downlink|INCOMPLETE|^$/, sub { put($mid->{at} + 42, 'S', $mid->{flags} | 0x04); } ],
	[ 'number of entries', qr/bounds do not fit/, sub { put($mid->{at} + 44, 'S', 4000); } ],
	[ 'upper', qr/bounds do not fit/, sub { put($mid->{at} + 56, 'S', 32); } ],
	[ 'an entry out of the page', qr/entry of the base is at byte 8184 instead of/, sub { put(word($mid, 5), 'S', 0x3ff); } ],
	[ 'an entry twice', qr/entry of the base is at byte \d+ instead of/, sub { put(word($mid, 5), 'S', $mid->{word}[6]); } ],
	[ 'order of words', qr/entry of the base is at byte \d+ instead of/, sub { put(word($mid, 5), 'S2', @{ $mid->{word} }[ 6, 5 ]); } ],
	[ 'order of entries', qr/entry is less than the one before it/, sub {
			my @i = map { [ get($_, 'Q2', 16) ] } @{ $mid->{item} }[ 5, 6 ];
			put($mid->{item}[5], 'Q2', @{ $i[1] });
			put($mid->{item}[6], 'Q2', @{ $i[0] });
		} ],
	[ 'length of an entry', qr/is not whole/, sub { put($mid->{item}[7] + 6, 'S', 0x1ff0); } ],
	[ 'high key too low', qr/entry is greater than the page's high key/, sub { put($mid->{item}[0] + 8, 'l', key($mid->{item}[3])); } ],
	[ 'high key too high', qr/key of the downlink to block \d+ is not the high key of the page before/, sub { put($mid->{item}[0] + 8, 'l', key($mid->{item}[0]) + 1); } ],
	[ 'downlink', qr/downlink leads to block $leaf[1]{blkno}, the next page of level 0 is $mid->{blkno}/, sub { put($root->{item}[3], 'S2', 0, $leaf[1]{blkno}); } ],
	[ 'key of a downlink', qr/key of the downlink to block $mid->{blkno} is not the high key/, sub { put($root->{item}[3] + 8, 'l', key($root->{item}[3]) - 1); } ],
	[ 'tail too short', qr/tail entry at byte \d+ is not whole|bounds/, sub { put($tail->{at} + 58, 'S', $tail->{ntail} + 1); } ],
	[ 'tail too long', qr/tail ends at byte/, sub { put($tail->{at} + 58, 'S', $tail->{ntail} - 1); } ],
	[ 'root', qr/a link leads to block/, sub { put($meta + 24, 'L2', 77777, 1); } ],
	[ 'level of the root', qr/page is of level 1, reached on level 2/, sub { put($meta + 24, 'L2', $root->{blkno}, 2); } ],
	[ 'no root', qr/page is live, but nothing leads to it/, sub { put($meta + 24, 'L2', 0, 0); } ],
	[ 'reserved bytes', qr/reserved bytes of the meta page/, sub { put($meta + 40, 'L', 1); } ],
	[ 'meta page', qr/meta page of index "i" is damaged/, sub { put($meta + 12, 'L', 1); } ],
	# these leave the tree as it should be
	[ 'a key', qr/which has another key.*has no entry/s, sub { put($mid->{item}[9] + 8, 'l', key($mid->{item}[9]) + 1); } ],
	[ 'a TID', qr/which has another key.*has no entry/s, sub { put($mid->{item}[9], 'S3', get($mid->{item}[20], 'S3', 6)); } ],
	[ 'an entry not counted', qr/entry of the base is at byte \d+ instead of/, sub {
			my @w = @{ $mid->{word} };
			splice(@w, 11, 1);
			put($mid->{at} + 64, 'S' . @w, @w);
			put($mid->{at} + 44, 'S', scalar @w);
		} ],
	# without a gap: those before it are one entry higher, and there is no tail
	[ 'an entry gone', qr/row \(\d+,\d+\) has no entry/, sub {
			my @w     = @{ $mid->{word} };
			my $from  = $mid->{base_upper};
			my $n     = $mid->{item}[11] - $mid->{at} - $from;
			my $space = $mid->{item}[12] - $mid->{item}[11];
			die 'a tail' if $mid->{ntail} || $mid->{upper} != $from;
			put($mid->{at} + $from + $space, "a$n", get($mid->{at} + $from, "a$n", $n));
			put($mid->{at} + 64, 'S' . $#w, (map { $_ + $space / 8 } @w[ 0 .. 10 ]), @w[ 12 .. $#w ]);
			put($mid->{at} + 44, 'S2', $#w, $from + $space);
			put($mid->{at} + 56, 'S2', $from + $space, 0);
		} ],
	[ 'TIDs out of order', qr/TIDs of a posting list are out of order/, sub {
			my $at = $many->{item}[1] + 16;
			put($at, 'a6a6', get($at + 6, 'a6', 6), get($at, 'a6', 6));
		}, 'j' ],
	[ 'posting list', qr/posting list|damaged/, sub { put($many->{item}[1] + 4, 'S', 0x2fff); }, 'j' ],);
close $fh;

NvmCrash::run_jobs(map { my $d = $_; {
			name => "$d->[0]: is found, and the server lives",
			code => sub { return damage(@$d); } } } @damage);
done_testing();

sub damage
{
	my ($name, $found, $do, $index) = @_;
	my $rig = NvmCrash->new($base);
	my $table = ($index // 'i') eq 'i' ? 't' : 'd';
	my @problems;

	$index //= 'i';
	open($fh, '+<:raw', "$rig->{pool}/pool") or die $!;
	$do->();
	close $fh or die $!;
	$rig->start or return 'no start: ' . $rig->log_since_start;

	my ($out, $status, $err) = $rig->psql("SELECT blkno, off, problem FROM nvm.check('$index', true);\n");
	push @problems, "not $found: $out$err" if "$out$err" !~ $found;
	if ($name eq 'a key')
	{
		($out) = $rig->psql("SELECT count(*) FROM nvm.check('$index');\n");
		push @problems, 'only a comparison with the rows should tell' if $out ne "0\n";
		($out) = $rig->psql("SELECT problem FROM nvm.check('$table', true);\n");
		push @problems, "by way of the table: $out" if $out !~ /^index "i", block \d+/;
	}

	# whatever becomes of these; only in a circle does one come to its timeout
	my $timeout = $name eq 'right link back' ? '5s' : '60s';
	$rig->psql("$_;\n")
	  foreach map { "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off; SET statement_timeout = '$timeout'; $_" }
	  ("SELECT count(*) FROM $table WHERE k >= 0", "SELECT count(*) FROM (SELECT k FROM $table ORDER BY k DESC) s",
		"INSERT INTO $table SELECT x * 10 + 3 FROM generate_series(1, 3000) x", "DELETE FROM $table WHERE k % 3 = 0",
		"VACUUM $table");
	($out) = $rig->psql("SELECT 'alive';\n");
	push @problems, "the server does not answer: $out" if $out ne "alive\n";
	push @problems, "the server's log: $1"
	  if $rig->log_since_start =~ /^(.*(?:PANIC|TRAP|terminated by signal).*\n.*)$/m;
	# a circle can be left
	push @problems, "the server's log: $1"
	  if $name ne 'right link back' && $rig->log_since_start =~ /^(.*statement timeout.*)$/m;

	($out, $status, $err) = $rig->psql("REINDEX INDEX $index;\nSELECT 'check', f::text FROM nvm.check('$table', true) f;\n");
	push @problems, "after REINDEX: $out$err" if $status != 0 || $out ne '';
	return @problems;
}

# Copyright (c) 2026, pg_nvm contributors

# nvm_logdump, on files that are made here byte by byte, without a server: what it prints of
# records and rows; which ends of a file are what a crash may leave, and which are damage; that
# lengths which a right checksum protects lead it nowhere.

use strict;
use warnings;

use File::Copy qw(copy);
use NvmLog;
use PostgreSQL::Test::Utils;
use Test::More;

my $tool = 'nvm_logdump';
my $uuid = pack('H*', '0badc0de112233445566778899aabbcc');

program_help_ok($tool);
program_version_ok($tool);
program_options_handling_ok($tool);

my $base  = PostgreSQL::Test::Utils::tempdir_short();
my $ndirs = 0;

sub new_dir
{
	my $dir = "$base/" . $ndirs++;
	mkdir($dir) or die "$dir: $!";
	return $dir;
}

# exit status, or the signal as text; what it says
sub dump_of
{
	my (@args) = @_;
	my ($out, $err) = ('', '');

	IPC::Run::run([ 'timeout', '-k', '5', '60', $tool, @args ], '>', \$out, '2>', \$err);
	return ($? & 127 ? 'signal ' . ($? & 127) : $? >> 8, $out, $err);
}

# exit status; expected on standard output and on standard error ('': nothing)
sub says
{
	my ($args, $status, $out_like, $err_like, $name) = @_;
	my ($got, $out, $err) = dump_of(@$args);
	my $good = $got eq $status && $out =~ $out_like && ($err_like eq '' ? $err eq '' : $err =~ $err_like);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($good, $name) or diag("status $got, not $status:\n$out$err" . "expected $out_like and $err_like\n");
	return $out;
}

my $tuple = pack('S<S<CC', 2, 0, 24, 0) . 'x' x 10;    # 16 bytes
my $two   = storage(3, 17, row(5, 12, 733, $tuple), row(5, 14, 733));
my $one   = storage(4, 18, row(0, 3, 734, $tuple . 'y'));

sub good_blocks
{
	my ($log) = @_;
	return ($log->block([ commit(501, 733, $two, $one), ask(502, 734, $one) ]),
		$log->block([ outcome(502, 734, 1), commit(503, 735), outcome(504, 736, 0) ]));
}

## what is printed

my $dir   = new_dir();
my $log   = NvmLog->new(uuid => $uuid);
my @at    = good_blocks($log);
my $path  = $log->write($dir);
my $whole = <<OUT;
file $path: generation 1, number 1, start 4096, first 4096
block at 4096: position 4096, 200 bytes, synced 4096
  COMMIT 501, xid 733, 128 bytes, place 4224
    storage 3, creation 17: 2 rows, 1 of them gone
      (5,12) xmin 733 16 bytes
      (5,14) xmin 733 gone
    storage 4, creation 18: 1 rows, 0 of them gone
      (0,3) xmin 734 17 bytes
  ASK 502, xid 734, 72 bytes, place 4296
    storage 4, creation 18: 1 rows, 0 of them gone
      (0,3) xmin 734 17 bytes
block at 4608: position 4296, 72 bytes, synced 4296
  OUTCOME committed 502, xid 734, 24 bytes, place 4320
  COMMIT 503, xid 735, 24 bytes, place 4344
  OUTCOME aborted 504, xid 736, 24 bytes, place 4368
end at 5120: position 4368, zeroes
OUT
is((dump_of('--rows', $path))[1], $whole, 'a good file with its rows');
$whole =~ s/^ {6}.*\n//mg;
is((dump_of($path))[1], $whole, 'without them');
is((dump_of($dir))[1], $whole, 'as its directory');
says([ '--from=4320', $path ], 0, qr/\A file[^\n]*\nblock\ at\ 4608[^\n]*\n\ \ COMMIT\ 503[^\n]*\n\ \ OUTCOME\ aborted/x, '', '--from');

## usage

says([], 1, qr/\A\z/, qr/no file or directory was named/, 'no argument');
says([ '--from=1x', $path ], 1, qr/\A\z/, qr/invalid position/, 'a position that is none');
says([ "$dir/none", $path ], 1, qr/end at/, qr/could not open file/, 'a file that is not there, and one that is');
says([ '/dev/null' ], 1, qr/\A\z/, qr/not a regular file/, 'a device');
says([ new_dir() ], 0, qr/\A\z/, '', 'a directory without files');

## ends that a crash may leave, and damage

# a log with two good blocks, and what becomes of it; expected as in says()
sub case
{
	my ($name, $change, $status, $out_like, $err_like) = @_;
	my $case_dir = new_dir();
	my $case_log = NvmLog->new(uuid => $uuid);
	my @offsets  = good_blocks($case_log);

	my $args = $change->($case_log, $case_dir, @offsets) // [ $case_log->write($case_dir) ];
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return says($args, $status, $out_like, $err_like, $name);
}

my $first_end = qr/^end at 4608: position 4296, what is there does not prove itself: /m;
my $last_end  = qr/^end at 5120: position 4368, what is there does not prove itself: /m;

case('a torn last block', sub { my ($l, $d, $b1, $b2) = @_; $l->flip($b2 + 60); return; }, 0, qr/${first_end}wrong checksum$/m, '');
case('a last block without its header', sub { my ($l, $d, $b1, $b2) = @_; $l->put($b2, "\0" x 40); return; }, 0, qr/${first_end}wrong magic number$/m, '');
case('whole blocks behind a torn one, nothing of which was synced',
	sub { my ($l, $d, $b1, $b2) = @_; $l->block([ commit(505, 737) ], synced => 4296) for 1 .. 2; $l->flip($b2 + 60); return; },
	0, qr/${first_end}wrong checksum$/m, '');
case('a block of another generation behind the end',
	sub { my ($l) = @_; $l->stray_block([ commit(505, 737) ], generation => 2); return; }, 0, qr/${last_end}another generation$/m, '');
case('a block of another generation behind the end, which has synced more',
	sub { my ($l) = @_; $l->stray_block([ commit(505, 737) ], generation => 2, synced => 9000); return; }, 0, qr/${last_end}another generation$/m, '');
case('a block at another position', sub { my ($l) = @_; $l->block([ commit(505, 737) ], position => 4360, synced => 4296); return; },
	0, qr/${last_end}another position$/m, '');
case('a block with another chain', sub { my ($l) = @_; $l->block([ commit(505, 737) ], chain => 1); return; },
	0, qr/${last_end}does not follow the block before it$/m, '');
case('a block of another pool', sub { my ($l) = @_; $l->block([ commit(505, 737) ], uuid => 'x' x 16); return; },
	0, qr/${last_end}wrong checksum$/m, '');
case('reserved bytes of a block', sub { my ($l) = @_; $l->block([ commit(505, 737) ], reserved => 1); return; },
	0, qr/${last_end}reserved bytes are set$/m, '');
foreach my $length (0, 12, 256 * 1024 + 8, 16 * 4096, 0xFFFFFFF8)
{
	case("a block of $length bytes", sub { my ($l) = @_; $l->block([ commit(505, 737) ], length => $length); return; },
		0, qr/${last_end}impossible length$/m, '');
}
case('a flipped bit in the middle',
	sub { my ($l, $d, $b1, $b2) = @_; $l->block([ commit(505, 737) ]); $l->flip($b2 + 60); return; },
	2, qr/${first_end}wrong checksum$/m,
	qr/error: file ".*00000001.log": block at byte 4608 is damaged \(wrong checksum\): positions 4296 to 4368 were on the medium$/m);
case('a block of zeroes in the middle',
	sub { my ($l, $d, $b1, $b2) = @_; $l->block([ commit(505, 737) ]); $l->put($b2, "\0" x 512); return; },
	2, qr/^end at 4608: position 4296, zeroes$/m, qr/block at byte 4608 is damaged \(zeroes\)/);
case('a flipped bit in the first block', sub { my ($l, $d, $b1, $b2) = @_; $l->flip($b1 + 16); return; },
	2, qr/^end at 4096: position 4096/m, qr/block at byte 4096 is damaged \(wrong checksum\): positions 4096 to 4296/);
case('a file that is full', sub { my ($l) = @_; $l->block([ commit(505, 737) ]) for 1 .. 118; return; },
	0, qr/^end at 65536: position 7200, no room for another block$/m, '');
case('a block that ends with the file', sub { my ($l) = @_; $l->block([ commit(505, 737, storage(1, 1, map { row(1, 3, 1) } 1 .. 5028)) ]); return; },
	0, qr/^end at 65536: position 64744, no room for another block$/m, '');

## headers

my %header = (
	'wrong magic number'                             => [ magic      => 1 ],
	'impossible generation in the header'            => [ generation => 0 ],
	'impossible size in the header'                  => [ size       => 4096 ],
	'the file is longer than its header says'        => [ size       => 8192 ],
	'impossible position in the header'              => [ first      => 5000 ]);
foreach my $problem (sort keys %header)
{
	case("header: $problem", sub {
			my ($l, $d) = @_;
			my $other = NvmLog->new(uuid => $uuid, @{ $header{$problem} });
			$l->put(0, $other->header);
			return [ $l->write($d, sprintf('0badc0de-%08x-00000001.log', $other->{generation})) ];
		}, 2, qr/\A\z/, qr/error: file ".*": header: $problem$/m);
}
case('header: a flipped bit', sub { my ($l) = @_; $l->flip(40); return; }, 2, qr/\A\z/, qr/header: wrong checksum of the header$/m);
case('header: another version', sub { my ($l) = @_; $l->put(0, NvmLog->new(uuid => $uuid, version => 7)->header); return; },
	1, qr/\A\z/, qr/has format version 7, this nvm_logdump knows versions up to 5$/m);
case('the name of another pool', sub { my ($l, $d) = @_; return [ $l->write($d, '0badc0df-00000001-00000001.log') ]; },
	2, qr/\A\z/, qr/header: is named after another pool than its header says$/m);
case('the name of another generation', sub { my ($l, $d) = @_; return [ $l->write($d, '0badc0de-00000002-00000001.log') ]; },
	2, qr/\A\z/, qr/header: is named after another generation/);
case('the name of another number', sub { my ($l, $d) = @_; return [ $l->write($d, '0badc0de-00000001-00000002.log') ]; },
	2, qr/\A\z/, qr/header: is named after another number/);
case('any other name', sub { my ($l, $d) = @_; return [ $l->write($d, 'copy') ]; }, 0, qr/COMMIT 501/, '');
foreach my $size (0, 30, 4096, 8300)
{
	case("a file of $size bytes", sub { my ($l, $d) = @_; my $p = $l->write($d); truncate($p, $size) or die $!; return [$p]; },
		2, qr/\A\z/, qr/header: the file is truncated$/m);
}

## lengths with a right checksum

# the second block is one record, changed by the code
sub sealed
{
	my ($name, $record, $at, $bytes, $err_like) = @_;
	return case($name, sub {
			my ($l) = @_;
			my $offset = $l->block([$record]);
			$l->put($offset + 40 + $at, $bytes);
			$l->seal($offset);
			return;
		}, 2, qr/^end at 5632/m, qr/error: file ".*": $err_like$/m);
}
my $rec = commit(505, 737, $two);
sealed('a record that runs out of its block', $rec, 0, pack('L<', length($rec) + 8), 'record at byte 5160: impossible length of a record');
sealed('a record that ends before it', $rec, 0, pack('L<', length($rec) - 8), '(storage|record) at byte .*: impossible length of .*');
sealed('a record without length', $rec, 0, pack('L<', 0), 'record at byte 5160: impossible length of a record');
sealed('a record of odd length', $rec, 0, pack('L<', 28), 'record at byte 5160: impossible length of a record');
sealed('a kind', $rec, 4, pack('S<', 9), 'record at byte 5160: unknown kind of a record');
sealed('flags', $rec, 6, pack('S<', 2), 'record at byte 5160: unknown flags of a record');
sealed('no number', $rec, 8, pack('Q<', 0), 'record at byte 5160: a record has no number');
sealed('a side file in a record with rows', $rec, 6, pack('S<', 1), 'record at byte 5160: impossible length of a record with a side file');
sealed('OUTCOME with a body', $rec, 4, pack('S<', 3), 'record at byte 5160: an OUTCOME record has a body');
sealed('flags of OUTCOME', outcome(505, 737, 1), 6, pack('S<', 1), 'record at byte 5160: unknown flags of a record');
sealed('a storage that runs out of its record', $rec, 28, pack('L<', 1000), 'storage at byte 5184: impossible length of a storage\'s rows');
sealed('rows of odd length', $rec, 28, pack('L<', 38), 'storage at byte 5184: impossible length of a storage\'s rows');
sealed('a storage that cannot be', $rec, 24, pack('L<', 1 << 20), 'storage at byte 5184: impossible directory entry');
sealed('a row that runs out of its storage', $rec, 46, pack('S<', 65535), 'row 1 of the storage at byte 5184: impossible length of a row');
sealed('a row too short for a tuple', $rec, 46, pack('S<', 4), 'row 1 of the storage at byte 5184: impossible length of a row');
sealed('a row in the header of its block', $rec, 44, pack('S<', 2), 'row 1 of the storage at byte 5184: impossible place of a row');
sealed('a side file: reserved bytes', in_side($uuid, 505, 737, $two), 36, pack('L<', 1), 'record at byte 5160: reserved bytes are set');

## brief headers, and rows that are packed

# six literal bytes, then nine times the byte before
my $squeezed = packed_row(5, 16, 735, 16, pack('CSSC', 0xc0, 2, 0, 24) . 'xx' . pack('CC', 6, 1));
my $brief    = brief_commit(505, brief_storage(3, 17, row(5, 12, 733, $tuple), $squeezed), brief_storage((1 << 18) - 1, 0xffffffff, row(5, 14, 733)), $one);
my $brief_dir = new_dir();
my $brief_log = NvmLog->new(uuid => $uuid);
$brief_log->block([$brief]);
$brief_log->write($brief_dir);
my $as_brief = <<OUT;
  COMMIT 505, 152 bytes, place 4248
    storage 3, creation 17: 2 rows, 0 of them gone
      (5,12) xmin 733 16 bytes
      (5,16) xmin 735 16 bytes, packed
    storage 262143, creation 4294967295: 1 rows, 1 of them gone
      (5,14) xmin 733 gone
    storage 4, creation 18: 1 rows, 0 of them gone
      (0,3) xmin 734 17 bytes
end at
OUT
chomp $as_brief;
says([ '--rows', $brief_dir ], 0, qr/^\Q$as_brief\E/m, '', 'brief headers of a record and of storages, a packed row');
sealed('a record that ends in its brief header', $brief, 0, pack('L<', 8), 'record at byte 5160: impossible length of a record');
sealed('ASK without xid', $brief, 4, pack('S<', 2), 'record at byte 5160: a record that needs an xid has none');
sealed('a side file without xid', $brief, 6, pack('S<', 5), 'record at byte 5160: a record that needs an xid has none');
sealed('a brief storage that runs out of its record', $brief, 16, pack('L<', 0x80000000 | 100 << 18 | 3), 'storage at byte 5176: impossible length of a storage\'s rows');
sealed('a packed row without a byte', $brief, 58, pack('S<', 0x8002), 'row 2 of the storage at byte 5176: impossible length of a packed row');
sealed('a packed row too short for a tuple', $brief, 64, pack('S<', 4), 'row 2 of the storage at byte 5176: impossible length of a row');
sealed('a packed row that runs out of its storage', $brief, 58, pack('S<', 0xffff), 'row 2 of the storage at byte 5176: impossible length of a row');

## pieces of large values

my $outside = pack('S<S<CC', 2, 4, 24, 0) . 'x' x 30;    # 36 bytes, with HEAP_HASEXTERNAL
my $large   = row(5, 12, 733, $outside);
my @pieces  = (piece(5, 12, 2, 0, 'a' x 100), piece(5, 12, 2, 1, 'b' x 7), piece(5, 12, 3, 0, 'c' x 16384));
my $plain   = row(5, 14, 733, $tuple);

my $piece_dir = new_dir();
my $piece_log = NvmLog->new(uuid => $uuid);
$piece_log->block([ commit(505, 737, storage(3, 17, @pieces, $large, $plain), storage(3, 17, @pieces[ 0 .. 1 ]), storage(3, 17, $large)) ]);
$piece_log->write($piece_dir);
my $as_pieces = <<OUT;
    storage 3, creation 17: 2 rows, 0 of them gone, 3 pieces of large values
      (5,12) attribute 2, piece 0: 100 bytes
      (5,12) attribute 2, piece 1: 7 bytes
      (5,12) attribute 3, piece 0: 16384 bytes
      (5,12) xmin 733 36 bytes
      (5,14) xmin 733 16 bytes
    storage 3, creation 17: 0 rows, 0 of them gone, 2 pieces of large values
      (5,12) attribute 2, piece 0: 100 bytes
      (5,12) attribute 2, piece 1: 7 bytes
    storage 3, creation 17: 1 rows, 0 of them gone
      (5,12) xmin 733 36 bytes
end at
OUT
chomp $as_pieces;
says([ '--rows', $piece_dir ], 0, qr/^\Q$as_pieces\E/m, '', 'pieces, and a row in another section than its own');
$as_pieces =~ s/^ {6}.*\n//mg;
says([$piece_dir], 0, qr/^\Q$as_pieces\E/m, '', 'without them');
says([ '--from=100000', $piece_dir ], 0, qr/\A file[^\n]*\nend/x, '', 'checked, but not printed');

# records whose pieces are not what they should be; expected of the record
sub odd_pieces
{
	my ($name, $err_like, @storages) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	foreach my $from (0, 100000)
	{
		my $d = new_dir();
		my $l = NvmLog->new(uuid => $uuid);
		$l->block([ commit(505, 737, @storages) ]);
		says([ "--from=$from", $l->write($d) ], 2, qr/end at/, qr/error: file ".*": (?:row \d+ of the storage|storages) at byte \d+: $err_like$/m, $name);
	}
	return;
}
odd_pieces('pieces at the end of a record', 'pieces without their row', storage(3, 17, @pieces));
odd_pieces('pieces before another row', 'pieces without their row', storage(3, 17, @pieces, row(5, 14, 733, $outside)));
odd_pieces('pieces of two rows', 'pieces without their row', storage(3, 17, $pieces[0], piece(5, 14, 2, 0, 'a'), $large));
odd_pieces('another storage behind pieces', 'pieces without their row', storage(3, 17, @pieces), storage(4, 18, $large));
odd_pieces('another creation behind pieces', 'pieces without their row', storage(3, 17, @pieces), storage(3, 18, $large));
odd_pieces('no pieces', 'a row without the pieces of its values', storage(3, 17, $large));
odd_pieces('pieces of a row without values', 'pieces of a row that has no large values', storage(3, 17, @pieces, row(5, 12, 733, $tuple)));
odd_pieces('pieces of a row that is gone', 'pieces of a row that has no large values', storage(3, 17, @pieces, row(5, 12, 0)));
odd_pieces('pieces behind another row', 'the first piece of a row does not begin a section', storage(3, 17, $plain, @pieces, $large));
odd_pieces('no first piece', 'pieces out of order', storage(3, 17, @pieces[ 1 .. 2 ], $large));
odd_pieces('a piece that is missing', 'pieces out of order', storage(3, 17, $pieces[0], piece(5, 12, 2, 2, 'b'), $large));
odd_pieces('a piece that comes twice', 'pieces out of order', storage(3, 17, @pieces[ 0, 0 ], $large));
odd_pieces('attributes in another order', 'pieces out of order', storage(3, 17, @pieces[ 2, 0, 1 ], $large));
odd_pieces('the number of a piece runs over', 'pieces out of order', storage(3, 17, piece(5, 12, 2, 0, 'a'), piece(5, 12, 3, 1, 'b'), $large));
odd_pieces('attribute 0', 'impossible attribute of a piece', storage(3, 17, piece(5, 12, 0, 0, 'a'), $large));
odd_pieces('a piece without bytes', 'impossible length of a piece', storage(3, 17, piece(5, 12, 2, 0, ''), $large));
odd_pieces('a piece that is too long', 'impossible length of a piece', storage(3, 17, piece(5, 12, 2, 0, 'a' x 16385), $large));
odd_pieces('a piece in the header of its block', 'impossible place of a row', storage(3, 17, piece(5, 2, 2, 0, 'a'), $large));
odd_pieces('a piece that runs out of its storage', 'impossible length of a row', storage(3, 17, substr(piece(5, 12, 2, 0, 'a' x 100), 0, 60)));

my $bad = 0;
srand(1);
foreach my $round (1 .. 60)
{
	my $d = new_dir();
	my $l = NvmLog->new(uuid => $uuid);
	my ($b) = $round % 2 ? good_blocks($l) :
	  $l->block([ commit(505, 737, storage(3, 17, @pieces[ 0, 1 ]), storage(3, 17, $large, $plain)) ]);

	$l->put($b + 40 + int(rand(54)) * 4, pack('L<', (0, 1, 7, 255, 0xFFFFFFFF, 0x80000000, int(rand(4096)))[ rand 7 ])) for 0 .. rand(2);
	$l->seal($b);
	# the chain is broken now, unless the file ends here
	$l->put(4608, "\0" x 512);
	my ($status, $out, $err) = dump_of('--rows', $l->write($d));
	next if $status eq '0' || ($status eq '2' && $err =~ /error: file/);
	$bad++;
	diag("round $round: status $status\n$out$err");
}
is($bad, 0, 'values by chance, with a right checksum');

## several files

# generation 1 has files 1 and 2, generation 2 begins in the second one's last block
my ($two_dir, @files) = (new_dir());
$files[0] = NvmLog->new(uuid => $uuid);
good_blocks($files[0]);
$files[1] = NvmLog->new(uuid => $uuid, number => 2, first => 4368);
$files[1]->block([ commit(505, 737, $one) ]);
my $cut = $files[1]{position};
$files[1]->block([ commit(506, 738) ]);
$files[2] = NvmLog->new(uuid => $uuid, generation => 2, start => $cut);
$files[2]->block([ commit(1, 739) ]);
$_->write($two_dir) foreach reverse @files;
NvmLog->new(uuid => 'another pool....')->write($two_dir);
copy("$two_dir/" . $files[0]->name, "$two_dir/new.tmp") or die $!;

my $all = says([$two_dir], 0, qr/^end at 5120: position 4368, file 2 goes on$/m, '', 'a directory');
is(join(' ', $all =~ /^file \S*\/(\S+):/mg), join(' ', map({ $_->name } @files), '616e6f74-00000001-00000001.log'), 'its files in their order');
like($all, qr/^end at 4608: position $cut, generation 2 begins$/m, 'the first generation ends where the second one begins');
unlike($all, qr/COMMIT 506/, 'what lies behind that is not there');
says([ "$two_dir/" . $files[1]->name ], 0, qr/COMMIT 506/, '', 'nobody knows that in the file alone');

my $short = NvmLog->new(uuid => $uuid);
$short->block([ commit(501, 733, $two, $one), ask(502, 734, $one) ]);
$short->write($two_dir);
says([$two_dir], 2, qr/^end at 4608: position 4296, zeroes/m, qr/1-00000001.log": block at byte 4608 is damaged \(zeroes\): positions 4296 to 4368 were on the medium$/m, 'a file that ends before the next one begins');
$files[0]->write($two_dir);

## side files

# a log whose last record names a side file with the bytes; returns log and side file
sub with_side
{
	my ($d, $bytes, $ask) = @_;
	my $l    = NvmLog->new(uuid => $uuid);
	my $side = NvmLog->new(uuid => $uuid, number => 0, transaction => 505);

	good_blocks($l);
	$l->block([ in_side($uuid, 505, 737, $bytes, $ask) ]);
	$l->write($d);
	$side->{bytes} .= $bytes;
	$side->write($d);
	return ($l, $side);
}

my $side_dir = new_dir();
my ($side_log, $side) = with_side($side_dir, $one . $two);
my $printed = <<OUT;
  COMMIT 505, xid 737, 40 bytes, place 4408
    side file 0badc0de-00000001-00000000000001f9.side, 104 bytes
    storage 4, creation 18: 1 rows, 0 of them gone
    storage 3, creation 17: 2 rows, 1 of them gone
end at 5632
OUT
chomp $printed;
my $as_directory = says([$side_dir], 0, qr/^\Q$printed\E/m, '', 'a side file, with its record');
unlike($as_directory, qr/^file .*\.side/m, 'and not once more');
says([ "$side_dir/" . $side_log->name ], 0, qr/^\Q$printed\E/m, '', 'the same with the log alone');
says([ '--rows', "$side_dir/" . $side->name ], 0, qr/: side file, generation 1, of transaction 505\n    storage 4, .*\n      \(0,3\)/, '', 'the side file alone');

NvmLog->new(uuid => $uuid, number => 0, transaction => 700)->write($side_dir);
says([$side_dir], 0, qr/^file .*2bc.side: side file that no record names$/m, '', 'one that a crash has left');

$side->flip(4096 + 60);
$side->write($side_dir);
says([$side_dir], 2, qr/COMMIT 505/, qr/error: file ".*1f9.side": wrong checksum$/m, 'a flipped bit in it');
$side->flip(4096 + 60);
$side->{bytes} = substr($side->{bytes}, 0, -4);
$side->write($side_dir);
says([$side_dir], 2, qr/COMMIT 505/, qr/error: file ".*1f9.side": the file is truncated$/m, 'a part of it');
truncate("$side_dir/" . $side->name, 0) or die $!;
says([$side_dir], 2, qr/COMMIT 505/, qr/error: file ".*1f9.side": the file is truncated$/m, 'nothing of it');
my $others = NvmLog->new(uuid => 'another pool....', number => 0, transaction => 505);
$others->{bytes} .= $one . $two;
$others->write($side_dir, $side->name);
says([$side_dir], 2, qr/COMMIT 505/, qr/error: file ".*1f9.side": belongs to another pool$/m, 'another pool\'s');
unlink("$side_dir/" . $side->name) or die $!;
says([$side_dir], 2, qr/COMMIT 505/, qr/00000001.log": record at byte 5160: its side file ".*1f9.side" is missing$/m, 'none');

my $carried_dir = new_dir();
with_side($carried_dir, $two);
my $carried = NvmLog->new(uuid => $uuid, generation => 2, start => 4368);
$carried->block([ in_side($uuid, 505, 737, $two) ]);
$carried->write($carried_dir);
$as_directory = says([$carried_dir], 0, qr/^block .*\n  COMMIT 505.*\n    side file 0badc0de-00000001-00000000000001f9\.side, 56 bytes\n    storage 3/m, '',
	'that of a record which a start has carried over');
unlike($as_directory, qr/^file .*\.side/m, 'and it is not said to be nobody\'s');

my $ask_dir = new_dir();
(undef, $side) = with_side($ask_dir, $two, 1);
says([$ask_dir], 0, qr/ASK 505.*\n    side file .*, 56 bytes\n    storage 3/, '', 'a side file of ASK');
unlink("$ask_dir/" . $side->name) or die $!;
says([$ask_dir], 0, qr/ASK 505.*\n.*\n      is missing, as after an abort\n/, '', 'an abort has taken it away');

my $odd_dir = new_dir();
with_side($odd_dir, substr($two, 0, -8));
says([$odd_dir], 2, qr/COMMIT 505/, qr/1f9.side": storage at byte 4096: impossible length of a storage's rows$/m, 'a storage that runs out of its side file');

done_testing;

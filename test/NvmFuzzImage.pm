# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmFuzzImage - the structures of a pool file, to be changed field by field

=head1 SYNOPSIS

  my $image = NvmFuzzImage->new($file);     # of a server that is down
  my @all   = $image->things('version');    # { kind, at, len, fields, ... }
  $image->put($thing, $field, $value);
  $image->seal($thing);                     # make its checksums right again

=head1 DESCRIPTION

Offsets and sizes of fields are those of test/media/layout.expected, which the media
tier holds against src/media; what the checksums cover is src/verify's.

A thing is a structure at a place of the file: C<kind>, C<at>, C<len>, C<fields> (name
to [offset, size]), C<label>, and what its checksums need (C<unit>, C<slot>, C<id>,
C<dir>, C<blk>, C<cell>, C<page>).

=cut

package NvmFuzzImage;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;

my $here = dirname(abs_path(__FILE__));
my (%struct, %constant, @crc_table);

sub _read_layout
{
	my $current;

	open(my $fh, '<', "$here/media/layout.expected") or die "layout.expected: $!";
	while (my $line = <$fh>)
	{
		if ($line =~ /^(\w+) = (\S+)/)
		{
			no warnings 'portable';
			my ($name, $value) = ($1, $2);
			$constant{$name} = $value =~ /^0x/ ? hex($value) : $value;
		}
		elsif ($line =~ /^struct (\w+): (\d+)/)
		{
			$current = $1;
			$struct{$current} = { len => $2, fields => {} };
		}
		elsif ($line =~ /^\s*(\d+)\s+(\d+)\s+(\w+)$/)
		{
			$struct{$current}{fields}{$3} = [ $1, $2 ];
		}
	}
	close $fh;
	foreach my $i (0 .. 255)
	{
		my $c = $i;
		$c = ($c >> 1) ^ (($c & 1) ? 0x82F63B78 : 0) foreach 1 .. 8;
		push @crc_table, $c;
	}
	return;
}
_read_layout();

sub constant { return $constant{ $_[0] } // die "no constant $_[0]"; }
sub layout   { return $struct{ $_[0] } // die "no struct $_[0]"; }

sub crc_more
{
	my ($crc, $data) = @_;
	$crc = ($crc >> 8) ^ $crc_table[ ($crc ^ $_) & 0xFF ] foreach unpack('C*', $data);
	return $crc;
}

sub crc32c { return crc_more(0xFFFFFFFF, $_[0]) ^ 0xFFFFFFFF; }

# nvm_pool_check
sub check
{
	my ($self, $data, $place, $bits) = @_;
	my $crc = crc_more(crc_more($self->{uuid_crc}, pack('Q<', $place)), $data) ^ 0xFFFFFFFF;

	return $crc if $bits >= 32;
	return ($crc ^ ($crc >> 16)) & ((1 << $bits) - 1);
}

=pod

=over

=item NvmFuzzImage->new(FILE), $image->get(AT, LENGTH), $image->set(AT, BYTES)

=cut

sub new
{
	my ($class, $file) = @_;
	my $self = bless { file => $file, cache => {} }, $class;

	open($self->{fh}, '+<:raw', $file) or die "$file: $!";
	$self->{size} = -s $file;
	my $h = $struct{NvmPoolHeader};
	my ($uuid_at, $uuid_len) = @{ $h->{fields}{uuid} };
	my $header = $self->get(65536, $h->{len});
	$self->{uuid_crc} = crc_more(0xFFFFFFFF, substr($header, $uuid_at, $uuid_len));
	$self->{nchunks}  = int($self->{size} / constant('NVM_CHUNK_SIZE'));
	return $self;
}

sub get
{
	my ($self, $at, $len) = @_;
	my $bytes;

	sysseek($self->{fh}, $at, 0) or die "seek: $!";
	my $got = sysread($self->{fh}, $bytes, $len) // die "read: $!";
	$bytes .= "\0" x ($len - $got);
	return $bytes;
}

sub set
{
	my ($self, $at, $bytes) = @_;

	return if $at < 0 || $at + length($bytes) > $self->{size};
	sysseek($self->{fh}, $at, 0) or die "seek: $!";
	(syswrite($self->{fh}, $bytes) // 0) == length($bytes) or die "write: $!";
	return;
}

my %template = (1 => 'C', 2 => 'S<', 4 => 'L<', 8 => 'Q<');

sub number
{
	my ($self, $at, $size) = @_;
	return unpack($template{$size}, $self->get($at, $size));
}

sub store
{
	my ($self, $at, $size, $value) = @_;
	my $mask = $size == 8 ? ~0 : (1 << 8 * $size) - 1;
	$self->set($at, pack($template{$size}, $value & $mask));
	return;
}

# a field of a thing as a number; fields of other sizes are bytes
sub field
{
	my ($self, $thing, $name) = @_;
	my ($off, $size) = @{ $thing->{fields}{$name} };
	return $template{$size} ? $self->number($thing->{at} + $off, $size) : $self->get($thing->{at} + $off, $size);
}

sub put
{
	my ($self, $thing, $name, $value) = @_;
	my ($off, $size) = @{ $thing->{fields}{$name} };
	if ($template{$size}) { $self->store($thing->{at} + $off, $size, $value); }
	else                  { $self->set($thing->{at} + $off, $value); }
	return;
}

# ---- what there is ----

sub _thing
{
	my ($kind, $name, $at, $label, %more) = @_;
	return {
		kind   => $kind,
		at     => $at,
		len    => $struct{$name}{len},
		fields => $struct{$name}{fields},
		label  => $label,
		%more
	};
}

sub _word
{
	my ($kind, $at, $size, $name, $label, %more) = @_;
	return { kind => $kind, at => $at, len => $size, fields => { $name => [ 0, $size ] }, label => $label, %more };
}

sub table_units
{
	my ($index) = @_;
	my $k = int($index / 8);
	return 8 << ($k < 7 ? $k : 7);
}

sub _extent_units
{
	my ($word) = @_;
	my $kind = ($word >> 12) & 7;
	my $arg  = ($word >> 35) & 0xFFFFFF;

	return table_units($arg) if $kind == 1;
	return $arg if $kind == 2 || $kind == 4 || $kind == 5;
	return $kind == 3 ? 8 : 1;
}

=pod

=item $image->things(KIND)

All of a kind: header slot extent direntry lane locks lockitem block version special
value large largebytes meta page entry key order.  Of a pool that is sound.

=cut

sub things
{
	my ($self, $kind) = @_;
	$self->_survey unless $self->{things};
	return @{ $self->{things}{$kind} // [] };
}

# which kinds there are any of
sub kinds
{
	my ($self) = @_;
	$self->_survey unless $self->{things};
	return sort keys %{ $self->{things} };
}

sub _survey
{
	my ($self) = @_;
	my (@blocks, %dirkind);

	$self->{things} = {};
	$self->_add(_thing('header', 'NvmPoolHeader', 65536 + 4096 * $_, "header copy $_", copy => $_)) foreach 0, 1;
	for (my $s = 0; $s < 512; $s++)
	{
		my $at = constant('NVM_SLOTS_OFFSET') + 128 * $s;
		last if $self->get($at, 128) eq "\0" x 128;
		$self->_add(_thing('slot', 'NvmSlotCopy', $at + 64 * $_, "slot $s copy $_", slot => $s)) foreach 0, 1;
	}
	foreach my $chunk (0 .. $self->{nchunks} - 1)
	{
		my $first = $chunk == 0 ? constant('NVM_CHUNK0_FIRST_UNIT') : 8;
		my @map = unpack('Q<*', $self->get($chunk * constant('NVM_CHUNK_SIZE'), 8 * 8192));
		for (my $u = $first; $u < 8192;)
		{
			my $word = $map[$u];
			my $unit = $chunk * 8192 + $u;
			if ($word == 0) { $u++; next; }
			my ($ek, $owner, $arg) = (($word >> 12) & 7, ($word >> 15) & 0xFFFFF, ($word >> 35) & 0xFFFFFF);
			$self->_add(_word('extent', $chunk * constant('NVM_CHUNK_SIZE') + 8 * $u, 8, 'word',
				"extent at unit $unit kind $ek owner $owner arg $arg", unit => $unit, owner => $owner));
			my $units = _extent_units($word);
			push @blocks, [ $unit, $units, $owner, $arg ] if $ek == 1;
			$self->_survey_large($unit, $owner) if $ek == 2;
			$self->_survey_dirs($unit, $arg, \%dirkind) if $ek == 3;
			$self->_survey_locks($unit) if $ek == 4;
			if ($ek == 5)
			{
				$self->_add(_thing('lane', 'NvmRedoLane', ($unit + 4 * $_) * 8192, "redo lane $_",
					unit => $unit + 4 * $_)) foreach 0 .. 15;
			}
			$u += $units;
		}
	}
	foreach my $e (@blocks)
	{
		my ($unit, $units, $dir, $index) = @$e;
		my $blk = 0;
		$blk += table_units($_) foreach 0 .. $index - 1;
		for (my $i = 0; $i < $units; $i++)
		{
			my $at = ($unit + $i) * 8192;
			my $magic = $self->number($at, 4);
			$self->_survey_block($at, $dir, $blk + $i) if $magic == constant('NVM_BLOCK_MAGIC');
			$self->_survey_page($at, $dir, $blk + $i) if $magic == constant('NVM_INDEX_MAGIC');
			$self->_add(_thing('meta', 'NvmIndexMeta', $at, "meta page of storage $dir", dir => $dir, blk => 0))
			  if $magic == constant('NVM_INDEX_META_MAGIC');
		}
	}
	return;
}

sub _add { my ($self, $thing) = @_; push @{ $self->{things}{ $thing->{kind} } }, $thing; return; }

sub _survey_dirs
{
	my ($self, $unit, $arg, $dirkind) = @_;
	foreach my $i (0 .. 511)
	{
		my $thing = _thing('direntry', 'NvmDirEntry', $unit * 8192 + 128 * $i, 'directory entry ' . ($arg * 512 + $i),
			id => $arg * 512 + $i);
		next if $self->field($thing, 'begin') == 0;
		$dirkind->{ $thing->{id} } = $self->field($thing, 'kind');
		$self->_add($thing);
	}
	return;
}

sub _survey_large
{
	my ($self, $unit, $owner) = @_;
	my $head = _thing('large', 'NvmLargeHeader', $unit * 8192, "large value at unit $unit of storage $owner", dir => $owner);
	my $length = $self->field($head, 'length');
	return if $length == 0 || $length > 300_000;
	$self->_add($head);
	$self->_add({ kind => 'largebytes', at => $unit * 8192 + $head->{len}, len => $length, fields => {},
		label => "bytes of large value at unit $unit of storage $owner", head => $head, dir => $owner });
	return;
}

sub _survey_locks
{
	my ($self, $unit) = @_;
	my $list = _thing('locks', 'NvmLockList', $unit * 8192, "list of row locks at unit $unit", unit => $unit);
	my $count = $self->field($list, 'count');
	$self->_add($list);
	foreach my $i (0 .. ($count > 4 ? 4 : $count) - 1)
	{
		$self->_add(_thing('lockitem', 'NvmLockItem', $unit * 8192 + 32 + 16 * $i, "row lock $i at unit $unit",
			list => $list));
	}
	return;
}

sub _survey_block
{
	my ($self, $at, $dir, $blk) = @_;
	my $block  = _thing('block', 'NvmBlock', $at, "block $blk of storage $dir", dir => $dir, blk => $blk);
	my @starts = unpack('Q<4', $self->get($at + 32, 32));
	my %fields = (%{ $struct{NvmVersion}{fields} });

	# the bitmaps word by word
	$block->{fields} = { %{ $block->{fields} }, map { ("starts$_" => [ 32 + 8 * $_, 8 ], "used$_" => [ 64 + 8 * $_, 8 ]) } 0 .. 3 };
	delete @{ $block->{fields} }{qw(starts used)};
	$self->_add($block);
	delete $fields{tuple};
	$fields{"tuple_$_"} = [ 48 + $struct{NvmTupleHeader}{fields}{$_}[0], $struct{NvmTupleHeader}{fields}{$_}[1] ]
	  foreach keys %{ $struct{NvmTupleHeader}{fields} };
	foreach my $cell (3 .. 255)
	{
		next unless ($starts[ $cell / 64 ] >> ($cell % 64)) & 1;
		my $v = $at + 32 * $cell;
		my $begin = $self->number($v + 24, 8);
		my %what = (dir => $dir, blk => $blk, cell => $cell);
		if ($begin == 0 || $begin >> 48 >= constant('NVM_STAMP_SPECIAL'))
		{
			my %some = map { ($_ => $fields{$_}) } qw(next end link begin);
			$self->_add({ kind => 'special', at => $v, len => 32, fields => \%some,
				label => sprintf('area (%d,%d) of storage %d, begin %04x', $blk, $cell, $dir, $begin >> 48), %what });
			next;
		}
		my $len = $self->number($v + 40, 2);
		$self->_add({ kind => 'version', at => $v, len => 72, fields => \%fields,
			label => "version ($blk,$cell) of storage $dir", %what });
		my $hoff = $self->number($v + 48 + 22, 1);
		$self->_add({ kind => 'value', at => $v + 48 + $hoff, len => $len - $hoff, fields => {},
			label => "columns of ($blk,$cell) of storage $dir", version => $v, %what }) if $len > $hoff && $len <= 8048;
	}
	return;
}

sub _survey_page
{
	my ($self, $at, $dir, $blk) = @_;
	my $page  = _thing('page', 'NvmIndexPage', $at, "index page $blk of storage $dir", dir => $dir, blk => $blk);
	my $nbase = $self->field($page, 'nbase');
	my $base_upper = $self->field($page, 'base_upper');
	my $settled = $self->field($page, 'commit') & 0xFFFFFFFF;
	my @entries;

	$self->_add($page);
	foreach my $i (0 .. $nbase - 1)
	{
		push @entries, [ $i, ($self->number($at + 64 + 2 * $i, 2) & 0x3FF) * 8 ];
		$self->_add(_word('order', $at + 64 + 2 * $i, 2, 'word', "word $i of index page $blk of storage $dir", dir => $dir))
		  if $i < 3 || $i == $nbase - 1;
	}
	for (my $off = $settled & 0xFFFF; $off < $base_upper;)
	{
		my $size = $self->number($at + $off + 6, 2) & 0x1FFF;
		last if $size < 8;
		push @entries, [ "tail $off", $off ];
		$off += ($size + 7) & ~7;
	}
	foreach my $e (@entries)
	{
		my ($i, $off) = @$e;
		my $size = $self->number($at + $off + 6, 2) & 0x1FFF;
		my %what = (dir => $dir, blk => $blk, level => $self->field($page, 'level'));
		$self->_add({ kind => 'entry', at => $at + $off, len => 8, label => "entry $i of index page $blk of storage $dir",
			fields => { block_hi => [ 0, 2 ], block_lo => [ 2, 2 ], offset => [ 4, 2 ], info => [ 6, 2 ] }, %what });
		$self->_add({ kind => 'key', at => $at + $off + 8, len => $size - 8, fields => {},
			label => "bytes of entry $i of index page $blk of storage $dir", %what }) if $size > 8;
	}
	return;
}

=pod

=item $image->seal(THING)

Recompute what checks there are over the thing, or the bytes.  True if there are any.

=cut

sub seal
{
	my ($self, $t) = @_;
	my $kind = $t->{kind};
	my $bytes = $self->get($t->{at}, $t->{len});

	if ($kind eq 'header')
	{
		$self->put($t, 'crc', 0);
		$self->put($t, 'crc', crc32c($self->get($t->{at}, $t->{len})));
	}
	elsif ($kind eq 'slot')
	{
		my $place = (1 << 61) | ($t->{slot} << 4);
		my $word = $self->field($t, 'word');
		if ($word != 0)
		{
			$word &= ~0xFFF;
			$self->put($t, 'word', $word | $self->check(pack('Q<', $word), $place, 12));
		}
		my @fields = ([ xid => 1, 0 ], [ statement => 2, 40 ], (map { [ gap => 3 + $_, 8 + 8 * $_ ] } 0 .. 3), [ locks => 7, 48 ]);
		foreach my $f (@fields)
		{
			my $value = $self->number($t->{at} + $f->[2], 8) >> 16;
			$self->store($t->{at} + $f->[2], 8,
				$value == 0 ? 0 : ($value << 16) | $self->check(pack('Q<', $value), $place | $f->[1], 16));
		}
	}
	elsif ($kind eq 'extent')
	{
		my $word = $self->field($t, 'word') & ~0xFFF;
		$self->put($t, 'word', $word | $self->check(pack('Q<', $word), $t->{unit}, 12)) if $word != 0;
	}
	elsif ($kind eq 'direntry')
	{
		my $n = $self->field($t, 'counted') & 0xFFFFFFFF;
		$self->put($t, 'counted', $n == 0 ? 0 : $n | $self->check(pack('L<', $n), (1 << 62) | $t->{id}, 32) << 32);
		foreach my $name (qw(begin end relaxed all_visible uses counted crc))
		{
			my ($off, $size) = @{ $t->{fields}{$name} };
			substr($bytes, $off, $size) = "\0" x $size;
		}
		$self->put($t, 'crc', $self->check($bytes, (1 << 62) | $t->{id}, 32));
	}
	elsif ($kind eq 'lane')
	{
		my $npieces = $self->field($t, 'npieces');
		my $used = 272;
		foreach my $i (0 .. ($npieces > 16 ? 16 : $npieces) - 1)
		{
			my $length = $self->number($t->{at} + 16 + 16 * $i + 8, 8);
			return 1 if $length > 24576;
			$used += ($length + 7) & ~7;
		}
		return 1 if $used > 32768;
		my $word = $self->check($self->get($t->{at} + 8, $used - 8), (1 << 61) | $t->{unit}, 32);
		$self->put($t, 'word', (constant('NVM_REDO_MAGIC') << 32) | $word);
	}
	elsif ($kind eq 'locks' || $kind eq 'lockitem')
	{
		my $list = $t->{list} // $t;
		my $place = (1 << 60) | $list->{unit};
		my $count = $self->field($list, 'count');
		return 1 if $count > 65534;
		my $head = $self->get($list->{at}, 32);
		substr($head, 16, 4) = "\0\0\0\0";
		my @crc = ($self->check($head, $place, 32), $self->check($self->get($list->{at} + 32, 16 * $count), $place, 32));
		$self->put($list, 'crc', $self->check(pack('L<2', @crc), $place, 32));
	}
	elsif ($kind eq 'block' || $kind eq 'page')
	{
		my ($dir, $blk) = ($self->field($t, 'dir'), $self->field($t, 'blkno'));
		my $magic = $kind eq 'block' ? constant('NVM_BLOCK_MAGIC') : constant('NVM_INDEX_MAGIC');
		$self->put($t, 'check', $self->check(pack('L<3', $magic, $dir, $blk), $t->{at}, 32));
	}
	elsif ($kind eq 'meta')
	{
		$self->put($t, 'check', $self->check(pack('L<4', map { $self->field($t, $_) } qw(magic dir version flags)), $t->{at}, 32));
	}
	elsif ($kind eq 'version' || $kind eq 'value')
	{
		my $v = $t->{version} // $t->{at};
		my ($len, $flags) = unpack('S<2', $self->get($v + 40, 4));
		my ($hi, $lo, $off, $mask2, $mask) = unpack('S<5', $self->get($v + 48 + 12, 10));
		my $crc = crc_more(0xFFFFFFFF, pack('S<7', $len, $flags, $hi, $lo, $off, $mask2 & 0x7FF, $mask & 7));
		$crc = crc_more($crc, $self->get($v + 48 + 22, $len - 22)) if $len > 22 && $len <= 8048;
		$self->store($v + 44, 4, $crc ^ 0xFFFFFFFF);
	}
	elsif ($kind eq 'large' || $kind eq 'largebytes')
	{
		my $head = $t->{head} // $t;
		my $length = $self->field($head, 'length');
		$self->put($head, 'crc', crc32c($self->get($head->{at} + $head->{len}, $length))) if $length <= 300_000;
	}
	else
	{
		return 0;
	}
	return 1;
}

=pod

=back

=cut

1;

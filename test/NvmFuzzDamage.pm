# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmFuzzDamage - damage to a pool file that knows its structures

=head1 SYNOPSIS

  my @done = NvmFuzzDamage::damage($image, $seed);
  print "$_->{text}\n" foreach @done;

=head1 DESCRIPTION

Each image gets one to three pieces of damage, which the seed chooses: a structure, one
of its fields, and what becomes of it. In a part of the cases checksums are made right
again, since all else stops at them.

What is done says of itself whether anybody could know of it. C<forged>: contents of a
column, or the identity of a storage, and the checksum that covers them was made right; or
the stamp of another transaction that there was. C<unwritten>: the first version of a row has
no begin stamp any more, as if a run that crashed had handed out its cells and not come to write it, or
it became the version of a transaction that the crash left undecided, of which anything may be there. C<loose>: key or TID of an index
entry, which no checksum covers; nvm.check(..., true) has to know of that, and a query need not.

=cut

package NvmFuzzDamage;

use strict;
use warnings;

use NvmFuzzImage;

# how often which kind
my %weight = (
	header => 3, slot => 4, extent => 6, direntry => 5, lane => 2, locks => 2, lockitem => 1,
	block => 12, version => 24, special => 8, value => 5, free => 2, large => 4, largebytes => 1,
	meta => 3, page => 14, entry => 9, order => 5, key => 3);

my %kind_has_stamps = map { $_ => 1 } qw(version special direntry);

# NvmFuzz counts by these
our @kinds = sort keys %weight;

sub _pick { return $_[ int(rand(@_)) ]; }

# 64 bits
sub _random { return (int(rand(2**32)) << 32) | int(rand(2**32)); }

sub _boundary
{
	my ($size) = @_;
	my $bits = 8 * $size;
	my $max = $bits == 64 ? ~0 : (1 << $bits) - 1;
	return _pick(0, 1, 2, $max, $max - 1, 1 << ($bits - 1), (1 << ($bits - 1)) - 1, 255, 256, 4096, 8191, 8192) & $max;
}

=pod

=over

=item damage(IMAGE, SEED, only => KIND)

=cut

sub damage
{
	my ($image, $seed, %params) = @_;
	my @done;

	srand($seed);
	my @kinds = $params{only} ? ($params{only}) : grep { $_ eq 'free' || $image->things($_) } @kinds;
	my @urn = map { ($_) x $weight{$_} } @kinds;
	my $n = _pick(1, 1, 1, 2, 2, 3);
	push @done, _one($image, _pick(@urn)) foreach 1 .. $n;
	return @done;
}

sub _one
{
	my ($image, $kind) = @_;

	return _free_cell($image) if $kind eq 'free';
	my @all = $image->things($kind);
	# most slots, extents and entries of a kind are alike; what matters is which of its fields
	my $thing = _pick(@all);
	my $seal = rand() < 0.5;
	my $root = $kind eq 'version' && $image->field($thing, 'flags') & NvmFuzzImage::constant('NVM_VF_ROOT');
	my $what;

	if ($kind =~ /^(?:value|largebytes|key)$/)
	{
		$what = _bytes($image, $thing->{at}, $thing->{len});
	}
	elsif ($kind eq 'slot' && rand() < 0.7)
	{
		return _both_copies($image, $thing, \@all, $seal);
	}
	else
	{
		$what = rand() < 0.85 ? _field($image, $thing, \@all) : _whole($image, $thing, \@all);
	}
	# a checksum that was damaged itself stays so
	$seal = 0 if $what =~ /^(?:crc|check)\b/;
	$seal &&= $image->seal($thing);
	return _done($kind, $thing, $what, $seal, unwritten => $what =~ /, undecided$/ || $root && $image->field($thing, 'begin') == 0 ? 1 : 0);
}

sub _done
{
	my ($kind, $thing, $what, $seal, %more) = @_;
	# a line of a page is of its entries, mostly
	my $loose = $kind eq 'key' || ($kind eq 'entry' && $what =~ /^(?:block_hi|block_lo|offset|whole)\b/) ||
	  ($kind eq 'page' && $what =~ /^whole: line/);
	my $forged =
	     $what =~ /^(?:begin|end): .*plausible/
	  || ($seal && ($kind =~ /^(?:value|largebytes|large|direntry)$/
		|| ($kind eq 'version' && $what =~ /^(?:tuple_(?:infomask|infomask2|hoff|bits)|len|flags|whole)\b/)));
	return {
		kind   => $kind,
		dir    => $thing->{dir} // $thing->{id} // $thing->{owner},
		sealed => $seal ? 1 : 0,
		forged => $forged ? 1 : 0,
		loose  => $loose ? 1 : 0,
		text   => "$thing->{label} (at $thing->{at}): $what" . ($seal ? ', checksum made right' : ''),
		%more
	};
}

# One field becomes something else.
sub _field
{
	my ($image, $thing, $all) = @_;
	my $name = _pick(sort keys %{ $thing->{fields} });
	my ($off, $size) = @{ $thing->{fields}{$name} };
	my $at = $thing->{at} + $off;

	return "$name: " . _bytes($image, $at, $size) if $size !~ /^[1248]$/;
	my $old = $image->number($at, $size);
	my $how = _pick(qw(flip flip flip boundary step swap copy random part));
	my $new;
	if ($how eq 'flip') { $new = $old ^ (1 << int(rand(8 * $size))); }
	elsif ($how eq 'boundary') { $new = _boundary($size); }
	elsif ($how eq 'step') { $new = $old + _pick(1, -1, 2, -2, 16, 32, 64, -64); }
	elsif ($how eq 'random') { $new = _random(); }
	elsif ($how eq 'part')
	{
		# of a word that is put together
		my $shift = _pick(0, 8, 12, 15, 16, 32, 35, 48);
		$shift = 0 if $shift >= 8 * $size;
		$new = ($old & ~(0xFFFF << $shift)) | (_boundary(2) << $shift);
	}
	else
	{
		my $other = _pick(@$all);
		my $theirs = $image->number($other->{at} + ($other->{fields}{$name} // [0])->[0], $size);
		$new = $theirs;
		if ($how eq 'swap' && $other->{fields}{$name})
		{
			$image->store($other->{at} + $other->{fields}{$name}[0], $size, $old);
			$image->seal($other) if rand() < 0.5;
			$how = "swapped with $other->{label}";
		}
		else { $how = "copied from $other->{label}"; }
	}
	$image->store($at, $size, $new);
	$how .= ', plausible' if $name =~ /^(?:begin|end)$/ && $kind_has_stamps{ $thing->{kind} } && _plausible($image, $new);
	return sprintf('%s: %x becomes %x (%s)', $name, $old, $image->number($at, $size), $how);
}

# All of it: zeroes, chance, another of its kind, its lines exchanged.
sub _whole
{
	my ($image, $thing, $all) = @_;
	my $len = $thing->{kind} =~ /^(?:block|page|meta)$/ ? 8192 : $thing->{len};
	my $how = _pick(qw(zero random copy exchange line));

	if ($how eq 'zero') { $image->set($thing->{at}, "\0" x $len); }
	elsif ($how eq 'random') { $image->set($thing->{at}, join '', map { chr(int(rand(256))) } 1 .. $len); }
	elsif ($how eq 'line')
	{
		my $at = $thing->{at} + int(rand($len));
		$at -= $at % 64;
		$image->set($at, rand() < 0.5 ? "\0" x 64 : join '', map { chr(int(rand(256))) } 1 .. 64);
	}
	else
	{
		my $other = _pick(@$all);
		my ($mine, $theirs) = map { $image->get($_->{at}, $len) } $thing, $other;
		$image->set($thing->{at}, $theirs);
		$image->set($other->{at}, $mine) if $how eq 'exchange';
		$how .= " with $other->{label}";
		$how .= ', undecided' if $thing->{kind} eq 'version' && grep { _plausible($image, $image->field($_, 'begin')) == 2 } $thing, $other;
	}
	return "whole: $how";
}

# Has a transaction had this stamp?  2: one that had not been decided.
sub _plausible
{
	my ($image, $stamp) = @_;
	my ($slot) = grep { $_->{slot} == $stamp >> 48 } $image->things('slot');

	return 0 unless $slot && $stamp >> 48 < 16384;
	my $counter = $stamp & ((1 << 48) - 1);
	my $undecided = ($image->field($slot, 'word') >> 16) + 1;
	return 0 if $counter == 0 || $counter > $undecided;
	return $counter == $undecided ? 2 : 1;
}

sub _bytes
{
	my ($image, $at, $len) = @_;
	my $n = _pick(1, 1, 4, 64);
	my $from = int(rand($len));
	$n = $len - $from if $from + $n > $len;
	if ($n == 1)
	{
		my $bit = int(rand(8));
		$image->store($at + $from, 1, $image->number($at + $from, 1) ^ (1 << $bit));
		return "bit $bit of byte $from";
	}
	$image->set($at + $from, rand() < 0.3 ? "\0" x $n : join '', map { chr(int(rand(256))) } 1 .. $n);
	return "$n bytes from $from";
}

# The copies of a slot serve for each other: both alike.
sub _both_copies
{
	my ($image, $thing, $all, $seal) = @_;
	my @both = grep { $_->{slot} == $thing->{slot} } @$all;
	my $what = _field($image, $both[0], $all);

	$seal &&= $image->seal($both[0]);
	$image->set($both[1]{at}, $image->get($both[0]{at}, 64));
	return _done('slot', { %{ $both[0] }, label => "slot $thing->{slot}, both copies" }, $what, $seal);
}

# A cell of a block that nothing uses.
sub _free_cell
{
	my ($image) = @_;
	my $block = _pick($image->things('block'));
	my $cell  = 3 + int(rand(253));
	my $at    = $block->{at} + 32 * $cell;

	foreach my $try (0 .. 252)
	{
		$cell = 3 + ($cell - 3 + 1) % 253;
		$at = $block->{at} + 32 * $cell;
		last unless ($image->field($block, 'used' . int($cell / 64)) >> ($cell % 64)) & 1;
	}
	return _done('free', { label => "free cell ($block->{blk},$cell) of storage $block->{dir}", at => $at, dir => $block->{dir} },
		'whole: ' . _bytes($image, $at, 32), 0);
}

=pod

=back

=cut

1;

# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmPowerFail - what a loss of power could have left, and what must be true of it

=head1 SYNOPSIS

  use NvmPowerFail;

  # a rig of NvmCrash whose server ran with simulate => 1, and is dead
  push @problems, NvmPowerFail::images($rig, $salt, [qw(durable any longer inside)]);

=head1 DESCRIPTION

An image is the pool as nvm_crashimage builds it by a seed, together with a copy
of the data directory, whose WAL ends where it had been flushed, or at any later
place up to what had been inserted.  Kinds of images:

=over

=item durable

of the pool, only what is known to be durable

=item any

each line that differs as the seed says

=item longer

the same, and more of the WAL than had been flushed: up to the end of some record,
or not quite

=item twice

after the recovery and a look at everything power is lost again

=item inside

recovered twice: once without a disturbance, and once with power lost at some fence
or failpoint of the recovery, of what settles transactions in doubt, or of the
collector.  The contents must be the same

=back

=cut

package NvmPowerFail;

use strict;
use warnings;

use Cwd qw(abs_path);
use Fcntl qw(SEEK_SET);
use File::Basename;
use NvmCrash;
use NvmLogModel;
use PostgreSQL::Test::Utils;

our @kinds = qw(durable any longer twice inside);

# fences and failpoints that a recovery has at most, from which `inside` chooses
my $inside_hits = 14;

# ---------------------------------------------------------------------- WAL

=pod

=over

=item NvmPowerFail::hook_wal_writes()

Simulated servers that are started from now on know the failpoints wal-write and
wal-written.

=back

=cut

sub hook_wal_writes
{
	$NvmCrash::preload = dirname(abs_path(__FILE__)) . '/powerfail/walhook.so';
	die "no $NvmCrash::preload: make -C test/powerfail" unless -e $NvmCrash::preload;
	return;
}

sub lsn_of
{
	my ($text) = @_;
	my ($high, $low) = $text =~ m,^([0-9A-Fa-f]+)/([0-9A-Fa-f]+)$, or die "no LSN: $text";
	return hex($high) * 2**32 + hex($low);
}

sub _segments
{
	my ($data) = @_;
	return sort grep { m,/[0-9A-F]{24}$, } glob "$data/pg_wal/*";
}

# Number of the segment that a file is.
sub _segment_number
{
	my ($file, $size) = @_;
	my ($high, $low) = $file =~ m,/[0-9A-F]{8}([0-9A-F]{8})([0-9A-F]{8})$, or die $file;
	return hex($high) * (2**32 / $size) + hex($low);
}

=pod

=over

=item NvmPowerFail::wal_records(DATA, LSN)

Where the records begin that a dead server's WAL has beyond LSN, as numbers.

=cut

sub wal_records
{
	my ($data, $lsn) = @_;
	my @files = _segments($data);
	my $size  = -s $files[0];
	my $start = int($lsn / $size) * $size;
	my $text  = sprintf('%X/%X', int($start / 2**32), $start % 2**32);
	my @records;

	# it ends with the error that there is no more
	foreach my $line (split /\n/, qx(pg_waldump -p $data/pg_wal -s $text 2>/dev/null))
	{
		my ($at) = $line =~ m{ lsn: ([0-9A-F]+/[0-9A-F]+),} or next;
		push @records, lsn_of($at) if lsn_of($at) > $lsn;
	}
	return @records;
}

=pod

=item NvmPowerFail::cut_wal(DATA, LSN)

Nothing from LSN on has reached the disk.

=cut

sub cut_wal
{
	my ($data, $lsn) = @_;

	foreach my $file (_segments($data))
	{
		my $size = -s $file;
		my $first = _segment_number($file, $size) * $size;

		next if $first + $size <= $lsn;
		if ($first > $lsn)
		{
			unlink $file or die "$file: $!";
			next;
		}
		open(my $fh, '+<', $file) or die "$file: $!";
		binmode $fh;
		seek($fh, $lsn - $first, SEEK_SET) or die "$file: $!";
		print $fh "\0" x ($first + $size - $lsn);
		close $fh or die "$file: $!";
	}
	return;
}

# How many records of the last image lay, whole or torn, beyond what had been flushed.
our $beyond = 0;

# Where the WAL of an image ends; undef: where it does.
sub _wal_end
{
	my ($rig, $data, $seed, $kind) = @_;
	my $flushed = $rig->{wal_flushed};

	$beyond = 0;
	return unless defined $flushed;
	return $flushed if $kind ne 'longer';
	# a record that begins where it had been flushed to counts; the last one may be
	# there too
	my @records = wal_records($data, $flushed - 1);
	return $flushed unless @records;
	$beyond = 1 + NvmCrash::random("wal/$seed", scalar @records);
	my $end = $records[$beyond];
	# torn: records begin at multiples of 8
	$end -= 8 if defined $end && NvmCrash::random("torn/$seed", 4) == 0;
	return $end;
}

# ------------------------------------------------------------------- images

=pod

=item NvmPowerFail::image(RIG, SEED, KIND)

A rig with what a loss of power at the crash of RIG could have left.

=cut

sub image
{
	my ($rig, $seed, $kind) = @_;
	my $copy = $rig->after_crash;

	$copy->make_image($seed, from => $rig, $kind eq 'durable' ? (mode => 'durable') : ());
	my $end = _wal_end($rig, $copy->{data}, $seed, $kind);
	cut_wal($copy->{data}, $end) if defined $end;
	$copy->{simulate} = $kind =~ /^(?:twice|inside)$/;
	return $copy;
}

# In place of a dead rig's pool and WAL what a second loss of power left of them.
sub _lose_power_again
{
	my ($rig, $seed) = @_;

	$rig->make_image($seed);
	cut_wal($rig->{data}, $rig->{wal_flushed}) if defined $rig->{wal_flushed};
	delete $rig->{wal_flushed};
	return;
}

# Start an image and lose power at some place of what a start has to do.
sub _interrupted
{
	my ($copy, $seed) = @_;
	my $hit = 1 + NvmCrash::random("inside/$seed", $inside_hits);

	if ($copy->start('nvm.failpoint' => "*:power:$hit"))
	{
		# who comes first settles what is in doubt
		$copy->psql("SELECT count(*) FROM ack;\n");
		$copy->wait_dead(1) or $copy->crash;
	}
	$copy->note_power_failure;
	_lose_power_again($copy, $seed + 1);
	return;
}

sub _changed
{
	my ($what, $before, $after) = @_;
	return ("$what: the contents differ: ", $before // 'unknown', $after // 'unknown')
	  if ($before // '') ne ($after // '');
	return;
}

=pod

=item NvmPowerFail::check_image(RIG, SEED, KIND, OPTION => VALUE...)

Problems of one image: it starts, each transaction is whole or absent, what was
acknowledged is there, the checks find nothing, a second recovery finds the same,
and one can go on.  again: also recover a second time where the kind does not
ask for it; what the log has is held against NvmLogModel; write_on: sub (RIG, CLIENT) in place of NvmCrash's, or undef for none;
simulate: the image is of a simulated pool whatever its kind.

=cut

sub check_image
{
	my (@args) = @_;
	my @problems = eval { _check_image(@args) };

	return @problems unless $@;
	die $@ unless $@ =~ /^nvm_poolcheck: /;
	# a finding about an image, before any start
	return split /\n/, $@;
}

sub _check_image
{
	my ($rig, $seed, $kind, %options) = @_;
	my $write_on = exists $options{write_on} ? $options{write_on} : \&NvmCrash::write_on;
	my $copy = image($rig, $seed, $kind);
	my (@expected, @problems);

	$copy->{simulate} = 0 if $kind eq 'inside';
	my $model = $copy->{log_disk} ? NvmLogModel->new($copy->log_directories) : undef;
	push @problems, $model->problems if $model;
	$copy->start or return (@problems, 'no start: ' . $copy->log_since_start);
	push @problems, $copy->verify;
	push @problems, $model->differences($copy) if $model && !@problems;
	if ($kind eq 'twice' || $options{again})
	{
		my $digest = $copy->{digest};
		$copy->crash;
		_lose_power_again($copy, $seed + 1) if $kind eq 'twice';
		$copy->start or return (@problems, 'no second start: ' . $copy->log_since_start);
		push @problems, map { "restarted: $_" } $copy->verify;
		push @problems, _changed('after a second start', $digest, $copy->{digest});
	}
	if ($kind eq 'inside')
	{
		my $digest = $copy->{digest};
		my $again = image($rig, $seed, $kind);
		_interrupted($again, $seed);
		$again->start or return (@problems, 'no start after a crash in recovery: ' . $again->log_since_start);
		# PostgreSQL's checkpoint at the end of recovery writes the files of prepared
		# transactions before pg_control says that it was there; the next recovery
		# removes them, and has the transactions from the WAL
		@expected = (expected => qr/removing future two-phase state file for transaction/);
		push @problems, map { "after a crash in recovery: $_" } $again->verify(@expected);
		push @problems, _changed('after a crash in recovery', $digest, $again->{digest});
		$copy->crash;
		$copy = $again;
	}
	if ($write_on && !@problems)
	{
		push @problems, $write_on->($copy, 90);
		push @problems, map { "after more work: $_" } $copy->verify(collect => 1, @expected);
	}
	$copy->{keep} = 1 if @problems && $ENV{NVM_CRASH_KEEP};
	push @problems, "kept: crashed $rig->{home}, restarted $copy->{home}" if $copy->{keep};
	return @problems;
}

=pod

=item NvmPowerFail::images(RIG, SALT, [KIND, ...], OPTION => VALUE...)

Problems of images of one crash, each with its seed and kind.  seen: a sub that is
called with SEED, KIND, the number of records of WAL beyond what had been flushed, and
problems, after each.

=back

=cut

sub images
{
	my ($rig, $salt, $list, %options) = @_;
	my $seen = delete $options{seen};
	my $seed = $salt;
	my @problems;

	foreach my $kind (@$list)
	{
		$seed++;
		my @found = check_image($rig, $seed, $kind, again => $seed % 5 == 0, %options);
		$seen->($seed, $kind, $beyond, @found) if $seen;
		push @problems, map { "image $seed ($kind): $_" } @found;
		$rig->{keep} = 1 if @found && $ENV{NVM_CRASH_KEEP};
		last if @problems > 20;
	}
	return @problems;
}

1;

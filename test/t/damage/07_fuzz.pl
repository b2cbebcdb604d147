# Copyright (c) 2026, pg_nvm contributors

# Pools that are damaged by chance, with knowledge of their structures (NvmFuzz,
# NvmFuzzDamage): opened, checked, queried, changed, vacuumed and dropped.  Each statement
# gives an error that names the place, or the right answer; nothing crashes, nothing hangs.
#
# NVM_FUZZ_IMAGES, NVM_FUZZ_SEED, NVM_FUZZ_MINUTES, which test/fuzz/run and the tier fuzz set, make
# it a long one; NVM_FUZZ_ONLY is one kind of damage, NVM_FUZZ_KEEP a directory for the
# images with faults.

use strict;
use warnings;

use Fcntl qw(:flock);
use File::Path qw(rmtree);
use NvmCrash;
use NvmFuzz;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $images  = $ENV{NVM_FUZZ_IMAGES} || (NvmTest::is_long() ? 200 : 30);
my $first   = $ENV{NVM_FUZZ_SEED} || 1;
my $minutes = $ENV{NVM_FUZZ_MINUTES} || 0;
my $keep    = $ENV{NVM_FUZZ_KEEP};
my $began   = time();

$ENV{NVM_CRASH_SECONDS} ||= 600;
my $fuzz  = NvmFuzz->new;
my $tally = NvmTest::pool_base() . "/tally_$$";
note(sprintf('%d images from seed %d; bases made in %.1f s', $images, $first, time() - $began));

# one line for each image, of what the table at the end is made
sub note_image
{
	my ($found) = @_;
	open(my $fh, '>>', $tally) or die "$tally: $!";
	flock($fh, LOCK_EX);
	print $fh join("\t", $found->{seed}, $found->{outcome}, $found->{statements}, scalar(@{ $found->{faults} }),
		$found->{poolcheck} // '?', join(',', map { $_->{kind} . ($_->{sealed} ? '+' : '') } @{ $found->{damage} })) . "\n";
	close $fh;
	return;
}

sub job
{
	my ($seed) = @_;
	return {
		name => "seed $seed",
		code => sub {
			my $found = $fuzz->image($seed, only => $ENV{NVM_FUZZ_ONLY}, $keep ? (keep => $keep) : ());
			note_image($found);
			if (!@{ $found->{faults} })
			{
				rmtree("$keep/$seed") if $keep;
				return;
			}
			return ("$found->{base}, $found->{order} first", (map { "damage: $_->{text}" } @{ $found->{damage} }), @{ $found->{faults} });
		}
	};
}

$NvmCrash::enough = sub { return $minutes && time() - $began > 60 * $minutes; };
NvmCrash::run_jobs(map { job($_) } $first .. $first + $images - 1);

# what there was of what, and what became of it
my (%kinds, %outcomes, $n, $statements, $faults);
if (open(my $fh, '<', $tally))
{
	while (my $line = <$fh>)
	{
		chomp $line;
		my ($seed, $outcome, $count, $bad, $poolcheck, $damage) = split /\t/, $line;
		$n++;
		$statements += $count;
		$faults++ if $bad;
		$outcomes{$outcome}++;
		foreach my $kind (split /,/, $damage)
		{
			$kind =~ s/\+$// and $kinds{$kind}{sealed}++;
			$kinds{$kind}{all}++;
			$kinds{$kind}{$outcome}++;
		}
	}
	close $fh;
	unlink $tally;
}
$_ //= 0 foreach $n, $statements, $faults;
note("$n images, $statements statements, $faults images with faults; " . join(', ', map { "$_ $outcomes{$_}" } sort keys %outcomes));
note(sprintf('%-10s %4d, %d with right checksums; %s', $_, $kinds{$_}{all}, $kinds{$_}{sealed} // 0,
		outcome_text($kinds{$_})))
  foreach sort keys %kinds;
cmp_ok($n, '>=', $minutes ? 1 : $images, "$n images were looked at");

sub outcome_text
{
	my ($k) = @_;
	return join(', ', map { "$_ $k->{$_}" } grep { !/^(?:all|sealed)$/ } sort keys %$k);
}

done_testing();

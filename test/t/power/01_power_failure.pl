# Copyright (c) 2026, pg_nvm contributors

# Loss of power at every fence and failpoint there is in the source: after the
# crash, pools that it could have left, each with the data directory and the
# WAL as far as it had been flushed.
#
# Long form: 30 images of up to five crashes at each name of the protocol, 6 at the others;
# here 9 of three, and 2.

use strict;
use warnings;

use NvmCrash;
use NvmCrashScenarios;
use NvmPowerFail;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# images for each fence of the protocol of commit, abort and recovery, and for
# each other one
my ($many, $few) = split /,/, $ENV{NVM_CRASH_IMAGES} || (NvmTest::is_long() ? '30,6' : '4,1');
$few //= $many;
# and how many crashes they are of
my $crashes = NvmTest::is_long() ? 5 : 3;
# NVM_CRASH_ONLY=scenario/name/hit[,...] repeats some
my $only = $ENV{NVM_CRASH_ONLY};

note("seed $NvmCrash::seed");
my %names    = NvmCrash::failpoint_names();
my $base     = NvmCrash::make_base('power');
my %scenario = map { $_->{name} => $_ } NvmCrashScenarios::all();
my @work;

sub is_protocol { return $_[0] =~ /^(?:commit|abort|undo|recovery|resolve|gap|prepare|twophase)-/; }

if ($only)
{
	@work = map { [ split m,/, ] } split m/,/, $only;
}
else
{
	@work = NvmCrashScenarios::choose(
		NvmCrashScenarios::discover($base, simulate => 1, needed => NvmCrashScenarios::needed(\%names)),
		\%names, sub { is_protocol($_[0]) ? $crashes : 1 });
}
my %share;
$share{ $_->[1] }++ foreach @work;

NvmCrash::run_jobs(map { my $w = $_; my $n = images_of($w->[1]);
		{   name => "$w->[0], power failure at hit $w->[2] of $w->[1], $n images"
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
			code => sub { return lose_power(@$w, $n); },
		} } @work);
done_testing();

sub images_of
{
	my ($name) = @_;
	my $n = is_protocol($name) ? $many : $few;
	return POSIX::ceil($n / $share{$name});
}

sub lose_power
{
	my ($s, $name, $nth, $images) = @_;
	my $salt = NvmCrash::random("power/$s/$name", 1_000_000);
	my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
		sub { NvmCrash->new($base, simulate => 1) },
		$scenario{$s}, $name, 'crash', $nth, power => $salt);

	return @problems if @problems;
	# one image of a crash loses power a second time
	return NvmPowerFail::images($rig, $salt, [ ('durable', 'twice', ('any') x $images)[ 0 .. $images - 1 ] ]);
}

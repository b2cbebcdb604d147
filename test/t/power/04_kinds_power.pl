# Copyright (c) 2026, pg_nvm contributors

# Loss of power in transactions of nvm data alone that rest on WAL of others: on a summary
# of a BRIN index, on an index that CREATE INDEX or REINDEX CONCURRENTLY has made under
# synchronous_commit = off, and in those of which a notification tells; and in insertions into
# built-in indexes of all methods.  See NvmCrashKinds.pm.
#
# Before nvm-only was earned (src/xact/README.md) a row was not found by its BRIN index, which
# had been widened or whose summary had been removed by records that were lost; an index came
# back without the entries of transactions that had been acknowledged; and a transaction was
# lost of which a listener had heard.
#
# Long form: each place that a scenario comes to, twice; here a few, three images each.

use strict;
use warnings;

use NvmCrash;
use NvmCrashKinds;
use NvmCrashScenarios;
use NvmPowerFail;
use NvmTest;
use Test::More;

# where each scenario loses power: failpoint => hit
my %points = (
	'brin-covered'      => { 'commit-begin'           => 4 },
	'brin-desummarized' => { 'commit-begin'           => 5 },
	'kinds'             => { 'commit-before-decision' => 4, 'wal-written' => 12 },
	'online-ddl'        => { 'commit-begin'           => 12 },
	'reindex-waits'     => { 'commit-begin'           => 3 },
	'notify'            => { 'commit-begin'           => 1 },);

# NVM_CRASH_ONLY=scenario/name/hit[,...] repeats some
my $only = $ENV{NVM_CRASH_ONLY};

NvmPowerFail::hook_wal_writes();
note("seed $NvmCrash::seed");
my $base     = NvmCrashKinds::base('kinds');
my %scenario = map { $_->{name} => $_ } NvmCrashKinds::all();
my @work;

if ($only)
{
	@work = map { [ split m,/, ] } split m/,/, $only;
}
elsif (NvmTest::is_long())
{
	my $reached = NvmCrashScenarios::discover($base, simulate => 1, scenarios => [ NvmCrashKinds::all() ]);
	foreach my $s (sort keys %$reached)
	{
		foreach my $name (sort keys %{ $reached->{$s} })
		{
			my %hits = map { 1 + NvmCrash::random("hit/$s/$name/$_", $reached->{$s}{$name}) => 1 } 1, 2;
			push @work, map { [ $s, $name, $_ ] } sort { $a <=> $b } keys %hits;
		}
	}
}
else
{
	foreach my $s (sort keys %points)
	{
		push @work, map { [ $s, $_, $points{$s}{$_} ] } sort keys %{ $points{$s} };
	}
}

NvmCrash::run_jobs(map { my $w = $_; {
			name => "$w->[0], power failure at hit $w->[2] of $w->[1]"
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
			code => sub { return lose_power(@$w); } } } @work);
done_testing();

sub lose_power
{
	my ($s, $name, $hit) = @_;
	my $salt = NvmCrash::random("power/$s/$name/$hit", 1_000_000);
	my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
		sub { NvmCrash->new($base, simulate => 1) },
		$scenario{$s}, $name, 'power', $hit, power => $salt);

	return @problems if @problems;
	return NvmPowerFail::images($rig, $salt, [qw(durable longer twice)], write_on => $scenario{$s}{write_on});
}

# Copyright (c) 2026, pg_nvm contributors

# SIGKILL of everything at every fence and failpoint there is in the source,
# each in the midst of several kinds of work.

use strict;
use warnings;

use NvmCrash;
use NvmCrashScenarios;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# how many scenarios for a name: NVM_CRASH_PLACES
my $places = $ENV{NVM_CRASH_PLACES} || (NvmTest::is_long() ? 8 : 2);
# NVM_CRASH_ONLY=scenario/name/hit repeats one
my $only = $ENV{NVM_CRASH_ONLY};

note("seed $NvmCrash::seed");
my %names    = NvmCrash::failpoint_names();
my $base     = NvmCrash::make_base('fences');
my %scenario = map { $_->{name} => $_ } NvmCrashScenarios::all();
my @work;

if ($only)
{
	@work = [ split m,/,, $only ];
}
else
{
	@work = NvmCrashScenarios::choose(NvmCrashScenarios::discover($base), \%names, sub { $places });
}
NvmCrash::run_jobs(map { my $w = $_; { name => "$w->[0], crash at hit $w->[2] of $w->[1]"
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
			code => sub { return crash_and_verify(@$w); } } } @work);
done_testing();

sub crash_and_verify
{
	my ($s, $name, $nth) = @_;
	my $rig = NvmCrash->new($base);
	my ($died, @problems) = NvmCrashScenarios::run($rig, $scenario{$s}, "$name:crash:$nth");

	push @problems, 'test: it did not crash' unless $died;
	$rig->crash if $rig->{pid};

	# with the gaps: what was lost is not seen; two crashes more
	my $lazy = NvmCrash::random("lazy/$s/$name", 3);
	my $digest;
	foreach my $round (1 .. $lazy)
	{
		$rig->start('nvm.collect_gaps' => 'off')
		  or return (@problems, 'no start: ' . $rig->log_since_start);
		push @problems, map { "gaps open, round $round: $_" } $rig->verify;
		push @problems, 'a restart changed the contents: ', $digest, $rig->{digest}
		  if defined $digest && $digest ne ($rig->{digest} // '');
		$digest = $rig->{digest};
		push @problems, map { "gaps open: $_" } $rig->write_on(80 + $round);
		$rig->verify;
		$digest = $rig->{digest};
		$rig->crash;
	}

	# without
	$rig->start or return (@problems, 'no start: ' . $rig->log_since_start);
	push @problems, map { "collected: $_" } $rig->verify(collect => 1);
	push @problems, 'a restart changed the contents: ', $digest, $rig->{digest}
	  if defined $digest && $digest ne ($rig->{digest} // '');
	push @problems, $rig->write_on(90);
	push @problems, map { "after more work: $_" } $rig->verify;
	$digest = $rig->{digest};
	$nth % 2 ? $rig->crash : $rig->stop || push @problems, 'the stop was not clean';
	$rig->start or return (@problems, 'no second start: ' . $rig->log_since_start);
	push @problems, map { "restarted again: $_" } $rig->verify(collect => 1);
	push @problems, 'the second restart changed the contents: ', $digest, $rig->{digest}
	  if $digest ne ($rig->{digest} // '');
	return @problems;
}

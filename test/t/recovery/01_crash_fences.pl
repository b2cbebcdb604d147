# Copyright (c) 2026, pg_nvm contributors

# SIGKILL of everything at every fence and failpoint there is in the source,
# each in the midst of several kinds of work; and death of one process there,
# after which the postmaster starts anew.
#
# Long form: four scenarios a name, here one; the death of one process at every name, here
# at every other one, and at the others the next day.

use strict;
use warnings;

use NvmCrash;
use NvmCrashScenarios;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# how many scenarios for a name: NVM_CRASH_PLACES
my $places = $ENV{NVM_CRASH_PLACES} || (NvmTest::is_long() ? 4 : 1);
# NVM_CRASH_ONLY=scenario/name/hit[,...] repeats some
my $only = $ENV{NVM_CRASH_ONLY};

note("seed $NvmCrash::seed");
my %names    = NvmCrash::failpoint_names();
my $base     = NvmCrash::make_base('fences');
my %scenario = map { $_->{name} => $_ } NvmCrashScenarios::all();
my @work;

if ($only)
{
	@work = map { [ split m,/, ] } split m/,/, $only;
}
else
{
	@work = NvmCrashScenarios::choose(
		NvmCrashScenarios::discover($base, needed => NvmCrashScenarios::needed(\%names)),
		\%names, sub { $places });
}
# one of the ways also with the death of a single process, where that is not
# the postmaster
if (!$only)
{
	my %seen;
	my $turn = int(time / 86400);

	push @work, map { [ @$_, 'panic' ] }
	  grep { NvmTest::is_long() || $turn++ % 2 }
	  grep { $scenario{ $_->[0] }{sessions} && !$seen{ $_->[1] }++ } @work;
}

NvmCrash::run_jobs(map { my $w = $_; {
			name => "$w->[0], " . ($w->[3] // 'crash') . " at hit $w->[2] of $w->[1]"
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
			code => sub { return crash_and_verify(@$w); } } } @work);
done_testing();

sub crash_and_verify
{
	my ($s, $name, $nth, $action) = @_;
	my $digest;

	$action //= 'crash';
	my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
		sub { NvmCrash->new($base, newborn => $scenario{$s}{newborn}) },
		$scenario{$s}, $name, $action, $nth);
	return @problems if @problems;
	if ($scenario{$s}{newborn})
	{
		$rig->start or return 'no start: ' . $rig->log_since_start;
		push @problems, $rig->grow_up;
	}
	if ($action eq 'panic')
	{
		push @problems, map { "one process dead: $_" }
		  $rig->verify(expected => qr/PANIC:  failpoint|terminated by signal 6|because of crash of another/);
		$digest = $rig->{digest};
	}
	$rig->crash if $rig->{pid};

	# with the gaps: what was lost is not seen; up to two crashes more
	foreach my $round (1 .. NvmCrash::random("lazy/$s/$name", 3))
	{
		$rig->start('nvm.collect_gaps' => 'off')
		  or return (@problems, 'no start: ' . $rig->log_since_start);
		push @problems, map { "gaps open, round $round: $_" } $rig->verify;
		push @problems, changed($digest, $rig);
		push @problems, map { "gaps open: $_" } $rig->write_on(80 + $round);
		push @problems, map { "gaps open, after more work: $_" } $rig->verify;
		$digest = $rig->{digest};
		$rig->crash;
	}

	# without
	$rig->start or return (@problems, 'no start: ' . $rig->log_since_start);
	push @problems, map { "collected: $_" } $rig->verify(collect => 1);
	push @problems, changed($digest, $rig);
	push @problems, $rig->write_on(90);
	push @problems, map { "after more work: $_" } $rig->verify;
	$digest = $rig->{digest};
	$nth % 2 ? $rig->crash : $rig->stop || push @problems, 'the stop was not clean';
	$rig->start or return (@problems, 'no second start: ' . $rig->log_since_start);
	push @problems, map { "restarted again: $_" } $rig->verify(collect => 1);
	push @problems, changed($digest, $rig);
	return @problems;
}

sub changed
{
	my ($digest, $rig) = @_;

	return () if !defined $digest || $digest eq ($rig->{digest} // '');
	return ('a restart changed the contents: ', $digest, $rig->{digest} // 'unknown');
}

# Copyright (c) 2026, pg_nvm contributors

# All processes die, and what they had stored, but not flushed, stays in the
# processor's caches.  The server starts, believes what it sees there, collects
# the gaps, goes on to work, and only then power fails.  Or (stop) it is shut down in
# order before it has collected anything, and started again.
#
# Long form: two crashes at each name, and a second round with more work; here one
# where an abort was taking back rows, and one where it was taking back a DROP.

use strict;
use warnings;

use NvmCrash;
use NvmCrashScenarios;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# NVM_CRASH_ONLY=scenario/name/hit[/stop][,...] repeats some
my $only = $ENV{NVM_CRASH_ONLY};

note("seed $NvmCrash::seed");
my %names    = NvmCrash::failpoint_names();
my $base     = NvmCrash::make_base('late');
my %scenario = map { $_->{name} => $_ } NvmCrashScenarios::all();
my @work;

if (!$only && !NvmTest::is_long())
{
	$only = 'abort/abort-undone/1,abort/abort-undone/1/stop,ddl-abort/pool-dir-unend/1';
}
if ($only)
{
	@work = map { [ split m,/, ] } split m/,/, $only;
}
else
{
	@work = NvmCrashScenarios::choose(NvmCrashScenarios::discover($base, simulate => 1),
		\%names, sub { $ENV{NVM_CRASH_PLACES} || 2 });
}

NvmCrash::run_jobs(map { my $w = $_; {
			name => "$w->[0], crash at hit $w->[2] of $w->[1], " . ($w->[3] // 'start') . ', then power failure'
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
			code => sub { return crash_then_lose_power(@$w); } } } @work);
done_testing();

sub crash_then_lose_power
{
	my ($s, $name, $nth, $stop) = @_;
	my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
		sub { NvmCrash->new($base, simulate => 1) }, $scenario{$s}, $name, 'crash', $nth);

	return @problems if @problems;
	if ($stop)
	{
		$rig->start('nvm.simulate_settle' => 'off', 'nvm.collect_gaps' => 'off')
		  or return (@problems, 'no start: ' . $rig->log_since_start);
		$rig->stop or return (@problems, 'the stop was not clean');
	}
	foreach my $round (1 .. (NvmTest::is_long() ? 2 : 1))
	{
		$rig->start('nvm.simulate_settle' => 'off')
		  or return (@problems, "round $round: no start: " . $rig->log_since_start);
		push @problems, map { "round $round: $_" } $rig->write_on(90) if $round == 2;
		push @problems, map { "round $round: $_" } $rig->verify(collect => 1);
		my $digest = $rig->{digest};
		$rig->crash;

		my $copy = $rig->after_crash;
		$copy->make_image(1, from => $rig, mode => 'durable');
		$copy->{simulate} = 0;
		$copy->start
		  or return (@problems, "round $round: no start after power failure: " . $copy->log_since_start);
		push @problems, map { "round $round, after power failure: $_" } $copy->verify(collect => 1);
		push @problems, "round $round: it changed the contents: ", $digest, $copy->{digest}
		  if ($digest // '') ne ($copy->{digest} // '');
	}
	return @problems;
}

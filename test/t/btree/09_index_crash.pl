# Copyright (c) 2026, pg_nvm contributors

# Crashes at every fence and failpoint of nvm_btree, of the redo lanes and of the
# rebuilding of an index that a restart does not keep whole: all
# processes killed, one process dead, power lost.  Afterwards the checker finds
# nothing, each row is found by each of its indexes, and each transaction is
# there or not; with gaps open, after more work, and after a second crash.

use strict;
use warnings;

use NvmCrash;
use NvmCrashBtree;
use NvmCrashScenarios;
use NvmPowerFail;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# how many scenarios for a name, and images of each loss of power
my $places = $ENV{NVM_CRASH_PLACES} || (NvmTest::is_long() ? 6 : 1);
my ($images) = split /,/, $ENV{NVM_CRASH_IMAGES} || (NvmTest::is_long() ? 20 : 1);
# NVM_CRASH_ONLY=scenario/name/hit[/how][,...] repeats some
my $only = $ENV{NVM_CRASH_ONLY};

# Names that nothing reaches, and why.
my %unreachable = (
	'btree-scan-left' => 'stores nothing; t/btree/01_scan stops scans there',
	'pool-redo-make'  => 'the first split of a pool; t/recovery/05_redo_lanes',
	(map { $_ => 'an index that says btree; t/identity/03_form_crash' } qw(btree-failsafe btree-taken-over btree-settle-builds)));

note("seed $NvmCrash::seed");
my %all   = NvmCrash::failpoint_names();
my %names = map { $_ => $all{$_} } grep { NvmCrashBtree::is_ours($_) } keys %all;
my $base  = NvmCrashBtree::base('btree');
my %scenario = map { $_->{name} => $_ } NvmCrashBtree::all();
my @work;

if ($only)
{
	@work = map { [ split m,/, ] } split m/,/, $only;
}
else
{
	my $reached = NvmCrashScenarios::discover($base, scenarios => [ NvmCrashBtree::all() ],
		needed => { map { $_ => 1 } grep { !$unreachable{$_} } keys %names });
	die 'what does not run is not worth a crash' if grep { !$_ } Test::More->builder->summary;
	my @ways = NvmCrashScenarios::ways($reached, \%names, \%unreachable, sub { $places });
	foreach my $w (@ways)
	{
		# one process dead, where that is not the postmaster
		my @kill = $scenario{ $w->[0] }{sessions} ? ('crash', 'panic') : ('crash');

		@kill = $kill[ NvmCrash::random("kill/$w->[1]", scalar @kill) ] unless NvmTest::is_long();
		push @work, map { [ @$w, $_ ] } @kill, 'power';
	}
}

NvmCrash::run_jobs(map { my $w = $_; {
			name => "$w->[0], $w->[3] at hit $w->[2] of $w->[1]"
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
			code => sub { return $w->[3] eq 'power' ? lose_power(@$w) : crash_and_verify(@$w); } } } @work);
done_testing();

sub changed
{
	my ($digest, $rig) = @_;

	return () if !defined $digest || $digest eq ($rig->{digest} // '');
	return ('a restart changed the contents: ', $digest, $rig->{digest} // 'unknown');
}

sub crash_and_verify
{
	my ($s, $name, $nth, $how) = @_;
	my $digest;
	my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
		sub { NvmCrash->new($base) }, $scenario{$s}, $name, $how, $nth);

	return @problems if @problems;
	if ($how eq 'panic')
	{
		push @problems, map { "one process dead: $_" }
		  $rig->verify(expected => qr/PANIC:  failpoint|terminated by signal 6|because of crash of another/);
		$digest = $rig->{digest};
	}
	$rig->crash if $rig->{pid};

	# with the gaps; half of them also write then
	if (NvmCrash::random("lazy/$s/$name", 2))
	{
		$rig->start('nvm.collect_gaps' => 'off')
		  or return (@problems, 'no start: ' . $rig->log_since_start);
		push @problems, map { "gaps open: $_" } $rig->verify;
		push @problems, changed($digest, $rig);
		push @problems, map { "gaps open: $_" } NvmCrashBtree::write_on($rig, 81);
		push @problems, map { "gaps open, after more work: $_" } $rig->verify;
		$digest = $rig->{digest};
		$rig->crash;
	}
	$rig->start or return (@problems, 'no start: ' . $rig->log_since_start);
	push @problems, map { "collected: $_" } $rig->verify(collect => 1);
	push @problems, changed($digest, $rig);
	push @problems, NvmCrashBtree::write_on($rig, 90);
	push @problems, map { "after more work: $_" } $rig->verify;
	$digest = $rig->{digest};
	$nth % 2 ? $rig->crash : $rig->stop || push @problems, 'the stop was not clean';
	$rig->start or return (@problems, 'no second start: ' . $rig->log_since_start);
	push @problems, map { "restarted again: $_" } $rig->verify(collect => 1);
	return @problems;
}

sub lose_power
{
	my ($s, $name, $nth) = @_;
	my $salt = NvmCrash::random("power/$s/$name", 1_000_000);
	my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
		sub { NvmCrash->new($base, simulate => 1) },
		$scenario{$s}, $name, 'crash', $nth, power => $salt);

	return @problems if @problems;
	return NvmPowerFail::images($rig, $salt, [ ('any', 'durable', 'twice', ('any') x $images)[ 0 .. $images - 1 ] ],
		write_on => \&NvmCrashBtree::write_on);
}

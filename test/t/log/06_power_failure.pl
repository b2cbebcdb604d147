# Copyright (c) 2026, pg_nvm contributors

# Loss of power in the midst of work on tables that the log brings back: at each place
# of the log, and at any moment.  An image is the pool, the WAL and the files of the log,
# of which what was not synced is there, torn or missing (NvmLogDisk.pm).  The server
# starts from it, rebuilds the region, and must have what was acknowledged, each
# transaction wholly or not at all, and the same in memory, in the pool and in heap.
# NvmLogModel.pm, which reads the files for itself, must come to the same rows.
#
# Scenarios dirs-... have a log in two directories, each of which loses its own.
#
# Long form: each scenario at each place, here one at each place; 10 moments, here 3.

use strict;
use warnings;

use NvmCrash;
use NvmCrashLog;
use NvmCrashScenarios;
use NvmPowerFail;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $long = NvmTest::is_long();
# NVM_CRASH_ONLY=scenario/name/hit[,...] repeats some
my $only = $ENV{NVM_CRASH_ONLY};
my $images = $ENV{NVM_CRASH_IMAGES} || ($long ? 4 : 2);
my $moments = $long ? 10 : 3;
my @kinds = qw(any longer inside durable twice);

note("seed $NvmCrash::seed");
my %all      = NvmCrash::failpoint_names();
my %names    = map { $_ => $all{$_} } grep { NvmCrashLog::is_log($_) } keys %all;
my $base     = NvmCrashLog::base('log');
my $base2    = NvmCrashLog::base('log2', directories => 2);
my %scenario = map { $_->{name} => $_ } NvmCrashLog::all(), NvmCrashLog::dirs();
# places that no scenario comes to
my %unreachable = (
	'log-directory-made' => 'the base has the directory',
	(map { $_ => 'log/14_directories: a directory fails, or is full' } qw(log-file-left log-first-elsewhere ckpt-remove-other)),
	'log-decision-found'  => 'region/07_memory_file_edges: the start of a memory that was kept',
	'ckpt-remove-orphan' => 'log/07_checkpoint: no process dies alone here',
	'log-decision-stored' => 'region/07_memory_file_edges',
	'rebuild-blocks'     => 'a matter of log/13_recovery: no table here is large',
	(map { ("log-reset-$_" => 'log/16_reset_log') } qw(move moved reclaim reclaimed forgotten)),
	(map { ("rebuild-$_" => 'command/29_recover_calls: nothing is logged alone here') } qw(replay played played-open given-up given-up-kept)),
	'rebuild-late'       => 'a matter of log/17_reserve: memory is not short here',);

# What a second directory has a part in: where a file, or a name, is made in one of them.  The
# short form has those that the list begins with.
my @dirs = (
	map({ [ 'dirs-full-file', $_, 1 ] } qw(log-file-made log-file-noted)),
	map({ [ 'dirs-larger', $_->[0], $_->[1] ] } [ 'log-side-sync', 2 ], [ 'log-synced', 3 ]),
	[ 'dirs-start-side', 'rebuild-remove-side', 1 ],
	[ 'dirs-checkpoint', 'ckpt-rename', 2 ],
	[ 'dirs-checkpoint-files', 'ckpt-removed', 2 ],
	[ 'dirs-starts', 'log-generation-begun', 3 ],
	[ 'dirs-clients', 'any-moment', 1 ],
	map({ [ 'dirs-full-file', $_, 1 ] } qw(log-file-make log-file-rename log-capture log-synced)),
	map({ my $n = $_; map { [ 'dirs-larger', $_, $n ] } qw(log-side-sync log-wait-commit) } 1 .. 3),
	map({ [ 'dirs-start', $_, 1 ] } qw(log-file-made log-generation-begun log-generation-noted)),
	map({ [ 'dirs-checkpoint', $_, 1 ] } qw(ckpt-data-sync ckpt-sync ckpt-renamed ckpt-removed)),
	map({ [ 'dirs-checkpoint-files', $_, 1 ] } qw(ckpt-remove-log ckpt-renamed)),
	map({ [ 'dirs-starts', $_, 4 ] } qw(log-file-made log-generation-noted)),
	map({ [ 'dirs-clients', 'any-moment', $_ ] } 2 .. 10));
my @work;

if ($only)
{
	@work = map { [ split m,/, ] } split m/,/, $only;
}
else
{
	my $reached = NvmCrashScenarios::discover($base, simulate => 1, log => 1, scenarios => [ NvmCrashLog::all() ],
		needed => { map { $_ => 1 } grep { !$unreachable{$_} } keys %names });
	@work = NvmCrashScenarios::ways($reached, \%names, \%unreachable, sub { return $long ? 20 : 1; },
		map { $_->{name} } grep { $_->{costly} } values %scenario);
	# what a reader rests on, where it may be made durable too early
	push @work, map { [ "log-$_->[0]", $_->[1], 1 ] }
	  grep { $reached->{"log-$_->[0]"}{ $_->[1] } }
	  ([ 'reader', 'log-wait-commit' ], [ 'reader-late', 'log-captured' ], [ 'larger', 'log-synced' ]);
	# where the clean run of a table is found, and taken from
	push @work, map { [ 'log-clean', @$_ ] } [ 'vacuum-clean-offered', 2 ], [ 'pool-count-blocks', 1 ], [ 'pool-count-volatile', 1 ],
	  map { [ 'pool-clean-run', $_ ] } 1 .. 4;
	push @work, map { [ 'log-clients', 'any-moment', $_ ] } 1 .. $moments;
	push @work, map { [ 'starts', $_, 3 ] } qw(log-file-made log-generation-begun log-generation-noted);
	push @work, @dirs[ 0 .. ($long ? $#dirs : 8) ];
}

NvmCrash::run_jobs(map { my $w = $_;
		{   name => "$w->[0], power failure at hit $w->[2] of $w->[1], $images images"
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
			code => sub { return lose_power(@$w); },
		} } @work);
done_testing();

sub lose_power
{
	my ($s, $name, $nth) = @_;
	my $salt = NvmCrash::random("power/$s/$name/$nth", 1_000_000);
	my $on = $s =~ /^dirs-/ ? $base2 : $base;

	return cut_off($on, $name, $nth, $salt) if $s =~ /starts$/;
	my ($rig, @problems) = $name eq 'any-moment' ? at_any_moment($on, $s, $nth)
	  : NvmCrashScenarios::run_until_crash(sub { NvmCrashLog::new_rig($on) },
		$scenario{$s}, $name, 'power', $nth, power => $salt);

	return @problems if @problems;
	my @these = ('any', map { $kinds[ ($salt + $_) % @kinds ] } 1 .. $images);
	return NvmPowerFail::images($rig, $salt, [ @these[ 0 .. $images - 1 ] ], write_on => \&NvmCrashLog::write_on);
}

# Power fails when the clients have worked for a while, wherever they are.
sub at_any_moment
{
	my ($on, $s, $nth) = @_;
	my $rig = NvmCrashLog::new_rig($on);

	$rig->start('nvm.log_compression' => 'on') or return ($rig, 'test: no start: ' . $rig->log_since_start);
	my @sessions = map { $rig->session(%$_) } $scenario{$s}{sessions}->('');
	usleep(20_000 + 1000 * NvmCrash::random("moment/$nth", 300));
	$rig->crash;
	return ($rig, map { $rig->end_session($_) } @sessions);
}

# Power fails in the same place of several starts, one after the other.
sub cut_off
{
	my ($on, $name, $times, $salt) = @_;
	my $rig = NvmCrashLog::new_rig($on);

	$rig->start or return 'test: no start: ' . $rig->log_since_start;
	my @problems = $rig->run_sessions({ sql => NvmCrashLog::more() });
	$rig->crash;
	foreach my $n (1 .. $times)
	{
		$rig->make_image($salt + $n);
		return (@problems, "test: start $n does not come to $name: " . $rig->log_since_start)
		  if $rig->start('nvm.failpoint' => "$name:power") || $rig->log_since_start !~ /failpoint $name hit/;
	}
	$rig->make_image($salt);
	$rig->start or return (@problems, 'no start: ' . $rig->log_since_start);
	return (@problems, $rig->verify);
}

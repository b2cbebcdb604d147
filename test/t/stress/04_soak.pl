# Copyright (c) 2026, pg_nvm contributors

# One cluster that lives through everything: clients of all kinds and DDL while it crashes,
# loses power and runs out of room (see NvmSoak.pm and soak/).  Here one crash of each of
# three kinds, and a pool that is full once.
#
# NVM_SOAK_METHOD=nvm_vlog: of tables in memory, and the device of the log fails, too
# (NvmSoakLog.pm).  stress/05_soak_vlog is that.  NVM_SOAK_METHOD=nvm_cmdlog: TPC-C by registered
# functions besides (NvmSoakCommands.pm), stress/06_soak_cmdlog.
#
# NVM_SOAK_MINUTES, which test/soak/run and the tier soak set, makes it a long one:
# cycles of crashes of all kinds, an episode without room, a calm, and a check of
# everything; then what the cluster takes has to have levelled off.
# NVM_SOAK_OUT is where measures and the clients' records go.

use strict;
use warnings;

use NvmCrash;
use NvmSoak;
use NvmSoakMeasure;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time);

my $minutes = $ENV{NVM_SOAK_MINUTES} // 0;
my $method = $ENV{NVM_SOAK_METHOD} // 'nvm';
my $out = $ENV{NVM_SOAK_OUT} // PostgreSQL::Test::Utils::tempdir();

plan skip_all => 'python3-psycopg2 is not installed'
  if !grep { system("$_ -c 'import psycopg2' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);

my $soak = NvmSoak->new(out => $out, method => $method, pool_mb => $minutes ? 384 : 64, go_on => $ENV{NVM_SOAK_GO_ON});
my $ended = eval { $minutes ? long_form() : short_form(); 1; };
diag($@) unless $ended || $@ eq "the soak found something\n";
is(join("\n", $soak->problems), '', 'the soak');
ok($ended, 'it came to its end');
done_testing();
exit 0 if $ended;

# as it was found
if ($ENV{NVM_SOAK_OUT} && defined $soak->node->{_pid})
{
	$soak->node->crash;
}
system('cp', '-a', $soak->node->data_dir, $soak->node->pool_dir, $out) if $ENV{NVM_SOAK_OUT} && $ENV{NVM_SOAK_KEEP};

sub short_form
{
	$soak->start(simulate => 1, clients => $soak->{commands} ? 1 : 3, ddl => 1);
	$soak->tell('go');
	if ($soak->{commands})
	{
		$soak->nap(1.5);
		$soak->{commands}->promote_at_work;
	}
	foreach my $kind ('backend killed', 'failpoint panic', 'all killed')
	{
		$soak->nap(0.7);
		$soak->{commands}->note_mode if $soak->{commands};
		$soak->crash_round($kind);
	}
	$soak->episode('drop');
	if ($soak->{log})
	{
		$soak->{log}->episode('full');
		$soak->{log}->episode('broken', crash => 1);
	}
	$soak->finish;
	if ($soak->{commands})
	{
		cmp_ok($soak->counts->{'calls rehearsed'}, '>', 20, "$soak->{counts}{'calls rehearsed'} calls were rehearsed");
		cmp_ok($soak->counts->{'called again'} // 0, '>', 0, ($soak->{counts}{'called again'} // 0) . ' transactions were called again');
		cmp_ok($soak->counts->{promotions}, '>=', 2, "$soak->{counts}{promotions} promotions");
	}
	is($soak->counts->{'faults of the log met'}, 2, 'twice the log could not be written') if $soak->{log};
	cmp_ok($soak->counts->{committed}, '>', 50, "$soak->{counts}{committed} transactions were acknowledged");
	cmp_ok($soak->counts->{disk_full}, '>', 0, "$soak->{counts}{disk_full} statements found no room");
	is_deeply([ grep { !/^of these|recovery/ } sort keys %{ $soak->{crashes} } ],
		[ 'all killed', 'backend killed', 'failpoint panic' ], 'crashes of three kinds');
	return;
}

sub long_form
{
	my $end = time() + 60 * $minutes;
	my $last_calm = $minutes * 6 < 30 ? 30 : $minutes * 6;
	my $cycle = 0;

	$soak->{verbose} = 1;
	$soak->say("seed $NvmCrash::seed, $minutes minutes; measures and records in $out");
	$soak->start;
	$soak->tell('go');
	if ($soak->{commands})
	{
		$soak->nap(5);
		$soak->{commands}->promote_at_work;
	}
	while (time() < $end - $last_calm)
	{
		one_cycle($cycle++, $end - $last_calm);
		progress();
	}
	$soak->say("the last calm, $last_calm seconds");
	calm('calm at the end', $last_calm);
	$soak->finish;
	verdict();
	return;
}

# Crashes for a minute or two, then calm, then rest.
sub one_cycle
{
	my ($cycle, $end) = @_;
	my $crashes = 10 + $soak->random(8);
	my $episode_at = $soak->random(6);
	my $began = time();

	$soak->{measure}{phase} = 'crashes';
	foreach my $i (0 .. $crashes - 1)
	{
		# on a busy machine each takes longer
		last if time() > $end || ($i >= 6 && time() > $began + 80);
		$soak->{commands}->draw_ddl if $soak->{commands};
		$soak->nap(0.3 + $soak->random(25) / 10);
		if ($i == $episode_at)
		{
			my $how = $soak->choose(qw(drop truncate delete full));
			$soak->episode($how, $soak->random(2) ? (crash => 0.5 + $soak->random(30) / 10) : ());
		}
		if ($soak->{log} && $soak->random(4) == 0)
		{
			$soak->{log}->episode($soak->choose(@NvmSoakLog::faults), crash => $soak->random(3) == 0);
		}
		$soak->{commands}->note_mode if $soak->{commands};
		$soak->crash_round;
	}
	$soak->{commands}->rehearse if $soak->{commands};
	calm('calm', 25);
	$soak->say('replayable/by values: ' . $soak->{commands}->counted) if $soak->{commands};
	$soak->settle;
	# the next cycle with the other kind of crashes
	$soak->start_over(simulate => $cycle % 2 == 0, harsh => $soak->random(2), replica => $soak->random(2));
	$soak->tell('go');
	return;
}

sub calm
{
	my ($name, $seconds) = @_;
	$soak->{measure}{phase} = $name;
	$soak->{what} = $name;
	$soak->nap($seconds);
	return;
}

sub progress
{
	my %stats = $soak->stats;
	my $settled = $soak->{measure}{settled}[-1];
	$soak->say(sprintf('%d transactions, %d crashes, %d DDL statements, %d episodes; %.1f MB of the pool used for %.1f MB',
			$stats{committed}, $soak->counts->{crashes}, $stats{ddl}, $soak->counts->{episodes} // 0,
			$settled->{pool_used} / 1048576, $settled->{live} / 1048576));
	return;
}

sub verdict
{
	my ($problems, $lines) = $soak->{measure}->verdict;
	my %c = %{ $soak->counts };
	my $crashes = join ', ', map { "$soak->{crashes}{$_} $_" } sort keys %{ $soak->{crashes} };
	my $hit = keys %{ $soak->{hit} };

	$soak->say($_) foreach @$lines;
	$soak->say('seconds: ' . join ', ', map { sprintf('%s %.1f', $_, $soak->{spent}{$_}) } sort keys %{ $soak->{spent} });
	$soak->say("crashes: $crashes; at $hit different failpoints");
	$soak->{what} = 'measured';
	local $soak->{go_on} = 1;
	$soak->problem(@$problems);
	my $faults = $soak->{log}
	  ? sprintf('; the log could not be written in %d of %d faults of its device, %d statements refused',
		$c{'faults of the log met'} // 0, $c{'faults of the log'} // 0, $c{log_refused}) : '';
	my $rehearsed = $soak->{commands}
	  ? sprintf('; %d rehearsals of %d calls and %d rows of values, %d promotions, %d starts called %d transactions again, crashes in mode %s',
		map({ $_ // 0 } @c{'rehearsals', 'calls rehearsed', 'rows rehearsed', 'promotions', 'starts that called again', 'called again'}),
		join(', ', map { "$_ $soak->{modes}{$_}" } sort keys %{ $soak->{modes} })) : '';
	my $line = sprintf('soak: %s: %.1f minutes of %s, seed %d: %d transactions acknowledged (%d prepared, %d rolled back, %d refused), '
		  . '%d snapshots, %d crashes, %d restarts, %d DDL statements (%d refused), %d episodes without room (%d statements refused), '
		  . '%d verifications, %d checks by turns, %d of everything%s',
		$soak->problems ? 'FAILED' : 'PASSED', (time() - $soak->{began}) / 60, $method, $NvmCrash::seed,
		@c{qw(committed prepared rolled_back refused snapshots crashes restarts ddl ddl_refused)}, $c{episodes} // 0, $c{disk_full},
		@c{'verifications', 'checks', 'full checks'}, $faults . $rehearsed);
	$soak->say($line);
	append_to_file("$out/verdict", "$line\ncrashes: $crashes\n" . join("\n", @$lines) . "\n");
	return;
}

# Copyright (c) 2026, pg_nvm contributors

# Crashes in the midst of concurrent clients: of the whole server at places
# and moments chosen by chance, several on top of each other, of one backend,
# by loss of power; and clean stops.  The clients (demo/ackclient.c) log each
# id whose COMMIT was answered.
#
# Long form: 8 piles of each kind, 8 images of each loss of power; here 2, and 4.

use strict;
use warnings;

use NvmCrash;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# rounds of each kind
my $rounds = $ENV{NVM_CRASH_ROUNDS} || (NvmTest::is_long() ? 32 : 8);
my $images = NvmTest::is_long() ? 8 : 4;
my $client = PostgreSQL::Test::Utils::tempdir() . '/ackclient';
my $search = 'options=-csearch_path=bench';

compile_client();
note("seed $NvmCrash::seed");
my $base = NvmCrash::make_base('concurrent', fill => sub {
		my ($node) = @_;
		local $ENV{PGOPTIONS} = '-c search_path=bench -c default_table_access_method=nvm';
		$node->safe_psql('postgres', 'CREATE SCHEMA bench');
		system_or_bail('pgbench', '-i', '-q', '-s', '1', '-h', $node->host, '-p', $node->port, 'postgres');
		system_or_bail($client, 'init', '--conninfo', $node->connstr('postgres') . " $search",
			'--table-am', 'nvm');
		$node->safe_psql('postgres', 'CREATE INDEX ON bench.pgbench_history (aid); SET nvm.default_index_method = btree; CREATE INDEX ON bench.pgbench_history USING btree (bid) WHERE tid = 1');
	});
# where processes are likely to be, and the number of hits until they die
my @places = (
	[ 'commit-data', 300 ],           [ 'commit-decided', 300 ],
	[ 'commit-before-decision', 300 ], [ 'commit-after-prepare', 300 ],
	[ 'commit-prepared', 200 ],       [ 'commit-mixed-decided', 200 ],
	[ 'commit-end', 300 ],            [ 'abort-undone', 30 ],
	[ 'abort-mid-undo', 90 ],         [ 'abort-decided', 30 ],
	[ 'update-before-end', 900 ],     [ 'insert-before-begin', 500 ],
	[ 'prune-after-unlink', 200 ],    [ 'space-reclaim', 40 ],
	[ 'space-sanitized', 60 ],        [ 'slot-acquire', 3 ],
	[ 'commit-helped', 5 ],           [ '*', 4000 ]);

sub job
{
	my ($kind, $code) = @_;
	return { name => "$kind (NVM_CRASH_SEED=$NvmCrash::seed)", code => $code };
}

my @jobs;
foreach my $n (1 .. POSIX::ceil($rounds / 4))
{
	push @jobs, job("pile $n of four crashes of all processes", sub { return piled_up($n); });
	push @jobs, job("pile $n of two power failures",  sub { return power_fails($n); });
	push @jobs, job("one backend killed, and clean stops, $n", sub { return one_dies($n); });
}
NvmCrash::run_jobs(@jobs);
done_testing();

sub compile_client
{
	my $source = $INC{'NvmCrash.pm'};
	$source =~ s,test/[^/]*$,demo/ackclient.c,;
	$source = "demo/ackclient.c" unless -e $source;
	my $pg_config = $ENV{PG_CONFIG} // 'pg_config';
	chomp(my $include = qx($pg_config --includedir));
	chomp(my $lib     = qx($pg_config --libdir));
	system_or_bail($ENV{CC} // 'cc', '-O1', '-o', $client, $source, "-I$include", "-L$lib", '-lpq');
	return;
}

# Start the clients in the background.
sub run_clients
{
	my ($rig, $run, $seconds) = @_;
	my $pid = fork();

	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		open(STDIN,  '<',  '/dev/null');
		open(STDOUT, '>>', "$rig->{home}/clients");
		open(STDERR, '>>', "$rig->{home}/clients");
		exec($client, 'run', '--conninfo', conninfo($rig), '--log', "$rig->{home}/acks",
			'--clients', 4 + NvmCrash::random("clients/$run", 5), '--seconds', $seconds,
			'--run', $run, '--seed', $NvmCrash::seed % 1000000 + 1, '--abort-percent', 10,
			'--mode', $run % 3 ? 'nvm-only' : 'mixed')
		  or POSIX::_exit(127);
	}
	return $pid;
}

sub conninfo
{
	my ($rig) = @_;
	return "host=$rig->{home} port=5432 dbname=postgres $search";
}

sub verify_all
{
	my ($rig, $what, %params) = @_;
	my @problems = $rig->verify(%params);

	# the server may have died before it answered any
	append_to_file("$rig->{home}/acks", '');
	my $said = qx($client verify --mode mixed --log $rig->{home}/acks --conninfo '@{[ conninfo($rig) ]}' 2>&1);

	push @problems, "ackclient verify: $said" if $? != 0;
	return map { "$what: $_" } @problems;
}

sub acknowledged
{
	my ($rig) = @_;
	return -s "$rig->{home}/acks" // 0;
}

# Let clients run until the server dies, by itself or by our hand.
sub run_until_crash
{
	my ($rig, $key, $run, %conf) = @_;
	my $by_hand = NvmCrash::random("hand/$key", 3) == 0;
	my ($place, $hits) = @{ $places[ NvmCrash::random("place/$key", scalar @places) ] };
	my $when = NvmCrash::random("when/$key", 4) == 0 ? '1%' : 1 + NvmCrash::random("hits/$key", $hits);

	if (!$by_hand)
	{
		$conf{'nvm.failpoint'}      = "$place:crash:$when";
		$conf{'nvm.failpoint_seed'} = NvmCrash::random("fpseed/$key", 1_000_000);
	}
	my $what = $by_hand ? "killed" : "crash at $conf{'nvm.failpoint'}";
	if ($rig->start(%conf))
	{
		my $pid = run_clients($rig, $run, 1.5);
		if ($by_hand)
		{
			usleep(200_000 + NvmCrash::random("moment/$key", 1_000_000));
			$rig->crash;
		}
		waitpid($pid, 0);
		$rig->crash unless $rig->wait_dead(0);
	}
	return $what;
}

# Four crashes, the collector held back until the last.
sub piled_up
{
	my ($n) = @_;
	my $rig = NvmCrash->new($base);
	my @problems;

	# more if the clients do not get far in that time
	foreach my $i (1 .. 12)
	{
		my $what = "pile $n crash $i: " . run_until_crash($rig, "pile/$n/$i", 10 * $n + $i, 'nvm.collect_gaps' => 'off');
		my $last = $i >= 4 && acknowledged($rig) > 2000;
		$rig->start('nvm.collect_gaps' => $last ? 'on' : 'off')
		  or return (@problems, "$what: no start: " . $rig->log_since_start);
		push @problems, verify_all($rig, $what, collect => $last);
		last if @problems || $last;
		$rig->crash;
	}
	push @problems, 'the clients had nothing acknowledged' unless acknowledged($rig) > 2000;
	return @problems;
}

# Power failures, each with several pools that it could have left; the last of
# them goes on.
sub power_fails
{
	my ($n) = @_;
	my $rig = NvmCrash->new($base, simulate => 1);
	my @problems;

	foreach my $i (1 .. 2)
	{
		my $seed = NvmCrash::random("image/$n/$i", 1_000_000);
		my $what = "power failure $n/$i: " . run_until_crash($rig, "power/$n/$i", 10 * $n + $i,
			'nvm.collect_gaps' => $i == 2 ? 'on' : 'off');
		foreach my $k (1 .. $images)
		{
			my $copy = $rig->after_crash;
			$copy->{simulate} = 0;
			system_or_bail('cp', "$rig->{home}/acks", "$copy->{home}/acks") if acknowledged($rig);
			$copy->make_image($seed + $k, from => $rig, $k == 1 ? (mode => 'durable') : ());
			$copy->start or return (@problems, "$what, image $k: no start: " . $copy->log_since_start);
			push @problems, verify_all($copy, "$what, image " . ($seed + $k), collect => $k % 2);
			if (@problems)
			{
				$rig->{keep} = $copy->{keep} = 1 if $ENV{NVM_CRASH_KEEP};
				return @problems;
			}
		}
		$rig->make_image($seed + $images);
	}
	return @problems;
}

# One backend is killed: the postmaster starts anew.  Then a stop with clients
# at work, which is clean.
sub one_dies
{
	my ($n) = @_;
	my $rig = NvmCrash->new($base, simulate => $n % 2 == 0);
	my @problems;

	$rig->start('restart_after_crash' => 'on', 'nvm.collect_gaps' => 'off') or return 'no start: ' . $rig->log_since_start;
	foreach my $i (1 .. 3)
	{
		my $pid = run_clients($rig, 10 * $n + $i, 10);
		usleep(300_000 + NvmCrash::random("dies/$n/$i", 500_000));
		my $victim = '';
		# on a slow machine they take longer to connect
		for (my $try = 0; $try < 200 && $victim !~ /^\d+$/; $try++)
		{
			usleep(20_000) if $try > 0;
			$victim = $rig->psql("SELECT pid FROM pg_stat_activity WHERE application_name <> 'crash_test'"
				  . " AND backend_type = 'client backend' ORDER BY state = 'active' DESC LIMIT 1;\n");
			chomp $victim;
		}
		if ($victim !~ /^\d+$/)
		{
			push @problems, "test: no backend to kill: $victim";
			last;
		}
		my $opened = $rig->times_opened;
		kill('KILL', $victim);
		waitpid($pid, 0);
		for (my $try = 0; $try < 1000; $try++)
		{
			last if $rig->times_opened > $opened && ($rig->psql("SELECT 'up';\n"))[0] eq "up\n";
			usleep(20_000);
		}
		push @problems, verify_all($rig, "backend $i killed",
			expected => qr/terminated by signal 9|terminating connection because of crash/);
	}
	return @problems if @problems;

	foreach my $i (4 .. 5)
	{
		my $pid = run_clients($rig, 10 * $n + $i, 3);
		usleep(300_000);
		push @problems, 'the stop was not clean' unless $rig->stop;
		waitpid($pid, 0);
		$rig->start or return (@problems, 'no start: ' . $rig->log_since_start);
		push @problems, "a clean stop left losers: $1"
		  if $rig->log_since_start =~ /(recovery found (?!0 losers, 0 in doubt).*)/;
		push @problems, verify_all($rig, 'stopped', collect => 1);
	}
	return @problems;
}

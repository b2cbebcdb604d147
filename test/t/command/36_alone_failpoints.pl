# Copyright (c) 2026, pg_nvm contributors

# Loss of power at each place that calls alone come to: of their commits, of the log, of a
# checkpoint, of DDL beside them; and of the start behind it, which calls again.  Which places these
# are is found out by a run in which all of them sleep for no time, which only logs.  Then, for
# each, a server works (NvmCommuting.pm), loses power there, and its start loses power at another
# one; the next start has what was acknowledged, and the rows of an oracle of heap tables.
#
# Long form: each place at its first and at a later time; here the first time of some.
# NVM_SEED says which.

use strict;
use warnings;

use NvmCommuting;
use NvmCrash;
use NvmPowerFail;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $long = NvmTest::is_long();
my $seed = $ENV{NVM_SEED} || int(rand(1 << 30));
my $only = $ENV{NVM_CRASH_ONLY};    # PLACE[,PLACE]: of the work and of the start
note("seed $seed");
srand($seed);

my %names = NvmCrash::failpoint_names();
my $ours = qr/^(?:log|ckpt|commit|mode|rebuild|recover|resolve|recovery|memory)-/;
my $work = NvmCommuting->new(clients => 2);
my $base = NvmCrash::make_base('alone_failpoints', conf => <<CONF, schema => "CREATE EXTENSION pg_nvm;\n" . $work->schema);
deadlock_timeout = 50ms
max_worker_processes = 16
nvm.checkpoint_interval = 0
nvm.replay_workers = 2
recovery_init_sync_method = syncfs
CONF
my $rig = NvmCrash->new($base, simulate => 1, log => 1);
my (%acked, %count);

sub sql
{
	my ($out, $status, $err) = $rig->psql(join("\n", map { "$_;" } @_));
	die "@_: $err" if $status != 0;
	chomp $out;
	return $out;
}

sub start
{
	my ($failpoint) = @_;
	# what arm() has set; the command line would be stronger than what it sets next
	open(my $auto, '>', "$rig->{data}/postgresql.auto.conf") or die $!;
	close $auto;
	my $up = $rig->start($failpoint ? ('nvm.failpoint' => $failpoint) : ());
	die 'the server does not start: ' . $rig->log_since_start if !$up && !$failpoint;
	return $up;
}

# Two clients of calls, DDL, a checkpoint; until they end, or the server dies
sub do_work
{
	my ($transactions) = @_;
	my @sessions = (map({ $rig->session(sql => $work->session($_, $transactions)) } 1 .. 2), $rig->session(sql => $work->ddl(3)));

	usleep(300_000);
	$rig->psql('SELECT nvm.checkpoint()') unless $rig->wait_dead(0);
	foreach my $s (@sessions)
	{
		waitpid($s->{pid}, 0);
		my $out = slurp_file($s->{out});
		$acked{$1}{$2} = 1 while $out =~ /^ack (\d+) (\d+)$/mg;
		unlink $s->{out}, $s->{err}, $s->{script};
	}
	$rig->psql('SELECT nvm.checkpoint()') unless $rig->wait_dead(0);
	return;
}

sub alone
{
	foreach (1 .. 600)
	{
		sql('SELECT nvm.checkpoint()');
		return if sql('SELECT mode FROM nvm.command_modes WHERE database = current_database()') eq 'alone';
		usleep(50_000);
	}
	die 'calls are not logged alone: ' . sql('SELECT * FROM nvm.command_modes');
}

# some calls alone behind the checkpoint, so that a start has to make them again
sub leave_calls
{
	my @sessions = map { $rig->session(sql => $work->session($_, 10)) } 1 .. 2;

	foreach my $s (@sessions)
	{
		waitpid($s->{pid}, 0);
		my $out = slurp_file($s->{out});
		$acked{$1}{$2} = 1 while $out =~ /^ack (\d+) (\d+)$/mg;
		unlink $s->{out}, $s->{err}, $s->{script};
	}
	return;
}

sub hits { return map { $_ => 1 } grep { exists $names{$_} && /$ours/ } $rig->log_since_start =~ /failpoint "?([a-z0-9-]+)"? hit/g; }

sub lose_power
{
	$rig->note_power_failure;
	$rig->make_image(1 + int(rand(1 << 30)));
	NvmPowerFail::cut_wal($rig->{data}, $rig->{wal_flushed}) if defined $rig->{wal_flushed};
	delete $rig->{wal_flushed};
	return;
}

# of a server that runs; workers read it when they look at their settings
sub arm
{
	my ($failpoint) = @_;
	$rig->psql("ALTER SYSTEM SET nvm.failpoint = '$failpoint'");
	$rig->psql('SELECT pg_reload_conf()');
	usleep(1_200_000);
	return;
}

sub look
{
	my ($name) = @_;
	my @problems = $work->compare(sub { return $rig->psql(@_); }, \%acked);

	push @problems, map { "check: $_" } split /\n/,
	  sql(q{SELECT c.oid::regclass || ': ' || f FROM pg_class c JOIN pg_am a ON a.oid = c.relam, nvm.check(c.oid, heapallindexed => true) f
		WHERE a.amname LIKE 'nvm%' AND c.relkind = 'r'}, 'SELECT f::text FROM nvm.check_pool() f');
	my $stopped = sql("SELECT concat_ws(' ', state, call, problem, detail) FROM nvm.replayed_databases WHERE state <> 'done'");
	push @problems, "a replay is $stopped" if $stopped ne '';
	splice(@problems, 20) if @problems > 20;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join("\n", @problems), '', $name);
	return;
}

# ---- promotion

start();
sql('SELECT nvm.checkpoint()');
foreach my $time (1 .. 8)
{
	leave_calls() foreach 1 .. 4;
	is(sql("SELECT concat_ws('; ', problem, detail, call) FROM nvm.rehearse() WHERE NOT passed"), '', "rehearsed, $time");
	last if sql('SELECT count(DISTINCT proname) FROM nvm.commands c JOIN pg_proc p ON p.oid = c.function WHERE rehearsed IS NOT NULL '
		  . "AND proname = ANY ('{" . join(',', NvmCommuting::good()) . "}')") == NvmCommuting::good();
}
sql("SELECT nvm.promote_command('$_')") foreach split /\n/, sql("SELECT function FROM nvm.commands WHERE rehearsed IS NOT NULL AND state = 'shadow'");
alone();
look('before the first loss');

# ---- which places there are

arm('*:sleep=0');
do_work(20);
my %at_work = hits();
alone();
leave_calls();
$rig->crash;
start('*:sleep=0');
look('a start in which all places sleep for no time');
my %at_start = hits();
delete @at_work{ grep { /^(?:rebuild|recover)-/ } keys %at_work };
# what the settings of a running server reach comes behind the places of a start
delete @at_start{ grep { /^(?:ckpt|mode|commit)-|^log-(?!generation|file)/ } keys %at_start };
note('places of the work: ' . join(' ', sort keys %at_work));
note('places of the start: ' . join(' ', sort keys %at_start));
ok($at_work{$_}, "the work comes to $_") foreach qw(commit-before-decision log-captured log-placed log-write log-sync log-synced ckpt-begin ckpt-walk ckpt-renamed mode-ddl-covered mode-usable mode-flushed);
ok($at_start{$_}, "the start comes to $_") foreach qw(rebuild-replay rebuild-played rebuild-played-open recover-indexes recover-record recover-settle recover-played);

# ---- one after the other

my @work = map { [ $_, 1 ] } sort keys %at_work;
my @starts = map { [ $_, 1 ] } sort keys %at_start;
if ($long)
{
	push @work, map { [ $_, 2 + int(rand(20)) ] } sort keys %at_work;
	push @starts, map { [ $_, 2 + int(rand(5)) ] } sort keys %at_start;
}
else
{
	# another part with each seed
	@work   = @work[ map { (int(rand(@work)) + $_ * 5) % @work } 0 .. 6 ];
	@starts = @starts[ map { (int(rand(@starts)) + $_ * 3) % @starts } 0 .. 4 ];
}
if ($only)
{
	@work   = map { [ $_, 1 ] } grep { /./ } (split /,/, $only)[0] // ();
	@starts = map { [ $_, 1 ] } grep { /./ } (split /,/, $only)[1] // ();
}
while (@work || @starts)
{
	my $name = '';

	note(join('; ', map { $_ ? "$_->[0] $_->[1]" : 'none' } $work[0], $starts[0]));
	$rig->crash if $rig->{pid};
	lose_power();
	start();
	alone();
	leave_calls();
	if (my $place = shift @work)
	{
		arm("$place->[0]:power:$place->[1]");
		do_work(15);
		my $hit = $rig->log_since_start =~ /failpoint "?$place->[0]"? hit/;
		$name = "at $place->[0], time $place->[1]" . ($hit ? '' : ', not reached');
		$count{ $hit ? 'losses at work' : 'places of the work that were not reached' }++;
	}
	$rig->crash if $rig->{pid};
	lose_power();
	if (my $place = shift @starts)
	{
		if (start("$place->[0]:power:$place->[1]"))
		{
			$rig->psql('SELECT count(*) FROM sums');
			$rig->wait_dead(1) or $rig->crash;
		}
		my $hit = $rig->log_since_start =~ /failpoint "?$place->[0]"? hit/;
		$name .= ($name ne '' ? '; ' : '') . "the start at $place->[0], time $place->[1]" . ($hit ? '' : ', not reached');
		$count{ $hit ? 'losses at a start' : 'places of the start that were not reached' }++;
		lose_power();
	}
	start();
	look("power lost $name");
}
note("$_: $count{$_}") foreach sort keys %count;
note('transactions of the oracle: ' . $work->count);
cmp_ok($count{'losses at work'} // 0, '>', 3, 'power was lost at work') unless $only;
cmp_ok($count{'losses at a start'} // 0, '>', 3, 'and at starts') unless $only;
$rig->crash if $rig->{pid};
done_testing();

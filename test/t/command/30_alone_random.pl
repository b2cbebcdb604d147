# Copyright (c) 2026, pg_nvm contributors

# Random schedules of calls that are logged alone, with others between them (NvmSchedule.pm);
# transactions that commute, for which there is an oracle of heap tables (NvmCommuting.pm); DDL of
# what these use.  The server dies at rest, at any moment, at failpoints; the power fails with it,
# or not; a start is cut off by the next one.  Each time what was acknowledged is there, the oracle
# has the same rows, what was at rest has come back row by row, and nvm.check finds nothing.
# NVM_SEED repeats what is drawn.

use strict;
use warnings;

use NvmCommuting;
use NvmCrash;
use NvmPowerFail;
use NvmSchedule;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seed = $ENV{NVM_SEED} // int(rand(1 << 30));
my ($rounds, $steps) = NvmTest::is_long() ? (80, 150) : (10, 40);
note("seed $seed");
srand($seed);

my %names = NvmCrash::failpoint_names();
# of logging and checkpoints; of starts, with all that is done by calling again
my @at_work  = grep { /^(?:log|ckpt|alone|command|mode|promote|commit)-/ && !/reset|directory|decision|first|left/ } sort keys %names;
# between the record of a transaction and its decision
my @of_commit = grep { /^commit-|^log-(?:asked|captured|placed)/ } @at_work;
my @at_start = grep { /^(?:rebuild|replay|recover|log-generation|log-file|resolve)/ } sort keys %names;

my $work = NvmCommuting->new(clients => 2);
my $held_table = "CREATE TABLE held (n int PRIMARY KEY) USING nvm_vlog;\n";
my $base = NvmCrash::make_base('alone_random', conf => <<CONF, schema => "CREATE EXTENSION pg_nvm;\n" . NvmSchedule::schema() . $work->schema . $held_table);
deadlock_timeout = 50ms
max_worker_processes = 16
nvm.checkpoint_interval = 0
# a start after a crash syncs the data directory, and nvm_disk knows of no syncfs()
recovery_init_sync_method = syncfs
CONF
my $rig = NvmCrash->new($base, simulate => 1, log => 1);
my @good = (NvmSchedule::good(), NvmCommuting::good());
my (%acked, %count, $content);

sub below { return int(rand($_[0])); }

sub sql
{
	my ($out, $status, $err) = $rig->psql(join("\n", map { "$_;" } @_));
	die "@_: $err" if $status != 0;
	chomp $out;
	return $out;
}

sub start
{
	my (%conf) = @_;
	return 1 if $rig->start(%conf);
	die 'the server does not start: ' . $rig->log_since_start unless $conf{'nvm.failpoint'};
	return 0;
}

# Sessions of both kinds: the free ones run into errors
sub begin_sessions
{
	my ($free, $transactions, $ddl) = @_;
	return (map({ $rig->session(sql => $work->ddl(100)) } 1 .. $ddl // 0), map({ $rig->session(sql => "\\set ON_ERROR_STOP off\n" . NvmSchedule::session($steps)) } 1 .. $free),
		map { $rig->session(sql => $work->session($_, $transactions)) } 1 .. 2);
}

sub end_sessions
{
	my (@sessions) = @_;

	foreach my $s (@sessions)
	{
		waitpid($s->{pid}, 0);
		my $out = slurp_file($s->{out});
		$acked{$1}{$2} = 1 while $out =~ /^ack (\d+) (\d+)$/mg;
		unlink $s->{out}, $s->{err}, $s->{script};
	}
	return;
}

# What has passed.
sub promote
{
	my @functions = split /\n/, sql("SELECT function FROM nvm.commands WHERE rehearsed IS NOT NULL AND state = 'shadow'");

	sql("SELECT nvm.promote_command('$_')") foreach @functions;
	is(join(' ', grep { my $f = $_; !grep { /^$f\(/ } @functions } @good), '', 'functions that can be replayed were promoted');
	return;
}

# A transaction is prepared over some rounds: checkpoints then begin to read where it was
# written, before what they show.
my ($held, @held) = (0);

sub hold
{
	if ($held)
	{
		return if rand() < 0.6;
		my $how = rand() < 0.7 ? 'COMMIT' : 'ROLLBACK';
		sql("$how PREPARED 'held_$held'");
		push @held, $held if $how eq 'COMMIT';
		$held = 0;
	}
	elsif (rand() < 0.6)
	{
		$held = ++$count{'transactions prepared'};
		sql('BEGIN', "INSERT INTO held VALUES ($held)", "PREPARE TRANSACTION 'held_$held'");
	}
	return;
}

sub wait_alone
{
	sql('SELECT nvm.checkpoint()');
	foreach (1 .. 600)
	{
		return 1 if sql('SELECT mode FROM nvm.command_modes WHERE database = current_database()') eq 'alone';
		usleep(50_000);
	}
	die 'calls are not logged alone: ' . sql('SELECT * FROM nvm.command_modes');
}

sub content
{
	return sql(map { "SELECT '$_', count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM $_ t" } NvmSchedule::tables(),
		qw(sums steps kid loose shared said));
}

# Died: what a loss of power leaves, or not.
sub lose_power
{
	$rig->note_power_failure;
	$rig->make_image(1 + below(1 << 30));
	NvmPowerFail::cut_wal($rig->{data}, $rig->{wal_flushed}) if defined $rig->{wal_flushed};
	delete $rig->{wal_flushed};
	$count{'losses of power'}++;
	return;
}

# Start, cut off by some failpoints, each of which may lose power, too.
sub start_anew
{
	my ($interrupted) = @_;

	foreach (1 .. $interrupted)
	{
		my $name = rand() < 0.5 ? '*' : $at_start[ below(scalar @at_start) ];
		my $point = "$name:power:" . (1 + below($name eq '*' ? int(10**(1 + rand(3))) : 3));
		if (start('nvm.failpoint' => $point))
		{
			# who comes first waits for what is done by calling again
			$rig->psql('SELECT count(*) FROM acct, sums');
			$rig->wait_dead(1) or $rig->crash;
		}
		$count{ $rig->log_since_start =~ /failpoint \S+ hit/ ? 'starts cut off' : 'starts not cut off' }++;
		lose_power();
	}
	start();
	# whoever looks waits for what is done by calling again; a snapshot from before that sees it
	my ($out, $status, $err) = $rig->psql("BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT count(*) > 0 FROM pg_class;\n"
		  . "SELECT count(*) FROM said;\nSELECT count(*) FROM steps;\nCOMMIT;\nSELECT count(*) FROM said;\nSELECT count(*) FROM steps;\n");
	my @seen = split /\n/, $out;
	die "what a start has called again cannot be seen: $out$err" if $status != 0 || "@seen[1, 2]" ne "@seen[3, 4]";
	foreach (split /\n/, sql('SELECT state, transactions FROM nvm.replayed_databases'))
	{
		my ($state, $transactions) = split /\|/;
		die 'a replay is ' . sql('SELECT * FROM nvm.replayed_databases') . ': ' . $rig->log_since_start if $state ne 'done';
		$count{'starts that called again'}++;
		$count{'transactions called again'} += $transactions;
	}
	return;
}

sub look
{
	my ($name) = @_;
	my @problems = $work->compare(sub { return $rig->psql(@_); }, \%acked);

	my $there = sql(q{SELECT coalesce(string_agg(n::text, ' ' ORDER BY n), '') FROM held}, q{SELECT coalesce(string_agg(gid, ' '), '') FROM pg_prepared_xacts WHERE gid LIKE 'held%'});
	push @problems, "held: $there, should be @held and $held" if $there ne "@held\n" . ($held ? "held_$held" : '');
	push @problems, map { "check: $_" } split /\n/,
	  sql(q{SELECT c.oid::regclass || ': ' || f FROM pg_class c JOIN pg_am a ON a.oid = c.relam, nvm.check(c.oid, heapallindexed => true) f
		WHERE a.amname LIKE 'nvm%' AND c.relkind = 'r'}, 'SELECT f::text FROM nvm.check_pool() f');
	splice(@problems, 20) if @problems > 20;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join("\n", @problems), '', $name);
	return;
}

start();
sql('SELECT nvm.checkpoint()');
# until each of them has been drawn
foreach my $time (1 .. 8)
{
	end_sessions(begin_sessions(3, 2 * $steps));
	is(sql("SELECT concat_ws('; ', problem, detail, call) FROM nvm.rehearse() WHERE NOT passed"), '', "rehearsed, $time");
	last if sql('SELECT count(DISTINCT proname) FROM nvm.commands c JOIN pg_proc p ON p.oid = c.function WHERE rehearsed IS NOT NULL '
		  . "AND proname = ANY ('{" . join(',', @good) . "}')") == @good;
}
promote();
look('before the first crash');

foreach my $round (1 .. 2 * $rounds)
{
	# chance, or a slow machine, may have left starts little to call again: then more of what does
	my $more = $round > $rounds;
	last if $more && ($count{'transactions called again'} // 0) > 20 * $rounds;
	my $r = $more ? 0 : rand();
	my $how;

	hold();
	wait_alone() if $more || rand() < 0.6;
	if ($r < 0.3)
	{
		$how = 'at rest';
		end_sessions(begin_sessions(2, $steps));
		$content = content();
		$rig->crash;
	}
	elsif ($r < 0.6)
	{
		$how = 'amid the work';
		my @sessions = begin_sessions(2, 10 * $steps, rand() < 0.7);
		$how .= ', with DDL' if @sessions > 4;
		usleep(100_000 + below(1_500_000));
		$rig->psql('SELECT nvm.checkpoint()') if rand() < 0.3;
		usleep(below(500_000));
		$rig->crash;
		end_sessions(@sessions);
	}
	else
	{
		# at whichever is reached first
		my @points = map { my @of = $_ < 3 ? @of_commit : @at_work; $of[ below(scalar @of) ] . ':power:' . (1 + below(rand() < 0.5 ? 3 : 100)) } 1 .. 5;
		$rig->crash;
		start_anew(0);
		$rig->crash;
		$how = 'at a failpoint';
		start('nvm.failpoint' => join(',', @points)) or $how .= ' of the start';
		if ($rig->{pid})
		{
			my @sessions = begin_sessions(2, 10 * $steps, rand() < 0.7);
			usleep(300_000 + below(1_000_000));
			$rig->psql('SELECT nvm.checkpoint()');
			$rig->wait_dead(2) or $rig->crash;
			end_sessions(@sessions);
		}
		$how = "at $1" if $rig->log_since_start =~ /failpoint "?([a-z-]+)"? hit/;
		$count{ $how =~ /at a/ ? 'failpoints missed' : 'failpoints hit' }++;
	}
	lose_power() if rand() < 0.6 || $rig->log_since_start =~ /failpoint \S+ hit/;
	start_anew(rand() < 0.5 ? 1 + below(2) : 0);
	is(content(), $content, "round $round, $how: row by row") if $how eq 'at rest';
	look("round $round, $how");
}
note("$_: $count{$_}") foreach sort keys %count;
note('transactions of the oracle: ' . $work->count);
cmp_ok($work->count, '>', 20 * $rounds, 'there was work');
cmp_ok($count{'transactions called again'} // 0, '>', 20 * $rounds, 'and starts called again');

# what calls alone leave: of those of the last life one can say so
wait_alone();
end_sessions(begin_sessions(1, $steps));
my ($calls, $values) = split /\|/, sql('SELECT sum(replayable), sum(by_values) FROM nvm.commands');
note("$calls transactions of calls, $values by values in the end");
cmp_ok($calls, '>', 20, 'calls were logged alone');
look('in the end');
$rig->crash;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# The proof by simulated loss of power: see test/README.md, "A proof by loss of
# power".  Run by test/powerfail/run, which has the options; as a TAP test by
# prove, it finds them in NVM_POWERFAIL.

use strict;
use warnings;

use Getopt::Long qw(GetOptionsFromString);
use NvmCrash;
use NvmCrashBtree;
use NvmCrashKinds;
use NvmCrashLog;
use NvmCrashScenarios;
use NvmPowerFail;
use NvmPowerFailFaults;
use NvmPowerFailReport;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# What is run, by what it is about: scenarios of NvmCrashScenarios, NvmCrashBtree,
# NvmCrashKinds and NvmCrashLog.
my @workloads = (
	'nvm-only'   => [qw(nvm sequence late abort prune churn middle helper slots)],
	'mixed'      => [qw(mixed mixed-async helper-heap)],
	'prepared'   => [qw(prepare prepare-ddl prepared-restart prepared-ended)],
	'savepoints' => [qw(savepoint abandoned-undo long-undo)],
	'large'      => [qw(large)],
	'vacuum'     => [qw(vacuum reuse larger)],
	'index'      => [qw(bt-insert bt-first bt-same bt-concurrent bt-update bt-abort bt-vacuum bt-neighbours bt-relax)],
	'ddl'        => [qw(ddl move ddl-abort copy-database bt-build bt-concurrent-build)],
	'growth'     => [qw(grow)],
	(map { $_ => [ NvmCrashKinds::of($_) ] } qw(built-in online-ddl notify)),
	(map { $_ => [ NvmCrashLog::of($_) ] } qw(log log-readers log-start log-dirs)),
	'recovery'   => [qw(after-crash recovery old-marks uncounted in-doubt-lost in-doubt-committed bt-after-crash bt-half-split
		  bt-empty-leaves bt-leaves bt-none bt-relaxed bt-recovery)],);

# Fences that cannot be crashed at here, and why.
my %never = %NvmCrashScenarios::unreachable;

# Hits of one place in one scenario that are tried one by one; beyond, so many of them.
# Of the writes of WAL in transactions that have nvm data as well, more.
my $hits_limit = 6;
my $wal_limit  = 20;
my %both_worlds = map { $_ => 1 } qw(mixed mixed-async helper-heap savepoint prepare prepare-ddl prepared-ended late);

my %opt = (seed => 1, images => 300, minutes => 0, jobs => 0, report => '', limit => 120, reached => '');
my @only_workloads;
my @only;
my $wal_writes = 0;
GetOptionsFromString($ENV{NVM_POWERFAIL} // '', \%opt, 'seed=i', 'images=i', 'minutes=f', 'jobs=i', 'report=s',
	'faults', 'limit=i', 'fault=s@', 'reached=s', 'workload=s' => \@only_workloads, 'only=s' => \@only)
  or die 'wrong options in NVM_POWERFAIL';

$NvmCrash::seed = $opt{seed};
$NvmCrash::jobs = $opt{jobs} if $opt{jobs};
NvmPowerFail::hook_wal_writes();

my $began    = time();
my %workload = @workloads;
my @order    = grep { !ref } @workloads;
my %names    = (NvmCrash::failpoint_names(), 'wal-write' => 'PostgreSQL', 'wal-written' => 'PostgreSQL');
my %scenario = map { $_->{name} => $_ } (NvmCrashScenarios::all(), NvmCrashScenarios::more(), NvmCrashBtree::all(),
	NvmCrashKinds::all(), NvmCrashLog::all(), NvmCrashLog::dirs());
my %workload_of;
foreach my $w (@order)
{
	$workload_of{$_} = $w foreach @{ $workload{$w} };
}
is(join(' ', sort grep { $_ ne 'newborn' } keys %scenario), join(' ', sort keys %workload_of), 'each scenario is of a workload');
foreach my $w (@only_workloads)
{
	die "no workload $w; there are: @order" unless $workload{$w};
}

note("seed $NvmCrash::seed");
my $scratch = NvmTest::pool_base();
my %base;

if ($opt{faults} || $opt{fault})
{
	inject_faults();
}
else
{
	prove_it();
}
done_testing();

# ---------------------------------------------------------------- the proof

# Those about the log have a base of their own, with tables in memory; so have those of
# a log in two directories.  A base is made before there are jobs, which are processes.
sub is_of_log { return $workload_of{ $_[0] } =~ /^log/ ? 1 : 0; }

sub kind_of_base
{
	my ($s) = @_;
	return $workload_of{$s} eq 'log-dirs' ? 'dirs' : is_of_log($s) ? 'log' : 'pool';
}

sub base_of
{
	my ($s) = @_;
	return $base{dirs} //= NvmCrashLog::base('powerdirs', directories => 2) if kind_of_base($s) eq 'dirs';
	return $base{log} //= NvmCrashLog::base('powerlog') if is_of_log($s);
	return $base{pool} //= NvmCrashBtree::base('power', NvmCrashKinds::schema());
}

sub new_rig
{
	my ($s) = @_;
	return NvmCrash->new(base_of($s), simulate => 1, log => is_of_log($s));
}

sub prove_it
{
	my @chosen = @only_workloads ? @only_workloads : @order;
	my $journal = NvmPowerFailReport->new($scratch);
	my @points;

	if (@only)
	{
		@points = map { [ split m,/, ] } map { split /,/ } @only;
		base_of($_->[0]) foreach @points;
	}
	else
	{
		$journal->use_counts("$opt{reached}.counts") if $opt{reached};
		my $reached = discover($journal, map { @{ $workload{$_} } } @chosen);
		@points = crash_points($reached);
	}
	$NvmCrash::enough = sub { return $opt{minutes} && time() > $began + $opt{minutes} * 60; };

	my $images = 0;
	my @jobs;
	foreach my $p (@points)
	{
		my ($s, $name, $hit, $kind, $seed) = @$p;
		die "no scenario $s" unless $scenario{$s};
		my @kinds = defined $kind ? ($kind) : kinds_for("$s/$name/$hit");

		push @jobs, {
			name => "$workload_of{$s}: $s, power failure at hit $hit of $name (--seed $opt{seed} --only $s/$name/$hit)",
			code => sub { return fail_at($journal, $s, $name, $hit, \@kinds, $seed); },
		};
		$images += @kinds;
		last if !@only && $images >= $opt{images};
	}
	my @done = NvmCrash::run_jobs(@jobs);
	note(scalar(@done) . ' of ' . scalar(@jobs) . ' crashes');

	my $text = $journal->text(
		seed      => $opt{seed},
		workloads => [ map { [ $_, $workload{$_} ] } @chosen ],
		names     => \%names,
		never     => \%never,
		wal       => [ $wal_writes, keys %both_worlds ],
		seconds   => time() - $began);
	NvmPowerFailReport::write_file($opt{report} || "$scratch/report.md", $text);
	note($text);
	return if @only || @only_workloads || @done < @jobs;

	# those that another test crashes at need not be among these
	my @missing = grep { !$never{$_} && !$NvmCrashScenarios::elsewhere{$_} } $journal->fences_never(\%names);
	is("@missing", '', 'power was lost at each fence');
	is(join(' ', grep { $journal->crashed_at($_) } sort keys %never), '', 'but at those that are said to be out of reach');
	return;
}

# Which scenario comes to which places; what its flushes and fences did is counted.
# A file of an earlier run of the same code is believed instead.
sub discover
{
	my ($journal, @list) = @_;
	base_of($_) foreach @list;
	return read_reached(@list) if $opt{reached} && -e $opt{reached};
	my @scenarios = map {
		# what a first crash left is not durable yet, as on real hardware
		{ %$_, setting => { %{ $_->{setting} // {} }, 'nvm.simulate_settle' => 'off' } }
	} map { $scenario{$_} } @list;
	my $reached = {};
	foreach my $kind (qw(pool log dirs))
	{
		my @these = grep { kind_of_base($_->{name}) eq $kind } @scenarios or next;
		my $found = NvmCrashScenarios::discover(base_of($these[0]{name}),
			simulate  => 1,
			log       => $kind ne 'pool',
			scenarios => \@these,
			ran       => sub { my ($rig, $s) = @_; $journal->save_counts($rig, $s->{name}) if $journal; });
		$reached = { %$reached, %$found };
	}

	delete $reached->{$_}{'wal-write'} foreach keys %$reached;
	die 'what does not run is not worth a crash' if grep { !$_ } Test::More->builder->summary;
	write_reached($journal, $reached) if $opt{reached};
	return $reached;
}

sub write_reached
{
	my ($journal, $reached) = @_;
	my $text = '';

	foreach my $s (sort keys %$reached)
	{
		$text .= "$s $_ $reached->{$s}{$_}\n" foreach sort keys %{ $reached->{$s} };
	}
	NvmPowerFailReport::write_file($opt{reached}, $text);
	$journal->keep_counts("$opt{reached}.counts") if $journal;
	return;
}

sub read_reached
{
	my %wanted = map { $_ => 1 } @_;
	my %reached;

	foreach my $line (split /\n/, slurp_file($opt{reached}))
	{
		my ($s, $name, $hits) = split ' ', $line;
		$reached{$s}{$name} = $hits if $wanted{$s};
	}
	return \%reached;
}

sub shuffled
{
	my ($salt, @list) = @_;
	return map { $_->[0] } sort { $a->[1] <=> $b->[1] || "@{$a->[0]}" cmp "@{$b->[0]}" }
	  map { [ $_, NvmCrash::random("$salt/@$_", 1 << 30) ] } @list;
}

# Crash points, those first that cover most: each place once, then each with each
# workload, then each with each scenario, then other hits.  All hits of a place
# while they are few.
sub crash_points
{
	my ($reached) = @_;
	my (@all, @passes, %seen);

	foreach my $s (sort keys %$reached)
	{
		foreach my $name (sort grep { $names{$_} } keys %{ $reached->{$s} })
		{
			my $n = $reached->{$s}{$name};
			my $wal = $name eq 'wal-written' && $both_worlds{$s};
			my $limit = $wal ? $wal_limit : $hits_limit;
			my @hits = $n <= $limit ? (1 .. $n)
			  : (1, $n, map { 2 + NvmCrash::random("hit/$s/$name/$_", $n - 2) } 3 .. $limit);
			$wal_writes += $n if $wal;
			my %hits = map { $_ => 1 } @hits;
			push @all, map { [ $s, $name, $_ ] } sort { $a <=> $b } keys %hits;
		}
	}
	foreach my $p (shuffled('plan', @all))
	{
		my ($s, $name) = @$p;
		my $costly = $scenario{$s}{costly} ? 1 : 0;
		# where the cheap ones come as well, the costly wait
		my $pass = !$seen{$name}++ && !$costly ? 0
		  : !$seen{"$workload_of{$s}/$name"}++ ? 1
		  : !$seen{"$s/$name"}++ ? 2 : 3;
		push @{ $passes[$pass] }, $p;
	}
	my %covered = map { $_->[1] => 1 } @{ $passes[0] // [] };
	my @rest;
	# names that only costly scenarios come to
	foreach my $p (map { @{ $_ // [] } } @passes[ 1 .. 3 ])
	{
		if (!$covered{ $p->[1] }++) { push @{ $passes[0] }, $p; }
		else { push @rest, $p; }
	}
	# fences before other places, then the writes of WAL in transactions of both
	# worlds, and then the workloads in turn
	my %fence = map { $_ => 1 } NvmPowerFailReport::fences();
	my @first = grep { $fence{ $_->[1] } } @{ $passes[0] // [] };
	@rest = ((grep { !$fence{ $_->[1] } } @{ $passes[0] // [] }), @rest);
	push @first, grep { $_->[1] eq 'wal-written' && $both_worlds{ $_->[0] } } @rest;
	@rest = grep { $_->[1] ne 'wal-written' || !$both_worlds{ $_->[0] } } @rest;
	my %queue;
	push @{ $queue{ $workload_of{ $_->[0] } } }, $_ foreach @rest;
	while (my @left = grep { @{ $queue{$_} // [] } } @order)
	{
		push @first, map { shift @{ $queue{$_} } } @left;
	}
	return @first;
}

# Kinds of images of one crash
sub kinds_for
{
	my ($point) = @_;
	return ('durable', $point =~ m,/wal-, || NvmCrash::random("longer/$point", 2) ? 'longer' : 'any',
		NvmCrash::random("again/$point", 2) ? 'twice' : 'inside');
}

# Lose power there, and look at images.  seed: of one image that is to be looked at;
# quick: look at it, and do not go on working.
sub fail_at
{
	my ($journal, $s, $name, $hit, $kinds, $seed, $quick) = @_;
	my $salt = NvmCrash::random("power/$s/$name/$hit", 1_000_000);
	my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
		sub { new_rig($s) },
		$scenario{$s}, $name, 'power', $hit, power => $salt);

	return @problems if @problems;
	my $write_on = $scenario{$s}{write_on} // ($s =~ /^bt-/ ? \&NvmCrashBtree::write_on
		: is_of_log($s) ? \&NvmCrashLog::write_on : \&NvmCrash::write_on);
	return NvmPowerFail::images($rig, defined $seed ? $seed - 1 : $salt, $kinds,
		write_on => $quick ? undef : $write_on,
		seen     => sub {
			my ($image, $kind, $beyond, @found) = @_;
			$journal->note_image($workload_of{$s}, $s, $name, $hit, $kind, $image, $beyond, scalar @found);
		});
}

# --------------------------------------------------------------- the faults

sub inject_faults
{
	my @faults = NvmPowerFailFaults::all($opt{fault} // []);
	my %needed = map { $_ => 1 } map { @{ $workload{$_} // die "no workload $_" } } map { @{ $_->{workloads} } } @faults;
	foreach my $fault (@faults)
	{
		my @unknown = grep { !$needed{$_} } @{ $fault->{scenarios} };
		die "$fault->{name}: of no workload that it names: @unknown" if @unknown;
	}
	my $reached = discover(undef, sort keys %needed);
	my @points = crash_points($reached);
	my $builds = NvmPowerFailFaults->new($scratch);
	my @lines;

	foreach my $fault (@faults)
	{
		my $caught = hunt($builds, $fault, @points);

		push @lines, [ $fault->{name}, $fault->{title}, $caught ];
		$builds->unpatch($fault);
		next unless ok(ref $caught, "$fault->{name} is caught: $fault->{title}");
		note("caught by --seed $opt{seed} --only $caught->{point}, $caught->{images} images: $caught->{problem}");
		# what is not broken passes the same
		my ($s, $name, $hit, $kind, $seed) = split m,/, , $caught->{point};
		next unless defined $kind;
		is(join("\n", fail_at(NvmPowerFailReport->new($scratch), $s, $name, $hit, [$kind], $seed, 1)), '',
			"$fault->{name}: without it the same image is sound");
	}
	NvmPowerFailReport::write_file($opt{report} || "$scratch/faults.md", NvmPowerFailReport::faults_text($opt{seed}, @lines));
	return;
}

# Lose power until something is wrong.  What it was, or undef.
sub hunt
{
	my ($builds, $fault, @points) = @_;
	my %wanted = map { $_ => 1 } map { @{ $workload{$_} } } @{ $fault->{workloads} };
	my %near = map { $_ => 1 } @{ $fault->{at} };
	my %first = map { $_ => 1 } @{ $fault->{scenarios} };
	my @mine = grep { $wanted{ $_->[0] } } @points;
	my $journal = NvmPowerFailReport->new("$scratch/$fault->{name}");
	my @jobs;

	$builds->patch($fault) or return;
	# at the fences that it is said to be about, first, in turn; before that, in the scenarios
	# that it is said to be about
	my (%turn, %rank);
	$rank{$_} = keys %rank foreach @{ $fault->{at} };
	my @near = sort { $a->[0] <=> $b->[0] || $rank{ $a->[1][1] } <=> $rank{ $b->[1][1] } }
	  map { [ $turn{ $_->[1] }++, $_ ] } grep { $near{ $_->[1] } } @mine;
	@mine = ((map { $_->[1] } @near), (grep { !$near{ $_->[1] } } @mine));
	@mine = ((grep { $first{ $_->[0] } } @mine), (grep { !$first{ $_->[0] } } @mine));
	my $images = 0;
	foreach my $p (@mine)
	{
		my ($s, $name, $hit) = @$p;
		my @kinds = $near{$name} ? ('durable', 'any', 'any', 'longer') : ('durable', 'any');

		push @jobs, { name => "$s/$name/$hit", code => sub { return fail_at($journal, $s, $name, $hit, \@kinds, undef, 1); } };
		$images += @kinds;
		last if $images >= $opt{limit};
	}
	my $found;
	local $NvmCrash::enough = sub { return defined $found; };
	local $NvmCrash::report = sub {
		my ($job, @problems) = @_;
		return if $found || !@problems;
		# a scenario that does not come so far has not met the fault
		return if !grep { !/^test: / } @problems;
		my ($kind, $seed) = $problems[0] =~ /^image (\d+) \((\w+)\)/ ? ($2, $1) : ();
		$found = {
			point   => join('/', $job->{name}, $kind // (), $seed // ()),
			problem => $problems[0],
		};
	};
	NvmCrash::run_jobs(@jobs);
	$found->{images} = $journal->images if $found;
	return $found;
}

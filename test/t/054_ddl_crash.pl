# Copyright (c) 2026, pg_nvm contributors

# DDL of every kind, and the death of the server at the fences and failpoints
# that it comes to: by SIGKILL, and by loss of power.  Either the old or the new
# state is there afterwards, whole, and no unit of the pool is lost.
#
# Long form: every place that each kind comes to, by SIGKILL and by loss of power; here one of
# each kind, the latter of half of them.

use strict;
use warnings;

use NvmCrash;
use NvmDdl;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# places for each kind, 0 for all of them; images of each loss of power
my ($kills, $failures, $images) = NvmTest::is_long() ? (0, 0, 3) : (1, 1, 1);
# NVM_CRASH_ONLY=kind/name/hit/kill|power[,...] repeats some
my $only = $ENV{NVM_CRASH_ONLY};

note("seed $NvmCrash::seed");
my $base = NvmCrash::make_base('ddl', fill => \&NvmDdl::fill);
my @only = map { [ split m,/, ] } split m/,/, $only // '';
my %kinds = map { $_->[0] => 1 } @only;
my $learned = NvmDdl::learn($base, grep { !@only || $kinds{$_} } map { $_->{name} } @NvmDdl::kinds);
my $turn = 0;
my @work = @only ? @only : map {
	(choose($_, 'kill', $kills),
		# half of the kinds lose power too
		$failures == 0 || $turn++ % 2 == NvmCrash::random('turn', 2) ? choose($_, 'power', $failures) : ())
} @NvmDdl::kinds;

foreach my $kind (@only ? () : map { $_->{name} } @NvmDdl::kinds)
{
	my ($before, $after) = map { $learned->{$_}{after}[0] } 'none', $kind;
	if ($kind =~ /^(?:cluster|vacuum-full|reindex|much-undone)$/) { is($after, $before, "$kind: changes nothing that is seen"); }
	else { isnt($after, $before, "$kind: has an effect"); }
	my $n = keys %{ $learned->{$kind}{reached} };
	if (NvmDdl::kind($kind)->{quiet}) { is($n, 0, "$kind: comes to no fence"); }
	else { cmp_ok($n, '>', 3, "$kind: comes to fences and failpoints"); }
}

NvmCrash::run_jobs(map { my $w = $_;
		{   name => "$w->[0], $w->[3] at hit $w->[2] of $w->[1]"
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
			code => sub { return die_at(@$w); },
		} } @work);
done_testing();

# Places of a kind: the order is the seed's, and of each place one hit.
sub choose
{
	my ($kind, $how, $n) = @_;
	my $reached = $learned->{ $kind->{name} }{reached};
	my @names = sort { NvmCrash::random("$kind->{name}/$how/$a", 1 << 30) <=> NvmCrash::random("$kind->{name}/$how/$b", 1 << 30) }
	  sort keys %$reached;

	# where there are none, at any moment
	return map { [ $kind->{name}, 'moment', $_, $how ] } 1 .. ($n || 5) if $kind->{quiet} && $how eq 'kill';
	splice(@names, $n) if $n && @names > $n;
	return map { [ $kind->{name}, $_, 1 + NvmCrash::random("hit/$kind->{name}/$how/$_", $reached->{$_}), $how ] } @names;
}

sub die_at
{
	my ($name, $place, $hit, $how) = @_;
	my $kind = NvmDdl::kind($name);
	my $power = $how eq 'power';
	my $rig = NvmCrash->new($base, simulate => $power);
	my @problems;

	if ($place eq 'moment')
	{
		my $ms = NvmCrash::random("moment/$name/$hit", 400);
		NvmDdl::run($rig, $kind, '', sub { select(undef, undef, undef, $ms / 1000); $rig->crash; });
	}
	else
	{
		NvmDdl::run($rig, $kind, "$place:crash:$hit");
		return 'test: it did not crash' unless $rig->wait_dead(20);
	}
	if (!$power)
	{
		$rig->start or return 'no start: ' . $rig->log_since_start;
		push @problems, NvmDdl::verify($rig, $kind, $learned);
		# what recovery made of it is the same at the next start
		$rig->crash;
		$rig->start or return (@problems, 'no second start: ' . $rig->log_since_start);
		return (@problems, map { "restarted: $_" } NvmDdl::verify($rig, $kind, $learned));
	}
	my $salt = NvmCrash::random("image/$name/$place", 1_000_000);
	foreach my $i (1 .. $images)
	{
		my $copy = $rig->after_crash;
		$copy->make_image($salt + $i, from => $rig);
		$copy->{simulate} = 0;
		if (!$copy->start)
		{
			push @problems, "image $i: no start: " . $copy->log_since_start;
			next;
		}
		push @problems, map { "image $i: $_" } NvmDdl::verify($copy, $kind, $learned);
	}
	return @problems;
}

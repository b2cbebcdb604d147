# Copyright (c) 2026, pg_nvm contributors

# nvm.memory_directory: all processes die at a named place, the postmaster too, in transactions that
# write both regions, or the volatile one alone.  What lies in memory is in no log, so what the next
# start has is what it has found there: each transaction is whole or absent, in the pool, in
# memory and in heap, and acknowledged ones are there.  WAL that nobody has waited for is lost.
# So it is with a log, where nothing is read from it.
#
# Long form: three ways at each place that is reached, here one at each place of the protocol.

use strict;
use warnings;

use NvmCrash;
use NvmCrashRegion;
use NvmCrashScenarios;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

plan skip_all => 'no tmpfs for the memory of a server'
  unless NvmTest::is_tmpfs(NvmTest::pool_base());

my %names = NvmCrash::failpoint_names();
note("seed $NvmCrash::seed");
my @only = NvmCrashRegion::only();

sub is_protocol { return $_[0] =~ /^(?:commit|abort|undo|slot|prepare|twophase|btree-settle|log|memory)/; }

# without a log, and with one
foreach my $log (0, 1)
{
	my $base = NvmCrashRegion::make_base("killed_$log",
		tables => $log ? [qw(ack acct hist)] : [qw(ack hist ix large)],
		$log ? (conf => "nvm_dram.log = on\n", without => qr/INSERT INTO acct/) : ());
	my %chosen = map { $_ => 1 } qw(nvm mixed mixed-async abort savepoint large helper vacuum slots), $log ? () : qw(abandoned-undo prepare);
	my @scenarios = grep { $chosen{ $_->{name} } } NvmCrashScenarios::all();
	@scenarios = map { { %$_, before => "INSERT INTO acct SELECT i, 1000, 0, repeat('p', 250) FROM generate_series(1, 200) i;\n" . ($_->{before} // '') } } @scenarios
	  if $log;
	my @work = @only;
	if (!@work)
	{
		my $reached = NvmCrashRegion::discover($base, \@scenarios);
		my %here = map { $_ => $names{$_} }
		  grep { my $name = $_; $names{$name} && ($log ? $name =~ /^log-/ : NvmTest::is_long() || is_protocol($name)) }
		  map { keys %$_ } values %$reached;
		ok($here{$_}, "$_ is reached") foreach $log ? qw(log-placed log-asked log-synced)
		  : qw(commit-after-prepare commit-before-decision slot-exchange abort-mid-undo prepare-asked twophase-decided);
		@work = NvmCrashScenarios::ways($reached, \%here, {}, sub { NvmTest::is_long() ? 3 : 1 });
	}
	NvmCrashRegion::kill_at($base, \@scenarios, undef, @work);
	last if @only;
}
done_testing();

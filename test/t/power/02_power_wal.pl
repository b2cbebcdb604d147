# Copyright (c) 2026, pg_nvm contributors

# Loss of power around PostgreSQL's own writes of WAL, in transactions of both worlds,
# and WAL that goes on beyond what had been flushed: to the end of any record, or
# not quite.  t/power/01_power_failure has the WAL as far as it was flushed, and more places.
#
# Long form: more writes of more scenarios, three images of each kind; here two writes
# of some, and one image.

use strict;
use warnings;

use NvmCrash;
use NvmCrashScenarios;
use NvmPowerFail;
use NvmPowerFailReport;
use NvmTest;
use Test::More;

# what writes WAL: scenario => writes in it, or fewer
my %writes = NvmTest::is_long()
  ? (mixed => 4, 'mixed-async' => 4, 'helper-heap' => 3, savepoint => 2, ddl => 6, prepare => 8, 'prepare-ddl' => 8, vacuum => 4)
  : (mixed => 2, prepare => 2, ddl => 2);
my $times = NvmTest::is_long() ? 3 : 1;

NvmPowerFail::hook_wal_writes();
note("seed $NvmCrash::seed");
my $base     = NvmCrash::make_base('wal');
my %scenario = map { $_->{name} => $_ } NvmCrashScenarios::all();
my $journal  = NvmPowerFailReport->new(NvmTest::pool_base());
my @points;

foreach my $s (sort keys %writes)
{
	push @points, map { [ $s, 'wal-written', $_ ] } 1 .. $writes{$s};
	push @points, [ $s, 'wal-write', 1 + NvmCrash::random("write/$s", $writes{$s}) ] if NvmTest::is_long();
}
# records that are not flushed, of a transaction that has not come to its end
push @points, [ 'mixed', 'commit-begin', 2 ];

NvmCrash::run_jobs(map { my $p = $_; {
			name => "$p->[0], power failure at hit $p->[2] of $p->[1] (NVM_CRASH_SEED=$NvmCrash::seed)",
			code => sub { return lose_power(@$p); } } } @points);

my @images = $journal->all_images;
cmp_ok(scalar(grep { $_->{records} > 0 } @images), '>', 0, 'some images have WAL that had not been flushed');
cmp_ok(scalar(@images), '>=', 2 * @points, 'images were looked at');
done_testing();

sub lose_power
{
	my ($s, $name, $hit) = @_;
	my $salt = NvmCrash::random("wal/$s/$name/$hit", 1_000_000);
	my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
		sub { NvmCrash->new($base, simulate => 1) },
		$scenario{$s}, $name, 'power', $hit, power => $salt);

	return @problems if @problems;
	push @problems, 'test: it is not known how far the WAL had been flushed' unless defined $rig->{wal_flushed};
	return (@problems, NvmPowerFail::images($rig, $salt, [ ('longer', 'inside') x $times ],
		write_on => undef,
		seen     => sub {
			my ($seed, $kind, $beyond, @found) = @_;
			$journal->note_image('wal', $s, $name, $hit, $kind, $seed, $beyond, scalar @found);
		}));
}

# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmCrashRegion - deaths of a process in transactions that write the volatile region

=head1 SYNOPSIS

  my $base = NvmCrashRegion::make_base('deaths', conf => $conf, tables => [qw(ack hist ix large)]);
  my $reached = NvmCrashRegion::discover($base, \@scenarios);
  NvmCrashRegion::die_at($base, \@scenarios, @ways);

=head1 DESCRIPTION

The tables of NvmCrash, some of which lie in memory, and the scenarios of
NvmCrashScenarios.  A process dies at a named place, the postmaster starts anew and
keeps the memory.  Only kill_at crashes the server: a restart empties a region that is no
file.

=cut

package NvmCrashRegion;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmCrash;
use NvmCrashScenarios;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

our $module = dirname(abs_path(__FILE__)) . '/tools/nvm_dram';
our $conf   = "shared_preload_libraries = 'pg_nvm,$module'\nnvm_dram.size = 192MB\n";
our $method = <<SQL;
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$module' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
SQL

=pod

=over

=item NvmCrashRegion::make_base(NAME, tables => [NAME, ...], conf => TEXT, without => REGEXP)

As NvmCrash::make_base, with these tables in memory, and without the lines of the
schema that match.

=cut

sub make_base
{
	my ($name, %params) = @_;
	my $tables = join('|', @{ $params{tables} });
	my $schema = NvmCrash::slurp_schema();

	$schema =~ s/(CREATE EXTENSION pg_nvm;\n)/$1$method/;
	$schema =~ s/(CREATE TABLE (?:$tables) \([^;]*\)) USING nvm;/$1 USING nvm_dram;/g;
	$schema =~ s/a\.amname = 'nvm'/a.amname IN ('nvm', 'nvm_dram')/g;
	$schema =~ s/^.*$params{without}.*\n//mg if $params{without};
	is(() = $schema =~ /USING nvm_dram;/g, scalar @{ $params{tables} }, 'some tables lie in memory');
	return NvmCrash::make_base($name, conf => $conf . ($params{conf} // ''), schema => $schema);
}

# gaps are collected by the keeper, which some scenarios have sleep
sub _collects { return !$_[0]{setting}{'nvm.horizon_naptime'}; }

=pod

=item NvmCrashRegion::discover(BASE, SCENARIOS)

Runs each scenario without a death.  Returns scenario => { name => hits }, as
NvmCrashScenarios::discover, and what comes up as tests.

=cut

sub discover
{
	my ($base, $scenarios) = @_;
	my %reached;
	my $files = NvmTest::pool_base() . "/reached_$$" . '_';

	NvmCrash::run_jobs(map { my $s = $_; my $file = "$files$s->{name}";
			{   name => "$s->{name}: runs, and leaves everything whole",
				code => sub {
					my $rig = NvmCrash->new($base);
					my ($died, @problems) = NvmCrashScenarios::run($rig, $s, '*:sleep=0');
					my $log = $rig->log_since_start;
					my %count;
					$count{$2}{$1}++ while $log =~ /failpoint (\S+) hit, pid (\d+)/g;
					foreach my $pid (keys %count)
					{
						next if $s->{asleep} && join(' ', %{ $count{$pid} }) eq "$s->{asleep} 1";
						append_to_file($file, "$s->{name} $_ $count{$pid}{$_}\n") foreach keys %{ $count{$pid} };
					}
					push @problems, verify_whole($rig, collect => _collects($s));
					push @problems, 'the stop was not clean' unless $rig->stop;
					return @problems;
				} } } sort { $a->{name} cmp $b->{name} } @$scenarios);
	foreach my $file (glob "$files*")
	{
		foreach my $line (split /\n/, slurp_file($file))
		{
			my ($s, $name, $hits) = split ' ', $line;
			$reached{$s}{$name} = $hits if $hits > ($reached{$s}{$name} // 0);
		}
	}
	# other scenarios want a new slot only if sessions happen to overlap
	if ($reached{slots}{'slot-first-use'})
	{
		delete $reached{$_}{'slot-first-use'} foreach grep { $_ ne 'slots' } keys %reached;
	}
	# who comes first to an index that a start has emptied is the worker that rebuilds it,
	# or, if that is slow, a session: btree/09_index_crash holds them
	foreach my $s (keys %reached)
	{
		delete $reached{$s}{$_} foreach qw(btree-meta btree-meta-fields);
	}
	return \%reached;
}

=pod

=item NvmCrashRegion::die_at(BASE, SCENARIOS, AND_THEN, [SCENARIO, NAME, HIT], ...)

A process dies at each of these places.  Each transaction is whole or absent then, also
after more work; AND_THEN, a sub (RIG), may return more problems.
NVM_CRASH_ONLY=scenario/name/hit[,...] repeats some: only() has them, or nothing.

=back

=cut

sub only { return map { [ split m,/, ] } split m/,/, $ENV{NVM_CRASH_ONLY} // ''; }

sub die_at
{
	my ($base, $scenarios, $and_then, @ways) = @_;
	my %scenario = map { $_->{name} => $_ } @$scenarios;
	my $dead = qr/PANIC:  failpoint|terminated by signal 6|because of crash of another/;

	NvmCrash::run_jobs(map { my ($s, $name, $nth) = @$_; {
				name => "$s, death at hit $nth of $name (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=$s/$name/$nth)",
				code => sub {
					my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
						sub { NvmCrash->new($base) }, $scenario{$s}, $name, 'panic', $nth);

					return @problems if @problems;
					push @problems, verify_whole($rig, expected => $dead);
					push @problems, map { "after more work: $_" } $rig->write_on(80),
					  verify_whole($rig, collect => _collects($scenario{$s}), expected => $dead);
					push @problems, $and_then->($rig) if $and_then;
					push @problems, 'the stop was not clean' unless $rig->stop;
					return @problems;
				} } } @ways);
	return;
}

=pod

=over

=item NvmCrashRegion::kill_at(BASE, SCENARIOS, AND_THEN, [SCENARIO, NAME, HIT], ...)

As die_at, but all processes die, and the memory is a file (nvm.memory_directory).  The next
start must find it, and so must the one after more work and a clean stop.  Each scenario begins
when the memory is whole: if all die while it is being rebuilt from the log, the next start finds
it, and goes on with the log.

=back

=cut

my $whole = <<SQL;
DO \$\$BEGIN
	FOR i IN 1 .. 6000 LOOP
		EXIT WHEN (SELECT state = 'whole' FROM nvm.log_recovery);
		PERFORM pg_sleep(0.01);
	END LOOP;
	ASSERT (SELECT state = 'whole' FROM nvm.log_recovery), 'tables in memory are not rebuilt';
END\$\$;
SQL

sub kill_at
{
	my ($base, $scenarios, $and_then, @ways) = @_;
	my %scenario = map { $_->{name} => { %$_, before => $whole . ($_->{before} // '') } } @$scenarios;

	NvmCrash::run_jobs(map { my ($s, $name, $nth) = @$_; {
				name => "$s, SIGKILL at hit $nth of $name (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=$s/$name/$nth)",
				code => sub {
					my ($rig, @problems) = NvmCrashScenarios::run_until_crash(
						sub { NvmCrash->new($base, memory => 1) }, $scenario{$s}, $name, 'crash', $nth);

					return @problems if @problems;
					foreach my $stop ('SIGKILL', 'a clean stop')
					{
						$rig->start or return "after $stop: no start: " . $rig->log_since_start;
						push @problems, "after $stop: the memory is not believed"
						  unless $rig->log_since_start =~ /nvm: tables in memory are there: /;
						push @problems, map { "after $stop: $_" } verify_whole($rig, collect => 1);
						# a worker would have said so by now
						push @problems, "after $stop: the log is read"
						  if $rig->log_since_start =~ /rebuilding tables in memory from the log/;
						push @problems, $and_then->($rig) if $and_then;
						push @problems, map { "after $stop, more work: $_" } $rig->write_on($stop eq 'SIGKILL' ? 80 : 81),
						  verify_whole($rig, collect => 1);
						push @problems, 'the stop was not clean' unless $rig->stop;
					}
					return @problems;
				} } } @ways);
	return;
}

# Indexes in memory are built again when their tables are there.
sub verify_whole
{
	my ($rig, @options) = @_;

	$rig->psql(<<SQL);
DO \$\$BEGIN
	FOR i IN 1 .. 3000 LOOP
		EXIT WHEN NOT EXISTS (SELECT FROM nvm.index_rebuilds WHERE state NOT IN ('ready', 'relaxed'));
		PERFORM pg_sleep(0.01);
	END LOOP;
END\$\$;
SQL
	return $rig->verify(@options);
}

1;

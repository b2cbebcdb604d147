# Copyright (c) 2026, pg_nvm contributors

# A process dies at a named place while it writes the log, or is about to, in transactions
# that write the volatile region alone, or the pool and heap as well.  The postmaster starts anew
# and keeps the memory.  Each transaction is whole or absent, acknowledged ones are there,
# and the log agrees with the tables: what a recovery would read is what there is.
#
# Long form: three ways at each place of the commit protocol; here one at each place of the log.

use strict;
use warnings;

use NvmCrash;
use NvmCrashRegion;
use NvmCrashScenarios;
use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# table => its first columns that are integers
my %columns = (ack => 'client, n, nhist', hist => 'client, n, aid, delta', acct => 'id, balance, touched');
my %names = NvmCrash::failpoint_names();
note("seed $NvmCrash::seed");
# the region is empty when a copy of the base starts
my $base = NvmCrashRegion::make_base('log_deaths', tables => [ sort keys %columns ], conf => "nvm_dram.log = on\nnvm.log_compression = off\n",
	without => qr/INSERT INTO acct/);
my $accounts = "INSERT INTO acct SELECT i, 1000, 0, repeat('p', 250) FROM generate_series(1, 200) i;\n";

# a transaction whose record is a side file; with heap or without
sub side
{
	my ($c, $n, $heap) = @_;
	return "BEGIN;\nINSERT INTO ack (client, n) VALUES ($c, $n);\n"
	  . "UPDATE acct SET touched = touched + 1, pad = repeat('s', 600);\n"
	  . ($heap ? "INSERT INTO heap_saw VALUES ($c, $n);\n" : '')
	  . "COMMIT;\n\\echo ack $c $n\n";
}

my %chosen = map { $_ => 1 } qw(nvm mixed mixed-async abort savepoint large abandoned-undo helper vacuum slots);
my @scenarios = (
	grep({ $chosen{ $_->{name} } } NvmCrashScenarios::all()),
	{   name     => 'side',
		sessions => sub { return NvmCrashScenarios::one($_[0], side(1, 1), side(1, 2, 1), NvmCrash::txn_nvm(1, 3), side(1, 4)); },
	},
	{   # the file of the log becomes full, and the keeper does not come by
		name     => 'file',
		setting  => { 'nvm.horizon_naptime' => 60000 },
		sessions => sub {
			return NvmCrashScenarios::one($_[0],
				"DO 'BEGIN FOR i IN 1..350 LOOP UPDATE acct SET touched = touched + 1 WHERE id <= 180; COMMIT; END LOOP; END';\n",
				NvmCrash::txn_nvm(1, 1));
		},
	},
	{   # nobody waits for what others rest on
		name     => 'async',
		sessions => sub {
			return NvmCrashScenarios::one("SET synchronous_commit = off;\n", $_[0], (map { NvmCrash::txn_nvm(1, $_) } 1 .. 3),
				NvmCrash::txn_mixed(1, 4), NvmCrash::txn_nvm(1, 5), "INSERT INTO heap_saw VALUES (1, 5);\n");
		},
	});
@scenarios = map { { %$_, before => $accounts . ($_->{before} // '') } } @scenarios;

# What a recovery would make of the log is what the tables have.
sub log_agrees
{
	my ($rig) = @_;
	my @problems;

	# a commit that waits, for what nobody has waited for
	my ($out, $status, $err) = $rig->psql("UPDATE acct SET touched = touched WHERE id = 1;\n"
		  . join('', map { "SELECT '$_ ' || (SELECT id || '/' || creation FROM nvm.relations WHERE relation = '$_'::regclass);\n"
			  . "SELECT '$_:' || concat_ws('|', $columns{$_}) FROM $_;\n" } sort keys %columns));
	return "the tables cannot be read: $err" if $status != 0;
	my $dump = NvmLog::dump_of("$rig->{data}/pg_nvm_log");
	my $live = NvmLog::live_rows($dump);
	push @problems, "the log is not whole: $dump->{problem}" if $dump->{problem} ne '';
	foreach my $table (sort keys %columns)
	{
		my ($storage) = $out =~ m,^$table (\d+/\d+)$,m;
		my $n = () = $columns{$table} =~ /\w+/g;
		my @there = sort $out =~ /^$table:(.*)$/mg;
		my @in_log = sort map { NvmLog::ints_of($_, $n) } values %{ $live->{$storage} // {} };
		next if "@there" eq "@in_log";
		my (%count, @differ);
		$count{$_}++ foreach @there;
		$count{$_}-- foreach @in_log;
		push @differ, map { ($count{$_} > 0 ? 'only there: ' : 'only in the log: ') . $_ } grep { $count{$_} } sort keys %count;
		push @problems, "$table has " . @there . ' rows, by the log ' . @in_log, @differ[ 0 .. ($#differ < 5 ? $#differ : 5) ];
	}
	return @problems;
}

my $reached = NvmCrashRegion::discover($base, \@scenarios);
my @work = NvmCrashRegion::only();
if (!@work)
{
	my %here = map { $_ => $names{$_} }
	  grep { my $name = $_; $names{$name} && ($name =~ /^log-/ || NvmTest::is_long() && $name =~ /^(?:commit|abort|undo|slot)/) }
	  map { keys %$_ } values %$reached;
	# those of a start are not reached by a session; log/14_directories has what a disk that
	# fails asks for, log/16_reset_log what nvm.reset_log() does
	foreach my $must (grep { /^log-/ && !/^log-(?:generation|directory|decision|file-left|first-elsewhere|reset)/ } sort keys %names)
	{
		ok($here{$must}, "$must is reached");
	}
	@work = NvmCrashScenarios::ways($reached, \%here, {}, sub { NvmTest::is_long() ? 3 : 2 }, 'file');
}
NvmCrashRegion::die_at($base, \@scenarios, \&log_agrees, @work);
done_testing();

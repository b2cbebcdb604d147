# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmTpcc - TPC-C and Voter of contrib_bench/sql on a test's server

=head1 SYNOPSIS

  use NvmTpcc;

  NvmTpcc::load($node, 'tpcc', warehouses => 2);
  my $ran = NvmTpcc::run($node, 'tpcc', warehouses => 2, clients => 4, transactions => 500);
  is($ran->{problem}, '', 'the mix');
  is(NvmTpcc::violations($node, 'tpcc'), '', 'conditions hold');
  my $before = NvmTpcc::content($node, 'tpcc');

=head1 DESCRIPTION

The functions are registered commands there, the tables partitioned.  Warehouses are small, so a
load takes a second.

=cut

package NvmTpcc;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use IPC::Run ();
use NvmMemory;
use NvmTest;

my $sql = dirname(dirname(abs_path(__FILE__))) . '/contrib_bench/sql';

# of a load that a test has time for
my %small = (items => 500, customers => 30);

my %of = (
	tpcc => {
		tables     => [qw(warehouse district customer history new_order orders order_line stock item)],
		# per cent of all transactions (clause 5.2.3)
		mix        => [ [ new_order => 45 ], [ payment => 43 ], [ order_status => 4 ], [ delivery => 4 ], [ stock_level => 4 ] ],
		violations => 'SELECT * FROM tpcc_violations',
		variables  => { warehouses => 2, %small, multi => -1 },
	},
	voter => {
		tables     => [qw(votes contestants area_code_state)],
		mix        => [ [ vote => 100 ] ],
		violations => 'SELECT * FROM voter_violations(2)',
		# few numbers: clients vote by the same one
		variables  => { phones => 2, max_votes => 2 },
	});

=pod

=head1 FUNCTIONS

=over

=item NvmTpcc::load(NODE, 'tpcc' or 'voter', VARIABLE => VALUE, ...)

Tables, rows, functions, in database postgres.  Variables are those of contrib_bench/sql.

=cut

sub load
{
	my ($node, $which, %variables) = @_;
	my ($out, $err) = ('', '');

	%variables = (%small, %variables) if $which eq 'tpcc';
	IPC::Run::run([ 'psql', '-X', '-q', '-d', $node->connstr('postgres'),
			map({ ('-v', "$_=$variables{$_}") } sort keys %variables), '-f', "$sql/$which.sql" ],
		'<', '/dev/null', '>', \$out, '2>', \$err);
	die "load of $which: $err" if $? != 0 || $err ne '';
	return;
}

=pod

=item NvmTpcc::tables('tpcc' or 'voter')

Their names.

=item NvmTpcc::command(NODE, 'tpcc' or 'voter', clients => N, transactions => N, VARIABLE => VALUE, ...)

The pgbench that runs the mix, so many transactions of each client; only => FUNCTION: that one
alone.  Variables: of tpcc warehouses, items, customers, multi, of voter phones and max_votes.

=item NvmTpcc::run(NODE, ...)

Runs it to its end.  Returns {transactions}, {of}{FUNCTION}, and {problem}: errors, '' if there is
none.

=cut

sub tables { my ($which) = @_; return @{ $of{$which}{tables} }; }

sub command
{
	my ($node, $which, %params) = @_;
	my $clients      = delete $params{clients} // 4;
	my $transactions = delete $params{transactions} // 100;
	my $only         = delete $params{only};
	my %variables    = (%{ $of{$which}{variables} }, %params);

	return ('pgbench', '-n', '-M', 'prepared', '-c', $clients, '-j', 2, '-t', $transactions,
		map({ ('-D', "$_=$variables{$_}") } sort keys %variables),
		map({ ('-f', "$sql/$which/$_->[0].pgbench\@$_->[1]") } grep { !defined $only || $_->[0] eq $only } @{ $of{$which}{mix} }),
		$node->connstr('postgres'));
}

sub run
{
	my ($node, $which, %params) = @_;
	my ($out, $err) = ('', '');
	my %ran = (problem => '', of => {});

	IPC::Run::run([ command($node, $which, %params) ], '<', '/dev/null', '>', \$out, '2>', \$err);
	$ran{problem} = "pgbench: status $?: $err" if $? != 0 || $err =~ /ERROR|aborted/;
	($ran{transactions}) = $out =~ /transactions actually processed: (\d+)/;
	$ran{of}{$1} = $2 while $out =~ m,^SQL script \d+: \S*/(\w+)\.pgbench\n - weight: .*\n - (\d+) transactions,mg;
	# of one script pgbench says no more
	($ran{of}{$1}) = $ran{transactions} if $out =~ m,^transaction type: \S*/(\w+)\.pgbench$,m;
	return \%ran;
}

=pod

=item NvmTpcc::violations(NODE, 'tpcc' or 'voter')

What the consistency conditions do not hold for, as text; '' if they hold.

=item NvmTpcc::content(NODE, 'tpcc' or 'voter')

Number and checksum of the rows of each table.

=item NvmTpcc::unreplayable(NODE)

Of nvm.commands: functions with a transaction that has a reason, and the reasons; '' if there is
none.

=back

=cut

sub violations { my ($node, $which) = @_; return $node->safe_psql('postgres', "$of{$which}{violations} LIMIT 20"); }

sub content { my ($node, $which) = @_; return NvmMemory::content($node, tables($which)); }

sub unreplayable
{
	my ($node) = @_;
	return $node->safe_psql('postgres', q{SELECT function, by_values, reasons, last_query FROM nvm.commands WHERE by_values > 0 OR reasons <> '{}' OR state <> 'shadow'});
}

1;

# Copyright (c) 2026, pg_nvm contributors

# TPC-C and Voter (contrib_bench/sql) with their functions promoted: calls are logged alone, and a
# start that has lost the memory calls again, by one process and by several.  Rows are those of
# before, and the consistency conditions hold: after a run, after one of two warehouses in each
# order and payment, after rows that were changed by hand, and after a death amid the mix.
#
# The long form has more warehouses and transactions.

use strict;
use warnings;

use IPC::Run ();
use NvmTest;
use NvmTpcc;
use Test::More;

my $warehouses   = NvmTest::is_long() ? 4 : 2;
my $transactions = NvmTest::is_long() ? 2000 : 200;    # of each of 4 clients

my $node = NvmTest->start_new('recover_tpcc', conf => <<CONF);
max_worker_processes = 16
nvm.checkpoint_interval = 0
restart_after_crash = off
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub run
{
	my ($which, $name, @more) = @_;
	my $ran = NvmTpcc::run($node, $which, @more);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($ran->{problem}, '', $name);
	return;
}

# Promotes those that have a record: what only reads has none.
sub promote
{
	my ($which, $expected) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql('SELECT concat_ws(\'; \', problem, detail, call) FROM nvm.rehearse() WHERE NOT passed'), '', "$which is rehearsed");
	my @functions = split /\n/, sql("SELECT function FROM nvm.commands WHERE rehearsed IS NOT NULL AND state = 'shadow' ORDER BY 1");
	sql("SELECT nvm.promote_command('$_')") foreach @functions;
	is(join(' ', sort map { s/\(.*//r } @functions), $expected, 'and promoted');
	return;
}

sub alone
{
	sql("SELECT count(*) FROM pg_proc; SELECT nvm.checkpoint()");
	$node->poll_query_until('postgres', 'SELECT mode FROM nvm.command_modes WHERE database = current_database()', 'alone') or die 'the mode is another one';
	sql('SELECT nvm.checkpoint(), nvm.reset_commands()');
	return;
}

# Functions with transactions by values, and reasons; and how many were alone
sub by_values { return sql(q{SELECT function, by_values, reasons FROM nvm.commands WHERE by_values > 0}); }
sub alone_calls { return sql('SELECT sum(alone) FROM nvm.commands'); }

sub start_anew
{
	my ($which, $workers, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;

	$node->set_conf('nvm.replay_workers' => $workers);
	$node->start;
	# whoever looks waits for the replay
	is(NvmTpcc::violations($node, $which), '', "$name: conditions hold");
	my ($state, $again) = split /\|/, sql('SELECT state, transactions FROM nvm.replayed_databases');
	is($state, 'done', "$name: by calls, $again transactions");
	return $again;
}

# the memory is lost
sub lose
{
	my ($which, $workers, $name, $least) = @_;
	my $content = NvmTpcc::content($node, $which);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$node->crash;
	cmp_ok(start_anew($which, $workers, $name), '>=', $least, "$name: all of them");
	is(NvmTpcc::content($node, $which), $content, "$name: rows are as before");
	alone();
	return;
}

## TPC-C

NvmTpcc::load($node, 'tpcc', warehouses => $warehouses);
is(sql('SELECT * FROM nvm.commands c, nvm.inspect_command(c.function)'), '', 'inspection finds nothing in its functions');
sql('SELECT nvm.checkpoint()');
run('tpcc', 'the mix', warehouses => $warehouses, transactions => 40);
promote('TPC-C', 'delivery new_order payment');
alone();
foreach my $workers (1, 2, 4)
{
	run('tpcc', "the mix, $workers", warehouses => $warehouses, transactions => $transactions);
	is(by_values(), '', 'each transaction is logged as a call');
	lose('tpcc', $workers, "replayed by $workers", alone_calls());
}
run('tpcc', 'of two warehouses each', warehouses => $warehouses, transactions => $transactions / 2, multi => 100);
is(by_values(), '', 'each transaction is logged as a call');
sql('UPDATE stock SET s_quantity = s_quantity + 10 WHERE s_i_id % 7 = 0; UPDATE item SET i_price = i_price + 1 WHERE i_id < 20');
run('tpcc', 'and behind rows that were changed by hand', warehouses => $warehouses, transactions => $transactions / 4, multi => 50);
lose('tpcc', 2, 'of two warehouses', alone_calls());

my $before = sql('SELECT count(*) FROM history');
my ($out, $err) = ('', '');
my $load = IPC::Run::start([ NvmTpcc::command($node, 'tpcc', warehouses => $warehouses, transactions => 1000000) ], '<', '/dev/null', '>', \$out, '2>', \$err);
$node->poll_query_until('postgres', "SELECT count(*) >= $before + 200 FROM history") or die 'no load';
my $seen = sql('SELECT count(*) FROM history');
$node->crash;
$load->finish;
start_anew('tpcc', 2, 'a death amid the mix');
cmp_ok(sql('SELECT count(*) FROM history'), '>=', $seen, 'what was seen is there');
alone();

## Voter

NvmTpcc::load($node, 'voter');
is(sql('SELECT * FROM nvm.commands c, nvm.inspect_command(c.function)'), '', 'inspection finds nothing in its functions');
sql('SELECT nvm.checkpoint()');
run('voter', 'votes', transactions => 40, phones => 50);
promote('Voter', 'vote');
alone();
run('voter', 'votes alone', transactions => $transactions, phones => 100);
is(by_values(), '', 'each vote is logged as a call');
lose('voter', 2, 'Voter', alone_calls());
$node->check_clean('in the end');

$node->stop;
done_testing();

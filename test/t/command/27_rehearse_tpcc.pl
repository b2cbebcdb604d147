# Copyright (c) 2026, pg_nvm contributors

# TPC-C and Voter (contrib_bench/sql) are replayed: by one process and by several, with
# transactions of one warehouse and of two, over a crash, and beside the load.  Each call of the
# log is made again, and comes to the same rows.

use strict;
use warnings;

use IPC::Run ();
use NvmTest;
use NvmTpcc;
use Test::More;

my $warehouses   = NvmTest::is_long() ? 4 : 2;
my $transactions = NvmTest::is_long() ? 3000 : 300;    # of each of 4 clients

my $node = NvmTest->start_new('rehearse_tpcc', conf => <<CONF);
max_worker_processes = 16
nvm.checkpoint_interval = 0
restart_after_crash = off
CONF

sub sql { return $node->safe_psql('postgres', $_[0]); }

# calls, rows of values, or what has differed
sub rehearse
{
	my ($workers) = @_;
	return sql("SELECT CASE WHEN passed THEN format('%s calls, %s rows of values', calls, value_rows) ELSE concat_ws('; ', problem, detail, call) END FROM nvm.rehearse($workers)");
}

sub run
{
	my ($which, $name, @more) = @_;
	my $ran = NvmTpcc::run($node, $which, @more);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($ran->{problem}, '', $name);
	is(NvmTpcc::unreplayable($node), '', "$name: all could be replayed")
	  or diag(sql('SELECT * FROM nvm.command_reasons'));
	return $ran;
}

sub logged { return sql('SELECT sum(replayable) FROM nvm.commands'); }

## TPC-C

NvmTpcc::load($node, 'tpcc', warehouses => $warehouses);
sql('SELECT nvm.checkpoint()');
run('tpcc', 'the mix', warehouses => $warehouses, transactions => $transactions);
my $calls = logged();
foreach my $workers (1, 2, 4)
{
	is(rehearse($workers), "$calls calls, 0 rows of values", "replayed by $workers");
	note(sql('SELECT format(\'%s transactions, %s s, %s of many lanes, %s alone\', transactions, replay_seconds, many_lanes, alone) FROM nvm.replay'));
}
run('tpcc', 'of two warehouses each', warehouses => $warehouses, transactions => $transactions / 3, multi => 100);
is(rehearse(4), logged() . ' calls, 0 rows of values', 'replayed by 4');
is(sql('SELECT many_lanes > 0 FROM nvm.replay'), 't', 'in two lanes');
is(sql("SELECT count(*) FROM pg_namespace WHERE nspname = 'nvm_rehearsal'"), '0', 'no copy is left');

# somebody changes rows by hand, and the server crashes
sql('UPDATE stock SET s_quantity = s_quantity + 10 WHERE s_i_id % 7 = 0; UPDATE item SET i_price = i_price + 1 WHERE i_id < 20');
$calls = logged();
$node->crash;
$node->start;
# a call that comes before the log is read cannot know that none is alone in it: it asks for a
# checkpoint, behind which a replay has less
NvmTest::wait_until('the log is read', sub { sql('SELECT state FROM nvm.log_recovery') eq 'whole' });
# the first ones may plan while an index is being rebuilt, and are logged by values then
is(NvmTpcc::run($node, 'tpcc', warehouses => $warehouses, transactions => $transactions / 3)->{problem}, '', 'behind a crash');
$calls += logged();
like(rehearse(2), qr/^$calls calls, [1-9]\d+ rows of values$/, 'replayed, with what was changed by hand');

# beside the load
my ($out, $err) = ('', '');
my $load = IPC::Run::start([ NvmTpcc::command($node, 'tpcc', warehouses => $warehouses, transactions => 1000000) ], '<', '/dev/null', '>', \$out, '2>', \$err);
like(rehearse(2), qr/^\d+ calls, \d+ rows of values$/, "beside the load, $_") foreach 1 .. 3;
sql('SELECT nvm.checkpoint()');
like(rehearse(2), qr/^\d+ calls, \d+ rows of values$/, 'and from a checkpoint amid it');
$load->kill_kill;
is(NvmTpcc::violations($node, 'tpcc'), '', 'conditions hold');

## Voter

NvmTpcc::load($node, 'voter');
sql('SELECT nvm.checkpoint(), nvm.reset_commands()');
run('voter', 'votes', transactions => $transactions, phones => 50);
$calls = sql('SELECT count(*) FROM votes');
is(rehearse($_), "$calls calls, 0 rows of values", "votes replayed by $_") foreach 1, 3;
$node->check_clean('in the end');

$node->stop;
done_testing();

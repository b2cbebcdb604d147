# Copyright (c) 2026, pg_nvm contributors

# TPC-C and Voter by registered functions (contrib_bench/sql), with the keys, foreign keys and
# serial history key that a user has.  Each transaction can be replayed by its call; those that
# the specification rolls back have left nothing.  Each record of the log has its call, lanes
# and tape.  Consistency conditions hold after the run, after a loss of the memory, and
# after a kill in the middle of the mix.
#
# The long form has more warehouses and transactions.

use strict;
use warnings;

use IPC::Run ();
use NvmLog;
use NvmTest;
use NvmTpcc;
use PostgreSQL::Test::Utils;
use Test::More;

my $warehouses   = NvmTest::is_long() ? 4 : 2;
my $transactions = NvmTest::is_long() ? 3000 : 300;    # of each of 4 clients

my $node = NvmTest->start_new('tpcc', conf => <<CONF);
autovacuum = off
max_worker_processes = 8
restart_after_crash = off
# records stay until the test has read them
nvm.checkpoint_interval = 0
# as the format presumes: another one stands in each record
TimeZone = 'Etc/UTC'
CONF
my $dir = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Of nvm.commands, by the function's name
sub counters
{
	my %of = map { my @c = split /\|/; (shift @c => { map { $_ => shift @c } qw(calls replayable by_values unlogged) }) }
	  split /\n/, sql('SELECT proname, c.calls, c.replayable, c.by_values, c.unlogged FROM nvm.commands c JOIN pg_proc p ON p.oid = c.function');
	return \%of;
}

# Records behind a position, and of each function's how many there are
sub records_since
{
	my ($position) = @_;
	my $dump = NvmLog::dump_of($dir, from => $position);
	my %name = map { split /\|/ } split /\n/, sql('SELECT function::oid, proname FROM nvm.commands JOIN pg_proc p ON p.oid = function');
	my %n;

	is($dump->{problem}, '', 'the log is whole');
	foreach my $record (@{ $dump->{records} })
	{
		# of one that wrote to the WAL, as nextval() does now and then, told later
		next if $record->{kind} =~ /^OUTCOME/;
		my @calls = map { /^call (\d+)\(/ ? $name{$1} // $1 : () } @{ $record->{calls}{parts} // [] };
		my $of = @calls == 1 ? $calls[0] : scalar(@calls) . ' calls';
		push @{ $n{$of} }, $record;
	}
	return \%n;
}

sub position { return sql('SELECT persistent FROM nvm.log'); }

sub lanes_of { my ($record) = @_; return scalar(split /, /, $record->{calls}{parts}[0]); }

# after the memory is lost, in one way or the other
sub is_as_before
{
	my ($which, $content, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(NvmTpcc::content($node, $which), $content, "$name: rows are as before");
	is(NvmTpcc::violations($node, $which), '', "$name: conditions hold");
	return;
}

## TPC-C: the mix

NvmTpcc::load($node, 'tpcc', warehouses => $warehouses);
is(sql(q{SELECT string_agg(relation::text, ' ' ORDER BY relation::text) FROM nvm.partitioned_tables WHERE state = 'partitioned'}),
	'customer district history new_order order_line orders stock warehouse', 'all tables but item are partitioned');
is(sql('SELECT count(*) FROM pg_constraint WHERE contype = \'f\''), 10, 'with their foreign keys');
is(NvmTpcc::violations($node, 'tpcc'), '', 'conditions hold when loaded');

my @count_of = map { "(SELECT count(*) FROM $_)" } qw(orders history);
my ($orders, $payments) = split /\|/, sql("SELECT " . join(', ', @count_of));
my $from = position();
my $ran = NvmTpcc::run($node, 'tpcc', warehouses => $warehouses, transactions => $transactions);
is($ran->{problem}, '', 'the mix runs without an error');
is($ran->{transactions}, 4 * $transactions, 'all of it');

is(NvmTpcc::unreplayable($node), '', 'each transaction could be replayed by its call');
my $counted = counters();
my ($more_orders, $more_payments) = split /\|/, sql("SELECT " . join(', ', $count_of[0] . " - $orders", $count_of[1] . " - $payments"));
is($counted->{payment}{replayable}, $ran->{of}{payment}, 'payments: all of them');
is($more_payments, $ran->{of}{payment}, 'each has a row of history');
is($counted->{delivery}{replayable} + $counted->{delivery}{unlogged}, $ran->{of}{delivery}, 'deliveries: all');
is($counted->{new_order}{replayable}, $more_orders, 'new orders: all that were not rolled back');
cmp_ok($ran->{of}{new_order} - $more_orders, '<', $ran->{of}{new_order} / 10, 'which were few');
is("$counted->{$_}{replayable} $counted->{$_}{unlogged}", "0 $ran->{of}{$_}", "$_ writes nothing") foreach qw(order_status stock_level);
is(NvmTpcc::violations($node, 'tpcc'), '', 'conditions hold');

my $records = records_since($from);
is(join(' ', sort keys %$records), 'delivery new_order payment', 'each record has one call, of a function that writes');
foreach my $function (qw(delivery new_order payment))
{
	my @of = @{ $records->{$function} };
	is(scalar(@of), $counted->{$function}{replayable}, "$function: a record for each");
	note("$function: " . sql("SELECT call_bytes / replayable || ' bytes of calls, ' || value_bytes / replayable || ' of values' FROM nvm.commands WHERE function::text LIKE '$function(%'"));
	my $taped = grep { grep { /^  tape of / } @{ $_->{calls}{parts} } } @of;
	is($taped, $function eq 'payment' ? scalar(@of) : 0, "$function: " . ($taped ? 'the key of history is on the tape' : 'no tape'));
	my $wide = grep { lanes_of($_) > 1 } @of;
	if ($function eq 'delivery') { is($wide, 0, "$function: one lane"); }
	else { cmp_ok($wide, '<', @of / 2, "$function: most have one lane, $wide have more"); }
}

is(sql('SELECT sum(value_bytes) >= 10 * sum(call_bytes) FROM nvm.commands'), 't', 'calls take a tenth of the bytes of values, or less');
is($records->{$_}[0]{calls}{parts}[1] =~ s/^role 10//r, '', "$_: no settings") foreach qw(delivery new_order payment);

# what the specification rolls back: the client does, when it has read the answer
$from = position();
$orders = sql("SELECT $count_of[0]");
is(sql('BEGIN; SELECT new_order(1, 1, 1, \'{1,2,3,4,501}\', \'{1,1,1,1,1}\', \'{1,1,1,1,1}\') IS NULL; ROLLBACK'), 't', 'an item that there is not');
is(sql("SELECT $count_of[0]"), $orders, 'rolled back');
is(sql("SELECT new_order(1, 1, 1, '{1,2,3,4,500}', '{1,1,1,1,2}', '{1,1,1,1,1}') > 0"), 't', 'the same with one that there is');
$records = records_since($from);
is(join(' ', map { "$_ " . @{ $records->{$_} } } keys %$records), 'new_order 1', 'one record');
is(lanes_of($records->{new_order}[0]), 2, 'of two lanes');

## losses of the memory

my $content = NvmTpcc::content($node, 'tpcc');
$node->stop('immediate');
$node->start;
is_as_before('tpcc', $content, 'stopped at once');
$node->check_clean('stopped at once');

# all orders and payments of two warehouses; killed in the middle of it
$from = position();
$ran = NvmTpcc::run($node, 'tpcc', warehouses => $warehouses, transactions => 50, multi => 100);
is($ran->{problem}, '', 'orders and payments of two warehouses each');
is(NvmTpcc::unreplayable($node), '', 'could be replayed');
$records = records_since($from);
is(join(' ', map { "$_ " . grep { lanes_of($_) != 2 } @{ $records->{$_} } } qw(new_order payment)), 'new_order 0 payment 0', 'by two lanes');
is(NvmTpcc::violations($node, 'tpcc'), '', 'conditions hold');

my $before = sql('SELECT count(*) FROM history');
my ($out, $err) = ('', '');
my $load = IPC::Run::start([ NvmTpcc::command($node, 'tpcc', warehouses => $warehouses, transactions => 1000000) ],
	'<', '/dev/null', '>', \$out, '2>', \$err);
ok($node->poll_query_until('postgres', "SELECT count(*) >= $before + 100 FROM history"), 'the mix is at work');
my $seen = sql('SELECT count(*) FROM history');
$node->crash;
$load->finish;
$node->start;
cmp_ok(sql('SELECT count(*) FROM history'), '>=', $seen, 'killed in its middle: what was seen is there');
is(NvmTpcc::violations($node, 'tpcc'), '', 'conditions hold');
$content = NvmTpcc::content($node, 'tpcc');
sql('SELECT nvm.checkpoint()');
$ran = NvmTpcc::run($node, 'tpcc', warehouses => $warehouses, transactions => 50);
is($ran->{problem}, '', 'and goes on, behind a checkpoint');
isnt(NvmTpcc::content($node, 'tpcc'), $content, 'rows are others');
$content = NvmTpcc::content($node, 'tpcc');
$node->crash;
$node->start;
is_as_before('tpcc', $content, 'killed behind it');
$node->check_clean('TPC-C');

## Voter: few numbers, so several vote by one of them at a time

NvmTpcc::load($node, 'voter');
$from = position();
$ran = NvmTpcc::run($node, 'voter', transactions => 4 * $transactions);
is($ran->{problem}, '', 'votes');
is(NvmTpcc::unreplayable($node), '', 'each could be replayed');
$counted = counters()->{vote};
is($counted->{calls}, $ran->{transactions}, 'all were counted');
is($counted->{replayable}, sql('SELECT count(*) FROM votes'), 'those that count, as replayable');
cmp_ok($counted->{unlogged}, '>', 0, 'the others wrote nothing');
is(NvmTpcc::violations($node, 'voter'), '', 'no number has too many');
$records = records_since($from);
is(join(' ', keys %$records) . ' ' . grep({ lanes_of($_) != 1 } @{ $records->{vote} }), 'vote 0', 'each record has one call, of one lane');
is(scalar(@{ $records->{vote} }), $counted->{replayable}, 'a record for each');

# registered anew, behind a loss
sql(q{SELECT nvm.unregister_command('vote(bigint,int,int)'); DELETE FROM votes});
$node->stop('immediate');
$node->start;
is(sql('SELECT count(*) FROM votes'), 0, 'what was deleted stays so');
sql(q{SELECT nvm.register_command('vote(bigint,int,int)', '{phone}')});
$ran = NvmTpcc::run($node, 'voter', transactions => $transactions, phones => 1, clients => 8);
is($ran->{problem}, '', 'registered anew');
$content = NvmTpcc::content($node, 'voter');
$node->crash;
$node->start;
is_as_before('voter', $content, 'votes, killed');
is(NvmTpcc::unreplayable($node), '', 'counters begin anew');
$node->check_clean('the end');
$node->stop;

done_testing();

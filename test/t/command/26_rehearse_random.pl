# Copyright (c) 2026, pg_nvm contributors

# Random schedules: sessions that call registered functions over one to eight lanes, and others
# that write the same tables as they like: updates, deletes, FOR UPDATE, ON CONFLICT, moves
# between lanes, shared tables, unique violations, EXCEPTION blocks, savepoints, prepared
# transactions, COPY, functions that break the rules.  Then nvm.rehearse(): what is
# replayed comes to the rows that are there.  So it does amid the work, and over crashes.
# NVM_SEED repeats a run.

use strict;
use warnings;

use IPC::Run;
use NvmSchedule;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $seed = $ENV{NVM_SEED} // int(rand(1 << 30));
my ($rounds, $steps) = NvmTest::is_long() ? (60, 200) : (8, 80);
note("seed $seed");
srand($seed);

my $node = NvmTest->start_new('rehearse_random', conf => <<CONF, sql => NvmSchedule::schema());
autovacuum_naptime = 1s
max_prepared_transactions = 10
max_worker_processes = 16
nvm.checkpoint_interval = 0
deadlock_timeout = 50ms
log_min_messages = fatal
restart_after_crash = off
CONF

my @tables = NvmSchedule::tables();
my (%did, %reasons);

sub sql { return $node->safe_psql('postgres', join("\n", map { "$_;" } @_)); }

sub start_sessions
{
	my ($n) = @_;
	return map {
		my $text = NvmSchedule::session($steps);
		IPC::Run::start([ 'psql', '-XqAt', '-d', $node->connstr('postgres') ], '<', \$text, '>', '/dev/null', '2>', '/dev/null');
	} 1 .. $n;
}

sub content
{
	return join("\n", map { "$_: " . sql("SELECT count(*), coalesce(sum(hashtextextended(t::text, 0)), 0) FROM $_ t") } @tables);
}

# What it has found, or '' if it has passed.
sub rehearse
{
	return sql("SELECT CASE WHEN NOT passed THEN concat_ws('; ', problem, detail, call, position) END FROM nvm.rehearse(" . (1 + int(rand(4))) . ')');
}

# counters begin anew with each start
sub note_commands
{
	foreach (split /\n/, sql("SELECT proname, calls, replayable, by_values FROM nvm.commands c JOIN pg_proc p ON p.oid = c.function"))
	{
		my ($name, @count) = split /\|/;
		$did{$name}[$_] += $count[$_] foreach 0 .. 2;
	}
	foreach (split /\n/, sql("SELECT proname, r.key, r.value FROM nvm.commands c JOIN pg_proc p ON p.oid = c.function, jsonb_each_text(reasons) r"))
	{
		my ($name, $reason, $count) = split /\|/;
		$reasons{$name}{$reason} += $count;
	}
	return;
}

my %seen;
foreach my $round (1 .. $rounds)
{
	my @sessions;

	sql('SELECT nvm.checkpoint()') if rand() < 0.6 || $round == 1;
	@sessions = start_sessions(4);
	if (rand() < 0.5)
	{
		is(rehearse(), '', "round $round: amid the work");
		sql('SELECT nvm.checkpoint()') if rand() < 0.5;
	}
	$_->finish foreach @sessions;
	is(rehearse(), '', "round $round: rehearsed");
	my ($calls, $rows, $lanes, $alone) = split /\|/, sql('SELECT calls, value_rows, many_lanes, alone FROM nvm.replay');
	$seen{calls} += $calls;
	$seen{rows} += $rows;
	$seen{lanes} += $lanes;
	$seen{alone} += $alone;
	next if rand() < 0.6;
	note_commands();
	my $before = content();
	$node->crash;
	$node->start;
	is(content(), $before, "round $round: a crash, and rows by their values");
	is(rehearse(), '', "round $round: rehearsed over the crash");
}
note_commands();
note("$_: $did{$_}[0] calls, $did{$_}[1] replayable, $did{$_}[2] by values") foreach sort keys %did;
ok($did{$_}[1] > 5, "$_ was logged as a call") foreach NvmSchedule::good();
ok($seen{$_} > 20, "there were $seen{$_} $_") foreach sort keys %seen;
# (other_lane and unpinned are right where a call before them in the transaction has the lanes)
is(join(' ', grep { ($did{$_}[1] // 0) > 0 } NvmSchedule::bad()), '', 'no function that breaks a rule was logged as a call');
my %reason_of = NvmSchedule::reason_of();
foreach my $name (sort keys %reason_of)
{
	cmp_ok($reasons{$name}{ $reason_of{$name} } // 0, '>', 0, "$name breaks a rule, with its reason: $reason_of{$name}") or diag(explain($reasons{$name}));
}
ok((grep { $_->{'isolation level'} } values %reasons) > 0, 'so did calls under another isolation level');
ok((grep { $_->{'prepared transaction'} } values %reasons) > 0, 'and prepared ones');
$node->check_clean('in the end');

$node->stop;
done_testing();

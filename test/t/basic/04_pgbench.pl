# Copyright (c) 2026, pg_nvm contributors

# pgbench on nvm tables: each way to make its tables, each built-in script, each
# protocol, several isolation levels; its balances always add up.
#
# Long form: 2,000 transactions of each client with each script, here 150.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('pgbench', conf => <<CONF);
default_table_access_method = nvm
autovacuum_naptime = 1s
CONF

my $transactions = NvmTest::is_long() ? 2000 : 150;
my $clients      = 4;

sub pgbench
{
	my ($name, @options) = @_;
	my ($out, $err) = ('', '');
	my $ok = IPC::Run::run([ 'pgbench', @options, $node->connstr('postgres') ],
		'<', \undef, '>', \$out, '2>', \$err);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($ok, "$name: pgbench succeeds") or diag("$out$err");
	unlike($err, qr/aborted|ERROR/, "$name: without errors");
	return $out;
}

# what was added to accounts was added to tellers and branches, and is in the
# history, as long as there is one
sub balanced
{
	my ($name, $history) = @_;
	my $sums = $node->safe_psql('postgres', <<SQL);
SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
	(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history),
	(SELECT count(*) FROM pgbench_history)
SQL
	my ($a, $t, $b, $h, $count) = split /\|/, $sums;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is("$t $b $h", "$a $a $a", "$name: balances agree");
	is($count, $history, "$name: each transaction is in the history");
	return;
}

sub all_nvm
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql('postgres', <<SQL), 'nvm', "$name: tables are nvm");
SELECT string_agg(DISTINCT amname, ' ') FROM pg_class c JOIN pg_am a ON a.oid = relam
WHERE relname LIKE 'pgbench%' AND relkind = 'r'
SQL
	return;
}

# ways to make the tables
my %init = (
	'partitions'      => [ '--partitions=3', '--partition-method=hash' ],
	'unlogged tables' => ['--unlogged-tables'],
	'foreign keys'    => ['--foreign-keys'],
	'server side'     => [ '-I', 'dtGvp' ],);
foreach my $kind (sort keys %init)
{
	pgbench($kind, '-i', '-q', '-s', 1, @{ $init{$kind} });
	all_nvm($kind);
	pgbench("$kind, run", '-n', '-c', $clients, '-t', 50, '-b', 'tpcb-like');
	balanced($kind, 50 * $clients);
}

# every script by every protocol; simple-update changes accounts only
pgbench('initialization', '-i', '-q', '-s', 2);
all_nvm('initialization');
my $history = 0;
foreach my $script (qw(tpcb-like select-only))
{
	foreach my $protocol (qw(simple extended prepared))
	{
		my $out = pgbench("$script, $protocol", '-n', '-c', $clients, '-t', $transactions, '-b', $script, '-M', $protocol);
		like($out, qr{processed: (\d+)/\1$}m, "$script, $protocol: all were processed");
		$history += $transactions * $clients if $script eq 'tpcb-like';
		balanced("$script, $protocol", $history);
	}
}

# conflicts that are tried again; rate and connections
foreach my $level ('repeatable read', 'serializable')
{
	local $ENV{PGOPTIONS} = '-c default_transaction_isolation=' . $level =~ s/ /\\ /r;
	pgbench($level, '-n', '-c', $clients, '-t', 30, '-b', 'tpcb-like', '--max-tries=10000');
	$history += 30 * $clients;
	balanced($level, $history);
}
pgbench('a connection each', '-n', '-C', '-c', 2, '-t', 20, '-b', 'tpcb-like', '-M', 'prepared');
$history += 40;
balanced('a connection each', $history);
$node->safe_psql('postgres', 'VACUUM ANALYZE');
balanced('after VACUUM', $history);

foreach my $protocol (qw(simple extended prepared))
{
	my $name = "simple-update, $protocol";
	my $tellers = $node->safe_psql('postgres', 'SELECT sum(tbalance) FROM pgbench_tellers');
	pgbench($name, '-n', '-c', $clients, '-t', $transactions, '-b', 'simple-update', '-M', $protocol);
	$history += $transactions * $clients;
	is($node->safe_psql('postgres',
			'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history), (SELECT count(*) FROM pgbench_history)'),
		"t|$history", "$name: accounts and history agree");
	is($node->safe_psql('postgres', 'SELECT sum(tbalance) FROM pgbench_tellers'), $tellers,
		"$name: tellers are as they were");
}
is($node->safe_psql('postgres', 'SELECT count(*), count(DISTINCT aid) FROM pgbench_accounts'),
	'200000|200000', 'each account is there once');

# kill in the middle of it
my $run = IPC::Run::start([ 'pgbench', '-n', '-c', $clients, '-T', 60, '-b', 'tpcb-like', $node->connstr('postgres') ],
	'<', \undef, '>', \my $out, '2>', \my $err);
$node->poll_query_until('postgres', "SELECT count(*) > $history + 200 FROM pgbench_history") or die;
$node->crash;
$run->finish;
$node->start;
is($node->safe_psql('postgres', <<SQL), 't|t|t', 'killed: what was added to one was added to all');
SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history),
	(SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches),
	(SELECT count(*) FROM pgbench_history) > $history
SQL
$node->check_clean('killed');
pgbench('after the kill', '-n', '-c', $clients, '-t', 50, '-b', 'tpcb-like');
$node->check_clean('in the end');
$node->stop;

done_testing();

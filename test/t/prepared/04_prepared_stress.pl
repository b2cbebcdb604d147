# Copyright (c) 2026, pg_nvm contributors

# Many sessions prepare, end their own and each other's transactions, take
# locks of every strength and savepoints, while the server is killed and loses
# power, processes die and VACUUM runs.  Money moves between an nvm and a heap
# table: what is prepared, or half ended, must never show.
#
# Long form: 16 rounds of 5 seconds, here 4 of 2.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $clients = 6;
my $rounds  = NvmTest::is_long() ? 16 : 4;
my $seconds = NvmTest::is_long() ? 5 : 2;

my $node = NvmTest->start_new('stress', simulate => 1, conf => <<CONF, sql => <<SQL);
max_prepared_transactions = 60
max_connections = 30
deadlock_timeout = 50ms
autovacuum_naptime = 1s
nvm.horizon_naptime = 20
CONF
CREATE TABLE owner (id int PRIMARY KEY, v int) USING nvm;
CREATE TABLE n (id int PRIMARY KEY, owner int REFERENCES owner, v bigint, k int) USING nvm;
CREATE INDEX ON n (k);
CREATE TABLE h (id int PRIMARY KEY, v bigint) USING heap;
CREATE TABLE hist (gid text, v int) USING nvm;
CREATE TABLE hhist (gid text, v int) USING heap;
INSERT INTO owner SELECT i, 0 FROM generate_series(1, 20) i;
INSERT INTO n SELECT i, 1 + i % 20, 0, i FROM generate_series(1, 60) i;
INSERT INTO h SELECT i, 0 FROM generate_series(1, 60) i;
SQL

# One client: transactions for as long as the server lives, with a line in its
# log before and after PREPARE, and around the end.
sub client
{
	my ($c, $round, $until, $log) = @_;
	my $n = 0;
	my $rand = sub { return NvmRand::next($_[0]); };

	open(my $fh, '>>', $log) or die "$log: $!";
	$fh->autoflush(1);
	while (time() < $until)
	{
		my $gid = "g_${round}_${c}_" . ++$n;
		my ($a, $b) = (1 + $rand->(60), 1 + $rand->(60));
		my $v   = 1 + $rand->(100);
		my $end = $rand->(3) ? 'COMMIT' : 'ROLLBACK';
		my @lock = ('UPDATE', 'NO KEY UPDATE', 'SHARE', 'KEY SHARE');
		my $sql = "SET lock_timeout = '300ms'; BEGIN;\n"
		  . "SELECT FROM n WHERE id = " . (1 + $rand->(60)) . " FOR $lock[$rand->(4)];\n"
		  . "SAVEPOINT a; UPDATE n SET v = v + 1000000, k = k + 1 WHERE id = $a; DELETE FROM hist WHERE v % 7 = 0;"
		  . " SELECT FROM owner WHERE id = " . (1 + $rand->(20)) . " FOR UPDATE; ROLLBACK TO a;\n"
		  . "UPDATE n SET v = v + $v, k = k + " . $rand->(2) . ", owner = " . (1 + $rand->(20)) . " WHERE id = $a;\n"
		  . "SAVEPOINT b; UPDATE h SET v = v - $v WHERE id = $b; RELEASE b;\n"
		  . "UPDATE owner SET v = v + 1 WHERE id = " . (1 + $rand->(20)) . ";\n"
		  . "INSERT INTO hist VALUES ('$gid', $v); INSERT INTO hhist VALUES ('$gid', $v);\n"
		  . "PREPARE TRANSACTION '$gid';\n";
		print $fh "try $gid\n";
		next if system_quiet($sql) != 0;
		print $fh "prepared $gid\n";
		# one in four is left to whoever comes
		next if $rand->(4) == 0;
		print $fh "end $gid $end\n";
		next if system_quiet("$end PREPARED '$gid'") != 0;
		print $fh "ended $gid $end\n";
	}
	POSIX::_exit(0);
}

{
	package NvmRand;
	my $state = $ENV{NVM_CRASH_SEED} // 1;
	sub seed { $state = ($_[0] * 2654435761 + 12345) & 0x7fffffff; return; }
	sub next { $state = ($state * 1103515245 + 12345) & 0x7fffffff; return ($state >> 8) % $_[0]; }
}

sub system_quiet
{
	my ($sql) = @_;
	my $pid = fork();
	die "fork: $!" unless defined $pid;
	if ($pid == 0)
	{
		local %ENV = $node->_get_env();
		open(STDIN,  '<', '/dev/null');
		open(STDOUT, '>', '/dev/null');
		open(STDERR, '>', '/dev/null');
		exec('psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr('postgres'),
			map { ('-c', $_) } split /(?<=;)\n/, $sql)
		  or POSIX::_exit(1);
	}
	waitpid($pid, 0);
	return $?;
}

my $agree = <<SQL;
SELECT (SELECT sum(v) FROM n) + (SELECT sum(v) FROM h),
	(SELECT sum(v) FROM n) - (SELECT coalesce(sum(v), 0) FROM hist),
	(SELECT count(*) FROM (SELECT gid, v FROM hist EXCEPT SELECT gid, v FROM hhist) d),
	(SELECT count(*) FROM (SELECT gid, v FROM hhist EXCEPT SELECT gid, v FROM hist) d),
	(SELECT count(*) - count(DISTINCT gid) FROM hist),
	(SELECT count(*) FROM n WHERE NOT EXISTS (SELECT FROM owner o WHERE o.id = n.owner))
SQL

my $total = 0;
foreach my $round (1 .. $rounds)
{
	my (@pids, @logs, %prepared, %end, %ended);
	my $until = time() + $seconds;

	foreach my $c (1 .. $clients)
	{
		my $log = PostgreSQL::Test::Utils::tempdir() . "/$c.log";
		push @logs, $log;
		my $pid = fork();
		die "fork: $!" unless defined $pid;
		if ($pid == 0)
		{
			NvmRand::seed(1000 * $round + $c + ($ENV{NVM_CRASH_SEED} // 1));
			client($c, $round, $until, $log);
		}
		push @pids, $pid;
	}
	# others look on, and see all or nothing
	my $looks = 0;
	while (time() < $until - 0.5)
	{
		my $seen = $node->safe_psql('postgres', $agree);
		$looks++;
		if ($seen ne '0|0|0|0|0|0')
		{
			is($seen, '0|0|0|0|0|0', "round $round: tables agree while all are at work");
			last;
		}
		$node->safe_psql('postgres', 'VACUUM (FREEZE) n, hist') if $looks % 4 == 0;
	}
	$round % 2 ? $node->power_failure(seed => $round) : $node->crash;
	waitpid($_, 0) foreach @pids;
	foreach my $log (@logs)
	{
		my $said = slurp_file($log);
		$prepared{$1} = 1 while $said =~ /^prepared (\S+)$/mg;
		$end{$1} = $2 while $said =~ /^end (\S+) (\S+)$/mg;
		$ended{$1} = $2 while $said =~ /^ended (\S+) (\S+)$/mg;
	}
	$total += keys %prepared;

	$node->start;
	is($node->safe_psql('postgres', $agree), '0|0|0|0|0|0', "round $round: tables agree after it");
	my %there = map { $_ => 1 } split /\n/, $node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts');
	my %done  = map { $_ => 1 } split /\n/,
	  $node->safe_psql('postgres', "SELECT gid FROM hist WHERE gid LIKE 'g\\_${round}\\_%'");
	my @wrong;
	foreach my $gid (sort keys %prepared)
	{
		if ($ended{$gid})
		{
			push @wrong, "$gid: $ended{$gid} is forgotten"
			  if $there{$gid} || ($ended{$gid} eq 'COMMIT') != ($done{$gid} // 0);
		}
		elsif ($end{$gid})
		{
			push @wrong, "$gid: lost while it was ended" if $end{$gid} eq 'COMMIT' && !$there{$gid} && !$done{$gid};
			push @wrong, "$gid: there while it was ended" if $done{$gid} && ($there{$gid} || $end{$gid} eq 'ROLLBACK');
		}
		else
		{
			push @wrong, "$gid: not prepared any more" if !$there{$gid} || $done{$gid};
		}
	}
	is(join("\n", @wrong), '', "round $round: each is what its client was told");
	is($node->safe_psql('postgres', <<SQL), '', "round $round: checks find nothing beside prepared ones");
SELECT r, c FROM unnest(ARRAY['n', 'hist', 'owner']) r, nvm.check(r::regclass) c;
SELECT c FROM nvm.check_pool() c;
SQL
	# end what is left, but some stay for the next round
	my $i = 0;
	foreach my $gid (sort keys %there)
	{
		next if $round < $rounds && $i++ % 8 == 0;
		$node->safe_psql('postgres', ($i % 3 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$gid'");
	}
}
cmp_ok($total, '>', 0, "transactions were prepared: $total");
is($node->safe_psql('postgres', $agree), '0|0|0|0|0|0', 'tables agree at the end');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.transactions WHERE pid IS NULL'), '0', 'nothing is left open');
ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps'), 'no gaps remain');
is($node->safe_psql('postgres', 'SELECT count(*) FROM (SELECT FROM n FOR UPDATE NOWAIT) f'), '60', 'nothing is locked');
$node->check_clean('at the end');
$node->stop;

done_testing();

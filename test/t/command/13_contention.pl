# Copyright (c) 2026, pg_nvm contributors

# Calls and transactions of values on the same rows of a few lanes, all at once: calls of one
# lane, of two, of all, with a subtransaction; UPDATE, FOR UPDATE, ON CONFLICT and moves
# between lanes outside of calls; writers of a shared table.  Nothing hangs.  Who has one
# lane, or lanes in a call, never meets a deadlock.  Sums and acknowledged work are right,
# also after kill -9.

use strict;
use warnings;

use IPC::Run;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('contention', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_worker_processes = 8
deadlock_timeout = 30ms
log_lock_waits = off
restart_after_crash = off
CONF
CREATE TABLE account (w int, i int, n bigint NOT NULL, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE work (w int, client int, n bigint NOT NULL, PRIMARY KEY (w, client)) USING nvm_cmdlog;
CREATE TABLE item (id int PRIMARY KEY, v bigint) USING nvm_cmdlog;
SELECT nvm.partition_table(t, 'w') FROM unnest('{account,work}'::regclass[]) t;
INSERT INTO account SELECT w, i, 1000 FROM generate_series(1, 4) w, generate_series(1, 10) i;
INSERT INTO work SELECT w, c, 0 FROM generate_series(1, 4) w, generate_series(0, 15) c;
INSERT INTO item SELECT i, 0 FROM generate_series(1, 3) i;
-- within one lane
CREATE FUNCTION move(w int, i int, j int, k int, c int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE had bigint;
BEGIN
	SELECT sum(a.n) INTO had FROM account a WHERE a.w = move.w;
	UPDATE account a SET n = n - k WHERE a.w = move.w AND a.i = move.i;
	UPDATE account a SET n = n + k WHERE a.w = move.w AND a.i = move.j;
	UPDATE work x SET n = n + 1 WHERE x.w = move.w AND x.client = c;
	IF had <> (SELECT sum(a.n) FROM account a WHERE a.w = move.w) THEN
		RAISE EXCEPTION 'lane % has changed under a call', w;
	END IF;
END$$;
-- between two
CREATE FUNCTION send(v int, w int, i int, k int, c int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE account a SET n = n - k WHERE a.w = send.v AND a.i = send.i;
	UPDATE account a SET n = n + k WHERE a.w = send.w AND a.i = send.i;
	UPDATE work x SET n = n + 1 WHERE x.w = send.v AND x.client = c;
END$$;
-- of all
CREATE FUNCTION audit(c int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE had bigint;
BEGIN
	SELECT sum(n) INTO had FROM account;
	UPDATE work x SET n = n + 1 WHERE x.w = 1 AND x.client = c;
	IF had <> 40000 OR had <> (SELECT sum(n) FROM account) THEN
		RAISE EXCEPTION 'audit found %', had;
	END IF;
END$$;
SELECT nvm.register_command('move(int,int,int,int,int)', lanes => '{w}');
SELECT nvm.register_command('send(int,int,int,int,int)', lanes => '{v,w}');
SELECT nvm.register_command('audit(int)', lanes => 'all');
VACUUM ANALYZE;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $dir = PostgreSQL::Test::Utils::tempdir();
my $vars = "\\set v random(1, 4)\n\\set w random(1, 4)\n\\set i random(1, 5)\n\\set j random(6, 10)\n\\set k random(1, 9)\n";
my $done = 'UPDATE work SET n = n + 1 WHERE w = :w AND client = :client_id;';
my %script = (
	move => 'SELECT move(:w, :i, :j, :k, :client_id);',
	'prepared call' => 'BEGIN; SELECT move(:w, :i, :j, :k, :client_id); COMMIT;',
	# one of values by then, whose calls take lanes as any writer
	savepoint => 'BEGIN; SAVEPOINT s; SELECT move(:w, :i, :j, :k, :client_id); ROLLBACK TO s; SELECT send(:w, :w, :i, :k, :client_id); COMMIT;',
	send => 'SELECT send(:v, :w, :i, :k, :client_id);',
	audit => 'SELECT audit(:client_id);',
	update => "BEGIN; UPDATE account SET n = n - :k WHERE w = :w AND i = :i; UPDATE account SET n = n + :k WHERE w = :w AND i = :j; $done COMMIT;",
	lock => "BEGIN; SELECT n FROM account WHERE w = :w AND i = :i FOR UPDATE; UPDATE account SET n = n - :k WHERE w = :w AND i = :i; UPDATE account SET n = n + :k WHERE w = :w AND i = :j; $done COMMIT;",
	conflict => "BEGIN; INSERT INTO account VALUES (:w, :i, 0) ON CONFLICT (w, i) DO UPDATE SET n = account.n - :k; UPDATE account SET n = n + :k WHERE w = :w AND i = :j; $done COMMIT;",
	shared => 'UPDATE item SET v = v + 1 WHERE id = 1 + :k % 3;',
	between => "BEGIN; UPDATE account SET n = n - :k WHERE w = :w AND i = :i; UPDATE account SET n = n + :k WHERE w = :v AND i = :i; $done COMMIT;",
	both => "BEGIN; UPDATE account SET n = n - :k WHERE w = :w AND i = :i; UPDATE account SET n = n + :k WHERE w = :w AND i = :j; UPDATE item SET v = v + 1 WHERE id = 1; $done COMMIT;");
foreach my $name (sort keys %script)
{
	my $file = $name =~ s/ /_/r;
	append_to_file("$dir/$file.sql", "$vars$script{$name}\n");
}

# The scripts by 8 clients; transactions done, and deadlocks
sub run_all
{
	my ($seconds, @names) = @_;
	my @files = map { ('-f', "$dir/" . s/ /_/r . '.sql@10') } @names;
	my $before = sql('SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()');
	my ($out, $err) = ('', '');
	IPC::Run::run([ 'pgbench', '-n', '-c', 8, '-j', 2, '-T', $seconds, '--max-tries=100', @files, $node->connstr('postgres') ],
		'<', '/dev/null', '>', \$out, '2>', \$err);
	# what a session has counted is told when it ends
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'");
	my ($n) = $out =~ /transactions actually processed: (\d+)/;
	return ($n // 0, sql('SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()') - $before, $err);
}

my $sums = 'SELECT sum(n) FROM account';
my $seconds = NvmTest::is_long() ? 60 : 4;

# ---- who holds one lane, or lanes in a call

my ($n, $deadlocks, $err) = run_all($seconds, 'move', 'prepared call', 'send', 'audit', 'update', 'lock', 'shared');
cmp_ok($n, '>', 100, "calls and writers of one lane: $n transactions");
is($deadlocks, 0, 'without a deadlock');
unlike($err, qr/ERROR|aborted/, 'nor any error') or diag($err);
is(sql($sums), 40000, 'sums are right');
is(sql(q{SELECT replayable > 0, NOT reasons - 'function' <> '{}' FROM nvm.commands WHERE function = 'move(int,int,int,int,int)'::regprocedure}), 't|t', 'calls could be replayed');
is(sql('SELECT count(*) FROM pg_locks WHERE locktype = \'advisory\''), 0, 'no lane is left');

# ---- and of several, in any order: a deadlock is an error, and nothing more

sql('UPDATE work SET n = 0; UPDATE item SET v = 0');
($n, $deadlocks, $err) = run_all($seconds, sort keys %script);
cmp_ok($n, '>', 100, "all kinds: $n transactions, $deadlocks deadlocks");
unlike($err, qr/ERROR:(?!  deadlock detected)/, 'no other error') or diag($err);
is(sql($sums), 40000, 'sums are right');
is(sql('SELECT (SELECT sum(n) FROM work) + (SELECT sum(v) FROM item) >= ' . $n), 't', 'all that was done is there');
is(sql('SELECT count(*) FROM pg_locks WHERE locktype = \'advisory\''), 0, 'no lane is left');
$node->check_clean('at work');

# ---- kill -9 in the middle

foreach my $round (1 .. NvmTest::is_long() ? 10 : 2)
{
	sql('UPDATE work SET n = 0');
	my $load = $node->start_load(clients => 6, transactions => 3000, sql => sub {
		my ($c, $k) = @_;
		my ($v, $w, $i, $j) = (1 + $k % 4, 1 + int($k / 4) % 4, 1 + $k % 5, 6 + $k % 5);
		return "SELECT move($w, $i, $j, $c, $c);" if $c <= 2;
		return "SELECT send($v, $w, $i, 1, $c);" if $c == 3;
		return "BEGIN; UPDATE account SET n = n - 1 WHERE w = $w AND i = $i; UPDATE account SET n = n + 1 WHERE w = $w AND i = $j; UPDATE work SET n = n + 1 WHERE w = $w AND client = $c; COMMIT;" if $c <= 5;
		return "BEGIN; UPDATE item SET v = v + 1 WHERE id = 2; UPDATE work SET n = n + 1 WHERE w = $w AND client = $c; COMMIT;"; });
	$load->wait_acknowledged(200 * $round);
	$node->crash;
	my %acked = $load->finish;
	$node->start;
	is(sql($sums), 40000, "killed, round $round: sums are right");
	my %there = map { split /\|/ } split /\n/, sql('SELECT client, sum(n) FROM work WHERE client BETWEEN 1 AND 6 GROUP BY 1');
	foreach my $c (1 .. 6)
	{
		ok($there{$c} == $acked{$c} || $there{$c} == $acked{$c} + 1, "round $round: client $c has what was acknowledged") or
		  diag("$there{$c} of $acked{$c}");
	}
}
$node->check_clean('the end');
$node->stop;

done_testing();

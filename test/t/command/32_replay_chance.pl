# Copyright (c) 2026, pg_nvm contributors

# Calls alone, values and DDL by chance, losses at any moment, deaths amid the replay: all that was
# acknowledged is there once, and sums fit.
#
# Long form: 12 rounds, here 3.  SEED: where chance begins.

use strict;
use warnings;

use IPC::Run;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $seed   = $ENV{SEED} // int(rand(1_000_000));
my $rounds = NvmTest::is_long() ? 12 : 3;

srand($seed);
note("SEED=$seed");
my $node = NvmTest->start_new('chance', conf => <<CONF, sql => <<'SQL');
autovacuum = on
autovacuum_naptime = 1s
max_prepared_transactions = 5
max_worker_processes = 16
nvm.checkpoint_interval = 0
nvm.replay_workers = 3
deadlock_timeout = 100ms
restart_after_crash = on
CONF
CREATE TABLE acc (w int PRIMARY KEY, n bigint NOT NULL, s text) USING nvm_cmdlog;
CREATE TABLE ack (id bigserial, w int, c int, n int, note text, PRIMARY KEY (w, id), UNIQUE (w, c, n)) USING nvm_cmdlog;
CREATE TABLE tot (k int PRIMARY KEY, n bigint) USING nvm_cmdlog;
CREATE INDEX ON ack (c, n);
CREATE TABLE seen (c int, n int, PRIMARY KEY (c, n)) USING nvm_vlog;
CREATE TABLE inheap (c int, n int);
SELECT nvm.partition_table(t, 'w') FROM unnest('{acc,ack}'::regclass[]) t;
INSERT INTO acc SELECT w, 0, repeat('y', w * 300) FROM generate_series(1, 12) w;
INSERT INTO tot VALUES (1, 0);
CREATE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION work(w int, c int, n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE acc a SET n = a.n + step(), s = CASE WHEN work.n % 10 = 0 THEN repeat('z', work.n % 4000) ELSE s END WHERE a.w = work.w;
	INSERT INTO ack (w, c, n, note) VALUES (w, c, n, 'at ' || now() || random());
END$$;
CREATE FUNCTION two(v int, w int, c int, n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE acc a SET n = a.n + 5 WHERE a.w = two.v;
	UPDATE acc a SET n = a.n - 4 WHERE a.w = two.w;
	INSERT INTO ack (w, c, n) VALUES (w, c, n);
END$$;
CREATE FUNCTION again(w int, c int, n int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE acc a SET n = a.n + 1 WHERE a.w = again.w;
	INSERT INTO ack (w, c, n, note) VALUES (w, c, n, 'first');
	DELETE FROM ack k WHERE k.w = again.w AND k.c = again.c AND k.n = again.n;
	INSERT INTO ack (w, c, n, note) VALUES (w, c, n, repeat('again', n % 700));
END$$;
SELECT nvm.register_command(f, lanes => l) FROM (VALUES ('work(int,int,int)'::regprocedure, '{w}'), ('two(int,int,int,int)', '{v,w}'), ('again(int,int,int)', '{w}')) x(f, l);
SQL
sub sql { return $node->safe_psql('postgres', join("\n", map { "$_;" } @_)); }
my $mode = q{SELECT mode FROM nvm.command_modes WHERE database = 'postgres'};

sql('SELECT nvm.checkpoint()', 'SELECT work(1, 0, 1)', 'SELECT two(1, 2, 0, 2)', 'SELECT again(1, 0, 3)');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t/, 'a rehearsal');
sql(map { "SELECT nvm.promote_command('$_')" } 'work(int,int,int)', 'two(int,int,int,int)', 'again(int,int,int)');

sub statement
{
	my ($c, $n, $chance) = @_;
	my ($v, $w) = (1 + int(($n * 7 + $c * 3) % 12), 1 + int(($n * 5 + $c) % 12));
	$w = $w % 12 + 1 if $v == $w;
	return (
		"SELECT work($w, $c, $n);",
		"SELECT two($v, $w, $c, $n);",
		"SELECT again($w, $c, $n);",
		"BEGIN; UPDATE acc SET n = n + 1 WHERE w = $w; INSERT INTO ack (w, c, n) VALUES ($w, $c, $n); COMMIT;",
		"BEGIN; SAVEPOINT s; SELECT work($w, $c, $n); RELEASE s; COMMIT;",
		"BEGIN; INSERT INTO inheap VALUES ($c, $n); SELECT work($w, $c, $n); COMMIT;",
		"BEGIN; INSERT INTO seen VALUES ($c, $n); SELECT work($w, $c, $n); COMMIT;",
		"BEGIN; UPDATE tot SET n = n + 1 WHERE k = 1; INSERT INTO ack (w, c, n) VALUES ($w, $c, $n); UPDATE acc SET n = n + 1 WHERE w = $w; COMMIT;",
		"BEGIN; SELECT work($w, $c, $n); ROLLBACK; SELECT work($w, $c, $n);",
		"BEGIN; SELECT work($w, $c, $n); UPDATE ack SET note = 'by hand' WHERE w = $w AND c = $c; COMMIT;"
	)[ ($n * 3 + $c + int($n / 10)) % 10 ];
}
my @ddl = (
	q{CREATE OR REPLACE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1 -- %d'},
	'ALTER TABLE ack ADD extra_%d int', 'CREATE INDEX i_%d ON ack (c)', 'CREATE TABLE made_%d (a int) USING nvm_cmdlog',
	'VACUUM FULL acc', 'CREATE INDEX CONCURRENTLY ic_%d ON ack (n)', 'REINDEX INDEX CONCURRENTLY acc_pkey', 'CREATE ROLE r%d; GRANT r%1$d TO pg_monitor; DROP ROLE r%1$d', 'TRUNCATE tot; INSERT INTO tot VALUES (1, 0)'
);
my $number = 0;
for my $round (1 .. $rounds)
{
	my $load = $node->start_load(clients => 4, transactions => 4000, sql => sub { return statement($round * 10 + $_[0], $_[1]); });
	$load->wait_acknowledged(50);
	$node->poll_query_until('postgres', $mode, 'alone') or die 'the mode is another one';
	# DDL beside the load; in some rounds the loss comes amid it
	my ($beside, $said) = ('', '');
	for (1 .. int(rand(4)))
	{
		$beside .= (rand() < 0.3 ? 'SELECT nvm.checkpoint()' : sprintf($ddl[ rand @ddl ], ++$number)) . ";\n";
		$beside .= sprintf("SELECT pg_sleep(%.2f);\n", rand(0.3));
	}
	my $ddl = IPC::Run::start([ 'psql', '-Xq', '-d', $node->connstr('postgres') ], '<', \$beside, '>&', \$said);
	my $amid = $round % 2 == 0;
	usleep(rand(500_000)) if $amid;
	$ddl->finish unless $amid;
	if (!$amid && rand() < 0.7)
	{
		$node->poll_query_until('postgres', $mode, 'alone');
		usleep(rand(700_000));
	}
	$node->crash;
	$load->finish;
	eval { $ddl->finish } if $amid;
	my $kill = int(rand(4));
	$node->start;
	my $told = '';
	if ($kill)
	{
		for (1 .. 300)
		{
			my ($ret, $pid) = $node->psql('postgres', q{SELECT pid || ' ' || backend_type FROM pg_stat_activity WHERE backend_type ~ '^nvm replay (player|leader)|nvm log recovery$' AND EXISTS (SELECT FROM nvm.replayed_databases WHERE state = 'replaying') ORDER BY random() LIMIT 1});
			if ($pid && $pid =~ /^(\d+)/)
			{
				usleep(rand(200_000));
				kill($kill == 1 ? 'KILL' : 'TERM', $1);
				$told = "$kill $pid";
				last;
			}
			last if (($node->psql('postgres', q{SELECT state FROM nvm.log_recovery}))[1] // '') eq 'whole';
			usleep(20_000);
		}
	}
	NvmTest::wait_until('it is up', sub { ($node->psql('postgres', q{SELECT state FROM nvm.log_recovery}))[1] =~ /whole|failed/ || ($node->psql('postgres', q{SELECT string_agg(state, '') FROM nvm.replayed_databases}))[1] =~ /stopped/ });
	my $state = sql(q{SELECT coalesce(string_agg(concat_ws(': ', state, transactions, call, problem, detail), '; '), '') FROM nvm.replayed_databases});
	note("round $round: $state; killed: $told; $beside$said");
	unlike($state, qr/stopped/, "round $round: no call comes to something else") or last;
	$load->check('postgres', "SELECT c - $round * 10, n FROM ack WHERE c / 10 = $round", name => "round $round");
	is(sql(q{SELECT sum(n) FROM acc}), sql('SELECT count(*) FROM ack'), 'sums fit');
	is(sql(q{SELECT count(*) FROM inheap h WHERE NOT EXISTS (SELECT FROM ack a WHERE (a.c, a.n) = (h.c, h.n))}), '0', 'heap and calls: both or none');
	is(sql(q{SELECT count(*) FROM seen h WHERE NOT EXISTS (SELECT FROM ack a WHERE (a.c, a.n) = (h.c, h.n))}), '0', 'nvm_vlog and calls: both or none');
	my $by = q{SELECT md5(string_agg(concat_ws(' ', w, id, c, n, note), ',' ORDER BY w, id)) FROM ack WHERE w > 0};
	is(sql('SET enable_seqscan = off', 'SET enable_bitmapscan = off', $by), sql('SET enable_indexscan = off', 'SET enable_bitmapscan = off', $by), 'indexes lead to the rows');
}
$node->check_clean('in the end');
$node->stop;
done_testing();

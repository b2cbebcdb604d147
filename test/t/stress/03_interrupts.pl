# Copyright (c) 2026, pg_nvm contributors

# Sessions that are cancelled, terminated or timed out at any moment of a mixed
# load: statement_timeout, lock_timeout, idle_in_transaction_session_timeout,
# pg_cancel_backend, pg_terminate_backend and clients that just go.  Each
# transaction leaves the same traces in nvm tables and in a heap table; whatever
# was cut off left none, whatever committed left all.
#
# NVM_STRESS_SECONDS, NVM_STRESS_SEED, NVM_STRESS_AM: as in stress/01_clients.pl
#
# Long form: two minutes, here 12 seconds.

use strict;
use warnings;

use IPC::Run ();
use NvmTest;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{NVM_STRESS_SECONDS} || (NvmTest::is_long() ? 120 : 12);
my $seed    = $ENV{NVM_STRESS_SEED} // int(time()) % 1_000_000;
my $am      = $ENV{NVM_STRESS_AM}   // 'nvm';
my $clients = 6;

note("NVM_STRESS_SEED=$seed NVM_STRESS_SECONDS=$seconds");
srand($seed);

# 40 accounts; noted and noted_heap say what moved.  big holds a large value of
# each mover, kid a row per transfer under a foreign key.
my $node = NvmTest->start_new('interrupts', conf => <<CONF, sql => <<SQL);
max_connections = 40
deadlock_timeout = 20ms
autovacuum_naptime = 1s
log_min_messages = fatal
min_parallel_table_scan_size = 0
parallel_setup_cost = 0
parallel_tuple_cost = 0
CONF
CREATE TABLE acct (id int PRIMARY KEY, balance int NOT NULL, k int NOT NULL, pad text) USING $am;
CREATE INDEX acct_k ON acct (k);
INSERT INTO acct SELECT g, 100, g, 'x' FROM generate_series(1, 40) g;
CREATE TABLE noted (n bigint PRIMARY KEY, a int, b int, d int) USING $am;
CREATE TABLE noted_heap (n bigint PRIMARY KEY, a int, b int, d int) USING heap;
CREATE TABLE big (who int PRIMARY KEY, n bigint, value text, sum text) USING $am;
CREATE TABLE kid (n bigint REFERENCES noted ON DELETE CASCADE, id int REFERENCES acct) USING $am;
CREATE INDEX kid_n ON kid (n);
CREATE SEQUENCE seq;

CREATE FUNCTION move(a int, b int, d int, way int, heap bool) RETURNS bigint LANGUAGE plpgsql AS \$\$
DECLARE
	num bigint := nextval('seq');
BEGIN
	IF way % 4 = 0 THEN PERFORM FROM acct WHERE id IN (a, b) ORDER BY id FOR UPDATE; END IF;
	IF way % 4 = 1 THEN PERFORM FROM acct WHERE id = a FOR KEY SHARE; PERFORM FROM acct WHERE id = a FOR SHARE; END IF;
	UPDATE acct SET balance = balance - d, pad = repeat('y', d * 10) WHERE id = a;
	BEGIN
		IF way % 9 = 0 THEN UPDATE acct SET balance = balance - 1000000, k = -1; END IF;
		UPDATE acct SET balance = balance - 1000000, k = k + 1 WHERE id IN (a, b);
		DELETE FROM noted WHERE n IN (SELECT n FROM noted WHERE way % 3 = 0 LIMIT 2);
		RAISE EXCEPTION 'back' USING errcode = 'NV001';
	EXCEPTION WHEN SQLSTATE 'NV001' THEN NULL;
	END;
	IF way % 5 = 0 THEN
		UPDATE acct SET k = k + 1000 WHERE id = b;
	END IF;
	UPDATE acct SET balance = balance + d WHERE id = b;
	INSERT INTO noted VALUES (num, a, b, d);
	INSERT INTO kid VALUES (num, a), (num, b);
	IF way % 6 = 0 THEN
		INSERT INTO big SELECT way % 3, num, v, md5(v) FROM repeat(md5(num::text), 700) v
			ON CONFLICT (who) DO UPDATE SET n = EXCLUDED.n, value = EXCLUDED.value, sum = EXCLUDED.sum;
	END IF;
	INSERT INTO noted_heap VALUES (num, a, b, d);
	RETURN num;
END \$\$;
SQL

my $connstr = $node->connstr('postgres');
my $until   = time() + $seconds;
my %children;

sub child
{
	my ($name, $what) = @_;
	my $pid = fork() // die "fork: $!";
	if ($pid == 0)
	{
		local %ENV = $node->_get_env();
		srand($seed + length($name) * 1000 + ord(substr $name, -1));
		my $ok = eval { $what->() while time() < $until; 1 };
		diag("$name: $@") unless $ok;
		POSIX::_exit($ok ? 0 : 1);
	}
	$children{$pid} = $name;
	return;
}

# What may come of being interrupted
my $expected =
  qr/canceling statement|terminating connection|terminating background worker "parallel worker"|server closed the connection|connection to server was lost|This probably means|before or while processing|deadlock detected|could not serialize|current transaction is aborted|no transaction in progress|invalidat|could not obtain lock|SSL|terminated abnormally|savepoint .* does not exist|can only be used in transaction blocks|lost connection to parallel worker|cursor "c" (?:already exists|does not exist)|relation "t" (?:already exists|does not exist)/;

sub transaction
{
	my @level = ('READ COMMITTED', 'READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE');
	my ($a, $b) = (1 + int rand 40, 1 + int rand 40);
	$b = $a % 40 + 1 if $a == $b;
	my $move = sprintf 'SELECT move(%d, %d, %d, %d, true)', $a, $b, 1 + int rand 20, int rand 10000;
	my $how = int rand 10;
	my $sql = '';
	$sql .= 'SET statement_timeout = ' . int(1 + rand 60) . ";\n" if rand() < 0.3;
	$sql .= 'SET lock_timeout = ' . int(1 + rand 30) . ";\n"      if rand() < 0.2;
	$sql .= "SET idle_in_transaction_session_timeout = 5;\n"       if $how == 9;
	$sql .= 'BEGIN ISOLATION LEVEL ' . $level[ int rand @level ] . ";\n";
	$sql .= "SAVEPOINT s;\n$move;\nROLLBACK TO s;\n"  if $how == 1;
	$sql .= "SELECT count(*), sum(balance) FROM acct;\n" if $how == 2;
	$sql .= "DECLARE c CURSOR WITH HOLD FOR SELECT * FROM acct ORDER BY k; FETCH 5 FROM c;\n" if $how == 3;
	$sql .= "DECLARE c CURSOR FOR SELECT * FROM acct WHERE id <> $a FOR NO KEY UPDATE; FETCH 3 FROM c; UPDATE acct SET pad = 'z' WHERE CURRENT OF c;\n"
	  if $how == 4;
	$sql .= "SELECT id FROM acct ORDER BY random() LIMIT 3 FOR UPDATE SKIP LOCKED;\n" if $how == 5;
	$sql .= "CREATE TEMP TABLE t USING $am AS SELECT * FROM acct;\nUPDATE t SET balance = 0;\nDROP TABLE t;\n" if $how == 6;
	$sql .= "COPY (SELECT g, g, g, 1 FROM generate_series(1, 3) g) TO STDOUT;\n" if $how == 7;
	$sql .= "$move;\n";
	$sql .= "\\! sleep 0.01\n" if $how == 9 || $how == 8;
	$sql .= rand() < 0.1 ? "ROLLBACK;\n" : "COMMIT;\n";
	return $sql . "CLOSE ALL;\nRESET ALL;\n";
}

foreach my $c (1 .. $clients)
{
	child("client$c", sub {
		my $sql = join '', map { transaction() } 1 .. 8;
		my ($out, $err) = ('', '');
		my $h = IPC::Run::start([ 'psql', '-XqAt', '-d', "$connstr application_name=victim" ],
			'<', \$sql, '>', \$out, '2>', \$err);
		if (rand() < 0.1)
		{
			# the client goes away in the middle
			usleep(rand() * 200_000);
			eval { $h->kill_kill(grace => 0) };
			return;
		}
		eval { $h->finish };
		my @bad = grep { /ERROR|FATAL|PANIC/ && !/$expected/ } split /\n/, $err;
		die "unexpected: @bad" if @bad;
	});
}

# the one who interrupts, and VACUUM
child('killer', sub {
	my $f = rand() < 0.6 ? 'pg_cancel_backend' : 'pg_terminate_backend';
	my $err;
	IPC::Run::run([ 'psql', '-XqAt', '-d', $connstr, '-c',
		"SELECT count($f(pid)) FROM pg_stat_activity WHERE application_name = 'victim' AND random() < 0.3" ],
		'>', \my $out, '2>', \$err);
	die $err if $err =~ /ERROR|FATAL/;
	usleep(rand() * 60_000);
});
child('vacuum', sub {
	my @what = ('VACUUM acct', 'VACUUM (INDEX_CLEANUP ON) noted', 'VACUUM big', 'VACUUM kid', 'ANALYZE acct',
		"SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE '%VACUUM%' AND pid <> pg_backend_pid()");
	IPC::Run::run([ 'psql', '-XqAt', '-d', $connstr, '-c', $what[ int rand @what ] ], '>', \my $out, '2>', \my $err);
	die $err if $err =~ /ERROR/ && $err !~ /$expected/;
	usleep(rand() * 100_000);
});

my $failed = 0;
while ((my $pid = waitpid(-1, 0)) > 0)
{
	$failed++ if $children{$pid} && $? != 0;
	delete $children{$pid};
}
is($failed, 0, 'every client met only errors that interruptions explain');
unlike($node->log_since_start, qr/PANIC|was terminated by signal/, 'no process crashed');
# those that lost their clients notice it
$node->poll_query_until('postgres',
	"SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'victim'")
  or die 'sessions remain';

my $n = $node->safe_psql('postgres', 'SELECT count(*) FROM noted');
cmp_ok($n, '>', 10, 'some got through');
note("$n transactions committed of " . $node->safe_psql('postgres', 'SELECT last_value FROM seq'));
is($node->safe_psql('postgres', 'SELECT count(*), sum(balance) FROM acct'), '40|4000', 'nothing was lost or made');
is($node->safe_psql('postgres', 'SELECT * FROM noted EXCEPT SELECT * FROM noted_heap'), '', 'nvm has no more than heap');
is($node->safe_psql('postgres', 'SELECT * FROM noted_heap EXCEPT SELECT * FROM noted'), '', 'heap has no more than nvm');
is($node->safe_psql('postgres', <<SQL), '', 'balances are what heap says they are');
SELECT id, balance, 100 - coalesce(o, 0) + coalesce(i, 0) FROM acct
LEFT JOIN (SELECT a, sum(d) AS o FROM noted_heap GROUP BY 1) x ON x.a = id
LEFT JOIN (SELECT b, sum(d) AS i FROM noted_heap GROUP BY 1) y ON y.b = id
WHERE balance <> 100 - coalesce(o, 0) + coalesce(i, 0)
SQL
is($node->safe_psql('postgres', 'SELECT count(*) FROM kid'), 2 * $n, 'each has its two rows below');
is($node->safe_psql('postgres', 'SELECT who FROM big WHERE md5(value) <> sum OR value <> repeat(md5(n::text), 700)'), '', 'large values are whole');
is($node->safe_psql('postgres', <<SQL), '40|40|40', 'each way leads to the same rows');
SET enable_seqscan = off; SET enable_bitmapscan = off;
SELECT (SELECT count(*) FROM acct WHERE id > 0), (SELECT count(*) FROM acct WHERE k > 0), (SELECT count(k) FROM acct WHERE k > -5)
SQL
if ($am eq 'nvm')
{
	$node->check_clean('after the load');
	$node->safe_psql('postgres', 'VACUUM acct; VACUUM noted; VACUUM big; VACUUM kid');
	$node->check_clean('after VACUUM');
}
# everybody can still write every row
is($node->safe_psql('postgres', 'UPDATE acct SET balance = balance RETURNING 1') =~ tr/1//, 40, 'no lock remains');

done_testing();

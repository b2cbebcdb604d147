# Copyright (c) 2026, pg_nvm contributors

# Many clients that do everything at once: row locks of every strength, savepoints
# with rollback, prepared transactions, inserts, deletes, changes of keys, foreign
# keys.  Money is neither made nor lost, while they run and at the end; nobody
# runs into a deadlock, as nobody does on a heap table, since all of them take
# their locks in order; and when the tables are dropped everything is given back.
#
# Long form: 64 clients for five minutes, then a crash in the middle of it, and the
# same load on heap tables for a minute; here 8 clients for 8 seconds.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $long    = NvmTest::is_long();
my $clients = $long ? 64 : 8;
my $seconds = $long ? 300 : 8;
my $rows    = $long ? 1000 : 200;

my $node = NvmTest->start_new('mixed_soak', conf => <<CONF);
autovacuum_naptime = 1s
deadlock_timeout = 100ms
max_connections = 100
max_prepared_transactions = 100
CONF

# Locks on accounts are taken in the order of their ids, and on ledger after them.
# Whoever changes an account shares its holder's key, as foreign keys do, and
# nobody takes a stronger lock on a holder while he has an account.
my %script = (
	'move' => [ 20, <<'SQL' ],
\set a random(1, :rows - 1)
\set b random(:a + 1, :rows)
\set n random(1, 9)
BEGIN;
UPDATE account SET balance = balance - :n WHERE id = :a;
UPDATE account SET balance = balance + :n WHERE id = :b;
INSERT INTO ledger (src, dst, n) VALUES (:a, :b, :n);
COMMIT;
SQL
	'locked move' => [ 15, <<'SQL' ],
\set a random(1, :rows - 1)
\set b random(:a + 1, :rows)
BEGIN;
SELECT balance AS x FROM account WHERE id = :a FOR UPDATE \gset
SELECT balance AS y FROM account WHERE id = :b FOR NO KEY UPDATE \gset
UPDATE account SET balance = :y WHERE id = :a;
UPDATE account SET balance = :x WHERE id = :b;
COMMIT;
SQL
	'share' => [ 10, <<'SQL' ],
\set a random(1, :rows - 10)
BEGIN;
SELECT count(*) FROM (SELECT FROM account WHERE id BETWEEN :a AND :a + 9 ORDER BY id FOR KEY SHARE) s;
SELECT count(*) FROM (SELECT FROM holder WHERE id = 1 + :a % 20 FOR KEY SHARE) s;
COMMIT;
BEGIN;
SELECT count(*) FROM (SELECT FROM account WHERE id = :a FOR SHARE) s;
COMMIT;
SQL
	'skip' => [ 10, <<'SQL' ],
BEGIN;
WITH q AS MATERIALIZED (SELECT id FROM account ORDER BY random() LIMIT 1),
	p AS MATERIALIZED (SELECT a.id FROM account a JOIN q USING (id) FOR UPDATE OF a SKIP LOCKED)
UPDATE account SET note = 'skipped to' FROM p WHERE account.id = p.id;
COMMIT;
SQL
	'savepoints' => [ 15, <<'SQL' ],
\set a random(1, :rows - 2)
\set n random(1, 9)
BEGIN;
UPDATE account SET balance = balance + 1000 WHERE id = :a;
SAVEPOINT one;
UPDATE account SET balance = balance - 1000 WHERE id = :a;
SAVEPOINT two;
SELECT count(*) FROM (SELECT FROM account WHERE id = :a + 1 FOR UPDATE) s;
DELETE FROM account WHERE id = :a + 1;
INSERT INTO account VALUES (:a + 1, -1, 1, 'never');
ROLLBACK TO two;
UPDATE account SET balance = balance + :n WHERE id = :a + 1;
UPDATE account SET balance = balance - :n WHERE id = :a + 2;
RELEASE one;
COMMIT;
SQL
	'abort' => [ 5, <<'SQL' ],
\set a random(1, :rows)
BEGIN;
UPDATE account SET balance = -1000000 WHERE id = :a;
INSERT INTO ledger (src, dst, n) VALUES (:a, :a, 1000000);
ROLLBACK;
SQL
	# not of those that others change: who waits for a row that is deleted gives up
	'replace' => [ 5, <<'SQL' ],
BEGIN;
SELECT id AS a, balance AS x, holder AS h FROM account WHERE id = -1 - :client_id FOR UPDATE \gset
DELETE FROM account WHERE id = :a;
INSERT INTO account VALUES (:a, :x, :h, 'replaced');
COMMIT;
SQL
	'key' => [ 5, <<'SQL' ],
\set a random(1, :rows)
\set h random(1, 20)
UPDATE account SET holder = :h, code = code + 1 WHERE id = :a;
SQL
	# the holder's key is changed by who has no account, and may have to wait
	'holder' => [ 3, <<'SQL' ],
\set h random(1, 20)
UPDATE holder SET name = 'renamed' WHERE id = :h;
SQL
	'come and go' => [ 5, <<'SQL' ],
\set r random(1, 1000000000)
\set h random(1, 20)
BEGIN;
INSERT INTO holder VALUES (:r, 'guest') ON CONFLICT DO NOTHING;
INSERT INTO guest VALUES (:r, :r) ON CONFLICT DO NOTHING;
COMMIT;
BEGIN;
DELETE FROM holder WHERE id = :r AND id > 20;
COMMIT;
SQL
	'purge' => [ 2, <<'SQL' ],
DELETE FROM ledger WHERE id IN (SELECT id FROM ledger ORDER BY id LIMIT 50 FOR UPDATE SKIP LOCKED);
SQL
	'two phases' => [ 8, <<'SQL' ],
\set a random(1, :rows - 1)
\set b random(:a + 1, :rows)
\set r random(1, 1000000000)
BEGIN;
UPDATE account SET balance = balance - 3 WHERE id = :a;
SAVEPOINT s;
UPDATE account SET balance = balance + 7 WHERE id = :b;
ROLLBACK TO s;
UPDATE account SET balance = balance + 3 WHERE id = :b;
PREPARE TRANSACTION 'soak_:client_id_:r';
\if :commit
COMMIT PREPARED 'soak_:client_id_:r';
\else
ROLLBACK PREPARED 'soak_:client_id_:r';
\endif
SQL
	# sees a state that adds up, at every isolation level
	'check' => [ 2, <<'SQL' ],
SELECT 1 / (sum(balance) = 0 AND count(*) = :rows + :clients)::int FROM account;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT 1 / (sum(balance) = 0 AND count(*) = :rows + :clients)::int FROM account;
SELECT pg_sleep(0.02);
SELECT 1 / (sum(balance) = 0 AND count(*) = :rows + :clients)::int FROM (SELECT * FROM account WHERE id > -1000 ORDER BY id OFFSET 0) a;
SELECT 1 / (count(*) = 0)::int FROM account a LEFT JOIN holder h ON h.id = a.holder WHERE h.id IS NULL;
SELECT 1 / (count(*) = 0)::int FROM guest g LEFT JOIN holder h ON h.id = g.holder WHERE h.id IS NULL;
COMMIT;
SQL
);

sub create
{
	my ($am) = @_;
	$node->safe_psql('postgres', <<SQL);
SET default_table_access_method = $am;
CREATE TABLE holder (id int PRIMARY KEY, name text);
CREATE TABLE account (id int PRIMARY KEY, balance bigint, holder int REFERENCES holder, note text, code int DEFAULT 0);
CREATE INDEX account_code ON account (code);
CREATE TABLE guest (id int PRIMARY KEY, holder int REFERENCES holder ON DELETE CASCADE);
CREATE INDEX guest_holder ON guest (holder);
CREATE TABLE ledger (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, src int, dst int, n int);
INSERT INTO holder SELECT i, 'holder ' || i FROM generate_series(1, 20) i;
INSERT INTO account SELECT i, 0, 1 + i % 20, 'new' FROM generate_series(1, $rows) i;
INSERT INTO account SELECT -i, 5 * (-1) ^ i, 1 + i % 20, 'own' FROM generate_series(1, $clients) i;
SQL
	return;
}

sub files
{
	my @files;

	foreach my $name (sort keys %script)
	{
		my ($weight, $sql) = @{ $script{$name} };
		my $file = "$PostgreSQL::Test::Utils::tmp_check/soak_$name.sql";

		$file =~ s/ (?=[^\/]*$)/_/g;
		unlink $file;
		# a name cannot be made of variables in pgbench: the client makes it
		if ($sql =~ s/'soak_:client_id_:r'/:name/g)
		{
			$sql =~ s/^BEGIN;/\\set commit random(0, 3)\nSELECT quote_literal('soak_' || :client_id || '_' || :r) AS name \\gset\nBEGIN;/m;
		}
		append_to_file($file, $sql);
		push @files, '-f', "$file\@$weight";
	}
	return @files;
}

sub soak
{
	my ($name, $for, $look) = @_;
	my ($out, $err) = ('', '');
	my $h = IPC::Run::start(
		[ 'pgbench', '-n', '-c', $clients, '-j', 2, '-T', $for, '-D', "rows=$rows", '-D', "clients=$clients", files(), $node->connstr('postgres') ],
		'<', \undef, '>', \$out, '2>', \$err);
	if ($look)
	{
		# when all of them have done everything, and towards the end
		sleep($for / 2);
		$look->();
		sleep($for / 2 - 1);
		$look->();
	}
	my $ok = IPC::Run::finish($h);
	note("$name: $1 transactions") if $out =~ /actually processed: (\d+)/;
	return ($ok, $err);
}

sub state_is_right
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql('postgres', 'SELECT sum(balance), count(*), count(DISTINCT id), min(id), max(id) FROM account'),
		join('|', 0, ($rows + $clients) x 2, -$clients, $rows), "$name: no money and no account is lost or made");
	is($node->safe_psql('postgres', "SELECT count(*) FROM account a LEFT JOIN holder h ON h.id = a.holder WHERE h.id IS NULL"
			. " UNION ALL SELECT count(*) FROM guest g LEFT JOIN holder h ON h.id = g.holder WHERE h.id IS NULL"
			. " UNION ALL SELECT count(*) FROM holder WHERE id BETWEEN 1 AND 20"),
		"0\n0\n20", "$name: foreign keys hold");
	is($node->safe_psql('postgres', 'SELECT sum(src - src) FROM ledger WHERE n >= 1000000'), '', "$name: nothing that was rolled back is there");
	return;
}

sub deadlocks
{
	return $node->safe_psql('postgres', "SELECT deadlocks FROM pg_stat_database WHERE datname = 'postgres'");
}

sub used_units
{
	return $node->safe_psql('postgres', 'SELECT sum(bytes) FROM nvm.relations') || 0;
}

# in kB, of memory that is the process's own; not what it alone has touched of the pool
sub private_memory
{
	my ($pid) = @_;
	open my $f, '<', "/proc/$pid/smaps_rollup" or return;
	local $/;
	return <$f> =~ /^Anonymous:\s+(\d+)/m ? $1 : undef;
}

my $bytes_before = used_units();

create('nvm');

# What the clients' backends have of their own on an average, and what the server's
# processes share, in kB
my (@own, @shared);
sub look
{
	my @kb = map { eval { NvmTest::private_kb($_) } // () } split /\n/,
	  $node->safe_psql('postgres', "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()");
	my $sum = 0;

	$sum += $_ foreach @kb;
	push @own, int($sum / (@kb || 1));
	push @shared, $node->shared_kb;
	return;
}

my ($ok, $err) = soak('nvm', $seconds, \&look);
cmp_ok($own[0], '>', 0, 'the clients were looked at');
cmp_ok($own[1] - $own[0], '<', 1024 + NvmTest::sanitizer_kb(), "their backends have @own kB of their own");
cmp_ok($shared[1] - $shared[0], '<', 2048, "the server has @shared kB of shared memory");
ok($ok, "$clients clients") or diag($err);
unlike($err, qr/aborted|ERROR/, 'none of them sees an error') or diag($err);
state_is_right('nvm');
is(deadlocks(), 0, 'no deadlock');
is($node->safe_psql('postgres', "SELECT c.relname, f FROM pg_class c, nvm.check(c.oid) f WHERE relname IN ('account', 'holder', 'guest', 'ledger')"),
	'', 'no fault found');
is($node->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts'), 0, 'no prepared transaction is left');

# A session's memory does not grow with what it does.
my $session = $node->session;
my $work = 'DO $$ BEGIN FOR i IN 1..2000 LOOP UPDATE account SET balance = balance + 1 WHERE id = 1; '
  . 'UPDATE account SET balance = balance - 1 WHERE id = 1; COMMIT; END LOOP; END $$';
$session->sql($work);
my $first = private_memory($session->pid);
$session->sql($work) foreach 1 .. 3;
my $last = private_memory($session->pid);
SKIP:
{
	skip 'no smaps_rollup', 1 unless defined $last;
	cmp_ok($last, '<', $first + 1024 + NvmTest::sanitizer_kb(), "memory of a backend: $first kB, then $last kB");
}

if ($long)
{
	# Clients at work, prepared transactions among it, when the server dies
	my $pid = fork();
	if ($pid == 0)
	{
		soak('crash', 60);
		POSIX::_exit(0);
	}
	sleep 20;
	$node->crash;
	waitpid $pid, 0;
	$node->start;
	$node->safe_psql('postgres', "ROLLBACK PREPARED '$_'")
	  foreach split /\n/, $node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts');
	state_is_right('after a crash');
	($ok, $err) = soak('after a crash', 20);
	ok($ok, 'work goes on') or diag($err);
	state_is_right('and at the end');
}

$node->safe_psql('postgres', 'DROP TABLE account, guest, holder, ledger');
is(used_units(), $bytes_before, 'everything is given back when the tables are dropped');

# The same load on heap tables knows no deadlock either.
if ($long)
{
	my $count = deadlocks();
	create('heap');
	($ok, $err) = soak('heap', 60);
	ok($ok, 'on heap tables') or diag($err);
	is(deadlocks(), $count, 'no deadlock on heap tables');
}

$node->stop;
done_testing();

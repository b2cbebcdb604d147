# Copyright (c) 2026, pg_nvm contributors

# Concurrent clients that move balances about by every kind of change, while
# old snapshots, VACUUM, index builds, cancelled and killed backends get in
# their way.  Whatever happens, every snapshot sees every row once, whichever
# way it looks, and the same totals.
#
# NVM_STRESS_SECONDS: how long the clients run; NVM_STRESS_SEED: their seed;
# NVM_STRESS_CLIENTS: how many of them; NVM_STRESS_AM: another access method,
# to see what the test itself makes of it.
#
# Long form: three minutes, here 40 seconds.

use strict;
use warnings;

use IPC::Run ();
use NvmTest;
use POSIX ();
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $seconds = $ENV{NVM_STRESS_SECONDS} // (NvmTest::is_long() ? 180 : 40);
my $seed    = $ENV{NVM_STRESS_SEED}    // int(time()) % 1_000_000;
my $clients = $ENV{NVM_STRESS_CLIENTS} // 8;
my $am      = $ENV{NVM_STRESS_AM}      // 'nvm';

note("NVM_STRESS_SEED=$seed NVM_STRESS_SECONDS=$seconds NVM_STRESS_CLIENTS=$clients");
srand($seed);

# What is rolled back with a storage, or beside one
my $node = NvmTest->start_new('stress', conf => <<CONF, sql => <<SQL);
default_table_access_method = heap
max_connections = 60
autovacuum_naptime = 1s
autovacuum_vacuum_threshold = 20
autovacuum_vacuum_scale_factor = 0.02
autovacuum_vacuum_insert_threshold = 100
autovacuum_analyze_threshold = 200
autovacuum_vacuum_cost_delay = 0
deadlock_timeout = 50ms
log_autovacuum_min_duration = -1
min_parallel_table_scan_size = 0
parallel_setup_cost = 0
parallel_tuple_cost = 0
CONF
CREATE TABLE kept (a int) USING $am;
BEGIN; CREATE TABLE first (a int) USING $am; INSERT INTO first VALUES (1); COMMIT;
BEGIN; CREATE TABLE other (a int) USING $am; INSERT INTO first VALUES (666); ROLLBACK;
BEGIN; CREATE TABLE other (a int) USING $am; DELETE FROM first; ROLLBACK;
BEGIN; TRUNCATE kept; INSERT INTO first VALUES (667); ROLLBACK;
BEGIN;
SAVEPOINT s; CREATE TABLE nested (a int) USING $am; INSERT INTO nested VALUES (1); RELEASE s;
SAVEPOINT s; INSERT INTO nested VALUES (666); ROLLBACK TO s;
SAVEPOINT s; DELETE FROM nested; TRUNCATE nested; INSERT INTO nested VALUES (667); ROLLBACK TO s;
COMMIT;
BEGIN;
TRUNCATE nested; INSERT INTO nested VALUES (668);
SAVEPOINT s; TRUNCATE nested; INSERT INTO nested VALUES (669); DROP TABLE nested; ROLLBACK TO s;
SAVEPOINT s; INSERT INTO nested VALUES (670); TRUNCATE nested; ROLLBACK TO s;
ROLLBACK;
BEGIN; INSERT INTO first VALUES (671);
SAVEPOINT s; CREATE TABLE inner_one (a int) USING $am; INSERT INTO inner_one VALUES (1); DROP TABLE inner_one; RELEASE s;
SAVEPOINT s; CREATE TABLE inner_one (a int) USING $am; INSERT INTO first VALUES (672); ROLLBACK TO s;
ROLLBACK;
SQL
# their stamps become old enough to be taken on trust
$node->safe_psql('postgres', 'SELECT txid_current() FROM pg_sleep(0.5)') for 1 .. 3;
is($node->safe_psql('postgres', 'SELECT a FROM first'), '1', 'rows beside a storage that was rolled back');
is($node->safe_psql('postgres', 'SELECT a FROM nested'), '1', 'rows of a savepoint in a new storage');

# An abort that cannot be played is the gap collector's, whatever an old
# snapshot keeps from freezing
if ($am eq 'nvm')
{
	my $old = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT a FROM first');
	$node->safe_psql('postgres', <<SQL);
INSERT INTO kept SELECT generate_series(1, 3);
SET nvm.failpoint = 'abort-mid-undo:error';
BEGIN; INSERT INTO first VALUES (673); DELETE FROM kept WHERE a = 1; UPDATE kept SET a = 674 WHERE a = 2; INSERT INTO kept VALUES (675); ROLLBACK;
SQL
	# time for a sweep, whose end waits for the snapshot
	sleep(3);
	$old->sql('COMMIT');
	$old->drop;
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'the gap stays';
	$node->safe_psql('postgres', 'SELECT txid_current() FROM pg_sleep(0.5)') for 1 .. 3;
	is($node->safe_psql('postgres', 'SELECT a FROM first UNION ALL SELECT a FROM kept ORDER BY a'),
		"1\n1\n2\n3", 'an abort that cannot be played');
	$node->check_clean('after it');
}
my $log_start = -s $node->logfile;

# Rows are numbered modulo 100000, once each.  chk says whether a row is whole.
$node->safe_psql('postgres', <<SQL);
CREATE FUNCTION chk(id int, branch int, u int, balance int) RETURNS bigint IMMUTABLE LANGUAGE sql AS
	'SELECT id * 1000003::bigint + branch * 10007 + coalesce(u, 0) * 101 + balance';
CREATE TABLE acct (id int PRIMARY KEY, branch int, u int, balance int, pad text, big text, bigmd5 text, chk bigint) USING $am;
-- the others are nvm_btree where $am is nvm
SET nvm.default_index_method = btree;
CREATE INDEX acct_branch ON acct USING btree (branch);
RESET nvm.default_index_method;
CREATE UNIQUE INDEX acct_u ON acct (u);
CREATE INDEX acct_brin ON acct USING brin (id) WITH (pages_per_range = 1, autosummarize = on);
CREATE TABLE hot (LIKE acct INCLUDING INDEXES) USING $am;
CREATE TABLE keyed (LIKE acct INCLUDING INDEXES, CONSTRAINT keyed_u_later UNIQUE (u) DEFERRABLE INITIALLY DEFERRED) USING $am;
CREATE INDEX keyed_balance ON keyed (balance);
CREATE INDEX keyed_hash ON keyed USING hash (branch);
CREATE INDEX keyed_part ON keyed (id) WHERE balance >= 100;
CREATE INDEX keyed_gin ON keyed USING gin ((ARRAY[branch, u]));
INSERT INTO acct SELECT i, i % 50, i * 2, 100, '', '', md5(''), chk(i, i % 50, i * 2, 100) FROM generate_series(0, 999) i;
INSERT INTO hot SELECT i, i % 50, i * 2, 100, '', '', md5(''), chk(i, i % 50, i * 2, 100) FROM generate_series(0, 5) i;
INSERT INTO keyed SELECT i, i % 50, i * 2, 100, '', '', md5(''), chk(i, i % 50, i * 2, 100) FROM generate_series(0, 199) i;
CREATE TABLE cnt (k int PRIMARY KEY, n int) USING $am;
CREATE TABLE hist (d int, n int DEFAULT 0) USING $am;
CREATE TABLE parent (id int PRIMARY KEY, v int, w int) USING $am;
CREATE INDEX parent_w ON parent (w);
CREATE TABLE child (pid int REFERENCES parent, v int) USING $am;
CREATE INDEX child_pid ON child (pid);
INSERT INTO parent SELECT i, 0, 0 FROM generate_series(1, 20) i;

-- a number from 0 to n - 1 out of the client's
CREATE FUNCTION pick(seed bigint, i int, n int) RETURNS int IMMUTABLE LANGUAGE sql AS
	'SELECT ((hashint8extended(seed, i) % n + n) % n)::int';

-- d from one row to another, in one of several ways
CREATE FUNCTION transfer(t text, seed bigint) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	rows int := CASE t WHEN 'acct' THEN 1000 WHEN 'hot' THEN 6 ELSE 200 END;
	how int := pick(seed, 1, 14);
	a int := pick(seed, 2, rows);
	b int := (a + 1 + pick(seed, 3, rows - 1)) % rows;
	d int := pick(seed, 4, 20) - 10;
	x record; y record; z int;
BEGIN
	IF a > b AND how <> 5 THEN z := a; a := b; b := z; END IF;
	IF how BETWEEN 2 AND 5 THEN
		EXECUTE format('SELECT * FROM %I WHERE id IN (\$1, \$1 + 100000) %s', t,
			(ARRAY['FOR UPDATE', 'FOR NO KEY UPDATE', 'FOR SHARE', 'FOR KEY SHARE'])[how - 1]) INTO x USING a;
		IF x.id IS NULL THEN RETURN 'moved'; END IF;
	END IF;
	IF how IN (2, 3) THEN
		EXECUTE format('UPDATE %I SET balance = \$2, chk = chk(id, branch, u, \$2) WHERE id = \$1', t)
			USING x.id, x.balance - d;
	ELSIF how < 2 THEN
		EXECUTE format('UPDATE %I SET balance = balance - \$2, chk = chk - \$2, pad = repeat(''x'', \$3) WHERE id IN (\$1, \$1 + 100000)', t)
			USING a, d, pick(seed, 5, 200);
		GET DIAGNOSTICS z = ROW_COUNT;
		IF z = 0 THEN RETURN 'moved'; END IF;
	ELSIF how < 8 THEN
		EXECUTE format('UPDATE %I SET balance = balance - \$2, chk = chk - \$2, branch = branch WHERE id IN (\$1, \$1 + 100000)', t) USING a, d;
		GET DIAGNOSTICS z = ROW_COUNT;
		IF z = 0 THEN RETURN 'moved'; END IF;
	ELSIF how < 10 THEN
		z := pick(seed, 6, 50);
		EXECUTE format('UPDATE %I SET balance = balance - \$2, branch = \$3, chk = chk(id, \$3, u, balance - \$2) WHERE id IN (\$1, \$1 + 100000)', t) USING a, d, z;
		GET DIAGNOSTICS z = ROW_COUNT;
		IF z = 0 THEN RETURN 'moved'; END IF;
	ELSIF how = 10 THEN
		EXECUTE format('UPDATE %I SET balance = balance - \$2, u = u # 1, chk = chk(id, branch, u # 1, balance - \$2) WHERE id IN (\$1, \$1 + 100000)', t) USING a, d;
		GET DIAGNOSTICS z = ROW_COUNT;
		IF z = 0 THEN RETURN 'moved'; END IF;
	ELSIF how = 11 THEN
		EXECUTE format('UPDATE %I SET balance = balance - \$2, id = (id + 100000) %% 200000, chk = chk((id + 100000) %% 200000, branch, u, balance - \$2) WHERE id IN (\$1, \$1 + 100000)', t) USING a, d;
		GET DIAGNOSTICS z = ROW_COUNT;
		IF z = 0 THEN RETURN 'moved'; END IF;
	ELSIF how = 12 THEN
		EXECUTE format('DELETE FROM %I WHERE id IN (\$1, \$1 + 100000) RETURNING *', t) INTO x USING a;
		IF x.id IS NULL THEN RETURN 'moved'; END IF;
		z := CASE WHEN pick(seed, 7, 2) = 0 THEN x.id ELSE (x.id + 100000) % 200000 END;
		EXECUTE format('INSERT INTO %I VALUES (\$1, \$2, \$3, \$4, \$5, \$6, \$7, chk(\$1, \$2, \$3, \$4))', t)
			USING z, x.branch, x.u, x.balance - d, x.pad, x.big, x.bigmd5;
	ELSE
		EXECUTE format('UPDATE %I SET balance = balance - \$2, chk = chk - \$2, big = \$3, bigmd5 = md5(\$3) WHERE id IN (\$1, \$1 + 100000)', t)
			USING a, d, (SELECT string_agg(md5(i::text || seed), '') FROM generate_series(1, CASE WHEN pick(seed, 8, 3) = 0 THEN 0 ELSE pick(seed, 9, 500) END) i);
		GET DIAGNOSTICS z = ROW_COUNT;
		IF z = 0 THEN RETURN 'moved'; END IF;
	END IF;
	EXECUTE format('UPDATE %I SET balance = balance + \$2, chk = chk + \$2 WHERE id IN (\$1, \$1 + 100000)', t) USING b, d;
	GET DIAGNOSTICS z = ROW_COUNT;
	IF z = 0 THEN RAISE EXCEPTION 'the other row has moved' USING errcode = '40001'; END IF;
	RETURN 'done';
END \$\$;

-- changes that do not stay, under savepoints
CREATE FUNCTION mess(t text, seed bigint, depth int) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	rows int := CASE t WHEN 'acct' THEN 1000 WHEN 'hot' THEN 6 ELSE 200 END;
	a int;
BEGIN
	FOR i IN 1 .. 1 + pick(seed, 11, 3) LOOP
		a := pick(seed, 20 + i, rows);
		BEGIN
			CASE pick(seed, 30 + i, 7)
				WHEN 0 THEN EXECUTE format('UPDATE %I SET balance = -7777777 WHERE id IN (\$1, \$1 + 100000)', t) USING a;
				WHEN 1 THEN EXECUTE format('DELETE FROM %I WHERE id IN (\$1, \$1 + 100000)', t) USING a;
				WHEN 2 THEN EXECUTE format('INSERT INTO %I SELECT 50000 + \$1 + g, 7, NULL, 666, repeat(''y'', 300) FROM generate_series(1, 5) g', t) USING a;
				WHEN 3 THEN EXECUTE format('UPDATE %I SET branch = -1 WHERE id IN (\$1, \$1 + 100000)', t) USING a;
				WHEN 4 THEN PERFORM transfer(t, seed + i); PERFORM transfer(t, seed + i + 100);
				WHEN 5 THEN EXECUTE format('SELECT id FROM %I WHERE id IN (\$1, \$1 + 100000) FOR UPDATE', t) USING a;
				WHEN 6 THEN EXECUTE format('UPDATE %I SET big = repeat(md5(id::text), 400) WHERE id IN (\$1, \$1 + 100000)', t) USING a;
			END CASE;
			IF depth > 0 THEN PERFORM mess(t, seed + i * 7, depth - 1); END IF;
			RAISE EXCEPTION 'back' USING errcode = 'NV001';
		EXCEPTION WHEN SQLSTATE 'NV001' OR unique_violation OR SQLSTATE '40001' THEN
			NULL;
		END;
	END LOOP;
	RETURN 'nothing';
END \$\$;

CREATE FUNCTION upsert(seed bigint) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	key int := pick(seed, 1, 8);
	was int;
BEGIN
	IF pick(seed, 2, 8) = 0 THEN
		DELETE FROM cnt WHERE k = key RETURNING n INTO was;
		INSERT INTO hist VALUES (-coalesce(was, 0));
	ELSIF pick(seed, 2, 8) = 1 THEN
		BEGIN
			INSERT INTO cnt VALUES (key, 1000) ON CONFLICT (k) DO UPDATE SET n = cnt.n + 1000;
			RAISE EXCEPTION 'back' USING errcode = 'NV001';
		EXCEPTION WHEN SQLSTATE 'NV001' THEN NULL;
		END;
	ELSE
		INSERT INTO cnt VALUES (key, 1) ON CONFLICT (k) DO UPDATE SET n = cnt.n + 1;
		INSERT INTO hist VALUES (1);
	END IF;
	RETURN 'counted';
END \$\$;

CREATE FUNCTION family(seed bigint) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	p int := 1 + pick(seed, 1, 20);
BEGIN
	CASE pick(seed, 2, 8)
		WHEN 0, 1, 2 THEN INSERT INTO child VALUES (p, pick(seed, 3, 100));
		WHEN 3 THEN UPDATE parent SET v = v + 1 WHERE id = p; UPDATE parent SET w = w + 1 WHERE id = p;
		WHEN 4 THEN DELETE FROM child WHERE pid = p; DELETE FROM parent WHERE id = p;
		WHEN 5 THEN INSERT INTO parent VALUES (p, 0, 0) ON CONFLICT DO NOTHING;
		WHEN 6 THEN UPDATE parent SET v = v + 1 WHERE id = p; DELETE FROM parent WHERE id = p;
		WHEN 7 THEN UPDATE parent SET w = w + 1 WHERE id = p; DELETE FROM parent WHERE id = p;
			INSERT INTO parent VALUES (p, 1, 1);
	END CASE;
	RETURN 'kept';
EXCEPTION WHEN foreign_key_violation OR unique_violation THEN
	RETURN 'refused';
END \$\$;

-- what the snapshot sees, each way of looking; must be the same
CREATE FUNCTION look() RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	t text; how text; got text; one text; all_of_it text := '';
	ways text[] := ARRAY['seq true', 'par true', 'idx id >= 0', 'idx branch >= -5', 'idx u >= -5', 'bit id >= 0', 'bit branch >= -5', 'bri id >= 0'];
	fixed bool := current_setting('transaction_isolation') <> 'read committed';
BEGIN
	FOREACH t IN ARRAY ARRAY['acct', 'hot', 'keyed'] LOOP
		one := NULL;
		FOREACH how IN ARRAY ways || CASE t WHEN 'keyed' THEN ARRAY['idx balance > -1000000', 'hsh', 'gin'] ELSE '{}' END LOOP
			PERFORM set_config('enable_seqscan', (how ~ '^(seq|par)')::text, true),
				set_config('enable_indexscan', (how ~ '^idx')::text, true),
				set_config('enable_bitmapscan', (how !~ '^(seq|par|idx)')::text, true),
				set_config('max_parallel_workers_per_gather', CASE WHEN how ~ '^par' THEN '2' ELSE '0' END, true);
			EXECUTE format('SELECT concat_ws('','', count(*), count(DISTINCT id %% 100000), sum(balance), min(id %% 100000), max(id %% 100000),
					bool_and(chk = chk(id, branch, u, balance)), bool_and(md5(coalesce(big, '''')) = coalesce(bigmd5, md5('''')))
					%s) FROM %I WHERE %s',
				CASE WHEN fixed THEN ', sum(hashtextextended(concat_ws('','', id, branch, u, balance, pad, bigmd5), 0))' ELSE '' END, t,
				CASE left(how, 3) WHEN 'hsh' THEN 'branch = ANY (array(SELECT generate_series(-5, 60)))'
					WHEN 'gin' THEN 'ARRAY[branch, u] && array(SELECT generate_series(-5, 500))'
					ELSE substr(how, 5) END) INTO got;
			IF one IS NULL THEN one := got; END IF;
			IF got IS DISTINCT FROM one THEN RAISE EXCEPTION '%: % sees % and not %', t, how, got, one; END IF;
		END LOOP;
		got := CASE t WHEN 'acct' THEN '1000,1000,100000,0,999,t,t' WHEN 'hot' THEN '6,6,600,0,5,t,t' ELSE '200,200,20000,0,199,t,t' END;
		IF NOT starts_with(one, got) THEN
			RAISE EXCEPTION '% has become %', t, one;
		END IF;
		all_of_it := all_of_it || one || ' ';
	END LOOP;
	PERFORM set_config('enable_seqscan', (pg_backend_pid() % 2 = 0)::text, true), set_config('enable_indexscan', 'on', true), set_config('enable_bitmapscan', 'on', true);
	SELECT concat_ws(',', (SELECT coalesce(sum(n), 0) FROM cnt), (SELECT coalesce(sum(d), 0) FROM hist)) INTO got;
	IF split_part(got, ',', 1) <> split_part(got, ',', 2) THEN RAISE EXCEPTION 'counted and noted: %', got; END IF;
	all_of_it := all_of_it || got;
	SELECT string_agg(c::text, ' ') FROM child c WHERE NOT EXISTS (SELECT FROM parent p WHERE p.id = c.pid) INTO got;
	IF got IS NOT NULL THEN RAISE EXCEPTION 'orphans: %', got; END IF;
	RETURN all_of_it;
END \$\$;

-- the same snapshot, later
CREATE FUNCTION look_again() RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	now text := look();
	was text := current_setting('stress.was', true);
BEGIN
	IF was <> '' AND was <> now THEN RAISE EXCEPTION 'the snapshot saw % and now %', was, now; END IF;
	PERFORM set_config('stress.was', now, true);
	RETURN 'same';
END \$\$;
SQL

my $scripts = PostgreSQL::Test::Utils::tempdir();
my %script = (
	acct   => "SELECT transfer('acct', :r)",
	hot    => "SELECT transfer('hot', :r)",
	keyed  => "SELECT transfer('keyed', :r)",
	both   => "BEGIN;\nSELECT transfer('keyed', :r);\nSELECT transfer('keyed', :r + 1);\nSELECT transfer('hot', :r + 2);\nCOMMIT",
	back   => "BEGIN;\nSELECT transfer('acct', :r);\nSAVEPOINT s;\nSELECT transfer('acct', :r + 1);\nSELECT transfer('acct', :r);\nROLLBACK TO s;\nSELECT transfer('acct', :r);\nCOMMIT",
	abort  => "BEGIN;\nSELECT transfer('acct', :r);\nSELECT transfer('keyed', :r);\nSELECT mess('acct', :r, 1);\nSELECT transfer('acct', :r + 3);\nROLLBACK",
	mess   => "BEGIN;\nSELECT mess('acct', :r, 1);\nSELECT transfer('acct', :r);\nSELECT mess('keyed', :r, 1);\nCOMMIT",
	heat   => "BEGIN;\nSELECT mess('hot', :r, 0);\nSELECT transfer('hot', :r);\nCOMMIT",
	rr     => "BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT transfer('acct', :r);\nSELECT transfer('keyed', :r);\nCOMMIT",
	upsert => 'SELECT upsert(:r)',
	family => 'SELECT family(:r)',
	brood  => "BEGIN;\nSELECT family(:r);\nSAVEPOINT s;\nSELECT family(:r + 1);\nROLLBACK TO s;\nSELECT family(:r + 2);\nCOMMIT",
	ddl    => "BEGIN;\nCREATE TABLE d:client_id (a int PRIMARY KEY, b text) USING $am;\nINSERT INTO d:client_id SELECT i, 'x' FROM generate_series(1, 20) i;\nSELECT transfer('acct', :r);\nUPDATE d:client_id SET b = 'y';\nROLLBACK",
	look   => 'SELECT look()');
my %weight = (hot => 3, acct => 4, keyed => 3, both => 3, abort => 4, upsert => 4, family => 4);
my @main;
foreach my $name (sort keys %script)
{
	PostgreSQL::Test::Utils::append_to_file("$scripts/$name.sql",
		"\\set r random(1, 1000000000000)\n$script{$name};\n");
	push @main, '-f', "$scripts/$name.sql@" . ($weight{$name} // 1);
}
PostgreSQL::Test::Utils::append_to_file("$scripts/old.sql", <<SQL);
\\set ms random(50, 1000)
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT look_again();
\\sleep :ms ms
SELECT look_again();
\\sleep :ms ms
SELECT look_again();
COMMIT;
SQL

my $connstr = $node->connstr('postgres');
my (%children, @failures);

# A child process: an external program, or code that returns what went wrong.
sub child
{
	my ($name, $what) = @_;
	my $out = "$scripts/$name.out";
	my $pid = fork() // die "fork: $!";
	if ($pid == 0)
	{
		local %ENV = $node->_get_env();
		open(STDIN,  '<', '/dev/null');
		open(STDOUT, '>', $out);
		open(STDERR, '>&', \*STDOUT);
		if (ref $what eq 'ARRAY') { exec(@$what) or POSIX::_exit(127); }
		my $ok = eval { $what->(); 1 };
		print STDOUT $@ // '' unless $ok;
		close STDOUT;
		POSIX::_exit($ok ? 0 : 1);
	}
	$children{$pid} = [ $name, $out ];
	return;
}

my $until = time() + $seconds;

# what slows everybody down comes later
my %late = (index => 0.5, extra => 0.4, rewrite => 0.7);

# SQL, over and over; errors that match are to be expected.
sub again_and_again
{
	my ($name, $expected, $pause, @sql) = @_;
	child($name, sub {
		srand($seed + length $name);
		usleep($pause * 1000 + $seconds * $late{$name} * 1_000_000) if $late{$name};
		while (time() < $until)
		{
			my $sql = $sql[ int(rand(@sql)) ];
			$sql = $sql->() if ref $sql;
			my $err = '';
			# an index in files stays there, one of ours stays what it is
			my $stays = $name =~ /^(?:index|rewrite)$/ ? '-c nvm.default_index_method=btree' : '';
			local $ENV{PGOPTIONS} = $name eq 'rewrite' ? "$stays -c lock_timeout=100" : $stays;
			IPC::Run::run([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', "$connstr application_name=$name", '-c', $sql ],
				'>', \my $out, '2>', \$err);
			$err =~ s/^(WARNING|NOTICE|DETAIL|HINT|CONTEXT|LOG):.*\n//mg;
			die "$sql: $err" if $err ne '' && !($expected && $err =~ $expected);
			usleep($pause * 1000 * (0.5 + rand()));
		}
	});
	return;
}

my @pgbench = ('pgbench', '-n', '-T', int($seconds), "--random-seed=$seed");
child('clients', [ @pgbench, '-c', $clients, '-j', 2, '--max-tries=1000', @main, $connstr ]);
child('old snapshots', [ @pgbench, '-c', 3, '--max-tries=1', '-f', "$scripts/old.sql", $connstr ]);
child('looking', [ @pgbench, '-c', 1, '-R', 5, '-f', "$scripts/look.sql", $connstr ]);
my $in_the_way = qr/deadlock|lock timeout|could not obtain lock/;
again_and_again('vacuum', $in_the_way, 30,
	'VACUUM acct', 'VACUUM hot', 'VACUUM (INDEX_CLEANUP ON) keyed', 'VACUUM (INDEX_CLEANUP ON) acct', 'VACUUM ANALYZE keyed',
	'VACUUM (FREEZE) acct', 'VACUUM cnt', 'VACUUM parent', 'VACUUM child', 'VACUUM (TRUNCATE) hist');
again_and_again('index', $in_the_way, 50,
	'REINDEX INDEX CONCURRENTLY acct_branch', 'REINDEX INDEX CONCURRENTLY keyed_balance', 'REINDEX INDEX CONCURRENTLY acct_u',
	'REINDEX TABLE CONCURRENTLY hot', 'REINDEX INDEX CONCURRENTLY keyed_gin');
again_and_again('rewrite', $in_the_way, 1500,
	'REINDEX TABLE keyed', 'REINDEX TABLE acct', 'VACUUM FULL hot', 'VACUUM FULL keyed', 'VACUUM FULL acct', 'VACUUM FULL cnt');
again_and_again('extra', $in_the_way, 50,
	sub { 'CREATE INDEX CONCURRENTLY IF NOT EXISTS acct_extra ON acct (balance)' },
	sub { 'DROP INDEX CONCURRENTLY IF EXISTS acct_extra' },
	sub { 'DROP INDEX IF EXISTS acct_extra; CREATE INDEX acct_extra ON acct (balance, branch)' });
my $killed = qr/terminating connection|server closed the connection|canceling statement|connection to server was lost|SSL|deadlock|moved|concurrent update|statement timeout/;
foreach my $v (1 .. 2)
{
	again_and_again("victim$v", $killed, 1,
		sub { "BEGIN; SELECT transfer('acct', " . int(rand(1e9)) . "); SELECT mess('keyed', " . int(rand(1e9)) . ', 1); UPDATE hot SET balance = -5555555; SELECT pg_sleep(0.2); ROLLBACK' },
		sub { "SET statement_timeout = " . int(1 + rand(30)) . "; SELECT mess('acct', g, 2) FROM generate_series(1, 50) g" },
		sub { "BEGIN; SELECT transfer('hot', " . int(rand(1e9)) . '); COMMIT' });
}
again_and_again('killer', undef, 100,
	sub { "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'victim%' AND random() < 0.5" },
	sub { "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'victim%' AND random() < 0.5" },
	sub { "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE query LIKE 'autovacuum%' AND random() < 0.1" });

while (%children)
{
	my $pid = waitpid(-1, 0);
	last if $pid < 0;
	next unless $children{$pid};
	my ($status, $child) = ($?, delete $children{$pid});
	my ($name, $file) = @$child;
	my $out = slurp_file($file);
	my @errors = grep { /ERROR|FATAL|PANIC|aborted/ } split /\n/, $out;
	push @errors, "exit status $status: $out" if $status != 0 && !@errors;
	$out =~ s/^/$name: /mg;
	note($out) if $out =~ /tps/;
	is(join("\n", @errors), '', "$name: nothing went wrong");
}

is($node->safe_psql('postgres', 'SELECT look() IS NOT NULL'), 't', 'everything is there at the end');
unlike(slurp_file($node->logfile, $log_start), qr/PANIC|TRAP:|was terminated by signal|could not undo|not handed out|LOG: .*crash/, 'the log is calm');
$node->check_clean('after the clients');
$node->safe_psql('postgres', "VACUUM $_") foreach qw(acct hot keyed cnt hist parent child);
$node->check_clean('after VACUUM');

# all at once, and nothing half
child('last', [ 'pgbench', '-n', '-T', 30, '-c', 4, "--random-seed=$seed", '--max-tries=1000', @main, $connstr ]);
usleep(1_500_000);
$node->crash;
waitpid($_, 0) foreach keys %children;
$node->start;
is($node->safe_psql('postgres', 'SELECT look() IS NOT NULL'), 't', 'nothing is half done after a crash');
$node->check_clean('after a crash');
$node->safe_psql('postgres', "VACUUM $_") foreach qw(acct hot keyed cnt hist parent child);
is($node->safe_psql('postgres', 'SELECT look() IS NOT NULL'), 't', 'nor after VACUUM');
$node->check_clean('after a crash and VACUUM');
$node->stop;

done_testing();

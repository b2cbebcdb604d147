# Copyright (c) 2026, pg_nvm contributors

# A checkpoint has tables of nvm_cmdlog as of one moment, and others can read it, and the log
# behind it, while the server runs (src/vlog/README.md, "Which version" and "Reading while the
# server runs").  tools/nvm_stream.c reads as a replay does.
#
#  1. without such a table there is no snapshot
#  2. transactions that commit while the walk stands still, and those that began, or were
#     prepared, before it: the checkpoint has all or nothing of each, and says which.  What was
#     deleted and vacuumed meanwhile is in it.  With the records of the others it is what the
#     tables have
#  3. the same over a loss, and over generations; what a start has carried over comes once
#  4. a loss at each step of a checkpoint, amid transactions
#  5. pins: files stay over checkpoints, and go
#  6. what is damaged or missing is an error that names it, and leaves nothing mapped
#
# Long form: more rounds.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use File::Copy qw(copy);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $tools = dirname(abs_path($0)) . '/../../tools';
my $node = NvmTest->start_new('moment', conf => <<CONF, sql => <<SQL);
nvm.checkpoint_interval = 0
nvm.checkpoint_file_size = 1
nvm.log_compression = off
autovacuum = off
log_checkpoints = off
restart_after_crash = on
max_worker_processes = 8
max_prepared_transactions = 5
lock_timeout = 60s
CONF
CREATE FUNCTION nvm_stream_pin() RETURNS void AS '$tools/nvm_stream' LANGUAGE C;
CREATE FUNCTION nvm_stream_unpin() RETURNS void AS '$tools/nvm_stream' LANGUAGE C;
CREATE FUNCTION nvm_stream_base(OUT number bigint, OUT "begin" bigint, OUT decided bigint,
	OUT "end" bigint, OUT xmin bigint, OUT xmax bigint, OUT xip bigint[]) AS '$tools/nvm_stream' LANGUAGE C;
CREATE FUNCTION nvm_stream_shows(bigint) RETURNS bool AS '$tools/nvm_stream' LANGUAGE C STRICT;
CREATE FUNCTION nvm_stream_rows(which int, OUT storage int, OUT creation bigint, OUT block bigint,
	OUT cell int, OUT pieces int, OUT bytes bigint, OUT a int, OUT b int)
	RETURNS SETOF record AS '$tools/nvm_stream' LANGUAGE C STRICT;
CREATE FUNCTION nvm_stream_records("from" bigint, upto bigint, bodies bool, OUT "begin" bigint,
	OUT "end" bigint, OUT generation int, OUT kind text, OUT side bool, OUT number bigint,
	OUT xid bigint, OUT storages int[], OUT "rows" int, OUT gone int, OUT bytes bigint)
	RETURNS SETOF record AS '$tools/nvm_stream' LANGUAGE C STRICT;
CREATE FUNCTION nvm_stream_changes("from" bigint, upto bigint, OUT "end" bigint, OUT generation int,
	OUT kind text, OUT number bigint, OUT xid bigint, OUT storage int, OUT block bigint, OUT cell int,
	OUT gone bool, OUT a int, OUT b int)
	RETURNS SETOF record AS '$tools/nvm_stream' LANGUAGE C STRICT;
CREATE FUNCTION storage(r regclass) RETURNS int LANGUAGE sql AS 'SELECT id FROM nvm.relations WHERE relation = r';
-- the checkpoint, and what was committed behind it that it has not
CREATE FUNCTION put_together(r regclass, upto bigint) RETURNS TABLE (a int, b int) LANGUAGE sql AS
\$\$
WITH base AS MATERIALIZED (SELECT *, storage(r) AS id FROM nvm_stream_base()),
	changes AS MATERIALIZED (SELECT c.* FROM base, nvm_stream_changes(base."begin", upto) c),
	committed AS MATERIALIZED (SELECT o.xid FROM base, nvm_stream_records(base."begin", upto, false) o WHERE o.kind = 'OUTCOME committed'),
	shown AS MATERIALIZED (SELECT xid FROM (SELECT DISTINCT xid FROM changes) x WHERE nvm_stream_shows(xid)),
	counts AS (SELECT DISTINCT ON (block, cell) block, cell, gone, a, b FROM changes
		WHERE storage = (SELECT id FROM base) AND (kind = 'COMMIT' OR kind = 'ASK' AND xid IN (SELECT xid FROM committed)) AND xid NOT IN (SELECT xid FROM shown)
		ORDER BY block, cell, generation DESC, number DESC)
SELECT coalesce(c.a, o.a), CASE WHEN c.block IS NULL THEN o.b ELSE c.b END
  FROM nvm_stream_rows(storage(r)) o FULL JOIN counts c USING (block, cell)
 WHERE c.gone IS NOT TRUE
\$\$;
CREATE TABLE v (id int PRIMARY KEY, n int, s text) USING nvm_vlog;
CREATE TABLE in_pool (id int, n int) USING nvm;
INSERT INTO v SELECT i, 0, repeat('v', 200) FROM generate_series(1, 1000) i;
SQL
my $dir = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', join('; ', @_)); }
sub conf { my (%set) = @_; $node->set_conf(map { ("nvm.$_" => "'$set{$_}'") } keys %set); $node->reload if defined $node->{_pid}; return; }
sub files { my ($like) = @_; my @names = sort map { basename($_) } glob "$dir/$like"; return @names; }

my $summary = "count(*), md5(coalesce(string_agg(x::text, ',' ORDER BY x::text), ''))";
sub content { return sql(map { "SELECT '$_', $summary FROM (SELECT id, n FROM $_) x" } @_); }
# the same of a checkpoint, and of one with the log behind it
sub in_base { return join "\n", map { sql("SELECT '$_', $summary FROM (SELECT a, b FROM nvm_stream_rows(storage('$_'))) x") } @_; }
sub with_log
{
	sql('SET synchronous_commit = on; UPDATE v SET n = n WHERE id = 1');    # all before it is persistent
	my $upto = sql('SELECT persistent FROM nvm.log');
	return join "\n", map { sql("SELECT '$_', $summary FROM put_together('$_', $upto) x") } @_;
}
sub twice
{
	return sql('SELECT r.kind, r.number, r.xid FROM nvm_stream_base() b, nvm.log l, nvm_stream_records(b."begin", l.persistent, false) r '
		. 'WHERE r.xid <> 0 GROUP BY 1, 2, 3 HAVING count(*) > 1');
}
sub lose { $node->crash; $node->start; sql('SELECT count(*) FROM v'); $node->poll_query_until('postgres', "SELECT state = 'whole' FROM nvm.log_recovery") or die; return; }

sub worker { return sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm checkpointer'"); }

# stop the worker at a failpoint of the next checkpoint, which is asked for; then another failpoint
sub stop_worker
{
	my ($failpoint, $then) = @_;
	my $session = $node->session;

	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'nvm checkpointer'") or die;
	my $pid = worker();
	conf(failpoint => "$failpoint:stop:1");
	usleep(1_200_000);          # until it has read the settings
	$session->send('SELECT nvm.checkpoint()');
	NvmTest::wait_stopped($pid);
	conf(failpoint => $then // '');
	return ($pid, $session);
}

sub version { my ($file) = files('*.checkpoint'); return unpack('x8L<', slurp_file("$dir/$file")); }

# ---------------------------------------------------------------- 1. without such tables

$node->fails_with('SELECT nvm_stream_pin()', qr/there is no checkpoint of tables in memory\nHINT:  Execute SELECT nvm\.checkpoint\(\)\./, 'nothing to pin at first');
$node->fails_with('SELECT * FROM nvm_stream_base()', qr/there is no checkpoint/, 'nor to be read');
sql('SELECT nvm.checkpoint()');
is(version(), 1, 'a checkpoint without such tables is as ever');
$node->fails_with('SELECT * FROM nvm_stream_base()', qr/checkpoint 1 of tables in memory has no table of access method nvm_cmdlog/, 'and has no snapshot');

# ---------------------------------------------------------------- 2. one moment

sql('CREATE TABLE a (id int PRIMARY KEY, n int, s text) USING nvm_cmdlog', 'CREATE TABLE b (id int PRIMARY KEY, n int, s text) USING nvm_cmdlog',
	'CREATE TABLE c (id int PRIMARY KEY, n int, s text) USING nvm_cmdlog', 'CREATE UNLOGGED TABLE u (id int, n int) USING nvm_cmdlog', 'INSERT INTO u VALUES (1, 1)',
	'ALTER TABLE c ALTER s SET STORAGE EXTERNAL', "INSERT INTO c SELECT i, 0, repeat(i::text, 20000) FROM generate_series(1, 30) i",
	map({ "INSERT INTO $_ SELECT i, 0, repeat('x', 200) FROM generate_series(1, 4000) i" } qw(a b)));
my @tables = qw(a b c);
my $subs = join('', map { "SAVEPOINT s; UPDATE a SET n = n + 1 WHERE id = 2000 + $_; " } 1 .. 100);

# who has begun before, and ends while the walk stands still
my %early = map { $_ => $node->session } qw(commits subs aborts mixed asked);
my %xid;
sql("BEGIN; UPDATE a SET n = 70 WHERE id = 700; DELETE FROM b WHERE id = 700; SELECT pg_current_xact_id() AS x; PREPARE TRANSACTION 'before'");
$early{commits}->sql('BEGIN; UPDATE a SET n = 71 WHERE id = 710; DELETE FROM a WHERE id = 711; INSERT INTO a VALUES (10710, 71)');
$early{subs}->sql("BEGIN; $subs");
$early{aborts}->sql('BEGIN; UPDATE a SET n = 72 WHERE id = 720');
$early{mixed}->sql('BEGIN; UPDATE a SET n = 73 WHERE id = 730; INSERT INTO in_pool VALUES (1, 1)');
$xid{$_} = $early{$_}->sql('SELECT pg_current_xact_id()') foreach qw(commits subs aborts mixed);
$xid{prepared} = sql("SELECT transaction FROM pg_prepared_xacts");
# its ASK record is there, and it has not left the proc array
$xid{asked} = $early{asked}->sql('BEGIN; UPDATE a SET n = 74 WHERE id = 740; UPDATE b SET n = 74 WHERE id = 740; INSERT INTO in_pool VALUES (2, 2); SELECT pg_current_xact_id()');
$early{asked}->stop_at('log-asked', 'COMMIT');
$xid{before} = sql('UPDATE a SET n = 1 WHERE id < 100; UPDATE b SET n = 1 WHERE id < 100; SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint - 1');
my $then = content(@tables);

my ($pid, $asker) = stop_worker('ckpt-walk');
my ($done, $total) = split /\|/, sql("SELECT blocks_done, blocks_total FROM nvm.checkpoints WHERE state = 'running'");
cmp_ok($done, '<', $total, "the walk stands still ($done of $total blocks)");
$early{asked}->go_on;
$early{commits}->sql('UPDATE b SET n = 71 WHERE id = 710; INSERT INTO b VALUES (10710, 71); COMMIT');
$early{subs}->sql('UPDATE b SET n = n + 1 WHERE id > 2000; COMMIT');
$early{aborts}->sql('UPDATE b SET n = 72 WHERE id = 720; ROLLBACK');
$early{mixed}->sql('UPDATE b SET n = 73 WHERE id = 730; COMMIT');
$xid{during} = sql('BEGIN; UPDATE a SET n = n + 100 WHERE id <> 700; UPDATE b SET n = n + 100 WHERE id <> 700; UPDATE c SET n = 1, s = repeat(\'n\', 30000) WHERE id % 2 = 0; SELECT pg_current_xact_id(); COMMIT');
sql('BEGIN; DELETE FROM a WHERE id > 3500; DELETE FROM b WHERE id < 500; DELETE FROM c WHERE id % 3 = 0; COMMIT',
	'BEGIN; INSERT INTO a SELECT i, 5, repeat(\'i\', 300) FROM generate_series(20000, 20400) i; UPDATE b SET id = id + 30000 WHERE id BETWEEN 600 AND 650; COMMIT');
sql("BEGIN; UPDATE a SET n = 75 WHERE id = 750; DELETE FROM b WHERE id = 750; PREPARE TRANSACTION 'during'");
sql('UPDATE v SET n = 9');
# what it needs would go, and its room be used again
sql($_) foreach ('VACUUM a', 'VACUUM b', 'VACUUM c', 'VACUUM v', map({ ("UPDATE a SET n = n + 1000, s = repeat('$_', 210) WHERE id NOT IN (700, 750)", 'VACUUM a') } 1 .. 3),
	"INSERT INTO b SELECT i, 6, repeat('j', 200) FROM generate_series(40000, 41000) i", 'VACUUM b');
sql("COMMIT PREPARED 'before'");
NvmTest::continue_process($pid);
$asker->sql('SELECT 1');
$_->drop foreach $asker, values %early;
is(version(), 2, 'a checkpoint with a snapshot');
is(in_base(@tables), $then, 'has the tables as they were at one moment');
is(sql("SELECT sum(pieces) > 30, sum(bytes) > 30 * 20000 FROM nvm_stream_rows(storage('c'))"), 't|t', 'with their large values');
is(sql("SELECT count(*), min(b), max(b) FROM nvm_stream_rows(storage('v'))"), '1000|9|9', 'and others as they were when the walk came by');
is(sql("SELECT count(*) FROM nvm_stream_rows(storage('u'))"), 0, 'nothing of UNLOGGED ones');
is(sql("SELECT nvm_stream_shows($xid{$_})"), $_ eq 'before' ? 't' : 'f', "it says whether it has the transaction: $_") foreach sort keys %xid;
my ($xmin, $xmax, $xip) = split /\|/, sql('SELECT xmin, xmax, xip FROM nvm_stream_base()');
my %running = map { $_ => 1 } $xip =~ /\d+/g;
is(join(' ', grep { !$running{ $xid{$_} } } qw(commits subs aborts mixed asked prepared)), '', 'those that were running are listed');
my ($status, $said, $complaints) = (0, '', '');
IPC::Run::run([ 'nvm_logdump', $dir ], '>', \$said, '2>', \$complaints);
is($complaints, '', 'nvm_logdump has nothing to complain of');
$xip =~ s/[{}]//g;
like($said, qr/^checkpoint .*\n  snapshot $xmin:$xmax:$xip$/m, 'and prints the snapshot');
is(with_log(@tables), content(@tables), 'with the log behind it, it is what the tables have');
is(twice(), '', 'no record comes twice');
is(sql('SELECT count(*) FROM nvm_stream_base() b, nvm.log l, nvm_stream_changes(b."begin", l.persistent) c '
	. "WHERE xid = 0 AND storage IN (storage('a'), storage('b'), storage('c'))"), 0, 'records of these tables say their xid');

# What it shows is kept by nobody else: no transaction is open, and no session waits for it, which
# has a snapshot.
sql("COMMIT PREPARED 'during'", 'DELETE FROM b WHERE id BETWEEN 2000 AND 2100', 'VACUUM a', 'VACUUM b');
$then = content(@tables);
$pid = worker();
conf(failpoint => 'ckpt-walk:stop:1', checkpoint_interval => '1s');
NvmTest::wait_stopped($pid);
conf(failpoint => '', checkpoint_interval => '0');
is(sql("SELECT count(*) FROM pg_stat_activity WHERE backend_xmin IS NOT NULL AND pid NOT IN (pg_backend_pid(), $pid)"), 0, 'nobody else has a snapshot');
sql($_) foreach ("BEGIN; DELETE FROM b WHERE id > 2500; UPDATE c SET n = 2, s = repeat('m', 40000); UPDATE a SET n = n - 1; COMMIT", 'VACUUM b', 'VACUUM c', 'VACUUM a',
	map({ ("INSERT INTO b SELECT i, 7, repeat('k', 200) FROM generate_series(60000 + $_ * 2000, 61999 + $_ * 2000) i", "UPDATE c SET n = 3 + $_, s = repeat('o', 40000)",
		'VACUUM b', 'VACUUM c') } 1 .. 2));
my $running = sql("SELECT number FROM nvm.checkpoints WHERE state = 'running'");
NvmTest::continue_process($pid);
$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM nvm.checkpoints WHERE number = $running AND state = 'usable'") or die;
is(in_base(@tables), $then, 'what the snapshot shows outlives VACUUM');
is(with_log(@tables), content(@tables), 'with the log behind it, it is what the tables have');
sql("BEGIN; UPDATE a SET n = 75 WHERE id = 750; DELETE FROM b WHERE id = 751; PREPARE TRANSACTION 'during'");

# ---------------------------------------------------------------- 3. over a loss

my $before = content(@tables, 'v');
lose();
is(content(@tables, 'v'), $before, 'the same after a loss');
is(with_log(@tables), content(@tables), 'checkpoint and log of two generations are what the tables have');
cmp_ok(sql('SELECT count(DISTINCT r.generation) FROM nvm_stream_base() b, nvm.log l, nvm_stream_records(b."begin", l.persistent, true) r'), '>', 1, 'two generations');
is(twice(), '', 'what was carried over comes once');
sql("COMMIT PREPARED 'during'", 'UPDATE a SET n = n + 1 WHERE id < 50');
is(with_log(@tables), content(@tables), 'and what was prepared');
lose();
is(with_log(@tables), content(@tables), 'three');

# WAL that nobody has waited for is lost, but none of the transactions that the snapshot shows: their
# xids do not come again
sql("ALTER SYSTEM SET wal_writer_delay = '10s'", 'SELECT pg_reload_conf()');
usleep(1_200_000);
$node->stop_wal_writers;
sql("SET synchronous_commit = off; DO 'BEGIN FOR i IN 1..50 LOOP UPDATE a SET n = n + 1 WHERE id = 60; COMMIT; END LOOP; END'",
	'BEGIN; UPDATE a SET n = 0 WHERE id = 61; ROLLBACK', 'SELECT nvm.checkpoint()');
my $shown = sql('SELECT xmax FROM nvm_stream_base()');
$before = content(@tables, 'v');
lose();
cmp_ok(sql('SELECT pg_current_xact_id()'), '>=', $shown, 'no xid that the snapshot shows comes again');
is(content(@tables, 'v'), $before, 'the same after a loss');
is(with_log(@tables), content(@tables), 'checkpoint and log, too');
sql('ALTER SYSTEM RESET wal_writer_delay', 'SELECT pg_reload_conf()');

# a stop amid the walk
conf(checkpoint_rate => 1, checkpoint_file_size => 1);
{
	my $session = $node->session;

	$session->send('SELECT nvm.checkpoint()');
	$node->poll_query_until('postgres', "SELECT blocks_done > 20 FROM nvm.checkpoints WHERE state = 'running'") or die;
	$node->stop('fast');
	$session->drop;
	unlike($node->log_since_start, qr/(?:WARNING|PANIC|TRAP).*(?:snapshot|transaction)/, 'a stop amid the walk');
	conf(checkpoint_rate => 0);
	$node->start;
	is(content(@tables, 'v'), $before, 'loses nothing');
	$node->poll_query_until('postgres', "SELECT state = 'whole' FROM nvm.log_recovery") or die;
}

# ---------------------------------------------------------------- 4. a loss at each step

my $round = 0;
foreach my $failpoint (qw(ckpt-walk ckpt-data-write ckpt-data-sync ckpt-walked ckpt-sync ckpt-rename ckpt-renamed ckpt-remove-rows ckpt-remove-log ckpt-removed))
{
	$round++;
	# a file of the log that goes, and transactions that are open
	sql("DO 'BEGIN FOR i IN 1..90 LOOP UPDATE v SET n = n + 1; COMMIT; END LOOP; END'") if $failpoint =~ /remove/;
	sql("BEGIN; UPDATE a SET n = $round WHERE id = 800; DELETE FROM b WHERE id = 800 + $round; PREPARE TRANSACTION 'early'");
	my ($worker, $session) = stop_worker('ckpt-walk', "$failpoint:crash:1");
	sql("BEGIN; UPDATE a SET n = n + $round WHERE id <> 800; UPDATE b SET n = n + $round WHERE id NOT BETWEEN 801 AND 810; COMMIT",
		"BEGIN; DELETE FROM a WHERE id % 97 = $round; DELETE FROM b WHERE id % 97 = $round; INSERT INTO a SELECT i, $round, 'new' FROM generate_series(50000 + $round * 100, 50020 + $round * 100) i; COMMIT",
		"BEGIN; UPDATE a SET id = id + 100000 WHERE id % 89 = $round; INSERT INTO in_pool VALUES ($round, 3); COMMIT");
	sql("BEGIN; UPDATE b SET n = 0 WHERE id = 850; DELETE FROM a WHERE id = 850; PREPARE TRANSACTION 'late'");
	sql("COMMIT PREPARED 'early'");
	my $content = content(@tables, 'v');
	NvmTest::continue_process($worker);
	$node->wait_crashed;
	$session->drop;
	conf(failpoint => '');
	$node->start;
	is(content(@tables, 'v'), $content, "a crash at $failpoint");
	sql($round % 2 ? "ROLLBACK PREPARED 'late'" : "COMMIT PREPARED 'late'");
	sql('INSERT INTO b SELECT 850, 1, \'back\' WHERE NOT EXISTS (SELECT FROM b WHERE id = 850)', 'INSERT INTO a SELECT 850, 1, \'back\' WHERE NOT EXISTS (SELECT FROM a WHERE id = 850)');
	is(with_log(@tables), content(@tables), 'checkpoint and log are what the tables have') if $failpoint =~ /rename|removed/;
	is(sql('SELECT count(*) FROM a WHERE id = 800'), 1, 'a row is there once');
}
sql('SELECT nvm.checkpoint()');
$node->check_clean('after all these');

# ---------------------------------------------------------------- 5. pins

sub number { return sql("SELECT number FROM nvm.checkpoints WHERE state = 'usable'"); }
sub numbers { my %of = map { hex((split /-/)[1]) => 1 } files('*.rows'); return join ' ', sort { $a <=> $b } keys %of; }
# files of the log, a side file, and a checkpoint
sub go_on
{
	sql("DO 'BEGIN FOR i IN 1..400 LOOP UPDATE b SET n = n + 1, s = repeat(''y'', 200) WHERE id BETWEEN 1000 AND 1150; COMMIT; END LOOP; END'",
		'UPDATE a SET n = n + 1', 'VACUUM a', 'VACUUM b', 'SELECT nvm.checkpoint()');
	return number();
}
sub of_session { my ($session, $table) = @_; return scalar $session->sql("SELECT '$table', $summary FROM (SELECT a, b FROM nvm_stream_rows(storage('$table'))) x"); }

my $first = go_on();
my $reader = $node->session;
$reader->sql('SELECT nvm_stream_pin()');
my @pinned = map { of_session($reader, $_) } @tables;
my ($log_file) = files('*.log');
my $begin = $reader->sql('SELECT "begin" FROM nvm_stream_base()');
my $second = go_on();
my $third = go_on();
is(numbers(), "$first $third", 'the pinned checkpoint stays, and not the next one');
ok(-e "$dir/$log_file", 'so does the log behind it');
cmp_ok(scalar(files('*.log')), '>', 2, 'of which there is some');
cmp_ok(scalar(files('*.side')), '>=', 2, 'and side files');
is(join("\n", map { of_session($reader, $_) } @tables), join("\n", @pinned), 'its rows are read as before');
sql('UPDATE v SET n = n WHERE id = 1');
my $upto = sql('SELECT persistent FROM nvm.log');
is(join("\n", map { scalar $reader->sql("SELECT '$_', $summary FROM put_together('$_', $upto) x") } @tables), content(@tables), 'and with the log behind it they are what the tables have');
is(sql('SELECT number FROM nvm_stream_base()'), $third, 'others read the usable one');
is(sql("SELECT count(*) > 0 FROM nvm_stream_records($begin, $upto, true)"), 't', 'and the log from the pinned one on');
# a second reader, at another one
my $other = $node->session;
$other->sql('SELECT nvm_stream_pin()');
my $fourth = go_on();
is(numbers(), "$first $third $fourth", 'two pins');
conf(failpoint => 'ckpt-sync:error:1');
usleep(1_200_000);
$node->fails_with('SELECT nvm.checkpoint()', qr/has failed/, 'one that fails');
conf(failpoint => '');
usleep(1_200_000);
$reader->sql('SELECT nvm_stream_unpin()');
ok(-e "$dir/$log_file", 'nothing goes with the pin');
my $fifth = go_on();
is(numbers(), "$third $fifth", 'but with the next checkpoint, and what has failed, too');
ok(!-e "$dir/$log_file", 'and the log before the other pin');
is($other->sql('SELECT number FROM nvm_stream_base()'), $third, 'which stays');
sql('SELECT pg_terminate_backend(' . $other->pid . ')');
$other->drop;
$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $other->pid) or die;
my $sixth = go_on();
is(numbers(), $sixth, 'and goes with its process');
is(scalar(files('*.side')), 0, 'no side file is left') or diag(join "\n", files('*'));
cmp_ok(scalar(files('*.log')), '<=', 2, 'nor the log');

# as many as there can be, and the death of one
my @readers = map { $node->session } 1 .. 8;
$_->sql('SELECT nvm_stream_pin()') foreach @readers;
$node->fails_with('SELECT nvm_stream_pin()', qr/8 processes read checkpoints of tables in memory already/, 'not more than 8');
$readers[0]->sql('SELECT nvm_stream_unpin()');
is(($node->psql('postgres', 'SELECT nvm_stream_pin(); SELECT number FROM nvm_stream_base()'))[1], "\n$sixth", 'but one for one that has gone');
$node->fails_with('SELECT nvm_stream_pin(); SELECT nvm_stream_pin()', qr/has pinned a checkpoint already/, 'and each once');
my $opened = $node->times_opened;
kill 'KILL', $readers[1]->pid;
$node->wait_reopened($opened);
$_->drop foreach @readers, $reader;
my $seventh = go_on();
is(numbers(), $seventh, 'a death drops all pins');
$before = content(@tables, 'v');
lose();
is(content(@tables, 'v'), $before, 'the same after a loss');

# ---------------------------------------------------------------- 6. damage

# What a process has mapped, or open to be read, of the log's files.  The one that it has written
# to, for itself and others, it keeps open.
sub left_open
{
	my ($p) = @_;
	my @left = grep { m,/pg_nvm_log/, } split /\n/, slurp_file("/proc/$p/maps");
	foreach my $fd (glob "/proc/$p/fd/*")
	{
		my $path = readlink $fd;
		next unless defined $path && $path =~ m,/pg_nvm_log/,;
		push @left, $path if slurp_file($fd =~ s,/fd/,/fdinfo/,r) =~ /^flags:\s*\d*0$/m;
	}
	return join "\n", @left;
}

# the SQLSTATE and message of a statement in this session
sub fails_in
{
	my ($session, $statement) = @_;
	return scalar $session->sql("SELECT attempt(\$\$$statement\$\$)");
}
sql(q{CREATE FUNCTION attempt(s text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN EXECUTE s; RETURN 'done'; EXCEPTION WHEN OTHERS THEN RETURN SQLSTATE || ' ' || SQLERRM; END $$});
go_on();
$reader = $node->session;
$reader->sql('SELECT nvm_stream_pin()');
$begin = $reader->sql('SELECT "begin" FROM nvm_stream_base()');
my ($rows_file) = files('*.rows');
go_on();
sql("DO 'BEGIN FOR i IN 1..400 LOOP UPDATE b SET n = n + 1 WHERE id BETWEEN 1000 AND 1150; COMMIT; END LOOP; END'");
$upto = sql('SELECT persistent FROM nvm.log');
my ($side_file) = files('*.side');
my @logs = files('*.log');
my $read_rows = 'SELECT count(*) FROM nvm_stream_rows(0)';
my $read_log = "SELECT count(*) FROM nvm_stream_records($begin, $upto, true)";
is(fails_in($reader, $read_rows) . fails_in($reader, $read_log), 'donedone', 'all is sound');
foreach my $case (
	[ 'flip', $rows_file, $read_rows, qr/^XX001 file "$rows_file" of the log: wrong checksum$/ ],
	[ 'cut', $rows_file, $read_rows, qr/^XX001 file "$rows_file" of the log: the file is truncated$/ ],
	[ 'remove', $rows_file, $read_rows, qr/^XX001 file "$rows_file" of the log cannot be read: No such file/ ],
	[ 'flip', $side_file, $read_log, qr/^XX001 file "$side_file" of the log: wrong checksum$/ ],
	[ 'remove', $side_file, $read_log, qr/^XX001 file "$side_file" of the log cannot be read: No such file/ ],
	[ 'flip', $logs[0], $read_log, qr/^XX001 file "$logs[0]" of the log: positions \d+ to \d+ are missing, from byte \d+ on/ ],
	[ 'remove', $logs[0], $read_log, qr/^XX001 file "\S+" of the log(?: is missing|: positions $begin to \d+, which come before it, are missing)$/ ],
	[ 'head', $logs[1], $read_log, qr/^XX001 file "$logs[1]" of the log: wrong checksum of the header$/ ],
	[ 'remove', $logs[1], $read_log, qr/^XX001 file "$logs[1]" of the log is missing$/ ])
{
	my ($how, $file, $statement, $message) = @$case;
	my $size = -s "$dir/$file";

	copy("$dir/$file", "$dir/saved") or die $!;
	if ($how eq 'remove') { unlink("$dir/$file") or die $!; }
	elsif ($how eq 'cut') { truncate("$dir/$file", 5000) or die $!; }
	else
	{
		my $at = $how eq 'head' ? 40 : $file =~ /log$/ ? int($size / 2) : $size - 20;

		open(my $fh, '+<:raw', "$dir/$file") or die $!;
		seek($fh, $at, 0);
		read($fh, my $byte, 1);
		seek($fh, $at, 0);
		print $fh chr(ord($byte) ^ 1);
		close $fh;
	}
	like(fails_in($reader, $statement), $message, "$how $file");
	is(left_open($reader->pid), '', 'and nothing is left open');
	copy("$dir/saved", "$dir/$file") or die $!;
	chmod 0600, "$dir/$file";
}
unlink "$dir/saved";
is(fails_in($reader, $read_rows) . fails_in($reader, $read_log), 'donedone', 'all is sound again');
like(fails_in($reader, "SELECT count(*) FROM nvm_stream_records($begin, $upto + 100000000, true)"), qr/^22023 the log has no positions from $begin to \d+/, 'no further than the log goes');
$reader->drop;
sql('SELECT nvm.checkpoint()');
$before = content(@tables, 'v');
lose();
is(content(@tables, 'v'), $before, 'the same after a loss, at the end');
$node->check_clean('at the end');
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Recovery by replay.  Calls that are logged alone leave no rows in the log: a start after a
# loss of the region calls again, into the tables, from the last checkpoint on.  The rows are those
# that were acknowledged: behind calls of one lane and of several, with tape, time, roles, triggers
# and foreign keys, values between them, rows of nvm_vlog in the same transactions; in a database
# beside one whose calls are logged with their rows.  After a loss of power, at each step of the
# replay, too, and again without a checkpoint in between; after the death of a process, when
# tables that are open stay so.  Processes that are ended, or have no room; sessions that wait.  The
# server dies amid DDL, and behind the checkpoint of what was given up.

use strict;
use warnings;

use IPC::Run;
use NvmCrash;
use NvmLogDisk;
use NvmShop;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('recover_calls', simulate => 1, conf => <<CONF, extension => 0);
autovacuum = off
max_prepared_transactions = 5
max_worker_processes = 16
nvm.checkpoint_interval = 0
nvm.replay_workers = 2
restart_after_crash = on
CONF

sub sql { return $node->safe_psql('postgres', join("\n", map { "$_;" } @_)); }

## what works here

my $schema = "CREATE EXTENSION pg_nvm;\n" . NvmShop::schema() . <<'SQL';
CREATE TABLE seen (c int, n int, PRIMARY KEY (c, n)) USING nvm_vlog;
CREATE TABLE other (a int PRIMARY KEY, b text);
-- more than a process can lock by PostgreSQL's fast path
SELECT format('CREATE TABLE few_%s (a int) USING nvm_cmdlog', i) FROM generate_series(1, 20) i \gexec
SQL
$node->safe_psql('postgres', 'CREATE ROLE clerk; CREATE DATABASE shadow;');
$node->safe_psql($_, $schema) foreach qw(postgres shadow);

# The log's directory is there; from here on it has a disk of its own.
my @logs = ($node->data_dir . '/pg_nvm_log');
my $disk = $node->basedir . '/disk';

# a start of a server whose log is on the disk
sub start
{
	my %env = NvmLogDisk::environment(\@logs, $disk);
	local @ENV{ keys %env } = values %env;
	NvmLogDisk::attach(\@logs, $disk);
	$node->start;
	return;
}

# Loss of power, now or since the server has ended
my $seed = 0;
sub lose_power
{
	$node->power_failure(seed => ++$seed);
	NvmLogDisk::image($disk, \@logs, seed => $seed);
	return;
}

# Functions are promoted in one of the two databases, and from the checkpoint on their calls are alone.
sub promote
{
	sql('SELECT nvm.checkpoint()', 'SELECT take(1, 1, 1)', 'SELECT move(1, 2, 1, 1)', "CALL place(1, 1, 'x')", 'SELECT close_orders(1, 1)');
	is(sql('SELECT passed FROM nvm.rehearse()'), 't', 'the functions are rehearsed');
	my @functions = map { "'$_'" } 'take(int,int,int)', 'move(int,int,int,int)', 'place(int,int,text)', 'close_orders(int,int)';
	sql(map { "SELECT nvm.promote_command($_)" } @functions);
	alone();
	return;
}

# behind a checkpoint of this start calls are logged alone
sub alone
{
	sql('SELECT close_orders(6, 0)', 'SELECT nvm.checkpoint()');
	$node->poll_query_until('postgres', q{SELECT mode = 'alone' FROM nvm.command_modes WHERE database = current_database()}) or die 'the mode is another one';
	return;
}

# What four clients do at once, in both databases; all of it is acknowledged
my $round = 0;
sub work
{
	my ($n) = @_;
	my @runs;

	$round++;
	foreach my $database (qw(postgres shadow))
	{
		foreach my $c (1 .. 2)
		{
			my ($v, $w) = (2 * $c - 1, 2 * $c);
			my $do = '';
			for my $k (1 .. $n)
			{
				my $i = 1 + ($k * 7 + $round) % 20;
				my $note = $k % 9 == 0 ? "repeat('long', 3000)" : $k % 4 == 0 ? 'NULL' : "'note $k'";
				$do .= $k % 3 ? "SELECT take($v, $i, $k);\n" : "BEGIN; SELECT take($w, $i, 1); SAVEPOINT s; SELECT take($w, $i, 2); INSERT INTO seen VALUES ($c, $round * 1000 + $k); COMMIT;\n";
				$do .= "SELECT move($v, $w, $i, 1);\n" if $k % 2;
				$do .= "SET ROLE clerk; SET TimeZone = 'Asia/Tokyo'; CALL place($v, $i, $note); RESET ROLE;\n" if $k % 3 == 0;
				$do .= "SELECT * FROM close_orders($v, 1);\n" if $k % 7 == 0;
				# values
				$do .= "UPDATE stock SET n = n + 5 WHERE w = $w AND i = $i;\n" if $k % 5 == 0;
				$do .= "UPDATE history SET what = upper(what) WHERE w = $v AND what LIKE 'cost 1%';\n" if $k % 8 == 0;
				$do .= "DELETE FROM history WHERE w = $w AND what LIKE 'cost 3%';\n" if $k % 8 == 4;
				$do .= "INSERT INTO orders (w, i, note) VALUES ($w, $i, 'by hand'); UPDATE orders SET note = note || note WHERE w = $w;\n" if $k % 10 == 0;
				$do .= "DELETE FROM stock WHERE w = $w AND i = 20; INSERT INTO stock VALUES ($w, 20, 7);\n" if $k % 20 == 0;
				$do .= "UPDATE price SET p = p + 1 WHERE i = $i;\n" if $k % 11 == 0;
				$do .= "BEGIN; INSERT INTO other VALUES ($c * 100000 + $round * 1000 + $k, 'x'); SELECT take($v, $i, 3); COMMIT;\n" if $k % 6 == 0;
				$do .= "BEGIN; SELECT take($v, $i, 1000); ROLLBACK;\n" if $k % 13 == 0;
			}
			push @runs, IPC::Run::start([ 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $node->connstr($database) ], '<', \$do, '>', '/dev/null', '2>', \my $err);
		}
	}
	$_->finish or die 'a client has failed' foreach @runs;
	return;
}

my @tables = qw(stock history orders price seen other);
sub content
{
	return join("\n", map { my $d = $_; map { "$d.$_ " . $node->safe_psql($d, "SELECT count(*), md5(string_agg(t::text, E'\\n' ORDER BY t::text)) FROM $_ t") } @tables } qw(postgres shadow));
}

# what indexes lead to is what the tables have
sub check_indexes
{
	my ($what) = @_;
	my $by = "SELECT md5(string_agg(t::text, ',' ORDER BY t::text)) FROM (SELECT * FROM stock WHERE w > 0 UNION ALL SELECT w, o, i, NULL, note FROM orders WHERE w > 0) t";
	is(sql('SET enable_seqscan = off', 'SET enable_bitmapscan = off', $by), sql('SET enable_indexscan = off', 'SET enable_bitmapscan = off', $by), "$what: indexes lead to the rows");
	return;
}

# a process of the replay that has ended has no lock of a table any more
sub check_locks
{
	my ($what) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', q{SET lock_timeout = '10s'; BEGIN;
		SELECT format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', c.oid::regclass) FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE amname = 'nvm_cmdlog' ORDER BY c.oid \gexec
		ROLLBACK;});
	is("$ret $err", '0 ', "$what: the tables can be locked");
	return;
}

sub pid_of { return sql("SELECT min(pid) FROM pg_stat_activity WHERE backend_type = '$_[0]'"); }

sub replayed { return sql("SELECT string_agg(concat_ws(' ', d.datname, r.state, r.problem), ', ') FROM nvm.replayed_databases r JOIN pg_database d ON d.oid = r.database"); }

$node->stop;
start();
promote();

## all of it comes back

work(40);
is(sql("SELECT sum(replayable) > 100 AND count(*) FILTER (WHERE state <> 'promoted') = 0 FROM nvm.commands"), 't', 'calls are logged alone');
my $before = content();
lose_power();
start();
is(content(), $before, 'a loss of power: all that was acknowledged is there');
is(replayed(), 'postgres done', 'by replay, in the database whose calls are logged alone');
check_indexes('after the loss');
is(sql("SELECT state FROM nvm.log_recovery"), 'whole', 'the region is whole');
check_locks('after the loss');
# one that a call asks for comes to nothing
$node->set_failpoint('ckpt-begin:error');
work(20);
$before = content();
lose_power();
start();
is(content(), $before, 'once more, without a checkpoint in between');
is(replayed(), 'postgres done', 'which replays again');
$node->set_failpoint('');
$node->stop;
start();
alone();
work(20);
$before = content();
$node->crash;
start();
is(content(), $before, 'behind a checkpoint, and a crash of the server alone');
$node->stop;
start();
is(content(), $before, 'a clean stop');

## at each step of the replay

foreach my $place ('rebuild-replay', 'recover-indexes', 'recover-record:1', 'recover-record:30', 'recover-settle', 'recover-played', 'rebuild-played', 'rebuild-played-open')
{
	my ($name, $hit) = split /:/, $place;
	$node->set_failpoint("$name:power:" . ($hit // 1));
	$node->crash if defined $node->{_pid};
	eval { start() };
	$node->wait_crashed if defined $node->{_pid};
	like($node->log_since_start, qr/failpoint $name hit/, "$place was reached");
	lose_power();
	$node->set_failpoint('');
	start();
	is(content(), $before, "a loss of power at $place");
}

# the death of a process: what is open stays so
foreach my $place ('rebuild-replay', 'recover-indexes', 'recover-record:20', 'recover-settle', 'recover-played', 'rebuild-played', 'rebuild-played-open')
{
	my ($name, $hit) = split /:/, $place;
	$node->crash;
	$node->set_failpoint("$name:panic:" . ($hit // 1));
	eval { start() };
	# of tables that are half open the next attempt opens the others
	my $deaths = $name =~ /open/ ? 1 : 2;
	NvmTest::wait_until("$place: deaths", sub { (() = $node->log_since_start =~ /failpoint $name hit/g) >= $deaths });
	$node->set_failpoint('');
	NvmTest::wait_until("$place: it is up", sub { ($node->psql('postgres', 'SELECT'))[0] == 0 });
	is(content(), $before, "deaths at $place");
}

# a call that kills its process each time is not called for ever
$node->crash;
$node->set_failpoint('recover-record:panic:1');
eval { start() };
NvmTest::wait_until('it has stopped', sub { my ($ret, $out) = $node->psql('postgres', q{SELECT problem FROM nvm.replayed_databases WHERE state = 'stopped'}); $ret == 0 && $out =~ /a process has died amid the replay 5 times/ });
$node->set_failpoint('');
is(sql("SELECT count(*) FROM nvm.replayed_databases WHERE not_replayed IS NULL"), '1', 'nobody could count what is left');
is(sql('SELECT nvm.resume_replay() > 0'), 't', 'after five deaths the replay has stopped, and is resumed');
is(content(), $before, 'and comes to its end');

## processes that are ended

# a start in which a process of the replay stops at a place; returns its pid
sub start_and_hold
{
	my ($place) = @_;
	my ($name) = split /:/, $place;
	my $pid;

	$node->crash if defined $node->{_pid};
	$node->set_failpoint("$name:stop:" . ($place =~ /:(\d+)/ ? $1 : 1));
	# of several players each would come there
	$node->set_conf('nvm.replay_workers' => 1);
	start();
	NvmTest::wait_until("$place: it stops", sub { ($pid) = $node->log_since_start =~ /failpoint $name hit, pid (\d+)/ });
	NvmTest::wait_stopped($pid);
	$node->set_failpoint('');
	return $pid;
}
# all that have come there
sub let_go { NvmTest::continue_process($_) foreach $node->log_since_start =~ /failpoint [a-z-]+ hit, pid (\d+)/g; return; }

foreach my $case ([ 'recover-record:10', 'nvm replay player' ], [ 'recover-played', 'nvm replay leader' ], [ 'index-rebuild-claimed', 'nvm replay leader' ],
	[ 'recover-record:25', 'nvm log recovery' ])
{
	my ($place, $type) = @$case;
	my $held = start_and_hold($place);
	my $pid = $type =~ /recovery/ ? sql("SELECT pid FROM pg_stat_activity WHERE backend_type = '$type'") : $held;
	sql("SELECT pg_terminate_backend($pid)");
	let_go();
	is(content(), $before, "$type is terminated: the replay begins anew");
	is(replayed(), 'postgres done', 'and comes to its end');
	check_locks("$type was terminated at $place");
}

# the worker has an ERROR while a player is at work
{
	start_and_hold('recover-record:10');
	$node->set_failpoint('recover-watch:error:1');
	NvmTest::wait_until('an ERROR of the worker', sub { $node->log_since_start =~ /ERROR:.*recover-watch/ });
	sleep 1;
	is(sql('SELECT state FROM nvm.log_recovery'), 'rebuilding', 'an ERROR of the worker: it waits for those who replay');
	let_go();
	NvmTest::wait_until('it has failed', sub { sql('SELECT state FROM nvm.log_recovery') eq 'failed' });
	is(sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'nvm replay%'}), '0', 'which have ended');
	$node->fails_with('SELECT FROM stock', qr/DETAIL:.*recover-watch.*\nHINT:.*restart the server/, 'tables stay closed, and it is told what to do');
	is(replayed(), 'postgres waiting', 'the database waits for a replay');
	is(sql('SELECT count(*) > 0 FROM seen'), 't', 'other tables are open');
	$node->set_failpoint('');
	$node->crash;
	start();
	is(content(), $before, 'the next start replays');
}

## who waits

{
	start_and_hold('recover-record:10');
	my $old = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM other');
	is(replayed(), 'postgres replaying', 'nvm.replayed_databases says so');
	is(sql('SELECT phase FROM nvm.replay'), 'replaying', 'and nvm.replay');
	is(sql('SELECT count(*) > 0 FROM seen'), 't', 'tables of nvm_vlog are open');
	is($node->safe_psql('shadow', 'SELECT count(*) > 0 FROM stock'), 't', 'and those of the other database');
	$node->fails_with('SET nvm.wait_for_recovery = off; SELECT FROM stock', qr/"stock" is being rebuilt from the log/, 'who does not want to wait');
	$node->fails_with("BEGIN; LOCK TABLE price IN SHARE MODE", qr/canceling statement due to user request/, 'who would come between the leader and players is cancelled');
	my $waits = $node->session("SET statement_timeout = 0");
	$waits->send('SELECT count(*) FROM history');
	my $checkpoint = $node->session;
	$checkpoint->send('SELECT nvm.checkpoint()');
	NvmTest::wait_until('both wait', sub { sql("SELECT count(*) FROM pg_stat_activity WHERE pid IN (" . $waits->pid . ',' . $checkpoint->pid . ") AND wait_event_type = 'Extension'") eq '2' });
	is(sql("SELECT state FROM nvm.checkpoints ORDER BY number DESC LIMIT 1"), 'usable', 'there is no checkpoint meanwhile');
	let_go();
	is(content(), $before, 'then all is there');
	is($old->sql('SELECT count(*), sum(n) FROM stock'), sql('SELECT count(*), sum(n) FROM stock'), 'also to a snapshot that is older than the replay');
	is($old->sql('SELECT count(*) FROM history'), sql('SELECT count(*) FROM history'), 'of each table');
	$_->drop foreach $old, $waits, $checkpoint;
}

$node->crash;
start();
alone();
work(5);
$before = content();

# a lock that is wanted as the leader ends: the leader lets go of its own
{
	start_and_hold('recover-played');
	my $waits = $node->session("SET lock_timeout = '60s'", 'BEGIN');
	$waits->send("LOCK TABLE stock; SELECT 'locked'");
	NvmTest::wait_until('it waits', sub { sql("SELECT count(*) FROM pg_locks WHERE NOT granted AND pid = " . $waits->pid) eq '1' });
	let_go();
	like($waits->sql('COMMIT; SELECT 1'), qr/locked/, 'who waits for the lock of the leader gets it when that has ended');
	$waits->drop;
	is(sql('BEGIN', 'LOCK TABLE stock, history, orders, price', 'COMMIT'), '', 'as does who comes behind it');
	is(content(), $before, 'and all is there');
}
{
	start_and_hold('rebuild-replay');
	my ($result, $stdout, $stderr) = $node->psql('shadow', 'CREATE DATABASE copied TEMPLATE postgres');
	like($stderr, qr/calls of database \d+ are being replayed/, 'who would copy the database');
	my $locks = $node->session('BEGIN', 'LOCK TABLE price IN SHARE MODE');
	$node->fails_with('BEGIN; LOCK TABLE price IN SHARE MODE; SELECT FROM stock', qr/calls of this database are being replayed/, 'who would have players wait for him');
	let_go();
	NvmTest::wait_until('the leader waits for it', sub { sql("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'nvm replay leader' AND wait_event_type = 'Lock'") eq '1' });
	$locks->sql('COMMIT');
	is(content(), $before, 'the leader has waited for a lock');
	$locks->drop;
}

# no room for processes
foreach my $case ([ 5, 'the process that leads a replay' ], [ 6, 'a process that replays' ])
{
	$node->stop;
	$node->set_conf(max_worker_processes => $case->[0]);
	start();
	NvmTest::wait_until("no room for $case->[1]", sub { $node->log_since_start =~ /there is no room for $case->[1]/ });
	is(sql('SELECT count(*) > 0 FROM seen'), 't', "no room for $case->[1]: other tables are open");
	is(replayed(), 'postgres replaying', 'and the replay waits for it');
	next if $case->[0] != 5;
	sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'nvm log recovery'");
	NvmTest::wait_until('the next one waits, too', sub { (() = $node->log_since_start =~ /there is no room for $case->[1]/g) == 2 });
	is(replayed(), 'postgres replaying', 'the worker is terminated meanwhile: the next one goes on');
}
$node->stop;
$node->set_conf(max_worker_processes => 16);
start();
is(content(), $before, 'with room it comes to its end');

## a call that comes to something else

alone();
sql('SELECT take(1, 3, 2)', 'SELECT move(1, 2, 5, 7)', 'SELECT take(2, 4, 2)', 'SELECT take(5, 4, 2)');
$before = content();
my $take = sql("SELECT pg_get_functiondef('take(int,int,int)'::regprocedure)");
(my $lie = $take) =~ s/n = n - k/n = n - 2 * k/;
$node->crash;
# somebody has changed the function behind the back of everybody
sub change_by_hand
{
	my ($definition) = @_;
	my ($body) = $definition =~ /\$function\$(.*)\$function\$/s;
	return "SET allow_system_table_mods = on; UPDATE pg_proc SET prosrc = \$x\$$body\$x\$ WHERE oid = 'take(int,int,int)'::regprocedure";
}
start();
is(content(), $before, 'before the function is another one');
sql(change_by_hand($lie));
$node->crash;
start();
sub wait_stopped { return NvmTest::wait_until('it has stopped', sub { replayed() =~ /postgres stopped/ }); }
wait_stopped();
is(sql('SELECT state, transactions >= 0, not_replayed > 0, log_position > 0, call, problem, detail FROM nvm.replayed_databases'),
	'stopped|t|t|t|public.take(1, 3, 2)|replayed calls have not written what the calls in the log have|' . sql('SELECT detail FROM nvm.replayed_databases'), 'the call is named, with its arguments');
NvmTest::wait_until('the server log says so, too', sub { $node->log_since_start =~ /the replay of the calls of database \d+ has stopped at position \d+ of the log.*\n.*public\.take\(1, 3, 2\)/ });
$node->fails_with('SELECT FROM stock', qr/tables of nvm_cmdlog of this database are not available\nDETAIL:  .*public\.take\(1, 3, 2\).*\nHINT:  .*nvm\.resume_replay\(\).*nvm\.end_replay\(\)/, 'who comes to a table is told');
$node->fails_with('SELECT nvm.checkpoint()', qr/tables in memory are not all available/, 'there is no checkpoint');
is($node->safe_psql('shadow', 'SELECT count(*) > 0 FROM stock'), 't', 'the other database is open');
is(sql('SELECT count(*) > 0 FROM seen'), 't', 'and other tables');
$node->fails_with('SET ROLE clerk; SELECT nvm.resume_replay()', qr/permission denied/, 'nobody but a superuser goes on');
$node->fails_with('SET ROLE clerk; SELECT nvm.end_replay()', qr/permission denied/, 'nor ends it');
$node->fails_with('SELECT nvm.resume_replay()', qr/has stopped at position \d+ of the log: replayed calls have not written.*\nDETAIL:  Call public\.take\(1, 3, 2\)/s, 'with the same function it stops again');
my ($ret, $out, $err) = $node->psql('shadow', 'SELECT nvm.resume_replay()');
like($err, qr/no replay of the calls of this database has stopped/, 'in another database there is nothing to resume');
sql($take);
is(sql('SELECT nvm.resume_replay() >= 4'), 't', 'with the right one it comes to its end');
is(content(), $before, 'and all is there');
check_indexes('after a replay that was resumed');
$node->fails_with('SELECT nvm.resume_replay()', qr/no replay of the calls of this database has stopped/, 'then there is nothing to resume');

# a function that is gone; a death while it is stopped; and an end with what there is
alone();
sql('SELECT move(1, 2, 6, 7)');
my $kept = content();
sql('SELECT take(3, 5, 1)', 'SELECT take(3, 6, 1)');
$before = content();
sql(change_by_hand($lie));
$node->crash;
start();
wait_stopped();
{
	my $opened = $node->times_opened;
	kill('KILL', pid_of('nvm gap collector'));
	$node->wait_reopened($opened);
}
wait_stopped();
is($node->safe_psql('shadow', 'SELECT count(*) > 0 FROM stock'), 't', 'after the death of a process it stops again');

foreach my $at ('rebuild-given-up', 'ckpt-walked')
{
	$node->set_failpoint("$at:power:1");
	($ret, $out, $err) = $node->psql('postgres', 'SELECT * FROM nvm.end_replay()');
	isnt($ret, 0, "$at: the server dies");
	$node->wait_crashed;
	lose_power();
	$node->set_failpoint('');
	start();
	wait_stopped();
	pass("a loss of power at $at, before it counts: it has stopped again");
}
is(sql('SELECT * FROM nvm.end_replay()'), '1|2', 'its end tells what was replayed, and what is given up');
is(content(), $kept, 'what was replayed is there');
like($node->log_since_start, qr/was ended: 1 transactions were replayed, 2 are given up/, 'the server log says so');
lose_power();
start();
is(content(), $kept, 'a loss of power behind it changes nothing');
is(replayed(), '', 'and there is nothing to replay');
check_indexes('behind the end');
sql($take);
alone();
sql('SELECT take(3, 6, 1)');
$before = content();
lose_power();
start();
is(content(), $before, 'the server goes on');

# what is given up is so from the moment on when its checkpoint counts
foreach my $how ('power', 'panic')
{
	alone();
	sql('SELECT move(1, 2, 6, 7)');
	$kept = content();
	sql('SELECT take(3, 5, 1)');
	sql(change_by_hand($lie));
	$node->crash;
	start();
	wait_stopped();
	$node->set_failpoint("rebuild-given-up-kept:$how:1");
	($ret, $out, $err) = $node->psql('postgres', 'SELECT * FROM nvm.end_replay()');
	isnt($ret, 0, "rebuild-given-up-kept:$how: the server dies");
	if ($how eq 'power')
	{
		$node->wait_crashed;
		lose_power();
	}
	like($node->log_since_start, qr/failpoint "?rebuild-given-up-kept"?/, 'it was there');
	$node->set_failpoint('');
	start() if $how eq 'power';
	NvmTest::wait_until('it is up', sub { ($node->psql('postgres', 'SELECT'))[0] == 0 });
	is(content(), $kept, 'what was replayed is there');
	is(replayed(), '', 'and there is nothing to replay');
	is(sql('SELECT state FROM nvm.log_recovery'), 'whole', 'all is whole');
	check_indexes("behind rebuild-given-up-kept:$how");
	sql($take);
}

# the server dies amid DDL, which has done nothing yet
foreach my $point (qw(mode-ddl-begun mode-ddl-quiet mode-ddl-covered))
{
	foreach my $how ('crash', 'power')
	{
		alone();
		work(3);
		$before = content();
		($ret, $out, $err) = $node->psql('postgres', "SET nvm.failpoint = '$point:$how:1';\n$lie;");
		isnt($ret, 0, "$point:$how: the server dies");
		$node->wait_crashed;
		lose_power() if $how eq 'power';
		start();
		is(content(), $before, "$how at $point: all that was acknowledged is there");
		is(replayed(), $point eq 'mode-ddl-covered' ? '' : 'postgres done', $point eq 'mode-ddl-covered' ? 'by the checkpoint' : 'by replay');
		is(sql("SELECT pg_get_functiondef('take(int,int,int)'::regprocedure)"), $take, 'by the function as it was');
	}
}

# a function in C that says IMMUTABLE, and is of this life of the server; two databases stop
my @liars = qw(liar1 liar2);
sub liars { return join(' ', map { $node->safe_psql($_, "SELECT string_agg(w || ' ' || n || ' ' || at, ', ' ORDER BY w) FROM t") } @liars); }
foreach my $database (@liars)
{
	sql("CREATE DATABASE $database");
	$node->safe_psql($database, q{CREATE EXTENSION pg_nvm;
CREATE TABLE t (w int PRIMARY KEY, n int, at timestamptz) USING nvm_cmdlog;
SELECT nvm.partition_table('t', 'w');
INSERT INTO t SELECT generate_series(1, 4), 0, now();
CREATE FUNCTION lie() RETURNS timestamptz LANGUAGE internal IMMUTABLE AS 'pg_postmaster_start_time';
CREATE FUNCTION since(w int, n int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE start timestamptz;
BEGIN
	IF n > 1 THEN EXECUTE 'SELECT lie()' INTO start; END IF;
	UPDATE t SET n = since.n, at = coalesce(start, now()) WHERE t.w = since.w;
END$$;
SELECT nvm.register_command('since(int,int)', lanes => '{w}');
CREATE FUNCTION in_life(w int, of timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE start timestamptz;
BEGIN
	EXECUTE 'SELECT lie()' INTO start;
	IF start <> of THEN RAISE EXCEPTION 'no memory in this life' USING ERRCODE = 'out_of_memory'; END IF;
	UPDATE t SET n = n + 1 WHERE t.w = in_life.w;
END$$;
SELECT nvm.register_command('in_life(int,timestamptz)', lanes => '{w}');
SELECT nvm.checkpoint();
SELECT since(1, 2);
SELECT in_life(1, pg_postmaster_start_time());
DO $$BEGIN ASSERT (SELECT passed FROM nvm.rehearse()); END$$;
SELECT nvm.promote_command('since(int,int)');
SELECT nvm.promote_command('in_life(int,timestamptz)');
SELECT since(1, 3);});
}
sql('SELECT nvm.checkpoint()');
foreach my $database (@liars)
{
	$node->poll_query_until($database, q{SELECT mode = 'alone' FROM nvm.command_modes WHERE database = current_database()}) or die 'the mode is another one';
	$node->safe_psql($database, 'SELECT since(2, 1)');
}
$kept = liars();
$node->safe_psql($_, 'SELECT since(3, 2)') foreach @liars;
lose_power();
start();
NvmTest::wait_until('both have stopped', sub { (() = replayed() =~ /liar\d stopped/g) == 2 });
is(sql("SELECT string_agg(concat_ws(' ', call, transactions, not_replayed), ', ') FROM nvm.replayed_databases WHERE state = 'stopped'"),
	'public.since(3, 2) 1 1, public.since(3, 2) 1 1', 'a function in C that lies is found');
my $end;
{
	my $options = "host=" . $node->host . " port=" . $node->port . " dbname=$liars[0]";
	$end = IPC::Run::start([ 'psql', '-XqAt', '-d', $options, '-c', 'SELECT * FROM nvm.end_replay()' ], '>', \my $told, '2>', \my $problem);
	NvmTest::wait_until('it waits', sub { replayed() =~ /liar1 given up/ });
	is(sql("SELECT count(*) FILTER (WHERE state = 'running') FROM nvm.checkpoints"), '0', 'while another database has stopped there is no checkpoint');
	($ret, $out, $err) = $node->psql($liars[0], "SET statement_timeout = '300ms'; SELECT FROM t");
	like($err, qr/statement timeout/, 'and no table opens');
	($ret, $out, $err) = $node->psql($liars[1], 'CREATE TABLE x (a int)');
	isnt($ret, 0, 'there is no DDL in it');
	is($node->safe_psql($liars[1], 'SELECT * FROM nvm.end_replay()'), '1|1', 'when both are given up');
	$end->finish;
	is($told, "1|1\n", 'tables open');
}
is(liars(), $kept, 'with what was replayed in both');
NvmTest::wait_until('all is whole', sub { sql('SELECT state FROM nvm.log_recovery') eq 'whole' });
lose_power();
start();
is(liars(), $kept, 'which stays');

# a database that has stopped may be dropped
$node->safe_psql($liars[0], 'SELECT since(1, 1); SELECT nvm.checkpoint()');
$node->poll_query_until($liars[0], q{SELECT mode = 'alone' FROM nvm.command_modes WHERE database = current_database()}) or die 'the mode is another one';
$node->safe_psql($liars[0], 'SELECT since(3, 2)');
$node->crash;
start();
NvmTest::wait_until('it has stopped', sub { replayed() =~ /liar1 stopped/ });
sql('DROP DATABASE liar1');
NvmTest::wait_until('all is whole', sub { sql('SELECT state FROM nvm.log_recovery') eq 'whole' });
pass('a database that has stopped is dropped, and the region is whole');

# a lack of something may be over the next time
$node->safe_psql($liars[1], 'SELECT since(1, 1); SELECT nvm.checkpoint()');
$node->poll_query_until($liars[1], q{SELECT mode = 'alone' FROM nvm.command_modes WHERE database = current_database()}) or die 'the mode is another one';
$node->safe_psql($liars[1], 'SELECT in_life(3, pg_postmaster_start_time()), since(4, 1)');
$node->crash;
start();
NvmTest::wait_until('it has stopped', sub { replayed() =~ /liar2 stopped/ });
like(sql("SELECT problem FROM nvm.replayed_databases WHERE state = 'stopped'"), qr/no memory in this life/, 'a lack of memory');
is(() = $node->log_since_start =~ /begins anew, because a replay of calls was interrupted/g, 4, 'has stopped it the fifth time');
is($node->safe_psql($liars[1], 'SELECT * FROM nvm.end_replay()'), '0|1', 'it can be ended');

$node->check_clean('in the end');
$node->stop;
done_testing();

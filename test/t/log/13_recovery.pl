# Copyright (c) 2026, pg_nvm contributors

# The rebuild of tables in memory by several processes, and tables that open one by one.
#
#  1. while a large table is being rebuilt, small ones are used; who needs the large one waits,
#     or gets an error that names it; VACUUM passes over it; DROP, TRUNCATE and CREATE do not wait
#  2. the rebuild is ended in the middle: a process dies, the worker or one that helps is
#     terminated, power is lost.  What was written to open tables is there, and so is the rest
#  3. tables of prepared transactions open last, with their row locks; a snapshot that is older than
#     the end of one does not see what it has changed
#  4. a death, a loss of power, and an error at each step
#  5. damage that any process finds is told; too few worker processes do no harm, nor a lack of
#     shared memory, in any process and whatever the error says
#
# Long form: each end with more rounds.

use strict;
use warnings;

use File::Basename;
use NvmMemory;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $node = NvmTest->start_new('recovery', conf => <<CONF, sql => <<SQL);
nvm.memory_limit = 512MB
nvm.checkpoint_interval = 0
nvm.checkpoint_file_size = 1
nvm.recovery_workers = 3
autovacuum = off
restart_after_crash = on
max_worker_processes = 12
max_prepared_transactions = 5
CONF
CREATE TABLE small (id int PRIMARY KEY, v int) USING nvm_vlog;
CREATE TABLE late (id int PRIMARY KEY, v int) USING nvm_vlog;
CREATE TABLE big (id int PRIMARY KEY, v int, s text) USING nvm_vlog;
CREATE TABLE wide (id int, s text) USING nvm_vlog;
CREATE TABLE dropped (id int, s text) USING nvm_vlog;
CREATE TABLE emptied (id int, s text) USING nvm_vlog;
CREATE TABLE h (id int) USING heap;
CREATE UNLOGGED TABLE unlogged (id int) USING nvm_vlog;
INSERT INTO small SELECT i, 0 FROM generate_series(1, 100) i;
INSERT INTO late SELECT i, 0 FROM generate_series(1, 100) i;
INSERT INTO big SELECT i, 0, repeat('b', 100 + i % 200) FROM generate_series(1, 60000) i;
ALTER TABLE wide ALTER s SET STORAGE EXTERNAL;
INSERT INTO wide SELECT i, repeat(chr(97 + i % 26), 9000) FROM generate_series(1, 200) i;
INSERT INTO dropped SELECT i, repeat('d', 300) FROM generate_series(1, 40000) i;
INSERT INTO emptied SELECT i, repeat('e', 300) FROM generate_series(1, 40000) i;
SELECT nvm.checkpoint();
UPDATE big SET v = 1, s = s || repeat('u', 150) WHERE id % 3 = 0;
DELETE FROM big WHERE id % 7 = 0;
DO 'BEGIN FOR i IN 1 .. 60 LOOP UPDATE small SET v = v + 1; UPDATE big SET v = v + 1 WHERE id = 1; COMMIT; END LOOP; END';
SQL
my @tables = qw(small late big wide);

sub sql { return $node->safe_psql('postgres', join('; ', @_)); }

sub content { return NvmMemory::content($node, @_); }
sub failpoint { return $node->set_failpoint($_[0]); }

sub wait_until
{
	my ($what, $is_so) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (!$is_so->())
	{
		die "$what: this does not come about\n" . $node->log_since_start if time() > $end;
		usleep(10_000);
	}
	return;
}

sub stopped { my %pids = map { $_ => 1 } $node->log_since_start =~ /failpoint rebuild-blocks hit, pid (\d+)/g; return keys %pids; }

# The worker, which is the one that has said what it reads.
sub worker { return ($node->log_since_start =~ /\[(\d+)\].*rebuilding tables in memory/g)[-1]; }

# A start that stops, with all its processes, where the first large table gets its blocks.
sub start_stopped
{
	failpoint('rebuild-blocks:stop:1');
	$node->start;
	wait_until('small tables open', sub { stopped() > 0 && sql('SELECT tables >= 2 FROM nvm.log_recovery') eq 't' });
	wait_until('all come there', sub { stopped() >= 2 });
	NvmTest::wait_stopped($_) foreach stopped();
	failpoint('');
	return;
}

my %continued;

# whoever stops
sub let_go
{
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end && sql('SELECT state FROM nvm.log_recovery') ne 'whole')
	{
		NvmTest::continue_process($_) foreach stopped();
		usleep(20_000);
	}
	is(sql('SELECT state FROM nvm.log_recovery'), 'whole', "$_[0]: the region is whole");
	return;
}

sub lose
{
	$node->crash;
	$node->start;
	return;
}

# ---------------------------------------------------------------- 1. one by one

my $before = content(@tables);
is($before, (lose(), content(@tables))[-1], 'all is there after a loss');
like($node->log_since_start, qr/nvm: rebuilt \d+ rows of \d+ tables.*\n.*MB\/s with 3 workers/, 'which three processes have done');
is(sql('SELECT tables = tables_total, bytes = bytes_total, workers, mb_per_s > 0 FROM nvm.log_recovery'), 't|t|3|t', 'and the view says so');

$node->crash;
start_stopped();
is(sql('SELECT state, tables < tables_total FROM nvm.log_recovery'), 'rebuilding|t', 'a large table is being rebuilt');
is(sql('SELECT count(*), sum(v) FROM small'), '100|6000', 'a small one answers');
is(sql('SET enable_seqscan = off; SELECT v FROM small WHERE id = 77'), '60', 'so does its index');
is(sql('SELECT count(*) FROM unlogged'), 0, 'an UNLOGGED one is there, empty');
sql('UPDATE small SET v = 7 WHERE id = 7; DELETE FROM small WHERE id = 8; INSERT INTO small VALUES (200, 2)');
my $err;
$node->psql('postgres', "\\set VERBOSITY verbose\nSET nvm.wait_for_recovery = off;\nSELECT count(*) FROM big;", stderr => \$err);
like($err, qr/ERROR:  55006: "big(?:_pkey)?" is being rebuilt from the log\nDETAIL:  \d+ of \d+ bytes are read, \d+ of \d+ tables are there\.\nHINT:  Try again later/, 'who does not want to wait is told');
$node->psql('postgres', 'VACUUM big; VACUUM small', stderr => \$err);
like($err, qr/^(?:psql:<stdin>:1: )?WARNING:  skipping vacuum of "big" --- it is being rebuilt from the log\n?$/, 'VACUUM passes over it alone');
foreach my $command ('ANALYZE', 'VACUUM (ANALYZE)')
{
	my $word = lc((split / /, $command)[0]);
	$node->psql('postgres', "$command small, big", stderr => \$err);
	like($err, qr/^(?:psql:<stdin>:1: )?WARNING:  skipping $word of "big" --- it is being rebuilt from the log\n?$/, "so does $command");
}
my $waiter = $node->session;
$waiter->send('SELECT count(*), sum(v) FROM big WHERE id % 2 = 0');
usleep(300_000);
is(sql("SELECT state FROM pg_stat_activity WHERE pid = " . $waiter->pid), 'active', 'others wait');
$node->fails_with("SET statement_timeout = '200ms'; SELECT count(*) FROM big", qr/statement timeout/, 'and can be cancelled');
sql('DROP TABLE dropped');
sql('TRUNCATE emptied; INSERT INTO emptied VALUES (1, NULL)');
sql("CREATE TABLE made (id int PRIMARY KEY, s text) USING nvm_vlog; INSERT INTO made SELECT i, repeat('m', 400) FROM generate_series(1, 500) i");
sql('BEGIN; TRUNCATE late; ROLLBACK');
# from the log alone
is(sql('SELECT count(*) FROM emptied'), 1, 'TRUNCATE does not wait');
# the worker, which syncs what nobody waits for, is stopped: the keeper does it
sql('SET synchronous_commit = off', 'INSERT INTO small VALUES (201, 0)');
wait_until('the log is synced', sub { sql('SELECT persistent = inserted FROM nvm.log') eq 't' });
let_go('one by one');
$waiter->{psql}->query('SELECT 1');
my $now = content(qw(late big wide));
is($now, (split /\n/, $before, 2)[1], 'the others are what they were');
$node->fails_with('SELECT FROM dropped', qr/does not exist/, 'a table that was dropped is gone');
$before = content(@tables, qw(emptied made));
lose();
is(content(@tables, qw(emptied made)), $before, 'and so it is after another loss');
$waiter->drop;
push @tables, qw(emptied made);

# autovacuum does not wait either

sql('ALTER TABLE big SET (autovacuum_analyze_threshold = 1, autovacuum_analyze_scale_factor = 0)', 'UPDATE big SET v = v WHERE id < 100');
$now = content(@tables);
$node->stop;
$node->set_conf(autovacuum => 'on', autovacuum_naptime => '1s');
start_stopped();
wait_until('an automatic ANALYZE', sub { $node->log_since_start =~ /ERROR:  "big" is being rebuilt from the log\n(?:.*\n)*?.*CONTEXT:  automatic (?:vacuum|analyze) of table "postgres\.public\.big"/ });
wait_until('it ends', sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autovacuum worker'}) eq '0' });
let_go('autovacuum');
wait_until('it comes back', sub { sql(q{SELECT count(*) FROM pg_stat_user_tables WHERE relname = 'big' AND n_mod_since_analyze = 0 AND autoanalyze_count > 0}) eq '1' });
is(content(@tables), $now, 'an automatic ANALYZE comes back');
$node->set_conf(autovacuum => 'off');
$node->reload;

# ---------------------------------------------------------------- 2. ended in the middle

my %end = (
	death => sub { kill('KILL', (grep { $_ != worker() } stopped())[0]); },
	'death of the worker' => sub { kill('KILL', worker()); },
	terminate => sub { kill('TERM', worker()); },
	'terminate a helper' => sub { kill('TERM', (grep { $_ != worker() } stopped())[0]); },
	cancel => sub { kill('INT', worker()); },
	power => sub { $node->crash; $node->start; });
foreach my $how ((sort keys %end) x (NvmTest::is_long() ? 4 : 1))
{
	$node->crash;
	start_stopped();
	sql('UPDATE small SET v = v + 1', 'UPDATE late SET v = v + 1 WHERE id < 50', 'INSERT INTO h VALUES (1)');
	# decided by pg_xact, and of a transaction that is rolled back
	sql('BEGIN; INSERT INTO h VALUES (2); UPDATE small SET v = v + 1 WHERE id = 1; COMMIT; BEGIN; DELETE FROM small; ROLLBACK');
	my $small = content('small', 'late');
	my $open = $node->session;
	$open->sql('BEGIN; INSERT INTO h VALUES (3); UPDATE small SET v = -1 WHERE id = 2');
	my $opened = $node->times_opened;
	my @were = stopped();
	$end{$how}->();
	if ($how =~ /death/) { NvmTest::continue_process($_) foreach @were; $node->wait_reopened($opened); }
	let_go($how) if $how !~ /power/;
	if ($how =~ /cancel|terminate/)
	{
		cmp_ok((() = $node->log_since_start =~ /rebuilding tables in memory/g), '>=', 2, "$how: it begins anew");
		is($open->sql('COMMIT; SELECT v FROM small WHERE id = 2'), '-1', "$how: a transaction at an open table commits");
		sql('UPDATE small SET v = 61 WHERE id = 2');
		$small = content('small', 'late');
	}
	$open->drop;
	is(content('small', 'late'), $small, "$how: what was written to open tables is there");
	my @rest = grep { $_ !~ /^(?:small|late)$/ } @tables;
	is(content(@rest), join("\n", @{ [ split /\n/, $before ] }[ 2 .. $#tables ]), "$how: so are the others");
	my $all = content(@tables);
	lose();
	is(content(@tables), $all, "$how: and after a loss of all");
	$before = $all;
}

# ---------------------------------------------------------------- 3. prepared transactions

sql("BEGIN; UPDATE late SET v = 1000 WHERE id = 3; INSERT INTO h VALUES (4); PREPARE TRANSACTION 'changes'");
sql("BEGIN; SELECT FROM small WHERE id = 5 FOR UPDATE; INSERT INTO h VALUES (5); PREPARE TRANSACTION 'locks'");
$before = content(@tables);
$node->crash;
failpoint('rebuild-blocks:stop:1');
$node->start;
wait_until('all come there', sub { stopped() >= 2 });
NvmTest::wait_stopped($_) foreach stopped();
failpoint('');
is(sql('SET nvm.wait_for_recovery = off; SELECT count(*) FROM made'), 500, 'prepared: another table is open');
$node->fails_with("SET nvm.wait_for_recovery = off; SELECT FROM $_", qr/"$_(?:_pkey)?" is being rebuilt/, "prepared: $_ is not") foreach qw(late small);
let_go('prepared');
is(content(@tables), $before, 'prepared: all is there');
$node->fails_with("SET lock_timeout = 100; UPDATE small SET v = 1 WHERE id = 5", qr/lock timeout/, 'prepared: the lock is there');
$node->fails_with("SET lock_timeout = 100; UPDATE late SET v = 1 WHERE id = 3", qr/lock timeout/, 'prepared: and the change');
# a death now: the locks come back by themselves
{
	my $opened = $node->times_opened;
	kill('KILL', sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm gap collector'}));
	$node->wait_reopened($opened);
}
$node->fails_with("SET lock_timeout = 100; UPDATE small SET v = 1 WHERE id = 5", qr/lock timeout/, 'prepared: the lock is there after a death');
sql("COMMIT PREPARED 'changes'");
sql("ROLLBACK PREPARED 'locks'");
is(sql('SELECT v FROM late WHERE id = 3'), '1000', 'prepared: committed');

# One that has ended before its rows are placed: an older snapshot does not see it, which
# has seen other tables without it.
sql('UPDATE h SET id = 0');
foreach my $at (qw(read choose), 'a second attempt', 'place')
{
	my $place = 'rebuild-' . ($at =~ /attempt/ ? 'choose' : $at);
	my $number = sql('SELECT max(id) + 1 FROM h');
	sql("BEGIN; UPDATE late SET v = v + 1 WHERE id < 4; DELETE FROM late WHERE id = 10; INSERT INTO late VALUES (1000, 1); UPDATE h SET id = $number; PREPARE TRANSACTION 'ends'");
	$before = content('late');
	my $after = sql('BEGIN; SELECT count(*), sum(v) FROM late; COMMIT');
	$node->crash;
	failpoint("$place:stop:1");
	$node->start;
	my @at;
	wait_until("$at: it stops", sub { (@at = $node->log_since_start =~ /failpoint $place hit, pid (\d+)/g) > 0 });
	NvmTest::wait_stopped($_) foreach @at;
	failpoint('');
	my $old = $node->session;
	$old->sql('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT sum(id) FROM h');
	sql("COMMIT PREPARED 'ends'");
	wait_until("$at: it is settled", sub { sql('SELECT count(*) FROM pg_prepared_xacts') eq '0' });
	kill('TERM', worker()) if $at =~ /attempt/;
	wait_until("$at: whole", sub {
		NvmTest::continue_process($_) foreach $node->log_since_start =~ /failpoint $place hit, pid (\d+)/g;
		sql('SELECT state FROM nvm.log_recovery') eq 'whole' });
	is($old->sql('SELECT max(id) FROM h'), $number - 1, "$at: a snapshot is older than the end of a transaction");
	is($old->sql('SELECT count(*), sum(v) FROM late'), $after, "$at: it does not see what that has changed");
	is($old->sql('SET enable_seqscan = off; SELECT count(*) FROM late WHERE id IN (10, 1000)'), 1, "$at: nor by an index");
	is(sql('SELECT count(*) FROM late WHERE id IN (10, 1000)', 'SET enable_seqscan = off; SELECT max(id) FROM late'), "1\n1000", "$at: others do");
	$old->sql('COMMIT');
	$old->drop;
	isnt(content('late'), $before, "$at: committed");
	$before = content('late');
	lose();
	is(content('late'), $before, "$at: so it is after a loss");
	sql('DELETE FROM late WHERE id = 1000', 'INSERT INTO late VALUES (10, 0)');
}

# ---------------------------------------------------------------- 4. at each step

$before = content(@tables);
foreach my $at (qw(read check collect choose decided opening blocks place open opened placed))
{
	$node->crash;
	failpoint("rebuild-$at:panic:1");
	$node->start(fail_ok => 1);
	# a region begins opening once
	my $deaths = $at eq 'opening' ? 1 : 2;
	wait_until("$at: deaths", sub { (() = $node->log_since_start =~ /failpoint rebuild-$at hit/g) >= $deaths });
	failpoint('');
	wait_until("$at: it is up", sub { ($node->psql('postgres', 'SELECT'))[0] == 0 });
	$node->poll_query_until('postgres', q{SELECT state = 'whole' FROM nvm.log_recovery});
	is(content(@tables), $before, "deaths at rebuild-$at");

	$node->stop;
	failpoint("rebuild-$at:crash:1");
	$node->start(fail_ok => 1);
	$node->wait_crashed if defined $node->{_pid};
	failpoint('');
	$node->start;
	is(content(@tables), $before, "a loss of power at rebuild-$at");
	next if $at =~ /^(?:decided|opening)$/;

	$node->stop;
	failpoint("rebuild-$at:error:1");
	$node->start;
	$node->poll_query_until('postgres', q{SELECT state = 'failed' FROM nvm.log_recovery});
	like(sql('SELECT reason FROM nvm.log_recovery'), qr/rebuild-$at/, "an error at rebuild-$at");
	# all are open by then
	is(content(@tables), $before, "tables that are open stay so") if $at eq 'placed';
	$node->fails_with('SELECT FROM big', qr/tables in memory are not available\nDETAIL:  They could not be rebuilt from the log: .*rebuild-$at/, "an access after an error at rebuild-$at")
	  if $at ne 'placed';
	is(sql('SELECT count(*) > 0 FROM h'), 't', 'other tables are served');
	if ($at eq 'opened')
	{
		# after a clean stop the UNLOGGED one is rebuilt, too, and as it is the smallest one, first
		my @all = (@tables, 'unlogged');
		my @open = grep { ($node->psql('postgres', "SELECT FROM $_"))[0] == 0 } @all;
		cmp_ok(scalar(@open), '>=', 1, 'those that are open stay so');
		sql("UPDATE $open[0] SET id = id");
		$node->psql('postgres', 'VACUUM ANALYZE', stderr => \$err);
		my %skipped = map { $_ => 1 } $err =~ /WARNING:  skipping vacuum of "(\w+)" --- tables in memory are not available/g;
		is(join(' ', sort grep { !$skipped{$_} } @all), join(' ', sort @open), 'and are vacuumed, others are not');
	}
	failpoint('');
	$node->stop;
	$node->start;
	is(content(@tables), $before, "after an error at rebuild-$at");
}

# ---------------------------------------------------------------- 5. damage, few workers

my $dir = $node->data_dir . '/pg_nvm_log';
foreach my $like (qw(*.rows *.side *-00000001.log))
{
	my @files = sort { -s $b <=> -s $a } glob "$dir/$like";
	next if !@files;
	my $name = basename($files[0]);
	$node->stop;
	open(my $fh, '+<:raw', $files[0]) or die $!;
	seek($fh, 4096 + 200, 0);
	read($fh, my $old, 1);
	seek($fh, 4096 + 200, 0);
	print $fh chr(ord($old) ^ 4);
	close $fh;
	$node->start;
	$node->fails_with('SELECT FROM small', qr/could not be rebuilt from the log: file "\Q$name\E" of the log: .*(?:wrong checksum|missing)/, "damage in a file like $like");
	$node->stop;
	open($fh, '+<:raw', $files[0]) or die $!;
	seek($fh, 4096 + 200, 0);
	print $fh $old;
	close $fh;
	$node->start;
	is(content(@tables), $before, 'mended, all is there');
}
foreach my $hit (1, 3, 20, 100)
{
	$node->stop;
	failpoint("rebuild-memory:error:$hit");
	$node->start;
	is(content(@tables), $before, "no shared memory at hit $hit");
	like($node->log_since_start, qr/tables in memory are rebuilt by one process, because shared memory.*MB\/s with 1 workers/s, "one process does without at hit $hit");
	failpoint('');
}
foreach my $n (1, 40)
{
	$node->set_conf('nvm.recovery_workers' => $n, max_worker_processes => 9);
	$node->restart;
	is(content(@tables), $before, "$n workers wanted");
	my ($were) = $node->log_since_start =~ /MB\/s with (\d+) workers/;
	cmp_ok($were, '<=', 9, "$were come");
}
$node->check_clean('at the end');
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Checkpoints of tables in memory.  After the memory is lost the tables have just what they had,
# wherever a checkpoint was: finished, replaced, in the middle of its walk while clients commit,
# mixed transactions stand between their question and its answer and tables come and go, or cut
# off at each of its steps.  The log before it goes.  A damaged or missing file is an error that
# names it, and a checkpoint that fails leaves the one before it.
#
# Long form: more rounds of concurrent work.

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
my $node = NvmTest->start_new('checkpoint', conf => <<CONF, sql => <<SQL);
shared_preload_libraries = '$tools/nvm_late,pg_nvm,$tools/nvm_dram'
nvm_dram.size = 512MB
nvm_dram.log = on
nvm.checkpoint_interval = 0
nvm.checkpoint_file_size = 1
autovacuum = off
# the volume of the log is counted on below
nvm.log_compression = off
log_checkpoints = off
restart_after_crash = on
max_worker_processes = 12
max_prepared_transactions = 5
CONF
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$tools/nvm_dram' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
CREATE TABLE t (id int PRIMARY KEY, v int, s text) USING nvm_dram;
CREATE TABLE u (id int PRIMARY KEY, v int, s text) USING nvm_dram;
CREATE TABLE h (id int, n int) USING heap;
CREATE PROCEDURE fill(rounds int, n int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN 1 .. rounds LOOP
		UPDATE u SET v = v + 1 WHERE id <= n;
		COMMIT;
	END LOOP;
END\$\$;
INSERT INTO t SELECT i, 0, repeat('x', i % 100) FROM generate_series(1, 5000) i;
INSERT INTO u SELECT i, 0, repeat('u', 200) FROM generate_series(1, 1000) i;
SQL
my $dir = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', join('; ', @_)); }

sub content
{
	return sql(map { "SELECT count(*), md5(coalesce(string_agg(x::text, ',' ORDER BY x::text), '')) FROM $_ x" } @_);
}

# names of files
sub files { my ($like) = @_; my @names = sort map { basename($_) } glob "$dir/$like"; return @names; }

sub conf { my (%set) = @_; $node->set_conf(map { ("nvm.$_" => "'$set{$_}'") } keys %set); $node->reload; return; }

sub lose
{
	$node->crash;
	$node->start;
	return;
}

# the tables are the same after the loss; what the server said of it
sub same_after_loss
{
	my ($name, @tables) = @_;
	my $before = content(@tables);

	lose();
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(content(@tables), $before, "$name: the same after a loss");
	return $node->log_since_start;
}

sub usable { return sql('SELECT number FROM nvm.checkpoints WHERE state = \'usable\''); }

# ---------------------------------------------------------------- one, and the next

is(usable(), '', 'there is none at first');
sql('SELECT nvm.checkpoint()');
is(sql('SELECT number, state, rows, files > 0, finished >= started, blocks_done IS NULL FROM nvm.checkpoints'), '1|usable|6000|t|t|t', 'a checkpoint');
my @rows = files('*.rows');
cmp_ok(scalar(@rows), '>', 0, 'has its files');
like($node->log_since_start, qr/LOG:  nvm: checkpoint 1 of tables in memory: 6000 rows, \d+ bytes in \d+ files, [\d.]+ s, [\d.]+ MB\/s/, 'which is said in the server log');
like(same_after_loss('behind a checkpoint', qw(t u)), qr/rebuilding tables in memory from checkpoint 1, and from the log from position \d+ on/, 'and from it');

sql('UPDATE t SET v = 1 WHERE id % 3 = 0', 'DELETE FROM t WHERE id % 7 = 0', 'UPDATE t SET id = id + 10000 WHERE id % 11 = 0',
	"INSERT INTO t SELECT i, 2, 'new' FROM generate_series(6000, 6500) i", "UPDATE t SET s = repeat('y', 300) WHERE id % 13 = 0");
same_after_loss('with the log behind it', qw(t u));
sql('SELECT nvm.checkpoint()');
is(usable(), 2, 'a second checkpoint replaces it');
is_deeply([ grep { /-0000000000000001-/ } files('*.rows') ], [], 'whose files are gone');
same_after_loss('and the second', qw(t u));
sql('UPDATE t SET v = 3 WHERE id % 5 = 0', 'DELETE FROM t WHERE id < 100');
same_after_loss('with a part of the log behind it', qw(t u));
my ($status, $said, $complaints) = (0, '', '');
IPC::Run::run([ 'nvm_logdump', $dir ], '>', \$said, '2>', \$complaints);
is($complaints, '', 'nvm_logdump has nothing to complain of');
like($said, qr/^checkpoint .*: number 2, begin \d+/m, 'and prints the checkpoint');

# ---------------------------------------------------------------- the log is bounded

conf(checkpoint_log_size => '8MB');
sql('CALL fill(300, 1000)');    # by side files
sql('CALL fill(400, 200)');     # 50 kB each
$node->poll_query_until('postgres', 'SELECT max(number) > 2 FROM nvm.checkpoints') or die;
conf(checkpoint_log_size => '1GB');
sql('SELECT nvm.checkpoint()');
cmp_ok(scalar(files('*.log')), '<=', 2, 'old files of the log are gone') or diag(join("\n", files('*')));
is(scalar(files('*.side')), 0, 'and the side files that they name');
same_after_loss('with a log that begins late', qw(t u));

# ---------------------------------------------------------------- open questions

# Mixed transactions stand between their ASK record and its OUTCOME while a checkpoint is made;
# the log goes on in another file meanwhile.
my %mixed = (202 => '', 201 => "SET LOCAL nvm_late.sql = 'SELECT 1 / 0';");
my %asker = map { $_ => $node->session } keys %mixed;
my $early = sql('SELECT begin_position FROM nvm.checkpoints');
foreach my $id (sort keys %mixed)
{
	$asker{$id}->stop_at('log-asked', "BEGIN; UPDATE t SET v = 77 WHERE id = $id; INSERT INTO h VALUES ($id, 1); $mixed{$id} COMMIT");
}
# nor has this one decided, which needs nobody's answer
my $parked = $node->session;
$parked->stop_at('log-captured', 'UPDATE t SET v = 77 WHERE id = 206');
my @old_files = files('*.log');
sql('CALL fill(450, 200)');
sql('SELECT nvm.checkpoint()', 'UPDATE t SET v = 78 WHERE id = 204');
is(join(' ', grep { my $f = $_; !grep { $_ eq $f } files('*.log') } $old_files[-1]), '', 'the file with an open question stays');
$_->go_on foreach values %asker, $parked;
$node->poll_query_until('postgres', 'SELECT count(*) = 3 FROM t WHERE v IN (77, 78)') or die;
$_->drop foreach values %asker, $parked;
same_after_loss('questions that were open at a checkpoint', qw(t u h));
is(sql('SELECT id, v FROM t WHERE id BETWEEN 201 AND 206 AND v >= 77 ORDER BY id'), "202|77\n204|78\n206|77", 'have their answers');

# what nobody has waited for is in the checkpoint, and so in the log
sql("ALTER SYSTEM SET wal_writer_delay = '10s'", 'SELECT pg_reload_conf()');
usleep(500_000);
sql('SET synchronous_commit = off', 'UPDATE t SET v = 79 WHERE id BETWEEN 1000 AND 1100', 'SELECT nvm.checkpoint()');
# who reads it waits for it, so nobody does
lose();
is(($node->psql('postgres', 'SELECT count(*) BETWEEN 50 AND 101 FROM t WHERE v = 79'))[1], 't', 'commits that have not waited');
sql('ALTER SYSTEM RESET wal_writer_delay', 'SELECT pg_reload_conf()');

# a prepared transaction waits from checkpoint to checkpoint, over losses
sql("BEGIN; UPDATE t SET v = 80 WHERE id = 204; INSERT INTO h VALUES (204, 80); PREPARE TRANSACTION 'one'");
sql("BEGIN; DELETE FROM t WHERE id = 206; PREPARE TRANSACTION 'two'");
foreach my $round (1 .. 2)
{
	sql('CALL fill(350, 200)', 'SELECT nvm.checkpoint()', 'UPDATE t SET v = 0 WHERE id = 208');
	same_after_loss("prepared transactions, round $round", qw(t u h));
}
sql("COMMIT PREPARED 'one'");
sql('SELECT nvm.checkpoint()');
same_after_loss('one has committed', qw(t u h));
sql("ROLLBACK PREPARED 'two'");
sql('SELECT nvm.checkpoint()');
same_after_loss('the other was rolled back', qw(t u h));
is(sql('SELECT id, v FROM t WHERE id IN (204, 206) ORDER BY id'), "204|80\n206|77", 'as they have ended');
cmp_ok(scalar(files('*.log')), '<=', 3, 'the log before their questions is gone then');

# large values, and more than one data file, which ends when some blocks have been walked
sql('CREATE TABLE w (id int PRIMARY KEY, s text) USING nvm_dram', "INSERT INTO w SELECT i, repeat('w', 300) FROM generate_series(1, 15000) i");
sql('CREATE TABLE l (id int PRIMARY KEY, s text)  USING nvm_dram', 'ALTER TABLE l ALTER s SET STORAGE EXTERNAL',
	"INSERT INTO l SELECT i, repeat(i::text, 50000) FROM generate_series(1, 40) i", 'SELECT nvm.checkpoint()',
	"UPDATE l SET s = repeat('n', 70000) WHERE id % 4 = 0");
cmp_ok(scalar(files('*.rows')), '>', 2, 'several data files');
same_after_loss('large values', qw(l t w));
sql('SELECT nvm.checkpoint()', 'DELETE FROM l WHERE id < 10');
same_after_loss('large values, from another checkpoint', qw(l t));

# ---------------------------------------------------------------- at work

sub worker { return sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm checkpointer'"); }

# stop the worker at a failpoint of the next checkpoint, which is asked for
sub stop_worker
{
	my ($failpoint) = @_;
	my $session = $node->session;
	my $pid;

	conf(failpoint => "$failpoint:stop:1");
	$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'nvm checkpointer'") or die;
	$pid = worker();
	usleep(1_200_000);          # until it has read the settings
	$session->send('SELECT nvm.checkpoint()');
	NvmTest::wait_stopped($pid);
	conf(failpoint => '');
	return ($pid, $session);
}

# what is done when some storages have been walked and others not, and between blocks of one
foreach my $round (1 .. NvmTest::is_long() ? 3 : 1)
{
	sql(map { ("CREATE TABLE w$_ (id int PRIMARY KEY, v int) USING nvm_dram", "INSERT INTO w$_ SELECT i, 0 FROM generate_series(1, 20000) i") } 1 .. 3);
	my ($pid, $session) = stop_worker('ckpt-walk');
	is(sql("SELECT state, blocks_done > 0, blocks_done < blocks_total FROM nvm.checkpoints ORDER BY number DESC LIMIT 1"), 'running|t|t', 'a checkpoint that is running') if $round == 1;
	sql('UPDATE t SET v = v + 1', 'UPDATE t SET id = id + 20000 WHERE id < 500', 'DELETE FROM u WHERE id < 10', 'TRUNCATE w1',
		'INSERT INTO w1 VALUES (1, 1)', 'DROP TABLE w2', 'CREATE TABLE w2 (id int PRIMARY KEY, v int) USING nvm_dram', 'INSERT INTO w2 VALUES (2, 2)',
		'DELETE FROM w3 WHERE id > 10000', 'CREATE TABLE w4 (id int) USING nvm_dram', 'INSERT INTO w4 VALUES (4)', 'BEGIN', 'UPDATE u SET v = -1', 'ROLLBACK');
	NvmTest::continue_process($pid);
	$session->sql('SELECT 1');
	$session->drop;
	same_after_loss('changes while a checkpoint walks', qw(t u h w1 w2 w3 w4));
	sql(map { "DROP TABLE w$_" } 1 .. 4);
}

# clients, among them mixed ones and some that move rows; tables that come and go; one checkpoint
# after the other; then a loss at any time
sql('CREATE TABLE done (client int, n int) USING nvm_dram', 'CREATE TABLE alone (client int PRIMARY KEY, id int UNIQUE) USING nvm_dram',
	'CREATE TABLE pair (client int, n int) USING nvm_dram', 'INSERT INTO alone SELECT i, i * 1000000 FROM generate_series(1, 4) i',
	'CREATE TABLE f (a int, b text) USING nvm_dram');
conf(checkpoint_rate => 20);
foreach my $round (1 .. NvmTest::is_long() ? 12 : 3)
{
	sql('TRUNCATE done', 'TRUNCATE pair', 'TRUNCATE h', 'UPDATE alone SET id = client * 1000000');
	my $load = $node->start_load(clients => 4, transactions => 20000, sql => sub {
			my ($client, $n) = @_;
			my $mixed = $n % 5 == 0 ? "INSERT INTO pair VALUES ($client, $n); INSERT INTO h VALUES ($client, $n);" : '';
			return "BEGIN; INSERT INTO done VALUES ($client, $n); UPDATE alone SET id = id + 1 WHERE client = $client; "
			  . "UPDATE t SET v = v + 1 WHERE id = 5900 + $client; $mixed COMMIT;"
			  . ($client == 1 && $n % 50 == 0 ? ' TRUNCATE f; INSERT INTO f SELECT i, repeat(\'f\', 500) FROM generate_series(1, 200) i;' : '');
		});
	my $checkpoints = 3 + $round;
	$load->wait_acknowledged(200);
	sql('SELECT nvm.checkpoint()') foreach 1 .. $checkpoints;
	$load->wait_acknowledged(600);
	my ($pid, $session) = $round % 2 ? stop_worker('ckpt-walk') : ();
	usleep(100_000 * $round);
	$node->crash;
	$session->drop if defined $session;
	$node->start;
	$load->check('postgres', 'SELECT client, n FROM done', name => "round $round: committed work");
	is(sql('SELECT client FROM alone a WHERE id - client * 1000000 <> (SELECT count(*) FROM done d WHERE d.client = a.client)'), '', 'rows that move are there once');
	is(sql('(SELECT * FROM pair EXCEPT ALL SELECT * FROM h) UNION ALL (SELECT * FROM h EXCEPT ALL SELECT * FROM pair)'), '', 'mixed transactions are in both, or in none');
	$node->check_clean("round $round");
}
conf(checkpoint_rate => 0);

# ---------------------------------------------------------------- cut off at each step

my @tables = qw(t u h done pair alone);
foreach my $failpoint (qw(ckpt-begin ckpt-data-write ckpt-walk ckpt-data-sync ckpt-walked ckpt-sync ckpt-rename ckpt-renamed
	ckpt-remove-rows ckpt-remove-log ckpt-removed-side ckpt-removed))
{
	sql('SELECT nvm.checkpoint()', 'CALL fill(80, 900)', 'CALL fill(360, 200)', 'UPDATE t SET v = v + 1 WHERE id % 17 = 0');
	my $before = content(@tables);
	my $session = $node->session;

	$node->set_conf('nvm.failpoint' => "'$failpoint:crash:1'");
	$node->reload;
	usleep(1_200_000);
	$session->send('SELECT nvm.checkpoint()');
	$node->wait_crashed;
	$session->drop;
	$node->set_conf('nvm.failpoint' => "''");
	$node->start;
	is(content(@tables), $before, "a crash at $failpoint");
	sql('UPDATE t SET v = v + 1 WHERE id % 19 = 0', 'SELECT nvm.checkpoint()');
	is(scalar(files('*.side')), 0, 'leaves no side file');
	my %of = map { (split /-/)[1] => 1 } files('*.rows');
	is(scalar(keys %of), 1, 'and files of one checkpoint, once the next is there');
	cmp_ok(scalar(files('*.log')), '<=', 2, 'nor the old log') or diag(join("\n", files('*')));
}
same_after_loss('after all these', @tables);

# an old file that was cut, and not yet removed: no spare file is made of it
sql('SELECT nvm.checkpoint()', 'CALL fill(400, 200)', 'CALL fill(400, 200)');
my $uncut = content(@tables);
my $asker = $node->session;
$node->set_conf('nvm.failpoint' => "'ckpt-cut-log:crash:1'");
$node->reload;
usleep(1_200_000);
$asker->send('SELECT nvm.checkpoint()');
$node->wait_crashed;
$asker->drop;
$node->set_conf('nvm.failpoint' => "''");
is(scalar(grep { -z "$dir/$_" } files('*.log')), 1, 'a crash at ckpt-cut-log leaves a file that is cut');
$node->start;
is(content(@tables), $uncut, 'which nobody misses');
sql('UPDATE t SET v = v + 1 WHERE id % 19 = 0', 'SELECT nvm.checkpoint()');
is(join(' ', grep { -s "$dir/$_" != 16 * 1024 * 1024 } files('*.log'), files('*.spare')), '', 'and the next checkpoint removes');
sql('CALL fill(400, 200)');
same_after_loss('a log that goes on', @tables);

# a file that was being made when the server died; its name never comes again
sql('SELECT nvm.checkpoint()');
$node->set_conf('nvm.failpoint' => "'log-file-rename:crash'");
$node->reload;
$node->psql('postgres', 'CALL fill(500, 200)');
$node->wait_crashed;
$node->set_conf('nvm.failpoint' => "''");
my @unfinished = grep { /\.log\.tmp$/ } files('*');
is(scalar(@unfinished), 1, 'a file of the log that was not finished');
$node->start;
content(@tables);
$node->poll_query_until('postgres', "SELECT state = 'whole' FROM nvm.log_recovery") or die;
sql('SELECT nvm.checkpoint()');
is(join(' ', grep { my $f = $_; grep { $_ eq $f } @unfinished } files('*')), '', 'goes when the region is whole');
same_after_loss('behind it', @tables);

# the recovery from one
foreach my $failpoint (qw(rebuild-placed rebuild-decided rebuild-remove-side))
{
	sql('SELECT nvm.checkpoint()', 'CALL fill(2, 1000)');
	my $before = content(@tables);
	my $session = $node->session;

	# whose transaction leaves a side file that nothing names
	$session->stop_at('log-captured', 'UPDATE u SET v = v + 1');
	$node->crash;
	$session->drop;
	$node->set_conf('nvm.failpoint' => "'$failpoint:crash:1'");
	$node->start(fail_ok => 1);
	$node->wait_crashed if defined $node->{_pid};
	$node->set_conf('nvm.failpoint' => "''");
	$node->start;
	is(content(@tables), $before, "a crash at $failpoint of the recovery");
}

# a process dies, the memory stays
{
	my ($pid, $session) = stop_worker('ckpt-data-write');
	my $before = content(@tables);
	my $opened = $node->times_opened;

	kill('KILL', $pid);
	$node->wait_reopened($opened);
	$session->drop;
	is(content(@tables), $before, 'the checkpointer dies');
	sql('SELECT nvm.checkpoint()');
	my %of = map { (split /-/)[1] => 1 } files('*.rows');
	is(scalar(keys %of), 1, 'what it has left is gone with the next checkpoint');
	same_after_loss('and the server then', @tables);
}

# ---------------------------------------------------------------- one that fails

foreach my $failpoint (qw(ckpt-begin ckpt-data-write ckpt-data-sync ckpt-walk ckpt-sync ckpt-rename))
{
	conf(failpoint => "$failpoint:error:1");
	usleep(1_200_000);
	my $number = usable();
	$node->fails_with('SELECT nvm.checkpoint()', qr/the checkpoint of tables in memory has failed: .*\nDETAIL:  The one before it still counts/, "an error at $failpoint");
	conf(failpoint => '');
	is(sql("UPDATE t SET v = 500 WHERE id = 5902; SELECT number FROM nvm.checkpoints WHERE state = 'usable'"), $number, 'the one before it stays, and commits go on');
}
is(sql('SELECT state FROM nvm.checkpoints ORDER BY number DESC LIMIT 1'), 'failed', 'the view shows it');
same_after_loss('without them', @tables);
usleep(1_200_000);
sql('SELECT nvm.checkpoint()');
is(sql('SELECT count(*) FROM nvm.checkpoints'), 1, 'the next one is usable');

# ---------------------------------------------------------------- side files that nobody names

# A process that dies leaves one, and the memory is kept.  The next checkpoint that begins
# behind the start removes it, and no other.
sub orphan
{
	my $opened = $node->times_opened;
	my $session = $node->session;
	my @before = files('*.side');

	$session->stop_at('log-side-sync', 'UPDATE t SET v = v + 1');
	kill 'KILL', $session->pid;
	$session->drop;
	$node->wait_reopened($opened);
	my %old = map { $_ => 1 } @before;
	my ($file) = grep { !$old{$_} } files('*.side');
	ok(defined $file, 'a death leaves a side file');
	return $file;
}
sql('SELECT nvm.checkpoint()');
is(join(' ', files('*.side')), '', 'no side files');
my $orphan = orphan();
sql(q{BEGIN; UPDATE u SET v = v + 1; PREPARE TRANSACTION 'later'});
is(scalar(my @named = grep { $_ ne $orphan } files('*.side')), 1, 'what is prepared has a side file');
sql('SELECT nvm.checkpoint()');
is(join(' ', files('*.side')), $named[0], 'a checkpoint removes the one that nobody names');
$orphan = orphan();
sql('SELECT nvm.checkpoint()');
is(scalar(files('*.side')), 2, 'it stays as long as what was prepared before the start may name it');
sql(q{COMMIT PREPARED 'later'}, 'SELECT nvm.checkpoint()');
is(join(' ', files('*.side')), '', 'and no longer');
same_after_loss('without those', @tables);
$orphan = orphan();
conf(failpoint => 'ckpt-remove-orphan:crash');
$node->poll_query_until('postgres', 'SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = \'nvm checkpointer\'') or die;
usleep(1_200_000);
$node->psql('postgres', 'SELECT nvm.checkpoint()');
$node->wait_crashed;
$node->set_conf('nvm.failpoint' => "''");
$node->start;
is(sql('SELECT count(*) > 0 FROM t'), 't', 'a crash before it is removed');
$node->poll_query_until('postgres', "SELECT state = 'whole' FROM nvm.log_recovery") or die;
NvmTest::wait_until('the rebuild removes it', sub { !-e "$dir/$orphan" });

# ---------------------------------------------------------------- what is lost or damaged

sql('CALL fill(400, 200)', 'SELECT nvm.checkpoint()', 'CALL fill(400, 200)');
my $good = content(@tables);
my $number = usable();
my ($rows_file) = files('*.rows');
my ($checkpoint_file) = files('*.checkpoint');
my ($log_file) = files('*.log');
my %harm = (
	"flip $rows_file"          => qr/file "$rows_file" of the log: wrong checksum/,
	"remove $rows_file"        => qr/file "$rows_file" of the log cannot be read: No such file/,
	"flip $checkpoint_file"    => qr/file "\S*$checkpoint_file" of the checkpoint: wrong checksum/,
	"remove $checkpoint_file"  => qr/file "\S*.log" of the log(?: is missing \(There is no checkpoint|: positions .* and there is no checkpoint)/,
	"remove $log_file"         => qr/file "\S*" of the log(?: is missing|: positions)/);
foreach my $harm (sort keys %harm)
{
	my ($how, $file) = split / /, $harm;

	$node->crash if defined $node->{_pid};
	copy("$dir/$file", "$dir/saved") or die $!;
	if ($how eq 'flip')
	{
		open(my $fh, '+<:raw', "$dir/$file") or die $!;
		seek($fh, -20, 2);
		read($fh, my $byte, 1);
		seek($fh, -20, 2);
		print $fh chr(ord($byte) ^ 1);
		close $fh;
	}
	else { unlink("$dir/$file") or die $!; }
	$node->start;
	$node->fails_with('SELECT count(*) FROM t', $harm{$harm}, $harm);
	is(sql('SELECT count(*) > 0 FROM h'), 't', 'other tables are there');
	is(usable(), $file eq $checkpoint_file ? '' : $number, 'the view shows the checkpoint, if it can be read');
	$node->stop;
	rename("$dir/saved", "$dir/$file") or die $!;
	$node->start;
	is(content(@tables), $good, 'with the file put back all is there');
	is(usable(), $number, 'and the view shows the checkpoint at once');
}

# ---------------------------------------------------------------- when, and who may

sql('UPDATE t SET v = 0 WHERE id = 5903');
conf(checkpoint_interval => '2s');
$node->poll_query_until('postgres', "SELECT max(number) > $number FROM nvm.checkpoints WHERE state = 'usable'") or die;
pass('by time');
conf(checkpoint_interval => '0');
sql('CREATE ROLE somebody', 'CREATE ROLE keeper IN ROLE pg_checkpoint');
$node->fails_with('SET ROLE somebody; SELECT nvm.checkpoint()', qr/permission denied/, 'not by anybody');
is((split /\n/, sql('SET ROLE keeper', 'SELECT nvm.checkpoint()', 'SELECT 1'))[-1], '1', 'by members of pg_checkpoint');
$node->check_clean('at the end');
same_after_loss('at the end', @tables);
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# nvm.reset_log(): a log that is lost is given up, and with it the rows of tables in memory,
# those of no others (src/log/README.md, "Giving up the log").  The tables say that their rows
# are lost, until TRUNCATE or DROP.  A log that is there again is not given up; one whose rows
# nvm.memory_directory has costs no row.  A crash at each step leaves what the next start ends.

use strict;
use warnings;

use File::Path qw(rmtree);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('reset_log', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 10
max_worker_processes = 8
restart_after_crash = on
CONF
CREATE TABLE h (id int PRIMARY KEY) USING heap;
CREATE TABLE n (id int PRIMARY KEY, s text) USING nvm;
INSERT INTO h SELECT generate_series(1, 10);
INSERT INTO n SELECT i, 'n' || i FROM generate_series(1, 100) i;
SQL
my $log = $node->data_dir . '/pg_nvm_log';
my $request = $node->data_dir . '/pg_nvm_reset';
my $lost = qr/rows of nvm table "[a-z]+" are lost/;

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub old_dirs { return scalar(my @dirs = glob "$log/*.old"); }

sub restart { return $node->stop_and_start; }

sub ask
{
	my ($args, $re, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my ($ret, $out, $err) = $node->psql('postgres', "SELECT nvm.reset_log($args)");
	is($ret, 0, "$name: a request");
	like($err, qr/WARNING:  the next start of the server gives up the log.*DETAIL:  $re.*HINT:  .*pg_nvm_reset/s, "$name: and what it means");
	return;
}

# tables in memory, with indexes of both kinds
sub fill
{
	sql(<<SQL);
DROP TABLE IF EXISTS v, w, u;
CREATE TABLE v (id int PRIMARY KEY, s text) USING nvm_vlog;
SET nvm.default_index_method = btree;
CREATE INDEX v_s ON v USING btree (s);
RESET nvm.default_index_method;
CREATE TABLE w (id int) USING nvm_vlog;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY) USING nvm_vlog;
INSERT INTO v SELECT i, 's' || i FROM generate_series(1, 3000) i;
INSERT INTO w VALUES (1);
INSERT INTO u VALUES (1);
SQL
	return;
}

# the log was given up, and nothing else; what is used again is right
sub is_given_up
{
	my ($name, @ends) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(sql('SELECT (SELECT status FROM nvm.pool), (SELECT state FROM nvm.log)'), 'open|on', "$name: pool and log are open");
	is(sql('SELECT (SELECT count(*) FROM n), (SELECT count(*) FROM h)'), '100|10', "$name: other tables have their rows");
	$node->fails_with("SELECT count(*) FROM $_", $lost, "$name: $_ says that its rows are lost") foreach qw(v w);
	$node->fails_with("INSERT INTO w VALUES (2)", $lost, "$name: and takes no others");
	# what the stop has kept of it is whole without the log, unless it has gone with the directory
	is(sql('SELECT count(*) FROM u'), $name =~ /^a log that is gone|^a crash/ ? 0 : 1, "$name: an UNLOGGED table is as after any stop, or crash");
	ok(!-e $request, "$name: the request is over");
	sql(q{SET nvm.default_index_method = btree; TRUNCATE v; DROP TABLE w; INSERT INTO v SELECT i, 'new' || i FROM generate_series(1, 500) i});
	foreach my $how ('at once', @ends ? @ends : ('after a restart', 'after a crash'))
	{
		restart() if $how eq 'after a restart';
		$node->crash, $node->start if $how eq 'after a crash';
		is(sql(q{SET enable_seqscan = off; SELECT (SELECT count(*) FROM v WHERE s LIKE 's%'), (SELECT id FROM v WHERE s = 'new77'),
			(SELECT s FROM v WHERE id = 499), (SELECT count(*) || ' ' || sum(id) FROM v)}), '0|77|new499|500 125250', "$name: it has what came later, $how");
	}
	$node->check_clean($name);
	return;
}

# ---- who may, and when

$node->fails_with('SELECT nvm.reset_log(true)', qr/there is no log of tables in memory/, 'a log that has not begun');
fill();
$node->fails_with('SELECT nvm.reset_log()', qr/the log of tables in memory is in use\nHINT: .*nvm\.reset_log\(force => true\)/, 'a log in use');
sql('CREATE ROLE mortal');
$node->fails_with('SET ROLE mortal; SELECT nvm.reset_log(true)', qr/permission denied/, 'not for everybody');
sql('GRANT USAGE ON SCHEMA nvm TO mortal; GRANT EXECUTE ON FUNCTION nvm.reset_log(bool) TO mortal');
$node->fails_with('SET ROLE mortal; SELECT nvm.reset_log(true)', qr/must be superuser/, 'superusers only');
ok(!-e $request, 'and there is no request');

# ---- the directory is lost

$node->stop;
rename $log, "$log.aside" or die $!;
$node->start;
$node->fails_with('SELECT count(*) FROM n', qr/could not open log directory.*HINT: .*nvm\.memory_limit = 0.*rows of all tables in memory, and of no others, call nvm\.reset_log\(\)/s, 'the hint says what works');
ask('', qr/.*unless the log can be read/, 'a lost log');

# it is there again
$node->stop;
rename "$log.aside", $log or die $!;
$node->start;
like($node->log_since_start, qr/request to give up the log of tables in memory was dropped, because the log is there/, 'a log that is there again is not given up');
is(sql('SELECT (SELECT count(*) FROM v), (SELECT count(*) FROM n)'), '3000|100', 'all rows are there');
ok(!-e $request, 'and the request is over');

# it is not
$node->stop;
rmtree($log);
$node->start;
ask('', qr/.*unless the log can be read/, 'a log that is gone');
restart();
like($node->log_since_start, qr/WARNING:  the log of tables in memory was given up.*DETAIL:  The rows of 2 tables in memory are lost.*HINT: .*\.old/s, 'the server log says what is lost');
is_given_up('a log that is gone');

# withdrawn
fill();
ask('force => true', qr/The rows of all tables in memory/, 'a log in use');
unlink $request;
restart();
is(sql('SELECT count(*) FROM v'), 3000, 'a request that was withdrawn does nothing');

# without memory for them
$node->set_conf('nvm.memory_limit' => 0);
restart();
ask('force => true', qr/The rows of all tables in memory/, 'without memory');
restart();
ok(-e $request, 'it waits until there is memory');
$node->set_conf('nvm.memory_limit' => '-1');
restart();
is_given_up('asked for without memory');

# ---- a rebuild that fails; what is prepared; a table made by what is prepared

fill();
sql(q{SET nvm.log_compression = off; INSERT INTO v SELECT i, repeat('x', 7000) FROM generate_series(10000, 13500) i});
sql(<<SQL);
BEGIN; INSERT INTO v VALUES (-1, 'prepared'); INSERT INTO n VALUES (-1, 'prepared'); UPDATE v SET s = 'p' WHERE id = 1;
SELECT FROM v WHERE id = 2 FOR UPDATE; CREATE TABLE made (id int) USING nvm_vlog; INSERT INTO made VALUES (1); PREPARE TRANSACTION 'one';
BEGIN; INSERT INTO v VALUES (-2, 'prepared'); INSERT INTO n VALUES (-2, 'prepared'); DELETE FROM v WHERE id = 3; PREPARE TRANSACTION 'two';
SQL
$node->stop;
my ($victim) = (sort glob "$log/*.log")[-2];
rename $victim, "$log/../victim" or die $!;
$node->start;
$node->fails_with('SELECT count(*) FROM v', qr/could not be rebuilt from the log.*HINT: .*nvm\.reset_log\(\)/s, 'the rebuild fails, and the hint says what works');
is(sql('SELECT count(*) FROM n'), 100, 'nvm tables are served');
ask('', qr/The rows of all tables in memory of all databases are lost then, those/, 'a rebuild that fails');
restart();
is(sql('SELECT count(*) FROM n'), 100, 'what is prepared is not seen');
$node->fails_with('SELECT count(*) FROM v', $lost, 'the rows are lost');
sql(q{COMMIT PREPARED 'one'});
sql(q{ROLLBACK PREPARED 'two'});
is(sql('SELECT count(*), min(id) FROM n'), '101|-1', 'what was prepared counts in other tables');
$node->fails_with('SELECT count(*) FROM made', $lost, 'a table that it has made is lost, too');
sql(q{DELETE FROM n WHERE id = -1; DROP TABLE made});
is_given_up('a rebuild that fails');

# ---- crashes

fill();
$node->psql('postgres', "SET nvm.failpoint = 'reset-request:crash'; SELECT nvm.reset_log(force => true)");
$node->wait_crashed;
$node->start;
is(sql('SELECT count(*) FROM v'), 3000, 'a crash before the request: nothing is given up');
foreach my $place (qw(log-reset-move log-reset-moved log-reset-reclaim log-reset-reclaimed log-file-make
	log-file-rename log-file-made log-generation-begun log-generation-noted log-reset-forgotten))
{
	fill();
	my $name = "a crash at $place";
	ask('force => true', qr/The rows of all tables in memory/, $name);
	$node->stop;
	$node->dies_at_start($place, "$name: the server died");
	$node->start;
	is_given_up($name, 'after a crash');
}
cmp_ok(old_dirs(), '>', 5, 'old files are kept');

# what cannot be moved stays, and the request with it
fill();
ask('force => true', qr/The rows of all tables in memory/, 'a directory that is read-only');
$node->stop;
chmod 0500, $log;
$node->start;
$node->fails_with('SELECT count(*) FROM n', qr/could not give up the log, as nvm\.reset_log\(\) asked: could not create directory.*Permission denied/, 'a directory that is read-only');
chmod 0700, $log;
$node->stop;
unlink $request;
$node->start;
is(sql('SELECT count(*) FROM v'), 3000, 'nothing was given up');
$node->stop;

# ---- memory that has all rows

SKIP:
{
	my $base = NvmTest::pool_base();
	skip 'no tmpfs for the memory of a server', 1 unless NvmTest::is_tmpfs($base);
	$node->append_conf('postgresql.conf', "nvm.memory_directory = '$base/memory'\nnvm.memory_limit = 256MB\n");
	$node->start;
	is(sql('SELECT count(*) FROM v'), 3000, 'a memory file');
	$node->stop;
	rmtree($log);
	$node->start;
	$node->fails_with('SELECT count(*) FROM v', qr/could not read log file.*HINT: .*nvm\.reset_log\(\)/s, 'with all rows in memory the pool waits for the log');
	ask('', qr/.*nvm\.memory_directory has them/, 'memory');
	restart();
	like($node->log_since_start, qr/WARNING:  could not read log file .*have everything.*HINT: .*nvm\.checkpoint\(\)/s, 'memory: it says what to do');
	is(sql('SELECT (SELECT count(*) FROM v), (SELECT count(*) FROM n)'), '3000|100', 'memory: nothing is lost');
	ok(!-e $request, 'memory: the request is over');
	sql(q{INSERT INTO v VALUES (0, 'later'); SELECT nvm.checkpoint(); INSERT INTO v VALUES (-1, 'last')});
	$node->stop;
	unlink "$base/memory/pg_nvm_memory" or die $!;
	$node->start;
	is(sql('SELECT count(*), min(id) FROM v'), '3002|-1', 'memory: with a checkpoint the new log brings all back');
	$node->check_clean('memory');

	# by force it goes, too
	fill();
	ask('force => true', qr/The rows of all tables in memory/, 'memory that is given up');
	restart();
	like($node->log_since_start, qr/contents of file .* are not used: nvm\.reset_log\(\) gives it up/, 'memory that is given up: the log says so');
	is_given_up('memory that is given up');
	$node->stop;
}
done_testing();

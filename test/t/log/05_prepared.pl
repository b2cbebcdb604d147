# Copyright (c) 2026, pg_nvm contributors

# What pg_xact decides, with rows that only the log brings back: transactions that wrote the
# pool or WAL, too, and prepared ones.  A process dies between the ASK record and the OUTCOME, the
# region is lost then, and each transaction is whole or absent.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use File::Path qw(rmtree);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $module = dirname(abs_path($0)) . '/../../tools/nvm_dram';
my $node;

# A new server: each start adds a generation to the log, which the next one reads.
sub new_node
{
	my ($name) = @_;

	if ($node)
	{
		$node->stop;
		rmtree($node->data_dir . '/pg_nvm_log');
	}
	$node = NvmTest->start_new($name, conf => <<CONF, sql => <<SQL);
shared_preload_libraries = 'pg_nvm,$module'
nvm_dram.size = 512MB
nvm_dram.log = on
max_prepared_transactions = 10
restart_after_crash = on
autovacuum = off
CONF
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$module' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
CREATE TABLE d (id int PRIMARY KEY, v text) USING nvm_dram;
CREATE TABLE p (id int PRIMARY KEY, v text) USING nvm;
CREATE TABLE h (id int PRIMARY KEY, v text) USING heap;
CREATE TABLE m (id int PRIMARY KEY, k int, v text) USING nvm_dram;
CREATE INDEX m_k ON m (k);
CREATE TABLE other (id int PRIMARY KEY, v text) USING nvm_dram;
INSERT INTO d SELECT i, 'old' FROM generate_series(1, 100) i;
INSERT INTO m SELECT i, i % 10, repeat('m', i % 40) FROM generate_series(1, 300) i;
INSERT INTO other SELECT i, 'o' FROM generate_series(1, 50) i;
DELETE FROM m WHERE id % 7 = 0;
UPDATE m SET v = repeat('n', id % 90) WHERE id % 5 = 0;
VACUUM m;
SQL
	return;
}

sub sql { return $node->safe_psql('postgres', $_[0]); }

# after the death of a process, of which the server may not have heard yet
sub wait_up
{
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		my $log = $node->log_since_start;
		my $died = rindex($log, 'PANIC:');
		return if ($died < 0 || index($log, 'ready to accept connections', $died) > 0) && ($node->psql('postgres', 'SELECT true'))[0] == 0;
		usleep(20_000);
	}
	die 'the server does not come back';
}

# xid => what its OUTCOME says, or 'none', of all ASK records that are on the medium
sub outcomes
{
	my ($out, $err) = run_command([ 'nvm_logdump', $node->data_dir . '/pg_nvm_log' ]);
	my %outcome;

	foreach my $line (split /\n/, $out)
	{
		$outcome{$1} = 'none' if $line =~ /^  ASK \d+, xid (\d+),/;
		$outcome{$2} = $1 if $line =~ /^  OUTCOME (\w+) \d+, xid (\d+),/ && $outcome{$2};
	}
	return %outcome;
}

# ---------------------------------------------------------------- mixed transactions

# where the process dies => does it commit, has it an ASK record
my @deaths = (
	[ 'log-captured',           0, 0 ],
	[ 'log-asked',              0, 1 ],
	[ 'log-synced',             0, 1 ],
	[ 'commit-after-prepare',   0, 1 ],
	[ 'commit-before-decision', 1, 1 ]);
my $id = 1000;

sub die_mixed
{
	my ($place, $commits, $asks, $again) = @_;
	my ($name, $xid) = ("death at $place" . ($again ? ', and while that is resolved' : ''));

	$id++;
	if ($again)
	{
		$node->set_conf('nvm.failpoint' => "'resolve-log:panic'");
		$node->reload;
	}
	my (undef, $out) = $node->psql('postgres', <<EOSQL, on_error_stop => 0);
SET nvm.failpoint = '$place:panic:1';
BEGIN;
INSERT INTO d VALUES ($id, 'new');
UPDATE d SET v = '$id' WHERE id = 1;
INSERT INTO p VALUES ($id);
INSERT INTO h VALUES ($id);
SELECT pg_current_xact_id();
COMMIT;
EOSQL
	$xid = $out;
	if ($again)
	{
		my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
		usleep(20000) while slurp_file($node->logfile) !~ /failpoint resolve-log/ && time() < $end;
		like(slurp_file($node->logfile), qr/failpoint resolve-log/, "$name: does so");
		$node->set_conf('nvm.failpoint' => "''");
		$node->reload;
	}
	wait_up();

	my $expected = $commits ? "$id|new|$id|$id" : '|||';
	my $query = "SELECT d.id, d.v, p.id, h.id FROM (VALUES ($id)) x (id) LEFT JOIN d USING (id) LEFT JOIN p USING (id) LEFT JOIN h USING (id)";
	my $rest = sql('SELECT count(*), min(v) FROM d WHERE id BETWEEN 1 AND 100');
	is(sql($query), $expected, "$name: " . ($commits ? 'committed' : 'aborted'));
	# COMMIT of one that wrote there waits for what was placed before
	sql("INSERT INTO d VALUES (-$id)");
	my %outcome = outcomes();
	is($outcome{$xid} // 'no ASK', $asks ? ($commits ? 'committed' : 'aborted') : 'no ASK', "$name: the log says so");
	$node->restart;
	is(sql($query), $expected, "$name: also when the region is lost");
	is(sql('SELECT count(*), min(v) FROM d WHERE id BETWEEN 1 AND 100'), $rest, "$name: and the others' rows are there");
	return;
}

new_node('mixed');
die_mixed(@$_) foreach @deaths;
die_mixed(@{ $deaths[1] }, 1);
die_mixed(@{ $deaths[4] }, 1);
$node->check_clean('after the deaths');

# ---------------------------------------------------------------- prepared ones

# all that there is, by tables and by indexes
my $state_query = join(q{ || '/' || }, map { "(SELECT md5(coalesce(string_agg(x::text, ' ' ORDER BY id), '')) || count(*) FROM $_ x)" } qw(m other p h));
my $by_index = q{SET enable_seqscan = off; SET enable_bitmapscan = off; };

sub state
{
	my ($scan, $index, $keys) = split /\n/, sql(<<EOSQL);
SELECT $state_query;
$by_index
SELECT $state_query;
SELECT count(*) FILTER (WHERE EXISTS (SELECT FROM m b WHERE b.k = a.k AND b.id = a.id)) = count(*) FROM m a;
EOSQL

	return $scan if $scan eq $index && $keys eq 't';
	return "by the table $scan, by index $index, by k $keys";
}

# what a transaction does; rows of it that others wait for
my $n = 0;
my @work = (
	[ 'insert',      sub { "INSERT INTO m SELECT $_[0] + i, i, 'new' FROM generate_series(1, 40) i" }, sub { "INSERT INTO m VALUES ($_[0] + 3)" } ],
	[ 'update',      sub { "UPDATE m SET v = 'u$_[0] ' || repeat('x', id * 3 % 200) WHERE id BETWEEN 10 AND 60" }, sub { "UPDATE m SET v = 'waits' WHERE id = 12" } ],
	[ 'delete',      sub { 'DELETE FROM m WHERE id BETWEEN 61 + ' . ($_[0] / 1000 % 7) . ' * 5 AND 63 + ' . ($_[0] / 1000 % 7) . ' * 5' },
		sub { 'DELETE FROM m WHERE id BETWEEN 61 + ' . ($_[0] / 1000 % 7) . ' * 5 AND 63 + ' . ($_[0] / 1000 % 7) . ' * 5' } ],
	[ 'key update',  sub { "UPDATE m SET k = k + 1 WHERE id BETWEEN 100 AND 130; UPDATE m SET id = id + $_[0] WHERE id BETWEEN 131 AND 132" }, sub { 'UPDATE m SET k = 0 WHERE id = 101' } ],
	[ 'all of it',   sub { "INSERT INTO m SELECT $_[0] + i, i, 's' FROM generate_series(1, 60) i; UPDATE m SET v = repeat('l', 300) WHERE id BETWEEN $_[0] AND $_[0] + 20;
		UPDATE m SET k = 5 WHERE id BETWEEN $_[0] + 10 AND $_[0] + 30; DELETE FROM m WHERE id BETWEEN $_[0] + 25 AND $_[0] + 27;
		SAVEPOINT a; UPDATE m SET v = 'sub' WHERE id BETWEEN 140 AND 150; SAVEPOINT b; DELETE FROM m WHERE id = 151; ROLLBACK TO b; RELEASE a;
		INSERT INTO p VALUES ($_[0]); INSERT INTO h VALUES ($_[0]); UPDATE other SET v = '$_[0]' WHERE id % 2 = 0; SELECT FROM other WHERE id = 1 FOR UPDATE" },
		sub { "UPDATE m SET v = 'waits' WHERE id = 141" } ],
	[ 'row locks',   sub { 'SELECT FROM m WHERE id BETWEEN 200 AND 210 FOR UPDATE; UPDATE other SET v = v WHERE id = 4' }, sub { "UPDATE m SET v = 'waits' WHERE id = 201" } ]);

# begin, work, see what it sees, prepare
sub prepare
{
	my ($work, $gid, $set) = @_;
	my $sql = $work->[1]->($n += 1000);
	my ($ret, $out) = $node->psql('postgres', ($set // '') . "BEGIN; $sql; SELECT 'sees ' || $state_query; PREPARE TRANSACTION '$gid';", on_error_stop => 1);
	return ($out // '') =~ /^sees (.*)$/m ? $1 : "nothing: $out";
}

sub prepared { return sql('SELECT count(*) FROM pg_prepared_xacts'); }

# others go on: rows that the transaction has not touched
sub others
{
	sql("INSERT INTO m SELECT 1000000 + i, 1, 'other' FROM generate_series(1, 30) i; UPDATE m SET v = repeat('y', 60) WHERE id > 1000000; UPDATE m SET v = v || '.' WHERE id BETWEEN 270 AND 300; DELETE FROM m WHERE id > 1000000");
	return;
}

sub lose
{
	my ($how) = @_;
	if    ($how eq 'stop')  { $node->restart; }
	elsif ($how eq 'crash') { $node->crash; $node->start; }
	elsif ($how eq 'others') { others(); }
	elsif ($how eq 'death') { $node->psql('postgres', q{SET nvm.failpoint = 'commit-begin:panic'; INSERT INTO other VALUES (999)}); wait_up(); }
	return;
}

sub finish
{
	my ($name, $work, $gid, $how, @losses) = @_;

	# a row that others go on with is not the same afterwards: nothing counts but this one's
	my $before = state();
	my $seen = prepare($work, $gid);
	is(prepared(), '1', "$name: prepared");
	foreach my $loss (@losses)
	{
		lose($loss);
		($before, $seen) = (state(), undef) if $loss eq 'others';
		is(state(), $before, "$name: nobody sees it after $loss") unless $loss eq 'others';
		is(prepared(), '1', "$name: it is there after $loss");
		$node->fails_with("SET lock_timeout = 100; " . $work->[2]->($n), qr/lock timeout/, "$name: others wait for it after $loss");
	}
	sql("$how PREPARED '$gid'");
	my $after = state();
	is($after, $how eq 'COMMIT' ? $seen : $before, "$name: $how PREPARED") if defined $seen || $how ne 'COMMIT';
	return $after;
}

sub whole
{
	my ($name, $state) = @_;
	ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.transactions WHERE pid IS NULL'), "$name: settled");
	sql("UPDATE other SET v = v WHERE id = 1; UPDATE m SET k = k WHERE id BETWEEN 1 AND 300");
	$node->check_clean($name);
	foreach my $loss ('crash', 'stop')
	{
		lose($loss);
		is(state(), $state, "$name: the same after a $loss");
	}
	is(join(' ', grep { $_ eq 'none' } values %{ { outcomes() } }), '', "$name: each ASK has its OUTCOME");
	$node->check_clean("$name, again");
	return;
}

new_node('prepared');
my $round = 0;
foreach my $losses ([], ['stop'], ['crash'], [ 'death', 'stop' ], [ 'crash', 'others', 'stop', 'death' ])
{
	foreach my $work (@work)
	{
		my $how = $round++ % 2 ? 'COMMIT' : 'ROLLBACK';
		my $name = "$work->[0], " . join(', ', @$losses) . ", $how";

		next unless NvmTest::is_long() || int($round / 2) % 2 || $work->[0] eq 'all of it';
		my $state = finish($name, $work, 'x', $how, @$losses);
		whole($name, $state) if $round % 6 == 0 || NvmTest::is_long();
	}
	$round++;
}

# who waits for it goes on as it says
foreach my $how (qw(COMMIT ROLLBACK))
{
	sql(q{BEGIN; UPDATE m SET v = 'same root' WHERE id = 12; UPDATE m SET k = 11 WHERE id = 101; DELETE FROM m WHERE id = 102; PREPARE TRANSACTION 'w'});
	lose('stop');
	my @waits = map { $node->session } 1 .. 3;
	my $left = sql('SELECT v, k FROM m WHERE id = 101');
	$waits[0]->send("UPDATE m SET v = v || ', and on' WHERE id = 12");
	$waits[1]->send("UPDATE m SET v = v || ', and on' WHERE id = 101");
	$waits[2]->send('DELETE FROM m WHERE id = 102');
	$node->poll_query_until('postgres', q{SELECT count(*) = 3 FROM pg_stat_activity WHERE wait_event = 'transactionid'}) or die 'nobody waits';
	sql("$how PREPARED 'w'");
	$_->sql('SELECT 1') foreach @waits;
	$_->drop foreach @waits;
	like(sql('SELECT v FROM m WHERE id = 12'), $how eq 'COMMIT' ? qr/^same root, and on$/ : qr/^same root, and on, and on$/, "$how: an update of no indexed column");
	# which it cannot find, and may not take for deleted
	is(sql("SELECT k = 11, v LIKE '%, and on' FROM m WHERE id = 101"), $how eq 'COMMIT' ? 't|f' : 't|t', "$how: one of an indexed column");
	is(sql('SELECT count(*) FROM m WHERE id = 102'), '0', "$how: a delete");
	like($node->log_since_start, qr/tuple to be locked was already moved to another partition|could not serialize/, "$how: is an error") if $how eq 'COMMIT';
	sql('INSERT INTO m VALUES (102, 2, NULL)') if $how eq 'COMMIT';
}

# storages that it has made and ended, and a record beyond its buffer
foreach my $how (qw(ROLLBACK COMMIT))
{
	sql(<<EOSQL);
BEGIN;
CREATE TABLE made (id int PRIMARY KEY, v text) USING nvm_dram;
INSERT INTO made SELECT i, repeat('m', 50) FROM generate_series(1, 5000) i;
UPDATE made SET v = repeat('n', 90) WHERE id % 3 = 0;
TRUNCATE other;
INSERT INTO other VALUES (1, 'left');
PREPARE TRANSACTION 's';
EOSQL
	lose($_) foreach 'stop', 'crash';
	is(sql("SELECT to_regclass('made') IS NULL"), 't', "$how of storages: nobody sees them");
	sql("$how PREPARED 's'");
	is(sql($how eq 'COMMIT' ? 'SELECT count(*), sum(length(v)), (SELECT count(*) FROM other) FROM made' : 'SELECT count(*) FROM other'),
		$how eq 'COMMIT' ? '5000|316640|1' : '50', "$how of storages");
	lose('stop');
	is(sql($how eq 'COMMIT' ? 'SELECT count(*), sum(length(v)), (SELECT count(*) FROM other) FROM made' : 'SELECT count(*) FROM other'),
		$how eq 'COMMIT' ? '5000|316640|1' : '50', "$how of storages: the same after a stop");
	$node->check_clean("$how of storages");
}

# ---------------------------------------------------------------- deaths

my ($all) = grep { $_->[0] eq 'all of it' } @work;
my $action = 0;

# the last action was taken at a failpoint of one process
sub come_back
{
	my ($taken) = @_;
	if ($taken eq 'crash')
	{
		$node->wait_crashed;
		$node->start;
	}
	wait_up();
	return;
}

new_node('prepare');
foreach my $place (qw(log-captured log-asked log-synced prepare-begin prepare-locks-named prepare-asked
	prepare-after-asking prepare-before-hand-over prepare-recorded prepare-end))
{
	foreach my $taken (NvmTest::is_long() ? qw(panic crash) : $action++ % 2 ? 'panic' : 'crash')
	{
		my $name = "$taken at $place";
		my $before = state();
		my $seen = prepare($all, 'y', "SET nvm.failpoint = '$place:$taken:1';");
		come_back($taken);
		my $is_prepared = prepared();
		is($is_prepared, $place =~ /hand-over|recorded|end/ ? '1' : '0', "$name: is it prepared?");
		is(state(), $before, "$name: nobody sees it");
		lose('stop') if $action % 3;
		if ($is_prepared)
		{
			my $how = $action % 4 < 2 ? 'COMMIT' : 'ROLLBACK';
			$node->fails_with('SET lock_timeout = 100; ' . $all->[2]->($n), qr/lock timeout/, "$name: others wait for it");
			sql("$how PREPARED 'y'");
			$before = $seen if $how eq 'COMMIT';
			is(state(), $before, "$name: $how PREPARED");
		}
		whole($name, $before) if $place =~ /log-asked|recorded|prepare-asked/;
	}
}

# what is settled in the region in which it was prepared, or in one that was rebuilt
new_node('settle');
foreach my $place (qw(twophase-over twophase-before-decision log-placed twophase-logged twophase-decided twophase-before-release))
{
	foreach my $rebuilt (0, 1)
	{
		foreach my $how (qw(COMMIT ROLLBACK))
		{
			my $taken = $action++ % 2 ? 'panic' : 'crash';
			my $name = "$taken at $place of $how PREPARED, " . ($rebuilt ? 'rebuilt' : 'not rebuilt');

			next unless NvmTest::is_long() || $action % 3 == 0;
			my $before = state();
			my $seen = prepare($all, 'z');
			lose('stop') if $rebuilt;
			# not before the tables are there, nor the keeper
			is(state(), $before, "$name: nobody sees it");
			my $keeper = sql(q[SELECT pid FROM pg_stat_activity WHERE backend_type LIKE 'nvm%keeper']);
			NvmTest::stop_process($keeper);
			$node->psql('postgres', "SET nvm.failpoint = '$place:$taken:1'; $how PREPARED 'z'");
			NvmTest::continue_process($keeper);
			come_back($taken);
			is(prepared(), '0', "$name: it is over");
			$before = $seen if $how eq 'COMMIT';
			is(state(), $before, $name);
			if ($action % 2)
			{
				whole($name, $before);
				next;
			}
			lose('stop');
			is(state(), $before, "$name: the same after a stop");
		}
	}
}

new_node('rebuild');
# the rebuild dies when it has taken the transaction over, and then again and again: that takes no more memory each time
my $before = state();
my @seen = (prepare($all, 'one'));
$node->set_conf('nvm.failpoint' => "'rebuild-prepared:panic,rebuild-placed:panic'");
$node->stop;
$node->start(fail_ok => 1);
my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
usleep(20000) while (() = $node->log_since_start =~ /failpoint rebuild-placed hit/g) < 12 && time() < $end;
$node->set_conf('nvm.failpoint' => "''");
$node->reload;
wait_up();
like($node->log_since_start, qr/failpoint rebuild-prepared hit.*(failpoint rebuild-placed hit.*){12}/s, 'deaths of the rebuild: so it was');
is(state(), $before, 'deaths of the rebuild: all is there');
$node->fails_with('SET lock_timeout = 100; ' . $all->[2]->($n), qr/lock timeout/, 'deaths of the rebuild: others wait for the transaction');
sql("COMMIT PREPARED 'one'");
is(state(), $seen[0], 'deaths of the rebuild: COMMIT PREPARED');
whole('deaths of the rebuild', $seen[0]);

$node->stop;
done_testing();

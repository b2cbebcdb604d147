# Copyright (c) 2026, pg_nvm contributors

# Two databases with calls alone: one is replayed and open, the other one has stopped; deaths and
# losses meanwhile.  Both have a call that kills its process: each stops by itself.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('two', conf => <<CONF);
autovacuum = off
max_worker_processes = 16
nvm.checkpoint_interval = 0
nvm.replay_workers = 2
restart_after_crash = on
CONF
sub in { my ($db, @sql) = @_; return $node->safe_psql($db, join("\n", map { "$_;" } @sql)); }
my @dbs = qw(d1 d2);
foreach my $db (@dbs)
{
	in('postgres', "CREATE DATABASE $db");
	in($db, split /;;\n/, <<'SQL');
CREATE EXTENSION pg_nvm;;
CREATE TABLE stock (w int, i int, n int NOT NULL, PRIMARY KEY (w, i)) USING nvm_cmdlog;;
CREATE TABLE log (id serial PRIMARY KEY, w int) USING nvm_cmdlog;;
SELECT nvm.partition_table('stock', 'w');;
INSERT INTO stock SELECT w, i, 100 FROM generate_series(1, 10) w, generate_series(1, 20) i;;
CREATE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';;
CREATE FUNCTION take(w int, i int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE stock s SET n = n - step() WHERE s.w = take.w AND s.i = take.i;
	INSERT INTO stock VALUES (take.w, 1000 + nextval('log_id_seq'), 1);
END$$;;
SELECT nvm.register_command('take(int,int)', lanes => '{w}');;
SELECT nvm.checkpoint();;
SELECT take(1, 1);;
SQL
	like(in($db, 'SELECT * FROM nvm.rehearse()'), qr/^t/, 'a rehearsal');
	in($db, "SELECT nvm.promote_command('take(int,int)')");
}
sub alone { my ($db) = @_; in($db, 'SELECT take(10, 10)'); return $node->poll_query_until($db, "SELECT mode || ' ' || ddl FROM nvm.command_modes WHERE database = '$db'", 'alone 0'); }
sub states { return in('postgres', q{SELECT string_agg(concat_ws(' ', datname, state), ', ' ORDER BY datname) FROM nvm.replayed_databases r JOIN pg_database d ON d.oid = r.database}); }
sub rows { my ($db) = @_; return ($node->psql($db, 'SET statement_timeout = 20000; SELECT count(*), sum(n), sum(w * n) FROM stock'))[1]; }
my $change = q{SET allow_system_table_mods = on; UPDATE pg_proc SET prosrc = replace(prosrc, 'SELECT %d', 'SELECT %d') WHERE proname = 'step'};

alone($_) foreach @dbs;
in('postgres', 'SELECT nvm.checkpoint()');
alone($_) foreach @dbs;
foreach my $db (@dbs) { in($db, map { "SELECT take($_, $_)" } 1 .. 9); }
my %before = map { $_ => rows($_) } @dbs;
in('d2', sprintf($change, 1, 2));
$node->crash;
$node->start;
NvmTest::wait_until('d2 has stopped', sub { states() eq 'd1 done, d2 stopped' });
is(rows('d1'), $before{d1}, 'd1 is open');
in('d1', 'SELECT take(3, 3)', 'UPDATE stock SET n = n + 11 WHERE w = 4', 'DELETE FROM stock WHERE w = 5 AND i = 5', 'INSERT INTO stock VALUES (6, 6000, 6)');
$before{d1} = rows('d1');
my $ddl = q{CREATE OR REPLACE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 7'};
my (undef, undef, $err) = $node->psql('d1', $ddl);
like($err, qr/not all available/, 'no DDL in d1 before a checkpoint');
{
	my $opened = $node->times_opened;
	kill('KILL', in('postgres', q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm gap collector'}));
	$node->wait_reopened($opened);
}
NvmTest::wait_until('d2 has stopped again', sub { (states() // '') =~ /d2 stopped/ });
is(rows('d1'), $before{d1}, 'a death: d1 as it was, once');
(undef, undef, $err) = $node->psql('d1', $ddl);
like($err, qr/not all available/, 'no DDL in d1 behind the death either');
in('d1', 'SELECT take(7, 7)');
$before{d1} = rows('d1');
$node->crash;
$node->start;
NvmTest::wait_until('d2 has stopped once more', sub { (states() // '') =~ /d2 stopped/ });
is(rows('d1'), $before{d1}, 'a loss: d1 as it was');
$node->stop;
$node->start;
NvmTest::wait_until('d2 has stopped once more', sub { (states() // '') =~ /d2 stopped/ });
is(rows('d1'), $before{d1}, 'a stop: d1 as it was');
in('d2', sprintf($change, 2, 1), 'SELECT nvm.resume_replay()');
is(rows($_), $before{$_}, "$_ in the end") foreach @dbs;
in('postgres', 'SELECT nvm.checkpoint()');
alone('d1');
in('d1', 'SELECT take(7, 8)');
$before{d1} = rows('d1');
$node->crash;
$node->start;
is(rows($_), $before{$_}, "$_ in the end") foreach @dbs;

# beside a promoted function another one, which does not do the same twice: its rows count
in('d1', split /;;\n/, <<'SQL');
CREATE TABLE bag (w int NOT NULL, x int, note text) USING nvm_cmdlog;;
SELECT nvm.partition_table('bag', 'w');;
CREATE FUNCTION liar() RETURNS int LANGUAGE internal IMMUTABLE AS 'pg_backend_pid';;
CREATE FUNCTION odd(w int, i int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE stock s SET n = n + liar() WHERE s.w = odd.w AND s.i = odd.i;
	INSERT INTO bag VALUES (odd.w, liar(), 'long'), (odd.w, odd.i, repeat('x', 3000));
	UPDATE bag b SET x = x + 1, note = b.note || '!' WHERE b.w = odd.w AND b.x % 2 = 0;
	DELETE FROM bag b WHERE b.w = odd.w AND b.x % 5 = 0;
END$$;;
CREATE INDEX ON bag (w);;
INSERT INTO bag SELECT w, i, 'before' FROM generate_series(1, 10) w, generate_series(1, 20) i;;
SELECT nvm.register_command('odd(int,int)', lanes => '{w}');;
SQL
alone('d1');
in('d1', map { ("SELECT take($_, 2)", "SELECT odd($_, 3)", "BEGIN; SELECT take($_, 4); SELECT odd($_, 4); COMMIT", "UPDATE bag SET note = note || 'by hand' WHERE w = $_ AND x > 10") } 1 .. 5);
is(in('d1', "SELECT replayable, by_values FROM nvm.commands WHERE function = 'odd(int,int)'::regprocedure"), '10|0', 'another function, which nobody has promoted, looks as if it could be replayed');
my $bag = q{SELECT count(*), sum(x), md5(string_agg(b::text, ',' ORDER BY b::text)) FROM bag b};
$before{bag} = in('d1', $bag);
$before{d1} = rows('d1');
like(in('d1', 'SELECT * FROM nvm.rehearse()'), qr/^f.*odd\(/, 'a rehearsal tells that it cannot');
$node->crash;
$node->start;
is(rows('d1'), $before{d1}, 'a loss: it counts what it has written');
is(in('d1', $bag), $before{bag}, 'in a table without a key, too');
is(states(), 'd1 done', 'by replay');

## calls that kill their process, in both

# a function in C, which takes its argument for a place in memory; in a later life of the server alone
my %kept;
foreach my $db (@dbs)
{
	in($db, split /;;\n/, <<'SQL');
CREATE FUNCTION began() RETURNS timestamptz LANGUAGE internal IMMUTABLE AS 'pg_postmaster_start_time';;
CREATE FUNCTION bomb(bigint) RETURNS int LANGUAGE internal IMMUTABLE AS 'textlen';;
CREATE FUNCTION late(w int, life timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE start timestamptz; x int;
BEGIN
	EXECUTE 'SELECT began()' INTO start;
	IF start <> life THEN EXECUTE 'SELECT bomb(8)' INTO x; END IF;
	UPDATE stock s SET n = n - 1 WHERE s.w = late.w;
END$$;;
SELECT nvm.register_command('late(int,timestamptz)', lanes => '{w}');;
SELECT nvm.checkpoint();;
SELECT late(1, pg_postmaster_start_time());;
SQL
	like(in($db, 'SELECT * FROM nvm.rehearse()'), qr/^t/, 'a rehearsal in which it lives');
	in($db, q{SELECT nvm.promote_command('late(int,timestamptz)')});
}
alone($_) foreach @dbs;
in('postgres', 'SELECT nvm.checkpoint()');
alone($_) foreach @dbs;
in('postgres', 'SELECT nvm.checkpoint()');
foreach my $db (@dbs)
{
	$kept{$db} = rows($db);
	in($db, 'SELECT take(2, 2)', 'SELECT late(1, pg_postmaster_start_time())', 'SELECT take(3, 3)');
	$before{$db} = rows($db);
}
sub deaths { return scalar(() = $node->log_since_start =~ /was terminated by signal 11/g); }
sub are { my ($states) = @_; return NvmTest::wait_until($states, sub { (eval { states() } // '') eq $states }); }
sub problems { return in('postgres', q{SELECT string_agg(concat_ws(' ', datname, problem, not_replayed), ', ' ORDER BY datname) FROM nvm.replayed_databases r JOIN pg_database d ON d.oid = r.database WHERE state = 'stopped'}); }
$node->crash;
eval { $node->start };
are('d1 stopped, d2 stopped');
is(problems(), join(', ', map { "$_ a process has died amid the replay 5 times" } @dbs), 'calls kill their processes: both databases have stopped');
is(deaths(), 10, 'behind five deaths of each');
foreach my $db (@dbs)
{
	my $oid = in('postgres', "SELECT oid FROM pg_database WHERE datname = '$db'");
	my ($at, $detail) = split /\|/, in('postgres', "SELECT log_position, detail FROM nvm.replayed_databases WHERE database = $oid");
	like($detail, qr/^When it died last, the records? at positions? [\d, ]*\b$at\b[\d, ]* of the log w.* being replayed; nvm_logdump --from=POSITION prints/, "$db: what was being replayed is told");
	my @calls = map { (run_command([ 'nvm_logdump', "--from=$_", $node->data_dir . '/pg_nvm_log' ]))[0] =~ /^ +call (\d+)\(/m ? $1 : '' } $detail =~ /(\d+)(?=,| of the log)/g;
	my $late = in($db, q{SELECT 'late(int,timestamptz)'::regprocedure::oid});
	ok((grep { $_ eq $late } @calls), "$db: the call to blame is among them") || diag("@calls: $detail");
}
sleep 3;
is(deaths(), 10, 'and the server has come to rest');
in('d1', q{CREATE OR REPLACE FUNCTION bomb(bigint) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'}, 'SELECT nvm.resume_replay()');
is(rows('d1'), $before{d1}, 'one is mended, and resumed: all is there');
is(deaths() . ' ' . states(), '10 d1 done, d2 stopped', 'the other one is not tried');
$node->psql('d2', 'SELECT nvm.resume_replay()');
NvmTest::wait_until('it is tried again', sub { deaths() == 15 });
NvmTest::wait_until('d2 has stopped again', sub { (eval { states() } // '') =~ /d2 stopped/ });
is(rows('d1'), $before{d1}, 'the other one is resumed, and not mended: it stops again, the first one is open');
is(in('d2', 'SELECT * FROM nvm.end_replay()'), '0|', 'and is given up');
is(rows('d2'), $kept{d2}, 'with what the checkpoint has');
NvmTest::wait_until('all is whole', sub { in('postgres', 'SELECT state FROM nvm.log_recovery') eq 'whole' });
alone('d2');
$before{d2} = rows('d2');
$node->crash;
$node->start;
is(rows($_), $before{$_}, "$_ behind it") foreach @dbs;
is(deaths(), 0, 'nobody dies');

$node->check_clean('in the end');
$node->stop;
done_testing();

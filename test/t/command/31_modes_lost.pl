# Copyright (c) 2026, pg_nvm contributors

# DDL that might pass by the rule for calls alone: a statement of several transactions that begins
# before a promotion, a wait that is cancelled within a savepoint, prepared changes of roles, an object
# behind a temporary name, two tables.  Each part ends with a loss of the region, and all that was
# acknowledged comes back.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('lost', conf => <<CONF, sql => <<'SQL');
autovacuum = off
wal_level = logical
max_wal_senders = 4
max_prepared_transactions = 5
max_worker_processes = 16
nvm.checkpoint_interval = 0
nvm.replay_workers = 2
deadlock_timeout = 200ms
CONF
CREATE TABLE stock (w int, i int, n int NOT NULL, PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE a (i int) USING nvm_cmdlog;
CREATE TABLE b (i int) USING nvm_cmdlog;
SELECT nvm.partition_table('stock', 'w');
INSERT INTO stock SELECT w, i, 100 FROM generate_series(1, 9) w, generate_series(1, 20) i;
CREATE VIEW v AS SELECT 1 AS k;
CREATE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1';
CREATE FUNCTION take(w int, i int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	UPDATE stock s SET n = n - step() - (SELECT k FROM v) WHERE s.w = take.w AND s.i = take.i;
END$$;
SELECT nvm.register_command('take(int,int)', lanes => '{w}');
CREATE ROLE clerk;
CREATE ROLE thief;
GRANT ALL ON stock, v TO clerk;
GRANT clerk TO thief;
CREATE DATABASE other;
SQL
my $mode = q{SELECT mode || ' ' || ddl FROM nvm.command_modes WHERE database = 'postgres'};

sub sql { return $node->safe_psql('postgres', join("\n", map { "$_;" } @_)); }
sub alone { local $Test::Builder::Level = $Test::Builder::Level + 1; return ok($node->poll_query_until('postgres', $mode, 'alone 0'), $_[0]); }
sub rows { return (($node->psql('postgres', 'SELECT sum(n), sum(w * i * n) FROM stock'))[1, 2])[0]; }
sub state_ { return sql(q{SELECT coalesce(string_agg(concat_ws(': ', state, call, problem, detail), '; '), '') FROM nvm.replayed_databases}); }

# a loss of the region; all comes back
sub loss
{
	my ($name) = @_;
	my $before = rows();
	$node->crash;
	$node->start;
	$node->poll_query_until('postgres', q{SELECT NOT EXISTS (SELECT FROM nvm.replayed_databases WHERE state NOT IN ('done', 'stopped'))}, 't');
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	my $after = rows();
	is($after, $before, "$name: all is there") or diag(state_());
	sql('SELECT nvm.end_replay()') if state_() =~ /stopped/;
	sql('SELECT take(9, 9)', 'SELECT nvm.checkpoint()');
	return;
}

sql('SELECT nvm.checkpoint()', 'SELECT take(1, 1)');
like(sql('SELECT * FROM nvm.rehearse()'), qr/^t/, 'a rehearsal');

## DDL that has left the proc array, and whose messages come later

{
	sql('CREATE TABLE c (i int)', 'CREATE INDEX c_hash ON c USING hash (i)');
	# b has in its caches what c was
	my $b = $node->session('SELECT count(*) FROM c', "SELECT 'c'::regclass");
	my $a = $node->session('BEGIN', 'ALTER TABLE c SET ACCESS METHOD nvm_cmdlog');
	$b->stop_at('mode-promote-begun', "SELECT nvm.promote_command('take(int,int)')");
	$a->stop_at('mode-ddl-decided', 'COMMIT');
	$b->go_on;
	NvmTest::wait_until('an end of the promotion', sub { sql('SELECT state FROM pg_stat_activity WHERE pid = ' . $b->pid) eq 'idle' });
	is(sql(q{SELECT state FROM nvm.commands WHERE function = 'take(int,int)'::regprocedure}), 'shadow', 'promotion sees a table whose maker has not told of it yet');
	like($node->log_since_start, qr/ERROR:  table "c" does not fit calls that are logged alone\n.*DETAIL:  Because index "c_hash" is not in memory/, 'and is refused');
	$a->go_on;
	NvmTest::wait_until('an end of the DDL', sub { sql('SELECT state FROM pg_stat_activity WHERE pid = ' . $a->pid) eq 'idle' });
	$_->drop foreach $a, $b;
	sql('DROP TABLE c');
	ok($node->poll_query_until('postgres', $mode, 'shadow 0'), 'the mode is what it was');
}

## R4: a statement of several transactions that has begun in mode shadow

{
	my $l1 = $node->session('BEGIN', 'UPDATE stock SET n = n WHERE w = 8');
	my $cic = $node->session;
	$cic->send('CREATE INDEX CONCURRENTLY late ON stock (n)');
	NvmTest::wait_until('it waits', sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX C%' AND wait_event_type = 'Lock'}) eq '1' });
	my $p = $node->session;
	$p->send("SELECT nvm.promote_command('take(int,int)')");
	NvmTest::wait_until('promotion waits', sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'SELECT nvm.promote%' AND wait_event_type = 'Lock'}) eq '1' });
	my $l2 = $node->session('BEGIN', 'UPDATE stock SET n = n WHERE w = 7');
	$l1->sql('COMMIT');
	sleep 3;
	my $now = sql($mode);
	my $runs = sql(q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX C%' AND state = 'active'});
	ok(!($now =~ /^alone/ && $runs eq '1'), 'R4: not alone amid CREATE INDEX CONCURRENTLY');
	$l2->sql('COMMIT');
	NvmTest::wait_until('its end', sub { sql(q{SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'CREATE INDEX C%' AND state = 'active'}) eq '0' });
	alone('promoted');
	sql('SELECT take(1, 1)');
	$_->drop foreach $l1, $l2, $cic, $p;
	loss('R4');
}
alone('again');

## R1: DDL whose wait was cancelled, and caught

{
	sql('SELECT take(1, 2)');
	my $held = $node->session('BEGIN', 'SELECT take(2, 2)');
	my $new = q{CREATE OR REPLACE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 2'};
	# the checkpoint that it asks for at its end comes to none
	$node->set_failpoint('ckpt-walked:stop:1');
	my (undef, $out, $err) = $node->psql('postgres', "BEGIN; SET LOCAL lock_timeout = '300ms'; SAVEPOINT s;\n$new;\nROLLBACK TO s;\n$new;\nSELECT 'it ran';\nCOMMIT;\n", on_error_stop => 0);
	unlike($out, qr/it ran/, 'R1: a DDL whose wait was cancelled waits again');
	$node->set_failpoint('');
	my $before = rows();
	$node->crash;
	$held->drop;
	$node->start;
	is(rows(), $before, 'R1: all is there') or diag(state_());
	sql('SELECT nvm.end_replay()') if state_() =~ /stopped/;
}
sql(q{CREATE OR REPLACE FUNCTION step() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 1'});
alone('again');

## R5: roles, prepared

{
	$node->psql('other', "BEGIN; DROP ROLE thief; PREPARE TRANSACTION 'x'");
	is(sql('SELECT count(*) FROM pg_prepared_xacts'), '0', 'R5: PREPARE of DROP ROLE is refused');
	if (sql('SELECT count(*) FROM pg_prepared_xacts') eq '1')
	{
		alone('alone, with a prepared DROP ROLE');
		sql('SET ROLE thief', 'SELECT take(3, 3)');
		$node->safe_psql('other', "COMMIT PREPARED 'x'");
		is(sql($mode), 'alone 0', 'and nobody has left alone');
	}
	loss('R5');
}
alone('again');

## R6: a temporary object of the same name

{
	sql('SELECT take(4, 4)');
	my $before = sql(q{SELECT max(number) FROM nvm.checkpoints WHERE state = 'usable'});
	sql('CREATE TEMP VIEW v AS SELECT 5 AS k', 'CREATE OR REPLACE VIEW v AS SELECT 3 AS k');
	is(sql('SELECT k FROM v'), '3', 'the permanent one was replaced');
	sleep 1;
	isnt(sql(q{SELECT max(number) FROM nvm.checkpoints WHERE state = 'usable'}), $before, 'R6: by the rule');
	loss('R6');
}
alone('again');

## R7: DDL of two tables

{
	my $s = $node->session('BEGIN', 'ALTER TABLE a ADD x int');
	my ($ret, undef, $err) = $node->psql('postgres', "SET lock_timeout = '2s'; ALTER TABLE b ADD x int");
	is($err, '', 'R7: ALTER TABLE of another table does not wait');
	$s->sql('COMMIT');
	$s->drop;
}

## a subscription truncates a table, which is no statement

{
	alone('alone, before a subscription');
	sql('INSERT INTO a (i) VALUES (1), (2)');
	$node->safe_psql('other', 'CREATE TABLE a (i int); CREATE PUBLICATION p FOR TABLE a');
	$node->safe_psql('other', q{SELECT pg_create_logical_replication_slot('s', 'pgoutput')});
	my $where = $node->connstr('other') =~ s/'/''/gr;
	sql("CREATE SUBSCRIPTION s CONNECTION '$where' PUBLICATION p WITH (create_slot = false, copy_data = false, slot_name = 's')");
	alone('a subscription');
	sql('SELECT take(5, 5)');
	my $before = sql(q{SELECT max(number) FROM nvm.checkpoints WHERE state = 'usable'});
	$node->safe_psql('other', 'TRUNCATE a');
	ok($node->poll_query_until('postgres', 'SELECT count(*) FROM a', '0'), 'it has truncated a table');
	alone('alone behind it');
	cmp_ok(sql(q{SELECT max(number) FROM nvm.checkpoints WHERE state = 'usable'}), '>=', $before + 2, 'by the rule');
	sql('SELECT take(5, 6)', 'INSERT INTO a (i) VALUES (3)');
	loss('a subscription');
	is(sql('SELECT array_agg(i) FROM a'), '{3}', 'the table has what came behind it');
}
$node->stop;
done_testing();

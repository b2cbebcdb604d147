# Copyright (c) 2026, pg_nvm contributors

# What a transaction on nvm tables alone owes to the WAL although it does not
# wait for it: the numbers that it drew from sequences are not handed out again
# after a loss of power, and the progress of a replication origin covers exactly
# what was applied.
#
# Long form: 10 to 20 seeds, here 2 to 4.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# nothing else shall flush WAL
my $node = NvmTest->start_new('sequence', simulate => 1, conf => <<CONF, extension => 0);
autovacuum = off
wal_writer_delay = 10s
checkpoint_timeout = 1h
nvm.redo_limit = 0
max_replication_slots = 10
CONF

# Ways to store a number of sequence S in nvm table T; each statement that
# prints something prints the number.
my $tables = join '; ', map { "SELECT FROM many_$_" } 1 .. 40;
my %draw   = (
	nextval    => "INSERT INTO T VALUES (nextval('S')) RETURNING id",
	serial     => "INSERT INTO T (v) VALUES ('x') RETURNING id",
	identity   => "INSERT INTO T (v) VALUES ('x') RETURNING id",
	copy       => "COPY T (v) FROM STDIN;\nx\n\\.\nSELECT lastval()",
	two_tables => "BEGIN; INSERT INTO T VALUES (nextval('S')) RETURNING id; INSERT INTO plain VALUES (1); COMMIT",
	rolled_back => "BEGIN; SAVEPOINT a; SELECT nextval('S') AS n \\gset\nROLLBACK TO a; INSERT INTO T VALUES (:n) RETURNING id; COMMIT",
	released   => "BEGIN; SAVEPOINT a; INSERT INTO T VALUES (nextval('S')) RETURNING id; RELEASE a; COMMIT",
	exception  => "BEGIN; DO 'BEGIN PERFORM nextval(''S''); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL; END'; INSERT INTO T SELECT lastval() RETURNING id; COMMIT",
	many_locks => "BEGIN; $tables; INSERT INTO T VALUES (nextval('S')) RETURNING id; COMMIT",
	explicit_lock => "BEGIN; $tables; SELECT nextval('S') AS n \\gset\nINSERT INTO T VALUES (:n) RETURNING id; COMMIT",
	strong_lock => "BEGIN; INSERT INTO T VALUES (nextval('S')) RETURNING id; LOCK T IN EXCLUSIVE MODE; COMMIT",
	trigger    => "INSERT INTO T VALUES (0) RETURNING id",
	drawn_before => "SELECT nextval('S') AS n \\gset\nINSERT INTO T VALUES (:n) RETURNING id",
	aborted_before => "BEGIN; SELECT nextval('S') AS n \\gset\nROLLBACK; INSERT INTO T VALUES (:n) RETURNING id",
	aborted_again  => "BEGIN; INSERT INTO T VALUES (nextval('S')); ROLLBACK; BEGIN; SELECT nextval('S') AS n \\gset\nROLLBACK; INSERT INTO T VALUES (:n) RETURNING id",
	# WAL without an xid: no commit record is flushed
	pruned_heap => "SELECT nextval('S') AS n, count(*) AS rows FROM dead \\gset\nINSERT INTO T VALUES (:n) RETURNING id",
	cached     => "INSERT INTO T VALUES (nextval('S')) RETURNING id",
	procedure  => "CALL draw('T', 'S'); SELECT lastval()",
	async      => "SET synchronous_commit = off; INSERT INTO T VALUES (nextval('S')) RETURNING id",
	descending => "INSERT INTO T VALUES (nextval('S')) RETURNING id",
	prepared   => "PREPARE p AS INSERT INTO T VALUES (nextval('S')) RETURNING id; EXECUTE p",
	in_select  => "INSERT INTO T SELECT nextval('S') FROM generate_series(1, 40) RETURNING id",);
my @cases = sort keys %draw;

my $ddl = '';
foreach my $case (@cases)
{
	my $id = 'id bigint';
	$id = 'id bigserial' if $case =~ /^(serial|copy)$/;
	$id = 'id bigint GENERATED ALWAYS AS IDENTITY' if $case eq 'identity';
	$ddl .= "CREATE TABLE t_$case ($id, v text) USING nvm;\n";
	$ddl .= $id eq 'id bigint'
	  ? "CREATE SEQUENCE s_$case" . ($case eq 'cached' ? ' CACHE 7' : '')
	  . ($case eq 'descending' ? ' INCREMENT -1' : '') . ";\n"
	  : "ALTER SEQUENCE t_${case}_id_seq RENAME TO s_$case;\n";
}
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
$ddl
CREATE TABLE plain (a int) USING nvm;
CREATE TABLE dead (a int, b text) USING heap WITH (autovacuum_enabled = off);
INSERT INTO dead SELECT i, repeat('d', 50) FROM generate_series(1, 10000) i;
DELETE FROM dead WHERE a % 2 = 0;
SELECT txid_current();
CREATE SEQUENCE alone;
CREATE FUNCTION draw_trigger() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN new.id := nextval(''s_trigger''); RETURN new; END';
CREATE TRIGGER draw BEFORE INSERT ON t_trigger FOR EACH ROW EXECUTE FUNCTION draw_trigger();
CREATE PROCEDURE draw(t text, s text) LANGUAGE plpgsql AS
	'BEGIN EXECUTE format(''INSERT INTO %I VALUES (nextval(%L))'', t, s); COMMIT; INSERT INTO plain VALUES (1); END';
SELECT format('CREATE TABLE many_%s () USING nvm', i) FROM generate_series(1, 40) i \\gexec
SQL

# A record of nobody's must not reach the disk, however slow the machine is.
$node->stop_wal_writers;

# Another session draws the first number of each sequence, whose record covers the
# next 32, and does not commit; then somebody draws the next one.
my $other = $node->session('BEGIN');
my (%number, @not_flushed, @flushed_already);
foreach my $case (@cases)
{
	(my $sql = $draw{$case}) =~ s/\bS\b/s_$case/g;
	$sql =~ s/\bT\b/t_$case/g;

	my $drawn = $other->sql("SELECT nextval('s_$case')");
	my $lsn   = $other->sql('SELECT pg_current_wal_insert_lsn()');
	# a record that ends with its page is followed by a page header
	my $behind = "SELECT pg_wal_lsn_diff('$lsn', pg_current_wal_flush_lsn()) > 40";
	push @flushed_already, $case if $other->sql($behind) eq 'f';

	my @numbers = split /\n/, $node->safe_psql('postgres', $sql);
	$number{$case} = $numbers[-1];
	push @not_flushed, $case if $other->sql($behind) eq 't';
	die "$case: $number{$case} after $drawn" if abs($number{$case}) <= abs($drawn);
}
is("@flushed_already", '', 'before that the record of the draw was not flushed');
is("@not_flushed", '', 'who stores a number flushes the record that it rests on');
my $alone = $other->sql("SELECT nextval('alone')");
my $saved = $node->save_crash;
$other->drop;

foreach my $seed (1 .. (NvmTest::is_long() ? 10 : 2))
{
	my (@lost, @again);

	$node->restore_crash($saved, seed => $seed);
	$node->start;
	foreach my $case (@cases)
	{
		my ($there, $next) = split /\|/, $node->safe_psql('postgres',
			"SELECT EXISTS (SELECT FROM t_$case WHERE id = $number{$case}), nextval('s_$case')");
		push @lost,  $case if $there ne 't';
		push @again, "$case: $next after $number{$case}" if abs($next) <= abs($number{$case});
	}
	is("@lost", '', "seed $seed: the rows are there");
	is("@again", '', "seed $seed: their numbers are not handed out again");
	is($node->safe_psql('postgres', "SELECT nextval('alone')"), $alone,
		"seed $seed: a number that was never stored is");
	$node->check_clean("seed $seed");
}
$node->forget_crash($saved);

# The draw itself lost its transaction: rows and numbers of concurrent clients
$node->safe_psql('postgres', <<SQL);
CREATE TABLE ack (client int, n int, id bigint) USING nvm;
CREATE TABLE used (id bigint);
CREATE SEQUENCE ids;
SQL
foreach my $seed (1 .. (NvmTest::is_long() ? 20 : 2))
{
	my $load = $node->start_load(
		clients => 4,
		sql     => sub {
			my ($client, $n) = @_;
			my $insert = "INSERT INTO ack VALUES ($client, $n, nextval('ids'));";
			return "BEGIN; SELECT nextval('ids'); ROLLBACK; $insert" if $n % 5 == 0;
			return "BEGIN; SAVEPOINT a; SELECT nextval('ids'); ROLLBACK TO a; $insert COMMIT;" if $n % 3 == 0;
			return $insert;
		});
	$load->wait_acknowledged(100);
	$node->power_failure(seed => $seed);
	$load->finish;
	$node->start;
	$load->check('postgres', 'SELECT client, n FROM ack', name => "seed $seed: rows with numbers");
	is($node->safe_psql('postgres', "SELECT max(id) < nextval('ids') FROM ack"), 't',
		"seed $seed: the next number is new");
	is($node->safe_psql('postgres', 'SELECT count(*) - count(DISTINCT id) FROM ack'), '0',
		"seed $seed: all numbers differ");
	$node->safe_psql('postgres', 'TRUNCATE ack');
}

# Transactions of an origin, as an apply worker runs them: rows up to n are
# there if and only if the progress says n.
$node->safe_psql('postgres', 'CREATE TABLE applied (client int, n int) USING nvm');
foreach my $seed (1 .. (NvmTest::is_long() ? 20 : 4))
{
	$node->safe_psql('postgres', "SELECT pg_replication_origin_create('o$_')") foreach 1 .. 3;
	my $load = $node->start_load(
		clients => 3,
		sql     => sub {
			my ($client, $n) = @_;
			my $setup = $n == 1 ? "SELECT pg_replication_origin_session_setup('o$client'); " : '';
			return sprintf "%sBEGIN; SELECT pg_replication_origin_xact_setup('0/%X', now()); "
			  . 'INSERT INTO applied VALUES (%d, %d); %s;', $setup, $n, $client, $n,
			  # one of five is rolled back and applied again; since 16 a rollback moves the
			  # progress, too, so an apply worker that fails forgets the position first
			  $n % 5 == 0
			  ? sprintf "SELECT pg_replication_origin_xact_reset(); ROLLBACK; BEGIN; SELECT pg_replication_origin_xact_setup('0/%X', now()); "
			  . 'INSERT INTO applied VALUES (%d, %d); COMMIT', $n, $client, $n
			  : 'COMMIT';
		});
	$load->wait_acknowledged(60);
	$node->power_failure(seed => $seed);
	$load->finish;
	$node->start;
	$load->check('postgres', 'SELECT client, n FROM applied', name => "seed $seed: what was applied");
	my $rows = $node->safe_psql('postgres', <<SQL);
SELECT c, coalesce(max(n), 0), coalesce(pg_wal_lsn_diff(pg_replication_origin_progress('o' || c, false), '0/0'), 0)
FROM generate_series(1, 3) c LEFT JOIN applied ON client = c GROUP BY c
SQL
	is(join(' ', grep { my (undef, $n, $progress) = split /\|/; $n != $progress } split /\n/, $rows),
		'', "seed $seed: the progress of each origin is what its rows say");
	$node->check_clean("origins, seed $seed");
	$node->safe_psql('postgres', "TRUNCATE applied; SELECT pg_replication_origin_drop('o' || c) FROM generate_series(1, 3) c");
}
$node->stop;

done_testing();

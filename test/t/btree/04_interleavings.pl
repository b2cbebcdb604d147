# Copyright (c) 2026, pg_nvm contributors

# Orders of events in an nvm_btree index that hardly ever happen by themselves,
# brought about by sessions that are stopped at a failpoint while others go on.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('interleave', conf => "autovacuum = off\n");

sub sql { return $node->safe_psql('postgres', $_[0]); }

# what the server's log says of a session
sub log_of
{
	my ($session) = @_;
	my $pid = $session->pid;
	return join "\n", grep { /\[$pid\]/ } split /\n/, slurp_file($node->logfile);
}

sub sound
{
	my ($index, $name) = @_;
	is(sql("SELECT * FROM nvm.check('$index', true)"), '', "$name: the index is sound");
	return;
}

# ---- a split that another completes, and whose right page then goes

sql(<<SQL);
CREATE TABLE s (id int, x int) USING nvm;
CREATE INDEX s_id ON s USING nvm_btree (id);
INSERT INTO s SELECT i * 1000, i FROM generate_series(1, 3000) i;
DELETE FROM s WHERE id > 450000 AND id < 2000000;
SQL
my $late = $node->session;
$late->stop_at('btree-split-locks', 'INSERT INTO s SELECT 449001 + i, -i FROM generate_series(1, 400) i');
my $deleted = (run_command([ 'psql', '-X', '-d', $node->connstr('postgres'), '-c', 'VACUUM VERBOSE s' ]))[1] =~ /(\d+) newly deleted/ ? $1 : 0;
cmp_ok($deleted, '>=', 4, 'VACUUM completes a split, and deletes the right page');
NvmTest::continue_process($late->pid);
is($late->sql('SELECT 1'), '1', 'who made the split goes on');
sound('s_id', 'late downlink');
is(sql('SET enable_seqscan = off; SELECT count(*), count(*) FILTER (WHERE x < 0) FROM s WHERE id > 0'), '1851|400', 'late downlink: all rows are found');
$late->drop;

# The same, where the parent has no room, and who looks for the downlink in vain is
# not to do so for ever: written anew, a page of so many entries takes no more.

sql(<<SQL);
CREATE TABLE f (id int, x int) USING nvm;
CREATE INDEX f_id ON f USING nvm_btree (id);
INSERT INTO f SELECT i * 1000, i FROM generate_series(1, 155500) i;
DELETE FROM f WHERE id > 450000 AND id < 2000000;
SQL
cmp_ok(abs(sql("SELECT blocks FROM nvm.relations WHERE relation = 'f_id'::regclass") - 430), '<=', 15, 'full parent: the root has as many children as it is to have');
$late = $node->session("SET statement_timeout = '30s'");
$late->stop_at('btree-split-locks', 'INSERT INTO f SELECT 449001 + i, -i FROM generate_series(1, 400) i');
$deleted = (run_command([ 'psql', '-X', '-d', $node->connstr('postgres'), '-c', 'VACUUM (VERBOSE, INDEX_CLEANUP ON) f' ]))[1] =~ /(\d+) newly deleted/ ? $1 : 0;
cmp_ok($deleted, '>=', 3, 'full parent: VACUUM deletes the right page');
NvmTest::continue_process($late->pid);
is($late->sql('SELECT count(*) FROM f WHERE x < 0'), '400', 'full parent: who made the split goes on');
sound('f_id', 'full parent');
$late->drop;

# ---- two who insert one key of a unique index

# The first has looked for the key and is stopped; `between` happens, and another
# inserts the key: the first must find it.
sub two_of_a_key
{
	my ($name, $table, $key, $between) = @_;
	my $first = $node->session;

	$first->stop_at('btree-checked', "INSERT INTO $table VALUES ($key)");
	$between->() if $between;
	my ($ret, undef, $err) = $node->psql('postgres', "INSERT INTO $table VALUES ($key)");
	is($ret, 0, "$name: the second inserts the key") or diag $err;
	NvmTest::continue_process($first->pid);
	$first->sql('SELECT 1');
	like(log_of($first), qr/duplicate key value/, "$name: the first one finds it");
	is(sql("SELECT count(*) FROM $table WHERE k = $key"), '1', "$name: one row has the key");
	sound("${table}_k_idx", $name);
	$first->drop;
	return;
}

sql(<<SQL);
CREATE TABLE u (k int) USING nvm;
CREATE UNIQUE INDEX u_k_idx ON u USING nvm_btree (k);
INSERT INTO u SELECT i * 10 FROM generate_series(1, 3000) i;
SQL
two_of_a_key('same leaf', 'u', 15005);
two_of_a_key('leaf is split', 'u', 15008, sub { sql('INSERT INTO u SELECT 15020 + i FROM generate_series(1, 900) i WHERE i % 10 <> 0'); });
sql('DELETE FROM u WHERE k BETWEEN 5000 AND 25000');
two_of_a_key('leaf is emptied and deleted', 'u', 16001, sub { sql('VACUUM u'); });
sql('VACUUM u');
two_of_a_key('leaf is deleted', 'u', 16001 + 1, sub { sql('INSERT INTO u VALUES (16003)'); });

# The key's dead entries fill several leaves, as somebody may still see the rows.
sql(<<SQL);
CREATE TABLE d (k text) USING nvm;
CREATE UNIQUE INDEX d_k_idx ON d USING nvm_btree (k);
INSERT INTO d VALUES (repeat('k', 500));
CREATE PROCEDURE churn(n int) LANGUAGE plpgsql AS \$\$
BEGIN
	FOR i IN 1 .. n LOOP
		DELETE FROM d;
		INSERT INTO d VALUES (repeat('k', 500));
		COMMIT;
	END LOOP;
END \$\$;
SQL
my $old = $node->session('BEGIN ISOLATION LEVEL REPEATABLE READ', 'SELECT count(*) FROM d');
sql('CALL churn(1500); DELETE FROM d');
cmp_ok(sql("SELECT blocks FROM nvm.relations WHERE relation = 'd_k_idx'::regclass"), '>=', 4, 'equal keys fill several leaves');
two_of_a_key('equal keys on several leaves', 'd', q(repeat('k', 500)));
sql('DELETE FROM d');
two_of_a_key('equal keys on several leaves that are split', 'd', q(repeat('k', 500)), sub { sql('CALL churn(400); DELETE FROM d'); });
$old->sql('COMMIT');
sql('DELETE FROM d');
two_of_a_key('equal keys on several leaves that are deleted', 'd', q(repeat('k', 500)), sub { sql('VACUUM d'); });
$old->drop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# The volatile region where it is tight: row locks of a prepared transaction on
# rows that have gone with the region, also in a pool without any room; an index of
# a table whose access method has changed its mind; a table that goes from
# one access method of ours to another; core dumps; a server without address space
# for the region.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $module = dirname(abs_path($0)) . '/../../tools/nvm_dram';

sub make_node
{
	my ($name, $conf) = @_;
	return NvmTest->start_new($name, conf => <<CONF . $conf, sql => <<SQL);
shared_preload_libraries = 'pg_nvm,$module'
nvm_dram.size = 192MB
restart_after_crash = on
max_prepared_transactions = 10
autovacuum = off
CONF
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$module' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
CREATE TABLE d (id int, t text) USING nvm_dram;
CREATE TABLE p (id int, t text) USING nvm;
INSERT INTO d SELECT i FROM generate_series(1, 100) i;
INSERT INTO p SELECT i FROM generate_series(1, 100) i;
SQL
}

my $node = make_node('edges', '');

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub free_rows { return sql("SELECT count(*) FROM (SELECT FROM $_[0] FOR UPDATE SKIP LOCKED) f"); }

# a backend dies, and the server goes on
sub death
{
	my $opened = $node->times_opened;
	my $session = $node->background_psql('postgres', on_error_stop => 0);
	my $pid = $session->query('SELECT pg_backend_pid()');
	kill 'KILL', $pid;
	eval { $session->quit };
	$node->wait_reopened($opened);
	return;
}

my $prepare = q{BEGIN; SELECT FROM d FOR UPDATE; SELECT FROM p WHERE id <= 50 FOR UPDATE; PREPARE TRANSACTION 'a'};

# ---- a restart takes rows that a prepared transaction has locked

sql($prepare);
death();
is(free_rows('d'), 0, 'a death: the locks are there');
is(free_rows('p'), 50, 'in the pool, too');
$node->restart;
sql('INSERT INTO d SELECT i FROM generate_series(1001, 1100) i');
is(free_rows('d'), 100, 'rows that came after a restart are not locked');
death();
is(free_rows('d'), 100, 'nor after a death');
is(free_rows('p'), 50, 'the locks in the pool are there');
$node->check_clean('a prepared transaction with locks');
sql("ROLLBACK PREPARED 'a'");
is(free_rows('p'), 100, 'until it is ended');

# ---- an index is where its table is, whatever the access method says when it is made

sql('CREATE TABLE k (id int) USING nvm; INSERT INTO k SELECT generate_series(1, 10000)');
$node->append_conf('postgresql.conf', 'nvm_dram.all = on');
$node->restart;
sql('CREATE UNIQUE INDEX k_id ON k USING nvm_btree (id); CREATE TABLE m (id int) USING nvm; INSERT INTO m VALUES (1)');
$node->restart;
is(sql('SET enable_seqscan = off; SELECT count(*) FROM k WHERE id > 0'), 10000,
	'a table in the pool: its index is in the pool, too');
$node->fails_with('INSERT INTO k VALUES (5)', qr/duplicate key/, 'and finds duplicates');
$node->append_conf('postgresql.conf', 'nvm_dram.all = off');
$node->restart;
sql('INSERT INTO m VALUES (1); CREATE UNIQUE INDEX m_id ON m USING nvm_btree (id)');
$node->restart;
is(sql('SET enable_seqscan = off; SELECT count(*) FROM m WHERE id > 0'), 0, 'a table in memory: its index goes with it');
sql('INSERT INTO m VALUES (1); TRUNCATE m; INSERT INTO m VALUES (1)');
$node->restart;
is(sql('SET enable_seqscan = off; SELECT count(*) FROM m WHERE id > 0'), 1, 'until a new storage is made, with its index');
$node->check_clean('indexes');
$node->stop;

# ---- from one access method of ours to another: btree stays btree, but for rows that a restart takes

$node->start;
sql('ALTER DATABASE postgres SET nvm.index_identity = nvm_btree');
sql('CREATE ACCESS METHOD nvm2 TYPE TABLE HANDLER nvm.nvm_tableam_handler;
	CREATE TABLE moved (id int) USING nvm; CREATE INDEX moved_id ON moved USING btree (id)');
my $method = q{SELECT a.amname FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE relname = 'moved_id'};
sql('ALTER TABLE moved SET ACCESS METHOD nvm2');
is(sql($method), 'btree', 'an index that was said to be btree stays so in the pool');
sql('ALTER TABLE moved SET ACCESS METHOD nvm_dram');
is(sql($method), 'nvm_btree', 'not where a restart takes the rows');
sql('ALTER TABLE moved SET ACCESS METHOD heap; ALTER TABLE moved SET ACCESS METHOD nvm2');
is(sql($method), 'nvm_btree', 'nor on the way in');
sql('DROP TABLE moved; DROP ACCESS METHOD nvm2; ALTER DATABASE postgres RESET nvm.index_identity');
$node->stop;

# ---- the memory is in no core dump

$node->append_conf('postgresql.conf', 'nvm_dram.all = off');
$node->start;
my ($name, %dumped) = ('');
foreach my $line (split /\n/, slurp_file("/proc/$node->{_pid}/smaps"))
{
	$name = $1 // '' if $line =~ /^[0-9a-f]+-[0-9a-f]+ .*?(?:memfd:(pg_nvm\S*(?: volatile)?))?(?: \(deleted\))?$/;
	$dumped{$name} = $line !~ / dd / ? 1 : 0 if $name ne '' && $line =~ /^VmFlags:/;
}
is(join(', ', map { "$_ $dumped{$_}" } sort keys %dumped), 'pg_nvm 0, pg_nvm volatile 0',
	'the region, and what a start makes anew, is left out of core dumps');

# ---- address space for the pool alone

SKIP:
{
	skip 'an instrumented server takes more', 4 if NvmTest::is_instrumented();
	system_or_bail('prlimit', '--pid', $$, '--as=' . (200 << 30) . ':');
	$node->restart;
	system_or_bail('prlimit', '--pid', $$, '--as=unlimited:');
	is(sql('SELECT count(*) FROM k'), 10000, 'no address space for the region: the pool is served');
	like($node->log_since_start, qr/WARNING:  there is no address space for the volatile region/, 'with a warning');
	$node->fails_with('INSERT INTO d VALUES (1)', qr/could not extend the volatile region/, 'tables of the region take no rows');
	death();
	is(sql('SELECT count(*) FROM k'), 10000, 'the same after a death');
}
$node->stop;

# ---- the prepared transaction in a pool without room for the list

$node = make_node('full', "nvm.pool_max_size = 64MB\n");
sql(q{CREATE TABLE f (id int, t text, u text) USING nvm;
	ALTER TABLE f ALTER t SET STORAGE EXTERNAL, ALTER u SET STORAGE EXTERNAL;
	INSERT INTO f SELECT i, repeat('x', 7000) FROM generate_series(1, 1000) i; DELETE FROM f; VACUUM f});
sql($prepare);
foreach my $size (4_000_000, 100_000, 7000)
{
	sql(qq{DO 'BEGIN LOOP BEGIN INSERT INTO f VALUES (1, repeat(''x'', $size), repeat(''y'', 7000)); EXCEPTION WHEN disk_full THEN EXIT; END; END LOOP; END'});
}
is(sql('SELECT free FROM nvm.pool'), 0, 'a pool is full');
$node->restart;
is(sql('SELECT count(*) FROM d'), 0, 'a full pool: it is opened, and the region is empty');
like($node->log_since_start, qr/keeps row locks whose rows are gone: could not extend NVM pool/, 'and the log has a warning');
is(free_rows('p'), 50, 'the other locks are there');
sql("ROLLBACK PREPARED 'a'");
is(free_rows('p'), 100, 'until it is ended');
$node->check_clean('a full pool');
$node->stop;
done_testing();

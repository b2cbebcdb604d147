# Copyright (c) 2026, pg_nvm contributors

# An index stays whose it is: in the pool or in a file, of btree or of nvm_btree, whatever
# the settings are by the time when it is built once more.  And what a table with such
# indexes costs others: locks of readers, workers of builds, DROP without the pool.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('whose', conf => <<'CONF');
autovacuum = off
max_worker_processes = 8
max_parallel_maintenance_workers = 2
CONF
my $by = 'SET enable_seqscan = off; SET enable_bitmapscan = off;';
my $files = 'SET nvm.default_index_method = btree;';
my $named = 'SET nvm.index_identity = nvm_btree;';

sub sql { return $node->safe_psql('postgres', join('; ', @_)); }

# where indexes of tables lie, and what they say
sub ours
{
	my ($tables) = @_;
	return sql("SELECT string_agg(c.relname || ' ' || amname || CASE WHEN s.relation IS NULL THEN ' in a file' ELSE '' END, ', ' ORDER BY c.relname)
		FROM pg_index JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam LEFT JOIN nvm.relations s ON s.relation = c.oid AND NOT s.ended WHERE indrelid = '$tables'::regclass");
}

# ---- ON COMMIT DELETE ROWS builds when the transaction has settled what it built

foreach my $case (
	[ 'in a file, then by default', $files, '', 'RESET nvm.default_index_method' ],
	[ 'by USING btree', $named, 'USING btree', 'RESET nvm.index_identity' ],
	[ 'in the pool, then in files', '', '', $files ],
	[ 'in the pool, then nvm_btree', '', '', $named ],
	[ 'nvm_btree, then by default', $named, '', 'RESET nvm.index_identity' ],)
{
	my ($name, $before, $using, $after) = @$case;
	my $in_pool = "SELECT (SELECT count(*) FROM nvm.relations WHERE relation = 'tt_a'::regclass AND NOT ended)";
	my $session = $node->session;

	my $first = $session->sql("$before CREATE TEMP TABLE tt (a int, b text) USING nvm ON COMMIT DELETE ROWS; CREATE UNIQUE INDEX tt_a ON tt $using (a); $in_pool");
	is( $session->sql("$after; INSERT INTO tt VALUES (1, 'x'); BEGIN; INSERT INTO tt VALUES (1, 'y'), (2, 'z'); $by SELECT b FROM tt WHERE a = 1; COMMIT; SELECT count(*) FROM tt WHERE a = 1; CREATE TEMP TABLE other (a int); $in_pool"),
		"y\n0\n$first", "$name: ON COMMIT DELETE ROWS leaves the index where it is");
	is($session->sql('INSERT INTO tt VALUES (3, \'k\'); BEGIN; INSERT INTO tt VALUES (3, \'l\'); SELECT count(*) FROM tt; ROLLBACK; SELECT count(*) FROM tt'), "1\n0", "$name: and goes on");
	$session->drop;
}

# ---- SET ACCESS METHOD

sql(q(CREATE TABLE v (a int PRIMARY KEY, b int) USING nvm; INSERT INTO v SELECT g, g FROM generate_series(1, 100) g; CREATE INDEX v_b ON v USING nvm_btree (b)));
sql($named, 'ALTER TABLE v SET ACCESS METHOD nvm_vlog');
is(ours('v'), 'v_b nvm_btree, v_pkey btree', 'an index that says btree does so in memory, too, whatever nvm.index_identity says');
is(sql("$by SELECT count(*) FROM v WHERE a BETWEEN 5 AND 9"), '5', 'and has its entries');
sql($files, 'ALTER TABLE v SET ACCESS METHOD nvm');
is(ours('v'), 'v_b nvm_btree, v_pkey btree', 'both stay in the pool on the way back');

# ---- CREATE INDEX CONCURRENTLY beside an index of the same definition; REINDEX CONCURRENTLY of both

sql(q(CREATE TABLE c (a int, b int) USING nvm; INSERT INTO c SELECT g, g FROM generate_series(1, 100) g; CREATE INDEX c_pool ON c (a)));
$node->safe_psql('postgres', "$files\nCREATE INDEX CONCURRENTLY c_file ON c (a)");
is(ours('c'), 'c_file btree in a file, c_pool btree', 'CREATE INDEX CONCURRENTLY goes by the setting, not by another index');
$node->safe_psql('postgres', "$files\nREINDEX INDEX CONCURRENTLY c_pool");
is(ours('c'), 'c_file btree in a file, c_pool btree', 'REINDEX CONCURRENTLY leaves one of the pool there');
sql('DROP INDEX c_file');
$node->safe_psql('postgres', "$files\nREINDEX TABLE CONCURRENTLY c");
is(ours('c'), 'c_pool btree', 'and of a table');

# ---- two sessions build indexes of one table anew, which are in files and stay there

sql($files, 'CREATE TABLE two (a int, b int) USING nvm', 'INSERT INTO two SELECT g, g FROM generate_series(1, 100) g', 'CREATE INDEX two_a ON two (a)', 'CREATE INDEX two_b ON two (b)');
my $builder = $node->session("$files BEGIN; REINDEX INDEX two_a");
is(sql($files, q(SET statement_timeout = '20s'), 'REINDEX INDEX two_b', 'SELECT 1'), '1', 'REINDEX of two indexes of a table: neither waits for the other');
$builder->sql('COMMIT');
is(sql("$by SELECT a FROM two WHERE b = 7", 'SELECT b FROM two WHERE a = 8'), "7\n8", 'both have their rows');
$builder->drop;
is(ours('two'), 'two_a btree in a file, two_b btree in a file', 'both are in files');

# ---- workers of builds

sub sorters
{
	my ($sql) = @_;
	my $from = -s $node->logfile;
	my %pids;

	sql('SET trace_sort = on', "SET maintenance_work_mem = '96MB'", $sql);
	my $log = slurp_file($node->logfile, $from);
	$pids{$1}++ while $log =~ /^.*?\[(\d+)\].*begin (?:index|tuple|datum) sort/mg;
	return scalar keys %pids;
}

sql('CREATE TABLE w (a int, b int) USING nvm WITH (parallel_workers = 2)', 'INSERT INTO w SELECT g % 1000, g FROM generate_series(1, 20000) g', 'CREATE INDEX w_a ON w (a)');
foreach my $case (
	[ 'that says btree', 'CREATE INDEX w_x ON w (b)' ],
	[ 'with persistence', 'CREATE INDEX w_x ON w (b) WITH (persistence = leaves)' ],
	[ 'of nvm_btree', "$named CREATE INDEX w_x ON w (b)" ],
	[ 'in a file', "$files CREATE INDEX w_x ON w (b)" ],
	[ 'that is built anew', 'CREATE INDEX w_x ON w (b); SET max_parallel_maintenance_workers = 2; REINDEX INDEX w_x' ],)
{
	my ($name, $sql) = @$case;
	cmp_ok(sorters("SET min_parallel_table_scan_size = 0; $sql"), '>=', 2, "an index $name beside one that says btree: workers sort");
	is(sql("$by SELECT count(*) FROM w WHERE b BETWEEN 100 AND 199"), '100', "and it has all rows");
	sql('DROP INDEX w_x');
}
is(sorters('SET min_parallel_table_scan_size = 0; TRUNCATE w'), 1, 'TRUNCATE starts no workers');

# ---- a reader locks nothing for constraints that it does not check

sql(q(CREATE TABLE d (id int PRIMARY KEY, u int UNIQUE DEFERRABLE INITIALLY DEFERRED, b int) USING nvm), q(INSERT INTO d SELECT g, g, g FROM generate_series(1, 1000) g));
is(sql("$by BEGIN READ ONLY; SELECT b FROM d WHERE id = 5; SELECT mode FROM pg_locks WHERE relation = 'd_u_key'::regclass AND pid = pg_backend_pid() AND mode <> 'AccessShareLock'; COMMIT"), '5', 'a SELECT does not lock a deferrable constraint against changes');
is(sql("BEGIN; UPDATE d SET u = u + 1; UPDATE d SET u = u - 1; COMMIT; SELECT count(*), sum(u) FROM d"), '1000|500500', 'and the constraint is checked at COMMIT');
$node->fails_with('BEGIN; UPDATE d SET u = 7 WHERE id = 8; COMMIT', qr/duplicate key value violates unique constraint "d_u_key"/, 'with its error');

sql('CREATE TABLE ex (a int, b int, CONSTRAINT ex_a EXCLUDE USING btree (a WITH =) DEFERRABLE INITIALLY DEFERRED) USING nvm', 'INSERT INTO ex SELECT g, g FROM generate_series(1, 100) g');
is(sql('BEGIN; UPDATE ex SET a = a + 1; UPDATE ex SET a = a - 1; COMMIT; SELECT count(*), sum(a) FROM ex'), '100|5050', 'so is a deferred exclusion constraint by btree');
$node->fails_with('BEGIN; INSERT INTO ex VALUES (7, 0); COMMIT', qr/conflicting key value violates exclusion constraint "ex_a"/, 'with its error');

# ---- DROP without the pool

sql('CREATE TABLE h (a int PRIMARY KEY) USING heap', 'CREATE INDEX d_b ON d (b)', "$files CREATE INDEX d_file ON d (b)");
$node->check_clean('in the end');
$node->stop;
rename($node->pool_file, $node->pool_file . '.away') or die $!;
$node->start;

sub warned
{
	my ($sql) = @_;
	my ($status, $out, $err) = $node->psql('postgres', $sql);
	is($status, 0, "$sql passes");
	return $err;
}
like(warned('DROP INDEX d_b'), qr/storage of index "d_b" is not released/, 'DROP INDEX without the pool says what is left');
unlike(warned('DROP INDEX d_file'), qr/is not released/, 'not of an index in a file');
unlike(warned('DROP TABLE h'), qr/is not released/, 'nor of a heap table');
$node->stop;
done_testing();

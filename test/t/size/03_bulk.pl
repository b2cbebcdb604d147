# Copyright (c) 2026, pg_nvm contributors

# COPY, UPDATE and DELETE of millions of rows in one transaction, committed and
# rolled back: what the backend needs of its own memory does not grow with them
# (invariant 9).  Where the undo log goes to its file, or cannot, nothing is lost.
#
# Long form: 20 million rows in one transaction, here 400,000.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = NvmTest::is_long() ? 20_000_000 : 400_000;
# MB of private memory beyond what a backend has that has done nothing: 3, with a
# sanitizer 51
my $limit = 55;

my $node = NvmTest->new('bulk');
$node->init(NvmTest::is_long() ? NvmTest::large_pool($node, 9000) : ());
$node->set_conf('nvm.pool_max_size' => NvmTest::is_long() ? "'12GB'" : "'2GB'");
$node->append_conf('postgresql.conf', <<CONF);
autovacuum = off
fsync = off
max_wal_size = 8GB
CONF
$node->start;
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE TABLE b (id int, v int, t text) USING nvm;
SQL

my $session = $node->session;

# Private memory of the session's backend, in MB.  The kernel keeps no peak of
# it, only one of all resident memory, the pool included: so it is looked at
# again and again.
sub private_mb { return int(NvmTest::private_kb($session->{pid}) / 1024); }

my $idle = private_mb();

# Run it, looking at the backend's memory all the time.
sub run
{
	my ($name, @sql) = @_;
	my $peak = 0;

	foreach my $sql (@sql)
	{
		my $file = $node->basedir . '/peak';
		my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
		my $watch = fork();
		die "fork: $!" unless defined $watch;
		if ($watch == 0)
		{
			my $most = 0;
			for (;;)
			{
				my $now = eval { private_mb() } // 0;
				if ($now > $most)
				{
					$most = $now;
					open(my $fh, '>', "$file.new") or POSIX::_exit(1);
					print $fh $most;
					close $fh;
					rename("$file.new", $file) or POSIX::_exit(1);
				}
				select(undef, undef, undef, 0.02);
			}
		}
		# it watches before there is something to see
		select(undef, undef, undef, 0.002) while !-e $file && time() < $end;
		$session->sql($sql);
		kill('KILL', $watch);
		waitpid($watch, 0);
		my $seen = -e $file ? slurp_file($file) : 0;
		$peak = $seen if $seen > $peak;
		unlink $file;
	}
	# VACUUM lists dead rows in maintenance_work_mem
	cmp_ok($peak - $idle, '<', $name eq 'VACUUM' ? $limit + 64 : $limit,
		"$name: the backend needs $peak MB of its own, at first $idle");
	cmp_ok($peak, '>', 0, "$name: it was looked at");
	return;
}

sub contents { return $session->sql('SELECT count(*), sum(v), sum(id::bigint) FROM b'); }

my $sum = $rows * ($rows + 1) / 2;

run('COPY', qq{COPY b FROM PROGRAM 'seq -f "%.0f,0,some text" $rows' WITH (FORMAT csv)});
is(contents(), "$rows|0|$sum", 'COPY: all rows are there');
run('UPDATE, rolled back', 'BEGIN', 'UPDATE b SET v = v + 1', 'ROLLBACK');
is(contents(), "$rows|0|$sum", 'UPDATE, rolled back: nothing has changed');
run('DELETE, rolled back', 'BEGIN', 'DELETE FROM b', 'ROLLBACK');
is(contents(), "$rows|0|$sum", 'DELETE, rolled back: all rows are there');
run('DELETE, rolled back to a savepoint', 'BEGIN', 'UPDATE b SET v = v + 1 WHERE id % 100 = 0', 'SAVEPOINT a',
	'DELETE FROM b', 'ROLLBACK TO a', 'COMMIT');
is(contents(), join('|', $rows, $rows / 100, $sum), 'DELETE, rolled back to a savepoint: what was before it counts');
run('UPDATE', 'UPDATE b SET v = 1');
is(contents(), "$rows|$rows|$sum", 'UPDATE');
run('DELETE', 'DELETE FROM b');
is(contents(), '0||', 'DELETE');
run('VACUUM', 'VACUUM b');
run('INSERT ... SELECT', "INSERT INTO b SELECT i, 0, 'some text' FROM generate_series(1, $rows) i");
run('COPY TO', "COPY b TO PROGRAM 'cat > /dev/null'");
is(contents(), "$rows|0|$sum", 'INSERT ... SELECT');
$session->sql('TRUNCATE b');
$session->drop;

# Rows that change in random order: an entry of the undo log for each, more than
# stay in memory, which go to a file.  Where temp_file_limit forbids that, the
# transaction ends, before the row is locked or a place for it taken.
$node->safe_psql('postgres', <<SQL);
CREATE TABLE s (id int PRIMARY KEY, v int) USING nvm;
INSERT INTO s SELECT i, 0 FROM generate_series(1, 100000) i;
VACUUM ANALYZE s;
SQL
my $scatter = <<SQL;
SET work_mem = '256MB'; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off;
UPDATE s SET v = v + 1 FROM (SELECT id FROM s ORDER BY md5(id::text) OFFSET 0) o WHERE s.id = o.id
SQL
foreach my $try (1 .. 2)
{
	$node->fails_with("SET temp_file_limit = 0; $scatter", qr/temporary file size exceeds "?temp_file_limit/,
		"no room for the undo log, $try");
	is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM s'), '100000|0', "it is undone, $try");
}
$node->check_clean('after the errors');
$node->safe_psql('postgres', "BEGIN; $scatter; ROLLBACK");
is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM s'), '100000|0', 'undone from the file');
$node->safe_psql('postgres', "BEGIN; SAVEPOINT a; $scatter; ROLLBACK TO a; UPDATE s SET v = 5 WHERE id = 7; COMMIT");
is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM s'), '100000|5', 'to a savepoint');
$node->safe_psql('postgres', $scatter);
is($node->safe_psql('postgres', 'SELECT count(*), sum(v) FROM s'), '100000|100005', 'committed');
$node->check_clean('in the end');
$node->stop;

done_testing();

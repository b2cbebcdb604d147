# Copyright (c) 2026, pg_nvm contributors

# nvm.persist_method = msync: a sync of the pool fails, and the open that reads it
# from the device anew is refused afterwards, because the data directory looks like
# a copy.  The next open finds no mark of the failed sync.  All the same it must not
# keep the volatile region: stamps there are of transactions that the pool has lost.
# The same for a region that is a file (nvm.memory_directory), which a start finds.

use strict;
use warnings;

use NvmMemory;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $tmpfs = NvmTest::is_tmpfs(NvmTest::pool_base());

# memory: the region is a file
sub read_anew
{
	my ($memory) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();
	my $directory = $memory ? NvmTest::pool_base() . '/memory' : '';

	append_to_file("$dir/device", '');
	my $node = NvmMemory::start_dram("anew_$memory", sync_dir => $dir, conf => <<CONF, sql => <<SQL);
nvm.persist_method = msync
restart_after_crash = on
autovacuum = off
nvm.memory_directory = '$directory'
CONF
CREATE TABLE d (id int) USING nvm_dram;
CREATE TABLE p (id int) USING nvm;
INSERT INTO d SELECT generate_series(1, 10);
INSERT INTO p VALUES (1);
SQL
	my $record = $node->data_dir . '/pg_nvm_incarnation';

	# the open that comes takes the data directory for a copy
	system_or_bail('mv', $record, "$record.kept");
	system_or_bail('cp', "$record.kept", $record);

	my $session = $node->session('BEGIN', 'DELETE FROM d WHERE id = 7', 'INSERT INTO p VALUES (2)');
	append_to_file("$dir/fail", '');
	$session->send('COMMIT');
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	usleep(20_000)
	  while $node->log_since_start !~ /PANIC:  could not write back.*database system is ready to accept connections/s && time() < $end;
	$session->drop;
	$node->fails_with('SELECT FROM d', qr/data directory is a copy/, 'the open is refused');
	like($node->log_since_start, qr/has failed, it is read from the device again/, 'after the pool was read anew');

	# the one after that has nothing to refuse
	system_or_bail('mv', "$record.kept", $record);
	if ($memory)
	{
		$node->crash;
		local %ENV = (%ENV, NvmMemory::sync_env($dir));
		$node->start;
		like($node->log_since_start, qr/are not used: its contents belong to no pool/, 'the file is not believed');
	}
	else
	{
		my $opened = $node->times_opened;
		$session = $node->background_psql('postgres', on_error_stop => 0);
		my $pid = $session->query('SELECT pg_backend_pid()');
		kill 'KILL', $pid;
		eval { $session->quit };
		$node->wait_reopened($opened);
	}
	is($node->safe_psql('postgres', 'SELECT count(*) FROM p'), 1, 'the pool is open, without what was lost');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM d'), 0, 'and the region is empty');
	$node->safe_psql('postgres', 'INSERT INTO d SELECT generate_series(1, 10)');
	$node->check_clean('read anew');
	$node->stop;
	return;
}

read_anew(0);
read_anew(1) if $tmpfs;
done_testing();

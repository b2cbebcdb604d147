# Copyright (c) 2026, pg_nvm contributors

# The checkpointer is killed when it has written pg_control and not yet synced it.
# The next start finds the new checkpoint in the page cache, and enters it in the
# pool's header, durably.  A loss of power that takes pg_control back to the
# checkpoint before must not leave a pool that is newer than its data directory.

use strict;
use warnings;

use FindBin;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir     = PostgreSQL::Test::Utils::tempdir();
my $library = "$FindBin::RealBin/../../tools/nvm_sync.so";
die "$library is missing" unless -e $library;
$ENV{NVM_SYNC_DIR} = $dir;

my $node = NvmTest->new('control');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
fsync = on
autovacuum = off
restart_after_crash = off
CONF

sub start
{
	local $ENV{LD_PRELOAD} = $library;
	return $node->start(@_);
}

append_to_file("$dir/control", '');
start();
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int PRIMARY KEY) USING nvm;
INSERT INTO t SELECT generate_series(1, 100);
CHECKPOINT;
SQL
my $control = $node->data_dir . '/global/pg_control';
ok(slurp_file("$dir/pg_control") eq slurp_file($control), 'a checkpoint syncs pg_control');

append_to_file("$dir/killed", '');
$node->psql('postgres', 'CHECKPOINT');
$node->wait_crashed;
unlink "$dir/killed";
ok(slurp_file("$dir/pg_control") ne slurp_file($control), 'the checkpointer was killed before that');

# power fails when the pool's header has been written
$node->append_conf('postgresql.conf', "nvm.failpoint = 'pool-header-second:crash'");
start(fail_ok => 1);
$node->wait_crashed if defined $node->{_pid};
like($node->log_since_start, qr/failpoint pool-header-second hit/, 'the header was written');
$node->_forget_postmaster;
system_or_bail('cp', "$dir/pg_control", $control);

$node->append_conf('postgresql.conf', "nvm.failpoint = ''");
start();
is($node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t'), '100|5050', 'the pool is accepted');
$node->check_clean('after the loss of power');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# nvm.persist_method = msync: a sync of the pool fails.  The kernel marks the
# pages clean all the same, so the page cache has what the device has not, and no
# later sync writes it.  A server that believed it would lose it with the power.
# Here: an abort that takes an end back is believed done, its gap is collected,
# and power fails.  A preloaded library keeps what the device has.
#
#  1. the fence of the abort fails: PANIC, the postmaster reinitialises
#  2. the kernel fails to write back by itself, and the server is killed before
#     its next sync
#
# And a sync of the incarnation file fails that was for something less: the pool is not
# closed cleanly, as that may have been the last word of an older record.

use strict;
use warnings;

use FindBin;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $dir     = PostgreSQL::Test::Utils::tempdir();
my $library = "$FindBin::RealBin/../../tools/nvm_sync.so";
die "$library is missing" unless -e $library;
$ENV{NVM_SYNC_DIR} = $dir;

my $node = NvmTest->new('failed');
$node->init;
$node->append_conf('postgresql.conf', <<CONF);
nvm.persist_method = msync
restart_after_crash = on
autovacuum = off
nvm.collector_delay = 0
nvm.horizon_naptime = 10
CONF

sub start
{
	local $ENV{LD_PRELOAD} = $library;
	return $node->start(@_);
}

sub rows
{
	return $node->safe_psql('postgres', 'SELECT count(*), sum(id) FROM t');
}

append_to_file("$dir/device", '');
start();
$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int) USING nvm;
INSERT INTO t SELECT generate_series(1, 10);
CREATE TABLE other (id int) USING nvm;
SQL

foreach my $way ('fence', 'write-back')
{
	my $session = $node->session;
	my $other   = $node->session;
	$session->sql('BEGIN');
	$session->sql('DELETE FROM t WHERE id = 7');
	# a sync of the file, of whomever, takes that along
	$other->sql('INSERT INTO other VALUES (1)');

	if ($way eq 'fence')
	{
		append_to_file("$dir/fail", '');
		$session->send('ROLLBACK');
		my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
		usleep(20_000) while $node->log_since_start !~ /PANIC:  could not write back.*database system is ready to accept connections/s && time() < $end;
	}
	else
	{
		$session->stop_at('abort-undone', 'ROLLBACK');
		append_to_file("$dir/fail", '');
		$node->crash;
		start();
	}
	ok(!-e "$dir/fail", "$way: a sync has failed");
	like($node->log_since_start, qr/has failed, it is read from the device again/, "$way: the page cache is not believed");
	ok(!-e $node->pool_file . '.sync_failed', "$way: once");
	is(rows(), '10|55', "$way: the deletion was rolled back");
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'the gaps are not collected';
	$node->safe_psql('postgres', 'INSERT INTO other VALUES (2)');

	$node->crash;
	system_or_bail('dd', "if=$dir/durable", 'of=' . $node->pool_file, 'bs=1M', 'conv=notrunc', 'status=none');
	unlink "$dir/durable", "$dir/cached";
	start();
	is(rows(), '10|55', "$way: and is still, after a loss of power");
	$node->check_clean($way);
	$_->drop foreach $session, $other;
}
$node->stop;
unlink "$dir/device";

# ---- the incarnation file; without fsync PostgreSQL's functions call nothing

$node->set_conf(fsync => 'on');
$node->set_conf('nvm.persist_method' => 'auto');
sub was_clean { return $node->safe_psql('postgres', 'SELECT was_clean FROM nvm.pool'); }
start();
is(was_clean(), 't', 'a clean stop');

my $elsewhere = $node->pool_dir . '_elsewhere';
my $failed    = qr/LOG:  could not write file "pg_nvm_incarnation": Input\/output error/;
# each is the second sync of a start; the first announces the new incarnation
foreach my $what ('place', 'witness', 'bypassed')
{
	$node->stop;
	if ($what eq 'place')
	{
		rename($node->pool_dir, $elsewhere) or die $!;
		$node->set_conf('nvm.pool_directory' => "'$elsewhere'");
	}
	elsif ($what eq 'bypassed')
	{
		rename($elsewhere, "$elsewhere.away") or die $!;
		start();
		$node->fails_with('SELECT * FROM t', qr/NVM pool is missing/, 'a start without the pool');
		$node->stop;
		rename("$elsewhere.away", $elsewhere) or die $!;
	}
	append_to_file("$dir/incarnation", '2');
	start();
	is(rows(), '10|55', "$what: the pool is open");
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	usleep(20_000) while -e "$dir/incarnation" && time() < $end;
	like($node->log_since_start, $failed, "$what: the sync of its note has failed");
	$node->stop;
	like($node->log_since_start, qr/could not fsync file "pg_nvm_incarnation": Input\/output error/, "$what: that is not forgotten at the stop");
	start();
	is(was_clean(), 'f', "$what: which is none that counts as clean");
	is(rows(), '10|55', "$what: the rows are there");
	$node->restart;
	is(was_clean(), 't', "$what: the next one is");
}
$node->check_clean('in the end');
$node->stop;
system_or_bail('rm', '-r', $elsewhere);
done_testing();

# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmMemory - servers of tests about tables in memory

=head1 SYNOPSIS

  # a server with table access method nvm_dram, whose syncs of the log the test disturbs
  my $node = NvmMemory::start_dram('failures', sync_dir => $dir,
	conf => "nvm_dram.log = on\n", sql => "CREATE TABLE t (id int) USING nvm_dram;\n");

  # one whose tables in memory lie in a file that outlives it
  my ($node, $file) = NvmMemory::start_kept('memory', conf => $conf, sql => $sql);

=cut

package NvmMemory;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmTest;
use Test::More;

my $tools = dirname(abs_path(__FILE__)) . '/tools';

=pod

=head1 FUNCTIONS

=over

=item NvmMemory::start_dram(NAME, conf => TEXT, sql => TEXT, sync_dir => DIRECTORY, env => {...}, ...)

As NvmTest->start_new, with nvm_dram (tools/nvm_dram.c) and a region of 192 MB.  sync_dir: the
server runs with tools/nvm_sync.c, which finds its orders in that directory; env has more for it.

=cut

sub start_dram
{
	my ($name, %params) = @_;
	my $dir = delete $params{sync_dir};

	$params{env} = { %{ $params{env} // {} }, sync_env($dir) } if defined $dir;
	$params{conf} = <<CONF . ($params{conf} // '');
shared_preload_libraries = 'pg_nvm,$tools/nvm_dram'
nvm_dram.size = 192MB
CONF
	$params{sql} = <<SQL . ($params{sql} // '');
CREATE FUNCTION nvm_dram_handler(internal) RETURNS table_am_handler AS '$tools/nvm_dram' LANGUAGE C STRICT;
CREATE ACCESS METHOD nvm_dram TYPE TABLE HANDLER nvm_dram_handler;
SQL
	return NvmTest->start_new($name, %params);
}

=pod

=item NvmMemory::sync_env(DIRECTORY)

What a server needs in its environment to run with tools/nvm_sync.c.

=cut

sub sync_env { return (LD_PRELOAD => "$tools/nvm_sync.so", NVM_SYNC_DIR => $_[0]); }

=pod

=item NvmMemory::start_kept(NAME, conf => TEXT, ...)

As NvmTest->start_new, with 512 MB of tables in memory in a file on tmpfs.  Returns the node and
the file.  Where there is no tmpfs the test is skipped, so this comes before all tests.

=cut

sub start_kept
{
	my ($name, %params) = @_;
	my $memory = NvmTest::pool_base() . '/memory';

	plan skip_all => 'no tmpfs for the memory of a server' unless NvmTest::is_tmpfs(NvmTest::pool_base());
	$params{conf} = <<CONF . ($params{conf} // '');
nvm.memory_directory = '$memory'
nvm.memory_limit = 512MB
max_worker_processes = 8
restart_after_crash = on
autovacuum = off
CONF
	return (NvmTest->start_new($name, %params), "$memory/pg_nvm_memory");
}

=pod

=item NvmMemory::is_kept(NODE, NAME, FILE)

Tests: the last start has believed the file that had the tables (FILE, or any), and has read no log.

=cut

sub is_kept
{
	my ($node, $name, $file) = @_;
	my $which = defined $file ? qr/ in file "\Q$file\E"/ : qr//;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($node->log_since_start, qr/tables in memory are there: \d+ MB$which/, "$name: the file is believed");
	is($node->safe_psql('postgres', 'SELECT state, files, bytes, rows FROM nvm.log_recovery'), 'whole|0|0|0', "$name: and no log is read");
	return;
}

=pod

=item NvmMemory::content(NODE, TABLE...)

Number and checksum of the rows of each table, a line each.

=back

=cut

sub content
{
	my ($node, @tables) = @_;
	return $node->safe_psql('postgres', join('; ',
		map { "SELECT count(*), md5(coalesce(string_agg(x::text, ',' ORDER BY x::text), '')) FROM $_ x" } @tables));
}

1;

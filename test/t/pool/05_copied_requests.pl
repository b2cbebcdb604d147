# Copyright (c) 2026, pg_nvm contributors

# A copy of a data directory names the original's pool, whose server happens to
# be down.  nvm.reset_pool() of the copy leaves that pool alone unless forced,
# and a request that was copied along is nobody's.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $main = NvmTest->start_new('main', allows_streaming => 1, conf => "autovacuum = off\nnvm.pool_max_size = '512MB'\n", sql => <<SQL);
CREATE TABLE t (id int PRIMARY KEY, body text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i;
SQL
my $pool    = $main->pool_file;
my $request = '/pg_nvm_reset';

sub old_files { my @f = glob "$pool.old.*"; return scalar(@f); }

# A server from a base backup, told of the original's pool.
sub copy_of_main
{
	my ($name, $backup, %params) = @_;
	my $copy = NvmTest->new($name);

	$copy->init_from_backup($main, $backup, %params);
	$copy->{nvm_pool} = $main->pool_dir;
	return $copy;
}

# The original is as it was.
sub whole
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(old_files(), 0, "$name: the pool has its name");
	$main->start;
	is($main->safe_psql('postgres', 'SELECT count(*), sum(length(body)) FROM t'), '1000|100000', "$name: and its rows");
	return;
}

# ---- a restored server gives up what it takes for its pool

$main->backup('plain');
my $restored = copy_of_main('restored', 'plain');
$restored->start;
$restored->fails_with('SELECT * FROM t', qr/starts from a base backup/, 'a base backup is refused');
$restored->psql('postgres', 'SELECT nvm.reset_pool()');
ok(-e $restored->data_dir . $request, 'it asks for a new pool');
$main->stop;
$restored->restart;
$restored->fails_with('SELECT * FROM t',
	qr/was last used with another data directory, and is not given up.*HINT: .*nvm\.pool_directory.*force => true/s,
	'the original\'s pool is not given up');
$restored->fails_with('SELECT nvm.reset_pool()', qr/not available, but not lost/, 'nor on a second request');
$restored->stop;
whole('given up by a copy');
$main->check_clean('the original');

# with a directory of its own the request is carried out
my $own = NvmTest::pool_base() . '/copied_requests_own';
$restored->append_conf('postgresql.conf', "nvm.pool_directory = '$own'");
$restored->start;
is($restored->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', 'with a directory of its own it has a new pool');
ok(!-e $restored->data_dir . $request, 'the request is done');
$restored->safe_psql('postgres', "TRUNCATE t; INSERT INTO t VALUES (1, '')");
is($restored->safe_psql('postgres', 'SELECT count(*) FROM t'), '1', 'and its table works');
$restored->stop;
PostgreSQL::Test::Utils::system_or_bail('rm', '-r', $own);

# ---- a request that is copied along: by a standby, and by a server from a backup

$main->psql('postgres', 'SELECT nvm.reset_pool(force => true)');
ok(-e $main->data_dir . $request, 'the original asks for a new pool');
$main->backup('forced');
unlink($main->data_dir . $request);    # and takes it back
$main->stop;
my $standby = copy_of_main('standby', 'forced', has_streaming => 1);
ok(-e $standby->data_dir . $request, 'the request was copied');
$standby->start;
$standby->fails_with('SELECT * FROM t', qr/standby/, 'the standby is refused');
like($standby->log_since_start, qr/request in file "pg_nvm_reset" .* was dropped, because it was copied/, 'the log says what became of the request');
ok(!-e $standby->data_dir . $request, 'standby: the request is gone');
is(old_files(), 0, 'standby: the pool has its name');
$standby->promote;
$standby->restart;
$standby->fails_with('SELECT * FROM t', qr/that of a standby/, 'promoted, it has no pool');
$standby->stop;

my $other = copy_of_main('other', 'forced');
$other->start;
$other->fails_with('SELECT * FROM t', qr/starts from a base backup/, 'a base backup with a request is refused');
is(old_files(), 0, 'base backup: the pool has its name');
$other->restart;
$other->fails_with('SELECT * FROM t', qr/restored from a base backup/, 'at the second start too');
whole('a copied request');
$main->stop;

# ---- force

$other->psql('postgres', 'SELECT nvm.reset_pool(force => true)');
$other->restart;
is(old_files(), 1, 'force gives up any pool');
is($other->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', 'and makes a new one');
$other->stop;
$main->start;
$main->fails_with('SELECT * FROM t', qr/is not the pool that this data directory was last used with/, 'which is not the original\'s');
$main->stop;

done_testing();

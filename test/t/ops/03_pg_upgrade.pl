# Copyright (c) 2026, pg_nvm contributors

# pg_upgrade does not carry nvm tables over, and says so, at --check already,
# whether the new server preloads the library or not; without the extension it
# goes through, and a dump of the nvm tables can be restored.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my ($bindir) = run_command([ 'pg_config', '--bindir' ]);
plan skip_all => 'no pg_upgrade' unless -x "$bindir/pg_upgrade";

my $old = NvmTest->start_new('old', sql => <<SQL);
CREATE TABLE t (id int PRIMARY KEY, b text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 500) FROM generate_series(1, 1000) i;
CREATE TABLE h (id int PRIMARY KEY) USING heap;
INSERT INTO h SELECT generate_series(1, 100);
SQL
my $dump = PostgreSQL::Test::Utils::tempdir() . '/t.sql';
$old->PostgreSQL::Test::Cluster::command_ok([ 'pg_dump', '-t', 't', '-f', $dump, '-d', $old->connstr('postgres') ], 'the nvm tables are dumped');
$old->stop;

my %new;
sub make_new
{
	my ($name) = @_;
	my $new = NvmTest->new($name);
	$new->init;
	$new->set_conf(shared_preload_libraries => $name eq 'preloaded' ? "'pg_nvm'" : "''");
	$new{$name} = $new;
	return $new;
}

# pg_upgrade writes in the current directory, before 15 too
sub upgrade
{
	my ($new, @options) = @_;
	my ($out, $err) = ('', '');
	chdir(PostgreSQL::Test::Utils::tempdir()) or die $!;
	my $ok = IPC::Run::run(
		[   'pg_upgrade', '--no-sync', '-d', $old->data_dir, '-D', $new->data_dir,
			'-b', $bindir, '-B', $bindir, '-s', $new->host, '-p', $old->port, '-P', $new->port, @options ],
		'>', \$out, '2>', \$err);
	my $listed = '';
	foreach my $file (glob $new->data_dir . '/pg_upgrade_output.d/*/loadable_libraries.txt')
	{
		$listed .= slurp_file($file);
	}
	return ($ok, "$out$err$listed");
}

foreach my $name (qw(preloaded not_preloaded))
{
	my $new = make_new($name);
	my ($ok, $said) = upgrade($new, '--check');
	ok(!$ok, "$name: pg_upgrade --check fails");
	like($said, qr/pg_upgrade does not carry nvm tables over/, "$name: and says why");
	like($said, qr/HINT.*pg_dump|pg_dump.*DROP EXTENSION/s, "$name: and what to do");
}
$old->start;
is($old->safe_psql('postgres', 'SELECT count(*) FROM t'), '1000', 'the old cluster is as it was');

# what the hint says
$old->safe_psql('postgres', 'SET client_min_messages = error; DROP EXTENSION pg_nvm CASCADE');
$old->stop;
my $new = $new{preloaded};
PostgreSQL::Test::Utils::system_or_bail('rm', '-rf', $new->data_dir . '/pg_upgrade_output.d');
my ($ok, $said) = upgrade($new);
ok($ok, 'without the extension pg_upgrade goes through') or diag($said);
$new->start;
is($new->safe_psql('postgres', 'SELECT count(*) FROM h'), '100', 'other tables are there');
$new->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');
$new->PostgreSQL::Test::Cluster::command_ok([ 'psql', '-X', '-q', '-v', 'ON_ERROR_STOP=1', '-d', $new->connstr('postgres'), '-f', $dump ], 'the dump is restored');
is($new->safe_psql('postgres', 'SELECT count(*), sum(length(b)) FROM t'), '1000|500000', 'with all rows');
$new->check_clean('after pg_upgrade');
$new->stop;
done_testing();

# PostgreSQL::Test::Cluster with our tables by default, for core's TAP tests.
#
# This directory comes before that of PostgreSQL's module in perl's search path.
# The module is loaded from there and behaves as ever, but a server whose node
# name matches $NVM_TAP_NODES preloads pg_nvm, has the extension in each database
# (template1 has it), a pool of its own below $NVM_TAP_POOLS, $NVM_TAP_METHOD as
# the default table access method.  A node made from such a server's backup has a pool
# directory of its own, too: the backup's settings name the other's.
package PostgreSQL::Test::Cluster;

use strict;
use warnings;

use Cwd ();
use PostgreSQL::Test::Utils ();

BEGIN
{
	my $this = Cwd::abs_path(__FILE__);
	my ($real) = grep { -f $_ && Cwd::abs_path($_) ne $this }
	  map { "$_/PostgreSQL/Test/Cluster.pm" } grep { !ref && -d } @INC;
	$real = Cwd::abs_path($real) if $real;
	die "no PostgreSQL::Test::Cluster but $this\n" unless $real;
	require $real;
}

my %original = (init => \&init, init_from_backup => \&init_from_backup);

sub _has_nvm { return $_[0]->name =~ /^(?:$ENV{NVM_TAP_NODES})$/; }

sub _pool_directory
{
	my ($self) = @_;
	return "nvm.pool_directory = '$ENV{NVM_TAP_POOLS}/" . $self->name . "'\n";
}

# The extension in the databases of a server that initdb has just made, whose
# tables are then ours.  A log of its own, and nothing archived: tests look at both.
sub _make_extension
{
	my ($self) = @_;
	local %ENV = $self->_get_env();
	my $run = \&PostgreSQL::Test::Utils::system_or_bail;
	my @ctl = ('pg_ctl', '-w', '-D', $self->data_dir);

	$run->(@ctl, '-l', $self->logfile . '.extension', '-o', '-c archive_mode=off', 'start');
	$run->('psql', '-XAtq', '-d', $_, '-c', 'CREATE EXTENSION pg_nvm')
	  for ('template1', 'postgres');
	$run->('psql', '-XAtq', '-d', 'postgres', '-c', qq{DO \$\$ BEGIN
		CREATE TABLE nvm_default (a int);
		ASSERT (SELECT amname = '$ENV{NVM_TAP_METHOD}' FROM pg_class c, pg_am a
			WHERE relname = 'nvm_default' AND relam = a.oid);
		DROP TABLE nvm_default; END \$\$});
	$run->(@ctl, '-m', 'fast', 'stop');
	return;
}

{
	no warnings 'redefine';

	*init = sub {
		my ($self, %params) = @_;
		my $result = $original{init}->($self, %params);
		if ($self->_has_nvm)
		{
			$self->append_conf('postgresql.conf',
				"shared_preload_libraries = 'pg_nvm'\n"
				  . "default_table_access_method = '$ENV{NVM_TAP_METHOD}'\n"
				  # the library's own take some of the default 8
				  . "max_worker_processes = 16\n"
				  . $self->_pool_directory);
			$self->_make_extension;
		}
		return $result;
	};

	*init_from_backup = sub {
		my ($self, $root, @rest) = @_;
		my $result = $original{init_from_backup}->($self, $root, @rest);
		$self->append_conf('postgresql.conf', $self->_pool_directory) if $root->_has_nvm;
		return $result;
	};
}

1;

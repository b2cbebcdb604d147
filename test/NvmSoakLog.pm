# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmSoakLog - what a soak of nvm_vlog tables has besides: checkpoints, and a device of the
log that fails

=head1 SYNOPSIS

  $soak->{log} = NvmSoakLog->new($soak);
  $soak->{log}->episode('full', crash => 1);

=head1 DESCRIPTION

Most tables are nvm_vlog's then, some nvm's, some heap's.  Whatever leaves no process of the
server throws the region away, and the log brings it back.  Checkpoints come by time and by
volume, and the log before them goes.

The server runs with test/tools/nvm_sync.so, so its writes to directory pg_nvm_log, and
syncs of what is there, fail when we say so: once, or for a while, with the error of a full
device or of a broken one.  Meanwhile commits are refused or wait, and nothing that was
acknowledged may be lost, whatever becomes of the server in the midst of it.

=over

=item conf

Settings of the server.

=item environment

What the server needs in its environment.

=item episode(HOW, crash => 0|1)

The device fails: HOW is one of C<@NvmSoakLog::faults>.  crash: in the midst of it all
processes are killed.

=item mended

The device is as it was.

=item expects(LINE)

Is that a line of the server's log which such a device accounts for?

=item give_up

Everybody is at rest: let a checkpoint give up the log before it.  Returns what is left
that nobody needs, as problems.

=item files

Number of files of the log, and their size in kB.

=back

=cut

package NvmSoakLog;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use Time::HiRes qw(time usleep);

use PostgreSQL::Test::Utils;

my $library = dirname(abs_path(__FILE__)) . '/tools/nvm_sync.so';

# what nvm_sync.c knows: once, or for a while
my %once = ('one sync' => 'log-sync', 'one write' => 'log-write');
my %lasting = (full => 'log-full', broken => 'log-broken');
our @faults = sort keys %once, keys %lasting;

sub new
{
	my ($class, $soak) = @_;
	my $dir = PostgreSQL::Test::Utils::tempdir();

	die "no $library: make -C test/tools" unless -e $library;
	return bless { soak => $soak, dir => $dir }, $class;
}

sub conf
{
	return <<CONF;
nvm.memory_limit = '384MB'
nvm.checkpoint_interval = '20s'
nvm.checkpoint_log_size = '48MB'
CONF
}

sub environment
{
	my ($self) = @_;
	return (LD_PRELOAD => $library, NVM_SYNC_DIR => $self->{dir});
}

sub episode
{
	my ($self, $how, %params) = @_;
	my $soak = $self->{soak};
	my $file = $self->{dir} . '/' . ($once{$how} // $lasting{$how} // die "no fault $how");

	$soak->{what} = "the log's device: $how";
	$soak->{measure}{episode} = 1;
	append_to_file($file, '');
	if ($once{$how})
	{
		my $end = time() + 5;
		usleep(10_000) while -e $file && time() < $end;
		$soak->count('faults of the log met') unless -e $file;
	}
	else
	{
		$soak->nap(0.5 + $soak->random(25) / 10);
		$soak->count('faults of the log met') if $soak->node->log_since_start =~ /could not write the log of tables in memory/;
	}
	$soak->count('faults of the log');
	if ($params{crash})
	{
		$soak->crash_round('all killed');
	}
	else
	{
		$self->mended;
		$soak->nap(0.5);
		$soak->verify;
	}
	$soak->{measure}{episode} = 0;
	return;
}

sub mended
{
	my ($self) = @_;
	unlink map { "$self->{dir}/$_" } values %once, values %lasting;
	return;
}

sub expects
{
	my ($self, $line) = @_;
	# a reader is told, and goes on
	return $line =~ /WARNING: .*what the transaction has read may be lost by a crash/
	  # a fast stop meets a commit that waits for it
	  || $line =~ /WARNING: .*skipping vacuum of .* --- it is being rebuilt from the log/
	  || $line =~ /WARNING: .*canceling the wait for the log and terminating connection/
	  # DROP DATABASE comes between a worker's start and its connection, or a crash has ended it in the midst
	  || $line =~ /nvm index rebuild worker .*FATAL: .*(?:cannot connect to invalid database "soak_copy"|database \d+ does not exist)/
	  # a session that ends commits what it does with its temporary tables
	  || $line =~ /FATAL: .*could not write the log of tables in memory: /;
}

sub give_up
{
	my ($self) = @_;
	my $node = $self->{soak}->node;

	$node->safe_psql('postgres', 'SELECT nvm.checkpoint()');
	my $number = sprintf '%016x', $node->safe_psql('postgres', q{SELECT number FROM nvm.checkpoints WHERE state = 'usable'});
	return map { "nobody needs file $_ of the log" }
	  grep { /\.side$/ || (/-([0-9a-f]{16})-[0-9a-f]{8}\.rows$/ && $1 ne $number) }
	  map { basename($_) } glob $node->data_dir . '/pg_nvm_log/*';
}

sub files
{
	my ($self) = @_;
	my $kb = 0;
	my @files = glob $self->{soak}->node->data_dir . '/pg_nvm_log/*';

	$kb += (-s $_ // 0) / 1024 foreach @files;
	return (log_files => scalar @files, log_kb => int($kb));
}

1;

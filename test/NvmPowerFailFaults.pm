# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmPowerFailFaults - pg_nvm with a fault that loses something when power fails

=head1 DESCRIPTION

The faults are patches, test/powerfail/faults/NN-name.patch.  What stands before
the first line of a patch proper says what is broken, in which README the invariant
is, and then

  Workloads: those of driver.pl that are to meet the fault
  At: fences or failpoints where power is lost first (may be absent)
  Scenarios: of these workloads, those that do what the fault breaks.  They come before all
    others, with each of their points (may be absent)

=cut

package NvmPowerFailFaults;

use strict;
use warnings;

use Cwd;
use File::Basename;
use PostgreSQL::Test::Utils;
use Test::More;

=pod

=over

=item NvmPowerFailFaults::all([NAME, ...])

The faults of these names, or numbers, or all: { name, file, title, workloads, at, scenarios }.

=cut

sub all
{
	my ($only) = @_;
	my @faults;

	foreach my $file (sort glob getcwd() . '/test/powerfail/faults/*.patch')
	{
		my $name = basename($file, '.patch');
		next if @$only && !grep { $name eq $_ || $name =~ /^0*\Q$_\E-/ } @$only;
		my ($head) = slurp_file($file) =~ /\A(.*?)^--- /ms or die "$file has no head";
		my ($title) = $head =~ /\A(.*)/;
		my ($workloads) = $head =~ /^Workloads: (.*)$/m or die "$file names no workloads";
		my ($at) = $head =~ /^At: (.*)$/m;
		my ($scenarios) = $head =~ /^Scenarios: (.*)$/m;
		push @faults, {
			name      => $name,
			file      => $file,
			title     => $title,
			workloads => [ split ' ', $workloads ],
			at        => [ split ' ', $at // '' ],
			scenarios => [ split ' ', $scenarios // '' ],
		};
	}
	die "no fault @$only" unless @faults;
	return @faults;
}

=pod

=item NvmPowerFailFaults->new(SCRATCH)

A copy of the tree that is built and installed by the current directory, to be
patched.  The library that is installed is put back by unpatch, and at the end.

=cut

sub new
{
	my ($class, $scratch) = @_;
	my $config = $ENV{PG_CONFIG} // 'pg_config';
	chomp(my $lib = qx($config --pkglibdir));
	my $self = bless {
		tree      => "$scratch/fault",
		installed => "$lib/pg_nvm.so",
		sound     => "$scratch/sound.so",
		owner     => $$,
	}, $class;

	mkdir $self->{tree} or die "$self->{tree}: $!";
	system_or_bail('cp', '-a', 'Makefile', 'pg_nvm.control', 'pg_nvm--0.1.sql', 'src', 'bin', 'scripts', $self->{tree});
	system_or_bail('cp', '-a', $self->{installed}, $self->{sound});
	# once, if the tree was not built: what is built then is what a patch touches
	$self->_make or die 'the tree does not build: ' . $self->{said};
	return $self;
}

sub _make
{
	my ($self) = @_;
	my $config = $ENV{PG_CONFIG} // 'pg_config';

	$self->{said} = qx(make -C $self->{tree} with_llvm=no PG_CONFIG=$config pg_nvm.so 2>&1);
	return $? == 0;
}

# The servers that have the old one keep it.
sub _install
{
	my ($self, $from) = @_;
	system_or_bail('cp', $from, "$self->{installed}.new");
	rename("$self->{installed}.new", $self->{installed}) or die "$self->{installed}: $!";
	return;
}

=pod

=item $builds->patch(FAULT), $builds->unpatch(FAULT)

Install the library with the fault; and the one without.  True if it could be built.

=back

=cut

sub patch
{
	my ($self, $fault) = @_;

	$self->{said} = qx(patch -d $self->{tree} -p1 <$fault->{file} 2>&1);
	if ($? != 0 || !$self->_make)
	{
		diag("$fault->{name}: $self->{said}");
		return 0;
	}
	$self->_install("$self->{tree}/pg_nvm.so");
	return 1;
}

sub unpatch
{
	my ($self, $fault) = @_;
	system_or_bail('sh', '-c', "patch -s -R -d $self->{tree} -p1 <$fault->{file}");
	$self->_install($self->{sound});
	return;
}

sub DESTROY
{
	my ($self) = @_;
	return unless $self->{owner} == $$;
	local $?;
	$self->_install($self->{sound}) if -e $self->{sound};
	return;
}

1;

# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmLogDisk - the disk of the log: what a loss of power leaves of it

=head1 SYNOPSIS

  use NvmLogDisk;

  my $disk = "$home/disk";
  NvmLogDisk::attach([ "$data/pg_nvm_log" ], $disk);
  # a server runs with NvmLogDisk::environment([ "$data/pg_nvm_log" ], $disk), and dies
  NvmLogDisk::image($disk, [ "$copy/pg_nvm_log" ], seed => 7);

=head1 DESCRIPTION

Library test/tools/nvm_disk.so, loaded into the server before everything else, keeps
apart what of the log is on the medium for certain; its head tells how.  An image is
that, and of the rest what a seed says:

=over

=item *

of each file any of the pages that were written since its last sync, some of them torn
at 512 bytes, and either length;

=item *

the names as of the last sync of the directory, and what was done to them since: all of
it, a first part, or any part.

=back

Several directories lose each its own.

=cut

package NvmLogDisk;

use strict;
use warnings;

use Cwd qw(abs_path);
use Fcntl qw(SEEK_SET);
use File::Basename;
use File::Path qw(rmtree);

my $here = dirname(abs_path(__FILE__));
my $page = 4096;

# a number from 0 to N - 1, by seed and key
my $random;
sub _random { $random //= NvmCrash->can('random'); return $random->(@_); }

=pod

=over

=item NvmLogDisk::environment(LOGS, DISK)

What a server needs in its environment, as a list of names and values; LD_PRELOAD is one.
LOGS: the directories of the log.

=item NvmLogDisk::attach(LOGS, DISK)

Make directory DISK, for a server that is to run: all that the directories have is on the
medium.

=cut

sub environment
{
	my ($logs, $disk) = @_;
	return (LD_PRELOAD => "$here/tools/nvm_disk.so", NVM_DISK_DIR => $disk, NVM_DISK_LOG => join(':', @$logs));
}

sub attach
{
	my ($logs, $disk) = @_;

	rmtree($disk);
	mkdir $disk or die "$disk: $!";
	foreach my $n (0 .. $#$logs)
	{
		my $ops = '';
		foreach my $file (sort glob "$logs->[$n]/*")
		{
			my $inode = (stat $file)[1];
			_copy($file, "$disk/I$inode");
			link($file, "$disk/F$inode") or die "link $file: $!";
			$ops .= "create $inode " . basename($file) . "\n";
		}
		my $path = _ops($disk, $n);
		open(my $fh, '>', $path) or die "$path: $!";
		print $fh "${ops}sync\n";
		close $fh or die "$path: $!";
	}
	return;
}

# What has been done to the directory of this number
sub _ops { return "$_[0]/ops" . ($_[1] || ''); }

sub _copy
{
	my ($from, $to) = @_;
	system('cp', '--sparse=always', $from, $to) == 0 or die "cp $from $to failed";
	return;
}

# What has been done to the directory: up to its last sync, and since
sub _operations
{
	my ($path) = @_;
	my (@certain, @since);

	open(my $fh, '<', $path) or die "$path: $!";
	while (my $line = <$fh>)
	{
		my @op = split ' ', $line;
		if ($op[0] eq 'sync')
		{
			push @certain, splice(@since);
		}
		else
		{
			push @since, \@op;
		}
	}
	close $fh;
	return (\@certain, \@since);
}

sub _apply
{
	my ($names, @ops) = @_;

	foreach my $op (@ops)
	{
		my ($what, $inode, $name, $to) = @$op;
		if ($what eq 'create')
		{
			$names->{$name} = $inode;
		}
		elsif ($what eq 'unlink')
		{
			delete $names->{$name} if ($names->{$name} // 0) == $inode;
		}
		else
		{
			delete $names->{$name} if ($names->{$name} // 0) == $inode;
			$names->{$to} = $inode;
		}
	}
	return;
}

sub _names
{
	my ($path, $seed, $mode) = @_;
	my ($certain, $since) = _operations($path);
	my %names;

	_apply(\%names, @$certain);
	if ($mode ne 'durable')
	{
		my $how = _random("names/$seed", 3);
		my @since = @$since;
		splice(@since, _random("prefix/$seed", 1 + @since)) if $how == 1;
		@since = grep { _random("name/$seed/@$_", 2) } @since if $how == 2;
		_apply(\%names, @since);
	}
	return %names;
}

# Pages of a file that were written since its last sync
sub _dirty
{
	my ($disk, $inode) = @_;
	my %dirty;

	open(my $fh, '<:raw', "$disk/J$inode") or return;
	while (read($fh, my $range, 16) == 16)
	{
		my ($offset, $length) = unpack('Q<Q<', $range);
		next unless $length;
		$dirty{$_} = 1 foreach int($offset / $page) .. int(($offset + $length - 1) / $page);
	}
	close $fh;
	return sort { $a <=> $b } keys %dirty;
}

sub _read_at
{
	my ($fh, $at, $length) = @_;
	my $bytes = '';

	sysseek($fh, $at, SEEK_SET) or die "seek: $!";
	sysread($fh, $bytes, $length) // die "read: $!";
	return $bytes;
}

# A page, or those of its sectors that the seed says.  Whether anything was stored.
sub _store_page
{
	my ($from, $to, $number, $key, $odds) = @_;
	my $at = $number * $page;

	return 0 if _random("page/$key/$number", 100) >= $odds;
	my $bytes = _read_at($from, $at, $page);
	return 0 if $bytes eq '';
	if (_random("torn/$key/$number", 4) == 0)
	{
		my $old = _read_at($to, $at, $page);
		$old .= "\0" x (length($bytes) - length($old)) if length($old) < length($bytes);
		foreach my $sector (0 .. 7)
		{
			next if 512 * $sector >= length($bytes) || _random("sector/$key/$number/$sector", 2);
			substr($bytes, 512 * $sector, 512) = substr($old, 512 * $sector, 512);
		}
	}
	sysseek($to, $at, SEEK_SET) or die "seek: $!";
	syswrite($to, $bytes) == length($bytes) or die "write: $!";
	return 1;
}

sub _file
{
	my ($disk, $inode, $path, $seed, $mode) = @_;
	my @dirty = $mode eq 'durable' ? () : _dirty($disk, $inode);

	if (-e "$disk/I$inode")
	{
		_copy("$disk/I$inode", $path);
	}
	else
	{
		open(my $fh, '>', $path) or die "$path: $!";
		close $fh;
	}
	return unless @dirty;
	my $key  = "$seed/$path" =~ s,/.*/,/,r;
	my $odds = (0, 30, 60, 90, 100)[ _random("odds/$key", 5) ];
	my $size = -s "$disk/F$inode";
	open(my $from, '<:raw',  "$disk/F$inode") or die "$disk/F$inode: $!";
	open(my $to,   '+<:raw', $path)           or die "$path: $!";
	_store_page($from, $to, $_, $key, $odds) foreach @dirty;
	truncate($to, $size) or die "truncate $path: $!" if -s $path < $size && _random("length/$key", 2);
	close $to or die "$path: $!";
	return;
}

=pod

=item NvmLogDisk::image(DISK, TO, seed => N, mode => 'any'|'durable')

Make the directories TO, in place of some that may be there, as a loss of power could have
left them; durable: what is certain, and nothing else.

=item NvmLogDisk::unsynced(DISK)

How many pages, and operations on directories, were not certain.

=back

=cut

sub image
{
	my ($disk, $to, %how) = @_;
	my $mode = $how{mode} // 'any';

	foreach my $n (0 .. $#$to)
	{
		my $dir = $to->[$n];
		my %names = _names(_ops($disk, $n), $how{seed} . ($n ? "/$n" : ''), $mode);
		rmtree($dir);
		mkdir $dir, 0700 or die "$dir: $!";
		_file($disk, $names{$_}, "$dir/$_", $how{seed}, $mode) foreach sort keys %names;
	}
	return;
}

sub unsynced
{
	my ($disk) = @_;
	my $operations = 0;
	my $pages = 0;

	$operations += @{ (_operations($_))[1] } foreach glob "$disk/ops*";

	foreach my $j (glob "$disk/J*")
	{
		my ($inode) = $j =~ /J(\d+)$/;
		$pages += () = _dirty($disk, $inode);
	}
	return ($pages, $operations);
}

1;

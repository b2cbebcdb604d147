# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmPowerFailReport - what a run of test/powerfail/run has explored, as tables

=head1 DESCRIPTION

Jobs of several processes append a line for each image to one file.  Counts of
flushes and fences are read from copies of pool.simctl, one for each scenario that
ran without a crash (media_sim.h has the layout, pmem_sim_counts.c what is counted).

=cut

package NvmPowerFailReport;

use strict;
use warnings;

use Cwd;
use File::Copy qw(copy);
use PostgreSQL::Test::Utils;

# media_sim.h
my $sim_version = 2;
my ($areas, $steps, $sites) = (1024, 512, 1024);
my $step_size = 8 + 48 + 6 * 8;
my $site_size = 8 + 6 * 8;
my $header    = 128 + $areas * 64;

my @columns = qw(calls empty idle lines clean repeated);

=pod

=over

=item NvmPowerFailReport->new(DIRECTORY)

=cut

sub new
{
	my ($class, $dir) = @_;
	mkdir $dir unless -d $dir;
	return bless { dir => $dir, file => "$dir/images" }, $class;
}

=pod

=item $report->note_image(WORKLOAD, SCENARIO, NAME, HIT, KIND, SEED, RECORDS, PROBLEMS)

=cut

sub note_image
{
	my ($self, @fields) = @_;
	append_to_file($self->{file}, "@fields\n");
	return;
}

sub _images
{
	my ($self) = @_;
	return map { [ split ' ' ] } split /\n/, -e $self->{file} ? slurp_file($self->{file}) : '';
}

=pod

=item $report->all_images

Hashes of workload, scenario, name, hit, kind, seed, records, problems.

=cut

sub all_images
{
	my ($self) = @_;
	my @names = qw(workload scenario name hit kind seed records problems);
	my @list;

	foreach my $i ($self->_images)
	{
		my %image;
		@image{@names} = @$i;
		push @list, \%image;
	}
	return @list;
}

sub images { return scalar($_[0]->_images); }

# Number of images of crashes at this place.
sub crashed_at
{
	my ($self, $name) = @_;
	return scalar grep { $_->[2] eq $name } $self->_images;
}

=pod

=item $report->save_counts(RIG, SCENARIO)

Keep what a rig's dead server has counted.

=cut

sub save_counts
{
	my ($self, $rig, $scenario) = @_;
	copy("$rig->{pool}/pool.simctl", "$self->{dir}/counts.$scenario") or die "counts of $scenario: $!";
	return;
}

=pod

=item $report->keep_counts(DIRECTORY), $report->use_counts(DIRECTORY)

For another run, and from one.

=cut

sub keep_counts
{
	my ($self, $dir) = @_;
	mkdir $dir unless -d $dir;
	system_or_bail('cp', glob("$self->{dir}/counts.*"), $dir);
	return;
}

sub use_counts
{
	my ($self, $dir) = @_;
	my @files = glob "$dir/counts.*";
	system_or_bail('cp', @files, $self->{dir}) if @files;
	return;
}

# Sum of all: two references to hashes, fence => counts and place => counts.
sub _counts
{
	my ($self) = @_;
	my (%fence, %place);

	foreach my $file (glob "$self->{dir}/counts.*")
	{
		my $data = slurp_file($file);
		my (undef, $version, $n) = unpack('Q L L', $data);
		die "$file: another layout of pool.simctl" unless $version == $sim_version && $n == $areas
			  && length($data) >= $header + $steps * $step_size + $sites * $site_size;
		foreach my $i (0 .. $steps - 1)
		{
			my (undef, $name, @c) = unpack('Q Z48 Q6', substr($data, $header + $i * $step_size, $step_size));
			next if $name eq '';
			$fence{$name}{ $columns[$_] } += $c[$_] foreach 0 .. $#columns;
		}
		foreach my $i (0 .. $sites - 1)
		{
			my ($at, @c) = unpack('Q Q6', substr($data, $header + $steps * $step_size + $i * $site_size, $site_size));
			next if $at == 0;
			$place{$at}{ $columns[$_] } += $c[$_] foreach 0 .. $#columns;
		}
	}
	return (\%fence, \%place);
}

# Function and line that each return address belongs to.
sub _names_of
{
	my (@places) = @_;
	my %name;

	return %name unless @places;
	my $config = $ENV{PG_CONFIG} // 'pg_config';
	chomp(my $lib = qx($config --pkglibdir));
	# an address of a call is before the one that it returns to
	my @said = split /\n/, qx(addr2line -s -f -e $lib/pg_nvm.so @{[ map { sprintf '0x%x', $_ - 1 } @places ]} 2>/dev/null);
	foreach my $place (@places)
	{
		my ($function, $line) = splice(@said, 0, 2);
		$line = '' if !defined $line || $line =~ /^\?/;
		$line =~ s/ \(discriminator.*//;
		$name{$place} = !defined $function || $function =~ /^\?/ ? sprintf('0x%x', $place) : "$function $line";
	}
	return %name;
}

=pod

=item NvmPowerFailReport::fences()

Names that are fences, not only failpoints: of nvm_drain and nvm_persist.

=cut

sub fences
{
	my @names;
	foreach my $line (split /\n/, qx(scripts/check_drain_names.py --list drain persist))
	{
		push @names, (split ' ', $line)[1];
	}
	die 'no fences' unless @names;
	return @names;
}

=pod

=item $report->fences_never(NAMES)

Those of a hash of names where no image was taken, fences and others.

=cut

sub fences_never
{
	my ($self, $names) = @_;
	my %crashed = map { $_->[2] => 1 } $self->_images;
	my %fence   = map { $_ => 1 } fences();
	return grep { $fence{$_} && !$crashed{$_} } sort keys %$names;
}

sub _table
{
	my ($head, @rows) = @_;
	return join '', map { '| ' . join(' | ', @$_) . " |\n" } ($head, [ map { '---' } @$head ], @rows);
}

sub _percent { return $_[1] ? sprintf('%.0f %%', 100 * $_[0] / $_[1]) : ''; }

=pod

=item $report->text(seed, workloads, names, never, wal, seconds)

wal: how many writes of WAL there are in scenarios of transactions of both worlds, and the
names of these.

All tables, in Markdown.

=cut

sub text
{
	my ($self, %p) = @_;
	my @images = $self->_images;
	my (%n, %crash, %at, %bad, %kinds);
	my $longer = 0;

	foreach my $i (@images)
	{
		my ($w, $s, $name, $hit, $kind, undef, $records, $problems) = @$i;
		$n{$w}++;
		$crash{$w}{"$s/$name/$hit"} = 1;
		$at{$name}++;
		$kinds{$kind}++;
		$bad{$w}++ if $problems;
		$longer++ if $records;
	}
	my %fence = map { $_ => 1 } fences();
	my @fences = grep { $fence{$_} } sort keys %{ $p{names} };
	my @others = grep { !$fence{$_} } sort keys %{ $p{names} };
	my @never = grep { !$at{$_} } @fences;
	my @never_other = grep { !$at{$_} } @others;
	my ($fence, $place) = $self->_counts;

	my $text = sprintf("Seed %d, %d images of %d crashes in %d minutes: %s. Of %d the WAL went on beyond what had been flushed.\n\n", $p{seed}, scalar @images,
		scalar(map { keys %$_ } values %crash), ($p{seconds} + 30) / 60,
		join(', ', map { "$kinds{$_} $_" } sort keys %kinds), $longer);
	$text .= _table([ 'workload', 'crashes', 'images', 'not sound' ],
		map { [ $_->[0], scalar keys %{ $crash{ $_->[0] } // {} }, $n{ $_->[0] } // 0, $bad{ $_->[0] } // 0 ] } @{ $p{workloads} });
	$text .= sprintf("\nPower was lost at %d of %d fences, and at %d of %d other places.\n", @fences - @never, scalar @fences,
		@others - @never_other, scalar @others);
	my ($wal_writes, @both_worlds) = @{ $p{wal} // [0] };
	my %both = map { $_ => 1 } @both_worlds;
	my %wal_crashed = map { ("$_->[1]/$_->[3]" => 1) } grep { $_->[2] eq 'wal-written' && $both{ $_->[1] } } @images;
	$text .= sprintf("\nOf transactions that write both worlds it was lost at %d of %d writes of WAL.\n", scalar keys %wal_crashed, $wal_writes)
	  if $wal_writes;
	$text .= "\nFences where it never was: " . (join('; ', map { $_ . ($p{never}{$_} ? " ($p{never}{$_})" : '') } @never) || 'none') . ".\n";
	$text .= "\nOther places where it never was: " . (join(', ', @never_other) || 'none') . ".\n";
	return $text unless %$fence;

	my @idle = grep { my $f = $fence->{$_}; $f->{calls} && $f->{empty} + $f->{idle} == $f->{calls} } sort keys %$fence;
	my @often = grep { my $f = $fence->{$_}; my $n = $f->{empty} + $f->{idle}; $n < $f->{calls} && $n * 4 >= $f->{calls} } sort keys %$fence;
	$text .= "\nFences that had nothing to protect, each time they were reached: " . (join(', ', @idle) || 'none') . ".\n";
	$text .= "\nFences where that was so in a quarter of the cases or more:\n\n"
	  . _table([ 'fence', 'reached', 'nothing flushed before', 'only what was durable', 'lines flushed', 'durable before' ],
		map { my $f = $fence->{$_}; [ $_, @$f{qw(calls empty idle lines)}, _percent($f->{clean}, $f->{lines}) ] } (@idle, @often));

	my @clean = sort { $place->{$b}{lines} <=> $place->{$a}{lines} || $a <=> $b }
	  grep { my $f = $place->{$_}; $f->{clean} * 2 >= $f->{lines} || $f->{repeated} * 2 >= $f->{lines} } keys %$place;
	my %name = _names_of(@clean);
	$text .= "\nFlushes half of whose lines, or more, were durable already, or had been flushed since the last fence:\n\n"
	  . _table([ 'place', 'calls', 'nothing but what was durable', 'lines', 'durable before', 'flushed before' ],
		map { my $f = $place->{$_}; [ $name{$_}, @$f{qw(calls idle lines)}, _percent($f->{clean}, $f->{lines}),
				_percent($f->{repeated}, $f->{lines}) ] } @clean);
	return $text;
}

=pod

=item NvmPowerFailReport::faults_text(SEED, [NAME, TITLE, CAUGHT], ...)

=item NvmPowerFailReport::write_file(FILE, TEXT)

=back

=cut

sub faults_text
{
	my ($seed, @lines) = @_;
	my $n = grep { ref $_->[2] } @lines;
	return sprintf("Seed %d: %d of %d faults caught.\n\n", $seed, $n, scalar @lines)
	  . _table([ 'fault', 'what is broken', 'caught by', 'images' ],
		map { [ $_->[0], $_->[1], ref $_->[2] ? ($_->[2]{point}, $_->[2]{images}) : ('nothing', '') ] } @lines);
}

sub write_file
{
	my ($file, $text) = @_;
	open(my $fh, '>', $file) or die "$file: $!";
	print $fh $text;
	close $fh or die "$file: $!";
	return;
}

1;

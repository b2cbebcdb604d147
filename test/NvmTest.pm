# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmTest - a PostgreSQL::Test::Cluster whose tables live in a pool

=head1 SYNOPSIS

  use NvmTest;

  my $node = NvmTest->start_new('main',      # simulate => 1 for loss of power
    conf => "autovacuum = off\n",
    sql  => 'CREATE TABLE t (id int PRIMARY KEY) USING nvm;');
  my $load = $node->start_load(clients => 4, sql => sub { ... });
  $load->wait_acknowledged(100);
  $node->crash;                     # or power_failure(seed => 1)
  $node->start;
  $load->check('postgres', 'SELECT client, n FROM ack');
  $node->check_clean('after the crash');

=head1 DESCRIPTION

Adds to PostgreSQL::Test::Cluster a pool directory, crashes that take every
process, simulated power failures, a record of acknowledged work, and the
checker of pg_nvm as a test.

Pools lie below $NVM_CHECK_POOLS, else on /dev/shm if there is room, else in
the test's temporary directory.  They are removed at the end.

=cut

package NvmTest;

use strict;
use warnings;

use Cwd qw(abs_path);
use Fcntl qw(:flock);
use File::Basename;
use File::Path qw(rmtree);
use File::Temp ();
use IPC::Run ();
use POSIX ();
use Time::HiRes qw(usleep);

use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

our @ISA = ('PostgreSQL::Test::Cluster');

# A bail-out would end the run of all files, and hide what the others find: here it
# ends one file.
{
	no warnings 'redefine';
	no strict 'refs';
	*{"${_}::BAIL_OUT"} = sub { die "bail-out: @_\n" }
	  foreach qw(PostgreSQL::Test::Utils PostgreSQL::Test::Cluster);
}

# scripts/coverage.sh: what each test reaches, apart
$ENV{GCOV_PREFIX} .= '/' . basename($0, '.pl') if $ENV{GCOV_PREFIX};

my $here = dirname(abs_path(__FILE__));
my @pools;

# Processes that must not be left stopped: no server ends while one is.
my %stopped;

# the tools beside this file
our $patch_tool      = "$here/tools/nvm_patch";
our $crashimage_tool = "$here/crashimage/nvm_crashimage";

# CALL pass_time(): so that what was seen before is seen by nobody any more
our $pass_time = <<'SQL';
CREATE PROCEDURE pass_time(n int DEFAULT 10) LANGUAGE plpgsql AS
$$BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM pg_current_xact_id();
		COMMIT;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
END$$;
SQL

# makes every plan parallel, by a setting that PostgreSQL 16 has renamed
our $force_parallel = q{DO $force$BEGIN PERFORM set_config(name, 'on', false) FROM pg_settings
	WHERE name IN ('force_parallel_mode', 'debug_parallel_query'); END$force$};

# tests that can do more with more time ask this
sub is_long { return ($ENV{NVM_CHECK_LONG} // 0) ? 1 : 0; }

# the server is one of check_sanitize.sh or check_valgrind.sh
sub is_instrumented { return $ENV{NVM_INSTRUMENTED} ? 1 : 0; }

# A directory for pools, made at the first call.
my $pool_base;

sub pool_base
{
	return $pool_base if defined $pool_base;
	my $parent = $ENV{NVM_CHECK_POOLS};
	if (!$parent && -d '/dev/shm' && -w '/dev/shm')
	{
		my @df = split ' ', (qx(df -Pk /dev/shm))[-1];
		$parent = '/dev/shm' if $df[3] > 1_000_000;
	}
	$pool_base =
	  $parent
	  ? File::Temp::tempdir('nvm_XXXXXX', DIR => $parent, CLEANUP => 1)
	  : PostgreSQL::Test::Utils::tempdir();
	return $pool_base;
}

=pod

=head1 FUNCTIONS

=over

=item NvmTest::is_long()

Whether there is time for the long form: scripts/check.sh --long.

=item NvmTest::is_instrumented(), NvmTest::sanitizer_kb()

Whether the server runs under a sanitizer or memcheck, where time says nothing; and
what such a process may have of private memory beside its own: AddressSanitizer keeps
what was freed, up to quarantine_size_mb, and a shadow of all.

=cut

sub sanitizer_kb { return is_instrumented() ? 65536 : 0; }

=pod

=item NvmTest::large_pool($node, MB)

Arguments for init of a server whose pool may take that much memory.  Waits until
no other test has such a pool: together they may be more than there is.  Where the
pools' place or the machine's memory has no room for it, the pool lies in the
test's directory on disk, see disk_dir.

=cut

my $large_lock;

sub large_pool
{
	my ($node, $mb) = @_;
	my $dir = pool_base();

	if (!$large_lock && $ENV{NVM_CHECK_POOLS})
	{
		my $file = "$ENV{NVM_CHECK_POOLS}/large.lock";
		open($large_lock, '>', $file) or die "$file: $!";
		flock($large_lock, LOCK_EX) or die "$file: $!";
	}
	my (undef, $type, undef, undef, $free) = split ' ', (qx(df -PT --block-size=1M $dir))[-1];
	if ($type eq 'tmpfs' && slurp_file('/proc/meminfo') =~ /^MemAvailable:\s+(\d+) kB/m)
	{
		# other tests need some
		my $memory = int($1 / 1024) - 2048;
		$free = $memory if $memory < $free;
	}
	return () if $free >= $mb;
	note("no $mb MB for a pool in $dir: it lies on disk");
	return (pool => disk_dir($node) . '/pool');
}

=pod

=item NvmTest::disk_dir($node)

A directory of this server's on a disk, where scripts/check.sh has one: the test's own
directory may be on tmpfs.

=cut

sub disk_dir
{
	my ($node) = @_;
	my $parent = $ENV{NVM_CHECK_DISK};

	return $node->basedir unless $parent && -d $parent;
	my $dir = "$parent/" . basename($0, '.pl') . '_' . $node->name;
	mkdir $dir or die "$dir: $!";
	push @pools, $dir;
	return $dir;
}

=pod

=item NvmTest::is_tmpfs(DIRECTORY)

Whether it lies on tmpfs.

=cut

sub is_tmpfs { my ($dir) = @_; return (split ' ', (qx(df -PT $dir))[-1])[1] eq 'tmpfs'; }

=pod

=item NvmTest::private_kb(PID), NvmTest::open_files(PID)

What a process has: memory of its own in kB, open file descriptors.  Of
PostgreSQL's relations only files that are deleted or open more than once count:
each process keeps those open that it has met.

=cut

sub private_kb
{
	my ($pid) = @_;
	slurp_file("/proc/$pid/status") =~ /^RssAnon:\s+(\d+) kB/m or die "no RssAnon of $pid";
	return $1;
}

sub open_files
{
	my ($pid) = @_;
	my @fds = glob "/proc/$pid/fd/*";
	my ($files, %seen) = (0);

	die "no descriptors of $pid" unless @fds;
	foreach my $target (map { readlink($_) // '' } @fds)
	{
		# a file of PostgreSQL's relations that exists, for the first time
		next if $target =~ m,/(?:base/\d+|global)/\d[^/ ]*$, && !$seen{$target}++;
		$files++;
	}
	return $files;
}

=pod

=back

=head1 METHODS

=over

=item $node->pool_dir, $node->pool_file

The pool's directory and its file as set now.

=cut

sub pool_dir  { return $_[0]->{nvm_pool}; }

sub pool_file
{
	my ($self) = @_;
	my $dir = $self->{nvm_pool};
	my $data = $self->data_dir;

	$dir = "$data/$dir" if $dir !~ m,^/,;
	return "$dir/" . ($dir =~ m,^\Q$data\E/, ? 'pgsql_tmp.nvm_pool.do_not_delete' : 'pool');
}

=pod

=item $node->init(simulate => 1, pool => DIRECTORY, ...)

As init of the parent, and sets up pg_nvm.  simulate: lose power, not only
processes; then WAL is written with open_datasync, so that what survives a
SIGKILL in pg_wal is what had been flushed.  checksums => 0: none of data pages,
which log an image of each page that gets a hint bit.

=cut

sub init
{
	my ($self, %params) = @_;
	my $simulate = delete $params{simulate};
	my $checksums = delete $params{checksums};
	my $pool     = delete $params{pool};

	# the default since 18
	push @{ $params{extra} }, '--no-data-checksums'
	  if defined $checksums && !$checksums && $self->pg_version >= 18;
	$self->SUPER::init(%params);
	$self->{nvm_simulate}   = $simulate;
	$self->{nvm_generation} = 0;
	$self->{nvm_name}       = basename($0, '.pl') . '_' . $self->name;
	$self->{nvm_pool}       = $pool // pool_base() . '/' . $self->{nvm_name};
	push @pools, $self->{nvm_pool} unless defined $pool;
	$self->append_conf('postgresql.conf', <<CONF);
shared_preload_libraries = 'pg_nvm'
nvm.pool_directory = '$self->{nvm_pool}'
nvm.pool_max_size = '2GB'
log_statement = none
# in the data directory, so that servers that are killed leave nothing elsewhere
dynamic_shared_memory_type = mmap
CONF
	# a test that names no index method may be run with indexes that say btree
	$self->append_conf('postgresql.conf', "nvm.index_identity = $ENV{NVM_INDEX_IDENTITY}") if $ENV{NVM_INDEX_IDENTITY};
	$self->append_conf('postgresql.conf', <<CONF) if $simulate;
nvm.persist_method = simulate
fsync = on
wal_sync_method = open_datasync
wal_level = replica
CONF
	return;
}

=pod

=item NvmTest->start_new(NAME, conf => TEXT, sql => TEXT, extension => 0, env => {...}, ...)

A new server that runs.  init gets the other parameters, conf is appended to
postgresql.conf.  The extension is created in database postgres, and the same session
runs sql then; extension => 0: neither.  env: what this start has in its environment.

=cut

sub start_new
{
	my ($class, $name, %params) = @_;
	my $conf      = delete $params{conf};
	my $sql       = delete $params{sql} // '';
	my $extension = delete $params{extension} // 1;
	my $env       = delete $params{env} // {};
	my $node      = $class->new($name);

	$node->init(%params);
	$node->append_conf('postgresql.conf', $conf) if defined $conf;
	{
		local @ENV{ keys %$env } = values %$env;
		$node->start;
	}
	$node->safe_psql('postgres', "CREATE EXTENSION pg_nvm;\n$sql") if $extension;
	return $node;
}

=pod

=item $node->set_conf(NAME => VALUE, ...)

Settings of postgresql.conf, in place of earlier ones.

=cut

sub set_conf
{
	my ($self, %settings) = @_;
	foreach my $name (sort keys %settings)
	{
		# adjust_conf changes lines that there are, and adds none
		$self->append_conf('postgresql.conf', "$name = $settings{$name}")
		  unless slurp_file($self->data_dir . '/postgresql.conf') =~ /^$name\W/m;
		$self->adjust_conf('postgresql.conf', $name, $settings{$name}, 0);
	}
	return;
}

=pod

=item $node->set_failpoint(TEXT)

nvm.failpoint, of a server that runs at once: of each process that it starts from then on.
Those that are there learn of it when they look.

=cut

sub set_failpoint
{
	my ($self, $text) = @_;
	$self->set_conf('nvm.failpoint' => "'$text'");
	return unless defined $self->{_pid};

	# the postmaster says so before it reads the file, and starts nobody meanwhile
	my $before = -s $self->logfile;
	$self->reload;
	wait_until('the postmaster has read its settings', sub {
		_state($self->{_pid}) =~ /[ZX]/ || slurp_file($self->logfile, $before) =~ /received SIGHUP/;
	});
	return;
}

=pod

=item $node->start(...)

As in the parent, but without pg_ctl, which looks whether the server is ready only ten
times a second; remembers where the log ends, for log_since_start.

=cut

sub start
{
	my ($self, %params) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	my $pidfile = $self->data_dir . '/postmaster.pid';

	$self->{nvm_log_start} = -s $self->logfile // 0;
	die 'start of a server that is running' if defined $self->{_pid};
	print('### Starting node "' . $self->name . "\"\n");
	my $pid = $self->_fork_postmaster;
	while (time() < $end)
	{
		my @lines;
		if (open(my $fh, '<', $pidfile))
		{
			@lines = <$fh>;
			close $fh;
		}
		if (@lines >= 8 && $lines[0] == $pid && $lines[7] =~ /^(?:ready|standby)/)
		{
			$self->_update_pid(1);
			return 1;
		}
		last if _state($pid) =~ /[ZX]/;
		usleep(3000);
	}
	print "# the server did not start; logfile:\n" . slurp_file($self->logfile);
	# it may run all the same, and has to be stopped then
	$self->_update_pid(-1);
	die "bail-out: the server did not start\n" unless $params{fail_ok};
	return 0;
}

# As pg_ctl would: no child of ours, in a session of its own
sub _fork_postmaster
{
	my ($self) = @_;
	my ($log, $name, $data) = ($self->logfile, $self->name, $self->data_dir);
	local %ENV = $self->_get_env(PGAPPNAME => undef);
	local $?;

	pipe(my $reader, my $writer) or die "pipe: $!";
	my $child = fork() // die "fork: $!";
	if ($child == 0)
	{
		my $pid = fork() // POSIX::_exit(1);
		if ($pid == 0)
		{
			POSIX::setsid();
			umask(0077);
			open(STDIN, '<', '/dev/null') && open(STDOUT, '>>', $log) && open(STDERR, '>&', \*STDOUT)
			  && exec($self->installed_command('postgres'), '-D', $data, "--cluster-name=$name");
			POSIX::_exit(127);
		}
		syswrite($writer, $pid);
		POSIX::_exit(0);
	}
	close $writer;
	waitpid($child, 0);
	return scalar <$reader> // die 'fork failed';
}

=pod

=item $node->stop_and_start

A restart, in two steps, so that log_since_start has the new server's log alone.

=item $node->dies_at_start(FAILPOINT, NAME)

A test: all processes of a start die at the failpoint, which the next start does not have.

=cut

sub stop_and_start { my ($self) = @_; $self->stop; $self->start; return; }

sub dies_at_start
{
	my ($self, $place, $name) = @_;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	$self->set_failpoint("$place:crash");
	my $died = ok(!$self->start(fail_ok => 1), $name);
	$self->_forget_postmaster;
	$self->set_failpoint('');
	return $died;
}

sub log_since_start
{
	my ($self) = @_;
	return slurp_file($self->logfile, $self->{nvm_log_start} // 0);
}

# Processes of the server: the postmaster and its children.
sub server_pids
{
	my ($self) = @_;
	my $postmaster = $self->{_pid};
	my @pids;

	return () unless defined $postmaster;
	foreach my $stat (glob '/proc/[0-9]*/stat')
	{
		open(my $fh, '<', $stat) or next;
		my $line = <$fh> // '';
		close $fh;
		push @pids, $1
		  if $line =~ /^(\d+) \(.*\) \S (\d+) /s && $2 == $postmaster;
	}
	return ($postmaster, @pids);
}

=pod

=item $node->shared_kb

Memory that the server's processes share beside the segment of a fixed size: what
pg_nvm has in DRAM, and dynamic shared memory.

=cut

sub shared_kb
{
	my ($self) = @_;
	my $kb = 0;

	foreach my $fd (glob "/proc/$self->{_pid}/fd/*")
	{
		# what is reserved, not what is mapped
		$kb += (stat $fd)[12] / 2 if (readlink($fd) // '') =~ m,^/memfd:pg_nvm,;
	}
	die 'the server has no memory of pg_nvm' unless $kb > 0;
	$kb += (stat $_)[12] / 2 foreach glob $self->data_dir . '/pg_dynshmem/*';
	return $kb;
}

=pod

=item $node->crash

SIGKILL every process of the server at once: all are stopped first, so that
the postmaster starts no child and no child sees it die.

=cut

sub crash
{
	my ($self) = @_;
	my $postmaster = $self->{_pid};

	die 'crash of a server that is not running' unless defined $postmaster;
	kill('STOP', $postmaster);
	# which it heeds when it has ended the fork that it may be in the middle of
	_wait_state('TtZX', $postmaster);
	my @pids = $self->server_pids;
	kill('STOP', @pids);
	kill('KILL', @pids);
	_wait_gone(@pids);
	delete @stopped{@pids};
	$self->_forget_postmaster;
	return;
}

# The postmaster is dead.  Those that it has left may be about to die (a failpoint that
# crashes kills it first): the next one would meet them, attached to the segment and to
# the pool.  Where init does not reap, they remain as zombies, which the next postmaster
# would take for a running server.
sub _forget_postmaster
{
	my ($self) = @_;
	my $pidfile = $self->data_dir . '/postmaster.pid';
	my $data    = abs_path($self->data_dir);

	for (my $pass = 0; $pass < 2; $pass++)
	{
		# one that was found may have forked meanwhile
		my @rest = grep { (readlink("/proc/$_/cwd") // '') eq $data }
		  map { m,/proc/(\d+)$, } glob '/proc/[0-9]*';
		kill('KILL', @rest);
		_wait_gone(@rest);
		delete @stopped{@rest};
	}
	# nor the segment that tells that somebody is attached: key and id are the 7th line
	if (-e $pidfile && ((split /\n/, slurp_file($pidfile))[6] // '') =~ /^\s*\d+\s+(\d+)\s*$/)
	{
		system("ipcrm -m $1 2>/dev/null");
	}
	unlink($pidfile,
		$self->host . '/.s.PGSQL.' . $self->port . '.lock');
	$self->{_pid} = undef;
	return;
}

# Wait until the processes are gone; a zombie counts as gone.
sub _wait_gone
{
	_wait_state('ZX', @_);
	return;
}

# As /proc/PID/stat says; X: it is no more
sub _state
{
	open(my $fh, '<', "/proc/$_[0]/stat") or return 'X';
	return (<$fh> // '') =~ /^\d+ \(.*\) (\S) /s ? $1 : 'X';
}

# Wait until each process is in one of the states of /proc/PID/stat, or is no more.
sub _wait_state
{
	my ($states, @pids) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	foreach my $pid (@pids)
	{
		until (_state($pid) =~ /[$states]/)
		{
			die "process $pid is in none of the states $states: " . _state($pid) if time() >= $end;
			usleep(1000);
		}
	}
	return;
}

=pod

=item $node->wait_crashed

Wait until the server has ended by itself, as after a failpoint that crashes.

=cut

sub wait_crashed
{
	my ($self) = @_;
	my $postmaster = $self->{_pid};
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		open(my $fh, '<', "/proc/$postmaster/stat") or last;
		my $line = <$fh> // '';
		close $fh;
		last if $line =~ /^\d+ \(.*\) [ZX] /s;
		usleep(2000);
	}
	die 'the server did not end by itself' if time() >= $end;
	_wait_gone($postmaster);
	$self->_forget_postmaster;
	return;
}

=pod

=item $node->power_failure(seed => N, mode => MODE, torn => KIND, keep => 0|1)

Crash, if the server runs, then put in place of the pool an image that a power
failure could have left, chosen by seed; mode and torn are those of
nvm_crashimage.  keep: leave the old pool where it is and return its directory,
so that further images can be made of it with make_image.

=cut

sub power_failure
{
	my ($self, %params) = @_;
	my $seed = $params{seed} // 1;
	my $old  = $self->{nvm_pool};

	$self->crash if defined $self->{_pid};
	$self->make_image($old, $seed, map { $_ => $params{$_} }
		  grep { defined $params{$_} } qw(mode torn));
	return $old if $params{keep};
	rmtree($old);
	return;
}

=pod

=item $node->make_image(FROM, SEED, OPTION => VALUE...)

Make a crash image of the pool directory FROM, as a new pool directory, and set
the server to use it.

=cut

sub make_image
{
	my ($self, $from, $seed, %options) = @_;
	my $to = pool_base() . "/$self->{nvm_name}_" . ++$self->{nvm_generation};

	die 'not a server that simulates' unless $self->{nvm_simulate};
	my @options = map { ("--$_", $options{$_}) } sort keys %options;
	note("crash image of $self->{nvm_name}: seed $seed @options");
	PostgreSQL::Test::Utils::system_or_bail($crashimage_tool, $from, $to,
		'--seed', $seed, @options);
	PostgreSQL::Test::Utils::system_or_bail($patch_tool, "$to/pool", 'detach');
	push @pools, $to;
	rmtree($self->{nvm_pool})
	  if $self->{nvm_pool} ne $from;
	$self->{nvm_pool} = $to;
	$self->set_conf('nvm.pool_directory' => "'$to'");
	return $to;
}

=pod

=item $saved = $node->save_crash; $node->restore_crash($saved, seed => N, ...)

Keep the data directory and the pool as the crash left them, and put them back,
the pool as an image of the given seed: to try many images of one crash.
forget_crash removes what was kept.

=cut

sub save_crash
{
	my ($self) = @_;
	my $copy = $self->basedir . '/crashed_' . ++$self->{nvm_generation};

	$self->crash if defined $self->{_pid};
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', '--reflink=auto', $self->data_dir, $copy);
	return { data => $copy, pool => $self->{nvm_pool} };
}

sub restore_crash
{
	my ($self, $saved, %params) = @_;
	my $seed = delete $params{seed} // 1;

	$self->crash if defined $self->{_pid};
	rmtree($self->data_dir);
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', '--reflink=auto', $saved->{data}, $self->data_dir);
	$self->make_image($saved->{pool}, $seed, %params);
	return;
}

sub forget_crash
{
	my ($self, $saved) = @_;
	rmtree($saved->{data});
	rmtree($saved->{pool}) unless $saved->{pool} eq $self->{nvm_pool};
	return;
}

=pod

=item $node->stop_wal_writers

The processes that write and flush WAL on their own account stand still until the
crash that is to follow: what nobody has waited for is lost then.

=cut

sub stop_wal_writers
{
	my ($self) = @_;
	stop_process($_) foreach split /\n/, $self->safe_psql('postgres',
		"SELECT pid FROM pg_stat_activity WHERE backend_type IN ('walwriter', 'background writer', 'checkpointer')");
	return;
}

=pod

=item $node->times_opened; $node->wait_reopened(TIMES)

How often the server has opened for sessions since its start.  Wait until it has more
often than that, after the death of a process: a session that gets in proves nothing,
the postmaster may not have noticed yet.

=cut

sub times_opened
{
	my ($self) = @_;
	my @opened = $self->log_since_start =~ /database system is ready to accept connections/g;
	return scalar @opened;
}

sub wait_reopened
{
	my ($self, $times) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		return if $self->times_opened > $times && ($self->psql('postgres', 'SELECT 1'))[0] == 0;
		usleep(20_000);
	}
	die 'the server did not come back';
}

# Until a function says that it is so; what it is, is for the message.
sub wait_until
{
	my ($what, $is_so) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (!$is_so->())
	{
		die "$what: this does not come about" if time() > $end;
		usleep(5000);
	}
	return;
}

# As the parent's, also while the server lets nobody in: psql may then end before it has
# got the query, which is a broken pipe, and for the parent the end of the test.
sub poll_query_until
{
	my ($self, @query) = @_;
	return _unless_broken_pipe(sub { scalar $self->SUPER::poll_query_until(@query) });
}

# The same.  psql has read nothing of a query that fits into one write, so asking
# again asks once.
sub psql
{
	my ($self, $dbname, $sql, @params) = @_;
	my $list = wantarray;
	my $ask = sub { $list ? $self->SUPER::psql($dbname, $sql, @params) : scalar $self->SUPER::psql($dbname, $sql, @params) };
	my @answer = length($sql) > 4096 ? $ask->() : _unless_broken_pipe($ask);
	return $list ? @answer : $answer[0];
}

sub _unless_broken_pipe
{
	my ($ask) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (1)
	{
		my @answer = eval { $ask->(); };
		return wantarray ? @answer : $answer[0] unless $@;
		die $@ if $@ !~ /Broken pipe/ || time() >= $end;
		usleep(20_000);
	}
}

=pod

=item $node->check_clean(NAME)

A test: nvm.check() of every nvm table in every database, its nvm_btree indexes held
against the rows, and nvm.check_pool(), find nothing.

=cut

sub check_findings
{
	my ($self) = @_;
	my @findings;

	foreach my $db (split /\n/,
		$self->safe_psql('postgres', 'SELECT datname FROM pg_database WHERE datallowconn'))
	{
		next
		  unless $self->safe_psql($db,
			"SELECT count(*) FROM pg_extension WHERE extname = 'pg_nvm'") eq '1';
		my $found = $self->safe_psql($db, <<SQL);
SELECT c.oid::regclass, f FROM pg_class c JOIN pg_am a ON a.oid = c.relam,
	LATERAL (SELECT f::text FROM nvm.check(c.oid::regclass, heapallindexed => true) f) AS g(f)
WHERE a.amname IN ('nvm', 'nvm_vlog', 'nvm_cmdlog', 'nvm_dram') AND c.relkind IN ('r', 'm')
	AND (c.relpersistence <> 't' OR pg_my_temp_schema() = c.relnamespace);
SQL
		push @findings, map { "$db: $_" } split /\n/, $found;
		push @findings, map { "pool: $_" }
		  split /\n/, $self->safe_psql($db, 'SELECT f::text FROM nvm.check_pool() f');
	}
	return @findings;
}

sub check_clean
{
	my ($self, $name) = @_;
	my @findings = $self->check_findings;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join("\n", @findings), '', ($name // 'the pool') . ': checks find nothing');
	return;
}

=pod

=item $node->fails_with(SQL, REGEXP, NAME)

A test: the statement fails, and what psql reports (message, detail and hint)
matches.  The session is of database postgres.

=cut

sub fails_with
{
	my ($self, $sql, $re, $name) = @_;
	my ($ret, $out, $err) = $self->psql('postgres', $sql, on_error_stop => 1);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return fail("$name: succeeded: $out") if $ret == 0;
	like($err, $re, $name);
	return;
}

=pod

=item $session = $node->session(SQL...)

A psql session that goes on after errors, and has run the statements.
$session->sql(SQL) runs more and returns what they print; $session->send(SQL)
does not wait for the answer; $session->pid is its backend;
$session->hold(FAILPOINT, SQL) sends SQL and waits until its backend sleeps at
the failpoint, where only the end of the server ends it; $session->stop_at(
FAILPOINT, SQL) waits until it is stopped there, and $session->go_on continues
it; $session->drop ends psql, whatever became of the server.
NvmTest::stop_process(PID) stops any process until NvmTest::continue_process(PID),
or the end of the test; NvmTest::wait_stopped(PID) waits for one that a failpoint stops.

=cut

sub session
{
	my ($self, @sql) = @_;
	return NvmTest::Session->new($self, @sql);
}

=pod

=item $node->start_load(clients => N, sql => sub {...}, transactions => M)

Start N clients that run transactions one after another and log, outside the
server, each one that was acknowledged.  sql is called with (client, n) and
returns the statements of transaction n of that client, COMMIT included.
Returns an NvmTest::Load.

=cut

sub start_load
{
	my ($self, %params) = @_;
	return NvmTest::Load->new($self, %params);
}

sub stop_process
{
	my ($pid) = @_;
	$stopped{$pid} = 1;
	kill('STOP', $pid);
	_wait_stopped($pid);
	return;
}

# A process that a failpoint stops says so just before, and must not be told to go
# on until it has.
sub wait_stopped
{
	my ($pid) = @_;
	$stopped{$pid} = 1;
	_wait_stopped($pid);
	return;
}

sub continue_process
{
	my ($pid) = @_;
	kill('CONT', $pid);
	delete $stopped{$pid};
	return;
}

sub _wait_stopped
{
	my ($pid) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		open(my $fh, '<', "/proc/$pid/stat") or die "process $pid has ended";
		return if (<$fh> // '') =~ /^\d+ \(.*\) T /s;
		close $fh;
		usleep(1000);
	}
	die "process $pid does not stop";
}

END
{
	my $status = $?;
	kill('CONT', keys %stopped) if %stopped;
	rmtree($_) foreach @pools;
	$? = $status;
}

package NvmTest::Session;

use strict;
use warnings;

use Time::HiRes qw(usleep);

sub new
{
	my ($class, $node, @sql) = @_;
	# for one query, not for the session, which may be held for minutes
	my $timeout = $PostgreSQL::Test::Utils::timeout_default * (NvmTest::is_long() ? 5 : 1);
	my $psql = $node->background_psql('postgres', on_error_stop => 0, timeout => $timeout);
	my $self = bless { node => $node, psql => $psql }, $class;

	$psql->set_query_timer_restart;

	$self->{pid} = $psql->query('SELECT pg_backend_pid()');
	$self->sql($_) foreach @sql;
	return $self;
}

sub pid { return $_[0]->{pid}; }
sub sql { return scalar $_[0]->{psql}->query($_[1]); }

sub send
{
	my ($self, $sql) = @_;
	# for wait_held: the same place may have been reached before, and pids come again
	$self->{log_from} = -s $self->{node}->logfile;
	$self->{psql}->{timeout}->start;
	$self->{psql}->{stdin} .= "$sql\n;\n";
	$self->{psql}->{run}->pump_nb;
	return;
}

sub arm
{
	my ($self, @failpoints) = @_;
	$self->sql("SET nvm.failpoint = '" . join(',', map { "$_:sleep=3600000" } @failpoints) . "'");
	return;
}

sub wait_held
{
	my ($self, $failpoint) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		return
		  if PostgreSQL::Test::Utils::slurp_file($self->{node}->logfile, $self->{log_from}) =~
		  /failpoint $failpoint hit, pid $self->{pid}$/m;
		$self->{psql}->{run}->pump_nb;
		usleep(2000);
	}
	die "session $self->{pid} did not come to $failpoint";
}

sub hold
{
	my ($self, $failpoint, $sql) = @_;
	$self->arm($failpoint);
	$self->send($sql);
	$self->wait_held($failpoint);
	return;
}

sub stop_at
{
	my ($self, $failpoint, $sql) = @_;
	$self->sql("SET nvm.failpoint = '$failpoint:stop:1'");
	$self->send($sql);
	$self->wait_held($failpoint);
	NvmTest::wait_stopped($self->{pid});
	return;
}

sub go_on
{
	my ($self) = @_;
	NvmTest::continue_process($self->{pid});
	return;
}

sub drop
{
	my ($self) = @_;
	my $run = $self->{psql}->{run};
	eval { $run->kill_kill(grace => 0); };
	return;
}

package NvmTest::Load;

use strict;
use warnings;

use Time::HiRes qw(usleep);
use Test::More;

sub new
{
	my ($class, $node, %params) = @_;
	my $self = bless { node => $node, clients => [] }, $class;
	my $dir  = PostgreSQL::Test::Utils::tempdir();
	my $m    = $params{transactions} // 2000;
	my $db   = $params{database}     // 'postgres';

	foreach my $client (1 .. $params{clients} // 4)
	{
		open(my $script, '>', "$dir/$client.sql") or die "$dir/$client.sql: $!";
		foreach my $n (1 .. $m)
		{
			# a line of the log is written only after COMMIT's reply
			print $script $params{sql}->($client, $n), "\n\\echo ack $n\n";
		}
		close $script;
		open(my $log, '>', "$dir/$client.log") or die "$dir/$client.log: $!";
		close $log;
		local %ENV = $node->_get_env();
		my $pid = fork();
		die "fork: $!" unless defined $pid;
		if ($pid == 0)
		{
			open(STDIN,  '<',  '/dev/null');
			open(STDOUT, '>>', "$dir/$client.log");
			open(STDERR, '>>', "$dir/$client.err");
			# line by line, so that wait_acknowledged sees them
			exec('stdbuf', '-oL', 'psql', '-XqAt', '-v', 'ON_ERROR_STOP=1',
				'-d', $node->connstr($db), '-f', "$dir/$client.sql")
			  or POSIX::_exit(1);
		}
		push @{ $self->{clients} },
		  { id => $client, pid => $pid, log => "$dir/$client.log", err => "$dir/$client.err" };
	}
	return $self;
}

# Numbers that were acknowledged: client id => last n
sub acknowledged
{
	my ($self) = @_;
	my %last;

	foreach my $c (@{ $self->{clients} })
	{
		my $log = PostgreSQL::Test::Utils::slurp_file($c->{log});
		my @acks = $log =~ /^ack (\d+)$/mg;
		$last{ $c->{id} } = @acks ? $acks[-1] : 0;
	}
	return %last;
}

# Wait until all clients together have had n acknowledgements.
sub wait_acknowledged
{
	my ($self, $n) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		my %last = $self->acknowledged;
		my $sum  = 0;
		$sum += $_ foreach values %last;
		return 1 if $sum >= $n;
		usleep(5000);
	}
	die "the clients had no $n acknowledgements in time:\n" . $self->errors;
}

# What the clients complained of.
sub errors
{
	my ($self) = @_;
	return join '', map { -e $_->{err} ? PostgreSQL::Test::Utils::slurp_file($_->{err}) : '' }
	  @{ $self->{clients} };
}

# Wait until all clients have ended: by themselves, or because the server died.
sub finish
{
	my ($self) = @_;
	foreach my $c (@{ $self->{clients} })
	{
		waitpid($c->{pid}, 0) if defined $c->{pid};
		$c->{pid} = undef;
	}
	return $self->acknowledged;
}

# A test: query returns rows (client, n) of the work that is there.  All that
# was acknowledged must be, and of each client at most the one transaction
# more that was under way, and that one only whole: a client's rows count as
# often as the query returns them, `times` for each transaction.
sub check
{
	my ($self, $db, $query, %params) = @_;
	my $times = $params{times} // 1;
	my $name  = $params{name}  // 'acknowledged work';
	my %last  = $self->finish;
	my (%seen, @problems);

	foreach my $row (split /\n/, $self->{node}->safe_psql($db, $query))
	{
		my ($client, $n) = split /\|/, $row;
		$seen{$client}{$n}++;
	}
	foreach my $client (sort { $a <=> $b } keys %last)
	{
		my $rows = $seen{$client} // {};
		foreach my $n (1 .. $last{$client})
		{
			push @problems, "client $client: acknowledged transaction $n is lost"
			  unless $rows->{$n};
		}
		foreach my $n (sort { $a <=> $b } keys %$rows)
		{
			push @problems, "client $client: transaction $n was never finished"
			  if $n > $last{$client} + 1;
			push @problems, "client $client: transaction $n is there $rows->{$n} times, not $times"
			  if $rows->{$n} != $times;
		}
	}
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	splice(@problems, 20) if @problems > 20;
	is(join("\n", @problems), '', "$name is intact");
	return;
}

sub DESTROY
{
	my ($self) = @_;
	kill('KILL', grep { defined } map { $_->{pid} } @{ $self->{clients} });
	return;
}

1;

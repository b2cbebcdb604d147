# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmSoak - one cluster that lives through everything, for a long time

=head1 SYNOPSIS

  use NvmSoak;

  my $soak = NvmSoak->new(out => DIRECTORY);    # method => 'nvm_vlog': see NvmSoakLog.pm;
                                                  # 'nvm_cmdlog': NvmSoakCommands.pm as well
  $soak->start(simulate => 1);
  $soak->crash_round('all killed');
  $soak->episode('drop');
  $soak->settle;
  is(join("\n", $soak->problems), '', 'the soak');

=head1 DESCRIPTION

Clients of soak/clients.py work on the tables of soak/schema.sql, and write down what
was acknowledged; this module lets the server crash under them, starts it again, has
the clients' record held against the database, and runs the checks by turns.  What
is measured meanwhile is NvmSoakMeasure's.

=cut

package NvmSoak;

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use IPC::Open2;
use Time::HiRes qw(time usleep);

use NvmCrash;
use NvmSoakCommands;
use NvmSoakLog;
use NvmSoakMeasure;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $here = dirname(abs_path(__FILE__)) . '/soak';

# How a crash comes about, and how often.  What leaves no process of the server is,
# where power is simulated, mostly a loss of power.
our %kinds = (
	'backend killed'        => 4,
	'worker of ours killed' => 2,
	'other process killed'  => 1,
	'all killed'            => 4,
	'immediate stop'        => 2,
	'fast stop'             => 1,
	'failpoint crash'       => 5,
	'failpoint panic'       => 3,
	'sessions terminated'   => 1);

# at starts, and of the collector and rebuilds that follow
my $start_names = qr/^(?:recovery|resolve|redo-replay|pool-redo-(?:replayed|forgotten)|pool-open|gap-|old-marks|index-|xid-promise)/;
# the same of nvm_vlog tables
my $start_log_names = qr/^(?:log-(?:generation|file)-|rebuild-|resolve-log)/;
# not in the course of a soak: nvm.reset_pool, a new pool, runs without the library, msync
my $never_names = qr/^(?:reset-|pool-create|bypass-|orphan-|msync-)/;

sub new
{
	my ($class, %params) = @_;
	my $node = NvmTest->new('soak');
	my $self = bless {
		node     => $node,
		method   => $params{method} // 'nvm',
		out      => $params{out},
		go_on    => $params{go_on},
		problems => [],
		counts   => {},
		crashes  => {},
		turn     => 0,
		verified => 0,
		hit      => {},
	}, $class;
	my %names = NvmCrash::failpoint_names();

	$self->{log} = NvmSoakLog->new($self) if $self->{method} ne 'nvm';
	$self->{commands} = NvmSoakCommands->new($self) if $self->{method} eq 'nvm_cmdlog';
	$self->{start_names} = [ sort grep { /$start_names/ || ($self->{log} && /$start_log_names/) } keys %names ];
	$self->{names} = [ sort grep { !/$never_names/ && !/$start_names/ } keys %names ];
	$node->init;
	$node->append_conf('postgresql.conf', <<CONF);
log_line_prefix = '%m [%p] %b %e %q%a '
restart_after_crash = on
max_connections = 40
max_prepared_transactions = 40
max_worker_processes = 16
shared_buffers = 32MB
max_wal_size = 96MB
checkpoint_timeout = 30s
deadlock_timeout = 200ms
autovacuum_naptime = 1s
autovacuum_max_workers = 3
autovacuum_vacuum_threshold = 20
autovacuum_vacuum_scale_factor = 0.05
autovacuum_vacuum_insert_threshold = 50
autovacuum_vacuum_cost_delay = 0
autovacuum_analyze_threshold = 20
nvm.pool_max_size = '$params{pool_mb}MB'
nvm.failpoint = ''
# its memory is not ours
jit = off
CONF
	$node->append_conf('postgresql.conf', NvmSoakLog::conf()) if $self->{log};
	# aborts would fill the data directory
	system("prlimit --core=0 --pid $$ 2>/dev/null");
	$self->{measure} = NvmSoakMeasure->new($self);
	return $self;
}

sub node     { return $_[0]->{node}; }
sub counts   { return $_[0]->{counts}; }
sub problems { return @{ $_[0]->{problems} }; }

# Something is wrong.  What comes after it is its consequence, perhaps.
sub problem
{
	my ($self, @problems) = @_;
	return unless @problems;
	push @{ $self->{problems} }, map { "$self->{what}: $_" } @problems;
	diag(map { "$self->{what}: $_\n" } @problems[ 0 .. ($#problems < 30 ? $#problems : 30) ]);
	die "the soak found something\n" unless $self->{go_on};
	return;
}

sub say
{
	my ($self, $text) = @_;
	my @now = localtime;
	# what goes to STDERR is in the test's log
	if ($self->{verbose}) { diag(sprintf('[%02d:%02d:%02d] ', @now[ 2, 1, 0 ]) . $text); }
	else                  { note($text); }
	return;
}

sub count
{
	my ($self, $what, $n) = @_;
	$self->{counts}{$what} += $n // 1;
	return;
}

# A number below n that depends on the seed, and on how many were drawn before.
sub random
{
	my ($self, $n) = @_;
	return NvmCrash::random('soak/' . ++$self->{drawn}, $n);
}

sub choose
{
	my ($self, @list) = @_;
	return $list[ $self->random(scalar @list) ];
}

# ------------------------------------------------------------------ the clients

sub start_clients
{
	my ($self, %params) = @_;
	%params = ($self->{commands} ? (clients => 2, ddl => 1) : (clients => 5, ddl => 2), %params);
	my ($python) = grep { system("$_ -c 'import psycopg2' 2>/dev/null") == 0 } qw(python3 /usr/bin/python3);
	my $logs = "$self->{out}/clients";

	die "python3-psycopg2 is not installed\n" unless defined $python;
	mkdir $logs;
	local $ENV{PYTHONDONTWRITEBYTECODE} = 1;
	$self->{clients_pid} = open2($self->{from}, $self->{to}, $python, "$here/clients.py",
		'--conninfo', $self->node->connstr('postgres'), '--logs', $logs,
		'--seed', $NvmCrash::seed, '--method', $self->{method}, map { ("--$_", $params{$_}) } grep { defined $params{$_} } qw(clients ddl callers));
	return;
}

# Give the clients a command; returns what follows "ok".
sub tell
{
	my ($self, $command) = @_;
	my (@problems, $answer);
	my $began = time();

	print { $self->{to} } "$command\n";
	$self->{to}->flush;
	eval {
		local $SIG{ALRM} = sub { die "no answer to $command\n" };
		alarm(200);
		while (my $line = readline($self->{from}))
		{
			if    ($line =~ /^problem (.*)/) { push @problems, $1; }
			elsif ($line =~ /^ok ?(.*)/)     { $answer = $1; last; }
		}
		alarm(0);
		1;
	} or push @problems, "test: clients: $@";
	push @problems, "test: the clients have gone at $command" unless defined $answer || @problems;
	$self->problem(@problems);
	$self->{spent}{$command =~ /^(\w+)/ ? $1 : ''} += time() - $began;
	return $answer // '';
}

sub stats
{
	my ($self) = @_;
	return map { split /=/ } split / /, $self->tell('stats');
}

# ------------------------------------------------------------------ the server

# The server with power simulated, or not.  It must be down.
sub set_mode
{
	my ($self, %mode) = @_;
	my $simulate = $mode{simulate} // 0;
	my $node = $self->node;

	$node->{nvm_simulate} = $simulate;
	$self->{mode} = $simulate ? 'simulate' : 'pmem';
	$node->set_conf(
		'nvm.persist_method'  => $simulate ? 'simulate' : 'auto',
		'nvm.simulate_settle' => $simulate && $mode{harsh} ? 'off' : 'on',
		'fsync'               => $simulate ? 'on' : 'off',
		'wal_sync_method'     => $simulate ? 'open_datasync' : 'fdatasync',
		'wal_level'           => $simulate || $mode{replica} ? 'replica' : 'minimal');
	return;
}

# For the first time.
sub start
{
	my ($self, %params) = @_;
	my $node = $self->node;
	my ($verify_index) = NvmCrash::slurp_schema() =~ /^(CREATE FUNCTION verify_index.*?^END \$\$;\n)/ms;

	$self->{what} = 'the first start';
	$self->set_mode(%params);
	$self->start_server;
	# most tables of the other clients
	my $method = $self->{log} ? 'nvm_vlog' : 'nvm';
	my $schema = slurp_file("$here/schema.sql") =~ s/(default_table_access_method = )nvm;/$1$method;/r;
	$node->safe_psql('postgres', $verify_index . $schema . 'INSERT INTO client SELECT generate_series(1, 40);');
	# so that transactions write both
	$node->safe_psql('postgres', "ALTER TABLE $_ SET ACCESS METHOD nvm") foreach $self->{log} ? qw(parent part_2) : ();
	$self->{commands}->load if $self->{commands};
	$node->safe_psql('postgres', 'CREATE DATABASE soak_template');
	$node->safe_psql('soak_template', <<'SQL');
CREATE EXTENSION pg_nvm;
CREATE TABLE t (a int PRIMARY KEY, b text) USING nvm;
INSERT INTO t SELECT i, repeat('t', i) FROM generate_series(1, 500) i;
SQL
	$node->safe_psql('soak_template', "ALTER TABLE t SET ACCESS METHOD $self->{method}");
	$self->start_clients(%params);
	$self->tell('begin') if $self->{commands};
	$self->{began} = time();
	$self->{measure}->begin;
	return;
}

# Start the server, with failpoints that may kill it again, if there are any.
sub start_server
{
	my ($self, @failpoints) = @_;
	my $node = $self->node;
	my $list = join ',', @failpoints;

	for (;;)
	{
		$node->set_conf('nvm.failpoint' => "'$list'");
		if ($self->_pg_ctl_start)
		{
			$self->count('restarts');
			last if $list eq '';
			# of the workers that begin with it, too
			usleep(300_000);
			$self->_set_failpoints('');
			last if $self->_failpoints_gone;
		}
		if ($list eq '')
		{
			$self->problem('the server does not start: ' . substr($node->log_since_start, -3000));
			die "no server\n";
		}
		$self->_note_hits;
		$self->_crashed('in recovery');
		$self->_bury;
		$list = '';
	}
	$self->{up_since} = time();
	return;
}

sub _pg_ctl_start
{
	my ($self) = @_;
	my $node = $self->node;
	my $log = $node->logfile;

	$node->{nvm_log_start} = $self->{log_seen} = -s $log // 0;
	local %ENV = ($node->_get_env(PGAPPNAME => undef), $self->{log} ? $self->{log}->environment : ());
	my $status = system("pg_ctl -w -D '" . $node->data_dir . "' -l '$log' -o --cluster-name=soak start >/dev/null 2>&1");
	my $pidfile = $node->data_dir . '/postmaster.pid';
	$node->{_pid} = -e $pidfile && slurp_file($pidfile) =~ /^(\d+)/ ? $1 : undef;
	return $status == 0;
}

# All is dead, or dying: nothing may be left of it.
sub _bury
{
	my ($self) = @_;
	my $node = $self->node;
	my $data = $node->data_dir;

	if (defined $node->{_pid})
	{
		$node->wait_crashed;
		return;
	}
	my @rest = grep { (readlink("/proc/$_/cwd") // '') eq $data } map { m,/proc/(\d+)$, } glob '/proc/[0-9]*';
	kill('KILL', @rest);
	NvmTest::_wait_gone(@rest);
	$node->_forget_postmaster;
	return;
}

# Is the postmaster dead, or does it die within that time?
sub _has_died
{
	my ($self, $seconds) = @_;
	my $end = time() + $seconds;

	for (;;)
	{
		my $pid = $self->node->{_pid} // return 1;
		open(my $fh, '<', "/proc/$pid/stat") or return 1;
		return 1 if (<$fh> // '') =~ /^\d+ \(.*\) [ZX] /s;
		close $fh;
		return 0 if time() > $end;
		usleep(5000);
	}
}

sub _set_failpoints
{
	my ($self, $list) = @_;
	$self->node->set_conf('nvm.failpoint' => "'$list'");
	kill('HUP', $self->node->{_pid}) if defined $self->node->{_pid};
	return;
}

# Have sessions that begin now none, and have workers gone that began before, and may have
# them still?  False if the server has died of the old ones.
sub _failpoints_gone
{
	my ($self) = @_;
	until ($self->_has_died(0))
	{
		return 1 if ($self->ask(<<'SQL') // 'dead') eq '|0';
SELECT current_setting('nvm.failpoint'), count(*) FROM pg_stat_activity
WHERE backend_type ~ '^nvm index rebuild worker' AND backend_start < pg_conf_load_time()
SQL
		usleep(20_000);
	}
	return 0;
}

# Which failpoints were reached is in the log.
sub _note_hits
{
	my ($self) = @_;
	my $log = $self->node->log_since_start;
	$self->{hit}{$1}++ while $log =~ /failpoint "?([a-z0-9-]+)"? hit/g;
	$self->{hit}{$1}++ while $log =~ /PANIC: +\S* *failpoint "?([a-z0-9-]+)"?/g;
	return;
}

sub _crashed
{
	my ($self, $kind) = @_;
	$self->{crashes}{$kind}++;
	$self->count('crashes');
	return;
}

# Output of a query, or undef if there is no server any more.
sub ask
{
	my ($self, $sql) = @_;
	my ($ret, $out) = eval { $self->node->psql('postgres', $sql) };
	if (my $e = $@)
	{
		# psql has found no server and not read what to ask
		die $e unless $e =~ /Broken pipe/;
		return;
	}
	return $ret == 0 ? $out : undef;
}

# Wait, and measure now and then.
sub nap
{
	my ($self, $seconds) = @_;
	my $end = time() + $seconds;

	while ((my $left = $end - time()) > 0)
	{
		$self->{measure}->sample if $self->{measure}->due;
		usleep(1_000_000 * ($left < 0.1 ? $left : 0.1));
	}
	return;
}

# ------------------------------------------------------------------ crashes

sub draw_kind
{
	my ($self) = @_;
	return $self->choose(map { ($_) x $kinds{$_} } sort keys %kinds);
}

# Processes of a kind: of the pids that a query returns one is killed.
sub _kill_one
{
	my ($self, $where) = @_;
	my $pids = $self->ask("SELECT pid FROM pg_stat_activity WHERE $where") // '';
	my @pids = split /\n/, $pids;

	return 0 unless @pids;
	my $log = $self->node->logfile;
	my $from = -s $log;
	kill('KILL', $self->choose(@pids)) or return 0;
	# it may have been at its end
	foreach (1 .. 200)
	{
		return 1 if slurp_file($log, $from) =~ /terminated by signal 9/;
		usleep(10_000);
	}
	return 0;
}

my %victims = (
	'backend killed'        => q{backend_type = 'client backend' AND application_name LIKE 'soak%'},
	'worker of ours killed' => q{backend_type LIKE 'nvm%'},
	'other process killed'  => q{backend_type IN ('checkpointer', 'walwriter', 'autovacuum worker', 'autovacuum launcher', 'background writer', 'parallel worker')});

# The clients are at work: the server crashes, comes back, and is verified.
sub crash_round
{
	my ($self, $kind) = @_;
	my $node   = $self->node;
	my $opened = $node->times_opened;
	my $down   = 1;
	my $began  = time();

	$kind //= $self->draw_kind;
	$self->{what} = "$kind, crash " . (1 + ($self->{counts}{crashes} // 0)) . " ($self->{mode})";
	if ($kind =~ /^failpoint (crash|panic)/)
	{
		$down = $self->_crash_at_failpoint($1);
	}
	elsif ($victims{$kind})
	{
		$down = 0;
		if (!$self->_kill_one($victims{$kind}) && !$self->_kill_one($victims{'backend killed'}))
		{
			$node->crash;
			$down = 1;
		}
	}
	elsif ($kind eq 'sessions terminated')
	{
		$self->ask(q{SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'soak%'});
		$self->tell('pause');
		$self->_crashed($kind);
		return $self->verify;
	}
	elsif ($kind =~ /^(immediate|fast) stop/)
	{
		my $fast = $1 eq 'fast';
		# its messages are not ours
		system("pg_ctl -D '" . $node->data_dir . "' -m $1 -t 120 stop >/dev/null 2>&1") == 0
		  or $self->problem("no $1 stop");
		$node->{_pid} = undef;
		$self->{clean} = $fast;
	}
	else
	{
		$node->crash;
	}
	$self->{log}->mended if $self->{log};
	$self->tell('pause');
	$self->_note_hits;
	$self->_look_at_log;
	$down = 1 if !$down && !$self->_wait_reopened($opened);
	$self->_crashed($kind);
	if ($down)
	{
		$self->_bury unless $self->{clean};
		if ($self->{mode} eq 'simulate' && !$self->{clean} && $self->random(4) > 0)
		{
			my $mode = $self->random(5);
			$node->power_failure(seed => 1 + $self->random(1 << 30), $mode == 0 ? (mode => 'durable') : ());
			$self->_crashed('of these with loss of power');
		}
		$self->start_server(!$self->{clean} && $self->random(3) == 0
			? (map { "$_:crash:" . (1 + $self->random(3)) } map { $self->choose(@{ $self->{start_names} }) } 1 .. 4)
			: ());
		# prepared transactions are in doubt until the first access
		my $prepared = $self->{clean} ? $node->safe_psql('postgres', 'SELECT count(*) FROM pg_prepared_xacts') : 0;
		$self->problem("after a clean stop, $prepared prepared: $1")
		  if $self->{clean} && $node->log_since_start =~ /(recovery found (\d+) losers, (\d+) in doubt.*)/
		  && ($2 > 0 || $3 > $prepared);
		$self->{clean} = 0;
	}
	$self->{up_since} = time();
	$self->{spent}{crash} += time() - $began;
	return $self->verify;
}

# Crash or panic at the first of some failpoints that is reached.  True if nothing is
# left of the server.
sub _crash_at_failpoint
{
	my ($self, $action) = @_;
	my $node = $self->node;
	my @names = map { $self->choose(@{ $self->{names} }) } 1 .. 5;
	my $end = time() + 3;
	my $from = -s $node->logfile;

	$self->_set_failpoints(join ',', map { "$_:$action:" . (1 + $self->random($self->choose(2, 20, 200))) } @names);
	while (time() < $end)
	{
		usleep(20_000);
		if ($self->_has_died(0))
		{
			return 1;
		}
		if ($action eq 'panic' && slurp_file($node->logfile, $from) =~ /PANIC: /)
		{
			$self->_set_failpoints('');
			return !$self->_failpoints_gone;
		}
	}
	$self->{crashes}{'of these at none of five failpoints'}++;
	$node->crash;
	return 1;
}

# The postmaster has begun anew: true, or it is gone.
sub _wait_reopened
{
	my ($self, $opened) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;

	while (time() < $end)
	{
		return 0 if $self->_has_died(0);
		return 1 if $self->node->times_opened > $opened && defined $self->ask('SELECT 1');
		usleep(20_000);
	}
	$self->problem('the server does not come back: ' . substr($self->node->log_since_start, -2000));
	return 0;
}

# ------------------------------------------------------------------ verification

# What must not be in the log, whatever we do
sub _look_at_log
{
	my ($self) = @_;
	my $log = $self->node->log_since_start;
	my @problems;

	while ($log =~ /^(.*(?:TRAP:|PANIC: |terminated by signal|WARNING: |FATAL: | XX\d\d\d ).*)$/mg)
	{
		my $line = $1;
		next if $self->{lines_seen}{$line}++;
		next if $line =~ / (?:STATEMENT|DETAIL|HINT|CONTEXT|LOCATION|QUERY):  /;
		next if $self->{log} && $self->{log}->expects($line);
		# ours
		next if $line =~ /PANIC: .*failpoint|terminated by signal (?:9|6)\b/;
		next if $line =~ /FATAL: .*(?:the database system is|terminating (?:connection|background worker|autovacuum|logical)|terminating .* due to|connection to client lost|could not (?:send|receive) data)/;
		next if $line =~ /WARNING: .*terminating connection because of crash/;
		# that is what PostgreSQL says, too, where a fast stop meets somebody who is connecting
		next if $line =~ /FATAL: .*canceling authentication due to timeout/ &&
		  $log =~ /received fast shutdown request.*\Q$line\E/s;
		# of REINDEX CONCURRENTLY that a crash has ended
		next if $line =~ /WARNING: .*(?:cannot reindex|skipping reindex of) invalid index/;
		# with autovacuum_naptime of a second that is after one second
		next if $line =~ /WARNING: .*autovacuum worker took too long to start; canceled/;
		# PostgreSQL's own: DROP DATABASE comes between the launcher's choice and the worker's start
		next if $line =~ /autovacuum worker .*FATAL: .*database \d+ does not exist/;
		# on tmpfs; the header was being written when the power failed
		next if $line =~ /does not outlive a reboot|one copy of the header of NVM pool .* is rewritten/;
		# DROP DATABASE is redone
		next if $line =~ /(?:could not open directory|some useless files may be left behind in old database directory) "(?:base|pg_tblspc)/;
		# a checkpoint writes the files of prepared transactions before pg_control says that it was
		# there; killed between, the next recovery removes them, and has the transactions from
		# the WAL, for which the record is held against the database
		next if $line =~ /WARNING: .*removing future two-phase state file for transaction/;
		# the GRANT before it was refused, as the log's device was full
		next if $line =~ /WARNING: .*role "soak_role" (?:is not a member of role|has not been granted membership in role) "pg_monitor"/;
		# PostgreSQL's own, between DDL of two sessions
		next if $line =~ /XX000 .*(?:tuple concurrently|could not open relation with OID|cache lookup failed for)/;
		push @problems, "the server's log has: $line";
	}
	$self->problem(@problems);
	return;
}

# The clients come to rest: is all that was acknowledged there, and nothing by halves?
# One of the checks, by turns.  Then they go on.
sub verify
{
	my ($self, %params) = @_;
	my $began = time();

	$self->tell('pause');
	$self->tell('wait');
	$self->tell('verify');
	my @wrong = split /\n/, $self->node->safe_psql('postgres', 'SELECT verify_traces()');
	push @wrong, $self->{commands}->verify if $self->{commands};
	$self->{commands}->note_replay if $self->{commands};
	$self->problem(@wrong, $self->_what_checks_say) if @wrong;
	$self->_look_at_log;
	$self->count('verifications');
	my $turn = $self->{turn}++ % 4;
	if ($turn == 0)
	{
		$self->problem(map { "pool: $_" } split /\n/,
			$self->node->safe_psql('postgres', 'SELECT verify_owners(); SELECT f::text FROM nvm.check_pool() f'));
		$self->count('checks');
	}
	elsif ($turn < 3)
	{
		my $tables = q{SELECT c.oid::regclass FROM pg_class c JOIN pg_am a ON a.oid = c.relam WHERE a.amname IN ('nvm', 'nvm_vlog', 'nvm_cmdlog') AND c.relkind IN ('r', 'm') ORDER BY relname};
		my $table = $self->choose(split /\n/, $self->node->safe_psql('postgres', $tables));
		$self->problem(map { "$table: $_" } split /\n/,
			$self->node->safe_psql('postgres', $turn == 1
				? "SELECT f::text FROM nvm.check('$table', heapallindexed => true) f"
				: "SELECT * FROM look_by_index('$table')"));
		$self->count('checks');
	}
	$self->{spent}{'all of verify'} += time() - $began;
	$self->tell('go') unless $params{rest};
	return;
}

# All checks, for who has to find out why something is wrong.
sub _what_checks_say
{
	my ($self) = @_;
	my ($ret, $out, $err) = $self->node->psql('postgres', <<'SQL');
SELECT 'check: ' || f FROM nvm.check_pool() f;
SELECT 'check: ' || c.oid::regclass || ': ' || f FROM pg_class c JOIN pg_am a ON a.oid = c.relam, nvm.check(c.oid, heapallindexed => true) f
	WHERE a.amname IN ('nvm', 'nvm_vlog', 'nvm_cmdlog') AND c.relkind IN ('r', 'm') AND c.relpersistence <> 't';
SELECT 'by index: ' || f FROM pg_class c JOIN pg_am a ON a.oid = c.relam, look_by_index(c.oid) f
	WHERE a.amname IN ('nvm', 'nvm_vlog', 'nvm_cmdlog') AND c.relkind = 'r' AND c.relpersistence <> 't';
SELECT 'table ' || c.oid::regclass || ': ' || amname || ', file ' || relfilenode FROM pg_class c JOIN pg_am a ON a.oid = c.relam
	WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace ORDER BY 1;
SQL
	return (split(/\n/, $out), $ret == 0 ? () : "check: $err");
}

# Fill the pool and free it; the clients are at work.  crash: in the midst of it.
sub episode
{
	my ($self, $how, %params) = @_;
	my $end = time() + 120;

	$self->{what} = "no room, then $how";
	$self->{measure}{episode} = 1;
	$self->tell("episode $how");
	if ($params{crash})
	{
		$self->nap($params{crash});
		$self->crash_round;
	}
	while ($self->tell('over') ne 'over')
	{
		if (time() > $end)
		{
			$self->problem("the episode does not end");
			last;
		}
		$self->nap(0.2);
	}
	$self->{measure}{episode} = 0;
	$self->{spent}{episode} += time() + 120 - $end;
	$self->count('episodes');
	return;
}

# Until gaps are collected, tables in memory are there, and indexes.
sub _wait_for_workers
{
	my ($self) = @_;
	my $node = $self->node;
	my $end = time() + 120;
	my $left = q{SELECT (SELECT count(*) FROM nvm.gaps) + (SELECT count(*) FROM nvm.log_recovery WHERE state NOT IN ('whole', 'off'))
		+ (SELECT count(*) FROM nvm.index_rebuilds WHERE state NOT IN ('done', 'ready', 'unused'))};

	until ($node->safe_psql('postgres', $left) eq '0')
	{
		if (time() > $end)
		{
			$self->problem('gaps and rebuilds do not end: ' . $node->safe_psql('postgres',
				'SELECT g::text FROM nvm.gaps g UNION ALL SELECT r::text FROM nvm.index_rebuilds r UNION ALL SELECT l::text FROM nvm.log_recovery l'));
			last;
		}
		usleep(100_000);
	}
	return;
}

# The clients come to rest, nothing is prepared, all that can be is given back: check
# everything, and measure.
sub settle
{
	my ($self) = @_;
	my $node = $self->node;
	my $began = time();

	$self->{what} = 'at rest';
	$self->verify(rest => 1);
	$self->tell('settle');
	$self->{what} = 'settled';
	$node->safe_psql('postgres', 'DROP TABLE IF EXISTS filler');
	# whose DROP a crash has cut off: nobody can connect to it
	$node->safe_psql('postgres', "DROP DATABASE $_")
	  foreach split /\n/, $node->safe_psql('postgres', 'SELECT datname FROM pg_database WHERE datconnlimit = -2');
	$self->{commands}->promote if $self->{commands};
	$self->_wait_for_workers;
	$node->safe_psql('postgres', "VACUUM;\nSELECT pg_current_xact_id();\nSELECT pg_sleep(0.3);\nVACUUM;\nCHECKPOINT;");
	$self->problem($self->{log}->give_up) if $self->{log};
	$self->problem($node->check_findings);
	$self->problem($self->{commands}->verify) if $self->{commands};
	$self->problem(split /\n/, $node->safe_psql('postgres', <<'SQL'));
SELECT verify_owners();
SELECT verify_traces();
SELECT f FROM pg_class c JOIN pg_am a ON a.oid = c.relam, look_by_index(c.oid) f
	WHERE a.amname IN ('nvm', 'nvm_vlog', 'nvm_cmdlog') AND c.relkind = 'r' AND c.relpersistence = 'p';
SQL
	$self->count('full checks');
	$self->{measure}->settled;
	$self->{spent}{'all of settle'} += time() - $began;
	$self->_look_at_log;
	return;
}

# At rest: stop, and start again, perhaps in another mode; and measure what has come back.
sub start_over
{
	my ($self, %mode) = @_;

	$self->{what} = 'the start behind a rest';
	$self->node->stop;
	$self->set_mode(%mode) if %mode;
	$self->start_server;
	$self->_wait_for_workers;
	$self->{measure}->started_over;
	return;
}

# The end: a clean stop and a start change nothing.
sub finish
{
	my ($self) = @_;
	my $node = $self->node;

	$self->settle;
	$self->{what} = 'the last start';
	my $digest = q{SELECT string_agg(relname || ' ' || (xpath('/row/c/text()', query_to_xml(format(
		'SELECT count(*) || ''/'' || coalesce(sum(hashtextextended(t::text, 0)), 0) AS c FROM %s t', c.oid::regclass),
		false, true, '')))[1]::text, ', ' ORDER BY relname) FROM pg_class c JOIN pg_am a ON a.oid = relam
		WHERE relkind IN ('r', 'm') AND relnamespace = 'public'::regnamespace};
	my $before = $node->safe_psql('postgres', $digest);
	$self->start_over;
	my $after = $node->safe_psql('postgres', $digest);
	$self->problem("a clean restart has changed what is there: $before; then: $after") if $before ne $after;
	my %stats = $self->stats;
	$self->{counts}{$_} = $stats{$_} foreach keys %stats;
	print { $self->{to} } "quit\n";
	close $self->{to};
	waitpid($self->{clients_pid}, 0);
	$self->{clients_pid} = undef;
	$node->stop;
	return;
}

sub DESTROY
{
	my ($self) = @_;
	local $?;
	kill('TERM', $self->{clients_pid}) if $self->{clients_pid};
	return;
}

1;

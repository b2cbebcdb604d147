# Copyright (c) 2026, pg_nvm contributors

# Transactions on nvm and heap tables and a sequence that end between prepare
# and decision: both sides agree, on committed where the commit record was
# durable, else on lost; also when others, at once after the restart, would get
# the transaction ids of the lost and commit under them: they get others.
#
# Long form: 10 images by chance of each, here 2.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

# where they are held, and how that must end
my %places = (
	lost => [
		'commit-prepared',           # before its fence
		'commit-prepared',
		'commit-after-prepare',
		'commit-after-prepare'
	],
	committed => [
		'commit-before-decision',    # the commit record is durable
		'commit-before-decision',
		'commit-mixed-decided',
		'commit-end'
	]);

my $node = NvmTest->start_new('mixed', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
wal_writer_delay = 10s
checkpoint_timeout = 1h
CONF
CREATE TABLE n (place text, victim int, v int) USING nvm;
CREATE TABLE i (place text, victim int, PRIMARY KEY (place, victim)) USING nvm;
CREATE TABLE h (place text, victim int, id bigint);
CREATE TABLE later_n (xid bigint, client int) USING nvm;
CREATE TABLE later_h (xid bigint, client int);
CREATE SEQUENCE s;
SQL

# Clients that wait for the server to come up, and all commit at once; half of
# them write heap rows only.
sub start_later
{
	my ($self, $count) = @_;
	my @pids;

	local %ENV = $self->_get_env();
	foreach my $client (1 .. $count)
	{
		my @into = (
			"INSERT INTO later_h VALUES (pg_current_xact_id()::text::bigint, $client)",
			"INSERT INTO later_n VALUES (pg_current_xact_id()::text::bigint, $client)");
		my $sql = $into[ $client % 2 ];
		$sql = "BEGIN; $into[0]; $into[1]; COMMIT" if $client == $count;
		my $pid = fork();
		die "fork: $!" unless defined $pid;
		if ($pid == 0)
		{
			open(STDIN, '<', '/dev/null');
			open(STDOUT, '>', '/dev/null');
			open(STDERR, '>', '/dev/null');
			for (my $try = 0; $try < 3000; $try++)
			{
				system('psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-d', $self->connstr('postgres'),
					'-c', $sql) == 0
				  and POSIX::_exit(0);
				usleep(5000);
			}
			POSIX::_exit(1);
		}
		push @pids, $pid;
	}
	return @pids;
}

my $reused = 0;
foreach my $outcome ('lost', 'committed')
{
	my @held = @{ $places{$outcome} };
	my @sessions;
	my %xid;

	$node->safe_psql('postgres', "INSERT INTO n SELECT 'base $outcome', i, 0 FROM generate_series(1, " . @held . ') i');
	# what comes before is durable; the WAL of the victims concerns nobody else
	$node->safe_psql('postgres', 'CHECKPOINT');
	foreach my $victim (1 .. @held)
	{
		my $session = $node->session('BEGIN');
		$session->sql("INSERT INTO n VALUES ('$outcome', $victim, 1)");
		$session->sql("UPDATE n SET v = v + 1 WHERE place = 'base $outcome' AND victim = $victim");
		$session->sql("INSERT INTO i VALUES ('$outcome', $victim)");
		$session->sql("SAVEPOINT a; INSERT INTO n VALUES ('$outcome', $victim, 2); RELEASE a");
		$session->sql("SAVEPOINT b; INSERT INTO n VALUES ('$outcome', $victim, 3); ROLLBACK TO b");
		$session->sql("INSERT INTO h VALUES ('$outcome', $victim, nextval('s'))");
		$xid{ $session->sql('SELECT pg_current_xact_id()') } = $victim;
		push @sessions, $session;
	}
	$sessions[$_]->hold($held[$_], 'COMMIT') foreach 0 .. $#held;
	my $saved = $node->save_crash;
	$_->drop foreach @sessions;

	foreach my $image ([ durable => 1 ],
		map { [ random => $_ ] } 1 .. (NvmTest::is_long() ? 10 : 2))
	{
		my ($mode, $seed) = @$image;
		my $name = "$outcome, $mode image, seed $seed";

		$node->restore_crash($saved, mode => $mode, seed => $seed);
		# who resolves takes its time: the others must wait for it
		$node->set_conf('nvm.failpoint' => "'resolve-begin:sleep=700'");
		my @later = start_later($node, 10);
		$node->start;
		waitpid($_, 0) foreach @later;

		my $xids = $node->safe_psql('postgres', 'SELECT xid FROM later_h UNION SELECT xid FROM later_n');
		$reused += grep { exists $xid{$_} } split /\n/, $xids;
		is($node->safe_psql('postgres', 'SELECT (SELECT count(*) FROM later_h), (SELECT count(*) FROM later_n)'),
			'5|6', "$name: the later ones have committed");

		# victim, rows in h, in n, and in i, and the update
		my $state = <<SQL;
SELECT victim, (SELECT count(*) FROM h WHERE h.place = '$outcome' AND h.victim = b.victim),
	(SELECT coalesce(sum(v), 0) FROM n WHERE n.place = '$outcome' AND n.victim = b.victim),
	(SELECT count(*) FROM i WHERE i.place = '$outcome' AND i.victim = b.victim), b.v
FROM n b WHERE place = 'base $outcome' ORDER BY 1
SQL
		my $expected = join "\n",
		  map { $outcome eq 'lost' ? "$_|0|0|0|0" : "$_|1|3|1|1" } 1 .. @held;
		is($node->safe_psql('postgres', $state), $expected, "$name: all sides say so");
		is($node->safe_psql('postgres', "SELECT count(*) FROM h WHERE id >= nextval('s')"), '0',
			"$name: the sequence is ahead of its numbers");

		# once more, with what the last start made of it
		next if $mode ne 'durable';
		$node->crash;
		$node->start;
		is($node->safe_psql('postgres', $state), $expected, "$name: the same after another crash");
		$node->check_clean($name);
	}
	$node->check_clean($outcome);
	$node->set_conf('nvm.failpoint' => "''");
	$node->reload;
	$node->safe_psql('postgres', 'TRUNCATE later_n, later_h');
	$node->forget_crash($saved);
}
is($reused, 0, 'no transaction id of the lost was used again');
$node->stop;

done_testing();

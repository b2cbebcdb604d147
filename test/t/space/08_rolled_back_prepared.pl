# Copyright (c) 2026, pg_nvm contributors

# Transactions that are prepared and rolled back, one after the other, leave a gap each,
# which the collector removes: there is always one.  Space must be used again all the
# same: a table whose rows are updated meanwhile does not grow with every update, nor does
# the one that they themselves have written to.  The rows are what they should be, also
# after a crash and a loss of power in the midst of it.
#
# Long form: 60 seconds, 4 crashes, a loss of power with 20 images; here 10, one, and 2.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $long = NvmTest::is_long();
my $node;

sub make_server
{
	my ($name, %params) = @_;
	$node = NvmTest->start_new($name, %params, conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 10
nvm.horizon_naptime = 20ms
CONF
CREATE TABLE t (id int PRIMARY KEY, v int, pad text) USING nvm;
INSERT INTO t SELECT i, 0, repeat('p', 100) FROM generate_series(1, 200) i;
CREATE TABLE p (id int PRIMARY KEY, v int, pad text, kept int) USING nvm;
INSERT INTO p SELECT i, i, repeat('p', 100), 0 FROM generate_series(1, 200) i;
-- rows that are rolled back are VACUUM's, if there is an index
CREATE TABLE never (id int PRIMARY KEY) USING nvm;
SQL
	return;
}

# t has the numbers of its updates; p is as it was
my %script = (
	update  => "\\set id random(1, 200)\nUPDATE t SET v = v + 1 WHERE id = :id;\n",
	# what is taken back is updated by others, too, before the collector comes by
	keep    => "\\set id random(1, 200)\nUPDATE p SET pad = repeat('q', 100), kept = kept + 1 WHERE id = :id;\n",
	prepare => "\\set id random(1, 199)\n\\set r random(1, 1000000000)\n"
	  . "SELECT quote_literal('p_' || :client_id || '_' || :r) AS name \\gset\n"
	  . "BEGIN;\nUPDATE p SET v = -1, pad = repeat('x', 120) WHERE id = :id;\n"
	  . "UPDATE p SET v = -2 WHERE id = :id OR id = 200;\nINSERT INTO never VALUES (:r);\n"
	  . "PREPARE TRANSACTION :name;\nROLLBACK PREPARED :name;\n");
my $scripts = PostgreSQL::Test::Utils::tempdir();
foreach my $name (keys %script)
{
	append_to_file("$scripts/$name.sql", $script{$name});
}

sub blocks
{
	return map { $node->safe_psql('postgres', "SELECT blocks FROM nvm.relations WHERE relation = '$_'::regclass") } qw(t p);
}

# until the server ends, or finish_loads
sub loads
{
	my @said = map { my ($out, $err) = ('', ''); [ \$out, \$err ] } keys %script;
	my $i = 0;
	return map {
		IPC::Run::start([ 'pgbench', '-n', '-c', 1, '-T', 3600, '-f', "$scripts/$_.sql", $node->connstr('postgres') ],
			'>', $said[$i][0], '2>', $said[ $i++ ][1])
	} sort keys %script;
}

sub finish_loads
{
	my (@run) = @_;
	foreach my $h (@run)
	{
		$h->signal('TERM');
		eval { $h->finish };
	}
	$node->poll_query_until('postgres', "SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'pgbench'")
	  or die 'the clients do not end';
	# one may have come no further than PREPARE
	roll_back_prepared();
	return;
}

sub rows_are_right
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($node->safe_psql('postgres', q{SELECT count(*), count(*) FILTER (WHERE v = id AND pad IN (repeat('p', 100), repeat('q', 100))) FROM p;
		SELECT count(*), count(DISTINCT id), min(id), max(id), bool_and(pad = repeat('p', 100)) FROM t;
		SELECT count(*) FROM never}),
		"200|200\n200|200|1|200|t\n0", "$name: nothing of what was rolled back is there");
	$node->check_clean($name);
	return;
}

# Prepared transactions that a crash has left
sub roll_back_prepared
{
	$node->safe_psql('postgres', "ROLLBACK PREPARED '$_'")
	  foreach split /\n/, $node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts');
	return;
}

make_server('rolled_back_prepared');
my $seconds = $long ? 60 : 10;
my @run = loads();
my (@blocks, @updates);
my ($looks, $gaps) = (0, 0);
foreach my $part (0 .. 2)
{
	# however slow the machine is: as long as it takes to update as much as that
	my $began = @updates ? $updates[-1] : 0;
	my $now   = 0;
	for (my $i = 0; $i < 5 || $now - $began < 100; $i++)
	{
		$looks++;
		$gaps += $node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps') > 0 ? 1 : 0;
		usleep($seconds * 40_000);
		$now = $node->safe_psql('postgres', 'SELECT sum(v) FROM t');
	}
	push @blocks, [ blocks() ];
	push @updates, $now;
}
finish_loads(@run);
cmp_ok($gaps, '>', $looks / 3, "there were gaps in $gaps of $looks looks");
my $more = $updates[2] - $updates[0];
cmp_ok($more, '>', 100, "$more updates in two thirds of the time");
# 45 of them fill a block
my $limit = 10 + $more / 45 / 4;
cmp_ok($blocks[2][0] - $blocks[0][0], '<', $limit, "blocks of the table that is updated: " . join(', ', map { $_->[0] } @blocks));

# What was rolled back waits for the end of a sweep, so that table has room for what comes in that
# time, of the longest one so far; not for all that was ever written to it.
my $versions = $node->safe_psql('postgres', 'SELECT sum(kept) + 2 * (SELECT gaps_collected FROM nvm.activity) FROM p');
cmp_ok($blocks[2][1], '<', 10 + $versions / 45 / 2,
	"blocks of the other one, for $versions versions: " . join(', ', map { $_->[1] } @blocks));
rows_are_right('after it');

foreach my $crash (1 .. ($long ? 4 : 1))
{
	@run = loads();
	usleep(1_500_000);
	$node->crash;
	foreach my $h (@run) { eval { $h->finish }; }
	$node->start;
	roll_back_prepared();
	rows_are_right("after crash $crash");
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or fail('the collector does not finish');
	rows_are_right("and when crash $crash has been cleaned up");
}
$node->stop;

# in the midst of it, after areas have been used again beside the collector
make_server('power', simulate => 1);
@run = loads();
$node->poll_query_until('postgres', 'SELECT gaps_collected > 20 FROM nvm.activity') or fail('no gap is collected');
my $saved = $node->save_crash;
foreach my $h (@run) { eval { $h->finish }; }
foreach my $image (1 .. ($long ? 20 : 2))
{
	$node->restore_crash($saved, seed => $image, $image == 1 ? (mode => 'durable') : ());
	$node->start;
	roll_back_prepared();
	rows_are_right("image $image");
}
$node->crash;
$node->forget_crash($saved);

done_testing();

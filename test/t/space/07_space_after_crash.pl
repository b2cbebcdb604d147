# Copyright (c) 2026, pg_nvm contributors

# A transaction that was prepared before a crash and is open since: until it ends the gap
# collector cannot drop what the crash left undecided.  Space that was free before the
# crash must be used again all the same, as soon as the collector has been everywhere:
# heap would use it, too.  No row may suffer from that: a reader that loaded a link before
# the collector came by is waited for, and losses of power strike after space was used
# again, with the gaps still listed.
#
# Long form: 3 rounds with 20 images each; here one, with 3.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $long = NvmTest::is_long();
my $rows = 4_000;
my $node = NvmTest->start_new('space', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 10
nvm.horizon_naptime = 20ms
nvm.collect_gaps = off
nvm.failpoint = 'gap-mended:sleep=1'
CONF
CREATE TABLE t (id int PRIMARY KEY, v int, pad text) USING nvm;
INSERT INTO t SELECT i, 0, repeat('p', 100) FROM generate_series(1, $rows) i;
CREATE TABLE other (id int) USING nvm;
SQL

my $script = PostgreSQL::Test::Utils::tempdir() . '/others.sql';
append_to_file($script, "SELECT count(*), pg_sleep(0.05) FROM other;\n");
my $updates = 0;

sub update_all
{
	my ($where) = @_;
	$node->safe_psql('postgres', "UPDATE t SET v = v + 1 WHERE $where");
	$updates += $node->safe_psql('postgres', "SELECT count(*) FROM t WHERE $where");
	return;
}

sub blocks
{
	return $node->safe_psql('postgres', q{SELECT blocks FROM nvm.relations WHERE relation = 't'::regclass});
}

# nothing of the loser, all of the others, by scan and by index
sub rows_are_right
{
	my ($name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is( $node->safe_psql('postgres', q{SELECT count(*), count(DISTINCT id), min(id), max(id), sum(v), bool_and(pad = repeat('p', 100)) FROM t}),
		"$rows|$rows|1|$rows|$updates|t", "$name: rows");
	is( $node->safe_psql('postgres', "SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT sum(v) FROM t WHERE id BETWEEN 1 AND $rows"),
		$updates, "$name: by index");
	$node->check_clean($name);
	return;
}

# versions that are retired on media, and who unlinked them; half of the table
sub make_room
{
	update_all('true');
	$node->safe_psql('postgres', 'SELECT txid_current(); VACUUM t; SELECT txid_current()');
	return;
}

sub wait_mended
{
	my ($start) = @_;
	my $end = time() + $PostgreSQL::Test::Utils::timeout_default;
	while (time() < $end)
	{
		return 1 if slurp_file($node->logfile, $start) =~ /failpoint gap-mended hit/;
		usleep(20_000);
	}
	return 0;
}

make_room() foreach 1 .. 2;
foreach my $round (1 .. ($long ? 3 : 1))
{
	make_room();
	$node->safe_psql('postgres', "BEGIN; INSERT INTO other VALUES ($round); PREPARE TRANSACTION 'p$round'");

	# losers
	my @losers = map { $node->session('BEGIN;', "UPDATE t SET v = -1, pad = 'lost' WHERE id % 50 = $_;") } 1, 2;
	$node->crash;
	$_->drop foreach @losers;
	$node->start;
	rows_are_right("round $round, after the crash");
	cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps'), '>=', 2, 'there are gaps');
	# only now: after a crash a table has all blocks of its last extent, up to 31 more
	my $before = blocks();

	# others, always one of them with a snapshot, whose xmin is the prepared transaction's xid
	my ($out, $err) = ('', '');
	my $others = IPC::Run::start([ 'pgbench', '-n', '-c', 4, '-T', 600, '-f', $script, $node->connstr('postgres') ], '>', \$out, '2>', \$err);

	# who reads is waited for
	my $reader = $node->session('BEGIN;', 'DECLARE c CURSOR FOR SELECT id, v FROM t;', 'FETCH 10 FROM c;');
	my $start  = -s $node->logfile;
	$node->safe_psql('postgres', q{ALTER SYSTEM SET nvm.collect_gaps = on; SELECT pg_reload_conf()});
	usleep(500_000);
	unlike(slurp_file($node->logfile, $start), qr/failpoint gap-mended hit/, 'a reader from before is waited for');
	$reader->sql('COMMIT;');
	$reader->drop;
	ok(wait_mended($start), 'the collector has been everywhere, and waits for nobody but the prepared transaction');
	# not INT: what runs in the background of a shell ignores that
	$others->signal('TERM');
	eval { $others->finish };
	cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.gaps'), '>=', 2, 'gaps are still listed');

	# 64 blocks of versions, twice what the rest of an extent can hold
	update_all("id <= $rows * 2 / 3");
	cmp_ok(blocks(), '<=', $before + 8, "round $round: space is used again: $before blocks before");
	rows_are_right("round $round, space used again");

	my $saved = $node->save_crash;
	foreach my $image (1 .. ($long ? 20 : 3))
	{
		$node->restore_crash($saved, seed => 100 * $round + $image, $image == 1 ? (mode => 'durable') : ());
		$start = -s $node->logfile;
		$node->start;
		rows_are_right("round $round, image $image");
		ok(wait_mended($start), "round $round, image $image: swept again");
		update_all("id > $rows / 2");
		rows_are_right("round $round, image $image, updated");
		$updates -= $rows / 2;
	}
	$updates += $rows / 2;
	$node->forget_crash($saved);
	$node->safe_psql('postgres', "COMMIT PREPARED 'p$round'");
	ok($node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps'), 'all gaps are gone');
	is($node->safe_psql('postgres', 'SELECT count(*) FROM other'), $round, 'and the prepared transaction is there');
	rows_are_right("round $round, without gaps");
	$node->safe_psql('postgres', q{ALTER SYSTEM SET nvm.collect_gaps = off; SELECT pg_reload_conf()});
}
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# PostgreSQL's own indexes are WAL-logged on their own, so a loss of power can take
# back what VACUUM did to them, and can keep entries whose rows are gone.  Whatever is
# lost on either side, no index entry leads to another row: not while the slots
# are unused, and not when they are used again.
#
# Long form: 10 images by chance of each, here 1.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $rows = 1000;

my $node = NvmTest->start_new('vacuum', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
wal_writer_delay = 10s
checkpoint_timeout = 1h
nvm.horizon_naptime = 20ms
nvm.default_index_method = btree
CONF
CREATE TABLE t (id int PRIMARY KEY, code text, v int) USING nvm;
CREATE INDEX t_code ON t (code);
CREATE TABLE other (a int PRIMARY KEY);
SQL

sub insert
{
	my ($node, $from, $to, $v) = @_;
	$node->safe_psql('postgres',
		"INSERT INTO t SELECT i, 'code ' || i, $v FROM generate_series($from, $to) i");
	return;
}

# The table as each index and the sequential scan show it, and each key by
# itself: an entry that leads to another row shows that row under its key.
sub agree
{
	my ($node, $name) = @_;
	my $all = "SELECT count(*), md5(string_agg(id || '/' || code || '/' || v, ',' ORDER BY id, v)) FROM";
	my %answer;
	my $only = sub {
		my ($kind) = @_;
		return join ' ', map { "SET enable_$_ = " . ($_ eq $kind ? 'on' : 'off') . ';' }
		  qw(seqscan indexscan indexonlyscan bitmapscan);
	};

	$answer{seq}     = $node->safe_psql('postgres', $only->('seqscan') . "$all t");
	$answer{by_id}   = $node->safe_psql('postgres', $only->('indexscan') . "$all (SELECT * FROM t WHERE id > -1 ORDER BY id OFFSET 0) s");
	$answer{by_code} = $node->safe_psql('postgres', $only->('indexscan') . "$all (SELECT * FROM t WHERE code > '' ORDER BY code OFFSET 0) s");
	$answer{bitmap}  = $node->safe_psql('postgres', $only->('bitmapscan') . "$all t WHERE id > -1");
	my $wrong = join ', ', grep { $answer{$_} ne $answer{seq} } sort keys %answer;
	$wrong .= $node->safe_psql('postgres', $only->('indexscan') . 'SET enable_hashjoin = off; SET enable_mergejoin = off;' . <<SQL);
SELECT k, t.id, u.id FROM generate_series(1, 3 * $rows) k
	LEFT JOIN LATERAL (SELECT id FROM t WHERE t.id = k ORDER BY id OFFSET 0) t ON true
	LEFT JOIN LATERAL (SELECT id FROM t WHERE t.code = 'code ' || k ORDER BY code OFFSET 0) u ON true
WHERE t.id <> k OR u.id <> k OR (t.id IS NULL) <> (u.id IS NULL) LIMIT 5
SQL
	# the same by the sequential scan's truth
	$wrong .= $node->safe_psql('postgres', <<SQL);
SELECT id, code FROM t WHERE code <> 'code ' || id LIMIT 5
SQL
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($wrong, '', "$name: scans agree");
	return $answer{seq};
}

# After a crash: as it is, with new rows, after VACUUM, with new rows again.
sub agree_and_reuse
{
	my ($node, $name) = @_;

	agree($node, $name);
	insert($node, $rows + 1, $rows + 500, 2);
	agree($node, "$name, new rows");
	$node->safe_psql('postgres', "UPDATE t SET v = v + 1 WHERE id % 3 = 0");
	$node->safe_psql('postgres', 'VACUUM t');
	agree($node, "$name, vacuumed");
	insert($node, 2 * $rows + 1, 2 * $rows + 800, 3);
	agree($node, "$name, new rows after that");
	$node->check_clean($name);
	$node->safe_psql('postgres', 'TRUNCATE t');
	return;
}

# VACUUM held at its steps: entries removed and not flushed; flushed and nothing
# freed; freed.  Meanwhile updates that log nothing use what is free.
my $long   = NvmTest::is_long();
my @random = map { [ random => $_ ] } 1 .. ($long ? 10 : 1);
my %images = (
	'vacuum-indexes-scanned' => [ [ durable => 1 ], @random ],
	'vacuum-indexes-flushed' => [ [ durable => 1 ] ],
	'commit-begin'           => \@random,
	'commit-end'             => [ [ durable => 1 ] ]);
foreach my $place (sort keys %images)
{
	insert($node, 1, $rows, 1);
	$node->safe_psql('postgres', "DELETE FROM t WHERE id % 4 <> 0");
	# they are dead to everybody soon
	$node->safe_psql('postgres', 'SELECT pg_sleep(0.2)');
	my $session = $node->session;
	$session->hold($place, 'VACUUM (INDEX_CLEANUP on) t');
	# both log nothing, and are answered
	$node->safe_psql('postgres', 'UPDATE t SET v = v + 1; UPDATE t SET v = v + 1');
	my $saved = $node->save_crash;
	$session->drop;
	foreach my $image (@{ $images{$place} })
	{
		my ($mode, $seed) = @$image;
		my $name = "VACUUM at $place, $mode image, seed $seed";

		$node->restore_crash($saved, mode => $mode, seed => $seed);
		$node->start;
		is($node->safe_psql('postgres', 'SELECT count(*), min(v), max(v) FROM t'),
			$rows / 4 . '|3|3', "$name: rows are right");
		agree_and_reuse($node, $name);
	}
	$node->forget_crash($saved);
}

# Rows of transactions that a crash ends, entries made durable by the commit of
# another: first nothing of the rows is durable, then some, then all.
insert($node, 1, $rows, 1);
my @open = map { $node->session('BEGIN') } 1 .. 3;
$open[0]->sql("INSERT INTO t SELECT i, 'code ' || i, 9 FROM generate_series($rows + 1, $rows + 300) i");
$open[1]->sql("UPDATE t SET code = 'code -' || id, v = 9 WHERE id <= 200");
$open[2]->sql("INSERT INTO t SELECT i, 'code ' || i, 9 FROM generate_series($rows + 301, $rows + 310) i; DELETE FROM t WHERE id BETWEEN 301 AND 500");
$node->safe_psql('postgres', 'INSERT INTO other VALUES (1)');
my $saved = $node->save_crash;
$_->drop foreach @open;

foreach my $image ([ durable => 1 ], @random)
{
	my ($mode, $seed) = @$image;
	my $name = "open transactions, $mode image, seed $seed";

	# rows in a gap keep their slots until the indexes are cleaned
	$node->restore_crash($saved, mode => $mode, seed => $seed);
	$node->set_conf('nvm.collect_gaps' => $mode eq 'random' ? 'on' : 'off');
	$node->start;
	is($node->safe_psql('postgres', 'SELECT count(*), min(v), max(v) FROM t'),
		"$rows|1|1", "$name: rows are right");
	agree($node, $name);
	insert($node, 2 * $rows + 1001, 2 * $rows + 1500, 4);
	agree($node, "$name, new rows beside the gap");
	$node->set_conf('nvm.collect_gaps' => 'on');
	$node->reload;
	$node->poll_query_until('postgres', 'SELECT gaps = 0 FROM nvm.recovery') or die 'gaps stay';
	agree($node, "$name, collected");
	insert($node, 2 * $rows + 1501, 2 * $rows + 1900, 5);
	agree_and_reuse($node, $name);
}
$node->forget_crash($saved);

# A crash leaves blocks whose free cells entries may lead to: not used for new
# rows until VACUUM has been there.
my $inspect = $node->psql('postgres', 'CREATE EXTENSION pageinspect') == 0;
sub entries
{
	my ($name, $expected) = @_;
  SKIP:
	{
		skip 'pageinspect is not installed', 1 unless $inspect;
		is($node->safe_psql('postgres', "SELECT live_items FROM bt_page_stats('t_pkey', 1)"),
			$expected, "$name: $expected index entries");
	}
	return;
}
insert($node, 1, 100, 1);
my $session = $node->session('BEGIN');
$session->sql("INSERT INTO t SELECT i, 'code ' || i, 9 FROM generate_series(101, 150) i");
$node->safe_psql('postgres', 'INSERT INTO other VALUES (2)');
$node->power_failure(mode => 'durable');
$session->drop;
$node->start;
is($node->safe_psql('postgres', 'SELECT count(*) FROM t'), '100', 'suspect: the rows were lost');
entries('suspect', 150);
insert($node, 201, 250, 1);
agree($node, 'suspect: entries without a row');
my (undef, undef, $verbose) = $node->psql('postgres', 'VACUUM (VERBOSE, INDEX_CLEANUP on) t');
like($verbose, qr/ ([1-9]\d*) pages checked for index entries without a row/, 'suspect: VACUUM knows of them');
entries('suspect, after VACUUM', 150);
insert($node, 301, 350, 1);
agree($node, 'suspect: after VACUUM');
$node->check_clean('suspect');
$node->stop;

done_testing();

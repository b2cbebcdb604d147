# Copyright (c) 2026, pg_nvm contributors

# Power lost at any moment, between any two stores, not at a failpoint: several clients
# update, delete, roll back, lock, vacuum and hold snapshots; then everything is killed, and
# many images of that one crash are looked at.  What a crash may leave must not be
# taken for damage by the first look at a block or a page, nor by nvm.check(), before the gaps are
# collected and after.
#
# Long form: more crashes, more images of each.  NVM_ANY_MOMENT=CRASHES,IMAGES,SEED sets them.

use strict;
use warnings;

use NvmCrash;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($crashes, $images, $seed) = split /,/, $ENV{NVM_ANY_MOMENT} // (NvmTest::is_long() ? '30,8,1' : '3,4,1');
note("NVM_ANY_MOMENT=$crashes,$images,$seed");

my $node = NvmTest->start_new('moment', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 10
nvm.index_rebuild_workers = 1
CONF
CREATE TABLE ack (client int, n int) USING nvm;
-- few rows, updated all the time: chains
CREATE TABLE hot (id int PRIMARY KEY, n int, pad text) USING nvm;
CREATE INDEX hot_n ON hot USING nvm_btree (n) WITH (persistence = leaves);
-- each update a new root and an entry
CREATE TABLE t (id int, k int, b text) USING nvm;
CREATE UNIQUE INDEX t_id ON t USING nvm_btree (id);
CREATE INDEX t_k ON t USING nvm_btree (k) WITH (persistence = none);
SET nvm.default_index_method = btree;
CREATE INDEX t_b ON t USING btree (b);
RESET nvm.default_index_method;
CREATE TABLE large (id int PRIMARY KEY, b text) USING nvm;
ALTER TABLE large ALTER b SET STORAGE external;
CREATE TABLE plain (id int, n int) USING nvm;
INSERT INTO hot SELECT i, 0, 'p' FROM generate_series(1, 40) i;
INSERT INTO t SELECT i, i % 10, md5(i::text) FROM generate_series(1, 400) i;
INSERT INTO large SELECT i, repeat('l', 5000) FROM generate_series(1, 20) i;
INSERT INTO plain SELECT i, 0 FROM generate_series(1, 30) i;
SQL

# One transaction of a client, of a kind that its number says.  Clients change the
# rows of hot and plain in one order, so that none waits in a circle.
sub transaction
{
	my ($crash, $c, $n) = @_;
	my $r = sub { return 1 + NvmCrash::random("moment/$seed/$crash/$c/$n/$_[0]", $_[1]); };
	my $id = 100000 * $crash + 10000 * $c + $n;
	my $ack = "INSERT INTO ack VALUES ($c, $crash * 100000 + $n);";
	my $at = $r->('hot', 40);
	my $update = "UPDATE hot SET n = n + 1 WHERE id BETWEEN $at AND $at + 2;";
	my $grow = 'UPDATE hot SET pad = repeat(chr(97 + ' . $r->('chr', 25) . '), ' . 5 * $r->('pad', 60) . ") WHERE id = $at;";
	my @kinds = (
		"BEGIN; $update $ack COMMIT;",
		"BEGIN; $grow $ack COMMIT;",
		"BEGIN; $ack UPDATE plain SET n = n + 1 WHERE id = $at; SAVEPOINT a; $update ROLLBACK TO a; $grow COMMIT;",
		"BEGIN; $update INSERT INTO t VALUES (-$id, 1, 'gone'); ROLLBACK; $ack",
		"BEGIN; $ack INSERT INTO t VALUES ($id, $at, md5('$id')); UPDATE t SET k = k + 1 WHERE id = $id - 3; DELETE FROM t WHERE id = $id - 9; COMMIT;",
		"BEGIN; $ack INSERT INTO t VALUES ($at, 1, 'y') ON CONFLICT (id) DO UPDATE SET k = excluded.k + 1, b = 'z' || left(t.b, 40); COMMIT;",
		"BEGIN; $ack SELECT FROM hot WHERE id BETWEEN $at AND $at + 3 ORDER BY id FOR SHARE; COMMIT;",
		"BEGIN; $ack UPDATE large SET b = repeat('$n', " . 500 * $r->('large', 20) . ') WHERE id = ' . $r->('lid', 20) . '; COMMIT;',
		"BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM hot; SELECT pg_sleep(0.02); COMMIT; $ack",
		"BEGIN; DELETE FROM plain WHERE id = $at; INSERT INTO plain VALUES ($at, $n); $ack COMMIT;",
		"BEGIN; $update PREPARE TRANSACTION '$id'; " . ($n % 2 ? 'COMMIT' : 'ROLLBACK') . " PREPARED '$id'; $ack",
		"BEGIN; $ack UPDATE plain SET n = n + 1; COMMIT;");

	return 'VACUUM ' . (qw(hot t plain large))[ $r->('vacuum', 4) - 1 ] . "; $ack" if $r->('vacuums', 25) == 1;
	return $kinds[ $r->('kind', scalar @kinds) - 1 ];
}

# All rows, in the order of the table and by each index: who looks first verifies.
my $look = join ';', map { "SET enable_seqscan = $_; SELECT count(*), sum(n), sum(length(pad)) FROM hot WHERE id > 0;"
	  . 'SELECT count(*) FROM hot WHERE n >= 0; SELECT count(*), sum(length(b)) FROM large WHERE id > 0;'
	  . "SELECT count(*), sum(k) FROM t WHERE id > -1000000000; SELECT count(*) FROM t WHERE k > -1; SELECT count(*) FROM t WHERE b >= ''" } qw(on off);
my $check = join(';', map { "SELECT '$_ ' || c FROM nvm.check('$_', true) c" } qw(ack hot t large plain)) . ';SELECT c FROM nvm.check_pool() c';

foreach my $crash (1 .. $crashes)
{
	my $load = $node->start_load(clients => 4, sql => sub { return transaction($crash, @_); });
	$load->wait_acknowledged(100 + NvmCrash::random("moment/$seed/$crash/when", 200));
	usleep(NvmCrash::random("moment/$seed/$crash/usleep", 5000));
	my $saved = $node->save_crash;
	my %last  = $load->finish;
	my $acked = join ' OR ', map { "client = $_ AND n = $crash * 100000 + $last{$_}" } grep { $last{$_} } keys %last;
	my $nacks = grep { $_ } values %last;
	my @problems;

	foreach my $image (1 .. $images)
	{
		my $s = $seed * 10000 + $crash * 100 + $image;
		my $name = "crash $crash, image $image";

		$node->restore_crash($saved, seed => $s);
		$node->start;
		# the prepared ones that were left hold locks
		my ($ret, $out, $err) = $node->psql('postgres', $image % 2 ? $look : $check, on_error_stop => 1);
		push @problems, "$name: $err$out" if $ret != 0 || (!($image % 2) && $out ne '');
		my @half = split /\n/, $out;
		push @problems, "$name: by index there is something else: $out"
		  if $image % 2 && join(' ', @half[ 0 .. @half / 2 - 1 ]) ne join(' ', @half[ @half / 2 .. $#half ]);
		my $there = $node->safe_psql('postgres', "SELECT count(*) FROM ack WHERE $acked");
		push @problems, "$name: acknowledged work is lost" if $there != $nacks;
		$node->safe_psql('postgres', join ';', map { "ROLLBACK PREPARED '$_'" }
			  split /\n/, $node->safe_psql('postgres', 'SELECT gid FROM pg_prepared_xacts'));
		if ($image % 2 == 0 || $image == $images)
		{
			$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps are not collected';
			($ret, $out, $err) = $node->psql('postgres', "$check;UPDATE hot SET n = n + 1;VACUUM hot;VACUUM t;$check");
			push @problems, "$name, collected: $err$out" if $ret != 0 || $out ne '';
		}
		if (@problems && $ENV{NVM_CRASH_KEEP})
		{
			$node->stop('immediate');
			die "@problems\nkept: " . $node->pool_dir . ", the crashed one $saved->{pool}\n";
		}
		last if @problems > 5;
	}
	$node->forget_crash($saved);
	is(join("\n", @problems), '', "crash $crash: $images images are sound");
}
$node->stop;
done_testing();

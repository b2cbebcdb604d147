# Copyright (c) 2026, pg_nvm contributors

# One process dies at a named place, in transactions that write both regions, or
# the volatile one alone: rows, large values and indexes of some tables lie in
# memory, those of others in the pool.  The postmaster starts anew and keeps the
# memory: each transaction is whole or absent in both.
#
# And what the slots of the volatile region are for: who wrote there alone waits for
# no fence, and who wrote both is decided by pg_xact.
#
# Long form: three ways at each place that is reached, here one at each place of
# the protocol.

use strict;
use warnings;

use NvmCrash;
use NvmCrashRegion;
use NvmCrashScenarios;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

# ---------------------------------------------------------------- slots

my $node = NvmTest->start_new('slots', conf => <<CONF, sql => <<SQL);
$NvmCrashRegion::conf
autovacuum = off
max_prepared_transactions = 5
CONF
$NvmCrashRegion::method
CREATE TABLE d (id int PRIMARY KEY, v int, t text) USING nvm_dram;
CREATE TABLE p (id int PRIMARY KEY, v int, t text) USING nvm;
INSERT INTO d SELECT i, 0, 'd' FROM generate_series(1, 1000) i;
INSERT INTO p SELECT i, 0, 'p' FROM generate_series(1, 1000) i;
CREATE PROCEDURE work(tab text, n int) LANGUAGE plpgsql AS
\$\$BEGIN
	FOR i IN 1 .. n LOOP
		EXECUTE format('UPDATE %I SET v = v + 1 WHERE id = %s', tab, 1 + i % 1000);
		EXECUTE format('INSERT INTO %I VALUES (%s, 0, %L)', tab, 1000000 + i, tab);
		EXECUTE format('DELETE FROM %I WHERE id = %s', tab, 1000000 + i);
		COMMIT;
	END LOOP;
END\$\$;
SQL

sub counts
{
	return split /\|/, $node->safe_psql('postgres',
		'SELECT fences, bytes, commits, mixed_commits, prepared FROM nvm.stat_wbl');
}

# what so many transactions add to the counts
sub added
{
	my ($sql) = @_;
	my @before = counts();
	$node->safe_psql('postgres', $sql);
	my @after = counts();
	return map { $after[$_] - $before[$_] } 0 .. $#after;
}

# the extents of d have room, and statistics are those of a session that has worked
$node->safe_psql('postgres', "CALL work('d', 500)");
my ($drains, $bytes, $commits, $mixed) = added("CALL work('d', 500)");
cmp_ok($drains, '<', 10, 'transactions of the volatile region alone wait for next to no fence');
cmp_ok($bytes, '<', 5000, 'and flush nothing');
cmp_ok($commits, '>=', 500, 'they are decided by the word of their slot');
is($mixed, 0, 'and not by pg_xact');
($drains, undef, $commits, $mixed) = added("CALL work('p', 500)");
cmp_ok($drains, '>=', 1000, 'those of the pool fence as ever');
is($mixed, 0, 'and need no pg_xact either');
(undef, undef, $commits, $mixed) =
  added('BEGIN; UPDATE d SET v = -1 WHERE id = 1; UPDATE p SET v = -1 WHERE id = 1; COMMIT');
is("$commits $mixed", '0 1', 'a transaction over both regions is decided by pg_xact');
(undef, undef, undef, $mixed) = added('UPDATE d SET v = -1 WHERE id = 1; ' x 3);
is($mixed, 0, 'and its successors are what they are');

my $slots = q{SELECT string_agg(CASE WHEN slot >= 16384 THEN 'region' ELSE 'pool' END, ' ' ORDER BY slot) FROM nvm.transactions};
is($node->safe_psql('postgres', "BEGIN; UPDATE d SET v = 2 WHERE id = 2; $slots; COMMIT"), 'region',
	'a writer of the region has a slot there');
is($node->safe_psql('postgres', "BEGIN; UPDATE p SET v = 2 WHERE id = 2; $slots; COMMIT"), 'pool',
	'a writer of the pool one there');
is($node->safe_psql('postgres', "BEGIN; UPDATE d SET v = 2 WHERE id = 2; UPDATE p SET v = 2 WHERE id = 2; $slots; COMMIT"),
	'pool region', 'a writer of both has two');
$node->safe_psql('postgres', "BEGIN; UPDATE d SET v = 3 WHERE id = 3; PREPARE TRANSACTION 'a'");
is($node->safe_psql('postgres', $slots), 'pool region', 'a prepared one always has one of the pool');
$node->safe_psql('postgres', "COMMIT PREPARED 'a'");
is($node->safe_psql('postgres', 'SELECT v FROM d WHERE id = 3'), '3', 'which commits');
is($node->safe_psql('postgres', 'SELECT count(*) FROM nvm.transactions'), '0', 'and gives both back');
is($node->safe_psql('postgres', "BEGIN; SAVEPOINT a; UPDATE d SET v = 9 WHERE id = 4; ROLLBACK TO a; UPDATE p SET v = 9 WHERE id = 4;
	SAVEPOINT b; UPDATE d SET v = 8 WHERE id = 5; RELEASE b; ROLLBACK; SELECT (SELECT sum(v) FROM d WHERE id IN (4, 5)), (SELECT v FROM p WHERE id = 4)"),
	$node->safe_psql('postgres', 'SELECT (SELECT sum(v) FROM d WHERE id IN (4, 5)), (SELECT v FROM p WHERE id = 4)'),
	'a rollback takes back what was done in both');
$node->check_clean('slots of both regions');
$node->stop;

# ---------------------------------------------------------------- deaths

my %names = NvmCrash::failpoint_names();
note("seed $NvmCrash::seed");
my $base = NvmCrashRegion::make_base('deaths', tables => [qw(ack hist ix large)]);
my %chosen = map { $_ => 1 } qw(nvm mixed mixed-async abort savepoint large abandoned-undo helper vacuum prepare slots);
my @scenarios = grep { $chosen{ $_->{name} } } NvmCrashScenarios::all();
my $reached = NvmCrashRegion::discover($base, \@scenarios);
my @work = NvmCrashRegion::only();

sub is_protocol { return $_[0] =~ /^(?:commit|abort|undo|slot|prepare|twophase|btree-settle)/; }

if (!@work)
{
	my %here = map { $_ => $names{$_} }
	  grep { my $name = $_; $names{$name} && (NvmTest::is_long() || is_protocol($name)) }
	  map { keys %$_ } values %$reached;
	foreach my $must (qw(commit-after-prepare commit-before-decision slot-exchange abort-mid-undo
		prepare-asked prepare-before-hand-over prepare-recorded twophase-decided))
	{
		ok($here{$must}, "$must is reached");
	}
	@work = NvmCrashScenarios::ways($reached, \%here, {}, sub { NvmTest::is_long() ? 3 : 1 });
}
NvmCrashRegion::die_at($base, \@scenarios, undef, @work);
done_testing();

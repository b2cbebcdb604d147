# Copyright (c) 2026, pg_nvm contributors

# Transactions on nvm tables and their nvm_btree indexes alone leave a commit record
# in the WAL and nothing else, and wait for no flush of it.
#
# Long form: 20,000 commits of each kind (5,000 where rows come and go), here 3,000.

use strict;
use warnings;

use List::Util qw(min);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $commits = NvmTest::is_long() ? 20000 : 3000;

my $node = NvmTest->start_new('wal', checksums => 0, conf => <<CONF, sql => <<SQL);
autovacuum = off
checkpoint_timeout = 1h
nvm.redo_limit = 0
fsync = on
wal_sync_method = fdatasync
CONF
CREATE TABLE plain (id int, v int, t text) USING nvm;
CREATE TABLE indexed (id int PRIMARY KEY, v int, t text, note int DEFAULT 0) USING nvm;
CREATE INDEX ON indexed (t);
CREATE INDEX ON indexed (v, id) INCLUDE (t) WHERE v >= 0;
INSERT INTO plain SELECT i, 0, 'text' FROM generate_series(1, 100) i;
INSERT INTO indexed SELECT i, 0, 'text ' || i FROM generate_series(1, 100) i;
-- a large value goes out of line without a trace, too
CREATE TABLE large (id int, t text) USING nvm;
ALTER TABLE large ALTER t SET STORAGE EXTERNAL;
SQL

my %script = (
	'no index, all kinds' => <<'SQL',
\set id random(1, 100)
BEGIN;
INSERT INTO plain VALUES (:id + 1000, 1, repeat('x', 500));
UPDATE plain SET v = v + 1 WHERE id = :id;
UPDATE plain SET t = repeat('y', 600) WHERE id = :id;
DELETE FROM plain WHERE id = :id + 1000;
END;
SQL
	'no index, one statement' => "\\set id random(1, 100)\nUPDATE plain SET v = v + 1 WHERE id = :id;\n",
	'no index, row locks'     => "\\set id random(1, 100)\nBEGIN; SELECT v FROM plain WHERE id = :id FOR UPDATE; UPDATE plain SET v = v + 1 WHERE id = :id; END;\n",
	'no index, savepoints'    => <<'SQL',
\set id random(1, 100)
BEGIN;
SAVEPOINT a;
UPDATE plain SET v = v + 1 WHERE id = :id;
ROLLBACK TO a;
UPDATE plain SET v = v + 1 WHERE id = :id;
END;
SQL
	'three indexes, all kinds' => <<'SQL',
\set id random(1, 100)
BEGIN;
INSERT INTO indexed VALUES (1000 + :client_id, 1, 'new');
UPDATE indexed SET t = 'text ' || :id || ' of ' || :client_id WHERE id = :id;
UPDATE indexed SET id = id + 1000, v = v + 1 WHERE id = 1000 + :client_id;
DELETE FROM indexed WHERE id = 2000 + :client_id;
END;
SQL
	'an index of each column' => "\\set id random(1, 100)\nUPDATE indexed SET v = v + 1 WHERE id = :id;\n",
	'columns without an index' => "\\set id random(1, 100)\nUPDATE indexed SET note = note + 1 WHERE id = :id;\n",
	'large values' => "\\set id random(1, 100)\nINSERT INTO large VALUES (:id, repeat('large', 10000)); DELETE FROM large WHERE id = :id;\n",);

# WAL flushes so far: they are counted where they happen, and reported late
sub counters
{
	my ($self) = @_;
	my $syncs = $self->pg_version >= 18 ?
	  "(SELECT sum(fsyncs) FROM pg_stat_io WHERE object = 'wal')" : '(SELECT wal_sync FROM pg_stat_wal)';
	return split /\|/, $self->safe_psql('postgres', <<SQL);
SELECT pg_sleep(1.2) IS NULL, $syncs, pg_current_wal_insert_lsn()
SQL
}

# SYNC and the background's regular flushes depend on time, not on commits: with
# a delay of 200 ms, at most five a second, and one in each 1 MB of WAL
foreach my $name (sort keys %script)
{
	my $file = $node->basedir . '/script.sql';
	# without an index each statement reads the table, and nobody removes rows that are gone
	my $n = $name eq 'large values' ? $commits / 10 : $name =~ /all kinds/ ? min($commits, 5000) : $commits;
	my $per  = $n / 2;
	# that script has two in a round, the second of which may find nothing to do
	my $xacts = $name eq 'large values' ? 2 * $n : $n;
	open(my $fh, '>', $file) or die "$file: $!";
	print $fh $script{$name};
	close $fh;

	# what a checkpoint or an earlier script left to do is done
	$node->safe_psql('postgres', 'VACUUM plain');
	$node->safe_psql('postgres', 'CHECKPOINT');
	my (undef, $sync_before, $lsn_before) = counters($node);
	my $began = time;
	system_or_bail('pgbench', '-n', '-c', 2, '-j', 2, '-t', $per, '-f', $file, $node->connstr('postgres'));
	my $took = time - $began;
	my (undef, $sync_after, $lsn_after) = counters($node);

	my $bytes = $node->safe_psql('postgres', "SELECT round(pg_wal_lsn_diff('$lsn_after', '$lsn_before') / $xacts, 1)");
	# a session that ends in between has its share of other records
	cmp_ok($bytes, '<', 100, "$name: $bytes bytes of WAL a transaction");
	my $flushes = $sync_after - $sync_before;
	my $allowed = 5 * ($took + 4) + 5 + int($bytes * $xacts / 1048576);
	cmp_ok($flushes, '<=', $allowed, "$name: $flushes flushes of WAL in $took s, not $n");

	my $files = $node->safe_psql('postgres', <<SQL);
SELECT string_agg(DISTINCT relfilenode::text, '|') FROM nvm.relations
SQL
	is(scalar(split /\|/, $files), 6, "$name: three tables and three indexes are in the pool");
	# its end may not have been written yet
	$node->safe_psql('postgres', "SELECT pg_logical_emit_message(true, 'flush', '')");
	my $dump = $node->basedir . '/waldump';
	system_or_bail("pg_waldump -p '" . $node->data_dir . "/pg_wal' -s $lsn_before -e $lsn_after > '$dump'");
	my @records = split /\n/, slurp_file($dump);
	my @ours = grep { m{rel \d+/\d+/(?:$files)\b} } @records;
	is("@ours", '', "$name: no record refers to an nvm table or its indexes");
	my %kind;
	foreach (@records)
	{
		my ($rmgr, $desc) = /^rmgr: (\S+).*desc: (\S+)/ or next;
		$kind{"$rmgr $desc"}++;
	}
	note("$name: ", explain \%kind);
	cmp_ok($kind{'Transaction COMMIT'} // 0, '>=', $n, "$name: a commit record each");
	my $rest = @records - $kind{'Transaction COMMIT'} - ($kind{'Transaction ABORT'} // 0);
	cmp_ok($rest, '<', 40, "$name: $rest records are neither commits nor aborts");
}

$node->check_clean('in the end');
$node->stop;

done_testing();

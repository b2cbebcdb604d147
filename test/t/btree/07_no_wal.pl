# Copyright (c) 2026, pg_nvm contributors

# Transactions on nvm tables whose indexes lie in the pool leave a commit (or abort)
# record in the WAL, and nothing else, whatever they do: INSERT, UPDATE of indexed
# columns, DELETE, COPY, ON CONFLICT, foreign key checks, deferred unique checks,
# savepoints; while leaves and inner pages are split.  (Two foreign key checks of
# one row at once make a multixact, and PostgreSQL logs that.)  VACUUM is looked at by
# itself: it writes statistics into pg_class, and so WAL, but none that refers to an
# nvm table or an index of one.
#
# Long form: 10,000 transactions of each kind, here 300.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $n = NvmTest::is_long() ? 10000 : 300;
my $rows = 2000 + 2 * $n;	# of t; each DELETE takes two

my $node = NvmTest->start_new('wal', checksums => 0, conf => <<CONF, sql => <<SQL);
autovacuum = off
full_page_writes = off
checkpoint_timeout = 1h
max_wal_size = 4GB
nvm.redo_limit = 0
nvm.default_index_method = 'nvm_btree'
CONF
CREATE TABLE t (id int PRIMARY KEY, a int, b text, n int DEFAULT 0) USING nvm;
CREATE INDEX t_a ON t (a);
CREATE INDEX t_b ON t (b, a DESC);
CREATE TABLE parent (id int PRIMARY KEY, code text UNIQUE, v int) USING nvm;
CREATE INDEX parent_v ON parent (v);
CREATE TABLE child (id int PRIMARY KEY, pid int REFERENCES parent ON DELETE CASCADE ON UPDATE CASCADE, v int,
	UNIQUE (v) DEFERRABLE INITIALLY DEFERRED) USING nvm;
CREATE INDEX child_pid ON child (pid);
CREATE TABLE ref (id int PRIMARY KEY, pid int REFERENCES parent, v int) USING nvm;
CREATE INDEX ref_pid ON ref (pid) WITH (persistence = leaves);
CREATE INDEX ref_v ON ref (v) WITH (persistence = none);
INSERT INTO t SELECT i * 10, i % 100, md5(i::text) || repeat('b', i % 300) FROM generate_series(1, $rows) i;
INSERT INTO parent SELECT i, 'code ' || i, i FROM generate_series(1, 200) i;
INSERT INTO child SELECT i, 1 + i % 100, i FROM generate_series(1, 1000) i;
INSERT INTO ref SELECT i, 101 + i % 50, i FROM generate_series(1, 100) i;
-- a key that nobody has
CREATE FUNCTION fresh() RETURNS int LANGUAGE plpgsql AS \$\$
DECLARE k int;
BEGIN
	LOOP
		k := (random() * 2000000000)::int;
		EXIT WHEN NOT EXISTS (SELECT FROM t WHERE id = k) AND NOT EXISTS (SELECT FROM ref WHERE id = k);
	END LOOP;
	RETURN k;
END \$\$;
SQL
is($node->safe_psql('postgres', <<SQL), "btree|10\nnvm_btree|2", 'all indexes lie in the pool');
SELECT amname, count(*) FROM pg_index i JOIN pg_class c ON c.oid = indexrelid JOIN pg_am a ON a.oid = relam
WHERE indrelid = ANY ('{t,parent,child,ref}'::regclass[]) AND EXISTS (SELECT FROM nvm.relations s WHERE s.relation = indexrelid) GROUP BY 1 ORDER BY 1
SQL

# each a transaction a round; with several sessions at once
my %script = (
	'INSERT' => "INSERT INTO t VALUES (fresh(), 1, md5(random()::text) || repeat('x', :r)) ON CONFLICT DO NOTHING;\n",
	'INSERT of many rows' => "INSERT INTO t SELECT fresh(), i, repeat('y', :r + i) FROM generate_series(1, 20) i ON CONFLICT DO NOTHING;\n",
	'UPDATE of one indexed column' => "UPDATE t SET a = a + 1 WHERE id = :k;\n",
	'UPDATE of a text key' => "UPDATE t SET b = md5(b) || repeat('z', :r) WHERE id = :k;\n",
	'UPDATE of the primary key' => "UPDATE t SET id = fresh() WHERE id = (SELECT id FROM t WHERE a = :r % 100 LIMIT 1);\n",
	'DELETE' => "DELETE FROM t WHERE id IN (SELECT id FROM t WHERE a = :r % 100 LIMIT 2);\n",
	'ON CONFLICT DO UPDATE' => "INSERT INTO t VALUES (:k, 5, 'conflict') ON CONFLICT (id) DO UPDATE SET a = t.a + 1, b = excluded.b || :r, n = t.n + 1;\n",
	'ON CONFLICT DO NOTHING' => "INSERT INTO t VALUES (:k, 5, 'conflict'), (fresh(), 6, 'none') ON CONFLICT DO NOTHING;\n",
	# each session refers to rows of its own, see below
	'foreign keys' => "BEGIN; INSERT INTO ref VALUES (fresh(), 100 + :r % 25 * 2 + :c, :r) ON CONFLICT DO NOTHING; "
	  . "UPDATE ref SET pid = 100 + :r % 20 * 2 + :c WHERE id = 1 + (:r % 40) * 2 + :c; UPDATE parent SET v = v + 1 WHERE id = 1 + (:r % 20) * 2 + :c; END;\n",
	'foreign keys to one row' => "INSERT INTO ref VALUES (fresh(), 200, :r) ON CONFLICT DO NOTHING;\n",
	'foreign keys that cascade' => "BEGIN; INSERT INTO parent VALUES (:c * 1000000 + 1000, 'c' || :c, :r); "
	  . "INSERT INTO child SELECT :c * 1000000 + i, :c * 1000000 + 1000, -:c * 1000000 - i FROM generate_series(1, 5) i; "
	  . "UPDATE parent SET id = id + 1 WHERE id = :c * 1000000 + 1000; "
	  . "UPDATE child SET v = v - 1 WHERE pid = :c * 1000000 + 1001; DELETE FROM parent WHERE id = :c * 1000000 + 1001; END;\n",
	'savepoints' => "BEGIN; SAVEPOINT a; INSERT INTO t VALUES (fresh(), 1, 'gone'); UPDATE t SET a = -1 WHERE id = :k; ROLLBACK TO a; "
	  . "UPDATE t SET a = a + 1, b = 's' || b WHERE id = :k; RELEASE a; END;\n",
	'ROLLBACK' => "BEGIN; INSERT INTO t VALUES (fresh(), 1, 'gone'); UPDATE t SET a = -1 WHERE id = :k; DELETE FROM child WHERE id = :r; ROLLBACK;\n",);

my $dir = PostgreSQL::Test::Utils::tempdir();

sub lsn { return $node->safe_psql('postgres', 'SELECT pg_current_wal_insert_lsn()'); }

# What was written from one place to another: [manager, description, total
# length, record]
sub records
{
	my ($from, $to) = @_;

	# nobody has waited for this WAL: a commit that does brings it to the file
	$node->safe_psql('postgres', q{SELECT pg_logical_emit_message(true, 'flush', '')});
	system_or_bail("pg_waldump -p '" . $node->data_dir . "/pg_wal' -s $from -e $to > '$dir/waldump'");
	my @records;
	foreach my $line (split /\n/, slurp_file("$dir/waldump"))
	{
		my ($rmgr, $len, $desc) = $line =~ m{^rmgr: (\S+)\s+len \(rec/tot\):\s*\d+/\s*(\d+),.*?desc: (\S+)}
		  or die "record: $line";
		push @records, [ $rmgr, $desc, $len, $line ];
	}
	return @records;
}

sub nvm_files
{
	return $node->safe_psql('postgres', <<SQL);
SELECT string_agg(DISTINCT f::text, '|') FROM (SELECT relfilenode FROM nvm.relations
	UNION SELECT pg_relation_filenode(c.oid) FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
	WHERE coalesce(indrelid, c.oid) = ANY ('{t,parent,child,ref}'::regclass[])) x (f)
SQL
}

# no record refers to one of our relations
sub refers_to_none
{
	my ($name, @records) = @_;
	my $files = nvm_files();
	my @ours  = grep { $_->[3] =~ m{rel \d+/\d+/(?:$files)\b} } @records;

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($files, qr/^\d+(?:\|\d+){14,}$/, "$name: files of tables and indexes are known");
	is(join("\n", map { $_->[3] } splice(@ours, 0, 5)), '', "$name: no record refers to an nvm table or its indexes");
	return;
}

# The transactions between two places: commit records, and nothing that is theirs
sub nothing_but_commits
{
	my ($name, $xacts, $from, $to) = @_;
	my @records = records($from, $to);
	my ($bytes, $beyond, %kind) = (0, 0);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	refers_to_none($name, @records);
	foreach my $r (@records)
	{
		my ($rmgr, $desc, $len) = @$r;
		$kind{"$rmgr $desc"}++;
		$bytes += $len;
		$beyond += $len unless $rmgr eq 'Transaction' && $desc =~ /^(?:COMMIT|ABORT)$/;
	}
	# two who lock a row share PostgreSQL's multixact, which is logged as one
	my $shared = $name =~ /one row/ ? '|MultiXact \S+' : '';
	# pages of pg_xact, the background's notes of running transactions, and catalogs
	# that a starting session prunes: in all less than a byte a transaction
	my @others = grep { !/^(?:Transaction (?:COMMIT|ABORT)|Standby RUNNING_XACTS|CLOG ZEROPAGE|Heap2 PRUNE\S*|XLOG (?:FPI_FOR_HINT|FPI)$shared)$/ } sort keys %kind;
	is("@others", '', "$name: no other kinds of records");
	cmp_ok(($kind{'Transaction COMMIT'} // 0) + ($kind{'Transaction ABORT'} // 0), '>=', $xacts * 0.5, "$name: transactions were decided");
	cmp_ok($bytes / $xacts, '<', 100, sprintf("%s: %.1f bytes a transaction", $name, $bytes / $xacts));
	cmp_ok($beyond, '<', $shared ? 50 * $xacts : 1000, "$name: $beyond bytes beyond the records of commit in $xacts transactions");
	return;
}

# catalogs have their hint bits
$node->safe_psql('postgres', 'VACUUM; CHECKPOINT');
foreach my $name (sort keys %script)
{
	unlink "$dir/script.sql";
	append_to_file("$dir/script.sql",
		"\\set k random(1, $rows) * 10\n\\set r random(1, 150)\n\\set c :client_id + 1\n$script{$name}");
	my @pgbench = ('pgbench', '-n', '-c', 2, '-j', 2, '-f', "$dir/script.sql", $node->connstr('postgres'));

	# what the first use leaves in the catalogs
	system_or_bail(@pgbench[ 0 .. 5 ], '-t', 2, @pgbench[ 6 .. 8 ]);
	my $from = lsn();
	system_or_bail(@pgbench[ 0 .. 5 ], '-t', $n / 2, @pgbench[ 6 .. 8 ]);
	nothing_but_commits($name, $n, $from, lsn());
}

{
	my $copies = int($n / 10);
	my $sql    = '';
	foreach my $i (1 .. $copies)
	{
		$sql .= "COPY t (id, a, b) FROM STDIN;\n"
		  . join('', map { -($i * 100 + $_) . "\t$_\t" . 'copied' x (1 + ($i + $_) % 20) . "\n" } 1 .. 40) . "\\.\n";
	}
	append_to_file("$dir/copy.sql", $sql);
	my $from = lsn();
	system_or_bail('psql', '-XqAt', '-v', 'ON_ERROR_STOP=1', '-f', "$dir/copy.sql", '-d', $node->connstr('postgres'));
	nothing_but_commits('COPY', $copies, $from, lsn());
}

# ---- VACUUM, which is no transaction of the user's

my $from = lsn();
$node->safe_psql('postgres', 'DELETE FROM t WHERE id % 3 = 0; DELETE FROM child WHERE v % 2 = 0');
$node->safe_psql('postgres', "VACUUM (INDEX_CLEANUP on) $_") foreach qw(t parent child ref);
my @records = records($from, lsn());
refers_to_none('VACUUM', @records);
cmp_ok(scalar(@records), '<', 100, 'VACUUM: ' . @records . ' records, of catalogs');

$node->check_clean('in the end');
is($node->safe_psql('postgres', "SELECT f FROM unnest('{t,parent,child,ref}'::regclass[]) r, nvm.check(r, true) f"), '', 'nor does nvm.check with heapallindexed');
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Value records of nvm_cmdlog tables have what a replay needs to find their rows elsewhere, and to
# put them in order: what a row was before, and the lanes in which the transaction has written.  Old
# rows are there when, and only when, they are needed, and are those of before the transaction.  A
# recovery steps over them, and records of nvm_vlog tables have nothing of all this.

use strict;
use warnings;

use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

## what nvm_logdump makes of records that were made by hand

my $base    = PostgreSQL::Test::Utils::tempdir_short();
my $uuid    = pack('H32', '0badc0de' . '00' x 12);
my $tuple   = pack('S<S<CC', 2, 0, 24, 0) . 'x' x 10;
my $outside = pack('S<S<CC', 2, 4, 24, 0) . 'x' x 30;    # with HEAP_HASEXTERNAL
my $old     = old_row(5, 12, 700, 0x123, $tuple);
my $gone    = row(5, 12, 0);
my $rows    = storage(3, 17, $old, $gone);
my $ndirs   = 0;
my ($LANES, $SETTINGS, $CALL, $VALUES) = map { chr } 1, 2, 3, 5;
my $lanes = $VALUES . number(0) . number(2) . number(7) . number(31200);
my $call  = $SETTINGS . number(10) . number(0) . $CALL . number(16402) . number(0, 1) . number(0) x 2;

sub dump_record
{
	my ($record, $change, @options) = @_;
	return NvmLog::dump_made("$base/" . $ndirs++, $uuid, $record, $change, '--rows', @options);
}

sub values_of { my ($field, @parts) = @_; return calls({ rows => 0, %$field }, @parts); }

my ($status, $out, $err) = dump_record(with_calls(501, 733, storage(3, 17, $old, $gone, row(5, 14, 733, $tuple), old_row(5, 15, 700, 0xfedcba9876543210)),
	storage(3, 17, piece(5, 15, 2, 0, 'a' x 100), row(5, 15, 733, $outside)), values_of({ timestamp => 1500000 }, $lanes)));
is("$status $err", '0 ', 'old rows and lanes made by hand are sound');
like($out, qr/^    storage 3, creation 17: 2 rows, 1 of them gone, 2 old rows
      \(5,12\) old row, xmin 700, checksum 0000000000000123, 16 bytes
      \(5,12\) xmin 0 gone
      \(5,14\) xmin 733 16 bytes
      \(5,15\) old row, xmin 700, checksum fedcba9876543210
    storage 3, creation 17: 1 rows, 0 of them gone, 1 pieces of large values
      \(5,15\) attribute 2, piece 0: 100 bytes
      \(5,15\) xmin 733 36 bytes
    values of database 5, 2000-01-01 00:00:01.500000\+00, \d+ bytes
      values, lanes 7, 31207
/m, 'and printed') or diag($out);
foreach my $case (
	['values, all lanes', $VALUES . number(1) . number(0)],
	['values, shared tables', $VALUES . number(2) . number(0)],
	['values, all lanes, shared tables', $VALUES . number(3) . number(0)],
	['values, lanes 9, shared tables', $VALUES . number(2) . number(1) . number(9)])
{
	my ($said, $part) = @$case;
	($status, $out, $err) = dump_record(with_calls(501, 733, $rows, values_of({}, $part)));
	like("$status $err$out", qr/^0 .*^      \Q$said\E$/ms, $said);
}

foreach my $case (
	['no lanes, and not said which', 'impossible lanes of values', values_of({}, $VALUES . number(0) . number(0))],
	['all lanes, and a list', 'impossible lanes of values', values_of({}, $VALUES . number(1) . number(1) . number(7))],
	['flags that are unknown', 'impossible number in a call', values_of({}, $VALUES . number(4) . number(1) . number(7))],
	['lane 0', 'impossible lane of a call', values_of({}, $VALUES . number(0) . number(1) . number(0))],
	['a lane too high', 'impossible lane of a call', values_of({}, $VALUES . number(0) . number(2) . number(65535) . number(1))],
	['lanes that run out', 'impossible number in a call', values_of({}, $VALUES . number(0) . number(3) . number(1))],
	['a call behind values', 'something follows the lanes of values', values_of({}, $lanes, $call)],
	['lanes behind values', 'lanes of calls are not their first part', values_of({}, $lanes, $LANES . number(1) . number(7))],
	['values behind lanes', 'lanes of calls are not their first part', calls({}, $LANES . number(1) . number(7), $lanes)],
	['values twice', 'lanes of calls are not their first part', values_of({}, $lanes, $lanes)],
	['a checksum', 'values have a checksum of calls', values_of({ checksum => 1 }, $lanes)],
	['rows of calls', 'values have a checksum of calls', calls({ rows => 1 }, $lanes)],
	['a storage behind them', 'something follows the calls of a record', values_of({}, $lanes) . $rows])
{
	my ($name, $problem, $section) = @$case;
	($status, $out, $err) = dump_record(with_calls(501, 733, $rows, $section));
	ok($status >> 8 == 2 && $err =~ /: \Q$problem\E$/m, "damaged: $name") or diag("$status\n$out$err");
}
my @pieces = (piece(5, 12, 2, 0, 'a' x 100), piece(5, 12, 2, 1, 'b' x 7));
my $large  = row(5, 12, 733, $outside);
foreach my $case (
	['an old row alone', 'an old row without its row', storage(3, 17, $old)],
	['an old row before another row', 'an old row without its row', storage(3, 17, $old, row(5, 14, 733, $tuple))],
	['an old row at the end of its storage', 'an old row without its row', storage(3, 17, $old), storage(4, 18, $gone)],
	['an old row in another section', 'an old row in another section than its row', storage(3, 17, $old), storage(3, 17, $gone)],
	['an old row twice', 'an old row is not before its row', storage(3, 17, $old, $old, $gone)],
	['an old row amid pieces', 'an old row is not before its row', storage(3, 17, $pieces[0], $old, $pieces[1], $large)],
	['an old row behind pieces', 'an old row is not before its row', storage(3, 17, @pieces, $old, $large)],
	['pieces in the section of the old row', 'the first piece of a row does not begin a section', storage(3, 17, $old, @pieces, $large)],
	['pieces of another row', 'an old row without its row', storage(3, 17, $old), storage(3, 17, piece(5, 14, 2, 0, 'a'), row(5, 14, 733, $outside))],
	['an old row without checksum', 'impossible length of an old row', storage(3, 17, row(5, 12 | 0x4000, 700, 'x' x 7), $gone)],
	['an old row without bytes', 'impossible length of an old row', storage(3, 17, row(5, 12 | 0x4000, 700), $gone)],
	['a tuple that is too short', 'impossible length of an old row', storage(3, 17, old_row(5, 12, 700, 1, 'x'), $gone)],
	['a packed one', 'impossible length of a packed row', storage(3, 17, packed_row(5, 12 | 0x4000, 700, 30, 'x' x 20), $gone)],
	['a piece that is an old row', 'an old row is a piece', storage(3, 17, row(5, 12 | 0xc000, 700, 'x' x 30), $gone)],
	['a place in the header of its block', 'impossible place of a row', storage(3, 17, old_row(5, 2, 700, 1, $tuple), $gone)],
	['an old row that runs out', 'impossible length of a row', storage(3, 17, pack('L<S<S<L<', 5, 12 | 0x4000, 4000, 700) . 'x' x 40)])
{
	my ($name, $problem, @storages) = @$case;
	foreach my $from (0, 100000)
	{
		($status, $out, $err) = dump_record(commit(501, 733, @storages), undef, "--from=$from");
		ok($status >> 8 == 2 && $err =~ /: \Q$problem\E$/m, "damaged: $name") or diag("$status\n$out$err");
	}
}
# files of versions 3 and 4 are read as ever, one of a later version is not
foreach my $version (3, 4, 6)
{
	my $log = NvmLog->new(uuid => $uuid, version => $version);
	my $dir = "$base/version$version";
	mkdir($dir) or die $!;
	$log->block([ commit(501, 733, storage(3, 17, row(5, 12, 733, $tuple))) ]);
	$log->write($dir);
	IPC::Run::run([ 'nvm_logdump', $dir ], '>', \$out, '2>', \$err);
	is($? >> 8, $version < 6 ? 0 : 1, "version $version");
}
# bytes by chance, with a right checksum: damage or not, nothing else
my $whole = with_calls(501, 733, storage(3, 17, $old, $gone, old_row(5, 15, 700, 7)), storage(3, 17, piece(5, 15, 2, 0, 'a' x 10), row(5, 15, 733, $outside)), values_of({}, $lanes));
my $seed = $ENV{NVM_SEED} // int(rand(1 << 30));
note("seed $seed");
srand($seed);
my %said = NvmLog::change_by_chance(\&dump_record, $whole, 24);
is(join(' ', grep { $_ != 0 && $_ != 512 } keys %said), '', 'bytes by chance: sound or damaged') or diag(explain(\%said));
ok($said{512}, 'some of them are damaged');

## what a server writes

my $node = NvmTest->start_new('values', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_prepared_transactions = 5
max_worker_processes = 8
restart_after_crash = off
CONF
CREATE TABLE stock (w int, i int, n int NOT NULL, s text, PRIMARY KEY (w, i)) USING nvm_cmdlog;
ALTER TABLE stock ALTER s SET STORAGE EXTERNAL;
SELECT nvm.partition_table('stock', 'w');
CREATE TABLE nokey (w int NOT NULL, i int, n int, s text) USING nvm_cmdlog;
ALTER TABLE nokey ALTER s SET STORAGE EXTERNAL;
SELECT nvm.partition_table('nokey', 'w');
CREATE TABLE item (i int PRIMARY KEY, n int) USING nvm_cmdlog;
CREATE TABLE ident (w int NOT NULL, i int NOT NULL, n int, UNIQUE (w, i)) USING nvm_cmdlog;
ALTER TABLE ident REPLICA IDENTITY USING INDEX ident_w_i_key;
CREATE TABLE both_keys (a int PRIMARY KEY, b int NOT NULL UNIQUE, n int) USING nvm_cmdlog;
CREATE TABLE later (i int PRIMARY KEY DEFERRABLE INITIALLY DEFERRED, n int) USING nvm_cmdlog;
CREATE TABLE uniq (i int NOT NULL UNIQUE, n int) USING nvm_cmdlog;
CREATE TABLE full_identity (i int PRIMARY KEY, n int) USING nvm_cmdlog;
ALTER TABLE full_identity REPLICA IDENTITY FULL;
CREATE TABLE parts (p int NOT NULL, n int) PARTITION BY LIST (p);
SELECT format('CREATE TABLE part%s PARTITION OF parts FOR VALUES IN (%s) USING nvm_cmdlog', p, p) FROM generate_series(1, 70) p \gexec
CREATE TABLE a_heap (i int PRIMARY KEY);
CREATE TABLE a_vlog (i int PRIMARY KEY, n int) USING nvm_vlog;
CREATE TABLE a_vlog_too (i int, n int) USING nvm_vlog;
CREATE UNLOGGED TABLE not_logged (i int, n int) USING nvm_cmdlog;
CREATE FUNCTION put(w int, i int, n int, s text) RETURNS void LANGUAGE sql AS 'INSERT INTO stock VALUES (w, i, n, s)';
CREATE FUNCTION put_nokey(w int, i int, n int, s text) RETURNS void LANGUAGE sql AS 'INSERT INTO nokey VALUES (w, i, n, s)';
CREATE FUNCTION take(w int, i int, k int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE left_over int;
BEGIN
	UPDATE stock s SET n = n - k WHERE s.w = take.w AND s.i = take.i RETURNING n INTO left_over;
	RETURN left_over;
END $$;
CREATE FUNCTION several(ws int[]) RETURNS void LANGUAGE plpgsql AS
'DECLARE x int; BEGIN FOREACH x IN ARRAY ws LOOP UPDATE stock SET n = n + 1 WHERE w = x AND i = 1; END LOOP; END';
CREATE FUNCTION on_all() RETURNS void LANGUAGE plpgsql AS 'BEGIN UPDATE stock SET n = n + 1 WHERE i = 1; END';
SQL
my $dir = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', $_[0]); }

# what is recorded of these statements
sub records_of
{
	my ($sql, %params) = @_;

	# what nobody waits for, too
	sql('UPDATE not_logged SET n = 1; UPDATE a_vlog SET n = 1 WHERE i = 0');
	my $before = NvmLog::dump_of($dir)->{end};
	my ($ret, undef, $stderr) = $node->psql($params{database} // 'postgres', $sql);
	die $stderr if $ret != 0;
	my $dump = NvmLog::dump_of($dir, from => $before);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($dump->{problem}, '', 'the log is whole') if $dump->{problem} ne '';
	return grep { $_->{kind} =~ /COMMIT|ASK/ } @{ $dump->{records} };
}

# the first three columns, which are integers, and those of the old row, as text
sub text_of
{
	my ($row, $n) = @_;
	my $is = $row->{data} eq '' ? 'gone' : NvmLog::ints_of($row->{data}, $n);
	return $is unless $row->{old};
	return "$is was " . ($row->{old}{data} eq '' ? 'known' : NvmLog::ints_of($row->{old}{data}, $n));
}

# rows of the only record, sorted
sub rows_of
{
	my ($sql, $n) = @_;
	my @records = records_of($sql);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(scalar(@records), 1, 'one record') if @records != 1;
	return join('; ', sort map { text_of($_, $n // 3) } @{ $records[0]{rows} });
}

sub lanes_of
{
	my ($sql) = @_;
	my @records = records_of($sql);
	return join('; ', map { $_->{values} ? $_->{values}{lanes} : 'none' } @records);
}

sub checksum { my ($row) = @_; return $row->{old} ? sprintf('%016x', $row->{old}{checksum}) : 'none'; }

# without a registration: old rows, and no lanes, but the record says whose it is
sql('INSERT INTO stock SELECT w, i, 100, $$s$$ || i FROM generate_series(1, 60) w, generate_series(1, 20) i; INSERT INTO a_vlog VALUES (0, 0)');
my ($record) = records_of('DELETE FROM stock WHERE w = 60 AND i = 1');
is(text_of($record->{rows}[0], 3), 'gone was 60|1|100', 'no function is registered: the old row is there');
ok(!$record->{values} && !$record->{calls}, 'no lanes');
like($record->{xid} // 'none', qr/^\d+$/, 'and the xid');

sql($_) foreach "SELECT nvm.register_command('put(int,int,int,text)', '{w}')", "SELECT nvm.register_command('put_nokey(int,int,int,text)', '{w}')",
  "SELECT nvm.register_command('take(int,int,int)', '{w}')", "SELECT nvm.register_command('several(int[])', '{ws}')", "SELECT nvm.register_command('on_all()', 'all')";
my $holds = q{SELECT string_agg(lane::text, ', ' ORDER BY lane) FROM nvm.lanes WHERE pid = pg_backend_pid() AND target = 'lane'};
my %lane;
sub lane
{
	my ($w) = @_;
	($lane{$w}) = sql("BEGIN; SELECT take($w, 1, 0); $holds; COMMIT") =~ /\n(\d+)/ unless $lane{$w};
	return $lane{$w};
}
sub lanes { my (@w) = @_; return 'lanes ' . join(', ', sort { $a <=> $b } map { lane($_) } @w); }

# the checksum of a row, as that of the call that makes it
sub made_by
{
	my ($call) = @_;
	my ($r) = records_of("SELECT $call");
	die 'no call' unless $r->{calls} && $r->{calls}{rows} == 1;
	return $r->{calls}{checksum};
}

## old rows of a table that has a key

is(rows_of('INSERT INTO stock VALUES (7, 100, 1)'), '7|100|1', 'INSERT: no old row');
is(rows_of('UPDATE stock SET n = 2 WHERE w = 7 AND i = 100'), '7|100|2', 'UPDATE in place: none, the key is in the row');
is(rows_of('INSERT INTO stock VALUES (7, 100, 9) ON CONFLICT (w, i) DO UPDATE SET n = 3'), '7|100|3', 'ON CONFLICT DO UPDATE: none');
is(rows_of('UPDATE stock SET i = 101 WHERE w = 7 AND i = 100'), '7|101|3; gone was 7|100|3', 'UPDATE of the key: of the row that is gone');
is(rows_of('UPDATE stock SET w = 8 WHERE w = 7 AND i = 101'), '8|101|3; gone was 7|101|3', 'UPDATE of the lane: likewise');
is(rows_of('DELETE FROM stock WHERE w = 8 AND i = 101'), 'gone was 8|101|3', 'DELETE');
is(rows_of('BEGIN; UPDATE stock SET n = 1 WHERE w = 7 AND i = 1; UPDATE stock SET n = 2 WHERE w = 7 AND i = 1; DELETE FROM stock WHERE w = 7 AND i = 1; COMMIT'),
	'gone was 7|1|100', 'UPDATE twice and DELETE: what was before the transaction');
is(rows_of('BEGIN; UPDATE stock SET n = 1 WHERE w = 7 AND i = 2; UPDATE stock SET i = 102 WHERE w = 7 AND i = 2; UPDATE stock SET n = 3 WHERE w = 7 AND i = 102; COMMIT'),
	'7|102|3; gone was 7|2|100', 'UPDATE, then of the key, then again');
is(rows_of('BEGIN; DELETE FROM stock WHERE w = 7 AND i = 102; INSERT INTO stock VALUES (7, 102, 4); COMMIT'), '7|102|4; gone was 7|102|3', 'DELETE and INSERT of the same key');
is(rows_of('BEGIN; INSERT INTO stock VALUES (7, 103, 1), (7, 104, 1); DELETE FROM stock WHERE w = 7 AND i = 103; UPDATE stock SET i = 105 WHERE w = 7 AND i = 104; COMMIT'),
	'7|105|1', 'of rows that the transaction has made: none');
is(rows_of('BEGIN; SAVEPOINT a; DELETE FROM stock WHERE w = 7 AND i = 3; ROLLBACK TO a; UPDATE stock SET n = 5 WHERE w = 7 AND i = 4; SAVEPOINT b; UPDATE stock SET n = 6 WHERE w = 7 AND i = 4; RELEASE b; SAVEPOINT c; UPDATE stock SET n = 7 WHERE w = 7 AND i = 4; ROLLBACK TO c; DELETE FROM stock WHERE w = 7 AND i = 4; COMMIT'),
	'gone was 7|4|100', 'savepoints: what was rolled back leaves nothing');
my $sum = made_by(q{put(9, 200, 5, 'abc')});
($record) = records_of('BEGIN; UPDATE stock SET n = 6 WHERE w = 9 AND i = 200; DELETE FROM stock WHERE w = 9 AND i = 200; COMMIT');
is(checksum($record->{rows}[0]), $sum, 'the checksum is that of the row as it was made');
is(made_by(q{put(9, 200, 5, 'abc')}), $sum, 'wherever it lies');
sql(q{UPDATE stock SET s = 'abd' WHERE w = 9 AND i = 200});
($record) = records_of('DELETE FROM stock WHERE w = 9 AND i = 200');
isnt(checksum($record->{rows}[0]), $sum, 'of another row, another one');

# other keys
sql('INSERT INTO ident VALUES (1, 1, 1), (1, 2, 2); INSERT INTO both_keys VALUES (1, 11, 1), (2, 12, 2); INSERT INTO later VALUES (1, 1), (2, 2); INSERT INTO uniq VALUES (1, 1), (2, 2); INSERT INTO full_identity VALUES (1, 1), (2, 2)');
is(rows_of('UPDATE ident SET n = 3 WHERE i = 1'), '1|1|3', 'REPLICA IDENTITY: an index is a key');
is(rows_of('DELETE FROM ident WHERE i = 1'), 'gone was 1|1|3', 'of which the old row says all');
is(rows_of('UPDATE both_keys SET b = 21 WHERE a = 1'), '1|21|1; gone was 1|11|1', 'another unique index than the key');
is(rows_of('UPDATE later SET n = 3 WHERE i = 1', 2), '1|3', 'a key may be deferrable');
is(rows_of('UPDATE full_identity SET n = 3 WHERE i = 1', 2), '1|3', 'REPLICA IDENTITY FULL: the primary key is the key');
is(rows_of('UPDATE uniq SET n = 3 WHERE i = 1', 2), '1|3 was known', 'a unique index by itself is none');
sql('ALTER TABLE ident REPLICA IDENTITY DEFAULT');
is(rows_of('UPDATE ident SET n = 4 WHERE i = 2'), '1|2|4 was known', 'what is no replica identity any more, neither');
sql('ALTER TABLE ident REPLICA IDENTITY USING INDEX ident_w_i_key');
is(rows_of('UPDATE ident SET n = 5 WHERE i = 2'), '1|2|5', 'and again');
sql('ALTER TABLE uniq ADD PRIMARY KEY (i)');
is(rows_of('UPDATE uniq SET n = 4 WHERE i = 1', 2), '1|4', 'a key that was added');
sql('ALTER TABLE uniq DROP CONSTRAINT uniq_pkey');
is(rows_of('UPDATE uniq SET n = 5 WHERE i = 1', 2), '1|5 was known', 'and one that was dropped');
is(rows_of('BEGIN; UPDATE uniq SET n = 6 WHERE i = 1; ALTER TABLE uniq ADD PRIMARY KEY (i); UPDATE uniq SET n = 6 WHERE i = 2; COMMIT', 2), '1|6 was known; 2|6 was known', 'no key at one of the writes: none');

## of one that has none

is(rows_of('INSERT INTO nokey SELECT 7, i, 1 FROM generate_series(1, 9) i') =~ tr/;//, 8, 'INSERT');
is(rows_of('UPDATE nokey SET n = 2 WHERE w = 7 AND i = 1'), '7|1|2 was known', 'UPDATE in place without key: the old row is known by its checksum');
is(rows_of('DELETE FROM nokey WHERE w = 7 AND i = 1'), 'gone was known', 'DELETE');
is(rows_of('BEGIN; INSERT INTO nokey VALUES (7, 10, 1); UPDATE nokey SET n = 2 WHERE i = 10; COMMIT'), '7|10|2', 'none of a row that the transaction has made');
sql('DELETE FROM nokey');
$sum = made_by(q{put_nokey(7, 1, 1, 'abc')});
($record) = records_of('BEGIN; UPDATE nokey SET n = 2 WHERE i = 1; SAVEPOINT a; UPDATE nokey SET n = 3 WHERE i = 1; ROLLBACK TO a; UPDATE nokey SET n = 4 WHERE i = 1; SAVEPOINT b; UPDATE nokey SET n = 5 WHERE i = 1; COMMIT');
is(text_of($record->{rows}[0], 3) . ' ' . checksum($record->{rows}[0]), "7|1|5 was known $sum", 'UPDATE many times: the first version');
is(scalar(@{ $record->{rows} }), 1, 'once');
sql(q{UPDATE nokey SET n = 1});
($record) = records_of('BEGIN; UPDATE nokey SET n = 2; UPDATE nokey SET n = 3; DELETE FROM nokey; COMMIT');
is(checksum($record->{rows}[0]), $sum, 'and DELETE');
# the chain before the transaction is long, pruned, and held by a snapshot
sql(q{INSERT INTO nokey VALUES (7, 1, 1, 'abc')});
my $holder = $node->session;
$holder->sql('BEGIN ISOLATION LEVEL REPEATABLE READ');
$holder->sql('SELECT count(*) FROM nokey');
sql("UPDATE nokey SET n = $_") foreach 2 .. 40, 1;
($record) = records_of(join('; ', 'BEGIN', map({ "UPDATE nokey SET n = $_" } 2 .. 40), 'COMMIT'));
is(text_of($record->{rows}[0], 3) . ' ' . checksum($record->{rows}[0]), "7|1|40 was known $sum", 'many versions before it, and in it');
$holder->sql('COMMIT');
sql('DELETE FROM nokey; VACUUM nokey');

## large values

$sum = made_by(q{put(9, 300, 1, repeat('x', 100000))});
($record) = records_of('DELETE FROM stock WHERE w = 9 AND i = 300');
is(text_of($record->{rows}[0], 3) . ' ' . checksum($record->{rows}[0]), "gone was 9|300|1 $sum", 'DELETE of a row with a large value: the checksum has it');
cmp_ok(length($record->{rows}[0]{old}{data}), '<', 200, 'but the old row has not');
ok(!defined $record->{side}, 'so the record is short');
$sum = made_by(q{put_nokey(9, 1, 1, repeat('x', 100000))});
($record) = records_of('UPDATE nokey SET n = 2 WHERE w = 9');
is(text_of($record->{rows}[0], 3) . ' ' . checksum($record->{rows}[0]), "9|1|2 was known $sum", 'UPDATE without key: the old row comes before the pieces of the new one');
ok(defined $record->{side}, 'which are in a side file');
($record) = records_of(q{UPDATE nokey SET s = 'short' WHERE w = 9});
like(text_of($record->{rows}[0], 3), qr/^9\|1\|2 was known$/, 'from a large value to a short one');
($record) = records_of(q{UPDATE nokey SET s = repeat('y', 9000) WHERE w = 9});
is(text_of($record->{rows}[0], 3) . (defined $record->{side} ? ' aside' : ''), '9|1|2 was known', 'a piece in the record itself');

## lanes

is(lanes_of('UPDATE stock SET n = 1 WHERE w = 7 AND i = 5'), lanes(7), 'the lane of a row');
is(lanes_of('UPDATE stock SET n = 1 WHERE w IN (7, 8, 9) AND i = 5'), lanes(7, 8, 9), 'of several, ascending');
sql('UPDATE stock SET i = 500 WHERE w = 50 AND i = 20');
is(lanes_of('UPDATE stock SET w = 51 WHERE w = 50 AND i = 500'), lanes(50, 51), 'of the old row and the new one');
is(lanes_of('INSERT INTO item VALUES (1, 1)'), 'shared tables', 'a shared table');
is(lanes_of('BEGIN; UPDATE item SET n = 2; UPDATE stock SET n = 1 WHERE w = 7 AND i = 5; COMMIT'), lanes(7) . ', shared tables', 'both');
is(lanes_of('UPDATE stock SET n = 1 WHERE w <= 32 AND i = 5'), lanes(1 .. 32), '32 lanes');
is(lanes_of('UPDATE stock SET n = 1 WHERE w <= 33 AND i = 5'), 'all lanes', '33: all of them');
is(lanes_of('BEGIN; UPDATE item SET n = 2; UPDATE stock SET n = 1 WHERE w <= 40 AND i = 5; COMMIT'), 'all lanes, shared tables', 'and shared ones');
is(lanes_of('BEGIN; UPDATE stock SET n = 1 WHERE w = 7 AND i = 5; SAVEPOINT a; UPDATE stock SET n = 1 WHERE w = 8 AND i = 5; ROLLBACK TO a; COMMIT'), lanes(7), 'what was rolled back to a savepoint has none');
is(lanes_of('BEGIN; SAVEPOINT a; UPDATE stock SET n = 1 WHERE w = 7 AND i = 5; RELEASE a; SAVEPOINT b; UPDATE stock SET n = 1 WHERE w = 8 AND i = 5; COMMIT'), lanes(7, 8), 'what was not, has');
is(lanes_of('BEGIN; SELECT take(7, 5, 1); UPDATE stock SET n = 1 WHERE w = 8 AND i = 5; COMMIT'), lanes(7, 8), 'a call that became values: its lanes, too');
is(lanes_of('BEGIN; SELECT take(7, 5, 1); SAVEPOINT a; SELECT take(8, 5, 1); ROLLBACK TO a; COMMIT'), lanes(7), 'also if it has not exchanged them');
is(lanes_of('BEGIN; SELECT several(ARRAY(SELECT generate_series(1, 40))); UPDATE stock SET n = 1 WHERE w = 3 AND i = 5; COMMIT'), lanes(1 .. 40), 'a call with many lanes, and values in one of these');
is(lanes_of('BEGIN; SELECT several(ARRAY(SELECT generate_series(1, 40))); UPDATE stock SET n = 1 WHERE w = 41 AND i = 5; COMMIT'), 'all lanes', 'in another one: all');
is(lanes_of('BEGIN; SELECT on_all(); UPDATE item SET n = 1; COMMIT'), 'all lanes, shared tables', 'a call with all lanes, and a shared table');
is(lanes_of('BEGIN; SELECT on_all(); SAVEPOINT a; SELECT on_all(); ROLLBACK TO a; COMMIT'), 'all lanes', 'a call with all lanes');
is(lanes_of('SELECT take(7, 5, 1)'), 'none', 'a call by itself has calls instead');
is(join(' ', map { $_->{kind} . ($_->{values} ? ' ' . $_->{values}{lanes} : '') } records_of('BEGIN; CREATE TABLE made (w int PRIMARY KEY) USING nvm_cmdlog; INSERT INTO made VALUES (1); COMMIT')),
	'ASK all lanes', 'a table that was made in the transaction: no lane is held, so all of them');
is(rows_of('BEGIN; CREATE TABLE made_too (w int) USING nvm_cmdlog; INSERT INTO made_too VALUES (1), (2); UPDATE made_too SET w = w + 10; DELETE FROM made_too WHERE w = 11; COMMIT', 1), '12', 'and no old rows');
is(join(' ', map { "$_->{kind} $_->{values}{lanes}" } records_of('BEGIN; INSERT INTO a_heap VALUES (1); UPDATE stock SET n = 1 WHERE w = 7 AND i = 5; COMMIT')), 'ASK ' . lanes(7), 'beside heap');
is(lanes_of('BEGIN; UPDATE a_vlog SET n = 2 WHERE i = 0; SAVEPOINT a; UPDATE stock SET n = 1 WHERE w = 7 AND i = 5; ROLLBACK TO a; COMMIT'), 'none', 'rows of nvm_cmdlog that were rolled back: nothing');
my ($timed) = records_of('BEGIN; SELECT pg_sleep(0.01); UPDATE stock SET n = (extract(epoch FROM now()) * 1000)::bigint % 1000000 WHERE w = 7 AND i = 5; COMMIT');
is(sql("SELECT (extract(epoch FROM '$timed->{values}{timestamp}'::timestamptz) * 1000)::bigint % 1000000 = n FROM stock WHERE w = 7 AND i = 5"), 't', "the transaction's time");
is($timed->{values}{database}, sql('SELECT oid FROM pg_database WHERE datname = current_database()'), 'and database');
is($timed->{xid}, sql('SELECT xmin FROM stock WHERE w = 7 AND i = 5'), 'and xid');

# prepared
my ($prepared) = records_of(q{BEGIN; UPDATE item SET n = 7; DELETE FROM stock WHERE w = 7 AND i = 6; PREPARE TRANSACTION 'p'});
is("$prepared->{kind} $prepared->{values}{lanes}", 'ASK ' . lanes(7) . ', shared tables', 'PREPARE TRANSACTION: the ASK record has lanes');
is(join('; ', sort map { text_of($_, 2) } @{ $prepared->{rows} }), '1|7; gone was 7|6', 'and old rows');
is(scalar(records_of(q{COMMIT PREPARED 'p'})), 0, 'its end has nothing');

# many tables, and rows that go to another partition
sql('INSERT INTO parts SELECT p, 1 FROM generate_series(1, 70) p');
my @many = records_of('DELETE FROM parts WHERE p > 2');
is(scalar(grep { text_of($_, 2) eq 'gone was known' } map { @{ $_->{rows} } } @many), 68, 'more tables than calls may write: each has its old row');
is(rows_of('UPDATE parts SET p = 2 WHERE p = 1', 2), '2|1; gone was known', 'to another partition');

## tables of nvm_vlog

sub bytes_of { my ($r) = @_; my $said = ''; IPC::Run::run([ 'nvm_logdump', $dir ], '>', \$said); return $said =~ /^  COMMIT $r->{number}, (\d+) bytes, place $r->{place}$/m ? $1 : 'not brief'; }
sql('INSERT INTO a_vlog VALUES (1, 1), (2, 2); INSERT INTO a_vlog_too VALUES (1, 1), (2, 2)');
foreach my $case (
	['UPDATE a_vlog SET n = 5 WHERE i = 1', '1|5', 16 + 8 + 12 + 16 + 4],
	['DELETE FROM a_vlog WHERE i = 1', 'gone', 16 + 8 + 12 + 4],
	['UPDATE a_vlog_too SET n = 5 WHERE i = 1', '1|5', 16 + 8 + 12 + 16 + 4],
	['DELETE FROM a_vlog_too WHERE i = 1', 'gone', 16 + 8 + 12 + 4],
	['INSERT INTO a_vlog VALUES (7, 7)', '7|7', 16 + 8 + 12 + 16 + 4])
{
	my ($sql, $expected, $bytes) = @$case;
	my ($r) = records_of($sql);
	is(text_of($r->{rows}[0], 2) . ' ' . bytes_of($r) . ' ' . ($r->{values} ? 'lanes' : ''), "$expected $bytes ", "nvm_vlog: $sql");
}
is(rows_of('BEGIN; DELETE FROM a_vlog WHERE i = 7; DELETE FROM stock WHERE w = 7 AND i = 7; COMMIT', 2), 'gone; gone was 7|7', 'nor if rows of nvm_cmdlog are beside them');

## other databases

sql('CREATE DATABASE other');
$node->safe_psql('other', 'CREATE EXTENSION pg_nvm; CREATE TABLE t (i int PRIMARY KEY, n int) USING nvm_cmdlog; INSERT INTO t VALUES (1, 1)');
($record) = records_of('DELETE FROM t', database => 'other');
is(text_of($record->{rows}[0], 2) . ($record->{values} ? ' lanes' : '') . ($record->{xid} ? ' xid' : ''), 'gone was 1|1 xid', 'a database without registrations');

## recovery

sub contents { return sql('SELECT (SELECT md5(string_agg(s::text, $$,$$ ORDER BY s)) FROM stock s), (SELECT md5(string_agg(s::text, $$,$$ ORDER BY s)) FROM nokey s), (SELECT md5(string_agg(s::text, $$,$$ ORDER BY s)) FROM item s), (SELECT md5(string_agg(s::text, $$,$$ ORDER BY s)) FROM parts s)'); }
my $want;
# large records: chunks of their side files begin anywhere
sql(q{INSERT INTO stock SELECT 55, i, i, repeat('z', 60) FROM generate_series(1000, 90000) i; INSERT INTO nokey SELECT 55, i, i, repeat('y', 20000) FROM generate_series(1, 300) i});
foreach my $end ('kill -9', 'a checkpoint and kill -9', 'a restart')
{
	sql('SELECT nvm.checkpoint()') if $end =~ /checkpoint/;
	my ($many) = records_of('DELETE FROM stock WHERE w = 55 AND i % 7 ' . ($end eq 'kill -9' ? '> 1' : $end eq 'a restart' ? '= 1' : '= 0'));
	ok(defined $many->{side} && !grep({ !$_->{old} } @{ $many->{rows} }), "$end: many old rows in a side file");
	($many) = records_of('UPDATE nokey SET n = n + 1 WHERE w = 55');
	is(scalar(grep { $_->{old} } @{ $many->{rows} }), 300, "$end: old rows and large values");
	sql('BEGIN; UPDATE item SET n = n + 1; DELETE FROM stock WHERE w = 5 AND n < 100 AND i > 15; UPDATE nokey SET i = i + 1 WHERE w = 9; COMMIT');
	$want = contents();
	if ($end =~ /kill/) { $node->crash; $node->start; } else { $node->restart; }
	is(contents(), $want, "$end: rows come back");
	is(NvmLog::dump_of($dir)->{problem}, '', 'the log is whole');
}
my $said = '';
sql('SELECT nvm.checkpoint()');
IPC::Run::run([ 'nvm_logdump', '--rows', $dir ], '>', \$said);
my ($of_checkpoint) = $said =~ /^(checkpoint .*?)^file \S+\.log/ms;
ok($of_checkpoint =~ /^      \(\d+,\d+\) xmin \d+ \d+ bytes/m && $of_checkpoint !~ /old row|values of/, 'a checkpoint has rows, no old ones, and no lanes');
$node->check_clean('after restarts');

# prepared, over a loss
sql(q{BEGIN; UPDATE nokey SET n = 77 WHERE w = 9; DELETE FROM stock WHERE w = 10 AND i = 1; PREPARE TRANSACTION 'q'});
$node->crash;
$node->start;
is(lanes_of(q{COMMIT PREPARED 'q'}), '', 'a prepared transaction after a loss');
is(sql('SELECT (SELECT string_agg(n::text, $$,$$) FROM nokey WHERE w = 9), (SELECT count(*) FROM stock WHERE w = 10 AND i = 1)'), '77|0', 'ends as it was said');
$node->crash;
$node->start;
is(sql('SELECT (SELECT string_agg(n::text, $$,$$) FROM nokey WHERE w = 9), (SELECT count(*) FROM stock WHERE w = 10 AND i = 1)'), '77|0', 'and after another one');

# deaths in the midst of it: all of a transaction, or nothing
foreach my $place (qw(log-capture log-captured log-placing log-placed log-write log-sync log-synced log-side-sync))
{
	my $before = sql(q{SELECT (SELECT n FROM nokey WHERE w = 9), (SELECT count(*) FROM stock WHERE w = 11)});
	my $many = $place =~ /side/ ? q{UPDATE nokey SET n = n + 1 WHERE w = 55; } : '';
	my $changes = "${many}UPDATE nokey SET n = n + 1 WHERE w = 9; DELETE FROM stock WHERE w = 11 AND i = (SELECT min(i) FROM stock WHERE w = 11)";
	# hints on catalogs are WAL where pages have checksums; the transaction is to write none
	my ($ret) = $node->psql('postgres', "BEGIN; $changes; ROLLBACK; SET nvm.failpoint = '$place:crash'; BEGIN; $changes; COMMIT");
	isnt($ret, 0, "$place: it is reached");
	$node->wait_crashed;
	$node->start;
	my $after = sql(q{SELECT (SELECT n FROM nokey WHERE w = 9), (SELECT count(*) FROM stock WHERE w = 11)});
	my ($n, $count) = split /\|/, $before;
	ok($after eq $before || $after eq join('|', $n + 1, $count - 1), "$place: both tables, or none") or diag("$before, then $after");
	is(NvmLog::dump_of($dir)->{problem}, '', "$place: the log is whole");
}
$node->check_clean('at the end');

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# The calls that a record of the log has: they are all of the transaction's, with arguments,
# lanes, times, role and settings as they were, and are there only if the transaction could be
# replayed by them.  The checksum says what the rows contain, not where they lie.  A recovery steps
# over them, wherever the server dies; damage in them is found as damage of rows is.

use strict;
use warnings;

use File::Basename;
use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

## what nvm_logdump makes of a section that was made by hand

my $base  = PostgreSQL::Test::Utils::tempdir_short();
my $uuid  = pack('H32', '0badc0de' . '00' x 12);
my $tuple = pack('S<S<CC', 2, 0, 24, 0) . 'x' x 10;
my $rows  = storage(3, 17, row(5, 12, 733, $tuple));
my ($LANES, $SETTINGS, $CALL, $TAPE) = map { chr } 1 .. 4;
my $lanes    = $LANES . number(2) . number(7) . number(31200);
my $settings = $SETTINGS . number(10) . number(1) . number(2) . number(3) . 'UTC';
my $call     = $CALL . number(16402) . number(0, 1) . number(0) . number(2) . value(23, chr(7)) . value(23);
# of the types that may be packed, length and bytes
sub packed { my ($type, $is_packed, $bytes) = @_; return number($type) . number(2 * length($bytes) + $is_packed + 1) . $bytes; }
my $arrays = $CALL . number(16402) . number(0, 1) . number(0) . number(3) . packed(1007, 1, number(1, 1) . number(300, 1) . number(-5, 1)) . packed(1016, 1, '') . packed(1000, 1, number(1, 1) . number(0, 1));
my $tape     = $TAPE . number(1574) . value(20, "\xff\x00");
my $ndirs    = 0;

sub dump_record
{
	my ($record, $change, @options) = @_;
	return NvmLog::dump_made("$base/" . $ndirs++, $uuid, $record, $change, @options);
}

my ($status, $out, $err) = dump_record(with_calls(501, 733, $rows, calls({ checksum => 0x123, timestamp => 1500000 }, $lanes, $settings, $call, $tape, $call)));
is("$status $err", '0 ', 'a section made by hand is sound');
like($out, qr/^    storage 3, creation 17: 1 rows, 0 of them gone
    calls of database 5, 2000-01-01 00:00:01.500000\+00, \d+ bytes, checksum 0000000000000123 of 1 rows
      lanes 7, 31207
      role 10, TimeZone = 'UTC'
      call 16402\(7, NULL::integer\)
        tape of 1574: '255'::bigint
      call 16402\(7, NULL::integer\)
/m, 'and printed');
($status, $out, $err) = dump_record(with_calls_alone(501, 733, calls({}, $lanes, $settings, $call)));
is($err . ($out =~ /^  COMMIT 501, xid 733, \d+ bytes, place \d+\n    (calls alone) of database 5/m ? $1 : $out), 'calls alone', 'calls without rows');
($status, $out, $err) = dump_record(with_calls(501, 733, $rows, calls({}, $LANES . number(0), $settings, $call)));
like($out, qr/^      all lanes$/m, 'no lane: all of them');
($status, $out, $err) = dump_record(with_calls(501, 733, $rows, calls({}, $lanes, $settings, $arrays)));
like($out, qr/^      call 16402\('\{1,300,-5\}'::integer\[\], '\{\}'::bigint\[\], '\{true,false\}'::boolean\[\]\)$/m, 'packed arrays') or diag("$status $out $err");

foreach my $case (
	['no lanes', 'lanes of calls are not their first part', calls({}, $settings, $call)],
	['lanes twice', 'lanes of calls are not their first part', calls({}, $lanes, $settings, $call, $lanes)],
	['no settings', 'a call without settings', calls({}, $lanes, $call)],
	['no call', 'a section of calls has none', calls({}, $lanes, $settings)],
	['a tape without call', 'a tape without its call', calls({}, $lanes, $settings, $tape, $call)],
	['a tape behind settings', 'a tape without its call', calls({}, $lanes, $settings, $call, $settings, $tape)],
	['lane 0', 'impossible lane of a call', calls({}, $LANES . number(1) . number(0), $settings, $call)],
	['a lane too high', 'impossible lane of a call', calls({}, $LANES . number(2) . number(65535) . number(1), $settings, $call)],
	['an unknown setting', 'impossible number in a call', calls({}, $lanes, $SETTINGS . number(10) . number(1) . number(26) . number(0), $call)],
	['a setting that runs out', 'impossible setting of a call', calls({}, $lanes, $SETTINGS . number(10) . number(1) . number(1) . number(90))],
	['a packed array that runs out', 'impossible array in a call', calls({}, $lanes, $settings, $CALL . number(1) x 3 . number(1) . packed(1007, 1, "\x81\x80"))],
	['an element that is too large', 'impossible array in a call', calls({}, $lanes, $settings, $CALL . number(1) x 3 . number(1) . packed(1005, 1, number(40000, 1)))],
	['an element of too many bytes', 'impossible array in a call', calls({}, $lanes, $settings, $CALL . number(1) x 3 . number(1) . packed(1016, 1, "\xff" x 11 . "\x01"))],
	['an argument that runs out', 'impossible value in a call', calls({}, $lanes, $settings, $CALL . number(1) x 3 . number(1) . number(23) . number(90))],
	['an argument without type', 'impossible value in a call', calls({}, $lanes, $settings, $CALL . number(1) x 3 . number(1) . value(0, 'x'))],
	['too many arguments', 'impossible number in a call', calls({}, $lanes, $settings, $CALL . number(1) x 3 . number(101) . value(23) x 101)],
	['a number without end', 'impossible number in a call', calls({}, $lanes, $settings, $CALL . chr(255) x 12)],
	['an unknown part', 'unknown part of a call', calls({}, $lanes, $settings, $call, chr(9))],
	['a database without Oid', 'calls of no database', calls({ database => 0 }, $lanes, $settings, $call)],
	['parts longer than the section', 'impossible length of calls', calls({ length => 400 }, $lanes, $settings, $call)],
	['parts shorter than the section', 'impossible length of calls', calls({ length => 4 }, $lanes, $settings, $call)],
	['a storage behind them', 'something follows the calls of a record', calls({}, $lanes, $settings, $call) . $rows],
	['calls twice', 'something follows the calls of a record', calls({}, $lanes, $settings, $call) x 2])
{
	my ($name, $problem, $section) = @$case;
	($status, $out, $err) = dump_record(with_calls(501, 733, $rows, $section));
	ok($status >> 8 == 2 && $err =~ /: \Q$problem\E$/m, "damaged: $name") or diag("$status\n$out$err");
}
foreach my $case (
	['a record without the flag', 'calls in a record that has none', commit(501, 733, $rows, calls({}, $lanes, $settings, $call))],
	['a record without the calls', 'a record without its calls', with_calls(501, 733, $rows)],
	['values alone', 'a record of calls alone is one of values', with_calls_alone(501, 733, calls({ rows => 0 }, chr(5) . number(1) . number(0)))],
	['alone without calls', 'a record without its calls', with_calls_alone(501, 733, $rows)],
	['alone without the other flag', 'a record of calls alone has none', with_calls_alone(501, 733, calls({}, $lanes, $settings, $call)), sub { $_[0]->put($_[1] + 46, pack('S<', 16)) }],
	['a brief record', 'a record that needs an xid has none', with_calls(501, 733, $rows, calls({}, $lanes, $settings, $call)), sub { $_[0]->put($_[1] + 46, pack('S<', 12)) }])
{
	my ($name, $problem, $record, $change) = @$case;
	($status, $out, $err) = dump_record($record, $change);
	ok($status >> 8 == 2 && $err =~ /: \Q$problem\E$/m, "damaged: $name") or diag("$status\n$out$err");
}

# bytes by chance, with a right checksum: damage or not, nothing else
my $whole = with_calls(501, 733, $rows, calls({}, $lanes, $settings, $call, $tape, $arrays));
my $seed = $ENV{NVM_SEED} // int(rand(1 << 30));
note("seed $seed");
srand($seed);
my %said = NvmLog::change_by_chance(\&dump_record, $whole, 68);
is(join(' ', grep { $_ != 0 && $_ != 512 } keys %said), '', 'bytes by chance: sound or damaged') or diag(explain(\%said));
ok($said{512}, 'some of them are damaged');

## what a server writes

my $node = NvmTest->start_new('record', conf => <<CONF, sql => <<'SQL');
autovacuum = off
max_prepared_transactions = 5
max_worker_processes = 8
restart_after_crash = off
CONF
CREATE TABLE stock (w int, i int, n int NOT NULL, s text, PRIMARY KEY (w, i)) USING nvm_cmdlog;
ALTER TABLE stock ALTER s SET STORAGE EXTERNAL;
SELECT nvm.partition_table('stock', 'w');
INSERT INTO stock SELECT w, i, 100, 's' || i FROM generate_series(1, 20) w, generate_series(1, 20) i;
CREATE TABLE item (i int PRIMARY KEY) USING nvm_cmdlog;
CREATE TABLE a_heap (i int PRIMARY KEY);
CREATE TABLE a_vlog (i int PRIMARY KEY) USING nvm_vlog;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN small AS int CHECK (value < 100);
CREATE FUNCTION take(w int, i int, k int) RETURNS int LANGUAGE plpgsql AS $$
DECLARE left_over int;
BEGIN
	UPDATE stock s SET n = n - k WHERE s.w = take.w AND s.i = take.i RETURNING n INTO left_over;
	RETURN left_over;
END $$;
SELECT nvm.register_command('take(int,int,int)', '{w}');
CREATE FUNCTION of_any(w int, VARIADIC v anyarray) RETURNS int LANGUAGE plpgsql AS
'BEGIN UPDATE stock s SET n = n + 1 WHERE s.w = of_any.w AND i = 1; RETURN 1; END';
SELECT nvm.register_command('of_any(int,anyarray)', '{w}');
CREATE FUNCTION of_types(w int, a bigint, b numeric, c text, d timestamptz, e uuid, f bytea, g float8, h date, i int[], j text[], k boolean, l smallint, m varchar, n mood, o pair, p small, q jsonb, r numeric[]) RETURNS int LANGUAGE sql AS
'UPDATE stock s SET n = n + 1 WHERE s.w = of_types.w AND s.i = 1; SELECT 1';
SELECT nvm.register_command('of_types(int,bigint,numeric,text,timestamptz,uuid,bytea,float8,date,int[],text[],boolean,smallint,varchar,mood,pair,small,jsonb,numeric[])', '{w}');
CREATE PROCEDURE remove(w int, first int, last int) LANGUAGE plpgsql AS
'BEGIN DELETE FROM stock s WHERE s.w = remove.w AND i BETWEEN first AND last; END';
SELECT nvm.register_command('remove(int,int,int)', '{w}');
CREATE PROCEDURE fill(w int, first int, last int, t text) LANGUAGE plpgsql AS
'BEGIN FOR k IN first..last LOOP INSERT INTO stock VALUES (fill.w, k, k, t); END LOOP; END';
SELECT nvm.register_command('fill(int,int,int,text)', '{w}');
CREATE PROCEDURE several(ws int[]) LANGUAGE plpgsql AS
'DECLARE x int; BEGIN FOREACH x IN ARRAY ws LOOP UPDATE stock SET n = n + 1 WHERE w = x AND i = 1; END LOOP; END';
SELECT nvm.register_command('several(int[])', '{ws}');
CREATE PROCEDURE on_all() LANGUAGE plpgsql AS 'BEGIN UPDATE stock SET n = n + 1 WHERE i = 1; END';
SELECT nvm.register_command('on_all()', 'all');
CREATE FUNCTION shared(w int) RETURNS void LANGUAGE plpgsql AS 'BEGIN INSERT INTO item VALUES (w); END';
SELECT nvm.register_command('shared(int)', '{w}');
CREATE FUNCTION looks(w int) RETURNS bigint LANGUAGE plpgsql AS
'BEGIN RETURN (SELECT sum(n) FROM stock s WHERE s.w = looks.w); END';
SELECT nvm.register_command('looks(int)', '{w}');
CREATE FUNCTION moves(w int, n int) RETURNS void LANGUAGE plpgsql AS
'BEGIN FOR k IN 15..20 LOOP UPDATE stock s SET i = k + moves.n WHERE s.w = moves.w AND i = k; END LOOP; END';
SELECT nvm.register_command('moves(int,int)', '{w}');
CREATE TABLE stock_too (LIKE stock INCLUDING ALL) USING nvm_cmdlog;
SELECT nvm.partition_table('stock_too', 'w');
CREATE FUNCTION puts(w int, i int, t regclass) RETURNS void LANGUAGE plpgsql AS
'BEGIN IF t = ''stock''::regclass THEN INSERT INTO stock VALUES (w, i, 1, ''x''); ELSE INSERT INTO stock_too VALUES (w, i, 1, ''x''); END IF; END';
SELECT nvm.register_command('puts(int,int,regclass)', '{w}');
CREATE FUNCTION keep(w int, t text) RETURNS void LANGUAGE sql AS 'UPDATE stock s SET s = t WHERE s.w = keep.w AND i = 1';
SELECT nvm.register_command('keep(int,text)', '{w}');
CREATE ROLE caller;
GRANT ALL ON ALL TABLES IN SCHEMA public TO caller;
SQL
my $dir = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', $_[0]); }

# what is recorded of these statements: records with rows, that of a place behind the last one
sub records_of
{
	my ($sql, %params) = @_;

	# what nobody waits for, too
	sql('UPDATE stock SET n = 100 WHERE w = 20 AND i = 20');
	my $before = NvmLog::dump_of($dir)->{end};
	my ($ret, undef, $stderr) = $node->psql('postgres', $sql);
	die $stderr if $ret != 0 && !$params{fails};
	my $dump = NvmLog::dump_of($dir, from => $before);
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($dump->{problem}, '', 'the log is whole') if $dump->{problem} ne '';
	return grep { $_->{kind} =~ /COMMIT|ASK/ } @{ $dump->{records} };
}

sub calls_of
{
	my ($sql, %params) = @_;
	my @with = grep { $_->{calls} } records_of($sql, %params);
	return map { s/^role \d+.*/settings/r =~ s/, statement of .*//r } map { @{ $_->{calls}{parts} } } @with;
}

sub oid_of { return sql("SELECT '$_[0]'::regproc::oid"); }
my %oid = map { $_ => oid_of($_) } qw(take of_any of_types remove fill several on_all looks moves);

# the lanes that a transaction holds
my $holds = q{SELECT string_agg(lane::text, ', ' ORDER BY lane) FROM nvm.lanes WHERE pid = pg_backend_pid() AND target = 'lane'};
my ($seven, $eight) = map { sql("BEGIN; SELECT take($_, 1, 0); $holds; COMMIT") =~ /\n(\d+)/ } 7, 8;

my ($record) = records_of('SELECT take(7, 2, 3)');
is_deeply([ map { s/^role .*/settings/r } @{ $record->{calls}{parts} } ], [ "lanes $seven", 'settings', "call $oid{take}(7, 2, 3)" ], 'a call');
is("$record->{calls}{database} $record->{calls}{rows} " . scalar(@{ $record->{rows} }), sql('SELECT oid FROM pg_database WHERE datname = current_database()') . ' 1 1', 'its database, one row');
is($record->{xid}, sql('SELECT xmin FROM stock WHERE w = 7 AND i = 2'), 'the xid that the row has');

# bytes, as nvm.commands counts them: of the calls with their header, of the rows
sql('SELECT nvm.reset_commands()');
($record) = records_of('SELECT take(7, 2, 3)');
my ($section) = map { $_ + 8 + (-$_ % 8) } $record->{calls}{bytes};
my $bytes = q{SELECT replayable, call_bytes, value_bytes FROM nvm.commands WHERE function = 'take(int,int,int)'::regprocedure};
my (undef, $is, $of_rows) = split /\|/, sql($bytes);
is($is, $section, 'nvm.commands: bytes of the call');
cmp_ok($of_rows, '>=', 8 + 12 + 20, 'bytes of the row');
is($of_rows + $is + 24, record_length($record), 'with the header that is all of the record');
sql('SELECT take(7, 2, 3)');
is(sql($bytes), join('|', 2, 2 * $is, 2 * $of_rows), 'and of another one');
sql('BEGIN; SELECT take(7, 2, 3); INSERT INTO item VALUES (8); COMMIT');
is(sql($bytes), join('|', 2, 2 * $is, 2 * $of_rows), 'nothing of one that is logged by values');

# the length of a record as nvm_logdump says it
sub record_length
{
	my ($r) = @_;
	my $said = '';
	IPC::Run::run([ 'nvm_logdump', $dir ], '>', \$said);
	return $said =~ /^  \w+ $r->{number}, xid $r->{xid}, (\d+) bytes, place $r->{place}$/m ? $1 : 'none';
}

# arguments: what is printed is what they were
my $arguments = q{8, 123456789012345, -12345.00670, E'it''s \\\\ a\nline', '0044-03-15 20:17:40.5+00 BC', '0badc0de-0000-4000-8000-000000000001', '\x00ff10', 1.5e-300, '0044-03-15 BC', '{-1,0,128,-129,2147483647}', '{a,"b c","d\"e",""}', true, (-32768)::smallint, 'v', 'glad', '(1,x)', 99, '{"a": [1, 2]}', '{1.50,-0.00001,20000,1e20}'};
# of enums, rows, jsonb and the like the bytes are printed, so what comes before is compared
my @names = qw(w a b c d e f g h i j k l m);
my ($typed) = grep { /^call/ } calls_of("SELECT of_types($arguments)");
my ($known, $others) = $typed =~ /^call $oid{of_types}\((8, .*'v'::varchar), (.*)\)$/;
sql("CREATE FUNCTION back(w int, a bigint, b numeric, c text, d timestamptz, e uuid, f bytea, g float8, h date, i int[], j text[], k boolean, l smallint, m varchar) RETURNS text LANGUAGE sql AS 'SELECT ROW(\$1, \$2, \$3, \$4, \$5, \$6, \$7, \$8, \$9, \$10, \$11, \$12, \$13, \$14)::text'");
my ($first) = $arguments =~ /^(.*'v'), /s;
is(sql("SELECT back($known)"), sql("SELECT back($first)"), 'arguments of many types are what they were');
my ($mood, $pair) = map { sql("SELECT '$_'::regtype::oid") } qw(mood pair);
like($others, qr/^E'\\\\x[0-9a-f]{2,8}'::$mood, E'\\\\x[0-9a-f]+'::$pair, E'\\\\x63'::\d+, E'\\\\x[0-9a-f]+'::3802, '\{1\.50,-0\.00001,20000,100000000000000000000\}'::numeric\[\]$/, 'of other types the bytes') or diag($others);
sql("CREATE FUNCTION of_numeric(w int, b numeric, x float8, c char(3)) RETURNS int LANGUAGE sql AS 'UPDATE stock s SET n = n + 1 WHERE s.w = of_numeric.w AND s.i = 1; SELECT 1'; SELECT nvm.register_command('of_numeric(int,numeric,float8,bpchar)', '{w}')");
foreach my $list (q{NaN '-Infinity' ab}, q{-0.5 0.1 a}, q{1e-20 1e300 ' '}, q{123456789.123456789 -0 abc}, q{10000 12345678 abc}, q{0.00012 1e-5 ''}, q{-Infinity NaN ''}, q{0.000 3.0 x})
{
	my ($n, $x, $c) = map { s/'//gr } split / /, $list =~ s/' '/_/r;
	my ($said) = grep { /^call/ } calls_of("SELECT of_numeric(7, '$n', '$x', '$c')");
	my ($got) = $said =~ /\(7, (.*)\)$/;
	is(sql("SELECT v::text FROM (SELECT $got) v"), sql("SELECT v::text FROM (SELECT '$n'::numeric, '$x'::float8, '$c'::bpchar) v"), "the numbers $n, $x");
}
foreach my $number (0, 1, -1, 127, 128, -128, -129, 32767, 32768, -32769, 8388607, 8388608, 2147483647, -2147483648)
{
	is((grep { /^call/ } calls_of("SELECT take(7, 1, 0), take(7, $number, 0)"))[1], "call $oid{take}(7, $number, 0)", "the number $number");
}
like((grep { /^call/ } calls_of("SELECT of_any(7, 'a'::text, 'b')"))[0], qr/\(7, '\{"a","b"\}'::text\[\]\)/, 'a polymorphic function: the type that it was called with');
like((grep { /^call/ } calls_of('SELECT of_any(7, 1.5, 2.0)'))[0], qr/\(7, '\{1\.5,2\.0\}'::numeric\[\]\)/, 'and another one');
like((grep { /^call/ } calls_of("CREATE TEMP TABLE big AS SELECT repeat('0123456789', 20000) AS t; SELECT keep(9, t) FROM big"))[0], qr/'(0123456789){20000}'::text/, 'a large argument, in full');

# several calls, lanes, sets of them
is_deeply([ calls_of('BEGIN; SELECT take(7, 1, 1); SELECT looks(8); CALL several(\'{7,8}\'); COMMIT') ],
	[ 'lanes ' . join(', ', sort { $a <=> $b } $seven, $eight), 'settings', "call $oid{take}(7, 1, 1)", "call $oid{looks}(8)", "call $oid{several}('{7,8}'::integer[])" ],
	'all calls in their order, those that only read, too; lanes ascending');
is((calls_of('CALL on_all()'))[0], 'all lanes', 'all lanes');
is(scalar(grep { /^call/ } calls_of('SELECT take(w, 1, 1) FROM generate_series(1, 5) w')), 5, 'a call for each row');
is(scalar(calls_of('BEGIN; SAVEPOINT a; SELECT take(7, 1, 1); RELEASE a; COMMIT')), 3, 'in a savepoint');

# role, settings, times
($record) = records_of("BEGIN; SELECT pg_sleep(0.01); SET TimeZone = 'Asia/Tokyo'; SELECT take(7, 1, 1); SELECT take(7, 1, 2); SET DateStyle = German; SET search_path = public, \"Odd name\"; SELECT take(7, 1, 3); SET ROLE caller; SELECT take(7, 1, 4); COMMIT");
my @parts = @{ $record->{calls}{parts} };
is(join(' ', map { (split / /)[0] } @parts), 'lanes role call call role call role call', 'settings when they have changed');
like($parts[1], qr/^role 10, TimeZone = 'Asia\/Tokyo'/, 'a setting');
unlike($parts[1], qr/DateStyle|search_path/, 'not those that are as usual');
like($parts[4], qr/search_path = 'public, "Odd name"', TimeZone = 'Asia\/Tokyo', DateStyle = 'German, DMY'/, 'others, and those that were there');
is($parts[6] =~ s/^role (\d+), .*/$1/r, sql("SELECT oid FROM pg_roles WHERE rolname = 'caller'"), 'another role');
my ($now) = sql("SELECT '$record->{calls}{timestamp}'::timestamptz < now(), '$record->{calls}{timestamp}'::timestamptz > now() - interval '1 minute'");
is($now, 't|t', 'the time of the transaction');
my @later = map { /statement of (.*)$/ ? $1 : 'none' } grep { /^call/ } @parts;
is(sql("SELECT '$later[0]'::timestamptz >= '$record->{calls}{timestamp}'::timestamptz + interval '10 ms', '$later[1]'::timestamptz > '$later[0]'::timestamptz"), 't|t', 'and of each statement');
foreach my $setting ('extra_float_digits = 3', 'bytea_output = escape', 'session_replication_role = replica', 'row_security = off', 'default_toast_compression = pglz', 'plpgsql.check_asserts = off', 'plpgsql.extra_warnings = too_many_rows', 'plpgsql.extra_errors = too_many_rows', 'quote_all_identifiers = on', 'IntervalStyle = iso_8601')
{
	my ($name, $value) = split / = /, $setting;
	my ($with) = grep { /^role/ } map { @{ $_->{calls}{parts} } } records_of("SET $setting; SELECT take(7, 1, 1)");
	my $expected = $value eq 'pglz' ? qr/^(?!.*default_toast)/ : qr/, \Q$name\E = '\Q$value\E'/;
	like($with, $expected, "setting $setting");
}
is_deeply([ calls_of("SET search_path = public, \"" . join('", "', ('x' x 60) x 150) . "\"; SELECT take(7, 1, 1)") ], [], 'settings that are too long: none');
is(sql("SELECT last_reason FROM nvm.commands WHERE function = 'take(int,int,int)'::regprocedure"), 'unsuitable function or arguments', 'and a reason');

# names from a file
my $names = "$base/names";
append_to_file($names, sql("SELECT 'function ' || oid || ' ' || oid::regproc FROM pg_proc WHERE proname = 'of_types' UNION ALL SELECT 'type ' || oid || ' ' || oid::regtype FROM pg_type WHERE typname IN ('mood', 'pair') UNION ALL SELECT 'database ' || oid || ' ' || datname FROM pg_database"));
my $named = '';
IPC::Run::run([ 'nvm_logdump', '--names', $names, $dir ], '>', \$named);
like($named, qr/^    calls of database postgres, /m, '--names: a database');
like($named, qr/^      call of_types\(8, .*::mood, .*::pair, /m, 'a function, types');

## when there are none

foreach my $case (
	['UPDATE stock SET n = 1 WHERE w = 7 AND i = 1', 'values'],
	['BEGIN; SELECT take(7, 1, 1); UPDATE stock SET n = 1 WHERE w = 8 AND i = 1; COMMIT', 'a call and values'],
	['SELECT shared(1)', 'a shared table'],
	['BEGIN; SELECT take(7, 1, 1); SAVEPOINT a; SELECT take(7, 1, 1); ROLLBACK TO a; COMMIT', 'a savepoint that is rolled back'],
	['BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT take(7, 1, 1); COMMIT', 'REPEATABLE READ'],
	["BEGIN; SELECT take(7, 1, 1); PREPARE TRANSACTION 'p'; COMMIT PREPARED 'p'", 'a prepared transaction'],
	["SELECT looks(7)", 'nothing written', 0],
	['BEGIN; CALL fill(7, 600, 601, NULL); CALL remove(7, 600, 601); COMMIT', 'nothing that stays', 0])
{
	my ($sql, $name, $n) = @$case;
	my @records = records_of($sql);
	is(scalar(@records) . ' ' . grep({ $_->{calls} } @records), ($n // 1) . ' 0', "no calls: $name");
}

# beside other tables
my @mixed = records_of('BEGIN; INSERT INTO a_heap VALUES (1); SELECT take(7, 1, 1); COMMIT');
is(join(' ', map { "$_->{kind} " . scalar(@{ $_->{calls}{parts} }) } @mixed), 'ASK 3', 'a transaction that wrote heap, too: pg_xact decides, and the calls are there');
my ($both) = records_of('BEGIN; INSERT INTO a_vlog VALUES (1), (2); SELECT take(7, 1, 1); COMMIT');
is(scalar(@{ $both->{rows} }) . " $both->{calls}{rows}", '3 1', 'rows of nvm_vlog are values beside it');

## the checksum

sub checksum { my ($sql) = @_; my @c = grep { $_->{calls} } records_of($sql); die 'not one record' if @c != 1; return "$c[0]{calls}{checksum} of $c[0]{calls}{rows}"; }

# what one call makes, twice: between, all is as before, at other places
sub same_checksum
{
	my ($call, $undo, $name) = @_;
	my $first = checksum($call);
	sql($undo);
	sql('VACUUM FULL stock; INSERT INTO stock SELECT 19, i, 1 FROM generate_series(1000, 1400) i; DELETE FROM stock WHERE w = 19 AND i >= 1000; VACUUM stock');
	my $second = checksum($call);
	is($second, $first, "the same checksum: $name");
	sql($undo);
	return $first;
}
my $restore = sub { return join('; ', 'DELETE FROM stock WHERE w = 6', "INSERT INTO stock SELECT 6, i, 100, $_[0] FROM generate_series(1, 20) i ORDER BY i $_[1]") };
sql($restore->("'s'", ''));
my $update = same_checksum('SELECT take(6, 1, 3)', $restore->("'s'", 'DESC'), 'UPDATE');
isnt(checksum('SELECT take(6, 1, 4)'), $update, 'other values, another one');
sql($restore->("'s'", ''));
my $removed = same_checksum('CALL remove(6, 3, 9)', $restore->("'s'", 'DESC'), 'DELETE');
like($removed, qr/ of 7$/, 'of the rows that are gone');
isnt(checksum('CALL remove(6, 4, 10)'), $removed, 'of others, another one');
sql($restore->("'s'", ''));
sql($restore->('NULL', ''));
same_checksum('SELECT moves(6, 1000)', $restore->('NULL', 'DESC'), 'UPDATE of an indexed column, and nulls');
my $filled = same_checksum("CALL fill(6, 100, 400, 'x')", 'DELETE FROM stock WHERE w = 6 AND i >= 100', 'many rows');
like($filled, qr/ of 301$/, 'each counts once');
my $large = same_checksum("CALL fill(6, 100, 103, repeat('x', 100000))", 'DELETE FROM stock WHERE w = 6 AND i >= 100', 'large values');
my $other = checksum("CALL fill(6, 100, 103, repeat('x', 99999) || 'y')");
isnt($other, $large, 'one byte of them differs');
sql('DELETE FROM stock WHERE w = 6 AND i >= 100');
isnt(checksum("SELECT puts(6, 100, 'stock_too')"), checksum("SELECT puts(6, 100, 'stock')"), 'the same row in another table');
is(sql('TABLE stock_too'), sql('SELECT * FROM stock WHERE w = 6 AND i = 100'), 'which it is');
sql('DELETE FROM stock WHERE w = 6 AND i >= 100');
sql(q{BEGIN; CALL fill(6, 100, 101, 'a'); COMMIT});
my $order = checksum("BEGIN; CALL remove(6, 100, 100); CALL fill(6, 102, 102, 'b'); COMMIT");
sql(q{DELETE FROM stock WHERE w = 6 AND i >= 100; INSERT INTO stock VALUES (6, 101, 101, 'a'), (6, 100, 100, 'a')});
is(checksum("BEGIN; CALL fill(6, 102, 102, 'b'); CALL remove(6, 100, 100); COMMIT"), $order, 'in whatever order they are made');
sql('DELETE FROM stock WHERE w = 6 AND i >= 100');

## side files

my ($aside) = records_of("CALL fill(5, 100, 700, repeat('y', 300))");
ok($aside->{side} && @{ $aside->{calls}{parts} } == 3, 'many rows: the calls are in the side file');
($aside) = records_of("CALL fill(5, 800, 800, repeat('z', 100000))");
ok($aside->{side} && $aside->{calls}{bytes} > 100000, 'a long argument');
($aside) = records_of("BEGIN; SELECT count(take(5, 1 + i % 20, 1)) FROM generate_series(1, 40000) i; COMMIT");
is(scalar(grep { /^call/ } @{ $aside->{calls}{parts} }) . (defined $aside->{side} ? ' aside' : ''), '40000 aside', 'many calls');
is_deeply([ calls_of("CALL fill(5, 801, 801, repeat('z', 17000000))") ], [], 'more than a record takes: none');
is(sql("SELECT last_reason FROM nvm.commands WHERE function = 'fill(int,int,int,text)'::regprocedure"), 'too long a record', 'and its reason');
is(sql('SELECT length(s) FROM stock WHERE w = 5 AND i = 801'), 17000000, 'the rows are there');

## recovery

my $content = q{SELECT count(*), sum(w), sum(i), sum(n), sum(length(s)), md5(string_agg(s, ',' ORDER BY w, i)) FROM stock};
my $want = sql($content);
foreach my $end ('a restart', 'kill -9', 'a checkpoint and kill -9')
{
	sql('SELECT nvm.checkpoint()') if $end =~ /checkpoint/;
	sql('SELECT take(4, 4, 4)');
	$want = sql($content);
	if ($end =~ /kill/) { $node->crash; $node->start; } else { $node->restart; }
	is(sql($content), $want, "$end: rows come back");
	is(NvmLog::dump_of($dir)->{problem}, '', 'the log is whole');
}
$node->check_clean('after restarts');

# deaths in the midst of it: all of a call, or nothing; what is there has its calls beside it
my $n = sql('SELECT n FROM stock WHERE w = 4 AND i = 1');
foreach my $place (qw(log-capture log-captured log-placing log-placed log-write log-sync log-synced log-side-sync))
{
	my $side = $place =~ /side/;
	my $call = $side ? "CALL fill(4, 5000, 5600, repeat('d', 300))" : "SELECT take(4, 1, -1)";
	my ($ret) = $node->psql('postgres', "SET nvm.failpoint = '$place:crash'; $call");
	isnt($ret, 0, "$place: it is reached");
	$node->wait_crashed;
	$node->start;
	if ($side) { is(sql('SELECT count(*) FROM stock WHERE w = 4 AND i >= 5000'), 0, "$place: nothing is there"); next; }
	my $after = sql('SELECT n FROM stock WHERE w = 4 AND i = 1');
	ok($after == $n || $after == $n + 1, "$place: once, or not at all");
	my $dump = NvmLog::dump_of($dir);
	is($dump->{problem}, '', "$place: the log is whole");
	my @last = grep { $_->{calls} && $_->{calls}{parts}[-1] =~ /\(4, 1, -1\)/ } @{ $dump->{records} };
	is(scalar(@last) > 0 ? 'there' : 'absent', $after > $n || @last ? 'there' : 'absent', "$place: so are its calls");
	is((grep { /call $oid{take}\(4, 1, -1\)/ } map { @{ $_->{calls}{parts} // [] } } @{ $dump->{records} }) >= $after - $n, 1, "$place: as many as have counted");
	$n = $after;
}
$node->check_clean('after deaths');

# damage in calls
sql('SELECT nvm.checkpoint()');
sql(q{CALL fill(3, 7000, 7000, 'a text that is easy to find')});
sql('SELECT take(3, 1, 1)');
$want = sql($content);
$node->stop('immediate');
my ($damaged, $at);
foreach my $file (sort glob "$dir/*.log")
{
	my $bytes = slurp_file($file);
	# the argument lies behind the tuple
	my $found = rindex($bytes, 'a text that is easy to find');
	($damaged, $at) = ($file, $found) if $found >= 0;
}
ok(defined $damaged, 'the argument of a call is in a file');
sub flip
{
	open(my $fh, '+<:raw', $damaged) or die $!;
	seek($fh, $at, 0);
	read($fh, my $byte, 1);
	seek($fh, $at, 0);
	print $fh chr(ord($byte) ^ 1);
	close $fh or die $!;
	return;
}
flip();
like(NvmLog::dump_of($dir)->{problem}, qr/block at byte \d+ is damaged \(wrong checksum\)/, 'a flipped bit in a call: nvm_logdump names the block');
$node->start;
like($node->log_since_start, qr/log file "pg_nvm_log\/\Q@{[ basename($damaged) ]}\E" is damaged: block at byte \d+ is damaged \(wrong checksum\)/, 'the server refuses the pool and names file and place');
$node->fails_with('SELECT count(*) FROM stock', qr/nvm tables are not available/, 'and says so to who asks');
$node->stop('immediate');
flip();
$node->start;
is(sql($content), $want, 'mended, all is there');
$node->check_clean('at the end');

done_testing();

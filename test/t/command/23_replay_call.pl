# Copyright (c) 2026, pg_nvm contributors

# Calls of a record, made again: they write what they wrote, by what the record says of
# arguments, role, settings and timestamps, and by its tape.  What comes out differently is
# said, with the call, and nothing of it is there.  The player of the test works on the
# tables themselves, which the test has set back before.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
use NvmLog;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $library = dirname(abs_path($0)) . '/../../tools/nvm_call';

my $node = NvmTest->start_new('replay_call', conf => <<'CONF', sql => <<"SQL");
autovacuum = off
max_worker_processes = 8
timezone = 'Etc/UTC'
CONF
CREATE FUNCTION nvm_test_note_calls(bigint) RETURNS int AS '$library' LANGUAGE C STRICT;
CREATE FUNCTION nvm_test_play_calls(text) RETURNS void AS '$library' LANGUAGE C STRICT;
CREATE TABLE recorded (n serial, place bigint, section bytea);
CREATE TABLE replayed (n int, failed bool, message text, detail text, call text, function oid,
	checksum_recorded text, checksum text, rows_recorded int, rows int, ncalls int);
CREATE TABLE t (w int, i bigint, s text, c timestamptz, u uuid, x float8, PRIMARY KEY (w, i)) USING nvm_cmdlog;
SELECT nvm.partition_table('t', 'w');
CREATE TABLE other (w int, id serial, n smallint GENERATED ALWAYS AS IDENTITY, u uuid DEFAULT gen_random_uuid(), PRIMARY KEY (w, id)) USING nvm_cmdlog;
SELECT nvm.partition_table('other', 'w');
CREATE TABLE saved_t AS TABLE t;
CREATE TABLE saved_other AS TABLE other;
CREATE TABLE a_heap (i int);
CREATE SEQUENCE seq;
CREATE ROLE caller;
GRANT ALL ON ALL TABLES IN SCHEMA public TO caller;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO caller;
CREATE SCHEMA caller AUTHORIZATION caller;
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN small AS int CHECK (value < 100);
SQL
my $dir = $node->data_dir . '/pg_nvm_log';

sub sql { return $node->safe_psql('postgres', $_[0]); }

# a function that writes what it is given or finds: registered, its lane the first argument
sub make
{
	my ($name, $arguments, $body, %params) = @_;
	my $kind = $params{kind} // 'FUNCTION';
	my $returns = $kind eq 'PROCEDURE' ? '' : 'RETURNS ' . ($params{returns} // 'void');
	my $language = $params{language} // 'plpgsql';
	$body = "#variable_conflict use_column\nDECLARE x bigint; y text; BEGIN $body END" if $language eq 'plpgsql';
	sql("CREATE OR REPLACE $kind $name($arguments) $returns LANGUAGE $language $params{more} AS \$f\$$body\$f\$")
	  if defined $params{more};
	sql("CREATE OR REPLACE $kind $name($arguments) $returns LANGUAGE $language AS \$f\$$body\$f\$")
	  if !defined $params{more};
	sql("SELECT nvm.register_command(oid, '{\$1}') FROM pg_proc WHERE proname = '$name'");
	return;
}

my $content = q{SELECT t FROM t ORDER BY w, i; SELECT other FROM other ORDER BY w, id};
my $restore = q{DELETE FROM t; DELETE FROM other; INSERT INTO t TABLE saved_t; INSERT INTO other OVERRIDING SYSTEM VALUE TABLE saved_other};

# Make the calls, forget what they have done, play them.  between: SQL before they are played.
# What is recorded, what has come of it, and whether the tables have what they had.
sub played
{
	my ($calls, %params) = @_;

	sql(q{DELETE FROM saved_t; DELETE FROM saved_other; INSERT INTO saved_t TABLE t; INSERT INTO saved_other TABLE other;
DELETE FROM replayed; DELETE FROM recorded; SELECT setval('recorded_n_seq', 1, false)});
	my $before = NvmLog::dump_of($dir)->{end};
	$node->safe_psql('postgres', $calls, extra_params => ['--no-psqlrc']);
	my $want = sql($content);
	my $n = sql("SELECT nvm_test_note_calls($before)");
	sql($restore);
	my $from = sql($content);
	sql($params{between}) if $params{between};
	sql(qq{SELECT nvm_test_play_calls('$library')});
	my @results = map { [ split /\|/, $_, -1 ] } split /\n/, sql(q{SELECT n, failed, coalesce(message, ''), coalesce(call, ''), rows, rows_recorded, ncalls, replace(coalesce(detail, ''), E'\n', ' ') FROM replayed ORDER BY n});
	my $is = sql($content);
	return { recorded => $n, results => \@results, same => $is eq $want, is => $is, want => $want, unchanged => $is eq $from };
}

# all of them can be played, and do what they did
sub good
{
	my ($calls, $name, %params) = @_;
	my $n = $params{n} // 1;
	my $p = played($calls, %params);

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($p->{recorded}, $n, "$name: recorded");
	is(join('; ', map { "$_->[1] $_->[2]" . ($_->[4] == $_->[5] ? '' : " rows $_->[4]") } @{ $p->{results} }), join('; ', ('f ') x $n), "$name: played")
	  or diag(explain($p->{results}));
	is($p->{is}, $p->{want}, "$name: the same rows");
	return $p;
}

# the only one cannot, for a reason; nothing of it is there
sub bad
{
	my ($calls, $between, $message, $call, $name) = @_;
	my $p = played($calls, between => $between);
	my $r = $p->{results}[0] // [];

	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is($p->{recorded}, 1, "$name: recorded");
	is($r->[1], 't', "$name: fails");
	like($r->[2], $message, "$name: message");
	like($r->[3], $call, "$name: call");
	ok($p->{unchanged}, "$name: nothing of it is there");
	return $r;
}

# ---- calls

make('put', 'w int, i bigint, s text', 'INSERT INTO t VALUES (w, i, s);');
make('take', 'w int, i bigint, k int', 'UPDATE t SET i = t.i + k WHERE t.w = take.w AND t.i = take.i;');
make('gone', 'w int', 'DELETE FROM t WHERE t.w = gone.w;');
good("SELECT put(1, 1, 'a')", 'an INSERT');
good('SELECT take(1, 1, 5)', 'an UPDATE of the key');
good('SELECT gone(1)', 'a DELETE');
my $p = good("BEGIN; SELECT put(1, 2, 'b'); SELECT take(1, 2, 7); SELECT put(2, 1, NULL); SELECT gone(2); COMMIT", 'several calls');
is($p->{results}[0][6], 4, 'all of them');
good("SELECT put(3, 1, 'a'); SELECT put(3, 2, 'a'); SELECT put(4, 1, 'a')", 'several transactions', n => 3);

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# A rebuild of tables in memory may need more memory than they took before (src/pool/README.md,
# "The reserve").  What fitted comes back under the same settings.
#
#  1. a region that is full, of tables whose versions lie in other blocks than their roots, with
#     indexes of both kinds: all is there after a loss, twice
#  2. a lower limit: the reserve is used.  Sessions get nothing of it: what needs memory is an
#     ERROR, DELETE, VACUUM, TRUNCATE and DROP go on, and when there is less, so does INSERT
#  3. deaths, a loss of power and an error at the first chunk of the reserve, and where rows are
#     placed late
#  4. while a table is being rebuilt, sessions leave it its room
#  5. a limit that is too low even so: the error says which one is not, tables that fitted are
#     open, and nothing is lost
#  6. a table with an index in files does not grow by starts, and gives back what it had
#  7. a full disk of the log during a rebuild is told as such

use strict;
use warnings;

use NvmMemory;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $faults = PostgreSQL::Test::Utils::tempdir();
%ENV = (%ENV, NvmMemory::sync_env($faults));

# Small rows in front and much room behind; when they get longer, their versions go there.
sub spread
{
	my ($name, $n) = @_;
	return <<SQL;
CREATE TABLE $name (id int, v text) USING nvm_vlog;
INSERT INTO $name SELECT i, 'x' FROM generate_series(1, $n) i;
INSERT INTO $name SELECT 1000000 + i, repeat('f', 400) FROM generate_series(1, $n / 2) i;
DELETE FROM $name WHERE id > 1000000 AND id % 40 <> 0;
VACUUM $name;
SELECT txid_current();
SELECT txid_current();
VACUUM $name;
UPDATE $name SET v = repeat('y', 100) WHERE id <= $n;
VACUUM $name;
SQL
}

my $node = NvmTest->start_new('reserve', conf => <<CONF, sql => spread('s', 150000) . spread('t', 150000) . <<SQL);
nvm.memory_limit = 128MB
nvm.recovery_workers = 2
max_worker_processes = 12
max_prepared_transactions = 5
autovacuum = off
restart_after_crash = on
CONF
CREATE INDEX ON s USING nvm_btree (id);
SET nvm.default_index_method = btree;
CREATE INDEX ON t USING btree (id);
RESET nvm.default_index_method;
CREATE TABLE small (id int PRIMARY KEY, v int) USING nvm_vlog;
CREATE TABLE h (id int) USING heap;
INSERT INTO small SELECT i, 0 FROM generate_series(1, 100) i;
CREATE TABLE filler (s text) USING nvm_vlog;
SQL
my @tables = qw(s t small filler);
my $MB = 1024 * 1024;

sub sql { return $node->safe_psql('postgres', join('; ', @_)); }

sub content { return NvmMemory::content($node, @_); }
sub failpoint { return $node->set_failpoint($_[0]); }

sub memory { return sql("SELECT $_[0] FROM nvm.memory"); }

# until sessions get no more
sub fill
{
	my ($err, $n) = ('', 0);

	while ($err eq '' && $n++ < 300)
	{
		$node->psql('postgres', "INSERT INTO filler SELECT repeat('z', 1000) FROM generate_series(1, 500)", stderr => \$err);
	}
	return $err;
}

sub indexes_ready
{
	ok($node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM nvm.index_rebuilds WHERE state NOT IN ('ready', 'relaxed')}), "$_[0]: all indexes are there");
	ok($node->poll_query_until('postgres', q{SELECT claimed = 0 FROM nvm.memory}), "$_[0]: and nothing is kept for others any more");
	is(sql('SET enable_seqscan = off', 'SET enable_bitmapscan = off', map { "SELECT count(*) FROM $_ WHERE id BETWEEN 1 AND 150000" } qw(s t)),
		"150000\n150000", "$_[0]: they find all rows");
	return;
}

# ---------------------------------------------------------------- 1. full

like(fill(), qr/it has its maximum size\nDETAIL:  Tables in memory and their indexes have 128 MB, nvm\.memory_limit allows 128 MB/, 'the region is full');
is(memory('size = max_size, used <= max_size, reserve'), 't|t|' . 128 * $MB, 'and the view says so');
my $used = memory('used');
my $before = content(@tables);
foreach my $loss (1, 2)
{
	$node->crash;
	$node->start;
	is(content(@tables), $before, "full: all is there after loss $loss");
	is(sql('SELECT state FROM nvm.log_recovery'), 'whole', "full: and the region is whole");
	indexes_ready("full, loss $loss");
	cmp_ok(memory('used'), '<=', $used * 1.125, "full: and has not grown much by loss $loss");
}
$node->check_clean('full');

# ---------------------------------------------------------------- 2. the reserve

$node->stop;
$node->set_conf('nvm.memory_limit' => '64MB');
$node->start;
is(content(@tables), $before, 'a lower limit: all is there');
indexes_ready('a lower limit');
is(memory('used > max_size, size <= max_size + reserve, reserve'), 't|t|' . 128 * $MB, 'a lower limit: the view shows more than the limit');
my $grows = q{INSERT INTO filler SELECT repeat('z', 1000) FROM generate_series(1, 30000)};
my $beyond = qr/it has its maximum size\nDETAIL:  Tables in memory and their indexes have 1\d\d MB, nvm\.memory_limit allows 64 MB\.\nHINT:  Increase nvm\.memory_limit/;
$node->fails_with($grows, $beyond, 'beyond the limit: an INSERT that needs memory');
$node->fails_with('CREATE INDEX ON t USING nvm_btree (v)', $beyond, 'beyond the limit: CREATE INDEX');
is(content(@tables), $before, 'beyond the limit: nothing is lost');
sql('TRUNCATE filler', 'DELETE FROM s WHERE id % 2 = 0', 'UPDATE small SET v = 1');
sql('VACUUM s');
sql(q{INSERT INTO s SELECT i, 'w' FROM generate_series(1, 100) i});
$node->fails_with($grows, $beyond, 'beyond the limit: less, but still too much');
sql('BEGIN', 'DROP TABLE s', 'DROP TABLE t', 'COMMIT');
ok($node->poll_query_until('postgres', 'SELECT used < 16 * 1024 * 1024 FROM nvm.memory'), 'DROP brings it down');
sql($grows);
is(sql('SELECT count(*) FROM filler'), 30000, 'and INSERT goes on');
like(fill(), qr/maximum size/, 'up to the limit');
cmp_ok(memory('used'), '<=', 64 * $MB, 'and no further');

# ---------------------------------------------------------------- 3. at each step

sql('TRUNCATE filler');
$node->stop;
$node->set_conf('nvm.memory_limit' => '128MB');
$node->start;
$node->safe_psql('postgres', $_) foreach split /\n/, spread('s', 150000) . spread('t', 150000);
sql('CREATE INDEX ON s USING nvm_btree (id)');
sql('SET nvm.default_index_method = btree', 'CREATE INDEX ON t USING btree (id)');
fill();
$before = content(@tables);
$node->stop;
$node->set_conf('nvm.memory_limit' => '64MB');
foreach my $at (qw(memory-grown-reserve rebuild-late))
{
	failpoint("$at:panic:1");
	$node->start(fail_ok => 1);
	NvmTest::wait_until("$at: deaths", sub { (() = $node->log_since_start =~ /failpoint $at hit/g) >= 2 });
	failpoint('');
	NvmTest::wait_until("$at: it is up", sub { (($node->psql('postgres', 'SELECT state FROM nvm.log_recovery'))[1] // '') eq 'whole' });
	is(content(@tables), $before, "deaths at $at: all is there");
	indexes_ready("deaths at $at");

	$node->stop;
	failpoint("$at:crash:1");
	$node->start(fail_ok => 1);
	$node->wait_crashed if defined $node->{_pid};
	failpoint('');
	$node->start;
	is(content(@tables), $before, "a loss of power at $at: all is there");

	$node->stop;
	failpoint("$at:error:1");
	$node->start;
	$node->poll_query_until('postgres', q{SELECT state = 'failed' FROM nvm.log_recovery});
	like(sql('SELECT reason FROM nvm.log_recovery'), qr/$at/, "an error at $at");
	failpoint('');
	$node->stop;
	$node->start;
	is(content(@tables), $before, "after an error at $at: all is there");
	indexes_ready("after an error at $at");
	$node->stop;
}

# ---------------------------------------------------------------- 4. what is not rebuilt yet

$node->set_conf('nvm.memory_limit' => '128MB');
failpoint('rebuild-blocks:stop:1');
$node->start;
NvmTest::wait_until('small tables open', sub { sql('SELECT tables >= 1 FROM nvm.log_recovery') eq 't' });
my @stopped = $node->log_since_start =~ /failpoint rebuild-blocks hit, pid (\d+)/g;
NvmTest::wait_stopped($_) foreach @stopped;
failpoint('');
cmp_ok(memory('claimed'), '>', 90 * $MB, 'tables that are not rebuilt have a claim to memory');
sql('UPDATE small SET v = v + 1');
$node->fails_with(q{CREATE TABLE other (s text) USING nvm_vlog; INSERT INTO other SELECT repeat('o', 1000) FROM generate_series(1, 60000)},
	qr/the rest is for tables and indexes that are not rebuilt yet\nDETAIL:  Tables in memory and their indexes have \d+ MB, those that are not rebuilt yet need about \d+ MB, nvm\.memory_limit allows 128 MB\.\nHINT:  Try again when they are there/,
	'which others do not get');
my %continued;
NvmTest::wait_until('whole', sub {
	NvmTest::continue_process($_) foreach grep { !$continued{$_}++ } $node->log_since_start =~ /failpoint rebuild-blocks hit, pid (\d+)/g;
	return sql('SELECT state FROM nvm.log_recovery') eq 'whole'; });
indexes_ready('not rebuilt yet');
is(content(qw(s t filler)), join("\n", (split /\n/, $before)[0, 1, 3]), 'not rebuilt yet: all is there');

# ---------------------------------------------------------------- 5. too low

$node->stop;
$node->set_conf('nvm.memory_limit' => '512MB');
$node->start;
sql(q{INSERT INTO filler SELECT repeat('Z', 1000) FROM generate_series(1, 110000)}, 'UPDATE small SET v = 5');
$before = content(@tables);
$node->stop;
$node->set_conf('nvm.memory_limit' => '64MB');
$node->start;
$node->poll_query_until('postgres', q{SELECT state = 'failed' FROM nvm.log_recovery});
my $reason = sql('SELECT reason FROM nvm.log_recovery');
like($reason, qr/could not extend the volatile region: what is being rebuilt has no room \(nvm\.memory_limit allows 64 MB, and 128 MB more for a rebuild\. Set it to (\d+) MB at least\)/,
	'too low: the reason says what to do');
my ($enough) = $reason =~ /Set it to (\d+) MB/;
$node->fails_with('SELECT FROM t', qr/tables in memory are not available\nDETAIL:  They could not be rebuilt from the log: .*Set it to \d+ MB at least/, 'too low: so does an access');
is(content('small'), (split /\n/, $before)[2], 'too low: a table that fitted is open');
sql('UPDATE small SET v = 6', 'INSERT INTO h VALUES (1)');
$node->fails_with(q{INSERT INTO other SELECT repeat('o', 1000) FROM generate_series(1, 10000)},
	qr/the rest is for tables and indexes that are not rebuilt yet/, 'too low: and leaves the others their room');
$node->stop;
$node->set_conf('nvm.memory_limit' => "${enough}MB");
$node->start;
is(content(qw(s t filler)), join("\n", (split /\n/, $before)[0, 1, 3]), "with $enough MB all is there");
is(sql('SELECT count(*), sum(v) FROM small'), '100|600', 'and what was written since');
indexes_ready("with $enough MB");
$node->check_clean('a higher limit');

# ---------------------------------------------------------------- 6. many starts

# A table with an index in files keeps the numbers of its blocks.  They need memory when a row
# comes before VACUUM has been there, and no longer.
sql('TRUNCATE filler', 'DROP TABLE s', 'SELECT nvm.checkpoint()');
sql('CREATE TABLE often (id int, v text) USING nvm_vlog', 'SET nvm.default_index_method = btree', 'CREATE INDEX ON often USING btree (id)',
	q{INSERT INTO often SELECT i, repeat('o', 50 + i % 100) FROM generate_series(1, 60000) i});
sub bytes { return sql(q{SELECT bytes FROM nvm.relations WHERE relation = 'often'::regclass}); }

sub often_agrees
{
	my $all = content('often');

	is(sql('SET enable_seqscan = off', 'SET enable_bitmapscan = off', 'SELECT count(*), coalesce(sum(id), 0) FROM often WHERE id > 0'),
		sql('SELECT count(*), coalesce(sum(id), 0) FROM often'), "$_[0]: the index leads to what the table has");
	lose();
	return is(content('often'), $all, "$_[0]: and all is there");
}

sub lose
{
	$node->crash;
	$node->start;
	return;
}

my @bytes;
foreach my $n (1 .. 5)
{
	# rows of which nothing is left but entries, too
	sql('BEGIN', "INSERT INTO often SELECT i, 'a' FROM generate_series(900001, 901000) i", 'ROLLBACK');
	sql("INSERT INTO often SELECT i, 'n' FROM generate_series(100000 + $n * 10, 100005 + $n * 10) i");
	sql('VACUUM often') if $n > 1;
	often_agrees("start $n");
	push @bytes, bytes();
}
is($bytes[4], $bytes[1], "it does not grow by starts: @bytes");

foreach my $at (qw(vacuum-count-lowered pool-count-blocks))
{
	lose();
	sql("INSERT INTO often SELECT i, 'before' FROM generate_series(200001, 200300) i");
	$node->psql('postgres', "SET nvm.failpoint = '$at:crash:1'; VACUUM often");
	$node->wait_crashed;
	$node->start;
	sql("INSERT INTO often SELECT i, 'after' FROM generate_series(300001, 300300) i");
	often_agrees($at);
}
sql('DELETE FROM often WHERE id > 100', 'VACUUM often');
lose();
is(sql('SELECT count(*) FROM often'), 100, 'few rows are left');
cmp_ok(bytes(), '<', $bytes[1] / 10, 'blocks behind them need no memory');
sql('VACUUM often');
cmp_ok(bytes(), '<', $bytes[1] / 10, 'VACUUM gives the numbers back');
sql("INSERT INTO often SELECT i, 'second' FROM generate_series(500001, 500200) i");
often_agrees('rows behind VACUUM');
cmp_ok(bytes(), '<', $bytes[1] / 10, 'and rows that come then need no more');
$node->check_clean('many starts');

# ---------------------------------------------------------------- 7. the disk of the log

# a transaction that pg_xact decides, and of which the log does not know the end
$before = content('t');
$node->psql('postgres', "SET nvm.failpoint = 'commit-before-decision:crash:1'; BEGIN; INSERT INTO h VALUES (2); UPDATE small SET v = 7; COMMIT");
$node->wait_crashed;
$node->set_conf('nvm.recovery_workers' => 1);
failpoint('rebuild-read:stop:1');
$node->start;
NvmTest::wait_until('it reads', sub { @stopped = $node->log_since_start =~ /failpoint rebuild-read hit, pid (\d+)/g; });
NvmTest::wait_stopped($_) foreach @stopped;
failpoint('');
append_to_file("$faults/log-full", '');
NvmTest::continue_process($_) foreach @stopped;
$node->poll_query_until('postgres', q{SELECT state = 'failed' FROM nvm.log_recovery});
is(sql('SELECT reason FROM nvm.log_recovery'), 'could not write the log of tables in memory: No space left on device', 'a full disk of the log is the reason');
like($node->log_since_start, qr/could not be rebuilt from the log: could not write the log of tables in memory: No space left on device\n.*DETAIL:  The log is in directory "pg_nvm_log"/, 'which the server log says, and where');
unlike($node->log_since_start, qr/shared memory/, 'and nothing else');
$node->stop;
unlink "$faults/log-full";
$node->start;
is(content('t'), $before, 'all is there when the disk has room');
is(sql('SELECT sum(v) FROM small', 'SELECT count(*) FROM h WHERE id = 2'), "700\n1", 'and the transaction, which had committed');
$node->check_clean('at the end');
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# nvm.memory_directory: the volatile region is a file in memory, and a restart of PostgreSQL
# finds it (src/pool/README.md, "The backing").  Clean, or after SIGKILL of all processes,
# with transactions of all kinds under way: what was acknowledged is there, nothing else, and
# no log is read.  A file that is stale, a copy, another pool's, damaged, older than the log or
# too large is not believed: the server log says why, and the log brings the same rows back.

use strict;
use warnings;

use File::Basename;
use File::Copy;
use NvmFuzzImage;
use NvmMemory;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my ($node, $file) = NvmMemory::start_kept('memory', conf => "max_prepared_transactions = 10\n", sql => <<SQL);
CREATE TABLE v (id int PRIMARY KEY, n int, t text, big text) USING nvm_vlog;
CREATE INDEX v_n ON v (n);
SET nvm.default_index_method = btree;
CREATE INDEX v_t ON v USING btree (t);
RESET nvm.default_index_method;
CREATE TABLE w (id int PRIMARY KEY, t text) USING nvm_vlog;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY) USING nvm_vlog;
CREATE TABLE p (id int PRIMARY KEY, n int) USING nvm;
CREATE TABLE h (id int PRIMARY KEY, n int) USING heap;
INSERT INTO v SELECT i, i % 100, repeat('t', i % 50) FROM generate_series(1, 5000) i;
INSERT INTO v VALUES (0, 0, NULL, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 3000) i));
INSERT INTO w SELECT i, 'w' FROM generate_series(1, 100) i;
INSERT INTO u SELECT i FROM generate_series(1, 500) i;
INSERT INTO p SELECT i, 0 FROM generate_series(1, 100) i;
INSERT INTO h SELECT i, 0 FROM generate_series(1, 100) i;
SQL
my $memory = dirname($file);

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub restart { return $node->stop_and_start; }

sub contents
{
	my ($table) = @_;
	return sql("SELECT count(*) || ' ' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM $table t");
}

# what a start has made of the file, and what it has read
sub is_kept
{
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	return NvmMemory::is_kept($node, $_[0], $file);
}

sub is_lost
{
	my ($why, $name) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	like($node->log_since_start, qr/contents of file "\Q$file\E" are not used: $why/, "$name: the log says why");
	sql('SELECT count(*) FROM v');
	like(sql('SELECT state, rows FROM nvm.log_recovery'), qr/^whole\|[1-9]/, "$name: and brings the rows back");
	return;
}

# the words of the header, as media_memory.h has them
sub header
{
	my @names = qw(magic version pool_version uuid boot device inode birth companion_size companion_layout crc nchunks bound nonce next_nonce);
	open(my $fh, '<:raw', $file) or die "$file: $!";
	read($fh, my $bytes, 120);
	my %header;
	@header{@names} = unpack('Q<L<L<a16a16Q<Q<Q<Q<L<L<Q<Q<Q<Q<', $bytes);
	return ($bytes, %header);
}

sub write_header
{
	my ($bytes) = @_;
	open(my $fh, '+<:raw', $file) or die "$file: $!";
	print $fh $bytes;
	close($fh) or die "$file: $!";
	return;
}

# so that what is changed on purpose does not only show by the checksum
sub sealed
{
	my ($bytes) = @_;
	substr($bytes, 84, 4) = pack('L<', NvmFuzzImage::crc32c(substr($bytes, 0, 84)));
	return $bytes;
}

my @tables = qw(v w u p h);
my %want;

sub remember { %want = map { $_ => contents($_) } @tables; return; }

sub all_there
{
	my ($name, %except) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	is(join(', ', map { "$_ " . contents($_) } grep { !$except{$_} } @tables),
		join(', ', map { "$_ $want{$_}" } grep { !$except{$_} } @tables), "$name: all is there");
	is(sql(q{SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT (SELECT count(*) FROM v WHERE n = 7), (SELECT count(*) FROM v WHERE t > ''), (SELECT count(*) FROM v WHERE id >= 0)}),
		sql(q{SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SELECT (SELECT count(*) FROM v WHERE n = 7), (SELECT count(*) FROM v WHERE t > ''), (SELECT count(*) FROM v WHERE id >= 0)}),
		"$name: by all indexes");
	$node->check_clean($name);
	return;
}

# ---- restarts

like($node->log_since_start, qr/tables in memory lie in file "\Q$file\E", which is new/, 'a first start makes the file');
is((stat $file)[2] & 07777, 0600, 'which is the server\'s alone');
is(sprintf('%o', (stat $memory)[2] & 07777), '700', 'as the directory is, which it has made, too');
remember();
restart();
is_kept('a clean restart');
all_there('a clean restart');
sql('UPDATE v SET n = n + 1; DELETE FROM v WHERE id % 11 = 0; INSERT INTO u VALUES (1000)');
remember();
restart();
is_kept('another one');
all_there('another one');
$node->stop('immediate');
$node->start;
is_kept('an immediate stop');
all_there('an immediate stop', u => 1);
is(sql('SELECT count(*) FROM u'), 0, 'which empties UNLOGGED tables, as elsewhere');
my $opened = $node->times_opened;
my $victim = $node->session;
kill 'KILL', $victim->pid;
$victim->drop;
$node->wait_reopened($opened);
remember();
all_there('a death of a backend');

# ---- SIGKILL of all processes

# heap's commits that nobody has waited for are lost with the WAL, and pg_xact forgets them
my $quiet = $node->session('SET synchronous_commit = off');
$node->stop_wal_writers;
my ($worker) = split /\n/, sql(q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'nvm log recovery'});
NvmTest::stop_process($worker);
my $position = sql('SELECT persistent FROM nvm.log');
$quiet->sql('INSERT INTO h VALUES (1001, 1)');
$quiet->sql("INSERT INTO w VALUES (10001, 'asynchronous')");
$quiet->sql("UPDATE w SET t = 'updated asynchronously' WHERE id = 17");
is(sql('SELECT persistent FROM nvm.log'), $position, 'an asynchronous commit is in memory alone');
# left open: they write no commit record, and flush nothing
my $open = $node->session('BEGIN', 'DELETE FROM v WHERE id < 50', "INSERT INTO w VALUES (10002, 'open')",
	'UPDATE v SET n = -1 WHERE id BETWEEN 60 AND 70');
my $savepoint = $node->session('BEGIN', 'SAVEPOINT a', "UPDATE v SET n = -2 WHERE id = 80", 'ROLLBACK TO a',
	"UPDATE v SET n = -3 WHERE id = 81");
$node->crash;
$node->start;
is_kept('SIGKILL');
is(sql('SELECT count(*) FROM h WHERE id = 1001'), 0, 'heap has lost an asynchronous commit');
is(sql('SELECT id, t FROM w WHERE id IN (17, 10001, 10002) ORDER BY 1'), "17|updated asynchronously\n10001|asynchronous",
	'memory has not, and nothing of an open one');
is(sql('SELECT inserted = persistent FROM nvm.log'), 't', 'and the log has it now');
is(sql('SELECT count(*) FROM v WHERE n < 0'), 0, 'nor has any update of an open one stayed');
is(sql('SELECT count(*) FROM v WHERE id < 50'), 45, 'nor a deletion');
sql('UPDATE v SET n = 5 WHERE id < 90');
remember();

# transactions over both, at each step of the decision; each is whole or absent
foreach my $failpoint (qw(log-captured log-asked commit-after-prepare commit-before-decision log-placed))
{
	foreach my $mixed (0, 1)
	{
		my $id = 20000 + 10 * length($failpoint) + $mixed;
		my $session = $node->session("SET nvm.failpoint = '$failpoint:crash'", 'BEGIN', "INSERT INTO v VALUES ($id, 1, '$failpoint')",
			$mixed ? ("INSERT INTO p VALUES ($id, 1)", "INSERT INTO h VALUES ($id, 1)") : ());
		next if !$mixed && $failpoint eq 'log-asked';
		$session->send('COMMIT');
		$node->wait_crashed;
		$session->drop;
		$node->start;
		is_kept("$failpoint, $mixed");
		my $n = sql("SELECT (SELECT count(*) FROM v WHERE id = $id), (SELECT count(*) FROM p WHERE id = $id), (SELECT count(*) FROM h WHERE id = $id)");
		like($n, $mixed ? qr/^(.)\|\1\|\1$/ : qr/^[01]\|0\|0$/, "SIGKILL at $failpoint: " . ($mixed ? 'over all three' : 'memory alone') . ", whole or absent ($n)");
	}
}

# prepared ones, with row locks, over a restart of each kind
foreach my $end ('restart', 'crash', 'both')
{
	sql("BEGIN; UPDATE v SET n = 77 WHERE id IN (1, 2, 3); INSERT INTO p VALUES (30000 + length('$end'), 1); INSERT INTO h VALUES (30000 + length('$end'), 1); PREPARE TRANSACTION 'mixed $end'");
	sql("BEGIN; DELETE FROM v WHERE id = 4; SELECT FROM v WHERE id = 5 FOR UPDATE; PREPARE TRANSACTION 'memory $end'");
	sql("BEGIN; UPDATE v SET n = 78 WHERE id = 6; PREPARE TRANSACTION 'ended $end'; COMMIT PREPARED 'ended $end'");
	sql("BEGIN; UPDATE v SET n = 79 WHERE id = 7; PREPARE TRANSACTION 'undone $end'; ROLLBACK PREPARED 'undone $end'");
	foreach my $way ($end eq 'both' ? qw(crash restart) : $end)
	{
		if ($way eq 'crash') { $node->crash; $node->start; } else { restart(); }
		is_kept("prepared, $way");
	}
	is(sql('SELECT string_agg(id::text, $$ $$ ORDER BY id) FROM (SELECT id FROM v WHERE id BETWEEN 1 AND 8 FOR UPDATE SKIP LOCKED) f'),
		'6 7 8', "prepared, $end: its rows are locked");
	sql("COMMIT PREPARED 'mixed $end'; ROLLBACK PREPARED 'memory $end'");
	is(sql('SELECT string_agg(id || $$:$$ || n, $$ $$ ORDER BY id) FROM v WHERE id BETWEEN 1 AND 8'),
		'1:77 2:77 3:77 4:5 5:5 6:78 7:5 8:5', "prepared, $end: ended as it should be");
	sql('UPDATE v SET n = 5 WHERE id < 10');
}
remember();

# what memory has is what the log has
$node->stop;
unlink $file or die;
$node->start;
like($node->log_since_start, qr/which is new/, 'without the file');
sql('SELECT count(*) FROM v');
like(sql('SELECT state, rows FROM nvm.log_recovery'), qr/^whole\|[1-9]/, 'the log is read');
all_there('from the log');

# ---- files that are not believed

sub stopped
{
	my ($how, $change) = @_;
	sql('UPDATE v SET n = n + 1; INSERT INTO u SELECT 1 + max(id) FROM (SELECT id FROM v UNION ALL SELECT id FROM u) x');
	remember();
	$how eq 'crash' ? $node->crash : $node->stop;
	$change->();
	$node->start;
	return;
}

my $header = (header())[0];
is(sealed($header), $header, 'the test and the server compute the same checksum');

foreach my $case (
	[ 'a flipped bit of the uuid', 'its header is damaged', sub { substr($_[0], 20, 1) ^= "\1"; $_[0] } ],
	[ 'no magic number', 'it is no file of this kind, or damaged', sub { substr($_[0], 0, 8) = 'nonsense'; $_[0] } ],
	[ 'zeroes', 'it was not made to its end', sub { "\0" x 120 } ],
	[ 'another version', 'another version of pg_nvm has made it', sub { substr($_[0], 8, 4) = pack('L<', 99); sealed($_[0]) } ],
	[ 'another layout', 'a server with other settings, or another version of pg_nvm', sub { substr($_[0], 80, 4) ^= "\1"; sealed($_[0]) } ],
	[ 'another boot', 'it is older than the last reboot', sub { substr($_[0], 32, 1) ^= "\1"; sealed($_[0]) } ],
	[ 'another inode', 'it is a copy', sub { substr($_[0], 56, 1) ^= "\1"; sealed($_[0]) } ],
	[ 'more chunks than there are', 'parts of it are missing', sub { substr($_[0], 88, 8) = pack('Q<', 7); $_[0] } ],
	[ 'nobody\'s', 'its contents belong to no pool', sub { substr($_[0], 96, 8) = pack('Q<', 0); $_[0] } ],
	[ 'another nonce', 'the NVM pool was used without it since', sub { substr($_[0], 104, 1) ^= "\1"; $_[0] } ])
{
	my ($name, $why, $change) = @$case;
	stopped($name =~ /uuid|nonce/ ? 'crash' : 'stop', sub { write_header($change->((header())[0])); });
	is_lost($why, $name);
	my $crashed = $name =~ /uuid|nonce/;
	all_there($name, u => $crashed);
	is(sql('SELECT count(*) > 0 FROM u'), $crashed ? 'f' : 't', "$name: UNLOGGED tables as well, unless it was a crash");
}
stopped('stop', sub { truncate($file, 0) or die; });
like($node->log_since_start, qr/which is new/, 'an empty file is as none');
all_there('an empty file');
stopped('stop', sub { truncate($file, 100_000) or die; });
is_lost('parts of it are missing', 'a short file');
stopped('stop', sub { system_or_bail('fallocate', '-p', '-o', (-s $file) - (32 << 20), '-l', 8 << 20, $file); });
is_lost('parts of it are missing', 'a hole');
stopped('stop', sub { move($file, "$file.moved"); system_or_bail('cp', '--sparse=auto', "$file.moved", $file); chmod 0600, $file; unlink "$file.moved"; });
is_lost('it is a copy', 'a copy');
all_there('a copy');

# another server's, which is stopped
my $other_memory = "${memory}_other";
my $other = NvmTest->start_new('other', conf => "nvm.memory_directory = '$other_memory'\nnvm.memory_limit = 512MB\n",
	sql => "CREATE TABLE v (id int) USING nvm_vlog; INSERT INTO v VALUES (-1)");
$other->stop;
stopped('stop', sub { rename "$other_memory/pg_nvm_memory", $file or die; });
is_lost('it is of another NVM pool', 'another pool\'s');
all_there('another pool\'s');
$other->start;
is($other->safe_psql('postgres', 'SELECT * FROM v'), -1, 'whose server has its rows, too');
$other->stop;

# what the file had a moment before the crash: the log has gone on since
foreach my $how (qw(commit file))
{
	system_or_bail('cp', '--sparse=auto', $file, "$file.old");
	my (undef, %header) = header();
	my $lead = (-s $file) - $header{nchunks} * (64 << 20);
	sql('UPDATE v SET n = n + 1');
	sql("DO 'BEGIN FOR i IN 1 .. 25 LOOP UPDATE v SET n = n + 1; COMMIT; END LOOP; END'") if $how eq 'file';
	stopped('crash', sub {
		system_or_bail('cp', '--sparse=auto', "$file.old", $file);
		system_or_bail('fallocate', '-l', 40 << 20, $file);
		system_or_bail('fallocate', '-o', $lead, '-l', $header{nchunks} * (64 << 20), $file);
		unlink "$file.old"; });
	is_lost($how eq 'file' ? '(?:the log has gone on to file|log file)' : 'log file "[^"]*" goes on up to position \d+, and memory ends at \d+',
		"an older state, by a $how");
	all_there("an older state, by a $how", u => 1);
}

# the server ran without it meanwhile
$node->stop;
$node->append_conf('postgresql.conf', "nvm.memory_directory = ''");
$node->start;
sql('UPDATE v SET n = n + 1');
remember();
$node->append_conf('postgresql.conf', "nvm.memory_directory = '$memory'");
restart();
is_lost('the NVM pool was used without it since', 'another setting meanwhile');
all_there('another setting meanwhile');

# ---- nvm.memory_limit

sql("INSERT INTO v SELECT i, 0, repeat('x', 1500) FROM generate_series(100001, 150000) i");
remember();
foreach my $limit ('2GB', '256MB', '512MB')
{
	$node->append_conf('postgresql.conf', "nvm.memory_limit = $limit");
	restart();
	is_kept("a limit of $limit");
}
all_there('another limit');
$node->append_conf('postgresql.conf', 'nvm.memory_limit = 64MB');
restart();
is_kept('a limit below what there is');
like($node->log_since_start, qr/nvm.memory_limit allows 64 MB: they cannot grow/, 'which the server log says');
all_there('a limit below what there is');
$node->fails_with("INSERT INTO v SELECT i, 0, repeat('x', 1500) FROM generate_series(200001, 300000) i",
	qr/it has its maximum size.*nvm.memory_limit allows 64 MB/s, 'and an INSERT, when there is no room');
sql("DELETE FROM v WHERE id > 100000");
remember();
$node->append_conf('postgresql.conf', 'nvm.memory_limit = 512MB');
restart();
is_kept('the limit as it was');
sql("INSERT INTO v SELECT i, 0, repeat('x', 1500) FROM generate_series(100001, 200000) i");

# ---- the pool is given up: the file is another's from then on

sql('SELECT nvm.reset_pool(force => true)');
restart();
like($node->log_since_start, qr/are not used: it is of another NVM pool/, 'a new pool: the file is of the one before');
sql('DROP TABLE v, w, u, p; CREATE TABLE v (id int) USING nvm_vlog; INSERT INTO v VALUES (1)');
restart();
is(sql('SELECT count(*) FROM v'), 1, 'and goes on with the new one');
is_kept('after that');
$node->stop;
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Files of the log, or its directory, are removed or renamed under a running server
# (src/log/README.md, "Files that vanish").  It notices, says so, goes on in a new file or
# refuses commits, and makes a checkpoint that does without what has gone: a crash afterwards
# loses nothing.

use strict;
use warnings;

use File::Path qw(rmtree);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('vanished', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_worker_processes = 8
max_prepared_transactions = 2
nvm.checkpoint_interval = 0
CONF
CREATE TABLE v (id int PRIMARY KEY, s text) USING nvm_vlog;
CREATE TABLE n (id int) USING nvm;
INSERT INTO v SELECT i, 's' || i FROM generate_series(1, 1000) i;
SQL
my $log = $node->data_dir . '/pg_nvm_log';
my $rows = 1000;

sub sql { return $node->safe_psql('postgres', $_[0]); }
sub last_file { return (sort glob "$log/*.log")[-1]; }
sub checkpoint { return sql(q{SELECT coalesce(max(number), 0) FROM nvm.checkpoints WHERE state = 'usable'}); }
sub noticed
{
	my ($file) = @_;
	NvmTest::wait_until("a line about $file", sub { $node->log_since_start =~ /LOG:  nvm: file "\S*\Q$file\E" of the log was removed or renamed/ });
	return;
}
sub insert { $rows++; return sql("INSERT INTO v VALUES ($rows, 'later')"); }

# a checkpoint comes by itself; then a crash that loses the memory loses nothing
sub is_mended
{
	my ($name, $before) = @_;
	local $Test::Builder::Level = $Test::Builder::Level + 1;
	ok($node->poll_query_until('postgres', "SELECT max(number) > $before FROM nvm.checkpoints WHERE state = 'usable'"), "$name: a checkpoint is made");
	sleep 2;
	is(checkpoint(), $before + 1, "$name: and no other");
	insert();
	$node->crash;
	$node->start;
	is(sql('SELECT count(*), sum(id), count(DISTINCT s) FROM v'), "$rows|" . $rows * ($rows + 1) / 2 . '|1001', "$name: all rows are there after a crash");
	return;
}

# ---- the file that is written, unlinked or renamed

foreach my $how (qw(unlink rename))
{
	foreach my $when ('idle', 'busy')
	{
		my $name = "$how, $when";
		my $before = checkpoint();
		my $file = last_file();
		insert();
		$how eq 'unlink' ? unlink($file) || die $! : rename($file, "$file.aside") || die $!;
		insert() if $when eq 'busy';
		noticed($file =~ s,.*/,,r);
		insert();
		isnt(last_file(), $file, "$name: a new file");
		is_mended($name, $before);
		unlink "$file.aside";
	}
}

# another file under its name
{
	my $before = checkpoint();
	my $file = last_file();
	insert();
	rename($file, "$file.aside") or die $!;
	append_to_file($file, 'x' x 100000);
	noticed($file =~ s,.*/,,r);
	is_mended('another file', $before);
	unlink "$file.aside";
}

# ---- the directory

{
	my $before = checkpoint();
	my $file = last_file();
	insert();
	rename($log, "$log.away") or die $!;
	noticed($file =~ s,.*/,,r);
	$node->fails_with('INSERT INTO v VALUES (0, NULL)', qr/could not write the log of tables in memory: No such file or directory/, 'without the directory a commit is an error');
	is(sql('SELECT count(*) FROM v'), $rows, 'reading goes on');
	sql('INSERT INTO n VALUES (1)');
	is(sql('SELECT state FROM nvm.log'), 'failed', 'the view shows it');
	is(checkpoint(), $before, 'no checkpoint is made');
	rename("$log.away", $log) or die $!;
	sleep 1;	# it is tried twice a second
	insert();
	is(sql('SELECT state FROM nvm.log'), 'on', 'with the directory commits go on');
	is_mended('the directory is back', $before);
}
{
	my $before = checkpoint();
	my $file = last_file();
	insert();
	rmtree($log);
	noticed($file =~ s,.*/,,r);
	$node->fails_with('INSERT INTO v VALUES (0, NULL)', qr/could not write the log/, 'a directory that is removed');
	mkdir $log, 0700;
	sleep 1;
	insert();
	is_mended('another directory', $before);
}

# ---- a checkpoint that needs the file says so, and does not count

sql(q{BEGIN; INSERT INTO v VALUES (-1, 'prepared'); PREPARE TRANSACTION 'one'});
my $before = checkpoint();
my $file = last_file();
unlink($file) or die $!;
noticed($file =~ s,.*/,,r);
NvmTest::wait_until('a checkpoint that fails', sub { $node->log_since_start =~ /checkpoint of tables in memory has failed: the file of the log that has position \d+ is missing/ });
is(checkpoint(), $before, 'with a prepared transaction in the file no checkpoint can do without it');
sql(q{ROLLBACK PREPARED 'one'});
sql('SELECT nvm.checkpoint()');
is_mended('it has ended', checkpoint() - 1);
$node->check_clean('the end');
$node->stop;
done_testing();

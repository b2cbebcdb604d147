# Copyright (c) 2026, pg_nvm contributors

# Copies of a server: hot standby, base backups, file copies of a running
# server, cold copies, pg_rewind, pg_checksums; with the pool inside the data
# directory and outside.  A pool that does not belong to what a data directory
# says is refused, at the second start too, and everything else is served.
#
# Long form: every kind of copy with the pool at both places, here the most important ones.

use strict;
use warnings;

use File::Path qw(rmtree);
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $base = NvmTest::pool_base();

# A server with rows in both kinds of table.
sub make_node
{
	my ($name, %params) = @_;
	my $conf = delete $params{conf} // '';
	my $node = NvmTest->start_new($name, checksums => 0, %params,
		conf => "nvm.pool_max_size = '512MB'\nautovacuum = off\n$conf", sql => <<SQL);
CREATE TABLE t (id int PRIMARY KEY, body text) USING nvm;
INSERT INTO t SELECT i, repeat('x', 100) FROM generate_series(1, 1000) i;
CREATE TABLE h (id int PRIMARY KEY);
INSERT INTO h SELECT generate_series(1, 1000);
SQL
	return $node;
}

# Every access to the nvm table fails with a reason and a hint, the rest works.
sub refused
{
	my ($node, $re, $name, %params) = @_;
	# every kind of access once
	my $brief = $name !~ /^(standby|base backup|promoted), pool inside$/ && !NvmTest::is_long();

	is($node->safe_psql('postgres', 'SELECT count(*) FROM h'), '1000', "$name: heap tables are served");
	foreach my $sql ($brief ? ('SELECT * FROM t') : (
		'SELECT * FROM t', 'SELECT body FROM t WHERE id = 1', 'COPY t TO STDOUT',
		'SELECT ctid FROM t', 'EXPLAIN SELECT * FROM t'),
		$params{readonly} ? () : $brief ? ("INSERT INTO t VALUES (0, '')") : ("INSERT INTO t VALUES (0, '')", 'DELETE FROM t', 'TRUNCATE t',
			'CREATE TABLE t2 (a int) USING nvm', 'ALTER TABLE t ALTER id TYPE bigint', 'ANALYZE t',
			'REINDEX TABLE t', 'VACUUM FULL t', 'SELECT * FROM t FOR UPDATE'))
	{
		$node->fails_with($sql, $re, "$name: $sql says why");
	}
	$node->fails_with('SELECT * FROM t', qr/HINT: .../, "$name: and what to do");
	isnt($node->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'open', "$name: nvm.pool says so");
	unlike($node->log_since_start, qr/PANIC|terminated by signal/, "$name: nothing crashed");
	return;
}

sub whole
{
	my ($node, $n, $name) = @_;
	is($node->safe_psql('postgres', 'SET enable_seqscan = off; SELECT count(*), sum(length(body)) FROM t WHERE id > 0'),
		"$n|" . $n * 100, "$name: the rows are there");
	$node->check_clean($name);
	return;
}

# A second server from a copy of the first one's files.
sub copy_of
{
	my ($node, $name, %params) = @_;
	my $copy = NvmTest->new($name);

	if ($params{backup})
	{
		$copy->init_from_backup($node, $params{backup}, has_streaming => $params{standby});
	}
	else
	{
		PostgreSQL::Test::Utils::system_or_bail('mkdir', '-p', $copy->basedir);
		mkdir $copy->archive_dir unless -d $copy->archive_dir;
		mkdir $copy->backup_dir unless -d $copy->backup_dir;
		PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $node->data_dir, $copy->data_dir);
		unlink($copy->data_dir . '/postmaster.pid');
		$copy->append_conf('postgresql.conf', 'port = ' . $copy->port);
	}
	$copy->{nvm_pool} = $params{pool} // $node->pool_dir;
	$copy->{nvm_name} = "copies_$name";
	$copy->append_conf('postgresql.conf', "nvm.pool_directory = '$params{pool}'") if $params{pool};
	return $copy;
}

foreach my $place ('inside', 'outside')
{
	my $pool = $place eq 'inside' ? 'pg_nvm' : "$base/copies_$place";
	my $main = make_node("main_$place", pool => $pool, allows_streaming => 1,
		conf => "wal_log_hints = on\nwal_keep_size = '256MB'\n");

	# ---- a base backup of a server at work, as standby and by itself
	my $load = $main->start_load(clients => 1,
		sql => sub { return "INSERT INTO t VALUES ($_[1] + 1000, repeat('y', 100));" });
	$load->wait_acknowledged(20);
	$main->backup('b');
	$load->wait_acknowledged(40);
	kill('TERM', map { $_->{pid} } @{ $load->{clients} });
	$load->finish;
	# a backend whose client is dead ends its last statement, and commits
	$main->poll_query_until('postgres',
		q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()))
	  or die 'the load does not end';
	my $rows = $main->safe_psql('postgres', 'SELECT count(*) FROM t');

	my $standby = copy_of($main, "standby_$place", backup => 'b', standby => 1);
	$standby->start;
	refused($standby, qr/this server is a standby|in recovery|read-only transaction/, "standby, pool $place", readonly => 1);
	$standby->fails_with('SELECT * FROM t', qr/HINT: .*primary/s, "standby, pool $place: hint");
	$main->safe_psql('postgres', 'CREATE TABLE t3 (a int) USING nvm; INSERT INTO t3 VALUES (1); DROP TABLE h; CREATE TABLE h AS SELECT generate_series(1, 1000) AS id');
	$main->wait_for_catchup($standby, 'replay', $main->lsn('insert'));
	$standby->fails_with('SELECT * FROM t3', qr/standby/, "standby, pool $place: a table that came later");
	$standby->fails_with('SELECT count(*) FROM h, t', qr/standby/, "standby, pool $place: joined with heap");
	is($standby->safe_psql('postgres', q(SELECT count(*) FROM pg_class WHERE relname IN ('t', 't3'))), '2',
		"standby, pool $place: catalogs can be read");

	my $restored = copy_of($main, "restored_$place", backup => 'b');
	$restored->start;
	refused($restored, qr/starts from a base backup/, "base backup, pool $place");
	$restored->stop;
	$restored->start;
	refused($restored, qr/restored from a base backup/, "base backup, pool $place, second start");
	$restored->crash;
	$restored->start;
	refused($restored, qr/restored from a base backup/, "base backup, pool $place, after a crash");
	# what cannot be read can be dropped
	$restored->safe_psql('postgres', 'DROP TABLE t');
	is($restored->safe_psql('postgres', q(SELECT count(*) FROM pg_class WHERE relname = 't')), '0',
		"base backup, pool $place: the table can be dropped");
	$restored->stop;

	whole($main, $rows, "primary, pool $place");

	# ---- promotion, then the old primary follows with pg_rewind
	$main->stop;
	if ($place eq 'outside')
	{
		# the old primary's pool is free now, and is not the restored server's
		$restored->start;
		$restored->fails_with('SELECT * FROM nvm.gaps', qr/restored from a base backup/, "base backup, pool $place: not when the other has gone");
		$restored->stop;
	}
	$standby->promote;
	refused($standby, qr/was a standby and has been promoted/, "promoted, pool $place");
	$standby->stop;
	$standby->start;
	refused($standby, qr/that of a standby/, "promoted, pool $place, second start");
	$standby->safe_psql('postgres', 'INSERT INTO h VALUES (0); DELETE FROM h WHERE id = 0; CHECKPOINT');
	$main->start;
	whole($main, $rows, "primary, pool $place, started again");
	$main->stop;

	SKIP:
	{
		skip 'pg_rewind once', 1 if $place eq 'outside' && !NvmTest::is_long();
		my $conf = slurp_file($main->data_dir . '/postgresql.conf');
		$standby->stop;
		command_ok([ 'pg_rewind', '--source-pgdata', $standby->data_dir, '--target-pgdata', $main->data_dir, '--no-sync' ],
			"pg_rewind, pool $place");
		open(my $fh, '>', $main->data_dir . '/postgresql.conf') or die $!;
		print $fh $conf;
		close $fh;
		unlink($main->data_dir . '/standby.signal');
		$main->start;
		refused($main, qr/base backup|standby/, "after pg_rewind, pool $place");
		$main->stop;
		$main->start;
		refused($main, qr/base backup|standby/, "after pg_rewind, pool $place, second start");
		$main->stop;
		$standby->start;
	}
	$standby->stop;
	$_->clean_node foreach ($standby, $restored, $main);
	rmtree("$base/copies_$place");
}

# ---- file copies without a backup: hot ones are refused, cold ones work

foreach my $place ('inside', 'outside')
{
	my $pool = $place eq 'inside' ? 'pg_nvm' : "$base/files_$place";
	my $main = make_node("files_$place", pool => $pool);

	my $hot = copy_of($main, "hot_$place");
	my $hot_pool = $place eq 'inside' ? $hot->data_dir . '/pg_nvm' : "$base/files_hot";
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $pool, $hot_pool) if $place eq 'outside';
	my $other = copy_of($main, "other_$place") if $place eq 'outside';
	$main->safe_psql('postgres', "INSERT INTO t SELECT i, repeat('z', 100) FROM generate_series(2001, 2500) i");

	# its own copy of the pool is torn
	$hot->append_conf('postgresql.conf', "nvm.pool_directory = '$hot_pool'");
	$hot->start;
	refused($hot, qr/is a copy of a pool that was not shut down cleanly/, "hot copy, pool $place");
	$hot->stop;
	$hot->start;
	refused($hot, qr/is a copy of a pool that was not shut down cleanly/, "hot copy, pool $place, second start");
	$hot->stop;

	# a copied data directory with the original's pool
	if ($other)
	{
		$other->start;
		refused($other, qr/in use by another server/, 'copied data directory, pool in use');
		$other->safe_psql('postgres', 'SELECT pg_switch_wal(); CHECKPOINT; SELECT pg_switch_wal(); CHECKPOINT');
		$other->stop;
		$main->crash;
		$other->start;
		refused($other, qr/data directory is a copy|data directory is older/, 'copied data directory, after a crash of the original');
		$other->stop;
		$main->start;
		whole($main, 1500, 'the original after that');
		$main->stop;
		$other->start;
		refused($other, qr/data directory (is a copy|is older|was an older copy)|is older than/, 'copied data directory, after the original has been stopped');
		$other->stop;
		$other->start;
		refused($other, qr/data directory (is a copy|is older|was an older copy)|is older than/, 'copied data directory, second start');
		$other->stop;
		$other->clean_node;
		$main->start;
	}
	whole($main, 1500, "original, pool $place");
	$main->stop;

	# pg_checksums looks at all files of a stopped server
	command_ok([ 'pg_checksums', '--enable', '--no-sync', '-D', $main->data_dir ], "pg_checksums --enable, pool $place");
	command_ok([ 'pg_checksums', '--check', '-D', $main->data_dir ], "pg_checksums --check, pool $place");

	my $cold = copy_of($main, "cold_$place");
	my $cold_pool = $place eq 'inside' ? $cold->data_dir . '/pg_nvm' : "$base/files_cold";
	PostgreSQL::Test::Utils::system_or_bail('cp', '-a', $pool, $cold_pool) if $place eq 'outside';
	$cold->append_conf('postgresql.conf', "nvm.pool_directory = '$cold_pool'");
	$cold->start;
	whole($cold, 1500, "cold copy, pool $place");
	$main->start;
	$cold->safe_psql('postgres', 'DELETE FROM t WHERE id % 2 = 0');
	whole($main, 1500, "original beside its cold copy, pool $place");
	$main->safe_psql('postgres', 'DELETE FROM t WHERE id > 100');
	$cold->crash;
	$cold->start;
	whole($cold, 750, "cold copy after a crash, pool $place");
	whole($main, 100, "original at the end, pool $place");
	$cold->stop;
	$main->stop;
	$_->clean_node foreach ($hot, $cold, $main);
	rmtree($_) foreach ("$base/files_$place", "$base/files_hot", "$base/files_cold");
}

# ---- recovery to a point in time from a cold copy: the WAL does not carry the
# pool along

{
	my $main = make_node('pitr', pool => 'pg_nvm', allows_streaming => 1);
	$main->stop;
	my $copy = copy_of($main, 'pitr_copy');
	$copy->append_conf('postgresql.conf', "restore_command = 'false'\nnvm.pool_directory = 'pg_nvm'");
	open(my $fh, '>', $copy->data_dir . '/recovery.signal') or die $!;
	close $fh;
	$copy->start;
	$copy->poll_query_until('postgres', 'SELECT NOT pg_is_in_recovery()');
	refused($copy, qr/starts from a base backup/, 'archive recovery');
	$copy->stop;
	$copy->start;
	refused($copy, qr/restored from a base backup/, 'archive recovery, second start');
	$copy->stop;
}

done_testing();

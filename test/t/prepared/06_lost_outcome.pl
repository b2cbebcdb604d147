# Copyright (c) 2026, pg_nvm contributors

# A transaction was prepared, and ended by a server that ran without pg_nvm.
# While there are nvm tables pg_xact is kept until pg_nvm has asked for the
# outcome.  When there are none and it is too late to ask, the pool is refused,
# and all else goes on.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => <<CONF, sql => <<SQL);
autovacuum = off
max_prepared_transactions = 10
CONF
CREATE TABLE t (id int PRIMARY KEY) USING nvm;
CREATE TABLE h (id int) USING heap;
ALTER DATABASE template0 ALLOW_CONNECTIONS true;
SQL

sub prepare
{
	my ($id) = @_;
	return $node->safe_psql('postgres', <<SQL);
BEGIN;
INSERT INTO t VALUES ($id);
INSERT INTO h VALUES ($id);
SELECT pg_current_xact_id();
PREPARE TRANSACTION 'p';
SQL
}

sub restart_with
{
	my ($library) = @_;
	$node->stop;
	$node->set_conf('shared_preload_libraries' => "'$library'");
	$node->start;
	return;
}

sub segment { return sprintf('%s/pg_xact/%04X', $node->data_dir, $_[0] >> 20); }

# Go on until three segments of pg_xact later, and freeze what there is.
sub grow_old
{
	my ($xid) = @_;
	my $next = $xid + (3 << 20);

	$node->stop;
	open(my $fh, '>', segment($next)) or die segment($next) . ": $!";
	print $fh "\0" x (1 << 18);
	close $fh;
	system_or_bail('pg_resetwal', '-f', '-x', $next, '-D', $node->data_dir);
	$node->start;
	command_ok([ 'vacuumdb', '-q', '--all', '--freeze', '--maintenance-db', $node->connstr('postgres') ],
		"without the library: freeze at $next");
	return;
}

{
	my $xid = prepare(1);

	restart_with('');
	$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
	grow_old($xid);
	ok(-e segment($xid), 'pg_xact is kept as long as there is an nvm table');
	restart_with('pg_nvm');
	is($node->safe_psql('postgres', 'SELECT * FROM t JOIN h USING (id)'), '1', 'and has the outcome');
	$node->check_clean('an outcome of long ago');
}
{
	my $xid = prepare(2);

	restart_with('');
	$node->safe_psql('postgres', "COMMIT PREPARED 'p'");
	$node->safe_psql('postgres', 'DROP EXTENSION pg_nvm CASCADE');
	grow_old($xid);
	ok(!-e segment($xid), 'without one it is cut off');
	restart_with('pg_nvm');
	is($node->safe_psql('postgres', 'INSERT INTO h VALUES (3); SELECT count(*) FROM h'), '3', 'all else goes on');
	like($node->log_since_start, qr/nvm tables are not available: whether transaction $xid of commit slot \d+, which was prepared, has committed is not known any more/,
		'the log says what is the matter');
	$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');
	is($node->safe_psql('postgres', 'SELECT status FROM nvm.pool'), 'refused', 'the pool is refused');
	$node->fails_with('CREATE TABLE t (id int) USING nvm', qr/not known any more.*nvm\.reset_pool\(force => true\)/s,
		'whoever needs it is told what to do');
	unlike($node->log_since_start, qr/could not access status of transaction|PANIC|terminating/, 'and nobody asks in vain');

	# likewise after a crash, until it is given up
	$node->crash;
	$node->start;
	$node->fails_with('CREATE TABLE t (id int) USING nvm', qr/not known any more/, 'after a crash: the same');
	$node->safe_psql('postgres', 'SELECT nvm.reset_pool(force => true)');
	$node->restart;
	is($node->safe_psql('postgres', 'CREATE TABLE t (id int) USING nvm; INSERT INTO t VALUES (1); SELECT * FROM t'), '1',
		'a new pool can be used');
	$node->check_clean('the new pool');
}

$node->stop;
done_testing();

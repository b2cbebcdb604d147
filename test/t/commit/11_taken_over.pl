# Copyright (c) 2026, pg_nvm contributors

# A row whose change was aborted is changed by somebody else before that is
# undone; undoing leaves the row to him.  A loss of power that he has not
# fenced against must not bring the aborted end back, which counts as decided by
# then.  The same with a subtransaction, whose parent commits.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

my $node = NvmTest->start_new('main', simulate => 1, conf => <<CONF, sql => <<'SQL');
autovacuum = off
restart_after_crash = off
CONF
CREATE TABLE t (id int, a int) USING nvm;
INSERT INTO t SELECT i, i FROM generate_series(1, 6) i;
SQL

sub rows
{
	return $node->safe_psql('postgres', "SELECT string_agg(id || ':' || a, ' ' ORDER BY id) FROM t");
}

foreach my $sub (0, 1)
{
	my $what = $sub ? 'subtransaction' : 'transaction';
	my $first = $node->session;
	my $second = $node->session;

	$first->sql('BEGIN');
	$first->sql('SAVEPOINT s') if $sub;
	$first->sql('DELETE FROM t WHERE id = 1');
	$first->sql('UPDATE t SET a = 20 WHERE id = 2');
	$first->stop_at($sub ? 'abort-sub-begin' : 'abort-begin', $sub ? 'ROLLBACK TO s' : 'ROLLBACK');
	$second->sql('BEGIN');
	$second->sql('UPDATE t SET a = 10 WHERE id = 1');
	$second->sql('DELETE FROM t WHERE id = 2');
	$first->go_on;
	$first->sql('SELECT 1');
	$first->sql('COMMIT') if $sub;

	$node->power_failure(seed => 1, mode => 'durable');
	$_->drop foreach $first, $second;
	$node->start;
	is(rows(), '1:1 2:2 3:3 4:4 5:5 6:6', "$what: all rows are there");
	$node->check_clean($what);
}

$node->stop;
done_testing();

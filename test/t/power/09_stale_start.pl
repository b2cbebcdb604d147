# Copyright (c) 2026, pg_nvm contributors

# Cells that were freed are handed out again, as the middle of a larger row.
# A loss of power must not bring the freed areas' starts back without their
# zeroes: bytes of the larger row would be taken for a row's header, and these
# are the user's.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', simulate => 1, conf => <<CONF, sql => <<'SQL');
autovacuum = off
restart_after_crash = off
nvm.horizon_naptime = 10
CONF
CREATE TABLE t (id int, pad bytea) USING nvm;
ALTER TABLE t ALTER pad SET STORAGE EXTERNAL;
-- one block of rows of a dozen cells, of which some in the middle go
INSERT INTO t SELECT i, decode(repeat('ff', 300), 'hex') FROM generate_series(1, 21) i;
DELETE FROM t WHERE id BETWEEN 5 AND 12;
VACUUM t;
SQL
$node->safe_psql('postgres', $NvmTest::pass_time);
$node->safe_psql('postgres', 'CALL pass_time()');

# what a row of 23 cells has at the places of words of an area: next (two
# cells), end (none), link, begin (a transaction committed long ago)
my $words = unpack('H*', pack('Q<4', 0, 1, 2 << 48, 0)) x 20;
my $file = $node->basedir . '/rows';
PostgreSQL::Test::Utils::append_to_file($file, "101\t\\\\x$words\n102\t\\\\x" . 'ff' x 4000 . "\n");
chmod 0644, $file;

sub rows
{
	return $node->safe_psql('postgres', 'SELECT count(*) FROM t');
}
is(rows(), '13', 'rows');

# One frees the cells, and comes no further; another fills them, and waits for
# something else to be durable.
my $first = $node->session;
$first->hold('insert-before-begin', "INSERT INTO t VALUES (100, decode(repeat('ff', 500), 'hex'))");
my $second = $node->session;
$second->sql("SET nvm.failpoint = 'insert-before-begin:sleep=3600000:2'");
$second->send("COPY t FROM '$file'");
$second->wait_held('insert-before-begin');

$node->power_failure(seed => 1, mode => 'durable');
$_->drop foreach $first, $second;
$node->start;
is(rows(), '13', 'the same rows after the loss of power');
$node->check_clean('after the loss of power');
is($node->safe_psql('postgres', 'SELECT count(*), sum(id), sum(length(pad)) FROM t'), '13|163|3900', 'whole');

$node->stop;
done_testing();

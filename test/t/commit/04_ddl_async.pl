# Copyright (c) 2026, pg_nvm contributors

# DDL under synchronous_commit = off, and rows that need it: these wait for no
# WAL, and a loss of power must not leave them without it.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('ddl', simulate => 1, conf => <<CONF, sql => <<SQL);
autovacuum = off
wal_writer_delay = 10s
synchronous_commit = off
CONF
CREATE TYPE e AS ENUM ('one');
CREATE TABLE t (id int PRIMARY KEY, a int, b e) USING nvm;
INSERT INTO t SELECT i, i, 'one' FROM generate_series(1, 3) i;
CREATE TABLE h AS SELECT 1 AS a;
CHECKPOINT;
SQL

# Nobody else writes WAL: the keeper wakes the WAL writer every 200 ms.
$node->stop_wal_writers;
$node->safe_psql('postgres', 'ALTER TABLE t ADD COLUMN c text');
$node->safe_psql('postgres', "ALTER TYPE e ADD VALUE 'two'");
$node->safe_psql('postgres', 'DO $$BEGIN ALTER TABLE t DROP COLUMN a; END$$');
$node->safe_psql('postgres', "INSERT INTO t VALUES (4, 'two', 'four')");
# of heap's, to see that something is lost
$node->safe_psql('postgres', 'UPDATE h SET a = 2');
$node->power_failure(seed => 1, mode => 'durable');
$node->start;
is($node->safe_psql('postgres', 'SELECT a FROM h'), '1', 'WAL that nobody waited for is lost');
is($node->safe_psql('postgres', 'SELECT * FROM t ORDER BY id'), "1|one|\n2|one|\n3|one|\n4|two|four",
	'rows have what they need');
$node->check_clean('after the loss of power');

$node->stop;
done_testing();

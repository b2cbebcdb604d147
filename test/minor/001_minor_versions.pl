# Copyright (c) 2026, pg_nvm contributors

# A pool written under one minor version of PostgreSQL opens under the next, after a
# clean stop and after a crash, and under the one before it: $NVM_FIRST_SERVER and
# $NVM_SECOND_SERVER are the prefixes of two servers of one major version with pg_nvm
# (scripts/check_minor.sh sets up both).

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my @servers = @ENV{qw(NVM_FIRST_SERVER NVM_SECOND_SERVER)};
die "NVM_FIRST_SERVER and NVM_SECOND_SERVER are not set" unless defined $servers[0] && defined $servers[1];

my $node = NvmTest->new('main', install_path => $servers[0]);
$node->init;
$node->append_conf('postgresql.conf', <<'CONF');
autovacuum = off
max_prepared_transactions = 10
CONF
my $version = '';
my $round = 0;

# the server that is started next
sub switch_to
{
	$node->{_install_path} = $servers[ $_[0] ];
	return;
}

sub query { return $node->safe_psql('postgres', $_[0]); }

# start, see that it is another version, and that everything is there
sub begin
{
	my ($other, $what) = @_;

	switch_to($other);
	$node->start;
	my $now = query('SHOW server_version');
	isnt($now, $version, "$what: $now after $version");
	$version = $now;
	is(query('SELECT status FROM nvm.pool'), 'open', "$what: the pool is open");
	is(query('SELECT count(*), sum(n), sum(length(large)) FROM t'), query('SELECT rows, n, bytes FROM expected'),
		"$what: each row is there");
	is(query('SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*), sum(n) FROM t WHERE k >= \'\''),
		query('SELECT rows, n FROM expected'), "$what: by an index, too");
	is(query(q{SELECT count(*) FROM c LEFT JOIN t USING (id) WHERE t.id IS NULL}), '0', "$what: foreign keys hold");
	$node->check_clean("$what: nothing is found");
	return;
}

# work of all kinds; $in_doubt is left prepared
sub work
{
	my ($in_doubt) = @_;
	my $from = ++$round * 10000;

	query(<<"SQL");
INSERT INTO t SELECT i, 'key ' || i, i, repeat(md5(i::text), i % 400) FROM generate_series($from, $from + 1999) i;
UPDATE t SET n = n + 1, k = k || '.' WHERE id % 3 = $round % 3;
DELETE FROM t WHERE id % 50 = $round AND id NOT IN (SELECT id FROM c);
INSERT INTO c SELECT id FROM t WHERE id % 100 = 99 ON CONFLICT DO NOTHING;
CREATE TABLE made_$round USING nvm AS SELECT nextval('s') FROM generate_series(1, 10);
BEGIN;
INSERT INTO t VALUES ($from + 5000, 'prepared', 7, '');
PREPARE TRANSACTION '$in_doubt';
SQL
	query('VACUUM t') if $round % 2;
	remember();
	return;
}

sub remember
{
	query('DELETE FROM expected; INSERT INTO expected SELECT count(*), sum(n), sum(length(large)) FROM t');
	return;
}

sub finish_prepared
{
	my ($gid, $how) = @_;

	query("$how PREPARED '$gid'");
	is(query('SELECT count(*) FROM pg_prepared_xacts'), '0', "$gid: $how");
	remember();
	return;
}

switch_to(0);
$node->start;
$version = query('SHOW server_version');
query(<<'SQL');
CREATE EXTENSION pg_nvm;
CREATE TABLE t (id int PRIMARY KEY, k text, n bigint, large text) USING nvm;
CREATE INDEX ON t (k);
CREATE INDEX ON t (n) WITH (persistence = leaves);
CREATE INDEX ON t (n, id) WITH (persistence = none);
SET nvm.default_index_method = btree;
CREATE INDEX ON t USING btree (n);
RESET nvm.default_index_method;
CREATE TABLE c (id int PRIMARY KEY REFERENCES t) USING nvm;
CREATE TABLE expected (rows bigint, n bigint, bytes bigint) USING nvm;
CREATE SEQUENCE s;
SQL
work('first');
$node->stop;

begin(1, 'next version');
finish_prepared('first', 'COMMIT');
work('second');

# what is under way is lost, what was acknowledged is not
my $session = $node->session;
$session->sql('BEGIN; UPDATE t SET n = -1; DELETE FROM c; CREATE TABLE lost (i int) USING nvm; INSERT INTO lost VALUES (1)');
query("INSERT INTO t VALUES (1, 'acknowledged', 1, 'x')");
remember();
$node->crash;
$session->drop;
begin(0, 'back after a crash');
is(query("SELECT to_regclass('lost') IS NULL"), 't', 'what was lost is lost');
finish_prepared('second', 'ROLLBACK');
work('third');
$node->crash;

begin(1, 'next version after a crash');
finish_prepared('third', 'COMMIT');
is(query('SELECT count(*) FROM made_1, made_2, made_3'), '1000', 'tables of each version');
query('SET nvm.default_index_method = btree; REINDEX TABLE t; VACUUM FULL t; DROP TABLE made_1, made_2, made_3');
$node->check_clean('built anew: nothing is found');
$node->stop;

done_testing();

# Copyright (c) 2026, pg_nvm contributors

# Orders of events in an nvm_btree index that hardly ever happen by themselves,
# brought about by sessions that sleep at a failpoint while others go on.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->new('interleave');
$node->init;
$node->append_conf('postgresql.conf', "autovacuum = off\n");
$node->start;
$node->safe_psql('postgres', 'CREATE EXTENSION pg_nvm');

sub sql { return $node->safe_psql('postgres', $_[0]); }

# Send SQL in a session that will sleep that long at the failpoint, and wait
# until it does.
sub asleep
{
	my ($session, $failpoint, $ms, $sql) = @_;
	$session->sql("SET nvm.failpoint = '$failpoint:sleep=$ms:1'");
	$session->send($sql);
	$session->wait_held($failpoint);
	return;
}

sub sound
{
	my ($index, $name) = @_;
	is(sql("SELECT * FROM nvm.check('$index', true)"), '', "$name: the index is sound");
	return;
}

# ---- a split that another completes, and whose right page then goes

sql(<<SQL);
CREATE TABLE s (id int, x int) USING nvm;
CREATE INDEX s_id ON s USING nvm_btree (id);
INSERT INTO s SELECT i * 1000, i FROM generate_series(1, 3000) i;
DELETE FROM s WHERE id > 450000 AND id < 2000000;
SQL
my $late = $node->session;
asleep($late, 'btree-split-locks', 4000, 'INSERT INTO s SELECT 449001 + i, -i FROM generate_series(1, 400) i');
my $deleted = (run_command([ 'psql', '-X', '-d', $node->connstr('postgres'), '-c', 'VACUUM VERBOSE s' ]))[1] =~ /(\d+) newly deleted/ ? $1 : 0;
cmp_ok($deleted, '>=', 4, 'VACUUM completes a split, and deletes the right page');
# the end of the session's statement
is($late->sql('SELECT 1'), '1', 'who made the split goes on');
sound('s_id', 'late downlink');
is(sql('SET enable_seqscan = off; SELECT count(*), count(*) FILTER (WHERE x < 0) FROM s WHERE id > 0'), '1851|400', 'late downlink: all rows are found');
$late->drop;

done_testing();

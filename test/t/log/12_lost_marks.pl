# Copyright (c) 2026, pg_nvm contributors

# A recovery of tables in memory marks their indexes as lost while the index rebuilder, which has
# begun at the same time, takes marks back from indexes that are whole.  No mark may be taken from
# one that is empty: nobody would rebuild it, and after the death of a process it would pass for a
# whole one without entries.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $node = NvmTest->start_new('marks', conf => <<CONF, sql => <<SQL);
autovacuum = off
restart_after_crash = on
CONF
CREATE TABLE t (id int PRIMARY KEY, a int, b int) USING nvm_vlog;
CREATE INDEX t_a ON t (a);
INSERT INTO t SELECT i, i, i FROM generate_series(1, 1000) i;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

sub waiting { return sql(q{SELECT string_agg(r::text, ' ') FROM nvm.index_rebuilds r WHERE state <> 'ready'}); }

# the memory is lost while two indexes are not rebuilt yet, so the rebuilder begins with them, and
# looks once a second; it finds a third one marked, and not emptied yet
$node->set_conf('nvm.failpoint' => "'index-rebuild-claimed:sleep=600000'");
$node->crash;
$node->start;
sql('CREATE INDEX t_b ON t (b)');
is(waiting() =~ s/[^,]*rebuilding[^,]*|[^,]*waiting[^,]*/x/gr =~ tr/x//, 2, 'two indexes are not rebuilt when the memory is lost again');
$node->set_conf('nvm.failpoint' => "'rebuild-index-lost:sleep=2500'");
$node->crash;
$node->start;
is(sql('SELECT count(*) FROM t'), '1000', 'rows are back');
my $hits = () = $node->log_since_start =~ /failpoint rebuild-index-lost hit/g;
is($hits, 3, 'the recovery has stood still at each index');
$node->set_conf('nvm.failpoint' => "''");
$node->reload;
$node->poll_query_until('postgres', q{SELECT count(*) = 0 FROM nvm.index_rebuilds WHERE state <> 'ready'});
is(waiting(), '', 'all indexes are rebuilt, though nobody has asked for them');

# a process dies, and memory is kept
my $opened = $node->times_opened;
my $victim = $node->session;
kill('KILL', $victim->pid);
$node->wait_reopened($opened);
$victim->drop;
foreach my $column (qw(id a b))
{
	is(sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM t WHERE $column BETWEEN 101 AND 200"), '100',
		"rows are found by the index of $column");
}
$node->check_clean('indexes that a recovery has marked');
$node->stop;
done_testing();

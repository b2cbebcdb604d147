# Copyright (c) 2026, pg_nvm contributors

# ALTER INDEX that builds an index of ours anew locks the table before the index:
# who has written to the table, and has no lock on the index, goes on writing.

use strict;
use warnings;

use NvmTest;
use Test::More;

my $node = NvmTest->start_new('lock_order', conf => "autovacuum = off\nallow_in_place_tablespaces = on\n", sql => <<'SQL');
CREATE TABLESPACE there LOCATION '';
SQL

foreach my $alter ('INDEX t_v SET TABLESPACE there', 'TABLE t_v SET TABLESPACE there', 'INDEX t_v SET (persistence = leaves)', 'INDEX ALL IN TABLESPACE pg_default SET TABLESPACE there')
{
	# the default, and the method that has the parameter
	my $method = $alter =~ /persistence/ ? 'USING nvm_btree' : '';
	$node->safe_psql('postgres', "DROP TABLE IF EXISTS t; CREATE TABLE t (v int) USING nvm; CREATE INDEX t_v ON t $method (v)");

	# a plan that is there already locks an index for its statement only
	my $writer = $node->session('SET plan_cache_mode = force_generic_plan', 'PREPARE ins AS INSERT INTO t VALUES ($1) RETURNING v', 'EXECUTE ins (1)');
	my $owner = $node->session();

	$writer->sql($_) foreach 'BEGIN', 'EXECUTE ins (2)';
	$node->fails_with("ALTER $alter NOWAIT", qr/aborting because lock on the table of index "t_v" is not available/, "ALTER $alter NOWAIT") if $alter =~ /ALL/;
	$owner->send("ALTER $alter");
	$node->poll_query_until('postgres', 'SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND pid = ' . $owner->pid) or die "ALTER $alter does not wait";
	is($writer->sql('EXECUTE ins (3)'), '3', "ALTER $alter: who has written goes on");
	$writer->sql('COMMIT');
	is($owner->sql('SET enable_seqscan = off; SELECT count(*) FROM t WHERE v > 0; SELECT f FROM nvm.check(\'t\', true) f'), '3', "ALTER $alter: and then the index is built");
	like($node->safe_psql('postgres', q(SELECT reltablespace <> 0, reloptions FROM pg_class WHERE relname = 't_v')), qr/t\||persistence=leaves/, "ALTER $alter: it has been done");
	$_->drop foreach $writer, $owner;
}
unlike($node->log_since_start, qr/deadlock detected/, 'without a deadlock');

done_testing();

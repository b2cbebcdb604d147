# Copyright (c) 2026, pg_nvm contributors

# A crash in the middle of unlinking a row that is wholly dead: nothing of it is
# retired yet, or its root is DEAD, and its versions are not retired.  When the cells of the versions have been
# used again nothing may be left that leads there, and VACUUM still removes the
# root and its index entries: of an index of PostgreSQL's own, and of nvm_btree.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('main', conf => <<CONF, sql => <<'SQL');
autovacuum = off
restart_after_crash = off
nvm.horizon_naptime = 10
CONF
CREATE EXTENSION pageinspect;
CREATE PROCEDURE rewrite(tab regclass, n int) LANGUAGE plpgsql AS
$$BEGIN
	FOR i IN 1 .. n LOOP
		EXECUTE format('UPDATE %s SET v = v + 1 WHERE id > 50', tab);
		COMMIT;
	END LOOP;
END$$;
CREATE FUNCTION by_index(tab regclass) RETURNS text LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off AS
$$DECLARE r text;
BEGIN
	EXECUTE format('SELECT string_agg(id::text, '' '' ORDER BY id) FROM %s WHERE id < 10', tab) INTO r;
	RETURN r;
END$$;
SQL

# updates of a row before it is deleted: after two its root is a stub
foreach my $case (map { my $place = $_; map { [ $place, @$_ ] } [ 1, 'btree' ], [ 2, 'btree' ], [ 1, 'nvm_btree' ], [ 2, 'nvm_btree' ] }
	'prune-before-dead', 'retire-stored')
{
	my ($place, $updates, $method) = @$case;
	my $what = ($updates == 1 ? 'root' : 'stub') . ", $method, $place";
	my $t    = "t_${method}_${updates}_" . ($place =~ /^(\w+)/)[0];

	$node->safe_psql('postgres', <<SQL);
SET nvm.default_index_method = $method;
SET nvm.index_identity = nvm_btree;
CREATE TABLE $t (id int PRIMARY KEY, v int, pad text) USING nvm WITH (vacuum_index_cleanup = on);
INSERT INTO $t SELECT i, 0, repeat('x', 60) FROM generate_series(1, 60) i;
SQL
	# new versions go to the second block, where the last rows are
	is($node->safe_psql('postgres', "SELECT string_agg(DISTINCT (ctid::text::point)[0]::text, ' ') FROM $t WHERE id > 50"), '1',
		"$what: the rows fill a block and a part of another");
	$node->safe_psql('postgres', "UPDATE $t SET v = v + 1 WHERE id <= 5") foreach 1 .. $updates;
	$node->safe_psql('postgres', "DELETE FROM $t WHERE id <= 5");
	$node->psql('postgres', "SET nvm.failpoint = '$place:crash:1'; VACUUM $t");
	$node->wait_crashed;
	$node->start;
	$node->poll_query_until('postgres', 'SELECT count(*) = 0 FROM nvm.gaps') or die 'gaps stay';
	$node->check_clean("$what: when the gaps are cleaned up");

	# updates use the cells of a SUSPECT block, inserts do not; nobody comes to
	# the block of the root, and tidies it up
	$node->safe_psql('postgres', "CALL rewrite('$t', 12)");
	$node->check_clean("$what: when the cells are used again");
	is($node->safe_psql('postgres', "SELECT by_index('$t')"), '6 7 8 9', "$what: the row is not found");
	$node->safe_psql('postgres', "VACUUM $t");
	# what VACUUM has counted, and what there is
	is($node->safe_psql('postgres', "SELECT reltuples FROM pg_class WHERE relname = '${t}_pkey'"), '55',
		"$what: VACUUM removes its index entry");
	is($node->safe_psql('postgres', $method eq 'btree' ? "SELECT count(*) FROM bt_page_items('${t}_pkey', 1)" :
		  "SELECT 55 - count(*) FROM nvm.check('${t}_pkey', heapallindexed => true)"), '55',
		"$what: and it is not there");
	is($node->safe_psql('postgres', "SELECT count(*), sum(v) FROM $t"), '55|120', "$what: the others are there");
	$node->check_clean("$what: after VACUUM");
	$node->crash;
	$node->start;
	is($node->safe_psql('postgres', "SELECT by_index('$t')"), '6 7 8 9', "$what: likewise after another crash");
	$node->check_clean("$what: after another crash");
}

$node->stop;
done_testing();

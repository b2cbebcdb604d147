# Copyright (c) 2026, pg_nvm contributors

# What one VACUUM gives back: the large values of rows that are dead to everybody go
# back to the pool at once, though nobody touches the table again; what is too young
# is told to the statistics, so that autovacuum comes again; rows that an UPDATE of an
# indexed column or a DELETE has left make room for as many others.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('give_back', conf => <<CONF);
autovacuum = off
autovacuum_naptime = 1s
autovacuum_vacuum_threshold = 50
CONF

sub sql  { return $node->safe_psql('postgres', $_[0]); }
sub used { return sql('SELECT used FROM nvm.pool'); }

my $megabyte = 1024 * 1024;
my $value    = q{(SELECT string_agg(md5(i || '.' || k), '') FROM generate_series(1, 3125) k)};

sub fill
{
	my ($table) = @_;
	sql("INSERT INTO $table SELECT i, $value FROM generate_series(1, 500) i");
	return;
}

# ---- by hand, with and without an index

foreach my $key ('PRIMARY KEY', '')
{
	my $name = $key ? 'with a key' : 'without an index';
	sql("CREATE TABLE large (id int $key, body text) USING nvm;"
		  . 'ALTER TABLE large ALTER body SET STORAGE EXTERNAL');
	my $before = used();
	fill('large');
	my $full = used();
	cmp_ok($full - $before, '>', 45 * $megabyte, "$name: 500 rows of 100 kB");

	sql('DELETE FROM large');
	sql('VACUUM large');
	cmp_ok(used() - $before, '<', $megabyte, "$name: a DELETE, one VACUUM, and they are given back");
	$node->check_clean("$name, deleted");

	fill('large');
	sql(q{UPDATE large SET body = body || 'x'});
	cmp_ok(used() - $before, '>', 90 * $megabyte, "$name: an UPDATE copies them");
	sql('VACUUM large');
	cmp_ok(used() - $full, '<', $megabyte, "$name: one VACUUM gives the old ones back");
	is(sql('SELECT count(*), min(length(body)), max(length(body)) FROM large'),
		'500|100001|100001', "$name: the new ones are there");
	sql('UPDATE large SET id = id + 1000');
	sql('VACUUM large');
	cmp_ok(used() - $full, '<', $megabyte, "$name: also where the key changes");
	is(sql("SELECT count(*) FROM large WHERE body = "
			  . q{(SELECT string_agg(md5((id - 1000) || '.' || k), '') FROM generate_series(1, 3125) k) || 'x'}),
		500, "$name: every value is its row's");
	$node->check_clean("$name, updated");
	sql('DROP TABLE large');
}

# ---- what is too young is told

sql('CREATE TABLE kept (id int PRIMARY KEY, body text) USING nvm;'
	  . 'ALTER TABLE kept ALTER body SET STORAGE EXTERNAL');
fill('kept');
my $full = used();
sql(q{UPDATE kept SET body = body || 'x'});
my $old = $node->session;
$old->sql('BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM kept');
sql(q{UPDATE kept SET body = body || 'y'; SELECT pg_stat_force_next_flush()});
sql('VACUUM kept; SELECT pg_stat_force_next_flush()');
is($old->sql('SELECT min(length(body)), max(length(body)) FROM kept'),
	'100001|100001', 'an old snapshot reads its values after VACUUM');
cmp_ok(sql(q{SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = 'kept'}),
	'>=', 900, 'versions that keep values for an old reader are told to autovacuum');
$old->sql('COMMIT');
$old->drop;
sql('ALTER SYSTEM SET autovacuum = on; SELECT pg_reload_conf()');
my $limit = $full + $megabyte;
ok($node->poll_query_until('postgres', "SELECT used < $limit FROM nvm.pool"),
	'autovacuum comes back for them when the reader is gone');
is(sql('SELECT count(*), min(length(body)), max(length(body)) FROM kept'),
	'500|100002|100002', 'and leaves what is live');

# ---- autovacuum

sql(q{DELETE FROM kept});
$limit = $full - 45 * $megabyte;
ok($node->poll_query_until('postgres', "SELECT used < $limit FROM nvm.pool"),
	'autovacuum gives the values of a DELETE back');
sql('ALTER SYSTEM RESET autovacuum; SELECT pg_reload_conf()');
# a worker that is at work keeps what VACUUM would free
$node->poll_query_until('postgres', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type LIKE 'autovacuum%'))
  or die 'autovacuum does not end';
$node->check_clean('after autovacuum');

# ---- rows: as many fit where the dead ones were

sql(q{CREATE TABLE rows (id int PRIMARY KEY, k int, pad text) USING nvm; CREATE INDEX ON rows (k);
	INSERT INTO rows SELECT i, i, repeat('p', 60) FROM generate_series(1, 20000) i});
sub blocks { return sql(q{SELECT blocks FROM nvm.relations WHERE relation = 'rows'::regclass}); }
my $blocks;
foreach my $round (1 .. 5)
{
	sql('UPDATE rows SET k = k + 1');
	sql('VACUUM rows');
	sql('DELETE FROM rows WHERE id % 2 = 0');
	sql('VACUUM rows');
	sql(q{INSERT INTO rows SELECT i, i, repeat('p', 60) FROM generate_series(2, 20000, 2) i});
	$blocks //= blocks();
}
cmp_ok(blocks(), '<=', $blocks * 1.1, 'space of updated and deleted rows is used again');
is(sql('SELECT count(*), count(DISTINCT id), sum(k - id) FROM rows'),
	'20000|20000|50000', 'rows');
foreach my $column ('id', 'k')
{
	is(sql("SET enable_seqscan = off; SET enable_bitmapscan = off; SELECT count(*) FROM rows WHERE $column > 0"),
		20000, "rows by $column");
}
$node->check_clean('rows');
$node->stop;
done_testing();

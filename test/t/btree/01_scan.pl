# Copyright (c) 2026, pg_nvm contributors

# Scans of nvm_btree against a btree index and against no index: the same rows
# under random conditions (all operators, both directions, arrays, nulls, several
# columns, DESC, constants of other types), by plain, index-only, bitmap and
# parallel scans, by nested loops and merge joins, and by cursors that go back
# and forth.  Then scans that stand still while leaves are split and deleted
# around them.
#
# NVM_SCAN_SEED repeats a run; NVM_SCAN_QUERIES is the number of conditions.

use strict;
use warnings;

use IPC::Run ();
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes ();

my $seed    = $ENV{NVM_SCAN_SEED}    // time;
my $queries = $ENV{NVM_SCAN_QUERIES} // (NvmTest::is_long() ? 2500 : 100);
my $cursors = int($queries / 8) + 4;
my $joins   = int($queries / 15) + 4;

note "seed $seed";
srand($seed);

my $node = NvmTest->start_new('scan', conf => <<CONF);
autovacuum = off
jit = off
nvm.default_index_method = btree
max_parallel_workers_per_gather = 2
min_parallel_index_scan_size = 0
min_parallel_table_scan_size = 0
CONF

# ---------------------------------------------------------------------------
# Two tables of the same rows: n's indexes are nvm_btree's, h's are btree's.
# Half of the rows come before the indexes, and half by insertion; some go again.
# ---------------------------------------------------------------------------

my @indexes = (
	'(a, b, c, id)',
	'(c DESC, d NULLS FIRST, a, id)',
	'(b DESC NULLS LAST, f, id)',
	'(d)',
	'(f DESC, a) INCLUDE (id)',
	'(a, c) WHERE b < 60',
	'(lower(c), (a + 1), id)',
	'(a NULLS FIRST, f DESC)',
	'(c COLLATE "C", b)');

sub rows
{
	my ($from, $to) = @_;
	return <<SQL;
SELECT id, CASE WHEN random() > 0.06 THEN (random() * 40)::int END,
	CASE WHEN random() > 0.06 THEN (random() * 100)::int8 END,
	CASE WHEN random() > 0.06 THEN repeat(chr(97 + (random() * 5)::int), 1 + (random() * 3)::int) ||
		CASE WHEN random() < 0.3 THEN repeat('y', (random() * 120)::int) ELSE '' END END,
	CASE WHEN random() > 0.06 THEN round((random() * 30)::numeric, (random() * 2)::int) END,
	CASE WHEN random() > 0.06 THEN (random() * 12)::int2 END
FROM generate_series($from, $to) id ORDER BY random()
SQL
}

my $create = join "\n", map {
	my $am = $_;
	my $t  = $am eq 'btree' ? 'h' : 'n';
	map { "CREATE INDEX ON $t USING $am $_;" } @indexes;
} ('nvm_btree', 'btree');
$node->safe_psql('postgres', 'SELECT setseed(' . (($seed % 1000) / 1000) . ');' . <<SQL);
CREATE TABLE src (id int, a int, b int8, c text, d numeric, f int2);
INSERT INTO src @{[rows(1, 9000)]};
CREATE TABLE n (id int, a int, b int8, c text, d numeric, f int2) USING nvm;
CREATE TABLE h (id int, a int, b int8, c text, d numeric, f int2) USING nvm;
INSERT INTO n SELECT * FROM src;
INSERT INTO h SELECT * FROM src;
$create
TRUNCATE src;
INSERT INTO src @{[rows(9001, 18000)]};
INSERT INTO n SELECT * FROM src;
INSERT INTO h SELECT * FROM src;
DELETE FROM n WHERE id % 7 = 0;
DELETE FROM h WHERE id % 7 = 0;
VACUUM n, h;
UPDATE n SET b = b + 1, f = NULL WHERE id % 11 = 0;
UPDATE h SET b = b + 1, f = NULL WHERE id % 11 = 0;
DELETE FROM n WHERE id % 13 = 0;
DELETE FROM h WHERE id % 13 = 0;
ANALYZE n, h;

-- what a query returns, on one table, by one kind of plan: md5 and number of rows
CREATE FUNCTION run(tab text, cols text, cond text, ord text, mode text) RETURNS text
LANGUAGE plpgsql AS \$\$
DECLARE result text;
BEGIN
	PERFORM set_config('enable_seqscan', (mode = 'seq')::text, true),
		set_config('enable_indexscan', (mode IN ('index', 'parallel'))::text, true),
		set_config('enable_indexonlyscan', (mode IN ('index', 'parallel'))::text, true),
		set_config('enable_bitmapscan', (mode = 'bitmap')::text, true),
		set_config('max_parallel_workers_per_gather', CASE mode WHEN 'parallel' THEN '2' ELSE '0' END, true),
		set_config('parallel_setup_cost', CASE mode WHEN 'parallel' THEN '0' ELSE '1000' END, true),
		set_config('parallel_tuple_cost', CASE mode WHEN 'parallel' THEN '0' ELSE '0.1' END, true);
	EXECUTE format('SELECT md5(coalesce(string_agg(x::text, '';'' %s), '''')) || '' '' || count(*)'
		' FROM (SELECT %s FROM %I WHERE %s %s) x',
		CASE ord WHEN '' THEN 'ORDER BY x::text' ELSE '' END, cols, tab, cond,
		CASE ord WHEN '' THEN '' ELSE 'ORDER BY ' || ord END) INTO result;
	RETURN result;
END \$\$;

-- is one of n's indexes in the plan?
CREATE FUNCTION by_index(cols text, cond text, ord text) RETURNS bool LANGUAGE plpgsql AS \$\$
DECLARE plan json;
BEGIN
	SET LOCAL enable_seqscan = off;
	EXECUTE format('EXPLAIN (FORMAT json) SELECT %s FROM n WHERE %s %s', cols, cond,
		CASE ord WHEN '' THEN '' ELSE 'ORDER BY ' || ord END) INTO plan;
	RETURN plan::text LIKE '%"Index Name": "n_%';
END \$\$;

-- two cursors take the same steps
CREATE FUNCTION steps(cond text, ord text, moves int[]) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	cn refcursor;
	ch refcursor;
	m int;
	k int;
	rn record;
	rh record;
BEGIN
	SET LOCAL enable_seqscan = off;
	SET LOCAL enable_bitmapscan = off;
	SET LOCAL enable_sort = off;
	OPEN cn SCROLL FOR EXECUTE format('SELECT id FROM n WHERE %s ORDER BY %s', cond, ord);
	OPEN ch SCROLL FOR EXECUTE format('SELECT id FROM h WHERE %s ORDER BY %s', cond, ord);
	FOREACH m IN ARRAY moves LOOP
		FOR k IN 1 .. abs(m) LOOP
			IF m > 0 THEN
				FETCH NEXT FROM cn INTO rn;
				FETCH NEXT FROM ch INTO rh;
			ELSE
				FETCH PRIOR FROM cn INTO rn;
				FETCH PRIOR FROM ch INTO rh;
			END IF;
			IF rn IS DISTINCT FROM rh THEN
				RETURN format('move %s step %s: %s instead of %s', m, k, rn, rh);
			END IF;
			EXIT WHEN rh IS NULL;
		END LOOP;
	END LOOP;
	RETURN 'same';
END \$\$;
SQL

is($node->safe_psql('postgres', 'SELECT count(*) FROM n EXCEPT SELECT count(*) FROM h'), '',
	'the tables have the same number of rows');

# ---------------------------------------------------------------------------
# Conditions
# ---------------------------------------------------------------------------

sub pick { return $_[ int(rand(@_)) ]; }

sub constant
{
	my ($col) = @_;
	return int(rand(44)) - 2 . pick('', '', '', '::int8', '::int2') if $col eq 'a';
	return pick('-1', '3000000000', '9223372036854775807') if $col eq 'a' && rand() < 0.02;
	return int(rand(110)) - 4 . pick('::int8', '::int8', '', '::int2') if $col eq 'b';
	return int(rand(15)) - 1 . pick('::int2', '::int2', '', '::int8') if $col eq 'f';
	return sprintf('%.' . int(rand(3)) . 'f', rand(31)) . '::numeric'
	  if $col eq 'd';
	return "'" . (chr(97 + rand(7)) x (1 + rand(4))) . "'::text";
}

sub element_type
{
	my ($col) = @_;
	return pick('int', 'int', 'int8', 'int2') if $col eq 'a';
	return pick('int8', 'int8', 'int', 'int2') if $col eq 'b';
	return pick('int2', 'int2', 'int', 'int8') if $col eq 'f';
	return $col eq 'd' ? 'numeric' : 'text';
}

# an expression that the planner does not look into
sub hide
{
	my ($value) = @_;
	return rand() < 0.3 ? "(SELECT $value)" : $value;
}

sub condition
{
	my ($col) = @_;
	my $r = rand();

	return "$col IS NULL"     if $r < 0.06;
	return "$col IS NOT NULL" if $r < 0.11;
	if ($r < 0.35)
	{
		my $type = element_type($col);
		my $n    = pick(0, 1, 2, 3, 5, 12, 40);
		my @v    = map {
			my $c = constant($col);
			$c =~ s/::.*//;
			rand() < 0.05 ? 'NULL' : $c
		} 1 .. $n;
		my $array = 'ARRAY[' . join(',', @v) . "]::$type\[\]";
		$array = "(SELECT $array)::$type\[\]" if rand() < 0.3;
		$array = "NULL::$type\[\]"            if rand() < 0.02;
		my $op = rand() < 0.75 ? '=' : pick('<', '<=', '>=', '>');
		return "$col $op ANY ($array)";
	}
	return "$col BETWEEN " . constant($col) . ' AND ' . constant($col) if $r < 0.45;
	return "$col = " . (rand() < 0.03 ? '(SELECT NULL::' . element_type($col) . ')' :
		hide(constant($col))) if $r < 0.65;
	return "$col " . pick('<', '<=', '>=', '>') . ' ' . hide(constant($col));
}

# (a, b) > (5, 1): neighbours of an index mostly, on either side, with nulls
sub row_comparison
{
	my @cols = @_;
	my $from = rand() < 0.8 ? 0 : int(rand(@cols));

	@cols = @cols[ $from .. $#cols ];
	@cols = sort { rand() <=> 0.5 } @cols if rand() < 0.15;
	$#cols = 1 if @cols > 2 && rand() < 0.4;
	my @values = map { rand() < 0.05 ? 'NULL::' . element_type($_) : hide(constant($_)) } @cols;
	my ($row, $value) = ('(' . join(', ', @cols) . ')', '(' . join(', ', @values) . ')');
	($row, $value) = ($value, $row) if rand() < 0.2;
	return "ROW$row " . pick('<', '<=', '>=', '>') . " ROW$value";
}

# of an index with these columns: more often of the first ones
sub conditions
{
	my @cols = @_;
	my @conds;

	push @conds, row_comparison(@cols) for 1 .. (@cols == 1 ? 0 : pick(0, 0, 0, 1, 1, 2));

	for my $i (0 .. $#cols)
	{
		next if rand() < 0.12 + 0.15 * $i;
		push @conds, condition($cols[$i]);
		push @conds, condition($cols[$i]) if rand() < 0.25;
	}
	push @conds, 'true' unless @conds;
	return join(' AND ', @conds);
}

# columns that conditions are on, columns in the output, total order
my @kinds = (
	[ [qw(a b c)], 'a, b, c, id',    'a, b, c, id' ],
	[ [qw(a b c)], 'a, b, c, id',    'a DESC NULLS FIRST, b DESC, c DESC, id DESC' ],
	[ [qw(a b)],   'id',             '' ],
	[ [qw(c d a)], 'c, d, a, id',    'c DESC, d NULLS FIRST, a, id' ],
	[ [qw(c d a)], 'c, d, a, id, f', 'c NULLS LAST, d DESC NULLS LAST, a DESC, id DESC' ],
	[ [qw(b f)],   'b, f, id',       'b DESC NULLS LAST, f, id' ],
	[ [qw(b f)],   'b, f, id',       'b NULLS FIRST, f DESC, id DESC' ],
	[ [qw(d)],     'd',              '' ],
	[ [qw(d)],     'trim_scale(d)',  'd' ],
	[ [qw(d)],     'trim_scale(d)',  'd DESC' ],
	[ [qw(f a)],   'f, a, id',       '' ],
	[ [qw(f a)],   'f, a',           'f DESC, a' ],
	[ [qw(a f)],   'a, f',           'a NULLS FIRST, f DESC' ],
	[ [qw(c b)],   'c, b, id',       '' ]);

my ($by_index, $nonempty) = (0, 0);
my (@statements, @what, @lines);

# the session's statistics are there when its client has the answer
my $flush = 'SELECT pg_stat_force_next_flush()';

sub lines_of
{
	my ($out) = @_;
	return split /\n/, $out;
}

# so many conditions; what differs
sub ask
{
	my ($n) = @_;
	my (@statements, @what, @wrong);

	for my $i (1 .. $n)
	{
		# each kind of condition comes at least once
		my ($cols, $output, $order) = @{ $i <= @kinds ? $kinds[ $i - 1 ] : pick(@kinds) };
		my $cond = conditions(@$cols);

		$cond .= ' AND b < 60' if $cols->[0] eq 'a' && rand() < 0.2;
		$cond = "lower(c) " . pick('=', '<=', '>') . ' ' . constant('c') . ' AND a + 1 ' .
		  pick('=', '<', '>=') . ' ' . int(rand(42)) if $i % 25 == 20 || rand() < 0.04;
		$cond = 'c COLLATE "C" ' . pick('=', '<=', '>') . ' ' . constant('c') . ' AND ' .
		  conditions('b') if $i % 25 == 24 || rand() < 0.04;
		# the partial one: both its columns, and one that no index has with them
		($output, $cond, $order) = ('id, f', 'a = ' . int(rand(40)) . ' AND c < ' . constant('c') . ' AND b < 60', '') if $i % 25 == 16;
		my @q = map { "\$q\$$_\$q\$" } ($output, $cond, $order);
		push @statements, "SELECT by_index($q[0], $q[1], $q[2]), " . join(', ',
			"run('h', $q[0], $q[1], $q[2], 'seq')",
			"run('h', $q[0], $q[1], $q[2], 'index')",
			map { "run('n', $q[0], $q[1], $q[2], '$_')" } qw(seq index bitmap parallel)) . ';';
		push @what, "$output | $cond | $order";
	}
	my @lines = lines_of($node->safe_psql('postgres', join "\n", @statements, "$flush;"));
	for my $i (0 .. $#what)
	{
		my ($used, @results) = split /\|/, $lines[$i] // '';
		$by_index++ if $used eq 't';
		$nonempty++ if ($results[0] // '') !~ / 0$/;
		push @wrong, "$what[$i]: @results" if @results != 6 || grep { $_ ne $results[0] } @results;
	}
	return @wrong;
}

my @wrong = ask($queries);
is(join("\n", @wrong), '', "$queries conditions, six ways each (seed $seed)");
cmp_ok($by_index, '>', $queries * 0.7, "$by_index of the plans use nvm_btree");
# should chance have made most of them empty, others are asked beside them
@wrong = ();
push @wrong, ask(25) for grep { $nonempty <= $queries * 0.3 } 1 .. 10;
cmp_ok($nonempty, '>', $queries * 0.3, "$nonempty of them find something");
is(join("\n", @wrong), '', 'further conditions that this took');
if ($queries >= 100)
{
	# a few more, should chance have left one out
	my $unused = q{SELECT count(*) FROM pg_stat_user_indexes WHERE relname = 'n' AND idx_scan = 0};
	my @more;
	for (my $n = 0; $n < 10 && $node->safe_psql('postgres', $unused) > 0; $n++)
	{
		push @more, ask(25);
	}
	is($node->safe_psql('postgres', $unused), 0, 'every index was used');
	is(join("\n", @more), '', 'further conditions that took');
}

# ---------------------------------------------------------------------------
# Cursors
# ---------------------------------------------------------------------------

my @orders = (
	[ [qw(a b c)], 'a, b, c, id' ],
	[ [qw(a b c)], 'a DESC, b DESC, c DESC, id DESC' ],
	[ [qw(c d a)], 'c DESC, d NULLS FIRST, a, id' ],
	[ [qw(c d a)], 'c, d DESC NULLS LAST, a DESC, id DESC' ],
	[ [qw(b f)],   'b DESC NULLS LAST, f, id' ],
	[ [qw(b f)],   'b NULLS FIRST, f DESC, id DESC' ]);
@statements = @what = ();
for my $i (1 .. $cursors)
{
	my ($cols, $order) = @{ pick(@orders) };
	my $cond  = rand() < 0.2 ? 'true' : conditions(@$cols);
	my @moves = map { (rand() < 0.55 ? 1 : -1) * int(exp(rand(7))) } 1 .. 6 + rand(10);
	push @moves, 100000, -3, 5, -100000, 2, -1 if rand() < 0.3;
	push @statements, "SELECT steps(\$q\$$cond\$q\$, '$order', '{" . join(',', @moves) . "}');";
	push @what, "$cond | $order | @moves";
}
@lines = lines_of($node->safe_psql('postgres', join "\n", @statements));
@wrong = map { "$what[$_]: $lines[$_]" } grep { $lines[$_] ne 'same' } 0 .. $#what;
is(join("\n", @wrong), '', "$cursors cursors back and forth (seed $seed)");

# ---------------------------------------------------------------------------
# Joins: rescans with other constants, and merge joins that go back to a mark
# ---------------------------------------------------------------------------

@statements = @what = ();
for my $i (1 .. $joins)
{
	my ($x, $y) = (pick('a', 'b', 'f'), pick('<', '<=', '>', '>=', '='));
	my $range = 'id % ' . (20 + int(rand(60))) . ' = ' . int(rand(20));
	my $cond  = conditions('b');
	my $join  = sub {
		my ($t) = @_;
		return "FROM (SELECT id AS xid, a AS xa, b AS xb, c AS xc, f AS xf FROM src WHERE $range) o"
		  . " JOIN $t ON $x = x$x" . ($i % 2 ? " AND c $y xc" : '') . " WHERE $cond";
	};
	for my $set ('nestloop', 'mergejoin')
	{
		my $off = join '; ', map { "SET enable_$_ = off" } grep { $_ ne $set } qw(hashjoin nestloop mergejoin);
		push @statements,
		  "$off; SET enable_material = off; SET enable_seqscan = off;",
		  map { "SELECT count(*) || ' ' || coalesce(sum(id::int8 * xid), 0) " . $join->($_) . ';' } qw(n h);
		push @statements, 'RESET ALL;';
		push @what, "$set " . $join->('n');
	}
}
@lines = lines_of($node->safe_psql('postgres', join "\n", @statements));
@wrong = map { "$what[$_]: $lines[2 * $_] instead of $lines[2 * $_ + 1]" }
  grep { $lines[ 2 * $_ ] ne $lines[ 2 * $_ + 1 ] } 0 .. $#what;
is(join("\n", @wrong), '', "$joins joins by nested loop and by merge (seed $seed)");

# many equal keys on both sides: the inner side goes back across leaves
@lines = lines_of($node->safe_psql('postgres', <<SQL));
CREATE TABLE m1 (k int, v int) USING nvm;
CREATE TABLE m2 (k int, v int) USING nvm;
CREATE INDEX m1_k ON m1 USING nvm_btree (k) WITH (deduplicate_items = off);
CREATE INDEX m2_k ON m2 USING nvm_btree (k) WITH (deduplicate_items = off);
INSERT INTO m1 SELECT g % 3, g FROM generate_series(1, 60) g;
INSERT INTO m2 SELECT g % 3, g FROM generate_series(1, 6000) g;
ANALYZE m1, m2;
SET enable_hashjoin = off; SET enable_nestloop = off; SET enable_sort = off;
SET enable_material = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
SELECT count(*), sum(m1.v * m2.v) FROM m1 JOIN m2 USING (k);
SET enable_hashjoin = on; SET enable_seqscan = on; SET enable_mergejoin = off;
SELECT count(*), sum(m1.v * m2.v) FROM m1 JOIN m2 USING (k);
SQL
is($lines[0], $lines[1], 'a merge join that goes back across leaves');
like($lines[0], qr/^120000\|/, 'of that many rows');

# ---------------------------------------------------------------------------
# Leaves are split and deleted while a cursor stands among them
# ---------------------------------------------------------------------------

$node->safe_psql('postgres', <<SQL);
CREATE TABLE w (k int, stays bool) USING nvm;
CREATE INDEX w_k ON w USING nvm_btree (k);
INSERT INTO w SELECT g, g % 1000 < 3 FROM generate_series(1, 30000) g;
DELETE FROM w WHERE NOT stays;
SQL
my $expect = join ',', grep { $_ % 1000 < 3 } 1 .. 30000;

for my $way ('forward', 'backward')
{
	my $reader = $node->background_psql('postgres');
	my $order  = $way eq 'forward' ? 'k' : 'k DESC';
	my @got;
	$reader->query_safe(<<SQL);
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
BEGIN ISOLATION LEVEL REPEATABLE READ;
DECLARE c SCROLL CURSOR FOR SELECT k FROM w ORDER BY $order;
SQL
	push @got, $reader->query_safe('FETCH 20 FROM c');

	# empty leaves go
	$node->safe_psql('postgres', 'VACUUM w');
	push @got, $reader->query_safe('FETCH 20 FROM c');

	# what is left is split, and filled with rows that the cursor does not see
	$node->safe_psql('postgres',
		'INSERT INTO w SELECT g, false FROM generate_series(1, 30000) g');
	push @got, $reader->query_safe('FETCH 20 FROM c');
	my @back = lines_of($reader->query_safe('FETCH BACKWARD 35 FROM c'));
	push @got, $reader->query_safe('MOVE 35 FROM c');
	pop @got;
	$node->safe_psql('postgres', 'DELETE FROM w WHERE NOT stays');
	push @got, $reader->query_safe('FETCH ALL FROM c');
	@got = map { lines_of($_) } @got;

	my @back_expect = reverse @got[ 24 .. 58 ];
	is("@back", "@back_expect", "$way: rows met again on the way back");
	@got = reverse @got if $way eq 'backward';
	is(join(',', @got), $expect, "$way: each row once, in order, while leaves come and go");
	$reader->query_safe('COMMIT');
	$reader->quit;
}

# The same between two leaves of one statement, held there for a while.  All but
# a few rows are gone before it begins, so that VACUUM unlinks what it is about
# to go to, or where it stands.
$node->safe_psql('postgres', 'DELETE FROM w WHERE NOT stays; VACUUM w');
foreach my $held (
	[ 'btree-scan-right', 'k', 2 ],
	[ 'btree-scan-right', 'k', 17 ],
	[ 'btree-scan-left', 'k DESC', 1 ],
	[ 'btree-scan-left', 'k DESC', 9 ],
	[ 'btree-scan-first', 'k', 1 ],
	[ 'btree-scan-first', 'k DESC', 1 ])
{
	my ($failpoint, $order, $hit) = @$held;
	my $log = -s $node->logfile;
	my ($out, $err) = ('', '');

	$node->safe_psql('postgres', <<SQL);
INSERT INTO w SELECT g, false FROM generate_series(1, 30000) g;
DELETE FROM w WHERE NOT stays;
SQL
	my $run = IPC::Run::start(
		[ 'psql', '-XqAt', '-d', $node->connstr('postgres'), '-c', <<SQL ], '>', \$out, '2>', \$err);
SET nvm.failpoint = '$failpoint:sleep=1500:$hit';
SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_sort = off;
SELECT string_agg(k::text, ',') FROM (SELECT k FROM w WHERE k > 0 AND k < 100000 ORDER BY $order) x;
SQL
	$node->wait_for_log(qr/failpoint $failpoint hit/, $log);
	$node->safe_psql('postgres', 'VACUUM w');
	$node->safe_psql('postgres',
		'INSERT INTO w SELECT g % 30000, false FROM generate_series(1, 60000) g');
	$run->finish;
	$node->safe_psql('postgres', 'DELETE FROM w WHERE NOT stays; VACUUM w');
	chomp $out;
	$out = join ',', reverse split /,/, $out if $order ne 'k';
	is($out . $err, $expect, "held at hit $hit of $failpoint, by $order");
}

# And all at once, at any moment.
my $dir    = PostgreSQL::Test::Utils::tempdir();
my %script = (
	forward  => "SELECT 1 / (string_agg(k::text, ',') = '$expect')::int FROM (SELECT k FROM w WHERE stays ORDER BY k) x;",
	backward => "SELECT 1 / (string_agg(k::text, ',') = '" . join(',', reverse split /,/, $expect) .
	  "')::int FROM (SELECT k FROM w WHERE stays ORDER BY k DESC) x;",
	middle => <<'SQL',
\set x random(0, 29)
SELECT 1 / (array_agg(k) = ARRAY[:x * 1000 + 1000, :x * 1000 + 1001, :x * 1000 + 1002])::int
FROM (SELECT k FROM w WHERE stays AND k > :x * 1000 + 500 AND k < :x * 1000 + 1500 ORDER BY k) x WHERE :x < 29;
SELECT 1 / (count(*) = CASE :x WHEN 9 THEN 2 ELSE 3 END)::int
FROM w WHERE stays AND k = ANY (ARRAY[:x * 1000 + 1, 7, :x * 1000 + 2, 500, 9001, 77777]);
SQL
	write => <<'SQL',
\set a random(1, 29000)
INSERT INTO w SELECT :a + g % 700, false FROM generate_series(1, 2000) g;
\set b random(1, 27000)
DELETE FROM w WHERE NOT stays AND k BETWEEN :b AND :b + 4000;
SQL
	vacuum => "VACUUM w;\n\\sleep 20 ms\n");
my @runs;
my $seconds = NvmTest::is_long() ? 60 : 5;
foreach my $name (sort keys %script)
{
	my $clients = $name eq 'write' ? 3 : 1;
	my $err     = '';

	append_to_file("$dir/$name.sql", $script{$name});
	local $ENV{PGOPTIONS} = '-c enable_seqscan=off -c enable_sort=off -c enable_bitmapscan=' .
	  ($name eq 'middle' ? 'on' : 'off');
	push @runs, [ $name, \$err, IPC::Run::start(
			[ 'pgbench', '-n', '-T', $seconds, '-c', $clients, '-j', $clients, '-f', "$dir/$name.sql",
				'-h', $node->host, '-p', $node->port, 'postgres' ], '>', '/dev/null', '2>', \$err) ];
}
foreach my $run (@runs)
{
	ok($run->[2]->finish, "$run->[0] beside the others") or diag(${ $run->[1] });
}

# ---------------------------------------------------------------------------
# Entries of rows that are dead to everybody are passed over, once a scan has met
# them: of single rows, and of posting lists of which all rows are dead
# ---------------------------------------------------------------------------

$node->safe_psql('postgres', <<SQL);
CREATE TABLE dead (k int, v int) USING nvm;
CREATE INDEX dead_k ON dead USING nvm_btree (k);
CREATE INDEX dead_v ON dead USING nvm_btree (v);
CREATE TABLE other (a int) USING nvm;
INSERT INTO dead SELECT g, g % 3 FROM generate_series(1, 3000) g;
DELETE FROM dead WHERE v = 1 OR k BETWEEN 1000 AND 1010;
SQL

# TIDs that a scan gets from an index
sub tids_read
{
	my ($index, $sql) = @_;
	my $stat = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = '$index'";
	my $before = $node->safe_psql('postgres', $stat);

	$node->safe_psql('postgres', "SET enable_seqscan = off; SET enable_bitmapscan = off; $sql; $flush");
	return $node->safe_psql('postgres', $stat) - $before;
}

my %read = (
	dead_k => 'SELECT count(*) FROM dead WHERE k > 0',
	dead_v => 'SELECT count(*) FROM (SELECT v FROM dead WHERE v IS NOT NULL ORDER BY v DESC) x');
my %left = (dead_k => 1993, dead_v => 2000);
is(tids_read($_, $read{$_}), 3000, "$_: a scan meets dead rows") foreach sort keys %read;
foreach my $index (sort keys %read)
{
	my $n = 3000;

	# a row is told to be dead when its deletion is durable and before every snapshot
	for my $try (1 .. 200)
	{
		$node->safe_psql('postgres', 'INSERT INTO other VALUES (1)');
		last if ($n = tids_read($index, $read{$index})) <= $left{$index} + 20;
		Time::HiRes::usleep(50_000);
	}
	cmp_ok($n, '<=', $left{$index} + 20, "$index: later ones do not");
	cmp_ok($n, '>=', 1993, "$index: nor do they miss others");
}
is($node->safe_psql('postgres', "SET enable_seqscan = off; $read{dead_k}"), 1993, 'rows that are left');

# ---------------------------------------------------------------------------
# Operator classes of another extension, that comes and goes
# ---------------------------------------------------------------------------

SKIP:
{
	skip 'there is no citext', 4
	  if $node->safe_psql('postgres',
		q{SELECT count(*) FROM pg_available_extensions WHERE name = 'citext'}) == 0;
	$node->safe_psql('postgres', <<SQL);
CREATE EXTENSION citext;
CREATE ROLE owner;
GRANT CREATE ON SCHEMA public TO owner;
SET ROLE owner;
CREATE TABLE ci (c citext, d int) USING nvm;
INSERT INTO ci SELECT chr(65 + g % 26) || g, g FROM generate_series(1, 1000) g;
CREATE INDEX ci_c ON ci USING nvm_btree (c);
CREATE INDEX ci_p ON ci USING nvm_btree (c citext_pattern_ops, d);
SQL
	is($node->safe_psql('postgres',
		q{SET enable_seqscan = off; SELECT string_agg(c::text, ',' ORDER BY c) FROM ci WHERE c = ANY ('{b27,c2,X1,b1}')}),
		'B1,B27,C2', 'an index on a type of another extension, by an ordinary user');
	my ($ret, undef, $err) = $node->psql('postgres', 'DROP EXTENSION citext');
	unlike($err, qr/operator (class|family)/, 'what stands in the way of its going is the table alone');
	$node->safe_psql('postgres', 'DROP TABLE ci; DROP EXTENSION citext');
	is($node->safe_psql('postgres', q{SELECT count(*) FROM pg_opclass WHERE opcname ~ 'citext|^btree_[0-9]'}),
		0, 'its operator classes went with it');
	$node->safe_psql('postgres', 'CREATE DATABASE two');
	$node->safe_psql('two', <<SQL);
CREATE EXTENSION citext;
CREATE EXTENSION pg_nvm;
CREATE TABLE t (c citext) USING nvm;
CREATE INDEX ON t USING nvm_btree (c);
DROP TABLE t;
DROP EXTENSION citext;
DROP EXTENSION pg_nvm;
SQL
	is($node->safe_psql('two', <<SQL), '0|0|0', 'and so did those of nvm_btree with it');
SELECT (SELECT count(*) FROM pg_opclass WHERE opcmethod NOT IN (SELECT oid FROM pg_am)),
	(SELECT count(*) FROM pg_opfamily WHERE opfmethod NOT IN (SELECT oid FROM pg_am)),
	(SELECT count(*) FROM pg_amop WHERE amopmethod NOT IN (SELECT oid FROM pg_am))
SQL
}

$node->check_clean('at the end');
$node->stop;
done_testing();

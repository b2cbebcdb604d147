# Copyright (c) 2026, pg_nvm contributors

# Eight sessions on one table with nvm_btree indexes of every persistence, held
# against a model, and crashes in the midst of it.
#
# Ids go round: each session has one in nine, and knows which of its rows there
# are; the ninth part is everybody's, and its number and sum stay the same.  So
# all meet on the same leaves, and yet each answer is known.  The rows of all
# lie in a band that moves on: leaves are split in front of it, and emptied and
# unlinked behind it.  Sessions insert, delete, change keys, move rows to other
# ids, roll back, and look: by each index, in both directions, by index-only and
# bitmap scans, with cursors that stop on the way.  The answers that the model
# gives are written down with the script; what psql prints must begin like that.
# VACUUM and REINDEX CONCURRENTLY run beside it.
#
# After a crash, of all processes or of power, at a place of the index or at any
# moment, each session's rows must be what they were after the last transaction
# that was acknowledged, or after the one that was under way.
#
# NVM_CRASH_SEED, NVM_MODEL_PILES=from,to: which ones; NVM_CRASH_KEEP.
#
# Long form: 12 piles of each kind of 5 crashes, of twice as many transactions; here one of 3.

use strict;
use warnings;

use Digest::MD5 qw(md5_hex);
use NvmCrash;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

my $nclients = 8;
my $residues = $nclients + 1;				# the last one is shared
my $slots    = 240;							# of each session
my $nshared  = 30;
my $rounds   = NvmTest::is_long() ? 5 : 3;
my $ntxns    = NvmTest::is_long() ? 60 : 30;	# of a session, in a round
my ($from, $to) = split /,/, $ENV{NVM_MODEL_PILES} // (NvmTest::is_long() ? '1,24' : '1,2');

# Places to crash at, and the number of hits of a process until then; others: 6
my %often = map { $_ => 1500 } qw(btree-entry btree-committed btree-inserted btree-checked);
$often{$_} = 400 foreach qw(btree-order index-rebuild-entry btree-scan-first btree-scan-right);
$often{$_} = 30 foreach qw(btree-split-written btree-split-applied btree-split-locks btree-split-complete
  btree-downlink-inserted btree-downlink btree-rewritten btree-alloc pool-redo-written
  pool-redo-logged redo-piece pool-redo-applied pool-redo-cleared btree-vacuum-leaf);
my @places = grep { /^(?:btree|index|pool-redo|redo)-/ } sort keys %{ { NvmCrash::failpoint_names() } };
# these are counted
my @events = qw(btree-split-applied btree-newroot-made btree-delete-unlinked btree-rewritten
  btree-vacuum-leaf index-leaves index-rebuild-done);

note("NVM_CRASH_SEED=$NvmCrash::seed");

my $base = NvmCrash::make_base('model', fill => \&fill);
my $counts = NvmTest::pool_base() . '/model_counts';
NvmCrash::run_jobs(map { my $pile = $_; {
			name => "pile $pile of $rounds " . ($pile % 2 ? 'crashes of all processes' : 'losses of power')
			  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_MODEL_PILES=$pile,$pile)",
			code => sub { return pile($pile); } } } $from .. $to);

# It did happen what the test is about.
my %count;
foreach my $line (split /\n/, slurp_file($counts))
{
	my ($what, $n) = split ' ', $line;
	$count{$what} += $n;
}
note(join ', ', map { "$_: $count{$_}" } sort keys %count);
cmp_ok($count{$_} // 0, '>', 0, "$_: $count{$_}") foreach grep { !/rebuild|index/ } @events;
cmp_ok($count{acknowledged}, '>', 100, "$count{acknowledged} transactions were acknowledged");
unlink $counts;
done_testing();

# ------------------------------------------------------------------ the table

sub fill
{
	my ($node) = @_;

	$node->safe_psql('postgres', <<SQL);
SET nvm.default_index_method = 'nvm_btree';
SET nvm.index_identity = nvm_btree;
CREATE FUNCTION ku(id int, ver int, kx int) RETURNS text IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT lpad(id::text, 5, '0') || md5(id || '/' || ver) || repeat('u', 150 + kx % 300) \$\$;
CREATE FUNCTION kk(kx int) RETURNS text IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT 'k' || lpad((kx % 23)::text, 3, '0') || repeat('k', 120) \$\$;
CREATE FUNCTION ka(kx int) RETURNS int IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT CASE WHEN kx % 11 > 0 THEN kx % 5 END \$\$;
CREATE FUNCTION kb(kx int) RETURNS text IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT 'b' || kx % 7 || repeat('b', 200 + kx % 3 * 100) \$\$;
CREATE TABLE m (id int, ver int, kx int, n int, u text, k text, a int, b text, c int,
	PRIMARY KEY (id) INCLUDE (b)) USING nvm WITH (autovacuum_enabled = off);
CREATE UNIQUE INDEX m_u ON m (u) INCLUDE (id) WITH (persistence = none);
CREATE INDEX m_k ON m (k) INCLUDE (id) WITH (persistence = leaves);
CREATE INDEX m_abc ON m (a, b DESC, c);
CREATE TABLE done (client int PRIMARY KEY, n int) USING nvm;
INSERT INTO done SELECT i, 0 FROM generate_series(0, $nclients - 1) i;
CREATE FUNCTION mk(id int, ver int, kx int, n int) RETURNS m IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT id, ver, kx, n, ku(id, ver, kx), kk(kx), ka(kx), kb(kx), id \$\$;
-- ids of shared rows, in a few clusters
CREATE FUNCTION place(i int) RETURNS int IMMUTABLE LANGUAGE sql AS
	\$\$ SELECT (i % 5 * ($slots / 5) + i / 5 % 8) * $residues + $nclients \$\$;
INSERT INTO m SELECT r.* FROM generate_series(0, $nshared - 1) i, mk(place(i), 0, 100000 + i, 0) r;

CREATE FUNCTION ways(way text) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	PERFORM set_config('enable_seqscan', (way = 'seq')::text, true),
		set_config('enable_indexscan', (way IN ('idx', 'ios'))::text, true),
		set_config('enable_indexonlyscan', (way = 'ios')::text, true),
		set_config('enable_bitmapscan', (way = 'bit')::text, true),
		set_config('enable_sort', (way IN ('seq', 'bit'))::text, true);
END \$\$;

-- what a session (all: -1) has under a condition, found by an index; or what is
-- wrong with that: rows out of order, twice, damaged
CREATE FUNCTION look_sql(cl int, idx text, way text, cond text, back bool) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	gt text := CASE WHEN back THEN '<' ELSE '>' END;
	lt text := CASE WHEN back THEN '>' ELSE '<' END;
	cols text := CASE WHEN way <> 'ios' THEN '*' WHEN idx = 'm_pkey' THEN 'id' WHEN idx = 'm_u' THEN 'u, id'
		WHEN idx = 'm_k' THEN 'k, id' ELSE 'a, b, c, c AS id' END;
	ord text := CASE idx WHEN 'm_pkey' THEN 'id' WHEN 'm_u' THEN 'u' WHEN 'm_k' THEN 'k'
		ELSE CASE WHEN back THEN 'a DESC, b, c' ELSE 'a, b DESC, c' END END || CASE WHEN back THEN ' DESC' ELSE '' END;
	ok text := CASE idx WHEN 'm_pkey' THEN 'id %1\$s lag(id) OVER w' WHEN 'm_u' THEN 'u %1\$s lag(u) OVER w'
		WHEN 'm_k' THEN 'k %1\$s= lag(k) OVER w'
		ELSE '(coalesce(a, 99) %1\$s lag(coalesce(a, 99)) OVER w OR coalesce(a, 99) = lag(coalesce(a, 99)) OVER w AND (b %2\$s lag(b) OVER w OR b = lag(b) OVER w AND c %1\$s lag(c) OVER w))' END;
	whole text := CASE way WHEN 'ios' THEN 'true' ELSE 'u = ku(id, ver, kx) AND k = kk(kx) AND a IS NOT DISTINCT FROM ka(kx) AND b = kb(kx) AND c = id' END;
	mine text := CASE WHEN cl < 0 THEN 'true' ELSE 'id % $residues = ' || cl END;
BEGIN
	RETURN format('SELECT CASE WHEN coalesce(bool_and(ok), true) AND count(*) = count(DISTINCT id) AND coalesce(bool_and(whole), true) '
		'THEN count(*) FILTER (WHERE %1\$s) || '' '' || md5(coalesce(string_agg(sig, '','' ORDER BY id) FILTER (WHERE %1\$s), '''')) '
		'ELSE ''WRONG '' || string_agg(concat_ws(''/'', sig, ok, whole), '','') END '
		'FROM (SELECT id, %2\$s AS sig, %3\$s AS whole, coalesce(%4\$s, true) AS ok '
		'FROM (SELECT %5\$s FROM m WHERE %6\$s ORDER BY %7\$s OFFSET 0) x WINDOW w AS ()) y',
		mine, CASE way WHEN 'ios' THEN 'id::text' ELSE 'concat_ws(''/'', id, ver, kx, n)' END, whole, format(ok, gt, lt), cols, cond, ord);
END \$\$;
CREATE FUNCTION look(cl int, idx text, way text, cond text, back bool) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	got text;
BEGIN
	PERFORM ways(way);
	EXECUTE look_sql(cl, idx, way, cond, back) INTO got;
	PERFORM ways('any'), set_config('enable_indexscan', 'on', true), set_config('enable_indexonlyscan', 'on', true),
		set_config('enable_seqscan', 'on', true), set_config('enable_bitmapscan', 'on', true), set_config('enable_sort', 'on', true);
	RETURN got;
END \$\$;

-- all rows, each way; under REPEATABLE READ
CREATE FUNCTION agree() RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	seq text := look(-1, 'm_pkey', 'seq', 'true', false);
	ids text; got text; i text; back bool; way text; c bigint; s bigint;
BEGIN
	SELECT count(*) || ' ' || md5(coalesce(string_agg(id::text, ',' ORDER BY id), '')) INTO ids FROM m WHERE n >= 0;
	FOREACH i IN ARRAY ARRAY['m_pkey', 'm_u', 'm_k', 'm_abc'] LOOP
		FOREACH back IN ARRAY ARRAY[false, true] LOOP
			FOREACH way IN ARRAY ARRAY['idx', 'ios', 'bit'] LOOP
				CONTINUE WHEN way = 'bit' AND back;
				got := look(-1, i, way, CASE i WHEN 'm_pkey' THEN 'id >= -5' WHEN 'm_u' THEN 'u >= ''''' WHEN 'm_k' THEN 'k >= '''''
					ELSE CASE way WHEN 'bit' THEN 'a > -5 OR a IS NULL' ELSE 'true' END END, back);
				IF got IS DISTINCT FROM (CASE way WHEN 'ios' THEN ids ELSE seq END) THEN
					RETURN format('%s %s %s has %s, the table %s', i, way, back, got, CASE way WHEN 'ios' THEN ids ELSE seq END);
				END IF;
			END LOOP;
		END LOOP;
	END LOOP;
	SELECT count(*), sum(kx) INTO c, s FROM m WHERE id % $residues = $nclients;
	IF c <> $nshared OR s <> @{[ $nshared * 100000 + $nshared * ($nshared - 1) / 2 ]} THEN
		RETURN format('%s shared rows with sum %s', c, s);
	END IF;
	RETURN 'agree';
END \$\$;

-- what is everybody's: from one row to another, or to another id
CREATE FUNCTION shared(seed int) RETURNS void LANGUAGE plpgsql AS \$\$
DECLARE
	x m; y m; r m;
	d int := seed % 50;
	other int := place(seed / 7 % 40);
BEGIN
	SELECT * INTO x FROM m WHERE id % $residues = $nclients AND id >= (seed % $slots) * $residues ORDER BY id LIMIT 1;
	SELECT * INTO y FROM m WHERE id % $residues = $nclients AND id <> x.id AND id < other ORDER BY id DESC LIMIT 1;
	IF x.id IS NULL OR y.id IS NULL THEN RETURN; END IF;
	IF seed % 3 = 0 THEN
		SELECT * INTO x FROM m WHERE id = x.id FOR UPDATE;
		SELECT * INTO y FROM m WHERE id = y.id FOR UPDATE;
		IF x.id IS NULL OR y.id IS NULL THEN RETURN; END IF;
		r := mk(x.id, x.ver + 1, x.kx - d, x.n);
		UPDATE m SET ver = r.ver, kx = r.kx, u = r.u, k = r.k, a = r.a, b = r.b WHERE id = x.id;
		r := mk(y.id, y.ver + 1, y.kx + d, y.n);
		UPDATE m SET ver = r.ver, kx = r.kx, u = r.u, k = r.k, a = r.a, b = r.b WHERE id = y.id;
	ELSIF seed % 3 = 1 THEN
		DELETE FROM m WHERE id = x.id RETURNING * INTO x;
		IF x.id IS NULL THEN RETURN; END IF;
		INSERT INTO m SELECT * FROM mk(other, x.ver + 1, x.kx, x.n);
	ELSE
		SELECT * INTO x FROM m WHERE id = x.id FOR UPDATE;
		IF x.id IS NULL THEN RETURN; END IF;
		r := mk(other, x.ver, x.kx, x.n);
		UPDATE m SET id = r.id, u = r.u, c = r.c WHERE id = x.id;
	END IF;
EXCEPTION WHEN unique_violation OR deadlock_detected OR serialization_failure THEN
	NULL;
END \$\$;

-- which constraint stands against it?
CREATE FUNCTION refused(sql text) RETURNS text LANGUAGE plpgsql AS \$\$
DECLARE
	name text;
BEGIN
	EXECUTE sql;
	RETURN 'nothing';
EXCEPTION WHEN unique_violation THEN
	GET STACKED DIAGNOSTICS name = CONSTRAINT_NAME;
	RETURN name;
END \$\$;
SQL
	# the ways to look are what they are said to be
	my %kind = (idx => 'Index Scan', ios => 'Index Only Scan', bit => 'Bitmap Index Scan');
	my %cond = (m_pkey => 'id >= 5', m_u => "u >= 'a'", m_k => "k >= 'a'", m_abc => 'a = 3');
	foreach my $index (sort keys %cond)
	{
		foreach my $way (sort keys %kind)
		{
			foreach my $back ($way eq 'bit' ? 'false' : ('false', 'true'))
			{
				my $plan = $node->safe_psql('postgres', "BEGIN; SELECT ways('$way') \\g /dev/null\n"
					  . "SELECT 'EXPLAIN ' || look_sql(1, '$index', '$way', \$\$$cond{$index}\$\$, $back) \\gexec");
				my $expect = $way eq 'bit' ? "$kind{$way} on $index" :
				  $kind{$way} . ($back eq 'true' ? ' Backward' : '') . " using $index";
				like($plan, qr/$expect/, "$expect: looked at in that way");
			}
		}
	}
	return;
}

# ------------------------------------------------------------------ the model

# A session's work of one round.  rows: slot => [ver, kx, n].
sub new_model
{
	my ($pile, $round, $client, $rows) = @_;
	return { pile => $pile, round => $round, client => $client, rows => {%$rows}, drawn => 0, looks => 0 };
}

sub draw
{
	my ($g, $n) = @_;
	return NvmCrash::random("model/$g->{pile}/$g->{round}/$g->{client}/" . $g->{drawn}++, $n);
}

sub id_of { return $_[1] * $residues + $_[0]{client}; }

# New rows come into a band, which moves with each transaction; behind it they go
sub near
{
	my ($g, $n) = @_;
	return (($g->{round} * $ntxns + $n) * 5 + draw($g, 50)) % $slots;
}

sub behind
{
	my ($g, $n) = @_;
	my $lo = (($g->{round} * $ntxns + $n) * 5 + $slots - 20 - draw($g, 80)) % $slots;
	my $hi = $lo + 20 + draw($g, 60);
	return ($lo, $hi < $slots ? $hi : $slots - 1);
}

sub arrays
{
	my (@rows) = @_;
	return join ', ', map { my $i = $_; 'ARRAY[' . join(',', map { $_->[$i] } @rows) . ']::int[]' } 0 .. $#{ $rows[0] };
}

sub made { return "unnest(" . arrays(@_) . ") s(i, v, x, o), mk(i, v, x, o) r"; }

# One change of the session's rows; returns SQL, and appends expected output
sub change
{
	my ($g, $n, $out) = @_;
	my $rows = $g->{rows};
	my $kind = draw($g, 20);
	my @there = sort { $a <=> $b } keys %$rows;
	my $some  = sub { my %s; $s{ $there[ draw($g, scalar @there) ] } = 1 foreach 1 .. 1 + draw($g, $_[0]); return sort { $a <=> $b } keys %s; };

	if ($kind < 8 || @there < 10)
	{
		my %new;
		foreach (1 .. 2 + draw($g, 14))
		{
			my $slot = near($g, $n);
			$new{$slot} = [ draw($g, 1000), 1000 + draw($g, 5000), 0 ] unless $rows->{$slot};
		}
		return '' unless %new;
		my @rows = map { [ id_of($g, $_), @{ $new{$_} } ] } sort { $a <=> $b } keys %new;
		$rows->{$_} = $new{$_} foreach keys %new;
		return 'INSERT INTO m SELECT r.* FROM ' . made(@rows) . ";\n" if draw($g, 4);
		return join '', map { "INSERT INTO m SELECT r.* FROM mk($_->[0], $_->[1], $_->[2], $_->[3]) r;\n" } @rows;
	}
	elsif ($kind < 11)
	{
		my ($lo, $hi) = behind($g, $n);
		delete $rows->{$_} foreach grep { $_ >= $lo && $_ <= $hi } @there;
		return 'DELETE FROM m WHERE id BETWEEN ' . id_of($g, $lo) . ' AND ' . id_of($g, $hi)
		  . " AND id % $residues = $g->{client};\n";
	}
	elsif ($kind < 12)
	{
		my @gone = $some->(6);
		delete @$rows{@gone};
		return 'DELETE FROM m WHERE id = ANY (' . arrays(map { [ id_of($g, $_) ] } @gone) . ");\n";
	}
	elsif ($kind < 14)
	{
		# one unique key, or all keys
		my $all = draw($g, 2);
		my @which = $some->(10);
		$rows->{$_} = [ $rows->{$_}[0] + 1, $all ? 1000 + draw($g, 5000) : $rows->{$_}[1], $rows->{$_}[2] ] foreach @which;
		return 'UPDATE m SET ver = r.ver, kx = r.kx, u = r.u, k = r.k, a = r.a, b = r.b FROM '
		  . made(map { [ id_of($g, $_), @{ $rows->{$_} } ] } @which) . " WHERE m.id = r.id;\n";
	}
	elsif ($kind < 15)
	{
		my @which = $some->(10);
		$rows->{$_} = [ @{ $rows->{$_} }[ 0, 1 ], $rows->{$_}[2] + 1 ] foreach @which;
		return 'UPDATE m SET n = n + 1 WHERE id = ANY (' . arrays(map { [ id_of($g, $_) ] } @which) . ");\n";
	}
	elsif ($kind < 17)
	{
		# to another id
		my $old = $there[ draw($g, scalar @there) ];
		my $new = near($g, $n);
		return '' if $rows->{$new};
		$rows->{$new} = delete $rows->{$old};
		return 'UPDATE m SET id = r.id, u = r.u, c = r.c FROM '
		  . made([ id_of($g, $new), @{ $rows->{$new} } ]) . ' WHERE m.id = ' . id_of($g, $old) . ";\n";
	}
	elsif ($kind < 18)
	{
		my ($slot, $row) = (near($g, $n), [ draw($g, 1000), 1000 + draw($g, 5000), 0 ]);
		my $how = draw($g, 2);
		my $was = $rows->{$slot};
		$rows->{$slot} = !$was ? $row : $how ? [ @$was[ 0, 1 ], $was->[2] + 1 ] : $was;
		return 'INSERT INTO m SELECT r.* FROM ' . made([ id_of($g, $slot), @$row ])
		  . ' ON CONFLICT ' . ($how ? '(id) DO UPDATE SET n = m.n + 1' : 'DO NOTHING') . ";\n";
	}
	my $there = $there[ draw($g, scalar @there) ];
	my $id    = id_of($g, $there);
	my ($ver, $kx) = @{ $rows->{$there} };
	if (draw($g, 2))
	{
		push @$out, "$id refused by m_pkey";
		return "SELECT $id || ' refused by ' || refused('INSERT INTO m SELECT * FROM mk($id, $ver + 1, 5, 5)');\n";
	}
	my $new = near($g, $n);
	return '' if $rows->{$new};
	push @$out, "$id refused by m_u";
	return "SELECT $id || ' refused by ' || refused('INSERT INTO m SELECT " . id_of($g, $new)
	  . ", ver, kx, n, u, k, a, b, c FROM mk($id, $ver, $kx, 7)');\n";
}

# What the session's rows give under a condition
sub digest
{
	my ($g, $which, $ids_only) = @_;
	my @found = grep { $which->($_, $g->{rows}{$_}) } sort { $a <=> $b } keys %{ $g->{rows} };
	return @found . ' ' . md5_hex(join ',', map { my $id = id_of($g, $_); $ids_only ? $id : join('/', $id, @{ $g->{rows}{$_} }) } @found);
}

# One look by an index
sub one_look
{
	my ($g, $out) = @_;
	my $index = (qw(m_pkey m_pkey m_u m_k m_abc))[ draw($g, 5) ];
	my $way   = (qw(idx idx ios bit))[ draw($g, 4) ];
	my $back  = draw($g, 2) ? 'true' : 'false';
	my ($cond, $which);

	if ($index eq 'm_pkey')
	{
		my $lo = draw($g, $slots);
		my $hi = $lo + draw($g, $slots);
		$cond  = 'id BETWEEN ' . id_of($g, $lo) . ' AND ' . id_of($g, $hi);
		$which = sub { return $_[0] >= $lo && $_[0] <= $hi; };
		if (draw($g, 4) == 0)
		{
			my %in = map { draw($g, $slots) => 1 } 1 .. 20;
			$cond  = 'id = ANY (' . arrays(map { [ id_of($g, $_) ] } sort { $a <=> $b } keys %in) . ')';
			$which = sub { return $in{ $_[0] }; };
		}
	}
	elsif ($index eq 'm_u')
	{
		my ($lo, $hi) = map { draw($g, $slots) } 1 .. 2;
		$cond  = sprintf "u > '%05d' AND u < '%05d'", id_of($g, $lo), id_of($g, $hi);
		$which = sub { return $_[0] >= $lo && $_[0] < $hi; };
	}
	elsif ($index eq 'm_k')
	{
		my $lo = draw($g, 23);
		my $hi = $lo + draw($g, 8);
		$cond  = sprintf "k BETWEEN 'k%03d' AND kk(%d)", $lo, $hi > 22 ? 22 : $hi;
		$which = sub { my $k = $_[1][1] % 23; return $k >= $lo && $k <= $hi; };
	}
	else
	{
		my ($lo, $b) = (draw($g, 5), draw($g, 7));
		my $null = draw($g, 3) == 0;
		$cond  = ($null ? 'a IS NULL' : "a = $lo") . " AND b < 'b$b'";
		$which = sub { my $x = $_[1][1]; return ($null ? $x % 11 == 0 : $x % 11 && $x % 5 == $lo) && $x % 7 < $b; };
	}
	my $serial = ++$g->{looks};
	push @$out, "look $serial " . digest($g, $which, $way eq 'ios');
	return "SELECT 'look $serial ' || look($g->{client}, '$index', '$way', \$\$$cond\$\$, $back);\n";
}

# A cursor that stops on the way: others change the index meanwhile
sub cursor
{
	my ($g, $out) = @_;
	my $back  = draw($g, 2);
	my @there = map { id_of($g, $_) } sort { $a <=> $b } keys %{ $g->{rows} };
	my $first = 1 + draw($g, 10);

	@there = reverse @there if $back;
	push @$out, @there;
	return "SELECT ways('idx') \\g /dev/null\nDECLARE c CURSOR FOR SELECT id FROM m WHERE id % $residues = $g->{client} ORDER BY id"
	  . ($back ? ' DESC' : '') . ";\nFETCH $first FROM c;\nSELECT pg_sleep(0.03) \\g /dev/null\nFETCH ALL FROM c;\nCLOSE c;\n";
}

# A transaction: { sql, out => lines, number => if it is committed }
sub transaction
{
	my ($g, $n) = @_;
	my $number = $g->{round} * 1000 + $n;
	my $before = { %{ $g->{rows} } };
	my $what   = draw($g, 10);
	my @out;

	if ($what == 0)
	{
		push @out, "$number agree";
		return { sql => "BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT '$number ' || agree();\nCOMMIT;\n", out => \@out };
	}
	my $sql = "BEGIN;\n";
	$sql .= 'SELECT shared(' . draw($g, 1_000_000) . ") \\g /dev/null\n" if draw($g, 3) == 0;
	foreach (1 .. 1 + draw($g, 3))
	{
		my $saved = draw($g, 4) == 0 ? { %{ $g->{rows} } } : undef;
		my @sub;
		my $change = change($g, $n, \@out);
		$change .= change($g, $n, \@out) if $saved;
		if ($saved)
		{
			$change .= one_look($g, \@out);
			my $back = draw($g, 2);
			$g->{rows} = $saved if $back;
			$change = "SAVEPOINT s;\n$change" . ($back ? 'ROLLBACK TO s' : 'RELEASE s') . ";\n";
		}
		$sql .= $change;
	}
	$sql .= one_look($g, \@out) if draw($g, 3) == 0;
	$sql .= cursor($g, \@out) if $what == 1;
	if ($what == 2)
	{
		$g->{rows} = $before;
		return { sql => $sql . "ROLLBACK;\n" . one_look($g, \@out), out => \@out };
	}
	push @out, "ack $number";
	$sql .= "UPDATE done SET n = $number WHERE client = $g->{client};\nCOMMIT;\n\\echo ack $number\n";
	$sql .= one_look($g, \@out);
	return { sql => $sql, out => \@out, number => $number };
}

# ------------------------------------------------------------------ one round

sub script
{
	my ($g) = @_;
	my ($sql, @out) = ("SET client_min_messages = warning;\n");

	foreach my $n (1 .. $ntxns)
	{
		my $t = transaction($g, $n);
		$sql .= $t->{sql};
		push @out, @{ $t->{out} };
	}
	return ($sql, \@out);
}

# What the session had and has, as of the transaction of this number
sub rows_after
{
	my ($pile, $round, $client, $rows, $number) = @_;
	my $g = new_model($pile, $round, $client, $rows);
	return $g->{rows} if $number <= $round * 1000;
	foreach my $n (1 .. $ntxns)
	{
		my $t = transaction($g, $n);
		return $g->{rows} if ($t->{number} // 0) == $number;
	}
	return;
}

# psql has ended: what it had printed; problems
sub ended
{
	my ($s, $died) = @_;
	my @problems;

	waitpid($s->{pid}, 0);
	my $status = $? >> 8;
	my $err = slurp_file($s->{err});
	my $out = slurp_file($s->{out});
	unlink $s->{out}, $s->{err}, $s->{script};
	push @problems, "a session says: $err" if $err =~ /^psql:\S+ (?:ERROR|WARNING:  (?!terminating connection))/m || ($status != 0 && $status != 2);
	push @problems, "a session ended early: $err" if $status == 2 && !$died;
	return ($out, @problems);
}

# Run the sessions until the server dies, or they have ended.
sub load
{
	my ($rig, $pile, $round, $models) = @_;
	my $key = "model/$pile/$round";
	my $enough = $round == 1 ? $nclients / 2 : 0;	# sessions that are not at their end
	my (@problems, @sessions, %expected, %acked);

	foreach my $g (@$models)
	{
		my ($sql, $out) = script($g);
		$expected{ $g->{client} } = $out;
		push @sessions, $rig->session(sql => $sql);
	}
	my $vacuum = join '', map { ($_ % 12 == 7 ? "REINDEX INDEX CONCURRENTLY m_k;\n" : '')
		. "VACUUM (INDEX_CLEANUP on) m;\nSELECT pg_sleep(0.02) \\g /dev/null\n" } 1 .. 400;
	my $cleaner = $rig->session(sql => $vacuum);
	my $end = time() + ($enough || NvmCrash::random("$key/hand", 3) ? 120 : 0.2 + NvmCrash::random("$key/moment", 3000) / 1000);
	while (time() < $end && !$rig->wait_dead(0))
	{
		# a session that has ended is a zombie until it is waited for
		last if $enough >= grep { slurp_file("/proc/$_->{pid}/stat") !~ /^\d+ \(.*\) Z /s } @sessions;
		usleep(10_000);
	}
	my $died = $rig->{pid} ? 0 : 1;
	$rig->crash;
	foreach my $g (@$models)
	{
		my ($out, @said) = ended(shift @sessions, 1);
		my @lines = split /\n/, $out;
		my $expect = $expected{ $g->{client} };

		push @problems, map { "session $g->{client}: $_" } @said;
		foreach my $i (0 .. $#lines)
		{
			next if $lines[$i] eq ($expect->[$i] // 'the end');
			push @problems, "session $g->{client} has \"$lines[$i]\" instead of \"" . ($expect->[$i] // 'nothing')
			  . '" after "' . ($i ? $lines[ $i - 1 ] : '') . '"';
			last;
		}
		my @acks = grep { /^ack \d+$/ } @lines;
		$acked{ $g->{client} } = @acks ? substr($acks[-1], 4) : undef;
		add_count('acknowledged', scalar @acks);
	}
	my (undef, @said) = ended($cleaner, 1);
	push @problems, map { "VACUUM: $_" } @said;
	add_count($_, scalar(() = $rig->log_since_start =~ /failpoint $_ hit/g)) foreach @events;
	add_count('died by themselves', $died);
	return (\%acked, @problems);
}

sub add_count
{
	my ($what, $n) = @_;
	$what =~ tr/ /_/;
	append_to_file($counts, "$what $n\n");
	return;
}

# Is everything as the model has it?  The state of each session is returned in
# $states.
sub verify
{
	my ($rig, $pile, $round, $states, $acked, $settled) = @_;
	my @problems;
	my $checks = "BEGIN ISOLATION LEVEL REPEATABLE READ;\nSELECT 'agree ' || agree();\nCOMMIT;\n";
	my ($out, $status, $err) = $rig->psql("SELECT format('done %s %s', client, n) FROM done ORDER BY 1;\n"
		  . "SELECT 'state ' || c || ' ' || look(c, 'm_pkey', 'seq', 'true', false) FROM generate_series(0, $nclients - 1) c;\n"
		  . $checks
		  . ($settled ? "CALL wait_for_collector();\n" : '')
		  # what REINDEX CONCURRENTLY has left
		  . "SELECT 'DROP INDEX ' || indexrelid::regclass FROM pg_index WHERE NOT indisvalid \\gexec\n"
		  . "DO 'BEGIN FOR i IN 1..3000 LOOP EXIT WHEN NOT EXISTS (SELECT FROM nvm.index_rebuilds WHERE state <> ''ready''); PERFORM pg_sleep(0.01); COMMIT; END LOOP; END';\n"
		  . "SELECT 'not rebuilt ' || r FROM nvm.index_rebuilds r WHERE state <> 'ready';\n"
		  . $checks
		  . "SELECT 'finding ' || i || ' ' || f FROM unnest('{m_pkey,m_u,m_k,m_abc,m,done}'::regclass[]) i, nvm.check(i, heapallindexed => true) f;\n"
		  . "SELECT 'finding ' || f FROM nvm.check_pool() f;\n");
	my (%number, %state);
	my $agreed = 0;

	push @problems, "verification failed: $err" if $status != 0;
	foreach my $line (split /\n/, $out)
	{
		if ($line =~ /^done (\d) (\d+)$/) { $number{$1} = $2; }
		elsif ($line =~ /^state (\d) (.*)$/) { $state{$1} = $2; }
		elsif ($line eq 'agree agree') { $agreed++; }
		else { push @problems, $line; }
	}
	push @problems, "$agreed agreements" if $agreed != 2;
	foreach my $c (0 .. $nclients - 1)
	{
		my $was = $states->{$c};
		my $rows = rows_after($pile, $round, $c, $was->{rows}, $number{$c});
		my $acked = $acked->{$c} // $was->{number};
		if (!$rows)
		{
			push @problems, "session $c: transaction $number{$c} was never begun";
			next;
		}
		push @problems, "session $c: acknowledged transaction $acked is lost, the last one is $number{$c}" if $number{$c} < $acked;
		push @problems, "session $c: transaction $number{$c} is there, but $acked was the last one acknowledged"
		  if $number{$c} > $acked && $number{$c} != next_commit($pile, $round, $c, $was->{rows}, $acked);
		my $expect = digest({ client => $c, rows => $rows }, sub { return 1; }, 0);
		push @problems, "session $c: its rows after transaction $number{$c} are $state{$c}, not $expect" if $state{$c} ne $expect;
		$states->{$c} = { rows => $rows, number => $number{$c} };
	}
	my $log = $rig->log_since_start;
	while ($log =~ /^(.*(?:PANIC|TRAP|terminated by signal|ERROR:  |WARNING:  ).*)$/mg)
	{
		my $line = $1;
		next if $line =~ /does not outlive a reboot|one copy of the header of NVM pool .* is rewritten/;
		push @problems, "the server's log has: $line";
	}
	return @problems;
}

sub next_commit
{
	my ($pile, $round, $client, $rows, $acked) = @_;
	my $g = new_model($pile, $round, $client, $rows);
	foreach my $n (1 .. $ntxns)
	{
		my $number = transaction($g, $n)->{number};
		return $number if defined $number && $number > $acked;
	}
	return 0;
}

# ------------------------------------------------------------------ a pile

sub pile
{
	my ($pile) = @_;
	my $power = $pile % 2 == 0;
	my $rig = NvmCrash->new($base, simulate => $power);
	my %states = map { $_ => { rows => {}, number => 0 } } 0 .. $nclients - 1;
	my @problems;

	foreach my $round (1 .. $rounds)
	{
		my $key   = "model/$pile/$round";
		my $place = $places[ NvmCrash::random("$key/place", scalar @places) ];
		my $hit   = 1 + NvmCrash::random("$key/hit", $often{$place} // 6);
		# the first one has time for everything
		my $crash = $round == 1 ? '*:off' : "$place:crash:$hit";
		my $what  = "round $round, $crash";
		my %conf  = (
			'deadlock_timeout'  => '50ms',
			'nvm.collect_gaps'  => NvmCrash::random("$key/gaps", 3) ? 'on' : 'off',
			'nvm.failpoint'     => join(', ', (map { "$_:sleep=0" } grep { $round == 1 || $_ ne $place } @events), $crash));

		# the crash may come with recovery already
		if (!$rig->start(%conf))
		{
			return "$what: no start: " . $rig->log_since_start unless $rig->log_since_start =~ /failpoint $place hit/;
			$rig->start or return "$what: no second start: " . $rig->log_since_start;
		}
		my @models = map { new_model($pile, $round, $_, $states{$_}{rows}) } 0 .. $nclients - 1;
		my ($acked, @said) = load($rig, $pile, $round, \@models);
		push @problems, map { "$what: $_" } @said;
		if ($power)
		{
			my $seed = NvmCrash::random("$key/image", 1_000_000);
			if ($ENV{NVM_CRASH_KEEP})
			{
				system_or_bail('rm', '-rf', "$rig->{home}/crashed", "$rig->{home}/crashed_data");
				system_or_bail('cp', '-a', '--sparse=always', $rig->{pool}, "$rig->{home}/crashed");
				system_or_bail('cp', '-a', '--sparse=always', $rig->{data}, "$rig->{home}/crashed_data");
			}
			$rig->make_image($seed, $round % 4 == 3 ? (mode => 'durable') : ());
		}
		$rig->start or return (@problems, "$what: no start: " . $rig->log_since_start);
		push @problems, map { "$what: $_" } verify($rig, $pile, $round, \%states, $acked, $round % 2);
		if (@problems)
		{
			if ($ENV{NVM_CRASH_KEEP})
			{
				$rig->crash;
				$rig->{keep} = 1;
				push @problems, "kept: $rig->{home}";
			}
			return @problems;
		}

		# another index is of another kind from here on
		my $index = (qw(m_pkey m_u m_k m_abc done_pkey))[ NvmCrash::random("$key/index", 5) ];
		my $kind  = (qw(full leaves none))[ NvmCrash::random("$key/kind", 3) ];
		my (undef, $status, $err) = $rig->psql("ALTER INDEX $index SET (persistence = $kind);\n");
		return "$what: ALTER INDEX: $err" if $status != 0;
		if ($power || NvmCrash::random("$key/end", 2))
		{
			$rig->crash;
			$rig->make_image($round) if $power;
		}
		else
		{
			$rig->stop or return "$what: the stop was not clean";
		}
	}
	return;
}

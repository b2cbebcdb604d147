# Copyright (c) 2026, pg_nvm contributors

=head1 NAME

NvmWalk - a command on tables with every kind of index, and what is wrong afterwards

=head1 SYNOPSIS

  my $node = NvmWalk::node();
  walk('ALTER TABLE w.t ADD COLUMN x int');
  script('more', 'CALL make(); CALL note(); ...; SELECT problems();');

=head1 DESCRIPTION

C<make()> creates schema w with table w.t, which has indexes of all access methods and
of each kind of nvm_btree, and w.child, which refers to it.  C<note()> remembers which
they are.  C<problems()> returns a row for each thing that is wrong: an index whose
access method and storage disagree, which is of another access method than it was, has
lost its index parameter or operator class, lacks entries; a storage of nobody.

nvm.index_identity is nvm_btree, or what C<NvmWalk::node(identity =E<gt> 'btree')> says.  An
index that says btree and has a storage is then C<ours>, and so are all that are nvm_btree's
otherwise.

=cut

package NvmWalk;

use strict;
use warnings;

use Exporter 'import';
use NvmTest;
use Test::More;

our @EXPORT = qw(walk script);

my ($node, $storages);
my $ours = 'nvm_btree';			# what an index of ours is
my $turn = 0;

# Do indexes of the server say btree?
sub says_btree { return $ours eq 'ours'; }

# The server of all walks, with the above in database postgres.
sub node
{
	my (%how) = @_;

	$ours = 'ours' if ($how{identity} // '') eq 'btree';
	$node = NvmTest->new('main');
	$node->init;
	$node->append_conf('postgresql.conf', 'nvm.index_identity = ' . ($how{identity} // 'nvm_btree') . "\n");
	$node->append_conf('postgresql.conf', <<CONF);
nvm.default_index_method = nvm_btree
allow_in_place_tablespaces = on
max_prepared_transactions = 5
autovacuum = off
client_min_messages = warning
CONF
	$node->start;
	$node->safe_psql('postgres', <<'SQL' =~ s/OURS/$ours/gr);
CREATE TABLESPACE there LOCATION '';
CREATE ROLE someone;
CREATE EXTENSION pg_nvm;

-- operator classes that are not on the search path, two of one name
CREATE SCHEMA far;
CREATE SCHEMA near;
CREATE FUNCTION far.cmp(int, int) RETURNS int IMMUTABLE STRICT LANGUAGE sql AS 'SELECT btint4cmp($2, $1)';
CREATE OPERATOR CLASS near.rev FOR TYPE int4 USING btree AS OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >, FUNCTION 1 btint4cmp(int, int);
CREATE OPERATOR CLASS far.rev FOR TYPE int4 USING btree AS OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <, FUNCTION 1 far.cmp(int, int);

-- a table with every kind of index, and one that refers to it, in schema w
CREATE PROCEDURE make(kind text DEFAULT '', am text DEFAULT 'nvm') LANGUAGE plpgsql AS $$
DECLARE
	leaves text := '';
	none text := '';
BEGIN
	IF am = 'nvm' AND current_setting('nvm.index_identity') <> 'btree' THEN
		leaves := 'WITH (persistence = leaves)';
		none := 'WITH (persistence = none, fillfactor = 80)';
	END IF;
	CREATE SCHEMA w;
	EXECUTE format('CREATE %s TABLE w.t (id int CONSTRAINT t_pkey PRIMARY KEY, v varchar(10) CONSTRAINT t_v UNIQUE, n int,
		body text, d int CONSTRAINT t_d UNIQUE %s DEFERRABLE, p point DEFAULT point(0,0), gone int, a int[] DEFAULT ''{1,2}'') USING %I', kind, leaves, am);
	EXECUTE format('CREATE %s TABLE w.child (id int PRIMARY KEY, t int REFERENCES w.t ON DELETE CASCADE) USING %I', kind, am);
	INSERT INTO w.t (id, v, n, body, d) SELECT i, 'v' || i, nullif(i % 7, 3), repeat(chr(97 + i % 26), i % 90), -i FROM generate_series(1, 400) i;
	INSERT INTO w.child SELECT i, i FROM generate_series(1, 100) i;
	CREATE UNIQUE INDEX t_nulls ON w.t (n, id) NULLS NOT DISTINCT;
	CREATE INDEX t_multi ON w.t (n DESC NULLS LAST, v) INCLUDE (d);
	CREATE INDEX t_part ON w.t (body) WHERE id % 2 = 0;
	CREATE INDEX t_expr ON w.t (lower(body), (id + d));
	CREATE INDEX t_pattern ON w.t (body text_pattern_ops) WITH (fillfactor = 70, deduplicate_items = off);
	CREATE INDEX t_coll ON w.t (v COLLATE "C");
	CREATE INDEX t_btree ON w.t USING btree (n);
	CREATE INDEX t_hash ON w.t USING hash (id);
	CREATE INDEX t_brin ON w.t USING brin (id);
	CREATE INDEX t_gist ON w.t USING gist (p);
	CREATE INDEX t_gin ON w.t USING gin (a);
	EXECUTE 'CREATE INDEX t_leaves ON w.t (n, d) ' || leaves;
	EXECUTE 'CREATE UNIQUE INDEX t_none ON w.t (d, n) ' || none;
	ALTER TABLE w.t ADD CONSTRAINT t_excl EXCLUDE USING btree (id WITH =);
	ALTER TABLE w.t ADD COLUMN late int CONSTRAINT t_late UNIQUE;
	CREATE INDEX t_far ON w.t (late far.rev, v);
	UPDATE w.t SET late = id WHERE id % 3 = 0;
	DELETE FROM w.t WHERE id % 11 = 0;
END $$;

-- access method, or `ours` if it says btree and has a storage
CREATE FUNCTION method(index oid, am text) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN am = 'btree' AND EXISTS (SELECT FROM nvm.relations s WHERE s.relation = index AND NOT ended) THEN 'ours' ELSE am END
$$;

-- what was there, to be compared
CREATE TABLE was (name text, am text, persistence text);
CREATE PROCEDURE note() LANGUAGE sql AS $$
	DELETE FROM was;
	INSERT INTO was SELECT relnamespace::regnamespace || '.' || relname, method(c.oid, amname), (SELECT option_value FROM pg_options_to_table(reloptions) WHERE option_name = 'persistence') FROM pg_class c JOIN pg_am a ON a.oid = relam
		WHERE relnamespace IN (to_regnamespace('w'), pg_my_temp_schema()) AND relkind = 'i';
$$;

-- what is wrong with tables and indexes of schema w, and of this session's temporary ones
CREATE FUNCTION problems(becomes text DEFAULT 'OURS', what text DEFAULT 'OURS') RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	want text;
	a bigint;
	b bigint;
BEGIN
	SET LOCAL search_path = public;
	FOR r IN SELECT c.oid, relnamespace::regnamespace || '.' || relname AS name, relkind, relpersistence, method(c.oid, amname) AS amname, reloptions, indrelid, indclass, indisvalid AND indisready AND indislive AS valid,
				(SELECT count(*) FROM nvm.relations s WHERE s.relation = c.oid AND NOT ended) AS storages,
				(SELECT count(*) FROM nvm.relations s WHERE s.relation = c.oid AND NOT ended AND kind = CASE c.relkind WHEN 'i' THEN 'i' ELSE 'r' END
					AND persistence = relpersistence AND (kind = 'r' OR blocks > 0 OR relpersistence = 'u')) AS good
			 FROM pg_class c JOIN pg_am a ON a.oid = relam LEFT JOIN pg_index i ON indexrelid = c.oid
			 WHERE relkind IN ('i', 'r', 'm') AND relnamespace IN (to_regnamespace('w'), pg_my_temp_schema()) ORDER BY 2
	LOOP
		IF r.storages <> (r.amname IN ('nvm', 'nvm_btree', 'ours'))::int OR r.good <> r.storages THEN
			RETURN NEXT format('%s (%s) has %s storages, %s good', r.name, r.amname, r.storages, r.good);
		END IF;
		-- the one page that says so
		IF r.amname = 'ours' AND pg_relation_size(r.oid) <> current_setting('block_size')::int THEN
			RETURN NEXT format('%s has a file of %s bytes', r.name, pg_relation_size(r.oid));
		END IF;
		CONTINUE WHEN r.amname NOT LIKE 'nvm%' AND r.relkind <> 'i';
		IF r.amname LIKE 'nvm%' OR r.amname = 'ours' THEN
			RETURN QUERY SELECT format('check of %s: %s', r.name, f) FROM nvm.check(r.oid::regclass, true) f;
		END IF;
		IF r.relkind = 'i' THEN
			IF NOT r.valid THEN RETURN NEXT r.name || ' is not valid'; END IF;
			IF r.name = 'w.t_far' AND r.indclass[0] <> (SELECT oid FROM pg_opclass WHERE opcname = 'rev' AND opcnamespace = 'far'::regnamespace AND opcmethod = 403) THEN
				RETURN NEXT format('%s has operator classes %s', r.name, r.indclass);
			END IF;
			SELECT persistence INTO want FROM was WHERE name = r.name;
			IF FOUND AND becomes = what AND r.amname = 'nvm_btree' AND want IS DISTINCT FROM (SELECT option_value FROM pg_options_to_table(r.reloptions) WHERE option_name = 'persistence') THEN
				RETURN NEXT format('%s has options %s, persistence was %s', r.name, r.reloptions, want);
			END IF;
			want := NULL;
			SELECT CASE WHEN am = what AND r.indrelid = to_regclass('w.t') AND (r.name <> 'w.t_excl' OR current_setting('nvm.index_identity') = 'btree') THEN becomes ELSE am END INTO want FROM was WHERE name = r.name;
			IF want <> r.amname THEN
				RETURN NEXT format('%s has access method %s, not %s', r.name, r.amname, want);
			END IF;
		END IF;
	END LOOP;
	RETURN QUERY SELECT format('of nobody: %s', s) FROM nvm.relations s WHERE database = current_database() AND relation IS NULL AND NOT ended
		AND (persistence <> 't');
	RETURN QUERY SELECT format('pool: %s', p) FROM nvm.check_pool() p;
	RETURN QUERY SELECT format('%s: dependency on ours', classid::regclass || ' ' || objid::regclass) FROM pg_depend d JOIN pg_class c ON d.objid = c.oid AND d.classid = 'pg_class'::regclass
		JOIN pg_am a ON a.oid = c.relam JOIN pg_opclass o ON d.refclassid = 'pg_opclass'::regclass AND d.refobjid = o.oid
		JOIN pg_am oa ON oa.oid = opcmethod WHERE oa.amname = 'nvm_btree' AND a.amname <> 'nvm_btree';
	IF to_regclass('w.t') IS NOT NULL THEN
		SET LOCAL enable_indexscan = off; SET LOCAL enable_indexonlyscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = on;
		EXECUTE 'SELECT sum(hashtext(t::text)) FROM w.t t WHERE id > 0' INTO a;
		SET LOCAL enable_indexscan = on; SET LOCAL enable_seqscan = off;
		EXECUTE 'SELECT sum(hashtext(t::text)) FROM w.t t WHERE id > 0' INTO b;
		IF a IS DISTINCT FROM b THEN RETURN NEXT format('by table %s, by index %s', a, b); END IF;
		RESET enable_indexscan; RESET enable_seqscan; RESET enable_bitmapscan; RESET enable_indexonlyscan;
	END IF;
END $$;
SQL
	$storages = $node->safe_psql('postgres', 'SELECT count(*) FROM nvm.relations');
	return $node;
}

# How many storages there were at first.
sub storages { return $storages; }

# Run a script whose output is problems.
sub script
{
	my ($name, $sql) = @_;
	my ($ret, $out, $err) = $node->psql('postgres', $sql);

	$err =~ s/^.*cannot reindex exclusion constraint index .* concurrently, skipping\n?//mg if defined $err;
	is($err // '', '', "$name: no error");
	is($out, '', "$name: nothing is wrong");
	return;
}

# The form on a fresh table: alone; with new rows after it; in a transaction,
# rolled back and committed; with savepoints; in the transaction that makes the
# table.
sub walk
{
	my ($form, %how) = @_;
	my $becomes = $how{becomes} // $ours;
	my $what = $how{what} // $ours;
	my $am = $how{am} // 'nvm';
	my $kind = $how{kind} // '';
	my $next = 'FROM generate_series(1, 50) i, (SELECT coalesce(max(id), 0) AS b FROM w.t) m;';
	my $more = $how{more} // "INSERT INTO w.t (id, v, n, body, d) SELECT b + i, 'w' || b + i, i, 'after', -b - i $next";
	my $make = "CALL make('$kind', '$am'); CALL note();";
	my $check = "SELECT problems('$becomes', '$what');";
	my $same = 'SELECT problems();';
	my $drop = 'DROP SCHEMA w CASCADE;';
	my $sql = "SET search_path = w, public; DROP SCHEMA IF EXISTS w CASCADE;\n";

	$sql .= "$make $form; $check $more $check $drop\n";
	my @more = (
		"$make BEGIN; $form; ROLLBACK; $same $more $same BEGIN; $form; $more COMMIT; $check $drop\n",
		"$make BEGIN; SAVEPOINT a; $form; $check ROLLBACK TO a; $same $more $same SAVEPOINT b; $form; RELEASE b; $check COMMIT; $check $drop\n",
		"BEGIN; $make $form; $check $more $check COMMIT; $check $drop\n",
		"BEGIN; $make SAVEPOINT a; $form; $check $more ROLLBACK TO a; $same $more $same SAVEPOINT b; SAVEPOINT c; $form; RELEASE c; ROLLBACK TO b; $same COMMIT; $same $drop\n");
	# in turn, if there is not much time; two for the forms that we know to be hard
	if (!NvmTest::is_long())
	{
		my $n = $form =~ / TYPE |ACCESS METHOD|TABLESPACE/ ? 2 : 1;
		@more = map { $more[ $turn++ % @more ] } 1 .. $n;
	}
	$sql .= join('', @more) unless $how{alone};
	$sql .= "SELECT 'a storage is left' FROM nvm.relations HAVING count(*) <> $storages;\n";
	script($how{name} // ($form . ($kind ? " ($kind)" : '') . ($am ne 'nvm' ? " ($am)" : '')), $sql);
	return;
}

1;

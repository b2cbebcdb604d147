# Copyright (c) 2026, pg_nvm contributors

# What DDL may leave behind in a session, where it fails or is undone, and DDL that
# comes to indexes of nvm tables by other ways than ALTER TABLE of that table:
#
#  1. extension scripts that make nvm tables, and fail
#  2. ALTER FOREIGN TABLE, and nvm tables that inherit from it
#  3. indexes that are dropped in the transaction that changed their access method
#  4. event triggers that make an index anew while it becomes a constraint's

use strict;
use warnings;

use NvmTest;
use NvmWalk;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmWalk::node();
my @files;

END { unlink @files; }

# an index of each table of schema w whose access method is another; findings
$node->safe_psql('postgres', <<'SQL');
CREATE PROCEDURE fails(command text, why text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
	RAISE 'did not fail: %', command;
EXCEPTION WHEN OTHERS THEN
	IF SQLERRM !~ why THEN RAISE; END IF;
END $$;
CREATE FUNCTION wrong(method text DEFAULT 'nvm_btree') RETURNS SETOF text LANGUAGE sql AS $$
	SELECT format('%s is of %s', i.oid::regclass, amname) FROM pg_class i JOIN pg_am a ON a.oid = i.relam
	 WHERE relkind = 'i' AND relnamespace = to_regnamespace('w') AND amname <> method
	UNION ALL SELECT format('%s: %s', t.oid::regclass, f) FROM pg_class t, nvm.check(t.oid::regclass, true) f
	 WHERE relkind = 'r' AND relnamespace = to_regnamespace('w') AND relam = (SELECT oid FROM pg_am WHERE amname = 'nvm')
	UNION ALL SELECT format('pool: %s', f) FROM nvm.check_pool() f
$$;
CREATE FUNCTION members() RETURNS SETOF text LANGUAGE sql AS $$
	SELECT pg_describe_object(classid, objid, objsubid) FROM pg_depend JOIN pg_extension e ON e.oid = refobjid
	 WHERE refclassid = 'pg_extension'::regclass AND deptype = 'e' AND classid <> 'pg_type'::regclass AND extname LIKE 'nvm\_test%' ORDER BY 1
$$;
SQL

# ---- 1. extension scripts
SKIP:
{
	my $dir = $node->config_data('--sharedir') . '/extension';
	skip "$dir cannot be written", 9 unless -w $dir;

	# operator classes of btree that come with it get images, which are nobody's members
	my $script = <<'SQL';
CREATE SCHEMA w;
CREATE OPERATOR CLASS w.rev FOR TYPE int4 USING btree AS OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <, FUNCTION 1 far.cmp(int, int);
CREATE TABLE w.a (id int PRIMARY KEY, v varchar(5)) USING nvm;
CREATE INDEX a_rev ON w.a (id w.rev, v);
INSERT INTO w.a SELECT i, i FROM generate_series(1, 300) i;
ALTER TABLE w.a ALTER v TYPE varchar(9);
CREATE TABLE w.b (id int PRIMARY KEY) USING nvm;
SQL
	my %last = (nvm_test => '', nvm_test_fails => "SELECT 1 / 0;\n", nvm_test_alter => "ALTER TABLE w.a ALTER id TYPE int USING 1 / (id - 200);\n");
	foreach my $name (sort keys %last)
	{
		push @files, "$dir/$name.control", "$dir/$name--1.sql";
		append_to_file("$dir/$name.control", "default_version = '1'\nrelocatable = false\n");
		append_to_file("$dir/$name--1.sql", $script . $last{$name});
	}
	my $after = q{CREATE SCHEMA w; CREATE TABLE w.c (id int PRIMARY KEY, v varchar(5)) USING nvm; CREATE INDEX c_rev ON w.c (id far.rev, v); INSERT INTO w.c SELECT i, i FROM generate_series(1, 300) i;
		ALTER TABLE w.c ALTER v TYPE text; SELECT wrong(); SELECT 'a member: ' || members(); DROP SCHEMA w CASCADE;};
	my $fail = join '', map { "CALL fails('CREATE EXTENSION $_', 'division by zero'); SELECT 'schema w' WHERE to_regnamespace('w') IS NOT NULL; " } grep { $last{$_} } sort keys %last;
	script('a failing extension script, and DDL after it', "$fail $after");
	script('in a transaction', "BEGIN; $fail $after COMMIT; BEGIN; SAVEPOINT a; CREATE EXTENSION nvm_test; SELECT wrong(); ROLLBACK TO a; $after $fail ROLLBACK; $after");
	script('one that does not fail', "$fail CREATE EXTENSION nvm_test; SELECT wrong(); ALTER TABLE w.a ALTER v TYPE text; SELECT wrong(); CALL fails('DROP TABLE w.b', 'because extension nvm_test requires it');");
	is($node->safe_psql('postgres', 'SELECT members()'), <<'LIST' =~ s/\n$//r, 'what its members are');
operator class w.rev for access method btree
operator family w.rev for access method btree
schema w
table w.a
table w.b
LIST
	script('and is dropped', "DROP EXTENSION nvm_test; $after");
}
# ---- 2. ALTER FOREIGN TABLE

my $foreign = q{CREATE SCHEMA w; CREATE FOREIGN DATA WRAPPER none; CREATE SERVER none FOREIGN DATA WRAPPER none;
	CREATE FOREIGN TABLE w.f (id int, v varchar(5), d int) SERVER none; CREATE TABLE w.n (PRIMARY KEY (id), UNIQUE (v) WITH (persistence = leaves)) INHERITS (w.f) USING nvm; CREATE TABLE w.nn (late text) INHERITS (w.n) USING nvm;
	CREATE INDEX n_rev ON w.n (d far.rev, v); CREATE INDEX nn_x ON w.nn (lower(v), (id + 1)) INCLUDE (late) WITH (persistence = none);
	INSERT INTO w.n SELECT i, i, i FROM generate_series(1, 300) i; INSERT INTO w.nn SELECT TABLE_ FROM generate_series(301, 600) i;} =~ s/TABLE_/i, i, i, 'late'/r;
my $kept = q{SELECT 'persistence of ' || relname || ': ' || coalesce(reloptions::text, 'none') FROM pg_class WHERE relname IN ('n_v_key', 'nn_x') AND relnamespace = to_regnamespace('w')
	AND reloptions::text IS DISTINCT FROM CASE relname WHEN 'nn_x' THEN '{persistence=none}' ELSE '{persistence=leaves}' END; SELECT 'class of n_rev' FROM pg_index WHERE indexrelid = 'w.n_rev'::regclass AND pg_get_indexdef(indexrelid) !~ 'd far.rev';};
my $more = 'INSERT INTO w.n (id) SELECT max(id) + 1000 FROM w.n; INSERT INTO w.nn (id) SELECT max(id) + 1000 FROM w.nn;';
my $gone = 'DROP SERVER none CASCADE; DROP FOREIGN DATA WRAPPER none; DROP SCHEMA w CASCADE;';
foreach my $alter ('ALTER v TYPE varchar(9)', 'ALTER v TYPE text, ALTER id TYPE bigint', 'ADD COLUMN x int DEFAULT 7', 'DROP COLUMN d', 'ADD CHECK (id > 0)', 'RENAME v TO vv', 'ALTER d SET DEFAULT 3')
{
	my $see = $alter =~ /DROP/ ? 'SELECT wrong();' : "SELECT wrong(); $kept";
	my $form = "ALTER FOREIGN TABLE w.f $alter; $see";

	script("ALTER FOREIGN TABLE $alter", "$foreign BEGIN; SAVEPOINT a; $form $more ROLLBACK TO a; $more SELECT wrong(); $kept RELEASE a; $form COMMIT; $more $see $gone BEGIN; $foreign $form $more $see COMMIT; $see $gone");
}

# ---- 3. an entry of the relcache that the list of replaced routines leads to
# (a server with assertions overwrites what it frees, and crashes)

my $other = 'SELECT FROM w.other WHERE id = -1; INSERT INTO w.other SELECT max(id) + 1 FROM w.other;';
foreach my $way ('SET ACCESS METHOD heap', 'ALTER v TYPE bigint')
{
	my $make = "CREATE TABLE w.gone (id int PRIMARY KEY, v int) USING nvm; CREATE UNIQUE INDEX gone_v ON w.gone (v);";
	my $alter = "ALTER TABLE w.gone $way;";
	my $drop = 'DROP TABLE w.gone;';

	script("dropped in the transaction: $way", join ' ', 'CREATE SCHEMA w; CREATE TABLE w.other (id int PRIMARY KEY) USING nvm; INSERT INTO w.other VALUES (1);',
		"BEGIN; SAVEPOINT o; SAVEPOINT a; $make $alter $drop RELEASE a; $other ROLLBACK TO o; $other COMMIT;",
		"BEGIN; SAVEPOINT o; SAVEPOINT a; $make SAVEPOINT b; $alter RELEASE b; SAVEPOINT c; $drop RELEASE c; RELEASE a; $other ROLLBACK TO o; $other COMMIT;",
		"BEGIN; SAVEPOINT o; $make SAVEPOINT a; $alter SAVEPOINT b; $drop ROLLBACK TO b; $other ROLLBACK TO a; SELECT FROM w.gone WHERE v = 1; $other ROLLBACK TO o; COMMIT;",
		"BEGIN; $make SAVEPOINT a; $alter $drop RELEASE a; $other SAVEPOINT b; $other ROLLBACK TO b; $other COMMIT;",
		"BEGIN; $make SAVEPOINT a; $alter $drop ROLLBACK TO a; INSERT INTO w.gone VALUES (1, 1); SELECT wrong(); $drop COMMIT;",
		"BEGIN; SAVEPOINT o; $make SAVEPOINT a; $alter $drop RELEASE a; RELEASE o; $other SAVEPOINT b; $other ROLLBACK TO b; COMMIT; SELECT wrong(); DROP SCHEMA w CASCADE;");
}

# ---- 4. event triggers

$node->safe_psql('postgres', <<'SQL');
CREATE FUNCTION again() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
	IF to_regclass('w.u') IS NULL THEN RETURN; END IF;
	ALTER EVENT TRIGGER again DISABLE;
	BEGIN
		ALTER TABLE w.t ALTER v TYPE varchar(20);
		PERFORM 1 / 0;
	EXCEPTION WHEN division_by_zero THEN
	END;
	ALTER TABLE w.t ALTER v TYPE bigint USING v::bigint;
	REINDEX TABLE w.t;
	INSERT INTO w.t VALUES (-1, -1) ON CONFLICT DO NOTHING;
	PERFORM 1 / divisor FROM w.u;
	ALTER EVENT TRIGGER again ENABLE;
END $$;
CREATE EVENT TRIGGER again ON ddl_command_end WHEN tag IN ('ALTER TABLE') EXECUTE FUNCTION again();
SQL
script('an index is made anew when it has become a constraint', <<'SQL');
SET nvm.index_identity = btree; CREATE SCHEMA w; CREATE TABLE w.t (id int NOT NULL, v varchar(10)) USING nvm; INSERT INTO w.t SELECT i, i FROM generate_series(1, 300) i;
CREATE UNIQUE INDEX t_id ON w.t (id); CREATE UNIQUE INDEX t_v ON w.t (v, id); CREATE TABLE w.u (divisor int) USING nvm; INSERT INTO w.u VALUES (0);
CALL fails('ALTER TABLE w.t ADD CONSTRAINT x PRIMARY KEY USING INDEX t_id, ADD CONSTRAINT y UNIQUE USING INDEX t_v', 'division by zero'); SELECT wrong('btree');
UPDATE w.u SET divisor = 1; BEGIN; SAVEPOINT a;
ALTER TABLE w.t ADD CONSTRAINT x PRIMARY KEY USING INDEX t_id, ADD CONSTRAINT y UNIQUE USING INDEX t_v; SELECT wrong('btree'); ROLLBACK TO a; SELECT wrong('btree');
ALTER TABLE w.t ADD CONSTRAINT x PRIMARY KEY USING INDEX t_id, ADD CONSTRAINT y UNIQUE USING INDEX t_v; COMMIT; SELECT wrong('btree');
SELECT 'constraints' WHERE 2 <> (SELECT count(*) FROM pg_constraint JOIN pg_class c ON c.oid = conindid WHERE conname IN ('x', 'y') AND conname = relname AND relam = (SELECT oid FROM pg_am WHERE amname = 'btree') AND EXISTS (SELECT FROM nvm.relations r WHERE r.relation = c.oid AND NOT r.ended));
DROP EVENT TRIGGER again; DROP SCHEMA w CASCADE;
SQL

done_testing();

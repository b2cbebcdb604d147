# Copyright (c) 2026, pg_nvm contributors

# Functions and tables of commands are labels (src/command/README.md): who may set them, what
# is refused and why, what inspection says; they stay over CREATE OR REPLACE and RENAME, go
# with their objects, and pg_dump brings them back.  Other sessions see a change at once.  A
# table that does not keep what the label says is shared, and the view says why.

use strict;
use warnings;

use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = NvmTest->start_new('labels', sql => <<SQL);
CREATE TABLE stock (w int, i int, n int NOT NULL, v varchar(10), PRIMARY KEY (w, i)) USING nvm_cmdlog;
CREATE TABLE usual (w int PRIMARY KEY);
CREATE FUNCTION take(w int, i int, k int) RETURNS int LANGUAGE sql AS 'SELECT w';
CREATE FUNCTION many(ws int[], OUT x int, "Odd name" text) LANGUAGE plpgsql AS 'BEGIN x := 1; END';
CREATE FUNCTION steady(w int) RETURNS int STABLE LANGUAGE sql AS 'SELECT w';
CREATE FUNCTION shapes(p point) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION any_one(a anyelement) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION fires() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN new; END';
CREATE FUNCTION worker(w int) RETURNS int PARALLEL SAFE LANGUAGE sql AS 'SELECT w';
CREATE FUNCTION teller(w int) RETURNS void LANGUAGE plpgsql AS 'DECLARE x text; BEGIN GET DIAGNOSTICS x = Pg_Context; END';
CREATE PROCEDURE does(w int) LANGUAGE plpgsql AS 'BEGIN NULL; END';
CREATE AGGREGATE total(int) (SFUNC = int4pl, STYPE = int);
CREATE ROLE somebody;
GRANT USAGE ON SCHEMA nvm TO somebody;
SQL

sub sql { return $node->safe_psql('postgres', $_[0]); }

my $tables = q{SELECT relation, "column", state, why FROM nvm.partitioned_tables ORDER BY relation::text};
my $commands = q{SELECT function, lanes, state, problem FROM nvm.commands ORDER BY function::text};

# ---- functions

is(sql($commands), '', 'none at first');
sql(q{SELECT nvm.register_command('take(int,int,int)', '{w}')});
is(sql($commands), 'take(integer,integer,integer)|{w}|shadow|', 'a function is registered');
sql(q{SELECT nvm.register_command('many(int[],text)', '{$1,"Odd name"}'); SELECT nvm.register_command('does(int)', 'all')});
is(sql($commands), <<'END' =~ s/\n\z//r, 'by number, by quoted name, an array, a procedure with all lanes');
does(integer)|all|shadow|
many(integer[],text)|{$1,"Odd name"}|shadow|
take(integer,integer,integer)|{w}|shadow|
END
is(sql(q{SELECT provider, objtype, objname, label FROM pg_seclabels WHERE provider = 'nvm' ORDER BY 3}), <<'END' =~ s/\n\z//r, 'they are security labels');
nvm|procedure|does(IN w integer)|command lanes=all
nvm|function|many(ws integer[], OUT x integer, "Odd name" text)|command lanes={$1,"Odd name"}
nvm|function|take(w integer, i integer, k integer)|command lanes={w}
END

foreach my $case (
	['take(int,int,int)', '{x}', qr/cannot be registered\nDETAIL:  Because it has no argument "x"/, 'no such argument'],
	['take(int,int,int)', '{$4}', qr/it has no argument "\$4"/, 'no such number'],
	['take(int,int,int)', '{}', qr/invalid security label "command lanes=\{\}"/, 'no lane'],
	['take(int,int,int)', 'w', qr/invalid security label "command lanes=w"/, 'no list'],
	['take(int,int,int)', '{w,,i}', qr/invalid security label/, 'a list with a hole'],
	['take(int,int,int)', '{' . join(',', ('w') x 17) . '}', qr/at most 16 arguments/, 'too many arguments'],
	['shapes(point)', '{p}', qr/values of type point of argument "p" cannot be hashed/, 'a type that cannot be hashed'],
	['any_one(anyelement)', '{a}', qr/values of type anyelement of argument "a" cannot be hashed/, 'a polymorphic type'],
	['steady(int)', '{w}', qr/is not VOLATILE.*HINT:  ALTER FUNCTION steady\(integer\) VOLATILE/s, 'STABLE'],
	['worker(int)', '{w}', qr/it is PARALLEL SAFE/, 'PARALLEL SAFE'],
	['teller(int)', '{w}', qr/its text has PG_CONTEXT, which says who has called it/, 'one that asks who has called it'],
	['fires()', 'all', qr/is a trigger function/, 'a trigger function'],
	['total(int)', 'all', qr/is an aggregate or window function/, 'an aggregate'],
	['now()', 'all', qr/is built in/, 'a built-in function'])
{
	my ($function, $lanes, $message, $name) = @$case;
	$node->fails_with("SELECT nvm.register_command('$function', '$lanes')", $message, "refused: $name");
}
$node->fails_with(q{SECURITY LABEL FOR nvm ON FUNCTION take(int,int,int) IS 'secret'}, qr/invalid security label "secret" of provider nvm for a function/, 'a label that is none');
$node->fails_with(q{SECURITY LABEL FOR nvm ON TABLE stock IS 'partition'}, qr/are for functions, procedures and columns/, 'a label of a table');
$node->fails_with(q{SECURITY LABEL FOR nvm ON SCHEMA public IS 'partition'}, qr/are for functions, procedures and columns/, 'a label of a schema');
$node->fails_with(q{SET ROLE somebody; SELECT nvm.register_command('take(int,int,int)', '{i}')}, qr/permission denied for function register_command/, 'not by anybody');
$node->fails_with(q{SET ROLE somebody; SELECT nvm.unregister_command('take(int,int,int)')}, qr/must be owner of function (?:public\.)?take/, 'nor taken back');
sql(q{CREATE FUNCTION own(w int) RETURNS int LANGUAGE sql AS 'SELECT w'; ALTER FUNCTION own OWNER TO somebody});
$node->fails_with(q{SET ROLE somebody; SECURITY LABEL FOR nvm ON FUNCTION own(int) IS 'command lanes=all'}, qr/permission denied to register functions/, 'nor of his own, by its label');
$node->fails_with(q{CREATE FUNCTION pg_temp.g(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; SECURITY LABEL FOR nvm ON FUNCTION pg_temp.g(int) IS 'command lanes=all'},
	qr/a function in a temporary schema cannot be registered/, 'nor a temporary one');
sql(q{GRANT EXECUTE ON FUNCTION nvm.register_command(regprocedure, text) TO somebody});
sql(q{SET ROLE somebody; SELECT nvm.register_command('own(int)', '{w}')});
$node->fails_with(q{SET ROLE somebody; SELECT nvm.register_command('take(int,int,int)', '{i}')}, qr/must be owner of function (?:public\.)?take/, 'who may register, his own');
sql(q{REVOKE EXECUTE ON FUNCTION nvm.register_command(regprocedure, text) FROM somebody; DROP FUNCTION own});
# two that differ by the modes of their arguments, and one that ends its transaction
sql(q{CREATE PROCEDURE po(a int, OUT b int) LANGUAGE plpgsql AS 'BEGIN b := 1; END'; CREATE PROCEDURE po(OUT b int) LANGUAGE plpgsql AS 'BEGIN b := 1; END';
	SELECT nvm.register_command(oid, '{a}') FROM pg_proc WHERE proname = 'po' AND pronargs = 1 AND 'i' = ANY (proargmodes);
	SELECT nvm.unregister_command(oid) FROM pg_proc WHERE proname = 'po' AND pronargs = 1 AND 'i' = ANY (proargmodes); DROP PROCEDURE po(int, OUT int); DROP PROCEDURE po(OUT int)});
sql(q{CREATE PROCEDURE ends(w int) LANGUAGE plpgsql AS 'BEGIN COMMIT; END'; SECURITY LABEL FOR nvm ON PROCEDURE ends(int) IS 'command lanes={nosuch}'});
is($node->psql('postgres', 'CALL ends(1)'), 0, 'an unsuitable procedure runs as it always did');
sql(q{DROP PROCEDURE ends});
$node->fails_with(q{SET ROLE somebody; SELECT * FROM nvm.commands}, qr/permission denied for view commands/, 'nor seen');
$node->fails_with(q{SET ROLE somebody; SELECT nvm.reset_commands()}, qr/permission denied for function reset_commands/, 'nor reset');
is(sql(q{SELECT lanes FROM nvm.commands WHERE function = 'take(int,int,int)'::regprocedure}), '{w}', 'what failed changed nothing');
my ($ret, $out, $err) = $node->psql('postgres', q{CREATE FUNCTION c_one(int) RETURNS int AS 'int4abs' LANGUAGE internal; SELECT nvm.register_command('c_one(int)', '{$1}')});
like($err, qr/NOTICE:  what function c_one\(integer\) does beside its queries is not looked at/, 'of another language: a notice');
sql('DROP FUNCTION c_one(int)');

# ---- another session sees a change at once, also one that is looked at in the middle

my $other = $node->session;
my $lanes_of = q{SELECT string_agg(mode, ',' ORDER BY mode) FROM nvm.lanes WHERE target = 'lane'};
my $one = q{BEGIN; SELECT take(1, 1, 1); } . $lanes_of . q{; COMMIT};
is($other->sql($one), "1\nExclusiveLock", 'a call takes a lane');
sql(q{SELECT nvm.unregister_command('take(int,int,int)')});
is($other->sql($one), "1\n", 'none after it was unregistered');
$node->fails_with(q{SELECT nvm.unregister_command('take(int,int,int)')}, qr/function take\(integer,integer,integer\) is not registered/, 'twice');
sql(q{SELECT nvm.register_command('take(int,int,int)', '{w,i}')});
is($other->sql(q{BEGIN; SELECT take(1, 2, 1); } . $lanes_of . q{; COMMIT}), "1\nExclusiveLock,ExclusiveLock", 'two as it was registered again');
$other->sql('PREPARE p AS SELECT take(1, 1, 1)');
is($other->sql('BEGIN; EXECUTE p; ' . $lanes_of . '; COMMIT'), "1\nExclusiveLock", 'a prepared statement');
sql(q{SELECT nvm.unregister_command('take(int,int,int)')});
is($other->sql('BEGIN; EXECUTE p; ' . $lanes_of . '; COMMIT'), "1\n", 'a prepared statement, unregistered');
sql(q{SELECT nvm.register_command('take(int,int,int)', '{w}')});
is($other->sql('BEGIN; EXECUTE p; ' . $lanes_of . '; COMMIT'), "1\nExclusiveLock", 'and registered: a SQL function is not inlined any more');
is($other->sql(q{BEGIN; SELECT nvm.unregister_command('take(int,int,int)'); SELECT take(1, 1, 1); } . $lanes_of . q{; ROLLBACK}), "\n1\n", 'within the transaction');
is($other->sql($one), "1\nExclusiveLock", 'and not after it was rolled back');

# ---- it stays with the function

sql(q{CREATE OR REPLACE FUNCTION take(w int, i int, k int) RETURNS int LANGUAGE sql AS 'SELECT i'});
sql('ALTER FUNCTION take(int,int,int) RENAME TO took');
like(sql($commands), qr/^took\(integer,integer,integer\)\|\{w\}\|shadow\|$/m, 'CREATE OR REPLACE and RENAME');
sql('ALTER FUNCTION took(int,int,int) STABLE');
like(sql($commands), qr/^took\(integer,integer,integer\)\|\{w\}\|unsuitable\|it is not VOLATILE/m, 'what it does not keep any more is said');
sql('ALTER FUNCTION took(int,int,int) VOLATILE');
like(sql($commands), qr/^took\(integer,integer,integer\)\|\{w\}\|shadow\|$/m, 'and is not when it does');
sql('DROP PROCEDURE does(int)');
unlike(sql($commands), qr/does/, 'it goes with its object');

# ---- tables

is(sql($tables), 'stock||shared|', 'a table is shared at first');
sql(q{SELECT nvm.partition_table('stock', 'w')});
is(sql($tables), 'stock|w|partitioned|', 'partitioned');
sql(q{SELECT nvm.partition_table('stock', 'i')});
is(sql($tables), 'stock|i|partitioned|', 'by another column');
sql(q{SELECT nvm.partition_table('stock', 'w')});
foreach my $case (
	['stock', 'v', qr/column "v" is not NOT NULL/, 'a column with NULLs'],
	['stock', 'n', qr/unique index "stock_pkey" does not have column "n" as a key/, 'not in the primary key'],
	['stock', 'nothing', qr/column "nothing" of table "stock" does not exist/, 'no column'],
	['pg_class_oid_index', 'oid', qr/is not a table that has rows of its own/, 'an index'])
{
	my ($table, $column, $message, $name) = @$case;
	$node->fails_with("SELECT nvm.partition_table('$table', '$column')", $message, "refused: $name");
}
$node->fails_with(q{SET ROLE somebody; SELECT nvm.partition_table('stock', 'w')}, qr/must be owner of table stock/, 'not by anybody');
$node->fails_with(q{SECURITY LABEL FOR nvm ON COLUMN stock.w IS 'other'}, qr/invalid security label "other" of provider nvm for a column/, 'a label that is none');
($ret, $out, $err) = $node->psql('postgres', q{SELECT nvm.partition_table('usual', 'w')});
like($err, qr/NOTICE:  table "usual" is not a permanent table of access method nvm_cmdlog/, 'of another method: a notice');
is(sql($tables), "stock|w|partitioned|\nusual|w|shared|it is not a permanent table of access method nvm_cmdlog", 'the view says so');
sql(q{ALTER TABLE usual SET ACCESS METHOD nvm_cmdlog});
like(sql($tables), qr/^usual\|w\|partitioned\|$/m, 'and not when it is');
sql(q{SELECT nvm.unpartition_table('usual')});
like(sql($tables), qr/^usual\|\|shared\|$/m, 'taken back');
$node->fails_with(q{SELECT nvm.unpartition_table('usual')}, qr/table "usual" is not partitioned/, 'twice');

sql('ALTER TABLE stock RENAME COLUMN w TO warehouse');
like(sql($tables), qr/^stock\|warehouse\|partitioned\|$/m, 'RENAME of the column');
foreach my $case (
	['CREATE UNIQUE INDEX bad ON stock (n, i)', 'DROP INDEX bad', 'unique index "bad" does not have column "warehouse" as a key, compared by its type\'s equality'],
	['CREATE UNIQUE INDEX bad ON stock ((warehouse + 1))', 'DROP INDEX bad', 'unique index "bad" does not have column "warehouse" as a key, compared by its type\'s equality'],
	['CREATE UNIQUE INDEX bad ON stock (i) INCLUDE (warehouse)', 'DROP INDEX bad', 'unique index "bad" does not have column "warehouse" as a key, compared by its type\'s equality'],
	['ALTER TABLE stock DROP CONSTRAINT stock_pkey; ALTER TABLE stock ALTER warehouse DROP NOT NULL', 'ALTER TABLE stock ADD PRIMARY KEY (warehouse, i)', 'column "warehouse" is not NOT NULL'])
{
	my ($break, $mend, $why) = @$case;
	sql($break);
	like(sql($tables), qr/^stock\|warehouse\|shared\|\Q$why\E$/m, "shared: $break");
	sql($mend);
	like(sql($tables), qr/^stock\|warehouse\|partitioned\|$/m, 'and partitioned again');
}

# an index that is not valid counts: it may compare rows already
sql(q{INSERT INTO stock VALUES (1, 1, 5, 'a'), (2, 1, 5, 'b')});
$node->psql('postgres', 'CREATE UNIQUE INDEX CONCURRENTLY bad ON stock (n)');
is(sql(q{SELECT indisvalid FROM pg_index WHERE indexrelid = 'bad'::regclass}), 'f', 'an index that could not be built');
like(sql($tables), qr/^stock\|warehouse\|shared\|unique index "bad"/m, 'makes the table shared');
sql('DROP INDEX bad');

# what an exclusion constraint compares is not looked into
sql('SET nvm.default_index_method = btree; ALTER TABLE stock ADD CONSTRAINT apart EXCLUDE USING btree (i WITH =, warehouse WITH =)');
like(sql($tables), qr/^stock\|warehouse\|shared\|exclusion constraint "apart" may compare rows of several lanes$/m, 'an exclusion constraint makes it shared');
sql('ALTER TABLE stock DROP CONSTRAINT apart');

# nobody may use the table meanwhile
$other->sql('BEGIN; SELECT count(*) FROM stock');
foreach my $label ("'partition'", 'NULL')
{
	$node->fails_with("SET lock_timeout = '100ms'; SECURITY LABEL FOR nvm ON COLUMN stock.warehouse IS $label", qr/canceling statement due to lock timeout/, "a label waits for those who read the table: $label");
}
$other->sql('COMMIT');

# a type whose equality is another one in the index
sql(q{CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
	CREATE TABLE words (s text NOT NULL) USING nvm_cmdlog; SELECT nvm.partition_table('words', 's')});
like(sql($tables), qr/^words\|s\|partitioned\|$/m, 'a column of text');
sql(q{CREATE UNIQUE INDEX words_s ON words (s COLLATE loose)});
like(sql($tables), qr/^words\|s\|shared\|unique index "words_s"/m, 'an index with another equality');
sql('DROP TABLE words');

# ---- dump and restore

sql(q{CREATE DATABASE copy});
command_ok([ 'pg_dump', '-d', $node->connstr('postgres'), '-Fc', '-f', $node->basedir . '/dump' ], 'pg_dump');
command_ok([ 'pg_restore', '-d', $node->connstr('copy'), $node->basedir . '/dump' ], 'pg_restore');
foreach my $view ($tables, $commands)
{
	is($node->safe_psql('copy', $view), sql($view), 'labels are back');
}

# ---- without the extension a label says nothing

is(sql(q{CREATE DATABASE bare}) . $node->safe_psql('bare', <<SQL), '1', 'a call without the extension');
CREATE FUNCTION f(w int) RETURNS int LANGUAGE sql AS 'SELECT w';
SECURITY LABEL FOR nvm ON FUNCTION f(int) IS 'command lanes={w}';
SELECT f(1);
SQL

$other->drop;
done_testing();

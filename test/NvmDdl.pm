# Copyright (c) 2026, pg_nvm contributors

=pod

=head1 NAME

NvmDdl - DDL of every kind, in the midst of which a server may die

=head1 DESCRIPTION

For each kind the state of everything is known as it is without it and as it is
after it, both after a crash: what relations there are, where and of what kind,
what they hold by table and by index, which databases there are, what the
checks find, and how much of the pool is in use.  A crash in the middle must
leave one of the two, whole, and not a unit of the pool more.

=cut

package NvmDdl;

use strict;
use warnings;

use NvmCrash;
use NvmTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $large = "(SELECT string_agg(md5(j::text), '') FROM generate_series(1, 1500) j)";
my $create = <<SQL;
CREATE TABLE n1 (id int PRIMARY KEY, b text) USING nvm;
INSERT INTO n1 SELECT i, repeat('n', i % 300) FROM generate_series(1, 400) i;
INSERT INTO n1 SELECT 1000 + i, $large FROM generate_series(1, 2) i;
CREATE INDEX n1_b ON n1 (left(b, 20));
SQL
my $much = <<SQL;
$create
TRUNCATE d;
INSERT INTO d SELECT i, -i, $large FROM generate_series(1, 3) i;
ALTER TABLE e ALTER v TYPE bigint;
SAVEPOINT a;
DROP TABLE n1, e;
ROLLBACK TO a;
SAVEPOINT b;
ALTER TABLE d SET TABLESPACE crash_space;
RELEASE b;
DROP MATERIALIZED VIEW dm;
ALTER TABLE hd SET ACCESS METHOD nvm;
SQL

# name => statements.  Each is one transaction, or one command that is not in a
# block.  grows: it may leave what storages had been extended by.  quiet: it
# comes to no fence of ours.  again: what to do with a database that can only be
# dropped.  conf: settings of the server.
our @kinds = (
	{ name => 'create', sql => "BEGIN;\n${create}COMMIT;\n" },
	{ name => 'ctas', sql => "CREATE TABLE n2 USING nvm AS SELECT * FROM d;\n" },
	{ name => 'create-matview', sql => "CREATE MATERIALIZED VIEW n3 USING nvm AS SELECT * FROM d;\n" },
	{ name => 'drop', sql => "DROP TABLE d CASCADE;\n" },
	{ name => 'truncate', sql => "TRUNCATE d;\n" },
	{ name => 'rewrite', sql => "ALTER TABLE d ADD c int NOT NULL DEFAULT 7 + (random() * 0)::int;\n" },
	{ name => 'tablespace', sql => "ALTER TABLE d SET TABLESPACE crash_space;\n" },
	{ name => 'to-heap', sql => "ALTER TABLE d SET ACCESS METHOD heap;\n" },
	{ name => 'to-nvm', sql => "ALTER TABLE hd SET ACCESS METHOD nvm;\n" },
	{ name => 'unlogged', sql => "ALTER TABLE d SET UNLOGGED;\n" },
	{ name => 'logged', sql => "ALTER TABLE u SET LOGGED;\n" },
	{ name => 'cluster', sql => "CLUSTER d USING d_v;\n" },
	{ name => 'vacuum-full', sql => "VACUUM FULL d;\n" },
	{ name => 'refresh', sql => "REFRESH MATERIALIZED VIEW dm;\n" },
	{ name => 'refresh-concurrently', sql => "REFRESH MATERIALIZED VIEW CONCURRENTLY dm;\n", grows => 1 },
	{ name => 'reindex', sql => "REINDEX TABLE d;\n", quiet => 1 },
	# with wal_level = minimal a crash of PostgreSQL loses the init forks of the new
	# database's UNLOGGED indexes, those of heap tables too
	{ name => 'create-database', sql => "CREATE DATABASE nd TEMPLATE tpl;\n", conf => { wal_level => 'replica' } },
	{ name => 'create-database-files', sql => "CREATE DATABASE nd TEMPLATE tpl STRATEGY file_copy;\n" },
	{ name => 'move-database', sql => "ALTER DATABASE tpl SET TABLESPACE crash_space;\n", quiet => 1 },
	{ name => 'drop-database', sql => "DROP DATABASE tpl;\n", again => "DROP DATABASE tpl;\n" },
	{ name => 'drop-owned', sql => "DROP OWNED BY ddl_owner;\n" },
	{ name => 'drop-extension', sql => "\\connect tpl\nDROP EXTENSION pg_nvm CASCADE;\n" },
	{ name => 'attach-partition', sql => "ALTER TABLE pt ATTACH PARTITION pn FOR VALUES FROM (1000) TO (2000);\n", quiet => 1 },
	{ name => 'detach-partition', sql => "ALTER TABLE pt DETACH PARTITION pt_1;\n", quiet => 1 },
	{ name => 'partition-index', sql => "CREATE INDEX pt_x ON pt (v, id);\n", quiet => 1 },
	{ name => 'partitions', sql => <<'SQL' },
BEGIN;
CREATE TABLE pt_3 PARTITION OF pt FOR VALUES FROM (2000) TO (3000) USING nvm;
UPDATE pt SET id = id + 2000 WHERE id % 3 = 0;
DROP TABLE pt_1;
TRUNCATE pt_2;
INSERT INTO pt_2 SELECT i, -i FROM generate_series(501, 520) i;
ALTER TABLE pt ATTACH PARTITION pn FOR VALUES FROM (1000) TO (2000);
COMMIT;
SQL
	{ name => 'much', sql => "BEGIN;\n${much}COMMIT;\n" },
	{ name => 'much-undone', sql => "BEGIN;\n${much}ROLLBACK;\n" },);

# The same, of indexes.  loose: several transactions, of which each leaves a state
# that is neither the old nor the new.
our @index_kinds = (
	{ name => 'alter-type', sql => "ALTER TABLE vc ALTER v TYPE varchar(20);\n", index => 1 },
	{ name => 'index-tablespace', sql => "ALTER INDEX d_v SET TABLESPACE crash_space;\n", index => 1 },
	{ name => 'drop-index', sql => "DROP INDEX d_v, vc_v_key_2;\n", index => 1 },
	{ name => 'reindex-concurrently', sql => "REINDEX TABLE CONCURRENTLY vc;\n", index => 1, loose => 1 },
	{ name => 'index-concurrently', sql => "CREATE INDEX CONCURRENTLY vc_x ON vc (v, id);\nDROP INDEX CONCURRENTLY d_v;\n", index => 1, loose => 1 },);

sub kind
{
	my ($name) = @_;
	my ($kind) = grep { $_->{name} eq $name } @kinds, @index_kinds;
	return $kind // die "no kind of DDL $name";
}

# ------------------------------------------------------------------ the base

sub fill
{
	my ($node, $method) = @_;
	my $tables = <<SQL;
CREATE SCHEMA ddl_t;
SET search_path = ddl_t, public;
CREATE TABLE d (id int PRIMARY KEY, v int, b text) USING nvm;
CREATE INDEX d_v ON d (v);
INSERT INTO d SELECT i, -i, repeat('d', i % 400) FROM generate_series(1, 600) i;
INSERT INTO d SELECT 1000 + i, -1000 - i, $large FROM generate_series(1, 3) i;
UPDATE d SET b = b || '+' WHERE id % 3 = 0;
DELETE FROM d WHERE id % 5 = 0;
CREATE TABLE vc (id int PRIMARY KEY, v varchar(10) UNIQUE) USING nvm;
INSERT INTO vc SELECT i, 'v' || i FROM generate_series(1, 700) i;
CREATE INDEX vc_v_key_2 ON vc (v DESC);
DELETE FROM vc WHERE id % 7 = 0;
CREATE TABLE e (id int PRIMARY KEY, v int) USING nvm;
INSERT INTO e SELECT i, i FROM generate_series(1, 50) i;
CREATE UNLOGGED TABLE u (id int PRIMARY KEY, b text) USING nvm;
INSERT INTO u SELECT i, repeat('u', i) FROM generate_series(1, 300) i;
INSERT INTO u VALUES (1000, $large);
CREATE TABLE hd (id int PRIMARY KEY, b text) USING heap;
INSERT INTO hd SELECT i, repeat('h', i) FROM generate_series(1, 300) i;
INSERT INTO hd VALUES (1000, $large);
CREATE TABLE there (id int PRIMARY KEY) USING nvm TABLESPACE crash_space_2;
INSERT INTO there VALUES (1);
CREATE TABLE pt (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE pt_1 PARTITION OF pt FOR VALUES FROM (0) TO (500) USING nvm;
CREATE TABLE pt_2 PARTITION OF pt FOR VALUES FROM (500) TO (1000) USING nvm;
CREATE INDEX pt_v ON pt (v);
INSERT INTO pt SELECT i, -i FROM generate_series(1, 900) i;
CREATE TABLE pn (id int NOT NULL, v int) USING nvm;
INSERT INTO pn SELECT i, -i FROM generate_series(1000, 1500) i;
CREATE MATERIALIZED VIEW dm USING nvm AS SELECT id, v FROM d WHERE id <= 300;
CREATE UNIQUE INDEX ON dm (id);
UPDATE d SET v = v - 10000 WHERE id < 100;
GRANT ALL ON SCHEMA ddl_t TO ddl_owner;
SET ROLE ddl_owner;
CREATE TABLE ddl_t.o (id int PRIMARY KEY, b text) USING nvm;
INSERT INTO ddl_t.o SELECT i, repeat('o', i) FROM generate_series(1, 300) i;
RESET ROLE;
SQL

	# of indexes that are ours: say they btree?
	if ($method ne 'btree')
	{
		$node->safe_psql('postgres', "ALTER SYSTEM SET nvm.index_identity = " . ($method eq 'identity' ? 'btree' : 'nvm_btree'));
		$method = 'nvm_btree';
	}
	$node->safe_psql('postgres', "ALTER SYSTEM SET nvm.default_index_method = '$method'");
	$node->safe_psql('postgres', 'SELECT pg_reload_conf()');
	$node->safe_psql('postgres', <<SQL);
SET nvm.default_index_method = '$method';
DROP TABLE filler, acct, ix, kv, large, ack, hist, ddl;
SET allow_in_place_tablespaces = on;
CREATE TABLESPACE crash_space_2 LOCATION '';
CREATE ROLE ddl_owner;
CREATE FUNCTION has_storage(oid) RETURNS boolean LANGUAGE plpgsql AS
\$\$
BEGIN
	RETURN EXISTS (SELECT FROM nvm.relations WHERE relation = \$1);
END \$\$;
-- what there is, whatever its state
CREATE FUNCTION ddl_state() RETURNS SETOF text LANGUAGE plpgsql AS
\$\$
DECLARE
	r record;
	t text;
	i text;
BEGIN
	FOR r IN SELECT c.oid::regclass AS rel, relkind, relpersistence, relispartition, amname, coalesce(spcname, 'default') AS spc,
				(SELECT string_agg(format_type(atttypid, atttypmod), ' ' ORDER BY attnum) FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0) AS cols
			 FROM pg_class c LEFT JOIN pg_am a ON a.oid = relam LEFT JOIN pg_tablespace s ON s.oid = reltablespace
			 WHERE relkind IN ('r', 'm') AND relnamespace = to_regnamespace('ddl_t') ORDER BY relname
	LOOP
		SET LOCAL enable_indexscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = on;
		EXECUTE format('SELECT count(*) || ''/'' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %s t WHERE id > 0', r.rel) INTO t;
		SET LOCAL enable_indexscan = on; SET LOCAL enable_seqscan = off;
		EXECUTE format('SELECT count(*) || ''/'' || coalesce(sum(hashtextextended(t::text, 0)), 0) FROM %s t WHERE id > 0', r.rel) INTO i;
		RETURN NEXT current_database() || ': ' || r.rel || ' ' || concat_ws(' ', r.relkind, r.relpersistence, r.relispartition, r.amname, r.spc, r.cols) || ' ' || t;
		IF t <> i THEN
			RETURN NEXT 'problem: by index ' || i;
		END IF;
	END LOOP;
	RETURN QUERY SELECT concat_ws(' ', current_database() || ':', c.oid::regclass, amname, coalesce(spcname, 'default'), indisvalid, indisready,
			CASE WHEN amname = 'btree' AND to_regnamespace('nvm') IS NOT NULL AND indisready THEN has_storage(c.oid) END)
		FROM pg_class c JOIN pg_am a ON a.oid = relam JOIN pg_index i ON indexrelid = c.oid LEFT JOIN pg_tablespace s ON s.oid = reltablespace
		WHERE relnamespace = to_regnamespace('ddl_t') ORDER BY relname;
	IF to_regnamespace('nvm') IS NULL THEN
		RETURN;
	END IF;
	FOR r IN SELECT c.oid::regclass AS rel, coalesce(indisready AND indislive, true) AS ready, coalesce(indisvalid, true) AS valid
			 FROM pg_class c JOIN pg_am a ON a.oid = relam LEFT JOIN pg_index i ON indexrelid = c.oid
			 WHERE (a.amname IN ('nvm', 'nvm_btree') AND relkind IN ('r', 'm', 'i')) OR (a.amname = 'btree' AND has_storage(c.oid))
	LOOP
		IF r.valid THEN
			RETURN QUERY SELECT 'problem: nvm.check ' || r.rel || ': ' || f::text FROM nvm.check(r.rel, true) f;
		END IF;
		RETURN QUERY SELECT 'problem: storages of ' || r.rel || ': ' || count(*)
			FROM nvm.relations WHERE relation = r.rel HAVING count(*) > 1 OR count(*) < r.ready::int;
	END LOOP;
	RETURN QUERY SELECT 'problem: nvm.check_pool: ' || f::text FROM nvm.check_pool() f;
	RETURN QUERY SELECT 'problem: storage of nobody: ' || s::text FROM nvm.relations s
		WHERE relation IS NULL AND coalesce(database, current_database()) = current_database();
END \$\$;
$tables
CREATE DATABASE tpl TEMPLATE postgres;
SQL
	$node->safe_psql('tpl', 'DROP TABLE ddl_t.hd; VACUUM (ANALYZE)');
	return;
}

# ------------------------------------------------------------------- states

# What there is on a running server, once the collector has done its work:
# problems, state, used bytes.
sub state
{
	my ($rig) = @_;
	my (@problems, @state, $used);
	# a chunk's map, a 1024th of it, stays when the pool has grown
	my $script = "CALL wait_for_collector();\n"
	  . "SELECT 'database ' || datname || ' ' || spcname || CASE datconnlimit WHEN -2 THEN ' invalid' ELSE '' END "
	  . "FROM pg_database d JOIN pg_tablespace s ON s.oid = dattablespace ORDER BY datname;\n"
	  . "SELECT 'used ' || used - size / 1024 FROM nvm.pool;\nSELECT ddl_state();\n";
	my ($out, $status, $err) = $rig->psql($script);

	push @problems, "state: $err" if $status != 0;
	foreach my $db ($out =~ /^database (\S+) \S+$/mg)
	{
		next if $db eq 'postgres';
		my ($more, $s, $e) = $rig->psql("\\connect $db\nSELECT public.ddl_state();\n");
		push @problems, "state of $db: $e" if $s != 0;
		$out .= $more;
	}
	foreach my $line (split /\n/, $out)
	{
		if ($line =~ /^problem: (.*)/) { push @problems, $1; }
		elsif ($line =~ /^used (\d+)$/) { $used = $1; }
		else { push @state, $line; }
	}
	my $log = $rig->log_since_start;
	while ($log =~ /^(.*(?:PANIC|TRAP|terminated by signal|ERROR:  |WARNING:  ).*)$/mg)
	{
		my $line = $1;
		push @problems, "the server's log has: $line"
		  unless $line =~ /does not outlive a reboot|one copy of the header of NVM pool .* is rewritten|(?:could not open directory|some useless files may be left behind in old database directory) "(?:base|pg_tblspc)/;
	}
	return (\@problems, join("\n", @state) . "\n", $used // 0);
}

=pod

=over

=item NvmDdl::run(RIG, KIND, FAILPOINT, sub { MEANWHILE })

Start a stopped server and run the DDL of a kind with the failpoint set.
Returns what psql said; the server is down if the failpoint was a crash.

=cut

sub run
{
	my ($rig, $kind, $failpoint, $meanwhile) = @_;
	my $set = $failpoint ? "SET nvm.failpoint = '$failpoint';\n" : '';
	my $sql = $kind->{sql};

	$rig->start(restart_after_crash => 'off') or die 'no start: ' . $rig->log_since_start;
	# a session may begin with \connect
	$sql =~ s/^(\\connect.*\n)?/($1 \/\/ '') . $set/e;
	$sql = "SET search_path = ddl_t, public;\n$sql" unless $sql =~ /^\\connect/;
	if ($meanwhile)
	{
		my $session = $rig->session(sql => $sql);
		$meanwhile->();
		$rig->end_session($session);
		return;
	}
	my ($out, $status, $err) = $rig->psql("SET client_min_messages = warning;\n$sql");
	return ($status, $err);
}

=pod

=item NvmDdl::learn(BASE)

The states without any DDL and after each kind, each after a crash, and which
fences and failpoints it comes to: { none => [...], KIND => { after => [STATE,
USED], reached => { NAME => HITS } } }.  Failures become tests.

=cut

sub learn
{
	my ($base, @names) = @_;
	my (%learned, @jobs);

	foreach my $name ('none', @names)
	{
		my $kind = $name eq 'none' ? { name => 'none', sql => "SELECT 1 \\g /dev/null\n" } : kind($name);
		my $file = NvmTest::pool_base() . "/learned_$$" . "_$name";
		push @jobs, {
			name  => "$name: runs",
			file  => $file,
			kind  => $name,
			code  => sub {
				my $rig = NvmCrash->new($base, conf => $kind->{conf});
				my ($status, $err) = run($rig, $kind, '*:sleep=0');
				my %count;
				my $log = $rig->log_since_start;

				# of the session; others come to some places by themselves
				$count{$2}{$1}++ while $log =~ /failpoint (\S+) hit, pid (\d+)/g;
				my ($pid) = sort { keys %{ $count{$b} } <=> keys %{ $count{$a} } } keys %count;
				$rig->crash;
				return "it fails: $err" if $status != 0;
				$rig->start or return 'no start: ' . $rig->log_since_start;
				my ($problems, $state, $used) = state($rig);
				open(my $fh, '>', $file) or die "$file: $!";
				print $fh "$used\n", map({ "$_ $count{$pid}{$_}\n" } sort keys %{ defined $pid ? $count{$pid} : {} }), "\n$state";
				close $fh;
				return @$problems;
			},
		};
	}
	NvmCrash::run_jobs(@jobs);
	foreach my $job (@jobs)
	{
		my $text = -e $job->{file} ? slurp_file($job->{file}) : "0\n\n";
		unlink $job->{file};
		my ($head, $state) = split /\n\n/, $text, 2;
		my ($used, @reached) = split /\n/, $head;
		$learned{ $job->{kind} } = {
			after   => [ $state, $used ],
			reached => { map { split ' ' } @reached },
		};
	}
	return \%learned;
}

=pod

=item NvmDdl::verify(RIG, KIND, LEARNED)

Problems of a running server after a crash in the middle of the kind.

=back

=cut

sub verify
{
	my ($rig, $kind, $learned) = @_;
	my ($problems, $state, $used) = state($rig);
	my $wrong;

	# a database that can only be dropped again
	if ($kind->{again} && $state =~ / invalid$/m)
	{
		my ($out, $status, $err) = $rig->psql($kind->{again});
		push @$problems, "again: $err" if $status != 0;
		# as it was learned: after a start, before anybody has looked at the
		# indexes of an unlogged table, which then take room
		$rig->crash;
		$rig->start or return (@$problems, 'no start after doing it again: ' . $rig->log_since_start);
		my ($more, $s, $u) = state($rig);
		push @$problems, @$more;
		($state, $used) = ($s, $u);
		push @$problems, 'doing it again had no effect' if $state ne $learned->{ $kind->{name} }{after}[0];
	}
	return @$problems if $kind->{loose};
	foreach my $allowed ($learned->{none}{after}, $learned->{ $kind->{name} }{after})
	{
		next unless $state eq $allowed->[0];
		return @$problems if $used == $allowed->[1] || ($kind->{grows} && $used >= $allowed->[1]);
		$wrong = "$used bytes of the pool are used, not $allowed->[1]";
	}
	return (@$problems, $wrong) if $wrong;
	return (@$problems, 'neither the old nor the new state:', split(/\n/, $state));
}

=pod

=head2 NvmDdl::crash_test(method => METHOD, kinds => [...], kills => N, failures => N, images => N)

Servers die in the midst of each kind: killed at so many of the places that it
comes to, without power at so many, 0 for all; of each loss of power so many
images.  METHOD is btree (in files), nvm_btree, or identity: in the pool, and says btree.  always => [[KIND, NAME]...]: places
at which they die in any case, both ways.

=cut

my ($learned, $base, $images);

sub crash_test
{
	my (%params) = @_;
	my ($kills, $failures, $method) = @params{qw(kills failures method)};
	my @all = @{ $params{kinds} };
	# NVM_CRASH_ONLY=kind/name/hit/kill|power[,...] repeats some
	my $only = $ENV{NVM_CRASH_ONLY};
	my @only = map { [ split m,/, ] } split m/,/, $only // '';
	my %wanted = map { $_->[0] => 1 } @only;
	my $turn = 0;

	note("seed $NvmCrash::seed");
	$images = $params{images};
	$base = NvmCrash::make_base('ddl', fill => sub { fill($_[0], $method) });
	$learned = learn($base, grep { !@only || $wanted{$_} } map { $_->{name} } @all);
	my @work = @only ? @only : map {
		(_choose($_, 'kill', $kills),
			# half of the kinds lose power too
			$failures == 0 || $turn++ % 2 == NvmCrash::random('turn', 2) ? _choose($_, 'power', $failures) : ())
	} @all;
	push @work, map { my ($kind, $name) = @$_; map { [ $kind, $name, 1 + NvmCrash::random("hit/$kind/$name/$_", $learned->{$kind}{reached}{$name} // 1), $_ ] } 'kill', 'power' }
	  @{ $params{always} // [] }
	  unless @only;

	foreach my $kind (@only ? () : map { $_->{name} } @all)
	{
		my ($before, $after) = map { $learned->{$_}{after}[0] } 'none', $kind;
		if ($kind =~ /^(?:cluster|vacuum-full|reindex|reindex-concurrently|much-undone)$/) { is($after, $before, "$kind: changes nothing that is seen"); }
		else { isnt($after, $before, "$kind: has an effect"); }
		# COMMIT of any DDL comes to mode-ddl-decided, where nothing is written
		my $n = grep { $_ ne 'mode-ddl-decided' } keys %{ $learned->{$kind}{reached} };
		if ($method eq 'btree' && kind($kind)->{quiet}) { is($n, 0, "$kind: comes to no fence"); }
		elsif (!kind($kind)->{quiet} || $kind eq 'reindex') { cmp_ok($n, '>', 3, "$kind: comes to fences and failpoints"); }
	}

	NvmCrash::run_jobs(map { my $w = $_;
			{   name => "$w->[0], $w->[3] at hit $w->[2] of $w->[1]"
				  . " (NVM_CRASH_SEED=$NvmCrash::seed NVM_CRASH_ONLY=" . join('/', @$w) . ')',
				code => sub { return _die_at(@$w); },
			} } @work);
	return;
}

# Places of a kind: the order is the seed's, and of each place one hit.
sub _choose
{
	my ($kind, $how, $n) = @_;
	my $reached = $learned->{ $kind->{name} }{reached};
	my @names = sort { NvmCrash::random("$kind->{name}/$how/$a", 1 << 30) <=> NvmCrash::random("$kind->{name}/$how/$b", 1 << 30) }
	  sort keys %$reached;

	# where there are none, at any moment
	return map { [ $kind->{name}, 'moment', $_, $how ] } 1 .. ($n || 5) if !@names && $how eq 'kill';
	splice(@names, $n) if $n && @names > $n;
	return map { [ $kind->{name}, $_, 1 + NvmCrash::random("hit/$kind->{name}/$how/$_", $reached->{$_}), $how ] } @names;
}

sub _die_at
{
	my ($name, $place, $hit, $how) = @_;
	my $kind = kind($name);
	my $power = $how eq 'power';
	my $rig = NvmCrash->new($base, simulate => $power, conf => $kind->{conf});
	my @problems;

	if ($place eq 'moment')
	{
		my $ms = NvmCrash::random("moment/$name/$hit", 400);
		run($rig, $kind, '', sub { select(undef, undef, undef, $ms / 1000); $rig->crash; });
	}
	else
	{
		my $last = 4;

		# how often a place is reached may depend on what background workers did, as
		# in NvmCrashScenarios::run_until_crash
		while (1)
		{
			run($rig, $kind, "$place:crash:$hit");
			last if $rig->wait_dead(15);
			return 'test: it did not crash' if $hit <= 1 && --$last == 0;
			$rig = NvmCrash->new($base, simulate => $power, conf => $kind->{conf});
			$hit = int($hit / 2) || 1;
		}
	}
	if (!$power)
	{
		$rig->start or return 'no start: ' . $rig->log_since_start;
		push @problems, verify($rig, $kind, $learned);
		# what recovery made of it is the same at the next start
		$rig->crash;
		$rig->start or return (@problems, 'no second start: ' . $rig->log_since_start);
		return (@problems, map { "restarted: $_" } verify($rig, $kind, $learned));
	}
	my $salt = NvmCrash::random("image/$name/$place", 1_000_000);
	foreach my $i (1 .. $images)
	{
		my $copy = $rig->after_crash;
		$copy->make_image($salt + $i, from => $rig);
		$copy->{simulate} = 0;
		if (!$copy->start)
		{
			push @problems, "image $i: no start: " . $copy->log_since_start;
			next;
		}
		push @problems, map { "image $i: $_" } verify($copy, $kind, $learned);
	}
	return @problems;
}

1;

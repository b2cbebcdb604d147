# Copyright (c) 2026, pg_nvm contributors

# Tables in memory with indexes of PostgreSQL's own methods, and the clean run of such a table
# (src/vlog/README.md): whatever statements, losses of memory, deaths and stops come, each
# index finds what a sequential scan does, and no row that was never committed.  Three tables:
# one that is logged, one that is UNLOGGED, one in nvm.memory_directory.
#
# What comes is drawn by chance: NVM_CRASH_SEED repeats it.  Long form: more of it.

use strict;
use warnings;

use NvmCrash;
use NvmMemory;
use NvmTest;
use Test::More;

my $conf = <<CONF;
max_prepared_transactions = 10
allow_in_place_tablespaces = on
nvm.default_index_method = btree
CONF
my $steps = NvmTest::is_long() ? 200 : 45;
# rows that were never committed have negative ids
my $negative = 'box \'((-1,-1),(-100000000,-100000000))\'';
my $positive = 'box \'((0,0),(100000000,100000000))\'';
my @queries = (
	'SELECT count(*), sum(id), sum(length(pad)) FROM f WHERE id > -100000000',
	'SELECT count(*) FROM f WHERE id < 0',
	join(' UNION ALL ', map { "(SELECT count(*), sum(id) FROM f WHERE h = $_)" } 0 .. 4),
	'SELECT count(*), sum(id) FROM f WHERE arr @> ARRAY[1]',
	'SELECT count(*) FROM f WHERE arr @> ARRAY[-1]',
	(map { my $column = $_; map { "SELECT count(*), sum(id) FROM f WHERE $column <@ $_" } $negative, $positive } qw(p q)),
	'SELECT count(*), sum(id) FROM f WHERE n BETWEEN 0 AND 20');

note("seed $NvmCrash::seed");
run_on('logged', '');
run_on('unlogged', 'UNLOGGED');
run_on('kept', '');
done_testing();

# ----------------------------------------------------------------

sub run_on
{
	my ($name, $kind) = @_;
	my $t = { name => $name, unlogged => $kind ne '', next => 1, prepared => [], did => {} };
	my $schema = <<SQL;
CREATE $kind TABLE f (id int, h int, arr int[], p point, q point, n int, pad text) USING nvm_vlog;
CREATE INDEX f_btree ON f USING btree (id);
CREATE INDEX f_hash ON f USING hash (h);
CREATE INDEX f_gin ON f USING gin (arr);
CREATE INDEX f_gist ON f USING gist (p);
CREATE INDEX f_spgist ON f USING spgist (q);
CREATE INDEX f_brin ON f USING brin (n) WITH (pages_per_range = 4);
CREATE TABLE heap_row (id int) USING heap;
SQL
	if ($name eq 'kept')
	{
		($t->{node}) = NvmMemory::start_kept($name, conf => $conf, sql => $schema);
	}
	else
	{
		my $more = "nvm.memory_limit = 256MB\nmax_worker_processes = 12\nautovacuum = off\nrestart_after_crash = on\n";
		$t->{node} = NvmTest->start_new($name, conf => $conf . $more, sql => $schema);
	}
	sql($t, "CREATE TABLESPACE place LOCATION ''");

	foreach my $n (1 .. $steps)
	{
		my $what = step($t, $n);

		$t->{did}{$what}++;
		my $problem = $what =~ /^(?:delete|vacuum)/ ? '' : look($t);
		next if $problem eq '';
		fail("$name: step $n, $what");
		diag("seed $NvmCrash::seed: $problem");
		$t->{node}->crash;
		return;
	}
	pass("$name: " . join(' ', map { "$_ $t->{did}{$_}" } sort keys %{ $t->{did} }));
	is(look($t), '', "$name: indexes and table agree in the end");
	$t->{node}->stop;
	return;
}

sub sql
{
	my ($t, @sql) = @_;
	return $t->{node}->safe_psql('postgres', join('; ', @sql));
}

# It may meet a prepared transaction's lock.
sub may_fail
{
	my ($t, @sql) = @_;
	return ($t->{node}->psql('postgres', join('; ', 'SET lock_timeout = 500', @sql)))[0];
}

sub draw
{
	my ($t, $below) = @_;
	return NvmCrash::random("$t->{name}/" . $t->{drawn}++, $below);
}

sub rows
{
	my ($t, $n, $sign) = @_;
	my $first = $t->{next};
	my $last  = $first + $n - 1;
	my $width = 20 + draw($t, 150);

	$t->{next} += $n;
	return "INSERT INTO f SELECT $sign * i, i % 5, ARRAY[$sign, i % 7 + 10], point($sign * i, $sign * i), "
	  . "point($sign * i, $sign * i), $sign * (i / 100), repeat('x', $width + i % 40) FROM generate_series($first, $last) i";
}

# some rows that lie side by side
sub some
{
	my ($t, $most) = @_;
	my $count = sql($t, 'SELECT count(*) FROM f');
	return "id IN (SELECT id FROM f ORDER BY ctid OFFSET " . draw($t, $count + 1) . ' LIMIT ' . (1 + draw($t, $most)) . ')';
}

# What comes this time; returns its name.
sub step
{
	my ($t, $n) = @_;
	my @some = (qw(insert insert aborted aborted savepoint update delete delete vacuum vacuum vacuum no-cleanup
		  vacuum-fails vacuum-dies insert-dies lose lose lose death stop truncate rewrite move reindex));

	push @some, qw(prepare end-prepared) unless $t->{unlogged};
	my $what = $some[ draw($t, scalar @some) ];
	# DDL waits for it
	$what = 'end-prepared' if @{ $t->{prepared} } && $what =~ /^(?:truncate|rewrite|move|reindex)$/;
	my $before = $what =~ /^(?:lose|death|stop)$/ && !$t->{unlogged} || $what eq 'stop' ? NvmMemory::content($t->{node}, 'f') : '';

	do_it($t, $what, $n);
	is(NvmMemory::content($t->{node}, 'f'), $before, "$t->{name}: step $n, $what: the same rows") if $before ne '';
	return $what;
}

sub do_it
{
	my ($t, $what, $n) = @_;
	my $node = $t->{node};

	if ($what eq 'insert') { sql($t, rows($t, 50 + draw($t, 400), 1)); }
	elsif ($what eq 'aborted')
	{
		sql($t, 'BEGIN', rows($t, 20 + draw($t, 200), -1), 'ROLLBACK');
		# so that the WAL of the entries is flushed
		sql($t, 'INSERT INTO heap_row VALUES (1)');
	}
	elsif ($what eq 'savepoint')
	{
		sql($t, 'BEGIN', rows($t, 30, 1), 'SAVEPOINT s', rows($t, 30 + draw($t, 50), -1), 'ROLLBACK TO s', rows($t, 30, 1), 'COMMIT');
	}
	elsif ($what eq 'update') { may_fail($t, "UPDATE f SET n = n + draw.v, pad = left(pad || repeat('u', 60), 900) FROM (SELECT " . draw($t, 2) . ' AS v) draw WHERE ' . some($t, 300)); }
	elsif ($what eq 'delete') { may_fail($t, 'DELETE FROM f WHERE ' . some($t, 1 + $t->{next} / 4)); }
	elsif ($what eq 'vacuum') { sql($t, 'VACUUM f'); sql($t, 'SELECT txid_current()'); sql($t, 'VACUUM f'); }
	elsif ($what eq 'no-cleanup') { sql($t, 'VACUUM (INDEX_CLEANUP off) f'); }
	elsif ($what eq 'vacuum-fails')
	{
		my $at = (qw(vacuum-clean-found vacuum-clean-offered vacuum-indexes-flushed))[ draw($t, 3) ];
		$node->psql('postgres', "SET nvm.failpoint = '$at:error'; VACUUM f");
	}
	elsif ($what eq 'vacuum-dies')
	{
		my $at = (qw(vacuum-clean-found vacuum-clean-offered pool-clean-run vacuum-count-lowered pool-count-blocks vacuum-indexes-flushed))[ draw($t, 6) ];
		dies($t, "$at:crash:" . (1 + draw($t, 2)), 'VACUUM f');
	}
	elsif ($what eq 'insert-dies')
	{
		my $at = (qw(pool-clean-run pool-count-blocks))[ draw($t, 2) ];
		dies($t, "$at:crash:" . (1 + draw($t, 3)), 'BEGIN', rows($t, 200 + draw($t, 400), -1), 'ROLLBACK', 'INSERT INTO heap_row VALUES (1)');
	}
	elsif ($what eq 'lose') { $node->crash; $node->start; }
	elsif ($what eq 'death')
	{
		my $writer = q{SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'};
		my $pid = sql($t, $writer);
		kill('KILL', $pid);
		$node->poll_query_until('postgres', "SELECT count(*) = 1 FROM ($writer) w WHERE pid <> $pid");
	}
	elsif ($what eq 'stop') { $node->stop; $node->start; }
	elsif ($what eq 'truncate')
	{
		sql($t, draw($t, 2) ? 'TRUNCATE f' : ('BEGIN', 'TRUNCATE f', rows($t, 300, 1), 'SAVEPOINT s', 'TRUNCATE f', 'ROLLBACK TO s', rows($t, 100, -1), 'DELETE FROM f WHERE id < 0', 'COMMIT'));
	}
	elsif ($what eq 'rewrite')
	{
		sql($t, ('VACUUM FULL f', 'CLUSTER f USING f_btree', 'ALTER TABLE f ALTER n TYPE bigint', 'ALTER TABLE f ALTER n TYPE int')[ draw($t, 4) ]);
	}
	elsif ($what eq 'move') { $t->{moved} = !$t->{moved}; sql($t, 'ALTER TABLE f SET TABLESPACE ' . ($t->{moved} ? 'place' : 'pg_default')); }
	elsif ($what eq 'reindex')
	{
		sql($t, 'REINDEX INDEX ' . (draw($t, 2) ? 'CONCURRENTLY ' : '') . 'f_' . (qw(btree hash gin gist spgist brin))[ draw($t, 6) ]);
	}
	elsif ($what eq 'prepare')
	{
		push @{ $t->{prepared} }, "p$n"
		  if @{ $t->{prepared} } < 4 && may_fail($t, 'BEGIN', rows($t, 10 + draw($t, 60), 1), 'SAVEPOINT s', rows($t, 20, -1), 'ROLLBACK TO s',
			draw($t, 2) ? 'DELETE FROM f WHERE ' . some($t, 20) : 'SELECT 1', "PREPARE TRANSACTION 'p$n'") == 0;
	}
	elsif (@{ $t->{prepared} })
	{
		sql($t, (draw($t, 2) ? 'COMMIT' : 'ROLLBACK') . " PREPARED '" . shift(@{ $t->{prepared} }) . "'");
	}
	return;
}

sub dies
{
	my ($t, $failpoint, @sql) = @_;
	my ($ret) = $t->{node}->psql('postgres', join('; ', "SET nvm.failpoint = '$failpoint'", @sql));

	return if $ret == 0;		# it does not come there
	$t->{node}->wait_crashed;
	$t->{node}->start;
	return;
}

# Do all indexes find what the table has?  Returns what is wrong.
sub look
{
	my ($t) = @_;
	my $index = 'SET enable_seqscan = off; SET max_parallel_workers_per_gather = 0';
	my $table = 'SET enable_indexscan = off; SET enable_indexonlyscan = off; SET enable_bitmapscan = off; SET max_parallel_workers_per_gather = 0';
	my @by_table = split /^=\n/m, sql($t, $table, map { ($_, "SELECT '='") } @queries);
	my @problems;

	foreach my $bitmap (qw(on off))
	{
		my @by_index = split /^=\n/m, sql($t, $index, "SET enable_bitmapscan = $bitmap", map { ($_, "SELECT '='") } @queries);
		push @problems, map { "bitmaps $bitmap, $queries[$_]: by index $by_index[$_] by table $by_table[$_]" }
		  grep { $by_index[$_] ne $by_table[$_] } 0 .. $#queries;
	}
	push @problems, 'rows that were never committed' if $by_table[1] !~ /^0$/m;
	return join("\n", @problems, $t->{node}->check_findings);
}

# Copyright (c) 2026, pg_nvm contributors

# DDL of tables whose indexes are nvm_btree, and of these indexes, and the death
# of the server at the fences and failpoints that it comes to (t/ddl/03_ddl_crash has the
# same for tables with built-in indexes).

use strict;
use warnings;

use NvmDdl;
use NvmTest;
use Test::More;

# what does something else because of the indexes (those of partitions are btree's)
my @kinds = grep { $_->{name} !~ /^(?:ctas|create-matview|to-nvm|refresh-concurrently|move-database|attach-partition|detach-partition|partition-index)$/ } @NvmDdl::kinds;

# at these places in any case
my @always = ([ 'alter-type', 'ddl-settle-index' ], [ 'create-database', 'copy-index-block' ]);

# not all in a short run, in turn by the seed
@kinds = grep { NvmTest::is_long() || $_->{index} || $_->{name} eq 'create-database' || NvmCrash::random("kind/$_->{name}", 5) == 0 } (@kinds, @NvmDdl::index_kinds);
NvmDdl::crash_test(
	method => 'nvm_btree',
	kinds  => \@kinds,
	always => \@always,
	NvmTest::is_long() ? (kills => 0, failures => 0, images => 5) : (kills => 1, failures => 1, images => 1));
done_testing();

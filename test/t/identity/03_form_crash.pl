# Copyright (c) 2026, pg_nvm contributors

# DDL of tables whose indexes say btree and are ours, and of these indexes, and the
# death of the server at the fences and failpoints that it comes to (t/ddl/03_ddl_crash
# and t/ddl/04_index_ddl_crash have the same for the other two kinds).

use strict;
use warnings;

use NvmDdl;
use NvmTest;
use Test::More;

# between the catalogs, the pool and the file's page, in any case
my @always = ([ 'reindex', 'btree-failsafe' ], [ 'index-concurrently', 'btree-taken-over' ], [ 'reindex-concurrently', 'btree-settle-builds' ],
	[ 'to-nvm', 'btree-failsafe' ]);
my @kinds = grep { NvmTest::is_long() || $_->{name} =~ /^(?:reindex|to-heap|to-nvm|attach-partition)$/ || $_->{index} || NvmCrash::random("kind/$_->{name}", 3) == 0 }
  (@NvmDdl::kinds, @NvmDdl::index_kinds);

NvmDdl::crash_test(
	method => 'identity',
	kinds  => \@kinds,
	always => \@always,
	NvmTest::is_long() ? (kills => 0, failures => 0, images => 5) : (kills => 1, failures => 1, images => 1));
done_testing();

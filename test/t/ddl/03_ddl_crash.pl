# Copyright (c) 2026, pg_nvm contributors

# DDL of every kind, and the death of the server at the fences and failpoints
# that it comes to: by SIGKILL, and by loss of power.  Either the old or the new
# state is there afterwards, whole, and no unit of the pool is lost.

use strict;
use warnings;

use NvmDdl;
use NvmTest;
use Test::More;

# places for each kind, 0 for all of them; images of each loss of power
NvmDdl::crash_test(
	method => 'btree',
	kinds  => \@NvmDdl::kinds,
	NvmTest::is_long() ? (kills => 0, failures => 0, images => 5) : (kills => 1, failures => 1, images => 1));
done_testing();

# Copyright (c) 2026, pg_nvm contributors

# The soak of stress/04_soak with TPC-C by registered functions on nvm_cmdlog tables, and others who
# write them by hand (NvmSoakCommands.pm); other tables are those of stress/05_soak_vlog.

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
# before it begins to run, for their INIT blocks
use NvmSoak;
use NvmTest;

$ENV{NVM_SOAK_METHOD} = 'nvm_cmdlog';
my $soak = dirname(abs_path($0)) . '/04_soak.pl';
do $soak or die $@ || "$soak: $!";

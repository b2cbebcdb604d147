# Copyright (c) 2026, pg_nvm contributors

# The soak of stress/04_soak with nvm_vlog tables: checkpoints run, and the device of the log is
# full, then broken (NvmSoakLog.pm).

use strict;
use warnings;

use Cwd qw(abs_path);
use File::Basename;
# before it begins to run, for their INIT blocks
use NvmSoak;
use NvmTest;

$ENV{NVM_SOAK_METHOD} = 'nvm_vlog';
my $soak = dirname(abs_path($0)) . '/04_soak.pl';
do $soak or die $@ || "$soak: $!";

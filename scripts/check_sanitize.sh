#!/usr/bin/env bash
# The tests on a server with AddressSanitizer and UndefinedBehaviorSanitizer.
#
# usage: check_sanitize.sh [TIER...]
#	tiers	as of check.sh; default: build regress isolation pgtap tap
#
# PostgreSQL and pg_nvm are compiled with both sanitizers and with assertions
# (build_server.sh --variant sanitize, once); in pg_nvm overflows of signed
# integers and of conversions from float are reports, too.  Memory contexts and
# shared buffers are marked, so that a use after pfree, an access beyond what was
# allocated and one to a page without a pin are found.  A report of any process,
# also of one that a test kills afterwards, is a failure of the tier, and is in its
# log.  PROVE_TESTS and REGRESS_TESTS choose among the tests; $NVM_SANITIZE_MAJOR,
# by default 15, is the server's version.
# Takes five times as long as on other servers.
set -u

# shellcheck source=scripts/instrumented.sh
. "$(dirname "$0")/instrumented.sh" sanitize "${NVM_SANITIZE_MAJOR:-15}" "$@"

# detect_leaks: a process ends without freeing what it has.
# detect_stack_use_after_return: the depth of the stack is an address on it.
# allocator_may_return_null: "out of memory" is an answer.
# verify_asan_link_order: programs that are not sanitized use libpq, and a test
#		preloads a library.
# quarantine_size_mb: there are many processes.
export ASAN_OPTIONS="detect_leaks=0:detect_stack_use_after_return=0:allocator_may_return_null=1:verify_asan_link_order=0:quarantine_size_mb=16:malloc_context_size=15:print_legend=0:abort_on_error=1:log_path=$NVM_REPORTS/asan"
export UBSAN_OPTIONS="print_stacktrace=1:halt_on_error=1:abort_on_error=1"
export NVM_UBSAN_REPORTS=$NVM_REPORTS/ubsan
# PostgreSQL wants signed overflow to wrap, and so nobody looks for it there
export COPT="-fno-wrapv -fsanitize=float-cast-overflow ${COPT:-}"
export NVM_TAP_LIMIT=${NVM_TAP_LIMIT:-14400} PG_TEST_TIMEOUT_DEFAULT=${PG_TEST_TIMEOUT_DEFAULT:-600} PGCTLTIMEOUT=${PGCTLTIMEOUT:-300}

# shellcheck disable=SC2068
run_tiers sanitizers ${@:-build regress isolation pgtap tap}

#!/usr/bin/env bash
# The regression tests on a server that runs under valgrind's memcheck.
#
# usage: check_valgrind.sh [TIER...]
#	tiers	as of check.sh; default: build regress
#
# The server is built with assertions and with PostgreSQL's requests to valgrind,
# which tell it about memory contexts and pinned buffers (build_server.sh --variant
# valgrind, once).  Reads of what was never initialized, and accesses to what is not
# allocated, are reports; each server with reports is a failure of the tier, and
# they are in its log.  REGRESS_TESTS chooses among the tests.  NVM_VALGRIND_OPTIONS
# adds options: --track-origins=yes tells where what is uninitialized comes from.
# Takes thirty to fifty times as long as on other servers.
set -u

# shellcheck source=scripts/instrumented.sh
. "$(dirname "$0")/instrumented.sh" valgrind "${NVM_VALGRIND_MAJOR:-15}" "$@"

export NVM_VALGRIND=$NVM_REPORTS
export NVM_TAP_LIMIT=${NVM_TAP_LIMIT:-43200} PG_TEST_TIMEOUT_DEFAULT=${PG_TEST_TIMEOUT_DEFAULT:-3600} PGCTLTIMEOUT=${PGCTLTIMEOUT:-600}

# shellcheck disable=SC2068
run_tiers memcheck ${@:-build regress}

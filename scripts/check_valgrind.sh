#!/usr/bin/env bash
# The regression tests on a server that runs under valgrind's memcheck.
#
# usage: check_valgrind.sh [TIER...]
#	tiers	as of check.sh; default: build regress
#
# The server is built with assertions and with PostgreSQL's requests to valgrind,
# which tell it about memory contexts and pinned buffers (build_server.sh --variant
# valgrind, once).  Reads of what was never initialized, and accesses to what is not
# allocated, are reports; each process with reports is a failure of the tier, and
# they are in its log.  REGRESS_TESTS chooses among the tests.  NVM_VALGRIND_OPTIONS
# adds options: --track-origins=yes tells where what is uninitialized comes from.
# Takes thirty to fifty times as long as on other servers.
set -u

case ${1:-} in
	-*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
esac
top=$(cd "$(dirname "$0")/.." && pwd)
config=$("$top/scripts/build_server.sh" --variant valgrind "${NVM_VALGRIND_MAJOR:-15}") || exit 1

NVM_REPORTS=$(mktemp -d "${TMPDIR:-/tmp}/pg_nvm_reports.XXXXXX")
chmod 1777 "$NVM_REPORTS"
trap 'rm -rf "$NVM_REPORTS"' EXIT
trap 'exit 130' INT TERM HUP
export NVM_REPORTS NVM_VALGRIND=$NVM_REPORTS
export NVM_INSTRUMENTED=1
export NVM_TAP_LIMIT=${NVM_TAP_LIMIT:-43200} PG_TEST_TIMEOUT_DEFAULT=${PG_TEST_TIMEOUT_DEFAULT:-3600} PGCTLTIMEOUT=${PGCTLTIMEOUT:-600}

# shellcheck disable=SC2068
set -- ${@:-build regress}
if PG_CONFIG=$config "$top/scripts/check.sh" "$@"; then
	echo "memcheck: passed, no reports"
else
	echo "memcheck: FAILED"
	exit 1
fi

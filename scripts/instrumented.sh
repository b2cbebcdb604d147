# For check_sanitize.sh and check_valgrind.sh, which source it as
#	. instrumented.sh VARIANT MAJOR [ARGUMENT...]
# with their own arguments: their usage, their server, the directory of reports.
# shellcheck shell=bash

variant=$1 major=$2
shift 2
case ${1:-} in
	-*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
esac
top=$(cd "$(dirname "$0")/.." && pwd)
config=$("$top/scripts/build_server.sh" --variant "$variant" "$major") || exit 1

NVM_REPORTS=$(mktemp -d "${TMPDIR:-/tmp}/pg_nvm_reports.XXXXXX")
chmod 1777 "$NVM_REPORTS"
trap 'rm -rf "$NVM_REPORTS"' EXIT
trap 'exit 130' INT TERM HUP
# what of a test depends on it: NvmTest::is_instrumented
export NVM_REPORTS NVM_INSTRUMENTED=1

# check.sh TIER... on that server, and the verdict
run_tiers() {		# run_tiers WHAT TIER...
	local what=$1
	shift
	if PG_CONFIG=$config "$top/scripts/check.sh" "$@"; then
		echo "$what: passed, no reports"
	else
		echo "$what: FAILED"
		exit 1
	fi
}

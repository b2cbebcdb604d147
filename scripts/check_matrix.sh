#!/usr/bin/env bash
# The tests on a server of each major version that is supported.
#
# usage: check_matrix.sh [TIER...]
#	tiers	as of check.sh; default: build likeheap regress isolation pgtap tap core
#
# $NVM_MATRIX chooses the versions, by default "15 17 18".  The server of version NN
# is that of the pg_config $PGNN_CONFIG; without it, one that is built from source
# with assertions (build_server.sh), once.  PROVE_TESTS chooses among the TAP tests.
# Ends with a line for each version and "N passed, N failed" of all of them.
set -u -o pipefail

case ${1:-} in
	-*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
esac
top=$(cd "$(dirname "$0")/.." && pwd)
tiers=${*:-build likeheap regress isolation pgtap tap core}
passed=0 failed=0
summary=
unset MAKEFLAGS MAKELEVEL MFLAGS
# servers with assertions take longer
export NVM_TAP_LIMIT=${NVM_TAP_LIMIT:-3600} PG_TEST_TIMEOUT_DEFAULT=${PG_TEST_TIMEOUT_DEFAULT:-300}

out=$(mktemp "${TMPDIR:-/tmp}/pg_nvm_matrix.XXXXXX")
trap 'rm -f "$out"' EXIT
trap 'exit 130' INT TERM HUP

for major in ${NVM_MATRIX:-15 17 18}; do
	echo "---- PostgreSQL $major"
	given=PG${major}_CONFIG
	config=${!given:-}
	if [ -z "$config" ] && ! config=$("$top/scripts/build_server.sh" "$major"); then
		verdict="no server"
		failed=$((failed + 1))
	else
		status=0
		PG_CONFIG=$config "$top/scripts/check.sh" $tiers 2>&1 | tee -i "$out" || status=$?
		verdict=$(grep -E '^[0-9]+ passed, [0-9]+ failed$' "$out" | tail -n 1)
		# it ended before it could count, or says so in another way
		case $status/$verdict in
			0/*" passed, 0 failed" | [1-9]*/*", "[1-9]*" failed") ;;
			*) verdict="${verdict:-0 passed, 0 failed}, and ended with $status"; failed=$((failed + 1)) ;;
		esac
		passed=$((passed + ${verdict%% *}))
		count=${verdict#*, }
		failed=$((failed + ${count%% *}))
	fi
	summary="$summary
PostgreSQL $major: $verdict"
done
echo "$summary"
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]

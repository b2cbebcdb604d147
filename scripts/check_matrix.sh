#!/usr/bin/env bash
# The tests on a server of each major version that is supported.
#
# usage: check_matrix.sh [TIER...]
#	tiers	as of check.sh; default: build likeheap regress isolation pgtap tap core
#
# $NVM_MATRIX chooses the versions, by default "15 17 18".  The server of version NN
# is that of the pg_config $PGNN_CONFIG; without it, one that is built from source
# with assertions (build_server.sh), once.  PROVE_TESTS chooses among the TAP tests.
# Ends with a line for each version.
set -u

case ${1:-} in
	-*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
esac
top=$(cd "$(dirname "$0")/.." && pwd)
tiers=${*:-build likeheap regress isolation pgtap tap core}
bad=0
summary=
# servers with assertions take longer
export NVM_TAP_LIMIT=${NVM_TAP_LIMIT:-3600} PG_TEST_TIMEOUT_DEFAULT=${PG_TEST_TIMEOUT_DEFAULT:-300}

for major in ${NVM_MATRIX:-15 17 18}; do
	echo "---- PostgreSQL $major"
	given=PG${major}_CONFIG
	config=${!given:-}
	if [ -z "$config" ] && ! config=$("$top/scripts/build_server.sh" "$major"); then
		verdict="no server"
		bad=1
	elif PG_CONFIG=$config "$top/scripts/check.sh" $tiers; then
		verdict=passed
	else
		verdict=FAILED
		bad=1
	fi
	summary="$summary
PostgreSQL $major: $verdict"
done
echo "$summary"
exit $bad

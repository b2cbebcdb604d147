#!/usr/bin/env bash
# Which lines of src/ do the tests reach?
#
# usage: coverage.sh [--min PERCENT] [--output DIR] [TIER...]
#	--min		fail below so many percent of all lines (default 85)
#	--output	where the report goes (default: coverage_report)
#	tiers		of check.sh that run servers: regress isolation pgtap tap; default all.
#				PROVE_TESTS chooses among the TAP tests
#
# Builds the extension with gcc's --coverage and without optimization, in check.sh's
# private copy, and runs the tiers with it.  The report is
#
#	summary.txt		lines and lines reached, of each file and of all
#	uncovered.txt	what was not reached, by function, with the source
#
# Ends with the figure, and fails if it is too low or a test has failed.  How killed
# processes are counted: src/pmem/pmem_coverage.c.
set -eu

min=85 output= tiers=
while [ $# -gt 0 ]; do
	case $1 in
		--min) min=$2; shift ;;
		--output) output=$2; shift ;;
		-*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
		*) tiers="$tiers $1" ;;
	esac
	shift
done
top=$(cd "$(dirname "$0")/.." && pwd)
output=${output:-$top/coverage_report}
rm -rf "$output"
mkdir -p "$output"
output=$(cd "$output" && pwd)

export NVM_COVERAGE=$output
# PGXS appends it to the flags of compiler and linker
export COPT="-O0 -U_FORTIFY_SOURCE --coverage -DNVM_COVERAGE"
# all that runs takes longer
export NVM_TAP_LIMIT=${NVM_TAP_LIMIT:-5400} PG_TEST_TIMEOUT_DEFAULT=${PG_TEST_TIMEOUT_DEFAULT:-300}

status=0
# shellcheck disable=SC2086
"$top/scripts/check.sh" build ${tiers:-regress isolation pgtap tap} || status=1
if ! [ -s "$output/summary.txt" ]; then
	echo "coverage: no report"
	exit 1
fi
tail -n 1 "$output/summary.txt"
echo "what was not reached: $output/uncovered.txt"
percent=$(sed -n '$s/.* \([0-9.]*\) %.*/\1/p' "$output/summary.txt")
if awk "BEGIN { exit !($percent < $min) }"; then
	echo "coverage: FAILED, less than $min %"
	exit 1
fi
if [ $status != 0 ]; then
	echo "coverage: FAILED, by a test"
	exit 1
fi
echo "coverage: passed"

#!/usr/bin/env bash
# What static analyzers say of src/ and of the programs in bin/.
#
# usage: analyze.sh [--output DIR] [TOOL...]
#	--output	where the tools' full output goes (default: analyze_report)
#	tools		gcc (-fanalyzer), clang-tidy, cppcheck; default all
#
# Against the headers of PG_CONFIG, by default Debian's PostgreSQL 15.  What is
# compiled into a program, src/verify too, is looked at as such.  .clang-tidy
# names the checks; scripts/analyze_suppressions.txt the findings that are no faults,
# with reasons: one that is not listed fails, and so does one that is listed and not
# found any more.  Installs what it misses.  Ends with the verdict.
set -u

output= tools=
while [ $# -gt 0 ]; do
	case $1 in
		--output) output=$2; shift ;;
		gcc | clang-tidy | cppcheck) tools="$tools $1" ;;
		*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
	esac
	shift
done
tools=${tools:-gcc clang-tidy cppcheck}
top=$(cd "$(dirname "$0")/.." && pwd)
cd "$top" || exit 1
scripts/ensure_packages.sh analyze || exit 1
config=${PG_CONFIG:-/usr/lib/postgresql/15/bin/pg_config}
jobs=$(nproc 2>/dev/null || echo 1)
output=${output:-$top/analyze_report}
rm -rf "$output"
mkdir -p "$output"
# not -isystem: that would hide what comes from the server's macros where we use them
flags="-std=gnu99 -D_GNU_SOURCE -DNVM_VERSION=\"0\" -Isrc -I$("$config" --includedir-server)"

# for_sources NUMBER COMMAND...: with so many files at a time, and $define
for_sources() {
	local number=$1
	shift
	find src -name '*.c' | sort | define='' xargs -P "$jobs" -n "$number" "$@"
	find bin src/verify -name '*.c' | sort | define=-DFRONTEND xargs -P "$jobs" -n "$number" "$@"
}

# -O1: it follows paths through what is inlined, and forgets fewer of them than with -O0
run_gcc() {
	for_sources 1 sh -c 'exec gcc $0 $define -O1 -fanalyzer -fno-diagnostics-show-caret \
		-fdiagnostics-path-format=none -S -o /dev/null "$@"' "$flags"
}

run_clang_tidy() {
	for_sources 4 sh -c 'exec clang-tidy-14 --quiet "$@" -- $0 $define' "$flags"
}

# One configuration, that of this compiler: else it takes every #if of the server's
# headers for a choice
run_cppcheck() {
	one_cppcheck src
	one_cppcheck -DFRONTEND bin src/verify
}

one_cppcheck() {
	cppcheck -j "$jobs" --quiet --std=c99 --library=gnu --enable=warning,performance,portability \
		--max-configs=1 -D__GNUC__=12 -D__x86_64__ -D_GNU_SOURCE -DNVM_VERSION=\"0\" \
		-Isrc -I"$("$config" --includedir-server)" --suppress='*:/usr/*' --suppress='*:*/postgresql/*' \
		--template='{file}:{line}:{column}: {severity}: {message} [{id}]' "$@"
}

for tool in $tools; do
	echo "$tool ..."
	began=$SECONDS
	"run_$(echo "$tool" | tr - _)" >"$output/$tool.txt" 2>"$output/$tool.err"
	status=$?
	# gcc writes its findings, and cppcheck its own, to the standard error
	cat "$output/$tool.err" >>"$output/$tool.txt"
	echo "$tool: status $status, $((SECONDS - began)) s"
done
# shellcheck disable=SC2086
scripts/analyze_report.py "$output" scripts/analyze_suppressions.txt $tools

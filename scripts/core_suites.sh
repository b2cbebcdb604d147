#!/usr/bin/env bash
# PostgreSQL's own regress and isolation suites with nvm as the default table
# access method, held against what heap prints on the same server.
#
# usage: core_suites.sh [--source DIR] [--suites LIST] [--heap-runs N]
#			[--accept DIR] [--keep]
#	--source	unpacked source tree; else apt's source package of the server
#	--suites	some of: regress isolation dump (dump needs regress)
#	--heap-runs	how often heap runs each suite (default 1); nvm may print what
#			any of the runs printed
#	--accept	write the lists of exceptions anew into DIR (test/core/exceptions),
#			new ones without a reason, which fail until somebody finds it
#	--keep		keep the work directory, results included
#
# Runs as the tier "core" of check.sh: on a private copy of the server and
# never as root.  Ends with "N passed, N failed".  See test/core/README.md.
set -u

top=$(cd "$(dirname "$0")/.." && pwd)

# ---------------------------------------------------------------- outer part

outer() {
	local keep=
	while [ $# -gt 0 ]; do
		case $1 in
			--source) export NVM_CORE_SOURCE=$2; shift ;;
			--suites) export NVM_CORE_SUITES=$2; shift ;;
			--heap-runs) export NVM_CORE_HEAP_RUNS=$2; shift ;;
			--accept) NVM_CORE_ACCEPT=$(cd "$2" && pwd) || exit 1; export NVM_CORE_ACCEPT; shift ;;
			--keep) keep=--keep ;;
			*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
		esac
		shift
	done
	exec "$top/scripts/check.sh" $keep core
}

# What the suites need of the source tree, into directory $1.  Called by
# check.sh before it gives up root.
copy_source() {
	local tree=${NVM_CORE_SOURCE:-}
	if [ -z "$tree" ]; then
		"$top/scripts/ensure_packages.sh" source || return 1
		tree=$("$top/scripts/fetch_pg_source.sh" "${2:-}") || return 1
	fi
	if ! [ -f "$tree/src/test/regress/parallel_schedule" ]; then
		echo "no source tree of PostgreSQL: $tree" >&2
		return 1
	fi
	mkdir -p "$1"
	tar -C "$tree" -cf - src/test/regress src/test/isolation contrib/spi | tar -C "$1" -xf -
}

# ---------------------------------------------------------------- inner part
# Runs in check.sh's work directory as an ordinary user, with pg_nvm installed
# in the private copy of the server.

good=0 bad=0

say() {					# say STATUS(0|1) TEXT: one test
	if [ "$1" = 0 ]; then
		good=$((good + 1)); echo "ok $2"
	else
		bad=$((bad + 1)); echo "not ok $2"
	fi
}

# regress.c and the two modules of contrib/spi that the tests load
build_modules() {
	mkdir -p "$core/lib" &&
		cp "$source/src/test/regress/regress.c" "$source/contrib/spi/refint.c" \
			"$source/contrib/spi/autoinc.c" "$core/lib/" &&
		cat >"$core/lib/Makefile" <<'END'
MODULES = regress refint autoinc
PG_CPPFLAGS = -DREFINT_VERBOSE
with_llvm = no
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)
END
	make -C "$core/lib" PG_CONFIG="$PG_CONFIG"
}

# Tests that the list says are run with heap tables on nvm too
heap_tests() {
	local name
	for name in $(awk 'NF == 3 && /^[a-z]/ && $3 == "heap" { print $1 }' "test/core/exceptions/$major-regress"); do
		sed -i '1i SET default_table_access_method = heap;' "$source/src/test/regress/sql/$name.sql"
	done
}

# run_suite SUITE AM RUN: results in $core/SUITE.AM.RUN
run_suite() {
	local out=$core/$1.$2.$3 schedule program
	case $1 in
		regress) schedule=parallel_schedule program=pg_regress ;;
		isolation) schedule=isolation_schedule program=pg_isolation_regress ;;
	esac
	mkdir -p "$out"
	cat >"$out/extra.conf" <<END
shared_preload_libraries = 'pg_nvm'
default_table_access_method = '$2'
nvm.pool_directory = '$NVM_CHECK_POOLS/core_$1_$2_$3'
fsync = off
END
	# its exit status says how many differ from PostgreSQL's expectation
	PATH=$pgxs/isolation:$PATH "$pgxs/$1/$program" \
		--bindir="${PG_CONFIG%/*}" --inputdir="$source/src/test/$1" \
		--outputdir="$out" --temp-instance="$out/instance" \
		--temp-config="$out/extra.conf" --dlpath="$core/lib" \
		--schedule="$source/src/test/$1/$schedule" --max-concurrent-tests=20 \
		--load-extension=pg_nvm --no-locale --encoding=UTF8 >"$out/log.txt" 2>&1
	if [ "$1.$2" != regress.nvm ]; then
		rm -rf "$out/instance" "$NVM_CHECK_POOLS/core_$1_$2_$3"
	fi
	! grep -aE 'PANIC:|TRAP:|was terminated by signal|crash of another server process' \
		"$out/log/postmaster.log"
	say $? "$1 on $2: no crash in the server's log"
}

# suite NAME: on heap, on nvm, and what differs
suite() {
	local run heaps='' status count
	for run in $(seq "${NVM_CORE_HEAP_RUNS:-1}"); do
		run_suite "$1" heap "$run"
		heaps="$heaps --heap $core/$1.heap.$run/results"
	done
	run_suite "$1" nvm 1
	# shellcheck disable=SC2086
	test/core/compare.py --suite "$1" $heaps --nvm "$core/$1.nvm.1/results" \
		--tree "$source/src/test/$1" --schedule "$source/src/test/$1"/*_schedule \
		--exceptions "test/core/exceptions/$major-$1" --diffs "$work/log/core.d/$1.diffs" \
		${accept:+--accept} >"$core/$1.verdict"
	cat "$core/$1.verdict"
	good=$((good + $(grep -c '^ok ' "$core/$1.verdict")))
	bad=$((bad + $(grep -c '^not ok ' "$core/$1.verdict")))
	count=$(sed -n 's/^same: //p' "$core/$1.verdict")
	[ -n "$count" ] || say 1 "$1: compared"
	summary="$summary${summary:+, }${count:-0} $1 files byte for byte"
	cp "$core/$1".*/log.txt "$work/log/core.d/" 2>/dev/null
	cp "$core/$1.nvm.1/log/postmaster.log" "$work/log/core.d/$1.nvm.postmaster.log" 2>/dev/null
	if [ -n "$accept" ]; then
		cp "test/core/exceptions/$major-$1" "$work/log/core.d/"
	fi
}

query() {				# query DATABASE SQL: the answer, one value
	psql -XAtq -v ON_ERROR_STOP=1 -h "$socket" -p 5432 -d "$1" -c "$2"
}

# restore AM: the dump into a database of its own, with AM as the default
restore() {
	query postgres "CREATE DATABASE restored_$1 TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'" &&
		query "restored_$1" "CREATE EXTENSION pg_nvm" &&
		PGOPTIONS="-c default_table_access_method=$1" \
			psql -Xq -v ON_ERROR_STOP=1 -h "$socket" -p 5432 -d "restored_$1" -f "$core/dump/nvm.sql"
}

# Without publications, which nvm tables refuse
dump() {				# dump DATABASE FILE
	pg_dump -h "$socket" -p 5432 --no-table-access-method --no-publications -d "$1" \
		-f "$core/dump/$2.sql" &&
		test/core/sort_dump.py "$core/dump/$2.sql" >"$core/dump/$2.sorted"
}

# The database that regress leaves on nvm: sound, and its dump restored with
# heap and with nvm gives the same dump again.
dump_and_restore() {
	local instance=$core/regress.nvm.1/instance am tables
	socket=$(mktemp -d "${TMPDIR:-/tmp}/sock.XXXXXX")
	mkdir -p "$core/dump"
	pg_ctl -w -D "$instance/data" -l "$work/log/core.d/dump.postmaster.log" \
		-o "-k '$socket' -p 5432 -c listen_addresses=''" start >/dev/null
	say $? "dump: the server starts again" || return

	[ "$(query regression 'SELECT count(*) FROM nvm.check_pool()')" = 0 ]
	say $? "dump: nvm.check_pool() finds no fault"
	[ "$(query regression "SELECT count(f) FROM pg_class c, pg_am a, nvm.check(c.oid) f
		WHERE c.relam = a.oid AND a.amname = 'nvm' AND c.relkind IN ('r', 'm')
		  AND c.relpersistence <> 't'")" = 0 ]
	say $? "dump: nvm.check() finds no fault in any table"

	dump regression nvm
	say $? "dump: regression dumped"
	for am in heap nvm; do
		restore $am
		say $? "dump: restored with $am as the default"
		tables=$(query "restored_$am" "SELECT count(*) FROM pg_class c, pg_am a
			WHERE c.relam = a.oid AND a.amname = 'nvm' AND c.relkind IN ('r', 'm')")
		if [ $am = heap ]; then [ "$tables" = 0 ]; else [ "$tables" -gt 300 ]; fi
		say $? "dump: $tables tables of the restored database are nvm's"
		dump "restored_$am" "again_$am"
		say $? "dump: dumped again from $am"
	done
	diff "$core/dump/again_heap.sorted" "$core/dump/again_nvm.sorted" >"$work/log/core.d/dump.diff" 2>&1
	say $? "dump: restored with heap and restored with nvm give the same dump"
	[ "$(grep -cv '^--' "$core/dump/again_nvm.sorted")" -gt 10000 ]
	say $? "dump: which is not empty"
	pg_ctl -w -m fast -D "$instance/data" stop >/dev/null
}

inner() {
	local name
	core=$NVM_CORE_WORK
	source=$core/source
	pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")/../test
	major=$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
	summary='' accept=${NVM_CORE_ACCEPT:-}
	mkdir -p "$work/log/core.d"
	build_modules >"$work/log/core.d/modules.txt" 2>&1
	say $? "modules of the regress suite built"
	heap_tests

	for name in ${NVM_CORE_SUITES:-regress isolation dump}; do
		case $name in
			regress | isolation) suite "$name" ;;
			dump) dump_and_restore ;;
			*) say 1 "there is no suite $name" ;;
		esac
	done
	echo "core: $summary"
	echo "core: $good passed, $bad failed"
	[ "$bad" = 0 ]
}

case ${1:-} in
	--copy-source) copy_source "$2" "${3:-}" ;;
	--inner) work=$NVM_CHECK_INNER; inner ;;
	*) outer "$@" ;;
esac

#!/usr/bin/env bash
# PostgreSQL's own suites with nvm, or nvm_vlog, as the default table access method:
# core's regress and isolation and some of contrib's, held against what heap prints on
# the same server, with btree indexes in files and with those in the pool; and
# core's TAP tests of subscriptions and recovery.
#
# usage: core_suites.sh [--source DIR] [--suites LIST] [--method METHOD]
#			[--index-method LIST] [--heap-runs N] [--accept DIR] [--keep]
#	--source	unpacked source tree; else apt's source package of the server
#	--suites	some of: regress isolation dump contrib tap (dump needs regress);
#			default: all, contrib only where there is a list of exceptions
#	--method	nvm (the default) or nvm_vlog, whose exceptions are those of nvm, or fewer
#	--index-method	some of btree (nvm.default_index_method = btree), identity (indexes
#			that say btree and are ours); default: both
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
all_suites="regress isolation dump contrib tap"
. "$top/scripts/tally.sh"
. "$top/scripts/core_contrib.sh"
. "$top/scripts/core_tap.sh"

# ---------------------------------------------------------------- outer part

outer() {
	local keep=
	while [ $# -gt 0 ]; do
		case $1 in
			--source) export NVM_CORE_SOURCE=$2; shift ;;
			--suites) export NVM_CORE_SUITES=$2; shift ;;
			--method) export NVM_CORE_METHOD=$2; shift ;;
			--index-method) export NVM_CORE_INDEX_METHODS=$2; shift ;;
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
	(cd "$tree" && tar -cf - src/test/regress src/test/isolation src/test/subscription \
		src/test/recovery contrib/spi $(printf 'contrib/%s ' $contrib_modules)) | tar -C "$1" -xf -
}

# ---------------------------------------------------------------- inner part
# Runs in check.sh's work directory as an ordinary user, with pg_nvm installed
# in the private copy of the server.

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

# scripts_of SUITE KIND [MODULE]: directory of the suite, or of contrib's module, as it is
# run there: tests that make heap tables do so everywhere, and TIDs are ours on nvm
scripts_of() {
	local list=test/core/exceptions/$major-$1 tids='' tree=$source/src/test/$1
	local input=$core/scripts.$1.$2${3:+/$3}
	case $2 in nvm | identity) tids=$list ;; esac
	[ -z "${3:-}" ] || tree=$source/contrib/$3
	test/core/rewrite.py ${tids:+--exceptions "$tids"} --heap "$list" ${3:+--prefix "$3/"} \
		--tree "$tree" --out "$input" && echo "$input"
}

# settings KIND POOL: KIND is heap; nvm, tables of $table_method with indexes in files; or
# identity, with indexes in the pool
settings() {
	local am=$table_method index=btree
	[ "$1" != heap ] || am=heap
	[ "$1" != identity ] || index=nvm_btree
	cat <<END
shared_preload_libraries = 'pg_nvm'
default_table_access_method = '$am'
nvm.default_index_method = '$index'
nvm.pool_directory = '$NVM_CHECK_POOLS/$2'
fsync = off
END
	# its two workers of the log take none from parallel plans, whose number is printed
	[ "$table_method" = nvm ] || echo "max_worker_processes = 10"
}

# no_crash WHAT LOG: what this server's log says
no_crash() {
	! grep -aE 'PANIC:|TRAP:|was terminated by signal|crash of another server process' "$2"
	say $? "$1: no crash in the server's log"
}

# run_suite SUITE KIND RUN: results in $core/SUITE.KIND.RUN
run_suite() {
	local out=$core/$1.$2.$3 schedule program input
	case $1 in
		regress) schedule=parallel_schedule program=pg_regress ;;
		isolation) schedule=isolation_schedule program=pg_isolation_regress ;;
		contrib) run_contrib "$2" "$3"; return ;;
	esac
	input=$(scripts_of "$1" "$2") || { say 1 "$1: tests written"; return; }
	mkdir -p "$out"
	settings "$2" "core_$1_$2_$3" >"$out/extra.conf"
	# its exit status says how many differ from PostgreSQL's expectation
	PATH=$pgxs/isolation:$PATH "$pgxs/$1/$program" \
		--bindir="${PG_CONFIG%/*}" --inputdir="$input" \
		--outputdir="$out" --temp-instance="$out/instance" \
		--temp-config="$out/extra.conf" --dlpath="$core/lib" \
		--schedule="$input/$schedule" --max-concurrent-tests=20 \
		--load-extension=pg_nvm --no-locale --encoding=UTF8 >"$out/log.txt" 2>&1
	if [ "$1.$2" = regress.heap ] || [ "$1" != regress ]; then
		rm -rf "$out/instance" "$NVM_CHECK_POOLS/core_$1_$2_$3"
	fi
	no_crash "$1 on $2" "$out/log/postmaster.log"
}

# kind METHOD: what run_suite calls nvm tables with that default index method
kind() {
	case $1 in btree) echo nvm ;; *) echo "$1" ;; esac
}

# suite NAME: on heap, on nvm with each index method, and what differs
suite() {
	local run heaps='' method
	for run in $(seq "${NVM_CORE_HEAP_RUNS:-1}"); do
		run_suite "$1" heap "$run"
		heaps="$heaps --heap $core/$1.heap.$run/results"
	done
	for method in $methods; do
		run_suite "$1" "$(kind "$method")" 1
		compare "$1" "$(kind "$method")"
	done
	cp "$core/$1".*/log.txt "$work/log/core.d/" 2>/dev/null
}

# compare SUITE KIND: with what heap printed ($heaps).  The list of btree has
# the suite's name, and its reasons hold for the others
compare() {
	local name=$1 verdict=$core/$1.$2.verdict count tree=$source/src/test/$1
	[ "$2" = nvm ] || name=$1-$2
	[ "$1" != contrib ] || tree=$core/contrib
	# shellcheck disable=SC2086
	test/core/compare.py --suite "$name" $heaps --nvm "$core/$1.$2.1/results" \
		--tree "$tree" --schedule "$tree"/*_schedule \
		--exceptions "test/core/exceptions/$major-$name" \
		--reasons "test/core/exceptions/$major-$1" --method "$table_method" --diffs "$work/log/core.d/$name.diffs" \
		${accept:+--accept} >"$verdict"
	said "$verdict"
	count=$(sed -n 's/^same: //p' "$verdict")
	[ -n "$count" ] || say 1 "$name: compared"
	summary="$summary${summary:+, }${count:-0} $name files byte for byte"
	cp "$core/$1.$2.1/log/postmaster.log" "$work/log/core.d/$name.postmaster.log" 2>/dev/null
	if [ -n "$accept" ]; then
		cp "test/core/exceptions/$major-$name" "$work/log/core.d/"
	fi
}

query() {				# query DATABASE SQL: the answer, one value
	psql -XAtq -v ON_ERROR_STOP=1 -h "$socket" -p 5432 -d "$1" -c "$2"
}

# restore AM METHOD: the dump into a database of its own, with these defaults
restore() {
	local db=restored_$1 method=$2
	[ "$2" != identity ] || method=nvm_btree
	query postgres "DROP DATABASE IF EXISTS $db" &&
		query postgres "CREATE DATABASE $db TEMPLATE template0 ENCODING 'UTF8' LOCALE 'C'" &&
		query "$db" "CREATE EXTENSION pg_nvm" &&
		PGOPTIONS="-c default_table_access_method=$1 -c nvm.default_index_method=$method" \
			psql -Xq -v ON_ERROR_STOP=1 -h "$socket" -p 5432 -d "$db" -f "$core/dump/nvm.sql"
}

# Without publications, which nvm tables refuse
dump() {				# dump DATABASE FILE
	pg_dump -h "$socket" -p 5432 --no-table-access-method --no-publications -d "$1" \
		-f "$core/dump/$2.sql" &&
		test/core/sort_dump.py "$core/dump/$2.sql" >"$core/dump/$2.sorted"
}

# sound DATABASE: nvm.check() of all tables, with all entries of their indexes
sound() {
	[ "$(query "$1" "SELECT count(f) FROM pg_class c, pg_am a,
			nvm.check(c.oid, heapallindexed => true) f
		WHERE c.relam = a.oid AND a.amname = '$table_method' AND c.relkind IN ('r', 'm')
		  AND c.relpersistence <> 't'")" = 0 ]
}

# count_tables DATABASE AM: tables of an access method
count_tables() {
	query "$1" "SELECT count(*) FROM pg_class c, pg_am a
		WHERE c.relam = a.oid AND a.amname = '$2' AND c.relkind IN ('r', 'm')"
}

# count_indexes DATABASE: indexes in the pool, all of which say btree
count_indexes() {
	query "$1" "SELECT count(*) FROM pg_class c JOIN nvm.relations r ON r.relation = c.oid
		WHERE c.relkind = 'i' AND c.relam = 403"
}

# dump_and_restore METHOD: the database that regress leaves on nvm with that
# index method: sound, and its dump restored with heap and btree and with nvm and
# that method gives the same dump again.
dump_and_restore() {
	local kind instance am tables indexes name
	kind=$(kind "$1") instance=$core/regress.$kind.1/instance name="dump of $1"
	socket=$(mktemp -d "${TMPDIR:-/tmp}/sock.XXXXXX")
	rm -rf "$core/dump"
	mkdir -p "$core/dump"
	pg_ctl -w -D "$instance/data" -l "$work/log/core.d/dump-$1.postmaster.log" \
		-o "-k '$socket' -p 5432 -c listen_addresses=''" start >/dev/null
	say $? "$name: the server starts again" || return

	[ "$(query regression 'SELECT count(*) FROM nvm.check_pool()')" = 0 ]
	say $? "$name: nvm.check_pool() finds no fault"
	sound regression
	say $? "$name: nvm.check() finds no fault in any table or index"

	dump regression nvm
	say $? "$name: regression dumped"
	for am in heap "$table_method"; do
		restore "$am" "$1"
		say $? "$name: restored with $am as the default"
		tables=$(count_tables "restored_$am" "$table_method")
		indexes=$(count_indexes "restored_$am")
		if [ "$am" = heap ]; then [ "$tables" = 0 ]; else [ "$tables" -gt 300 ]; fi
		say $? "$name: $tables tables of the restored database are $table_method's"
		if [ "$am.$1" = "$table_method.identity" ]; then [ "$indexes" -gt 80 ]; else [ "$indexes" = 0 ]; fi
		say $? "$name: $indexes indexes of it are in the pool"
		dump "restored_$am" "again_$am"
		say $? "$name: dumped again from $am"
	done
	sound "restored_$table_method"
	say $? "$name: nvm.check() finds no fault in what was restored"
	diff "$core/dump/again_heap.sorted" "$core/dump/again_$table_method.sorted" >"$work/log/core.d/dump-$1.diff" 2>&1
	say $? "$name: restored with heap and restored with $table_method give the same dump"
	[ "$(grep -cv '^--' "$core/dump/again_$table_method.sorted")" -gt 10000 ]
	say $? "$name: which is not empty"
	pg_ctl -w -m fast -D "$instance/data" stop >/dev/null
	rm -rf "$instance" "$NVM_CHECK_POOLS/core_regress_${kind}_1"
}

inner() {
	local name method
	core=$NVM_CORE_WORK
	source=$core/source
	pgxs=$(dirname "$("$PG_CONFIG" --pgxs)")/../test
	major=$("$PG_CONFIG" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
	table_method=${NVM_CORE_METHOD:-nvm}
	summary='' accept=${NVM_CORE_ACCEPT:-} methods=${NVM_CORE_INDEX_METHODS:-btree identity}
	mkdir -p "$work/log/core.d"
	build_modules >"$work/log/core.d/modules.txt" 2>&1
	say $? "modules of the regress suite built"

	for name in ${NVM_CORE_SUITES:-$all_suites}; do
		if [ -z "${NVM_CORE_SUITES:-}" ] && [ $name = contrib ] && ! [ -f "test/core/exceptions/$major-contrib" ]; then
			echo "contrib: no list of exceptions for PostgreSQL $major yet, not run"
			continue
		fi
		case $name in
			regress | isolation) suite "$name" ;;
			contrib) contrib_tree && suite contrib ;;
			tap) tap_suite ;;
			dump) for method in $methods; do dump_and_restore "$method"; done ;;
			*) say 1 "there is no suite $name" ;;
		esac
	done
	echo "core: $summary"
	tally core
}

case ${1:-} in
	--copy-source) copy_source "$2" "${3:-}" ;;
	--inner) work=$NVM_CHECK_INNER; inner ;;
	*) outer "$@" ;;
esac

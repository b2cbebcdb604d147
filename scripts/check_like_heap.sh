#!/usr/bin/env bash
# Are the expected files of the regression tests what heap gives?
#
# usage: check_like_heap.sh [--write] [--isolation] DIRECTORY [TEST...]
#	--write		put heap's output in the place of the expected files
#	--isolation	the isolation specs that are named, not the regression tests
#	DIRECTORY	for the server and its logs; removed, if it was not there
#	TEST		default: all of sql/ but what is pg_nvm's own, see below
#
# Runs the scripts of sql/ unchanged on a server without pg_nvm, in which an
# access method of the name nvm is PostgreSQL's own heap: what an nvm table is
# expected to answer is thereby proven to be what a heap table answers.  Needs
# PG_CONFIG and an ordinary user.  Ends with pg_regress's list of results.
set -u

# Files about what heap tables do not have: refusals, and whatever uses objects
# of schema nvm other than the checks that each script ends with; and plans that go
# by the costs of memory.  That an index is to lie in files means nothing to heap.
own="nvm_limits publication lookup_plans"

top=$(cd "$(dirname "$0")/.." && pwd)
config=${PG_CONFIG:-pg_config}
write=0 isolation=0
if [ "${1:-}" = --write ]; then write=1; shift; fi
if [ "${1:-}" = --isolation ]; then isolation=1; shift; fi
if [ $# = 0 ]; then sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2; fi
dir=$1
shift

tests=$*
major=$("$config" --version | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
# btree of 17 takes the last entry of a page, which fails a row comparison without ending
# the scan, for one that satisfies all conditions behind it, and no longer asks other
# entries for these (_bt_check_compare(), prechecked): a = 5 AND (a, b) < (6, 9).  An
# assertion of its own finds that.  15 has no such shortcut, and 18 has not either.
[ "$major" != 17 ] || own="$own row_compare_first"
if [ $isolation = 1 ]; then
	[ -n "$tests" ] || { echo "which specs?" >&2; exit 2; }
elif [ -z "$tests" ]; then
	for f in "$top"/sql/*.sql; do
		t=$(basename "$f" .sql)
		case " $own " in *" $t "*) continue ;; esac
		# vNN_... needs PostgreSQL NN
		need=$(echo "$t" | sed -n 's/^v\([0-9]*\)_.*/\1/p')
		[ "${need:-0}" -le "$major" ] || continue
		if grep -E '\<nvm\.[a-z_]+' "$f" | grep -qvE '\<nvm\.check(_pool)?\(|^(RE)?SET nvm\.default_index_method\>'; then
			echo "$t: of pg_nvm's own"
		else
			tests="$tests $t"
		fi
	done
fi

bin=$("$config" --bindir)
regress=$(dirname "$("$config" --pgxs)")/../test/regress/pg_regress
input=$top expected=$top/expected
if [ $isolation = 1 ]; then
	regress=${regress%/regress/*}/isolation/pg_isolation_regress
	PATH=${regress%/*}:$PATH
	input=$top/test expected=$top/test/expected
fi
[ -x "$regress" ] || { echo "no $regress" >&2; exit 1; }
made=0
[ -d "$dir" ] || { mkdir -p "$dir" && made=1; } || exit 1
data=$dir/data

stop() {
	"$bin/pg_ctl" -D "$data" -m immediate -w stop >/dev/null 2>&1
	if [ $made = 1 ]; then rm -rf "$dir"; else rm -rf "$data"; fi
}
trap stop EXIT
trap 'exit 130' INT TERM HUP

# as pg_regress makes its temporary servers
"$bin/initdb" -D "$data" -U "$(id -un)" --auth trust --no-sync --no-clean --no-locale >"$dir/initdb.log" 2>&1 ||
	{ cat "$dir/initdb.log" >&2; exit 1; }
{
	grep -v pg_nvm "$top/test/regress/nvm.conf"
	echo "listen_addresses = ''"
	echo "unix_socket_directories = '$dir'"
	echo "fsync = off"
} >>"$data/postgresql.conf"
"$bin/pg_ctl" -D "$data" -l "$dir/postmaster.log" -w start >/dev/null ||
	{ tail -n 20 "$dir/postmaster.log" >&2; exit 1; }

# heap under the name nvm, and what the scripts ask pg_nvm for
PGOPTIONS="-c client_min_messages=warning" "$bin/psql" -Xq -v ON_ERROR_STOP=1 -h "$dir" -d postgres <<'SQL' || exit 1
CREATE DATABASE like_heap TEMPLATE template0;
\c like_heap
CREATE ACCESS METHOD nvm TYPE TABLE HANDLER heap_tableam_handler;
CREATE SCHEMA nvm;
CREATE FUNCTION nvm.check(regclass, bool DEFAULT false) RETURNS SETOF text LANGUAGE sql AS 'SELECT NULL::text WHERE false';
CREATE FUNCTION nvm.check_pool() RETURNS SETOF text LANGUAGE sql AS 'SELECT NULL::text WHERE false';
SET allow_system_table_mods = on;
INSERT INTO pg_extension (oid, extname, extowner, extnamespace, extrelocatable, extversion)
SELECT 1, 'pg_nvm', 10, 'nvm'::regnamespace, false, 'heap';
SQL

# shellcheck disable=SC2086
"$regress" --inputdir="$input" --outputdir="$dir" --bindir="$bin" --host="$dir" --use-existing \
	--dbname=like_heap $tests
status=$?
if [ $write = 1 ]; then
	for t in $tests; do
		cp "$dir/results/$t.out" "$expected/$t.out" && echo "wrote expected/$t.out"
	done
	exit 0
fi
exit $status

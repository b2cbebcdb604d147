#!/usr/bin/env bash
# Compile every source, without code generation, against the server headers of
# the other major versions that are supported: what src/compat is for.
#
# usage: check_headers.sh [--copy DIRECTORY] [VERSION...]
#	--copy	compile nothing: copy the headers that are found to DIRECTORY/NN, for
#			another user
#
# Headers of version NN are taken from the first that can be read of: $PGNN_INCLUDE, the
# pg_config named by $PGNN_CONFIG, /usr/lib/postgresql/NN/bin/pg_config, the server
# that build_server.sh has built, ${XDG_CACHE_HOME:-$HOME/.cache}/pg_nvm/headers/NN.
# Prints "ok", "FAILED" or "skipped" a version, where a version without headers is skipped.
set -u
copy=
case ${1:-} in
	--copy)
		copy=$(mkdir -p "${2:?}" && cd "$2" && pwd) || exit 1
		shift 2
		;;
	-*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
esac
cd "$(dirname "$0")/.."
jobs=$(nproc 2>/dev/null || echo 1)
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/pg_nvm
failed=0

find_headers() {		# find_headers VERSION
	local v=$1 include_var=PG$1_INCLUDE config_var=PG$1_CONFIG config dir
	local dirs=("${!include_var:-}")
	for config in "${!config_var:-}" "/usr/lib/postgresql/$v/bin/pg_config" \
		"$cache/server-$v/bin/pg_config"; do
		[ -z "$config" ] || [ ! -x "$config" ] || dirs+=("$("$config" --includedir-server)")
	done
	for dir in "${dirs[@]}" "$cache/headers/$v"; do
		if [ -n "$dir" ] && [ -r "$dir/postgres.h" ]; then
			echo "$dir"
			return
		fi
	done
	return 1
}

compile() {			# compile FOLDER... [-DFRONTEND], against $include
	local frontend=
	if [ "${!#}" = -DFRONTEND ]; then
		frontend=-DFRONTEND
		set -- "${@:1:$#-1}"
	fi
	# shellcheck disable=SC2086
	find "$@" -name '*.c' -print0 | xargs -0 -P "$jobs" -n 4 \
		"${CC:-gcc}" -fsyntax-only -std=gnu99 -Wall -Wextra -Werror -Wno-unused-parameter \
		-Wmissing-prototypes -Wpointer-arith -Wdeclaration-after-statement -Wvla \
		-Wimplicit-fallthrough=3 -Wcast-function-type -D_GNU_SOURCE -DNVM_VERSION='"x"' \
		-Isrc -I"$include" $frontend
}

for v in ${*:-17 18}; do
	if ! include=$(find_headers "$v"); then
		[ -n "$copy" ] ||
			echo "headers of PostgreSQL $v: skipped, none found: scripts/build_server.sh $v, or PG${v}_CONFIG or PG${v}_INCLUDE, gives them"
		continue
	fi
	if [ -n "$copy" ]; then
		mkdir -p "$copy/$v" && cp -aL "$include/." "$copy/$v/" || exit 1
		continue
	fi
	if compile src && compile bin src/verify -DFRONTEND; then
		echo "headers of PostgreSQL $v: ok"
	else
		echo "headers of PostgreSQL $v: FAILED"
		failed=1
	fi
done
exit $failed

#!/usr/bin/env bash
# Compile every source, without code generation, against the server headers of
# the other major versions that are supported: what src/compat is for.
#
# Headers of version NN are taken from the first of: $PGNN_INCLUDE, the
# pg_config named by $PGNN_CONFIG, /usr/lib/postgresql/NN/bin/pg_config, the server
# that build_server.sh has built, ${XDG_CACHE_HOME:-$HOME/.cache}/pg_nvm/headers/NN.
# A version without headers is skipped with a notice.  Prints "ok", "FAILED" or
# "skipped" a version.
set -u
cd "$(dirname "$0")/.."
jobs=$(nproc 2>/dev/null || echo 1)
cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}/pg_nvm
failed=0

find_headers() {		# find_headers VERSION
	local v=$1 include_var=PG$1_INCLUDE config_var=PG$1_CONFIG config dir
	dir=${!include_var:-}
	if [ -z "$dir" ]; then
		for config in "${!config_var:-}" "/usr/lib/postgresql/$v/bin/pg_config" \
			"$cache/server-$v/bin/pg_config"; do
			if [ -n "$config" ] && [ -x "$config" ]; then
				dir=$("$config" --includedir-server)
				break
			fi
		done
	fi
	[ -n "$dir" ] || dir=$cache/headers/$v
	[ -f "$dir/postgres.h" ] && echo "$dir"
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
		echo "headers of PostgreSQL $v: skipped, none found (set PG${v}_CONFIG or PG${v}_INCLUDE)"
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

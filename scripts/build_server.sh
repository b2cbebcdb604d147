#!/usr/bin/env bash
# A PostgreSQL server of a given major version, built from Debian's source
# package, with assertions, contrib and what its TAP tests need.
#
# usage: build_server.sh [--variant NAME] [--source DIR] [--rebuild] MAJOR
#	--variant	sanitize: with AddressSanitizer and UndefinedBehaviorSanitizer,
#			which an extension built with its pg_config gets too; memory contexts
#			and shared buffers are marked for them (asan/valgrind/memcheck.h)
#			valgrind: its servers run under valgrind's memcheck, when
#			NVM_VALGRIND says where to (check_valgrind.sh)
#	--source	unpacked source tree; else fetch_pg_source.sh gets one by apt
#	--rebuild	even if there is one
#
# Prints its pg_config.  Built once, into ${XDG_CACHE_HOME:-~/.cache}/pg_nvm/
# server-MAJOR; as root the packages that building takes are installed.  Assertions
# and debugging symbols, little optimization: it is for tests, not for figures.
# pgTAP, which is SQL alone, is taken from the packaged server, if it is there.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
source= rebuild=0 variant=
while [ $# -gt 1 ]; do
	case $1 in
		--variant) variant=$2; shift ;;
		--source) source=$2; shift ;;
		--rebuild) rebuild=1 ;;
		*) break ;;
	esac
	shift
done
case ${1:-}/$variant in
	[1-9][0-9]/ | [1-9][0-9]/sanitize | [1-9][0-9]/valgrind) major=$1 ;;
	*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0" >&2; exit 2 ;;
esac
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pg_nvm
name=$major${variant:+-$variant}
prefix=$cache/server-$name
build=$cache/build-$name
log=$cache/build-$name.log
jobs=${NVM_BUILD_JOBS:-$(nproc 2>/dev/null || echo 1)}

# the server's program is a script of ours, which may be newer than the server
wrap() {
	[ "$variant" = valgrind ] || return 0
	cmp -s "$top/scripts/valgrind_postgres.sh" "$prefix/bin/postgres" && return
	cp "$top/scripts/valgrind_postgres.sh" "$prefix/bin/postgres.new"
	mv "$prefix/bin/postgres.new" "$prefix/bin/postgres"
}

if [ "$rebuild" = 0 ] && [ -f "$prefix/complete" ]; then
	wrap
	echo "$prefix/bin/pg_config"
	exit 0
fi

"$top/scripts/ensure_packages.sh" source server $variant >&2
if [ -z "$source" ]; then
	source=$("$top/scripts/fetch_pg_source.sh" --major "$major")
fi
[ -x "$source/configure" ] || { echo "no source tree of PostgreSQL: $source" >&2; exit 1; }

failed() {
	tail -n 20 "$log" >&2
	echo "could not build PostgreSQL $major; the whole log is in $log" >&2
	exit 1
}

cflags="-O1 -g"
# COPT is for what is built here, not for what is built with its pg_config
export COPT=
case $variant in
	sanitize)
		# a program of the build that leaks, or one of configure's, is not the point
		export ASAN_OPTIONS=detect_leaks=0
		cflags="$cflags -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all"
		COPT="-DUSE_VALGRIND -I$top/scripts/asan" ;;
	valgrind)
		COPT=-DUSE_VALGRIND ;;
esac

rm -rf "$build" "$prefix"
mkdir -p "$build"
cd "$build"
"$source/configure" --prefix="$prefix" --enable-cassert --enable-debug \
	--enable-tap-tests --without-llvm --with-lz4 --with-icu --with-libxml \
	--with-uuid=e2fs CFLAGS="$cflags" >"$log" 2>&1 || failed
more=
if [ "$variant" = sanitize ]; then
	gcc -O1 -g -c -o asan_options.o "$top/scripts/asan/options.c" || failed
	more="LDFLAGS_EX=$build/asan_options.o"
fi
nice make -j"$jobs" ${more:+"$more"} >>"$log" 2>&1 || failed
nice make -j"$jobs" -C contrib >>"$log" 2>&1 || failed
make install ${more:+"$more"} >>"$log" 2>&1 || failed
make -C contrib install >>"$log" 2>&1 || failed
# what the TAP tests, pg_regress and the isolation tester need
for dir in src/test/perl src/test/regress src/test/isolation; do
	make -C "$dir" install >>"$log" 2>&1 || failed
done
for dir in /usr/share/postgresql/*/extension; do
	if [ -f "$dir/pgtap.control" ]; then
		cp "$dir"/pgtap* "$("$prefix/bin/pg_config" --sharedir)/extension/"
	fi
done
if [ "$variant" = valgrind ]; then
	cp "$source/src/tools/valgrind.supp" "$("$prefix/bin/pg_config" --sharedir)/"
	mv "$prefix/bin/postgres" "$prefix/bin/postgres.real"
	wrap
fi
chmod -R a+rX "$prefix"
cd "$cache"
rm -rf "$build"
touch "$prefix/complete"
echo "$prefix/bin/pg_config"

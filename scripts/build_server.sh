#!/usr/bin/env bash
# A PostgreSQL server of a given major version, built from Debian's source
# package, with assertions, contrib and what its TAP tests need.
#
# usage: build_server.sh [--source DIR] [--rebuild] MAJOR
#	--source	unpacked source tree; else fetch_pg_source.sh gets one by apt
#	--rebuild	even if there is one
#
# Prints its pg_config.  Built once, into ${XDG_CACHE_HOME:-~/.cache}/pg_nvm/
# server-MAJOR; as root the packages that building takes are installed.  Assertions
# and debugging symbols, little optimization: it is for tests, not for figures.
# pgTAP, which is SQL alone, is taken from the packaged server, if it is there.
set -eu

top=$(cd "$(dirname "$0")/.." && pwd)
source= rebuild=0
while [ $# -gt 1 ]; do
	case $1 in
		--source) source=$2; shift ;;
		--rebuild) rebuild=1 ;;
		*) break ;;
	esac
	shift
done
case ${1:-} in
	[1-9][0-9]) major=$1 ;;
	*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0" >&2; exit 2 ;;
esac
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pg_nvm
prefix=$cache/server-$major
build=$cache/build-$major
log=$cache/build-$major.log
jobs=${NVM_BUILD_JOBS:-$(nproc 2>/dev/null || echo 1)}

if [ "$rebuild" = 0 ] && [ -f "$prefix/complete" ]; then
	echo "$prefix/bin/pg_config"
	exit 0
fi

"$top/scripts/ensure_packages.sh" source server >&2
if [ -z "$source" ]; then
	source=$("$top/scripts/fetch_pg_source.sh" --major "$major")
fi
[ -x "$source/configure" ] || { echo "no source tree of PostgreSQL: $source" >&2; exit 1; }

failed() {
	tail -n 20 "$log" >&2
	echo "could not build PostgreSQL $major; the whole log is in $log" >&2
	exit 1
}

rm -rf "$build" "$prefix"
mkdir -p "$build"
cd "$build"
"$source/configure" --prefix="$prefix" --enable-cassert --enable-debug \
	--enable-tap-tests --without-llvm --with-lz4 --with-icu --with-libxml \
	--with-uuid=e2fs CFLAGS="-O1 -g" >"$log" 2>&1 || failed
nice make -j"$jobs" >>"$log" 2>&1 || failed
nice make -j"$jobs" -C contrib >>"$log" 2>&1 || failed
make install >>"$log" 2>&1 || failed
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
chmod -R a+rX "$prefix"
cd "$cache"
rm -rf "$build"
touch "$prefix/complete"
echo "$prefix/bin/pg_config"

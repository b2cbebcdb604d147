#!/usr/bin/env bash
# The source package of an installed PostgreSQL server, by apt, unpacked.
#
# usage: fetch_pg_source.sh [PG_CONFIG]
#		fetch_pg_source.sh --major NN	the newest that there is of NN
#
# Prints the directory of the unpacked tree.  Needs no root, and changes nothing of
# apt's (apt_source.sh).  The version is the server's if apt has it, or if it was built
# here from a tree that --major gave, else the newest that apt has of the same major
# version.  A major version that the machine's repositories do not have is looked for
# in Debian's other suites: $NVM_SOURCE_SUITES, by default "trixie sid".
#
# Kept in ${XDG_CACHE_HOME:-~/.cache}/pg_nvm; asked of apt once per server version.
set -eu

# shellcheck source=scripts/apt_source.sh
. "$(dirname "$0")/apt_source.sh"
suites=${NVM_SOURCE_SUITES:-trixie sid}
if [ "${1:-}" = --major ]; then
	version=$2
	packaged=
else
	config=${1:-${PG_CONFIG:-pg_config}}
	version=$("$config" --version | sed 's/^PostgreSQL \([0-9.]*\).*/\1/')
	packaged=$("$config" --version | sed -n 's/.*(\(Debian\|Ubuntu\) \([^)]*\)).*/\2/p')
fi
major=${version%%.*}
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pg_nvm/postgresql-$version-source

if [ -f "$cache/tree/src/test/regress/parallel_schedule" ]; then
	echo "$cache/tree"
	exit 0
fi
same=${cache%/*}/postgresql-$major-source/tree
if grep -qs "^PACKAGE_VERSION='$version'" "$same/configure"; then
	echo "$same"
	exit 0
fi
command -v apt-get >/dev/null || {
	echo "no apt-get here: unpack the source of PostgreSQL $version and name it (--source DIR)" >&2
	exit 1
}

mkdir -p "$cache"
log=$cache/apt.log
: >"$log"

failed() {
	tail -n 20 "$log" >&2
	echo "could not fetch the source of PostgreSQL $version; the whole log is in $log" >&2
	exit 1
}

apt_begin "$cache" 2>>"$log" || failed
known=$(apt_versions "postgresql-$major" 2>>"$log")
if [ -z "$known" ] && [ -n "$suites" ]; then
	# shellcheck disable=SC2086
	apt_also $suites 2>>"$log" || failed
	known=$(apt_versions "postgresql-$major" 2>>"$log")
fi
cd "$cache"
# shellcheck disable=SC2086
tarball=$(apt_orig "postgresql-$major" $packaged $known 2>>"$log")
[ -n "$tarball" ] || failed
rm -rf unpacked tree
mkdir unpacked
tar -C unpacked --strip-components=1 -xf "$tarball" >>"$log" 2>&1 || failed
case $tarball in
	*_"$version".orig.* | *_"$version".[0-9]*.orig.*) ;;
	*) echo "the server is $version, its source package $tarball" >&2 ;;
esac
mv unpacked tree
apt_end
echo "$cache/tree"

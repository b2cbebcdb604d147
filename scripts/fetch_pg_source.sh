#!/usr/bin/env bash
# The source package of an installed PostgreSQL server, by apt, unpacked.
#
# usage: fetch_pg_source.sh [PG_CONFIG]
#		fetch_pg_source.sh --major NN	the newest that there is of NN
#
# Prints the directory of the unpacked tree.  apt's sources are not changed: a
# configuration of its own, in the cache directory, asks the same repositories
# for their source packages.  Needs no root.  The version is the server's if
# apt has it, or if it was built here from a tree that --major gave, else the newest
# that apt has of the same major version.  A major version that the machine's
# repositories do not have is looked for in Debian's other suites:
# $NVM_SOURCE_SUITES, by default "trixie sid".
#
# Kept in ${XDG_CACHE_HOME:-~/.cache}/pg_nvm; asked of apt once per server version.
set -eu

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

mkdir -p "$cache/etc" "$cache/lists/partial" "$cache/archives/partial"
log=$cache/apt.log
: >"$log"

# the machine's own repositories, sources instead of binaries
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
	[ -f "$file" ] || continue
	sed -n 's/^deb \(.*\)/deb-src \1/p' "$file"
done >"$cache/etc/sources.list"
rm -rf "$cache/etc/parts"
mkdir "$cache/etc/parts"
for file in /etc/apt/sources.list.d/*.sources; do
	[ -f "$file" ] || continue
	sed 's/^Types:.*/Types: deb-src/' "$file" >"$cache/etc/parts/${file##*/}"
done

with_config() {			# with_config COMMAND ARGUMENTS...
	local command=$1
	shift
	"$command" -q -o Dir::Etc::SourceList="$cache/etc/sources.list" \
		-o Dir::Etc::SourceParts="$cache/etc/parts" \
		-o Dir::State::Lists="$cache/lists" \
		-o Dir::Cache="$cache" -o Dir::Cache::Archives="$cache/archives" \
		-o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none "$@" 2>>"$log"
}
failed() {
	tail -n 20 "$log" >&2
	echo "could not fetch the source of PostgreSQL $version; the whole log is in $log" >&2
	exit 1
}

known_versions() {
	with_config apt-cache showsrc "postgresql-$major" | sed -n 's/^Version: //p' | sort -rVu
}

with_config apt-get update >>"$log" || failed
known=$(known_versions)
if [ -z "$known" ] && [ -n "$suites" ]; then
	for suite in $suites; do
		echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
	done >>"$cache/etc/sources.list"
	with_config apt-get update >>"$log" || failed
	known=$(known_versions)
fi
cd "$cache"
rm -f -- *.orig.tar.*
# a repository may list a version that its mirror no longer has
for v in $packaged $known; do
	with_config apt-get source --download-only "postgresql-$major=$v" >>"$log" && break
done
tarball=$(ls -- *.orig.tar.* 2>/dev/null | grep -v '\.asc$' | tail -n 1) || true
[ -n "$tarball" ] || failed
rm -rf unpacked tree
mkdir unpacked
tar -C unpacked --strip-components=1 -xf "$tarball" >>"$log" 2>&1 || failed
case $tarball in
	*_"$version".orig.* | *_"$version".[0-9]*.orig.*) ;;
	*) echo "the server is $version, its source package $tarball" >&2 ;;
esac
mv unpacked tree
rm -rf lists archives etc ./*.tar.* ./*.dsc
echo "$cache/tree"

#!/usr/bin/env bash
# Install the packages that a task needs, without asking (Debian and its kin).
#
# usage: ensure_packages.sh GROUP...		groups: build check source server
#							demo bench benchbase soak sanitize valgrind sqlsmith analyze clients rails
#							pgjdbc
#
# Does nothing where all are there.  As root (sudo included) installs what is
# missing; a plain user gets the one command to type, and exit status 1.
# With PG_CONFIG set to a server of one's own, PostgreSQL's packages are left out.
# Without dpkg it only looks for the programs.
set -u

server=15
groups=" $* "
packages="gcc make libc6-dev libpmem-dev perl python3-minimal"
programs="gcc make perl python3"
if [ -z "${PG_CONFIG:-}" ] || [ ! -x "$(command -v "${PG_CONFIG:-none}")" ]; then
	packages="$packages postgresql-$server postgresql-client-$server postgresql-server-dev-$server"
fi
case $groups in
	*" check "*)
		packages="$packages libipc-run-perl libtap-parser-sourcehandler-pgtap-perl python3-psycopg2 patch pg-bsd-indent"
		programs="$programs prove patch"
		case $packages in *postgresql-*) packages="$packages postgresql-$server-pgtap" ;; esac ;;
esac
case $groups in
	*" source "*)
		packages="$packages bzip2 xz-utils"
		programs="$programs bzip2 xz" ;;
esac
case $groups in
	*" server "*)
		packages="$packages bison flex pkg-config libreadline-dev zlib1g-dev libicu-dev liblz4-dev libxml2-dev uuid-dev"
		programs="$programs bison flex pkg-config" ;;
esac
case $groups in
	*" valgrind "*)
		packages="$packages valgrind libc6-dbg"
		programs="$programs valgrind" ;;
esac
case $groups in
	*" demo "* | *" bench "*)
		packages="$packages libpq-dev python3 python3-matplotlib" ;;
esac
case $groups in
	*" benchbase "*)
		packages="$packages git maven openjdk-17-jdk-headless"
		programs="$programs git mvn javac" ;;
	*" pgjdbc "*)
		packages="$packages maven openjdk-17-jdk-headless"
		programs="$programs mvn javac" ;;
esac
case $groups in
	*" soak "*) packages="$packages python3-matplotlib" ;;
esac

case $groups in
	*" analyze "*)
		packages="$packages cppcheck clang-14 clang-tidy-14"
		programs="$programs cppcheck clang-tidy-14" ;;
esac
case $groups in
	*" sqlsmith "*)
		packages="$packages sqlsmith"
		programs="$programs sqlsmith" ;;
esac

case $groups in
	*" clients "*)
		packages="$packages python3 python3-venv"
		programs="$programs python3" ;;
esac
case $groups in
	*" rails "*)
		packages="$packages xz-utils ruby ruby-pg ruby-bcrypt ruby-builder ruby-byebug ruby-concurrent ruby-globalid ruby-i18n"
		packages="$packages ruby-minitest ruby-mocha ruby-rack ruby-sqlite3 ruby-tzinfo ruby-zeitwerk"
		programs="$programs xz ruby" ;;
esac

if ! command -v dpkg-query >/dev/null; then
	for p in $programs; do
		command -v "$p" >/dev/null || { echo "$p is needed and was not found" >&2; exit 1; }
	done
	exit 0
fi

missing=
for p in $packages; do
	status=$(dpkg-query -W -f '${db:Status-Status}' "$p" 2>/dev/null)
	[ "$status" = installed ] || missing="$missing $p"
done
[ -n "$missing" ] || exit 0

if [ "$(id -u)" != 0 ]; then
	echo "Packages are missing.  Type this once, then start again:" >&2
	echo "  sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
	exit 1
fi

# The package of the server would also make and start a cluster on port 5432,
# which nobody asked for.
no_cluster=/etc/postgresql-common/createcluster.d/pg_nvm_packages.conf
log=$(mktemp "${TMPDIR:-/tmp}/pg_nvm_packages.XXXXXX")
still=
trap 'rm -f "$no_cluster"; [ -z "$still" ] || kill "$still" 2>/dev/null' EXIT
mkdir -p "${no_cluster%/*}"
echo "create_main_cluster = false" >"$no_cluster"

echo "Installing:$missing"
echo "With what they need in turn that takes some minutes on a machine that has none of them (8 were seen)."
(
	began=$(date +%s)
	while sleep 20 >/dev/null 2>&1; do
		echo "    $(($(date +%s) - began)) s: $(tail -n 1 "$log" | cut -c 1-80)"
	done
) &
still=$!
install() {
	# shellcheck disable=SC2086
	DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
		-o DPkg::Lock::Timeout=300 $missing >>"$log" 2>&1
}
if ! install; then
	apt-get update -o DPkg::Lock::Timeout=300 >>"$log" 2>&1
	if ! install; then
		tail -n 20 "$log" >&2
		echo "could not install the packages above; the whole log is in $log" >&2
		exit 1
	fi
fi
rm -f "$log"

# doc/operations.md, "Install", says the same
case "$missing " in
	*" postgresql-$server "*)
		echo "PostgreSQL $server is installed, and no cluster of it was made.  For one of your own:"
		echo "  pg_createcluster $server main --start" ;;
esac

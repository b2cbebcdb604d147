#!/usr/bin/env bash
# A pool written under one minor version of PostgreSQL opens under another one.
#
# usage: check_minor.sh [PG_CONFIG [OTHER_PG_CONFIG]]
#	PG_CONFIG	default: that of Debian's PostgreSQL 15
#	OTHER_PG_CONFIG	of an older minor version of the same major one; default: the
#			oldest that apt has as a package, unpacked and not installed
#
# pg_nvm is built once, with the older server's headers: that is what a package's user has
# after an update of PostgreSQL.  (Newer headers may need functions that an older server lacks.)
# Servers and pools are temporary.  Ends with "N passed, N failed".
set -u

case ${1:-} in
	-*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
esac
top=$(cd "$(dirname "$0")/.." && pwd)
[ -z "${1:-}" ] || export PG_CONFIG=$1
"$top/scripts/ensure_packages.sh" check || exit 1

work=$(mktemp -d "${TMPDIR:-/tmp}/pg_nvm_minor.XXXXXX")
pools=$work/pools
[ ! -w /dev/shm ] || pools=$(mktemp -d /dev/shm/pg_nvm_minor.XXXXXX)
mkdir -p "$pools" "$work/src" "$work/tmp" "$work/log"
trap 'rm -rf "$work" "$pools"' EXIT
trap 'exit 130' INT TERM HUP
fail() {
	echo "$*" >&2
	echo "0 passed, 1 failed"
	exit 1
}

tar -C "$top" -cf - --exclude=./.git --exclude='*.o' --exclude='*.bc' --exclude='*.so' . |
	tar -C "$work/src" -xf - || exit 1
config=$("$top/scripts/private_prefix.sh" "$work/a" ${1:-}) || exit 1
version=$("$config" --version)
# The other one: the first with the other's programs.  They find their files relative to
# where they are.
if [ -n "${2:-}" ]; then
	other=$("$top/scripts/private_prefix.sh" "$work/b" "$2") || exit 1
else
	package=postgresql-$(echo "$version" | sed 's/^PostgreSQL \([0-9]*\).*/\1/')
	here=$(dpkg-query -W -f '${Version}' "$package" 2>/dev/null) ||
		fail "$package is not a package here: name another server of that version"
	old=$(apt-cache madison "$package" | awk -F ' *[|] *' '{ print $2 }' | sort -Vu | grep -vxF "$here" | head -n 1)
	[ -n "$old" ] || fail "apt knows no other minor version of $package: name a server of one"
	echo "$package $old beside $here"
	cp -a "$work/a" "$work/b"
	for part in "$package" "${package/-/-client-}" "${package/-/-server-dev-}"; do
		(cd "$work/tmp" && apt-get -q download -o APT::Sandbox::User="$(id -un)" "$part=$old") >>"$work/log/build" 2>&1 ||
			fail "apt has no $part $old to download"
	done
	for part in "$work"/tmp/*.deb; do
		dpkg -x "$part" "$work/b" || exit 1
	done
	rm -f "$work"/tmp/*.deb
	other=$work/b${config#"$work/a"}
fi
echo "$version, $("${other%/*}/postgres" --version)"

if ! make -j"$(nproc)" -C "$work/src" with_llvm=no PG_CONFIG="$other" install >"$work/log/build" 2>&1 ||
	! make -C "$work/src/test/crashimage" >>"$work/log/build" 2>&1 ||
	! make -C "$work/src/test/tools" PG_CONFIG="$other" >>"$work/log/build" 2>&1; then
	tail -n 20 "$work/log/build" >&2
	fail "pg_nvm does not compile"
fi
cp "$("$other" --pkglibdir)/pg_nvm.so" "$("$config" --pkglibdir)/" &&
	cp "$("$other" --sharedir)"/extension/pg_nvm* "$("$config" --sharedir)/extension/" || exit 1

user=
if [ "$(id -u)" = 0 ]; then
	user=postgres
	id "$user" >/dev/null 2>&1 || user=nobody
	chown -R "$user" "$work" "$pools"
fi
chmod 755 "$work" "$pools"
cd "$work/src" || exit 1
status=0
${user:+runuser -u "$user" --} env LC_ALL=C HOME="$work" TMPDIR="$work/tmp" NVM_CHECK_POOLS="$pools" \
	NVM_FIRST_SERVER="$(dirname "${other%/*}")" NVM_SECOND_SERVER="$(dirname "${config%/*}")" \
	make installcheck with_llvm=no PG_CONFIG="$config" REGRESS= ISOLATION= PROVE_FLAGS=-v \
	PROVE_TESTS='test/minor/*.pl' >"$work/log/prove" 2>&1 || status=$?
good=$(grep -c '^ok ' "$work/log/prove")
bad=$(grep -c '^not ok ' "$work/log/prove")
[ "$status" = 0 ] || [ "$bad" != 0 ] || bad=1
if [ "$bad" != 0 ]; then
	grep -A 12 -E '^not ok|^# +(Failed|Looks)|^Bailout' "$work/log/prove" | tail -n 60
	kept=$(mktemp -d "${TMPDIR:-/tmp}/pg_nvm_minor_log.XXXXXX")
	cp -R "$work/log/." "$kept/"
	cp -R tmp_check/log "$kept/tap" 2>/dev/null
	echo "logs of the failed run: $kept"
fi
echo "$good passed, $bad failed"
[ "$bad" = 0 ]

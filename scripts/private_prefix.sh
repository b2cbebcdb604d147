#!/usr/bin/env bash
# Copy an installed PostgreSQL under a directory of its own, so that an
# extension can be installed into the copy and the system's stays untouched.
#
# usage: private_prefix.sh DIRECTORY [PG_CONFIG]
#
# PG_CONFIG defaults to that of Debian's PostgreSQL 15, then to what is in the
# path.  Prints the pg_config of the copy.  PostgreSQL finds its files relative
# to its programs, so the copy keeps the paths of the original below DIRECTORY.
set -eu

to=$1
config=${2:-${PG_CONFIG:-}}
if [ -z "$config" ]; then
	for config in /usr/lib/postgresql/15/bin/pg_config pg_config; do
		if command -v "$config" >/dev/null; then break; fi
	done
fi
config=$(command -v "$config") || { echo "no pg_config: set PG_CONFIG" >&2; exit 1; }

# pg_config itself may be a wrapper elsewhere; ask it
bin=$("$config" --bindir)
for dir in "$bin" "$("$config" --pkglibdir)" "$("$config" --sharedir)" \
	"$("$config" --includedir)" "$("$config" --includedir-server)"; do
	case $dir in
		/usr/include | /usr/lib | /usr/share | /usr/bin) continue ;;
	esac
	[ -d "$dir" ] || continue
	mkdir -p "$to$dir"
	cp -aL "$dir/." "$to$dir/"
done
# shared libraries of a server that is not packaged; the packages' are anybody's
libdir=$("$config" --libdir)
case $libdir in
	/usr/lib | /usr/lib/* | /lib | /lib/*) ;;
	*)
		mkdir -p "$to$libdir"
		cp -a "$libdir"/*.so* "$to$libdir/"
		# and what nvm_poolcheck is linked with
		for archive in "$libdir"/libpgcommon.a "$libdir"/libpgport.a; do
			[ ! -f "$archive" ] || cp -a "$archive" "$to$libdir/"
		done ;;
esac
echo "$to$bin/pg_config"

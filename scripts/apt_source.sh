# shellcheck shell=bash
# Source packages by apt, for scripts that read this file.  Needs no root.  apt's sources
# are not changed: a configuration of its own asks the same repositories for their source
# packages.  apt compares what it fetches with the repository's signed lists.  What it says
# goes to the standard error.

apt_dir=

# apt_begin DIRECTORY: asks for the lists, which lie there with the configuration
apt_begin() {
	local file
	apt_dir=$1
	mkdir -p "$apt_dir/etc" "$apt_dir/lists/partial" "$apt_dir/archives/partial"
	for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ -f "$file" ] || continue
		sed -n 's/^deb \(.*\)/deb-src \1/p' "$file"
	done >"$apt_dir/etc/sources.list"
	rm -rf "$apt_dir/etc/parts"
	mkdir "$apt_dir/etc/parts"
	for file in /etc/apt/sources.list.d/*.sources; do
		[ -f "$file" ] || continue
		sed 's/^Types:.*/Types: deb-src/' "$file" >"$apt_dir/etc/parts/${file##*/}"
	done
	with_config apt-get update >&2
}

apt_also() {			# apt_also SUITE...: Debian's other suites, too
	local suite
	for suite; do
		echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main"
	done >>"$apt_dir/etc/sources.list"
	with_config apt-get update >&2
}

with_config() {			# with_config COMMAND ARGUMENTS...
	local command=$1
	shift
	"$command" -q -o Dir::Etc::SourceList="$apt_dir/etc/sources.list" \
		-o Dir::Etc::SourceParts="$apt_dir/etc/parts" \
		-o Dir::State::Lists="$apt_dir/lists" \
		-o Dir::Cache="$apt_dir" -o Dir::Cache::Archives="$apt_dir/archives" \
		-o APT::Sandbox::User="$(id -un)" -o Acquire::Languages=none "$@"
}

apt_versions() {		# apt_versions PACKAGE: those that there are, the newest first
	with_config apt-cache showsrc "$1" | sed -n 's/^Version: //p' | sort -rVu
}

# apt_orig PACKAGE VERSION...: the upstream tarball of the first of these that can be had,
# in the current directory; prints its name.  A repository may list a version that its
# mirror no longer has.
apt_orig() {
	local package=$1 version
	shift
	rm -f -- *.orig.tar.*
	for version; do
		with_config apt-get source --download-only "$package=$version" >&2 && break
	done
	find . -maxdepth 1 -name '*.orig.tar.*' ! -name '*.asc' -printf '%f\n' | tail -n 1
}

apt_end() {				# removes what apt needed, and what is in the tarball
	rm -rf "${apt_dir:?}"/{lists,archives,etc} ./*.tar.* ./*.dsc
}

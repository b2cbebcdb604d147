# shellcheck shell=bash
# Core's TAP tests of subscriptions and of recovery, for core_suites.sh, which reads
# this file.  test/core/tap.list says which of them are run with nvm tables,
# and why the others are not.

tap_list=test/core/tap.list

# tap_nodes FILE: the nodes that make nvm tables there, as a pattern; nothing if the
# file is not to be run, "?" if the list does not know it
tap_nodes() {
	awk -v file="$1" '
		NF && !/^[ \t#]/ && $1 == file {
			known = 1
			if ($2 == "runs") print $3
		}
		END { if (!known) print "?" }' "$tap_list"
}

# tap_file SUITE/NAME NODES: one file, with what it prints in $core/tap/SUITE/NAME
tap_file() {
	local dir=$core/tap/$1 pools=$NVM_CHECK_POOLS/tap/$1 status icu=no
	rm -rf "$dir" "$pools"
	mkdir -p "$dir/tmp_check/log" "$pools"
	if "$PG_CONFIG" --configure | grep -qe --with-icu; then icu=yes; fi
	if [ "$major" -ge 16 ] && ! "$PG_CONFIG" --configure | grep -qe --without-icu; then icu=yes; fi
	(
		cd "$source/src/test/${1%%/*}" &&
			TESTDIR=$dir TESTDATADIR=$dir/tmp_check TESTLOGDIR=$dir/tmp_check/log top_builddir=$core \
				PG_REGRESS=$pgxs/regress/pg_regress REGRESS_SHLIB=$core/lib/regress.so \
				PGPORT=65432 with_icu=$icu NVM_TAP_NODES=$2 NVM_TAP_POOLS=$pools \
				NVM_TAP_METHOD=$table_method \
				timeout 1800 prove -v -I "$tap_perl" -I "$pgxs/perl" "t/${1#*/}.pl"
	) >"$dir/output" 2>&1
	status=$?
	echo $status >"$dir/status"
	rm -rf "$pools"
}

# tap_verdict SUITE/NAME: all passed, at least one was run, and no server crashed
tap_verdict() {
	local dir=$core/tap/$1 tests
	tests=$(sed -n 's/^Files=1, Tests=\([0-9]*\).*/\1/p' "$dir/output")
	[ "$(cat "$dir/status")" = 0 ] && [ "${tests:-0}" -gt 0 ]
	say $? "tap/$1 (${tests:-0} tests)" ||
		grep -aE '^not ok|^#|Dubious|Bailout' "$dir/output" | head -n 20 | sed 's/^/\t/'
	if grep -asE 'PANIC:|TRAP:' "$dir"/tmp_check/log/*.log; then say 1 "tap/$1: no crash in a server's log"; fi
}

tap_suite() {
	local path file nodes files='' others=0
	tap_perl=$PWD/test/core/perl
	for path in "$source"/src/test/{subscription,recovery}/t/*.pl; do
		file=${path#"$source"/src/test/}
		file=${file%%/*}/$(basename "$path" .pl)
		nodes=$(tap_nodes "$file")
		case $nodes in
			'?') say 1 "tap/$file: $tap_list says whether it is run" ;;
			'') others=$((others + 1)) ;;
			*)
				files="$files $file"
				# they wait for each other's servers more than they compute
				while [ "$(jobs -rp | wc -l)" -ge "$((2 * $(nproc)))" ]; do wait -n; done
				tap_file "$file" "$nodes" &
				;;
		esac
	done
	wait
	for file in ${files:-none}; do
		tap_verdict "$file"
		mkdir -p "$work/log/core.d/tap"
		cp "$core/tap/$file/output" "$work/log/core.d/tap/${file%%/*}-${file#*/}" 2>/dev/null
	done
	summary="$summary${summary:+, }$(echo $files | wc -w) TAP files run"
	echo "tap: $others files have nothing to say about nvm tables: see $tap_list"
}

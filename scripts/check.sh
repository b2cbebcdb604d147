#!/usr/bin/env bash
# All tests, on temporary servers made from a private copy of PostgreSQL.
#
# usage: check.sh [--long] [--keep] [--tests=LIST] [TIER...]
#	--long	more crash images and longer runs, hours on two processors;
#			keeps the logs also if all is well
#	--keep	keep the work directory
#	--tests	only these TAP tests: topics (btree), files (btree/03_races, btree/races or
#			races), or their paths; several with spaces between them.  Without
#			tiers it means build and tap.  "make check T=LIST" is the same.
#	tiers	lint media crashimage build install headers likeheap regress
#			isolation region vlog cmdlog pgtap tap; default all.  PROVE_TESTS chooses among the TAP tests
#			by paths, REGRESS_TESTS among those of regress by names.
#			core: PostgreSQL's own suites (core_suites.sh), powerfail: the proof by
#			loss of power (test/powerfail/run), soak: one cluster that lives
#			through everything for an hour (test/soak/run), soak_vlog: one of
#			tables in memory, for half an hour, soak_cmdlog: that with calls,
#			fuzz: pools damaged by chance (test/fuzz/run; these four have their
#			options there);
#			by default only with --long.
#			sqlsmith: random statements (check_sqlsmith.sh)
#			clients: suites of clients, on heap and nvm (check_clients.sh)
#
# Installs the packages it needs, as root without asking.  Touches neither the
# installed server nor the checkout: works on copies in a temporary directory
# (below TMPDIR; without TMPDIR in /dev/shm, if there are 12 GB), and as root runs
# everything as user postgres, since servers refuse root.
# Says which tier begins, and which TAP test has ended.  Ends with what failed, the end of
# its log, and "N passed, N failed"; the logs of a failed run are kept and named.
set -u

all_tiers="lint media crashimage build install headers likeheap regress isolation region vlog cmdlog pgtap tap"
long=0 keep=0 tiers='' chosen=''
for arg; do
	case $arg in
		--long) long=1 ;;
		--keep) keep=1 ;;
		--tests=*) chosen="$chosen ${arg#*=}" ;;
		-*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
		*)
			case " $all_tiers core powerfail soak soak_vlog soak_cmdlog fuzz sqlsmith clients " in
				*" $arg "*) ;;
				*) echo "no tier $arg; there are: $all_tiers core powerfail soak soak_vlog soak_cmdlog fuzz sqlsmith clients" >&2; exit 2 ;;
			esac
			tiers="$tiers $arg"
			;;
	esac
done
top=$(cd "$(dirname "$0")/.." && pwd)
unset MAKEFLAGS MAKELEVEL MFLAGS

tap_files() {			# tap_files NAME: the files of a topic, or the file of that name
	local name=$1 file found=1
	name=${name%/}
	name=${name##*test/t/}
	name=${name%.pl}
	for file in "$name"/*.pl "$name".pl */"$name".pl */[0-9][0-9]_"$name".pl \
		"${name%/*}"/[0-9][0-9]_"${name##*/}".pl; do
		[ -f "$top/test/t/$file" ] && echo "test/t/$file" && found=0
	done
	return $found
}

if [ -n "$chosen" ]; then
	PROVE_TESTS=
	for arg in $chosen; do
		if ! files=$(cd "$top/test/t" && tap_files "$arg"); then
			echo "no TAP test $arg; topics: $(cd "$top/test/t" && echo *)" >&2
			exit 2
		fi
		PROVE_TESTS="$PROVE_TESTS $files"
	done
	PROVE_TESTS=$(echo "$PROVE_TESTS" | tr -s ' ' '\n' | awk 'NF && !seen[$0]++' | tr '\n' ' ')
	export PROVE_TESTS
	[ -n "$tiers" ] || tiers="build tap"
fi
if [ -z "$tiers" ]; then
	tiers=$all_tiers
	[ "$long" = 0 ] || tiers="$tiers core powerfail fuzz soak soak_vlog soak_cmdlog"
fi

# ---------------------------------------------------------------- outer part
# Packages, work directory, private server, and cleaning up.  May be root.

servers_here() {		# processes of servers whose data directory is below $work
	local exe
	for exe in /proc/[0-9]*/exe; do
		case $(readlink "$exe" 2>/dev/null) in
			"$work"/server/*) echo "$exe" | cut -d/ -f3 ;;
			*/memcheck-*)	# one that valgrind runs
				case $(readlink "${exe%exe}cwd" 2>/dev/null) in
					"$work"/*) echo "$exe" | cut -d/ -f3 ;;
				esac ;;
		esac
	done
}

# The tiers are a session of their own, in which timeout(1) makes more than one process
# group.  Servers are not in it: pg_ctl gives each a session.
signal_tiers() {		# signal_tiers SIGNAL
	local stat line pids=
	for stat in /proc/[0-9]*/stat; do
		{ read -r line <"$stat"; } 2>/dev/null || continue
		# behind the name, which ends with the last ")": state, parent, group, session
		# shellcheck disable=SC2086
		set -- "$1" ${line##*)}
		if [ "$5" = "$inner_pid" ]; then
			stat=${stat%/stat}
			pids="$pids ${stat##*/}"
		fi
	done
	# shellcheck disable=SC2086
	[ -n "$pids" ] && kill "-$1" -- "-$inner_pid" $pids 2>/dev/null
}

stop_leftovers() {		# end servers that a failed or interrupted test left behind
	local signal pids
	for signal in QUIT QUIT KILL; do
		pids=$(servers_here)
		[ -n "$pids" ] || return
		# shellcheck disable=SC2086
		kill -$signal $pids 2>/dev/null
		sleep 1
	done
}

clean_up() {
	local dir
	# an interrupt ends the tiers first
	if [ -n "${inner_pid:-}" ] && signal_tiers TERM; then
		sleep 2
		signal_tiers KILL
	fi
	stop_leftovers
	for dir in $mounted; do
		umount -l "$dir" 2>/dev/null
	done
	rm -rf "$pools"
	[ "$disk" = "$work" ] || rm -rf "$disk"
	if [ "$keep" = 1 ]; then
		echo "work directory kept: $work"
	elif [ -d "$work/log" ] && { [ "${failed:-1}" != 0 ] || [ "$long" = 1 ]; }; then
		cp -R "$work/src/tmp_check/log" "$work/log/tap" 2>/dev/null
		kept=$(mktemp -d "${TMPDIR:-/tmp}/pg_nvm_check_log.XXXXXX")
		cp -R "$work/log/." "$kept/"
		rm -rf "$work"
		if [ "${failed:-1}" != 0 ]; then
			echo "logs of the failed run: $kept"
		else
			echo "logs: $kept"
		fi
	else
		rm -rf "$work"
	fi
}

memory_kb() {			# what is available, at most what the cgroup has
	local kb limit file
	kb=$(awk '$1=="MemAvailable:"{print $2}' /proc/meminfo 2>/dev/null)
	for file in /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes; do
		limit=$(cat "$file" 2>/dev/null)
		case $limit in
			'' | *[!0-9]*) ;;
			*) [ $((limit / 1024)) -ge "${kb:-0}" ] || kb=$((limit / 1024)) ;;
		esac
	done
	echo "${kb:-0}"
}

outer() {
	case " $tiers " in
		*" soak "* | *" soak_vlog "* | *" soak_cmdlog "*) "$top/scripts/ensure_packages.sh" check soak || exit 1 ;;
		*) "$top/scripts/ensure_packages.sh" check || exit 1 ;;
	esac

	local user= pg_config source=${PG_CONFIG:-} shm=0 memory=0
	# in kB
	[ ! -w /dev/shm ] || shm=$(df -Pk /dev/shm | awk 'NR==2{print $4}')
	memory=$(memory_kb)
	disk=$(mktemp -d "${TMPDIR:-/tmp}/pg_nvm_check.XXXXXX")
	work=$disk
	# In memory the files that servers make and remove without end cost less of the
	# processor than on ext4.  What is kept, or runs long, lies on the disk.
	if [ -z "${TMPDIR:-}" ] && [ $keep$long = 00 ] && [ "$shm" -gt 12000000 ] && [ "$memory" -gt 12000000 ]; then
		work=$(mktemp -d /dev/shm/pg_nvm_work.XXXXXX)
		# containers often forbid to run programs from there
		if ! { cp "$(type -P true)" "$work/true" && "$work/true"; } 2>/dev/null; then
			rm -rf "$work"
			work=$disk
		fi
		rm -f "$work/true"
	fi
	pools= mounted=
	failed=1
	if [ "$shm" -gt 2000000 ]; then
		pools=$(mktemp -d /dev/shm/pg_nvm_check.XXXXXX)
		# a pool of huge pages is made, mapped and removed in a tenth of the time;
		# only root can have it
		! mount -t tmpfs -o "huge=within_size,mode=0755,size=${shm}k" \
			pg_nvm_check "$pools" 2>/dev/null || mounted=$pools
	else
		pools=$work/pools
		echo "no room on /dev/shm: the pools of the tests lie in $pools"
	fi
	trap clean_up EXIT
	trap 'exit 130' INT TERM HUP
	chmod 755 "$work" "$disk"
	mkdir -p "$work/src" "$work/log" "$work/tmp" "$pools"
	chmod 755 "$pools"

	# what git would list, and nothing that was built
	tar -C "$top" -cf - --exclude=./.git --exclude='*.o' --exclude='*.bc' --exclude='*.so' \
		--exclude=./bin/nvm_poolcheck/nvm_poolcheck --exclude=./bin/nvm_logdump/nvm_logdump \
		--exclude='*.gcno' --exclude='*.gcda' \
		--exclude=./tmp_check --exclude=./tmp_check_iso --exclude=./results . |
		tar -C "$work/src" -xf - || exit 1
	pg_config=$("$top/scripts/private_prefix.sh" "$work/server" $source) || exit 1

	case " $tiers " in
		# where the inner part looks for them
		*" headers "*) "$top/scripts/check_headers.sh" --copy "$work/.cache/pg_nvm/headers" || exit 1 ;;
	esac
	case " $tiers " in
		*" core "*) "$top/scripts/core_suites.sh" --copy-source "$work/core/source" "$pg_config" || exit 1 ;;
	esac

	case " $tiers " in
		*" clients "*) "$top/scripts/check_clients.sh" --copy-suites "$work/clients" "$pg_config" || exit 1 ;;
	esac

	export NVM_CHECK_SMALL_DIR= NVM_CHECK_FOREIGN_DIR=
	if [ "$(id -u)" = 0 ]; then
		user=postgres
		id "$user" >/dev/null 2>&1 || user=nobody
		# what only root can make: a device that is soon full, and a
		# directory that belongs to somebody else
		mkdir -p "$pools/small" && mount -t tmpfs -o size=200m,mode=0700 pg_nvm_check \
			"$pools/small" 2>/dev/null && mounted="$pools/small $mounted" &&
			NVM_CHECK_SMALL_DIR=$pools/small
		chown -R "$user" "$work" "$disk" "$pools" ${NVM_SOAK_OUT:+"$NVM_SOAK_OUT"}
		NVM_CHECK_FOREIGN_DIR=$pools/foreign
		mkdir -m 0700 "$NVM_CHECK_FOREIGN_DIR"
	fi

	set -- env HOME="$work" TMPDIR="$work/tmp" NVM_CHECK_POOLS="$pools" NVM_CHECK_DISK="$disk" \
		NVM_CHECK_LONG="$long" PG_CONFIG="$pg_config" \
		bash "$work/src/scripts/check.sh" $tiers
	cd "$work/src" || exit 1
	if [ -n "$user" ]; then
		NVM_CHECK_INNER=$work setsid runuser -u "$user" -- "$@" &
	else
		NVM_CHECK_INNER=$work setsid "$@" &
	fi
	inner_pid=$!
	wait $inner_pid
	failed=$?
	inner_pid=
	[ -z "${NVM_COVERAGE:-}" ] || cp "$work"/coverage/* "$NVM_COVERAGE/"
	[ -z "${NVM_SQLSMITH_REPORT:-}" ] || cp "$work"/sqlsmith/report/* "$NVM_SQLSMITH_REPORT/"
	# new lists of exceptions, asked for with core_suites.sh --accept
	[ -z "${NVM_CORE_ACCEPT:-}" ] || cp "$work/log/core.d"/[0-9]*-* "$NVM_CORE_ACCEPT/"
	[ -z "${NVM_POWERFAIL_REPORT:-}" ] || cp "$work/log/powerfail.d/report.md" "$NVM_POWERFAIL_REPORT"
	exit $failed
}

# ---------------------------------------------------------------- inner part
# Runs the tiers as an ordinary user.

passed=0 failed=0 skipped=0

tier_result() {			# tier_result NAME PASSED FAILED SKIPPED SECONDS
	passed=$((passed + $2)) failed=$((failed + $3)) skipped=$((skipped + $4))
	printf '%-11s %4d passed, %d failed%s  (%d s)\n' "$1" "$2" "$3" \
		"$([ "$4" = 0 ] || echo ", $4 skipped")" "$5"
	if [ "$3" != 0 ]; then
		echo "---- end of $log"
		if [ "$1" = core ]; then grep -A 12 '^not ok' "$log"; fi | tail -n 200
		tail -n 40 "$log"
		echo "----"
	fi
}

# For scripts/coverage.sh, which has given the flags: the counts of each tier apart
coverage_place() {		# coverage_place TIER
	export GCOV_PREFIX=$work/counts/$1
	GCOV_PREFIX_STRIP=$(echo "$work/src" | tr -dc / | wc -c)
	export GCOV_PREFIX_STRIP
}

# What failed in this tier, for the end of the run
note_failed() {			# note_failed < LINES
	cat >>"$work/log/$tier.d/failed"
}

# What this tier passed over, and why, for the end of the run
note_skipped() {		# note_skipped < LINES
	cat >>"$work/log/$tier.d/skipped"
}

# each command counts as one test
commands() {
	local good=0 bad=0 skipped=0 status said=$work/log/$tier.d/said
	for c; do
		echo "+ $c"
		status=0
		eval "$c" >"$said" 2>&1 || status=$?
		cat "$said"
		case $status in
			0)
				good=$((good + 1))
				;;
			77)				# it cannot run here, and has said why
				skipped=$((skipped + 1))
				echo "$c: $(tail -n 1 "$said")" | note_skipped
				;;
			*)
				bad=$((bad + 1))
				echo "$c" | note_failed
				;;
		esac
	done >>"$log" 2>&1
	echo $good $bad $skipped
}

count_pg_regress() {		# "test foo ... ok", since 16 "ok 1 - foo"
	local good bad
	good=$(grep -cE '^(test .*\.\.\. ok|ok [0-9]+)' "$log")
	bad=$(grep -cE '^(test .*\.\.\. FAILED|not ok [0-9]+)' "$log")
	grep -E '^(test .*\.\.\. FAILED|not ok [0-9]+)' "$log" | note_failed
	[ "$1" = 0 ] || [ "$bad" != 0 ] || bad=1
	echo "$good" "$bad" 0
}

count_prove() {			# subtests, and files that ended badly without one
	local total bad files skips
	total=$(sed -n 's/^Files=[0-9]*, Tests=\([0-9]*\).*/\1/p' "$log" | tail -n 1)
	bad=$(grep -oE 'Failed [0-9]+/[0-9]+ subtests' "$log" | awk '{split($2,a,"/"); n+=a[1]} END{print n+0}')
	files=$(grep -cE '^\S+ +\(Wstat: [0-9]+' "$log")
	skips=$(grep -oE 'less [0-9]+ skipped' "$log" | awk '{n+=$2} END{print n+0}')
	total=$((${total:-0} - skips))
	[ "$bad" -ge "$files" ] || bad=$files
	[ "$1" = 0 ] || [ "$bad" != 0 ] || bad=1
	echo $((total > bad ? total - bad : 0)) "$bad" "$skips"
}

# Assertions that failed, reports of sanitizers, and what the end of a transaction found not to be released:
# no test looks for them in every log, but each of them is a failure.
alarms='TRAP:|: runtime error: |ERROR: AddressSanitizer|WARNING:  (.* (reference|refcount|pin|lock) leak|.*still referenced|resource was not closed|.*write past chunk|problem in alloc set)'

calm() {			# calm PASSED FAILED SKIPPED LOG...: of these servers, too
	local good=$1 bad=$2 skips=$3
	shift 3
	if grep -asE "$alarms" "$@" >>"$log"; then bad=$((bad + 1)); fi
	echo "$good" "$bad" "$skips"
}

pool_conf() {			# pool_conf NAME: settings that put the pool on $NVM_CHECK_POOLS
	echo "nvm.pool_directory = '$NVM_CHECK_POOLS/$1'" >"$work/tmp/$1.conf"
	echo "--temp-config=$work/tmp/$1.conf"
}

# What a sanitizer or memcheck said in this tier, in files of the directory
# $NVM_REPORTS (check_sanitize.sh, check_valgrind.sh): each file is a failure.
reported() {			# reported PASSED FAILED SKIPPED
	local bad=$2 file
	for file in "${NVM_REPORTS:-/nonexistent}"/*.[0-9]*; do
		[ -s "$file" ] || continue
		bad=$((bad + 1))
		echo "---- report ${file##*/}"
		head -n 60 "$file"
		mv "$file" "$work/log/$tier.d/"
	done >>"$log"
	echo "$1" "$bad" "$3"
}

jobs=$(nproc 2>/dev/null || echo 1)

tier_lint() {
	commands scripts/check_layers.py scripts/check_drain_names.py scripts/check_tests.py \
		test/core/compare_test.py test/clients/compare_test.py test/powerfail/check_faults "scripts/indent.py --check"
}

tier_media() {
	commands "make -C test/media layout" "make -C test/media packed"
}

tier_crashimage() {
	commands "make -j$jobs -C test/crashimage" "make -C test/crashimage check"
}

tier_build() {
	# no code for the just-in-time compiler where lines are counted
	local jit=
	[ -z "${NVM_COVERAGE:-}" ] || jit=with_llvm=no
	commands "make -j$jobs $jit" "make install $jit" "make -C test/tools"
}

# what was installed can be removed, and nothing remains
tier_install() {
	commands "make install DESTDIR=$work/tmp/dest" "make uninstall DESTDIR=$work/tmp/dest" \
		"! find $work/tmp/dest ! -type d | grep ."
}

tier_headers() {
	scripts/check_headers.sh >"$log" 2>&1
	sed -n '/: skipped/p' "$log" | note_skipped
	echo "$(grep -c ': ok$' "$log")" "$(grep -c ': FAILED$' "$log")" "$(grep -c ': skipped' "$log")"
}

# the expected files of the next tier are what heap gives
tier_likeheap() {
	local status=0
	mkdir -p "$work/tmp/likeheap"
	scripts/check_like_heap.sh "$work/tmp/likeheap" >"$log" 2>&1 || status=$?
	count_pg_regress $status
	cp "$work"/tmp/likeheap/{regression.diffs,postmaster.log} "$work/log/likeheap.d/" 2>/dev/null
}

tier_regress() {
	local status=0
	make installcheck ISOLATION= TAP_TESTS= EXTRA_REGRESS_OPTS="$(pool_conf regress)" \
		${REGRESS_TESTS:+REGRESS="$REGRESS_TESTS"} >"$log" 2>&1 || status=$?
	# shellcheck disable=SC2046
	calm $(count_pg_regress $status) log/postmaster.log
	cp regression.diffs log/* results/*.out "$work/log/regress.d/" 2>/dev/null
}

tier_isolation() {
	local status=0
	make installcheck REGRESS= TAP_TESTS= EXTRA_REGRESS_OPTS="$(pool_conf isolation)" >"$log" 2>&1 || status=$?
	# shellcheck disable=SC2046
	calm $(count_pg_regress $status) output_iso/log/postmaster.log
	cp output_iso/regression.diffs output_iso/log/* "$work/log/isolation.d/" 2>/dev/null
}

# Both again, with all nvm tables in memory: alone, or brought back by the log.  The
# settings go behind the suites' own, which would win over those of EXTRA_REGRESS_OPTS.
# Without space_reuse, which measures the pool, where these tables are not.
in_memory() {			# in_memory TIER LOGGED
	local status=0 suite conf=test/regress/nvm.conf names=${REGRESS_TESTS:-$(make -s print-regress | sed 's/\<space_reuse\>//')}
	cp "$conf" "$work/tmp/nvm.conf"
	for suite in regress isolation; do
		{
			cat "$work/tmp/nvm.conf"
			echo "nvm.pool_directory = '$NVM_CHECK_POOLS/$1_$suite'"
			echo "shared_preload_libraries = 'pg_nvm,$PWD/test/tools/nvm_dram'"
			echo "nvm_dram.all = on"
			echo "nvm_dram.log = $2"
		} >"$conf"
		if [ $suite = regress ]; then
			make installcheck ISOLATION= TAP_TESTS= REGRESS="$names" >"$log" 2>&1 || status=$?
			grep -q 'nvm_dram: all tables' log/postmaster.log || status=1
		else
			make installcheck REGRESS= TAP_TESTS= >>"$log" 2>&1 || status=$?
			grep -q 'nvm_dram: all tables' output_iso/log/postmaster.log || status=1
		fi
	done
	cp "$work/tmp/nvm.conf" "$conf"
	# shellcheck disable=SC2046
	calm $(count_pg_regress $status) log/postmaster.log output_iso/log/postmaster.log
	cat regression.diffs output_iso/regression.diffs >"$work/log/$1.d/regression.diffs" 2>/dev/null
	cp log/* "$work/log/$1.d/" 2>/dev/null
}

tier_region() {
	in_memory region off
}

tier_vlog() {
	in_memory vlog on
}

# The same by the routine of nvm_cmdlog, which is to give what nvm_vlog's gives: here the
# extension's script makes it nvm's.
tier_cmdlog() {
	local script
	script=$("$PG_CONFIG" --sharedir)/extension/pg_nvm--0.1.sql
	cp "$script" "$work/tmp/script.sql"
	sed "s/^AS 'MODULE_PATHNAME', 'nvm_tableam_handler'/AS 'MODULE_PATHNAME', 'nvm_cmdlog_handler'/" \
		"$work/tmp/script.sql" >"$script"
	if cmp -s "$work/tmp/script.sql" "$script"; then
		echo "the extension's script has no handler to exchange" >"$log"
		echo 0 1 0
	else
		in_memory cmdlog on
	fi
	cp "$work/tmp/script.sql" "$script"
}

tier_pgtap() {
	local status=0
	scripts/check_pgtap.sh "$work/tmp/pgtap" "$NVM_CHECK_POOLS/pgtap" >"$log" 2>&1 || status=$?
	# shellcheck disable=SC2046
	calm $(count_prove $status) "$work/tmp/pgtap.log"
	cp "$work/tmp/pgtap.log" "$work/log/pgtap.d/" 2>/dev/null
}

# The TAP tests that take longest come first, so that none of them runs alone at the end.
# size/wide_and_large, size/bulk and recovery/restart_time have pools of gigabytes and wait
# for each other.
longest="power/power_failure recovery/crash_fences btree/index_crash log/prepared
	space/update_churn stress/mixed_soak log/power_failure ddl/index_ddl ddl/alter_forms btree/settle btree/model btree/persistence
	size/bulk stress/clients ddl/ddl_crash basic/differential_kinds xid/xid_promise
	recovery/concurrent_crash recovery/restart_time basic/differential pool/bad_input
	commit/not_resurrected recovery/vacuum_index_wal power/any_moment stress/interrupts
	space/leaks prepared/prepared_stress size/wide_and_large"

tap_order() {			# all TAP tests, those first
	local name t first=
	for name in $longest; do
		first="$first $(echo test/t/"${name%/*}"/[0-9][0-9]_"${name#*/}".pl)"
	done
	for t in $first test/t/*/*.pl; do
		[ -f "$t" ] && echo "$t"
	done | awk '!seen[$0]++' | tr '\n' ' '
}

tier_tap() {
	# a test that hangs does not keep the others from being reported; one more at a
	# time than processors, as many of them wait now and then
	local limit=${NVM_TAP_LIMIT:-1600} provers=$((jobs + 1)) tests=${PROVE_TESTS:-} status
	if [ "$long" = 1 ]; then
		limit=10800
	fi
	[ -n "$tests" ] || tests=$(tap_order)
	timeout $limit \
		make installcheck REGRESS= ISOLATION= PROVE_FLAGS="-j$provers --timer" \
		PROVE_TESTS="$tests" 2>&1 3>&- | tee "$log" | tap_progress
	status=${PIPESTATUS[0]}
	[ "$status" = 0 ] || tap_failed "$tests" | note_failed
	# shellcheck disable=SC2046
	calm $(count_prove "$status") tmp_check/log/*.log
}

tap_progress() {		# each file as it ends, and what failed in it
	sed -un -e '/^\[[0-9:]*\] test\/t\//{s/ *( *[0-9.]* usr.*$//;p}' \
		-e '/^# *Failed test/p' -e '/^Dubious/p' -e '/^Failed [0-9]/p' >&3
}

tap_failed() {			# tap_failed FILES: those that failed or did not end, with the end of their logs
	local file
	for file in $1; do
		grep -qE "^\[[0-9:]*\] $file \.+ +(ok|skipped)" "$log" && continue
		if ! grep -qF "] $file " "$log"; then
			echo "$file had not ended"
		else
			echo "$file failed"
		fi
		file=tmp_check/log/regress_log_$(basename "$file" .pl)
		[ -f "$file" ] || continue
		echo "  the end of $(basename "$file"):"
		tail -n 40 "$file" | sed 's/^/  /'
	done
}

# test/powerfail/run has the options; a long run of all tiers has these
tier_powerfail() {
	local status
	: "${NVM_POWERFAIL:=--images 600 --minutes 20}"
	export NVM_POWERFAIL="$NVM_POWERFAIL --report $work/log/powerfail.d/report.md"
	timeout "${NVM_POWERFAIL_LIMIT:-14400}" \
		make installcheck REGRESS= ISOLATION= PROVE_FLAGS=-v PROVE_TESTS=test/powerfail/driver.pl 2>&1 3>&- |
		tee "$log" | powerfail_progress
	status=${PIPESTATUS[0]}
	count_prove "$status"
}

powerfail_progress() {	# each crash as it is explored
	if [ "$long" = 0 ]; then
		sed -un -e '/^\(not \)\{0,1\}ok /p' -e '/^#/p' >&3
	else
		cat >/dev/null
	fi
}

# for how long, test/soak/run says
soak() {				# soak METHOD MINUTES
	local minutes=${NVM_SOAK_MINUTES:-$2} out=${NVM_SOAK_OUT:-$work/log/$tier.d} status
	NVM_SOAK_METHOD=$1 NVM_SOAK_MINUTES=$minutes NVM_SOAK_OUT=$out timeout $((minutes * 120 + 1800)) \
		make installcheck REGRESS= ISOLATION= PROVE_FLAGS=--timer PROVE_TESTS=test/t/stress/04_soak.pl 2>&1 3>&- |
		tee "$log" | sed -un '/^# \[[0-9:]*\] /s/^# //p;/^# .*, crash [0-9]/p' >&3
	status=${PIPESTATUS[0]}
	python3 test/soak/plot.py "$out" >>"$log" 2>&1
	# shellcheck disable=SC2046
	calm $(count_prove "$status") tmp_check/log/04_soak*.log
}

tier_soak() {
	soak nvm 60
}

tier_soak_vlog() {
	soak nvm_vlog 30
}

tier_soak_cmdlog() {
	soak nvm_cmdlog 30
}

# how many images and for how long, test/fuzz/run says
tier_fuzz() {
	local minutes=${NVM_FUZZ_MINUTES:-20} status
	NVM_FUZZ_IMAGES=${NVM_FUZZ_IMAGES:-600} NVM_FUZZ_MINUTES=$minutes timeout $((minutes * 120 + 1800)) \
		make installcheck REGRESS= ISOLATION= PROVE_FLAGS=-v PROVE_TESTS=test/t/damage/07_fuzz.pl 2>&1 3>&- |
		tee "$log" | fuzz_progress
	status=${PIPESTATUS[0]}
	# shellcheck disable=SC2046
	calm $(count_prove "$status") /dev/null
}

fuzz_progress() {		# what was found, and the tables at the end
	if [ "$long" = 0 ]; then
		sed -un -e '/^not ok /p' -e '/^#/p' >&3
	else
		cat >/dev/null
	fi
}

# core_suites.sh counts for itself
tier_core() {
	NVM_CORE_WORK=$work/core timeout ${NVM_CORE_LIMIT:-10800} scripts/core_suites.sh --inner >"$log" 2>&1
	count_core $?
}

# so does check_sqlsmith.sh
tier_sqlsmith() {
	NVM_SQLSMITH_WORK=$work/sqlsmith scripts/check_sqlsmith.sh --inner 2>&1 | tee "$log" >&3
	count_core "${PIPESTATUS[0]}"
}

# and check_clients.sh, whose tests that pass are too many to print
tier_clients() {
	NVM_CLIENTS_WORK=$work/clients scripts/check_clients.sh --inner 2>&1 | tee "$log" | sed -u '/ (listed)$/b;/^ok .*\//d' >&3
	count_core "${PIPESTATUS[0]}"
}

count_core() {
	local good bad
	good=$(grep -c '^ok ' "$log")
	bad=$(grep -c '^not ok ' "$log")
	[ "$1" = 0 ] || [ "$bad" != 0 ] || bad=1
	echo "$good" "$bad" 0
}

inner() {
	local tier began result
	work=$NVM_CHECK_INNER
	long=${NVM_CHECK_LONG:-0}
	export PATH="${PG_CONFIG%/*}:$PATH"
	export PG_TEST_TIMEOUT_DEFAULT=${PG_TEST_TIMEOUT_DEFAULT:-$((long ? 300 : 120))}
	export LC_ALL=C PG_CONFIG
	# of a server that was built, the copy's own libraries: see private_prefix.sh
	if [ -d "$("$PG_CONFIG" --libdir)" ]; then
		LD_LIBRARY_PATH=$("$PG_CONFIG" --libdir)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
		export LD_LIBRARY_PATH
	fi
	unset PGHOST PGPORT PGDATA PGUSER PGDATABASE PGOPTIONS PGSERVICE
	# every tier that runs a server needs the build
	case " $tiers " in
		*" build "*) ;;
		*" regress "* | *" isolation "* | *" region "* | *" vlog "* | *" cmdlog "* | *" pgtap "* | *" tap "* | *" install "* | *" core "* | *" powerfail "* | *" soak "* | *" soak_vlog "* | *" soak_cmdlog "* | *" fuzz "* | *" sqlsmith "* | *" clients "*) tiers="build $tiers" ;;
	esac
	exec 3>&1
	for tier in $tiers; do
		log=$work/log/$tier.log
		mkdir -p "$work/log/$tier.d"
		began=$SECONDS
		[ -z "${NVM_COVERAGE:-}" ] || coverage_place "$tier"
		echo "[$(date +%T)] $tier"
		result=$(tier_$tier)
		# shellcheck disable=SC2046,SC2086
		tier_result "$tier" $(reported $result) $((SECONDS - began))
		sed -n 's/^core: \(.* \(byte for byte\|TAP files\).*\)$/\1/p' "$log"
		if [ "$tier" = build ] && [ "$failed" != 0 ] && [ ! -f pg_nvm.so ]; then
			echo "nothing to test: the build failed"
			break
		fi
	done
	[ -z "${NVM_COVERAGE:-}" ] ||
		scripts/coverage_report.py "$work/src" "$work/counts" "$work/coverage"
	for tier in $tiers; do
		[ -s "$work/log/$tier.d/failed" ] || continue
		echo "---- failed in $tier:"
		cat "$work/log/$tier.d/failed"
	done
	for tier in $tiers; do
		[ -s "$work/log/$tier.d/skipped" ] || continue
		echo "---- passed over in $tier:"
		cat "$work/log/$tier.d/skipped"
	done
	[ "$skipped" = 0 ] || echo "$skipped skipped: the reasons are above, or in the tests"
	echo "$passed passed, $failed failed"
	[ "$failed" = 0 ]
}

if [ -n "${NVM_CHECK_INNER:-}" ]; then inner; else outer; fi

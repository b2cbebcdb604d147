# shellcheck shell=bash
# The regress and isolation suites of some of contrib's modules, for
# core_suites.sh, which reads this file and compares what they print on heap and on
# nvm, as it does with core's.

contrib_modules="pg_trgm btree_gin hstore citext tablefunc postgres_fdw pg_stat_statements"

# contrib_tests MODULE VARIABLE: what its Makefile says that is to be run
contrib_tests() {
	sed '/^ifdef USE_PGXS/,$d' "$source/contrib/$1/Makefile" >"$core/contrib/$1.mk"
	printf 'include %s\nprint: ; @echo $(%s)\n' "$core/contrib/$1.mk" "$2" | make -s -f - print
}

# What compare.py looks at besides results: a schedule of all, and what is expected
contrib_tree() {
	local module
	mkdir -p "$core/contrib/expected"
	for module in $contrib_modules; do
		ln -sfn "$source/contrib/$module/expected" "$core/contrib/expected/$module"
		printf "test: $module/%s\n" $(contrib_tests "$module" REGRESS) $(contrib_tests "$module" ISOLATION)
	done >"$core/contrib/contrib_schedule"
	[ "$(wc -l <"$core/contrib/contrib_schedule")" -gt 40 ]
	say $? "contrib: tests found"
}

# run_contrib KIND RUN: all modules, one after the other, on one server, results
# in $core/contrib.KIND.RUN/results/MODULE.  The database that each leaves is looked
# at with nvm's checks, and gone when the next one begins.
run_contrib() {
	local out=$core/contrib.$1.$2 module tests pool=core_contrib_$1_$2
	mkdir -p "$out/results" "$out/log"
	socket=$(mktemp -d "${TMPDIR:-/tmp}/sock.XXXXXX")
	initdb -D "$out/data" -A trust --no-locale -E UTF8 --no-sync >"$out/log.txt" 2>&1 || return
	{
		# as pg_regress has it for its servers
		printf '%s\n' "max_prepared_transactions = 2" "log_line_prefix = '%m %b[%p] %q%a '"
		cat "$source/contrib/pg_stat_statements/pg_stat_statements.conf"
		settings "$1" "$pool"
		echo "shared_preload_libraries = 'pg_stat_statements, pg_nvm'"
		# on a busy machine it would come in the middle of postgres_fdw's plans
		echo "autovacuum = off"
	} >>"$out/data/postgresql.conf"
	# postgres_fdw's tests connect to the server itself, by libpq's default
	PGHOST=$socket pg_ctl -w -D "$out/data" -l "$out/log/postmaster.log" \
		-o "-k '$socket' -p 5432 -c listen_addresses=''" start >>"$out/log.txt"
	say $? "contrib on $1: the server starts" || return
	for module in $contrib_modules; do
		tests=$(contrib_tests "$module" REGRESS)
		contrib_program "$1" "$2" "$module" regress/pg_regress $tests
		tests=$(contrib_tests "$module" ISOLATION)
		[ -z "$tests" ] || contrib_program "$1" "$2" "$module" isolation/pg_isolation_regress $tests
	done
	[ "$(query contrib_regression 'SELECT count(*) FROM nvm.check_pool()')" = 0 ]
	say $? "contrib on $1: nvm.check_pool() finds no fault"
	pg_ctl -w -m fast -D "$out/data" stop >>"$out/log.txt"
	no_crash "contrib on $1" "$out/log/postmaster.log"
	rm -rf "$out/data" "$NVM_CHECK_POOLS/$pool" "$socket"
}

# contrib_program KIND RUN MODULE PROGRAM TEST...
contrib_program() {
	local kind=$1 out=$core/contrib.$1.$2 module=$3 program=$4 extension='' options='' input
	shift 4
	input=$(scripts_of contrib "$kind" "$module") || { say 1 "contrib: tests written"; return; }
	# the others' plans shall not show identifiers of queries, which it asks for
	[ "$module" = pg_stat_statements ] || options="-c compute_query_id=regress"
	# an isolation test has no script that makes the extension
	[ "${program%%/*}" = regress ] || extension=--load-extension=$module
	# its exit status says how many differ from PostgreSQL's expectation
	PGOPTIONS=$options PATH=$pgxs/isolation:$PATH "$pgxs/$program" --bindir="${PG_CONFIG%/*}" \
		--host="$socket" --port=5432 --dbname=contrib_regression \
		--inputdir="$input" --outputdir="$out/$module" \
		--load-extension=pg_nvm $extension "$@" >>"$out/log.txt" 2>&1
	mkdir -p "$out/results/$module"
	cp "$out/$module"/results/*.out "$out/results/$module/"
	sound contrib_regression
	say $? "contrib on $kind: nvm.check() finds no fault in what $module's ${program%%/*} left"
}

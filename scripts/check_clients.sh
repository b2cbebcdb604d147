#!/usr/bin/env bash
# The test suites of clients: each once with heap tables and btree indexes and once with
# nvm tables and indexes that say btree (nvm.index_identity = btree).  The same tests
# must pass and fail.
#
# usage: check_clients.sh [--suites LIST] [--fetch-only] [--keep]
#	--suites	some of: sqlalchemy django psycopg2 alembic asyncpg rails pgjdbc; default: all
#	--fetch-only	fetch and install what they need, and run nothing
#	--keep		keep the work directory, results included
#
# pip fetches them, apt that of Rails and Maven that of pgJDBC, in the versions of
# test/clients/requirements; another one is chosen by NVM_CLIENTS_SQLALCHEMY=2.1.8 and the
# like.  They are kept in
# ${XDG_CACHE_HOME:-~/.cache}/pg_nvm/clients.  Tests that may differ stand in
# test/clients/exceptions with reasons.
#
# Runs as the tier "clients" of check.sh: on a private copy of the server and never as
# root.  Ends with "N passed, N failed".  See test/clients/README.md.
set -u

top=$(cd "$(dirname "$0")/.." && pwd)
all_suites="sqlalchemy django psycopg2 alembic asyncpg rails pgjdbc"
. "$top/scripts/tally.sh"
. "$top/scripts/apt_source.sh"

# ---------------------------------------------------------------- outer part

outer() {
	local keep= fetch_only=
	while [ $# -gt 0 ]; do
		case $1 in
			--suites) export NVM_CLIENTS_SUITES=$2; shift ;;
			--fetch-only) fetch_only=1 ;;
			--keep) keep=--keep ;;
			*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
		esac
		shift
	done
	if [ -n "$fetch_only" ]; then
		ensure_packages || exit 1
		fetch_all "${PG_CONFIG:-pg_config}"
		exit
	fi
	exec "$top/scripts/check.sh" $keep clients
}

ensure_packages() {
	# some suites are groups, too
	# shellcheck disable=SC2086
	"$top/scripts/ensure_packages.sh" clients ${NVM_CLIENTS_SUITES:-$all_suites}
}

# What the suites need, into directory $1.  Called by check.sh before it gives up root;
# $2 is the pg_config of its server.
copy_suites() {
	local suite
	ensure_packages || return 1
	fetch_all "$2" || return 1
	mkdir -p "$1" || return 1
	for suite in ${NVM_CLIENTS_SUITES:-$all_suites}; do
		cp -R "$(place_of "$suite")" "$1/$suite" || return 1
	done
}

# The system's, as another one may be root's alone
python=/usr/bin/python3
[ -x $python ] || python=python3
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/pg_nvm/clients

# requirements_of SUITE: what is to be fetched, in the version that was asked for
requirements_of() {
	local file=$top/test/clients/requirements/$1.txt other name version
	if ! [ -f "$file" ]; then
		echo "there is no suite $1" >&2
		return 1
	fi
	other=$(echo "NVM_CLIENTS_$1" | tr '[:lower:]' '[:upper:]')
	other=${!other:-}
	name=$(sed -nE 's/^# (sdist|source|maven): (.*)==.*/\2/p' "$file")
	version=$(sed -nE 's/^# (sdist|source|maven): .*==//p' "$file")
	sed "s/\<\($name\(-binary\)\{0,1\}\)==$version$/\1==${other:-$version}/" "$file"
}

# place_of SUITE: its directory in the cache, another one for other requirements
place_of() {
	echo "$cache/$1-$({ $python --version; requirements_of "$1"; } | sha256sum | cut -c 1-12)"
}

fetch_all() {				# fetch_all PG_CONFIG
	local suite
	mkdir -p "$cache" && exec 9>"$cache/lock" && flock 9 || return 1
	for suite in ${NVM_CLIENTS_SUITES:-$all_suites}; do
		requirements_of "$suite" >/dev/null || return 1
		[ -f "$(place_of "$suite")/complete" ] || fetch "$suite" "$1" || {
			echo "could not fetch $suite; the whole log is in $cache/$suite.log" >&2
			return 1
		}
	done
}

# fetch SUITE PG_CONFIG: its sources, and what else of its requirements is not the system's
fetch() {
	local place log=$cache/$1.log
	place=$(place_of "$1")
	: >"$log"
	echo "fetching $1"
	rm -rf "$place"
	mkdir -p "$place/tree"
	requirements_of "$1" >"$place/requirements.txt"
	case $(<"$place/requirements.txt") in
		*"# source: "*) fetch_by_apt "$place" ;;
		*"# maven: "*) fetch_by_maven "$place" ;;
		*) fetch_by_pip "$place" "$2" ;;
	esac >>"$log" 2>&1 && touch "$place/complete"
}

# fetch_by_apt PLACE: the upstream version that is wanted, of whichever revision of Debian's
fetch_by_apt() (
	cd "$1" || exit
	package=$(sed -n 's/^# source: \(.*\)==.*/\1/p' requirements.txt)
	version=$(sed -n 's/^# source: .*==//p' requirements.txt)
	apt_begin "$1" || exit
	known=$(apt_versions "$package")
	# shellcheck disable=SC2046
	tarball=$(apt_orig "$package" $(grep -F "$version-" <<<"$known"))
	if [ -z "$tarball" ]; then
		echo "no $package $version is to be had.  apt has:"
		echo "$known"
		exit 1
	fi
	tar -C tree --strip-components=1 -xf "$tarball" && apt_end
)

# fetch_by_maven PLACE: the sources, compiled, and in lib what their tests need.  Maven compares
# what it fetches with the checksums that the repository tells.
fetch_by_maven() (
	cd "$1" || exit
	artifact=$(sed -n 's/^# maven: \(.*\)==\(.*\)/\1:\2/p' requirements.txt)
	console=$(sed -n 's/^# console: //p' requirements.txt)
	copy=org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy
	maven() { mvn -B -ntp --strict-checksums -Dmaven.repo.local="$PWD/repository" "$@"; }
	maven $copy -Dartifact="$artifact:tar.gz:jdbc-src" -DoutputDirectory="$PWD/sdist" &&
		maven $copy -Dartifact="$console" -DoutputDirectory="$PWD/lib" &&
		tar -C tree --strip-components=1 -xf sdist/*.tar.gz &&
		maven -f tree/pom.xml test-compile $copy-dependencies -DoutputDirectory="$PWD/lib" \
			-DexcludeGroupIds=org.junit.jupiter,org.junit.platform,org.junit.vintage,junit &&
		rm -rf repository
)

# fetch_by_pip PLACE PG_CONFIG: an environment of Python's with its requirements, and its sources.
# pip compares both with the hashes that the index tells.
fetch_by_pip() {
	local place=$1 sdist tools
	tools=$(place_of tools)
	# pip wants a source package's metadata, for which some tools are enough
	if ! [ -f "$tools/complete" ]; then
		rm -rf "$tools"
		$python -m venv "$tools" &&
			"$tools/bin/python" -m pip install -r "$top/test/clients/requirements/tools.txt" &&
			touch "$tools/complete" || return 1
	fi
	mkdir -p "$place/sdist"
	sdist=$(sed -n 's/^# sdist: //p' "$place/requirements.txt")
	$python -m venv "$place/venv" &&
		"$tools/bin/python" -m pip --python "$place/venv/bin/python" install --only-binary :all: \
			-r "$place/requirements.txt" || return 1
	# psycopg2's asks for pg_config
	PATH="${2%/*}:$PATH" "$tools/bin/python" -m pip download --no-deps --no-binary :all: \
		--no-build-isolation -d "$place/sdist" "$sdist" || return 1
	tar -C "$place/tree" --strip-components=1 -xf "$place"/sdist/*.tar.gz
}

# ---------------------------------------------------------------- inner part
# Runs in check.sh's work directory as an ordinary user, with pg_nvm installed
# in the private copy of the server.

query() {				# query DATABASE SQL: the answer, one value
	psql -XAtq -v ON_ERROR_STOP=1 -h 127.0.0.1 -U postgres -d "$1" -c "$2"
}

settings() {				# settings KIND POOL
	local am=nvm index=nvm_btree
	if [ "$1" = heap ]; then am=heap index=btree; fi
	cat <<-END
		shared_preload_libraries = 'pg_nvm'
		default_table_access_method = '$am'
		nvm.default_index_method = '$index'
		nvm.index_identity = 'btree'
		nvm.pool_directory = '$2'
		nvm.pool_max_size = '8GB'
		listen_addresses = '127.0.0.1'
		port = $PGPORT
		unix_socket_directories = ''
		fsync = off
		max_prepared_transactions = 20
		log_line_prefix = '%m [%p] %e %d '
	END
}

# start_server SUITE KIND: with pg_nvm in the database that others are made of, and role
# scott, as SQLAlchemy's documentation has it.  A foreign server without an address is itself.
start_server() {
	local out=$clients/$1.$2
	mkdir -p "$out"
	export PGPORT=$((20000 + RANDOM % 20000))
	initdb -D "$out/data" -A trust -E UTF8 --no-locale --no-sync -U postgres >"$out/initdb.log" 2>&1 &&
		settings "$2" "$NVM_CHECK_POOLS/clients_$1_$2" >>"$out/data/postgresql.conf" &&
		PGHOST=127.0.0.1 pg_ctl -w -D "$out/data" -l "$out/server.log" start >/dev/null &&
		query template1 "CREATE EXTENSION pg_nvm" &&
		query postgres "CREATE EXTENSION pg_nvm" &&
		query postgres "CREATE ROLE scott SUPERUSER LOGIN PASSWORD 'tiger'" &&
		query postgres "CREATE DATABASE test OWNER scott"
	say $? "$1 on $2: the server starts"
}

# What the suite will make is what it should be
right_methods() {			# right_methods SUITE KIND
	local answer expected='heap btree 0'
	[ "$2" = heap ] || expected='nvm btree 1'
	answer=$(query test "CREATE TABLE probe (a int PRIMARY KEY)" &&
		query test "SELECT string_agg(amname, ' ' ORDER BY relkind DESC) ||
				' ' || (SELECT count(*) FROM nvm.relations WHERE relation = 'probe_pkey'::regclass AND kind = 'i')
			FROM pg_class c JOIN pg_am a ON a.oid = relam WHERE relname LIKE 'probe%'" &&
		query test "DROP TABLE probe")
	[ "$answer" = "$expected" ]
	say $? "$1 on $2: tables and indexes are $expected"
}

# What it left: no fault in the pool or in any database, none in the log
stop_server() {				# stop_server SUITE KIND
	local out=$clients/$1.$2 database found=
	[ "$(query postgres 'SELECT count(*) FROM nvm.check_pool()')" = 0 ]
	say $? "$1 on $2: nvm.check_pool() finds no fault"
	for database in $(query postgres "SELECT datname FROM pg_database WHERE datallowconn AND datname <> 'template0'"); do
		# a suite may drop the extension
		[ "$(query "$database" "SELECT count(*) FROM pg_extension WHERE extname = 'pg_nvm'")" = 1 ] || continue
		[ "$(query "$database" "SELECT count(f) FROM pg_class c, pg_am a, nvm.check(c.oid, heapallindexed => true) f
			WHERE c.relam = a.oid AND a.amname = 'nvm' AND c.relkind IN ('r', 'm') AND c.relpersistence <> 't'")" = 0 ] ||
			found="$found $database"
	done
	[ -z "$found" ]
	say $? "$1 on $2: nvm.check() finds no fault${found:+, but in:}$found"
	pg_ctl -w -m fast -D "$out/data" stop >/dev/null
	! grep -aE "PANIC:|TRAP:|was terminated by signal|crash of another server process|^WARNING:  .* leak" "$out/server.log"
	say $? "$1 on $2: no crash in the server's log"
	cp "$out/server.log" "$work/log/clients.d/$1.$2.server.log"
	rm -rf "$out/data" "$NVM_CHECK_POOLS/clients_$1_$2"
}

# pytest SUITE ARGUMENT...: in its tree, with results for compare.py
python() { "$clients/$suite/venv/bin/python" "$@"; }
pytest() { python -m pytest -p record_pytest -p no:cacheprovider -q --maxfail=100000 "$@"; }

# The suites.  LEAST is what passes with the pinned version, a little rounded off.

# with the collation of a locale that the machine may not have
database_of_scott() {
	query test "CREATE SCHEMA test_schema AUTHORIZATION scott;
		CREATE COLLATION \"en_US\" (provider = icu, locale = 'en-US')"
}

suite_sqlalchemy() {
	database_of_scott
	query test "CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION btree_gist;
		CREATE SCHEMA test_schema_2 AUTHORIZATION scott"
	pytest -p no:logging --dburi "postgresql+psycopg2://scott:tiger@127.0.0.1:$PGPORT/test" \
		test/dialect/postgresql test/dialect/test_suite.py
}
least_sqlalchemy=11900

# Without what formats the scripts that it writes, which needs more packages and no database
suite_alembic() {
	database_of_scott
	pytest -p no:logging --dburi "postgresql+psycopg2://scott:tiger@127.0.0.1:$PGPORT/test" \
		tests --ignore tests/test_post_write.py
}
least_alembic=2050

# One run for each line: after some tests, all tables of a run are emptied one by one
suite_django() {
	local results=$NVM_CLIENTS_RESULTS labels number=0
	cd tests || return
	grep -v '^#' "$top/test/clients/django.labels" | while read -r labels; do
		number=$((number + 1))
		# shellcheck disable=SC2086
		NVM_CLIENTS_RESULTS=$results.$number PYTHONPATH=..:$PYTHONPATH \
			python -W ignore runtests.py --settings=test_postgres_nvm --noinput --parallel=1 -v 2 $labels </dev/null
		cat "$results.$number" >>"$results"
	done
}
least_django=7000

suite_psycopg2() {
	query test "CREATE EXTENSION hstore"
	PSYCOPG2_TESTDB=test PSYCOPG2_TESTDB_HOST=127.0.0.1 PSYCOPG2_TESTDB_PORT=$PGPORT PSYCOPG2_TESTDB_USER=scott \
		pytest tests
}
least_psycopg2=740

# Its sources without their compiled part would be taken in the place of what is installed.
# Without what starts a standby of its own server
suite_asyncpg() {
	rm -rf asyncpg
	PGHOST=127.0.0.1 PGUSER=postgres PGDATABASE=postgres pytest tests --ignore tests/test__sourcecode.py \
		-k 'not standby_is and not rejected_standby'
}
least_asyncpg=300

# Without what builds SQL and asks no database (arel), and without what needs Rails' part for
# the web
suite_rails() {
	query template1 "CREATE DATABASE activerecord_unittest OWNER scott"
	query template1 "CREATE DATABASE activerecord_unittest2 OWNER scott"
	cd activerecord || return
	{
		find test/activejob test/cases/adapters/postgresql -name '*_test.rb'
		find test/cases -name '*_test.rb' ! -path '*/adapters/*' ! -path '*/arel/*' ! -name database_selector_test.rb
	} | sort | ARCONN=postgresql ARCONFIG=$top/test/clients/rails.yml PGHOST=127.0.0.1 PGUSER=scott TZ=UTC \
		xargs ruby -I test -I lib -I ../activesupport/lib -I ../activemodel/lib -I ../activejob/lib \
		"$top/test/clients/run_rails.rb"
}
least_rails=7050

suite_pgjdbc() {
	local reports=$PWD/reports
	query postgres "CREATE ROLE test LOGIN PASSWORD 'test'" && query postgres "ALTER DATABASE test OWNER TO test"
	query test "CREATE EXTENSION hstore"
	java -ea -Xmx1g -Dbuild.properties.relative.path=. -Dtest.url.PGHOST=127.0.0.1 -Dtest.url.PGPORT="$PGPORT" \
		-cp "target/test-classes:target/classes:../lib/*" org.junit.platform.console.ConsoleLauncher execute \
		--disable-banner --disable-ansi-colors --details=tree --scan-classpath target/test-classes --reports-dir "$reports" \
		--config junit.jupiter.extensions.autodetection.enabled=true \
		--config junit.jupiter.execution.timeout.default=5m
	$python "$top/test/clients/record_junit.py" "$reports"/*.xml
}
least_pgjdbc=9500

# run_suite SUITE KIND: results in $clients/SUITE.KIND/results
run_suite() {
	local suite=$1 out=$clients/$1.$2 began
	start_server "$1" "$2" || { cat "$out"/*.log | tail -n 20; return; }
	right_methods "$1" "$2"
	began=$SECONDS
	(
		cd "$clients/$1/tree" || exit
		NVM_CLIENTS_RESULTS=$out/results PYTHONPATH=$helpers PYTHONHASHSEED=0 timeout "${NVM_CLIENTS_LIMIT:-3600}" \
			bash "$self" --suite "$1"
	) >"$out/output.log" 2>&1
	echo "$1 on $2: $((SECONDS - began)) seconds"
	stop_server "$1" "$2"
	cp "$out/output.log" "$work/log/clients.d/$1.$2.output.log"
	cp "$out/results" "$work/log/clients.d/$1.$2.results"
}

# errors SUITE KIND: what the server said before it was stopped, each once, without OIDs
# and the like
errors() {
	sed '/received fast shutdown request/,$d' "$clients/$1.$2/server.log" |
		sed -nE 's/^.{23} [A-Z]+ \[[0-9]+\] ([0-9A-Z]{5}) [^ ]* (ERROR|FATAL): /\1/p' |
		sed -E 's/([^0-9A-Z])[0-9]{3,}/\1N/g; s/ at character N?[0-9]*$//; s/(identifier ")[^"]*/\1N/' | sort -u
}

# Errors are what tests ask for, mostly.  One that only nvm gives is worth a look, also if
# all tests pass; an internal one is a fault.
compare_errors() {			# compare_errors SUITE
	local extra
	extra=$(LC_ALL=C comm -13 <(errors "$1" heap) <(errors "$1" nvm))
	[ -z "$extra" ] || printf '%s: error on nvm alone: %s\n' "$1" "$extra"
	! grep -q '^XX' <<<"$extra"
	say $? "$1 on nvm: no internal error that heap does not give"
}

compare() {				# compare SUITE
	local verdict=$clients/$1.verdict least=least_$1
	test/clients/compare.py --suite "$1" --heap "$clients/$1.heap/results" --nvm "$clients/$1.nvm/results" \
		--exceptions "test/clients/exceptions/$1" --least "${!least}" >"$verdict" 2>&1
	grep -q "^$1 on nvm: " "$verdict" || say 1 "$1: compared"
	said "$verdict"
}

inner() {
	local suite kind
	clients=$NVM_CLIENTS_WORK helpers=$top/test/clients self=$top/scripts/check_clients.sh
	export clients
	mkdir -p "$work/log/clients.d"
	for suite in ${NVM_CLIENTS_SUITES:-$all_suites}; do
		for kind in heap nvm; do
			run_suite "$suite" "$kind"
		done
		compare_errors "$suite"
		compare "$suite"
	done
	tally clients
}

case ${1:-} in
	--copy-suites) copy_suites "$2" "$3" ;;
	--inner) work=$NVM_CHECK_INNER; inner ;;
	--suite) suite=$2; "suite_$2" ;;
	*) outer "$@" ;;
esac

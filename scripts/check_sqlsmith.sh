#!/usr/bin/env bash
# Random statements of sqlsmith on nvm tables, with writers beside them.
#
# usage: check_sqlsmith.sh [--seconds N] [--seed N] [--keep]
#	--seconds	how long (default 600)
#	--seed		of the first of two sqlsmiths (default: by the clock; it is printed)
#
# test/sqlsmith/schema.sql is loaded with nvm tables, and once more with heap tables.
# sqlsmith sends statements to the first, as a role without privileges, and rolls each
# back; pgbench changes the same tables (churn.sql), others VACUUM, REINDEX and check
# them.  It fails by
#
#	- a crash, an assertion that failed, a connection that the server closed
#	- an internal error (SQLSTATE XX...), unless the same statement gives the same
#	  error on the heap tables: such are PostgreSQL's own, and are counted
#	- what nvm.check or nvm.check_pool find at the end, and after a crash
#
# Of PostgreSQL 17 with assertions, which build_server.sh makes once, or the server of
# PG_CONFIG.  Installs Debian's sqlsmith.  The last lines are the figures and the verdict;
# the statements of what failed are kept in sqlsmith_report.
set -u

top=$(cd "$(dirname "$0")/.." && pwd)

# ---------------------------------------------------------------- outer part

outer() {
	local keep= config=${PG_CONFIG:-}
	export NVM_SQLSMITH_SECONDS=600 NVM_SQLSMITH_SEED
	NVM_SQLSMITH_SEED=$(($(date +%s) % 1000000))
	while [ $# -gt 0 ]; do
		case $1 in
			--seconds) NVM_SQLSMITH_SECONDS=$2; shift ;;
			--seed) NVM_SQLSMITH_SEED=$2; shift ;;
			--keep) keep=--keep ;;
			*) sed -n "2,/^set/{/^set/d;s/^# \{0,1\}//;p}" "$0"; exit 2 ;;
		esac
		shift
	done
	"$top/scripts/ensure_packages.sh" sqlsmith || exit 1
	[ -n "$config" ] || config=${PG17_CONFIG:-}
	[ -n "$config" ] || config=$("$top/scripts/build_server.sh" 17) || exit 1
	export NVM_SQLSMITH_REPORT=$top/sqlsmith_report
	rm -rf "$NVM_SQLSMITH_REPORT"
	mkdir -p "$NVM_SQLSMITH_REPORT"
	if PG_CONFIG=$config "$top/scripts/check.sh" $keep sqlsmith; then
		echo "sqlsmith: passed"
	else
		echo "sqlsmith: FAILED, see $NVM_SQLSMITH_REPORT"
		exit 1
	fi
}

# ---------------------------------------------------------------- inner part
# The tier sqlsmith of check.sh: as an ordinary user, with pg_nvm installed in the
# private copy of the server.  Prints "ok" or "not ok" and what, for each check.

inner() {
	local seconds=${NVM_SQLSMITH_SECONDS:-600} seed=${NVM_SQLSMITH_SEED:-1}
	local finish pids= i
	# not local: the trap needs them
	bin=${PG_CONFIG%/*} work=$NVM_SQLSMITH_WORK pool=$NVM_CHECK_POOLS/sqlsmith
	data=$work/data
	mkdir -p "$work"
	sockets=$(mktemp -d "${TMPDIR:-/tmp}/nvm.XXXXXX")
	export PGHOST=$sockets PGPORT=$((20000 + RANDOM % 20000)) PGUSER=postgres
	trap '"$bin/pg_ctl" -D "$data" -m immediate stop >/dev/null 2>&1; rm -rf "$sockets" "$pool"' EXIT

	"$bin/initdb" -D "$data" -A trust -N -U postgres >/dev/null || return 1
	cat >>"$data/postgresql.conf" <<-CONF
		shared_preload_libraries = 'pg_nvm'
		nvm.pool_directory = '$pool'
		nvm.pool_max_size = '8GB'
		listen_addresses = ''
		unix_socket_directories = '$sockets'
		port = $PGPORT
		fsync = off
		max_prepared_transactions = 5
		autovacuum_naptime = 5s
		restart_after_crash = off
		lock_timeout = 10s
		logging_collector = on
		log_destination = 'stderr,jsonlog'
		log_directory = '$work/log'
		log_filename = 'server.log'
		log_rotation_size = 0
		log_line_prefix = '%m [%p] %e %d '
		log_error_verbosity = verbose
	CONF
	"$bin/pg_ctl" -D "$data" -l "$work/start.log" -w start >/dev/null || return 1
	"$bin/psql" -qX -d postgres -c "CREATE ROLE smith LOGIN" -c "CREATE DATABASE nvm" -c "CREATE DATABASE heap"
	# the views of pg_nvm are there for both
	"$bin/psql" -qX -d nvm -c "CREATE EXTENSION pg_nvm" &&
		"$bin/psql" -qX -d heap -c "CREATE EXTENSION pg_nvm" &&
		"$bin/psql" -qX -d nvm -v table_am=nvm -v index_am=nvm_btree -v nvm=1 -f test/sqlsmith/schema.sql &&
		"$bin/psql" -qX -d heap -v table_am=heap -v index_am=btree -v nvm=0 -f test/sqlsmith/schema.sql || {
		echo "not ok schema"
		return 1
	}
	echo "seeds $seed, $((seed + 1)); $seconds seconds"

	for i in 0 1; do
		smith $((seed + i)) "$work/smith.$i" &
		pids="$pids $!"
	done
	# it reads the catalogs for a while
	for ((i = 0; i < 600; i++)); do
		[ "$(grep -l 'aggregate parameters...done' "$work"/smith.? 2>/dev/null | wc -l)" -lt 2 ] || break
		sleep 1
	done
	finish=$((SECONDS + seconds))
	"$bin/pgbench" -n -d nvm -c 2 -M prepared -R 60 -T "$seconds" -f test/sqlsmith/churn.sql \
		--max-tries=100 >"$work/pgbench.log" 2>&1 &
	pids="$pids $!"
	maintenance "$finish" >"$work/maintenance.log" 2>&1 &
	pids="$pids $!"
	while [ $((finish - SECONDS)) -gt 0 ]; do
		sleep 1
	done
	touch "$work/over"
	kill -INT $(cat "$work"/smith.?.pid) 2>/dev/null
	# shellcheck disable=SC2086
	wait $pids
	python3 scripts/sqlsmith_report.py "$bin/psql" "$work" "$work/report"

	checked "after the run"
	"$bin/pg_ctl" -D "$data" -m immediate stop >/dev/null 2>&1
	if "$bin/pg_ctl" -D "$data" -l "$work/start.log" -w start >/dev/null; then
		checked "after a crash"
	else
		echo "not ok start after a crash"
	fi
	cp "$work"/smith.? "$work"/*.log "$work/report/" 2>/dev/null
	tail -c 2000000 "$work/log/server.log" >"$work/report/server.log"
	return 0
}

# one sqlsmith after the other, until it is over: its own faults end it now and then
smith() {				# smith SEED LOG
	local seed=$1
	while ! [ -e "$work/over" ]; do
		sqlsmith --verbose --exclude-catalog --seed="$seed" \
			--target="host=$PGHOST port=$PGPORT dbname=nvm user=smith" >>"$2" 2>&1 &
		echo $! >"$2.pid"
		wait $!
		seed=$((seed + 1000))
		sleep 0.2
	done
}

maintenance() {				# maintenance END
	local psql="$bin/psql -qX -d nvm -v ON_ERROR_STOP=0" rounds=0
	while [ $(($1 - SECONDS)) -gt 0 ]; do
		$psql <<-'SQL' || return
			SET search_path = s, public;
			VACUUM (ANALYZE);
			REINDEX INDEX CONCURRENTLY keyed_t;
			REINDEX INDEX CONCURRENTLY keyed_g;
			REFRESH MATERIALIZED VIEW CONCURRENTLY mv;
			REINDEX TABLE child;
			BEGIN; UPDATE parent SET w = w + 1 WHERE id < 9; PREPARE TRANSACTION 'p';
			SELECT pg_sleep(0.5);
			COMMIT PREPARED 'p';
			BEGIN; ALTER TABLE made ALTER later TYPE bigint; ROLLBACK;
			CLUSTER keyed USING keyed_k;
			SELECT c.oid::regclass, p.* FROM pg_class c, LATERAL nvm.check(c.oid) p WHERE c.relnamespace = 's'::regnamespace
			  AND c.relkind IN ('r', 'm') AND c.relam = (SELECT oid FROM pg_am WHERE amname = 'nvm');
			SELECT pg_sleep(5);
		SQL
		rounds=$((rounds + 1))
	done
	echo "rounds of maintenance: $rounds"
}

checked() {				# checked WHEN
	local found
	found=$("$bin/psql" -qXAt -d nvm -v ON_ERROR_STOP=1 2>&1 <<-'SQL'
		SELECT c.oid::regclass, p.* FROM pg_class c, LATERAL nvm.check(c.oid, true) p
		 WHERE c.relkind IN ('r', 'm') AND c.relam = (SELECT oid FROM pg_am WHERE amname = 'nvm');
		SELECT * FROM nvm.check_pool();
	SQL
	)
	if [ -z "$found" ]; then echo "ok nvm.check and nvm.check_pool $1"; else
		echo "not ok nvm.check and nvm.check_pool $1"
		echo "$found"
	fi
}

case ${1:-} in
	--inner) inner ;;
	*) outer "$@" ;;
esac

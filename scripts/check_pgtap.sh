#!/usr/bin/env bash
# Run test/pgtap/*.sql on a temporary server.
#
# usage: check_pgtap.sh DATA_DIRECTORY POOL_DIRECTORY
#
# The server of PG_CONFIG has pg_nvm installed, and pgTAP.  Neither directory
# exists yet; both are removed.
set -eu

data=$1 pool=$2
cd "$(dirname "$0")/.."
bin=$("${PG_CONFIG:-pg_config}" --bindir)
sockets=$(mktemp -d "${TMPDIR:-/tmp}/nvm.XXXXXX")
port=$((20000 + RANDOM % 20000))

clean_up() {
	"$bin/pg_ctl" -D "$data" -m immediate stop >/dev/null 2>&1 || true
	rm -rf "$data" "$pool" "$sockets"
}
trap clean_up EXIT

if [ ! -f "$("${PG_CONFIG:-pg_config}" --sharedir)/extension/pgtap.control" ]; then
	echo "pgTAP is not installed there"
	exit 1
fi
"$bin/initdb" -D "$data" -A trust -N -U postgres >/dev/null
cat >>"$data/postgresql.conf" <<-CONF
	shared_preload_libraries = 'pg_nvm'
	nvm.pool_directory = '$pool'
	nvm.pool_max_size = '8GB'
	listen_addresses = ''
	unix_socket_directories = '$sockets'
	port = $port
	fsync = off
	autovacuum = off
CONF
"$bin/pg_ctl" -D "$data" -l "$data.log" -w start >/dev/null
export PGHOST=$sockets PGPORT=$port PGUSER=postgres PGDATABASE=postgres
"$bin/psql" -qX -v ON_ERROR_STOP=1 -c 'CREATE EXTENSION pgtap' -c 'CREATE EXTENSION pg_nvm'
if command -v pg_prove >/dev/null; then
	pg_prove --ext .sql test/pgtap/*.sql
else
	prove --source pgTAP --ext .sql test/pgtap/*.sql
fi

#!/bin/sh
# In the place of a server's program postgres (build_server.sh --variant valgrind):
# a server runs under memcheck, everything else as ever.
#
# NVM_VALGRIND: directory for the reports, one file a server, empty if there is
# nothing to report; without it valgrind is not used.  Processes add to the file: with
# one for each of them, named by its id and emptied when it begins, a report was gone as
# soon as the id was given out again.  NVM_VALGRIND_OPTIONS: more
# options, such as --track-origins=yes.  Suppressed is what PostgreSQL's own
# src/tools/valgrind.supp lists.

bin=$(cd "$(dirname "$0")" && pwd)
case " $* " in
	*" --boot "* | *" --single "* | *" --check "* | *" -C "*) ;;
	*" -D "*)
		if [ -n "${NVM_VALGRIND:-}" ]; then
			exec 9>>"$NVM_VALGRIND/valgrind.$$"
			# shellcheck disable=SC2086
			exec valgrind --quiet --leak-check=no --error-limit=no --num-callers=25 \
				--undef-value-errors=yes --trace-children=no --gen-suppressions=all \
				--suppressions="$("$bin/pg_config" --sharedir)/valgrind.supp" \
				--error-markers=VALGRIND-BEGIN,VALGRIND-END \
				--log-fd=9 ${NVM_VALGRIND_OPTIONS:-} \
				"$bin/postgres.real" "$@"
		fi ;;
esac
exec "$bin/postgres.real" "$@"

# shellcheck shell=bash
# Tests counted, for scripts that read this file: each prints "ok TEXT" or "not ok TEXT",
# and the last line says how many there were of either.

good=0 bad=0

say() {					# say STATUS(0|1) TEXT: one test; the status again
	if [ "$1" = 0 ]; then
		good=$((good + 1)); echo "ok $2"
	else
		bad=$((bad + 1)); echo "not ok $2"
	fi
	return "$1"
}

said() {				# said FILE: prints it, and counts the tests that it has
	cat "$1"
	good=$((good + $(grep -c '^ok ' "$1")))
	bad=$((bad + $(grep -c '^not ok ' "$1")))
}

tally() {				# tally NAME: the last line; is all well?
	echo "$1: $good passed, $bad failed"
	[ "$bad" = 0 ]
}

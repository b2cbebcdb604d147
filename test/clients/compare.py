#!/usr/bin/env python3
"""Hold what became of each test of a suite on nvm against what became of it on heap.

usage: compare.py --suite NAME --heap FILE --nvm FILE --exceptions FILE [--least N]

	--heap, --nvm	results, one a line: a test, a tab, its outcome (record.py)
	--exceptions	the tests that may differ, one a line: the test, a tab, the reason.
					A '?' before the test says that the difference comes and goes.
	--least		so many tests have to pass on heap (default 1)

A test passes if its outcome is the same, or if it is listed.  One that is listed without
a '?' and does not differ fails; so does one that is listed and was not run.
Prints "ok NAME" or "not ok NAME" a line, then which tests fail on both, and figures.
"""
import argparse
import collections
import os
import sys

ABSENT = "not run"


def results(path):
	outcomes = {}
	if os.path.exists(path):
		with open(path, encoding="utf-8") as file:
			for line in file:
				name, outcome = line.rstrip("\n").split("\t")
				outcomes[name] = outcome
	return outcomes


def exceptions(path):
	"""{test: whether its difference comes and goes}"""
	listed = {}
	if not os.path.exists(path):
		return listed
	with open(path, encoding="utf-8") as file:
		for number, line in enumerate(file, 1):
			line = line.rstrip("\n")
			if not line or line.startswith("#"):
				continue
			name, _, reason = line.partition("\t")
			if not reason.strip():
				sys.exit("%s:%d: a test, a tab and a reason expected" % (path, number))
			name, optional = name.lstrip("?"), name.startswith("?")
			if name in listed:
				sys.exit("%s:%d: listed twice" % (path, number))
			listed[name] = optional
	return listed


def judge(heap, nvm, listed):
	"""[(test, is it good, remark)...]"""
	verdicts = []
	for name in sorted(set(heap) | set(nvm) | set(listed)):
		ours, others = nvm.get(name, ABSENT), heap.get(name, ABSENT)
		if ours == others == ABSENT:
			verdicts.append((name, False, "listed, but there is no such test"))
		elif ours != others:
			verdicts.append((name, name in listed, "heap: %s, nvm: %s" % (others, ours)))
		elif name in listed and not listed[name]:
			verdicts.append((name, False, "listed, but no longer differs"))
		else:
			verdicts.append((name, True, ""))
	return verdicts


def figures(outcomes):
	counts = collections.Counter(outcome.split()[0] for outcome in outcomes.values())
	return ", ".join("%d %s" % (counts.pop(kind, 0), kind) for kind in ("passed", "failed", "skipped")) + \
		"".join(", %d %s" % (count, kind) for kind, count in sorted(counts.items()))


def bad_outcome(outcome):
	return outcome.startswith(("failed", "error"))


def main():
	parser = argparse.ArgumentParser()
	parser.add_argument("--suite", required=True)
	parser.add_argument("--heap", required=True)
	parser.add_argument("--nvm", required=True)
	parser.add_argument("--exceptions", required=True)
	parser.add_argument("--least", type=int, default=1)
	args = parser.parse_args()

	heap, nvm = results(args.heap), results(args.nvm)
	bad = 0
	for name, good, remark in judge(heap, nvm, exceptions(args.exceptions)):
		bad += not good
		print("%s %s/%s%s" % ("ok" if good else "not ok", args.suite, name, " (listed)" if good and remark else ""))
		if remark:
			print("\t" + remark)
	passed = sum(outcome == "passed" for outcome in heap.values())
	if passed < args.least:
		bad += 1
		print("not ok %s: only %d tests pass on heap, %d are expected" % (args.suite, passed, args.least))
	for name in sorted(heap):
		if bad_outcome(heap[name]) and heap[name] == nvm.get(name):
			print("fails on both: %s/%s (%s)" % (args.suite, name, heap[name]))
	print("%s on heap: %s" % (args.suite, figures(heap)))
	print("%s on nvm: %s" % (args.suite, figures(nvm)))
	return bad != 0


if __name__ == "__main__":
	sys.exit(main())

#!/usr/bin/env python3
"""Hold what a suite printed on nvm against what it printed on heap.

usage: compare.py --suite NAME --heap DIR [--heap DIR...] --nvm DIR
                  --tree DIR --schedule FILE --exceptions FILE
                  [--reasons FILE] [--diffs FILE] [--accept]

	--heap		results of the suite on heap; each run of it is as good
	--nvm		results on nvm
	--tree		directory of the suite, for pg_regress's expected/NAME_N.out
	--reasons	another list, whose reasons may be given in this one too
	--diffs		write all differences there
	--accept	write the exceptions anew: new ones without a reason, which
				someone has to find before the list passes again

A file passes if it is the same byte for byte, or if every hunk by which it
differs is in the list with a reason.  A hunk is known by a hash of the lines
that it takes away and adds, so it may move.  A listed hunk that is no longer
there fails too, unless it has a '?' before it: then it comes and goes.  '~' in
the place of a hash allows the file's lines to come in another order, no matter
which, but to be the same lines.  'heap' there says that core_suites.sh has the
test make heap tables: it has to be the same, but does not count as such.

Prints "ok NAME", "ok NAME (N listed)" or "not ok NAME" a line, then
"same: N of M".
"""
import argparse
import glob
import hashlib
import os
import re
import subprocess
import sys

UNEXPLAINED = "unexplained"
ORDER = "~"
HEAP = "heap"


class Exceptions:
	"""The list: reasons, and for each file its hunks with their reasons."""

	def __init__(self, path, others=None):
		self.path = path
		self.head = []
		self.others = Exceptions(others).reasons if others and others != path else {}
		self.reasons = {}
		self.hunks = {}			# file -> [[hash, reason, optional]]
		if not os.path.exists(path):
			return
		reason = None
		for number, line in enumerate(open(path, encoding="utf-8"), 1):
			line = line.rstrip("\n")
			if line.startswith("#") and not self.reasons:
				self.head.append(line)
			elif line.startswith("#") or not line.strip():
				continue
			elif line.startswith("reason "):
				reason = line.split()[1]
				self.reasons[reason] = ""
			elif line[0].isspace():
				self.reasons[reason] = (self.reasons[reason] + " " + line.strip()).strip()
			else:
				words = line.split()
				if len(words) < 3:
					sys.exit("%s:%d: FILE REASON HASH... expected" % (path, number))
				for word in words[2:]:
					self.hunks.setdefault(words[0], []).append(
						[word.lstrip("?"), words[1], word[0] in "?" + ORDER or word == HEAP])
		for file, hunks in self.hunks.items():
			for _, name, _ in hunks:
				if name != UNEXPLAINED and not self.reasons.get(name) and not self.others.get(name):
					sys.exit("%s: %s has reason %s, which says nothing" % (path, file, name))

	def write(self, found):
		"""Write what was found, with the reasons that are known."""
		known = {}
		for file, hunks in self.hunks.items():
			for digest, reason, optional in hunks:
				known.setdefault((file, digest), []).append((reason, optional))
		lines = []
		for file in sorted(set(found) | {f for f in self.hunks
										 if {ORDER, HEAP} & {h[0] for h in self.hunks[f]}}):
			by_reason = {}
			for digest, reason, _ in self.hunks.get(file, []):
				if digest in (ORDER, HEAP):
					by_reason[reason] = [digest]
			for digest, _ in [] if by_reason else found.get(file, []):
				reason, optional = UNEXPLAINED, False
				if known.get((file, digest)):
					reason, optional = known[(file, digest)].pop(0)
				by_reason.setdefault(reason, []).append(("?" if optional else "") + digest)
			for reason in sorted(by_reason):
				lines.append(" ".join([file, reason] + by_reason[reason]))
		used = {line.split()[1] for line in lines}
		with open(self.path, "w", encoding="utf-8") as out:
			for line in self.head:
				print(line, file=out)
			for reason in self.reasons:
				if reason in used:
					print("\nreason %s" % reason, file=out)
					print(wrap(self.reasons[reason]), file=out)
			print(file=out)
			for line in lines:
				print(line, file=out)


def wrap(text, width=72):
	lines = [""]
	for word in text.split():
		if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
			lines.append("")
		lines[-1] = (lines[-1] + " " + word).strip()
	return "\n".join("\t" + line for line in lines)


def read(path):
	with open(path, "rb") as file:
		return file.read()


def hunks_between(expected, result):
	"""The hunks of a diff without context, as (hash, text)."""
	done = subprocess.run(["diff", "-a", "-U0", expected, result],
						  stdout=subprocess.PIPE, check=False)
	text = done.stdout.decode("utf-8", "replace")
	hunks = re.split(r"^@@.*\n", text, flags=re.M)[1:]
	return [(hashlib.sha256(normal(hunk).encode()).hexdigest()[:12], hunk) for hunk in hunks]


def normal(hunk):
	"""psql's columns are as wide as their widest value, and frames count rows."""
	lines = []
	for line in hunk.splitlines():
		line = re.sub(r"-{2,}", "--", re.sub(r"[ \t]+", " ", line))
		lines.append(line.rstrip())
	return "\n".join(lines)


def test_names(schedule):
	names = []
	for line in open(schedule, encoding="utf-8"):
		match = re.match(r"(?:test|ignore):\s*(.*)", line)
		if match:
			names += [n for n in match.group(1).split() if n not in names]
	return names


def judge(name, args, listed):
	"""('same' | 'listed' | 'bad', hunks, messages) of one file."""
	result = os.path.join(args.nvm, name + ".out")
	expected = [p for p in (os.path.join(d, name + ".out") for d in args.heap) if os.path.exists(p)]
	if not os.path.exists(result):
		return "bad", [], ["no result on nvm"]
	if not expected:
		return "bad", [], ["no result on heap"]
	alternatives = expected + glob.glob(os.path.join(args.tree, "expected", name + ".out")) + \
		glob.glob(os.path.join(args.tree, "expected", name + "_[0-9].out"))
	data = read(result)
	if any(read(path) == data for path in alternatives):
		hunks = []
	else:
		hunks = min((hunks_between(path, result) for path in expected), key=len)
		if any(e[0] == ORDER for e in listed) and \
				any(sorted(read(path).split(b"\n")) == sorted(data.split(b"\n")) for path in expected):
			return "listed", hunks, []
	if not hunks and any(e[0] == HEAP for e in listed):
		return "listed", [], []
	messages = []
	left = list(listed)
	for digest, text in hunks:
		entry = next((e for e in left if e[0] == digest), None)
		if entry is None:
			messages.append("not listed: %s\n%s" % (digest, text.rstrip("\n")))
		else:
			left.remove(entry)
			if entry[1] == UNEXPLAINED:
				messages.append("listed without a reason: %s\n%s" % (digest, text.rstrip("\n")))
	messages += ["listed, but no longer there: %s (%s)" % (e[0], e[1]) for e in left if not e[2]]
	if messages:
		return "bad", hunks, messages
	return ("listed" if hunks else "same"), hunks, messages


def main():
	parser = argparse.ArgumentParser()
	parser.add_argument("--suite", required=True)
	parser.add_argument("--heap", action="append", required=True)
	parser.add_argument("--nvm", required=True)
	parser.add_argument("--tree", required=True)
	parser.add_argument("--schedule", required=True)
	parser.add_argument("--exceptions", required=True)
	parser.add_argument("--reasons")
	parser.add_argument("--diffs")
	parser.add_argument("--accept", action="store_true")
	args = parser.parse_args()

	exceptions = Exceptions(args.exceptions, args.reasons)
	names = test_names(args.schedule)
	found, same, bad = {}, 0, 0
	diffs = open(args.diffs, "w", encoding="utf-8") if args.diffs else None
	for name in names + [n for n in exceptions.hunks if n not in names]:
		if name not in names:
			verdict, hunks, messages = "bad", [], ["listed, but not in the schedule"]
		else:
			verdict, hunks, messages = judge(name, args, exceptions.hunks.get(name, []))
			if hunks:
				found[name] = hunks
			else:
				same += verdict == "same"
		bad += verdict == "bad"
		if diffs and hunks:
			for digest, text in hunks:
				print("%s %s\n%s" % (name, digest, text.rstrip("\n")), file=diffs)
		print("%s %s/%s%s" % ("not ok" if verdict == "bad" else "ok", args.suite, name,
							  " (%s)" % ("%d listed" % len(hunks) if hunks else "heap tables") if verdict == "listed" else ""))
		for message in messages:
			print("\t" + message.replace("\n", "\n\t"))
	print("same: %d of %d" % (same, len(names)))
	if args.accept:
		exceptions.write(found)
	return bad != 0


if __name__ == "__main__":
	sys.exit(main())

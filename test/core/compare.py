#!/usr/bin/env python3
"""Hold what a suite printed on nvm against what it printed on heap.

usage: compare.py --suite NAME --heap DIR [--heap DIR...] --nvm DIR
                  --tree DIR --schedule FILE --exceptions FILE
                  [--reasons FILE] [--method METHOD] [--diffs FILE] [--accept]

	--heap		results of the suite on heap; each run of it is as good
	--nvm		results on nvm
	--tree		directory of the suite, for pg_regress's expected/NAME_N.out
	--reasons	another list, whose reasons may be given in this one too
	--method	what was run in the place of nvm: its name reads as nvm's, and
				what is listed may be missing
	--diffs		write all differences there
	--accept	write the exceptions anew: new ones without a reason, which
				someone has to find before the list passes again

A file passes if it is the same byte for byte, or if every hunk by which it
differs is in the list with a reason.  A hunk is known by a hash of the lines
that it takes away and adds, so it may move.  A listed hunk that is no longer
there fails too, unless it has a '?' before it: then it comes and goes.  In the
place of hashes there may stand
  ~		what each statement prints may be in another order, if it does not say
		ORDER BY, but has to be the same lines; hunks that are listed as plans may differ
  heap		core_suites.sh has the test make heap tables, heap:TABLE this table: the
		file has to be the same, but does not count as such
  tid*3, (0,1)=(0,3)...	on nvm the test was run with our TIDs in the place of
		heap's, and heap's are put back in what it printed before it is compared
		(see rewrite.py)
The reason "plan" is only for lines that EXPLAIN prints: for any other it fails.

Prints "ok NAME", "ok NAME (N listed)" or "not ok NAME" a line, then
"same: N of M".
"""
import argparse
import glob
import hashlib
import itertools
import os
import re
import subprocess
import sys
import tempfile

from rewrite import Tids, heap_words, tid_words

UNEXPLAINED = "unexplained"
ORDER = "~"
PLAN = "plan"


def is_whole(word):
	"""Not a hash: what is said of the file as a whole"""
	return word == ORDER or bool(heap_words([word]) or tid_words([word]))


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
						[word.lstrip("?"), words[1], word[0] == "?" or is_whole(word)])
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
										 if any(is_whole(h[0]) for h in self.hunks[f])}):
			by_reason, whole = {}, set()
			for digest, reason, _ in self.hunks.get(file, []):
				if is_whole(digest):
					by_reason.setdefault(reason, []).append(digest)
					whole.add(digest)
			for digest, _ in found.get(file, []):
				if ORDER in whole and not any(r == PLAN for r, _ in known.get((file, digest), [])):
					continue
				reason, optional = UNEXPLAINED, False
				if known.get((file, digest)):
					reason, optional = known[(file, digest)].pop(0)
				by_reason.setdefault(reason, []).append(("?" if optional else "") + digest)
			# what comes and goes, and was not there this time
			for digest, entries in [(d, e) for (f, d), e in known.items() if f == file]:
				for reason, optional in entries:
					if optional and not is_whole(digest):
						by_reason.setdefault(reason, []).append("?" + digest)
			for reason in sorted(by_reason):
				for words in ([w for w in by_reason[reason] if is_whole(w)],
							  [w for w in by_reason[reason] if not is_whole(w)]):
					if words:
						lines.append(" ".join([file, reason] + words))
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


def text(path):
	return read(path).decode("utf-8", "replace")


def differences(expected, result):
	done = subprocess.run(["diff", "-a", "-U0", expected, result],
						  stdout=subprocess.PIPE, check=False)
	return done.stdout.decode("utf-8", "replace")


def in_plans(expected, result):
	"""Of each of these hunks, whether all its lines are what EXPLAIN prints"""
	heads = re.findall(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", differences(expected, result), flags=re.M)
	plans = plan_lines(expected), plan_lines(result)
	return [all(line in lines for lines, first, count in ((plans[0], head[0], head[1]), (plans[1], head[2], head[3]))
				for line in range(int(first), int(first) + int(count or 1))) for head in heads]


def plan_lines(path):
	"""Numbers of the lines that EXPLAIN printed"""
	return {number for number, (_, plan) in enumerate(with_plans(text(path).split("\n")), 1) if plan}


def with_plans(lines):
	"""Each line, and whether it is of a plan: from the title to "(N rows)", as core's
	functions explain_... print it, too"""
	plan = False
	for line in lines:
		plan = plan or bool(re.fullmatch(r" *(QUERY PLAN|explain_\w+) *", line))
		yield line, plan
		plan = plan and not re.fullmatch(r"\(\d+ rows?\)", line)


def hunks_between(expected, result):
	"""The hunks of a diff without context, as (hash, text)."""
	hunks = re.split(r"^@@.*\n", differences(expected, result), flags=re.M)[1:]
	return [(hashlib.sha256(normal(hunk).encode()).hexdigest()[:12], hunk) for hunk in hunks]


def tid_hunks(expected, result, tids):
	"""The same of what is left when our TIDs are heap's, and all columns as narrow
	as they can be; and which of the hunks are plans"""
	with tempfile.TemporaryDirectory() as directory:
		paths = []
		for name, data in (("expected", text(expected)), ("result", Tids(tids).to_heaps(text(result)))):
			paths.append(os.path.join(directory, name))
			with open(paths[-1], "w", encoding="utf-8") as file:
				file.write("\n".join(re.sub(r" *\| *", "|", normal(line)) for line in data.split("\n")))
		return hunks_between(*paths), in_plans(*paths)


def normal(hunk):
	"""psql's columns are as wide as their widest value, and frames count rows.
	What ALTER TABLE ALL IN TABLESPACE says of each table comes in the order in
	which pg_class happens to have them.  What an operator's OID is depends on what
	was made before."""
	lines = []
	for line in hunk.splitlines():
		line = re.sub(r"-{2,}", "--", re.sub(r"[ \t]+", " ", line))
		lines.append(re.sub(r"(ERROR: .* for operator) \d+$", r"\1 OID", line.rstrip()))
	if re.fullmatch(r"(\+NOTICE: .*\n\+DETAIL: .*(\n|$)){2,}", "\n".join(lines)):
		lines = [line for pair in sorted(zip(lines[0::2], lines[1::2])) for line in pair]
	return "\n".join(lines)


def reordered(script, expected, result, but_plans=False):
	"""Whether each statement printed the same lines, and in the same order if it
	says ORDER BY, plans perhaps left out.  psql and the isolation tester echo the
	script, so its lines part what the statements print."""
	source = text(script).split("\n")
	parts = [statements(source, [line for line, plan in with_plans(data.decode("utf-8", "replace").split("\n"))
								 if not (plan and but_plans)]) for data in (expected, result)]
	if [echo for echo, _ in parts[0]] != [echo for echo, _ in parts[1]]:
		return False
	return all(one == other or (sorted(one) == sorted(other) and
								not re.search(r"order\s+by", echo, flags=re.I))
			   for (echo, one), (_, other) in zip(*parts))


def statements(source, output):
	"""[(echoed lines, printed lines)...]"""
	echoed = [line for line in without_data(source) if line.strip()]
	parts, position = [("", [])], 0
	for line in output:
		if position < len(echoed) and line == echoed[position]:
			if parts[-1][1]:
				parts.append(("", []))
			parts[-1] = (parts[-1][0] + line + "\n", parts[-1][1])
			position += 1
		else:
			parts[-1][1].append(line)
	if position < len(echoed):
		sys.exit("line of the script that was not echoed: %s" % echoed[position])
	return parts


def without_data(source):
	"""psql does not echo what COPY reads from the script"""
	data = False
	for line in source:
		if not data:
			yield line
		data = line != "\\." and (data or bool(re.match(r"copy\b.*\bfrom stdin\b.*;", line, flags=re.I)))


def test_names(schedule):
	names = []
	for line in open(schedule, encoding="utf-8"):
		match = re.match(r"(?:test|ignore):\s*(.*)", line)
		if match:
			names += [n for n in match.group(1).split() if n not in names]
	return names


def whole(listed):
	return "TIDs translated" if tid_words([e[0] for e in listed]) else "heap tables"


def under_name(directory, method):
	"""The results of another method, as if it had the name nvm"""
	copy = tempfile.mkdtemp()
	for path in glob.glob(os.path.join(directory, "**", "*.out"), recursive=True):
		target = os.path.join(copy, os.path.relpath(path, directory))
		os.makedirs(os.path.dirname(target), exist_ok=True)
		with open(target, "wb") as out:
			out.write(re.sub(rb"\b%s\b" % method.encode(), b"nvm", read(path)))
	return copy


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
	tids, plans = tid_words([e[0] for e in listed]), []
	if any(read(path) == data for path in alternatives):
		hunks = []
		if tids:
			return ("bad", [], ["TIDs listed, but the same without"]) if args.method == "nvm" else ("same", [], [])
	elif tids:
		hunks, plans = min((tid_hunks(path, result, tids) for path in expected), key=lambda both: len(both[0]))
	else:
		nearest = min(expected, key=lambda path: len(hunks_between(path, result)))
		hunks, plans = hunks_between(nearest, result), in_plans(nearest, result)
		if any(e[0] == ORDER for e in listed):
			script = os.path.join(args.tree, "sql", name + ".sql")
			if any(reordered(script, read(path), data) for path in expected):
				return "listed", hunks, []
			if any(e[1] == PLAN for e in listed) and reordered(script, read(nearest), data, but_plans=True):
				hunks, plans = [h for h, plan in zip(hunks, plans) if plan], itertools.repeat(True)
	if not hunks and any(is_whole(e[0]) and e[0] != ORDER for e in listed):
		return "listed", [], []
	messages = []
	left = [e for e in listed if not is_whole(e[0])]
	for (digest, text), plan in zip(hunks, plans):
		entry = min((e for e in left if e[0] == digest), default=None, key=lambda e: (e[1] == PLAN) != plan)
		if entry is None:
			messages.append("not listed: %s\n%s" % (digest, text.rstrip("\n")))
		else:
			left.remove(entry)
			if entry[1] == UNEXPLAINED:
				messages.append("listed without a reason: %s\n%s" % (digest, text.rstrip("\n")))
			if entry[1] == PLAN and not plan:
				messages.append("listed as a plan, which it is not: %s\n%s" % (digest, text.rstrip("\n")))
	if args.method == "nvm":
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
	parser.add_argument("--method", default="nvm")
	parser.add_argument("--diffs")
	parser.add_argument("--accept", action="store_true")
	args = parser.parse_args()

	exceptions = Exceptions(args.exceptions, args.reasons)
	if args.method != "nvm":
		if args.accept:
			parser.error("the lists are those of nvm")
		args.nvm = under_name(args.nvm, args.method)
		# heap prints it, too, where a test lists access methods
		args.heap = [under_name(directory, args.method) for directory in args.heap]
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
							  " (%s)" % ("%d listed" % len(hunks) if hunks else whole(exceptions.hunks[name])) if verdict == "listed" else ""))
		for message in messages:
			print("\t" + message.replace("\n", "\n\t"))
	print("same: %d of %d" % (same, len(names)))
	if args.accept:
		exceptions.write(found)
	return bad != 0


if __name__ == "__main__":
	sys.exit(main())

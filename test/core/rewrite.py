#!/usr/bin/env python3
"""Tests of a suite as they are run here: with what its list says of whole files.

usage: rewrite.py [--exceptions FILE] [--heap FILE] [--prefix NAME/] --tree DIR --out DIR

	--exceptions	list of exceptions (see compare.py), whose TIDs are put in
				the place of heap's; without it only --heap counts
	--heap		list that says which tests make heap tables, all or one
	--prefix	what stands before the names of the tests in the lists
	--tree		directory of the suite
	--out		made anew: scripts that differ from the suite's, and symbolic
				links to everything else
"""
import argparse
import os
import re
import shutil

SCRIPTS = {"sql": ".sql", "specs": ".spec"}
TID = re.compile(r"\((\d+), ?(\d+)\)")


class Tids:
	"""heap's TIDs and ours, of each block's first hundred rows.  Words are
	tid*6-3		row n of a block is at (block,6n-3), and so on
	(0,4)=(0,12)	that one, besides or instead
	a_>_1=a_>_3	other text in which an offset stands, with _ for blanks"""

	def __init__(self, words):
		formula = next((re.match(r"tid\*(\d+)(-\d+)?$", w) for w in words if w.startswith("tid*")), None)
		self.factor, self.less = (int(g or 0) for g in formula.groups()) if formula else (0, 0)
		pairs = [tuple(w.replace("_", " ").split("=")) for w in words if "=" in w]
		self.ours = {heap: ours for heap, ours in pairs if TID.match(heap)}
		self.heaps = {ours: heap for heap, ours in self.ours.items()}
		self.texts = [pair for pair in pairs if not TID.match(pair[0])]

	def to_ours(self, text):
		"""Of a script, in which other things look like a TID without quotes"""
		for heap, ours in self.texts:
			assert heap in text, heap
			text = text.replace(heap, ours)
		return re.sub("'%s'" % TID.pattern, lambda m: "'%s'" % TID.sub(self._to_ours, m.group()[1:-1]), text)

	def to_heaps(self, text):
		for heap, ours in self.texts:
			text = text.replace(ours, heap)
		return re.sub(r"\((\d+),(\d+)\)", self._to_heaps, text)

	def _to_ours(self, match):
		block, offset = (int(g) for g in match.groups())
		if match.group() in self.ours:
			return self.ours[match.group()]
		if self.factor and 0 < offset <= 100:
			return "(%d,%d)" % (block, offset * self.factor + self.less)
		return match.group()

	def _to_heaps(self, match):
		block, offset = (int(g) for g in match.groups())
		if match.group() in self.heaps:
			return self.heaps[match.group()]
		if self.factor and 0 < offset - self.less <= 100 * self.factor and \
				(offset - self.less) % self.factor == 0:
			return "(%d,%d)" % (block, (offset - self.less) // self.factor)
		return match.group()


def tid_words(words):
	return [w for w in words if "=" in w or w.startswith("tid*")]


def heap_words(words):
	return [w for w in words if w == "heap" or w.startswith("heap:")]


def with_heap(text, word):
	if word == "heap":
		return "SET default_table_access_method = heap;\n" + text
	table = re.compile(r"^CREATE TABLE %s\b.*?;$" % re.escape(word[5:]), re.M | re.S)
	assert table.search(text), "no CREATE TABLE %s" % word[5:]
	return table.sub(lambda m: "SET default_table_access_method = heap;\n%s\n"
					 "RESET default_table_access_method;" % m.group(), text)


def words_of(path, wanted):
	"""{test: words}"""
	found = {}
	if path and os.path.exists(path):
		for line in open(path, encoding="utf-8"):
			if re.match(r"[^\s#]", line) and not line.startswith("reason "):
				name, words = line.split()[0], wanted(line.split()[2:])
				if words:
					found.setdefault(name, []).extend(words)
	return found


def main():
	parser = argparse.ArgumentParser()
	parser.add_argument("--exceptions")
	parser.add_argument("--heap")
	parser.add_argument("--prefix", default="")
	parser.add_argument("--tree", required=True)
	parser.add_argument("--out", required=True)
	args = parser.parse_args()
	tids = words_of(args.exceptions, tid_words)
	heap = words_of(args.heap, heap_words)

	shutil.rmtree(args.out, ignore_errors=True)
	os.makedirs(args.out)
	for entry in os.listdir(args.tree):
		if entry not in SCRIPTS:
			os.symlink(os.path.join(args.tree, entry), os.path.join(args.out, entry))
			continue
		os.mkdir(os.path.join(args.out, entry))
		for file in os.listdir(os.path.join(args.tree, entry)):
			source, copy = (os.path.join(d, entry, file) for d in (args.tree, args.out))
			name = args.prefix + file.rsplit(".", 1)[0]
			if not file.endswith(SCRIPTS[entry]) or (name not in tids and name not in heap):
				os.symlink(source, copy)
				continue
			with open(source, encoding="utf-8") as script:
				text = script.read()
			for word in heap.get(name, []):
				text = with_heap(text, word)
			if name in tids:
				text = Tids(tids[name]).to_ours(text)
			with open(copy, "w", encoding="utf-8") as script:
				script.write(text)


if __name__ == "__main__":
	main()

#!/usr/bin/env python3
"""What compare.py and rewrite.py must not let pass."""
import argparse
import os
import tempfile
import unittest

import compare
import rewrite

SCRIPT = """CREATE TABLE t (a int);
COPY t FROM stdin;
2
1
\\.

SELECT * FROM t;
SELECT * FROM t
  ORDER BY a;
"""
OUTPUT = """CREATE TABLE t (a int);
COPY t FROM stdin;
SELECT * FROM t;
 a 
---
 2
 1
(2 rows)

SELECT * FROM t
  ORDER BY a;
 a 
---
 1
 2
(2 rows)

"""
UNORDERED = OUTPUT.replace(" 2\n 1\n", " 1\n 2\n")
WRONG_ORDER = OUTPUT.replace(" 1\n 2\n", " 2\n 1\n")
MOVED = OUTPUT.replace(" 2\n 1\n", " 2\n").replace(" 1\n 2\n", " 1\n 1\n 2\n")


class CompareTest(unittest.TestCase):
	def judge(self, nvm, heap=OUTPUT, listed=()):
		with tempfile.TemporaryDirectory() as top:
			for directory, name, text in (("heap", "t.out", heap), ("nvm", "t.out", nvm),
										  ("sql", "t.sql", SCRIPT)):
				os.makedirs(os.path.join(top, directory), exist_ok=True)
				with open(os.path.join(top, directory, name), "w", encoding="utf-8") as file:
					file.write(text)
			args = argparse.Namespace(nvm=top + "/nvm", heap=[top + "/heap"], tree=top)
			return compare.judge("t", args, [[w.lstrip("?"), "why", w[0] == "?" or compare.is_whole(w)]
											 for w in listed])

	def verdict(self, *args, **kwargs):
		return self.judge(*args, **kwargs)[0]

	def test_same(self):
		self.assertEqual(self.verdict(OUTPUT), "same")

	def test_hunks(self):
		digests = [digest for digest, _ in self.judge(UNORDERED)[1]]
		self.assertEqual(self.verdict(UNORDERED), "bad")
		self.assertEqual(self.verdict(UNORDERED, listed=digests), "listed")
		self.assertEqual(self.verdict(UNORDERED, listed=digests + ["?0123456789ab"]), "listed")
		self.assertEqual(self.verdict(UNORDERED, listed=digests + ["0123456789ab"]), "bad")
		self.assertEqual(self.verdict(OUTPUT, listed=digests), "bad")

	def test_order(self):
		self.assertEqual(self.verdict(UNORDERED, listed="~"), "listed")
		self.assertEqual(self.verdict(WRONG_ORDER, listed="~"), "bad")
		self.assertEqual(self.verdict(MOVED, listed="~"), "bad")

	def test_tids(self):
		heap, nvm = " ctid  \n-------\n (0,2)\n", "  ctid  \n--------\n (0,12)\n"
		self.assertEqual(self.verdict(nvm, heap, ["tid*6"]), "listed")
		self.assertEqual(self.verdict(nvm, heap, ["(0,2)=(0,12)"]), "listed")
		self.assertEqual(self.verdict(nvm, heap, ["tid*3"]), "bad")
		self.assertEqual(self.verdict(nvm + " (0,18)\n", heap, ["tid*6"]), "bad")
		self.assertEqual(self.verdict(heap, heap, ["tid*6"]), "bad")

	def test_heap(self):
		self.assertEqual(self.verdict(OUTPUT, listed=["heap"]), "listed")
		self.assertEqual(self.verdict(UNORDERED, listed=["heap"]), "bad")


class RewriteTest(unittest.TestCase):
	def test_there_and_back(self):
		tids = rewrite.Tids(["tid*6-3", "(0,6)=(0,19)", "x_>_10=x_>_57"])
		heap = "ctid IN ('(0,1)', '(0,6)', '(2,10)', '(0,0)', '(0,65535)') AND x > 10"
		ours = "ctid IN ('(0,3)', '(0,19)', '(2,57)', '(0,0)', '(0,65535)') AND x > 57"
		self.assertEqual(tids.to_ours(heap), ours)
		self.assertEqual(tids.to_heaps(ours), heap)
		self.assertEqual(rewrite.Tids(["tid*3"]).to_ours("VALUES (0,1)"), "VALUES (0,1)")
		self.assertRaises(AssertionError, tids.to_ours, "'(0,1)'")

	def test_heap_table(self):
		self.assertEqual(rewrite.with_heap(SCRIPT, "heap:t").count("default_table_access_method"), 2)
		self.assertRaises(AssertionError, rewrite.with_heap, SCRIPT, "heap:u")


if __name__ == "__main__":
	unittest.main()

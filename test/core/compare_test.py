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
	def judge(self, nvm, heap=OUTPUT, listed=(), reason="why", script=SCRIPT, method="nvm"):
		with tempfile.TemporaryDirectory() as top:
			for directory, name, text in (("heap", "t.out", heap), ("nvm", "t.out", nvm),
										  ("sql", "t.sql", script)):
				os.makedirs(os.path.join(top, directory), exist_ok=True)
				with open(os.path.join(top, directory, name), "w", encoding="utf-8") as file:
					file.write(text)
			args = argparse.Namespace(nvm=top + "/nvm", heap=[top + "/heap"], tree=top, method=method)
			if method != "nvm":
				args.nvm = compare.under_name(args.nvm, method)
				args.heap = [compare.under_name(args.heap[0], method)]
			return compare.judge("t", args, [[w.lstrip("?"), reason, w[0] == "?" or compare.is_whole(w)]
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

	def test_method(self):
		"""nvm_vlog may have nvm's exceptions, or fewer, and no other"""
		named = OUTPUT + "access method nvm\n"
		digests = [digest for digest, _ in self.judge(named)[1]]
		other = named.replace("nvm", "nvm_vlog")
		self.assertEqual(self.verdict(other, listed=digests), "bad")
		self.assertEqual(self.verdict(other, listed=digests, method="nvm_vlog"), "listed")
		self.assertEqual(self.verdict(OUTPUT, listed=digests, method="nvm_vlog"), "same")
		both = OUTPUT + "access methods nvm, nvm_vlog\n"
		self.assertEqual(self.verdict(both, both, method="nvm_vlog"), "same")
		self.assertEqual(self.verdict(UNORDERED, listed=digests, method="nvm_vlog"), "bad")

	def test_plan(self):
		plan = "EXPLAIN SELECT a FROM t;\n QUERY PLAN \n------------\n Seq Scan on t\n(1 row)\n\nSELECT 1;\n a \n---\n 1\n(1 row)\n\n"
		other = plan.replace("Seq", "Index")
		wrong = other.replace(" 1\n", " 2\n")
		refused = plan.replace(plan[plan.index(" QUERY"):plan.index("SELECT")], "ERROR:  no operator\n")
		for nvm, verdict in ((other, "listed"), (wrong, "bad"), (refused, "bad")):
			digests = [digest for digest, _ in self.judge(nvm, plan)[1]]
			self.assertEqual(self.verdict(nvm, plan, digests, "plan"), verdict)
			self.assertEqual(self.verdict(nvm, plan, digests), "listed")
		# the same lines, once in a plan
		heap = plan.replace(" Seq Scan on t\n", " a\n b\n").replace(" 1\n", " a\n b\n")
		nvm = heap.replace(" b\n", " c\n")
		digests = [digest for digest, _ in self.judge(nvm, heap)[1]]
		self.assertEqual(len(digests), 2)
		self.assertEqual(self.verdict(nvm, heap, digests, "plan"), "bad")

	def test_plan_and_order(self):
		script = "SELECT a FROM t;\nEXPLAIN SELECT a FROM t;\n"
		heap = "SELECT a FROM t;\n 2\n 1\nEXPLAIN SELECT a FROM t;\n QUERY PLAN \n Seq Scan\n(1 row)\n\n"
		other = heap.replace("Seq", "Index")
		unordered = other.replace(" 2\n 1\n", " 1\n 2\n")
		wrong = unordered.replace(" 1\n 2\n", " 1\n 3\n")
		refused = unordered.replace(" QUERY PLAN \n Index Scan\n(1 row)\n", "ERROR:  no\n")
		digest = self.judge(other, heap, script=script)[1][0][0]
		for nvm, verdict in ((other, "listed"), (unordered, "listed"), (wrong, "bad"), (refused, "bad")):
			self.assertEqual(self.judge(nvm, heap, ["~", digest], "plan", script)[0], verdict)
		self.assertEqual(self.judge(unordered, heap, ["~"], script=script)[0], "bad")

	def test_oid(self):
		"""an operator's OID is not known before"""
		one, other = ("ERROR:  could not find commutator for operator %d\n" % oid for oid in (28900, 28919))
		self.assertEqual(self.judge(one)[1][0][0], self.judge(other)[1][0][0])

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

	def test_tids_and_plan(self):
		heap = " ctid  \n-------\n (0,2)\nQUERY PLAN      \n----------------\nSeq Scan on t\n(1 row)\n\n"
		nvm = heap.replace("(0,2)", "(0,12)").replace("Seq", "Index")
		digest = self.judge(nvm, heap, ["tid*6"])[1][0][0]
		self.assertEqual(self.judge(nvm, heap, ["tid*6", digest], "plan")[0], "listed")
		self.assertEqual(self.judge(nvm.replace("QUERY PLAN", "plan"), heap.replace("QUERY PLAN", "plan"),
									["tid*6", digest], "plan")[0], "bad")

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

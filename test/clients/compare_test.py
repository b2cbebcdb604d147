#!/usr/bin/env python3
"""What compare.py and record.py must not let pass."""
import contextlib
import io
import os
import sys
import tempfile
import unittest
from unittest import mock

import compare
import record


class CompareTest(unittest.TestCase):
	def run_compare(self, heap, nvm, listed="", least=1):
		with tempfile.TemporaryDirectory() as top:
			paths = []
			for name, text in (("heap", heap), ("nvm", nvm), ("listed", listed)):
				paths.append(os.path.join(top, name))
				with open(paths[-1], "w", encoding="utf-8") as file:
					file.write(text)
			argv = ["compare.py", "--suite", "s", "--heap", paths[0], "--nvm", paths[1],
					"--exceptions", paths[2], "--least", str(least)]
			with mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(io.StringIO()) as out:
				status = compare.main()
		return int(status), out.getvalue()

	def test_same(self):
		status, out = self.run_compare("a\tpassed\nb\tfailed E\n", "a\tpassed\nb\tfailed E\n")
		self.assertEqual(status, 0)
		self.assertIn("ok s/a\n", out)
		self.assertIn("fails on both: s/b (failed E)\n", out)
		self.assertIn("s on nvm: 1 passed, 1 failed, 0 skipped\n", out)

	def test_differs(self):
		for nvm in ("a\tfailed E\n", "a\tskipped\n", "b\tpassed\n", ""):
			self.assertEqual(self.run_compare("a\tpassed\n", nvm)[0], 1, nvm)
		self.assertEqual(self.run_compare("a\tpassed\nb\tfailed E\n", "a\tpassed\nb\tfailed F\n")[0], 1)
		self.assertEqual(self.run_compare("a\tpassed\n", "a\tpassed\nb\tpassed\n")[0], 1)

	def test_listed(self):
		both = "a\tpassed\nb\tpassed\n", "a\tpassed\nb\tfailed E\n"
		self.assertEqual(self.run_compare(*both)[0], 1)
		for listed in ("b\twhy\n", "# note\n\n?b\twhy\n"):
			status, out = self.run_compare(*both, listed=listed)
			self.assertEqual(status, 0)
			self.assertIn("ok s/b (listed)\n\theap: passed, nvm: failed E\n", out)

	def test_listed_for_nothing(self):
		same = ("a\tpassed\n",) * 2
		self.assertEqual(self.run_compare(*same, listed="a\twhy\n")[0], 1)
		self.assertEqual(self.run_compare(*same, listed="?a\twhy\n")[0], 0)
		self.assertEqual(self.run_compare(*same, listed="?b\twhy\n")[0], 1)

	def test_no_reason(self):
		for listed in ("a\n", "a\t\n", "a\twhy\na\twhy\n"):
			with self.assertRaises(SystemExit):
				self.run_compare("a\tpassed\n", "a\tfailed E\n", listed=listed)

	def test_too_few(self):
		self.assertEqual(self.run_compare("", "")[0], 1)
		self.assertEqual(self.run_compare("a\tpassed\n", "a\tpassed\n", least=2)[0], 1)


class RecordTest(unittest.TestCase):
	def test_names(self):
		self.assertEqual(record.stable("t.py::A_postgresql+psycopg2_15_13::x[<o at 0x7f1234567890>]"),
						 "t.py::A_postgresql+psycopg2::x[<o at 0x>]")
		self.assertEqual(record.stable("a\tb\nc"), "a b c")

	def test_outcomes(self):
		with tempfile.TemporaryDirectory() as top, \
				mock.patch.dict(os.environ, {"NVM_CLIENTS_RESULTS": top + "/results"}):
			results = record.Record()
			for outcome in ("passed", "error E", "error E"):
				results.add("b", outcome)
			results.add("a", "passed")
			results.write()
			self.assertEqual(compare.results(top + "/results"), {"a": "passed", "b": "error E"})


if __name__ == "__main__":
	unittest.main()

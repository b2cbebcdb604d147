#!/usr/bin/env python3
"""Record what became of each test (record.py) from JUnit's XML reports.

usage: record_junit.py FILE...
"""
import sys
import xml.etree.ElementTree as xml

from record import Record


def outcome(case):
	for kind, said in (("failure", "failed "), ("error", "failed "), ("skipped", "skipped")):
		element = case.find(kind)
		if element is not None:
			return (said + element.get("type", "")).strip()
	return "passed"


def main():
	record = Record()
	for path in sys.argv[1:]:
		for case in xml.parse(path).iter("testcase"):
			record.add("%s::%s" % (case.get("classname"), case.get("name")), outcome(case))
	record.write()


if __name__ == "__main__":
	main()

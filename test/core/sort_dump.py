#!/usr/bin/env python3
"""Sort the rows within each COPY of a plain dump, so that dumps can be held
against each other: the order of a table's rows is no part of its contents.

usage: sort_dump.py FILE
"""
import sys


def main():
	rows = None
	for line in open(sys.argv[1], encoding="utf-8", errors="surrogateescape", newline="\n"):
		if rows is not None:
			if line == "\\.\n":
				sys.stdout.buffer.write("".join(sorted(rows)).encode("utf-8", "surrogateescape"))
				rows = None
			else:
				rows.append(line)
				continue
		elif line.startswith("COPY ") and line.endswith(" FROM stdin;\n"):
			rows = []
		elif line.startswith(("\\restrict ", "\\unrestrict ")):
			continue			# a random key
		sys.stdout.buffer.write(line.encode("utf-8", "surrogateescape"))


if __name__ == "__main__":
	main()

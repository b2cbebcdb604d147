#!/usr/bin/env python3
"""The tests are where the documents say.

A reader comes to a test by the index of test/README.md, or by a name in a README or a
comment.  So:
  * each TAP test stands in the index, under its topic, and each line there is a test;
  * its name is of the form NN_name.pl, and the name is unique over all topics, since
    PostgreSQL's harness names logs and data directories by the file alone;
  * each t/TOPIC/NN_name that a document, a comment or a script names exists.

usage: check_tests.py
"""
import glob
import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXTS = (".md", ".c", ".h", ".pl", ".pm", ".py", ".sh", ".sql", ".patch", ".spec")


def texts():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=TOP,
                           capture_output=True, text=True).stdout.split("\n")
    if len(names) < 2:		# a copy without git
        names = [os.path.relpath(f, TOP) for f in glob.glob(TOP + "/**/*", recursive=True)
                 if "/tmp_check/" not in f]
    for name in names:
        path = os.path.join(TOP, name)
        if name.endswith(TEXTS) and name != "scripts/check_tests.py" and os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as f:
                yield name, f.read()


def main():
    problems = []
    tests = {}
    for path in sorted(glob.glob(os.path.join(TOP, "test/t/*/*.pl"))):
        topic, file = path.split("/")[-2:]
        name = file[:-3]
        if not re.fullmatch(r"\d\d_[a-z0-9_]+", name):
            problems.append(f"test/t/{topic}/{file}: the name is not NN_name.pl")
        for other in tests:
            if other[1] == name:
                problems.append(f"test/t/{topic}/{file}: {other[0]} has a test of that name, too")
        tests[topic, name] = False

    topic = None
    with open(os.path.join(TOP, "test/README.md"), encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            heading = re.match(r"#+ (\S+)", line)
            if heading:
                topic = heading.group(1)
            entry = re.match(r"\* `(\d\d_[a-z0-9_]+)`:", line)
            if entry and (topic, entry.group(1)) not in tests:
                problems.append(f"test/README.md:{number}: there is no test {topic}/{entry.group(1)}")
            elif entry:
                tests[topic, entry.group(1)] = True
    problems += [f"test/t/{t}/{n}.pl: not in the index of test/README.md" for (t, n), there
                 in tests.items() if not there]

    topics = "|".join(sorted({t for t, n in tests}))
    mention = re.compile(rf"(?<![\w-])(?:t/)?({topics})/(\d\d_[a-z0-9_]+)(?![\w*?\[])")
    for name, text in texts():
        for found in mention.finditer(text):
            if found.groups() not in tests:
                line = text.count("\n", 0, found.start()) + 1
                problems.append(f"{name}:{line}: there is no test {found.group(1)}/{found.group(2)}")

    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""PostgreSQL's layout of C, as pgindent makes it, for all of this tree's C files.

usage: indent.py [--check] [FILE...]
	--check		change nothing: name the files that would change, with the
			difference; exit status 1 if there are any
	FILE		default: every .c and .h file that git knows

Needs pg_bsd_indent 2.1 (Debian: pg-bsd-indent), which PostgreSQL 10 to 15 are
laid out with.  scripts/typedefs.list names our types and those of PostgreSQL and
of C that we use: without its name there the indenter does not know a type.
--typedefs LIST writes that file anew, PostgreSQL's types from its own list
(src/tools/pgindent/typedefs.list of its source).

Exit status 77, which make check counts as skipped: there is no pg_bsd_indent.
"""
import difflib
import os
import re
import shutil
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIST = os.path.join(TOP, "scripts", "typedefs.list")

# pgindent's, src/tools/pgindent/README
OPTIONS = ("-bad -bap -bbb -bc -bl -cli1 -cp33 -cdb -nce -d0 -di12 -nfc1 -i4 -l79 -lp -lpl "
           "-nip -npro -sac -tpg -ts4").split()

# words of PostgreSQL's list that are names of variables or fields here
NO_TYPES = {"answer", "iterator", "list", "other", "pointer", "reference", "string", "symbol", "type"}

# types of ours, as the tree defines them
DEFINITIONS = (r"^\}\s*(?:__attribute__\S+\s+)?(\w+);", r"^typedef\s+(?:struct|enum|union)\s+\w+\s+(\w+);",
               r"^typedef\s+[^;{(]*\(\s*\*\s*(\w+)\)", r"^typedef\s+\w+\s+\*?(\w+);",
               r"^(?:typedef )?(?:struct|enum|union) (\w+)$")


def c_files():
    names = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.c", "*.h"], cwd=TOP,
                           capture_output=True, text=True)
    if names.returncode == 0 and names.stdout:
        return names.stdout.split()
    # a copy without git
    found = []
    for directory, dirs, files in os.walk(TOP):
        dirs[:] = [d for d in dirs if not d.startswith((".", "tmp_check"))]
        found += [os.path.relpath(os.path.join(directory, f), TOP) for f in files
                  if f.endswith((".c", ".h"))]
    return sorted(found)


def read(name):
    with open(os.path.join(TOP, name), encoding="utf-8") as f:
        return f.read()


def laid_out(source):
    """The source as it should be, or ValueError with the indenter's complaint."""
    # what it has filled it may fill once more
    for _ in range(4):
        before, source = source, pass_over(source)
        if source == before:
            break
    return source


def pass_over(source):
    # the indenter would fill a comment whose first line is "/* ---"
    source = re.sub(r"/\* +---", "/*---keep", source)
    done = subprocess.run(["pg_bsd_indent", *OPTIONS, "-U" + LIST], input=source,
                          capture_output=True, text=True)
    if done.returncode != 0 or done.stderr.strip():
        raise ValueError(done.stderr.strip() or f"exit status {done.returncode}")
    out = done.stdout.replace("/*---keep", "/* ---")
    # it puts a tab between type and star of a function that returns a pointer
    return re.sub(r"^([A-Za-z_]\S*)[ \t]+\*$", r"\1 *", out, flags=re.M)


def write_typedefs(postgres):
    with open(postgres, encoding="utf-8") as f:
        known = set(f.read().split())
    text = "\n".join(read(name) for name in c_files())
    words = set(re.findall(r"\w+", text))
    types = known & words
    for pattern in DEFINITIONS:
        types.update(re.findall(pattern, text, flags=re.M))
    with open(LIST, "w", encoding="utf-8") as f:
        f.write("".join(t + "\n" for t in sorted(types - NO_TYPES)))


def main():
    args = sys.argv[1:]
    check = "--check" in args
    args = [a for a in args if a != "--check"]
    if args[:1] == ["--typedefs"] and len(args) == 2:
        write_typedefs(args[1])
        return 0
    if any(a.startswith("-") for a in args):
        print(__doc__, file=sys.stderr)
        return 2
    if not shutil.which("pg_bsd_indent"):
        print("indent.py: there is no pg_bsd_indent (Debian: apt-get install pg-bsd-indent)", file=sys.stderr)
        return 77
    names = [os.path.relpath(os.path.abspath(a), TOP) for a in args] or c_files()
    status = 0
    for name in names:
        source = read(name)
        try:
            result = laid_out(source)
        except ValueError as complaint:
            print(f"{name}: {complaint}")
            status = 1
            continue
        if result == source:
            continue
        if check:
            status = 1
            sys.stdout.writelines(difflib.unified_diff(source.splitlines(True), result.splitlines(True),
                                                       name, name + " laid out"))
        else:
            with open(os.path.join(TOP, name), "w", encoding="utf-8") as f:
                f.write(result)
    if check and status:
        print("indent.py: scripts/indent.py lays these files out", file=sys.stderr)
    return status


if __name__ == "__main__":
    sys.exit(main())

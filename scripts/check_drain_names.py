#!/usr/bin/env python3
"""Every fence and every failpoint has a name of its own.

Crash tests enumerate the calls of nvm_drain(), nvm_persist() and
NVM_FAILPOINT() by the names given to them, so a call whose name is not a
string literal, or is used twice, would not be tested.  Also refuses fences
that go around src/pmem.

usage: check_drain_names.py [--list [KIND...]]
    --list prints "kind name file:line" of each call; KIND is drain, persist
    or failpoint.
"""
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CALLS = {"nvm_drain": "drain", "nvm_persist": "persist",
         "NVM_FAILPOINT": "failpoint", "nvm_failpoint_hit": "failpoint"}
NAME = re.compile(r'^[a-z0-9]+(-[a-z0-9]+)+$')
RAW = re.compile(r'\b(pmem_\w+|_mm_(?:sfence|clwb|clflush\w*)|msync|fdatasync|sync_file_range)\s*\(')


def blank(match):
    """Replace a comment by blanks, keeping the line numbers."""
    return re.sub(r'[^\n]', ' ', match.group(0))


def strip_comments(text):
    pattern = r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"'
    return re.sub(pattern,
                  lambda m: m.group(0) if m.group(0)[0] == '"' else blank(m),
                  text, flags=re.S)


def arguments(text, pos):
    """The arguments of the call whose '(' is at pos."""
    depth, start, args, in_string = 0, pos + 1, [], False
    i = pos
    while i < len(text):
        c = text[i]
        if in_string:
            if c == '\\':
                i += 1
            elif c == '"':
                in_string = False
        elif c == '"':
            in_string = True
        elif c in '([{':
            depth += 1
        elif c in ')]}':
            depth -= 1
            if depth == 0:
                args.append(text[start:i].strip())
                return args
        elif c == ',' and depth == 1:
            args.append(text[start:i].strip())
            start = i + 1
        i += 1
    return args


def sources():
    for folder, _, files in sorted(os.walk(os.path.join(TOP, 'src'))):
        for f in sorted(files):
            if f.endswith(('.c', '.h')):
                yield os.path.join(folder, f)


def main():
    calls, problems = [], []
    for path in sources():
        rel = os.path.relpath(path, TOP)
        in_pmem = rel.startswith(os.path.join('src', 'pmem') + os.sep)
        with open(path, encoding='utf-8') as f:
            text = strip_comments(f.read())
        for m in re.finditer(r'\b(%s)\s*\(' % '|'.join(CALLS), text):
            line = text.count('\n', 0, m.start()) + 1
            args = arguments(text, m.end() - 1)
            last = args[-1] if args else ''
            if in_pmem and last in ('name', 'const char *name'):
                continue        # prototype, definition, or passing on
            literal = re.fullmatch(r'"([^"]*)"', last)
            if not literal or not NAME.match(literal.group(1)):
                problems.append('%s:%d: %s without a name of the form "layer-step": %s'
                                % (rel, line, m.group(1), last))
                continue
            calls.append((CALLS[m.group(1)], literal.group(1), '%s:%d' % (rel, line)))
        if not in_pmem:
            for m in RAW.finditer(text):
                line = text.count('\n', 0, m.start()) + 1
                problems.append('%s:%d: %s outside src/pmem' % (rel, line, m.group(1)))

    seen = {}
    for kind, name, place in calls:
        if name in seen:
            problems.append('%s: name "%s" is used at %s already' % (place, name, seen[name]))
        else:
            seen[name] = place

    if '--list' in sys.argv[1:]:
        kinds = [a for a in sys.argv[1:] if a != '--list']
        for kind, name, place in calls:
            if not kinds or kind in kinds:
                print(kind, name, place)
    for p in problems:
        print(p, file=sys.stderr)
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())

#!/usr/bin/env python3
"""The tree keeps the rules of its layers.

  * dependencies point down only (the order is LAYERS, lowest first): includes,
    calls, and any other use of a function or variable of another folder
  * a function or variable is declared in the folder that defines it, in a header
  * a file includes a header of each folder that it uses something of, and none for
    nothing: what it includes says what it depends on
  * a header *_impl.h is included by its own folder alone
  * libpmem only in pmem/, PG_VERSION_NUM only in compat/
  * headers of media/ include <stdint.h> and each other only
  * base names of sources are unique (PGXS flattens dependency files)
  * no file of src/ beyond 900 lines, nothing marked as unfinished
  * a folder with three sources or more has a README.md

A lower folder that needs something of a higher one takes a function pointer,
which the higher one registers.

  check_layers.py              check; prints what is wrong
  check_layers.py --uses A B   what folder A uses of folder B, and where
"""
import os
import re
import sys

from source_index import Index

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ['compat', 'media', 'verify', 'pmem', 'pool', 'wbl', 'xact', 'vlog', 'archive',
          'command', 'btree', 'row', 'storage', 'am', 'ddl', 'func', '']

# (file, name of a function or header): why it may stand
EXCEPTIONS = {}
excused = set()

MAX_LINES = 900
UNFINISHED = re.compile(r'\b(TODO|FIXME|XXX)\b|not (yet )?implemented')
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

problems = []


def complain(place, what):
    problems.append('%s: %s' % (place, what))


def excuse(path, name):
    excused.add((path, name))
    return (path, name) in EXCEPTIONS


def rank(layer):
    return LAYERS.index(layer)


def shown(layer):
    return layer + '/' if layer else 'src/'


def check_include(rel, place, layer, quoted, name, headers):
    """One #include of a file; returns nothing, complains."""
    target = None
    if quoted and name in headers:
        target = os.path.dirname(name)
    elif quoted and os.path.join(layer, name) in headers:
        target = layer
        complain(place, 'name the layer: "%s/%s"' % (layer, name))
    if 'libpmem' in name and layer != 'pmem':
        complain(place, 'libpmem outside pmem/')
    if layer == 'media' and rel.endswith('.h') \
            and target != 'media' and name != 'stdint.h':
        complain(place, 'a header of media/ includes %s' % name)
    if layer == 'media' and quoted and target is None:
        complain(place, 'media/ includes PostgreSQL\'s %s' % name)
    if target is None or target == layer:
        return
    if layer == 'compat':
        complain(place, 'compat/ includes %s' % name)
    elif rank(target) > rank(layer):
        complain(place, '%s/ includes %s, of a layer above it' % (layer, name))
    if name.endswith('_impl.h') and not excuse(os.path.relpath(rel, 'src'), name):
        complain(place, '%s is of %s alone' % (name, shown(target)))


def check_source(rel, text, headers):
    layer = os.path.dirname(os.path.relpath(rel, 'src'))
    if layer not in LAYERS:
        complain(rel, 'folder is not a layer')
        return
    for m in INCLUDE.finditer(text):
        place = '%s:%d' % (rel, text.count('\n', 0, m.start()) + 1)
        check_include(rel, place, layer, m.group(1) == '"', m.group(2), headers)
    if layer != 'compat' and 'PG_VERSION_NUM' in text:
        complain(rel, 'PG_VERSION_NUM outside compat/')
    lines = text.count('\n')
    if lines > MAX_LINES:
        complain(rel, '%d lines; split it by operation' % lines)
    for m in UNFINISHED.finditer(text):
        complain('%s:%d' % (rel, text.count('\n', 0, m.start()) + 1),
                 'unfinished: %s' % m.group(0))


def check_symbols(index):
    """Declarations at home, and uses that point down."""
    for name, owner in sorted(index.owner.items()):
        home = os.path.dirname(owner)
        for place in sorted(index.declared.get(name, ())):
            if place.endswith('.c'):
                complain('src/' + place, '%s is declared in a .c file' % name)
            elif os.path.dirname(place) != home and not excuse(place, name):
                complain('src/' + place, 'declares %s, which %s defines' % (name, owner))
    for user, name, owner in index.uses():
        if rank(os.path.dirname(owner)) > rank(os.path.dirname(user)) \
                and not excuse(user, name):
            complain('src/' + user, 'uses %s of %s, a layer above it' % (name, owner))


def check_includes(index):
    """What a file includes is what it depends on."""
    for path in sorted(index.source):
        if path.startswith('compat/'):
            continue
        missing, idle = index.include_changes(path)
        for header in sorted(missing):
            complain('src/' + path, 'uses something of %s, which it does not include' % header)
        for header in sorted(idle):
            complain('src/' + path, 'includes %s for nothing' % header)


def read_tree():
    files, headers, by_name, per_folder = {}, set(), {}, {}
    for folder, _, names in sorted(os.walk(os.path.join(TOP, 'src'))):
        for f in sorted(names):
            if not f.endswith(('.c', '.h')):
                continue
            rel = os.path.relpath(os.path.join(folder, f), TOP)
            with open(os.path.join(TOP, rel), encoding='utf-8') as fh:
                files[rel] = fh.read()
            if f.endswith('.h'):
                headers.add(os.path.relpath(rel, 'src'))
            else:
                per_folder.setdefault(os.path.dirname(rel), []).append(f)
            if f in by_name:
                complain(rel, 'base name also used by %s' % by_name[f])
            by_name[f] = rel
    return files, headers, per_folder


def main():
    files, headers, per_folder = read_tree()
    index = Index({os.path.relpath(rel, 'src'): text for rel, text in files.items()})
    if sys.argv[1:2] == ['--uses']:
        user_of, owner_of = (a.rstrip('/') for a in sys.argv[2:4])
        for user, name, owner in sorted(index.uses()):
            if (os.path.dirname(user), os.path.dirname(owner)) == (user_of, owner_of):
                print('%s: %s of %s' % (user, name, owner))
        return 0
    for rel, text in files.items():
        check_source(rel, text, headers)
    check_symbols(index)
    check_includes(index)
    for path, name in sorted(set(EXCEPTIONS) - excused):
        complain('src/' + path, 'needs no exception for %s any more' % name)
    for folder, names in per_folder.items():
        if folder != 'src' and len(names) >= 3 \
                and not os.path.exists(os.path.join(TOP, folder, 'README.md')):
            complain(folder, 'has no README.md')
    for p in problems:
        print(p, file=sys.stderr)
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())

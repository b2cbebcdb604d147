#!/usr/bin/env python3
"""The tree keeps the rules of its layers.

  * dependencies point down only (the order is LAYERS, lowest first)
  * libpmem only in pmem/, PG_VERSION_NUM only in compat/
  * headers of media/ include <stdint.h> and each other only
  * base names of sources are unique (PGXS flattens dependency files)
  * no file of src/ beyond 900 lines, nothing marked as unfinished
  * a folder with three sources or more has a README.md
"""
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ['media', 'verify', 'pmem', 'pool', 'wbl', 'xact', 'vlog', 'archive',
          'command', 'btree', 'table', '']
MAX_LINES = 900
UNFINISHED = re.compile(r'\b(TODO|FIXME|XXX)\b|not (yet )?implemented')
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)

problems = []


def complain(place, what):
    problems.append('%s: %s' % (place, what))


def rank(layer):
    return LAYERS.index(layer)


def check_source(rel, text, headers):
    layer = os.path.dirname(os.path.relpath(rel, 'src'))
    if layer != 'compat' and layer not in LAYERS:
        complain(rel, 'folder is not a layer')
        return
    for m in INCLUDE.finditer(text):
        place = '%s:%d' % (rel, text.count('\n', 0, m.start()) + 1)
        quoted, name = m.group(1) == '"', m.group(2)
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
        if target is None or target == 'compat':
            continue
        if layer == 'compat':
            complain(place, 'compat/ includes %s' % name)
        elif rank(target) > rank(layer):
            complain(place, '%s/ includes %s, of a layer above it' % (layer, name))
    if layer != 'compat' and 'PG_VERSION_NUM' in text:
        complain(rel, 'PG_VERSION_NUM outside compat/')
    lines = text.count('\n')
    if lines > MAX_LINES:
        complain(rel, '%d lines; split it by operation' % lines)
    for m in UNFINISHED.finditer(text):
        complain('%s:%d' % (rel, text.count('\n', 0, m.start()) + 1),
                 'unfinished: %s' % m.group(0))


def main():
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
    for rel, text in files.items():
        check_source(rel, text, headers)
    for folder, names in per_folder.items():
        if folder != 'src' and len(names) >= 3 \
                and not os.path.exists(os.path.join(TOP, folder, 'README.md')):
            complain(folder, 'has no README.md')
    for p in problems:
        print(p, file=sys.stderr)
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())

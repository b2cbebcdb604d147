#!/usr/bin/env python3
"""The tree keeps the rules of its layers.

  * dependencies point down only (the order is LAYERS, lowest first): includes,
    calls, and any other use of a function or variable of another folder
  * a function or variable is declared in the folder that defines it, in a header
  * a file includes a header of each folder that it uses something of, and none for
    nothing: what it includes says what it depends on
  * a header *_impl.h is included by its own folder alone
  * libpmem only in pmem/, PG_VERSION_NUM only in compat/
  * changes of rows are noted by row/nvm_change.h alone
  * headers of media/ include <stdint.h> and each other only
  * base names of sources are unique (PGXS flattens dependency files)
  * no file of src/ beyond 900 lines, nothing marked as unfinished
  * the graph of folders in doc/internals.md is that of the sources
  * a folder with three sources or more has a README.md, which names each of them

A lower folder that needs something of a higher one takes a function pointer,
which the higher one registers.

  check_layers.py              check; prints what is wrong
  check_layers.py --graph      write the graph of folders into doc/internals.md,
                               which the check holds against the sources
  check_layers.py --uses A B   what folder A uses of folder B, and where
"""
import os
import re
import sys

from source_index import Index

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LAYERS = ['compat', 'media', 'verify', 'pmem', 'pool', 'log', 'wbl', 'xact', 'archive',
          'command', 'btree', 'row', 'storage', 'vlog', 'am', 'replay', 'ddl', 'func', '']

GRAPH_FILE = 'doc/internals.md'
GRAPH_BEGIN = '<!-- graph: written by scripts/check_layers.py --graph -->\n'
GRAPH_END = '<!-- end of graph -->\n'
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
    if layer != 'xact' and 'nvm_undo_add(' in text and not rel.endswith('row/nvm_change.h'):
        complain(rel, 'nvm_undo_add outside row/nvm_change.h, which every change of a row passes')
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


def graph(index):
    """The section of doc/internals.md: folders, lowest first, and what each uses."""
    calls, includes = set(), {}
    for user, _, owner in index.uses():
        calls.add((os.path.dirname(user), os.path.dirname(owner)))
    for path, source in index.source.items():
        for header in source.included:
            if header in index.source:
                includes.setdefault(os.path.dirname(path), set()).add(os.path.dirname(header))
    folders = [f for f in LAYERS if any(os.path.dirname(p) == f for p in index.source)]
    lines = ['| folder | calls, or reads variables of | uses types and macros of |\n',
             '|---|---|---|\n']
    for f in folders:
        used = [o for o in reversed(folders) if o != f and (f, o) in calls]
        seen = [o for o in reversed(folders)
                if o != f and o not in used and o in includes.get(f, ())]
        lines.append('| `%s` | %s | %s |\n' % (shown(f).rstrip('/'), ', '.join(used),
                                              ', '.join(seen)))
    return GRAPH_BEGIN + '\n' + ''.join(lines) + '\n' + GRAPH_END


def written_graph():
    """What stands in doc/internals.md: before the graph, the graph, and after it."""
    path = os.path.join(TOP, GRAPH_FILE)
    text = ''
    if os.path.exists(path):
        with open(path, encoding='utf-8') as fh:
            text = fh.read()
    if GRAPH_BEGIN not in text or GRAPH_END not in text:
        return text, '', ''
    begin, end = text.index(GRAPH_BEGIN), text.index(GRAPH_END) + len(GRAPH_END)
    return text[:begin], text[begin:end], text[end:]


def write_graph(index):
    before, old, after = written_graph()
    with open(os.path.join(TOP, GRAPH_FILE), 'w', encoding='utf-8') as fh:
        fh.write(before + graph(index) + after)


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


def check_readme(folder, names):
    path = os.path.join(TOP, folder, 'README.md')
    if not os.path.exists(path):
        complain(folder, 'has no README.md')
        return
    with open(path, encoding='utf-8') as f:
        text = f.read()
    for name in sorted(names):
        if '`%s`' % name not in text:
            complain(folder + '/README.md', 'does not name %s' % name)


def main():
    files, headers, per_folder = read_tree()
    index = Index({os.path.relpath(rel, 'src'): text for rel, text in files.items()})
    if sys.argv[1:2] == ['--uses']:
        user_of, owner_of = (a.rstrip('/') for a in sys.argv[2:4])
        for user, name, owner in sorted(index.uses()):
            if (os.path.dirname(user), os.path.dirname(owner)) == (user_of, owner_of):
                print('%s: %s of %s' % (user, name, owner))
        return 0
    if sys.argv[1:2] == ['--graph']:
        write_graph(index)
        return 0
    for rel, text in files.items():
        check_source(rel, text, headers)
    check_symbols(index)
    check_includes(index)
    if written_graph()[1] != graph(index):
        complain(GRAPH_FILE, 'the graph is out of date: scripts/check_layers.py --graph')
    for path, name in sorted(set(EXCEPTIONS) - excused):
        complain('src/' + path, 'needs no exception for %s any more' % name)
    for folder, names in per_folder.items():
        if folder != 'src' and len(names) >= 3:
            check_readme(folder, names)
    for p in problems:
        print(p, file=sys.stderr)
    return 1 if problems else 0


if __name__ == '__main__':
    sys.exit(main())

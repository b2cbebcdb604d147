"""Which file of src/ defines, declares and uses which function or variable.

Read from the sources, without a compiler: they are in PostgreSQL's style, in
which the name of a function that is defined stands at the start of a line, and
a declaration in a header begins with "extern" there.  Static names of a .c file
are its own; what a header defines, static inline functions and macros, belongs
to the header.  Names of the whole tree are unique enough for that: they begin
with nvm_ or Nvm.
"""
import collections
import os
import re

NOT_CODE = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)
EXTERN = re.compile(r'^extern\b[^;{]*;', re.S | re.M)
ATTRIBUTE = re.compile(r'__attribute__\s*\(\(.*?\)\)|pg_attribute_\w+(?:\([^)]*\))?|PGDLLEXPORT',
                       re.S)
EXTERN_POINTER = re.compile(r'extern\b[^;(]*\(\s*\*\s*(\w+)')
EXTERN_FUNCTION = re.compile(r'extern\b[^;(]*?(\w+)\s*\(')
EXTERN_VARIABLE = re.compile(r'extern\b[^;=(]*?(\w+)\s*(\[[^;]*\])?\s*;')
FUNCTION = re.compile(r'([A-Za-z_]\w*)\(')
VARIABLE = re.compile(r'(static\s+)?((?:[A-Za-z_]\w*\s+|\*\s*)+\**)([A-Za-z_]\w*)\s*'
                      r'(\[[^=;]*\])*\s*(=|;)')
NO_VARIABLE = re.compile(r'(extern|typedef|return|(struct|enum|union)\s+\w+\s*;)')
POINTER = re.compile(r'(static\s+)?(?:[A-Za-z_]\w*\s+)+\(\*\s*(\w+)\)\s*\(')
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
MACRO = re.compile(r'\s*#\s*define\s+(\w+)')
TYPEDEF = re.compile(r'^typedef\b[^;{]*;', re.M)
TYPEDEF_POINTER = re.compile(r'\(\s*\*\s*(\w+)\s*\)\s*\(')
BRACED = re.compile(r'^(?:typedef\s+)?(?:struct|union|enum)\s*(\w*)\s*\{(.*?)^\}\s*(\w*)', re.S | re.M)
ENUMERATOR = re.compile(r'^\s*([A-Za-z_]\w*)\s*(?:=[^,}]*)?(?:,|$)', re.M)
TOKEN = re.compile(r'(\.|->)?\s*\b([A-Za-z_]\w*)')


def blank(m):
    return re.sub(r'[^\n]', ' ', m.group(0))


def without_comments(text):
    return NOT_CODE.sub(lambda m: blank(m) if m.group(0)[0] == '/' else m.group(0)[0] * 2, text)


class Source:
    """One file: what it defines, declares, and names."""

    def __init__(self, text):
        self.defined, self.static, self.macros = set(), set(), set()
        self.declared, self.named = set(), set()
        self.types = set()      # with the values of enums
        self.named_in_declarations = set()
        self.included = INCLUDE.findall(text)
        text = without_comments(text)
        self._types(text)
        text = EXTERN.sub(self._declaration, text)
        lines = text.split('\n')
        for i, line in enumerate(lines):
            self._definition(lines, i, line)
            if not re.match(r'\s*#\s*include', line):
                # fields of a struct may be called as functions are
                self.named.update(m.group(2) for m in TOKEN.finditer(line) if not m.group(1))

    def _types(self, text):
        for m in BRACED.finditer(text):
            self.types.update(n for n in (m.group(1), m.group(3)) if n)
            if re.search(r'\benum\b', m.group(0)[:m.start(2) - m.start(0)]):
                self.types.update(ENUMERATOR.findall(m.group(2)))
        forward = re.compile(r'^typedef\s+struct\s+(\w+)\s+\1;', re.M)
        for m in TYPEDEF.finditer(forward.sub('', text)):
            pointer = TYPEDEF_POINTER.search(m.group(0))
            self.types.add(pointer.group(1) if pointer else
                           re.findall(r'\w+', m.group(0).split('[')[0])[-1])
        self.types.update(forward.findall(text))

    def provides(self):
        """Of a header: what another file may include it for."""
        return self.declared | self.static | self.macros | self.types

    def _declaration(self, m):
        text = ATTRIBUTE.sub('', m.group(0))
        for pattern in (EXTERN_POINTER, EXTERN_FUNCTION, EXTERN_VARIABLE):
            found = pattern.match(text)
            if found:
                self.declared.add(found.group(1))
                self.named_in_declarations.update(
                    t for _, t in TOKEN.findall(text) if t != found.group(1))
                break
        return blank(m)

    def _definition(self, lines, i, line):
        before = lines[i - 1] if i else ''
        m = FUNCTION.match(line)
        if m and before.strip() and not before.lstrip().startswith('#') \
                and not before.rstrip().endswith((';', '\\', '}')):
            rest = '\n'.join(lines[i:i + 30])
            body, end = rest.find('{'), rest.find(';')
            if body >= 0 and (end < 0 or body < end):
                (self.static if 'static' in before else self.defined).add(m.group(1))
            return
        m = MACRO.match(line)
        if m:
            self.macros.add(m.group(1))
        m = POINTER.match(line) if not NO_VARIABLE.match(line) else None
        if m:
            (self.static if m.group(1) else self.defined).add(m.group(2))
            return
        m = VARIABLE.match(line)
        if m and not NO_VARIABLE.match(line):
            (self.static if m.group(1) else self.defined).add(m.group(3))


class Index:
    """All files, by their path below src/."""

    def __init__(self, texts):
        self.homes = None
        self.source = {path: Source(text) for path, text in texts.items()}
        self.owner = {}
        self.declared = collections.defaultdict(set)
        for path, source in self.source.items():
            mine = source.defined
            if path.endswith('.h'):
                mine = mine | source.static
            for name in mine:
                self.owner[name] = path
            for name in source.declared:
                self.declared[name].add(path)

    def uses(self):
        """(file, name, file that defines it), of other files' names."""
        for path, source in sorted(self.source.items()):
            own = source.static | source.macros
            for name in sorted(source.named):
                owner = self.owner.get(name)
                if owner is not None and owner != path and name not in own:
                    yield path, name, owner

    def headers_for(self, path):
        """The headers of ours that a file needs: those that provide what it names, and
        those that declare what it defines.  Where several provide a name, the first of
        them that the file includes, or else that there is, will do."""
        source = self.source[path]
        own = source.static | source.macros | source.types
        needed = set()
        for name in (source.named | source.named_in_declarations) - own:
            homes = self._homes().get(name, ())
            if path in homes or not homes:
                continue
            needed.add(next((h for h in homes if h in source.included), homes[0]))
        needed.discard(path)
        return needed

    def reached(self, header):
        """A header and those of its own folder that it includes."""
        found, todo = set(), [header]
        while todo:
            h = todo.pop()
            if h in found or h not in self.source:
                continue
            found.add(h)
            todo += [i for i in self.source[h].included
                     if os.path.dirname(i) == os.path.dirname(header)]
        return found

    def include_changes(self, path):
        """What a file should include and does not, and what it includes for nothing.

        A header may come by another one of its own folder, so that each folder is named.
        media/ need not be: layouts come with what hands them out.  compat/ wraps headers
        of PostgreSQL, of which nothing is known here."""
        needed = self.headers_for(path)
        included = [h for h in self.source[path].included if h in self.source]
        missing = needed - set().union(*map(self.reached, included))
        idle = {h for h in included
                if not self.reached(h) & needed or
                (h not in needed and self.reached(h) & needed <= set(included) - {h})}
        return ({h for h in missing if not h.startswith('media/') or path.startswith('media/')},
                {h for h in idle if not h.startswith('compat/')})

    def _homes(self):
        if self.homes is None:
            self.homes = {}
            for path in sorted(self.source):
                if path.endswith('.h'):
                    for name in self.source[path].provides():
                        self.homes.setdefault(name, []).append(path)
        return self.homes

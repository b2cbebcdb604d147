"""Which file of src/ defines, declares and uses which function or variable.

Read from the sources, without a compiler: they are in PostgreSQL's style, in
which the name of a function that is defined stands at the start of a line, and
a declaration in a header begins with "extern" there.  Static names of a .c file
are its own; what a header defines, static inline functions and macros, belongs
to the header.  Names of the whole tree are unique enough for that: they begin
with nvm_ or Nvm.
"""
import collections
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
MACRO = re.compile(r'\s*#\s*define\s+(\w+)')
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
        text = EXTERN.sub(self._declaration, without_comments(text))
        lines = text.split('\n')
        for i, line in enumerate(lines):
            self._definition(lines, i, line)
            if not re.match(r'\s*#\s*include', line):
                # fields of a struct may be called as functions are
                self.named.update(m.group(2) for m in TOKEN.finditer(line) if not m.group(1))

    def _declaration(self, m):
        text = ATTRIBUTE.sub('', m.group(0))
        for pattern in (EXTERN_POINTER, EXTERN_FUNCTION, EXTERN_VARIABLE):
            found = pattern.match(text)
            if found:
                self.declared.add(found.group(1))
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

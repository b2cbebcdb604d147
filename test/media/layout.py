#!/usr/bin/env python3
"""Write a C program that prints the on-media layout.

Every struct and every object-like macro of src/media/*.h is found here by
parsing, so that none can be forgotten; the compiler supplies the offsets,
sizes and values.  The program's output is compared with layout.expected: a
difference means that existing pools would be misread, so it needs a raised
NVM_POOL_VERSION and a way to open the old format, not a new expectation.
"""
import glob
import os
import re
import sys

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    headers = sorted(glob.glob(os.path.join(TOP, 'src', 'media', '*.h')))
    out = ['/* made by layout.py */', '#include <stddef.h>', '#include <stdio.h>']
    body = []
    for h in headers:
        out.append('#include "media/%s"' % os.path.basename(h))
        with open(h, encoding='utf-8') as f:
            text = re.sub(r'/\*.*?\*/', ' ', f.read(), flags=re.S)
        text = text.replace('\\\n', ' ')
        for m in re.finditer(r'^#define[ \t]+(\w+)[ \t]+(\S.*?)[ \t]*$', text, re.M):
            if '"' not in m.group(2):
                body.append('\tprintf("%s = %%#llx\\n", (unsigned long long) (%s));'
                            % (m.group(1), m.group(1)))
        for m in re.finditer(r'typedef\s+struct\s*(\w*)\s*\{([^{}]*)\}\s*(\w+)\s*;', text):
            name = m.group(3)
            body.append('\tprintf("struct %s: %%zu\\n", sizeof(%s));' % (name, name))
            for decl in m.group(2).split(';'):
                decl = decl.strip()
                if not decl:
                    continue
                f = re.fullmatch(r'([A-Za-z_]\w*)\s+(.*)', decl, re.S)
                if not f:
                    sys.exit('%s: cannot parse "%s"' % (h, decl))
                for field in f.group(2).split(','):
                    field = re.sub(r'\[.*', '', field.strip(), flags=re.S).strip()
                    if not re.fullmatch(r'\w+', field):
                        sys.exit('%s: cannot parse "%s"' % (h, decl))
                    body.append('\tprintf("  %%4zu %%4zu  %s\\n", offsetof(%s, %s), '
                                'sizeof(((%s *) 0)->%s));'
                                % (field, name, field, name, field))
        declared = len(re.findall(r'\bstruct\s*\w*\s*\{', text))
        found = len(re.findall(r'typedef\s+struct\s*\w*\s*\{[^{}]*\}\s*\w+\s*;', text))
        if declared != found:
            sys.exit('%s: %d structs, of which %d are parsed' % (h, declared, found))
    out += ['', 'int', 'main(void)', '{'] + body + ['\treturn 0;', '}']
    print('\n'.join(out))


if __name__ == '__main__':
    main()

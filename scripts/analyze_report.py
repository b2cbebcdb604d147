#!/usr/bin/env python3
"""Hold the findings of analyzers against the list of those that are no faults.

usage: analyze_report.py OUTPUT_DIRECTORY SUPPRESSIONS TOOL...

OUTPUT_DIRECTORY has TOOL.txt for each tool, with lines
	file:line:column: kind: text [check]
Each line of SUPPRESSIONS, but for those that begin with # or are empty, is
	tool | check | file | part of the source line | reason
It must match a finding, and have a reason.
"""
import os
import re
import sys

FINDING = re.compile(r'^(\S+?):(\d+):(?:\d+:)? (\w+): (.*?)(?: \[CWE-\d+\])? \[([^\]\s]+)\]$')
EXPANSION = re.compile(r'^((?:src|bin)/\S+?):(\d+):\d+: note: in expansion of macro')
# what a tool could not do is a finding: it has not looked
BROKEN = re.compile(r'(fatal error:|: error:|internalError|syntaxError|Segmentation fault|^Error while)')


def source_line(name, number):
	try:
		with open(name, encoding='utf-8') as file:
			return file.read().split('\n')[number - 1].strip()
	except (OSError, IndexError):
		return ''


def read_suppressions(name, tools):
	result = []
	with open(name, encoding='utf-8') as file:
		for number, line in enumerate(file, 1):
			if not line.strip() or line.startswith('#'):
				continue
			parts = [part.strip() for part in line.split(' | ', 4)]
			if len(parts) != 5 or not all(parts):
				sys.exit(f'{name}:{number}: not "tool | check | file | source | reason"')
			if parts[0] in tools:
				result.append(parts + [number, 0])
	return result


def findings(directory, tool):
	"""(file, line, text, check) of each; in a macro of a header, where it is used."""
	found = []
	with open(f'{directory}/{tool}.txt', encoding='utf-8', errors='replace') as file:
		for line in file:
			line = line.rstrip()
			match = FINDING.match(line)
			used = EXPANSION.match(line)
			if match and match.group(3) not in ('note', 'information'):
				name, number, _kind, text, check = match.groups()
				found.append([os.path.relpath(name), int(number), text,
							  check.lstrip('-').replace('Wanalyzer', 'analyzer')])
			elif used and found and not found[-1][0].startswith(('src/', 'bin/')):
				found[-1][0:2] = used.group(1), int(used.group(2))
			elif not match and BROKEN.search(line):
				found.append(['', 0, line, 'broken'])
	seen = set()
	for name, number, text, check in found:
		key = (name, number, check) if name else text
		if key not in seen:
			seen.add(key)
			yield name, number, text, check


def main():
	if len(sys.argv) < 4:
		sys.exit(__doc__.strip())
	directory, listed, tools = sys.argv[1], sys.argv[2], sys.argv[3:]
	suppressions = read_suppressions(listed, tools)
	bad = 0
	for tool in tools:
		explained = new = 0
		for name, number, text, check in findings(directory, tool):
			source = source_line(name, number) if number else ''
			for entry in suppressions:
				if entry[0] == tool and entry[1] in check.split(',') and entry[2] == name and entry[3] in source:
					entry[6] += 1
					explained += 1
					break
			else:
				new += 1
				print(f'{name}:{number}: {text} [{tool} {check}]')
				if source:
					print(f'\t{source}')
		print(f'{tool}: {new} findings, {explained} more that are explained')
		bad += new
	for tool, check, name, source, _reason, number, used in suppressions:
		if used == 0:
			print(f'{listed}:{number}: not found any more: {tool} {check} {name} {source}')
			bad += 1
	print('analyze: ' + ('passed' if bad == 0 else 'FAILED'))
	sys.exit(bad != 0)


if __name__ == '__main__':
	main()

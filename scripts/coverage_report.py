#!/usr/bin/env python3
"""Lines of src/ that were run, from the counts of gcov.

usage: coverage_report.py BUILD_DIRECTORY COUNTS_DIRECTORY OUTPUT_DIRECTORY

BUILD_DIRECTORY has the sources and the .gcno files of the compiler.  Below
COUNTS_DIRECTORY lie directories that each have a src/ of .gcda files: as many as
there were runs (tiers, TAP tests), so that a file which a killed process left
half written spoils one run alone.  They may be of several such builds.

Writes summary.txt and uncovered.txt.  A line counts as reached if any process has
run it; what the compiler makes no code of is no line.
"""
import collections
import concurrent.futures
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile


def run_directories(counts):
	"""Directories that have src/, and in it counts."""
	found = set()
	for path, _dirs, files in os.walk(counts):
		if any(name.endswith('.gcda') for name in files):
			cut = path.rfind('/src')
			if cut >= 0:
				found.add(path[:cut])
	return sorted(found)


def objects(root, ending):
	for path, _dirs, files in os.walk(os.path.join(root, 'src')):
		for name in files:
			if name.endswith(ending):
				yield os.path.relpath(os.path.join(path, name), root)


class Lines:
	"""file -> line -> count, file -> (first, last, name) -> count"""

	def __init__(self):
		self.lines = collections.defaultdict(dict)
		self.functions = collections.defaultdict(dict)

	def add(self, name, line, count):
		self.lines[name][line] = self.lines[name].get(line, 0) + count

	def add_function(self, name, key, count):
		self.functions[name][key] = self.functions[name].get(key, 0) + count

	def merge(self, other):
		for name, lines in other.lines.items():
			for line, count in lines.items():
				self.add(name, line, count)
		for name, functions in other.functions.items():
			for key, count in functions.items():
				self.add_function(name, key, count)


def read_gcov(directory, names, into):
	"""gcov of each of names, below directory."""
	run = subprocess.run(['gcov', '--json-format', '--stdout'] + names, cwd=directory,
						 stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
	out = run.stdout
	if out[:2] == b'\x1f\x8b':
		out = gzip.decompress(out)
	for text in out.decode().splitlines():
		if not text.startswith('{'):
			continue
		for file in json.loads(text)['files']:
			name = os.path.normpath(file['file'])
			if not name.startswith('src/'):
				continue
			for line in file['lines']:
				into.add(name, line['line_number'], line['count'])
			for function in file['functions']:
				into.add_function(name, (function['start_line'], function['end_line'], function['name']),
								  function['execution_count'])
	return run.stderr.decode(errors='replace')


def read_run(task):
	build, directory = task
	result = Lines()
	trouble = []
	with tempfile.TemporaryDirectory() as work:
		for name in objects(directory, '.gcda'):
			note = name[:-5] + '.gcno'
			if not os.path.exists(os.path.join(build, note)):
				trouble.append(f'{directory}/{name}: no {note}')
				continue
			os.makedirs(os.path.dirname(os.path.join(work, name)), exist_ok=True)
			os.symlink(os.path.join(build, note), os.path.join(work, note))
			os.symlink(os.path.join(directory, name), os.path.join(work, name))
		names = list(objects(work, '.gcda'))
		errors = read_gcov(work, names, result)
		# counts that gcov cannot read are no counts
		trouble += [f'{directory}: {line}' for line in errors.splitlines() if line.strip()]
	return result, trouble


def ranges(numbers, executable):
	"""Runs of numbers between which nothing is executable."""
	result = []
	for number in sorted(numbers):
		if result and not any(n in executable for n in range(result[-1][1] + 1, number)):
			result[-1][1] = number
		else:
			result.append([number, number])
	return result


def write_uncovered(out, build, total):
	for name in sorted(total.lines):
		lines = total.lines[name]
		missing = {n for n, count in lines.items() if count == 0}
		if not missing:
			continue
		with open(os.path.join(build, name), encoding='utf-8') as file:
			source = file.read().split('\n')
		out.write(f'\n==== {name}: {len(missing)} of {len(lines)} lines\n')
		functions = {}
		for first, last, function in total.functions[name]:
			functions[(first, last)] = function
		rest = set(missing)
		for (first, last), function in sorted(functions.items()):
			within = {n for n in rest if first <= n <= last}
			rest -= within
			if not within:
				continue
			all_lines = sum(1 for n in lines if first <= n <= last)
			if len(within) == all_lines:
				out.write(f'\n{function}: NEVER CALLED ({all_lines} lines, from {first})\n')
				continue
			out.write(f'\n{function}: {len(within)} of {all_lines} lines\n')
			reached = {n for n in lines if lines[n] > 0}
			for begin, end in ranges(within, reached):
				for number in range(begin, end + 1):
					out.write(f'{number:6d}\t{source[number - 1]}\n')
				out.write('\n')
		for begin, end in ranges(rest, {n for n in lines if lines[n] > 0}):
			out.write(f'{begin}-{end}\n')


def write_summary(out, runs, total):
	def row(name, lines):
		reached = sum(1 for count in lines if count > 0)
		percent = 100.0 * reached / len(lines) if lines else 100.0
		out.write(f'{name:40s} {len(lines):6d} lines {reached:6d} reached {percent:6.1f} %\n')

	folders = collections.defaultdict(list)
	everything = []
	out.write(f'{runs} runs (tiers and TAP tests)\n\n')
	for name in sorted(total.lines):
		counts = list(total.lines[name].values())
		row(name, counts)
		folders[os.path.dirname(name)] += counts
		everything += counts
	out.write('\n')
	for name in sorted(folders):
		row(name, folders[name])
	called = sum(1 for f in total.functions.values() for count in f.values() if count > 0)
	functions = sum(len(f) for f in total.functions.values())
	out.write(f'\n{called} of {functions} functions called\n')
	row('all', everything)


def main():
	if len(sys.argv) != 4 or sys.argv[1].startswith('-'):
		sys.exit(re.sub(r'\n\t', '\n', __doc__).strip())
	build, counts, output = (os.path.abspath(arg) for arg in sys.argv[1:])
	total = Lines()
	trouble = []
	# what no process ever ran has no counts: it counts as lines all the same
	names = list(objects(build, '.gcno'))
	with tempfile.TemporaryDirectory() as work:
		for note in names:
			os.makedirs(os.path.dirname(os.path.join(work, note)), exist_ok=True)
			os.symlink(os.path.join(build, note), os.path.join(work, note))
		read_gcov(work, names, total)
	found = run_directories(counts)
	with concurrent.futures.ProcessPoolExecutor(os.cpu_count()) as pool:
		for result, bad in pool.map(read_run, [(build, d) for d in found]):
			total.merge(result)
			trouble += bad
	if not found or not total.lines:
		sys.exit(f'no counts below {counts}')
	os.makedirs(output, exist_ok=True)
	with open(os.path.join(output, 'uncovered.txt'), 'w', encoding='utf-8') as out:
		write_uncovered(out, build, total)
	with open(os.path.join(output, 'unreadable.txt'), 'w', encoding='utf-8') as out:
		out.write('\n'.join(trouble) + '\n' if trouble else '')
	with open(os.path.join(output, 'summary.txt'), 'w', encoding='utf-8') as out:
		write_summary(out, len(found), total)


if __name__ == '__main__':
	main()

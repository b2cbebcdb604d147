#!/usr/bin/env python3
"""What a server said to sqlsmith, judged.

usage: sqlsmith_report.py PSQL WORK_DIRECTORY REPORT_DIRECTORY

WORK_DIRECTORY has log/server.json and log/server.log, of a server that still runs,
and the output of each sqlsmith as smith.N.  Prints "ok" or "not ok" and what.

An internal error is PostgreSQL's own if it does not come from a file of src/, and the
statement gives the same on the heap tables of database heap.  Others are failures; their statements go to
REPORT_DIRECTORY/error_N.sql.
"""
import collections
import glob
import json
import os
import re
import subprocess
import sys

ALARM = re.compile(rb'TRAP:|PANIC:|terminated by signal|reference leak|refcount leak|still referenced'
				   rb'|resource was not closed|write past chunk|problem in alloc set|lock leak')
# how many statements of one error are tried on heap
TRIES = 4


def say(good, what):
	print(('ok ' if good else 'not ok ') + what)


def same(message):
	"""A message without what differs from table to table: names, numbers, a value of one character."""
	message = re.sub(r': \S$', ': X', re.sub(r'"[^"]*"', '"X"', message))
	return re.sub(r'\b0x[0-9a-f]+|\d+', 'N', message)


def run(psql, database, statement):
	"""SQLSTATE and message of the error that it gives, or None."""
	script = f'SET search_path = public;\nSET statement_timeout = \'10s\';\nBEGIN;\n{statement};\nROLLBACK;\n'
	out = subprocess.run([psql, '-qXAt', '-d', database, '-U', 'smith', '-v', 'VERBOSITY=verbose', '-f', '-'],
						 input=script.encode(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False)
	found = re.search(r'^(?:psql:.*?)?(?:ERROR|FATAL|PANIC):\s+(\w{5}): (.*)$', out.stderr.decode(errors='replace'), re.M)
	return (found.group(1), same(found.group(2))) if found else None


def main():
	if len(sys.argv) != 4:
		sys.exit(__doc__.strip())
	psql, work, report = sys.argv[1:]
	os.makedirs(report, exist_ok=True)

	ours = {os.path.basename(name) for name in glob.glob('src/*.c') + glob.glob('src/*/*.c')}
	internal = collections.defaultdict(list)
	states = collections.Counter()
	ends = []
	with open(f'{work}/log/server.json', encoding='utf-8', errors='replace') as log:
		for line in log:
			try:
				entry = json.loads(line)
			except ValueError:
				continue
			severity, state = entry.get('error_severity'), entry.get('state_code', '00000')
			if severity == 'ERROR':
				states[state] += 1
				if state.startswith('XX'):
					internal[(state, same(entry.get('message', '')))].append(
						(entry.get('message', ''), entry.get('dbname', ''), entry.get('statement', ''),
						 entry.get('file_name', '')))
			elif severity in ('FATAL', 'PANIC') and not state.startswith('08'):	# the client's end
				ends.append(f"{severity}: {entry.get('message', '')} [{entry.get('statement', '')[:200]}]")

	with open(f'{work}/log/server.log', 'rb') as log:
		alarms = [line.decode(errors='replace').strip() for line in log if ALARM.search(line)]
	say(not alarms, 'no crash, no assertion that failed, nothing left unreleased')
	for line in alarms[:20]:
		print('#', line)
	say(not ends, 'no session ended by the server')
	for line in ends[:20]:
		print('#', line)

	own = 0
	bad = 0
	for (state, message), cases in sorted(internal.items()):
		where = 'nowhere else'
		for _text, _database, statement, file in cases[:TRIES]:
			if file in ours:
				where = 'of ' + file
			elif run(psql, 'heap', statement) == (state, message):
				where = 'on heap too'
				break
		if where == 'on heap too':
			own += 1
		else:
			bad += 1
			with open(f'{report}/error_{bad}.sql', 'w', encoding='utf-8') as out:
				for text, database, statement, _file in cases[:TRIES]:
					out.write(f'-- {state} {text} [{database}]\n{statement};\n\n')
			where = f'{where}, error_{bad}.sql, with nvm again: {run(psql, "nvm", cases[0][2])}'
		print(f'# {len(cases)} x {state} {message}: {where}')
	say(bad == 0, f'internal errors: {len(internal)} kinds, {own} of them also with heap tables')

	marks = collections.Counter()
	for name in glob.glob(f'{work}/smith.[0-9]'):
		with open(name, encoding='utf-8', errors='replace') as file:
			for line in file:
				if re.fullmatch(r'[.eStCc]+', line.strip()):
					marks.update(line.strip())
	total = sum(marks.values())
	say(total > 0 and not marks['C'],
		f"sqlsmith: {total} statements, {marks['.']} succeeded, {marks['e']} gave an error, "
		f"{marks['S']} were no SQL, {marks['t']} took too long, {marks['C']} lost the connection")
	print('# errors by SQLSTATE:', ' '.join(f'{s}:{n}' for s, n in states.most_common(12)))


if __name__ == '__main__':
	main()

"""What became of each test, one a line: its name, a tab, its outcome.

The outcome is "passed", "skipped", "xfailed", "xpassed", "failed ERROR" or "error ERROR"
(before or after the test), with the class of the exception; several are joined by " + ".
"""
import os
import re


def stable(name):
	"""Names hold no address of an object and no version of the server"""
	name = re.sub(r"\b0x[0-9a-f]{6,}\b", "0x", name)
	name = re.sub(r"_postgresql\+(\w+?)_\d+(_\d+)*", r"_postgresql+\1", name)
	return re.sub(r"\s+", " ", name).strip()


class Record:
	def __init__(self):
		self.outcomes = {}
		with open(os.environ["NVM_CLIENTS_RESULTS"], "w", encoding="utf-8"):
			pass

	def add(self, name, outcome):
		outcomes = self.outcomes.setdefault(stable(name), [])
		if outcome not in outcomes:
			outcomes.append(outcome)

	def write(self):
		with open(os.environ["NVM_CLIENTS_RESULTS"], "w", encoding="utf-8") as out:
			for name, outcomes in sorted(self.outcomes.items()):
				said = [o for o in outcomes if o != "passed"] or ["passed"]
				print("%s\t%s" % (name, " + ".join(said)), file=out)

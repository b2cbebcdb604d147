"""A plugin of pytest that records what became of each test (record.py)."""
import pytest

from record import Record

record = Record()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
	del item
	result = yield
	if call.excinfo is not None:
		result.get_result().nvm_error = call.excinfo.typename


def pytest_runtest_logreport(report):
	error = getattr(report, "nvm_error", "")
	if hasattr(report, "wasxfail"):
		record.add(report.nodeid, "xfailed" if report.skipped else "xpassed")
	elif report.skipped:
		record.add(report.nodeid, "skipped")
	elif report.failed:
		record.add(report.nodeid, "%s %s" % ("failed" if report.when == "call" else "error", error))
	elif report.when == "call":
		record.add(report.nodeid, "passed")


def pytest_collectreport(report):
	if report.failed:
		record.add(report.nodeid, "error collection")


def pytest_sessionfinish():
	record.write()

"""Settings of Django's tests: two databases of one server, and a record of the results."""
import os
import unittest

from django.test.runner import DiscoverRunner

from record import Record

DATABASES = {
	alias: {
		"ENGINE": "django.db.backends.postgresql",
		"NAME": name,
		"USER": "scott",
		"HOST": "127.0.0.1",
		"PORT": os.environ.get("PGPORT", ""),
	}
	for alias, name in (("default", "django"), ("other", "django_other"))
}
SECRET_KEY = "django_tests_secret_key"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
USE_TZ = False
TEST_RUNNER = __name__ + ".Runner"


class Result(unittest.TextTestResult):
	record = None

	def note(self, test, outcome, err=None):
		self.record.add(test.id(), outcome + (" " + err[0].__name__ if err else ""))

	def addSuccess(self, test):
		super().addSuccess(test)
		self.note(test, "passed")

	def addError(self, test, err):
		super().addError(test, err)
		self.note(test, "error", err)

	def addFailure(self, test, err):
		super().addFailure(test, err)
		self.note(test, "failed", err)

	def addSkip(self, test, reason):
		super().addSkip(test, reason)
		self.note(test, "skipped")

	def addExpectedFailure(self, test, err):
		super().addExpectedFailure(test, err)
		self.note(test, "xfailed")

	def addUnexpectedSuccess(self, test):
		super().addUnexpectedSuccess(test)
		self.note(test, "xpassed")

	def addSubTest(self, test, subtest, err):
		super().addSubTest(test, subtest, err)
		if err is not None:
			self.note(test, "failed", err)


class Runner(DiscoverRunner):
	def get_resultclass(self):
		return Result

	def run_suite(self, suite, **kwargs):
		Result.record = Record()
		try:
			return super().run_suite(suite, **kwargs)
		finally:
			Result.record.write()

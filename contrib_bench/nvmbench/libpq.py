"""A minimal PostgreSQL client: libpq through ctypes.

No driver has to be installed, and no process is spawned for a query, so that
the time to a first answer can be measured in fractions of a millisecond.
"""
import ctypes
import ctypes.util
import os
import subprocess

CONNECTION_OK = 0
COMMAND_OK = 1
TUPLES_OK = 2


class Error(Exception):
    """The server refused, or the connection is gone."""


def _load():
    names = []
    config = os.environ.get("PG_CONFIG", "pg_config")
    try:
        libdir = subprocess.run([config, "--libdir"], capture_output=True,
                                text=True, check=True).stdout.strip()
        names.append(os.path.join(libdir, "libpq.so.5"))
    except (OSError, subprocess.CalledProcessError):
        pass
    names += ["libpq.so.5", ctypes.util.find_library("pq") or "libpq.so"]
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise Error("libpq not found: install the PostgreSQL client library")


_lib = None


def lib():
    global _lib
    if _lib is None:
        _lib = _load()
        pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
        for name, result, args in (
                ("PQconnectdb", pointer, [text]),
                ("PQstatus", number, [pointer]),
                ("PQerrorMessage", text, [pointer]),
                ("PQfinish", None, [pointer]),
                ("PQexec", pointer, [pointer, text]),
                ("PQresultStatus", number, [pointer]),
                ("PQclear", None, [pointer]),
                ("PQntuples", number, [pointer]),
                ("PQnfields", number, [pointer]),
                ("PQgetvalue", text, [pointer, number, number]),
                ("PQgetisnull", number, [pointer, number, number]),
                ("PQsetNoticeProcessor", pointer, [pointer, pointer, pointer])):
            function = getattr(_lib, name)
            function.restype = result
            function.argtypes = args
    return _lib


_NOTICE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p)
_ignore_notice = _NOTICE(lambda arg, message: None)


class Connection:
    """One session.  Values come back as strings, NULL as None."""

    def __init__(self, conninfo):
        self._pq = lib()
        self._conn = self._pq.PQconnectdb(conninfo.encode())
        if self._pq.PQstatus(self._conn) != CONNECTION_OK:
            message = self._message()
            self.close()
            raise Error(message)
        self._pq.PQsetNoticeProcessor(
            self._conn, ctypes.cast(_ignore_notice, ctypes.c_void_p), None)

    def _message(self):
        return self._pq.PQerrorMessage(self._conn).decode(errors="replace").strip()

    def query(self, sql):
        """Run sql, return its rows as a list of tuples."""
        result = self._pq.PQexec(self._conn, sql.encode())
        try:
            if self._pq.PQresultStatus(result) not in (COMMAND_OK, TUPLES_OK):
                raise Error("%s\n  in: %s" % (self._message(), sql.strip()[:500]))
            columns = range(self._pq.PQnfields(result))
            return [tuple(None if self._pq.PQgetisnull(result, row, column)
                          else self._pq.PQgetvalue(result, row, column).decode()
                          for column in columns)
                    for row in range(self._pq.PQntuples(result))]
        finally:
            self._pq.PQclear(result)

    def value(self, sql):
        return self.query(sql)[0][0]

    def close(self):
        if self._conn:
            self._pq.PQfinish(self._conn)
            self._conn = None

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

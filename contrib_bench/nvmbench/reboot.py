"""A reboot: the server is gone, and so are its memory and what the kernel had of its files."""
import os
import signal
import threading
import time

from . import libpq
from .cputime import FamilyWatch
from .sandbox import Trouble


def forget_files(*directories):
    """Write back all files below the directories, and take them out of the page cache."""
    os.sync()
    for directory in directories:
        for root, names, files in os.walk(directory):
            for name in files:
                try:
                    fd = os.open(os.path.join(root, name), os.O_RDONLY)
                except OSError:
                    continue
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(fd)


def read_rate(directory):
    """MB a second at which one process reads the directory's files, which are not cached."""
    forget_files(directory)
    size, begin = 0, time.monotonic()
    for root, names, files in os.walk(directory):
        for name in files:
            with open(os.path.join(root, name), "rb", buffering=0) as file:
                while True:
                    read = len(file.read(1 << 20))
                    size += read
                    if read == 0:
                        break
    return size / 1e6 / max(1e-6, time.monotonic() - begin)


class _Answer(threading.Thread):
    """A session that asks a question from the start on; when it has the answer."""

    def __init__(self, server, sql, limit):
        super().__init__(daemon=True)
        self.server = server
        self.sql = sql
        self.limit = limit
        self.moment = None
        self.problem = None

    def run(self):
        pause = 0.002
        while time.monotonic() < self.limit:
            try:
                with self.server.connect() as connection:
                    connection.query(self.sql)
                self.moment = time.monotonic()
                return
            except libpq.Error as error:
                self.problem = error
                if self.server.process.poll() is not None:
                    return
                # each attempt costs the server a process
                time.sleep(pause)
                pause = min(0.1, pause * 1.2)


def ask_all(server, questions, begin, limit=1800):
    """Seconds from begin until each question had its answer, each in a session of its own."""
    askers = [_Answer(server, sql, begin + limit) for sql in questions]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    for asker in askers:
        if asker.moment is None:
            raise Trouble("server %s gave no answer to: %s\n%s\n%s" % (
                server.name, asker.sql, asker.problem, server.log_tail()))
    return [asker.moment - begin for asker in askers]


def stop_at_once(server, cached=False):
    """The server ends without writing anything; memory that the postmaster held is gone.

    cached: leave its files in the page cache.
    """
    server.stop(mode=signal.SIGQUIT)
    if not cached:
        forget_files(server.data)


def start(server, questions):
    """Start; (seconds until each answer, FamilyWatch of all that time)."""
    begin = time.monotonic()
    server.launch()
    watch = FamilyWatch(server.process.pid)
    watch.start()
    try:
        answers = ask_all(server, questions, begin)
    finally:
        watch.stop()
    return answers, watch

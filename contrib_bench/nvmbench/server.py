"""One throw-away PostgreSQL server: start, stop, kill, ask."""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time

from . import libpq
from .sandbox import Trouble, _parents

COMMON = {
    "listen_addresses": "''",
    "max_connections": 100,         # as shipped: 64 clients, and who looks on
    "fsync": "on",
    "synchronous_commit": "on",
    "autovacuum": "on",
    "logging_collector": "off",
    "log_line_prefix": "'%m [%p] '",
    "log_checkpoints": "on",
}


def _free_port():
    """Servers listen on Unix sockets alone; the number still has to differ."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _overwrite(saved, directory):
    """Make a directory what the saved one is; files that stay keep their inodes."""
    for name in set(os.listdir(directory)) - set(os.listdir(saved)):
        path = os.path.join(directory, name)
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    for entry in os.scandir(saved):
        path = os.path.join(directory, entry.name)
        if not os.path.lexists(path):
            if entry.is_dir(follow_symlinks=False):
                shutil.copytree(entry.path, path, symlinks=True)
            else:
                shutil.copy2(entry.path, path, follow_symlinks=False)
        elif entry.is_dir(follow_symlinks=False):
            _overwrite(entry.path, path)
        elif not entry.is_symlink():
            shutil.copyfile(entry.path, path)


#: kinds that are access methods of pg_nvm, and those of tables in memory with a log
OURS = ("nvm", "nvm_vlog", "nvm_cmdlog")
IN_MEMORY = ("nvm_vlog", "nvm_cmdlog")


class Server:
    """kind: heap, unlogged (heap, not durable), nvm, nvm_vlog or nvm_cmdlog (memory and a log)."""

    def __init__(self, sandbox, name, kind, where, settings=None, pool=None, unlogged=False):
        """unlogged: the tables of workloads are; those of kind unlogged are anyway."""
        self.sandbox = sandbox
        self.name = name
        self.kind = kind
        self.unlogged = unlogged or kind == "unlogged"
        self.data = os.path.join(where, name)
        self.log = os.path.join(sandbox.work, name + ".log")
        # of tables in memory the pool has the directory alone: beside the data
        self.pool = pool or os.path.join(where if kind in IN_MEMORY else sandbox.shm, name + "_pool")
        self.sockets = os.path.join(sandbox.work, "s")
        self.port = _free_port()
        self.process = None
        self.settings = dict(COMMON)
        self.settings.update(settings or {})
        if kind == "unlogged":
            self.settings["synchronous_commit"] = "off"
        if kind in OURS:
            self.settings["shared_preload_libraries"] = "pg_nvm"
            self.settings["nvm.pool_directory"] = "'%s'" % self.pool
            self.settings.setdefault("nvm.default_index_method", "nvm_btree")

    # -- making --------------------------------------------------------------

    def create(self):
        os.makedirs(self.sockets, mode=0o700, exist_ok=True)
        done = subprocess.run(
            [self.sandbox.program("initdb"), "-D", self.data, "-U", "postgres",
             "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
            capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble("initdb failed:\n" + done.stderr)
        self.write_settings()
        self.start()
        if self.kind in OURS:
            self.query("CREATE EXTENSION pg_nvm")
            self.query("ALTER SYSTEM SET default_table_access_method = '%s'" % self.kind)
            self.query("SELECT pg_reload_conf()")
        return self

    def write_settings(self, **changes):
        self.settings.update(changes)
        with open(os.path.join(self.data, "postgresql.conf"), "a") as conf:
            for key, value in self.settings.items():
                conf.write("%s = %s\n" % (key, value))

    def sql(self, text):
        """SQL of a workload, made to fit the kind of table."""
        if self.unlogged:
            text = re.sub(r"\bCREATE TABLE\b", "CREATE UNLOGGED TABLE", text)
        return text

    # -- running -------------------------------------------------------------

    @property
    def conninfo(self):
        return "host=%s port=%d user=postgres dbname=postgres" % (self.sockets, self.port)

    @property
    def environment(self):
        return dict(os.environ, PGHOST=self.sockets, PGPORT=str(self.port),
                    PGUSER="postgres", PGDATABASE="postgres")

    def launch(self):
        """Start, and do not wait."""
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                [self.sandbox.program("postgres"), "-D", self.data,
                 "-k", self.sockets, "-p", str(self.port)],
                env=dict(os.environ, **self.sandbox.server_environment),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)

    def start(self, timeout=600, first_query="SELECT 1"):
        """Start; return the seconds until first_query had its answer."""
        begin = time.monotonic()
        self.launch()
        while True:
            try:
                with self.connect() as connection:
                    connection.query(first_query)
                break
            except libpq.Error as error:
                if self.process.poll() is not None:
                    raise Trouble("server %s did not start:\n%s"
                                  % (self.name, self.log_tail()))
                if time.monotonic() - begin > timeout:
                    raise Trouble("server %s gave no answer within %d s: %s\n%s"
                                  % (self.name, timeout, error, self.log_tail()))
                # each attempt costs the server a process: ask within 1 %
                time.sleep(0.001 + 0.01 * (time.monotonic() - begin))
        took = time.monotonic() - begin
        return took

    def log_tail(self, lines=25):
        with open(self.log) as log:
            return "".join(log.readlines()[-lines:])

    def log_size(self):
        return os.path.getsize(self.log)

    def log_since(self, position):
        with open(self.log) as log:
            log.seek(position)
            return log.read()

    def stop(self, mode=signal.SIGINT, timeout=300):
        """Clean (fast) shutdown."""
        if self.process is None:
            return
        self.process.send_signal(mode)
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise Trouble("server %s did not stop:\n%s" % (self.name, self.log_tail()))
        self.process = None

    def kill(self):
        """SIGKILL every process of the server, as a power cut would end them.

        The postmaster is stopped first, so that it does nothing about the
        death of its children and starts no new ones.
        """
        postmaster = self.process.pid
        os.kill(postmaster, signal.SIGSTOP)
        family = [pid for pid, parent in _parents().items() if parent == postmaster]
        self.sandbox.note_shared_segments(family + [postmaster], self.data)
        for pid in family + [postmaster]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.process = None
        while any(pid in _parents() for pid in family):
            time.sleep(0.001)

    # -- asking --------------------------------------------------------------

    def connect(self):
        return libpq.Connection(self.conninfo)

    def query(self, sql):
        with self.connect() as connection:
            return connection.query(sql)

    def value(self, sql):
        return self.query(sql)[0][0]

    @contextlib.contextmanager
    def running(self):
        """Create; whatever happens, leave no process behind."""
        try:
            yield self.create()
        finally:
            if self.process is not None:
                self.process.send_signal(signal.SIGQUIT)
                try:
                    self.process.wait(20)
                except subprocess.TimeoutExpired:
                    self.kill()
                self.process = None

    # -- copies of a crashed server --------------------------------------------

    def save(self, where):
        """Copy data directory and pool of a stopped server.

        Then wait for the disk: PostgreSQL fsyncs all its files when it starts
        after a crash, and should not have to write what copying left.
        """
        shutil.rmtree(where, ignore_errors=True)
        for directory, name in ((self.data, "data"), (self.pool, "pool")):
            if os.path.isdir(directory):
                shutil.copytree(directory, os.path.join(where, name), symlinks=True)
        os.sync()

    def restore(self, where):
        """Put the copy back.

        Files are overwritten in place: pool and data directory know the inode
        of a file of the other, and refuse to be copies.
        """
        for directory, name in ((self.data, "data"), (self.pool, "pool")):
            saved = os.path.join(where, name)
            if os.path.isdir(saved):
                _overwrite(saved, directory)
        os.sync()

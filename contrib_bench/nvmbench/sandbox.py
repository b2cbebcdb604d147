"""A place to run throw-away servers in, and its janitor.

Servers never run as root and never touch the installed PostgreSQL: the
sandbox holds a relocated private copy of it, into which the extension is
installed.  The process that makes the sandbox stays outside as janitor; the
work is done in a child that, if we are root, has become user postgres.
Whatever happens to the child, the janitor ends every process that descends
from it and removes every file it made, on disk and in shared memory.
"""
import ctypes
import glob
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PR_SET_CHILD_SUBREAPER = 36
SHM = "/dev/shm"
SERVER_USER = "postgres"


class Trouble(Exception):
    """Something a user can act upon; printed without a traceback."""


def filesystem_of(path):
    """Type of the filesystem that path is on, such as ext4 or tmpfs."""
    best, kind = "", "unknown"
    path = os.path.realpath(path)
    with open("/proc/mounts") as mounts:
        for line in mounts:
            fields = line.split()
            where = fields[1].replace("\\040", " ")
            inside = path == where or path.startswith(where.rstrip("/") + "/")
            if inside and len(where) >= len(best):
                best, kind = where, fields[2]
    return kind


def disk_directory():
    """A directory for temporary files that is not in memory."""
    places = [os.environ.get("TMPDIR"), "/var/tmp", "/tmp"]
    for place in places:
        if (place and os.path.isdir(place) and os.access(place, os.W_OK) and
                filesystem_of(place) not in ("tmpfs", "ramfs")):
            return place
    raise Trouble("no temporary directory on a disk: /var/tmp and /tmp are in "
                  "memory; set TMPDIR to a directory on a disk")


def find_pg_config():
    wanted = os.environ.get("PG_CONFIG")
    if wanted:
        found = shutil.which(wanted)
        if not found:
            raise Trouble("PG_CONFIG=%s is not a program" % wanted)
        return found
    places = sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_config"), reverse=True)
    default = "/usr/lib/postgresql/15/bin/pg_config"
    found = default if default in places else shutil.which("pg_config")
    found = found or (places[0] if places else None)
    if not found:
        raise Trouble("pg_config not found: install postgresql-15 and "
                      "postgresql-server-dev-15, or set PG_CONFIG")
    return found


def pg_config(program, what):
    return subprocess.run([program, "--" + what], capture_output=True,
                          text=True, check=True).stdout.strip()


def _parents():
    """Map of process id to parent process id, of all that live."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open("/proc/%s/stat" % entry) as stat:
                    fields = stat.read().rsplit(")", 1)[1].split()
            except OSError:
                continue
            if fields[0] not in "ZX":
                parents[int(entry)] = int(fields[1])
    return parents


def descendants(pid):
    parents = _parents()
    found, frontier = [], [pid]
    while frontier:
        parent = frontier.pop()
        children = [p for p, pp in parents.items() if pp == parent]
        found += children
        frontier += children
    return found


class Sandbox:
    """work: a directory on disk; shm: one in shared memory."""

    def __init__(self, label, source, keep=False):
        self.source = os.path.realpath(source)
        self.keep = keep
        self.account = None
        if os.geteuid() == 0:
            try:
                self.account = pwd.getpwnam(SERVER_USER)
            except KeyError:
                raise Trouble("running as root needs a user named %s to run "
                              "the servers: install postgresql" % SERVER_USER)
        self.work = tempfile.mkdtemp(prefix="pg_nvm_%s." % label, dir=disk_directory())
        self.shm = tempfile.mkdtemp(prefix="pg_nvm_%s." % label, dir=SHM)
        self.out = os.path.join(self.work, "out")
        os.mkdir(self.out)
        self.pg_config = None
        self.server_environment = {}        # more of it, of all servers
        self.sync_delay = 0                 # microseconds that a sync lasts longer

    # -- the janitor's side ------------------------------------------------

    def run(self, function, results):
        """Call function(self) in a child that may run servers.

        What it leaves in self.out is copied to the directory results.
        Returns an exit status.
        """
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        status = 1
        try:
            self._copy_source()
            sys.stdout.flush()
            child = os.fork()
            if child == 0:
                self._child(function)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda n, frame: self._pass_on(child))
            while True:
                pid, wait_status = os.wait()
                if pid == child:
                    status = os.waitstatus_to_exitcode(wait_status)
                    break
            self._save(results)
        finally:
            self._clean()
        return status if status >= 0 else 1

    @staticmethod
    def _pass_on(child):
        try:
            os.kill(child, signal.SIGTERM)
        except ProcessLookupError:
            pass

    def _copy_source(self):
        """The tree may lie where user postgres cannot read it."""
        def skip(directory, names):
            built = {n for n in names if n.endswith((".o", ".so", ".bc", ".pyc"))}
            return built | ({".git", "results", "out", "__pycache__", "tmp_check"} & set(names))
        shutil.copytree(self.source, os.path.join(self.work, "src"),
                        ignore=skip, symlinks=True)
        if self.account:
            for top in (self.work, self.shm):
                for root, directories, files in os.walk(top):
                    for name in [root] + [os.path.join(root, f) for f in files]:
                        os.lchown(name, self.account.pw_uid, self.account.pw_gid)

    def _child(self, function):
        status = 1
        try:
            signal.signal(signal.SIGTERM, lambda n, frame: sys.exit(130))
            signal.signal(signal.SIGHUP, lambda n, frame: sys.exit(130))
            if self.account:
                os.initgroups(self.account.pw_name, self.account.pw_gid)
                os.setgid(self.account.pw_gid)
                os.setuid(self.account.pw_uid)
                os.environ["HOME"] = self.work
                os.environ["USER"] = os.environ["LOGNAME"] = SERVER_USER
            os.chdir(self.work)
            os.umask(0o077)
            for name in list(os.environ):
                if (name.startswith("PG") and name != "PG_CONFIG") or name.startswith("MAKE"):
                    del os.environ[name]
            os.environ["LC_ALL"] = "C"
            status = function(self) or 0
        except Trouble as trouble:
            print("error: %s" % trouble, file=sys.stderr)
        except (SystemExit, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            status = 130
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _save(self, results):
        if not results or not os.listdir(self.out):
            return
        os.makedirs(results, exist_ok=True)
        shutil.copytree(self.out, results, dirs_exist_ok=True,
                        copy_function=shutil.copyfile)
        owner = os.stat(os.path.dirname(os.path.realpath(results)))
        if os.geteuid() == 0:           # through sudo: as the tree's owner has it
            for root, directories, files in os.walk(results):
                for name in [root] + [os.path.join(root, f) for f in files]:
                    os.chown(name, owner.st_uid, owner.st_gid)
                    os.chmod(name, 0o755 if name == root else 0o644)

    def _clean(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        deadline = time.monotonic() + 10
        for number, patience in ((signal.SIGQUIT, 5), (signal.SIGKILL, 10)):
            until = min(time.monotonic() + patience, deadline + patience)
            signalled = set()
            while time.monotonic() < until:
                alive = descendants(os.getpid())
                if not alive:
                    break
                for pid in alive:
                    if pid not in signalled:
                        signalled.add(pid)
                        try:
                            os.kill(pid, number)
                        except ProcessLookupError:
                            pass
                self._reap()
                time.sleep(0.02)
        self._reap()
        self._remove_shared_segments()
        shutil.rmtree(self.shm, ignore_errors=True)
        if self.keep:
            print("kept: %s" % self.work)
        else:
            shutil.rmtree(self.work, ignore_errors=True)

    def _remove_shared_segments(self):
        """What killed servers left: files on /dev/shm, System V segments."""
        try:
            with open(os.path.join(self.work, "shared_segments")) as record:
                names = set(record.read().splitlines())
            with open("/proc/sysvipc/shm") as segments:
                unused = {(f[0], f[1]) for f in map(str.split, segments) if f[6] == "0"}
        except OSError:
            return
        libc = ctypes.CDLL(None)
        for name in names:
            if name.startswith(SHM + "/PostgreSQL."):
                if os.path.exists(name):
                    os.unlink(name)
            elif tuple(name.split()) in unused:
                libc.shmctl(int(name.split()[1]), 0, None)      # IPC_RMID

    @staticmethod
    def _reap():
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass

    # -- the child's side --------------------------------------------------

    def note_shared_segments(self, pids, data):
        """Remember the shared memory of a server that is about to be killed."""
        names = set()
        for pid in pids:
            try:
                with open("/proc/%d/maps" % pid) as maps:
                    names |= {line.split()[-1] for line in maps
                              if SHM + "/PostgreSQL." in line}
            except OSError:
                continue
        try:
            with open(os.path.join(data, "postmaster.pid")) as pidfile:
                names.add(" ".join(pidfile.read().splitlines()[6].split()))
        except (OSError, IndexError):
            pass
        with open(os.path.join(self.work, "shared_segments"), "a") as record:
            record.write("".join(name + "\n" for name in sorted(names)))

    def make_prefix(self):
        """Relocated copy of PostgreSQL; self.pg_config becomes its pg_config."""
        done = subprocess.run(
            [os.path.join(self.work, "src/scripts/private_prefix.sh"),
             os.path.join(self.work, "prefix"), find_pg_config()],
            capture_output=True, text=True)
        if done.returncode != 0:
            raise Trouble("copying PostgreSQL failed:\n" + done.stderr)
        self.pg_config = done.stdout.strip()
        return self.pg_config

    def build_extension(self):
        """make and make install of the copied tree into the private prefix."""
        log = os.path.join(self.work, "build.log")
        command = ["make", "-C", os.path.join(self.work, "src"),
                   "PG_CONFIG=" + self.pg_config, "with_llvm=no"]
        jobs = "-j%d" % len(os.sched_getaffinity(0))
        for target in ([jobs, "all"], ["install"]):
            with open(log, "a") as output:
                done = subprocess.run(command + target, stdout=output,
                                      stderr=subprocess.STDOUT)
            if done.returncode != 0:
                with open(log) as output:
                    tail = output.read().splitlines()[-30:]
                raise Trouble("building the extension failed:\n" + "\n".join(tail))

    def empty(self, directory):
        """Make room before the next servers: a data directory, pools."""
        shutil.rmtree(directory, ignore_errors=True)
        for name in os.listdir(self.shm):
            shutil.rmtree(os.path.join(self.shm, name), ignore_errors=True)

    def program(self, name):
        return os.path.join(os.path.dirname(self.pg_config), name)

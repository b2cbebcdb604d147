"""A disk of ordinary latency: each sync of the servers' files lasts longer.

The disk of a virtual machine may sync in less than 0.1 ms, because something behind it has a
cache that it believes in.  slow_sync.c is preloaded into the servers, and sleeps behind
each fsync(), fdatasync() and synchronous msync().
"""
import os
import subprocess

from .sandbox import Trouble


def preload(sandbox, microseconds):
    """All servers of the sandbox that start from now on."""
    library = os.path.join(sandbox.work, "slow_sync.so")
    source = os.path.join(sandbox.work, "src", "contrib_bench", "slow_sync.c")
    done = subprocess.run(
        [os.environ.get("CC", "cc"), "-std=gnu99", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra",
         "-Werror", "-fPIC", "-shared", "-o", library, source, "-ldl"],
        capture_output=True, text=True)
    if done.returncode != 0:
        raise Trouble("compiling slow_sync.c failed:\n" + done.stderr)
    sandbox.sync_delay = microseconds
    sandbox.server_environment = {"LD_PRELOAD": library, "NVM_SLOW_SYNC_US": str(microseconds)}

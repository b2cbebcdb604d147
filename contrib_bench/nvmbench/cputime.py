"""Who spends processor time while a load runs."""
import os
import re
import threading
import time

from .sandbox import Trouble

SAMPLE = 0.1                # seconds between two looks


class CpuWatch(threading.Thread):
    """Processor seconds of a server's client backends, all of it, the driver and the machine."""

    def __init__(self, server, driver, clients_title):
        """clients_title: what the titles of the clients' backends have in them."""
        super().__init__(daemon=True)
        self.clients_title = clients_title
        self.postmaster = server.process.pid
        self.driver = driver
        self.ended = threading.Event()
        self.clients, self.spent, self.waits = set(), {}, {}
        self.samples = []       # (time, clients, server, driver, machine busy, waits of clients)
        self.tick = os.sysconf("SC_CLK_TCK")

    @staticmethod
    def _read(path):
        try:
            with open(path) as text:
                return text.read()
        except OSError:
            return ""

    def _sample(self):
        children = self._read("/proc/%d/task/%d/children" % (self.postmaster, self.postmaster))
        for pid in children.split():
            if pid not in self.clients and self.clients_title in self._read("/proc/%s/cmdline" % pid):
                self.clients.add(pid)
            fields = self._read("/proc/%s/schedstat" % pid).split()
            if fields:
                self.spent[pid] = int(fields[0]) / 1e9
            if pid in self.clients:
                found = re.search(r"^voluntary_ctxt_switches:\s+(\d+)",
                                  self._read("/proc/%s/status" % pid), re.M)
                if found:
                    self.waits[pid] = int(found.group(1))
        driver = self._read("/proc/%d/stat" % self.driver).rpartition(")")[2].split()
        driver = (int(driver[11]) + int(driver[12])) / self.tick if driver else \
            self.samples[-1][3] if self.samples else 0
        busy = self._read("/proc/stat").split("\n", 1)[0].split()[1:]
        busy = sum(int(busy[i]) for i in (0, 1, 2, 5, 6, 7)) / self.tick
        self.samples.append((time.time(), sum(self.spent[pid] for pid in self.clients),
                             sum(self.spent.values()), driver, busy, sum(self.waits.values())))

    def run(self):
        while not self.ended.wait(SAMPLE):
            self._sample()

    def between(self, begin, end):
        """Spent from one time to another: seconds of clients, server, driver, machine; waits."""
        inside = [s for s in self.samples if begin <= s[0] <= end]
        if len(inside) < 2:
            raise Trouble("no processor time was seen from %s to %s" % (begin, end))
        first, last = inside[0], inside[-1]
        scale = (end - begin) / (last[0] - first[0])
        return [(last[i] - first[i]) * scale for i in range(1, 6)]

    def stop(self):
        self.ended.set()
        self.join()

    def clients_seconds(self):
        """All that the clients' backends have spent."""
        return self.samples[-1][1] if self.samples else 0.0


def finish_watched(server, run):
    """What run.finish() returns, and the processor seconds of the clients' backends.

    run: a pgbench that has just been started.  What a backend spends after the
    last look at it is missing.
    """
    watch = CpuWatch(server, run.process.pid, " [local] ")
    watch.start()
    try:
        result = run.finish()
    finally:
        watch.stop()
    return result, watch.clients_seconds()


class FamilyWatch(threading.Thread):
    """Processor seconds of a postmaster and its children, over time.

    What a process has spent since the last look at it, before it ended, is missing.
    """

    def __init__(self, postmaster, pause=0.02):
        super().__init__(daemon=True)
        self.postmaster = postmaster
        self.pause = pause
        self.ended = threading.Event()
        self.spent = {}
        self.samples = []       # (time, seconds)

    def _sample(self):
        children = CpuWatch._read("/proc/%d/task/%d/children" % (self.postmaster, self.postmaster))
        for pid in [str(self.postmaster)] + children.split():
            fields = CpuWatch._read("/proc/%s/schedstat" % pid).split()
            if fields:
                self.spent[pid] = int(fields[0]) / 1e9
        self.samples.append((time.time(), sum(self.spent.values())))

    def run(self):
        while not self.ended.wait(self.pause):
            self._sample()

    def stop(self):
        self.ended.set()
        self.join()
        self._sample()

    def _at(self, moment):
        before = [sample for sample in self.samples if sample[0] <= moment]
        after = [sample for sample in self.samples if sample[0] > moment]
        if not before or not after:
            return (before or after)[-1 if before else 0][1]
        (t1, s1), (t2, s2) = before[-1], after[0]
        return s1 + (s2 - s1) * (moment - t1) / (t2 - t1)

    def between(self, begin, end):
        return self._at(end) - self._at(begin)

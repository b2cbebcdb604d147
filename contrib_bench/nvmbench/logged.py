"""How many bytes a server has logged: in the WAL, and in the log of tables in memory."""
import collections

from .server import IN_MEMORY

#: wal: bytes of records; log: the same of the other log; log_written: what was written for these,
#: with headers and padding; log_syncs: of its files.  A server without such a log has 0 for these.
Logged = collections.namedtuple("Logged", "wal log log_written log_syncs")


def position(server):
    """How far both logs have come."""
    wal = int(server.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')"))
    if server.kind not in IN_MEMORY:
        return Logged(wal, 0, 0, 0)
    # all are NULL before the first such table
    found = server.query("SELECT coalesce(inserted, 0), coalesce(bytes, 0), coalesce(syncs, 0)"
                         " FROM nvm.log")[0]
    return Logged(wal, *map(int, found))


def since(server, before, transactions=1):
    """What was logged since then, for each of so many transactions."""
    after = position(server)
    return Logged(*((b - a) / transactions for a, b in zip(before, after)))

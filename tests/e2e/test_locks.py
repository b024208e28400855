# SPDX-License-Identifier: MIT
"""Locks exclude across nodes: flock(2), fcntl(2), locks of open file descriptions; and each
holder reads what the previous one wrote."""
import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import signal
import sqlite3
import struct
import subprocess
import sys
import threading

import pytest

from cluster import DEADLINE, wait_for
from test_leases import figures

F_OFD_SETLK, F_OFD_SETLKW = 37, 38


@pytest.fixture
def pair(cluster):
    with open(cluster.file("export/f"), "wb") as f:
        f.write(bytes(8192))
    return [cluster.node(peers=False), cluster.node(peers=False)]


@contextlib.contextmanager
def opened(*nodes, flags=os.O_RDWR):
    fds = [os.open(n.path + "/f", flags) for n in nodes]
    try:
        yield fds
    finally:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def busy(call, *args):
    with pytest.raises(OSError) as e:
        call(*args)
    assert e.value.errno in (errno.EAGAIN, errno.EACCES), e.value


def ofd(fd, kind, wait=False):
    fcntl.fcntl(fd, F_OFD_SETLKW if wait else F_OFD_SETLK,
                struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0))


class Waiter:
    """A process that waits for a lock, says 'held' when it has it, and holds it until told. SIGUSR1 ends its wait."""
    CODE = """
import errno, fcntl, os, signal, sys
def interrupted(*_):
    raise OSError(errno.EINTR, "a signal")
signal.signal(signal.SIGUSR1, interrupted)
fd = os.open(sys.argv[1], os.O_RDWR)
print("waits", flush=True)
try:
    getattr(fcntl, sys.argv[2])(fd, fcntl.LOCK_EX)
    print("held", flush=True)
except OSError as e:
    print("error", e.errno, flush=True)
sys.stdin.readline()
"""

    def __init__(self, node, how):
        self.p = subprocess.Popen([sys.executable, "-c", self.CODE, node.path + "/f", how],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.p.stdout.readline() == "waits\n"

    def result(self):
        return self.p.stdout.readline().strip()

    def end(self):
        self.p.stdin.close()
        self.p.wait(DEADLINE)


def waiters(cluster):
    """How many waiters the daemon has queued, by the counters that it writes on request."""
    os.kill(cluster.daemon.process.pid, signal.SIGUSR1)
    try:
        with open(cluster.file("stats")) as f:
            return int(next(l for l in f if l.startswith("lock_waiters ")).split()[1])
    except (OSError, StopIteration):
        return -1


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_one_holder_among_two_nodes(pair, how):
    lock = getattr(fcntl, how)
    with opened(*pair) as (a, b):
        lock(a, fcntl.LOCK_EX | fcntl.LOCK_NB)
        busy(lock, b, fcntl.LOCK_EX | fcntl.LOCK_NB)
        busy(lock, b, fcntl.LOCK_SH | fcntl.LOCK_NB)
        lock(a, fcntl.LOCK_UN)
        lock(b, fcntl.LOCK_SH | fcntl.LOCK_NB)
        lock(a, fcntl.LOCK_SH | fcntl.LOCK_NB)
        busy(lock, a, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(b)
        wait_for(lambda: not held_by_other(lock, a), "the lock ends with the close")


def held_by_other(lock, fd):
    try:
        lock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except OSError:
        return True


def test_ranges_and_who_is_in_the_way(pair):
    with opened(*pair) as (a, b):
        fcntl.lockf(a, fcntl.LOCK_EX, 100, 50)
        fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 50, 0)
        busy(fcntl.lockf, b, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 149)
        fcntl.lockf(b, fcntl.LOCK_EX | fcntl.LOCK_NB, 0, 150)
        asked = struct.pack("hhqqi4x", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, start, length, _ = struct.unpack("hhqqi4x", fcntl.fcntl(b, fcntl.F_GETLK, asked))
        assert (kind, start, length) == (fcntl.F_WRLCK, 50, 100)
        # Closing any descriptor of the file releases the process's range locks.
        os.close(os.open(pair[0].path + "/f", os.O_RDONLY))
        wait_for(lambda: not held_by_other(fcntl.lockf, b), "the close ends a's locks")


def opened_within_a_lease(node):
    """Opens the file for reading without a request to storage, which so does not know of it; None: it took one."""
    before = figures(node)["opens"]
    fd = os.open(node.path + "/f", os.O_RDONLY)
    if figures(node)["opens"] > before:
        return fd
    os.close(fd)
    return None


@pytest.mark.parametrize("end", [lambda fd: fcntl.lockf(fd, fcntl.LOCK_UN), os.close], ids=["unlock", "close"])
def test_an_open_file_that_storage_does_not_know_releases_locks(pair, end):
    """A process' range locks belong to the process, whichever descriptor of the file it uses."""
    with opened(pair[0], flags=os.O_RDONLY) as (locked,):
        second = wait_for(lambda: opened_within_a_lease(pair[0]), "an open without a request")
        fcntl.lockf(locked, fcntl.LOCK_SH)
        end(second)
        with opened(pair[1]) as (there,):
            wait_for(lambda: not held_by_other(fcntl.lockf, there), "the lock is released")


def test_locks_of_an_open_file_description(pair):
    with opened(*pair) as (a, b):
        ofd(a, fcntl.F_WRLCK)
        os.close(os.open(pair[0].path + "/f", os.O_RDONLY))
        busy(ofd, b, fcntl.F_WRLCK)
        copy = os.dup(a)
        os.close(a)
        busy(ofd, b, fcntl.F_WRLCK)
        os.close(copy)
        wait_for(lambda: not isinstance(attempt(ofd, b, fcntl.F_WRLCK), OSError), "a's close")


def attempt(call, *args):
    try:
        return call(*args)
    except OSError as e:
        return e


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_a_wait_ends_with_the_holder(cluster, how):
    cluster.start_daemon("--stats-file", cluster.file("stats"))
    with open(cluster.file("export/f"), "wb") as f:
        f.write(bytes(100))
    a, b = cluster.node(peers=False), cluster.node(peers=False)
    with opened(a) as (fd,):
        getattr(fcntl, how)(fd, fcntl.LOCK_EX)
        w = Waiter(b, how)
        try:
            wait_for(lambda: waiters(cluster) == 1, "it is queued")
            getattr(fcntl, how)(fd, fcntl.LOCK_UN)
            assert w.result() == "held"
            busy(getattr(fcntl, how), fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            w.end()


def test_a_signal_ends_a_wait_and_the_node_that_waits_may_die(cluster):
    cluster.start_daemon("--stats-file", cluster.file("stats"))
    with open(cluster.file("export/f"), "wb") as f:
        f.write(bytes(100))
    a, b = cluster.node(peers=False), cluster.node(peers=False)
    with opened(a) as (fd,):
        fcntl.flock(fd, fcntl.LOCK_EX)
        w = Waiter(b, "flock")
        wait_for(lambda: waiters(cluster) == 1, "it is queued")
        w.p.send_signal(signal.SIGUSR1)
        assert w.result() == f"error {errno.EINTR}"
        wait_for(lambda: waiters(cluster) == 0, "it is not queued any more, though its file is open")
        w.end()
        w = Waiter(b, "flock")
        wait_for(lambda: waiters(cluster) == 1, "it is queued")
        w.p.kill()
        w.end()
        wait_for(lambda: waiters(cluster) == 0, "it is not queued any more")
        w = Waiter(b, "flock")
        wait_for(lambda: waiters(cluster) == 1, "it is queued")
        fcntl.flock(fd, fcntl.LOCK_UN)
        assert w.result() == "held"
        w.p.kill()
        w.end()
        wait_for(lambda: not held_by_other(fcntl.flock, fd), "a killed process holds nothing")


def test_a_node_ends_while_it_waits_for_a_lock(pair):
    with opened(pair[0]) as (fd,):
        fcntl.flock(fd, fcntl.LOCK_EX)
        w = Waiter(pair[1], "flock")
        freed = threading.Thread(target=lambda: (pair[1].process.popen.terminate(), fcntl.flock(fd, fcntl.LOCK_UN)))
        freed.start()
        freed.join()
        pair[1].stop()
        w.p.kill()
        w.end()


def test_two_who_want_to_write_what_both_read(pair):
    """flock(2) releases the lock to convert it, so neither waits for the other forever."""
    with opened(*pair) as (a, b):
        fcntl.flock(a, fcntl.LOCK_SH)
        fcntl.flock(b, fcntl.LOCK_SH)
        done = []
        threads = [threading.Thread(target=lambda fd=fd: (fcntl.flock(fd, fcntl.LOCK_EX), done.append(fd),
                                                          fcntl.flock(fd, fcntl.LOCK_UN)))
                   for fd in (a, b)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(DEADLINE)
        assert sorted(done) == sorted([a, b])


def test_a_circle_of_processes_is_refused(cluster, pair):
    """Each holds one byte and waits for the other's: the second wait says EDEADLK."""
    code = """
import errno, fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
mine, theirs = int(sys.argv[2]), int(sys.argv[3])
fcntl.lockf(fd, fcntl.LOCK_EX, 1, mine)
print("ready", flush=True)
sys.stdin.readline()
try:
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, theirs)
    print("held", flush=True)
except OSError as e:
    print("circle" if e.errno == errno.EDEADLK else e, flush=True)
"""
    ps = [subprocess.Popen([sys.executable, "-c", code, n.path + "/f", str(i), str(1 - i)],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
          for i, n in enumerate(pair)]
    for p in ps:
        assert p.stdout.readline() == "ready\n"
    for p in ps:
        p.stdin.write("\n")
        p.stdin.flush()
    said = sorted(p.communicate(timeout=DEADLINE)[0].strip() for p in ps)
    assert said == ["circle", "held"]


def test_what_was_written_under_the_lock_is_read_under_it(pair):
    """Two nodes take turns at two counters, one in a mapped page and one that they write."""
    rounds = 60

    def run(node, errors):
        fd = os.open(node.path + "/f", os.O_RDWR)
        memory = mmap.mmap(fd, 8192)
        for _ in range(rounds):
            fcntl.flock(fd, fcntl.LOCK_EX)
            mapped = struct.unpack_from("Q", memory, 0)[0]
            written = struct.unpack("Q", os.pread(fd, 8, 4096))[0]
            if mapped != written:
                errors.append((mapped, written))
            struct.pack_into("Q", memory, 0, mapped + 1)
            os.pwrite(fd, struct.pack("Q", written + 1), 4096)
            fcntl.flock(fd, fcntl.LOCK_UN)
        memory.close()
        os.close(fd)

    errors = []
    threads = [threading.Thread(target=run, args=(n, errors)) for n in pair]
    for t in threads:
        t.start()
    for t in threads:
        t.join(5 * DEADLINE)
    with open(pair[0].path + "/f", "rb") as f:
        counts = struct.unpack_from("Q", f.read(), 0)[0], 0
    assert not errors
    assert counts[0] == 2 * rounds


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_a_write_lock_that_becomes_a_read_lock_shows_what_was_stored(pair, how):
    lock = getattr(fcntl, how)
    with opened(*pair) as (a, b):
        with mmap.mmap(a, 4096) as memory:
            for turn in b"first", b"again":
                lock(a, fcntl.LOCK_EX)
                memory[:5] = turn
                lock(a, fcntl.LOCK_SH)
                lock(b, fcntl.LOCK_SH)
                assert os.pread(b, 5, 0) == turn
                lock(b, fcntl.LOCK_UN)


def test_a_restart_of_the_daemon_keeps_locks(pair, cluster):
    with opened(*pair) as (a, b):
        fcntl.flock(a, fcntl.LOCK_EX)
        fcntl.lockf(a, fcntl.LOCK_EX, 10, 0)
        cluster.daemon.process.kill()
        cluster.daemon.start()
        busy(fcntl.flock, b, fcntl.LOCK_EX | fcntl.LOCK_NB)
        busy(fcntl.lockf, b, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 0)
        os.pwrite(a, b"still mine", 0)
        fcntl.flock(a, fcntl.LOCK_UN)
        fcntl.flock(b, fcntl.LOCK_EX)


def test_an_open_file_that_lost_its_lock_changes_nothing(cluster):
    with open(cluster.file("export/f"), "wb") as f:
        f.write(b"0123456789")
    cluster.start_daemon("--state", cluster.file("state"))
    node = cluster.node(peers=False)
    with opened(node, node) as (lost, fd):
        fcntl.flock(lost, fcntl.LOCK_EX)
        cluster.daemon.process.kill()
        shutil.rmtree(cluster.file("state/locks"))
        cluster.daemon.start()
        for call in (os.pwrite, lost, b"mine", 0), (os.ftruncate, lost, 5), (os.ftruncate, lost, 99):
            assert attempt(*call).errno == errno.EBADF
        with open(cluster.file("export/f"), "rb") as f:
            assert f.read() == b"0123456789"
        os.ftruncate(fd, 5)
        os.truncate(node.path + "/f", 4)
        with open(cluster.file("export/f"), "rb") as f:
            assert f.read() == b"0123"


@pytest.mark.parametrize("local", ["flock", "posix", "all"])
def test_local_locks_are_this_nodes_own(cluster, local):
    with open(cluster.file("export/f"), "wb") as f:
        f.write(bytes(100))
    a = cluster.node(f"local_lock={local}", peers=False)
    b = cluster.node(f"local_lock={local}", peers=False)
    with opened(a, b) as (x, y):
        for how in ("flock", "lockf"):
            lock = getattr(fcntl, how)
            lock(x, fcntl.LOCK_EX)
            mine = local == "all" or local == {"flock": "flock", "lockf": "posix"}[how]
            if mine:
                lock(y, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                busy(lock, y, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_sqlite_with_a_writer_on_each_node(pair):
    paths = [n.path + "/db" for n in pair]
    with contextlib.closing(sqlite3.connect(paths[0])) as db:
        db.execute("create table t (node int, n int)")
        db.commit()
    each, errors = 25, []

    def run(i):
        try:
            db = sqlite3.connect(paths[i], timeout=600)
            for n in range(each):
                with db:
                    db.execute("begin immediate")
                    db.execute("insert into t values (?, ?)", (i, n))
            db.close()
        except sqlite3.Error as e:
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(2)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(1200)
    assert not errors
    with contextlib.closing(sqlite3.connect(paths[1])) as db:
        assert db.execute("pragma integrity_check").fetchone() == ("ok",)
        assert db.execute("select node, count(*), sum(n) from t group by node order by node").fetchall() == \
            [(i, each, each * (each - 1) // 2) for i in range(2)]

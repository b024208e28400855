# SPDX-License-Identifier: MIT
"""Storage's machine crashes and loses what it had acknowledged but not brought to its disk.

The tests simulate the crash: they kill the daemon, give the file the bytes of its last fsync, and
remove the record of verifiers, so that the next daemon uses new ones.
"""
import errno
import os
import random
import subprocess
import sys

import pytest

from cluster import wait_for
from test_leases import daemon_stats, with_stats

PAGE = 4096

# One open file in its own process: if this process had it open, starting another would close a copy,
# and the close would commit to a daemon that is away. It makes one call per line and prints its errno.
HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR, 0o600)
print(0, flush=True)
for line in sys.stdin:
    word, *rest = line.split()
    try:
        if word == "write":
            os.pwrite(fd, bytes.fromhex(rest[1]), int(rest[0]))
        elif word == "fsync":
            os.fsync(fd)
        elif word == "cut":
            os.ftruncate(fd, int(rest[0]))
        elif word == "lock":
            fcntl.lockf(fd, fcntl.LOCK_EX)
        elif word == "unlock":
            fcntl.lockf(fd, fcntl.LOCK_UN)
        elif word == "close":
            os.close(fd)
        print(0, flush=True)
    except OSError as e:
        print(e.errno, flush=True)
"""


class Holder:
    def __init__(self, path):
        self.name = os.path.basename(path)
        self.child = subprocess.Popen([sys.executable, "-c", HOLDER, path], text=True,
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        # Wait for the open: two at once would both take the file for new.
        assert int(self.child.stdout.readline()) == 0

    def ask(self, *words):
        """Makes one call; returns 0 or its errno."""
        self.child.stdin.write(" ".join(str(w) for w in words) + "\n")
        self.child.stdin.flush()
        return int(self.child.stdout.readline())

    def write(self, at, piece):
        assert self.ask("write", at, piece.hex()) == 0

    def end(self):
        self.child.kill()
        self.child.communicate()


class Machine:
    def __init__(self, cluster):
        self.cluster = cluster
        self.state = cluster.file("state")
        os.mkdir(self.state)
        cluster.start_daemon("--state", self.state)
        self.saved, self.holders = {}, []

    def open(self, node, name="f"):
        self.holders.append(Holder(f"{node.path}/{name}"))
        return self.holders[-1]

    def fsync(self, f):
        """From here on the disk has the contents."""
        assert f.ask("fsync") == 0
        self.saved[f.name] = self.content(f.name)

    def content(self, name="f"):
        with open(f"{self.cluster.export}/{name}", "rb") as f:
            return f.read()

    def crash(self):
        self.cluster.daemon.process.kill()
        for name, content in self.saved.items():
            with open(f"{self.cluster.export}/{name}", "wb") as f:
                f.write(content)
        os.unlink(self.state + "/verifier")
        self.cluster.daemon.start()


@pytest.fixture
def machine(cluster):
    m = Machine(cluster)
    yield m
    for holder in m.holders:
        holder.end()


def written_again(node):
    return next(int(line.split()[2]) for line in node.control("stats").splitlines()
                if line.startswith("storage written_again "))


@pytest.mark.parametrize("how", ["fsync", "close"])
def test_what_a_crash_took_is_written_again(cluster, machine, how):
    node = cluster.node(peers=False)
    rng = random.Random(1)
    model = bytearray(rng.randbytes(3 << 20))
    f = machine.open(node)
    f.write(0, model)
    machine.fsync(f)
    for _ in range(200):
        at, piece = rng.randrange(len(model) - 3 * PAGE), rng.randbytes(rng.choice([1, 100, PAGE, 3 * PAGE]))
        f.write(at, piece)
        model[at:at + len(piece)] = piece
    assert machine.content() == model
    machine.crash()
    assert f.ask(how) == 0
    assert machine.content() == model
    assert written_again(node) > 0
    with open(node.path + "/f", "rb") as again:
        assert again.read() == model


def test_without_commits_at_close_an_fsync_still_reaches_the_disk(cluster):
    """Also an fsync on a descriptor that wrote nothing: the writer has closed the file."""
    with_stats(cluster)

    def commits(*options):
        node = cluster.node(*options, peers=False)
        counts = [daemon_stats(cluster).get("commit", 0)]
        for i in range(5):
            with open(f"{node.path}/{i}", "wb") as f:
                f.write(b"bytes")
        counts.append(daemon_stats(cluster).get("commit", 0))
        for i in range(5):
            fd = os.open(f"{node.path}/{i}", os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        counts.append(daemon_stats(cluster).get("commit", 0))
        return [counts[1] - counts[0], counts[2] - counts[1]]

    assert commits() == [5, 0]
    assert commits("commit_on_close=0") == [0, 5]


def test_a_synchronous_write_is_committed_by_itself(cluster):
    """The fsync that the kernel sends after it, and the close, find nothing to do."""
    with_stats(cluster)
    node = cluster.node(peers=False)
    before = daemon_stats(cluster)
    fd = os.open(f"{node.path}/f", os.O_CREAT | os.O_RDWR | os.O_SYNC, 0o600)
    for i in range(5):
        os.pwrite(fd, b"bytes", 5 * i)
    os.close(fd)
    after = daemon_stats(cluster)
    assert after["write"] - before.get("write", 0) == 5
    assert after.get("commit", 0) == before.get("commit", 0)


def test_nobody_need_ask_for_it(cluster, machine):
    """The client compares verifiers by itself once it is connected again."""
    f = machine.open(cluster.node(peers=False))
    f.write(0, b"old bytes")
    machine.fsync(f)
    f.write(0, b"new")
    machine.crash()
    wait_for(lambda: machine.content() == b"new bytes", "the bytes to be there again")


def test_a_restart_of_the_daemon_alone_writes_nothing_again(cluster, machine):
    node = cluster.node(peers=False)
    f = machine.open(node)
    f.write(0, b"bytes")
    cluster.daemon.process.kill()
    cluster.daemon.start()
    assert f.ask("fsync") == 0
    assert written_again(node) == 0


def test_what_was_cut_off_is_told(cluster, machine):
    """A client cannot repeat a truncation by writing bytes again, only the writes before it."""
    f = machine.open(cluster.node(peers=False))
    f.write(0, b"a" * 100)
    machine.fsync(f)
    f.write(0, b"b" * 100)
    assert f.ask("cut", 50) == 0
    machine.crash()
    assert f.ask("fsync") == errno.EIO
    assert f.ask("fsync") == 0
    assert machine.content() == b"b" * 50 + b"a" * 50


def test_the_next_holder_of_a_lock_is_not_overwritten(cluster, machine):
    f, g = (machine.open(cluster.node(peers=False)) for _ in range(2))
    f.write(0, b"........")
    machine.fsync(f)
    assert f.ask("lock") == 0
    f.write(0, b"first")
    assert f.ask("unlock") == 0
    assert g.ask("lock") == 0
    g.write(2, b"next")
    machine.crash()
    assert g.ask("fsync") == 0
    assert f.ask("fsync") == errno.EIO
    assert g.ask("unlock") == 0
    assert machine.content() == b"..next.."


def outcome(call, *arguments):
    """0 or the errno."""
    try:
        call(*arguments)
        return 0
    except OSError as e:
        return e.errno


def test_an_fsync_of_a_directory_reports_names_that_a_crash_took(cluster, machine):
    """Once to each open directory, and to both directories of a rename."""
    top = cluster.node(peers=False).path + "/names"
    os.mkdir(top)
    for name in ("from", "to", "other"):
        os.mkdir(f"{top}/{name}")
    open(f"{top}/from/file", "w").close()
    opened = [os.open(f"{top}/{name}", os.O_RDONLY | os.O_DIRECTORY)
              for name in ("from", "from", "to", "other")]
    try:
        for fd in opened:
            assert outcome(os.fsync, fd) == 0
        os.rename(f"{top}/from/file", f"{top}/to/file")
        machine.crash()
        assert [outcome(os.fsync, fd) for fd in opened] == [errno.EIO, errno.EIO, errno.EIO, 0]
        assert [outcome(os.fsync, fd) for fd in opened] == [0] * 4
        os.mkdir(f"{top}/from/new")
        assert outcome(os.fsync, opened[0]) == 0, "made after the crash"
    finally:
        for fd in opened:
            os.close(fd)


def test_an_fsync_of_a_directory_after_a_restart_of_the_daemon_succeeds(cluster, machine):
    top = cluster.node(peers=False).path + "/kept"
    os.mkdir(top)
    fd = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.mkdir(top + "/new")
        cluster.daemon.process.kill()
        cluster.daemon.start()
        assert outcome(os.fsync, fd) == 0
    finally:
        os.close(fd)

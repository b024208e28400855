# SPDX-License-Identifier: MIT
"""Locks of a node that says nothing more go to those who wait for them, 15 s after its last word:
of one that was killed, and of one that was stopped. The latter finds them lost when it goes on."""
import errno
import fcntl
import os
import select
import signal
import subprocess
import sys

import pytest

from cluster import DEADLINE, wait_for

BEFORE = 80  # seconds: the node's session, and its locks with it, would end after 90

HOLDER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
other = os.open(sys.argv[1], os.O_RDWR)
getattr(fcntl, sys.argv[2])(fd, fcntl.LOCK_EX)
os.pwrite(fd, b"held", 0)
assert os.pread(fd, 4, 0) == b"held"
print("held", flush=True)
def attempt(call, *args):
    try:
        return call(*args)
    except OSError as e:
        return e.errno
for line in sys.stdin:
    what = attempt(os.pread, fd, 4, 0), attempt(os.pwrite, fd, b"late", 0), attempt(os.pread, other, 4, 0)
    print(*what, flush=True)
"""

WAITER = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
print("waits", flush=True)
getattr(fcntl, sys.argv[2])(fd, fcntl.LOCK_EX)
assert os.pread(fd, 4, 0) == b"held"
os.pwrite(fd, b"next", 0)
print("held", flush=True)
sys.stdin.readline()
"""


class Program:
    def __init__(self, code, node, name, how, says):
        self.p = subprocess.Popen([sys.executable, "-c", code, f"{node.path}/{name}", how],
                                  stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.line() == says

    def line(self):
        """The next line, which comes by itself: nothing else is buffered."""
        assert select.select([self.p.stdout], [], [], BEFORE)[0], "it says nothing"
        return self.p.stdout.readline().strip()

    def say(self):
        self.p.stdin.write("\n")
        self.p.stdin.flush()

    def end(self):
        self.p.kill()
        self.p.stdin.close()
        self.p.wait(DEADLINE)


@pytest.mark.parametrize("how", ["flock", "lockf"])
def test_a_lock_of_a_node_that_is_killed_or_stopped(cluster, how):
    for name in "killed", "stopped":
        with open(cluster.file("export/" + name), "wb") as f:
            f.write(bytes(8192))
    killed, stopped, third = (cluster.node(peers=False) for _ in range(3))
    programs = []
    try:
        for node, name in (killed, "killed"), (stopped, "stopped"):
            programs.append(Program(HOLDER, node, name, how, "held"))
        holder = programs[-1]
        for name in "killed", "stopped":
            programs.append(Program(WAITER, third, name, how, "waits"))
        killed.crash()
        stopped.process.freeze()
        assert programs[2].line() == "held"
        assert programs[3].line() == "held"
        os.kill(stopped.process.pid, signal.SIGCONT)

        def lost():
            holder.say()
            read, write, other = holder.line().split()
            assert write == str(errno.EBADF)
            # Its kernel may give it the page that it has until the node has run for a moment, and
            # after that what the other open file has read.
            return read in (str(errno.EBADF), "b'next'") and other == "b'next'"
        wait_for(lost, "the open file is of no use, and nobody reads what was there before")
        with open(cluster.file("export/stopped"), "rb") as f:
            assert f.read(4) == b"next"
    finally:
        if stopped.process.running():
            os.kill(stopped.process.pid, signal.SIGCONT)
        for p in programs:
            p.end()

# SPDX-License-Identifier: MIT
"""One file under every kind of access at once, by coop-coherence: no store is lost, no word
is torn, and no read is older than the writes that ended before it began.

The same program runs on mounts of the module (tests/vm). It must also pass on the exported
file system, which tests the test. Its random runs seldom meet some orders of events; where
one of these once caused a fault, a proxy between node and daemon brings it about.
"""
import os
import socket
import struct
import subprocess
import sys
import threading

import pytest

from cluster import DEADLINE, Node, address, program, wait_for

SECONDS = int(os.environ.get("COOP_COHERENCE_SECONDS", "2"))


def coherence(path, *args):
    if not os.access(program("tests/coop-coherence"), os.X_OK):
        pytest.skip("needs coop-coherence: build it first")
    seed = os.environ.get("SEED", "1")
    done = subprocess.run([program("tests/coop-coherence"), "-s", seed, *map(str, args), path],
                          capture_output=True, text=True, timeout=600 + 20 * SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("how", ["alone", "peers", "strict"])
def test_no_store_is_lost(cluster, how):
    """Half of the threads store through a mapping, half write; each has one word per page."""
    node = cluster.node(*["strict"] * (how == "strict"), peers=how == "peers")
    coherence(node.path + "/words", "-m", min(4 * SECONDS, 64), "-n", 1, "words")


@pytest.mark.parametrize("options", [[], ["strict"]])
def test_no_read_is_old(cluster, options):
    """Blocks written and read in every way, by threads that check each other."""
    node = cluster.node(*options, peers=False)
    coherence(node.path + "/blocks", "-d", SECONDS, "blocks")


def test_direct_writes_beside_buffered_readers(cluster):
    node = cluster.node(peers=False)
    coherence(node.path + "/direct", "-b", 640 << 10, "-m", 20, "-d", SECONDS, "-w", "aio,uring,direct",
              "-R", "pread", "blocks")


def test_the_file_system_below_passes(cluster):
    cluster.start_daemon()
    coherence(cluster.export + "/words", "-m", 16, "-n", 1, "words")
    coherence(cluster.export + "/blocks", "-d", 1, "blocks")


class Proxy:
    """A proxy between a node and the daemon. While 'hold' is set it holds back replies to
    WRITE, or with 'before' the requests."""
    WRITE = 15
    STREAMED = 2

    def __init__(self, cluster, before=False):
        self.before = before
        self.upstream = (cluster.server, cluster.daemon.port)
        self.hold = threading.Event()
        self.go_on = threading.Event()
        self.held = 0
        self.listener = socket.create_server((address(253), 0))
        self.source = "%s:%d:/data" % self.listener.getsockname()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                node = self.listener.accept()[0]
            except OSError:
                return
            daemon = socket.create_connection(self.upstream)
            for held, *ends in ((self.before, node, daemon), (not self.before, daemon, node)):
                threading.Thread(target=self.until_closed,
                                 args=(self.held_back if held else self.through, *ends),
                                 daemon=True).start()

    @staticmethod
    def until_closed(target, source, to):
        try:
            target(source, to)
        except OSError:
            pass
        for end in (source, to):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    @staticmethod
    def through(source, to):
        while data := source.recv(1 << 16):
            to.sendall(data)

    def held_back(self, source, to):
        lock = threading.Lock()

        def later(message):
            self.go_on.wait()
            with lock:
                to.sendall(message)

        with source.makefile("rb") as stream:
            while head := stream.read(32):
                _, op, flags, body, data = struct.unpack_from("<IHHII", head)
                message = head + stream.read(body + data + (16 if flags & self.STREAMED else 0))
                if op == self.WRITE and self.hold.is_set():
                    self.held += 1
                    threading.Thread(target=later, args=(message,), daemon=True).start()
                    continue
                with lock:
                    to.sendall(message)

    def close(self):
        self.go_on.set()
        self.listener.close()


# Each actor is a process: a fault in a mapping stops all threads of an interpreter.
ACTOR = r"""
import ctypes, mmap, os, sys, time
role, path = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
fd = os.open(path, os.O_RDWR)
m = mmap.mmap(fd, 8192)
if role == "watch":
    assert m[0] == 0 and m[4096] == 0
if role == "store":
    m[4096] = 1
print("ready", flush=True)
sys.stdin.readline()
if role == "store":
    # Writeback only: msync(2) would hold the inode's lock, and no pwrite() could begin.
    assert libc.sync_file_range(fd, ctypes.c_long(4096), ctypes.c_long(4096), 2 | 4) == 0
elif role == "pwrite":
    os.pwrite(fd, b"2", 0)
else:
    end = time.monotonic() + 120
    while m[0] == 0:
        assert time.monotonic() < end, "nothing was written"
    # Ask storage for the attributes: they carry a version that the client does not know yet.
    forced = 0x2000
    assert libc.statx(-100, os.fsencode(path), forced, 0x7ff, ctypes.create_string_buffer(256)) == 0
    end = time.monotonic() + 1
    seen = {m[0] for _ in iter(lambda: time.monotonic() < end, False)}
    # Print before the exit, which closes the file and waits for the store.
    print("kept" if seen == {ord("2")} else f"the mapping had {seen}", flush=True)
"""


def test_a_reply_that_tells_of_a_store_does_not_cost_a_write_on_its_way(cluster):
    """A mapped store has reached storage, but its reply is not back; a pwrite() to another page
    queues behind it. Attributes that arrive now carry the store's version. (The kernel drops pages
    in order and waits for the one under writeback, so the page of the pwrite() is the first.)"""
    cluster.start_daemon()
    with open(cluster.export + "/file", "wb") as f:
        f.write(bytes(8192))
    proxy = Proxy(cluster)
    node = Node(cluster, 1, [], proxy.source)
    cluster.nodes.append(node)
    path = node.path + "/file"
    actors = {}
    try:
        # The kernel may write the stored page back whenever it likes, so the reply is held from the first. The
        # others have opened the file by then: an open would drop the page, and wait for the reply.
        proxy.hold.set()
        for role in ("watch", "pwrite", "store"):
            actors[role] = subprocess.Popen([sys.executable, "-c", ACTOR, role, path],
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE, text=True)
            ready = actors[role].stdout.readline()
            assert ready == "ready\n", actors[role].stderr.read()

        def go(role):
            actors[role].stdin.write("\n")
            actors[role].stdin.flush()

        go("store")
        wait_for(lambda: proxy.held, "the store is at storage")
        go("pwrite")
        go("watch")
        verdict = actors["watch"].stdout.readline()
        proxy.go_on.set()
        errors = {role: actor.communicate(timeout=DEADLINE)[1] for role, actor in actors.items()}
        assert not any(errors.values()), errors
        assert verdict == "kept\n"
        with open(path, "rb") as f:
            assert f.read(1) == b"2" and f.seek(4096) and f.read(1) == b"\1"
    finally:
        proxy.close()
        for actor in actors.values():
            if actor.poll() is None:
                actor.kill()
                actor.wait()
    with open(cluster.export + "/file", "rb") as f:
        assert f.read(1) == b"2" and f.seek(4096) and f.read(1) == b"\1"


def test_attributes_do_not_cost_a_write_on_its_way(cluster):
    """A pwrite() has put its bytes into the kernel's page, but its request has not reached storage.
    A change of times at this point must not make the kernel read the page again."""
    cluster.start_daemon()
    with open(cluster.export + "/file", "wb") as f:
        f.write(b"1" * 4096)
    proxy = Proxy(cluster, before=True)
    node = Node(cluster, 1, ["strict"], proxy.source)
    cluster.nodes.append(node)
    fd = os.open(node.path + "/file", os.O_RDWR)
    try:
        assert os.pread(fd, 1, 0) == b"1"
        proxy.hold.set()
        writer = threading.Thread(target=os.pwrite, args=(fd, b"2" * 4096, 0))
        writer.start()
        wait_for(lambda: proxy.held, "the write is on its way")
        os.utime(cluster.export + "/file", (1, 1))
        wait_for(lambda: os.stat(node.path + "/file").st_mtime == 1, "the new time")
        os.pread(fd, 1, 0)
        proxy.go_on.set()
        writer.join()
        out, to = os.pipe()
        assert os.splice(fd, to, 1, offset_src=0) == 1  # reads without asking for times first
        os.close(to)
        with open(out, "rb") as pipe:
            assert pipe.read() == b"2"
    finally:
        proxy.close()
        os.close(fd)

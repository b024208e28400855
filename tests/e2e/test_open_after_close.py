# SPDX-License-Identifier: MIT
"""What a file shows on a node while it is changed on another or on the same one.

An open that follows another node's close sees all that was closed, whatever other processes of
both nodes do meanwhile. A reader never sees zeros that nobody wrote. A reader that keeps the file
open sees in the end what another node wrote.
"""
import contextlib
import multiprocessing
import os
import random
import struct
import threading
import time
import traceback

import pytest

from cluster import Node, wait_for
from test_coherence import Proxy

SECONDS = float(os.environ.get("COOP_OPEN_SECONDS", "4"))
NEIGHBOURS = 100
PROCESS = multiprocessing.get_context("fork")


def put(path, data):
    with open(path, "wb", buffering=0) as f:
        f.write(data)


def get(path):
    with open(path, "rb", buffering=0) as f:
        return f.read()


class Mangler(Proxy):
    """A proxy that delays replies, each for a time of its own, so that they come in another order."""
    ORDERED = 0x100  # what the daemon sends by itself

    def held_back(self, source, to):
        lock, r = threading.Lock(), random.Random(1)

        def later(message, seconds):
            time.sleep(seconds)
            with lock, contextlib.suppress(OSError):
                to.sendall(message)

        with source.makefile("rb") as stream:
            while head := stream.read(32):
                _, op, flags, body, data = struct.unpack_from("<IHHII", head)
                message = head + stream.read(body + data + (16 if flags & self.STREAMED else 0))
                seconds = r.choice((0, 0, 0, 0.002, 0.01))
                if seconds and 6 < op < self.ORDERED:
                    threading.Thread(target=later, args=(message, seconds), daemon=True).start()
                else:
                    with lock:
                        to.sendall(message)


@contextlib.contextmanager
def beside(*actors):
    """Runs actor(rng) again and again, each in a process of its own. One that fails ends the test."""
    stop, processes = PROCESS.Event(), []
    failures = PROCESS.Queue()

    def run(actor, seed):
        rng = random.Random(seed)
        try:
            while not stop.is_set():
                actor(rng)
        except BaseException:
            failures.put(f"{actor.__name__}: {traceback.format_exc()}")

    for number, actor in enumerate(actors):
        processes.append(PROCESS.Process(target=run, args=(actor, number), daemon=True))
        processes[-1].start()
    try:
        yield
    finally:
        stop.set()
        for process in processes:
            process.join(60)
            process.kill()
    assert failures.empty(), failures.get()


def disturbers(a, b):
    """Processes of both nodes that look at the file, and change its neighbours."""
    def stats(_):
        os.stat(b.path + "/d/f")

    def lists(_):
        with os.scandir(b.path + "/d") as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    entry.stat()

    def opens(rng):
        if rng.randrange(2):
            get(b.path + "/d/f")
        else:
            os.close(os.open(b.path + "/d/f", os.O_RDWR))

    def changes(rng):
        for node in (a, b):
            mine = f"{node.path}/d/{node.path[-1]}{rng.randrange(NEIGHBOURS)}"
            with contextlib.suppress(FileNotFoundError):
                rng.choice((lambda: put(mine, bytes(rng.randrange(9000))),
                            lambda: os.truncate(mine, rng.randrange(9000)),
                            lambda: os.rename(mine, mine + "x"), lambda: os.rename(mine + "x", mine)))()

    return stats, lists, opens, changes


def change(path, data, rng):
    """Changes the file and the bytes that it has, as one close does."""
    piece, kind = rng.randbytes(rng.choice((30, 5000, 70000))), rng.randrange(4)
    if kind == 0:
        put(path, piece)
        return piece
    if kind == 1: # other bytes of the same length
        data = rng.randbytes(len(data))
        with open(path, "r+b", buffering=0) as f:
            f.write(data)
        return data
    if kind == 2 and len(data) < 300000:
        with open(path, "ab", buffering=0) as f:
            f.write(piece)
        return data + piece
    data = data[:rng.randrange(len(data) + 1)]
    os.truncate(path, len(data))
    return data


def open_after_close(a, b, seconds):
    seed = int(os.environ.get("SEED", "1"))
    rng, data, rounds = random.Random(seed), b"first", 0
    os.mkdir(a.path + "/d")
    for node in (a, b):
        for i in range(NEIGHBOURS):
            put(f"{node.path}/d/{node.path[-1]}{i}", b"neighbour")
    put(a.path + "/d/f", data)
    with beside(*disturbers(a, b)):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            data, rounds = change(a.path + "/d/f", data, rng), rounds + 1
            fd = os.open(b.path + "/d/f", rng.choice((os.O_RDONLY, os.O_RDWR)))
            try:
                seen = os.read(fd, 1 << 20)
            finally:
                os.close(fd)
            assert seen == data, f"seed {seed}, round {rounds}: {len(seen)} bytes, closed were {len(data)}; " \
                f"equal: {len(os.path.commonprefix([seen, data]))}"
    assert rounds > 3


@pytest.mark.parametrize("options", [[], ["nolease", "bundles=off"]])
def test_an_open_sees_what_was_closed(cluster, options):
    a, b = cluster.connected(2, *options)
    open_after_close(a, b, SECONDS)


@pytest.mark.skipif(SECONDS < 10, reason="the long form: COOP_OPEN_SECONDS is less than 10")
def test_an_open_sees_what_was_closed_when_replies_change_places(cluster):
    cluster.start_daemon()
    proxies = [Mangler(cluster) for _ in range(2)]
    try:
        for number, proxy in enumerate(proxies):
            cluster.nodes.append(Node(cluster, number + 1, [], proxy.source))
        open_after_close(*cluster.nodes, SECONDS)
    finally:
        for proxy in proxies:
            proxy.close()


def test_readers_of_a_file_that_is_rewritten_see_no_zeros(cluster):
    """They may see the old bytes, none, or some of the new ones: letters in any case."""
    a, b = cluster.connected(2)
    os.mkdir(a.path + "/d")
    put(a.path + "/d/f", b"A" * 9000)

    def reads_here(_):
        assert b"\0" not in get(a.path + "/d/f"), "a reader of the same node"

    def reads_there(_):
        assert b"\0" not in get(b.path + "/d/f"), "a reader of another node"

    def lists_there(_): # a listing has the attributes of files
        with os.scandir(b.path + "/d") as entries:
            for entry in entries:
                entry.stat()

    def creates_there(_):
        os.close(os.open(b.path + "/d/f", os.O_CREAT | os.O_RDONLY))

    rounds, end = 0, time.monotonic() + SECONDS
    # The long form: seldom, a listing's attributes still meet the READ of a page after it was refused.
    others = [lists_there, creates_there] if SECONDS >= 10 else []
    with beside(reads_here, reads_there, *others):
        while time.monotonic() < end:
            rounds += 1
            put(a.path + "/d/f", bytes([65 + rounds % 26]) * (5000 + rounds * 37 % 9000))
    assert rounds > 3


@pytest.mark.parametrize("options", [[], ["nolease"]])
def test_a_reader_that_stays_open_sees_what_another_node_wrote(cluster, options):
    a, b = cluster.connected(2, *options)
    put(a.path + "/f", b"old." * 3000)
    with open(b.path + "/f", "rb", buffering=0) as reader, open(a.path + "/f", "r+b", buffering=0) as writer:
        assert os.pread(reader.fileno(), 4, 8000) == b"old."
        for new in (b"new1", b"new2"):
            os.pwrite(writer.fileno(), new, 8000)
            os.fsync(writer.fileno())
            wait_for(lambda: os.pread(reader.fileno(), 4, 8000) == new, f"the reader sees {new}")
        writer.close()
        put(a.path + "/f", b"last" * 3000)
        wait_for(lambda: os.pread(reader.fileno(), 4, 8000) == b"last", "the reader sees the rewritten file")


def test_a_reader_that_stays_open_asks_nobody_for_what_the_kernel_has(cluster):
    a, b = cluster.connected(2)
    put(a.path + "/f", b"same" * 3000)
    with open(b.path + "/f", "rb", buffering=0) as reader:
        assert os.pread(reader.fileno(), 12000, 0) == b"same" * 3000
        before = b.stats()
        end = time.monotonic() + 2.5 # two looks of the client at its open files
        while time.monotonic() < end:
            assert os.pread(reader.fileno(), 12000, 0) == b"same" * 3000
        after = b.stats()
        for source in ("buffer", "peer", "storage"):
            assert after[source]["requests"] == before[source]["requests"], source


def test_an_open_that_walks_no_path_gets_the_file(cluster):
    """The kernel has no name to ask for again, and its size may be a second old."""
    a, b = cluster.connected(2)
    put(a.path + "/f", b"first")
    held = os.open(b.path + "/f", os.O_RDONLY)
    try:
        text = b"first"
        for _ in range(20):
            text += b"next"
            put(a.path + "/f", text)
            seen = get(f"/proc/self/fd/{held}") # never an error
            assert text.startswith(seen)
        wait_for(lambda: get(f"/proc/self/fd/{held}") == text, "the size is a second old")
    finally:
        os.close(held)

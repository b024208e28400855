# SPDX-License-Identifier: MIT
"""An open sees what another node wrote before; unchanged files stay cached."""
import fcntl
import mmap
import os
import random
import threading

import pytest

from cluster import DEADLINE, drop_kernel_pages, wait_for


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def requests(node):
    s = node.stats()
    return sum(s[x]["requests"] for x in ("buffer", "peer", "storage"))


def test_close_to_open(cluster):
    a, b = cluster.connected(2)
    r = random.Random(1)
    for i in range(60):
        writer, reader = (a, b) if i % 2 else (b, a)
        data = r.randbytes(r.choice((0, 1, 10, 4096, 5000, 100000, 300000)))
        put(writer.path + "/f", data)
        assert get(reader.path + "/f") == data, i
        assert os.stat(reader.path + "/f").st_size == len(data)
        assert get(writer.path + "/f") == data, i


def test_same_size_other_bytes(cluster):
    a, b = cluster.connected(2)
    for i in range(40):
        data = bytes([i]) * 70000
        put(a.path + "/f", data)
        assert get(b.path + "/f") == data


def test_change_in_place(cluster):
    a, b = cluster.connected(2)
    data = bytearray(random.Random(2).randbytes(700000))
    put(a.path + "/f", data)
    assert get(b.path + "/f") == data
    r = random.Random(3)
    for _ in range(25):
        at, n = r.randrange(len(data)), r.randrange(1, 5000)
        piece = r.randbytes(n)[:len(data) - at]
        with open(a.path + "/f", "r+b") as f:
            f.seek(at)
            f.write(piece)
        data[at:at + len(piece)] = piece
        assert get(b.path + "/f") == data
        assert get(a.path + "/f") == data


def test_behind_our_back(cluster):
    """A local process changes the export, bypassing the daemon."""
    node = cluster.node(peers=False)
    for i in range(30):
        data = bytes([i]) * 50000
        put(cluster.export + "/f", data)
        assert get(node.path + "/f") == data, i


def test_kernel_pages_are_kept_as_long_as_nobody_writes(cluster):
    data = os.urandom(300000)
    a, b = cluster.connected(2)
    put(a.path + "/f", data)
    assert get(b.path + "/f") == data
    assert get(b.path + "/f") == data
    b.reset()
    for _ in range(5):
        assert get(b.path + "/f") == data
    assert requests(b) == 0
    with open(a.path + "/f", "r+b") as f:
        f.write(b"changed")
    assert get(b.path + "/f") == b"changed" + data[7:]
    assert requests(b) > 0


def test_own_writes_leave_the_kernel_its_pages(cluster):
    node = cluster.node(peers=False)
    data = bytearray(os.urandom(300000))
    put(node.path + "/f", data)
    get(node.path + "/f")
    node.reset()
    with open(node.path + "/f", "r+b") as f:
        f.seek(4096)
        f.write(b"x" * 4096)
    data[4096:8192] = b"x" * 4096
    assert get(node.path + "/f") == data
    assert requests(node) == 0


def test_untouched_pages_outlive_a_local_write(cluster):
    node = cluster.node("readahead=0", "keep_copies=1", peers=False)
    data = bytearray(os.urandom(4 << 20))
    put(cluster.export + "/f", data)
    assert get(node.path + "/f") == data
    node.reset()
    with open(node.path + "/f", "r+b") as f:
        f.seek(100)
        f.write(b"changed")
    data[100:107] = b"changed"
    drop_kernel_pages(node.path + "/f")
    assert get(node.path + "/f") == data
    s = node.stats()
    assert s["storage"]["bytes"] < 1 << 20 and s["buffer"]["bytes"] > 3 << 20, s


def test_a_reader_with_the_file_open_gets_bytes_whatever_happens(cluster):
    """One node keeps rewriting a file; every read on the other succeeds."""
    a, b = cluster.connected(2)
    block = 4096
    put(a.path + "/f", b"\0" * (64 * block))
    stop = threading.Event()
    failures = []

    def write():
        i = 0
        with open(a.path + "/f", "r+b", buffering=0) as f:
            while not stop.is_set():
                i = i % 250 + 1
                os.pwrite(f.fileno(), bytes([i]) * (64 * block), 0)

    def read():
        try:
            for _ in range(150):
                with open(b.path + "/f", "rb", buffering=0) as f:
                    data = os.pread(f.fileno(), 64 * block, 0)
                    if len(data) != 64 * block:
                        failures.append(f"{len(data)} bytes")
        except OSError as e:
            failures.append(repr(e))
    threads = [threading.Thread(target=write)] + [threading.Thread(target=read) for _ in range(2)]
    for t in threads:
        t.start()
    for t in threads[1:]:
        t.join(5 * DEADLINE)
    stop.set()
    threads[0].join(DEADLINE)
    assert not any(t.is_alive() for t in threads), "stuck"
    assert not failures, failures[:5]
    assert get(b.path + "/f") == get(cluster.export + "/f")


def test_open_file_learns_of_a_change(cluster):
    """Once a stat shows the change, a file that stayed open has the new pages too."""
    a, b = cluster.connected(2)
    put(a.path + "/f", b"a" * 10000)
    with open(b.path + "/f", "rb", buffering=0) as f:
        assert f.read() == b"a" * 10000
        put(a.path + "/f", b"b" * 10000)
        get(b.path + "/f")
        assert os.pread(f.fileno(), 10000, 0) == b"b" * 10000


@pytest.mark.parametrize("options", [[], ["nolease"]])
def test_without_an_open_a_change_is_seen_after_a_moment(cluster, options):
    a, b = cluster.connected(2, *options)
    for name in "fg":
        put(f"{a.path}/{name}", b"a" * 10000)
    os.mkdir(a.path + "/d")
    with open(b.path + "/f", "rb", buffering=0) as f, open(b.path + "/g", "rb", buffering=0) as g:
        assert os.pread(f.fileno(), 10000, 0) == b"a" * 10000
        assert os.fstat(g.fileno()).st_size == 10000
        assert os.path.exists(b.path + "/d")
        with open(a.path + "/f", "r+b") as changed:
            changed.write(b"b" * 10000)
        os.truncate(a.path + "/g", 5)
        os.rename(a.path + "/d", a.path + "/e")
        wait_for(lambda: not os.path.exists(b.path + "/d"), "the name has gone")
        wait_for(lambda: os.fstat(g.fileno()).st_size == 5, "the file has its new size")
        wait_for(lambda: os.pread(f.fileno(), 10000, 0) == b"b" * 10000, "the open file has its new bytes")


@pytest.mark.parametrize("when", ["open", "fcntl"])
def test_append_from_two_nodes(cluster, when):
    a, b = cluster.connected(2)
    put(a.path + "/log", b"")
    count = 200

    def append(node, mark):
        fd = os.open(node.path + "/log", os.O_WRONLY | (os.O_APPEND if when == "open" else 0))
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
        for i in range(count):
            os.write(fd, f"{mark}{i:04d}\n".encode())
        os.close(fd)
    threads = [threading.Thread(target=append, args=x) for x in ((a, "a"), (b, "b"))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(5 * DEADLINE)
    expected = sorted(f"{m}{i:04d}" for m in "ab" for i in range(count))
    for place in (a.path, b.path, cluster.export):
        assert sorted(get(place + "/log").decode().split()) == expected, place


def test_append_and_read_through_one_descriptor(cluster):
    a, b = cluster.connected(2)
    put(a.path + "/log", b"start\n")
    fd = os.open(b.path + "/log", os.O_RDWR | os.O_APPEND)
    assert os.pread(fd, 100, 0) == b"start\n"
    with open(a.path + "/log", "ab") as f:
        f.write(b"from a\n")
    os.write(fd, b"from b\n")
    os.close(fd)
    for place in (a.path, b.path, cluster.export):
        assert get(place + "/log") == b"start\nfrom a\nfrom b\n", place


# A mapping's pages are written in place, through any descriptor that the kernel finds.
def test_stores_beside_a_mapping_that_appends(cluster):
    node = cluster.node(peers=False)
    put(node.path + "/f", b"." * 10000)
    plain = os.open(node.path + "/f", os.O_RDWR)
    appends = os.open(node.path + "/f", os.O_RDWR | os.O_APPEND)
    with mmap.mmap(plain, 10000) as m, mmap.mmap(appends, 10000) as n:
        m[5000:5001] = b"m"
        n[9000:9001] = b"n"
        m.flush()
        os.write(appends, b"end")
    os.close(plain)
    os.close(appends)
    expected = bytearray(b"." * 10000 + b"end")
    expected[5000:5001], expected[9000:9001] = b"m", b"n"
    assert get(cluster.export + "/f") == expected
    assert get(node.path + "/f") == expected


def test_unlinked_on_another_node(cluster):
    a, b = cluster.connected(2)
    data = os.urandom(500000)
    put(a.path + "/f", data)
    with open(b.path + "/f", "rb") as f:
        assert f.read(10) == data[:10]
        os.unlink(a.path + "/f")
        assert f.read() == data[10:]
    wait_for(lambda: not os.path.exists(b.path + "/f"), "the name is gone")


def test_rename_over_an_open_file_of_another_node(cluster):
    a, b = cluster.connected(2)
    old, new = os.urandom(300000), os.urandom(200000)
    put(a.path + "/f", old)
    put(a.path + "/g", new)
    with open(b.path + "/f", "rb") as f:
        f.read(1)
        os.rename(a.path + "/g", a.path + "/f")
        assert f.read() == old[1:]
    wait_for(lambda: get(b.path + "/f") == new, "the name leads to the new file")


def test_mmap_of_what_another_node_wrote(cluster):
    a, b = cluster.connected(2)
    data = os.urandom(1 << 20)
    put(a.path + "/f", data)
    with open(b.path + "/f", "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        for at in range(len(data) - 4096, -1, -37 * 4096):
            assert m[at:at + 4096] == data[at:at + 4096]


class Oracle:
    """Random reads, writes, truncations and mapped reads against a bytearray."""

    def __init__(self, seed, paths, size=400000):
        self.r, self.paths, self.most = random.Random(seed), paths, size
        self.data = bytearray()
        put(paths[0], b"")

    def step(self):
        path = self.r.choice(self.paths)
        action = self.r.choice(("read", "read", "read", "write", "write", "truncate", "map", "append"))
        at = self.r.randrange(self.most)
        n = self.r.choice((1, 100, 4096, 5000, 65536, 150000))
        getattr(self, action)(path, at, n)
        return action, at, n, os.path.basename(os.path.dirname(path))

    def read(self, path, at, n):
        with open(path, "rb", buffering=0) as f:
            assert os.pread(f.fileno(), n, at) == self.data[at:at + n]

    def write(self, path, at, n):
        n = min(n, self.most - at)
        piece = self.r.randbytes(n)
        if len(self.data) < at:
            self.data.extend(bytes(at - len(self.data)))
        self.data[at:at + n] = piece
        with open(path, "r+b", buffering=0) as f:
            assert os.pwrite(f.fileno(), piece, at) == n

    def append(self, path, _, n):
        n = min(n, self.most - len(self.data))
        piece = self.r.randbytes(n)
        self.data.extend(piece)
        with open(path, "ab", buffering=0) as f:
            f.write(piece)

    def truncate(self, path, at, _):
        del self.data[at:]
        self.data.extend(bytes(at - len(self.data)))
        os.truncate(path, at)

    def map(self, path, at, n):
        if not self.data:
            return
        at = min(at, len(self.data) - 1)
        with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
            assert len(m) == len(self.data)
            assert m[at:at + n] == self.data[at:at + n]


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("options", [[], ["cache_size=4M", "ra_async=0"]])
def test_random_operations_against_an_oracle(cluster, nodes, options):
    seed = int(os.environ.get("SEED", "7"))
    print("SEED", seed)
    mounted = cluster.connected(nodes, *options)
    oracle = Oracle(seed, [n.path + "/f" for n in mounted])
    history = []
    for _ in range(600):
        try:
            history.append(oracle.step())
        except AssertionError as e:
            raise AssertionError(f"seed {seed}, after {history[-12:]}") from e
    assert get(cluster.export + "/f") == oracle.data

# SPDX-License-Identifier: MIT
"""Where bytes come from: storage, then peers, then the local buffer; and that the counters agree."""
import hashlib
import os
import random

import pytest

from cluster import drop_kernel_pages, wait_for
from step import SHARED, SPARED


def make_tree(root, seed, files=60, largest=3 << 20):
    """Makes files of every awkward size; returns {path: sha256}."""
    r = random.Random(seed)
    sizes = [0, 1, 4095, 4096, 4097, 65535, 65536, 262144, 262145, 1 << 20, largest]
    sums = {}
    for i in range(files):
        directory = os.path.join("d%d" % (i % 5), "e%d" % (i % 3))
        os.makedirs(os.path.join(root, directory), exist_ok=True)
        data = r.randbytes(sizes[i] if i < len(sizes) else r.randrange(200000))
        path = os.path.join(directory, "f%d" % i)
        with open(os.path.join(root, path), "wb") as f:
            f.write(data)
        sums[path] = hashlib.sha256(data).hexdigest()
    return sums


def check_tree(root, sums):
    seen = {}
    for directory, _, names in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, "rb") as f:
                seen[os.path.relpath(path, root)] = hashlib.sha256(f.read()).hexdigest()
    assert seen == sums


def total(stats):
    return sum(stats[s]["bytes"] for s in ("buffer", "peer", "storage"))


@pytest.mark.parametrize("options", [[], ["ra_async=0"], ["page_crc=1"], ["page_mac=1"], ["ib_mtu=1024"],
                                     ["ib_num_srpc=2", "ib_num_rrpc=2"], ["readahead=0"]])
def test_second_reader_is_served_by_peers(cluster, options):
    sums = make_tree(cluster.export, 1)
    size = sum(os.path.getsize(os.path.join(cluster.export, p)) for p in sums)
    nodes = cluster.connected(3, *options)
    check_tree(nodes[0].path, sums)
    first = nodes[0].stats()
    assert first["storage"]["bytes"] + first["buffer"]["bytes"] == size
    assert first["peer"]["bytes"] == 0
    for node in nodes[1:]:
        check_tree(node.path, sums)
        s = node.stats()
        assert total(s) == size, s
        assert s["storage"]["bytes"] <= size * SPARED, s
        assert s["peer"]["bytes"] >= size * SPARED, s


def test_peers_by_hand(cluster):
    data = random.Random(2).randbytes(5 << 20)
    with open(cluster.file("export/f"), "wb") as f:
        f.write(data)
    a, b = cluster.node(), cluster.node()
    for node in (a, b):
        node.wait_for_peers(1)
    assert a.write_control("ibaddr", b.ibaddr() + "\n") > 0
    assert b.write_control("ibaddr", a.ibaddr()) > 0
    assert [p["origin"] for p in a.peers()] == ["hand,daemon"]
    lines = a.control("ibaddr").splitlines()
    assert len(lines) == 2 and lines[1].split()[:2] == b.ibaddr().split()[:2]
    with open(a.path + "/f", "rb") as f:
        assert f.read() == data
    with open(b.path + "/f", "rb") as f:
        assert f.read() == data
    assert b.stats()["peer"]["bytes"] >= len(data) * SPARED
    assert int(b.peers()[0]["rx_bytes"]) >= len(data) * SPARED


@pytest.mark.parametrize("line", [
    "", "\n", "gid=::1", "nonsense", "gid=::ffff:127.0.0.1 qpn=0x11",
    "gid=::ffff:127.0.0.1 lid=0x0000 qpn=0x1000000 qkey=0x1 sl=0",
    "gid=::ffff:127.0.0.1 lid=0x0000 qpn=0x11 qkey=0x1 sl=16",
    "gid=::ffff:127.0.0.1 gid=::1 lid=0x0000 qpn=0x11 qkey=0x1 sl=0",
    "gid=::ffff:127.0.0.1 lid=0x0000 qpn=0x11 qkey=0x1 sl=0 more=1",
    "gid=::ffff:127.0.0.1 lid=0x0000 qpn=0x11 qkey=0x1 sl=0\ngid=::1 qpn=1 qkey=1\n",
    "gid=" + "1" * 4000,
])
def test_a_malformed_peer_is_refused_whole(cluster, line):
    node = cluster.node()
    before = node.control("ibaddr")
    if line:
        with pytest.raises(OSError) as e:
            node.write_control("ibaddr", line)
        assert e.value.errno == 22
    assert node.control("ibaddr") == before and node.peers() == []


def test_without_ib_there_are_no_peers(cluster):
    with open(cluster.file("export/f"), "wb") as f:
        f.write(b"x" * 100000)
    node = cluster.node(peers=False)
    with open(node.path + "/f", "rb") as f:
        assert f.read() == b"x" * 100000
    assert node.peers() == []
    s = node.stats()
    assert s["peer"]["bytes"] == 0 and s["storage"]["bytes"] + s["buffer"]["bytes"] == 100000
    with pytest.raises(OSError):
        node.write_control("ibaddr", "gid=::ffff:127.0.0.1 lid=0x0 qpn=0x11 qkey=0x1 sl=0")


def test_stats_reset_and_local_buffer(cluster):
    data = os.urandom(1 << 20)
    with open(cluster.file("export/f"), "wb") as f:
        f.write(data)
    node = cluster.node("keep_copies=1", peers=False)
    with open(node.path + "/f", "rb") as f:
        assert f.read() == data
    assert node.stats()["storage"]["bytes"] > 0
    node.reset()
    assert total(node.stats()) == 0
    drop_kernel_pages(node.path + "/f")
    with open(node.path + "/f", "rb") as f:
        assert f.read() == data
    s = node.stats()
    assert s["buffer"]["bytes"] == len(data) and s["storage"]["bytes"] == 0


@pytest.mark.parametrize("asynchronous", [0, 1])
def test_small_cache_big_file(cluster, asynchronous):
    data = random.Random(3).randbytes(24 << 20)
    with open(cluster.file("export/f"), "wb") as f:
        f.write(data)
    nodes = cluster.connected(2, "cache_size=4M", f"ra_async={asynchronous}")
    for node in nodes:
        with open(node.path + "/f", "rb") as f:
            assert f.read() == data
    r = random.Random(4)
    for node in nodes:
        drop_kernel_pages(node.path + "/f")
        with open(node.path + "/f", "rb") as f:
            for _ in range(200):
                at = r.randrange(len(data))
                n = r.randrange(1, 100000)
                assert os.pread(f.fileno(), n, at) == data[at:at + n]


# Of storage's bytes, the part that the second node costs. A bundle has the files' bytes once more,
# for all later nodes together.
@pytest.mark.parametrize("bundles, part", [("off", SPARED), ("auto", SHARED)])
def test_many_small_files(cluster, bundles, part):
    r = random.Random(5)
    want = {}
    for i in range(1500):
        want["s%04d" % i] = r.randbytes(r.randrange(0, 6000))
        with open(cluster.file("export/s%04d" % i), "wb") as f:
            f.write(want["s%04d" % i])
    nodes = cluster.connected(2, f"bundles={bundles}")
    for node in nodes:
        assert sorted(os.listdir(node.path)) == sorted(want)
        for name, data in want.items():
            with open(os.path.join(node.path, name), "rb") as f:
                assert f.read() == data, name
    s = nodes[1].stats()
    assert s["storage"]["bytes"] <= sum(map(len, want.values())) * part, s


def test_options_take_effect_one_by_one(cluster):
    """serve_mbps: a node that serves little says so, and its peer reads from storage."""
    data = os.urandom(8 << 20)
    with open(cluster.file("export/f"), "wb") as f:
        f.write(data)
    slow = cluster.node("serve_mbps=1")
    other = cluster.node()
    slow.wait_for_peers(1)
    other.wait_for_peers(1)
    for node in (slow, other):
        with open(node.path + "/f", "rb") as f:
            assert f.read() == data
    assert other.stats()["storage"]["bytes"] > len(data) / 2
    wait_for(lambda: slow.stats()["serve"]["limited"] > 0, "requests were limited")

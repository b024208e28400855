# SPDX-License-Identifier: MIT
"""A node that drops pages which only it has read: a peer takes them, and others are sent there."""
import hashlib

from cluster import wait_for
from step import CHUNK, SHARED, SPARED, copies, make_file

STEP = CHUNK // 4


def read(node, name, size, after=lambda: None):
    """In small steps; after: between two of them. Returns the sha256."""
    h = hashlib.sha256()
    with open(f"{node.path}/{name}", "rb", buffering=0) as f:
        for _ in range(size // STEP):
            h.update(f.read(STEP))
            after()
    return h.hexdigest()


def offers(node):
    return node.stats()["offer"]


def settled(node):
    wait_for(lambda: offers(node)["waiting"] == 0, "no offer to be under way")


def test_pages_that_one_node_drops_go_to_one_that_has_the_file_open(cluster):
    size = 24 * CHUNK
    want = make_file(cluster, "f", size, 1)
    other = make_file(cluster, "g", 40 * CHUNK, 2)
    small = cluster.node("cache_size=32M", "readahead=0", "keep_copies=1")
    big = cluster.node("cache_size=128M", "readahead=0")
    small.wait_for_peers(1)
    big.wait_for_peers(1)
    with open(f"{big.path}/f", "rb", buffering=0) as keeps_open, open(f"{small.path}/f", "rb") as also_open:
        assert keeps_open.read(STEP) == also_open.read(STEP)
        assert read(small, "f", size) == want
        assert read(small, "g", 40 * CHUNK, lambda: settled(small)) == other
        assert offers(small)["taken"] >= 16, offers(small)
        assert read(big, "f", size) == want
        assert copies([small, big], size) - 40 * CHUNK / size <= SHARED
        assert big.stats()["read"]["taken_pages"] >= 16 * 64


def test_a_request_for_dropped_pages_is_passed_on(cluster):
    size = 24 * CHUNK
    want = make_file(cluster, "f", size, 1)
    make_file(cluster, "g", 40 * CHUNK, 2)
    # Without trees, storage names those that opened the file; the last one is asked first.
    big = cluster.node("cache_size=128M", "readahead=0", "tree=off")
    small = cluster.node("cache_size=32M", "readahead=0", "tree=off", "keep_copies=1")
    for node in big, small:
        node.wait_for_peers(1)
    assert read(big, "f", size) == want
    assert read(small, "f", size) == want
    read(small, "g", 40 * CHUNK)
    late = cluster.node("cache_size=128M", "readahead=0", "tree=off")
    late.wait_for_peers(2)
    assert read(late, "f", size) == want
    # A datagram may be lost on a busy machine: then late asks storage for a page, or misses the word of a pass.
    assert copies([late], size) <= SPARED
    passed, forwarded = small.stats()["serve"]["passed"], big.stats()["serve"]["forwarded"]
    assert 0 < late.stats()["fetch"]["passes"] <= passed
    assert 0 < forwarded <= passed

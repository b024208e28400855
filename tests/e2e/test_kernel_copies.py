# SPDX-License-Identifier: MIT
"""Which pages that the kernel has cached the page store keeps a second time: by default those that no other node has; all
that peers need in any case."""
import ctypes
import hashlib
import mmap
import os

from cluster import LIBC, drop_kernel_pages, wait_for
from step import CHUNK, SHARED, SPARED, copies, make_file
from test_last_copies import STEP, read

PAGE = 4096
SIZE = 24 * CHUNK


def cached(path):
    """Bytes of the file in the kernel's page cache."""
    pages = -(-os.path.getsize(path) // PAGE)
    here = (ctypes.c_ubyte * pages)()
    with open(path, "rb") as f:
        m = mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(m))
        err = LIBC.mincore(ctypes.c_void_p(address), ctypes.c_size_t(len(m)), here)
        m.close()
    assert err == 0
    return sum(b & 1 for b in here) * PAGE


def store(node):
    """The groups store and cache of stats."""
    out = {}
    for line in node.control("stats").splitlines():
        words = line.split()
        if words[0] == "store":
            out[words[1]] = int(words[2])
        elif words[0] == "cache":
            out.update(zip(words[1::2], map(int, words[2::2])))
    return out


def pair(cluster, *options):
    return cluster.connected(2, "cache_size=64M", *options)


def test_what_the_first_node_read_is_served_though_its_kernel_has_dropped_it(cluster):
    """As on a machine in use, where other files fill the page cache between the two reads."""
    want = make_file(cluster, "f", SIZE, 1)
    a, b = pair(cluster)
    assert read(a, "f", SIZE) == want
    drop_kernel_pages(f"{a.path}/f")
    assert read(b, "f", SIZE) == want
    assert copies([a, b], SIZE) <= SHARED
    s = store(a)
    assert s["used"] >= SIZE and s["retrieved"] == 0, s
    wait_for(lambda: store(b)["kernel_held"] * PAGE >= SPARED * SIZE, "the second node leaves them to its kernel")


def test_what_the_second_node_left_to_its_kernel_is_served_too(cluster):
    want = make_file(cluster, "f", SIZE, 1)
    a, b, c = cluster.connected(3, "cache_size=64M")
    assert read(a, "f", SIZE) == want and read(b, "f", SIZE) == want
    wait_for(lambda: store(b)["kernel_held"] * PAGE >= SPARED * SIZE, "its store is free again")
    a.stop()
    assert read(c, "f", SIZE) == want
    assert copies([c], SIZE) <= 1 - SPARED, "most of it comes out of the kernel of b"


def test_a_lone_reader_holds_one_copy_and_a_later_reader_gets_it(cluster):
    want = make_file(cluster, "f", SIZE, 1)
    a, b = pair(cluster, "keep_copies=0")
    assert read(a, "f", SIZE) == want
    # A page leaves the store after the reply that gives it to the kernel.
    wait_for(lambda: store(a)["kernel_held"] * PAGE == SIZE, "all of it has left the store")
    s = store(a)
    assert cached(f"{a.path}/f") >= 0.95 * SIZE
    assert s["used"] + cached(f"{a.path}/f") <= SHARED * SIZE, s
    assert read(a, "f", SIZE) == want
    assert copies([a], SIZE) <= SHARED, "the kernel has it"
    assert read(b, "f", SIZE) == want
    # What the kernel of a dropped in between, if anything, is storage's to send.
    s = store(a)
    assert s["retrieved"] >= SPARED * SIZE // PAGE and s["refuted"] == 0, s
    assert copies([b], SIZE) <= SPARED
    wait_for(lambda: store(a)["used"] <= 64 << 20 >> 4, "a small part of it stays for the next peer")


def test_with_keep_copies_both_stay(cluster):
    want = make_file(cluster, "f", SIZE, 1)
    a, b = pair(cluster, "keep_copies=1")
    assert read(a, "f", SIZE) == want
    s = store(a)
    assert s["used"] >= SIZE and s["left_to_kernel"] == 0, s
    drop_kernel_pages(f"{a.path}/f")
    assert read(b, "f", SIZE) == want and read(a, "f", SIZE) == want
    assert copies([a, b], SIZE) <= SHARED


def test_pages_that_the_kernel_dropped_come_from_storage_and_then_stay(cluster):
    want = make_file(cluster, "f", SIZE, 1)
    a, b = pair(cluster, "keep_copies=0")
    assert read(a, "f", SIZE) == want
    drop_kernel_pages(f"{a.path}/f")
    assert read(b, "f", SIZE) == want
    assert store(a)["lost"] >= SPARED * SIZE // PAGE, store(a)
    b.stop()
    assert read(a, "f", SIZE) == want
    drop_kernel_pages(f"{a.path}/f")
    assert read(a, "f", SIZE) == want
    assert store(a)["came_back"] > 0
    before = copies([a], SIZE)
    drop_kernel_pages(f"{a.path}/f")
    assert read(a, "f", SIZE) == want
    assert copies([a], SIZE) - before <= SPARED, "the store keeps what the kernel drops"


def test_a_page_changed_through_a_mapping_is_not_served(cluster):
    want = make_file(cluster, "f", SIZE, 1)
    a, b = pair(cluster, "keep_copies=0")
    assert read(a, "f", SIZE) == want
    with open(f"{a.path}/f", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[PAGE * 100 + 7] ^= 0xff
        got = read(b, "f", SIZE)
        with open(f"{cluster.export}/f", "rb") as export:
            stored = hashlib.sha256(export.read()).hexdigest()
        # The kernel seldom sends the write by itself meanwhile.
        assert got == want or got == stored
        assert stored != want or store(a)["refuted"] >= 1, store(a)
        m.flush()
    with open(f"{cluster.export}/f", "rb") as f:
        changed = f.read()
    with open(f"{b.path}/f", "rb") as f:
        assert f.read() == changed


def test_what_a_direct_read_got_stays_in_the_store(cluster):
    make_file(cluster, "f", SIZE, 1)
    a = cluster.node("cache_size=64M", "readahead=0", peers=False)
    fd = os.open(f"{a.path}/f", os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, STEP) as buffer:
            for at in range(0, SIZE, STEP):
                assert os.preadv(fd, [buffer], at) == STEP
    finally:
        os.close(fd)
    assert store(a)["used"] == SIZE
    assert store(a)["left_to_kernel"] == 0


def test_files_that_others_have_open_stay_until_they_are_closed(cluster):
    want = make_file(cluster, "f", SIZE, 1)
    a, b = pair(cluster, "keep_copies=0")
    with open(f"{b.path}/f", "rb") as other:
        other.read(1)
        with open(f"{a.path}/f", "rb"):
            assert read(a, "f", SIZE) == want
            assert store(a)["used"] >= SIZE - CHUNK, "peers may ask at any moment"
        assert read(b, "f", SIZE) == want
    assert copies([a, b], SIZE) <= SHARED

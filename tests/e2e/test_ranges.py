# SPDX-License-Identifier: MIT
"""Ranges of files: fallocate, SEEK_DATA and SEEK_HOLE, copy_file_range.

Each script runs in a local directory and in a mount, with equal results.
"""
import ctypes
import errno
import fcntl
import mmap
import os

import pytest

from test_operations import LIBC, get, put, run_everywhere

KEEP, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
FICLONE = 0x40049409
MIB = 1 << 20

LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def fallocate(fd, mode, offset, length):
    if LIBC.fallocate(fd, mode, offset, length):
        raise OSError(ctypes.get_errno(), "fallocate")


def opened(path, flags=os.O_RDWR):
    return os.fdopen(os.open(path, flags | os.O_CREAT), "r+b" if flags & os.O_RDWR else "rb", 0)


def text(n):
    return bytes(range(251)) * (n // 251) + bytes(n % 251)


def allocate_moves_the_end(d):
    with opened(d + "/f") as f:
        f.write(b"x" * 5000)
        fallocate(f.fileno(), 0, 3000, 100000)
        return os.fstat(f.fileno()).st_size, os.pread(f.fileno(), 200000, 0)


def allocate_behind_the_end(d):
    with opened(d + "/f") as f:
        f.write(b"x" * 5000)
        fallocate(f.fileno(), KEEP, 0, MIB)
        f.write(b"y" * 10)
        return os.fstat(f.fileno()).st_size, os.fstat(f.fileno()).st_blocks >= MIB // 512


def punch_what_was_read(d):
    with opened(d + "/f") as f:
        f.write(text(300000))
        before = os.pread(f.fileno(), 300000, 0) == text(300000)
        fallocate(f.fileno(), KEEP | PUNCH, 10001, 150000)
        return before, os.pread(f.fileno(), 300000, 0), get(d + "/f")


def punch_what_is_mapped(d):
    with opened(d + "/f") as f:
        f.write(text(5 * 4096))
        with mmap.mmap(f.fileno(), 5 * 4096) as m:
            m[100:104] = m[4196:4200] = m[3 * 4096:3 * 4096 + 4] = b"here"
            fallocate(f.fileno(), KEEP | PUNCH, 4096, 4096)
            seen = m[:]
            m[4096 + 8:4096 + 12] = b"anew"
            m.flush()
            return seen, m[:], get(d + "/f")


def zero_moves_the_end(d):
    with opened(d + "/f") as f:
        f.write(text(20000))
        os.pread(f.fileno(), 20000, 0)
        fallocate(f.fileno(), ZERO, 15000, 50000)
        fallocate(f.fileno(), ZERO | KEEP, 60000, 50000)
        return os.fstat(f.fileno()).st_size, os.pread(f.fileno(), 200000, 0)


def modes_that_do_not_go_together(d):
    with opened(d + "/f") as f:
        f.write(text(9000))
        fallocate(f.fileno(), PUNCH, 0, 4096)


def allocate_without_length(d):
    with opened(d + "/f") as f:
        fallocate(f.fileno(), 0, 0, 0)


def allocate_by_a_reader(d):
    put(d + "/f", b"x" * 100)
    with opened(d + "/f", os.O_RDONLY) as f:
        fallocate(f.fileno(), 0, 0, 4096)


def find_data_and_holes(d):
    with opened(d + "/f") as f:
        os.pwrite(f.fileno(), b"a" * 8192, MIB)
        os.ftruncate(f.fileno(), 3 * MIB)
        at = [os.lseek(f.fileno(), offset, whence)
              for offset in (0, MIB, MIB + 5000) for whence in (os.SEEK_DATA, os.SEEK_HOLE)]
        for offset in (2 * MIB, 3 * MIB):
            try:
                at.append(os.lseek(f.fileno(), offset, os.SEEK_DATA))
            except OSError as e:
                at.append(e.errno)
        return at


def copy_between_files(d):
    with opened(d + "/a") as a, opened(d + "/b") as b:
        a.write(text(400000))
        b.write(b"b" * 100000)
        os.pread(b.fileno(), 100000, 0)
        n = os.copy_file_range(a.fileno(), b.fileno(), 300000, 1001, 50003)
        return n, os.fstat(b.fileno()).st_size, get(d + "/b")


def copy_within_one_file(d):
    with opened(d + "/a") as a:
        a.write(text(100000))
        n = os.copy_file_range(a.fileno(), a.fileno(), 30000, 10, 60000)
        return n, get(d + "/a")


def copy_over_itself(d):
    with opened(d + "/a") as a:
        a.write(text(100000))
        os.copy_file_range(a.fileno(), a.fileno(), 30000, 10, 20000)


def copy_to_the_end_of_an_appended_file(d):
    put(d + "/a", b"a" * 100)
    with opened(d + "/a") as a, opened(d + "/b", os.O_RDWR | os.O_APPEND) as b:
        os.copy_file_range(a.fileno(), b.fileno(), 100, 0, 0)


def copy_what_is_mapped(d):
    with opened(d + "/a") as a, opened(d + "/b") as b:
        a.write(text(8192))
        b.write(b"b" * 8192)
        with mmap.mmap(a.fileno(), 8192) as m, mmap.mmap(b.fileno(), 8192) as n:
            m[50:54] = b"here"
            n[8000:8004] = b"stay"
            os.copy_file_range(a.fileno(), b.fileno(), 4096, 0, 0)
            return n[:]


def copy_to_the_end(d):
    with opened(d + "/a") as a, opened(d + "/b") as b:
        a.write(text(10000))
        return [os.copy_file_range(a.fileno(), b.fileno(), 100000, at, 0) for at in (0, 10000)]


SCRIPTS = [allocate_moves_the_end, allocate_behind_the_end, punch_what_was_read,
           punch_what_is_mapped, zero_moves_the_end, modes_that_do_not_go_together,
           allocate_without_length, allocate_by_a_reader, find_data_and_holes, copy_between_files,
           copy_within_one_file, copy_over_itself, copy_to_the_end_of_an_appended_file,
           copy_what_is_mapped, copy_to_the_end]


def test_ranges_do_what_they_do_locally(cluster):
    run_everywhere(cluster, cluster.node(peers=False), SCRIPTS)


def test_what_fuse_keeps_from_us(cluster):
    """The kernel's FUSE does not pass these on, as the manual says."""
    node = cluster.node(peers=False)
    put(node.path + "/a", text(3 * 4096))
    with opened(node.path + "/a") as a, opened(node.path + "/b") as b:
        for mode in (COLLAPSE, INSERT):
            with pytest.raises(OSError) as e:
                fallocate(a.fileno(), mode, 4096, 4096)
            assert e.value.errno == errno.EOPNOTSUPP
        with pytest.raises(OSError) as e:
            fcntl.ioctl(b.fileno(), FICLONE, a.fileno())
        assert e.value.errno == errno.EOPNOTSUPP
    assert get(node.path + "/a") == text(3 * 4096)


def test_a_copy_does_not_cross_the_network(cluster):
    node = cluster.node(peers=False)
    size = 40 * MIB
    put(cluster.export + "/a", os.urandom(size))
    with opened(node.path + "/a") as a, opened(node.path + "/b") as b:
        before, done = node.stats()["traffic"]["storage"], 0
        while done < size:
            done += os.copy_file_range(a.fileno(), b.fileno(), size - done)
        after = node.stats()["traffic"]["storage"]
    assert get(cluster.export + "/b") == get(cluster.export + "/a")
    for way in ("tx_bytes", "rx_bytes"):
        assert after[way] - before[way] < MIB


def test_another_node_sees_what_was_punched(cluster):
    a, b = cluster.connected(2)
    put(a.path + "/f", text(MIB))
    assert get(b.path + "/f") == text(MIB)
    with opened(a.path + "/f") as f:
        fallocate(f.fileno(), KEEP | PUNCH, 4096, 500000)
        f.flush()
    expected = text(MIB)[:4096] + bytes(500000) + text(MIB)[504096:]
    for node in (a, b):
        assert get(node.path + "/f") == expected
    with opened(b.path + "/f") as f, opened(b.path + "/g") as g:
        while os.copy_file_range(f.fileno(), g.fileno(), MIB):
            pass
    assert get(a.path + "/g") == expected


def test_no_space_to_allocate(cluster):
    """The export is a small tmpfs of the test's own."""
    if LIBC.mount(b"none", os.fsencode(cluster.export), b"tmpfs", 0, b"size=1m"):
        pytest.skip("cannot mount tmpfs: " + os.strerror(ctypes.get_errno()))
    cluster.mounts.insert(0, cluster.export)
    node = cluster.node(peers=False)
    put(node.path + "/f", b"kept" * 1000)
    with opened(node.path + "/f") as f:
        with pytest.raises(OSError) as e:
            fallocate(f.fileno(), 0, 0, 4 * MIB)
        assert e.value.errno == errno.ENOSPC
        assert os.fstat(f.fileno()).st_size == 4000
        assert os.pread(f.fileno(), 8000, 0) == b"kept" * 1000
    assert get(node.path + "/f") == b"kept" * 1000

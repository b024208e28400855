# SPDX-License-Identifier: MIT
"""Files without a name (O_TMPFILE) on a FUSE mount.

The area tmpfile of coop-posix (test_posix.py) checks their life cycle; these tests check what the
area cannot see: the export, umasks and default ACLs, and many such files at once.
"""
import errno
import os
import subprocess
import threading

import pytest

from cluster import wait_for
from test_exports import error_of
from test_permissions import read


@pytest.fixture
def mounted(cluster):
    return cluster.export, cluster.node("allow_other", peers=False)


def nameless(directory, flags=os.O_RDWR, mode=0o666):
    return os.open(directory, os.O_TMPFILE | flags, mode)


def kept(export):
    """The links that the daemon makes to files without a name, to find them after a restart."""
    try:
        return os.listdir(f"{export}/.coopfs-orphans")
    except FileNotFoundError:
        return []


def name(fd, path):
    # src_dir_fd makes Python call linkat(2) with AT_SYMLINK_FOLLOW; an absolute path ignores it.
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)


def test_it_gets_a_name(mounted):
    export, node = mounted
    fd = nameless(node.path)
    try:
        assert os.write(fd, b"text") == 4 and os.fstat(fd).st_nlink == 0
        assert os.listdir(node.path) == []
        name(fd, f"{node.path}/f")
        assert os.fstat(fd).st_nlink == 1 and read(f"{export}/f") == b"text"
        assert os.pwrite(fd, b"T", 0) == 1
    finally:
        os.close(fd)
    assert read(f"{export}/f") == b"Text" and read(f"{node.path}/f") == b"Text"


def test_one_that_no_name_can_be_given(mounted):
    export, node = mounted
    fd = nameless(node.path, os.O_RDWR | os.O_EXCL)
    try:
        assert error_of(name, fd, f"{node.path}/f") == errno.ENOENT
        assert os.write(fd, b"text") == 4 and os.pread(fd, 9, 0) == b"text"
    finally:
        os.close(fd)
    wait_for(lambda: kept(export) == [], "the daemon has heard of the close")


def test_nothing_is_left_of_it(mounted):
    export, node = mounted

    files = [nameless(node.path) for _ in range(20)]
    for fd in files:
        os.write(fd, b"x" * 4096)
    assert len(kept(export)) == 20
    for fd in files:
        os.close(fd)
    wait_for(lambda: kept(export) == [], "the daemon has removed them")
    assert os.listdir(node.path) == []


def test_umask_and_default_acl(mounted):
    export, node = mounted
    os.mkdir(f"{export}/acl")
    done = subprocess.run(["setfacl", "-d", "-m", "u::rw,g::rw,o::-", f"{export}/acl"])
    if done.returncode:
        pytest.skip("needs setfacl and a file system with ACLs below /tmp")
    before = os.umask(0o027)
    try:
        for where, mode in ((node.path, 0o640), (f"{node.path}/acl", 0o660)):
            fd = nameless(where)
            assert os.fstat(fd).st_mode & 0o7777 == mode, where
            os.close(fd)
    finally:
        os.umask(before)


def test_many_at_once(mounted):
    """The same threads read other requests from the same device meanwhile."""
    export, node = mounted
    faults = []

    def work(me):
        try:
            for i in range(20):
                fd = nameless(node.path)
                os.write(fd, f"{me} {i}".encode())
                name(fd, f"{node.path}/{me}-{i}")
                os.close(fd)
                with open(f"{node.path}/{me}-{i}-named", "w") as f:
                    f.write(f"{me} {i}")
        except OSError as e:
            faults.append(e)
    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults
    for me in range(8):
        for i in range(20):
            assert read(f"{export}/{me}-{i}") == f"{me} {i}".encode()
            assert read(f"{export}/{me}-{i}-named") == f"{me} {i}".encode()
    node.stop()  # ends cleanly, although its workers block in reads of the device

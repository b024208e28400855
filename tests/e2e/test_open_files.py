# SPDX-License-Identifier: MIT
"""An open file lives until its last close, whatever happens to its names."""
import os

import pytest

from cluster import wait_for


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def replaced(a, b, export):
    put(f"{a}/other", b"another")
    os.rename(f"{a}/other", f"{a}/file")


def removed(a, b, export):
    os.unlink(f"{a}/file")


def replaced_elsewhere(a, b, export):
    put(f"{b}/other", b"another")
    os.rename(f"{b}/other", f"{b}/file")


def removed_elsewhere(a, b, export):
    os.unlink(f"{b}/file")


WAYS = [replaced, removed, replaced_elsewhere, removed_elsewhere]


def check(fd, data):
    wait_for(lambda: os.fstat(fd).st_nlink == 0, "the file has no name")
    assert os.fstat(fd).st_size == len(data)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert os.pread(fd, len(data) + 1, 0) == data


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("restart", [None, "stop", "kill"])
def test_open_file_outlives_its_names(cluster, way, restart):
    a, b = [cluster.node(peers=False).path for _ in range(2)]
    data = os.urandom(300_000)
    put(f"{a}/file", data)
    fd = os.open(f"{a}/file", os.O_RDWR)
    assert os.pread(fd, 10, 0) == data[:10]
    way(a, b, cluster.export)
    if restart:
        getattr(cluster.daemon.process, restart)()
        cluster.daemon.start()
    check(fd, data)
    os.pwrite(fd, b"new", 0)
    os.fsync(fd)
    os.ftruncate(fd, 200_000)
    check(fd, b"new" + data[3:200_000])
    os.fchmod(fd, 0o600)
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    assert ".coopfs-orphans" not in os.listdir(a)
    with pytest.raises(FileNotFoundError):
        os.stat(f"{a}/.coopfs-orphans")
    with pytest.raises(PermissionError):
        os.mkdir(f"{a}/.coopfs-orphans")
    os.close(fd)
    if restart is None:
        kept = f"{cluster.export}/.coopfs-orphans"
        wait_for(lambda: not os.path.exists(kept), "nothing is kept of the file")

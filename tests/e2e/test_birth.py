# SPDX-License-Identifier: MIT
"""The birth time of statx(2) on a FUSE mount: the one that the export's file system has."""
import os
import platform
import subprocess

import pytest


def born(*paths):
    """The birth time that stat(1) prints for each path, "-" if it has none."""
    return subprocess.run(["stat", "-c", "%w", *paths], check=True, capture_output=True,
                          text=True).stdout.splitlines()


def same_stat(a, b):
    a, b = os.stat(a), os.stat(b)
    return all(getattr(a, k) == getattr(b, k) for k in
               ("st_mode", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks", "st_blksize",
                "st_rdev", "st_ino", "st_mtime_ns", "st_ctime_ns"))


@pytest.fixture(params=["", "strict", "nolease"])
def mounted(cluster, request):
    release = tuple(int(n) for n in platform.release().split(".")[:2])
    if release < (6, 6):
        pytest.skip("needs Linux 6.6, which asks FUSE for it")
    if born(cluster.export) == ["-"]:
        pytest.skip("needs a file system with birth times below /tmp")
    options = ["allow_other"] + ([request.param] if request.param else [])
    return cluster.export, cluster.node(*options, peers=False).path


def test_it_is_that_of_the_export(mounted):
    export, path = mounted
    with open(f"{path}/f", "w") as f:
        f.write("text")
    os.mkdir(f"{path}/d")
    os.symlink("f", f"{path}/l")
    os.mknod(f"{path}/dev", 0o600 | 0o020000, os.makedev(5, 300))
    names = ["f", "d", "l", "dev"]
    there = born(*(f"{export}/{n}" for n in names))
    assert "-" not in there
    assert born(*(f"{path}/{n}" for n in names)) == there
    for n in names:
        assert same_stat(f"{path}/{n}", f"{export}/{n}"), n
    # Later changes of the file leave it alone.
    with open(f"{path}/f", "a") as f:
        f.write("more")
        f.flush()
        assert born(f"{path}/f") == there[:1]
    os.utime(f"{path}/f", (1, 1))
    os.rename(f"{path}/f", f"{path}/d/g")
    assert born(f"{path}/d/g") == born(f"{export}/d/g") == there[:1]
    assert same_stat(f"{path}/d/g", f"{export}/d/g")


def test_each_file_has_its_own(mounted):
    export, path = mounted
    with open(f"{path}/old", "w") as f:
        f.write("old")
    old = born(f"{path}/old")
    with open(f"{path}/new", "w") as f:
        f.write("new")
    os.rename(f"{path}/new", f"{path}/old")
    assert born(f"{path}/old") == born(f"{export}/old") and born(f"{path}/old") >= old
    assert os.path.getsize(f"{path}/old") == 3


def test_files_of_the_mount_itself_have_none(mounted):
    _, path = mounted
    assert born(f"{path}/.coopfs", f"{path}/.coopfs/stats") == ["-", "-"]

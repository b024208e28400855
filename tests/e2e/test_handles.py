# SPDX-License-Identifier: MIT
"""Files by handle (name_to_handle_at(2), open_by_handle_at(2)) on a FUSE mount.

A handle must lead to the file it was made from, or to ESTALE, whether or not the kernel
has forgotten that file meanwhile. The area handles of coop-posix (test_posix.py) checks
the rest.
"""
import ctypes
import errno
import os

from cluster import wait_for

AT_FDCWD = -100
AT_SYMLINK_FOLLOW = 0x400
MAX_HANDLE_SZ = 128
MS_REMOUNT = 32
libc = ctypes.CDLL(None, use_errno=True)


class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int),
                ("room", ctypes.c_ubyte * MAX_HANDLE_SZ)]


def handle_of(path):
    handle, mount = Handle(bytes=MAX_HANDLE_SZ), ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, os.fsencode(path), ctypes.byref(handle),
                              ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    return handle


def by_handle(node, handle, flags=os.O_RDONLY):
    """Opens a file of the node's mount; returns the descriptor or -errno."""
    root = os.open(node.path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fd = libc.open_by_handle_at(root, ctypes.byref(handle), flags | os.O_CLOEXEC)
        return fd if fd >= 0 else -ctypes.get_errno()
    finally:
        os.close(root)


def read(node, handle):
    """Returns the file's contents or -errno."""
    fd = by_handle(node, handle)
    if fd < 0:
        return fd
    with os.fdopen(fd, "rb") as f:
        return f.read()


def files_held(node):
    info = dict(line.split(" ", 1) for line in node.control("info").splitlines())
    return int(info["files"].split()[0])


def make_kernel_forget(node):
    """A remount drops the names of one mount alone; other tests count on what the kernel knows of theirs."""
    def only_the_root_is_left():
        if libc.mount(None, os.fsencode(node.path), None, MS_REMOUNT, None):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), node.path)
        return files_held(node) == 1
    wait_for(only_the_root_is_left, "the kernel has forgotten all files")


def put(path, text):
    with open(path, "wb") as f:
        f.write(text)


def test_a_file_that_the_kernel_has_forgotten(cluster):
    node, other = cluster.node(peers=False), cluster.node(peers=False)
    os.makedirs(f"{cluster.export}/d/sub")
    put(f"{cluster.export}/d/sub/f", b"text")
    file, directory = handle_of(f"{node.path}/d/sub/f"), handle_of(f"{node.path}/d/sub")
    make_kernel_forget(node)
    assert read(node, file) == b"text"
    make_kernel_forget(node)
    fd = by_handle(node, directory, os.O_DIRECTORY)
    assert fd >= 0, os.strerror(-fd)
    try:  # the kernel has put it into its place in the tree
        assert os.readlink(f"/proc/self/fd/{fd}") == f"{node.path}/d/sub"
        assert os.listdir(fd) == ["f"]
    finally:
        os.close(fd)
    # The name still leads to the same file, so a new handle equals the first one.
    again = handle_of(f"{node.path}/d/sub/f")
    assert bytes(again.room)[:again.bytes] == bytes(file.room)[:file.bytes]
    # The handle finds the file wherever the other node has put it.
    make_kernel_forget(node)
    os.rename(f"{other.path}/d/sub/f", f"{other.path}/g")
    os.rename(f"{other.path}/d/sub", f"{other.path}/moved")
    assert read(node, file) == b"text"
    fd = by_handle(node, directory, os.O_DIRECTORY)
    assert fd >= 0, os.strerror(-fd)
    try:
        assert os.readlink(f"/proc/self/fd/{fd}") == f"{node.path}/moved"
    finally:
        os.close(fd)


def test_a_file_that_is_removed_is_stale(cluster):
    node, other = cluster.node(peers=False), cluster.node(peers=False)
    handles = []
    for name in ("here", "there"):
        put(f"{node.path}/{name}", b"text")
        handles.append(handle_of(f"{node.path}/{name}"))
    os.unlink(f"{node.path}/here")
    make_kernel_forget(node)
    os.unlink(f"{other.path}/there")
    put(f"{other.path}/new", b"new")  # may get the inode number of either
    with open(f"{node.path}/new", "rb") as f:
        assert f.read() == b"new"
    make_kernel_forget(node)
    assert [read(node, h) for h in handles] == [-errno.ESTALE] * 2


def test_a_handle_of_an_earlier_mount_is_stale(cluster):
    node = cluster.node(peers=False)
    put(f"{cluster.export}/f", b"text")
    before = handle_of(f"{node.path}/f")
    assert read(node, before) == b"text"
    node.stop()
    node.start()
    assert read(node, handle_of(f"{node.path}/f")) == b"text"
    assert read(node, before) == -errno.ESTALE


def test_the_files_of_the_mount_itself(cluster):
    node = cluster.node(peers=False)
    handle = handle_of(f"{node.path}/.coopfs/options")
    make_kernel_forget(node)
    assert b"readahead=" in read(node, handle)
    made_up = Handle.from_buffer_copy(handle)
    for number in (0, 3, 9, 500, 70000):
        made_up.room[4:8] = number.to_bytes(4, "little")
        fd = by_handle(node, made_up, os.O_PATH)
        if fd >= 0:  # the number of another of these files
            os.close(fd)
        assert fd >= 0 or fd == -errno.ESTALE, (number, fd)
    assert node.process.running()

# SPDX-License-Identifier: MIT
"""Every file operation does through the mount what it does in a local directory.

Each script runs once in each place; its value or errno and the tree that it leaves must be
equal.
"""
import ctypes
import errno
import fcntl
import mmap
import os
import stat

import pytest

from cluster import wait_for

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCHANGE = -100, 1, 2


def put(path, data=b"data"):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def renameat2(old, new, flags):
    if LIBC.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


def tree(root):
    """Everything below root, without what differs by place or time."""
    out = {}
    for directory, dirs, names in os.walk(root):
        for name in dirs + names:
            path = os.path.join(directory, name)
            st = os.lstat(path)
            what = os.readlink(path) if stat.S_ISLNK(st.st_mode) else \
                get(path) if stat.S_ISREG(st.st_mode) else None
            size = None if stat.S_ISDIR(st.st_mode) else st.st_size
            links = None if stat.S_ISDIR(st.st_mode) else st.st_nlink
            out[os.path.relpath(path, root)] = (st.st_mode, links, size, st.st_uid, st.st_gid, what)
    return out


def create_and_read(d):
    put(d + "/f", b"x" * 5000)
    return get(d + "/f"), os.stat(d + "/f").st_size


def create_exclusive(d):
    put(d + "/f")
    os.open(d + "/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)


def create_honours_umask(d):
    old = os.umask(0o027)
    try:
        os.close(os.open(d + "/f", os.O_CREAT | os.O_WRONLY, 0o666))
        os.mkdir(d + "/d", 0o777)
    finally:
        os.umask(old)


def open_missing(d):
    open(d + "/none")


def open_truncates(d):
    put(d + "/f", b"x" * 9000)
    put(d + "/f", b"short")
    return get(d + "/f"), os.stat(d + "/f").st_size


def overwrite_in_the_middle(d):
    put(d + "/f", bytes(range(256)) * 64)
    with open(d + "/f", "r+b") as f:
        f.read(10)
        f.seek(5000)
        f.write(b"hello")
        f.flush()
        f.seek(4990)
        return f.read(30)


def hole(d):
    with open(d + "/f", "wb") as f:
        f.seek(100000)
        f.write(b"end")
    return get(d + "/f") == b"\0" * 100000 + b"end"


def append(d):
    put(d + "/f", b"one")
    with open(d + "/f", "ab") as f:
        f.write(b"two")
    fd = os.open(d + "/f", os.O_RDWR | os.O_APPEND)
    os.pread(fd, 100, 0)
    os.write(fd, b"three")
    seen = os.pread(fd, 100, 0)
    os.close(fd)
    return seen


def append_flag_taken_off(d):
    put(d + "/f", b"0123456789")
    fd = os.open(d + "/f", os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"A")
    fcntl.fcntl(fd, fcntl.F_SETFL, 0)
    os.pwrite(fd, b"x", 1)
    before = get(d + "/f")
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    os.pwrite(fd, b"B", 0)
    os.fsync(fd)
    os.close(fd)
    return before, get(d + "/f")


def append_flag_put_on(d):
    put(d + "/f", b"0123456789")
    with open(d + "/f", "r+b", buffering=0) as f:
        fcntl.fcntl(f, fcntl.F_SETFL, os.O_APPEND)
        os.pwrite(f.fileno(), b"A", 1)
        f.write(b"B")
        fcntl.fcntl(f, fcntl.F_SETFL, 0)
        os.pwrite(f.fileno(), b"x", 1)
        os.fsync(f.fileno())
    return get(d + "/f")


def stores_into_an_appended_file(d):
    put(d + "/f", b"." * 10000)
    fd = os.open(d + "/f", os.O_RDWR | os.O_APPEND)
    with mmap.mmap(fd, 10000) as m:
        m[5000:5006] = b"stored"
        m.flush()
        os.write(fd, b"end")
        m[1:3] = b"in"
    os.close(fd)
    return get(d + "/f")


def truncate_down_and_up(d):
    put(d + "/f", b"y" * 10000)
    os.truncate(d + "/f", 4100)
    os.truncate(d + "/f", 9000)
    seen = get(d + "/f")
    with open(d + "/f", "r+b") as f:
        f.truncate(5)
        return seen, f.read(), os.fstat(f.fileno()).st_size


def chmod_and_utime(d):
    put(d + "/f")
    os.chmod(d + "/f", 0o4751)
    os.utime(d + "/f", ns=(1_000_000_001, 2_000_000_003))
    st = os.stat(d + "/f")
    return oct(st.st_mode), st.st_atime_ns, st.st_mtime_ns


def utime_now(d):
    put(d + "/f")
    os.utime(d + "/f", (1, 1))
    os.utime(d + "/f")
    return os.stat(d + "/f").st_mtime > 1000


def chown(d):
    put(d + "/f")
    os.chown(d + "/f", 12345, 54321)
    st = os.stat(d + "/f")
    return st.st_uid, st.st_gid


def directories(d):
    os.makedirs(d + "/a/b/c")
    put(d + "/a/b/f")
    for name in ("a/b/c", "a/b"):
        try:
            os.rmdir(d + "/" + name)
        except OSError as e:
            return e.errno, sorted(os.listdir(d + "/a/b"))


def mkdir_twice(d):
    os.mkdir(d + "/a")
    os.mkdir(d + "/a")


def rmdir_of_a_file(d):
    put(d + "/f")
    os.rmdir(d + "/f")


def unlink_of_a_directory(d):
    os.mkdir(d + "/a")
    os.unlink(d + "/a")


def lookup_below_a_file(d):
    put(d + "/f")
    os.stat(d + "/f/x")


def name_too_long(d):
    put(d + "/" + "n" * 256)


def longest_name(d):
    put(d + "/" + "n" * 255)


def unusual_names(d):
    names = ["with space", "new\nline", "\x80\xff".encode("latin-1"), "ünï", "-rf", "a,b\\c"]
    for n in names:
        put(os.path.join(os.fsencode(d), os.fsencode(n)))
    return sorted(os.listdir(os.fsencode(d)))


def rename_replaces(d):
    put(d + "/a", b"a")
    put(d + "/b", b"b")
    os.rename(d + "/a", d + "/b")
    return get(d + "/b"), os.listdir(d)


def rename_across_directories(d):
    os.makedirs(d + "/x/y")
    put(d + "/x/f", b"f")
    os.rename(d + "/x/f", d + "/g")
    os.rename(d + "/x/y", d + "/z")


def rename_noreplace(d):
    put(d + "/a")
    put(d + "/b")
    renameat2(d + "/a", d + "/b", RENAME_NOREPLACE)


def rename_exchange(d):
    put(d + "/a", b"a")
    put(d + "/b", b"b")
    renameat2(d + "/a", d + "/b", RENAME_EXCHANGE)
    return get(d + "/a"), get(d + "/b")


def rename_into_itself(d):
    os.makedirs(d + "/x/y")
    os.rename(d + "/x", d + "/x/y/z")


def rename_onto_full_directory(d):
    os.makedirs(d + "/x")
    os.makedirs(d + "/y/z")
    os.rename(d + "/x", d + "/y")


def hard_link(d):
    put(d + "/a", b"one")
    os.link(d + "/a", d + "/b")
    put(d + "/b", b"two")
    return get(d + "/a"), os.stat(d + "/a").st_nlink, os.path.samefile(d + "/a", d + "/b")


def link_over(d):
    put(d + "/a")
    put(d + "/b")
    os.link(d + "/a", d + "/b")


def symbolic_links(d):
    put(d + "/f", b"target")
    os.symlink("f", d + "/l")
    os.symlink("nowhere/" + "x" * 200, d + "/dangling")
    return get(d + "/l"), os.readlink(d + "/dangling"), os.lstat(d + "/l").st_size


def symlink_loop(d):
    os.symlink("b", d + "/a")
    os.symlink("a", d + "/b")
    open(d + "/a")


def readlink_of_a_file(d):
    put(d + "/f")
    os.readlink(d + "/f")


def unlinked_but_open(d):
    with open(d + "/f", "w+b") as f:
        f.write(b"before")
        f.flush()
        os.unlink(d + "/f")
        f.write(b" and after")
        f.flush()
        f.seek(0)
        return f.read(), os.fstat(f.fileno()).st_nlink, os.path.exists(d + "/f")


def renamed_over_while_open(d):
    put(d + "/old", b"old content")
    put(d + "/new", b"new")
    with open(d + "/old", "rb") as f:
        os.rename(d + "/new", d + "/old")
        return f.read(), get(d + "/old")


def mmap_reads(d):
    put(d + "/f", b"m" * 70000 + b"tail")
    with open(d + "/f", "rb") as f, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        return m[-4:], len(m)


def mmap_writes(d):
    put(d + "/f", b"a" * 9000)
    with open(d + "/f", "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
        m[4090:4100] = b"0123456789"
        m.flush()
    return get(d + "/f")[4085:4105]


def read_only_descriptor(d):
    put(d + "/f")
    fd = os.open(d + "/f", os.O_RDONLY)
    try:
        os.write(fd, b"x")
    finally:
        os.close(fd)


def large_file_offsets(d):
    with open(d + "/f", "wb") as f:
        f.seek(5 << 30)
        f.write(b"far")
    with open(d + "/f", "rb") as f:
        f.seek(5 << 30)
        far = f.read()
    os.truncate(d + "/f", 3)
    return far


def fsync_and_direct(d):
    with open(d + "/f", "wb") as f:
        f.write(b"z" * 8192)
        f.flush()
        os.fsync(f.fileno())
        os.fdatasync(f.fileno())
    return get(d + "/f") == b"z" * 8192


def many_entries(d):
    for i in range(700):
        put(d + "/entry-with-a-rather-long-name-%04d" % i, b"")
    seen = os.listdir(d)
    for name in seen:
        os.unlink(d + "/" + name)
    return len(seen), len(set(seen)), os.listdir(d)


def dot_and_dotdot(d):
    class dirent(ctypes.Structure):
        _fields_ = [("ino", ctypes.c_uint64), ("off", ctypes.c_int64), ("len", ctypes.c_uint16),
                    ("type", ctypes.c_uint8), ("name", ctypes.c_char * 256)]
    LIBC.opendir.restype = LIBC.readdir.argtypes = None
    LIBC.opendir.restype = ctypes.c_void_p
    LIBC.readdir.argtypes = LIBC.closedir.argtypes = [ctypes.c_void_p]
    LIBC.readdir.restype = ctypes.POINTER(dirent)
    put(d + "/f")
    handle = LIBC.opendir(os.fsencode(d))
    names = []
    while entry := LIBC.readdir(handle):
        names.append((entry.contents.name, entry.contents.type))
    LIBC.closedir(handle)
    return sorted(names)


def access(d):
    put(d + "/f")
    os.chmod(d + "/f", 0o644)
    return [os.access(d + "/f", m) for m in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)], \
        os.access(d + "/none", os.F_OK), os.access(d, os.X_OK)


def copy_of_a_read_only_file(d):
    fd = os.open(d + "/f", os.O_CREAT | os.O_RDWR, 0o444)
    os.write(fd, b"contents")
    os.ftruncate(fd, 3)
    os.close(fd)
    return get(d + "/f")


SCRIPTS = [f for f in list(globals().values())
           if callable(f) and getattr(f, "__module__", "") == __name__
           and f.__name__ not in ("put", "get", "renameat2", "tree")]


def outcome(script, where):
    try:
        return script(where)
    except OSError as e:
        return errno.errorcode[e.errno]


def run_everywhere(cluster, node, scripts):
    for script in scripts:
        local, remote = (f"{base}/{script.__name__}" for base in (cluster.file("local"), node.path))
        os.makedirs(local)
        os.mkdir(remote)
        expected = outcome(script, local), tree(local)
        assert (outcome(script, remote), tree(remote)) == expected, script.__name__
        assert tree(f"{cluster.export}/{script.__name__}") == expected[1], script.__name__


@pytest.mark.parametrize("options", [[], ["allow_other"], ["default_permissions", "cache_size=4M"]])
def test_operations_do_what_they_do_locally(cluster, options):
    run_everywhere(cluster, cluster.node(*options, peers=False), SCRIPTS)


def test_operations_beside_peers(cluster):
    run_everywhere(cluster, cluster.connected(2)[0], SCRIPTS)


def test_fsync_of_a_directory_asks_storage(cluster):
    """A program that has made names relies on the fsync, so it must not succeed by doing nothing."""
    node = cluster.node(peers=False)
    os.mkdir(node.path + "/d")
    fd = os.open(node.path + "/d", os.O_RDONLY)
    try:
        put(node.path + "/d/f")
        before = node.stats()["traffic"]["storage"]["tx_bytes"]
        os.fsync(fd)
        assert node.stats()["traffic"]["storage"]["tx_bytes"] > before
    finally:
        os.close(fd)


def test_statfs(cluster):
    node = cluster.node(peers=False)

    def fixed(path):
        s = os.statvfs(path)
        return s.f_blocks * s.f_frsize, s.f_files, s.f_namemax
    # Where the number of inodes follows from free space, it changes with it.
    wait_for(lambda: fixed(node.path) == fixed(cluster.export), "the same figures")


def test_no_space_passes_through(cluster):
    """The export is a small tmpfs of the test's own."""
    if LIBC.mount(b"none", os.fsencode(cluster.export), b"tmpfs", 0, b"size=1m"):
        pytest.skip("cannot mount tmpfs: " + os.strerror(ctypes.get_errno()))
    cluster.mounts.insert(0, cluster.export)
    node = cluster.node(peers=False)
    with pytest.raises(OSError) as e:
        put(node.path + "/f", b"x" * (4 << 20))
    assert e.value.errno == errno.ENOSPC
    os.unlink(node.path + "/f")
    # The kernel reports the close after close() has returned; until then the file is in use.
    wait_for(lambda: os.statvfs(cluster.export).f_bavail > 0, "the space is free again")
    put(node.path + "/g", b"fits")
    assert get(node.path + "/g") == b"fits"
    os.unlink(node.path + "/g")

# SPDX-License-Identifier: MIT
"""A name leads to the file that it means now, also when another node has just changed that.

Two nodes that use leases and trust names for a while. An open never gets a file that has lost the
name, and never an error while the name means some file.
"""
import ctypes
import errno
import fcntl
import multiprocessing
import os
import platform
import time

import pytest

from cluster import SERVER, wait_for

LIBC = ctypes.CDLL(None, use_errno=True)
AT_FDCWD, RENAME_EXCHANGE = -100, 2
# Older kernels cannot be told to ask for a name again: there stat(2) may be late.
EXPIRES = tuple(int(n) for n in platform.release().split(".")[:2]) >= (6, 2)


def put(path, data):
    with open(path, "wb") as f:
        f.write(data)


def get(path):
    with open(path, "rb") as f:
        return f.read()


def exchange(one, other):
    if LIBC.renameat2(AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE):
        raise OSError(ctypes.get_errno(), "renameat2")


def outcome(call, *args):
    """What the call returns, or the name of its error."""
    try:
        return call(*args)
    except OSError as e:
        return errno.errorcode[e.errno]


# Each makes the name f mean a file with these bytes; d is where it works.

def rename_over(d, data):
    put(d + "/f.new", data)
    os.rename(d + "/f.new", d + "/f")


def move_away(d, data):
    os.rename(d + "/f", d + "/f.old")
    put(d + "/f", data)


def take_other(d, data):
    put(d + "/other", data)
    exchange(d + "/f", d + "/other")


def unlink_and_create(d, data):
    os.unlink(d + "/f")
    put(d + "/f", data)


def link_anew(d, data):
    """The old file keeps another name."""
    if not os.path.exists(d + "/kept"):
        os.link(d + "/f", d + "/kept")
    put(d + "/source", data)
    os.unlink(d + "/f")
    os.link(d + "/source", d + "/f")
    os.unlink(d + "/source")


CHANGES = [rename_over, move_away, take_other, unlink_and_create, link_anew]


@pytest.mark.parametrize("change", CHANGES)
def test_open_gets_the_file_of_the_name(cluster, change):
    a, b = cluster.connected(2)
    for node in (a, b):
        os.makedirs(node.path + "/d", exist_ok=True)
    put(a.path + "/d/f", b"first")
    for i in range(20):
        data = b"%d" % i
        with open(b.path + "/d/f", "rb") as keep:  # the kernel has the name and the file
            keep.read()
            change(a.path + "/d", data)
            if EXPIRES and i % 2:
                assert os.stat(b.path + "/d/f").st_ino == os.stat(a.path + "/d/f").st_ino, i
            assert get(b.path + "/d/f") == data, i


@pytest.mark.parametrize("options", [["nolease"], ["bundles=off"], ["strict"]])
def test_open_gets_the_file_of_the_name_on_other_mounts(cluster, options):
    a, b = cluster.connected(2, *options)
    put(a.path + "/f", b"first")
    for i in range(10):
        with open(b.path + "/f", "rb") as keep:
            keep.read()
            CHANGES[i % len(CHANGES)](a.path, b"%d" % i)
            assert get(b.path + "/f") == b"%d" % i, i


def test_what_is_appended_after_a_rename_stays(cluster):
    a, b = cluster.connected(2)
    put(a.path + "/f", b"old\n")
    for i in range(10):
        with open(b.path + "/f", "rb") as keep:
            keep.read()
            rename_over(a.path, b"new %d\n" % i)
            with open(b.path + "/f", "ab") as f:
                f.write(b"added\n")
                f.flush()
                os.fsync(f.fileno())
        assert get(a.path + "/f") == b"new %d\nadded\n" % i


def test_truncating_open_spares_the_replaced_file(cluster):
    a, b = cluster.connected(2)
    put(a.path + "/f", b"old")
    with open(b.path + "/f", "rb") as keep:
        rename_over(a.path, b"new")
        put(b.path + "/f", b"newest")
        assert keep.read() == b"old"
    assert get(a.path + "/f") == b"newest"


def test_directory_that_another_took_the_place_of(cluster):
    a, b = cluster.connected(2)
    for name in ("d", "e"):
        os.mkdir(f"{a.path}/{name}")
        put(f"{a.path}/{name}/f", name.encode())
    fd = os.open(b.path + "/d", os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert get(b.path + "/d/f") == b"d"
        exchange(a.path + "/d", a.path + "/e")
        assert os.fstat(fd).st_ino == os.stat(a.path + "/e").st_ino
        again = os.open(b.path + "/d", os.O_RDONLY | os.O_DIRECTORY)
        try:
            assert os.fstat(again).st_ino == os.stat(a.path + "/d").st_ino
        finally:
            os.close(again)
        if EXPIRES:
            assert get(b.path + "/d/f") == b"e"
    finally:
        os.close(fd)


def reads(path, until, found):
    """Opens, reads and stats the name until the time; puts the errors and torn contents."""
    wrong, rounds = [], 0
    while time.monotonic() < until:
        rounds += 1
        try:
            data = get(path)
            if data != b"x" * len(data) or not data:
                wrong.append(data)
            os.stat(path)
        except OSError as e:
            wrong.append(errno.errorcode[e.errno])
    found.put((rounds, wrong[:10]))


def test_no_error_while_a_name_is_replaced(cluster):
    a, b = cluster.connected(2, "allow_other", "default_permissions")
    put(a.path + "/f", b"x")
    until = time.monotonic() + 5
    found = multiprocessing.Queue()
    readers = [multiprocessing.Process(target=reads, args=(node.path + "/f", until, found)) for node in (a, b)]
    for p in readers:
        p.start()
    n = 0
    while time.monotonic() < until:
        n += 1
        rename_over(a.path, b"x" * (1 + n % 5000))
    results = [found.get() for _ in readers]
    for p in readers:
        p.join()
    assert n and all(rounds and not wrong for rounds, wrong in results), (n, results)


def removed_by(cluster, who):
    """Two nodes; the one that has a file open, and the one that removes it."""
    a, b = cluster.connected(2)
    return a, (b if who == "other" else a)


@pytest.mark.parametrize("who", ["same", "other"])
def test_open_file_without_a_name_opens_again(cluster, who):
    node, remover = removed_by(cluster, who)
    put(node.path + "/f", b"bytes")
    with open(node.path + "/f", "r+b") as f:
        os.unlink(remover.path + "/f")
        path = f"/proc/self/fd/{f.fileno()}"
        for _ in range(3):
            assert get(path) == b"bytes"
        with open(path, "ab") as again:
            again.write(b", more")
        assert get(path) == b"bytes, more"
        put(path, b"cut")
        assert f.read() == b"cut"
        assert os.fstat(f.fileno()).st_nlink == 0


def test_nameless_file_opens_again(cluster):
    node = cluster.node()
    fd = os.open(node.path, os.O_TMPFILE | os.O_RDWR, 0o600)
    try:
        os.write(fd, b"bytes")
        assert get(f"/proc/self/fd/{fd}") == b"bytes"
    finally:
        os.close(fd)


def in_removed(d, remover, results):
    """What calls say in a working directory and in an open directory that is removed."""
    os.chdir(d)
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(remover)
    wait_for(lambda: not os.fstat(fd).st_nlink, "no name is left")  # attributes are trusted for a second
    say = {}
    for name, call, *args in (
            ("fstat", lambda: os.fstat(fd).st_nlink), ("stat .", lambda: os.stat(".").st_nlink),
            ("fsync", os.fsync, fd), ("list", os.listdir, fd),
            ("stat", os.stat, "x"), ("lstat", os.lstat, "x"),
            ("open", os.open, "x", os.O_RDONLY), ("create", os.open, "x", os.O_RDWR | os.O_CREAT),
            ("excl", os.open, "x", os.O_RDWR | os.O_CREAT | os.O_EXCL),
            ("mkdir", os.mkdir, "x"), ("rmdir", os.rmdir, "x"), ("unlink", os.unlink, "x"),
            ("rename", os.rename, "x", "y"), ("symlink", os.symlink, "t", "x"), ("mkfifo", os.mkfifo, "x"),
            ("listdir", os.listdir, "."), ("access", os.access, ".", os.R_OK), ("chdir", os.chdir, "."),
            ("openat", lambda: os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY))),
            ("again", os.stat, "x"), ("fstat again", lambda: os.fstat(fd).st_nlink)):
        say[name] = outcome(call, *args)
    results.put(say)


def said_in_removed(d, remover):
    results = multiprocessing.Queue()
    p = multiprocessing.Process(target=in_removed, args=(d, remover, results))
    p.start()
    say = results.get(timeout=60)
    p.join()
    return say


def start_daemon(cluster):
    """One whose handles hold over a restart."""
    os.mkdir(cluster.file("state"))
    cluster.start_daemon("--state", cluster.file("state"))


def export_by_paths(cluster):
    """The daemon may not open file handles, so its own are paths."""
    if os.geteuid() == 0:
        cluster.within = lambda n: ["setpriv", "--bounding-set=-dac_read_search"] if n == SERVER else []
    start_daemon(cluster)
    assert "handles by path" in cluster.daemon.process.log()


@pytest.mark.parametrize("options", [[], ["nolease"], ["allow_other"], "by paths"])
@pytest.mark.parametrize("who", ["same", "other"])
def test_removed_directory_is_as_on_a_local_file_system(cluster, who, options):
    if options == "by paths":
        export_by_paths(cluster)
        options = []
    a, b = cluster.connected(2, *options)
    local = cluster.file("local")
    for d in (local, a.path + "/d"):
        os.mkdir(d)
    remover = (b if who == "other" else a).path + "/d"
    os.stat(remover)
    assert said_in_removed(a.path + "/d", remover) == said_in_removed(local, local)


def lose_moved(cluster, a, b):
    os.rename(b.path + "/d/kept", b.path + "/elsewhere/kept")
    cluster.daemon.process.kill()
    cluster.daemon.start()


def lose_all(cluster, a, b):
    """Another key: storage believes none of the handles that it made."""
    cluster.daemon.process.kill()
    os.unlink(cluster.file("state") + "/handle.key")
    cluster.daemon.start()


def in_lost(d, back, lost, results):
    """What calls say in a working directory and in an open directory of which storage loses the handle."""
    os.chdir(d)
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    results.put(None)
    lost.wait()
    links = lambda: os.fstat(fd).st_nlink
    wait_for(lambda: outcome(links) in (0, "ESTALE"), "the handle is lost")  # attributes are trusted for a second
    say = {name: outcome(call, *args) for name, call, *args in (
        ("fstat", links), ("list", os.listdir, fd), ("fsync", os.fsync, fd), ("stat", os.stat, "x"), ("open", os.open, "x", os.O_RDONLY), ("create", os.open, "y", os.O_RDWR | os.O_CREAT),
        ("mkdir", os.mkdir, "y"), ("unlink", os.unlink, "x"), ("listdir", os.listdir, "."),
        ("access", os.access, ".", os.R_OK), ("chdir", os.chdir, "."),
        ("openat", lambda: os.close(os.open(".", os.O_RDONLY | os.O_DIRECTORY))), ("again", os.listdir, fd))}
    results.put(say)
    results.put(back and outcome(lambda: (os.listdir(back), os.listdir(fd), os.listdir("."), get("x"))))


@pytest.mark.parametrize("lose", [lose_moved, lose_all])
def test_directory_of_a_lost_handle_does_not_seem_empty(cluster, lose):
    """Else a program that copies it deletes the copy. A look-up of its path shows storage the directory again."""
    if lose == lose_moved:
        export_by_paths(cluster)
    else:
        start_daemon(cluster)
    a, b = cluster.connected(2)
    os.makedirs(a.path + "/d/kept")
    os.mkdir(a.path + "/elsewhere")
    put(a.path + "/d/kept/x", b"text")
    back = a.path + "/elsewhere/kept" if lose == lose_moved else None
    results, lost = multiprocessing.Queue(), multiprocessing.Event()
    p = multiprocessing.Process(target=in_lost, args=(a.path + "/d/kept", back, lost, results))
    p.start()
    results.get(timeout=60)
    lose(cluster, a, b)
    lost.set()
    say = results.get(timeout=60)
    assert say.pop("access") is False
    assert set(say.values()) == {"ESTALE"}, say
    assert results.get(timeout=60) == (back and (["x"], ["x"], ["x"], b"text"))
    p.join()


@pytest.mark.parametrize("who", ["same", "other"])
def test_fstat_of_what_was_removed(cluster, who):
    node, remover = removed_by(cluster, who)
    os.mkfifo(node.path + "/fifo")
    os.symlink("target", node.path + "/link")
    fds = [os.open(f"{node.path}/{name}", os.O_PATH | os.O_NOFOLLOW) for name in ("fifo", "link")]
    before = [os.fstat(fd) for fd in fds]
    for name in ("fifo", "link"):
        os.unlink(f"{remover.path}/{name}")
    for fd, was in zip(fds, before):
        wait_for(lambda fd=fd: not os.fstat(fd).st_nlink, "no name is left")
        now = os.fstat(fd)
        assert (now.st_nlink, now.st_mode, now.st_ino, now.st_uid) == (0, was.st_mode, was.st_ino, was.st_uid)
        os.close(fd)


def test_two_nodes_that_change_one_directory_do_not_wait_for_each_other(cluster):
    """A recall must not wait for a lock that a request holds which waits for the other's recall."""
    a, b = cluster.connected(2)
    os.mkdir(a.path + "/d")

    def work(node, tag):
        for i in range(150):
            put(f"{node.path}/d/{tag}{i}", b"x")
            os.listdir(node.path + "/d")
            os.rename(f"{node.path}/d/{tag}{i}", f"{node.path}/d/{tag}")

    workers = [multiprocessing.Process(target=work, args=(node, f"{node.number}.{n}")) for node in (a, b)
               for n in range(2)]
    for p in workers:
        p.start()
    for p in workers:
        p.join(120)
        assert p.exitcode == 0
    assert len(os.listdir(a.path + "/d")) == 4


def test_last_name_goes_while_another_node_locks(cluster):
    """A wait for a lock ends with the file of the name still in use."""
    a, b = cluster.connected(2)
    put(a.path + "/f", b"old")
    with open(b.path + "/f", "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        rename_over(a.path, b"new")
        wait_for(lambda: get(b.path + "/f") == b"new", "the new file")
        fcntl.flock(held, fcntl.LOCK_UN)
        assert os.fstat(held.fileno()).st_nlink == 0

# SPDX-License-Identifier: MIT
"""Leases: a client does not ask for what has not changed; it learns of a change on another
node, or on the daemon's machine, first; and no change waits forever for a silent node."""
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from cluster import DEADLINE, wait_for

TRUST = 10.0   # seconds that a client relies on leases without hearing from the daemon
ANSWER = 15.0  # seconds that the daemon waits for the answer to a recall


def figures(node):
    return {w[1]: int(w[2]) for w in map(str.split, node.control("stats").splitlines())
            if w[0] == "lease"}


def of_storage(node, name):
    return next(int(w[2]) for w in map(str.split, node.control("stats").splitlines())
                if w[:2] == ["storage", name])


def calls(node):
    return of_storage(node, "calls")


def reconnects(node):
    return of_storage(node, "reconnects")


def daemon_stats(cluster):
    path = cluster.file("daemon.stats")
    if os.path.exists(path):
        os.unlink(path)
    cluster.daemon.process.popen.send_signal(signal.SIGUSR1)
    text = wait_for(lambda: os.path.exists(path) and open(path).read(), "the daemon's statistics")
    return dict((k, int(v)) for k, v in re.findall(r"^(?:calls )?(\w+) (\d+)$", text, re.M))


def with_stats(cluster):
    cluster.start_daemon("--stats-file", cluster.file("daemon.stats"))


def asked_by(cluster, node, work):
    """Requests that storage got because of work(), without the keepalives that a silent
    connection sends every few seconds."""
    # The kernel reports a close after close() has returned.
    wait_for(lambda: cluster.daemon.opens() == 0, "storage has heard of all earlier closes")
    before, begun = calls(node), time.monotonic()
    work()
    return calls(node) - before - int((time.monotonic() - begun) / (TRUST / 2)) - 1


def run(*argv, cwd=None):
    env = dict(os.environ, GIT_OPTIONAL_LOCKS="0", GIT_CONFIG_NOSYSTEM="1", HOME="/nonexistent",
               GIT_AUTHOR_NAME="a", GIT_AUTHOR_EMAIL="a@example.org", GIT_COMMITTER_NAME="a",
               GIT_COMMITTER_EMAIL="a@example.org")
    return subprocess.run(argv, cwd=cwd, env=env, check=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, timeout=DEADLINE).stdout


def tree(base):
    for d in range(8):
        os.makedirs(f"{base}/d{d}")
        for f in range(20):
            with open(f"{base}/d{d}/f{f}", "w") as out:
                out.write(f"{d} {f}\n")
    os.symlink("d0/f0", f"{base}/link")


def list_and_read(base):
    run("ls", "-lR", base)
    for d in range(8):
        for f in range(20):
            with open(f"{base}/d{d}/f{f}") as file:
                assert file.read() == f"{d} {f}\n"
    for d in range(8):
        assert not os.path.exists(f"{base}/d{d}/absent")


@pytest.mark.parametrize("option", ["strict", "nolease"])
def test_a_warm_tree_asks_nothing(cluster, option):
    tree(cluster.export)
    node = cluster.node(option, peers=False)
    for _ in range(2):
        list_and_read(node.path)
    asked = asked_by(cluster, node, lambda: list_and_read(node.path))
    if option == "nolease":
        assert asked > 160 and figures(node)["held"] == 0, (asked, figures(node))
    else:
        assert asked <= 0, (asked, figures(node))


@pytest.mark.parametrize("options", [[], ["strict"]])
def test_the_second_reading_asks_nothing(cluster, options):
    """Also below a directory that the reader never listed or looked up for itself."""
    os.mkdir(cluster.export + "/below")
    tree(cluster.export + "/below/it")
    node = cluster.node(*options, peers=False)
    files = [f"{node.path}/below/it/d{d}/f{f}" for d in range(8) for f in range(20)]
    once = run("cat", *files)
    asked = asked_by(cluster, node, lambda: run("cat", *files))
    assert run("cat", *files) == once and once.count(b"\n") == 160
    assert asked <= 0, (asked, figures(node))


def test_git_status_of_a_warm_tree_asks_nothing(cluster):
    if not shutil.which("git"):
        pytest.skip("needs git")
    tree(cluster.export)
    node = cluster.node("strict", peers=False)
    run("git", "init", "-q", cwd=node.path)
    run("git", "add", ".", cwd=node.path)
    run("git", "commit", "-qm", "all", cwd=node.path)
    for _ in range(2):
        assert not run("git", "status", "--porcelain", cwd=node.path)
    assert asked_by(cluster, node, lambda: run("git", "status", "--porcelain", cwd=node.path)) <= 0


def test_names_that_are_made_and_removed_ask_nothing_more(cluster):
    """The kernel asks for a directory's attributes after each: the reply to the change has them."""
    node = cluster.node("strict", peers=False)
    base = f"{node.path}/d"
    os.stat(node.path)  # takes a lease on the directory of the lookups
    os.mkdir(base)
    mtime = 0

    def make_and_remove():
        nonlocal mtime
        for i in range(100):
            os.mkdir(f"{base}/{i}")
            now = os.stat(base)
            assert now.st_nlink == i + 3 and now.st_mtime_ns >= mtime
            mtime = now.st_mtime_ns
        for i in range(100):
            os.rmdir(f"{base}/{i}")
            assert os.stat(base).st_nlink == 101 - i

    asked = asked_by(cluster, node, make_and_remove)
    # One for each change, and one that returns the lease of each removed directory.
    assert asked <= 310, (asked, figures(node))
    assert os.stat(base).st_mtime_ns == os.stat(f"{cluster.export}/d").st_mtime_ns


def changes(other, base):
    """Changes that another node makes after a look at 'base'; each returns a check of the next look."""
    def write():
        with open(f"{other}/f", "w") as f:
            f.write("longer than it was\n")
        return lambda: open(f"{base}/f").read() == "longer than it was\n"

    def grow():
        with open(f"{other}/f", "a") as f:
            f.write("x" * 1000)
        return lambda: os.stat(f"{base}/f").st_size > 1000

    def mode():
        os.chmod(f"{other}/f", 0o741)
        return lambda: os.stat(f"{base}/f").st_mode & 0o777 == 0o741

    def times():
        os.utime(f"{other}/f", (1, 2))
        return lambda: os.stat(f"{base}/f").st_mtime == 2

    def make():
        with open(f"{other}/absent", "w"):
            pass
        return lambda: os.path.exists(f"{base}/absent") and "absent" in os.listdir(base)

    def rename():
        os.rename(f"{other}/absent", f"{other}/d/moved")
        return lambda: (not os.path.exists(f"{base}/absent")
                        and os.listdir(f"{base}/d") == ["moved"])

    def link():
        os.link(f"{other}/f", f"{other}/g")
        return lambda: os.stat(f"{base}/f").st_nlink == 2 and os.path.samefile(
            f"{base}/f", f"{base}/g")

    def replace():
        with open(f"{other}/new", "w") as f:
            f.write("new\n")
        os.rename(f"{other}/new", f"{other}/g")
        return lambda: open(f"{base}/g").read() == "new\n" and os.stat(f"{base}/f").st_nlink == 1

    def remove():
        os.unlink(f"{other}/g")
        os.unlink(f"{other}/d/moved")
        os.rmdir(f"{other}/d")
        return lambda: not os.path.exists(f"{base}/g") and not os.path.exists(f"{base}/d/moved") \
            and not os.path.exists(f"{base}/d")
    return [write, grow, mode, times, make, rename, link, replace, remove]


def look_at_all(base):
    for d in ("", "/d"):
        if os.path.isdir(base + d):
            for name in [*os.listdir(base + d), "absent", "g", "f", "moved"]:
                if os.path.isfile(f"{base}{d}/{name}"):
                    with open(f"{base}{d}/{name}") as f:
                        f.read()
                os.path.exists(f"{base}{d}/{name}")


@pytest.mark.parametrize("where", ["node", "daemon's machine"])
def test_strict_sees_what_others_change_at_once(cluster, where):
    os.mkdir(cluster.export + "/d")
    with open(cluster.export + "/f", "w") as f:
        f.write("short\n")
    a, b = cluster.node("strict", peers=False), cluster.node(peers=False)
    for change in changes(b.path if where == "node" else cluster.export, a.path):
        look_at_all(a.path)
        sees = change()
        if where == "node":
            assert sees(), change.__name__
        else:  # the daemon's kernel reports changes afterwards
            wait_for(sees, change.__name__)
    if where == "node":
        assert figures(a)["recalls"] > 5, figures(a)


def test_strict_reader_sees_a_writer_at_once(cluster):
    """Both nodes keep a file open: a read after fstat() returns the data of these attributes."""
    with open(cluster.export + "/f", "wb") as f:
        f.write(bytes(4096))
    a, b = cluster.node("strict", peers=False), cluster.node("strict", peers=False)
    reader, writer = os.open(a.path + "/f", os.O_RDONLY), os.open(b.path + "/f", os.O_RDWR)
    try:
        for n in range(1, 50):
            text = b"%4096d" % n
            assert os.pwrite(writer, text, 0) == 4096
            os.fstat(reader)
            assert os.pread(reader, 4096, 0) == text
            assert os.pread(writer, 4096, 0) == text
    finally:
        os.close(reader)
        os.close(writer)


def test_open_within_a_lease_outlives_the_name(cluster):
    with open(cluster.export + "/f", "w") as f:
        f.write("kept\n")
    a, b = cluster.node("strict", peers=False), cluster.node(peers=False)
    with open(a.path + "/f") as f:
        f.read()
    opens = figures(a)["opens"]
    with open(a.path + "/f") as f:
        assert figures(a)["opens"] == opens + 1, "it was opened without a request"
        os.unlink(b.path + "/f")
        assert f.read() == "kept\n"
        assert os.fstat(f.fileno()).st_nlink == 0
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        f.seek(0)
        assert f.read() == "kept\n"


def opened_within_a_lease(node):
    """Opens a file; None: that took a request, or the node has not heard yet that the file was made."""
    before = figures(node)["opens"]
    try:
        f = open(node.path + "/f", "rb", buffering=0)
    except FileNotFoundError:
        return None
    if figures(node)["opens"] == before + 1:
        return f
    with f:
        assert f.read(4) == b"kept"
    return None


@pytest.mark.parametrize("change", ["unlink", "rename", "chmod"])
def test_open_within_a_lease_outlives_an_own_change(cluster, change):
    """The client reports the open to storage first: after the change storage could not open the file,
    or would not permit it."""
    for name in "fg":
        with open(cluster.export + "/" + name, "wb") as f:
            f.write(b"kept" * (1 << 20))
    a = cluster.node("strict", peers=False)
    for _ in range(30):
        # The daemon's kernel reports the change of the last round afterwards, which ends a lease.
        f = wait_for(lambda: opened_within_a_lease(a), "an open without a request")
        with f:
            if change == "unlink":
                os.unlink(a.path + "/f")
            elif change == "rename":
                os.rename(a.path + "/g", a.path + "/f")
            else:
                os.chmod(a.path + "/f", 0)
            f.seek(3 << 20)
            assert f.read(4) == b"kept"
        for name in "fg":
            if os.path.exists(cluster.export + "/" + name):
                os.unlink(cluster.export + "/" + name)
            with open(cluster.export + "/" + name, "wb") as f:
                f.write(b"kept" * (1 << 20))


def test_a_stopped_holder_holds_nobody_up_for_long(cluster):
    """Once, however many files it has cached. When it continues, it does not trust what it had cached."""
    with_stats(cluster)
    names = [f"f{i}" for i in range(20)]
    for name in names:
        with open(f"{cluster.export}/{name}", "w") as f:
            f.write("old\n")
    a, b = cluster.node("strict", peers=False), cluster.node(peers=False)
    begun = time.monotonic()
    for _ in range(2):
        for name in names:
            with open(f"{a.path}/{name}") as f:
                f.read()
    assert figures(a)["held"] > len(names)
    a.process.freeze()
    try:
        for name in names:
            with open(f"{b.path}/{name}", "w") as f:
                f.write("changed\n")
            if name == names[0]:
                assert time.monotonic() - begun >= ANSWER, "the holder might still have relied on its lease"
        assert time.monotonic() - begun < DEADLINE, "each file waited for the stopped holder"
    finally:
        a.process.popen.send_signal(signal.SIGCONT)
    for name in names:
        assert os.stat(f"{a.path}/{name}").st_size == 8
        with open(f"{a.path}/{name}") as f:
            assert f.read() == "changed\n"
    assert daemon_stats(cluster)["leases_unanswered"] >= len(names)


def read_until_leased(*nodes):
    """Retries: the writer's close may not have reached storage yet."""
    def leased(node):
        opens = figures(node)["opens"]
        for _ in range(2):
            with open(node.path + "/f") as f:
                assert f.read() == "old\n"
        return figures(node)["opens"] > opens
    for node in nodes:
        wait_for(lambda: leased(node), "an open without a request")


@pytest.mark.parametrize("ends, unanswered", [("kill", 1), ("exit", 0)])
def test_a_holder_ends(cluster, ends, unanswered):
    """A killed holder says no goodbye and looks like one behind a cut wire: the daemon waits for it once."""
    with_stats(cluster)
    with open(cluster.export + "/f", "w") as f:
        f.write("old\n")
    a, b, c = (cluster.node("strict", peers=False) for _ in range(3))
    read_until_leased(a, c)
    if ends == "kill":
        a.process.kill()
    else:
        a.process.stop()
    with open(b.path + "/f", "w") as f:
        f.write("changed\n")
    assert open(c.path + "/f").read() == "changed\n"
    with open(b.path + "/f", "w") as f:
        f.write("changed again\n")
    assert open(c.path + "/f").read() == "changed again\n"
    said = daemon_stats(cluster)
    assert said["leases_recalled"] >= 1 and said["leases_unanswered"] == unanswered, said


def test_a_change_is_seen_on_every_node_that_holds_a_lease(cluster):
    with_stats(cluster)
    nodes = [cluster.node("strict", peers=False) for _ in range(3)]
    for n in range(10):
        changer, holders = nodes[n % 3], [m for i, m in enumerate(nodes) if i != n % 3]
        with open(changer.path + "/f", "w") as f:
            f.write("old\n")
        read_until_leased(*holders)
        os.rename(changer.path + "/f", changer.path + "/g")
        assert not any(os.path.exists(m.path + "/f") for m in holders)
        with open(changer.path + "/f", "w") as f:
            f.write("new\n")
        assert [open(m.path + "/f").read() for m in holders] == ["new\n"] * 2
    said = daemon_stats(cluster)
    assert said["leases_recalled"] >= 20 and said["leases_unanswered"] == 0, said


def test_leases_end_with_the_daemon(cluster):
    """A client sees, once the daemon is back, what changed while it was away."""
    with open(cluster.export + "/f", "w") as f:
        f.write("old\n")
    a = cluster.node("strict", peers=False)
    for _ in range(2):
        with open(a.path + "/f") as f:
            f.read()
    before = reconnects(a)
    cluster.daemon.process.kill()
    with open(cluster.export + "/f", "w") as f:
        f.write("changed\n")
    cluster.daemon.start()
    # Until the client has noticed the loss of the connection, its statistics show the old one.
    wait_for(lambda: reconnects(a) > before, "the connection is there again")
    assert open(a.path + "/f").read() == "changed\n"


def test_no_leases_of_what_is_open_for_writing(cluster):
    with_stats(cluster)
    with open(cluster.export + "/f", "w") as f:
        f.write("old\n")
    a, b = cluster.node("strict", peers=False), cluster.node(peers=False)
    with open(b.path + "/f", "r+") as w:
        for n in range(5):
            with open(a.path + "/f") as f:
                f.read()
            w.seek(0)
            w.write(f"{n}" * 10)
            w.flush()
            with open(a.path + "/f") as f:
                assert f.read() == f"{n}" * 10
    wait_for(lambda: daemon_stats(cluster)["leases"] < 10, "few leases")


def test_the_figures_are_shown(cluster):
    tree(cluster.export)
    node = cluster.node("strict", peers=False)
    for _ in range(2):
        list_and_read(node.path)
    f = figures(node)
    assert f["held"] >= 160 and f["lookups"] > 0 and f["attributes"] > 0, f
    assert f["opens"] >= 160 and f["listings"] > 0, f

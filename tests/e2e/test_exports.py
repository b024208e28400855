# SPDX-License-Identifier: MIT
"""What an export's options permit, seen through a mount by root."""
import errno
import os
import re
import signal
import subprocess

import pytest

from cluster import DEADLINE, Daemon, Node, program, unmount, wait_for
from test_permissions import as_user, read, write

NOBODY = 65534


def exported(cluster, options):
    cluster.start_daemon("--export", f"x,{options}={cluster.export}")
    return cluster.source("x")


def mounted(cluster, options):
    node = Node(cluster, 1, ["allow_other"], exported(cluster, options))
    cluster.nodes.append(node)
    return node.path


def error_of(action, *args):
    with pytest.raises(OSError) as e:
        action(*args)
    return e.value.errno


def test_root_is_squashed(cluster):
    os.chmod(cluster.export, 0o777)
    secret = f"{cluster.export}/secret"
    write(secret, b"of root")
    os.chmod(secret, 0o600)
    path = mounted(cluster, "root_squash")
    assert error_of(read, f"{path}/secret") == errno.EACCES
    assert error_of(os.chmod, f"{path}/secret", 0o666) == errno.EPERM
    write(f"{path}/made", b"by root")
    os.mkdir(f"{path}/dir")
    for name in ("made", "dir"):
        st = os.stat(f"{cluster.export}/{name}")
        assert (st.st_uid, st.st_gid) == (NOBODY, NOBODY)
    assert error_of(os.chown, f"{path}/made", 0, 0) == errno.EPERM
    assert read(f"{cluster.export}/made") == b"by root"
    # Other users act as themselves.
    assert as_user(4101, 4101, [], lambda: os.mkdir(f"{path}/theirs")) == "None"
    assert os.stat(f"{cluster.export}/theirs").st_uid == 4101


def test_access_tells_what_storage_permits(cluster):
    """Storage squashes root, so the mode promises too much. (With allow_other the kernel checks the mode.)"""
    os.chmod(cluster.export, 0o777)
    for name in ("secret", "open"):
        write(f"{cluster.export}/{name}", b"of root")
    os.chmod(f"{cluster.export}/secret", 0o600)
    os.chmod(f"{cluster.export}/open", 0o646)
    node = Node(cluster, 1, [], exported(cluster, "root_squash"))
    cluster.nodes.append(node)
    for _ in range(2):  # the second time under a lease
        assert os.access(f"{node.path}/secret", os.F_OK)
        assert not os.access(f"{node.path}/secret", os.R_OK)
        assert os.access(f"{node.path}/open", os.R_OK | os.W_OK)
        assert not os.access(f"{node.path}/open", os.R_OK | os.X_OK)
        assert os.access(node.path, os.R_OK | os.W_OK | os.X_OK)
    os.chmod(f"{cluster.export}/open", 0o600)
    wait_for(lambda: not os.access(f"{node.path}/open", os.R_OK), "the change is known")


def test_all_are_squashed(cluster):
    os.chmod(cluster.export, 0o777)
    path = mounted(cluster, "all_squash,anonuid=4321,anongid=4322")
    assert as_user(4101, 4101, [4102], lambda: os.mkdir(f"{path}/theirs")) == "None"
    st = os.stat(f"{cluster.export}/theirs")
    assert (st.st_uid, st.st_gid) == (4321, 4322)


def test_a_read_only_export(cluster):
    write(f"{cluster.export}/f", b"text")
    path = mounted(cluster, "ro")
    assert read(f"{path}/f") == b"text"
    fd = os.open(f"{path}/f", os.O_RDONLY | os.O_CREAT, 0o644)
    assert os.read(fd, 9) == b"text"
    os.close(fd)
    for action, args in ((write, (f"{path}/f",)), (write, (f"{path}/new",)),
                         (os.mkdir, (f"{path}/d",)), (os.unlink, (f"{path}/f",)),
                         (os.chmod, (f"{path}/f", 0o600)), (os.utime, (f"{path}/f",)),
                         (os.truncate, (f"{path}/f", 0)), (os.rename, (f"{path}/f", f"{path}/g")),
                         (os.symlink, ("f", f"{path}/s")), (os.link, (f"{path}/f", f"{path}/l"))):
        assert error_of(action, *args) == errno.EROFS, action
    assert os.listdir(cluster.export) == ["f"] and read(f"{cluster.export}/f") == b"text"


def test_clients_by_network(cluster):
    # An unbound connection within this machine comes from 127.0.0.1.
    path = mounted(cluster, "clients=10.0.0.0/8,clients=127.0.0.1")
    write(f"{path}/f", b"text")
    assert read(f"{cluster.export}/f") == b"text"


def test_strangers_are_refused(cluster):
    source = exported(cluster, "clients=127.0.0.2,clients=10.0.0.0/8")
    path = cluster.file("refused")
    os.mkdir(path)
    try:
        done = subprocess.run([program("coopfs-fuse"), source, path], capture_output=True,
                              text=True, timeout=DEADLINE, check=False)
    finally:
        unmount(path)
    assert done.returncode != 0
    assert "the export is not for its address" in done.stderr
    assert "export x: not one of its clients" in cluster.daemon.process.log()


def waits(daemon, export):
    """Whether requests wait for those that are in the export's file system."""
    daemon.process.popen.send_signal(signal.SIGUSR1)
    return re.search(rf"^export_waiting {export} [1-9]", daemon.process.log(), re.M)


def test_a_file_system_that_hangs_stops_no_other_export(cluster):
    """Below the export is a mount whose own daemon is stopped."""
    good = cluster.file("good")
    os.mkdir(good)
    write(f"{good}/f", b"good")
    names = [f"f{i}" for i in range(20)]  # more than the daemon has threads for
    for name in names:
        write(f"{cluster.export}/{name}", b"old")
    far = Daemon(cluster, ["--export", f"far={cluster.export}", "--state", cluster.file("far-state")])
    readers = []
    try:
        below = Node(cluster, 4, ["nolease"], f"{cluster.server}:{far.port}:/far")
        cluster.start_daemon("--export", f"hung={below.path}", "--export", f"good={good}")
        mounts = [Node(cluster, n, ["nolease"], cluster.source(of)) for n, of in ((1, "hung"), (2, "good"))]
        cluster.nodes += [*mounts, below]
        hung, at_good = mounts
        assert read(f"{at_good.path}/f") == b"good"
        for name in names:  # the kernel looks up one new name of a directory at a time
            assert read(f"{hung.path}/{name}") == b"old"
        far.process.freeze()
        readers = [subprocess.Popen(["cat", f"{hung.path}/{name}"], stdout=subprocess.PIPE) for name in names]
        wait_for(lambda: waits(cluster.daemon, "hung"), "the requests have all threads that they may have")
        subprocess.run(["cp", f"{at_good.path}/f", cluster.file("copy")], check=True, timeout=DEADLINE)
        cluster.nodes.insert(2, Node(cluster, 3, ["nolease"], cluster.source("good")))
        assert all(r.poll() is None for r in readers)
    finally:
        far.process.popen.send_signal(signal.SIGCONT)
        texts = [r.communicate(timeout=DEADLINE)[0] for r in readers]
        for node in cluster.nodes:
            node.process.stop()
        cluster.daemon.process.stop()
        far.process.stop()
    assert texts == [b"old"] * len(names)

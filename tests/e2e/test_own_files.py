# SPDX-License-Identifier: MIT
"""Files that the daemon makes for itself, beside those of its clients."""
import os
import signal
import stat

from cluster import wait_for

OTHERS = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_others_cannot_write_to_what_the_daemon_keeps(cluster):
    state, figures, pid = cluster.file("state"), cluster.file("figures"), cluster.file("pid")
    victim = cluster.file("victim")
    with open(victim, "w") as f:
        f.write("victim")
    os.symlink(victim, figures + ".new")
    before = os.umask(0)
    try:
        daemon = cluster.start_daemon("--state", state, "--stats-file", figures, "--pid-file", pid)
        node = cluster.node(peers=False)
        with open(os.open(node.path + "/f", os.O_CREAT | os.O_WRONLY, 0o666), "w"):
            pass
    finally:
        os.umask(before)
    assert mode(node.path + "/f") == 0o666  # the caller's umask counts there, not the daemon's
    daemon.process.popen.send_signal(signal.SIGUSR1)
    wait_for(lambda: os.path.exists(figures), "the daemon's figures")
    assert not mode(figures) & OTHERS_WRITE and not mode(pid) & OTHERS_WRITE
    assert not mode(state) & OTHERS
    assert not any(mode(entry.path) & OTHERS for entry in os.scandir(state))
    with open(victim) as f:
        assert f.read() == "victim"
    with open(pid) as f:
        assert int(f.read()) == daemon.process.pid

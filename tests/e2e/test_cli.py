# SPDX-License-Identifier: MIT
"""The program coopfs against real mounts: its output, its exit status, its effects."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import termios
import time

import pytest

from cluster import BIN, DEADLINE, is_mounted, program, state_of, unmount, wait_for
from step import SPARED

OK, FAILED, USAGE, NOT_COOPFS, PERMISSION = range(5)
MOUNT_USAGE, MOUNT_FAILED = 1, 32  # exit statuses of a helper of mount(8)
NOBODY = 65534
SIZE = 1 << 20


@pytest.fixture
def coopfs(cluster):
    """Runs the program; returns exit status, standard output and standard error."""
    if not os.access(program("coopfs"), os.X_OK):
        pytest.skip(f"needs {program('coopfs')}: build it first")

    def run(*args, name="coopfs", **kw):
        done = subprocess.run([program(name), *args], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=DEADLINE, env=dict(os.environ, LC_ALL="C.UTF-8"), check=False, **kw)
        return done.returncode, done.stdout, done.stderr
    return run


@pytest.fixture
def data(cluster):
    with open(cluster.file("export/f"), "wb") as f:
        f.write(os.urandom(SIZE))


def read(node_or_path, name="f"):
    with open(os.path.join(getattr(node_or_path, "path", node_or_path), name), "rb") as f:
        return f.read()


def new_dir(cluster, name):
    path = cluster.file(name)
    os.mkdir(path)
    cluster.mounts.append(path)
    return path


def alive(pid):
    return state_of(pid) not in "ZX"


def pid_of(path):
    with open(path + "/.coopfs/info", encoding="utf-8") as f:
        return int(re.search(r"^pid[ =](\d+)$", f.read(), re.M)[1])


# ---- usage


def test_help_documents_exit_statuses(coopfs):
    status, out, _ = coopfs("--help")
    assert status == OK
    for word in ("mount", "umount", "peers", "stats", "top", "3 not a coopfs mount", "4 no permission"):
        assert word in out


@pytest.mark.parametrize("args", [
    (), ("nonsense",), ("mount",), ("mount", "h:/x"), ("stats", "--interval", "0"), ("stats", "--interval", "x"),
    ("stats", "--count", "3"), ("stats", "--reset", "--interval", "1"), ("top", "--json"), ("peers", "a", "b"),
    ("umount",), ("mount", "-t", "ext4", "h:/x", "/mnt"),
])
def test_wrong_usage(coopfs, args):
    status, out, err = coopfs(*args)
    assert status == USAGE and out == "" and err.startswith("coopfs: "), (status, out, err)


@pytest.mark.parametrize("name", ["coopfs", "coopfsd", "coopfs-fuse", "coop-verbs"])
def test_every_program_tells_its_version_and_use(coopfs, name):
    for word in ("-V", "--version"):
        status, out, _ = coopfs(word, name=name)
        assert status == OK and re.fullmatch(name + r" \d+\.\d+\.\d+\n", out), out
    status, out, err = coopfs("--help", name=name)
    assert status == OK and "usage: " + name in out.lower() and err == ""
    status, out, err = coopfs("--nonsense", name=name)
    assert status in (1, USAGE) and out == "" and name + ": " in err and "--nonsense" in err and "help" in err


@pytest.mark.parametrize("name, words", [
    ("coopfs", "mount, umount, peers, stats, top, tree"), ("coop-verbs", "run, info, ether"),
])
def test_a_subcommand_that_does_not_exist(coopfs, name, words):
    status, out, err = coopfs("nonsense", name=name)
    assert status == USAGE and out == "" and f"'nonsense' is no subcommand; there are: {words};" in err, err
    status, out, err = coopfs(name=name)
    assert status == USAGE and out == "" and f"a subcommand is required; there are: {words};" in err, err


@pytest.mark.parametrize("port", ["65536", "99999", "-1", "http", ""])
def test_the_daemon_listens_on_no_other_port_than_it_is_told(cluster, coopfs, port):
    status, _, err = coopfs("--listen", "127.0.0.1:" + port, "--export", "x=" + cluster.file("export"),
                            "--state", cluster.file("state"), name="coopfsd")
    assert status == USAGE and f"'{port}' is no port" in err, err


# ---- mount and umount


def test_mount_waits_until_usable_and_umount_until_gone(cluster, coopfs, data):
    cluster.start_daemon()
    path = new_dir(cluster, "m")
    status, out, err = coopfs("mount", "-o", "cache_size=8M", cluster.source(), path)
    assert (status, out, err) == (OK, "", "")
    assert len(read(path)) == SIZE
    pid = pid_of(path)
    assert alive(pid)
    status, out, err = coopfs("umount", path)
    assert (status, out, err) == (OK, "", "")
    assert not is_mounted(path) and not alive(pid)


def test_mount_refuses_a_second_time(cluster, coopfs):
    node = cluster.node(peers=False)
    status, _, err = coopfs("mount", cluster.source(), node.path)
    assert status == FAILED and "already" in err


@pytest.mark.parametrize("spec", ["host", "/x", ":/x", "host:x", "host:0:/x", "[::1:/x", "::1:/x"])
def test_mount_refuses_a_bad_spec(cluster, coopfs, spec):
    path = new_dir(cluster, "m")
    status, _, err = coopfs("mount", spec, path)
    assert status == USAGE and "SERVER[,SERVER...][:PORT]:/EXPORT" in err
    assert not is_mounted(path)


def test_mount_passes_on_what_went_wrong(cluster, coopfs):
    cluster.start_daemon()
    path = new_dir(cluster, "m")
    status, _, err = coopfs("mount", "-o", "readahead=many", cluster.source(), path)
    assert status == USAGE and "readahead" in err and "nothing is mounted" in err
    status, _, err = coopfs("mount", cluster.source("nothing"), path)
    assert status == FAILED and "nothing" in err.replace("nothing is mounted", ""), err
    assert not is_mounted(path)


def test_mountpoint_must_be_a_directory(cluster, coopfs):
    status, _, err = coopfs("mount", "h:/x", cluster.file("none"))
    assert status == FAILED and "mkdir" in err
    with open(cluster.file("plain"), "w", encoding="ascii"):
        pass
    status, _, err = coopfs("mount", "h:/x", cluster.file("plain"))
    assert status == FAILED and "not a directory" in err


def test_foreground_is_the_process_itself(cluster, coopfs, data):
    cluster.start_daemon()
    path = new_dir(cluster, "m")
    with subprocess.Popen([program("coopfs"), "mount", "--foreground", cluster.source(), path],
                          stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        try:
            wait_for(lambda: is_mounted(path), "the mount")
            wait_for(lambda: os.path.exists(path + "/.coopfs/info"), "its control files")
            assert pid_of(path) == child.pid
            assert coopfs("umount", path)[0] == OK
            assert child.wait(DEADLINE) == 0
        finally:
            child.kill()
            unmount(path)


def test_mount_helper_takes_the_arguments_of_mount8(cluster, coopfs, data):
    cluster.start_daemon()
    path = new_dir(cluster, "m")
    helper = cluster.file("mount.fuse.coopfs")
    shutil.copy(program("coopfs"), helper)  # a copy in another directory: coopfs-fuse comes from PATH
    env = dict(os.environ, PATH=BIN + ":" + os.environ["PATH"])

    def mount(*args):
        return subprocess.run([helper, cluster.source(), path, *args], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=DEADLINE, env=env, check=False)
    done = mount("-f", "-v", "-o", "rw,noauto,_netdev,x-systemd.automount,ro")
    assert done.returncode == OK and "coopfs-fuse" in done.stderr and not is_mounted(path), done.stderr
    done = mount("-n", "-o", "defaults,nofail,ro")
    assert done.returncode == OK, done.stderr
    assert len(read(path)) == SIZE
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        assert any(line.split()[4] == path and line.split()[5].startswith("ro") for line in table)
    assert coopfs("umount", path)[0] == OK


def test_type_coopfs_means_the_module(cluster):
    cluster.start_daemon()
    path = new_dir(cluster, "m")
    helper = cluster.file("mount.coopfs")
    shutil.copy(program("coopfs"), helper)
    done = subprocess.run([helper, cluster.source(), path, "-f", "-v"], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=DEADLINE, check=False)
    with open("/proc/filesystems", encoding="utf-8") as table:
        has_module = "\tcoopfs\n" in table.read()
    assert "coopfs-fuse" not in done.stderr
    assert done.returncode == (OK if has_module else MOUNT_FAILED), done.stderr
    assert has_module or ("no coopfs module" in done.stderr and "-t fuse.coopfs" in done.stderr)


def test_remount_repeats_the_mounts_own_options(cluster, coopfs, data):
    """As mount(8) does with a line of fstab."""
    cluster.start_daemon()
    path = new_dir(cluster, "own")
    own = "nosuid,nodiratime,allow_other,cache_size=8M,readahead=0x20,strict,local_lock=all,commit_on_close=0"
    assert coopfs("mount", "-t", "fuse.coopfs", "-o", own, cluster.source(), path)[0] == OK
    try:
        for words in (own, "ro," + own, "rw," + own):
            status, _, err = coopfs("mount", "-o", "remount," + words, cluster.source(), path)
            assert status == OK, err
        for other in ("cache_size=9M", "nolease", "local_lock=none", "readahead=33", "ib"):
            status, _, err = coopfs("mount", "-o", f"remount,{own},{other}", cluster.source(), path)
            assert status == USAGE and other in err
    finally:
        assert coopfs("umount", path)[0] == OK


def test_remount(cluster, coopfs, data):
    node = cluster.node("nosuid", peers=False)

    def flags():
        with open("/proc/self/mountinfo", encoding="utf-8") as table:
            return next(line.split()[5] for line in table if line.split()[4] == node.path).split(",")
    assert coopfs("mount", "-o", "remount,ro,noatime", cluster.source(), node.path)[0] == OK
    assert "ro" in flags() and "noatime" in flags() and "nosuid" in flags()
    assert coopfs("mount", "-o", "remount,rw", cluster.source(), node.path)[0] == OK
    assert "rw" in flags() and "noatime" in flags(), "what was not named stays"
    status, _, err = coopfs("mount", "-o", "remount,readahead=16", cluster.source(), node.path)
    assert status == USAGE and "readahead=16" in err
    words = "strictatime,lazytime,iversion,nodiratime,nosymfollow"
    assert coopfs("mount", "-o", "remount," + words, cluster.source(), node.path)[0] == OK
    assert "nosymfollow" in flags() and "nosuid" in flags()
    assert coopfs("mount", "-o", "remount,symfollow", cluster.source(), node.path)[0] == OK
    assert "nosymfollow" not in flags()
    path = new_dir(cluster, "none")
    status, _, err = coopfs("mount", "-o", "remount,ro", cluster.source(), path)
    assert status == NOT_COOPFS and "no coopfs mount" in err
    helper = cluster.file("mount.fuse.coopfs")
    shutil.copy(program("coopfs"), helper)
    done = subprocess.run([helper, cluster.source(), node.path, "-s", "-o",
                           "ro,relatime,user_id=0,group_id=0,max_read=1048576,remount"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == OK and "ro" in flags() and "nosuid" not in flags(), done.stderr
    done = subprocess.run([helper, cluster.source(), node.path, "-o", "remount,readahead=16"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == MOUNT_USAGE and "readahead=16" in done.stderr
    status, _, err = coopfs("mount", "-t", "fuse.coopfs", "a,b:/data", path)
    assert status == USAGE and "one server" in err


def test_umount_in_use_and_lazy(cluster, coopfs, data):
    node = cluster.node(peers=False)
    with open(node.path + "/f", "rb"):
        status, _, err = coopfs("umount", node.path)
        assert status == FAILED and "in use" in err and "-l" in err and is_mounted(node.path)
        assert coopfs("umount", "-l", node.path)[0] == OK
        assert not is_mounted(node.path)
    wait_for(lambda: not node.process.running(), "the node ends with its last user")


def test_umount_of_what_is_not_ours(cluster, coopfs):
    for path in ("/", "/proc", cluster.base, cluster.file("none")):
        status, _, err = coopfs("umount", path)
        assert status == NOT_COOPFS and path in err


def test_a_dead_mount_is_named_and_can_be_unmounted(cluster, coopfs):
    node = cluster.node(peers=False)
    node.process.kill()
    status, _, err = coopfs("stats", node.path)
    assert status == FAILED and "coopfs umount" in err
    status, _, err = coopfs("mount", cluster.source(), node.path)
    assert status == FAILED and "coopfs umount" in err
    assert coopfs("umount", node.path)[0] == OK
    assert not is_mounted(node.path)


# ---- which mount is meant


ALONE = r"""
awk -v keep="$2" '/ - (fuse[.])?coopfs / && $5 != keep { print $5 }' /proc/self/mountinfo |
	while IFS= read -r other; do umount -l "$(printf %b "$other")"; done
exec "$1" stats
"""


def test_choice_of_the_mount(cluster, coopfs, data):
    one = cluster.node(peers=False)
    # Other tests have mounts too, and make and end them meanwhile: alone in a namespace it is the only one.
    done = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", ALONE, "sh", program("coopfs"),
                           one.path], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE,
                          check=False)
    assert done.returncode == OK and one.path in done.stdout, done.stderr
    assert coopfs("stats", one.path + "/f")[0] == OK
    assert coopfs("stats", ".", cwd=one.path)[0] == OK
    cluster.node(peers=False)
    status, _, err = coopfs("stats")
    assert status == USAGE and one.path in err
    status, _, err = coopfs("stats", cluster.base)
    assert status == NOT_COOPFS and cluster.base in err


def test_blanks_and_backslashes_in_a_mountpoint(cluster, coopfs, data):
    cluster.start_daemon()
    path = cluster.file("with blank\\and\ttab")
    os.mkdir(path)
    try:
        assert coopfs("mount", cluster.source(), path)[0] == OK
        status, out, _ = coopfs("stats", "--json", path)
        assert status == OK and json.loads(out)["mountpoint"] == path
    finally:
        status = coopfs("umount", path)[0]
    assert status == OK and not os.path.ismount(path)


# ---- stats


def test_stats_tell_who_served(cluster, coopfs, data):
    first, second = cluster.connected(2)
    read(first)
    read(second)
    s = [json.loads(coopfs("stats", "--json", n.path)[1])["sources"] for n in (first, second)]
    assert s[0]["storage"]["bytes"] >= SIZE and s[0]["peer"]["bytes"] == 0
    assert s[1]["peer"]["bytes"] >= SIZE * SPARED and s[1]["peer"]["share"] > SPARED
    assert s[1]["peer"]["requests"] == sum(s[1]["peer"]["latency"])
    assert s[1]["peer"]["p50_us"] <= s[1]["peer"]["p99_us"]
    out = coopfs("stats", second.path)[1]
    assert re.search(r"^peer +\d+ +\d+ +(1\.0 MiB|\d+\.\d KiB) +\d+\.\d %", out, re.M), out


def test_stats_reset(cluster, coopfs, data):
    node = cluster.node(peers=False)
    read(node)
    assert node.stats()["storage"]["bytes"] > 0
    assert coopfs("stats", "--reset", node.path) == (OK, "", "")
    assert node.stats()["storage"]["bytes"] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="remounts")
def test_stats_reset_of_a_read_only_mount(cluster, coopfs, data):
    node = cluster.node("ro", peers=False)
    read(node)
    status, _, err = coopfs("stats", "--reset", node.path)
    assert status == FAILED and f"mount -i -o remount,rw {node.path}" in err, err
    subprocess.run(["mount", "-i", "-o", "remount,rw", node.path], check=True)
    assert coopfs("stats", "--reset", node.path) == (OK, "", "")
    assert node.stats()["storage"]["bytes"] == 0


def test_stats_interval_shows_only_what_happened_in_it(cluster, coopfs, data):
    node = cluster.node(peers=False)
    read(node)
    status, out, _ = coopfs("stats", "--interval", "0.05", "--count", "3", "--json", node.path)
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == OK and len(lines) == 3
    for line in lines:
        assert line["seconds"] > 0 and line["sources"]["storage"]["bytes"] == 0


def test_stats_of_somebody_elses_mount(cluster, coopfs):
    node = cluster.node("allow_other", peers=False)
    status, _, err = coopfs("stats", node.path, user=NOBODY, group=NOBODY, extra_groups=[])
    assert status == PERMISSION and "owner" in err
    status, _, err = coopfs("stats", "--reset", node.path, user=NOBODY, group=NOBODY, extra_groups=[])
    assert status == PERMISSION


def test_umount_of_somebody_elses_mount(cluster, coopfs):
    node = cluster.node("allow_other", peers=False)
    status, _, err = coopfs("umount", node.path, user=NOBODY, group=NOBODY, extra_groups=[])
    assert status in (FAILED, PERMISSION) and err and is_mounted(node.path)


# ---- peers


def test_peers(cluster, coopfs):
    nodes = cluster.connected(2)
    status, out, _ = coopfs("peers", "--json", nodes[0].path)
    j = json.loads(out)
    assert status == OK and j["self"]["gid"].endswith(nodes[0].address)
    assert [p["gid"] for p in j["peers"]] == ["::ffff:" + nodes[1].address]
    assert j["peers"][0]["origin"] == "daemon" and j["peers"][0]["state"] == "healthy"
    status, out, _ = coopfs("peers", nodes[0].path)
    assert status == OK and nodes[1].address in out and "healthy" in out


def test_peers_by_hand(cluster, coopfs):
    node = cluster.node()
    line = "gid=::ffff:127.9.9.9 qpn=0x11 qkey=0x1c00b"
    assert coopfs("peers", "--add", line, node.path) == (OK, "", "")
    peers = json.loads(coopfs("peers", "--json", node.path)[1])["peers"]
    assert [(p["gid"], p["origin"]) for p in peers] == [("::ffff:127.9.9.9", "hand")]
    for bad in ("", "nonsense", "gid=::1", line + " qpn=0x12", line + " colour=red", line + "\n" + line):
        status, _, err = coopfs("peers", "--add", bad, node.path)
        assert status == FAILED and "refuses" in err, bad
    assert len(node.peers()) == 1


def test_introduce(cluster, coopfs, data):
    """Nodes of two different daemons do not find each other by themselves."""
    one = cluster.node()
    first, cluster.daemon = cluster.daemon, None
    try:
        two = cluster.node()
        assert one.peers() == [] and two.peers() == []
        assert coopfs("peers", "--introduce", two.path, one.path) == (OK, "", "")
        assert [p["gid"] for p in one.peers()] == ["::ffff:" + two.address]
        assert [p["gid"] for p in two.peers()] == ["::ffff:" + one.address]
        status, _, err = coopfs("peers", "--introduce", one.path, one.path)
        assert status == USAGE and "two mounts" in err
    finally:
        first.process.stop()


def test_peers_of_a_mount_without(cluster, coopfs):
    node = cluster.node(peers=False)
    status, _, err = coopfs("peers", node.path)
    assert status == FAILED and "option ib" in err
    status, _, err = coopfs("peers", "--add", "gid=::1 qpn=0x11 qkey=0x1c00b", node.path)
    assert status == FAILED and "option ib" in err


# ---- top


def test_top_once(cluster, coopfs, data):
    nodes = cluster.connected(2)
    read(nodes[0])
    status, out, _ = coopfs("top", "--once", "--interval", "0.05", *[n.path for n in nodes])
    assert status == OK
    for word in (nodes[0].path, nodes[1].path, "buffer", "peer", "storage", "cache", nodes[1].address):
        assert word in out
    assert all(len(line) <= 80 for line in out.splitlines())
    j = json.loads(coopfs("top", "--once", "--json", "--interval", "0.05", nodes[0].path)[1])
    (mount,) = j["mounts"]
    assert mount["error"] is None and mount["seconds"] > 0 and len(mount["peers"]) == 1
    assert set(mount["bytes_per_second"]) == {"buffer", "peer", "storage"}


def test_top_without_a_terminal_prints_one_look(cluster, coopfs):
    node = cluster.node(peers=False)
    status, out, _ = coopfs("top", "--interval", "0.05", node.path)
    assert status == OK and "\x1b" not in out and "no peers" in out


class Terminal:
    """coopfs top in a pseudo terminal."""

    def __init__(self, *args, rows=24, columns=80):
        self.text = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
            os.environ.update(TERM="xterm", LC_ALL="C.UTF-8")
            os.execv(program("coopfs"), ["coopfs", "top", "--interval", "0.05", *args])

    def wait_text(self, word):
        wait_for(lambda: self._pump() and word in self.text, f"{word!r} on the screen, which has {self.text[-500:]!r}")

    def resize(self, rows, columns):
        self.text = b""
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _pump(self):
        if select.select([self.fd], [], [], 0.02)[0]:
            try:
                self.text += os.read(self.fd, 65536)
            except OSError:
                pass  # the program has ended, which closed it
        return True

    def wait_end(self):
        def ended():
            self._pump()
            pid, self.status = os.waitpid(self.pid, os.WNOHANG)
            return pid
        wait_for(ended, "coopfs top ends")
        self.pid = 0
        return os.waitstatus_to_exitcode(self.status)

    def close(self):
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.fd)


@pytest.mark.parametrize("end", ["q", "SIGINT", "SIGTERM"])
def test_top_live(cluster, coopfs, data, end):
    node = cluster.node(peers=False)
    terminal = Terminal(node.path)
    try:
        terminal.wait_text(b"q quits")
        terminal.wait_text(b"storage")
        terminal.resize(10, 60)
        terminal.wait_text(b"q quits")
        if end == "q":
            os.write(terminal.fd, b"q")
        else:
            os.kill(terminal.pid, getattr(signal, end))
        assert terminal.wait_end() == OK
        assert b"\x1b[?1049l" in terminal.text, "the screen is given back"
    finally:
        terminal.close()


def test_top_stays_when_a_mount_dies(cluster, coopfs):
    node = cluster.node(peers=False)
    terminal = Terminal(node.path)
    try:
        terminal.wait_text(b"storage")
        node.process.kill()
        terminal.wait_text(b"process is gone")
        os.write(terminal.fd, b"q")
        assert terminal.wait_end() == OK
    finally:
        terminal.close()
        unmount(node.path)

# SPDX-License-Identifier: MIT
"""Peers and the daemon end at the worst moment; readers still get the right bytes."""
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import threading

import pytest

from cluster import DEADLINE, drop_kernel_pages, program, state_of, wait_for, wait_until_stopped
from step import SPARED

SIZE = 48 << 20


@pytest.fixture
def data(cluster):
    content = random.Random(9).randbytes(SIZE)
    with open(cluster.file("export/f"), "wb") as f:
        f.write(content)
    return content


def get(path):
    with open(path, "rb") as f:
        return f.read()


class Reader(threading.Thread):
    """Reads a file in small steps; 'reached' lets a test act at a given offset."""

    def __init__(self, path, pause_at):
        super().__init__(daemon=True)
        self.path, self.pause_at = path, pause_at
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.result = None
        self.start()

    def run(self):
        out = []
        try:
            with open(self.path, "rb", buffering=0) as f:
                while piece := os.read(f.fileno(), 128 << 10):
                    out.append(piece)
                    if not self.reached.is_set() and len(out) * (128 << 10) >= self.pause_at:
                        self.reached.set()
                        self.go_on.wait(2 * DEADLINE)
            self.result = b"".join(out)
        except OSError as e:
            self.result = e
        self.reached.set()

    def finish(self):
        self.go_on.set()
        self.join(DEADLINE)
        assert not self.is_alive(), "the reader hangs"
        return self.result


def test_a_peer_is_killed_in_mid_read(cluster, data):
    a, b = cluster.connected(2)
    assert get(a.path + "/f") == data
    reader = Reader(b.path + "/f", SIZE // 4)
    assert reader.reached.wait(DEADLINE)
    a.process.popen.kill()
    assert reader.finish() == data
    s = b.stats()
    assert s["peer"]["bytes"] > 0 and s["storage"]["bytes"] > 0, s
    a.crash()
    wait_for(lambda: b.peers() == [], "the daemon told that the peer left")


def test_a_frozen_peer_costs_little(cluster, data):
    """It answers nothing, and no other node knows: deadlines pass, then storage serves."""
    a, b = cluster.connected(2, "peer_timeout_ms=50")
    assert get(a.path + "/f") == data
    a.process.freeze()
    try:
        assert get(b.path + "/f") == data
        assert [p["state"] for p in b.peers()] != ["healthy"]
    finally:
        a.process.popen.send_signal(18)
    drop_kernel_pages(b.path + "/f")
    assert get(b.path + "/f") == data


def test_a_peer_comes_back(cluster, data):
    a, b = cluster.connected(2)
    get(a.path + "/f")
    a.crash()
    wait_for(lambda: b.peers() == [], "the daemon told that the peer left")
    a.start()
    a.wait_for_peers(1)
    b.wait_for_peers(1)
    assert get(a.path + "/f") == data
    assert get(b.path + "/f") == data
    assert b.stats()["peer"]["bytes"] >= SIZE * SPARED


@pytest.mark.parametrize("peers", [True, False])
def test_the_daemon_restarts_in_mid_read(cluster, data, peers):
    node = cluster.node("cache_size=16M", peers=peers)
    reader = Reader(node.path + "/f", SIZE // 4)
    assert reader.reached.wait(DEADLINE)
    cluster.daemon.process.kill()
    cluster.daemon.start()
    assert reader.finish() == data
    assert get(node.path + "/f") == data


def test_a_daemon_that_is_away_for_a_while(cluster, data):
    node = cluster.node("cache_size=16M", peers=False)
    reader = Reader(node.path + "/f", SIZE // 4)
    assert reader.reached.wait(DEADLINE)
    cluster.daemon.process.kill()
    reader.go_on.set()
    reader.join(1.0)
    assert reader.is_alive(), "it waits for storage"
    cluster.daemon.start()
    assert reader.finish() == data


# Makes one call when told to, and prints its result. Its signal handler interrupts what it can.
CALLER = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
signal.signal(signal.SIGUSR1, lambda *_: None)
path, call = sys.argv[1:]
flags = {"read": os.O_RDONLY, "write": os.O_WRONLY}.get(call)
fd = os.stat(path) and -1 if flags is None else os.open(path, flags)  # caches the name for a second
buffer = ctypes.create_string_buffer(1 << 20)
print("ready", flush=True)
sys.stdin.readline()
if call == "read":
    n = libc.read(fd, buffer, len(buffer))
elif call == "write":
    n = libc.write(fd, b"first", 5)
else:
    n = min(libc.open(os.fsencode(path), os.O_RDONLY), 0)
print(n, ctypes.get_errno() if n < 0 else 0, flush=True)
"""


def in_fuse(task):
    """Whether a process or thread waits for an answer from the file system."""
    with open(f"/proc/{task}/wchan") as f:
        where = f.read()
    # D: waits for a page; the kernel does not always tell where
    return state_of(task) == "D" or any(word in where for word in ("request_wait", "fuse", "folio_wait", "filemap"))


@contextlib.contextmanager
def waiting(cluster, path, call):
    """A process that waits for a stopped daemon."""
    daemon = cluster.daemon.process.popen
    child = subprocess.Popen([sys.executable, "-c", CALLER, path, call], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True)

    try:
        assert child.stdout.readline() == "ready\n"
        daemon.send_signal(signal.SIGSTOP)
        wait_until_stopped(daemon.pid)
        child.stdin.write("go\n")
        child.stdin.flush()
        wait_for(lambda: in_fuse(child.pid), f"it waits in {call}")
        yield child
    finally:
        daemon.send_signal(signal.SIGCONT)
        child.kill()
        child.communicate()


@pytest.mark.parametrize("call", ["read", "open"])
def test_who_waits_for_storage_can_be_killed(cluster, data, call):
    """A call waits a minute for the daemon; the process must die within half of that."""
    node = cluster.node("cache_size=16M", peers=False)
    with waiting(cluster, node.path + "/f", call) as child:
        opening = " op=open state=sent " in node.control("requests")
        child.kill()
        child.wait(30)
        if opening:
            wait_for(lambda: " op=open state=abandoned " in node.control("requests"), "an abandoned open")
    assert get(node.path + "/f") == data
    wait_for(lambda: cluster.daemon.opens() == 0, "what was opened for it to be closed")


def test_the_write_of_one_who_was_killed_is_not_done_after_a_later_one(cluster):
    """The client does not even send the later write before storage has answered the first."""
    node = cluster.node(peers=False)
    path = node.path + "/f"
    with open(path, "wb") as f:
        f.write(b"before")
    with open(path, "r+b", buffering=0) as f, waiting(cluster, path, "write") as child:
        # A request that the client has not read yet ends with its process; storage never hears of it.
        wait_for(lambda: " op=write state=sent " in node.control("requests"), "the first write to be sent")
        child.kill()
        child.wait(30)
        wait_for(lambda: " op=write state=abandoned " in node.control("requests"), "an abandoned write")
        later = threading.Thread(target=os.pwrite, args=(f.fileno(), b"later", 0))
        later.start()
        try:
            wait_for(lambda: in_fuse(later.native_id), "the later one to wait")
            assert node.control("requests").count(" op=write ") == 1
        finally:
            cluster.daemon.process.popen.send_signal(signal.SIGCONT)
            later.join()
    assert get(cluster.export + "/f") == b"latere"
    assert get(path) == b"latere"


def test_what_waits_for_storage_is_seen(cluster, data):
    node = cluster.node("cache_size=16M", peers=False)

    def calls(state):
        return re.findall(rf"^call id=[1-9]\d* op=read state={state} age_us=\d+$", node.control("requests"), re.M)

    with waiting(cluster, node.path + "/f", "read"):
        wait_for(lambda: calls("sent"), "the call to be listed")
    wait_for(lambda: not calls(r"\w+"), "the call to end")


@pytest.mark.parametrize("call", ["read", "open"])
def test_a_handled_signal_fails_no_call(cluster, data, call):
    node = cluster.node("cache_size=16M", peers=False)
    with waiting(cluster, node.path + "/f", call) as child:
        child.send_signal(signal.SIGUSR1)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(1)
        cluster.daemon.process.popen.send_signal(signal.SIGCONT)
        assert child.communicate(timeout=DEADLINE)[0] == f"{1 << 20 if call == 'read' else 0} 0\n"


def test_writes_go_on_after_a_restart(cluster):
    node = cluster.node(peers=False)
    with open(node.path + "/f", "w+b", buffering=0) as f:
        f.write(b"before ")
        # Starting a process closes its copy of f, which would commit to an absent daemon.
        os.fsync(f.fileno())
        cluster.daemon.process.kill()
        cluster.daemon.start()
        f.write(b"after")
        os.fsync(f.fileno())
        assert os.pread(f.fileno(), 100, 0) == b"before after"
    assert get(cluster.export + "/f") == b"before after"


# Changes names until it is told to end. What it makes is its own, so that no call may fail.
NAMER = """
import os, select, sys
def create(path):
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
calls = 0
print("ready", flush=True)
while not select.select([0], [], [], 0)[0]:
    x, y, z = (f"{sys.argv[1]}/{letter}{calls}" for letter in "xyz")
    for call, *args in ((os.mkdir, x), (os.rmdir, x), (create, x), (os.link, x, y), (os.rename, x, z), (os.unlink, y),
                        (os.unlink, z), (os.symlink, "there", x), (os.unlink, x), (os.mkfifo, x), (os.unlink, x)):
        call(*args)
        calls += 1
"""


def test_a_change_of_names_runs_once_over_a_restart(cluster):
    nodes = cluster.connected(2)
    with contextlib.ExitStack() as stack:
        namers = []
        for i in range(4):
            os.mkdir(f"{cluster.export}/{i}")
            namers.append(stack.enter_context(subprocess.Popen(
                [sys.executable, "-c", NAMER, f"{nodes[i % 2].path}/{i}"], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
            stack.callback(namers[-1].kill)
        for namer in namers:
            assert namer.stdout.readline() == "ready\n"
        for _ in range(8):
            before = made(cluster)
            wait_for(lambda: made(cluster) >= before + 200, "the calls go on")  # noqa: B023
            cluster.daemon.process.kill()
            cluster.daemon.start()
        for namer in namers:
            _, errors = namer.communicate("end\n", timeout=2 * DEADLINE)
            assert namer.returncode == 0, errors
    assert not [name for i in range(4) for name in os.listdir(f"{cluster.export}/{i}")]


# Appends numbered lines until it is told to end.
APPENDER = """
import os, select, sys
fd = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("ready", flush=True)
n = 0
while not select.select([0], [], [], 0)[0]:
    os.write(fd, f"{sys.argv[2]} {n}\\n".encode())
    n += 1
print(n)
"""


def test_an_append_runs_once_over_a_restart(cluster):
    nodes = cluster.connected(2)
    log = cluster.export + "/log"
    open(log, "w").close()
    with contextlib.ExitStack() as stack:
        writers = []
        for i in range(6):
            writers.append(stack.enter_context(subprocess.Popen(
                [sys.executable, "-c", APPENDER, nodes[i % 2].path + "/log", str(i)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)))
            stack.callback(writers[-1].kill)
        for w in writers:
            assert w.stdout.readline() == "ready\n"
        for _ in range(25):
            before = os.path.getsize(log)
            wait_for(lambda: os.path.getsize(log) > before + 500, "the appends go on")  # noqa: B023
            cluster.daemon.process.kill()
            cluster.daemon.start()
        expected = []
        for i, w in enumerate(writers):
            said, errors = w.communicate("end\n", timeout=2 * DEADLINE)
            assert w.returncode == 0, errors
            expected += [f"{i} {n}" for n in range(int(said))]
    with open(log) as f:
        lines = f.read().splitlines()
    assert sorted(lines) == sorted(expected)
    for i in range(6):
        mine = [int(line.split()[1]) for line in lines if line.startswith(f"{i} ")]
        assert mine == sorted(mine)


def made(cluster):
    """How many calls these programs have made, as the names in the export tell."""
    return sum(int(name[1:]) for i in range(4) for name in os.listdir(f"{cluster.export}/{i}"))


def test_peers_find_each_other_again_after_a_restart(cluster, data):
    a, b = cluster.connected(2)
    get(a.path + "/f")
    cluster.daemon.process.kill()
    cluster.daemon.start()
    wait_for(lambda: "daemon" in b.peers()[0]["origin"] if b.peers() else False,
             "the daemon named the peer again")
    assert get(a.path + "/f") == data
    assert get(b.path + "/f") == data


def test_nothing_is_left_behind(cluster):
    nodes = cluster.connected(2)
    for node in nodes:
        assert node.stop() == 0
    assert cluster.daemon.process.stop() in (0, -15)


@pytest.mark.parametrize("options", [[], ["allow_other"]])
def test_a_silent_daemon_does_not_hide_the_mount(cluster, options):
    """What tells that storage is silent answers, also while calls at the top of the mount wait."""
    node = cluster.node(*options)
    space = os.statvfs(node.path)
    top = os.stat(node.path)
    cluster.daemon.process.freeze()
    waits = [subprocess.Popen(["touch", node.path + "/new"]), subprocess.Popen(["ls", node.path + "/none"],
                                                                             stderr=subprocess.DEVNULL)]
    try:
        wait_for(lambda: len(re.findall(r"^call ", node.control("requests"), re.M)), "a call waits")
        for command in ("stats", "peers"):
            subprocess.run([program("coopfs"), command, node.path], check=True, stdout=subprocess.DEVNULL)
        # Leases answer for ten seconds; after that nothing may, so what is asked now waits and then tells the last.
        wait_for(lambda: max(map(int, re.findall(r"age_us=(\d+)", node.control("requests")))) > 11_000_000,
                 "leases are not trusted any more")
        for _ in range(2):
            assert os.statvfs(node.path).f_blocks == space.f_blocks
            assert os.stat(node.path).st_ino == top.st_ino
        subprocess.run(["df", node.path], check=True, stdout=subprocess.DEVNULL)
        subprocess.run([program("coopfs"), "stats", node.path], check=True, stdout=subprocess.DEVNULL)
        assert all(p.poll() is None for p in waits), "no other call ends"
    finally:
        cluster.daemon.process.popen.send_signal(signal.SIGCONT)
    assert [bool(p.wait(DEADLINE)) for p in waits] == [False, True]
    assert os.stat(node.path).st_mtime_ns > top.st_mtime_ns, "the present attributes again"

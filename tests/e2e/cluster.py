# SPDX-License-Identifier: MIT
"""A storage daemon and any number of FUSE nodes on this machine, for one test.

Each node has its own address in 127.64.0.0/10, derived from the process id of pytest
so that parallel runs do not meet. The fixture kills every process it started, by
process id, and unmounts every mount; an exit handler does the same if a test is
interrupted, and each child's parent death signal if the interpreter dies.
"""
import atexit
import ctypes
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

DEADLINE = 120.0  # seconds until an awaited condition counts as missed, on a busy machine with a slow disk
BIN = os.environ.get("COOP_BIN", "")
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
SERVER = 254  # the number of the daemon's machine
MNT_DETACH = 2


def program(name):
    return os.path.join(BIN, name)


def wait_for(condition, what, deadline=DEADLINE):
    """Returns the first true value of condition(), or raises an error that names 'what' at the deadline."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline:.0f} s: {what}")
        time.sleep(0.01)


def state_of(task):
    """The state letter of a process or thread (a path below /proc); X if it has ended."""
    try:
        with open(f"/proc/{task}/stat") as f:
            return f.read().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def wait_until_stopped(pid):
    """After SIGSTOP: each thread works on until it notices."""
    wait_for(lambda: all(state_of(f"{pid}/task/{t}") in "TtX" for t in os.listdir(f"/proc/{pid}/task")),
             f"process {pid} has stopped")


def is_mounted(path):
    with open("/proc/self/mountinfo") as f:
        return any(line.split()[4] == path for line in f)


def unmount(path):
    if is_mounted(path):
        LIBC.umount2(os.fsencode(path), MNT_DETACH)


def address(number):
    """The number-th address of this run, 127.64.0.0 + 256 * f(pid) + number."""
    base = os.getpid() % (1 << 14)
    return f"127.{64 + (base >> 8)}.{base & 255}.{number}"


class Process:
    def __init__(self, argv, log, **kw):
        self.log_path = log
        self.argv = argv
        with open(log, "ab") as out:
            self.popen = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM), **kw)

    @property
    def pid(self):
        return self.popen.pid

    def running(self):
        return self.popen.poll() is None

    def log(self):
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def freeze(self):
        """Sends SIGSTOP and waits until every thread has stopped: from here on it answers nothing."""
        self.popen.send_signal(signal.SIGSTOP)
        wait_until_stopped(self.popen.pid)

    def kill(self):
        """Kills it without any goodbye, as a crash does."""
        self.popen.kill()
        self.popen.wait()

    def stop(self, deadline=DEADLINE):
        """Sends SIGTERM; returns the exit status, or raises an error if the process does not end."""
        if self.running():
            self.popen.terminate()
        try:
            return self.popen.wait(deadline)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.argv[0]} did not end on SIGTERM\n{self.log()}")


class Daemon:
    def __init__(self, cluster, args):
        self.cluster, self.args = cluster, args
        self.port, self.process = 0, None
        self.start()

    def start(self):
        reads, writes = os.pipe()
        argv = [*self.cluster.within(SERVER), program("coopfsd"), "--listen", f"{self.cluster.server}:{self.port}",
                "--ready-fd", str(writes), *self.args]
        self.process = Process(argv, self.cluster.file("coopfsd.log"), pass_fds=[writes])
        os.close(writes)
        with os.fdopen(reads) as f:
            line = f.readline()  # returns also when the daemon ends
        if not line:
            self.process.popen.wait()
            raise AssertionError(f"coopfsd did not start\n{self.process.log()}")
        self.port = int(line)

    def opens(self):
        """How many files clients have open: the daemon logs it on SIGUSR1, unless it has a file for its figures."""
        def said():
            return re.findall(r"^opens (\d+)$", self.process.log(), re.M)
        before = len(said())
        self.process.popen.send_signal(signal.SIGUSR1)
        wait_for(lambda: len(said()) > before, "the daemon's figures")
        return int(said()[-1])


class Node:
    def __init__(self, cluster, number, options, source):
        self.cluster, self.number = cluster, number
        self.path = cluster.file(f"node{number}")
        os.makedirs(self.path, exist_ok=True)
        self.address = cluster.address(number)
        self.argv = [*cluster.within(number), program("coopfs-fuse"), source, self.path, "-f"]
        if options:
            self.argv += ["-o", ",".join(options)]
        self.process = None
        self.start()

    def start(self):
        self.process = Process(self.argv, self.cluster.file(f"node{self.number}.log"))
        self.cluster.mounts.append(self.path)

        def usable():
            if not self.process.running():
                raise AssertionError(f"coopfs-fuse ended\n{self.process.log()}")
            return is_mounted(self.path) and os.path.exists(self.path + "/.coopfs/info")
        wait_for(usable, f"mount on {self.path}")

    def crash(self):
        self.process.kill()
        unmount(self.path)

    def stop(self):
        status = self.process.stop()
        assert not is_mounted(self.path), f"{self.path} is still mounted"
        return status

    def control(self, name):
        with open(f"{self.path}/.coopfs/{name}") as f:
            return f.read()

    def write_control(self, name, text):
        fd = os.open(f"{self.path}/.coopfs/{name}", os.O_WRONLY)
        try:
            return os.write(fd, text.encode())
        finally:
            os.close(fd)

    def stats(self):
        """{"buffer": {"requests", "pages", "bytes"}, "peer", "storage", "traffic": {...}}"""
        out = {"traffic": {}}
        for line in self.control("stats").splitlines():
            words = line.split()
            if words[0] == "source":
                out[words[1]] = pairs(words[2:])
            elif words[0] == "traffic":
                out["traffic"][words[1]] = pairs(words[2:])
            elif words[0] in ("fetch", "serve", "offer", "read", "endpoint"):
                out.setdefault(words[0], {})[words[1]] = int(words[2])
        return out

    def reset(self):
        self.write_control("stats", "reset\n")

    def peers(self):
        """One dictionary per peer."""
        return [dict(w.split("=", 1) for w in line.split()[1:])
                for line in self.control("peers").splitlines() if line.startswith("peer ")]

    def wait_for_peers(self, n):
        wait_for(lambda: len(self.peers()) >= n, f"node {self.number} knows {n} peers")

    def ibaddr(self):
        return self.control("ibaddr").splitlines()[0]


def drop_kernel_pages(path):
    """Drops the kernel's cached pages of a file, so that the next read asks the client."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def pairs(words):
    return {k: int(v) for k, v in zip(words[::2], words[1::2])}


class Cluster:
    def __init__(self):
        self.base = tempfile.mkdtemp(prefix="coopfs-e2e-")
        os.chmod(self.base, 0o755)
        self.export = self.file("export")
        os.mkdir(self.export)
        self.server = self.address(SERVER)
        self.mounts, self.nodes = [], []
        self.daemon = None
        self.key = None
        atexit.register(self.close)

    def address(self, number):
        """Of a node, or of the daemon's machine, SERVER."""
        return address(number)

    def within(self, _number):
        """Words before the command line of a program of that machine."""
        return []

    def file(self, name):
        return os.path.join(self.base, name)

    def make_key(self, name="key", content=None):
        path = self.file(name)
        with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "wb") as f:
            f.write(os.urandom(48) if content is None else content)
        return path

    def start_daemon(self, *args):
        self.daemon = Daemon(self, ["--export", f"data={self.export}", *args])
        return self.daemon

    def source(self, export="data"):
        return f"{self.server}:{self.daemon.port}:/{export}"

    def node(self, *options, peers=True, number=None):
        """Mounts the next node. peers: with option ib, its own address, and more patience
        than usual: a busy test machine must not look like a dead peer."""
        if self.daemon is None:
            self.start_daemon()
        number = number or len(self.nodes) + 1
        words = list(options)
        if peers:
            words += ["ib", f"addr={self.address(number)}"]
            if not any(w.startswith("peer_timeout_ms=") for w in words):
                words.append("peer_timeout_ms=2000")
        node = Node(self, number, words, self.source())
        self.nodes.append(node)
        return node

    def connected(self, n, *options):
        """n nodes that all know each other."""
        nodes = [self.node(*options) for _ in range(n)]
        for node in nodes:
            node.wait_for_peers(n - 1)
        return nodes

    def close(self):
        atexit.unregister(self.close)
        problems = []
        for node in self.nodes:
            try:
                if node.process.running():
                    node.process.stop()
            except AssertionError as e:
                problems.append(str(e))
        for path in self.mounts:
            unmount(path)
        if self.daemon and self.daemon.process.running():
            try:
                self.daemon.process.stop()
            except AssertionError as e:
                problems.append(str(e))
        for process in [n.process for n in self.nodes] + ([self.daemon.process] if self.daemon else []):
            if re.search(r"(Address|Leak|UndefinedBehavior)Sanitizer|runtime error:", process.log()):
                problems.append(f"{process.argv[0]}:\n{process.log()[-4000:]}")
        shutil.rmtree(self.base, ignore_errors=True)
        return problems

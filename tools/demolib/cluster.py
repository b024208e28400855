# SPDX-License-Identifier: MIT
"""A daemon and its nodes on this machine, each a process in the foreground.

Nodes have loopback addresses of their own, chosen by process id, so that two
demos do not meet.
"""
import contextlib
import os
import select
import subprocess
import time

from children import Child, tail, undisturbed
from failure import Failure
from rundir import unmount

START_S = 120
# A whole cluster shares this machine's processors, maybe with other work: a peer that waits for its
# turn is not a dead one.
PEER_TIMEOUT_MS = 1000
# What only the kernel has cached is not there for peers when it drops it, or answers late because the
# machine is busy.
KEEP_COPIES = 1
EXPORT = "data"

class Node:
    def __init__(self, name, address, mountpoint):
        self.name = name
        self.address = address
        self.mountpoint = mountpoint
        self.child = None

    def control(self, name):
        with open(os.path.join(self.mountpoint, ".coopfs", name), encoding="utf-8") as file:
            return file.read()

    def reset(self):
        with open(os.path.join(self.mountpoint, ".coopfs", "stats"), "w", encoding="ascii") as file:
            file.write("reset\n")

    def sources(self):
        """Bytes handed to readers so far, by where they came from."""
        out = {}
        for line in self.control("stats").splitlines():
            word = line.split()
            if word[:1] == ["source"]:
                out[word[1]] = int(word[word.index("bytes") + 1])
        return out

    def storage_bytes_received(self):
        for line in self.control("stats").splitlines():
            word = line.split()
            if word[:2] == ["traffic", "storage"]:
                return int(word[word.index("rx_bytes") + 1])
        return 0

    def keep_counters(self, log_dir):
        """What the node counted, for whoever wants to know why."""
        for name in ("stats", "peers"):
            with open(os.path.join(log_dir, f"{self.name}.{name}"), "w", encoding="utf-8") as file:
                file.write(self.control(name))

    def peer_count(self):
        return sum(line.startswith("peer ") for line in self.control("peers").splitlines())

    def take_down(self):
        if os.path.ismount(self.mountpoint):
            subprocess.run(["fusermount3", "-u", self.mountpoint], stderr=subprocess.DEVNULL, check=False)
        if self.child:
            self.child.stop()
        if not unmount(self.mountpoint):
            raise Failure(f"{self.mountpoint} cannot be unmounted; `umount -l {self.mountpoint}` as root")


class Cluster:
    def __init__(self, bin_dir, run, data, names):
        self._bin, self._run, self._data = bin_dir, run, data
        pid = os.getpid()
        net = f"127.{1 + (pid >> 8) % 250}.{pid % 256}"
        self.nodes = [Node(name, f"{net}.{i + 1}", run.path("mnt", name)) for i, name in enumerate(names)]
        self._ends = contextlib.ExitStack()

    def start(self):
        key = os.path.join(self._run.top, "key")
        with open(os.open(key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(os.urandom(32))
        server = f"127.0.0.1:{self._start_daemon(key)}:/{EXPORT}"
        for node in self.nodes:
            with undisturbed():
                self._ends.callback(node.take_down)
                node.child = Child(
                    [os.path.join(self._bin, "coopfs"), "mount", "-t", "fuse.coopfs", "--foreground",
                     "-o", f"ib,addr={node.address},peer_timeout_ms={PEER_TIMEOUT_MS},"
                     f"keep_copies={KEEP_COPIES},cache_size={self._data.cache_bytes},key={key}",
                     server, node.mountpoint],
                    os.path.join(self._run.log, node.name + ".log"))
        for node in self.nodes:
            self._wait(node, lambda n=node: os.path.ismount(n.mountpoint) and n.control("info"), "is not mounted")
        for node in self.nodes:
            self._wait(node, lambda n=node: n.peer_count() == len(self.nodes) - 1, "does not know its peers")

    def stop(self):
        """Also of what has started in part."""
        with undisturbed():
            self._ends.close()

    def _start_daemon(self, key):
        ready, tell = os.pipe()
        try:
            with undisturbed():
                daemon = Child(
                    [os.path.join(self._bin, "coopfsd"), "--export", f"{EXPORT}={self._data.path}",
                     "--listen", "127.0.0.1:0", "--key", key, "--ready-fd", str(tell)],
                    os.path.join(self._run.log, "coopfsd.log"), pass_fds=(tell,))
                self._ends.callback(daemon.stop)
            os.close(tell)
            tell = None
            if not select.select([ready], [], [], START_S)[0]:
                raise Failure(f"coopfsd is not ready after {START_S} s; see {daemon.log}")
            port = os.read(ready, 16).strip()
            if not port:  # it closed the pipe without a word: it is ending
                daemon.stop()
                daemon.check()
            return int(port)
        finally:
            os.close(ready)
            if tell is not None:
                os.close(tell)

    def _wait(self, node, condition, what):
        limit = time.monotonic() + START_S
        while True:
            node.child.check()
            with contextlib.suppress(OSError):
                if condition():
                    return
            if time.monotonic() > limit:
                raise Failure(f"{node.name} {what} after {START_S} s; its last words:\n{tail(node.child.log)}")
            time.sleep(0.02)

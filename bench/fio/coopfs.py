# SPDX-License-Identifier: MIT
"""coopfs in the two situations that matter: alone with the storage daemon, and as the second reader.

coopfs_storage is one node and a daemon that knows no other node. coopfs_peer has its own daemon and a
node, the holder, that has read everything and stays; the reader of each case is a new node, so its bytes
come from the holder. Each node has its own loopback address, so that no two share a socket or a page
store. Every figure comes with the reader's stats, which show if a cold read came from storage instead.
The `-old` ones are the same of another build, which shows if a change made reads slower.
"""

import os
import pathlib
import time

from rivals import system
from sandbox import is_mounted, unmount, unusable, wait_for

EXPORT = "bench"


def binaries(root):
    return pathlib.Path(os.environ.get("COOP_BIN", root / "build/release/bin")).resolve()


def parse_stats(text):
    """The stats text (one record per line, 'key value' pairs) as nested dictionaries."""
    stats = {}
    for line in text.splitlines()[1:]:
        words = line.split()
        if words[0] in ("source", "traffic"):
            pairs = words[2:]
            stats.setdefault(words[0], {})[words[1]] = dict(zip(pairs[::2], map(int, pairs[1::2])))
        elif words[0] in ("fetch", "serve", "endpoint"):
            stats.setdefault(words[0], {})[words[1]] = int(words[2])
        elif words[0] == "cache":
            stats["cache"] = dict(zip(words[1::2], map(int, words[2::2])))
    return stats


class coopfs_storage(system):
    name = "coopfs-storage"
    title = "coopfs, from storage"
    states = ("storage",)
    writes = True
    reader_address = "127.0.0.11"

    def _bin(self):
        return self.bed.bin

    def start(self):
        for program in ("coopfsd", "coopfs-fuse"):
            if not (self._bin() / program).exists():
                raise unusable(f"{self._bin() / program} is not built: make user")
        self._start_daemon()

    def _start_daemon(self):
        reading, writing = os.pipe()
        daemon = self.processes.start(
            [self._bin() / "coopfsd", "--export", f"{EXPORT}={self.bed.data.folder}",
             "--listen", "127.0.0.1:0", "--ready-fd", writing], pass_fds=(writing,))
        os.close(writing)
        with os.fdopen(reading) as ready:
            line = ready.readline()
        if not line.strip().isdigit():
            raise RuntimeError(f"coopfsd did not start: {self.processes.last_words()}")
        self.port_ = int(line)
        self.daemon_ = daemon

    def _options(self, address):
        cache = 2 * (self.bed.data.size + self.bed.data.small_bytes() * 8)
        return f"ib,addr={address},cache_size={cache}"

    def _node(self, address, mountpoint):
        argv = [self._bin() / "coopfs-fuse", f"127.0.0.1:{self.port_}:/{EXPORT}", mountpoint,
                "-o", self._options(address), "-f"]
        child = self.processes.start(argv)
        wait_for(f"{self.name}: mount", lambda: is_mounted(mountpoint), child=child, owner=self.processes)
        return child

    def mount(self):
        self.child_ = self._node(self.reader_address, self.mountpoint)
        self._wait_for_memory()

    def _wait_for_memory(self, seconds=20):
        """Waits until the memory of the store can hold the big file, or grows no more. In real use a
        node is mounted long before its first read, and an idle processor populates the store meanwhile.
        The figure's notes say how much was present."""
        deadline = time.monotonic() + seconds
        grew, present = time.monotonic(), -1
        while present < self.bed.data.size:
            now = self._stats()["cache"]["present"]
            if now > present:
                grew, present = time.monotonic(), now
            if time.monotonic() > min(deadline, grew + 1):
                return
            time.sleep(0.05)

    def _stats(self):
        return parse_stats((self.mountpoint / ".coopfs/stats").read_text())

    def notes(self):
        stats = self._stats()
        (self.mountpoint / ".coopfs/stats").write_text("reset\n")
        return stats

    def verify(self, data):
        """Compares every byte, through a new mount, with the backing files; outside all measurements."""
        self.mount()
        try:
            done = self.processes.run_any(["diff", "-rq", data.folder, self.mountpoint])
            return None if done.returncode == 0 else f"data differ: {done.stdout}{done.stderr}"
        finally:
            self.unmount()


class coopfs_no_commit(coopfs_storage):
    """As with sshfs and local file systems, a close does not wait for the disk."""

    name = "coopfs-no-commit"
    title = "coopfs, commit_on_close=0"
    states = ()
    reader_address = "127.0.0.12"

    def _options(self, address):
        return super()._options(address) + ",commit_on_close=0"


class coopfs_peer(coopfs_storage):
    name = "coopfs-peer"
    title = "coopfs, from a peer"
    states = ("peer", "warm")
    writes = False  # peers take no part in writes
    reader_address = "127.0.0.22"
    holder_address = "127.0.0.21"

    def start(self):
        super().start()
        self.holder_ = self.bed.folder / "mnt" / f"{self.name}-holder"
        self.holder_.mkdir()
        self.holder_child_ = self._node(self.holder_address, self.holder_)
        self.processes.run(["sh", "-c", 'find "$0" -type f -print0 | xargs -0 cat | wc -c',
                            self.holder_])

    def mount(self):
        super().mount()
        self._wait_for_peer()

    def _wait_for_peer(self):
        """Waits for the daemon's JOIN, which may arrive after the mount is ready; a reader that starts
        earlier would read from storage."""
        peers = self.mountpoint / ".coopfs/peers"
        wait_for(f"{self.name}: holder among the peers", lambda: self.holder_address in peers.read_text(),
                 child=self.child_, owner=self.processes)

    def stop(self):
        super().unmount()
        if hasattr(self, "holder_"):
            unmount(self.holder_)
        super().stop()


class _old:
    def _bin(self):
        if self.bed.old is None:
            raise unusable("--old names no other build")
        return self.bed.old


class coopfs_storage_old(_old, coopfs_storage):
    name = "coopfs-storage-old"
    title = "coopfs of --old, from storage"
    writes = False
    reader_address = "127.0.0.31"


class coopfs_peer_old(_old, coopfs_peer):
    name = "coopfs-peer-old"
    title = "coopfs of --old, from a peer"
    reader_address = "127.0.0.42"
    holder_address = "127.0.0.41"

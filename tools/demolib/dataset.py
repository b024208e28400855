# SPDX-License-Identifier: MIT
"""What is exported: a copy of a real tree, and one large pseudo-random file.

A copy, because the tree must not change between the checksum and the last read.
The large file is an AES-CTR key stream: it does not compress, repeats nowhere
and is the same on every machine. BLAKE2b is fast without special instructions
and leaves no doubt about equality.
"""
import json
import os
import shutil
import subprocess
import sys

from children import follow_parent
from failure import Failure

TREE = "tree"
LARGE = "large.bin"
PAGE = 4096
HELPER = os.path.join(os.path.dirname(os.path.realpath(__file__)), "readtree.py")


def available_memory():
    with open("/proc/meminfo", encoding="ascii") as info:
        for line in info:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


class Description:
    """{relative path: [size, digest]} of files and links, taken by a process of its own. Several can
    be at work; leaving the context ends it."""

    def __init__(self, root, below="."):
        """below: describes only this entry of root."""
        self._root = root
        self._child = subprocess.Popen([sys.executable, HELPER, "sum", root, below], stdout=subprocess.PIPE,
                                       start_new_session=True, preexec_fn=follow_parent())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._child.poll() is None:
            self._child.kill()
            self._child.wait()
        self._child.stdout.close()

    def result(self):
        text, _ = self._child.communicate()
        if self._child.returncode != 0:
            raise Failure(f"taking checksums of {self._root} failed")
        return json.loads(text)


class Dataset:
    def __init__(self, path, tree, large_bytes, nodes):
        self.path = path
        self._copy(tree)
        self._check_room(large_bytes, nodes)
        with Description(path, TREE) as tree:
            self._make_large(large_bytes)
            with Description(path, LARGE) as large:
                self.manifest = {**tree.result(), **large.result()}
        sizes = [size for size, _ in self.manifest.values()]
        self.files = len(sizes)
        self.bytes = sum(sizes)
        self.large_bytes = large_bytes

    def _copy(self, tree):
        target = os.path.join(self.path, TREE)
        copied = subprocess.run(["cp", "-a", "--reflink=auto", tree + "/.", target],
                                stdin=subprocess.DEVNULL, preexec_fn=follow_parent(), check=False)
        if copied.returncode != 0:
            raise Failure(f"copying {tree} to {target} failed (no room? not readable?); --tree names another")

    def _check_room(self, large_bytes, nodes):
        pages = large_bytes // PAGE
        for where, _, files in os.walk(os.path.join(self.path, TREE)):
            pages += sum(-(-os.lstat(os.path.join(where, f)).st_size // PAGE) + 1 for f in files)
        # Every node is to keep all of it, with room for the last block of each file and for eviction's slack.
        self.cache_bytes = (pages * PAGE * 5 // 4 + (64 << 20)) >> 20 << 20
        need = nodes * (pages * PAGE) + (512 << 20)
        if available_memory() < need:
            raise Failure(f"needs {need >> 20} MiB of free memory for {nodes} nodes, and there are "
                          f"{available_memory() >> 20} MiB; make it smaller with --size")
        free = shutil.disk_usage(self.path).free
        if free < large_bytes + (64 << 20):
            raise Failure(f"needs {large_bytes >> 20} MiB in {self.path}, and there are {free >> 20} MiB")

    def _make_large(self, size):
        path = os.path.join(self.path, LARGE)
        with open(path, "wb") as out:
            stream = subprocess.Popen(
                ["openssl", "enc", "-aes-128-ctr", "-K", "00" * 16, "-iv", "00" * 16, "-in", "/dev/zero"],
                stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=follow_parent())
            try:
                subprocess.run(["head", "-c", str(size)], stdin=stream.stdout, stdout=out,
                               preexec_fn=follow_parent(), check=False)
            finally:
                stream.kill()
                stream.wait()
                stream.stdout.close()
        if os.path.getsize(path) != size:
            raise Failure(f"{path} has {os.path.getsize(path)} of {size} bytes: no room, or openssl failed")

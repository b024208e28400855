# SPDX-License-Identifier: MIT
"""The one directory that holds all that a run makes and does not leave behind.

It is locked while its run lives. So a run that was killed outright is told from
one that is at work, and the next run takes down what the dead one left: mounts
first, then files. Nothing is deleted below a path that is still a mount point,
because deleting through a mount would delete what is mounted.
"""
import fcntl
import glob
import os
import re
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from children import undisturbed
from failure import Failure

REMOVERS = 16


def mounts_below(path):
    """Mount points below the path, the deepest first."""
    found = []
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as table:
        for line in table:
            point = re.sub(r"\\([0-3][0-7]{2})", lambda m: chr(int(m[1], 8)), line.split(" ")[4])
            if point.startswith(path + "/"):
                found.append(point)
    return sorted(found, key=len, reverse=True)


def unmount(point):
    """By any means; lazily in the end. True if it is gone from the tree."""
    for command in (["fusermount3", "-u", point], ["fusermount3", "-u", "-z", point], ["umount", "-l", point]):
        if point not in mounts_below(os.path.dirname(point)):
            return True
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return point not in mounts_below(os.path.dirname(point))


def remove_tree(path):
    """As far as it can be. Many files at a time: a file system that is mounted with `discard` may wait
    for its device at each."""
    with ThreadPoolExecutor(REMOVERS) as several:
        for part in glob.glob(os.path.join(glob.escape(path), "*", "*", "*")):  # run/export/tree/part
            several.submit(shutil.rmtree, part, ignore_errors=True)
    shutil.rmtree(path, ignore_errors=True)


def remove(path):
    # What ends just now may add a file, or a mount, after the first look.
    deadline = time.monotonic() + 5
    while True:
        for point in mounts_below(path):
            if not unmount(point):
                raise Failure(f"{point} cannot be unmounted; `umount -l {point}` as root, then remove {path}")
        remove_tree(path)
        if not os.path.lexists(path):
            return
        if time.monotonic() > deadline:
            raise Failure(f"{path} cannot be removed whole")
        time.sleep(0.05)


class RunDir:
    def __init__(self, out):
        self.out = out
        self.log = os.path.join(out, "log")
        self.top = None
        self._lock = None

    def create(self):
        os.makedirs(self.log, exist_ok=True)
        self._sweep()
        for name in ("report.json", "demo.svg"):
            if os.path.exists(os.path.join(self.out, name)):
                os.unlink(os.path.join(self.out, name))
        with undisturbed():
            # realpath: mountinfo knows no symbolic links
            self.top = os.path.realpath(tempfile.mkdtemp(prefix="run-", dir=self.out))
            self._lock = os.open(self.top, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self):
        """Also if it was never made."""
        with undisturbed():
            if self._lock is not None:
                remove(self.top)
                os.close(self._lock)

    def path(self, *names):
        path = os.path.join(self.top, *names)
        os.makedirs(path, exist_ok=True)
        return path

    def _sweep(self):
        for name in os.listdir(self.out):
            path = os.path.realpath(os.path.join(self.out, name))
            if not name.startswith("run-") or not os.path.isdir(path):
                continue
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
            except BlockingIOError:
                raise Failure(f"another demo is at work in {self.out}; let it end, or choose another --out") from None
            finally:
                os.close(lock)

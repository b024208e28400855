# SPDX-License-Identifier: MIT
"""The namespaces that a benchmark runs in, and their removal.

Mounts, servers, users and networks of the rivals must never touch the machine, not even if the run is
killed half way. So the harness runs twice: the outer process makes a folder and a control group, the
inner one is process 1 of new mount, pid and network namespaces. When the inner process ends, for any
reason, the kernel kills all processes that it started and removes its mounts and interfaces; the outer
process then removes the folder and the control group. If the outer process is killed too, the next run
finds the folder's lock free and removes both.
"""

import contextlib
import ctypes
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

PREFIX = "coop-bench."
INNER = "COOP_BENCH_INNER"
PR_SET_PDEATHSIG = 1


class unusable(Exception):
    """A system cannot run here; the text says what is missing and how to get it."""


def control_group_root():
    """The directory for a control group that accounts CPU time, or None."""
    candidates = []
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, where, kind, options = line.split()[:4]
            if kind == "cgroup2":
                candidates.insert(0, pathlib.Path(where))
            elif kind == "cgroup" and "cpuacct" in options.split(","):
                candidates.append(pathlib.Path(where))
    for where in candidates:
        if os.access(where, os.W_OK):
            return where
    return None


def remove_control_group(group, seconds=5):
    """Removes the group and its children, and waits for their last processes to exit."""
    if group is None or not group.exists():
        return
    deadline = time.monotonic() + seconds
    for child in [*group.iterdir(), group]:
        if not child.is_dir():
            continue
        while True:
            try:
                child.rmdir()
                break
            except OSError:
                if time.monotonic() > deadline:
                    print(f"bench: {child} is still in use; remove it with rmdir", file=sys.stderr)
                    return
                time.sleep(0.02)


def sweep(parent_folder, root):
    """Removes what a killed outer process left: its lock is free."""
    for folder in pathlib.Path(parent_folder).glob(PREFIX + "*"):
        lock = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_control_group(root / folder.name if root else None)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def run_outer(argv, parent_folder, strays=()):
    """Runs this program again inside the namespaces; returns its exit status. Of the inner process's servers,
    which end with it, it also removes the folders 'strays', which lie outside of the run's own folder."""
    if os.geteuid() != 0:
        print("bench: needs root for its own namespaces and mounts: run it with sudo", file=sys.stderr)
        return 2
    root = control_group_root()
    sweep(parent_folder, root)
    folder = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent_folder))
    folder.chmod(0o755)
    lock = os.open(folder, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    group = None
    if root:
        group = root / folder.name
        group.mkdir()
    environment = dict(os.environ)
    environment[INNER] = f"{folder}:{group or ''}"
    child = None
    pending = []

    def stop(number, _frame):
        pending.append(number)
        if child and child.poll() is None:
            for pid in inner_pids(child.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        child = subprocess.Popen(
            ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "--mount-proc",
             "--propagation", "private", sys.executable, *argv],
            env=environment, preexec_fn=die_with_parent, start_new_session=True)
        status = child.wait()
        return 128 + pending[0] if pending else status
    finally:
        remove_control_group(group)
        remove_folder(folder)
        for stray in strays:
            shutil.rmtree(stray, ignore_errors=True)


def remove_folder(folder):
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        print(f"bench: cannot remove {folder}; remove it by hand", file=sys.stderr)


def inner_pids(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        return [int(word) for word in children.read().split()]


def enter():
    """In the inner process: (folder, control group or None), or None in the outer one."""
    value = os.environ.pop(INNER, None)
    if value is None:
        return None
    folder, _, group = value.partition(":")
    # Process 1 of a pid namespace ignores every signal that it does not handle.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(130))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    return pathlib.Path(folder), pathlib.Path(group) if group else None


class processes:
    """Starts the processes of one system in its own control group."""

    def __init__(self, name, group, log_folder):
        self.name = name
        self.group_ = group / name if group else None
        if self.group_:
            self.group_.mkdir(exist_ok=True)
        self.log_path = log_folder / f"{name}.log"
        self.log_ = open(self.log_path, "ab")
        self.running_ = []

    def _join(self):
        if self.group_:
            (self.group_ / "cgroup.procs").write_text("0")

    def start(self, argv, **options):
        options.setdefault("stdout", self.log_)
        options.setdefault("stderr", self.log_)
        options.setdefault("stdin", subprocess.DEVNULL)
        child = subprocess.Popen([str(word) for word in argv], preexec_fn=self._join, **options)
        self.running_.append(child)
        return child

    def run(self, argv, timeout=600, **options):
        """Runs a program to completion; returns its output, or raises with its error text."""
        done = self.run_any(argv, timeout, **options)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, argv))}: exit {done.returncode}: "
                               f"{done.stderr.strip()[-500:]}")
        return done.stdout

    def run_any(self, argv, timeout=600, **options):
        return subprocess.run([str(word) for word in argv], preexec_fn=self._join, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              stdin=subprocess.DEVNULL, timeout=timeout, **options)

    def stop(self, child, seconds=10):
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if child in self.running_:
            self.running_.remove(child)

    def stop_all(self):
        for child in reversed(list(self.running_)):
            self.stop(child)

    def cpu_seconds(self):
        """CPU seconds that this system's processes, also ended ones, have used; None: unknown."""
        if not self.group_:
            return None
        unified = self.group_ / "cpu.stat"
        if unified.exists():
            for line in unified.read_text().splitlines():
                key, value = line.split()
                if key == "usage_usec":
                    return int(value) / 1e6
        accounted = self.group_ / "cpuacct.usage"
        return int(accounted.read_text()) / 1e9 if accounted.exists() else None

    def last_words(self):
        self.log_.flush()
        text = self.log_path.read_text(errors="replace").strip().splitlines()
        return " | ".join(text[-3:]) or "(no output)"


def wait_for(what, condition, seconds=120, child=None, owner=None):
    """Polls until condition() is true; the error names what did not happen, and quotes the log's end."""
    deadline = time.monotonic() + seconds
    while not condition():
        ended = child is not None and child.poll() is not None
        if ended or time.monotonic() > deadline:
            why = f"ended with status {child.returncode}" if ended else f"not within {seconds} s"
            words = f": {owner.last_words()}" if owner else ""
            raise RuntimeError(f"{what}: {why}{words}")
        time.sleep(0.01)


def is_mounted(mountpoint):
    """Asks the mount table, because not even root may look into another user's FUSE mount."""
    with open("/proc/self/mounts") as mounts:
        return any(line.split()[1] == str(mountpoint) for line in mounts)


def readahead_file(mountpoint):
    """The file of the kernel's readahead setting for a mount, or None."""
    with open("/proc/self/mountinfo") as mounts:
        for line in mounts:
            words = line.split()
            if words[4] == str(mountpoint):
                path = pathlib.Path("/sys/class/bdi", words[2], "read_ahead_kb")
                return path if path.exists() else None
    return None


def unmount(mountpoint, seconds=10):
    deadline = time.monotonic() + seconds
    while is_mounted(mountpoint):
        done = subprocess.run(["umount", mountpoint], capture_output=True, text=True)
        if done.returncode and time.monotonic() > deadline:
            subprocess.run(["umount", "-l", mountpoint], check=False)
            raise RuntimeError(f"umount {mountpoint}: {done.stderr.strip()}")
        if done.returncode:
            time.sleep(0.05)

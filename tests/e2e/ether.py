# SPDX-License-Identifier: MIT
"""Two network namespaces of this machine, joined by coop-verbs ether: for its tests and its benchmark.

The namespaces belong to two sleeping children, and vanish with them; so do the interfaces with their processes.
Everything started here has the parent-death signal, so an interrupted run leaves nothing behind.
"""
import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import threading

from cluster import program, wait_for

TOOL = program("coop-verbs")
DEADLINE = 120
PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None, use_errno=True)
SETNS_NET = 0x40000000


def missing():
    if os.geteuid() != 0:
        return "needs root (network namespaces, TAP interfaces)"
    if not os.access(TOOL, os.X_OK):
        return f"needs {TOOL}: build it first"
    if not os.path.exists("/dev/net/tun"):
        return "needs /dev/net/tun: modprobe tun"
    for name in ("ip", "unshare", "nsenter", "setpriv"):
        if not shutil.which(name):
            return f"needs {name} (iproute2, util-linux)"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        return "needs network namespaces"
    return None


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(words, **how):
    return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, preexec_fn=die_with_parent, **how)


class Side:
    """A network namespace with one end of the link."""

    def __init__(self, number, path):
        self.address = f"10.9.0.{number}"
        self.path = path
        self.holder = start(["unshare", "--net", "sleep", "infinity"])
        own = os.stat("/proc/self/ns/net").st_ino
        wait_for(lambda: os.stat(f"/proc/{self.holder.pid}/ns/net").st_ino != own, "a new network namespace")
        self.process = None
        self.run("ip", "link", "set", "lo", "up")

    def inside(self, *words):
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *words]

    def run(self, *words, check=True):
        return subprocess.run(self.inside(*words), capture_output=True, text=True, timeout=DEADLINE, check=check)

    def start(self, *options):
        self.process = start(self.inside(TOOL, "ether", "--path", self.path, "--name", "e0", "--address",
                                         f"{self.address}/24", *options))
        return self

    def link(self):
        """What iproute2 says of the interface; None if there is none."""
        done = self.run("ip", "-json", "-stats", "link", "show", "dev", "e0", check=False)
        return json.loads(done.stdout)[0] if done.returncode == 0 else None

    def carrier(self):
        link = self.link()
        return link is not None and "LOWER_UP" in link["flags"]

    def drops(self):
        stats = self.link()["stats64"]
        return stats["tx"]["dropped"] + stats["rx"]["dropped"]

    def info(self):
        """What the process says; the tool leaves out one that does not answer within 2 s."""
        def said():
            done = self.run(TOOL, "info", "--json")
            return next((p["ethernet"] for p in json.loads(done.stdout)["processes"]
                         if p["pid"] == self.process.pid), None)
        return wait_for(said, "the process answers")

    def end(self, how=signal.SIGTERM):
        """Ends the process; returns its exit status and what it printed."""
        self.process.send_signal(how)
        self.process.send_signal(signal.SIGCONT)
        said, _ = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, said

    def socket(self, kind=socket.SOCK_STREAM, protocol=0):
        """A socket of this namespace. Made by a thread of its own, since a thread has one namespace."""
        made = []

        def make():
            with open(f"/proc/{self.holder.pid}/ns/net", encoding="ascii") as namespace:
                if LIBC.setns(namespace.fileno(), SETNS_NET) == 0:
                    made.append(socket.socket(socket.AF_INET, kind, protocol))

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        made[0].settimeout(DEADLINE)
        return made[0]

    def close(self):
        for child in (self.process, self.holder):
            if child:
                child.kill()
                child.communicate()

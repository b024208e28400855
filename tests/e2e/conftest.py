# SPDX-License-Identifier: MIT
"""Fixtures of the end-to-end tests: real daemon, real FUSE mounts, loopback only.

They need root, /dev/fuse, and the programs in $COOP_BIN. If one is missing, every test is
skipped and names it.
"""
import os
import signal
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from cluster import BIN, Cluster, program  # noqa: E402


def missing():
    if os.geteuid() != 0:
        return "needs root (mounts, other users, /proc/sys)"
    if not os.path.exists("/dev/fuse"):
        return "needs /dev/fuse: modprobe fuse"
    if not BIN:
        return "needs COOP_BIN, the directory of the built programs"
    for name in ("coopfsd", "coopfs-fuse"):
        if not os.access(program(name), os.X_OK):
            return f"needs {program(name)}: build it first"
    return None


def pytest_sessionstart(session):
    # Act as on Ctrl-C, so that fixtures take down what they started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture
def cluster():
    why = missing()
    if why:
        pytest.skip(why)
    c = Cluster()
    try:
        yield c
    finally:
        problems = c.close()
    assert not problems, "\n".join(problems)

# SPDX-License-Identifier: MIT
"""Areas of coop-posix through two FUSE mounts, and on the exported file system itself.

The program is the one that runs on mounts of the module (tests/vm). On the file system
below it must pass whole: there it is the test that is tried.
"""
import os
import subprocess

import pytest

from cluster import program

AREAS = ["tmpfile", "special", "types", "handles", "set_id", "xattrs", "capability", "acls",
         "allocate", "seek", "copy", "locks_wait", "locks_data"]


def area(name, here, there):
    done = subprocess.run([program("tests/coop-posix"), name, here, there],
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("name", AREAS)
def test_area(cluster, name):
    if not os.access(program("tests/coop-posix"), os.X_OK):
        pytest.skip("needs coop-posix: build it first")
    nodes = [cluster.node("allow_other", peers=False).path for _ in range(2)]
    area(name, cluster.export, cluster.export)
    area(name, *nodes)

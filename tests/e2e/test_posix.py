# SPDX-License-Identifier: MIT
"""Areas of coop-posix through two FUSE mounts, and on the exported file system itself.

The same program runs on mounts of the module (tests/vm). It must also pass entirely on the
exported file system, which tests the test.
"""
import os
import subprocess

import pytest

from cluster import program

AREAS = ["append", "whole_appends", "tmpfile", "special", "types", "handles", "set_id", "xattrs", "capability", "acls",
         "allocate", "seek", "copy", "locks_wait", "locks_data"]


def area(name, here, there):
    done = subprocess.run([program("tests/coop-posix"), name, here, there],
                          capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("name", AREAS)
def test_area(cluster, name):
    if not os.access(program("tests/coop-posix"), os.X_OK):
        pytest.skip("needs coop-posix: build it first")
    nodes = [cluster.node("allow_other", peers=False).path for _ in range(2)]
    area(name, cluster.export, cluster.export)
    area(name, *nodes)

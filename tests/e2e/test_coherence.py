# SPDX-License-Identifier: MIT
"""One file under every kind of access at once, by coop-coherence: no store is lost, no word
torn, no read older than what was written before it began.

The program is the one that runs on mounts of the module (tests/vm). On the exported file
system it must pass: there it is the test that is tried.
"""
import os
import subprocess

import pytest

from cluster import program

SECONDS = int(os.environ.get("COOP_COHERENCE_SECONDS", "2"))


def coherence(path, *args):
    if not os.access(program("tests/coop-coherence"), os.X_OK):
        pytest.skip("needs coop-coherence: build it first")
    done = subprocess.run([program("tests/coop-coherence"), *map(str, args), path],
                          capture_output=True, text=True, timeout=120 + 20 * SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("peers", [False, True])
def test_no_store_is_lost(cluster, peers):
    """Half of the threads store through a mapping, half write, one word a page each."""
    node = cluster.node(peers=peers)
    coherence(node.path + "/words", "-m", 8 * SECONDS, "-n", 1, "words")


def test_no_read_is_old(cluster):
    """Blocks written and read in every way, by threads that check each other."""
    node = cluster.node(peers=False)
    coherence(node.path + "/blocks", "-d", SECONDS, "blocks")


def test_direct_writes_beside_buffered_readers(cluster):
    node = cluster.node(peers=False)
    coherence(node.path + "/direct", "-b", 640 << 10, "-m", 20, "-d", SECONDS, "-w", "aio,uring,direct",
              "-R", "pread", "blocks")


def test_the_file_system_below_passes(cluster):
    cluster.start_daemon()
    coherence(cluster.export + "/words", "-m", 16, "-n", 1, "words")
    coherence(cluster.export + "/blocks", "-d", 1, "blocks")

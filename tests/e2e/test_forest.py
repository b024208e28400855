# SPDX-License-Identifier: MIT
"""Many nodes read one file at the same moment: storage sends each byte about once."""
import hashlib
import os
import random
import threading

import pytest

from step import CHUNK, SHARED, copies, make_file, read_in_step
from test_leases import daemon_stats, with_stats


@pytest.mark.parametrize("readahead", [0, 256])
def test_nodes_in_step_cost_storage_one_copy(cluster, readahead):
    size = 24 * CHUNK
    want = make_file(cluster, "f", size, 1)
    nodes = cluster.connected(8, f"readahead={readahead}")
    sums = read_in_step(nodes, "f", size // CHUNK)
    assert sums == {n.number: want for n in nodes}
    assert copies(nodes, size) <= SHARED
    served = [n.stats()["serve"]["bytes"] / size for n in nodes]
    assert max(served) < 4, served


def test_a_node_that_does_not_forward_loads_for_nobody(cluster):
    size = 8 * CHUNK
    want = make_file(cluster, "f", size, 2)
    nodes = cluster.connected(4)
    nodes.append(cluster.node("forward=0"))
    for n in nodes:
        n.wait_for_peers(len(nodes) - 1)
    sums = read_in_step(nodes, "f", size // CHUNK)
    assert sums == {n.number: want for n in nodes}
    assert nodes[-1].stats()["read"]["relayed_pages"] == 0
    assert sum(n.stats()["read"]["relayed_pages"] for n in nodes[:-1]) > 0
    assert copies(nodes, size) <= SHARED


@pytest.mark.parametrize("size", [6000, 100_000, 300_000])
def test_many_small_files_in_step_cost_storage_one_copy(cluster, size):
    """Nodes that read file after file have each of them open for a moment only."""
    files, rng = 60, random.Random(3)
    want = []
    for i in range(files):
        data = rng.randbytes(size)
        want.append(hashlib.sha256(data).hexdigest())
        with open(os.path.join(cluster.export, f"f{i}"), "wb") as f:
            f.write(data)
    with_stats(cluster)
    nodes = cluster.connected(6)
    barrier, wrong = threading.Barrier(len(nodes)), []

    def run(node):
        try:
            for i in range(files):
                barrier.wait(240)
                with open(f"{node.path}/f{i}", "rb") as f:
                    if hashlib.sha256(f.read()).hexdigest() != want[i]:
                        wrong.append((node.number, i))
        except Exception as e:
            wrong.append((node.number, e))
            barrier.abort()

    threads = [threading.Thread(target=run, args=(n,)) for n in nodes]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    sent = daemon_stats(cluster)["served_bytes"]  # with what replies to opens carried
    assert sent <= SHARED * files * size, sent / (files * size)

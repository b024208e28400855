# SPDX-License-Identifier: MIT
"""Who gets pages from a node: those whom the same run of the daemon let in to the same export, and nobody else."""
import os
import random
import threading

import pytest

from cluster import Daemon, Node, wait_for
from step import SPARED

SIZE = 4 << 20


@pytest.fixture
def data(cluster):
    content = random.Random(3).randbytes(SIZE)
    with open(cluster.file("export/f"), "wb") as f:
        f.write(content)
    return content


def get(path):
    with open(path, "rb") as f:
        return f.read()


def node_of(cluster, port, export, number, *options):
    """A node of another daemon or export than the cluster's; it ends with the cluster."""
    words = ["ib", f"addr={cluster.address(number)}", "peer_timeout_ms=200", *options]
    node = Node(cluster, number, words, f"{cluster.server}:{port}:/{export}")
    cluster.nodes.append(node)
    return node


@pytest.mark.parametrize("keyed", [True, False])
def test_a_node_of_another_run_gets_nothing(cluster, data, keyed):
    """The other daemon exports the same directory under the same name, so its files have the same ids and versions."""
    key = cluster.make_key()
    daemon = ["--key", key] if keyed else []
    option = [f"key={key}"] if keyed else []
    cluster.start_daemon("--state", cluster.file("state"), *daemon)
    inside = cluster.node(*option)
    assert get(inside.path + "/f") == data
    other = Daemon(cluster, ["--export", f"data={cluster.export}", "--state", cluster.file("other"), *daemon])
    try:
        outside = node_of(cluster, other.port, "data", 2, *option)
        assert outside.write_control("ibaddr", inside.ibaddr() + "\n") > 0
        assert get(outside.path + "/f") == data
        assert outside.stats()["peer"]["bytes"] == 0
        assert outside.stats()["fetch"]["attempts"] > 0, "it asked"
        served = inside.stats()
        assert served["serve"]["serves"] == 0 and served["fetch"]["ctrl_mac"] > 0, served
        outside.stop()
    finally:
        other.process.stop()


def test_a_node_of_another_export_is_a_stranger(cluster, data):
    """Also with the cluster key, and of the same daemon: `clients=` of one export is no right to the pages of another."""
    key = cluster.make_key()
    os.mkdir(cluster.file("second"))
    with open(cluster.file("second/g"), "wb") as f:
        f.write(data)
    cluster.start_daemon("--key", key, "--export", f"second={cluster.file('second')}")
    option = f"key={key}"
    a, b = cluster.connected(2, option)
    outside = node_of(cluster, cluster.daemon.port, "second", 3, option)
    also_outside = node_of(cluster, cluster.daemon.port, "second", 4, option)
    also_outside.wait_for_peers(1)  # the daemon has told what it tells
    assert len(outside.peers()) == len(also_outside.peers()) == 1, "nodes of its own export"
    assert len(a.peers()) == 1
    assert outside.write_control("ibaddr", a.ibaddr() + "\n") > 0
    assert get(a.path + "/f") == data
    assert get(outside.path + "/g") == data
    assert a.stats()["serve"]["serves"] == 0 and a.stats()["fetch"]["ctrl_mac"] > 0, a.stats()
    assert get(b.path + "/f") == data
    assert b.stats()["peer"]["bytes"] >= SIZE * SPARED, "those of the export serve each other"


@pytest.mark.parametrize("options", [[], ["page_mac=1"], ["tree=off"]])
def test_nodes_take_the_key_of_a_new_run(cluster, data, options):
    """They read through the restart, and serve each other afterwards, also peers by hand."""
    key = cluster.make_key()
    cluster.start_daemon("--key", key, "--state", cluster.file("state"))
    a, b = cluster.connected(2, f"key={key}", "cache_size=4M", *options)
    assert b.write_control("ibaddr", a.ibaddr()) > 0
    wrong, stop = [], threading.Event()

    def read_on():
        while not stop.is_set():
            for node in (a, b):
                if get(node.path + "/f") != data:
                    wrong.append(node.path)

    reader = threading.Thread(target=read_on, daemon=True)
    reader.start()
    for _ in range(3):
        cluster.daemon.process.kill()
        cluster.daemon.start()
        wait_for(lambda: all("daemon" in p["origin"] for p in b.peers()) and a.peers(), "the peers are named again")
    stop.set()
    reader.join(60)
    assert not reader.is_alive() and not wrong
    with open(cluster.file("export/new"), "wb") as f:
        f.write(data[::-1])
    b.reset()
    assert get(a.path + "/new") == data[::-1]
    assert get(b.path + "/new") == data[::-1]
    assert b.stats()["peer"]["bytes"] > 0, "any: the small cache of a may have dropped most of it by now"
    for node in (a, b):
        assert node.stats()["fetch"]["tag_bad"] == 0
        assert [p["state"] for p in node.peers()] == ["healthy"]

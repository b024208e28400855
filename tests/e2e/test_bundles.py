# SPDX-License-Identifier: MIT
"""Nodes that use the same directories get bundles of them: fewer requests, and nothing that is old."""
import os
import threading
import time

from test_leases import calls, figures

DIRS, FILES = 6, 20


def make_tree(cluster):
    for d in range(DIRS):
        os.makedirs(os.path.join(cluster.export, "top", f"p{d}"))
        for f in range(FILES):
            with open(os.path.join(cluster.export, "top", f"p{d}", f"f{f}"), "w") as out:
                out.write(f"{d} {f}\n" * (1 + f * 20))
    time.sleep(0.1)  # versions are proved from here on, where change times are coarse


def look(node):
    """Reads every file, and looks for one that is absent beside each."""
    for d in range(DIRS):
        for f in range(FILES):
            path = f"{node.path}/top/p{d}/f{f}"
            assert not os.path.exists(path + ".absent")
            with open(path) as text:
                assert text.read() == f"{d} {f}\n" * (1 + f * 20)


def test_a_second_node_gets_bundles_and_sees_changes_of_the_first(cluster):
    make_tree(cluster)
    first, second = cluster.connected(2, "strict")  # names of a kernel's cache may be a second old
    look(first)
    assert figures(first)["bundles_asked"] == 0
    asked = calls(first)
    look(second)
    got = figures(second)
    assert got["bundles"] > 0 and got["bundled_files"] > FILES, got
    assert calls(second) < asked / 2
    # What the second node knows from a bundle ends when the first one changes it.
    with open(f"{first.path}/top/p5/f7", "w") as f:
        f.write("changed")
    os.rename(f"{first.path}/top/p5/f8", f"{first.path}/top/p5/f8.absent")
    with open(f"{second.path}/top/p5/f7") as f:
        assert f.read() == "changed"
    assert not os.path.exists(f"{second.path}/top/p5/f8")
    assert os.path.exists(f"{second.path}/top/p5/f8.absent")


def test_what_has_no_room_is_in_the_next_part(cluster):
    dirs, files = 12, 40  # five of these directories are too much for one bundle
    paths = [f"top/p{d:02}/f{f:02}" for d in range(dirs) for f in range(files)]
    for d in range(dirs):
        os.makedirs(os.path.join(cluster.export, "top", f"p{d:02}"))
    for path in paths:
        with open(os.path.join(cluster.export, path), "wb") as out:
            out.write(f"{path}\n".encode().ljust(32 << 10, b"x"))
    time.sleep(0.1)
    first, second = cluster.connected(2)

    def read_all(node):
        """By name, without a listing: look-ups lead to bundles."""
        found = []
        for path in paths:
            with open(f"{node.path}/{path}", "rb") as f:
                found.append(f.read())
        return found

    there = read_all(first)
    assert read_all(second) == there
    got = figures(second)
    # The contents of those without room come too, and not in a bundle for each directory.
    assert got["bundled_files"] >= dirs * files * 3 // 4, got
    assert 4 <= got["bundles_asked"] <= 8, got


def test_without_bundles_none_is_asked_for(cluster):
    make_tree(cluster)
    first, second = cluster.connected(2, "bundles=off")
    look(first)
    look(second)
    assert figures(second)["bundles_asked"] == 0


def test_nodes_that_start_together_see_the_same(cluster):
    make_tree(cluster)
    nodes = cluster.connected(4)
    failed = []

    def run(node):
        try:
            look(node)
        except BaseException as e:
            failed.append(e)
            raise

    threads = [threading.Thread(target=run, args=(n,)) for n in nodes]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed

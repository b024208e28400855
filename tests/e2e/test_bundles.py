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


def read_all(node, top):
    """Lists all, then reads all, as tar, grep -r and compilers do."""
    paths = [os.path.join(d, f) for d, _, names in os.walk(f"{node.path}/{top}") for f in sorted(names)]
    found = {}
    for path in sorted(paths):
        with open(path, "rb") as f:
            found[os.path.relpath(path, node.path)] = f.read()
    return found


def test_a_listing_that_is_then_read_comes_in_bundles(cluster):
    make_tree(cluster)
    first, second = cluster.connected(2)
    there = read_all(first, "top")
    assert len(there) == DIRS * FILES
    assert read_all(second, "top") == there
    got = figures(second)
    assert got["bundles"] >= 3, got
    # One open of each of the first three directories, and of the fourth, and of those in no part.
    assert got["opens"] >= DIRS * FILES - DIRS, got


def test_contents_come_from_the_node_that_has_them(cluster):
    make_tree(cluster)
    first, *others = cluster.connected(4)
    there = read_all(first, "top")
    size = sum(len(data) for data in there.values())
    for node in others:
        assert read_all(node, "top") == there
        s = node.stats()
        assert s["storage"]["bytes"] == 0 and s["peer"]["bytes"] + s["buffer"]["bytes"] == size, s
        assert figures(node)["bundled_files"] > FILES


def test_contents_whose_node_is_killed_come_from_storage(cluster):
    make_tree(cluster)
    first, second = cluster.connected(2)
    there = read_all(first, "top")
    for i, (path, data) in enumerate(sorted(there.items())):
        if i == DIRS * FILES // 2:
            first.process.kill()
        with open(f"{second.path}/{path}", "rb") as f:
            assert f.read() == data
    assert figures(second)["bundles"] > 0


def test_what_has_no_room_is_in_the_next_part(cluster):
    dirs, files = 12, 40  # five of these directories are too much for one bundle
    for d in range(dirs):
        os.makedirs(os.path.join(cluster.export, "top", f"p{d:02}"))
        for f in range(files):
            with open(os.path.join(cluster.export, "top", f"p{d:02}", f"f{f:02}"), "wb") as out:
                out.write(f"{d} {f}\n".encode().ljust(32 << 10, b"x"))
    time.sleep(0.1)
    first, second = cluster.connected(2)
    there = sorted(os.path.relpath(os.path.join(d, f), first.path)
                   for d, _, names in os.walk(f"{first.path}/top") for f in names)
    assert len(there) == dirs * files
    got = read_all(second, "top")
    assert sorted(got) == there
    for path, data in got.items():
        d, f = int(path.split("/")[1][1:]), int(path.split("/")[2][1:])
        assert data == f"{d} {f}\n".encode().ljust(32 << 10, b"x")
    got = figures(second)
    # Three directories, then three parts with four each. Not one for each directory, because its
    # names came without the contents.
    assert 4 <= got["bundles_asked"] <= 8, got
    assert got["opens"] >= dirs * files - dirs, got


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

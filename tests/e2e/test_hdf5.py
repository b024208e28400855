# SPDX-License-Identifier: MIT
"""HDF5's single writer with many readers (SWMR): a reader on another node keeps the file open and
sees the rows that the writer has flushed, as on a local file system but about a second later
(coopfs(5), SEMANTICS). HDF5 locks its files as it does by default.
"""
import subprocess

import pytest

from cluster import wait_for

STEPS = 5
ROWS = 6

WRITER = """
import sys, h5py, numpy
f = h5py.File(sys.argv[1], "w", libver="latest")
d = f.create_dataset("rows", shape=(0,), maxshape=(None,), dtype="i8", chunks=(64,))
f.swmr_mode = True
print("ready", flush=True)
for line in sys.stdin:
    at = d.shape[0]
    d.resize((at + int(line),))
    d[at:] = numpy.arange(at + 1, at + int(line) + 1)
    d.flush()
    print(d.shape[0], flush=True)
"""

# Prints how many rows there are, or that their values are not right yet.
READER = """
import sys, h5py, numpy
d = h5py.File(sys.argv[1], "r", libver="latest", swmr=True)["rows"]
print("ready", flush=True)
for line in sys.stdin:
    d.refresh()
    rows = d[:]
    print(len(rows) if (rows == numpy.arange(1, len(rows) + 1)).all() else "other", flush=True)
"""


class Program:
    def __init__(self, script, path):
        self.popen = subprocess.Popen(["/usr/bin/python3", "-c", script, path], text=True, stdin=subprocess.PIPE,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        line = self.popen.stdout.readline()
        assert line == "ready\n", self.popen.communicate()[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.popen.kill()
        self.popen.communicate()

    def ask(self, words):
        self.popen.stdin.write(f"{words}\n")
        self.popen.stdin.flush()
        line = self.popen.stdout.readline()
        assert line, self.popen.communicate()[1]
        return line.strip()


@pytest.mark.parametrize("where", ["local", "coopfs"])
def test_a_reader_on_another_node_sees_what_the_writer_flushed(cluster, where):
    if subprocess.run(["/usr/bin/python3", "-c", "import h5py"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("python3-h5py is not installed")
    here, there = [cluster.base] * 2 if where == "local" else [node.path for node in cluster.connected(2)]
    with Program(WRITER, here + "/f.h5") as writer, Program(READER, there + "/f.h5") as reader:
        for i in range(STEPS):
            rows = writer.ask(ROWS)
            assert rows == str(ROWS * (i + 1))
            if where == "local":
                assert reader.ask("look") == rows
            else:
                wait_for(lambda: reader.ask("look") == rows, f"{rows} rows")  # noqa: B023

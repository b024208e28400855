# SPDX-License-Identifier: MIT
"""What coopnet and programs on the software RDMA device leave behind when they are killed: nothing.

Shared memory has no name, and sockets by which processes find each other have abstract ones, which
vanish with the process.
"""
import os
import subprocess

import pytest

from cluster import program, state_of, wait_for
from test_coopnet import NAMES, WAYS, ticks
from test_verbs import PORT, TOOL, listens, queue_pairs, started

pytestmark = pytest.mark.skipif(not all(os.access(name, os.X_OK) for name in (TOOL, program("coopnet"))),
                                reason=f"needs {TOOL} and {program('coopnet')}: build them first")


def abstract_sockets():
    """Their names by inode number."""
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as f:
        lines = [line.split() for line in f]
    return {words[6]: words[7] for words in lines if len(words) > 7 and words[7].startswith("@")}


def targets(pid):
    """What the descriptors of a process are of."""
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            yield os.readlink(f"/proc/{pid}/fd/{number}")
        except FileNotFoundError:
            pass  # it was closed meanwhile


def named(pid):
    """What of a process has a name outside of it: files by which it shares memory, and abstract sockets."""
    with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as f:
        lines = [line.split(maxsplit=5) for line in f]
    files = {words[5].strip() for words in lines if words[1] == "rw-s" and len(words) > 5}
    sockets, descriptors = abstract_sockets(), list(targets(pid))
    files |= {name for name in descriptors if name.startswith("/dev/shm/")}
    return ({name for name in files if name.startswith("/") and not name.startswith("/memfd:")},
            {sockets.get(name[len("socket:["):-1]) for name in descriptors} - {None})


def children(pid):
    def parent(other):
        try:
            with open(f"/proc/{other}/stat", encoding="utf-8", errors="replace") as f:
                return int(f.read().rpartition(") ")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            return 0
    return [int(other) for other in os.listdir("/proc") if other.isdigit() and parent(other) == pid]


def named_by_all(pids):
    files, names = zip(*map(named, pids), strict=True)
    return set().union(*files), set().union(*names)


def vanish(names):
    wait_for(lambda: not names & set(abstract_sockets().values()), "the names to vanish")


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_bench_that_is_killed_leaves_nothing(way):
    """Its server ends, and the names of both with it."""
    bench = subprocess.Popen([program("coopnet"), "bench", "-t", *way, "-s", "64", "-n", "100000000",
                              "--seconds", "600"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    try:
        # Both measure: they have used more processor time than their start takes.
        server, = wait_for(lambda: [pid for pid in children(bench.pid) if min(ticks(pid), ticks(bench.pid)) > 10],
                           "the bench and its server to be busy")
        files, names = named_by_all((bench.pid, server))
    finally:
        bench.kill()
        bench.wait()
    assert not files and (names or way[0] == "fabric")  # libfabric's machines are found by TCP
    wait_for(lambda: state_of(server) in "XZ", "the server to end")
    vanish(names)


def test_verbs_programs_that_are_killed_leave_nothing():
    many = ("ibv_rc_pingpong", "-n", "100000000", "-p", str(PORT))
    with started(*many) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "the server listens")
        with started(*many, "127.0.0.1") as client:
            wait_for(lambda: any(q["served"] > 20 for q in queue_pairs(client.pid)), "messages flow")
            files, names = named_by_all((client.pid, server.pid))
            client.kill()
            server.kill()
    assert not files and names
    vanish(names)

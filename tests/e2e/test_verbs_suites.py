# SPDX-License-Identifier: MIT
"""coop-verbs under the test suites of others: pyverbs' tests of libibverbs, and Open MPI over UCX.

What they skip because the device does not offer it is listed here with the reason; another skip, or a failure, is a
fault of the device, or a new test to look at.
"""
import collections
import gzip
import os
import re
import shutil
import subprocess
import sys

import pytest

from test_verbs import DEADLINE, TOOL, needs

pytestmark = pytest.mark.skipif(not os.access(TOOL, os.X_OK), reason=f"needs {TOOL}: build it first")

PYVERBS = "/usr/share/doc/rdma-core/tests"
HARDWARE = "the tests are of another maker's device"
ABSENT = "coop-verbs does not offer it (NTRDMA.md, \"What is not there\")"
ETHERNET = "coop0's port is InfiniBand: it has no network interface, and no raw packets"
MACHINE = "this machine lacks it"
SKIPPED = {
    r"MLX5|mlx5|EFA|non .* device": HARDWARE,
    r"Extended (QP|CQ) is not supported|Create Extended CQ": ABSENT,
    r"ODP is not supported|Device memory|XRCD|Parent Domain|Rereg MR": ABSENT,
    r"with MW access|memory window|custom mr with": ABSENT,
    r"Create (UC|UD|RC) QP .*(without|with) (extended )?attrs": ABSENT,
    r"device real time": ABSENT,
    r"net interface|Ethernet link layer|skip RoCE test": ETHERNET,
    r"dmabuf|huge pages|[Cc]uda|CUDA|PCI device": MACHINE,
    r"All gid indices populated": "there is no empty index to ask for",
}


def why(reason):
    return next((text for pattern, text in SKIPPED.items() if re.search(pattern, reason)), None)


def test_pyverbs(tmp_path):
    """rdma-core's own tests in Python, as the distribution packs them."""
    if not os.path.exists(f"{PYVERBS}/run_tests.py"):
        pytest.skip("needs rdma-core's tests below /usr/share/doc, with the package's documents")
    if subprocess.run(["/usr/bin/python3", "-c", "import pyverbs"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("python3-pyverbs is not installed")
    shutil.copytree(PYVERBS, tmp_path / "tests")
    for packed in (tmp_path / "tests").glob("*.gz"):
        with gzip.open(packed) as f:
            packed.with_suffix("").write_bytes(f.read())
    out = subprocess.run([TOOL, "run", "--", "/usr/bin/python3", "tests/run_tests.py", "-v", "--dev", "coop0"],
                         cwd=tmp_path, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         text=True, timeout=DEADLINE, check=False).stdout
    assert re.search(r"^OK \(skipped=\d+\)$", out, re.M), out[-4000:]
    assert out.count("... ok") >= 40, out[-4000:]
    reasons = collections.Counter(re.findall(r"\.\.\. skipped '(.*)'$", out, re.M))
    for reason, count in reasons.most_common():
        print(f"skipped {count}: {reason}: {why(reason)}", file=sys.stderr)
    assert not [r for r in reasons if not why(r)]


RANKS = """
from mpi4py import MPI
world = MPI.COMM_WORLD
me, n = world.rank, world.size
for length in (1, 1000, 10000, 1000000):
    own, got = bytearray([me + 1]) * length, bytearray(length)
    world.Sendrecv(own, (me + 1) % n, 0, got, (me - 1) % n)
    assert got == bytearray([(me - 1) % n + 1]) * length
    world.Sendrecv(own, me, 1, got, me)
    assert got == own
    world.Bcast(own, 0)
    assert own == bytearray([1]) * length
assert world.allreduce(me) == sum(range(n))
window = MPI.Win.Allocate(8 * n, 8, comm=world)
window.Fence()
window.Put([bytearray([me + 1]) * 8, MPI.BYTE], (me + 1) % n, me)
window.Fence()
assert bytes(window)[8 * ((me - 1) % n):][:8] == bytes([(me - 1) % n + 1]) * 8
window.Free()
world.Barrier()
if me == 0:
    print("all", n, "agree")
"""


@pytest.mark.parametrize("transports", ["rc_v", "rc_v,self", "ud_v", "ud_v,rc_v,self"])
def test_open_mpi(transports, tmp_path, monkeypatch):
    """Two ranks on each of the device's transports. Without `self` a rank connects a queue pair to itself."""
    mpirun = needs("mpirun")
    if subprocess.run(["/usr/bin/python3", "-c", "import mpi4py"], stderr=subprocess.DEVNULL, check=False).returncode:
        pytest.skip("python3-mpi4py is not installed")
    monkeypatch.setenv("UCX_TLS", transports)
    monkeypatch.setenv("OMPI_MCA_orte_tmpdir_base", str(tmp_path))
    out = subprocess.run([mpirun, "--allow-run-as-root", "--oversubscribe", "-np", "2", "--mca", "pml", "ucx",
                          "--mca", "btl", "^openib", "-x", "UCX_TLS", TOOL, "run", "--", "/usr/bin/python3", "-c", RANKS],
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         timeout=DEADLINE, check=False)
    assert (out.returncode, "all 2 agree" in out.stdout, "ERROR" in out.stdout) == (0, True, False), out.stdout

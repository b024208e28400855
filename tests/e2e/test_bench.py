# SPDX-License-Identifier: MIT
"""The bench harness itself: what it reports, and that it leaves nothing behind.

A wrong ratio misleads more than a slow program, so the arithmetic is tested on figures with known
ratios. The other tests run the harness on the local file system alone, small enough to be cheap.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import types

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench/fio"
sys.path.insert(0, str(BENCH))

import coopfs  # noqa: E402
import gfarm  # noqa: E402
import probes  # noqa: E402
import results  # noqa: E402
import sandbox  # noqa: E402

NODE_BENCH = {"ping_spin_us": 10.0, "fetch_us": {"median": 18.0, "p99": 40.0, "mean": 19.0}}
STATS = """coopfs-stats 1
source buffer requests 1 pages 2 bytes 8192
source peer requests 3 pages 4 bytes 16384
latency peer 0 1 2
traffic storage rx_bytes 100 tx_bytes 7
fetch submitted 12
cache capacity 10 used 4 blocks 2 evicted 0
"""


def figure(case, state, system, repetition, mb_s, cpu, notes=None):
    return {"case": case, "state": state, "system": system, "repetition": repetition, "mb_s": mb_s,
            "cpu_s_gib": cpu, "cpu_s_gib_machine": cpu, "foreign_cpu": 0.0, "bytes": 1000,
            "notes": notes}


def record_of(figures):
    return {"figures": figures, "probes": {}}


def target(record, text):
    return next(row for row in results.targets(record) if row["target"] == text)


def test_ratios_pair_figures_of_one_repetition():
    # The machine was half as fast in the second repetition: the ratio stays.
    record = record_of([
        figure("seq128k", "peer", "coopfs-peer", 0, 3000, 0.5),
        figure("seq128k", "storage", "gfarm", 0, 1500, 1.0),
        figure("seq128k", "peer", "coopfs-peer", 1, 1500, 0.5),
        figure("seq128k", "storage", "gfarm", 1, 750, 1.0),
    ])
    row = target(record, "seq128k: peer / gfarm, MB/s")
    assert row["value"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    assert row["reached"] is True
    assert target(record, "seq128k: peer / gfarm, CPU s/GiB")["reached"] is True


def test_another_build_is_compared_where_it_was_measured():
    record = record_of([
        figure("rand4k", "peer", "coopfs-peer", 0, 60, 20.0),
        figure("rand4k", "peer", "coopfs-peer-old", 0, 80, 10.0),
    ])
    rows = [row for row in results.targets(record) if "new / old" in row["target"]]
    assert [(row["target"], row["value"]["median"], row["reached"]) for row in rows] == [
        ("rand4k: peer, new / old, MB/s", 0.75, None), ("rand4k: peer, new / old, CPU s/GiB", 2.0, None)]


def test_a_missed_target_says_no_and_a_missing_one_says_so():
    record = record_of([
        figure("seq128k", "peer", "coopfs-peer", 0, 1000, 2.0),
        figure("seq128k", "storage", "gfarm", 0, 1000, 1.0),
    ])
    assert target(record, "seq128k: peer / gfarm, MB/s")["reached"] is False
    assert target(record, "seq128k: peer / gfarm, CPU s/GiB")["reached"] is False
    assert target(record, "seq1m: peer / gfarm, MB/s")["reached"] is None


def test_a_partner_under_another_name_is_found_and_named():
    record = record_of([
        figure("seq128k", "warm", "coopfs-peer", 0, 3000, 0.5),
        figure("seq128k", "warm", "passthrough-splice", 0, 2000, 0.5),
        figure("seq1m", "warm", "coopfs-peer", 0, 3000, 0.5),
        figure("rand4k", "peer", "coopfs-peer", 0, 50, 3.0),
        figure("rand4k", "storage", "coopfs-storage", 0, 40, 2.0),
    ])
    assert target(record, "seq128k: warm / passthrough-splice, MB/s")["value"]["median"] == 1.5
    assert target(record, "seq1m: warm / passthrough, MB/s")["said"] == "not measured: no passthrough (seq1m)"
    compared = target(record, "rand4k: peer / storage, MB/s")
    assert compared["value"]["median"] == 1.25 and compared["said"] == "compared" and compared["reached"] is None
    record["figures"].append(figure("seq128k", "warm", "passthrough", 0, 1000, 0.5))
    assert target(record, "seq128k: warm / passthrough, MB/s")["value"]["median"] == 3.0


def test_why_a_row_has_no_ratio():
    record = record_of([figure("rand4k", "peer", "coopfs-peer", 0, 50, 3.0)])
    said = target(record, "rand4k: peer / gfarm -o unbuffered, MB/s")["said"]
    assert said == "not measured: no gfarm-unbuffered (rand4k)"
    record["figures"].append(figure("rand4k", "storage", "gfarm-unbuffered", 1, 50, 3.0))
    assert "in no repetition both" in target(record, "rand4k: peer / gfarm -o unbuffered, MB/s")["said"]


@pytest.fixture
def bed(tmp_path, monkeypatch):
    (tmp_path / "log").mkdir()
    for name in ("service_", "why_not_"):
        monkeypatch.setattr(gfarm.gfarm, name, None)
    return types.SimpleNamespace(folder=tmp_path, group=None, logs=tmp_path / "log", data=None)


def test_gfarm_that_does_not_start_is_tried_once(bed, monkeypatch):
    tries = []

    def start(service):
        tries.append(service)
        (service.base_ / "etc").mkdir(parents=True)
        raise RuntimeError("gfmd: not within 20 s")
    monkeypatch.setattr(gfarm.gfarm_service, "start", start)
    with pytest.raises(RuntimeError, match="not within 20 s"):
        gfarm.gfarm(bed).start()
    with pytest.raises(sandbox.unusable, match="Gfarm did not start: gfmd: not within 20 s"):
        gfarm.gfarm_unbuffered(bed).start()
    assert len(tries) == 1


def test_storage_share_comes_from_the_readers_own_traffic():
    stats = coopfs.parse_stats(STATS)
    assert stats["source"]["peer"] == {"requests": 3, "pages": 4, "bytes": 16384}
    assert stats["fetch"]["submitted"] == 12
    record = record_of([figure("seq128k", "peer", "coopfs-peer", 0, 1, 1, stats)])
    row = target(record, "seq128k: second reader's bytes from storage / file")
    assert row["value"]["median"] == pytest.approx(0.1)
    assert row["reached"] is False


def test_the_probe_of_a_page_fetch_has_a_row():
    record = {"figures": [], "probes": {"node-bench": {"printed": NODE_BENCH}}}
    row = target(record, probes.FETCH_TARGET)
    assert row["value"]["median"] == pytest.approx(1.8)
    assert row["reached"] is True
    assert target(record_of([]), probes.FETCH_TARGET)["reached"] is None


def test_a_probe_that_hangs_does_not_cost_the_figures(tmp_path, monkeypatch):
    def late(self, argv, timeout):
        raise subprocess.TimeoutExpired(argv, timeout)

    for name in probes.PROGRAMS:
        (tmp_path / name).touch()
    monkeypatch.setattr(sandbox.processes, "run_any", late)
    said = []
    assert probes.run_all(types.SimpleNamespace(bin=tmp_path, group=None, logs=tmp_path), said.append) == {}
    assert said == [f"FAILED {name}: not done in {probes.PATIENCE_S} s" for name in probes.PROGRAMS]


def left_overs(folder, said):
    """What the run left: its folder, and the control group of the same name."""
    name = re.search(r"coop-bench\.\w+", said).group()
    places = [folder, "/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/cpuacct"]
    return [str(path) for path in (pathlib.Path(place, name) for place in places) if path.exists()]


def why_not():
    if os.geteuid() != 0:
        return "namespaces of its own need root"
    return None if shutil.which("fio") else "needs fio"


runs_here = pytest.mark.skipif(bool(why_not()), reason=str(why_not()))


def command(folder, out, *more):
    return [str(BENCH / "run"), "--size", "16m", "--reps", "1", "--no-probes", "--dir", str(folder),
            "--out", str(out), *more]


@runs_here
def test_a_run_writes_its_figures_and_removes_its_files(tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    done = subprocess.run(command(work, out, "--only", "seq128k", "--systems", "local"),
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "fio.json").read_text())
    assert [one["system"] for one in record["figures"]] == ["local"]
    assert record["figures"][0]["bytes"] > 0 and record["figures"][0]["mb_s"] > 0
    assert "not measured" in done.stdout
    assert left_overs(work, done.stdout) == []


@runs_here
@pytest.mark.skipif(not shutil.which("gfarm2fs"), reason="needs gfarm2fs")
def test_gfarm_where_fuse_is_for_root_alone(tmp_path):
    """Only the /dev/fuse in the run's own mount namespace is opened to users, not the machine's."""
    out, node = tmp_path / "out", tmp_path / "dev"
    node.mkdir()
    script = ("mount -t tmpfs -o mode=755 dev {0} && mknod -m 600 {0}/fuse c 10 229 && "
              'mount --bind {0}/fuse /dev/fuse && "$@"; status=$?; stat -c %a /dev/fuse; exit $status').format(node)
    with tempfile.TemporaryDirectory(prefix="coopfs-bench-") as work:  # others may enter it, unlike tmp_path
        os.chmod(work, 0o755)
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh",
             *command(work, out, "--only", "rand4k", "--systems", "gfarm,gfarm-unbuffered")],
            capture_output=True, text=True, timeout=600)
        assert os.listdir(work) == [], done.stdout
    assert done.returncode == 0, done.stdout + done.stderr
    assert {one["system"] for one in json.loads((out / "fio.json").read_text())["figures"]} == \
        {"gfarm", "gfarm-unbuffered"}, done.stdout
    assert done.stdout.endswith("600\n")
    assert not os.path.exists(gfarm.SOCKET_FOLDER)


@runs_here
def test_an_interrupted_run_leaves_nothing(tmp_path):
    work, out = tmp_path / "work", tmp_path / "out"
    work.mkdir()
    child = subprocess.Popen(command(work, out, "--systems", "local,passthrough", "--reps", "1000"),
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        for line in child.stdout:
            said += line
            if "repetition" in line:
                break
        child.send_signal(signal.SIGTERM)
        assert child.wait(300) != 0
    finally:
        child.kill()
        child.stdout.close()
    deadline = time.monotonic() + 300
    while left_overs(work, said) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_overs(work, said) == []
    assert not (out / "fio.json").exists()

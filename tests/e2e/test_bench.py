# SPDX-License-Identifier: MIT
"""The bench harness itself: what it states, and that it leaves nothing behind.

A wrong ratio would mislead more than a slow program, so the arithmetic is tested with figures whose
ratios are known; the rest runs the harness on the local file system alone, small enough to be cheap.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCH = ROOT / "bench/fio"
sys.path.insert(0, str(BENCH))

import coopfs  # noqa: E402
import probes  # noqa: E402
import results  # noqa: E402

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
    # The machine was half as fast in the second repetition: the ratio does not care.
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


def test_a_missed_target_says_no_and_a_missing_one_says_so():
    record = record_of([
        figure("seq128k", "peer", "coopfs-peer", 0, 1000, 2.0),
        figure("seq128k", "storage", "gfarm", 0, 1000, 1.0),
    ])
    assert target(record, "seq128k: peer / gfarm, MB/s")["reached"] is False
    assert target(record, "seq128k: peer / gfarm, CPU s/GiB")["reached"] is False
    assert target(record, "seq1m: peer / gfarm, MB/s")["reached"] is None


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


def left_overs(folder, said):
    """What is there of the run: its folder, and the control group of the same name."""
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
                          capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((out / "fio.json").read_text())
    assert [one["system"] for one in record["figures"]] == ["local"]
    assert record["figures"][0]["bytes"] > 0 and record["figures"][0]["mb_s"] > 0
    assert "not measured" in done.stdout
    assert left_overs(work, done.stdout) == []


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
        assert child.wait(60) != 0
    finally:
        child.kill()
        child.stdout.close()
    deadline = time.monotonic() + 10
    while left_overs(work, said) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left_overs(work, said) == []
    assert not (out / "fio.json").exists()

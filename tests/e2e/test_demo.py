# SPDX-License-Identifier: MIT
"""tools/demo, made small: its report, and that it leaves nothing behind, however it ends."""
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from cluster import BIN, program, wait_for
from step import SPARED

DEMO = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "demo")
FILES = 40
LARGE = 16 << 20


@pytest.fixture
def tree(tmp_path):
    """Files of many sizes: empty, one byte, about a page, and larger ones; a link; a deep path."""
    for name in ("coopfs", "coopfsd", "coopfs-fuse"):
        if not BIN or not os.access(program(name), os.X_OK):
            pytest.skip(f"needs {name} in COOP_BIN")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs /dev/fuse")
    top = tmp_path / "tree"
    deep = top / "a" / "b c" / "d"
    deep.mkdir(parents=True)
    for n in range(FILES):
        size = (0, 1, 4095, 4096, 4097, 70000)[n % 6]
        ((top, deep)[n % 2] / f"file {n}").write_bytes(os.urandom(size))
    (top / "link").symlink_to("nowhere")
    (top / "dirlink").symlink_to("a")
    return top


def command(tmp_path, tree, size="16M"):
    return [DEMO, "--size", size, "--tree", str(tree), "--out", str(tmp_path / "out")]


def left_behind(out):
    """What a run left: mounts, processes, files other than the results."""
    out = os.path.realpath(out)
    left = []
    with open("/proc/self/mountinfo", encoding="utf-8") as table:
        left += [line.split()[4] for line in table if out in line]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                words = file.read().replace("\0", " ")
        except OSError:
            continue
        if out in words and int(pid) != os.getpid():
            left.append(f"{pid}: {words}")
    return left + [name for name in os.listdir(out) if name not in ("report.json", "demo.svg", "log")]


def end(child):
    if child.poll() is None:
        child.kill()
    child.wait()


def signalled(tmp_path, tree, when, number):
    """Sends the signal once a line has this text; returns the exit status and the output from then on."""
    for size in ("128M", "1G"):
        with subprocess.Popen(command(tmp_path, tree, size), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True) as child:
            try:
                for line in child.stdout:
                    if when in line:
                        break
                child.send_signal(number)
                text = child.stdout.read() if number != signal.SIGKILL else ""
                status = child.wait(300)
            finally:
                end(child)
        if status:
            break
        # On a busy machine the demo may have ended before the signal: once more, with more to do.
    return status, text


def test_report(tmp_path, tree):
    done = subprocess.run(command(tmp_path, tree), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=600, check=False)
    out = tmp_path / "out"
    assert (out / "report.json").exists(), done.stdout + done.stderr
    report = json.loads((out / "report.json").read_text())
    # The one thing that may be wrong, on a busy machine.
    assert all(re.fullmatch(r"node[23]: .* came from storage \(more than 1%\)", w) for w in report["wrong"]), report
    assert report["ok"] == (report["wrong"] == []) == (done.returncode == 0), done.stdout + done.stderr
    assert report["source"]["files"] == FILES + 3 and report["source"]["large_file_bytes"] == LARGE
    assert [n["name"] for n in report["nodes"]] == ["node1", "node2", "node3"]
    total = report["source"]["bytes"]
    for node in report["nodes"]:
        assert node["verified"] is True and node["seconds"] > 0
        served = node["bytes_buffer"] + node["bytes_peer"] + node["bytes_storage"]
        assert served >= total * 0.99, node
    assert report["nodes"][0]["bytes_peer"] == 0
    for node in report["nodes"][1:]:
        assert node["bytes_storage"] <= SPARED * total and node["bytes_peer"] >= SPARED * total, node
    assert total * 0.99 <= report["daemon_bytes_sent"] < total * (1 + 2 * SPARED)
    svg = (out / "demo.svg").read_text()
    assert svg.startswith("<?xml") and "node3" in svg and svg.rstrip().endswith("</svg>")
    assert left_behind(out) == []


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("when", ["checksums taken", "node1", "node2"])
def test_interrupted(tmp_path, tree, how, when):
    status, text = signalled(tmp_path, tree, when, getattr(signal, how))
    assert status == 128 + getattr(signal, how), text
    assert left_behind(tmp_path / "out") == []


def test_killed_outright_is_swept_by_the_next(tmp_path, tree):
    out = tmp_path / "out"
    assert signalled(tmp_path, tree, "node1", signal.SIGKILL)[0] == -signal.SIGKILL
    # The kernel sends its child processes their signal, and they unmount.
    wait_for(lambda: [w for w in left_behind(out) if not w.startswith("run-")] == [], "its processes have ended")
    assert [w for w in left_behind(out) if w.startswith("run-")]
    done = subprocess.run(command(tmp_path, tree, "1M"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert left_behind(out) == []


def test_failure_in_the_middle(tmp_path, tree):
    """A node does not start: the demo says so, quotes the node's last line, and cleans up."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name in ("coopfs", "coopfsd"):
        os.link(program(name), bin_dir / name) if os.stat(program(name)).st_dev == os.stat(bin_dir).st_dev else \
            (bin_dir / name).write_bytes(open(program(name), "rb").read())
        (bin_dir / name).chmod(0o755)
    (bin_dir / "coopfs-fuse").write_text(f"#!{sys.executable}\nimport sys\nsys.exit('no luck today')\n")
    (bin_dir / "coopfs-fuse").chmod(0o755)
    done = subprocess.run(command(tmp_path, tree, "1M"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=600, env=dict(os.environ, COOP_BIN=str(bin_dir)), check=False)
    assert done.returncode == 1 and "node1" in done.stderr and "no luck today" in done.stderr, done.stderr
    assert left_behind(tmp_path / "out") == []


@pytest.mark.parametrize("args", [["--size", "many"], ["--size", "-1"], ["--size", "0"], ["--nonsense"]])
def test_wrong_usage(tmp_path, args):
    done = subprocess.run([DEMO, *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 2 and "usage" in done.stderr


def test_what_is_missing_is_named(tmp_path):
    done = subprocess.run([DEMO, "--bin", str(tmp_path), "--out", str(tmp_path / "out")], stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 1 and "coopfs" in done.stderr and "make demo" in done.stderr

# SPDX-License-Identifier: MIT
"""Reading a node, timed; and then comparing what all nodes have read, untimed.

Comparing comes last and in processes of its own, one a node, so that no hashing is in
the time of reading. It sees what the read pass brought: the kernel keeps those pages.
"""
import contextlib
import json
import subprocess
import sys
import time

from children import follow_parent
from dataset import HELPER, Description
from failure import Failure
from report import human

SAMPLE_S = 0.1
BAR = 30


class Progress:
    """One line that follows a pass: on a terminal it is drawn over, else a line a second."""

    def __init__(self, node, total):
        self._node, self._total = node, total
        self._live = sys.stdout.isatty()
        self._next = 0.0

    def show(self, seconds, sources, last=False):
        if not last and seconds < self._next:
            return
        self._next = seconds + (SAMPLE_S if self._live else 1.0)
        done = sum(sources.values())
        filled = min(BAR, BAR * done // max(self._total, 1))
        shares = "  ".join(f"{name} {100 * sources[name] / done if done else 0:5.1f} %"
                           for name in ("buffer", "peer", "storage"))
        text = f"{self._node}  [{'#' * filled}{'.' * (BAR - filled)}]  {human(done):>9}  {shares}"
        if seconds > 0:
            text += f"  {human(done / seconds)}/s"
        if self._live:
            print("\r" + text + "\x1b[K", end="\n" if last else "", flush=True)
        else:
            print(text, flush=True)


def read_pass(node, data, report):
    """Reads the whole mount. Returns the bytes by source and the seconds that it took."""
    node.reset()
    progress = Progress(node.name, data.bytes)
    reader = subprocess.Popen([sys.executable, HELPER, "read", node.mountpoint],
                              stdout=subprocess.PIPE, start_new_session=True,
                              preexec_fn=follow_parent())
    started = time.monotonic()
    try:
        while True:
            try:
                output, _ = reader.communicate(timeout=SAMPLE_S)
            except subprocess.TimeoutExpired:
                output = None
            # After its end: once more, so that the last sample has everything.
            node.child.check()
            sources = node.sources()
            seconds = time.monotonic() - started
            report.sample(node.name, seconds, sources)
            progress.show(seconds, sources, last=output is not None)
            if output is not None:
                break
    finally:
        if reader.poll() is None:
            reader.kill()
            reader.wait()
    if reader.returncode != 0:
        raise Failure(f"{node.name}: reading failed; see {node.child.log}")
    result = json.loads(output)
    if result["bytes"] != data.bytes:
        report.wrong.append(f"{node.name}: {result['bytes']} bytes were read of {data.bytes}")
    return {"bytes_buffer": sources["buffer"], "bytes_peer": sources["peer"],
            "bytes_storage": sources["storage"], "seconds": round(result["seconds"], 3)}


def verify(nodes, data):
    """For each node what differs between its mount and the source, as sentences."""
    with contextlib.ExitStack() as ends:
        seen = [ends.enter_context(Description(node.mountpoint)) for node in nodes]
        return [differences(data, each.result()) for each in seen]


def differences(data, seen):
    out = [f"{name} is missing" for name in data.manifest.keys() - seen.keys()]
    out += [f"{name} is not in the source" for name in seen.keys() - data.manifest.keys()]
    out += [f"{name} differs" for name in data.manifest.keys() & seen.keys() if data.manifest[name] != seen[name]]
    return sorted(out)

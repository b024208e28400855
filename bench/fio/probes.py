# SPDX-License-Identifier: MIT
"""The layers below the file system, timed in the same environment by their own programs.

node-bench times the fetch of one 4 KiB page between two nodes, and a bare UDP exchange of the same
sizes; ud-bench moves datagrams in bulk. The record keeps the JSON that they print, and the targets use
the ratio in it. They start their own processes on loopback addresses of this namespace.
"""

import json
import subprocess

from sandbox import processes

PATIENCE_S = 1800  # a probe takes seconds on an idle machine, and minutes on a busy one
PROGRAMS = {"node-bench": ["--json"], "ud-bench": ["--json", "--rounds", "3"]}
FETCH_TARGET = "4 KiB from a peer / bare UDP ping-pong of the same sizes, us"


def run_all(bed, say):
    """{program: {command, printed}}; reports a program that cannot run, and leaves it out."""
    found = {}
    for name, options in PROGRAMS.items():
        program = bed.bin / name
        if not program.exists():
            say(f"SKIPPED {name}: {program} is not built")
            continue
        argv = [program, *options]
        try:
            done = processes(name, bed.group, bed.logs).run_any(argv, timeout=PATIENCE_S)
            printed = json.loads(done.stdout)
        except subprocess.TimeoutExpired as late:
            say(f"FAILED {name}: not done in {late.timeout} s")
            continue
        except ValueError:
            say(f"FAILED {name}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
            continue
        found[name] = {"command": " ".join(map(str, argv)), "printed": printed}
    return found


def targets(probes):
    """Rows for the table of targets: (text, values, relation, bound)."""
    printed = probes.get("node-bench", {}).get("printed", {})
    fetch, bare = printed.get("fetch_us", {}).get("median"), printed.get("ping_spin_us")
    return [(FETCH_TARGET, [fetch / bare] if fetch and bare else [], "<=", 2.0)]

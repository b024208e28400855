# SPDX-License-Identifier: MIT
"""The parts beneath the file system, timed in the same surroundings by programs of their own.

node-bench times one 4 KiB page fetched between two nodes and a bare UDP exchange of the same sizes;
ud-bench moves datagrams in bulk. Each prints JSON; it is kept as printed, and the ratio that has a
target is taken from it. They start their own processes on loopback addresses of this namespace.
"""

import json

from sandbox import processes

PROGRAMS = {"node-bench": ["--json"], "ud-bench": ["--json", "--rounds", "3"]}
FETCH_TARGET = "4 KiB from a peer / bare UDP ping-pong of the same sizes, us"


def run_all(bed, say):
    """{program: {command, printed}}; what cannot be run is said and left out."""
    found = {}
    for name, options in PROGRAMS.items():
        program = bed.bin / name
        if not program.exists():
            say(f"SKIPPED {name}: {program} is not built")
            continue
        argv = [program, *options]
        done = processes(name, bed.group, bed.logs).run_any(argv, timeout=300)
        try:
            printed = json.loads(done.stdout)
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

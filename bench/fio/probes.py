# SPDX-License-Identifier: MIT
"""The programs of bench/node, run in the same surroundings as the file systems.

node-bench times one 4 KiB fetch between two nodes and a bare UDP exchange of the same sizes; ud-bench
moves datagrams in bulk. Each prints JSON; it is kept as printed, and the ratio that has a
target is taken from it.
"""

import json

from sandbox import processes

PROGRAMS = ("node-bench", "ud-bench")


def run_all(bed, say):
    found = {}
    for name in PROGRAMS:
        program = bed.bin / name
        if not program.exists():
            say(f"SKIPPED {name}: {program} is not built")
            continue
        done = processes(name, bed.group, bed.logs).run_any([program, "--json"], timeout=120)
        try:
            printed = json.loads(done.stdout)
        except ValueError:
            say(f"FAILED {name}: exit {done.returncode}: {(done.stderr or done.stdout).strip()[-300:]}")
            continue
        found[name] = {"command": f"{program} --json", "printed": printed,
                       "targets": targets(name, printed)}
    return found


def targets(name, printed):
    if name != "node-bench":
        return []
    fetch, bare = printed.get("fetch_4k_us"), printed.get("udp_4k_us")
    if not fetch or not bare:
        return []
    return [("4 KiB peer fetch / bare UDP ping-pong, us", [fetch / bare], "<=", 2.0)]

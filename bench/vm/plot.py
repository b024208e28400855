# SPDX-License-Identifier: MIT
"""Bar charts by gnuplot: one SVG for cold reads, one for warm reads; a line marks the raw link."""
import shutil
import subprocess

import report

COLOURS = {"coopfs-peer": "#006d2c", "coopfs-copy": "#41ab5d", "coopfs-storage": "#a1d99b", "nfs-rdma": "#6b6ecf",
           "nfs-tcp": "#b5b6e8", "9p-tcp": "#d6616b"}
CASES = ("seq128k", "rand4k")


def draw(record, folder):
    if not shutil.which("gnuplot"):
        return ["SKIPPED plots: gnuplot is not installed: apt-get install gnuplot-nox"]
    said = []
    for state in ("cold", "warm"):
        systems = [s for s in COLOURS if any(report.speed(record, s, c, state) for c in CASES)]
        if not systems:
            continue
        path = folder / f"vm-{state}.svg"
        done = subprocess.run(["gnuplot"], input=script(record, systems, state, path), text=True, capture_output=True)
        said.append(f"FAILED plot {path}: {done.stderr.strip()}" if done.returncode else f"plot: {path}")
    return said


def script(record, systems, state, path):
    lines = ["$data << EOD"]
    for case in CASES:
        values = (report.speed(record, s, case, state) for s in systems)
        lines.append(" ".join([case, *(f"{v:.4g}" if v else "NaN" for v in values)]))
    lines += ["EOD", "set terminal svg size 900,440 dynamic font 'sans,12' background '#ffffff'",
              f"set output '{path}'", f"set title '{state} reads between two emulated machines, 64 MiB'",
              "set ylabel 'MB/s'", "set style data histogram", "set style histogram clustered gap 1",
              "set style fill solid 0.9 border -1", "set grid ytics", "set key outside right top",
              "set xtics nomirror", "set logscale y"]
    bars = [f"$data using {2 + i}{':xtic(1)' if i == 0 else ''} title '{s}' lc rgb '{COLOURS[s]}'"
            for i, s in enumerate(systems)]
    limit = report.raw(record)
    if limit and state == "cold":
        bars.append(f"{limit} with lines dashtype 2 lc rgb '#333333' title 'raw UD'")
    lines.append("plot " + ", ".join(bars))
    return "\n".join(lines) + "\n"

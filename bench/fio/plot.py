# SPDX-License-Identifier: MIT
"""Bar charts of the medians, drawn by gnuplot: throughput with its spread, and CPU time.

One SVG per quantity and state of the reader (cold, warm); the cases lie along the axis, and a
system has the same colour in every plot.
"""

import shutil
import subprocess

COLOURS = {"local": "#999999", "passthrough": "#c7a76c", "passthrough-splice": "#8c6d31",
           "sshfs": "#d6616b", "gfarm": "#6b6ecf", "gfarm-unbuffered": "#b5b6e8",
           "coopfs-storage": "#74c476", "coopfs-no-commit": "#c7e9c0", "coopfs-peer": "#006d2c",
           "coopfs-storage-old": "#a1d99b", "coopfs-peer-old": "#41ab5d"}
QUANTITIES = (("mb_s", "MB/s", "throughput"), ("cpu_s_gib", "CPU s/GiB", "cpu"))


def draw(record, folder):
    if not shutil.which("gnuplot"):
        return ["SKIPPED plots: gnuplot is not installed: apt-get install gnuplot-nox"]
    said = []
    for warm in (False, True):
        rows = [row for row in record["summary"] if (row["state"] == "warm") == warm]
        for name, unit, noun in QUANTITIES:
            rows_with = [row for row in rows if row[name]]
            if not rows_with:
                continue
            path = folder / f"fio-{'warm' if warm else 'cold'}-{noun}.svg"
            done = subprocess.run(["gnuplot"], input=script(rows_with, name, unit, warm, path, record),
                                  text=True, capture_output=True)
            said.append(f"FAILED plot {path}: {done.stderr.strip()}" if done.returncode
                        else f"plot: {path}")
    return said


def script(rows, name, unit, warm, path, record):
    present = {row["case"] for row in rows}
    cases = [case for case in dict.fromkeys(row["case"] for row in record["summary"])
             if case in present]
    systems = [system for system in COLOURS if any(row["system"] == system for row in rows)]
    value = {(row["case"], row["system"]): row[name] for row in rows}
    lines = ["$data << EOD"]
    for case in cases:
        cells = [case]
        for system in systems:
            one = value.get((case, system))
            cells += [f"{one[key]:.4g}" for key in ("median", "min", "max")] if one else ["NaN"] * 3
        lines.append(" ".join(cells))
    title = (f"{'warm' if warm else 'cold'} reads, {record['size'] >> 20} MiB, "
             f"median of {record['repetitions']}")
    lines += ["EOD", "set terminal svg size 1000,480 dynamic font 'sans,12' background '#ffffff'",
              f"set output '{path}'", f"set title '{title}'", f"set ylabel '{unit}'",
              "set style data histogram", "set style histogram errorbars gap 1 lw 1",
              "set style fill solid 0.9 border -1", "set grid ytics", "set key outside right top",
              "set bars small", "set xtics nomirror", "set logscale y"]
    bars = [f"$data using {2 + 3 * i}:{3 + 3 * i}:{4 + 3 * i}{':xtic(1)' if i == 0 else ''} "
            f"title '{system}' lc rgb '{COLOURS[system]}'" for i, system in enumerate(systems)]
    lines.append("plot " + ", ".join(bars))
    return "\n".join(lines) + "\n"

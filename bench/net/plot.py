# SPDX-License-Identifier: MIT
"""Bars of the medians with their spread, drawn by gnuplot: one SVG per question."""

import shutil
import subprocess

MIB = 1 << 20
# file, title, case, bytes, field, unit
CHARTS = (
    ("latency-8", "half round trip, 8 B", ("ping",), 8, "half_us", "us"),
    ("latency-64", "half round trip, 64 B", ("ping",), 64, "half_us", "us"),
    ("rate-8", "messages of 8 B, one way", ("stream",), 8, "messages_s", "messages/s"),
    ("bandwidth-1m", "1 MiB: messages there and back, and bulk", ("ping", "bulk", "bulk fetch", "bulk fill"),
     MIB, "mb_s", "MB/s"),
    ("cpu-8", "processor time of a round trip, 8 B, both sides", ("ping",), 8, "cpu_us", "us"),
)


def draw(record, folder):
    if not shutil.which("gnuplot"):
        return ["SKIPPED plots: gnuplot is not installed: apt-get install gnuplot-nox"]
    said = []
    for name, title, cases, size, field, unit in CHARTS:
        rows = [row for row in record["summary"]
                if row["case"] in cases and row["bytes"] == size and field in row]
        if not rows:
            continue
        path = folder / f"net-{name}.svg"
        done = subprocess.run(["gnuplot"], input=script(rows, title, field, unit, path, len(cases) > 1),
                              text=True, capture_output=True, check=False)
        said.append(f"FAILED plot {path}: {done.stderr.strip()}" if done.returncode else f"plot: {path}")
    return said


def script(rows, title, field, unit, path, with_case):
    lines = ["$data << EOD"]
    for row in sorted(rows, key=lambda r: (r["system"], r["case"], r["mode"])):
        label = f"{row['system']} {row['mode']}" + (f" {row['case']}" if with_case else "")
        v = row[field]
        lines.append(f"\"{label}\" {v['median']:.6g} {v['min']:.6g} {v['max']:.6g}")
    lines += ["EOD", "set terminal svg size 1000,560 dynamic font 'sans,12' background '#ffffff'",
              f"set output '{path}'", f"set title '{title}' noenhanced", f"set ylabel '{unit}'",
              "set style data histogram", "set style histogram errorbars gap 1 lw 1",
              "set style fill solid 0.9 border -1", "set grid ytics", "set bars small", "unset key",
              "set logscale y", "set xtics rotate by -40 nomirror noenhanced",
              "plot $data using 2:3:4:xtic(1) lc rgb '#006d2c'"]
    return "\n".join(lines) + "\n"

# SPDX-License-Identifier: MIT
"""What came of it: a table for the screen, report.json, and a plot."""
import json
import os
import platform
import subprocess

from failure import Failure

SOURCES = ("buffer", "peer", "storage")
COLOR = {"buffer": "#7a8aa0", "peer": "#2a9d6f", "storage": "#e08a2e"}
LABEL = {"buffer": "own buffer", "peer": "peers", "storage": "storage"}
STEPS = 120  # about so many on the time axis
GAP_S = 0.25  # between two nodes on the time axis, to tell them apart


def human(count):
    for unit in ("B", "KiB", "MiB"):
        if count < 1023.95:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.2f} GiB"


class Report:
    def __init__(self, data):
        self._data = data
        self._samples = []  # (node, seconds since its pass began, {source: bytes so far})
        self.nodes = {}
        self.daemon_bytes_sent = 0
        self.wrong = []

    def sample(self, node, seconds, sources):
        self._samples.append((node, seconds, {s: sources[s] for s in SOURCES}))

    def add(self, node, record, verified):
        self.nodes[node] = dict(record, verified=verified)

    def finish(self, out):
        text = json.dumps(self._json(), indent=2) + "\n"
        with open(os.path.join(out, "report.json"), "w", encoding="utf-8") as file:
            file.write(text)
        self._plot(os.path.join(out, "demo.svg"))
        self._print(out)

    def _bytes_read(self):
        return sum(record["bytes_" + s] for record in self.nodes.values() for s in SOURCES)

    def _json(self):
        return {
            "nodes": [dict(name=name, **record) for name, record in self.nodes.items()],
            "daemon_bytes_sent": self.daemon_bytes_sent,
            "source": {"files": self._data.files, "bytes": self._data.bytes,
                       "large_file_bytes": self._data.large_bytes},
            "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "arch": platform.machine()},
            "ok": not self.wrong,
            "wrong": self.wrong,
        }

    def _print(self, out):
        heading = ("node", "seconds", "rate", *(LABEL[s] for s in SOURCES), "checksums")
        rows = []
        for name, r in self.nodes.items():
            total = sum(r["bytes_" + s] for s in SOURCES)
            rows.append((name, f"{r['seconds']:.2f}", human(total / max(r["seconds"], 1e-9)) + "/s",
                         *(f"{human(r['bytes_' + s])} ({100 * r['bytes_' + s] / max(total, 1):.1f} %)"
                           for s in SOURCES),
                         "equal" if r["verified"] else "DIFFER"))
        widths = [max(len(row[i]) for row in (heading, *rows)) for i in range(len(heading))]
        print()
        for row in (heading, *rows):
            print("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                            for i, (cell, w) in enumerate(zip(row, widths))))
        read = self._bytes_read()
        print(f"\nread {human(read)}; the daemon sent {human(self.daemon_bytes_sent)} "
              f"({100 * self.daemon_bytes_sent / max(read, 1):.0f} %)")
        print(f"results: {out}/report.json  {out}/demo.svg  {out}/log/")
        for line in self.wrong:
            print(f"FAILED: {line}")

    def _rates(self):
        """Rows for the time axis: start, end, bytes a second by source; nodes one after the other."""
        rows, spans, offset = [], [], 0.0
        length = {name: seconds for name, seconds, _ in self._samples}  # the last one counts
        step = sum(length.values()) / STEPS
        for node in self.nodes:
            before, last = dict.fromkeys(SOURCES, 0), 0.0
            for name, seconds, sources in self._samples:
                # A step is as long as can be seen; the last one takes what is left.
                if name != node or (seconds - last < step and seconds < length[node]) or seconds == last:
                    continue
                rate = [(sources[s] - before[s]) / (seconds - last) for s in SOURCES]
                rows.append((offset + last, offset + seconds, rate))
                before, last = sources, seconds
            spans.append((node, offset, offset + last))
            offset += last + GAP_S
        return rows, spans

    def _plot(self, path):
        done = subprocess.run(["gnuplot"], input=self._gnuplot(path), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode != 0 or not os.path.exists(path):
            raise Failure(f"gnuplot failed:\n{done.stdout}")

    def _gnuplot(self, path):
        rows, spans = self._rates()
        mib = 1 << 20
        bars = "\n".join(" ".join([name] + [str(r["bytes_" + s] / mib) for s in SOURCES])
                         for name, r in self.nodes.items())
        # Steps: each rate holds from the sample before to its own; blank lines lift the pen between nodes.
        steps, last_end = [], None
        for start, end, rate in rows:
            if last_end is not None and start - last_end > GAP_S / 2:
                steps.append("")
            last_end = end
            floor = 0.0
            edges = [floor := floor + r / mib for r in (rate[2], rate[1], rate[0])]  # storage lowest
            for at in (start, end):
                steps.append(f"{at:.4f} " + " ".join(f"{e:.3f}" for e in edges))
        peak = max((sum(rate) / mib for _, _, rate in rows), default=1) or 1
        most = max((sum(r["bytes_" + s] for s in SOURCES) / mib for r in self.nodes.values()), default=1)
        end = spans[-1][2] if spans else 1
        labels = "\n".join(
            f'set label "{name}" at {(a + b) / 2:.3f}, graph 1.04 center textcolor rgb "#555555"'
            for name, a, b in spans)
        totals = "\n".join(
            f'set label "{human(sum(r["bytes_" + s] for s in SOURCES))}" at {i}, '
            f'{sum(r["bytes_" + s] for s in SOURCES) / mib} center offset 0,0.6 textcolor rgb "#555555"'
            for i, r in enumerate(self.nodes.values()))
        return f"""
set terminal svg size 1120,500 font "Helvetica,Arial,sans-serif,14" background rgb "#ffffff" \
    name "coopfs" enhanced dynamic
set output "{path}"
$bars << EOD
{bars}
EOD
$steps << EOD
{chr(10).join(steps)}
EOD
set multiplot
set label 100 "coopfs: {len(self.nodes)} nodes read the same {human(self._data.bytes)}, {self._data.files} files" \
    at screen 0.5,0.95 center font ",18"
set border 3 lc rgb "#999999"
set tics nomirror out scale 0.5 textcolor rgb "#333333"
set grid ytics lc rgb "#e6e6e6" lt 1 lw 1

set lmargin at screen 0.085; set rmargin at screen 0.36
set bmargin at screen 0.20; set tmargin at screen 0.77
set title "Where each node's bytes came from" offset 0,0.9 font ",15"
set ylabel "MiB" textcolor rgb "#333333"
set yrange [0:{most * 1.12}]
set xrange [-0.6:{len(self.nodes) - 0.4}]
set style data histogram
set style histogram rowstacked
set style fill solid 1 noborder
set boxwidth 0.62
unset key
{totals}
plot $bars using 4:xtic(1) lc rgb "{COLOR['storage']}", \
     '' using 3 lc rgb "{COLOR['peer']}", \
     '' using 2 lc rgb "{COLOR['buffer']}"
unset label

set lmargin at screen 0.455; set rmargin at screen 0.975
set title "Throughput while reading" offset 0,0.9
set xlabel "seconds of reading" textcolor rgb "#333333"
set ylabel "MiB/s"
set xrange [0:{end * 1.01}]
set xtics autofreq
set yrange [0:{peak * 1.08}]
set key at screen 0.2225,0.045 center center horizontal samplen 1.2 width 1 reverse Left
set style fill solid 1 noborder
{labels}
plot $steps using 1:(0):2 with filledcurves lc rgb "{COLOR['storage']}" title "{LABEL['storage']}", \
     '' using 1:2:3 with filledcurves lc rgb "{COLOR['peer']}" title "{LABEL['peer']}", \
     '' using 1:3:4 with filledcurves lc rgb "{COLOR['buffer']}" title "{LABEL['buffer']}"
unset multiplot
unset output
"""

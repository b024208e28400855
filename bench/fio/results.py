# SPDX-License-Identifier: MIT
"""From figures to statements: medians, ratios paired by repetition, and the targets.

A ratio divides two figures of the same repetition, taken seconds apart under the same foreign load; the
tables show the median and the extremes of these ratios.
"""

import os
import platform
import statistics

import names
import probes

GIB = 1 << 30

# Both pass everything through; the rows name the one that ran.
PASSTHROUGHS = ("passthrough", "passthrough-splice")

# name, numerator (case, state, system), denominator or None, field, relation, bound. A denominator may
# name several systems: the first measured one counts, and replaces {} in the name.
TARGETS = [
    ("peer / gfarm, MB/s", ("seq128k", "peer", "coopfs-peer"), ("seq128k", "storage", "gfarm"),
     "mb_s", ">=", 1.4),
    ("peer / gfarm, MB/s", ("seq1m", "peer", "coopfs-peer"), ("seq1m", "storage", "gfarm"),
     "mb_s", ">=", 1.4),
    ("peer / gfarm, CPU s/GiB", ("seq128k", "peer", "coopfs-peer"), ("seq128k", "storage", "gfarm"),
     "cpu", "<=", 0.85),
    ("peer / gfarm, CPU s/GiB", ("seq1m", "peer", "coopfs-peer"), ("seq1m", "storage", "gfarm"),
     "cpu", "<=", 0.85),
    ("peer / sshfs, MB/s", ("seq128k", "peer", "coopfs-peer"), ("seq128k", "storage", "sshfs"),
     "mb_s", ">=", 3.0),
    ("peer / sshfs, MB/s", ("seq1m", "peer", "coopfs-peer"), ("seq1m", "storage", "sshfs"),
     "mb_s", ">=", 3.0),
    ("storage / gfarm, MB/s", ("seq128k", "storage", "coopfs-storage"),
     ("seq128k", "storage", "gfarm"), "mb_s", ">=", 1.2),
    ("storage / gfarm, MB/s", ("seq1m", "storage", "coopfs-storage"), ("seq1m", "storage", "gfarm"),
     "mb_s", ">=", 1.2),
    ("storage / sshfs, files a second", ("untar", "write", "coopfs-storage"), ("untar", "write", "sshfs"),
     "mb_s", ">", 1.0),
    ("storage, commit_on_close=0 / sshfs, files a second", ("untar", "write", "coopfs-no-commit"),
     ("untar", "write", "sshfs"), "mb_s", ">", 1.0),
    *[("storage / sshfs, files a second", (case.name, "names", "coopfs-storage"), (case.name, "names", "sshfs"),
       "files_s", ">", 1.0) for case in names.ALL],
    *[("warm / {}, MB/s", (case, "warm", "coopfs-peer"), (case, "warm", PASSTHROUGHS), "mb_s",
       ">=", 0.95) for case in ("seq128k", "seq1m", "rand4k", "mmap")],
    ("peer, MB/s", ("rand4k", "peer", "coopfs-peer"), None, "mb_s", ">=", 75.0),
    ("peer / gfarm -o unbuffered, MB/s", ("rand4k", "peer", "coopfs-peer"),
     ("rand4k", "storage", "gfarm-unbuffered"), "mb_s", ">=", 75 / 69),
    ("4 jobs / 1 job from a peer, MB/s", ("rand4k-j4", "peer", "coopfs-peer"),
     ("rand4k", "peer", "coopfs-peer"), "mb_s", ">", 1.0),
    ("second reader's bytes from storage / file", ("seq128k", "peer", "coopfs-peer"), None,
     "storage_share", "<=", 0.01),
]
# Ratios without a bound.
COMPARED = [(f"peer / storage, {unit}", (case, "peer", "coopfs-peer"), (case, "storage", "coopfs-storage"), name)
            for case in ("seq128k", "rand4k", "small") for name, unit in (("mb_s", "MB/s"), ("cpu", "CPU s/GiB"))]
# The same with another build; rows only for what was measured.
AGAINST = [(f"{state}, new / old, {unit}", (case, state, f"coopfs-{state}"), (case, state, f"coopfs-{state}-old"), name)
           for case in ("seq128k", "seq1m", "rand4k", "rand4k-j4", "mmap", "small") for state in ("storage", "peer")
           for name, unit in (("mb_s", "MB/s"), ("cpu", "CPU s/GiB"))]


def machine(folder):
    model = "unknown"
    with open("/proc/cpuinfo") as info:
        for line in info:
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    with open("/proc/meminfo") as info:
        memory = int(info.readline().split()[1]) << 10
    return {"cpu": model, "cores": os.cpu_count(), "memory_bytes": memory,
            "kernel": platform.release(), "load_before": os.getloadavg(),
            "file_system": file_system(folder)}


def file_system(folder):
    best = ("", "unknown")
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _, where, kind = line.split()[:3]
            if str(folder).startswith(where) and len(where) >= len(best[0]):
                best = (where, kind)
    return best[1]


def field(figure, name):
    if name == "cpu":
        value = figure["cpu_s_gib"]
        return figure["cpu_s_gib_machine"] if value is None else value
    if name == "storage_share":
        traffic = (figure["notes"] or {}).get("traffic", {}).get("storage")
        return traffic["rx_bytes"] / figure["bytes"] if traffic else None
    return figure[name]


def spread(values):
    values = [value for value in values if value is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def by_key(record):
    table = {}
    for figure in record["figures"]:
        key = (figure["case"], figure["state"], figure["system"])
        table.setdefault(key, {})[figure["repetition"]] = figure
    return table


def summary(record):
    rows = []
    for (case, state, system), figures in by_key(record).items():
        rows.append({"case": case, "state": state, "system": system,
                     **{name: spread([figure.get(name) for figure in figures.values()])
                        for name in ("mb_s", "files_s", "cpu_s_gib", "cpu_s_gib_machine", "foreign_cpu")}})
    return rows


def ratios(table, above, below, name):
    """The field of 'above' divided by that of 'below', per repetition."""
    values = []
    for repetition, figure in table.get(above, {}).items():
        value = field(figure, name)
        if value is None:
            continue
        if below is None:
            values.append(value)
            continue
        other = table.get(below, {}).get(repetition)
        if other and field(other, name):
            values.append(value / field(other, name))
    return spread(values)


def measured(table, below):
    """The denominator with its first measured system, or with its first if none was measured."""
    if below is None or isinstance(below[2], str):
        return below
    case, state, systems = below
    return next((key for key in ((case, state, system) for system in systems) if key in table),
                (case, state, systems[0]))


def why_not(table, keys):
    """Names the missing figures."""
    missing = dict.fromkeys(f"{key[2]} ({key[0]})" for key in keys if key not in table)
    return "not measured: " + (f"no {', no '.join(missing)}" if missing else "in no repetition both")


def targets(record):
    table = by_key(record)
    rows = []
    compared = COMPARED + [one for one in AGAINST if one[2] in table]
    for text, above, below, name, relation, bound in TARGETS + [(*one, None, None) for one in compared]:
        below = measured(table, below)
        text = text.format(below and below[2])
        why = why_not(table, [key for key in (above, below) if key])
        rows.append(target_row(f"{above[0]}: {text}", relation, bound, ratios(table, above, below, name), why))
    for text, values, relation, bound in probes.targets(record["probes"]):
        rows.append(target_row(text, relation, bound, spread(values), "not measured: no probe"))
    return rows


def target_row(text, relation, bound, value, why):
    """why: the text if there is no value. reached is None without a value or a bound."""
    reached = None
    if value and relation:
        median = value["median"]
        reached = {">=": median >= bound, "<=": median <= bound, ">": median > bound}[relation]
    said = why if not value else {True: "yes", False: "no", None: "compared"}[reached]
    return {"target": text, "relation": relation, "bound": bound, "value": value, "reached": reached, "said": said}


def number(value, digits=2):
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def line(figure):
    foreign = figure["foreign_cpu"]
    noisy = f"  [{foreign:.1f} CPUs busy elsewhere]" if foreign and foreign > 0.3 else ""
    begin = f"{figure['case']:12} {figure['state']:8} {figure['system']:18} "
    if figure["mb_s"] is None:
        return f"{begin}{number(figure['files_s'], 1):>7} files/s{noisy}"
    return (f"{begin}{number(figure['mb_s'], 1):>7} MB/s  {number(field(figure, 'cpu')):>6} CPU s/GiB{noisy}")


def layout(rows):
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip()
                     for row in rows)


def tables(record):
    rows = [("case", "from", "system", "MB/s, files/s", "min..max", "CPU s/GiB", "machine")]
    for row in sorted(record["summary"], key=lambda row: (row["case"], row["state"] == "warm",
                                                          row["system"])):
        speed, own, whole = row["mb_s"] or row["files_s"], row["cpu_s_gib"], row["cpu_s_gib_machine"]
        rows.append((row["case"], row["state"], row["system"], number(speed["median"], 1),
                     f"{number(speed['min'], 1)}..{number(speed['max'], 1)}",
                     number(own and own["median"]), number(whole and whole["median"])))
    goals = [("target", "", "median", "min..max", "reached")]
    for row in record["targets"]:
        value = row["value"]
        goals.append((row["target"], f"{row['relation']} {row['bound']:.2f}" if row["relation"] else "",
                      number(value and value["median"], 3),
                      f"{number(value['min'], 3)}..{number(value['max'], 3)}" if value else "-",
                      row["said"]))
    return f"\n{layout(rows)}\n\n{layout(goals)}\n\n{quietness(record)}\n"


def quietness(record):
    foreign = spread([figure["foreign_cpu"] for figure in record["figures"]])
    if not foreign:
        return "the machine's other load is unknown"
    text = (f"busy elsewhere during the reads: {foreign['median']:.2f} of {os.cpu_count()} processors "
            f"(median), at most {foreign['max']:.2f}")
    if foreign["median"] > 0.1 * os.cpu_count():
        text += "\nthis machine was not quiet: repeat the run before you trust a figure"
    return text

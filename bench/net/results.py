# SPDX-License-Identifier: MIT
"""From figures to statements: medians, ratios paired by repetition, and the targets."""

import statistics

MIB = 1 << 20
FIELDS = ("half_us", "p50_us", "mb_s", "messages_s", "cpu_us", "peer_bytes", "find_ns",
          "connected_bytes", "connected")

# what, numerator and denominator (system, case, mode, bytes), field, relation, bound
TARGETS = [
    ("8 B half round trip, fabric / fi_pingpong, tcp", ("coopnet-fabric-tcp", "ping", "poll", 8),
     ("fi_pingpong-tcp", "ping", "poll", 8), "half_us", "<=", 1.05),
    ("8 B half round trip, ntrdma / fi_pingpong, shm", ("coopnet-ntrdma", "ping", "poll", 8),
     ("fi_pingpong-shm", "ping", "poll", 8), "half_us", "<=", 1.0),
    ("8 B half round trip, ntrdma / fi_pingpong, tcp", ("coopnet-ntrdma-tcp", "ping", "poll", 8),
     ("fi_pingpong-tcp", "ping", "poll", 8), "half_us", "<=", 1.1),
    ("1 MiB bandwidth, ntrdma / fi_pingpong, tcp", ("coopnet-ntrdma-tcp", "ping", "poll", MIB),
     ("fi_pingpong-tcp", "ping", "poll", MIB), "mb_s", ">=", 0.95),
    ("8 B half round trip, verbs send by TCP / fi_pingpong, tcp", ("verbs-send-tcp", "ping", "poll", 8),
     ("fi_pingpong-tcp", "ping", "poll", 8), "half_us", "<=", 1.1),
    ("1 MiB there and back, verbs send by TCP / fi_pingpong, tcp", ("verbs-send-tcp", "ping", "poll", MIB),
     ("fi_pingpong-tcp", "ping", "poll", MIB), "mb_s", ">=", 0.95),
    ("1 MiB bandwidth, fabric / fi_pingpong, tcp", ("coopnet-fabric-tcp", "ping", "poll", MIB),
     ("fi_pingpong-tcp", "ping", "poll", MIB), "mb_s", ">=", 0.95),
    ("1 MiB bandwidth, ntrdma / fi_pingpong, shm", ("coopnet-ntrdma", "ping", "poll", MIB),
     ("fi_pingpong-shm", "ping", "poll", MIB), "mb_s", ">=", 0.9),
    ("64 B half round trip, ud / fi_pingpong udp", ("coopnet-ud", "ping", "poll", 64),
     ("fi_pingpong-udp", "ping", "poll", 64), "half_us", "<=", 1.1),
    ("1 MiB, ud bulk / fi_pingpong udp;ofi_rxd", ("coopnet-ud", "bulk fetch", "poll", MIB),
     ("fi_pingpong-udp-rxd", "ping", "poll", MIB), "mb_s", ">=", 2.0),
    ("8 B messages/s, ud / ucx tcp", ("coopnet-ud", "stream", "poll", 8),
     ("ucx-tcp", "stream", "poll", 8), "messages_s", ">", 1.0),
    ("8 B half round trip, verbs send / ucx posix", ("verbs-send", "ping", "poll", 8),
     ("ucx-posix", "ping", "poll", 8), "half_us", "<=", 1.1),
    ("8 B, verbs read / send", ("verbs-read", "read", "poll", 8), ("verbs-send", "ping", "poll", 8), "half_us",
     "<=", 2.0),
    ("64 KiB bandwidth, verbs send / ucx posix", ("verbs-send", "bulk", "poll", 65536),
     ("ucx-posix", "bulk", "poll", 65536), "mb_s", ">=", 0.9),
    ("64 KiB bandwidth, verbs write / ucx posix", ("verbs-write", "bulk", "poll", 65536),
     ("ucx-posix", "bulk", "poll", 65536), "mb_s", ">=", 0.9),
    ("1 MiB bandwidth, verbs send / ucx posix", ("verbs-send", "bulk", "poll", MIB),
     ("ucx-posix", "bulk", "poll", MIB), "mb_s", ">=", 0.9),
    ("1 MiB bandwidth, verbs write / ucx posix", ("verbs-write", "bulk", "poll", MIB),
     ("ucx-posix", "bulk", "poll", MIB), "mb_s", ">=", 0.9),
]
# Ratios without a bound, which put the others in perspective.
COMPARED = [
    ("1 MiB, ud bulk one at a time / fi_pingpong udp;ofi_rxd", ("coopnet-ud-depth1", "bulk fetch", "poll", MIB),
     ("fi_pingpong-udp-rxd", "ping", "poll", MIB), "mb_s"),
    # ib_write_lat looks for bytes in its memory and calls nothing, so it is slow here.
    ("8 B, verbs read / write", ("verbs-read", "read", "poll", 8), ("verbs-write", "ping", "poll", 8), "half_us"),
    ("8 B half round trip, verbs write / ucx posix", ("verbs-write", "ping", "poll", 8),
     ("ucx-posix", "ping", "poll", 8), "half_us"),
    ("8 B half round trip, verbs send / plain tcp", ("verbs-send", "ping", "poll", 8),
     ("qperf-tcp", "ping", "block", 8), "half_us"),
    ("1 MiB bandwidth, verbs send / plain tcp", ("verbs-send", "bulk", "poll", MIB),
     ("qperf-tcp", "bulk", "block", MIB), "mb_s"),
    ("1 MiB bandwidth, verbs send by TCP / plain tcp", ("verbs-send-tcp", "bulk", "poll", MIB),
     ("qperf-tcp", "bulk", "block", MIB), "mb_s"),
    ("1 MiB one way, verbs send by TCP / 1 MiB there and back, fi_pingpong, tcp",
     ("verbs-send-tcp", "bulk", "poll", MIB), ("fi_pingpong-tcp", "ping", "poll", MIB), "mb_s"),
    ("8 B half round trip, ntrdma / ucx posix", ("coopnet-ntrdma", "ping", "poll", 8),
     ("ucx-posix", "ping", "poll", 8), "half_us"),
    ("8 B messages/s, ntrdma / ucx posix", ("coopnet-ntrdma", "stream", "poll", 8),
     ("ucx-posix", "stream", "poll", 8), "messages_s"),
]
RELATIONS = {"<=": lambda a, b: a <= b, ">=": lambda a, b: a >= b, ">": lambda a, b: a > b}


def key(figure):
    return figure["system"], figure["case"], figure["mode"], figure["bytes"]


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def summary(record):
    rows = {}
    for figure in record["figures"]:
        rows.setdefault(key(figure), []).append(figure)
    out = []
    for (system, case, mode, size), figures in rows.items():
        row = {"system": system, "case": case, "mode": mode, "bytes": size}
        for field in FIELDS:
            values = [one[field] for one in figures if one.get(field) is not None]
            if values:
                row[field] = spread(values)
        out.append(row)
    return out


def targets(record):
    value = {(*key(figure), figure["repetition"]): figure for figure in record["figures"]}
    repetitions = sorted({figure["repetition"] for figure in record["figures"]})
    out = []
    for what, above, below, field, relation, bound in TARGETS + [(*one, None, None) for one in COMPARED]:
        ratios = []
        for repetition in repetitions:
            a, b = value.get((*above, repetition)), value.get((*below, repetition))
            if a and b and a.get(field) and b.get(field):
                ratios.append(a[field] / b[field])
        found = spread(ratios) if ratios else None
        reached = RELATIONS[relation](found["median"], bound) if found and relation else None
        out.append({"target": what, "relation": relation, "bound": bound, "value": found, "reached": reached})
    return out


def number(value):
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def line(figure):
    cells = [f"{field} {number(figure[field])}" for field in FIELDS if figure.get(field) is not None]
    if figure.get("lost"):
        cells.append(f"{figure['lost']} lost")
    return (f"   {figure['system']:20} {figure['case']:11} {figure['mode']:6} {figure['bytes']:>8}  "
            + ", ".join(cells))


def median(row, field):
    return number(row[field]["median"]) if field in row else "-"


def tables(record):
    out = ["", f"{'median of ' + str(record['repetitions']):32} {'mode':6} {'half us':>9} {'p50 us':>9} "
           f"{'MB/s':>9} {'msg/s':>9} {'cpu us':>9}"]
    last = None
    for row in sorted(record["summary"], key=lambda r: (r["case"], r["bytes"], r["mode"], r["system"])):
        if row["case"] == "peers":
            continue
        group = row["case"], row["bytes"]
        if group != last:
            out.append(f"{row['case']}, {row['bytes']} bytes")
            last = group
        out.append(f"  {row['system']:30} {row['mode']:6} {median(row, 'half_us'):>9} "
                   f"{median(row, 'p50_us'):>9} {median(row, 'mb_s'):>9} {median(row, 'messages_s'):>9} "
                   f"{median(row, 'cpu_us'):>9}")
    for row in record["summary"]:
        if row["case"] == "peers":
            connected = ""
            if "connected_bytes" in row:
                connected = f"; {median(row, 'connected_bytes')} bytes for each of {median(row, 'connected')} that are connected"
            out.append(f"{row['system']}: {median(row, 'peer_bytes')} bytes an end point, found in "
                       f"{median(row, 'find_ns')} ns{connected}")
    out.append("")
    for row in record["targets"]:
        what = f"{row['target']} {row['relation']} {row['bound']}" if row["relation"] else row["target"]
        v = row["value"]
        if v is None:
            out.append(f"not measured  {what}")
            continue
        verdict = {True: "reached", False: "not reached", None: "compared"}[row["reached"]]
        out.append(f"{verdict:13} {what}: {v['median']:.2f} ({v['min']:.2f} to {v['max']:.2f})")
    return "\n".join(out)

# SPDX-License-Identifier: MIT
"""Ratios within one run, where a page's time goes, and both as tables.

Nothing fails because of speed: a missed goal is a line in the table. The raw link is the faster of a
receiver that polls and one that sleeps, because on one processor a poller starves the stack. Over
several runs every figure is the median, and every ratio the median of the runs' ratios.
"""

import statistics

PAGE = 4096
READAHEAD = 32  # pages, 128 KiB

# Kinds of kernel work, by symbol; the first match counts. Modules are recognized by object.
KINDS = (
    ("idle, waiting", ("default_idle", "cpuidle", "do_idle", "acpi_idle", "native_safe_halt", "pv_native_safe_halt",
                       "mwait_idle", "native_halt", "acpi_safe_halt")),
    ("checksum of datagrams", ("crc32", "csum")),
    ("page cache, copy to the reader", ("copy_user", "copy_page_to_iter", "copyout", "_copy_to_iter", "filemap", "folio",
                                        "xas_", "lru", "clear_page", "get_page", "rmqueue", "free_unref", "pagevec",
                                        "prep_new_page", "__alloc_pages", "page_cache", "mark_page", "workingset")),
    ("link, IP and UDP stack", ("virt", "vring", "skb", "napi", "net_", "ip_", "udp", "dev_", "eth_", "fib_",
                                "neigh", "qdisc", "sch_", "nf_", "xmit", "iowrite", "vp_notify", "sock", "kmem",
                                "kfree", "kmalloc", "slab", "memcpy", "memmove", "memset", "__copy_skb")),
)


def figure(record, system, case, state):
    for f in record["figures"]:
        if (f["system"], f["case"], f["state"]) == (system, case, state):
            return f
    return None


def speed(record, system, case="seq128k", state="cold"):
    f = figure(record, system, case, state)
    return f and f["mb_s"]


def quotient(a, b):
    return a / b if a is not None and b else None


def raw(record):
    return max(record["raw_mb_s"], default=None)


def ideal_latency(record):
    trip = record["round_trip_us"].get("256")
    return READAHEAD * PAGE / raw(record) + trip if raw(record) and trip else None


def storage_share(record):
    """Of the bytes that the reader read, the share that its storage connection received: it counts what
    crossed the network, not what the reads were credited with."""
    s = record["stats"].get("coopfs-peer", {})
    read = [s.get(f"source {k}", {}).get("bytes") for k in ("buffer", "peer", "storage")]
    return None if None in read else quotient(s.get("storage rx_data_bytes"), sum(read))


def unpacked(record, system):
    """Files per second, the median of the turns."""
    return median(record["untar"].get(system, []))


def message(record, transport, progress, what):
    """Microseconds, or a count, of an 8-byte message, the median of the turns."""
    return median(m[what] for m in record.get("messages", ())
                  if (m["transport"], m["progress"]) == (transport, progress))


def message_quotient(record, progress, what):
    return quotient(message(record, "kernel", progress, what), message(record, "ud", progress, what))


def limit_passed(record):
    """Whether coopfs passed the raw limit: then the raw tools were starved, and prove nothing."""
    peer, limit = speed(record, "coopfs-peer"), raw(record)
    return bool(peer and limit and peer > limit)


def ratios(record):
    """Rows of one run: (name, value, relation, goal, whether it depends on the raw limit). A row without a
    goal only informs."""
    peer = speed(record, "coopfs-peer")
    latency = (figure(record, "coopfs-peer", "rand128k", "cold") or {}).get("latency_us", {})
    copied = record["stats"].get("coopfs-peer", {}).get("read copied_bytes")
    storage = speed(record, "coopfs-storage")
    return [
        ("page-fetch goodput / raw UD", quotient(peer, raw(record)), ">=", 0.8, True),
        ("128 KiB readahead, median / (32 raw datagrams + a round trip)",
         quotient(latency.get("p50"), ideal_latency(record)), "<=", 1.3, True),
        ("128 KiB readahead, p5 / (32 raw datagrams + a round trip)",
         quotient(latency.get("p5"), ideal_latency(record)), None, None, True),
        ("from a peer / NFS over RDMA, sequential", quotient(peer, speed(record, "nfs-rdma")), ">", 1, False),
        ("from a peer / 9p, sequential", quotient(peer, speed(record, "9p-tcp")), ">", 1, False),
        ("from a peer / NFS over RDMA, random 4k",
         quotient(speed(record, "coopfs-peer", "rand4k"), speed(record, "nfs-rdma", "rand4k")), ">", 1, False),
        ("from a peer / 9p, random 4k",
         quotient(speed(record, "coopfs-peer", "rand4k"), speed(record, "9p-tcp", "rand4k")), ">", 1, False),
        ("from storage / NFSv4.1 over TCP, sequential", quotient(storage, speed(record, "nfs-tcp")), ">=", 1, False),
        ("from storage / NFSv4.1 over TCP, random 4k",
         quotient(speed(record, "coopfs-storage", "rand4k"), speed(record, "nfs-tcp", "rand4k")), ">=", 1, False),
        ("tar -x of small files / NFSv4.1 over TCP", quotient(unpacked(record, "coopfs"), unpacked(record, "nfs-tcp")),
         ">", 1, False),
        ("the same, FUSE", quotient(unpacked(record, "coopfs-fuse"), unpacked(record, "nfs-tcp")), ">", 1, False),
        ("the same, module, commit_on_close=0",
         quotient(unpacked(record, "coopfs-no-commit"), unpacked(record, "nfs-tcp")), ">", 1, False),
        ("the same, FUSE, commit_on_close=0",
         quotient(unpacked(record, "coopfs-fuse-no-commit"), unpacked(record, "nfs-tcp")), ">", 1, False),
        ("zero copy / ib_copy, sequential", quotient(peer, speed(record, "coopfs-copy")), ">=", 1, False),
        ("second reader's share from storage", storage_share(record), "<=", 0.01, False),
        ("page bytes copied on the receive path", copied, "<=", 0, False),
        ("8-byte message, kernel / ud by verbs, both ends sleep", message_quotient(record, "block", "us"), "<=", 1.1,
         False),
        ("the same, both ends poll", message_quotient(record, "poll", "us"), "<=", 1.1, False),
        ("system calls for it, kernel / ud, both ends sleep", message_quotient(record, "block", "calls"), "<", 1, False),
        ("the same, both ends poll", message_quotient(record, "poll", "calls"), "<", 1, False),
    ]


def median(values):
    known = [v for v in values if v is not None]
    return statistics.median(known) if known else None


def medians(parts):
    """Medians of dicts of numbers by name, over the dicts that have the name."""
    return {k: median(p.get(k) for p in parts) for k in dict.fromkeys(k for p in parts for k in p)}


def reached(value, relation, goal):
    if value is None or goal is None:
        return None
    return {">=": value >= goal, "<=": value <= goal, ">": value > goal, "<": value < goal}[relation]


def merged_ratios(records):
    """Each row is the median of the runs' ratios. In a row that depends on the raw limit only runs that did not
    pass it count; the others are marked, and stay visible."""
    passed = [limit_passed(r) for r in records]
    out = []
    for rows in zip(*(ratios(r) for r in records)):
        name, _, relation, goal, on_raw = rows[0]
        values = [row[1] for row in rows]
        marked = [on_raw and p and v is not None for v, p in zip(values, passed)]
        counted = [v for v, m in zip(values, marked) if v is not None and not m]
        out.append({"name": name, "relation": relation, "goal": goal, "value": median(counted), "values": values,
                    "marked": marked, "used": len(counted), "reached": reached(median(counted), relation, goal)})
    return out


def merged_figure(records, name):
    each = [figure(r, *name) for r in records]
    known = [f for f in each if f]
    return {**dict(zip(("system", "case", "state"), name)),
            **medians([{k: f[k] for k in ("bytes", "mb_s", "ms")} for f in known]),
            "latency_us": medians([f["latency_us"] for f in known]), "values": [f and f["mb_s"] for f in each]}


def merged(records):
    """Merges runs into one: medians, and beside them each run's value. The parts of a page's time add up only
    within a run, so they are of the run that is in the middle by the speed of reads from a peer."""
    speeds = sorted((speed(r, "coopfs-peer") or 0, i) for i, r in enumerate(records))
    measured = [i for mb_s, i in speeds if mb_s] or [i for _, i in speeds]
    middle = measured[len(measured) // 2]
    out = {**records[middle], "runs": len(records), "middle_run": middle + 1,
           "load": max(r["load"] for r in records)}
    for part in ("failed", "skipped"):
        out[part] = sorted({line for r in records for line in r[part]})
    names = dict.fromkeys((f["system"], f["case"], f["state"]) for r in records for f in r["figures"])
    out["figures"] = [merged_figure(records, name) for name in names]
    out["raw_values"] = [raw(r) or None for r in records]  # 0: the receiver lost everything
    limit = median(out["raw_values"])
    out["raw_mb_s"] = [] if limit is None else [limit]
    out["round_trip_us"] = medians([r["round_trip_us"] for r in records])
    out["round_trip_values"] = {b: [r["round_trip_us"].get(b) for r in records] for b in out["round_trip_us"]}
    out["untar"] = {name: [v for r in records for v in r["untar"].get(name, [])]
                    for name in dict.fromkeys(n for r in records for n in r["untar"])}
    out["messages"] = [m for r in records for m in r.get("messages", ())]
    out["ratios"] = merged_ratios(records)
    out["per_page"] = per_page(out)
    return out


def doubt(record):
    """Doubts that a reader of the table must know, or nothing."""
    out = []
    if record["load"][0] >= 1.3 * record["cpus"]:
        out.append(f"load average {record['load'][0]:.1f} on {record['cpus']} processors: this machine was not "
                   "quiet; repeat the run before you trust a figure")
    return "".join(f"\n{line}" for line in out)


def kind_of(entry):
    if entry["object"].strip("[]") == "coopfs":
        return "coopfs"
    if entry["object"].strip("[]") in ("rdma_rxe", "ib_core"):
        return "Soft-RoCE"
    symbol = entry["symbol"]
    for kind, names in KINDS:
        if any(n in symbol for n in names):
            return kind
    if entry["object"].strip("[]") in ("virtio_net", "virtio_ring", "virtio", "virtio_pci", "ip6_udp_tunnel", "udp_tunnel"):
        return KINDS[3][0]
    return "the rest"


def per_page(record):
    """Rows of (what, microseconds per page)."""
    def cost(mb_s):
        return PAGE / mb_s if mb_s else None

    f = record["fetching"]
    rows = [("a datagram on the raw link", cost(raw(record))),
            ("a page from the peer, as fio sees it", cost(speed(record, "coopfs-peer"))),
            ("  the same with ib_copy", cost(speed(record, "coopfs-copy"))),
            ("a page in the page cache (with the copy to the reader)",
             cost(speed(record, "coopfs-peer", state="warm")))]
    if f.get("pages") and f.get("mb_s"):
        rows.append((f"a window of {f['pages'] / f['fetches']:.0f} pages, from request to arrival (not per page)",
                     f["us"] / f["fetches"]))
        rows.append(("  windows in flight, mean (a number)", f["us"] / (f["pages"] * cost(f["mb_s"]))))
    for machine, who in ((2, "reader"), (1, "holder")):
        whole = cost(f.get("mb_s"))
        busy = f.get(f"busy_{machine}")
        if not whole or busy is None:
            continue
        rows.append((f"processor of the {who}", whole * busy))
        shares = {}
        for entry in record["profile"]:
            if entry["machine"] == machine and kind_of(entry) != KINDS[0][0]:
                shares[kind_of(entry)] = shares.get(kind_of(entry), 0) + entry["percent"]
        total = sum(shares.values())
        for kind, percent in sorted(shares.items(), key=lambda s: -s[1]):
            rows.append((f"  {kind}", whole * busy * percent / total))
        rows.append((f"  {who} idle or waiting", whole * (1 - busy)))
    return [{"what": what, "us": us} for what, us in rows if us is not None]


def layout(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) if i == 0 else cell.rjust(w)
                               for i, (cell, w) in enumerate(zip(row, widths))).rstrip() for row in rows)


def number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def each_run(values, marked=(), digits=1):
    marks = ["!" if m else "" for m in marked] or [""] * len(values)
    return " ".join(number(v, digits) + m for v, m in zip(values, marks))


def goal_row(row, runs):
    if row["goal"] is None:
        verdict = "-" if row["used"] else "not measured"
    else:
        verdict = {True: "yes", False: "NO", None: "not measured"}[row["reached"]]
    return (row["name"], number(row["value"], 3), "-" if row["goal"] is None else f"{row['relation']} {row['goal']}",
            verdict, each_run(row["values"], row["marked"], 3), f"{row['used']} of {runs}")


def below_goals(record):
    """Notes on the table of several runs."""
    out = []
    if record["runs"] > 1:
        out += ["a value is the median of the runs' values in its row, not the quotient of the medians above"]
    if any(m for row in record["ratios"] for m in row["marked"]):
        out += ["! in this run coopfs carried more than the raw link: the raw tools were starved of processor time,",
                "  and rows that depend on them prove nothing. The median is of the unmarked values, whose number is",
                "  'used'; without any the goal is open"]
    return "".join(f"\n{line}" for line in out)


def tables(record):
    """The tables of a record that merged() made."""
    runs = record["runs"]
    systems = list(dict.fromkeys(f["system"] for f in record["figures"]))
    columns = (("seq128k", "cold"), ("seq128k", "warm"), ("rand4k", "cold"), ("rand4k", "warm"))
    rows = [("MB/s" if runs == 1 else f"MB/s, medians of {runs} runs", *(f"{c} {s}" for c, s in columns))]
    rows += [(one, *(number(speed(record, one, c, s)) for c, s in columns)) for one in systems]
    written = [("tar -x of small files", "files/s", "of the turns")]
    written += [(one, number(unpacked(record, one), 0), each_run(turns, digits=0))
                for one, turns in record["untar"].items()]
    sent = [("8-byte messages", "us", "system calls", "changes of context", "datagrams", "us of the turns")]
    for way in dict.fromkeys((m["transport"], m["progress"]) for m in record["messages"]):
        us = [m["us"] for m in record["messages"] if (m["transport"], m["progress"]) == way]
        sent.append((", ".join(way), number(median(us)),
                     *(number(message(record, *way, what), 2) for what in ("calls", "switches", "datagrams")), each_run(us)))
    goals = [("within a run", "value", "goal", "reached", "of the runs", "used")]
    goals += [goal_row(r, runs) for r in record["ratios"]]
    pages = [("where a page's time goes", "us")] + [(r["what"], number(r["us"])) for r in record["per_page"]]
    several = (f"\nwindows, processors and their parts are of run {record['middle_run']} alone, the one in the middle "
               "by speed from a peer")
    trip = ", ".join(f"{b} bytes {number(us, 0)} us" for b, us in record["round_trip_us"].items())
    limits = f" (of the runs: {each_run(record['raw_values'])})" if runs > 1 else ""
    head = f"raw link: {number(raw(record))} MB/s of UD datagrams{limits}; round trip: {trip or '-'}"
    small = f"\n\n{layout(written)}" if record["untar"] else ""
    small += f"\n\n{layout(sent)}" if record["messages"] else ""
    return (f"\n{head}{doubt(record)}\n\n{layout(rows)}{small}\n\n{layout(goals)}{below_goals(record)}\n\n"
            f"{layout(pages)}{several if runs > 1 else ''}\n")

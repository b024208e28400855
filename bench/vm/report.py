# SPDX-License-Identifier: MIT
"""Ratios within one run, where a page's time goes, and both as tables.

Nothing fails because of speed: a goal that was missed is a line that says so. The raw link is the
faster of a receiver that polls and one that sleeps: on one processor a poller starves the stack.
"""

import statistics

PAGE = 4096
READAHEAD = 32  # pages, 128 KiB

# What runs in the kernel, by symbol; the first that matches counts. The modules are by object.
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
    s = record["stats"].get("coopfs-peer")
    if not s:
        return None
    got = {k: s[f"source {k}"]["bytes"] for k in ("buffer", "peer", "storage")}
    return quotient(got["storage"], sum(got.values()))


def ratios(record):
    peer = speed(record, "coopfs-peer")
    latency = figure(record, "coopfs-peer", "rand128k", "cold")
    copied = record["stats"].get("coopfs-peer", {}).get("read copied_bytes")
    storage = speed(record, "coopfs-storage")
    rows = [
        ("page-fetch goodput / raw UD", quotient(peer, raw(record)), ">=", 0.8),
        ("128 KiB readahead, median / (32 raw datagrams + a round trip)",
         quotient(latency and latency["latency_us"]["p50"], ideal_latency(record)), "<=", 1.3),
        ("from a peer / NFS over RDMA, sequential", quotient(peer, speed(record, "nfs-rdma")), ">", 1),
        ("from a peer / 9p, sequential", quotient(peer, speed(record, "9p-tcp")), ">", 1),
        ("from a peer / NFS over RDMA, random 4k",
         quotient(speed(record, "coopfs-peer", "rand4k"), speed(record, "nfs-rdma", "rand4k")), ">", 1),
        ("from a peer / 9p, random 4k",
         quotient(speed(record, "coopfs-peer", "rand4k"), speed(record, "9p-tcp", "rand4k")), ">", 1),
        ("from storage / NFSv4.1 over TCP, sequential", quotient(storage, speed(record, "nfs-tcp")), ">=", 1),
        ("from storage / NFSv4.1 over TCP, random 4k",
         quotient(speed(record, "coopfs-storage", "rand4k"), speed(record, "nfs-tcp", "rand4k")), ">=", 1),
        ("zero copy / ib_copy, sequential", quotient(peer, speed(record, "coopfs-copy")), ">=", 1),
        ("second reader's share from storage", storage_share(record), "<=", 0.01),
        ("page bytes copied on the receive path", copied, "<=", 0),
    ]
    out = [judged({"name": n, "relation": r, "goal": g}, v) for n, v, r, g in rows]
    # A limit that was passed is none: then the raw tools were starved, and prove nothing.
    if peer and raw(record) and peer > raw(record):
        for row in out[:2]:
            row["reached"] = None
    return out


def judged(row, value):
    reached = {">=": lambda v, g: v >= g, "<=": lambda v, g: v <= g, ">": lambda v, g: v > g}[row["relation"]]
    return {**row, "value": value, "reached": None if value is None else reached(value, row["goal"])}


def merged(records):
    """Several runs as one: ratios are medians of what each run said, and so are figures. A page's time is of
    the run that stands in the middle by what a peer delivers."""
    if len(records) == 1:
        return records[0]
    middle = sorted(records, key=lambda r: speed(r, "coopfs-peer") or 0)[len(records) // 2]
    out = {**middle, "runs": len(records), "load": max(r["load"] for r in records)}
    for part in ("failed", "skipped"):
        out[part] = sorted({line for r in records for line in r[part]})
    names = dict.fromkeys((f["system"], f["case"], f["state"]) for r in records for f in r["figures"])
    out["figures"] = []
    for name in names:
        same = sorted((f for r in records for f in [figure(r, *name)] if f), key=lambda f: f["mb_s"])
        out["figures"].append(same[len(same) // 2])
    limits = [raw(r) for r in records if raw(r)]
    out["raw_mb_s"] = [statistics.median(limits)] if limits else []
    out["ratios"] = []
    for rows in zip(*(r["ratios"] for r in records)):
        # What a run left open counts as not measured.
        values = [r["value"] for r in rows if r["reached"] is not None]
        out["ratios"].append(judged(rows[0], statistics.median(values) if values else None))
    return out


def doubt(record):
    """What a reader of the table has to know, or nothing."""
    out = []
    if record["load"][0] >= 1.3 * record["cpus"]:
        out.append(f"load average {record['load'][0]:.1f} on {record['cpus']} processors: this machine was not "
                   "quiet; repeat the run before believing a figure")
    peer = speed(record, "coopfs-peer")
    if peer and raw(record) and peer > raw(record):
        out.append("coopfs carried more than the raw link: the raw tools were starved of processor time, and the "
                   "two goals that rest on them are open")
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
    """Rows of (what, microseconds a page)."""
    def cost(mb_s):
        return PAGE / mb_s if mb_s else None

    f = record["fetching"]
    rows = [("a datagram on the raw link", cost(raw(record))),
            ("a page from the peer, as fio sees it", cost(speed(record, "coopfs-peer"))),
            ("  the same with ib_copy", cost(speed(record, "coopfs-copy"))),
            ("a page that is here already (page cache, copy to the reader)",
             cost(speed(record, "coopfs-peer", state="warm")))]
    if f.get("pages") and f.get("mb_s"):
        rows.append((f"a window of {f['pages'] / f['fetches']:.0f} pages, asked for until it is here (not a page)",
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


def tables(record):
    systems = list(dict.fromkeys(f["system"] for f in record["figures"]))
    columns = (("seq128k", "cold"), ("seq128k", "warm"), ("rand4k", "cold"), ("rand4k", "warm"))
    rows = [("MB/s", *(f"{c} {s}" for c, s in columns))]
    rows += [(one, *(number(speed(record, one, c, s)) for c, s in columns)) for one in systems]
    goals = [("within this run", "value", "goal", "reached")]
    goals += [(r["name"], number(r["value"], 3), f"{r['relation']} {r['goal']}",
               {True: "yes", False: "NO", None: "not measured"}[r["reached"]]) for r in record["ratios"]]
    pages = [("where a page's time goes", "us")] + [(r["what"], number(r["us"])) for r in record["per_page"]]
    trip = ", ".join(f"{b} bytes {number(us, 0)} us" for b, us in record["round_trip_us"].items())
    head = f"raw link: {number(raw(record))} MB/s of UD datagrams; round trip: {trip or '-'}"
    return f"\n{head}{doubt(record)}\n\n{layout(rows)}\n\n{layout(goals)}\n\n{layout(pages)}\n"

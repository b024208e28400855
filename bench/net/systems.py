# SPDX-License-Identifier: MIT
"""How to run each system and read its output.

A figure is {"case", "mode", "bytes", ...} and the fields of its case: ping: half_us (mean half round
trip), p50_us, mb_s; read: half_us (of the whole read), p50_us; stream: messages_s; bulk: mb_s; peers:
peer_bytes. cpu_us is the processor time of an operation, of client and server together. The process that
starts a program also ends it, even if interrupted.
"""

import json
import os
import shutil
import subprocess
import time

TIMEOUT_S = 60
MIB = 1 << 20
CONNECTED = 400  # machines that send a message to the server
CPUS = sorted(os.sched_getaffinity(0))[:2]


def on(which, command):
    return ["taskset", "-c", str(CPUS[which]), *command] if len(CPUS) > 1 else command


class pair:
    """A server that runs alone until the with block ends."""

    def __init__(self, command, env=None):
        self.command, self.env = on(1, command), env

    def __enter__(self):
        self.server = subprocess.Popen(self.command, env=self.env, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def client(self, command):
        """The client's output. Neither rival reports when it listens, so this retries until one succeeds."""
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            left = deadline - time.monotonic()
            try:
                done = subprocess.run(on(0, command), env=self.env, stdin=subprocess.DEVNULL, text=True,
                                      capture_output=True, timeout=max(left, 1), check=False)
            except subprocess.TimeoutExpired:
                raise RuntimeError(f"{' '.join(command)}: not done in {TIMEOUT_S} s") from None
            if done.returncode == 0 and done.stdout.strip():
                return done.stdout
            if self.server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:200] or 'ended early'}")
            time.sleep(0.05)

    def __exit__(self, *_):
        try:
            self.server.wait(2)
        except subprocess.TimeoutExpired:
            self.server.kill()
            self.server.wait()


def parse_pingpong(text):
    """The row below the heading `bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec`."""
    rows = text.strip().splitlines()
    names, values = rows[-2].split(), rows[-1].split()
    row = dict(zip(names, values))
    return {"half_us": float(row["usec/xfer"]), "mb_s": float(row["MB/sec"])}


def parse_perftest(text):
    """The last row: iterations, three times overhead, twice bandwidth, twice rate.

    Its MB are 2^20 bytes. The overhead of a ping is already half a round trip.
    """
    cells = [float(cell) for cell in text.strip().splitlines()[-1].split()[-8:]]
    return {"p50_us": cells[1], "half_us": cells[3], "mb_s": cells[5] * MIB / 1e6,
            "messages_s": cells[7]}


class pingpong:
    def __init__(self, provider, kind, cases):
        self.name = f"fi_pingpong-{provider.replace(';ofi_', '-')}"
        self.provider, self.kind, self.cases = provider, kind, cases

    def missing(self):
        return None if shutil.which("fi_pingpong") else "needs fi_pingpong: apt-get install libfabric-bin"

    def measure(self, _program, _chosen):
        for size, count in self.cases:
            base = ["fi_pingpong", "-p", self.provider, "-e", self.kind, "-S", str(size), "-I", str(count)]
            with pair(base) as running:
                figure = parse_pingpong(running.client([*base, "127.0.0.1"]))
            yield {"case": "ping", "mode": "poll", "bytes": size, **figure}


class perftest:
    def __init__(self, name, transport):
        self.name = f"ucx-{name}"
        self.env = dict(os.environ, UCX_TLS=f"{transport},self", UCX_NET_DEVICES="lo",
                        UCX_WARN_UNUSED_ENV_VARS="n")

    def missing(self):
        return None if shutil.which("ucx_perftest") else "needs ucx_perftest: apt-get install ucx-utils"

    def measure(self, _program, _chosen):
        for case, test, size, count in (("ping", "tag_lat", 8, 10000), ("ping", "tag_lat", 64, 10000),
                                        ("stream", "tag_bw", 8, 200000), ("bulk", "tag_bw", 65536, 5000),
                                        ("bulk", "tag_bw", MIB, 500)):
            with pair(["ucx_perftest", "-p", "13337"], self.env) as running:
                text = running.client(["ucx_perftest", "127.0.0.1", "-p", "13337", "-t", test, "-s", str(size),
                                       "-n", str(count), "-w", "500", "-f"])
            figure = parse_perftest(text)
            if case == "ping":
                del figure["messages_s"], figure["mb_s"]
            else:
                del figure["p50_us"], figure["half_us"]
            yield {"case": case, "mode": "poll", "bytes": size, **figure}


def parse_verbs(text):
    """The row of perftest below its heading; latencies in us, bandwidth in MB of 2^20 bytes."""
    rows = [line.split() for line in text.splitlines()]
    at = next((i for i, row in enumerate(rows) if row[:1] == ["#bytes"]), None)
    if at is None or at + 1 >= len(rows) or not rows[at + 1]:
        raise RuntimeError(f"no row in the output of perftest: {text.strip()[-200:]}")
    heading, values = " ".join(rows[at]), [float(cell) for cell in rows[at + 1]]
    if "t_typical" in heading:
        return {"p50_us": values[4], "half_us": values[5]}
    return {"mb_s": values[3] * MIB / 1e6}


class verbs:
    """perftest on the software RDMA device: ib_send_lat, ib_send_bw and so on, as packaged.

    A write is one that the peer's program waits for in its memory, without a call of the library: it is
    carried out by the thread of the device, so on two processors by the scheduler.

    By TCP it also sends 1 MiB there and back, which is what fi_pingpong does.
    """

    def __init__(self, operation, count, backend=""):
        self.name = f"verbs-{operation}" + (f"-{backend}" if backend else "")
        self.operation, self.count, self.backend = operation, count, backend
        self.env = dict(os.environ, COOP_NTRDMA_BACKEND=backend or "window")

    def missing(self):
        return None if shutil.which("ib_send_lat") else "needs perftest: apt-get install perftest"

    def measure(self, program, _chosen):
        tool = str(program.parent / "coop-verbs")
        if not os.access(tool, os.X_OK):
            raise RuntimeError(f"{tool} does not exist")
        lat, bw = f"ib_{self.operation}_lat", f"ib_{self.operation}_bw"
        cases = [("read" if self.operation == "read" else "ping", lat, 8, self.count),
                 ("bulk", bw, 65536, 5000), ("bulk", bw, MIB, 500)]
        if self.backend:
            cases.append(("ping", lat, MIB, 500))
        for case, test, size, count in cases:
            base = [tool, "run", "--", test, "-F", "-p", "13338", "-s", str(size), "-n", str(count)]
            with pair(base, self.env) as running:
                figure = parse_verbs(running.client([*base, "127.0.0.1"]))
            if case == "ping":
                figure["mb_s"] = size / figure["half_us"]
            yield {"case": case, "mode": "poll", "bytes": size, **figure}


def parse_qperf(text):
    """One line `latency = N ns` or `bw = N bytes/sec`, in units that -uu fixes."""
    words = text.split()
    value = float(words[words.index("=") + 1])
    return {"half_us": value / 1e3} if "latency" in words else {"mb_s": value / 1e6}


class plain_tcp:
    """Sockets without a library above them; both sides block."""

    name = "qperf-tcp"

    def missing(self):
        return None if shutil.which("qperf") else "needs qperf: apt-get install qperf"

    def measure(self, _program, chosen):
        port = ["-lp", "13339"]
        with pair(["qperf", *port]) as running:
            for case, test, size in (("ping", "tcp_lat", 8), ("bulk", "tcp_bw", 65536), ("bulk", "tcp_bw", MIB)):
                # It takes whole seconds.
                text = running.client(["qperf", *port, "-t", str(max(1, round(chosen.seconds))), "127.0.0.1", "-uu",
                                       "-m", str(size), test])
                yield {"case": case, "mode": "block", "bytes": size, **parse_qperf(text)}
            subprocess.run(["qperf", *port, "127.0.0.1", "quit"], stdin=subprocess.DEVNULL, capture_output=True,
                           timeout=TIMEOUT_S, check=False)


def figures_of_coopnet(record):
    """The figures in the JSON of `coopnet bench`."""
    for row in record["results"]:
        cpu = row["cpu_us"]["client"] + (row["cpu_us"]["server"] or 0)
        figure = {"case": row["what"], "mode": row["progress"], "bytes": row["bytes"],
                  "mb_s": row["mb_s"], "cpu_us": cpu}
        if row["what"] == "stream":
            figure.update(messages_s=row["operations_s"], lost=row["lost"])
        elif row["what"] == "ping":
            figure.update(half_us=row["latency_us"]["mean"], p50_us=row["latency_us"]["p50"],
                          p99_us=row["latency_us"]["p99"])
        else:
            figure["p50_us"] = row["latency_us"]["p50"]
        yield figure
    if "peers" in record:
        figure = {"case": "peers", "mode": "", "bytes": 0, "peers": record["peers"]["count"],
                  "peer_bytes": record["peers"]["bytes"], "find_ns": record["peers"]["find_ns"]}
        if record["peers"]["connected"]:
            figure["connected_bytes"] = record["peers"]["connected"]["bytes"]
            figure["connected"] = record["peers"]["connected"]["count"]
        yield figure


class coopnet:
    def __init__(self, name, *arguments):
        self.name, self.arguments = f"coopnet-{name}", arguments

    def missing(self):
        return None

    def measure(self, program, chosen):
        command = [str(program), "bench", "--json", "--seconds", str(chosen.seconds), "-s", "8,64,1m",
                   "--progress", "poll,block", "--peers", str(chosen.peers), "--connected",
                   str(CONNECTED), *self.arguments]
        if len(CPUS) > 1:
            command += ["--cpus", str(CPUS[0]), "--server-cpus", str(CPUS[1])]
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=4 * TIMEOUT_S, check=False)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()[:300]}")
        yield from figures_of_coopnet(json.loads(done.stdout))


ALL = [
    pingpong("tcp", "msg", [(8, 10000), (64, 10000), (MIB, 400)]),
    coopnet("fabric-tcp", "-t", "fabric", "-o", "provider=tcp", "-o", "sockets=1"),
    pingpong("shm", "rdm", [(8, 30000), (64, 30000), (65536, 4000), (MIB, 400)]),
    coopnet("ntrdma", "-t", "ntrdma"),
    coopnet("ntrdma-tcp", "-t", "ntrdma", "-o", "backend=tcp"),
    pingpong("udp", "dgram", [(8, 10000), (64, 10000)]),
    pingpong("udp;ofi_rxd", "rdm", [(8, 2000), (64, 2000), (MIB, 60)]),
    coopnet("ud", "-t", "ud"),
    coopnet("ud-depth1", "-t", "ud", "--only", "bulk", "--bulk-depth", "1"),
    coopnet("mem", "-t", "mem", "-o", "max_message=1m"),
    verbs("send", 10000),
    perftest("posix", "posix"),
    verbs("write", 500),
    verbs("read", 10000),
    verbs("send", 10000, "tcp"),
    perftest("tcp", "tcp"),
    plain_tcp(),
]

# SPDX-License-Identifier: MIT
"""Two hosts with two networks between them (network namespaces and veth): coopnet over ud with a rail
on each. Both carry bulk data, and a network that goes down costs no operation, whichever it is."""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import time

import pytest

TOOL = os.path.join(os.environ.get("COOP_BIN", "build/release/bin"), "coopnet")
DEADLINE = 120
LIBC = ctypes.CDLL(None)


def missing():
    if not os.path.exists(TOOL):
        return f"needs {TOOL}: build it first"
    for name in ("ip", "unshare", "nsenter"):
        if not shutil.which(name):
            return f"needs {name} (iproute2, util-linux)"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        return "needs network namespaces"
    return None


pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def wait_for(what, text):
    end = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < end, text
        time.sleep(0.02)


class Host:
    """A network namespace, and the programs that run in it."""

    def __init__(self, number):
        self.number = number
        self.programs = []
        self.holder = self.start(["unshare", "--net", "sleep", "infinity"], inside=False)
        own = os.stat("/proc/self/ns/net").st_ino
        wait_for(lambda: os.stat(f"/proc/{self.holder.pid}/ns/net").st_ino != own, "a new network namespace")
        self.run("ip", "link", "set", "lo", "up")

    def address(self, network):
        return f"10.{70 + network}.0.{self.number}"

    def inside(self, *words):
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", *words]

    def run(self, *words):
        return subprocess.run(self.inside(*words), capture_output=True, text=True, timeout=DEADLINE,
                              check=True).stdout

    def start(self, words, inside=True):
        def with_parent():
            LIBC.prctl(1, signal.SIGKILL)
        program = subprocess.Popen(self.inside(*words) if inside else words, stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=with_parent)
        self.programs.append(program)
        return program

    def received(self, network):
        """Bytes that have come by this network."""
        link, = json.loads(self.run("ip", "-s", "-j", "link", "show", f"v{network}"))
        return link["stats64"]["rx"]["bytes"]

    def close(self):
        for program in reversed(self.programs):
            program.kill()
            program.communicate()


@pytest.fixture
def hosts():
    one, two = Host(1), Host(2)
    try:
        for network in (0, 1):
            one.run("ip", "link", "add", f"v{network}", "type", "veth", "peer", "name", f"v{network}",
                    "netns", str(two.holder.pid))
            for host in (one, two):
                host.run("ip", "addr", "add", f"{host.address(network)}/24", "dev", f"v{network}")
                host.run("ip", "link", "set", f"v{network}", "up")
        yield one, two
    finally:
        two.close()
        one.close()


def serve(host):
    server = host.start([TOOL, "serve", "-t", "ud", "-o", f"rails={host.address(1)}", host.address(0)])
    line = server.stdout.readline()
    assert line.startswith("serving at"), line + server.stdout.read()
    return server


def bulk(host, server, direction, seconds, count=100000000):
    """Of seconds and count, whichever is over first."""
    return host.start([TOOL, "bulk", "-t", "ud", "-o", f"rails={host.address(1)}", "--json", "--direction", direction,
                       "-s", "1m", "-n", str(count), "--seconds", str(seconds), "--timeout", "60", server.address(0)])


def figures(client):
    out = client.communicate(timeout=4 * DEADLINE)[0]
    assert client.returncode == 0, out
    return json.loads(out)


def ended(server):
    server.send_signal(signal.SIGINT)
    return server.communicate(timeout=DEADLINE)[0]


@pytest.mark.parametrize("direction", ["fetch", "fill"])
def test_both_networks_carry_bulk_data(hosts, direction):
    one, two = hosts
    server = serve(one)
    figures_ = figures(bulk(two, one, direction, DEADLINE, 300))
    reader = one if direction == "fetch" else two
    data = figures_["results"][0]["count"] << 20
    for network in (0, 1):
        assert reader.received(network) > data / 20
    said = ended(server)
    assert " 0 failed" in said.splitlines()[-1]
    assert len([line for line in said.splitlines() if line.startswith("rail soft-roce")]) == 2
    rails, = figures_["rails"].values()
    assert all(two.address(n) in rails[n]["name"] for n in (0, 1))


@pytest.mark.parametrize("direction", ["fetch", "fill"])
@pytest.mark.parametrize("network", [0, 1])
def test_a_network_that_goes_down_costs_no_operation(hosts, network, direction):
    one, two = hosts
    server = serve(one)
    reader = one if direction == "fetch" else two
    for seconds in (12, 60, 240):
        client = bulk(two, one, direction, seconds)
        begun = [reader.received(each) for each in (0, 1)]
        for each in (0, 1):
            wait_for(lambda each=each: reader.received(each) > begun[each] + 20e6 or client.poll() is not None,
                     "both carry data")
        one.run("ip", "link", "set", f"v{network}", "down")
        there = reader.received(1 - network)
        wait_for(lambda: reader.received(1 - network) > there + 20e6 or client.poll() is not None,
                 "the other goes on")
        if client.poll() is None:
            break
        # A busy machine has carried too little in this time: once more, for longer.
        figures(client)
        one.run("ip", "link", "set", f"v{network}", "up")
    else:
        pytest.fail(f"less than 20 MB in {seconds} s by the other network")
    results = figures(client)
    assert results["results"][0]["count"] > 0
    assert " 0 failed" in ended(server).splitlines()[-1]

# SPDX-License-Identifier: MIT
"""coopnet between two processes, over every transport: its measurements, output and exit status.

Also the library's documentation: a test runs its example, and another builds it against what
`make install` installs. No test here is about speed. Every run has its own loopback addresses, so
that parallel runs do not meet.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time

import pytest

from cluster import BIN, DEADLINE, program, wait_for

ROOT = pathlib.Path(__file__).resolve().parents[2]

OK, FAILED, USAGE = range(3)
HOST = f"127.{1 + os.getpid() // 254 % 250}.{1 + os.getpid() % 254}"
WAYS = [("ud",), ("fabric", "-o", "provider=tcp"), ("fabric", "-o", "provider=tcp;ofi_rxm"), ("ntrdma",),
        ("ntrdma", "-o", "backend=tcp")]
NAMES = ["ud", "fabric-tcp", "fabric-rxm", "ntrdma", "ntrdma-tcp"]
SHORT = ("-n", "50", "--seconds", "5", "--timeout", "60")

pytestmark = pytest.mark.skipif(not os.access(program("coopnet"), os.X_OK),
                                reason=f"needs {program('coopnet')}: build it first")


def coopnet(*args, timeout=600, env=None):
    done = subprocess.run([program("coopnet"), *args], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=timeout, check=False, env=env)
    return done.returncode, done.stdout, done.stderr


class serving:
    """`coopnet serve`, from its line "serving at" until the with block ends."""

    def __init__(self, way, address, *args):
        self.command = [program("coopnet"), "serve", "-t", *way, *args, address]

    def __enter__(self):
        self.child = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        overdue = threading.Timer(DEADLINE, self.child.kill)
        overdue.start()
        self.said = self.child.stdout.readline()
        overdue.cancel()
        assert self.said.startswith("serving at"), self.child.stderr.read()
        prefix, _, self.client = self.child.stdout.readline().strip().partition(": ")
        assert prefix == "clients type"
        return self

    def serves(self):
        """Waits until it is busy with clients: it sleeps without, and their greetings take less time than this."""
        idle = ticks(self.child.pid)
        wait_for(lambda: ticks(self.child.pid) > idle + 10, "the server to be busy")

    def end(self, by=signal.SIGTERM):
        self.child.send_signal(by)
        out, err = self.child.communicate(timeout=DEADLINE)
        return self.child.returncode, out, err

    def __exit__(self, *_):
        self.child.kill()
        self.child.communicate()


def ticks(pid):
    """Processor time that a process has used."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as f:
        return sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))


def measured(out):
    record = json.loads(out)
    return {(row["what"], row["bytes"]): row for row in record["results"]}


def orders_hold(row):
    values = [row["latency_us"][name] for name in ("min", "p50", "p90", "p99", "p99.9", "max")]
    return values == sorted(values) and values[0] > 0


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_ping_and_bulk_between_processes(way):
    with serving(way, f"{HOST}.2") as server:
        assert f"{HOST}.2@tcp:12345:31:0" in server.said
        status, out, err = coopnet("ping", "-t", *way, "--json", "--check", "-s", "8,1000,64k", *SHORT,
                                   f"{HOST}.2")
        assert status == OK, err
        rows = measured(out)
        assert set(rows) == {("ping", 8), ("ping", 1000), ("ping", 65536)}
        for row in rows.values():
            assert 1 <= row["count"] <= 50 and orders_hold(row)
            assert row["cpu_us"]["server"] is not None
        status, out, err = coopnet("bulk", "-t", *way, "--json", "-s", "100k", *SHORT, f"{HOST}.2")
        assert status == OK, err
        rows = measured(out)
        assert set(rows) == {("bulk fetch", 102400), ("bulk fill", 102400)}
        assert all(orders_hold(row) and row["mb_s"] > 0 and row["depth"] == 4 for row in rows.values())
        status, out, err = server.end()
        assert status == OK, err
        summary = re.search(r"(\d+) messages, (\d+) answered, (\d+) bulk transfers, (\d+) failed, 0 dropped, "
                            r"0 malformed, (\d+) calls$", out, re.M)
        assert int(summary[3]) >= 2 and int(summary[4]) == 0
        # At the start of each client, and before and after each measurement and what warms it up.
        assert int(summary[5]) >= 1 + 3 * 4 + 1 + 2 * 4


# A server in one of two network namespaces, that a cable joins, and a client in each. Prints how many TCP
# connections the server's host has accepted, before and after each client.
TWO_HOSTS = """
ip link set lo up && ip link add coop-a type veth peer name coop-b || exit 77
unshare --net sleep 600 & other=$!
trap 'kill $other $server' EXIT
until ! [ /proc/$other/ns/net -ef /proc/self/ns/net ]; do sleep 0.1; done
ip link set coop-b netns $other || exit 77
ip addr add 10.78.0.1/24 dev coop-a && ip link set coop-a up || exit 77
there="nsenter --target $other --net"
$there sh -c 'ip link set lo up && ip addr add 10.78.0.2/24 dev coop-b && ip link set coop-b up' || exit 77
accepted() { $there awk '/^Tcp: [0-9]/ { print "accepted", $7 }' /proc/net/snmp; }
tool=$1; shift
$there $tool serve "$@" 10.78.0.2 & server=$!
until $there ss -ltn | grep -q 10.78.0.2 || ! kill -0 $server; do sleep 0.1; done
accepted
$there $tool ping "$@" -s 8,100k -n 20 10.78.0.2 || exit 1
accepted
$tool ping "$@" -s 8,100k -n 20 10.78.0.2 || exit 1
accepted
"""


def test_auto_is_memory_on_a_host_and_tcp_between_hosts():
    done = subprocess.run(["unshare", "--net", "sh", "-c", TWO_HOSTS, "sh", program("coopnet"), "-t", "ntrdma", "-o",
                           "backend=auto"], capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("needs the right to create network namespaces")
    assert done.returncode == 0, done.stdout + done.stderr
    before, by_memory, by_tcp = map(int, re.findall(r"^accepted (\d+)$", done.stdout, re.MULTILINE))
    assert before == by_memory < by_tcp, done.stdout


def test_the_environment_names_a_provider(monkeypatch):
    """One that coopnet does not prefer; the variable makes libfabric hide all others."""
    monkeypatch.setenv("FI_PROVIDER", "net")
    with serving(("fabric",), f"{HOST}.11"):
        status, _, err = coopnet("ping", "-t", "fabric", "-s", "8", *SHORT, f"{HOST}.11")
        assert status == OK, err


@pytest.mark.parametrize("way", [("mem",), *WAYS], ids=["mem", *NAMES])
@pytest.mark.parametrize("progress", ["poll", "block", "notify"])
def test_bench_brings_its_own_server(way, progress):
    status, out, err = coopnet("bench", "-t", *way, "--json", "--progress", progress, "-s", "64", *SHORT,
                               "--peers", "100", "--connected", "0")
    assert status == OK, err
    record = json.loads(out)
    rows = measured(out)
    assert ("ping", 64) in rows and ("bulk fetch", 65536) in rows
    assert rows["stream", 8]["lost"] == 0
    assert {row["progress"] for row in record["results"]} == {progress}
    assert (rows["ping", 64]["cpu_us"]["server"] is None) == (way == ("mem",))
    assert record["peers"]["count"] == 100 and record["peers"]["bytes"] > 0
    assert record["peers"]["connected"] is None


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_what_a_connected_peer_takes(way):
    """The server's memory grows for each peer, but by less than a machine takes."""
    for _ in range(5):
        status, out, err = coopnet("bench", "-t", *way, "--json", "--progress", "block", "--only", "peers",
                                   "--timeout", "60", "--peers", "100", "--connected", "64")
        assert status == OK, err
        connected = json.loads(out)["peers"]["connected"]
        if connected["bytes"]:
            break
        # Meanwhile the kernel has reclaimed as many pages of the server as the peers have taken: once more.
    assert connected["count"] == 64 and 0 < connected["bytes"] < 1 << 20
    status, out, err = coopnet("bench", "-t", *way, "--progress", "block", "--only", "peers",
                               "--timeout", "60", "--peers", "100", "--connected", "64")
    assert status == OK, err
    assert re.search(r"^64 connected peers: \d+ bytes each, of the server's process$", out, re.M)


def test_the_server_counts_who_connects():
    """Each machine sends one message, and the server receives it."""
    with serving(("ud",), f"{HOST}.13") as server:
        def messages(*args):
            status, _, err = coopnet("bench", "-t", "ud", "--only", "peers", "--progress", "block",
                                     "--peers", "1", *args, f"{HOST}.13")
            assert status == OK, err
        messages("--connected", "20")
        messages("--connected", "0")
        status, out, err = server.end()
        assert status == OK, err
        heard, answered = map(int, re.match(r"(\d+) messages, (\d+) answered", out).groups())
        assert heard - answered == 20


def test_a_server_that_gets_no_processor_for_seconds_is_asked_again():
    """A greeting without an answer ends after 4.5 s, with the status of a server that is not there."""
    with serving(("ntrdma",), f"{HOST}.24") as server:
        def descriptors():
            return len(os.listdir(f"/proc/{server.child.pid}/fd"))
        idle = descriptors()
        client = subprocess.Popen([program("coopnet"), "bench", "-t", "ntrdma", "--only", "peers", "--progress", "block",
                                   "--connected", "200", "--timeout", "60", f"{HOST}.24"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            wait_for(lambda: descriptors() > idle + 40, "the server to have connections")
            server.child.send_signal(signal.SIGSTOP)
            time.sleep(6)  # longer than a greeting may take
            server.child.send_signal(signal.SIGCONT)
            _, err = client.communicate(timeout=DEADLINE)
        finally:
            client.kill()
            client.communicate()
        assert client.returncode == OK, err


def test_the_one_that_cannot_connect_is_said():
    """The limit of descriptors is so low that some machine gets none."""
    few = ["sh", "-c", 'ulimit -n 60; exec "$@"', "sh", program("coopnet")]
    with serving(("ud",), f"{HOST}.14"):
        done = subprocess.run([*few, "bench", "-t", "ud", "--only", "peers", "--progress", "block",
                               "--connected", "50", f"{HOST}.14"], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == FAILED
    assert re.search(r"--connected: machine \d+: .*Too many open files", done.stderr), done.stderr


def test_tables_and_plot(tmp_path):
    picture = tmp_path / "ping.svg"
    more = ["--plot", str(picture)] if shutil.which("gnuplot") else []
    status, out, err = coopnet("ping", "-t", "mem", "-s", "8,64", *SHORT, *more)
    assert status == OK, err
    assert "half a round trip" in out and "p99.9" in out
    assert len(re.findall(r"^ +(?:8|64) +\d+ ", out, re.M)) == 2
    if more:
        assert picture.read_text(encoding="utf-8").lstrip().startswith("<?xml")


def test_a_plot_that_cannot_be_drawn_is_said_before_anything_is_measured(tmp_path):
    """No server runs at the address, so a client that asked it first would report that error."""
    status, out, err = coopnet("ping", "-t", "ud", "--plot", str(tmp_path / "none/x.svg"), f"{HOST}.12")
    assert status == FAILED and out == ""
    assert f"{tmp_path}/none/x.svg cannot be written" in err and "coopnet serve" not in err
    status, out, err = coopnet("ping", "-t", "ud", "--plot", str(tmp_path / "x.svg"), f"{HOST}.12",
                               env=dict(os.environ, PATH=str(tmp_path)))
    assert status == FAILED and out == ""
    assert "gnuplot cannot be started" in err and "coopnet serve" not in err
    assert not list(tmp_path.iterdir())


def test_what_gnuplot_says_is_not_among_the_results(tmp_path):
    talker = tmp_path / "gnuplot"
    talker.write_text("#!/bin/sh\nwhile read -r line; do echo noise; done\n", encoding="ascii")
    talker.chmod(0o755)
    status, out, err = coopnet("ping", "-t", "mem", "-s", "8", *SHORT, "--json", "--plot",
                               str(tmp_path / "x.svg"), env=dict(os.environ, PATH=str(tmp_path)))
    assert status == OK, err
    assert ("ping", 8) in measured(out)


def test_messages_and_bulk_are_drawn_apart(tmp_path):
    taker = tmp_path / "gnuplot"
    taker.write_text(f"#!/bin/sh\ncat > {tmp_path}/script\n", encoding="ascii")
    taker.chmod(0o755)
    status, _, err = coopnet("bench", "-t", "mem", "--only", "ping,bulk", "--progress", "poll", "-s", "8,64",
                             *SHORT, "--plot", str(tmp_path / "x.svg"),
                             env=dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}"))
    assert status == OK, err
    script = (tmp_path / "script").read_text(encoding="utf-8")
    assert re.findall(r"^set ylabel '(.*)'$", script, re.M) == ["half round trip, us", "bulk transfer, us",
                                                                "MB/s"]
    assert "'poll p50'" in script and "'bulk fill, poll p50'" in script


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_nobody_there_says_what_where_and_what_to_do(way):
    status, out, err = coopnet("ping", "-t", *way, f"{HOST}.3")
    assert status == FAILED and out == ""
    assert f"{HOST}.3@tcp:12345:31:0" in err and "coopnet serve" in err


@pytest.mark.parametrize("way", [*WAYS, ("ud", "-o", "seal=1", "-o", "max_message=64k", "-o", "test_seed=5")],
                         ids=[*NAMES, "ud-sealed"])
def test_a_server_says_what_its_clients_type(way):
    with serving(way, f"{HOST}.13@tcp:12345:31:*") as server:
        assert f"transport {way[0]}, " in server.said
        assert ("no key" in server.said) == (way[0] == "ud" or "backend=tcp" in way)
        for option in way[2::2]:
            shown = not option.startswith("test_") and option != "provider=tcp"  # what is standard goes without saying
            assert (option in server.said) == shown, server.said
            assert (option in server.client) == shown, server.client
        name, *words = shlex.split(server.client)
        assert name == "coopnet"
        status, _, err = coopnet(*words, "-s", "8", *SHORT)
        assert status == OK, err


def test_who_answers_with_another_transport_is_thought_of():
    with serving(("ntrdma",), f"{HOST}.14"):
        for way, keys in ((("ud",), ("key=", "seal=", "udp_port=")),
                          (("fabric", "-o", "provider=tcp", "-o", "sockets=1"), ("provider=",))):
            status, out, err = coopnet("ping", "-t", *way, f"{HOST}.14")
            assert status == FAILED and out == ""
            assert "agree on -t" in err and all(key in err for key in keys), err
            assert "sockets=" not in err


def test_hints_name_the_provider_that_was_taken():
    status, _, err = coopnet("ping", "-t", "fabric", "-o", "provider=no-such,tcp;ofi_rxm", f"{HOST}.15")
    assert status == FAILED
    assert "-o 'provider=tcp;ofi_rxm' " in err and "no-such" not in err


def test_a_provider_that_cannot_serve_is_refused_with_the_reason():
    status, out, err = coopnet("ping", "-t", "fabric", "-o", "provider=shm", f"{HOST}.15")
    assert status == FAILED and out == ""
    assert "use the transport ntrdma" in err


@pytest.mark.parametrize("wrong, timeout", [("key", "0.5"), ("key", "30"), ("seal", "0.5")])
def test_a_wrong_key_is_thought_of_however_long_one_waits(tmp_path, wrong, timeout):
    """With a wrong key the transport gives up before the client does, if the timeout is long enough."""
    keys = []
    for name in ("one", "other"):
        keys.append(tmp_path / name)
        keys[-1].write_bytes(os.urandom(32))
        keys[-1].chmod(0o600)
    with serving(("ud", "-o", f"key={keys[0]}"), f"{HOST}.16") as server:
        assert f"key={keys[0]}" in server.said
        mine = ("-o", f"key={keys[1]}") if wrong == "key" else ("-o", f"key={keys[0]}", "-o", "seal=1")
        status, out, err = coopnet("ping", "-t", "ud", *mine, "--timeout", timeout, f"{HOST}.16")
        assert status == FAILED and out == ""
        assert "agree on" in err and " key=," in err and " seal=," in err


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_sizes_are_those_that_both_sides_take(way):
    with serving((*way, "-o", "max_message=64k"), f"{HOST}.17", "--max-bulk", "100k"):
        for size in ("65537", "1m"):
            status, out, err = coopnet("ping", "-t", *way, "-s", size, f"{HOST}.17")
            assert status == USAGE and out == ""
            assert "from 8 to 65536" in err and "`-o max_message=` of the server" in err
        status, out, err = coopnet("ping", "-t", *way, "-o", "max_message=4k", "-s", "8k", f"{HOST}.17")
        assert status == USAGE and "`-o max_message=` of this side" in err
        status, out, err = coopnet("ping", "-t", *way, "--json", *SHORT, f"{HOST}.17")
        assert status == OK, err
        assert max(size for _, size in measured(out)) == 65536
        status, out, err = coopnet("bulk", "-t", *way, "-s", "64k,101k", f"{HOST}.17")
        assert status == USAGE and out == "" and "`--max-bulk` of the server" in err


def test_a_message_that_is_too_long_for_the_protocol_is_called_that():
    """A session of few and small segments takes less than max_message= says; each side reports its limit."""
    small = ("ud", "-o", "mtu=256", "-o", "window=64")
    with serving(small, f"{HOST}.18"):
        status, _, err = coopnet("ping", "-t", "ud", "-s", "64k", *SHORT, f"{HOST}.18")
        assert status == USAGE
        assert "from 8 to 4352" in err and "max_message=` of the server" in err and "window=" in err
        status, _, err = coopnet("ping", "-t", *small, "-s", "4352", *SHORT, f"{HOST}.18")
        assert status == OK, err


def test_a_path_that_takes_no_long_datagrams_is_called_that():
    with serving(("ud",), f"{HOST}.19"):
        narrow = ("-t", "ud", "-o", "test_longest=1000")
        status, _, err = coopnet("ping", *narrow, "-s", "8k", *SHORT, f"{HOST}.19")
        assert status == FAILED and "long datagrams" in err and "`-o mtu=` (4096 here)" in err
        status, _, err = coopnet("ping", *narrow, "-o", "mtu=512", "-s", "8k", *SHORT, f"{HOST}.19")
        assert status == OK, err


def test_the_json_has_the_parameters_in_effect():
    status, out, err = coopnet("ping", "-t", "fabric", "-o", "provider=no-such,tcp", "-o", "receives=16", "-s",
                               "8", *SHORT, "--json")
    assert status == OK, err
    parameters = json.loads(out)["parameters"]
    assert parameters["provider"] == "tcp" and parameters["receives"] == "16"
    assert parameters["max_message"] == "1m"


def test_a_list_is_one_word_and_an_address_may_follow():
    for option in (("-s", "8"), ("--size", "8,64"), ("--cpus", "0")):
        status, _, err = coopnet("ping", "-t", "ud", "--timeout", "0.2", *option, f"{HOST}.77")
        assert status == FAILED and f"{HOST}.77" in err, err


def test_an_address_in_use_is_refused():
    with serving(("ud",), f"{HOST}.4"):
        status, _, err = coopnet("serve", "-t", "ud", f"{HOST}.4")
        assert status == FAILED
        assert "in use" in err and "TMID" in err


@pytest.mark.parametrize("args", [
    ("ping", "-t", "mem", *SHORT, "-s", "8"), ("ping", "-t", "mem", *SHORT, "-s", "8", "--json"),
    ("options",), ("serve", "-t", "ud", f"{HOST}.13")], ids=lambda args: "-".join(args[:1] + args[7:]))
def test_results_that_are_lost_are_no_success(args):
    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run([program("coopnet"), *args], stdin=subprocess.DEVNULL, stdout=full,
                              stderr=subprocess.PIPE, text=True, timeout=300, check=False)
    assert done.returncode == FAILED and "cannot write to standard output" in done.stderr


@pytest.mark.parametrize("way, where", [
    (("ud",), f"{HOST}.14@tcp:12345:31:4095"), (("fabric",), f"inet:tcp:{HOST}.14@65535")],
                         ids=["ud", "inet"])
def test_a_client_does_not_ask_itself(way, where):
    """The client starts at a free number, which may be that of a server that has ended."""
    status, _, err = coopnet("ping", "-t", *way, *SHORT, "-s", "8", "--from", f"{HOST}.14", where)
    assert status == FAILED and err.startswith(f"coopnet: no server at {where}"), err


@pytest.mark.skipif(not shutil.which("gnuplot"), reason="needs gnuplot")
def test_one_size_is_drawn_without_a_warning(tmp_path):
    plot = tmp_path / "one.svg"
    status, _, err = coopnet("bulk", "-t", "mem", *SHORT, "-s", "4k", "--direction", "fetch",
                             "--plot", str(plot))
    assert (status, err) == (OK, "") and plot.stat().st_size > 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
                         ids=lambda number: number.name)
@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_signal_ends_a_measurement(way, number):
    """The program reports the interruption, releases what it holds and dies of the signal, also where
    libfabric has installed its own handlers."""
    with serving(way, f"{HOST}.20") as server:
        client = subprocess.Popen([program("coopnet"), "ping", "-t", *way, "-s", "8", "-n", "100000000",
                                   "--seconds", "600", f"{HOST}.20"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  # nohup may have started the tests, and a signal that is ignored remains so.
                                  preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))
        try:
            server.serves()
            client.send_signal(number)
            out, err = client.communicate(timeout=DEADLINE)
        finally:
            client.kill()
            client.communicate()
        assert (client.returncode, out, err) == (-number, "", "coopnet: interrupted\n")


# A network in which no host answers ARP for that address.
ALONE = ("ip link add v0 type veth peer name v1 && ip addr add 10.99.9.1/24 dev v0 && ip link set v0 up && "
         "ip link set v1 up && ip link set lo up")


@pytest.mark.parametrize("way", [("fabric", "-o", "provider=tcp"), ("ud",)], ids=["fabric-tcp", "ud"])
def test_a_host_that_is_not_there_has_refused_nothing(way):
    alone = ["unshare", "-n", "sh", "-c", f'{ALONE} || exit 77; exec "$@"', "sh"]
    done = subprocess.run([*alone, program("coopnet"), "ping", "-t", *way, "--from", "10.99.9.1", "-n", "1",
                           "--timeout", "30", "10.99.9.2"], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=300, check=False)
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip(f"needs a network namespace: {done.stderr.strip()}")
    assert done.returncode == FAILED and "10.99.9.2@tcp:12345:31:0 cannot be reached" in done.stderr


def test_one_machine_on_each_side_is_enough():
    """RoCE's own port has room for one machine of an IP: the calls go through the one that is measured."""
    way = ("ud", "-o", "udp_port=4791")
    with serving(way, f"{HOST}.29"):
        status, _, err = coopnet("ping", "-t", *way, "--from", f"{HOST}.30", "-s", "8", *SHORT, f"{HOST}.29")
        assert status == OK, err


def test_a_second_signal_ends_a_server_that_cannot_end():
    """A client that stopped in the middle of a transfer may still write to the server's memory."""
    way = ("fabric", "-o", "provider=tcp")
    with serving(way, f"{HOST}.22") as server:
        client = subprocess.Popen([program("coopnet"), "bulk", "-t", *way, "-s", "1m", "-n", "100000000",
                                   "--seconds", "600", f"{HOST}.22"], stdin=subprocess.DEVNULL,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            server.serves()
            client.send_signal(signal.SIGSTOP)
            server.child.send_signal(signal.SIGINT)
            assert server.end(signal.SIGTERM)[0] in (0, -signal.SIGINT, -signal.SIGTERM)
        finally:
            client.kill()
            client.wait()


def test_a_signal_that_is_ignored_remains_so():
    """nohup ignores SIGHUP."""
    command = [program("coopnet"), "ping", "-t", "fabric", "-o", "provider=tcp", "-s", "8", "-n", "100000000",
               "--seconds", "600", f"{HOST}.21"]
    with serving(("fabric", "-o", "provider=tcp"), f"{HOST}.21") as server:
        client = subprocess.Popen(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True)
        try:
            server.serves()
            client.send_signal(signal.SIGHUP)
            client.send_signal(signal.SIGTERM)
            _, err = client.communicate(timeout=DEADLINE)
        finally:
            client.kill()
            client.communicate()
        assert (client.returncode, err) == (-signal.SIGTERM, "coopnet: interrupted\n")


def test_a_device_that_is_missing_is_not_an_address():
    for command in ("ping", "serve"):
        status, out, err = coopnet(command, "-t", "ud", "-o", "device=no_such_device", "127.0.0.1")
        assert status == FAILED and out == ""
        assert "no_such_device" in err and "127.0.0.1" not in err


@pytest.mark.parametrize("args, word", [
    (("ping", ""), "it is empty"),
    ((), "subcommand"),
    (("nonsense",), "subcommand"),
    (("pong",), "perhaps ping; there are: ping, bulk, bench, serve, options"),
    (("ping", "--sise", "8"), "'--sise' is no option, perhaps --size; `coopnet ping --help`"),
    (("ping", "-s", "8", "64", "127.0.0.1"), "'64' is no address; a list is one word, separated by commas"),
    (("ping", "--cpus", "0", "1"), "'1' is no address; a list is one word, separated by commas"),
    (("ping", "--foo"), "'--foo' is no option; `coopnet ping --help`"),
    (("ping", "--jsn"), "'--jsn' is no option, perhaps --json; `coopnet ping --help`"),
    (("ping", "-s", "8,,9"), "'8,,9' has an empty place"),
    (("ping", "-s", "8,"), "'8,' has an empty place"),
    (("bench", "--only", "ping,"), "'ping,' has an empty place"),
    (("bench", "--only", "ping,pong"), "--only: pong not in"),
    (("ping", "-s", "99999999999999999999"), "--size: '99999999999999999999' is out of range"),
    (("ping", "-s", "16777216t"), "--size: '16777216t' is out of range"),
    (("ping", "--cpus", "99999999999999999999"), "'99999999999999999999' is out of range"),
    (("ping", "-t", "ud", "-o", "sl=1", "127.0.0.1"), "'sl' of transport ud is '1'; it is for an RDMA device"),
    (("ping", "-s", "-8"), "'-8' is no size"),
    (("ping", "-s", "8x"), "'8x' is no size"),
    (("ping", "--cpus", "-1"), "'-1' is no number; `coopnet ping --help`"),
    (("bulk", "--depth", "0"), "`coopnet bulk --help`"),
    (("options", "-t", "nonsense"), "`coopnet options --help`"),
    (("ping", "-t", "nonsense"), "nonsense"),
    (("ping", "here"), "'here' is no address"),
    (("ping", "-s", "7"), "from 8"),
    (("ping", "-s", "1g"), "--size 1073741824"),
    (("ping", "-o", "window"), "KEY=VALUE"),
    (("ping", "-o", "nonsense=1"), "nonsense"),
    (("ping", "--plot", "x.txt"), ".svg"),
    (("bench", "--plot", "x.svg", "--only", "peers"), "--only"),
    (("ping", "--progress", "guess"), "guess"),
    (("ping", "-t", "mem", "127.0.0.1"), "leave the address out"),
    (("ping", "-t", "mem", "-o", "max_message=8"), "max_message must be at least 96 bytes"),
    (("ping", "-t", "ud", "inet:tcp:127.0.0.1@3000"), "10.0.0.1@tcp:12345:31:0"),
    (("serve", "-t", "ud", "inet6:tcp:::1@3000"), "begin with inet6:"),
    (("ping", "-t", "fabric", "-o", "provider=tcp", "::1"), "inet6:tcp:"),
    (("ping", "127.0.0.1@tcp:12345:31:*"), "own address"),
    (("ping", "--cpus", "0,100000"), "--cpus 100000"),
    (("ping", "--server-cpus", "100000"), "--server-cpus 100000"),
    (("ping", "--server-cpus", "0", "127.0.0.1"), "--server-cpus is for a server"),
    (("ping", "-s", "2m"), "max_message="),
    (("serve",), "ADDR"),
    (("serve", "-t", "mem", "127.0.0.1"), "own process"),
    (("serve", "--cpus", "100000", "127.0.0.1"), "--cpus"),
    (("bulk", "--depth", "0"), "--depth"),
], ids=lambda v: " ".join(v) if isinstance(v, tuple) else "")
def test_wrong_usage(args, word):
    status, out, err = coopnet(*args)
    assert status == USAGE and out == ""
    assert word in err


def test_sizes_have_units():
    status, out, err = coopnet("ping", "-t", "mem", "--json", "-s", "8,1k,2KiB,3kb,16b", *SHORT)
    assert status == OK, err
    assert [size for _, size in measured(out)] == [8, 1024, 2048, 3072, 16]


def test_help_to_serve_offers_what_can_serve():
    status, out, _ = coopnet("serve", "--help")
    assert status == OK
    assert "{ud,fabric,ntrdma,kernel}" in out and not re.search(r"\bmem\b", out) and "Without ADDR" not in out


def test_help_and_manual_name_every_option():
    manual = (ROOT / "userland/man/coopnet.1").read_text(encoding="utf-8")
    for command in ("ping", "bulk", "bench", "serve"):
        status, out, _ = coopnet(command, "--help")
        assert status == OK
        for option in set(re.findall(r"--[a-z][a-z-]+", out)) - {"--help"}:
            assert option in manual, f"{command} {option}"
    status, out, _ = coopnet("options")
    assert status == OK and {"mem", "ud", "fabric", "ntrdma", "kernel"} <= set(out.split())


# ---- the library's page


def test_a_server_says_what_the_page_shows(tmp_path):
    key = tmp_path / "coop.key"
    key.write_bytes(os.urandom(32))
    key.chmod(0o600)
    page = (ROOT / "docs/messaging.md").read_text(encoding="utf-8")
    shown = [line.strip().replace("coop.key", str(key)).replace("10.0.0.1", f"{HOST}.19")
             for line in re.findall(r"^    (?:serving at|clients type).*", page, re.M)]
    with serving(("ud", "-o", f"key={key}"), f"{HOST}.19") as server:
        assert [server.said.strip(), f"clients type: {server.client}"] == shown


@pytest.mark.parametrize("transport", ["mem", "ud", "fabric", "ntrdma"])
def test_the_example_does_what_its_page_says(transport):
    assert len((ROOT / "docs/hello.cpp").read_text(encoding="utf-8").splitlines()) < 100
    done = subprocess.run([program("coop-net-hello"), transport], capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stderr
    assert "read: hello" in done.stdout


@pytest.mark.parametrize("static", [(), ("--static",)], ids=["shared", "static"])
def test_the_example_builds_against_what_is_installed(tmp_path, static):
    tools = [shutil.which(name) for name in ("cmake", "c++", "pkg-config")]
    if None in tools:
        pytest.skip("needs cmake, c++ and pkg-config")
    subprocess.run(["cmake", "--install", str(pathlib.Path(BIN).parent), "--component", "net", "--prefix",
                    str(tmp_path)], check=True, capture_output=True)
    assert list((tmp_path / "lib").glob("libcoop-net.so*")) and (tmp_path / "lib/libcoop-net.a").exists()
    page = tmp_path / "share/doc/libcoop-net"
    assert "MIT License" in (page / "copyright").read_text(encoding="utf-8")
    assert (page / "messaging.md").exists()
    env = dict(os.environ, PKG_CONFIG_PATH=str(tmp_path / "lib/pkgconfig"))
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", *static, "coop-net"], env=env, check=True,
                           capture_output=True, text=True).stdout.split()
    assert f"-I{tmp_path}/include" in flags or any(str(tmp_path) in os.path.realpath(f[2:]) for f in flags)
    assert not [f for f in flags if f.startswith("-std")]  # would lower the program's own
    if static:
        # A linker that finds both takes the shared library.
        flags = ["-l:libcoop-net.a" if f == "-lcoop-net" else f for f in flags]
    subprocess.run(["c++", "-std=c++20", str(page / "examples/hello.cpp"), *flags, "-o",
                    str(tmp_path / "hello")], check=True, env=env)
    done = subprocess.run([str(tmp_path / "hello"), "mem"], capture_output=True, text=True, timeout=300,
                          env=env if static else dict(env, LD_LIBRARY_PATH=str(tmp_path / "lib")),
                          check=False)
    assert "read: hello" in done.stdout, done.stderr

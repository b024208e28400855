# SPDX-License-Identifier: MIT
"""coop-verbs ether: two network namespaces joined by an Ethernet interface in each. No test is about speed."""
import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

import pytest

from cluster import wait_for
from ether import DEADLINE, TOOL, Side, missing, start

SO_RCVBUFFORCE = 33
PORT = 7000
WHY = missing()
pytestmark = pytest.mark.skipif(WHY is not None, reason=str(WHY))


@pytest.fixture(name="place")
def fixture_place():
    directory = tempfile.mkdtemp(prefix="coop-ether-")
    try:
        yield os.path.join(directory, "link0")
    finally:
        shutil.rmtree(directory)


@pytest.fixture(name="sides")
def fixture_sides(place):
    made = []
    try:
        for number in (1, 2):
            made.append(Side(number, place))
        yield made
    finally:
        for side in made:
            side.close()


def up(*sides):
    wait_for(lambda: all(side.carrier() for side in sides), "the carrier is up")


def joined(sides, *options):
    for side in sides:
        side.start(*options)
    up(*sides)
    return sides


def check_sum(words):
    words += bytes(len(words) % 2)
    total = sum(struct.unpack(f"!{len(words) // 2}H", words))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def ping(side, other, size):
    """An echo request with an own payload, and its answer. Repeated: while the neighbour's address is not
    known the kernel keeps few packets, and not for long."""
    payload = bytes(i * 7 & 0xff for i in range(size))
    head = struct.pack("!BBHHH", 8, 0, 0, os.getpid() & 0xffff, size)
    request = struct.pack("!BBHHH", 8, 0, check_sum(head + payload), os.getpid() & 0xffff, size) + payload
    with side.socket(socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
        raw.settimeout(5)
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            raw.sendto(request, (other.address, 0))
            with contextlib.suppress(TimeoutError):
                while True:
                    packet = raw.recv(65536)[20:]
                    if packet[0] == 0 and packet[4:] == request[4:]:
                        return
    raise AssertionError(f"no answer to a ping of {size} bytes")


class Transfer:
    """Bytes from one side to the other over one TCP connection, each way a thread; compared by SHA-256."""
    next_port = PORT

    def __init__(self, giver, taker, total, seed=1):
        Transfer.next_port += 1
        self.listener = taker.socket()
        self.listener.bind((taker.address, Transfer.next_port))
        self.listener.listen(1)
        self.out = giver.socket()
        self.out.connect((taker.address, Transfer.next_port))
        self.into, _ = self.listener.accept()
        self.into.settimeout(DEADLINE)
        self.total, self.seed = total, seed
        self.sums = {}
        self.taken = 0
        self.threads = [threading.Thread(target=self.give), threading.Thread(target=self.take)]
        for thread in self.threads:
            thread.start()

    def give(self):
        digest = hashlib.sha256()
        block = hashlib.shake_256(str(self.seed).encode()).digest(1 << 20)
        left = self.total
        try:
            while left:
                # A torn or repeated part would not fit: the blocks are of odd sizes, turned each time.
                block = block[12347:] + block[:12347]
                piece = block[:min(left, len(block) - left % 997)]
                self.out.sendall(piece)
                digest.update(piece)
                left -= len(piece)
            self.sums["given"] = digest.hexdigest()
        except OSError as error:
            self.sums["given"] = error
        self.out.close()

    def take(self):
        digest = hashlib.sha256()
        try:
            while piece := self.into.recv(1 << 20):
                digest.update(piece)
                self.taken += len(piece)
            self.sums["taken"] = digest.hexdigest()
        except OSError as error:
            self.sums["taken"] = error
        self.into.close()
        self.listener.close()

    def check(self):
        for thread in self.threads:
            before = -1
            while thread.is_alive() and before < self.taken:
                before = self.taken
                thread.join(DEADLINE)
            assert not thread.is_alive(), f"stuck at {self.taken} of {self.total} bytes"
        assert self.taken == self.total
        assert self.sums["given"] == self.sums["taken"]


def test_pings_of_all_sizes_both_ways(sides):
    a, b = joined(sides)
    for size in (0, 1, 56, 1400, 1473, 9000, 60000):
        ping(a, b, size)
        ping(b, a, size)


@pytest.mark.parametrize("mtu", [1280, 1500, 9000, 65521])
def test_bulk_data_both_ways_at_once(sides, mtu):
    a, b = joined(sides, "--mtu", str(mtu))
    transfers = [Transfer(a, b, 100_000_000, 1), Transfer(b, a, 100_000_000, 2)]
    for t in transfers:
        t.check()
    assert a.drops() == 0 and b.drops() == 0
    errors = a.info()["errors"]
    assert not any(errors.values()), errors


def test_ipv6_and_several_addresses(sides):
    a, b = joined(sides, "--address", "fd00:c00b::1/64")
    for side in sides:
        shown = json.loads(side.run("ip", "-json", "addr", "show", "dev", "e0").stdout)[0]
        assert {i["local"] for i in shown["addr_info"]} >= {side.address, "fd00:c00b::1"}


def test_either_may_start_first_and_the_carrier_follows(sides):
    a, b = sides
    for first, second in ((a, b), (b, a)):
        first.start()
        wait_for(first.link, "the interface")
        assert not first.carrier()
        second.start()
        up(a, b)
        ping(a, b, 56)
        code, said = second.end()
        assert code == 0, said
        assert second.link() is None
        wait_for(lambda side=first: not side.carrier(), "the carrier follows the peer")
        code, said = first.end()
        assert code == 0 and "the peer left" in said, said
        assert os.listdir(os.path.dirname(first.path)) == []


@pytest.mark.parametrize("role", ["listens", "calls"])
def test_a_killed_peer_takes_the_carrier_and_gives_it_back(sides, role):
    a, b = sides
    a.start()
    wait_for(lambda: os.path.exists(a.path), "the first one listens")
    b.start()
    up(a, b)
    dies, stays = (a, b) if role == "listens" else (b, a)
    Transfer(a, b, 10_000_000).check()
    dies.end(signal.SIGKILL)
    wait_for(lambda: not stays.carrier(), "the carrier follows the peer")
    assert dies.link() is None
    dies.start()
    up(a, b)
    Transfer(a, b, 10_000_000).check()
    Transfer(b, a, 10_000_000).check()
    assert stays.info()["errors"]["lost"] == 1


def test_an_interface_that_is_set_down_takes_the_carrier_of_the_other(sides):
    a, b = joined(sides)
    b.run("ip", "link", "set", "e0", "down")
    wait_for(lambda: not a.carrier(), "the carrier follows the peer's interface")
    b.run("ip", "link", "set", "e0", "up")
    up(a, b)
    Transfer(a, b, 1_000_000).check()
    assert a.info()["links"] == 1


def test_a_stopped_receiver_stops_the_queue_and_drops_nothing(sides):
    a, b = joined(sides, "--bound", "600000", "--mtu", "65521")
    transfer = Transfer(a, b, 200_000_000)
    wait_for(lambda: transfer.taken > 1_000_000, "data flow")
    before = a.drops() + b.drops()
    with a.socket(socket.SOCK_DGRAM) as out, b.socket(socket.SOCK_DGRAM) as into:
        into.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        into.bind((b.address, PORT))
        b.process.send_signal(signal.SIGSTOP)
        datagrams = [struct.pack("!I", i) * 15000 for i in range(60)]  # more than a stream holds
        for datagram in datagrams:
            out.sendto(datagram, (b.address, PORT))
        wait_for(lambda: a.info()["stopped"], "the sender's queue stops")
        assert a.info()["send"]["outstanding"] > 0
        b.process.send_signal(signal.SIGCONT)
        assert [into.recv(65536) for _ in datagrams] == datagrams
    transfer.check()
    assert a.drops() + b.drops() == before
    assert a.info()["stops"] > 0 and a.info()["links"] == 1
    assert not any(a.info()["errors"].values())


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_peer_that_is_stopped_for_longer_than_the_bound_loses_its_link(sides, stopped):
    a, b = sides
    # Within a shorter time a busy machine might run neither.
    a.start("--bound", "4000")
    wait_for(lambda: os.path.exists(a.path), "the first one listens")
    b.start("--bound", "4000")
    up(a, b)
    sleeper, other = sides[stopped], sides[1 - stopped]
    sleeper.process.send_signal(signal.SIGSTOP)
    with other.socket(socket.SOCK_DGRAM) as datagrams:
        datagrams.sendto(b"is anybody there?", (sleeper.address, 9))
    wait_for(lambda: not other.carrier(), "the bound ends the link")
    sleeper.process.send_signal(signal.SIGCONT)
    up(a, b)
    Transfer(a, b, 1_000_000).check()
    assert other.info()["errors"]["lost"] >= 1


def test_info_shows_the_link_at_both_ends(sides):
    a, b = joined(sides)
    for side, other in ((a, b), (b, a)):
        seen = side.info()
        assert seen["interface"] == "e0" and seen["path"] == side.path and seen["carrier"]
        assert seen["link"] == "up" and seen["peer_pid"] == other.process.pid and seen["peer_mtu"] == seen["mtu"]
        wait_for(lambda side=side: "Ethernet e0" in side.run(TOOL, "info").stdout, "the process answers")


SSHD = shutil.which("sshd") or "/usr/sbin/sshd"


@pytest.mark.skipif(not os.access(SSHD, os.X_OK) or not shutil.which("ssh") or not shutil.which("ssh-keygen"),
                    reason="openssh-server and openssh-client are not installed")
def test_ssh_and_sftp(sides, place):
    a, b = joined(sides)
    here = os.path.dirname(place)
    key = os.path.join(here, "key")
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    options = ["-i", key, "-o", "StrictHostKeyChecking=no", "-o", f"UserKnownHostsFile={here}/hosts", "-o",
               "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-F", "/dev/null"]
    # sshd needs /run/sshd: one of its own, since other tests on this machine may make and remove it.
    alone = ("unshare", "--mount", "--propagation", "private", "sh", "-c",
             'mount -t tmpfs -o mode=755 none /run && mkdir /run/sshd && exec "$@"', "sh")
    server = start(b.inside(*alone, SSHD, "-D", "-e", "-f", "/dev/null", "-h", key, "-o",
                            f"ListenAddress={b.address}", "-o", f"AuthorizedKeysFile={key}.pub", "-o",
                            "StrictModes=no", "-o", "UsePAM=no", "-o", "PermitRootLogin=yes", "-o",
                            f"PidFile={here}/pid", "-o", "Subsystem=sftp internal-sftp"))
    try:
        def answers():
            with a.socket() as probe:
                return probe.connect_ex((b.address, 22)) == 0

        wait_for(answers, "sshd listens")
        given = hashlib.shake_256(b"ssh").digest(3_000_000)
        done = subprocess.run(a.inside("ssh", *options, f"root@{b.address}", "cat"), input=given, capture_output=True,
                              timeout=DEADLINE, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout == given
        with open(os.path.join(here, "given"), "wb") as f:
            f.write(given)
        subprocess.run(a.inside("sftp", *options, "-b", "-", f"root@{b.address}"), check=True, capture_output=True,
                       input=f"put {here}/given {here}/taken\n".encode(), timeout=DEADLINE)
        with open(os.path.join(here, "taken"), "rb") as f:
            assert f.read() == given
    finally:
        server.kill()
        server.communicate()


@pytest.mark.skipif(not shutil.which("iperf3"), reason="iperf3 is not installed")
@pytest.mark.parametrize("way", [(), ("--reverse",)], ids=["there", "back"])
def test_iperf3(sides, way):
    """An unmodified program of TCP. How fast it is does not count."""
    a, b = joined(sides)
    server = start(b.inside("iperf3", "--server", "--one-off"))
    try:
        wait_for(lambda: server.poll() is not None or
                 b.run("ss", "--no-header", "--listening", "--tcp", "sport = 5201").stdout, "iperf3 listens")
        done = a.run("iperf3", "--client", b.address, "--time", "1", "--json", *way, check=False)
        result = json.loads(done.stdout)
        assert done.returncode == 0 and "error" not in result, done.stdout
        assert result["end"]["sum_received"]["bytes"] > 0
        said, _ = server.communicate(timeout=DEADLINE)
        assert server.returncode == 0, said
    finally:
        server.kill()
        server.communicate()
    assert not any(a.info()["errors"].values())


def refused(words):
    """The words of a start that fails."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert done.returncode == 1, done
    return done.stderr


def test_errors_say_what_where_and_what_to_do(sides, place):
    a, b = sides
    ether = (TOOL, "ether", "--path")
    a.run("ip", "tuntap", "add", "dev", "taken", "mode", "tap")
    said = refused(a.inside(*ether, place, "--name", "taken"))
    assert "taken" in said and "--name" in said
    said = refused(a.inside(*ether, place + "/nowhere/link0"))
    assert "nowhere" in said and "directory" in said
    with open(place, "w", encoding="ascii"):
        pass
    said = refused(a.inside(*ether, place))
    assert place in said and "not a socket" in said and "--path" in said
    os.unlink(place)
    said = refused(a.inside(*ether, place, "--address", "10.9.0.300/24"))
    assert "10.9.0.300/24" in said and "not an address" in said
    said = refused(a.inside("setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", *ether, place))
    assert "CAP_NET_ADMIN" in said
    said = refused(a.inside("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /dev/net && exec "$0" "$@"', *ether,
                            place))
    assert "/dev/net/tun" in said and "modprobe tun" in said


def test_a_third_process_and_another_user_are_refused(sides, place):
    a, b = joined(sides)
    said = refused(a.inside(TOOL, "ether", "--path", place, "--name", "e1"))
    assert place in said and "already" in said
    os.chmod(os.path.dirname(place), 0o777)
    for name in os.listdir(os.path.dirname(place)):
        os.chmod(os.path.join(os.path.dirname(place), name), 0o666)
    said = refused(a.inside("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+net_admin",
                            "--ambient-caps=+net_admin", TOOL, "ether", "--path", place, "--name", "e1"))
    assert place in said and "user" in said
    Transfer(a, b, 1_000_000).check()

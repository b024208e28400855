# SPDX-License-Identifier: MIT
"""coop-verbs: programs of the distribution that know nothing of coopfs, on the software RDMA device.

ibverbs-utils, perftest, qperf, rdmacm-utils, libfabric-bin and ucx-utils run between two processes of
this machine, as they are packaged. A program that is not installed is skipped. No test here is about speed.
"""
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import time

import pytest

from cluster import program, wait_for

TOOL = program("coop-verbs")
PORT = 20000 + os.getpid() % 12000  # below those that systems assign by themselves
DEADLINE = 240

pytestmark = pytest.mark.skipif(not os.access(TOOL, os.X_OK), reason=f"needs {TOOL}: build it first")


def needs(name):
    path = shutil.which(name)
    if not path:
        pytest.skip(f"{name} is not installed")
    return path


def start(*words, options=(), before=()):
    return subprocess.Popen([*before, TOOL, "run", *options, "--", needs(words[0]), *words[1:]],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class started:
    """A program on the device, killed at the end of the with block if it still runs."""

    def __init__(self, *words, **how):
        self.child = start(*words, **how)

    def __enter__(self):
        return self.child

    def __exit__(self, *_):
        self.child.kill()
        self.child.communicate()


def listens(port):
    wanted = f":{port:04X}"
    with open("/proc/net/unix") as f:
        if any(f"/{space}/{address}/{port}\n" in line for line in f for space in ("cm", "cm-udp")
               for address in ("*", "127.0.0.1", "::1")):
            return True
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with open(table) as f:
            for line in f:
                words = line.split()
                if words[1].endswith(wanted) and words[3] == "0A":
                    return True
    return False


def pair_once(*words, port_option="-p", **how):
    port = [port_option, str(PORT)]
    with started(*words, *port, **how) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), f"{words[0]} listens")
        with started(*words, *port, "127.0.0.1", **how) as client:
            out, _ = client.communicate(timeout=DEADLINE)
        if client.returncode:
            server.kill()
        served, _ = server.communicate(timeout=DEADLINE)
    return client.returncode, out, server.returncode, served


# perftest measures the processor's clock before its report. On a busy machine it gives up, and says this.
NO_CLOCK = "Correlation coefficient"


def pair(*words, **how):
    """Runs a program as server and as client; returns what the two printed."""
    for _ in range(5):
        client, out, server, served = pair_once(*words, **how)
        if NO_CLOCK not in out + served:
            break
    assert client == 0, out + served
    assert server == 0, served
    return out, served


def info():
    done = subprocess.run([TOOL, "info", "--json"], capture_output=True, text=True, timeout=DEADLINE, check=True)
    return json.loads(done.stdout)


def queue_pairs(pid):
    """Empty if the process does not answer within 2 s: then `coop-verbs info` leaves it out."""
    return next((p["pairs"] for p in info()["processes"] if p["pid"] == pid), [])


def pairs_of(pid):
    return wait_for(lambda: queue_pairs(pid), f"process {pid} answers")


def test_devinfo_shows_the_device():
    with started("ibv_devinfo", "-v") as child:
        out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 0, out
    assert "coop0" in out and "PORT_ACTIVE" in out and "ATOMIC_GLOB" in out


@pytest.mark.parametrize("options", [(), ("--copy",)], ids=["pulled", "copied"])
@pytest.mark.parametrize("arguments", [("-n", "2000"), ("-n", "200", "-e"), ("-n", "50", "-s", "1000000"),
                                       ("-n", "50", "-s", "1000000", "-c")], ids=["poll", "events", "large", "checked"])
def test_rc_pingpong(arguments, options):
    out, _ = pair("ibv_rc_pingpong", *arguments, options=options)
    assert "iters in" in out


def test_no_privilege_is_needed():
    user = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs")
    if os.geteuid() or subprocess.run([*user, "test", "-x", TOOL], check=False).returncode:
        pytest.skip("needs root, and programs that everybody can reach")
    for program_ in (("ibv_rc_pingpong", "-n", "50", "-s", "1000000", "-c"), ("ibv_ud_pingpong", "-n", "50")):
        out, _ = pair(*program_, before=user)
        assert "iters in" in out


def test_srq_pingpong():
    out, _ = pair("ibv_srq_pingpong", "-n", "500", "-q", "4")
    assert "iters in" in out


PERFTEST = ["ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_atomic_bw", "ib_send_lat", "ib_write_lat", "ib_read_lat",
            "ib_atomic_lat"]


@pytest.mark.parametrize("name", PERFTEST)
def test_perftest(name):
    out, _ = pair(name, "-n", "20" if name == "ib_write_lat" else "200")
    assert "#bytes" in out


@pytest.mark.parametrize("arguments", [("-a", "-n", "20"), ("-b", "-n", "200"), ("-e", "-n", "200"),
                                       ("-q", "4", "-n", "200"), ("-R", "-n", "200")],
                         ids=["all-sizes", "both-ways", "events", "queue-pairs", "rdmacm"])
def test_send_bw_in_its_modes(arguments):
    out, _ = pair("ib_send_bw", *arguments)
    assert "#bytes" in out


def ended_well(rping, out):
    """rping closes its event channel while its own thread still reads from it. Where that thread comes to read
    again, the program ends with this error, after all its work."""
    return rping.returncode == 0 or "rdma_get_cm_event: Bad file descriptor" in out


def test_rping():
    needs("rping")
    with started("rping", "-s", "-a", "127.0.0.1", "-p", str(PORT), "-C", "50") as server:
        wait_for(lambda: listens(PORT), "rping listens")
        with started("rping", "-c", "-v", "-a", "127.0.0.1", "-p", str(PORT), "-C", "50", "-V") as client:
            out, _ = client.communicate(timeout=DEADLINE)
        assert ended_well(client, out), out
        assert out.count("ping data") == 50
        served, _ = server.communicate(timeout=DEADLINE)
        assert ended_well(server, served), served


@pytest.mark.parametrize("names", [("rdma_server", "rdma_client"), ("rdma_xserver", "rdma_xclient")],
                         ids=["server", "xserver"])
def test_end_points(names):
    """Programs that leave everything to rdma_create_ep(): identifier, queues and the type of the queue pair."""
    with started(names[0], "-p", str(PORT)) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "the server listens")
        with started(names[1], "-s", "127.0.0.1", "-p", str(PORT)) as client:
            out, _ = client.communicate(timeout=DEADLINE)
        assert client.returncode == 0 and f"{names[1]}: end 0" in out, out
        served, _ = server.communicate(timeout=DEADLINE)
        assert server.returncode == 0, served


def test_nobody_listens():
    with started("rping", "-c", "-a", "127.0.0.1", "-p", str(PORT), "-C", "1") as client:
        out, _ = client.communicate(timeout=DEADLINE)
    assert client.returncode != 0
    assert "RDMA_CM_EVENT_REJECTED" in out


# qperf gives up when the other side is silent for 5 s, unless told otherwise.
QPERF_SERVER = ("qperf", "-lp", str(PORT), "-lto", str(DEADLINE))
QPERF_CLIENT = ("qperf", "-lp", str(PORT), "-to", str(DEADLINE), "-t", "1", "127.0.0.1")


# The last two verify what atomic operations leave in memory.
QPERF = ["rc_bi_bw", "rc_bw", "rc_lat", "rc_compare_swap_mr", "rc_fetch_add_mr", "rc_rdma_read_bw", "rc_rdma_read_lat",
         "rc_rdma_write_bw", "rc_rdma_write_lat", "rc_rdma_write_poll_lat", "ud_bi_bw", "ud_bw", "ud_lat",
         "ver_rc_compare_swap", "ver_rc_fetch_add"]


@pytest.mark.parametrize("name", QPERF)
def test_qperf(name):
    with started(*QPERF_SERVER) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "qperf listens")
        with started(*QPERF_CLIENT, name) as client:
            out, _ = client.communicate(timeout=DEADLINE)
        assert client.returncode == 0, out
        assert name + ":" in out and "error" not in out.lower(), out


# libfabric's verbs provider by itself, and below the layers that make it reliable (rxd) or connectionless (rxm).
FABRIC = [("verbs", "msg", "msg", "1m"), ("verbs", "dgram", "msg", "4k"), ("verbs;ofi_rxm", "rdm", "tagged", "1m"),
          ("verbs;ofi_rxd", "rdm", "msg", "1m"), ("verbs;ofi_rxd", "rdm", "tagged", "1m")]


@pytest.mark.parametrize("provider,endpoint,mode,largest", FABRIC)
def test_fi_pingpong(provider, endpoint, mode, largest):
    needs("fi_pingpong")
    words = ["fi_pingpong", "-p", provider, "-e", endpoint, "-m", mode, "-I", "20"]
    if endpoint != "dgram": # datagrams may be lost
        words.append("-c")
    with started(*words, "-B", str(PORT)) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "fi_pingpong listens")
        with started(*words, "-P", str(PORT), "127.0.0.1") as client:
            out, _ = client.communicate(timeout=DEADLINE)
        assert client.returncode == 0, out
        assert largest in out
        served, _ = server.communicate(timeout=DEADLINE)
        assert server.returncode == 0, served


@pytest.mark.parametrize("transport,test", [("rc_verbs", "am_lat"), ("rc_verbs", "put_bw"), ("rc_verbs", "get"),
                                            ("ud_verbs", "am_lat")])
def test_ucx(transport, test):
    """UCX's transports of these names, without its layers above."""
    needs("ucx_perftest")
    with started("ucx_perftest", "-p", str(PORT)) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "ucx_perftest listens")
        words = ("ucx_perftest", "-p", str(PORT), "-d", "coop0:1", "-x", transport, "-t", test, "-n", "100",
                 "-w", "10")
        how = ("-D", "zcopy", "-s", "100000") if test in ("put_bw", "get") else ()
        with started(*words, *how, "127.0.0.1") as client:
            out, _ = client.communicate(timeout=DEADLINE)
        assert client.returncode == 0, out
        assert "Final:" in out and "ERROR" not in out


@pytest.mark.parametrize("transports,used,test", [
    ("rc_v,ud_v,self", "", ("tag_lat", "-n", "100")), ("rc_v,self", "rc_verbs", ("tag_bw", "-s", "1000000", "-n", "20")),
    ("ud_v,self", "ud_verbs", ("tag_lat", "-n", "100"))], ids=["either", "rc", "ud"])
def test_ucx_with_its_layers_above(transports, used, test, monkeypatch):
    """UCX_TLS as programs of MPI set it. UCX makes the connections itself, by datagrams."""
    monkeypatch.setenv("UCX_TLS", transports)
    monkeypatch.setenv("UCX_LOG_LEVEL", "info")
    with started("ucx_perftest", "-p", str(PORT)) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "ucx_perftest listens")
        with started("ucx_perftest", "-p", str(PORT), "-t", *test, "-w", "10", "127.0.0.1") as client:
            out, _ = client.communicate(timeout=DEADLINE)
        assert client.returncode == 0, out
        assert "Final:" in out and "ERROR" not in out, out
        assert f"tag({used}" in out and "/coop0:1" in out, out


@pytest.mark.parametrize("arguments", [("-n", "2000"), ("-n", "200", "-e"), ("-n", "200", "-g", "1"),
                                       ("-n", "200", "-g", "1", "-e"), ("-n", "200", "-s", "4096")],
                         ids=["poll", "events", "gid", "gid-events", "largest"])
def test_ud_pingpong(arguments):
    if "-g" in arguments and len(gids()) < 2:
        pytest.skip("this machine has no address but loopback")
    out, _ = pair("ibv_ud_pingpong", *arguments)
    assert "iters in" in out


def room(queue_pairs=1):
    """How many of the largest datagrams each queue pair can send to a program that does not run meanwhile, with
    half of the room of its socket: nothing stops their sender, and perftest waits for all of them."""
    with open("/proc/sys/net/core/rmem_max") as f:
        socket_takes = 2 * min(int(f.read()), 4 << 20)
    return str(min(200, socket_takes // 2 // 8448 // queue_pairs))  # 8448: what the kernel charges for one


@pytest.mark.parametrize("arguments", [(), ("-e",), ("-b",), ("-q", "4"), ("-s", "4096"), ("-R",)],
                         ids=["poll", "events", "both-ways", "queue-pairs", "largest", "rdmacm"])
def test_send_bw_of_datagrams(arguments):
    out, _ = pair("ib_send_bw", "-c", "UD", "-n", room(4 if "-q" in arguments else 1), *arguments)
    assert "#bytes" in out


def test_send_lat_of_datagrams():
    out, _ = pair("ib_send_lat", "-c", "UD", "-n", "200")
    assert "#bytes" in out


def gids():
    with started("ibv_devinfo", "-v") as child:
        out, _ = child.communicate(timeout=DEADLINE)
    return [line.split()[-1] for line in out.splitlines() if "GID[" in line]


def unread(port):
    """Bytes that the kernel has charged to 127.0.0.1's UDP socket of that port."""
    with open("/proc/net/udp") as f:
        return sum(int(line.split()[4].split(":")[1], 16) for line in f if f" 0100007F:{port:04X} " in line)


def test_noise_on_the_port_of_datagrams_does_no_harm():
    """Datagrams that are none, and those whose check sum is wrong, vanish."""
    dice = random.Random(1)
    many = ("ibv_ud_pingpong", "-n", "3000", "-p", str(PORT))
    with started(*many) as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as noise:
        wait_for(lambda: server.poll() is not None or listens(PORT), "ibv_ud_pingpong listens")
        mine = wait_for(lambda: next((p for p in info()["processes"] if p["pid"] == server.pid), None),
                        "the server answers")
        number = mine["pairs"][0]["number"]
        with started(*many, "127.0.0.1") as client:
            until = time.monotonic() + DEADLINE
            while client.poll() is None and time.monotonic() < until:
                head = bytes([0x64, 0xc0, 0xff, 0xff]) + number.to_bytes(4, "big") + bytes(4) \
                    + (0x11111111).to_bytes(4, "big") + bytes(4)
                text = dice.randbytes(dice.randrange(64)) if dice.randrange(2) else \
                    head + dice.randbytes(4 * dice.randrange(1, 600))
                noise.sendto(text, ("127.0.0.1", 15000 + mine["slot"]))
                # The program never asks for a lost datagram again: no more noise than its socket has room for.
                while dice.randrange(10) == 0 or unread(15000 + mine["slot"]) > 50_000:
                    time.sleep(0.001)
            out, _ = client.communicate(timeout=DEADLINE)
        assert client.returncode == 0, out
        served, _ = server.communicate(timeout=DEADLINE)
        assert server.returncode == 0, served


UNCONNECTED = """
import ctypes, errno
v = ctypes.CDLL("libibverbs.so.1", use_errno=True)
for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_create_cq", "ibv_create_qp"):
    getattr(v, name).restype = ctypes.c_void_p
class attributes(ctypes.Structure):
    _fields_ = [("context", ctypes.c_void_p), ("send", ctypes.c_void_p), ("receive", ctypes.c_void_p),
                ("shared", ctypes.c_void_p), ("capacity", ctypes.c_uint32 * 5), ("type", ctypes.c_int),
                ("all", ctypes.c_int)]
device = ctypes.c_void_p(ctypes.c_void_p.from_address(v.ibv_get_device_list(None)).value)
context = ctypes.c_void_p(v.ibv_open_device(device))
domain = ctypes.c_void_p(v.ibv_alloc_pd(context))
queue = v.ibv_create_cq(context, 16, None, None, 0)
for kind in (2, 3, 4, 8):
    a = attributes(None, queue, queue, None, (ctypes.c_uint32 * 5)(4, 4, 1, 1, 0), kind, 1)
    made = v.ibv_create_qp(domain, ctypes.byref(a))
    print(kind, "made" if made else errno.errorcode[ctypes.get_errno()])
"""


def test_what_is_not_offered_is_refused():
    """RC (2) and UD (4) are; unreliable connected (3) and raw packet (8) queue pairs are not."""
    with started("python3", "-c", UNCONNECTED) as child:
        out, _ = child.communicate(timeout=DEADLINE)
    assert (child.returncode, out) == (0, "2 made\n3 ENOTSUP\n4 made\n8 ENOTSUP\n")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "stops"])
@pytest.mark.parametrize("arguments", [(), ("-e",), ("-s", "1000000")], ids=["poll", "events", "large"])
def test_a_peer_that_is_gone_ends_the_program(how, arguments):
    many = ["-n", "100000000", "-p", str(PORT), *arguments]
    options = ("--bound", "10000")  # within a shorter time a busy machine might not run it
    with started("ibv_rc_pingpong", *many, options=options) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "the server listens")
        with started("ibv_rc_pingpong", *many, "127.0.0.1", options=options) as client:
            wait_for(lambda: any(q["served"] > 20 for q in queue_pairs(client.pid)), "messages flow")
            server.send_signal(how)
            out, _ = client.communicate(timeout=DEADLINE)
            assert client.returncode == 1
            assert "Failed status" in out
    assert all(p["pid"] != client.pid for p in info()["processes"])


def test_info_shows_links_and_rings():
    with started("ibv_rc_pingpong", "-n", "100000000", "-p", str(PORT)) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "the server listens")
        with started("ibv_rc_pingpong", "-n", "100000000", "-p", str(PORT), "127.0.0.1") as client:
            wait_for(lambda: any(q["link"] == "up" and q["sent"] for q in queue_pairs(client.pid)), "messages flow")
            mine, theirs = pairs_of(client.pid)[0], pairs_of(server.pid)[0]
            assert (mine["peer"], theirs["peer"]) == (theirs["number"], mine["number"])
            assert mine["peer_pid"] == server.pid and mine["state"] == "RTS"

            def table():
                out = subprocess.run([TOOL, "info"], capture_output=True, text=True, check=True, timeout=DEADLINE).stdout
                return out if f"process {client.pid} (ibv_rc_pingpong)" in out else None
            assert str(mine["number"]) in wait_for(table, "the client answers")


def test_info_shows_datagrams():
    """Of each queue pair what it has: a pair of datagrams has no peer, link or send ring."""
    words = "ibv_ud_pingpong", "-n", "100000000", "-p", str(PORT)
    with started(*words) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "the server listens")
        with started(*words, "127.0.0.1") as client:
            mine = wait_for(lambda: next((q for q in queue_pairs(client.pid) if q["served"] > 20), None),
                            "datagrams flow")
            assert (mine["type"], mine["state"], mine["backend"], mine["dropped"]) == ("UD", "RTS", "udp", 0)
            assert mine["sent"] >= mine["served"] and mine["receive"]["post"] > mine["receive"]["cons"] > 0
            assert "peer" not in mine and "link" not in mine
            row = re.compile(rf"{mine['number']} UD +RTS +- +- +- +udp +- +- +\d+ +\d+ +\d+ +- +0 +-\n")
            wait_for(lambda: row.search(subprocess.run([TOOL, "info"], capture_output=True, text=True, check=True,
                                                       timeout=DEADLINE).stdout), "the row of the client")


@pytest.mark.parametrize("arguments", [("-n", "2000"), ("-n", "200", "-e"), ("-n", "50", "-s", "1000000", "-c"),
                                       ("-n", "200", "-g", "1")], ids=["poll", "events", "checked", "by-address"])
def test_rc_pingpong_by_tcp(arguments, monkeypatch):
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", "tcp")
    out, _ = pair("ibv_rc_pingpong", *arguments)
    assert "iters in" in out


@pytest.mark.parametrize("name", PERFTEST)
def test_perftest_by_tcp(name, monkeypatch):
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", "tcp")
    out, _ = pair(name, "-n", "20" if name == "ib_write_lat" else "200")
    assert "#bytes" in out


@pytest.mark.parametrize("arguments", [("-a", "-n", "20"), ("-b", "-n", "200"), ("-e", "-n", "200"),
                                       ("-q", "20", "-n", "200")],
                         ids=["all-sizes", "both-ways", "events", "queue-pairs"])
def test_send_bw_by_tcp_in_its_modes(arguments, monkeypatch):
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", "tcp")
    out, _ = pair("ib_send_bw", *arguments)
    assert "#bytes" in out


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "stops"])
def test_a_peer_by_tcp_that_is_gone_ends_the_program(how, monkeypatch):
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", "tcp")
    test_a_peer_that_is_gone_ends_the_program(how, ())


@pytest.mark.parametrize("backend", ["window", "tcp", "auto"])
def test_info_names_the_back_end(backend, monkeypatch):
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", backend)
    words = "ibv_rc_pingpong", "-n", "100000000", "-p", str(PORT)
    with started(*words) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "the server listens")
        with started(*words, "127.0.0.1") as client:
            wait_for(lambda: any(q["link"] == "up" and q["sent"] for q in queue_pairs(client.pid)), "messages flow")
            link = pairs_of(client.pid)[0]
    by_tcp = backend == "tcp"
    assert (link["backend"], link["address"]) == (("tcp", "127.0.0.1") if by_tcp else ("window", ""))
    assert (link["peer_pid"] == 0) == by_tcp


# Two network namespaces that a cable joins. Prints how each program ended.
TWO_HOSTS = """
ip link set lo up && ip link add coop-a type veth peer name coop-b || exit 77
unshare --net sleep 900 & other=$!
trap 'kill $other' EXIT
until ! [ /proc/$other/ns/net -ef /proc/self/ns/net ]; do sleep 0.1; done
ip link set coop-b netns $other || exit 77
there="nsenter --target $other --net"
ip addr add 10.77.0.1/24 dev coop-a && ip link set coop-a up || exit 77
$there sh -c 'ip link set lo up && ip addr add 10.77.0.2/24 dev coop-b && ip link set coop-b up' || exit 77
ip addr add fd77::1/64 dev coop-a nodad && $there ip addr add fd77::2/64 dev coop-b nodad || exit 77
if [ "$SERVER" ]; then
    $there sh -c "$SERVER" & server=$!
    until $there ss -ltn | grep -q :$PORT || ! kill -0 $server; do sleep 0.1; done
fi
sh -c "$CLIENT"; client=$?
echo "client: $client"
[ "$SERVER" ] || exit 0
[ $client = 0 ] || kill $server
wait $server; echo "server: $?"
"""


def two_hosts(server, client, backend="auto", port=PORT):
    """Runs one in each namespace; returns what they printed."""
    def line(words):
        return "exec " + shlex.join([TOOL, "run", "--", needs(words[0]), *words[1:]]) if words else ""
    environment = {**os.environ, "COOP_NTRDMA_BACKEND": backend, "PORT": str(port), "SERVER": line(server),
                   "CLIENT": line(client)}
    for _ in range(5):
        done = subprocess.run(["unshare", "--net", "sh", "-c", TWO_HOSTS], env=environment, timeout=2 * DEADLINE,
                              capture_output=True, text=True, check=False)
        if NO_CLOCK not in done.stdout + done.stderr:
            break
    if done.returncode == 77 or "unshare:" in done.stderr:
        pytest.skip("needs the right to create network namespaces")
    return done.stdout + done.stderr


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("words", [("ibv_rc_pingpong", "-g", "GID", "-n", "200", "-s", "100000", "-c"),
                                   ("ib_send_bw", "-x", "GID", "-n", "200"), ("ib_read_bw", "-x", "GID", "-n", "200")],
                         ids=["pingpong", "send_bw", "read_bw"])
def test_between_two_hosts(words, family):
    """The programs meet by IPv4 and exchange GIDs: number 1 is the host's IPv4 address, number 2 that of IPv6."""
    words = [{4: "1", 6: "2"}[family] if w == "GID" else w for w in words] + ["-p", str(PORT)]
    out = two_hosts(words, [*words, "10.77.0.2"])
    assert "client: 0" in out and "server: 0" in out, out


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize("backend", ["auto", "tcp"])
def test_rping_between_two_hosts(backend, family):
    to = "10.77.0.2" if family == 4 else "fd77::2"
    how = ["-p", str(PORT), "-C", "20", "-V"]
    out = two_hosts(["rping", "-s", "-a", to, *how], ["rping", "-c", "-v", "-a", to, *how], backend)
    assert out.count("ping data") == 20, out
    assert out.count(": 0") == 2 or "rdma_get_cm_event: Bad file descriptor" in out, out


def test_perftest_connects_by_address_to_another_host():
    how = ["ib_send_bw", "-R", "-n", "200", "-p", str(PORT)]
    out = two_hosts(how, [*how, "10.77.0.2"])
    assert "client: 0" in out and "server: 0" in out, out


def test_udaddy_between_two_hosts():
    """Datagrams whose peer librdmacm finds. The port of udaddy is always the same: here it has a network of its own."""
    words = ["udaddy", "-C", "20"]
    out = two_hosts(words, [*words, "-s", "10.77.0.2"], port=7174)
    assert "client: 0" in out and "server: 0" in out and out.count("return status 0") == 2, out


def test_rping_on_one_host_by_ipv6():
    needs("rping")
    how = ["-a", "::1", "-p", str(PORT), "-C", "5", "-V"]
    with started("rping", "-s", *how) as server:
        wait_for(lambda: server.poll() is not None or listens(PORT), "rping listens")
        with started("rping", "-c", "-v", *how) as client:
            out, _ = client.communicate(timeout=DEADLINE)
        assert ended_well(client, out) and out.count("ping data") == 5, out
        served, _ = server.communicate(timeout=DEADLINE)
        assert ended_well(server, served), served


def test_connections_to_other_hosts_are_refused_with_a_reason():
    """Without leave to use the network; at a port without a listener; at a link-local address, which is no GID."""
    call = ["rping", "-c", "-p", str(PORT), "-C", "1", "-a"]
    out = two_hosts([], [*call, "10.77.0.2"], backend="window")
    assert "COOP_NTRDMA_BACKEND=auto" in out and "RDMA_CM_EVENT_ADDR_ERROR" in out and "client: 0" not in out, out
    out = two_hosts([], [*call, "10.77.0.2"])
    assert "RDMA_CM_EVENT_REJECTED" in out and "client: 0" not in out, out
    out = two_hosts([], [*call, "fe80::1%coop-a"])
    assert "RDMA_CM_EVENT_ADDR_ERROR" in out and "error -99" in out and "client: 0" not in out, out
    out = two_hosts([], [*call, "192.0.2.1"])
    assert "RDMA_CM_EVENT_ADDR_ERROR" in out and "error -101" in out and "client: 0" not in out, out


def test_a_port_that_another_program_has_is_refused(monkeypatch):
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", "auto")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # after connections of other tests
        other.bind(("0.0.0.0", PORT))
        other.listen()
        with started("rping", "-s", "-p", str(PORT), "-C", "1") as server:
            out, _ = server.communicate(timeout=DEADLINE)
    assert server.returncode != 0
    assert f"TCP port {PORT}" in out and "Address already in use" in out, out


def test_run_says_why_it_cannot():
    done = subprocess.run([TOOL, "run", "--", "no-such-program"], capture_output=True, text=True, check=False)
    assert done.returncode == 127 and "no-such-program" in done.stderr
    assert subprocess.run([TOOL], capture_output=True, check=False).returncode == 2
    done = subprocess.run([TOOL, "run", "ibv_rc_pingpong", "-n", "5"], capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "coop-verbs run -- ibv_rc_pingpong" in done.stderr
    wrong = {**os.environ, "COOP_NTRDMA_BOUND_MS": "5s"}
    for words in ["run", "--", needs("ibv_devinfo")], ["ether", "--path", "/nowhere"]:
        done = subprocess.run([TOOL, *words], capture_output=True, text=True, check=False, env=wrong)
        assert done.returncode and "BOUND_MS=5s is no number from 100 to 3600000" in done.stderr, done
    subprocess.run([TOOL, "info"], capture_output=True, check=True, env=wrong)


def test_words_of_the_program_stay_as_they_are():
    words = ["[a,b]", "", "{x}", "--", "--copy", "a b"]
    out = subprocess.run([TOOL, "run", "--copy", "--", "printf", "%s\\n", *words], capture_output=True, text=True,
                         check=True, timeout=DEADLINE).stdout
    assert out.split("\n") == [*words, ""]


def test_directories_that_the_linker_cannot_name(tmp_path):
    """One with a space serves; one with a colon is refused, rather than the program run without the device."""
    looks = ["python3", "-c", "import os; print(os.access('/dev/infiniband/ntrdma0', os.F_OK))"]
    for name in ("a b", "a:b", "a;b"):
        (tmp_path / name / "bin").mkdir(parents=True)
        tool = shutil.copy(TOOL, tmp_path / name / "bin")
        shutil.copytree(os.path.join(os.path.dirname(TOOL), "../lib/coop-verbs"), tmp_path / name / "lib/coop-verbs")
        done = subprocess.run([tool, "run", "--", *looks], capture_output=True, text=True, check=False,
                              timeout=DEADLINE)
        if name == "a b":
            assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
        else:
            assert done.returncode == 125 and name in done.stderr

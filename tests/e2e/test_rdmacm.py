# SPDX-License-Identifier: MIT
"""librdmacm of coop-verbs, called as no program of the distribution calls it."""
import os

import pytest

from test_verbs import DEADLINE, PORT, TOOL, started, two_hosts

pytestmark = pytest.mark.skipif(not os.access(TOOL, os.X_OK), reason=f"needs {TOOL}: build it first")


CM = """
import ctypes, errno, os, resource, select, socket, struct, sys, time
cm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
cm.rdma_create_event_channel.restype = ctypes.c_void_p
def channel():
    return ctypes.c_void_p(cm.rdma_create_event_channel())
def identifier(channel):
    id = ctypes.c_void_p()
    assert not cm.rdma_create_id(channel, ctypes.byref(id), None, 0x106)
    return id
def take(channel):
    e = ctypes.c_void_p()
    assert not cm.rdma_get_cm_event(channel, ctypes.byref(e))
    kind = ctypes.c_int.from_address(e.value + 16).value
    global status
    status = ctypes.c_int.from_address(e.value + 20).value
    assert not cm.rdma_ack_cm_event(e)
    return kind
def unread(channel):
    fd = ctypes.c_int.from_address(channel.value).value
    with open(f"/proc/self/fdinfo/{fd}") as f:
        return next(int(line.split()[1], 16) for line in f if line.startswith("eventfd-count"))
port = int(sys.argv[1])
def address_of(*ip):
    return struct.pack("=HH4B8x", 2, socket.htons(port), *ip)
"""

LISTENER = CM + """
address = address_of(127, 0, 0, 1)
listening, calling = channel(), channel()
listener, client = identifier(listening), identifier(calling)
assert not cm.rdma_bind_addr(listener, address) and not cm.rdma_listen(listener, 1)
assert not cm.rdma_resolve_addr(client, None, address, 1000) and take(calling) == 0
assert not cm.rdma_resolve_route(client, 1000) and take(calling) == 2
assert not cm.rdma_connect(client, None)
while unread(listening) < 1:
    time.sleep(0.001)
assert not cm.rdma_destroy_id(client)
while unread(listening) < 2:
    time.sleep(0.001)
assert not cm.rdma_destroy_id(listener)
print("unread:", unread(listening))
again = identifier(listening)
assert not cm.rdma_resolve_addr(again, None, address, 1000)
other = channel()
assert unread(listening) == 1 and not cm.rdma_migrate_id(again, other)
print("unread:", unread(listening), unread(other))
print("next event:", take(other))
"""


def test_a_listener_takes_all_events_of_its_unread_requests_along():
    """The next event of its channel, or of the one that it moves to, is the resolved address of another identifier, not the end of the caller."""
    with started("python3", "-c", LISTENER, str(PORT)) as child:
        out, _ = child.communicate(timeout=DEADLINE)
    assert (child.returncode, out) == (0, "unread: 0\nunread: 0 1\nnext event: 0\n")


DOMAINS = CM + """
address = address_of(127, 0, 0, 1)
resolved, bound = channel(), channel()
client, listener = identifier(resolved), identifier(bound)
assert not cm.rdma_bind_addr(listener, address)
assert not cm.rdma_resolve_addr(client, None, address, 1000) and take(resolved) == 0
def domain(id):
    return ctypes.c_void_p.from_address(id.value + 400).value
print(domain(client) is not None, domain(client) == domain(listener))
assert not cm.rdma_destroy_id(client)
print(domain(listener) is not None)
"""


def test_all_identifiers_have_one_protection_domain():
    """What a program registers before it makes a queue pair serves each of its connections."""
    with started("python3", "-c", DOMAINS, str(PORT)) as child:
        out, _ = child.communicate(timeout=DEADLINE)
    assert (child.returncode, out) == (0, "True True\nTrue\n")


# Their threads live on; the identifier has started that of librdmacm.
UNLOADED = CM + """
import _ctypes
identifier(channel())
_ctypes.dlclose(cm._handle)
with open("/proc/self/maps") as f:
    maps = f.read()
print("librdmacm" in maps, "libibverbs" in maps)
"""


def test_libraries_whose_threads_run_stay_when_a_program_closes_them():
    with started("python3", "-c", UNLOADED, str(PORT)) as child:
        out, _ = child.communicate(timeout=DEADLINE)
    assert (child.returncode, out) == (0, "True True\n")


UNRESOLVED = CM + """
bound = address_of(*map(int, sys.argv[2].split(".")))
listening, calling = channel(), channel()
listener, client = identifier(listening), identifier(calling)
assert not cm.rdma_bind_addr(listener, bound)
assert not cm.rdma_resolve_addr(listener, None, address_of(192, 0, 2, 1), 1000)
print("event:", take(listening), status == -errno.ENETUNREACH)
print("own address:", ctypes.string_at(listener.value + 32, 16) == bound)
assert not cm.rdma_listen(listener, 1)
address = address_of(127, 0, 0, 1)
assert not cm.rdma_resolve_addr(client, None, address, 1000) and take(calling) == 0
assert not cm.rdma_resolve_route(client, 1000) and take(calling) == 2
assert not cm.rdma_connect(client, None)
channels = {ctypes.c_int.from_address(c.value).value: c for c in (listening, calling)}
first, *_ = select.select(list(channels), [], [])[0]
print("first event:", take(channels[first]))
"""


@pytest.mark.parametrize("bound", ["127.0.0.1", "0.0.0.0"])
def test_a_bound_identifier_may_listen_after_an_address_that_cannot_be_resolved(bound, monkeypatch):
    """1: ADDR_ERROR; 4: CONNECT_REQUEST. A client whose listener is deaf would be rejected, 8."""
    monkeypatch.delenv("COOP_NTRDMA_BACKEND", raising=False)
    with started("python3", "-c", UNRESOLVED, str(PORT), bound) as child:
        out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 0, out
    assert out.endswith("event: 1 True\nown address: True\nfirst event: 4\n"), out


# A client for which the kernel refuses to send anything once it knows where the listener is.
SPEECHLESS = CM + """
sendto, seccomp = {"x86_64": (44, 317), "aarch64": (206, 277)}.get(os.uname().machine, (0, 0))
rules = struct.pack("=" + 4 * "HBBI", 0x20, 0, 0, 0, 0x15, 0, 1, sendto, 6, 0, 0, 0x50000 | errno.ENOBUFS,
                    6, 0, 0, 0x7fff0000)
class program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
def refuse():
    libc, one, no = ctypes.CDLL(None), ctypes.c_ulong(1), ctypes.c_ulong(0)
    if not sendto or libc.prctl(38, one, no, no, no) or \\
            libc.syscall(ctypes.c_long(seccomp), one, one, ctypes.byref(program(4, rules))): # of all threads
        sys.exit(77)
address = address_of(*map(int, sys.argv[2].split(".")))
calling = channel()
client = identifier(calling)
if sys.argv[2] == "127.0.0.1":
    listener = identifier(channel())
    assert not cm.rdma_bind_addr(listener, address) and not cm.rdma_listen(listener, 1)
assert not cm.rdma_resolve_addr(client, None, address, 1000) and take(calling) == 0
assert not cm.rdma_resolve_route(client, 1000) and take(calling) == 2
refuse()
assert not cm.rdma_connect(client, None)
print("event:", take(calling), "error:", errno.errorcode.get(-status))
sys.exit(3)
"""


def test_a_request_that_cannot_be_sent_says_why(monkeypatch):
    """7: UNREACHABLE."""
    monkeypatch.delenv("COOP_NTRDMA_BACKEND", raising=False)
    with started("python3", "-c", SPEECHLESS, str(PORT), "127.0.0.1") as child:
        out, _ = child.communicate(timeout=DEADLINE)
    if child.returncode == 77:
        pytest.skip("needs a kernel that filters system calls")
    assert (child.returncode, out) == (3, "event: 7 error: ENOBUFS\n")


def test_a_request_to_another_host_that_cannot_be_sent_says_why():
    listener = f"import socket, time; s = socket.create_server(('', {PORT}), backlog=1024); time.sleep({2 * DEADLINE})"
    out = two_hosts(["python3", "-c", listener], ["python3", "-c", SPEECHLESS, str(PORT), "10.77.0.2"])
    if "client: 77" in out:
        pytest.skip("needs a kernel that filters system calls")
    assert "event: 7 error: ENOBUFS" in out or "event: 7 error: ETIMEDOUT" in out, out


# A caller that costs the listener a descriptor when there is none: it is accepted and sent away later.
CROWDED = CM + """
by_tcp = sys.argv[2] == "tcp"
listener = identifier(channel())
assert not cm.rdma_bind_addr(listener, address_of(*((0, 0, 0, 0) if by_tcp else (127, 0, 0, 1))))
assert not cm.rdma_listen(listener, 1)
caller = socket.socket() if by_tcp else socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
others = [t for t in os.listdir("/proc/self/task") if int(t) != os.getpid()]
threads = [os.open(f"/proc/self/task/{t}/stat", os.O_RDONLY) for t in others]
usual = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (256, usual[1]))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
caller.connect(("127.0.0.1", port) if by_tcp else f"\\0coop-ntrdma/{os.geteuid()}/cm/127.0.0.1/{port}")
# It was runnable from then on, so a sleep is a new one.
while any(os.pread(t, 512, 0).rpartition(b")")[2].split()[0] != b"S" for t in threads):
    time.sleep(0.001)
for fd in taken:
    os.close(fd)
resource.setrlimit(resource.RLIMIT_NOFILE, usual)
if not by_tcp:
    caller.send(bytes(264))
print("threads:", len(threads) > 0, "sent away:", caller.recv(1) == b"")
"""


@pytest.mark.parametrize("how", ["unix", "tcp"])
def test_a_listener_without_descriptors_sleeps_and_takes_callers_later(how, monkeypatch):
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", "auto")
    with started("python3", "-c", CROWDED, str(PORT), how) as child:
        out, _ = child.communicate(timeout=DEADLINE)
    assert (child.returncode, out) == (0, "threads: True sent away: True\n")

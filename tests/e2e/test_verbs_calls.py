# SPDX-License-Identifier: MIT
"""coop-verbs: calls of libibverbs that no program of the distribution makes, by their binary interface; and coopfs and
the messaging library's transport fabric over verbs, which otherwise need a device."""
import os
import signal
import subprocess

import pytest

from cluster import SERVER, program
from test_sources import check_tree, make_tree
from test_verbs import DEADLINE, TOOL, started

pytestmark = pytest.mark.skipif(not os.access(TOOL, os.X_OK), reason=f"needs {TOOL}: build it first")

# Posting and polling are pointers in the context, by these numbers.
CALLS = """
import ctypes, errno, select, struct, time
v = ctypes.CDLL("libibverbs.so.1", use_errno=True)
for name in ("ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_create_cq", "ibv_create_qp", "ibv_reg_mr",
             "ibv_create_comp_channel", "ibv_create_ah"):
    getattr(v, name).restype = ctypes.c_void_p
POLL, NOTIFY, SEND, RECEIVE = 11, 12, 25, 26
def pointer(at):
    return ctypes.c_void_p.from_address(at).value
def number(at):
    return ctypes.c_uint32.from_address(at).value
def call(which, *arguments):
    f = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int if isinstance(a, int) else ctypes.c_void_p for a in arguments])
    return f(pointer(context.value + 8 + 8 * which))(*arguments)
context = ctypes.c_void_p(v.ibv_open_device(ctypes.c_void_p(pointer(v.ibv_get_device_list(None)))))
domain = ctypes.c_void_p(v.ibv_alloc_pd(context))
channel = ctypes.c_void_p(v.ibv_create_comp_channel(context))
channel_fd = ctypes.c_int.from_address(channel.value + 8).value
queue = ctypes.c_void_p(v.ibv_create_cq(context, 64, None, channel, 0))
def queue_pair(kind, shared=None):
    wish = bytearray(struct.pack("=4Q5I2i", 0, queue.value, queue.value, shared or 0, 8, 8, 1, 1, 0, kind, 1)) + bytes(4)
    return ctypes.c_void_p(v.ibv_create_qp(domain, (ctypes.c_char * len(wish)).from_buffer(wish)))
def modify(pair, mask, **values):
    places = {"qp_state": 0, "qkey": 16, "sq_psn": 24, "port_num": 129}
    a = bytearray(144)
    for name, value in values.items():
        a[places[name]] = value
    return v.ibv_modify_qp(pair, (ctypes.c_char * 144).from_buffer(a), mask)
memory = ctypes.create_string_buffer(4096)
region = ctypes.c_void_p(v.ibv_reg_mr(domain, memory, ctypes.c_size_t(4096), 1))
def segment(offset, length):
    return ctypes.create_string_buffer(
        struct.pack("=QII", ctypes.addressof(memory) + offset, length, number(region.value + 36)))
def post(pair, which, wr, offset, length):
    list_ = segment(offset, length)
    request = bytearray(wr)
    request[16:24] = struct.pack("=Q", ctypes.addressof(list_))
    request[24:28] = struct.pack("=i", 1)
    bad = ctypes.c_void_p()
    return call(which, pair, ctypes.cast((ctypes.c_char * len(request)).from_buffer(request), ctypes.c_void_p),
                ctypes.cast(ctypes.byref(bad), ctypes.c_void_p))
def completion(wait=True):
    \"\"\"The status and the opcode of the next one.\"\"\"
    wc = ctypes.create_string_buffer(48)
    while not (n := call(POLL, queue, 1, ctypes.cast(wc, ctypes.c_void_p))):
        if not wait:
            return None
        time.sleep(0.001)
    assert n == 1
    return struct.unpack_from("=II", wc.raw, 8)
def told():
    return bool(select.select([channel_fd], [], [], 0)[0])
"""


def said(text, **how):
    with started("python3", "-c", CALLS + text, **how) as child:
        out, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 0, out
    return out


DATAGRAMS = """
def datagram_pair():
    pair = queue_pair(4)
    assert not modify(pair, 1 | 16 | 32 | 64, qp_state=1, port_num=1, qkey=5)
    assert not modify(pair, 1, qp_state=2) and not modify(pair, 1 | 1 << 16, qp_state=3)
    return pair
there = bytearray(32)
there[24], there[30] = 1, 1
ah = v.ibv_create_ah(domain, (ctypes.c_char * 32).from_buffer(there))
def send(pair, to, opcode, flags):
    assert not post(to, RECEIVE, bytes(32), 0, 200)
    wr = bytearray(128)
    wr[28:40] = struct.pack("=iII", opcode, flags, 7)
    wr[40:56] = struct.pack("=QII", ah, number(to.value + 52), 5)
    assert not post(pair, SEND, wr, 1000, 64)
"""

SOLICITED = DATAGRAMS + """
pair = datagram_pair()
assert not call(NOTIFY, queue, 1)
for opcode, flags in ((2, 0), (3, 0), (3, 4)):
    send(pair, pair, opcode, flags)
    got = sorted(completion() for _ in range(2))
    assert got == [(0, 0), (0, 128)], got
    print(opcode, flags, told())
"""


def test_a_waiter_for_solicited_datagrams_is_told_of_these_alone():
    """SEND (2), and SEND with immediate data (3) without and with IBV_SEND_SOLICITED (4)."""
    assert said(SOLICITED) == "2 0 False\n3 0 False\n3 4 True\n"


# Nothing is polled, so a thread of the library takes what comes. It is done with a datagram once it has told of a later
# one. The sender's completions are in a queue that is not armed.
WAITING = DATAGRAMS + """
sender = datagram_pair()
waiters = []
def wait(which):
    select.select([waiters[which][2]], [], [])
    got, user = ctypes.c_void_p(), ctypes.c_void_p()
    assert not v.ibv_get_cq_event(waiters[which][1], ctypes.byref(got), ctypes.byref(user))
    v.ibv_ack_cq_events(got, 1)
for early in (False, True):
    channel = ctypes.c_void_p(v.ibv_create_comp_channel(context))
    queue = ctypes.c_void_p(v.ibv_create_cq(context, 64, None, channel, 0))
    if early:
        assert not call(NOTIFY, queue, 0)
    waiters.append((datagram_pair(), channel, ctypes.c_int.from_address(channel.value + 8).value, queue))
send(sender, waiters[1][0], 3, 0)
wait(1)
print("a queue that was armed before it had a queue pair")
assert not call(NOTIFY, waiters[0][3], 1) and not call(NOTIFY, waiters[1][3], 0)
send(sender, waiters[0][0], 3, 0)
send(sender, waiters[1][0], 3, 0)
wait(1)
send(sender, waiters[0][0], 3, 4)
wait(0)
print("a solicited datagram after another")
for solicited in 0, 1:
    assert not call(NOTIFY, waiters[0][3], solicited) and not call(NOTIFY, waiters[1][3], 0)
    send(sender, waiters[1][0], 3, 0)
    wait(1)
    send(sender, waiters[0][0], 3, 4)
    wait(0)
print("two queues")
"""


def test_a_waiter_for_datagrams_is_told_whatever_comes_before_and_to_others():
    assert said(WAITING) == """\
a queue that was armed before it had a queue pair
a solicited datagram after another
two queues
"""


UNREAD = DATAGRAMS + """
async_fd = ctypes.c_int.from_address(context.value + 268).value
v.ibv_create_srq.restype = ctypes.c_void_p
pair = datagram_pair()
assert not call(NOTIFY, queue, 0)
send(pair, pair, 2, 0)
before = told()
assert not v.ibv_destroy_qp(pair) and not v.ibv_destroy_cq(queue)
print("queue", before, told())
shared = ctypes.c_void_p(v.ibv_create_srq(domain, ctypes.create_string_buffer(struct.pack("=Q4I", 0, 8, 1, 0, 0))))
assert not v.ibv_modify_srq(shared, ctypes.create_string_buffer(struct.pack("=3I", 0, 0, 1)), 2)
def failed():
    return bool(select.select([async_fd], [], [], 0)[0])
before = failed()
assert not v.ibv_destroy_srq(shared)
print("shared queue", before, failed())
"""


def test_an_object_that_is_destroyed_takes_its_unread_events_along():
    """Nothing can be read from their descriptors then: the call that reads would wait."""
    assert said(UNREAD) == "queue True False\nshared queue True False\n"


# Makes a queue pair of type RC (2) ready, its peer being that of the number.
CONNECTED = """
def connect(pair, peer):
    a = bytearray(144)
    a[8], a[28:32], a[80], a[86], a[129] = 5, struct.pack("=I", peer), 1, 1, 1
    for state, mask in ((1, 0x39), (2, 0x129181), (3, 0x12e01)):
        a[0] = state
        assert not v.ibv_modify_qp(pair, (ctypes.c_char * 144).from_buffer(a), mask)
def connected():
    one, two = queue_pair(2), queue_pair(2)
    connect(one, number(two.value + 52))
    connect(two, number(one.value + 52))
    return one, two
def send(pair):
    assert not post(pair, SEND, bytes(28) + struct.pack("=i", 2) + bytes(96), 0, 0)
"""

CLOSED = CONNECTED + """
first = context, domain, queue
pair = queue_pair(2)
context = ctypes.c_void_p(v.ibv_open_device(ctypes.c_void_p(pointer(v.ibv_get_device_list(None)))))
domain = ctypes.c_void_p(v.ibv_alloc_pd(context))
queue = ctypes.c_void_p(v.ibv_create_cq(context, 64, None, None, 0))
other = queue_pair(2)
connect(pair, number(other.value + 52))
connect(other, number(pair.value + 52))
assert not post(other, RECEIVE, bytes(32), 0, 0)
second, (context, domain, queue) = context, first
send(pair)
print(completion())
assert not v.ibv_close_device(second)
send(pair)
print(completion())
one, two = connected()
assert not post(two, RECEIVE, bytes(32), 0, 0)
send(one)
print(sorted(completion() for _ in range(2)))
assert not v.ibv_close_device(context)
print("closed")
"""


def test_closing_the_device_ends_its_queue_pairs():
    """A send to one fails then with IBV_WC_RETRY_EXC_ERR (12)."""
    assert said(CLOSED) == "(0, 0)\n(12, 0)\n[(0, 0), (0, 128)]\nclosed\n"


MEMORY = """
import mmap
c = ctypes.CDLL(None, use_errno=True)
c.mmap.restype = ctypes.c_void_p
PAGE, PRIVATE_ANONYMOUS = mmap.PAGESIZE, ctypes.c_int(0x22)
def mapped(*pages):
    length = ctypes.c_size_t(PAGE * len(pages))
    at = c.mmap(None, length, ctypes.c_int(3), PRIVATE_ANONYMOUS, -1, ctypes.c_long(0))
    for i, rights in enumerate(pages):
        assert not c.mprotect(ctypes.c_void_p(at + i * PAGE), ctypes.c_size_t(PAGE), rights)
    return at
def register(at, length, access):
    made = v.ibv_reg_mr(domain, ctypes.c_void_p(at), ctypes.c_size_t(length), access)
    return "made" if made else errno.errorcode[ctypes.get_errno()]
NONE, R, RW = 0, 1, 3
for pages in ((RW, RW, RW), (R, R, R), (R, RW, RW), (RW, RW, R), (NONE, RW, RW), (RW, RW, NONE)):
    at = mapped(*pages)
    print(*pages, *(register(at + 100, 3 * PAGE - 200, access) for access in (0, 1)),
          register(at + PAGE, PAGE, pages[1] == RW))
# Of a large region that nobody has touched, no more becomes present than a huge page at each end.
LENGTH = 256 << 20
at = c.mmap(None, ctypes.c_size_t(LENGTH), ctypes.c_int(RW), PRIVATE_ANONYMOUS, -1, ctypes.c_long(0))
print(register(at, LENGTH, 7))
present = (ctypes.c_ubyte * (LENGTH // PAGE))()
assert not c.mincore(ctypes.c_void_p(at), ctypes.c_size_t(LENGTH), present)
assert sum(present) * PAGE <= 8 << 20, sum(present)
"""


def test_memory_that_the_program_may_not_use_is_refused():
    """A region that is written (access 1) needs pages that may be written, others such as may be read."""
    assert said(MEMORY) == """\
3 3 3 made made made
1 1 1 made EFAULT made
1 3 3 made EFAULT made
3 3 1 made EFAULT made
0 3 3 EFAULT EFAULT made
3 3 0 EFAULT EFAULT made
made
"""


# In a network of its own, whose addresses beside 127.0.0.1 are those that it is given.
ADDRESSES = """
import socket, subprocess
def ip(*words):
    subprocess.run(["ip", *words], check=True)
def address(action, text):
    ip("addr", action, text, "dev", "lo")
ip("link", "set", "lo", "up")
ip("link", "set", "lo", "addrgenmode", "none")
def taken(text, port):
    other = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    other.setsockopt(socket.SOL_IP, 15, 1)  # IP_FREEBIND: the address may come later
    other.bind((text, port))
    return other
def gid(index):
    raw = bytearray(16)
    assert not v.ibv_query_gid(context, 1, index, (ctypes.c_char * 16).from_buffer(raw))
    return socket.inet_ntoa(raw[12:])
def handle(index, to):
    a = bytearray(bytes(10) + b"\\xff\\xff" + socket.inet_aton(to) + bytes(16))
    a[20], a[29], a[30] = index, 1, 1
    return v.ibv_create_ah(domain, (ctypes.c_char * 32).from_buffer(a))
def datagrams():
    pair = queue_pair(4)
    if not pair:
        return errno.errorcode[ctypes.get_errno()]
    assert not modify(pair, 1 | 16 | 32 | 64, qp_state=1, port_num=1, qkey=5)
    assert not modify(pair, 1, qp_state=2) and not modify(pair, 1 | 1 << 16, qp_state=3)
    return pair
def post_send(pair, ah):
    wr = bytearray(128)
    wr[28:40] = struct.pack("=iII", 2, 0, 0)
    wr[40:56] = struct.pack("=QII", ah, number(pair.value + 52), 5)
    assert not post(pair, SEND, wr, 1000, 64)
def send(pair, ah):
    post_send(pair, ah)
    return completion()
def receive(pair, ah):
    # From where what is sent to the pair itself comes.
    ctypes.memset(memory, 0, 40)
    assert not post(pair, RECEIVE, bytes(32), 0, 200)
    assert send(pair, ah) == (0, 0) and completion() == (0, 128)
    return socket.inet_ntoa(memory.raw[32:36])
"""


def said_alone(text):
    if subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, check=False).returncode:
        pytest.skip("needs the right to create network namespaces")
    return said(ADDRESSES + text, before=("unshare", "--net"))


TAKEN = """
address("add", "10.77.0.1/32")
port = 15000 + (number(queue_pair(2).value + 52) >> 14)
other = taken("10.77.0.1", port)
print(datagrams(), flush=True)
other.close()
assert isinstance(datagrams(), ctypes.c_void_p)
other = taken("10.77.0.2", port)
address("add", "10.77.0.2/32")
pair = datagrams()
print(pair, flush=True)
other.close()
assert isinstance(datagrams(), ctypes.c_void_p)
print(port)
"""


def test_a_port_of_datagrams_that_another_program_has_is_refused_on_each_address():
    *out, port = said_alone(TAKEN).splitlines()
    taken = [f"coop-verbs: UDP port {port} of 10.77.0.{i}: Address already in use" for i in (1, 2)]
    assert out == [taken[0], "EADDRINUSE", taken[1], "EADDRINUSE"]


RENUMBERED = """
for i in 1, 2:
    address("add", f"10.77.0.{i}/32")
pair = datagrams()
first, second = handle(1, "10.77.0.2"), handle(2, "10.77.0.2")
print("both:", gid(1), gid(2), receive(pair, first), receive(pair, second))
address("del", "10.77.0.1/32")
print("one:", gid(1), gid(2), handle(1, "10.77.0.2"), receive(pair, second), receive(pair, handle(2, "10.77.0.2")))
entries = ctypes.create_string_buffer(8 * 32)
assert v._ibv_query_gid_ex(context, 1, 1, entries, 0, 32) == errno.ENODATA
assert v._ibv_query_gid_table(context, entries, 8, 0, 32) == 2
address("add", "10.77.0.3/32")
third = handle(1, "10.77.0.3")
print("another:", gid(1), gid(2), receive(pair, third), receive(pair, handle(2, "10.77.0.3")))
# One that only receives is served once the kernel has told of it.
address("add", "10.77.0.4/32")
fourth = handle(2, "10.77.0.4")
assert not post(pair, RECEIVE, bytes(32), 0, 200)
while send(pair, fourth) == (0, 0) and not (got := completion(wait=False)):
    time.sleep(0.01)
assert got == (0, 128), got
print("gone:", send(pair, first)[0], "state", number(pair.value + 56))
"""


def test_an_address_keeps_its_gid_and_a_handle_its_address():
    """What is sent from an address that has gone fails, and the queue pair with it: IBV_WC_LOC_QP_OP_ERR is
    2, IBV_QPS_ERR is 6."""
    assert said_alone(RENUMBERED) == """\
both: 10.77.0.1 10.77.0.2 10.77.0.1 10.77.0.2
one: 0.0.0.0 10.77.0.2 None 10.77.0.2 10.77.0.2
another: 10.77.0.3 10.77.0.2 10.77.0.3 10.77.0.2
gone: 2 state 6
"""


HINTS = """
import ctypes, errno, struct
c = ctypes.CDLL("librdmacm.so.1", use_errno=True)
def found(kind, space):
    hints = bytearray(struct.pack("=4i", 0, 0, kind, space)) + bytes(80)
    to = ctypes.c_void_p()
    if c.rdma_getaddrinfo(b"127.0.0.1", b"7", (ctypes.c_char * 96).from_buffer(hints), ctypes.byref(to)):
        return ("not supported" if ctypes.get_errno() == errno.EOPNOTSUPP else "failed",)
    return struct.unpack_from("=2i", ctypes.string_at(to.value, 16), 8)
for kind, space in ((0, 0), (2, 0), (4, 0), (0, 0x111), (4, 0x111), (4, 0x106), (4, 0x13f)):
    print(*found(kind, space))
"""


def test_hints_for_datagrams_name_either_the_queue_pair_or_the_port_space():
    """RC is 2 and UD is 4; the port spaces are TCP 0x106, UDP 0x111, IB 0x13f."""
    with started("python3", "-c", HINTS) as child:
        out, _ = child.communicate(timeout=DEADLINE)
    stream, datagrams, none = f"2 {0x106}\n", f"4 {0x111}\n", "not supported\n"
    assert (child.returncode, out) == (0, 2 * stream + 3 * datagrams + 2 * none)


COOPNET = program("coopnet")
HOST = f"127.{1 + os.getpid() // 254 % 250}.{1 + os.getpid() % 254}.9"


@pytest.mark.skipif(not os.access(COOPNET, os.X_OK), reason=f"needs {COOPNET}: build it first")
@pytest.mark.parametrize("what", [("ping", "-s", "8,100k", "-n", "100"), ("bulk", "-s", "1m", "-n", "50")],
                         ids=["ping", "bulk"])
def test_coopnet_by_libfabric(what):
    how = ("-t", "fabric", "-o", "provider=verbs")
    with started(COOPNET, "serve", *how, HOST) as server:
        line = server.stdout.readline()
        assert line.startswith("serving at"), line + server.stdout.read()
        with started(COOPNET, what[0], *how, *what[1:], "--timeout", str(DEADLINE), HOST) as client:
            out, _ = client.communicate(timeout=2 * DEADLINE)
        assert client.returncode == 0, out
        server.send_signal(signal.SIGINT)
        out, _ = server.communicate(timeout=DEADLINE)
    assert server.returncode == 0 and " 0 failed" in out.splitlines()[-1], out


def test_nodes_of_coopfs_on_the_device(cluster):
    """The second reader takes what it reads from the first one."""
    sums = make_tree(cluster.export, 3)
    cluster.within = lambda number: [] if number == SERVER else [TOOL, "run", "--"]
    first, second = [cluster.node("ib", "ib_devname=coop0", "peer_timeout_ms=2000", peers=False) for _ in range(2)]
    for node in first, second:
        node.wait_for_peers(1)
    check_tree(first.path, sums)
    check_tree(second.path, sums)
    assert "lid=0x0001" in first.ibaddr()
    assert second.stats()["peer"]["bytes"] > 0


LEFT = DATAGRAMS + """
pair = datagram_pair()
send(pair, pair, 3, 0)
while completion() != (0, 128):
    pass
send(pair, pair, 2, 2)
time.sleep(0.01)
assert completion() in ((0, 0), (0, 128))
v.ibv_get_cq_event.restype = ctypes.c_int
assert not call(NOTIFY, queue, 1) and not told()
assert not call(NOTIFY, queue, 0)
select.select([channel_fd], [], [])
print("told")
"""


def test_a_datagram_that_was_not_polled_is_an_event_when_the_queue_is_armed():
    assert said(LEFT) == "told\n"


ALWAYS_SENDS = DATAGRAMS + """
pair = datagram_pair()
send(pair, pair, 2, 2)
wr = bytearray(128)
wr[28:40] = struct.pack("=iII", 2, 2, 0)
wr[40:56] = struct.pack("=QII", ah, 1, 5)
while completion() != (0, 128):
    assert not post(pair, SEND, wr, 1000, 64)
print("received")
"""


def test_a_program_that_polls_one_for_each_send_gets_its_datagrams():
    """qperf ud_bi_bw -cp 1: there is always a completion of a send, and never room for more."""
    assert said(ALWAYS_SENDS) == "received\n"


ITSELF = """
pair = queue_pair(2)
def connect(pair):
    a = bytearray(144)
    def set_(at, form, value):
        struct.pack_into(form, a, at, value)
    for at, value in ((0, 1), (129, 1), (32, 7)):
        a[at] = value
    assert not v.ibv_modify_qp(pair, (ctypes.c_char * 144).from_buffer(a), 1 | 8 | 16 | 32)
    for at, value in ((0, 2), (8, 3), (86, 1), (80, 1), (126, 1), (127, 1)):
        a[at] = value
    set_(28, "=I", number(pair.value + 52))
    assert not v.ibv_modify_qp(pair, (ctypes.c_char * 144).from_buffer(a), 1 | 1 << 7 | 1 << 8 | 1 << 20 | 1 << 12 | 1 << 17 | 1 << 15)
    a[0] = 3
    assert not v.ibv_modify_qp(pair, (ctypes.c_char * 144).from_buffer(a), 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 16 | 1 << 13)
def send(text):
    memory[1000:1000 + len(text)] = text
    assert not post(pair, RECEIVE, bytes(32), 0, 200)
    wr = bytearray(128)
    wr[28:40] = struct.pack("=iII", 2, 2, 0)
    assert not post(pair, SEND, wr, 1000, len(text))
connect(pair)
for i in range(3):
    send(b"%d: to itself" % i)
    assert sorted(completion() for _ in range(2)) == [(0, 0), (0, 128)]
    assert memory.raw.startswith(b"%d: to itself" % i)
# A waiter that polls nothing: the library's thread does the work.
assert not call(NOTIFY, queue, 0)
send(b"noticed")
select.select([channel_fd], [], [])
assert sorted(completion() for _ in range(2)) == [(0, 0), (0, 128)] and memory.raw.startswith(b"noticed")
assert not v.ibv_destroy_qp(pair)
print("done")
"""


@pytest.mark.parametrize("backend", ["window", "tcp", "auto"])
def test_a_queue_pair_is_its_own_peer(backend, monkeypatch):
    """Open MPI and UCX connect one of each process to itself."""
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", backend)
    assert said(ITSELF) == "done\n"

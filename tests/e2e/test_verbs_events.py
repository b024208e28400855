# SPDX-License-Identifier: MIT
"""coop-verbs: asynchronous events, as a program reads them from its context; and what `coop-verbs info` tells of a
queue pair that failed."""
import os
import pathlib
import re
import subprocess

import pytest

from cluster import wait_for
from test_verbs import DEADLINE, TOOL, pairs_of, started
from test_verbs_calls import CALLS, CONNECTED, DATAGRAMS, said, said_alone

pytestmark = pytest.mark.skipif(not os.access(TOOL, os.X_OK), reason=f"needs {TOOL}: build it first")

# The numbers of enum ibv_event_type.
EVENTS = """
FATAL, GID_CHANGE = 1, 18
SHARED_RECEIVE = 20
def unread(of):
    return bool(select.select([ctypes.c_int.from_address(of.value + 268).value], [], [], 0)[0])
def event(of):
    \"\"\"Waits for the next one: its type, and the port or the address of the queue pair.\"\"\"
    raw = ctypes.create_string_buffer(16)
    assert not v.ibv_get_async_event(of, raw)
    v.ibv_ack_async_event(raw)
    element, kind = struct.unpack("=Qi", raw.raw[:12])
    return kind, element & 0xffffffff if kind == GID_CHANGE else element
v.ibv_create_srq.restype = ctypes.c_void_p
def shared_queue():
    return v.ibv_create_srq(domain, ctypes.create_string_buffer(struct.pack("=Q4I", 0, 8, 1, 0, 0)))
"""

GIDS = EVENTS + """
other = ctypes.c_void_p(v.ibv_open_device(ctypes.c_void_p(pointer(v.ibv_get_device_list(None)))))
for action, index in ("add", 1), ("del", 1):
    address(action, "10.77.0.1/32")
    print(action, event(context), event(other), gid(index))
assert not v.ibv_close_device(other)
address("add", "10.77.0.2/32")
print("one context:", event(context), gid(1))
pair = datagrams()
for i in 3, 4:
    address("add", f"10.77.0.{i}/32")
    # Served at that address, the device has looked at its addresses. Sent by 127.0.0.1, since a send from
    # an address that is not served looks itself.
    to = handle(1, f"10.77.0.{i}")
    assert not post(pair, RECEIVE, bytes(32), 0, 200)
    while send(pair, to) == (0, 0) and not (got := completion(wait=False)):
        time.sleep(0.01)
    assert got == (0, 128), got
print("two changes:", event(context), unread(context), gid(2), gid(3))
"""


def test_a_program_hears_of_addresses_that_come_and_go():
    """Each context of it, whether it has queue pairs or not. An unread event stands for all that have changed since."""
    assert said_alone(GIDS) == """\
add (18, 1) (18, 1) 10.77.0.1
del (18, 1) (18, 1) 0.0.0.0
one context: (18, 1) 10.77.0.2
two changes: (18, 1) False 10.77.0.3 10.77.0.4
"""


PEER = CALLS + CONNECTED + """
import sys
pair = queue_pair(2)
print(number(pair.value + 52), flush=True)
connect(pair, int(sys.stdin.readline()))
send(pair)
time.sleep(3600)
"""

KILLED = CONNECTED + EVENTS + """
import subprocess, sys
for shared in None, shared_queue():
    with subprocess.Popen(["python3", "-c", PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        try:
            pair = queue_pair(2, shared)
            if shared:
                assert not post(ctypes.c_void_p(shared), SHARED_RECEIVE, bytes(32), 0, 0)
            connect(pair, int(peer.stdout.readline()))
            if not shared:
                for _ in range(2):
                    assert not post(pair, RECEIVE, bytes(32), 0, 0)
            print(number(pair.value + 52), file=peer.stdin, flush=True)
            print(completion(), unread(context))
        finally:
            peer.kill()
    while True:
        kind, of = event(context)
        print(kind, of == pair.value)
        if kind == FATAL:
            break
    if not shared:
        print(completion())
"""


def test_a_killed_peer_is_a_fatal_event_of_the_queue_pair():
    """IBV_EVENT_QP_FATAL (1); IBV_EVENT_QP_LAST_WQE_REACHED (16) comes before if the receives are shared. Others are
    flushed: IBV_WC_WR_FLUSH_ERR is 5."""
    assert said(f"PEER = {PEER!r}\n" + KILLED) == """\
(0, 128) False
1 True
(5, 128)
(0, 128) False
16 True
1 True
"""


LAST = CONNECTED + EVENTS + """
shared = shared_queue()
one, two = queue_pair(2, shared), queue_pair(2)
connect(one, number(two.value + 52))
connect(two, number(one.value + 52))
for pair in two, one:
    assert not modify(pair, 1, qp_state=6)
kind, of = event(context)
print(kind, of == one.value, unread(context))
"""


def test_the_last_receive_of_a_queue_pair_with_shared_receives_is_an_event():
    """Moved to the error state by the program itself: no other event, and none of one that has its own receives."""
    assert said(LAST) == "16 True False\n"


# A write (0) to where the peer has no region. Two other queue pairs and one of datagrams stay as they are.
FAILED = CONNECTED + DATAGRAMS + """
one, two = connected()
others = *connected(), datagram_pair()
def write(pair):
    request = bytearray(128)
    request[28:36] = struct.pack("=iI", 0, 2)
    assert not post(pair, SEND, request, 0, 64)
write(one)
print(completion()[0], *(number(pair.value + 52) for pair in (one, two, *others)), flush=True)
time.sleep(3600)
"""


def manual_of_json():
    """The words in italics of what the manual says of --json."""
    text = (pathlib.Path(__file__).parents[2] / "userland/man/coop-verbs.1").read_text(encoding="utf-8")
    part = text.split(".B \\-\\-json\n")[1].split(".BR")[0]
    lines = [line.partition(" ")[2] for line in part.splitlines() if line.startswith((".I ", ".IR ", ".RI "))]
    return {word for line in lines for word in re.sub('"[^"]*"', " ", line).split()}


def rows_of_info(numbers):
    """Of the table; empty if the process does not answer within 2 s."""
    table = subprocess.run([TOOL, "info"], capture_output=True, text=True, timeout=DEADLINE, check=True).stdout
    rows = {words[0]: words for words in map(str.split, table.splitlines())}
    return [rows[str(n)] for n in numbers if str(n) in rows]


def test_info_shows_the_error_of_a_queue_pair():
    """At both ends; IBV_WC_REM_ACCESS_ERR is 10. The manual names each field."""
    with started("python3", "-c", CALLS + FAILED) as child:
        status, *numbers = (int(word) for word in child.stdout.readline().split())
        pairs = {p["number"]: p for p in pairs_of(child.pid)}
        rows = wait_for(lambda: rows_of_info(numbers), "the process answers")
    assert status == 10
    shown = [(pairs[n]["type"], pairs[n]["state"], pairs[n].get("errors")) for n in numbers]
    assert shown == 2 * [("RC", "ERR", 1)] + 2 * [("RC", "RTS", 0)] + [("UD", "RTS", None)]
    assert [row[-1] for row in rows] == ["1", "1", "0", "0", "-"]
    fields = {name for p in pairs.values() for name in (*p, *p.get("send", ()), *p["receive"])}
    assert fields - manual_of_json() == set()

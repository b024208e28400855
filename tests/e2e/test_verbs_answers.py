# SPDX-License-Identifier: MIT
"""coop-verbs by TCP: a program's last act is a poll that finds a message, and its peer's send succeeds all the same.

The answer to a message waits for the program's next post or poll, which does not come.
"""
import os

import pytest

from test_verbs import DEADLINE, TOOL, started
from test_verbs_calls import CALLS

pytestmark = pytest.mark.skipif(not os.access(TOOL, os.X_OK), reason=f"needs {TOOL}: build it first")

# Receiver and sender are processes of one processor, so that the thread of the receiver's device rarely runs between its last
# poll and its end.
TWO = """
import os, signal, socket
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
ends = socket.socketpair()
child = os.fork()
peer = ends[child == 0]
ends[child != 0].close()
"""

MESSAGE = """
c = ctypes.CDLL(None)
def connect(pair, to):
    a = bytearray(144)
    a[8], a[28:32], a[80], a[86], a[129] = 5, to, 1, 1, 1
    for state, mask in ((1, 0x39), (2, 0x129181), (3, 0x12e01)):
        a[0] = state
        assert not v.ibv_modify_qp(pair, (ctypes.c_char * 144).from_buffer(a), mask)
pair = queue_pair(2)
peer.sendall(struct.pack("=I", number(pair.value + 52)))
connect(pair, peer.recv(4))
wc = ctypes.create_string_buffer(48)
if not child:
    assert not post(pair, RECEIVE, bytes(32), 0, 64)
    at = ctypes.cast(wc, ctypes.c_void_p)
    poll = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
        pointer(context.value + 8 + 8 * POLL))
    peer.sendall(b"polls")
    while not poll(queue, 1, at):
        pass
    LAST
peer.recv(5)
time.sleep(0.02)
assert not post(pair, SEND, bytes(28) + struct.pack("=i", 2) + bytes(96), 0, 8)
print(completion())
os.kill(child, signal.SIGKILL)
os.waitpid(child, 0)
"""

ENDS = {
    "exit": "c.exit(0)",
    "return": "raise SystemExit",
    "sleep": "c.pause()",
    "daemon": "c._exit(c.fork() and 0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_the_last_message_is_answered(end, monkeypatch):
    """The parent of daemon() ends by _exit(), which would take the answer along if it had not forked before."""
    monkeypatch.setenv("COOP_NTRDMA_BACKEND", "tcp")
    monkeypatch.setenv("COOP_NTRDMA_BOUND_MS", "3600000")  # a sign of life would take the answer along
    for _ in range(5):
        with started("python3", "-c", TWO + CALLS + MESSAGE.replace("LAST", ENDS[end])) as program:
            out, _ = program.communicate(timeout=DEADLINE)
        assert (program.returncode, out) == (0, "(0, 0)\n")

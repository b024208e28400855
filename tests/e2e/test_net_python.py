# SPDX-License-Identifier: MIT
"""The Python bindings of libcoop-net, and with them its C interface: messages, calls, bulk data, errors."""
import errno
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = pathlib.Path(os.environ["COOP_BIN"]).parent / "userland/net/libcoop-net.so"
os.environ["COOP_NET_LIBRARY"] = str(LIBRARY)
sys.path.insert(0, str(ROOT / "userland/net-python"))
pytest.importorskip("cffi", reason="python3-cffi is not installed")

import coopnet  # noqa: E402
from coopnet import _abi  # noqa: E402

HOST = f"127.{1 + os.getpid() // 254 % 250}.{1 + os.getpid() % 254}.8"
ANY = f"{HOST}@tcp:12345:31:*"
PATIENCE = 60
ECHO, KEEP, FAIL, RAISE, NONE = 1, 2, 3, 4, 5


@pytest.fixture(name="domain", params=["mem", "ud"])
def make_domain(request):
    with coopnet.Domain(request.param) as domain:
        yield domain


@pytest.fixture(name="two")
def make_two(domain):
    """A caller, and an Rpc that serves ECHO."""
    with coopnet.Rpc(domain) as a, coopnet.Rpc(domain) as b:
        b.serve(ECHO, lambda request: request.data)
        a.start(ANY)
        b.start(ANY)
        yield a, b


class Kept:
    """Requests that the test answers."""

    def __init__(self):
        self.requests, self.arrived = [], threading.Semaphore(0)

    def __call__(self, request):
        self.requests.append(request)
        self.arrived.release()

    def wait(self):
        assert self.arrived.acquire(timeout=PATIENCE)


def test_declarations_are_those_of_the_header():
    header = (ROOT / "userland/include/coop/net.h").read_text(encoding="ascii")
    text = header.split("is also the text that the Python bindings declare. */")[1].split("/* The end of that text.")[0]
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
    assert text.split() == _abi.DECLARATIONS.split()
    said = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], check=True, capture_output=True, text=True)
    exported = {line.split()[-1] for line in said.stdout.splitlines()}
    declared = {name for name in re.findall(r"\b(coop_net_\w+)\(", text) if not name.endswith("_fn")}
    assert declared and declared <= exported
    assert {e for e in exported if e.startswith("coop_net_")} == declared


def test_messages_arrive(domain):
    arrived = threading.Semaphore(0)
    got = []

    def receive(sender, data):
        got.append((sender, data))
        arrived.release()

    with coopnet.Rpc(domain) as a, coopnet.Rpc(domain) as b:
        a.start(ANY)
        b.start(ANY, receive)
        a.send(b.address, b"one", timeout=PATIENCE)
        a.post(b.address, bytearray(b"\0two"), timeout=PATIENCE).result(PATIENCE)
        for _ in range(2):
            assert arrived.acquire(timeout=PATIENCE)
        assert sorted(got) == sorted([(a.address, b"one"), (a.address, b"\0two")])
        with pytest.raises(OSError) as e:
            a.send(b.address, bytes(a.max_message + 1))
        assert e.value.errno == errno.EMSGSIZE


@pytest.mark.parametrize("size", [0, 1, 5000, 300_000])
def test_calls_take_and_return_bytes(two, size):
    a, b = two
    data = os.urandom(size)
    assert a.call(b.address, ECHO, data, timeout=PATIENCE) == data
    assert a.call_async(b.address, ECHO, memoryview(data), timeout=PATIENCE).result(PATIENCE) == data
    assert (a.stats.calls, b.stats.served) == (2, 2)


def test_requests_are_answered_later(two):
    a, b = two
    kept = Kept()
    b.serve(KEEP, kept)
    futures = [a.call_async(b.address, KEEP, bytes([i]), timeout=PATIENCE) for i in range(10)]
    for _ in futures:
        kept.wait()
    for request in reversed(kept.requests):
        assert request.sender == a.address and request.method == KEEP
        assert 0 < request.time_left <= PATIENCE + 1
        request.answer(request.data * 2)
        with pytest.raises(OSError) as e:
            request.answer(b"again")
        assert e.value.errno == errno.EALREADY
    assert [f.result(PATIENCE) for f in futures] == [bytes([i, i]) for i in range(10)]


def test_errors_have_numbers(two, capsys):
    a, b = two

    def fails(request):
        raise PermissionError(errno.EPERM, "no")

    def raises(request):
        raise ValueError("wrong")

    b.serve(FAIL, fails)
    b.serve(RAISE, raises)
    with pytest.raises(PermissionError):
        a.call(b.address, FAIL, timeout=PATIENCE)
    with pytest.raises(OSError) as e:
        a.call(b.address, RAISE, timeout=PATIENCE)
    assert e.value.errno == errno.EIO
    assert "ValueError: wrong" in capsys.readouterr().err
    with pytest.raises(OSError) as e:
        a.call(b.address, NONE, timeout=PATIENCE)
    assert e.value.errno == errno.ENOSYS
    with pytest.raises(OSError) as e:
        a.call("nonsense", ECHO)
    assert e.value.errno == errno.EINVAL and "nonsense" in str(e.value)


def test_deadlines_and_dropped_requests(two):
    a, b = two
    kept = Kept()
    b.serve(KEEP, kept)
    with pytest.raises(TimeoutError):
        a.call(b.address, KEEP, timeout=0.05)
    future = a.call_async(b.address, KEEP, timeout=PATIENCE)
    while not kept.requests or kept.requests[-1].time_left < PATIENCE / 2:
        kept.wait()
    kept.requests.clear()
    with pytest.raises(OSError) as e:
        future.result(PATIENCE)
    assert e.value.errno == errno.ECANCELED


def test_waiting_in_a_callback_is_refused(two):
    a, b = two
    seen = []

    def waits(request):
        try:
            if request.data:
                b.call(a.address, ECHO, timeout=PATIENCE)
            else:
                b.send(a.address, b"x")
        except OSError as e:
            seen.append(e.errno)
        return b""

    b.serve(KEEP, waits)
    for data in (b"", b"call"):
        a.call(b.address, KEEP, data, timeout=PATIENCE)
    assert seen == [errno.EDEADLK] * 2


def test_messages_of_high_priority_arrive(two):
    a, b = two
    a.send(b.address, b"at once", timeout=PATIENCE, high=True)
    assert a.post(b.address, b"before others", timeout=PATIENCE, high=True).result(PATIENCE) is None


def test_memory_is_read_and_written(two):
    a, b = two
    data = os.urandom(200_000)
    with b.offer(data, timeout=PATIENCE) as offer:
        assert a.read(offer.descriptor, 300_000, timeout=PATIENCE) == data
        offer.wait()
    target = bytearray(len(data))
    with b.offer(target, writable=True, timeout=PATIENCE) as offer:
        a.write(offer.descriptor, data, timeout=PATIENCE)
        offer.wait()
    assert target == data
    with pytest.raises((TypeError, BufferError)):
        b.offer(data, writable=True)
    with b.offer(data, reusable=True) as offer:
        for first, length in ((0, 1), (4096, 10_000), (199_990, 10), (0, 200_000)):
            assert a.read(offer.descriptor, length, timeout=PATIENCE, offset=first) == data[first:first + length]
        with pytest.raises(OSError) as caught:
            a.read(offer.descriptor, 11, timeout=PATIENCE, offset=199_990)
        assert caught.value.errno == errno.EFBIG
    target = bytearray(len(data))
    with b.offer(target, writable=True, reusable=True) as offer:
        for first in (150_000, 0, 50_000, 100_000):
            a.write(offer.descriptor, data[first:first + 50_000], timeout=PATIENCE, offset=first)
        assert target == data
    with b.offer(data, reusable=True, timeout=0.01) as offer:
        with pytest.raises(TimeoutError):
            offer.wait()
    offer = b.offer(bytearray(10))
    descriptor = offer.descriptor
    offer.close()
    with pytest.raises(OSError):
        a.read(descriptor, 10, timeout=PATIENCE)
    with pytest.raises(OSError) as e:
        a.read(b"no descriptor", 10)
    assert e.value.errno == errno.EINVAL


def test_a_read_that_ends_at_once_ends(two):
    a, b = two
    for i in range(300):
        with b.offer(bytes([i % 256]), timeout=PATIENCE) as offer:
            assert a.read(offer.descriptor, 1, timeout=PATIENCE) == bytes([i % 256])
            offer.wait()


def test_what_is_left_open_is_said(domain):
    rpc = coopnet.Rpc(domain, max_message=8192, send_buffers=2, receive_buffers=2)
    with pytest.raises(OSError) as e:
        domain.close()
    assert e.value.errno == errno.EBUSY
    assert rpc.max_message == 8192 - 32
    rpc.close()
    with pytest.raises(TypeError, match="max_message"):
        coopnet.Rpc(domain, no_such=1)
    with pytest.raises(OSError):
        coopnet.Rpc(domain, max_message=10)


def test_a_domain_says_what_is_wrong():
    with pytest.raises(OSError, match="no-such"):
        coopnet.Domain("no-such")
    with pytest.raises(OSError, match="wrong_key") as e:
        coopnet.Domain("mem", wrong_key=1)
    assert e.value.errno == errno.EINVAL
    with coopnet.Domain("mem") as domain:
        assert domain.limits.max_message > 0


def test_an_older_program_has_shorter_structures():
    """The library writes no byte beyond the size that a program gives."""
    with coopnet.Domain("mem") as domain, coopnet.Rpc(domain) as rpc:
        out = _abi.ffi.new("struct coop_net_stats *")
        out.size = 16  # size and calls
        out.served = 77
        assert _abi.lib.coop_net_rpc_stats(rpc._handle, out) == 0
        assert (out.size, out.served) == (16, 77)
        out.size = 4
        assert _abi.lib.coop_net_rpc_stats(rpc._handle, out) == -errno.EINVAL


@pytest.mark.parametrize("transport", ["mem", "ud", "fabric"])
def test_the_example_does_what_it_says(transport):
    done = subprocess.run([sys.executable, str(ROOT / "docs/hello.py"), transport], capture_output=True, text=True,
                          timeout=300, check=False, env=dict(os.environ, PYTHONPATH=str(ROOT / "userland/net-python")))
    assert done.returncode == 0, done.stderr
    for line in ("a message: good morning", "called: HELLO", "read: 1200000 bytes, many pages."):
        assert line in done.stdout


def test_a_program_that_ends_without_closing_ends():
    text = ("import coopnet; d = coopnet.Domain('ud'); r = coopnet.Rpc(d); r.serve(1, lambda q: b''); "
            f"r.start('{ANY}'); print(len(r.call(r.address, 1, timeout=120)))")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300, check=False,
                          env=dict(os.environ, PYTHONPATH=str(ROOT / "userland/net-python")))
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


C_PROGRAM = r"""
#include <coop/net.h>
#include <stdio.h>
#include <string.h>
static void upper(void *context, coop_net_request *r)
{
	size_t length;
	const char *bytes = coop_net_request_bytes(r, &length);
	coop_net_answer(r, length == 5 && !memcmp(bytes, "hello", 5) ? "HELLO" : "?", length);
	coop_net_request_free(r);
}
int main(void)
{
	coop_net_domain *d;
	coop_net_rpc *r;
	char address[COOP_NET_ADDRESS_SIZE];
	void *result;
	size_t length;
	struct coop_net_options o = {sizeof(o)};
	o.send_buffers = 4;
	if (coop_net_domain_open("mem", NULL, &d) || coop_net_rpc_create(d, &o, &r) ||
	    coop_net_serve(r, 1, upper, NULL) || coop_net_rpc_start(r, "127.0.0.1@tcp:12345:31:*", NULL, NULL) ||
	    coop_net_rpc_address(r, address, sizeof(address)) ||
	    coop_net_call_wait(r, address, 1, "hello", 5, 60000, &result, &length))
		return puts(coop_net_error()), 1;
	printf("%.*s\n", (int)length, (char *)result);
	coop_net_free(result);
	return coop_net_rpc_close(r) || coop_net_domain_close(d);
}
"""


def test_what_is_installed_serves_c_and_python(tmp_path):
    if not all(map(shutil.which, ("cmake", "cc", "pkg-config"))):
        pytest.skip("needs cmake, cc and pkg-config")
    subprocess.run(["cmake", "--install", str(pathlib.Path(os.environ["COOP_BIN"]).parent), "--component", "net",
                    "--prefix", str(tmp_path)], check=True, capture_output=True)
    env = dict(os.environ, PKG_CONFIG_PATH=str(tmp_path / "lib/pkgconfig"), LD_LIBRARY_PATH=str(tmp_path / "lib"))
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "coop-net"], env=env, check=True,
                           capture_output=True, text=True).stdout.split()
    (tmp_path / "c.c").write_text(C_PROGRAM, encoding="ascii")
    subprocess.run(["cc", "-std=c99", "-Wall", "-Werror", "-pedantic-errors", str(tmp_path / "c.c"), *flags, "-o",
                    str(tmp_path / "c")], check=True)
    done = subprocess.run([str(tmp_path / "c")], capture_output=True, text=True, timeout=300, env=env, check=False)
    assert (done.returncode, done.stdout) == (0, "HELLO\n"), done.stderr
    for key in ("COOP_NET_LIBRARY", "LD_LIBRARY_PATH"):
        env.pop(key)
    (package,) = tmp_path.glob("lib/python3*/dist-packages")
    done = subprocess.run(["/usr/bin/python3", str(tmp_path / "share/doc/libcoop-net/examples/hello.py"), "mem"],
                          capture_output=True, text=True, timeout=300, env=dict(env, PYTHONPATH=str(package)), check=False)
    assert done.returncode == 0 and "called: HELLO" in done.stdout, done.stderr

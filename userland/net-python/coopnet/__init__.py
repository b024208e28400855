# SPDX-License-Identifier: MIT
"""coopnet - messages, calls and bulk data between programs: the Python side of libcoop-net.

    from coopnet import Domain, Rpc

    with Domain("ud") as domain, Rpc(domain) as here:
        here.serve(1, lambda request: request.data.upper())
        here.start("127.0.0.1@tcp:12345:31:*")
        print(here.call(here.address, 1, b"hello", timeout=5))

Errors are OSError with the library's errno; Python makes TimeoutError, ConnectionRefusedError and so
on of it. Timeouts are seconds; None is no limit. Functions passed to the library are called on its
threads and must not wait there: use post() and call_async(). Bytes are copied, except by bulk data:
an Offer shows memory of this program to a peer, which reads or writes it directly.
"""
from __future__ import annotations

import atexit
import errno
import os
import sys
import threading
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Callable, NamedTuple, Optional, Union

from ._abi import OPTIONS, ffi, lib

__all__ = ["Domain", "Rpc", "Request", "Offer", "Limits", "Stats", "version"]

Data = Union[bytes, bytearray, memoryview]
Receive = Callable[[str, bytes], None]


class Limits(NamedTuple):
    """Limits of a domain, in bytes."""

    max_message: int
    max_segment: int
    max_descriptor: int


class Stats(NamedTuple):
    """Counters of an Rpc, as coop::net::rpc_stats."""

    calls: int
    served: int
    refused: int
    repeated: int
    late: int
    malformed: int
    unsent: int


def version() -> str:
    """The version of the library."""
    return ffi.string(lib.coop_net_version()).decode()


def _check(status: int, what: str = "") -> None:
    if status < 0:
        text = os.strerror(-status)
        raise OSError(-status, f"{text}: {what}" if what else text)


def _made(status: int) -> None:
    """For functions that leave a text for their error."""
    if status < 0:
        raise OSError(-status, ffi.string(lib.coop_net_error()).decode(errors="replace") or os.strerror(-status))


def _ms(timeout: Optional[float]) -> int:
    return -1 if timeout is None else max(0, int(timeout * 1000 + 0.999))


def _bytes(data: Data) -> Any:
    return ffi.from_buffer("char[]", data)


def _filled(kind: str) -> Any:
    made = ffi.new(f"struct {kind} *")
    made.size = ffi.sizeof(f"struct {kind}")
    return made


class Domain:
    """An open transport: "mem", "ud", "fabric", "ntrdma", "kernel". Parameters are those of `coopnet options`."""

    def __init__(self, transport: str, **parameters: object) -> None:
        texts = [ffi.new("char[]", f"{key}={value}".encode()) for key, value in parameters.items()]
        out = ffi.new("coop_net_domain **")
        self._handle: Any = None
        _made(lib.coop_net_domain_open(transport.encode(), ffi.new("char *[]", [*texts, ffi.NULL]), out))
        self._handle = out[0]

    @property
    def limits(self) -> Limits:
        """The limits; constant while the domain is open."""
        out = _filled("coop_net_limits")
        _check(lib.coop_net_domain_limits(self._handle, out))
        return Limits(out.max_message, out.max_segment, out.max_descriptor)

    def close(self) -> None:
        """Closes the transport. OSError EBUSY: an Rpc is left."""
        if self._handle is not None:
            _check(lib.coop_net_domain_close(self._handle), "an Rpc is left")
            self._handle = None

    def __enter__(self) -> Domain:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


class Request:
    """A request to a method: answered once, by any thread, now or later."""

    def __init__(self, handle: Any) -> None:
        self._handle = ffi.gc(handle, lib.coop_net_request_free)
        length = ffi.new("size_t *")
        at = lib.coop_net_request_bytes(handle, length)
        #: The argument.
        self.data: bytes = ffi.buffer(at, length[0])[:] if length[0] else b""
        #: The caller's address.
        self.sender: str = ffi.string(lib.coop_net_request_from(handle)).decode()
        #: The number of the method.
        self.method: int = lib.coop_net_request_method(handle)

    @property
    def time_left(self) -> Optional[float]:
        """Seconds until the caller gives up; None: never."""
        left = lib.coop_net_request_time_left(self._handle)
        return None if left == 2**63 - 1 else left / 1000

    def answer(self, data: Data = b"") -> None:
        """Sends the result. OSError EALREADY: it is answered; ETIMEDOUT: the caller has given up."""
        view = _bytes(data)
        _check(lib.coop_net_answer(self._handle, view, len(view)))

    def fail(self, number: int) -> None:
        """Sends an errno value (positive, as in the module errno) instead of a result."""
        _check(lib.coop_net_fail(self._handle, -number))


class Offer:
    """Memory that the holder of `descriptor` may read, or write: once, or if it is reusable by ranges
    and any number of times."""

    def __init__(self, rpc: Rpc, memory: Any, writable: bool, timeout: Optional[float], reusable: bool = False) -> None:
        self._memory = ffi.from_buffer("char[]", memory, require_writable=writable)
        out = ffi.new("coop_net_offer **")
        self._handle: Any = None
        self._rpc = rpc
        make = lib.coop_net_offer_share if reusable else lib.coop_net_offer_make
        _made(make(rpc._handle, self._memory, len(self._memory), writable, _ms(timeout), out))
        self._handle = out[0]
        rpc._offers.add(self)
        length = ffi.new("size_t *")
        at = lib.coop_net_offer_descriptor(self._handle, length)
        #: What the other side needs; it can be sent as it is.
        self.descriptor: bytes = ffi.buffer(at, length[0])[:]

    def wait(self) -> None:
        """Waits until the offer has been used. OSError: it has failed or was withdrawn. A reusable one
        ends with TimeoutError."""
        _check(lib.coop_net_offer_wait(self._handle))

    def close(self) -> None:
        """Withdraws the offer. The memory is then the program's alone."""
        if self._handle is not None:
            _check(lib.coop_net_offer_end(self._handle))
            self._handle = None
            self._rpc._offers.discard(self)
            ffi.release(self._memory)

    def __enter__(self) -> Offer:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


class Rpc:
    """Sends and receives messages, calls methods of peers and serves methods, at one address.

    Options are those of coop::net::rpc_options and messenger_options; times in milliseconds have the
    suffix _ms.
    """

    def __init__(self, domain: Domain, **options: int) -> None:
        given = _filled("coop_net_options")
        for key, value in options.items():
            if key not in OPTIONS:
                raise TypeError(f"no option {key}; there are {', '.join(OPTIONS)}")
            setattr(given, key, value)
        out = ffi.new("coop_net_rpc **")
        self._handle: Any = None
        self._domain = domain
        self._offers: set[Offer] = set()
        self._methods: dict[int, Any] = {}
        self._receive: Any = None
        _made(lib.coop_net_rpc_create(domain._handle, given, out))
        self._handle = out[0]
        _open.add(self)

    def start(self, address: str, receive: Optional[Receive] = None) -> None:
        """Starts at an address, which may end with `*`. receive(sender, data) gets messages."""
        self._receive = ffi.new_handle(receive) if receive else None
        _check(lib.coop_net_rpc_start(self._handle, address.encode(), _on_message if receive else ffi.NULL,
                                      self._receive or ffi.NULL), address)

    @property
    def address(self) -> str:
        """Own address, once started."""
        text = ffi.new("char[]", 81)
        _check(lib.coop_net_rpc_address(self._handle, text, len(text)))
        return ffi.string(text).decode()

    @property
    def max_message(self) -> int:
        """The longest message, in bytes."""
        return lib.coop_net_rpc_max_message(self._handle)

    @property
    def stats(self) -> Stats:
        """The counters."""
        out = _filled("coop_net_stats")
        _check(lib.coop_net_rpc_stats(self._handle, out))
        return Stats(*(getattr(out, name) for name in Stats._fields))

    def send(self, to: str, data: Data, timeout: Optional[float] = None, high: bool = False) -> None:
        """Sends a copy of the data and waits until the transport reports the end. High: before
        messages that still wait to be sent."""
        view = _bytes(data)
        send = lib.coop_net_send_high if high else lib.coop_net_send
        _check(send(self._handle, to.encode(), view, len(view), _ms(timeout)), to)

    def post(self, to: str, data: Data, timeout: Optional[float] = None, high: bool = False) -> Future[None]:
        """Sends a copy of the data without waiting. BlockingIOError: all buffers are under way."""
        view = _bytes(data)
        wanted = _Wanted(to)
        post = lib.coop_net_post_high if high else lib.coop_net_post
        _check(wanted.begun(post(self._handle, to.encode(), view, len(view), _on_done, wanted.handle,
                                 _ms(timeout))), to)
        return wanted.future

    def call(self, to: str, method: int, data: Data = b"", timeout: Optional[float] = None) -> bytes:
        """Calls a method and waits for its result. OSError EDEADLK: a callback would wait for itself."""
        if getattr(_thread, "inside", False):
            _check(-errno.EDEADLK, to)
        try:
            return self.call_async(to, method, data, timeout).result()
        except BlockingIOError:
            pass  # the library waits for room
        view, out, length = _bytes(data), ffi.new("void **"), ffi.new("size_t *")
        _check(lib.coop_net_call_wait(self._handle, to.encode(), method, view, len(view), _ms(timeout), out,
                                      length), to)
        result = ffi.gc(out[0], lib.coop_net_free)
        return ffi.buffer(result, length[0])[:] if length[0] else b""

    def call_async(self, to: str, method: int, data: Data = b"", timeout: Optional[float] = None) -> Future[bytes]:
        """Calls a method without waiting. BlockingIOError: too many calls are under way."""
        view = _bytes(data)
        wanted = _Wanted(to)
        _check(wanted.begun(lib.coop_net_call(self._handle, to.encode(), method, view, len(view), _on_result,
                                              wanted.handle, _ms(timeout))), to)
        return wanted.future

    def serve(self, method: int, function: Optional[Callable[[Request], Optional[Data]]]) -> None:
        """Serves a method; None: no more. The function returns the result, or None, if it keeps the
        request to answer it later. An OSError that it raises goes to the caller with its errno, any
        other exception as EIO."""
        handle = ffi.new_handle(function) if function else ffi.NULL
        _check(lib.coop_net_serve(self._handle, method, _on_request if function else ffi.NULL, handle))
        # The one before may still run.
        self._methods.setdefault(method, []).append(handle)

    def offer(self, memory: Any, writable: bool = False, timeout: Optional[float] = None,
              reusable: bool = False) -> Offer:
        """Lets a peer read the memory, or write it, once. Reusable: lets any number of peers do so, each
        with ranges of its own, until the offer is closed."""
        return Offer(self, memory, writable, timeout, reusable)

    def read(self, descriptor: Data, length: int, timeout: Optional[float] = None,
             offset: Optional[int] = None) -> bytearray:
        """Reads what a descriptor offers, at most `length` bytes; from `offset` on, exactly that many.
        OSError EFBIG: they leave the offer."""
        memory = bytearray(length)
        del memory[self.read_into(descriptor, memory, timeout, offset):]
        return memory

    def read_into(self, descriptor: Data, memory: Any, timeout: Optional[float] = None,
                  offset: Optional[int] = None) -> int:
        """The same into the program's memory. Returns the number of bytes."""
        named, into, got = _bytes(descriptor), ffi.from_buffer("char[]", memory, require_writable=True), ffi.new("size_t *")
        with into:
            if offset is not None:
                _check(lib.coop_net_read_at(self._handle, named, len(named), offset, into, len(into), _ms(timeout)))
                return len(into)
            _check(lib.coop_net_read(self._handle, named, len(named), into, len(into), _ms(timeout), got))
        return got[0]

    def write(self, descriptor: Data, data: Data, timeout: Optional[float] = None, offset: int = 0) -> None:
        """Writes to the memory that a descriptor offers, from `offset` on if it is reusable."""
        named, view = _bytes(descriptor), _bytes(data)
        if offset:
            _check(lib.coop_net_write_at(self._handle, named, len(named), offset, view, len(view), _ms(timeout)))
            return
        _check(lib.coop_net_write(self._handle, named, len(named), view, len(view), _ms(timeout)))

    def stop(self) -> None:
        """Ends all calls, sends and offers."""
        _check(lib.coop_net_rpc_stop(self._handle))

    def close(self) -> None:
        """Stops, withdraws all offers and frees the memory. Not from a callback."""
        if self._handle is not None:
            for offer in list(self._offers):
                offer.close()
            _check(lib.coop_net_rpc_close(self._handle))
            self._handle = None
            _open.discard(self)

    def __enter__(self) -> Rpc:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], value: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()


# ---- callbacks ---------------------------------------------------------------------

_open: set[Rpc] = set()


# Threads of the library, which run nothing but callbacks, are marked.
_thread = threading.local()


@atexit.register
def _close_all() -> None:
    """The library's threads must not call a Python that has ended."""
    for rpc in list(_open):
        rpc.close()


class _Wanted:
    """A future, kept until the library calls back."""

    _lock = threading.Lock()
    _kept: dict[Any, _Wanted] = {}

    def __init__(self, what: str) -> None:
        self.what = what
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()
        self.handle = ffi.new_handle(self)
        with self._lock:
            self._kept[self.handle] = self

    def forget(self) -> None:
        with self._lock:
            del self._kept[self.handle]

    def begun(self, status: int) -> int:
        if status:
            self.forget()
        return status

    def over(self, status: int, value: Any) -> None:
        self.forget()
        if status:
            self.future.set_exception(OSError(-status, f"{os.strerror(-status)}: {self.what}"))
        else:
            self.future.set_result(value)


@ffi.callback("coop_net_done_fn")
def _on_done(context: Any, status: int) -> None:
    _thread.inside = True
    ffi.from_handle(context).over(status, None)


@ffi.callback("coop_net_result_fn")
def _on_result(context: Any, status: int, remote: int, at: Any, length: int) -> None:
    _thread.inside = True
    ffi.from_handle(context).over(status, ffi.buffer(at, length)[:] if length else b"")


def _unraised(function: Any) -> None:
    sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]


@ffi.callback("coop_net_receive_fn")
def _on_message(context: Any, sender: Any, at: Any, length: int) -> None:
    _thread.inside = True
    function = ffi.from_handle(context)
    try:
        function(ffi.string(sender).decode(), ffi.buffer(at, length)[:] if length else b"")
    except Exception:  # the library's thread goes on
        _unraised(function)


@ffi.callback("coop_net_method_fn")
def _on_request(context: Any, handle: Any) -> None:
    _thread.inside = True
    function, request = ffi.from_handle(context), Request(handle)
    try:
        try:
            result = function(request)
            if result is not None:
                request.answer(result)
        except OSError as e:
            request.fail(e.errno or errno.EIO)
        except Exception:  # the library's thread goes on
            _unraised(function)
            request.fail(errno.EIO)
    except OSError:
        pass  # it is answered, or its caller has gone

#!/usr/bin/python3
# SPDX-License-Identifier: MIT
"""hello.py - two processes: one calls a method of the other, and reads its memory.

    python3 hello.py ud        (fabric works alike)

With `mem`, which stays within a process, both sides are in one process.
"""
import multiprocessing
import queue
import sys
import threading
from typing import Any

from coopnet import Domain, Rpc

UPPER, LIBRARY = 1, 2  # methods


def serve(transport: str, started: Any) -> None:
    """Serves two methods until its memory has been read."""
    books = bytearray(b"many pages. " * 100_000)
    with Domain(transport) as domain, Rpc(domain) as here:
        offers: Any = queue.Queue()

        def library(_: Any) -> bytes:
            offer = here.offer(books, timeout=30)  # the memory stays where it is
            offers.put(offer)
            return offer.descriptor

        here.serve(UPPER, lambda request: request.data.upper())
        here.serve(LIBRARY, library)
        here.start("127.0.0.1@tcp:12345:31:*", lambda sender, data: print("a message:", data.decode(), flush=True))
        started.put(here.address)
        offers.get(timeout=60).wait()


def use(transport: str, there: str) -> None:
    """Sends a message, calls a method and reads memory."""
    with Domain(transport) as domain, Rpc(domain) as here:
        here.start("127.0.0.1@tcp:12345:32:*")
        here.send(there, b"good morning", timeout=10)
        print("called:", here.call(there, UPPER, b"hello", timeout=10).decode())
        descriptor = here.call(there, LIBRARY, timeout=10)
        read = here.read(descriptor, 2_000_000, timeout=10)
        print("read:", len(read), "bytes,", bytes(read[:11]).decode())


def main() -> None:
    """Starts the server, in another process if the transport reaches one."""
    transport = sys.argv[1] if len(sys.argv) > 1 else "ud"
    started: Any
    server: Any
    if transport == "mem":
        started = queue.Queue()
        server = threading.Thread(target=serve, args=(transport, started))
    else:
        ways = multiprocessing.get_context("spawn")
        started = ways.Queue()
        server = ways.Process(target=serve, args=(transport, started))
    server.start()
    use(transport, started.get(timeout=60))
    server.join()


if __name__ == "__main__":
    main()

# SPDX-License-Identifier: MIT
"""Reads a tree, as a process of its own, so that neither pass disturbs who measures.

    readtree.py read ROOT         reads every file in order; prints {"bytes", "seconds"}
    readtree.py sum ROOT BELOW    prints {path relative to ROOT: [size, BLAKE2b digest]} of what
                                  is BELOW: an entry of ROOT, or "."

A symbolic link is its text: it is not followed, and has the size 0.
"""
import hashlib
import json
import os
import sys
import time

CHUNK = 1 << 20


def entries(top):
    """Paths of the files and links below top, or top itself if it is a file."""
    if os.path.isfile(top):
        yield top
        return
    for where, dirs, files in os.walk(top, onerror=raise_error):
        dirs.sort()
        links = [d for d in dirs if os.path.islink(os.path.join(where, d))]
        for name in sorted(files + links):
            yield os.path.join(where, name)


def raise_error(error):
    raise error


def read(path, buffer, take):
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        total = 0
        while (n := os.readv(descriptor, [buffer])) > 0:
            take(n)
            total += n
        return total
    finally:
        os.close(descriptor)


def read_tree(root):
    buffer = bytearray(CHUNK)
    started = time.monotonic()
    total = 0
    for path in entries(root):
        if os.path.islink(path):
            os.readlink(path)
        else:
            total += read(path, buffer, lambda n: None)
    return {"bytes": total, "seconds": time.monotonic() - started}


def sum_tree(root, below):
    buffer = memoryview(bytearray(CHUNK))
    out = {}
    for path in entries(os.path.join(root, below)):
        name = os.path.relpath(path, root)
        if os.path.islink(path):
            out[name] = [0, "-> " + os.readlink(path)]
            continue
        digest = hashlib.blake2b(digest_size=32)
        size = read(path, buffer, lambda n: digest.update(buffer[:n]))
        out[name] = [size, digest.hexdigest()]
    return out


if __name__ == "__main__":
    json.dump({"read": read_tree, "sum": sum_tree}[sys.argv[1]](*sys.argv[2:]), sys.stdout)

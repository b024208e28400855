# SPDX-License-Identifier: MIT
"""Nodes that read one file in step, and what storage sent for it."""
import hashlib
import os
import random
import threading

CHUNK = 1 << 20

# The most copies of what nodes share that storage may send, and the part of one that it may send for bytes that
# a peer has. A peer whose answer is late is passed over and storage sends those bytes, so a busy machine costs
# more than the one copy that the simulator and bench/step have exact figures for; without sharing it is two or more.
SHARED, SPARED = 1.5, 0.5


def read_in_step(nodes, name, chunks):
    """All nodes read chunk after chunk; each waits for the others before the next. Returns {node: sha256}."""
    sums = {}
    barrier = threading.Barrier(len(nodes))

    def run(node):
        try:
            h = hashlib.sha256()
            with open(f"{node.path}/{name}", "rb", buffering=0) as f:
                barrier.wait(240)
                for _ in range(chunks):
                    data = b""
                    while len(data) < CHUNK:
                        piece = f.read(CHUNK - len(data))
                        if not piece:
                            break
                        data += piece
                    h.update(data)
                    barrier.wait(240)
            sums[node.number] = h.hexdigest()
        finally:
            barrier.abort() if node.number not in sums else None

    threads = [threading.Thread(target=run, args=(n,)) for n in nodes]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return sums


def make_file(cluster, name, size, seed):
    """A file of random bytes, size a multiple of CHUNK; returns its sha256."""
    r, h = random.Random(seed), hashlib.sha256()
    with open(os.path.join(cluster.export, name), "wb") as f:
        for _ in range(size // CHUNK):
            data = r.randbytes(CHUNK)
            h.update(data)
            f.write(data)
    return h.hexdigest()


def copies(nodes, size):
    return sum(n.stats()["storage"]["bytes"] for n in nodes) / size

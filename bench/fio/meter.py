# SPDX-License-Identifier: MIT
"""CPU time of one measured interval, counted twice.

The control group of a system counts exactly the time of its own processes and the reader, to the
microsecond, but not kernel threads, nor interrupts that landed elsewhere. /proc/stat counts the whole
machine, at clock-tick resolution, including everything foreign. If both agree the figure is good; if
not, the report calls the difference foreign, and a run with much of it should be repeated.

A virtual machine may return free memory to its host and pay for it at the next touch, several CPU
seconds per GiB: more than any of the systems uses. claim_memory() makes it pay before the interval.
"""

import mmap
import os
import tempfile
import time

MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def machine_busy_seconds():
    with open("/proc/stat") as stat:
        user, nice, system, _idle, _iowait, irq, softirq = map(int, stat.readline().split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS_PER_SECOND


def available_bytes():
    with open("/proc/meminfo") as info:
        for line in info:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 0


def claim_memory(wanted):
    """Touches that much free memory and frees it again, so that the host has provided it."""
    length = min(wanted, available_bytes() // 2) & ~0xFFFFF
    if not length:
        return
    with mmap.mmap(-1, length) as memory:
        try:
            memory.madvise(mmap.MADV_HUGEPAGE)
            memory.madvise(MADV_POPULATE_WRITE)
        except OSError:
            for page in range(0, length, mmap.PAGESIZE):
                memory[page] = 1


def fill_page_cache(folder):
    """Fills the machine's free memory with the cache of a file, as on a machine in use, and removes the
    file. What was read once before is the first that the kernel drops for it."""
    piece = 1 << 20
    with tempfile.TemporaryFile(dir=folder) as other:
        zeros = bytes(piece)
        for _ in range(int(available_bytes() * 1.05) // piece):
            other.write(zeros)
        other.seek(0)
        while other.read(4 * piece):
            pass


class interval:
    """with interval(processes) as t: ...; then t.seconds, t.cpu_group, t.cpu_machine."""

    def __init__(self, owner):
        self.owner_ = owner

    def __enter__(self):
        self.group_before_ = self.owner_.cpu_seconds()
        self.machine_before_ = machine_busy_seconds()
        self.began_ = time.monotonic()
        return self

    def __exit__(self, *_):
        self.seconds = time.monotonic() - self.began_
        self.cpu_machine = machine_busy_seconds() - self.machine_before_
        after = self.owner_.cpu_seconds()
        self.cpu_group = None if after is None else after - self.group_before_
        return False

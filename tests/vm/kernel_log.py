# SPDX-License-Identifier: MIT
"""Lines of a machine's kernel log that make the running test fail.

These are BUG and WARNING, the reports of KASAN, lockdep, kmemleak, UBSAN, the DMA and object checks,
and those of the lab's stock kernel: slub_debug=FZPU ("BUG kmalloc-64 (...): Poison overwritten",
without a colon), page_poison=1 ("pagealloc: memory corruption"), hung tasks. A stall that RCU reports
does not count: under an emulated processor the host may have been busy.
"""
import re

BAD = re.compile(r"\bBUG\b|WARNING:|KASAN|lockdep|possible circular|kmemleak|UBSAN|refcount|hung|corruption|"
                 r"Oops|Kernel panic|Out of memory|DMA-API|ODEBUG|general protection|unable to handle|"
                 r"Busy inodes|unreferenced object")
# A debug kernel prints these about itself.
HARMLESS = re.compile(r"Kernel memory leak detector initialized|Automatic memory scanning|RCU lockdep checking|"
                      r"KernelAddressSanitizer initialized|DMA-API: (pre|debug)|"
                      r"new suspected memory leaks|"  # the log has the leaks too
                      # Under injected failures:
                      r"kmemleak: Cannot allocate a scan area|at kernel/trace/trace_events\.c")


def bugs(path):
    """(test or None, line) for every line of a kernel log that reports a bug."""
    found, current = [], None
    with open(path, errors="replace") as f:
        for line in f:
            m = re.search(r"lab: (begin|end) (\S+)", line)
            if m:
                current = m[2] if m[1] == "begin" else None
            elif BAD.search(line) and not HARMLESS.search(line):
                found.append((current, line.strip()))
    return found

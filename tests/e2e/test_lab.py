# SPDX-License-Identifier: MIT
"""What the lab of emulated machines takes for a kernel bug, and which test it blames."""
import os
import sys

import pytest

sys.path.append(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "vm"))

import kernel_log  # noqa: E402


def found(tmp_path, *lines):
    log = tmp_path / "kernel.log"
    log.write_text("".join(f"[    1.000000] {line}\n" for line in lines))
    return [test for test, _ in kernel_log.bugs(log)]


# As Linux 6.1 prints them.
@pytest.mark.parametrize("line", [
    "BUG: KASAN: use-after-free in coop_call_put+0x1b/0x40 [coopfs]",
    "BUG: unable to handle page fault for address: ffffc90000123000",
    "BUG kmalloc-64 (Tainted: G           O      ): Poison overwritten",
    "BUG coopfs_inode (Tainted: G    B      O      ): Objects remaining in coopfs_inode on __kmem_cache_shutdown()",
    "kernel BUG at mm/slub.c:381!",
    "pagealloc: memory corruption",
    "list_del corruption. prev->next should be ffff888003a4c0a8, but was dead000000000100",
    "WARNING: CPU: 1 PID: 77 at fs/inode.c:52 coop_evict_inode+0x3c/0x50 [coopfs]",
    "WARNING: possible circular locking dependency detected",
    "refcount_t: underflow; use-after-free.",
    "INFO: task cat:123 blocked for more than 120 seconds; hung",
    "unreferenced object 0xffff888004567800 (size 192):",
    "DMA-API: rxe0 rxe0: device driver frees DMA memory with wrong function",
    "ODEBUG: free active (active state 0) object type: timer_list",
    "VFS: Busy inodes after unmount of coopfs. Self-destruct in 5 seconds.  Have a nice day...",
    "Out of memory: Killed process 88 (cat)",
])
def test_a_bug_is_found(tmp_path, line):
    assert found(tmp_path, "lab: begin reads", line, "lab: end reads") == ["reads"]


@pytest.mark.parametrize("line", [
    "coopfs: loading out-of-tree module taints kernel.",
    "kmemleak: Kernel memory leak detector initialized (mem pool available: 15669)",
    "KernelAddressSanitizer initialized",
    "DMA-API: preallocated 65536 debug entries",
    "rcu: INFO: rcu_preempt self-detected stall on CPU",
    "debugfs: Directory 'coopfs' with parent 'bdi' already present!",
])
def test_what_is_none_is_not(tmp_path, line):
    assert found(tmp_path, "lab: begin reads", line, "lab: end reads") == []


def test_it_belongs_to_the_test_that_ran(tmp_path):
    bug = "WARNING: CPU: 0 PID: 1 at x"
    assert found(tmp_path, bug, "lab: begin one", bug, "lab: end one", "lab: begin two", "lab: end two", bug) == \
        [None, "one", None]

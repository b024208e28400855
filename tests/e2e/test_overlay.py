# SPDX-License-Identifier: MIT
"""A mount as the lower layers of an overlay, as container engines use it: reads come from it, a change
copies the file up with all its metadata, and the layers stay as they are."""
import hashlib
import os
import subprocess
import sys

import pytest

IN_OVERLAY = r"""
import hashlib, mmap, os, stat, subprocess, sys
base, digest = sys.argv[1:]
os.chdir(base)

def content(name):
    with open(name, "rb") as f:
        return f.read()

# Reading: both layers, the upper of the two first.
assert sorted(os.listdir("etc")) == ["both", "one", "two"], os.listdir("etc")
assert content("etc/both") == b"upper of the two\n" and content("etc/one") == b"one\n"
assert hashlib.sha256(content("big")).hexdigest() == digest
with open("big", "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
    assert hashlib.sha256(m).hexdigest() == digest
assert subprocess.run(["bin/run"], capture_output=True, text=True).stdout == "ran\n"
assert os.readlink("link") == "etc/one" and content("link") == b"one\n"
assert stat.S_ISFIFO(os.stat("fifo").st_mode)

# A change copies up: contents, mode, owner, times, extended attributes.
before = os.stat("etc/one")
with open("etc/one", "a") as f:
    f.write("more\n")
after = os.stat("etc/one")
assert content("etc/one") == b"one\nmore\n"
assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
assert stat.S_IMODE(after.st_mode) == 0o640 and after.st_uid == 12
assert os.getxattr("etc/one", "trusted.kept") == b"value"
os.utime("times", ns=(1, os.stat("times").st_mtime_ns))
assert os.stat("times").st_mtime == 1234567890
with open("big", "r+b") as f:
    f.seek(4096)
    f.write(b"x")
copied = content("big")
assert copied[4096:4097] == b"x" and len(copied) == (3 << 20) + 5
assert hashlib.sha256(copied[:4096] + b"\1" + copied[4097:]).hexdigest() == digest

# Removed names stay removed, and a directory made in place of a removed one is empty.
os.unlink("etc/two")
os.rename("etc/both", "moved")
assert os.listdir("etc") == ["one"] and content("moved") == b"upper of the two\n"
for name in os.listdir("tree"):
    os.unlink("tree/" + name)
os.rmdir("tree")
os.mkdir("tree")
assert os.listdir("tree") == []
os.link("moved", "again")
assert os.stat("again").st_nlink == 2
"""

SCRIPT = r"""
set -e
mount --make-rprivate /
mount -t tmpfs none "$scratch"
mkdir "$scratch/upper" "$scratch/work" "$scratch/merged"
mount -t overlay overlay -o "lowerdir=$node/two:$node/one,upperdir=$scratch/upper,workdir=$scratch/work" "$scratch/merged"
exec "$python" -c "$program" "$scratch/merged" "$digest"
"""


def make(export):
    for layer in ("one", "two"):
        for d in ("etc", "bin", "tree"):
            os.makedirs(f"{export}/{layer}/{d}")

    def write(name, data, mode=0o644):
        with open(f"{export}/{name}", "wb") as f:
            f.write(data)
        os.chmod(f"{export}/{name}", mode)
    write("one/etc/one", b"one\n", 0o640)
    os.chown(f"{export}/one/etc/one", 12, 34)
    os.setxattr(f"{export}/one/etc/one", "trusted.kept", b"value")
    write("two/etc/two", b"two\n")
    write("one/etc/both", b"lower of the two\n")
    write("two/etc/both", b"upper of the two\n")
    write("one/bin/run", b"#!/bin/sh\necho ran\n", 0o755)
    for n in range(100):
        write(f"{('one', 'two')[n % 2]}/tree/{n}", b"leaf\n")
    write("one/times", b"")
    os.utime(f"{export}/one/times", (1234567890, 1234567890))
    os.symlink("etc/one", f"{export}/one/link")
    os.mkfifo(f"{export}/one/fifo")
    big = bytearray(os.urandom((3 << 20) + 5))
    big[4096] = 1
    write("one/big", big)
    return hashlib.sha256(big).hexdigest()


def seen(export):
    """Everything below, except access times."""
    found = {}
    for path, _, names in os.walk(export):
        for name in [".", *names]:
            full = os.path.join(path, name)
            st = os.lstat(full)
            body = b""
            if os.path.isfile(full) and not os.path.islink(full):
                with open(full, "rb") as f:
                    body = f.read()
            found[full] = (st.st_mode, st.st_uid, st.st_gid, st.st_nlink, st.st_size, st.st_mtime_ns,
                           st.st_ctime_ns, hashlib.sha256(body).hexdigest())
    return found


@pytest.mark.parametrize("options", [[], ["ro"], ["strict"]])
def test_lower_layers_of_an_overlay(cluster, options):
    if os.geteuid() != 0:
        pytest.skip("needs root: an overlay is mounted")
    digest = make(cluster.export)
    node = cluster.node(*options, peers=False)
    before = seen(cluster.export)
    scratch = cluster.file("scratch")
    os.mkdir(scratch)
    done = subprocess.run(["unshare", "-m", "sh", "-c", SCRIPT], capture_output=True, text=True, timeout=300,
                          env={**os.environ, "scratch": scratch, "node": node.path, "python": sys.executable,
                               "program": IN_OVERLAY, "digest": digest})
    if "overlay" in done.stderr and "unknown filesystem" in done.stderr:
        pytest.skip("this kernel has no overlay file system")
    assert done.returncode == 0, done.stderr
    assert seen(cluster.export) == before

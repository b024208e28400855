# SPDX-License-Identifier: MIT
"""An initramfs made on the fly: busybox, kernel modules, programs with their libraries.

It is an uncompressed cpio archive, because unpacking costs an emulated processor more than
reading a larger file costs the real one. Nothing is staged in the file system, so this
needs no root and leaves nothing behind.
"""
import glob
import lzma
import os
import re
import shutil
import stat
import subprocess
import sys

from topic import Missing

REAL = "/usr/bin"  # the guest's directory for programs that are no applets


class Archive:
    """cpio in the format "newc". Paths are the guest's; missing parents are made."""

    def __init__(self):
        self.parts, self.seen, self.inode = [], set(), 0
        for d in ("bin", "sbin", "lib", "lib64"):
            self.link("/" + d, "usr/" + d)
        for d in ("/proc", "/sys", "/dev", "/tmp", "/run", "/mnt", "/var", "/usr/sbin", "/usr/lib64"):
            self.directory(d)
        self.link("/var/run", "../run")

    def _entry(self, path, mode, data=b""):
        name = path.lstrip("/").encode() + b"\0"
        self.inode += 1
        fields = (self.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
        head = b"070701" + b"".join(b"%08X" % f for f in fields) + name
        self.parts += [head, bytes(-len(head) % 4), data, bytes(-len(data) % 4)]
        self.seen.add(path)

    def directory(self, path):
        if path in self.seen or path == "/":
            return
        self.directory(os.path.dirname(path))
        self._entry(path, stat.S_IFDIR | 0o755)

    def link(self, path, target):
        if path not in self.seen:
            self.directory(os.path.dirname(path))
            self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def text(self, path, text, mode=0o644):
        self.directory(os.path.dirname(path))
        self._entry(path, stat.S_IFREG | mode, text.encode())

    def file(self, path, source, mode=0o644):
        path = re.sub(r"^/(bin|sbin|lib|lib64)/", r"/usr/\1/", path)
        if path in self.seen:
            return
        self.directory(os.path.dirname(path))
        with open(source, "rb") as f:
            self._entry(path, stat.S_IFREG | mode, f.read())

    def bytes(self, path, data, mode=0o644):
        self.directory(os.path.dirname(path))
        self._entry(path, stat.S_IFREG | mode, data)

    def write(self, path):
        self._entry("TRAILER!!!", 0)
        with open(path, "wb") as out:
            out.writelines(self.parts)


class BuiltKernel:
    """A kernel in its build directory, with everything that the tests need built in."""

    def __init__(self, directory):
        self.image = os.path.join(directory, "bzImage")
        try:
            with open(os.path.join(directory, "modules.builtin")) as f:
                self.builtin = {os.path.basename(line.strip())[:-3].replace("-", "_") for line in f}
        except OSError as e:
            raise Missing(f"no kernel in {directory}: {e.strerror}")

    def modules(self, names):
        for name in names:
            if name not in self.builtin:
                raise Missing(f"{self.image} has {name} not built in")
        return []


class Kernel:
    """An installed kernel and its modules: of the given version, or the newest."""

    def __init__(self, version=None):
        images = sorted(glob.glob("/boot/vmlinuz-*"), key=lambda p: [
            int(n) for n in re.findall(r"\d+", p)])
        images = [i for i in images if os.access(i, os.R_OK)]
        if version:
            images = [i for i in images if i == f"/boot/vmlinuz-{version}"]
            if not images:
                raise Missing(f"no kernel {version} to boot; install linux-image-{version}")
        if not images:
            raise Missing("no kernel to boot; install linux-image-amd64")
        self.image = images[-1]
        self.version = os.path.basename(self.image)[len("vmlinuz-"):]
        if not os.path.isdir(f"/lib/modules/{self.version}"):
            raise Missing(f"no modules for {self.image}; install linux-image-amd64 again")

    def modules(self, names):
        """Files to insert, in order; a built-in module needs none."""
        out = []
        for name in names:
            done = subprocess.run(["/sbin/modprobe", "-S", self.version, "--show-depends", name],
                                  capture_output=True, text=True)
            if done.returncode:
                raise Missing(f"kernel {self.version} has no module {name}")
            for line in done.stdout.splitlines():
                word = line.split()
                if word[0] == "insmod" and word[1] not in out:
                    out.append(word[1])
        return out


def libraries(program):
    done = subprocess.run(["ldd", program], capture_output=True, text=True)
    lost = re.findall(r"(\S+) => not found", done.stdout)
    if lost:
        raise Missing(f"{program} lacks {', '.join(lost)}")
    return re.findall(r"(/\S+) \(0x", done.stdout)


def add_program(archive, name, source, scratch):
    """Strips debug information, which would be most of the archive."""
    slim = os.path.join(scratch, name)
    if shutil.which("objcopy") and not subprocess.run(
            ["objcopy", "--strip-debug", source, slim], stderr=subprocess.DEVNULL).returncode:
        archive.file(f"{REAL}/{name}", slim, 0o755)
        os.unlink(slim)
    else:  # a script
        archive.file(f"{REAL}/{name}", source, 0o755)
    for library in libraries(source):
        archive.file(library, library, 0o755)


def add_module(archive, source):
    """Adds the module uncompressed, because busybox inserts no other; returns its path."""
    packed = source.endswith(".xz")
    path = "/lib/modules/" + os.path.basename(source)[:-3 if packed else None]
    if path not in archive.seen:
        with (lzma.open if packed else open)(source, "rb") as f:
            archive.bytes(path, f.read())
    return path


def find_program(name, bin_dirs):
    for d in bin_dirs:
        if os.access(os.path.join(d, name), os.X_OK):
            return os.path.join(d, name)
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not found:
        raise Missing(f"no program {name}")
    return os.path.realpath(found)


def build(path, kernel, topic, tests, bin_dirs, scratch, guest_dir, commands=None):
    """Writes the archive for one boot of 'topic' that runs 'tests', or 'commands' in place of a shell."""
    busybox = shutil.which("busybox")
    if not busybox or libraries(busybox):
        raise Missing("no static busybox; install busybox-static")
    a = Archive()
    a.file("/usr/bin/busybox", busybox, 0o755)
    applets = subprocess.run([busybox, "--list"], capture_output=True, text=True).stdout.split()
    # Otherwise applets would win over programs of the same name, even inside the shell.
    for name in applets:
        if name not in topic.programs and name != "busybox":
            a.link(f"/usr/bin/{name}", "busybox")
    a.text("/lab/functions", "".join(f'{n}() {{ {REAL}/{n} "$@"; }}\n'
                                     for n in topic.programs if n in applets))
    for name in topic.programs:
        add_program(a, name, find_program(name, bin_dirs), scratch)
    for name in topic.optional:
        try:
            add_program(a, name, find_program(name, bin_dirs), scratch)
        except Missing as e:
            print(f"left out: {e}", file=sys.stderr)

    order = []
    for source in kernel.modules(topic.modules):
        order.append(add_module(a, source))
    a.text("/lab/modules", "".join(m + "\n" for m in order))
    if "rdma_rxe" in topic.modules:
        for source in glob.glob("/usr/lib/x86_64-linux-gnu/libibverbs/librxe-*.so") + \
                glob.glob("/etc/libibverbs.d/rxe.driver"):
            a.file(source, source)
            for library in libraries(source) if source.endswith(".so") else ():
                a.file(library, library, 0o755)

    for source in topic.files:
        if not os.path.exists(source):
            raise Missing(f"{source} does not exist; build it first")
        a.file("/lab/files/" + os.path.basename(source), source)
    a.text("/etc/passwd", "root:x:0:0:root:/tmp:/bin/sh\n")
    a.text("/etc/group", "root:x:0:\n")
    a.text("/lab/tests", "".join(t + "\n" for t in tests))
    if commands is not None:
        a.text("/lab/commands", commands)
    a.file("/init", os.path.join(guest_dir, "init"), 0o755)
    a.file("/lab/lib.sh", os.path.join(guest_dir, "lib.sh"))
    a.file("/lab/topic.sh", topic.path)
    a.write(path)

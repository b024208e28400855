# SPDX-License-Identifier: MIT
"""Emulated machines: one QEMU process each, wired together by unix sockets.

The first serial line carries only the kernel's log, so that a line that reports a bug
cannot come from a test's own output. The second carries the tests' output and, in lines
that begin with "@@ ", the messages between guest and lab.
"""
import ctypes
import os
import shutil
import signal
import subprocess

from topic import Missing

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
MTU = 4500  # carries a UD datagram of 4096 bytes


class Machine:
    def __init__(self, number, of, topic, kernel, initrd, patience, logs, sockets):
        self.number, self.pending, self.ended = number, b"", False
        self.kernel_log = os.path.join(logs, f"{topic.name}-{number}.kernel.log")
        self.test_log = os.path.join(logs, f"{topic.name}-{number}.log")
        self.out = open(self.test_log, "wb")
        open(self.kernel_log, "wb").close()
        argv = command(topic, kernel, initrd, f"lab.node={number} lab.machines={of} lab.patience={patience}")
        argv += ["-chardev", f"file,id=kernel,path={self.kernel_log}", "-serial", "chardev:kernel",
                 "-chardev", "stdio,id=tests,signal=off", "-serial", "chardev:tests",
                 "-monitor", "none", *network(number, of, sockets)]
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, start_new_session=True,
                                        preexec_fn=die_with_parent)

    def lines(self):
        """Received whole lines; when the machine ends, the rest, then None."""
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self.out.write(data)
        self.out.flush()
        *whole, self.pending = (self.pending + data).split(b"\n")
        out = [line.decode(errors="replace").rstrip("\r") for line in whole]
        if not data:
            self.ended = True
            out += [self.pending.decode(errors="replace"), None]
        return out

    def tell(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # the machine has ended, and its output shows that too

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        self.out.close()


def die_with_parent():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def command(topic, kernel, initrd, parameters):
    qemu = shutil.which("qemu-system-x86_64")
    if not qemu:
        raise Missing("no qemu-system-x86_64; install qemu-system-x86")
    # QEMU emulates this processor model two to three times as fast as "max". Its RDRAND saves the
    # wait for entropy.
    return [qemu, "-accel", "tcg,thread=multi", "-cpu", "qemu64,+rdrand", "-smp", str(topic.cpus),
            "-m", str(topic.memory), "-display", "none", "-no-reboot", "-nodefaults",
            "-kernel", kernel.image, "-initrd", initrd, "-append",
            "console=ttyS0 loglevel=5 panic=-1 oops=panic random.trust_cpu=on "
            + ("slub_debug=FZPU page_poison=1 " if topic.checks else "") + parameters]


def network(number, of, sockets):
    """All machines on one switch, a hub inside the first machine's process; two need none."""
    if of == 1:
        return []
    argv = ["-device", f"virtio-net-pci,netdev=own,host_mtu={MTU},mac=52:54:00:09:00:{number:02x}"]
    if number > 1:
        return argv + ["-netdev", f"stream,id=own,server=off,addr.type=unix,addr.path={sockets}/{number}"]
    if of == 2:
        return argv + ["-netdev", f"stream,id=own,server=on,addr.type=unix,addr.path={sockets}/2"]
    argv += ["-netdev", "hubport,id=own,hubid=0"]
    for other in range(2, of + 1):
        argv += ["-netdev", f"stream,id=to{other},server=on,addr.type=unix,addr.path={sockets}/{other}",
                 "-netdev", f"hubport,id=port{other},hubid=0,netdev=to{other}"]
    return argv

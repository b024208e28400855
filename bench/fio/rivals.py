# SPDX-License-Identifier: MIT
"""The rivals of coopfs, except Gfarm: the local file system, libfuse's passthrough as shipped and with
spliced replies, and sshfs over a plain TCP connection.

Every system has the same life cycle: start() once per run; for each case mount() a reader with empty
caches, measure, unmount(); stop() at the end.
"""

import gzip
import pathlib
import shutil
import socket
import subprocess
import threading

from sandbox import is_mounted, processes, unmount, unusable, wait_for

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLE = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c"
SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/lib/sftp-server",
                "/usr/libexec/openssh/sftp-server")


class system:
    name = ""
    title = ""
    states = ("storage", "warm")  # the source of cold reads, and "warm" if warm reads are measured
    writes = False  # its mount is writable, and writes reach the corpus
    account = None  # the system whose CPU account counts its processes, if not its own

    def __init__(self, bed):
        self.bed = bed
        self.processes = processes(self.account or self.name, bed.group, bed.logs)
        self.mountpoint = bed.folder / "mnt" / self.name
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        self.child_ = None

    def takes(self, case):
        return not case.writes or self.writes

    def start(self):
        """Starts servers and makes data; raises unusable if a program is missing."""

    def mount(self):
        raise NotImplementedError

    def reader_prefix(self):
        return []

    def notes(self):
        """The system's own statistics of the interval just measured."""
        return None

    def unmount(self):
        unmount(self.mountpoint)
        if self.child_:
            try:
                self.child_.wait(10)
            except subprocess.TimeoutExpired:
                pass
            self.processes.stop(self.child_)
            self.child_ = None

    def stop(self):
        self.unmount()
        self.processes.stop_all()

    def mount_by(self, argv, **options):
        self.child_ = self.processes.start(argv, **options)
        wait_for(f"{self.name}: mount", lambda: is_mounted(self.mountpoint), child=self.child_,
                 owner=self.processes)


def need(program, package):
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")
    if not found:
        raise unusable(f"{program} is not installed: apt-get install {package}")
    return found


class local(system):
    """The backing files themselves, warm: the ceiling, and the cost of fio alone."""

    name = "local"
    title = "backing file system"
    writes = True
    states = ("warm",)

    def mount(self):
        pass

    def unmount(self):
        pass

    def __init__(self, bed):
        super().__init__(bed)
        self.mountpoint = bed.data.folder


class passthrough(system):
    """libfuse's example, compiled as shipped; cache=always so that its warm reads stay in the kernel."""

    name = "passthrough"
    title = "libfuse passthrough_ll"
    writes = True
    source = None
    options = "cache=always"

    def start(self):
        folder = self.bed.folder / self.name
        folder.mkdir(exist_ok=True)
        for file in (EXAMPLE, str(pathlib.Path(EXAMPLE).with_name("passthrough_helpers.h"))):
            self._unpack(file, folder)
        need("pkg-config", "pkg-config")
        flags = self.processes.run(["pkg-config", "--cflags", "--libs", "fuse3"]).split()
        self.program_ = folder / "passthrough"
        self.processes.run(["cc", "-O2", "-w", self.source or folder / "passthrough_ll.c",
                            f"-I{folder}", "-o", self.program_, *flags])

    def _unpack(self, file, folder):
        target = folder / pathlib.Path(file).name
        if pathlib.Path(file).exists():
            shutil.copyfile(file, target)
        elif pathlib.Path(file + ".gz").exists():
            target.write_bytes(gzip.open(file + ".gz").read())
        else:
            raise unusable(f"{file} is missing: apt-get install --reinstall libfuse3-dev, and let "
                           "dpkg keep /usr/share/doc")

    def mount(self):
        self.mount_by([self.program_, "-f", "-o", f"{self.options},source={self.bed.data.folder}",
                       self.mountpoint])


class passthrough_splice(passthrough):
    name = "passthrough-splice"
    title = "passthrough_ll, spliced"
    source = HERE / "passthrough_splice.c"
    options = "cache=always,clone_fd"


class sshfs(system):
    """sshfs without ssh: its SFTP stream goes over loopback TCP to a local sftp-server."""

    name = "sshfs"
    title = "sshfs, directport"
    writes = True

    def start(self):
        need("sshfs", "sshfs")
        self.server_ = next((path for path in SFTP_SERVERS if pathlib.Path(path).exists()), None)
        if not self.server_:
            raise unusable("sftp-server is not installed: apt-get install openssh-sftp-server")
        self.listener_ = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener_.accept()
            except OSError:
                return
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.processes.start([self.server_], stdin=connection, stdout=connection)

    def mount(self):
        port = self.listener_.getsockname()[1]
        self.mount_by(["sshfs", "-f", "-o", f"directport={port},kernel_cache",
                       f"127.0.0.1:{self.bed.data.folder}", self.mountpoint])

    def stop(self):
        super().stop()
        if hasattr(self, "listener_"):
            self.listener_.close()

# SPDX-License-Identifier: MIT
"""Gfarm with a file server that is really remote.

gfmd and gfsd live in their own network namespace, joined to the reader's by a veth pair: a client that
shares gfsd's address would read the spool without TCP. gfmd keeps its metadata in memory, without a
database. Everything runs as one unprivileged user that exists only in this mount namespace: a copy of
/etc/passwd with one more line is bound over the real one, so its key lands in a folder of this run.
"""

import os
import pathlib
import shutil
import stat
import subprocess

from rivals import need, system
from sandbox import unusable, wait_for

USER, UID = "coopbench", 61234
CLIENT_ADDRESS, SERVER_ADDRESS = "10.254.77.1", "10.254.77.2"
METADATA_PORT, DATA_PORT = 15601, 15600
# gfsd makes it for clients of its own host, and no option moves it.
SOCKET_FOLDER = f"/tmp/.gfarm-gfsd{SERVER_ADDRESS}-{DATA_PORT}"
VETH_MTU = 65535  # as large as loopback's, which the other systems use


class gfarm_service:
    """The metadata server, the file server and the data; mounts with different options share them."""

    def __init__(self, bed, processes):
        self.base_ = bed.folder / "gfarm"
        self.data_ = bed.data
        self.processes_ = processes
        self.namespace_ = None

    def as_user(self):
        return ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "env", "-i",
                f"HOME={self.base_}", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"USER={USER}",
                f"LOGNAME={USER}", f"GFARM_CONFIG_FILE={self.base_}/etc/gfarm2.conf"]

    def _on_server(self):
        return ["nsenter", f"--net=/proc/{self.namespace_.pid}/ns/net"]

    def start(self):
        for program, package in (("gfmd", "gfmd"), ("gfsd", "gfsd"), ("gfkey", "gfarm-client"),
                                 ("gfarm2fs", "gfarm2fs"), ("ip", "iproute2")):
            need(program, package)
        for name in ("etc", "var", "spool", "dev"):
            (self.base_ / name).mkdir(parents=True)
        if self.processes_.run_any([*self.as_user(), "test", "-x", self.base_]).returncode:
            raise unusable(f"Gfarm does not run as root, and others cannot enter {self.base_}: --dir names another "
                           "place")
        self._open_fuse()
        self._add_user()
        self._write_configuration()
        for folder, _, files in os.walk(self.base_):
            for path in [folder, *(os.path.join(folder, file) for file in files)]:
                os.chown(path, UID, UID)
        self._join_networks()
        self._start_servers()

    def _may_open_fuse(self):
        return self.processes_.run_any([*self.as_user(), "sh", "-c", ": <>/dev/fuse"])

    def _open_fuse(self):
        """gfarm2fs opens /dev/fuse as its user, which mode 0600 keeps out. Then this binds another
        device node over it, in this mount namespace only."""
        if self._may_open_fuse().returncode == 0:
            return
        try:
            device = os.stat("/dev/fuse")
            subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=0755,size=64k", "dev", self.base_ / "dev"],
                           check=True, capture_output=True, text=True)
            node = self.base_ / "dev/fuse"
            os.mknod(node, stat.S_IFCHR, device.st_rdev)
            node.chmod(0o666)
            subprocess.run(["mount", "--bind", node, "/dev/fuse"], check=True, capture_output=True, text=True)
        except FileNotFoundError:
            raise unusable("there is no /dev/fuse: modprobe fuse") from None
        except (OSError, subprocess.CalledProcessError) as why:
            raise unusable(f"/dev/fuse has mode {stat.S_IMODE(device.st_mode):04o}, so gfarm2fs, which does not run "
                           f"as root, cannot open it, and a device node for it cannot be made ({why}): "
                           "chmod 666 /dev/fuse") from None
        done = self._may_open_fuse()
        if done.returncode:
            raise unusable(f"gfarm2fs, which does not run as root, cannot open /dev/fuse: {done.stderr.strip()}")

    def _add_user(self):
        for file, line in (("passwd", f"{USER}:x:{UID}:{UID}::{self.base_}:/bin/sh"),
                           ("group", f"{USER}:x:{UID}:")):
            copy = self.base_ / "etc" / file
            copy.write_text(pathlib.Path("/etc", file).read_text().rstrip("\n") + f"\n{line}\n")
            copy.chmod(0o644)
            subprocess.run(["mount", "--bind", copy, f"/etc/{file}"], check=True)

    def _write_configuration(self):
        etc = self.base_ / "etc"
        client = (f"metadb_server_host {SERVER_ADDRESS}\nmetadb_server_port {METADATA_PORT}\n"
                  "auth enable sharedsecret *\n")
        server = client + f"local_user_map {etc}/usermap\n"
        (etc / "usermap").write_text(f"_gfarmfs {USER}\n_gfarmmd {USER}\n")
        (etc / "gfarm2.conf").write_text(client)
        (etc / "gfsd.conf").write_text(server)
        (etc / "gfmd.conf").write_text(server + f"admin_user {USER}\n"
                                       "metadb_replication disable\n")

    def _join_networks(self):
        own = os.readlink("/proc/self/ns/net")
        self.namespace_ = self.processes_.start(["unshare", "--net", "sleep", "infinity"])
        wait_for("network namespace", lambda: os.readlink(f"/proc/{self.namespace_.pid}/ns/net") != own,
                 child=self.namespace_)
        ip, there = ["ip"], [*self._on_server(), "ip"]
        for argv in (
                [*ip, "link", "add", "name", "gf0", "mtu", VETH_MTU, "type", "veth", "peer", "name",
                 "gf1", "mtu", VETH_MTU, "netns", self.namespace_.pid],
                [*ip, "addr", "add", f"{CLIENT_ADDRESS}/30", "dev", "gf0"],
                [*ip, "link", "set", "gf0", "up"],
                [*there, "addr", "add", f"{SERVER_ADDRESS}/30", "dev", "gf1"],
                [*there, "link", "set", "gf1", "up"],
                [*there, "link", "set", "lo", "up"]):
            self.processes_.run(argv)

    def _start_servers(self):
        run, base = self.processes_.run, self.base_
        server = [*self._on_server(), *self.as_user()]
        run([*self.as_user(), "gfkey", "-f", "-p", 86400])
        run([*server, "gfmd", "-P", base / "var/gfmd.pid", "-F", base / "var/gfmd.log",
             "-f", base / "etc/gfmd.conf"])
        self._until("gfmd", "gfhost", "-c", "-a", "x86_64-linux", "-p", DATA_PORT, "-n", 2,
                    SERVER_ADDRESS)
        run([*server, "gfsd", "-P", base / "var/gfsd.pid", "-F", base / "var/gfsd.log", "-f",
             base / "etc/gfsd.conf", "-h", SERVER_ADDRESS, "-l", SERVER_ADDRESS, "-r", base / "spool"])
        self._until("gfsd", "gfhost", "-l", ready=lambda text: text[:1].isdigit())

    def _until(self, what, *argv, ready=lambda text: True):
        """Waits with short attempts, because a client retries a refused connection for half a minute."""
        def attempt():
            done = self.processes_.run_any([*self.as_user(), "timeout", "5", *argv])
            return done.returncode == 0 and ready(done.stdout)

        wait_for(f"gfarm: {what} (log in {self.base_}/var)", attempt, seconds=120)

    def fill(self, mountpoint):
        """Copies the corpus in; it stays in gfsd's page cache."""
        shutil.copytree(self.data_.folder, self.base_ / "copy")
        for folder, _, files in os.walk(self.base_ / "copy"):
            os.chmod(folder, 0o755)
            for file in files:
                os.chmod(os.path.join(folder, file), 0o644)
        self.processes_.run([*self.as_user(), "cp", "-r", f"{self.base_}/copy/.", f"{mountpoint}/"])
        shutil.rmtree(self.base_ / "copy")


class gfarm(system):
    name = "gfarm"
    title = "gfarm2fs, remote gfsd"
    options = ("-o", "auto_cache")
    service_ = None
    why_not_ = None  # the service starts only once, also if that fails

    def start(self):
        if gfarm.why_not_:
            raise unusable(gfarm.why_not_)
        if gfarm.service_:
            return
        service = gfarm_service(self.bed, self.processes)
        try:
            service.start()
            self._mount(service)
            service.fill(self.mountpoint)
            self.unmount()
        except (unusable, RuntimeError, OSError, subprocess.SubprocessError) as why:
            gfarm.why_not_ = f"Gfarm did not start: {why}"
            raise
        gfarm.service_ = service

    def mount(self):
        self._mount(gfarm.service_)

    def _mount(self, service):
        os.chown(self.mountpoint, UID, UID)
        self.mount_by([*service.as_user(), "gfarm2fs", "-f", *self.options, self.mountpoint])

    def reader_prefix(self):
        return gfarm.service_.as_user()


class gfarm_unbuffered(gfarm):
    """Gfarm's own remedy for random reads: it bypasses the client library's buffer."""

    name = "gfarm-unbuffered"
    title = "gfarm2fs -o unbuffered"
    account = "gfarm"  # which has the servers
    options = ("-o", "auto_cache,unbuffered")
    states = ("storage",)

    def takes(self, case):
        return case.random

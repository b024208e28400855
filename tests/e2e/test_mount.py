# SPDX-License-Identifier: MIT
"""Mounting: options, going to the background, keys, the control directory, the end."""
import errno
import os
import signal
import stat
import subprocess

import pytest

from cluster import DEADLINE, Process, address, is_mounted, program, state_of, unmount, wait_for


def attempt(cluster, options, source=None, path=None):
    """Runs coopfs-fuse as mount(8) would; returns its exit status and its messages."""
    path = path or cluster.file("attempt")
    os.makedirs(path, exist_ok=True)
    cluster.mounts.append(path)
    argv = [program("coopfs-fuse"), source or cluster.source(), path]
    if options:
        argv += ["-o", options]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stderr


def pid_of(path):
    with open(path + "/.coopfs/info") as f:
        return int(dict(line.split(" ", 1) for line in f)["pid"])


def gone(pid):
    return state_of(pid) in "ZX"


@pytest.mark.parametrize("options, named, allowed", [
    ("nonsense", "nonsense", "readahead="),
    ("readahead=many", "readahead", "0 to 65536"),
    ("readahead", "readahead", "readahead="),
    ("ra_async=2", "ra_async", "0 or 1"),
    ("commit_on_close=no", "commit_on_close", "0 or 1"),
    ("cache_size=1K", "cache_size", "4194304"),
    ("cache_size=99999999999999999999G", "cache_size", "number"),
    ("ib,ib_mtu=1000", "ib_mtu", "1024"),
    ("ib,ib_num_srpc=0", "ib_num_srpc", "1 to 1024"),
    ("ib,addr=localhost", "addr", "numeric"),
    ("ib,serve_mbps=34360", "serve_mbps", "34359"),
    ("ib_qkey=0x11", "ib_qkey", "'ib'"),
    ("peer_timeout_ms=9", "peer_timeout_ms", "'ib'"),
    ("ib,ib_port=1", "ib_port", "'ib_devname'"),
    ("ib,ib_devname=x,addr=127.0.0.1", "addr", "ib_devname"),
    ("ro,rw", "ro", "rw"),
    ("ra_async=1,ra_async=0", "ra_async", "twice"),
    ("ib=1", "ib", "no value"),
])
def test_a_bad_option_is_named_with_what_is_allowed(cluster, options, named, allowed):
    cluster.start_daemon()
    status, text = attempt(cluster, options)
    assert status == 1
    assert f"'{named}'" in text and allowed in text, text
    assert not is_mounted(cluster.file("attempt"))


@pytest.mark.parametrize("source, why", [
    ("nowhere", "':/'"), ("host:99999:/x", "99999"), ("host:x:/x", "'x'"), (":/x", "empty"),
    ("[::1:/x", "']'"), ("::1:/x", "brackets"), ("[nonsense]:/x", "IPv6"),
])
def test_a_bad_source_is_explained(cluster, source, why):
    status, text = attempt(cluster, "", source=source)
    assert status == 1 and why in text, text


def test_an_unknown_export_fails_in_the_foreground_of_the_caller(cluster):
    cluster.start_daemon()
    status, text = attempt(cluster, "", source=cluster.source("nothing"))
    assert status not in (0, 1) and "nothing" in text, text


def test_no_daemon_there(cluster):
    status, text = attempt(cluster, "", source=f"{cluster.server}:1:/data")
    assert status not in (0, 1) and text.strip(), text


def test_an_address_of_another_machine_fails_the_mount(cluster):
    key = cluster.make_key()
    cluster.start_daemon("--key", key)
    status, text = attempt(cluster, f"key={key},ib,addr=192.0.2.1")
    assert status not in (0, 1) and "192.0.2.1" in text and "ib" in text and "loopback" not in text, text


def test_without_a_key_a_node_keeps_to_loopback(cluster):
    cluster.start_daemon()
    for address in ("0.0.0.0", "128.0.0.1", "192.0.2.1", "2001:db8::1"):
        status, text = attempt(cluster, f"ib,addr={address}")
        assert status not in (0, 1) and address in text and "loopback" in text and "key=" in text, text


def test_a_device_that_is_not_there_fails_the_mount(cluster):
    cluster.start_daemon()
    status, text = attempt(cluster, "ib,ib_devname=nosuchdevice0")
    assert status not in (0, 1) and "nosuchdevice0" in text, text


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "umount"])
def test_background_and_end(cluster, how):
    cluster.start_daemon()
    with open(cluster.file("export/f"), "w") as f:
        f.write("hello")
    path = cluster.file("attempt")
    status, text = attempt(cluster, "cache_size=8M")
    assert status == 0 and text == "", text
    with open(path + "/f") as f:
        assert f.read() == "hello"
    pid = pid_of(path)
    if how == "umount":
        subprocess.run(["umount", path], check=True)
    else:
        os.kill(pid, getattr(signal, how))
    wait_for(lambda: gone(pid), "the process has ended")
    assert not is_mounted(path)


def test_mount_table(cluster):
    node = cluster.node("ro", peers=False)
    with open("/proc/self/mountinfo") as f:
        line = [l for l in f if l.split()[4] == node.path][0]
    fstype, source = line.split(" - ")[1].split()[:2]
    assert (fstype, source) == ("fuse.coopfs", cluster.source())
    with pytest.raises(OSError) as e:
        open(node.path + "/new", "w")
    assert e.value.errno == 30  # EROFS


def mount_flags(path):
    with open("/proc/self/mountinfo") as f:
        return [l for l in f if l.split()[4] == path][0].split()[5].split(",")


def test_flags_are_as_those_of_any_file_system(cluster):
    plain, strict = cluster.node(peers=False), cluster.node("nosuid,nodev,noexec,relatime", peers=False)
    assert not {"nosuid", "nodev", "noexec"} & set(mount_flags(plain.path))
    assert {"nosuid", "nodev", "noexec", "relatime"} <= set(mount_flags(strict.path))


# What mount(8) knows for every file system.
VFS_WORDS = ("async,atime,noatime,diratime,nodiratime,relatime,norelatime,strictatime,nostrictatime,lazytime,"
             "nolazytime,iversion,noiversion,mand,nomand,silent,loud,dev,exec,suid,rw,defaults")


def test_options_of_every_file_system_are_taken(cluster):
    node = cluster.node(VFS_WORDS, peers=False)
    assert "nosymfollow" not in mount_flags(node.path)
    strict = cluster.node("nosymfollow,nodiratime", peers=False)
    assert "nosymfollow" in mount_flags(strict.path)
    os.symlink("target", strict.path + "/link")
    with open(strict.path + "/target", "w") as f:
        f.write("x")
    assert os.readlink(strict.path + "/link") == "target"
    with pytest.raises(OSError) as e:
        open(strict.path + "/link")
    assert e.value.errno == errno.ELOOP
    assert open(node.path + "/link").read() == "x"
    assert "nosymfollow=yes" in strict.control("options")


# mount(8) looks for helpers in /sbin only, so these tests run with this test's own copy of it.
HELPERS = r'''
set -eu
up=$(mktemp -d); trap 'umount -l "$up" 2>/dev/null; rmdir "$up"' EXIT
mount -t tmpfs none "$up"; mkdir "$up/upper" "$up/work"
mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$up/upper,workdir=$up/work" /usr/sbin
for h in mount.coopfs mount.fuse.coopfs umount.fuse.coopfs; do ln -sf "$COOPFS" /usr/sbin/$h; done
PATH=$(dirname "$COOPFS"):$PATH
flags() { awk -v d="$DIR" '$5 == d { print $6 }' /proc/self/mountinfo; }
has() { case ",$(flags)," in *",$1,"*) ;; *) echo "no $1 in $(flags)" >&2; exit 1;; esac; }
'''


def with_helpers(cluster, script):
    if os.geteuid() != 0:
        pytest.skip("mount(8) wants root")
    path = cluster.file("helped")
    os.makedirs(path, exist_ok=True)
    env = dict(os.environ, COOPFS=program("coopfs"), DIR=path, SOURCE=cluster.source())
    done = subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", HELPERS + script],
                          env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=3 * DEADLINE)
    if "overlay" in done.stderr and "unknown filesystem" in done.stderr:
        pytest.skip("this kernel has no overlay file system")
    assert done.returncode == 0, done.stdout + done.stderr


def test_remount_and_bind(cluster):
    cluster.start_daemon()
    with_helpers(cluster, r'''
mount -t fuse.coopfs "$SOURCE" "$DIR"
mount -o remount,ro "$DIR"; has ro
! touch "$DIR/f" 2>/dev/null
mount -o remount,rw "$DIR"; has rw
touch "$DIR/f"
mount -o remount,noexec,nosuid "$DIR"; has noexec; has nosuid
mount -o remount,exec "$DIR"; case "$(flags)" in *noexec*) exit 1;; esac
mkdir "$DIR/other"; mount --bind "$DIR/other" "$DIR/other"; mount -o remount,bind,ro "$DIR/other"
! touch "$DIR/other/f" 2>/dev/null
umount "$DIR/other"
! mount -o remount,cache_size=8M "$DIR" 2>"$DIR/f"
grep -q cache_size=8M "$DIR/f"
umount "$DIR"
''')


def test_umount_waits_for_the_process_and_a_mount_for_the_address(cluster):
    cluster.start_daemon()
    with_helpers(cluster, rf'''
for i in 1 2 3; do
	mount -t fuse.coopfs -o ib,addr={address(1)} "$SOURCE" "$DIR"
	pid=$(awk '$1 == "pid" {{ print $2 }}' "$DIR/.coopfs/info")
	umount.fuse.coopfs "$DIR" -r -n -t fuse.coopfs
	case $(cut -d' ' -f3 /proc/$pid/stat 2>/dev/null) in ''|Z) ;; *) echo "$pid runs" >&2; exit 1;; esac
done
for i in 1 2 3; do
	mount -t fuse.coopfs -o ib,addr={address(1)} "$SOURCE" "$DIR"
	umount "$DIR"
done
''')
    # A process that is about to exit still has the address.
    going = cluster.node(number=1)
    os.kill(going.process.pid, signal.SIGSTOP)
    path = cluster.file("next")
    os.makedirs(path)
    cluster.mounts.append(path)
    mounting = Process([program("coopfs-fuse"), cluster.source(), path, "-f", "-o", f"ib,addr={going.address}"],
                       cluster.file("next.log"))
    wait_for(lambda: "waiting for it" in mounting.log(), "it waits")
    going.process.kill()
    unmount(going.path)
    wait_for(lambda: is_mounted(path), "it has the address")
    mounting.stop()


def test_readahead_reaches_the_kernel(cluster):
    node = cluster.node("readahead=512", peers=False)
    dev = os.stat(node.path).st_dev
    with open(f"/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb") as f:
        assert int(f.read()) == 2048


def test_control_directory(cluster):
    os.mkdir(cluster.file("export/.coopfs"))  # a real one is hidden
    node = cluster.node("cache_size=8M", "page_crc=1")
    where = node.path + "/.coopfs"
    assert os.listdir(node.path) == []
    assert sorted(os.listdir(where)) == ["ibaddr", "info", "options", "peers", "requests", "stats"]
    st = os.stat(where + "/stats")
    assert stat.S_IMODE(st.st_mode) == 0o600 and st.st_uid == os.geteuid()
    info = dict(line.split(" ", 1) for line in node.control("info").splitlines())
    assert info["pid"] == str(node.process.pid)
    assert info["export"] == "/data" and info["mountpoint"] == node.path
    assert info["server"] == f"{cluster.server}:{cluster.daemon.port} connected"
    assert node.address in info["endpoint"] and int(info["node"]) > 0
    options = dict(line.split("=", 1) for line in node.control("options").splitlines())
    assert options["cache_size"] == str(8 << 20) and options["page_crc"] == "1"
    assert options["addr"] == node.address
    assert node.control("requests") == ""
    for refused in (lambda: os.unlink(where + "/stats"), lambda: open(where + "/new", "w"),
                    lambda: os.rmdir(where), lambda: os.rename(where, node.path + "/x")):
        with pytest.raises(OSError) as e:
            refused()
        assert e.value.errno in (1, 13)
    with pytest.raises(PermissionError):
        open(where + "/peers", "w")


def test_one_open_sees_one_text(cluster):
    with open(cluster.file("export/f"), "wb") as f:
        f.write(os.urandom(100000))
    node = cluster.node(peers=False)
    with open(node.path + "/.coopfs/stats", "rb", buffering=0) as stats:
        first = stats.read(1 << 16)
        with open(node.path + "/f", "rb") as f:
            f.read()
        stats.seek(0)
        assert stats.read(1 << 16) == first


def test_key(cluster):
    key = cluster.make_key()
    cluster.start_daemon("--key", key)
    with open(cluster.file("export/f"), "w") as f:
        f.write("secret")
    status, text = attempt(cluster, f"key={cluster.make_key('wrong')}")
    assert status not in (0, 1) and "key" in text, text
    status, text = attempt(cluster, "")
    assert status not in (0, 1) and "key" in text, text
    open_key = cluster.make_key("open")
    os.chmod(open_key, 0o644)
    status, text = attempt(cluster, f"key={open_key}")
    assert status not in (0, 1) and open_key in text, text
    if os.geteuid() == 0:
        others = cluster.make_key("others")
        os.chown(others, 65534, 65534)
        status, text = attempt(cluster, f"key={others}")
        assert status not in (0, 1) and "belongs to another user" in text, text
    status, text = attempt(cluster, f"key={cluster.make_key('short', b'short')}")
    assert status not in (0, 1) and "32" in text, text
    with open(cluster.node(f"key={key}").path + "/f") as f:
        assert f.read() == "secret"


def test_key_asked_of_a_daemon_without_one(cluster):
    cluster.start_daemon()
    status, text = attempt(cluster, f"key={cluster.make_key()}")
    assert status not in (0, 1) and "key" in text, text


def test_ends_while_the_daemon_is_away(cluster):
    node = cluster.node(peers=False)
    with open(cluster.file("export/f"), "wb") as f:
        f.write(b"x")
    cluster.daemon.process.kill()
    reader = Process(["cat", node.path + "/f"], cluster.file("cat.log"))
    wait_for(lambda: node.process.running() and reader.running(), "a reader waits")
    node.stop()
    reader.popen.wait(DEADLINE)
    assert reader.popen.returncode != 0

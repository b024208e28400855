# SPDX-License-Identifier: MIT
"""Limits of names, links and space, and who may set times, as on a local file system."""
import errno
import os
import subprocess

import pytest

from cluster import drop_kernel_pages, unmount, wait_for
from test_exports import error_of
from test_permissions import ALICE, BOB, as_user, read, write

NAME_MAX, PATH_MAX = 255, 4096
FULL = 1 << 20  # bytes of the small file system
BLOCK = 1 << 16


@pytest.fixture
def mounted(cluster):
    os.chmod(cluster.export, 0o777)
    return cluster.export, cluster.node("allow_other", peers=False).path


def test_the_longest_names(mounted):
    export, path = mounted
    longest, too_long = "n" * NAME_MAX, "n" * (NAME_MAX + 1)
    write(f"{path}/{longest}", b"text")
    assert read(f"{export}/{longest}") == b"text" and read(f"{path}/{longest}") == b"text"
    os.rename(f"{path}/{longest}", f"{path}/{'m' * NAME_MAX}")
    assert os.listdir(path) == ["m" * NAME_MAX]
    old = f"{path}/{'m' * NAME_MAX}"
    for action, args in ((write, (f"{path}/{too_long}",)), (os.stat, (f"{path}/{too_long}",)),
                         (os.mkdir, (f"{path}/{too_long}",)), (os.unlink, (f"{path}/{too_long}",)),
                         (os.mkfifo, (f"{path}/{too_long}",)),
                         (os.rename, (old, f"{path}/{too_long}")),
                         (os.link, (old, f"{path}/{too_long}")),
                         (os.symlink, ("to", f"{path}/{too_long}"))):
        assert error_of(action, *args) == errno.ENAMETOOLONG, action
    assert os.listdir(export) == ["m" * NAME_MAX]


def test_the_longest_paths(mounted):
    export, path = mounted
    root = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        names = ["d" * 203] * 20  # 20 * 204 bytes
        at = root
        for name in names:
            os.mkdir(name, dir_fd=at)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=at)
            if at != root:
                os.close(at)
            at = below
        os.close(at)
        prefix = "/".join(names) + "/"
        longest = prefix + "f" * (PATH_MAX - 1 - len(prefix))
        os.close(os.open(longest, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=root))
        assert os.stat(longest, dir_fd=root).st_size == 0
        assert error_of(lambda: os.stat(longest + "f", dir_fd=root)) == errno.ENAMETOOLONG
        target = "t" * (PATH_MAX - 1)
        os.symlink(target, "link", dir_fd=root)
        assert os.readlink("link", dir_fd=root) == target
        assert os.readlink(f"{export}/link") == target
    finally:
        os.close(root)


def test_too_many_links(mounted):
    export, path = mounted
    most = 1 << 17
    write(f"{export}/f", b"text")
    os.mkdir(f"{export}/links")
    for i in range(most):
        try:
            os.link(f"{export}/f", f"{export}/links/{i}")
        except OSError as e:
            assert e.errno == errno.EMLINK
            break
    else:
        pytest.skip("the file system of the export takes that many links")
    assert error_of(os.link, f"{path}/f", f"{path}/another") == errno.EMLINK
    assert not os.path.exists(f"{path}/another")
    os.unlink(f"{path}/links/0")
    os.link(f"{path}/f", f"{path}/another")


@pytest.mark.parametrize("who", [ALICE, BOB])
@pytest.mark.parametrize("mode", [0o644, 0o646])
def test_who_sets_times(mounted, who, mode):
    """To now: anyone who may write. To another time: the owner only. Omitting both: any user."""
    export, path = mounted
    touch = ["/usr/bin/touch", "-c"]
    for place in (export, path):
        write(f"{place}/f", b"")
        os.chown(f"{place}/f", ALICE, ALICE)
        os.chmod(f"{place}/f", mode)
        os.utime(f"{place}/f", (1, 2))
        may_now, owner = who == ALICE or mode == 0o646, who == ALICE

        def run(*options, at=place):
            return as_user(who, who, [], lambda: subprocess.run(
                [*touch, *options, f"{at}/f"], stderr=subprocess.DEVNULL, check=False).returncode)

        assert run("-d", "@9") == ("0" if owner else "1")
        assert run("-m", "-d", "@9") == ("0" if owner else "1")  # access time: UTIME_OMIT
        st = os.stat(f"{place}/f")
        assert (st.st_atime, st.st_mtime) == ((9, 9) if owner else (1, 2))
        assert run() == ("0" if may_now else "1")
        # Only one of the two becomes now: that takes more than write permission.
        os.utime(f"{place}/f", (1, 2))
        assert run("-a") == ("0" if owner else "1")
        os.unlink(f"{place}/f")


@pytest.fixture
def full(cluster):
    """A mount of an export on a file system of 1 MiB."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={FULL}", "small", cluster.export],
                   check=True)
    try:
        yield cluster.export, cluster.node(peers=False).path
    finally:
        unmount(cluster.export)


def fill(path):
    """Writes blocks until there is no space; returns those written, and the error."""
    done = 0
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o644)
    try:
        while done < 4 * FULL:
            try:
                done += os.write(fd, bytes([1 + done // BLOCK % 250]) * BLOCK)
            except OSError as e:
                return done, e.errno
        os.fsync(fd)
        return done, 0
    except OSError as e:
        return done, e.errno
    finally:
        os.close(fd)


def test_no_space_is_told_and_nothing_torn(full):
    export, path = full
    write(f"{path}/before", b"b" * 8192)
    done, err = fill(f"{path}/big")
    assert err == errno.ENOSPC and 0 < done <= FULL
    drop_kernel_pages(f"{path}/big")
    assert read(f"{path}/big") == read(f"{export}/big")
    assert read(f"{path}/big")[:done] == b"".join(
        bytes([1 + i % 250]) * BLOCK for i in range(done // BLOCK + 1))[:done]
    assert read(f"{path}/before") == b"b" * 8192
    # Existing bytes may be overwritten, and freed space is used again.
    with open(f"{path}/before", "r+b") as f:
        f.write(b"c" * 4096)
        f.flush()
        os.fsync(f.fileno())
    assert read(f"{export}/before") == b"c" * 4096 + b"b" * 4096
    os.unlink(f"{path}/big")
    # The kernel reports the close after close() has returned; until then the file is in use.
    wait_for(lambda: os.statvfs(export).f_bavail * os.statvfs(export).f_frsize >= 2 * BLOCK, "the space is free again")
    write(f"{path}/after", b"a" * BLOCK)
    assert read(f"{export}/after") == b"a" * BLOCK


def test_no_space_for_allocation(full):
    export, path = full
    fd = os.open(f"{path}/f", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        os.write(fd, b"text")
        assert error_of(os.posix_fallocate, fd, 0, 2 * FULL) == errno.ENOSPC
        assert os.fstat(fd).st_size == 4 and os.pread(fd, 9, 0) == b"text"
    finally:
        os.close(fd)
    assert os.stat(f"{export}/f").st_size == 4


def test_a_limit_of_the_daemons_files_is_its_writers_error(cluster):
    a, b = cluster.node(peers=False), cluster.node(peers=False)
    pid = str(cluster.daemon.process.popen.pid)
    subprocess.run(["prlimit", "--pid", pid, f"--fsize={FULL}"], check=True)
    assert error_of(write, f"{a.path}/large", bytes(3 * FULL)) == errno.EFBIG
    assert error_of(os.truncate, f"{a.path}/large", 3 * FULL) == errno.EFBIG
    write(f"{b.path}/small", b"text")
    assert read(f"{cluster.export}/small") == b"text"
    assert cluster.daemon.process.running()


def test_small_limits_of_the_environment_are_raised(cluster):
    node = cluster.node(peers=False)
    node.stop()
    node.argv = ["prlimit", f"--fsize={BLOCK}:", f"--memlock={BLOCK}:", "--nofile=64:", *node.argv]
    node.start()
    write(f"{node.path}/large", bytes(FULL))
    assert read(f"{cluster.export}/large") == bytes(FULL)

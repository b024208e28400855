# SPDX-License-Identifier: MIT
"""Other users may do through the mount what they may do locally, no more and no less."""
import ctypes
import os
import shutil

import pytest

ALICE, BOB, TEAM = 4101, 4102, 4200
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


def as_user(uid, gid, groups, action):
    """Calls action() in a process of that identity; returns its value or errno as text."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups(groups)
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
            try:
                text = repr(action())
            except OSError as e:
                text = f"errno {e.errno}"
            os.write(writes, text.encode())
        finally:
            os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as f:
        text = f.read()
    os.waitpid(pid, 0)
    return text


def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(path, data=b"new"):
    with open(path, "wb") as f:
        f.write(data)


@pytest.fixture
def shared(cluster):
    """A tree of several owners, mounted for all users."""
    x = cluster.export
    os.chmod(x, 0o755)
    for name, uid, gid, mode in (("alice-only", ALICE, ALICE, 0o600), ("team", ALICE, TEAM, 0o640),
                                 ("everybody", ALICE, ALICE, 0o644), ("read-only", BOB, BOB, 0o444)):
        write(f"{x}/{name}", name.encode())
        os.chown(f"{x}/{name}", uid, gid)
        os.chmod(f"{x}/{name}", mode)
    for name, uid, mode in (("closed", ALICE, 0o700), ("open", 0, 0o1777)):
        os.mkdir(f"{x}/{name}")
        write(f"{x}/{name}/inside", b"inside")
        os.chown(f"{x}/{name}", uid, uid)
        os.chmod(f"{x}/{name}", mode)
    return x, cluster.node("allow_other", peers=False).path


CASES = [
    ("alice-only", read), ("team", read), ("everybody", read), ("everybody", write),
    ("read-only", write), ("closed/inside", read), ("closed/new", write),
    ("closed", os.listdir), ("open/inside", os.unlink), ("alice-only", lambda p: os.chmod(p, 0o666)),
    ("team", lambda p: os.truncate(p, 1)), ("everybody", lambda p: os.utime(p)),
    ("read-only", lambda p: os.access(p, os.W_OK)), ("alice-only", lambda p: os.chown(p, BOB, BOB)),
    (".", lambda p: os.mkdir(p + "/d")), ("team", lambda p: os.access(p, os.R_OK)),
]


@pytest.mark.parametrize("uid, groups", [(ALICE, []), (BOB, []), (BOB, [TEAM]), (ALICE, [TEAM])])
def test_as_locally(cluster, shared, uid, groups):
    export, mount = shared
    for name, action in CASES:
        # Through the mount first: a refused change leaves the export as it was.
        remote = as_user(uid, uid, groups, lambda: action(f"{mount}/{name}"))
        before = as_user(uid, uid, groups, lambda: action(f"{export}/{name}"))
        if action is os.unlink and remote != before:
            assert remote == "None" and before == "errno 2"
        else:
            assert remote == before, (name, uid, groups)


def test_of_many_groups_the_first_256_count(cluster, shared):
    export, mount = shared
    groups = list(range(5000, 5300))  # as the kernel sorts them
    for group in (5000, 5255, 5256, 5299):
        write(f"{export}/{group}", b"of a group")
        os.chown(f"{export}/{group}", ALICE, group)
        os.chmod(f"{export}/{group}", 0o640)
    for group in groups[0], groups[255]:
        assert as_user(BOB, BOB, groups, lambda: read(f"{mount}/{group}")) == "b'of a group'", group
    for group in groups[256], groups[299]:
        assert as_user(BOB, BOB, groups, lambda: read(f"{mount}/{group}")) == "errno 13", group


def test_a_program_that_cannot_be_read_runs(cluster, shared):
    export, mount = shared
    for name, mode in (("program", 0o711), ("data", 0o644)):
        shutil.copy("/bin/true", f"{export}/{name}")
        os.chmod(f"{export}/{name}", mode)

    def run(name):
        return lambda: os.spawnv(os.P_WAIT, f"{mount}/{name}", [name])
    for _ in range(2):  # cached attributes make no difference
        assert as_user(BOB, BOB, [], run("program")) == "0"
        assert as_user(BOB, BOB, [], lambda: read(f"{mount}/program")) == "errno 13"
        assert as_user(BOB, BOB, [], run("data")) == "127"
    assert read(f"{mount}/program") == read("/bin/true")


def test_new_files_belong_to_their_maker(cluster, shared):
    export, mount = shared
    assert as_user(BOB, BOB, [], lambda: write(mount + "/open/mine")) == "None"
    st = os.stat(export + "/open/mine")
    assert (st.st_uid, st.st_gid) == (BOB, BOB)


def test_a_name_that_one_user_found_opens_nothing_to_another(cluster, shared):
    _, mount = shared
    assert as_user(ALICE, ALICE, [], lambda: read(mount + "/closed/inside")) == "b'inside'"
    assert as_user(BOB, BOB, [], lambda: read(mount + "/closed/inside")) == "errno 13"


def test_control_files_are_the_owner_of_the_mounts(cluster, shared):
    _, mount = shared
    assert as_user(BOB, BOB, [], lambda: read(mount + "/.coopfs/stats")) == "errno 13"
    assert as_user(BOB, BOB, [], lambda: write(mount + "/.coopfs/stats")) == "errno 13"


def test_without_allow_other_the_mount_is_the_owners(cluster):
    node = cluster.node(peers=False)
    assert as_user(BOB, BOB, [], lambda: os.listdir(node.path)) == "errno 13"


def test_a_file_made_read_only_can_still_be_filled_by_its_maker(cluster, shared):
    _, mount = shared

    def fill():
        fd = os.open(mount + "/open/ro", os.O_CREAT | os.O_RDWR, 0o444)
        os.write(fd, b"contents")
        os.ftruncate(fd, 4)
        os.close(fd)
        return read(mount + "/open/ro")
    assert as_user(ALICE, ALICE, [], fill) == "b'cont'"


def fallocates(mode):
    def fallocate(f, _):
        if LIBC.fallocate(f.fileno(), mode, 0, 4096):
            raise OSError(ctypes.get_errno(), "fallocate")
    return fallocate


ALLOCATE, ALLOCATE_BEHIND, PUNCH, ZERO = 0, 1, 3, 0x10 # modes of fallocate(2)
CHANGES = [lambda f, _: f.write(b"bob's"), lambda f, other: os.copy_file_range(other, f.fileno(), 4, 0),
           *map(fallocates, (ALLOCATE, ALLOCATE_BEHIND, PUNCH, ZERO))]


@pytest.mark.parametrize("change", CHANGES, ids=["write", "copy", "allocate", "behind", "punch", "zero"])
def test_a_descriptor_from_root_takes_set_id_bits_too(shared, change):
    """Storage changes a file as the user that opened it, but the user that makes the change counts."""
    export, mount = shared
    with open(f"{mount}/open/inside", "rb", buffering=0) as other:
        for path, bits in (("everybody", 0o4755), ("team", 0o2755)):
            for known in (True, False):
                os.chmod(f"{mount}/{path}", 0o755)
                with open(f"{mount}/{path}", "r+b", buffering=0) as f:
                    os.chmod(f"{mount if known else export}/{path}", bits)
                    assert "errno" not in as_user(BOB, BOB, [], lambda: change(f, other.fileno()))
                for at in (export, mount):
                    assert os.stat(f"{at}/{path}").st_mode & 0o7777 == 0o755, (at, path, known)


@pytest.mark.parametrize("change", CHANGES, ids=["write", "copy", "allocate", "behind", "punch", "zero"])
def test_set_id_bits_that_a_change_takes_are_not_shown_any_more(shared, change):
    export, mount = shared
    for bits in (0o6777, 0o2777, 0o4776):
        os.chmod(f"{mount}/everybody", bits)
        assert os.stat(f"{mount}/everybody").st_mode & 0o7777 == bits

        def changes():
            with open(f"{mount}/everybody", "r+b", buffering=0) as f, open(f"{mount}/open/inside", "rb") as other:
                change(f, other.fileno())
        assert as_user(BOB, BOB, [], changes) == "None"
        for at in (mount, export):
            assert os.stat(f"{at}/everybody").st_mode & 0o7777 == bits & 0o777, (at, oct(bits))


def test_a_change_of_owner_that_changes_none(shared):
    export, mount = shared
    for path in ("everybody", "open", "closed"):
        assert as_user(BOB, BOB, [], lambda: os.chown(f"{mount}/{path}", -1, -1)) == "None"
    os.chmod(f"{export}/everybody", 0o4555)
    os.stat(f"{mount}/everybody")
    as_user(ALICE, ALICE, [], lambda: os.chown(f"{mount}/everybody", -1, -1))
    assert read(f"{mount}/everybody") == b"everybody"


def test_owners_are_any_32_bits_but_all_ones(cluster):
    node = cluster.node("allow_other", peers=False)
    for number in (2**31 - 1, 2**31, 3_000_000_000, 2**32 - 2):
        for path, uid, gid in (("u", number, -1), ("g", -1, number), ("both", number, number)):
            write(f"{node.path}/{path}")
            before = os.stat(f"{cluster.export}/{path}")
            os.chown(f"{node.path}/{path}", uid, gid)
            want = (before.st_uid if uid < 0 else uid, before.st_gid if gid < 0 else gid)
            for at in (node.path, cluster.export):
                now = os.stat(f"{at}/{path}")
                assert (now.st_uid, now.st_gid) == want, (at, path, number)

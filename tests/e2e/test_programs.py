# SPDX-License-Identifier: MIT
"""Programs of every day on the mounts of two nodes: each node finds intact what the other
leaves."""
import compileall
import contextlib
import glob
import os
import pwd
import random
import shutil
import signal
import subprocess
import sys

import pytest

from cluster import LIBC, PR_SET_PDEATHSIG, wait_for

PATIENCE = 900  # seconds until a program counts as stuck; a slow disk keeps one that syncs files waiting


@pytest.fixture
def pair(cluster):
    return cluster.connected(2)


def needs(*programs):
    for name in programs:
        if not shutil.which(name):
            pytest.skip(f"needs {name}")


def end_with_us():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(*argv, **kw):
    kw.setdefault("preexec_fn", end_with_us)
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, start_new_session=True, **kw)


def outcome(process):
    """Returns the output; raises an error if the process fails or is stuck. Its children end with it."""
    try:
        text, _ = process.communicate(timeout=PATIENCE)
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    assert process.returncode == 0, f"{process.args}\n{text[-4000:]}"
    return text


def run(*argv, **kw):
    return outcome(start(*argv, **kw))


def tree(path, files=60):
    """Files of many sizes, a link of each kind, modes, times, an empty directory."""
    bytes_of = random.Random(7)
    os.makedirs(path + "/a/b/c")
    os.mkdir(path + "/empty")
    for i in range(files):
        name = f"{path}/{('a', 'a/b', 'a/b/c')[i % 3]}/f{i}"
        with open(name, "wb") as f:
            f.write(bytes_of.randbytes((0, 1, 100, 4096, 4097, 70000, 300000)[i % 7]))
        os.chmod(name, (0o644, 0o600, 0o755)[i % 3])
        os.utime(name, ns=(10**18 + i, 10**18 + i * 10**9))
    os.link(path + "/a/f0", path + "/a/b/linked")
    os.symlink("../a/f3", path + "/a/pointer")


# ---- git -----------------------------------------------------------------------------

GIT = ("git", "-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "gc.auto=0",
       "-c", "safe.directory=*", "-c", "init.defaultBranch=main", "-c", "gc.autoDetach=false")


def git(where, *words):
    return run(*GIT, "-C", where, *words, env={**os.environ, "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"})


def commit(where, n):
    for i in range(10):
        with open(f"{where}/file{i}", "a") as f:
            f.write(f"line {n} of {i}\n")
    git(where, "add", "-A")
    git(where, "commit", "-q", "-m", f"change {n}")


def test_git_repacks_on_one_node_while_the_other_clones(cluster, pair):
    needs("git")
    first, second = (n.path for n in pair)
    origin = cluster.file("origin")
    git(cluster.base, "init", "-q", origin)
    for n in range(3):
        commit(origin, n)
    git(cluster.base, "clone", "-q", origin, first + "/work")
    for n in range(3, 6):
        commit(first + "/work", n)
    repack = start(*GIT, "-C", first + "/work", "gc", "-q", "--prune=now")
    for n in range(2):
        git(cluster.base, "clone", "-q", "--no-local", second + "/work", f"{second}/clone{n}")
    outcome(repack)
    for path in (first, second):
        for name in ("work", "clone0", "clone1"):
            git(f"{path}/{name}", "fsck", "--full", "--strict")
            assert git(f"{path}/{name}", "log", "--format=%s").splitlines() == \
                [f"change {n}" for n in reversed(range(6))]
            assert git(f"{path}/{name}", "status", "--porcelain") == ""
    # The nodes take turns at one repository.
    for n in range(6, 12):
        commit((first, second)[n % 2] + "/work", n)
    for path in (first, second):
        git(path + "/work", "fsck", "--full", "--strict")
        assert len(git(path + "/work", "log", "--format=%h").split()) == 12
        # Attributes of the other node's files may be as old as the cache allows.
        wait_for(lambda: git(path + "/work", "status", "--porcelain") == "", "nothing is changed")


# ---- make ----------------------------------------------------------------------------

MAKEFILE = """\
objects := $(patsubst %.c,%.o,$(wildcard *.c))
program: $(objects)
\t$(CC) -o $@ $^
%.o: %.c all.h
\t$(CC) -O0 -c -o $@ $<
"""


def test_make_builds_what_the_other_node_runs_and_makes_again(pair):
    needs("make", "gcc")
    first, second = (n.path + "/project" for n in pair)
    os.mkdir(first)
    n = 50
    with open(first + "/all.h", "w") as f:
        f.writelines(f"int f{i}(void);\n" for i in range(n))
    for i in range(n):
        with open(f"{first}/f{i}.c", "w") as f:
            f.write(f'#include "all.h"\nint f{i}(void) {{ return {i}; }}\n')
    with open(first + "/main.c", "w") as f:
        f.write('#include <stdio.h>\n#include "all.h"\nint main(void) { printf("%d\\n", ' +
                " + ".join(f"f{i}()" for i in range(n)) + "); return 0; }\n")
    with open(first + "/Makefile", "w") as f:
        f.write(MAKEFILE)
    make = ("make", "-s", "-j2", "CC=gcc")
    run(*make, "-C", first)
    assert run(second + "/program") == "1225\n"
    run(*make, "-C", second, "-q")
    # make also compares times that the other node set.
    with open(second + "/f7.c", "w") as f:
        f.write('#include "all.h"\nint f7(void) { return 1007; }\n')
    wait_for(lambda: subprocess.run([*make, "-C", first, "-q"]).returncode == 1, "make sees the change")
    assert run("make", "-j2", "CC=gcc", "-C", first).count(" -c ") == 1
    assert run(first + "/program") == run(second + "/program") == "2225\n"


# ---- copies --------------------------------------------------------------------------

def test_rsync_there_and_back(cluster, pair):
    needs("rsync")
    first, second = (n.path for n in pair)
    source, back = cluster.file("source") + "/", cluster.file("back") + "/"
    tree(source)
    run("rsync", "-aH", source, first + "/copy/")
    run("rsync", "-aH", second + "/copy/", back)
    for x, y in ((source, second + "/copy/"), (first + "/copy/", source), (source, back)):
        assert run("rsync", "-aHn", "--checksum", "--delete", "--itemize-changes", x, y) == ""
    # rsync sends only what changed.
    with open(source + "a/f6", "r+b") as f:
        f.seek(150000)
        f.write(b"changed")
    os.unlink(source + "a/f9")
    # rsync compares whole seconds: all of the above may have happened within one.
    os.utime(source + "a", ns=(10**18, 10**18))
    said = run("rsync", "-aH", "--delete", "--no-whole-file", "--itemize-changes", source, second + "/copy/")
    assert sorted(line.split()[-1] for line in said.splitlines()) == ["a/", "a/f6", "a/f9"], said
    assert run("rsync", "-aHn", "--checksum", "--delete", "--itemize-changes", source, first + "/copy/") == ""


def test_tar_in_and_out(cluster, pair):
    needs("tar")
    first, second = (n.path for n in pair)
    source = cluster.file("source")
    tree(source)
    run("tar", "-C", source, "-cf", first + "/all.tar", ".")
    os.mkdir(second + "/out")
    run("tar", "-C", second + "/out", "-xpf", second + "/all.tar")
    run("tar", "-C", first + "/out", "--compare", "-f", first + "/all.tar")
    run("tar", "-C", first + "/out", "-cf", second + "/again.tar", ".")
    run("tar", "-C", source, "--compare", "-f", first + "/again.tar")


# ---- Python --------------------------------------------------------------------------

def test_python_imports_what_the_other_node_compiles(pair):
    n = 200
    first, second = (x.path + "/lib" for x in pair)
    os.makedirs(first + "/package")
    for i in range(n):
        with open(f"{first}/package/m{i}.py", "w") as f:
            f.write(f"value = {i}\n" + f"def f():\n    return {i}\n" * 20)
    with open(first + "/package/__init__.py", "w"):
        pass
    code = f"""
import importlib, sys
sys.path.insert(0, sys.argv[1])
print(sum(importlib.import_module(f"package.m{{i}}").f() for i in range({n})))
"""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    # All write the same .pyc files, each to a name of its own that it renames.
    each = [start(sys.executable, "-c", code, path, env=env) for path in (first, second, second)]
    assert [outcome(p) for p in each] == [f"{n * (n - 1) // 2}\n"] * 3
    for path in (first, second):
        def compiled():
            with contextlib.suppress(FileNotFoundError):  # may be cached for a second
                return len(os.listdir(path + "/package/__pycache__")) == n + 1
        wait_for(compiled, "a compiled file of each module, and nothing else")
        assert run(sys.executable, "-B", "-c", code, path, env=env) == f"{n * (n - 1) // 2}\n"
        assert compileall.compile_dir(path, quiet=1)


# ---- PostgreSQL ----------------------------------------------------------------------

def postgres_programs():
    found = sorted(glob.glob("/usr/lib/postgresql/*/bin/initdb"))
    return os.path.dirname(found[-1]) if found else None


@pytest.fixture
def postgres(cluster):
    """Runs a PostgreSQL program as another user, because it refuses root; a server that it starts
    ends with the test."""
    where = postgres_programs()
    if not where or not shutil.which("setpriv"):
        pytest.skip("needs package postgresql and setpriv")
    try:
        user = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("needs user postgres")
    as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups",
               "--pdeathsig", "QUIT"]
    os.mkdir(cluster.file("socket"), 0o755)
    os.chown(cluster.file("socket"), user.pw_uid, user.pw_gid)

    class Postgres:
        servers = []
        uid, gid = user.pw_uid, user.pw_gid

        def start(self, name, *words):
            return start(*as_user, f"{where}/{name}", *words, cwd="/", env={"PATH": os.environ["PATH"], "LC_ALL": "C"})

        def run(self, name, *words):
            return outcome(self.start(name, *words))

        def serve(self, data):
            self.log = cluster.file("postgres.log")
            with open(self.log, "w") as log:
                server = subprocess.Popen(
                    [*as_user, f"{where}/postgres", "-D", data, "-k", cluster.file("socket"), "-h", "",
                     "-c", "shared_buffers=8MB", "-c", "max_connections=10"],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True)
            self.servers.append(server)

            def ready():
                with open(self.log) as f:
                    text = f.read()
                assert server.poll() is None, text
                return "ready to accept" in text
            wait_for(ready, "the server is ready", PATIENCE)
            return server

        def end(self, server, how):
            server.send_signal(how)
            server.wait(PATIENCE)

    p = Postgres()
    try:
        yield p
    finally:
        for server in p.servers:
            if server.poll() is None:
                server.send_signal(signal.SIGQUIT)
                try:
                    server.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(server.pid, signal.SIGKILL)
                    server.wait()


def test_postgres_writes_on_one_node_and_recovers_on_the_other(cluster, postgres):
    first, second = (n.path + "/db" for n in cluster.connected(2, "allow_other"))
    os.mkdir(first)
    os.chown(first, postgres.uid, postgres.gid)
    os.chmod(first, 0o700)
    socket = cluster.file("socket")
    postgres.run("initdb", "-D", first, "-A", "trust", "-U", "postgres", "--locale=C")
    server = postgres.serve(first)
    client = ("-h", socket, "-U", "postgres")
    postgres.run("pgbench", *client, "-q", "-i", "-s", "1", "postgres")
    said = postgres.run("pgbench", *client, "-c", "2", "-t", "50", "postgres")
    assert "number of transactions actually processed: 100/100" in said, said
    # As in a crash: the write-ahead log is all that is left.
    postgres.end(server, signal.SIGQUIT)
    server = postgres.serve(second)

    def ask(question):
        return postgres.run("psql", *client, "-Atc", question, "postgres").strip()
    assert ask("select count(*) from pgbench_history") == "100"
    assert ask("select count(*), sum(abalance) - (select sum(delta) from pgbench_history) "
               "from pgbench_accounts") == "100000|0"
    postgres.end(server, signal.SIGINT)

# SPDX-License-Identifier: MIT
"""Version control on two nodes at once: users of both commit, push, fetch, clone and clean up in
repositories that they share. What goes well in a directory of a local file system goes well here.

Each user tries again what another's push made impossible. No other failure may happen.
"""
import os
import random
import threading
import time

import pytest

from test_programs import needs, pair, run, start  # noqa: F401

ROUNDS = int(os.environ.get("COOP_SHARED_ROUNDS", "2"))
TRIES = 200
USERS = (("ann", 0), ("bob", 1), ("eve", 1))[:2 if ROUNDS < 5 else 3]  # and their nodes


def places(cluster, pair, where):  # noqa: F811
    """The same directory as two nodes see it."""
    if where == "local":
        return [cluster.file("local")] * 2
    return [node.path + "/shared" for node in pair]


def at_once(*jobs):
    """Runs them side by side; raises the first error."""
    errors = []

    def guarded(job):
        try:
            job()
        except BaseException as e:  # noqa: BLE001: told by the main thread
            errors.append(e)
    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if errors:
        raise errors[0]


def attempt(argv, allowed):
    """Whether the program succeeded; it may fail with one of these texts."""
    process = start(*argv)
    text, _ = process.communicate(timeout=300)
    assert process.returncode == 0 or any(words in text for words in allowed), f"{argv}\n{text}"
    return process.returncode == 0


def insist(again, argv, allowed):
    """Runs it until it succeeds, each time after again()."""
    for _ in range(TRIES):
        if attempt(argv, allowed):
            return
        again()
    raise AssertionError(f"{argv}: others always came first")


def pause():
    time.sleep(0.05)  # as a user does before the next try


def write(path, seed):
    with open(path, "wb") as f:
        f.write(random.Random(seed).randbytes(3000) * 20)


# On the local file system with many rounds only: that tests the test.
@pytest.fixture(params=["coopfs"] if ROUNDS < 5 else ["local", "coopfs"])
def shared(cluster, pair, request):  # noqa: F811
    at = places(cluster, pair, request.param)
    os.makedirs(at[0])
    return at


# ---- git -----------------------------------------------------------------------------

GIT = ("git", "-c", "user.name=Test", "-c", "user.email=test@localhost", "-c", "safe.directory=*",
       "-c", "init.defaultBranch=main", "-c", "gc.auto=50", "-c", "gc.autoDetach=false", "-c", "pull.rebase=true")
# Without --no-local git copies the files of a repository one by one, and fails if a push ends meanwhile.
CLONE = (*GIT, "clone", "-q", "--no-local")
# What a user sees whose push or fetch crosses another's, also on a local file system.
GIT_CROSSES = ("rejected", "failed to push", "cannot lock ref", "Unable to create", "failed to update ref",
               "gc is already running")


def test_git_users_of_two_nodes_share_a_repository(shared):
    needs("git")
    bare = [at + "/repo.git" for at in shared]
    run(*GIT, "init", "-q", "--bare", bare[0])
    run(*CLONE, bare[0], shared[0] + "/first")
    first = (*GIT, "-C", shared[0] + "/first")
    write(shared[0] + "/first/start", 0)
    run(*first, "add", ".")
    run(*first, "commit", "-qm", "start")
    run(*first, "push", "-q", "origin", "HEAD:main")

    def user(node, name):
        mine = f"{shared[node]}/{name}"
        git = (*GIT, "-C", mine)
        run(*CLONE, bare[node], mine)
        for i in range(ROUNDS):
            for k in range(5):
                write(f"{mine}/{name}-{i}-{k}", f"{name} {i} {k}")
            run(*git, "add", ".")
            run(*git, "commit", "-qm", f"{name} {i}")
            insist(lambda: insist(pause, (*git, "pull", "-q"), GIT_CROSSES),
                   (*git, "push", "-q", "origin", "HEAD:main"), GIT_CROSSES)
            run(*git, "fsck", "--strict")
        run(*git, "gc", "-q")

    def keeper():
        for i in range(ROUNDS):
            attempt((*GIT, "-C", bare[1], "gc", "-q"), GIT_CROSSES)
            run(*CLONE, bare[1], f"{shared[1]}/copy{i}")
            run(*GIT, "-C", f"{shared[1]}/copy{i}", "fsck", "--strict")

    # One working tree, in which each commits what it made itself.
    def common(node, name):
        git = (*GIT, "-C", shared[node] + "/first")
        for i in range(ROUNDS):
            file = f"{name}-{i}"
            write(f"{shared[node]}/first/{file}", file)
            insist(pause, (*git, "add", file), GIT_CROSSES)
            insist(pause, (*git, "commit", "-qm", file, "--", file), GIT_CROSSES)

    at_once(*(lambda name=name, node=node: user(node, name) for name, node in USERS), keeper,
            lambda: common(0, "x"), lambda: common(1, "y"))
    for node in (0, 1):
        git = (*GIT, "-C", shared[node] + "/first")
        run(*git, "fsck", "--strict", "--full")
        log = run(*git, "log", "--format=%s").split("\n")[:-1]
        assert sorted(log) == sorted(["start", *(f"{n}-{i}" for n in "xy" for i in range(ROUNDS))])
        run(*GIT, "-C", bare[node], "fsck", "--strict", "--full")
        log = run(*GIT, "-C", bare[node], "log", "--format=%s", "main").split("\n")[:-1]
        assert sorted(log) == sorted(["start", *(f"{n} {i}" for n, _ in USERS for i in range(ROUNDS))])
        run(*CLONE, bare[node], f"{shared[node]}/last{node}")
        for name, _ in USERS:
            for i in range(ROUNDS):
                with open(f"{shared[node]}/last{node}/{name}-{i}-4", "rb") as f:
                    assert f.read() == random.Random(f"{name} {i} 4").randbytes(3000) * 20


# ---- Mercurial -----------------------------------------------------------------------

HG = ("hg", "--config", "ui.username=test", "--config", "extensions.rebase=", "--config", "trusted.users=*",
      "--config", "ui.merge=internal:merge", "--noninteractive")
HG_CROSSES = ("push creates new remote head", "abort: push", "repository changed while", "waiting for lock",
              "no changes found")


def test_mercurial_users_of_two_nodes_share_a_repository(shared):
    needs("hg")
    repo = [at + "/repo" for at in shared]
    run(*HG, "init", repo[0])
    write(repo[0] + "/start", 0)
    run(*HG, "-R", repo[0], "commit", "-Aqm", "start")
    run(*HG, "-R", repo[0], "update", "-q", "null")

    def user(node, name):
        mine = f"{shared[node]}/{name}"
        hg = (*HG, "-R", mine)
        run(*HG, "clone", "-q", "--pull", repo[node], mine)
        for i in range(ROUNDS):
            for k in range(3):
                write(f"{mine}/{name}-{i}-{k}", f"{name} {i} {k}")
            run(*hg, "commit", "-Aqm", f"{name} {i}")

            def again():
                attempt((*hg, "pull", "-q", "--rebase"), HG_CROSSES)
            insist(again, (*hg, "push", "-q"), HG_CROSSES)
        run(*hg, "verify", "-q")

    # One working directory, where the locks of Mercurial keep them apart.
    run(*HG, "clone", "-q", repo[0], shared[0] + "/common")

    def common(node, name):
        for i in range(ROUNDS):
            file = f"{shared[node]}/common/{name}-{i}"
            write(file, f"{name}-{i}")
            run(*HG, "-R", shared[node] + "/common", "commit", "-Aqm", f"{name}-{i}", file)

    at_once(*(lambda name=name, node=node: user(node, name) for name, node in USERS),
            lambda: common(0, "x"), lambda: common(1, "y"))
    for node in (0, 1):
        run(*HG, "-R", shared[node] + "/common", "verify", "-q")
        log = run(*HG, "-R", shared[node] + "/common", "log", "-T", "{desc}\n").split("\n")[:-1]
        assert sorted(log) == sorted(["start", *(f"{n}-{i}" for n in "xy" for i in range(ROUNDS))])
        run(*HG, "-R", repo[node], "verify", "-q")
        log = run(*HG, "-R", repo[node], "log", "-T", "{desc}\n").split("\n")[:-1]
        assert sorted(log) == sorted(["start", *(f"{n} {i}" for n, _ in USERS for i in range(ROUNDS))])

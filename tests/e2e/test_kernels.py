# SPDX-License-Identifier: MIT
"""The kernel that the module is built for when headers of several are installed."""
import os
import subprocess

import pytest

TOP = os.path.realpath(os.path.join(os.path.dirname(__file__), "..", ".."))
OLD, OLDEST, NEW, NEWER, NEWEST = ("6.1.0-56-amd64", "6.1.0-9-amd64", "6.12.117+deb12-amd64", "6.18.2-amd64",
                                   "7.0.0-1-amd64")


@pytest.fixture
def here(tmp_path):
    """Runs a command on a machine with headers of these kernels; a removed kernel left a dangling link."""
    modules = tmp_path / "modules"

    def run(command, *versions):
        (modules / "6.12.200-gone").mkdir(parents=True)
        (modules / "6.12.200-gone/build").symlink_to("/nowhere")
        for version in versions:
            (modules / version / "build").mkdir(parents=True)
        return subprocess.run(command, cwd=TOP, env=dict(os.environ, LIB_MODULES=str(modules), MAKEFLAGS=""),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
    return run


@pytest.mark.parametrize("versions,default", [
    ([OLD, OLDEST], OLD), ([OLD, NEW], NEW), ([OLD, NEWER], OLD), ([OLD, NEW, NEWER, NEWEST], NEW)])
def test_the_newest_that_the_module_knows(here, versions, default):
    done = here(["tools/kernels", "default"], *versions)
    assert (done.returncode, done.stdout) == (0, default + "\n"), done.stderr


def test_make_takes_it_and_names_the_others(here, tmp_path):
    done = here(["make", "-s", "kernel-tree", f"B={tmp_path}/build"], OLD, NEW, NEWER, NEWEST)
    assert done.returncode == 0, done.stderr
    assert os.listdir(tmp_path / "build") == ["kernel-" + NEW]
    assert done.stderr == ("coopfs.ko is built for Linux 6.1 and 6.12, so not for 6.18.2-amd64 and 7.0.0-1-amd64, "
                           f"whose headers are in {tmp_path}/modules too\n")


def test_nothing_is_said_where_there_is_no_other(here, tmp_path):
    done = here(["make", "-s", "kernel-tree", f"B={tmp_path}/build"], OLD, NEW)
    assert (done.returncode, done.stderr) == (0, "")


def test_nor_to_who_names_a_kernel(here, tmp_path):
    done = here(["make", "-s", "kernel-tree", f"B={tmp_path}/build", f"KVER={OLD}"], OLD, NEW, NEWER)
    assert (done.returncode, done.stderr) == (0, "")
    assert os.listdir(tmp_path / "build") == ["kernel-" + OLD]


@pytest.mark.parametrize("versions", [[], [NEWER, NEWEST]])
def test_none_that_it_knows(here, tmp_path, versions):
    done = here(["make", "-s", "kernel-tree", f"B={tmp_path}/build"], *versions)
    assert done.returncode == 2
    assert "coopfs.ko is built for Linux 6.1 and 6.12; " in done.stderr
    assert all(version in done.stderr for version in versions or ["none"])


def test_one_that_was_named_and_is_too_new(here, tmp_path):
    done = here(["make", "-s", "kernel-tree", f"B={tmp_path}/build", f"KVER={NEWER}"], OLD, NEWER)
    assert done.returncode == 2 and f"{NEWER} is too new" in done.stderr

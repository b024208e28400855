# SPDX-License-Identifier: MIT
"""What coopnet says of a server that ends, restarts, answers no more, or is none of its version."""

import os
import signal
import subprocess

import pytest

from cluster import DEADLINE, program
from test_coopnet import FAILED, HOST, NAMES, SHORT, WAYS, coopnet, serving

pytestmark = pytest.mark.skipif(not os.access(program("coopnet"), os.X_OK),
                                reason=f"needs {program('coopnet')}: build it first")
STRANGER = program("coop-net-stranger")


def test_a_server_that_dies_ends_the_client():
    with serving(("ud",), f"{HOST}.5") as server:
        client = subprocess.Popen([program("coopnet"), "ping", "-t", "ud", "--progress", "block", "-s", "8",
                                   "-n", "100000000", "--seconds", "600", "--timeout", "10", f"{HOST}.5"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True)
        try:
            server.serves()
            server.child.kill()
            out, err = client.communicate(timeout=DEADLINE)
        finally:
            client.kill()
            client.communicate()
        assert client.returncode == FAILED and out == ""
        assert f"{HOST}.5" in err


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_server_that_is_killed_is_noticed(way):
    """The client notices, although its sends have all succeeded and its deadline is far away."""
    with serving(way, f"{HOST}.23") as server:
        client = subprocess.Popen([program("coopnet"), "ping", "-t", *way, "-s", "64", "-n", "100000000",
                                   "--seconds", "600", "--timeout", "600", f"{HOST}.23"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
        try:
            server.serves()
            server.child.kill()
            _, err = client.communicate(timeout=DEADLINE)
        finally:
            client.kill()
            client.communicate()
        assert client.returncode == FAILED and "has gone away" in err


@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_server_that_restarts_is_noticed(way):
    """The second one answers, but what the client waits for went to the first."""
    with serving(way, f"{HOST}.26") as server:
        client = subprocess.Popen([program("coopnet"), "ping", "-t", *way, "-s", "64", "-n", "100000000",
                                   "--seconds", "600", "--timeout", "30", f"{HOST}.26"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
        try:
            server.serves()
            server.end(signal.SIGKILL)
            with serving(way, f"{HOST}.26"):
                _, err = client.communicate(timeout=DEADLINE)
        finally:
            client.kill()
            client.communicate()
        assert client.returncode == FAILED and "has gone away" in err


@pytest.mark.parametrize("way, progress", zip(WAYS, ["poll", "block", "notify", "notify", "poll"], strict=True),
                         ids=NAMES)
def test_a_server_that_stops_answering_ends_the_client(way, progress):
    """It is there, but gets no processor any more."""
    with serving(way, f"{HOST}.27") as server:
        client = subprocess.Popen([program("coopnet"), "bulk", "-t", *way, "-s", "64k", "-n", "100000000",
                                   "--seconds", "600", "--timeout", "2", "--progress", progress, f"{HOST}.27"],
                                  stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, text=True)
        try:
            server.serves()
            server.child.send_signal(signal.SIGSTOP)
            _, err = client.communicate(timeout=DEADLINE)
        finally:
            client.kill()
            client.communicate()
            server.child.send_signal(signal.SIGCONT)
        assert client.returncode == FAILED and f"{HOST}.27@tcp:12345:31:0 does not answer" in err


class stranger:
    """coop-net-stranger, from its line "serving at" until the with block ends."""

    def __init__(self, kind, way, address):
        self.command = [STRANGER, kind, way[0], address, *way[2::2]]

    def __enter__(self):
        self.child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        said = self.child.stdout.readline()
        assert said.startswith("serving at"), self.child.stderr.read()
        return self

    def __exit__(self, *_):
        self.child.kill()
        self.child.communicate()


@pytest.mark.skipif(not os.access(STRANGER, os.X_OK), reason=f"needs {STRANGER}: build it first")
@pytest.mark.parametrize("kind, what", [("older", "is of an older version of coopnet"),
                                        ("newer", "is no `coopnet serve` of this version"),
                                        ("other", "is no `coopnet serve` of this version")],
                         ids=["older", "newer", "other"])
@pytest.mark.parametrize("way", WAYS, ids=NAMES)
def test_a_server_of_another_version_is_called_that(way, kind, what):
    address = f"{HOST}.28@tcp:12345:31:0"
    with stranger(kind, way, address):
        status, out, err = coopnet("ping", "-t", *way, "-s", "8", "--timeout", "12", address)
    assert status == FAILED and out == ""
    assert address in err and what in err and "install the same version" in err


@pytest.mark.skipif(not os.access(STRANGER, os.X_OK), reason=f"needs {STRANGER}: build it first")
@pytest.mark.parametrize("kind", ["astray", "busy"])
def test_a_server_without_an_answer_is_not_called_older(kind):
    """One answers messages of another run, the other all messages, and says that it has the call."""
    address = f"{HOST}.32@tcp:12345:31:0"
    with stranger(kind, ("ud",), address):
        status, out, err = coopnet("ping", "-t", "ud", "-s", "8", "--timeout", "6", address)
    assert status == FAILED and out == ""
    assert f"{address} does not answer" in err

# SPDX-License-Identifier: MIT
"""Many processes find each other through one machine and pass a message round. COOP_RENDEZVOUS: how many."""
import os
import pathlib
import subprocess

import pytest

PROGRAM = pathlib.Path(os.environ["COOP_BIN"]) / "coop-rendezvous"
MANY = int(os.environ.get("COOP_RENDEZVOUS", "200"))
SECONDS = max(400, 2 * MANY)  # until all have met and left; a thousand need 49 s of processor time


@pytest.mark.parametrize("processes, way", [(MANY, ["--transport", "ud"]),
                                            (20, ["--transport", "fabric", "-o", "provider=tcp"])], ids=["ud", "fabric"])
def test_processes_find_each_other(processes, way):
    done = subprocess.run([str(PROGRAM), "--processes", str(processes), "--seconds", str(SECONDS), *way],
                          capture_output=True, text=True, timeout=SECONDS + 50, check=False)
    print(done.stdout)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    assert f"{processes} processes, {processes} met, {processes} left, 0 failed" in done.stdout
    if way[1] == "ud":
        words = done.stdout.replace(",", "").split()
        assert int(words[words.index("threads") - 1]) <= 4
        assert int(words[words.index("descriptors") - 1]) <= 12


def test_a_process_that_is_missing_is_said():
    """The barrier opens for all or for none: a member whose options are refused never comes."""
    done = subprocess.run([str(PROGRAM), "--processes", "3", "--transport", "ud", "--seconds", "5", "-o", "mtu=1"],
                          capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "mtu" in done.stderr

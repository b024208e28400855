# SPDX-License-Identifier: MIT
"""tools/install-deps while another process holds apt's locks. A fake apt-get prints what the real
one prints; nothing is installed."""
import os
import re
import subprocess
import textwrap

import pytest

TOOLS = os.path.join(os.path.dirname(__file__), "..", "..", "tools")
LISTS = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 4711 (apt-get)\n" \
        "N: Be aware that removing the lock file is not a solution and may break your system.\n" \
        "E: Unable to lock directory /var/lib/apt/lists/\n"
FRONTEND = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 4711 (unattended-upgr)\n" \
           "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), is another process using it?\n"
INNER = "dpkg: error: dpkg frontend lock was locked by another process with pid 4711\n" \
        "E: Sub-process /usr/bin/dpkg returned an error code (2)\n"


@pytest.fixture
def machine(tmp_path):
    """A machine with nothing installed; run() makes each step of apt-get fail at first with given errors."""
    (tmp_path / "dpkg-query").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "apt-get").write_text(textwrap.dedent(f"""\
        #!/bin/sh
        echo "$*" >> {tmp_path}/calls
        for n in 1 2 3 4 5 6 7 8 9; do
            if [ -e {tmp_path}/$1-$n ]; then cat {tmp_path}/$1-$n >&2; rm {tmp_path}/$1-$n; exit 100; fi
        done
        """))
    for name in ("dpkg-query", "sudo", "apt-get"):
        (tmp_path / name).chmod(0o755)

    def run(update=(), install=(), patience=5):
        for step, errors in (("update", update), ("install", install)):
            for n, text in enumerate(errors):
                (tmp_path / f"{step}-{n + 1}").write_text(text)
        done = subprocess.run([os.path.join(TOOLS, "install-deps"), "programs"], capture_output=True, text=True,
                              env=dict(os.environ, PATH=f"{tmp_path}:{os.environ['PATH']}",
                                       COOP_APT_PATIENCE=str(patience)), timeout=300, check=False)
        return done, (tmp_path / "calls").read_text().splitlines()
    return run


def test_nobody_has_a_lock(machine):
    done, calls = machine()
    assert done.returncode == 0 and "waiting" not in done.stderr
    assert [c.split()[0] for c in calls] == ["update", "install"] and "postgresql-15" in calls[1]


@pytest.mark.parametrize("errors", [{"update": [LISTS, LISTS]}, {"install": [FRONTEND]}, {"install": [INNER]}])
def test_a_lock_is_waited_for(machine, errors):
    done, calls = machine(**errors)
    assert done.returncode == 0, done.stderr
    assert len(re.findall("waiting up to 5 s for another process", done.stderr)) == 1
    assert "4711" in done.stderr and calls[-1].startswith("install")


def test_not_for_ever(machine):
    done, calls = machine(update=[LISTS] * 9, patience=2)
    assert done.returncode == 1 and not any(c.startswith("install") for c in calls)
    assert "waited 2 s in vain: Could not get lock /var/lib/apt/lists/lock. It is held by process 4711" in done.stderr
    assert "postgresql-15" in done.stderr.splitlines()[-1]


def test_another_error_is_told_at_once(machine):
    done, calls = machine(install=["E: Unable to locate package postgresql-15\n"])
    assert done.returncode == 1 and len(calls) == 2
    assert "Unable to locate" in done.stderr and "waiting" not in done.stderr

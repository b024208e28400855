# SPDX-License-Identifier: MIT
"""Cases of names alone: files made, looked at, listed and removed in one directory, no bytes.

Every case begins with a fresh mount. What it looks at was made in the export by the machine itself, so
each costs a system what a program sees that comes to a directory of others.
"""

import pathlib
import shutil

import meter
from cases import figures

NAMES = 20_000

PROGRAMS = {
    "create": "for n in names: os.close(os.open(n, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o644))",
    "stat": "for n in names: os.stat(n)",
    "list": "sum(1 for e in os.scandir('.'))",
    "list-l": "sum(e.stat(follow_symlinks=False).st_size for e in os.scandir('.'))",
    "unlink": "for n in names: os.unlink(n)",
}


class names_case:
    random = False
    states = ("names",)
    writes = True  # peers take no part

    def __init__(self, verb, title):
        self.name = f"names-{verb}"
        self.title = f"{title} {NAMES} files in one directory"
        self.program = ("import os, sys; os.chdir(sys.argv[1]); "
                        f"names = ['f%06d' % i for i in range({NAMES})]\n{PROGRAMS[verb]}")
        self.makes = verb == "create"
        self.left = {"create": NAMES, "unlink": 0}.get(verb, NAMES)

    def measure(self, system, data, mountpoint, warm, seed):
        target = f"{self.name}-{system.name}-{seed}"
        folder = data.folder / target
        folder.mkdir()
        try:
            if not self.makes:
                for number in range(NAMES):
                    (folder / f"f{number:06}").touch()
            argv = [*system.reader_prefix(), "python3", "-c", self.program, pathlib.Path(mountpoint) / target]
            with meter.interval(system.processes) as spent:
                system.processes.run([*system.bed.recorder(system, self, warm), *argv])
            left = sum(1 for _ in folder.iterdir())
            if left != self.left:
                raise RuntimeError(f"{system.name}: the export has {left} files in place of {self.left}")
        finally:
            shutil.rmtree(folder)
        result = figures([self.name], 0, None, spent)
        result["files_s"] = NAMES / spent.seconds
        return result


ALL = [names_case("create", "make"), names_case("stat", "stat"), names_case("list", "list"),
       names_case("list-l", "list, with attributes,"), names_case("unlink", "unlink")]

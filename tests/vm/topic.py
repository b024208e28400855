# SPDX-License-Identifier: MIT
"""A topic: one guest script, one boot of its machines, any number of named tests.

Every shell function test_NAME in the script is a test. Lines "#: KEY VALUES" at the head of
the script declare what the guest needs:

  programs  from the directory of built programs, else from this machine; with libraries
  optional  programs that are left out if this machine lacks them
  modules   of the kernel, with their dependencies; inserted before the tests
  files     put in /lab/files; $KO is the directory of our kernel objects, $TOP the tree
  memory    MiB per machine (1024)
  cpus      per machine (2)
  checks    off: the allocator checks nothing, for measurements
  machines  how many, on one switch: 10.9.0.1, 10.9.0.2 ... on eth0 (1, without network)
  deadline  seconds until the lab ends the machines (180)
  short     tests that every check runs (tests/vm/run --short)
  long      those that the long check runs besides (--long runs both)
"""
import os
import re

KEYS = ("programs", "optional", "modules", "files", "memory", "cpus", "checks", "machines", "deadline", "short",
        "long")
BASE_MODULES = ["virtio_pci", "virtio_net"]


class Missing(Exception):
    """This machine lacks something: a reason to skip."""


class Topic:
    def __init__(self, path, variables):
        self.path = path
        self.name = os.path.basename(path)[:-3]
        with open(path) as f:
            text = f.read()
        said = {k: [] for k in KEYS}
        for key, values in re.findall(r"^#: (\w+) +(.*)$", text, re.M):
            if key not in said:
                raise SystemExit(f"{path}: unknown key '{key}'; there are: {' '.join(KEYS)}")
            said[key] += values.split()
        self.programs = sorted(set(said["programs"]))
        self.optional = sorted(set(said["optional"]))
        self.cpus = int((said["cpus"] or [2])[0])
        self.checks = said["checks"] != ["off"]
        self.memory = int((said["memory"] or [1024])[0])
        self.machines = int((said["machines"] or [1])[0])
        self.deadline = int((said["deadline"] or [180])[0])
        self.modules = (BASE_MODULES if self.machines > 1 else []) + said["modules"]
        self.files = [re.sub(r"\$(\w+)", lambda m: variables[m[1]], f) for f in said["files"]]
        self.tests = re.findall(r"^test_(\w+)\(\)", text, re.M)
        self.short = self.named("short", said)
        self.long = self.short + self.named("long", said)

    def named(self, key, said):
        for name in said[key]:
            if name not in self.tests:
                raise SystemExit(f"{self.path}: '{key}' names no test: {name}")
        return said[key]


def load_all(guest_dir, variables):
    out = []
    for name in sorted(os.listdir(guest_dir)):
        if name.endswith(".sh") and name not in ("lib.sh", "shell.sh"):
            out.append(Topic(os.path.join(guest_dir, name), variables))
    return out

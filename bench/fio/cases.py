# SPDX-License-Identifier: MIT
"""The cases: one fio command each, a tree of small files that is read once, and one that is written.

fio never invalidates (--invalidate=0): cold means that the mount has not read the file before, warm
that the kernel holds all of it. Time bounds random cases as well as bytes, because the slowest rival
would take minutes; they never read a block twice (fio's random map), so a cold block stays cold unless
the file system read ahead.
"""

import io
import json
import os
import pathlib
import shutil
import tarfile

import meter
from sandbox import processes

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SMALL_FILES, SMALL_SIZE, SMALL_PER_FOLDER = 5000, 8 * KIB, 100
TAR_FILES, TAR_SIZE = 6000, 2 * KIB
RANDOM_SECONDS = 5
RANDOM_BYTES = 256 * MIB
WARM_LOOPS = 4


class corpus:
    """The files that every system serves: big.bin and small/NN/NN.bin below one folder."""

    def __init__(self, folder, size, small_files=SMALL_FILES):
        self.folder = pathlib.Path(folder)
        self.size = size
        self.small_files = small_files
        self.big = "big.bin"
        self.small = "small"

    def create(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / self.big, "wb") as out:
            for _ in range(self.size // MIB):
                out.write(os.urandom(MIB))
        (self.folder / self.small).mkdir()
        for number in range(self.small_files):
            folder = self.folder / self.small / f"{number // SMALL_PER_FOLDER:03}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number % SMALL_PER_FOLDER:03}.bin").write_bytes(os.urandom(SMALL_SIZE))
        for folder, _, _ in os.walk(self.folder):
            os.chmod(folder, 0o755)

    def small_bytes(self):
        return self.small_files * SMALL_SIZE


class fio_case:
    states = None  # the system's states
    writes = False

    def __init__(self, name, title, *options, random=False, jobs=1):
        self.name = name
        self.title = title
        self.random = random
        self.options_ = options
        self.jobs_ = jobs

    def command(self, data, mountpoint, warm, seed):
        argv = ["fio", "--name=read", f"--filename={mountpoint}/{data.big}", "--readonly",
                "--invalidate=0", "--thread", "--group_reporting", "--output-format=json",
                f"--randseed={seed}", *self.options_]
        share = data.size // self.jobs_
        argv += [f"--size={share}", f"--numjobs={self.jobs_}"]
        if self.jobs_ > 1:
            argv.append(f"--offset_increment={share}")
        if self.random:
            argv += [f"--io_size={min(share, RANDOM_BYTES)}", f"--runtime={RANDOM_SECONDS}"]
        if warm and not self.random:
            argv.append(f"--loops={WARM_LOOPS}")
        return argv

    def measure(self, system, data, mountpoint, warm, seed):
        argv = [*system.reader_prefix(), *self.command(data, mountpoint, warm, seed)]
        with meter.interval(system.processes) as spent:
            text = system.processes.run([*system.bed.recorder(system, self, warm), *argv])
        read = json.loads(text[text.index("{"):])["jobs"][0]["read"]
        return figures(argv, read["io_bytes"], read["bw_bytes"] / 1e6, spent,
                       latency_us=latencies(read))

    def warm_up(self, system, data, mountpoint):
        run_reader(system, ["dd", f"if={mountpoint}/{data.big}", "of=/dev/null", "bs=1M",
                            "status=none"])


class small_case:
    """Reads a tree once, as a compiler or an archiver does: list, open, read, close, next."""

    name = "small"
    title = f"{SMALL_FILES} files of {SMALL_SIZE // KIB} KiB"
    random = False
    states = None
    writes = False

    def command(self, data, mountpoint):
        return ["sh", "-c", 'find "$0" -type f -print0 | xargs -0 cat | wc -c',
                f"{mountpoint}/{data.small}"]

    def measure(self, system, data, mountpoint, warm, seed):
        argv = [*system.reader_prefix(), *self.command(data, mountpoint)]
        with meter.interval(system.processes) as spent:
            count = int(system.processes.run([*system.bed.recorder(system, self, warm), *argv]))
        if count != data.small_bytes():
            raise RuntimeError(f"{system.name}: {count} bytes of {data.small_bytes()} were read")
        result = figures(argv, count, count / spent.seconds / 1e6, spent)
        result["files_s"] = data.small_files / spent.seconds
        return result

    def warm_up(self, system, data, mountpoint):
        run_reader(system, self.command(data, mountpoint))


class untar_case:
    """Unpacks an archive into the mount: create, write, set owner, mode and times, close, next."""

    name = "untar"
    title = f"tar -x of {TAR_FILES} files of {TAR_SIZE // KIB} KiB"
    random = False
    states = ("write",)
    writes = True

    def __init__(self):
        self.archive_ = None

    def archive(self, bed):
        if not self.archive_:
            self.archive_ = bed.folder / "small.tar"
            with tarfile.open(self.archive_, "w") as out:
                for number in range(TAR_FILES):
                    entry = tarfile.TarInfo(f"{number // SMALL_PER_FOLDER:03}/{number % SMALL_PER_FOLDER:03}")
                    entry.size, entry.mtime, entry.mode = TAR_SIZE, 1_500_000_000 + number, 0o640
                    out.addfile(entry, io.BytesIO(os.urandom(TAR_SIZE)))
        return self.archive_

    def measure(self, system, data, mountpoint, warm, seed):
        archive, target = self.archive(system.bed), pathlib.Path(mountpoint) / f"untar-{system.name}-{seed}"
        argv = [*system.reader_prefix(), "tar", "-xf", archive, "-C", target]
        target.mkdir()
        try:
            with meter.interval(system.processes) as spent:
                system.processes.run([*system.bed.recorder(system, self, warm), *argv])
            # The export has the written bytes too.
            system.processes.run(["tar", "-df", archive, "-C", data.folder / target.name])
        finally:
            shutil.rmtree(data.folder / target.name)
        count = TAR_FILES * TAR_SIZE
        result = figures(argv, count, count / spent.seconds / 1e6, spent)
        result["files_s"] = TAR_FILES / spent.seconds
        return result


def run_reader(system, argv):
    return system.processes.run([*system.reader_prefix(), *argv])


def cost_of_fio(bed):
    """CPU seconds that fio takes to start and calibrate its clock; every figure includes them."""
    alone = processes("fio-alone", bed.group, bed.logs)
    with meter.interval(alone) as spent:
        alone.run(["fio", "--name=read", f"--filename={bed.data.folder / bed.data.big}",
                   "--readonly", "--thread", "--rw=read", "--bs=4k", "--size=4k"])
    return spent.cpu_machine if spent.cpu_group is None else spent.cpu_group


def latencies(read):
    clat = read["clat_ns"]
    percentile = clat.get("percentile", {})
    return {"mean": clat["mean"] / 1e3, "p50": percentile.get("50.000000", 0) / 1e3,
            "p99": percentile.get("99.000000", 0) / 1e3}


def figures(argv, count, mb_s, spent, latency_us=None):
    def per_gib(cpu):
        return None if cpu is None or not count else cpu * GIB / count

    return {"command": " ".join(map(str, argv)), "bytes": count, "seconds": spent.seconds,
            "mb_s": mb_s, "cpu_s_gib": per_gib(spent.cpu_group),
            "cpu_s_gib_machine": per_gib(spent.cpu_machine),
            "foreign_cpu": None if spent.cpu_group is None else
            max(0.0, spent.cpu_machine - spent.cpu_group) / spent.seconds,
            "latency_us": latency_us}


ALL = [
    fio_case("seq128k", "sequential, 128 KiB", "--rw=read", "--bs=128k", "--ioengine=psync"),
    fio_case("seq1m", "sequential, 1 MiB", "--rw=read", "--bs=1m", "--ioengine=psync"),
    fio_case("rand4k", "random 4 KiB, depth 1", "--rw=randread", "--bs=4k", "--ioengine=psync",
             random=True),
    fio_case("rand4k-j4", "random 4 KiB, 4 jobs", "--rw=randread", "--bs=4k", "--ioengine=psync",
             random=True, jobs=4),
    small_case(),
    untar_case(),
    fio_case("mmap", "mmap, sequential", "--rw=read", "--bs=128k", "--ioengine=mmap"),
]

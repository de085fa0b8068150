"""How much memory a run takes, and may take; control groups, version 1 and 2."""

import math
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

import psutil

from pipeline.config.train_config import Resources
from pipeline.runtime.progress import repeating

DRIVER_BYTES = 260 * 2**20  # A process that solves takes these for interpreter, libraries and compiled code; measured.
SAMPLE_SECONDS = 0.1  # The memory of the process tree is sampled at this interval.
SEARCH_SECONDS = 1.0  # Its processes are searched for at this interval: a search reads all of the machine.


def limit_bytes(resources: Resources) -> int:
    """Return what all processes of a run may take: by default 3/4 of the machine's memory, or of its groups'."""
    machine, group = psutil.virtual_memory().total, memory_limit_bytes()
    return resources.memory_limit or (machine if group is None else min(machine, group)) * 3 // 4


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """Return the smallest memory limit of this process's groups, None where none limits it."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    limits = [limit for group in _groups(root, "memory") for name in names for limit in _numbers(group / name)]
    return min(limits, default=None)


def processor_limit(root: Path = Path("/")) -> int | None:
    """Return how many processors the smallest quota of this process's groups is worth, rounded up, None without one."""
    shares = []
    for group in _groups(root, "cpu"):
        second = _numbers(group / "cpu.max")
        first = _numbers(group / "cpu.cfs_quota_us") + _numbers(group / "cpu.cfs_period_us")
        for quota in (second, first):
            if len(quota) == 2 and min(quota) > 0:  # -1: no quota
                shares.append(math.ceil(quota[0] / quota[1]))
    return min(shares, default=None)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of the groups of this process that have a controller, and of those above them."""
    member_of: dict[str, str] = {}
    for line in _lines(root / "proc/self/cgroup"):
        with suppress(ValueError):
            _, controllers, path = line.split(":", 2)
            member_of |= dict.fromkeys(controllers.split(","), path)
    for line in _lines(root / "proc/self/mountinfo"):
        mount, _, kind = (part.split() for part in line.partition(" - "))
        # Version 2 has one hierarchy, of all controllers and no name; of version 1 the options of the mount name them.
        name = "" if kind[:1] == ["cgroup2"] else controller
        if name in member_of and (kind[:1] == ["cgroup2"] or (kind[:1] == ["cgroup"] and name in kind[-1].split(","))):
            group, top = PurePosixPath(member_of[name]), mount[3]  # top: the group that the folder of the mount shows
            # A container may see its own group mounted and be told its path on the host.
            inner = group.relative_to(top) if group.is_relative_to(top) else PurePosixPath()
            yield from (root / mount[4].lstrip("/") / above for above in (inner, *inner.parents))


def _lines(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text(errors="replace").splitlines()
    return []


def _numbers(path: Path) -> list[int]:
    """Return the whole numbers in a file; none where it is not there, or says `max` instead."""
    with suppress(OSError, ValueError):
        return [int(word) for word in path.read_text().split()]
    return []


class MemoryMeter:
    """Samples the memory of this process and its children, found within a second; `peak_bytes` is the largest seen.

    The shares of a tree's processes are added up: with every search, and where resident memory, which counts shared
    pages several times and is read in a thirtieth of the time, is larger than ever.
    """

    def __init__(self, peak_bytes: int = 0) -> None:
        self.peak_bytes = peak_bytes  # starts from the earlier sessions of a run
        self._process = psutil.Process()
        self._children: list[psutil.Process] = []
        self._search_again = 0.0  # time.monotonic()
        self._most_resident = 0
        self._sampling = repeating(SAMPLE_SECONDS, self._sample)

    def __enter__(self) -> "MemoryMeter":
        self._sample()
        self._sampling.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._sampling.__exit__(None, None, None)
        self._sample()

    def _sample(self) -> None:
        if is_due := time.monotonic() >= self._search_again:
            self._children = self._process.children(recursive=True)
            self._search_again = time.monotonic() + SEARCH_SECONDS
        resident = self._bytes("rss")
        if is_due or resident > self._most_resident:
            self._most_resident = resident
            self._bytes_in_use()

    def _bytes_in_use(self) -> int:
        used = self._bytes("pss" if self._children else "rss")
        self.peak_bytes = max(self.peak_bytes, used)
        return used

    def _bytes(self, kind: str) -> int:
        total = 0
        for process in [self._process, *self._children]:
            with suppress(psutil.Error, AttributeError):  # gone meanwhile, or a system without proportional shares
                info = process.memory_info() if kind == "rss" else process.memory_full_info()
                total += getattr(info, kind)
        return total

    def text(self) -> str:
        return f"{self._bytes_in_use() / 2**20:.0f} MiB"

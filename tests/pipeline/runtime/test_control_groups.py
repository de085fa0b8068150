"""Limits of control groups, read from machines laid out in folders, and from a real group where one can be made."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.runtime.control_groups import memory_limit_bytes, processor_limit
from pipeline.runtime.memory_limits import default_limit_bytes
from runs import ROOT

FIRST = "31 23 0:28 / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}"
SECOND = "30 23 0:26 {top} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate"
GROUPS = Path("/sys/fs/cgroup/memory")


def machine(root: Path, members: str, mounts: str, files: dict[str, str]) -> Path:
    texts = {"proc/self/cgroup": members, "proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n" + mounts}
    for name, text in {**texts, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def second(root: Path, path: str, files: dict[str, str], top: str = "/") -> Path:
    return machine(root, f"0::{path}", SECOND.format(top=top), files)


def first(root: Path, path: str, files: dict[str, str]) -> Path:
    members = f"4:memory:{path}\n2:cpu,cpuacct:{path}\n1:name=systemd:/elsewhere\n0::/"
    return machine(root, members, "\n".join([FIRST.format(name="memory"), FIRST.format(name="cpu,cpuacct")]), files)


def test_version_2_takes_the_tightest_of_all_groups_above(tmp_path: Path) -> None:
    files = {
        "jobs/memory.max": "4000",
        "jobs/mine/memory.max": "max",
        "jobs/mine/step/memory.max": "9000",
        "other/memory.max": "1",
        "jobs/cpu.max": "250000 100000",
        "jobs/mine/cpu.max": "max 100000",
        "jobs/mine/step/cpu.max": "800000 100000",
    }
    root = second(tmp_path, "/jobs/mine/step", files)
    assert memory_limit_bytes(root) == 4000
    assert processor_limit(root) == 3
    (root / "sys/fs/cgroup/jobs/mine/memory.high").write_text("3000\n")
    assert memory_limit_bytes(root) == 3000


def test_version_1_takes_the_tightest_of_all_groups_above(tmp_path: Path) -> None:
    files = {
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "memory/slurm/job/memory.limit_in_bytes": "5000",
        "memory/slurm/job/step/memory.limit_in_bytes": "7000",
        "cpu,cpuacct/slurm/job/cpu.cfs_quota_us": "50000",
        "cpu,cpuacct/slurm/job/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/slurm/job/step/cpu.cfs_quota_us": "-1",
        "cpu,cpuacct/slurm/job/step/cpu.cfs_period_us": "100000",
        "cpu,cpuacct/cpu.cfs_quota_us": "400000",
        "cpu,cpuacct/cpu.cfs_period_us": "100000",
    }
    root = first(tmp_path, "/slurm/job/step", files)
    assert memory_limit_bytes(root) == 5000
    assert processor_limit(root) == 1


@pytest.mark.parametrize(
    ("path", "top"), [("/docker/abc", "/docker/abc"), ("/kubepods/pod1", "/docker/abc"), ("/", "/")]
)
def test_a_container_that_sees_only_its_own_group(tmp_path: Path, path: str, top: str) -> None:
    root = second(tmp_path, path, {"memory.max": "6000", "cpu.max": "100000 100000"}, top)
    assert memory_limit_bytes(root) == 6000
    assert processor_limit(root) == 1


@pytest.mark.parametrize("members", ["", "nonsense", "0::/gone"])
def test_a_machine_without_limits(tmp_path: Path, members: str) -> None:
    root = machine(tmp_path, members, SECOND.format(top="/"), {"cpu.max": "max 100000", "memory.max": "max"})
    assert memory_limit_bytes(root) is None
    assert processor_limit(root) is None
    assert memory_limit_bytes(tmp_path / "nothing") is None


def test_the_default_limit_is_that_of_a_nested_group() -> None:
    """A shell enters a group inside a limited one, and asks: once only the root was read."""
    outer, limit = GROUPS / f"slkl-test-{os.getpid()}", 2**30
    try:
        (outer / "inner").mkdir(parents=True)
        (outer / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        pytest.skip("no control group can be made here")
    try:
        ask = f'echo $$ > "{outer}/inner/cgroup.procs" && exec "$@"'
        code = "from pipeline.runtime.memory_limits import default_limit_bytes; print(default_limit_bytes())"
        found = subprocess.check_output(["sh", "-c", ask, "sh", sys.executable, "-c", code], cwd=ROOT)
    finally:
        (outer / "inner").rmdir()
        outer.rmdir()
    assert int(found) == limit * 3 // 4 < default_limit_bytes()

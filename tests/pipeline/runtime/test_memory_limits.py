"""Limits of control groups, read from machines laid out in folders."""

from pathlib import Path

import psutil
import pytest

from pipeline.config.train_config import Resources
from pipeline.runtime import memory_limits
from pipeline.runtime.memory_limits import limit_bytes, memory_limit_bytes, processor_limit

FIRST = "31 23 0:28 / /sys/fs/cgroup/{name} rw,relatime - cgroup cgroup rw,{name}"
SECOND = "30 23 0:26 {top} /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def machine(root: Path, members: str, mounts: str, files: dict[str, str]) -> Path:
    texts = {"proc/self/cgroup": members, "proc/self/mountinfo": "1 0 8:1 / / rw - ext4 /dev/sda rw\n" + mounts}
    for name, text in {**texts, **{f"sys/fs/cgroup/{name}": text for name, text in files.items()}}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


def second(root: Path, path: str, files: dict[str, str], top: str = "/") -> Path:
    return machine(root, f"0::{path}", SECOND.format(top=top), files)


def test_version_2_takes_the_tightest_of_all_groups_above(tmp_path):
    limits = {"jobs": "4000", "jobs/mine": "max", "jobs/mine/step": "9000", "other": "1"}
    quotas = {"jobs": "250000", "jobs/mine": "max", "jobs/mine/step": "800000"}
    files = {f"{group}/memory.max": limit for group, limit in limits.items()}
    files |= {f"{group}/cpu.max": f"{quota} 100000" for group, quota in quotas.items()}
    root = second(tmp_path, "/jobs/mine/step", files)
    assert (memory_limit_bytes(root), processor_limit(root)) == (4000, 3)
    (root / "sys/fs/cgroup/jobs/mine/memory.high").write_text("3000\n")
    assert memory_limit_bytes(root) == 3000


def test_version_1_takes_the_tightest_of_all_groups_above(tmp_path):
    limits = {"": "9223372036854771712", "/slurm/job": "5000", "/slurm/job/step": "7000"}
    quotas = {"/slurm/job": "50000", "/slurm/job/step": "-1", "": "400000"}
    files = {f"memory{group}/memory.limit_in_bytes": limit for group, limit in limits.items()}
    files |= {f"cpu,cpuacct{group}/cpu.cfs_quota_us": quota for group, quota in quotas.items()}
    files |= {f"cpu,cpuacct{group}/cpu.cfs_period_us": "100000" for group in quotas}
    members = "4:memory:{0}\n2:cpu,cpuacct:{0}\n1:name=systemd:/elsewhere\n0::/".format("/slurm/job/step")
    mounts = "\n".join([FIRST.format(name="memory"), FIRST.format(name="cpu,cpuacct")])
    root = machine(tmp_path, members, mounts, files)
    assert (memory_limit_bytes(root), processor_limit(root)) == (5000, 1)


@pytest.mark.parametrize(
    ("path", "top"), [("/docker/abc", "/docker/abc"), ("/kubepods/pod1", "/docker/abc"), ("/", "/")]
)
def test_a_container_that_sees_only_its_own_group(tmp_path, path, top):
    root = second(tmp_path, path, {"memory.max": "6000", "cpu.max": "100000 100000"}, top)
    assert memory_limit_bytes(root) == 6000
    assert processor_limit(root) == 1


@pytest.mark.parametrize("members", ["", "nonsense", "0::/gone"])
def test_a_machine_without_limits(tmp_path, members):
    root = machine(tmp_path, members, SECOND.format(top="/"), {"cpu.max": "max 100000", "memory.max": "max"})
    assert memory_limit_bytes(root) is None
    assert processor_limit(root) is None
    assert memory_limit_bytes(tmp_path / "nothing") is None


def test_the_default_limit_is_three_quarters_of_what_the_groups_leave(monkeypatch):
    everything = limit_bytes(Resources())
    for limit, expected in ((2**30, 3 * 2**28), (2**80, None), (None, None)):
        monkeypatch.setattr(memory_limits, "memory_limit_bytes", lambda limit=limit: limit)
        assert limit_bytes(Resources()) == (expected or psutil.virtual_memory().total * 3 // 4)
    assert 0 < everything <= limit_bytes(Resources()), "of this machine and its groups"

"""Where a file that is removed while somebody has it open stays in its folder under another name (NFS, FUSE).

bindfs shows a folder through FUSE, which does so: an open or mapped file becomes `.fuse_hidden...`, and its folder
cannot be removed until it is closed.
"""

import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from pipeline import verify
from pipeline.train import main as train
from runs import ROOT
from storage import disk_writes as disk
from storage.atomic_writes import remove_folder, remove_stale, write_arrays

IN_ROUNDS = ("--centers", "200", "--set", "centers.working_set=80", "--penalty", "1", "--intercept")
MODES = {
    "at once": ("--centers", "40", "--intercept", "--refit", "ridge"),
    "rounds": IN_ROUNDS,
    "greedy": ("--centers", "60", "--select", "greedy:20"),
    "greedy in rounds": ("--centers", "200", "--set", "centers.working_set=60", "--select", "greedy:20"),
    "rounds, processes": (*IN_ROUNDS, "--scheduler", "processes", "--workers", "2"),
    "a path": ("--centers", "40", "--penalty", "path:max:0.1:3"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A regression on 400 rows; the features are stored beside it, shared by all runs."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    path = tmp_path_factory.mktemp("data") / "data.npz"
    np.savez(path, X=X, y=np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=400))
    return path


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Path]:
    """A folder on a file system that keeps removed files while they are open."""
    program, behind, shown = shutil.which("bindfs"), tmp_path / "behind", tmp_path / "shown"
    behind.mkdir()
    shown.mkdir()
    if program is None:
        pytest.skip("needs bindfs, which CI installs")
    mounted = subprocess.run([program, behind, shown], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"FUSE cannot be used here: {mounted.stderr.strip()}")
    yield shown
    for _ in range(50):  # the file system hears of the last close a moment later
        if not subprocess.run(["umount", shown], capture_output=True, check=False).returncode:
            return
        time.sleep(0.1)
    pytest.fail(f"{shown} is still in use")


def arguments(run: Path, data: Path, mode: str) -> list[str]:
    settings = ["--scheduler", "serial", *MODES[mode]] if "--scheduler" not in MODES[mode] else [*MODES[mode]]
    features = str(data.parent / "features")
    return [str(data), *settings, "--features-dir", features, "--run-dir", str(run), "--resume", "auto", "-q"]


def model_of(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((run / "model").iterdir())}


def test_what_is_still_mapped_goes_at_the_next_sweep(keeping: Path) -> None:
    for name in ("a", "b"):
        write_arrays(keeping / name, {"x": np.ones(100), "y": np.ones(3)})
    with (keeping / "a" / "x.npy").open("rb") as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    remove_folder(keeping / "a", durable=False)
    (left,) = keeping.glob(".tmp-a-*")
    assert [path.name[:12] for path in left.iterdir()] == [".fuse_hidden"]  # and all else is gone
    write_arrays(keeping / "a", {"x": np.zeros(2)})
    remove_folder(keeping / "b")
    assert remove_stale(keeping, recursive=True) == []
    mapped.close()
    until = time.monotonic() + 5
    while list(left.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    assert remove_stale(keeping, recursive=True) == [left]
    assert [path.name for path in keeping.iterdir()] == ["a"]


@pytest.mark.parametrize("mode", ["rounds", "greedy in rounds"])
def test_nothing_is_removed_while_this_process_maps_it(
    tmp_path: Path, data: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mapped, removed = [], []
    remove_tree = disk.low_remove_tree

    def watched(path: Path) -> None:
        removed.append(path)
        mapped.extend(line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line)
        remove_tree(path)

    monkeypatch.setattr(disk, "low_remove_tree", watched)
    assert train(arguments(tmp_path / "run", data, mode)) == 0
    assert sum(".tmp-round-" in path.name for path in removed) >= 2  # the statistics of earlier rounds
    assert mapped == []


@pytest.mark.nightly
@pytest.mark.parametrize("mode", MODES)
def test_a_run_ends_with_the_same_bytes_and_leaves_nothing(
    tmp_path: Path, keeping: Path, data: Path, mode: str
) -> None:
    command = [sys.executable, "-m", "pipeline.train"]
    for run in (tmp_path / "run", keeping / "run"):
        line = [*command, *arguments(run, data, mode)]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
    assert model_of(keeping / "run") == model_of(tmp_path / "run")
    assert list((keeping / "run").rglob(".*")) == []
    result = verify.verify_run(keeping / "run")
    assert (result.damaged, result.notes) == ([], [])


@pytest.mark.nightly
@pytest.mark.parametrize("mode", ["rounds", "greedy in rounds"])
def test_a_file_that_somebody_else_holds_open_costs_nothing(
    tmp_path: Path, keeping: Path, data: Path, mode: str
) -> None:
    """A backup, or another host, has every file of the first round open until the run is over."""
    assert train(arguments(tmp_path / "run", data, mode)) == 0
    run = keeping / "run"
    command = [sys.executable, "-m", "pipeline.train", *arguments(run, data, mode)]
    held = []
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None and not held:
            for path in run.glob("statistics/round-000*/gram.npy"):
                held.append(os.open(path, os.O_RDONLY))
        _, errors = process.communicate()
    assert held
    assert (process.returncode, errors) == (0, "")
    assert model_of(run) == model_of(tmp_path / "run")
    assert [note.partition(": ")[2] for note in verify.verify_run(run).notes] == [
        "left behind; nothing needs it, delete it"
    ]
    for descriptor in held:
        os.close(descriptor)

"""The memory limit is a promise: kept by the whole process tree, and what breaks it ends with 71 and advice."""

import json
import os
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
import pytest

from pipeline.config import TrainConfig, with_value
from pipeline.events import Events, MemoryMeter
from pipeline.executors import open_executor
from pipeline.plan import prepare
from pipeline.solvers import certify_support
from pipeline.stages import all_scores, centers, features, group_solve, grown_gram, working_set
from pipeline.stages.all_scores import Problem, Scored
from pipeline.stages.grown_gram import WorkingSet
from pipeline.stages.run import STAGES, Run, StageCost
from pipeline.statistics import GramStatistics
from storage.commit import make_folder, write_arrays
from storage.layout import RunLayout

ROOT = Path(__file__).resolve().parents[2]
CGROUPS = Path("/sys/fs/cgroup/memory")
HUNGRY = """\
import os
if os.environ.get("SLKL_HUNGRY"):
    from pipeline.stages import statistics
    real = statistics.accumulate_span
    def accumulate_span(task, span):
        bytearray(os.urandom(2**20)) * 4000
        return real(task, span)
    accumulate_span.__module__, accumulate_span.__qualname__ = real.__module__, real.__qualname__
    statistics.accumulate_span = accumulate_span
"""


def command(run: Path, *arguments: str) -> list[str]:
    line = [sys.executable, "-m", "pipeline.train", "synthetic", "--set", "data.n_train=9000", "--set"]
    line += ["data.n_test=300", "--penalty", "30", "-q", "--run-dir", str(run), "--features-dir"]
    return [*line, str(run.parent / "features"), *arguments]


@contextmanager
def cgroup(limit_bytes: int) -> Iterator[Path | None]:
    """Yield a control group of this limit, or None where none can be made."""
    folder = CGROUPS / f"slkl-test-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / "memory.limit_in_bytes").write_text(str(limit_bytes))
    except OSError:
        yield None
        return
    try:
        yield folder
    finally:
        folder.rmdir()


def largest_tree_bytes(process: subprocess.Popen[bytes], stop: threading.Event, found: list[int]) -> None:
    """Sample the proportional memory of a process and all below it."""
    while not stop.wait(0.1):
        try:
            tree = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            found.append(sum(one.memory_full_info().pss for one in tree))
        except psutil.Error:
            continue


CASES = {
    "ordinary": (["--centers", "1500", "--scheduler", "threads"], 900),
    "processes": (["--centers", "600", "--scheduler", "processes", "--workers", "2"], 1600),
    "in rounds": (["--centers", "all", "--scheduler", "threads"], 700),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_process_tree_stays_below_the_limit(tmp_path: Path, case: str) -> None:
    arguments, limit_mib = CASES[case]
    line = command(tmp_path / "run", *arguments, "--memory-limit", f"{limit_mib}MiB")
    with cgroup(limit_mib * 2**20) as group:
        if group is not None:  # a shell that enters the group and then becomes the run
            line = ["sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *line]
        process, stop, samples = subprocess.Popen(line, cwd=ROOT), threading.Event(), list[int]()
        sampler = threading.Thread(target=largest_tree_bytes, args=(process, stop, samples))
        sampler.start()
        try:
            assert process.wait(timeout=300) in (0, 3)
        finally:
            stop.set()
            sampler.join()
            process.kill()
        if group is not None:
            assert "oom_kill 0" in (group / "memory.oom_control").read_text()
    assert 100 * 2**20 < max(samples) < limit_mib * 2**20
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert (report["passes"] is not None) == (case == "in rounds")


@pytest.mark.slow
def test_a_worker_over_its_memory_ends_the_run_with_advice(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(HUNGRY)
    path = f"{tmp_path / 'site'}{os.pathsep}{ROOT}"
    line = command(tmp_path / "run", "--centers", "100", "--scheduler", "processes", "--workers", "1")
    line += ["--memory-limit", "1GiB"]
    started = time.monotonic()
    done = subprocess.run(
        line,
        cwd=ROOT,
        env={**os.environ, "SLKL_HUNGRY": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 71, done.stderr
    assert "memory" in done.stderr
    assert "--memory-limit" in done.stderr
    assert time.monotonic() - started < 240
    assert subprocess.run([*line, "--resume", "auto"], cwd=ROOT, check=False).returncode in (0, 3)


@pytest.fixture(scope="module")
def in_rounds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A run in rounds whose features are there and whose solves fit an intercept: 3000 images, 2172 features each."""
    folder = tmp_path_factory.mktemp("rounds")
    settings = {
        "data.n_train": 3000,
        "data.n_test": 100,
        "features.name": "sphog",
        "centers.count": "all",
        "centers.working_set": 2000,
        "statistics.block_rows": 512,
        "resources.features_dir": str(folder / "features"),
        "solver.intercept": True,
    }
    config = TrainConfig(dataset="synthetic")
    for key, value in settings.items():
        config = with_value(config, key, value)
    prepared = prepare(config, frozenset(settings), frozen=False)
    layout, costs = RunLayout(folder / "run"), {name: StageCost() for name in STAGES}
    shape, store = prepared.shape, prepared.store
    make_folder(layout.root)
    make_folder(store.root)
    with (
        MemoryMeter() as meter,
        Events(layout.log, layout.metrics, meter, quiet=True) as events,
        open_executor("serial", 1, 2**30) as executor,
    ):
        run = Run(layout, store, store, prepared.request, shape, prepared.config, events, executor, costs)
        features.run(run)
        centers.run(run)
        yield run


@contextmanager
def largest_bytes() -> Iterator[list[int]]:
    """Yield a list that then holds the most that was allocated inside at once, in bytes."""
    found: list[int] = []
    tracemalloc.start()
    try:
        yield found
        found.append(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()


def test_growing_a_gram_of_few_columns_reads_few_features_at_once(
    in_rounds: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few columns make long blocks: once 3000 rows of features here, 26 MB, though a block is to hold 4 MiB."""
    monkeypatch.setattr(grown_gram, "BLOCK_BYTES", 2**22)
    grown_gram.grow(in_rounds, "round-900", None, np.empty(0, np.int64), np.arange(2))  # compiles what is compiled
    with largest_bytes() as largest:
        found = grown_gram.grow(in_rounds, "round-000", None, np.empty(0, np.int64), np.arange(0, 3000, 60))
    read = 4 * 2172 * 512  # a chunk
    assert read < largest[0] < 2.5 * read
    assert found.statistics.weight_sum == 3000


def test_weights_and_certificate_of_a_round_need_no_gram_of_their_own(in_rounds: Run) -> None:
    """Where nearly all columns are active it would be as large as the mapped one, and its centred copies too."""
    rng, m = np.random.default_rng(0), 1500
    K, Y = rng.random((100, m)), rng.random((100, in_rounds.shape.n_outputs))
    sums = GramStatistics(K.T @ K, K.T @ Y, (Y**2).sum(0), K.sum(0), Y.sum(0), 100.0)
    current = WorkingSet("round-007", np.arange(m), sums)
    table = rng.normal(size=(m, Y.shape[1]))
    make_folder(in_rounds.layout.solutions)
    for output in range(Y.shape[1]):
        arrays = {"active": np.arange(m), "weights": table[None, :, output : output + 1]}
        name = f"{current.name}-centred-{group_solve.item_name((output,))}.npz"
        write_arrays(in_rounds.layout.solution(name), arrays)
    scores = K.T @ (Y - K @ table)
    zeros = np.zeros_like(scores)
    scored = Scored(scores, np.linalg.norm(K, axis=0), Y, zeros, np.zeros(m, bool), m, 0, 0)
    with largest_bytes() as largest:
        weights = working_set._weights(in_rounds, current)
        certificates = all_scores.certify(in_rounds, current, weights, scored, Problem(np.arange(m), 1.0, False, 512))
    assert largest[0] < 0.2 * sums.gram.nbytes
    centred = sums.centred()
    np.testing.assert_array_equal(weights.intercept, centred.intercept(table))
    for output, found in enumerate(certificates):
        column = [output]
        expected = certify_support(
            table[:, column], scores[:, column], centred.kty[:, column], centred.yty[output], 1.0, found.max_score
        )
        assert found == expected


def test_a_limit_too_small_names_the_smallest_that_would_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from pipeline.train import main

    arguments = command(tmp_path / "run", "--centers", "all", "--memory-limit", "300MiB")[3:]
    assert main(arguments) == 71
    error = capsys.readouterr().err
    assert "use --memory-limit" in error
    smallest = error.split("--memory-limit ")[1].split("MiB")[0]
    assert not (tmp_path / "run").exists()
    assert main([*arguments, "--memory-limit", f"{smallest}MiB", "--dry-run"]) == 0

"""The same model bytes, whoever computes: executors, threads, rows read at once, memory, stops and resumes."""

import itertools
from pathlib import Path

import numpy as np
import pytest

from pipeline.kernels import exact_sums
from pipeline.runtime import row_pass, stopping
from pipeline.train import main
from runs import model_bytes

RAW = ("--set", "data.standardise=false")  # the intersection kernel takes no negative features
TOGETHER = ("--set", "centers.working_set=120")
ON_DEMAND = ("--centers", "all", "--set", "centers.columns=on-demand")
CASES = {
    "one for each class": ("--centers", "150"),
    "one kernel": ("--centers", "150", "--coupling", "shared", "--intercept"),
    "several widths": ("--centers", "70", "--sigma2", "0.5,2,8"),
    "a path": ("--centers", "100", "--penalty", "path:5:0.5:3", "--refit", "ridge"),
    "rounds": ("--centers", "all", "--set", "centers.working_set=120", "--refit", "ridge"),
    "a selection": ("--centers", "200", "--select", "greedy:30"),
    "a selection in rounds": ("--centers", "400", "--set", "centers.working_set=90", "--select", "greedy:30"),
    "learned scales": ("--centers", "150", "--scale", "learned", "--set", "kernel.scale_rounds=2"),
    "regression in rounds, learned scales": (
        "--centers",
        "all",
        *TOGETHER,
        "--scale",
        "learned",
        "--features-store=none",
    ),
    "on demand": (*ON_DEMAND, "--refit", "ridge", "--set", "data.weights=w", "--class-weight", "balanced"),
    "on demand, one kernel": (*ON_DEMAND, "--coupling", "shared", "--intercept", "--features-store=none"),
    "regression on demand, little room": (*ON_DEMAND, *TOGETHER, "--kernel", "intersection", *RAW),
    "moved centers": ("--centers", "200", "--select", "greedy:30", "--polish-centers", "4"),
    "weights": ("--centers", "150", "--penalty", "auto", "--set", "data.weights=w", "--class-weight", "balanced"),
    "weights in rounds": ("--centers", "all", *TOGETHER, "--set", "data.weights=w", "--class-weight", "balanced"),
    "regression": ("--centers", "120", "--kernel", "polynomial", "--sigma2", "auto"),
    "regression in rounds": ("--centers", "all", "--set", "centers.working_set=120", "--kernel", "intersection", *RAW),
}
QUICK = (
    "several widths",
    "learned scales",
    "rounds",
    "a selection in rounds",
    "moved centers",
    "weights in rounds",
    "on demand",
)
STOPPED = ("rounds", "learned scales", "moved centers", "weights in rounds")
SERIAL = ("--scheduler", "serial")
MANY = ("--scheduler", "threads", "--workers", "3", "--memory-limit", "8GiB", "--checkpoint-every", "0.05s")
WAYS = {
    "one thread": ("--scheduler", "threads", "--workers", "1", "--block-size", "40"),
    "threads": (*MANY, "--block-size", "5000"),
    "processes": ("--scheduler", "processes", "--workers", "2", "--block-size", "1"),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of 900 rows with 4 features of at least 0 and weights, once with classes and once with values."""
    folder = tmp_path_factory.mktemp("same")
    rng = np.random.default_rng(0)
    X = rng.random((900, 4))
    values = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=900)
    weights = rng.exponential(size=900)
    np.savez(folder / "regression.npz", X=X, y=values)
    np.savez(folder / "classes.npz", X=X, y=np.digitize(values, np.quantile(values, [1 / 3, 2 / 3])), w=weights)
    return folder


def trained(data: Path, run: Path, case: str, *arguments: str) -> int:
    source = data / ("regression.npz" if "regression" in case else "classes.npz")
    line = [str(source), "--run-dir", str(run), "--features-dir", str(data / "features"), "--resume", "auto", "-q"]
    line += [] if "--penalty" in CASES[case] or "--select" in CASES[case] else ["--penalty", "1"]
    return main([*line, *CASES[case], *arguments])


@pytest.fixture(scope="module")
def reference(data: Path) -> dict[str, dict[str, bytes]]:
    """The model bytes of each case, made where a test first asks for them."""
    return {}


def bytes_of(reference: dict[str, dict[str, bytes]], data: Path, case: str) -> dict[str, bytes]:
    if case not in reference:
        assert trained(data, data / case, case, *SERIAL) == 0
        reference[case] = model_bytes(data / case)
        assert (b'"temperature"' in reference[case]["model.json"]) == ("regression" not in case)
    return reference[case]


@pytest.mark.parametrize(
    ("case", "way"),
    [
        pytest.param(case, way, marks=() if way == "threads" and case in QUICK else pytest.mark.nightly)
        for case, way in itertools.product(CASES, WAYS)
    ],
)
def test_whoever_computes_the_bytes_are_the_same(
    data: Path, reference: dict[str, dict[str, bytes]], tmp_path: Path, case: str, way: str
) -> None:
    assert trained(data, tmp_path / "run", case, *WAYS[way]) == 0
    assert model_bytes(tmp_path / "run") == bytes_of(reference, data, case)
    assert not (tmp_path / "run" / "passes").exists()


@pytest.mark.parametrize("case", ["one for each class", "regression in rounds"])
def test_threads_that_share_their_sums_make_the_same_bytes(
    data: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a large Gram do: here 128 KiB are large, and a tile has 32 columns."""
    monkeypatch.setattr(row_pass, "SHARE_BYTES", 2**17)
    monkeypatch.setattr(exact_sums, "TILE_COLUMNS", 32)
    found = []
    for name, way in (("serial", SERIAL), ("threads", MANY), ("more", (*MANY, "--workers", "5"))):
        assert trained(data, tmp_path / name, case, *way) == 0
        found.append(model_bytes(tmp_path / name))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "case", [case if case in STOPPED else pytest.param(case, marks=pytest.mark.nightly) for case in CASES]
)
def test_a_run_that_is_stopped_again_and_again_is_taken_up_by_others(
    data: Path, reference: dict[str, dict[str, bytes]], tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each session is asked to stop when some runs of pieces were taken, wherever in whatever pass that is."""
    take, count = row_pass._Waiting.take, itertools.count(1)
    every = 60 if case in STOPPED or "rounds" in case else 20 if "demand" in case else 5

    def interrupted(waiting: row_pass._Waiting) -> range:
        if next(count) % every == 0:
            stopping.request("a test")
        return take(waiting)

    monkeypatch.setattr(row_pass._Waiting, "take", interrupted)
    ways = itertools.cycle([SERIAL, MANY, ("--scheduler", "threads", "--workers", "2", "--memory-limit", "3GiB")])
    codes = []
    while not codes or codes[-1] == 75:
        codes.append(trained(data, tmp_path / "run", case, *next(ways)))
        passes = tmp_path / "run" / "passes"
        assert all(len(list(each.glob("sums-*.npz"))) <= 1 for each in passes.glob("*")), "one file a process"
    assert codes[-1] == 0
    assert len(codes) > 1
    monkeypatch.undo()
    assert model_bytes(tmp_path / "run") == bytes_of(reference, data, case)

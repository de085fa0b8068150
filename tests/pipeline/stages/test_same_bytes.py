"""The same model bytes of every case, whoever computes it, and wherever it is stopped and taken up by others."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from cases import CASES, SERIAL
from pipeline.kernels import exact_sums
from pipeline.runtime import row_pass
from runs import TrainedRuns, model_bytes, train
from stopping_points import STOPS, stop_amid_passes, stop_at_commits, until_done

THREADS = ("--scheduler", "threads")
MANY = (*THREADS, "--workers", "3", "--memory-limit", "8GiB", "--checkpoint-every", "0.05s")
# The command lines that the sessions of a run have in turn.
WAYS = {
    "serial": [SERIAL],
    "one thread": [(*THREADS, "--workers", "1", "--block-size", "40")],
    "threads": [(*MANY, "--block-size", "5000")],
    "processes": [("--scheduler", "processes", "--workers", "2", "--block-size", "1")],
    "in turn": [MANY, SERIAL, (*THREADS, "--workers", "2", "--memory-limit", "3GiB")],
}
QUICK = {
    ("one for each class", "threads", "never"),
    ("learned scales", "in turn", "amid passes"),
    ("rounds, a selection", "in turn", "at commits"),
}
PROCESSES = ("rounds", "rounds, a selection", "on demand", "learned scales")


def combinations() -> Iterator[object]:
    """Every case is stopped in both ways and taken up by others; the whole product at night."""
    for case, way, stop in itertools.product(CASES, WAYS, ("never", "amid passes", "at commits", "at every commit")):
        if (case, way, stop) in QUICK:
            yield case, way, stop
        elif (way, stop) in (("in turn", "amid passes"), ("in turn", "at commits")):
            yield pytest.param(case, way, stop, marks=pytest.mark.ci)
        elif (way, stop) == ("processes", "never"):
            yield pytest.param(case, way, stop, marks=pytest.mark.ci if case in PROCESSES else pytest.mark.nightly)
        elif stop == "at every commit":
            if way in ("serial", "in turn"):
                yield pytest.param(case, way, stop, marks=pytest.mark.nightly)
        elif (way, stop) not in (("serial", "never"), ("in turn", "never"), ("processes", "amid passes")):
            yield pytest.param(case, way, stop, marks=pytest.mark.nightly)


@pytest.mark.parametrize(("case", "way", "stop"), list(combinations()))
def test_whoever_computes_and_wherever_they_stop_the_bytes_are_the_same(
    finished_run: TrainedRuns, tables: Path, features: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    case: str, way: str, stop: str,
) -> None:  # fmt: skip
    table, run = CASES[case].dataset(tables), tmp_path / "run"
    reference = finished_run(*CASES[case].arguments, *SERIAL, dataset=table)
    if stop == "amid passes":
        stop_amid_passes(monkeypatch)
    elif stop != "never":
        stop_at_commits(monkeypatch, run, range(1000) if stop == "at every commit" else STOPS)

    def check_files() -> None:
        for each in (run / "passes").glob("*"):
            assert len(list(each.glob("sums-*.npz"))) <= (2 if way == "processes" else 1), "one file a process"

    line = [table, "--run-dir", run, "--features-dir", features, *CASES[case].arguments]
    sessions = until_done(line, WAYS[way], check_files)
    assert (sessions > 2) == (stop != "never")
    assert model_bytes(run) == model_bytes(reference)
    scores = [one / "markers" / "evaluate" / "scores.json" for one in (run, reference)]
    assert scores[0].read_bytes() == scores[1].read_bytes()
    assert (b'"temperature"' in model_bytes(run)["model.json"]) == (CASES[case].table == "classes")
    assert not (run / "passes").exists()


@pytest.mark.parametrize("case", ["one for each class", pytest.param("rounds, weights", marks=pytest.mark.ci)])
def test_threads_that_share_their_sums_make_the_same_bytes(
    tables: Path, features: Path, tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As those of a large Gram do: here 8 KiB are large, and a tile has 16 columns."""
    monkeypatch.setattr(row_pass, "OWN_SUMS_BYTES", 2**13)
    monkeypatch.setattr(exact_sums, "TILE_COLUMNS", 16)
    found = []
    for name, way in (("serial", SERIAL), ("threads", MANY), ("more", (*MANY, "--workers", "5"))):
        train(tmp_path / name, features, *CASES[case].arguments, *way, dataset=CASES[case].dataset(tables))
        found.append(model_bytes(tmp_path / name))
    assert found[0] == found[1] == found[2]

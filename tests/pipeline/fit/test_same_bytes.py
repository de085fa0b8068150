"""The same model bytes of every case, whoever computes it, wherever it is stopped, damaged, or taken up by others."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cases import CASES, SERIAL
from pipeline import report
from pipeline.fit import filled_settings
from pipeline.kernels import exact_sums, kernel_functions
from pipeline.runtime import row_pass
from runs import model_bytes, report_of, train
from stopping_points import STOPS, stop_amid_passes, stop_at_commits, until_done
from storage.arrays import load

THREADS = ("--scheduler", "threads")
MANY = (*THREADS, "--workers", "3", "--memory-limit", "8GiB", "--checkpoint-every", "0.05s")
# The command lines that the sessions of a run have in turn.
WAYS = {
    "serial": [SERIAL],
    "one thread": [(*THREADS, "--workers", "1")],
    "threads": [MANY],
    "processes": [("--scheduler", "processes", "--workers", "2")],
    "in turn": [MANY, SERIAL, (*THREADS, "--workers", "2", "--memory-limit", "3GiB")],
}
QUICK = {
    ("one for each class", "threads", "never"),
    ("one for each class", "in turn", "amid passes"),
    ("a selection", "in turn", "at commits"),
}
PROCESSES = ("rounds", "a selection, moved", "on demand", "learned scales")


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
    finished_run, tables, features, tmp_path, monkeypatch, case, way, stop
):
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
    scores = [load(next(one.glob("scores/*.npz"))).arrays.items() for one in (run, reference)]
    first, second = ([(name, values.tobytes()) for name, values in arrays] for arrays in scores)
    assert first == second
    assert (b'"temperature"' in model_bytes(run)["model.npz"]) == (CASES[case].table != "values")
    assert not (run / "passes").exists()


@pytest.mark.parametrize("case", ["one for each class", pytest.param("rounds, weights", marks=pytest.mark.ci)])
def test_threads_that_share_their_sums_make_the_same_bytes(tables, features, tmp_path, case, monkeypatch):
    """As those of a large Gram do: here 8 KiB are large, and a tile has 16 columns."""
    monkeypatch.setattr(row_pass, "OWN_SUMS_BYTES", 2**13)
    monkeypatch.setattr(exact_sums, "TILE_COLUMNS", 16)
    found = []
    for name, way in (("serial", SERIAL), ("threads", MANY), ("more", (*MANY, "--workers", "5"))):
        train(tmp_path / name, features, *CASES[case].arguments, *way, dataset=CASES[case].dataset(tables))
        found.append(model_bytes(tmp_path / name))
    assert found[0] == found[1] == found[2]


@pytest.mark.ci
def test_sessions_with_kernels_in_another_order_go_on_to_the_same_bytes(
    finished_run, tables, features, tmp_path, monkeypatch
):
    """What was chosen and tried has names: after every second commit the kernels are listed the other way round."""
    case, run = CASES["learned scales"], tmp_path / "run"
    reference = finished_run(*case.arguments, *SERIAL, dataset=case.dataset(tables))
    stop_at_commits(monkeypatch, run, range(0, 1000, 2))

    def turn() -> None:
        for module in (kernel_functions, filled_settings):
            monkeypatch.setattr(module, "KERNELS", module.KERNELS[::-1])

    line = [case.dataset(tables), "--run-dir", run, "--features-dir", features, *case.arguments]
    assert until_done(line, after=turn) > 5
    assert model_bytes(run) == model_bytes(reference)
    tried = report_of(run)["kernels_tried"]
    assert {one["kernel"] for one in tried} == {"gaussian", "product-laplace"}
    assert tried == report_of(reference)["kernels_tried"]


KINDS = [
    "a selection",
    *(pytest.param(kind, marks=pytest.mark.ci) for kind in ("a search", "rounds")),
]


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_done_with_a_finished_run_needs_no_statistics(finished_run, tables, features, tmp_path, kind):
    finished = finished_run(*CASES[kind].arguments, *SERIAL, dataset=CASES[kind].dataset(tables))
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    assert not (run / "statistics").exists()
    assert report.main([str(run)]) == 0
    assert "Not shown or damaged" not in (run / "report.html").read_text()
    before = (run / "STATE.json").read_bytes()
    resume = {"dataset": CASES[kind].dataset(tables)}
    train(run, features, "--resume", "auto", **resume)  # there is nothing to do
    assert (run / "STATE.json").read_bytes() == before
    (run / "report.json").unlink()  # what advice on damage says to delete
    shutil.rmtree(run / "model")
    train(run, features, "--resume", "auto", **resume)
    assert model_bytes(run) == model_bytes(finished)
    assert report_of(run)["stages"]["statistics"]["items"] == report_of(finished)["stages"]["statistics"]["items"]

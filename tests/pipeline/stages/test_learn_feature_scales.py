"""`--scale learned` from training to prediction: what it gains, where it is left out, what is taken up again."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cases import CASES, SERIAL, Case
from commands import flip
from features.standardisation import Standardisation
from pipeline import evaluate, predict, resize
from pipeline.kernels.scaled_rows import lengths, scaled
from pipeline.prediction.model_folder import load_model
from pipeline.report import write
from pipeline.reporting import verification
from pipeline.reporting.results import table
from pipeline.stages.run_workspace import Run
from runs import TrainedRuns, model_bytes, report_of, train
from stopping_points import until_done
from storage.arrays import read_arrays
from storage.folder_layouts import RunLayout

PLAIN = ("--centers", "150", "--select", "greedy:60", *SERIAL)
LEARNED = (*PLAIN, "--set", "kernel.scale_rounds=6", "--scale", "learned")
METRIC = (*PLAIN, "--set", "kernel.scale_rounds=3", "--scale", "metric")


@pytest.fixture(scope="module")
def data(shared_folder: Path) -> Path:
    """Twelve inputs of which two matter, on scales of their own."""
    path = shared_folder / "scales.csv"
    if path.exists():
        return path
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1600, 12)) * np.geomspace(1e-3, 1e3, 12)
    y = np.sin(2 * X[:, 4] / X[:, 4].std()) * X[:, 9] / X[:, 9].std() + 0.05 * rng.normal(size=1600)
    names = ",".join([f"input {j}" for j in range(12)] + ["y"])
    aside = path.with_suffix(f".{os.getpid()}")  # another process may read or write at this moment
    np.savetxt(aside, np.column_stack([X, y]), delimiter=",", header=names, comments="")
    return aside.replace(path)


@pytest.fixture(scope="module", params=[LEARNED, METRIC], ids=["a scale for each", "a metric"])
def line(request: pytest.FixtureRequest) -> tuple[str, ...]:
    return tuple(request.param)


@pytest.fixture
def learned(finished_run: TrainedRuns, data: Path, line: tuple[str, ...]) -> Path:
    return finished_run(*line, dataset=data)


def test_files_are_predicted_as_the_run_scored_them(
    data: Path, learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, report = load_model(learned / "model"), report_of(learned)
    assert evaluate.main([str(learned), "--json"]) == 0
    assert f'"rmse": {report["rmse"]:.6f}'[:14] in capsys.readouterr().out
    assert resize.main([str(learned), "--size", "30", "--out", str(tmp_path / "small")]) == 0
    smaller = load_model(tmp_path / "small")
    np.testing.assert_array_equal(smaller.feature_scales, model.feature_scales)
    for folder, each in ((learned, model), (tmp_path / "small", smaller)):
        out = tmp_path / f"{folder.name}.npz"
        assert predict.main([str(folder), str(data), "--out", str(out), "-q"]) == 0
        table = np.loadtxt(data, delimiter=",", skiprows=1)
        assert isinstance(model.standardisation, Standardisation)
        X = scaled(model.standardisation.apply(table[:, :12]).astype(np.float32), model.feature_scales)
        distances = ((X[:, None].astype(float) - each.centers) ** 2).sum(axis=2)
        expected = np.exp(-distances / (2 * each.center_sigma2)) @ each.weights + each.intercept
        with np.load(out) as written:
            rounding = 16 * np.finfo(np.float32).eps * np.abs(each.weights).sum()  # of columns and distances
            np.testing.assert_allclose(written["decision"][:, 0], expected[:, 0], atol=rounding)
    assert verification.verify_run(learned).damaged == []


def test_the_report_tells_which_inputs_matter(learned: Path, line: tuple[str, ...], tmp_path: Path) -> None:
    told = report_of(learned)["feature_scales"]
    assert told["names"] == [f"input {j}" for j in range(12)]
    assert told["kind"] == ("metric" if line == METRIC else "diagonal")
    assert told["scales"] == lengths(load_model(learned / "model").feature_scales).tolist()
    assert sum(told["importances"]) == pytest.approx(1.0)
    best = told["hold_out_errors"][told["chosen_round"]]
    assert best == min(told["hold_out_errors"]) < told["hold_out_errors"][0] / 9
    (words,) = [words for words in table(report_of(learned)) if words.startswith("feature ")]
    assert words.startswith("feature metric" if line == METRIC else "feature scales")
    assert "input 4 " in words
    assert "input 9 " in words
    page = write(learned, tmp_path / "page.html").read_text()
    bars = page[page.index('id="importances"') :].split("</svg>")[0]
    assert 'text-anchor="end">input ' in bars
    order = [name.split("<")[0] for name in bars.split('text-anchor="end">')[1:]]
    assert len(order) == 12
    assert set(order[:2]) == {"input 4", "input 9"}


def test_scales_without_gain_are_not_taken(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1200, 3))
    np.savez(tmp_path / "ball.npz", X=X, y=np.linalg.norm(X, axis=1))
    report = train(tmp_path / "run", tmp_path / "features", *LEARNED, dataset=tmp_path / "ball.npz")
    stored = read_arrays(RunLayout(tmp_path / "run").feature_scales)
    assert stored["chosen"] == 0
    assert len(stored["hold_out_errors"]) < 9
    np.testing.assert_array_equal(load_model(tmp_path / "run" / "model").feature_scales, np.ones(3))
    plain = train(tmp_path / "plain", tmp_path / "features", *PLAIN, dataset=tmp_path / "ball.npz")
    assert report["rmse"] == plain["rmse"]
    assert any("none, " in line for line in table(report) if line.startswith("feature scales"))
    assert "gained nothing" in write(tmp_path / "run", None).read_text()
    assert "Which features matter" not in write(tmp_path / "plain", None).read_text()


@pytest.fixture(params=["learned scales", "a metric"])
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


def test_a_run_that_ends_amid_a_round_goes_on_after_the_last_whole_one(
    finished_run: TrainedRuns, tables: Path, features: Path, tmp_path: Path, case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is written at the time; fits, derivatives and the scales that are taken are not made again."""
    reference = finished_run(*case.arguments, *SERIAL, dataset=case.dataset(tables))
    written: list[str] = []
    commit = Run.commit

    def killed(run: Run, name: str, arrays: dict[str, np.ndarray]) -> object:
        stored, path = commit(run, name, arrays), Path(name)
        if path.parent.name in ("feature-scales", "scales"):
            assert path.name.startswith("scales") or path.name not in written, "what was committed is not made again"
            written.append(path.name)
            if written.count(path.name) == 1:
                raise KeyboardInterrupt
        return stored

    monkeypatch.setattr(Run, "commit", killed)
    line = [case.dataset(tables), "--run-dir", tmp_path / "run", "--features-dir", features, *case.arguments]
    assert until_done(line) > 5
    products = "products-000.npz" if "metric" in case.arguments else "squares-000.npz"
    assert list(dict.fromkeys(written))[:4] == ["scales-000.npz", "fit-000.npz", products, "scales-001.npz"]
    assert written[-1] == "learned.npz"
    assert model_bytes(tmp_path / "run") == model_bytes(reference)


def test_damaged_scales_are_told_and_made_again(
    trained: Callable[..., Path], tables: Path, features: Path, case: Case
) -> None:
    run = trained(*case.arguments, *SERIAL, dataset=case.dataset(tables))
    path, before = RunLayout(run).feature_scales, model_bytes(run)
    flip(path)
    (told,) = verification.verify_run(run).damaged
    assert told.startswith("scales/learned.npz: ")
    folders = told.partition("delete the folders ")[2].partition(", and report.json")[0]
    for name in folders.replace(" and ", ", ").split(", "):
        shutil.rmtree(run / name, ignore_errors=True)
    (run / "report.json").unlink()
    train(run, features, *case.arguments, *SERIAL, "--resume", "auto", dataset=case.dataset(tables))
    assert model_bytes(run) == before
    assert verification.verify_run(run).damaged == []

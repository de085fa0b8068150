"""What a run tells beside its error: of classes, also rare ones, outliers, few candidates, and gaps that are left."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cases import SERIAL
from pipeline.evaluate import main as evaluate
from pipeline.report import main as write_report
from pipeline.reporting.result_table import certificate_words, not_converged, table
from pipeline.reporting.results import _few_candidates
from runs import TrainedRuns, report_of, save_once, train

FEW = ("--centers", "60", "--sigma2", "1", "--penalty", "none")


def lines_of_classes(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if line.startswith(("baseline: ", "class "))]


@pytest.fixture(scope="module")
def rare(shared_folder: Path) -> Path:
    """A table of two classes, 600 rows to train on and 300 to test: 7 % are of the second, amid others of the first."""
    X = np.random.default_rng(0).normal(size=(900, 3))
    near = np.linalg.norm(X - 1, axis=1) + 0.5 * np.random.default_rng(1).normal(size=900)
    y = np.where(near < np.quantile(near, 0.07), "yes", "no")
    path = shared_folder / "rare.npz"
    train, test = slice(600), slice(600, 900)
    w = np.where(y == "yes", 30.0, 1.0)
    save_once(path, X_train=X[train], y_train=y[train], w_train=w[train], X_test=X[test], y_test=y[test])
    return path


def test_a_run_tells_of_a_rare_class_that_it_misses(
    rare: Path, features: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "a run"
    report = train(run, features, *FEW, dataset=rare, quiet=False)
    shown = capsys.readouterr().out
    with np.load(rare) as data:
        n_rare, share = int((data["y_test"] == "yes").sum()), 100 * np.mean(data["y_train"] == "yes")
    assert report["baseline"] == {"label": "no", "error_rate": n_rare / 300}
    recall = report["by_class"][1]["recall"]
    assert 0.1 < recall < 0.5, "else this test shows nothing"
    words = f"yes ({share:.2g} % of the training rows, recall {100 * recall:.2f} %); --class-weight balanced finds more"
    assert f"NOTE: classes are often missed: {words}" in shown
    lines = lines_of_classes(shown)
    assert lines[0] == f"baseline: {100 * n_rare / 300:.2f} % error (always no); AUC {report['auc']:.4f}"
    assert "\nrecall below 90 %: 1 of 2 classes\nclass yes: " in shown
    assert lines[1].startswith(f"class yes: recall {100 * recall:6.2f} %, precision ")
    missed = report["confusion"][1][0]
    assert lines[1].endswith(f" ({n_rare} rows, {missed} taken for no)")
    assert shown.endswith(f"\n  python -m pipeline.evaluate '{run}'\n  python -m pipeline.report '{run}'\n")
    assert evaluate([str(run)]) == 0
    every = [line.replace("  ", " ") for line in lines_of_classes(capsys.readouterr().out)]
    assert [every[0], every[2]] == [line.replace("  ", " ") for line in lines]
    assert write_report([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert '<p class="warning">NOTE: classes are often missed: yes (' in page
    for words in (f"{100 * recall:.2f} %</td>", f"{report['auc']:.4f}</b> AUC", "error of always predicting no"):
        assert words in page


@pytest.mark.parametrize("more", [("--class-weight", "balanced"), ("--set", "data.weights=w")])
def test_classes_that_weigh_alike_are_not_rare(rare: Path, finished_run: TrainedRuns, more: tuple[str, ...]) -> None:
    missed = report_of(finished_run(*FEW, dataset=rare))
    report = report_of(finished_run(*FEW, *more, dataset=rare))
    assert (len(missed["notes"]), report["notes"]) == (1, [])
    assert report["by_class"][1]["recall"] > missed["by_class"][1]["recall"] + 0.1


def test_of_many_classes_the_table_names_the_worst(
    shared_folder: Path, finished_run: TrainedRuns, capsys: pytest.CaptureFixture[str]
) -> None:
    X = np.random.default_rng(0).random((900, 3))
    path = shared_folder / "dozen.npz"
    save_once(path, X=X, y=np.array(list("abcdefghijkl"))[(12 * X[:, 0]).astype(int)])
    run = finished_run(*FEW, dataset=path)
    report = report_of(run)
    lines = lines_of_classes("\n".join(table(report)))
    worst = sorted((one for one in report["by_class"] if one["recall"] < 0.9), key=lambda one: one["recall"])
    assert [line.split(":")[0] for line in lines[1:]] == [f"class {one['label']}" for one in worst[:10]]
    assert len(worst) > 10, "else this test shows nothing"
    assert f"recall below 90 %: {len(worst)} of 12 classes; the lowest 10" in table(report)
    assert evaluate([str(run)]) == 0
    everything = lines_of_classes(capsys.readouterr().out)
    assert len(everything) == 13
    assert set(lines[1:]) < set(everything)


def test_a_run_tells_of_outliers_that_ruin_its_fit(tmp_path: Path) -> None:
    """Of which .3 % of the targets are: a thousand times too large."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1100, 4))
    clean = 2 + np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=len(X))
    y = clean * np.where(rng.random(len(X)) < 0.003, 1000.0, 1.0)
    notes = {}
    for name, targets in (("outliers", y), ("clean", clean), ("noise", rng.normal(size=len(X)))):
        np.savez(tmp_path / f"{name}.npz", X=X, y=targets)
        asked = ("--centers", "80", "--sigma2", "2", "--select", "greedy:40", *SERIAL)
        report = train(tmp_path / name, tmp_path / "features", *asked, dataset=tmp_path / f"{name}.npz")
        notes[name] = report["notes"]
    (note,) = notes.pop("outliers")
    assert "median absolute deviations" in note
    assert "np.log1p of the target" in note
    assert "TransformedTargetRegressor" in note
    assert notes == {"clean": [], "noise": []}


@pytest.mark.parametrize(
    ("n_centers", "n_candidates", "penalty", "told"),
    [
        (95, 100, 0.1, ["the model keeps 95 of 100 candidates; more may lower the error: --centers 200"]),
        (540, 600, 0.1, ["the model keeps 540 of 600 candidates; more may lower the error: --centers all"]),
        (89, 100, 0.1, []),
        (1000, 1000, 0.1, []),
        (100, 100, None, []),
    ],
)
def test_a_penalty_that_keeps_nearly_all_candidates(
    n_centers: int, n_candidates: int, penalty: float | None, told: list[str]
) -> None:
    run = SimpleNamespace(n_candidates=n_candidates, shape=SimpleNamespace(n_train=1000))
    assert _few_candidates(run, n_centers, penalty) == told  # type: ignore[arg-type]


def test_solves_that_ended_alike_and_their_certificate_are_a_line_each() -> None:
    ended = [("a", 0.1, "raise it"), ("b", 0.2, "lower it"), ("c", 1e-9, None), ("d", 0.3, "raise it")]
    solves = [
        {"output": name, "relative_gap": gap, "converged": status is None, "status": status}
        for name, gap, status in ended
    ]
    assert not_converged({"tolerance": 0.001, "solves": solves}) == [
        "NOT CONVERGED: outputs a, d: relative gaps up to 3.0e-01, asked 0.001: raise it",
        "NOT CONVERGED: output b: relative gap 2.0e-01, asked 0.001: lower it",
    ]
    assert certificate_words({"solves": solves, "precision": "float64"}) == (
        "certificate: each of 4 relative gaps is at most 3.0e-01"
    )
    assert certificate_words({"solves": solves[2:3], "precision": "float32"}) == (
        "certificate: the relative gap is 1.0e-09, for kernel values rounded to float32"
    )

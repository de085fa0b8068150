"""What a run tells beside its error: of classes, also rare ones, and of gaps that are left."""

from pathlib import Path

import numpy as np
import pytest

from pipeline.evaluate import main as evaluate
from pipeline.report import main as write_report
from runs import report_of, save_once, train

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


def test_a_run_tells_of_the_classes_that_it_misses(rare, features, tmp_path, capsys):
    run = tmp_path / "a run"
    report = train(run, features, *FEW, dataset=rare, quiet=False)
    shown = capsys.readouterr().out
    with np.load(rare) as data:
        n_rare = int((data["y_test"] == "yes").sum())
    assert report["baseline"] == {"label": "no", "error_rate": n_rare / 300}
    recall = report["by_class"][1]["recall"]
    assert 0.1 < recall < 0.5, "else this test shows nothing"
    lines = lines_of_classes(shown)
    assert lines[0] == f"baseline: {100 * n_rare / 300:.2f} % error (always no)"
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
    for words in (f"{100 * recall:.2f} %</td>", "error of always predicting no"):
        assert words in page


@pytest.mark.parametrize("more", [("--class-weight", "balanced"), ("--set", "data.weights=w")])
def test_weights_find_more_of_a_rare_class(rare, finished_run, more):
    missed = report_of(finished_run(*FEW, dataset=rare))
    report = report_of(finished_run(*FEW, *more, dataset=rare))
    assert report["by_class"][1]["recall"] > missed["by_class"][1]["recall"] + 0.1

"""What a run tells beside its error: of classes, also rare ones."""

import numpy as np

from pipeline.evaluate import main as evaluate
from pipeline.report import main as write_report
from runs import train


def lines_of_classes(shown: str) -> list[str]:
    return [line for line in shown.splitlines() if line.startswith(("baseline: ", "class "))]


def test_a_run_tells_of_the_classes_that_it_misses(features, tmp_path, capsys):
    """Of 600 rows to train on and 300 to test 7 % are of the second class, amid others of the first."""
    X = np.random.default_rng(0).normal(size=(900, 3))
    near = np.linalg.norm(X - 1, axis=1) + 0.5 * np.random.default_rng(1).normal(size=900)
    y = np.where(near < np.quantile(near, 0.07), "yes", "no")
    np.savez(tmp_path / "rare.npz", X_train=X[:600], y_train=y[:600], X_test=X[600:], y_test=y[600:])
    run, n_rare = tmp_path / "a run", int((y[600:] == "yes").sum())
    few = ("--centers", "60", "--sigma2", "1", "--penalty", "none")
    report = train(run, features, *few, dataset=tmp_path / "rare.npz", quiet=False)
    shown = capsys.readouterr().out
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

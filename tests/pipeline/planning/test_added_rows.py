"""What `--add-rows` refuses, and what it says before a run starts."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline import evaluate, verify
from pipeline import train as training
from runs import files_of, report_of


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a table of words as labels, more rows of it, and a finished run."""
    folder = tmp_path_factory.mktemp("added")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    y = np.where(X[:, 0] > 0, "up", "down")
    for name, rows in (("old", slice(0, 200)), ("new", slice(200, 300))):
        write(folder / f"{name}.csv", "a,b,y", X[rows], y[rows])
    assert trained(folder, folder / "run", "--centers", "30", "--penalty", "0.5") == 0
    return folder


def write(path: Path, header: str, X: np.ndarray, y: np.ndarray) -> None:
    lines = [",".join([*map(repr, row), str(label)]) for row, label in zip(X.tolist(), y, strict=True)]
    path.write_text("\n".join([header, *lines]) + "\n")


def trained(place: Path, run: Path, *arguments: str) -> int:
    folders = ["--run-dir", str(run), "--features-dir", str(place / "features")]
    return training.main([str(place / "old.csv"), *folders, "--scheduler", "serial", *arguments])


def asked(place: Path, new: str = "new.csv", run: str = "run") -> tuple[str, ...]:
    return ("--add-rows", str(place / new), "--init-from", str(place / run))


def test_a_plan_says_what_is_taken_and_writes_nothing(place, tmp_path, capsys):
    before = files_of(place)
    assert trained(place, tmp_path / "run", *asked(place), "--dry-run") == 0
    out = capsys.readouterr().out
    assert f"100 rows are added to the 150 of {place / 'run'}, whose candidates and statistics are taken" in out
    assert "old: 250 training rows, 50 test rows" in out
    shutil.copytree(place / "run", tmp_path / "cut")
    assert trained(place, tmp_path / "cut", "--resume", "auto", "--keep-statistics", "centers", "-q") == 0
    cut = ("--add-rows", str(place / "new.csv"), "--init-from", str(tmp_path / "cut"))
    assert trained(place, tmp_path / "run", *cut, "--dry-run") == 0
    assert "it has not kept its statistics: all rows are passed over" in capsys.readouterr().out
    assert trained(place, tmp_path / "run", *asked(place), "--print-config") == 0
    assert "centers.count = 30  # the run" in capsys.readouterr().out
    assert files_of(place) == before
    assert not (tmp_path / "run").exists()


def test_the_same_command_resumes_its_run(place, tmp_path, capsys):
    line = (*asked(place), "--resume", "auto")
    assert trained(place, tmp_path / "run", *line) == 0
    assert "250 training rows (100 added)" in capsys.readouterr().out
    again = asked(place, "new.csv", "run")[:2]
    more = ("--add-rows", str(place / "new.csv"), "--init-from", str(tmp_path / "run"), "--resume", "auto")
    for _ in range(2):
        assert trained(place, tmp_path / "more", *more) == 0
    assert report_of(tmp_path / "more")["added_rows"] == [100, 100]
    assert verify.main([str(tmp_path / "more"), "-q"]) == 0
    assert trained(place, tmp_path / "more", "--add-rows", str(place / "old.csv"), "--resume", "auto") == 78
    assert trained(place, tmp_path / "more", *again, "--resume", "auto") == 0


def test_changed_rows_are_named_where_they_may_be(place, tmp_path, capsys):
    new = Path(shutil.copy(place / "new.csv", tmp_path / "new.csv"))
    assert trained(place, tmp_path / "run", "--add-rows", str(new), "--init-from", str(place / "run")) == 0
    new.write_text(new.read_text() + "1,2,up\n")
    assert evaluate.main([str(tmp_path / "run")]) == 78
    assert f"old.csv and {new}: no longer the data" in capsys.readouterr().err
    more = ("--add-rows", str(place / "new.csv"), "--init-from", str(tmp_path / "run"))
    assert trained(place, tmp_path / "more", *more) == 78
    assert f"old.csv and {new}: no longer the data" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ("--add-rows new.csv", 2, "--add-rows needs --init-from RUN"),
        ("--add-rows new.csv --init-from run/model", 66, "holds no finished run"),
        ("--add-rows new.csv --init-from nothing/", 66, "holds no finished run"),
        ("--add-rows new.csv --init-from run/ --sigma2 3", 78, "kernel.sigma2"),
        ("--init-from run/ --config two.toml", 2, "more than one file"),
        ("--add-rows new.csv --add-rows new.csv --init-from run/", 2, "more than one file"),
        ("--add-rows missing.csv --init-from run/", 66, "no such file"),
        ("--add-rows digits --init-from run/", 2, "digits is a data set; give the path"),
        ("--add-rows label.csv --init-from run/", 65, "row 2 has label 'left', which training data lack"),
        ("--add-rows wide.csv --init-from run/", 65, "has the column 'c', which the model does not know"),
        ("--add-rows new.csv --init-from rounds/", 2, "did not fit, so that it has no statistics"),
    ],
)
def test_what_cannot_be_is_refused(place, tmp_path, arguments, code, words, capsys):
    write(place / "label.csv", "a,b,y", np.ones((3, 2)), np.array(["up", "down", "left"]))
    write(place / "wide.csv", "a,b,c,y", np.ones((3, 3)), np.array(["up"] * 3))
    (place / "two.toml").write_text(f'[data]\nadd_rows = ["{place}/new.csv", "{place}/new.csv"]\n')
    if "rounds" in arguments:
        rounds = ("--centers", "100", "--penalty", "1", "--set", "centers.working_set=50", "-q")
        assert trained(place, place / "rounds", *rounds) == 0
    line = [str(place / word) if "." in word or "/" in word else word for word in arguments.split()]
    assert trained(place, tmp_path / "run", *line) == code
    assert words in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_first_rows_that_changed_since_are_refused(place, tmp_path, capsys):
    content = (place / "old.csv").read_text()
    write(place / "old.csv", "a,b,y", np.random.default_rng(2).normal(size=(200, 2)), np.repeat(["up", "down"], 100))
    assert trained(place, tmp_path / "run", *asked(place)) == 78
    (place / "old.csv").write_text(content)
    assert "no longer the data that" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()

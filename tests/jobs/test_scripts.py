"""Every script of the benchmarks and of the paper, with small settings, in this process: what it prints and writes.

The published data sets are replaced by a few digits of scikit-learn, so no data set is needed.
"""

import gzip
import importlib
import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from features.open_source import open_source
from features.source import SourceSpec
from pipeline import train as training
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from sources import publish, write_idx_folder

pytestmark = pytest.mark.ci
N_TRAIN, N_TEST = 200, 60


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with mnist/ and usps/, of small data sets, and digits.npz of those that are trained on."""
    folder = tmp_path_factory.mktemp("digits")
    source = open_source(SourceSpec("digits", n_train=N_TRAIN))
    train, test = source.train, source.test
    parts = {"train": (train.X[:N_TRAIN], train.y[:N_TRAIN]), "t10k": (test.X[:N_TEST], test.y[:N_TEST])}
    write_idx_folder(folder / "mnist", **parts)
    (folder / "usps").mkdir()
    for (images, labels), usps in zip(parts.values(), ("zip.train.gz", "zip.test.gz"), strict=True):
        small = images[:, 6:22, 6:22].reshape(len(images), -1) / 127.5 - 1
        rows = (
            f"{label} " + " ".join(f"{value:.3f}" for value in row) for label, row in zip(labels, small, strict=True)
        )
        (folder / "usps" / usps).write_bytes(gzip.compress("\n".join(rows).encode()))
    np.savez(folder / "digits.npz", X=parts["train"][0], y=parts["train"][1])
    return folder


@pytest.fixture(autouse=True)
def published_digits(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mnist", "usps"):
        publish(monkeypatch, digits / name)
    monkeypatch.setenv("SLKL_DATA_DIR", str(digits))


def train_here(line: list[str], **_: Any) -> None:
    """Stand for `subprocess.run`: train in this process."""
    assert training.main(line[line.index("pipeline.train") + 1 :]) == 0


HERE = SimpleNamespace(run=train_here)


def test_paper_tables_and_page(script, tmp_path):
    table = ("table_regression", "--runs", "1", "--datasets", "sinc", "--sizes", "64")
    rows, text = script(*table)
    error = {(row["dataset"], row["method"]): row["mean"] for row in rows}
    assert len(error) == len(rows) == 12
    assert error["sinc", "SLKL"] < error["sinc", "Unif"]
    assert all(row["method"] in text and (row["m0_mean"] is None or row["m0_mean"] <= 64) for row in rows)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()}
    assert {path.suffix for path in stamps} == {".json"}, "the folders of finished runs are removed"
    script(*table)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").iterdir()} == stamps, "computed again"
    first, (rows, _) = rows, script(*table[:-1], "32")
    assert rows[: len(first)] == first, "a cell alone leaves the others"

    found, _ = script("table_usps", "--runs", "1", "--sizes", "100")
    assert {row["method"] for row in found if row["mean"] < 10} == {"SLKL", "SLKL, certified", "SLKL, refitted"}
    mnist = importlib.import_module("mnist")
    found, _ = script("mnist", "--runs", "1", experiments=lambda asked: [mnist.Experiment(40, 4.0, 0.01, 1)])
    assert [row["mean"] < 50 for row in found] == [True, True]

    found, _ = script("scheduler", "--datasets", "sinc", DATA={"sinc": ([], 200, 60)})
    assert max(row["relative_gap"] for row in found) <= 1e-3
    evaluations = {row["schedule"]: row["evaluations"] for row in found}
    assert evaluations["newton, few columns"] < evaluations["shrinking"] < evaluations["uniform"]

    facts, _ = script("figures", "--runs", "1", PENALTIES=(1.0, 0.01), SIZES=(16, 64), LARGEST=64)
    (curve,) = facts["curves"]
    assert curve["optimum"] * (1 - 1e-6) <= curve["objective"][-1] <= curve["optimum"] * 1.05
    m0 = {(point["penalty"], point["M"]): point["certified"] for point in facts["sizes"]}
    assert m0[1.0, 64] < m0[0.01, 64] <= 64

    script("report")
    assert json.loads((tmp_path / "paper_results.json").read_text())[: len(rows)] == rows
    page = (tmp_path / "paper_report.html").read_text()
    assert all(row["method"] in page and row["command"] in page for row in rows)
    assert page.count("data:image/png") == 4
    assert "src=" not in page.replace('src="data:', "")


def test_speed(script):
    facts, text = script("speed", "--runs", "paper", "--rows", "180", "--repeats", "1", CENTERS=20, subprocess=HERE)
    assert [turn["who"] for turn in facts["turns"]] == 2 * ["floor", "threads", "processes"]
    for turn in facts["turns"]:
        stages = sum(turn[stage] for stage in turn if stage not in ("who", "way", "repeat", "workers", "run"))
        assert 0 < turn["run"] == pytest.approx(stages if turn["who"] != "floor" else turn["run"])
    assert all(line in text for line in facts["summary"])


SETTINGS = [{"name": "sphog"}, {"name": "soft-hog", "deskew": 0.0}, {"name": "raw", "power": 1.0}]
# Of a script: words, constants, how many rows it writes, and a number of each that is above 0 and below 100.
ROWS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "tables": ("--rows 2000 --rounds 1", {}, 9, "seconds"),
    "descriptors": ("--datasets digits --draws 2 --centers 60 --widths 0.5,0.7", {"SETTINGS": SETTINGS}, 12, "width"),
    "solvers": ("--problems paper --centers 300 --penalties 100 --solvers newton,shrinking", {}, 2, "n_active"),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_script_writes_and_prints_a_row_for_each_thing_it_measures(script, name):
    words, constants, n_rows, number = ROWS[name]
    rows, text = script(name, *words.split(), **constants)
    assert len({json.dumps(row) for row in rows}) == len(rows) == n_rows
    assert all(0 < row[number] < 100 for row in rows)
    assert text.strip()


def test_columns_of_all_candidates_and_those_materialised(script, tmp_path, digits):
    script("all_candidates", "--seeds", "0")
    facts = json.loads((tmp_path / "all-candidates-1.json").read_text())
    assert facts["error_of_1000"] == facts["error"], "all rows are candidates of both"
    small = ("--centers", "100", "--penalties", "1", "--workers", "1", "--data", digits / "digits.npz")
    script("materialised_columns", *small, subprocess=HERE)
    rows = json.loads((tmp_path / "materialised-columns.json").read_text())
    assert len({row["columns"] for row in rows}) == len(rows) == 2
    assert rows[0]["objective"] == pytest.approx(rows[1]["objective"], rel=2e-3)


def test_tables_measure_a_training(script):
    words = ("--rows", "2000", "--rounds", "1", "--train", "--forms", "parts", "--centers", "10")
    (row,), text = script("tables", *words)
    assert 50 < min(row["forecast"], row["peak"]) <= max(row["forecast"], row["peak"]) < 1024
    assert "round 0: train parts: " in text


def test_peers(script, tmp_path):
    common = ("--dataset", "digits", "--n-train", "300", "--threads", "1", "--methods")
    found, text = script("peers", *common, "svc,greedy-100-200")
    rows = {row["name"]: row for row in found}
    assert rows["greedy-100-200"]["size"] == 100
    for row in rows.values():
        assert row["ended"] == "done"
        assert 0 < row["error_percent"] < 15
        assert row["name"] in text

    found, text = script("peers", *common, "svc,ridge-20", "--cap", "0.001")
    after = {row["name"]: row for row in found}
    assert {name: after[name] for name in rows} == rows, "what is there is not measured again"
    assert after["ridge-20"]["ended"] == "capped"
    assert "> 0.001" in next(line for line in text.splitlines() if line.startswith("ridge-20"))


def test_table_peers(script):
    tables = importlib.import_module("generated_tables")
    generated = {"letters": lambda: tables.letters(300, 100), "steps": tables.steps}
    smaller: dict[str, Any] = {"SEEDS": 2, "GENERATED": generated, "find_spec": lambda package: None}
    smaller |= {machine.__name__: partial(machine, 100) for machine in (SLKLClassifier, SLKLRegressor)}
    methods = ["slkl", "boosting", "CatBoost"]
    words = ("table_peers", "--tables", "letters,steps:200", "--methods", ",".join(methods))
    rows, text = script(*words, **smaller)
    methods.remove("CatBoost")  # which is not installed
    methods[:1] = ["slkl", "slkl"]
    assert [row["method"] for row in rows] == [*methods, *methods]
    assert [row["seed"] for row in rows[:3]] == [0, 1, 0]
    assert script(*words) == (rows, text), "measured again"
    low, high = sorted(row["error"] for row in rows if (row["table"], row["method"]) == ("steps:200", "slkl"))
    _, error, _, _, worst, *_ = text.splitlines()[-1].split()
    assert (error, worst) == (f"{(low + high) / 2:.4f}", f"+{200 * high / (low + high) - 100:.0f}")

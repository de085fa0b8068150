"""Runs cut off before their last solves and damaged: they end with the same bytes, or say what to do, never else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline import verify
from pipeline.train import main as train
from storage.remedies import ANEW

LAST = "round-003"  # of the run in rounds
SETTINGS = {
    "dense": ("--centers", "60", "--penalty", "0.1"),
    "rounds": ("--centers", "200", "--set", "centers.working_set=80", "--penalty", "1"),
}
# What a kill just before the solves, or before those of the last round, would not have left.
LATER = {
    "dense": ["solutions", "markers/solve", "markers/solve-all-centred"],
    "rounds": [
        "markers/solve",
        f"markers/solve-{LAST}-centred",
        f"markers/passes/{LAST}.json",
        f"scores/{LAST}-scores.npz",
        "solutions/final.npz",
        f"solutions/{LAST}-centred-output-0000.npz",
    ],
}
AFTER_ALL = ["model", "markers/evaluate", "CONTENTS.json", "report.json"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of each kind."""
    folder = tmp_path_factory.mktemp("damaged")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    np.savez(folder / "data.npz", X=X, y=np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=400))
    for kind, settings in SETTINGS.items():
        more = ("--intercept", "--tol", "1e-7", "--sigma2", "1", "--set", "data.centre_targets=false")
        more += ("--scheduler", "serial", "--features-dir", str(folder / "features"))
        assert resume(folder / kind, folder, *settings, *more) == 0
    assert (folder / "rounds" / "statistics" / LAST).is_dir()
    return folder


def resume(run: Path, folder: Path, *arguments: str) -> int:
    return train([str(folder / "data.npz"), "--run-dir", str(run), "--resume", "auto", "-q", *arguments])


def outcome(run: Path) -> Any:
    """Return the bytes of the model, and what the report says of the solves and the passes beside their times."""
    report = json.loads((run / "report.json").read_text())
    solves = [{key: value for key, value in one.items() if "seconds" not in key} for one in report["solves"]]
    return [path.read_bytes() for path in sorted((run / "model").iterdir())], solves, report["passes"]


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def cut_off(finished: Path, kind: str, run: Path, *, keep: str = "") -> Path:
    """Copy a finished run without what its last solves and all after them left, but for `keep`."""
    shutil.copytree(finished / kind, run)
    for name in AFTER_ALL + [name for name in LATER[kind] if name != keep]:
        remove(run / name)
    return run


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    # In the exponent of the last number of an .npy, in the first number of an .npz, at the end of a JSON object.
    data[172 if path.suffix == ".npz" else -2] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped": flip, "deleted": Path.unlink}


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_run_cut_off_before_its_last_solves_ends_the_same(finished: Path, tmp_path: Path, kind: str) -> None:
    run = cut_off(finished, kind, tmp_path / "run")
    assert resume(run, finished) == 0
    assert outcome(run) == outcome(finished / kind)


@pytest.mark.parametrize("file", ["yty.npy", "gram.npy", "MANIFEST.json"])
@pytest.mark.parametrize(("kind", "name"), [("dense", "all-centred"), ("rounds", f"{LAST}-centred")])
def test_damaged_centred_statistics_are_made_again(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str, file: str
) -> None:
    run = cut_off(finished, kind, tmp_path / "run")
    flip(run / "statistics" / name / file)
    assert resume(run, finished) == 0
    assert outcome(run) == outcome(finished / kind)
    assert f"{name}: damaged ({file}" in capsys.readouterr().err.replace(f"{run}/statistics/{name}/", "")
    assert verify.verify_run(run).damaged == []


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("dense", "statistics/all/gram.npy"),
        ("rounds", f"statistics/{LAST}/gram.npy"),
        ("rounds", f"solutions/{LAST}-start.npz"),
        ("rounds", "scores/round-002-scores.npz"),
        ("rounds", "markers/passes/round-000.json"),
        ("rounds", "markers/passes/round-002.json"),
    ],
)
def test_what_cannot_be_made_again_alone_is_refused_with_the_advice_of_verify(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str, damage: str
) -> None:
    run = cut_off(finished, kind, tmp_path / "run")
    DAMAGE[damage](run / name)
    assert resume(run, finished) == 65
    (line,) = capsys.readouterr().err.splitlines()
    assert {"markers": "passes", "statistics": "gram.npy"}.get(name.split("/")[0], name) in line
    assert line.endswith(f"; {ANEW}")
    assert not (run / "report.json").exists()
    if damage == "flipped":
        assert [found for found in verify.verify_run(run).damaged if found.endswith(f"; {ANEW}")]


@pytest.mark.parametrize("name", [f"solutions/{LAST}-start.npz", "markers/passes/round-001.json"])
def test_the_advice_leads_to_the_same_bytes(finished: Path, tmp_path: Path, name: str) -> None:
    run = cut_off(finished, "rounds", tmp_path / "run")
    remove(run / name)
    assert resume(run, finished) == 65
    for folder in ("statistics", "solutions", "scores", "markers"):
        assert folder in ANEW
        remove(run / folder)
    assert resume(run, finished) == 0
    assert outcome(run) == outcome(finished / "rounds")


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("where", [f"scores/{LAST}-scores.npz", f"solutions/{LAST}-centred-output-0000.npz"])
def test_what_the_last_round_left_is_made_again_or_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], where: str, damage: str
) -> None:
    """As after a kill just before the report of the solves."""
    run = cut_off(finished, "rounds", tmp_path / "run", keep=where)
    if where.startswith("solutions"):  # with the marker that says that it is done
        shutil.copytree(finished / "rounds" / LATER["rounds"][1], run / LATER["rounds"][1])
    DAMAGE[damage](run / where)
    if where.startswith("scores") and damage == "deleted":
        assert resume(run, finished) == 0
        assert outcome(run) == outcome(finished / "rounds")
        return
    assert resume(run, finished) == 65
    error = capsys.readouterr().err.strip()
    assert where in error
    assert error.endswith(f"; {ANEW}")


@pytest.mark.parametrize(
    ("kind", "name"),
    [("dense", "markers/solve-all-centred/output-0000.json"), ("rounds", f"markers/passes/{LAST}.json")],
)
def test_damaged_markers_of_what_is_done_again_are_told(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, name: str
) -> None:
    run = cut_off(finished, kind, tmp_path / "run")
    (run / name).parent.mkdir(exist_ok=True)
    shutil.copy(finished / kind / name, run / name)
    flip(run / name)
    assert resume(run, finished) == 0
    assert outcome(run) == outcome(finished / kind)
    assert f"{name}: damaged marker" in capsys.readouterr().err

"""Runs cut off before their last solves and damaged: they end with the same bytes, or say what to do, never else."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cases import CASES, SERIAL
from pipeline.train import main as train
from runs import TrainedRuns, model_bytes
from storage.errors import ANEW

LAST, BEFORE = "round-005", "round-004"  # of the run in rounds
COMMON = ("--tol", "1e-7", "--sigma2", "1", *SERIAL)
SETTINGS = {
    "dense": ("--centers", "60", "--penalty", "0.1", *COMMON),
    "rounds": ("--centers", "200", "--set", "centers.working_set=100", "--penalty", "1", *COMMON),
    "finalists": (*CASES["rounds, a selection"].arguments, *SERIAL),
}
SOLUTION = f"solutions/{LAST}-centred-output-0000.npz"
# What a kill just before the solves would not have left, nor one before those of the last round.
LATER = ["model", "scores", "report.json", "solutions"]
LATER_IN_ROUNDS = [*LATER[:3], f"rounds/{LAST}.npz", f"correlations/{LAST}.npz"]
LATER_IN_ROUNDS += ["solutions/final.npz", SOLUTION]
CutOff = Callable[..., tuple[Path, Path]]


def flip(path: Path) -> None:
    """Change one bit of the last number in an .npz, which is before the directory."""
    data = bytearray(path.read_bytes())
    data[data.index(b"PK\1\2") - 1] ^= 1
    path.write_bytes(data)


DAMAGE = {"flipped": flip, "deleted": Path.unlink}


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.fixture
def cut_off(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> CutOff:
    """Return a copy of a finished run without what its last solves and all after them left but some files, and it."""

    def copy(kind: str, *keep: str) -> tuple[Path, Path]:
        finished = finished_run(*SETTINGS[kind], dataset=tables / "values.npz", statistics=True)
        assert kind != "rounds" or (finished / "statistics" / f"{LAST}.npz").is_file()
        run = Path(shutil.copytree(finished, tmp_path / "run"))
        for name in LATER_IN_ROUNDS if kind == "rounds" else LATER:
            remove(run / name)
        for name in keep:
            (run / name).parent.mkdir(exist_ok=True)
            shutil.copy(finished / name, run / name)
        return run, finished

    return copy


def resume(run: Path, tables: Path) -> int:
    return train([str(tables / "values.npz"), "--run-dir", str(run), "--resume", "auto", "-q"])


def outcome(run: Path) -> Any:
    """Return the bytes of the model, and what the report says of the solves and the rounds beside their times."""
    report = json.loads((run / "report.json").read_text())
    solves = [{key: value for key, value in one.items() if "seconds" not in key} for one in report["solves"]]
    return model_bytes(run), solves, report["rounds"]


MADE_AGAIN = [("dense", "statistics/all-centred.npz"), ("rounds", f"statistics/{LAST}-centred.npz")]
MADE_AGAIN += [("dense", "solutions/all-centred-output-0000.npz"), ("rounds", SOLUTION)]
MADE_AGAIN += [("rounds", f"rounds/{LAST}.npz"), ("rounds", f"correlations/{LAST}.npz")]


@pytest.mark.parametrize(("kind", "name"), [("dense", ""), ("rounds", ""), *MADE_AGAIN])
def test_what_can_be_made_again_is_and_the_damage_is_told(cut_off, tables, capsys, kind, name):
    """Also where nothing is damaged, but not there yet."""
    run, finished = cut_off(kind, *filter(None, [name]))
    if name:
        flip(run / name)
    assert resume(run, tables) == 0
    assert outcome(run) == outcome(finished)
    assert not name or f"{name}: damaged" in capsys.readouterr().err


REFUSED = [
    ("dense", "statistics/all.npz"),
    ("finalists", "statistics/finalists-fit.npz"),
    ("finalists", "statistics/finalists.npz"),
    ("rounds", f"statistics/{LAST}.npz"),
    ("rounds", f"solutions/{LAST}-start.npz"),
    ("rounds", f"correlations/{BEFORE}.npz"),
    ("rounds", "rounds/round-000.npz"),
    ("rounds", f"rounds/{BEFORE}.npz"),
]


@pytest.mark.parametrize(
    ("kind", "name", "damage"),
    [
        *((*case, "flipped") for case in REFUSED),
        *(pytest.param(*case, "deleted", marks=pytest.mark.ci) for case in REFUSED),
    ],
)
def test_what_cannot_be_made_again_alone_is_refused_with_advice_that_leads_to_the_same_bytes(
    cut_off, tables, capsys, kind, name, damage
):
    run, finished = cut_off(kind, name)
    DAMAGE[damage](run / name)
    assert resume(run, tables) == 65
    *_, line = capsys.readouterr().err.splitlines()
    assert name.removesuffix(".npz") in line
    assert line.endswith(f"; {ANEW}")
    assert not (run / "report.json").exists()
    for folder in ("statistics", "solutions", "correlations", "rounds"):
        assert folder in ANEW
        remove(run / folder)
    assert resume(run, tables) == 0
    assert outcome(run) == outcome(finished)

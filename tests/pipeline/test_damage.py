"""Damage to any file of a run is named by a resumption, or made good: it never gives other numbers."""

import json
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from commands import flip
from pipeline.train import main as train
from runs import keeping_statistics, model_bytes, train_beside

COMMON = ("--scheduler", "serial", "--set", "data.n_train=300")
ARGUMENTS = ("--centers", "40", "--penalty", "0.01", "--refit", "ridge", *COMMON)
MOVED = ("--centers", "60", "--select", "greedy:12", "--move-centers", "4", "--scale", "learned", *COMMON)


@pytest.fixture(scope="module", params=[ARGUMENTS, pytest.param(MOVED, marks=pytest.mark.ci)], ids=["stay", "moved"])
def finished(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with features of its own, of which tests damage copies."""
    with keeping_statistics():
        return train_beside(tmp_path_factory.mktemp("damage"), "run", "sinc", *request.param)


def resume(run: Path, *arguments: str) -> int:
    return train(["sinc", "--run-dir", str(run), "--resume", "auto", "-q", *arguments])


def numbers(run: Path) -> Any:
    """Return the report without what differs from run to run."""
    costs = ("seconds", "peak_rss", "stages", "digest")

    def kept(values: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if not any(word in key for word in costs)}

    return json.loads((run / "report.json").read_text(), object_hook=kept)


def kinds(folder: Path) -> dict[str, Path]:
    """Return one file of every kind below a folder: names that differ in their numbers are of one kind."""
    paths = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.stat().st_size and path.suffix != ".lock"
    )
    return {re.sub(r"\d+", "0", path.relative_to(folder).as_posix()): path for path in reversed(paths)}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped": flip, "truncated": truncate, "deleted": Path.unlink}
CASES = list(product(DAMAGE, (True, False)))


@pytest.mark.parametrize(
    ("damage", "ended"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.ci) for case in CASES[1:])],
)
def test_resuming_a_damaged_run_never_gives_other_numbers(finished, damage, ended, capsys):
    """Of one that has not ended, without report and model, everything that they are made of is read."""
    model, report = model_bytes(finished), numbers(finished)
    wrong, run = [], finished.parent / "copy"
    for kind, path in kinds(finished).items():
        shutil.copytree(finished, run)
        if not ended:
            (run / "report.json").unlink()
            (run / "solutions" / "final.npz").unlink()
            shutil.rmtree(run / "model")
        if (run / path.relative_to(finished)).exists():
            DAMAGE[damage](run / path.relative_to(finished))
        code, told = resume(run), capsys.readouterr().err
        codes = {65, 66} if damage == "deleted" and kind != "config.toml" else {65}
        refused = code in codes and (damage == "deleted" or (path.name in told and "; " in told))
        if not refused and (code, model_bytes(run), numbers(run)) != (0, model, report):
            wrong.append((kind, code))
        shutil.rmtree(run)
    assert wrong == []


@pytest.mark.parametrize("finished", [ARGUMENTS], indirect=True)
def test_a_run_killed_before_its_settings_were_frozen_starts_again(finished, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.lock", ".tmp-config.toml-0123456789abcdef", ".tmp-env.json-0123456789abcdef"):
        (run / name).write_text("")
    shutil.copy(finished / "env.json", run)
    assert resume(run, *ARGUMENTS, "--features-dir", str(finished.parent / "features")) == 0
    assert (model_bytes(run), numbers(run)) == (model_bytes(finished), numbers(finished))

"""Damage to any file of a run is named by a resumption, or made good: it never gives other numbers."""

import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from commands import code_of, flip
from pipeline.datasets import feature_rows, open_data
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


def release() -> None:
    """Forget what is kept open between two commands."""
    feature_rows._opened.cache_clear()
    open_data.release_data()


def not_ended(run: Path) -> None:
    """Leave of a run what it has before its last step."""
    (run / "report.json").unlink()
    (run / "solutions" / "final.npz").unlink()
    shutil.rmtree(run / "model")


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
            not_ended(run)
        if (run / path.relative_to(finished)).exists():
            DAMAGE[damage](run / path.relative_to(finished))
        code, told = resume(run), capsys.readouterr().err
        codes = {65, 66} if damage == "deleted" and kind != "config.toml" else {65}
        refused = code in codes and (damage == "deleted" or (path.name in told and "; " in told))
        if not refused and (code, model_bytes(run), numbers(run)) != (0, model, report):
            wrong.append((kind, code))
        shutil.rmtree(run)
    assert wrong == []


class Failing(io.FileIO):
    """A file that is opened, and whose disk fails when it is read."""

    def readall(self) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def readinto(self, buffer: Any) -> int:
        return len(self.readall())


def failing(monkeypatch: pytest.MonkeyPatch, target: Path, number: int) -> list[Path]:
    """Let every reading of a file fail with an errno; return a list that gets what failed."""
    failed, opened = list[Path](), io.open

    def opening(file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if isinstance(file, int) or Path(file) != target or not {*mode}.isdisjoint("wax+"):
            return opened(file, mode, *rest, **named)
        failed.append(target)
        if number != errno.EIO:
            raise OSError(number, os.strerror(number), str(target))
        stream = io.BufferedReader(Failing(target))
        return stream if "b" in mode else io.TextIOWrapper(stream)

    monkeypatch.setattr(io, "open", opening)
    return failed


COMMANDS = {
    "status": "status {run}",
    "report": "report {run} --out {out}/page.html",
    "predict": "predict {run} sinc --out {out}/y.csv -q",
    "evaluate": "evaluate {run}",
    "export": "export {run} --out {out}/model.onnx",
    "train": "train sinc --run-dir {run} --resume auto -q",
    "train on": "train sinc --run-dir {run} --resume auto -q",  # of one that has not ended
}
ERRORS = (errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOENT)


@pytest.mark.parametrize("finished", [ARGUMENTS], indirect=True)
@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(*case, marks=[pytest.mark.ci] * (case[1] != errno.EIO or case[0] in ("report", "export")))
        for case in product(COMMANDS, ERRORS)
    ],
)
def test_what_cannot_be_read_is_no_damage(finished, tmp_path, command, number, monkeypatch, capsys):
    """Each file of a run and of its features: 69 with its name, whoever reads it, and nothing is to be deleted."""
    run, wrong, read = tmp_path / "run", [], 0
    for path in kinds(finished.parent).values():
        shutil.copytree(finished, run)
        (tmp_path / "out").mkdir()
        if command == "train on":
            not_ended(run)
        target = run / path.relative_to(finished) if path.is_relative_to(finished) else path
        capsys.readouterr()
        with monkeypatch.context() as patch:
            failed = failing(patch, target, number)
            release()
            code = code_of(COMMANDS[command].format(run=run, out=tmp_path / "out").split())
        told = "".join(capsys.readouterr())
        read += bool(failed)
        if number == errno.ENOENT:
            refused = code in (65, 66)
        else:
            refused = code == 69 and str(target) in told and "damage" not in told and "delete" not in told
        if failed and not refused and not (command == "report" and code == 0):
            wrong.append((target.name, code, told[-300:]))
        shutil.rmtree(run)
        shutil.rmtree(tmp_path / "out")
    assert wrong == []
    assert read


@pytest.mark.parametrize("finished", [ARGUMENTS], indirect=True)
def test_a_run_killed_before_its_settings_were_frozen_starts_again(finished, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.lock", ".tmp-config.toml-0123456789abcdef", ".tmp-env.json-0123456789abcdef"):
        (run / name).write_text("")
    shutil.copy(finished / "env.json", run)
    assert resume(run, *ARGUMENTS, "--features-dir", str(finished.parent / "features")) == 0
    assert (model_bytes(run), numbers(run)) == (model_bytes(finished), numbers(finished))

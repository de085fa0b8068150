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
from pipeline.datasets import feature_rows
from pipeline.train import main as train
from runs import keeping_statistics, model_bytes, train_beside

COMMON = ("--scheduler", "serial")
ROUNDS = ("--centers", "200", "--set", "centers.working_set=100", "--penalty", "1", "--tol", "1e-7", "--sigma2", "1")
RUNS = {
    "stay": ("--centers", "40", "--penalty", "0.01", "--refit", "ridge", *COMMON),
    "moved": ("--centers", "60", "--select", "greedy:12", "--move-centers", "4", "--scale", "learned", *COMMON),
    "rounds": (*ROUNDS, *COMMON),
}


@pytest.fixture(scope="module")
def finished(request: pytest.FixtureRequest, tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with features of its own, of which tests damage copies."""
    with keeping_statistics():
        place = tmp_path_factory.mktemp(request.param)
        return train_beside(place, "run", tables / "values.npz", *RUNS[request.param])


def resume(run: Path, tables: Path, *arguments: str) -> int:
    return train([str(tables / "values.npz"), "--run-dir", str(run), "--resume", "auto", "-q", *arguments])


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


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def cut_off(run: Path) -> None:
    """Leave of a run what a kill before its last solves would have left; of one in rounds, in the last of them."""
    last = max((path.stem for path in (run / "rounds").glob("*")), default="")
    solves = ("final.npz", f"{last}-centred-output-0000.npz")
    later = [f"rounds/{last}.npz", f"correlations/{last}.npz", *(f"solutions/{name}" for name in solves)]
    for name in ("model", "scores", "report.json", *(later if last else ["solutions"])):
        remove(run / name)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def follow(advice: str, run: Path, tables: Path) -> int:
    """Delete what an error says, and resume the run."""
    for name in re.findall(r"[\w.]+", advice.partition("delete ")[2].partition(", then resume")[0]):
        remove(run / name)
    return resume(run, tables)


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped": flip, "truncated": truncate, "deleted": Path.unlink}
CASES_OF_DAMAGE = [*product(RUNS, DAMAGE, (True, False))]
QUICK = ("stay", "flipped", True), ("rounds", "flipped", False)


@pytest.mark.parametrize(
    ("finished", "damage", "ended"),
    [pytest.param(*case, marks=[pytest.mark.ci] * (case not in QUICK)) for case in CASES_OF_DAMAGE],
    indirect=["finished"],
)
def test_resuming_a_damaged_run_never_gives_other_numbers(finished, tables, damage, ended, capsys):
    """What is not made again is named; where something is to be deleted, the run then ends in the same bytes."""
    expected = model_bytes(finished), numbers(finished)
    wrong, run, told_of = [], finished.parent / "copy", set[str]()
    for kind, path in kinds(finished).items():
        name = path.relative_to(finished)
        shutil.copytree(finished, run)
        if not ended:
            cut_off(run)
            (run / name).parent.mkdir(exist_ok=True)
            shutil.copy(path, run / name)
        DAMAGE[damage](run / name)
        code, told = resume(run, tables), capsys.readouterr().err
        if str(name) in told:
            told_of.add(kind)
        if code != 0:
            codes = {65, 66} if damage == "deleted" and kind != "config.toml" else {65}
            refused = code in codes and (damage == "deleted" or (path.name in told and "; " in told))
            if not refused or (", then resume" in told and (code := follow(told, run, tables)) != 0):
                wrong.append((kind, code, told))
        if code == 0 and (model_bytes(run), numbers(run)) != expected:
            wrong.append((kind, "other numbers", told))
        shutil.rmtree(run)
    assert wrong == []
    if damage == "flipped" and not ended:
        assert {kind.split("/")[0] for kind in told_of} >= {"statistics", "solutions", "candidates.npz"}


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
    "predict": "predict {run} {data} --out {out}/y.csv -q",
    "evaluate": "evaluate {run}",
    "train": "train {data} --run-dir {run} --resume auto -q",
    "train on": "train {data} --run-dir {run} --resume auto -q",  # of one that has not ended
}
ERRORS = (errno.EIO, errno.EACCES, errno.ESTALE, errno.ENOENT)


@pytest.mark.parametrize("finished", ["stay"], indirect=True)
@pytest.mark.parametrize(
    ("command", "number"),
    [
        pytest.param(*case, marks=[pytest.mark.ci] * (case[1] != errno.EIO or case[0] == "report"))
        for case in product(COMMANDS, ERRORS)
    ],
)
def test_what_cannot_be_read_is_no_damage(finished, tables, tmp_path, command, number, monkeypatch, capsys):
    """Each file of a run and of its features: 69 with its name, whoever reads it, and nothing is to be deleted."""
    run, wrong, read = tmp_path / "run", [], 0
    for path in kinds(finished.parent).values():
        shutil.copytree(finished, run)
        (tmp_path / "out").mkdir()
        if command == "train on":
            cut_off(run)
        target = run / path.relative_to(finished) if path.is_relative_to(finished) else path
        is_there = target.exists()
        capsys.readouterr()
        with monkeypatch.context() as patch:
            failed = failing(patch, target, number)
            release()
            code = code_of(COMMANDS[command].format(run=run, out=tmp_path / "out", data=tables / "values.npz").split())
        told = "".join(capsys.readouterr())
        read += bool(failed)
        if number == errno.ENOENT:  # as if it was gone: it is made again, or nobody needs it, or is missed
            fine = code in (0, 65, 66) or not is_there
        else:
            fine = code == 69 and str(target) in told and not re.search("damaged|delete", told)
        if failed and not fine and not (command == "report" and code == 0):  # a page that says what is not shown
            wrong.append((target.name, code, told[-300:]))
        shutil.rmtree(run)
        shutil.rmtree(tmp_path / "out")
    assert wrong == []
    assert read


@pytest.mark.parametrize("finished", ["stay"], indirect=True)
def test_a_run_killed_before_its_settings_were_frozen_starts_again(finished, tables, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.lock", ".tmp-config.toml-0123456789abcdef", ".tmp-env.json-0123456789abcdef"):
        (run / name).write_text("")
    shutil.copy(finished / "env.json", run)
    assert resume(run, tables, *RUNS["stay"], "--features-dir", str(finished.parent / "features")) == 0
    assert (model_bytes(run), numbers(run)) == (model_bytes(finished), numbers(finished))

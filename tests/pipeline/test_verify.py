"""Damage to any file of a run is named, and no command ever returns other numbers from it."""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Capture, Patch, flip
from pipeline import verify
from pipeline.train import main as train
from runs import keeping_statistics, model_bytes, train_beside
from storage import checkpoints
from storage.folder_layouts import RunLayout
from storage.lock import hold_lock

ARGUMENTS = ("--centers", "40", "--penalty", "0.01", "--refit", "ridge", "--scheduler", "serial")
ARGUMENTS += ("--set", "data.n_train=300", "--set", "data.n_test=60")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with features of its own, which tests damage for a moment."""
    with keeping_statistics():
        return train_beside(tmp_path_factory.mktemp("verify"), "run", "sinc", *ARGUMENTS)


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
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and ".lock" not in path.suffix)
    return {re.sub(r"\d+", "0", path.relative_to(folder).as_posix()): path for path in reversed(paths)}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


DAMAGE: dict[str, Callable[[Path], None]] = {"flipped": flip, "truncated": truncate, "deleted": Path.unlink}


@contextmanager
def damaged(path: Path, damage: Callable[[Path], None]) -> Iterator[None]:
    data = path.read_bytes()
    damage(path)
    try:
        yield
    finally:
        path.write_bytes(data)


def verified(run: Path, capsys: Capture, *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    code = verify.main([str(run), *arguments])
    return code, capsys.readouterr().out


def test_a_whole_run(finished: Path, capsys: Capture) -> None:
    code, out = verified(finished, capsys)
    assert code == 0
    assert "note" not in out
    n_files = sum(path.is_file() and ".lock" not in path.suffix for path in finished.parent.rglob("*"))
    assert re.search(rf"whole; {n_files} files, \d+\.\d MiB, \d+\.\d s\n$", out)
    assert verified(finished, capsys, "--quiet") == (0, "")


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_to_any_kind_of_file_is_named(finished: Path, damage: str, capsys: Capture) -> None:
    found = kinds(finished) | {f"features: {name}": path for name, path in kinds(finished.parent / "features").items()}
    assert len(found) > 40
    unnamed = []
    for kind, path in found.items():
        with damaged(path, DAMAGE[damage]):
            code, out = verified(finished, capsys, "-q")
        lines = [line for line in out.splitlines() if path.name in line]
        if (kind, damage) == ("report.json", "deleted"):  # as after a kill just before it was written
            assert (code, out) == (0, "")
            continue
        if code != 65 or not lines or not all("; " in line for line in lines):
            unnamed.append((kind, code, out))
    assert unnamed == []
    assert verified(finished, capsys, "-q") == (0, "")


@pytest.mark.parametrize(
    ("damage", "ended"),
    [*((name, True) for name in DAMAGE), *(pytest.param(name, False, marks=pytest.mark.ci) for name in DAMAGE)],
)
def test_resuming_a_damaged_run_never_gives_other_numbers(
    finished: Path, damage: str, ended: bool, capsys: Capture
) -> None:
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


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


# What is damaged, and what its advice says to delete.
REPAIRS = {
    "STATE.json": ("STATE.json", "report.json"),
    "report.json": ("report.json",),
    "CONTENTS.json": ("CONTENTS.json", "report.json"),
    "model/arrays.npz": ("model", "report.json"),
    "candidates/index.npy": ("candidates", "report.json"),
    "markers/evaluate/scores.json": ("markers/evaluate/scores.json", "report.json"),
    "statistics/hold_out/kty.npy": ("statistics", "solutions", "correlations", "markers", "report.json"),
    "solutions/final.npz": ("statistics", "solutions", "correlations", "markers", "report.json"),
}


@pytest.mark.parametrize("name", REPAIRS)
def test_the_advice_leads_to_the_same_bytes(finished: Path, copy: Path, name: str, capsys: Capture) -> None:
    flip(copy / name)
    code, out = verified(copy, capsys, "-q")
    assert code == 65
    for each in REPAIRS[name]:
        assert "delete it" in out if each == name else each in out.partition(";")[2]
        path = copy / each
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    assert resume(copy) == 0
    assert (model_bytes(copy), numbers(copy)) == (model_bytes(finished), numbers(finished))
    assert verified(copy, capsys, "-q") == (0, "")


def test_a_run_killed_before_its_settings_were_frozen_starts_again(
    finished: Path, tmp_path: Path, capsys: Capture
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("run.lock", ".tmp-config.toml-0123456789abcdef", ".tmp-env.json-0123456789abcdef"):
        (run / name).write_text("")
    shutil.copy(finished / "env.json", run)
    assert resume(run, *ARGUMENTS, "--features-dir", str(finished.parent / "features")) == 0
    assert (model_bytes(run), numbers(run)) == (model_bytes(finished), numbers(finished))


def test_a_store_that_is_gone_is_a_note_and_files_of_someone_else_are_no_damage(
    copy: Path, finished: Path, capsys: Capture
) -> None:
    (copy / "notes.txt").write_text("x")
    (copy / "model" / "notes.txt").write_text("x")
    (copy / "lease").write_text("3\n")  # of a session that was killed
    features = finished.parent / "features"
    features.rename(features.with_name("elsewhere"))
    try:
        code, out = verified(copy, capsys)
    finally:
        features.with_name("elsewhere").rename(features)
    assert code == 0
    (note,) = (line for line in out.splitlines() if line.startswith("note: "))
    assert note.endswith("the features were not checked: they are gone, and a finished run does not need them")
    assert verified(copy, capsys, "-q") == (0, "")


def unfinished(run: Path) -> None:
    """Leave what a kill amid a line of the log leaves: that line is no damage then."""
    (run / "report.json").unlink()
    (run / "CONTENTS.json").unlink()
    with (run / "log.jsonl").open("ab") as stream:
        stream.write(b'{"time": "2026')


@pytest.mark.parametrize("name", ["MANIFEST.json", "mu.npy"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_checkpoints_of_a_run_under_way(copy: Path, name: str, damage: str, capsys: Capture) -> None:
    unfinished(copy)
    layout = RunLayout(copy)
    checkpoints.save(layout.checkpoints("all-output-0000"), 7, {"mu": np.ones(3)}, {})
    assert verified(copy, capsys, "-q") == (0, "")
    DAMAGE[damage](layout.checkpoints("all-output-0000") / "step-000000007" / name)
    code, out = verified(copy, capsys, "-q")
    assert code == 65
    assert "step-000000007" in out
    assert "an older one is used" in out


def test_what_a_live_run_replaces_and_removes_is_not_damage(copy: Path, capsys: Capture, monkeypatch: Patch) -> None:
    """Everything is in the middle of a change when it is looked at first: a folder half removed, a torn record."""
    unfinished(copy)
    state, gram = copy / "STATE.json", copy / "statistics" / "fit" / "gram.npy"
    whole = state.read_bytes()
    state.write_bytes(whole[:50])
    gram.unlink()

    def meanwhile(seconds: float) -> None:
        state.write_bytes(whole)
        shutil.rmtree(gram.parent, ignore_errors=True)

    monkeypatch.setattr(verify.time, "sleep", meanwhile)
    assert verified(copy, capsys, "-q")[0] == 65  # nobody is at work
    with hold_lock(RunLayout(copy).lock, "training"):
        assert verified(copy, capsys, "-q") == (0, "")

"""Records of a run that somebody has damaged or edited: commands name the file and the key, and show the rest."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from commands import Capture
from pipeline import evaluate, report, status
from pipeline.train import main as train
from runs import NIGHTLY, TrainedRuns

ARGUMENTS = ("--centers", "30", "--penalty", "auto", "--refit", "ridge", "--class-weight", "balanced")
NAMES = ("STATE.json", "env.json", "report.json", "log.jsonl", "metrics.jsonl")
VALUES = (None, "x", "", -1, 0.5, float("nan"), 10**400, 1e308, True, [], [1], {"a": 1})
# What is put where, and the key that is told.
TOLD: dict[str, tuple[str, tuple[str | int, ...], Any, str]] = {
    "a negative number": ("STATE.json", ("stages", "solve", "items"), -1, "stages:"),
    "a text for a number": ("STATE.json", ("peak_rss_bytes",), "x", "peak_rss_bytes:"),
    "a list for a number": ("report.json", ("n_test",), [1], "n_test:"),
    "a number too large": ("report.json", ("solves", 1, "objective"), 10**400, "solves:"),
    "an object for a word": ("log.jsonl", ("event",), {}, "event "),
    "a text for a count": ("metrics.jsonl", ("visits",), "x", "visits "),
}


@pytest.fixture
def run(finished_run: TrainedRuns, tables: Path, tmp_path: Path) -> Path:
    finished = finished_run(*ARGUMENTS, dataset=tables / "classes.npz")
    return Path(shutil.copytree(finished, tmp_path / "run"))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where there is a value in a record, of lists in their first entries."""
    if at:
        yield at
    entries = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, inner in entries:
        yield from places(inner, (*at, key))


def edit(path: Path, at: tuple[Any, ...], new: Any) -> None:
    """Put a value into a record, or into the first line of a log; `...` takes the entry out."""
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    whole = inner = json.loads(lines[0])
    for key in at[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[at[-1]]
    else:
        inner[at[-1]] = new
    path.write_text("\n".join([json.dumps(whole), *lines[1:]]) + "\n")


def told_by_all(run: Path, data: Path, capsys: Capture) -> dict[str, tuple[int, str]]:
    """Return the exit code of every command, and what it prints."""
    lines = {
        "status": (status.main, [str(run)]),
        "report": (report.main, [str(run), "--out", str(run.with_name("page.html"))]),
        "evaluate": (evaluate.main, [str(run)]),
        "train": (train, [str(data), "--run-dir", str(run), "--resume", "auto", "-q"]),
    }
    capsys.readouterr()
    told = {}
    for name, (command, words) in lines.items():
        code, printed = command(words), capsys.readouterr()
        told[name] = (code, printed.out + printed.err)
    return told


@pytest.mark.parametrize("name", ["report.json", "env.json", "config.toml", "STATE.json", "model/model.json"])
@pytest.mark.parametrize(
    "damage", [b'{"stage": "sol', pytest.param(b"\xff\xfe\x00", marks=pytest.mark.ci), b"[1, 2]\n"]
)
def test_a_damaged_record_is_named_and_the_rest_is_shown(
    run: Path, tables: Path, name: str, damage: bytes, capsys: Capture
) -> None:
    (run / name).write_bytes(damage)
    told = told_by_all(run, tables / "classes.npz", capsys)
    wanted = {"report", *(["status"] if name != "model/model.json" else [])}
    assert {command for command in wanted if told[command][0] != 65 or Path(name).name not in told[command][1]} == set()
    assert "Traceback" not in str(told)


@pytest.mark.parametrize("case", TOLD)
def test_an_edited_record_is_named_with_its_key(run: Path, case: str, capsys: Capture) -> None:
    name, at, new, key = TOLD[case]
    edit(run / name, at, new)
    assert report.main([str(run), "--out", str(run.with_name("page.html"))]) == 65
    told = str(capsys.readouterr())
    assert name in told
    assert key in told


@pytest.mark.parametrize("name", NAMES)
def test_no_edit_of_a_record_is_a_bug_of_a_command(run: Path, tables: Path, name: str, capsys: Capture) -> None:
    before = (run / name).read_text()
    first = json.loads(before.splitlines()[0] if name.endswith(".jsonl") else before)
    edits = [(at, new) for at in places(first) for new in (*VALUES, ...)]
    for at, new in random.Random(name).sample(edits, min(len(edits), 100 if NIGHTLY else 4)):
        edit(run / name, at, new)
        told = told_by_all(run, tables / "classes.npz", capsys)
        codes = {code for code, _ in told.values()}
        assert codes <= {0, 65, 78}, (at, new, told)
        assert codes == {0} or name in str(told) or 78 in codes, (at, new, told)
        (run / name).write_text(before)

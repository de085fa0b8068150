"""Checkpoints and records of a solve, and what the stage shows while it runs."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from pipeline.errors import StoppedError
from pipeline.runtime import stopping
from pipeline.solvers.problem import Problem
from pipeline.solvers.solve import solve
from pipeline.solvers.state import SolverOptions
from pipeline.stages.fit.penalised_solves import SolveProgress
from pipeline.stages.run_workspace import latest_note
from pipeline.stages.workspace import TaskCheckpoints

RECORD = {"output": 3, "objective": 12.5, "relative_gap": 0.25, "penalty": 2.0, "which": ""}


def records(folder: Path, *texts: str) -> list[Path]:
    paths = [folder / f"{index}.jsonl" for index in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return paths


def test_the_note_is_of_the_last_whole_record_and_its_penalty(tmp_path: Path) -> None:
    line = json.dumps(RECORD)
    for text in (line, line + "\n", "{}\n" + line + "\n"):
        assert latest_note(records(tmp_path, text)) == "output 3: objective 12.5 gap 2.5e-01"
    assert latest_note([]) == latest_note([tmp_path / "gone.jsonl"]) == ""
    assert latest_note(records(tmp_path, "", line[:-5], '{"a": {"b": 1}')) == "", "half written"
    unknown = json.dumps(RECORD | {"relative_gap": None})
    assert "gap" not in latest_note(records(tmp_path, unknown))
    of_several = json.dumps(RECORD | {"which": "2"})
    assert latest_note(records(tmp_path, of_several)).startswith("penalty 2 (2), output 3")


def due_then_stopping() -> bool:
    """Return what a look sees; a stop is asked for just after it."""
    due = bool(stopping.requested())
    stopping.request("a test")
    return due


@pytest.mark.parametrize(("number", "which"), [(None, ""), (13, "14")])
def test_a_stop_between_two_looks_loses_nothing(number: int | None, which: str) -> None:
    """The record after which a solve ends is always the one whose state was saved."""
    problem = Problem(np.diag([2.0, 1.0]), np.array([1.0, 0.7]), 1.0, 0.01)
    options, generator = SolverOptions(schedule="uniform", tolerance=1e-12), np.random.default_rng(0)
    kept = Mock(TaskCheckpoints, **{"load.return_value": None, "is_due.side_effect": due_then_stopping})
    progress = SolveProgress(kept, 0.01, {"output": 0}, number)
    with stopping.listening(()), pytest.raises(StoppedError):
        solve(problem, options, generator, on_record=progress.on_record)
    assert (kept.is_due.call_count, kept.save.call_count) == (2, 1)
    assert kept.record.call_args.args[0]["which"] == which


@pytest.mark.parametrize("step", ["stat", "read_text"])
def test_a_file_may_vanish_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """As when the driver takes the records of a finished solve between two looks of the progress thread."""
    (path,) = records(tmp_path, json.dumps(RECORD))
    plain = getattr(Path, step)

    def vanishing(self: Path, *arguments: Any, **options: Any) -> Any:
        if self == path:
            path.unlink(missing_ok=True)
        return plain(self, *arguments, **options)

    monkeypatch.setattr(Path, step, vanishing)
    assert latest_note([path]) == ""
    assert not path.exists()

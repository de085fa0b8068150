"""Finished runs: they have no statistics, and need none."""

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import pytest

from cases import CASES, SERIAL
from pipeline import report, train, verify
from pipeline.runtime import run_folder
from runs import TrainedRuns, model_bytes, report_of

KINDS = ["a selection", "a path", "rounds"]
KINDS = [KINDS[0], *(pytest.param(kind, marks=pytest.mark.ci) for kind in [*KINDS[1:], "rounds, a selection"])]
Resume = Callable[[Path, str], int]


@pytest.fixture
def resume(tables: Path, features: Path) -> Resume:
    """Resume a run of a case; return the exit code."""

    def resumed(run: Path, kind: str) -> int:
        options = ["--run-dir", str(run), "--features-dir", str(features), "--resume", "auto", "-q"]
        return train.main([str(CASES[kind].dataset(tables)), *options])

    return resumed


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_is_done_with_a_finished_run_needs_no_statistics(
    finished_run: TrainedRuns, tables: Path, tmp_path: Path, resume: Resume, kind: str
) -> None:
    finished = finished_run(*CASES[kind].arguments, *SERIAL, dataset=CASES[kind].dataset(tables))
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    assert not (run / "statistics").exists()
    found = verify.verify_run(run)
    assert (found.damaged, found.notes) == ([], [])
    assert report.main([str(run)]) == 0
    assert "Not shown or damaged" not in (run / "report.html").read_text()
    before = (run / "STATE.json").read_bytes()
    assert resume(run, kind) == 0  # there is nothing to do
    assert (run / "STATE.json").read_bytes() == before
    for name in ("report.json", "CONTENTS.json", "model"):  # what advice on damage says to delete
        shutil.rmtree(run / name) if name == "model" else (run / name).unlink()
    assert resume(run, kind) == 0
    assert model_bytes(run) == model_bytes(finished)
    assert report_of(run)["stages"]["statistics"]["items"] == report_of(finished)["stages"]["statistics"]["items"]
    assert verify.verify_run(run).damaged == []


def test_a_kill_while_the_statistics_are_removed_leaves_a_whole_run(
    finished_run: TrainedRuns, tables: Path, tmp_path: Path, resume: Resume
) -> None:
    kind = "a selection"
    finished = finished_run(*CASES[kind].arguments, *SERIAL, dataset=CASES[kind].dataset(tables), statistics=True)
    run = Path(shutil.copytree(finished, tmp_path / "run"))
    with patch.object(run_folder, "remove_folder", side_effect=KeyboardInterrupt):
        assert resume(run, kind) == 75
    assert (run / "statistics").exists()
    (run / "statistics").rename(run / ".tmp-statistics-0123456789abcdef")  # the first step of a removal
    assert verify.verify_run(run).damaged == []
    assert resume(run, kind) == 0
    assert not list(run.glob("*statistics*"))
    found = verify.verify_run(run)
    assert (found.damaged, found.notes) == ([], [])

"""What a finished run keeps of its statistics: the same model, and what is left does what is promised of it."""

import itertools
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cases import CASES, SERIAL
from commands import Capture, flip, the_error
from pipeline import report, resize, train
from pipeline.prediction.model_folder import load_model
from pipeline.reporting import verification
from pipeline.stages import finished_run as stage
from pipeline.stages.accumulate_statistics import load_statistics
from runs import TrainedRuns, files_of
from storage.errors import ANEW, CorruptDataError
from storage.files import replaced_path, temporary_path
from storage.folder_layouts import RunLayout

KINDS = {
    "greedy": CASES["a selection"],
    "greedy in rounds": CASES["rounds, a selection"],
    "penalised": CASES["a path"],
    "penalised in rounds": CASES["rounds, two widths"],
}
RESIZABLE = list(KINDS)[:3]


@pytest.fixture(scope="module")
def whole_of(finished_run: TrainedRuns, tables: Path) -> Callable[[str], Path]:
    """Return a finished run of a kind, all statistics kept."""

    def whole(kind: str) -> Path:
        run = finished_run(*KINDS[kind].arguments, *SERIAL, dataset=KINDS[kind].dataset(tables))
        assert stage.note_on_statistics(RunLayout(run)) is None
        return run

    return whole


@pytest.fixture
def trained(tables: Path, features: Path) -> Callable[..., int]:
    """Train or go on; return the exit code."""

    def train_on(run: Path, kind: str, *arguments: str) -> int:
        options = ["--run-dir", str(run), "--features-dir", str(features), "--resume", "auto", "-q"]
        return train.main([str(KINDS[kind].dataset(tables)), *options, *SERIAL, *arguments])

    return train_on


def resized(run: Path, out: Path) -> int:
    return resize.main([str(run), "--size", "10", "--out", str(out), "-q"])


def size_of(run: Path) -> int:
    """Bytes of the statistics; a run keeps the bounds of their sums, a few numbers, beside them."""
    return sum(path.stat().st_size for path in (run / "statistics").glob("*/*"))


QUICK = [("greedy", "centers", "at once"), ("penalised", "none", "afterwards"), ("greedy", "centers", "afterwards")]


@pytest.mark.parametrize(
    ("kind", "keep", "how"),
    [
        each if each in QUICK else pytest.param(*each, marks=pytest.mark.ci)
        for each in itertools.product(KINDS, ("centers", "none"), ("at once", "afterwards"))
    ],
)
def test_the_rest_of_the_run_is_as_it_was(
    whole_of: Callable[[str], Path], trained: Callable[..., int], tmp_path: Path, kind: str, keep: str, how: str,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    run, whole = tmp_path / "run", whole_of(kind)
    if how == "afterwards":
        shutil.copytree(whole, run)
        assert trained(run, kind, "--keep-statistics", keep) == 0
    else:
        assert trained(run, kind, *KINDS[kind].arguments, "--keep-statistics", keep) == 0
    assert files_of(run / "model") == files_of(whole / "model")
    nothing = keep == "none" or kind not in RESIZABLE
    assert size_of(run) == 0 if nothing else size_of(run) < size_of(whole)
    line = "statistics: none are kept" if nothing else "statistics: those of the model's centers alone are kept"
    found = verification.verify_run(run)
    assert found.damaged == []
    assert [note[: len(line)] for note in found.notes] == [line]
    assert report.main([str(run)]) == 0
    page = (run / "report.html").read_text().replace("&#39;", "'")
    assert line.partition(": ")[2] in page
    assert "Not shown or damaged" not in page
    capsys.readouterr()
    if not nothing:
        assert resized(run, tmp_path / "small") == 0
        assert resized(whole, tmp_path / "small of whole") == 0
        assert files_of(tmp_path / "small") == files_of(tmp_path / "small of whole")
        if kind.startswith("greedy"):
            first = load_model(run / "model").center_index[:10]
            assert load_model(tmp_path / "small").center_index.tolist() == first.tolist()
    else:
        assert resized(run, tmp_path / "small") == 2
        told = capsys.readouterr().err
        assert ("its statistics were dropped (--keep-statistics none)" in told) == (kind in RESIZABLE)
        assert told.count("\n") == 1
    before = (run / "STATE.json").read_bytes()
    assert trained(run, kind) == 0  # finished, nothing to do
    assert (run / "STATE.json").read_bytes() == before
    for name in ("report.json", "CONTENTS.json", "model"):  # what advice on damage says to delete
        shutil.rmtree(run / name) if name == "model" else (run / name).unlink()
    assert trained(run, kind) == 0
    assert files_of(run / "model") == files_of(whole / "model")
    assert (
        json.loads((run / "report.json").read_text())["stages"]["statistics"]["items"]
        == (json.loads((whole / "report.json").read_text())["stages"]["statistics"]["items"])
    )
    assert verification.verify_run(run).damaged == []


@pytest.mark.parametrize("kind", ["greedy", pytest.param("penalised", marks=pytest.mark.ci)])
def test_damaged_statistics_are_neither_cut_nor_resized(
    whole_of: Callable[[str], Path], trained: Callable[..., int], tmp_path: Path, kind: str, capsys: Capture
) -> None:
    run = Path(shutil.copytree(whole_of(kind), tmp_path / "run"))
    flip(run / "statistics" / "all" / "gram.npy")
    before = files_of(run / "statistics")
    assert resized(run, tmp_path / "small") == 65
    assert "gram.npy" in the_error(capsys)
    assert trained(run, kind, "--keep-statistics", "centers") == 65
    assert the_error(capsys).endswith(f"{ANEW}\n")
    assert files_of(run / "statistics") == before


def test_dropped_statistics_are_never_taken_for_whole_ones(
    whole_of: Callable[[str], Path], trained: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole_of("penalised"), run)
    assert trained(run, "penalised", "--keep-statistics", "centers") == 0
    (run / "report.json").unlink()
    shutil.rmtree(run / "solutions")
    assert trained(run, "penalised") == 65
    told = capsys.readouterr().err
    assert "holds the model's centers alone (--keep-statistics centers); delete the folders statistics" in told
    missing = np.setdiff1d(np.arange(60), np.load(run / "statistics" / "all" / "columns.npy"))[:1]
    with pytest.raises(CorruptDataError, match="centers alone"):
        load_statistics(RunLayout(run), "all", missing)
    for name in ("statistics", "solutions", "scores", "markers"):
        shutil.rmtree(run / name, ignore_errors=True)
    assert trained(run, "penalised") == 0
    assert files_of(run / "model") == files_of(whole_of("penalised") / "model")


@pytest.mark.parametrize("keep", ["centers", "none"])
def test_a_kill_while_they_are_dropped_leaves_a_whole_run(
    whole_of: Callable[[str], Path], trained: Callable[..., int], tmp_path: Path, keep: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    assert resized(whole_of("penalised"), tmp_path / "small of whole") == 0
    for step in ("_cut", "remove_folder"):
        run = tmp_path / f"{step} run"
        shutil.copytree(whole_of("penalised"), run)
        with monkeypatch.context() as patch:
            done: list[object] = []

            def killed(name: str, work: Callable[..., None], done: list[object], *arguments: object) -> None:
                if done or name == "remove_folder":
                    raise KeyboardInterrupt
                done.append(work(*arguments))

            patch.setattr(stage, step, partial(killed, step, getattr(stage, step), done))
            code = trained(run, "penalised", "--keep-statistics", keep)
        assert code == (75 if (keep, step) != ("none", "_cut") else 0)
        assert verification.verify_run(run).damaged == []
        assert trained(run, "penalised", "--keep-statistics", keep) == 0
        assert verification.verify_run(run).damaged == []
        if keep == "centers":
            assert resized(run, tmp_path / f"{step} small") == 0
            assert files_of(tmp_path / f"{step} small") == files_of(tmp_path / "small of whole")


def test_what_a_kill_between_two_renames_left_aside_comes_back(
    whole_of: Callable[[str], Path], trained: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next start took it for dropped, and dropped all the rest."""
    cut, run = tmp_path / "cut", tmp_path / "run"
    for copied in (cut, run):
        shutil.copytree(whole_of("penalised"), copied)
    assert trained(cut, "penalised", "--keep-statistics", "centers") == 0
    (run / "statistics" / "all").rename(replaced_path(run / "statistics" / "all"))
    temporary_path(run / "statistics" / "all").mkdir()
    found = verification.verify_run(run)
    assert len(found.damaged) == 1
    assert [line for line in found.damaged + found.notes if "delete" in line and ".tmp-" not in line] == []
    assert "resume the run, and it comes back" in found.damaged[0]
    assert resized(run, tmp_path / "small") == 2
    assert "resume the run, and they come back" in capsys.readouterr().err
    assert trained(run, "penalised", "--keep-statistics", "centers") == 0
    assert files_of(run / "statistics") == files_of(cut / "statistics")
    assert verification.verify_run(run).damaged == []

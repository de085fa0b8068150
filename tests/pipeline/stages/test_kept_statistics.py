"""What a finished run keeps of its statistics: the same model, and what is left does what is promised of it."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from pipeline import report, resize, train, verify
from pipeline.stages import kept_statistics
from runs import files_of
from storage.errors import CorruptDataError
from storage.folder_layouts import RunLayout

KINDS = {
    "greedy": ("--centers", "60", "--select", "greedy:20"),
    "greedy in rounds": ("--centers", "200", "--set", "centers.working_set=60", "--select", "greedy:20"),
    "penalised": ("--centers", "60", "--penalty", "0.1", "--intercept", "--refit", "ridge"),
    "penalised in rounds": ("--centers", "200", "--set", "centers.working_set=80", "--penalty", "1", "--intercept"),
}
RESIZABLE = list(KINDS)[:3]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of each kind, all statistics kept, and each that can be cut to 10 centers."""
    folder = tmp_path_factory.mktemp("kept")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 4))
    np.savez(folder / "data.npz", X=X, y=np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=400))
    for kind, settings in KINDS.items():
        assert trained(folder / kind, folder, *settings) == 0
        assert kept_statistics.told(RunLayout(folder / kind)) is None
    for kind in RESIZABLE:
        assert resized(folder / kind, folder / f"{kind} small") == 0
    return folder


def trained(run: Path, place: Path, *arguments: str) -> int:
    options = ["--run-dir", str(run), "--features-dir", str(place / "features"), "--resume", "auto", "-q"]
    return train.main([str(place / "data.npz"), *options, "--scheduler", "serial", *arguments])


def resized(run: Path, out: Path) -> int:
    return resize.main([str(run), "--size", "10", "--out", str(out), "-q"])


def size_of(run: Path) -> int:
    """Bytes of the statistics; a run keeps the bounds of their sums, a few numbers, beside them."""
    return sum(path.stat().st_size for path in (run / "statistics").glob("*/*"))


@pytest.mark.parametrize("how", ["at once", "afterwards"])
@pytest.mark.parametrize("keep", ["centers", "none"])
@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.nightly if "rounds" in kind else ()) for kind in KINDS]
)
def test_the_rest_of_the_run_is_as_it_was(
    place: Path, tmp_path: Path, kind: str, keep: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, whole = tmp_path / "run", place / kind
    if how == "afterwards":
        shutil.copytree(whole, run)
        assert trained(run, place, "--keep-statistics", keep) == 0
    else:
        assert trained(run, place, *KINDS[kind], "--keep-statistics", keep) == 0
    assert files_of(run / "model") == files_of(whole / "model")
    nothing = keep == "none" or kind not in RESIZABLE
    assert size_of(run) == 0 if nothing else size_of(run) < size_of(whole)
    line = "statistics: none are kept" if nothing else "statistics: those of the model's centers alone are kept"
    found = verify.verify_run(run)
    assert found.damaged == []
    assert [note[: len(line)] for note in found.notes] == [line]
    assert report.main([str(run)]) == 0
    page = (run / "report.html").read_text().replace("&#39;", "'")
    assert line.partition(": ")[2] in page
    assert "Not shown or damaged" not in page
    capsys.readouterr()
    if not nothing:
        assert resized(run, tmp_path / "small") == 0
        assert files_of(tmp_path / "small") == files_of(place / f"{kind} small")
    else:
        assert resized(run, tmp_path / "small") == 2
        told = capsys.readouterr().err
        assert ("its statistics were dropped (--keep-statistics none)" in told) == (kind in RESIZABLE)
        assert told.count("\n") == 1
    before = (run / "STATE.json").read_bytes()
    assert trained(run, place) == 0  # finished, nothing to do
    assert (run / "STATE.json").read_bytes() == before
    for name in ("report.json", "CONTENTS.json", "model"):  # what advice on damage says to delete
        shutil.rmtree(run / name) if name == "model" else (run / name).unlink()
    assert trained(run, place) == 0
    assert files_of(run / "model") == files_of(whole / "model")
    assert (
        json.loads((run / "report.json").read_text())["stages"]["statistics"]["items"]
        == (json.loads((whole / "report.json").read_text())["stages"]["statistics"]["items"])
    )
    assert verify.verify_run(run).damaged == []


def test_dropped_statistics_are_never_taken_for_whole_ones(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(place / "penalised", run)
    assert trained(run, place, "--keep-statistics", "centers") == 0
    (run / "report.json").unlink()
    for name in ("markers/solve", "markers/solve-all-centred"):
        shutil.rmtree(run / name)
    assert trained(run, place) == 65
    told = capsys.readouterr().err
    assert "holds the model's centers alone (--keep-statistics centers); delete the folders statistics" in told
    for name in ("statistics", "solutions", "scores", "markers"):
        shutil.rmtree(run / name, ignore_errors=True)
    assert trained(run, place) == 0
    assert files_of(run / "model") == files_of(place / "penalised" / "model")


@pytest.mark.parametrize("keep", ["centers", "none"])
def test_a_kill_while_they_are_dropped_leaves_a_whole_run(
    place: Path, tmp_path: Path, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("_cut", "remove_folder"):
        run = tmp_path / f"{step} run"
        shutil.copytree(place / "penalised", run)
        with monkeypatch.context() as patch:
            done: list[object] = []

            def killed(name: str, work: Callable[..., None], done: list[object], *arguments: object) -> None:
                if done or name == "remove_folder":
                    raise KeyboardInterrupt
                done.append(work(*arguments))

            patch.setattr(kept_statistics, step, partial(killed, step, getattr(kept_statistics, step), done))
            code = trained(run, place, "--keep-statistics", keep)
        assert code == (75 if (keep, step) != ("none", "_cut") else 0)
        assert verify.verify_run(run).damaged == []
        assert trained(run, place, "--keep-statistics", keep) == 0
        assert verify.verify_run(run).damaged == []
        if keep == "centers":
            assert resized(run, tmp_path / f"{step} small") == 0
            assert files_of(tmp_path / f"{step} small") == files_of(place / "penalised small")


def test_a_run_starts_from_one_without_statistics(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "penalised", tmp_path / "bare")
    assert trained(tmp_path / "bare", place, "--keep-statistics", "none") == 0
    models = []
    for start in (place / "penalised", tmp_path / "bare"):
        run = tmp_path / f"from {start.name}"
        settings = ("--centers", "80", "--penalty", "0.05", "--intercept", "--init-from", str(start))
        assert trained(run, place, *settings) == 0
        models.append(files_of(run / "model"))
    assert models[0] == models[1]


def test_columns_that_were_not_kept_are_refused(place: Path, tmp_path: Path) -> None:
    from pipeline.stages import accumulate_statistics as statistics

    run = tmp_path / "run"
    shutil.copytree(place / "greedy", run)
    assert trained(run, place, "--keep-statistics", "centers") == 0
    kept = np.load(run / "statistics" / "all" / "columns.npy")
    missing = np.setdiff1d(np.arange(60), kept)[:1]
    with pytest.raises(CorruptDataError, match="centers alone"):
        statistics.load_columns(RunLayout(run), "all", missing)

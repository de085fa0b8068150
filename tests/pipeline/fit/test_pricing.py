"""Candidates that no score is computed of; kept columns: made once, read ever after, made again where a file is gone.

That the scores of the others are those of dense columns is what `test_rounds.py` needs for its weights.
"""

from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import SERIAL
from pipeline.fit import kept_columns, pricing
from pipeline.work import store
from pipeline.work.store import COLUMNS
from runs import model_bytes
from storage.errors import CannotWriteError


@given(seed=st.integers(0, 10**6), scale=st.floats(0.0, 1.0))
def test_what_is_not_evaluated_cannot_violate(seed, scale):
    """|c_mᵀr_new| ≤ τ for every candidate the bound skips, whatever the columns are."""
    rng = np.random.default_rng(seed)
    C, old = rng.normal(size=(30, 20)), rng.normal(size=(30, 3))
    new = old + scale * rng.normal(size=(30, 3))
    bounds = np.linalg.norm(C, axis=0) * rng.uniform(1, 1.1, 20)
    tau = float(np.median(np.abs(C.T @ old)))
    before = pricing.Correlations(C.T @ old, bounds, old, np.zeros((20, 3)), *np.zeros((2, 20), bool), 20, 0)
    between = before.moved_to((old + new) / 2)
    found = between.moved_to(new)
    assert (np.abs(C.T @ new).max(axis=1)[found.bounded(tau)] <= tau * (1 + 1e-12)).all()
    known = found.with_values(np.arange(5), C.T[:5] @ new)
    assert known.exact[:5].all()
    assert (known.bounded(tau)[:5] == (np.abs(C.T[:5] @ new).max(axis=1) <= tau)).all()


COMMON = ("--centers", "300", "--sigma2", "1", *SERIAL)
MODES = {
    "rounds": ("--set", "centers.working_set=150", "--penalty", "1"),
    "on demand": ("--set", "centers.columns=on-demand", "--penalty", "1"),
}


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks."""
    monkeypatch.setattr(kept_columns, "LEAST_ROWS", 64)


def after_growth(monkeypatch: pytest.MonkeyPatch, function: Callable[[Path], object]) -> None:
    """Call a function of the folder of kept columns whenever columns have come in."""
    add = kept_columns.add_columns

    def added(work: Any, *rest: Any) -> Any:
        found = add(work, *rest)
        function(work.store.layout.root / COLUMNS)
        return found

    monkeypatch.setattr(kept_columns, "add_columns", added)


def files_of(columns: Path) -> list[Path]:
    return sorted(columns.glob("*/block-*.npz"))


@pytest.mark.parametrize("mode", ["rounds", "on demand"])
@pytest.mark.ci
def test_files_that_are_lost_or_damaged_are_made_again(train_classes, tmp_path, monkeypatch, mode):
    train_classes("whole", *MODES[mode])
    counts = {"removed": 0, "cut": 0}

    def lose(columns: Path) -> None:
        for number, file in enumerate(files_of(columns)):
            if number % 3 == 0:
                file.unlink()
                counts["removed"] += 1
            elif number % 3 == 1:
                file.write_bytes(file.read_bytes()[:-50])
                counts["cut"] += 1

    after_growth(monkeypatch, lose)
    train_classes("losing", *MODES[mode])
    assert min(counts.values()) > 5
    assert model_bytes(tmp_path / "losing") == model_bytes(tmp_path / "whole")


@pytest.mark.ci
@pytest.mark.parametrize("disk", ["without room", "with room for one file", "that is full later on"])
def test_a_disk_without_room_keeps_none_and_changes_nothing(train_classes, tmp_path, monkeypatch, disk):
    n = train_classes("kept", *MODES["rounds"])["n_train"]
    free = 8 * (kept_columns.FREE_GRAMS * 150**2 + kept_columns.FREE_VALUES * n * 4)
    free += 8 * 64 * 30 if disk == "with room for one file" else 0  # of the 30 that are drawn first
    usage = namedtuple("usage", "free")(free)
    write, found = store.commit, list[int]()

    def full(path: Path, *rest: Any, **named: Any) -> None:
        if path.name.startswith("block-"):
            raise CannotWriteError(f"{path}: no space left")
        write(path, *rest, **named)

    if disk == "that is full later on":
        monkeypatch.setattr(store, "commit", full)
    else:
        monkeypatch.setattr(store.shutil, "disk_usage", lambda _: usage)
    after_growth(monkeypatch, lambda columns: found.append(len(files_of(columns))))
    train_classes("other", *MODES["rounds"])
    assert (found[0] > 0) == (disk == "with room for one file")
    assert model_bytes(tmp_path / "other") == model_bytes(tmp_path / "kept")

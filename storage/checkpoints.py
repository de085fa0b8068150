"""Checkpoints of one piece of work: numbered steps, each a committed folder; the newest whole one counts.

A step is written aside, sealed with the digests of its files, and renamed (`storage.atomic_writes`); only then are
others pruned. A damaged step is passed over for the one before it, and said so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage import manifest
from storage.atomic_writes import read_arrays, remove_folder, write_arrays
from storage.errors import CorruptDataError, MissingDataError

FEWEST_KEPT = 2  # a step may turn out damaged when it is needed
_STEP = re.compile(r"step-(\d{9})")


@dataclass(frozen=True)
class Checkpoint:
    """One step: its number, arrays and metadata (what JSON knows), and warnings of newer steps that are damaged."""

    step: int
    arrays: dict[str, np.ndarray]
    metadata: Mapping[str, Any]
    warnings: tuple[str, ...]


def save(
    folder: Path, step: int, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any], *, keep: int = FEWEST_KEPT
) -> None:
    """Commit a step, then prune all but the newest `keep` (at least two), and all steps of a higher number.

    Those of a higher number were damaged, or of other work, when this work was taken up at an earlier step: counted
    among the newest, they would push out the whole ones. Raises CannotWriteError as `write_arrays`; the steps before
    are then untouched.
    """
    write_arrays(folder / f"step-{step:09d}", arrays, metadata=metadata)
    steps = _steps(folder)
    ours = [path for path in steps if _number(path) <= step]
    for path in [*ours[: -max(keep, FEWEST_KEPT)], *steps[len(ours) :]]:
        remove_folder(path, durable=False)


def load(folder: Path) -> Checkpoint | None:
    """Return the newest whole step, None where there is no step at all.

    Every byte is checked. Raises CorruptDataError where there are steps and all are damaged: what they held is lost,
    and to start again without a word would hide it.
    """
    warnings: list[str] = []
    for path in reversed(_steps(folder)):
        try:
            arrays = read_arrays(path)
            metadata = manifest.read(path).metadata
        except (CorruptDataError, MissingDataError) as error:
            warnings.append(f"checkpoint {path} is damaged ({error}); the one before it is used")
            continue
        return Checkpoint(_number(path), arrays, metadata, tuple(warnings))
    if warnings:
        raise CorruptDataError(
            f"{folder}: no checkpoint is whole ({warnings[0]}); delete the folder to start this anew", file=str(folder)
        )
    return None


def remove(folder: Path) -> None:
    """Remove all steps, when what they were for is done. A folder that does not exist is fine.

    In one step: of a folder half removed, only damaged steps could be left. Raises CannotWriteError.
    """
    remove_folder(folder)


def _steps(folder: Path) -> list[Path]:
    """Return the committed steps, oldest first; what a killed process left half-written has another name."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _STEP.fullmatch(path.name))


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))

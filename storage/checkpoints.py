"""Checkpoints of one piece of work: numbered steps, each a committed folder of arrays; the newest whole one counts."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from storage.arrays import read_folder, write_arrays
from storage.errors import CorruptDataError, MissingDataError
from storage.folders import remove_folder

KEPT = 2  # steps: the newest may turn out damaged when it is needed


@dataclass(frozen=True)
class Checkpoint:
    """One step: its number, arrays and metadata (what JSON knows), and warnings of newer steps that are damaged."""

    step: int
    arrays: dict[str, np.ndarray]
    metadata: Mapping[str, Any]
    warnings: tuple[str, ...]


def save(folder: Path, step: int, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]) -> None:
    """Commit a step, then prune all but the newest `KEPT`, and all steps of a higher number.

    Those were damaged, or are of other work: counted among the newest, they would push out the whole ones. Raises
    CannotWriteError; the steps before are then untouched.
    """
    write_arrays(folder / f"step-{step:09d}", arrays, metadata=metadata)
    steps = _steps(folder)
    ours = [path for path in steps if _number(path) <= step]
    for path in [*ours[:-KEPT], *steps[len(ours) :]]:
        remove_folder(path, durable=False)


def load(folder: Path) -> Checkpoint | None:
    """Return the newest whole step, None where there is no step at all. Every byte is checked.

    A damaged step is passed over for the one before, with a warning. Raises CorruptDataError where all are damaged: to
    start again without a word would hide the loss.
    """
    warnings: list[str] = []
    for path in reversed(_steps(folder)):
        try:
            return Checkpoint(_number(path), *read_folder(path), tuple(warnings))
        except (CorruptDataError, MissingDataError) as error:
            warnings.append(f"checkpoint {path} is damaged ({error}); the one before it is used")
    if warnings:
        fault = f"no checkpoint is whole ({warnings[0]})"
        raise CorruptDataError(f"{folder}: {fault}; delete the folder to start this anew")
    return None


def _steps(folder: Path) -> list[Path]:
    """Return the committed steps, oldest first; what a killed process left half-written has another name."""
    return sorted(path for path in folder.glob("step-*") if re.fullmatch(r"step-\d{9}", path.name))


def _number(path: Path) -> int:
    return int(path.name.removeprefix("step-"))

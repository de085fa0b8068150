"""Arrays that tasks read where they run: committed files of a run, or arrays of this process."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.arrays import read_arrays

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class StoredFile:
    """Arrays in a file or folder of a run."""

    path: Path

    def read(self, *, mapped: bool = False) -> Arrays:
        """Return the arrays; `mapped` maps those of a folder read-only. Raises CorruptDataError for damage."""
        return read_arrays(self.path, mapped=mapped, required=True)


@dataclass(frozen=True, eq=False)
class StoredInMemory:
    """Arrays of this process, which may be committed later."""

    committed: Mapping[str, Arrays]
    name: str

    def read(self, *, mapped: bool = False) -> Arrays:
        return self.committed[self.name]


# Named arrays, by reference: a path is small and picklable, arrays in memory stay in their process.
Stored = StoredFile | StoredInMemory


def as_arrays(value: "DataclassInstance") -> Arrays:
    """Return a dataclass of arrays and numbers as arrays, one by the name of each field."""
    return {field.name: np.asarray(getattr(value, field.name)) for field in fields(value)}


def as_dataclass(arrays: Mapping[str, NDArray[Any]], kind: type[D]) -> D:
    """Return the dataclass of a `kind` that `as_arrays` turned into arrays; other arrays may be among them."""
    found = {field.name: arrays[field.name] for field in fields(kind) if field.name in arrays}
    return kind(**{name: values if np.ndim(values) else values.item() for name, values in found.items()})


def as_json(value: object) -> NDArray[np.uint8]:
    """Return what JSON knows as an array of the bytes of its text; `from_json` reads it."""
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def from_json(text: NDArray[np.uint8]) -> Any:
    """Return what `as_json` made an array of."""
    return json.loads(text.tobytes())

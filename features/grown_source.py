"""Training rows that grew: those of one source, then those of others that were added, in the order they came.

Test part, task, classes and columns are those of the first source. The identity names each addition, so that other
features are other data; the moments of z-scores stay those of the first source's rows (`FeatureShape.n_first`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import accumulate
from typing import Any

import numpy as np

from features.errors import DataError, UsageError
from features.source import NAMED, Columns, Joins, Part, Source, SourceMemory, SourceSpec


@dataclass(frozen=True, eq=False)
class GrownSource:
    """A `features.source.Source`: `first`, whose training rows those of `additions` follow; see `joined`."""

    first: Source
    additions: tuple[Source, ...]

    @property
    def name(self) -> str:
        """Name of the first data."""
        return self.first.name

    @property
    def task(self) -> str:
        """Task of the first data."""
        return self.first.task

    @property
    def classes(self) -> tuple:
        """Classes of the first data."""
        return self.first.classes

    @property
    def n_train(self) -> int:
        """Training rows of all data."""
        return self.first.n_train + sum(self.added)

    @property
    def n_test(self) -> int:
        """Test rows of the first data."""
        return self.first.n_test

    @property
    def added(self) -> tuple[int, ...]:
        """Rows of each addition."""
        return (*self.first.added, *(addition.n_train for addition in self.additions))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.first.input_shape

    @property
    def standardise(self) -> bool:
        """Whether inputs are to be z-scored."""
        return self.first.standardise

    @property
    def columns(self) -> Columns | None:
        """Columns of the first file."""
        return self.first.columns

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken for granted of the first data, and is to be told of the additions."""
        told = [note for source in (self.first, *self.additions) for note in source.notes]
        in_test = getattr(getattr(self.first, "test", None), "groups", None)
        added = [source.groups for source in self.additions if source.groups is not None]
        n_both = 0 if in_test is None or not added else len(np.intersect1d(in_test, np.concatenate(added)))
        return (*told, *([f"{n_both} groups of the rows added have rows in the test part as well"] if n_both else []))

    @property
    def memory(self) -> SourceMemory:
        """What all sources take of memory."""
        return reduce(_both, (source.memory for source in (self.first, *self.additions)))

    def read(self, part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one block of rows, inputs in the dtype of the first data; see `features.source.Source.read`."""
        if part == "test":
            return self.first.read(part, start, stop)
        if not 0 <= start <= stop <= self.n_train:
            raise IndexError(f"rows {start} to {stop} of the train part of {self.name} do not exist: {self.n_train}")
        blocks = list(self._blocks(start, stop)) or [self.first.read(part, 0, 0)]
        inputs, targets = (np.concatenate(arrays) for arrays in zip(*blocks, strict=True))
        return inputs, targets

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        sources = (self.first, *self.additions)
        ends = list(accumulate(source.n_train for source in sources))
        for source, end in zip(sources, ends, strict=True):
            before = end - source.n_train
            if start < end and before < stop:
                inputs, targets = source.read("train", max(start - before, 0), min(stop - before, source.n_train))
                yield inputs.astype(self._dtype, copy=False), targets

    @cached_property
    def _dtype(self) -> np.dtype:
        return self.first.read("train", 0, 1)[0].dtype

    def weights(self, part: Part) -> np.ndarray | None:
        """Return None for the training part, whose rows count 1 each; for the test part those of the first data."""
        return self.first.weights(part) if part == "test" else None

    @property
    def groups(self) -> np.ndarray | None:
        """Keys of the groups of all training rows; None where the first data have no groups."""
        keys = [source.groups for source in (self.first, *self.additions)]
        known = [of_source for of_source in keys if of_source is not None]
        return np.concatenate(known) if known else None

    def fingerprint(self) -> dict[str, Any]:
        """Return what determines the rows: those of the first data, and of each addition."""
        return {**self.first.fingerprint(), "added": [addition.fingerprint() for addition in self.additions]}


def spec_of_addition(spec: SourceSpec, first: Source, path: str) -> SourceSpec:
    """Return the description of data at `path` whose rows join those of `first`, which `spec` describes.

    Raises
    ------
    UsageError
        The path is the name of a data set.
    """
    if path in NAMED:
        raise UsageError(f"rows to add: {path} is a data set; give the path of a file or folder with the new rows")
    joins = Joins(first.classes, first.columns, first.input_shape[-1])
    return SourceSpec(dataset=path, target=spec.target, groups=spec.groups, task=first.task, joins=joins)


def joined(first: Source, additions: Sequence[Source]) -> GrownSource:
    """Return the data whose training rows are those of `first`, then those of the additions.

    Raises
    ------
    DataError
        Inputs of another shape, images on another scale.
    """
    for addition in additions:
        if addition.input_shape != first.input_shape:
            raise DataError(
                f"{addition.name}: inputs have shape {addition.input_shape}, those of {first.name} {first.input_shape}"
            )
        dtypes = [source.read("train", 0, 1)[0].dtype for source in (first, addition)]
        if (dtypes[0] == np.uint8) != (dtypes[1] == np.uint8):
            raise DataError(
                f"{addition.name}: images are {dtypes[1]}, those of {first.name} {dtypes[0]}; give both on one scale"
            )
    return GrownSource(first, tuple(additions))


def _both(one: SourceMemory, other: SourceMemory) -> SourceMemory:
    """Return what two open sources take: a thread keeps chunks of both, and decodes one at a time."""
    held, kept, decoded = one.held + other.held, one.kept + other.kept, one.decoded + other.decoded
    return SourceMemory(held, kept, decoded, max(one.decoding, other.decoding))

"""One class against the rest: a view of any source with classes."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from features.errors import DataError, UsageError
from features.source import Columns, Part, Source, SourceMemory


@dataclass(frozen=True, eq=False)
class BinaryView:
    """A `features.source.Source` whose classes are 1, for the positive label of `source`, and -1 for all others."""

    source: Source
    positive: int

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self.source.name

    @property
    def task(self) -> str:
        """``binary``."""
        return "binary"

    @property
    def classes(self) -> tuple:
        """-1 and 1."""
        return (-1, 1)

    @property
    def n_train(self) -> int:
        """Rows of the training part."""
        return self.source.n_train

    @property
    def n_test(self) -> int:
        """Rows of the test part."""
        return self.source.n_test

    @property
    def added(self) -> tuple[int, ...]:
        """Rows of each addition."""
        return self.source.added

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return self.source.input_shape

    @property
    def standardise(self) -> bool:
        """Whether inputs are to be z-scored with the statistics of the training part."""
        return self.source.standardise

    @property
    def columns(self) -> Columns | None:
        """Columns of the file."""
        return self.source.columns

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken for granted."""
        return self.source.notes

    @property
    def memory(self) -> SourceMemory:
        """What the open source takes of memory."""
        return self.source.memory

    def read(self, part: Part, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets, 1 where the label is the positive one; see `features.source.Source.read`."""
        inputs, targets = self.source.read(part, start, stop)
        return inputs, (targets == self.positive).astype(np.int64)

    def weights(self, part: Part) -> np.ndarray | None:
        """Return the weights of the rows of a part."""
        return self.source.weights(part)

    @property
    def groups(self) -> np.ndarray | None:
        """Keys of the groups of the training rows."""
        return self.source.groups

    def fingerprint(self) -> dict[str, Any]:
        """Return what determines the rows: those of the source, and the positive label."""
        label = self.source.classes[self.positive]
        return {**self.source.fingerprint(), "positive": label, "task": self.task, "classes": list(self.classes)}


def one_against_rest(source: Source, positive: str) -> BinaryView:
    """Return the view in which the label that reads `positive` stands against all others.

    Raises
    ------
    UsageError
        The source has no classes.
    DataError
        No label reads so.
    """
    if source.task == "regression":
        raise UsageError(f"data.positive = {positive}: {source.name} is a regression task; leave it out")
    labels = [str(label) for label in source.classes]
    if positive not in labels:
        raise DataError(f"data.positive = {positive}: no label of {source.name}; it has {', '.join(labels[:20])}")
    return BinaryView(source, labels.index(positive))

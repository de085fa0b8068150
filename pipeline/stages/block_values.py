"""Passes whose blocks of rows each give arrays: small ones, kept in the order of the rows, or terms of an exact sum."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.kernels.each_tile import Each
from pipeline.kernels.exact_sums import ExactSum
from pipeline.runtime import progress
from pipeline.runtime.committed_sums import Arrays
from pipeline.runtime.thread_team import ThreadTeam
from pipeline.stages.training_rows import BlockPieces, RowBlock, RowGrid, RowTask, stream_blocks

Values = dict[str, NDArray[Any]]
OfBlock = Callable[[RowBlock, Each], Values]  # the second shares out the tiles of columns


class BlockValues:
    """The values of each block, by its number: arrays by name, the same names in each block."""

    def __init__(self) -> None:
        self._of_block: dict[int, Values] = {}

    def put(self, number: int, values: Values) -> None:
        """Keep the values of a block."""
        self._of_block[number] = {name: np.atleast_1d(value) for name, value in values.items()}

    def in_order(self, name: str) -> NDArray[Any]:
        """Return the values of one name of all blocks, one after the other in the order of the rows."""
        return np.concatenate([values[name] for _, values in sorted(self._of_block.items())])

    def by_block(self) -> list[Values]:
        """Return the values of all blocks, in the order of the rows."""
        return [values for _, values in sorted(self._of_block.items())]

    def arrays(self) -> Values:
        """Return all values, joined, with the numbers of the blocks and how many are of each."""
        numbers = sorted(self._of_block)
        arrays: Values = {"blocks": np.array(numbers, np.int64)}
        for name in self._of_block[numbers[0]] if numbers else ():
            arrays[f"values.{name}"] = self.in_order(name)
            arrays[f"lengths.{name}"] = np.array([len(self._of_block[number][name]) for number in numbers], np.int64)
        return arrays

    def absorb(self, stored: Arrays) -> None:
        """Keep the values of other blocks as well."""
        arrays = dict(stored)
        names = [name.removeprefix("values.") for name in arrays if name.startswith("values.")]
        parts = {name: np.split(arrays[f"values.{name}"], np.cumsum(arrays[f"lengths.{name}"])[:-1]) for name in names}
        for i, number in enumerate(arrays["blocks"].tolist()):
            self.put(number, {name: parts[name][i] for name in names})


class BlockSum:
    """The sum of the one array that each block gives."""

    def __init__(self, total: ExactSum) -> None:
        self._total = total

    def put(self, _: int, values: Values) -> None:
        """Add the array of a block."""
        for term in values.values():
            self._total.add(term)

    def values(self) -> NDArray[np.float64]:
        """Return the sum, f8."""
        return self._total.values()

    def arrays(self) -> Values:
        """Return the sum in units."""
        return {"units": self._total.units}

    def absorb(self, stored: Arrays) -> None:
        """Add that of other blocks."""
        for _, units in stored:
            self._total.units += units


@dataclass(frozen=True)
class _Blocks(BlockPieces):
    """The blocks of a pass, and what is opened in each process to compute the arrays of one of them."""

    rows: RowTask
    blocks: RowGrid
    opened: Callable[[RowTask], OfBlock]

    @property
    def grid(self) -> tuple[object, ...]:
        """What determines the blocks, and what is computed of them."""
        function = getattr(self.opened, "func", self.opened)  # of a partial, the function itself
        return (self.blocks, function.__module__, function.__qualname__)

    @property
    def threads_a_piece(self) -> int:
        """One: blocks are many."""
        return 1

    def open(self) -> "BlockAdder":
        """Open what computes the arrays."""
        return BlockAdder(self, self.opened(self.rows))


@dataclass(frozen=True)
class BlockPass(_Blocks):
    """A pass that keeps the values of each block."""

    @property
    def sums_bytes(self) -> int:
        """Nothing that threads would have to share: each has the values of its own blocks."""
        return 0

    def empty(self) -> BlockValues:
        """Return the values of no blocks."""
        return BlockValues()


@dataclass(frozen=True)
class SumPass(_Blocks):
    """A pass that adds up what the blocks give: one array of `shape` each, of numbers within ±`largest`."""

    shape: tuple[int, ...]
    largest: float

    @property
    def grid(self) -> tuple[object, ...]:
        """What determines the blocks, what is computed of them, and the bounds of its sum."""
        return (*super().grid, self.shape, self.largest)

    @property
    def sums_bytes(self) -> int:
        """Bytes of the sum."""
        return 8 * math.prod(self.shape)

    def empty(self) -> BlockSum:
        """Return the sum of no blocks."""
        return BlockSum(ExactSum(self.shape, self.largest, self.blocks.n_blocks))


@dataclass(frozen=True)
class BlockAdder:
    """The pass in a process."""

    task: _Blocks
    of_block: OfBlock

    def add(self, pieces: range, values: BlockValues | BlockSum, team: ThreadTeam) -> Iterator[int]:
        """Compute the arrays of some blocks, and yield the number of each when it has them."""
        for number, block in stream_blocks(self.task.rows, self.task.blocks, pieces):
            values.put(number, self.of_block(block, team.each))
            progress.advance(len(block.X))
            yield number

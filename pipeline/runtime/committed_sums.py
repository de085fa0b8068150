"""The files in which a pass over the rows commits its sums, each with the numbers of the pieces that are in them."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.arrays import read_each_array, write_arrays
from storage.errors import CorruptDataError, MissingDataError
from storage.files import remove_file, rename_file

FORMAT = 1  # of the files, and of all that determines the sums but what a pass names: tiles, units
_GRID, _PIECES, _SUMS = "grid", "pieces", "sums."  # in the order in which they are read
REMEDY = "run again with --resume auto: they are made again"
Arrays = Iterable[tuple[str, NDArray[Any]]]


class Sums(Protocol):
    """What a pass adds up."""

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the sums as arrays that can be stored."""

    def absorb(self, arrays: Arrays) -> None:
        """Add what `arrays` of other sums of the same pass returned; in any order it gives the same."""


S = TypeVar("S", bound=Sums)


@dataclass
class Committed(Generic[S]):
    """Sums and the numbers of the pieces that are in them."""

    sums: S
    pieces: set[int] = field(default_factory=set)

    def absorb(self, path: Path) -> None:
        """Add what a file has, one array at a time. Raises CorruptDataError where it has pieces that are here too."""
        pieces: set[int] = set()
        try:
            self.sums.absorb(self._sums_in(path, pieces))
        except MissingDataError:
            raise CorruptDataError(f"{path}: sums are missing; {REMEDY}") from None
        self.pieces |= pieces

    def _sums_in(self, path: Path, pieces: set[int]) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the sums in a file, which is opened once: whoever replaces it meanwhile changes nothing."""
        for name, values in read_each_array(path):
            if name == _PIECES:
                pieces.update(values.tolist())
                if not self.pieces.isdisjoint(pieces):
                    raise CorruptDataError(f"{path}: has sums of the same rows as another file; {REMEDY}")
            elif name.startswith(_SUMS):
                yield name.removeprefix(_SUMS), values

    def commit(self, path: Path, grid: tuple[object, ...], earlier: Iterable[Path]) -> None:
        """Commit the sums and the pieces in them, then remove the files that they went on from."""
        arrays = {f"{_SUMS}{name}": values for name, values in self.sums.arrays().items()}
        about = {_PIECES: np.array(sorted(self.pieces), np.int64), _GRID: signature(grid)}
        write_arrays(path, arrays | about, durable=False)  # no fsync: what is lost with the power is made again
        for other in earlier:
            if other != path:
                remove_file(other)


def signature(grid: tuple[object, ...]) -> NDArray[np.int64]:
    """Return what tells the sums of one grid from all others, (1,) i8."""
    return np.frombuffer(blake2b(repr((FORMAT, *grid)).encode(), digest_size=8).digest(), np.int64)


def take_over(folder: Path, grid: tuple[object, ...], session: str) -> dict[Path, set[int]]:
    """Return the whole files of a grid that a folder has, with the pieces in each; all others are removed.

    Files are renamed after the session, so that a late worker of a killed one cannot write into them. Where files have
    pieces in common, the one with the most pieces stays.
    """
    paths = []
    for i, path in enumerate(sorted(folder.glob("sums-*.npz"))):
        paths.append(folder / f"sums-{session}-{i:04d}-earlier.npz")
        rename_file(path, paths[-1])
    found: dict[Path, set[int]] = {}
    for path in paths:
        pieces = pieces_in(path, grid)
        if pieces:
            found[path] = pieces
    kept: dict[Path, set[int]] = {}
    for path in sorted(found, key=lambda path: len(found[path]), reverse=True):
        if all(found[path].isdisjoint(pieces) for pieces in kept.values()):
            kept[path] = found[path]
    for path in set(paths) - set(kept):
        remove_file(path)
    return kept


def pieces_in(path: Path, grid: tuple[object, ...]) -> set[int]:
    """Return the pieces in a file; none of one that is missing, damaged anywhere, or of another grid."""
    pieces: set[int] = set()
    with suppress(CorruptDataError, MissingDataError):
        for name, values in read_each_array(path):
            if name == _GRID and not np.array_equal(values, signature(grid)):
                return set()
            if name == _PIECES:
                pieces = set(values.tolist())
        return pieces
    return set()

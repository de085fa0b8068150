"""Who computes the tiles of a block: the thread that asks, or several that share them out."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeVar

Tile = TypeVar("Tile")


class Each(Protocol):
    """Calls a function on every tile, in any order and by any threads, and returns when all are done."""

    def __call__(self, function: Callable[[Tile], None], tiles: Iterable[Tile], /) -> None:
        """Call the function; the first error of a tile is raised."""


def serially(function: Callable[[Tile], None], tiles: Iterable[Tile], /) -> None:
    """Call a function on one tile after the other, in this thread."""
    for tile in tiles:
        function(tile)

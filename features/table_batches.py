"""Tables as batches of columns: what readers of files give, and what turns them into numbers takes."""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # imported late, by those who read tables
    import pyarrow


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of one file: columns by place, those asked for, as Arrow arrays of texts, numbers or dates.

    start: the first row in its file, from 0. line_of: what gives the line, from 1, of a row of the batch; None for
    files without lines. fault: what is wrong with the row after the last one, if something is.
    """

    path: Path
    start: int
    n_rows: int
    columns: Mapping[int, "pyarrow.Array"]
    line_of: Callable[[int], int] | None = None
    fault: str | None = None

    def where(self, row: int) -> str:
        """Return what a row of the batch is called, for people."""
        line = "" if self.line_of is None else f" (line {self.line_of(row)})"
        return f"{self.path}: row {self.start + row}{line}"

    def place(self, row: int) -> str:
        """Return the line of a row, for people, or the row in a file without lines."""
        return f"row {self.start + row}" if self.line_of is None else f"line {self.line_of(row)}"


class TablePart(Protocol):
    """One file of a table, or a table in memory."""

    path: Path
    has_names: bool  # whether it says what its columns are called, so that its first line is a header

    def first_line(self) -> tuple[int, list[str]]:
        """Return the number of the first line that is not blank, from 1, and its cells; (0, []) where there is none."""

    def count_rows(self) -> int:
        """Return the number of lines that are not blank, the first included, or of rows where it has names."""

    def batches(self, places: Collection[int], *, header: bool) -> Iterator[Batch]:
        """Yield the rows of the file with the columns at some places; `header`: whether the first line is none."""

"""Parquet files as rows of text cells, read by batches of a row group; by pyarrow, where it is installed.

Cells are the text that a csv of the same table holds: numbers in full, words as they are, nothing for null. So columns,
categories and missing cells are those of any table. What the file promises is compared with its size before it is read.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from features.csv_files import cell_text
from features.errors import DataError, UnavailableError
from features.input_files import ALWAYS_ALLOWED_BYTES, MAX_EXPANSION, open_plain
from features.parquet_pages import Chunk, column_chunks, unpacked_pages

if TYPE_CHECKING:  # an extra
    import pyarrow
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 4096
BUFFER_BYTES = 1 << 20  # read of a column at once, in place of all that a row group has of it
MOST_TEXT_BYTES = ALWAYS_ALLOWED_BYTES // BATCH_ROWS  # of a cell: a dictionary has it once, and may give it to all rows


def is_parquet(path: Path) -> bool:
    """Return whether a file is read here, by its name."""
    return path.suffix.lower() == ".parquet"


def parquet_cells(path: Path, places: Collection[int] | None = None) -> Iterator[list[str]]:
    """Yield the names of the columns, then the cells of each row; only those of some columns if `places` says so.

    Raises
    ------
    DataError
        The file is damaged, holds more than its size makes believable, or a column that is read has values that are
        neither numbers nor words.
    UnavailableError
        pyarrow is not installed.
    """
    with _opened(path) as (file, chunks):
        schema = file.schema_arrow
        names = schema.names  # a new list whenever it is asked for
        yield [str(name) for name in names]
        read = range(len(names)) if places is None else sorted(places)
        _check_types(path, schema, read)
        _check_rows(path, file)
        if not read:
            yield from ([""] * len(names) for _ in range(file.metadata.num_rows))
            return
        wanted = [names[place] for place in read]
        if len(set(names)) < len(names):
            raise DataError(f"{path}: two of its columns have one name; give each its own")
        n_rows = _checked_rows(path, [chunk for chunk in chunks if chunk.name in set(wanted)])
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(n_rows, row_groups=[group], columns=wanted, use_threads=False):
                columns = [[""] * batch.num_rows] * len(names)
                for place, column in zip(read, batch, strict=True):
                    _check_texts(path, names[place], column)
                    columns[place] = [cell_text(cell) for cell in column.to_pylist()]
                yield from map(list, zip(*columns, strict=True))


@contextmanager
def _opened(path: Path) -> Iterator[tuple["ParquetFile", list[Chunk]]]:
    """Open a file, with the chunks of its columns; what is wrong with it, also while it is read, becomes DataError."""
    try:
        # Not installed with the rest: an extra.
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UnavailableError(f"{path}: reading .parquet needs pyarrow; pip install pyarrow, or give a .csv") from None
    with open_plain(path) as stream:
        try:
            file = ParquetFile(stream)
            chunks = list(column_chunks(stream))
            # Words stay in dictionaries, if they can: one in all rows is one.
            plain = {chunk.name for chunk in chunks if chunk.delta}
            of_words = [each.name for each in file.schema_arrow if _holds_words(each.type) and each.name not in plain]
            options = {"buffer_size": BUFFER_BYTES, "page_checksum_verification": True, "read_dictionary": of_words}
            yield ParquetFile(stream, metadata=file.metadata, **options), chunks
        except (DataError, GeneratorExit):
            raise
        except (ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            words = " ".join(str(error).split())[:120]
            raise DataError(f"{path}: not a readable parquet file ({words})") from error


def _check_rows(path: Path, file: "ParquetFile") -> None:
    """Raise DataError where row groups have other rows than the file, or cells are too many for its size."""
    metadata = file.metadata
    n_rows = sum(metadata.row_group(k).num_rows for k in range(metadata.num_row_groups))
    if n_rows != metadata.num_rows:
        raise DataError(f"{path}: promises {metadata.num_rows} rows, its row groups have {n_rows}")
    _check_promise(path, n_rows * metadata.num_columns)


def _checked_rows(path: Path, chunks: list[Chunk]) -> int:
    """Return how many rows are read at once of columns with such chunks: few where a text may be long in each.

    Raises DataError where the pages unpack to more than the size of the file makes plausible.
    """
    unpacked, longest = 0, 1
    with open_plain(path) as stream:
        for chunk in chunks:
            pages = list(unpacked_pages(stream, chunk))
            unpacked += sum(pages)
            longest = max(longest, *pages) if chunk.delta and pages else longest  # a text may repeat all before it
    _check_promise(path, unpacked)
    return max(min(BATCH_ROWS, ALWAYS_ALLOWED_BYTES // longest), 1)


def _check_promise(path: Path, promised: int) -> None:
    """Raise DataError where bytes unpacked, or cells, are more than a hundred for each byte of the file."""
    size = path.stat().st_size
    if promised > max(ALWAYS_ALLOWED_BYTES, MAX_EXPANSION * size):
        raise DataError(
            f"{path}: promises {promised} bytes or cells from {size} bytes, more than a hundredfold; save it without "
            "compression and dictionaries"
        )


def _check_types(path: Path, schema: "pyarrow.Schema", places: Collection[int]) -> None:
    """Raise DataError where a column that is read holds neither numbers nor words."""
    from pyarrow import types  # an extra, as above

    for place in places:
        field = schema.field(place)
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        known = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean, types.is_null)
        if not _holds_words(kind) and not any(is_kind(kind) for is_kind in known):
            raise DataError(
                f"{path}: column {field.name} holds {str(field.type)[:60]}; numbers or words are needed: leave it out "
                f"(--set data.drop={field.name})"
            )


def _holds_words(kind: "pyarrow.DataType") -> bool:
    from pyarrow import types  # an extra, as above

    return types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)


def _check_texts(path: Path, name: str, column: "pyarrow.Array") -> None:
    """Raise DataError where a column of words has a text too long for all rows of a batch to have it."""
    from pyarrow import compute, types  # an extra, as above

    texts = column.dictionary if types.is_dictionary(column.type) else column
    if _holds_words(texts.type) and not types.is_string_view(texts.type):
        longest = compute.max(compute.binary_length(texts)).as_py() or 0
        if longest > MOST_TEXT_BYTES:
            raise DataError(
                f"{path}: column {name} has a text of {longest} bytes; leave it out (--set data.drop={name})"
            )

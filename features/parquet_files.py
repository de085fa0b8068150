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

if TYPE_CHECKING:  # an extra
    import pyarrow
    from pyarrow.parquet import ParquetFile

BATCH_ROWS = 4096
BUFFER_BYTES = 1 << 20  # read of a column at once, in place of all that a row group has of it


def is_parquet(path: Path) -> bool:
    """Tell whether a file is read here, by its name."""
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
    with _opened(path) as file:
        _check_promise(path, file)
        schema = file.schema_arrow
        yield [str(name) for name in schema.names]
        read = range(len(schema.names)) if places is None else sorted(places)
        _check_types(path, schema, read)
        if not read:
            yield from ([""] * len(schema.names) for _ in range(file.metadata.num_rows))
            return
        wanted = [schema.names[place] for place in read]
        if len(set(schema.names)) < len(schema.names):
            raise DataError(f"{path}: two of its columns have one name; give each its own")
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=wanted, use_threads=False):
                columns = [[""] * batch.num_rows] * len(schema.names)
                for place, column in zip(read, batch, strict=True):
                    columns[place] = [cell_text(cell) for cell in column.to_pylist()]
                yield from map(list, zip(*columns, strict=True))


@contextmanager
def _opened(path: Path) -> Iterator["ParquetFile"]:
    """Open a file; what is wrong with it, also while it is read, becomes DataError."""
    try:
        # Not installed with the rest: an extra.
        from pyarrow import ArrowException
        from pyarrow.parquet import ParquetFile
    except ImportError:
        raise UnavailableError(f"{path}: reading .parquet needs pyarrow; pip install pyarrow, or give a .csv") from None
    with open_plain(path) as stream:
        try:
            yield ParquetFile(stream, buffer_size=BUFFER_BYTES, page_checksum_verification=True)
        except (DataError, GeneratorExit):
            raise
        except (ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
            words = " ".join(str(error).split())[:120]
            raise DataError(f"{path}: not a readable parquet file ({words})") from error


def _check_promise(path: Path, file: "ParquetFile") -> None:
    """Raise DataError where bytes unpacked, or cells, are more than a hundred for each byte of the file."""
    metadata = file.metadata
    groups = [metadata.row_group(k) for k in range(metadata.num_row_groups)]
    unpacked = sum(group.total_byte_size for group in groups)  # its columns say so too, and may abort the process
    n_rows = sum(group.num_rows for group in groups)
    if n_rows != metadata.num_rows:
        raise DataError(f"{path}: promises {metadata.num_rows} rows, its row groups have {n_rows}")
    promised, size = max(unpacked, n_rows * metadata.num_columns), path.stat().st_size
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
        words = (types.is_string, types.is_large_string, types.is_string_view)
        if not any(is_kind(kind) for is_kind in (*known, *words)):
            raise DataError(
                f"{path}: column {field.name} holds {str(field.type)[:60]}; numbers or words are needed: leave it out "
                f"(--set data.drop={field.name})"
            )

"""A disk that fails while data are read: told as such, with the file, and never as damage."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.csv
import pyarrow.parquet
import pytest

from features import input_files
from features.errors import UnavailableError
from features.input_files import open_plain
from features.open_source import open_source
from features.source import SourceSpec
from sources import write_idx_folder


def test_an_error_of_reading_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.symlink_to("/proc/self/mem")  # of which nobody can read the first byte
    for n_bytes in (1, 10**6, -1):
        with open_plain(path) as stream, pytest.raises(UnavailableError) as caught:
            stream.read(n_bytes)
        assert str(caught.value).startswith(f"{path}: cannot be read (Input/output error); see whether its disk")
        assert caught.value.exit_code == 69


@pytest.mark.parametrize("whole_bytes", [0, 5_000, 30_000])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.npz", "idx"])
def test_no_reader_takes_it_for_damage(
    tmp_path: Path, name: str, whole_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(input_files._File):
        def readinto(self, buffer: Any) -> int:
            if self.tell() + len(buffer) > whole_bytes:
                raise self._failure(OSError(errno.EIO, os.strerror(errno.EIO)))
            return super().readinto(buffer)

    rng, path = np.random.default_rng(0), tmp_path / name
    X, y = rng.normal(size=(500, 9)), rng.integers(0, 2, 500)
    if name == "idx":
        images = rng.integers(0, 256, (500, 9, 9))
        write_idx_folder(path, train=(images, y), t10k=(images, y), compressed=False)
    elif name == "a.npz":
        np.savez(path, X=X, y=y)
    else:
        table = pyarrow.table({**{f"x{k}": column for k, column in enumerate(X.T)}, "target": y})
        if name == "a.parquet":
            pyarrow.parquet.write_table(table, path)
        else:
            with pyarrow.CompressedOutputStream(path, "gzip") if name.endswith("gz") else path.open("wb") as stream:
                pyarrow.csv.write_csv(table, stream)
    monkeypatch.setattr(input_files, "_File", Failing)
    with pytest.raises(UnavailableError, match=f"{path}.*: cannot be read"):
        open_source(SourceSpec(str(path)))

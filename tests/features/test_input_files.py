"""A disk that fails while data are read: told as such, with the file, and never as damage."""

import errno
import gzip
import os
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from features import input_files
from features.errors import UnavailableError
from features.input_files import open_plain
from features.open_source import open_source
from features.source import SourceSpec


def test_an_error_of_reading_names_the_file(tmp_path):
    path = tmp_path / "data.npz"
    path.symlink_to("/proc/self/mem")  # of which nobody can read the first byte
    for n_bytes in (1, 10**6, -1):
        with open_plain(path) as stream, pytest.raises(UnavailableError) as caught:
            stream.read(n_bytes)
        assert str(caught.value).startswith(f"{path}: cannot be read (Input/output error); see whether its disk")
        assert caught.value.exit_code == 69


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.parquet", "a.npz"])
def test_no_reader_takes_it_for_damage(tmp_path, name, monkeypatch):
    class Failing(input_files._File):
        def readinto(self, buffer: Any) -> int:
            if self.tell() >= 8192:
                raise self._failure(OSError(errno.EIO, os.strerror(errno.EIO)))
            return super().readinto(buffer)

    path, values = tmp_path / name, np.random.default_rng(0).normal(size=9000)
    if name == "a.npz":
        np.savez(path, X=values[:, None], y=values > 0)
    elif name == "a.parquet":
        pyarrow.parquet.write_table(pyarrow.table({"x": values, "target": values}), path)
    else:
        text = "x,target\n" + "".join(f"{value},{value}\n" for value in values)
        path.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    monkeypatch.setattr(input_files, "_File", Failing)
    with pytest.raises(UnavailableError, match=f"{path}: cannot be read"):
        open_source(SourceSpec(str(path)))

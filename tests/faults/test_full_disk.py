"""A full disk names the file and the bytes that found no room, whatever else finds none while the run ends."""

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.train import main as train
from storage import files as disk


def full_from(patch: pytest.MonkeyPatch, first: str) -> list[Path]:
    """Let every write fail from the first to a file of this name on, those of the log too; return what failed."""
    failed: list[Path] = []

    def filling(write: Callable[..., int]) -> Callable[..., int]:
        def call(descriptor: int, path: Path, data: Any) -> int:
            if failed or first in path.name:
                failed.append(path)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, path, data)

        return call

    append = disk.LineFile.append

    def line(self: disk.LineFile, text: str) -> None:
        if failed:
            raise disk.cannot_write(self.path, OSError(errno.ENOSPC, ""), len(text))
        append(self, text)

    patch.setattr(disk, "low_write", filling(disk.low_write))
    patch.setattr(disk.LineFile, "append", line)
    return failed


@pytest.mark.parametrize("name", ["gram.npy", "index.npy", "final.npz"])
def test_the_first_file_that_found_no_room_is_the_one_that_is_told(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["sinc", "--set", "data.n_train=60", "--centers", "20", "--scheduler=serial", "-q", "--resume=auto"]
    arguments += ["--features-dir", str(tmp_path / "features"), "--run-dir", str(tmp_path / "run")]
    with pytest.MonkeyPatch.context() as patch:
        failed = full_from(patch, name)
        assert train(arguments) == 73
    assert len(failed) > 1  # others failed too
    told = capsys.readouterr().err
    assert re.fullmatch(rf"error: \S+{re.escape(name)}: cannot write \d+ bytes: disk full; .*\n", told)
    assert train(arguments) == 0

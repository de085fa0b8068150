"""What tests of several commands share: small tables of three tasks, damage to a file, and a user without rights."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from pipeline.__main__ import main

Capture = pytest.CaptureFixture[str]
Runs = dict[str, Path]  # by their task
WORDS = ("far", "middle", "near")
IMAGES = ("--centers", "60")  # of digits: a run with ten classes whose model is of images
FEWER = ("--set", "data.n_train=300", "--set", "seed=3")  # digits
TABLE_RUN = ("--centers", "40", "--sigma2", "0.3")


def rings(n: int = 160) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Inputs (n, 2) on scales that differ, and the targets of three tasks, functions of the distance to a point."""
    X = np.random.default_rng(0).uniform(-5, 5, (n, 2))
    radius = np.linalg.norm(X, axis=1)
    words = np.array(WORDS)[(radius < 4).astype(int) + (radius < 2)]
    targets = {"regression": np.sin(radius) / radius, "binary": (radius < 3).astype(int), "words": words}
    return X * [1, 1000] + [0, 300], targets


X, TARGETS = rings()


def flip(path: Path) -> None:
    """Change one bit in the middle of a file; in a log, whose lines carry no digest, so that it is no text."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x80 if path.suffix == ".jsonl" else 1
    path.write_bytes(data)


def code_of(words: list[str]) -> int:
    """Run `slkl` on some words in this process; return its exit code."""
    try:
        return main(words)
    except SystemExit as ended:
        return int(ended.code or 0)


def the_error(capsys: Capture) -> str:
    """Return what a command said: one line of error and nothing else."""
    told = capsys.readouterr()
    assert (told.out, told.err[:7], told.err.count("\n")) == ("", "error: ", 1), told
    return told.err


@contextmanager
def without_rights(*brought: Path) -> Iterator[Path]:
    """Yield a folder of root's, with copies of files and folders, that this process may not write to meanwhile."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a user without rights")
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        Path(name).chmod(0o755)
        for path in brought:
            (shutil.copytree if path.is_dir() else shutil.copy)(path, Path(name) / path.name)
        os.seteuid(65534)
        try:
            yield Path(name)
        finally:
            os.seteuid(0)

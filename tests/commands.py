"""What tests of several commands share: small tables of three tasks, predictions, and damage to a file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

from pipeline import evaluate, predict
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
    """Change one bit in the middle of a file; of the last number in an .npz, which is before the directory.

    In a log, whose lines carry no digest, so that it is no text.
    """
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\1\2") - 1 if path.suffix == ".npz" else len(data) // 2
    data[at] ^= 0x80 if path.suffix == ".jsonl" else 1
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


def evaluated(capsys: Capture, *arguments: str | Path) -> dict[str, Any]:
    """Return what the evaluate command prints as JSON, without what differs from call to call."""
    assert evaluate.main([*map(str, arguments), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    return {key: value for key, value in found.items() if key not in ("data", "seconds", "rows_per_second")}


def predicted(model: Path, data: Path | np.ndarray, folder: Path, *options: str) -> pandas.DataFrame:
    """Return what the predict command writes in a folder, of a file or of rows."""
    out, rows = folder / "out.parquet", folder / "rows.npz"
    if isinstance(data, np.ndarray):
        np.savez(rows, X=data)
        data = rows
    assert predict.main([str(model), str(data), "--out", str(out), "--force", "-q", *options]) == 0
    return pandas.read_parquet(out)

"""What the user's arrays take of memory is known before they are read, and refused there."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from pipeline.train import main
from sources import write_npy

N, D = 60_000, 120  # 55 MiB of float64


def table(n_rows: int) -> dict[str, np.ndarray]:
    """Noise, which is incompressible."""
    X = np.random.default_rng(0).random((n_rows, D))
    return {"X": X, "y": np.sin(X[:, 0])}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table as d.npz, and as the folder d.npy of files; to be read only."""
    folder = tmp_path_factory.mktemp("noise")
    np.savez(folder / "d.npz", **table(N))  # type: ignore[arg-type]
    write_npy(folder / "d.npy", **table(N))
    return folder


def spoil(path: Path) -> None:
    """Damage the inputs: whoever reads them says so."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1000] = bytes(1000)
    path.write_bytes(content)


@pytest.mark.parametrize("kind", ["npz", "npy"])
def test_data_that_do_not_fit_are_refused_before_they_are_read(noise, tmp_path, capsys, kind):
    whole = noise / f"d.{kind}"
    path = Path((shutil.copytree if whole.is_dir() else shutil.copy)(whole, tmp_path / whole.name))
    line = [str(path), "--centers", "50", "--features-dir", str(tmp_path / "f"), "--run-dir", str(tmp_path / "run")]
    too_little = {"npz": "370MiB", "npy": "340MiB"}[kind]  # which do for few rows
    assert main([*line, "--memory-limit", too_little]) == 71
    told = capsys.readouterr().err
    smallest = told.split("--memory-limit ")[1].split()[0]
    assert main([*line, "--memory-limit", smallest, "--dry-run"]) == 0
    if kind == "npy":  # of which a line about its reading tells
        assert ("rows/s" in told, "rows/s" in capsys.readouterr().err) == (False, True)
    else:
        spoil(path)
        assert main([*line, "--memory-limit", too_little]) == 71
        assert main([*line, "--dry-run"]) == 65
    assert not (tmp_path / "run").exists()

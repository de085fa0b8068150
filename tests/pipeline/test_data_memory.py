"""What the user's arrays take of memory is known before they are read, and refused there; a chunk is decoded once."""

import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pipeline.train import main
from sources import write_zarr
from storage.user_arrays import UserArray, open_user_arrays

N, D = 60_000, 120  # 55 MiB of float64


def table(n_rows: int) -> dict[str, np.ndarray]:
    """Noise, which is incompressible."""
    X = np.random.default_rng(0).random((n_rows, D))
    return {"X": X, "y": np.sin(X[:, 0])}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the table as d.npz, and as d.zarr in one chunk; to be read only."""
    folder = tmp_path_factory.mktemp("noise")
    np.savez(folder / "d.npz", **table(N))  # type: ignore[arg-type]
    write_zarr(folder / "d.zarr", **table(N))
    return folder


def spoil(path: Path) -> None:
    """Damage the inputs: whoever reads them says so."""
    file = path if path.is_file() else path / "X" / "c" / "0" / "0"
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1000] = bytes(1000)
    file.write_bytes(content)


@pytest.mark.parametrize("kind", ["npz", "zarr"])
def test_data_that_do_not_fit_are_refused_before_they_are_read(noise, tmp_path, capsys, kind):
    whole = noise / f"d.{kind}"
    path = Path((shutil.copytree if whole.is_dir() else shutil.copy)(whole, tmp_path / whole.name))
    line = [str(path), "--centers", "50", "--features-dir", str(tmp_path / "f"), "--run-dir", str(tmp_path / "run")]
    too_little = {"npz": "370MiB", "zarr": "410MiB"}[kind]  # which do for few rows
    assert main([*line, "--memory-limit", too_little]) == 71
    smallest = capsys.readouterr().err.split("--memory-limit ")[1].split()[0]
    assert main([*line, "--memory-limit", smallest, "--dry-run"]) == 0
    spoil(path)
    assert main([*line, "--memory-limit", too_little]) == 71
    assert main([*line, "--dry-run"]) == 65
    assert not (tmp_path / "run").exists()


def test_a_chunk_is_decoded_once_for_all_readers(tmp_path, monkeypatch):
    write_zarr(tmp_path / "d.zarr", 2000, **table(6000))
    X = open_user_arrays(tmp_path / "d.zarr")["X"]
    expected, decoded, real = X[:], list[tuple[int, int]](), UserArray._read

    def counting(array: UserArray, start: int, stop: int) -> np.ndarray:
        decoded.append((start, stop))
        return real(array, start, stop)

    monkeypatch.setattr(UserArray, "_read", counting)
    together = threading.Barrier(2)

    def read(first: int) -> None:
        for start in range(first, 6000, 400):
            together.wait(60)
            np.testing.assert_array_equal(X[start : start + 200], expected[start : start + 200])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(read, (0, 200)))
    assert sorted(decoded) == [(0, 2000), (2000, 4000), (4000, 6000)]
    np.testing.assert_array_equal(X[1500:4500], expected[1500:4500])
    assert X[7:7].shape == (0, D)

"""Data that change after they were planned, and are as before later: no store and no model has rows of both."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import zarr
from PIL import Image

from features import open_source
from features.errors import DataError
from features.source import SourceSpec
from features.tables import readers, table_source
from pipeline import session
from pipeline import train as training
from pipeline.datasets import feature_request, open_data
from pipeline.planning import plan
from runs import model_bytes, train
from sources import write_idx_folder, write_zarr

N = 300
LINE = ("--centers", "10", "--penalty", "1", "--sigma2", "2", "--workers", "2", "--set", "features.name=raw")
CHANGED = "changed while it was read; leave it alone meanwhile, and run again"


def write_data(folder: Path, kind: str, X: np.ndarray) -> Path:
    """Write rows in one of the forms that are read; return the path."""
    folder.mkdir()
    y, path = np.arange(N) % 7 / 7, folder / f"d.{kind}"
    frame = pandas.DataFrame(X, columns=list("abcd")).assign(y=y)
    if kind == "npz":
        np.savez(path, X=X, y=y)
    elif kind == "zarr":
        write_zarr(path, 64, compressors=None, X=X, y=y)
    elif kind == "idx":
        images = (40 * X + 128).clip(0, 255).reshape(N, 2, 2), np.arange(N) % 3
        write_idx_folder(path := folder / "idx", compressed=False, train=images, t10k=images)
    elif kind == "pictures":
        for k, x in enumerate((40 * X + 128).clip(0, 255).astype(np.uint8).reshape(N, 2, 2)):
            (path := folder / "pictures" / f"{k % 3}").mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(path / f"{k}.bmp")
        path = path.parent
    elif kind == "parts":
        (path := folder / "parts").mkdir()
        for k in range(3):
            frame[k * 100 : k * 100 + 100].to_parquet(path / f"{k}.parquet", compression=None)
    else:
        np.savetxt(path, frame, "%+.6f", ",", header="a,b,c,d,y", comments="")
    return path


def put(data: Path, place: Path) -> None:
    """Write data over others of the same size, in place and with the times of those."""
    for file in [data] if data.is_file() else [path for path in data.rglob("*") if path.is_file()]:
        status = (old := place / file.relative_to(data)).stat()
        assert file.stat().st_size == status.st_size
        old.write_bytes(file.read_bytes())
        os.utime(old, ns=(status.st_atime_ns, status.st_mtime_ns))


def forget() -> None:
    """Forget what was opened, as another process does."""
    open_source.close_files()
    open_data._open_zarr.cache_clear()
    open_data._read_digests.cache_clear()


@pytest.mark.parametrize(
    ("scheduler", "times"),
    [
        ("serial", "do not tell"),
        pytest.param("serial", "tell", marks=pytest.mark.ci),
        pytest.param("processes", "do not tell", marks=pytest.mark.ci),
    ],
)
@pytest.mark.parametrize("store", ["zarr", "none"])
@pytest.mark.parametrize(
    "kind",
    [
        *("npz", "zarr", "csv in order"),
        *(pytest.param(k, marks=pytest.mark.ci) for k in ("idx", "pictures", "csv", "parts", "parts in order")),
    ],
)
def test_rows_of_other_data_are_in_no_store_and_no_model(tmp_path, monkeypatch, capsys, kind, store, scheduler, times):
    if kind.endswith("in order"):
        for module, name, value in ((table_source, "SAMPLE_CELLS", 30), (readers, "BLOCK_BYTES", 256)):
            monkeypatch.setattr(module, name, value)
    if times == "do not tell":
        for module in (open_source, open_data):
            monkeypatch.setattr(module, "stamp", lambda path: (str(path),))
    monkeypatch.setattr(feature_request, "chunk_rows_for", lambda row_bytes, n_rows: 16)
    X, form = np.random.default_rng(0).normal(size=(N, 4)), kind.split()[0]
    path = write_data(tmp_path / "data", form, X)
    write_data(tmp_path / "as it was", form, X)
    X[N // 2 :] += 1
    write_data(tmp_path / "other", form, X)
    line = (*LINE, "--scheduler", scheduler, *(("--features-dir", "none") if store == "none" else ()))
    train(tmp_path / "whole", tmp_path / "f", *line, dataset=path)
    prepare, evaluate = plan.prepare, session.evaluate_model

    def prepare_and_change(*words: Any, **named: Any) -> plan.Prepared:
        prepared = prepare(*words, **named)
        put(tmp_path / "other", tmp_path / "data")
        return prepared

    def restore_and_evaluate(run: Any) -> Any:
        put(tmp_path / "as it was", tmp_path / "data")
        return evaluate(run)

    forget()
    with monkeypatch.context() as during:
        during.setattr(plan, "prepare", prepare_and_change)
        during.setattr(session, "evaluate_model", restore_and_evaluate)
        folders = ("--run-dir", str(tmp_path / "run"), "--features-dir", str(tmp_path / "g"))
        code = training.main([str(path), "-q", *folders, *line])
    assert code in (0, 65)
    assert (CHANGED in capsys.readouterr().err) == (code == 65)
    assert code == 65 or model_bytes(tmp_path / "run") == model_bytes(tmp_path / "whole")
    put(tmp_path / "as it was", tmp_path / "data")
    forget()
    train(tmp_path / "again", tmp_path / "g", *line, dataset=path)
    assert model_bytes(tmp_path / "again") == model_bytes(tmp_path / "whole")


@pytest.mark.parametrize(
    "kind", ["npz", *(pytest.param(kind, marks=pytest.mark.ci) for kind in ("zarr", "idx", "pictures", "csv", "parts"))]
)
def test_a_run_is_resumed_with_its_own_data_alone_also_when_it_is_finished(tmp_path, capsys, kind):
    X = np.random.default_rng(0).normal(size=(N, 4))
    path, run, line = write_data(tmp_path / "data", kind, X), tmp_path / "run", (*LINE, "--resume", "auto")
    train(run, tmp_path / "f", *line, dataset=path)
    train(run, tmp_path / "f", *line, dataset=path)
    assert capsys.readouterr().out == ""
    train(run, tmp_path / "f", *line, dataset=path, quiet=False)
    assert re.match(r"finished on 20\d\d-\d\d-\d\d \d\d:\d\d UTC\n\n", capsys.readouterr().out)
    X[-1] += 1
    put(write_data(tmp_path / "other", kind, X), path)
    forget()
    for told in ("finished before, on other data", "started before, on other data"):
        train(run, tmp_path / "f", *line, dataset=path, code=78)
        assert told in capsys.readouterr().err
        (run / "report.json").unlink(missing_ok=True)


def test_arrays_of_a_store_that_are_not_used_are_not_looked_at(tmp_path):
    X = np.arange(60.0).reshape(30, 2) % 7
    write_zarr(tmp_path / "data.zarr", 64, X=X, y=X[:, 0], time=X[:, 1])
    zarr.open_array(tmp_path / "data.zarr" / "time").update_attributes({"units": "days since 1970-01-01"})
    assert open_data.open_data(SourceSpec(str(tmp_path / "data.zarr"))).input_shape == (2,)
    write_zarr(tmp_path / "other.zarr", 64, x=X, y=X[:, 0])
    with pytest.raises(DataError, match=r"needs X and y, or .*; found x, y"):
        open_data.open_outline(SourceSpec(str(tmp_path / "other.zarr")))

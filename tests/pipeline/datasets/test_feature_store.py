"""Changed data are another store, stores are reopened when rebuilt, and damaged ones are made again."""

import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import flip
from features.descriptors import FeatureSpec
from features.errors import MissingInputError
from features.source import SourceSpec
from pipeline import session
from pipeline.datasets import feature_rows, open_data
from pipeline.datasets.feature_rows import FeatureRequest, FeatureShape
from pipeline.fit.workspace import Workspace
from pipeline.runtime.progress import Watch
from pipeline.runtime.run_folder import digest_sources
from runs import files_of, model_bytes, train
from storage.errors import CorruptDataError
from storage.folder_layouts import FeatureLayout

N = 300
LINE = ("--centers", "20", "--sigma2", "1", "--scheduler", "serial")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    X = np.random.default_rng(0).normal(size=(N, 4))
    np.savez(tmp_path / "data.npz", X=X, y=X[:, 0] ** 2)
    return tmp_path / "data.npz"


def request_for(data: Path, standardise: bool = True) -> FeatureRequest:
    return FeatureRequest(SourceSpec(str(data)), FeatureSpec("raw"), standardise)


def prepared(folder: Path, request: FeatureRequest) -> tuple[FeatureLayout, FeatureShape, Any, list[Any]]:
    """Return where a store goes, its shape, and the task that builds it with its items."""
    shape = feature_rows.describe(request)
    layout = FeatureLayout(folder, shape.store)
    return layout, shape, *feature_rows.prepare(layout, shape, request)


def test_changed_data_and_code_are_another_store_and_missing_ones_are_said_to_be(data, tmp_path, monkeypatch):
    shape = feature_rows.describe(request_for(data))
    before, store = shape.digest, shape.store
    monkeypatch.setattr(feature_rows, "digest_sources", lambda *packages: f"others of {packages}")
    assert feature_rows.describe(request_for(data)).store != store == f"{before}-{digest_sources('features')}"
    np.savez(data, X=np.ones((N, 4)), y=np.arange(N))
    assert feature_rows.describe(request_for(data)).digest != before
    with pytest.raises(MissingInputError, match="none: no such file or folder"):
        open_data.open_data(SourceSpec(str(tmp_path / "none")))


def test_a_store_is_built_on_and_a_chunk_that_is_lost_meanwhile_is_damage_not_a_bug(data, tmp_path, monkeypatch):
    monkeypatch.setattr(feature_rows, "chunk_rows_for", lambda row_bytes, n_rows: 16)
    _, _, task, items = prepared(tmp_path / "features", request_for(data))
    for item in items[:3]:
        feature_rows.build_item(task, item)
    layout, _, task, left = prepared(tmp_path / "features", request_for(data))
    assert len(left) == len(items) - 3
    with Watch(tmp_path / "progress", [item.n_rows for item in left], "rows") as watch:
        for numbered in enumerate(left):
            done = watch.now().done
            watch.reporting(partial(feature_rows.build_item, task))(numbered)
            assert watch.now().done == done + left[numbered[0]].n_rows, "chunks count their rows"
    (layout.arrays / "train/X/c/5/0").unlink()
    with pytest.raises(CorruptDataError, match=r"written, but now .*train/X/c/5/0: missing"):
        feature_rows.finish(layout)


HARMS = {
    "a flipped chunk": lambda layout: flip(layout.arrays / "train/X/c/1/0"),
    "no chunk": lambda layout: (layout.arrays / "train/X/c/5/0").unlink(),
    "other metadata": lambda layout: flip(layout.arrays / "zarr.json"),
    "no array": lambda layout: (layout.arrays / "train/X/zarr.json").unlink(),
    "no arrays": lambda layout: shutil.rmtree(layout.arrays),
    "the manifest": lambda layout: flip(layout.manifest),
    "everything": lambda layout: shutil.rmtree(layout.folder),
}


@pytest.mark.parametrize("moment", ["before", "within", "half-built"])
@pytest.mark.parametrize("harm", HARMS)
def test_a_damaged_store_is_made_again_with_a_warning(data, tmp_path, capsys, monkeypatch, harm, moment):
    monkeypatch.setattr(feature_rows, "chunk_rows_for", lambda row_bytes, n_rows: 16)
    whole = tmp_path.parent / "whole"  # for all cases that this process has
    if not (whole / "run").exists():
        train(whole / "run", whole / "features", *LINE, dataset=data)
    features = Path(shutil.copytree(whole / "features", tmp_path / "features"))
    (manifest,) = features.glob("*/MANIFEST.json")
    layout, kept = FeatureLayout(features, manifest.parent.name), files_of(features)
    fit, waiting = session.fit, [HARMS[harm]]
    feature_rows._opened.cache_clear()

    def harming(work: Workspace) -> None:
        if waiting:
            waiting.pop()(layout)
        fit(work)

    if moment == "within":
        monkeypatch.setattr(session, "fit", harming)
    else:
        waiting.pop()(layout)
    if moment == "half-built":
        layout.manifest.unlink(missing_ok=True)
    train(tmp_path / "run", features, *LINE, dataset=data)
    told = re.search(r"warning: feature store .* is damaged: .*; it is made again", capsys.readouterr().err)
    assert (told is not None) == (moment != "half-built" and harm != "everything")
    assert files_of(features) == kept
    assert model_bytes(tmp_path / "run") == model_bytes(whole / "run")

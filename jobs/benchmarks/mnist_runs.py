"""Whole runs of the command on real MNIST, in this process, for the benchmarks beside this file."""

import json
import time
from pathlib import Path
from typing import Any

from pipeline import plan
from pipeline.config import from_toml
from pipeline.feature_store import FeatureStore, describe, open_data
from pipeline.train import main as train
from storage.layout import FeatureLayout, RunLayout

NOT_CONVERGED = 3  # exit code: a run like any other, and its report says so


def run_mnist(out: Path, data_dir: str | None, name: str, *arguments: str) -> tuple[RunLayout, dict[str, Any]]:
    """Train into a new folder of `out`, whose runs share their features; return its layout and report."""
    folder = out / f"{name}-{time.time():.0f}"
    common = ["--features-dir", str(out / "features"), "--run-dir", str(folder), "-q"]
    common += ["--data-dir", data_dir] if data_dir else []
    code = train(["mnist", *common, *arguments])
    assert code in (0, NOT_CONVERGED), f"the run ended with exit code {code}"
    layout = RunLayout(folder)
    return layout, json.loads(layout.report.read_text(encoding="utf-8"))


def feature_store_of(layout: RunLayout, out: Path) -> FeatureStore:
    """Return the feature store that a run of `run_mnist` used."""
    config = from_toml(layout.config)
    _, request = plan.feature_request(config, open_data(plan.source_spec(config)))
    return FeatureStore(FeatureLayout(out / "features", describe(request).digest))

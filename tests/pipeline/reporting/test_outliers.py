"""What a run tells of outliers among the targets: a note where they ruin the fit, and nothing elsewhere."""

from pathlib import Path

import numpy as np

import runs
from cases import SERIAL


def test_a_run_tells_of_outliers_that_ruin_its_fit(tmp_path: Path) -> None:
    """Of which .3 % of the targets are: a thousand times too large."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1100, 4))
    clean = 2 + np.sin(3 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.normal(size=len(X))
    y = clean * np.where(rng.random(len(X)) < 0.003, 1000.0, 1.0)
    notes = {}
    for name, targets in (("outliers", y), ("clean", clean), ("noise", rng.normal(size=len(X)))):
        np.savez(tmp_path / f"{name}.npz", X=X, y=targets)
        asked = ("--centers", "80", "--sigma2", "2", "--select", "greedy:40", *SERIAL)
        notes[name] = runs.train(tmp_path / name, tmp_path / "features", *asked, dataset=tmp_path / f"{name}.npz")[
            "notes"
        ]
    (note,) = notes.pop("outliers")
    assert "median absolute deviations" in note
    assert "np.log1p of the target" in note
    assert "TransformedTargetRegressor" in note
    assert notes == {"clean": [], "noise": []}

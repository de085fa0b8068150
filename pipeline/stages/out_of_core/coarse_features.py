"""Coarse features: coordinates on a few principal axes, and how far each row lies from their span.

Growing a working set needs no exact correlations: with ‖x-z‖² ≈ ‖Px-Pz‖² + ρ_x² + ρ_z² (mathematics.md, eq. 92) a pass
costs a quarter or less. A certificate bounds what it misses (eq. 102).
"""

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.feature_rows import FeatureAccess, open_features
from pipeline.runtime import progress, stopping
from pipeline.stages.out_of_core.tiles import row_blocks
from pipeline.stages.run_workspace import Run, is_whole
from pipeline.stages.target_facts import row_weights
from pipeline.stages.workspace import SOLVE
from storage.arrays import read_arrays, write_arrays
from storage.files import make_folder
from storage.zarr_arrays import Block

AXES = 510  # with the two coordinates for ρ, 512
LEAST_FEATURES = 3  # times as many as axes: of fewer, too little is saved
MOST_FEATURES = 2**14  # of more, the sample is too small for as many axes
SAMPLE_ROWS = 4096  # from which the axes come, fewer of long rows
SAMPLE_VALUES = 2**24
ITERATIONS = 6  # of the subspace
OF_PRODUCTS, OF_DISTANCES = 64, 16  # roundings of float32, in sums of residuals and in ‖x - z‖²; measured: below 1
FOLDER, AXES_FILE = "coarse-features", "axes.npz"


def pay_off(n_features: int) -> bool:
    """Return whether coarse correlations of so many features save enough of an exact pass."""
    return LEAST_FEATURES * AXES <= n_features <= MOST_FEATURES


def axes_bytes(n_features: int) -> int:
    """Return about the bytes that finding the axes takes."""
    return 4 * (_sample_rows(n_features) * (2 * n_features + AXES) + 3 * AXES * n_features)


def points_bytes(n_rows: int) -> int:
    """Return the bytes of the coarse features of so many rows."""
    return 4 * n_rows * (AXES + 1)


def coarse_points(run: Run) -> Path:
    """Return the folder of the coarse features of all training rows, a file for each block; they are made once."""
    folder = run.layout.row_pass(FOLDER)
    make_folder(folder)
    if not is_whole(folder / AXES_FILE):
        n = run.shape.n_train
        rows = np.unique(np.linspace(0, n - 1, min(_sample_rows(run.shape.n_features), n)).astype(np.int64))
        with run.status(SOLVE, "principal axes of the features"):
            mean, axes = principal_axes(open_features(run.features).take(rows), AXES)
            write_arrays(folder / AXES_FILE, {"mean": mean, "axes": axes})
    waiting = [block for block in row_blocks(run.shape.n_train) if not is_whole(_file(folder, block))]
    run.run_items(SOLVE, partial(_write_points, run.features, folder), waiting, unit="blocks", words="coarse features")
    return folder


def read_points(folder: Path, block: Block) -> NDArray[np.float32]:
    """Return the coarse features of a block of rows, (rows, AXES + 1) f4, ρ last."""
    return np.asarray(read_arrays(_file(folder, block))["points"])


def principal_axes(X: NDArray[np.float32], count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the mean (d,) of rows X (n, d) and about their first principal axes (d, count), orthonormal; f4.

    By subspace iteration from fixed random directions: any axes are sound, good ones make correlations accurate.
    """
    mean = X.mean(axis=0)
    centred = X - mean
    axes = np.random.default_rng(0).normal(size=(X.shape[1], count)).astype(np.float32)
    for _ in range(ITERATIONS):
        axes = np.linalg.qr(centred.T @ (centred @ axes))[0]
    return mean, axes


def project(X: NDArray[np.float32], mean: NDArray[np.float32], axes: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the coordinates of rows X (n, d) on the axes, and their distances ρ from the span, (n, count + 1) f4."""
    centred = X - mean
    on_axes = centred @ axes
    squares = np.einsum("ij,ij->i", centred, centred) - np.einsum("ij,ij->i", on_axes, on_axes)
    return np.column_stack([on_axes, np.sqrt(np.maximum(squares, 0.0))])


def coarse_deviations(run: Run) -> NDArray[np.float64]:
    """Return bounds (n,) of ‖c - c̃‖ of columns c and those of coarse features c̃ (mathematics.md, eq. 102)."""
    folder, weights = coarse_points(run), row_weights(run, run.facts)
    (sigma2,) = run.centers["sigma2"].tolist()
    sizes = [_sizes(read_points(folder, block)) for block in row_blocks(run.shape.n_train)]
    rho, squares = np.concatenate(sizes, axis=1)
    return deviations(rho, squares, sigma2, np.ones(len(rho)) if weights is None else weights)


def _sizes(points: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how far coarse features (n, k + 1) are from the span, and their squared norms, (2, n) f8."""
    exact = points.astype(np.float64)
    return np.stack([exact[:, -1], np.einsum("ij,ij->i", exact, exact)])


def deviations(
    rho: NDArray[np.float64], squares: NDArray[np.float64], sigma2: float, row_weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return the bounds for rows at distances ρ (n,) from the span, of squared norms (n,); with float32 rounding."""
    rounding = float(np.finfo(np.float32).eps) * (OF_PRODUCTS + OF_DISTANCES * squares.max() / sigma2)
    with np.errstate(over="ignore"):
        outside = rho / sigma2 * np.exp(rho * rho.max() / sigma2) * np.sqrt((row_weights * rho**2).sum())
    most = np.sqrt(row_weights.sum())  # no kernel value differs from another by more than 1
    return np.asarray(np.minimum(outside, most) + rounding * most)


def as_rows(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return coarse features (n, k + 1) as points whose ρ is orthogonal to that of every center, (n, k + 2)."""
    return np.column_stack([points, np.zeros(len(points), points.dtype)])


def as_centers(points: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return coarse features (m, k + 1) as centers, likewise."""
    return np.column_stack([points[:, :-1], np.zeros(len(points), points.dtype), points[:, -1]])


def _sample_rows(n_features: int) -> int:
    return min(SAMPLE_ROWS, SAMPLE_VALUES // n_features)


def _file(folder: Path, block: Block) -> Path:
    return folder / f"{block.index:06d}.npz"


def _write_points(features: FeatureAccess, folder: Path, block: Block) -> None:
    stopping.check()
    arrays = read_arrays(folder / AXES_FILE)
    X = open_features(features).read("train", block.start, block.stop)
    points = project(X, arrays["mean"], arrays["axes"])
    write_arrays(_file(folder, block), {"points": points}, durable=False)
    progress.advance()

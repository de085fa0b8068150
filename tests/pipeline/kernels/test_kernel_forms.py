"""Kernels and their width: columns against scikit-learn and plain formulas, runs against dense twins."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import cdist
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from pipeline.config.settings import SETTINGS
from pipeline.config.train_config import AUTO_KERNEL
from pipeline.errors import InvalidDataError
from pipeline.kernels.kernel_forms import KERNELS, ColumnGenerator, Kernel, typical_sigma2
from pipeline.prediction import onnx_graph
from pipeline.prediction.model_folder import load_model
from pipeline.solvers.kernel_trials import PLAIN, Sample, Trial, try_kernel
from runs import TrainedRuns, held_out_of, report_of, save_once, train

LAPLACE, PRODUCT = Kernel("laplace"), Kernel("product-laplace")


def histograms(seed: int, rows: int = 40, features: int = 70) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((rows, features)) * (rng.random((rows, features)) < 0.6)).astype(np.float32)


def test_a_kernel_is_known_by_its_name_everywhere() -> None:
    """The settings read their names without numpy, the export has nodes of its own."""
    assert SETTINGS["kernel.name"].parse.parse.choices == (*KERNELS, AUTO_KERNEL)
    assert ("gaussian", *onnx_graph._NORMS) == KERNELS


def dense_columns(kernel: Kernel, sigma2: float, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """k(x, z) in float64, by scikit-learn where it has the kernel."""
    X, Z = X.astype("f8"), Z.astype("f8")
    if kernel.name == "gaussian":
        return np.asarray(rbf_kernel(X, Z, gamma=1 / (2 * sigma2)))
    if kernel == LAPLACE:
        return np.asarray(np.exp(-cdist(X, Z) / np.sqrt(sigma2)))
    return np.asarray(laplacian_kernel(X, Z, gamma=1 / np.sqrt(sigma2)))


@pytest.mark.parametrize("kernel", [Kernel(), LAPLACE, PRODUCT], ids=str)
@pytest.mark.parametrize("centers", [1, 64, 130])
def test_columns_are_the_kernel_of_rows_and_centers(kernel: Kernel, centers: int) -> None:
    X, Z = histograms(0), histograms(1, centers)
    truth = dense_columns(kernel, 5.0, X, Z)
    assert np.allclose(ColumnGenerator(Z, 5.0, np.float64, kernel=kernel).block(X), truth, rtol=1e-12)
    single = ColumnGenerator(Z, 5.0, kernel=kernel)
    assert single.block(X).dtype == np.float32
    assert np.allclose(single.block(X), truth, rtol=2e-5)
    assert np.array_equal(single.block(X), single.block(X, out_dtype=np.float64))
    for dtype in (np.float32, np.float64):
        assert ColumnGenerator(Z[:0], 5.0, dtype, kernel=kernel).block(X).shape == (len(X), 0)
    order = np.random.default_rng(2).permutation(len(X))
    assert np.array_equal(single.block(X, order), single.block(X)[order])


@given(
    kernel=st.sampled_from([Kernel(), LAPLACE, PRODUCT]),
    scale=st.floats(-2, 2),
    sigma2=st.floats(0.05, 20),
    features=st.integers(1, 300),
    apart=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_column_is_within_0_and_1(
    kernel: Kernel, scale: float, sigma2: float, features: int, apart: bool, seed: int
) -> None:
    X = (histograms(seed, 12, features) * 10**scale).astype(np.float32)
    # float32 holds what is left of the distances
    X *= np.float32(min(1.0, 200 * np.sqrt(sigma2) / max(np.linalg.norm(X, axis=1).max(), 1e-3)))
    Z = (X + np.roll(X, 1, axis=0))[:8] / np.float32(2) if apart else X
    for dtype in (np.float32, np.float64):
        columns = ColumnGenerator(Z, sigma2, dtype, kernel=kernel).block(X)
        assert ((columns >= 0.0) & (columns <= 1.0)).all()
    if not apart:
        at_itself = ColumnGenerator(X, sigma2, np.float64, kernel=kernel).block(X)
        np.testing.assert_allclose(np.diagonal(at_itself), 1.0, rtol=1e-9)


@pytest.mark.parametrize("kernel", [LAPLACE, PRODUCT], ids=str)
@pytest.mark.parametrize("features", [1, 3, 63, 64, 67, 130])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_of_differences_depends_on_its_row_and_center_alone(kernel: Kernel, features: int, dtype: type) -> None:
    """To the last bit, with any number of either, in any order; far from the origin nothing is lost."""
    rng = np.random.default_rng(features)
    X = (1e5 + rng.normal(size=(41, features))).astype(np.float32)
    Z = np.vstack([X[::2], X[1::3] + np.float32(1)])
    block = ColumnGenerator(Z, 9.0, dtype, kernel=kernel).block(X)
    np.testing.assert_allclose(block, dense_columns(kernel, 9.0, X, Z), rtol=3e-5 if dtype is np.float32 else 1e-12)
    assert (block[::2, :21].diagonal() == 1.0).all(), "of a center and itself"
    assert np.array_equal(block[::2, :21], block[::2, :21].T)
    tiled = ColumnGenerator(np.tile(Z, (16, 1)), 9.0, dtype, kernel=kernel)  # more than a tile of points
    assert np.array_equal(tiled.block(X[7:30]), np.tile(block[7:30], 16))
    for row, center in ((0, 0), (40, 33), (17, 20)):
        assert ColumnGenerator(Z[center:][:1], 9.0, dtype, kernel=kernel).block(X[row:][:1]) == block[row, center]
    place = rng.permutation(np.tile(np.arange(len(Z)), 2))
    repeated = ColumnGenerator(Z[place], 9.0, dtype, kernel=kernel)
    assert np.array_equal(repeated.block(X[::-1], np.arange(41)[::-1]), block[:, place])


@pytest.mark.parametrize("kernel", [LAPLACE, PRODUCT], ids=str)
def test_distances_that_overflow_are_refused_in_words(kernel: Kernel) -> None:
    X = np.ones((20, 3))
    X[13, 1] = 1e200
    for values in (X, np.where(X > 1, np.nan, X)):
        with pytest.raises(InvalidDataError, match=r"center 13.*too large.*standardise"):
            ColumnGenerator(values, 1.0, kernel=kernel)
        with pytest.raises(InvalidDataError, match=r"row 13.*too large.*standardise"):
            ColumnGenerator(X[:3], 1.0, kernel=kernel).block(values)
    with pytest.raises(InvalidDataError, match=r"1/√sigma2.*--sigma2"):
        ColumnGenerator(X[:3], 1e-300, kernel=kernel)
    X[13, 1] = 1e15
    block = ColumnGenerator(X[:3], 1.0, kernel=kernel).block(X)
    assert 0 <= block[13].max() < 1e-36, "a far row that is no center is harmless"


def test_unknown_kernels_are_refused() -> None:
    with pytest.raises(ValueError, match="kernel must be one of gaussian, laplace, product-laplace, got 'cubic'"):
        Kernel("cubic")


def test_the_typical_width_is_the_median_squared_distance() -> None:
    X = np.random.default_rng(10).normal(1000, 1, (60, 5)).astype(np.float32)
    distances = ((X[:, None].astype("f8") - X[None]) ** 2).sum(2)[np.triu_indices(60, 1)]
    assert typical_sigma2(X, Kernel()) == pytest.approx(np.median(distances), rel=1e-3)
    assert typical_sigma2(X, LAPLACE) == typical_sigma2(X, Kernel())
    sums = np.abs(X[:, None].astype("f8") - X[None]).sum(2)[np.triu_indices(60, 1)]
    assert typical_sigma2(X, PRODUCT) == pytest.approx(np.median(sums) ** 2, rel=1e-3)
    assert typical_sigma2(np.repeat(X, 10, axis=0), Kernel()) == typical_sigma2(X, Kernel()), "copies do not count"
    assert typical_sigma2(np.ones((5, 3)), Kernel()) == 1.0


@pytest.fixture(scope="module")
def table(shared_folder: Path) -> Path:
    """400 training rows of eight features of at least 0, in three classes that they tell apart for the most part."""
    rng = np.random.default_rng(12)
    X = rng.random((500, 8)).astype(np.float32)
    y = np.digitize(np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=500), [0.3, 1.0])
    save_once(shared_folder / "kernels.npz", X_train=X[:400], y_train=y[:400], X_test=X[400:], y_test=y[400:])
    return shared_folder / "kernels.npz"


class Trained:
    """A run without an intercept on the rows of `table` as they are, and the dense columns of all its candidates."""

    def __init__(self, finished_run: TrainedRuns, table: Path, *arguments: str, centers: str = "60") -> None:
        plain = ["--set", "data.standardise=false", "--set", "solver.intercept=false", "--scheduler", "serial"]
        run = finished_run("--centers", centers, *plain, *arguments, dataset=table)
        self.report, self.model = report_of(run), load_model(run / "model")
        with np.load(table) as arrays:
            self.X, labels = arrays["X_train"], arrays["y_train"]
        self.Y = np.where(labels[:, None] == np.arange(3), 1.0, -1.0)
        self.drawn = np.random.default_rng([0, 1]).permutation(400)[:60]

    def objective_and_gap(self, output: int, penalty: float) -> tuple[float, float]:
        """The Lasso's value at the weights of the model and its duality gap, from the dense columns."""
        tau, weights, y = np.sqrt(penalty), self.model.weights[:, output], self.Y[:, output]
        columns = dense_columns(self.model.kernel, self.report["sigma2"], self.X, self.X[self.drawn])
        residual = y - self.own_columns() @ weights
        primal = 0.5 * residual @ residual + tau * np.abs(weights).sum()
        theta = residual * min(1.0, tau / np.abs(columns.T @ residual).max())
        return primal, (primal - (0.5 * y @ y - 0.5 * (y - theta) @ (y - theta))) / primal

    def own_columns(self) -> np.ndarray:
        return dense_columns(self.model.kernel, self.model.sigma2, self.X, self.model.centers)


CASES = {
    "gaussian": ["--sigma2", "0.3"],
    "laplace": ["--kernel", "laplace", "--sigma2", "3"],
    "product-laplace": ["--kernel", "product-laplace"],
}
QUICK = ("gaussian", "product-laplace")
EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.ci) for name in CASES]


@pytest.mark.parametrize("name", EVERY)
def test_the_gap_is_over_every_candidate(finished_run: TrainedRuns, table: Path, name: str) -> None:
    run = Trained(finished_run, table, *CASES[name], "--penalty", "0.1", "--tol", "1e-4")
    assert run.report["n_centers"] == 60
    assert run.report["sigma2"] == run.model.sigma2
    for solve in run.report["solves"]:
        objective, gap = run.objective_and_gap(solve["output"], 0.1)
        assert 2 * objective == pytest.approx(solve["objective"], rel=1e-4)
        assert gap < 5e-4, "1e-4 for float32 columns"
    assert np.allclose(run.model.decision_function(run.X), run.own_columns() @ run.model.weights, atol=1e-4)
    assert run.model.description()["kernel"]["name"] == run.model.kernel.name


@pytest.mark.parametrize("name", ["gaussian", *(pytest.param(name, marks=pytest.mark.ci) for name in [*CASES][1:])])
def test_rounds_reach_the_same_optimum(finished_run: TrainedRuns, table: Path, name: str) -> None:
    """The streamed scores and the bounds of what is not evaluated hold for columns that are no Gaussians."""
    common = [*CASES[name], "--penalty", "10", "--tol", "1e-4"]
    whole = Trained(finished_run, table, *common, centers="all")
    rounds = Trained(finished_run, table, *common, "--set", "centers.working_set=100", centers="all")
    assert len(rounds.report["passes"]) > 1
    for one, other in zip(whole.report["solves"], rounds.report["solves"], strict=True):
        assert one["objective"] == pytest.approx(other["objective"], rel=2e-4)
    assert abs(whole.report["n_errors"] - rounds.report["n_errors"]) <= 1


def test_auto_takes_the_width_of_the_lowest_held_out_error(finished_run: TrainedRuns, table: Path) -> None:
    run = Trained(finished_run, table, "--sigma2", "auto", "--penalty", "1")
    tried = dict(run.report["sigma2_tried"])
    held_out = held_out_of(run.X, fraction=1 / 3)
    ones = np.ones(8, np.float32)
    sample = Sample(run.X, run.Y, held_out, run.X[run.drawn], ones, float(np.count_nonzero(held_out)), of_classes=True)
    again = [try_kernel(sample, Trial(Kernel(), PLAIN, ones, width, 60)).error for width in tried]
    np.testing.assert_allclose(again, list(tried.values()), rtol=1e-3)
    assert run.report["sigma2"] == run.model.sigma2 == min(tried, key=tried.__getitem__)
    steps = np.diff(np.log2(sorted(tried)))
    np.testing.assert_allclose(steps, 1.0)
    assert min(tried) < run.report["sigma2"] < max(tried)


def test_the_median_is_the_typical_width_of_the_candidates(finished_run: TrainedRuns, table: Path) -> None:
    run = Trained(finished_run, table, "--sigma2", "median", "--select", "greedy:20")
    assert run.report["sigma2"] == pytest.approx(typical_sigma2(run.X[run.drawn], Kernel()), rel=1e-3)


@pytest.mark.ci
def test_the_order_of_the_rows_decides_no_width(tmp_path: Path) -> None:
    """All rows as candidates, sorted by class, the first class tight: its distances alone would give a tiny width."""
    rng = np.random.default_rng(12)
    means = np.repeat([[0.0], [3.0], [-3.0]], 1200, axis=0)
    X = means + np.repeat([[0.05], [1.0], [1.0]], 1200, axis=0) * rng.normal(size=(3600, 5))
    np.savez(tmp_path / "sorted.npz", X=X, y=np.repeat([0, 1, 2], 1200))
    distances = ((X[::9, None] - X[None, ::9]) ** 2).sum(2)[np.triu_indices(400, 1)]
    assert typical_sigma2(X, Kernel()) == pytest.approx(np.median(distances), rel=0.2)
    asked = ["--centers", "all", "--sigma2", "median", "--penalty", "100", "--scheduler", "serial"]
    asked += ["--set", "data.standardise=false", "--set", "centers.working_set=100"]
    width = train(tmp_path / "run", tmp_path / "features", *asked, dataset=tmp_path / "sorted.npz")["sigma2"]
    assert width == pytest.approx(np.median(distances), rel=0.2)

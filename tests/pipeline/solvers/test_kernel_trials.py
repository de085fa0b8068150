"""Trials of kernels, widths and scales: their errors against dense twins, the scales they teach, and rungs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import rosen, rosen_der
from scipy.special import softmax
from sklearn.linear_model import Ridge
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import laplacian_kernel, rbf_kernel

from pipeline.kernels.kernel_functions import DIAGONAL, KERNELS, METRIC, Kernel, scaled
from pipeline.solvers.held_out_losses import TEMPERATURES, limits_of
from pipeline.solvers.kernel_trials import (
    PLAIN,
    Sample,
    Trial,
    choose,
    constants_of_folds,
    importances,
    kinds_of,
    next_scales,
    try_kernel,
)
from pipeline.solvers.ladder import RUNGS, Rung, Search, surviving
from pipeline.solvers.lbfgs import PAIRS, Curvature, direction, next_point

GAUSSIAN, PRODUCT = KERNELS


def sample_of(X: np.ndarray, y: np.ndarray, m: int = 80, seed: int = 0) -> Sample:
    """Return a sample of which a third is held out; `y` (n,) are numbers, or classes where these are integers."""
    rng, of_classes = np.random.default_rng([seed, 1]), y.dtype.kind == "i"
    held_out = rng.random(len(X)) < 1 / 3
    targets = np.asarray(y, float)[:, None]
    if of_classes:
        targets = np.where(y[:, None] == (np.arange(y.max() + 1) if y.max() > 1 else 1), 1.0, -1.0)
    points = X[rng.permutation(len(X))[:m]]
    limits = np.array(() if of_classes else limits_of(targets.min(), targets.max()))
    return Sample(X, targets, np.where(held_out, 0, -1), points, float(held_out.sum()), of_classes, limits)


def waves(n: int = 400, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.4 * rng.normal(size=n)


def start(sample: Sample, kernel: type[Kernel] = GAUSSIAN, sigma2: float | None = None) -> Trial:
    """Return a trial of features as they are, which was not tried; at the typical width unless one is given."""
    ones, typical = np.ones(sample.points.shape[1], np.float32), kernel.default_sigma2(sample.points)
    return Trial(kernel, PLAIN, ones, sigma2 or typical, len(sample.points), typical=typical)


def climb(
    sample: Sample, survivors: list[Trial], m: int = 80, scale: str = "learned", *, begins: bool = True
) -> Search:
    """Return a search on a rung of m candidates, all of whose rows are fitted, that has climbed."""
    kinds = kinds_of(scale, survivors[0].kernel, sample)
    search = Search(sample, Rung(m, len(sample.X), begins), kinds, has_width=False, most_operations=math.inf)
    search.climb(survivors)
    return search


def twin(sample: Sample, K: np.ndarray, exponents: Sequence[int] = range(-7, 4)) -> tuple[np.ndarray, float]:
    """Return the best decision values (held-out rows, T) and the exponent of their ridge, by scikit-learn's ridge."""
    weights = np.ones(len(K)) if sample.weights is None else sample.weights
    any_fold, found = sample.folds >= 0, list[tuple[float, int, np.ndarray]]()
    fitted = any_fold if any_fold.all() else ~any_fold
    scale = (weights[fitted] @ K[fitted] ** 2).mean()
    for exponent in exponents:
        f = np.zeros_like(sample.targets)
        for fold in range(sample.folds.max() + 1):
            fit, held_out = sample.folds != fold, sample.folds == fold
            ridge = Ridge(alpha=scale * 10.0**exponent, solver="cholesky").fit(
                K[fit], sample.targets[fit], weights[fit]
            )
            f[held_out] = ridge.predict(K[held_out]).reshape(-1, f.shape[1])
        squares = ((f - sample.targets) ** 2).sum(axis=1)
        found.append((float((weights * squares)[any_fold].sum()), exponent, f[any_fold]))
    _, exponent, f = min(found, key=lambda one: one[0])
    return f, exponent


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("kernel", "n_folds"), [(GAUSSIAN, 1), (GAUSSIAN, 5), (PRODUCT, 1)])
def test_the_error_is_that_of_scikit_learns_ridge_on_the_columns(kernel, n_folds, weighted):
    X, y = waves()
    sample = sample_of(X, y)
    if n_folds > 1:
        sample = replace(sample, folds=np.random.default_rng(3).integers(n_folds, size=len(X)))
    if weighted:
        sample = replace(sample, weights=np.random.default_rng(2).integers(1, 4, len(X)).astype(float))
    scales, sigma2 = np.array([2.0, 1.0, 0.5, 0.0], np.float32), 3.0
    kernels: dict[type[Kernel], Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
        GAUSSIAN: lambda A, B: rbf_kernel(A, B, 1 / (2 * sigma2)),
        PRODUCT: lambda A, B: laplacian_kernel(A, B, 1 / math.sqrt(sigma2)),
    }
    f, exponent = twin(sample, kernels[kernel](X * scales, sample.points * scales))
    tried = try_kernel(sample, Trial(kernel, DIAGONAL, scales, sigma2, len(sample.points)))
    held_out = sample.folds >= 0
    weights = None if sample.weights is None else sample.weights[held_out]
    assert tried.ridge == exponent
    charge = (1 - len(scales) / sample.n_held_out) ** 2 if n_folds > 1 else 1.0  # scales have seen all folds
    error = np.average((f[:, 0] - y[held_out]) ** 2, weights=weights) / charge
    assert tried.error == pytest.approx(error, rel=1e-4)
    assert tried.held_out is not None
    order = np.argsort(sample.folds[held_out], kind="stable")
    np.testing.assert_allclose(tried.held_out, f[order], atol=1e-3)
    if n_folds > 1:
        counts, K = sample.counts, kernels[kernel](X * scales, sample.points * scales)
        whole = Ridge(10.0**exponent * (counts @ K**2).mean(), solver="cholesky").fit(K, y, sample.weights)
        np.testing.assert_allclose(K @ tried.weights[:, 0], K @ whole.coef_, atol=1e-3)
    fewer = try_kernel(sample, replace(tried, n_centers=20))
    assert len(fewer.weights) == 20, "the first of the points"


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_of_classes_it_is_the_log_loss_of_the_best_temperature_with_half_a_row_wrong(n_classes, weighted):
    X, y = waves()
    sample = sample_of(X, np.digitize(y, np.quantile(y, np.arange(1, n_classes) / n_classes)))
    if weighted:
        sample = replace(sample, weights=np.random.default_rng(2).exponential(size=len(X)))
    truth = np.where(sample.targets[:, 0] > 0, 1, 0) if n_classes == 2 else sample.targets.argmax(axis=1)
    held_out = sample.folds == 0
    truth = truth[held_out]
    weights = np.ones(len(truth)) if sample.weights is None else sample.weights[held_out]
    tried = try_kernel(sample, start(sample, sigma2=2.0))
    f, _ = twin(sample, rbf_kernel(X, sample.points, 1 / 4), [tried.ridge])
    f = np.hstack([np.zeros_like(f), f]) if n_classes == 2 else f
    far = np.abs(f - f[np.arange(len(f)), truth, None]).max(axis=1).mean()  # what a row that is surely wrong costs
    losses = [
        log_loss(truth, softmax(f / t, axis=1), sample_weight=weights) + 0.5 / held_out.sum() * far / t
        for t in (2.0 ** (step / 2) for step in TEMPERATURES)
    ]
    assert tried.error == pytest.approx(min(losses), rel=1e-3)
    assert losses[0] != pytest.approx(min(losses), rel=0.1)
    surer = replace(sample, n_held_out=4 * sample.n_held_out)
    assert try_kernel(surer, start(sample, sigma2=2.0)).error < min(losses)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_a_trial_that_cannot_be_computed_has_lost(kernel):
    """Where the width or rows are no float32 numbers; the widths beside it are tried."""
    sample = sample_of(*waves(60))
    assert try_kernel(sample, start(sample, kernel, 1e-90)).error == math.inf
    held_out = replace(sample, X=np.where((sample.folds == 0)[:, None], 1e39, sample.X))
    assert try_kernel(held_out, start(sample, kernel)).error == math.inf
    tiny = replace(sample, X=sample.X * 1e-20, points=sample.points * 1e-20)
    lost = replace(start(tiny, kernel), sigma2=kernel.typical_sigma2(tiny.points) / 4)
    assert min(one.error for one in climb(tiny, [lost], 40, "none").tried) < math.inf, "the widths beside it are tried"


def test_a_metric_finds_the_directions_that_matter():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(1200, 8))
    direction = rng.normal(size=8) / np.sqrt(8)
    sample = sample_of(X, np.sin(2 * X @ direction) + 0.02 * rng.normal(size=1200), 120)
    tried = sorted(climb(sample, [start(sample)], 60).tried, key=lambda trial: trial.error)
    best = tried[0]
    assert best.kind == METRIC
    assert best.error < min(one.error for one in tried if one.kind == DIAGONAL) / 9
    assert choose(tried, sample.n_held_out) is best
    values, vectors = np.linalg.eigh(best.scales.astype(float))
    assert values[-1] > 5 * values[-2] > 0
    assert abs(vectors[:, -1] @ direction) > 0.98 * np.linalg.norm(direction)
    np.testing.assert_allclose(importances(best.scales), direction**2 / (direction @ direction), atol=0.05)
    distances = [GAUSSIAN.typical_sigma2(scaled(sample.points, one.scales)) for one in tried if one.kind != PLAIN]
    np.testing.assert_allclose(distances, best.typical, rtol=1e-4)
    higher = climb(sample, surviving({"gaussian": tried})["gaussian"], 120, begins=False)
    assert min(one.error for one in higher.tried) <= best.error * 1.01, "from what was found"


def test_the_other_kernel_learns_a_scale_for_each_feature():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(900, 8))
    sample = sample_of(X, np.sign(X[:, 2]) * (1 + 0.5 * X[:, 5]) + 0.05 * rng.normal(size=900))
    tried = climb(sample, [start(sample, PRODUCT)]).tried
    assert {one.kind for one in tried} == {PLAIN, DIAGONAL}, "no metric"
    best = min(tried, key=lambda trial: trial.error)
    assert best.error < 0.7 * min(one.error for one in tried if one.kind == PLAIN)
    assert set(np.argsort(importances(best.scales))[-2:]) == {2, 5}


def test_a_search_ends_by_its_operations_and_has_a_best_trial():
    sample = sample_of(*waves())
    search = Search(sample, RUNGS[0], (DIAGONAL, METRIC), has_width=False, most_operations=0.0)
    assert search.climb([start(sample)]) == search.tried
    (only,) = search.tried
    assert (only.kind, only.n_centers) == (PLAIN, 80)
    assert only.error < math.inf
    assert search.operations > 0


def test_the_constant_is_judged_by_the_folds_too():
    X, y = waves(90)
    sample = replace(sample_of(X, y), folds=np.arange(90) % 3, limits=np.array([]))
    errors = [np.square(y[fold::3] - np.delete(y, range(fold, 90, 3)).mean()) for fold in range(3)]
    f, error = constants_of_folds(sample)
    assert error == pytest.approx(np.mean(errors))
    assert f[0, 0] == pytest.approx(np.delete(y, range(0, 90, 3)).mean())


@pytest.mark.parametrize(
    ("errors", "n_held_out", "expected"),
    [
        ("p1.0 d0.995", 10**6, 0),
        ("p1.0 d0.985", 10**6, 1),
        ("p1.0 d0.93", 35, 0),  # chance
        ("p1.0 d0.5 m0.49", 35, 1),  # chance
        ("p1.0 d0.95 m0.92", 35, 0),
        ("p1.0 d0.5 m0.4", 35, 2),
        ("p1.0 d0.93 m0.86", 10**6, 2),
        ("pinf d0.5", 35, 1),
        ("pinf dinf", 35, 0),
        ("m0.5 p0.51", 35, 1),  # what is simple first, in whatever order they come
        ("d0.5 *p0.5", 35, 1),
        ("p0.5 *p0.3 d0.299", 35, 1),
    ],
)
def test_what_may_be_chance_is_not_taken(errors, n_held_out, expected):
    """Of trials by words as "d0.5": a kind of scales and an error; "*" before it: of another kernel."""
    kinds = {"p": PLAIN, "d": DIAGONAL, "m": METRIC}
    words = [(PRODUCT, word[1:]) if word[0] == "*" else (GAUSSIAN, word) for word in errors.split()]
    trials = [Trial(kernel, kinds[one[0]], np.ones(2, np.float32), 1.0, 9, float(one[1:])) for kernel, one in words]
    assert choose(trials, n_held_out) is trials[expected]


@pytest.mark.parametrize("before", [np.diag([1.0, 2.0, 3.0, 0.5]), np.eye(4) + 0.3], ids=["scales", "metric"])
def test_scales_are_learned_from_the_derivatives_of_the_fit(before):
    """By central differences of the fit over the inputs themselves, before any scales."""
    X, y = waves(300)
    scales = np.diagonal(before) if np.array_equal(before, np.diag(np.diagonal(before))) else before
    sample = sample_of(X, y, 60)
    trial = try_kernel(sample, replace(start(sample), scales=scales.astype(np.float32), sigma2=8.0))

    def f(X: np.ndarray) -> np.ndarray:
        points = sample.points @ before
        return np.exp(-((X @ before)[:, None] - points).astype(float).__pow__(2).sum(axis=2) / 16.0) @ trial.weights

    rows = X[sample.fitted]
    gradients = np.stack([(f(rows + step) - f(rows - step))[:, 0] / 2e-4 for step in 1e-4 * np.eye(4)], axis=1)
    products = gradients.T @ gradients
    root = next_scales(sample, trial, METRIC).astype(float)
    np.testing.assert_allclose(root @ root / np.trace(root @ root), products / products.trace(), atol=1e-4)
    if scales.ndim == 1:
        learned = next_scales(sample, trial, DIAGONAL).astype(float)
        np.testing.assert_allclose(importances(learned), np.diagonal(products) / products.trace(), atol=1e-4)


def test_direction_is_that_of_the_dense_inverse():
    """The recursion on the last pairs, written out with matrices."""
    rng = np.random.default_rng(0)
    hessian = np.diag(rng.uniform(0.5, 20, 12))
    curvature = Curvature.nothing(12)
    for _ in range(PAIRS + 3):
        step = rng.normal(size=12)
        curvature = curvature.with_pair(step, hessian @ step)
    assert len(curvature.steps) == PAIRS
    pairs = [(s.astype(float), y.astype(float)) for s, y in zip(curvature.steps, curvature.changes, strict=True)]
    s, y = pairs[-1]
    inverse = np.eye(12) * (s @ y) / (y @ y)
    for s, y in pairs:
        left = np.eye(12) - np.outer(s, y) / (s @ y)
        inverse = left @ inverse @ left.T + np.outer(s, s) / (s @ y)
    gradient = rng.normal(size=12)
    np.testing.assert_allclose(direction(gradient, curvature), -inverse @ gradient, rtol=1e-5, atol=1e-8)


def test_it_finds_the_end_of_a_curved_valley():
    x, curvature = np.full(10, -1.2), Curvature.nothing(10)
    for _ in range(400):
        gradient = rosen_der(x)
        new = next_point(x, float(rosen(x)), gradient, curvature, 0.1, lambda at: float(rosen(at)))
        if new is None:
            break
        assert rosen(new) < rosen(x)
        x, curvature = new, curvature.with_pair(new - x, rosen_der(new) - gradient)
    np.testing.assert_allclose(x, 1.0, atol=1e-4)


def test_features_that_rounds_have_put_to_sleep_are_woken():
    """Two that matter together alone: neither has a slope while the other's scale is tiny."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(900, 8))
    y = np.sin(3 * X[:, 0]) + 0.5 * X[:, 2] * X[:, 3] + 0.02 * rng.normal(size=900)
    sample = sample_of(X, y, 200)
    scales = np.where(np.arange(8) == 0, 2.8, 1e-4).astype(np.float32)
    typical = GAUSSIAN.typical_sigma2(sample.points * scales)
    asleep = Trial(GAUSSIAN, DIAGONAL, scales, typical, 100, typical=typical)
    errors = {}
    for begins in (False, True):
        best = min(climb(sample, [asleep], 100, DIAGONAL, begins=begins).tried, key=lambda trial: trial.error)
        errors[begins] = best.error
    assert errors[False] > 5 * errors[True]
    assert set(np.argsort(importances(best.scales))[-3:]) == {0, 2, 3}

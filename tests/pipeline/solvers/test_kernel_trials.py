"""Trials of kernels, widths and scales: their errors against dense twins, the widths, the rounds, what is taken."""

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
from pipeline.solvers import kernel_trials
from pipeline.solvers.held_out_losses import TEMPERATURES, limits_of
from pipeline.solvers.kernel_trials import COMMON, PLAIN, Sample, Search, Trial, importances, search_kernel, try_kernel
from pipeline.solvers.lbfgs import PAIRS, Curvature, direction, next_point

GAUSSIAN, PRODUCT = KERNELS


def sample_of(X: np.ndarray, y: np.ndarray, m: int = 80, seed: int = 0) -> Sample:
    """Return a sample of which a third is held out; `y` (n,) are numbers, or classes where these are integers."""
    rng, of_classes = np.random.default_rng([seed, 1]), y.dtype.kind == "i"
    held_out, ones = rng.random(len(X)) < 1 / 3, np.ones(X.shape[1], np.float32)
    targets = np.asarray(y, float)[:, None]
    if of_classes:
        targets = np.where(y[:, None] == (np.arange(y.max() + 1) if y.max() > 1 else 1), 1.0, -1.0)
    points = X[rng.permutation(len(X))[:m]]
    limits = np.array(() if of_classes else limits_of(targets.min(), targets.max()))
    keys = np.arange(len(X), dtype=np.uint64)
    return Sample(X, keys, targets, np.where(held_out, 0, -1), points, ones, float(held_out.sum()), of_classes, limits)


def waves(n: int = 400, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, np.sin(2 * X[:, 0]) + 0.5 * X[:, 1] + 0.4 * rng.normal(size=n)


def start(sample: Sample, kernel: type[Kernel] = GAUSSIAN, sigma2: float | None = None) -> Trial:
    """Return a trial of features as they are, which was not tried; at the typical width unless one is given."""
    ones = np.ones(sample.points.shape[1], np.float32)
    return Trial(kernel, PLAIN, ones, sigma2 or kernel.default_sigma2(sample.points), len(sample.points))


def twin(sample: Sample, K: np.ndarray, exponents: Sequence[int] = range(-7, 4)) -> tuple[np.ndarray, float]:
    """Return the best decision values (held-out rows, T) and the exponent of their ridge, by scikit-learn's ridge."""
    weights = np.ones(len(K)) if sample.weights is None else sample.weights
    any_fold, found = sample.folds >= 0, list[tuple[float, int, np.ndarray]]()
    for exponent in exponents:
        f = np.zeros_like(sample.targets)
        for fold in range(sample.folds.max() + 1):
            fit, held_out = sample.folds != fold, sample.folds == fold
            scale = (weights[fit] @ K[fit] ** 2).mean()
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
    trial = start(tiny, kernel, kernel.typical_sigma2(tiny.points) / 4)
    assert kernel_trials.best_width(tiny, replace(trial, typical=4 * trial.sigma2), Search(40))[0].error < math.inf


def test_a_metric_finds_the_directions_that_matter():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(1200, 8))
    direction = rng.normal(size=8) / np.sqrt(8)
    sample = sample_of(X, np.sin(2 * X @ direction) + 0.02 * rng.normal(size=1200))
    rounds = list[Trial]()
    search = Search(80, kernel_trials.kinds_of("learned", GAUSSIAN, 8, 800), on_round=rounds.append)
    kept = search_kernel(sample, GAUSSIAN, search)
    kinds = [one.kind for one in rounds]
    assert kinds == sorted(kinds, key=[PLAIN, DIAGONAL, METRIC].index), "a scale for each feature first"
    assert [one.kind for one in kept] in ([PLAIN, DIAGONAL, METRIC], [PLAIN, METRIC])
    best = kept[-1]
    assert best.error == min(one.error for one in rounds)
    assert best.error < min(one.error for one in rounds if one.kind == DIAGONAL) / 9
    values, vectors = np.linalg.eigh(best.scales.astype(float))
    assert values[-1] > 5 * values[-2] > 0
    assert abs(vectors[:, -1] @ direction) > 0.98 * np.linalg.norm(direction)
    np.testing.assert_allclose(importances(best.scales), direction**2 / (direction @ direction), atol=0.05)
    distances = [GAUSSIAN.typical_sigma2(scaled(sample.points, one.scales)) for one in rounds]
    assert len({one.typical for one in rounds}) == 1
    np.testing.assert_allclose(distances[kinds.count(PLAIN) :], best.typical, rtol=1e-4)
    going_on = replace(search, on_round=lambda _: None)
    (again,) = kernel_trials.search_from(sample, GAUSSIAN, METRIC, best.scales, going_on)
    assert again.kind == METRIC
    assert again.error <= best.error * 1.01, "from what was found"


def test_the_other_kernel_learns_a_scale_for_each_feature():
    rng = np.random.default_rng(6)
    X = rng.normal(size=(900, 8))
    sample = sample_of(X, np.sign(X[:, 2]) * (1 + 0.5 * X[:, 5]) + 0.05 * rng.normal(size=900))
    search = Search(80, (DIAGONAL,))
    base, *_, best = search_kernel(sample, PRODUCT, search)
    assert (base.kind, best.kind) == (PLAIN, DIAGONAL)
    assert best.error < 0.7 * base.error
    assert set(np.argsort(importances(best.scales))[-2:]) == {2, 5}


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
        ("p0.5 *p0.499 c0.3 d0.299", 35, 2),
    ],
)
def test_what_may_be_chance_is_not_taken(errors, n_held_out, expected):
    """Of trials by words as "d0.5": a kind of scales and an error; "*" before it: of another kernel."""
    kinds = {"p": PLAIN, "c": COMMON, "d": DIAGONAL, "m": METRIC}
    words = [(PRODUCT, word[1:]) if word[0] == "*" else (GAUSSIAN, word) for word in errors.split()]
    trials = [Trial(kernel, kinds[one[0]], np.ones(2, np.float32), 1.0, 9, float(one[1:])) for kernel, one in words]
    assert kernel_trials.choose(trials, n_held_out) is trials[expected]
    if errors.startswith("p") and "*" not in errors:
        assert kernel_trials.simplest(trials, n_held_out) is trials[expected]


def test_inputs_with_units_of_their_own_stay_on_one_scale():
    """Of pixels, those that hardly vary tell little: z-scores blow them up."""
    rng = np.random.default_rng(8)
    deviations = np.repeat([1.0, 0.02], [4, 16])
    inputs = rng.normal(size=(900, 20)) * deviations
    sample = sample_of(inputs / deviations, np.sin(inputs[:, :4].sum(axis=1)) + 0.05 * rng.normal(size=900))
    common = (deviations / np.sqrt(np.mean(deviations**2))).astype(np.float32)
    search = Search(80, (DIAGONAL,))
    found = search_kernel(replace(sample, common=common), GAUSSIAN, search)
    assert [one.kind for one in found[:2]] == [PLAIN, COMMON]
    assert found[1].error < 0.7 * found[0].error
    np.testing.assert_array_equal(found[1].scales, common)
    alike = search_kernel(sample, GAUSSIAN, search)
    assert COMMON not in [one.kind for one in alike], "where all inputs vary alike there is one scale"
    asked = replace(search, kinds=())
    assert len(search_kernel(replace(sample, common=common), GAUSSIAN, asked)) == 1, "with --scale none"


def test_a_metric_is_the_mean_product_of_the_gradients_before_any_scales():
    rng = np.random.default_rng(5)
    points, gradients = rng.normal(size=(200, 4)), rng.normal(size=(50, 4)) * [1.0, 2.0, 0.5, 0.0]
    expected = gradients.T @ gradients / 50
    for before in (np.diag([1.0, 2.0, 3.0, 0.5]), np.eye(4) + 0.3):
        of_scaled = gradients @ np.linalg.inv(before)  # u = before x
        scales = np.diagonal(before) if np.array_equal(before, np.diag(np.diagonal(before))) else before
        trial = Trial(GAUSSIAN, METRIC, scales.astype(np.float32), 1.0, 50)
        root = kernel_trials.next_scales(trial, of_scaled.T @ of_scaled / 50, points).astype(float)
        np.testing.assert_array_equal(root, root.T)
        metric = root @ root
        np.testing.assert_allclose(metric / metric.trace(), expected / expected.trace(), atol=1e-5)


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
    X = rng.uniform(-1, 1, size=(1500, 12))
    y = np.sin(3 * X[:, 0]) + 0.5 * X[:, 2] * X[:, 3] + 0.02 * rng.normal(size=1500)
    sample = replace(sample_of(X, y), folds=np.where(rng.random(1500) < 1 / 3, 0, -1), points=X[:600])
    search = Search(200, (DIAGONAL,))
    scales = np.where(np.arange(12) == 0, 3.4, 1e-4).astype(np.float32)
    typical = GAUSSIAN.typical_sigma2(sample.points * scales)
    asleep = search.tried(sample, Trial(GAUSSIAN, DIAGONAL, scales, typical, 200, typical=typical))
    going_on = kernel_trials._rounds(sample, asleep, DIAGONAL, 3, search)[-1]
    awake = kernel_trials._rounds(sample, kernel_trials._woken(sample, [asleep], search), DIAGONAL, 3, search)[-1]
    assert going_on.error > 0.9 * asleep.error
    assert awake.error < 0.2 * asleep.error
    assert set(np.argsort(importances(awake.scales))[-3:]) == {0, 2, 3}

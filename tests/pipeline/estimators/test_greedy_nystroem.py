"""The transformer with chosen landmarks: dense twins, what more landmarks bring, its limits."""

from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel

from dense_twins import selection_order
from pipeline.estimators import GreedyNystroem, array_features
from pipeline.stages import training_rows
from runs import largest_bytes

Array = np.ndarray
Table = tuple[Array, Array]


@pytest.mark.parametrize("labels", [False, True])
def test_landmarks_for_y_are_those_of_a_fit_for_every_choice(diabetes: Table, labels: bool) -> None:
    X, y = diabetes[0][:200], diabetes[1][:200]
    y = np.array(["low", "mid", "high"])[np.digitize(y, [-0.7, 0.6])] if labels else y
    greedy = GreedyNystroem(10, sigma2=4.0, n_candidates=20, random_state=0).fit(X, y)
    candidates = np.sort(np.random.default_rng([0, 1]).permutation(len(X))[:20])
    targets = np.where(y[:, None] == np.unique(y), 1.0, -1.0) if labels else (y - y.mean())[:, None]
    K = rbf_kernel(X, X[candidates], gamma=1 / 8)
    expected = candidates[selection_order(K, targets, 10, intercept=True)]
    np.testing.assert_array_equal(greedy.component_indices_, expected)
    np.testing.assert_array_equal(greedy.components_, X[expected])


@pytest.mark.parametrize(
    ("kernel", "theirs"),
    [
        ("gaussian", {"kernel": "rbf", "gamma": 0.5 / 3.0}),
        ("polynomial", {"kernel": "polynomial", "gamma": 1 / 3.0, "coef0": 1, "degree": 3}),
        ("product-laplace", {"kernel": "laplacian", "gamma": 3.0**-0.5}),
        pytest.param("intersection", {"kernel": lambda x, z: np.minimum(x, z).sum()}, marks=pytest.mark.ci),
    ],
)
def test_features_are_those_of_nystroem_with_the_same_landmarks(
    kernel: str, theirs: dict[str, Any], digits: Table
) -> None:
    X, y = digits[0][:200].astype(float), digits[1][:200]
    width = {} if kernel == "intersection" else {"sigma2": 3.0}
    greedy = GreedyNystroem(20, kernel=kernel, degree=3, **width, random_state=0).fit(X, y)
    same = Nystroem(n_components=20, random_state=0, **theirs).fit(greedy.components_)
    np.testing.assert_allclose(np.sort(same.component_indices_), np.arange(20))
    expected = same.transform(X) @ same.transform(X[:50]).T
    np.testing.assert_allclose(greedy.transform(X) @ greedy.transform(X[:50]).T, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(greedy.normalization_, greedy.normalization_.T, atol=1e-10)


@pytest.mark.parametrize("given_y", [False, True])
def test_more_landmarks_lower_the_error(given_y: bool, diabetes: Table) -> None:
    X, y = diabetes
    errors = []
    for size in (5, 15, 45):
        greedy = GreedyNystroem(size, n_candidates=150, random_state=3).fit(X, y if given_y else None)
        features = greedy.transform(X)
        design = np.column_stack([np.ones(len(X)), features])
        of_y = ((y - design @ np.linalg.lstsq(design, y, rcond=None)[0]) ** 2).sum()
        errors.append(of_y if given_y else len(X) - (features**2).sum())  # or the trace that is left of the kernel
    assert errors[0] > 1.05 * errors[1] > 1.1 * errors[2]


def test_rows_that_repeat_are_candidates_once() -> None:
    X = np.repeat(np.random.default_rng(0).normal(size=(10, 3)), 4, axis=0)
    greedy = GreedyNystroem(20).fit(X)
    assert len(np.unique(greedy.components_, axis=0)) == len(greedy.components_) == 10
    assert greedy.transform(X).shape == (40, 10)
    assert greedy.get_feature_names_out()[-1] == "greedynystroem9"


def test_blocks_change_neither_landmarks_nor_features(diabetes: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = diabetes
    whole = GreedyNystroem(30, random_state=0).fit(X, y)
    expected = whole.transform(X)
    monkeypatch.setattr(array_features, "BLOCK_BYTES", 1)
    monkeypatch.setattr(training_rows, "MOST_ROWS", 32)
    blocked = GreedyNystroem(30, random_state=0).fit(X, y)
    np.testing.assert_array_equal(blocked.component_indices_, whole.component_indices_)
    np.testing.assert_allclose(blocked.transform(X), expected, atol=1e-9)


def test_a_fit_that_fails_leaves_the_last_landmarks(diabetes: Table) -> None:
    X, y = diabetes
    machine = GreedyNystroem(10, random_state=0).fit(X, y)
    expected = machine.transform(X)
    with pytest.raises(ValueError, match="sigma2"):
        machine.set_params(sigma2=1e-320).fit(2 * X[:, :4], y)
    np.testing.assert_array_equal(machine.transform(X), expected)


def test_float32_rows_give_float32_features_of_the_same_landmarks(diabetes: Table) -> None:
    X, y = diabetes[0].astype(np.float32), diabetes[1]
    single, double = (GreedyNystroem(30, sigma2=8.0, random_state=0).fit(rows, y) for rows in (X, X.astype(float)))
    np.testing.assert_array_equal(single.component_indices_, double.component_indices_)
    assert single.components_.dtype == single.transform(X).dtype == np.float32
    np.testing.assert_allclose(single.transform(X), double.transform(X), atol=1e-6)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"n_components": 0}, "n_components must be a whole number of at least 1; found 0"),
        ({"n_candidates": "some"}, "n_candidates must be .* all or None"),
        ({"sigma2": "auto"}, "sigma2 must be above 0 or 'median'"),
        ({"kernel": "rbf"}, "kernel must be one of gaussian, laplace, product-laplace, polynomial"),
        ({"degree": 1.5}, "degree must be a whole number"),
        ({"degree": 21}, "degree must be a whole number of 1 to 20"),
        ({"memory_limit": "much"}, "memory_limit must be a size such as 2GiB"),
        ({"kernel": "intersection", "sigma2": 3.0}, "sigma2 has no effect on the intersection kernel"),
        ({"sigma2": 1e-300}, "or use a larger sigma2"),
        ({"kernel": "intersection"}, "needs features of at least 0"),
    ],
)
def test_senseless_parameters_are_named(parameters: dict[str, Any], words: str, diabetes: Table) -> None:
    with pytest.raises(ValueError, match=words) as found:
        GreedyNystroem(**parameters).fit(*diabetes)
    assert "--" not in str(found.value)


def test_data_without_use_are_refused(diabetes: Table) -> None:
    X, y = diabetes
    with pytest.raises(TypeError, match="Sparse data was passed"):
        GreedyNystroem().fit(sparse.csr_array(X))
    with pytest.raises(ValueError, match="one class only"):
        GreedyNystroem().fit(X, np.ones(len(X)))
    with pytest.raises(ValueError, match="all rows are the same"):
        GreedyNystroem().fit(np.ones((20, 2)), np.arange(20.0))
    with pytest.raises(ValueError, match="y or sample_weight is too large"):
        GreedyNystroem().fit(X, y * 1e200)


@pytest.mark.parametrize("given_y", [False, True])
def test_a_choice_keeps_to_its_memory(given_y: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which blocks of rows would take most."""
    X = np.random.default_rng(0).normal(size=(3000, 5))
    y = X[:, 0] if given_y else None
    with pytest.raises(MemoryError, match="lower n_candidates to 1368"):
        GreedyNystroem(n_candidates=1500, memory_limit="100MiB").fit(X, y)
    GreedyNystroem(2, n_candidates=9).fit(X, y)  # loads what counts as memory the first time
    monkeypatch.setattr(array_features, "BLOCK_BYTES", 2**20)
    with largest_bytes() as largest:
        GreedyNystroem(50, n_candidates=600).fit(X, y)
    assert largest[0] < 56 * 600**2 + 4 * 2**20

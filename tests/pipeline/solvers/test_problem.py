"""Bad statistics are refused before the first sweep, in one line; legal ones are not."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.solvers import InvalidProblemError, Problem, check_gram


def damaged(problem, **change):
    values = {"gram": problem.gram, "kty": problem.kty, "yty": problem.yty, "penalty": problem.penalty}
    return Problem(**(values | change))


def entry(array, index, value):
    array = array.copy()
    array[index] = value
    return array


def test_legal_problems_pass(make_columns):
    C, Y, problem = make_columns(0)
    assert problem.validate() is problem
    assert problem.tau == pytest.approx(np.sqrt(0.5))
    twice = np.hstack([C, C, np.zeros((60, 1))])
    Problem(twice.T @ twice, twice.T @ Y, problem.yty, 1e-6).validate()


@pytest.mark.parametrize("penalty", [0.0, -1.0, np.nan, np.inf])
def test_penalty(make_columns, penalty):
    with pytest.raises(InvalidProblemError, match="penalty"):
        damaged(make_columns(0)[2], penalty=penalty).validate()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(make_columns, value):
    problem = make_columns(0)[2]
    with pytest.raises(InvalidProblemError, match="Gram holds NaN or infinity in row 3"):
        damaged(problem, gram=entry(problem.gram, (3, 4), value)).validate()
    with pytest.raises(InvalidProblemError, match="kty holds NaN or infinity in row 5"):
        damaged(problem, kty=entry(problem.kty, (5, 0), value)).validate()
    with pytest.raises(InvalidProblemError, match="yty"):
        damaged(problem, yty=value).validate()


def test_a_gram_that_is_not_symmetric(make_columns):
    problem = make_columns(0)[2]
    with pytest.raises(InvalidProblemError, match="symmetric"):
        damaged(problem, gram=entry(problem.gram, (3, 4), problem.gram[3, 4] * 1.001)).validate()


@pytest.mark.parametrize(("eigenvalue", "legal"), [(-2e-8, False), (-0.5e-8, True), (0.0, True)])
def test_the_smallest_eigenvalue_decides(eigenvalue, legal):
    rng = np.random.default_rng(0)
    Q, _ = np.linalg.qr(rng.standard_normal((30, 30)))
    values = rng.random(30)
    values[0] = 0.0
    values[0] = eigenvalue * values.sum()
    gram = (Q * values) @ Q.T
    gram = np.ascontiguousarray(0.5 * (gram + gram.T))
    if legal:
        check_gram(gram)
    else:
        with pytest.raises(InvalidProblemError, match="positive semi-definite"):
            check_gram(gram)


def test_shapes_and_types(make_columns):
    problem = make_columns(0)[2]
    for gram in (problem.gram[:5], problem.gram.astype(np.float32), np.zeros((0, 0))):
        with pytest.raises(InvalidProblemError, match="Gram"):
            damaged(problem, gram=gram).validate()
    for kty in (problem.kty[:, 0], problem.kty[:5], problem.kty.astype(np.float32)):
        with pytest.raises(InvalidProblemError, match="kty"):
            damaged(problem, kty=kty).validate()


def test_statistics_of_different_data(make_columns):
    problem = make_columns(0)[2]
    with pytest.raises(InvalidProblemError, match="same data"):
        damaged(problem, yty=problem.yty / 1000).validate()


def test_the_gram_is_checked_once_for_all_classes(make_columns):
    problem = make_columns(0)[2]
    broken = damaged(problem, gram=-problem.gram @ problem.gram)
    with pytest.raises(InvalidProblemError):
        broken.validate()
    with pytest.raises(InvalidProblemError, match="too large"):
        broken.validate(gram_checked=True)  # the targets are still checked

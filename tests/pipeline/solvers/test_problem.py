"""Bad statistics are refused before the first sweep, in one line; legal ones are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dense_twins import make_columns
from pipeline.solvers.problem import InvalidProblemError, check_gram


def entry(array, index, value):
    array = array.copy()
    array[index] = value
    return array


# For each change of the statistics of one problem, the words that refuse it.
REFUSED = [
    *((lambda p, v=value: replace(p, penalty=v), "penalty") for value in (0.0, -1.0, np.nan, np.inf)),
    *((lambda p, v=value: replace(p, yty=v), "yty") for value in (np.nan, np.inf)),
    (lambda p: replace(p, gram=entry(p.gram, (3, 4), np.nan)), "Gram holds NaN or infinity in row 3"),
    (lambda p: replace(p, gram=entry(p.gram, (3, 4), np.inf)), "Gram holds NaN or infinity in row 3"),
    (lambda p: replace(p, kty=entry(p.kty, 5, np.nan)), "kty holds NaN or infinity in row 5"),
    (lambda p: replace(p, kty=entry(p.kty, 5, np.inf)), "kty holds NaN or infinity in row 5"),
    (lambda p: replace(p, gram=entry(p.gram, (3, 4), p.gram[3, 4] * 1.001)), "symmetric"),
    (lambda p: replace(p, gram=p.gram[:5]), "Gram"),
    (lambda p: replace(p, gram=p.gram.astype(np.float32)), "Gram"),
    (lambda p: replace(p, gram=np.zeros((0, 0))), "Gram"),
    (lambda p: replace(p, kty=p.kty[:, None]), "kty"),
    (lambda p: replace(p, kty=p.kty[:5]), "kty"),
    (lambda p: replace(p, kty=p.kty.astype(np.float32)), "kty"),
    (lambda p: replace(p, yty=p.yty / 1000), "same data"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_bad_statistics_are_refused(change, words):
    problem = change(make_columns(0)[2])
    check = check_gram if words.startswith(("Gram", "symmetric")) else lambda gram: problem.validate()
    with pytest.raises(InvalidProblemError, match=words):
        check(problem.gram)


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


def test_a_gram_of_other_columns_is_refused():
    problem = make_columns(0)[2]
    broken = replace(problem, gram=-problem.gram @ problem.gram)
    with pytest.raises(InvalidProblemError, match="negative"):
        check_gram(broken.gram)
    with pytest.raises(InvalidProblemError, match="too large"):
        broken.validate()  # the targets are checked without it

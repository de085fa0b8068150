"""How well decision values rank the rows of a class before others: the ROC curve, its area, average precision."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from features.row_draws import draw_sample
from pipeline.prediction.scores import by_class

MOST_KEPT = 2**21  # As many values are kept at most, in 16 MiB.
MOST_RANKED = 20  # No more classes are ranked, each against the rest.
NO_RANKING: dict[str, Any] = dict.fromkeys(("roc_auc", "average_precision"))
Values = NDArray[np.float64]


def kept_share(n_rows: int, n_outputs: int) -> float:
    """Return the share of rows that are kept: all, if they have at most MOST_KEPT values."""
    return min(1.0, MOST_KEPT / (n_rows * (n_outputs + 2)))


def kept_rows(share: float, start: int, count: int) -> NDArray[np.bool_]:
    """Return whether rows are kept, (count,) from `start` on; they are drawn, since classes may take turns."""
    return draw_sample(0, share, np.arange(start, start + count, dtype=np.uint64))


def roc_curve(values: Values, is_true: NDArray[np.bool_], s: Values) -> tuple[Values, Values]:
    """Return the weights (k + 1,) of the false and of the true rows at or above each of k values, from none to all.

    values, is_true, s (rows,): the decision values, which rows are of the class, and their weights.
    """
    order = np.argsort(-values, kind="stable")
    ends = np.append(np.flatnonzero(np.diff(values[order])), len(values) - 1)  # Equal values share an end.
    true, false = (np.cumsum((s * of)[order])[ends] for of in (is_true, ~is_true))
    return np.append(0.0, false), np.append(0.0, true)


def ranking_numbers(decision: Values, truth: NDArray[np.int64], s: Values) -> dict[str, Any]:
    """Return the area under the ROC curve and the average precision: for the second of two classes, or class means.

    A class with no row, or with all, does not count; None where no class does, and for more than MOST_RANKED classes.
    """
    f, found = by_class(decision), list[tuple[float, float]]()
    classes = [1] if f.shape[1] == 2 else range(f.shape[1])
    for k in classes if f.shape[1] <= MOST_RANKED else ():
        false, true = roc_curve(f[:, k], truth == k, s)
        if false[-1] and true[-1]:
            steps, precision = np.diff(true), true[1:] / np.maximum(true[1:] + false[1:], np.finfo(np.float64).tiny)
            area = np.trapezoid(true, false) / (true[-1] * false[-1])
            found.append((float(area), float(steps @ precision / true[-1])))
    means = np.mean(found, axis=0).tolist() if found else (None, None)
    return dict(zip(NO_RANKING, means, strict=True))

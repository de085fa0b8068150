"""How sure a model is: probabilities and quantiles, from rows that weights were not fitted to, which are too sure.

Weights of the fit rows are tried on the held-out rows; where these are few, the fit rows join with values of fits
without their unit (their group, their image, or rows equal to them), and where weights have seen all rows, all have
such values. Rows count by their own weights: factors of the classes are divided out.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.datasets.feature_rows import open_features
from pipeline.fit.held_out import held_out_decisions
from pipeline.fit.row_blocks import RowTask
from pipeline.fit.target_facts import read_labels
from pipeline.fit.workspace import FOLD_ROWS, Workspace
from pipeline.prediction.conformal import conformal_of
from pipeline.prediction.ranking import kept_share
from pipeline.prediction.scores import Calibration, by_class, probabilities
from pipeline.runtime import stopping
from pipeline.solvers.candidate_budget import LEFT_OUT_ROWS
from pipeline.solvers.held_out_losses import clipped
from pipeline.solvers.ridge import CalibrationWeights, LabelledColumns, LabelledValues, left_out, support_fit

FEW_HELD_OUT = 50  # Below this, if weights have seen all rows, least squares without each row tell more.
BATCH_ROWS = 512  # Whole units are left out together, of these rows and one unit more at most.
TEMPERATURE, WORDS = "temperature", "errors of rows that were held out"

# Decision values are fitted to -1 and 1: a temperature of 32 leaves nothing of them, one of 2^-15 is sure of a class.
INVERSE_TEMPERATURES = np.array([2.0**-5, 2.0**15])
LONGEST_STEP = 10.0  # Relative. Where probabilities are 0 or 1 to rounding the Hessian is 0, and no step is longer.
MOST_STEPS, LEAST_FALL = 100, 1e-15  # The search ends after these steps, or where it promises a smaller fall.
CALIBRATION_BYTES = 80  # The search holds these for each row and output, and two more.
CHANCE = 2.0  # In 19 of 20 cases a parameter without effect lowers the log loss of all rows by no more.

Values = NDArray[np.float64]


def calibrate(work: Workspace, tried: CalibrationWeights) -> dict[str, Any]:
    """Return how sure a model is: `temperature` and `conformal`, each None where it does not apply.

    They have the fields of a calibration (with its rows, and whether the weights have seen them) and of quantiles.
    """
    nothing, of_classes = dict.fromkeys(("temperature", "conformal")), work.shape.task != "regression"
    if not work.config.statistics.hold_out:
        return nothing
    facts, fit, n_held_out = work.facts, tried.fit, work.facts.n_held_out
    unseen: slice | NDArray[np.bool_] = slice(None)  # by the choice of scales and centers as well
    few = of_classes and facts.leaves_out
    if few and tried.everything and len(tried.weights.columns) and n_held_out < FEW_HELD_OUT:
        fit = support_fit(tried.everything, intercept=work.intercept)
    if FOLD_ROWS[0] in work.choices:
        decision, truth, weights, groups, different = (work.choices[name] for name in FOLD_ROWS)
        n_rows, seen = int(different), False
    elif few and fit:
        with work.events.status(WORDS):
            (decision, truth, weights), groups, unseen = left_out(fit, _batches(work.row_task, tried))
        n_rows, seen = len(np.unique(groups)), False
    else:
        decision, truth, weights, groups = held_out_decisions(work, work.row_task, tried, TEMPERATURE, WORDS)
        n_rows, seen = n_held_out, tried.everything is not None
        truth = truth if of_classes else facts.encoded(truth, work.shape)[:, 0]
    if not n_rows:
        return nothing
    if of_classes:
        factors = np.array(facts.class_factors or work.given_factors or np.ones(len(work.shape.classes)))
        factors[factors == 0.0] = 1.0  # classes without rows
        weights = weights / factors[truth]
        found = best_calibration((decision, truth, weights), n_rows, np.log(factors[0] / factors))
        temperature = vars(found) | {"n_rows": n_rows, "seen": seen}
        scores = 1.0 - probabilities(decision, found)[np.arange(len(truth)), truth]
    else:
        temperature, scores = None, np.abs(clipped(decision[:, 0], facts.limits) - truth)
    counted = scores[unseen], weights[unseen], groups[unseen]
    conformal = None if tried.everything is not None or not len(counted[0]) else conformal_of(*counted)
    return {"temperature": temperature, "conformal": conformal and vars(conformal)}


def best_calibration(rows: LabelledValues, n_rows: int, offsets: Values) -> Calibration:
    """Return the calibration of least log loss (mathematics.md, eqs. 77 and 78).

    n_rows: the number of different rows; offsets (K,): by which decision values of weighted classes are corrected. Two
    classes get another offset only where the loss falls by more than chance.
    """
    (decision, truth, s), n_classes, doubt = rows, len(offsets), 1.0 / (n_rows + 2)
    Y = np.where(truth == np.arange(n_classes)[:, None], 1.0 - doubt, doubt / (n_classes - 1))
    s = s / (s.sum() or 1.0)
    f = np.ascontiguousarray(by_class(decision).T)
    loss, inverse, _ = _least_loss(f, Y, s, offsets, shifts=False)
    if n_classes == 2:
        of_both, with_shift, shift = _least_loss(f, Y, s, offsets, shifts=True)
        if loss - of_both > CHANCE * float(s @ s):
            inverse, offsets = with_shift, offsets + np.array([0.0, shift])
    return Calibration(1.0 / inverse, tuple(offsets.tolist()) if offsets.any() else ())


def _least_loss(f: Values, Y: Values, s: Values, offsets: Values, *, shifts: bool) -> tuple[float, float, float]:
    """Return the least log loss of f / temperature + offsets, with f (K, n), its inverse temperature and a shift.

    Y (K, n): the shares of the classes; s (n,): of the rows. shifts: the offset of the second class may shift. Where
    all temperatures are alike the highest is taken.
    """
    largest = float(np.abs(f).max(initial=0.0)) or 1.0
    size = largest * float(np.sqrt(np.mean((f / largest) ** 2))) or 1.0  # Both numbers are then of one size.
    ends, f = size * INVERSE_TEMPERATURES, f / size

    def loss_at(numbers: Values) -> tuple[float, Values, Values]:
        """Return the loss with its gradient (2,) and Hessian (2, 2)."""
        odds = numbers[0] * f + offsets[:, None]
        odds[1] += numbers[1]
        odds -= odds.max(axis=0)
        p = np.exp(odds)
        total = p.sum(axis=0)
        p /= total
        loss = float(s @ (np.log(total) - (Y * odds).sum(axis=0)))
        wrong, mean = (p - Y) * s, (p * f).sum(axis=0)
        both = s @ (p[1] * (f[1] - mean))
        hessian = np.array([[s @ (p * (f - mean) ** 2).sum(axis=0), both], [both, s @ (p[1] * p[0])]])
        return loss, np.array([(wrong * f).sum(), wrong[1].sum()]), hessian

    numbers, length = np.array([ends[0], 0.0]), 1.0
    loss, gradient, hessian = loss_at(numbers)
    for _ in range(MOST_STEPS):
        at_end = numbers[0] == ends[int(gradient[0] < 0.0)]  # and the loss falls beyond it
        moves = np.array([not at_end, shifts])
        damped = hessian + np.diag(np.abs(gradient) / (LONGEST_STEP * (1.0 + np.abs(numbers))))
        step = -np.linalg.pinv(damped * np.outer(moves, moves), hermitian=True) @ (gradient * moves)
        if not -gradient @ step > LEAST_FALL * loss:
            break
        point = numbers + length * step
        point[0] = np.clip(point[0], *ends)
        new = loss_at(point)
        if new[0] < loss:
            numbers, length, (loss, gradient, hessian) = point, 1.0, new
        else:
            length /= 4.0
    return loss, float(numbers[0]) / size, float(numbers[1])


def n_calibrating(n_rows: int, n_outputs: int, hold_out: float) -> int:
    """Return how many training rows calibrate: all of few, or the held-out ones that are kept."""
    return n_rows if n_rows < LEFT_OUT_ROWS else int(hold_out * kept_share(n_rows, n_outputs) * n_rows)


def _batches(task: RowTask, tried: CalibrationWeights) -> Iterator[LabelledColumns]:
    """Yield all rows that count, whole units together, BATCH_ROWS or one unit more at once."""
    kernel, store = task.kernel_of(tried.weights.columns), open_features(task.features)
    labels = read_labels(task.features, task.shape.n_train)
    weights = task.facts.weights(labels.y, labels.weights)
    held_out = labels.held_out(task.seed, task.facts.held_out_limit) & (tried.everything is None)
    counts = np.ones(len(labels.y)) if weights is None else weights
    order = np.argsort(labels.groups, kind="stable")
    order = order[counts[order] > 0]
    starts = 1 + np.flatnonzero(np.diff(labels.groups[order]))  # The first unit starts at 0.
    ends = np.searchsorted(starts, np.arange(BATCH_ROWS, len(order), BATCH_ROWS))
    for rows in np.split(order, starts[np.unique(ends[ends < len(starts)])]):
        stopping.check()
        columns, y = kernel.block(store.X[rows], out_dtype=np.float64), labels.y[rows]
        targets = task.facts.encoded(y, task.shape)
        yield LabelledColumns(labels.groups[rows], columns, targets, y, counts[rows], held_out[rows])

"""From labels to targets, int64 indices into the sorted classes or float64 values, to outputs of solves, and back."""

from collections.abc import Callable, Iterable

import numpy as np

from features.cell_text import UNKNOWN, of_one_value, value_of
from features.errors import DataError, UsageError
from features.words import has_controls, shown

TASKS = ("multiclass", "binary", "regression")
MOST_CLASSES = 100  # More distinct strings, or labels of images, are no classes.
# Distinct whole numbers in a table. The widest common sets of classes that are numbered are alphabets of 26 letters;
# counts (the 28 ages of abalone), scores and years begin above, and many fewer rows to learn each of them from.
MOST_TABLE_CLASSES = 26
LARGEST_WHOLE = 2**53  # float64 tells all smaller whole numbers apart.
UNTOLD = "float64 does not tell them apart above 2^53: round them"
LARGEST_WEIGHT = (1e-100, 1e100)  # The heaviest row lies between these, so that float64 holds sums of squares.


def detect_task(labels: np.ndarray, most_classes: int = MOST_CLASSES, array_name: str = "y") -> str:
    """Return the task that labels (n,) suggest: integers, booleans, floats or strings.

    Two distinct values are binary; 3 to `most_classes` distinct whole numbers, or 3 to 100 strings, multiclass; other
    numbers are regression. Raises DataError for no labels, one class, or more than 100 distinct strings.
    """
    if labels.ndim != 1 or labels.size == 0:
        raise DataError(f"{array_name} must be one-dimensional and not empty, found shape {labels.shape}")
    n_distinct = len(np.unique(labels))
    if n_distinct == 1:
        raise DataError(f"{array_name} holds one class only ({labels[0].item()!r}); nothing can be learned from it")
    if n_distinct == 2:
        return "binary"
    text = labels.dtype.kind == "U"
    if n_distinct <= (MOST_CLASSES if text else most_classes) and (text or not (labels % 1).any()):
        return "multiclass"
    if text:
        told = f"{array_name} holds {n_distinct} different words, such as {labels[0].item()[:40]!r}"
        raise DataError(f"{told}; if these are classes, give `data.task=multiclass`")
    return "regression"


def are_numbered(labels: np.ndarray) -> bool:
    """Return whether labels (n,) number classes: whole numbers from 0 or 1 without gaps, each of several rows."""
    if labels.dtype.kind not in "iuf":
        return False
    values, counts = np.unique(labels, return_counts=True)
    return bool(values[0] in (0, 1) and np.array_equal(values - values[0], np.arange(len(values))) and counts.min() > 1)


def class_labels(labels: np.ndarray, task: str, array_name: str = "y") -> tuple:
    """Return the sorted classes as Python scalars, () for regression. Raises DataError for too few or too many."""
    if task not in TASKS:
        raise UsageError(f"task {task!r} is unknown; it is one of {', '.join(TASKS)}")
    if task == "regression":
        return ()
    found, firsts = np.unique(labels, return_index=True)
    classes = tuple(found.tolist())
    if labels.dtype.kind == "U":
        check_spellings(found, array_name, lambda k: f"{found[k].item()!r:.60} in row {firsts[k]}")
    if len(classes) < 2:
        raise DataError(f"{array_name} holds one class only ({classes[0]!r}); nothing can be learned from it")
    if task == "binary" and len(classes) != 2:
        raise DataError(f"the binary task needs exactly two classes in {array_name}, found {len(classes)}")
    check_printable(classes, array_name)
    return classes


def check_printable(classes: Iterable[object], array_name: str = "y") -> None:
    """Raise DataError naming a class whose label has control characters, as names of columns may not have them."""
    if (label := next(filter(has_controls, classes), None)) is not None:
        raise DataError(f"{array_name} holds a label with control characters ({label!r:.60}); correct it")


def encode(labels: np.ndarray, classes: tuple, array_name: str = "y", first: int = 0) -> np.ndarray:
    """Return targets (n,) of labels (n,): int64 indices into `classes`, float64 where there are none.

    A label is found by its value: 2.0 is 2, and yes is Yes; whole numbers of any size are told apart. first: the number
    of the first row in errors. Raises DataError for a label that is no class, or no finite number where one is needed.
    """
    if not classes:
        if labels.dtype.kind not in "biuf":
            words = f"words, such as {labels[0].item()!r:.60} in row {first}"
            found = words if labels.dtype.kind == "U" else f"{labels.dtype} values"
            raise DataError(f"{array_name} holds {found}; regression needs numbers")
        values = labels.astype(np.float64)
        if labels.dtype.kind in "iu" and (long := np.flatnonzero(np.abs(values) >= LARGEST_WHOLE)).size:
            told = f"{labels[long[0]]} in row {first + long[0]}"
            raise DataError(f"{array_name} holds whole numbers such as {told}; {UNTOLD}")
        check_finite_targets(values, array_name, first)
        return values
    distinct, inverse = np.unique(labels, return_inverse=True)
    known = {_value_of(label): k for k, label in enumerate(classes)}
    index = np.array([known.get(_value_of(label), UNKNOWN) for label in distinct.tolist()], np.int64)[inverse]
    if (bad := np.flatnonzero(index == UNKNOWN)).size:
        told = f"row {first + bad[0]} has label {labels[bad[0]].item()!r}"
        raise DataError(f"{array_name}: {told}, which training data lack; they have {shown(map(repr, classes), 12)}")
    return index


def check_spellings(labels: np.ndarray, where: str, told: Callable[[int], str]) -> None:
    """Raise DataError naming two distinct labels (k,) of one value; told: returns the words for a label."""
    if (twice := of_one_value(map(_value_of, labels.tolist()))) is not None:
        both = " and ".join(map(told, twice))
        raise DataError(f"{where}: {both} are one label in two spellings; write it in one way")


def _value_of(label: object) -> object:
    """Return what labels of one value share, see `value_of`; capitals make no difference but to single letters."""
    value = value_of(str(label))
    if not isinstance(value, str) or len(value) == 1:  # a and A may be two classes.
        return value
    return " ".join(value.casefold().split())


def class_array(classes: tuple) -> np.ndarray:
    """Return classes (K,) in a dtype that has each of them exactly: strings if no numbers do."""
    array = np.asarray(classes)
    if all(type(label) is int and label >= 0 for label in classes) and max(classes, default=0) >= 2**63:
        array = np.asarray(classes, np.uint64)
    exact = array.dtype.kind in "biufU" and (array.dtype.kind == "U" or tuple(array.tolist()) == tuple(classes))
    return array if exact else np.asarray([str(label) for label in classes])


def checked_weights(weights: np.ndarray, n_rows: int, array_name: str) -> np.ndarray:
    """Return the weights (n,) f8 of rows, given as (n,) or (n, 1); DataError where they cannot be weights."""
    if weights.shape not in ((n_rows,), (n_rows, 1)) or weights.dtype.kind not in "biuf":
        held = f"{weights.dtype} values" if weights.dtype.kind not in "SUOT" else "words"
        found = f"{held} of shape {weights.shape}"
        raise DataError(f"{array_name} holds {found}; {n_rows} weights of rows are needed")
    values = weights.reshape(n_rows).astype(np.float64)
    if (bad := np.flatnonzero(~(np.isfinite(values) & (values >= 0)))).size:
        raise DataError(f"{array_name}: row {bad[0]} is {values[bad[0]]:g}; a weight must be finite and at least 0")
    if not values.any():
        raise DataError(f"{array_name}: all weights are zero; no row counts")
    least, most = LARGEST_WEIGHT
    if not least <= values.max() <= most:
        raise DataError(f"{array_name}: the largest is {values.max():g}; rescale them to {least:g} to {most:g}")
    return values


def balanced_factors(weight_of_class: np.ndarray) -> np.ndarray:
    """Return factors (K,) f8 that make summed weights (K,) of classes equal and keep their total; 0 for weight 0."""
    present = weight_of_class > 0
    factors = np.zeros(len(weight_of_class))
    factors[present] = weight_of_class.sum() / (np.count_nonzero(present) * weight_of_class[present])
    return factors


def check_finite_targets(targets: np.ndarray, array_name: str, first: int = 0) -> None:
    """Raise DataError naming the first target of (n,) that is not finite; first: the number of the first row."""
    if (bad := np.flatnonzero(~np.isfinite(targets))).size:
        raise DataError(f"{array_name}: row {first + bad[0]} is {targets[bad[0]]}; every target must be finite")


def outputs(targets: np.ndarray, task: str, n_classes: int) -> np.ndarray:
    """Return the outputs that the solves fit, float64 (n, n_outputs).

    Multiclass: one column of ±1 per class. Binary: one column, +1 for the second class. Regression: the values. Raises
    ValueError for a class out of range.
    """
    if task == "regression":
        return np.asarray(targets, dtype=np.float64).reshape(-1, 1).copy()
    targets = np.asarray(targets, dtype=np.int64)
    if targets.size and (targets.min() < 0 or targets.max() >= n_classes):
        raise ValueError(f"targets must lie in 0 … {n_classes - 1}, found {targets.min()} … {targets.max()}")
    signs = np.full((len(targets), n_classes), -1.0)
    signs[np.arange(len(targets)), targets] = 1.0
    return signs if task == "multiclass" else signs[:, 1:].copy()


def labels_from_decision(decision: np.ndarray, task: str) -> np.ndarray:
    """Return targets (n,) from decision values (n, n_outputs): the first arg max, 1 where at least 0, or the value."""
    decision = np.asarray(decision)
    if task == "multiclass":
        return np.argmax(decision, axis=1).astype(np.int64)
    values = decision.reshape(len(decision))
    return (values >= 0.0).astype(np.int64) if task == "binary" else values.astype(np.float64)

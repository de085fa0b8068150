"""Which rows are the training part and which the test part, and what rows have beside inputs and a target."""

from typing import NamedTuple

import numpy as np

from features.errors import DataError, UsageError
from features.row_draws import group_keys
from features.source import Part, SourceSpec
from features.targets import checked_weights


class RowFacts(NamedTuple):
    """What rows have beside inputs and a target: weights (n,), and their groups (n,), numbers or text."""

    weights: np.ndarray | None = None
    groups: np.ndarray | None = None


NO_FACTS = RowFacts()


def split_rows(spec: SourceSpec, n: int, name: str, groups: np.ndarray | None = None) -> list[np.ndarray]:
    """Return which of n rows are the train and the test part, sorted; errors as `split_source`.

    groups: keys (n,) of groups that are not split; the test part is then as near its size as their order allows.
    """
    if n < 2:
        raise DataError(f"{name}: {n} row(s); at least one to train and one to test are needed")
    n_test = min(max(1, round(spec.test_fraction * n)), n - 1)
    rng = np.random.default_rng(np.random.SeedSequence(spec.seed))
    order = rng.permutation(n)
    if groups is not None:
        distinct, of_rows, counts = np.unique(groups[order], return_inverse=True, return_counts=True)
        if len(distinct) < 2:
            raise DataError(f"{name}: all rows are of one group; at least one to train and one to test are needed")
        drawn = rng.permutation(len(distinct))
        sizes = np.cumsum(counts[drawn])[:-1]
        n_groups = 1 + int(np.argmin(np.abs(sizes - n_test)))
        n_test, is_train = int(sizes[n_groups - 1]), ~np.isin(of_rows, drawn[:n_groups])
        order = order[np.argsort(is_train, kind="stable")]
    parts = (("n_train", order[n_test:], spec.n_train), ("n_test", order[:n_test], spec.n_test))
    return [np.sort(rows[: _checked_size(option, asked, len(rows), name)]) for option, rows, asked in parts]


def part_rows(spec: SourceSpec, part: Part, n: int, name: str) -> np.ndarray | None:
    """Return which of the n rows of a part of its own are taken, sorted, None for all; errors as `parts_source`."""
    option, asked = ("n_train", spec.n_train) if part == "train" else ("n_test", spec.n_test)
    size = _checked_size(option, asked, n, name)
    seed = np.random.SeedSequence(spec.seed).spawn(2)[part == "test"]
    return None if size == n else np.sort(np.random.default_rng(seed).permutation(n)[:size])


def counted_rows(
    spec: SourceSpec, weights: np.ndarray | None, n_rows: int, of: str
) -> tuple[np.ndarray | None, np.ndarray]:
    """Return the checked weights (n,), or None, and the rows, ascending, that count: those of weight above 0."""
    if weights is None:
        return None, np.arange(n_rows)
    weights = checked_weights(weights, n_rows, f"weights {spec.weights} of {of}")
    return weights, np.flatnonzero(weights)


def keys_of_groups(
    spec: SourceSpec, groups: np.ndarray | None, n_rows: int, rows: np.ndarray | slice = slice(None), of: str = ""
) -> np.ndarray | None:
    """Return the keys of the groups of some of n rows; None where they have no groups. of: what rows are in errors."""
    if groups is None:
        return None
    if groups.shape not in ((n_rows,), (n_rows, 1)) or groups.dtype.kind not in "biufUS":
        found = f"{groups.dtype} values of shape {groups.shape}"
        raise DataError(
            f"groups {spec.groups}{of} hold {found}; a number or a word for each of {n_rows} rows is needed"
        )
    try:
        return group_keys(groups.reshape(n_rows))[rows]
    except DataError as error:
        raise DataError(f"groups {spec.groups}{of}: {error}") from None


def _checked_size(option: str, asked: int | None, available: int, name: str) -> int:
    if asked is None:
        return available
    if asked > available:
        raise UsageError(f"{option} is {asked}, but {name} has {available} such rows; give at most {available}")
    return asked

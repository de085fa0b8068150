"""Keys of training rows, which decide the rows that are held out or sampled: equal rows, or a group, go together."""

import hashlib
import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from features.cell_text import NULL_WORDS, text_of
from features.errors import DataError

RowKeys = NDArray[np.uint64]
_TOGETHER = 2**16  # As many values stay in a core's cache while their keys are computed.
_WHOLE = re.compile(r"-?[0-9]{1,300}(\.0+|(\.[0-9]+)?e\+[0-9]+)")  # A whole number has a point or an exponent here.
_HELD_OUT, _SAMPLED, _DEFORMED = 2, 5, 7  # Each purpose draws its own coins from the seed.
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Splitmix64 takes this step.
_MOST_CATEGORIES, _MOST_COPIES = 50, 6  # Fewer distinct rows, more often each, are categories rather than copies.


def row_keys(inputs: np.ndarray) -> RowKeys:
    """Return a key (n,) u8 of each row (n, …): equal for equal numbers of any dtype and NaNs, else by chance 2^-64."""
    keys = np.empty(len(inputs), np.uint64)
    salts = _mixed(np.arange(1, 1 + int(np.prod(inputs.shape[1:])), dtype=np.uint64))
    step = max(_TOGETHER // len(salts), 1)
    for start in range(0, len(inputs), step):
        block = inputs[start : start + step].reshape(-1, len(salts))
        values = block.astype(np.float64)
        values += 0.0  # It turns -0.0 into 0.0.
        values[np.isnan(values)] = np.nan  # NaNs may differ in their bits.
        bits = values.view(np.uint64)
        bits ^= salts
        keys[start : start + len(block)] = _mixed(bits).sum(axis=1)
    return _mixed(keys)


def group_keys(groups: np.ndarray) -> RowKeys:
    """Return a key (n,) u8 of each of groups (n,), numbers or text: equal for those that read alike.

    Numbers are equal in any dtype, also in text, and read as Python writes them, whole ones without a point. Raises
    DataError naming a row without a group: NaN, None, or a text that means a missing cell of a table.
    """
    names, rows, of_rows = np.unique(groups, return_index=True, return_inverse=True)
    digests = list[bytes]()
    for name, row in zip(names.tolist(), rows.tolist(), strict=True):
        text = name.decode(errors="backslashreplace") if isinstance(name, bytes) else text_of(name) or ""
        if text.strip() in NULL_WORDS:
            raise DataError(f"row {row} has no group ({text!r}); name one for each row")
        if _WHOLE.fullmatch(text) and float(text).is_integer():
            text = str(int(float(text) if "e" in text else text.partition(".")[0]))
        digests.append(hashlib.blake2b(text.encode(), digest_size=8).digest())
    return np.frombuffer(b"".join(digests), np.uint64)[of_rows]


def units_of(keys: RowKeys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first row of each unit of equal keys, ascending, and the unit of each row; at most 40 bytes a row."""
    ordered = np.sort(keys)
    if not (ordered[1:] == ordered[:-1]).any():
        return (np.arange(len(keys)),) * 2
    del ordered
    _, firsts, of_rows = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    return firsts[order], np.argsort(order)[of_rows]


def keys_apart(keys: RowKeys) -> RowKeys | None:
    """Return another key (n,) for each row where the keys (n,) are those of a few categories, else None.

    A new row of such data equals a training row; if equal rows were drawn together, parts would lack whole categories.
    """
    if len(np.unique(keys[:1024])) >= _MOST_CATEGORIES:
        return None
    n_units = len(np.unique(keys))
    if not 1 < n_units < _MOST_CATEGORIES or n_units * min(n_units, _MOST_COPIES) >= len(keys):
        return None
    return _mixed(np.arange(len(keys), dtype=np.uint64))


def held_out_limit(seed: int, fraction: float, blocks: Iterable[RowKeys]) -> float:
    """Return the limit of `draw_held_out`: `fraction`, moved so that some rows lie on either side.

    It is 0 where nothing is to be held out, or all rows have one key. blocks: the keys of all rows that count.
    """
    least, most = 1.0, 0.0
    for keys in blocks if fraction else ():
        coins = _coins(seed, _HELD_OUT, keys)
        least, most = min(least, coins.min(initial=1.0)), max(most, coins.max(initial=0.0))
    return 0.0 if least >= most else float(min(max(fraction, np.nextafter(least, 1.0)), most))


def draw_held_out(seed: int, limit: float, keys: RowKeys) -> NDArray[np.bool_]:
    """Return which rows with keys (n,) are held out, (n,) bool: those whose coins are below a `held_out_limit`."""
    return np.asarray(_coins(seed, _HELD_OUT, keys) < limit)


def draw_folds(seed: int, count: int, keys: RowKeys, classes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the fold, from 0 to `count` - 1, of rows with keys (n,) and classes (n,).

    Equal keys are in one fold; each fold has its share of the keys of each class. A key counts for its first class.
    """
    order = np.lexsort((_coins(seed, _HELD_OUT, keys), classes))
    folds = np.empty(len(keys), np.int64)
    folds[order] = units_of(keys[order])[1] % count
    return folds


def draw_sample(seed: int, share: float, keys: RowKeys) -> NDArray[np.bool_]:
    """Return which rows with keys (n,) are sampled, (n,) bool, held out or not: about `share` of the keys."""
    return np.asarray(_coins(seed, _SAMPLED, keys) < share)


def pair_keys(firsts: NDArray[np.int64], seconds: NDArray[np.int64]) -> RowKeys:
    """Return a key of each of pairs (n,) of whole numbers."""
    return _mixed(_mixed(firsts.astype(np.uint64)) + seconds.astype(np.uint64))


def draw_numbers(seed: int, keys: RowKeys, count: int) -> NDArray[np.float64]:
    """Return numbers (n, count) in [0, 1) of keys (n,)."""
    return _coins(seed, _DEFORMED, keys[:, None] + _GOLDEN * np.arange(count, dtype=np.uint64))


def _coins(seed: int, purpose: int, keys: RowKeys) -> NDArray[np.float64]:
    """Return numbers (…) in [0, 1), evenly spread, of keys (…)."""
    salt = np.random.SeedSequence([seed, purpose]).generate_state(1, np.uint64)
    return (_mixed(keys ^ salt) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(keys: RowKeys) -> RowKeys:
    """Return keys (…) u8 mixed by the finaliser of splitmix64, which is one to one."""
    mixed = keys >> np.uint64(30)
    mixed ^= keys
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed

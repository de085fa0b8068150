"""DataFrames in the estimators: of numbers they are arrays with names; words are refused, with what encodes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest

from features.errors import DataError
from pipeline import predict
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.prediction.predictor import load_predictor
from sources import people

ROWS, NAMES = 300, ["zip", "member", "compute"]
PEOPLE, Y = people(ROWS)
NUMBERS = PEOPLE[["zip", "member"]].assign(compute=np.arange(ROWS) % 97 * 0.7)
X = NUMBERS.to_numpy(dtype=np.float64)
PLAIN: dict[str, Any] = {"sigma2": "median", "random_state": 0}  # no search for a kernel
GAPS = np.where(np.arange(ROWS) == 3, np.nan, 1.0)
KINDS: dict[str, Callable[[pandas.DataFrame], Any]] = {
    "pandas": lambda frame: frame.set_index(np.arange(len(frame))[::-1]),
    "polars": polars.from_pandas,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_of_numbers_is_an_array_with_names(kind, tmp_path):
    make = KINDS[kind]
    of_array, of_frame = (SLKLRegressor(50, **PLAIN).fit(rows, Y) for rows in (X, make(NUMBERS)))
    np.testing.assert_array_equal(of_frame.dual_coef_, of_array.dual_coef_)
    told = of_frame.predict(make(NUMBERS))
    np.testing.assert_array_equal(told, of_array.predict(X))
    assert of_array.to_model().table_columns is None
    of_frame.save(tmp_path / "model")
    model = load_predictor(tmp_path / "model")
    assert model.model.table_columns.inputs == (*NAMES,)
    for rows in (X, make(NUMBERS), make(NUMBERS[NAMES[::-1]].assign(more="x"))):
        np.testing.assert_allclose(model.predict(rows), told, rtol=1e-3, atol=1e-3)
    assert model.predict(make(NUMBERS[:0])).shape == (0,)
    NUMBERS.astype(float).to_csv(tmp_path / "rows.csv", index=False)
    assert predict.main([str(tmp_path / "model"), str(tmp_path / "rows.csv"), "--out", str(tmp_path / "y.csv")]) == 0
    written = np.loadtxt(tmp_path / "y.csv", delimiter=",", skiprows=1, usecols=2)
    assert written.tolist() == model.predict(make(NUMBERS)).tolist()
    with pytest.raises(DataError, match="X: lacks the column 'zip', which the model needs"):
        model.predict(make(NUMBERS.drop(columns="zip")))
    with pytest.raises(DataError, match="X: row 3, column 2 is nan"):
        model.predict(make(NUMBERS.assign(compute=GAPS)))
    with pytest.raises(DataError, match="X holds words, such as 'pink'"):
        model.predict(make(NUMBERS.assign(zip="pink")))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"zip": "pink"}, "^X holds words in column zip, such as 'pink'; give numbers: words by OneHotEncoder"),
        ({"zip": NUMBERS["zip"].astype(str)}, "^X holds words in column zip, such as '.*text by .astype"),
        ({"zip": pandas.Series([[1, 2]] * ROWS)}, "^X holds objects of type (list|ndarray) in column zip"),
        ({"zip": PEOPLE["since"].dt.date}, "^X holds (times|objects of type date)"),
        ({"zip": 2**60}, "^X holds whole numbers such as 1152921504606846976; float64 does not tell them apart"),
        ({"zip": PEOPLE["since"]}, "^X holds times .*; give numbers of days"),
        ({"zip": GAPS}, r"^Input X contains NaN\. Fill gaps in before, with SimpleImputer in a pipeline$"),
    ],
)
def test_words_dates_and_gaps_are_refused(kind, column, message):
    frame, machine = KINDS[kind](NUMBERS.assign(**column)), SLKLRegressor(50, **PLAIN)
    with pytest.raises(ValueError, match=message):
        machine.fit(frame, Y)
    with pytest.raises(ValueError, match=message):
        machine.fit(KINDS[kind](NUMBERS), Y).predict(frame)


def test_objects_of_one_kind_are_labels():
    for labels in (np.arange(ROWS) % 2 == 0, np.arange(ROWS) % 3):
        fits = [SLKLClassifier(50, **PLAIN).fit(X, given) for given in (labels, labels.astype(object))]
        np.testing.assert_array_equal(fits[0].predict(X), fits[1].predict(X))
        assert fits[1].classes_.dtype == labels.dtype


COLUMNS: list[tuple[Any, str]] = [
    (NUMBERS.assign(zip=np.array([1.5, pandas.NA] * 150, object)), "^X contains <NA>; write np.nan"),
    (NUMBERS.assign(zip=np.array([2**60, 2**60 + 1] * 150, object)), "^X holds whole numbers in .* does not tell them"),
    (NUMBERS.assign(zip=np.array([1j, 2] * 150, object)), "^X holds objects of type complex in column zip"),
    (polars.from_pandas(NUMBERS).with_columns(s=polars.struct("zip")), "^X: column s holds lists or structs"),
    (polars.from_pandas(NUMBERS).lazy(), r"^X is a lazy frame; give X\.collect\(\)"),
    (NUMBERS.astype(pandas.SparseDtype(float)), r"^X: column zip is sparse; give X\.sparse\.to_dense\(\)"),
    (pyarrow.Table.from_pandas(NUMBERS), r"^X is a table of Arrow; give X\.to_pandas\(\)$"),
    (NUMBERS.set_axis(["a", "b", "a"], axis=1), "^X has several columns of one name; rename them: a, b, a"),
]
LABELS: list[tuple[Any, str]] = [
    (np.array(["True", "TRUE", "False"] * 100), "^y: 'TRUE' and 'True' are one label in two spellings"),
    (np.array(["a", "nan", "b"] * 100), r"^y: row 1 has no label \('nan'; if that is a label"),
    (np.array([True, "x", 1] * 100, object), "^y holds words and numbers; give labels of one type"),
    (PEOPLE["since"].dt.date, r"^y holds (times|objects of type date; give words \(str\) or numbers)"),
    (pandas.Series(["a", pandas.NA, "b"] * 100, dtype="string"), "^y: row 1 has no label"),
    (pandas.array([True, None, False] * 100, dtype="boolean"), "^y: row 1 has no label"),
    (pandas.date_range("2020-01-01", periods=ROWS), "^y holds times"),
    ([[1], [0, 2]] * 150, "^y holds lists of several lengths"),
]


@pytest.mark.parametrize(("given", "message"), COLUMNS + LABELS)
def test_columns_and_labels_of_no_one_kind_are_refused(given, message):
    rows, labels = (given, Y > 1) if message.startswith("^X") else (NUMBERS, given)
    with pytest.raises(ValueError, match=message):
        SLKLClassifier(50, **PLAIN).fit(rows, labels)

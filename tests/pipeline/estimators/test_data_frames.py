"""DataFrames in the estimators: of numbers they are arrays with names, words are encoded in a pipeline before."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from features.errors import DataError
from pipeline import predict
from pipeline.estimators import SLKLRegressor
from pipeline.prediction.predictor import Predictor, load_predictor
from sources import people

ROWS, NAMES = 300, ["zip", "member", "compute"]
PEOPLE, Y = people(ROWS)
NUMBERS = PEOPLE[["zip", "member"]].assign(compute=np.arange(ROWS) * 0.7)
X = NUMBERS.to_numpy(dtype=np.float64)
PLAIN: dict[str, Any] = {"sigma2": "median", "random_state": 0}  # no search for a kernel
GAPS = np.where(np.arange(ROWS) == 3, np.nan, 1.0)
KINDS: dict[str, Callable[[pandas.DataFrame], Any]] = {
    "pandas": lambda frame: frame.set_index(np.arange(len(frame))[::-1]),
    "polars": polars.from_pandas,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_of_numbers_is_an_array_with_names(kind: str, tmp_path: Path) -> None:
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
    with pytest.raises(DataError, match=r"X holds .* values; real numbers are needed"):
        model.predict(make(NUMBERS.assign(zip="pink")))


@pytest.mark.parametrize("kind", KINDS)
def test_scikit_learn_checks_the_names_of_columns(kind: str) -> None:
    make = KINDS[kind]
    machine = SLKLRegressor(50, random_state=0).fit(make(NUMBERS), Y)
    assert machine.feature_names_in_.tolist() == NAMES
    assert len(machine.feature_importances_) == len(NAMES)
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        machine.predict(make(NUMBERS[NAMES[::-1]]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            {"zip": "pink"},
            r"^could not convert .*: encode words first, with OneHotEncoder in a pipeline, or train from a",
        ),
        ({"zip": PEOPLE["since"]}, r"^X holds times \([dD]ate.*\); subtract a date"),
        ({"zip": GAPS}, r"^Input X contains NaN\. Fill gaps in before, with SimpleImputer in a pipeline$"),
    ],
)
def test_words_dates_and_gaps_are_refused(kind: str, column: dict[str, Any], message: str) -> None:
    frame, machine = KINDS[kind](NUMBERS.assign(**column)), SLKLRegressor(50, **PLAIN)
    with pytest.raises(ValueError, match=message):
        machine.fit(frame, Y)
    with pytest.raises(ValueError, match=message):
        machine.fit(KINDS[kind](NUMBERS), Y).predict(frame)


def test_tables_of_arrow_are_refused() -> None:
    machine, table = SLKLRegressor(50, **PLAIN).fit(X, Y), pyarrow.Table.from_pandas(NUMBERS)
    for call in (machine.predict, partial(machine.fit, y=Y), Predictor(machine.to_model()).predict):
        with pytest.raises(ValueError, match=r"X is a table of Arrow; give X\.to_pandas\(\)$"):
            call(table)


def test_words_and_gaps_are_encoded_in_a_pipeline() -> None:
    encoder = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), ["color", "size"]),
        (SimpleImputer(strategy="median", add_indicator=True), ["age", "zip", "member"]),
    )
    machine = make_pipeline(encoder.set_output(transform="pandas"), SLKLRegressor(60, **PLAIN))
    assert cross_val_score(machine, PEOPLE, Y, cv=2, error_score="raise").min() > 0.8
    search = GridSearchCV(machine, {"slklregressor__n_centers": [20, 80]}, cv=2, error_score="raise").fit(PEOPLE, Y)
    alone = clone(search.best_estimator_).fit(PEOPLE, Y)
    np.testing.assert_array_equal(search.predict(PEOPLE), alone.predict(PEOPLE))
    assert "onehotencoder__color_red" in alone[-1].feature_names_in_

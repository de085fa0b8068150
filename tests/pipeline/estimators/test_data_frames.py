"""Estimators on data frames with words, dates and missing cells: as the command on the same table."""

import pickle

import numpy as np
import pandas
import polars
import pyarrow
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from pipeline.estimators import SLKLClassifier, SLKLRegressor
from runs import train

N = 240
SETTINGS = {"categorical": "auto", "missing": "median"}


def frame_of(n=N, seed=0):
    rng = np.random.default_rng(seed)
    return pandas.DataFrame(
        {
            "color": rng.choice(["red", "green", "blue"], n),
            "size": np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n)),
            "when": pandas.Timestamp("2020-01-01") + pandas.to_timedelta(rng.integers(0, 900, n), unit="D"),
            "ok": rng.random(n) < 0.5,
            "maybe": pandas.array(np.where(rng.random(n) < 0.2, None, 1 + rng.integers(0, 9, n)), "Int64"),
        }
    )


def labels_of(frame):
    return np.where((frame["color"] == "red") ^ (frame["size"].fillna(0) > 0), "yes", "no")


def classifier(**more):
    return SLKLClassifier(**{"n_centers": 40, "penalty": "max:1e-5", "random_state": 0, **SETTINGS, **more})


OF_LIBRARIES = {
    "pandas": lambda frame: frame,
    "pandas, categories": lambda frame: frame.astype({"color": "category"}),
    "polars": polars.from_pandas,
    "pyarrow": pyarrow.Table.from_pandas,
}


@pytest.fixture(scope="module")
def fitted():
    frame = frame_of()
    return classifier().fit(frame, labels_of(frame))


@pytest.mark.parametrize("library", OF_LIBRARIES)
def test_a_frame_of_any_library_gives_the_same_bits(fitted, library):
    convert, new = OF_LIBRARIES[library], frame_of(70, 1)
    machine = clone(fitted).fit(convert(frame_of()), labels_of(frame_of()))
    assert machine.feature_names_in_.tolist() == ["color", "size", "when", "ok", "maybe"]
    assert machine.n_features_in_ == 5
    expected = fitted.decision_function(new)
    for given in (new, convert(new), convert(new[new.columns[::-1]])):
        np.testing.assert_array_equal(machine.decision_function(given), expected)
    assert machine.score(convert(new), labels_of(new)) > 0.8


def test_the_command_on_the_same_table_predicts_the_same(fitted, tmp_path):
    frame, new = frame_of(), frame_of(70, 1)
    for name, rows in (("train", frame), ("test", new)):
        rows.assign(y=labels_of(rows)).to_parquet(tmp_path / f"{name}.parquet", index=False)
    options = ["--centers", "40", "--penalty", "max:1e-5", "--set", "solver.tolerance=0", "--test"]
    train(
        *(tmp_path / "run", tmp_path / "features", *options, str(tmp_path / "test.parquet")),
        *("--set", "data.categorical=auto", "--set", "data.missing=median"),
        dataset=tmp_path / "train.parquet",
    )
    loaded = SLKLClassifier.load(tmp_path / "run")
    for given in (new, polars.from_pandas(new), new[new.columns[::-1]].assign(more="x")):
        np.testing.assert_allclose(loaded.decision_function(given), fitted.decision_function(new), rtol=2e-3, atol=2e-3)
    np.testing.assert_array_equal(loaded.center_index_, fitted.center_index_)


def test_it_survives_a_pickle_a_folder_and_a_search(fitted, tmp_path):
    frame, new = frame_of(), frame_of(70, 1)
    expected = fitted.decision_function(new)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).decision_function(new), expected)
    fitted.save(tmp_path / "model")
    np.testing.assert_allclose(SLKLClassifier.load(tmp_path / "model").decision_function(new), expected, atol=1e-4)
    for given in (frame, polars.from_pandas(frame)):
        search = GridSearchCV(classifier(), {"sigma2": [2.0, 8.0], "categorical": ["onehot", "ordinal"]}, cv=3)
        search.fit(given, labels_of(frame))
        assert search.best_score_ > 0.75
        assert not np.isnan(search.cv_results_["mean_test_score"]).any()
    line = make_pipeline(FunctionTransformer(lambda X: X.drop(columns="when")), classifier())
    assert line.fit(frame, labels_of(frame)).score(new, labels_of(new)) > 0.8


def test_what_cannot_be_read_is_told_in_the_words_of_the_parameters(fitted):
    frame, y = frame_of(), labels_of(frame_of())
    refused = (
        ({"categorical": None}, frame, r"row 0, column color is 'b?\w+'; .* \(categorical='onehot' takes words"),
        ({"missing": None}, frame, r"row \d+, column \w+ is ''; .* \(missing='median' fills missing cells in\)"),
        ({"categorical": "other"}, frame, "^categorical = other: give auto"),
        ({"categorical": "auto:nothing"}, frame, "^categorical: 'nothing' is no input"),
        ({}, np.zeros((N, 2)), "categorical and missing are for data frames"),
        (
            {},
            frame.assign(empty=None),
            r"column 'empty' has no cell that is filled in in the training rows; leave it out$",
        ),
    )
    for parameters, X, words in refused:
        with pytest.raises(ValueError, match=words):
            clone(fitted).set_params(**parameters).fit(X, y)
    with pytest.raises(ValueError, match="lacks the column 'when'"):
        fitted.predict(frame.drop(columns="when"))
    with (
        pytest.warns(UserWarning, match="valid feature names"),
        pytest.raises(ValueError, match="give a data frame, as in the fit"),
    ):
        fitted.predict(np.zeros((3, 5)))
    with pytest.warns(UserWarning, match=r"that no training row has: color \(2\)"):
        fitted.predict(frame[:2].assign(color="violet"))


def test_dates_and_truth_values_need_no_parameter_and_plain_numbers_are_as_before():
    frame, y = frame_of()[["when", "ok"]], np.arange(float(N))
    numbers = pandas.DataFrame({"when": (frame["when"] - pandas.Timestamp(0)).dt.days, "ok": frame["ok"].astype(int)})
    machine = SLKLRegressor(n_centers=30, random_state=0)
    expected = clone(machine).fit(numbers.astype(float), y)
    found = clone(machine).fit(frame, y)
    np.testing.assert_array_equal(found.predict(frame), expected.predict(numbers.astype(float)))
    assert clone(machine).fit(polars.from_pandas(numbers), y).n_features_in_ == 2

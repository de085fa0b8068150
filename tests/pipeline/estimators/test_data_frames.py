"""DataFrames in the estimators: words, dates, truth values and missing cells become what the command makes of them."""

import itertools
import pickle
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dask.dataframe
import numpy as np
import pandas
import polars
import pyarrow
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from pipeline import predict
from pipeline.estimators import SLKLClassifier, SLKLRegressor
from pipeline.prediction.model_folder import load_model
from pipeline.prediction.predictor import load_predictor
from runs import train_beside
from sources import people

ROWS, HELD_BACK = 300, 60
MEDIAN = {"categorical": "auto", "missing": "median"}
CASES: dict[str, tuple[type, dict[str, Any], list[str]]] = {
    "one-hot": (SLKLClassifier, {"categorical": "onehot", "missing": "median"}, []),
    "codes": (SLKLRegressor, {"categorical": "auto:zip", "missing": "median"}, []),
    "weighted": (SLKLRegressor, {"categorical": "auto", "missing": "median"}, ["w"]),
    "nothing asked": (SLKLRegressor, {}, ["color", "size", "age"]),
}


def with_index(frame: pandas.DataFrame) -> pyarrow.Table:
    """Return a table that holds the index of the frame, too, as a column that is none of its columns."""
    return pyarrow.Table.from_pandas(frame.set_index(np.arange(len(frame))[::-1]))


KINDS: dict[str, Callable[[pandas.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "polars": lambda frame: polars.from_arrow(with_index(frame)),
    "arrow": with_index,
}


def written(folder: Path, frame: pandas.DataFrame, **columns: np.ndarray) -> Path:
    frame.assign(**columns).to_csv(folder / "table.csv", index=False)
    return folder / "table.csv"


@pytest.mark.parametrize("case", CASES)
def test_the_command_makes_the_same_model_of_the_same_table(case: str, tmp_path: Path) -> None:
    kind, asked, others = CASES[case]
    frame, y = people(ROWS)
    frame, draw = frame.drop(columns=[name for name in others if name in frame]), np.random.default_rng(2)
    weights = draw.exponential(size=ROWS) * (draw.random(ROWS) < 0.8) if "w" in others else None
    if weights is not None:
        frame.loc[weights == 0, "color"] = "never counted"
    y = np.digitize(y, np.quantile(y, [0.3, 0.6])) if kind is SLKLClassifier else y
    data = written(tmp_path, frame, **({} if weights is None else {"w": weights}), y=y)
    line = ["--centers", "80", "--penalty", "max:1e-4", "--tol", "1e-6", "--test", str(data), "--scheduler", "serial"]
    for key, value in (asked | ({} if weights is None else {"weights": "w"})).items():
        line += ["--set", f"data.{key}={value}"]
    run = train_beside(tmp_path, "run", data, *line)
    counted = frame if weights is None else frame[weights > 0]
    theirs, told = load_model(run / "model"), load_predictor(run).decision_function(counted)
    machine = kind(80, penalty="max:1e-4", tol=1e-6, random_state=0, **asked)
    for make in KINDS.values():
        cells = make(frame)
        machine = clone(machine).fit(cells, y, weights)
        ours = machine.to_model()
        for name in ("centers", "weights", "intercept", "sigma2"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name), err_msg=name)
        np.testing.assert_array_equal(ours.standardisation.mean, theirs.standardisation.mean)
        assert ours.table_columns.encoding == theirs.table_columns.encoding
        assert machine.feature_names_in_.tolist() == list(theirs.table_columns.inputs) == list(frame.columns)
        values = (machine.predict if kind is SLKLRegressor else machine.decision_function)(make(counted))
        np.testing.assert_array_equal(values, told[:, 0] if kind is SLKLRegressor else told)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_learned_is_applied_by_name_and_travels(kind: str, tmp_path: Path) -> None:
    frame, y = people(ROWS)
    make, y = KINDS[kind], np.where(y > np.median(y), "much", "little")
    train, new = make(frame[:-HELD_BACK]), frame[-HELD_BACK:].reset_index(drop=True)
    machine = SLKLClassifier(100, random_state=0, **MEDIAN).fit(train, y[:-HELD_BACK])
    assert machine.score(make(new), y[-HELD_BACK:]) > 0.85
    told, names = machine.predict_proba(make(new)), list(frame.columns)
    machine.save(tmp_path / "model")
    for one in (machine, pickle.loads(pickle.dumps(machine))):
        assert (one.n_features_in_, one.feature_names_in_.tolist()) == (len(names), names)
        by_column = dict(zip(names, one.feature_importances_, strict=True))
        by_input = dict(zip(one.input_names_, one.input_importances_, strict=True))
        assert len(by_input) > len(by_column)
        for name in names:
            of_column = [by_input[own] for own in by_input if re.match(f"{name}($|=| is missing$)", own)]
            assert by_column[name] == pytest.approx(sum(of_column))
        assert sum(by_column.values()) == pytest.approx(1.0)
        for cells in (make(new), make(new[names[::-1]]), make(new.assign(more="x"))):
            np.testing.assert_array_equal(one.predict_proba(cells), told)
        with pytest.warns(UserWarning, match=r"no training row has: color \(2\), size \(1\); they count as none"):
            one.predict(make(new[:2].assign(color="pink", size=["XXL", "S"])))
        with pytest.raises(ValueError, match=r"X: row 1, column age is 'old'; a finite number is needed$"):
            one.predict(make(new[:2].assign(age=["40", "old"])))
    with pytest.raises(ValueError, match="lacks the column 'age', which the model needs"):
        machine.predict(make(new.drop(columns="age")))
    np.testing.assert_array_equal(machine.predict_proba(new.to_numpy(dtype=object)), told)  # by their places
    assert predict.main([str(tmp_path / "model"), str(written(tmp_path, new)), "--out", str(tmp_path / "l.csv")]) == 0
    labels = pandas.read_csv(tmp_path / "l.csv")["label"]
    assert labels.tolist() == machine.predict(make(new)).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_grid_searches_and_pipelines_take_frames(kind: str) -> None:
    frame, y = people(ROWS)
    cells, machine = (
        KINDS[kind](frame),
        SLKLRegressor(60, kernel="gaussian", sigma2="auto", random_state=0, missing="median"),
    )
    search = GridSearchCV(machine, {"categorical": ["onehot", "auto"]}, cv=2, error_score="raise").fit(cells, y)
    assert search.best_score_ > 0.9
    alone = clone(search.best_estimator_).fit(cells, y)
    np.testing.assert_array_equal(search.predict(cells), alone.predict(cells))
    numbers = ColumnTransformer([("z", StandardScaler(), ["zip"])], remainder="passthrough")
    if kind != "arrow":  # whose tables ColumnTransformer does not give
        steps = make_pipeline(numbers.set_output(transform=kind), clone(alone))
        assert cross_val_score(steps, cells, y, cv=2, error_score="raise").min() > 0.8


@pytest.mark.parametrize("kind", KINDS)
def test_a_frame_of_numbers_is_an_array_with_names(kind: str) -> None:
    """To the same bits, in float64; what is asked for and finds nothing to do changes nothing but float32 features."""
    frame, y = people(ROWS)
    frame = frame[["zip", "member"]].assign(compute=np.arange(ROWS) * 0.7)
    X = frame.to_numpy(dtype=np.float64)
    of_array, of_frame = (SLKLRegressor(50, random_state=0).fit(rows, y) for rows in (X, KINDS[kind](frame)))
    np.testing.assert_array_equal(of_frame.dual_coef_, of_array.dual_coef_)
    np.testing.assert_array_equal(of_frame.predict(KINDS[kind](frame)), of_array.predict(X))
    columns = of_frame.to_model().table_columns
    assert (columns.inputs, of_array.to_model().table_columns) == (("zip", "member", "compute"), None)
    with pytest.raises(ValueError, match="Feature names must be in the same order"):
        of_frame.predict(KINDS[kind](frame[["member", "zip", "compute"]]))
    with pytest.raises(ValueError, match=r"X: row 3, column compute is ''; a finite number is needed"):
        of_frame.predict(KINDS[kind](frame.assign(compute=np.where(np.arange(ROWS) == 3, np.nan, 1.0))))
    asked = SLKLRegressor(50, random_state=0, missing="median").fit(KINDS[kind](frame), y)
    np.testing.assert_allclose(asked.predict(KINDS[kind](frame)), of_array.predict(X), rtol=1e-4)


def test_arrays_are_read_as_cells_where_that_is_asked_for() -> None:
    frame, y = people(ROWS)
    of_frame = SLKLRegressor(50, sigma2=5.0, random_state=0, **MEDIAN).fit(frame, y)
    objects, gaps = frame.to_numpy(dtype=object), frame[["age", "zip"]]
    of_array = SLKLRegressor(50, sigma2=5.0, random_state=0, **MEDIAN).fit(objects, y)
    np.testing.assert_array_equal(of_array.predict(objects), of_frame.predict(frame))
    assert not hasattr(of_array, "feature_names_in_")
    objects[:9, list(frame.columns).index("since")] = pandas.NaT
    in_time = frame.assign(since=frame["since"].where(np.arange(ROWS) >= 9))
    late = SLKLRegressor(50, sigma2=5.0, random_state=0, **MEDIAN).fit(objects, y)
    np.testing.assert_array_equal(late.predict(objects), clone(late).fit(in_time, y).predict(in_time))
    with pytest.raises(ValueError, match=r"^Input X contains NaN\. missing='median' fills missing cells in$"):
        SLKLRegressor(50).fit(gaps.to_numpy(), y)
    numbers, named = (
        SLKLRegressor(50, sigma2=5.0, random_state=0, missing="median").fit(X, y) for X in (gaps.to_numpy(), gaps)
    )
    np.testing.assert_array_equal(numbers.predict(gaps.to_numpy()), named.predict(gaps))
    with pytest.raises(ValueError, match=r"^Input X contains NaN\.$"):
        SLKLRegressor(50, random_state=0).fit(gaps.fillna(40).to_numpy(), y).predict(gaps.to_numpy())


def test_chunks_blocks_and_indices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk of an Arrow table may list its words in another order."""
    frame, y = people(ROWS)
    whole = pyarrow.Table.from_pandas(frame.astype({"color": "str"}), preserve_index=False)
    machine = SLKLRegressor(50, random_state=0, **MEDIAN).fit(whole, y)
    cuts = [0, 1, 80, 81, 200, ROWS]
    pieces = [whole.slice(a, b - a) for a, b in itertools.pairwise(cuts)]
    k = whole.column_names.index("color")
    pieces = [piece.set_column(k, "color", piece["color"].dictionary_encode()) for piece in pieces]
    monkeypatch.setattr("pipeline.estimators.array_features.MOST_BLOCK_ROWS", 64)
    monkeypatch.setattr("features.tables.readers.MOST_ROWS", 37)
    monkeypatch.setattr("features.tables.readers.LEAST_ROWS", 1)
    for cells in (pyarrow.concat_tables(pieces), frame.set_index(pandas.Index(range(7, 7 + ROWS), name="row"))):
        again = clone(machine).fit(cells, y)
        assert again.feature_names_in_.tolist() == list(frame.columns)
        assert again.to_model().table_columns == machine.to_model().table_columns
        np.testing.assert_allclose(again.predict(cells), machine.predict(whole), rtol=1e-9)


@pytest.mark.parametrize(
    ("parameters", "change", "message"),
    [
        (
            {},
            {},
            r"^X: columns that need a setting: color \(3 words, such as 'green' in row 0; 15 of 300 missing\), "
            r"age \(34 of 300 missing, .* or try: categorical='auto' missing='median'$",
        ),
        ({"categorical": "onehot:x y"}, {}, "^categorical: 'x y' is no input of X; it has color, age"),
        (
            {**MEDIAN},
            {"age": [pandas.Timedelta(1)] * ROWS},
            r"hold neither .*: age .*; give seconds, as numbers, or leave them out \(X without age\)$",
        ),
        ({"missing": "mean"}, {}, "^missing must be .*median; found 'mean'"),
    ],
)
def test_errors_name_the_columns_and_the_parameters(parameters: Any, change: dict[str, Any], message: str) -> None:
    frame, y = people(ROWS)
    with pytest.raises(ValueError, match=message) as told:
        SLKLRegressor(20, **parameters).fit(frame.assign(**change), y)
    assert "--" not in str(told.value)
    assert "data." not in str(told.value)


def test_what_cannot_be_read_as_cells_is_refused() -> None:
    frame, y = people(ROWS)
    machine = SLKLRegressor(20, missing="median")
    alone = SLKLRegressor(20, **MEDIAN).fit(frame, y)
    for X, message in (
        (polars.from_pandas(frame).lazy(), r"X: is a LazyFrame, no table in memory; give its \.collect\(\)"),
        (dask.dataframe.from_pandas(frame, npartitions=2), r"X: is a DataFrame, .* \.compute\(\)"),
        (frame["age"], r"X: is a Series, .* \.to_frame\(\)"),
        (pandas.concat([frame, frame], axis=1), "X: has the column 'color' twice; give each column its own name"),
    ):
        for call in (partial(alone.fit, y=y), alone.predict):
            with pytest.raises(ValueError, match=message):
                call(X)
    with pytest.raises(ValueError, match=r"y: is a LazyFrame, no table in memory; give its \.collect\(\)"):
        machine.fit(frame, polars.LazyFrame({"y": y}))
    with pytest.raises(ValueError, match="Expected 2D array"):
        machine.fit(np.zeros(ROWS), y)
    with pytest.raises(ValueError, match="X is too large for float32 in row 1; rescale or remove it"):
        clone(machine).set_params(standardise=False).fit(np.arange(ROWS)[:, None] * 1e300, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        machine.fit(frame, y[:-1])
    with pytest.raises(ValueError, match="requires y"):
        machine.fit(frame, None)
    with pytest.raises(ValueError, match=r"0 sample\(s\)"):
        machine.fit(frame[:0], y[:0])
    with pytest.raises(ValueError, match="y contains NaN"):
        machine.fit(frame[["age"]], np.where(np.arange(ROWS) == 4, np.nan, y))

"""Greedy selection through the main command: dense twins, sizes."""

from pathlib import Path

import numpy as np
import pytest

from cases import CASES, SERIAL
from pipeline.kernels.gram_statistics import GramStatistics
from pipeline.prediction.trained_model import load_model
from pipeline.solvers.ridge import least_squares
from runs import TrainedRuns, model_bytes, report_of
from storage.arrays import as_dataclass, load
from storage.folder_layouts import RunLayout

SELECTION = CASES["a selection"].arguments


@pytest.fixture(scope="module")
def whole(finished_run: TrainedRuns, tables: Path) -> Path:
    """A selection of 20 from all of 150 candidates."""
    return finished_run(*SELECTION, *SERIAL, dataset=tables / "classes.npz", statistics=True)


def test_report_and_model_agree(whole, rows_of):
    report, model, layout, rows = report_of(whole), load_model(whole / "model"), RunLayout(whole), rows_of(whole)
    found = report["selection"]
    assert (report["select"], report["refit"], report["penalty"], report["solves"]) == ("greedy:20", "ridge", None, [])
    assert report["converged"]
    assert report["penalised"] is None
    assert found["n_centers"] == report["model_n_centers"] == 20
    assert model.selection_order.tolist() == list(range(20))
    assert report["n_errors"] == np.count_nonzero(model.labels_of(model.decision_function(rows.X_test)) != rows.y_test)
    curve = {point["size"]: point for point in found["curve"]}
    assert curve[20]["test_error"] == pytest.approx(report["error_rate"])
    assert curve[20]["hold_out_error"] < curve[10]["hold_out_error"] < curve[1]["hold_out_error"]
    chosen = load(layout.solutions / "all-selection.npz").arrays["chosen"]
    everything = as_dataclass(load(layout.statistics / "all.npz").arrays, GramStatistics)
    for size in (1, 10, 20):
        cut = everything.cut(chosen[:size])
        model = least_squares(cut, report["hold_out"]["ridge"], intercept=report["intercept"])
        decision = rows.K_test[:, chosen[:size]] @ model.weights + model.intercept
        wrong = np.count_nonzero(np.argmax(decision, axis=1) != rows.y_test)
        assert curve[size]["test_error"] == pytest.approx(wrong / len(rows.y_test))


def test_a_smaller_choice_is_a_prefix(finished_run, tables, whole):
    asked = (*SELECTION[:4], "--select", "greedy:12", *SERIAL)
    few = finished_run(*asked, dataset=tables / "classes.npz")
    indices = [load_model(run / "model").center_index for run in (few, whole)]
    np.testing.assert_array_equal(indices[0], indices[1][:12])
    again = finished_run(*asked, "--refit", "ridge", dataset=tables / "classes.npz")  # which a selection always has
    assert model_bytes(again) == model_bytes(few)

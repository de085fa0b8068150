"""What a run has come to: report.json for programs, and a short table for people."""

from typing import Any

import numpy as np

from pipeline.feature_store import FeatureShape
from pipeline.model import SparseKernelModel
from pipeline.model_folder import load_model
from pipeline.setting_types import selection_size
from pipeline.stages import candidates, solve, statistics
from pipeline.stages.evaluate import Score, Scores
from pipeline.stages.run import Run
from pipeline.statistics import hold_out_rows
from storage.commit import read_arrays

FORMAT_VERSION = 1


def build(run: Run, scores: Scores, peak_rss_bytes: int) -> dict[str, Any]:
    """Return the content of report.json of a run whose stages are done; what does not apply is None.

    `objective`, `relative_gap` and `n_active` of the solves are those of the penalised weights, which a refit replaces
    in the model; `penalised` then says how those fared on the test part.
    """
    config, shape, solver = run.config, run.shape, run.config.solver
    found = solve.summary(run.layout)
    selected = found["selection"] is not None
    refitted = found["ridge"] is not None and not selected
    model = load_model(run.layout.model)
    return {
        "format_version": FORMAT_VERSION,
        "dataset": shape.dataset,
        "task": shape.task,
        "n_train": shape.n_train,
        "n_test": shape.n_test,
        "n_features": shape.n_features,
        "features": config.features.name,
        "n_centers": statistics.n_centers(run),
        "kernel": config.kernel.name,
        "sigma2": candidates.widths(run.layout).tolist(),
        "sigma2_tried": _tried_widths(run),
        "model_sigma2": _model_widths(model),
        "penalty": found["penalty"],
        "coupling": ("shared" if selected else solver.coupling) if shape.task == "multiclass" else None,
        "select": solver.select if selected else None,
        "selection": _selection(found["selection"], scores) if selected else None,
        "refit": "ridge" if found["ridge"] is not None else None,
        "intercept": solver.intercept,
        "tolerance": solver.tolerance,
        "seed": config.seed,
        "converged": all(one["converged"] for one in found["solves"]),
        **_errors(scores.model, shape.task),
        "penalised": _errors(scores.penalised, shape.task) if refitted else None,
        "hold_out": _hold_out(run, found),
        "path": found["path"],
        "confusion": [list(row) for row in scores.model.confusion] or None,
        "model_n_centers": model.n_centers,
        "passes": found["passes"],
        "kernel_entries": sum(record["kernel_entries"] for record in found["passes"])
        if found["passes"]
        else shape.n_train * statistics.n_centers(run),
        "peak_rss_bytes": peak_rss_bytes,
        "wall_seconds": sum(cost.wall_seconds for cost in run.costs.values()),
        "stages": {name: dict(vars(cost)) for name, cost in run.costs.items()},
        "solves": [{**one, "outputs": _labels(shape, one["outputs"])} for one in found["solves"]],
    }


def _tried_widths(run: Run) -> list[list[float | None]] | None:
    """Return what `--sigma2 auto` tried: [width, mean squared held-out error] each, None where no fit was."""
    arrays = read_arrays(run.layout.centers, mapped=True)
    if "sigma2_tried" not in arrays:
        return None
    pairs = zip(arrays["sigma2_tried"].tolist(), arrays["hold_out_errors"].tolist(), strict=True)
    return [[width, error if np.isfinite(error) else None] for width, error in pairs]


def _model_widths(model: SparseKernelModel) -> list[list[float]]:
    """Return how many centers of the model have each width: [width, centers]."""
    found, counts = np.unique(model.center_sigma2, return_counts=True)
    return [[float(width), int(count)] for width, count in zip(found, counts, strict=True)]


def _selection(found: dict[str, Any], scores: Scores) -> dict[str, Any]:
    """Return the selection with the test error of every size: the share of errors, or the mean squared error."""
    errors = [error / scores.model.rows for error in scores.prefixes]
    curve = zip(found["curve"], errors, strict=True)
    return {**found, "curve": [{**point, "test_error": error} for point, error in curve]}


def _errors(score: Score, task: str) -> dict[str, Any]:
    if task == "regression":
        return {"error_rate": None, "n_errors": None, "mse": score.squared_error / score.rows}
    return {"error_rate": score.n_errors / score.rows, "n_errors": score.n_errors, "mse": None}


def _hold_out(run: Run, found: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the held-out rows decided: the penalty's error along the path, the ridge and its errors."""
    if found["path"] is None and found["ridge"] is None:
        return None
    held_out = hold_out_rows(run.config.seed, run.config.statistics.hold_out, 0, run.shape.n_train)
    chosen = [point["hold_out_error"] for point in found["path"] or [] if point["penalty"] == found["penalty"]]
    return {
        "fraction": run.config.statistics.hold_out,
        "n_rows": int(np.count_nonzero(held_out)),
        "error": chosen[0] if chosen else None,
        "ridge": found["ridge"],
        "ridges": found["ridges"],
    }


def _labels(shape: FeatureShape, outputs: list[int]) -> list[Any]:
    """Return the labels that outputs serve: the classes, the second of two, or y."""
    if shape.task == "multiclass":
        return [shape.classes[output] for output in outputs]
    return [shape.classes[1] if shape.task == "binary" else "y"]


def table(report: dict[str, Any]) -> list[str]:
    """Return the report as short tables: setting, path or selection, solves, stages, model, error."""
    lines = [
        f"{report['dataset']}: {report['n_train']} training rows, {report['n_test']} test rows, "
        f"{report['n_features']} {report['features']} features, {report['task']}",
        f"{report['n_centers']} candidate centers, {_kernel_words(report)}, "
        + (f"select {report['select']}" if report["select"] else f"penalty {report['penalty']:g}"),
    ]
    lines += _path_table(report["path"]) if report["path"] else []
    lines += _selection_table(report["selection"], report["select"], report["task"]) if report["selection"] else []
    lines += _solve_table(report["solves"]) if report["solves"] else []
    lines += _width_table(report) if report["sigma2_tried"] or len(report["sigma2"]) > 1 else []
    lines += ["", f"{'stage':<12}{'wall s':>9}{'CPU s':>9}{'items':>8}"]
    for name, cost in report["stages"].items():
        lines.append(f"{name:<12}{cost['wall_seconds']:>9.2f}{cost['cpu_seconds']:>9.2f}{cost['items']:>8}")
    lines += ["", f"model: {report['model_n_centers']} centers; peak memory {report['peak_rss_bytes'] / 2**20:.0f} MiB"]
    if report["penalised"]:
        lines.append(f"before the refit: {_error_words(report['penalised'], report['n_test'])}")
    lines.append(_error_words(report, report["n_test"]))
    return lines + not_converged(report)


def not_converged(report: dict[str, Any]) -> list[str]:
    """Return a line for every solve that missed the tolerance: its gap, and what its status advises."""
    return [
        f"NOT CONVERGED: output {_output_name(one)}: relative gap {one['relative_gap']:.1e}, "
        f"asked {report['tolerance']:g}: {one['status']}"
        for one in report["solves"]
        if not one["converged"]
    ]


def _output_name(solve: dict[str, Any]) -> str:
    return str(solve["outputs"][0]) if len(solve["outputs"]) == 1 else "all"


def _path_table(path: list[dict[str, Any]]) -> list[str]:
    lines = ["", f"{'penalty':>12}{'objective':>14}{'centers':>9}{'held-out error':>16}{'seconds':>9}"]
    for point in path:
        lines.append(
            f"{point['penalty']:>12.4g}{point['objective']:>14.6g}{point['n_centers']:>9}"
            f"{point['hold_out_error']:>16.6g}{point['wall_seconds']:>9.2f}"
        )
    return lines


def _selection_table(found: dict[str, Any], select: str, task: str) -> list[str]:
    """Return the curve of errors against sizes, at a dozen of its sizes."""
    curve = found["curve"]
    places = sorted({round(k) for k in np.linspace(0, len(curve) - 1, 12)})
    name, scale = ("test mse", 1.0) if task == "regression" else ("test error, %", 100.0)
    lines = ["", f"{'centers':>8}{'held-out mse':>14}{name:>16}"]
    for point in (curve[k] for k in places):
        lines.append(f"{point['size']:>8}{point['hold_out_error']:>14.6g}{scale * point['test_error']:>16.4g}")
    refused = f", {found['refused']} candidates refused as spanned by the chosen" if found["refused"] else ""
    lines.append(f"chosen in {found['wall_seconds']:.2f} s{refused}")
    asked = selection_size(select)
    if asked is not None and found["n_centers"] < asked:
        lines.append(f"{found['n_centers']} centers instead of {asked}: no other candidate adds anything")
    return lines


def _solve_table(solves: list[dict[str, Any]]) -> list[str]:
    lines = [
        "",
        f"{'output':<10}{'objective':>14}{'rel. gap':>11}{'active':>8}{'sweeps':>8}{'visits':>10}{'seconds':>9}",
    ]
    for one in solves:
        mark = "" if one["converged"] else "  not converged"
        lines.append(
            f"{_output_name(one):<10}{one['objective']:>14.6g}{one['relative_gap']:>11.1e}"
            f"{one['n_active']:>8}{one['sweeps']:>8}{one['visits']:>10}{one['wall_seconds']:>9.2f}{mark}"
        )
    return lines


def _error_words(errors: dict[str, Any], n_test: int) -> str:
    if errors["mse"] is None:
        return f"test error: {100 * errors['error_rate']:.2f} % ({errors['n_errors']} of {n_test})"
    return f"test mean squared error: {errors['mse']:.6g}"


def _kernel_words(report: dict[str, Any]) -> str:
    if report["kernel"] == "intersection":
        return "intersection kernel"
    kernel = "" if report["kernel"] == "gaussian" else f"{report['kernel']} kernel, "
    return f"{kernel}sigma2 {_list(report['sigma2'])}"


def _width_table(report: dict[str, Any]) -> list[str]:
    """Return the held-out errors of the widths that were tried, or how many centers have each width."""
    if report["sigma2_tried"]:
        rows = [
            f"{width:>8g}{'-' if error is None else format(error, '.6g'):>14}"
            for width, error in report["sigma2_tried"]
        ]
        return ["", f"{'sigma2':>8}{'held-out mse':>14}", *rows]
    counts = dict(report["model_sigma2"])
    return ["", f"{'sigma2':>8}{'centers':>9}", *(f"{w:>8g}{counts.get(w, 0):>9}" for w in report["sigma2"])]


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)

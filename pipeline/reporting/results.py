"""What a run has come to: report.json for programs, and a short table for people."""

import math
from typing import Any

import numpy as np

from features.target_transform import KINDS
from pipeline.config.parsers import selection_size
from pipeline.config.train_config import TrainConfig
from pipeline.datasets.feature_request import FeatureShape
from pipeline.kernels.scaled_rows import lengths
from pipeline.models.scores import Score, r_squared
from pipeline.prediction.labelled_scores import probability_words
from pipeline.prediction.model_folder import load_model
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.solvers.feature_scales import METRIC, importances, kind_of
from pipeline.stages import final_weights
from pipeline.stages.evaluate_model import Scores
from pipeline.stages.run_workspace import Run, in_order
from pipeline.stages.target_facts import held_out_rows
from storage.arrays import read_arrays

FORMAT_VERSION = 1
ROUNDED = "the gaps are of the kernel columns as float32 has them"


def build(run: Run, scores: Scores, peak_rss_bytes: int) -> dict[str, Any]:
    """Return the content of report.json of a run whose stages are done; what does not apply is None.

    `objective`, `relative_gap` and `n_active` of the solves are of the penalised weights; where a refit replaces these
    in the model, `penalised` has their test errors.
    """
    config, shape, solver = run.config, run.shape, run.config.solver
    final = final_weights.load(run.layout)
    summary = final.summary
    path_rounds = summary.get("path_rounds") or []
    selected = summary["selection"] is not None
    refitted = summary["ridge"] is not None and summary["penalty"] is not None
    moved = final.points is not None
    model, score = load_model(run.layout.model), scores.model
    widths = np.unique(model.center_sigma2, return_counts=True)
    return {
        "format_version": FORMAT_VERSION,
        "dataset": shape.dataset,
        "task": shape.task,
        "n_train": shape.n_train,
        "added_rows": list(shape.added),
        "n_test": shape.n_test,
        "n_features": shape.n_features,
        "features": config.features.name,
        "deskew": config.features.deskew,
        "power": config.features.power,
        "n_centers": run.n_candidates,
        "kernel": config.kernel.name,
        "sigma2": run.centers["sigma2"].tolist(),
        "sigma2_tried": _tried_widths(run),
        "model_sigma2": [[float(width), int(count)] for width, count in zip(*widths, strict=True)],
        "feature_scales": _feature_scales(run, model),
        "target_transform": _target_transform(run),
        "penalty": summary["penalty"],
        "coupling": ("shared" if selected else solver.coupling) if shape.task == "multiclass" else None,
        "select": solver.select if selected else None,
        "selection": _selection(summary["selection"], scores) if selected else None,
        "refit": "ridge" if summary["ridge"] is not None else None,
        "polish": summary.get("polish"),
        "intercept": solver.intercept,
        "tolerance": solver.tolerance,
        "precision": config.kernel.precision,
        "seed": config.seed,
        "weighting": _weighting(run),
        "converged": all(one["converged"] for one in summary["solves"]),
        **_errors(score, shape.task),
        "penalised": _errors(scores.penalised, shape.task) if refitted or moved else None,
        "warnings": _warnings(model, score, config),
        "probabilities": {**summary["temperature"], **score.calibration.numbers()} if score.calibration else None,
        "hold_out": _hold_out(run, summary),
        "path": summary["path"],
        "confusion": [list(row) for row in score.confusion] or None,
        "model_n_centers": model.n_centers,
        "passes": summary["passes"],
        "path_rounds": path_rounds or None,
        "columns": summary.get("columns"),
        "kernel_entries": sum(record["kernel_entries"] for record in [*path_rounds, *summary["passes"]])
        if summary["passes"]
        else shape.n_train * run.n_candidates,
        "peak_rss_bytes": peak_rss_bytes,
        "wall_seconds": sum(cost.wall_seconds for cost in run.costs.values()),
        "stages": {name: dict(vars(cost)) for name, cost in run.costs.items()},
        "solves": [{**one, "outputs": _labels(shape, one["outputs"])} for one in summary["solves"]],
    }


def _weighting(run: Run) -> dict[str, Any] | None:
    """Return where row weights are from, the factors of the classes, and whether test errors are weighted."""
    data, facts = run.config.data, run.facts
    if data.weights is None and data.class_weight is None:
        return None
    return {
        "weights": data.weights,
        "class_weight": data.class_weight,
        "class_factors": list(facts.class_factors) or None,
        "classes": list(run.shape.classes) if facts.class_factors else None,
        "test_weighted": "test" in run.shape.weighted,
    }


def _tried_widths(run: Run) -> list[list[float | None]] | None:
    """Return what `--sigma2 auto` tried: [width, mean squared held-out error] each, None where no fit was."""
    arrays = read_arrays(run.layout.centers, mapped=True)
    if "sigma2_tried" not in arrays:
        return None
    pairs = zip(arrays["sigma2_tried"].tolist(), arrays["hold_out_errors"].tolist(), strict=True)
    return [[width, error if np.isfinite(error) else None] for width, error in pairs]


def _target_transform(run: Run) -> dict[str, Any] | None:
    """Return the transform of the targets, and the held-out error of each kind that was tried; None without either."""
    transform, errors = run.facts.transform, run.centers.get("transform_errors")
    if transform is None and errors is None:
        return None
    tried = {} if errors is None else dict(zip(KINDS, errors.tolist(), strict=True))
    return {
        "kind": "none" if transform is None else transform.kind,
        "hold_out_errors": {kind: error if math.isfinite(error) else None for kind, error in tried.items()} or None,
    }


def _feature_scales(run: Run, model: SparseKernelModel) -> dict[str, Any] | None:
    """Return the learned scales (of a metric, lengths) with names, importances and the held-out error of each round."""
    if model.feature_scales is None:
        return None
    stored, columns = read_arrays(run.layout.feature_scales), model.table_columns
    errors = [error if np.isfinite(error) else None for error in stored["hold_out_errors"].tolist()]
    return {
        "kind": kind_of(model.feature_scales),
        "scales": lengths(model.feature_scales).tolist(),
        "importances": importances(model.feature_scales).tolist(),
        "names": list(columns.input_names) if columns is not None and columns.input_names else None,
        "hold_out_errors": errors,
        "chosen_round": int(stored["chosen"]),
    }


def names_by_importance(scales: dict[str, Any], most: int) -> list[tuple[str, float]]:
    """Return the names and the importances of the most important features of a report, the largest first."""
    shares = scales["importances"]
    order = sorted(range(len(shares)), key=lambda j: -shares[j])[:most]
    names = scales["names"]
    return [(names[j] if names else f"feature {j}", shares[j]) for j in order]


def _selection(selection: dict[str, Any], scores: Scores) -> dict[str, Any]:
    """Return the selection with the test error of every size: the share of errors, or the mean squared error."""
    counted, spread = scores.model.counted, scores.model.target_spread
    errors = [error / counted for error in scores.prefixes]
    r2 = [r_squared(error * counted, spread) for error in errors]
    curve = zip(selection["curve"], errors, r2, strict=True)
    return {**selection, "curve": [{**point, "test_error": error, "test_r2": one} for point, error, one in curve]}


def _errors(score: Score, task: str) -> dict[str, Any]:
    if task == "regression":
        return {"error_rate": None, "n_errors": None, "mse": score.mse, "rmse": score.rmse, "r2": score.r2}
    nothing = dict.fromkeys(("mse", "rmse", "r2"))
    return {"error_rate": score.error_rate, "n_errors": score.n_errors, **nothing}


def _warnings(model: SparseKernelModel, score: Score, config: TrainConfig) -> list[str]:
    """Return a line for a model no better on the test part than the best constant: what it is, and what to try."""
    if not model.n_centers:
        return ["the model has no centers and predicts the same for every row; lower --penalty, or --penalty auto"]
    untried = {
        "--sigma2 auto": model.kernel.has_width and config.kernel.sigma2 != "auto",
        "--penalty auto": config.solver.select == "none" and not isinstance(config.solver.penalty, str),
        "--intercept": not config.solver.intercept,
        "--set data.target_transform=auto": model.task == "regression" and model.target_transform is None,
    }
    advice = "try " + (", ".join(flag for flag, left in untried.items() if left) or "other inputs, or more rows")
    if model.target_transform is not None:
        advice = "outliers rule squared errors: look at the mean absolute error that evaluate tells"
    if score.r2 is not None and score.r2 <= 0:
        return [f"the model is no better on the test part than its mean (R2 {score.r2:.3g}); {advice}"]
    counts = [sum(row) for row in score.confusion]
    if config.data.class_weight is None and counts and score.n_errors and score.n_errors >= score.rows - max(counts):
        label, rate = model.labels[counts.index(max(counts))], 100 * (1 - max(counts) / score.rows)
        return [f"the model is no better on the test part than {label!r} for every row ({rate:.2f} % error); {advice}"]
    return []


def _hold_out(run: Run, summary: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the held-out rows decided: the penalty's error along the path, the ridge and its errors."""
    if summary["path"] is None and summary["ridge"] is None:
        return None
    chosen = [point["hold_out_error"] for point in summary["path"] or [] if point["penalty"] == summary["penalty"]]
    return {
        "fraction": run.config.statistics.hold_out,
        "n_rows": int(np.count_nonzero(held_out_rows(run, run.facts))),
        "error": chosen[0] if chosen else None,
        "ridge": summary["ridge"],
        "ridges": summary["ridges"],
    }


def _labels(shape: FeatureShape, outputs: list[int]) -> list[Any]:
    """Return the labels that outputs serve: the classes, the second of two, or y."""
    if shape.task == "multiclass":
        return [shape.classes[output] for output in outputs]
    return [shape.classes[1] if shape.task == "binary" else "y"]


def table(report: dict[str, Any]) -> list[str]:
    """Return the report as short tables: setting, path or selection, solves, stages, model, error."""
    added = sum(report.get("added_rows", ()))
    lines = [
        f"{report['dataset']}: {report['n_train']} training rows{f' ({added} added)' if added else ''}, "
        f"{report['n_test']} test rows, "
        f"{report['n_features']} {report['features']} features, {report['task']}",
        f"{report['n_centers']} candidate centers, {_kernel_words(report)}, " + _problem_words(report),
    ]
    lines += weighting_lines(report) + transform_lines(report)
    lines += _path_table(report["path"]) if report["path"] else []
    lines += _selection_table(report["selection"], report["select"], report["task"]) if report["selection"] else []
    lines += _solve_table(report["solves"]) if report["solves"] else []
    lines += [ROUNDED] if report["solves"] and report.get("precision") == "float32" else []
    lines += _width_table(report) if report["sigma2_tried"] or len(report["sigma2"]) > 1 else []
    lines += ["", *_scale_lines(report["feature_scales"])] if report.get("feature_scales") else []
    lines += ["", f"{'stage':<12}{'wall s':>9}{'CPU s':>9}{'items':>8}"]
    for name, cost in in_order(report["stages"]).items():
        lines.append(f"{name:<12}{cost['wall_seconds']:>9.2f}{cost['cpu_seconds']:>9.2f}{cost['items']:>8}")
    lines += ["", f"model: {report['model_n_centers']} centers; peak memory {report['peak_rss_bytes'] / 2**20:.0f} MiB"]
    if columns := report.get("columns"):
        made = f"{columns['on_the_fly']} columns made on the fly, {columns['materialised']} materialised"
        lines.append(f"{made} for {columns['active']} active of {columns['candidates']}")
    lines += [polish_words(report["polish"])] if report.get("polish") else []
    if report["penalised"]:
        lines.append(f"{before_words(report)}: {_error_words(report['penalised'], report)}")
    lines.append(_error_words(report, report))
    if numbers := report["probabilities"]:
        seen = ", found with weights that had seen the held-out rows" if numbers["seen"] else ""
        lines.append(f"{probability_words(numbers)} (temperature {numbers['temperature']:.3g}{seen})")
    return lines + not_converged(report) + warnings(report)


def weighting_lines(report: dict[str, Any]) -> list[str]:
    """Return how rows are weighted, where they are."""
    if (weighting := report["weighting"]) is None:
        return []
    words = [] if weighting["weights"] is None else [f"rows by {weighting['weights']}"]
    if weighting["class_factors"] is not None:
        pairs = list(zip(weighting["classes"], weighting["class_factors"], strict=True))
        shown = ", ".join(f"{label}: {factor:.3g}" for label, factor in pairs[:10])
        words.append(f"classes {weighting['class_weight']} ({shown}{', ...' if len(pairs) > 10 else ''})")
    counted = "" if weighting["test_weighted"] else "; every row of the test part counts the same"
    return [f"weights: {', '.join(words)}{counted}"]


def transform_lines(report: dict[str, Any]) -> list[str]:
    """Return how the targets were transformed, where they were or might have been, and what is in which units."""
    if (transform := report.get("target_transform")) is None:
        return []
    words, tried = f"targets: {transform['kind']} transform", transform["hold_out_errors"] or {}
    shown = [f"{kind} {error:.4g}" for kind, error in tried.items() if error is not None]
    words += f", by held-out error ({', '.join(shown)})" if shown else ""
    units = (
        "" if transform["kind"] == "none" else "; penalties, objectives, all other held-out errors are of its scores"
    )
    return [words + units]


def by_weight(report: dict[str, Any]) -> str:
    """Return what is said of test errors whose rows are weighted, else nothing."""
    return " by weight" if (report.get("weighting") or {}).get("test_weighted") else ""


def warnings(report: dict[str, Any]) -> list[str]:
    """Return the warnings as lines."""
    return [f"WARNING: {line}" for line in report["warnings"]]


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


def _selection_table(selection: dict[str, Any], select: str, task: str) -> list[str]:
    """Return the curve of errors against sizes, at a dozen of its sizes."""
    curve = selection["curve"]
    places = sorted({round(k) for k in np.linspace(0, len(curve) - 1, 12)})
    values = task == "regression"
    name, scale = ("test mse", 1.0) if values else ("test error, %", 100.0)
    lines = ["", f"{'centers':>8}{'held-out mse':>14}{name:>16}" + (f"{'RMSE':>12}{'R2':>9}" if values else "")]
    for point in (curve[k] for k in places):
        error, r2 = point["test_error"], point.get("test_r2")
        line = f"{point['size']:>8}{point['hold_out_error']:>14.6g}{scale * error:>16.4g}"
        line += f"{math.sqrt(error):>12.4g}" if values else ""
        lines.append(line + ("" if r2 is None else f"{r2:>9.4f}"))
    refused = f", {selection['refused']} candidates refused as spanned by the chosen" if selection["refused"] else ""
    lines.append(f"chosen in {selection['wall_seconds']:.2f} s{refused}")
    asked = selection_size(select)
    if asked is not None and selection["n_centers"] < asked:
        lines.append(f"{selection['n_centers']} centers instead of {asked}: no other candidate adds anything")
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


def before_words(report: dict[str, Any]) -> str:
    """Return what the `penalised` scores of a report, one that has them, came before: refit, moves of centers, both."""
    done = {
        "before the refit": report["refit"] is not None and report["penalty"] is not None,
        "before the centers moved": bool((report.get("polish") or {}).get("kept_step")),
    }
    return " and ".join(words for words, was in done.items() if was)


def polish_words(polish: dict[str, Any]) -> str:
    """Return what became of moved centers."""
    before, kept = polish["held_out_errors"][0], polish["kept_step"]
    after = f"{before:.6g} to {polish['held_out_after']:.6g}" if kept else f"{before:.6g}: none lowers it"
    return f"centers moved: {kept} of {polish['steps']} steps kept, held-out mse {after}"


def _error_words(errors: dict[str, Any], report: dict[str, Any]) -> str:
    by = by_weight(report)
    if errors["mse"] is None:
        return f"test error{by}: {100 * errors['error_rate']:.2f} % ({errors['n_errors']} of {report['n_test']})"
    rmse = "" if errors["rmse"] is None else f", RMSE {errors['rmse']:.6g}"
    r2 = "" if errors["r2"] is None else f", R2 {errors['r2']:.4f}"
    return f"test mean squared error{by}: {errors['mse']:.6g}{rmse}{r2}"


def _problem_words(report: dict[str, Any]) -> str:
    if report["select"]:
        return f"select {report['select']}"
    if report["penalty"] is None:
        return f"least squares on all, ridge {report['hold_out']['ridge']:.3g}"
    return f"penalty {report['penalty']:g}"


def _kernel_words(report: dict[str, Any]) -> str:
    if report["kernel"] == "intersection":
        return "intersection kernel"
    kernel = "" if report["kernel"] == "gaussian" else f"{report['kernel']} kernel, "
    return f"{kernel}sigma2 {', '.join(f'{width:g}' for width in report['sigma2'])}"


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


def _scale_lines(scales: dict[str, Any]) -> list[str]:
    """Return which round of learned scales was taken, and the inputs that matter most."""
    errors, chosen = scales["hold_out_errors"], scales["chosen_round"]
    if not chosen:
        return [f"feature scales: none, {len(errors) - 1} rounds gained nothing on held-out rows"]
    most = ", ".join(f"{name} {100 * share:.3g} %" for name, share in names_by_importance(scales, 5))
    gain = f"held-out mse {errors[0]:.6g} to {errors[chosen]:.6g}"
    what = "feature metric" if scales["kind"] == METRIC else "feature scales"
    return [f"{what}: of round {chosen} of {len(errors) - 1}, {gain}; most important: {most}"]

"""What a run has come to: the content of report.json; `result_table` makes a table of it."""

from typing import Any

import numpy as np

from pipeline.config.train_config import TrainConfig
from pipeline.kernels.kernel_functions import KERNELS
from pipeline.kernels.scaled_rows import lengths
from pipeline.prediction.model_folder import load_model
from pipeline.prediction.trained_model import SparseKernelModel
from pipeline.solvers.kernel_trials import SCALE_KINDS, importances
from pipeline.stages.filled_settings import value_dtype
from pipeline.stages.run_workspace import Run, load_final
from storage.arrays import read_arrays

FORMAT_VERSION = 1
ERRORS = ("error_rate", "n_errors", "mse", "rmse", "r2")


def build(run: Run, scores: dict[str, Any], peak_rss_bytes: int) -> dict[str, Any]:
    """Return the content of report.json of a run whose stages are done; what does not apply is None.

    `objective`, `relative_gap` and `n_active` of the solves are of the penalised weights; where a refit replaces these
    in the model, `penalised` has their test errors.
    """
    config, shape, solver = run.config, run.shape, run.config.solver
    final = load_final(run.layout)
    summary = final.summary
    refitted = summary["ridge"] is not None and summary["penalty"] is not None
    moved = final.points is not None
    model, score, selection = load_model(run.layout.model), scores["model"], summary["selection"]
    if selection is not None:
        curve = zip(selection["curve"], scores["prefixes"], strict=True)
        selection = {**selection, "curve": [of_size | errors for of_size, errors in curve]}
    return {
        "format_version": FORMAT_VERSION,
        **{name: getattr(shape, name) for name in ("dataset", "task", "n_train", "n_test", "n_features")},
        "features": config.features.name,
        "deskew": config.features.deskew,
        "power": config.features.power,
        "n_centers": run.n_candidates,
        "kernel": model.kernel.name,
        "kernels_tried": _tried_kernels(run),
        "sigma2": model.sigma2,
        "feature_scales": _feature_scales(run, model),
        **{name: summary[name] for name in ("penalty", "path", "rounds")},
        "select": None if selection is None else solver.select,
        "selection": selection,
        "refit": "ridge" if summary["ridge"] is not None else None,
        **{name: summary.get(name) for name in ("moves", "columns")},
        "intercept": solver.intercept,
        "tolerance": solver.tolerance,
        "precision": value_dtype(config, run.shape),
        "seed": config.seed,
        "weighting": _weighting(run),
        "converged": all(one["converged"] for one in summary["solves"]),
        **{name: score[name] for name in (*ERRORS, "baseline", "by_class")},
        "penalised": {name: scores["penalised"][name] for name in ERRORS} if refitted or moved else None,
        "warnings": _warnings(model, score, config),
        "probabilities": score["probabilities"] and {**summary["temperature"], **score["probabilities"]},
        "hold_out": _hold_out(run, summary),
        "confusion": score["confusion"],
        "model_n_centers": model.n_centers,
        "kernel_entries": sum(record["kernel_entries"] for record in summary["rounds"])
        if summary["rounds"]
        else shape.n_train * run.n_candidates,
        "peak_rss_bytes": peak_rss_bytes,
        "wall_seconds": sum(cost.wall_seconds for cost in run.costs.values()),
        "stages": {name: dict(vars(cost)) for name, cost in run.costs.items()},
        "solves": [{**one, "output": model.output_labels[one["output"]]} for one in summary["solves"]],
    }


def _weighting(run: Run) -> dict[str, Any] | None:
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


def _tried_kernels(run: Run) -> list[dict[str, Any]] | None:
    """Return the best width of each kernel and kind of scales that were tried: of all, then of those that decide.

    Those that decide are told once, also where they were found on as many candidates as all.
    """
    if "tried" not in run.choices:
        return None
    best: dict[tuple[float, ...], list[float]] = {}
    for record in sorted(run.choices["tried"].tolist(), key=lambda record: -record[4]):
        best[record[6], record[2], *record[:2]] = record
    chosen = float(run.choices["kernel"]), float(run.choices["kind"])
    decided = max((key for key in best if key[0] and key[2:] == chosen), default=None)  # that on most candidates
    return [
        {
            "kernel": KERNELS[int(kernel)].name,
            "scales": SCALE_KINDS[int(kind)],
            "n_centers": int(m),
            "sigma2": sigma2,
            "hold_out_error": error if np.isfinite(error) else None,
            "chosen": key == decided,
        }
        for key, (kernel, kind, m, sigma2, error, *_) in sorted(best.items())
        if key[0] or (1.0, *key[1:]) not in best
    ]


def _feature_scales(run: Run, model: SparseKernelModel) -> dict[str, Any] | None:
    """Return the learned scales (of a metric, lengths) with names, importances and the held-out error of each round."""
    if model.feature_scales is None:
        return None
    stored, columns = read_arrays(run.layout.feature_scales), model.table_columns
    errors = [error if np.isfinite(error) else None for error in stored["hold_out_errors"].tolist()]
    return {
        "kind": SCALE_KINDS[int(run.choices["kind"])],
        "scales": lengths(model.feature_scales).tolist(),
        "importances": importances(model.feature_scales).tolist(),
        "names": list(columns.input_names) if columns is not None and columns.input_names else None,
        "hold_out_errors": errors,
        "chosen_round": int(stored["chosen"]),
    }


def _warnings(model: SparseKernelModel, score: dict[str, Any], config: TrainConfig) -> list[str]:
    if not model.n_centers:
        return ["the model has no centers and predicts the same for every row; lower --penalty, or --penalty auto"]
    untried = [] if config.kernel.sigma2 == "auto" else ["--sigma2 auto"]
    untried += ["--penalty auto"] if config.solver.is_penalised and not isinstance(config.solver.penalty, str) else []
    advice = "try " + (", ".join(untried) or "other inputs, or more rows")
    if score["r2"] is not None and score["r2"] <= 0:
        return [f"the model is no better on the test part than its mean (R2 {score['r2']:.3g}); {advice}"]
    counts = [sum(row) for row in score["confusion"] or ()]
    if config.data.class_weight is None and score["n_errors"] and score["n_errors"] >= sum(counts) - max(counts):
        label, rate = model.labels[counts.index(max(counts))], 100 * (1 - max(counts) / sum(counts))
        return [f"the model is no better on the test part than {label!r} for every row ({rate:.2f} % error); {advice}"]
    return []


def _hold_out(run: Run, summary: dict[str, Any]) -> dict[str, Any] | None:
    if summary["path"] is None and summary["ridge"] is None:
        return None
    chosen = [point["hold_out_error"] for point in summary["path"] or [] if point["penalty"] == summary["penalty"]]
    return {
        "n_rows": run.shape.n_train if run.facts.by_folds else run.facts.n_held_out_rows,
        "error": chosen[0] if chosen else None,
        "ridge": summary["ridge"],
        "ridges": summary["ridges"],
    }

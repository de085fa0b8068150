"""The results of a run, the content of report.json; `run_facts` makes a table of them."""

from typing import Any

import numpy as np

from pipeline.config.train_config import NO_PENALTY, TrainConfig
from pipeline.fit.filled_settings import LARGEST_PENALTY, value_dtype
from pipeline.fit.workspace import Run, Workspace
from pipeline.kernels.kernel_functions import lengths
from pipeline.prediction.ranking import NO_RANKING
from pipeline.prediction.scores import ERROR_NAMES
from pipeline.prediction.trained_model import SparseKernelModel, load_model
from pipeline.reporting.run_facts import missed_words
from pipeline.solvers.kernel_trials import PLAIN, SCALE_KINDS, importances

FORMAT_VERSION = 1


def build(run: Run, scores: dict[str, Any]) -> dict[str, Any]:
    """Return the content of report.json of a run whose stages are done; what does not apply is None.

    The `objective`, `relative_gap` and `n_active` of a solve belong to the penalised weights; where a refit replaces
    these in the model, `penalised` has their test errors.
    """
    work = run.work
    config, shape, solver, final = work.config, work.shape, work.config.solver, work.final
    assert final is not None
    summary = final.summary
    refitted = summary["ridge"] is not None and summary["penalty"] is not None
    moved, rounds, n_entries = final.points is not None, summary["rounds"], shape.n_train * work.n_candidates
    model, score, selection = load_model(run.layout.model), scores["model"], summary["selection"]
    if selection is not None:
        curve = zip(selection["curve"], scores["prefixes"], strict=True)
        selection = {**selection, "curve": [of_size | errors for of_size, errors in curve]}
    return {
        "format_version": FORMAT_VERSION,
        **{name: getattr(shape, name) for name in ("dataset", "task", "n_train", "n_test", "n_features")},
        "features": config.features.name,
        "deskew": config.features.deskew,
        "n_centers": work.n_candidates,
        "kernel": model.kernel.name,
        "kernels_tried": _tried_kernels(work.choice),
        "sigma2": model.sigma2,
        "feature_scales": _feature_scales(work, model),
        **{name: summary[name] for name in ("penalty", "path", "rounds")},
        "select": None if selection is None else solver.select,
        "selection": selection,
        "refit": "ridge" if summary["ridge"] is not None else None,
        **{name: summary.get(name) for name in ("moves", "columns")},
        "intercept": solver.intercept,
        "tolerance": solver.tolerance,
        "precision": value_dtype(config, shape),
        "seed": config.seed,
        "weighting": _weighting(work),
        "converged": all(one["converged"] for one in summary["solves"]),
        **{name: score[name] for name in (*ERROR_NAMES, "baseline", "by_class", "coverage", *NO_RANKING)},
        "penalised": {name: scores["penalised"][name] for name in ERROR_NAMES} if refitted or moved else None,
        "warnings": _warnings(model, score, config),
        "probabilities": score["probabilities"] and {**summary["temperature"], **score["probabilities"]},
        "hold_out": _hold_out(work, summary),
        "confusion": score["confusion"],
        "model_n_centers": model.n_centers,
        "kernel_entries": sum(record["kernel_entries"] for record in rounds) if rounds else n_entries,
        "peak_rss_bytes": run.events.meter.peak_bytes,
        "wall_seconds": sum(cost.wall_seconds for cost in run.events.costs.values()),
        "stages": {name: dict(vars(cost)) for name, cost in run.events.costs.items()},
        "solves": [{**one, "output": model.output_labels[one["output"]]} for one in summary["solves"]],
    }


def _weighting(work: Workspace) -> dict[str, Any] | None:
    data, facts = work.config.data, work.facts
    if data.weights is None and data.class_weight is None:
        return None
    return {
        "weights": data.weights,
        "class_weight": data.class_weight,
        "class_factors": list(facts.class_factors) or None,
        "test_weighted": "test" in work.shape.weighted,
    }


def _tried_kernels(choice: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the best width of each kernel and kind of scales that was tried, for each number of candidates."""
    if "tried" not in choice:
        return None
    best: dict[tuple[int, str, int], dict[str, Any]] = {}
    for trial in sorted(choice["tried"], key=lambda trial: -trial["error"]):
        best[trial["n_centers"], trial["kernel"], SCALE_KINDS.index(trial["scales"])] = trial
    chosen = choice["n_centers"], choice["kernel"], SCALE_KINDS.index(choice["scales"])
    return [
        {
            **{name: trial[name] for name in ("kernel", "scales", "n_centers", "sigma2")},
            "hold_out_error": trial["error"] if np.isfinite(trial["error"]) else None,
            "chosen": key == chosen and not choice["constant"],
        }
        for key, trial in sorted(best.items(), key=lambda item: item[0])
    ]


def _feature_scales(work: Workspace, model: SparseKernelModel) -> dict[str, Any] | None:
    """Return the learned scales (of a metric, lengths), with names and importances, and what they have gained."""
    if model.feature_scales is None:
        return None
    choice, columns = work.choice, model.table_columns
    plain = (one for one in choice["tried"] if one["scales"] == PLAIN and one["n_centers"] == choice["n_centers"])
    return {
        "kind": choice["scales"],
        "scales": lengths(model.feature_scales).tolist(),
        "importances": importances(model.feature_scales).tolist(),
        "names": list(columns.input_names) if columns is not None and columns.input_names else None,
        "hold_out_error": choice["error"],
        "hold_out_error_without": min((one["error"] for one in plain if np.isfinite(one["error"])), default=None),
    }


def _warnings(model: SparseKernelModel, score: dict[str, Any], config: TrainConfig) -> list[str]:
    if not model.n_centers:
        fault, asked = "the model has no centers and predicts the same for every row", config.solver.penalty
        if asked in (NO_PENALTY, LARGEST_PENALTY):
            return [f"{fault}: by held-out rows nothing tells more; give more rows, or other inputs"]
        return [f"{fault}; lower `solver.penalty`, or give `solver.penalty=auto`"]
    untried = [] if config.kernel.sigma2 == "auto" else ["`kernel.sigma2=auto`"]
    if config.solver.is_penalised and not isinstance(config.solver.penalty, str):
        untried.append("`solver.penalty=auto`")
    advice = "try " + (", ".join(untried) or "other inputs, or more rows")
    if score["r2"] is not None and score["r2"] <= 0:
        return [f"the model is no better on the test part than its mean (R2 {score['r2']:.3g}); {advice}"]
    counts = [sum(row) for row in score["confusion"] or ()]
    if config.data.class_weight is None and score["n_errors"] and score["n_errors"] >= sum(counts) - max(counts):
        label, rate = model.labels[counts.index(max(counts))], 100 * (1 - max(counts) / sum(counts))
        if (auc := score["roc_auc"]) is not None and auc > 0.5:
            ranks = f"its ROC AUC is {auc:.3g}, which asks how well it ranks rows"
            advice = f"{ranks}; `data.class_weight=balanced` finds more rows of rare classes"
        return [f"the model is no better on the test part than {label!r} for every row ({rate:.2f} % error); {advice}"]
    return missed_words(score["by_class"]) if score["by_class"] and config.data.class_weight is None else []


def _hold_out(work: Workspace, summary: dict[str, Any]) -> dict[str, Any] | None:
    if summary["path"] is None and summary["ridge"] is None:
        return None
    chosen = [point["hold_out_error"] for point in summary["path"] or [] if point["penalty"] == summary["penalty"]]
    return {
        "n_rows": work.shape.n_train if work.facts.by_folds else work.facts.n_held_out_rows,
        "error": chosen[0] if chosen else None,
        "ridge": summary["ridge"],
        "ridges": summary["ridges"],
    }

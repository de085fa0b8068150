"""What a run has come to: report.json for programs, and a short table for people."""

from typing import Any

from pipeline.model_folder import load_model
from pipeline.stages import solve, statistics
from pipeline.stages.evaluate import Score
from pipeline.stages.run import Run

FORMAT_VERSION = 1


def build(run: Run, score: Score, peak_rss_bytes: int) -> dict[str, Any]:
    """Return the content of report.json of a run whose stages are done; what does not apply is None."""
    config, shape = run.config, run.shape
    solves = solve.summaries(run.layout, shape.n_outputs)
    classify = shape.task != "regression"
    labels = list(shape.classes) if shape.task == "multiclass" else [shape.classes[1] if classify else "y"]
    return {
        "format_version": FORMAT_VERSION,
        "dataset": shape.dataset,
        "task": shape.task,
        "n_train": shape.n_train,
        "n_test": shape.n_test,
        "n_features": shape.n_features,
        "features": config.features.name,
        "n_centers": statistics.n_centers(run),
        "sigma2": [config.kernel.sigma2],
        "penalty": config.solver.penalty,
        "coupling": "one-vs-all" if shape.task == "multiclass" else None,
        "select": None,
        "refit": None,
        "intercept": False,
        "tolerance": config.solver.tolerance,
        "seed": config.seed,
        "converged": all(one["converged"] for one in solves),
        "error_rate": score.n_errors / score.rows if classify else None,
        "n_errors": score.n_errors if classify else None,
        "mse": None if classify else score.squared_error / score.rows,
        "hold_out": None,
        "path": None,
        "confusion": [list(row) for row in score.confusion] if classify else None,
        "model_n_centers": load_model(run.layout.model).n_centers,
        "kernel_entries": statistics.kernel_entries(run.layout),
        "peak_rss_bytes": peak_rss_bytes,
        "wall_seconds": sum(cost.wall_seconds for cost in run.costs.values()),
        "stages": {name: dict(vars(cost)) for name, cost in run.costs.items()},
        "solves": [{"outputs": [label], **one} for label, one in zip(labels, solves, strict=True)],
    }


def table(report: dict[str, Any]) -> list[str]:
    """Return the report as a short table: error, gaps, sizes, stage times."""
    lines = [
        f"{report['dataset']}: {report['n_train']} training rows, {report['n_test']} test rows, "
        f"{report['n_features']} {report['features']} features",
        f"{report['n_centers']} candidate centers, sigma2 {_list(report['sigma2'])}, penalty {report['penalty']:g}",
        "",
        f"{'output':<10}{'objective':>14}{'rel. gap':>11}{'active':>8}{'sweeps':>8}{'visits':>10}{'seconds':>9}",
    ]
    for one in report["solves"]:
        mark = "" if one["converged"] else "  not converged"
        lines.append(
            f"{one['outputs'][0]!s:<10}{one['objective']:>14.6g}{one['relative_gap']:>11.1e}"
            f"{one['n_active']:>8}{one['sweeps']:>8}{one['visits']:>10}{one['wall_seconds']:>9.2f}{mark}"
        )
    lines += ["", f"{'stage':<12}{'wall s':>9}{'CPU s':>9}{'items':>8}"]
    for name, cost in report["stages"].items():
        lines.append(f"{name:<12}{cost['wall_seconds']:>9.2f}{cost['cpu_seconds']:>9.2f}{cost['items']:>8}")
    lines += ["", f"model: {report['model_n_centers']} centers; peak memory {report['peak_rss_bytes'] / 2**20:.0f} MiB"]
    if report["mse"] is None:
        lines.append(f"test error: {100 * report['error_rate']:.2f} % ({report['n_errors']} of {report['n_test']})")
    else:
        lines.append(f"test mean squared error: {report['mse']:.6g}")
    if not report["converged"]:
        lines.append(
            f"NOT CONVERGED: the relative gap {report['tolerance']:g} was not reached within the sweeps allowed; "
            "raise --max-sweeps or --tol"
        )
    return lines


def _list(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)

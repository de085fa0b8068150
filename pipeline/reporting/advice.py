"""What a user may do next about a run: a few sentences that its own numbers bear out, each with the option to give."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipeline.config.parsers import selection_size
from pipeline.solvers.solve import Status

NOTHING = "Nothing stands out: no number of this run asks for another one."
KEPT = 0.9  # of the candidates: a model that keeps so many may need more
GAIN = 0.02  # of a held-out error; less is no gain
LEAST_CONFUSED, LEAST_SHARE = 5, 0.1  # rows, and their share of the errors, that make a confusion worth naming
MOST_CONFUSIONS = 2


def advice(report: Mapping[str, Any], settings: Mapping[str, Any]) -> list[str]:
    """Return sentences on a finished run; `settings` as in config.toml."""
    told = [f"{line[0].upper()}{line[1:]}." for line in (*report["warnings"], *report["notes"])]
    if report["model_n_centers"]:
        told = [*_not_converged(report, settings), *told, *_penalty(report), *_width(report)]
        told += [*_ridge(report), *_more(report, settings), *_confused(report)]
    return told or [NOTHING]


def of_unfinished(facts: Mapping[str, Any], error: str | None) -> list[str]:
    """Return a sentence on a run that is not done, with the last line of the error that ended it."""
    if facts["state"] == "running":
        return ["The run is under way: write this page again to see more of it."]
    if facts["state"] != "failed":
        return [f"The run was {facts['state']}; continue it with: {facts['resume']}"]
    return [
        f"The run failed: {error or facts['last_error']}",
        f"Once that is mended, continue it with: {facts['resume']}",
    ]


def _not_converged(report: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    missed = [one for one in report["solves"] if not one["converged"]]
    if not missed:
        return
    worst = max(missed, key=lambda one: float(one["relative_gap"]))
    options = {
        Status.SWEEP_LIMIT.value: f"--max-sweeps {2 * settings.get('solver', {}).get('max_sweeps', 1000)}",
        Status.PAPER_RULE.value: "--set solver.stop=gap",
    }
    option = options.get(worst["status"], f"--penalty {10 * (report['penalty'] or 0.01):.3g}")
    yield (
        f"{len(missed)} of {len(report['solves'])} solves did not converge (relative gap {worst['relative_gap']:.1e}, "
        f"tolerance {report['tolerance']:g}): give {option}."
    )


def _penalty(report: Mapping[str, Any]) -> Iterator[str]:
    """Advise on a path whose lowest held-out error is not at the penalty of the model, or at the smallest penalty."""
    path = [(one["penalty"], one["hold_out_error"]) for one in report["path"] or [] if one["converged"]]
    if len(path) < 2 or len(path) < len(report["path"]):
        return  # smaller penalties than these do not converge
    (before, smallest), chosen = sorted(path)[1::-1], dict(path).get(report["penalty"])
    best, lowest = min(path, key=lambda one: one[1])
    if chosen is not None and lowest < (1 - GAIN) * chosen:
        yield f"The held-out error is lowest at the penalty {best:.4g}: give --penalty {best:.4g}, or --penalty auto."
    elif best == smallest[0] and smallest[1] < (1 - GAIN) * before[1]:
        yield (
            f"The held-out error still falls at the smallest penalty, {best:.3g}: give --penalty auto, "
            f"or go on with --penalty path:{best:.3g}:{best / 100:.3g}:5."
        )


def _width(report: Mapping[str, Any]) -> Iterator[str]:
    """Advise on a width at an edge of those that were tried, or of those that the candidates have."""
    tried = [width for width, error in report.get("sigma2_tried") or [] if error is not None]
    widths, counts = sorted(report["sigma2"]), dict(report["model_sigma2"])
    if len(widths) > 1:
        chosen = max(widths, key=lambda width: int(counts.get(width, 0)))
        if 2 * counts.get(chosen, 0) > report["model_n_centers"] and chosen in (widths[0], widths[-1]):
            wider = chosen == widths[-1]
            more = [*widths, 2 * chosen] if wider else [chosen / 2, *widths]
            yield (
                f"Most centers have the {'largest' if wider else 'smallest'} σ², {chosen:g}: "
                f"give --sigma2 {','.join(f'{width:g}' for width in more)}."
            )
    elif len(tried) > 1 and widths[0] in (min(tried), max(tried)):
        wider = widths[0] == max(tried)
        yield (
            f"The chosen σ², {widths[0]:g}, is the {'largest' if wider else 'smallest'} that was tried: "
            f"give --sigma2 {widths[0] * (4 if wider else 0.25):g}."
        )


def _ridge(report: Mapping[str, Any]) -> Iterator[str]:
    ridges = (report["hold_out"] or {}).get("ridges") or []
    if len(ridges) > 1 and report["kernels_tried"] is None and report["kernel"] != "intersection":
        best, _ = min(ridges, key=lambda one: float(one[1]))
        if best == max(fraction for fraction, _ in ridges):
            yield "The held-out error is lowest at the largest ridge that was tried: give --sigma2 auto."


def _more(report: Mapping[str, Any], settings: Mapping[str, Any]) -> Iterator[str]:
    """Advise more candidates, or centers of a selection, where what there are seem too few."""
    candidates, rows, centers = report["n_centers"], report["n_train"], settings.get("centers", {})
    if report["select"]:
        curve, asked = report["selection"]["curve"], selection_size(report["select"])
        if asked and asked == report["selection"]["n_centers"] < candidates and len(curve) > 3:
            half, last = curve[len(curve) // 2], curve[-1]
            if last["hold_out_error"] < (1 - GAIN) * half["hold_out_error"]:
                yield (
                    f"The held-out error still falls with the number of centers: "
                    f"give --select greedy:{min(2 * asked, candidates)}."
                )
    elif candidates < rows and report["error_rate"] != 0 and report["model_n_centers"] >= KEPT * candidates:
        if (budget := centers.get("budget")) is None:
            if report["penalty"] is None:
                return  # least squares keeps all: that says nothing
            more = "all" if 2 * candidates >= rows else str(2 * candidates)
            yield (
                f"The model keeps {report['model_n_centers']} of {candidates} candidates: more may lower the error; "
                f"give --centers {more}."
            )
        elif candidates == centers.get("count"):
            yield f"The error may fall with more candidates than the budget allows: give --budget {2 * budget:g}."


def _confused(report: Mapping[str, Any]) -> Iterator[str]:
    matrix, n_errors = report["confusion"] or [], report["n_errors"] or 0
    wrong = [(count, j, k) for j, row in enumerate(matrix) for k, count in enumerate(row) if j != k]
    most = [one for one in sorted(wrong, key=lambda one: (-one[0], *one[1:])) if one[0] >= LEAST_CONFUSED]
    most = [one for one in most if one[0] >= LEAST_SHARE * n_errors][:MOST_CONFUSIONS] if len(matrix) > 2 else []
    if most:
        labels = [one["label"] for one in report["by_class"]]
        pairs = [f"{labels[j]} taken for {labels[k]} ({count} of {sum(matrix[j])} rows)" for count, j, k in most]
        yield f"Classes confused most: {', '.join(pairs)}; more rows of these may help."

"""The state of a run, or its end: facts for programs, lines and short tables for people.

Reads only, and takes no lock.
"""

import math
import os
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from features.words import counted, printable
from pipeline.config.command_line import program
from pipeline.config.settings import worded
from pipeline.errors import ExitCode, MissingRunError
from pipeline.runtime.console import describe
from pipeline.runtime.progress import Progress, duration
from pipeline.runtime.run_folder import frozen_config, read_environment, resume_command
from storage.errors import CorruptDataError, MissingDataError, UnavailableStoreError
from storage.files import open_plain, parse_json, read_errors, read_record
from storage.folder_layouts import RunLayout
from storage.folders import holder

LOG_TAIL_BYTES = 2**16  # The last line is shorter, even with a traceback.
SAVED = ("passes/*/sums-*.npz", "checkpoints/*.npz", "scores/*.npz", "solutions/*.npz")
LOW_RECALL, WORST_CLASSES = 0.9, 10  # The table of a run names at most ten classes below this recall.
RARE_SHARE = 0.1  # A class with a smaller share of the rows is named whatever its recall.
MISSED_RECALL = 0.5  # Class weights are advised for a rare class below this recall.
MOST_REASON_LETTERS = 100
LEAST_SHARE = 0.001  # A feature with a smaller share in squared distances is not named.
SCALES = {"plain": "as they are", "diagonal": "with a scale each", "metric": "with a metric"}

_Value = TypeVar("_Value")


def status(root: Path) -> dict[str, Any]:
    """Return the facts; unknown ones are None. Raises MissingRunError where there is no run.

    `state`: running (a process holds the lock), finished (has a report), stopped (on request), failed (see
    `last_error`), or killed. `damaged` lists what could not be read.
    """
    layout = RunLayout(root)
    damaged: list[str] = []
    # The lock comes first: a run that ends meanwhile counts as running once more, never as killed.
    held_by = holder(layout.lock)
    is_run = layout.config.exists() or layout.state.exists()
    if not (is_run or held_by):
        raise MissingRunError(f"{root} holds no run; name the folder of one")
    config = tried(damaged, "settings", lambda: frozen_config(layout)) if is_run else None
    stored: dict[str, Any] = {}
    if layout.state.exists():
        stored = tried(damaged, "progress", lambda: read_record(layout.state)) or {}
    log = tail(layout.log, LOG_TAIL_BYTES, damaged)
    error = log[-1].get("error") if log else None
    state, report = {None: "killed", "StoppedError": "stopped"}.get(error, "failed"), None
    if held_by:
        state = "running"
    elif layout.report.exists():
        state, report = "finished", tried(damaged, "report", lambda: _report(layout))
    under_way = stored if state != "finished" else {}
    progress, resume = under_way.get("progress"), resume_command(config.dataset if config else "DATASET", root)
    if progress and state != "running":
        progress["seconds_left"] = None
    return {
        "run": str(root),
        "dataset": config.dataset if config else None,
        "state": state,
        "held_by": held_by,
        "stage": under_way.get("stage"),
        "progress": progress,
        "last_message": next((one["message"] for one in reversed(log) if "message" in one), None),
        "saved_seconds_ago": _age(layout),
        "stages": stored.get("stages"),
        "peak_rss_bytes": stored.get("peak_rss_bytes"),
        "last_error": error if state == "failed" else None,
        "report": report,
        "resume": resume if state in ("stopped", "failed", "killed") else None,
        "damaged": damaged,
    }


def _report(layout: RunLayout) -> dict[str, Any]:
    """Return the report of a finished run. Raises ConfigMismatchError where another version wrote it."""
    with suppress(CorruptDataError, MissingDataError):  # `frozen_config` tells of a damaged env.json.
        read_environment(layout)
    return read_record(layout.report)


def status_of_all(folder: Path) -> list[dict[str, Any]]:
    """Return the facts of all runs in a folder, by their names; a run that cannot be read has only its place."""
    runs = list[dict[str, Any]]()
    for root in sorted(folder.glob("*/")):
        with suppress(MissingRunError, MissingDataError):  # The folder is no run, or was removed meanwhile.
            try:
                runs.append(status(root))
            except (OSError, UnavailableStoreError, CorruptDataError) as error:
                runs.append({"run": str(root), "state": "unreadable", "last_error": str(error), "damaged": []})
    return runs


def overview(runs: list[dict[str, Any]]) -> list[str]:
    """Return a line for each of several runs, under titles."""
    rows = [("state", "stage", "done", "error", "seconds", "centers", "folder")]
    for facts in runs:
        report, progress, stages = (facts.get(name) for name in ("report", "progress", "stages"))
        error, centers, done = "", "", ""
        if report:
            rate, centers, done = report["error_rate"], report["model_n_centers"], "100%"
            error = f"rmse {report['rmse']:.4g}" if rate is None else f"{100 * rate:.2f} %"
        elif progress and progress["total"]:
            done = f"{progress['done'] / progress['total']:.0%}"
        seconds = f"{sum(cost['wall_seconds'] for cost in stages.values()):.1f}" if stages else ""
        state = "damaged" if facts["damaged"] else facts["state"]
        reason = facts["damaged"][0] if facts["damaged"] else facts["last_error"] if state == "unreadable" else ""
        folder = facts["run"] + (f": {reason:.{MOST_REASON_LETTERS}}" if reason else "")
        rows.append((state, facts.get("stage") or "", done, error, seconds, centers, folder))
    return [printable("{:<12}{:<12}{:>5}{:>16}{:>10}{:>9}  {}".format(*row)) for row in rows]


def lines(facts: dict[str, Any]) -> list[str]:
    """Return the facts as lines for people."""
    held, peak, report, age = (facts[name] for name in ("held_by", "peak_rss_bytes", "report", "saved_seconds_ago"))
    by = f" by process {held['pid']} on {held['host']} since {held['started']}" if held else ""
    text = [f"{facts['run']}: {facts['dataset'] or 'unknown data'}, {facts['state']}{by}"]
    if facts["stage"]:
        told = Progress(**facts["progress"]).text() if facts["progress"] else ""
        text.append(", ".join(filter(None, (f"stage: {facts['stage']}", told))))
    shown = {
        "last message": None if facts["state"] == "finished" else facts["last_message"],
        "last error": facts["last_error"],
        "finished" if report else "saved last": None if age is None else f"{duration(age)} ago",
        "peak memory": None if peak is None else f"{peak / 2**20:.0f} MiB",
        "continue with": facts["resume"],
    }
    text += [f"{name}: {words}" for name, words in shown.items() if words is not None]
    text += [error_words(report, report), *map(worded, remarks(report))] if report else []
    return [printable(line) for line in (*text, *(f"damaged: {line}" for line in facts["damaged"]))]


def tried(notes: list[str], what: str, make: Callable[[], _Value], damaged: list[str] | None = None) -> _Value | None:
    """Return what `make` returns; None after an error that a user may meet, which is added to `notes`, or `damaged`.

    Without `damaged` it raises UnavailableStoreError: a file that could not be read may be whole.
    """
    try:
        return make()
    except Exception as error:
        code, line = describe(error)
        is_bug = code == ExitCode.BUG and not isinstance(error, OSError | ValueError)
        if is_bug or (damaged is None and isinstance(error, UnavailableStoreError)):
            raise
        (notes if damaged is None or code != ExitCode.INVALID_DATA else damaged).append(f"{what}: {line}")
        return None


def tail(path: Path, most_bytes: int, damaged: list[str]) -> list[dict[str, Any]]:
    """Return the JSON objects at the end of a file of lines; lines that are torn, or half written, are left out."""
    records, found = [], list[bytes]()
    try:
        with (
            suppress(MissingDataError),
            read_errors(path),
            open_plain(path) as stream,
        ):  # It may not be there yet, or no more.
            stream.seek(max(stream.seek(0, os.SEEK_END) - most_bytes, 0))
            found = stream.read().split(b"\n")
    except CorruptDataError as error:
        damaged.append(f"lines: {error}")
    for line in found:
        with suppress(ValueError):
            records.append(parse_json(line))
    return [record for record in records if isinstance(record, dict)]


def _age(layout: RunLayout) -> float | None:
    written = []
    for path in (path for pattern in (*SAVED, layout.report.name) for path in layout.root.glob(pattern)):
        with suppress(OSError):  # It may have been removed meanwhile.
            written.append(path.stat().st_mtime)
    return max(time.time() - max(written), 0.0) if written else None


def table(report: dict[str, Any]) -> list[str]:
    """Return the report as short tables: setting, path or selection, solves, kernels, model, error."""
    lines = [*problem_lines(report), *weighting_lines(report)]
    lines += _path_table(report["path"]) if report["path"] else []
    lines += _selection_table(report["selection"], report["select"], report["task"]) if report["selection"] else []
    lines += [certificate_words(report)] if report["solves"] else []
    if report["kernels_tried"]:
        rows = ("{:<17}{:<18}{:>12}{:>12}{:>19}{:>8}".format(*row).rstrip() for row in kernel_rows(report))
        lines += ["", *rows, *chosen_words(report)]
    lines += ["", *_scale_lines(report)] if report["feature_scales"] else []
    cost = f"{report['wall_seconds']:.1f} s, peak memory {report['peak_rss_bytes'] / 2**20:.0f} MiB"
    lines += ["", f"model: {counted(report['model_n_centers'], 'center')}; {cost}"]
    if report["columns"]:
        lines.append(column_words(report))
    lines += [move_words(report)] if report["moves"] else []
    if report["penalised"]:
        lines.append(error_words(report["penalised"], report, f" {before_words(report)}"))
    lines += [error_words(report, report), *class_lines(report, few=True), *ranking_words(report)]
    if numbers := report["probabilities"]:
        lines.append(f"{probability_words(numbers)}; {calibration_words(numbers)}")
    lines += [coverage_words(report["coverage"], report["task"])] if report["coverage"] else []
    return lines + remarks(report)


def next_steps(folder: Path) -> list[str]:
    """Return the commands that come after a run, as they are typed."""
    run = shlex.quote(str(folder))
    steps = [f"predict {run} DATA --out predictions.csv", f"evaluate {run}", f"report {run}"]
    return ["next:", *(f"  {program(step)}" for step in steps)]


def remarks(report: dict[str, Any]) -> list[str]:
    """Return lines on what a user should look at: solves that missed the tolerance, and warnings."""
    return not_converged(report) + [f"WARNING: {line}" for line in report["warnings"]]


def column_words(report: dict[str, Any]) -> str:
    """Return a line on the columns whose row of the Gram was never kept, and what pricing them took."""
    columns, n_train = report["columns"], report["n_train"]
    never, count = columns["columns_never_made"], columns["candidates"]
    kept = f"{never * n_train:.3g} of {count * n_train:.3g} values never kept"
    priced = f"priced {columns['on_the_fly']} times, {report['kernel_entries']:.3g} values computed in all"
    return f"kernel columns: {never} of {count} never materialised ({kept}); {priced}; {columns['active']} active"


def move_words(report: dict[str, Any]) -> str:
    """Return a line on the steps that moved the centers, and what they gained."""
    moves = report["moves"]
    before, after, kept = moves["held_out_before"], moves["held_out_after"], moves["kept_step"]
    change = f"falls from {before:.6g} to {after:.6g}" if kept else f"of {before:.6g} does not fall"
    return f"centers moved: {kept} of {counted(moves['steps'], 'step')} kept, the held-out mse {change}"


def weighting_lines(report: dict[str, Any]) -> list[str]:
    """Return a line on the weights of rows, where they have any."""
    if (weighting := report["weighting"]) is None:
        return []
    words = [] if weighting["weights"] is None else [f"rows by {weighting['weights']}"]
    if weighting["class_factors"] is not None:
        words.append(f"classes {weighting['class_weight']}")
    counted = "" if weighting["test_weighted"] else "; every row of the test part counts the same"
    return [f"weights: {', '.join(words)}{counted}"]


def by_weight(report: dict[str, Any]) -> str:
    """Return the words for test errors of weighted rows; an empty text for others."""
    return " by weight" if (report["weighting"] or {}).get("test_weighted") else ""


def not_converged(report: dict[str, Any]) -> list[str]:
    """Return a line for every status of solves that missed the tolerance: which, their gaps, and what it advises."""
    missed, lines = [one for one in report["solves"] if not one["converged"]], []
    for status in dict.fromkeys(one["status"] for one in missed):
        alike = [one for one in missed if one["status"] == status]
        names, gap = ", ".join(str(one["output"]) for one in alike), max(one["relative_gap"] for one in alike)
        which = f"output {names}: relative gap" if len(alike) == 1 else f"outputs {names}: relative gaps up to"
        lines.append(f"NOT CONVERGED: {which} {gap:.1e}, asked {report['tolerance']:g}: {status}")
    return lines


def certificate_words(report: dict[str, Any]) -> str:
    """Return the largest relative gap of the solves of a report, and the precision of its kernel."""
    gaps = [one["relative_gap"] for one in report["solves"]]
    words = "the relative gap is" if len(gaps) == 1 else f"each of {len(gaps)} relative gaps is at most"
    rounded = ", for kernel values rounded to float32" if report["precision"] == "float32" else ""
    return f"certificate: {words} {max(gaps):.1e}{rounded}"


def _path_table(path: list[dict[str, Any]]) -> list[str]:
    titles = f"{'penalty':>12}{'objective':>14}{'centers':>9}{'held-out error':>16}{'seconds':>9}"
    numbers = "{penalty:>12.4g}{objective:>14.6g}{n_centers:>9}{hold_out_error:>16.6g}{wall_seconds:>9.2f}"
    return ["", titles, *map(numbers.format_map, path)]


def _selection_table(selection: dict[str, Any], select: str, task: str) -> list[str]:
    curve, values = selection["curve"], task == "regression"
    name, scale = ("test mse", 1.0) if values else ("test error, %", 100.0)
    lines = ["", f"{'centers':>8}{'held-out mse':>14}{name:>16}" + (f"{'RMSE':>12}{'R2':>9}" if values else "")]
    for k in sorted({round(k * (len(curve) - 1) / 11) for k in range(12)}):
        error, r2 = curve[k]["test_error"], curve[k]["test_r2"]
        line = f"{curve[k]['size']:>8}{curve[k]['hold_out_error']:>14.6g}{scale * error:>16.4g}"
        line += f"{math.sqrt(error):>12.4g}" if values else ""
        lines.append(line + ("" if r2 is None else f"{r2:>9.4f}"))
    lines.append(f"{selection['n_centers']} centers chosen in {selection['wall_seconds']:.2f} s")
    asked = int(select.removeprefix("greedy:"))
    if selection["n_centers"] < asked:
        lines.append(f"{selection['n_centers']} centers instead of {asked}: no other candidate adds anything")
    return lines


def before_words(report: dict[str, Any]) -> str:
    """Return what followed the `penalised` scores of a report that has them: a refit, moves of centers, or both."""
    done = {
        "before the refit": report["refit"] is not None and report["penalty"] is not None,
        "before the centers moved": bool(report["moves"] and report["moves"]["kept_step"]),
    }
    return " and ".join(words for words, was in done.items() if was)


def error_words(errors: dict[str, Any], report: dict[str, Any], when: str = "") -> str:
    """Return a line with the test error of a report, or of other scores in it; when: the time of those scores."""
    by = by_weight(report) + when
    if errors["mse"] is None:
        return f"test error{by}: {100 * errors['error_rate']:.2f} % ({errors['n_errors']} of {report['n_test']})"
    return f"test mean squared error{by}: {value_words(errors)}"


def value_words(errors: Mapping[str, Any]) -> str:
    """Return the errors of predicted numbers, the mean squared error first."""
    r2 = "" if errors["r2"] is None else f", R2 {errors['r2']:.4f}"
    others = f"RMSE {errors['rmse']:.6g}, mean absolute error {errors['mae']:.6g}{r2}"
    return f"{errors['mse']:.6g}, {others}{limit_words(errors)}"


def limit_words(errors: Mapping[str, Any]) -> str:
    """Return the number of predictions at a limit, which lies beyond the targets by a third of their range."""
    return f"; {counted(errors['n_at_limit'], 'prediction')} at a limit" if errors["n_at_limit"] else ""


def class_lines(numbers: Mapping[str, Any], *, few: bool) -> list[str]:
    """Return the lines on the classes of a score: one for each or, if `few`, for those of the lowest recall."""
    baseline, by_class = numbers["baseline"], numbers["by_class"]
    if not by_class:
        return []
    lines = [f"baseline: {100 * baseline['error_rate']:.2f} % error (always {baseline['label']})"]
    shown = list(range(len(by_class)))
    if few:
        low = [k for k in by_recall(by_class) if (by_class[k]["recall"] or 0) < LOW_RECALL and by_class[k]["rows"]]
        shown = low[:WORST_CLASSES]
        which = "" if len(low) == len(shown) else f"; the lowest {len(shown)}"
        lines += [f"recall below {100 * LOW_RECALL:g} %: {len(low)} of {len(by_class)} classes{which}"] if low else []
        shown += [k for k in _rare(by_class) if k not in shown][:WORST_CLASSES]
    width = max((len(str(by_class[k]["label"])) for k in shown), default=0) + 1
    return lines + [_class_line(by_class[k], numbers, k, width) for k in shown]


def _rare(by_class: list[dict[str, Any]]) -> list[int]:
    """Return the places of classes with less than a tenth of the rows, and less than half an equal share."""
    most = min(RARE_SHARE, 0.5 / len(by_class)) * sum(one["rows"] for one in by_class)
    told = [k for k in by_recall(by_class) if by_class[k]["recall"] is not None]
    return [k for k in told if by_class[k]["rows"] < most]


def missed_words(by_class: list[dict[str, Any]]) -> list[str]:
    """Return the advice for rare classes of low recall, for scores of a model without class weights."""
    missed = [str(by_class[k]["label"]) for k in _rare(by_class) if by_class[k]["recall"] < MISSED_RECALL]
    if not missed:
        return []
    names = ", ".join(missed[:WORST_CLASSES])
    advice = "`data.class_weight=balanced` finds more of their rows, and takes more others for them"
    return [f"rare classes with a recall below {100 * MISSED_RECALL:g} %: {names}; {advice}"]


def by_recall(by_class: list[dict[str, Any]]) -> list[int]:
    """Return the places of classes by their recall, the lowest first; classes without a recall last."""
    return sorted(range(len(by_class)), key=lambda k: 2.0 if by_class[k]["recall"] is None else by_class[k]["recall"])


def _class_line(one: Mapping[str, Any], numbers: Mapping[str, Any], k: int, width: int) -> str:
    start, others = f"class {one['label']!s}:".ljust(7 + width), numbers["confusion"][k]
    if one["recall"] is None:
        return f"{start}no rows"
    precision = "never predicted" if one["precision"] is None else f"precision {100 * one['precision']:6.2f} %"
    other = max((j for j in range(len(others)) if j != k), key=lambda j: others[j])
    taken = f", {others[other]} taken for {numbers['by_class'][other]['label']}" if others[other] else ""
    return f"{start}recall {100 * one['recall']:6.2f} %, {precision} ({counted(one['rows'], 'row')}{taken})"


def calibration_words(numbers: Mapping[str, Any]) -> str:
    """Return the parameters behind the probabilities of a run, the rows they were found by, and what to mind."""
    words = f"by {numbers['n_rows']} training rows: temperature {numbers['temperature']:.3g}"
    words += " and offsets; labels are not always the likeliest class" if numbers["offsets"] else ""
    seen = "probabilities may be too sure: the temperature was found on rows that the weights were fitted to"
    return f"{words}; {seen}; `solver.refit=ridge` helps" if numbers["seen"] else words


def probability_words(numbers: Mapping[str, Any]) -> str:
    """Return a line with the scores of probabilities."""
    means = f"log loss {numbers['log_loss']:.4g}, Brier score {numbers['brier_score']:.4g}"
    return f"probabilities: {means}, expected calibration error {100 * numbers['calibration_error']:.2f} %"


def ranking_words(numbers: Mapping[str, Any]) -> list[str]:
    """Return a line on how well decision values rank rows, where that was scored."""
    if numbers.get("roc_auc") is None:
        return []
    of = f"of class {numbers['by_class'][1]['label']}" if len(numbers["by_class"]) == 2 else "mean of the classes"
    return [f"ROC AUC {numbers['roc_auc']:.4f}, average precision {numbers['average_precision']:.4f} ({of})"]


def coverage_words(numbers: Mapping[str, float], task: str) -> str:
    """Return the share of the test rows that intervals or sets hold, at the level of the scores."""
    size = f"{numbers['size']:.3g}"
    sets = f"sets of {size} {'label' if size == '1' else 'labels'} on average"
    what = f"intervals of width {numbers['size']:.6g}" if task == "regression" else sets
    held = f"{100 * numbers['reached']:.2f} % of the rows"
    return f"coverage: {what}, made to hold {100 * numbers['level']:g} % of new rows, hold {held}"


def problem_lines(report: dict[str, Any]) -> list[str]:
    """Return a line on the data and one on the problem of a run."""
    kernel = "" if report["kernel"] == "gaussian" else f"{report['kernel']} kernel, "
    width = f"sigma2 {report['sigma2']:g}"
    chosen = next((one for one in report["kernels_tried"] or () if one["chosen"]), None)
    if chosen and chosen["sigma2"] != report["sigma2"]:
        width += f" ({chosen['sigma2']:g} where the kernel was chosen, on {counted(chosen['n_centers'], 'candidate')})"
    refit = f"least squares on {{}}, ridge {report['hold_out']['ridge']:.3g}" if report["refit"] else ""
    if report["select"]:
        problem = f"select {report['select']}"
    elif report["penalty"] is None:
        problem = refit.format("all of them") or "a constant, as none tells more"
    else:
        problem = f"penalty {report['penalty']:g}" + (refit and f", then {refit.format('the centers it kept')}")
    rows = f"{counted(report['n_train'], 'training row')}, {counted(report['n_test'], 'test row')}"
    features = counted(report["n_features"], f"{report['features']} feature")
    return [
        f"{report['dataset']}: {rows}, {features}, {report['task']}",
        f"{counted(report['n_centers'], 'candidate')}, {kernel}{width}, {problem}",
    ]


def trial_error(report: dict[str, Any]) -> str:
    """Return the name of the error that kernels are compared by."""
    return "held-out mse" if report["task"] == "regression" else "held-out log loss"


def kernel_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Return the kernels, scales of the inputs and widths that were tried, as rows of words below titles."""
    rows: list[tuple[str, ...]] = [("kernel", "inputs", "candidates", "sigma2", trial_error(report), "")]
    for one in report["kernels_tried"]:
        error = "-" if one["hold_out_error"] is None else f"{one['hold_out_error']:.6g}"
        sizes, chosen = (str(one["n_centers"]), f"{one['sigma2']:g}"), "chosen" if one["chosen"] else ""
        rows.append((one["kernel"], SCALES[one["scales"]], *sizes, error, chosen))
    return rows


def chosen_words(report: dict[str, Any]) -> list[str]:
    """Return why a kernel was chosen, where another that was tried has a lower error."""
    tried = report["kernels_tried"]
    chosen = [one["hold_out_error"] for one in tried if one["chosen"]]
    if not chosen:
        return ["chosen: a constant; by folds, no kernel tells more than that"]
    if chosen == [min(one["hold_out_error"] for one in tried if one["hold_out_error"] is not None)]:
        return []
    return ["chosen: the lowest error on as many candidates, or a simpler choice that is worse by no more than chance"]


def _scale_lines(report: dict[str, Any]) -> list[str]:
    scales = report["feature_scales"]
    if scales["kind"] == "plain":
        return ["feature scales: none; to learn them gained nothing on held-out rows"]
    most = ", ".join(f"{name} {100 * share:.1f} %" for name, share in names_by_importance(scales, 5))
    without, error = scales["hold_out_error_without"], scales["hold_out_error"]
    gain = "" if without is None else f"; the {trial_error(report)} falls from {without:.6g} to {error:.6g}"
    what = "feature metric" if scales["kind"] == "metric" else "feature scales"
    return [f"{what}: learned{gain}; most important: {most}"]


def names_by_importance(scales: dict[str, Any], most: int) -> list[tuple[str, float]]:
    """Return the names and shares of the most important features, the largest first: one, and others of LEAST_SHARE."""
    shares, names = scales["importances"], scales["names"]
    order = sorted(range(len(shares)), key=lambda j: -shares[j])[:most]
    told = [j for j in order if shares[j] >= LEAST_SHARE] or order[:1]
    return [(printable(names[j]) if names else f"feature {j}", shares[j]) for j in told]

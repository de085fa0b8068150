"""The forms of the records of a run that commands read back, see `storage.records.misfit`."""

import re
from collections.abc import Mapping
from typing import Any

from pipeline.errors import ConfigMismatchError
from storage.errors import CorruptDataError
from storage.folder_layouts import RunLayout, check_plain_name
from storage.records import amount, count, misfit, number, read_record

FORMAT_VERSION = 1
# What the bits of a model depend on: whose code the numbers come out of, and where it runs.
DECISIVE = ("the core type of BLAS", "the kind of processor", "slkl", "numpy", "scipy", "numba", "BLAS")
_ENV_REMEDY = "restore it, or start a new run"


def _digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{1,64}", value) is not None


def _name(value: object) -> bool:
    """Return whether a value is the name of a file in a folder."""
    try:
        return isinstance(value, str) and all(len(part) < 256 for part in check_plain_name(value).split("/"))
    except ValueError:
        return False


def _selection(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"greedy:(auto|[0-9]{1,9})", value) is not None


ENVIRONMENT = {
    "format_version": count,
    "arguments": [str],
    "config": _digest,
    "data": str,
    "features": _name,
    "environment": {**dict.fromkeys(DECISIVE, (None, str)), "...": None},
}
CONTENTS = {"files": [_name]}
STAGES = {str: {"wall_seconds": amount, "cpu_seconds": amount, "items": count}}
PROGRESS = {
    "done": amount,
    "total": amount,
    "unit": str,
    "words": str,
    "note": str,
    "seconds_left": (None, amount),
}
STATE = {
    "stage": str,
    "pid": count,
    "stages": STAGES,
    "peak_rss_bytes": count,
    "progress": (None, PROGRESS),
}

_LABEL, _SOME, _ANY = (str, bool, number), (None, amount), (None, number)
_ERRORS = {"error_rate": _SOME, "n_errors": _SOME, "mse": _SOME, "rmse": _SOME, "r2": _ANY}
_CLASS = {"label": _LABEL, "rows": amount, "recall": _SOME, "precision": _SOME}
_TRIED = {
    "kernel": str,
    "scales": {"plain", "common", "diagonal", "metric"},
    "n_centers": count,
    "sigma2": amount,
    "hold_out_error": _SOME,
    "chosen": bool,
}
_SCALES = {
    "kind": {"plain", "common", "diagonal", "metric"},
    "scales": [number],
    "importances": [number],
    "names": (None, [str]),
    "hold_out_errors": [_SOME],
    "chosen_round": count,
}
_MOVES = {
    "held_out_before": amount,
    "held_out_after": amount,
    "held_out_errors": [amount],
    "kept_step": count,
    "steps": count,
    "levels": [{"first_step": count, "share": amount}],
    "...": None,
}
_WEIGHTING = {
    "weights": (None, str),
    "class_weight": (None, str, dict),
    "class_factors": (None, [amount]),
    "classes": (None, [_LABEL]),
    "test_weighted": bool,
}
_POINT = {
    "penalty": amount,
    "objective": number,
    "n_centers": count,
    "hold_out_error": amount,
    "wall_seconds": amount,
    "...": None,
}
_SOLVE = {
    "output": _LABEL,
    "objective": number,
    "relative_gap": amount,
    "converged": bool,
    "status": str,
    "wall_seconds": amount,
    **dict.fromkeys(("n_active", "sweeps", "visits", "moves"), count),
    "...": None,
}
_CURVE = [{"size": count, "hold_out_error": amount, "test_error": amount, "test_r2": _ANY, "...": None}]
_SELECTION = {"curve": _CURVE, "n_centers": count, "refused": count, "wall_seconds": amount, "...": None}
_BIN = {"confidence": amount, "accuracy": amount, "rows": amount}  # rows of weights
_PROBABILITIES = {
    "seen": bool,
    "temperature": amount,
    "reliability": [_BIN],
    **dict.fromkeys(("log_loss", "brier_score", "calibration_error"), amount),
    "...": None,
}
_COUNTS = ("n_train", "n_test", "n_features", "n_centers", "model_n_centers", "kernel_entries", "peak_rss_bytes")
REPORT = {
    **dict.fromkeys(_COUNTS, count),
    **dict.fromkeys(("dataset", "features", "kernel", "precision"), str),
    **dict.fromkeys(("sigma2", "tolerance", "deskew", "power", "wall_seconds"), amount),
    **dict.fromkeys(("converged", "intercept"), bool),
    "notes": [str],
    "warnings": [str],
    **_ERRORS,
    "format_version": count,
    "seed": count,
    "task": {"regression", "binary", "multiclass"},
    "penalty": _SOME,
    "select": (None, _selection),
    "refit": (None, str),
    "baseline": (None, {"error_rate": amount, "label": _LABEL}),
    "auc": _SOME,
    "auc_rows": _SOME,
    "by_class": (None, [_CLASS]),
    "confusion": (None, [[amount]]),
    "penalised": (None, _ERRORS),
    "probabilities": (None, _PROBABILITIES),
    "hold_out": (None, {"ridge": _SOME, "ridges": (None, [[_SOME]]), "...": None}),
    "kernels_tried": (None, [_TRIED]),
    "feature_scales": (None, _SCALES),
    "weighting": (None, _WEIGHTING),
    "moves": (None, _MOVES),
    "selection": (None, _SELECTION),
    "path": (None, [_POINT]),
    "path_candidates": (None, count),
    "rounds": (None, [dict]),
    "columns": (None, {str: count}),
    "stages": STAGES,
    "solves": [_SOLVE],
    "...": None,
}


_LINE_TEXTS = ("time", "event", "stage", "message", "error", "traceback", "statistics")
_OF_SOLVES = ("round", "output", "iteration", "visited", "screened", "n_active")
_OF_ROUNDS = ("working_set", "violators", "admitted", "dropped")
LINE = {
    **dict.fromkeys(_LINE_TEXTS, str),
    **dict.fromkeys(_OF_SOLVES, count),
    **dict.fromkeys(_OF_ROUNDS, (None, count)),
    **dict.fromkeys(("skipped", "penalty", "objective", "relative_gap"), number),
    **dict.fromkeys(("hold_out_error", "sample_error"), (None, number)),
    "relative_gaps": (None, [number]),
}


def line_misfit(record: Mapping[str, Any]) -> str | None:
    """Return a key of a line of a log, or of a record of an iteration, whose value no run writes there, if any."""
    return misfit(record, {name: form for name, form in LINE.items() if name in record} | {"...": None})


def read_report(layout: RunLayout) -> dict[str, Any]:
    """Return the report of a finished run. Raises MissingDataError, CorruptDataError naming the key."""
    remedy = "delete it and resume the run: it is made again"
    report = read_record(layout.report, REPORT, remedy=remedy)
    if (key := _contradiction(report)) is not None:
        raise CorruptDataError(f"{layout.report}: {key} does not fit the rest of it; {remedy}")
    return report


def _contradiction(report: dict[str, Any]) -> str | None:
    """Return a key of a report whose value contradicts others, None where there is none."""
    values, least_squares = report["task"] == "regression", report["penalty"] is None and not report["select"]
    needed = [] if values else ["confusion", "by_class", "baseline", "auc_rows"]
    needed += ["hold_out"] * least_squares + ["select"] * bool(report["selection"])
    needed += ["path_candidates"] * bool(report["path"])
    n_classes, scales, moves = len(report["by_class"] or ()), report["feature_scales"], report["moves"]
    selection, weighting = report["selection"], report["weighting"] or {"class_factors": None}
    errors = dict.fromkeys(("mse", "rmse"), values) | dict.fromkeys(("error_rate", "n_errors"), not values)
    before = report["penalised"] or {}
    conditions = {
        **{key: report[key] is not None for key in needed},
        **{key: (report[key] is not None) == there for key, there in errors.items()},
        "penalised": all((before[key] is not None) == errors[key] for key in before if key in errors),
        "confusion": all(len(row) == n_classes for row in [report["confusion"] or [], *(report["confusion"] or ())]),
        "feature_scales.chosen_round": not scales or scales["chosen_round"] < len(scales["hold_out_errors"]),
        "feature_scales.names": not scales or len(scales["names"] or scales["scales"]) == len(scales["importances"]),
        "moves.held_out_errors": not moves or bool(moves["held_out_errors"] and moves["levels"]),
        "selection.curve": not selection or bool(selection["curve"]),
        "weighting.class_factors": len(weighting["class_factors"] or ()) == len(weighting.get("classes") or ()),
        "hold_out.ridge": not least_squares or (report["hold_out"] or {}).get("ridge") is not None,
    }
    return next((key for key, holds in conditions.items() if not holds), None)


def read_environment(layout: RunLayout) -> dict[str, Any]:
    """Return what a run was started with.

    Raises MissingDataError, CorruptDataError naming the key, ConfigMismatchError for a run of another version.
    """
    version = read_record(layout.environment, remedy=_ENV_REMEDY).get("format_version")
    if version != FORMAT_VERSION and count(version):
        raise ConfigMismatchError(f"the run in {layout.root} is of another version of this software; start a new run")
    return read_record(layout.environment, ENVIRONMENT, remedy=_ENV_REMEDY)
